import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CLI } from './build.ts';
import { Programs, served } from './programs.ts';

const run = promisify(execFile);

// Every example of the README is run as it stands, as a program of its own, against an embedded service.

const root = new URL('..', import.meta.url).pathname;
const readme = await readFile(join(root, 'README.md'), 'utf8');
const blocks = [...readme.matchAll(/```js\n([\s\S]*?)```/g)].map(([, code]) => code!);
let programs: Programs;

beforeAll(async () => {
  programs = await Programs.start();
});

afterAll(() => programs.close());

test('the README has examples, and they are short', () => {
  expect(blocks.length).toBeGreaterThanOrEqual(5);
  for (const code of blocks) {
    const lines = code.split('\n').filter((line) => line.trim() !== '' && !line.startsWith('import '));
    expect([code, lines.length <= 12]).toEqual([code, true]);
  }
});

const commands = [...readme.matchAll(/^npx technocore-rpc ([^#\n]*)/gm)].map(([, line]) => line!.trim());

test('the examples are TypeScript as well, under strict', async () => {
  // What the official SDK gives, its own types know too little of.
  const ours = blocks.map((code, i) => [`${i + 1}.ts`, code] as const).filter(([, code]) => !code.includes('@model'));
  // JavaScript cannot say that a list is not empty.
  expect(await programs.typeErrors(ours, { noUncheckedIndexedAccess: false })).toBe('');
});

test('rooms that are shared with everybody have names that nobody else takes', () => {
  const names = [...blocks, ...commands].join('\n').matchAll(/(?<=['" ])(?:mb-p-|mb-|p-)[a-z0-9-]+(?=['" \n])/g);
  for (const [name] of names) expect(name).toMatch(/-[0-9a-f]{4,}$/);
});

test('every command line is one that there is', async () => {
  expect(commands.length).toBeGreaterThan(8);
  for (const line of commands) {
    // As it stands, with all its flags, but asked for its help.
    const own = line.split(' -- ')[0]!;
    const command = `"${process.execPath}" "${CLI}" ${own} --help`;
    const { stdout } = await run('sh', ['-c', command], { cwd: programs.folder });
    const verb = /^[a-z]+(?: (?:open|join|serve|connect)\b)?/.exec(own)![0];
    expect(stdout).toMatch(new RegExp(`^Usage: technocore-rpc ${verb} `));
  }
});

/** Mailboxes that one example serves and the next one calls, and what that prints. */
const PAIRS: [mailbox: string, printed: RegExp][] = [
  ['mb-p-greeter-7c1f', /^Hello Ada, you are did:key:z6Mk/],
  ['mb-p-tools-83be', /purge - Deletes old files\.\n1 of 2: half done\nfalse { deleted: 3 }\n$/],
  ['mb-p-adder-6d2e', /^3, dear did:key:z6Mk\n$/],
  [
    'mb-p-posters-2f0c',
    /^TASK_STATE_INPUT_REQUIRED In which colour\?\n(TASK_STATE_WORKING\n)+20 posters, in blue\nTASK_STATE_COMPLETED\n$/,
  ],
];
const paired = new Set<string>();

for (const [mailbox, printed] of PAIRS) {
  const [serving, called] = blocks.filter((code) => code.includes(mailbox)) as [string, string];
  paired.add(serving).add(called);

  test(`serve and call: ${mailbox}`, async () => {
    const server = programs.run(`serve-${mailbox}`, serving);
    await served(mailbox, programs.service.url, server.done);
    expect(await programs.run(`call-${mailbox}`, called).done).toMatch(printed);
    server.stop();
  });
}

const alone = blocks.flatMap((code, i) => (paired.has(code) ? [] : [[i + 1, code] as const]));

test.each(alone)('example %i runs, and once more', async (i, code) => {
  for (const time of ['first', 'again']) {
    const printed = await programs.run(`example-${i}-${time}`, code).done;
    expect(printed).not.toMatch(/Error/);
    if (code.includes('/parley')) expect(printed).toMatch(/-\w{4} say At the café\?\n.*-\w{4} close agreed: at ten\n$/);
    if (code.includes('CallTimeout'))
      expect(printed).toMatch(time === 'first' ? /^call_timeout no-room\n$/ : /^call_timeout no-answer\n$/);
    if (code.includes('getNote')) expect(printed).toMatch(/\nclosed\n$/);
  }
});
