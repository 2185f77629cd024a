import { equalBytes, fromBase64url, fromUtf8, utf8 } from '../../src/bytes.ts';
import { aesGcmBackends, randomBytes, useNative } from '../../src/crypto.ts';
import { e2eOpen, e2eSeal } from '../../src/e2e.ts';

/** How often one thing takes as long as another, in paired rounds. */
export interface Ratio {
  name: string;
  /** Median of the rounds' ratios. */
  ratio: number;
  /** The most it should be. */
  limit: number;
  /** Median time of one call, µs. */
  micros: number;
}

type Box = [nonce: Uint8Array, sealed: Uint8Array];

const median = (values: number[]): number => values.sort((a, b) => a - b)[values.length >> 1]!;

function time(run: () => unknown, calls: number): number {
  const begun = performance.now();
  for (let i = 0; i < calls; i++) run();
  return ((performance.now() - begun) * 1000) / calls;
}

/** Sealing and opening a line of 1 KB against the bare AES-GCM call of the same back end. */
export function benchE2e(rounds = 400): Ratio[] {
  const key = randomBytes(32);
  const text = 'The quick brown fox jumps over the lazy dog. '.repeat(23).slice(0, 1024);
  const plain = utf8(text);
  const ratios: Ratio[] = [];
  for (const backend of ['native', 'portable'] as const) {
    const make = aesGcmBackends[backend];
    if (!make) continue;
    useNative(backend === 'native');
    const bare = make(key);
    // Other nonces and boxes each time, or the processor learns the one by heart.
    const lines = Array.from({ length: 256 }, () => e2eSeal(key, text));
    const boxes = lines.map((line) => line.split('.').map((part) => fromBase64url(part)!.slice()) as Box);
    for (const [i, [nonce, box]] of boxes.entries()) {
      const agree = e2eOpen(key, lines[i]!) === text && equalBytes(bare.seal(nonce, plain), box);
      if (!agree || fromUtf8(bare.open(nonce, box)!) !== text) throw new Error('the answers differ');
    }
    let i = 0;
    const next = (): number => (i = (i + 1) & 255);
    const pairs: [string, () => unknown, () => unknown][] = [
      ['seal', () => e2eSeal(key, text), () => bare.seal(boxes[next()]![0], plain)],
      ['open', () => e2eOpen(key, lines[next()]!), () => bare.open(...boxes[next()]!)],
    ];
    const calls = backend === 'native' ? 50 : 10;
    for (const [name, ours, theirs] of pairs) {
      const took: number[] = [];
      const rates: number[] = [];
      for (let round = 0; round < rounds + 50; round++) {
        const first = round % 2 === 0;
        const a = first ? time(ours, calls) : 0;
        const b = time(theirs, calls);
        const mine = first ? a : time(ours, calls);
        if (round < 50) continue;
        took.push(mine);
        rates.push(mine / b);
      }
      ratios.push({ name: `e2e ${name}, ${backend}`, ratio: median(rates), limit: 1.5, micros: median(took) });
    }
  }
  useNative(true);
  return ratios;
}
