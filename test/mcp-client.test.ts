import { describe, expect, onTestFinished, test } from 'vitest';
import { tool } from '../src/builtin.ts';
import type { Channel, Listener, SendOptions } from '../src/channel.ts';
import { e2eOffer, x25519Generate } from '../src/e2e.ts';
import { RpcError, TechnocoreError } from '../src/errors.ts';
import { decode, encode, encodeLong, type Json } from '../src/frames.ts';
import type { Event } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import { REPLY_META } from '../src/line.ts';
import { mcpLayer, toolsChanged } from '../src/mcp.ts';
import { type McpCallOptions, mcpCallTool, mcpDiscover, mcpKeepAlive, mcpListTools } from '../src/mcp-client.ts';
import { mcpListen } from '../src/mcp-listen.ts';
import { follow, read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { serve } from '../src/serve.ts';
import type { Tool } from '../src/tools.ts';
import { conforms, specIssues, vectors } from './mcp-vectors.ts';
import { broken, faulty, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-server';
const REPLY = 'mb-p-client';
const me = signer(1);
const peerKey = signer(9);
const COMPLETE = { resultType: 'complete' };
const text = (t: string) => ({ type: 'text', text: t });
const done = (t = 'ok') => ({ ...COMPLETE, content: [text(t)] });
const TAG = 'io.modelcontextprotocol/subscriptionId';

/** A server that does frame by frame what a test tells it to, in a room, and what it was sent. */
function scripted(w: World, answer: (frame: any, n: number) => object[] | undefined) {
  const frames: any[] = [];
  const stop = new AbortController();
  onTestFinished(() => stop.abort());
  const loop = async (): Promise<void> => {
    for await (const m of follow(MAILBOX, { ...w.o, since: 0, signal: stop.signal })) {
      const frame = decode(m.text) as any;
      if (!frame?.method) continue;
      // Nothing leaves us that the SDK would refuse.
      expect(specIssues('id' in frame ? 'JSONRPCRequest' : 'JSONRPCNotification', frame), m.text).toBe(undefined);
      const named = frame.method.replace('notifications/', '');
      const schema = (
        {
          'server/discover': 'DiscoverRequest',
          'tools/list': 'ListToolsRequest',
          'tools/call': 'CallToolRequest',
          'subscriptions/listen': 'SubscriptionsListenRequest',
          cancelled: 'CancelledNotification',
        } as any
      )[named];
      expect(specIssues(schema, frame), m.text).toBe(undefined);
      frames.push(frame);
      for (const out of answer(frame, frames.length) ?? []) {
        await peerKey.say(REPLY, encode({ jsonrpc: '2.0', ...out } as Json), w.o);
      }
    }
  };
  const failed: unknown[] = [];
  loop().catch((cause) => stop.signal.aborted || failed.push(cause));
  onTestFinished(() => expect(failed).toEqual([]));
  const requests = (): any[] => frames.filter((f) => f.id !== undefined);
  const cancels = (): any[] => frames.filter((f) => f.method === 'notifications/cancelled').map((f) => f.params);
  return { frames, requests, cancels, stop: () => stop.abort() };
}

/** A server of ours. */
async function served(w: World, define: (tools: Map<string, Tool>) => void, mailbox: any = MAILBOX, more = {}) {
  const tools = new Map<string, Tool>();
  define(tools);
  const stop = new AbortController();
  onTestFinished(() => stop.abort());
  let ended!: Promise<void>;
  await w.run(
    new Promise<void>((onReady, reject) => {
      ended = serve(mailbox, peerKey, { ...w.o, tools, layer: mcpLayer, signal: stop.signal, onReady, ...more });
      ended.catch(reject);
    }),
  );
  return { tools, stop: () => stop.abort(), ended };
}

/** The two ends of a channel in memory, ours and the server's: no reads, no time. */
function pipe(): [Channel, Channel] {
  const ends: (Listener | undefined)[] = [];
  let seq = 0;
  return [me, peerKey].map(
    ({ did }, i): Channel => ({
      room: 'pipe',
      self: did,
      async listen(listener) {
        ends[i] = listener;
        return () => void (ends[i] = undefined);
      },
      async send(text) {
        seq++;
        const m = { from: did, text, room: 'pipe', seq };
        queueMicrotask(() => ends[1 - i]?.message(m));
        return { seq };
      },
    }),
  ) as [Channel, Channel];
}

/** The end of a pipe at whose other end somebody answers as told. */
async function answering(answer: (frame: any, n: number) => object[]) {
  const [ours, theirs] = pipe();
  const frames: any[] = [];
  await theirs.listen({
    message: ({ text }) => {
      const frame = decode(text) as any;
      frames.push(frame);
      for (const out of answer(frame, frames.length)) void theirs.send(encodeLong({ jsonrpc: '2.0', ...out } as Json));
    },
    gap: () => {},
    end: () => {},
  });
  return { channel: ours, frames };
}

const o = (w: World, more: McpCallOptions = {}): McpCallOptions => ({ ...w.o, replyTo: REPLY, ...more });
const reasonOf = (promise: Promise<unknown>): Promise<any> =>
  promise.then(
    (value) => expect.fail(`resolved: ${JSON.stringify(value)}`),
    (cause) => cause,
  );
const callTool = (w: World, more?: McpCallOptions, name = 't', args: object | undefined = {}) =>
  w.run(mcpCallTool(MAILBOX, name, args, me, o(w, more)));

describe('the recorded client cases', () => {
  test.each(vectors.clientCases.map((c: any) => [c.name, c]))('%s', async (...[, c]: any[]) => {
    const w = world();
    const { name, arguments: args } = c.request.params;
    const s = scripted(w, ({ id }) =>
      c.given.map((frame: any) => ({ ...frame, id: frame.id === 'cl' ? id : frame.id })),
    );
    const outcome = callTool(w, {}, name, args);
    if (c.outcome.resolves) expect(await outcome).toMatchObject(c.outcome.resolves);
    else expect((await reasonOf(outcome)).rpc).toMatchObject(c.outcome.rejects);
    expect(s.frames).toHaveLength(1);
  });
});

describe('requests and results', () => {
  test('what a request says of itself', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, result: done() }]);
    await callTool(w, { meta: { traceparent: '00-x' } }, 't', undefined);
    expect(s.frames[0].params).toEqual({
      name: 't',
      arguments: {},
      _meta: {
        'io.modelcontextprotocol/protocolVersion': '2026-07-28',
        'io.modelcontextprotocol/clientInfo': { name: 'technocore-rpc', version: '0.1.0' },
        'io.modelcontextprotocol/clientCapabilities': {},
        traceparent: '00-x',
        [REPLY_META]: REPLY,
        ...Object.fromEntries(
          Object.entries(s.frames[0].params._meta).filter(([key]) => key === 'chat.technocore/spill'),
        ),
      },
    });
    await callTool(w, { clientInfo: { name: 'x', version: '2' }, capabilities: { sampling: { tools: {} } } });
    expect(s.frames[1].params._meta).toMatchObject({
      'io.modelcontextprotocol/clientInfo': { name: 'x', version: '2' },
      'io.modelcontextprotocol/clientCapabilities': { sampling: { tools: {} } },
    });
  });

  test('a result that is none of a tool, or of a type that nobody knows, is an error here', async () => {
    const w = world();
    const bad: Json[] = [
      7,
      null,
      [],
      {},
      { content: 'x' },
      { content: [{ type: 'text' }] },
      { content: [7] },
      { content: [{ type: 'video', url: 'x' }] },
      { content: [], isError: 'yes' },
      { content: [], _meta: 5 },
      { ...done(), resultType: 'task' },
      { ...done(), resultType: 7 },
      { resultType: 'input_required' },
      { resultType: 'input_required', inputRequests: 5 },
      { resultType: 'input_required', inputRequests: { a: 5 } },
      { resultType: 'input_required', requestState: 5 },
    ];
    scripted(w, ({ id }, n) => [{ id, result: bad[n - 1] }]);
    for (const result of bad) {
      const cause = await reasonOf(callTool(w));
      expect([cause.code, TechnocoreError.is(cause)], JSON.stringify(result)).toEqual(['bad_response', true]);
    }
  });

  test('an id of the caller is for the first request, later ones have fresh ones', async () => {
    const rounds: object[] = [{ resultType: 'input_required', requestState: 's' }, done()];
    const { channel, frames } = await answering(({ id }, n) => [{ id, result: rounds[n - 1]! }]);
    await mcpCallTool(channel, 't', {}, me, { id: 'mine' });
    expect(frames[0].id).toBe('mine');
    expect(frames[1].id).not.toBe('mine');
  });

  test('arguments that are none are refused before anything is sent', async () => {
    const w = world();
    const s = scripted(w, () => []);
    for (const args of [[], 'x', 5, null, 1n] as any[]) {
      expect(await reasonOf(callTool(w, {}, 't', args))).toMatchObject({ code: expect.stringMatching(/^bad_/) });
    }
    expect(await reasonOf(callTool(w, {}, 't', { big: 'x'.repeat(5000) }))).toMatchObject({ code: 'frame_too_long' });
    await w.clock.advance(5000);
    expect(s.frames).toEqual([]);
  });

  test('fault 87: a failing tool is a result, a refused call an error', async () => {
    const w = world();
    await served(w, (tools) => tool('t', 'd', {}, () => Promise.reject(new Error('disk is full')), { tools }));
    expect(await callTool(w)).toEqual({
      content: [text('disk is full')],
      isError: true,
      _meta: { 'io.modelcontextprotocol/serverInfo': { name: 'technocore-rpc', version: '0.1.0' } },
    });
    const cause = await reasonOf(callTool(w, {}, 'nosuch'));
    expect(cause).toBeInstanceOf(RpcError);
    expect(cause.rpc.code).toBe(-32602);
  });

  test('discovery', async () => {
    const w = world();
    const { stop } = await served(w, () => {});
    expect(await w.run(mcpDiscover(MAILBOX, me, o(w)))).toMatchObject({
      supportedVersions: ['2026-07-28'],
      capabilities: { tools: { listChanged: true }, logging: {} },
      serverInfo: { name: 'technocore-rpc' },
      ttlMs: 60_000,
      cacheScope: 'public',
    });
    stop();
    const v = world();
    const results: any[] = [
      { supportedVersions: ['2026-07-28'], capabilities: {}, ttlMs: -5, instructions: 'Ask.' },
      { supportedVersions: 'x', capabilities: {} },
      { supportedVersions: [1], capabilities: {} },
      { supportedVersions: [], capabilities: [] },
      { supportedVersions: [], capabilities: {}, instructions: 5 },
    ];
    scripted(v, ({ id }, n) => [{ id, result: results[n - 1] }]);
    expect(await v.run(mcpDiscover(MAILBOX, me, o(v)))).toEqual({
      supportedVersions: ['2026-07-28'],
      capabilities: {},
      instructions: 'Ask.',
      ttlMs: 0,
      cacheScope: 'private',
    });
    for (let i = 1; i < results.length; i++) {
      expect(await reasonOf(v.run(mcpDiscover(MAILBOX, me, o(v))))).toMatchObject({ code: 'bad_response' });
    }
  });

  test.each([
    ['that reads them', { allow: () => true }],
    ['that does not', {}],
  ])('arguments that fit no message go to a server %s once it was asked what it is', async (_, more) => {
    const w = world();
    const sizes = (tools: Map<string, Tool>): void =>
      tool('size', 'd', {}, ({ text }) => ({ size: text.length }), { tools });
    await served(w, sizes, MAILBOX, more);
    const size = (n: number): Promise<unknown> =>
      w.run(mcpCallTool(MAILBOX, 'size', { text: 'x'.repeat(n) }, me, o(w))).then(
        ({ structuredContent }) => structuredContent,
        ({ code }) => code,
      );
    expect([await size(100), await size(20_000)]).toEqual([{ size: 100 }, 'frame_too_long']);
    await w.run(mcpDiscover(MAILBOX, me, o(w)));
    const isRead = 'allow' in more;
    expect(await size(20_000)).toEqual(isRead ? { size: 20_000 } : 'frame_too_long');
    expect(await size(90_000)).toEqual(isRead ? { size: 90_000 } : 'frame_too_long');
    expect(await size(200_000)).toBe('frame_too_long');
  });

  test('over a DID and over a sealed channel', async () => {
    const w = world();
    const { tools } = await served(w, (tools) =>
      tool('who', 'd', {}, (_, { from, room }) => ({ from, room }), { tools }),
    );
    await w.run(publishIdentity(peerKey, { mailbox: MAILBOX }, w.o));
    const byDid = await w.run(mcpCallTool(peerKey.did, 'who', {}, me, o(w)));
    expect(byDid.structuredContent).toEqual({ from: me.did, room: MAILBOX });

    const { key, room } = e2eOffer(x25519Generate().publicKey);
    const stop = new AbortController();
    onTestFinished(() => stop.abort());
    await w.run(
      new Promise<void>((onReady) => {
        void serve(sealed(room, key, peerKey, w.o), peerKey, { ...w.o, tools, signal: stop.signal, onReady });
      }),
    );
    const channel = sealed(room, key, me, { ...w.o, peer: peerKey.did });
    const through = await w.run(mcpCallTool(channel, 'who', {}, me, w.o));
    expect(through.structuredContent).toEqual({ from: me.did, room });
    expect((await w.run(mcpListTools(channel, me, w.o))).map((t) => t.name)).toEqual(['who']);
    expect((await w.run(mcpDiscover(channel, me, w.o))).serverInfo!.name).toBe('technocore-rpc');
    const notices = mcpListen(channel, { toolsListChanged: true }, me, {
      ...w.o,
      onReady: () => toolsChanged(tools),
    });
    expect((await w.run(notices.next())).value).toMatchObject({ method: 'notifications/tools/list_changed' });
    await w.run(notices.return(null));
  });
});

describe('versions', () => {
  const refusal = (data?: object) => ({ code: -32022, message: 'no', ...(data && { data }) });

  test('a refusal that names our version leads to one more request under a fresh id', async () => {
    for (const data of [
      { supported: ['2099-01-01', '2026-07-28'], requested: '2026-07-28' },
      { supported: ['2026-07-28'] },
    ]) {
      const w = world();
      const s = scripted(w, ({ id }, n) => [n === 1 ? { id, error: refusal(data) } : { id, result: done() }]);
      expect(await callTool(w)).toMatchObject({ content: [text('ok')] });
      expect(s.frames).toHaveLength(2);
      expect(s.frames[0].id).not.toBe(s.frames[1].id);
      expect(s.frames[0].params).toEqual(s.frames[1].params);
    }
  });

  test('one, no more; and none where our version is not named', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, error: refusal({ supported: ['2026-07-28'] }) }]);
    expect((await reasonOf(callTool(w))).rpc.code).toBe(-32022);
    expect(s.frames).toHaveLength(2);
    for (const data of [undefined, { supported: ['2099-01-01'] }, { supported: '2026-07-28' }, { supported: {} }]) {
      const v = world();
      const t = scripted(v, ({ id }) => [{ id, error: refusal(data) }]);
      expect((await reasonOf(callTool(v))).rpc.code).toBe(-32022);
      expect(t.frames).toHaveLength(1);
    }
  });
});

describe('lists', () => {
  const named = (name: string, more: object = {}) => ({ name, inputSchema: { type: 'object' }, ...more });
  const page = (names: string[], more: object = {}) => ({
    ...COMPLETE,
    tools: names.map((name) => named(name)),
    ttlMs: 60_000,
    cacheScope: 'public',
    ...more,
  });
  const listed = async (w: World, more: object = {}, key = me) =>
    (await w.run(mcpListTools(MAILBOX, key, { ...o(w), ...more }))).map((t) => t.name);

  test('every page; "" is a cursor, and only its absence ends the list', async () => {
    const w = world();
    const pages: any = { start: page(['a'], { nextCursor: '' }), '': page(['b'], { nextCursor: 'x' }), x: page(['c']) };
    const s = scripted(w, ({ id, params }) => [{ id, result: pages[params.cursor ?? 'start'] }]);
    expect(await listed(w)).toEqual(['a', 'b', 'c']);
    expect(s.frames.map((f) => f.params.cursor)).toEqual([undefined, '', 'x']);
    expect(new Set(s.frames.map((f) => f.id)).size).toBe(3);
  });

  test('kept as long as every page allows, and no longer', async () => {
    const w = world();
    const pages: any = { start: page(['a'], { nextCursor: 'x' }), x: page(['b'], { ttlMs: 90_000 }) };
    const s = scripted(w, ({ id, params }) => [{ id, result: pages[params.cursor ?? 'start'] }]);
    const first = await w.run(mcpListTools(MAILBOX, me, o(w)));
    (first[0] as any).name = 'changed by its reader';
    await w.clock.advance(50_000);
    const kept = await w.run(mcpListTools(MAILBOX, me, o(w)));
    expect(kept.map(({ name }) => name)).toEqual(['a', 'b']);
    kept.pop();
    expect(await listed(w)).toEqual(['a', 'b']);
    expect(await listed(w, {}, signer(2))).toEqual(['a', 'b']);
    expect(s.frames).toHaveLength(2);
    expect(await listed(w, { refresh: true })).toEqual(['a', 'b']);
    expect(s.frames).toHaveLength(4);
    await w.clock.advance(60_000);
    expect(await listed(w)).toEqual(['a', 'b']);
    expect(s.frames).toHaveLength(6);
    // Another peer is another server.
    await listed(w, { peer: peerKey.did });
    expect(s.frames).toHaveLength(8);
  });

  test('a private list is for one key, and one without a time for nobody', async () => {
    const w = world();
    const s = scripted(w, ({ id }, n) => [
      { id, result: n < 3 ? page([`t${n}`], { cacheScope: 'private' }) : page([`t${n}`], { ttlMs: n === 3 ? -1 : 0 }) },
    ]);
    expect(await listed(w)).toEqual(['t1']);
    expect(await listed(w, {}, signer(2))).toEqual(['t2']);
    expect(await listed(w)).toEqual(['t1']);
    expect(await listed(w, {}, signer(2))).toEqual(['t2']);
    expect(s.frames).toHaveLength(2);
    expect(await listed(w, { refresh: true })).toEqual(['t3']);
    expect(await listed(w)).toEqual(['t4']);
    expect(await listed(w)).toEqual(['t5']);
  });

  test('what is no tool is left out and told', async () => {
    const w = world();
    const good = named('good', {
      title: 'T',
      description: 'd',
      outputSchema: {},
      icons: [{ src: 'data:,' }],
      _meta: {},
    });
    const bad = [
      5,
      null,
      { name: 'x' },
      named(''),
      named('x', { inputSchema: 7 }),
      named('x', { title: 5 }),
      named('x', { description: {} }),
      named('x', { outputSchema: 'y' }),
      named('x', { annotations: 1 }),
      named('x', { icons: [1] }),
      named('good'),
    ];
    scripted(w, ({ id }) => [{ id, result: { ...page([]), tools: [{ ...good, layer: 'theirs' }, ...bad] } }]);
    expect(await w.run(mcpListTools(MAILBOX, me, o(w)))).toEqual([good]);
    expect(w.kinds().filter((kind) => kind === 'skipped')).toHaveLength(bad.length);
  });

  test('a list without end is an error', async () => {
    let n = 0;
    const next: (() => object)[] = [
      () => page(['a'], { nextCursor: 'again' }),
      () => page(['a'], { nextCursor: `${n}` }),
      () => page(['a'], { nextCursor: 5 }),
      () => page([], { tools: {} }),
    ];
    let now = 0;
    const big = 'x'.repeat(80_000);
    next.push(() => page(['a'], { nextCursor: `${n}`, big }));
    const { channel, frames } = await answering(({ id }) => {
      n++;
      return [{ id, result: next[now]!() }];
    });
    for (; now < next.length; now++) {
      frames.length = 0;
      const cause = await reasonOf(mcpListTools(channel, me));
      expect(cause).toMatchObject({ code: 'bad_response' });
      expect(frames.length).toBe([2, 1025, 1, 1, 53][now]);
    }
  });

  test('a place that was lost while reading: the list is begun anew', async () => {
    const w = world();
    const s = scripted(w, ({ id, params }, n) => {
      if (params.cursor === 'old') return [{ id, error: { code: -32602, message: 'Unknown cursor' } }];
      return [{ id, result: n === 1 ? page(['a'], { nextCursor: 'old' }) : page(['b']) }];
    });
    expect(await listed(w)).toEqual(['b']);
    expect(s.frames).toHaveLength(3);
    const v = world();
    const t = scripted(v, ({ id, params }) =>
      params.cursor === undefined
        ? [{ id, result: page(['a'], { nextCursor: 'old' }) }]
        : [{ id, error: { code: -32602, message: 'Unknown cursor' } }],
    );
    expect((await reasonOf(listed(v))).rpc.code).toBe(-32602);
    expect(t.frames).toHaveLength(6);
  });

  test('a list that changes while it is read is not kept', async () => {
    const { channel, frames } = await answering(({ id, method, params }, n) => {
      const meta = { _meta: { [TAG]: frames[0].id } };
      if (method === 'subscriptions/listen') {
        const told = { toolsListChanged: true };
        return [{ method: 'notifications/subscriptions/acknowledged', params: { ...meta, notifications: told } }];
      }
      if (method !== 'tools/list') return [];
      if (params.cursor === undefined) return [{ id, result: page([`t${n}`], { nextCursor: 'x' }) }];
      const changed = { method: 'notifications/tools/list_changed', params: meta };
      return [...(n === 3 ? [changed] : []), { id, result: page([]) }];
    });
    const notices = mcpListen(channel, { toolsListChanged: true }, me);
    const heard = notices.next();
    const names = async () => (await mcpListTools(channel, me)).map(({ name }) => name);
    expect([await names(), await names(), await names()]).toEqual([['t2'], ['t4'], ['t4']]);
    await heard;
    await notices.return(null);
  });

  test('dropped when the server tells of a change', async () => {
    const w = world();
    const { tools } = await served(w, (tools) => tool('a', 'd', {}, () => 1, { tools }));
    expect(await listed(w)).toEqual(['a']);
    const heard: Json[] = [];
    const stop = new AbortController();
    const listening = (async () => {
      const options = { ...o(w), signal: stop.signal, onReady: () => tool('b', 'd', {}, () => 1, { tools }) };
      for await (const notice of mcpListen(MAILBOX, { toolsListChanged: true }, me, options)) {
        heard.push(notice);
        if (heard.length === 2) break;
        expect(await mcpListTools(MAILBOX, me, o(w))).toHaveLength(2);
        tool('c', 'd', {}, () => 1, { tools });
      }
    })();
    await w.run(listening);
    expect(await listed(w)).toEqual(['a', 'b', 'c']);
    conforms(heard[0], 'ToolListChangedNotification');
  });
});

describe('structured results', () => {
  const outputSchema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
  const listing = (schema: object) => ({
    ...COMPLETE,
    tools: [{ name: 't', inputSchema: { type: 'object' }, outputSchema: schema }],
    ttlMs: 60_000,
    cacheScope: 'public',
  });
  async function checking(schema: object, ...results: object[]) {
    const w = world();
    scripted(w, ({ id, method }) => [{ id, result: method === 'tools/list' ? listing(schema) : results.shift() }]);
    return w;
  }

  test('held against the schema of the tool once the list is known, as long as it is good', async () => {
    const bad = { ...done(), structuredContent: { n: 'x' } };
    const w = await checking(
      outputSchema,
      bad,
      bad,
      done(),
      { ...done(), isError: true },
      { ...done(), structuredContent: { n: 1 } },
      bad,
    );
    expect(await callTool(w)).toMatchObject({ structuredContent: { n: 'x' } });
    await w.run(mcpListTools(MAILBOX, me, o(w)));
    const cause = await reasonOf(callTool(w));
    expect(cause).toMatchObject({ code: 'bad_response', message: expect.stringContaining('/n') });
    expect((await reasonOf(callTool(w))).message).toContain('no structured content');
    expect(await callTool(w)).toMatchObject({ isError: true });
    expect(await callTool(w)).toMatchObject({ structuredContent: { n: 1 } });
    await w.clock.advance(60_000);
    expect(await callTool(w)).toMatchObject({ structuredContent: { n: 'x' } });
  });

  test.each([
    ['a pattern that takes for ever', { type: 'string', pattern: '^(a+)+$' }],
    ['one in the name of a member', { type: 'string', not: { patternProperties: { '^(a+)+$': {} } } }],
    ['one behind a negation', { not: { pattern: '^(a+)+$' } }],
    ['a schema of another kind', { $schema: 'http://json-schema.org/draft-07/schema#' }],
    ['a schema that only pretends', { '~standard': { validate: 1 } }],
    ['a reference to elsewhere', { $ref: 'https://example.org/x' }],
  ])('a stranger may choose the schema: %s', async (_, schema) => {
    const w = await checking(schema, { ...done(), structuredContent: `${'a'.repeat(40)}!` });
    await w.run(mcpListTools(MAILBOX, me, o(w)));
    const before = process.cpuUsage();
    expect(await callTool(w)).toHaveProperty('structuredContent');
    // Thousands of years, if the pattern were tried.
    expect(process.cpuUsage(before).user).toBeLessThan(20e6);
  });
});

describe('asked for input', () => {
  const ask = (inputRequests: object | undefined, requestState?: string) => ({
    resultType: 'input_required',
    ...(inputRequests && { inputRequests }),
    ...(requestState !== undefined && { requestState }),
  });
  const form = (message: string) => ({ method: 'elicitation/create', params: { message } });

  test('answered under fresh ids; the state goes back byte for byte, and only if it was given', async () => {
    const w = world();
    const state = 'v1."\\ é\u2028=+/';
    const rounds = [ask({ a: form('A?'), b: { method: 'roots/list' } }, state), ask({ c: form('C?') }), done(), done()];
    const s = scripted(w, ({ id }, n) => [{ id, result: rounds[n - 1] }]);
    const asked: unknown[] = [];
    const onInput = {
      elicit: ({ message }: any, { key }: any) => {
        asked.push([key, message]);
        return { action: 'accept' as const, content: { key } };
      },
      roots: async () => ({ roots: [] }),
    };
    expect(await callTool(w, { onInput }, 't', { x: 1 })).toMatchObject({ content: [text('ok')] });
    await callTool(w, { onInput }, 't', { x: 1 });
    expect(asked).toEqual([
      ['a', 'A?'],
      ['c', 'C?'],
    ]);
    const [first, second, third, other] = s.frames.map((f) => f.params);
    expect(first).not.toHaveProperty('inputResponses');
    expect(first).not.toHaveProperty('requestState');
    expect(second).toMatchObject({
      name: 't',
      arguments: { x: 1 },
      inputResponses: { a: { action: 'accept', content: { key: 'a' } }, b: { roots: [] } },
      requestState: state,
    });
    expect(third.inputResponses).toEqual({ c: { action: 'accept', content: { key: 'c' } } });
    expect(third).not.toHaveProperty('requestState');
    expect(other).toEqual({ ...first, _meta: first._meta });
    expect(new Set(s.frames.map((f) => f.id)).size).toBe(4);
  });

  test('without questions it goes on at once', async () => {
    const w = world();
    const s = scripted(w, ({ id }, n) => [{ id, result: n === 1 ? ask(undefined, 'later') : done() }]);
    await callTool(w);
    expect(s.frames[1].params).toMatchObject({ requestState: 'later' });
    expect(s.frames[1].params).not.toHaveProperty('inputResponses');
  });

  test('ten rounds, no more', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, result: ask({ a: form('again?') }) }]);
    const cause = await reasonOf(callTool(w, { onInput: { elicit: () => ({ action: 'decline' }) } }));
    expect(cause).toMatchObject({ code: 'too_many_rounds' });
    expect(s.frames).toHaveLength(11);
  });

  test('what there is a function for is declared, and nothing else is answered', async () => {
    const f = (() => ({})) as any;
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, result: done() }]);
    for (const [onInput, declared] of [
      [{}, {}],
      [{ elicit: f }, { elicitation: {} }],
      [{ elicitUrl: f }, { elicitation: { url: {} } }],
      [
        { elicit: f, elicitUrl: f, sample: f, roots: f },
        { elicitation: { form: {}, url: {} }, sampling: {}, roots: {} },
      ],
    ] as [object, object][]) {
      await callTool(w, { onInput });
      const meta = s.frames.at(-1).params._meta;
      expect(meta['io.modelcontextprotocol/clientCapabilities']).toEqual(declared);
    }
    const questions = [
      form('?'),
      { method: 'sampling/createMessage' },
      { method: 'roots/list' },
      { method: 'constructor' },
      {},
      { method: 'elicitation/create', params: { mode: 'url' } },
    ];
    const v = world();
    scripted(v, ({ id }, n) => [{ id, result: ask({ a: questions[n - 1] }) }]);
    for (const [i] of questions.entries()) {
      const cause = await reasonOf(callTool(v, i === 5 ? { onInput: { elicit: f } } : {}));
      expect(cause).toMatchObject({ code: 'bad_response' });
    }
  });

  test('a tool that asks who cannot be asked is refused, with what to give', async () => {
    const w = world();
    const missing = [
      { elicitation: {} },
      { elicitation: { url: {} }, roots: {} },
      { sampling: { tools: {} } },
      { odd: {} },
    ];
    scripted(w, ({ id }, n) => [
      { id, error: { code: -32021, message: 'Missing', data: { requiredCapabilities: missing[n - 1] } } },
    ]);
    const hints = ['onInput, with elicit', 'onInput, with elicitUrl, roots', 'onInput, with sample', 'onInput or cap'];
    for (const [n, hint] of hints.entries()) {
      const cause = await reasonOf(callTool(w));
      const rpc = { code: -32021, message: 'Missing', data: { requiredCapabilities: missing[n] } };
      expect(cause).toMatchObject({ code: 'rpc', rpc, message: expect.stringContaining(hint) });
      expect(cause.message).toMatch(/^Missing \(-32021\): /);
    }
  });

  test('what a function of ours throws ends the call, and so does the signal while it runs', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, result: ask({ a: form('?') }) }]);
    const oops = new Error('no person here');
    const throwing = { elicit: () => Promise.reject(oops) };
    expect(await reasonOf(callTool(w, { onInput: throwing }))).toBe(oops);
    for (const [wrong, kind] of [
      ['yes', 'string'],
      [undefined, 'undefined'],
    ])
      expect(await reasonOf(callTool(w, { onInput: { elicit: () => wrong as any } }))).toMatchObject({
        code: 'bad_option',
        message: `what onInput answers to elicitation/create must be an object, not ${kind}`,
      });
    const stop = new AbortController();
    const waiting = {
      elicit: () => {
        stop.abort(oops);
        return new Promise<any>(() => {});
      },
    };
    expect(await reasonOf(callTool(w, { onInput: waiting, signal: stop.signal }))).toBe(oops);
    expect(s.frames).toHaveLength(4);
  });
});

describe('progress and log lines', () => {
  const progress = (progressToken: Json, more: object) => ({
    method: 'notifications/progress',
    params: { progressToken, ...more },
  });
  const line = (params: object) => ({ method: 'notifications/message', params });

  test('handed on when asked for, each to its own call', async () => {
    const w = world();
    const s = scripted(w, ({ id, params: { _meta: meta } }) => {
      const token = meta.progressToken;
      return [
        progress(token, { progress: 1, total: 3, message: 'one' }),
        progress(token, { progress: 1 }),
        progress(token, { progress: 'x' }),
        progress(`${token}x`, { progress: 7 }),
        progress(token, { progress: 8, _meta: { 'chat.technocore/requestId': `${id}0` } }),
        progress(token, { progress: 2.5, total: '3' }),
        line({ level: 'info', data: { a: 1 }, logger: 'l', _meta: { 'chat.technocore/requestId': id } }),
        line({ level: 'error', data: 'of another', _meta: { 'chat.technocore/requestId': `${id}0` } }),
        line({ level: 'error', data: 'untagged' }),
        line({ level: 5, data: 'x' }),
        { id, result: done() },
      ];
    });
    const told: unknown[] = [];
    const onProgress = (...args: unknown[]) => void told.push(args);
    await callTool(w, { onProgress, onLog: (...args) => void told.push(args), logLevel: 'debug' });
    expect(told).toEqual([
      [1, 3, 'one'],
      [2.5, undefined, undefined],
      ['info', { a: 1 }, 'l'],
      ['error', 'untagged', undefined],
    ]);
    await callTool(w, { onLog: () => {} });
    await callTool(w);
    const metas = s.frames.map((f) => f.params._meta);
    expect(metas.map((m) => m['io.modelcontextprotocol/logLevel'])).toEqual(['debug', 'info', undefined]);
    expect(metas.map((m) => typeof m.progressToken)).toEqual(['string', 'undefined', 'undefined']);
    expect(told).toHaveLength(4);
  });

  test('progress holds a call open past its timeout, silence does not', async () => {
    const w = world();
    let say: any;
    scripted(w, ({ id, params }) => {
      say ??= async (out: object) => peerKey.say(REPLY, encode({ jsonrpc: '2.0', ...out } as Json), w.o);
      void (async () => {
        for (let i = 1; i <= 5; i++) {
          await w.clock.sleep(4000);
          if (params.name === 'speaks') await say(progress(params._meta.progressToken, { progress: i }));
        }
        await say({ id, result: done() });
      })();
      return [];
    });
    const more = { timeoutMs: 5000, onProgress: () => {} };
    expect(await callTool(w, more, 'speaks')).toMatchObject({ content: [text('ok')] });
    expect(await reasonOf(callTool(w, more, 'is silent'))).toMatchObject({ code: 'call_timeout' });
  });

  test('a stranger’s progress, though the token be right, keeps nobody’s answer away', async () => {
    const w = world();
    scripted(w, ({ id, params }) => {
      void (async () => {
        const copied = progress(params._meta.progressToken, { progress: 0.5 });
        await signer(66).say(REPLY, encode({ jsonrpc: '2.0', ...copied } as Json), w.o);
        await w.clock.sleep(100);
        await peerKey.say(REPLY, encode({ jsonrpc: '2.0', id, result: done() } as Json), w.o);
      })();
      return [];
    });
    expect(await callTool(w, { onProgress: () => {} })).toMatchObject({ content: [text('ok')] });
    expect(await callTool(w, { onProgress: () => {} })).toMatchObject({ content: [text('ok')] });
  });

  test('a callback that throws ends the call and cancels it', async () => {
    const w = world();
    const s = scripted(w, ({ id, params }) =>
      id === undefined ? [] : [progress(params._meta.progressToken, { progress: 1 })],
    );
    const oops = new Error('mine');
    const onProgress = () => {
      throw oops;
    };
    expect(await reasonOf(callTool(w, { onProgress }))).toBe(oops);
    await w.clock.advance(1000);
    expect(s.cancels()).toEqual([{ requestId: s.frames[0].id, reason: 'the caller gave up' }]);
  });
});

describe('cancelling', () => {
  test('fault 88: on abort and on timeout the server is told, once, by the id of the request', async () => {
    const w = world();
    const s = scripted(w, () => []);
    const stop = new AbortController();
    const aborted = reasonOf(callTool(w, { signal: stop.signal }));
    await w.until(() => s.frames.length === 1);
    stop.abort('changed my mind');
    expect(await aborted).toBe('changed my mind');
    expect(await reasonOf(callTool(w, { timeoutMs: 3000 }))).toMatchObject({ code: 'call_timeout' });
    await w.clock.advance(5000);
    const [a, b] = s.requests();
    expect(s.cancels()).toEqual([
      { requestId: a.id, reason: 'changed my mind' },
      { requestId: b.id, reason: 'timeout' },
    ]);
  });

  test('nothing is cancelled that was answered, or never written', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => [{ id, error: { code: -32603, message: 'no' } }]);
    await reasonOf(callTool(w));
    const stop = new AbortController();
    stop.abort('before');
    expect(await reasonOf(callTool(w, { signal: stop.signal }))).toBe('before');
    const early = new AbortController();
    const never = faulty(w.o.fetch, (url) => (url.includes(`/r/${REPLY}`) ? new Promise(() => {}) : undefined));
    const pending = reasonOf(callTool(w, { signal: early.signal, fetch: never }));
    await w.clock.advance(100);
    early.abort('early');
    expect(await pending).toBe('early');
    await w.clock.advance(60_000);
    expect(s.frames).toHaveLength(1);
  });

  test('an answer that comes before the word that the request was written ends the call, and nothing is cancelled', async () => {
    const stop = new AbortController();
    const { channel, frames } = await answering(({ id }) => {
      setImmediate(() => stop.abort('late'));
      return [{ id, result: done() }];
    });
    const send = (text: string, { signal }: SendOptions = {}) =>
      new Promise<never>((_, reject) => {
        void channel.send(text);
        signal!.addEventListener('abort', () => reject(signal!.reason));
      });
    expect(await mcpCallTool({ ...channel, send }, 't', {}, me, { signal: stop.signal })).toMatchObject({
      content: [text('ok')],
    });
    await new Promise((resolve) => setImmediate(resolve));
    expect(frames).toHaveLength(1);
  });

  test('a tool of ours that hangs is stopped', async () => {
    const w = world();
    let stopped: unknown;
    let begun = false;
    await served(w, (tools) =>
      tool(
        't',
        'd',
        {},
        (_, { signal }) => {
          begun = true;
          signal.addEventListener('abort', () => (stopped = signal.reason));
          return new Promise(() => {});
        },
        { tools },
      ),
    );
    const stop = new AbortController();
    const aborted = reasonOf(callTool(w, { signal: stop.signal }));
    await w.until(() => begun);
    stop.abort('enough');
    await aborted;
    await w.clock.advance(1000);
    expect(stopped).toMatchObject({ message: 'enough' });
    const { messages } = await w.run(read(REPLY, w.o));
    expect(messages.filter((m) => m.from === peerKey.did)).toEqual([]);
  });
});

test('called off while it waits for its turn, a tool does not run, and others get theirs', async () => {
  const w = world();
  let release!: (text: string) => void;
  const ran: string[] = [];
  const define = (tools: Map<string, Tool>): void => {
    tool('slow', 'd', {}, () => new Promise<string>((resolve) => (release = resolve)), { tools });
    tool('quick', 'd', {}, ({ n }) => void ran.push(n), { tools });
  };
  await served(w, define, MAILBOX, { concurrency: 1 });
  const slow = mcpCallTool(MAILBOX, 'slow', {}, me, o(w));
  await w.clock.advance(200);
  const stop = new AbortController();
  const off = reasonOf(mcpCallTool(MAILBOX, 'quick', { n: 'off' }, me, o(w, { signal: stop.signal })));
  const on = mcpCallTool(MAILBOX, 'quick', { n: 'on' }, me, o(w));
  await w.clock.advance(200);
  stop.abort('enough');
  expect(await w.run(off)).toBe('enough');
  await w.clock.advance(200);
  release('done');
  await w.run(Promise.all([slow, on]));
  expect(ran).toEqual(['on']);
});

/** A network on which the client cannot read for a while, in which its mailbox loses messages. */
function lossy(w: World) {
  const flooder = signer(5);
  let deaf = false;
  let lines = 0;
  const fetch = faulty(w.o.fetch, async (url, init) => {
    if (!url.includes(`/r/${REPLY}?`)) return undefined;
    const view = await w.o.fetch(url, init);
    if (deaf) throw broken();
    return view;
  });
  return {
    fetch,
    /** Runs `meanwhile` and then floods the mailbox, unseen by the client. */
    async lose(meanwhile: () => Promise<unknown> = async () => {}): Promise<void> {
      deaf = true;
      await meanwhile();
      for (let i = 0; i < 12; i++) await flooder.say(REPLY, `${++lines} ${'x'.repeat(4000)}`, w.o);
      deaf = false;
    },
  };
}

const RING = { roomRingBytes: 20_000 };

describe('lost messages', () => {
  async function losing(name: string, more: McpCallOptions, list?: object, times = 1) {
    const w = world('modern', RING);
    const { fetch, lose } = lossy(w);
    let calls = 0;
    const s = scripted(w, ({ id, method }) => {
      if (method === 'tools/list') return [{ id, result: list }];
      if (method !== 'tools/call') return [];
      const answer = { id, result: done(`${++calls}`) };
      if (calls > times) return [answer];
      void lose(() => peerKey.say(REPLY, encode({ jsonrpc: '2.0', ...answer } as Json), w.o));
      return [];
    });
    if (list) await w.run(mcpListTools(MAILBOX, me, o(w, { fetch })));
    const outcome = await callTool(w, { fetch, ...more }, name).catch((cause) => cause);
    await w.clock.advance(2000);
    return { outcome, requests: s.requests().filter((f) => f.method === 'tools/call'), cancels: s.cancels() };
  }
  const tools = (annotations: object) => ({
    ...COMPLETE,
    tools: [{ name: 't', inputSchema: { type: 'object' }, annotations }],
    ttlMs: 0,
    cacheScope: 'public',
  });

  test('the call ends in RingGap, and the server is told', async () => {
    for (const list of [undefined, tools({}), tools({ idempotentHint: false, readOnlyHint: true })]) {
      const { outcome, requests, cancels } = await losing('t', {}, list);
      expect(outcome).toMatchObject({ code: 'ring_gap', room: REPLY });
      expect(requests).toHaveLength(1);
      expect(cancels).toEqual([{ requestId: requests[0].id, reason: 'the answer may be lost' }]);
    }
  });

  test('what may run twice is called again under a fresh id', async () => {
    for (const [more, list] of [
      [{ idempotent: true }, undefined],
      [{}, tools({ idempotentHint: true })],
      [{}, tools({ readOnlyHint: true })],
    ] as [McpCallOptions, object | undefined][]) {
      const { outcome, requests } = await losing('t', more, list);
      expect(outcome).toMatchObject({ content: [text('2')] });
      expect(new Set(requests.map((f) => f.id)).size).toBe(2);
      expect(requests[0].params).toEqual({
        ...requests[1].params,
        _meta: { ...requests[1].params._meta, progressToken: requests[0].params._meta.progressToken },
      });
    }
    const { outcome, requests } = await losing('t', { idempotent: false }, tools({ idempotentHint: true }));
    expect(outcome).toMatchObject({ code: 'ring_gap' });
    expect(requests).toHaveLength(1);
  });

  test('three times, no more', async () => {
    const { outcome, requests } = await losing('t', { idempotent: true }, undefined, 9);
    expect(outcome).toMatchObject({ code: 'ring_gap' });
    expect(requests).toHaveLength(4);
  });
});

describe('listening', () => {
  const ack = (id: Json, notifications: object = { toolsListChanged: true }) => ({
    method: 'notifications/subscriptions/acknowledged',
    params: { _meta: { [TAG]: id }, notifications },
  });
  const changed = (id: Json, more: object = {}) => ({
    method: 'notifications/tools/list_changed',
    params: { _meta: { [TAG]: id }, ...more },
  });
  const FILTER = { toolsListChanged: true };

  test('what is tagged with the subscription, and the same once', async () => {
    const w = world();
    const s = scripted(w, ({ id }) =>
      id === undefined
        ? []
        : [
            changed('other'),
            ack(id, { toolsListChanged: true, resourceSubscriptions: ['a', 5] }),
            changed(`${id}x`),
            { method: 'notifications/tools/list_changed' },
            { method: 'notifications/cancelled', params: { requestId: `${id}x` } },
            changed(id),
            changed(id),
            { method: 'notifications/resources/updated', params: { uri: 'a', _meta: { [TAG]: id } } },
          ],
    );
    const ready: unknown[] = [];
    const filter = { toolsListChanged: true, resourceSubscriptions: ['a'] };
    const notices = mcpListen(MAILBOX, filter, me, { ...o(w), onReady: (told) => void ready.push(told) });
    const first = notices.next();
    await w.run(first);
    await w.clock.advance(3000);
    const second = notices.next();
    expect([(await first).value, (await w.run(second)).value]).toMatchObject([
      { method: 'notifications/tools/list_changed' },
      { method: expect.stringMatching(/list_changed|updated/) },
    ]);
    expect(ready).toEqual([{ toolsListChanged: true, resourceSubscriptions: ['a'] }]);
    expect(s.frames[0].params.notifications).toEqual(filter);
    const rest: any[] = [];
    const third = notices.next().then(({ value }) => rest.push(value));
    await w.clock.advance(1000);
    if (rest.length === 0) {
      await peerKey.say(REPLY, encode({ jsonrpc: '2.0', ...changed(s.frames[0].id) } as Json), w.o);
      await w.run(third);
    }
    await w.run(notices.return(null));
    await w.clock.advance(1000);
    expect(s.requests()).toHaveLength(1);
    expect(s.cancels()).toEqual([{ requestId: s.frames[0].id, reason: 'listening ended' }]);
    expect(w.clock.sleepers).toBeLessThanOrEqual(2);
  });

  test('ends with the reason of the signal, and is cancelled', async () => {
    const w = world();
    const s = scripted(w, ({ id }) => (id === undefined ? [] : [ack(id)]));
    const stop = new AbortController();
    const next = reasonOf(mcpListen(MAILBOX, FILTER, me, { ...o(w), signal: stop.signal }).next());
    await w.clock.advance(100);
    stop.abort('enough');
    expect(await w.run(next)).toBe('enough');
    await w.clock.advance(1000);
    expect(s.cancels()).toEqual([{ requestId: s.frames[0].id, reason: 'enough' }]);
    expect(await reasonOf(mcpListen(MAILBOX, FILTER, me, { ...o(w), signal: stop.signal }).next())).toBe('enough');
  });

  test("a filter that names nothing the server knows is refused, not waited on; kinds unknown here are the server's", async () => {
    const w = world();
    let rest = (id: any): any[] => [ack(id, {})];
    const s = scripted(w, ({ id }) => (id === undefined ? [] : rest(id)));
    for (const filter of [{}, { toolsListchanged: true }] as object[]) {
      const cause = await reasonOf(w.run(mcpListen(MAILBOX, filter, me, o(w)).next()));
      expect(cause).toMatchObject({ code: 'not_offered' });
    }
    const future: object = { taskIds: ['t'] };
    rest = (id) => [ack(id, future), changed(id)];
    const notices = mcpListen(MAILBOX, future, me, o(w));
    expect((await w.run(notices.next())).value).toMatchObject({ method: 'notifications/tools/list_changed' });
    await w.run(notices.return(null));
    expect(s.frames.at(-1).params.requestId).toBe(s.requests().at(-1).id);
  });

  test('fails when nobody answers, when it is refused, and when nothing of it is offered', async () => {
    const w = world();
    const outcomes: any[] = [
      [],
      ({ id }: any) => [{ id, error: { code: -32603, message: 'Too many subscriptions' } }],
      ({ id }: any) => [ack(id, {})],
      ({ id }: any) => [{ id, result: COMPLETE }],
    ];
    const s = scripted(w, (frame) =>
      frame.id === undefined ? [] : typeof outcomes[0] === 'function' ? outcomes[0](frame) : [],
    );
    for (const code of ['call_timeout', 'rpc', 'not_offered', 'bad_response']) {
      const cause = await reasonOf(w.run(mcpListen(MAILBOX, FILTER, me, { ...o(w), timeoutMs: 2000 }).next()));
      expect(cause).toMatchObject({ code });
      outcomes.shift();
    }
    await w.clock.advance(1000);
    expect(s.cancels().map((c) => c.reason)).toEqual(['timeout', 'nothing to listen to']);
  });

  test('renewed before the server forgets it: the next is open before the last is given up', async () => {
    const w = world();
    const [ours, theirs] = pipe();
    const sent: any[] = [];
    const channel = { ...ours, send: (text: string) => ours.send(text, void sent.push(decode(text)) as undefined) };
    const { tools } = await served(w, () => {}, theirs);
    let ready = 0;
    const notices = mcpListen(channel, FILTER, me, { ...w.o, onReady: () => void ready++ });
    const first = notices.next();
    // Five hours, in which the server would have forgotten it five times.
    await w.clock.advance(18_000_000);
    expect(ready).toBe(7);
    toolsChanged(tools);
    expect((await w.run(first)).value).toMatchObject({ method: 'notifications/tools/list_changed' });
    const open = sent.filter((f) => f.method === 'subscriptions/listen').map((f) => f.id);
    const closed = sent.filter((f) => f.method === 'notifications/cancelled').map((f) => f.params.requestId);
    expect(new Set(open).size).toBe(7);
    expect(closed).toEqual(open.slice(0, -1));
    await w.run(notices.return(null));
  });

  test('opened again after a gap, and what may have been missed is told', async () => {
    const w = world('modern', RING);
    const { fetch, lose } = lossy(w);
    const s = scripted(w, ({ id }) => (id === undefined ? [] : [ack(id)]));
    let ready = 0;
    const notices = mcpListen(MAILBOX, FILTER, me, { ...o(w, { fetch }), onReady: () => void ready++ });
    const first = notices.next();
    await w.until(() => ready === 1);
    await w.run(lose());
    expect((await w.run(first)).value).toEqual({ jsonrpc: '2.0', method: 'notifications/tools/list_changed' });
    expect(ready).toBe(2);
    const [a, b] = s.requests();
    expect(b.id).not.toBe(a.id);
    expect(s.cancels()).toEqual([{ requestId: a.id, reason: 'the answer may be lost' }]);
    await w.run(notices.return(null));
  });

  test('opened again when the server ends it, after pauses that grow', async () => {
    const w = world();
    const at: number[] = [];
    scripted(w, ({ id }) => {
      if (id === undefined) return [];
      at.push(w.clock.now());
      const over =
        at.length % 2 === 0
          ? { id, result: { ...COMPLETE, _meta: { [TAG]: id } } }
          : { method: 'notifications/cancelled', params: { requestId: id, _meta: { [TAG]: id } } };
      return [ack(id), over];
    });
    const notices = mcpListen(MAILBOX, FILTER, me, o(w));
    void notices.next();
    await w.clock.advance(200_000);
    const pauses = at.slice(1).map((ms, i) => Math.round((ms - at[i]!) / 1000));
    expect(pauses.slice(0, 7)).toEqual([1, 2, 4, 8, 16, 32, 60]);
    await w.run(notices.return(null));
  });

  test('opened once more when the server fails it, and what it says then counts', async () => {
    const w = world();
    const error = { code: -32603, message: 'cannot notify' };
    const s = scripted(w, ({ id }) => {
      if (id === undefined) return [];
      return s.requests().length < 3 ? [ack(id), { id, error }] : [{ id, error }];
    });
    let ready = 0;
    const notices = mcpListen(MAILBOX, FILTER, me, { ...o(w), onReady: () => void ready++ });
    const failed = (async () => {
      for await (const _ of notices) ready += 10;
    })().catch((cause) => cause);
    expect(await w.run(failed)).toMatchObject({ rpc: error });
    expect(ready).toBe(12);
  });

  test('a server of ours that stops and comes again is listened to again', async () => {
    const w = world();
    const first = await served(w, () => {});
    let ready = 0;
    const notices = mcpListen(MAILBOX, FILTER, me, { ...o(w), onReady: () => void ready++ });
    const next = notices.next();
    await w.until(() => ready === 1);
    first.stop();
    await w.run(first.ended);
    await served(w, () => {});
    expect((await w.run(next)).value).toMatchObject({ method: 'notifications/tools/list_changed' });
    expect(ready).toBe(2);
    await w.run(notices.return(null));
  });

  test('a slow reader costs no memory', async () => {
    const events: Event[] = [];
    const { channel } = await answering(({ id }) =>
      id === undefined
        ? []
        : [
            ack(id),
            ...Array.from({ length: 300 }, (_, i) => ({
              method: 'notifications/resources/updated',
              params: { uri: `u${i}`, _meta: { [TAG]: id } },
            })),
          ],
    );
    const filter = { resourceSubscriptions: ['u'], ...FILTER };
    const notices = mcpListen(channel, filter, me, { onEvent: (e) => void events.push(e) });
    await notices.next();
    await new Promise((resolve) => setImmediate(resolve));
    expect(events).toHaveLength(300 - 256);
    expect(events[0]).toMatchObject({ kind: 'skipped', reason: 'too many notices wait' });
    await notices.return(null);
  });
});

test('a mailbox that nobody writes to is kept alive', async () => {
  const { clock } = world();
  const { channel, frames } = await answering(({ id }, n) =>
    n === 2 ? [] : [{ id, result: { supportedVersions: [], capabilities: {} } }],
  );
  const stop = new AbortController();
  const kept = mcpKeepAlive(channel, me, { clock, signal: stop.signal });
  const hour = 3_600_000;
  const requests = () => frames.filter((f) => f.id !== undefined).map((f) => f.method);
  await clock.advance(19 * hour);
  expect(requests()).toEqual(['server/discover']);
  // The second goes unanswered: so there is a third, an hour later, and then the usual time.
  await clock.advance(22 * hour);
  expect(requests()).toHaveLength(3);
  await clock.advance(19 * hour);
  expect(requests()).toHaveLength(4);
  await clock.advance(2 * hour);
  expect(requests()).toEqual(Array(5).fill('server/discover'));
  stop.abort();
  await kept;
  expect(clock.sleepers).toBe(0);
});
