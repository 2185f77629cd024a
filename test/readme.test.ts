import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLocalService, type Listening } from '../src/local.ts';
import { follow } from '../src/technocore-rpc.ts';

const run = promisify(execFile);

// Every example of the README is run as it stands, as a program of its own, against an embedded service.

const root = new URL('..', import.meta.url).pathname;
const blocks = [...(await readFile(join(root, 'README.md'), 'utf8')).matchAll(/```js\n([\s\S]*?)```/g)].map(
  ([, code]) => code!,
);
let service: Listening;
let folder: string;
const running = new Set<() => void>();

beforeAll(async () => {
  const limits = { readsPerMinute: 1e6, writesPerMinute: 1e6, newRoomsPerDay: 1e6 };
  service = await createLocalService({ limits }).listen();
  folder = await mkdtemp(join(tmpdir(), 'readme-'));
  // The package by its own name, as an installed one is found.
  await mkdir(join(folder, 'node_modules'));
  await symlink(root, join(folder, 'node_modules', 'technocore-rpc'));
  await writeFile(join(folder, 'package.json'), '{ "type": "module" }');
});

afterAll(async () => {
  for (const stop of running) stop();
  await service.close();
  await rm(folder, { recursive: true });
});

function start(name: string, code: string): { stop(): void; done: Promise<string> } {
  const file = join(folder, `${name}.js`);
  const env = { ...process.env, TECHNOCORE_URL: service.url, HOME: folder };
  let stop = (): void => {};
  const done = writeFile(file, code).then(async () => {
    const child = run(process.execPath, [file], { env });
    stop = () => void child.child.kill();
    running.add(stop);
    const { stdout, stderr } = await child;
    return stdout + stderr;
  });
  return { stop: () => stop(), done };
}

test('the README has examples', () => {
  expect(blocks.length).toBeGreaterThanOrEqual(5);
});

test('serve and call', async () => {
  const server = start('serve', blocks[0]!);
  server.done.catch(() => {});
  for await (const _ of follow('mb-p-greeter-7c1f', { base: service.url, since: 0 })) break;
  expect(await start('call', blocks[1]!).done).toMatch(/^Hello Ada, you are did:key:z6Mk/);
  server.stop();
});

test.each(blocks.map((code, i) => [i + 1, code] as const).slice(2))('example %i runs', async (i, code) => {
  expect(await start(`example-${i}`, code).done).not.toMatch(/Error/);
});
