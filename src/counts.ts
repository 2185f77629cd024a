/**
 * Bounds on how many of something there are at a time, of all keys and of one.
 *
 * @module
 */

/** How many of something there are, for each key. */
export class Counts {
  readonly #max: number;
  readonly #perKey: number;
  readonly #counts = new Map<string, number>();
  #total = 0;

  constructor([max, perKey]: readonly [number, number]) {
    this.#max = max;
    this.#perKey = perKey;
  }

  /** @returns gives it back; undefined when there are too many */
  take(key: string): (() => void) | undefined {
    const count = this.#counts.get(key) ?? 0;
    if (count >= this.#perKey || this.#total >= this.#max) return undefined;
    this.#counts.set(key, count + 1);
    this.#total++;
    return () => {
      const left = this.#counts.get(key)! - 1;
      if (left > 0) this.#counts.set(key, left);
      else this.#counts.delete(key);
      this.#total--;
    };
  }
}
