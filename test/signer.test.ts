import { createHash } from 'node:crypto';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { describe, expect, test } from 'vitest';
import { fromHex, toBase64url, toHex } from '../src/bytes.ts';
import { TechnocoreError } from '../src/errors.ts';
import { type Clock, systemClock } from '../src/http.ts';
import { createLocalService } from '../src/local.ts';
import { verify } from '../src/names.ts';
import { read } from '../src/rooms.ts';
import { Signer } from '../src/signer.ts';
import { tempDir } from './support.ts';

const { cases } = JSON.parse(readFileSync(new URL('vectors/technocore-signing.json', import.meta.url), 'utf8'));
const runs = (pairs: [string, number][]): string => pairs.map(([piece, count]) => piece.repeat(count)).join('');
const textOf = (c: any, name: string): string => c[name] ?? runs(c[`${name}_runs`]);

/** What `f` throws. */
function thrown(f: () => unknown): any {
  try {
    f();
  } catch (e) {
    return e;
  }
  throw new Error('nothing was thrown');
}

describe('signing', () => {
  test(`the ${cases.length} recorded cases`, () => {
    let signed = 0;
    for (const c of cases) {
      const signer = c.passphrase === undefined ? Signer.fromSeed(c.seed_hex) : Signer.fromPassphrase(c.passphrase);
      expect(signer.did, c.id).toBe(c.did);
      expect(Signer.fromSeed(fromHex(c.seed_hex)!).did, c.id).toBe(c.did);
      expect(`/kv/did-${signer.fingerprint.slice(0, 2)}/${signer.fingerprint.slice(2)}`, c.id).toBe(c.note_path);
      const raw = textOf(c, 'raw_text');
      const sign = (): any =>
        c.kind === 'message' ? signer.signMessage(c.room, c.nonce, raw) : signer.signNote(c.ns, c.key, c.nonce, raw);
      if (c.refused) {
        expect(thrown(sign).code, c.id).toBe({ empty: 'empty_text', too_long: 'frame_too_long' }[c.refused as string]);
        continue;
      }
      const made = sign();
      const swept = textOf(c, 'swept_text');
      expect(made, c.id).toEqual({
        did: c.did,
        sig: c.signature,
        nonce: c.nonce,
        [c.kind === 'message' ? 'text' : 'value']: swept,
        canonical: expect.any(String),
      });
      expect(createHash('sha256').update(made.canonical).digest('hex'), c.id).toBe(c.canonical_sha256);
      expect(signer.sign(made.canonical), c.id).toBe(c.signature);
      expect(verify(made.did, made.sig, made.canonical), c.id).toBe(true);
      signed++;
    }
    expect(signed).toBeGreaterThan(50);
  });

  test('a nonce is 1 to 19 digits or a safe integer, and exact', () => {
    const signer = Signer.generate();
    expect(signer.signMessage('r', 5, 'x').canonical).toBe('r|5|x');
    expect(signer.signMessage('r', '9223372036854775807', 'x').nonce).toBe('9223372036854775807');
    expect(signer.signNote('ns', 'k', 0, 'x').canonical).toBe('ns|k|0|x');
    for (const nonce of [
      '',
      '-1',
      -1,
      1.5,
      Number.NaN,
      2 ** 53,
      1e21,
      '1e3',
      ' 1',
      '1\n',
      '١',
      '1'.repeat(20),
      null,
      undefined,
      5n,
    ]) {
      expect(thrown(() => signer.signMessage('r', nonce as string, 'x')).code, String(nonce)).toBe('bad_nonce');
      expect(thrown(() => signer.signNote('n', 'k', nonce as string, 'x')).code, String(nonce)).toBe('bad_nonce');
    }
  });

  test('names are checked before anything is signed', () => {
    const signer = Signer.generate();
    for (const name of ['', 'A', 'a|b', '-a', 'a'.repeat(49), 'a\n', '../a', undefined]) {
      expect(thrown(() => signer.signMessage(name as string, 1, 'x')).code).toBe('bad_name');
      expect(thrown(() => signer.signNote(name as string, 'k', 1, 'x')).code).toBe('bad_name');
      expect(thrown(() => signer.signNote('n', name as string, 1, 'x')).code).toBe('bad_name');
    }
  });

  test('what has no UTF-8 form cannot be signed', () => {
    const signer = Signer.generate();
    expect(thrown(() => signer.sign('a\ud800b')).code).toBe('bad_text');
    expect(thrown(() => signer.sign(undefined as unknown as string)).code).toBe('bad_text');
    // In a message it is swept.
    expect(signer.signMessage('r', 1, 'a\ud800b').text).toBe('a b');
  });
});

describe('keys', () => {
  test('a seed is 32 bytes or 64 hex digits, copied, and nothing else', () => {
    const seed = new Uint8Array(32).fill(7);
    const signer = Signer.fromSeed(seed);
    const before = signer.sign('x');
    const derived = toHex(signer.derive('x'));
    seed.fill(9);
    expect(signer.sign('x')).toBe(before);
    expect(toHex(signer.derive('x'))).toBe(derived);
    expect(Signer.fromSeed('07'.repeat(32)).did).toBe(signer.did);
    expect(Signer.fromSeed('AB'.repeat(32)).did).toBe(Signer.fromSeed('ab'.repeat(32)).did);
    for (const bad of [
      '',
      'ab',
      'zz'.repeat(32),
      '07'.repeat(33),
      ` ${'07'.repeat(32)}`,
      new Uint8Array(31),
      new Uint8Array(33),
      new Array(32).fill(7),
      null,
      undefined,
      7,
    ]) {
      expect(thrown(() => Signer.fromSeed(bad as string)).code).toBe('bad_key');
    }
  });

  test('an empty passphrase is no key; 64 characters that are not hex are a passphrase', () => {
    for (const bad of ['', undefined, null, 5, 'a\ud800']) {
      expect(thrown(() => Signer.fromPassphrase(bad as string)).code).toBe('bad_key');
    }
    const dids = ['g'.repeat(64), 'a'.repeat(63), 'a'.repeat(65), 'a'.repeat(64)].map(
      (text) => Signer.fromPassphrase(text).did,
    );
    expect(new Set(dids).size).toBe(4);
    expect(dids[3]).toBe(Signer.fromSeed('a'.repeat(64)).did);
  });

  test('each generated key is new', () => {
    expect(new Set(Array.from({ length: 20 }, () => Signer.generate().did)).size).toBe(20);
  });

  test('derived secrets depend on seed and purpose, and are neither', () => {
    const a = Signer.fromSeed('01'.repeat(32));
    const b = Signer.fromSeed('02'.repeat(32));
    const all = [a.derive('x'), a.derive('y'), b.derive('x'), fromHex('01'.repeat(32))!].map(toHex);
    expect(new Set(all).size).toBe(4);
    expect(toHex(a.derive('x'))).toBe(all[0]);
    // HMAC-SHA256(seed, "technocore-rpc/x"), as Python computes it.
    expect(all[0]).toBe('73e42e86de1ddf9145d6be42932bf81962b9e16b6876c43f25826b7f8328d6e0');
  });

  test('no way of printing shows the secret', () => {
    const seed = fromHex(`${'c0ffee'.repeat(10)}d00d`)!;
    const signer = Signer.fromSeed(seed);
    const shown = [
      inspect(signer, { showHidden: true, depth: 20, getters: true }),
      inspect({ nested: [signer] }, { depth: 20 }),
      JSON.stringify(signer),
      String(signer),
      `${Object.entries(signer)}`,
      Object.getOwnPropertyNames(signer).join(),
      inspect(structuredClone({ ...signer })),
      inspect(
        thrown(() => signer.signMessage('Bad', 1, 'x')),
        { depth: 20 },
      ),
      inspect(
        thrown(() => Signer.fromSeed(`${toHex(seed)}0`)),
        { depth: 20 },
      ),
      inspect(
        thrown(() => Signer.fromSeed(seed.subarray(1))),
        { depth: 20 },
      ),
      inspect(
        thrown(() => Signer.fromPassphrase('c0ffee\ud800')),
        { depth: 20 },
      ),
    ].join('\n');
    const secrets = [
      toHex(seed).slice(0, 12),
      toBase64url(seed).slice(0, 12),
      String(seed.subarray(0, 4)),
      [...seed.subarray(0, 4)].join(', '),
    ];
    for (const secret of secrets) expect(shown).not.toContain(secret);
    expect(JSON.parse(JSON.stringify(signer))).toEqual({ did: signer.did, fingerprint: signer.fingerprint });
  });

  test('no error about a seed file shows the secret', async () => {
    const dir = tempDir();
    try {
      const secret = 'c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec';
      writeFileSync(join(dir, 'nonces.json'), '{}');
      for (const [text, mode] of [
        [secret, 0o644],
        [`${secret}x`, 0o600],
      ] as const) {
        rmSync(join(dir, 'seed'), { force: true });
        writeFileSync(join(dir, 'seed'), text, { mode });
        const error = await Signer.fromDir(dir).catch((e) => e);
        expect(error.code).toBe('bad_key');
        expect(inspect(error, { depth: 20, showHidden: true })).not.toContain('c0ffee');
      }
    } finally {
      rmSync(dir, { recursive: true });
    }
  });
});

describe('say', () => {
  const T = Date.UTC(2026, 0, 1);

  /** A service without budgets, and a clock that can be set. */
  function world() {
    let now = T;
    const clock: Clock = { now: () => now, sleep: systemClock.sleep };
    const service = createLocalService({ limits: { writesPerMinute: 1e6, readsPerMinute: 1e6 } });
    return { service, set: (to: number) => (now = to), o: { base: 'http://local', fetch: service.fetch, clock } };
  }

  test('writes a signed message and says where it is', async () => {
    const { o } = world();
    const signer = Signer.generate();
    expect(await signer.say('lobby', '  hello\u200bthere ', o)).toEqual({ seq: 1, nonce: String(T) });
    const { messages } = await read('lobby', o);
    expect(messages).toMatchObject([{ seq: 1, from: signer.did, text: 'hello there', nonce: String(T) }]);
    expect(verify(signer.did, messages[0]!.sig!, `lobby|${T}|hello there`)).toBe(true);
  });

  test('what is wrong with the arguments rejects before anything is sent', async () => {
    const { o, service } = world();
    const signer = Signer.generate();
    await expect(signer.say('Lobby', 'x', o)).rejects.toMatchObject({ code: 'bad_name' });
    await expect(signer.say('lobby', ' \u200b', o)).rejects.toMatchObject({ code: 'empty_text' });
    await expect(signer.say('lobby', 'x'.repeat(4097), o)).rejects.toMatchObject({ code: 'frame_too_long' });
    await expect(signer.say('lobby', 'x', { ...o, base: 'nowhere' })).rejects.toSatisfy(TechnocoreError.is);
    await expect(signer.say('lobby', 'x', { ...o, signal: AbortSignal.abort(new Error('no')) })).rejects.toThrow('no');
    expect(service.stats.requests).toBe(0);
  });

  test('fault 20: fifty writes in one millisecond arrive, in order', async () => {
    const { o } = world();
    const signer = Signer.generate();
    const sent = await Promise.all(Array.from({ length: 50 }, (_, i) => signer.say('lobby', `line ${i}`, o)));
    expect(sent.map(({ seq }) => seq)).toEqual(Array.from({ length: 50 }, (_, i) => i + 1));
    const { messages } = await read('lobby', { ...o, limit: 200 });
    expect(messages.map((m) => m.text)).toEqual(Array.from({ length: 50 }, (_, i) => `line ${i}`));
  });

  test('fault 21: the clock set back one hour between writes', async () => {
    const { o, set } = world();
    const signer = Signer.generate();
    const first = await signer.say('lobby', 'before', o);
    set(T - 3_600_000);
    const second = await signer.say('lobby', 'after', o);
    expect(BigInt(second.nonce)).toBe(BigInt(first.nonce) + 1n);
  });

  test('fault 22: two programs with one key and no directory both get their writes through', async () => {
    const { o } = world();
    const seed = '5e'.repeat(32);
    const [a, b] = [Signer.fromSeed(seed), Signer.fromSeed(seed)];
    for (let i = 0; i < 10; i++) await Promise.all([a.say('lobby', `a${i}`, o), b.say('lobby', `b${i}`, o)]);
    const { messages } = await read('lobby', { ...o, limit: 200 });
    expect(messages).toHaveLength(20);
    expect(new Set(messages.map((m) => m.text)).size).toBe(20);
  });

  test('fault 24: after an unknown write elsewhere the next ones go above it, in that room only', async () => {
    const { o } = world();
    const seed = '5e'.repeat(32);
    const elsewhere = Signer.fromSeed(seed);
    elsewhere.raiseNonce('lobby', String(T + 60_000), o.clock);
    await elsewhere.say('lobby', 'unknown to us', o);
    const signer = Signer.fromSeed(seed);
    expect((await signer.say('lobby', 'one', o)).nonce).toBe(String(T + 60_002));
    expect((await signer.say('lobby', 'two', o)).nonce).toBe(String(T + 60_003));
    expect((await signer.say('meta', 'one', o)).nonce).toBe(String(T));
  });

  test('a key that was locked out of a room is told so, not kept waiting', async () => {
    const { o, service } = world();
    const signer = Signer.generate();
    const { did, sig, nonce, text } = signer.signMessage('lobby', '9999999999999999999', 'last words');
    await service.fetch(`http://local/r/lobby/say-signed/${did}/${sig}/${nonce}/${encodeURIComponent(text)}`);
    await expect(signer.say('lobby', 'x', o)).rejects.toMatchObject({
      code: 'bad_nonce',
      message: expect.stringContaining('9999999999999999999'),
    });
    expect((await signer.say('meta', 'x', o)).seq).toBe(1);
  });
});
