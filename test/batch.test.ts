import { describe, expect, it } from 'vitest';
import { isBatchable, packed, sendBatched } from '../src/batch.ts';
import { call } from '../src/call.ts';
import type { Channel } from '../src/channel.ts';
import type { Handler } from '../src/dispatch.ts';
import { RateLimited, RpcError } from '../src/errors.ts';
import { decode, MAX_TEXT } from '../src/frames.ts';
import { budgetOf } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import type { CallOptions } from '../src/line.ts';
import { read } from '../src/rooms.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { FREE, isGone, isSay, PROFILES, run, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-batch-callee';
const REPLY = 'mb-p-batch-caller';
const callee = signer(1);
const caller = signer(2);

const methods = new Map<string, Handler>([
  ['double', ({ n }) => 2 * n],
  ['list', ([n]) => n + 1],
  ['wide', ({ n }) => `${n}`.padEnd(600, '.')],
  [
    'fail',
    () => {
      throw new RpcError(77, 'no');
    },
  ],
]);

async function served(w: World, o: ServeOptions = {}) {
  const stop = new AbortController();
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const ended = serve(MAILBOX, callee, { ...w.o, methods, ...o, signal: stop.signal, onReady: ready });
  await run(w.clock, Promise.race([isReady, ended]));
  return async () => {
    stop.abort();
    await w.run(ended);
  };
}

/** The calls of one client, with transport and budget of its own. */
function client(w: World, address = 'caller') {
  const writes: string[] = [];
  let gate: Promise<void> | undefined;
  const reach = w.service.client(address);
  const fetch = (async (url: string, init: RequestInit = {}) => {
    if (isSay(url, init) && url.includes(`/r/${MAILBOX}/`)) {
      writes.push(decodeURIComponent(url.split('/').at(-1)!.split('?')[0]!));
      if (gate) {
        await new Promise((resolve, reject) => {
          gate!.then(resolve as () => void);
          init.signal!.addEventListener('abort', () => reject(init.signal!.reason));
        });
      }
    }
    return reach(url, init);
  }) as typeof globalThis.fetch;
  const o: CallOptions = { ...w.o, fetch, replyTo: REPLY, batch: true };
  return {
    writes,
    o,
    /** Lets no write to the mailbox through, until what it returns is called. */
    hold() {
      let open!: () => void;
      gate = new Promise((resolve) => {
        open = resolve;
      });
      return () => {
        gate = undefined;
        open();
      };
    },
    call: (method: string, params: any, more: Partial<CallOptions> = {}) =>
      call(MAILBOX, method, params, caller, { ...o, ...more }),
  };
}

const many = (n: number): number[] => Array.from({ length: n }, (_, i) => i);

describe.each(PROFILES)('calls that share their writes (%s)', (profile) => {
  it('64 at a time take four writes, and each gets its own answer', async () => {
    const w = world(profile, { wakeStepMs: 500 });
    const stop = await served(w);
    const c = client(w);
    const answers = await w.run(Promise.all(many(64).map((n) => c.call('double', { n }))));
    expect(answers).toEqual(many(64).map((n) => 2 * n));
    expect(c.writes.length).toBeLessThanOrEqual(4);
    expect((decode(c.writes[0]!) as any[]).length, 'not even the first goes alone').toBeGreaterThan(10);
    const { messages } = await w.run(read(REPLY, { ...w.o, limit: 200 }));
    expect(messages.length, 'opened, and few answers').toBeLessThanOrEqual(5);
    await stop();
    expect(w.clock.sleepers).toBe(0);
  });

  it('nobody pauses to gather what is gathered already', async () => {
    const w = world(profile);
    const stop = await served(w);
    const c = client(w);
    await w.run(c.call('double', { n: 0 }));
    for (let round = 0; round < 3; round++) {
      const begun = w.clock.now();
      const answers = await w.run(Promise.all(many(64).map((n) => c.call('double', { n }))));
      expect(answers).toEqual(many(64).map((n) => 2 * n));
      expect(w.clock.now() - begun).toBeLessThan(50);
    }
    await stop();
  });

  it('64 end right within their 30 s in the budget of one address that both sides share', async () => {
    const w = world(profile, { ...FREE, writesPerMinute: 30, readsPerMinute: 120, wakeStepMs: 500 });
    const stop = await served(w);
    // The same address, two programs that know nothing of each other.
    const c = client(w, 'local');
    const begun = w.clock.now();
    const answers = await w.run(Promise.all(many(64).map((n) => c.call('double', { n }))));
    expect(answers).toEqual(many(64).map((n) => 2 * n));
    expect(w.clock.now() - begun).toBeLessThan(30_000);
    expect(w.service.stats.refused).toBe(0);
    await stop();
  });

  it('answers that do not fit one message come in as few as they fit', async () => {
    const w = world(profile);
    const stop = await served(w);
    const c = client(w);
    const answers = await w.run(Promise.all(many(21).map((n) => c.call('wide', { n }))));
    expect(answers).toEqual(many(21).map((n) => `${n}`.padEnd(600, '.')));
    const { messages } = await w.run(read(REPLY, { ...w.o, limit: 200 }));
    expect(messages.filter((m) => m.from === callee.did)).toHaveLength(4);
    await stop();
  });

  it('right and wrong ones, by name and by position, go side by side', async () => {
    const w = world(profile);
    const stop = await served(w);
    const c = client(w);

    await w.run(publishIdentity(caller, { mailbox: REPLY }, c.o));
    const release = c.hold();
    const all = Promise.allSettled([
      c.call('double', { n: 1 }),
      c.call('fail', { n: 2 }),
      c.call('list', [3]),
      c.call('nothing', { n: 4 }),
    ]);
    await w.clock.advance(100);
    release();
    const outcomes = await w.run(all);
    expect(outcomes.map((one) => (one.status === 'fulfilled' ? one.value : one.reason.rpc.code))).toEqual([
      2, 77, 4, -32601,
    ]);
    expect(c.writes).toHaveLength(1);
    await stop();
  });
});

it('one that gives up leaves the queue, and the others go', async () => {
  const w = world();
  const stop = await served(w);
  const c = client(w);
  const release = c.hold();
  const first = c.call('double', { n: 1 });
  await w.clock.advance(10);
  const leaver = new AbortController();
  const left = c.call('double', { n: 2 }, { signal: leaver.signal }).catch((e) => e);
  const others = Promise.all([c.call('double', { n: 3 }), c.call('double', { n: 4 })]);
  await w.clock.advance(10);
  leaver.abort(new Error('enough'));
  expect(await w.run(left)).toMatchObject({ message: 'enough' });
  release();
  expect(await w.run(first)).toBe(2);
  expect(await w.run(others)).toEqual([6, 8]);
  expect(c.writes).toHaveLength(2);
  expect((decode(c.writes[1]!) as any[]).map(({ params }) => params.n)).toEqual([3, 4]);
  await stop();
});

it('a write that nobody waits for any more is given up, and the next goes', async () => {
  const w = world();
  const stop = await served(w);
  const c = client(w);
  const release = c.hold();
  const leaver = new AbortController();
  const one = c.call('double', { n: 1 }, { signal: leaver.signal }).catch((e) => e);
  await w.clock.advance(10);
  const next = c.call('double', { n: 2 });
  await w.clock.advance(10);
  expect(c.writes).toHaveLength(1);
  leaver.abort(new Error('enough'));
  await w.run(one);
  await w.clock.advance(10);
  expect(c.writes).toHaveLength(2);
  release();
  expect(await w.run(next)).toBe(4);
  await stop();
  expect(w.clock.sleepers).toBe(0);
});

it('what a write that was shared is refused for, all learn that shared it', async () => {
  const w = world('modern', { rooms: 1 });
  const c = client(w);
  const codes = await w.run(Promise.all(many(3).map((n) => c.call('double', { n }).catch((e) => e.code))));
  expect(codes).toEqual(['capacity_reached', 'capacity_reached', 'capacity_reached']);
});

it('one whose turn would come too late is refused at once, with the time to wait', async () => {
  const w = world('modern', { ...FREE, writesPerMinute: 30 });
  const stop = await served(w);
  const c = client(w);
  const text = 'x'.repeat(3000);
  const begun = w.clock.now();
  const refused: RateLimited[] = [];
  const all = many(80).map((n) =>
    c.call('double', { n, text }).catch((e) => {
      expect(e).toBeInstanceOf(RateLimited);
      expect(w.clock.now() - begun).toBeLessThan(200);
      refused.push(e);
      return undefined;
    }),
  );
  const answers = await w.run(Promise.all(all));
  expect(answers.filter((n) => n !== undefined)).toEqual(many(80 - refused.length).map((n) => 2 * n));
  expect(refused.length).toBeGreaterThan(30);
  expect(w.service.stats.refused).toBe(0);
  const wait = Math.max(...refused.map(({ retryAfterMs }) => retryAfterMs));
  await w.clock.advance(Math.max(0, begun + wait - w.clock.now()));
  expect(await w.run(c.call('double', { n: 5 }))).toBe(10);
  await stop();
});

it.each([
  ['had ended before', { signal: AbortSignal.abort() }],
  ['comes too late', { deadline: 0 }],
])('nothing is kept for a mailbox to which nothing was written, since the call %s', async (_, how) => {
  const w = world();
  budgetOf(w.t, 'write').refused(60_000);
  const refused = async (): Promise<WeakRef<Channel>> => {
    const channel: Channel = { room: 'x', self: '', listen: async () => () => {}, send: async () => ({ seq: 1 }) };
    const refusal = await sendBatched(w.t, 'x', channel, '{}', how).catch((e) => e);
    // Until it is read, a stack holds on to what it shows.
    expect(refusal.stack).toBeDefined();
    return new WeakRef(channel);
  };
  expect(await isGone(await refused())).toBe(true);
});

it('what MCP asks never shares a message', async () => {
  const meta = { 'io.modelcontextprotocol/protocolVersion': '2026-07-28' };
  expect(isBatchable('double', { _meta: meta })).toBe(false);
  expect(isBatchable('tools/list', {})).toBe(false);
  expect(isBatchable('ping', undefined)).toBe(false);
  expect(isBatchable('double', { _meta: { progressToken: 1 } })).toBe(true);
  expect(isBatchable('toolshed/list', [1])).toBe(true);

  const w = world();
  const stop = await served(w);
  const c = client(w);
  const release = c.hold();
  const all = Promise.all(many(4).map((n) => c.call('double', { n, _meta: meta })));
  await w.clock.advance(10);
  release();
  expect(await w.run(all)).toEqual([0, 2, 4, 6]);
  expect(c.writes).toHaveLength(4);
  await stop();
});

it('frames fill as few messages as they fit into', () => {
  const sizes = (...texts: string[]): number[] => packed(texts).map(({ length }) => length);
  expect(sizes()).toEqual([]);
  expect(sizes('x'.repeat(MAX_TEXT))).toEqual([1]);
  expect(sizes('x', 'x'.repeat(MAX_TEXT), 'y', 'z')).toEqual([1, 1, 2]);
  const half = 'x'.repeat(MAX_TEXT / 2 - 2);
  expect(`[${half},${half}x]`.length).toBe(MAX_TEXT);
  expect(sizes(half, `${half}x`)).toEqual([2]);
  expect(sizes(half, `${half}xx`)).toEqual([1, 1]);
  expect(sizes(...many(100).map(() => '1'))).toEqual([64, 36]);
});
