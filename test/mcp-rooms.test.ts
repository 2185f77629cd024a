import { fork } from 'node:child_process';
import { Client } from '@modelcontextprotocol/client';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { mailboxPair } from '../src/channel.ts';
import { classify } from '../src/dispatch.ts';
import { decode, encode, isObject, type Json } from '../src/frames.ts';
import { transportOf } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import { REPLY_META } from '../src/line.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { mcpCallTool, mcpListTools } from '../src/mcp-client.ts';
import { Signer } from '../src/signer.ts';
import { manyTools } from './mcp-fixture.mjs';
import { recordedCases, vectors } from './mcp-vectors.ts';
import { Running } from './processes.ts';
import { FREE, until } from './support.ts';

// The server is a process of its own, made of what was built; the service lies between, over HTTP.

let service: Listening;
let server: Running;
let count = 0;

beforeAll(async () => {
  service = await createLocalService({ limits: { ...FREE, waitersPerAddress: 64 } }).listen();
  const child = fork(new URL('mcp-server.mjs', import.meta.url), {
    stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    execArgv: ['--trace-warnings'],
  });
  server = new Running(child);
});

afterAll(async () => {
  if (server.child.connected) server.child.disconnect();
  await server.exited;
  await service.close();
});

/** A fresh server in that process; mailboxes for it and us; a key for us. */
async function begin(kind: 'fixture' | 'many' | 'big') {
  const mailbox = `mb-p-server-${++count}`;
  const replyTo = `mb-p-client-${count}`;
  const ready = server.tells((message) => message.ready === mailbox);
  server.child.send({ kind, mailbox, base: service.url });
  const { did } = await ready;
  onTestFinished(() => void server.child.send({ kind: 'stop', mailbox }));
  return { mailbox, replyTo, did: did as string, signer: Signer.generate(), base: service.url };
}

/** A way to put any frame into the server's mailbox, and what its key writes into ours. */
async function wired(kind: 'fixture', onFrame: (frame: any) => void) {
  const { mailbox, replyTo, did, signer, base } = await begin(kind);
  const channel = mailboxPair(transportOf({ base }), signer, mailbox, replyTo);
  const leave = await channel.listen({
    message: ({ from, text }) => {
      const frame = from === did ? decode(text) : undefined;
      if (frame) onFrame(frame);
    },
    gap: (gap) => expect.fail(String(gap)),
    end: () => {},
  });
  onTestFinished(leave);
  /** With our mailbox as the place for the answer, wherever a frame can name one. */
  const addressed = (frame: any): any => {
    if (Array.isArray(frame)) return frame.map(addressed);
    if (!isObject(frame['params']?._meta)) return frame;
    const _meta = { ...frame.params._meta, [REPLY_META]: replyTo };
    return { ...frame, params: { ...frame.params, _meta } };
  };
  // Frames that cannot name it are answered to where the key's record says.
  await publishIdentity(signer, { mailbox: replyTo }, { base });
  return { send: (frame: any) => channel.send(encode(addressed(frame) as Json)), leave };
}

describe('the recorded cases, through two processes', () => {
  let fences = 0;
  const nameless: string[] = [];

  recordedCases(async () => {
    let frames: any[] = [];
    const { send, leave } = await wired('fixture', (frame) => void frames.push(frame));
    const meta = vectors.cases[0].steps[0].send.params._meta;
    return {
      nameless(frame) {
        // A stranger's chat is not answered, so a frame that is none and says no place is not either.
        const isNone = Array.isArray(frame) || classify(frame) === 'invalid';
        const found =
          isNone && [frame].flat().every((one) => classify(one) !== 'request' && !isObject(one.params?._meta));
        if (found) nameless.push(frame.id ?? frame.length);
        return found;
      },
      async exchange(frame, wanted) {
        frames = [];
        await send(frame);
        await until(() => frames.length >= wanted);
        // The server has taken all that came before, and anything too much is here by now.
        const id = `fence-${++fences}`;
        await send({ jsonrpc: '2.0', id, method: 'server/discover', params: { _meta: meta } });
        await until(() => frames.some((f) => f.id === id));
        frames = frames.filter((f) => f.id !== id);
        return { frames, pending: frames.every((f) => f.id !== frame.id) };
      },
      close: leave,
    };
  });

  test('only two frames and two batches, of none and of one notification, name no place for an answer', () => {
    expect(nameless).toEqual(['s-4', 's-5', 0, 1]);
  });
});

describe('through two processes', () => {
  // Some 260 pages, one after the other: long where the machine is busy.
  test('500 tools with long schemas, whole', { timeout: 600_000 }, async () => {
    const { mailbox, signer, ...o } = await begin('many');
    const tools = await mcpListTools(mailbox, signer, o);
    expect(tools).toHaveLength(500);
    expect(JSON.stringify(tools).length).toBeGreaterThan(250_000);
    expect(tools).toEqual(
      manyTools().map(({ name, title, inputSchema }) => ({
        name,
        title,
        description: `The tool ${name}.`,
        inputSchema,
      })),
    );
    expect(await mcpCallTool(mailbox, 'tool_499', {}, signer, o)).toMatchObject({ content: [{ text: 'tool_499' }] });
  });

  test('a result of 90 kB is spilled and read whole, one of 1 MB is an error that says so', async () => {
    const { mailbox, signer, ...o } = await begin('big');
    const spilled = await mcpCallTool(mailbox, 'text', { chars: 90_000 }, signer, o);
    expect(spilled.content).toEqual([{ type: 'text', text: 'x'.repeat(90_000) }]);
    const refused = await mcpCallTool(mailbox, 'text', { chars: 1_000_000 }, signer, o).catch((cause) => cause);
    expect(refused.rpc).toMatchObject({ code: -32603, data: { chars: expect.any(Number), limit: expect.any(Number) } });
    expect(refused.rpc.data.chars).toBeGreaterThan(1_000_000);
    expect(refused.rpc.message).toContain('too large');
  });

  test('the built package says nothing on its own', () => {
    expect(server.run).toMatchObject({ out: '', err: '' });
  });
});

describe('the official client, through rooms', () => {
  /** Copies frames to and from rooms, and nothing else. */
  async function connected(capabilities: object = {}): Promise<Client> {
    let transport: any;
    // One frame a turn: of two in one, the SDK would take the answer before the progress that came before it.
    const { send, leave } = await wired('fixture', (frame) => void setImmediate(() => transport.onmessage?.(frame)));
    transport = {
      start: async () => {},
      send: async (message: any) => void (await send(message)),
      close: async () => {
        leave();
        transport.onclose?.();
      },
    };
    const client = new Client({ name: 'official', version: '1' }, {
      capabilities,
      versionNegotiation: { mode: { pin: '2026-07-28' } },
    } as any);
    await client.connect(transport);
    onTestFinished(() => client.close());
    return client;
  }

  test('lists every page, calls, sees errors and progress', async () => {
    const client = await connected();
    expect(client.getServerVersion()).toMatchObject(vectors.fixture.serverInfo);
    expect(client.getInstructions()).toBe('Ask me for sums.');
    const { tools } = await client.listTools();
    expect(tools.map((t) => t.name)).toEqual(vectors.fixture.tools.map((t: any) => t.name));
    const call = (name: string, args: object = {}, o: object = {}) =>
      client.callTool({ name, arguments: args as any }, o as any);
    expect(await call('math.sum', { a: 2, b: 0.5 })).toMatchObject({ structuredContent: { total: 2.5 } });
    expect(await call('zero')).toMatchObject({ structuredContent: 0 });
    expect(await call('math.sum', { a: 'x' })).toMatchObject({ isError: true });
    expect(await call('crash')).toMatchObject({ isError: true, content: [{ text: 'disk is full' }] });
    await expect(call('nosuch')).rejects.toMatchObject({ code: -32602 });
    const steps: unknown[] = [];
    expect(await call('steps', {}, { onprogress: (p: unknown) => steps.push(p) })).toMatchObject({
      content: [{ text: 'done' }],
    });
    expect(steps).toMatchObject([{ progress: 1 }, { progress: 2 }, { progress: 3 }]);
  });

  test('answers questions', async () => {
    const client = await connected({ elicitation: {} });
    const answer = { action: 'accept', content: { name: 'Noor' } } as any;
    client.setRequestHandler('elicitation/create', async () => answer);
    expect(await client.callTool({ name: 'greet', arguments: {} })).toMatchObject({
      content: [{ text: 'Hello, Noor!' }],
    });
  });

  test('cancels, and listens', async () => {
    const client = await connected();
    const controller = new AbortController();
    const hanging = client.callTool({ name: 'hang', arguments: {} }, { signal: controller.signal } as any);
    controller.abort('enough');
    await expect(hanging).rejects.toThrow();
    const changed = new Promise<void>((resolve) =>
      client.setNotificationHandler('notifications/tools/list_changed', () => resolve()),
    );
    const subscription = await client.listen({ toolsListChanged: true });
    await client.callTool({ name: 'touch', arguments: { what: 'tools' } });
    await changed;
    await subscription.close();
  });
});
