/**
 * Presence: a signed note by which callers tell a mailbox that nobody serves from one whose server is slow, and the lines
 * that keep an idle mailbox from being reaped. Both are written rarely, and when they do not matter to anybody else.
 *
 * Anybody can write the note. One that does not verify counts as absent, and absent means that nothing is known: never that
 * nobody is there.
 *
 * @module
 */
import { toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { budgetOf, healthOf, sharedOf, type Transport, within } from './http.ts';
import { count, remember } from './maps.ts';
import { type NotePath, verify } from './names.ts';
import { readNote, setNote } from './notes.ts';
import { readView, saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';

/** Time between two notes, ms: a three-hundredth of the write budget. */
const PERIOD_MS = 600_000;
/** How long after its begin a server looks whether its mailbox is to be kept alive, ms. */
const SETTLE_MS = 10_000;
/** How long a note says that its server is there, ms. */
const VALID_MS = 3 * PERIOD_MS;
/** How long before its time is up a call looks for the note of its server, ms. */
export const LOOK_MS = 3000;
/** How long what was found is good for other calls to the same mailbox, ms. */
const FOUND_MS = 5000;
/** How long a server that ends tries to say so, ms. */
const GOODBYE_MS = 2000;
/** Share of the write budget that must be left for a note or a line that can wait. */
const SPARE_SHARE = 0.25;
/** How long it can wait at most, and between two looks at the budget, ms. */
const DEFER_MS = PERIOD_MS;
const DEFER_STEP_MS = 30_000;

/** Idle time after which a line is written to a mailbox that holds a single one, ms: the service keeps it for a day. */
const SINGLE_IDLE_MS = 3_600_000;
/** The same for any other, which is kept for seven days. */
const IDLE_MS = 5 * 86_400_000;

// --- the note ----------------------------------------------------------------------------------------------------

/** What a server said of itself. */
export interface Presence {
  did: string;
  /** When, by its own clock, ms. */
  at: number;
  /** For how long, ms; 0: it was about to end. */
  validMs: number;
}

/** Whether what a server said of itself still stands. */
export function isThere({ at, validMs }: Presence, now: number): boolean {
  return now <= at + validMs;
}

/** Where the presence note of a mailbox is: unlisted, and found by whoever knows the mailbox. */
export function presenceNote(mailbox: string): NotePath {
  const digest = toHex(sha256(utf8(mailbox)));
  return { ns: `rpc-here-${digest.slice(0, 2)}`, key: `p-${digest.slice(2, 16)}` };
}

/** The mailbox is signed and not shown: its name may be known to few. */
const canonical = (mailbox: string, { did, at, validMs }: Presence): string =>
  `rpc-here|${did}|${mailbox}|${at}|${validMs}`;

function presenceIn(mailbox: string, value: string): Presence | undefined {
  const [, did, at, validMs, sig] = /^(did:key:\S{48}) (\d{1,15}) (\d{1,9}) (\S{86})$/.exec(value) ?? [];
  if (did === undefined) return undefined;
  const presence = { did, at: Number(at), validMs: Number(validMs) };
  return verify(did, sig!, canonical(mailbox, presence)) ? presence : undefined;
}

const FOUND = {};
const NEWEST = {};
const MAX_FOUND = 256;

/**
 * What the server of a mailbox said last, as far as its note can be believed.
 *
 * @param peer the only key whose word counts. While nobody knows whose mailbox it is, any key's does: whichever answered first
 * would be believed as well, and more would hang on its answer than on a hint that names it
 * @param deadline clock time, ms, by which the look must be over
 * @returns undefined: not known
 */
export async function presenceOf(
  t: Transport,
  mailbox: string,
  peer: string | undefined,
  deadline: number,
): Promise<Presence | undefined> {
  const found = sharedOf(t, FOUND, () => new Map<string, { at: number; value: Promise<string | undefined> }>());
  const newest = sharedOf(t, NEWEST, () => new Map<string, number>());
  const now = t.clock.now();
  let look = found.get(mailbox);
  // However many calls wait in vain, they look once.
  if (!look || Math.abs(now - look.at) > FOUND_MS) {
    const { ns, key } = presenceNote(mailbox);
    look = { at: now, value: readNote(t, ns, key, { deadline, timeoutMs: LOOK_MS }).catch(() => undefined) };
    remember(found, mailbox, look, MAX_FOUND);
  }
  const value = await look.value;
  const presence = value === undefined ? undefined : presenceIn(mailbox, value);
  if (!presence || (peer !== undefined && presence.did !== peer)) return undefined;
  // Older than one seen before: somebody put it back.
  const name = `${mailbox} ${presence.did}`;
  if (presence.at < (newest.get(name) ?? 0)) return undefined;
  remember(newest, name, presence.at, MAX_FOUND);
  return presence;
}

// --- a served mailbox --------------------------------------------------------------------------------------------

/** What is to be done for a mailbox while it is served. */
export interface Attending {
  /** Whether its presence note is kept. */
  presence: boolean;
  /** Whether a message came since this was last asked. */
  heard(): boolean;
  /**
   * Told of another program that has the same key and says that it serves the mailbox, with when it said so, ms: at the start,
   * where that may be the word of one that was killed, and once later.
   */
  onOther?(at: number): void;
  /** When the server before this one said that it is there, if it was certainly ours. */
  lastSaid?(): Promise<number | undefined>;
  /** Told, before it is said that this server is there, when that is; waited for. */
  saying?(at: number): Promise<void>;
  /** Whether the note is to say that nobody is there, when this server ends; default: yes. */
  isLast?(): boolean;
}

const SERVED = {};
const TOLD = {};

const servedOf = (t: Transport): Map<string, number> => sharedOf(t, SERVED, () => new Map());

/** Whether a mailbox is served through this very transport, out of whose budget its answers then are written. */
export function isServedHere(t: Transport, mailbox: string): boolean {
  return servedOf(t).has(mailbox);
}

/** Keeps a mailbox alive and its presence note true, until the signal aborts. Never rejects. */
export async function attend(
  t: Transport,
  mailbox: string,
  signer: Signer,
  signal: AbortSignal,
  { presence, heard, onOther, lastSaid, saying, isLast = () => true }: Attending,
): Promise<void> {
  const { ns, key } = presenceNote(mailbox);
  // Of all servers of this mailbox here, one after the other: none takes the word of an earlier one for another program's.
  const times = sharedOf(t, TOLD, () => new Map<string, number>());
  const name = `${mailbox} ${signer.did}`;
  const tell = async (validMs: number, until: AbortSignal): Promise<void> => {
    // Above all before it, so that whoever saw one of them believes this one.
    const at = Math.max(Math.floor(t.clock.now()), (times.get(name) ?? 0) + 1);
    remember(times, name, at, MAX_FOUND);
    await saying?.(at);
    const said: Presence = { did: signer.did, at, validMs };
    const value = `${said.did} ${at} ${validMs} ${signer.sign(canonical(mailbox, said))}`;
    await setNote(ns, key, value, { ...t, signal: until });
  };
  let isAlone = true;
  let told = false;
  const lookForOthers = async (): Promise<void> => {
    const value = await readNote(t, ns, key, { signal, timeoutMs: LOOK_MS }).catch(() => undefined);
    const said = value === undefined ? undefined : presenceIn(mailbox, value);
    // Only who has the key can say more than we did.
    if (said?.did !== signer.did || said.at <= (times.get(name) ?? 0) || said.validMs === 0) return;
    // What was killed before us has said nothing since.
    if (!told && said.at === (await lastSaid?.())) return;
    // Where nothing was said since it should have been renewed, its server is gone.
    if (!told && t.clock.now() - said.at > PERIOD_MS + 2 * SETTLE_MS) return;
    onOther?.(said.at);
    isAlone = !told;
  };
  const attempt = (what: Promise<unknown>): Promise<boolean> =>
    what.then(
      () => true,
      (cause) => {
        if (!signal.aborted) t.onEvent({ kind: 'unattended', room: mailbox, cause });
        return false;
      },
    );
  const served = servedOf(t);
  count(served, mailbox, 1);
  try {
    let isSingle = true;
    let idle: number | undefined;
    for (;;) {
      await whenSpare(t, signal);
      if (presence) {
        if (onOther && isAlone) await lookForOthers();
        told = true;
        await attempt(tell(VALID_MS, signal));
      }
      if (idle === undefined) {
        // What is asked as soon as a server is there comes before what can wait.
        await t.clock.sleep(SETTLE_MS, signal);
        const { messages } = await readView(t, mailbox, { limit: 2 }, signal).catch(() => ({ messages: [] }));
        signal.throwIfAborted();
        isSingle = messages.length < 2;
        idle = Math.max(0, t.clock.now() - Date.parse(messages.at(-1)?.ts ?? '') || 0);
      }
      const isDue = idle >= (isSingle ? SINGLE_IDLE_MS : IDLE_MS);
      if (heard() || (isDue && (await attempt(saySigned(t, signer, mailbox, 'mailbox kept', signal))))) {
        isSingle = false;
        idle = 0;
      }
      const before = t.clock.now();
      await t.clock.sleep(PERIOD_MS, signal);
      idle += Math.max(PERIOD_MS, t.clock.now() - before);
    }
  } catch {
    count(served, mailbox, -1);
    // A service that could not be reached just now keeps nobody who ends.
    if (!told || !isLast() || healthOf(t).failure) return;
    const { signal: until, end } = within(t, GOODBYE_MS);
    await attempt(tell(0, until));
    end();
  }
}

/** Waits while the write budget is short and others need it more, though not for ever. */
async function whenSpare(t: Transport, signal: AbortSignal): Promise<void> {
  const budget = budgetOf(t, 'write');
  for (let ms = 0; ms < DEFER_MS && budget.left <= SPARE_SHARE; ms += DEFER_STEP_MS) {
    await t.clock.sleep(DEFER_STEP_MS, signal);
  }
}
