import type { Clock } from '../../src/http.ts';

interface Timer {
  at: number;
  order: number;
  run: (() => void) | undefined;
}

/** Resolves when all microtasks are done, also those that they make. */
const quiet = (): Promise<void> => new Promise((resolve) => process.nextTick(resolve));

/**
 * Time in a simulation: a queue of events. Between two events everything runs that can run without time passing, so that
 * the order of events alone decides what happens.
 */
export class Timeline {
  #now = 0;
  #order = 0;
  #live = 0;
  /** A binary heap, earliest first; of one time, the first that was made. */
  readonly #heap: Timer[] = [];

  /** ms since the simulation began. Nobody in it can set this. */
  get now(): number {
    return this.#now;
  }

  /** Events that are still to come. */
  get pending(): number {
    return this.#live;
  }

  /** Calls `run` in `ms`; returns what calls that off. */
  after(ms: number, run: () => void): () => void {
    const timer: Timer = { at: this.#now + Math.max(ms, 0), order: this.#order++, run };
    this.#push(timer);
    this.#live++;
    return () => {
      if (timer.run === undefined) return;
      timer.run = undefined;
      this.#live--;
    };
  }

  /** Lets time pass until `end` ms, or until `done` says so. */
  async run(end: number, done: () => boolean = () => false): Promise<void> {
    await quiet();
    for (let steps = 0; !done(); steps++) {
      const next = this.#heap[0];
      if (next === undefined || next.at > end) {
        if (Number.isFinite(end)) this.#now = Math.max(this.#now, end);
        return;
      }
      this.#pop();
      if (next.run === undefined) continue;
      this.#now = next.at;
      this.#live--;
      const { run } = next;
      next.run = undefined;
      run();
      await quiet();
      // The rest of the process lives too: unhandled rejections are reported, messages are read.
      if (steps % 512 === 511) await new Promise((resolve) => setImmediate(resolve));
    }
  }

  #push(timer: Timer): void {
    const heap = this.#heap;
    let at = heap.length;
    while (at > 0) {
      const above = (at - 1) >> 1;
      if (isBefore(heap[above]!, timer)) break;
      heap[at] = heap[above]!;
      at = above;
    }
    heap[at] = timer;
  }

  #pop(): void {
    const heap = this.#heap;
    const last = heap.pop()!;
    if (heap.length === 0) return;
    let at = 0;
    for (;;) {
      let below = 2 * at + 1;
      if (below >= heap.length) break;
      if (below + 1 < heap.length && isBefore(heap[below + 1]!, heap[below]!)) below++;
      if (isBefore(last, heap[below]!)) break;
      heap[at] = heap[below]!;
      at = below;
    }
    heap[at] = last;
  }
}

const isBefore = (a: Timer, b: Timer): boolean => a.at < b.at || (a.at === b.at && a.order < b.order);

/** How a clock may be broken on purpose. */
export type ClockBug = 'keeps-aborted-timers' | 'forgets-long-timers' | 'spins';

/** The clock of one process: it may be wrong, it may be set, and it stops when the process dies. */
export class ProcessClock implements Clock {
  /** What it shows more than the timeline, ms. */
  offset: number;
  /** Sleepers that have neither been woken nor called off. */
  sleepers = 0;
  readonly #timeline: Timeline;
  readonly #bug: string | undefined;
  readonly #timers: Set<() => void> = new Set();
  #isDead = false;

  constructor(timeline: Timeline, offset: number, bug?: string) {
    this.#timeline = timeline;
    this.offset = offset;
    this.#bug = bug;
  }

  now(): number {
    return this.#timeline.now + this.offset;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#isDead) return;
      if (signal?.aborted) return reject(signal.reason);
      this.sleepers++;
      const leave = (): void => {
        this.sleepers--;
        this.#timers.delete(cancel);
        signal?.removeEventListener('abort', drop);
      };
      const drop = (): void => {
        if (this.#bug !== 'keeps-aborted-timers') {
          leave();
          cancel();
        }
        reject(signal!.reason);
      };
      signal?.addEventListener('abort', drop);
      const isForgotten = this.#bug === 'forgets-long-timers' && ms > 4000;
      const cancel = this.#timeline.after(isForgotten ? 1e12 : this.#bug === 'spins' && ms < 5000 ? 1 : ms, () => {
        leave();
        resolve();
      });
      this.#timers.add(cancel);
    });
  }

  /** The process is gone: nobody is woken any more. */
  stop(): void {
    this.#isDead = true;
    for (const cancel of this.#timers) cancel();
    this.#timers.clear();
    this.sleepers = 0;
  }
}
