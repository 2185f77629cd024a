import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { beforeEach, describe, expect, test, vi } from 'vitest';
import { type Clock, systemClock } from '../src/http.ts';
import { createLocalService } from '../src/local.ts';
import { read } from '../src/rooms.ts';
import { Signer } from '../src/signer.ts';
import { tempDir } from './support.ts';

const T = 1_767_225_600_000;
const at = (now: number): Clock => ({ now: () => now, sleep: systemClock.sleep });
const one = (signer: Signer, scope: string, clock: Clock = systemClock): Promise<string> =>
  signer.withNonce(scope, clock, async (nonce) => nonce);

const SEED = 'AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA';
const DID = 'did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp';

let root: string;
let home: string;
const path = (name: string): string => join(home, name);
const text = (name: string): string => readFileSync(path(name), 'utf8');

beforeEach(() => {
  root = tempDir();
  home = join(root, 'key');
});

/** A key directory with this ledger. */
function given(ledger: string | undefined, seed: string | undefined = SEED): void {
  mkdirSync(home);
  if (seed !== undefined) writeFileSync(path('seed'), seed, { mode: 0o600 });
  if (ledger !== undefined) writeFileSync(path('nonces.json'), ledger);
}

describe('seed', () => {
  test('a new directory gets a seed and an empty ledger, for the owner alone', async () => {
    home = join(root, 'a', 'b', 'key');
    const signer = await Signer.fromDir(home);
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
    expect(text('seed')).toMatch(/^[A-Za-z0-9_-]{43}$/);
    expect(text('nonces.json')).toBe('{}');
    expect(statSync(path('seed')).mode & 0o777).toBe(0o600);
    expect(statSync(home).mode & 0o777).toBe(0o700);
    expect((await Signer.fromDir(home)).did).toBe(signer.did);
  });

  test('a seed of the other client is taken; a line break after it does no harm', async () => {
    given('{}');
    expect((await Signer.fromDir(home)).did).toBe(DID);
    writeFileSync(path('seed'), `${SEED}\n`);
    expect((await Signer.fromDir(home)).did).toBe(DID);
    expect(text('seed')).toBe(`${SEED}\n`);
  });

  test('a seed may be a symbolic link, as mounted secrets are', async () => {
    given('{}', undefined);
    rmSync(path('seed'), { force: true });
    writeFileSync(join(root, 'secret'), SEED, { mode: 0o600 });
    symlinkSync(join(root, 'secret'), path('seed'));
    expect((await Signer.fromDir(home)).did).toBe(DID);
  });

  test('starters at one time agree on one identity', async () => {
    const dids = await Promise.all(Array.from({ length: 12 }, async () => (await Signer.fromDir(home)).did));
    expect(new Set(dids).size).toBe(1);
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
  });

  test('one that others can read is refused, not repaired', async () => {
    given('{}');
    for (const mode of [0o604, 0o640, 0o644, 0o620, 0o601]) {
      chmodSync(path('seed'), mode);
      await expect(Signer.fromDir(home)).rejects.toMatchObject({
        code: 'bad_key',
        message: expect.stringContaining(`mode 0${mode.toString(8)}`),
      });
      expect(statSync(path('seed')).mode & 0o777).toBe(mode);
    }
    chmodSync(path('seed'), 0o400);
    expect((await Signer.fromDir(home)).did).toBe(DID);
  });

  test('one that is not 43 characters of base64url is refused, never quoted, never overwritten', async () => {
    given('{}');
    for (const seed of [
      '',
      'A',
      SEED.slice(1),
      `${SEED}A`,
      `${SEED}=`,
      `${SEED.slice(0, 42)}B`,
      `${SEED.slice(0, 42)}+`,
    ]) {
      writeFileSync(path('seed'), seed);
      const error: any = await Signer.fromDir(home).catch((e) => e);
      expect(error).toMatchObject({
        code: 'bad_key',
        message: `${path('seed')} does not contain a seed: 43 characters of base64url`,
      });
      expect(text('seed')).toBe(seed);
    }
  });

  test('what is in the way is a typed error', async () => {
    writeFileSync(home, 'a file');
    await expect(Signer.fromDir(home)).rejects.toMatchObject({
      code: 'bad_key',
      message: expect.stringContaining('EEXIST'),
    });
    await expect(Signer.fromDir(join(home, 'below'))).rejects.toMatchObject({ code: 'bad_key' });
    await expect(Signer.fromDir('')).rejects.toMatchObject({ code: 'bad_key' });
    rmSync(home);
    given('{}', undefined);
    rmSync(path('seed'), { force: true });
    mkdirSync(path('seed'));
    await expect(Signer.fromDir(home)).rejects.toMatchObject({
      code: 'bad_key',
      message: expect.stringContaining('EISDIR'),
    });
    rmSync(path('seed'), { recursive: true });
    symlinkSync(join(root, 'nowhere'), path('seed'));
    await expect(Signer.fromDir(home)).rejects.toMatchObject({
      code: 'bad_key',
      message: expect.stringContaining('link to a file that does not exist'),
    });
  });

  test('the default is .technocore in the home directory', async () => {
    vi.stubEnv('HOME', root);
    try {
      await Signer.fromDir();
    } finally {
      vi.unstubAllEnvs();
    }
    expect(existsSync(join(root, '.technocore', 'seed'))).toBe(true);
  });

  test('a relative directory stays the same one when the program goes elsewhere', async () => {
    const before = process.cwd();
    process.chdir(root);
    try {
      const signer = await Signer.fromDir('key');
      process.chdir(tempDir());
      await one(signer, 'lobby');
    } finally {
      process.chdir(before);
    }
    expect(Object.keys(JSON.parse(text('nonces.json')))).toHaveLength(1);
  });
});

describe('ledger', () => {
  test('is written as the other client writes it', async () => {
    given('{}');
    const signer = await Signer.fromDir(home);
    await one(signer, 'lobby', at(T));
    await one(signer, 'a-room', at(T));
    await one(signer, 'kv:d-shop', at(T));
    await one(signer, 'lobby', at(T));
    expect(text('nonces.json')).toBe(
      `{\n  "${DID}": {\n    "a-room": ${T + 1},\n    "kv:d-shop": ${T + 1},\n    "lobby": ${T + 2}\n  }\n}`,
    );
    expect(statSync(path('nonces.json')).mode & 0o777).toBe(0o600);
  });

  test('nineteen digits stay exact, of this key and of others', async () => {
    given(
      `{"did:key:other": {"r": 9223372036854775807, "s": 1788872638667723579}, "${DID}": {"lobby": 9007199254740993, "é": 5}, "x": {}}`,
    );
    const signer = await Signer.fromDir(home);
    expect(await one(signer, 'lobby', at(T))).toBe('9007199254740994');
    expect(text('nonces.json')).toBe(
      `{\n  "did:key:other": {\n    "r": 9223372036854775807,\n    "s": 1788872638667723579\n  },\n  "${DID}": {\n    "lobby": 9007199254740994,\n    "\\u00e9": 5\n  },\n  "x": {}\n}`,
    );
  });

  test('a nonce is on disk before it is used', async () => {
    const signer = await Signer.fromDir(home);
    await signer.withNonce('lobby', systemClock, async (nonce) => {
      expect(text('nonces.json')).toContain(`"lobby": ${nonce}`);
    });
  });

  test('the first nonce of a scope is above this millisecond, which may have been used and forgotten', async () => {
    const signer = await Signer.fromDir(home);
    expect(await one(signer, 'lobby', at(T))).toBe(String(T + 1));
    expect(await one(signer, 'lobby', at(T + 1000))).toBe(String(T + 1000));
  });

  test('fault 21: the clock set back between two runs', async () => {
    expect(await one(await Signer.fromDir(home), 'lobby', at(T))).toBe(String(T + 1));
    expect(await one(await Signer.fromDir(home), 'lobby', at(T - 3_600_000))).toBe(String(T + 2));
  });

  test('fault 22: two users of one directory in one millisecond', async () => {
    const signers = await Promise.all([Signer.fromDir(home), Signer.fromDir(home), Signer.fromDir(home)]);
    let inside = 0;
    const got: bigint[] = [];
    await Promise.all(
      Array.from({ length: 30 }, (_, i) =>
        signers[i % 3]!.withNonce('lobby', at(T), async (nonce) => {
          expect(++inside).toBe(1);
          await new Promise((resolve) => setImmediate(resolve));
          got.push(BigInt(nonce));
          inside--;
        }),
      ),
    );
    expect(new Set(got).size).toBe(30);
    // They arrive rising.
    expect(got).toEqual([...got].sort((a, b) => (a < b ? -1 : 1)));
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
  });

  test('fault 22: beside a program that knows nothing of the lock, every write gets through', async () => {
    const service = createLocalService({ limits: { readsPerMinute: 1e6, writesPerMinute: 1e6 } });
    const o = { base: 'http://local', fetch: service.fetch };
    given('{}');
    const [known, stranger] = [await Signer.fromDir(home), Signer.fromSeed('00'.repeat(32))];
    expect(stranger.did).toBe(known.did);
    for (let i = 0; i < 20; i++) {
      await Promise.all([known.say('lobby', `a${i}`, o), stranger.say('lobby', `b${i}`, o)]);
    }
    const { messages } = await read('lobby', { ...o, limit: 200 });
    expect(new Set(messages.map((m) => m.text)).size).toBe(40);
    expect(messages).toHaveLength(40);
    expect(text('nonces.json')).toMatch(/"lobby": \d+/);
  });

  test('rooms do not wait for each other', async () => {
    const [a, b] = await Promise.all([Signer.fromDir(home), Signer.fromDir(home)]);
    await a.withNonce('slow', systemClock, async () => {
      await one(a, 'quick');
      await one(b, 'quick');
    });
  });

  test('fault 23: an ill-formed ledger is refused and kept, at the start and later', async () => {
    given('{}');
    const signer = await Signer.fromDir(home);
    const bad = [
      '',
      'abc',
      '{"x"',
      '[]',
      'null',
      '7',
      '{"x": 1}',
      '{"x": null}',
      '{"x": []}',
      '{"x": "y"}',
      '{"x": {"r": "5"}}',
      '{"x": {"r": ["5"]}}',
      '{"x": {"r": [5]}}',
      '{"x": {"r": -1}}',
      '{"x": {"r": 1.0}}',
      '{"x": {"r": 1e3}}',
      '{"x": {"r": true}}',
      '{"x": {"r": null}}',
      '{"x": {"r": {}}}',
      '{"x": {"r": 007}}',
      '{"x": {"r": 12345678901234567890}}',
      '{"x": {"r": 5}}}',
      '{"x": {"r": 5},}',
      '{"x": {"r": 5 6}}',
      '\ufeff{}',
      '{} {}',
      '{"x": {"r": NaN}}',
      // A text without an end must not take longer than reading it.
      `{"${'\\"'.repeat(200_000)}`,
    ];
    for (const ledger of bad) {
      writeFileSync(path('nonces.json'), ledger);
      for (const use of [() => Signer.fromDir(home), () => one(signer, 'lobby')]) {
        await expect(use(), ledger).rejects.toMatchObject({
          code: 'bad_nonce',
          message: expect.stringContaining('left unchanged'),
        });
      }
      expect(text('nonces.json')).toBe(ledger);
    }
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
  });

  test('a seed without a ledger is refused, and none is made; so is a new seed beside an ill-formed ledger', async () => {
    given(undefined);
    await expect(Signer.fromDir(home)).rejects.toMatchObject({
      code: 'bad_nonce',
      message: expect.stringContaining('is missing'),
    });
    expect(readdirSync(home)).toEqual(['seed']);
    writeFileSync(path('nonces.json'), '{');
    rmSync(path('seed'));
    await expect(Signer.fromDir(home)).rejects.toMatchObject({ code: 'bad_nonce' });
    expect(readdirSync(home)).toEqual(['nonces.json']);
  });

  test('a ledger that disappears is refused, one put back to an older state does not give a nonce twice', async () => {
    const signer = await Signer.fromDir(home);
    const first = await one(signer, 'lobby', at(T));
    writeFileSync(path('nonces.json'), '{}');
    expect(BigInt(await one(signer, 'lobby', at(T)))).toBe(BigInt(first) + 1n);
    rmSync(path('nonces.json'));
    await expect(one(signer, 'lobby')).rejects.toMatchObject({ code: 'bad_nonce' });
    expect(readdirSync(home)).toEqual(['seed']);
  });

  test('fault 24: what the service has seen is a floor here too', async () => {
    const signer = await Signer.fromDir(home);
    signer.raiseNonce('lobby', String(T + 5000), at(T));
    expect(await one(signer, 'lobby', at(T))).toBe(String(T + 5001));
    expect(await one(await Signer.fromDir(home), 'lobby', at(T))).toBe(String(T + 5002));
    expect(() => signer.raiseNonce('lobby', '9999999999999999999', at(T))).toThrow('key is locked out');
  });

  test('thousands of rooms do not make it grow without end, and lose no floor', async () => {
    const many = Array.from({ length: 3000 }, (_, i) => `"r${i}": ${T + i}`);
    given(`{"${DID}": {${many.join(', ')}}}`);
    const signer = await Signer.fromDir(home);
    expect(await one(signer, 'r5', at(T - 1000))).toBe(String(T + 6));
    const kept = JSON.parse(text('nonces.json'))[DID];
    expect(Object.keys(kept).length).toBeLessThan(1000);
    expect(BigInt(await one(signer, 'r7', at(T - 1000)))).toBeGreaterThan(BigInt(T + 7));
    expect(await one(signer, 'r2999', at(T - 1000))).toBe(String(T + 3000));
  });

  test("the other client's lock is neither made nor removed", async () => {
    const signer = await Signer.fromDir(home);
    await signer.withNonce('lobby', systemClock, async () => {
      expect(readdirSync(home)).not.toContain('nonces.json.lock');
      expect(readdirSync(home)).toContain('nonces.json.node-lock-lobby');
    });
    writeFileSync(path('nonces.json.lock'), '');
    await one(signer, 'lobby');
    await Signer.fromDir(home);
    expect(existsSync(path('nonces.json.lock'))).toBe(true);
  });

  test('a use that fails frees its place, one that is given up takes none', async () => {
    const [a, b] = await Promise.all([Signer.fromDir(home), Signer.fromDir(home)]);
    await expect(a.withNonce('lobby', systemClock, () => Promise.reject(new Error('refused')))).rejects.toThrow(
      'refused',
    );
    await a.withNonce('lobby', systemClock, async () => {
      const stop = new AbortController();
      const waiting = b.withNonce('lobby', systemClock, async () => 'never', stop.signal);
      stop.abort(new Error('enough'));
      await expect(waiting).rejects.toThrow('enough');
    });
    expect(await one(b, 'lobby')).toMatch(/^\d+$/);
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
  });

  test('a directory that is gone is a typed error', async () => {
    const signer = await Signer.fromDir(home);
    rmSync(home, { recursive: true });
    await expect(one(signer, 'lobby')).rejects.toMatchObject({
      code: 'unavailable',
      message: expect.stringContaining('ENOENT'),
    });
  });

  test('a place where none can be made ends in a typed error, at once, of the key as of a store', () => {
    writeFileSync(join(root, 'file'), '');
    symlinkSync(join(root, 'loop'), join(root, 'loop'));
    const places = ['/proc/nope', '/proc/nope/deep', '/proc/self/nope', '/sys/nope', '/dev/null/nope'].filter((at) =>
      existsSync(`/${at.split('/')[1]}`),
    );
    places.push(join(root, 'file', 'x'), join(root, 'file'), join(root, 'loop', 'x'), join(root, 'n'.repeat(300), 'x'));
    // In a process of its own: one that does not end must be ended.
    const script = `
      import { a2aFileStore, fileCursor, fileLedger, Signer } from ${JSON.stringify(new URL('../dist/technocore-rpc.js', import.meta.url).href)};
      const ends = [];
      for (const at of ${JSON.stringify(places)}) {
        const tries = [Signer.fromDir(at), fileLedger(at + '/x'), a2aFileStore(at + '/x'), fileCursor(at + '/x').save('a', { since: 1 })];
        ends.push([at, ...(await Promise.all(tries.map((work) => work.then(() => 'made', (e) => e.code ?? e.stack))))]);
      }
      console.log(JSON.stringify(ends));`;
    const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
      timeout: 60_000,
      killSignal: 'SIGKILL',
      encoding: 'utf8',
    });
    expect(stdout, stderr).not.toBe('');
    const [key, ...stores] = ['bad_key', 'unavailable', 'unavailable', 'unavailable'];
    expect(JSON.parse(stdout)).toEqual(places.map((at) => [at, key, ...stores]));
  });

  test('a scope is no path', async () => {
    const signer = await Signer.fromDir(home);
    expect(await one(signer, '../../etc/x', at(T))).toBe(String(T + 1));
    expect(readdirSync(root)).toEqual(['key']);
    expect(readdirSync(home).sort()).toEqual(['nonces.json', 'seed']);
  });
});
