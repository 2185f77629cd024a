/**
 * Who asked what, and what was answered: the reason why no handler runs twice for one request. Keyed by (DID, id) with a
 * digest of method and params, and guarded by a floor under the nonces of each key in each room, so that a signed
 * message once taken is never taken again, however much later somebody posts its bytes once more.
 *
 * @module
 */
import { checkMembers } from './errors.ts';
import type { Json } from './frames.ts';
import { isNonce } from './names.ts';
import { mostFor } from './turns.ts';

/** One request of a message. */
export interface LedgerRequest {
  /** The JSON-RPC id, as JSON: `1` and `"1"` are two. */
  id: string;
  /** Of method and params. */
  digest: string;
  /** True when nothing runs for it: it is judged like any other, and not remembered. */
  passing?: boolean;
  /** Where the answer goes, if the request names a place: there an id is one key's. */
  reply?: string;
  /** The request itself, for whoever tells of it; nothing of it is kept. */
  frame?: { [member: string]: Json };
}

/** One message that holds requests, notifications or both. */
export interface LedgerMessage {
  from: string;
  room: string;
  /** Digits; rise with every message of one key in one room. Absent on channels that cannot replay. */
  nonce?: string;
  /** When it came, by the clock of the service, ms: given where an earlier ledger, now lost, may have known it. */
  at?: number;
  /** What was signed by then may be known to another ledger, and is not to this one; by the clock of the service, ms. */
  after?: number | undefined;
  requests: LedgerRequest[];
  /** True when nothing at all runs for it: then its nonce is not remembered either. */
  passing?: boolean;
  /**
   * How early its key came among those that were answered, from 0; Infinity: never. Those that came late, or never, do not
   * get the last of what there is room for. Default 0.
   */
  rank?: number;
}

/**
 * What to do with a request: run it; send the stored answer; leave it, it runs already; leave it, its message is an old
 * one; refuse it, the id stands for another request; leave it, another key waits for an answer under this id in the same
 * place and would take this one for it; say that it was interrupted (an earlier process began it and died); say that it
 * was signed before this ledger began, or too long ago for it to know, so that it may have been taken (whoever signs it
 * anew with a nonce above `nonce` is believed); refuse it for now, there is no room to remember it.
 */
export type Verdict =
  | { kind: 'new' | 'running' | 'old' | 'differs' | 'taken' | 'interrupted' }
  | { kind: 'answered'; answer: string; sent: boolean }
  | { kind: 'before'; nonce: string }
  | { kind: 'full'; retryAfterMs: number };

/** What a ledger decided about a message. */
export interface Admission {
  /** False for a message that was taken before: its notifications must not run again. */
  fresh: boolean;
  /** One for each request, in order. Those that are `new` count as begun from now on. */
  verdicts: Verdict[];
}

/** A store of requests and answers. Times are the clock's, ms. */
export interface Ledger {
  /**
   * Takes a message: decides and remembers, durably where the ledger is durable, before any handler may run. Decisions
   * are taken in the order of the calls.
   */
  admit(message: LedgerMessage, now: number): Admission | Promise<Admission>;
  /** Keeps the answer of a request that was begun. */
  answer(from: string, id: string, answer: string): void | Promise<void>;
  /** The answer was sent; a repeat after a restart need not send it unasked. */
  sent(from: string, id: string): void | Promise<void>;
  /** Forgets a request that was begun and of which nothing was executed. */
  forget(from: string, id: string): void | Promise<void>;
  /** Tells what time it is; a server does so twice a minute. */
  pass?(now: number): void;
  close?(): void | Promise<void>;
}

/**
 * Bounds of a ledger. When one is reached, new requests are refused: nothing is dropped that keeps a handler from running
 * twice. One key can take a quarter of each, and all keys together that were never answered three quarters.
 */
export interface LedgerLimits {
  /**
   * How long an answer is kept for repeats of its request, ms; default 600,000. Afterwards a newly signed one is a new
   * request. Only time in which the ledger is in use counts.
   */
  windowMs?: number;
  /** Most requests remembered; default 65,536. */
  entries?: number;
  /** Most characters of ids and answers kept; default 64 Mi. */
  chars?: number;
  /** Most (key, room) pairs whose nonces are guarded one by one; default 65,536. When there are more, those idle for ten minutes share one guard. */
  floors?: number;
}

/** @internal */
export interface Entry {
  readonly from: string;
  readonly digest: string;
  readonly reply: string | undefined;
  /** When it was begun; from its answer on, when that was kept. In the ledger's own time. */
  readonly since: number;
  /** Characters it is charged with. */
  readonly chars: number;
  /** Undefined while it runs. */
  answer?: string;
  /** When the answer was sent, in the ledger's own time. */
  sent?: number;
  /** Begun by a process that is gone. */
  orphan?: boolean;
}

/**
 * Time in which a pair of key and room must be silent before its guard is merged with others, ms: where its nonce tells the
 * time, which they all then have in common, and where it does not.
 */
const FLOOR_MS = 600_000;
const ODD_FLOOR_MS = 86_400_000;
/** Most that passes between two looks at the clock, ms. */
const MAX_STEP_MS = 60_000;
/** How long after its answer was sent an id is still its asker's alone, ms: for as long as others may have been asking. */
const HOLD_MS = 60_000;
/** How much older than the ledger a message may be by its nonce, ms: so long may a write take, or a clock be behind. */
const BEFORE_MS = 60_000;
/** Nonces that tell the time in ms, as those of most signers do; a counter, or a finer clock, tells nothing. */
const TIMES = [1_000_000_000_000n, 10_000_000_000_000n] as const;

/**
 * The rules and the bounds, in memory. A durable ledger feeds its log through the same object.
 *
 * @internal
 */
export class LedgerState implements Ledger {
  protected readonly limits: Required<LedgerLimits>;
  /** In the order in which their answers were kept, those that run first: expiry walks from the front. */
  protected readonly entries: Map<string, Entry> = new Map();
  /** The key that asked, by place of the answer and id. */
  readonly #askers: Map<string, string> = new Map();
  protected readonly perKey: Map<string, { entries: number; chars: number }> = new Map();
  /** Last nonce of each key and room, and when it was seen; in the order of use. */
  protected readonly floors: Map<string, { nonce: bigint; since: number }> = new Map();
  /** Highest nonce among the floors that were let go: whoever has none of his own must be above it. */
  protected letGo = -1n;
  #chars = 0;
  /** The ledger's own time, ms: forward only, and in small steps, so that a clock that is set makes nothing expire. */
  time = 0;
  #now: number | undefined;

  constructor(limits: LedgerLimits = {}) {
    this.limits = {
      windowMs: 600_000,
      entries: 65_536,
      chars: 1 << 26,
      floors: 65_536,
      ...checkMembers(limits, 'the limits', ['windowMs', 'entries', 'chars', 'floors']),
    };
  }

  /** Number of things held, for those who watch bounds. */
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
    // Below a guard that is not its own, it may as well be of somebody whose clock is behind.
    const after = start ?? (!fresh && own === undefined && nonce >= 0n ? String(this.letGo + 1n) : undefined);
    if (after !== undefined) {
      return { fresh: false, verdicts: m.requests.map((request) => this.#known(m.from, request, after)) };
    }
    if (fresh && m.nonce !== undefined && !m.passing) {
      // Guards that cannot be merged soon get no more than half.
      const max = mostFor(m.rank ?? 0, nonce > now ? floors / 2 : floors);
      if (own === undefined && this.floors.size >= max && !this.#letOneGo(now)) {
        return { fresh: false, verdicts: m.requests.map(() => ({ kind: 'full', retryAfterMs: windowMs / 10 })) };
      }
      this.raise(name, nonce);
    }
    return { fresh, verdicts: m.requests.map((request) => this.#begin(m.from, request, fresh, m.rank)) };
  }

  /**
   * A nonce that will do, if this one tells that its message was signed before the ledger began, or while it missed some.
   * Reckoned back from when the message came: no clock of ours is compared with anybody's.
   */
  #startOf(nonce: bigint, { at, after = 0 }: LedgerMessage): string | undefined {
    if (nonce < TIMES[0] || nonce >= TIMES[1]) return undefined;
    const start = at === undefined ? 0 : Math.floor(at - this.time);
    if (nonce > after && nonce >= start - BEFORE_MS) return undefined;
    return String(Math.max(Math.floor(after), start - BEFORE_MS / 2));
  }

  /** Of a message from before: what is known of a request all the same, as it was asked again since. */
  #known(from: string, request: LedgerRequest, nonce: string): Verdict {
    return this.entries.has(`${from} ${request.id}`) ? this.#begin(from, request, false) : { kind: 'before', nonce };
  }

  protected raise(name: string, nonce: bigint): void {
    // Set anew, so that the order of the map is that of use.
    this.floors.delete(name);
    this.floors.set(name, { nonce, since: this.time });
  }

  /** Merges a guard that was not used for long enough with the common one. */
  #letOneGo(now: number): boolean {
    for (const [name, { nonce, since }] of this.floors) {
      const silent = this.time - since;
      if (silent < FLOOR_MS) return false;
      // A nonce that no clock gave locks out only the key that used it; it must not lock out others.
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
   * Whether an answer to `from` under this id cannot be taken by another key for its own, in that place; if so it is the
   * one that cannot be disturbed from now on.
   */
  #isOurs(from: string, id: string, reply: string | undefined): boolean {
    if (reply === undefined) return true;
    const place = `${reply} ${id}`;
    const holder = this.#askers.get(place);
    if (holder === undefined || holder === from) return true;
    // Nobody can keep an id from others by having it answered long before they ask.
    const sent = this.entries.get(`${holder} ${id}`)?.sent;
    if (sent === undefined || this.time - sent < HOLD_MS) return false;
    if (this.entries.has(`${from} ${id}`)) this.#askers.set(place, from);
    return true;
  }

  /** Sets an entry, in the place of an earlier one of that name. */
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
 * A ledger that lives as long as the process. What an earlier process took it cannot know, so it believes nothing that
 * was signed before it began: a nonce that tells the time, as ours do, and a time more than a minute before the ledger's
 * beginning, is answered 1001 (`data.nonce` is one that would do), and {@link call} then signs anew. A caller whose
 * nonces are counters, or whose clock is finer than ms, is believed: what such a one signed can be made to run once more
 * by a stranger who fills the room until the service has forgotten it, after a restart. Where that matters use
 * {@link fileLedger}, which forgets no nonce.
 */
export function memoryLedger(limits?: LedgerLimits): Ledger {
  return new LedgerState(limits);
}
