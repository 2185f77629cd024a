import { request } from 'node:http';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest';
import type { Wire } from '../src/bridge-handshake.ts';
import { HttpBridge } from '../src/bridge-http.ts';
import { TechnocoreError } from '../src/errors.ts';
import { until } from './support.ts';
import { VirtualClock } from './virtual-clock.ts';

const META = 'io.modelcontextprotocol';
const _meta = { [`${META}/protocolVersion`]: '2026-07-28', [`${META}/clientCapabilities`]: {} };

/** A server of 2026-07-28 at the other end of each wire, which does as the tool's name says. */
class Server implements Wire {
  onmessage?: (message: any) => void;
  onclose?: () => void;
  static all: Server[] = [];
  readonly got: any[] = [];
  isClosed = false;

  async start(): Promise<void> {
    Server.all.push(this);
  }

  say(message: object): void {
    setImmediate(() => this.onmessage?.({ jsonrpc: '2.0', ...message }));
  }

  async send(message: any): Promise<void> {
    this.got.push(message);
    const { id, method, params } = message;
    const result = (more: object): void => this.say({ id, result: { resultType: 'complete', ...more } });
    const progress = (n: number): void =>
      this.say({
        method: 'notifications/progress',
        params: { progressToken: params._meta.progressToken, progress: n },
      });
    if (method === 'server/discover') {
      result({
        supportedVersions: ['2026-07-28'],
        capabilities: { tools: { listChanged: true } },
        ttlMs: 0,
        cacheScope: 'public',
      });
    } else if (method === 'tools/list') {
      const properties = {
        region: { type: 'string', 'x-mcp-header': 'Region' },
        in: { properties: { n: { 'x-mcp-header': 'N' } } },
      };
      result({ tools: [{ name: 'sql', inputSchema: { type: 'object', properties } }] });
    } else if (method === 'subscriptions/listen') {
      const tag = { _meta: { [`${META}/subscriptionId`]: id } };
      this.say({ method: 'notifications/subscriptions/acknowledged', params: { notifications: {}, ...tag } });
      this.say({ method: 'notifications/tools/list_changed', params: tag });
    } else if (method === 'tools/call' && params.name === 'progress') {
      progress(1);
      progress(2);
      result({ content: [{ type: 'text', text: 'done' }] });
    } else if (method === 'tools/call' && params.name === 'ask' && !params.inputResponses) {
      const question = {
        method: 'elicitation/create',
        params: { message: 'Sure?', requestedSchema: { type: 'object', properties: {} } },
      };
      this.say({ id, result: { resultType: 'input_required', inputRequests: { q: question }, requestState: 's' } });
    } else if (method === 'tools/call' && params.name === 'ask') {
      result({ content: [{ type: 'text', text: params.inputResponses.q.action }] });
    } else if (method === 'tools/call' && params.name === 'huge') {
      throw new TechnocoreError('frame_too_long', 'too long');
    } else if (method === 'tools/call' && params.name === 'sql') result({ content: [] });
    else if (method === 'tools/call' && params.name === 'never') return;
    else if (id !== undefined) this.say({ id, error: { code: -32601, message: 'Method not found' } });
  }

  async close(): Promise<void> {
    this.isClosed = true;
    this.onclose?.();
  }
}

let bridge: HttpBridge;
let url: string;
beforeEach(async () => {
  Server.all = [];
  bridge = new HttpBridge({ connect: () => new Server() });
  url = await bridge.listen(0);
});
afterEach(() => bridge.close());

interface Answer {
  status: number;
  type: string | undefined;
  session: string | undefined;
  text: string;
  messages: any[];
}

/** A request with exactly these headers. */
function send(method: string, body: unknown, headers: Record<string, string> = {}, path?: string): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const sent = request(path === undefined ? url : new URL(path, url), { method, headers }, async (response) => {
      let text = '';
      for await (const chunk of response) text += chunk;
      const type = response.headers['content-type'];
      const parts =
        type === 'text/event-stream' ? [...text.matchAll(/^data: (.*)$/gm)].map(([, data]) => data!) : [text];
      const messages = parts.flatMap((part) => (part === '' ? [] : [JSON.parse(part)]));
      resolve({
        status: response.statusCode!,
        type,
        session: response.headers['mcp-session-id'] as string | undefined,
        text,
        messages,
      });
    });
    sent.on('error', reject);
    sent.end(body === undefined ? undefined : typeof body === 'string' ? body : JSON.stringify(body));
  });
}

const JSON_TYPE = { 'content-type': 'application/json' };
const post = (message: unknown, headers: Record<string, string> = {}): Promise<Answer> =>
  send('POST', message, { ...JSON_TYPE, ...headers });

/** A request of 2026-07-28, headers as they have to be but for those given. */
function ask(method: string, params: any = {}, headers: Record<string, string | undefined> = {}): Promise<Answer> {
  const name = params.name ?? params.uri;
  const all = {
    'mcp-protocol-version': '2026-07-28',
    'mcp-method': method,
    ...(name !== undefined && { 'mcp-name': name }),
    ...headers,
  };
  const given = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined)) as Record<
    string,
    string
  >;
  return post({ jsonrpc: '2.0', id: 7, method, params: { _meta, ...params } }, given);
}

test('no page of the web gets in, and nothing but the endpoint is there', async () => {
  for (const host of ['evil.test', 'localhost.evil.test', '127.0.0.1.evil.test:80', '192.168.0.1']) {
    expect((await send('POST', '{}', { ...JSON_TYPE, host })).status).toBe(403);
  }
  for (const origin of [
    'http://evil.test',
    'null',
    'http://localhost.evil.test',
    'file://',
    'http://localhost:80@evil.test',
  ]) {
    expect((await post({}, { origin })).status).toBe(403);
  }
  expect((await ask('server/discover', {}, { origin: 'http://localhost:6274' })).status).toBe(200);
  expect((await send('POST', '{}', JSON_TYPE, '/other')).status).toBe(404);
  expect((await send('GET', undefined)).status).toBe(405);
  expect((await send('DELETE', undefined)).status).toBe(405);
  expect((await send('PUT', '{}', JSON_TYPE)).status).toBe(405);
  expect(Server.all.length).toBe(1);
});

test('what is no message is refused with its status', async () => {
  expect(await post('{"half')).toMatchObject({ status: 400, messages: [{ error: { code: -32700 } }] });
  expect((await send('POST', '{}', { 'content-type': 'text/plain' })).status).toBe(415);
  expect((await post({}, { accept: 'application/json' })).status).toBe(406);
  expect((await post(`"${'x'.repeat(5 << 20)}"`)).status).toBe(413);
  for (const message of [
    [],
    [{}],
    {},
    { jsonrpc: '2.0', id: null, method: 'x' },
    { jsonrpc: '2.0', id: 1, result: {} },
  ]) {
    const { status, messages } = await post(message);
    expect([status, messages[0].error.code]).toEqual([400, -32600]);
    expect(messages[0]).not.toHaveProperty('id');
  }
  expect(await post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } })).toMatchObject({
    status: 202,
    text: '',
  });
  expect(Server.all).toEqual([]);
});

test('a request of its own is answered with one message, and errors with their status', async () => {
  const { status, type, messages, session } = await ask('server/discover');
  expect([status, type, session]).toEqual([200, 'application/json', undefined]);
  expect(messages).toMatchObject([{ id: 7, result: { supportedVersions: ['2026-07-28'] } }]);
  expect(await ask('nope')).toMatchObject({ status: 404, messages: [{ id: 7, error: { code: -32601 } }] });
  expect(await ask('tools/call', { name: 'huge' })).toMatchObject({
    status: 200,
    messages: [{ id: 7, error: { code: -32603, data: { reason: 'frame_too_long' } } }],
  });
  await until(() => Server.all.every(({ isClosed }) => isClosed));
});

test.each([
  ['no version', { 'mcp-protocol-version': undefined }],
  ['another version', { 'mcp-protocol-version': '2025-11-25' }],
  ['no method', { 'mcp-method': undefined }],
  ['another method', { 'mcp-method': 'tools/list' }],
  ['no name', { 'mcp-name': undefined }],
  ['another name', { 'mcp-name': 'other' }],
  ['an ill-formed name', { 'mcp-name': '=?base64?%%%?=' }],
])('headers with %s are refused', async (_, headers) => {
  expect(await ask('tools/call', { name: 'progress' }, headers)).toMatchObject({
    status: 400,
    messages: [{ id: 7, error: { code: -32020 } }],
  });
  expect(Server.all).toEqual([]);
});

test('names may come in base64', async () => {
  expect((await ask('tools/call', { name: 'sql' }, { 'mcp-name': '=?base64?c3Fs?=' })).status).toBe(200);
});

test('what _meta lacks is refused here', async () => {
  const headers = { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/list' };
  expect(await post({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} }, headers)).toMatchObject({
    status: 400,
    messages: [{ id: 1, error: { code: -32602 } }],
  });
  const version = { [`${META}/protocolVersion`]: '1900-01-01' };
  const old = { ...headers, 'mcp-protocol-version': '1900-01-01' };
  expect(
    await post({ jsonrpc: '2.0', id: 1, method: 'tools/list', params: { _meta: { ..._meta, ...version } } }, old),
  ).toMatchObject({
    status: 400,
    messages: [{ id: 1, error: { code: -32022, data: { supported: ['2026-07-28'], requested: '1900-01-01' } } }],
  });
});

test('parameters that a tool wants in headers are compared, once its list was seen', async () => {
  const args = { region: 'eu', in: { n: 42 } };
  const call = (headers: Record<string, string>, given: object = args): Promise<Answer> =>
    ask('tools/call', { name: 'sql', arguments: given }, headers);
  expect((await call({})).status).toBe(200);
  await ask('tools/list');
  const right = { 'mcp-param-region': 'eu', 'mcp-param-n': '42.0' };
  expect((await call(right)).status).toBe(200);
  expect((await call({ ...right, 'mcp-param-region': '=?base64?ZXU=?=' })).status).toBe(200);
  expect((await call({ 'mcp-param-region': 'eu' }, { region: 'eu', in: null })).status).toBe(200);
  for (const wrong of [
    {},
    { 'mcp-param-region': 'eu' },
    { ...right, 'mcp-param-region': 'us' },
    { ...right, 'mcp-param-n': '' },
  ]) {
    expect(await call(wrong)).toMatchObject({ status: 400, messages: [{ error: { code: -32020 } }] });
  }
  expect((await call(right, { region: 'eu' })).status).toBe(400);
});

test('progress makes it a stream', async () => {
  const answer = await ask('tools/call', { name: 'progress', _meta: { ..._meta, progressToken: 'p' } });
  expect([answer.status, answer.type]).toEqual([200, 'text/event-stream']);
  expect(answer.messages.map(({ params, result }) => params?.progress ?? result.content[0].text)).toEqual([
    1,
    2,
    'done',
  ]);
});

test('to hang up is to cancel; a subscription is a stream at once', async () => {
  const stop = new AbortController();
  const params = { _meta, notifications: { toolsListChanged: true } };
  const headers = { ...JSON_TYPE, 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'subscriptions/listen' };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 's', method: 'subscriptions/listen', params });
  const response = await fetch(url, { method: 'POST', headers, body, signal: stop.signal });
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  while (!text.includes('list_changed')) text += (await reader.read()).value;
  expect(text).toContain('acknowledged');
  expect(Server.all[0]!.isClosed).toBe(false);
  stop.abort();
  await until(() => Server.all[0]!.isClosed);
});

test('a long silence is broken', async () => {
  const clock = new VirtualClock();
  const quiet = new HttpBridge({ connect: () => new Server(), clock });
  const there = await quiet.listen(0);
  const stop = new AbortController();
  const headers = {
    ...JSON_TYPE,
    'mcp-protocol-version': '2026-07-28',
    'mcp-method': 'tools/call',
    'mcp-name': 'never',
  };
  const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'never', _meta } });
  const answer = fetch(there, { method: 'POST', headers, body, signal: stop.signal });
  await until(() => clock.sleepers >= 2);
  await clock.advance(15_000);
  const { headers: got, body: stream } = await answer;
  expect(got.get('content-type')).toBe('text/event-stream');
  const { value } = await stream!.getReader().read();
  expect(new TextDecoder().decode(value)).toBe(':\n\n');
  stop.abort();
  await quiet.close();
  expect(clock.sleepers).toBe(0);
});

const hello = (protocolVersion = '2025-11-25'): object => ({
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion, capabilities: { elicitation: {} }, clientInfo: { name: 'old', version: '1' } },
});

test('sessions of hosts with a handshake', async () => {
  const begun = await post(hello());
  expect(begun).toMatchObject({
    status: 200,
    type: 'application/json',
    messages: [{ id: 0, result: { protocolVersion: '2025-11-25' } }],
  });
  expect(begun.session).toMatch(/^[0-9a-f]{32}$/);
  const headers = { 'mcp-session-id': begun.session!, 'mcp-protocol-version': '2025-11-25' };
  expect(await post({ jsonrpc: '2.0', method: 'notifications/initialized' }, headers)).toMatchObject({
    status: 202,
    text: '',
  });
  expect(await post({ jsonrpc: '2.0', id: 1, method: 'ping' }, headers)).toMatchObject({
    status: 200,
    messages: [{ id: 1, result: {} }],
  });
  expect(
    (await post({ jsonrpc: '2.0', id: 2, method: 'ping' }, { ...headers, 'mcp-protocol-version': '1.0' })).status,
  ).toBe(400);
  const { messages } = await post(
    { jsonrpc: '2.0', id: 3, method: 'tools/call', params: { name: 'progress', _meta: { progressToken: 1 } } },
    headers,
  );
  expect(messages.map(({ method, id }) => method ?? id)).toEqual([
    'notifications/progress',
    'notifications/progress',
    3,
  ]);

  // What belongs to no request waits for somebody who listens.
  const heard = send('GET', undefined, { ...headers, accept: 'text/event-stream' });
  const second = send('GET', undefined, { ...headers, accept: 'text/event-stream' });
  expect((await heard).messages.concat()).toEqual([{ jsonrpc: '2.0', method: 'notifications/tools/list_changed' }]);
  expect(await send('DELETE', undefined, headers)).toMatchObject({ status: 200 });
  expect((await second).messages).toEqual([]);
  expect(Server.all.every(({ isClosed }) => isClosed)).toBe(true);
  for (const method of ['GET', 'DELETE', 'POST']) {
    expect(
      (
        await send(method, method === 'POST' ? { jsonrpc: '2.0', id: 1, method: 'ping' } : undefined, {
          ...JSON_TYPE,
          ...headers,
        })
      ).status,
    ).toBe(404);
  }
});

test('batches of the one revision that has them', async () => {
  const { session } = await post(hello('2025-03-26'));
  const ping = (id: number): object => ({ jsonrpc: '2.0', id, method: 'ping' });
  const { type, messages } = await post([ping(1), ping(2)], { 'mcp-session-id': session! });
  expect(type).toBe('text/event-stream');
  expect(messages.map(({ id }) => id)).toEqual([1, 2]);
});

test('sessions that nobody uses make room', async () => {
  const sessions = [];
  for (let i = 0; i < 65; i++) sessions.push((await post(hello())).session!);
  const alive = async (session: string): Promise<number> =>
    (await post({ jsonrpc: '2.0', id: 1, method: 'ping' }, { 'mcp-session-id': session })).status;
  expect(await alive(sessions[0]!)).toBe(404);
  expect(await alive(sessions[64]!)).toBe(200);
});

test('a session makes room though its host listens, the one longest unused first, but not one with a request under way', async () => {
  const sessions: string[] = [];
  const ends: Promise<string>[] = [];
  for (let i = 0; i < 64; i++) {
    const { session } = await post(hello());
    const headers = { 'mcp-session-id': session!, accept: 'text/event-stream' };
    sessions.push(session!);
    ends.push((await fetch(url, { headers })).text());
  }
  const stop = new AbortController();
  const never = { jsonrpc: '2.0', id: 9, method: 'tools/call', params: { name: 'never' } };
  const headers = { ...JSON_TYPE, 'mcp-session-id': sessions[0]! };
  const working = fetch(url, { method: 'POST', headers, body: JSON.stringify(never), signal: stop.signal });
  working.catch(() => {});
  await until(() => Server.all[0]!.got.some(({ params }) => params?.name === 'never'));
  await until(() => Server.all.length === 64);
  const alive = async (session: string): Promise<number> =>
    (await post({ jsonrpc: '2.0', id: 1, method: 'ping' }, { 'mcp-session-id': session })).status;
  expect(await alive(sessions[1]!)).toBe(200);
  const { session, status } = await post(hello());
  expect(status).toBe(200);
  await ends[2];
  expect([await alive(sessions[2]!), await alive(sessions[0]!), await alive(sessions[1]!)]).toEqual([404, 200, 200]);
  expect(await alive(session!)).toBe(200);
  // Whoever comes back begins another.
  expect((await post(hello())).session).toMatch(/^[0-9a-f]{32}$/);
  stop.abort();
});

test('messages that arrive together are bounded, and what cannot be served is not read', async () => {
  const open: ReturnType<typeof request>[] = [];
  onTestFinished(() => {
    for (const one of open) one.destroy();
  });
  const body = Buffer.alloc(4 << 20, ' ');
  const statuses: number[] = [];
  const begin = (headers: Record<string, string | number>): ReturnType<typeof request> => {
    const one = request(url, { method: 'POST', agent: false, headers: { ...JSON_TYPE, ...headers } }, (response) => {
      statuses.push(response.statusCode!);
      response.resume();
    });
    one.on('error', () => {});
    open.push(one);
    return one;
  };
  for (let i = 0; i < 20; i++) begin({ 'content-length': body.length + 1 }).write(body.subarray(1));
  await until(() => statuses.length >= 4);
  expect(new Set(statuses)).toEqual(new Set([503]));
  // Those that trickle in take no room.
  for (const one of open) one.destroy();
  const others = statuses.length;
  for (let i = 0; i < 257; i++) begin({ 'transfer-encoding': 'chunked' }).write('{');
  await until(() => statuses.length > others);
  expect(statuses.at(-1)).toBe(503);
});

test('the official client of the handshake era: progress, questions, changes', async () => {
  const client = new OldClient({ name: 'old', version: '1' }, { capabilities: { elicitation: {} } });
  const steps: number[] = [];
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'decline' as const }));
  const changes: unknown[] = [];
  client.fallbackNotificationHandler = async (notice) => void changes.push(notice.method);
  await client.connect(new OldTransport(new URL(url)) as any);
  const used = await client.callTool({ name: 'progress', arguments: {} }, undefined, {
    onprogress: ({ progress }) => steps.push(progress),
  });
  expect(used.content).toEqual([{ type: 'text', text: 'done' }]);
  expect(steps).toEqual([1, 2]);
  expect((await client.callTool({ name: 'ask', arguments: {} })).content).toEqual([{ type: 'text', text: 'decline' }]);
  await until(() => changes.includes('notifications/tools/list_changed'));
  await client.close();
});

test('a port that is taken is told', async () => {
  await expect(new HttpBridge({ connect: () => new Server() }).listen(Number(new URL(url).port))).rejects.toMatchObject(
    { code: 'no_port' },
  );
});
