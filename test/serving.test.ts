import { describe, expect, test } from 'vitest';
import { call } from '../src/call.ts';
import type { Handler } from '../src/dispatch.ts';
import { feedOf, type Listener } from '../src/feed.ts';
import { memoryLedger } from '../src/ledger.ts';
import type { Place } from '../src/rooms.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { PROFILES, type Profile, requestFrame, signer, type World, world } from './support.ts';

// The beginning and the end of serving.

const BOX = 'mb-p-served';
const MINUTE = 60_000;
const bob = signer(2);
const alice = signer(1);

async function start(w: World, o: ServeOptions = {}) {
  const stop = new AbortController();
  let isReady = false;
  const ended = serve(BOX, bob, { ...w.o, signal: stop.signal, onReady: () => (isReady = true), ...o });
  ended.catch(() => {});
  await w.until(() => isReady);
  return {
    ended,
    stop: () => {
      stop.abort();
      return w.run(ended);
    },
  };
}

const ask = (w: World, id: string, method: string, params: object = {}): Promise<unknown> =>
  w.run(alice.say(BOX, requestFrame(id, method, { ...params, _meta: { 'chat.technocore/reply': 'mb-p-c' } }), w.o));

describe.each(PROFILES)('the end, %s', (profile: Profile) => {
  test('comes in bounded time with a write budget of one a minute', async () => {
    const w = world(profile, { writesPerMinute: 2 });
    const free = (name: string) => ({ ...w.o, fetch: w.service.client(name) });
    await w.run(alice.say('mb-p-c', 'mailbox opened', free('a')));
    const server = await start(w, {
      methods: new Map<string, Handler>([['fast', () => 1]]),
      fetch: w.service.client('bob'),
      presence: false,
      deadlineMs: 10_000,
    });
    for (let i = 0; i < 40; i++) {
      const text = requestFrame(`q${i}`, 'fast', { _meta: { 'chat.technocore/reply': 'mb-p-c' } });
      await w.run(alice.say(BOX, text, free(`a${i}`)));
    }
    await w.clock.advance(1000);
    const begun = w.clock.now();
    await server.stop();
    const took = w.clock.now() - begun;
    expect(took).toBeGreaterThan(20_000);
    expect(took).toBeLessThan(45_000);
    expect(w.kinds()).toContain('undrained');
    expect(w.kinds()).toContain('unanswered');
    // Nothing goes on behind it.
    const { writes } = w.service.stats;
    await w.clock.advance(10 * MINUTE);
    expect(w.service.stats.writes).toBe(writes);
  });

  test('does not wait for a handler that ignores its deadline', async () => {
    const w = world(profile);
    const server = await start(w, {
      methods: new Map<string, Handler>([['hang', () => new Promise(() => {})]]),
      allow: () => new Promise(() => {}),
      deadlineMs: 1000,
    });
    await ask(w, '1', 'hang');
    await w.clock.advance(500);
    const begun = w.clock.now();
    await server.stop();
    expect(w.clock.now() - begun).toBeLessThan(33_000);
  });

  test.each(['load', 'save'])('comes although a cursor never does its %s', async (what) => {
    const w = world(profile);
    const cursor = { load: async () => undefined, save: async () => {}, [what]: () => new Promise<any>(() => {}) };
    const stop = new AbortController();
    const ended = serve(BOX, bob, { ...w.o, cursor, ledger: memoryLedger(), signal: stop.signal, drainMs: 1000 });
    await w.clock.advance(5000);
    stop.abort();
    const begun = w.clock.now();
    await w.run(ended);
    expect(w.clock.now() - begun).toBeLessThan(2000);
  });
});

describe('twice', () => {
  test('a mailbox that is served here already is refused, and free again when that ends', async () => {
    const w = world();
    const server = await start(w);
    await expect(w.run(serve(BOX, bob, w.o))).rejects.toMatchObject({ code: 'already_served' });
    await expect(w.run(serve(BOX, bob, { ...w.o, claim: true }))).rejects.toMatchObject({ code: 'already_served' });
    const ending = server.stop();
    await (await start(w)).stop();
    await ending;
  });

  test('those that share it by claims may be many', async () => {
    const w = world();
    const one = await start(w, { claim: true });
    const two = await start(w, { claim: true });
    await expect(w.run(serve(BOX, bob, w.o))).rejects.toMatchObject({ code: 'already_served' });
    await one.stop();
    await two.stop();
  });
});

describe.each(PROFILES)('the beginning, %s', (profile: Profile) => {
  test('a kept place holds although others here read the mailbox already', async () => {
    const w = world(profile);
    const runs: number[] = [];
    const methods = new Map<string, Handler>([['run', ({ n }) => runs.push(n)]]);
    const places = new Map<string, Place>();
    const o: ServeOptions = {
      methods,
      ledger: memoryLedger(),
      cursor: {
        load: (room) => places.get(room),
        save: (room, place) => void places.set(room, place),
      },
    };
    await w.run(alice.say('mb-p-c', 'mailbox opened', w.o));
    const server = await start(w, o);
    await ask(w, '0', 'run', { n: 0 });
    await w.until(() => runs.length === 1);
    await server.stop();
    for (let n = 1; n <= 150; n++) await ask(w, `${n}`, 'run', { n });
    // Somebody waits for an answer in the very mailbox that is served.
    const waiting = call('mb-p-nobody', 'x', {}, bob, { ...w.o, replyTo: BOX, timeoutMs: 2 * MINUTE });
    waiting.catch(() => {});
    await w.clock.advance(2000);
    const again = await start(w, o);
    await w.until(() => runs.length === 151);
    await ask(w, '151', 'run', { n: 151 });
    await w.until(() => runs.length === 152);
    expect(runs).toEqual(Array.from({ length: 152 }, (_, n) => n));
    await again.stop();
    await expect(w.run(waiting)).rejects.toMatchObject({ code: 'call_timeout' });
  });

  test('one listener that throws keeps nothing from the others', async () => {
    const w = world(profile);
    const heard: string[] = [];
    const feed = feedOf(w.t, 'x');
    const listener = (name: string, throws: boolean): Listener => ({
      message: ({ text }) => {
        heard.push(`${name} ${text}`);
        if (throws) throw new Error('mine');
      },
      gap: () => {},
      end: () => {},
    });
    const leave = await w.run(Promise.all([listener('bad', true), listener('good', false)].map((l) => feed.listen(l))));
    for (const text of ['one', 'two']) {
      await w.run(alice.say('x', text, w.o));
      await w.until(() => heard.includes(`good ${text}`));
    }
    expect(heard).toEqual(['bad one', 'good one', 'bad two', 'good two']);
    expect(w.kinds().filter((kind) => kind === 'listener-error')).toHaveLength(2);
    for (const end of leave) end();
  });
});
