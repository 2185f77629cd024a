import { spawn } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { Args } from '../src/cli-kit.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { CLI } from './build.ts';
import { Running } from './processes.ts';
import { FREE, tempDir } from './support.ts';
import { settled } from './virtual-clock.ts';

// Ctrl-C comes when it comes: also before a command has begun what it is to end.

let service: Listening;
const home = tempDir();
const module = join(home, 'one.mjs');

beforeAll(async () => {
  service = await createLocalService({ limits: FREE }).listen();
  await writeFile(module, 'export const one = () => 1;');
});
afterAll(() => service.close());

/** Loaded before a command: Ctrl-C at the first moment at which that no longer ends the process by itself. */
const EARLY = "process.on('newListener', (name) => name === 'SIGINT' && process.kill(process.pid, 'SIGINT'))";
const SILENT = [process.execPath, '-e', 'process.stdin.resume()'];

test.each([
  ['mcp serve --pair --', ...SILENT],
  ['mcp serve --public --', ...SILENT],
  ['mcp connect mb-p-nobody --http 0'],
  ['mcp connect mb-p-nobody'],
  ['serve', module],
  ['call mb-p-nobody m'],
  ['read p-tail --follow'],
  ['parley open'],
  ['local'],
])('Ctrl-C while it starts ends %s', async (words, ...more) => {
  const args = [`--import=data:text/javascript,${encodeURIComponent(EARLY)}`, CLI, ...words.split(' '), ...more];
  const env = { ...process.env, HOME: home, TECHNOCORE_URL: service.url, PARLEY_RELAY: service.url };
  const { child, done } = new Running(spawn(process.execPath, args, { env }));
  onTestFinished(() => void child.kill('SIGKILL'));
  const { code, err } = await done;
  expect([0, 130], err).toContain(code);
});

test('Ctrl-C that came before anybody waited for it counts', async () => {
  const others = new Set(process.listeners('SIGINT'));
  const args = new Args({ args: '', about: '', run: async () => 0 }, []);
  expect(args.signal.aborted).toBe(false);
  for (const listener of process.listeners('SIGINT')) if (!others.has(listener)) listener('SIGINT');
  let told = 0;
  args.onInterrupt(() => told++);
  void args.interruption().then(() => told++);
  await settled();
  expect(told).toBe(2);
});
