import { spawn } from 'node:child_process';

import { type AddressInfo, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, onTestFinished, test } from 'vitest';
import { Child } from '../src/bridge-process.ts';
import { until } from './support.ts';
import { settled } from './virtual-clock.ts';

const children: Child[] = [];
afterEach(async () => {
  await Promise.all(children.splice(0).map((child) => child.close()));
});

interface Seen {
  child: Child;
  frames: any[];
  junk: string[];
  starts: number;
  stops: [why: string, againMs: number][];
  failure: unknown;
}

async function run(script: string): Promise<Seen> {
  const seen: Seen = {
    child: undefined as unknown as Child,
    frames: [],
    junk: [],
    starts: 0,
    stops: [],
    failure: undefined,
  };
  seen.child = new Child([process.execPath, '-e', script], {
    frame: (frame) => void seen.frames.push(frame),
    junk: (begin) => void seen.junk.push(begin),
    started: () => void seen.starts++,
    stopped: (why, againMs) => void seen.stops.push([why, againMs]),
    failed: (cause) => void (seen.failure = cause),
  });
  children.push(seen.child);
  await seen.child.start();
  return seen;
}

const ECHO = `
  require('readline').createInterface(process.stdin).on('line', (line) => {
    const { die, ...frame } = JSON.parse(line);
    console.log(JSON.stringify({ ...frame, pid: process.pid }));
    if (die) process.exit(3);
  });
`;

test('frames go in and out; a process that dies is started again, later each time', async () => {
  const seen = await run(`console.log('hello'); ${ECHO}`);
  await seen.child.send({ n: 1 });
  await until(() => seen.frames.length === 1);
  expect(seen.junk).toEqual(['hello']);
  for (let n = 1; n <= 3; n++) {
    await until(() => seen.starts === n);
    await seen.child.send({ die: true });
    // Its last words are heard.
    await until(() => seen.stops.length === n && seen.frames.length === 1 + n);
  }
  expect(seen.stops.map(([why]) => why)).toEqual(['code 3', 'code 3', 'code 3']);
  const delays = seen.stops.map(([, againMs]) => againMs);
  expect(delays.every((ms, i) => ms >= 100 * 2 ** i && ms <= 200 * 2 ** i)).toBe(true);
  await until(() => seen.starts === 4);
  await seen.child.send({ n: 2 });
  await until(() => seen.frames.length === 5);
  expect(new Set(seen.frames.map(({ pid }) => pid)).size).toBe(4);
});

test('a command that ends at once each time, and never wrote a message, is given up with what it wrote', async () => {
  const seen = await run(`console.log('usage:'); console.log('  server <folder>'); process.exitCode = 7`);
  await until(() => seen.failure !== undefined);
  expect(seen.failure).toMatchObject({ code: 'no_server' });
  expect(String(seen.failure)).toMatch(/3 times.*code 7; it wrote: usage: \/ server <folder>$/);
  expect([seen.starts, seen.stops.length]).toEqual([3, 2]);
});

test('it does not see our key', async () => {
  process.env['SIGN_SEED'] = 'a secret';
  process.env['BRIDGE_TEST'] = 'seen';
  try {
    const seen = await run('console.log(JSON.stringify([process.env.BRIDGE_TEST, process.env.SIGN_SEED ?? null]))');
    await until(() => seen.frames.length === 1);
    expect(seen.frames[0]).toEqual(['seen', null]);
  } finally {
    delete process.env['SIGN_SEED'];
    delete process.env['BRIDGE_TEST'];
  }
});

test('while none runs, nothing can be sent', async () => {
  const seen = await run('process.exit(0)');
  await until(() => seen.stops.length === 1);
  await expect(seen.child.send({})).rejects.toMatchObject({ code: 'closed' });
  await seen.child.close();
  const { starts } = seen;
  expect(starts).toBe(1);
});

test('a command that does not exist is told at once', async () => {
  const nothing = { frame: () => {}, started: () => {}, stopped: () => {}, failed: () => {} };
  const child = new Child(['/nowhere/at-all'], nothing);
  await expect(child.start()).rejects.toMatchObject({ code: 'no_command' });
});

const isAlive = (pid: number): boolean => {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
};

test.each([
  ['at the end of its input', ECHO],
  ['by a signal, when it keeps itself busy', `${ECHO} setInterval(() => {}, 1000)`],
  ['by force, when it does not listen', `${ECHO} setInterval(() => {}, 1000); process.on('SIGTERM', () => {})`],
])('closing ends it %s', async (_, script) => {
  const seen = await run(script);
  await seen.child.send({});
  await until(() => seen.frames.length === 1);
  const [{ pid }] = seen.frames;
  await seen.child.close();
  await until(() => !isAlive(pid));
  expect(seen.stops).toEqual([]);
  await expect(seen.child.send({})).rejects.toMatchObject({ code: 'closed' });
});

test('closed while it starts, it leaves no process behind, not even one that keeps itself busy', async () => {
  const nothing = { frame: () => {}, started: () => {}, stopped: () => {}, failed: () => {} };
  const child = new Child([process.execPath, '-e', 'setInterval(() => {}, 1000)'], nothing);
  const starting = child.start();
  await child.close();
  // A process that has ended is listed until the next turn of the event loop.
  await settled();
  await settled();
  expect(process.getActiveResourcesInfo()).not.toContain('ProcessWrap');
  await starting;
  await expect(child.start()).rejects.toMatchObject({ code: 'over' });
});

/** Counts processes that live: each holds a connection, which ends with it, whoever is to notice. */
async function living() {
  const lives = { now: 0, ever: 0 };
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    lives.now++;
    lives.ever++;
    socket.on('error', () => {});
    socket.on('close', () => void lives.now--);
    socket.resume();
    sockets.add(socket);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  // Whatever the test found, none is left behind.
  onTestFinished(() => {
    server.close();
    for (const socket of sockets) socket.destroy();
  });
  const { port } = server.address() as AddressInfo;
  const live = (more: string): string =>
    `${more} require('net').connect(${port}, '127.0.0.1').on('close', () => process.exit()); setInterval(() => {}, 1000);`;
  // Its output is that of the process that starts it, which it so holds open.
  const started = (more: string): string =>
    `require('child_process').spawn(process.execPath, ['-e', ${JSON.stringify(live(more))}], { stdio: 'inherit' }).unref();`;
  return { lives, started };
}

const DEAF = `process.on('SIGTERM', () => {}); process.on('SIGHUP', () => {});`;

describe.skipIf(process.platform === 'win32')('what a command started in the background', () => {
  test.each([
    ['at once', ''],
    ['by force, when it does not listen', DEAF],
  ])('ends with it when it dies, %s', async (_, more) => {
    const { lives, started } = await living();
    const seen = await run(`${started(more)} ${ECHO}`);
    await until(() => lives.ever === 1);
    await seen.child.send({ die: true });
    await until(() => seen.starts === 2 && lives.ever === 2 && lives.now === 1);
    expect(seen.stops).toEqual([['code 3', expect.any(Number)]]);
    await seen.child.close();
    await until(() => lives.now === 0);
    expect(lives.ever).toBe(2);
  });

  test.each([
    ['when it ends by itself', ECHO],
    ['when it has to be killed', `${DEAF} setInterval(() => {}, 1000)`],
  ])('ends when it is closed, %s', async (_, script) => {
    const { lives, started } = await living();
    const seen = await run(`${started(DEAF)} ${script}`);
    await until(() => lives.ever === 1);
    await seen.child.close();
    await until(() => lives.now === 0);
  });

  test('ends when we exit without closing it', async () => {
    const { lives, started } = await living();
    const script = `
      import { Child } from ${JSON.stringify(new URL('../dist/bridge-process.js', import.meta.url).href)};
      const command = [process.execPath, '-e', ${JSON.stringify(`${started(DEAF)} ${DEAF} setInterval(() => {}, 1000)`)}];
      await new Child(command, { frame() {}, started() {}, stopped() {} }).start();
      process.stdin.once('data', () => process.exit(0)).resume();
    `;
    const us = spawn(process.execPath, ['--input-type=module', '-e', script], {
      stdio: ['pipe', 'inherit', 'inherit'],
    });
    onTestFinished(() => void us.kill('SIGKILL'));
    await until(() => lives.ever === 1);
    us.stdin.write('go');
    await until(() => lives.now === 0);
  });
});
