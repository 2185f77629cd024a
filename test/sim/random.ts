/** Numbers that look random and are the same for the same seed (sfc32). */
export class Random {
  #a: number;
  #b: number;
  #c: number;
  #counter = 1;

  /** @param label several streams of one seed do not depend on how much the others are used */
  constructor(seed: number, label = '') {
    let hash = 0x811c9dc5;
    for (const char of `${label}\n${seed}`) hash = Math.imul(hash ^ char.charCodeAt(0), 0x01000193) >>> 0;
    this.#a = hash;
    this.#b = seed | 0;
    this.#c = (seed / 0x1_0000_0000) | 0;
    for (let i = 0; i < 16; i++) this.next();
  }

  /** 32 bits. */
  next(): number {
    const t = (((this.#a + this.#b) | 0) + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (((this.#c << 21) | (this.#c >>> 11)) + t) | 0;
    return t >>> 0;
  }

  /** In [0, 1). */
  float(): number {
    return this.next() / 0x1_0000_0000;
  }

  between(low: number, high: number): number {
    return low + (high - low) * this.float();
  }

  /** An integer from 0 to n - 1. */
  int(n: number): number {
    return Math.floor(this.float() * n);
  }

  chance(p: number): boolean {
    return this.float() < p;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.int(list.length)]!;
  }

  bytes(n: number): Uint8Array {
    return Uint8Array.from({ length: n }, () => this.next() & 255);
  }
}
