/**
 * Presence: a signed note that lets callers distinguish a mailbox without a server from one whose server is slow, and
 * the messages that keep the service from deleting an idle mailbox. Both are written rarely, and when nothing else
 * needs the budget.
 *
 * Anybody can write the note. One that does not verify counts as absent, and an absent one means that the state is
 * unknown, never that no server is there.
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

/** How often the note is renewed, ms. This takes a three-hundredth of the write budget. */
const PERIOD_MS = 600_000;
/** How long after its start a server checks whether its mailbox must be kept alive, ms. */
const SETTLE_MS = 10_000;
/** How long a note is valid, ms. */
const VALID_MS = 3 * PERIOD_MS;
/** How long before its timeout a call reads the note of its server, ms. */
export const LOOK_MS = 3000;
/** How long other calls to the same mailbox reuse what was read, ms. */
const FOUND_MS = 5000;
/** How long a server that ends tries to write its last note, ms. */
const GOODBYE_MS = 2000;
/** The share of the write budget that must be left for a write that can wait. */
const SPARE_SHARE = 0.25;
/** How long such a write can wait, ms. */
const DEFER_MS = PERIOD_MS;
/** How often the budget is checked meanwhile, ms. */
const DEFER_STEP_MS = 30_000;

/** After how much idle time a mailbox with a single message gets another, ms. The service deletes it after a day. */
const SINGLE_IDLE_MS = 3_600_000;
/** The same for any other mailbox, which the service deletes after seven days. */
const IDLE_MS = 5 * 86_400_000;

// --- the note ----------------------------------------------------------------------------------------------------

/** The contents of a presence note. */
export interface Presence {
  did: string;
  /** When it was written, by the server's clock, ms. */
  at: number;
  /** How long it is valid, ms; 0 if the server was about to end. */
  validMs: number;
}

/** Whether a presence note is still valid. */
export function isThere({ at, validMs }: Presence, now: number): boolean {
  return now <= at + validMs;
}

/** The address of a mailbox's presence note. It is not listed, but can be derived from the name of the mailbox. */
export function presenceNote(mailbox: string): NotePath {
  const digest = toHex(sha256(utf8(mailbox)));
  return { ns: `rpc-here-${digest.slice(0, 2)}`, key: `p-${digest.slice(2, 16)}` };
}

/** The text that is signed. The note itself does not reveal the mailbox, whose name may be a secret. */
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
 * @param peer the only key whose note counts. While the mailbox's owner is unknown, any key's counts: the first key
 * that answers would be trusted as well, and an answer matters more than a hint
 * @param deadline clock time, ms, by which the read must be over
 * @returns undefined if there is no such note
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
  // However many calls are about to time out, they read it once.
  if (!look || Math.abs(now - look.at) > FOUND_MS) {
    const { ns, key } = presenceNote(mailbox);
    look = { at: now, value: readNote(t, ns, key, { deadline, timeoutMs: LOOK_MS }).catch(() => undefined) };
    remember(found, mailbox, look, MAX_FOUND);
  }
  const value = await look.value;
  const presence = value === undefined ? undefined : presenceIn(mailbox, value);
  if (!presence || (peer !== undefined && presence.did !== peer)) return undefined;
  // A note older than one seen before was restored by somebody.
  const name = `${mailbox} ${presence.did}`;
  if (presence.at < (newest.get(name) ?? 0)) return undefined;
  remember(newest, name, presence.at, MAX_FOUND);
  return presence;
}

// --- a served mailbox --------------------------------------------------------------------------------------------

/** How a mailbox is attended while it is served. */
export interface Attending {
  /** Whether to maintain its presence note. */
  presence: boolean;
  /** Whether a message came since the last call of this function. */
  heard(): boolean;
  /**
   * Called when a note shows that another program with the same key serves the mailbox, with the time of that note, ms:
   * at the start, when the program may have been killed, and once later.
   */
  onOther?(at: number): void;
  /** When our own predecessor last wrote the note, if that is known. */
  lastSaid?(): Promise<number | undefined>;
  /** Called and awaited before the note is written, with the time in it. */
  saying?(at: number): Promise<void>;
  /** Whether the note should say, when this server ends, that no server is left; default true. */
  isLast?(): boolean;
}

const SERVED = {};
const ANNOUNCED = {};

const servedOf = (t: Transport): Map<string, number> => sharedOf(t, SERVED, () => new Map());

/** Whether a mailbox is served through this same transport, so that its answers use our own budget. */
export function isServedHere(t: Transport, mailbox: string): boolean {
  return servedOf(t).has(mailbox);
}

/** Keeps a mailbox alive and its presence note up to date until the signal aborts. Never rejects. */
export async function attend(
  t: Transport,
  mailbox: string,
  signer: Signer,
  signal: AbortSignal,
  { presence, heard, onOther, lastSaid, saying, isLast = () => true }: Attending,
): Promise<void> {
  const { ns, key } = presenceNote(mailbox);
  // Shared by all servers of this mailbox in this process, so that none takes an earlier one's note for another
  // program's.
  const times = sharedOf(t, ANNOUNCED, () => new Map<string, number>());
  const name = `${mailbox} ${signer.did}`;
  const announce = async (validMs: number, until: AbortSignal): Promise<void> => {
    // Later than all earlier ones, so that readers of an earlier one accept it.
    const at = Math.max(Math.floor(t.clock.now()), (times.get(name) ?? 0) + 1);
    remember(times, name, at, MAX_FOUND);
    await saying?.(at);
    const said: Presence = { did: signer.did, at, validMs };
    const value = `${said.did} ${at} ${validMs} ${signer.sign(canonical(mailbox, said))}`;
    await setNote(ns, key, value, { ...t, signal: until });
  };
  let isAlone = true;
  let announced = false;
  const lookForOthers = async (): Promise<void> => {
    const value = await readNote(t, ns, key, { signal, timeoutMs: LOOK_MS }).catch(() => undefined);
    const said = value === undefined ? undefined : presenceIn(mailbox, value);
    // A later note than ours can only come from another program that has the key.
    if (said?.did !== signer.did || said.at <= (times.get(name) ?? 0) || said.validMs === 0) return;
    // Our own predecessor wrote it, and was killed.
    if (!announced && said.at === (await lastSaid?.())) return;
    // A note that is overdue for renewal belongs to a server that is gone.
    if (!announced && t.clock.now() - said.at > PERIOD_MS + 2 * SETTLE_MS) return;
    onOther?.(said.at);
    isAlone = !announced;
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
        announced = true;
        await attempt(announce(VALID_MS, signal));
      }
      if (idle === undefined) {
        // Requests that come right after the start go first.
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
    // If the service is unreachable, an attempt would only delay the end.
    if (!announced || !isLast() || healthOf(t).failure) return;
    const { signal: until, end } = within(t, GOODBYE_MS);
    await attempt(announce(0, until));
    end();
  }
}

/** Waits while the write budget is short, though not forever. */
async function whenSpare(t: Transport, signal: AbortSignal): Promise<void> {
  const budget = budgetOf(t, 'write');
  for (let ms = 0; ms < DEFER_MS && budget.left <= SPARE_SHARE; ms += DEFER_STEP_MS) {
    await t.clock.sleep(DEFER_STEP_MS, signal);
  }
}
