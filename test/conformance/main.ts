/**
 * The official MCP conformance suite, through real rooms: its HTTP client talks to the bridge, the bridge to a mailbox of a
 * service in memory, and a server reads that mailbox: one of the official SDK, then our own tools, then a process that knows
 * only the handshake, whose callers begin with one too, or not. Then our client at one end of a room, and the suite's test
 * servers behind the other.
 *
 * `npm run conformance [scenario …]`. Exit status 1: something failed that is not in `expected-failures.json`, or did not
 * fail that is.
 */
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { parseArgs } from 'node:util';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { RoomClientTransport, RoomServerTransport } from '../../src/bridge.ts';
import { HttpBridge } from '../../src/bridge-http.ts';
import { bridgeServer } from '../../src/bridge-stdio.ts';
import { createLocalService } from '../../src/local.ts';
import { Signer, serve } from '../../src/technocore-rpc.ts';
import { officialServer } from './official.ts';
import { ourTools } from './ours.ts';

/** The suite, and the version of Node that it needs: no dependencies of the package. */
const NEEDED = { '@modelcontextprotocol/conformance': '0.2.0-alpha.12', node: '22.23.3' };
const REVISION = '2026-07-28';
/** The last one that begins with a handshake. */
const OLDER = '2025-11-25';
const CACHE = 'node_modules/.cache/conformance';
const NODE = `${CACHE}/node_modules/.bin/node`;
const SUITE = `${CACHE}/node_modules/@modelcontextprotocol/conformance/dist/index.js`;

/** Scenarios for a server that has tools and nothing else. */
const TOOL_SCENARIOS = [
  'server-stateless',
  'tools-list',
  'tools-call-simple-text',
  'tools-call-image',
  'tools-call-audio',
  'tools-call-embedded-resource',
  'tools-call-mixed-content',
  'tools-call-error',
  'tools-call-with-progress',
  'server-sse-multiple-streams',
  'dns-rebinding-protection',
  'input-required-result-basic-elicitation',
  'input-required-result-basic-sampling',
  'input-required-result-basic-list-roots',
  'input-required-result-request-state',
  'input-required-result-multiple-input-requests',
  'input-required-result-multi-round',
  'input-required-result-missing-input-response',
  'input-required-result-result-type',
  'input-required-result-unsupported-methods',
  'input-required-result-tampered-state',
  'input-required-result-capability-check',
  'input-required-result-ignore-extra-params',
  'input-required-result-validate-input',
];
const CLIENT_SCENARIOS = [
  'tools_call',
  'request-metadata',
  'sep-2322-client-request-state',
  'json-schema-ref-no-deref',
  'json-schema-2020-12-preservation',
];

const HELP = `npm run conformance -- [options] [scenario …]

  --side <name>   "official server", "our tools", "older server", "older host and server" or "our client" (default: all)
  --verbose       what the suite prints
`;
const { values, positionals: only } = parseArgs({
  allowPositionals: true,
  options: { side: { type: 'string' }, verbose: { type: 'boolean', default: false }, help: { type: 'boolean' } },
});

/** Installs the suite where nothing of the package depends on it. */
function install(): void {
  const wanted = JSON.stringify({ private: true, dependencies: NEEDED });
  try {
    if (readFileSync(`${CACHE}/package.json`, 'utf8') === wanted && readFileSync(SUITE)) return;
  } catch {
    // Not there yet.
  }
  rmSync(CACHE, { recursive: true, force: true });
  mkdirSync(CACHE, { recursive: true });
  writeFileSync(`${CACHE}/package.json`, wanted);
  console.log('installing the suite');
  execFileSync('npm', ['install', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: CACHE, stdio: 'inherit' });
}

type Outcomes = Map<string, string[]>;

/** Runs the suite. @returns the scenarios that ran, and what failed in each */
async function run(args: string[]): Promise<Outcomes> {
  const results = mkdtempSync(`${tmpdir()}/conformance-`);
  try {
    const stdio = values.verbose ? 'inherit' : 'ignore';
    const suite = spawn(NODE, [SUITE, ...args, '--output-dir', results], { stdio });
    const status = await new Promise<number | null>((resolve, reject) =>
      suite.on('error', reject).on('close', resolve),
    );
    const outcomes: Outcomes = new Map();
    for (const folder of readdirSync(results)) {
      const scenario = folder.replace(/^server-/, '').replace(/-\d{4}-\d\d-\d\dT.*$/, '');
      // One that does not apply leaves an empty folder.
      if (!existsSync(`${results}/${folder}/checks.json`)) continue;
      const checks: any[] = JSON.parse(readFileSync(`${results}/${folder}/checks.json`, 'utf8'));
      const failed = checks.filter(({ status }) => status === 'FAILURE');
      outcomes.set(
        scenario,
        failed.map(({ id, errorMessage }) => `${id}: ${errorMessage ?? ''}`),
      );
    }
    // A client that ended badly fails no check.
    for (const failed of outcomes.values()) {
      if (outcomes.size === 1 && status !== 0 && failed.length === 0) failed.push(`exit status ${status}`);
    }
    return outcomes;
  } finally {
    rmSync(results, { recursive: true, force: true });
  }
}

/** Rooms with a server in one of them, and an address for HTTP clients of it. */
async function served(start: (mailbox: string, o: { base: string; fetch: typeof fetch }) => () => Promise<unknown>) {
  const limits = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9 };
  const o = { base: 'http://rooms.test', fetch: createLocalService({ limits }).fetch };
  const stop = start('mb-p-server', o);
  const key = Signer.generate();
  const connect = () => new RoomClientTransport('mb-p-server', key, { ...o, replyTo: 'mb-p-client' });
  const bridge = new HttpBridge({ connect });
  const url = await bridge.listen(0);
  return {
    url,
    async close() {
      await bridge.close();
      await stop();
    },
  };
}

function official(mailbox: string, o: { base: string; fetch: typeof fetch }): () => Promise<void> {
  const transport = new RoomServerTransport(mailbox, Signer.generate(), { ...o, drainMs: 100 });
  return serveStdio(officialServer, { transport, legacy: 'reject' }).close;
}

function ours(mailbox: string, o: { base: string; fetch: typeof fetch }): () => Promise<void> {
  const stop = new AbortController();
  const serving = serve(mailbox, Signer.generate(), { ...o, tools: ourTools(), signal: stop.signal, drainMs: 100 });
  return () => {
    stop.abort();
    return serving;
  };
}

function older(mailbox: string, o: { base: string; fetch: typeof fetch }): () => Promise<void> {
  const transport = new RoomServerTransport(mailbox, Signer.generate(), { ...o, allow: () => true, drainMs: 100 });
  const bridged = bridgeServer(transport, [process.execPath, 'node_modules/.cache/conformance-run/older.mjs']);
  return async () => (await bridged).close();
}

async function serverSide(
  start: typeof official,
  scenarios: string[] | undefined,
  revision: string = REVISION,
): Promise<Outcomes> {
  const scored = requiredOfServers(revision);
  const { url, close } = await served(start);
  try {
    const all = only.length > 0 ? only : undefined;
    const outcomes = new Map<string, string[]>();
    if (all) {
      for (const scenario of all.filter((name) => !scenarios || scenarios.includes(name))) {
        const args = ['server', '--url', url, '--scenario', scenario, '--spec-version', revision];
        for (const [name, failed] of await run(args)) outcomes.set(name, failed);
      }
      return outcomes;
    }
    for (const [name, failed] of await run(['server', '--url', url, '--requirements', revision])) {
      if (scored.includes(name) && (!scenarios || scenarios.includes(name))) outcomes.set(name, failed);
    }
    // Its time windows are under a second: on a busy machine it is fair to try it by itself.
    if (outcomes.get('server-stateless')?.length) {
      const args = ['server', '--url', url, '--scenario', 'server-stateless', '--spec-version', REVISION];
      for (const [name, failed] of await run(args)) outcomes.set(name, failed);
    }
    return outcomes;
  } finally {
    await close();
  }
}

async function clientSide(): Promise<Outcomes> {
  const outcomes = new Map<string, string[]>();
  const command = `${process.execPath} node_modules/.cache/conformance-run/client.mjs`;
  for (const scenario of CLIENT_SCENARIOS.filter((name) => only.length === 0 || only.includes(name))) {
    const args = ['client', '--command', command, '--scenario', scenario, '--spec-version', REVISION];
    for (const [name, failed] of await run(args)) outcomes.set(name, failed);
    if (!outcomes.has(scenario)) outcomes.set(scenario, ['it did not run']);
  }
  return outcomes;
}

/** The scenarios that the revision requires of a server, as the suite froze them. */
function requiredOfServers(revision: string): string[] {
  const text = readFileSync(SUITE.replace('dist/index.js', `requirements/${revision}.yaml`), 'utf8');
  const [, list = ''] = /^server:\n((?: {2}- .*\n)+)/m.exec(text) ?? [];
  return [...list.matchAll(/- (\S+)/g)].map(([, name]) => name!);
}

if (values.help) {
  console.log(HELP);
  process.exit();
}
install();
const expected: Record<string, string[]> = JSON.parse(readFileSync('test/conformance/expected-failures.json', 'utf8'));
const sides: Record<string, { scenarios: string[]; run: () => Promise<Outcomes> }> = {
  'official server': { scenarios: requiredOfServers(REVISION), run: () => serverSide(official, undefined) },
  'our tools': { scenarios: TOOL_SCENARIOS, run: () => serverSide(ours, TOOL_SCENARIOS) },
  'older server': { scenarios: requiredOfServers(REVISION), run: () => serverSide(older, undefined) },
  'older host and server': {
    scenarios: requiredOfServers(OLDER),
    run: () => serverSide(older, undefined, OLDER),
  },
  'our client': { scenarios: CLIENT_SCENARIOS, run: clientSide },
};
let isGood = true;
for (const [name, side] of Object.entries(sides)) {
  if (values.side !== undefined && values.side !== name) continue;
  const begun = Date.now();
  const outcomes = await side.run();
  const known = new Set(expected[name]);
  const passed = [...outcomes.values()].filter((failed) => failed.length === 0).length;
  console.log(`${name}: ${passed} of ${outcomes.size} passed, in ${((Date.now() - begun) / 1000).toFixed(1)} s`);
  for (const [scenario, failed] of outcomes) {
    const isExpected = known.has(scenario);
    if (failed.length > 0) console.log(`  ${scenario} failed${isExpected ? ', as expected' : ''}`, failed);
    else if (isExpected) console.log(`  ${scenario} passed, and is listed as failing`);
    if (failed.length > 0 !== isExpected) isGood = false;
  }
  const missing = side.scenarios.filter(
    (scenario) => !outcomes.has(scenario) && (only.length === 0 || only.includes(scenario)),
  );
  if (missing.length > 0) {
    console.log('  did not run:', missing);
    isGood = false;
  }
}
process.exitCode = isGood ? 0 : 1;
