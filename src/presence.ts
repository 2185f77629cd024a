/**
 * Presence: a signed note by which callers tell a mailbox that nobody serves from one whose server is slow, and the
 * messages that keep the service from deleting an idle mailbox. Both are written rarely, and when nobody else needs the
 * budget.
 *
 * Anybody can write the note. One that does not verify counts as absent, and an absent one means that nothing is known,
 * never that nobody is there.
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

/** The time between two notes, ms. It takes a three-hundredth of the write budget. */
const PERIOD_MS = 600_000;
/** How long after its start a server checks whether its mailbox must be kept alive, ms. */
const SETTLE_MS = 10_000;
/** For how long a note says that its server is there, ms. */
const VALID_MS = 3 * PERIOD_MS;
/** How long before its timeout a call reads the note of its server, ms. */
export const LOOK_MS = 3000;
/** For how long other calls to the same mailbox use what was read, ms. */
const FOUND_MS = 5000;
/** How long a server that ends tries to write so, ms. */
const GOODBYE_MS = 2000;
/** The share of the write budget that must be left for a write that can wait. */
const SPARE_SHARE = 0.25;
/** How long such a write can wait, ms. */
const DEFER_MS = PERIOD_MS;
/** How often it looks at the budget meanwhile, ms. */
const DEFER_STEP_MS = 30_000;

/** The idle time after which a mailbox with a single message gets another, ms. The service deletes it after a day. */
const SINGLE_IDLE_MS = 3_600_000;
/** The same for any other mailbox, which the service deletes after seven days. */
const IDLE_MS = 5 * 86_400_000;

// --- the note ----------------------------------------------------------------------------------------------------

/** What a presence note says. */
export interface Presence {
  did: string;
  /** When it was written, by the server's clock, ms. */
  at: number;
  /** For how long it counts, ms; 0 if the server was about to end. */
  validMs: number;
}

/** Whether a presence note still counts. */
export function isThere({ at, validMs }: Presence, now: number): boolean {
  return now <= at + validMs;
}

/** The address of a mailbox's presence note: it is not listed, and can be derived by those who know the mailbox. */
export function presenceNote(mailbox: string): NotePath {
  const digest = toHex(sha256(utf8(mailbox)));
  return { ns: `rpc-here-${digest.slice(0, 2)}`, key: `p-${digest.slice(2, 16)}` };
}

/** What is signed. The note itself does not show the mailbox, whose name may be known to few. */
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
 * Reads the presence note of a mailbox.
 *
 * @param peer the only key whose note counts. While it is not known whose mailbox it is, any key's does: the first key
 * that answers would be believed as well, and an answer matters more than a hint
 * @param deadline clock time, ms, by which the read must be over
 * @returns undefined if there is no note that counts
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
  // However many calls run into their timeouts, they read it once.
  if (!look || Math.abs(now - look.at) > FOUND_MS) {
    const { ns, key } = presenceNote(mailbox);
    look = { at: now, value: readNote(t, ns, key, { deadline, timeoutMs: LOOK_MS }).catch(() => undefined) };
    remember(found, mailbox, look, MAX_FOUND);
  }
  const value = await look.value;
  const presence = value === undefined ? undefined : presenceIn(mailbox, value);
  if (!presence || (peer !== undefined && presence.did !== peer)) return undefined;
  // A note that is older than one seen before was put back by somebody.
  const name = `${mailbox} ${presence.did}`;
  if (presence.at < (newest.get(name) ?? 0)) return undefined;
  remember(newest, name, presence.at, MAX_FOUND);
  return presence;
}

// --- a served mailbox --------------------------------------------------------------------------------------------

/** What is done for a mailbox while it is served. */
export interface Attending {
  /** Whether to maintain its presence note. */
  presence: boolean;
  /** Whether a message came since the last time this was called. */
  heard(): boolean;
  /**
   * Called when another program with the same key says that it serves the mailbox, with the time of its note, ms: at the
   * start, when it may be the note of a program that was killed, and once later.
   */
  onOther?(at: number): void;
  /** When the server before this one wrote the note, if it was certainly ours. */
  lastSaid?(): Promise<number | undefined>;
  /** Called, and awaited, before the note is written, with the time in it. */
  saying?(at: number): Promise<void>;
  /** Whether to write that nobody is there when this server ends; default true. */
  isLast?(): boolean;
}

const SERVED = {};
const TOLD = {};

const servedOf = (t: Transport): Map<string, number> => sharedOf(t, SERVED, () => new Map());

/** Whether a mailbox is served through this very transport, so that its answers come out of our own budget. */
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
  // Shared by all servers of this mailbox here, so that none takes an earlier one's note for another program's.
  const times = sharedOf(t, TOLD, () => new Map<string, number>());
  const name = `${mailbox} ${signer.did}`;
  const tell = async (validMs: number, until: AbortSignal): Promise<void> => {
    // Later than all before it, so that those who saw an earlier one believe this one.
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
    // A later note than ours can only come from another program that has the key.
    if (said?.did !== signer.did || said.at <= (times.get(name) ?? 0) || said.validMs === 0) return;
    // The note of our own predecessor, which was killed.
    if (!told && said.at === (await lastSaid?.())) return;
    // A note that should have been renewed by now is that of a server that is gone.
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
        // First serve what is asked as soon as the server is there.
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
    // If the service cannot be reached, do not try: it would only delay the end.
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
