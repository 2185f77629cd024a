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

/** The clock of the machine. */
export const systemClock: Clock = {
  now: () => Date.now(),
  sleep: (ms, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', done);
        if (signal?.aborted) reject(signal.reason);
        else resolve();
      };
      // A longer delay would overflow the timer and fire at once.
      const timer = setTimeout(done, Math.min(Math.max(ms, 0), 0x7fffffff));
      signal?.addEventListener('abort', done);
    }),
};

/** A float in [0, 1) from the transport's randomness. */
export function randomFloat(random: (bytes: number) => Uint8Array): number {
  const [a = 0, b = 0, c = 0, d = 0] = random(4);
  return (((a << 24) | (b << 16) | (c << 8) | d) >>> 0) / 0x1_0000_0000;
}
