import { readFileSync } from 'node:fs';
import { Client } from '@modelcontextprotocol/client';
import { describe, expect, test, vi } from 'vitest';
import { createDispatcher, dispatch, tool } from '../src/builtin.ts';
import type { DispatchContext, Dispatcher, DispatcherOptions, Handler } from '../src/dispatch.ts';
import { encode, encodeLong, type Json } from '../src/frames.ts';
import type { Clock } from '../src/http.ts';
import { toolsChanged } from '../src/mcp.ts';
import { compileSchema } from '../src/schema.ts';
import type { Tool, ToolContext } from '../src/tools.ts';
import { BEHAVIOUR, PERSON } from './mcp-fixture.mjs';
import { conforms, definitionOf, recordedCases, specIssues, vectors } from './mcp-vectors.ts';
import { signer, world } from './support.ts';

const { fixture } = vectors;

// --- driving a dispatcher ----------------------------------------------------------------------------------------

const META = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientInfo': { name: 'test', version: '1' },
  'io.modelcontextprotocol/clientCapabilities': {},
};
const able = (capabilities: object) => ({ 'io.modelcontextprotocol/clientCapabilities': capabilities });

/** Lets everything run that needs no timer. */
async function settled(): Promise<void> {
  for (let i = 0; i < 10; i++) await new Promise((resolve) => setImmediate(resolve));
}

/** A clock that stands still until told, and wakes its sleepers in order. */
class HandClock implements Clock {
  #now = 1_000_000;
  sleepers: { at: number; wake: () => void }[] = [];
  now(): number {
    return this.#now;
  }
  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const sleeper = { at: this.#now + ms, wake: resolve };
      this.sleepers.push(sleeper);
      signal?.addEventListener('abort', () => {
        this.sleepers = this.sleepers.filter((s) => s !== sleeper);
        reject(signal.reason);
      });
    });
  }
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms;
    for (;;) {
      await settled();
      const next = this.sleepers.filter((s) => s.at <= end).sort((a, b) => a.at - b.at)[0];
      if (next === undefined) break;
      this.sleepers = this.sleepers.filter((s) => s !== next);
      this.#now = Math.max(this.#now, next.at);
      next.wake();
    }
    this.#now = end;
  }
}

/** A server, and a caller that keeps what it gets. */
class Harness {
  readonly tools: Map<string, Tool> = new Map();
  readonly clock: HandClock = new HandClock();
  readonly frames: any[] = [];
  readonly dispatcher: Dispatcher;
  #id = 0;

  constructor(o: DispatcherOptions = {}) {
    this.dispatcher = createDispatcher({ tools: this.tools, clock: this.clock, serverInfo: fixture.serverInfo, ...o });
  }

  tool(name: string, run: (args: any, context: ToolContext) => unknown, o: any = {}): this {
    const { inputSchema = { type: 'object' }, ...rest } = o;
    tool(name, `The tool ${name}.`, inputSchema, run, { ...rest, tools: this.tools });
    return this;
  }

  send(frame: unknown, context: DispatchContext = {}): Promise<any> {
    const emit = (f: Json): void => {
      conforms(f, definitionOf(frame, f));
      encode(f);
      this.frames.push(f);
    };
    return this.dispatcher.dispatch(frame, { from: 'did:key:a', emit, ...context }).then((answer) => {
      if (answer !== undefined) conforms(answer, definitionOf(frame, answer));
      return answer;
    });
  }

  request(
    method: string,
    params: object = {},
    meta: object = {},
    context?: DispatchContext,
    id: string | number = ++this.#id,
  ): Promise<any> {
    return this.send({ jsonrpc: '2.0', id, method, params: { ...params, _meta: { ...META, ...meta } } }, context);
  }

  async call(
    name: string,
    args: object = {},
    meta: object = {},
    more: object = {},
    context?: DispatchContext,
  ): Promise<any> {
    const answer = await this.request('tools/call', { name, arguments: args, ...more }, meta, context);
    return answer.result ?? answer;
  }

  cancel(requestId: unknown, context?: DispatchContext, reason?: string): Promise<any> {
    return this.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId, reason } }, context);
  }
}

const text = (result: any): string => result.content[0].text;

// --- the vectors -------------------------------------------------------------------------------------------------

describe('the recorded cases', () => {
  recordedCases(async () => {
    const tools = new Map<string, Tool>();
    for (const t of fixture.tools) tool(t.name, t.description, t.inputSchema, BEHAVIOUR[t.name]!, { ...t, tools });
    const d = createDispatcher({ tools, serverInfo: fixture.serverInfo, pageSize: fixture.pageSize });
    // Also what a subscription of an earlier step brings.
    let frames: any[] = [];
    return {
      async exchange(frame) {
        frames = [];
        let pending = true;
        void d.dispatch(frame, { from: 'did:key:vector', emit: (f) => void frames.push(f) }).then((answer) => {
          if (answer !== undefined) frames.push(answer);
          pending = false;
        });
        await settled();
        return { frames, pending };
      },
      close: () => d.close(),
    };
  });
});

// --- the rest ----------------------------------------------------------------------------------------------------

describe('results', () => {
  const call = (value: unknown, o: object = {}) => new Harness().tool('t', () => value, o).call('t');

  test('text, structured values and ready blocks', async () => {
    const block = { type: 'text', text: 'x' };
    expect(await call('é')).toMatchObject({ content: [{ type: 'text', text: 'é' }] });
    expect(await call('é')).not.toHaveProperty('structuredContent');
    expect(await call({ a: 1 })).toMatchObject({
      content: [{ type: 'text', text: '{"a":1}' }],
      structuredContent: { a: 1 },
    });
    for (const value of [0, false, null, [], [1]]) {
      expect(await call(value)).toMatchObject({
        content: [{ type: 'text', text: JSON.stringify(value) }],
        structuredContent: value,
      });
    }
    expect((await call(undefined)).content).toEqual([]);
    expect((await call(block)).content).toEqual([block]);
    expect((await call([block, { type: 'image', data: 'AA==', mimeType: 'image/png' }])).content).toHaveLength(2);
    expect((await call({ content: [block], isError: true, _meta: { 'org.example/x': 1 } })) as object).toMatchObject({
      content: [block],
      isError: true,
      _meta: { 'org.example/x': 1, 'io.modelcontextprotocol/serverInfo': fixture.serverInfo },
    });
    expect(await call({ structuredContent: 5 })).toMatchObject({
      content: [{ type: 'text', text: '5' }],
      structuredContent: 5,
    });
    expect(
      await call([
        { type: 'resource_link', uri: 'note://a', name: 'a' },
        { type: 'resource', resource: { uri: 'note://b', text: 'b' } },
        { type: 'audio', data: '', mimeType: 'audio/wav' },
      ]),
    ).not.toHaveProperty('structuredContent');
  });

  test('what only looks ready is structured', async () => {
    for (const value of [
      { content: ['a'] },
      { content: [{ type: 'text', text: 'x' }], author: 'b' },
      [{ type: 'text' }],
      { type: 'image', data: 1 },
    ]) {
      expect((await call(value)).structuredContent).toEqual(value);
    }
  });

  test('a result as the protocol writes it is that result', async () => {
    const content = [{ type: 'text', text: 'x' }];
    expect(await call({ resultType: 'complete', content, structuredContent: 0 })).toMatchObject({
      content,
      structuredContent: 0,
    });
    const other = { resultType: 'task', content };
    expect((await call(other)).structuredContent).toEqual(other);
  });

  test('an output schema may be a boolean; lists show it as an object, as MCP demands', async () => {
    expect(await call(1, { outputSchema: true })).toMatchObject({ structuredContent: 1 });
    expect(text(await call(1, { outputSchema: false }))).toContain('output schema');
    const h = new Harness()
      .tool('any', () => 1, { inputSchema: true, outputSchema: true })
      .tool('none', () => 1, { outputSchema: false });
    const { tools } = (await h.request('tools/list')).result;
    expect(tools).toMatchObject([
      { name: 'any', inputSchema: { type: 'object' }, outputSchema: {} },
      { name: 'none', outputSchema: { not: {} } },
    ]);
  });

  test('an output schema is kept, or the call fails', async () => {
    const outputSchema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
    expect(await call({ n: 1 }, { outputSchema })).toMatchObject({ structuredContent: { n: 1 } });
    for (const value of [{ n: 1.5 }, 'text', undefined, { content: [{ type: 'text', text: 'no structure' }] }]) {
      const result = await call(value, { outputSchema });
      expect(result).toMatchObject({ isError: true });
      expect(result).not.toHaveProperty('structuredContent');
      expect(text(result)).toContain('output schema');
    }
    expect(text(await call({ content: [{ type: 'text', text: 'mine' }], isError: true }, { outputSchema }))).toBe(
      'mine',
    );
    expect(await call('a', { outputSchema: { type: 'string' } })).toMatchObject({
      structuredContent: 'a',
      content: [{ text: '"a"' }],
    });
  });

  test('fault 87: a tool that fails is a result, a call that did not happen an error', async () => {
    const h = new Harness();
    const throwing = (error: unknown) => () => {
      throw error;
    };
    h.tool('a', throwing(new Error('disk is full')))
      .tool('b', throwing('text'))
      .tool('c', () => 1n)
      .tool('d', async () => Promise.reject(new Error('')));
    expect(await h.call('a')).toMatchObject({ isError: true, content: [{ text: 'disk is full' }] });
    expect(await h.call('b')).toMatchObject({ isError: true, content: [{ text: 'b failed.' }] });
    expect(await h.call('c')).toMatchObject({ isError: true });
    expect(await h.call('d')).toMatchObject({ isError: true, content: [{ text: 'd failed.' }] });
    for (const name of ['nosuch', '__proto__', 'constructor', 'toString']) {
      expect(await h.call(name)).toMatchObject({ error: { code: -32602 } });
    }
  });

  test('arguments are explained, and only good ones reach the tool', async () => {
    const run = vi.fn(() => 'ok');
    const inputSchema = {
      type: 'object',
      properties: { to: { type: 'string', minLength: 2 }, n: { type: 'integer', maximum: 5 } },
      required: ['to', 'n'],
      additionalProperties: false,
    };
    const h = new Harness().tool('t', run, { inputSchema });
    expect(text(await h.call('t', { to: 'a', n: 1 }))).toMatch(/\/to: String is too short/);
    expect(text(await h.call('t', { to: 'ab' }))).toMatch(/required property "n"/);
    expect(text(await h.call('t', { to: 'ab', n: 1, x: 1 }))).toMatch(/"x"/);
    expect(run).not.toHaveBeenCalled();
    expect(text(await h.call('t', { to: 'ab', n: 5 }))).toBe('ok');
  });

  test('an __proto__ member is checked like any other', async () => {
    const run = vi.fn(() => 'ok');
    const h = new Harness().tool('t', run, {
      inputSchema: { type: 'object', properties: { a: {} }, additionalProperties: false },
    });
    expect(await h.call('t', JSON.parse('{"__proto__":{"a":1}}'))).toMatchObject({ isError: true });
    expect(await h.call('t', JSON.parse('{"constructor":1}'))).toMatchObject({ isError: true });
    expect(run).not.toHaveBeenCalled();
  });

  test('a Standard Schema converts and explains', async () => {
    const inputSchema = {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: async (v: any) =>
          typeof v.n === 'string'
            ? { value: { n: Number(v.n) } }
            : { issues: [{ message: 'digits, please', path: ['n'] }] },
        jsonSchema: { input: () => ({ type: 'object', properties: { n: { type: 'string' } } }), output: () => ({}) },
      },
    };
    const h = new Harness().tool('t', ({ n }) => n + 1, { inputSchema });
    expect((await h.call('t', { n: '41' })).structuredContent).toBe(42);
    expect(text(await h.call('t', { n: 41 }))).toContain('/n: digits, please');
    expect((await h.request('tools/list')).result.tools[0].inputSchema.properties).toEqual({ n: { type: 'string' } });
  });
});

describe('registering', () => {
  const tools = new Map<string, Tool>();
  const define = (name: any, inputSchema: any, o: object = {}) =>
    tool(name, 'd', inputSchema, () => 1, { ...o, tools });

  test('a schema that cannot be used is an error now', () => {
    for (const schema of [
      { type: 'string' },
      { type: 'object', properties: { a: { type: 'strnig' } } },
      { $schema: 'http://json-schema.org/draft-07/schema#', type: 'object' },
      { type: 'object', properties: { a: { $ref: 'https://example.org/a.json' } } },
      { type: 'object', properties: { a: { $ref: '#/$defs/none' } } },
      { type: 'object', properties: { a: { pattern: '(' } } },
      { type: 'object', properties: { a: { items: [{}, {}] } } },
      { type: 'object', required: 'a' },
      { type: 'object', properties: { a: { dependencies: {} } } },
    ]) {
      expect(() => define('t', schema), JSON.stringify(schema)).toThrow(
        expect.objectContaining({ code: 'bad_schema' }),
      );
    }
    expect(() => define('t', {}, { outputSchema: { type: 'x' } })).toThrow(
      expect.objectContaining({ code: 'bad_schema' }),
    );
    expect(tools.size).toBe(0);
  });

  test('names', () => {
    const warn = vi.spyOn(console, 'warn').mockImplementation(() => {});
    expect(() => define('', {})).toThrow(expect.objectContaining({ code: 'bad_name' }));
    expect(() => define('x'.repeat(129), {})).toThrow(expect.objectContaining({ code: 'bad_name' }));
    expect(() => define(7, {})).toThrow(expect.objectContaining({ code: 'bad_name' }));
    define('fine.name-1_x', {});
    expect(warn).not.toHaveBeenCalled();
    define('größe', {});
    expect(warn).toHaveBeenCalledOnce();
    const events: unknown[] = [];
    for (const name of ['größe', 'a/b', 'x'.repeat(65)]) define(name, {}, { onEvent: (e: unknown) => events.push(e) });
    expect(warn).toHaveBeenCalledOnce();
    expect(events).toMatchObject(['größe', 'a/b', 'x'.repeat(65)].map((name) => ({ kind: 'warning', tool: name })));
    expect(tools.get('a/b')).not.toHaveProperty('onEvent');
    warn.mockRestore();
  });

  test('the schema given is neither changed nor kept', async () => {
    const inputSchema = { type: 'object', properties: { a: { type: 'string' } }, required: ['a'] };
    const before = structuredClone(inputSchema);
    const h = new Harness().tool('t', () => 'ok', { inputSchema });
    Object.freeze(inputSchema.properties);
    expect(Object.getOwnPropertyNames(inputSchema)).toEqual(Object.keys(before));
    inputSchema.required = [];
    expect(await h.call('t')).toMatchObject({ isError: true });
  });

  test('what may run twice', () => {
    const h = new Harness();
    h.tool('plain', () => 1)
      .tool('asked', () => 1, { idempotent: true })
      .tool('read', () => 1, { annotations: { readOnlyHint: true } });
    h.tool('not', () => 1, { idempotent: false, annotations: { readOnlyHint: true } });
    const told = (method: string, name: string) =>
      h.dispatcher.idempotent({ jsonrpc: '2.0', id: 1, method, params: { name } });
    expect(['plain', 'asked', 'read', 'not', 'nosuch'].map((name) => told('tools/call', name))).toEqual([
      false,
      true,
      true,
      false,
      false,
    ]);
    expect(told('tools/list', '')).toBe(true);
    expect(h.tools.get('asked')!.annotations).toEqual({ idempotentHint: true });
  });
});

describe('what a request says of itself', () => {
  const h = new Harness().tool('t', () => 'ok');

  test('fault 86: the order in which errors take precedence', async () => {
    const answer = (method: string, meta: any, params: object = {}) =>
      h.send({ jsonrpc: '2.0', id: 1, method, params: { ...params, ...(meta && { _meta: meta }) } });
    const version = 'io.modelcontextprotocol/protocolVersion';
    const capabilities = 'io.modelcontextprotocol/clientCapabilities';
    const code = async (method: string, meta: any, params?: object) => (await answer(method, meta, params)).error?.code;
    expect(await code('nosuch/x', undefined)).toBe(-32601);
    expect(await code('tools/nosuch', undefined)).toBe(-32602);
    expect(await code('tools/nosuch', [])).toBe(-32602);
    expect(await code('tools/nosuch', { [version]: 5 })).toBe(-32602);
    expect(await code('tools/nosuch', { [version]: '2099-01-01' })).toBe(-32022);
    expect(await code('tools/nosuch', { [version]: '2026-07-28' })).toBe(-32602);
    expect(await code('tools/nosuch', { [version]: '2026-07-28', [capabilities]: [] })).toBe(-32602);
    expect(await code('tools/nosuch', { ...META, 'io.modelcontextprotocol/logLevel': 'loud' })).toBe(-32602);
    expect(await code('tools/nosuch', { ...META, progressToken: 1.5 })).toBe(-32602);
    expect(await code('tools/nosuch', META)).toBe(-32601);
    expect(await code('tools/call', META, { name: 5 })).toBe(-32602);
    expect((await answer('tools/list', { ...META, [version]: '2099-01-01' })).error.data).toEqual({
      supported: ['2026-07-28'],
      requested: '2099-01-01',
    });
  });

  test('fault 85: an old handshake is refused by naming the version', async () => {
    for (const protocolVersion of ['2026-07-28', '2025-11-25']) {
      const answer = await h.send({
        jsonrpc: '2.0',
        id: 0,
        method: 'initialize',
        params: { protocolVersion, capabilities: {} },
      });
      expect(answer.error).toMatchObject({
        code: -32022,
        message: 'Unsupported protocol version: use 2026-07-28, without a handshake (initialize)',
        data: { supported: ['2026-07-28'], requested: protocolVersion },
      });
    }
    const bare = await h.send({ jsonrpc: '2.0', id: 0, method: 'initialize', params: { _meta: { progressToken: 1 } } });
    expect(bare.error.data).toEqual({ supported: ['2026-07-28'], requested: '' });
  });

  test('ids: string or integer, else an error without id', async () => {
    for (const id of [null, 1.5, true, {}, 2 ** 53]) {
      const answer = await h.send({ jsonrpc: '2.0', id, method: 'tools/list', params: { _meta: META } });
      expect(answer).toMatchObject({ error: { code: -32600 } });
      expect(answer).not.toHaveProperty('id');
    }
  });

  test('plain methods stay plain JSON-RPC beside tools', async () => {
    const methods = new Map<string, Handler>([
      ['ping', () => 'pong'],
      ['add', ([a, b]: number[]) => a! + b!],
    ]);
    const d = createDispatcher({ methods, tools: h.tools });
    const ping = { jsonrpc: '2.0', id: null, method: 'ping' };
    expect(await d.dispatch(ping)).toEqual({ jsonrpc: '2.0', id: null, result: 'pong' });
    expect(await d.dispatch([ping, { ...ping, id: 2 }])).toHaveLength(2);
    expect(await d.dispatch('[')).toStrictEqual({ jsonrpc: '2.0', error: { code: -32700, message: 'Parse error' } });
    expect(await d.dispatch([ping, { jsonrpc: '2.0', method: 'tools/list' }])).toStrictEqual({
      jsonrpc: '2.0',
      error: { code: -32600, message: expect.any(String) },
    });
  });

  test('without tools MCP names are nothing special, an empty map is enough', async () => {
    const discover = { jsonrpc: '2.0', id: 1, method: 'server/discover', params: { _meta: META } };
    expect(await dispatch(discover, {}, { methods: new Map() })).toMatchObject({ error: { code: -32601 } });
    expect(await dispatch([discover], {}, { methods: new Map() })).toHaveLength(1);
    const tools = new Map<string, Tool>();
    expect(await dispatch(discover, {}, { tools })).toMatchObject({ result: { supportedVersions: ['2026-07-28'] } });
    const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
    expect(await dispatch(discover, {}, { tools })).toMatchObject({
      result: { _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'technocore-rpc', version } } },
    });
  });

  test('a malformed notification of ours is not answered', async () => {
    for (const params of ['x', 5, [], null]) {
      expect(await h.send({ jsonrpc: '2.0', method: 'notifications/cancelled', params })).toBe(undefined);
      expect(await h.send({ jsonrpc: '1.0', method: 'tools/list', params })).toBe(undefined);
    }
  });

  test('the context holds the whole of _meta', async () => {
    let meta: unknown;
    const own = new Harness().tool('t', (_, context) => void (meta = context.meta));
    await own.call('t', {}, { traceparent: '00-x', 'org.example/y': [1] });
    expect(meta).toEqual({ ...META, traceparent: '00-x', 'org.example/y': [1] });
  });
});

describe('lists', () => {
  async function pages(h: Harness, context?: DispatchContext, id: string | number = 'page'): Promise<any[][]> {
    const all: any[][] = [];
    let cursor: string | undefined;
    do {
      const answer = await h.request('tools/list', cursor === undefined ? {} : { cursor }, {}, context, id);
      expect(encodeLong(answer).length).toBeLessThanOrEqual(context?.limit ?? 4096);
      all.push(answer.result.tools);
      cursor = answer.result.nextCursor;
    } while (cursor !== undefined);
    return all;
  }

  const many = new Harness();
  const random = seeded(7);
  for (let i = 0; i < 500; i++) {
    const properties: { [name: string]: object } = {};
    for (let k = 0; k < 1 + random(18); k++)
      properties[`räum${k}`] = { type: 'string', description: 'é'.repeat(random(14)) };
    many.tool(`tool_${i}`, () => i, { inputSchema: { type: 'object', properties }, title: '名前' });
  }

  test('500 tools with long schemas come whole through frames of 4,096 characters', async () => {
    const names = (all: any[][]) => all.flat().map((t) => t.name);
    const first = await pages(many);
    expect(names(first)).toEqual([...many.tools.keys()]);
    expect(names(await pages(many))).toEqual(names(first));
    // No page could have taken one more.
    first.slice(0, -1).forEach((page, i) => {
      const [next] = first[i + 1]!;
      const answer = { jsonrpc: '2.0', id: 'page', result: { tools: [...page, next] } };
      expect(encodeLong(answer).length).toBeGreaterThan(4096 - 300);
    });
    expect(names(await pages(many, undefined, 'i'.repeat(400)))).toEqual(names(first));
    expect(names(await pages(many, { limit: 3000 }))).toEqual(names(first));
  });

  test('a cursor is one of ours, and "" is none', async () => {
    const [{ name }] = (await pages(many))[0]!;
    for (const cursor of ['', 'page-two', name, 5, null, {}, Buffer.from('after nosuch').toString('base64url')]) {
      expect(await many.request('tools/list', { cursor })).toMatchObject({ error: { code: -32602 } });
    }
  });

  test('a page survives changes before it, and a lost place is an error', async () => {
    const h = new Harness({ pageSize: 2 });
    for (const name of ['a', 'b', 'c', 'd']) h.tool(name, () => 1);
    const { nextCursor } = (await h.request('tools/list')).result;
    h.tools.delete('a');
    expect((await h.request('tools/list', { cursor: nextCursor })).result.tools.map((t: any) => t.name)).toEqual([
      'c',
      'd',
    ]);
    h.tools.delete('b');
    expect(await h.request('tools/list', { cursor: nextCursor })).toMatchObject({ error: { code: -32602 } });
  });

  test('what fits no frame stands alone on its page', async () => {
    const h = new Harness()
      .tool('a', () => 1)
      .tool('b', () => 1, { title: 'x'.repeat(5000) })
      .tool('c', () => 1);
    const first = (await h.request('tools/list')).result;
    expect(first.tools.map((t: any) => t.name)).toEqual(['a']);
    const second = (await h.request('tools/list', { cursor: first.nextCursor })).result;
    expect(second.tools.map((t: any) => t.name)).toEqual(['b']);
    const third = (await h.request('tools/list', { cursor: second.nextCursor })).result;
    expect(third.tools.map((t: any) => t.name)).toEqual(['c']);
    expect(third).not.toHaveProperty('nextCursor');
  });

  test('no tools, one empty page', async () => {
    expect((await new Harness().request('tools/list')).result.tools).toEqual([]);
  });
});

describe('progress and log lines', () => {
  const token = { progressToken: 0 };

  test('rising, tagged with the request, and none after the answer', async () => {
    let late: ToolContext | undefined;
    const h = new Harness().tool('t', (_, context) => {
      late = context;
      for (const done of [1, 1, 0, Number.NaN, 1.5, Number.POSITIVE_INFINITY, '2'])
        context.progress(done as any, 3, 'm');
    });
    await h.request('tools/call', { name: 't' }, token, {}, 'p');
    late!.progress(9);
    late!.log('error', 'late');
    expect(h.frames.map((f) => f.params)).toEqual(
      [1, 1.5].map((progress) => ({
        progressToken: 0,
        progress,
        total: 3,
        message: 'm',
        _meta: { 'chat.technocore/requestId': 'p' },
      })),
    );
  });

  test('what is no number or text is left out of a notice', async () => {
    const h = new Harness().tool('t', (_, { progress, log }: any) => {
      progress(1, '3', 4);
      progress(2, Number.NaN);
      log('error', 'x', 7);
    });
    await h.request('tools/call', { name: 't' }, { ...token, 'io.modelcontextprotocol/logLevel': 'debug' }, {}, 'p');
    const _meta = { 'chat.technocore/requestId': 'p' };
    expect(h.frames.map((f) => f.params)).toEqual([
      { progressToken: 0, progress: 1, _meta },
      { progressToken: 0, progress: 2, _meta },
      { level: 'error', data: 'x', _meta },
    ]);
  });

  test('of progress too long for a message the words are left out, of log lines it is said how many', async () => {
    const h = new Harness().tool('t', (_, { progress, log }) => {
      progress(1, 2, 'é'.repeat(1000));
      log('error', 'é'.repeat(1000));
      log('error', 'short');
    });
    await h.request('tools/call', { name: 't' }, { ...token, 'io.modelcontextprotocol/logLevel': 'error' });
    expect(h.frames.map(({ params: { _meta, ...rest } }) => rest)).toEqual([
      { progressToken: 0, progress: 1, total: 2 },
      { level: 'error', data: 'short' },
      { level: 'warning', data: '1 more log lines are left out', logger: 'technocore-rpc' },
    ]);
  });

  test('throttled: a burst, then one a second, the latest wins', async () => {
    let go: (() => void) | undefined;
    const h = new Harness().tool('t', async (_, { progress }) => {
      for (let i = 1; i <= 100; i++) progress(i);
      await new Promise<void>((resolve) => (go = resolve));
      progress(101);
    });
    const done = h.call('t', {}, token);
    await settled();
    const told = () => h.frames.map((f) => f.params.progress);
    expect(told()).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    await h.clock.advance(1000);
    expect(told().slice(10)).toEqual([100]);
    await h.clock.advance(60_000);
    expect(told()).toHaveLength(11);
    expect(h.clock.sleepers).toEqual([]);
    go!();
    await done;
    expect(told().slice(11)).toEqual([101]);
  });

  test('a call that ends leaves no sleeper', async () => {
    const h = new Harness().tool('t', (_, { progress }) => {
      for (let i = 1; i <= 20; i++) progress(i);
    });
    await h.call('t', {}, token);
    await settled();
    expect(h.clock.sleepers).toEqual([]);
    expect(h.frames).toHaveLength(10);
  });

  test('log lines over the budget are counted, and the caller is told', async () => {
    const h = new Harness().tool('t', (_, { log }) => {
      for (let i = 0; i < 25; i++) log('info', { i, big: 1n as unknown as Json });
      log('debug', 'below');
    });
    await h.call('t', {}, { 'io.modelcontextprotocol/logLevel': 'info' });
    expect(h.frames).toHaveLength(11);
    expect(h.frames[0].params).toEqual({
      level: 'info',
      data: '[object Object]',
      _meta: { 'chat.technocore/requestId': 1 },
    });
    expect(h.frames[10].params).toMatchObject({ level: 'warning', data: '15 more log lines are left out' });
  });
});

describe('cancelling', () => {
  function hanging(): { h: Harness; seen: { aborted: unknown } } {
    const seen: { aborted: unknown } = { aborted: undefined };
    const h = new Harness().tool('hang', (_, { signal, progress }) => {
      signal.addEventListener('abort', () => {
        seen.aborted = signal.reason;
        progress(1);
      });
      return new Promise(() => {});
    });
    return { h, seen };
  }

  test('the handler hears of it, the caller of nothing', async () => {
    const { h, seen } = hanging();
    const answer = h.request('tools/call', { name: 'hang' }, { progressToken: 'p' }, {}, 'c');
    await settled();
    expect(await h.cancel('c', {}, 'enough')).toBe(undefined);
    expect(await answer).toBe(undefined);
    expect(seen.aborted).toMatchObject({ name: 'AbortError', message: 'enough' });
    expect(h.frames).toEqual([]);
  });

  test('only by the key that asked, and by the id with its type', async () => {
    const { h, seen } = hanging();
    let answered = false;
    void h.request('tools/call', { name: 'hang' }, {}, {}, 1).then(() => (answered = true));
    await settled();
    for (const [id, context] of [
      [1, { from: 'did:key:b' }],
      ['1', {}],
      [1.5, {}],
      [null, {}],
      [{ id: 1 }, {}],
      ['1 did:key:a', {}],
    ] as [unknown, DispatchContext][]) {
      await h.cancel(id, context);
    }
    await settled();
    expect([answered, seen.aborted]).toEqual([false, undefined]);
    await h.cancel(1);
    await settled();
    expect(answered).toBe(true);
  });

  test('a late result of a cancelled call is dropped, also when its id is in use again', async () => {
    let release: ((value: string) => void)[] = [];
    const h = new Harness().tool('t', () => new Promise<string>((resolve) => release.push(resolve)));
    const first = h.request('tools/call', { name: 't' }, {}, {}, 'x');
    await settled();
    await h.cancel('x');
    const second = h.request('tools/call', { name: 't' }, {}, {}, 'x');
    await settled();
    release[0]!('old');
    await settled();
    expect(await h.request('tools/list', {}, {}, {}, 'x')).toMatchObject({ error: { code: -32600 } });
    release[1]!('new');
    release = [];
    expect(await first).toBe(undefined);
    expect(text((await second).result)).toBe('new');
  });

  test('cancelled before it ran, a tool does not run', async () => {
    const run = vi.fn();
    let valid: (() => void) | undefined;
    const validate = () => new Promise((resolve) => (valid = () => resolve({ value: {} })));
    const h = new Harness().tool('t', run, { inputSchema: { '~standard': { validate } } });
    const answer = h.request('tools/call', { name: 't' }, {}, {}, 'x');
    await settled();
    await h.cancel('x');
    valid!();
    expect(await answer).toBe(undefined);
    await settled();
    expect(run).not.toHaveBeenCalled();
  });

  test('an id in use is refused for its key, and free for others', async () => {
    const { h } = hanging();
    void h.request('tools/call', { name: 'hang' }, {}, {}, 'x');
    await settled();
    expect(await h.request('tools/list', {}, {}, {}, 'x')).toMatchObject({ id: 'x', error: { code: -32600 } });
    expect(await h.request('tools/list', {}, {}, { from: 'did:key:b' }, 'x')).toHaveProperty('result');
    await h.cancel('x');
    expect(await h.request('tools/list', {}, {}, {}, 'x')).toHaveProperty('result');
  });

  test('the signal of the server aborts the handler, whose answer still goes out', async () => {
    const server = new AbortController();
    const h = new Harness().tool(
      't',
      (_, { signal }) => new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
    );
    const answer = h.call('t', {}, {}, {}, { signal: server.signal });
    await settled();
    server.abort(new Error('stopping'));
    expect(await answer).toMatchObject({ isError: true, content: [{ text: 'stopping' }] });
    const { signal } = new AbortController();
    const added = vi.spyOn(signal, 'addEventListener');
    const removed = vi.spyOn(signal, 'removeEventListener');
    const brief = new Harness().tool('t', (_, context) => context.signal.aborted);
    await brief.call('t', {}, {}, {}, { signal });
    expect(added.mock.calls).toHaveLength(1);
    expect(removed.mock.calls).toEqual([added.mock.calls[0]!.slice(0, 2)]);

    const closed = h.call('t');
    await settled();
    h.dispatcher.close();
    expect(await closed).toMatchObject({ isError: true });
  });
});

describe('asking for input', () => {
  const forms = able({ elicitation: {} });

  test('several questions, several rounds: answers are carried, the tool runs again', async () => {
    const runs: string[] = [];
    const h = new Harness().tool('t', async (_, { elicit, sample, roots }) => {
      runs.push('run');
      const [a, b] = await Promise.all([elicit('a', { message: 'A?' }), sample('b', { messages: [], maxTokens: 1 })]);
      const c = await roots('c');
      return { a: a.action, b: b['model'], c: c.roots[0]!.uri };
    });
    const meta = able({ elicitation: { form: {} }, sampling: {}, roots: {} });
    const first = await h.call('t', { x: 1, y: 2 }, meta);
    expect(first.resultType).toBe('input_required');
    expect(Object.keys(first.inputRequests)).toEqual(['a', 'b']);
    const answers = {
      a: { action: 'decline' },
      b: { role: 'assistant', content: { type: 'text', text: 'x' }, model: 'm' },
    };
    // One of two: the other is asked again.
    const half = await h.call('t', { x: 1, y: 2 }, meta, {
      inputResponses: { a: answers.a, other: {} },
      requestState: first.requestState,
    });
    expect(Object.keys(half.inputRequests)).toEqual(['b']);
    const second = await h.call('t', { y: 2, x: 1 }, meta, {
      inputResponses: { b: answers.b },
      requestState: half.requestState,
    });
    expect(second.inputRequests).toEqual({ c: { method: 'roots/list' } });
    const last = await h.call('t', { x: 1, y: 2 }, meta, {
      inputResponses: { c: { roots: [{ uri: 'file:///r' }] } },
      requestState: second.requestState,
    });
    expect(last.structuredContent).toEqual({ a: 'decline', b: 'm', c: 'file:///r' });
    expect(runs).toHaveLength(4);
  });

  const ask = () =>
    new Harness()
      .tool('t', (_, { elicit }) => elicit('k', { message: '?', requestedSchema: PERSON }))
      .tool('u', () => 1);
  const yes = { inputResponses: { k: { action: 'accept', content: { name: 'N' } } } };

  test('a state is good for its caller, tool and arguments, for half an hour', async () => {
    const h = ask();
    const { requestState } = await h.call('t', { a: 1 }, forms);
    const retry = (name: string, args: object, context?: DispatchContext) =>
      h.call(name, args, forms, { ...yes, requestState }, context);
    expect(await retry('t', { a: 1 })).toMatchObject({ structuredContent: { action: 'accept' } });
    for (const refused of [
      retry('t', { a: 2 }),
      retry('t', {}),
      retry('u', { a: 1 }),
      retry('t', { a: 1 }, { from: 'did:key:b' }),
    ]) {
      expect(await refused).toMatchObject({ error: { code: -32602 } });
    }
    await h.clock.advance(1_800_000);
    expect(await retry('t', { a: 1 })).toHaveProperty('content');
    await h.clock.advance(1);
    expect(await retry('t', { a: 1 })).toMatchObject({
      error: { code: -32602, message: expect.stringContaining('old') },
    });
  });

  test('a state that was touched anywhere is refused before the tool runs', async () => {
    const run = vi.fn((_, { elicit }) => elicit('k', { message: '?' }));
    const h = new Harness().tool('t', run);
    const { requestState } = await h.call('t', {}, forms);
    run.mockClear();
    const [payload, mac] = requestState.split('.');
    const forged = Buffer.from(JSON.stringify([9e15, 1, [['k', { action: 'accept', content: {} }]]])).toString(
      'base64url',
    );
    for (const state of [
      '',
      '.',
      payload,
      `${payload}.`,
      `.${mac}`,
      `${forged}.${mac}`,
      `${requestState}.x`,
      `${requestState}=`,
      requestState.slice(1),
      'x'.repeat(3000),
    ]) {
      expect(await h.call('t', {}, forms, { requestState: state }), state).toMatchObject({ error: { code: -32602 } });
    }
    for (const at of [0, 5, payload.length - 1, payload.length + 2, requestState.length - 1]) {
      const flipped = requestState.slice(0, at) + (requestState[at] === 'A' ? 'Q' : 'A') + requestState.slice(at + 1);
      expect(await h.call('t', {}, forms, { requestState: flipped }), `${at}`).toMatchObject({
        error: { code: -32602 },
      });
    }
    expect(await h.call('t', {}, forms, { requestState: 7 })).toMatchObject({ error: { code: -32602 } });
    expect(run).not.toHaveBeenCalled();
  });

  test('the key given seals across restarts, a random one does not', async () => {
    const stateKey = new Uint8Array(32).fill(7);
    const serve = (o: object) => {
      const h = new Harness(o).tool('t', (_, { elicit }) => elicit('k', { message: '?' }));
      return (more: object = {}) => h.call('t', {}, forms, more);
    };
    const { requestState } = await serve({ stateKey })();
    expect(await serve({ stateKey })({ ...yes, requestState })).toHaveProperty('content');
    expect(await serve({})({ ...yes, requestState })).toMatchObject({ error: { code: -32602 } });
  });

  test('answers of the wrong shape are -32602', async () => {
    const h = ask();
    for (const answer of [
      {},
      { action: 'maybe' },
      { action: 'accept' },
      { action: 'accept', content: 5 },
      { action: 'accept', content: { name: 5 } },
    ]) {
      expect(await h.call('t', {}, forms, { inputResponses: { k: answer } }), JSON.stringify(answer)).toMatchObject({
        error: { code: -32602 },
      });
    }
    const e = new Harness().tool('e', (_, { elicit }) => elicit('k', { message: 'sure?', requestedSchema: undefined }));
    const bare = { action: 'accept' };
    expect((await e.call('e', {}, forms, { inputResponses: { k: bare } })).structuredContent).toEqual(bare);
    expect(await e.call('e', {}, forms, { inputResponses: { k: { ...bare, content: [] } } })).toMatchObject({
      error: { code: -32602 },
    });
    for (const inputResponses of [[], 5, null, { k: 7 }, { k: [] }, { k: null }, { k: yes, other: 'x' }]) {
      expect(await h.call('t', {}, forms, { inputResponses })).toMatchObject({ error: { code: -32602 } });
    }
    const s = new Harness()
      .tool('s', (_, { sample }) => sample('k', { messages: [], maxTokens: 1 }))
      .tool('r', (_, { roots }) => roots('k'));
    const meta = able({ sampling: {}, roots: {} });
    expect(await s.call('s', {}, meta, { inputResponses: { k: { role: 'assistant', model: 'm' } } })).toMatchObject({
      error: { code: -32602 },
    });
    expect(await s.call('r', {}, meta, { inputResponses: { k: { roots: [{}] } } })).toMatchObject({
      error: { code: -32602 },
    });
  });

  test('a question that nobody could answer fails the tool, by name, and is not asked', async () => {
    const all = able({ elicitation: { form: {}, url: {} }, sampling: { tools: {} }, roots: {} });
    const ask = async (run: (context: any) => unknown): Promise<string> => {
      const result = await new Harness().tool('t', (_, context) => run(context)).call('t', {}, all);
      expect(result).toMatchObject({ isError: true });
      return text(result);
    };
    for (const params of [
      undefined,
      {},
      { message: 1 },
      { message: 'm', mode: 'url' },
      { message: 'm', mode: 'odd' },
      { message: 'm', requestedSchema: 'x' },
    ])
      expect(await ask(({ elicit }) => elicit('k', params)), JSON.stringify(params)).toContain('elicit takes');
    for (const params of [undefined, {}, { messages: [] }, { messages: {}, maxTokens: 1 }])
      expect(await ask(({ sample }) => sample('k', params)), JSON.stringify(params)).toContain('sample takes');
    expect(await ask(({ roots }) => roots(5))).toContain('key');
  });

  test('a tool that swallows the question still asks it, and nothing it returns counts', async () => {
    const h = new Harness().tool('t', async (_, { elicit }) => {
      await elicit('k', { message: '?' }).catch(() => {});
      void elicit('l', { message: 'not waited for' });
      return 'went on';
    });
    const result = await h.call('t', {}, forms);
    expect(Object.keys(result.inputRequests)).toEqual(['k', 'l']);
    expect(result).not.toHaveProperty('content');
  });

  test('capabilities: only what this request declares', async () => {
    const h = new Harness()
      .tool('form', (_, { elicit }) => elicit('k', { message: '?' }))
      .tool('url', (_, { elicit }) =>
        elicit('k', { mode: 'url', message: '?', url: 'https://example.org', elicitationId: 'e' }),
      )
      .tool('sample', (_, { sample }) => sample('k', { messages: [], maxTokens: 1 }))
      .tool('tools', (_, { sample }) => sample('k', { messages: [], maxTokens: 1, tools: [] }))
      .tool('roots', (_, { roots }) => roots('k'))
      .tool('many', (_, { roots, sample, elicit }) =>
        Promise.all([
          roots('r'),
          sample('s', { messages: [], maxTokens: 1 }),
          sample('t', { messages: [], maxTokens: 1, tools: [] }),
          elicit('e', { message: '?' }),
        ]),
      )
      .tool('hides', (_, { roots }) => roots('k').catch(() => 'swallowed'));
    const needs = async (name: string, capabilities: object) =>
      (await h.call(name, {}, able(capabilities))).error?.data.requiredCapabilities;
    expect(await needs('form', {})).toEqual({ elicitation: {} });
    expect(await needs('form', { elicitation: { url: {} } })).toEqual({ elicitation: {} });
    expect(await needs('form', { elicitation: { form: {}, url: {} } })).toBe(undefined);
    expect(await needs('form', { elicitation: true })).toEqual({ elicitation: {} });
    expect(await needs('url', { elicitation: {} })).toEqual({ elicitation: { url: {} } });
    expect(await needs('url', { elicitation: { url: {} } })).toBe(undefined);
    expect(await needs('sample', {})).toEqual({ sampling: {} });
    expect(await needs('sample', { sampling: true })).toEqual({ sampling: {} });
    expect(await needs('sample', { sampling: {} })).toBe(undefined);
    expect(await needs('tools', { sampling: {} })).toEqual({ sampling: { tools: {} } });
    expect(await needs('tools', { sampling: { tools: {} } })).toBe(undefined);
    expect(await needs('roots', { elicitation: {}, sampling: {} })).toEqual({ roots: {} });
    expect(await needs('many', { elicitation: {} })).toEqual({ roots: {}, sampling: { tools: {} } });
    expect(await needs('hides', {})).toEqual({ roots: {} });
  });

  test('ten rounds, no more', async () => {
    const h = new Harness().tool('t', async (_, { elicit }) => {
      for (let i = 0; ; i++) await elicit(`k${i}`, { message: '?' });
    });
    let result = await h.call('t', {}, forms);
    for (let i = 1; i < 10; i++) {
      const [key] = Object.keys(result.inputRequests);
      result = await h.call('t', {}, forms, {
        inputResponses: { [key!]: { action: 'cancel' } },
        requestState: result.requestState,
      });
      expect(result.resultType).toBe('input_required');
    }
    const [key] = Object.keys(result.inputRequests);
    result = await h.call('t', {}, forms, {
      inputResponses: { [key!]: { action: 'cancel' } },
      requestState: result.requestState,
    });
    expect(result).toMatchObject({ resultType: 'complete', isError: true });
  });

  test('finally blocks run when the tool is left', async () => {
    let locked = false;
    const h = new Harness().tool('t', async (_, { elicit }) => {
      expect(locked).toBe(false);
      locked = true;
      try {
        return (await elicit('k', { message: '?' })).action;
      } finally {
        locked = false;
      }
    });
    const { requestState } = await h.call('t', {}, forms);
    expect(text(await h.call('t', {}, forms, { inputResponses: { k: { action: 'cancel' } }, requestState }))).toBe(
      'cancel',
    );
  });
});

describe('listening', () => {
  const TAG = 'io.modelcontextprotocol/subscriptionId';
  const filter = { notifications: { toolsListChanged: true } };

  test('acknowledged first, tagged with the id and its type, one copy each', async () => {
    const h = new Harness().tool('t', (_, { toolsChanged: changed }) => changed());
    const mine: any[] = [];
    void h.request('subscriptions/listen', filter, {}, {}, 7);
    void h.request(
      'subscriptions/listen',
      { notifications: { promptsListChanged: true, resourceSubscriptions: ['a'] } },
      {},
      {},
      'deaf',
    );
    void h.request('subscriptions/listen', filter, {}, { from: 'did:key:b', emit: (f) => mine.push(f) }, 7);
    await settled();
    expect(h.frames.map((f) => [f.method, f.params._meta[TAG], f.params.notifications])).toEqual([
      ['notifications/subscriptions/acknowledged', 7, { toolsListChanged: true }],
      ['notifications/subscriptions/acknowledged', 'deaf', {}],
    ]);
    await h.call('t');
    const changes = (frames: any[]) =>
      frames.filter((f) => f.method === 'notifications/tools/list_changed').map((f) => f.params._meta);
    expect(changes(h.frames)).toEqual([{ [TAG]: 7 }]);
    expect(changes(mine)).toEqual([{ [TAG]: 7 }]);
    h.dispatcher.close();
  });

  test('registering a tool is a change, in every dispatcher over that map', async () => {
    const a = new Harness();
    const frames: any[] = [];
    const b = createDispatcher({ tools: a.tools, clock: a.clock });
    const listen = { jsonrpc: '2.0', id: 1, method: 'subscriptions/listen', params: { ...filter, _meta: META } };
    void a.send(listen);
    void b.dispatch(listen, { emit: (f) => frames.push(f) });
    await settled();
    a.tool('new', () => 1);
    expect([a.frames.length, frames.length]).toEqual([2, 2]);
    a.tools.delete('new');
    toolsChanged(a.tools);
    expect([a.frames.length, frames.length]).toEqual([3, 3]);
    b.close();
    a.tool('newer', () => 1);
    expect([a.frames.length, frames.length]).toEqual([4, 4]);
    expect(frames[3].method).toBe('notifications/cancelled');
    a.dispatcher.close();
  });

  test('a storm of changes is few notices, the last one after the last change', async () => {
    const h = new Harness();
    void h.request('subscriptions/listen', filter);
    await settled();
    for (let i = 0; i < 1000; i++) toolsChanged(h.tools);
    expect(h.frames).toHaveLength(11);
    await h.clock.advance(5000);
    expect(h.frames).toHaveLength(12);
    h.dispatcher.close();
  });

  test('it ends by the caller, by its time, or with the server', async () => {
    const h = new Harness();
    const cancelled = h.request('subscriptions/listen', filter, {}, {}, 'a');
    await settled();
    await h.cancel('a', { from: 'did:key:b' });
    expect(h.dispatcher.staysOpen({ jsonrpc: '2.0', id: 1, method: 'subscriptions/listen', params: {} })).toBe(true);
    await h.cancel('a');
    expect(await cancelled).toBe(undefined);

    const expired = h.request('subscriptions/listen', filter, {}, {}, 'b');
    await h.clock.advance(3_599_999);
    toolsChanged(h.tools);
    expect(h.frames.at(-1)).toMatchObject({
      method: 'notifications/tools/list_changed',
      params: { _meta: { [TAG]: 'b' } },
    });
    await h.clock.advance(1);
    expect(await expired).toMatchObject({ id: 'b', result: { resultType: 'complete', _meta: { [TAG]: 'b' } } });
    expect(h.frames.at(-1)).toMatchObject({ method: 'notifications/cancelled', params: { requestId: 'b' } });
    const count = h.frames.length;
    toolsChanged(h.tools);
    expect(h.frames).toHaveLength(count);

    const closed = h.request('subscriptions/listen', filter, {}, {}, 'c');
    await settled();
    h.dispatcher.close();
    expect(await closed).toMatchObject({ id: 'c', result: { resultType: 'complete' } });
    expect(h.clock.sleepers).toEqual([]);
    expect(await h.request('subscriptions/listen', filter)).toMatchObject({ error: { code: -32603 } });
  });

  test('few for a key, refused before any acknowledgement; some for all', async () => {
    const h = new Harness();
    const open = (from: string) => h.request('subscriptions/listen', filter, {}, { from });
    for (let i = 0; i < 4; i++) void open('did:key:a');
    await settled();
    expect(await open('did:key:a')).toMatchObject({ error: { code: -32603 } });
    for (let key = 1; key < 64; key++) for (let i = 0; i < 4; i++) void open(`did:key:${key}`);
    await settled();
    expect(h.frames).toHaveLength(256);
    // When there are no more, one of a key that has many ends for one of a key that has none.
    void open('did:key:late');
    await settled();
    expect(h.frames).toHaveLength(258);
    expect(h.frames.at(-1)).toMatchObject({ method: 'notifications/subscriptions/acknowledged' });
    expect(h.frames.at(-2)).toMatchObject({ method: 'notifications/cancelled' });
    h.dispatcher.close();
    await settled();
    expect(h.clock.sleepers).toEqual([]);
  });

  test('a filter of the wrong shape, or a caller who cannot be told', async () => {
    const h = new Harness();
    for (const notifications of [
      undefined,
      null,
      [],
      'x',
      { toolsListChanged: 'yes' },
      { resourceSubscriptions: [1] },
    ]) {
      expect(await h.request('subscriptions/listen', { notifications })).toMatchObject({ error: { code: -32602 } });
    }
    const listen = { jsonrpc: '2.0', id: 1, method: 'subscriptions/listen', params: { ...filter, _meta: META } };
    expect(await h.dispatcher.dispatch(listen)).toMatchObject({ error: { code: -32603 } });
  });
});

describe('the tools that every server has', () => {
  const { o, run } = world();
  const ask = (method: string, params: object = {}): Promise<any> =>
    run(
      dispatch(
        { jsonrpc: '2.0', id: 1, method, params: { ...params, _meta: META } },
        { from: 'did:key:a', service: { base: o.base, fetch: o.fetch, clock: o.clock } },
      ),
    );
  const call = async (name: string, args: object) => (await ask('tools/call', { name, arguments: args })).result as any;

  test('their names are the old ones', async () => {
    const answer = await ask('tools/list');
    conforms(answer, 'ListToolsResultResponse');
    expect(answer.result.tools.map((t: any) => t.name)).toEqual(['census/latest', 'technocore/verify']);
  });

  test('census/latest', async () => {
    const bounds = { total: expect.any(Number), capacity: expect.any(Number) };
    const { structuredContent } = await call('census/latest', {});
    expect(structuredContent).toEqual({
      at: new Date(o.clock.now()).toISOString(),
      rooms: bounds,
      notes: bounds,
      bytes: { used: expect.any(Number), capacity: expect.any(Number) },
    });
    expect((await call('census/latest', { list: 2 })).structuredContent.listed).toEqual([]);
    for (const args of [{ list: 0 }, { list: 51 }, { other: 1 }]) {
      expect(await call('census/latest', args)).toMatchObject({ isError: true });
    }
  });

  test('technocore/verify', async () => {
    const key = signer(3);
    const { sig, nonce, text, canonical } = key.signMessage('lobby', 7, 'hello');
    const verdict = async (args: object) => (await call('technocore/verify', args)).structuredContent;
    expect(await verdict({ did: key.did, sig, canonical })).toEqual({ valid: true });
    expect(await verdict({ did: key.did, sig, canonical: `${canonical}!` })).toMatchObject({ valid: false });
    const message = { seq: 1, ts: '', from: key.did, text, nonce, sig };
    expect(await verdict({ room: 'lobby', message })).toEqual({ valid: true });
    expect(await verdict({ room: 'lounge', message })).toMatchObject({ valid: false, reason: expect.any(String) });
    for (const args of [{}, { did: key.did, sig }, { room: 'lobby', message: 5 }]) {
      expect(await call('technocore/verify', args)).toMatchObject({ isError: true });
    }
  });

  test('beside them plain JSON-RPC stays what it is', async () => {
    const error = { code: -32700, message: 'Parse error' };
    expect(await dispatch('{')).toStrictEqual({ jsonrpc: '2.0', id: null, error });
    expect(await createDispatcher().dispatch('{')).toStrictEqual({ jsonrpc: '2.0', id: null, error });
    expect(await createDispatcher({ tools: new Map() }).dispatch('{')).toStrictEqual({ jsonrpc: '2.0', error });
    expect(await dispatch([])).toMatchObject({ id: null, error: { code: -32600 } });
  });
});

// --- hostile and official callers --------------------------------------------------------------------------------

/** Integers below n, the same ones for the same seed. */
function seeded(seed: number): (n: number) => number {
  let state = seed >>> 0;
  return (n) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * n);
  };
}

describe('2,000 mutated frames', () => {
  const SEED = Number(process.env['MCP_SEED'] ?? 20260728);

  test(`never crash, never reach a tool with arguments that its schema forbids (seed ${SEED})`, async () => {
    const random = seeded(SEED);
    const pick = <T>(list: readonly T[]): T => list[random(list.length)]!;
    const seen: any[] = [];
    const sound = compileSchema(fixture.tools[0].inputSchema, 'input');
    const h = new Harness({ pageSize: 3 });
    h.tool('math.sum', (args) => seen.push(args), { inputSchema: fixture.tools[0].inputSchema });
    h.tool('ask', (_, { elicit }) => elicit('k', { message: '?', requestedSchema: PERSON }));
    h.tool('clock', () => '12:00', { inputSchema: { type: 'object', additionalProperties: false } });
    const frames = vectors.cases.flatMap((c: any) => c.steps.map((s: any) => s.send));
    const junk = () =>
      pick<any>([
        null,
        0,
        -1,
        1.5,
        1e300,
        '',
        'x',
        '__proto__',
        'tools/call',
        'math.sum',
        true,
        [],
        {},
        [[]],
        { a: 1 },
        '\ud800',
        'é'.repeat(300),
        JSON.parse('{"__proto__":{"a":1}}'),
      ]);
    const mutate = (value: any, depth = 0): any => {
      if (random(12) === 0) return junk();
      if (Array.isArray(value))
        return random(6) === 0 ? [...value, junk()] : value.map((item) => mutate(item, depth + 1));
      if (typeof value !== 'object' || value === null) return random(20) === 0 ? junk() : value;
      const entries = Object.entries(value).map(([key, member]) => [
        random(30) === 0 ? String(junk()) : key,
        mutate(member, depth + 1),
      ]);
      if (random(10) === 0) entries.splice(random(entries.length + 1), 1);
      if (random(10) === 0)
        entries.push([
          pick(['a', 'b', 'name', 'arguments', '_meta', 'cursor', 'requestState', 'inputResponses', 'id', '__proto__']),
          junk(),
        ]);
      return Object.fromEntries(entries);
    };
    let answered = 0;
    for (let i = 0; i < 2000; i++) {
      const frame = mutate(pick(frames));
      let sent: unknown = frame;
      if (random(4) === 0) {
        const line = JSON.stringify(frame);
        const at = random(line.length);
        sent = pick([
          line,
          line.slice(0, at),
          line.slice(0, at) + pick(['{', '"', ',', '\\', '0', '\u0000']) + line.slice(at + 1),
        ]);
      }
      let answer: Json | undefined;
      const emitted: Json[] = [];
      void h.dispatcher
        .dispatch(sent, { from: pick(['did:key:a', 'did:key:b', undefined]), emit: (f) => emitted.push(f) })
        .then((a) => (answer = a));
      await new Promise((resolve) => setImmediate(resolve));
      for (const f of [...emitted, ...(answer === undefined ? [] : [answer].flat())] as any[]) {
        encodeLong(f);
        const shown = `seed ${SEED}, frame ${i}: ${JSON.stringify(sent)} -> ${JSON.stringify(f)}`;
        const kind =
          'method' in f ? 'JSONRPCNotification' : 'error' in f ? 'JSONRPCErrorResponse' : 'JSONRPCResultResponse';
        // Other ids are plain JSON-RPC's: for an unknown method that is not MCP's.
        if (f.id === null || f.id === 1.5) expect(f.error.code, shown).toBe(-32601);
        else expect(specIssues(kind, f), shown).toBe(undefined);
      }
      if (answer !== undefined) answered++;
      for (const args of seen.splice(0)) expect(sound.check(args), `seed ${SEED}, frame ${i}`).toEqual({ value: args });
    }
    expect(answered).toBeGreaterThan(800);
    expect(await h.call('math.sum', { a: 1, b: 2 })).toHaveProperty('content');
    h.dispatcher.close();
  });
});

describe('the official client', () => {
  async function connected(h: Harness, capabilities: object = {}): Promise<Client> {
    // Frames cross as text, as they would in a room.
    const transport: any = {
      start: async () => {},
      close: async () => transport.onclose?.(),
      send: async (message: any) => {
        const context = { from: 'did:key:sdk', emit: (f: Json) => void transport.onmessage?.(JSON.parse(encode(f))) };
        void h.dispatcher.dispatch(JSON.stringify(message), context).then((answer) => {
          if (answer !== undefined) transport.onmessage?.(JSON.parse(encode(answer)));
        });
      },
    };
    const client = new Client({ name: 'official', version: '1' }, {
      capabilities,
      versionNegotiation: { mode: { pin: '2026-07-28' } },
    } as any);
    await client.connect(transport);
    return client;
  }

  function fixtureServer(): Harness {
    const h = new Harness({ pageSize: 4, instructions: 'Ask me for sums.' });
    for (const t of fixture.tools)
      tool(t.name, t.description, t.inputSchema, BEHAVIOUR[t.name]!, { ...t, tools: h.tools });
    return h;
  }

  test('lists every page, calls, sees errors and progress', async () => {
    const client = await connected(fixtureServer());
    expect(client.getServerVersion()).toMatchObject(fixture.serverInfo);
    expect(client.getInstructions()).toBe('Ask me for sums.');
    const { tools } = await client.listTools();
    expect(tools.map((t) => t.name)).toEqual(fixture.tools.map((t: any) => t.name));
    expect(await client.callTool({ name: 'math.sum', arguments: { a: 2, b: 0.5 } })).toMatchObject({
      structuredContent: { total: 2.5 },
    });
    expect(await client.callTool({ name: 'zero', arguments: {} })).toMatchObject({ structuredContent: 0 });
    expect(await client.callTool({ name: 'crash', arguments: {} })).toMatchObject({ isError: true });
    await expect(client.callTool({ name: 'nosuch', arguments: {} })).rejects.toMatchObject({ code: -32602 });
    const steps: unknown[] = [];
    await client.callTool({ name: 'steps', arguments: {} }, { onprogress: (p: unknown) => steps.push(p) } as any);
    expect(steps).toMatchObject([{ progress: 1 }, { progress: 2 }, { progress: 3 }]);
    await client.close();
  });

  test('answers questions and goes on', async () => {
    const client = await connected(fixtureServer(), { elicitation: {} });
    client.setRequestHandler(
      'elicitation/create',
      async () => ({ action: 'accept', content: { name: 'Noor' } }) as any,
    );
    expect(await client.callTool({ name: 'greet', arguments: {} })).toMatchObject({
      content: [{ text: 'Hello, Noor!' }],
    });
    await client.close();
  });

  test('cancels, and listens', async () => {
    const h = fixtureServer();
    const client = await connected(h);
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
    await settled();
    expect(h.clock.sleepers).toEqual([]);
    await client.close();
  });
});
