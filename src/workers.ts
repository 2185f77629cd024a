/**
 * A limit on what runs at a time, fair to keys: each in turn, however much one of them asks.
 *
 * @module
 */
import { onAbort } from './clock.ts';

/** Turns for work of many keys. */
export class Workers {
  #free: number;
  readonly #max: number;
  readonly #perKey: number;
  #waiting = 0;
  /** Turns taken, by key. */
  readonly #taken = new Map<string, number>();
  /** One queue a key, in turn. */
  readonly #queues = new Map<string, (() => void)[]>();

  /**
   * @param concurrency turns at a time
   * @param max most that wait for one, of one key a quarter
   * @param perKey turns of one key at a time; default: all there are
   */
  constructor(concurrency: number, max: number, perKey: number = concurrency) {
    this.#free = concurrency;
    this.#max = max;
    this.#perKey = perKey;
  }

  /** Waits for a turn. @returns gives it back; undefined when too many wait, or the signal aborts first */
  async enter(from: string, signal?: AbortSignal): Promise<(() => void) | undefined> {
    if (signal?.aborted) return undefined;
    if (this.#free > 0 && this.#mayTake(from)) this.#take(from);
    else {
      const queue = this.#queues.get(from) ?? [];
      if (this.#waiting >= this.#max || queue.length >= this.#max / 4) return undefined;
      this.#queues.set(from, queue);
      this.#waiting++;
      const isOn = await new Promise<boolean>((resolve) => {
        const go = (): void => {
          forget();
          resolve(true);
        };
        queue.push(go);
        const forget = onAbort(signal, () => {
          if (this.#leave(from, go)) resolve(false);
        });
      });
      if (!isOn) return undefined;
    }
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      this.#free++;
      const taken = this.#taken.get(from)! - 1;
      if (taken > 0) this.#taken.set(from, taken);
      else this.#taken.delete(from);
      this.#next();
    };
  }

  #leave(from: string, go: () => void): boolean {
    const queue = this.#queues.get(from);
    const at = queue?.indexOf(go) ?? -1;
    if (at < 0) return false;
    queue!.splice(at, 1);
    if (queue!.length === 0) this.#queues.delete(from);
    this.#waiting--;
    return true;
  }

  #mayTake(from: string): boolean {
    return (this.#taken.get(from) ?? 0) < this.#perKey;
  }

  #take(from: string): void {
    this.#free--;
    this.#taken.set(from, (this.#taken.get(from) ?? 0) + 1);
  }

  #next(): void {
    for (const [from, queue] of this.#queues) {
      if (!this.#mayTake(from)) continue;
      const resolve = queue.shift()!;
      this.#queues.delete(from);
      // Behind all others that wait.
      if (queue.length > 0) this.#queues.set(from, queue);
      this.#waiting--;
      this.#take(from);
      resolve();
      return;
    }
  }
}
