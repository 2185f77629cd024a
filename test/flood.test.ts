import { describe, expect, it } from 'vitest';
import { a2aAgent } from '../src/a2a-agent.ts';
import { a2aStream } from '../src/a2a-call.ts';
import { call } from '../src/call.ts';
import { randomBytes } from '../src/crypto.ts';
import type { Handler } from '../src/dispatch.ts';
import { encode, type Json } from '../src/frames.ts';
import { publishIdentity } from '../src/identity.ts';
import { LedgerState } from '../src/ledger.ts';
import type { CallOptions } from '../src/line.ts';
import { acceptSealed, connectSealed } from '../src/meeting.ts';
import { read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import { echoing, requestFrame, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-flood-callee';
const callee = signer(1);
const meek = signer(2);
const PUBLISHED = { readsPerMinute: 120, writesPerMinute: 30, wakeStepMs: 500 };
const MEMBER = 'chat.technocore/reply';

/** Keys cost nothing. */
const keys = (count: number): Signer[] => Array.from({ length: count }, (_, i) => signer(20 + (i % 230)));

async function served(w: World, o: ServeOptions = {}) {
  const { ended, stop } = await echoing(w, MAILBOX, callee, o);
  return async () => {
    stop();
    // What was begun is answered, as fast as the budget allows.
    await w.clock.advance(3 * 3_600_000);
    await w.run(ended);
  };
}

/** Two calls, each answered in time. */
async function meekIsServed(w: World, o: CallOptions): Promise<void> {
  for (let n = 1; n <= 2; n++) {
    const begun = w.clock.now();
    expect(await w.run(call(MAILBOX, 'echo', { n }, meek, o))).toBe(n);
    expect(w.clock.now() - begun).toBeLessThan(25_000);
  }
}

/** Requests of many fresh keys from many addresses, some a second, until told to stop. */
function flood(w: World, from: Signer[], gapMs: number, frameOf: (i: number) => string): () => Promise<void> {
  let isOver = false;
  const work = (async () => {
    for (let i = 0; !isOver; i++) {
      await from[i % from.length]!.say(MAILBOX, frameOf(i), { ...w.o, fetch: w.service.client(`flood ${i >> 4}`) });
      await w.clock.sleep(gapMs);
    }
  })();
  return () => {
    isOver = true;
    return w.run(work);
  };
}

describe('a flood from keys that were never seen before', () => {
  it('whose rooms are their own does not hold up a key that was there before it', async () => {
    const w = world('modern', PUBLISHED);
    const from = keys(64);
    const rooms = from.map((_, i) => `mb-p-flood-own-${i % 32}`);
    for (const [i, key] of from.entries()) {
      await w.run(key.say(rooms[i]!, 'mine', { ...w.o, fetch: w.service.client(`owner ${i}`) }));
    }
    const stop = await served(w);
    const o = { ...w.o, fetch: w.service.client('meek'), replyTo: 'mb-p-flood-meek' };
    expect(await w.run(call(MAILBOX, 'echo', { n: 0 }, meek, o))).toBe(0);
    const end = flood(w, from, 200, (i) => requestFrame(`f${i}`, 'echo', { n: i, _meta: { [MEMBER]: rooms[i % 64] } }));
    await w.clock.advance(40_000);
    await meekIsServed(w, o);
    await end();
    await stop();
  });

  it('does not make us run and remember more than can be answered', async () => {
    const w = world('modern', PUBLISHED);
    const from = keys(64);
    const room = 'mb-p-flood-own';
    for (const [i, key] of from.entries()) {
      await w.run(key.say(room, 'mine', { ...w.o, fetch: w.service.client(`owner ${i}`) }));
    }
    let runs = 0;
    const methods = new Map<string, Handler>([['echo', () => ++runs]]);
    const ledger = new LedgerState();
    const stop = await served(w, { methods, ledger });
    const end = flood(w, from, 60, (i) => requestFrame(`f${i}`, 'echo', { n: i, _meta: { [MEMBER]: room } }));
    await w.clock.advance(120_000);
    // Five minutes of the write budget, a few of each key, and what was answered.
    const most = 5 * 30 + 4 * 64 + 30 + 2 * 30 + 20;
    expect(runs).toBeLessThanOrEqual(most);
    expect(ledger.size.entries).toBeLessThanOrEqual(most);
    await end();
    await stop();
  });

  it('of whom nothing is known, is looked into a little, and the mailbox is read all the same', async () => {
    const w = world('modern', PUBLISHED);
    const from = keys(200);
    const stop = await served(w);
    const o = { ...w.o, fetch: w.service.client('meek'), replyTo: 'mb-p-flood-meek' };
    expect(await w.run(call(MAILBOX, 'echo', { n: 0 }, meek, o))).toBe(0);
    // Neither where an answer goes nor whose room that is can be told without a read.
    const end = flood(w, from, 50, (i) =>
      requestFrame(`f${i}`, 'echo', { n: i, ...(i % 2 === 0 && { _meta: { [MEMBER]: `mb-p-flood-third-${i}` } }) }),
    );
    await w.clock.advance(40_000);
    await meekIsServed(w, o);
    await end();
    await stop();
  });
});

describe('what nothing runs for', () => {
  it('leaves nothing in the ledger, and is answered', async () => {
    const w = world();
    const ledger = new LedgerState();
    const stop = await served(w, { ledger });
    await w.run(meek.say('mb-p-flood-meek', 'mine', w.o));
    const of = { _meta: { [MEMBER]: 'mb-p-flood-meek' } };
    const said: Json[] = [
      { jsonrpc: '2.0', id: 1, method: 'no/such', params: of },
      [{ jsonrpc: '2.0', id: 2, method: 'no/such', params: of }, 7],
      { jsonrpc: '2.0', id: {}, method: 'echo', params: of },
      { jsonrpc: '2.0', method: 'no/such/either' },
      { jsonrpc: '2.0', id: 3, result: 0 },
    ];
    for (const frame of said) await w.run(meek.say(MAILBOX, encode(frame), w.o));
    await w.clock.advance(5000);
    expect(ledger.size).toEqual({ entries: 0, keys: 0, floors: 0, chars: 0 });
    const answers = (await w.run(read('mb-p-flood-meek', { ...w.o, limit: 200 }))).messages
      .filter((m) => m.from === callee.did)
      .flatMap(({ text }) => JSON.parse(text) as any);
    expect(answers.map(({ error }) => error.code).sort()).toEqual([-32600, -32600, -32601, -32601]);
    expect(await w.run(call(MAILBOX, 'echo', { n: 7 }, meek, { ...w.o, replyTo: 'mb-p-flood-meek' }))).toBe(7);
    expect(ledger.size).toMatchObject({ entries: 1, floors: 1 });
    await stop();
  });
});

describe('all streams of an agent, taken by keys of their own', () => {
  it('go to one that was there before them, as many as it may have, and to a newcomer too', async () => {
    const w = world();
    const agent = a2aAgent(
      async (_, task) => {
        await task.update('working');
        await new Promise((resolve) => task.signal.addEventListener('abort', resolve));
      },
      { name: 'Slow', capabilities: { streaming: true } },
      { clock: w.clock },
    );
    const stop = await served(w, { methods: new Map([...agent.methods, ['echo', ({ n }) => n]]) });
    const own = 'mb-p-flood-own';
    const o = { ...w.o, replyTo: 'mb-p-flood-meek' };
    expect(await w.run(call(MAILBOX, 'echo', { n: 0 }, meek, o))).toBe(0);
    const from = keys(230);
    for (const key of from) await w.run(key.say(own, 'mine', w.o));
    const message = { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'x' }] };
    const params = { message, _meta: { [MEMBER]: own } };
    const crowd = (round: string) =>
      Promise.all(
        from.map((key, i) => key.say(MAILBOX, requestFrame(`${round}${i}`, 'SendStreamingMessage', params), w.o)),
      );
    await w.run(crowd('a'));
    await w.run(crowd('b'));
    await w.clock.advance(5000);
    const begun = async (key: Signer, how: CallOptions & { replyTo: string }) => {
      const items = a2aStream(MAILBOX, 'x', key, how);
      expect((await w.run(items.next())).value).toMatchObject({ task: { status: { state: 'TASK_STATE_SUBMITTED' } } });
      return items;
    };
    const mine = [await begun(meek, o), await begun(meek, o), await begun(meek, o)];
    await begun(signer(11), { ...w.o, replyTo: 'mb-p-flood-new' });
    await w.run(crowd('c'));
    await w.clock.advance(5000);
    // Not one of its own was given to the crowd that went on asking.
    for (const items of mine) {
      expect((await w.run(items.next())).value).toMatchObject({
        statusUpdate: { status: { state: 'TASK_STATE_WORKING' } },
      });
    }
    agent.close();
    await stop();
  });
});

it('a flood that takes all guards of nonces keeps nobody out for long, nor one whose clock is behind', async () => {
  const w = world();
  const stop = await served(w, { ledger: new LedgerState({ floors: 8 }) });
  const own = 'mb-p-flood-own';
  const from = keys(16);
  for (const key of from) await w.run(key.say(own, 'mine', w.o));
  for (const [i, key] of from.entries()) {
    await w.run(key.say(MAILBOX, requestFrame(`f${i}`, 'echo', { n: i, _meta: { [MEMBER]: own } }), w.o));
  }
  const o = { ...w.o, replyTo: 'mb-p-flood-meek' };
  await expect(w.run(call(MAILBOX, 'echo', { n: 1 }, meek, o))).rejects.toMatchObject({ rpc: { code: 1002 } });
  await w.clock.advance(660_000);
  expect(await w.run(call(MAILBOX, 'echo', { n: 1 }, meek, o))).toBe(1);
  // What was signed before all that could be one of those that are remembered together: it is signed anew.
  const late = { now: () => w.clock.now() - 700_000, sleep: w.clock.sleep.bind(w.clock) };
  const slow = { ...w.o, clock: late, fetch: w.service.client('slow'), replyTo: 'mb-p-flood-slow' };
  expect(await w.run(call(MAILBOX, 'echo', { n: 2 }, signer(12), slow))).toBe(2);
  await stop();
});

describe('one message of many requests', () => {
  it('has no more answers than so many writes; the rest is told to come again, and is kept', async () => {
    const w = world();
    let runs = 0;
    const methods = new Map<string, Handler>([
      [
        'much',
        () => {
          runs++;
          return 'x'.repeat(2500);
        },
      ],
    ]);
    const stop = await served(w, { methods });
    const own = 'mb-p-flood-meek';
    await w.run(meek.say(own, 'mine', w.o));
    const request = (id: number): Json => ({
      jsonrpc: '2.0',
      id,
      method: 'much',
      params: id % 40 === 0 ? { _meta: { [MEMBER]: own } } : {},
    });
    await w.run(meek.say(MAILBOX, encode(Array.from({ length: 50 }, (_, i) => request(i))), w.o));
    await w.clock.advance(60_000);
    const texts = (await w.run(read(own, { ...w.o, limit: 200 }))).messages
      .filter((m) => m.from === callee.did)
      .map(({ text }) => JSON.parse(text) as any[]);
    expect(texts.length).toBeLessThanOrEqual(34);
    const answers = texts.flat();
    expect(answers.map(({ id }) => id).sort((a, b) => a - b)).toEqual(Array.from({ length: 50 }, (_, i) => i));
    const busy = answers.filter(({ error }) => error?.code === 1002);
    expect(busy).toHaveLength(18);
    expect(busy.every(({ error }) => error.data.retryAfterMs >= 1000)).toBe(true);

    const [{ id }] = busy;
    await w.run(meek.say(MAILBOX, encode([request(id), request(0)]), w.o));
    await w.clock.advance(60_000);
    const last = (await w.run(read(own, { ...w.o, limit: 2 }))).messages.flatMap(
      ({ text }) => JSON.parse(text) as any[],
    );
    expect(last.find((answer) => answer.id === id).result).toHaveLength(2500);
    expect(runs).toBe(50);
    await stop();
  });
});

describe('sealed sessions, all of them taken by keys that keep talking', () => {
  it('go to others all the same: to one that talked before at once, to a newcomer after a while', async () => {
    const w = world('modern', { waitersPerAddress: 64 });
    const mailbox = 'mb-p-flood-sealed';
    await w.run(publishIdentity(callee, { mailbox }, w.o));
    const stop = new AbortController();
    const methods = new Map<string, Handler>([['echo', ({ n }) => n]]);
    const ended = acceptSealed(
      mailbox,
      callee,
      (channel, signal) => serve(channel, callee, { ...w.o, methods, signal }),
      { ...w.o, sessions: 2, signal: stop.signal },
    );
    await w.clock.advance(1000);
    const ask = async (key: Signer): Promise<unknown> => {
      const o = { ...w.o, timeoutMs: 5000 };
      const channel = await w.run(connectSealed(callee.did, key, o));
      return w.run(call(channel, 'echo', { n: 7 }, key, o));
    };
    expect(await ask(meek)).toBe(7);
    await w.clock.advance(90_000);

    const talking = new AbortController();
    const talkers = keys(2).map(async (key) => {
      const channel = await connectSealed(callee.did, key, w.o);
      while (!talking.signal.aborted) {
        await channel.send(requestFrame(`t${w.clock.now()}`, 'nothing'));
        await w.clock.sleep(15_000);
      }
    });
    await w.clock.advance(20_000);
    const newcomer = signer(11);
    await expect(ask(newcomer)).rejects.toMatchObject({ code: 'call_timeout' });
    expect(await ask(meek)).toBe(7);
    await w.clock.advance(120_000);
    expect(await ask(newcomer)).toBe(7);
    talking.abort();
    stop.abort();
    await w.run(Promise.all([ended, ...talkers]));
    expect(w.clock.sleepers).toBe(0);
  });
});

it('a sealed session whose other side fell silent ends in its time, though the clock be set back', async () => {
  const w = world('modern', { waitersPerAddress: 64 });
  const mailbox = 'mb-p-flood-sealed';
  await w.run(publishIdentity(callee, { mailbox }, w.o));
  let offset = 0;
  const clock = { now: () => w.clock.now() + offset, sleep: w.clock.sleep.bind(w.clock) };
  const stop = new AbortController();
  const ends: unknown[] = [];
  const live = (_: unknown, signal: AbortSignal): Promise<void> =>
    new Promise((resolve) => {
      signal.addEventListener('abort', () => {
        ends.push(signal.reason.code);
        resolve();
      });
    });
  const ended = acceptSealed(mailbox, callee, live, { ...w.o, clock, idleMs: 60_000, signal: stop.signal });
  await w.clock.advance(1000);
  await w.run(connectSealed(callee.did, meek, w.o));
  await w.clock.advance(30_000);
  offset = -3_600_000;
  await w.clock.advance(50_000);
  expect(ends).toEqual(['idle']);
  stop.abort();
  await w.run(ended);
});

it('a flood of members of a sealed room lets nothing old come again, and locks out nobody who is new', async () => {
  const w = world('modern', { roomRingBytes: 1 << 25 });
  const [room, key] = ['p-flood-sealed', randomBytes(32)];
  const own = (name: string) => ({ ...w.o, fetch: w.service.client(name) });
  let again: object[] = [];
  const fetch = (async (url: string, init?: RequestInit) => {
    const reply = await w.service.client('callee')(url, init);
    if (again.length === 0 || !url.includes(`/r/${room}?`)) return reply;
    const view = (await reply.json()) as { last_seq: number; messages: object[] };
    // The operator shows what was said before once more.
    view.messages.push(...again.map((m, i) => ({ ...m, seq: view.last_seq + 1 + i })));
    view.last_seq += again.length;
    again = [];
    return Response.json(view);
  }) as typeof globalThis.fetch;
  const o = { ...w.o, fetch };
  const runs: string[] = [];
  const methods = new Map<string, Handler>([['run', (_, { from }) => void runs.push(from)]]);
  const stop = new AbortController();
  let isReady = false;
  const onReady = (): void => void (isReady = true);
  const ended = serve(sealed(room, key, callee, o), callee, { ...o, methods, signal: stop.signal, onReady });
  await w.until(() => isReady);
  // A nonce that is far ahead, first of all; then one who is to be heard once.
  const eve = signer(3);
  const ahead = { now: () => w.clock.now() + 36_000_000, sleep: w.clock.sleep.bind(w.clock) };
  const early = { ...own('eve'), clock: ahead };
  await w.run(sealed(room, key, eve, early).send(requestFrame('e', 'nothing')));
  const victim = signer(4);
  expect(await w.run(call(sealed(room, key, victim, own('victim')), 'run', {}, victim, own('victim')))).toBe(null);
  const { messages } = await w.run(read(room, { ...w.o, limit: 200 }));
  const said = messages.filter((m) => m.from === victim.did);
  expect(said).toHaveLength(1);
  await w.clock.advance(1000);
  for (let i = 0; i < 4100; i++) {
    const one = Signer.fromPassphrase(`member ${i}`);
    await sealed(room, key, one, own('members')).send('{"jsonrpc":"2.0","method":"nothing"}');
    if (i % 100 === 0) await w.clock.advance(10);
  }
  await w.clock.advance(5000);
  again = said;
  await w.run(sealed(room, key, eve, early).send(requestFrame('f', 'nothing')));
  await w.until(() => w.events.some(({ seq, reason }) => reason === 'an old message' && seq !== undefined));
  expect(runs).toEqual([victim.did]);
  expect(await w.run(call(sealed(room, key, meek, own('meek')), 'run', {}, meek, own('meek')))).toBe(null);
  expect(runs).toEqual([victim.did, meek.did]);
  stop.abort();
  await w.run(ended);
});
