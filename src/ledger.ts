/**
 * Who asked what, and what was answered: the reason why no handler runs twice for one request. Keyed by (DID, id) with a
 * digest of method and params, and guarded by a floor under the nonces of each key in each room, so that a signed
 * message once taken is never taken again, however much later somebody posts its bytes once more.
 *
 * @module
 */

/** One request of a message. */
export interface LedgerRequest {
  /** The JSON-RPC id, as JSON: `1` and `"1"` are two. */
  id: string;
  /** Of method and params. */
  digest: string;
}

/** One message that holds requests, notifications or both. */
export interface LedgerMessage {
  from: string;
  room: string;
  /** Digits; rise with every message of one key in one room. Absent on channels that cannot replay. */
  nonce?: string;
  requests: LedgerRequest[];
}

/**
 * What to do with a request: run it; send the stored answer; leave it, it runs already; leave it, its message is an old
 * one; refuse it, the id stands for another request; say that it was interrupted (an earlier process began it and died);
 * refuse it for now, there is no room to remember it.
 */
export type Verdict =
  | { kind: 'new' | 'running' | 'old' | 'differs' | 'interrupted' }
  | { kind: 'answered'; answer: string; sent: boolean }
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
  /** Takes a message: decides and remembers, durably where the ledger is durable, before any handler may run. */
  admit(message: LedgerMessage, now: number): Admission | Promise<Admission>;
  /** Keeps the answer of a request that was begun. */
  answer(from: string, id: string, answer: string, now: number): void | Promise<void>;
  /** The answer was sent; a repeat after a restart need not send it unasked. */
  sent(from: string, id: string): void | Promise<void>;
  /** Forgets a request that was begun and of which nothing was executed. */
  forget(from: string, id: string): void | Promise<void>;
  close?(): void | Promise<void>;
}

/** Bounds of a ledger. When one is reached, new requests are refused: nothing is dropped that keeps a handler from running twice. */
export interface LedgerLimits {
  /** How long an answer is kept for repeats of its request, ms; default 600,000. Afterwards a newly signed one is a new request. */
  windowMs?: number;
  /** Most requests remembered; default 65,536. */
  entries?: number;
  /** Most requests remembered of one key; default 16,384. */
  entriesPerKey?: number;
  /** Most characters of answers kept; default 64 Mi. */
  answerChars?: number;
  /** Most (key, room) pairs whose nonces are guarded one by one; default 16,384. */
  floors?: number;
}

interface Entry {
  readonly from: string;
  readonly digest: string;
  readonly begun: number;
  /** Undefined while it runs. */
  answer?: string;
  answered?: number;
  sent?: boolean;
  /** Begun by a process that is gone. */
  orphan?: boolean;
}

const DAY_MS = 86_400_000;

/**
 * The rules and the bounds, in memory. A durable ledger feeds its log through the same object.
 *
 * @internal
 */
export class LedgerState implements Ledger {
  readonly #limits: Required<LedgerLimits>;
  /** In the order in which their answers were kept, those that run first: expiry walks from the front. */
  readonly #entries = new Map<string, Entry>();
  readonly #perKey = new Map<string, number>();
  readonly #floors = new Map<string, bigint>();
  /** Highest nonce among the floors that were let go: whoever has none of his own must be above it. */
  #letGo = -1n;
  #answerChars = 0;

  constructor(limits: LedgerLimits = {}) {
    this.#limits = {
      windowMs: 600_000,
      entries: 65_536,
      entriesPerKey: 16_384,
      answerChars: 1 << 26,
      floors: 16_384,
      ...limits,
    };
  }

  /** Number of things held, for those who watch bounds. */
  get size(): { entries: number; keys: number; floors: number; answerChars: number } {
    return {
      entries: this.#entries.size,
      keys: this.#perKey.size,
      floors: this.#floors.size,
      answerChars: this.#answerChars,
    };
  }

  admit(m: LedgerMessage, now: number): Admission {
    this.#expire(now);
    const fresh = this.#raise(m, now);
    return { fresh, verdicts: m.requests.map((request) => this.#begin(m.from, request, fresh, now)) };
  }

  #begin(from: string, { id, digest }: LedgerRequest, fresh: boolean, now: number): Verdict {
    const name = `${from} ${id}`;
    const entry = this.#entries.get(name);
    if (entry) {
      if (entry.digest !== digest) return { kind: fresh ? 'differs' : 'old' };
      if (entry.answer !== undefined) return { kind: 'answered', answer: entry.answer, sent: entry.sent === true };
      if (!entry.orphan) return { kind: 'running' };
      delete entry.orphan;
      return { kind: 'interrupted' };
    }
    if (!fresh) return { kind: 'old' };
    const { entries, entriesPerKey, answerChars, windowMs } = this.#limits;
    const held = this.#perKey.get(from) ?? 0;
    if (this.#entries.size >= entries || held >= entriesPerKey || this.#answerChars >= answerChars) {
      return { kind: 'full', retryAfterMs: windowMs / 10 };
    }
    this.#entries.set(name, { from, digest, begun: now });
    this.#perKey.set(from, held + 1);
    return { kind: 'new' };
  }

  /** Whether the message is above all that this key sent in this room; from then on it is the one to be above. */
  #raise({ from, room, nonce }: LedgerMessage, now: number): boolean {
    if (nonce === undefined) return true;
    const name = `${from} ${room}`;
    const value = BigInt(/^\d{1,19}$/.test(nonce) ? nonce : -1);
    const floor = this.#floors.get(name);
    if (value <= (floor ?? this.#letGo)) return false;
    // Set anew, so that the order of the map is that of use.
    this.#floors.delete(name);
    this.#floors.set(name, value);
    if (this.#floors.size > this.#limits.floors) {
      const [oldest, last] = this.#floors.entries().next().value!;
      this.#floors.delete(oldest);
      // A nonce beyond the clock locks out only the key that used it; it must not lock out others.
      if (last > this.#letGo && last <= BigInt(Math.round(now + DAY_MS))) this.#letGo = last;
    }
    return true;
  }

  answer(from: string, id: string, answer: string, now: number): void {
    const name = `${from} ${id}`;
    const entry = this.#entries.get(name);
    if (!entry) return;
    this.#answerChars += answer.length - (entry.answer?.length ?? 0);
    this.#entries.delete(name);
    this.#entries.set(name, { from, digest: entry.digest, begun: entry.begun, answer, answered: now });
  }

  sent(from: string, id: string): void {
    const entry = this.#entries.get(`${from} ${id}`);
    if (entry) entry.sent = true;
  }

  forget(from: string, id: string): void {
    const name = `${from} ${id}`;
    const entry = this.#entries.get(name);
    if (entry) this.#drop(name, entry);
  }

  #drop(name: string, entry: Entry): void {
    this.#entries.delete(name);
    this.#answerChars -= entry.answer?.length ?? 0;
    const held = this.#perKey.get(entry.from)! - 1;
    if (held > 0) this.#perKey.set(entry.from, held);
    else this.#perKey.delete(entry.from);
  }

  #expire(now: number): void {
    for (const [name, entry] of this.#entries) {
      const since = entry.orphan ? entry.begun : entry.answered;
      if (since === undefined) continue;
      // A clock that was set back makes answers look young; they then stay longer.
      if (now - since < this.#limits.windowMs) return;
      this.#drop(name, entry);
    }
  }
}

/** A ledger that lives as long as the process. */
export function memoryLedger(limits?: LedgerLimits): Ledger {
  return new LedgerState(limits);
}
