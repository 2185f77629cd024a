import { Client } from '@modelcontextprotocol/client';
import { McpServer } from '@modelcontextprotocol/server';
import { expect, test } from 'vitest';
import { LOST, RoomClientTransport, RoomServerTransport } from '../src/bridge.ts';
import { type Channel, mailboxes } from '../src/channel.ts';
import { decode, encode } from '../src/frames.ts';
import { say } from '../src/technocore-rpc.ts';
import { serveFixture } from './bridge-fixture.ts';
import { Random } from './sim/random.ts';
import { broken, faulty, isSay, signer, type World, world } from './support.ts';
import { settled } from './virtual-clock.ts';

// What takes time, and what servers and clients other than the SDK's do: both ends in one process, on a virtual clock.

const BOX = 'mb-p-served';
const MINE = 'mb-p-mine';
const [serverKey, clientKey, stranger] = [signer(1), signer(2), signer(3)];
const META = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
};
const LOGS = { 'io.modelcontextprotocol/logLevel': 'info' };
const request = (id: string | number, method: string, more: object = {}, meta: object = {}) => ({
  jsonrpc: '2.0',
  id,
  method,
  params: { ...more, _meta: { ...META, ...meta } },
});
const tag = 'io.modelcontextprotocol/subscriptionId';

/** A server that answers when it is told to. */
async function serving(w: World, o: object = {}) {
  const got: any[] = [];
  const extras: any[] = [];
  const transport = new RoomServerTransport(BOX, serverKey, { ...w.o, ...o });
  transport.onmessage = (message, extra) => {
    got.push(message);
    extras.push(extra);
  };
  await w.run(transport.start());
  const send = (message: object, related?: number) =>
    transport.send({ jsonrpc: '2.0', ...message }, related === undefined ? {} : { relatedRequestId: related });
  return { transport, got, extras, send };
}

async function asking(w: World, o: object = {}) {
  const got: any[] = [];
  const errors: any[] = [];
  const transport = new RoomClientTransport(BOX, clientKey, { ...w.o, replyTo: MINE, ...o });
  transport.onmessage = (message) => void got.push(message);
  transport.onerror = (error) => void errors.push(error);
  await transport.start();
  return { transport, got, errors, ask: (message: object) => w.run(transport.send(message)) };
}

/** What is said in our mailbox by the server's key. */
async function heard(w: World, key = clientKey): Promise<{ frames: any[]; channel: Channel }> {
  const frames: any[] = [];
  const channel = mailboxes(BOX, MINE, key, w.o);
  const message = (m: any): void => {
    const frame = m.from === serverKey.did ? decode(m.text) : undefined;
    if (frame) frames.push(frame);
  };
  await w.run(channel.listen({ message, gap: () => {}, end: () => {} }));
  return { frames, channel };
}

test('who calls, and nothing of the room, reaches the server; its answer goes under the caller’s id', async () => {
  const w = world();
  const s = await serving(w, { allow: () => true });
  const { frames, channel } = await heard(w);
  const sent: any = request('a', 'tools/call', { name: 'x' }, { progressToken: 'mine', traceparent: '00-1' });
  sent.params._meta['chat.technocore/reply'] = MINE;
  sent.params._meta['chat.technocore/from'] = 'did:key:somebody';
  await w.run(channel.send(encode(sent)));
  await w.until(() => s.got.length === 1);
  expect(s.got).toEqual([
    request(
      1,
      'tools/call',
      { name: 'x' },
      {
        progressToken: 1,
        traceparent: '00-1',
        'chat.technocore/from': clientKey.did,
      },
    ),
  ]);
  expect(s.extras[0].authInfo).toEqual({ token: '', clientId: clientKey.did, scopes: [], extra: { room: BOX } });
  await s.send({ method: 'notifications/progress', params: { progressToken: 1, progress: 1 } });
  await s.send({ id: 1, result: { resultType: 'complete', ok: true }, extra: 'no member of an answer' });
  await w.until(() => frames.length === 2);
  expect(frames).toEqual([
    {
      jsonrpc: '2.0',
      method: 'notifications/progress',
      params: { progressToken: 'mine', progress: 1, _meta: { 'chat.technocore/requestId': 'a' } },
    },
    { jsonrpc: '2.0', id: 'a', result: { resultType: 'complete', ok: true } },
  ]);
  // Much later, when the answer is forgotten, the id may stand for another request.
  for (let minute = 0; minute < 11; minute++) await w.clock.advance(60_000);
  await w.run(channel.send(encode(sent)));
  await w.until(() => s.got.length === 2);
  await w.run(s.transport.close());
});

test('what no answer can be is an error; what is for nobody is left out', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  const outcomes = [{ result: 1 }, { result: {}, error: { code: 1, message: 'x' } }, { error: 'bad' }];
  for (const [i, outcome] of outcomes.entries()) {
    await c.ask(request(i, 'x/y'));
    await w.until(() => s.got.length === i + 1);
    await s.send({ id: i + 1, ...outcome });
    await w.until(() => c.got.length === i + 1);
    expect(c.got[i]).toEqual({ jsonrpc: '2.0', id: i, error: { code: -32603, message: 'Internal error' } });
  }
  await s.send({ id: 99, result: {} });
  await s.send({ id: 1, result: {} });
  await s.send({ method: 'notifications/progress', params: { progressToken: 1, progress: 1 } });
  await s.send({ method: 'notifications/tools/list_changed' });
  await s.send({ method: 'notifications/cancelled', params: { requestId: 1 } });
  expect(w.events.filter(({ reason }) => reason === 'the server sent a message that is for no caller')).toHaveLength(5);
  await w.run(s.transport.close());
});

test('a long list comes in pages to callers that read no spilled answers, whole to those that do', async () => {
  const w = world();
  const s = await serving(w);
  const { frames, channel } = await heard(w);
  const tools = Array.from({ length: 60 }, (_, i) => ({ name: `tool_${i}`, description: 'd'.repeat(150) }));
  const listed: unknown[] = [];
  let cursor: string | undefined;
  for (let i = 0; i === 0 || cursor !== undefined; i++) {
    const more = cursor === undefined ? {} : { cursor };
    const list = request(`list-${i}`, 'tools/list', more, { 'chat.technocore/reply': MINE });
    await w.run(channel.send(encode(list as any)));
    await w.until(() => s.got.length === i + 1);
    expect(s.got[i].params.cursor).toBe(undefined);
    await s.send({ id: i + 1, result: { tools } });
    await w.until(() => frames.length === i + 1);
    listed.push(...frames[i].result.tools);
    cursor = frames[i].result.nextCursor;
  }
  expect(listed).toEqual(tools);
  const c = await asking(w);
  await c.ask(request(0, 'tools/list'));
  await w.until(() => s.got.at(-1).params._meta['chat.technocore/from'] && s.got.length === frames.length + 1);
  await s.send({ id: s.got.length, result: { tools } });
  await w.until(() => c.got.length === 1);
  expect(c.got[0].result.tools).toEqual(tools);
  await w.run(s.transport.close());
});

test('log lines that name no request go to the only caller who wants any, and else to nobody', async () => {
  const w = world();
  const s = await serving(w);
  const { frames, channel } = await heard(w);
  const reply = { 'chat.technocore/reply': MINE };
  const line = { method: 'notifications/message', params: { level: 'warning', data: 'hot', logger: 'l' } };
  await w.run(channel.send(encode(request('quiet', 'x/y', {}, reply) as any)));
  await w.until(() => s.got.length === 1);
  await s.send(line);
  await w.run(channel.send(encode(request('loud', 'x/y', {}, { ...reply, ...LOGS }) as any)));
  await w.until(() => s.got.length === 2);
  await s.send(line);
  await s.send({ method: 'notifications/message', params: { level: 'debug', data: 'low' } });
  await w.until(() => frames.length === 1);
  expect(frames[0].params).toEqual({ ...line.params, _meta: { 'chat.technocore/requestId': 'loud' } });
  const other = mailboxes(BOX, 'mb-p-other', stranger, w.o);
  const others = { 'chat.technocore/reply': 'mb-p-other', ...LOGS };
  await w.run(other.send(encode(request('loud', 'x/y', {}, others) as any)));
  await w.until(() => s.got.length === 3);
  await s.send(line);
  // Of which request it is can also be said.
  await s.send(line, 2);
  await w.until(() => frames.length === 2);
  await w.clock.advance(5000);
  expect(frames).toHaveLength(2);
  await w.run(s.transport.close());
});

test('a flood of progress is thinned out, its latest kept', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request(0, 'x/y', {}, { progressToken: 0, ...LOGS }));
  await w.until(() => s.got.length === 1);
  for (let progress = 1; progress <= 500; progress++) {
    await s.send({ method: 'notifications/progress', params: { progressToken: 1, progress, total: 500 } });
  }
  await w.until(() => c.got.some((frame) => frame.params?.progress === 500));
  expect(c.got.length).toBeLessThan(15);
  expect(c.got.at(-1).params).toEqual({
    progressToken: 0,
    progress: 500,
    total: 500,
    _meta: { 'chat.technocore/requestId': 0 },
  });
  await w.run(c.transport.close());
  await w.run(s.transport.close());
});

test('of a flood of log lines it is said how many are left out', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request(0, 'x/y', {}, LOGS));
  await w.until(() => s.got.length === 1);
  for (let i = 0; i < 30; i++) await s.send({ method: 'notifications/message', params: { level: 'info', data: i } }, 1);
  await s.send({ id: 1, result: {} });
  await w.until(() => c.got.some((frame) => frame.result));
  expect(c.got.map(({ params }) => params?.data)).toEqual([
    ...[...Array(10).keys()],
    '20 more log lines are left out',
    undefined,
  ]);
  await w.run(s.transport.close());
});

test('a client gets one message a turn, however many are read at once', async () => {
  const w = world();
  const s = await serving(w);
  const fetch = faulty(w.o.fetch, async (url) => {
    if (url.includes(`/r/${MINE}?`) && url.includes('wait=')) await w.clock.sleep(300);
    return undefined;
  });
  const transport = new RoomClientTransport(BOX, clientKey, { ...w.o, fetch, replyTo: MINE });
  const turns: number[] = [];
  let turn = 0;
  transport.onmessage = () => {
    turns.push(turn);
    setImmediate(() => turn++);
  };
  await transport.start();
  await w.run(transport.send(request(0, 'x/y', {}, { progressToken: 0 })));
  await w.until(() => s.got.length === 1);
  await s.send({ method: 'notifications/progress', params: { progressToken: 1, progress: 1 } });
  await s.send({ method: 'notifications/progress', params: { progressToken: 1, progress: 2 } });
  await s.send({ id: 1, result: {} });
  await w.until(() => turns.length === 3);
  expect(turns).toEqual([0, 1, 2]);
  await w.run(transport.close());
  await w.run(s.transport.close());
});

test('an id is one request’s until that is answered', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request(0, 'x/y'));
  await expect(c.ask(request(0, 'x/y'))).rejects.toMatchObject({ code: 'duplicate_id' });
  await c.ask(request('0', 'x/y'));
  await w.until(() => s.got.length === 2);
  await s.send({ id: 1, result: {} });
  await w.until(() => c.got.length === 1);
  await c.ask(request(0, 'x/y'));
  await w.until(() => s.got.length === 3);
  await w.run(c.transport.close());
  await w.run(s.transport.close());
});

test('at the end, what had not even begun is interrupted as well', async () => {
  const w = world();
  const s = await serving(w, { concurrency: 1, drainMs: 100 });
  const c = await asking(w);
  for (const id of [0, 1, 2]) await c.ask(request(id, 'x/y'));
  await w.until(() => s.got.length === 1);
  await w.clock.advance(500);
  await w.run(s.transport.close());
  await w.until(() => c.got.length === 3);
  expect(c.got.map(({ error }) => error.code)).toEqual([1001, 1001, 1001]);
  expect(s.got.map(({ method }) => method)).toEqual(['x/y', 'notifications/cancelled']);
});

test('a request that the server does not answer ends by its deadline, and the server is told', async () => {
  const w = world();
  const s = await serving(w, { deadlineMs: 20_000 });
  const c = await asking(w);
  await c.ask(request(0, 'x/y'));
  await w.until(() => c.got.length === 1);
  expect(c.got[0]).toMatchObject({ id: 0, error: { code: 1003 } });
  expect(s.got.map(({ method, params }) => [method, params.requestId])).toEqual([
    ['x/y', undefined],
    ['notifications/cancelled', 1],
  ]);
  await w.run(s.transport.close());
});

test('a subscription ends after an hour: its caller is told, and so is the server', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request('s', 'subscriptions/listen', { notifications: {} }));
  await w.until(() => s.got.length === 1);
  await s.send({
    method: 'notifications/subscriptions/acknowledged',
    params: { notifications: {}, _meta: { [tag]: 1 } },
  });
  await w.until(() => c.got.length === 1);
  expect(c.got[0].params).toEqual({ notifications: {}, _meta: { [tag]: 's' } });
  for (let minute = 0; minute < 60; minute++) await w.clock.advance(60_000);
  await w.until(() => c.got.length === 2);
  expect(c.got[1]).toMatchObject({ id: 's', result: { resultType: 'complete', _meta: { [tag]: 's' } } });
  expect(s.got[1]).toMatchObject({ method: 'notifications/cancelled', params: { requestId: 1 } });
  await w.run(s.transport.close());
});

test('a subscription that the server tears down ends with its word, though no answer follows', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request('s', 'subscriptions/listen', { notifications: {} }));
  await w.until(() => s.got.length === 1);
  await s.send({ method: 'notifications/cancelled', params: { requestId: 1, reason: 'enough' } });
  await w.until(() => c.got.length === 1);
  expect(c.got).toEqual([
    { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 's', reason: 'enough' } },
  ]);
  expect(c.errors).toEqual([]);
  await w.run(s.transport.close());
});

test('of a server that does not say whose its log lines are, one request that asked for some gets each', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  const line = encode({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x' } });
  await c.ask(request(0, 'x/y'));
  await w.until(() => s.got.length === 1);
  await w.run(serverKey.say(MINE, line, w.o));
  await c.ask(request(1, 'x/y', {}, LOGS));
  await c.ask(request(2, 'x/y', {}, LOGS));
  await w.until(() => s.got.length === 3);
  expect(c.got).toEqual([]);
  await w.run(serverKey.say(MINE, line, w.o));
  // Only subscriptions are torn down; any other request goes on.
  const view = await w.run(w.o.fetch(`${w.o.base}/r/${BOX}?format=json`).then((reply) => reply.json()) as Promise<any>);
  const { id } = JSON.parse(view.messages.find((m: any) => m.text.includes('x/y')).text);
  const torn = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: id } };
  await w.run(serverKey.say(MINE, encode(torn), w.o));
  await w.run(w.clock.sleep(5000));
  await s.send({ id: 1, result: { ok: true } });
  await w.until(() => c.got.length === 2);
  await w.run(w.clock.sleep(1000));
  expect(c.got).toEqual([
    { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x' } },
    { jsonrpc: '2.0', id: 0, result: { ok: true } },
  ]);
  await w.run(c.transport.close());
  await w.run(s.transport.close());
});

test('a server of the SDK that would serve older revisions is told of', async () => {
  const w = world();
  const server = new McpServer({ name: 'x', version: '1' });
  await w.run(server.connect(new RoomServerTransport(BOX, serverKey, w.o)));
  expect(w.events).toContainEqual({ kind: 'warning', reason: expect.stringContaining('serveStdio') });
  await w.run(server.close());
});

test('what calls into a void learns why', async () => {
  const w = world();
  const c = await asking(w);
  const begun = w.clock.now();
  const rpc = { code: LOST, message: expect.stringContaining('check its name'), data: { reason: 'call_timeout' } };
  await expect(w.run(c.ask(request(0, 'server/discover')))).rejects.toMatchObject({ code: 'rpc', rpc });
  // While the least patient of hosts still waits.
  expect(w.clock.now() - begun).toBeLessThan(28_000);
  expect(c.got).toEqual([]);
  expect(c.errors).toMatchObject([{ code: 'call_timeout', reason: 'no-room' }]);
});

test('a request that is cancelled before it is written never is', async () => {
  const w = world('modern', { writesPerMinute: 30 });
  const s = await serving(w, { concurrency: 128 });
  const c = await asking(w);
  // The budget is spent: what comes now waits.
  const first = Array.from({ length: 40 }, (_, i) => c.transport.send(request(i, 'x/y')).catch((cause) => cause));
  await w.until(() => s.got.length >= 20);
  const cancel = (requestId: number): Promise<void> =>
    c.transport.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } });
  await w.run(cancel(39));
  await w.run(Promise.all(first));
  await w.until(() => s.got.length === 39);
  await w.run(w.clock.sleep(60_000));
  expect(s.got).toHaveLength(39);
  // Nor is the server told of what it never heard of.
  expect(await w.run(w.o.fetch(`${w.o.base}/r/${BOX}?limit=200`).then((reply) => reply.text()))).not.toContain(
    'notifications/cancelled',
  );
  await w.run(cancel(0));
  await w.until(() => s.got.length === 40);
  expect(s.got.at(-1)).toMatchObject({ method: 'notifications/cancelled' });
  await w.run(s.transport.close());
});

test('nobody but the server’s key is heard', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w, { peer: serverKey.did });
  await c.ask(request(0, 'x/y', {}, { progressToken: 7, ...LOGS }));
  await w.until(() => s.got.length === 1);
  const view = await w.run(w.o.fetch(`${w.o.base}/r/${BOX}?format=json`).then((reply) => reply.json()) as Promise<any>);
  const { id, params } = JSON.parse(view.messages.findLast((m: any) => m.text.includes('x/y')).text);
  const lies = [
    { id, result: { stolen: true } },
    { id: 0, result: { stolen: true } },
    { method: 'notifications/progress', params: { progressToken: params._meta.progressToken, progress: 99 } },
    { method: 'notifications/message', params: { level: 'error', data: 'a lie' } },
    { method: 'notifications/cancelled', params: { requestId: id } },
  ];
  for (const lie of lies) await w.run(stranger.say(MINE, encode({ jsonrpc: '2.0', ...lie } as any), w.o));
  // Nor what the server's key says that is none of this request's, or a request.
  const odd = [
    { id: 77, method: 'roots/list', params: {} },
    { method: 'notifications/tools/list_changed', params: {} },
    { method: 'notifications/progress', params: { progressToken: 'another', progress: 1 } },
    { method: 'notifications/progress' },
  ];
  for (const one of odd) await w.run(serverKey.say(MINE, encode({ jsonrpc: '2.0', ...one } as any), w.o));
  await s.send({ id: 1, result: { honest: true } });
  await w.until(() => c.got.length === 1);
  expect(c.got).toEqual([{ jsonrpc: '2.0', id: 0, result: { honest: true } }]);
  expect(w.events).toContainEqual(expect.objectContaining({ kind: 'refused', reason: 'an answer from another key' }));
  await w.run(s.transport.close());
});

test('a long request whose notes hold something else is answered with an error, and one of a stranger costs no read', async () => {
  const w = world();
  let allowed = clientKey.did;
  const s = await serving(w, { allow: (from: string) => from === allowed });
  const { frames, channel } = await heard(w);
  const reads = w.service.stats.reads;
  const spilled = (id: unknown) => ({
    jsonrpc: '2.0',
    id,
    'chat.technocore/frame': { ns: 'p-none', keys: ['0'], bytes: 5000, sha256: '0'.repeat(64) },
    params: { _meta: { 'chat.technocore/reply': MINE } },
  });
  await w.run(channel.send(encode(spilled('long') as any)));
  await w.until(() => frames.length === 1);
  expect(frames[0]).toMatchObject({ id: 'long', error: { code: -32603 } });
  expect(w.service.stats.reads).toBeGreaterThan(reads);
  allowed = 'nobody';
  await w.run(channel.send(encode(spilled('more') as any)));
  await w.until(() => w.events.some(({ reason }) => reason === 'not allowed'));
  expect(s.got).toEqual([]);
  await w.run(say('elsewhere', 'somebody', 'time passes', w.o));
  await w.run(s.transport.close());
});

test('when both ends are closed, nothing keeps a process alive', async () => {
  const w = world();
  const s = await serving(w);
  const c = await asking(w);
  await c.ask(request('s', 'subscriptions/listen', { notifications: {} }));
  await c.ask(request(0, 'x/y', {}, { progressToken: 0, ...LOGS }));
  await w.until(() => s.got.length === 2);
  for (let progress = 1; progress < 30; progress++) {
    await s.send({ method: 'notifications/progress', params: { progressToken: 2, progress } });
  }
  await w.run(c.transport.close());
  await w.until(() => s.got.length === 4);
  await w.run(s.transport.close());
  await settled();
  expect(w.clock.sleepers).toBe(0);
  expect(w.service.stats.parked).toBe(0);
});

test.each([1, 2, 3, 4])(
  'a bad network (seed %i): each call is done once, and answered or reported lost',
  async (seed) => {
    const w = world();
    const random = new Random(seed);
    const fetch = faulty(w.o.fetch, async (url, init) => {
      const luck = random.float();
      if (luck < 0.1) throw broken();
      if (luck < 0.15) return new Response('503 busy', { status: 503 });
      if (luck < 0.3 && isSay(url, init)) {
        // It arrives, and nobody learns so.
        await w.o.fetch(url, init);
        throw broken();
      }
      return undefined;
    });
    let isReady = false;
    const onReady = (): void => {
      isReady = true;
    };
    const server = new RoomServerTransport(BOX, serverKey, { ...w.o, fetch, onReady });
    const { seen, close } = serveFixture(server);
    await w.until(() => isReady);
    const transport = new RoomClientTransport(BOX, clientKey, { ...w.o, fetch, replyTo: MINE });
    const client = new Client(
      { name: 'official', version: '1' },
      { versionNegotiation: { mode: { pin: '2026-07-28' } } },
    );
    await w.run(client.connect(transport));
    const outcomes = await w.run(
      Promise.all(
        Array.from({ length: 60 }, (_, i) =>
          client.callTool({ name: 'add', arguments: { a: i, b: 1000 } }).then(
            ({ structuredContent }: any) => structuredContent.sum - 1000 - i,
            (cause: any) => cause.code,
          ),
        ),
      ),
    );
    expect(outcomes.filter((outcome) => outcome === 0).length).toBeGreaterThan(50);
    for (const outcome of outcomes) expect([0, LOST, 'may_have_landed', 'unavailable']).toContain(outcome);
    expect(seen.calls.length).toBeLessThanOrEqual(60);
    await w.run(client.close());
    await w.run(close());
  },
);
