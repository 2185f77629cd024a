import nodeCrypto from 'node:crypto';
import { readFileSync } from 'node:fs';
import { inspect } from 'node:util';
import { ED25519_TORSION_SUBGROUP, ed25519 as noble } from '@noble/curves/ed25519.js';
import { hkdf } from '@noble/hashes/hkdf.js';
import { sha256 as nobleSha256, sha512 } from '@noble/hashes/sha2.js';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { concat, fromBase64url, fromHex, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import {
  aesGcm,
  chachaPoly,
  chachaPolyBackends,
  ed25519,
  ed25519Verify,
  hkdfSha256,
  hmacSha256,
  isCanonicalX25519,
  randomBytes,
  rememberSignatures,
  sha256,
  useNative,
  verifyBackends,
  x25519,
} from '../src/crypto.ts';
import { BadKey } from '../src/errors.ts';
import { publicKeyFromDid } from '../src/names.ts';

const hex = (text: string): Uint8Array => fromHex(text.replace(/\s/g, ''))!;
const { Point } = noble;
const { Fn } = Point;
const P = 2n ** 255n - 19n;

const littleEndian = (bytes: Uint8Array): bigint => BigInt(`0x${toHex(bytes.slice().reverse())}`);
const bytes32 = (n: bigint): Uint8Array => hex(n.toString(16).padStart(64, '0')).reverse();
const challenge = (R: Uint8Array, A: Uint8Array, message: Uint8Array): bigint =>
  Fn.create(littleEndian(sha512(concat(R, A, message))));

/** The bare equation, with neither of our checks nor any other: OpenSSL 3.0 judges like this. */
function bare(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): boolean {
  const R = signature.subarray(0, 32);
  const A = Point.fromBytes(publicKey, true);
  const SB = Point.BASE.multiplyUnsafe(littleEndian(signature.subarray(32)));
  return toHex(SB.subtract(A.multiplyUnsafe(challenge(R, publicKey, message))).toBytes()) === toHex(R);
}

// Signatures that anybody can make, of keys of small order.
const forgeries: { A: Uint8Array; signature: Uint8Array; message: Uint8Array }[] = [];
{
  // The eight points, and every other spelling of each: the sign bit where x is 0, y + p where it fits.
  const spellings = new Set<string>();
  for (const point of ED25519_TORSION_SUBGROUP) {
    const y = littleEndian(hex(point)) & (2n ** 255n - 1n);
    for (const n of [y, y + P]) {
      if (n < 2n ** 255n) for (const sign of [0n, 1n]) spellings.add(toHex(bytes32(n + (sign << 255n))));
    }
  }
  const Rs = [
    ...ED25519_TORSION_SUBGROUP.map((R) => [hex(R), 0n] as const),
    [Point.BASE.multiply(7n).toBytes(), 7n] as const,
  ];
  for (const A of [...spellings].map(hex)) {
    for (const [R, S] of Rs) {
      for (const message of ['a', 'b', 'c'].map(utf8)) {
        const signature = concat(R, bytes32(S));
        if (bare(A, signature, message)) forgeries.push({ A, signature, message });
      }
    }
  }
}

describe('signatures that are known', () => {
  // What finds the back end verifies, too.
  beforeEach(() => void verifyBackends.native);
  afterEach(() => vi.restoreAllMocks());
  const message = utf8('room|1|said');
  const key = ed25519(new Uint8Array(32).fill(6));
  const other = ed25519(new Uint8Array(32).fill(7));
  const counted = () => vi.spyOn(nodeCrypto, 'verify');

  test('are not checked again: those made here, and those found good', () => {
    const signature = key.sign(message);
    const verifications = counted();
    expect(ed25519Verify(key.publicKey, signature, message)).toBe(true);
    expect(verifications).toHaveBeenCalledTimes(0);
    rememberSignatures(true);
    for (let i = 0; i < 3; i++) expect(ed25519Verify(key.publicKey, signature, message)).toBe(true);
    expect(verifications).toHaveBeenCalledTimes(1);
  });

  test('are those of that key under that message alone, whatever becomes of the bytes', () => {
    const signature = key.sign(message);
    expect(ed25519Verify(other.publicKey, signature, message)).toBe(false);
    for (let i = 0; i < message.length; i++) {
      const spoilt = message.slice();
      spoilt[i]! ^= 1;
      expect(ed25519Verify(key.publicKey, signature, spoilt)).toBe(false);
    }
    expect(ed25519Verify(key.publicKey, signature, message.subarray(1))).toBe(false);
    for (let i = 0; i < 64; i++) {
      const spoilt = signature.slice();
      spoilt[i]! ^= 1;
      expect(ed25519Verify(key.publicKey, spoilt, message)).toBe(false);
    }
    const reused = message.slice();
    const signed = key.sign(reused);
    reused.fill(0);
    expect(ed25519Verify(key.publicKey, signed, reused)).toBe(false);
    expect(ed25519Verify(key.publicKey, signed, message)).toBe(true);
  });

  test('are not those found bad, nor those of long messages', () => {
    const long = new Uint8Array(3000);
    const signature = key.sign(long);
    const verifications = counted();
    for (let i = 0; i < 2; i++) expect(ed25519Verify(key.publicKey, signature, long)).toBe(true);
    for (let i = 0; i < 2; i++) expect(ed25519Verify(key.publicKey, signature, message)).toBe(false);
    expect(verifications).toHaveBeenCalledTimes(4);
  });
});

describe.each([
  ['native', true],
  ['portable', false],
])('%s', (_, on) => {
  beforeEach(() => {
    useNative(on);
    rememberSignatures(false);
  });
  afterEach(() => {
    useNative(true);
    rememberSignatures(true);
  });

  test('Ed25519: RFC 8032, section 7.1', () => {
    for (const [seed, publicKey, message, signature] of [
      [
        '9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60',
        'd75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a',
        '',
        'e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b',
      ],
      [
        '4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb',
        '3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c',
        '72',
        '92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00',
      ],
      [
        'c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7',
        'fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025',
        'af82',
        '6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a',
      ],
    ] as const) {
      const key = ed25519(hex(seed));
      expect(toHex(key.publicKey)).toBe(publicKey);
      expect(toHex(key.sign(hex(message)))).toBe(signature);
      expect(ed25519Verify(hex(publicKey), hex(signature), hex(message))).toBe(true);
      expect(ed25519Verify(hex(publicKey), hex(signature), hex(`${message}00`))).toBe(false);
    }
  });

  test('Ed25519: any flipped bit spoils a signature', () => {
    const key = ed25519(new Uint8Array(32).fill(5));
    const message = utf8('m');
    const signature = key.sign(message);
    for (let bit = 0; bit < 512; bit += 37) {
      const flipped = signature.slice();
      flipped[bit >> 3]! ^= 1 << (bit & 7);
      expect(ed25519Verify(key.publicKey, flipped, message)).toBe(false);
    }
  });

  test('Ed25519: wrong lengths are false, wrong seeds BadKey', () => {
    const key = ed25519(new Uint8Array(32));
    const message = new Uint8Array(3);
    const signature = key.sign(message);
    expect(ed25519Verify(key.publicKey.subarray(1), signature, message)).toBe(false);
    expect(ed25519Verify(concat(key.publicKey, message), signature, message)).toBe(false);
    expect(ed25519Verify(key.publicKey, signature.subarray(1), message)).toBe(false);
    expect(ed25519Verify(key.publicKey, concat(signature, message), message)).toBe(false);
    for (const seed of [new Uint8Array(31), new Uint8Array(33), 'x'.repeat(32), undefined]) {
      expect(() => ed25519(seed as Uint8Array)).toThrow(BadKey);
    }
  });

  test('fault 12: keys of small order verify nothing, though the equation holds', () => {
    expect(forgeries.length).toBeGreaterThan(30);
    for (const { A, signature, message } of forgeries)
      expect(ed25519Verify(A, signature, message), toHex(A)).toBe(false);
  });

  test('R of small order is refused, though the equation holds', () => {
    const seed = new Uint8Array(32).fill(9);
    const { scalar, pointBytes } = noble.utils.getExtendedPublicKey(seed);
    const R = Point.ZERO.toBytes();
    const message = utf8('m');
    const signature = concat(R, Fn.toBytes(Fn.create(challenge(R, pointBytes, message) * scalar)));
    expect(bare(pointBytes, signature, message)).toBe(true);
    expect(noble.verify(signature, message, pointBytes, { zip215: false })).toBe(true);
    expect(ed25519Verify(pointBytes, signature, message)).toBe(false);
  });

  test('the equation is taken without the cofactor', () => {
    const { scalar, pointBytes } = noble.utils.getExtendedPublicKey(new Uint8Array(32).fill(9));
    const T = Point.fromHex(ED25519_TORSION_SUBGROUP[7]!);
    const message = utf8('m');
    const R = Point.BASE.multiply(77n).add(T).toBytes();
    const signature = concat(R, Fn.toBytes(Fn.create(77n + challenge(R, pointBytes, message) * scalar)));
    expect(noble.verify(signature, message, pointBytes, { zip215: false })).toBe(true);
    expect(ed25519Verify(pointBytes, signature, message)).toBe(false);
  });

  test('R is compared whole, its sign included', () => {
    const { scalar, pointBytes } = noble.utils.getExtendedPublicKey(new Uint8Array(32).fill(9));
    const message = utf8('m');
    const point = Point.BASE.multiply(77n);
    for (const [R, good] of [
      [point.toBytes(), true],
      [point.negate().toBytes(), false],
    ] as const) {
      const signature = concat(R, Fn.toBytes(Fn.create(77n + challenge(R, pointBytes, message) * scalar)));
      expect(ed25519Verify(pointBytes, signature, message)).toBe(good);
    }
  });

  test('S is below L', () => {
    const key = ed25519(new Uint8Array(32).fill(3));
    const signature = key.sign(utf8('m'));
    const S = littleEndian(signature.subarray(32));
    for (const n of [S + Fn.ORDER, S + 2n * Fn.ORDER, S + 15n * Fn.ORDER].filter((n) => n < 2n ** 256n)) {
      expect(ed25519Verify(key.publicKey, concat(signature.subarray(0, 32), bytes32(n)), utf8('m'))).toBe(false);
    }
  });

  test('the recorded signatures, on the bytes alone', () => {
    const { cases } = JSON.parse(readFileSync(new URL('vectors/technocore-verify.json', import.meta.url), 'utf8'));
    let seen = 0;
    for (const c of cases.filter((c: any) => c.backends !== undefined)) {
      const publicKey = publicKeyFromDid(c.did.trim());
      const signature = fromBase64url(c.sig.replace(/=+$/, ''));
      if (publicKey === undefined || signature === undefined) continue;
      seen++;
      expect(ed25519Verify(publicKey, signature, utf8(c.canonical)), c.id).toBe(c.backends.libsodium);
    }
    expect(seen).toBeGreaterThan(20);
  });

  test('X25519: RFC 7748, sections 5.2 and 6.1', () => {
    for (const [scalar, u, shared] of [
      [
        'a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4',
        'e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c',
        'c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552',
      ],
      [
        '4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d',
        'e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493',
        '95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957',
      ],
    ] as const) {
      expect(toHex(x25519(hex(scalar)).shared(hex(u)))).toBe(shared);
    }
    const alice = x25519(hex('77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a'));
    const bob = x25519(hex('5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb'));
    expect(toHex(alice.publicKey)).toBe('8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a');
    expect(toHex(bob.publicKey)).toBe('de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f');
    for (const shared of [alice.shared(bob.publicKey), bob.shared(alice.publicKey)]) {
      expect(toHex(shared)).toBe('4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742');
    }
  });

  test('X25519: keys of small order give no secret', () => {
    const key = x25519(new Uint8Array(32).fill(7));
    for (const u of SMALL_U) {
      expect(() => key.shared(u), toHex(u)).toThrow(BadKey);
      expect(() => key.shared(u)).toThrow('small order');
    }
    for (const peer of [new Uint8Array(31), new Uint8Array(33), undefined]) {
      expect(() => key.shared(peer as Uint8Array)).toThrow(BadKey);
      expect(() => x25519(peer as Uint8Array)).toThrow(BadKey);
    }
  });

  test('AES-256-GCM: case 16 of the original proposal', () => {
    const aead = aesGcm(hex('feffe9928665731c6d6a8f9467308308'.repeat(2)));
    const plain = hex(`d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
      1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39`);
    const sealed = hex(`522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
      8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b`);
    const aad = hex('feedfacedeadbeeffeedfacedeadbeefabaddad2');
    expect(aead.seal(hex('cafebabefacedbaddecaf888'), plain, aad)).toEqual(sealed);
    expect(aead.open(hex('cafebabefacedbaddecaf888'), sealed, aad)).toEqual(plain);
  });

  test('ChaCha20-Poly1305: RFC 8439, section 2.8.2', () => {
    const aead = chachaPoly(Uint8Array.from({ length: 32 }, (_, i) => 0x80 + i));
    const plain = utf8(
      "Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would be it.",
    );
    const sealed = hex(`d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b
      1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9d
      e576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691`);
    const aad = hex('50515253c0c1c2c3c4c5c6c7');
    expect(aead.seal(hex('070000004041424344454647'), plain, aad)).toEqual(sealed);
    expect(aead.open(hex('070000004041424344454647'), sealed, aad)).toEqual(plain);
  });

  describe.each([
    ['aesGcm', aesGcm],
    ['chachaPoly', chachaPoly],
  ])('%s', (_, cipher) => {
    const key = new Uint8Array(32).fill(1);
    const nonce = new Uint8Array(12).fill(2);

    test('opens what it sealed, and nothing else', () => {
      const aead = cipher(key);
      const plain = utf8('attack at dawn');
      const sealed = aead.seal(nonce, plain, utf8('aad'));
      expect(sealed).toHaveLength(plain.length + 16);
      expect(aead.open(nonce, sealed, utf8('aad'))).toEqual(plain);
      expect(aead.open(nonce, sealed)).toBeUndefined();
      expect(aead.open(nonce, sealed, utf8('aae'))).toBeUndefined();
      expect(aead.open(new Uint8Array(12), sealed, utf8('aad'))).toBeUndefined();
      expect(cipher(new Uint8Array(32)).open(nonce, sealed, utf8('aad'))).toBeUndefined();
      for (let i = 0; i < sealed.length; i++) {
        const spoilt = sealed.slice();
        spoilt[i]! ^= 1 << (i % 8);
        expect(aead.open(nonce, spoilt, utf8('aad'))).toBeUndefined();
      }
      for (let length = 0; length < sealed.length; length++) {
        expect(aead.open(nonce, sealed.subarray(0, length), utf8('aad'))).toBeUndefined();
      }
      expect(aead.open(nonce, concat(sealed, new Uint8Array(1)), utf8('aad'))).toBeUndefined();
    });

    test('empty texts and absent associated data', () => {
      const aead = cipher(key);
      const sealed = aead.seal(nonce, new Uint8Array(0));
      expect(sealed).toHaveLength(16);
      expect(aead.open(nonce, sealed)).toEqual(new Uint8Array(0));
      expect(aead.open(nonce, sealed, new Uint8Array(0))).toEqual(new Uint8Array(0));
    });

    test('wrong lengths', () => {
      const aead = cipher(key);
      for (const length of [0, 11, 13, 16]) {
        expect(() => aead.seal(new Uint8Array(length), nonce)).toThrow(BadKey);
        expect(aead.open(new Uint8Array(length), new Uint8Array(40))).toBeUndefined();
      }
      for (const length of [0, 16, 31, 33]) expect(() => cipher(new Uint8Array(length))).toThrow(BadKey);
    });

    test('inputs are neither kept nor touched', () => {
      const mine = key.slice();
      const aead = cipher(mine);
      const plain = utf8('text');
      const sealed = aead.seal(nonce, plain, key);
      mine.fill(0);
      expect(aead.open(nonce, sealed, key)).toEqual(plain);
      expect(plain).toEqual(utf8('text'));
      expect(nonce).toEqual(new Uint8Array(12).fill(2));
      sealed[0]! ^= 1;
      expect(aead.seal(nonce, plain, key)).not.toEqual(sealed);
    });
  });

  test('keys are neither kept nor given away', () => {
    const seed = new Uint8Array(32).fill(11);
    const signer = ed25519(seed);
    const before = signer.sign(seed);
    const exchange = x25519(seed);
    const shared = exchange.shared(x25519(new Uint8Array(32)).publicKey);
    seed.fill(0);
    // Signing with a public key that was tampered with would give the private key away.
    const publicKey = signer.publicKey.slice();
    signer.publicKey.fill(1);
    exchange.publicKey.fill(1);
    expect(signer.sign(new Uint8Array(32).fill(11))).toEqual(before);
    expect(ed25519Verify(publicKey, before, new Uint8Array(32).fill(11))).toBe(true);
    expect(exchange.shared(x25519(new Uint8Array(32)).publicKey)).toEqual(shared);
  });

  test('no key is shown', () => {
    const secret = hex('5ec2e700'.repeat(8));
    for (const key of [ed25519(secret), x25519(secret), aesGcm(secret), chachaPoly(secret)]) {
      const shown = `${inspect(key, { depth: 9, showHidden: true })}${JSON.stringify(key)}${String(key)}`.toLowerCase();
      for (const form of ['5ec2e700', toBase64url(secret).toLowerCase().slice(0, 20), '94, 194, 231']) {
        expect(shown).not.toContain(form);
      }
    }
  });

  test('results are plain bytes of their own', () => {
    const key = new Uint8Array(32).fill(1);
    const nonce = new Uint8Array(12);
    const peer = x25519(key).publicKey;
    const results = [
      ed25519(key).publicKey,
      ed25519(key).sign(key),
      peer,
      x25519(key).shared(peer),
      aesGcm(key).open(nonce, aesGcm(key).seal(nonce, key))!,
      chachaPoly(key).open(nonce, chachaPoly(key).seal(nonce, key))!,
      sha256(key),
      hmacSha256(key, key),
      hkdfSha256(key, key, key, 40),
      randomBytes(32),
    ];
    for (const result of results) {
      expect(Object.getPrototypeOf(result)).toBe(Uint8Array.prototype);
      expect(result.buffer.byteLength).toBe(result.length);
    }
  });

  test('ciphertexts are plain bytes that stay as they are, whoever takes their buffer', () => {
    const key = new Uint8Array(32).fill(1);
    const nonce = new Uint8Array(12);
    for (const aead of [aesGcm(key), chachaPoly(key)]) {
      const plains = Array.from({ length: 300 }, (_, i) => new Uint8Array(i * 9).fill(i));
      const sealed = plains.map((plain) => aead.seal(nonce, plain));
      for (const [i, one] of sealed.entries()) {
        expect(Object.getPrototypeOf(one)).toBe(Uint8Array.prototype);
        expect(aead.open(nonce, one)).toEqual(plains[i]);
      }
      const { buffer } = aead.seal(nonce, key);
      structuredClone(buffer, { transfer: [buffer] });
      expect(aead.open(nonce, aead.seal(nonce, key))).toEqual(key);
    }
  });

  test('SHA-256, HMAC (RFC 4231) and HKDF (RFC 5869)', () => {
    expect(toHex(sha256(utf8('abc')))).toBe('ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad');
    expect(toHex(hmacSha256(new Uint8Array(20).fill(0x0b), utf8('Hi There')))).toBe(
      'b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7',
    );
    const long = utf8('Test Using Larger Than Block-Size Key - Hash Key First');
    expect(toHex(hmacSha256(new Uint8Array(131).fill(0xaa), long))).toBe(
      '60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54',
    );
    const ikm = new Uint8Array(22).fill(0x0b);
    expect(toHex(hkdfSha256(ikm, hex('000102030405060708090a0b0c'), hex('f0f1f2f3f4f5f6f7f8f9'), 42))).toBe(
      '3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865',
    );
    const none = new Uint8Array(0);
    expect(toHex(hkdfSha256(ikm, none, none, 42))).toBe(
      '8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8',
    );
    for (const length of [0, 1, 31, 32, 33, 64, 8160]) {
      expect(hkdfSha256(ikm, long, none, length)).toEqual(hkdf(nobleSha256, ikm, long, none, length));
    }
    for (const length of [8161, -1, Number.NaN]) expect(() => hkdfSha256(ikm, none, none, length)).toThrow(BadKey);
  });
});

// What X25519 maps to zero: 0, 1, -1 and the points of order 8, in every spelling of 256 bits.
const ORDER_8 = [
  'e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800',
  '5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157',
].map((text) => littleEndian(hex(text)));
const SMALL_U = [0n, 1n, P - 1n, P, P + 1n, ...ORDER_8].flatMap((u) => [bytes32(u), bytes32(u + 2n ** 255n)]);

test('isCanonicalX25519 takes each key in one spelling', () => {
  for (const u of SMALL_U) expect(isCanonicalX25519(u), toHex(u)).toBe(false);
  for (let n = 2n; n < 19n; n++) {
    expect(isCanonicalX25519(bytes32(n))).toBe(true);
    expect(isCanonicalX25519(bytes32(P - n))).toBe(true);
    expect(isCanonicalX25519(bytes32(P + n))).toBe(false);
    expect(isCanonicalX25519(bytes32(n + 2n ** 255n))).toBe(false);
  }
  const { publicKey } = x25519(new Uint8Array(32));
  expect(isCanonicalX25519(publicKey)).toBe(true);
  expect(isCanonicalX25519(publicKey.subarray(1))).toBe(false);
  expect(isCanonicalX25519(concat(publicKey, publicKey))).toBe(false);
  publicKey[31]! |= 128;
  expect(isCanonicalX25519(publicKey)).toBe(false);
});

test('randomBytes gives as many as asked, beyond one call of the platform too', () => {
  expect(randomBytes(0)).toEqual(new Uint8Array(0));
  expect(randomBytes(32)).not.toEqual(randomBytes(32));
  const many = randomBytes(200_000);
  for (const at of [0, 65_500, 131_000, 199_936]) expect(new Set(many.subarray(at, at + 64)).size).toBeGreaterThan(32);
});

describe('which back end', () => {
  const real = process.getBuiltinModule;
  const names = ['ed25519', 'verify', 'x25519', 'aesGcm', 'chachaPoly', 'sha256', 'hmac'] as const;
  type Fresh = typeof import('../src/crypto.ts');

  afterEach(() => {
    vi.restoreAllMocks();
    vi.unstubAllGlobals();
  });

  /** The module as another program would load it, and the module `node:crypto` with other members. */
  async function fresh(members?: Partial<typeof nodeCrypto>): Promise<Fresh> {
    vi.resetModules();
    if (members !== undefined) {
      vi.spyOn(process, 'getBuiltinModule').mockImplementation(((id: string) =>
        id === 'node:crypto' ? { ...nodeCrypto, ...members } : real(id)) as any);
    }
    return import('../src/crypto.ts');
  }
  const natives = (crypto: Fresh): string[] =>
    names.filter((name) => (crypto[`${name}Backends`] as { native: unknown }).native !== undefined);
  const refuse = (): never => {
    throw new Error('not in this runtime');
  };

  test('this Node offers all of them', async () => {
    expect(natives(await fresh({}))).toEqual([...names]);
  });

  test('nothing is looked for before the first use, and then once', async () => {
    const crypto = await fresh({});
    expect(process.getBuiltinModule).not.toHaveBeenCalled();
    for (let i = 0; i < 3; i++) crypto.sha256(new Uint8Array(1));
    expect(process.getBuiltinModule).toHaveBeenCalledTimes(1);
  });

  test('without process everything is noble', async () => {
    const crypto = await fresh();
    vi.stubGlobal('process', undefined);
    const found = natives(crypto);
    const digest = crypto.sha256(utf8('abc'));
    const key = crypto.ed25519(new Uint8Array(32));
    const good = crypto.ed25519Verify(key.publicKey, key.sign(digest), digest);
    vi.unstubAllGlobals();
    expect(found).toEqual([]);
    expect(toHex(digest)).toMatch(/^ba7816bf/);
    expect(good).toBe(true);
  });

  test('a primitive that the runtime does not have is portable, the others stay native', async () => {
    const noChaCha =
      (make: any) =>
      (name: string, ...rest: unknown[]) =>
        name.startsWith('chacha') ? refuse() : make(name, ...rest);
    const crypto = await fresh({
      createCipheriv: noChaCha(nodeCrypto.createCipheriv),
      hash: refuse,
      diffieHellman: refuse,
    });
    // HMAC is made of the hash.
    expect(natives(crypto)).toEqual(['ed25519', 'verify', 'aesGcm']);
    const aead = crypto.chachaPoly(new Uint8Array(32));
    const nonce = new Uint8Array(12);
    const box = chachaPolyBackends.portable(new Uint8Array(32)).seal(nonce, nonce);
    expect(aead.open(nonce, box)).toEqual(nonce);
  });

  test('a primitive that answers wrongly is portable', async () => {
    const zeros = (length: number) => () => Buffer.alloc(length);
    const crypto = await fresh({
      hash: zeros(32) as any,
      sign: zeros(64) as any,
      diffieHellman: zeros(32) as any,
      verify: (() => true) as any,
    });
    expect(natives(crypto)).toEqual(['aesGcm', 'chachaPoly']);
    expect(toHex(crypto.sha256(utf8('abc')))).toMatch(/^ba7816bf/);
  });

  test('a runtime that computes a secret of zeros', async () => {
    const diffieHellman = ((keys: any) => {
      try {
        return nodeCrypto.diffieHellman(keys);
      } catch {
        return Buffer.alloc(32);
      }
    }) as any;
    const crypto = await fresh({ diffieHellman });
    expect(natives(crypto)).toContain('x25519');
    const key = crypto.x25519(new Uint8Array(32));
    for (const u of SMALL_U) expect(() => key.shared(u)).toThrow('small order');
  });

  test('private keys where a JWK must hold its own public half (Node 26)', async () => {
    const createPrivateKey = ((from: any) =>
      from.format === 'jwk' && from.key.x === '' ? refuse() : nodeCrypto.createPrivateKey(from)) as any;
    const crypto = await fresh({ createPrivateKey });
    expect(natives(crypto)).toEqual([...names]);
    const seed = new Uint8Array(32).fill(8);
    expect(crypto.ed25519(seed).publicKey).toEqual(ed25519(seed).publicKey);
    expect(crypto.x25519(seed).publicKey).toEqual(x25519(seed).publicKey);
  });
});
