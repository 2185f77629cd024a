import { describe, expect, test } from 'vitest';
import type { Clock } from '../src/http.ts';
import { Lanes } from '../src/http.ts';
import { type LastNonces, lastNonce, MemoryNonces, nextNonce, recordNonce } from '../src/nonces.ts';

const at = (now: number): Clock => ({ now: () => now, sleep: () => Promise.resolve() });
const T = 1_767_225_600_000;
const one = (nonces: MemoryNonces, scope: string, clock: Clock): Promise<string> =>
  nonces.withNonce(scope, clock, async (nonce) => nonce);

describe('nonces', () => {
  test('fault 20: strictly rising within one millisecond, each scope by itself', async () => {
    const nonces = new MemoryNonces();
    const got = await Promise.all(['a', 'a', 'b', 'a', 'b'].map((scope) => one(nonces, scope, at(T))));
    expect(got).toEqual([T, T + 1, T, T + 2, T + 1].map(String));
  });

  test('fault 21: a clock that is set back does not set nonces back', async () => {
    const nonces = new MemoryNonces();
    expect(await one(nonces, 'a', at(T))).toBe(String(T));
    expect(await one(nonces, 'a', at(T - 3_600_000))).toBe(String(T + 1));
    expect(await one(nonces, 'a', at(T + 5))).toBe(String(T + 5));
  });

  test('fault 24: rises above what the service has seen, in that scope only, exact beyond 2^53', async () => {
    const nonces = new MemoryNonces();
    nonces.raiseNonce('a', String(T + 1000), at(T));
    expect(await one(nonces, 'a', at(T))).toBe(String(T + 1001));
    expect(await one(nonces, 'b', at(T))).toBe(String(T));
    // Never down.
    nonces.raiseNonce('a', '7', at(T));
    expect(await one(nonces, 'a', at(T))).toBe(String(T + 1002));
    const late = at(9_007_199_254_740_990);
    nonces.raiseNonce('c', '9007199254740993', late);
    expect(await one(nonces, 'c', late)).toBe('9007199254740994');
  });

  test('fault 24: a program that counts nanoseconds is followed, and leaves room for all nonces to come', async () => {
    const nonces = new MemoryNonces();
    for (const seen of [`${T}000`, `${T}123456`, `${T + 86_400_000}000000`]) {
      nonces.raiseNonce('a', seen, at(T));
      expect(await one(nonces, 'a', at(T))).toBe(String(BigInt(seen) + 1n));
    }
    expect(await one(nonces, 'b', at(T))).toBe(String(T));
  });

  test('a nonce that no clock shows is not followed: the key is locked out there', async () => {
    const nonces = new MemoryNonces();
    for (const seen of [
      `${T + 86_400_000}000001`,
      '1788872638667723579',
      '9999999999999999999',
      '1'.repeat(1_000_000),
      '-1',
      '',
    ]) {
      let error: any;
      try {
        nonces.raiseNonce('b', seen, at(T));
      } catch (e) {
        error = e;
      }
      expect(error).toMatchObject({ code: 'bad_nonce' });
      expect(error.message).toMatch(/key is locked out/);
      expect(error.message.length).toBeLessThan(300);
    }
    expect(await one(nonces, 'b', at(T))).toBe(String(T));
  });

  test('after the highest nonce there is none', () => {
    expect(nextNonce(at(T), 9_999_999_999_999_999_998n)).toBe(9_999_999_999_999_999_999n);
    expect(() => nextNonce(at(T), 9_999_999_999_999_999_999n)).toThrow('no nonce is left');
  });

  test('odd clocks give nonces all the same', () => {
    expect(nextNonce(at(-5))).toBe(0n);
    expect(nextNonce(at(12.9))).toBe(12n);
  });

  test('ten thousand scopes are remembered as a thousand and a floor', () => {
    const scopes: LastNonces = new Map();
    for (let i = 1; i <= 10_000; i++) recordNonce(scopes, `room-${i}`, BigInt(i));
    expect(scopes.size).toBeLessThanOrEqual(1000);
    for (let i = 1; i <= 10_000; i++) expect(lastNonce(scopes, `room-${i}`)!).toBeGreaterThanOrEqual(BigInt(i));
    // The floor is made of the lowest: it pushes nobody ahead of the clock.
    expect(lastNonce(scopes, 'unheard-of')!).toBeLessThan(9500n);
    expect(scopes.get('room-10000')).toBe(10_000n);
  });
});

describe('lanes', () => {
  const gate = (): { opened: Promise<void>; open: () => void } => {
    let open!: () => void;
    return { opened: new Promise((resolve) => (open = resolve as () => void)), open };
  };

  test('uses of one scope run in order, one at a time, also past a failure; other scopes do not wait', async () => {
    const nonces = new MemoryNonces();
    const { opened, open } = gate();
    const log: string[] = [];
    const first = nonces.withNonce('a', at(T), async () => {
      log.push('first in');
      await opened;
      log.push('first out');
      throw new Error('refused');
    });
    const second = nonces.withNonce('a', at(T), async () => void log.push('second'));
    await nonces.withNonce('b', at(T), async () => void log.push('other'));
    open();
    await expect(first).rejects.toThrow('refused');
    await second;
    expect(log).toEqual(['first in', 'other', 'first out', 'second']);
  });

  test('one that gives up its place is told at once, never runs, and lets nobody pass who came before', async () => {
    const lanes = new Lanes();
    const { opened, open } = gate();
    const log: string[] = [];
    const first = lanes.run('a', () => opened.then(() => void log.push('first')));
    const stop = new AbortController();
    const second = lanes.run('a', async () => void log.push('second'), stop.signal);
    stop.abort(new Error('enough'));
    await expect(second).rejects.toThrow('enough');
    const third = lanes.run('a', async () => void log.push('third'));
    await new Promise((resolve) => setImmediate(resolve));
    expect(log).toEqual([]);
    open();
    await Promise.all([first, third]);
    expect(log).toEqual(['first', 'third']);
    await expect(lanes.run('a', async () => log.push('never'), stop.signal)).rejects.toThrow('enough');
    expect(log).toHaveLength(2);
  });
});
