import { chmod, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { normalCode, offerPairing, PAIRING_MS, pair, pairingCode, pairingRoom } from '../src/bridge-pair.ts';
import { PairsFile } from '../src/bridge-pairs.ts';
import { call, type Handler, read, serve } from '../src/technocore-rpc.ts';
import { requestFrame, signer, tempDir, type World, world } from './support.ts';

const MAILBOX = 'mb-p-tools';
const [SERVER, ADA, EVE] = [signer(1), signer(2), signer(3)];
const random = (n: number): Uint8Array => crypto.getRandomValues(new Uint8Array(n));
const CODE = pairingCode(random);

/** Pairing that is open; what became of it, and who was let in. */
function open(w: World, onPaired: (did: string) => void = () => {}) {
  const paired: string[] = [];
  let ready = false;
  const done = offerPairing(MAILBOX, SERVER, {
    ...w.o,
    code: CODE,
    onPaired: (did) => {
      paired.push(did);
      onPaired(did);
    },
    onReady: () => {
      ready = true;
    },
  });
  done.catch(() => {});
  return { paired, done, ready: () => w.until(() => ready) };
}

const as = (w: World, name: string) => ({ ...w.o, replyTo: `mb-p-${name}`, timeoutMs: 20_000 });

test('the code lets one key in, and proves the server', async () => {
  const w = world();
  const { paired, done, ready } = open(w);
  await ready();
  expect(await w.run(pair(MAILBOX, CODE.toLowerCase().replaceAll('-', ' '), ADA, as(w, 'ada')))).toBe(SERVER.did);
  expect(await w.run(done)).toBe('paired');
  expect(paired).toEqual([ADA.did]);
  // It never stood in a room, nor anything by which it could be guessed.
  for (const room of [pairingRoom(MAILBOX), 'mb-p-ada', MAILBOX]) {
    const { messages } = await w.run(read(room, { ...w.o, limit: 200 }));
    const text = JSON.stringify(messages).toUpperCase();
    for (const part of [CODE, normalCode(CODE), ...CODE.split('-').slice(0, 5)]) expect(text).not.toContain(part);
  }
  await expect(w.run(pair(MAILBOX, CODE, EVE, as(w, 'eve')))).rejects.toMatchObject({ code: 'not_offered' });
});

test('of a service that is gone it is said, and not of the code', async () => {
  const w = world();
  const gone = { ...as(w, 'ada'), fetch: () => Promise.reject(new TypeError('fetch failed')) };
  await expect(w.run(pair(MAILBOX, CODE, ADA, gone))).rejects.toMatchObject({
    code: expect.stringMatching(/^(call_timeout|unavailable|may_have_landed)$/),
  });
});

test('of two that come at once one is let in', async () => {
  const w = world();
  const { paired, done, ready } = open(w);
  await ready();
  const both = [ADA, EVE].map((one, i) => pair(MAILBOX, CODE, one, as(w, `m${i}`)));
  const outcomes = await w.run(Promise.allSettled(both));
  expect(await w.run(done)).toBe('paired');
  expect(paired.length).toBe(1);
  expect(outcomes.filter(({ status }) => status === 'fulfilled').length).toBe(1);
});

test('wrong codes are told so a few times, and end nothing: ten minutes do', async () => {
  const w = world();
  const { paired, done, ready } = open(w);
  await ready();
  for (let i = 0; i < 5; i++) {
    await expect(w.run(pair(MAILBOX, pairingCode(random), EVE, as(w, 'eve')))).rejects.toMatchObject({
      rpc: { code: 1004 },
    });
  }
  await expect(w.run(pair(MAILBOX, pairingCode(random), EVE, as(w, 'eve')))).rejects.toMatchObject({
    code: 'not_offered',
  });
  // Whoever was wrong may be right at last.
  expect(await w.run(pair(MAILBOX, CODE, EVE, as(w, 'eve')))).toBe(SERVER.did);
  expect(await w.run(done)).toBe('paired');
  const late = open(w);
  await late.ready();
  await w.clock.advance(PAIRING_MS);
  expect(await w.run(late.done)).toBe('expired');
  expect([...paired, ...late.paired]).toEqual([EVE.did]);
  expect(w.clock.sleepers).toBe(0);
});

test('a crowd of keys that guess, each in a room of its own, costs no answers and keeps nobody out', async () => {
  const w = world('modern', { readsPerMinute: 120, writesPerMinute: 30, wakeStepMs: 500 });
  const { paired, done, ready } = open(w);
  await ready();
  const room = pairingRoom(MAILBOX);
  const crowd = Array.from({ length: 200 }, (_, i) => signer(10 + i));
  let isOver = false;
  const flood = (async () => {
    for (let i = 0; !isOver; i++) {
      const key = crowd[i % crowd.length]!;
      const own = `mb-p-crowd-${i % crowd.length}`;
      const from = { ...w.o, fetch: w.service.client(`crowd ${i >> 3}`) };
      if (i < crowd.length) await key.say(own, 'mine', from);
      const meta = { 'chat.technocore/reply': own };
      const params = [{ _meta: meta }, { proof: 'x', _meta: meta }, { hello: 'AAAA', _meta: meta }][i % 3]!;
      await key.say(room, requestFrame(`c${i}`, 'pair', params), from);
      await w.clock.sleep(50);
    }
  })();
  await w.clock.advance(60_000);
  const writes = w.service.stats.writes;
  const begun = w.clock.now();
  const ada = { ...as(w, 'ada'), fetch: w.service.client('ada') };
  expect(await w.run(pair(MAILBOX, CODE, ADA, ada))).toBe(SERVER.did);
  expect(w.clock.now() - begun).toBeLessThan(15_000);
  expect(writes).toBeGreaterThan(200);
  isOver = true;
  await w.run(flood);
  expect(await w.run(done)).toBe('paired');
  expect(paired).toEqual([ADA.did]);
  let answers = 0;
  for (const [i] of crowd.entries()) {
    const { messages } = await w.run(
      read(`mb-p-crowd-${i}`, { ...w.o, limit: 200, fetch: w.service.client('looker') }),
    );
    answers += messages.filter((m) => m.from === SERVER.did).length;
  }
  // Ten in each minute that it lasted.
  expect(answers).toBeGreaterThan(0);
  expect(answers).toBeLessThanOrEqual(30);
});

test('a proof is worth nothing under another key, and one that is none is no try', async () => {
  const w = world();
  let proof = '';
  const { done, ready, paired } = open(w);
  await ready();
  // Eve sits where the server should be, for a mailbox of her own, and hands on what she gets.
  const methods = new Map<string, Handler>([
    [
      'pair',
      (params) => {
        if (!params.proof) return { did: SERVER.did };
        proof = params.proof;
        return {};
      },
    ],
  ]);
  const stop = new AbortController();
  const eve = serve(pairingRoom('mb-p-other'), EVE, { ...w.o, methods, signal: stop.signal });
  await expect(w.run(pair('mb-p-other', CODE, ADA, as(w, 'ada')))).rejects.toMatchObject({ code: 'call_timeout' });
  for (const given of [proof, 7, 'x', '']) {
    await expect(w.run(call(pairingRoom(MAILBOX), 'pair', { proof: given }, EVE, as(w, 'eve')))).rejects.toMatchObject({
      code: 'rpc',
    });
  }
  // Also as herself: who answers must know the code.
  methods.set('pair', (params) => (params.proof ? { proof: params.proof } : { did: EVE.did }));
  await expect(w.run(pair('mb-p-other', CODE, ADA, as(w, 'ada2')))).rejects.toMatchObject({ code: 'not_paired' });
  methods.set('pair', () => ({ did: 'me' }));
  await expect(w.run(pair('mb-p-other', CODE, ADA, as(w, 'ada3')))).rejects.toMatchObject({ code: 'not_paired' });
  stop.abort();
  await w.run(eve);
  expect(await w.run(pair(MAILBOX, CODE, ADA, as(w, 'ada')))).toBe(SERVER.did);
  expect(await w.run(done)).toBe('paired');
  expect(paired).toEqual([ADA.did]);
});

test('a key that cannot be kept is not let in', async () => {
  const w = world();
  const { done, ready } = open(w, () => {
    throw new Error('disk full');
  });
  await ready();
  await expect(w.run(pair(MAILBOX, CODE, ADA, as(w, 'ada')))).rejects.toMatchObject({ rpc: { code: -32603 } });
  expect(await w.run(done)).toBe('paired');
});

test('codes: 130 bits, read as they may be typed', () => {
  expect(new Set(Array.from({ length: 1000 }, () => pairingCode(random))).size).toBe(1000);
  fc.assert(
    fc.property(fc.uint8Array({ minLength: 26, maxLength: 26 }), (bytes) => {
      const code = pairingCode(() => bytes);
      expect(code).toMatch(/^([0-9A-HJKMNP-TV-Z]{5}-){5}[0-9A-HJKMNP-TV-Z]$/);
      const typed = code.replaceAll('0', 'o').replaceAll('1', 'l').replaceAll('-', ' ');
      expect(normalCode(` ${typed}\n`)).toBe(code.replaceAll('-', ''));
    }),
  );
  for (const wrong of ['', 'x', `${CODE}0`, CODE.slice(1), `${CODE.slice(0, -1)}U`, `${CODE.slice(0, -1)}ß`]) {
    expect(() => normalCode(wrong)).toThrow(expect.objectContaining({ code: 'bad_code' }));
  }
});

const folder = tempDir();

test('pairs are kept in a file for the owner alone', async () => {
  const path = join(folder, 'pairs.json');
  const pairs = new PairsFile(path);
  expect(await pairs.callersOf(MAILBOX)).toEqual([]);
  expect(await pairs.serverOf(MAILBOX)).toBeUndefined();
  // As two processes would.
  await Promise.all([pairs.addCaller(MAILBOX, ADA.did), new PairsFile(path).addCaller(MAILBOX, EVE.did)]);
  await pairs.addCaller(MAILBOX, ADA.did);
  await pairs.setServer(MAILBOX, { did: SERVER.did, used: 'x' });
  const again = new PairsFile(path);
  expect((await again.callersOf(MAILBOX)).sort()).toEqual([ADA.did, EVE.did].sort());
  expect(await again.serverOf(MAILBOX)).toEqual({ did: SERVER.did, used: 'x' });
  expect((await stat(path)).mode & 0o777).toBe(0o600);
  await chmod(path, 0o620);
  await expect(again.callersOf(MAILBOX)).rejects.toMatchObject({ code: 'bad_pairs' });
});

test.each([
  '',
  '{}',
  '[]',
  '{"callers":{"mb-x":["bob"]},"servers":{}}',
  '{"callers":{},"servers":{"mb-x":{"did":"x","used":""}}}',
])('a file that holds no pairs is left as it is: %s', async (text) => {
  const path = join(folder, 'bad.json');
  await writeFile(path, text, { mode: 0o600 });
  await expect(new PairsFile(path).addCaller(MAILBOX, ADA.did)).rejects.toMatchObject({ code: 'bad_pairs' });
  expect(await readFile(path, 'utf8')).toBe(text);
});
