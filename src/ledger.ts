/**
 * The ledger: who asked what, and what was answered, so that no handler runs twice for one request. Requests are
 * identified by (DID, id) and a digest of method and params. In addition, each key has a floor in each room, below
 * which its nonces are not accepted, so that a signed message is never accepted twice, however much later somebody
 * replays it.
 *
 * @module
 */
import { checkMembers, checkNumbers } from './errors.ts';
import { compact, type Json } from './frames.ts';
import { isNonce } from './names.ts';
import { mostFor } from './turns.ts';

/** One request of a {@link LedgerMessage}. */
export interface LedgerRequest {
  /** The JSON-RPC id, as JSON text: `1` and `"1"` are different ids. */
  id: string;
  /** The digest of method and params. */
  digest: string;
  /** True if nothing runs for it: it is judged like any other request, but not remembered. */
  passing?: boolean;
  /** The mailbox that the request names for its answer, if any. There, an id belongs to one key at a time. */
  reply?: string;
  /** The request itself, for ledgers that report it. It need not be stored. */
  frame?: { [member: string]: Json };
}

/** A message with requests, notifications or both, as a server presents it to its ledger. */
export interface LedgerMessage {
  /** The DID that signed it. */
  from: string;
  /** The room it came through. */
  room: string;
  /**
   * Its nonce: decimal digits that rise with every message of one key in one room. Absent on channels where nothing can
   * be replayed.
   */
  nonce?: string;
  /**
   * When it was written, in milliseconds since the epoch by the service's clock. Given if an earlier ledger, now
   * lost, may have known the message.
   */
  at?: number;
  /**
   * Messages signed before this time may be known to another ledger but not to this one; in milliseconds since the
   * epoch by the service's clock.
   */
  after?: number | undefined;
  /** Its requests, in order. */
  requests: LedgerRequest[];
  /** True if nothing at all runs for it: its nonce is not remembered either. */
  passing?: boolean;
  /**
   * The {@link CallContext.rank} of its key; default 0. Keys with a high rank do not get the last free places in the
   * ledger.
   */
  rank?: number;
}

/**
 * A ledger's decision about a request, by `kind`:
 *
 * - `new`: run it.
 *
 * - `running`: ignore it; it is already running.
 *
 * - `answered`: send the stored `answer` again; `sent` tells whether it was sent before.
 *
 * - `old`: ignore it; its message was admitted before.
 *
 * - `differs`: refuse it; this key used the id for another request.
 *
 * - `taken`: ignore it; another key waits in the same mailbox for an answer under this id, and would mistake this one for
 * its own.
 *
 * - `interrupted`: answer with error 1001; an earlier process began it and died.
 *
 * - `before`: it was signed before this ledger began, or too long ago for the ledger to know, so it may have run. If it is
 * signed again with a nonce above `nonce`, it is accepted.
 *
 * - `full`: refuse it for now; there is no room to remember it. Try again after `retryAfterMs` milliseconds.
 */
export type Verdict =
  | { kind: 'new' | 'running' | 'old' | 'differs' | 'taken' | 'interrupted' }
  | { kind: 'answered'; answer: string; sent: boolean }
  | { kind: 'before'; nonce: string }
  | { kind: 'full'; retryAfterMs: number };

/** A ledger's decision about a message. */
export interface Admission {
  /** False for a message that was admitted before: its notifications must not run again. */
  fresh: boolean;
  /** One decision for each request, in order. `new` requests count as begun. */
  verdicts: Verdict[];
}

/**
 * A store of requests and answers that keeps a server from running a request twice: {@link memoryLedger},
 * {@link fileLedger}, or your own. Times are in milliseconds since the epoch. If `admit` or `pass` throws, the server
 * ends; if another method throws, there is an event `unkept`, and callers are still answered.
 */
export interface Ledger {
  /**
   * Decides about a message and remembers it, before any handler runs; a durable ledger persists it first. Decisions
   * are made in the order of the calls.
   */
  admit(message: LedgerMessage, now: number): Admission | Promise<Admission>;
  /** Stores the answer to a request that was begun. `id` is JSON text. */
  answer(from: string, id: string, answer: string): void | Promise<void>;
  /** Remembers that the answer was sent, so that it is not sent unprompted after a restart. */
  sent(from: string, id: string): void | Promise<void>;
  /** Forgets a request that was begun but never executed. */
  forget(from: string, id: string): void | Promise<void>;
  /** Advances the ledger's time, so that old entries expire. A server calls it twice a minute. */
  pass?(now: number): void | Promise<void>;
  /** Releases the ledger's resources. A server never calls it: the ledger's owner does, after the server has ended. */
  close?(): void | Promise<void>;
}

/**
 * Limits of a ledger. When one is reached, new requests are refused (error 1002); no entry that keeps a handler from
 * running twice is dropped. One key can use a quarter of each limit; all keys that were never answered, three quarters
 * together.
 */
export interface LedgerLimits {
  /**
   * How long an answer is kept for repeats of its request, in milliseconds; default 600,000. A request that is signed
   * again after that is a new one. Only time during which the ledger is in use counts.
   */
  windowMs?: number | undefined;
  /** The maximum number of requests remembered; default 65,536. */
  entries?: number | undefined;
  /** The maximum number of characters in the ids and answers stored; default 67,108,864. */
  chars?: number | undefined;
  /**
   * The maximum number of (key, room) pairs with a nonce floor of their own; default 65,536. Beyond it, pairs that have
   * been idle for ten minutes share one floor.
   */
  floors?: number | undefined;
}

/** @internal */
export interface Entry {
  readonly from: string;
  readonly digest: string;
  readonly reply: string | undefined;
  /** When it was begun or, once it is answered, when its answer was kept; in the ledger's own time. */
  readonly since: number;
  /** The characters it is charged with. */
  readonly chars: number;
  /** Undefined while it runs. */
  answer?: string;
  /** When the answer was sent, in the ledger's own time. */
  sent?: number;
  /** Begun by a process that is gone. */
  orphan?: boolean;
}

/**
 * How long a pair of key and room must be idle before its floor is merged with others, ms. Nonces that are times can be
 * merged early, since time is common to all; other nonces, later.
 */
const FLOOR_MS = 600_000;
const ODD_FLOOR_MS = 86_400_000;
/** The longest time that counts as passed between two readings of the clock, ms. */
const MAX_STEP_MS = 60_000;
/** How long an id stays reserved for its asker after the answer was sent, ms: as long as another key may be asking. */
const HOLD_MS = 60_000;
/** How much older than the ledger a message may be by its nonce, ms: a write may take that long, or a clock may lag. */
const BEFORE_MS = 60_000;
/** The range of nonces that are times in ms, as most signers' are. A counter or a finer clock is outside of it. */
const TIMES = [1_000_000_000_000n, 10_000_000_000_000n] as const;

const LIMITS = ['windowMs', 'entries', 'chars', 'floors'] as const;

/**
 * The rules and limits, in memory. A durable ledger replays its log into the same object.
 *
 * @internal
 */
export class LedgerState implements Ledger {
  protected readonly limits: Record<keyof LedgerLimits, number>;
  /** In the order in which they were begun or answered, so expiry starts at the front. */
  protected readonly entries: Map<string, Entry> = new Map();
  /** The key that asked, by reply mailbox and id. */
  readonly #askers: Map<string, string> = new Map();
  protected readonly perKey: Map<string, { entries: number; chars: number }> = new Map();
  /** The last nonce of each key and room, and when it was seen; least recently used first. */
  protected readonly floors: Map<string, { nonce: bigint; since: number }> = new Map();
  /** The common floor: the highest nonce of the floors that were merged, for keys without a floor of their own. */
  protected letGo = -1n;
  #chars = 0;
  /** The ledger's own time, ms. It rises only in small steps, so that setting the clock makes nothing expire. */
  time = 0;
  #now: number | undefined;

  constructor(limits: LedgerLimits = {}) {
    checkNumbers(checkMembers(limits, 'the limits', LIMITS), LIMITS);
    this.limits = {
      windowMs: 600_000,
      entries: 65_536,
      chars: 1 << 26,
      floors: 65_536,
      ...compact({ ...limits }),
    };
  }

  /** How much the ledger holds, for monitoring. */
  get size(): { entries: number; keys: number; floors: number; chars: number } {
    return {
      entries: this.entries.size,
      keys: this.perKey.size,
      floors: this.floors.size,
      chars: this.#chars,
    };
  }

  pass(now: number): void {
    const step = now - (this.#now ?? now);
    this.#now = now;
    if (step > 0) this.time += Math.min(step, MAX_STEP_MS);
    this.expire();
  }

  protected expire(): void {
    for (const [name, entry] of this.entries) {
      if (entry.answer === undefined && !entry.orphan) continue;
      if (this.time - entry.since < this.limits.windowMs) return;
      this.#drop(name, entry);
    }
  }

  admit(m: LedgerMessage, now: number): Admission {
    this.pass(now);
    const { floors, windowMs } = this.limits;
    const name = `${m.from} ${m.room}`;
    const nonce = m.nonce === undefined || isNonce(m.nonce) ? BigInt(m.nonce ?? 0) : -1n;
    const own = this.floors.get(name)?.nonce;
    const fresh = m.nonce === undefined || nonce > (own ?? this.letGo);
    const start = fresh ? this.#startOf(nonce, m) : undefined;
    // A message below the common floor may be old, or its sender's clock may lag: it can be signed again.
    const after = start ?? (!fresh && own === undefined && nonce >= 0n ? String(this.letGo + 1n) : undefined);
    if (after !== undefined) {
      return { fresh: false, verdicts: m.requests.map((request) => this.#known(m.from, request, after)) };
    }
    if (fresh && m.nonce !== undefined && !m.passing) {
      // Floors that cannot be merged soon get at most half of the places.
      const max = mostFor(m.rank ?? 0, nonce > now ? floors / 2 : floors);
      if (own === undefined && this.floors.size >= max && !this.#letOneGo(now)) {
        return { fresh: false, verdicts: m.requests.map(() => ({ kind: 'full', retryAfterMs: windowMs / 10 })) };
      }
      this.raise(name, nonce);
    }
    return { fresh, verdicts: m.requests.map((request) => this.#begin(m.from, request, fresh, m.rank)) };
  }

  /**
   * If the nonce shows that its message was signed before the ledger began, or while the ledger missed messages: a
   * nonce that would be accepted. Computed from the service's clock alone; our own clock is not compared with any
   * other.
   */
  #startOf(nonce: bigint, { at, after = 0 }: LedgerMessage): string | undefined {
    if (nonce < TIMES[0] || nonce >= TIMES[1]) return undefined;
    const start = at === undefined ? 0 : Math.floor(at - this.time);
    if (nonce > after && nonce >= start - BEFORE_MS) return undefined;
    return String(Math.max(Math.floor(after), start - BEFORE_MS / 2));
  }

  /**
   * The verdict on a request that may have run before this ledger: what the ledger knows if it was asked again since,
   * else `before`.
   */
  #known(from: string, request: LedgerRequest, nonce: string): Verdict {
    return this.entries.has(`${from} ${request.id}`) ? this.#begin(from, request, false) : { kind: 'before', nonce };
  }

  protected raise(name: string, nonce: bigint): void {
    // Deleted first, so that the map is in the order of use.
    this.floors.delete(name);
    this.floors.set(name, { nonce, since: this.time });
  }

  /** Merges a floor that has been idle long enough into the common one; false if there is none. */
  #letOneGo(now: number): boolean {
    for (const [name, { nonce, since }] of this.floors) {
      const silent = this.time - since;
      if (silent < FLOOR_MS) return false;
      // A nonce that is ahead of the clock must not become part of the common floor: it would lock others out.
      const isOdd = nonce > now;
      if (isOdd && silent < ODD_FLOOR_MS) continue;
      this.floors.delete(name);
      if (!isOdd && nonce > this.letGo) this.letGo = nonce;
      return true;
    }
    return false;
  }

  #begin(from: string, { id, digest, reply, passing }: LedgerRequest, fresh: boolean, rank: number = 0): Verdict {
    const name = `${from} ${id}`;
    const entry = this.entries.get(name);
    if (entry) {
      if (entry.digest !== digest) return { kind: fresh ? 'differs' : 'old' };
      if (!this.#isOurs(from, id, entry.reply)) return { kind: 'taken' };
      if (entry.answer !== undefined) return { kind: 'answered', answer: entry.answer, sent: entry.sent !== undefined };
      return { kind: entry.orphan ? 'interrupted' : 'running' };
    }
    if (!fresh) return { kind: 'old' };
    if (!this.#isOurs(from, id, reply)) return { kind: 'taken' };
    if (passing) return { kind: 'new' };
    const { entries, chars, windowMs } = this.limits;
    const held = this.perKey.get(from) ?? { entries: 0, chars: 0 };
    if (
      this.entries.size >= mostFor(rank, entries) ||
      held.entries >= entries / 4 ||
      this.#chars >= mostFor(rank, chars) ||
      held.chars >= chars / 4
    ) {
      return { kind: 'full', retryAfterMs: windowMs / 10 };
    }
    this.put(from, id, digest, reply);
    return { kind: 'new' };
  }

  /**
   * Whether no other key could mistake an answer to `from` under this id, in that mailbox, for its own. If so, the id
   * is reserved for `from` from now on.
   */
  #isOurs(from: string, id: string, reply: string | undefined): boolean {
    if (reply === undefined) return true;
    const place = `${reply} ${id}`;
    const holder = this.#askers.get(place);
    if (holder === undefined || holder === from) return true;
    // Nobody can block an id forever by asking under it first.
    const sent = this.entries.get(`${holder} ${id}`)?.sent;
    if (sent === undefined || this.time - sent < HOLD_MS) return false;
    if (this.entries.has(`${from} ${id}`)) this.#askers.set(place, from);
    return true;
  }

  /** Adds an entry at the end, replacing an earlier one of that name. */
  protected put(from: string, id: string, digest: string, reply: string | undefined, answer?: string): Entry {
    const name = `${from} ${id}`;
    const old = this.entries.get(name);
    if (old) this.#drop(name, old);
    const chars = name.length + (answer?.length ?? 0);
    const entry: Entry = { from, digest, reply, since: this.time, chars, ...(answer !== undefined && { answer }) };
    this.entries.set(name, entry);
    if (reply !== undefined) this.#askers.set(`${reply} ${id}`, from);
    const held = this.perKey.get(from) ?? { entries: 0, chars: 0 };
    this.perKey.set(from, { entries: held.entries + 1, chars: held.chars + chars });
    this.#chars += chars;
    return entry;
  }

  answer(from: string, id: string, answer: string): void {
    const entry = this.entries.get(`${from} ${id}`);
    if (entry) this.put(from, id, entry.digest, entry.reply, answer);
  }

  sent(from: string, id: string): void {
    const entry = this.entries.get(`${from} ${id}`);
    if (entry?.answer !== undefined) entry.sent = this.time;
  }

  forget(from: string, id: string): void {
    const name = `${from} ${id}`;
    const entry = this.entries.get(name);
    if (entry) this.#drop(name, entry);
  }

  #drop(name: string, entry: Entry): void {
    this.entries.delete(name);
    const place = `${entry.reply}${name.slice(entry.from.length)}`;
    if (entry.reply !== undefined && this.#askers.get(place) === entry.from) this.#askers.delete(place);
    this.#chars -= entry.chars;
    const held = this.perKey.get(entry.from)!;
    if (held.entries === 1) this.perKey.delete(entry.from);
    else this.perKey.set(entry.from, { entries: held.entries - 1, chars: held.chars - entry.chars });
  }
}

/**
 * Makes a ledger that lives as long as the process. It is the default of {@link serve}.
 *
 * It cannot know what an earlier process ran. If a request's nonce is a time in milliseconds, as this library's nonces
 * are, and more than a minute before the ledger began, it is therefore answered with error 1001 and a nonce that would
 * be accepted (`data.nonce`); {@link call} then signs the request again. Nonces that are counters, or times in a finer
 * unit, are trusted. After a restart, an attacker who fills the room until the service has forgotten such a message can
 * make it run once more. Where that matters, use {@link fileLedger}, which forgets no nonce.
 *
 * @throws a {@link TechnocoreError} `bad_option` if the limits have other members
 */
export function memoryLedger(limits?: LedgerLimits): Ledger {
  return new LedgerState(limits);
}
