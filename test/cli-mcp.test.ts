import { type SpawnOptions, spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { mkdir, stat, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as OldStdio } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport as OldHttp } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ResourceUpdatedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { Args } from '../src/cli-kit.ts';
import { mcpCommands } from '../src/cli-mcp.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { call, mcpCallTool, Signer } from '../src/technocore-rpc.ts';
import { CLI } from './build.ts';
import { Running } from './processes.ts';
import { FREE, tempDir, until } from './support.ts';

// The command line as it is used: processes of ours between the servers that people run and the clients that hosts have.

const SPY = new URL('mcp-spy.mjs', import.meta.url).pathname;
const modules = createRequire(import.meta.url);
const SERVERS = {
  filesystem: modules.resolve('@modelcontextprotocol/server-filesystem/dist/index.js'),
  everything: modules.resolve('@modelcontextprotocol/server-everything/dist/index.js'),
};

let service: Listening;
const folder = tempDir();
const running = new Set<Running>();
const clients = new Set<{ close(): Promise<void> }>();

/** Starts a program that is ended with the test. */
function start(file: string, args: string[], o: SpawnOptions = {}): Running {
  const one = new Running(spawn(file, args, o));
  running.add(one);
  return one;
}

beforeAll(async () => {
  service = await createLocalService({ limits: FREE }).listen();
});
afterEach(async () => {
  await Promise.all([...clients].map((client) => client.close()));
  clients.clear();
  for (const { child, exited } of running) {
    child.kill('SIGTERM');
    await exited;
  }
  running.clear();
});
afterAll(async () => {
  await service.close();
});

interface Serving {
  mailbox: string;
  did: string;
  process: Running;
  /** What it printed so far, line by line. */
  lines: () => any[];
  told: () => string;
}

/** `mcp serve` in front of a server whose input is written down. */
async function serve(name: string, flags: string[], server: string[]): Promise<Serving> {
  const own = ['--base', service.url, '--dir', join(folder, `${name}-server`), '--json', '--verbose'];
  const command = [process.execPath, '--import', SPY, ...server];
  const env = { ...process.env, SPY_FILE: join(folder, `${name}.spy`) };
  const serving = start(process.execPath, [CLI, 'mcp', 'serve', ...own, ...flags, '--', ...command], { env });
  await serving.shows(({ out, err }) => out.includes('\n') && /server-ready/.test(err));
  const lines = (): any[] => wholeLines(serving.run.out);
  return { ...lines()[0], process: serving, lines, told: () => serving.run.err };
}

/** The lines of JSON in a text, without the last one if it may go on. */
const wholeLines = (text: string): any[] =>
  text
    .split('\n')
    .slice(0, -1)
    .map((line) => JSON.parse(line));

/** What the server behind `mcp serve` was sent, and the ids of its processes. */
function spied(name: string): { sent: any[]; pids: number[] } {
  const lines = wholeLines(readFileSync(join(folder, `${name}.spy`), 'utf8'));
  return { sent: lines.filter(({ jsonrpc }) => jsonrpc), pids: lines.flatMap(({ pid = [] }) => pid) };
}

/** How a host starts `mcp connect`. */
const connect = (
  name: string,
  mailbox: string,
  flags: string[] = [],
): { command: string; args: string[]; stderr: 'ignore' } => ({
  command: process.execPath,
  args: [CLI, 'mcp', 'connect', mailbox, '--base', service.url, '--dir', join(folder, `${name}-host`), ...flags],
  stderr: 'ignore',
});

async function oldClient(
  stdio: ReturnType<typeof connect>,
  capabilities: object = {},
): Promise<{ client: OldClient; transport: OldStdio }> {
  const client = new OldClient({ name: 'old-host', version: '1' }, { capabilities });
  const transport = new OldStdio(stdio);
  clients.add(client);
  await client.connect(transport);
  return { client, transport };
}

async function newClient(stdio: ReturnType<typeof connect>): Promise<Client> {
  const client = new Client(
    { name: 'new-host', version: '1' },
    { versionNegotiation: { mode: { pin: '2026-07-28' } } },
  );
  clients.add(client);
  await client.connect(new StdioClientTransport(stdio));
  return client;
}

const kill = async ({ child, exited }: Running): Promise<void> => {
  child.kill('SIGKILL');
  await exited;
};

test('a file server: closed to strangers, paired by a code, and both sides killed in between', async () => {
  // Tried again, it must not find what it left.
  const files = `files-${Date.now()}`;
  const data = join(folder, `${files}-data`);
  await mkdir(data);
  await writeFile(join(data, 'a.txt'), 'from afar');
  const run = (flags: string[] = []): Promise<Serving> => serve(files, flags, [SERVERS.filesystem, data]);
  const first = await run(['--pair']);
  await first.process.shows(() => first.lines().some(({ code }) => code));
  const { code } = first.lines().find(({ code }) => code);
  const { mailbox } = first;
  expect(mailbox).toMatch(/^mb-p-[0-9a-f]{24}$/);

  // A stranger is told so, with and without a wrong code, and nothing of it reaches the server.
  const wrong = code.replaceAll(/[0-9A-Z]/g, (char: string) => (char === '7' ? '8' : '7'));
  await expect(oldClient(connect('stranger', mailbox))).rejects.toThrow(/Denied.*--allow did:key/);
  await expect(oldClient(connect('stranger', mailbox, ['--pair', wrong]))).rejects.toThrow();
  const stranger = Signer.generate();
  const o = { base: service.url, replyTo: 'mb-p-stranger' };
  await expect(call(mailbox, 'tools/list', {}, stranger, o)).rejects.toMatchObject({ rpc: { code: 1004 } });
  const own = ['server/discover', 'initialize', 'notifications/initialized'];
  await until(() => spied(files).sent.length >= own.length);
  expect(spied(files).sent.map(({ method }) => method)).toEqual(own);

  const stdio = connect(files, mailbox, ['--pair', code]);
  const { client, transport } = await oldClient(stdio);
  expect(client.getServerVersion()).toMatchObject({ name: 'secure-filesystem-server' });
  const { tools } = await client.listTools();
  expect(tools.length).toBeGreaterThan(10);
  const text = async (from: { callTool: any } = client): Promise<string> => {
    const { content } = await from.callTool({ name: 'read_text_file', arguments: { path: join(data, 'a.txt') } });
    return content[0].text;
  };
  expect(await text()).toBe('from afar');
  const denied = await client.callTool({ name: 'read_text_file', arguments: { path: '/etc/hostname' } });
  expect(denied.isError).toBe(true);
  const { mode } = await stat(join(folder, `${files}-server`, 'mcp-pairs.json'));
  expect(mode & 0o777).toBe(0o600);

  // The server behind is killed: it is started again.
  const { pids } = spied(files);
  process.kill(pids.at(-1)!, 'SIGKILL');
  await first.process.shows(({ err }) => /server-stopped/.test(err));
  expect(await text()).toBe('from afar');

  // The serving side is killed: what is asked meanwhile is answered when it is there again, and nobody pairs again.
  await kill(first.process);
  const waiting = text();
  const second = await run();
  expect(second.mailbox).toBe(mailbox);
  expect(second.lines()[0].allowed.length).toBe(1);
  expect(await waiting).toBe('from afar');

  // The host's side is killed, and started as it was: the code is spent, and is not needed.
  process.kill(transport.pid!, 'SIGKILL');
  await until(() => client.transport === undefined);
  const { client: again } = await oldClient(stdio);
  expect(await text(again)).toBe('from afar');
  const modern = await newClient(stdio);
  expect(await text(modern)).toBe('from afar');
  expect((await modern.listTools()).tools.length).toBe(tools.length);

  // Both end in good order when they are told to.
  second.process.child.kill('SIGTERM');
  expect(await second.process.exited).toEqual([0, null]);
});

test('a server of everything: progress, questions, resources, prompts, over stdio and HTTP', async () => {
  // Tried again, it must not find what it left.
  const all = `all-${Date.now()}`;
  const host = await Signer.fromDir(join(folder, `${all}-host`));
  const serving = await serve(all, ['--allow', host.did], [SERVERS.everything, 'stdio']);
  const capabilities = { sampling: {}, elicitation: {}, roots: { listChanged: true } };
  const { client } = await oldClient(connect(all, serving.mailbox, ['--peer', serving.did]), capabilities);
  client.setRequestHandler(ElicitRequestSchema as any, () => ({ action: 'accept', content: { name: 'Ada' } }));
  client.setRequestHandler(CreateMessageRequestSchema as any, () => ({
    role: 'assistant',
    model: 'm',
    content: { type: 'text', text: 'a poem' },
  }));
  const { tools } = await client.listTools();
  const names = tools.map(({ name }) => name);
  const use = async (name: string, args: object = {}, o: object = {}): Promise<any> => {
    expect(names).toContain(name);
    const result: any = await client.callTool({ name, arguments: args as any }, undefined, o);
    return result.content.map((block: any) => block.text ?? block.type).join('\n');
  };
  expect(await use('echo', { message: 'hello' })).toContain('hello');
  let steps: number[] = [];
  const onprogress = ({ progress }: any): void => void steps.push(progress);
  // Where there is little time, some are left out. The SDK drops the last one when the answer comes in the same turn.
  for (let tries = 0; tries < 20 && steps.length < 2; tries++) {
    steps = [];
    await use('trigger-long-running-operation', { duration: 1, steps: 3 }, { onprogress });
  }
  expect(['1,2', '1,3', '2,3', '1,2,3']).toContain(steps.join());

  expect(await use('trigger-sampling-request', { prompt: 'p', maxTokens: 10 })).toContain('a poem');
  expect(await use('trigger-elicitation-request')).toContain('Ada');
  // The host's disk is none of the server's business.
  expect(names).not.toContain('get-roots-list');

  const { resources } = await client.listResources();
  const { uri } = resources[0]!;
  expect((await client.readResource({ uri })).contents.length).toBe(1);
  const { prompts } = await client.listPrompts();
  expect(prompts.length).toBeGreaterThan(0);
  const { messages } = await client.getPrompt({ name: 'simple-prompt' });
  expect(messages.length).toBe(1);
  // The same server, begun by a handshake, for a client that knows none.
  const modern = await newClient(connect(all, serving.mailbox, ['--peer', serving.did]));
  const said: any = await modern.callTool({ name: 'echo', arguments: { message: 'of 2026' } });
  expect(said.content[0].text).toContain('of 2026');
  expect((await modern.readResource({ uri })).contents.length).toBe(1);
  expect((await modern.getPrompt({ name: 'simple-prompt' })).messages.length).toBe(1);

  const updated: string[] = [];
  client.setNotificationHandler(
    ResourceUpdatedNotificationSchema as any,
    ({ params }: any) => void updated.push(params.uri),
  );
  await client.subscribeResource({ uri });
  await use('toggle-subscriber-updates');
  await until(() => updated.includes(uri));
  await use('toggle-subscriber-updates');

  // The same over HTTP.
  const { args } = connect(all, serving.mailbox, ['--http', '0', '--json']);
  const gate = start(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  await gate.shows(({ out }) => out.includes('\n'));
  const [{ url }] = wholeLines(gate.run.out);
  const over = new OldClient({ name: 'web-host', version: '1' });
  clients.add(over);
  await over.connect(new OldHttp(new URL(url)) as any);
  expect((await over.callTool({ name: 'echo', arguments: { message: 'web' } })).content).toMatchObject([
    { text: 'Echo: web' },
  ]);
  expect(serving.told()).toMatch(/"kind":"call","method":"tools\/call","name":"echo","from":"did:key:.*"outcome":"ok"/);

  // What was under way when the serving side died may have been done, and is not done again.
  const begun = use('trigger-long-running-operation', { duration: 600, steps: 1 });
  const outcome = begun.catch((cause) => cause);
  const calls = (): number => spied(all).sent.filter(({ params }) => params?.arguments?.duration === 600).length;
  await until(() => calls() === 1);
  await kill(serving.process);
  await serve(all, ['--allow', host.did], [SERVERS.everything, 'stdio']);
  expect(await outcome).toMatchObject({ code: 1001 });
  // Its input has ended, and it works on what it was asked all the same.
  process.kill(spied(all).pids[0]!, 'SIGKILL');
  expect(calls()).toBe(1);

  // A service that has forgotten everything costs at most what was under way.
  const { port } = new URL(service.url);
  await service.close();
  service = await createLocalService({ limits: FREE }).listen(Number(port));
  await use('echo', { message: 'lost, perhaps' }).catch(({ code }) => expect(code).toBe(1006));
  expect(await use('echo', { message: 'and back' })).toContain('and back');
});

/** `mcp serve` that does not come to serve. */
function serveInVain(base: string, command: string[]): Running {
  const own = ['--base', base, '--dir', join(folder, `vain-${Date.now()}`), '--pair'];
  return start(process.execPath, [CLI, 'mcp', 'serve', ...own, '--', process.execPath, ...command]);
}

test('without a service neither mailbox nor code is shown, and Ctrl-C ends it', async () => {
  const { child, done, shows } = serveInVain('http://127.0.0.1:2', [SERVERS.everything, 'stdio']);
  await shows(({ err }) => /the service at http:\/\/127.0.0.1:2 does not answer/.test(err));
  child.kill('SIGINT');
  expect(await done).toMatchObject({ code: 130, out: '' });
});

test('while its server says nothing neither mailbox nor code is shown, and Ctrl-C ends it', async () => {
  const { child, done, shows } = serveInVain(service.url, ['-e', 'console.error("up"); process.stdin.resume()']);
  // A line of its own: keys and paths are random, and may hold any two letters.
  await shows(({ err }) => /^up$/m.test(err));
  child.kill('SIGINT');
  expect(await done).toMatchObject({ code: 130, out: '' });
});

// What the test needs of a terminal, Debian has from the start; elsewhere its options differ.
test.skipIf(!existsSync('/usr/bin/script'))(
  'on a terminal pairing ends by itself, and says what comes next',
  async () => {
    const name = `paired-${Date.now()}`;
    const serving = await serve(name, ['--pair'], [SERVERS.everything, 'stdio']);
    await serving.process.shows(() => serving.lines().some(({ code }) => code));
    const { code } = serving.lines().find(({ code }) => code);
    const { command, args } = connect(name, serving.mailbox, ['--pair', '-']);
    const line = [command, ...args].map((word) => `'${word}'`).join(' ');
    const terminal = start('script', ['-qec', line, '/dev/null'], { stdio: ['pipe', 'pipe', 'pipe'] });
    await terminal.shows(({ out }) => out.includes('Pairing code: '));
    terminal.child.stdin!.write(`${code}\n`);
    const { code: exit, out: seen } = await terminal.done;
    expect(exit, seen).toBe(0);
    expect(seen).toContain(`Paired with ${serving.did}`);
    expect(seen).toMatch(/"mcpServers"[\s\S]*there is nothing more to do here/);
  },
);

test('a command that cannot work is given up with what it wrote', async () => {
  const { done } = serveInVain(service.url, ['-e', 'console.log("server <folder>"); process.exitCode = 7']);
  const { code, out, err } = await done;
  expect([code, out]).toEqual([1, '']);
  expect(err).toMatch(/no_server: .*code 7; it wrote: server <folder>\n$/);
});

test('what is wrong with the arguments is told before anything is done', async () => {
  const run = async (args: string[]): Promise<[code: number | null, told: string]> => {
    const { code, err } = await start(process.execPath, [CLI, 'mcp', ...args], { stdio: ['ignore', 'ignore', 'pipe'] })
      .done;
    return [code, err];
  };
  const dir = ['--dir', join(folder, 'wrong'), '--base', service.url];
  expect(await run(['serve'])).toEqual([2, expect.stringContaining('<command> is missing')]);
  expect(await run(['serve', '--allow', 'bob', '--', 'x'])).toEqual([2, expect.stringContaining('--allow')]);
  expect(await run(['serve', ...dir, '--public', '--pair', '--', 'x'])).toEqual([
    2,
    expect.stringContaining('--public'),
  ]);
  expect(await run(['serve', ...dir, '--mailbox', 'p-room', '--', 'x'])).toEqual([
    2,
    expect.stringContaining('mailbox'),
  ]);
  expect(await run(['serve', ...dir, '--', '/nowhere/at-all'])).toEqual([1, expect.stringContaining('no_command')]);
  expect(await run(['connect', ...dir, 'lobby'])).toEqual([2, expect.stringContaining('neither')]);
  expect(await run(['connect', ...dir, 'mb-p-x', '--pair', 'short'])).toEqual([2, expect.stringContaining('bad_code')]);
});

test('the commands and the configuration of the README are ones that there are', async () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const commands = [...readme.matchAll(/^npx technocore-rpc (mcp \w+) (.*)$/gm)].map(
    ([, name, rest]) => [name!, rest!.split(' ')] as const,
  );
  const [block] = [...readme.matchAll(/```json\n([\s\S]*?)```/g)]
    .map(([, json]) => JSON.parse(json!))
    .filter(({ mcpServers }) => mcpServers);
  const { args } = block.mcpServers.papers;
  commands.push([args.slice(2, 4).join(' '), args.slice(4)]);
  expect(commands.map(([name]) => name)).toEqual(['mcp serve', 'mcp connect', 'mcp connect']);
  for (const [name, rest] of commands) new Args(mcpCommands[name]!, rest);
});

test('found by DID where everybody may call; the end of the host is the end, in good order', async () => {
  const serving = await serve('open', ['--public'], [SERVERS.everything, 'stdio']);
  const { args } = connect('open', serving.did, ['--json']);
  const host = start(process.execPath, args);
  const params = { protocolVersion: '2024-11-05', capabilities: {}, clientInfo: { name: 'x', version: '1' } };
  host.child.stdin!.write(`${JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params })}\n`);
  await host.shows(({ out }) => out.includes('\n'));
  expect(JSON.parse(host.run.out)).toMatchObject({
    id: 1,
    result: { protocolVersion: '2024-11-05', serverInfo: { name: 'mcp-servers/everything' } },
  });
  host.child.stdin!.end();
  expect(await host.exited).toEqual([0, null]);
});

test('Ctrl-C says at once which calls are waited for; a second one ends them', async () => {
  const name = `hangs-${Date.now()}`;
  const serving = await serve(name, ['--public'], [SERVERS.everything, 'stdio']);
  const given: [string, object] = ['trigger-long-running-operation', { duration: 600, steps: 1 }];
  const stop = new AbortController();
  const o = { base: service.url, replyTo: `mb-p-${name}`, signal: stop.signal };
  const called = mcpCallTool(serving.mailbox, ...given, Signer.generate(), o).catch(() => {});
  await until(() => spied(name).sent.some(({ method }) => method === 'tools/call'));
  const { child, exited, shows } = serving.process;
  child.kill('SIGINT');
  const words = 'waiting for 1 call, 10 s at most; press Ctrl-C again to quit at once';
  await shows(({ err }) => err.includes(words));
  child.kill('SIGINT');
  expect(await exited).toEqual([130, null]);
  stop.abort();
  await called;
});
