import { type ChildProcess, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { call } from '../src/call.ts';
import { RpcError } from '../src/errors.ts';
import { createLocalService } from '../src/local.ts';
import { setNote } from '../src/notes.ts';
import { presenceNote } from '../src/presence.ts';
import { Signer } from '../src/signer.ts';
import { FREE, signer, tempDir } from './support.ts';

const CALLS = 500;
const CALLERS = 16;
const LEASE_MS = 3000;
const MAILBOX = 'mb-p-claims-processes';
const SEED = '5e'.repeat(32);

it('three servers, 500 calls, one killed in between: each request ran once or is reported as interrupted', async () => {
  const dir = tempDir();
  const file = join(dir, 'done');
  const service = createLocalService({ limits: { ...FREE, waitersPerAddress: 64 } });
  const { url: base, close } = await service.listen();
  const children: ChildProcess[] = [];
  onTestFinished(async () => {
    for (const child of children) child.kill('SIGKILL');
    await close();
  });
  const start = (name: string): Promise<ChildProcess> => {
    const program = new URL('./claims-server.mjs', import.meta.url).pathname;
    const child = spawn(process.execPath, [program, base, MAILBOX, SEED, file, name, String(LEASE_MS)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    children.push(child);
    return new Promise((resolve, reject) => {
      child.stdout!.once('data', () => resolve(child));
      child.once('exit', (code, signal) => reject(new Error(`${name} ended: ${code ?? signal}`)));
    });
  };
  const servers = await Promise.all(['a', 'b', 'c'].map(start));
  for (const server of servers) server.removeAllListeners('exit');

  const peer = Signer.fromSeed(SEED).did;
  const keys = Array.from({ length: CALLERS }, (_, i) => signer(100 + i));
  const work = (i: number, n: number): Promise<string> => {
    const o = { base, fetch: globalThis.fetch, replyTo: `mb-p-claims-caller-${i}`, timeoutMs: 300_000, peer };
    return call(MAILBOX, 'work', { n }, keys[i]!, o);
  };
  // Not before all three have their share.
  const seen = new Set<string>();
  for (let n = -1; seen.size < 3; n -= CALLERS) {
    const answers = await Promise.all(keys.map((_, i) => work(i, n - i).catch(() => undefined)));
    for (const answer of answers) if (answer) seen.add(answer.split(' ')[2]!);
  }

  const outcomes: { from: string; n: number; answer?: string; code?: unknown }[] = [];
  let asked = 0;
  const callers = keys.map(async ({ did: from }, i) => {
    while (asked < CALLS) {
      const n = asked++;
      try {
        outcomes.push({ from, n, answer: await work(i, n) });
      } catch (error) {
        outcomes.push({ from, n, code: error instanceof RpcError ? error.rpc.code : error });
      }
    }
  });
  let isOver = false;
  const vandal = (async () => {
    const { ns, key } = presenceNote(MAILBOX);
    const { fetch } = globalThis;
    for (let i = 0; !isOver; i++) {
      await setNote(ns, key, `junk ${i}`, { base, fetch });
      const namespaces = [MAILBOX, 'claims', 'p-claims', `rpc-here-${ns.slice(-2)}`];
      for (const name of namespaces) await setNote(name, 'claims', 'claims/1 9 - -:0 -:0 -:0 -:0 x', { base, fetch });
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  })();
  const victim = (async () => {
    while (outcomes.length < CALLS / 3) await new Promise((resolve) => setTimeout(resolve, 5));
    servers[0]!.kill('SIGKILL');
  })();
  await Promise.all([...callers, victim]);
  isOver = true;
  await vandal;

  expect(outcomes).toHaveLength(CALLS);
  const lines = readFileSync(file, 'utf8').trim().split('\n');
  const ran = new Map<string, number>();
  for (const line of lines) {
    const [from, n] = line.split(' ');
    ran.set(`${from} ${n}`, (ran.get(`${from} ${n}`) ?? 0) + 1);
  }
  expect([...ran].filter(([, times]) => times > 1)).toEqual([]);
  for (const { from, n, answer, code } of outcomes) {
    if (answer === undefined) expect(code, `${n}`).toBe(1001);
    else expect([answer.split(' ')[0], ran.get(`${from} ${n}`)]).toEqual([`${n}`, 1]);
  }
  const interrupted = outcomes.filter(({ code }) => code === 1001).length;
  expect(interrupted, 'no more than were under way').toBeLessThanOrEqual(2 * CALLERS);
}, 600_000);
