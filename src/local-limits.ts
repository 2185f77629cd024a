/**
 * The limits of the local service: the numbers, token buckets, held requests, duplicate texts.
 *
 * @module
 */

import { toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { checkObject } from './errors.ts';
import { codePoints } from './frames.ts';
import type { Clock } from './http.ts';
import type { Profile } from './local-wire.ts';

/** Live counts of a local service. */
export interface LocalStats {
  /** Requests of every kind so far. */
  requests: number;
  /** Reads so far that were within their budget, held ones included. */
  reads: number;
  /** Writes so far that were within their budget, successful or not. */
  writes: number;
  /** Requests so far that were answered with 429. */
  refused: number;
  /** Requests that are held now. */
  parked: number;
  /** The highest number of requests held at the same time so far. */
  parkedMost: number;
  /** Timers of held requests now; 0 if nothing is held. */
  timers: number;
  /** Sockets that are open now. */
  connections: number;
  /** Rooms there are now. */
  rooms: number;
  /** Notes there are now. */
  notes: number;
  /** Messages stored so far, announcements of new rooms included. */
  messages: number;
  /** Bytes that all rooms take now. */
  bytes: number;
  /** Parley channels there are now. */
  channels: number;
}

/**
 * Limits of a local service. The defaults are those of the public service. Values below the minimum (1 for the three
 * budgets, else 0) are raised to it; `Infinity` means no limit.
 */
export interface Limits {
  /** Reads per minute and address; default 120. */
  readsPerMinute: number;
  /** Writes per minute and address; default 30. */
  writesPerMinute: number;
  /** New rooms per day and address; default 20. */
  newRoomsPerDay: number;
  /** Maximum number of rooms; default 5,120. */
  rooms: number;
  /** Maximum number of notes; default 163,840 (profile `0.7`: 40,960). */
  notes: number;
  /** Maximum number of notes in one namespace; default 5,120. */
  notesPerNamespace: number;
  /** Bytes of a room beyond which its oldest messages are dropped, down to half; default 10,485,760. */
  roomRingBytes: number;
  /** Bytes of all rooms beyond which rooms keep only their share and new ones are refused; default 5 GiB. */
  roomBytesTotal: number;
  /** The age from which messages of an `e-` room are no longer returned, in milliseconds; default 900,000. */
  ephemeralTtlMs: number;
  /** Maximum time that a read is held, in milliseconds; default 10,000. */
  longPollMs: number;
  /** Maximum number of held reads of one address; default 4. */
  waitersPerAddress: number;
  /** Maximum number of held reads of all addresses; default 64. */
  waiters: number;
  /**
   * The number of open sockets from which every request is answered with 503; default 128. Beyond twice that number,
   * none is accepted.
   */
  connections: number;
  /**
   * The time after which a connection that takes nothing of its answer is dropped, in milliseconds; default 60,000. 0:
   * never.
   */
  stalledMs: number;
  /** How long `/rooms` may be answered from a cache, in milliseconds; default 3,000. */
  roomsCacheMs: number;
  /** The idle time after which rooms and notes are deleted, in milliseconds; default 7 days. */
  retentionMs: number;
  /** The same for a room with a single message, in milliseconds; default 1 day. */
  singleMessageRetentionMs: number;
  /**
   * Minimum time between two deletions of idle rooms and notes, in milliseconds; default 300,000. Only writes trigger
   * them.
   */
  reapEveryMs: number;
  /**
   * The interval at which a held read looks for new messages, in milliseconds. Default 0: it is answered at once. On
   * the public service it is 500.
   */
  wakeStepMs: number;
  /** The time within which a body must arrive, in milliseconds; default 10,000. 0 (profile `0.7`): no limit. */
  uploadMs: number;
  /** The time over which equal texts are counted, in milliseconds; default 60,000. 0 (profile `0.7`): they are not. */
  duplicateWindowMs: number;
  /** How often a room accepts the same text within that time; default 5. */
  duplicateCopies: number;
  /** The length, in characters, below which texts are not counted; default 16. */
  duplicateMinChars: number;
  /** Maximum number of parley channels; default 4,096. */
  relayChannels: number;
  /** Maximum bytes of the body of a request to the relay; default 4 MiB. */
  relayBodyBytes: number;
  /** Maximum bytes of the payload of a frame; default 2 MiB. */
  relayFrameBytes: number;
  /** Maximum bytes, as JSON, that wait for one seat; default 16 MiB. Frames that its reader has seen make room. */
  relayInboxBytes: number;
  /** Maximum bytes that wait for all seats; default 256 MiB. */
  relayBytesTotal: number;
  /** Maximum number of reads that the relay holds; default 1,024. */
  relayWaiters: number;
  /** The idle time after which a channel is deleted, in milliseconds; default 7 days. */
  relayIdleMs: number;
  /** Minimum time between two deletions of idle channels, in milliseconds; default 60,000. */
  relaySweepMs: number;
}

/** The limits of a profile, overridden by the caller's: finite, not negative, budgets at least 1. */
export function limitsOf(profile: Profile, own: Partial<Limits> = {}): Limits {
  checkObject(own, 'the limits');
  const limits: Limits = {
    readsPerMinute: 120,
    writesPerMinute: 30,
    newRoomsPerDay: 20,
    rooms: 5120,
    notes: profile === '0.7' ? 40_960 : 163_840,
    notesPerNamespace: 5120,
    roomRingBytes: 10 << 20,
    roomBytesTotal: 5 * 2 ** 30,
    ephemeralTtlMs: 900_000,
    longPollMs: 10_000,
    waitersPerAddress: 4,
    waiters: 64,
    connections: 128,
    stalledMs: 60_000,
    roomsCacheMs: 3000,
    retentionMs: 7 * 86_400_000,
    singleMessageRetentionMs: 86_400_000,
    reapEveryMs: 300_000,
    wakeStepMs: 0,
    uploadMs: profile === '0.7' ? 0 : 10_000,
    duplicateWindowMs: profile === '0.7' ? 0 : 60_000,
    duplicateCopies: 5,
    duplicateMinChars: 16,
    relayChannels: 4096,
    relayBodyBytes: 4 << 20,
    relayFrameBytes: 2 << 20,
    relayInboxBytes: 16 << 20,
    relayBytesTotal: 1 << 28,
    relayWaiters: 1024,
    relayIdleMs: 7 * 86_400_000,
    relaySweepMs: 60_000,
  };
  for (const name of Object.keys(limits) as (keyof Limits)[]) {
    const value = own[name];
    if (typeof value !== 'number' || Number.isNaN(value)) continue;
    const least = name === 'readsPerMinute' || name === 'writesPerMinute' || name === 'newRoomsPerDay' ? 1 : 0;
    limits[name] = Math.min(Math.max(value, least), Number.MAX_SAFE_INTEGER);
  }
  return limits;
}

/**
 * Token buckets by address and kind, refilled continuously. The least recently used ones are forgotten.
 */
export class Buckets {
  readonly #clock: Clock;
  readonly #buckets: Map<string, { tokens: number; at: number }> = new Map();
  static readonly #most = 20_000;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes a token. `left`: whole tokens that remain; `waitMs`: 0, or if there was none, how long until there is one. */
  take(key: string, capacity: number, perMs: number): { left: number; waitMs: number } {
    const at = this.#clock.now();
    const old = this.#buckets.get(key);
    let tokens = old ? Math.min(capacity, old.tokens + Math.max(0, at - old.at) * perMs) : capacity;
    // The tolerance is for rounding: a caller that waits exactly as long as the answer says must not be too early.
    const waitMs = tokens >= 1 - 1e-9 ? 0 : (1 - tokens) / perMs;
    if (waitMs === 0) tokens = Math.max(0, tokens - 1);
    this.#buckets.delete(key);
    this.#buckets.set(key, { tokens, at });
    if (this.#buckets.size > Buckets.#most) this.#buckets.delete(this.#buckets.keys().next().value!);
    return { left: Math.floor(tokens), waitMs };
  }

  /** Gives a token back. */
  refund(key: string, capacity: number): void {
    const bucket = this.#buckets.get(key);
    if (bucket) bucket.tokens = Math.min(capacity, bucket.tokens + 1);
  }
}

const ENOUGH = new Error('no longer held');

/** Held requests, woken by topic. Each has a timer, which is cleared however the request ends. */
export class Parking {
  readonly #clock: Clock;
  readonly #limits: Limits;
  readonly #stats: LocalStats;
  readonly #byAddress: Map<string, number> = new Map();
  readonly #byTopic: Map<string, Set<() => void>> = new Map();
  #held = 0;

  constructor(clock: Clock, limits: Limits, stats: LocalStats) {
    this.#clock = clock;
    this.#limits = limits;
    this.#stats = stats;
  }

  /** True while an address may have one more request held. */
  hasSlot(address: string): boolean {
    return this.#held < this.#limits.waiters && (this.#byAddress.get(address) ?? 0) < this.#limits.waitersPerAddress;
  }

  /** Wakes the requests that are held on `topic`: they look for news at once, or at their next step. */
  ring(topic: string): void {
    // A copy, since a request that finds something leaves the set.
    for (const wake of [...(this.#byTopic.get(topic) ?? [])]) wake();
  }

  /**
   * Holds a request until `look` finds something or `ms` have passed.
   *
   * @throws the signal's reason when the caller hangs up
   */
  hold<T>(
    topic: string,
    address: string,
    ms: number,
    look: () => T | undefined,
    signal?: AbortSignal,
  ): Promise<T | undefined> {
    const { wakeStepMs } = this.#limits;
    const stats = this.#stats;
    const start = this.#clock.now();
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const over = new AbortController();
      const waiters = this.#byTopic.get(topic) ?? new Set();
      let due = false;
      const leave = (): void => {
        waiters.delete(wake);
        if (waiters.size === 0) this.#byTopic.delete(topic);
        const others = (this.#byAddress.get(address) ?? 1) - 1;
        if (others > 0) this.#byAddress.set(address, others);
        else this.#byAddress.delete(address);
        signal?.removeEventListener('abort', hangUp);
        over.abort(ENOUGH);
        this.#held--;
        stats.parked--;
      };
      const hangUp = (): void => {
        leave();
        reject(signal!.reason);
      };
      const after = (delay: number, then: () => void): void => {
        stats.timers++;
        const done = (): void => void stats.timers--;
        this.#clock.sleep(delay, over.signal).then(() => {
          done();
          if (!over.signal.aborted) then();
        }, done);
      };
      const tryNow = (): void => {
        due = false;
        const found = look();
        if (found === undefined) return;
        leave();
        resolve(found);
      };
      const wake = (): void => {
        if (wakeStepMs === 0) tryNow();
        else if (!due) {
          due = true;
          const into = (this.#clock.now() - start) % wakeStepMs;
          after(into === 0 ? 0 : wakeStepMs - into, tryNow);
        }
      };
      this.#byTopic.set(topic, waiters.add(wake));
      this.#byAddress.set(address, (this.#byAddress.get(address) ?? 0) + 1);
      signal?.addEventListener('abort', hangUp);
      this.#held++;
      stats.parked++;
      stats.parkedMost = Math.max(stats.parkedMost, stats.parked);
      after(ms, () => {
        const found = look();
        leave();
        resolve(found);
      });
    });
  }
}

/** The result of `work`; undefined if it takes longer than `ms` (0: no limit). */
export async function within<T>(clock: Clock, ms: number, work: T | Promise<T>): Promise<{ value: T } | undefined> {
  if (!(work instanceof Promise) || ms === 0) return { value: await work };
  const over = new AbortController();
  // Only the first of the two counts.
  work.catch(() => {});
  try {
    return await Promise.race([
      work.then((value) => ({ value })),
      clock.sleep(ms, over.signal).then(
        () => undefined,
        () => undefined,
      ),
    ]);
  } finally {
    over.abort(ENOUGH);
  }
}

/** Counts how often each room has recently accepted each text. */
export class Duplicates {
  readonly #clock: Clock;
  readonly #limits: Limits;
  // When each copy was stored, oldest first. The least recently stored text is forgotten first.
  readonly #copies: Map<string, number[]> = new Map();
  static readonly #most = 10_000;

  constructor(clock: Clock, limits: Limits) {
    this.#clock = clock;
    this.#limits = limits;
  }

  /** The key under which copies of a text are counted; undefined for a text that is not. */
  key(room: string, text: string): string | undefined {
    const { duplicateWindowMs, duplicateMinChars } = this.#limits;
    if (duplicateWindowMs === 0) return undefined;
    const folded = text.normalize('NFKC').replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu, ' ');
    const same = folded.toUpperCase().toLowerCase().trim().replace(/\s+/g, ' ');
    return codePoints(same) < duplicateMinChars ? undefined : `${room} ${toHex(sha256(utf8(same)).subarray(0, 16))}`;
  }

  /** True if the room has accepted this text as often as it may within the window. */
  isFull(key: string): boolean {
    return this.#recent(key).length >= this.#limits.duplicateCopies;
  }

  add(key: string): void {
    const copies = this.#recent(key);
    copies.push(this.#clock.now());
    this.#copies.delete(key);
    this.#copies.set(key, copies);
    for (const old of this.#copies.keys()) {
      if (this.#copies.size <= Duplicates.#most && this.#recent(old).length > 0) break;
      this.#copies.delete(old);
    }
  }

  #recent(key: string): number[] {
    const since = this.#clock.now() - this.#limits.duplicateWindowMs;
    const copies = this.#copies.get(key) ?? [];
    while (copies.length > 0 && copies[0]! <= since) copies.shift();
    return copies;
  }
}
