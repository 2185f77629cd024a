/**
 * A limit on concurrent work. Keys take turns, however much one of them asks for.
 *
 * @module
 */
import { onAbort } from './clock.ts';
import { TechnocoreError } from './errors.ts';
import { count } from './maps.ts';
import { mostFor, type Ranks, Turns } from './turns.ts';

/** Slots for the work of many keys. */
export class Workers {
  readonly #concurrency: number;
  readonly #regulars: Ranks | undefined;
  #busy = 0;
  readonly #perKey: number;
  /** How many slots each key has taken. */
  readonly #taken = new Map<string, number>();
  readonly #waiting: Turns<(isOn: boolean) => void>;

  /**
   * @param concurrency the number of slots
   * @param max how many can wait for a slot; one key can have a quarter of them
   * @param perKey how many slots one key can take; default: all
   * @param regulars the keys that take precedence over new ones; some slots are reserved for them
   */
  constructor(concurrency: number, max: number, perKey: number = concurrency, regulars?: Ranks) {
    if (!(concurrency >= 1)) throw new TechnocoreError('bad_option', 'the option concurrency must be a number from 1');
    this.#concurrency = concurrency;
    this.#regulars = regulars;
    this.#perKey = perKey;
    this.#waiting = new Turns(max, max / 4, regulars);
  }

  /** Takes a slot if one is free now. @returns a function that releases it; undefined if none is free */
  tryEnter(from: string): (() => void) | undefined {
    if (!this.#mayTake(from)) return undefined;
    this.#take(from);
    return this.#release(from);
  }

  /** Waits for a slot. @returns a function that releases it; undefined if too many wait, or the signal aborts first */
  async enter(from: string, signal?: AbortSignal): Promise<(() => void) | undefined> {
    if (signal?.aborted) return undefined;
    const free = this.tryEnter(from);
    if (free) return free;
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
    return isOn ? this.#release(from) : undefined;
  }

  #release(from: string): () => void {
    let inside = true;
    return () => {
      if (!inside) return;
      inside = false;
      this.#busy--;
      count(this.#taken, from, -1);
      this.#next();
    };
  }

  #mayTake(from: string): boolean {
    const most = mostFor(this.#regulars?.rank(from) ?? 0, this.#concurrency);
    return this.#busy < most && (this.#taken.get(from) ?? 0) < this.#perKey;
  }

  #take(from: string): void {
    this.#busy++;
    count(this.#taken, from, 1);
  }

  #next(): void {
    const [from, settle] = this.#waiting.next((key) => this.#mayTake(key)) ?? [];
    if (from === undefined) return;
    this.#take(from);
    settle!(true);
  }
}
