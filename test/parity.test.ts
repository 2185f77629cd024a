/** The native back ends against noble, which defines what is correct. A failure prints the seed that replays it. */
import { ED25519_TORSION_SUBGROUP, ed25519 as noble } from '@noble/curves/ed25519.js';
import { sha512 } from '@noble/hashes/sha2.js';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { concat, fromHex, toHex } from '../src/bytes.ts';
import {
  aesGcmBackends,
  type Backends,
  chachaPolyBackends,
  ed25519Backends,
  ed25519Verify,
  hmacBackends,
  isCanonicalX25519,
  sha256Backends,
  useNative,
  verifyBackends,
  x25519,
  x25519Backends,
} from '../src/crypto.ts';

const { Point } = noble;
const { Fn } = Point;

const bytes = (length: number): fc.Arbitrary<Uint8Array> => fc.uint8Array({ minLength: length, maxLength: length });
const message = fc.oneof(
  fc.uint8Array({ maxLength: 300 }),
  // Around the block sizes, and one that is long.
  fc
    .constantFrom(0, 15, 16, 17, 31, 32, 33, 55, 56, 63, 64, 65, 127, 128, 129, 5000)
    .map((n) => new Uint8Array(n).fill(n)),
);

/** Equality of bytes; the general matcher takes milliseconds for long ones. */
function same(a: Uint8Array | undefined, b: Uint8Array): void {
  expect(a && toHex(a)).toBe(toHex(b));
}

/** The name says so where there is nothing to compare. */
function parity<F>(name: string, backends: Backends<F>, body: (native: F, portable: F) => void): void {
  const { native, portable } = backends;
  if (native === undefined) test.skip(`${name}: not native here`, () => {});
  else test(name, () => body(native, portable));
}

/** The same question to both back ends, by way of the public function. */
function both<T>(ask: () => T): [native: T, portable: T] {
  const native = ask();
  useNative(false);
  try {
    return [native, ask()];
  } finally {
    useNative(true);
  }
}

parity('Ed25519 keys and signatures', ed25519Backends, (native, portable) => {
  fc.assert(
    fc.property(bytes(32), message, (seed, text) => {
      const [a, b] = [native(seed), portable(seed)];
      expect(a.publicKey).toEqual(b.publicKey);
      const signature = a.sign(text);
      expect(signature).toEqual(b.sign(text));
      expect(signature).toEqual(noble.sign(text, seed));
    }),
    { numRuns: 60 },
  );
});

const torsion = fc.constantFrom(...ED25519_TORSION_SUBGROUP.map((point) => Point.fromHex(point)));

/** A signature by the scalar of `seed` over chosen R and A, which both may carry a point of small order. */
const crafted = fc
  .record({
    seed: bytes(32),
    text: fc.uint8Array({ maxLength: 40 }),
    nonce: bytes(32),
    inA: torsion,
    inR: torsion,
    zero: fc.nat(9),
  })
  .map(({ seed, text, nonce, inA, inR, zero }) => {
    const { scalar, point } = noble.utils.getExtendedPublicKey(seed);
    const r = zero === 0 ? 0n : Fn.create(BigInt(`0x0${toHex(nonce)}`));
    const A = point.add(inA).toBytes();
    const R = Point.BASE.multiplyUnsafe(r).add(inR).toBytes();
    const k = Fn.create(BigInt(`0x${toHex(sha512(concat(R, A, text)).reverse())}`));
    return { A, signature: concat(R, Fn.toBytes(Fn.create(r + k * scalar))), text };
  });
const spoilt = fc.record({ what: crafted, bit: fc.nat(96 * 8 - 1) }).map(({ what, bit }) => {
  const all = concat(what.A, what.signature);
  all[bit >> 3]! ^= 1 << (bit & 7);
  return { A: all.slice(0, 32), signature: all.slice(32), text: what.text };
});
const random = fc.record({ A: bytes(32), signature: bytes(64), text: fc.uint8Array({ maxLength: 40 }) });

parity('Ed25519 verdicts, on honest, crafted, spoilt and random input', verifyBackends, () => {
  let accepted = 0;
  fc.assert(
    fc.property(
      fc.oneof({ weight: 6, arbitrary: crafted }, { weight: 2, arbitrary: spoilt }, random),
      ({ A, signature, text }) => {
        const [a, b] = both(() => ed25519Verify(A, signature, text));
        expect(a).toBe(b);
        // We never take what noble's strict mode refuses.
        if (a) expect(noble.verify(signature, text, A, { zip215: false })).toBe(true);
        accepted += Number(a);
      },
    ),
    { numRuns: 160 },
  );
  expect(accepted).toBeGreaterThan(3);
});

// Small numbers, and numbers just below 2^255, with either top bit: where spellings and small orders are.
const odd = fc.record({ near: fc.nat(40), high: fc.boolean(), top: fc.boolean() }).map(({ near, high, top }) => {
  const u = new Uint8Array(32).fill(high ? 255 : 0);
  u[0] = high ? 255 - near : near;
  u[31] = (high ? 127 : 0) | (top ? 128 : 0);
  return u;
});
const order8 = fc.constantFrom(
  fromHex('e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800')!,
  fromHex('5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157')!,
);

parity('X25519 keys and secrets', x25519Backends, () => {
  fc.assert(
    fc.property(
      bytes(32),
      fc.oneof({ weight: 2, arbitrary: bytes(32) }, { weight: 2, arbitrary: odd }, order8),
      (secret, peer) => {
        const [a, b] = both(() => {
          const key = x25519(secret);
          try {
            return { publicKey: key.publicKey, shared: key.shared(peer) };
          } catch (e) {
            return { publicKey: key.publicKey, refused: (e as { code: string }).code };
          }
        });
        expect(a).toEqual(b);
        if (isCanonicalX25519(peer)) expect(a.shared).toHaveLength(32);
      },
    ),
    { numRuns: 120 },
  );
});

describe('authenticated encryption', () => {
  for (const [name, backends] of [
    ['AES-256-GCM', aesGcmBackends],
    ['ChaCha20-Poly1305', chachaPolyBackends],
  ] as const) {
    parity(name, backends, (native, portable) => {
      const aad = fc.option(fc.uint8Array({ maxLength: 70 }), { nil: undefined });
      fc.assert(
        fc.property(bytes(32), bytes(12), message, aad, fc.nat(), (key, nonce, plain, aad, at) => {
          const [a, b] = [native(key), portable(key)];
          const sealed = a.seal(nonce, plain, aad);
          same(sealed, b.seal(nonce, plain, aad));
          same(a.open(nonce, sealed, aad), plain);
          same(b.open(nonce, sealed, aad), plain);
          const cut = sealed.subarray(0, at % sealed.length);
          sealed[at % sealed.length]! ^= 1 << (at % 8);
          expect([a.open(nonce, sealed, aad), b.open(nonce, sealed, aad)]).toEqual([undefined, undefined]);
          if (cut.length >= 16)
            expect([a.open(nonce, cut, aad), b.open(nonce, cut, aad)]).toEqual([undefined, undefined]);
        }),
        { numRuns: 200 },
      );
    });
  }
});

parity('SHA-256', sha256Backends, (native, portable) => {
  fc.assert(
    fc.property(message, (text) => {
      same(native(text), portable(text));
    }),
    { numRuns: 300 },
  );
});

parity('HMAC-SHA256', hmacBackends, (native, portable) => {
  fc.assert(
    fc.property(message, message, message, (key, text, other) => {
      // Nothing of one is left to the next.
      for (const bytes of [text, other]) same(native(key, bytes), portable(key, bytes));
    }),
    { numRuns: 300 },
  );
});
