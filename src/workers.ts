/**
 * A limit on what runs at a time, fair to keys: each in turn, however much one of them asks.
 *
 * @module
 */
import { onAbort } from './clock.ts';
import { type Regulars, Turns } from './turns.ts';

/** Turns for work of many keys. */
export class Workers {
  #free: number;
  readonly #perKey: number;
  /** Turns taken, by key. */
  readonly #taken = new Map<string, number>();
  readonly #waiting: Turns<(isOn: boolean) => void>;

  /**
   * @param concurrency turns at a time
   * @param max most that wait for one, of one key a quarter
   * @param perKey turns of one key at a time; default: all there are
   * @param regulars who is not to wait for newcomers
   */
  constructor(concurrency: number, max: number, perKey: number = concurrency, regulars?: Regulars) {
    this.#free = concurrency;
    this.#perKey = perKey;
    this.#waiting = new Turns(max, max / 4, regulars);
  }

  /** Waits for a turn. @returns gives it back; undefined when too many wait, or the signal aborts first */
  async enter(from: string, signal?: AbortSignal): Promise<(() => void) | undefined> {
    if (signal?.aborted) return undefined;
    if (this.#free > 0 && this.#mayTake(from)) this.#take(from);
    else {
      const isOn = await new Promise<boolean>((resolve) => {
        const settle = (isOn: boolean): void => {
          forget();
          resolve(isOn);
        };
        const forget = onAbort(signal, () => {
          if (this.#waiting.remove(from, settle)) settle(false);
        });
        this.#waiting.push(from, settle)?.(false);
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

  #mayTake(from: string): boolean {
    return (this.#taken.get(from) ?? 0) < this.#perKey;
  }

  #take(from: string): void {
    this.#free--;
    this.#taken.set(from, (this.#taken.get(from) ?? 0) + 1);
  }

  #next(): void {
    const [from, settle] = this.#waiting.next((key) => this.#mayTake(key)) ?? [];
    if (from === undefined) return;
    this.#take(from);
    settle!(true);
  }
}
