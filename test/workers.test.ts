import { expect, test } from 'vitest';
import { Workers } from '../src/workers.ts';
import { settled } from './virtual-clock.ts';

/** Asks for a turn and notes when it comes. */
function taker(workers: Workers, log: string[]) {
  const releases = new Map<string, () => void>();
  return {
    take(from: string, name: string): void {
      void workers.enter(from).then((release) => {
        log.push(release ? name : `${name} refused`);
        if (release) releases.set(name, release);
      });
    },
    give: (name: string): void => releases.get(name)!(),
  };
}

test('keys take turns, however much one of them asks', async () => {
  const log: string[] = [];
  const { take, give } = taker(new Workers(1, 100), log);
  for (const name of ['a1', 'a2', 'a3']) take('a', name);
  take('b', 'b1');
  await settled();
  expect(log).toEqual(['a1']);
  give('a1');
  await settled();
  give('a2');
  await settled();
  expect(log).toEqual(['a1', 'a2', 'b1']);
  give('b1');
  give('b1');
  await settled();
  expect(log).toEqual(['a1', 'a2', 'b1', 'a3']);
});

test('one key has no more turns at a time than its share, and keeps nobody else waiting', async () => {
  const log: string[] = [];
  const { take, give } = taker(new Workers(3, 100, 2), log);
  for (const name of ['a1', 'a2', 'a3', 'a4']) take('a', name);
  take('b', 'b1');
  take('b', 'b2');
  await settled();
  expect(log).toEqual(['a1', 'a2', 'b1']);
  give('b1');
  await settled();
  expect(log.at(-1)).toBe('b2');
  give('a1');
  await settled();
  expect(log.at(-1)).toBe('a3');
});

test('too many that wait are refused, of one key a quarter', async () => {
  const log: string[] = [];
  const { take } = taker(new Workers(1, 8), log);
  for (const name of ['a0', 'a1', 'a2', 'a3']) take('a', name);
  take('b', 'b1');
  await settled();
  expect(log).toEqual(['a0', 'a3 refused']);
});
