/**
 * Time and chance as parameters, so that everything can be simulated.
 *
 * @module
 */

/** A clock. */
export interface Clock {
  /** Milliseconds since the epoch. */
  now(): number;
  /** Resolves after `ms`; rejects with the signal's reason when it aborts, leaving no timer behind. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

// A longer delay would overflow the timer and fire at once.
const timerMs = (ms: number): number => Math.min(Math.max(ms, 0), 0x7fffffff);

/** The clock of the machine. */
export const systemClock: Clock = {
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const done = (): void => {
        clearTimeout(timer);
        forget();
        if (signal?.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(done, timerMs(ms));
      const forget = onAbort(signal, done);
    }),
};

interface Waiting {
  readonly runs: Set<() => void>;
  readonly listener: () => void;
}

const waiting = new WeakMap<AbortSignal, Waiting>();

/**
 * Calls `run` once when the signal aborts, unless it has aborted already. However many wait for one signal, it has one
 * listener: a hundred calls may share a signal, and platforms take more than ten listeners for a leak.
 *
 * @param run must not throw
 * @returns forgets it
 */
export function onAbort(signal: AbortSignal | undefined, run: () => void): () => void {
  if (!signal || signal.aborted) return () => {};
  let entry = waiting.get(signal);
  if (!entry) {
    const runs = new Set<() => void>();
    const listener = (): void => {
      for (const one of [...runs]) one();
    };
    waiting.set(signal, (entry = { runs, listener }));
  }
  const { runs, listener } = entry;
  // A run of its own, though the same function waits twice.
  const mine = (): void => run();
  if (runs.size === 0) signal.addEventListener('abort', listener);
  runs.add(mine);
  return () => {
    if (runs.delete(mine) && runs.size === 0) signal.removeEventListener('abort', listener);
  };
}

/** A controller that also aborts with a signal, for the same reason, until `forget` is called. */
export function following(signal: AbortSignal | undefined): { stop: AbortController; forget: () => void } {
  const stop = new AbortController();
  const follow = (): void => stop.abort(signal?.reason);
  if (signal?.aborted) follow();
  return { stop, forget: onAbort(signal, follow) };
}

/** A signal that aborts as soon as one of two does. */
export function eitherOf(a: AbortSignal | undefined, b: AbortSignal | undefined): AbortSignal | undefined {
  return a && b ? AbortSignal.any([a, b]) : (a ?? b);
}

/** Why an inner wait ends that nobody asks about. Without a reason each abort would make an exception with a stack. */
export const OVER = 'over';

/**
 * Runs something after `ms` of a clock, unless that is called off before. Cheaper than a sleep and a signal to end it:
 * Node takes its time over every AbortController.
 *
 * @returns calls it off
 */
export function later(clock: Clock, ms: number, run: () => void): () => void {
  if (clock === systemClock) {
    const timer = setTimeout(run, timerMs(ms));
    return () => clearTimeout(timer);
  }
  const stop = new AbortController();
  clock.sleep(ms, stop.signal).then(run, () => {});
  return () => stop.abort(OVER);
}

/** Runs a task in a turn of its own, behind all that is due already. That takes no time of any clock. */
export function nextTurn(task: () => void): void {
  const { setImmediate } = globalThis as { setImmediate?: (task: () => void) => void };
  if (setImmediate) setImmediate(task);
  else setTimeout(task, 0);
}

/** A float in [0, 1) from the transport's randomness. */
export function randomFloat(random: (bytes: number) => Uint8Array): number {
  const [a = 0, b = 0, c = 0, d = 0] = random(4);
  return (((a << 24) | (b << 16) | (c << 8) | d) >>> 0) / 0x1_0000_0000;
}
