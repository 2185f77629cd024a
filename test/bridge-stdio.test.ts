import { PassThrough } from 'node:stream';
import { Client } from '@modelcontextprotocol/client';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import {
  ElicitRequestSchema,
  LoggingMessageNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { afterEach, expect, test } from 'vitest';
import { RoomClientTransport, RoomServerTransport } from '../src/bridge.ts';
import { Lines } from '../src/bridge-lines.ts';
import { type Bridged, bridgeHost, bridgeServer } from '../src/bridge-stdio.ts';
import { TechnocoreError } from '../src/errors.ts';
import { createLocalService } from '../src/local.ts';
import { FREE, signer, until } from './support.ts';

// Both ends of a bridge in this process, a real server in another, and rooms between them.

const MODERN = new URL('mcp-modern.mjs', import.meta.url).pathname;
const closing: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).reverse()) await close();
});

interface Rig {
  o: { base: string; fetch: typeof fetch };
  events: any[];
  bridged: Bridged;
}

async function rig(command: string[], isPublic = false): Promise<Rig> {
  const service = createLocalService({ limits: FREE });
  const o = { base: 'http://local.test', fetch: service.fetch };
  const events: any[] = [];
  const onEvent = (event: any): void => void events.push(event);
  const wire = new RoomServerTransport('mb-p-served', signer(1), { ...o, onEvent });
  const bridged = await bridgeServer(wire, [process.execPath, ...command], { onEvent, isPublic });
  closing.push(() => bridged.close());
  await until(() => events.some(({ kind }) => /^server-(ready|unusable)$/.test(kind)));
  return { o, events, bridged };
}

/** A host's own end of the pipes that it has with us, as a transport of the SDK. */
async function host({ o }: Pick<Rig, 'o'>, n = 2): Promise<any> {
  const [input, output] = [new PassThrough(), new PassThrough()];
  const wire = new RoomClientTransport('mb-p-served', signer(n), { ...o, replyTo: `mb-p-host-${n}` });
  const bridged = await bridgeHost(wire, input, output);
  closing.push(() => bridged.close());
  const transport: any = {
    start: async () => {},
    send: async (message: unknown) => void input.write(`${JSON.stringify(message)}\n`),
    close: async () => void input.end(),
    input,
    output,
    bridged,
  };
  const lines = new Lines({ frame: (frame) => transport.onmessage?.(frame) });
  output.on('data', (chunk) => lines.push(chunk));
  return transport;
}

const words = async (client: any, name: string, o: object = {}): Promise<string> => {
  const { content } = await client.callTool(
    { name, arguments: {} },
    ...(client instanceof OldClient ? [undefined, o] : [o]),
  );
  return content[0].text;
};

test('a host with a handshake in front of a server without one', async () => {
  const { o, events } = await rig([MODERN]);
  expect(events.find(({ kind }) => kind === 'server-ready')).toMatchObject({
    version: '2026-07-28',
    server: { name: 'modern' },
  });
  const client = new OldClient({ name: 'old', version: '1' }, { capabilities: { elicitation: {}, roots: {} } });
  client.setRequestHandler(ElicitRequestSchema as any, () => ({ action: 'accept', content: { name: 'Ada' } }));
  const changes: unknown[] = [];
  const logs: unknown[] = [];
  client.setNotificationHandler(ToolListChangedNotificationSchema as any, (notice) => void changes.push(notice));
  client.setNotificationHandler(
    LoggingMessageNotificationSchema as any,
    ({ params }: any) => void logs.push(params.data),
  );
  await client.connect(await host({ o }));
  expect(client.getInstructions()).toBe('Ask.');
  expect((await client.listTools()).tools.map(({ name }) => name)).toContain('greet');
  expect(await words(client, 'greet')).toBe('Hello, Ada!');
  await client.setLoggingLevel('info');
  const steps: number[] = [];
  expect(await words(client, 'steps', { onprogress: ({ progress }: any) => steps.push(progress) })).toBe('done');
  expect([steps, logs]).toEqual([[1, 2], ['high']]);
  // The subscription may not stand yet.
  while (changes.length === 0) await words(client, 'touch');
  expect(await words(client, 'who')).toBe(signer(2).did);
  await expect(words(client, 'roots')).rejects.toMatchObject({ code: -32021 });
  await expect(words(client, 'die')).rejects.toMatchObject({ code: 1001 });
  expect(await words(client, 'who')).toBe(signer(2).did);
});

test('hosts without a handshake, at once, in front of one server', async () => {
  const { o, events } = await rig([MODERN]);
  const clients = await Promise.all(
    [2, 3, 4].map(async (n) => {
      const client = new Client(
        { name: 'new', version: '1' },
        { versionNegotiation: { mode: n === 4 ? 'auto' : { pin: '2026-07-28' } } },
      );
      await client.connect(await host({ o }, n));
      return client;
    }),
  );
  const answers = await Promise.all(
    clients.flatMap((client) => Array.from({ length: 10 }, () => words(client, 'who'))),
  );
  expect(answers).toEqual([2, 3, 4].flatMap((n) => Array(10).fill(signer(n).did)));
  const calls = events.filter(({ kind, method }) => kind === 'call' && method === 'tools/call');
  expect(calls.length).toBe(30);
  expect(calls[0]).toMatchObject({
    outcome: 'ok',
    name: 'who',
    ms: expect.any(Number),
    from: expect.stringMatching(/^did:key:/),
  });
});

/** A server with a handshake, whose one tool runs `script` with the request's id. */
const small = (script: string): string[] => [
  '-e',
  `
  const say = (message) => console.log(JSON.stringify({ jsonrpc: '2.0', ...message }));
  console.log('ready');
  require('readline').createInterface(process.stdin).on('line', (line) => {
    const { id, method } = JSON.parse(line);
    if (method === 'initialize') say({ id, result: { protocolVersion: '2024-11-05', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } } });
    else if (method === 'tools/call') { ${script} }
    else if (id !== undefined) say({ id, error: { code: -32601, message: 'what?' } });
  });
`,
];

test('of a call that was called off it is told as well', async () => {
  const { o, events } = await rig(small(`console.log('begun')`));
  const client = new Client({ name: 'new', version: '1' }, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
  await client.connect(await host({ o }));
  const stop = new AbortController();
  const hangs = words(client, 'hang', { signal: stop.signal });
  await until(() => events.some(({ begin }) => begin === 'begun'));
  stop.abort();
  await expect(hangs).rejects.toThrow();
  const called = (): object[] => events.filter(({ kind, method }) => kind === 'call' && method === 'tools/call');
  await until(() => called().length > 0);
  expect(called()).toMatchObject([{ name: 'hang', outcome: 'cancelled', ms: expect.any(Number) }]);
});

test('a server that says too much, or nothing but noise', async () => {
  const { o, events } = await rig(
    small(
      `say({ result: { content: ['x'.repeat(17 << 20)] }, id }); say({ id: 99, result: 7 }); console.log('[]'); console.log('noise')`,
    ),
  );
  const client = new Client({ name: 'new', version: '1' }, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
  await client.connect(await host({ o }));
  await expect(words(client, 'x')).rejects.toMatchObject({
    code: -32603,
    message: expect.stringContaining('too large'),
  });
  await until(() => events.filter(({ reason }) => /not a message/.test(reason)).length >= 2);
});

test('a server whose process does not come back', async () => {
  const { o, bridged, events } = await rig(small('process.exit(1)'));
  const client = new OldClient({ name: 'old', version: '1' });
  await client.connect(await host({ o }));
  await expect(words(client, 'x')).rejects.toMatchObject({ code: 1001 });
  await until(() => events.some(({ kind }) => kind === 'server-stopped'));
  await bridged.close();
  await bridged.ended;
});

test('what a host writes wrong is answered, and its end is the end', async () => {
  const { o } = await rig(small(''));
  const transport = await host({ o });
  const got: any[] = [];
  transport.onmessage = (message: any) => void got.push(message);
  const next = async (line: string): Promise<any> => {
    const { length } = got;
    transport.input.write(`${line}\n`);
    await until(() => got.length > length);
    return got.at(-1);
  };
  expect(await next('hello?')).toEqual({ jsonrpc: '2.0', error: { code: -32700, message: 'Parse error' } });
  expect(await next(`{"jsonrpc":"2.0","id":5,"method":"${'x'.repeat(17 << 20)}"}`)).toMatchObject({
    id: 5,
    error: { code: -32600 },
  });
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': '2026-07-28',
    'io.modelcontextprotocol/clientCapabilities': {},
  };
  const long = { jsonrpc: '2.0', id: 6, method: 'tools/call', params: { name: 'x'.repeat(5_000_000), _meta } };
  expect(await next(JSON.stringify(long))).toMatchObject({
    id: 6,
    error: { code: -32603, data: { reason: expect.any(String) } },
  });
  transport.input.end();
  await transport.bridged.ended;
});

test('a host that reads no more is gone', async () => {
  const { o } = await rig(small(''));
  const transport = await host({ o });
  transport.output.destroy();
  transport.input.write('{"jsonrpc":"2.0","id":1,"method":"ping"}\n');
  await transport.bridged.ended;
});

test('a wire that cannot be opened leaves no process behind', async () => {
  const wire = {
    start: () => Promise.reject(new TechnocoreError('no', 'not today')),
    send: async () => {},
    close: async () => {},
  };
  await expect(bridgeServer(wire, [process.execPath, ...small('')])).rejects.toMatchObject({ code: 'no' });
  await expect(bridgeHost(wire, new PassThrough(), new PassThrough())).rejects.toMatchObject({ code: 'no' });
});
