import type { Clock } from '../src/http.ts';

/** Time that passes only when told to. */
export class VirtualClock implements Clock {
  #now: number;
  #timers: { at: number; fire: () => void }[] = [];

  constructor(start = Date.UTC(2026, 0, 31, 12)) {
    this.#now = start;
  }

  now(): number {
    return this.#now;
  }

  /** Sleepers that have not been woken or aborted. */
  get sleepers(): number {
    return this.#timers.length;
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const timer = {
        at: this.#now + Math.max(ms, 0),
        fire: () => {
          signal?.removeEventListener('abort', drop);
          resolve();
        },
      };
      const drop = (): void => {
        this.#timers.splice(this.#timers.indexOf(timer), 1);
        reject(signal?.reason);
      };
      signal?.addEventListener('abort', drop, { once: true });
      this.#timers.push(timer);
    });
  }

  /** Lets `ms` pass, sleeper by sleeper, once all that is under way is done; so is what each of them sets off. */
  async advance(ms: number): Promise<void> {
    await settled();
    const end = this.#now + ms;
    for (;;) {
      this.#timers.sort((a, b) => a.at - b.at);
      const [next] = this.#timers;
      if (!next || next.at > end) break;
      this.#timers.shift();
      this.#now = next.at;
      next.fire();
      await settled();
    }
    this.#now = end;
    await settled();
  }
}

/** Resolves when all that is under way without a timer or socket is done. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
