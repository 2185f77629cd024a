import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

const src = new URL('../src/', import.meta.url);

/** The house: a file imports only from files before it. A new file gets its place here. */
const ORDER = `
  errors bytes maps crypto frames clock turns budget http service names messages rooms nonces files keydir-none keydir signer notes identity
  dispatch feed spill channel batch ledger journal ledger-file workers unspill outbox replies presence claims share underway inbox line conversation call answers answering runs serve
  schema tools notices toolcall mcp mcp-peer mcp-client mcp-listen
  a2a-states a2a-types a2a-params a2a-store a2a-task a2a-notes a2a-card a2a-agent a2a-call
  e2e sealed meeting builtin technocore-rpc
  noise parley-invite parley-relay parley vendor
  local-wire local-python local-limits local-store local-listing local-docs local-rooms local-relay local
  bridge-ids bridge-pages bridge-client bridge-server bridge-a2a bridge
  bridge-lines bridge-process bridge-handshake bridge-urls bridge-listeners bridge-greeting bridge-changes bridge-host bridge-child
  bridge-headers bridge-sse bridge-http bridge-pair bridge-pairs bridge-stdio
  demo-a2a demo-mcp demo-parley demo
  cli-kit cli-ask cli-keys cli-local cli-rooms cli-calls cli-serve cli-parley cli-mcp
  cli
`
  .trim()
  .split(/\s+/);

const files = readdirSync(src)
  .filter((file) => file.endsWith('.ts'))
  .map((file) => file.slice(0, -3));
const textOf = (file: string): string => readFileSync(new URL(`${file}.ts`, src), 'utf8');

/** What a file imports, types too, as written. */
function importsOf(file: string): string[] {
  const found = textOf(file).matchAll(
    /^\s*(?:import|export)\b[^'";]*?\bfrom\s*'([^']+)'|^\s*import\s*'([^']+)'|\bimport\(\s*'([^']+)'/gm,
  );
  return [...found].map(([, a, b, c]) => (a ?? b ?? c)!);
}
const local = (file: string): string[] => importsOf(file).flatMap((name) => /^\.\/(.+)\.ts$/.exec(name)?.[1] ?? []);

/** All files that a file reaches, itself included. */
function reached(from: string, seen = new Set<string>()): Set<string> {
  if (!seen.has(from)) {
    seen.add(from);
    for (const file of local(from)) reached(file, seen);
  }
  return seen;
}

test('the imports that are looked at are all there are', () => {
  expect(local('technocore-rpc').length).toBeGreaterThan(20);
  expect(importsOf('vendor')).toEqual(['./parley.ts', './technocore-rpc.ts']);
  for (const file of files) {
    // Whatever names another file of ours in quotes is an import that was found.
    const named = [...textOf(file).matchAll(/'\.\/([\w-]+)\.ts'/g)].map(([, name]) => name);
    expect([file, local(file)]).toEqual([file, named]);
  }
});

test('every file has its place, and every place its file', () => {
  expect(files.filter((file) => !ORDER.includes(file))).toEqual([]);
  expect(ORDER.filter((file) => !files.includes(file))).toEqual([]);
  expect(new Set(ORDER).size).toBe(ORDER.length);
});

test.each(files)('%s imports only from files above it', (file) => {
  for (const other of local(file)) {
    expect(`${other} is ${ORDER.indexOf(other) < ORDER.indexOf(file) ? 'above' : 'below'}`).toBe(`${other} is above`);
  }
});

test('no file has more than 1,000 lines', () => {
  expect(files.filter((file) => textOf(file).split('\n').length > 1000)).toEqual([]);
});

test('editors can show every tag: TypeScript takes a link that begins one for a type', () => {
  for (const file of files)
    expect([file, textOf(file).match(/@(?:throws|returns|param \w+) \{@link/g)]).toEqual([file, null]);
});

test.each(['technocore-rpc', 'parley', 'vendor'])(
  'what %s reaches imports no Node builtin, and no customer',
  (entry) => {
    for (const file of reached(entry)) {
      expect(
        importsOf(file).filter((name) => !/^(\.\/[\w-]+\.ts|@noble\/[\w./-]+|@cfworker\/json-schema)$/.test(name)),
      ).toEqual([]);
      expect(file).not.toMatch(/^(local|bridge|cli|demo)/);
    }
  },
);

test('parley alone carries neither rooms nor JSON Schema', () => {
  const carried = [...reached('parley')];
  for (const file of ['serve', 'mcp', 'schema', 'ledger', 'e2e', 'local', 'builtin'])
    expect(carried).not.toContain(file);
});

test('a test leaves nothing in the temporary directory: one place makes directories there, and removes them', () => {
  const tests = readdirSync(new URL('.', import.meta.url)).filter((file) => file.endsWith('.test.ts'));
  expect(tests.length).toBeGreaterThan(50);
  const here = import.meta.url.split('/').at(-1);
  for (const file of tests.filter((name) => name !== here)) {
    expect([file, readFileSync(new URL(file, import.meta.url), 'utf8').match(/\btmpdir\b/g)]).toEqual([file, null]);
  }
});

test('time and chance come in as parameters', () => {
  for (const file of reached('vendor')) {
    if (file === 'clock') continue;
    const code = textOf(file).replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, '');
    expect([
      file,
      code.match(/\bDate\.now\(|\bsetTimeout\(|\bsetInterval\(|\bMath\.random\(|performance\.now\(/g),
    ]).toEqual([file, null]);
  }
});
