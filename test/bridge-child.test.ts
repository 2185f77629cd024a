import { beforeEach, expect, test } from 'vitest';
import { ChildSide } from '../src/bridge-child.ts';
import { VirtualClock } from './virtual-clock.ts';

const META = 'io.modelcontextprotocol';
const [ADA, BOB] = ['did:key:ada', 'did:key:bob'];
const INFO = { name: 'old', version: '2' };

let toChild: any[];
let toRoom: any[];
let events: any[];
let clock: VirtualClock;
let side: ChildSide;

function make(isPublic = false): void {
  toChild = [];
  toRoom = [];
  events = [];
  clock = new VirtualClock();
  let n = 0;
  side = new ChildSide({
    toChild: (message) => void toChild.push(message),
    toRoom: (message) => void toRoom.push(message),
    onEvent: (event) => void events.push(event),
    clock,
    random: (bytes) => new Uint8Array(bytes).fill(++n),
    isPublic,
  });
}
beforeEach(() => make());

const asked = (): any => toChild.at(-1);
const answered = (): any => toRoom.at(-1);
const child = (message: object): void => side.fromChild({ jsonrpc: '2.0', ...message });

function room(message: { params?: object; method: string; id?: number }, from = ADA, meta: object = {}): void {
  const _meta = { [`${META}/protocolVersion`]: '2026-07-28', [`${META}/clientCapabilities`]: {}, ...meta };
  side.fromRoom({ jsonrpc: '2.0', ...message, params: { ...message.params, _meta } } as any, from);
}

const CAPABILITIES = {
  tools: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  logging: {},
  tasks: { list: {} },
};

function greet(capabilities: object = CAPABILITIES): void {
  side.started();
  if (asked().method === 'server/discover') child({ id: asked().id, error: { code: -32601, message: 'what?' } });
  expect(asked()).toMatchObject({ method: 'initialize', params: { protocolVersion: '2025-11-25' } });
  child({
    id: asked().id,
    result: { protocolVersion: '2025-06-18', capabilities, serverInfo: INFO, instructions: 'Ask.' },
  });
}

test('an old server is greeted once, and asked in its own words', () => {
  room({ id: 1, method: 'tools/list' });
  expect(toChild).toEqual([]);
  greet();
  expect(events).toEqual([{ kind: 'server-ready', server: INFO, version: '2025-06-18' }]);
  expect(toChild.slice(-2)).toEqual([
    { jsonrpc: '2.0', method: 'notifications/initialized' },
    { jsonrpc: '2.0', id: 1, method: 'tools/list', params: {} },
  ]);
  child({ id: 1, result: { tools: [] } });
  const _meta = { [`${META}/serverInfo`]: INFO };
  const kept = { ttlMs: 0, cacheScope: 'private' };
  expect(answered()).toEqual({ jsonrpc: '2.0', id: 1, result: { tools: [], resultType: 'complete', ...kept, _meta } });
  room({ id: 2, method: 'server/discover' }, BOB);
  expect(answered().result).toMatchObject({
    resultType: 'complete',
    supportedVersions: ['2026-07-28'],
    instructions: 'Ask.',
    ttlMs: 60_000,
    cacheScope: 'public',
    _meta,
  });
  expect(answered().result.capabilities).not.toHaveProperty('tasks');
  room({ id: 3, method: 'tools/call', params: { name: 'x', task: {}, inputResponses: {} } }, ADA, {
    traceparent: '00-1-2-03',
    progressToken: 'p',
    'chat.technocore/from': ADA,
  });
  expect(asked().params).toEqual({ name: 'x', _meta: { traceparent: '00-1-2-03', progressToken: asked().id } });
  child({ method: 'notifications/progress', params: { progressToken: asked().id, progress: 1 } });
  expect(answered()).toEqual({
    jsonrpc: '2.0',
    method: 'notifications/progress',
    params: { progressToken: 'p', progress: 1 },
  });
  child({ id: asked().id, result: { content: [], structuredContent: 0 } });
  expect(answered()).toEqual({
    jsonrpc: '2.0',
    id: 3,
    result: { content: [], structuredContent: 0, resultType: 'complete', _meta },
  });
});

test.each([
  [-32000, -32603],
  [-32002, -32602],
  [-32601, -32601],
  [4001, 4001],
])('its error %s is told as %s', (code, told) => {
  greet();
  room({ id: 1, method: 'resources/read', params: { uri: 'a:b' } });
  child({ id: asked().id, error: { code, message: 'no', data: 1 } });
  expect(answered()).toEqual({ jsonrpc: '2.0', id: 1, error: { code: told, message: 'no', data: 1 } });
});

test.each(['initialize', 'ping', 'logging/setLevel', 'resources/subscribe', 'tasks/get', 'constructor'])(
  '%s does not reach an old server',
  (method) => {
    greet();
    const { length } = toChild;
    room({ id: 1, method });
    expect(answered()).toMatchObject({ id: 1, error: { code: -32601 } });
    expect(toChild.length).toBe(length);
  },
);

test('a server that does not answer the probe is an old one; one that dies of it is not probed again', async () => {
  side.started();
  await clock.advance(5000);
  expect(asked().method).toBe('initialize');
  side.stopped(100);
  side.started();
  expect(asked().method).toBe('server/discover');
  side.stopped(100);
  side.started();
  expect(asked().method).toBe('initialize');
  await clock.advance(120_000);
  room({ id: 1, method: 'tools/list' });
  expect(answered()).toMatchObject({ id: 1, error: { code: -32603, message: 'The server does not answer' } });
});

test('one that refuses, or speaks other revisions, is told to the callers', () => {
  side.started();
  child({ id: asked().id, error: { code: -32022, message: 'no', data: { supported: ['2027-01-01'] } } });
  room({ id: 1, method: 'tools/list' });
  expect(answered()).toMatchObject({ error: { message: expect.stringContaining('2027-01-01') } });
  side.stopped(0);
  side.started();
  child({ id: asked().id, error: { code: -32022, message: 'no', data: { supported: ['2025-11-25'] } } });
  expect(asked().method).toBe('initialize');
  room({ id: 2, method: 'tools/list' });
  child({ id: asked().id, error: { code: 1, message: 'no license' } });
  expect(asked()).toMatchObject({ method: 'initialize', params: { protocolVersion: '2024-11-05' } });
  child({ id: asked().id, error: { code: 1, message: 'no license' } });
  expect(answered()).toMatchObject({ id: 2, error: { message: 'The server refused: no license' } });
});

test('a server that is slow to start is taken for what it is in the end', async () => {
  const info = { supportedVersions: ['2026-07-28'], _meta: { [`${META}/serverInfo`]: INFO } };
  side.started();
  const probe = asked().id;
  await clock.advance(5000);
  const hello = asked().id;
  child({ id: probe, result: info });
  child({ id: hello, error: { code: -32022, message: 'no', data: { supported: ['2026-07-28'] } } });
  expect(events).toEqual([{ kind: 'server-ready', server: INFO, version: '2026-07-28' }]);

  make();
  side.started();
  await clock.advance(5000);
  child({ id: asked().id, error: { code: -32022, message: 'no', data: { supported: ['2026-07-28'] } } });
  expect(events).toMatchObject([{ kind: 'server-ready', version: '2026-07-28' }]);

  make();
  side.started();
  const late = asked().id;
  await clock.advance(125_000);
  expect(events.map(({ kind }) => kind)).toEqual(['server-unusable']);
  child({ id: late, error: { code: -32601, message: 'what?' } });
  child({ id: asked().id, result: { protocolVersion: '2024-11-05', capabilities: {}, serverInfo: INFO } });
  room({ id: 1, method: 'tools/list' });
  expect(asked()).toMatchObject({ method: 'tools/list' });

  // What an earlier process was asked is not answered by a later one.
  side.stopped(0);
  side.started();
  child({ id: late, result: info });
  room({ id: 2, method: 'tools/list' });
  expect(asked().method).toBe('server/discover');
});

test('one of our revision gets what comes as it came, without roots', () => {
  side.started();
  const result = { supportedVersions: ['2026-07-28'], _meta: { [`${META}/serverInfo`]: INFO } };
  child({ id: asked().id, result });
  const capabilities = { roots: {}, sampling: {} };
  room(
    {
      id: 5,
      method: 'tools/call',
      params: { name: 'x', inputResponses: { r: { roots: [] }, e: { action: 'accept' } } },
    },
    ADA,
    { [`${META}/clientCapabilities`]: capabilities },
  );
  expect(asked()).toMatchObject({ id: 5, params: { name: 'x', inputResponses: { e: { action: 'accept' } } } });
  expect(asked().params.inputResponses).not.toHaveProperty('r');
  expect(asked().params._meta[`${META}/clientCapabilities`]).toEqual({ sampling: {} });
  const answer = { jsonrpc: '2.0', id: 5, result: { resultType: 'complete', content: [] } };
  side.fromChild(answer);
  expect(answered()).toBe(answer);
  side.fromChild(answer);
  expect(toRoom.length).toBe(1);
  room({ id: 6, method: 'subscriptions/listen', params: { notifications: {} } });
  const notice = {
    jsonrpc: '2.0',
    method: 'notifications/tools/list_changed',
    params: { _meta: { [`${META}/subscriptionId`]: 6 } },
  };
  side.fromChild(notice);
  expect(answered()).toBe(notice);
  side.fromRoom({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 6 } }, ADA);
  expect(asked().method).toBe('notifications/cancelled');
  child({ id: 9, method: 'roots/list' });
  expect(asked()).toMatchObject({ id: 9, error: { code: -32601 } });
});

test('what is under way when the server stops is interrupted; what comes meanwhile waits a little', async () => {
  greet();
  room({ id: 1, method: 'tools/call', params: { name: 'x' } });
  side.stopped(200);
  expect(answered()).toMatchObject({ id: 1, error: { code: 1001 } });
  room({ id: 2, method: 'tools/list' });
  expect(toRoom.length).toBe(1);
  greet();
  expect(asked()).toMatchObject({ method: 'tools/list' });
  side.stopped(9000);
  room({ id: 3, method: 'tools/list' });
  expect(answered()).toMatchObject({ id: 3, error: { code: 1002, data: { retryAfterMs: 9000 } } });
  room({ id: 4, method: 'tools/list' });
  await clock.advance(5000);
  for (let id = 100; id < 357; id++) room({ id, method: 'tools/list' });
  expect(answered()).toMatchObject({ id: 356, error: { code: 1002 } });
});

test('cancelling reaches the server under its own id, and its late answer nobody', () => {
  greet();
  room({ id: 8, method: 'tools/call', params: { name: 'x' } });
  const { id } = asked();
  room({ method: 'notifications/cancelled', params: { requestId: 7 } });
  expect(asked().id).toBe(id);
  side.fromRoom({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 8, reason: 'enough' } }, ADA);
  expect(asked()).toEqual({
    jsonrpc: '2.0',
    method: 'notifications/cancelled',
    params: { requestId: id, reason: 'enough' },
  });
  child({ id, result: { content: [] } });
  expect(toRoom).toEqual([]);
  side.stopped(0);
  room({ id: 9, method: 'tools/list' });
  side.fromRoom({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 9 } }, ADA);
  greet();
  expect(asked().method).toBe('notifications/initialized');
});

const ABLE = { [`${META}/clientCapabilities`]: { elicitation: {}, sampling: {} } };
const call = (id: number, more: object = {}, from = ADA, meta: object = ABLE): void =>
  room({ id, method: 'tools/call', params: { name: 'purge', arguments: { dir: 'old' }, ...more } }, from, meta);

test('a question of an old server becomes the answer to its caller, who comes back', async () => {
  greet();
  call(1);
  const { id } = asked();
  child({ id: 'e', method: 'elicitation/create', params: { message: 'Sure?', _meta: { progressToken: 1 } } });
  const { result } = answered();
  expect(answered().id).toBe(1);
  expect(result).toMatchObject({ resultType: 'input_required' });
  const [[key, question]] = Object.entries(result.inputRequests) as [[string, any]];
  expect(question).toEqual({ method: 'elicitation/create', params: { message: 'Sure?' } });

  // Not for others, not for another call, not with a state that is none.
  const inputResponses = { [key]: { action: 'accept', content: {} }, other: {} };
  const back = { inputResponses, requestState: result.requestState };
  call(2, back, BOB);
  expect(answered()).toMatchObject({ id: 2, error: { code: -32602 } });
  call(3, { ...back, name: 'other' });
  expect(answered()).toMatchObject({ id: 3, error: { code: -32602 } });
  call(4, { ...back, requestState: 'x' });
  expect(answered()).toMatchObject({ id: 4, error: { code: -32602 } });
  call(5, { ...back, inputResponses: [] });
  expect(answered()).toMatchObject({ id: 5, error: { code: -32602 } });

  call(6, back);
  expect(asked()).toEqual({ jsonrpc: '2.0', id: 'e', result: { action: 'accept', content: {} } });
  call(7, back);
  expect(answered()).toMatchObject({ id: 7, error: { code: -32602 } });
  child({ id, result: { content: [{ type: 'text', text: 'done' }] } });
  expect(answered()).toMatchObject({ id: 6, result: { resultType: 'complete', content: [{ text: 'done' }] } });
  expect(clock.sleepers).toBe(0);
});

test('a page that must be opened first is a question to the person, once', () => {
  greet();
  const able = { [`${META}/clientCapabilities`]: { elicitation: { form: {}, url: {} } } };
  const page = { mode: 'url', elicitationId: 'e1', url: 'https://example.org/sign-in', message: 'Sign in' };
  const first = (elicitations: unknown): void =>
    child({ id: asked().id, error: { code: -32042, message: 'Sign in first', data: { elicitations } } });
  const params = { name: 'x', arguments: { a: 1 } };
  room({ id: 1, method: 'tools/call', params });
  first([page]);
  expect(answered().error).toEqual({
    code: -32021,
    message: 'Sign in first',
    data: { requiredCapabilities: { elicitation: { url: {} } } },
  });
  room({ id: 2, method: 'tools/call', params }, ADA, able);
  first([page, 5, { url: 7, message: 'no' }]);
  const { inputRequests, ...result } = answered().result;
  expect(result).toEqual({ resultType: 'input_required', _meta: { [`${META}/serverInfo`]: INFO } });
  const [[key, question]] = Object.entries(inputRequests) as [[string, any]];
  expect(question).toEqual({
    method: 'elicitation/create',
    params: { mode: 'url', message: 'Sign in', url: 'https://example.org/sign-in' },
  });
  const again = (id: number, action: string): void =>
    room({ id, method: 'tools/call', params: { ...params, inputResponses: { [key]: { action } } } }, ADA, able);
  const before = toChild.length;
  again(3, 'decline');
  expect([answered().error.code, toChild.length]).toEqual([-32603, before]);
  again(4, 'accept');
  expect(asked().params).toEqual(params);
  // Another page is another question; the same one is not asked again at once.
  first([page, { ...page, url: 'https://example.org/pay' }]);
  expect(Object.keys(answered().result.inputRequests)).toHaveLength(2);
  again(5, 'accept');
  first([{ ...page, elicitationId: 'e2' }]);
  expect(answered().error).toMatchObject({ code: -32603, message: expect.stringContaining('call again') });
  again(6, 'accept');
  child({ id: asked().id, result: { content: [] } });
  expect(answered()).toMatchObject({ id: 6, result: { resultType: 'complete' } });
  room({ id: 7, method: 'tools/list' }, ADA, able);
  first([page]);
  expect(answered().error.code).toBe(-32603);
  room({ id: 8, method: 'tools/call', params }, ADA, able);
  first('none');
  expect(answered().error.code).toBe(-32603);
  make(true);
  greet();
  room({ id: 9, method: 'tools/call', params }, ADA, able);
  first([page]);
  expect(answered().error.code).toBe(-32603);
});

test('a second question while the caller is away, and an answer that comes then', () => {
  greet();
  call(1);
  const { id } = asked();
  child({ id: 1, method: 'elicitation/create', params: { message: 'one' } });
  child({ id: 2, method: 'sampling/createMessage', params: { maxTokens: 1 } });
  expect(toRoom.length).toBe(1);
  const first = answered().result;
  const [key] = Object.keys(first.inputRequests);
  call(2, { requestState: first.requestState, inputResponses: { [key!]: { action: 'decline' } } });
  const second = answered().result;
  expect(Object.values(second.inputRequests)).toEqual([{ method: 'sampling/createMessage', params: { maxTokens: 1 } }]);
  expect(second.requestState).not.toBe(first.requestState);
  child({ method: 'notifications/cancelled', params: { requestId: 2 } });
  child({ id, result: { content: [] } });
  expect(answered().id).toBe(2);
  call(3, { requestState: second.requestState, inputResponses: {} });
  expect(answered()).toMatchObject({ id: 3, result: { resultType: 'complete', content: [] } });
});

test('a caller who does not come back is not waited for', async () => {
  greet();
  call(1);
  const { id } = asked();
  child({ id: 'q', method: 'elicitation/create', params: { message: 'one' } });
  await clock.advance(600_000);
  expect(toChild.slice(-2)).toMatchObject([
    { id: 'q', error: {} },
    { method: 'notifications/cancelled', params: { requestId: id } },
  ]);
});

test('questions that nobody can be meant by are refused by name', () => {
  greet();
  const ask = (method: string): any => {
    child({ id: 'q', method, params: {} });
    return asked().error;
  };
  expect(ask('roots/list')).toMatchObject({ code: -32601, message: expect.stringContaining('roots/list') });
  expect(ask('elicitation/create').message).toContain('does not offer');
  expect(ask('constructor').message).toContain('not supported over a room');
  call(1, {}, ADA, {});
  expect(ask('sampling/createMessage').message).toContain('does not offer');
  call(2, {}, BOB);
  expect(ask('sampling/createMessage').message).toContain('several callers');
  child({ id: 'p', method: 'ping' });
  expect(asked()).toEqual({ jsonrpc: '2.0', id: 'p', result: {} });
  make(true);
  greet();
  expect(toChild[1].params.capabilities).toEqual({});
  call(1);
  expect(ask('sampling/createMessage').message).toContain('public server');
  expect(toRoom).toEqual([]);
});

test('a server that asks without end is ended', () => {
  greet();
  call(1);
  let requestState: string | undefined;
  for (let round = 0; round <= 10; round++) {
    child({ id: `q${round}`, method: 'elicitation/create', params: {} });
    const { result, error } = answered();
    if (error) break;
    requestState = result.requestState;
    call(round + 2, { requestState, inputResponses: { [Object.keys(result.inputRequests)[0]!]: {} } });
  }
  expect(answered()).toMatchObject({ id: 11, error: { message: expect.stringContaining('more than 10') } });
});

test('its log lines: one level for all, the most that anybody wants', () => {
  greet();
  const level = (name: string): object => ({ [`${META}/logLevel`]: name });
  call(1, {}, ADA, level('warning'));
  call(2, {}, ADA, level('error'));
  call(3, {}, ADA, level('debug'));
  const levels = toChild.filter(({ method }) => method === 'logging/setLevel').map(({ params }) => params.level);
  expect(levels).toEqual(['warning', 'debug']);
  const line = { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 1 } };
  side.fromChild(line);
  expect(answered()).toBe(line);
  make(true);
  greet();
  side.fromChild(line);
  expect(toRoom).toEqual([]);
});

test('of a folder in which more changes than can be told, the folder is told of, and nothing is kept for who has left', async () => {
  greet();
  listen(1, { resourceSubscriptions: ['a:b'] });
  listen(2, { resourceSubscriptions: ['a:b'] });
  toRoom.length = 0;
  for (let i = 0; i < 5000; i++) child({ method: 'notifications/resources/updated', params: { uri: `a:b/${i}` } });
  room({ method: 'notifications/cancelled', params: { requestId: 2 } });
  await clock.advance(600_000);
  expect(toRoom.length).toBeLessThan(150);
  const mine = toRoom.filter(({ params }) => params._meta[`${META}/subscriptionId`] === 1);
  const uris = mine.map(({ params }) => params.uri);
  expect(new Set(uris).size).toBe(uris.length);
  expect(uris).toContain('a:b');
  expect(uris).toContain('a:b/0');
});

const listen = (id: number, notifications: object): void =>
  room({ id, method: 'subscriptions/listen', params: { notifications } });
const tag = (id: number): object => ({ [`${META}/subscriptionId`]: id });

test('subscriptions: each hears what it asked for, under its own name', async () => {
  greet();
  listen(1, { toolsListChanged: true, promptsListChanged: true, resourceSubscriptions: ['a:b', 'a:b'] });
  expect(answered()).toEqual({
    jsonrpc: '2.0',
    method: 'notifications/subscriptions/acknowledged',
    params: { notifications: { toolsListChanged: true, resourceSubscriptions: ['a:b'] }, _meta: tag(1) },
  });
  expect(toChild.filter(({ method }) => method === 'resources/subscribe').length).toBe(1);
  listen(2, { resourceSubscriptions: ['a:b'] });
  listen(3, {});
  room({ id: 4, method: 'subscriptions/listen' });
  expect(answered()).toMatchObject({ id: 4, error: { code: -32602 } });
  const notices = (): any[] =>
    toRoom.filter(({ method }) => method?.endsWith('changed') || method?.endsWith('updated'));
  child({ method: 'notifications/tools/list_changed' });
  child({ method: 'notifications/prompts/list_changed' });
  child({ method: 'notifications/resources/updated', params: { uri: 'a:b/c' } });
  child({ method: 'notifications/resources/updated', params: { uri: 'a:bc' } });
  await clock.advance(0);
  expect(notices()).toEqual([
    { jsonrpc: '2.0', method: 'notifications/tools/list_changed', params: { _meta: tag(1) } },
    { jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri: 'a:b/c', _meta: tag(1) } },
    { jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri: 'a:b/c', _meta: tag(2) } },
  ]);
  // A burst is few notices.
  for (let i = 0; i < 1000; i++) child({ method: 'notifications/tools/list_changed' });
  await clock.advance(60_000);
  expect(notices().length).toBeLessThan(20);

  room({ method: 'notifications/cancelled', params: { requestId: 1 } });
  expect(asked().method).not.toBe('resources/unsubscribe');
  room({ method: 'notifications/cancelled', params: { requestId: 2 } });
  expect(asked()).toMatchObject({ method: 'resources/unsubscribe', params: { uri: 'a:b' } });
  side.close();
  expect(answered()).toMatchObject({ id: 3, result: { resultType: 'complete', _meta: tag(3) } });
});

test('subscriptions outlive the server, and are told that it may be another one', async () => {
  greet();
  listen(1, { toolsListChanged: true, resourceSubscriptions: ['a:b'] });
  side.stopped(0);
  greet();
  expect(asked()).toMatchObject({ method: 'resources/subscribe', params: { uri: 'a:b' } });
  await clock.advance(0);
  expect(answered()).toEqual({ jsonrpc: '2.0', method: 'notifications/tools/list_changed', params: { _meta: tag(1) } });
});

test('what a server may say wrong is skipped', () => {
  greet();
  const before = toRoom.length;
  for (const message of [{}, [], [[], 7], { jsonrpc: '2.0', id: 99, result: {} }, { jsonrpc: '1.0', method: 'x' }])
    side.fromChild(message);
  child({ method: 'notifications/progress', params: { progressToken: 99, progress: 1 } });
  child({ id: 'technocore-rpc:probe-1', result: { supportedVersions: ['2026-07-28'] } });
  child({ id: 'technocore-rpc:hello-1-2025-11-25', result: {} });
  expect(toRoom.length).toBe(before);
  call(1);
  side.tooLong(asked().id, 5_000_000);
  expect(answered()).toMatchObject({ id: 1, error: { code: -32603, message: expect.stringContaining('5000000') } });
});
