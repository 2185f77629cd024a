import { spawn } from 'node:child_process';
import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { Log } from '../src/files.ts';
import type { Clock } from '../src/http.ts';
import { type Admission, type Ledger, type LedgerMessage, LedgerState } from '../src/ledger.ts';
import { fileCursor, fileLedger, loggedLedger } from '../src/ledger-file.ts';
import { serve } from '../src/serve.ts';
import { Running } from './processes.ts';
import { Random } from './sim/random.ts';
import { requestFrame, signer, tempDir, until, world } from './support.ts';
import type { VirtualClock } from './virtual-clock.ts';

const dir = tempDir();
let files = 0;
const fresh = (): string => join(dir, `ledger-${files++}`);

const ALICE = signer(1).did;
const BOB = signer(2).did;
const ROOM = 'mb-p-served';

const message = (nonce: number, ids: string[], o: Partial<LedgerMessage> & { reply?: string } = {}): LedgerMessage => ({
  from: o.from ?? ALICE,
  room: o.room ?? ROOM,
  nonce: String(nonce),
  requests: ids.map((id) => ({ id: `"${id}"`, digest: `digest of ${id}`, ...(o.reply && { reply: o.reply }) })),
});
const kinds = ({ verdicts }: Admission): string[] => verdicts.map(({ kind }) => kind);

/** Opens a ledger, uses it and closes it. */
async function using<T>(path: string, use: (ledger: Ledger) => Promise<T>): Promise<T> {
  const ledger = await fileLedger(path);
  try {
    return await use(ledger);
  } finally {
    await ledger.close!();
  }
}

/** Lets virtual time pass, and real time for the disk, until the work is done. */
async function run<T>(clock: VirtualClock, work: Promise<T>): Promise<T> {
  let isOver = false;
  const end = (): void => {
    isOver = true;
  };
  work.then(end, end);
  while (!isOver) {
    await new Promise((resolve) => setTimeout(resolve, 1));
    await clock.advance(20);
  }
  return work;
}

/** A log in memory, as it would be on a disk. */
function memoryLog(): Log & { text: string; appends: number } {
  const log = {
    text: '',
    appends: 0,
    append: async (text: string) => {
      await new Promise((resolve) => setImmediate(resolve));
      log.appends++;
      log.text += text;
    },
    replace: async (text: string) => {
      log.text = text;
    },
    close: async () => {},
  };
  return log;
}

describe('a ledger in a file', () => {
  test('fault 72: what was begun, answered and seen is known after a restart', async () => {
    const path = fresh();
    await using(path, async (ledger) => {
      expect(
        kinds(await ledger.admit(message(10, ['done', 'sent', 'begun', 'forgotten'], { reply: 'mb-p-a' }), 0)),
      ).toEqual(Array(4).fill('new'));
      await ledger.answer(ALICE, '"done"', 'the answer');
      await ledger.answer(ALICE, '"sent"', 'the sent answer');
      await ledger.sent(ALICE, '"sent"');
      await ledger.forget(ALICE, '"forgotten"');
    });
    await using(path, async (ledger) => {
      const old = await ledger.admit(message(10, ['done', 'sent', 'begun', 'forgotten']), 0);
      expect(old.fresh).toBe(false);
      expect(old.verdicts).toEqual([
        { kind: 'answered', answer: 'the answer', sent: false },
        { kind: 'answered', answer: 'the sent answer', sent: true },
        { kind: 'interrupted' },
        { kind: 'old' },
      ]);
      expect(kinds(await ledger.admit(message(9, ['never seen']), 0))).toEqual(['old']);
      expect(kinds(await ledger.admit(message(11, ['begun', 'new']), 0))).toEqual(['interrupted', 'new']);
      expect(kinds(await ledger.admit(message(1, ['done'], { from: BOB, reply: 'mb-p-a' }), 0))).toEqual(['taken']);
      await ledger.answer(ALICE, '"begun"', 'interrupted, said once and for all');
    });
    await using(path, async (ledger) => {
      const { verdicts } = await ledger.admit(message(12, ['begun', 'new']), 0);
      expect(verdicts).toEqual([
        { kind: 'answered', answer: 'interrupted, said once and for all', sent: false },
        { kind: 'interrupted' },
      ]);
    });
  });

  test('its own time goes on where it was, and downtime does not count', async () => {
    const path = fresh();
    const minute = 60_000;
    await using(path, async (ledger) => {
      await ledger.admit(message(1, ['x']), 0);
      await ledger.answer(ALICE, '"x"', 'answer');
      for (let i = 1; i <= 6; i++) ledger.pass!(i * minute);
    });
    const aDayLater = 24 * 60 * minute;
    await using(path, async (ledger) => {
      ledger.pass!(aDayLater);
      expect(kinds(await ledger.admit(message(2, ['x']), aDayLater))).toEqual(['answered']);
      for (let i = 1; i <= 4; i++) ledger.pass!(aDayLater + i * minute);
      expect(kinds(await ledger.admit(message(3, ['x']), aDayLater + 4 * minute))).toEqual(['new']);
    });
  });

  test('a log cut at any byte gives what was whole, and goes on from there', async () => {
    const log = memoryLog();
    const ledger = await loggedLedger('log', undefined, log);
    for (let i = 1; i <= 4; i++) {
      await ledger.admit(message(i, [`a${i}`, `b${i}`]), i);
      if (i % 2 === 0) await ledger.answer(ALICE, `"a${i}"`, `answer ${i}`);
    }
    const whole = log.text;
    for (let length = 0; length <= whole.length; length++) {
      const cut = memoryLog();
      cut.text = whole.slice(0, length);
      const again = await loggedLedger('log', cut.text, cut);
      // A message is known with all its requests or not at all.
      let known = 0;
      for (let i = 1; i <= 4; i++) {
        const { fresh, verdicts } = await again.admit(message(i, [`a${i}`, `b${i}`]), 9);
        expect(fresh ? 0 : 1).toBe(Number(verdicts[1]!.kind !== 'new'));
        if (!fresh) expect(known++).toBe(i - 1);
      }
      expect(known).toBe(whole.slice(0, length).split('"admit"').length - 1 - Number(isCut(whole, length, '"admit"')));
      const text = cut.text;
      expect(await loggedLedger('log', text, memoryLog())).toBeDefined();
    }
  });

  test('whatever is done, the log tells the same as the memory', async () => {
    for (let seed = 1; seed <= 40; seed++) {
      const random = new Random(seed, 'ledger');
      // As many guards as there are pairs, and none merged: a log keeps those that the memory has merged.
      const limits = { entries: 24, floors: 18, chars: 4000, windowMs: random.pick([600_000, 1e12]) };
      const log = memoryLog();
      const ledger = await loggedLedger('log', undefined, log, limits);
      const memory = new LedgerState(limits);
      let now = 0;
      for (let step = 0; step < 120; step++) {
        now += random.pick([0, 1000, 50_000, 3_600_000, -5000]);
        const id = `"${random.int(12)}"`;
        const from = random.pick([ALICE, BOB, signer(3).did]);
        switch (random.int(5)) {
          case 0:
            memory.answer(from, id, `answer ${step}`);
            await ledger.answer(from, id, `answer ${step}`);
            break;
          case 1:
            memory.sent(from, id);
            await ledger.sent(from, id);
            break;
          case 2:
            memory.forget(from, id);
            await ledger.forget(from, id);
            break;
          case 3:
            memory.pass(now);
            ledger.pass!(now);
            break;
          default: {
            const m: LedgerMessage = {
              from,
              room: random.pick(['mb-a', 'mb-b', 'mb-c']),
              nonce: String(random.int(step + 2)),
              requests: [{ id, digest: random.pick(['d', 'd', 'other']), reply: random.pick(['mb-p-x', 'mb-p-y']) }],
            };
            expect(await ledger.admit(m, now), `seed ${seed}, step ${step}`).toEqual(memory.admit(m, now));
          }
        }
      }
      await ledger.close!();
      // The same after a restart, but that nobody works on what was begun.
      const again = await loggedLedger('log', log.text, memoryLog(), limits);
      for (const from of [ALICE, BOB, signer(3).did]) {
        for (let id = 0; id < 12; id++) {
          const probe = (nonce: number): LedgerMessage => ({
            from,
            room: 'mb-a',
            nonce: String(nonce),
            requests: [{ id: `"${id}"`, digest: 'd', reply: 'mb-p-x' }],
          });
          const [was] = memory.admit(probe(0), now).verdicts;
          const [is] = (await again.admit(probe(0), now)).verdicts;
          expect(is, `seed ${seed}, ${from.slice(-4)} ${id}`).toEqual(
            was!.kind !== 'running' ? was : { kind: limits.windowMs > 1e6 ? 'interrupted' : expect.any(String) },
          );
        }
      }
    }
  });

  test('a file that is something else, or damaged, is refused and stays as it is', async () => {
    const good = fresh();
    await using(good, async (ledger) => {
      await ledger.admit(message(1, ['x']), 0);
    });
    const text = readFileSync(good, 'utf8');
    const lines = text.split('\n');
    for (const damaged of [
      'x',
      '{"some":"json"}\n',
      '\0\0\0\0\n',
      text.replace('technocore-ledger', 'technocore-lodger'),
      [lines[0], '["admit"', ...lines.slice(1)].join('\n'),
      [lines[0], '["admit","a","b","not a nonce",[]]', ...lines.slice(1)].join('\n'),
      [lines[0], '["admit","a","b","1",[["id"]]]', ...lines.slice(1)].join('\n'),
      [lines[0], '["answer","a","b"]', ...lines.slice(1)].join('\n'),
      [lines[0], '["__proto__","a","b"]', ...lines.slice(1)].join('\n'),
      [lines[0], '["letgo",1]', ...lines.slice(1)].join('\n'),
      [lines[0], '["time","1"]', ...lines.slice(1)].join('\n'),
    ]) {
      const path = fresh();
      writeFileSync(path, damaged);
      await expect(fileLedger(path), damaged).rejects.toMatchObject({ code: 'bad_ledger' });
      expect(readFileSync(path, 'utf8')).toBe(damaged);
      // The lock is free again.
      expect(readdirSync(dir).filter((name) => name.includes(`${path.split('/').at(-1)}.`))).toEqual([]);
    }
  });

  test('one process at a time, for the owner alone', async () => {
    const path = fresh();
    const ledger = await fileLedger(path);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    // Half a minute of waiting, without the waiting.
    let now = 0;
    const hasty: Clock = { now: () => (now += 1000), sleep: () => new Promise((resolve) => setImmediate(resolve)) };
    const warn = vi.spyOn(console, 'warn').mockImplementation(() => {});
    onTestFinished(() => warn.mockRestore());
    await expect(fileLedger(path, {}, hasty)).rejects.toMatchObject({
      code: 'unavailable',
      message: expect.stringContaining(`process ${process.pid} of this machine`),
    });
    expect(warn.mock.calls).toEqual([
      [`technocore-rpc: waiting for ${path}, which process ${process.pid} of this machine has open`],
    ]);
    await ledger.close!();
    await using(path, async () => {});
    await expect(ledger.admit(message(1, ['x']), 0) as Promise<Admission>).rejects.toMatchObject({
      code: 'unavailable',
    });
    await expect(fileLedger(join(dir, 'no', 'such', 'directory'))).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('a killed process leaves no lock behind', async () => {
    const path = fresh();
    const module = new URL('../dist/ledger-file.js', import.meta.url).pathname;
    const program = `const { fileLedger } = await import(${JSON.stringify(module)}); await fileLedger(${JSON.stringify(path)}); console.log('locked'); setInterval(() => {}, 1000);`;
    const { child, exited, shows } = new Running(
      spawn(process.execPath, ['--input-type=module', '-e', program], { stdio: ['ignore', 'pipe', 'inherit'] }),
    );
    await shows(({ out }) => out === 'locked\n');
    child.kill('SIGKILL');
    await exited;
    await using(path, async () => {});
  });

  test('what killed processes left half written is removed, and nothing else', async () => {
    const [path, cursor, other] = [fresh(), fresh(), fresh()];
    const names = (): string[] => readdirSync(dir).filter((name) => name.endsWith('.tmp'));
    const suffix = await using(path, async () => {
      const lock = `${basename(path)}.node-lock.`;
      const entry = readdirSync(dir).find((name) => name.startsWith(lock))!;
      return entry.slice(lock.length).replace(/^\d+/, '999999999');
    });
    const left = [path, `${path}.node-lock`, cursor, other].map((file) => `${file}.${suffix}.tmp`);
    for (const file of left) writeFileSync(file, 'half');
    await using(path, async () => {});
    expect(names()).toEqual(left.slice(2).map((file) => basename(file)));
    await fileCursor(cursor).load('mb-a');
    expect(names()).toEqual(left.slice(3).map((file) => basename(file)));
  });

  test('the file does not outgrow what it says', async () => {
    const path = fresh();
    const limits = { windowMs: 60_000 };
    const ledger = await fileLedger(path, limits);
    const answer = 'x'.repeat(4000);
    let most = 0;
    for (let i = 1; i <= 700; i++) {
      await ledger.admit(message(i, [`${i}`]), i * 6000);
      void ledger.answer(ALICE, `"${i}"`, answer);
      most = Math.max(most, statSync(path).size);
    }
    await ledger.close!();
    // All of it would be 3 MB.
    expect(most).toBeGreaterThan(1 << 20);
    expect(most).toBeLessThan(1_500_000);
    const again = await fileLedger(path, limits);
    expect(statSync(path).size).toBeLessThan(60_000);
    expect(kinds(await again.admit(message(701, ['700']), 4_200_000))).toEqual(['answered']);
    await again.close!();
  });

  test('what comes together is written together, and in order', async () => {
    const log = memoryLog();
    const ledger = await loggedLedger('log', undefined, log);
    const admissions = await Promise.all(
      Array.from({ length: 100 }, (_, i) => ledger.admit(message(i + 1, [`${i}`]), 0)),
    );
    expect(admissions.flatMap(kinds)).toEqual(Array(100).fill('new'));
    expect(log.appends).toBeLessThan(4);
    const nonces = [...log.text.matchAll(/"admit","[^"]+","[^"]+","(\d+)"/g)].map(([, nonce]) => Number(nonce));
    expect(nonces).toEqual(Array.from({ length: 100 }, (_, i) => i + 1));
  });

  test('a week without requests takes one line, in memory and on disk, and is remembered', async () => {
    const log = memoryLog();
    const ledger = await loggedLedger('log', undefined, log);
    await ledger.admit(message(1, ['1']), 0);
    const before = log.text.length;
    for (let now = 0; now <= 7 * 86_400_000; now += 30_000) ledger.pass!(now);
    await ledger.close!();
    expect(log.text.slice(before)).toBe('["time",604800000]\n');
  });

  test('a disk that fails ends the server: nothing runs that is not written down', async () => {
    for (const profile of ['modern', '0.7'] as const) {
      const w = world(profile);
      const log = memoryLog();
      log.append = () => Promise.reject(Object.assign(new Error('no space'), { code: 'ENOSPC' }));
      const ledger = await loggedLedger('log', undefined, log);
      let runs = 0;
      const methods = new Map([['x', () => runs++]]);
      const stop = new AbortController();
      let isReady = false;
      const onReady = (): void => void (isReady = true);
      const serving = serve(ROOM, signer(9), { ...w.o, methods, ledger, signal: stop.signal, onReady });
      const ended = expect(run(w.clock, serving)).rejects.toMatchObject({
        code: 'unavailable',
        message: expect.stringContaining('ENOSPC'),
      });
      await until(() => isReady);
      const text = requestFrame('1', 'x', { _meta: { 'chat.technocore/reply': 'mb-p-alice' } });
      await signer(1).say(ROOM, text, w.o);
      await ended;
      expect(runs).toBe(0);
      await expect(ledger.admit(message(1, ['x']), 0) as Promise<Admission>).rejects.toThrow('ENOSPC');
    }
  });
});

/** Whether a text cut at `length` has a line with `word` that lacks its end and is no JSON. */
function isCut(text: string, length: number, word: string): boolean {
  const rest = text.slice(text.lastIndexOf('\n', length - 1) + 1, length);
  if (!rest.includes(word)) return false;
  try {
    JSON.parse(rest);
    return false;
  } catch {
    return true;
  }
}

describe('a cursor in a file', () => {
  test('places of several rooms survive', async () => {
    const path = fresh();
    const cursor = fileCursor(path);
    expect(await cursor.load('mb-a')).toBeUndefined();
    await Promise.all([cursor.save('mb-a', { since: 1 }), cursor.save('mb-b', { since: 7, generation: 2, mark: 't' })]);
    await cursor.save('mb-a', { since: 3, generation: 1 });
    const again = fileCursor(path);
    expect(await again.load('mb-a')).toEqual({ since: 3, generation: 1 });
    expect(await again.load('mb-b')).toEqual({ since: 7, generation: 2, mark: 't' });
    expect(await again.load('mb-c')).toBeUndefined();
    expect(statSync(path).mode & 0o777).toBe(0o600);
  });

  test('what holds no places is refused and stays as it is', async () => {
    for (const damaged of [
      '',
      '{',
      'null',
      '[]',
      '{"mb-a":7}',
      '{"mb-a":{"since":-1}}',
      '{"mb-a":{"since":1,"generation":"2"}}',
    ]) {
      const path = fresh();
      writeFileSync(path, damaged);
      await expect(fileCursor(path).load('mb-a') as Promise<unknown>, damaged).rejects.toMatchObject({
        code: 'bad_cursor',
      });
      await expect(fileCursor(path).save('mb-a', { since: 1 }) as Promise<unknown>).rejects.toMatchObject({
        code: 'bad_cursor',
      });
      expect(readFileSync(path, 'utf8')).toBe(damaged);
    }
    await expect(
      fileCursor(join(dir, 'no', 'such', 'file')).save('mb-a', { since: 1 }) as Promise<unknown>,
    ).rejects.toMatchObject({
      code: 'unavailable',
    });
  });

  test('what came while the server was down is served, also when it had never been called before', async () => {
    for (const profile of ['modern', '0.7'] as const) {
      const w = world(profile);
      const path = fresh();
      const heard: number[] = [];
      const methods = new Map([['said', ({ n }: { n: number }) => void heard.push(n)]]);
      const serveOnce = async (n: number): Promise<void> => {
        const stop = new AbortController();
        const ledger = await fileLedger(`${path}.ledger`);
        const serving = serve(ROOM, signer(9), {
          ...w.o,
          methods,
          ledger,
          cursor: fileCursor(path),
          signal: stop.signal,
          onReady,
        });
        let isReady = false;
        function onReady(): void {
          isReady = true;
        }
        const ended = run(w.clock, serving);
        await until(() => isReady);
        await until(() => heard.length === n);
        stop.abort();
        await ended;
        await ledger.close!();
      };
      const alice = signer(1);
      const say = (n: number): Promise<unknown> =>
        run(w.clock, alice.say(ROOM, JSON.stringify({ jsonrpc: '2.0', method: 'said', params: { n } }), w.o));
      await serveOnce(0);
      await say(1);
      await say(2);
      await serveOnce(2);
      await say(3);
      await serveOnce(3);
      expect(heard).toEqual([1, 2, 3]);
    }
  });
});
