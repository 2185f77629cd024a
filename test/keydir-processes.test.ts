import { type ChildProcess, spawn } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { afterEach, expect, test } from 'vitest';
import { createLocalService } from '../src/local.ts';
import { exportOf } from '../src/messages.ts';
import { Signer } from '../src/signer.ts';
import { tempDir } from './support.ts';

const WRITER = fileURLToPath(new URL('writer.mjs', import.meta.url));
const PROCESSES = 8;
const LINES = 80;
/** Acknowledgements between two kills, at most; about fifteen in all. */
const KILL_EVERY = 80;

const root = tempDir();
const children = new Set<ChildProcess>();
afterEach(() => {
  for (const child of children) child.kill('SIGKILL');
});

test(`fault 22: ${PROCESSES} processes, one key directory, one room, ${LINES} writes each, killed at random and replaced`, async () => {
  const dir = join(root, 'key');
  const plenty = 1e9;
  const service = createLocalService({
    limits: { readsPerMinute: plenty, writesPerMinute: plenty, connections: plenty, duplicateWindowMs: 0 },
  });
  const { url, close } = await service.listen();

  const acknowledged: { seq: number; nonce: string; text: string }[] = [];
  const events: { event: string; code?: string }[] = [];
  let killed = 0;
  let nextKill = 20;

  /** Sees one slot through, with as many processes as it takes. */
  async function slot(number: number): Promise<void> {
    for (let line = 0, attempt = 0; line < LINES; attempt++) {
      const args = [WRITER, dir, url, 'lobby', String(number), String(line), String(LINES), String(attempt)];
      const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
      children.add(child);
      let trouble = '';
      child.stderr.on('data', (data) => (trouble += data));
      createInterface(child.stdout).on('line', (text) => {
        const report = JSON.parse(text);
        if (report.event !== undefined) return void events.push(report);
        acknowledged.push(report);
        line++;
        if (acknowledged.length < nextKill) return;
        nextKill += Math.ceil(Math.random() * KILL_EVERY);
        const victims = [...children];
        const victim = victims[Math.floor(Math.random() * victims.length)]!;
        setTimeout(() => victim.kill('SIGKILL'), Math.random() * 10);
      });
      // What it wrote before it died comes before this.
      const [code, signal] = await new Promise<[number | null, string | null]>((resolve) =>
        child.on('close', (...end) => resolve(end)),
      );
      children.delete(child);
      if (signal === 'SIGKILL') killed++;
      else expect(code, trouble).toBe(0);
    }
  }

  await Promise.all(Array.from({ length: PROCESSES }, (_, number) => slot(number)));

  const stored = exportOf(await (await service.fetch('http://local/r/lobby/export')).text());
  await close();
  expect(killed).toBeGreaterThan(3);
  // None refused for good.
  expect(acknowledged).toHaveLength(PROCESSES * LINES);
  // No nonce used twice: none came too late, and so none had to be replaced.
  expect(events.filter(({ code }) => code === 'stale_nonce')).toEqual([]);
  const nonces = stored.map((m) => BigInt(m.nonce!));
  for (let i = 1; i < nonces.length; i++) expect(nonces[i]! > nonces[i - 1]!).toBe(true);
  // No write lost: each acknowledged one is in the room, where it was said to be, and once.
  const bySeq = new Map(stored.map((m) => [m.seq, m]));
  for (const { seq, nonce, text } of acknowledged) expect(bySeq.get(seq)).toMatchObject({ nonce, text });
  const texts = stored.map((m) => m.text);
  expect(new Set(texts).size).toBe(texts.length);
  // What is there beside them are the last words of the killed.
  const doubted = events.filter(({ event }) => event === 'gave up').length;
  expect(stored.length - acknowledged.length).toBeLessThanOrEqual(killed + doubted);
  expect(new Set(stored.map((m) => m.from)).size).toBe(1);

  // The ledger knows them all, and nothing else is left of the dead.
  const { did } = await Signer.fromDir(dir);
  expect(BigInt(JSON.parse(readFileSync(join(dir, 'nonces.json'), 'utf8'))[did].lobby)).toBeGreaterThanOrEqual(
    nonces.at(-1)!,
  );
  expect(readdirSync(dir).sort()).toEqual(['nonces.json', 'seed']);
}, 600_000);
