import { describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import type { Options } from '../src/http.ts';
import { follow, read } from '../src/rooms.ts';
import { serve } from '../src/serve.ts';
import { broken, PROFILES, type Profile, requestFrame, signer, view, type World, world } from './support.ts';

const MAILBOX = 'mb-p-storm-callee';
const REPLY = 'mb-p-storm-caller';
const callee = signer(1);
const caller = signer(2);
const MINUTE = 60_000;

/** What a service may do to reads that wait, besides what it should. */
type Whim = (url: string, carry: () => Promise<Response>) => Promise<Response> | Response;

const waits = (url: string): boolean => url.includes('wait=');
const json = (body: string): Response => new Response(body, { headers: { 'content-type': 'application/json' } });
const roomOf = (url: string): string => /\/r\/([^?/]+)/.exec(url)![1]!;

const WHIMS: Record<string, Whim> = {
  'holds nothing, and says so': (url, carry) =>
    waits(url) ? json(view({ room: roomOf(url), last_seq: sinceOf(url), wait_held: false })) : carry(),
  'answers waits at once with nothing': (url, carry) =>
    waits(url) ? json(view({ room: roomOf(url), last_seq: sinceOf(url) })) : carry(),
  'claims to have held what it did not': (url, carry) =>
    waits(url) ? json(view({ room: roomOf(url), last_seq: sinceOf(url), wait_held: true })) : carry(),
  'answers waits at once with what is known': (url, carry) =>
    waits(url)
      ? json(
          view({
            room: roomOf(url),
            last_seq: sinceOf(url),
            count: 1,
            first_seq: sinceOf(url),
            messages: [{ seq: sinceOf(url), ts: '2026-01-31T12:00:00.000000Z', from: 'somebody', text: 'again' }],
          }),
        )
      : carry(),
  'shows a lower end each time': (url, carry) =>
    waits(url) ? json(view({ room: roomOf(url), last_seq: Math.max(0, sinceOf(url) - 1) })) : carry(),
  'shows another life of the room each time': (url, carry) =>
    waits(url) ? json(view({ room: roomOf(url), last_seq: sinceOf(url), generation: lives++ })) : carry(),
  'refuses waits, and says to come back at once': (url, carry) =>
    waits(url)
      ? new Response('429 rate limited\nretry after: 0s\n', { status: 429, headers: { 'retry-after': '0' } })
      : carry(),
  'refuses waits without a word': (url, carry) => (waits(url) ? new Response('429 no\n', { status: 429 }) : carry()),
  'is unwell, and says to come back at once': (url, carry) =>
    waits(url) ? new Response('503 no\n', { status: 503, headers: { 'retry-after': '0' } }) : carry(),
  'breaks off every read': (url, carry) => {
    if (/\/r\/[^/]*\?/.test(url)) throw broken();
    return carry();
  },
  'is a cache that answers every read with one of two old pages': (url) => {
    const room = roomOf(url);
    const last = 1 + (pages++ % 2);
    const messages = Array.from({ length: last }, (_, i) => ({
      seq: i + 1,
      ts: '2026-01-31T12:00:00.000000Z',
      from: 'somebody',
      text: `page ${i}`,
    }));
    return json(view({ room, last_seq: last, count: last, first_seq: 1, messages }));
  },
  'is a cache that shows another life of the room in every read': (url) =>
    json(
      view({
        room: roomOf(url),
        last_seq: 1,
        count: 1,
        first_seq: 1,
        generation: lives++,
        messages: [{ seq: 1, ts: `2026-01-31T12:00:0${lives % 10}.000000Z`, from: 'somebody', text: 'life' }],
      }),
    ),
  'answers with a page of a proxy': (url, carry) => (waits(url) ? new Response('<html>sign in</html>') : carry()),
};
let lives = 1;
let pages = 0;
const sinceOf = (url: string): number => Number(/since=(\d+)/.exec(url)![1]);

interface Client {
  o: Options & { fetch: typeof fetch };
  /** Requests so far, by the minute they were sent in. */
  minutes: Map<number, { reads: number; writes: number; all: number }>;
}

function client(w: World, address: string, whim: Whim = (_, carry) => carry(), hasManifest = true): Client {
  const reach = w.service.client(address);
  const minutes: Client['minutes'] = new Map();
  const fetch = (async (url: string, init: RequestInit = {}) => {
    const minute = Math.floor(w.clock.now() / MINUTE);
    const counts = minutes.get(minute) ?? { reads: 0, writes: 0, all: 0 };
    minutes.set(minute, counts);
    counts.all++;
    if (/\/(say|say-signed|set|set-signed)\//.test(url) || init.method === 'POST') counts.writes++;
    else if (/\/(r|kv)\//.test(url)) counts.reads++;
    if (url.endsWith('agent.json') && !hasManifest) return new Response('404 no route matched\n', { status: 404 });
    return /\/r\/[^/?]+\?/.test(url) ? whim(url, () => reach(url, init)) : reach(url, init);
  }) as typeof globalThis.fetch;
  return { o: { ...w.o, fetch }, minutes };
}

const most = ({ minutes }: Client, what: 'reads' | 'writes' | 'all'): number =>
  Math.max(...[...minutes.values()].map((counts) => counts[what]));

async function weather(profile: Profile, whim: Whim, hasManifest: boolean): Promise<Client[]> {
  const w = world(profile, { readsPerMinute: 120, writesPerMinute: 30 });
  const [a, b] = [client(w, 'a', whim, hasManifest), client(w, 'b', whim, hasManifest)];
  const stop = new AbortController();
  const ended = serve(MAILBOX, callee, { ...a.o, methods: new Map([['echo', ({ n }) => n]]), signal: stop.signal });
  ended.catch(() => {});
  await w.clock.advance(100);
  const calls = Array.from({ length: 5 }, (_, n) =>
    call(MAILBOX, 'echo', { n }, caller, { ...b.o, replyTo: REPLY, timeoutMs: 5 * MINUTE, retry: 3 }).catch(() => {}),
  );
  await w.clock.advance(6 * MINUTE);
  await w.run(Promise.all(calls));
  stop.abort();
  await w.run(ended.catch(() => {}));
  expect(w.clock.sleepers).toBe(0);
  return [a, b];
}

describe.each(PROFILES)('no storm though the service (%s)', (profile) => {
  for (const [name, whim] of Object.entries(WHIMS)) {
    it(name, async () => {
      for (const hasManifest of [true, false]) {
        for (const one of await weather(profile, whim, hasManifest)) {
          // In the first minute a bucket lets through its fill and what flows in.
          expect(most(one, 'reads'), `${hasManifest}`).toBeLessThanOrEqual(hasManifest ? 240 : 260);
          const later = [...one.minutes.values()].slice(1, -1);
          for (const { reads, writes } of later) {
            expect(reads, `${hasManifest}`).toBeLessThanOrEqual(130);
            expect(writes, `${hasManifest}`).toBeLessThanOrEqual(30);
          }
        }
      }
    });
  }

  it('clamps waits to nothing', async () => {
    const w = world(profile, { readsPerMinute: 120, writesPerMinute: 30, longPollMs: 0 });
    const a = client(w, 'a');
    const stop = new AbortController();
    const ended = serve(MAILBOX, callee, { ...a.o, methods: new Map([['echo', ({ n }) => n]]), signal: stop.signal });
    const b = client(w, 'b');
    expect(await w.run(call(MAILBOX, 'echo', { n: 7 }, caller, { ...b.o, replyTo: REPLY }))).toBe(7);
    await w.clock.advance(10 * MINUTE);
    stop.abort();
    await w.run(ended);
    expect([...a.minutes.values()].slice(1, -1).every(({ reads }) => reads <= 45)).toBe(true);
    expect(w.service.stats.refused).toBe(0);
  });

  it('parks four reads of an address, of which this one wants eight', async () => {
    const w = world(profile, { readsPerMinute: 120, writesPerMinute: 30 });
    const a = client(w, 'a');
    const stop = new AbortController();
    const loops = Array.from({ length: 8 }, async (_, i) => {
      for await (const m of follow(`storm-${i}`, { ...a.o, signal: stop.signal })) if (m.text === 'stop') return;
    });
    for (const one of loops) one.catch(() => {});
    await w.clock.advance(10 * MINUTE);
    expect(w.service.stats.parkedMost).toBeLessThanOrEqual(4);
    const reads = [...a.minutes.values()].reduce((sum, one) => sum + one.reads, 0);
    expect(reads, 'a full bucket, and ten minutes of what flows in').toBeLessThanOrEqual(120 + 10 * 120);
    expect(w.service.stats.refused).toBe(0);
    stop.abort();
    await w.run(Promise.allSettled(loops));
    expect(w.clock.sleepers).toBe(0);
  });
});

it('a mailbox that is flooded is read within the budget', async () => {
  const w = world('modern', { readsPerMinute: 120, writesPerMinute: 30, wakeStepMs: 500 });
  const a = client(w, 'a');
  const stop = new AbortController();
  const ended = serve(MAILBOX, callee, { ...a.o, methods: new Map([['echo', ({ n }) => n]]), signal: stop.signal });
  await w.clock.advance(100);
  await w.run(caller.say('mb-p-storm-flood', 'mine', w.o));
  const begun = w.clock.now();
  let isOver = false;
  const flood = (async () => {
    for (let i = 0; !isOver; i++) {
      const frame = requestFrame(`f${i}`, 'echo', { n: i, _meta: { 'chat.technocore/reply': 'mb-p-storm-flood' } });
      await caller.say(MAILBOX, frame, { ...w.o, fetch: w.service.client(`flood ${i >> 4}`) });
      await w.clock.sleep(600);
    }
  })();
  await w.clock.advance(3 * MINUTE);
  isOver = true;
  await w.run(flood);
  const sum = (what: 'reads' | 'writes'): number => [...a.minutes.values()].reduce((n, one) => n + one[what], 0);
  const minutes = (w.clock.now() - begun) / MINUTE;
  expect(sum('reads'), 'a full bucket, and what flows in').toBeLessThanOrEqual(120 + minutes * 120);
  expect(sum('writes')).toBeLessThanOrEqual(30 + minutes * 30);
  expect(w.service.stats.refused).toBe(0);
  // What was begun is answered, as fast as the budget allows.
  stop.abort();
  await w.clock.advance(30 * MINUTE);
  await w.run(ended);
  expect((await w.run(read('mb-p-storm-flood', { ...w.o, limit: 200 }))).messages.length).toBeGreaterThan(50);
});
