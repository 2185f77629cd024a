import { readFileSync } from 'node:fs';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { concat, fromHex, toBase58, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import { ed25519, sha256, useNative } from '../src/crypto.ts';
import { BadKey, BadName } from '../src/errors.ts';
import { codePoints, MAX_NOTE, MAX_TEXT, sweep } from '../src/frames.ts';
import {
  checkName,
  didFromPublicKey,
  fingerprint,
  identityNote,
  isDid,
  isName,
  legacyIdentityNote,
  publicKeyFromDid,
  roomClasses,
  verify,
} from '../src/names.ts';

const load = (name: string): any => JSON.parse(readFileSync(new URL(`vectors/${name}`, import.meta.url), 'utf8'));
const signing = load('technocore-signing.json');
const recorded = load('technocore-verify.json');

/** A long text stands as runs of pieces. */
const text = (plain: string | undefined, runs: [string, number][] | undefined): string =>
  plain ?? runs!.map(([piece, count]) => piece.repeat(count)).join('');

describe('names', () => {
  test('the grammar', () => {
    for (const name of ['a', '0', 'a-', 'a_', 'mb-p-0a1b', '0--__', 'x'.repeat(48)]) {
      expect(isName(name)).toBe(true);
      expect(checkName(name, 'room')).toBe(name);
    }
    const bad = [
      '',
      '-a',
      '_a',
      'A',
      'aB',
      'a b',
      'a.b',
      'a/b',
      'a\n',
      '\na',
      'é',
      'a\u0000',
      'x'.repeat(49),
      '٣',
      'K',
    ];
    for (const name of [...bad, undefined, null, 7, ['a'], { toString: () => 'a' }]) {
      expect(isName(name)).toBe(false);
      expect(() => checkName(name, 'nick')).toThrow(BadName);
    }
    expect(() => checkName('Bad', 'nick')).toThrow(
      'a nick is 1 to 48 characters of a-z 0-9 _ - and begins with a letter or digit: "Bad"',
    );
  });

  test.each([
    ['mb-p-x', 'mb p'],
    ['p-mb-d-e-x', 'p mb d e'],
    ['mb-', 'mb'],
    ['mb', ''],
    ['x-mb-y', ''],
    ['pastel', ''],
    ['p-x-mb-y', 'p'],
    ['e-commerce', 'e'],
    ['d-p', 'd'],
    ['p--mb-x', 'p'],
    ['p-p-p-x', 'p'],
    ['constructor-x', ''],
    ['__proto__-x', ''],
    ['hasOwnProperty-x', ''],
  ])('the classes of %s: %s', (room, expected) => {
    const { p, mb, d, e } = roomClasses(room);
    expect({ p, mb, d, e }).toEqual({
      p: expected.split(' ').includes('p'),
      mb: expected.split(' ').includes('mb'),
      d: expected.split(' ').includes('d'),
      e: expected.split(' ').includes('e'),
    });
  });
});

describe('did:key', () => {
  const key = Uint8Array.from({ length: 32 }, (_, i) => i * 8);
  const did = didFromPublicKey(key);

  test('there and back, 56 characters whatever the key', () => {
    for (const fill of [0, 1, 127, 255]) {
      const bytes = new Uint8Array(32).fill(fill);
      const text = didFromPublicKey(bytes);
      expect(text).toMatch(/^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$/);
      expect(publicKeyFromDid(text)).toEqual(bytes);
      expect(isDid(text)).toBe(true);
    }
    for (const length of [0, 31, 33, 44]) expect(() => didFromPublicKey(new Uint8Array(length))).toThrow(BadKey);
  });

  test('fault 18: a whole SPKI is no key', () => {
    const spki = concat(fromHex('302a300506032b6570032100')!, key);
    expect(publicKeyFromDid(`did:key:z${toBase58(concat(Uint8Array.of(0xed, 1), spki))}`)).toBeUndefined();
  });

  test('every other text is refused', () => {
    const tail = did.slice(12);
    for (const bad of [
      '',
      tail,
      did.slice(8),
      `${did} `,
      ` ${did}`,
      `${did}\n`,
      `${did}#${did.slice(8)}`,
      did.slice(0, -1),
      `${did}1`,
      did.replace('did:', 'DID:'),
      did.replace('key', 'KEY'),
      did.replace('z6Mk', 'Z6Mk'),
      did.replace('z6Mk', 'z6Ml'),
      did.replace('did:key', 'did:web'),
      `did:key:z6Mk${'0'.repeat(44)}`,
      `did:key:z6Mk${'é'.repeat(44)}`,
      `did:key:z6Mk${'1'.repeat(43)}\ud800`,
      `did:key:z${toBase58(concat(Uint8Array.of(0xec, 1), key))}`,
      `did:key:z${toBase58(concat(Uint8Array.of(0xed, 1), key.subarray(1)))}`,
      did.replace('z6Mk', 'z16M'),
    ]) {
      expect(publicKeyFromDid(bad), bad).toBeUndefined();
      expect(isDid(bad)).toBe(false);
      expect(() => fingerprint(bad)).toThrow(BadName);
      expect(() => identityNote(bad)).toThrow(BadName);
      expect(() => legacyIdentityNote(bad)).toThrow(BadName);
    }
    for (const bad of [undefined, null, 5, [did], { length: 56, startsWith: () => true }] as any[]) {
      expect(isDid(bad)).toBe(false);
      expect(() => fingerprint(bad)).toThrow(BadName);
    }
  });

  test('no text but one gives a key', () => {
    // Texts of the right form, over the whole range that 44 characters of base58 have.
    let refused = 0;
    for (const tail of ['1'.repeat(44), 'z'.repeat(44), `${'1'.repeat(43)}z`, `z${'1'.repeat(43)}`, did.slice(12)]) {
      const bytes = publicKeyFromDid(`did:key:z6Mk${tail}`);
      if (bytes === undefined) refused++;
      else expect(didFromPublicKey(bytes)).toBe(`did:key:z6Mk${tail}`);
    }
    expect(refused).toBeLessThan(5);
  });
});

describe.each([
  ['native', true],
  ['portable', false],
])('%s', (_, on) => {
  beforeEach(() => useNative(on));
  afterEach(() => useNative(true));

  test.each(signing.cases as any[])('recorded signature $id', (c) => {
    const key = ed25519(fromHex(c.seed_hex)!);
    expect(toHex(key.publicKey)).toBe(c.public_key_hex);
    expect(didFromPublicKey(key.publicKey)).toBe(c.did);
    expect(publicKeyFromDid(c.did)).toEqual(key.publicKey);
    const { ns, key: name } = identityNote(c.did);
    expect(`/kv/${ns}/${name}`).toBe(c.note_path);
    expect(legacyIdentityNote(c.did)).toEqual({ ns: 'did', key: fingerprint(c.did) });
    expect(ns.slice(4) + name).toBe(fingerprint(c.did));
    if (c.passphrase !== undefined) {
      const seed = /^[0-9a-f]{64}$/i.test(c.passphrase) ? fromHex(c.passphrase)! : sha256(utf8(c.passphrase));
      expect(toHex(seed)).toBe(c.seed_hex);
    }

    const raw = text(c.raw_text, c.raw_text_runs);
    const limit = c.kind === 'note' ? MAX_NOTE : MAX_TEXT;
    if (c.refused !== undefined) {
      const code = c.refused === 'empty' ? 'empty_text' : 'frame_too_long';
      expect(() => sweep(raw, limit)).toThrow(expect.objectContaining({ code }));
      return;
    }
    const swept = sweep(raw, limit);
    expect(swept).toBe(text(c.swept_text, c.swept_text_runs));
    expect(codePoints(swept)).toBe(c.swept_code_points);
    expect(swept).toHaveLength(c.swept_utf16_units);
    expect(utf8(swept)).toHaveLength(c.swept_utf8_bytes);
    const where = c.kind === 'note' ? `${c.ns}|${c.key}` : c.room;
    const canonical = `${where}|${c.nonce}|${swept}`;
    expect(canonical).toBe(c.canonical ?? canonical);
    expect(toHex(sha256(utf8(canonical)))).toBe(c.canonical_sha256);
    expect(toBase64url(key.sign(utf8(canonical)))).toBe(c.signature);
    expect(verify(c.did, c.signature, canonical)).toBe(true);
    expect(verify(c.did, c.signature, `${canonical} `)).toBe(false);
  });

  test.each(recorded.cases as any[])('recorded verdict $id: $note', (c) => {
    expect(verify(c.did, c.sig, c.canonical)).toBe(c.accepted_by_newer);
  });
});

test('all recorded cases are here', () => {
  expect(signing.cases).toHaveLength(59);
  expect(recorded.cases).toHaveLength(46);
});

describe('verify', () => {
  const key = ed25519(new Uint8Array(32).fill(1));
  const did = didFromPublicKey(key.publicKey);
  const sign = (canonical: string): string => toBase64url(key.sign(utf8(canonical)));

  test('fault 11: the last character has one spelling of four', () => {
    const canonical = 'lobby|1|hi';
    const sig = sign(canonical);
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    expect('AQgw').toContain(sig[85]);
    const good = [...alphabet].filter((last) => verify(did, sig.slice(0, 85) + last, canonical));
    expect(good).toEqual([sig[85]]);
  });

  test('a message needs a nonce of 1 to 19 digits, whatever else is in the text', () => {
    for (const [canonical, good] of [
      ['lobby|0|x', true],
      ['lobby|9999999999999999999|x', true],
      ['lobby|007|x', true],
      ['lobby|10000000000000000000|x', false],
      ['lobby|1.0|x', false],
      ['lobby|+1|x', false],
      ['lobby|1 |x', false],
      ['lobby|1_0|x', false],
      ['lobby|१|x', false],
      ['lobby|-1|x\n|5|', false],
      ['lobby|5|x|1.0|y', true],
      ['room-owners|d-x|5|v', true],
      ['e2e|did:key:z|x25519|mb-p-x|7', true],
      ['any text at all', true],
      ['', true],
      ['a|b', true],
      ['|', true],
    ] as const) {
      expect(verify(did, sign(canonical), canonical), canonical).toBe(good);
    }
  });

  test('a lone surrogate is not the U+FFFD that it would be sent as', () => {
    expect(verify(did, sign('lobby|1|a\ufffdb'), 'lobby|1|a\ufffdb')).toBe(true);
    expect(verify(did, sign('lobby|1|a\ufffdb'), 'lobby|1|a\ud800b')).toBe(false);
    expect(verify(did, sign('lobby|1|😀'), 'lobby|1|😀')).toBe(true);
  });

  test('never throws', () => {
    const sig = sign('x');
    expect(verify(did, sig, 'x')).toBe(true);
    const hostile = {
      length: 86,
      toString() {
        throw new Error('called');
      },
    };
    const values: any[] = [
      undefined,
      null,
      0,
      86,
      '',
      'x',
      did,
      sig,
      {},
      [],
      hostile,
      Symbol('s'),
      1n,
      new String(sig),
      utf8('x'),
    ];
    let good = 0;
    for (const a of values) for (const b of values) for (const c of values) if (verify(a, b, c)) good++;
    expect(good).toBe(1);
    // Base58 takes quadratic time: the length comes first.
    expect(verify(did + 'z'.repeat(1_000_000), sig, 'x')).toBe(false);
    expect(verify(did, '\ud800'.repeat(86), 'x')).toBe(false);
    expect(verify(did, sig, `${'1'.repeat(1_000_000)}|${' '.repeat(1_000_000)}`)).toBe(false);
  });
});
