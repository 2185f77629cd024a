import { Client } from '@modelcontextprotocol/client';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import {
  LOST,
  type RoomClientOptions,
  RoomClientTransport,
  type RoomServerOptions,
  RoomServerTransport,
} from '../src/bridge.ts';
import { type Channel, type Incoming, mailboxes } from '../src/channel.ts';
import { randomBytes } from '../src/crypto.ts';
import { TechnocoreError } from '../src/errors.ts';
import { decode, encode } from '../src/frames.ts';
import type { Event } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import { createLocalService, type Listening, type LocalService } from '../src/local.ts';
import { defineTool } from '../src/mcp.ts';
import { HttpRelay, Identity, Session } from '../src/parley.ts';
import { say } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import { serveFixture } from './bridge-fixture.ts';
import { recordedCases, vectors } from './mcp-vectors.ts';
import { FREE, isSay, until } from './support.ts';

// The official client and the official server, with rooms of a service on loopback between them.

let local: LocalService;
let service: Listening;
let count = 0;

beforeAll(async () => {
  local = createLocalService({ limits: { ...FREE, waitersPerAddress: 64, roomRingBytes: 2_000_000 } });
  service = await local.listen();
  return () => service.close();
});

const PINNED = { versionNegotiation: { mode: { pin: '2026-07-28' } } } as const;

/** A server of the SDK behind a fresh mailbox. */
async function served(o: RoomServerOptions = {}, box: string | Channel = `mb-p-server-${++count}`) {
  const events: Event[] = [];
  const errors: Error[] = [];
  const key = Signer.generate();
  let isReady = false;
  const transport = new RoomServerTransport(box, key, {
    base: service.url,
    drainMs: 100,
    onEvent: (event) => events.push(event),
    onReady: () => {
      isReady = true;
    },
    ...o,
  });
  const { seen, close } = serveFixture(transport, (error) => errors.push(error));
  onTestFinished(close);
  await until(() => isReady || errors.length > 0);
  expect(errors).toEqual([]);
  return { box, key, seen, events, errors, close, transport };
}

/** A client of the SDK that is connected to it. */
async function connected(
  to: string | Channel,
  o: RoomClientOptions = {},
  capabilities: object = {},
  key = Signer.generate(),
) {
  const transport = new RoomClientTransport(to, key, { base: service.url, replyTo: `mb-p-client-${++count}`, ...o });
  const client = new Client({ name: 'official', version: '1' }, { capabilities, ...PINNED });
  await client.connect(transport);
  onTestFinished(() => client.close());
  const call = (name: string, args: object = {}, options: object = {}): Promise<any> =>
    client.callTool({ name, arguments: args as any }, options as any);
  return { client, call, transport, key };
}

/** A way to put any frame into a mailbox with a fresh key, and what comes back. */
async function wired(to: string, replyTo = `mb-p-raw-${++count}`, key = Signer.generate()) {
  const frames: any[] = [];
  const channel = mailboxes(to, replyTo, key, { base: service.url });
  const message = ({ from, text }: Incoming): void => {
    const frame = from === key.did ? undefined : decode(text);
    if (frame) frames.push(frame);
  };
  onTestFinished(await channel.listen({ message, gap: () => {}, end: () => {} }));
  const send = (frame: any): Promise<unknown> => channel.send(encode(frame));
  return { frames, send, replyTo, key };
}

/** `_meta` as each request must have it. */
const meta = (replyTo: string, more: object = {}): object => ({
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
  'chat.technocore/reply': replyTo,
  ...more,
});
const calling = (id: unknown, replyTo: string, name: string, args: object = {}, more: object = {}): object => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args, _meta: meta(replyTo, more) },
});

// What is asked of the bridge whatever lies between.
type Ends = () => Promise<{
  server: string | Channel;
  client: string | Channel;
  serverO?: RoomServerOptions;
  clientO?: RoomClientOptions;
  /** The client's, where the way there needs a certain one, and what the server calls it. */
  key?: Signer;
  from?: string;
}>;

describe.each<[string, Ends]>([
  [
    'mailboxes',
    async () => {
      const box = `mb-p-server-${++count}`;
      return { server: box, client: box, clientO: { replyTo: `mb-p-client-${count}` } };
    },
  ],
  [
    'mailboxes of an old service',
    async () => {
      const { url: base, close } = await createLocalService({ profile: '0.7', limits: FREE }).listen();
      onTestFinished(close);
      return {
        server: `mb-p-server-${++count}`,
        client: `mb-p-server-${count}`,
        serverO: { base },
        clientO: { base, replyTo: `mb-p-client-${count}` },
      };
    },
  ],
  [
    'a sealed room',
    async () => {
      const [alice, bob] = [Signer.generate(), Signer.generate()];
      const [room, key, o] = [`p-sealed-${++count}`, randomBytes(32), { base: service.url }];
      const client = sealed(room, key, alice, { ...o, peer: bob.did });
      const server = sealed(room, key, bob, { ...o, peer: alice.did });
      return { server, client, key: alice, from: alice.did };
    },
  ],
  [
    'a parley session',
    async () => {
      const session = (): Session => new Session(Identity.generate(), new HttpRelay(service.url));
      const [server, client] = [session(), session()];
      await client.join(await server.open('mcp'));
      return { server, client };
    },
  ],
])('all of MCP over %s', (_, ends) => {
  const both = async (capabilities: object = {}) => {
    const { server, client, serverO, clientO, key, from } = await ends();
    const s = await served(serverO, server);
    const c = await connected(client, clientO, capabilities, key);
    return { ...s, ...c, from: from ?? (typeof client === 'string' ? c.key.did : undefined) };
  };

  test('discovers, lists, calls; fails as tools and as requests fail', async () => {
    const { client, call, from } = await both();
    expect(client.getServerVersion()).toMatchObject(vectors.fixture.serverInfo);
    expect((await client.listTools()).tools).toHaveLength(10);
    expect(await call('add', { a: 1, b: 2 })).toMatchObject({ structuredContent: { sum: 3 } });
    expect(await call('fail')).toMatchObject({ isError: true });
    await expect(client.readResource({ uri: 'note://nowhere' })).rejects.toMatchObject({ code: -32602 });
    const [{ text: long }] = (await call('big', { chars: 20_000 })).content;
    expect(long).toHaveLength(20_000);
    const [{ text }] = (await call('who')).content;
    expect(text).toEqual(from ?? expect.stringMatching(/^parley:/));
  });

  test('progress, log lines, questions', async () => {
    const { client, call } = await both({ elicitation: {} });
    const steps: unknown[] = [];
    await call('steps', {}, { onprogress: (p: unknown) => steps.push(p) });
    expect(steps).toMatchObject([{ progress: 1 }, { progress: 2 }, { progress: 3 }]);
    const lines: unknown[] = [];
    client.setNotificationHandler('notifications/message', ({ params }) => void lines.push(params.data));
    const _meta = { 'io.modelcontextprotocol/logLevel': 'info' };
    await client.callTool({ name: 'noisy', arguments: {}, _meta } as any);
    expect(lines).toEqual(['high']);
    client.setRequestHandler('elicitation/create', async () => ({ action: 'accept', content: { name: 'Noor' } }));
    expect(await call('greet')).toMatchObject({ content: [{ text: 'Hello, Noor!' }] });
  });

  test('prompts, resources, completion', async () => {
    const { client } = await both();
    expect((await client.listPrompts()).prompts).toMatchObject([{ name: 'review' }]);
    expect(await client.getPrompt({ name: 'review', arguments: { text: 'abc' } })).toMatchObject({
      messages: [{ content: { text: 'Review (plain): abc' } }],
    });
    expect((await client.listResources()).resources).toHaveLength(2);
    expect((await client.listResourceTemplates()).resourceTemplates).toHaveLength(1);
    expect(await client.readResource({ uri: 'note://dot' })).toMatchObject({ contents: [{ blob: 'AAEC' }] });
    const ref = { type: 'ref/prompt', name: 'review' } as const;
    expect(await client.complete({ ref, argument: { name: 'tone', value: 'pl' } })).toMatchObject({
      completion: { values: ['plain', 'playful'] },
    });
  });

  test('subscriptions: told, closed by the client, ended by the server', async () => {
    const { close, client, call } = await both();
    const changes: string[] = [];
    client.setNotificationHandler('notifications/tools/list_changed', () => void changes.push('tools'));
    client.setNotificationHandler('notifications/resources/updated', ({ params }) => void changes.push(params.uri));
    const subscription = await client.listen({ toolsListChanged: true, resourceSubscriptions: ['note://readme'] });
    await call('touch', { what: 'tools' });
    await call('touch', { what: 'prompts' });
    await call('touch', { what: 'note://readme' });
    await until(() => changes.length === 2);
    expect(changes).toEqual(['tools', 'note://readme']);
    await subscription.close();
    const second = await client.listen({ toolsListChanged: true });
    await close();
    expect(await second.closed).toBe('graceful');
  });

  test('cancelling reaches the server', async () => {
    const { seen, call } = await both();
    const controller = new AbortController();
    const hanging = call('hang', {}, { signal: controller.signal });
    await until(() => seen.calls.includes('hang'));
    controller.abort('enough');
    await expect(hanging).rejects.toThrow('enough');
    await until(() => seen.cancelled.length === 1);
    expect(seen.cancelled).toEqual(['enough']);
  });
});

describe('the recorded cases beyond tools', () => {
  let fences = 0;
  recordedCases(async () => {
    const { box } = await served();
    const { frames, send, replyTo } = await wired(box as string);
    const addressed = (frame: any): any => {
      const { params } = frame;
      return { ...frame, params: { ...params, _meta: { ...params._meta, 'chat.technocore/reply': replyTo } } };
    };
    return {
      async exchange(frame, wanted) {
        frames.length = 0;
        await send(addressed(frame));
        await until(() => frames.length >= wanted);
        // The server has taken all that came before, and anything too much is here by now.
        const id = `fence-${++fences}`;
        await send({ jsonrpc: '2.0', id, method: 'server/discover', params: { _meta: meta(replyTo) } });
        await until(() => frames.some((one) => one.id === id));
        const own = frames.filter((one) => one.id !== id);
        return { frames: own, pending: own.every((one) => one.id !== frame.id) };
      },
      close: () => {},
    };
  }, 'others');
});

describe('many', () => {
  test('eight clients on one reply mailbox, 400 calls: each answer to its caller, one parked read a side', async () => {
    const alone = createLocalService({ limits: FREE });
    const { url, close } = await alone.listen();
    onTestFinished(close);
    const { box, seen } = await served({ base: url });
    const key = Signer.generate();
    const clients = await Promise.all(
      Array.from({ length: 8 }, (_, i) =>
        connected(box as string, { base: url, replyTo: 'mb-p-shared' }, {}, i < 4 ? key : Signer.generate()),
      ),
    );
    // Of all clients the ids begin at 0, and the calls of one are not the calls of another.
    const outcomes = await Promise.all(
      clients.map(async ({ call }, c) => {
        const sums: number[] = [];
        await Promise.all(
          Array.from({ length: 5 }, async (_, lane) => {
            for (let i = lane; i < 50; i += 5) {
              const { structuredContent } = await call('add', { a: c * 1000, b: i });
              sums[i] = structuredContent.sum;
            }
          }),
        );
        return sums;
      }),
    );
    expect(outcomes).toEqual(clients.map((_, c) => Array.from({ length: 50 }, (_, i) => c * 1000 + i)));
    expect(seen.calls).toHaveLength(400);
    for (const { call } of clients) void call('hang').catch(() => {});
    await until(() => seen.calls.length === 408 && alone.stats.parked === 2);
    expect(alone.stats.parkedMost).toBe(2);
  });

  test('progress, log lines, subscriptions and cancelling of several clients stay apart', async () => {
    const { box, seen } = await served();
    const replyTo = `mb-p-apart-${++count}`;
    const [one, two] = [await connected(box as string, { replyTo }), await connected(box as string, { replyTo })];
    const told: string[] = [];
    for (const [name, { client }] of [
      ['one', one],
      ['two', two],
    ] as const) {
      client.setNotificationHandler('notifications/message', ({ params }) => void told.push(`${name} ${params.data}`));
      client.setNotificationHandler('notifications/tools/list_changed', () => void told.push(`${name} tools`));
      client.setNotificationHandler('notifications/prompts/list_changed', () => void told.push(`${name} prompts`));
    }
    await one.client.listen({ toolsListChanged: true });
    await two.client.listen({ promptsListChanged: true });
    await one.call('touch', { what: 'tools' });
    await one.call('touch', { what: 'prompts' });
    await until(() => told.length === 2);
    expect(told.splice(0).sort()).toEqual(['one tools', 'two prompts']);

    const _meta = { 'io.modelcontextprotocol/logLevel': 'warning' };
    await two.client.callTool({ name: 'noisy', arguments: {}, _meta } as any);
    expect(told).toEqual(['two high']);

    const steps: string[] = [];
    await Promise.all(
      [one, two].map(({ call }, i) =>
        call('steps', {}, { onprogress: ({ progress }: any) => steps.push(`${i} ${progress}`) }),
      ),
    );
    expect(steps.sort()).toEqual(['0 1', '0 2', '0 3', '1 1', '1 2', '1 3']);

    const controllers = [new AbortController(), new AbortController()];
    const hanging = [one, two].map(({ call }, i) =>
      call('hang', {}, { signal: controllers[i]!.signal }).catch(() => 'off'),
    );
    await until(() => seen.calls.filter((name) => name === 'hang').length === 2);
    controllers[1]!.abort('second');
    expect(await hanging[1]).toBe('off');
    await until(() => seen.cancelled.length > 0);
    expect(seen.cancelled).toEqual(['second']);
    controllers[0]!.abort('first');
    await hanging[0];
  });
});

test('a server is found by its key, and no other key answers for it', async () => {
  const { box, key } = await served();
  await publishIdentity(key, { mailbox: box as string }, { base: service.url });
  const { call } = await connected(key.did);
  expect(await call('add', { a: 1, b: 2 })).toMatchObject({ structuredContent: { sum: 3 } });
  const nobody = new RoomClientTransport(Signer.generate().did, key, { base: service.url, replyTo: 'mb-p-x' });
  await nobody.start();
  const { params } = calling(1, 'mb-p-x', 'add') as any;
  await expect(nobody.send({ jsonrpc: '2.0', id: 1, method: 'tools/call', params })).rejects.toMatchObject({
    code: 'no_mailbox',
  });
});

describe('strangers', () => {
  test('who is not allowed is refused by name, or gets silence, and nothing reaches the server', async () => {
    const friend = Signer.generate();
    const { box, seen, events } = await served({ allow: async (from) => from === friend.did });
    const refused = { message: expect.stringContaining('Denied (1004)'), cause: { code: 'rpc', rpc: { code: 1004 } } };
    await expect(connected(box as string)).rejects.toMatchObject(refused);
    const { send, frames, replyTo } = await wired(box as string);
    await send(calling(1, replyTo, 'add'));
    await until(() => frames.length === 1);
    expect(frames).toMatchObject([{ id: 1, error: { code: 1004 } }]);
    expect(seen.calls).toEqual([]);
    expect(events).toContainEqual(expect.objectContaining({ kind: 'refused', reason: 'not allowed' }));
    const { call } = await connected(box as string, {}, {}, friend);
    expect(await call('add', { a: 1, b: 1 })).toMatchObject({ structuredContent: { sum: 2 } });

    const silent = await served({ allow: () => false, silent: true });
    const stranger = await wired(silent.box as string);
    await stranger.send(calling('1', stranger.replyTo, 'add'));
    await until(() => silent.events.some((event) => event['reason'] === 'not allowed'));
    expect(silent.seen.calls).toEqual([]);
    expect(stranger.frames).toEqual([]);
  });

  test('a request that comes again is answered again, and not executed', async () => {
    const { box, seen } = await served();
    const { send, frames, replyTo } = await wired(box as string);
    await send(calling('once', replyTo, 'add', { a: 1, b: 1 }));
    await until(() => frames.length === 1);
    // The same frame, signed anew, is a repeat: the kept answer comes again.
    await send(calling('once', replyTo, 'add', { a: 1, b: 1 }));
    await until(() => frames.length === 2);
    expect(frames[1]).toEqual(frames[0]);
    // Another request under a used id is not executed.
    await send(calling('once', replyTo, 'fail'));
    await until(() => frames.length === 3);
    expect(frames[2]).toMatchObject({ id: 'once', error: { code: -32600 } });
    expect(seen.calls).toEqual(['add']);
  });

  test('what an operator shows again, or in another room, and ids of other keys do nothing', async () => {
    const elsewhere = await served();
    // An operator who shows what it likes in place of the next chat line.
    let shown: any;
    const box = `mb-p-server-${++count}`;
    const fetch = async (url: any, init: any): Promise<Response> => {
      const reply = await globalThis.fetch(url, init);
      if (!String(url).includes(`/r/${box}?`)) return reply;
      const view = (await reply.json()) as any;
      for (const m of view.messages) {
        if (m.text === 'chat' && shown) Object.assign(m, { ...shown, seq: m.seq, ts: m.ts });
      }
      return Response.json(view);
    };
    const { seen, events } = await served({ fetch: fetch as typeof globalThis.fetch }, box);
    const chat = async (record: any): Promise<void> => {
      shown = record;
      await Signer.generate().say(box, 'chat', { base: service.url });
    };
    const raw = async (room: string): Promise<any> => {
      const { messages } = (await (await globalThis.fetch(`${service.url}/r/${room}?format=json`)).json()) as any;
      return messages.findLast((m: any) => m.from === key.did && m.text.includes('tools/call'));
    };
    const { send, frames, replyTo, key } = await wired(box);
    await send(calling('here', replyTo, 'add', { a: 1, b: 1 }));
    await until(() => frames.length === 1);
    await chat(await raw(box));
    await until(() => events.some((event) => event['reason'] === 'old'));

    const there = await wired(elsewhere.box as string, `mb-p-raw-${++count}`, key);
    await there.send(calling('there', there.replyTo, 'fail'));
    await until(() => there.frames.length === 1);
    await chat(await raw(elsewhere.box as string));
    await until(() => events.some((event) => event['reason'] === 'signature invalid'));

    const { transport, call } = await connected(box);
    const hanging = call('hang').catch(() => {});
    await until(() => seen.calls.includes('hang'));
    const { text } = (await (await globalThis.fetch(`${service.url}/r/${box}?format=json`)).json()).messages.findLast(
      (m: any) => m.text.includes('"hang"'),
    );
    const { id } = JSON.parse(text);
    await send(calling(id, replyTo, 'fail'));
    await until(() => events.some((event) => event['reason'] === 'an id of another key'));
    // Nor can it be called off by anybody else.
    await send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: id } });
    await send(calling('after', replyTo, 'add', { a: 2, b: 2 }));
    await until(() => frames.some((one) => one.id === 'after'));
    expect(seen).toEqual({ calls: ['add', 'hang', 'add'], cancelled: [] });
    await transport.close();
    await hanging;
  });

  test('frames without what the revision demands never reach the server', async () => {
    const { box, seen, events } = await served();
    const { send, frames, replyTo } = await wired(box as string);
    const ask = async (frame: any): Promise<any> => {
      const before = frames.length;
      await send(frame);
      await until(() => frames.length > before);
      return frames.at(-1);
    };
    const reply = { 'chat.technocore/reply': replyTo };
    const request = (id: unknown, method: string, _meta: object) => ({ jsonrpc: '2.0', id, method, params: { _meta } });
    const code = (value: number) => ({ error: { code: value } });
    // The handshake of older revisions, which would have the SDK serve nothing else from then on.
    const initialize = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'x', version: '1' } };
    expect(
      await ask({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { ...initialize, _meta: reply } }),
    ).toMatchObject(code(-32022));
    expect(await ask(request(2, 'tools/list', reply))).toMatchObject(code(-32602));
    const future = meta(replyTo, { 'io.modelcontextprotocol/protocolVersion': '2099-01-01' });
    expect(await ask(request(3, 'tools/list', future))).toMatchObject(code(-32022));
    expect(await ask(request(1.5, 'tools/list', meta(replyTo)))).toMatchObject(code(-32600));
    expect(await ask([request(4, 'tools/list', meta(replyTo))])).toMatchObject(code(-32600));
    expect(await ask(request(5, 'no/such', meta(replyTo)))).toMatchObject({ id: 5, ...code(-32601) });
    expect(await ask(request('6', 'ping', meta(replyTo)))).toMatchObject({ id: '6', ...code(-32601) });
    // A notification as the first thing of an older revision; a response; a request to be answered into a lobby.
    await send({ jsonrpc: '2.0', method: 'notifications/initialized' });
    await send({ jsonrpc: '2.0', id: 7, result: {} });
    await send(calling('8', 'lobby', 'add'));
    expect(await ask(calling('9', replyTo, 'add', { a: 1, b: 1 }))).toMatchObject({ id: '9', result: {} });
    expect(seen.calls).toEqual(['add']);
    expect(events).toContainEqual(expect.objectContaining({ kind: 'refused', reason: 'no place for an answer' }));
  });

  test('one key has four subscriptions, no more', async () => {
    const { box } = await served();
    const { client } = await connected(box as string);
    const open = await Promise.all(Array.from({ length: 4 }, () => client.listen({ toolsListChanged: true })));
    await expect(client.listen({ toolsListChanged: true })).rejects.toMatchObject({ code: -32603 });
    await open[0]!.close();
    await client.listen({ toolsListChanged: true });
  });
});

describe('what goes wrong', () => {
  test('an answer that may be lost is an error that says so; the server is told to stop; the client asks again', async () => {
    const { box, seen } = await served();
    const replyTo = `mb-p-lost-${++count}`;
    const { call, transport } = await connected(box as string, { replyTo });
    const errors: unknown[] = [];
    transport.onerror = (error) => errors.push(error);
    const hanging = call('hang').catch((cause) => cause);
    await until(() => seen.calls.includes('hang'));
    local.age(replyTo, 8 * 86_400_000);
    await say('elsewhere', 'somebody', 'runs the reaper', { base: service.url });
    await Signer.generate().say(replyTo, 'another room by that name', { base: service.url });
    expect(await hanging).toMatchObject({ code: LOST, data: { reason: 'ring_gap' } });
    expect(errors).toMatchObject([{ code: 'ring_gap' }]);
    await until(() => seen.cancelled.length === 1);
    expect(await call('add', { a: 1, b: 1 })).toMatchObject({ structuredContent: { sum: 2 } });
  });

  test('what cannot be written rejects with the error that says why', async () => {
    const { box } = await served();
    let refuse = false;
    const fetch = ((url: any, init: any) =>
      refuse && isSay(String(url), init)
        ? Promise.resolve(new Response('403 no', { status: 403 }))
        : globalThis.fetch(url, init)) as typeof globalThis.fetch;
    const { call } = await connected(box as string, { fetch });
    refuse = true;
    await expect(call('add', { a: 1, b: 1 })).rejects.toMatchObject({ code: 'forbidden' });
    refuse = false;
    expect(await call('add', { a: 1, b: 1 })).toMatchObject({ structuredContent: { sum: 2 } });
    // The server may not say that it reads more.
    await expect(call('size', { text: 'x'.repeat(5000) })).rejects.toMatchObject({ code: 'frame_too_long' });
  });

  test('long answers are put into notes, long requests too where the server says that it reads them', async () => {
    const { box } = await served({ allow: () => true });
    const { call } = await connected(box as string);
    const { content } = await call('big', { chars: 50_000 });
    expect(content[0].text).toHaveLength(50_000);
    expect(await call('size', { text: 'é'.repeat(20_000) })).toMatchObject({ content: [{ text: '20000' }] });
    expect(await call('add', { a: 1, b: 1 })).toMatchObject({ structuredContent: { sum: 2 } });
    await expect(call('size', { text: 'x'.repeat(100_000) })).rejects.toMatchObject({ code: 'frame_too_long' });
  });

  test.each([
    ['says so', () => true],
    ['does not', undefined],
  ])('a server of our own tools that reads long requests, or not, %s', async (_, allow) => {
    const size = defineTool('size', 'length', { type: 'object' }, ({ text }) => `${text.length}`);
    const box = `mb-p-server-${++count}`;
    const stop = new AbortController();
    await new Promise<void>((onReady, reject) => {
      const tools = new Map([['size', size]]);
      const o = { base: service.url, tools, signal: stop.signal, onReady, ...(allow && { allow }) };
      const ended = serve(box, Signer.generate(), o);
      ended.catch(reject);
      onTestFinished(async () => {
        stop.abort();
        await ended;
      });
    });
    const { call } = await connected(box);
    expect(await call('size', { text: 'x'.repeat(100) })).toMatchObject({ content: [{ text: '100' }] });
    const long = call('size', { text: 'x'.repeat(20_000) });
    if (allow) expect(await long).toMatchObject({ content: [{ text: '20000' }] });
    else await expect(long).rejects.toMatchObject({ code: 'frame_too_long' });
  });

  test('a server that closes answers what it can, and says of the rest that it was interrupted', async () => {
    const { box, transport, close, seen } = await served({ drainMs: 50 });
    const { call } = await connected(box as string);
    const hanging = call('hang').catch((cause) => cause);
    await until(() => seen.calls.includes('hang'));
    await transport.close();
    expect(await hanging).toMatchObject({ code: 1001 });
    await close();
    await expect(transport.start()).rejects.toMatchObject({ code: 'started' });
  });

  test('a client that closes tells the server', async () => {
    const { box, seen } = await served();
    const { client, call } = await connected(box as string);
    const hanging = call('hang').catch((cause) => cause);
    await until(() => seen.calls.includes('hang'));
    await client.close();
    expect(await hanging).toBeInstanceOf(Error);
    await until(() => seen.cancelled.length === 1);
  });

  test('a listener that throws fails the start, or is ignored, and never leaves anybody waiting', async () => {
    const broken = (): never => {
      throw new Error('mine');
    };
    const o = { base: service.url, onReady: broken, onEvent: broken };
    const transport = new RoomServerTransport(`mb-p-server-${++count}`, Signer.generate(), o);
    expect(() => transport.setSupportedProtocolVersions([])).not.toThrow();
    await expect(transport.start()).rejects.toThrow('mine');
  });

  test('what is given wrong is refused at once', async () => {
    const key = Signer.generate();
    expect(() => new RoomClientTransport('lobby', key, { replyTo: 'mb-p-x' })).toThrow(TechnocoreError);
    expect(() => new RoomClientTransport('mb-p-y', key)).toThrow(TechnocoreError);
    expect(() => new RoomClientTransport('mb-p-y', undefined as never, { replyTo: 'mb-p-x' })).toThrow(TechnocoreError);
    expect(() => new RoomServerTransport('lobby', key)).toThrow(TechnocoreError);
    const transport = new RoomClientTransport('mb-p-y', key, { replyTo: 'mb-p-x', base: service.url });
    await expect(transport.send({ jsonrpc: '2.0', id: 1, method: 'x' })).rejects.toMatchObject({ code: 'closed' });
    await transport.start();
    await expect(transport.start()).rejects.toMatchObject({ code: 'started' });
    const channel = sealed('p-sealed', randomBytes(32), Signer.generate());
    const other = new RoomClientTransport(channel, key);
    await other.start();
    await expect(other.send({ jsonrpc: '2.0', id: 1, method: 'x' })).rejects.toMatchObject({ code: 'bad_key' });
    await expect(transport.send({ jsonrpc: '2.0', id: 1, result: {} })).rejects.toMatchObject({ code: 'bad_frame' });
    let closed = 0;
    transport.onclose = () => closed++;
    await transport.close();
    await transport.close();
    expect(closed).toBe(1);
    const server = new RoomServerTransport('mb-p-y', key, { base: service.url });
    await expect(server.send({ jsonrpc: '2.0', id: 1, method: 'roots/list' })).rejects.toMatchObject({
      code: 'not_supported',
    });
  });

  test('with a signal that has aborted, neither end starts', async () => {
    const o = { base: service.url, replyTo: 'mb-p-x', signal: AbortSignal.abort(new Error('over before it began')) };
    const key = Signer.generate();
    for (const End of [RoomServerTransport, RoomClientTransport]) {
      const end = new End('mb-p-y', key, o);
      onTestFinished(() => end.close());
      await expect(end.start()).rejects.toThrow('over before it began');
    }
  });
});
