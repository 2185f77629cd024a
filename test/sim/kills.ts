import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { call } from '../../src/call.ts';
import { RpcError, TechnocoreError } from '../../src/errors.ts';
import { createLocalService } from '../../src/local.ts';
import { Signer } from '../../src/signer.ts';
import { Random } from './random.ts';

/** What became of the calls while their server was killed again and again. */
export interface Killed {
  kills: number;
  /** How the calls ended: `right`, or the code of the error. */
  outcomes: Record<string, number>;
  /** Lines that the handlers left. */
  handled: number;
  violations: string[];
}

const CALLERS = 8;
const FREE = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9, waitersPerAddress: 64 };

/** Real processes on a real disk: a server is killed in the middle of its work, and started again. */
export async function killServers(kills: number, seed: number, program: string): Promise<Killed> {
  const random = new Random(seed, 'kills');
  const dir = mkdtempSync(join(tmpdir(), 'technocore-kill-'));
  const done = join(dir, 'done');
  const service = createLocalService({ limits: FREE });
  const { url, close } = await service.listen();
  const mailbox = 'mb-p-killed';
  const report: Killed = { kills: 0, outcomes: {}, handled: 0, violations: [] };
  let server: ChildProcess | undefined;
  const start = async (): Promise<string> => {
    const child = spawn(process.execPath, [program, url, mailbox, dir], { stdio: ['ignore', 'pipe', 'inherit'] });
    server = child;
    return new Promise((resolve, reject) => {
      child.stdout!.once('data', (data: Buffer) => resolve(String(data).trim().split(' ')[1]!));
      child.once('exit', (code, signal) => reject(new Error(`the server ended: ${code ?? signal}`)));
    });
  };
  const kill = async (): Promise<void> => {
    const child = server!;
    const gone = new Promise((resolve) => child.once('exit', resolve));
    child.kill('SIGKILL');
    await gone;
  };
  /** Resolves when handlers left so many lines more, or when nothing happens for long. */
  const worked = async (lines: number): Promise<void> => {
    const count = (): number => (existsSync(done) ? readFileSync(done, 'utf8').split('\n').length : 0);
    const before = count();
    for (let i = 0; i < 2000 && count() < before + lines; i++) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  try {
    const peer = await start();
    let isOver = false;
    let number = 0;
    const callers = Array.from({ length: CALLERS }, async (_, i) => {
      const signer = Signer.generate();
      while (!isOver) {
        const n = ++number;
        const method = ['quick', 'slow', 'again'][n % 3]!;
        let outcome = 'right';
        try {
          const o = {
            base: url,
            fetch: globalThis.fetch,
            replyTo: `mb-p-caller${i}`,
            peer,
            retry: 3,
            timeoutMs: 60_000,
          };
          const answer = await call(mailbox, method, { n }, signer, o);
          if (answer !== 2 * n) report.violations.push(`${method} ${n} got ${JSON.stringify(answer)}`);
        } catch (cause) {
          if (!TechnocoreError.is(cause)) report.violations.push(`${method} ${n}: ${(cause as Error).stack}`);
          outcome = (cause as TechnocoreError).code;
          if (cause instanceof RpcError) {
            outcome = `rpc ${cause.rpc.code}`;
            if (cause.rpc.code !== 1001) report.violations.push(`${method} ${n}: ${cause}`);
          }
        }
        report.outcomes[outcome] = (report.outcomes[outcome] ?? 0) + 1;
      }
    });
    while (report.kills < kills) {
      // Some die while they read their ledger, most in the middle of their work, however slow the machine is.
      if (report.kills % 4 !== 3) await worked(1 + random.int(8));
      await new Promise((resolve) => setTimeout(resolve, random.between(0, 80)));
      await kill();
      report.kills++;
      start().catch(() => {});
    }
    isOver = true;
    await Promise.all(callers);
    const times = new Map<string, number>();
    for (const line of readFileSync(done, 'utf8').split('\n')) {
      if (line === '') continue;
      report.handled++;
      times.set(line, (times.get(line) ?? 0) + 1);
    }
    for (const [line, count] of times) {
      if (count > 1 && !line.startsWith('again ')) report.violations.push(`ran ${count} times: ${line}`);
    }
  } finally {
    if (server && server.exitCode === null && server.signalCode === null) await kill();
    await close();
    rmSync(dir, { recursive: true, force: true });
  }
  return report;
}
