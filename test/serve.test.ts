import fc from 'fast-check';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { call } from '../src/call.ts';
import type { CallContext, Handler } from '../src/dispatch.ts';
import { idempotent, localOnly } from '../src/dispatch.ts';
import { Conflict, RpcError } from '../src/errors.ts';
import { encodeLong } from '../src/frames.ts';
import { publishIdentity } from '../src/identity.ts';
import { memoryLedger } from '../src/ledger.ts';
import { loggedLedger } from '../src/ledger-file.ts';
import { createLocalService } from '../src/local.ts';
import { defineTool, mcpLayer, toolsChanged } from '../src/mcp.ts';
import { identityNote } from '../src/names.ts';
import { setNote } from '../src/notes.ts';
import { type Place, read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import type { Signer } from '../src/signer.ts';
import {
  broken,
  FREE,
  faker,
  faulty,
  isGone,
  isSay,
  PROFILES,
  type Profile,
  requestFrame,
  signer,
  world,
} from './support.ts';
import { settled } from './virtual-clock.ts';

const client = signer(1);
const server = signer(2);
const eve = signer(3);
const BOX = 'mb-p-server';
const MINE = 'mb-p-client';
const META = { 'chat.technocore/reply': MINE };

/** A server in a world, written to by hand. */
function serving(profile: Profile = 'modern', limits = {}) {
  const w = world(profile, limits);
  const runs: string[] = [];
  const methods = new Map<string, Handler>([
    ['echo', (params) => params],
    ['run', ({ n }) => void runs.push(`${n}`)],
  ]);
  return {
    ...w,
    runs,
    methods,
    async start(o: ServeOptions = {}, key = server) {
      const stop = new AbortController();
      let ready!: () => void;
      const isReady = new Promise<void>((resolve) => (ready = resolve));
      const over = serve(BOX, key, {
        ...w.o,
        fetch: w.service.client('server'),
        methods,
        signal: stop.signal,
        onReady: ready,
        ...o,
      });
      await w.run(Promise.race([isReady, over]));
      return {
        over,
        abort: () => stop.abort(),
        async stop() {
          stop.abort();
          await w.run(over);
        },
      };
    },
    /** Says it in the mailbox, and lets what it sets off happen. */
    async say(text: string, key: Signer = client, ms = 40) {
      await w.run(key.say(BOX, text, w.o));
      await w.clock.advance(ms);
    },
    /** What stands in a room that the server wrote, as frames. */
    async answers(room = MINE): Promise<any[]> {
      const { messages } = await w.run(read(room, { ...w.o, limit: 200 }));
      return messages
        .filter((m) => m.from === server.did && m.text !== 'mailbox opened')
        .map((m) => JSON.parse(m.text));
    },
    /** Opens the reply mailbox, as our clients do. */
    open: (key: Signer = client, room = MINE) => w.run(key.say(room, 'mailbox opened', w.o)),
  };
}

const ask = (id: unknown, method: string, params: object = {}): string =>
  requestFrame(id, method, { ...params, _meta: META });

describe.each(PROFILES)('what waits in a mailbox, %s', (profile) => {
  test('is served by the first one who ever opens it, and by nobody once more', async () => {
    const w = serving(profile);
    await w.open();
    await w.say(ask('early', 'run', { n: 1 }));
    const places: Place[] = [];
    const cursor = { load: async () => undefined, save: async (_: string, place: Place) => void places.push(place) };
    const first = await w.start({ cursor, ledger: memoryLedger() });
    await w.clock.advance(100);
    expect([w.runs, await w.answers()]).toEqual([['1'], [{ jsonrpc: '2.0', id: 'early', result: null }]]);
    // The line that opened it stands behind the request, and is no news.
    await w.say('mailbox opened', eve);
    expect(w.events.filter(({ kind }) => kind === 'skipped')).toEqual([]);
    await w.say('something else', eve);
    expect(w.events.filter(({ kind }) => kind === 'skipped')).toMatchObject([{ reason: 'not a frame' }]);
    // Had it died at once, the next one would have begun there too.
    expect(places[0]).toMatchObject({ since: 0 });
    await first.stop();
    const again = await w.start();
    const other = await w.start({ presence: false }, eve);
    await w.say(ask('late', 'run', { n: 2 }));
    expect(w.runs).toEqual(['1', '2', '2']);
    await again.stop();
    await other.stop();
  });

  test('of a caller with the server’s own key as well', async () => {
    const w = serving(profile);
    await w.open(server);
    await w.say(ask('early', 'run', { n: 1 }), server);
    const first = await w.start();
    await w.clock.advance(100);
    expect([w.runs, await w.answers()]).toEqual([['1'], [{ jsonrpc: '2.0', id: 'early', result: null }]]);
    await first.stop();
    const again = await w.start();
    await w.say(ask('late', 'run', { n: 2 }), server);
    expect(w.runs).toEqual(['1', '2']);
    await again.stop();
    expect((await w.run(read(BOX, w.o))).messages.filter(({ text }) => text === 'mailbox opened')).toHaveLength(1);
  });

  test('a place that was kept comes first', async () => {
    const w = serving(profile);
    await w.open();
    await w.say(ask('early', 'run', { n: 1 }));
    const cursor = { load: async () => ({ since: 1 }), save: async () => {} };
    const s = await w.start({ cursor, ledger: memoryLedger() });
    await w.say(ask('late', 'run', { n: 2 }));
    expect(w.runs).toEqual(['2']);
    await s.stop();
  });

  test('is left where more stands than anybody can see', async () => {
    const w = serving(profile);
    await w.open();
    for (let n = 1; n <= 51; n++) await w.say(ask(n, 'run', { n }));
    const s = await w.start();
    await w.say(ask('late', 'run', { n: 'late' }));
    expect(w.runs).toEqual(['late']);
    await s.stop();
  });
});

test('a method that is no function ends the start, and not a call much later', async () => {
  const w = serving();
  w.methods.set('x', 5 as unknown as Handler);
  await expect(w.start()).rejects.toMatchObject({
    code: 'bad_option',
    message: 'the handler of x must be a function, not number',
  });
  expect(w.service.stats.requests).toBe(0);
});

test('a server that is not ready says why, once, where nobody listens to its events', async () => {
  const warn = vi.spyOn(console, 'warn').mockImplementation(() => {});
  onTestFinished(() => warn.mockRestore());
  const begin = async (fetch: typeof globalThis.fetch, o: ServeOptions = {}): Promise<void> => {
    const w = world();
    const stop = new AbortController();
    const over = serve(BOX, server, { base: w.o.base, clock: w.clock, fetch, ...o, signal: stop.signal });
    await w.clock.advance(2500);
    expect(warn).not.toHaveBeenCalled();
    await w.clock.advance(10_000);
    stop.abort();
    await w.run(over);
    expect(w.clock.sleepers).toBe(0);
  };
  const down = faulty(fetch, () => {
    throw broken('ECONNREFUSED');
  });
  await begin(down, { onEvent: () => {} });
  await begin(world().service.fetch);
  expect(warn).not.toHaveBeenCalled();
  await begin(down);
  expect(warn.mock.calls).toEqual([[expect.stringMatching(`${BOX} is not served yet: .*local.test.*ECONNREFUSED`)]]);
  warn.mockClear();
  await begin(faulty(fetch, () => new Promise(() => {})));
  expect(warn.mock.calls).toEqual([[expect.stringContaining('is not served yet: waiting for http://local.test')]]);
});

describe.each(PROFILES)('answers, %s', (profile) => {
  test('ids go back with their type; results and errors by the specification', async () => {
    const w = serving(profile);
    w.methods.set('rpc', () => {
      throw new RpcError(7, 'mine', { a: 1 });
    });
    w.methods.set('conflict', () => {
      throw new Conflict('409', 'there');
    });
    w.methods.set('bug', () => {
      throw new Error('a secret');
    });
    w.methods.set('nothing', () => undefined);
    w.methods.set('never json', () => 1n);
    w.methods.set(
      'local',
      localOnly(() => 1),
    );
    await w.open();
    const s = await w.start();
    for (const id of ['1', 1, 0, -1, 1.5, '', 'ü\u007f', null]) await w.say(ask(id, 'nothing'));
    expect(await w.answers()).toEqual(
      ['1', 1, 0, -1, 1.5, '', 'ü\u007f', null].map((id) => ({ jsonrpc: '2.0', id, result: null })),
    );
    for (const method of ['rpc', 'conflict', 'bug', 'never json', 'local', 'nope']) await w.say(ask(method, method));
    const errors = (await w.answers()).slice(8).map((a) => a.error);
    expect(errors[0]).toEqual({ code: 7, message: 'mine', data: { a: 1 } });
    expect(errors[1]).toMatchObject({ code: 1005, data: { actual: 'there' } });
    expect(errors[2]).toEqual({ code: -32603, message: 'Internal error' });
    expect(errors[3].code).toBe(-32603);
    expect(errors[4].code).toBe(-32601);
    expect(errors[5].code).toBe(-32601);
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'handler-error', method: 'bug' }));
    await s.stop();
  });

  test('a handler learns who asks, what for and from where, and can tell the caller things meanwhile', async () => {
    const w = serving(profile);
    let seen!: CallContext;
    let heard: unknown;
    w.methods.set('look', (params, context) => {
      seen = context;
      heard = params;
      context.notify('progress', { half: true });
      return 'done';
    });
    await w.open();
    const s = await w.start();
    await w.say(requestFrame('x', 'look', { a: 1, _meta: { ...META, more: 2 } }));
    expect(heard).toEqual({ a: 1 });
    expect(seen).toMatchObject({ from: client.did, id: 'x', room: BOX, meta: { more: 2 } });
    expect(seen.signal.aborted).toBe(true);
    seen.notify('late', {});
    await w.clock.advance(10);
    expect(await w.answers()).toEqual([
      { jsonrpc: '2.0', method: 'progress', params: { half: true } },
      { jsonrpc: '2.0', id: 'x', result: 'done' },
    ]);
    await s.stop();
  });

  test('what a handler tells meanwhile takes half of the writes, and makes no answer and no end wait', async () => {
    const w = serving(profile, { writesPerMinute: 30 });
    const chatter = (n: number, ms: number): Handler => {
      return async (_, { notify, signal }) => {
        for (let i = 0; i < n && !signal.aborted; i++) {
          notify('progress', { i });
          if (ms > 0) await w.clock.sleep(ms);
        }
      };
    };
    w.methods.set('much', chatter(100, 100));
    w.methods.set('burst', chatter(100, 0));
    await w.open();
    const s = await w.start();
    const skipped = (reason: string): number =>
      w.events.filter((e) => e.kind === 'skipped' && String(e['reason']).includes(reason)).length;
    const answered = async (): Promise<unknown[]> =>
      (await w.answers()).flatMap(({ id }) => (id === undefined ? [] : [id]));

    await w.say(ask('much', 'much'), client, 5000);
    // The budget holds half of itself for the others, who are answered at once.
    await w.say(ask('other', 'echo'), client, 200);
    expect(await answered()).toEqual(['other']);
    await w.clock.advance(5000);
    expect(await answered()).toEqual(['other', 'much']);
    const told = (await w.answers()).filter(({ method }) => method === 'progress');
    expect(told.length).toBeGreaterThan(5);
    expect(told.length).toBeLessThan(25);
    expect(skipped('less than half')).toBe(100 - told.length);

    // A burst that is over before any of it is written: one is on its way, the rest is left out.
    await w.clock.advance(60_000);
    await w.say(ask('burst', 'burst'), client, 200);
    expect((await answered()).at(-1)).toBe('burst');
    expect(skipped('its call has ended') + skipped('many wait')).toBeGreaterThan(90);

    w.methods.set('more', chatter(1000, 100));
    await w.clock.advance(60_000);
    await w.say(ask('more', 'more'), client, 3000);
    const begun = w.clock.now();
    w.methods.clear();
    await s.stop();
    expect(w.clock.now() - begun).toBeLessThan(58_000);
    expect((await answered()).at(-1)).toBe('more');
  });

  test('what still runs when the end may take no longer is told, and known to be interrupted', async () => {
    const w = serving(profile);
    const seen: AbortSignal[] = [];
    w.methods.set('long', async (_, { signal }) => {
      seen.push(signal);
      await w.clock.sleep(30_000, signal);
    });
    await w.open();
    const ledger = memoryLedger();
    const s = await w.start({ ledger, drainMs: 500, concurrency: 1 });
    await w.say(ask('begun', 'long'));
    await w.say(ask('queued', 'long'));
    const begun = w.clock.now();
    s.abort();
    await w.clock.advance(400);
    expect(seen.map(({ aborted }) => aborted)).toEqual([false]);
    await s.stop();
    expect(w.clock.now() - begun).toBeLessThan(1000);
    await w.clock.advance(100);
    expect(seen.map(({ aborted }) => aborted)).toEqual([true]);
    expect(await w.answers()).toEqual([]);
    const again = await w.start({ ledger });
    await w.say(ask('begun', 'long'));
    expect(await w.answers()).toMatchObject([{ id: 'begun', error: { code: 1001 } }]);
    expect(seen).toHaveLength(1);
    await again.stop();
  });

  test('fault 77: methods are what was registered, and nothing that objects have', async () => {
    const w = serving(profile);
    await w.open();
    const s = await w.start();
    const names = ['constructor', 'toString', '__proto__', 'hasOwnProperty', 'get', 'set', 'size', '', 'prototype'];
    for (const name of names) await w.say(ask(name, name));
    expect((await w.answers()).map((a) => a.error.code)).toEqual(names.map(() => -32601));
    await w.say(
      `{"jsonrpc":"2.0","id":"p","method":"echo","params":{"__proto__":{"polluted":1},"_meta":${JSON.stringify(META)}}}`,
    );
    expect(({} as any).polluted).toBeUndefined();
    expect((await w.answers()).at(-1).id).toBe('p');
    await s.stop();
  });

  test('fault 78: an answer too large for a message is an error with its size, not silence', async () => {
    const w = serving(profile);
    w.methods.set('big', () => 'x'.repeat(5000));
    w.methods.set('wide', () => '漢'.repeat(700));
    w.methods.set('fits', ({ n }) => 'x'.repeat(n));
    await w.open();
    const s = await w.start();
    for (const method of ['big', 'wide']) await w.say(ask(method, method));
    const [big, wide] = await w.answers();
    expect(big).toMatchObject({ id: 'big', error: { code: -32603, data: { chars: 5000 + 40, limit: 4096 } } });
    expect(wide).toMatchObject({ id: 'wide', error: { code: -32603, data: { limit: 4096 } } });
    const frame = '{"jsonrpc":"2.0","id":"f","result":""}'.length;
    await w.say(ask('f', 'fits', { n: 4096 - frame }));
    expect((await w.answers()).at(-1).result).toHaveLength(4096 - frame);
    await w.say(ask('g', 'fits', { n: 4097 - frame }));
    expect((await w.answers()).at(-1)).toMatchObject({ id: 'g', error: { data: { chars: 4097 } } });
    await s.stop();
  });

  test('fault 79: what the sweep would change arrives unchanged, both ways', async () => {
    const w = serving(profile);
    await w.open();
    const s = await w.start();
    const odd = 'a\u200bb\n\u007f\u0085\u2028\ufeff\ud83d\ude80\ud800 z\u00ad';
    await w.say(requestFrame('x', 'echo', { odd, _meta: META }));
    expect((await w.answers())[0].result).toEqual({ odd });
    await s.stop();
  });

  test('fault 75: nothing is ever said to a notification, a response, or another server', async () => {
    const w = serving(profile);
    await w.open();
    const ledger = memoryLedger();
    const admitted: number[] = [];
    const admit = ledger.admit.bind(ledger);
    ledger.admit = (m, now) => {
      admitted.push(m.requests.length);
      return admit(m, now);
    };
    const s = await w.start({ ledger });
    await w.say(requestFrame(undefined, 'run', { n: 'notified', _meta: META }));
    await w.say(requestFrame(undefined, 'nope', { _meta: META }));
    for (const response of [
      { jsonrpc: '2.0', id: 1, result: 1, params: { _meta: META } },
      { jsonrpc: '2.0', id: 1, error: { code: 1, message: 'x' } },
      { result: 1, id: 1 },
      { jsonrpc: '2.0', result: 1 },
      { id: null, error: 1 },
      [
        { jsonrpc: '2.0', id: 1, result: 1 },
        { jsonrpc: '2.0', id: 2, error: {} },
      ],
    ]) {
      await w.say(encodeLong(response));
    }
    await w.say(encodeLong([{ jsonrpc: '2.0', method: 'run', params: { n: 'batched', _meta: META } }]));
    expect(w.runs).toEqual(['notified', 'batched']);
    expect(await w.answers()).toEqual([]);
    // Responses are not even looked up.
    expect(admitted).toEqual([0, 0, 0]);
    await s.stop();
  });

  test('fault 71: answers go to mailboxes only, never into the one that is served, and few where the key was never seen', async () => {
    const w = serving(profile);
    await w.run(client.say('lobby', 'hi', w.o));
    await w.run(signer(9).say('mb-p-victim', 'mine', w.o));
    const s = await w.start({ replyLimits: { unprovedPerDay: 3 } });
    for (const room of ['lobby', BOX, 'events', 'x', 7, {}, null]) {
      await w.say(requestFrame('1', 'echo', { _meta: { 'chat.technocore/reply': room } }));
    }
    for (let i = 0; i < 6; i++) {
      await w.say(requestFrame(`v${i}`, 'run', { n: i, _meta: { 'chat.technocore/reply': 'mb-p-victim' } }), eve);
    }
    expect(await w.answers('lobby')).toEqual([]);
    expect((await w.answers(BOX)).length).toBe(0);
    expect(await w.answers('mb-p-victim')).toHaveLength(3);
    expect(w.kinds()).toContain('refused');
    await s.stop();
  });

  test('fault 71: where the key was never seen, the only message is the answer, and no notification before it', async () => {
    const w = serving(profile);
    await w.run(signer(9).say('mb-p-victim', 'mine', w.o));
    w.methods.set('told', (_, { notify }) => {
      notify('progress', { half: true });
      return w.clock.sleep(100).then(() => 'done');
    });
    const s = await w.start();
    const params = { _meta: { 'chat.technocore/reply': 'mb-p-victim' } };
    await w.say(requestFrame('1', 'told', params), eve, 500);
    expect(await w.answers('mb-p-victim')).toEqual([{ jsonrpc: '2.0', id: '1', result: 'done' }]);
    await s.stop();
  });

  test('fault 71: where the key was never seen, nobody can subscribe, and is told so', async () => {
    const w = serving(profile);
    await w.run(signer(9).say('mb-p-victim', 'mine', w.o));
    const tools = new Map([['t', defineTool('t', 'does t', {}, () => 't')]]);
    const s = await w.start({ tools });
    const _meta = {
      'chat.technocore/reply': 'mb-p-victim',
      'io.modelcontextprotocol/protocolVersion': '2026-07-28',
      'io.modelcontextprotocol/clientInfo': { name: 'c', version: '1' },
      'io.modelcontextprotocol/clientCapabilities': {},
    };
    const notifications = { toolsListChanged: true };
    await w.say(requestFrame('1', 'subscriptions/listen', { notifications, _meta }), eve, 500);
    toolsChanged(tools);
    await w.clock.advance(500);
    expect(await w.answers('mb-p-victim')).toMatchObject([
      { id: '1', error: { message: 'Notices cannot be sent here' } },
    ]);
    await s.stop();
  });

  test('fault 71: a policy has the last word, and who may not call is told so, or nothing', async () => {
    const w = serving(profile);
    await w.open();
    await w.open(eve, 'mb-p-eve');
    const from = (did: string): boolean => did !== eve.did;
    const EVES = { 'chat.technocore/reply': 'mb-p-eve' };
    let s = await w.start({ allow: async (did) => from(did), replyPolicy: (_from, room) => room !== 'mb-p-elsewhere' });
    await w.say(requestFrame('1', 'run', { n: 1, _meta: EVES }), eve);
    await w.say(requestFrame(undefined, 'run', { n: 2 }), eve);
    await w.say(ask('2', 'run', { n: 3 }));
    await w.say(requestFrame('3', 'run', { n: 4, _meta: { 'chat.technocore/reply': 'mb-p-elsewhere' } }));
    expect(w.runs).toEqual(['3']);
    expect(await w.answers('mb-p-eve')).toMatchObject([{ id: '1', error: { code: 1004 } }]);
    await s.stop();
    s = await w.start({ allow: from, silent: true });
    await w.say(requestFrame('4', 'run', { n: 5, _meta: EVES }), eve);
    expect(await w.answers('mb-p-eve')).toHaveLength(1);
    await s.stop();
  });

  test('who may call could not be found out: nothing runs, and the server goes on', async () => {
    const w = serving(profile);
    await w.open();
    let fails = true;
    const s = await w.start({
      allow: () => {
        if (fails) throw new Error('the list is gone');
        return true;
      },
    });
    await w.say(ask('1', 'run', { n: 1 }));
    fails = false;
    await w.say(ask('2', 'run', { n: 2 }));
    expect(w.runs).toEqual(['2']);
    await s.stop();
  });

  test('who may call is never found out: the next message of that key gets its turn', async () => {
    const w = serving(profile);
    await w.open();
    let hangs = true;
    const s = await w.start({ allow: () => (hangs ? new Promise(() => {}) : true) });
    await w.say(ask('1', 'run', { n: 1 }));
    hangs = false;
    await w.say(ask('2', 'run', { n: 2 }));
    expect(w.runs).toEqual([]);
    await w.clock.advance(31_000);
    expect(w.runs).toEqual(['2']);
    expect(w.kinds()).toContain('skipped');
    await s.stop();
  });

  test('a decision that says nothing is no, and a promise of no is no', async () => {
    const w = serving(profile);
    await w.open();
    let s = await w.start({ allow: (() => {}) as any });
    await w.say(ask('1', 'run', { n: 1 }));
    expect(await w.answers()).toMatchObject([{ id: '1', error: { code: 1004 } }]);
    await s.stop();
    s = await w.start({ replyPolicy: async () => false });
    await w.say(ask('2', 'run', { n: 2 }));
    await s.stop();
    expect(w.runs).toEqual([]);
    expect(await w.answers()).toHaveLength(1);
  });

  test('fault 13: lines that are unsigned, signed by another, or had their signature taken away reach nobody', async () => {
    const w = serving('modern');
    const direct = w.service.client('server');
    const forged = faulty(direct, async (url, init) => {
      if (!/wait=/.test(url)) return undefined;
      const view = await (await direct(url, init)).json();
      for (const m of view.messages) {
        if (m.from === eve.did) m.from = client.did;
        if (m.text.includes('"stripped"')) delete m.sig;
      }
      return new Response(JSON.stringify(view));
    });
    const s = await w.start({ fetch: forged });
    await w.say(ask('1', 'run', { n: 'good' }));
    await w.say(ask('2', 'run', { n: 'forged' }), eve);
    await w.say(ask('3', 'run', { n: 'stripped' }));
    await w.say(ask('4', 'run', { n: 'good' }));
    expect(w.runs).toEqual(['good', 'good']);
    expect(w.events.filter(({ kind }) => kind === 'refused').map((e) => e['reason'])).toEqual([
      'signature invalid',
      'signature unverifiable',
    ]);
    await s.stop();
  });
});

describe.each(PROFILES)('once, %s', (profile) => {
  test('fault 72: one frame signed twice runs once, and the kept answer goes back', async () => {
    const w = serving(profile);
    await w.open();
    const s = await w.start();
    await w.say(ask('1', 'run', { n: 1 }));
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['1']);
    expect(await w.answers()).toEqual([
      { jsonrpc: '2.0', id: '1', result: null },
      { jsonrpc: '2.0', id: '1', result: null },
    ]);
    await s.stop();
  });

  test('fault 72: a restarted server with the same ledger and cursor runs nothing twice, and serves what came meanwhile', async () => {
    const w = serving(profile);
    await w.open();
    const places = new Map<string, Place>();
    const o = {
      ledger: memoryLedger(),
      cursor: {
        load: (room: string) => places.get(room),
        save: (room: string, place: Place) => void places.set(room, place),
      },
    };
    let s = await w.start(o);
    await s.stop();
    await w.say(ask('0', 'run', { n: 'while it was down' }));
    s = await w.start(o);
    await w.clock.advance(20);
    await w.say(ask('1', 'run', { n: 1 }));
    await s.stop();
    // It died before it could write its place down.
    const { mark: _ofAnother, ...place } = places.get(BOX)!;
    places.set(BOX, { ...place, since: 1 });
    s = await w.start(o);
    await w.clock.advance(50);
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['while it was down', '1']);
    expect((await w.answers()).map((a) => a.id)).toEqual(['0', '1', '1']);
    await s.stop();
  });

  test('fault 73: another key’s id brings no kept answer; other params under a used id are refused', async () => {
    const w = serving(profile);
    w.methods.set('whoami', (_p, { from }) => from);
    await w.open();
    await w.open(eve, 'mb-p-eve');
    const s = await w.start();
    await w.say(ask('1', 'whoami'));
    await w.say(requestFrame('1', 'whoami', { _meta: { 'chat.technocore/reply': 'mb-p-eve' } }), eve);
    expect((await w.answers('mb-p-eve'))[0].result).toBe(eve.did);
    await w.say(ask('1', 'whoami', { other: true }));
    expect((await w.answers()).at(-1)).toMatchObject({ id: '1', error: { code: -32600 } });
    await s.stop();
  });

  test('fault 27: the same signed bytes, posted once more by anybody, run nothing', async () => {
    const w = serving(profile, { roomRingBytes: 6000 });
    await w.open();
    const s = await w.start();
    await w.run(client.say(BOX, ask('1', 'run', { n: 1 }), w.o));
    const { messages } = await w.run(read(BOX, w.o));
    const old = messages.at(-1)!;
    const sig = client.signMessage(BOX, old.nonce!, old.text).sig;
    await w.clock.advance(700_000);
    // Buried deep enough, the service takes them again.
    for (let i = 0; i < 40; i++) await w.run(eve.say(BOX, `${i} ${'x'.repeat(150)}`, w.o));
    const again = await w.o.fetch(
      `${w.o.base}/r/${BOX}/say-signed/${client.did}/${sig}/${old.nonce}/${encodeURIComponent(old.text)}`,
    );
    expect(again.status).toBe(200);
    await w.clock.advance(50);
    expect(w.runs).toEqual(['1']);
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'skipped', reason: 'old' }));
    await s.stop();
  });

  test('an answer waits while others at the address have the whole budget', async () => {
    const w = serving(profile);
    await w.open();
    let spent = false;
    let seconds = '2';
    const fetch = faulty(w.service.client('server'), (url, init) =>
      spent && isSay(url, init)
        ? new Response('429 rate limited', { status: 429, headers: { 'retry-after': seconds } })
        : undefined,
    );
    const s = await w.start({ fetch });
    spent = true;
    await w.say(ask('1', 'run', { n: 1 }), client, 100_000);
    expect(await w.answers()).toEqual([]);
    spent = false;
    await w.clock.advance(5000);
    expect(await w.answers()).toEqual([{ jsonrpc: '2.0', id: '1', result: null }]);
    spent = true;
    await w.say(ask('2', 'run', { n: 2 }), client, 400_000);
    const unanswered = (): number => w.kinds().filter((kind) => kind === 'unanswered').length;
    expect(unanswered()).toBe(1);
    // Who should come again in an hour is not waited for that long.
    seconds = '3600';
    await w.say(ask('3', 'run', { n: 3 }), client, 100_000);
    expect(unanswered()).toBe(2);
    await s.stop();
  });

  test('an answer in a sealed room waits likewise, a short one and one in notes', async () => {
    const w = world(profile);
    let spent = false;
    const fetch = faulty(w.service.client('server'), (url, init) =>
      spent && (isSay(url, init) || /\/set\//.test(url) || init.method === 'POST')
        ? new Response('429 rate limited\nretry after: 2s\n', { status: 429, headers: { 'retry-after': '2' } })
        : undefined,
    );
    const [key, stop] = [new Uint8Array(32).fill(7), new AbortController()];
    let go = (): void => {};
    const methods = new Map<string, Handler>([
      [
        'text',
        async ({ length }) => {
          spent = true;
          go();
          return 'x'.repeat(length);
        },
      ],
    ]);
    const o = { ...w.o, fetch };
    const over = serve(sealed('p-sealed', key, server, o), server, { ...o, methods, signal: stop.signal });
    await w.clock.advance(50);
    for (const length of [9, 9000]) {
      const begun = new Promise<void>((resolve) => (go = resolve));
      const channel = sealed('p-sealed', key, client, w.o);
      const answer = call(channel, 'text', { length }, client, { ...w.o, timeoutMs: 200_000 });
      await w.run(begun);
      await w.clock.advance(100_000);
      spent = false;
      expect(await w.run(answer)).toHaveLength(length);
    }
    stop.abort();
    await w.run(over);
  });

  test('what could not be written is kept, and comes for the same request', async () => {
    const w = serving(profile);
    await w.open();
    let down = false;
    const fetch = faulty(w.service.client('server'), (url, init) =>
      down && isSay(url, init) ? Promise.reject(broken('ECONNREFUSED')) : undefined,
    );
    const s = await w.start({ fetch });
    down = true;
    await w.say(ask('1', 'run', { n: 1 }), client, 60_000);
    expect(w.kinds()).toContain('unanswered');
    down = false;
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['1']);
    expect(await w.answers()).toEqual([{ jsonrpc: '2.0', id: '1', result: null }]);
    await s.stop();
  });

  test('copies of a request that a dead process began, and that may run again, run it once between them', async () => {
    const w = serving(profile);
    await w.open();
    let text = '';
    const log = {
      append: async (more: string) => void (text += more),
      replace: async (all: string) => void (text = all),
      close: async () => {},
    };
    let runs = 0;
    w.methods.set(
      'safe',
      idempotent(() => {
        runs++;
        return w.clock.sleep(1000);
      }),
    );
    const dying = await w.start({ ledger: await loggedLedger('ledger', undefined, log), drainMs: 1 });
    await w.say(ask('1', 'safe'));
    const left = text;
    await dying.stop();
    const s = await w.start({ ledger: await loggedLedger('ledger', left, log) });
    for (let i = 0; i < 3; i++) await w.run(client.say(BOX, ask('1', 'safe'), w.o));
    await w.clock.advance(5000);
    expect(runs).toBe(2);
    await s.stop();
  });

  test('a request that a dead process began is told so, or run again where it does no harm', async () => {
    const w = serving(profile);
    await w.open();
    const ledger = memoryLedger() as any;
    const admit = ledger.admit.bind(ledger);
    // As a ledger from a file would say.
    ledger.admit = (m: any, now: number) => {
      const { fresh, verdicts } = admit(m, now);
      return { fresh, verdicts: verdicts.map((v: any) => (v.kind === 'new' ? { kind: 'interrupted' } : v)) };
    };
    w.methods.set(
      'safe',
      idempotent(({ n }) => void w.runs.push(`safe ${n}`)),
    );
    const s = await w.start({ ledger });
    await w.say(ask('1', 'run', { n: 1 }));
    await w.say(ask('2', 'safe', { n: 2 }));
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['safe 2']);
    expect((await w.answers()).map((a) => a.error?.code ?? a.result)).toEqual([1001, null, 1001]);
    await s.stop();
  });

  test('a ledger that fails is the end of the server, not of its promise', async () => {
    const w = serving(profile);
    await w.open();
    const full = new Error('the disk is full');
    const ledger = { ...memoryLedger(), admit: () => Promise.reject(full), answer() {}, sent() {}, forget() {} };
    const s = await w.start({ ledger });
    const over = s.over.catch((e) => e);
    await w.say(ask('1', 'run', { n: 1 }));
    expect(await w.run(over)).toBe(full);
    expect(w.runs).toEqual([]);
  });

  test('where other servers may have answered and their answer cannot be looked for, the caller is told so', async () => {
    const w = serving(profile);
    await w.open();
    const ledger = memoryLedger() as any;
    let isDown = false;
    const admit = ledger.admit.bind(ledger);
    ledger.admit = (m: any, now: number) => {
      const { fresh, verdicts } = admit(m, now);
      const { id } = m.requests[0];
      return { fresh, verdicts: id === '"2"' ? [{ kind: 'interrupted' }, ...verdicts.slice(1)] : verdicts };
    };
    const fetch = faulty(w.service.client('server'), (url) =>
      isDown && url.includes(`/r/${MINE}?`) ? Promise.reject(broken()) : undefined,
    );
    const s = await w.start({ ledger, fetch, claim: true });
    // What was signed before the first message that the server saw could be known to another one.
    await w.clock.advance(1000);
    await w.say(ask('1', 'run', { n: 1 }), client, 1000);
    isDown = true;
    await w.say(`[${ask('2', 'run', { n: 2 })},${ask('3', 'run', { n: 3 })}]`, client, 60_000);
    isDown = false;
    expect((await w.answers()).flat().map((a) => [a.id, a.error?.code])).toEqual([
      ['1', undefined],
      ['2', 1001],
      ['3', undefined],
    ]);
    expect(w.runs).toEqual(['1', '3']);
    await s.stop();
  });

  test('a ledger that fails to keep an answer keeps none from the caller', async () => {
    const w = serving(profile);
    await w.open();
    const ledger = memoryLedger();
    const answer = ledger.answer.bind(ledger);
    let left = 1;
    ledger.answer = (...how) => (left-- > 0 ? Promise.reject(new Error('the disk is full')) : answer(...how));
    const s = await w.start({ ledger });
    await w.say(`[${ask('1', 'run', { n: 1 })},${ask('2', 'run', { n: 2 })}]`);
    await w.say(ask('3', 'run', { n: 3 }));
    expect(await w.answers()).toMatchObject([[{ id: '1' }, { id: '2' }], { id: '3' }]);
    expect(w.kinds().filter((kind) => kind === 'unkept')).toHaveLength(1);
    await s.stop();
  });

  test('a ledger whose time fails to pass is the end of the server too, also as a promise', async () => {
    const w = serving(profile);
    const full = new Error('the disk is full');
    const s = await w.start({ ledger: Object.assign(memoryLedger(), { pass: () => Promise.reject(full) }) });
    expect(await w.run(s.over.catch((e) => e))).toBe(full);
  });
});

describe.each(PROFILES)('older peers, %s', (profile) => {
  test('one that knows only the reply address in _meta, its room not there yet', async () => {
    const w = serving(profile);
    const s = await w.start();
    await w.say(
      `{"jsonrpc": "2.0", "id": 7, "method": "echo", "params": {"a": 1, "_meta": {"chat.technocore/reply": "mb-p-0a1b"}}}`,
    );
    expect(await w.answers('mb-p-0a1b')).toEqual([{ jsonrpc: '2.0', id: 7, result: { a: 1 } }]);
    await s.stop();
  });

  test('one that has only an unsigned mailbox in its identity note, and positional params', async () => {
    const w = serving(profile);
    w.methods.set('sub', ([a, b]) => a - b);
    const { ns, key } = identityNote(client.did);
    await w.run(setNote(ns, key, `${client.did} mailbox:mb-p-old`, w.o));
    const s = await w.start();
    await w.say('{"jsonrpc":"2.0","id":"k9","method":"sub","params":[5,3]}');
    await w.say('{"jsonrpc":"2.0","id":"k10","method":"run","params":{"n":1}}');
    await w.say('{"jsonrpc":"2.0","id":"k11","method":"echo"}');
    expect((await w.answers('mb-p-old')).map((a) => [a.id, a.result])).toEqual([
      ['k9', 2],
      ['k10', null],
      ['k11', null],
    ]);
    await s.stop();
  });

  test('a signed record goes before what was used last, and that before a hint', async () => {
    const w = serving(profile);
    const s = await w.start();
    await w.say(ask('1', 'echo'));
    await w.say('{"jsonrpc":"2.0","id":"2","method":"echo"}');
    expect((await w.answers()).map((a) => a.id)).toEqual(['1', '2']);
    await w.run(publishIdentity(client, { mailbox: 'mb-p-signed' }, w.o));
    await w.clock.advance(61_000);
    await w.say('{"jsonrpc":"2.0","id":"3","method":"echo"}');
    expect((await w.answers('mb-p-signed')).map((a) => a.id)).toEqual(['3']);
    await s.stop();
  });

  test('one that says nothing of where: nothing runs, and it is told to the operator', async () => {
    const w = serving(profile);
    const s = await w.start();
    await w.say('{"jsonrpc":"2.0","id":"1","method":"run","params":{"n":1}}');
    expect(w.runs).toEqual([]);
    expect(w.events).toContainEqual(expect.objectContaining({ kind: 'refused', reason: 'no place for an answer' }));
    // Not remembered against it.
    await w.open();
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['1']);
    await s.stop();
  });

  test('a look at a reply room or an identity that fails loses one message and not the next', async () => {
    const w = serving(profile);
    let down = false;
    const fetch = faulty(w.service.client('server'), (url) =>
      down && (/\/kv\//.test(url) || url.includes(MINE)) ? Promise.reject(broken()) : undefined,
    );
    const s = await w.start({ fetch });
    down = true;
    await w.say('{"jsonrpc":"2.0","id":"1","method":"run","params":{"n":1}}', client, 60_000);
    await w.say(ask('2', 'run', { n: 2 }), client, 60_000);
    down = false;
    await w.open();
    await w.say(ask('2', 'run', { n: 2 }));
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual(['2', '1']);
    expect((await w.answers()).map((a) => a.id)).toEqual(['2', '1']);
    await s.stop();
  });
});

describe.each(PROFILES)('hostile frames, %s', (profile) => {
  const meta = JSON.stringify(META);
  const corpus: [string, string][] = [
    ['a bracket', '['],
    ['4,096 brackets', '['.repeat(4096)],
    ['braces', '{"a":'.repeat(800)],
    ['deep arrays', '['.repeat(2048) + ']'.repeat(2048)],
    ['deep params', `{"jsonrpc":"2.0","id":"d","method":"echo","params":${'['.repeat(1990)}${']'.repeat(1990)}}`],
    ['deep ids', `{"jsonrpc":"2.0","id":${'['.repeat(1990)}${']'.repeat(1990)},"method":"run"}`],
    ['null', 'null'],
    ['a number', '1e999'],
    ['a text', '"run"'],
    ['true', 'true'],
    ['nothing much', '{}'],
    ['no method', '{"jsonrpc":"2.0"}'],
    ['a method that is none', `{"jsonrpc":"2.0","id":1,"method":7}`],
    ['a method of an object', `{"jsonrpc":"2.0","id":1,"method":{"toString":"run"}}`],
    ['version 1.0', '{"jsonrpc":"1.0","id":1,"method":"run"}'],
    ['version 2 as a number', '{"jsonrpc":2.0,"id":1,"method":"run"}'],
    ['no version', '{"id":1,"method":"run"}'],
    ['an id too large to echo', '{"jsonrpc":"2.0","id":9007199254740993,"method":"run"}'],
    ['an id that is no number', '{"jsonrpc":"2.0","id":1e999,"method":"run"}'],
    ['an id of true', '{"jsonrpc":"2.0","id":true,"method":"run"}'],
    ['an id of an object', '{"jsonrpc":"2.0","id":{},"method":"run"}'],
    ['params of a text', '{"jsonrpc":"2.0","id":1,"method":"run","params":"x"}'],
    ['params of null', '{"jsonrpc":"2.0","id":1,"method":"run","params":null}'],
    ['an empty batch', '[]'],
    ['a batch of numbers', '[1,2,3]'],
    ['a batch of batches', '[[{"jsonrpc":"2.0","id":1,"method":"run"}]]'],
    ['a batch of nulls', `[${'null,'.repeat(800)}null]`],
    ['prototype names', '{"__proto__":{"jsonrpc":"2.0","id":1,"method":"run"}}'],
    [
      'a prototype in the meta',
      '{"jsonrpc":"2.0","id":"p","method":"nope","params":{"_meta":{"__proto__":{"chat.technocore/reply":"mb-p-client"}}}}',
    ],
    ['a meta that is none', '{"jsonrpc":"2.0","id":"m","method":"nope","params":{"_meta":[]}}'],
    ['lone surrogates', '{"jsonrpc":"2.0","id":"\\ud800","method":"\\udfff"}'],
    [
      'a lone surrogate as reply room',
      '{"jsonrpc":"2.0","id":1,"method":"run","params":{"_meta":{"chat.technocore/reply":"mb-\\ud800"}}}',
    ],
    ['twice the same member', '{"jsonrpc":"2.0","id":1,"method":"run","method":7}'],
    ['a trailing comma', '{"jsonrpc":"2.0","id":1,"method":"run",}'],
    ['single quotes', "{'jsonrpc':'2.0','id':1,'method':'run'}"],
    ['NaN', '{"jsonrpc":"2.0","id":NaN,"method":"run"}'],
    ['two frames', '{"jsonrpc":"2.0","id":1,"method":"run"} {"jsonrpc":"2.0","id":2,"method":"run"}'],
    ['a response', `{"jsonrpc":"2.0","id":1,"result":{"_meta":${meta}}}`],
    ['an error without id', '{"jsonrpc":"2.0","error":{"code":-32700,"message":"Parse error"}}'],
    ['a response that has params', `{"jsonrpc":"2.0","id":1,"result":1,"params":{"_meta":${meta}}}`],
    ['a notification of cancelling', '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'],
    ['the longest text', `"${'x'.repeat(4094)}"`],
    ['the longest number', '9'.repeat(4096)],
    ['chat', 'hello there'],
  ];

  test('fault 80: none of them stops the server, reaches a handler or is answered', async () => {
    const w = serving(profile);
    await w.open();
    const unheard: unknown[] = [];
    const hear = (e: unknown): void => void unheard.push(e);
    process.on('unhandledRejection', hear);
    const s = await w.start({ tools: new Map(), layer: mcpLayer });
    for (const [, text] of corpus) await w.run(eve.say(BOX, text, w.o));
    await w.clock.advance(100);
    // By somebody whose answers would find their way, too.
    await w.run(publishIdentity(client, { mailbox: MINE }, w.o));
    for (const [name, text] of corpus) {
      await w.say(text, client, 5);
      if (name === 'deep params') continue;
      expect([name, w.runs]).toEqual([name, []]);
    }
    await w.say(ask('last', 'run', { n: 'alive' }));
    process.off('unhandledRejection', hear);
    expect(w.runs).toEqual(['alive']);
    expect(unheard).toEqual([]);
    // What is a request is answered, and nothing else.
    const answered = (await w.answers()).map((a) => a.id);
    expect(answered).toEqual(['d', 'p', 'm', '\ud800', 'last']);
    const rooms = await (await w.o.fetch(`${w.o.base}/r/mb-p-client?format=json`)).json();
    expect(rooms.messages.every((m: any) => [client.did, server.did].includes(m.from))).toBe(true);
    await s.stop();
    expect(w.clock.sleepers).toBe(0);
  });

  test('fault 80: whatever a frame is made of, requests are answered and nothing else is', async () => {
    const w = serving(profile);
    await w.open();
    const s = await w.start();
    const json = fc.jsonValue({ maxDepth: 2 });
    const maybe = (arb: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> => fc.option(arb, { nil: undefined, freq: 4 });
    const reply = fc.constantFrom<unknown>(MINE, MINE, MINE, BOX, 'lobby', 7, null);
    const params = fc.oneof(
      json,
      fc.record({ n: json, _meta: reply.map((room) => ({ 'chat.technocore/reply': room })) }),
      fc.array(json, { maxLength: 2 }),
    );
    let ids = 0;
    const member = fc
      .record({
        jsonrpc: maybe(fc.constantFrom<unknown>('2.0', '2.0', '2.0', '1.0', 2)),
        id: maybe(fc.oneof(fc.constant('own'), fc.constant('own'), json)),
        method: maybe(fc.oneof(fc.constant('echo'), fc.constant('nope'), json)),
        params: maybe(params),
        result: fc.option(json, { nil: undefined, freq: 1 }),
        error: fc.option(json, { nil: undefined, freq: 1 }),
      })
      // Whatever repeats an id is another question; that is not what is asked here.
      .map((frame) => (frame.id === 'own' ? { ...frame, id: `own ${ids++}` } : frame));
    const frames = fc.sample(member, { numRuns: 120, seed: 7 });
    const expected: unknown[] = [];
    for (const frame of frames) {
      const { jsonrpc, id, method, params, result, error } = frame as any;
      const isAddressed = params?._meta?.['chat.technocore/reply'] === MINE;
      const isId = id === null || typeof id === 'string' || (typeof id === 'number' && Math.abs(id) <= 2 ** 53);
      const isResponse = method === undefined && (result !== undefined || error !== undefined);
      const isCall =
        jsonrpc === '2.0' &&
        typeof method === 'string' &&
        (params === undefined || (typeof params === 'object' && params !== null));
      // Without an address the answer goes where the last one went.
      const isNamed = params?._meta?.['chat.technocore/reply'] !== undefined;
      if (isResponse || (!isAddressed && isNamed)) continue;
      if (isCall && isId) expected.push(id);
      else if (isNamed && !(isCall && id === undefined)) expected.push(isId ? id : null);
    }
    await w.say(ask('first', 'echo'));
    for (const frame of frames) await w.say(encodeLong(frame), client, 5);
    await w.clock.advance(200);
    const { messages } = await w.run(read(MINE, { ...w.o, since: 2, limit: 200 }));
    const answered = messages.map((m) => JSON.parse(m.text).id);
    const unlike = (id: unknown): boolean => typeof id === 'string' && id.startsWith('own ');
    // Those that were made up may repeat each other.
    expect(answered.filter(unlike)).toEqual(expected.filter(unlike));
    const kinds = (list: unknown[]): unknown[] =>
      [...new Set(list.filter((id) => !unlike(id)).map((id) => JSON.stringify(id)))].sort();
    expect(kinds(answered)).toEqual(kinds(expected));
    expect(expected.length).toBeGreaterThan(12);
    await s.stop();
  });

  test('junk that does not say where to costs no look at who sent it', async () => {
    const w = serving(profile);
    const looks: string[] = [];
    const direct = w.service.client('server');
    const fetch = faulty(direct, (url) => void (/\/kv\/did/.test(url) && looks.push(url)) as undefined);
    const s = await w.start({ fetch });
    for (const text of ['{}', '[]', '[1]', '{"jsonrpc":"1.0","id":1,"method":"run"}']) await w.say(text);
    expect(looks).toEqual([]);
    await w.say('{"jsonrpc":"2.0","id":1,"method":"run"}');
    expect(looks.length).toBeGreaterThan(0);
    await s.stop();
  });

  test('what is no request but says where to is told so, once a member and not without end', async () => {
    const w = serving(profile);
    await w.open();
    const s = await w.start();
    await w.say(`{"jsonrpc":"1.0","id":"old","method":"run","params":{"_meta":${meta}}}`);
    expect(await w.answers()).toEqual([
      { jsonrpc: '2.0', id: 'old', error: { code: -32600, message: 'Invalid Request' } },
    ]);
    await w.say(`[{"jsonrpc":"2.0","id":"one","method":"echo","params":{"_meta":${meta}}}${',1'.repeat(1900)}]`);
    const frames = (await w.answers()).slice(1);
    expect(frames.length).toBeLessThanOrEqual(3);
    expect(frames.flat().filter((a: any) => a.error)).toHaveLength(64);
    expect(frames.flat().find((a: any) => a.id === 'one')).toMatchObject({ result: {} });
    await s.stop();
  });

  test('a batch is answered in as few messages as hold it; one that names an MCP method, by one error', async () => {
    const w = serving(profile);
    w.methods.set('wide', ({ n }) => `${n}`.repeat(700));
    await w.open();
    const s = await w.start({ tools: new Map(), layer: mcpLayer });
    const members = (...methods: string[]) =>
      encodeLong(
        methods.map((method, i) => ({
          jsonrpc: '2.0',
          id: `${method}${i}`,
          method,
          params: i === 0 ? { n: i, _meta: META } : { n: i },
        })),
      );
    await w.say(members('echo', 'nope', 'echo'));
    await w.say(members('wide', 'wide', 'wide', 'wide', 'wide', 'wide', 'wide', 'wide'));
    await w.say(members('run', 'tools/list'));
    const frames = await w.answers();
    expect(frames[0]).toMatchObject([
      { id: 'echo0' },
      { id: 'nope1', error: { code: -32601 } },
      { id: 'echo2', result: { n: 2 } },
    ]);
    expect(
      frames
        .slice(1, -1)
        .flat()
        .map((a: any) => a.id),
    ).toEqual([0, 1, 2, 3, 4, 5, 6, 7].map((i) => `wide${i}`));
    expect(frames.slice(1, -1).length).toBeLessThanOrEqual(2);
    expect(frames.at(-1)).toEqual({ jsonrpc: '2.0', error: expect.objectContaining({ code: -32600 }) });
    expect(w.runs).toEqual([]);
    await s.stop();
  });

  test('a flood of one key is bounded, and another key is served meanwhile', async () => {
    const w = serving(profile);
    const release: (() => void)[] = [];
    w.methods.set('hang', () => new Promise<void>((resolve) => release.push(resolve)));
    await w.open();
    await w.open(eve, 'mb-p-eve');
    const s = await w.start({ concurrency: 4, queue: 16 });
    const EVES = { 'chat.technocore/reply': 'mb-p-eve' };
    for (let i = 0; i < 40; i++) await w.run(eve.say(BOX, requestFrame(`e${i}`, 'hang', { _meta: EVES }), w.o));
    await w.clock.advance(50);
    const busy = await w.answers('mb-p-eve');
    expect(busy.length).toBeGreaterThan(10);
    for (const a of busy) expect(a.error).toMatchObject({ code: 1002, data: { retryAfterMs: expect.any(Number) } });
    // A flood never takes all turns.
    await w.say(ask('1', 'run', { n: 'served' }));
    expect(w.runs).toEqual(['served']);
    // Whoever was told to come back is not remembered against.
    while (release.length > 0) {
      release.shift()!();
      await settled();
    }
    await w.clock.advance(50);
    await w.say(requestFrame(busy[0].id, 'echo', { _meta: EVES }), eve);
    expect((await w.answers('mb-p-eve')).at(-1)).toMatchObject({ id: busy[0].id, result: {} });
    await s.stop();
  });
});

describe.each(PROFILES)('time, %s', (profile) => {
  test('fault 81: a handler that hangs is answered for at its deadline, hears the signal, and blocks nobody', async () => {
    const w = serving(profile);
    let aborted: unknown;
    w.methods.set('hang', (_p, { signal }) => {
      signal.addEventListener('abort', () => (aborted = signal.reason));
      return new Promise(() => {});
    });
    await w.open();
    const s = await w.start({ concurrency: 2, deadlineMs: 5000 });
    await w.say(ask('slow', 'hang'));
    await w.say(ask('quick', 'run', { n: 1 }));
    expect(w.runs).toEqual(['1']);
    await w.say(ask('slow2', 'hang'));
    await w.say(ask('waits', 'run', { n: 2 }));
    await w.clock.advance(5050);
    expect(w.runs).toEqual(['1', '2']);
    expect(aborted).toMatchObject({ code: 'deadline' });
    const answers = await w.answers();
    expect(answers.find((a) => a.id === 'slow').error).toMatchObject({ code: 1003 });
    // The kept answer is the deadline: it does not run again.
    await w.say(ask('slow', 'hang'));
    expect((await w.answers()).at(-1)).toMatchObject({ id: 'slow', error: { code: 1003 } });
    await s.stop();
    expect(w.clock.sleepers).toBe(0);
  });

  test('fault 81: a notification that hangs has its deadline, too', async () => {
    const w = serving(profile);
    let aborted = 0;
    w.methods.set('hang', (_p, { signal }) => {
      signal.addEventListener('abort', () => aborted++);
      return new Promise(() => {});
    });
    await w.open();
    const s = await w.start({ concurrency: 1, deadlineMs: 5000 });
    await w.say(requestFrame(undefined, 'hang', {}));
    await w.say(ask('1', 'run', { n: 1 }));
    expect(w.runs).toEqual([]);
    await w.clock.advance(5050);
    expect([aborted, w.runs]).toEqual([1, ['1']]);
    await s.stop();
    expect(w.clock.sleepers).toBe(0);
  });

  test('stopped, it takes nothing more, and what it took is answered first', async () => {
    const w = serving(profile);
    const release: (() => void)[] = [];
    w.methods.set('slow', () => new Promise<string>((resolve) => release.push(() => resolve('done'))));
    await w.open();
    const s = await w.start();
    for (const id of ['1', '2']) await w.say(ask(id, 'slow'));
    s.abort();
    await w.say(ask('3', 'run', { n: 3 }));
    let over = false;
    s.over.then(() => (over = true));
    await w.clock.advance(100);
    expect(over).toBe(false);
    for (const go of release) go();
    await w.run(s.over);
    expect((await w.answers()).map((a) => [a.id, a.result])).toEqual([
      ['1', 'done'],
      ['2', 'done'],
    ]);
    expect(w.runs).toEqual([]);
    expect([w.service.stats.parked, w.clock.sleepers]).toEqual([0, 0]);
  });

  test('stopped, its subscriptions end with it', async () => {
    const w = serving(profile);
    const tool = defineTool('t', 'A tool.', { type: 'object' }, () => 'x');
    await w.open();
    const s = await w.start({ tools: new Map([['t', tool]]), layer: mcpLayer });
    const params = {
      notifications: { toolsListChanged: true },
      _meta: {
        ...META,
        'io.modelcontextprotocol/protocolVersion': '2026-07-28',
        'io.modelcontextprotocol/clientCapabilities': {},
      },
    };
    await w.say(requestFrame('s', 'subscriptions/listen', params));
    expect(await w.answers()).toHaveLength(1);
    await s.stop();
    expect((await w.answers()).at(-1)).toMatchObject({ id: 's', result: {} });
    expect(w.clock.sleepers).toBe(0);
  });

  test('aborted before and during its start, it ends without a word', async () => {
    const w = serving(profile);
    await serve(BOX, server, { ...w.o, signal: AbortSignal.abort() });
    expect(w.service.stats.requests).toBe(0);
    for (const when of [0, 1, 2, 3]) {
      const v = serving(profile);
      const stop = new AbortController();
      const over = serve(BOX, server, { ...v.o, signal: stop.signal });
      for (let i = 0; i < when; i++) await settled();
      stop.abort();
      await v.run(over);
      await v.clock.advance(1);
      expect([v.service.stats.parked, v.clock.sleepers]).toEqual([0, 0]);
    }
  });

  test('what it cannot wait out is thrown: no mailbox, a closed one', async () => {
    const w = serving(profile);
    await expect(serve('lobby', server, w.o)).rejects.toMatchObject({ code: 'bad_name' });
    await expect(serve(undefined as unknown as string, server, w.o)).rejects.toMatchObject({ code: 'bad_name' });
    const closed = {
      ...w.o,
      fetch: faulty(w.o.fetch, (url, init) =>
        isSay(url, init) ? new Response('403 no\n', { status: 403 }) : undefined,
      ),
    };
    await expect(w.run(serve(BOX, server, closed))).rejects.toMatchObject({ code: 'forbidden' });
    const stop = new AbortController();
    const broke = serve(BOX, server, {
      ...w.o,
      signal: stop.signal,
      onReady: () => {
        throw new Error('mine');
      },
    });
    await expect(w.run(broke)).rejects.toThrow('mine');
    await w.clock.advance(1);
    expect(w.service.stats.parked).toBe(0);
  });

  test('a room that overflows or is made anew under a server is served on, and the operator told', async () => {
    const w = serving(profile, { roomRingBytes: 3000 });
    await w.open();
    const s = await w.start();
    for (let i = 0; i < 25; i++) await w.run(eve.say(BOX, `${i} ${'x'.repeat(150)}`, w.o));
    await w.say(ask('1', 'run', { n: 1 }));
    w.service.age(BOX, 8 * 86_400_000);
    await w.run(eve.say('mb-elsewhere', 'runs the reaper', w.o));
    await w.clock.advance(61_000);
    await w.say(ask('2', 'run', { n: 2 }), client, 61_000);
    expect(w.runs).toEqual(['1', '2']);
    expect(w.kinds()).toContain('lost');
    await s.stop();
  });
});

test('on real sockets, through a network that breaks, every call is answered right and run once', async () => {
  const service = createLocalService({ limits: FREE });
  const { url, close } = await service.listen();
  let seed = 1;
  const chance = (): number => (seed = (seed * 48_271) % 2_147_483_647) / 2_147_483_647;
  let broke = 0;
  const { base } = await faker(async (request, response) => {
    const kind = chance();
    const breaks = (): void => {
      broke++;
      request.socket.destroy();
    };
    if (kind < 0.08) return breaks();
    try {
      const reply = await fetch(url + request.url, { method: request.method! });
      const body = await reply.text();
      if (kind < 0.16) return breaks();
      if (kind < 0.2) return void response.writeHead(503).end('busy');
      response.writeHead(reply.status, { 'content-length': Buffer.byteLength(body) });
      if (kind > 0.24) return void response.end(body);
      response.write(body.slice(0, body.length / 2));
      setImmediate(breaks);
    } catch {
      response.destroy();
    }
  });
  const runs = new Map<number, number>();
  const methods = new Map<string, Handler>([
    [
      'count',
      ({ n }) => {
        runs.set(n, (runs.get(n) ?? 0) + 1);
        return 2 * n;
      },
    ],
  ]);
  const stop = new AbortController();
  const over = await new Promise<{ end: Promise<void> }>((resolve) => {
    const end = serve(BOX, server, { base, methods, signal: stop.signal, onReady: () => resolve({ end }) });
  });
  const numbers = Array.from({ length: 16 }, (_, i) => i);
  const answers = numbers.map((n) =>
    call(BOX, 'count', { n }, client, { base, replyTo: MINE, timeoutMs: 50_000, retry: 3 }),
  );
  expect(await Promise.all(answers)).toEqual(numbers.map((n) => 2 * n));
  expect([...runs.values()]).toEqual(numbers.map(() => 1));
  expect(broke).toBeGreaterThan(2);
  stop.abort();
  await over.end;
  await close();
});

test('64 callers with keys of their own are answered, each in its room', async () => {
  const w = serving();
  w.methods.set('who', (_p, { from }) => from);
  const s = await w.start();
  const keys = Array.from({ length: 64 }, (_, i) => signer(100 + i));
  const work = keys.map((key, i) =>
    call(BOX, 'who', {}, key, { ...w.o, fetch: w.service.client(`c${i}`), replyTo: `mb-p-c${i}` }),
  );
  expect(await w.run(Promise.all(work))).toEqual(keys.map((key) => key.did));
  await s.stop();
});

test('of a server that has ended nothing is held by what others go on to use of its service', async () => {
  const w = world();
  const served = async (): Promise<WeakRef<object>> => {
    const methods = new Map<string, Handler>([['echo', (params) => params]]);
    const stop = new AbortController();
    const over = serve(BOX, server, { ...w.o, methods, signal: stop.signal });
    expect(await w.run(call(BOX, 'echo', { n: 1 }, client, { ...w.o, replyTo: MINE }))).toEqual({ n: 1 });
    stop.abort();
    await w.run(over);
    return new WeakRef(methods);
  };
  const ref = await served();
  expect(await isGone(ref)).toBe(true);
  await w.run(server.say(BOX, 'still there', w.o));
});
