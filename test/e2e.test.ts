import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { fromBase64url, fromHex, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import { randomBytes, useNative } from '../src/crypto.ts';
import { e2eAccept, e2eOffer, e2eOpen, e2eSeal, e2eSplit, MAX_SEALED, x25519Generate } from '../src/e2e.ts';
import { BadKey, BadName, DecryptError, FrameTooLong } from '../src/errors.ts';

const vectors = JSON.parse(readFileSync(new URL('vectors/technocore-e2e.json', import.meta.url), 'utf8'));
const hex = (text: string): Uint8Array => fromHex(text)!;

/** What `f` throws. */
function thrown(f: () => unknown): any {
  try {
    f();
  } catch (e) {
    return e;
  }
  throw new Error('nothing was thrown');
}

/** Random bytes that are given, by their number. */
const fixed =
  (...bytes: Uint8Array[]): ((n: number) => Uint8Array) =>
  (n) =>
    bytes.find((b) => b.length === n)!;

afterEach(() => useNative(true));

describe.each([
  ['node:crypto', true],
  ['noble', false],
])('on %s', (_, native) => {
  const each = (list: any[]): [string, any][] => list.map((v) => [v.id, v]);

  test.each(each(vectors.offers))('fault 100: %s', (_, v) => {
    useNative(native);
    const random = fixed(hex(v.ephemeral_private_hex), hex(v.nonce_hex));
    const key = hex(v.room_key_hex);
    for (const peer of [v.recipient_static_public, fromBase64url(v.recipient_static_public)!]) {
      expect(e2eOffer(peer, { key, room: v.room, random })).toEqual({ offer: v.line, key, room: v.room });
    }
    expect(e2eAccept(v.line, hex(v.recipient_static_private_hex))).toEqual({ key, room: v.room });
  });

  test.each(each(vectors.bad_offers))('offer refused: %s', (id, v) => {
    useNative(native);
    const error = thrown(() => e2eAccept(v.line, hex(v.recipient_static_private_hex)));
    expect(error).toBeInstanceOf(DecryptError);
    const layers: [RegExp, string][] = [
      [/^(tampered|truncated|wrong-recipient)/, 'tag'],
      [/^low-order/, 'key'],
      [/^(no-room|short-key-inside|bad-room-name|room-)/, 'layout'],
      [/./, 'encoding'],
    ];
    expect(error.layer).toBe(layers.find(([pattern]) => pattern.test(id))![1]);
  });

  test.each(each(vectors.lines))('fault 102: line %s', (_, v) => {
    useNative(native);
    const [piece, count] = v.plaintext_repeat ?? [v.plaintext, 1];
    const text = piece.repeat(count);
    const [key, random] = [hex(v.room_key_hex), fixed(hex(v.nonce_hex))];
    if (!v.fits) {
      const error = thrown(() => e2eSeal(key, text, { random }));
      expect(error).toBeInstanceOf(FrameTooLong);
      expect(error).toMatchObject({ chars: v.line_length, limit: 4096 });
      expect(error.message).toContain('3043 bytes');
      return;
    }
    const line = e2eSeal(key, text, { random });
    expect(line.length).toBe(v.line_length);
    expect(createHash('sha256').update(line).digest('hex')).toBe(v.line_sha256);
    if (v.line !== undefined) expect(line).toBe(v.line);
    expect(e2eOpen(key, line)).toBe(text);
  });

  test.each(each(vectors.bad_lines))('line refused: %s', (id, v) => {
    useNative(native);
    const error = thrown(() => e2eOpen(hex(v.room_key_hex), v.line));
    expect(error).toBeInstanceOf(DecryptError);
    const layers: [RegExp, string][] = [
      [/^(tampered|wrong|with-aad)/, 'tag'],
      [/^not-utf8/, 'layout'],
      [/./, 'encoding'],
    ];
    expect(error.layer).toBe(layers.find(([pattern]) => pattern.test(id))![1]);
  });

  test('fault 99: no small-order or second spelling of a key is sealed to', () => {
    useNative(native);
    const low = vectors.bad_offers.filter((o: any) => o.id.startsWith('low-order'));
    const keys: string[] = low.map((o: any) => o.line.split(' ')[1]);
    expect(keys.length).toBe(7);
    const high = x25519Generate().publicKey;
    high[31]! |= 128;
    for (const peer of [...keys, '', 'AAAA', high, new Uint8Array(31)]) {
      expect(() => e2eOffer(peer)).toThrow(BadKey);
    }
  });
});

describe('offers', () => {
  test('by default a new key and a new private room each time', () => {
    const { privateKey, publicKey } = x25519Generate();
    const [a, b] = [e2eOffer(publicKey), e2eOffer(toBase64url(publicKey))];
    expect(a.room).toMatch(/^p-[0-9a-f]{32}$/);
    expect(a.room).not.toBe(b.room);
    expect(toHex(a.key)).not.toBe(toHex(b.key));
    expect(e2eAccept(a.offer, privateKey)).toEqual({ key: a.key, room: a.room });
    expect(e2eAccept(b.offer, privateKey)).toEqual({ key: b.key, room: b.room });
  });

  test('one room key goes to several members, never twice in the same bytes', () => {
    const members = [x25519Generate(), x25519Generate(), x25519Generate()];
    const first = e2eOffer(members[0]!.publicKey);
    const offers = [first, ...members.slice(1).map((m) => e2eOffer(m.publicKey, first))];
    expect(new Set(offers.flatMap((o) => o.offer.split(' ').slice(1))).size).toBe(9);
    for (const [i, m] of members.entries()) {
      expect(e2eAccept(offers[i]!.offer, m.privateKey)).toEqual({ key: first.key, room: first.room });
    }
  });

  test('the key handed out is no view of the one given', () => {
    const key = randomBytes(32);
    const offered = e2eOffer(x25519Generate().publicKey, { key });
    key.fill(0);
    expect(offered.key.some((byte) => byte !== 0)).toBe(true);
  });

  test('bad input is refused before anything is sealed', () => {
    const { publicKey, privateKey } = x25519Generate();
    expect(() => e2eOffer(publicKey, { room: 'Not A Room' })).toThrow(BadName);
    expect(() => e2eOffer(publicKey, { key: new Uint8Array(31) })).toThrow(BadKey);
    expect(() => e2eOffer(undefined as any)).toThrow(BadKey);
    expect(() => e2eAccept(e2eOffer(publicKey).offer, new Uint8Array(31))).toThrow(BadKey);
    for (const offer of [undefined, null, 7, {}, '', 'e2e1', 'e2e1 ']) {
      expect(() => e2eAccept(offer as any, privateKey)).toThrow(DecryptError);
    }
  });

  test('fault 96: errors name the layer and never the key', () => {
    const { publicKey, privateKey } = x25519Generate();
    const { offer, key, room } = e2eOffer(publicKey);
    const secrets = [key, privateKey].flatMap((k) => [toHex(k), toBase64url(k)]);
    const line = e2eSeal(key, 'text');
    const errors = [
      thrown(() => e2eAccept(offer, randomBytes(32))),
      thrown(() => e2eAccept(`${offer}AAAA`, privateKey)),
      thrown(() => e2eOpen(key, `${line}A`)),
      thrown(() => e2eOpen(randomBytes(32), line)),
    ];
    for (const e of errors) {
      expect(e.code).toBe('decrypt');
      const shown = `${e.stack} ${JSON.stringify(e)} ${e.message}`;
      for (const secret of [...secrets, room]) expect(shown).not.toContain(secret);
    }
  });
});

describe('lines', () => {
  const key = randomBytes(32);

  test('a fresh nonce for every line', () => {
    const lines = Array.from({ length: 500 }, () => e2eSeal(key, 'same'));
    expect(new Set(lines.map((line) => line.slice(0, 16))).size).toBe(500);
  });

  test('a change anywhere is noticed', () => {
    const line = e2eSeal(key, 'some text');
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=~ ';
    for (let i = 0; i < line.length; i++) {
      for (const char of alphabet) {
        if (char === line[i]) continue;
        expect(() => e2eOpen(key, line.slice(0, i) + char + line.slice(i + 1))).toThrow(DecryptError);
      }
    }
    for (let i = 0; i < line.length; i++) expect(() => e2eOpen(key, line.slice(0, i))).toThrow(DecryptError);
  });

  test('what is no text, or no key, is refused', () => {
    expect(thrown(() => e2eSeal(key, 'a\ud800b')).code).toBe('bad_text');
    expect(() => e2eSeal(new Uint8Array(16), 'x')).toThrow(BadKey);
    expect(() => e2eOpen(new Uint8Array(16), e2eSeal(key, 'x'))).toThrow(BadKey);
    for (const line of [undefined, null, 7, {}, '', '.', '..', 'A.A']) {
      expect(() => e2eOpen(key, line as any)).toThrow(DecryptError);
    }
  });

  test('a leading BOM survives', () => {
    expect(e2eOpen(key, e2eSeal(key, '\ufeffx'))).toBe('\ufeffx');
  });
});

describe('e2eSplit', () => {
  test.each([
    ['empty', '', 1],
    ['short', 'hello', 1],
    ['exactly one line', 'x'.repeat(3043), 1],
    ['one over', 'x'.repeat(3044), 2],
    ['three-byte characters', '日'.repeat(1015), 2],
    ['astral', `a${'😀'.repeat(3000)}`, 4],
    ['mixed', 'aé日😀\n'.repeat(2000), 8],
  ])('%s', (_, text, count) => {
    const pieces = e2eSplit(text);
    expect(pieces.join('')).toBe(text);
    expect(pieces.length).toBe(count);
    const key = randomBytes(32);
    for (const piece of pieces) {
      expect(utf8(piece).length).toBeLessThanOrEqual(MAX_SEALED);
      expect(e2eOpen(key, e2eSeal(key, piece))).toBe(piece);
    }
  });
});

// --- an independent implementation ---------------------------------------------------------------------------------

const PYTHON = `
import json, sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
import os
d = lambda s: urlsafe_b64decode(s + "=" * (-len(s) % 4))
e = lambda b: urlsafe_b64encode(b).rstrip(b"=").decode()
raw = lambda k: k.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
kdf = lambda s: HKDF(hashes.SHA256(), 32, None, b"technocore-e2e-v1").derive(s)
job = json.load(sys.stdin)
private = X25519PrivateKey.from_private_bytes(d(job["private"]))
out = {"public": e(raw(private.public_key())), "accepted": [], "opened": [], "offers": [], "lines": []}
for offer in job["offers"]:
    tag, eph, nonce, box = offer.split(" ")
    assert tag == "e2e1"
    plain = AESGCM(kdf(private.exchange(X25519PublicKey.from_public_bytes(d(eph))))).decrypt(d(nonce), d(box), None)
    out["accepted"].append({"key": e(plain[:32]), "room": plain[32:].decode()})
for key, line in job["lines"]:
    nonce, box = line.split(".")
    out["opened"].append(AESGCM(d(key)).decrypt(d(nonce), d(box), None).decode())
for room, text in job["seal"]:
    key, eph, nonce = os.urandom(32), X25519PrivateKey.generate(), os.urandom(12)
    shared = eph.exchange(X25519PublicKey.from_public_bytes(d(job["peer"])))
    box = AESGCM(kdf(shared)).encrypt(nonce, key + room.encode(), None)
    out["offers"].append("e2e1 " + " ".join(map(e, (raw(eph.public_key()), nonce, box))))
    nonce = os.urandom(12)
    out["lines"].append(e(nonce) + "." + e(AESGCM(key).encrypt(nonce, text.encode(), None)))
json.dump(out, sys.stdout)
`;

const hasPython = spawnSync('python3', ['-c', 'import cryptography']).status === 0;

test.skipIf(!hasPython)("both ways with Python's cryptography (skipped where it is not installed)", () => {
  const theirs = x25519Generate();
  const ours = x25519Generate();
  const texts = ['', 'hello', 'line\nline\r\n  ', 'こんにちは 👨‍👩‍👧 \u0000\u200b', 'x'.repeat(MAX_SEALED)];
  const offers = texts.map(() => e2eOffer(theirs.publicKey));
  const job = {
    private: toBase64url(theirs.privateKey),
    peer: toBase64url(ours.publicKey),
    offers: offers.map((o) => o.offer),
    lines: texts.map((text, i) => [toBase64url(offers[i]!.key), e2eSeal(offers[i]!.key, text)]),
    seal: texts.map((text, i) => [`p-room-${i}`, text]),
  };
  const python = spawnSync('python3', ['-c', PYTHON], { input: JSON.stringify(job), encoding: 'utf8' });
  expect(python.stderr).toBe('');
  const out = JSON.parse(python.stdout);
  expect(out.public).toBe(toBase64url(theirs.publicKey));
  expect(out.accepted).toEqual(offers.map(({ key, room }) => ({ key: toBase64url(key), room })));
  expect(out.opened).toEqual(texts);
  for (const [i, text] of texts.entries()) {
    const { key, room } = e2eAccept(out.offers[i], ours.privateKey);
    expect(room).toBe(`p-room-${i}`);
    expect(e2eOpen(key, out.lines[i])).toBe(text);
  }
});
