/**
 * What bounds the local service: numbers, token buckets, held requests, repeated texts.
 *
 * @module
 */

import { toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { checkObject } from './errors.ts';
import { codePoints } from './frames.ts';
import type { Clock } from './http.ts';
import type { Profile } from './local-wire.ts';

/** What tests and benchmarks count. */
export interface LocalStats {
  /** Requests of every kind. */
  requests: number;
  /** Reads let through, held ones included. */
  reads: number;
  /** Writes let through, whatever became of them. */
  writes: number;
  /** Requests answered 429. */
  refused: number;
  /** Requests held now. */
  parked: number;
  /** Most requests held at once so far. */
  parkedMost: number;
  /** Timers that held requests own now: none when nothing is held. */
  timers: number;
  /** Sockets open now. */
  connections: number;
  rooms: number;
  notes: number;
  /** Messages stored so far, announcements included. */
  messages: number;
  /** Bytes of all rooms. */
  bytes: number;
  /** Parley channels. */
  channels: number;
}

/** What bounds the service. Every member is a number; the real service's are the defaults. */
export interface Limits {
  readsPerMinute: number;
  writesPerMinute: number;
  newRoomsPerDay: number;
  /** Rooms in all. */
  rooms: number;
  /** Notes in all. */
  notes: number;
  notesPerNamespace: number;
  /** Bytes of one room before its older half goes. */
  roomRingBytes: number;
  /** Bytes of all rooms; beyond it rooms keep only their share and new ones are refused. */
  roomBytesTotal: number;
  /** Age from which the messages of an `e-` room are no longer returned, ms. */
  ephemeralTtlMs: number;
  /** Longest hold of a read, ms. */
  longPollMs: number;
  waitersPerAddress: number;
  /** Held reads in all. */
  waiters: number;
  /** Open sockets from which every request gets 503. */
  connections: number;
  /** Age up to which `/rooms` may be answered from memory, ms. */
  roomsCacheMs: number;
  /** Idle time after which rooms and notes go, ms. */
  retentionMs: number;
  /** The same for a room with a single message, ms. */
  singleMessageRetentionMs: number;
  /** Least time between two runs of the reaper, ms; it runs on writes only. */
  reapEveryMs: number;
  /** Held reads look for news in steps of this length, counted from when they were parked, ms; 0: at once. */
  wakeStepMs: number;
  /** Time in which a body has to arrive, ms; 0: any. The old profile sets none. */
  uploadMs: number;
  /** Window of the duplicate filter, ms; 0: off. The old profile has none. */
  duplicateWindowMs: number;
  /** Copies of a text that a room takes within the window. */
  duplicateCopies: number;
  /** Texts of fewer characters are not filtered. */
  duplicateMinChars: number;
  /** Parley channels in all. */
  relayChannels: number;
  /** Bytes of one request body to the relay. */
  relayBodyBytes: number;
  /** Bytes of one frame's payload. */
  relayFrameBytes: number;
  /** Bytes that wait for one seat, as they would be answered; what its reader has seen makes room. */
  relayInboxBytes: number;
  /** Bytes that wait for all seats. */
  relayBytesTotal: number;
  /** Reads held by the relay in all. */
  relayWaiters: number;
  /** Idle time after which a channel is gone, ms. */
  relayIdleMs: number;
  /** Least time between two sweeps of idle channels, ms. */
  relaySweepMs: number;
}

/** The limits of a profile with the caller's on top: finite, not negative, rates at least 1. */
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

/** Token buckets by address and kind, refilled continuously. The longest unused are forgotten first. */
export class Buckets {
  readonly #clock: Clock;
  readonly #buckets: Map<string, { tokens: number; at: number }> = new Map();
  static readonly #most = 20_000;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Takes a token. Left: whole tokens that remain; waitMs: 0, or how long until there is one. */
  take(key: string, capacity: number, perMs: number): { left: number; waitMs: number } {
    const at = this.#clock.now();
    const old = this.#buckets.get(key);
    let tokens = old ? Math.min(capacity, old.tokens + Math.max(0, at - old.at) * perMs) : capacity;
    // A hair of tolerance, or rounding makes a caller that slept as long as it was told come too early.
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

/** Held requests: woken by topic, one timer each, nothing left behind however they end. */
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

  /** Something happened: whoever is held on `topic` looks, at once or at its next step. */
  ring(topic: string): void {
    // A copy, since who finds something leaves the set.
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

/** What `work` yields, or undefined when it takes longer than `ms` (0: any time). */
export async function within<T>(clock: Clock, ms: number, work: T | Promise<T>): Promise<{ value: T } | undefined> {
  if (!(work instanceof Promise) || ms === 0) return { value: await work };
  const over = new AbortController();
  // Whoever comes second is not listened to any more.
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

/** Which texts a room took lately, and how often. */
export class Duplicates {
  readonly #clock: Clock;
  readonly #limits: Limits;
  // When each copy was stored, oldest first. The text that was stored longest ago is forgotten first.
  readonly #copies: Map<string, number[]> = new Map();
  static readonly #most = 10_000;

  constructor(clock: Clock, limits: Limits) {
    this.#clock = clock;
    this.#limits = limits;
  }

  /** The name under which copies of a text are counted; undefined for one that is not. */
  key(room: string, text: string): string | undefined {
    const { duplicateWindowMs, duplicateMinChars } = this.#limits;
    if (duplicateWindowMs === 0) return undefined;
    const folded = text.normalize('NFKC').replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu, ' ');
    const same = folded.toUpperCase().toLowerCase().trim().replace(/\s+/g, ' ');
    return codePoints(same) < duplicateMinChars ? undefined : `${room} ${toHex(sha256(utf8(same)).subarray(0, 16))}`;
  }

  /** True when the room took its share of this text within the window. */
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
