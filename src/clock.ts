/**
 * Time and randomness as parameters, so that everything can be simulated.
 *
 * @module
 */
import { checkFunction, checkObject } from './errors.ts';
import { getOrMake } from './maps.ts';

/** The library's source of time. Pass your own to run it in simulated time. */
export interface Clock {
  /** The time in milliseconds since the Unix epoch. */
  now(): number;
  /** Resolves after `ms` milliseconds. When the signal aborts, rejects with its reason and leaves no timer behind. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

// A longer delay would overflow the timer and fire at once.
const timerMs = (ms: number): number => Math.min(Math.max(ms, 0), 0x7fffffff);

/** The system clock: `Date.now` and `setTimeout`. */
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

/**
 * The option `clock`, by default the system clock.
 *
 * @throws a {@link TechnocoreError} `bad_option` if it is not a {@link Clock}
 */
export function clockOf({ clock = systemClock }: { readonly clock?: Clock | undefined }): Clock {
  const { now, sleep } = checkObject(clock, 'the option clock');
  checkFunction(now, 'now of the option clock');
  checkFunction(sleep, 'sleep of the option clock');
  return clock;
}

interface Waiting {
  readonly runs: Set<() => void>;
  readonly listener: () => void;
}

const waiting = new WeakMap<AbortSignal, Waiting>();

/**
 * A separate function, so that the listener captures no variables of a waiter: they would live as long as the signal.
 */
function makeWaiting(): Waiting {
  const runs = new Set<() => void>();
  const listener = (): void => {
    const all = [...runs];
    // An aborted signal may live for a long time; it must not keep its waiters alive.
    runs.clear();
    for (const one of all) one();
  };
  return { runs, listener };
}

/**
 * Calls `run` once when the signal aborts; never if it has aborted already. All waiters of a signal share one listener,
 * since a hundred calls may share a signal, and Node warns of a leak beyond ten listeners.
 *
 * @param run must not throw
 * @returns a function that removes it
 */
export function onAbort(signal: AbortSignal | undefined, run: () => void): () => void {
  if (!signal || signal.aborted) return () => {};
  const { runs, listener } = getOrMake(waiting, signal, makeWaiting);
  // A new function each time, so that one that is passed twice is also called twice.
  const mine = (): void => run();
  if (runs.size === 0) signal.addEventListener('abort', listener, { once: true });
  runs.add(mine);
  return () => {
    if (runs.delete(mine) && runs.size === 0) signal.removeEventListener('abort', listener);
  };
}

/** A controller that also aborts when the signal does, for the same reason, until `forget` is called. */
export function following(signal: AbortSignal | undefined): { stop: AbortController; forget: () => void } {
  const stop = new AbortController();
  const follow = (): void => stop.abort(signal?.reason);
  if (signal?.aborted) follow();
  return { stop, forget: onAbort(signal, follow) };
}

/**
 * The signals of {@link eitherOf}, by the two that they follow. They are reused because in some runtimes a signal holds
 * on to its dependents for as long as it lives.
 */
const pairs = new WeakMap<AbortSignal, WeakMap<AbortSignal, AbortSignal>>();

/**
 * A signal that aborts as soon as either of two does; for the same two, always the same signal. If only one is given,
 * returns that one.
 */
export function eitherOf(a: AbortSignal | undefined, b: AbortSignal | undefined): AbortSignal | undefined {
  if (!a || !b) return a ?? b;
  const others = getOrMake(pairs, a, () => new WeakMap<AbortSignal, AbortSignal>());
  return getOrMake(others, b, () => AbortSignal.any([a, b]));
}

/**
 * The reason for aborting internal waits, which nobody sees. Without one, each abort would create an error with a
 * stack.
 */
export const OVER = 'over';

/** How many turns of promises what is under way gets before its time is up: a request answered at once takes some 30. */
const GRACE_TURNS = 100;

/**
 * Calls `run` after `ms` milliseconds. Cheaper than a sleep that a signal ends: AbortControllers are slow in Node.
 *
 * @returns a function that cancels the call
 */
export function later(clock: Clock, ms: number, run: () => void): () => void {
  if (clock === systemClock) {
    const timer = setTimeout(run, timerMs(ms));
    return () => clearTimeout(timer);
  }
  const stop = new AbortController();
  const { signal } = stop;
  const fire = async (): Promise<void> => {
    // A clock for tests may not wait at all, or ignore the signal. What is done in this moment is in time.
    for (let turn = 0; turn < GRACE_TURNS && !signal.aborted; turn++) await undefined;
    if (!signal.aborted) run();
  };
  clock.sleep(ms, signal).then(fire, () => {});
  return () => stop.abort(OVER);
}

/**
 * Runs a task in a later turn of the event loop, after everything that is already due. A simulated clock does not
 * advance.
 */
export function nextTurn(task: () => void): void {
  const { setImmediate } = globalThis as { setImmediate?: (task: () => void) => void };
  if (setImmediate) setImmediate(task);
  else setTimeout(task, 0);
}

/** A random number in [0, 1), made of 32 bits of the given source. */
export function randomFloat(random: (bytes: number) => Uint8Array): number {
  const [a = 0, b = 0, c = 0, d = 0] = random(4);
  return (((a << 24) | (b << 16) | (c << 8) | d) >>> 0) / 0x1_0000_0000;
}
