import { describe, expect, test } from 'vitest';
import { a2aAgent } from '../src/a2a-agent.ts';
import { a2aGet, a2aList, a2aSend, a2aStream } from '../src/a2a-call.ts';
import { call } from '../src/call.ts';
import { createDispatcher, type Handler } from '../src/dispatch.ts';
import { TechnocoreError } from '../src/errors.ts';
import { publishIdentity } from '../src/identity.ts';
import { defineTool } from '../src/mcp.ts';
import { mcpCallTool, mcpDiscover, mcpListTools } from '../src/mcp-client.ts';
import { setNote } from '../src/notes.ts';
import { read } from '../src/rooms.ts';
import { Random } from './sim/random.ts';
import { echoing, signer, world } from './support.ts';
import { settled } from './virtual-clock.ts';

// What is right but for a value here and there that nobody would write who means well.

const HOSTILE = [
  '{"toString":1,"valueOf":1}',
  '"__proto__"',
  '"constructor"',
  '"toString"',
  '"hasOwnProperty"',
  '{"__proto__":{"polluted":1}}',
  '{"constructor":{"prototype":{"polluted":1}}}',
  '{"then":1,"length":9007199254740991}',
  '[]',
  '[[]]',
  '{}',
  '-1',
  '1.5',
  '1e308',
  '""',
  'null',
  'true',
  JSON.stringify('x'.repeat(500)),
  '['.repeat(500) + ']'.repeat(500),
];
const NAMES = ['__proto__', 'constructor', 'toString'];

function spoilt(random: Random, value: unknown): unknown {
  const isLeaf = typeof value !== 'object' || value === null;
  if (isLeaf || random.chance(0.15)) {
    return random.chance(0.3) ? JSON.parse(random.pick(HOSTILE)) : value;
  }
  if (Array.isArray(value)) return value.map((one) => spoilt(random, one));
  const members = Object.entries(value).map(([name, one]) => [
    random.chance(0.05) ? random.pick(NAMES) : name,
    spoilt(random, one),
  ]);
  // As a parser makes it: a member called __proto__ is one like any other.
  return JSON.parse(`{${members.map(([name, one]) => `${JSON.stringify(name)}:${JSON.stringify(one)}`).join()}}`);
}

const said = { messageId: 'm', role: 'ROLE_AGENT', parts: [{ text: 'x' }, { data: { a: 1 } }] };
const artifact = { artifactId: 'a', parts: [{ raw: 'AAEC', mediaType: 'x/y' }, { url: 'https://x.example' }] };
const status = { state: 'TASK_STATE_COMPLETED', timestamp: '2026-01-01T00:00:00Z', message: said };
const of = { taskId: 't', contextId: 'p-c' };
const task = { id: 't', contextId: 'p-c', status, artifacts: [artifact], history: [said], metadata: {} };
const parts03 = [
  { kind: 'text', text: 'x' },
  { kind: 'data', data: {} },
  { kind: 'file', file: { bytes: 'AAEC' } },
];
const said03 = { kind: 'message', messageId: 'm', role: 'agent', parts: parts03 };
const task03 = { kind: 'task', id: 't', contextId: 'p-c', status: { state: 'completed', message: said03 } };
const schema = { type: 'object', properties: { a: { type: 'string' } } };
const cached = { resultType: 'complete', ttlMs: 0, cacheScope: 'private', _meta: {} };
const ANSWERS: { [method: string]: object[] } = {
  SendMessage: [{ task }, { message: said }],
  GetTask: [task],
  ListTasks: [{ tasks: [task], nextPageToken: '', pageSize: 50, totalSize: 1 }],
  SendStreamingMessage: [{ task }, { statusUpdate: { ...of, status } }, { artifactUpdate: { ...of, artifact } }],
  'message/send': [task03, said03],
  'message/stream': [task03, { kind: 'status-update', ...of, status: { state: 'completed' }, final: true }],
  'server/discover': [{ ...cached, supportedVersions: ['2026-07-28'], capabilities: { tools: {} } }],
  'tools/list': [{ ...cached, tools: [{ name: 'x', inputSchema: schema, annotations: {}, icons: [{ src: 'x' }] }] }],
  'tools/call': [{ ...cached, content: [{ type: 'text', text: 'x' }], structuredContent: { a: 1 }, isError: false }],
};

const unpolluted = (): void => expect(({} as { polluted?: unknown }).polluted).toBeUndefined();

describe.each([1, 2])('hostile values, seed %i', (seed) => {
  test('in answers end in results, or in errors of ours', async () => {
    const w = world('modern', { roomRingBytes: 1 << 25 });
    const random = new Random(seed);
    const methods = new Map<string, Handler>(
      Object.entries(ANSWERS).map(([method, all]) => [method, () => spoilt(random, random.pick(all))]),
    );
    const { ended, stop } = await echoing(w, 'mb-p-hostile', signer(1), { methods });
    const key = signer(2);
    const o = { ...w.o, replyTo: 'mb-p-hostile-me', timeoutMs: 3000 };
    const old = { ...o, version: '0.3' as const };
    const asks: (() => Promise<unknown>)[] = [
      () => a2aSend('mb-p-hostile', 'x', key, o),
      () => a2aSend('mb-p-hostile', 'x', key, old),
      () => a2aGet('mb-p-hostile', 't', key, o),
      () => a2aList('mb-p-hostile', key, o),
      () => a2aStream('mb-p-hostile', 'x', key, o).next(),
      () => a2aStream('mb-p-hostile', 'x', key, old).next(),
      () => mcpDiscover('mb-p-hostile', key, o),
      () => mcpListTools('mb-p-hostile', key, o),
      () => mcpCallTool('mb-p-hostile', 'x', {}, key, o),
    ];
    let errors = 0;
    for (let i = 0; i < 360; i++) {
      const cause: unknown = await w.run(asks[i % asks.length]!()).then(
        () => undefined,
        (e) => e ?? 'nothing',
      );
      if (cause === undefined) continue;
      errors++;
      if (!TechnocoreError.is(cause)) throw cause;
    }
    expect(errors).toBeGreaterThan(30);
    expect(w.kinds()).not.toContain('listener-error');
    unpolluted();
    stop();
    await w.run(ended);
  });

  test('in requests are answered with errors that name them, and none is the fault of ours', async () => {
    const random = new Random(seed);
    const faults: unknown[] = [];
    const agent = a2aAgent(async (_, { update }) => void (await update('working')), {
      name: 'x',
      capabilities: { streaming: true },
    });
    const nested = { ...schema, properties: { ...schema.properties, b: { type: 'array', items: { $ref: '#' } } } };
    const tool = defineTool('x', 'd', nested, (args, { progress, log }) => {
      progress(1);
      log('info', args);
      return args;
    });
    const dispatcher = createDispatcher({ methods: agent.methods, tools: new Map([['x', tool]]) });
    const _meta = {
      'io.modelcontextprotocol/protocolVersion': '2026-07-28',
      'io.modelcontextprotocol/clientCapabilities': { elicitation: {} },
      'io.modelcontextprotocol/logLevel': 'debug',
      progressToken: 1,
    };
    const message = { ...said, role: 'ROLE_USER', contextId: 'p-c', extensions: ['e'], referenceTaskIds: ['r'] };
    const configuration = { acceptedOutputModes: ['text/plain'], historyLength: 1, returnImmediately: true };
    const listed = {
      contextId: 'c',
      status: 'TASK_STATE_WORKING',
      pageSize: 1,
      statusTimestampAfter: status.timestamp,
    };
    const requests: [method: string, params: object][] = [
      ['SendMessage', { message, configuration, metadata: {} }],
      ['message/send', { message: { ...said03, role: 'user' }, configuration: { blocking: false } }],
      ['SendStreamingMessage', { message }],
      ['GetTask', { id: 't', historyLength: 1 }],
      ['ListTasks', { ...listed, pageToken: 'AAAA' }],
      ['CancelTask', { id: 't' }],
      ['SubscribeToTask', { id: 't' }],
      [
        'tools/call',
        { name: 'x', arguments: { a: 'x', b: [{ a: 'y' }] }, inputResponses: { q: { action: 'x' } }, _meta },
      ],
      ['tools/call', { name: 'x', arguments: {}, requestState: 'a.b', _meta }],
      ['tools/list', { cursor: 'c', _meta }],
      ['server/discover', { _meta }],
      ['subscriptions/listen', { notifications: { toolsListChanged: true }, _meta }],
      ['notifications/cancelled', { requestId: 1, reason: 'x' }],
    ];
    const open: Promise<unknown>[] = [];
    for (let id = 0; id < 3000; id++) {
      const [method, params] = random.pick(requests);
      const frame = spoilt(random, { jsonrpc: '2.0', id, method, params });
      const context = {
        from: `did:key:${id % 5}`,
        emit: () => {},
        onError: (error: unknown) => void faults.push(error),
      };
      open.push(dispatcher.dispatch(frame, context));
      await settled();
    }
    agent.close();
    dispatcher.close();
    await Promise.all(open);
    expect(faults).toEqual([]);
    unpolluted();
  });
});

test('ids: what cannot be answered under its id does not run, and any other id comes back as it was', async () => {
  const w = world('modern', { roomRingBytes: 1 << 25 });
  const runs: unknown[] = [];
  const methods = new Map<string, Handler>([['echo', ({ n }) => runs.push(n) && n]]);
  const { ended, stop } = await echoing(w, 'mb-p-hostile', signer(1), { methods });
  const eve = signer(2);
  await w.run(eve.say('mb-p-hostile-eve', 'mine', w.o));
  const good = [1, '1', 0, 1.5, 9007199254740991, null, '__proto__', 'constructor', '', '\u0000', 'i'.repeat(3000)];
  const bad = ['é'.repeat(1000), 'i'.repeat(3800)];
  for (const [n, id] of [...good, ...bad].entries()) {
    const params = { n, _meta: { 'chat.technocore/reply': 'mb-p-hostile-eve' } };
    await w.run(eve.say('mb-p-hostile', JSON.stringify({ jsonrpc: '2.0', id, method: 'echo', params }), w.o));
  }
  await w.clock.advance(5000);
  const { messages } = await w.run(read('mb-p-hostile-eve', { ...w.o, limit: 200 }));
  const answers = messages.filter((m) => m.from === signer(1).did).map((m) => JSON.parse(m.text));
  expect(answers.map(({ id, result }) => [id, result]).sort(([, a], [, b]) => a - b)).toEqual(
    good.map((id, n) => [id, n]),
  );
  expect(runs).toHaveLength(good.length);
  expect(w.events.filter(({ reason }) => reason === 'an id too long for any answer')).toHaveLength(2);
  stop();
  await w.run(ended);
});

describe('servers set upon each other, and on themselves', () => {
  test('write no more than they were asked for, and go on', async () => {
    const w = world();
    const eve = signer(9);
    const [one, two, both] = ['mb-p-hostile-one', 'mb-p-hostile-two', 'mb-p-hostile-both'];
    const methods = new Map<string, Handler>([
      [
        'echo',
        ({ n }, { notify }) => {
          // What a caller aims at another server is a notification to it, of ours.
          notify('echo', { n });
          return n;
        },
      ],
    ]);
    const servers = [];
    for (const [i, mailbox] of [one, two, both, both].entries()) {
      servers.push(
        await echoing({ ...w, o: { ...w.o, fetch: w.service.client(`${i}`) } }, mailbox, signer(i + 1), { methods }),
      );
    }
    // A record of its own that names a mailbox of theirs.
    await w.run(publishIdentity(eve, { mailbox: both }, w.o));
    const boxes = [one, two, both];
    for (const box of boxes) {
      for (const reply of [...boxes, undefined]) {
        const params = { n: 1, ...(reply && { _meta: { 'chat.technocore/reply': reply } }) };
        const ask = { jsonrpc: '2.0', id: `${box} ${reply}`, method: 'echo', params };
        const frames = [
          ask,
          [ask, { jsonrpc: '2.0', id: 1, result: 1 }, 7],
          { jsonrpc: '2.0', id: 2, error: { code: 1, message: 'x' } },
        ];
        for (const frame of frames) await w.run(eve.say(box, JSON.stringify(frame), w.o));
      }
    }
    const count = async (): Promise<number> => {
      let messages = 0;
      for (const box of boxes) messages += (await w.run(read(box, { ...w.o, limit: 200 }))).lastSeq;
      return messages;
    };
    await w.clock.advance(120_000);
    const settledAt = await count();
    // Of the 36 lines that eve wrote hardly any asks for more than a line or two, though two servers read one box.
    expect(settledAt).toBeLessThan(4 + 36 + 4 * 36);
    await w.clock.advance(300_000);
    expect(await count()).toBe(settledAt);
    // They go on as if nothing had been.
    expect(await w.run(call(one, 'echo', { n: 5 }, signer(11), { ...w.o, replyTo: 'mb-p-hostile-me' }))).toBe(5);
    for (const { stop } of servers) stop();
    await w.run(Promise.all(servers.map(({ ended }) => ended)));
  });

  test('whose notes are changed under their feet go on, and what they put there is read right or not at all', async () => {
    const w = world();
    const notes = new Set<string>();
    const seen = (of: typeof globalThis.fetch): typeof globalThis.fetch =>
      ((url: string, init?: RequestInit) => {
        const [, ns, key] = /\/kv\/([^/?]+)\/([^/?]+)\/set/.exec(url) ?? [];
        if (ns !== undefined) notes.add(`${ns}/${key}`);
        return of(url, init);
      }) as typeof globalThis.fetch;
    const o = { ...w.o, fetch: seen(w.service.client('server')) };
    const random = new Random(3);
    const big = 'x'.repeat(9000);
    const methods = new Map<string, Handler>([['big', ({ n }) => `${n} ${big}`]]);
    const { ended, stop } = await echoing({ ...w, o }, 'mb-p-hostile', signer(1), { methods, claim: true });
    await w.run(publishIdentity(signer(1), { mailbox: 'mb-p-hostile' }, o));
    let isOver = false;
    const spoiling = (async () => {
      while (!isOver) {
        for (const note of notes) {
          const [ns, key] = note.split('/') as [string, string];
          if (random.chance(0.3))
            await setNote(ns, key, random.pick([...HOSTILE.slice(0, 17), 'x'.repeat(8000)]) || '-', w.o).catch(
              () => {},
            );
        }
        await w.clock.sleep(random.int(300));
      }
    })();
    for (let n = 0; n < 40; n++) {
      const how = { ...w.o, replyTo: 'mb-p-hostile-me', peer: signer(1).did, timeoutMs: 5000 };
      await w.run(
        call('mb-p-hostile', 'big', { n }, signer(2), how).then(
          (text) => expect(text).toBe(`${n} ${big}`),
          (cause) => expect(TechnocoreError.is(cause), String(cause)).toBe(true),
        ),
      );
      await w.clock.advance(2000);
    }
    isOver = true;
    await w.run(spoiling);
    expect(notes.size).toBeGreaterThan(3);
    expect(w.kinds()).toContain('spilled');
    await w.clock.advance(180_000);
    const how = { ...w.o, replyTo: 'mb-p-hostile-me', timeoutMs: 30_000 };
    expect(await w.run(call('mb-p-hostile', 'big', { n: 99 }, signer(2), how))).toBe(`99 ${big}`);
    stop();
    await w.run(ended);
  });
});
