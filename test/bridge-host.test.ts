import { beforeEach, expect, test } from 'vitest';
import { HANDSHAKES } from '../src/bridge-handshake.ts';
import { HostSide } from '../src/bridge-host.ts';
import { VirtualClock } from './virtual-clock.ts';

const META = 'io.modelcontextprotocol';
const SERVER = { [`${META}/serverInfo`]: { name: 'adder', version: '3', title: 'Adder' } };
const CAPABILITIES = {
  tools: { listChanged: true },
  resources: { subscribe: true },
  logging: {},
  extensions: { 'x/y': {} },
};

let toHost: any[];
let toRoom: any[];
let clock: VirtualClock;
let side: HostSide;

beforeEach(() => {
  toHost = [];
  toRoom = [];
  clock = new VirtualClock();
  const to = (list: any[]) => (message: any) => void list.push(message);
  side = new HostSide({ toHost: to(toHost), toRoom: to(toRoom), clock, hint: 'is it running?' });
});

const host = (message: object): void => side.fromHost({ jsonrpc: '2.0', ...message });
const room = (message: object): void => side.fromRoom({ jsonrpc: '2.0', ...message });
const sent = (): any => toRoom.at(-1);
const got = (): any => toHost.at(-1);

function discovered(result: object = {}): void {
  room({
    id: sent().id,
    result: { supportedVersions: ['2026-07-28'], capabilities: CAPABILITIES, _meta: SERVER, ...result },
  });
}

function initialize(version: string = HANDSHAKES[0]!, capabilities: object = {}): void {
  const clientInfo = { name: 'old', version: '1' };
  host({ id: 0, method: 'initialize', params: { protocolVersion: version, capabilities, clientInfo } });
  discovered();
  host({ method: 'notifications/initialized' });
}

test.each([...HANDSHAKES, '2024-10-07', '2027-01-01'])('the handshake of %s', (version) => {
  host({
    id: 'a',
    method: 'initialize',
    params: { protocolVersion: version, capabilities: { roots: { listChanged: true }, tasks: {} } },
  });
  expect(sent()).toMatchObject({
    method: 'server/discover',
    params: { _meta: { [`${META}/protocolVersion`]: '2026-07-28' } },
  });
  expect(sent().params._meta[`${META}/clientCapabilities`]).toEqual({ roots: {} });
  expect(toHost).toEqual([]);
  discovered({ instructions: 'Ask.' });
  expect(toHost).toEqual([
    {
      jsonrpc: '2.0',
      id: 'a',
      result: {
        protocolVersion: HANDSHAKES.includes(version) ? version : '2025-11-25',
        capabilities: { tools: { listChanged: true }, resources: { subscribe: true }, logging: {} },
        serverInfo: { name: 'adder', version: '3', title: 'Adder' },
        instructions: 'Ask.',
      },
    },
  ]);
});

test('a request says by itself what the handshake said, and its answer nothing of it', () => {
  initialize('2025-06-18', { sampling: {} });
  host({ id: 7, method: 'logging/setLevel', params: { level: 'warning' } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 7, result: {} });
  host({
    id: 1,
    method: 'tools/call',
    params: { name: 'add', arguments: { a: 1 }, task: {}, _meta: { progressToken: 5, 'x.y/z': 1 } },
  });
  expect(sent()).toEqual({
    jsonrpc: '2.0',
    id: 1,
    method: 'tools/call',
    params: {
      name: 'add',
      arguments: { a: 1 },
      _meta: {
        progressToken: 5,
        'x.y/z': 1,
        [`${META}/protocolVersion`]: '2026-07-28',
        [`${META}/clientCapabilities`]: { sampling: {} },
        [`${META}/clientInfo`]: { name: 'old', version: '1' },
        [`${META}/logLevel`]: 'warning',
      },
    },
  });
  room({
    method: 'notifications/progress',
    params: { progressToken: 5, progress: 1, _meta: { 'chat.technocore/requestId': 1 } },
  });
  expect(got()).toEqual({
    jsonrpc: '2.0',
    method: 'notifications/progress',
    params: { progressToken: 5, progress: 1 },
  });
  const content = [{ type: 'text', text: '1' }];
  room({
    id: 1,
    result: { content, resultType: 'complete', ttlMs: 1, cacheScope: 'public', _meta: { ...SERVER, 'x.y/z': 2 } },
  });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 1, result: { content, _meta: { 'x.y/z': 2 } } });
});

test('structured content and schemas are objects for hosts with a handshake, and for them alone', () => {
  initialize();
  const properties = { a: true, b: false, c: { type: 'string' }, ['__proto__']: true };
  const tools = [
    { name: 'list', inputSchema: { type: 'object', properties }, outputSchema: { type: 'array' } },
    { name: 'any', inputSchema: { type: 'object' }, outputSchema: {} },
    { name: 'map', inputSchema: { type: 'object' }, outputSchema: { type: 'object', properties: { n: true } } },
    null,
  ];
  host({ id: 1, method: 'tools/list', params: {} });
  room({ id: 1, result: { resultType: 'complete', tools, ttlMs: 0, cacheScope: 'public' } });
  const objects = { a: {}, b: { not: {} }, c: { type: 'string' }, ['__proto__']: {} };
  expect(got().result).toEqual({
    tools: [
      { name: 'list', inputSchema: { type: 'object', properties: objects } },
      { name: 'any', inputSchema: { type: 'object' } },
      { name: 'map', inputSchema: { type: 'object' }, outputSchema: { type: 'object', properties: { n: {} } } },
      null,
    ],
  });
  const content = [{ type: 'text', text: '…' }];
  for (const value of [[1], 0, null, 'x', { a: 1 }]) {
    host({ id: 2, method: 'tools/call', params: { name: 'list' } });
    room({ id: 2, result: { resultType: 'complete', content, structuredContent: value } });
    const isMap = typeof value === 'object' && value !== null && !Array.isArray(value);
    expect(got().result).toEqual({ content, structuredContent: isMap ? value : { result: value } });
  }
  host({ id: 3, method: 'tools/list', params: { _meta: { [`${META}/protocolVersion`]: '2026-07-28' } } });
  room({ id: 3, result: { resultType: 'complete', tools } });
  expect(got().result.tools).toEqual(tools);
});

test('what needs no handshake goes through as it is, also beside one', () => {
  const request = {
    jsonrpc: '2.0',
    id: 1,
    method: 'tools/list',
    params: { _meta: { [`${META}/protocolVersion`]: '2026-07-28' } },
  };
  side.fromHost(request);
  expect(sent()).toBe(request);
  const answer = { jsonrpc: '2.0', id: 1, result: { resultType: 'complete', tools: [], _meta: SERVER } };
  side.fromRoom(answer);
  expect(got()).toBe(answer);
  const cancelled = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } };
  side.fromHost(cancelled);
  expect(sent()).toBe(cancelled);
  const log = {
    jsonrpc: '2.0',
    method: 'notifications/message',
    params: { level: 'info', _meta: { 'chat.technocore/requestId': 1 } },
  };
  side.fromRoom(log);
  expect(got()).toBe(log);
});

test('ping and what is wrong are answered here', () => {
  host({ id: 1, method: 'ping' });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 1, result: {} });
  host({ id: 2, method: 'tools/list', params: {} });
  expect(got()).toMatchObject({ id: 2, error: { code: -32602, message: expect.stringContaining('initialize') } });
  host({ id: 3, method: 'initialize', params: {} });
  expect(got()).toMatchObject({ id: 3, error: { code: -32602 } });
  for (const message of [
    7,
    null,
    { jsonrpc: '2.0', id: null, method: 'ping' },
    { jsonrpc: '2.0', id: 1.5, method: 'ping' },
    [],
    [{}],
  ]) {
    side.fromHost(message);
    expect(got().error.code).toBe(-32600);
    expect(got()).not.toHaveProperty('id');
  }
  host({ id: 'technocore-rpc:1', method: 'ping' });
  expect(got()).toMatchObject({ id: 'technocore-rpc:1', error: { code: -32600 } });
  expect(toRoom).toEqual([]);
  initialize();
  host({ id: 4, method: 'tasks/get', params: { taskId: 'x' } });
  expect(got()).toMatchObject({ id: 4, error: { code: -32601, message: expect.stringContaining('tasks/get') } });
  host({ id: 5, method: 'logging/setLevel', params: { level: 'loud' } });
  expect(got()).toMatchObject({ id: 5, error: { code: -32602 } });
  host({ id: 6, method: 'tools/list' });
  host({ id: 6, method: 'tools/list' });
  expect(got()).toMatchObject({ id: 6, error: { code: -32600 } });
  host({ method: 'notifications/roots/list_changed' });
  expect(sent().method).toBe('tools/list');
});

test('batches are of one revision only', () => {
  initialize('2025-03-26');
  side.fromHost([
    { jsonrpc: '2.0', id: 1, method: 'ping' },
    { jsonrpc: '2.0', id: 2, method: 'tools/list' },
  ]);
  expect(got()).toEqual({ jsonrpc: '2.0', id: 1, result: {} });
  expect(sent()).toMatchObject({ id: 2, method: 'tools/list' });
});

test('no answer to the handshake is an answer, and a late one is none', async () => {
  host({ id: 9, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
  const { id } = sent();
  await clock.advance(28_000);
  expect(got()).toMatchObject({ id: 9, error: { code: -32603, message: expect.stringContaining('is it running?') } });
  expect(sent()).toMatchObject({ method: 'notifications/cancelled', params: { requestId: id } });
  room({ id, result: {} });
  expect(toHost.length).toBe(1);
  host({ id: 10, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
  room({ id: sent().id, error: { code: 1004, message: 'Denied' } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 10, error: { code: 1004, message: 'Denied' } });
  host({ id: 11, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
  discovered({ supportedVersions: ['2027-01-01'] });
  expect(got()).toMatchObject({ id: 11, error: { code: -32603 } });
  host({ id: 12, method: 'tools/list' });
  expect(got()).toMatchObject({ id: 12, error: { code: -32602 } });
});

test('a handshake that nobody answers is not asked again, and its error says why and what to look at', () => {
  host({ id: 9, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
  const message = 'The answer is lost: no answer: its server ended at noon';
  room({ id: sent().id, error: { code: 1006, message, data: { reason: 'call_timeout' } } });
  expect(got()).toMatchObject({ id: 9, error: { code: 1006, message: `${message}: is it running?` } });
  expect(toRoom.length).toBe(1);
});

test('an error to which advice belongs gets it, and reaches the host also where it has no words', () => {
  const params = { _meta: { [`${META}/protocolVersion`]: '2026-07-28', [`${META}/clientCapabilities`]: {} } };
  const error = { code: 1006, data: { reason: 'call_timeout' } };
  host({ id: 1, method: 'tools/list', params });
  room({ id: 1, error: { ...error, message: 'Lost' } });
  expect(got()).toMatchObject({ id: 1, error: { ...error, message: 'Lost: is it running?' } });
  const message = { toString: 1, valueOf: 2 };
  host({ id: 2, method: 'tools/list', params });
  room({ id: 2, error: { ...error, message } });
  expect(got()).toMatchObject({ id: 2, error: { ...error, message } });
});

test('cancelling names the present request, and nothing comes of it any more', () => {
  initialize();
  host({ id: 1, method: 'tools/call', params: { name: 'x' } });
  host({ method: 'notifications/cancelled', params: { requestId: 1, reason: 'enough' } });
  expect(sent()).toEqual({
    jsonrpc: '2.0',
    method: 'notifications/cancelled',
    params: { requestId: 1, reason: 'enough' },
  });
  host({ id: 1, method: 'tools/call', params: { name: 'x' } });
  expect(sent()).toMatchObject({ id: 1, method: 'tools/call' });
});

const question = (method: string, params: object = {}): object => ({ method, params });

test('questions are put to the host, and the request goes on under a fresh id', () => {
  initialize('2025-11-25', { elicitation: {}, sampling: {} });
  host({ id: 1, method: 'tools/call', params: { name: 'purge', arguments: { dir: 'old' } } });
  const inputRequests = {
    sure: question('elicitation/create', { mode: 'form', message: 'Sure?' }),
    poem: question('sampling/createMessage', { maxTokens: 5 }),
  };
  room({ id: 1, result: { resultType: 'input_required', inputRequests, requestState: 's1' } });
  const [sure, poem] = toHost.slice(-2);
  expect(sure).toMatchObject({ method: 'elicitation/create', params: { mode: 'form', message: 'Sure?' } });
  expect(poem).toMatchObject({ method: 'sampling/createMessage', params: { maxTokens: 5 } });
  expect(sure.id).not.toEqual(poem.id);
  // A second answer to what was answered is none.
  room({ id: 1, result: { resultType: 'complete', content: [] } });
  host({ id: poem.id, result: { role: 'assistant' } });
  host({ id: 'unknown', result: {} });
  const before = toRoom.length;
  host({ id: sure.id, result: { action: 'accept', content: {} } });
  expect(toRoom.length).toBe(before + 1);
  expect(sent()).toMatchObject({
    method: 'tools/call',
    params: {
      name: 'purge',
      arguments: { dir: 'old' },
      inputResponses: { sure: { action: 'accept', content: {} }, poem: { role: 'assistant' } },
      requestState: 's1',
    },
  });
  expect(sent().id).not.toBe(1);
  // Without a question it goes on at once, and with no state that was not given.
  room({ id: sent().id, result: { resultType: 'input_required', inputRequests: {} } });
  expect(sent().params).not.toHaveProperty('requestState');
  expect(sent().params).not.toHaveProperty('inputResponses');
  room({ id: sent().id, result: { resultType: 'complete', content: [] } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 1, result: { content: [] } });
});

test('an older host is asked as its revision has it', () => {
  initialize('2025-06-18', { elicitation: {} });
  host({ id: 1, method: 'tools/call', params: { name: 'x' } });
  room({
    id: 1,
    result: {
      resultType: 'input_required',
      inputRequests: { k: question('elicitation/create', { mode: 'form', message: 'm' }) },
    },
  });
  expect(got().params).toEqual({ message: 'm' });
  host({ method: 'notifications/cancelled', params: { requestId: 1 } });
  const before = toRoom.length;
  host({ id: got().id, result: { action: 'accept' } });
  expect(toRoom.length).toBe(before);
});

test('what the host cannot be asked, or does not answer, ends the request by name', () => {
  initialize('2025-11-25', { elicitation: {} });
  const ask = (id: number, inputRequests: object): void => {
    host({ id, method: 'tools/call', params: { name: 'x' } });
    room({ id, result: { resultType: 'input_required', inputRequests } });
  };
  ask(1, { k: question('sampling/createMessage') });
  expect(got()).toMatchObject({ id: 1, error: { message: expect.stringContaining('sampling/createMessage') } });
  ask(2, { k: question('constructor') });
  expect(got()).toMatchObject({ id: 2, error: { message: expect.stringContaining('constructor') } });
  ask(3, { k: question('elicitation/create', { mode: 'url', url: 'https://x.test' }) });
  expect(got().params).toEqual({ mode: 'url', url: 'https://x.test', elicitationId: got().id });
  host({ id: got().id, error: { code: -1, message: 'user left' } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 3, error: { code: -1, message: 'user left' } });
  host({ id: 4, method: 'tools/call', params: { name: 'x' } });
  room({ id: 4, result: { resultType: 'task', taskId: 't' } });
  expect(got()).toMatchObject({ id: 4, error: { message: expect.stringContaining('"task"') } });
  host({ id: 5, method: 'tools/call', params: { name: 'x' } });
  for (let round = 0; round <= 10; round++)
    room({ id: sent().id, result: { resultType: 'input_required', requestState: 's' } });
  expect(got()).toMatchObject({ id: 5, error: { message: expect.stringContaining('more than 10') } });
});

test.each([
  [-32601, -32601],
  [-32002, -32602],
  [-32000, -32603],
  [-32042, -32603],
  [-32021, -32021],
  [1001, 1001],
  ['x', -32603],
])('an error %s is told as %s', (code, told) => {
  initialize();
  host({ id: 1, method: 'prompts/get', params: { name: 'x' } });
  room({ id: 1, error: { code, message: 'no', data: { uri: 'u' } } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 1, error: { code: told, message: 'no', data: { uri: 'u' } } });
});

const notice = (id: string, method: string, params: object = {}): void =>
  room({ method, params: { ...params, _meta: { [`${META}/subscriptionId`]: id } } });
const acknowledge = (id: string, uris: string[] = []): void =>
  notice(id, 'notifications/subscriptions/acknowledged', { notifications: { resourceSubscriptions: uris } });

test('changes reach a host that waits to be told of them', async () => {
  initialize();
  const first = sent();
  expect(first).toMatchObject({
    method: 'subscriptions/listen',
    params: { notifications: { toolsListChanged: true } },
  });
  acknowledge(first.id);
  notice(first.id, 'notifications/tools/list_changed');
  expect(got()).toEqual({ jsonrpc: '2.0', method: 'notifications/tools/list_changed' });

  host({ id: 5, method: 'resources/subscribe', params: { uri: 'a:b' } });
  const second = sent();
  expect(second.params.notifications).toEqual({ toolsListChanged: true, resourceSubscriptions: ['a:b'] });
  expect(got()).not.toHaveProperty('id');
  acknowledge(second.id, ['a:b']);
  expect(got()).toEqual({ jsonrpc: '2.0', id: 5, result: {} });
  expect(sent()).toMatchObject({ method: 'notifications/cancelled', params: { requestId: first.id } });
  notice(second.id, 'notifications/resources/updated', { uri: 'a:b' });
  expect(got()).toEqual({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri: 'a:b' } });
  notice('technocore-rpc:77', 'notifications/resources/updated', { uri: 'forged' });
  expect(got().params.uri).toBe('a:b');

  // One that the server cannot tell of, and one too many times.
  host({ id: 6, method: 'resources/subscribe', params: { uri: 'c:d' } });
  acknowledge(sent().id, ['a:b']);
  expect(got()).toMatchObject({ id: 6, error: { code: -32601 } });
  host({ id: 7, method: 'resources/unsubscribe', params: { uri: 'a:b' } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 7, result: {} });
  expect(sent().params.notifications).toEqual({ toolsListChanged: true });

  // It is renewed from time to time, and when the other side ended it, later each time.
  acknowledge(sent().id);
  const { length } = toRoom;
  await clock.advance(900_000);
  expect(toRoom.length).toBe(length + 1);
  const { id } = sent();
  room({ method: 'notifications/cancelled', params: { requestId: id } });
  room({ id, result: { resultType: 'complete' } });
  await clock.advance(2000);
  expect(sent().method).toBe('subscriptions/listen');
  room({ id: sent().id, error: { code: 1001, message: 'Interrupted' } });
  const tries = toRoom.length;
  await clock.advance(3999);
  expect(toRoom.length).toBe(tries);
  await clock.advance(1);
  expect(toRoom.length).toBe(tries + 1);
  side.close();
  expect(clock.sleepers).toBe(0);
});

test('a subscription that nobody takes is refused to those who wait for it', async () => {
  initialize();
  host({ id: 5, method: 'resources/subscribe', params: { uri: 'a:b' } });
  room({ id: sent().id, error: { code: -32601, message: 'no such method' } });
  expect(got()).toEqual({ jsonrpc: '2.0', id: 5, error: { code: -32601, message: 'no such method' } });
  // Of such a server there is nothing to hope for.
  const { length } = toRoom;
  await clock.advance(3_000_000);
  expect(toRoom.length).toBe(length);
  // And to one that never said that it is ready.
  host({ id: 6, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } });
  discovered();
  host({ id: 7, method: 'resources/subscribe', params: { uri: 'a:b' } });
  acknowledge(sent().id, ['a:b']);
  expect(got()).toEqual({ jsonrpc: '2.0', id: 7, result: {} });
  side.close();
});

test('requests of the other side are dropped', () => {
  initialize();
  const { length } = toHost;
  for (const message of [
    { id: 1, method: 'sampling/createMessage' },
    { id: 2, method: 'ping' },
  ])
    room(message);
  for (const message of [null, 7, [], {}]) side.fromRoom(message);
  expect(toHost.length).toBe(length);
});

test('what was lost is asked again where that does no harm, a few times', () => {
  initialize();
  host({ id: 1, method: 'tools/list', params: { cursor: 'c' } });
  for (let i = 0; i <= 3; i++) {
    expect(sent()).toMatchObject({ method: 'tools/list', params: { cursor: 'c' } });
    room({ id: sent().id, error: { code: 1006, message: 'lost' } });
  }
  expect(got()).toMatchObject({ id: 1, error: { code: 1006 } });
  host({ id: 2, method: 'tools/call', params: { name: 'x' } });
  room({ id: 2, error: { code: 1006, message: 'lost' } });
  expect(got()).toMatchObject({ id: 2, error: { code: 1006 } });
});
