import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Log } from '../src/files.ts';
import { Journal, type Journaled } from '../src/journal.ts';
import { tempDir } from './support.ts';

/** A list of numbers. */
class Numbers implements Journaled {
  readonly what = 'list';
  readonly header = '["numbers",1]';
  readonly damage = { code: 'bad_list', meaning: 'nobody knows' };
  list: number[] = [];
  restore(line: unknown): boolean {
    if (typeof line !== 'number') return false;
    this.list.push(line);
    return true;
  }
  lines(): string {
    return this.list.map((n) => `${n}\n`).join('');
  }
}

function memoryLog(text = ''): Log & { text: string; appends: number; replaces: number; fail?: boolean } {
  return {
    text,
    appends: 0,
    replaces: 0,
    async append(more) {
      if (this.fail) throw Object.assign(new Error('full'), { code: 'ENOSPC' });
      await new Promise((resolve) => setImmediate(resolve));
      this.appends++;
      this.text += more;
    },
    async replace(all) {
      this.replaces++;
      this.text = all;
    },
    async close() {},
  };
}

test('what was written is there again; lines that come together share a write', async () => {
  const log = memoryLog();
  const journal = await Journal.open(new Numbers(), 'x', undefined, log);
  await journal.write(1);
  await Promise.all([2, 3, 4, 5].map((n) => journal.write(n)));
  expect(log.appends).toBeLessThanOrEqual(3);
  const again = new Numbers();
  await Journal.open(again, 'x', log.text, memoryLog());
  expect(again.list).toEqual([1, 2, 3, 4, 5]);
});

test('wherever a crash cuts the log, what was on disk before is there', async () => {
  const whole = '["numbers",1]\n10\n20\n30\n';
  for (let cut = 0; cut <= whole.length; cut++) {
    const numbers = new Numbers();
    await Journal.open(numbers, 'x', whole.slice(0, cut), memoryLog());
    const lines = whole.slice(0, cut).split('\n').length - 1;
    expect(numbers.list.slice(0, Math.max(lines - 1, 0))).toEqual([10, 20, 30].slice(0, Math.max(lines - 1, 0)));
  }
});

test('damage is told with its line, and the log left alone', async () => {
  for (const [text, line] of [
    ['["numbers",1]\n1\nnonsense\n2\n', 3],
    ['["numbers",2]\n1\n', 1],
    ['something else', 1],
  ] as const) {
    const log = memoryLog(text);
    await expect(Journal.open(new Numbers(), 'the list', text, log)).rejects.toMatchObject({
      code: 'bad_list',
      message: `the list is not a list, or damaged in line ${line}, so nobody knows`,
    });
    expect(log.text).toBe(text);
  }
});

test('a log that outgrew what it says is written anew', async () => {
  const numbers = new Numbers();
  const log = memoryLog();
  const journal = await Journal.open(numbers, 'x', undefined, log);
  await journal.write('x'.repeat(1 << 20));
  expect(log.replaces).toBe(1);
  numbers.list = [7];
  await journal.write('y'.repeat(64));
  expect(log.text).toBe('["numbers",1]\n7\n');
});

test('after a write that failed nothing more is promised', async () => {
  const log = memoryLog();
  const journal = await Journal.open(new Numbers(), 'x', undefined, log);
  log.fail = true;
  await expect(journal.write(1)).rejects.toMatchObject({
    code: 'unavailable',
    message: expect.stringMatching(/cannot be written: ENOSPC/),
  });
  log.fail = false;
  await expect(journal.write(2)).rejects.toMatchObject({ code: 'unavailable' });
  expect(() => journal.check()).toThrow(/cannot be written/);
});

test('a file is one process’s at a time, and whole again after closing', async () => {
  const path = join(tempDir(), 'numbers');
  const journal = await Journal.openFile(new Numbers(), path);
  await journal.write(1);
  journal.add(2);
  await journal.close();
  expect(readFileSync(path, 'utf8')).toBe('["numbers",1]\n1\n2\n');
  await expect(journal.write(3)).rejects.toMatchObject({ code: 'unavailable', message: 'the list is closed' });
  writeFileSync(path, 'else');
  await expect(Journal.openFile(new Numbers(), path)).rejects.toMatchObject({ code: 'bad_list' });
  // The lock was given back, though nothing could be opened.
  await expect(Journal.openFile(new Numbers(), path)).rejects.toMatchObject({ code: 'bad_list' });
});
