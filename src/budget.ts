/**
 * A client-side token bucket for the requests per minute that a server grants an address. It refills continuously and
 * holds one minute's worth. Requests that it cannot cover wait here instead of being refused by the server.
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
  /** The requests that can be made at once; if negative, that many have been promised a turn in the future. */
  #tokens = 0;
  #at: number;
  #blockedUntil = Number.NEGATIVE_INFINITY;
  /** How many requests have announced that they will take a turn, by the queue in which they wait. */
  readonly #queues = new Map<string, number>();

  constructor(clock: Clock, bucket: 'read' | 'write') {
    this.#clock = clock;
    this.#bucket = bucket;
    this.#at = clock.now();
  }

  /** Requests per minute; undefined while unknown. */
  get perMinute(): number | undefined {
    return this.#perMinute;
  }

  /** The share of the budget that is left, 0 to 1; 1 while the budget is unknown. */
  get left(): number {
    if (this.#perMinute === undefined) return this.#clock.now() < this.#blockedUntil ? 0 : 1;
    this.#refill();
    return Math.max(0, this.#tokens) / this.#perMinute;
  }

  /** Records how many requests per minute the server grants, and perhaps how many are left. */
  learn(perMinute: number, left: number = Number.POSITIVE_INFINITY): void {
    const wasAssumed = this.#isAssumed;
    this.#isAssumed = false;
    if (!(perMinute >= 1 && perMinute < 1e9)) {
      if (wasAssumed) this.#perMinute = undefined;
      return;
    }
    // Requests made before the budget was known count.
    if (this.#perMinute === undefined) this.#tokens += perMinute;
    else this.#refill();
    this.#perMinute = perMinute;
    this.#tokens = Math.min(this.#tokens, perMinute, left);
  }

  /** Assumes a budget for a server that could not be asked, until it publishes its own. */
  assume(perMinute: number): void {
    if (this.#perMinute !== undefined) return;
    this.learn(perMinute);
    this.#isAssumed = true;
  }

  /**
   * Records a refusal: no request is made for `afterMs`, or for one minute if that is less, since by then the budget is
   * full again.
   */
  refused(afterMs: number): void {
    this.#refill();
    this.#tokens = Math.min(this.#tokens, 0);
    this.#blockedUntil = Math.max(this.#blockedUntil, this.#clock.now() + Math.min(afterMs, 60_000));
  }

  #refill(): void {
    const now = this.#clock.now();
    // If the clock was set back, nothing is refilled or delayed. If it was set forward, at most one whole budget is
    // refilled.
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
   * Announces that a request will take a turn, after those before it in its queue.
   *
   * @returns a function that withdraws the announcement, to be called when the request takes its turn or is given up
   */
  announce(queue: string): () => void {
    count(this.#queues, queue, 1);
    let isWaiting = true;
    return () => {
      if (isWaiting) count(this.#queues, queue, -1);
      isWaiting = false;
    };
  }

  /** How long the last of `n` more requests in a queue would wait, ms. The queues take turns. */
  projectMs(queue: string, n: number = 1): number {
    const mine = (this.#queues.get(queue) ?? 0) + n;
    let turns = mine;
    for (const [name, count] of this.#queues) if (name !== queue) turns += Math.min(count, mine);
    return this.delayMs(turns);
  }

  /**
   * The error for a turn that would come after `deadline`; undefined if it comes in time, or at once.
   */
  tooLate(delayMs: number, deadline: number): RateLimited | undefined {
    const isLate = delayMs > 0 && this.#clock.now() + delayMs > deadline;
    if (!isLate) return undefined;
    const advice = this.#bucket === 'write' ? '; calls to one mailbox can share writes (option batch)' : '';
    const problem = `the ${this.#bucket} budget is spent: its turn would come in ${Math.ceil(delayMs)} ms`;
    return new RateLimited(this.#bucket, delayMs, `${problem}, which is too late, so nothing was sent${advice}`);
  }

  /**
   * Waits for a turn. Turns are granted in order of request.
   *
   * @param deadline clock time, ms, by which the turn must come
   * @throws a {@link RateLimited} at once if it would come later; no turn is taken then
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
      this.giveBack();
      throw cause;
    }
  }

  /** Returns a turn that was not used: the server never saw the request. */
  giveBack(): void {
    this.#tokens++;
  }
}
