import { concat, equalBytes } from '../../src/bytes.ts';
import { chachaPolyBackends, randomBytes, useNative, x25519 } from '../../src/crypto.ts';
import { createTransport, Handshake } from '../../src/noise.ts';
import type { Ratio } from './e2e.ts';
import { curve } from './noise.ts';

const median = (values: number[]): number => values.sort((a, b) => a - b)[values.length >> 1]!;

function time(run: () => unknown, calls: number): number {
  const begun = performance.now();
  for (let i = 0; i < calls; i++) run();
  return ((performance.now() - begun) * 1000) / calls;
}

/** A whole handshake of both ends, and a sealed message there, against the bare primitives that they cannot do without. */
export function benchParley(rounds = 60): Ratio[] {
  const ratios: Ratio[] = [];
  const [psk, prologue, payload] = [randomBytes(32), randomBytes(24), randomBytes(19)];
  for (const backend of ['native', 'portable'] as const) {
    const make = chachaPolyBackends[backend];
    if (!make) continue;
    useNative(backend === 'native');
    const [a, b] = [x25519(randomBytes(32)), x25519(randomBytes(32))];
    const handshake = (): Handshake[] => {
      const joiner = Handshake.initiator({ identity: a, prologue, psk, remote: b.publicKey });
      const opener = Handshake.responder({ identity: b, prologue, psk });
      opener.read(joiner.write(payload));
      joiner.read(opener.write(payload));
      return [joiner, opener];
    };
    const [joiner, opener] = handshake() as [Handshake, Handshake];
    if (!equalBytes(joiner.hash, opener.hash)) throw new Error('the ends differ');
    const contests: [name: string, ours: () => unknown, bare: () => unknown, calls: number, limit: number][] = [
      ['handshake', handshake, () => curve(a, b), backend === 'native' ? 5 : 1, 3],
    ];
    for (const size of [1024, 65_536]) {
      const plain = randomBytes(size);
      const keys = joiner.keys();
      const [send, receive] = [createTransport(keys), createTransport({ send: keys.receive, receive: keys.send })];
      const aead = make(keys.send);
      const nonce = new Uint8Array(12);
      let seq = 1n;
      const ours = (): Uint8Array => receive.open(++seq, send.seal(seq, plain));
      const bare = (): Uint8Array | undefined => {
        nonce[0] = (nonce[0]! + 1) & 255;
        return aead.open(nonce, aead.seal(nonce, plain));
      };
      if (!equalBytes(concat(ours(), bare()!), concat(plain, plain))) throw new Error('the answers differ');
      contests.push([`transport of ${size} bytes`, ours, bare, backend === 'native' ? 20 : 2, 1.5]);
    }
    for (const [name, ours, bare, calls, limit] of contests) {
      const took: number[] = [];
      const rates: number[] = [];
      for (let round = 0; round < rounds + 10; round++) {
        const before = round % 2 === 0 ? time(bare, calls) : 0;
        const mine = time(ours, calls);
        const theirs = before || time(bare, calls);
        if (round < 10) continue;
        took.push(mine);
        rates.push(mine / theirs);
      }
      ratios.push({ name: `parley ${name}, ${backend}`, ratio: median(rates), limit, micros: median(took) });
    }
  }
  useNative(true);
  return ratios;
}
