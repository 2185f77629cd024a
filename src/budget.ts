/**
 * The account of a budget that a server grants an address: so many requests a minute, refilled continuously, as many at
 * once as a minute holds. What the account cannot cover waits here instead of being refused there.
 *
 * @module
 */
import type { Clock } from './clock.ts';
import { RateLimited } from './errors.ts';
import { count } from './maps.ts';

/** One budget of one service. */
export class Budget {
  readonly #clock: Clock;
  readonly #bucket: 'read' | 'write';
  #perMinute: number | undefined;
  #isAssumed = false;
  /** Below zero: that many requests have a turn in the future. */
  #tokens = 0;
  #at: number;
  #blockedUntil = Number.NEGATIVE_INFINITY;
  /** Requests that will want a turn and have not asked for it yet, by the queue they stand in. */
  readonly #queues = new Map<string, number>();

  constructor(clock: Clock, bucket: 'read' | 'write') {
    this.#clock = clock;
    this.#bucket = bucket;
    this.#at = clock.now();
  }

  /** Requests a minute; undefined while the server has not said. */
  get perMinute(): number | undefined {
    return this.#perMinute;
  }

  /** Share of the budget that is left, 0 to 1; 1 while it is not known. */
  get left(): number {
    if (this.#perMinute === undefined) return this.#clock.now() < this.#blockedUntil ? 0 : 1;
    this.#refill();
    return Math.max(0, this.#tokens) / this.#perMinute;
  }

  /** The server said how many a minute it grants, and perhaps how many are left. */
  learn(perMinute: number, left: number = Number.POSITIVE_INFINITY): void {
    if (!(perMinute >= 1 && perMinute < 1e9)) {
      if (this.#isAssumed) this.#perMinute = undefined;
      this.#isAssumed = false;
      return;
    }
    this.#isAssumed = false;
    // What was spent before anybody knew counts.
    if (this.#perMinute === undefined) this.#tokens += perMinute;
    else this.#refill();
    this.#perMinute = perMinute;
    this.#tokens = Math.min(this.#tokens, perMinute, left);
  }

  /** The server could not be asked: until it says, it is taken to grant so many a minute. */
  assume(perMinute: number): void {
    if (this.#perMinute !== undefined) return;
    this.learn(perMinute);
    this.#isAssumed = true;
  }

  /** The server refused one: nothing goes for `afterMs`, or a minute, after which every account by the minute is full. */
  refused(afterMs: number): void {
    this.#refill();
    this.#tokens = Math.min(this.#tokens, 0);
    this.#blockedUntil = Math.max(this.#blockedUntil, this.#clock.now() + Math.min(afterMs, 60_000));
  }

  #refill(): void {
    const now = this.#clock.now();
    // A clock that was set back refills nothing, and puts nothing off; one set forward refills no more than a whole budget.
    const ms = Math.max(0, now - this.#at);
    if (now < this.#at) this.#blockedUntil -= this.#at - now;
    this.#at = now;
    if (this.#perMinute === undefined) this.#tokens = Math.min(0, this.#tokens + (ms * 30) / 60_000);
    else this.#tokens = Math.min(this.#perMinute, this.#tokens + (ms * this.#perMinute) / 60_000);
  }

  /** How long the `n`-th request from now would wait for its turn, ms. */
  delayMs(n: number = 1): number {
    this.#refill();
    const short = n - this.#tokens;
    const turn = this.#perMinute === undefined || short <= 0 ? 0 : (short * 60_000) / this.#perMinute;
    return Math.max(turn, this.#blockedUntil - this.#clock.now(), 0);
  }

  /**
   * Tells that a request will want a turn, after those before it in its queue.
   *
   * @returns it asks now, or never will
   */
  announce(queue: string): () => void {
    count(this.#queues, queue, 1);
    let isWaiting = true;
    return () => {
      if (isWaiting) count(this.#queues, queue, -1);
      isWaiting = false;
    };
  }

  /** How long `n` more requests in a queue would wait for the last one's turn, ms: the queues take turns. */
  projectMs(queue: string, n: number = 1): number {
    const mine = (this.#queues.get(queue) ?? 0) + n;
    let turns = mine;
    for (const [name, count] of this.#queues) if (name !== queue) turns += Math.min(count, mine);
    return this.delayMs(turns);
  }

  /** The error for a turn that would come after `deadline`; one that can be had at once never does, however late it is. */
  tooLate(delayMs: number, deadline: number): RateLimited | undefined {
    const isLate = delayMs > 0 && this.#clock.now() + delayMs > deadline;
    if (!isLate) return undefined;
    const way = this.#bucket === 'write' ? '; calls to one mailbox can share writes (option batch)' : '';
    const turn = `the ${this.#bucket} budget is spent: its turn would come in ${Math.ceil(delayMs)} ms, which is too late`;
    return new RateLimited(this.#bucket, delayMs, `${turn}, so nothing was sent${way}`);
  }

  /**
   * Waits for a turn; turns come in the order of asking.
   *
   * @param deadline clock time, ms, by which it must come
   * @throws RateLimited at once, when it would come later; nothing is taken
   */
  async take(signal?: AbortSignal, deadline: number = Number.POSITIVE_INFINITY): Promise<void> {
    const delay = this.delayMs();
    const late = this.tooLate(delay, deadline);
    if (late) throw late;
    this.#tokens--;
    if (delay === 0) return;
    try {
      await this.#clock.sleep(delay, signal);
    } catch (cause) {
      this.#tokens++;
      throw cause;
    }
  }
}
