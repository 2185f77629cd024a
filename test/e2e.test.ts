import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterEach, describe, expect, test } from 'vitest';
import { fromBase64url, fromHex, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import { randomBytes, useNative } from '../src/crypto.ts';
import {
  e2eAccept,
  e2eFollow,
  e2eOffer,
  e2eOfferTo,
  e2eOpen,
  e2eRead,
  e2eSeal,
  e2eSend,
  e2eSplit,
  MAX_SEALED,
  x25519Generate,
} from '../src/e2e.ts';
import { BadKey, BadName, DecryptError, Forbidden, FrameTooLong, MayHaveLanded, RingGap } from '../src/errors.ts';
import type { Event } from '../src/http.ts';
import { identityKeys, publishIdentity } from '../src/identity.ts';
import { createLocalService, type LocalService } from '../src/local.ts';
import { identityNote } from '../src/names.ts';
import { setNote } from '../src/notes.ts';
import { read, say } from '../src/rooms.ts';
import { Signer } from '../src/signer.ts';
import { FREE, PROFILES } from './support.ts';

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

  test('lines do not disturb each other', () => {
    const random = (n: number): Uint8Array => {
      expect(e2eOpen(key, e2eSeal(key, 'inner text, longer than the outer'))).toMatch(/^inner/);
      return randomBytes(n);
    };
    expect(e2eOpen(key, e2eSeal(key, 'outer', { random }))).toBe('outer');
    const lines = ['first, and long', 'second'].map((text) => e2eSeal(key, text));
    expect(lines.map((line) => e2eOpen(key, line))).toEqual(['first, and long', 'second']);
    // Longer than any line of a room: refused by its tag, not for its length.
    const long = `${'A'.repeat(16)}.${'A'.repeat(40_000)}`;
    expect(thrown(() => e2eOpen(key, long)).layer).toBe('tag');
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

// --- rooms ---------------------------------------------------------------------------------------------------------

type Fetch = typeof globalThis.fetch;

function agentOf(service: LocalService, fetch: Fetch = service.fetch) {
  const events: Event[] = [];
  const own = ((...args: Parameters<Fetch>) => fetch(...args)) as Fetch;
  return { base: 'http://local.test', fetch: own, events, onEvent: (e: Event) => void events.push(e) };
}

describe.each(PROFILES)('rooms of a %s service', (profile) => {
  const [room, key] = ['p-room', randomBytes(32)];

  test('what is sent is read, with its writer', async () => {
    const o = agentOf(createLocalService({ profile, limits: FREE }));
    const signer = Signer.generate();
    const text = '  line\nline\u200b  ';
    expect(await e2eSend(room, key, text, { ...o, signer })).toEqual({ seq: 1 });
    expect(await e2eSend(room, key, 'by nick', { ...o, nick: 'bob' })).toEqual({ seq: 2 });
    expect(await e2eSend(room, key, '', o)).toEqual({ seq: 3 });
    expect(await e2eRead(room, key, o)).toEqual({
      last: 3,
      messages: [
        { seq: 1, from: signer.did, text },
        { seq: 2, from: 'bob', text: 'by nick' },
        { seq: 3, from: 'sealed', text: '' },
      ],
    });
    expect(await e2eRead(room, key, { ...o, since: 2 })).toEqual({
      last: 3,
      messages: [{ seq: 3, from: 'sealed', text: '' }],
    });
    expect(await e2eRead(room, key, { ...o, since: 3 })).toEqual({ last: 3, messages: [] });
    expect(await e2eRead('p-empty', key, o)).toEqual({ last: 0, messages: [] });
    // Reading again shows the same again.
    expect((await e2eRead(room, key, { ...o, limit: 2 })).messages.map((m) => m.seq)).toEqual([2, 3]);
  });

  test('fault 98: a copy is dropped, by whomever and wherever it stands; what does not open is told', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const o = agentOf(service);
    const [alice, mallory] = [Signer.generate(), Signer.generate()];
    await e2eSend(room, key, 'one', { ...o, signer: alice });
    const [line] = (await read(room, o)).messages;
    await say(room, 'mallory', line!.text, o);
    await mallory.say(room, line!.text, o);
    await say(room, 'mallory', 'no sealed line', o);
    await say(room, 'mallory', e2eSeal(randomBytes(32), 'another key'), o);
    await e2eSend(room, key, 'two', { ...o, signer: alice });
    const shown = [
      { seq: 1, from: alice.did, text: 'one' },
      { seq: 4, from: 'mallory', error: expect.objectContaining({ code: 'decrypt', layer: 'encoding' }) },
      { seq: 5, from: 'mallory', error: expect.objectContaining({ code: 'decrypt', layer: 'tag' }) },
      { seq: 6, from: alice.did, text: 'two' },
    ];
    expect((await e2eRead(room, key, o)).messages).toEqual(shown);
    expect(o.events.filter((e) => e.kind === 'refused').map((e) => e['seq'])).toEqual([2, 3]);
    // Also when the copy alone is looked at later, and on every later look.
    expect((await e2eRead(room, key, { ...o, since: 1 })).messages).toEqual(shown.slice(1));
    expect((await e2eRead(room, key, o)).messages).toEqual(shown);
    // The key of another room knows nothing of these.
    expect((await e2eRead(room, randomBytes(32), o)).messages.every((m) => m.error !== undefined)).toBe(true);
  });

  test('e2eFollow shows each line once, as it comes', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const o = agentOf(service);
    await e2eSend(room, key, 'before', o);
    const stop = new AbortController();
    const seen: unknown[] = [];
    let copied = false;
    for await (const m of e2eFollow(room, key, { ...o, since: 0, signal: stop.signal })) {
      seen.push(m.text ?? m.error?.layer);
      if (!copied) {
        copied = true;
        await say(room, 'mallory', (await read(room, o)).messages[0]!.text, o);
        await say(room, 'mallory', 'junk', o);
        await e2eSend(room, key, 'after', o);
      }
      if (m.text === 'after') break;
    }
    expect(seen).toEqual(['before', 'encoding', 'after']);
    stop.abort(new Error('enough'));
    const follow = e2eFollow(room, key, { ...o, signal: stop.signal });
    await expect(follow.next()).rejects.toThrow('enough');
  });

  test('lost lines are a RingGap, and reading goes on behind it', async () => {
    const service = createLocalService({ profile, limits: { ...FREE, roomRingBytes: 20_000 } });
    const o = agentOf(service);
    await e2eSend(room, key, 'first', o);
    for (let i = 0; i < 60; i++) await e2eSend(room, key, `${i}`.padEnd(600), o);
    const gap: RingGap = await e2eRead(room, key, { ...o, since: 1 }).catch((e) => e);
    expect(gap).toBeInstanceOf(RingGap);
    expect(gap).toMatchObject({ expected: 2, reason: 'overflow' });
    const { last, messages } = await e2eRead(room, key, { ...o, since: gap.oldest - 1 });
    expect([messages[0]!.seq, messages.at(-1)!.seq, last]).toEqual([gap.oldest, 61, 61]);
    await expect(e2eFollow(room, key, { ...o, since: 1 }).next()).rejects.toThrow(RingGap);
  });

  test('a room made anew is a gap, and lines of the old one are copies in it', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const o = agentOf(service);
    const texts = ['a', 'b', 'c'];
    for (const text of texts) await e2eSend(room, key, text, o);
    const { last, messages } = await e2eRead(room, key, o);
    expect(messages.map((m) => m.text)).toEqual(texts);
    const lines = (await read(room, o)).messages.map((m) => m.text);
    service.age(room, 8 * 86_400_000);
    await say('p-other', 'x', 'lets the reaper run', o);
    expect((await read(room, o)).messages).toEqual([]);
    for (const line of lines.slice(0, 2)) await say(room, 'mallory', line, o);
    await e2eSend(room, key, 'new', o);
    const gap: RingGap = await e2eRead(room, key, { ...o, since: last }).catch((e) => e);
    // Without generations a room whose seq came as far again is known by its times only.
    if (profile === 'modern') expect(gap).toMatchObject({ reason: 'recreated' });
    const again = await e2eRead(room, key, o);
    expect(again.messages.map((m) => m.text)).toEqual(['new']);
  });

  test('an unsigned write whose answer was lost is found by its line', async () => {
    const service = createLocalService({ profile, limits: FREE });
    let lands = true;
    const lossy = (async (url: any, init: any) => {
      if (!String(url).includes('/say/')) return service.fetch(url, init);
      if (lands) await service.fetch(url, init);
      throw new TypeError('connection reset');
    }) as Fetch;
    const o = agentOf(service, lossy);
    expect(await e2eSend(room, key, 'once', o)).toEqual({ seq: 1 });
    lands = false;
    await expect(e2eSend(room, key, 'lost', o)).rejects.toThrow(MayHaveLanded);
    expect((await e2eRead(room, key, o)).messages.map((m) => m.text)).toEqual(['once']);
  });

  test('bad input never reaches the service', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const o = agentOf(service);
    await expect(e2eSend(room, key, 'x'.repeat(3044), o)).rejects.toThrow(FrameTooLong);
    await expect(e2eSend(room, new Uint8Array(31), 'x', o)).rejects.toThrow(BadKey);
    await expect(e2eSend('Not A Room', key, 'x', o)).rejects.toThrow(BadName);
    await expect(e2eRead('Not A Room', key, o)).rejects.toThrow(BadName);
    await expect(e2eRead(room, new Uint8Array(31), o)).rejects.toThrow(BadKey);
    await expect(e2eFollow(room, new Uint8Array(31), o).next()).rejects.toThrow(BadKey);
    expect(service.stats.requests).toBe(0);
    await expect(e2eSend('mb-p-x', key, 'unsigned', o)).rejects.toThrow(Forbidden);
  });
});

test('a forged writer is nobody, even of a line that opens', async () => {
  const service = createLocalService({ limits: FREE });
  const [alice, bob] = [Signer.generate(), Signer.generate()];
  const [room, key] = ['p-room', randomBytes(32)];
  const lying = (async (url: any, init: any) => {
    const response = await service.fetch(url, init);
    return new Response((await response.text()).replaceAll(alice.did, bob.did), { status: response.status });
  }) as Fetch;
  await e2eSend(room, key, 'mine', { ...agentOf(service), signer: alice });
  expect((await e2eRead(room, key, agentOf(service, lying))).messages).toEqual([{ seq: 1, from: '', text: 'mine' }]);
});

describe('e2eOfferTo', () => {
  test('seals to the key that the DID signed, and says who offers', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    await expect(e2eOfferTo(bob.did, alice, o)).rejects.toThrow(BadKey);
    await publishIdentity(bob, { mailbox: 'mb-p-bob' }, o);
    const { key, room, mailbox } = await e2eOfferTo(bob.did, alice, o);
    expect(mailbox).toBe('mb-p-bob');
    const [message] = (await read('mb-p-bob', o)).messages;
    expect(message!.from).toBe(alice.did);
    expect(e2eAccept(message!.text, identityKeys(bob).privateKey)).toEqual({ key, room });
  });

  test('fault 68: an unsigned key is refused, unless told otherwise', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const { privateKey, publicKey } = x25519Generate();
    const { ns, key } = identityNote(bob.did);
    await setNote(ns, key, `${bob.did} mailbox:mb-p-bob x25519:${toBase64url(publicKey)}`, o);
    await expect(e2eOfferTo(bob.did, alice, o)).rejects.toThrow('did not sign');
    expect((await read('mb-p-bob', o)).lastSeq).toBe(0);
    const offered = await e2eOfferTo(bob.did, alice, { ...o, allowUnsigned: true });
    const [message] = (await read('mb-p-bob', o)).messages;
    expect(e2eAccept(message!.text, privateKey)).toEqual({ key: offered.key, room: offered.room });
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
