import { getEventListeners } from 'node:events';
import { describe, expect, test } from 'vitest';
import { call, notify } from '../src/call.ts';
import { type Channel, type Listener, mailboxPair } from '../src/channel.ts';
import { converse } from '../src/conversation.ts';
import { CallTimeout, RingGap, TechnocoreError } from '../src/errors.ts';
import { Feed } from '../src/feed.ts';
import { encode } from '../src/frames.ts';
import { transportOf } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import type { CallOptions } from '../src/line.ts';
import { createLocalService } from '../src/local.ts';
import { acceptSealed, connectSealed } from '../src/meeting.ts';
import { identityNote } from '../src/names.ts';
import { setNote } from '../src/notes.ts';
import { read, say } from '../src/rooms.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import type { Signer } from '../src/signer.ts';
import { broken, FREE, faulty, isSay, PROFILES, type Profile, signer, type World, world } from './support.ts';
import { settled } from './virtual-clock.ts';

const client = signer(1);
const server = signer(2);
const eve = signer(3);
const BOX = 'mb-p-server';
const MINE = 'mb-p-client';
const DAY = 86_400_000;

/** A world with a way to it for each party, as processes of their own have. */
function parties(profile: Profile = 'modern', limits = {}, shown?: Parameters<typeof world>[2]) {
  const w = world(profile, limits, shown);
  const other = { ...w.o, fetch: w.service.client('other') };
  return {
    ...w,
    other,
    ask: (method: string, params?: any, o: CallOptions = {}, to: string | Channel = BOX, key: Signer = client) =>
      call(to, method, params, key, { ...w.o, replyTo: MINE, ...o }),
  };
}

/** Serves in the background until the test stops it. */
async function served(w: World & { other: World['o'] }, o: ServeOptions = {}, key = server) {
  const stop = new AbortController();
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => (ready = resolve));
  const methods = new Map<string, any>([
    ['echo', (params: unknown) => params],
    ['add', ({ a, b }: any) => a + b],
  ]);
  const over = serve(BOX, key, { ...w.other, methods, signal: stop.signal, onReady: ready, ...o });
  await w.run(isReady);
  return async () => {
    stop.abort();
    await w.run(over);
  };
}

/** A peer of its own making: does what `answer` says with each line that comes. */
async function peer(
  w: World & { other: World['o'] },
  answer: (frame: any, send: (frame: unknown, by?: Signer) => Promise<unknown>) => unknown,
  key = server,
): Promise<void> {
  const listener: Listener = {
    message(m) {
      const frame = JSON.parse(m.text.startsWith('{') || m.text.startsWith('[') ? m.text : 'null');
      if (!frame?.method) return;
      const to = frame.params?._meta?.['chat.technocore/reply'] ?? MINE;
      void answer(frame, (reply, by = key) =>
        by.say(to, typeof reply === 'string' ? reply : encode(reply as any), w.other),
      );
    },
    gap() {},
    end() {},
  };
  await key.say(BOX, 'mailbox opened', w.other);
  await w.run(new Feed(transportOf(w.other), BOX).listen(listener));
}

const result = (frame: any, value: unknown): object => ({ jsonrpc: '2.0', id: frame.id, result: value });

describe.each(PROFILES)('a call, %s', (profile) => {
  test('brings the result, whatever it is, or the error of the other side', async () => {
    const w = parties(profile);
    const stop = await served(w);
    for (const value of [{ a: [1, null, 'ü\u200b😀\n\u007f'] }, {}])
      expect(await w.run(w.ask('echo', value))).toEqual(value);
    expect(await w.run(w.ask('add', { a: 1, b: 2 }))).toBe(3);
    const e = await w.run(w.ask('nope').catch((e) => e));
    expect(e).toMatchObject({ code: 'rpc', rpc: { code: -32601 } });
    await stop();
  });

  test('fault 46: an answer that comes the moment after the request was written is not missed', async () => {
    const w = parties(profile);
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!isSay(url, init) || !url.includes(BOX)) return undefined;
      const reply = await w.o.fetch(url, init);
      const { messages } = await read(BOX, w.other);
      await server.say(MINE, encode(result(JSON.parse(messages.at(-1)!.text), 'quick') as any), w.other);
      return reply;
    });
    expect(await w.run(w.ask('m', {}, { fetch }))).toBe('quick');
  });

  test('fault 40: what can be known to fail sends nothing', async () => {
    const w = parties(profile);
    const broken: any = {
      get a() {
        throw new Error('a getter');
      },
    };
    const refused: [Promise<unknown>, object | string][] = [
      [w.ask('m', {}, {}, 'lobby'), { code: 'bad_name' }],
      [w.ask('m', {}, {}, 'mb-x y'), { code: 'bad_name' }],
      [w.ask('m', {}, { replyTo: 'lobby' }), { code: 'bad_name' }],
      [w.ask('m', {}, { replyTo: BOX }), { code: 'bad_name' }],
      [
        call(BOX, 'm', {}, client, w.o),
        { code: 'bad_name', message: expect.stringMatching(/option replyTo.*got und/) },
      ],
      [w.ask('m', 7), { code: 'bad_params' }],
      [w.ask('m', null), { code: 'bad_params' }],
      [notify(BOX, 'm', 7 as any, client, w.o), { code: 'bad_params' }],
      [notify(BOX, 'm', null as any, client, w.o), { code: 'bad_params' }],
      [w.ask('m', broken), { code: 'bad_frame' }],
      [notify(BOX, 'm', broken, client, w.o), { code: 'bad_frame' }],
      // A number would never be found in the answer.
      [w.ask('m', {}, { id: 5 as any }), { code: 'bad_text', message: expect.stringContaining('the option id') }],
      [w.ask('m', { text: 'x'.repeat(4096) }), { code: 'frame_too_long', limit: 4096 }],
      [w.ask('m', { n: 1n }), { code: 'bad_frame' }],
      [w.ask('m', {}, { signal: AbortSignal.abort('now') }), 'now'],
      [notify('lobby', 'm', {}, client, w.o), { code: 'bad_name' }],
      [notify(BOX, 'm', { text: 'x'.repeat(4096) }, client, w.o), { code: 'frame_too_long' }],
    ];
    for (const [work, e] of refused) {
      if (typeof e === 'string') await expect(work).rejects.toBe(e);
      else await expect(work).rejects.toMatchObject(e);
    }
    expect(w.service.stats.requests).toBe(0);
  });

  test('fault 37: all calls of a client share one reply room', async () => {
    const w = parties(profile, { newRoomsPerDay: 2 });
    const stop = await served(w);
    for (let i = 0; i < 30; i++) expect(await w.run(w.ask('add', { a: i, b: 1 }))).toBe(i + 1);
    expect(w.service.stats.rooms).toBe(2);
    await stop();
  });

  test('64 calls in flight: all answers right, one parked read a side, 2.15 GETs a call, writes counted', async () => {
    const w = parties(profile);
    // Each request takes its time, or all would be one instant.
    const slow = (fetch: typeof globalThis.fetch) => faulty(fetch, async () => void (await w.clock.sleep(1)));
    w.other.fetch = slow(w.other.fetch);
    const o = { fetch: slow(w.o.fetch) };
    const stop = await served(w);
    expect(await w.run(w.ask('add', { a: 0, b: 0 }, o))).toBe(0);
    const { requests } = w.service.stats;
    for (let round = 0; round < 2; round++) {
      const all = Array.from({ length: 64 }, (_, i) => w.ask('add', { a: i, b: round }, o));
      expect(await w.run(Promise.all(all))).toEqual(Array.from({ length: 64 }, (_, i) => i + round));
    }
    expect((w.service.stats.requests - requests) / (2 * 64)).toBeLessThanOrEqual(2.15);
    expect(w.service.stats.parkedMost).toBe(2);
    await stop();
  });

  test('64 calls in flight where readers are woken in steps', async () => {
    const w = parties(profile, { wakeStepMs: 500 });
    const slow = (fetch: typeof globalThis.fetch) => faulty(fetch, async () => void (await w.clock.sleep(2)));
    w.other.fetch = slow(w.other.fetch);
    const o = { fetch: slow(w.o.fetch) };
    const stop = await served(w);
    for (let i = 0; i < 6; i++) expect(await w.run(w.ask('add', { a: i, b: 0 }, o))).toBe(i);
    const { requests } = w.service.stats;
    const all = Array.from({ length: 64 }, (_, i) => w.ask('add', { a: i, b: 1 }, o));
    expect(await w.run(Promise.all(all))).toEqual(Array.from({ length: 64 }, (_, i) => i + 1));
    expect((w.service.stats.requests - requests) / 64).toBeLessThanOrEqual(2.4);
    await stop();
  });

  test('one after the other, a call waits for nothing but the network', async () => {
    const w = parties(profile);
    const slow = (fetch: typeof globalThis.fetch) => faulty(fetch, async () => void (await w.clock.sleep(1)));
    w.other.fetch = slow(w.other.fetch);
    const o = { fetch: slow(w.o.fetch) };
    const stop = await served(w);
    await w.run(w.ask('add', { a: 0, b: 0 }, o));
    const begun = w.clock.now();
    for (let i = 0; i < 10; i++) {
      const work = w.ask('add', { a: i, b: 0 }, o);
      let over = false;
      work.then(() => (over = true));
      while (!over) await w.clock.advance(0.5);
    }
    expect(w.clock.now() - begun).toBeLessThan(10 * 6);
    await stop();
  });

  test('fault 62: one key can ask and answer, others and itself, in one process', async () => {
    const w = parties(profile);
    const stop = await served(w, {}, client);
    expect(await w.run(w.ask('add', { a: 1, b: 2 }))).toBe(3);
    await stop();
    // Nothing went round in circles.
    expect((await read(BOX, w.o)).messages.length).toBe(2);
    expect((await read(MINE, w.o)).messages.length).toBe(2);
  });

  test('fault 70: only the expected key answers: the one named, the one called, or the first that did', async () => {
    const w = parties(profile);
    await peer(w, async (frame, send) => {
      if (frame.method !== 'honest') await send(result(frame, 'forged'), eve);
      await send(result(frame, 'right'));
    });
    expect(await w.run(w.ask('m', {}, { peer: server.did }))).toBe('right');
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'refused', from: eve.did }));
    await publishIdentity(server, { mailbox: BOX }, w.o);
    expect(await w.run(w.ask('m', {}, {}, server.did))).toBe('right');
    expect(await w.run(w.ask('m', {}))).toBe('right');
  });

  test('fault 70: without a word of who may answer the first one does, and stays the only one, for calls under way too', async () => {
    const w = parties(profile);
    const late: any[] = [];
    await peer(w, async (frame, send) => {
      if (frame.method === 'late') late.push([frame, send]);
      else {
        await send(result(frame, 'right'));
        for (const [f, s] of late) {
          await s(result(f, 'forged'), eve);
          await s(result(f, 'right'));
        }
      }
    });
    const under = w.ask('late');
    await w.clock.advance(5);
    expect(await w.run(w.ask('now'))).toBe('right');
    expect(await w.run(under)).toBe('right');
  });

  test('fault 70: a stranger’s answers, alone, end in a timeout that is told of', async () => {
    const w = parties(profile);
    await peer(w, (frame, send) => send(result(frame, 'forged'), eve));
    const e = await w.run(w.ask('m', {}, { peer: server.did, timeoutMs: 3000 }).catch((e) => e));
    expect(e).toBeInstanceOf(CallTimeout);
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'refused', reason: 'an answer from another key' }));
  });

  test('junk in the reply room disturbs nobody', async () => {
    const w = parties(profile);
    await peer(w, async (frame, send) => {
      const junk = [
        '[',
        '['.repeat(4096),
        'null',
        '[]',
        '{}',
        'hello',
        { jsonrpc: '2.0', id: 1, result: 1 },
        { jsonrpc: '2.0', id: null, result: 1 },
        { jsonrpc: '2.0', id: [frame.id], result: 1 },
        { jsonrpc: '2.0', id: '__proto__', result: 1 },
        { jsonrpc: '2.0', id: `${frame.id}x`, result: 1 },
        { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: frame.id } },
        { jsonrpc: '2.0', id: frame.id, method: 'm' },
        [[[result(frame, 'too deep')]]],
      ];
      for (const line of junk) await send(line);
      await send([{ jsonrpc: '2.0', id: 'other', result: 1 }, result(frame, 'right')]);
    });
    expect(await w.run(w.ask('m'))).toBe('right');
  });

  test('an answer that is none by the specification is an error that says so', async () => {
    const bad = [
      (id: string) => ({ jsonrpc: '2.0', id, result: 1, error: { code: 1, message: 'x' } }),
      (id: string) => ({ jsonrpc: '1.0', id, result: 1 }),
      (id: string) => ({ jsonrpc: '2.0', id, error: 'x' }),
      (id: string) => ({ jsonrpc: '2.0', id, error: { code: '1', message: 'x' } }),
    ];
    for (const make of bad) {
      const w = parties(profile);
      await peer(w, (frame, send) => send(make(frame.id)));
      await expect(w.run(w.ask('m'))).rejects.toMatchObject({ code: 'bad_response' });
    }
  });

  test('the stack of what a call throws shows who called, once', async () => {
    const w = parties();
    const stop = await served(w);
    async function hopeful(method: string, to: string): Promise<void> {
      await w.ask(method, {}, { timeoutMs: 1000 }, to);
    }
    for (const [method, to, code] of [
      ['none', BOX, 'rpc'],
      ['add', 'mb-p-tpyo', 'call_timeout'],
    ] as const) {
      const e: TechnocoreError = await w.run(hopeful(method, to).catch((e) => e));
      expect(e.code).toBe(code);
      expect(e.stack!.startsWith(`${e.name}: ${e.message}\n    at `)).toBe(true);
      expect(e.stack!.match(/\bhopeful\b/g)).toHaveLength(1);
    }
    await stop();
    // So does that of the others that go through what is shared.
    const gone = { ...w.o, fetch: (async () => new Response('404 no', { status: 404 })) as typeof fetch };
    for (const open of [
      () => serve(BOX, server, gone),
      () => acceptSealed(BOX, server, () => {}, gone),
      () =>
        connectSealed(server.did, client, { ...gone, key: new Uint8Array(32).fill(9), room: 'p-x', timeoutMs: 1000 }),
    ]) {
      const opened = async (): Promise<unknown> => await open();
      const e: any = await w.run(opened().catch((e) => e));
      expect([e.code, e.stack.match(/\bopened\b/g)?.length]).toEqual([
        expect.stringMatching(/^(http|call_timeout)$/),
        1,
      ]);
    }
  });

  test('fault 59: a timeout says what is known: no such room, no answer, not even sent', async () => {
    const w = parties(profile);
    const none = await w.run(w.ask('m', {}, { timeoutMs: 2000, id: 'mine' }, 'mb-p-tpyo').catch((e) => e));
    expect(none).toMatchObject({ code: 'call_timeout', room: 'mb-p-tpyo', id: 'mine', reason: 'no-room' });
    expect(none.afterMs).toBeGreaterThanOrEqual(2000);
    expect(none.message).toMatch(/check its name/);
    // Our own earlier requests make no server of an empty room.
    expect(await w.run(w.ask('m', {}, { timeoutMs: 2000 }, 'mb-p-tpyo').catch((e) => e))).toMatchObject({
      reason: 'no-room',
    });
    await server.say(BOX, 'mailbox opened', w.o);
    expect(await w.run(w.ask('m', {}, { timeoutMs: 2000 }).catch((e) => e))).toMatchObject({ reason: 'no-answer' });
    // What to do about one that is slow, or that starts later.
    expect(none.message).toMatch(/retry/);
    const dead = faulty(w.o.fetch, () => Promise.reject(broken('ECONNREFUSED')));
    const unsent = await w.run(w.ask('m', {}, { timeoutMs: 2000, fetch: dead }).catch((e) => e));
    expect(unsent).toMatchObject({ code: 'call_timeout', message: expect.stringMatching(/not sent yet/) });
  });

  test('a timeout knows a server of our own key, and one that answered before', async () => {
    const w = parties(profile);
    const stop = await served(w, { presence: false }, client);
    const late = { timeoutMs: 2000 };
    await stop();
    const opened = await w.run(w.ask('add', {}, late).catch((e) => e));
    expect(opened).toMatchObject({
      reason: 'no-answer',
      message: expect.stringMatching(/unknown.*timeoutMs.*retry/),
    });

    // One that opens nothing, as those of other libraries.
    const fetch = w.service.client('one more');
    const bare = 'mb-p-bare';
    let isThere = true;
    const listener: Listener = {
      message({ text }) {
        if (isThere) void client.say(MINE, encode(result(JSON.parse(text), 'yes') as any), w.other);
      },
      gap() {},
      end() {},
    };
    await w.run(new Feed(transportOf(w.other), bare).listen(listener));
    expect(await w.run(w.ask('m', {}, { fetch }, bare))).toBe('yes');
    isThere = false;
    expect(await w.run(w.ask('m', {}, { ...late, fetch }, bare).catch((e) => e))).toMatchObject({
      reason: 'no-answer',
      message: expect.stringMatching(/answered earlier/),
    });
  });

  test('a clock that is set back an hour prolongs no call by an hour', async () => {
    const w = parties(profile);
    let offset = 0;
    const clock = { now: () => w.clock.now() + offset, sleep: w.clock.sleep.bind(w.clock) };
    await server.say(BOX, 'mailbox opened', w.o);
    const work = w.ask('m', {}, { clock, timeoutMs: 10_000 }).catch((e) => e);
    await w.clock.advance(1000);
    offset = -3_600_000;
    await w.clock.advance(9001);
    expect(await work).toBeInstanceOf(CallTimeout);
  });

  test('fault 82: abort ends a call wherever it is, with its reason, and nothing is left of it', async () => {
    for (const afterMs of [0, 1, 50, 2000]) {
      for (const hang of [false, true]) {
        const w = parties(profile);
        await server.say(BOX, 'mailbox opened', w.o);
        const user = new AbortController();
        const fetch = faulty(w.o.fetch, (_url, init) =>
          hang
            ? new Promise((_, reject) => init.signal!.addEventListener('abort', () => reject(init.signal!.reason)))
            : undefined,
        );
        const work = w.ask('m', {}, { signal: user.signal, fetch, id: 'x' }).catch((e) => e);
        await w.clock.advance(afterMs);
        const reason = new TechnocoreError('unavailable', 'mine');
        user.abort(reason);
        expect(await work).toBe(reason);
        expect(getEventListeners(user.signal, 'abort')).toEqual([]);
        if (hang) continue;
        await settled();
        await settled();
        expect([w.clock.sleepers, w.service.stats.parked, w.service.stats.timers]).toEqual([0, 0, 0]);
        // The id is free again.
        const stop = await served(w);
        expect(await w.run(w.ask('echo', { again: 1 }, { id: 'x' }))).toEqual({ again: 1 });
        await stop();
      }
    }
  });

  test('fault 82: a hundred calls may share a signal, which has one listener then and none after', async () => {
    const w = parties(profile);
    const stop = await served(w);
    const warned: unknown[] = [];
    const warn = (warning: Error): void => void warned.push(warning.name);
    process.on('warning', warn);
    const user = new AbortController();
    const { signal } = user;
    const work = Array.from({ length: 30 }, (_, i) => w.ask('add', { a: i, b: 0 }, { signal }));
    const writes = Array.from({ length: 30 }, (_, i) => client.say('x', `${i}`, { ...w.o, signal }));
    await settled();
    expect(getEventListeners(signal, 'abort').length).toBeLessThanOrEqual(2);
    await w.run(Promise.all([...work, ...writes]));
    await settled();
    expect(getEventListeners(signal, 'abort')).toEqual([]);
    process.off('warning', warn);
    expect(warned).toEqual([]);
    await stop();
  });

  test('fault 82: of two calls on one mailbox one aborts, and the other gets its answer', async () => {
    const w = parties(profile);
    const held: (() => unknown)[] = [];
    await peer(w, (frame, send) => held.push(() => send(result(frame, frame.params.n))));
    const user = new AbortController();
    const one = w.ask('m', { n: 1 }, { signal: user.signal }).catch((e) => e);
    const two = w.ask('m', { n: 2 });
    await w.clock.advance(50);
    user.abort('no');
    expect(await one).toBe('no');
    for (const answer of held) await answer();
    expect(await w.run(two)).toBe(2);
    await settled();
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'late' }));
  });

  test('a call that begins while the listening of an aborted one is not over yet hears its answer', async () => {
    const w = parties(profile);
    const stop = await served(w);
    let go!: () => void;
    const gate = new Promise<void>((resolve) => (go = resolve));
    const fetch = faulty(w.o.fetch, async () => void (await gate));
    const user = new AbortController();
    const first = w.ask('add', { a: 1, b: 1 }, { fetch, signal: user.signal }).catch((e) => e);
    await settled();
    user.abort('no');
    expect(await first).toBe('no');
    const second = w.ask('add', { a: 2, b: 2 }, { fetch });
    await settled();
    go();
    expect(await w.run(second)).toBe(4);
    expect(await w.run(w.ask('add', { a: 3, b: 3 }, { fetch }))).toBe(6);
    await stop();
  });

  test('the same id twice at a time is refused; one after the other it brings the kept answer', async () => {
    const w = parties(profile);
    let n = 0;
    const stop = await served(w, { methods: new Map([['count', () => ++n]]) });
    const [one, two] = await w.run(
      Promise.allSettled([w.ask('count', {}, { id: 'x' }), w.ask('count', {}, { id: 'x' })]),
    );
    expect(one).toEqual({ status: 'fulfilled', value: 1 });
    expect(two).toMatchObject({ status: 'rejected', reason: { code: 'duplicate_id' } });
    expect(await w.run(w.ask('count', {}, { id: 'x' }))).toBe(1);
    expect(await w.run(w.ask('count', {}))).toBe(2);
    await stop();
  });

  test('fault 52: an answer that may be among the lost is a RingGap', async () => {
    const w = parties(profile, { roomRingBytes: 4000 });
    await peer(w, async (frame, send) => {
      await send(result(frame, 'lost'));
      for (let i = 0; i < 30; i++) await send(`${i} ${'x'.repeat(200)}`);
    });
    const held = faulty(w.o.fetch, async (url) => {
      // The reader is slow: all that comes meanwhile goes by.
      if (/wait=/.test(url) && url.includes(MINE)) await w.clock.sleep(500);
      return undefined;
    });
    const e = await w.run(w.ask('m', {}, { fetch: held }).catch((e) => e));
    expect(e).toBeInstanceOf(RingGap);
    expect(e).toMatchObject({ room: MINE, reason: 'overflow' });
  });

  test.each(['before', 'after'])(
    'what was lost before the request is none of its answers, seen %s the response to its write',
    async (when) => {
      const w = parties(profile, { roomRingBytes: 4000 });
      const slow = async (params: unknown): Promise<unknown> => {
        await w.clock.sleep(3000);
        return params;
      };
      const stop = await served(w, { methods: new Map([['slow', slow]]) });
      let seen = 0;
      let written = 0;
      const fetch = faulty(w.o.fetch, async (url, init) => {
        if (/wait=/.test(url) && url.includes(MINE)) await w.clock.sleep(500, init.signal!);
        if (when === 'after' || !isSay(url, init) || !url.includes(BOX)) return undefined;
        const response = await w.o.fetch(url, init);
        await w.clock.sleep(2000);
        written = w.clock.now();
        return response;
      });
      const onEvent = ({ kind }: { kind: string }): void => {
        if (kind === 'gap') seen = w.clock.now();
      };
      expect(await w.run(w.ask('slow', { n: 1 }, { fetch, onEvent }))).toEqual({ n: 1 });
      // While nobody reads there, others write more than the room keeps.
      const flood = async (): Promise<void> => {
        for (let i = 0; i < 30; i++) await eve.say(MINE, `${i} ${'x'.repeat(200)}`, w.other);
      };
      await w.run(flood());
      await w.clock.advance(10);
      expect(await w.run(w.ask('slow', { n: 2 }, { fetch, onEvent }))).toEqual({ n: 2 });
      expect(seen).toBeGreaterThan(0);
      expect(seen < written).toBe(when === 'before');
      await stop();
    },
  );

  test('fault 52: with a retry the same request is sent again, and the kept answer comes', async () => {
    const w = parties(profile, { roomRingBytes: 4000 });
    let runs = 0;
    const methods = new Map([['count', () => ++runs]]);
    const stop = await served(w, { methods });
    let flooded = false;
    const held = faulty(w.o.fetch, async (url, init) => {
      if (!/wait=/.test(url) || !url.includes(MINE) || flooded) return undefined;
      // The first answer is drowned before it is read.
      for (let room = await read(MINE, w.other); room.lastSeq < 2; room = await read(MINE, w.other))
        await w.clock.sleep(10, init.signal!);
      flooded = true;
      for (let i = 0; i < 30; i++) await eve.say(MINE, `${i} ${'x'.repeat(200)}`, w.other);
      return undefined;
    });
    expect(await w.run(w.ask('count', {}, { fetch: held, retry: 1 }))).toBe(1);
    expect(runs).toBe(1);
    await stop();
  });

  test('calls of one moment to a DID share one look at where it is reached, though the first of them is aborted', async () => {
    const w = parties(profile, { readsPerMinute: 120, writesPerMinute: 120 });
    const stop = await served(w);
    await w.run(publishIdentity(server, { mailbox: BOX }, w.other));
    const [looks, first] = [[] as string[], new AbortController()];
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!url.includes('/kv/did')) return undefined;
      looks.push(url);
      await w.clock.sleep(100, init.signal!);
      return undefined;
    });
    const ask = (n: number, o: CallOptions = {}) =>
      w.ask('echo', { n }, { fetch, batch: true, ...o }, server.did).catch((e) => e);
    const all = [ask(-1, { signal: first.signal }), ...Array.from({ length: 150 }, (_, n) => ask(n))];
    await w.clock.advance(50);
    first.abort('over');
    const [aborted, ...answers] = await w.run(Promise.all(all));
    expect(aborted).toBe('over');
    expect(answers).toEqual(answers.map((_, n) => ({ n })));
    expect(looks).toHaveLength(1);
    // A look that failed is not kept.
    let refuses = true;
    const reach = faulty(w.o.fetch, (url) =>
      refuses && url.includes('/kv/did') ? new Response('403 no', { status: 403 }) : undefined,
    );
    expect(await w.run(ask(1, { fetch: reach }))).toMatchObject({ code: 'forbidden' });
    refuses = false;
    expect(await w.run(ask(1, { fetch: reach }))).toEqual({ n: 1 });
    await stop();
  });

  test('what was lost is not known to be older than the request where the clock of the service was set back', async () => {
    let backMs = 0;
    const w = parties(profile, { roomRingBytes: 4000 }, (clock) => ({
      now: () => clock.now() - backMs,
      sleep: (ms, signal) => clock.sleep(ms, signal),
    }));
    const stop = await served(w);
    let isHeld = false;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      while (isHeld && url.includes(`/r/${MINE}?`)) await w.clock.sleep(100, init.signal!);
      return undefined;
    });
    expect(await w.run(w.ask('echo', { n: 1 }, { fetch }))).toEqual({ n: 1 });
    await w.clock.advance(1000);
    isHeld = true;
    const work = w.ask('echo', { n: 2 }, { fetch }).catch((e) => e);
    await w.clock.advance(1000);
    backMs = 3_600_000;
    for (let i = 0; i < 30; i++) await w.run(eve.say(MINE, `${i} ${'x'.repeat(200)}`, w.other));
    isHeld = false;
    expect(await w.run(work)).toMatchObject({ code: 'ring_gap' });
    await stop();
  });

  test('what is lost while the last attempt is being written is none of the answers to it', async () => {
    const w = parties(profile, { roomRingBytes: 4000 });
    const slow = async ({ n }: any): Promise<unknown> => {
      await w.clock.sleep(20_000);
      return n;
    };
    const stop = await served(w, { methods: new Map([['slow', slow]]) });
    let writes = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (/wait=/.test(url) && url.includes(MINE)) await w.clock.sleep(500, init.signal!);
      if (isSay(url, init) && url.includes(BOX) && ++writes === 2) await w.clock.sleep(6000);
      return undefined;
    });
    const flood = async (): Promise<void> => {
      for (let i = 0; i < 30; i++) await eve.say(MINE, `${i} ${'x'.repeat(200)}`, w.other);
    };
    const work = w.ask('slow', { n: 7 }, { fetch, retry: 1, timeoutMs: 60_000 }).catch((e) => e);
    await w.clock.advance(2000);
    await w.run(flood());
    await w.until(() => writes === 2);
    await w.clock.advance(1000);
    await w.run(flood());
    expect(await w.run(work)).toBe(7);
    expect(w.kinds().filter((kind) => kind === 'gap').length).toBeGreaterThan(1);
    await stop();
  });

  test('a reply room that is recreated under a call is told', async () => {
    const w = parties(profile);
    await server.say(BOX, 'mailbox opened', w.o);
    const work = w.ask('m', {}, { timeoutMs: 120_000 }).catch((e) => e);
    await w.clock.advance(100);
    w.service.age(MINE, 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    await eve.say(MINE, 'another room', w.o);
    expect(await w.run(work)).toMatchObject({ code: 'ring_gap', reason: 'recreated' });
  });

  test('a service that lost its rooms between two calls: one of the next two is answered', async () => {
    const w = parties(profile);
    let reach: typeof fetch = w.o.fetch;
    const way =
      (): typeof fetch =>
      (...args) =>
        reach(...args);
    const other = { ...w.other, fetch: way() };
    const stop = await served({ ...w, other });
    const o = { fetch: way(), timeoutMs: 15_000 };
    for (let n = 0; n < 5; n++) expect(await w.run(w.ask('echo', { n }, o))).toEqual({ n });
    const { fetch: anew } = createLocalService({ profile, clock: w.clock, limits: FREE });
    // Only the server, whose read is under way, notices that the service was away.
    reach = () => Promise.reject(broken());
    await w.clock.advance(15_000);
    reach = anew;
    const outcomes: unknown[] = [];
    for (let n = 0; n < 2; n++) outcomes.push(await w.run(w.ask('echo', { n }, o).catch((e) => e)));
    expect(outcomes).toContainEqual({ n: expect.any(Number) });
    await stop();
  });

  test('fault 33: the answer comes though nobody can say whether the request was written', async () => {
    const w = parties(profile);
    const stop = await served(w);
    let looks = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (isSay(url, init) && url.includes(BOX)) {
        await w.o.fetch(url, init);
        throw broken();
      }
      // No look into the mailbox succeeds either.
      if (url.includes(`/r/${BOX}`)) {
        looks++;
        throw broken();
      }
      return undefined;
    });
    expect(await w.run(w.ask('add', { a: 1, b: 2 }, { fetch }))).toBe(3);
    await stop();
    expect((await read(BOX, w.o)).messages.filter((m) => m.from === client.did)).toHaveLength(1);
    const e = await w.run(w.ask('add', { a: 1, b: 2 }, { fetch, timeoutMs: 60_000 }).catch((e) => e));
    expect(e).toMatchObject({ code: 'may_have_landed', room: BOX });
    expect(looks).toBeGreaterThan(0);
  });

  test('fault 36: however often a request is repeated, it is no duplicate text', async () => {
    const w = parties(profile);
    await server.say(BOX, 'mailbox opened', w.o);
    const work = w
      .ask('m', { text: 'long enough to be filtered' }, { retry: 12, timeoutMs: 120_000, id: 'same' })
      .catch((e) => e);
    const e = await w.run(work);
    expect(e).toBeInstanceOf(CallTimeout);
    expect(w.events.filter((x) => /duplicate/.test((x['cause'] as Error)?.message ?? ''))).toEqual([]);
    expect((await read(BOX, { ...w.o, limit: 200 })).messages.length).toBeGreaterThan(6);
  });

  test('a request that gets lost at an older server is sent again by `retry`, and runs once at ours', async () => {
    const w = parties(profile);
    let n = 0;
    await peer(w, (frame, send) => n++ > 0 && send(result(frame, n)));
    expect(await w.run(w.ask('m', {}, { retry: 2, timeoutMs: 9000 }))).toBe(2);
    let runs = 0;
    const v = parties(profile);
    const stop = await served(v, {
      methods: new Map([
        [
          'slow',
          async (_: unknown, { signal }: any) => {
            runs++;
            await v.clock.sleep(5000, signal);
            return 'done';
          },
        ],
      ]),
    });
    expect(await v.run(v.ask('slow', {}, { retry: 3, timeoutMs: 12_000 }))).toBe('done');
    expect(runs).toBe(1);
    await stop();
  });

  test('by DID: the mailbox of the signed record, or the hint of an older peer; none is told', async () => {
    const w = parties(profile);
    await expect(w.run(w.ask('m', {}, {}, server.did))).rejects.toMatchObject({ code: 'no_mailbox' });
    await peer(w, (frame, send) => send(result(frame, 'right')));
    const { ns, key } = identityNote(server.did);
    await setNote(ns, key, `${server.did} mailbox:${BOX}`, w.o);
    expect(await w.run(w.ask('m', {}, {}, server.did))).toBe('right');
    await setNote(ns, key, `${server.did} mailbox:lobby`, w.o);
    const v = { ...w.o, fetch: w.service.client('third') };
    await expect(w.run(call(server.did, 'm', {}, client, { ...v, replyTo: MINE }))).rejects.toMatchObject({
      code: 'bad_name',
    });
  });

  test('positional params have no place for a reply address: our signed record must name it', async () => {
    const w = parties(profile);
    const stop = await served(w, { methods: new Map([['sub', ([a, b]: number[]) => a! - b!]]) });
    await expect(w.run(w.ask('sub', [5, 3]))).rejects.toMatchObject({ code: 'no_reply_address' });
    await publishIdentity(client, { mailbox: MINE }, w.o);
    expect(await w.run(w.ask('sub', [5, 3]))).toBe(2);
    await expect(w.run(w.ask('sub', [5, 3], { replyTo: 'mb-p-elsewhere' }))).rejects.toMatchObject({
      code: 'no_reply_address',
      message: expect.stringContaining('named params'),
    });
    await stop();
  });

  test('a notification is written and not waited for', async () => {
    const w = parties(profile);
    const got: unknown[] = [];
    const stop = await served(w, {
      methods: new Map([['note', (params: unknown, c: any) => void got.push(params, c.from, c.id)]]),
    });
    await notify(BOX, 'note', { a: 1 }, client, w.o);
    await w.clock.advance(10);
    expect(got).toEqual([{ a: 1 }, client.did, undefined]);
    await stop();
    expect((await read(MINE, w.o)).lastSeq).toBe(0);
  });

  test('fault 84: the identity is the one that was given, call after call', async () => {
    const w = parties(profile);
    const froms = new Set<string>();
    const stop = await served(w, {
      methods: new Map([['who', (_: unknown, { from }: any) => froms.add(from) && from]]),
    });
    for (let i = 0; i < 3; i++) expect(await w.run(w.ask('who'))).toBe(client.did);
    expect(await w.run(w.ask('who', {}, { replyTo: 'mb-p-eve' }, BOX, eve))).toBe(eve.did);
    expect([...froms]).toEqual([client.did, eve.did]);
    await stop();
  });
});

describe('channels', () => {
  /** Two ends of a line. */
  function pair(): [Channel, Channel] {
    const listeners: Listener[][] = [[], []];
    let seq = 0;
    const end = (i: number): Channel => ({
      room: 'line',
      self: `did:${i}`,
      async listen(listener) {
        listeners[i]!.push(listener);
        return () => void listeners[i]!.splice(listeners[i]!.indexOf(listener), 1);
      },
      async send(text) {
        const m = { from: `did:${i}`, text, room: 'line', seq: ++seq };
        for (const side of listeners) for (const listener of side) queueMicrotask(() => listener.message(m));
        return { seq };
      },
    });
    return [end(0), end(1)];
  }

  test('any channel carries calls both ways, echoes dropped', async () => {
    const [a, b] = pair();
    const { o } = world();
    const stop = new AbortController();
    const methods = new Map<string, any>([['echo', (p: unknown) => p]]);
    const over = [
      serve(a, server, { ...o, methods, signal: stop.signal }),
      serve(b, client, { ...o, methods, signal: stop.signal }),
    ];
    await settled();
    expect(await call(a, 'echo', { n: 1 }, server, o)).toEqual({ n: 1 });
    expect(await Promise.all([1, 2, 3].map((n) => call(b, 'echo', [n], client, o)))).toEqual([[1], [2], [3]]);
    stop.abort();
    await Promise.all(over);
  });

  test('one that ends is the end of the calls and of the server', async () => {
    let listener!: Listener;
    const channel: Channel = {
      room: 'line',
      self: '',
      listen: async (l) => {
        listener = l;
        return () => {};
      },
      send: async () => ({ seq: 1 }),
    };
    const { o } = world();
    const broke = new TechnocoreError('session_closed', 'over');
    const calling = call(channel, 'm', {}, client, o).catch((e) => e);
    await settled();
    listener.end(broke);
    expect(await calling).toBe(broke);
    const serving = serve(channel, server, o).catch((e) => e);
    await settled();
    listener.end(broke);
    expect(await serving).toBe(broke);
    const early: Channel = {
      ...channel,
      listen: async (l) => {
        l.end(broke);
        // So late that nobody would hear of it, had nobody listened meanwhile.
        await new Promise((resolve) => setTimeout(resolve, 5));
        return () => {};
      },
    };
    expect(await serve(early, server, o).catch((e) => e)).toBe(broke);
  });

  test('who listens anew while an earlier listening is not over yet hears nothing twice', async () => {
    const [a, b] = pair();
    const { o } = world();
    const gates: (() => void)[] = [];
    const slow: Channel = {
      ...a,
      // Hears no signal, and takes its time.
      listen: async (listener) => {
        const leave = await a.listen(listener);
        await new Promise<void>((resolve) => gates.push(resolve));
        return leave;
      },
    };
    await b.listen({
      message: (m) => {
        const { id, method } = JSON.parse(m.text);
        if (m.from === b.self || method === undefined) return;
        void b.send('{"jsonrpc":"2.0","method":"news"}').then(() => b.send(encode(result({ id }, 'right') as any)));
      },
      gap() {},
      end() {},
    });
    const user = new AbortController();
    const first = call(slow, 'm', {}, client, { ...o, signal: user.signal }).catch((e) => e);
    await settled();
    user.abort('no');
    expect(await first).toBe('no');
    let news = 0;
    const second = converse(slow, 'm', {}, client, o, {
      take(_frame, kind) {
        if (kind === 'notification') news++;
        return kind === 'response' ? 'done' : undefined;
      },
    });
    await settled();
    gates[1]!();
    await second;
    expect(news).toBe(1);
    gates[0]!();
  });

  test('a sign of life does not end the wait for one whose timeout is beyond what signs of life could extend', async () => {
    const w = parties();
    await peer(w, async (frame, send) => {
      await send({ jsonrpc: '2.0', method: 'news' });
      await w.clock.sleep(2000);
      await send(result(frame, 1));
    });
    const kinds: string[] = [];
    const work = converse(
      BOX,
      'm',
      {},
      client,
      { ...w.o, replyTo: MINE, timeoutMs: 60_000 },
      {
        take(_frame, kind) {
          kinds.push(kind);
          return kind === 'response' ? 'done' : 5000;
        },
        maxMs: 10_000,
      },
    );
    await w.run(work);
    expect(kinds).toEqual(['notification', 'response']);
  });

  test('two mailboxes are one, too', async () => {
    const w = parties();
    const stop = await served(w);
    const channel = mailboxPair(w.t, client, BOX, MINE);
    expect(channel.room).toBe(BOX);
    const work = w.ask('add', { a: 1, b: 1, _meta: { 'chat.technocore/reply': MINE } }, {}, channel);
    expect(await w.run(work)).toBe(2);
    await stop();
  });
});
