import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { methods as defaultMethods } from '../src/builtin.ts';
import { call } from '../src/call.ts';
import type { Channel } from '../src/channel.ts';
import type { Handler } from '../src/dispatch.ts';
import { transportOf } from '../src/http.ts';
import { memoryLedger } from '../src/ledger.ts';
import { mcpCallTool } from '../src/mcp-client.ts';
import { setNote } from '../src/notes.ts';
import { read } from '../src/rooms.ts';
import { serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import { FRAME_MEMBER, type SpillRef } from '../src/spill.ts';
import { PROFILES, type Profile, requestFrame, type World, world } from './support.ts';

// One who means it: with keys, time, and everything that was ever said.

const BOX = 'mb-p-attacked';
const MINE = 'mb-p-victim';

async function attacked(profile: Profile, o: { entries?: number } = {}) {
  const w = world(profile);
  const bob = Signer.generate();
  const alice = Signer.generate();
  const eve = Signer.generate();
  const runs: string[] = [];
  const captured: string[] = [];
  const fetch = ((url: string, init?: RequestInit) => {
    if (/say-signed/.test(url)) captured.push(url);
    return w.service.client('alice')(url, init);
  }) as typeof globalThis.fetch;
  const gates = new Map<number, () => void>();
  const methods = new Map<string, Handler>([
    ['pay', ({ n }, { from }) => `${runs.push(`${n} of ${from}`)} paid`],
    [
      'wait',
      async ({ n }, { from }) => {
        runs.push(`${n} of ${from}`);
        await new Promise<void>((resolve) => gates.set(n, resolve));
        return `waited ${n}`;
      },
    ],
  ]);
  const stop = new AbortController();
  let isReady = false;
  const ended = serve(BOX, bob, {
    ...w.o,
    fetch: w.service.client('bob'),
    methods,
    ledger: memoryLedger(o),
    concurrency: 8,
    signal: stop.signal,
    onReady: () => (isReady = true),
  });
  await w.until(() => isReady);
  return {
    w,
    bob,
    alice,
    eve,
    runs,
    captured,
    gates,
    how: { ...w.o, fetch, replyTo: MINE, peer: bob.did },
    say: (key: Signer, room: string, text: string) =>
      w.run(key.say(room, text, { ...w.o, fetch: w.service.client(key.did) })),
    async end() {
      stop.abort();
      await w.run(ended);
      // Whatever was tried: nothing ran twice.
      expect(new Set(runs).size).toBe(runs.length);
    },
  };
}

const asked = (id: unknown, method: string, n: number, room = MINE): string =>
  requestFrame(id, method, { n, _meta: { 'chat.technocore/reply': room } });

const texts = async (w: World, room: string): Promise<string[]> =>
  (await w.run(read(room, { ...w.o, limit: 200 }))).messages.map(({ text }) => text);

describe.each(PROFILES)('an attacker, %s', (profile: Profile) => {
  test('who floods the ledger is refused, and nobody else’s answer is dropped for it', async () => {
    const { w, alice, eve, runs, how, say, end } = await attacked(profile, { entries: 64 });
    expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...how, id: 'mine' }))).toBe('1 paid');
    for (let i = 0; i < 40; i++) {
      const many = Array.from({ length: 20 }, (_, k) =>
        JSON.parse(asked(`e${i}-${k}`, 'pay', 1000 + i * 20 + k, 'mb-p-e')),
      );
      await say(eve, BOX, JSON.stringify(many));
    }
    await w.clock.advance(2000);
    // A quarter for one key, and what it cannot have is refused.
    expect(runs.filter((run) => run.endsWith(eve.did))).toHaveLength(16);
    expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...how, id: 'mine' }))).toBe('1 paid');
    // With many keys the books are full for newcomers, not for those who were there before, and nothing is forgotten.
    for (let i = 0; i < 12; i++) {
      const key = Signer.generate();
      const many = Array.from({ length: 16 }, (_, k) =>
        JSON.parse(asked(`k${i}-${k}`, 'pay', 5000 + i * 16 + k, 'mb-p-e')),
      );
      await say(key, BOX, JSON.stringify(many));
    }
    await w.clock.advance(2000);
    expect(runs.length).toBe(48);
    expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...how, id: 'mine' }))).toBe('1 paid');
    const newcomer = call(BOX, 'pay', { n: 2 }, Signer.generate(), { ...how, replyTo: 'mb-p-late' });
    await expect(w.run(newcomer)).rejects.toMatchObject({ rpc: { code: 1002 } });
    for (let n = 49; n < 64; n++) expect(await w.run(call(BOX, 'pay', { n }, alice, how))).toBe(`${n} paid`);
    await expect(w.run(call(BOX, 'pay', { n: 64 }, alice, how))).rejects.toMatchObject({ rpc: { code: 1002 } });
    await end();
  });

  test('who sends on what was signed, copies it, answers it, or asks under its id, changes nothing', async () => {
    const { w, bob, alice, eve, runs, captured, gates, how, say, end } = await attacked(profile);
    await say(eve, MINE, 'hello');
    const waiting = call(BOX, 'wait', { n: 1 }, alice, how);
    waiting.catch(() => {});
    const own = call(BOX, 'wait', { n: 2 }, alice, { ...how, id: 'small-2' });
    own.catch(() => {});
    await w.until(() => gates.size === 2);
    const frames = (await texts(w, BOX)).filter((text) => text.includes('"wait"'));
    expect(frames).toHaveLength(2);
    for (const frame of frames) {
      const { id } = JSON.parse(frame);
      await say(eve, BOX, frame);
      await say(eve, BOX, asked(id, 'pay', 77));
      await say(eve, MINE, JSON.stringify({ jsonrpc: '2.0', id, result: 'forged' }));
      await say(
        eve,
        MINE,
        JSON.stringify({ jsonrpc: '2.0', id, error: { code: 1001, message: 'x', data: { nonce: '1769860800000' } } }),
      );
      await say(
        eve,
        MINE,
        JSON.stringify({
          jsonrpc: '2.0',
          id,
          [FRAME_MEMBER]: { ns: 'p-x', keys: ['a'], bytes: 1, sha256: 'a'.repeat(64) },
        }),
      );
    }
    for (const url of captured) for (let i = 0; i < 3; i++) await w.service.fetch(url);
    await w.clock.advance(2000);
    for (const go of gates.values()) go();
    expect(await w.run(waiting)).toBe('waited 1');
    expect(await w.run(own)).toBe('waited 2');
    // Of what eve asked under their ids nothing ran.
    expect(runs.sort()).toEqual([`1 of ${alice.did}`, `2 of ${alice.did}`]);
    for (const text of await texts(w, MINE)) if (text.includes('paid')) expect.unreachable(text);
    expect(bob.did).not.toBe(eve.did);
    await end();
  });
});

test('ids asked and answered beforehand are free again when somebody else needs them', async () => {
  const { w, alice, eve, how, say, end } = await attacked('modern');
  await say(eve, MINE, 'hello');
  for (let id = 1; id <= 5; id++) await say(eve, BOX, asked(`${id}`, 'pay', 100 + id));
  await w.clock.advance(65_000);
  expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...how, id: '3' }))).toMatch(/paid/);
  await end();
});

test('an answer that arrives before the word that the request did ends the call', async () => {
  let listener: Parameters<Channel['listen']>[0] | undefined;
  const channel: Channel = {
    room: 'session',
    self: 'me',
    listen: async (l) => {
      listener = l;
      return () => {};
    },
    // A channel of somebody else's, whose word never comes.
    send: (text) => {
      const { id } = JSON.parse(text);
      queueMicrotask(() =>
        listener!.message({
          from: 'you',
          text: JSON.stringify({ jsonrpc: '2.0', id, result: 7 }),
          room: 'session',
          seq: 1,
        }),
      );
      return new Promise(() => {});
    },
  };
  const w = world();
  expect(await w.run(call(channel, 'x', {}, Signer.generate(), w.o))).toBe(7);
  channel.send = () => new Promise(() => {});
  const late = call(channel, 'x', {}, Signer.generate(), { ...w.o, timeoutMs: 1000 });
  await expect(w.run(late)).rejects.toMatchObject({ code: 'call_timeout' });
});

test('spilled junk of strangers does not use up what is read of the true answer', async () => {
  const w = world();
  const bob = Signer.generate();
  const stop = new AbortController();
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => (go = resolve));
  let id: string | undefined;
  const methods = new Map<string, Handler>([
    [
      'big',
      async (_p, context) => {
        id = context.id as string;
        await gate;
        return 'x'.repeat(6000);
      },
    ],
  ]);
  const ended = serve(BOX, bob, { ...w.o, methods, signal: stop.signal });
  await w.clock.advance(100);
  // Whoever answers first is believed, as none is named; junk is no answer.
  const answer = call(BOX, 'big', {}, Signer.generate(), { ...w.o, replyTo: MINE, timeoutMs: 60_000 });
  answer.catch(() => {});
  await w.until(() => id);
  const eve = Signer.generate();
  for (let i = 0; i < 6; i++) {
    const ref = { ns: 'p-none', keys: [`k${i}`], bytes: 5, sha256: 'b'.repeat(64) };
    await w.run(eve.say(MINE, JSON.stringify({ jsonrpc: '2.0', id: id!, [FRAME_MEMBER]: ref }), w.o));
  }
  await w.clock.advance(5000);
  go();
  expect(await w.run(answer)).toHaveLength(6000);
  stop.abort();
  await w.run(ended);
});

const DEEP = `${'['.repeat(12_000)}${']'.repeat(12_000)}`;

/** Puts a text into notes as ours are, and whatever it is. */
async function spilledByHand(w: World, text: string): Promise<SpillRef> {
  const bytes = Buffer.from(text);
  const keys: string[] = [];
  for (let at = 0; at < bytes.length; at += 6000) {
    keys.push(`k${keys.length}`);
    await w.run(setNote('p-deep', keys.at(-1)!, bytes.subarray(at, at + 6000).toString('base64url'), w.o));
  }
  return { ns: 'p-deep', keys, bytes: bytes.length, sha256: createHash('sha256').update(bytes).digest('hex') };
}

test('an answer nested ten thousand deep is no answer, and nothing is thrown that is not ours', async () => {
  const w = world();
  const bob = Signer.generate();
  const stop = new AbortController();
  let id: string | undefined;
  const methods = new Map<string, Handler>([
    [
      'tools/call',
      (_p, context) => {
        id = context.id as string;
        return new Promise(() => {});
      },
    ],
  ]);
  const ended = serve(BOX, bob, { ...w.o, methods, signal: stop.signal });
  await w.clock.advance(100);
  const tool = mcpCallTool(BOX, 'x', {}, Signer.generate(), {
    ...w.o,
    replyTo: MINE,
    timeoutMs: 20_000,
    peer: bob.did,
  });
  tool.catch(() => {});
  await w.until(() => id);
  const ref = await spilledByHand(w, `{"jsonrpc":"2.0","id":${JSON.stringify(id)},"result":{"resultType":${DEEP}}}`);
  await w.run(bob.say(MINE, JSON.stringify({ jsonrpc: '2.0', id: id!, [FRAME_MEMBER]: ref }), w.o));
  await expect(w.run(tool)).rejects.toMatchObject({ code: 'spill_lost' });
  stop.abort();
  await w.run(ended);
});

test('a request nested as deep runs nothing, and is answered', async () => {
  const w = world();
  const ran: unknown[] = [];
  const stop = new AbortController();
  const bob = Signer.generate();
  const methods = new Map<string, Handler>([['run', (params) => void ran.push(params)]]);
  const ended = serve(BOX, bob, { ...w.o, methods, spill: true, signal: stop.signal });
  await w.clock.advance(100);
  const eve = Signer.generate();
  await w.run(eve.say(MINE, 'mine', w.o));
  const meta = { _meta: { 'chat.technocore/reply': MINE } };
  const ref = await spilledByHand(w, `{"jsonrpc":"2.0","id":1,"method":"run","params":{"deep":${DEEP}}}`);
  await w.run(eve.say(BOX, JSON.stringify({ jsonrpc: '2.0', id: 1, params: meta, [FRAME_MEMBER]: ref }), w.o));
  await w.clock.advance(5000);
  const { messages } = await w.run(read(MINE, w.o));
  const answers = messages.filter(({ from }) => from === bob.did).map(({ text }) => JSON.parse(text));
  expect(answers).toMatchObject([{ id: 1, error: { code: -32603, message: expect.stringContaining('notes') } }]);
  expect(ran).toEqual([]);
  stop.abort();
  await w.run(ended);
});

test('fault: a body longer than it says, from a fetch that is not the platform’s, is cut at its cap', async () => {
  let pulled = 0;
  const fetch = (async () => {
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        pulled += 1 << 20;
        controller.enqueue(new Uint8Array(1 << 20).fill(120));
      },
    });
    return new Response(body, { headers: { 'content-length': '10' } });
  }) as typeof globalThis.fetch;
  const w = world();
  await expect(w.run(read('x', { ...w.o, fetch }))).rejects.toMatchObject({ code: 'unavailable' });
  expect(pulled).toBeLessThan(200 << 20);
});

test('a name and a password in an address are shown by no error', async () => {
  const shown = (cause: unknown): string => {
    const { message, stack, ...rest } = cause as Error;
    return `${message} ${stack} ${JSON.stringify(rest)} ${(cause as Error).cause}`;
  };
  const fetch = (async () => {
    throw new TypeError('no');
  }) as typeof globalThis.fetch;
  const w = world();
  for (const base of ['https://me:hunter2@chat.test', 'ftp://me:hunter2@chat.test', 'me:hunter2@chat.test']) {
    const failed = await w.run(read('x', { ...w.o, base, fetch })).catch((cause) => cause);
    expect(shown(failed)).not.toContain('hunter2');
    expect(() => transportOf({ base: `${base}/ x` })).toThrow(expect.not.stringContaining('hunter2'));
  }
});

test('a batch that asks for many verifications lets everything else go on between them', async () => {
  const verify = defaultMethods.get('technocore/verify')!;
  const key = Signer.generate();
  const { did, sig } = key.signMessage('lobby', '7', 'hello');
  const message = { seq: 1, ts: '', from: did, nonce: '7', text: 'another text', sig };
  const service = { base: 'http://local.test' };
  let answered = 0;
  let turns = 0;
  const seen: number[] = [];
  const answers = Array.from({ length: 40 }, async () => {
    const answer = await verify({ room: 'lobby', message }, { service } as never);
    answered++;
    return answer;
  });
  while (answered < 40) {
    await new Promise((resolve) => setImmediate(resolve));
    turns++;
    seen.push(answered);
  }
  expect((await Promise.all(answers)).every((answer) => !(answer as { valid: boolean }).valid)).toBe(true);
  expect(turns).toBeGreaterThanOrEqual(40);
  // Never more than a few between two turns.
  expect(Math.max(...seen.map((n, i) => n - (seen[i - 1] ?? 0)))).toBeLessThanOrEqual(2);
});
