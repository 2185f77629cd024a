import { describe, expect, test } from 'vitest';
import { givesWay, mostFor, NEVER, Regulars, Seats, Turns } from '../src/turns.ts';
import { VirtualClock } from './virtual-clock.ts';

const always = (): boolean => true;

/** The keys whose turn it is, one after the other. */
function order<T>(turns: Turns<T>, count: number): string {
  return Array.from({ length: count }, () => turns.next(always)?.[0] ?? '-').join(' ');
}

describe('turns', () => {
  test('go round the keys, each in its own order', () => {
    const turns = new Turns<string>(100, 100);
    for (const item of ['a1', 'a2', 'a3']) turns.push('a', item);
    turns.push('b', 'b1');
    expect(turns.next(always)).toEqual(['a', 'a1']);
    turns.push('c', 'c1');
    expect(order(turns, 5)).toBe('b a c a -');
  });

  test('go round the places too: many keys with one place get no more than one with its own, nor one key with many', () => {
    const turns = new Turns<number>(1000, 100);
    for (let i = 0; i < 10; i++) turns.push(`many${i}`, i, 'one place');
    for (let i = 0; i < 10; i++) turns.push('scattered', i, `place ${i}`);
    for (let i = 0; i < 10; i++) turns.push('plain', i, 'own place');
    const taken = order(turns, 18).split(' ');
    expect(taken.filter((key) => key === 'plain')).toHaveLength(6);
    expect(taken.filter((key) => key === 'scattered')).toHaveLength(6);
  });

  test('skip what cannot be done now', () => {
    const turns = new Turns<string>(100, 100);
    turns.push('a', 'busy');
    turns.push('b', 'free');
    expect(turns.next((_, item) => item === 'free')).toEqual(['b', 'free']);
    expect(turns.next((_, item) => item === 'free')).toBeUndefined();
    expect(turns.remove('a', 'busy')).toBe(true);
    expect(turns.remove('a', 'busy')).toBe(false);
    expect(order(turns, 1)).toBe('-');
  });

  test('every second one is of those who were there first, whoever floods', () => {
    const regulars = new Regulars(new VirtualClock());
    for (const key of ['old', 'later', 'third', 'fourth', 'fifth']) regulars.note(key);
    const turns = new Turns<number>(10_000, 1000, regulars);
    for (let i = 0; i < 500; i++) turns.push(`new${i}`, i);
    for (const key of ['old', 'fifth']) for (let i = 0; i < 100; i++) turns.push(key, i);
    const taken = order(turns, 100).split(' ');
    expect(taken.filter((key) => key === 'old').length).toBeGreaterThanOrEqual(25);
    expect(taken.filter((key) => key === 'fifth').length).toBeGreaterThanOrEqual(25);
    // One that was there first takes no more for it than its part of the half.
    for (const key of ['later', 'third', 'fourth']) for (let i = 0; i < 100; i++) turns.push(key, i);
    const then = order(turns, 80).split(' ');
    for (const key of ['old', 'later', 'third', 'fourth']) {
      expect(then.filter((one) => one === key).length, key).toBeGreaterThanOrEqual(10);
      expect(then.filter((one) => one === key).length, key).toBeLessThanOrEqual(12);
    }
  });
});

describe('when too many wait', () => {
  test('the last of the longest queue gives way to a newcomer', () => {
    const turns = new Turns<string>(4, 3);
    for (const item of ['a1', 'a2', 'a3']) expect(turns.push('a', item)).toBeUndefined();
    expect(turns.push('a', 'a4'), 'of one key so many').toBe('a4');
    turns.push('b', 'b1');
    expect(turns.push('c', 'c1')).toBe('a3');
    expect(turns.push('d', 'd1')).toBe('a2');
    expect(turns.push('a', 'a5')).toBe('a5');
    expect(turns.push('e', 'e1'), 'nobody has more than it').toBe('e1');
    expect(order(turns, 5)).toBe('a b c d -');
  });

  test('of equals the latest comer gives way', () => {
    const regulars = new Regulars(new VirtualClock());
    for (const key of ['old', 'later']) regulars.note(key);
    const turns = new Turns<string>(3, 3, regulars);
    for (const key of ['later', 'new', 'newer']) turns.push(key, key);
    expect(turns.push('old', 'old')).toBe('new');
    expect(turns.push('stranger', 'stranger')).toBe('stranger');
    expect(order(turns, 4)).toBe('later old newer -');
  });
});

test('a list of regulars that is full forgets those who stay away, and nobody else', async () => {
  const clock = new VirtualClock();
  const regulars = new Regulars(clock);
  for (let i = 0; i < 4096; i++) regulars.note(`${i}`);
  await clock.advance(86_000_000);
  regulars.note('7');
  regulars.note('newcomer');
  expect(regulars.rank('newcomer')).toBe(Number.POSITIVE_INFINITY);
  await clock.advance(500_000);
  regulars.note('newcomer');
  expect([regulars.rank('7'), regulars.rank('8'), regulars.rank('newcomer')]).toEqual([
    7,
    Number.POSITIVE_INFINITY,
    4096,
  ]);
});

test('what is not given back is left in part to those who came first, also by a crowd that was served by now', () => {
  expect([mostFor(0, 64), mostFor(NEVER, 64), mostFor(1 << 20, 64)]).toEqual([64, 48, 48]);
  for (const known of [1, 10, 100]) {
    // All that came before the crowd find room when all of the crowd have what they can get.
    const left = mostFor(known - 1, 65_536) - mostFor(known, 65_536);
    const leftToAll = 65_536 - mostFor(known, 65_536);
    expect(left).toBeGreaterThan(0);
    expect(leftToAll).toBeGreaterThan(500);
  }
});

test('who holds most for how late it came gives way, of equals the latest comer, and nobody to one with as much', () => {
  const hold = (...held: [from: string, rank: number][]) => held.map(([from, rank], i) => ({ from, rank, i }));
  const late = Number.POSITIVE_INFINITY;
  expect(givesWay([], { from: 'new', rank: late })).toBeUndefined();
  expect(givesWay(hold(['a', late], ['b', late], ['a', late]), { from: 'new', rank: late })?.i).toBe(0);
  expect(givesWay(hold(['a', 0], ['b', late], ['a', 0]), { from: 'new', rank: late })?.i).toBe(1);
  expect(givesWay(hold(...Array(14).fill(['a', 0]), ['b', late]), { from: 'new', rank: late })?.i).toBe(14);
  expect(givesWay(hold(...Array(30).fill(['a', 0]), ['b', late]), { from: 'new', rank: late })?.i).toBe(0);
  expect(givesWay(hold(['a', 0], ['b', 2], ['c', 1]), { from: 'old', rank: 1 })?.i).toBe(1);
  expect(givesWay(hold(['a', 0], ['b', late], ['c', late]), { from: 'new', rank: late })?.i).toBe(1);
  expect(givesWay(hold(['a', 0], ['b', 1]), { from: 'new', rank: late })).toBeUndefined();
  expect(givesWay(hold(['a', 0], ['b', 1]), { from: 'b', rank: 1 })).toBeUndefined();
});

test('a crowd has no more than its part of what is held for long, whether it was served by now or never', () => {
  for (const rankOf of [() => NEVER, (i: number) => 10 + i]) {
    const seats = new Seats([64, 16]);
    const ended: string[] = [];
    const take = (from: string, rank: number) => seats.take({ from, rank }, () => void ended.push(from));
    for (let i = 0; i < 200; i++) take(`crowd${i}`, rankOf(i));
    for (let i = 0; i < 10; i++) expect(take(`known${i}`, i)).toBeDefined();
    expect(take('known0', 0)).toBeDefined();
    for (let round = 0; round < 3; round++) for (let i = 0; i < 200; i++) take(`crowd${i}`, rankOf(i));
    expect(ended.filter((from) => from.startsWith('known'))).toEqual([]);
  }
});

test('what is held for long: so much of one key, and what is given back is another’s', () => {
  const seats = new Seats([3, 2]);
  const ended: string[] = [];
  const take = (from: string) => seats.take({ from, rank: NEVER }, () => void ended.push(from));
  const [first] = [take('a'), take('a')];
  expect(take('a')).toBeUndefined();
  take('b');
  expect(take('c')).toBeDefined();
  expect(ended).toEqual(['a']);
  first!();
  expect(take('d')).toBeDefined();
  expect(ended).toEqual(['a', 'a']);
});
