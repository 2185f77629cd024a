import { expect, test } from 'vitest';
import { count, getOrMake, remember } from '../src/maps.ts';

test('a bounded map lets go of what was set first, and setting again renews', () => {
  const map = new Map<number, number>();
  for (const key of [1, 2, 3, 1, 4]) remember(map, key, key, 3);
  expect([...map.keys()]).toEqual([3, 1, 4]);
});

test('a value is made once, and again when it was let go', () => {
  const map = new Map<string, object>();
  const first = getOrMake(map, 'a', () => ({}));
  expect(getOrMake(map, 'a', () => ({}))).toBe(first);
  map.delete('a');
  expect(getOrMake(map, 'a', () => ({}))).not.toBe(first);
});

test('a count that comes to nothing is not kept', () => {
  const counts = new Map<string, number>();
  count(counts, 'a', 1);
  count(counts, 'a', 1);
  count(counts, 'b', 1);
  count(counts, 'a', -1);
  count(counts, 'b', -1);
  count(counts, 'c', -1);
  expect([...counts]).toEqual([['a', 1]]);
});
