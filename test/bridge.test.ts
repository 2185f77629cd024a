import { Client } from '@modelcontextprotocol/client';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import {
  type RoomClientOptions,
  RoomClientTransport,
  type RoomServerOptions,
  RoomServerTransport,
} from '../src/bridge.ts';
import type { Channel } from '../src/channel.ts';
import type { Event } from '../src/http.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { Signer } from '../src/signer.ts';
import { serveFixture } from './bridge-fixture.ts';
import { vectors } from './mcp-vectors.ts';
import { FREE, until } from './support.ts';

// The official client and the official server, with rooms of a service on loopback between them.

let service: Listening;
let count = 0;

beforeAll(async () => {
  service = await createLocalService({ limits: { ...FREE, waitersPerAddress: 64 } }).listen();
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

describe('all of MCP', () => {
  test('discovers, lists, calls; fails as tools and as requests fail', async () => {
    const { box } = await served();
    const { client, call, key } = await connected(box as string);
    expect(client.getServerVersion()).toMatchObject(vectors.fixture.serverInfo);
    expect((await client.listTools()).tools).toHaveLength(9);
    expect(await call('add', { a: 1, b: 2 })).toMatchObject({ structuredContent: { sum: 3 } });
    expect(await call('fail')).toMatchObject({ isError: true });
    await expect(client.readResource({ uri: 'note://nowhere' })).rejects.toMatchObject({ code: -32602 });
    expect(await call('who')).toMatchObject({ content: [{ text: key.did }] });
  });

  test('progress, log lines, questions', async () => {
    const { box } = await served();
    const { client, call } = await connected(box as string, {}, { elicitation: {} });
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
    const { box } = await served();
    const { client } = await connected(box as string);
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
    const { box, close } = await served();
    const { client, call } = await connected(box as string);
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
    const { box, seen } = await served();
    const { call } = await connected(box as string);
    const controller = new AbortController();
    const hanging = call('hang', {}, { signal: controller.signal });
    await until(() => seen.calls.includes('hang'));
    controller.abort('enough');
    await expect(hanging).rejects.toThrow('enough');
    await until(() => seen.cancelled.length === 1);
    expect(seen.cancelled).toEqual(['enough']);
  });
});
