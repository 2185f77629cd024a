import { describe, expect, test } from 'vitest';
import { idleDays } from './sim/calm.ts';
import { FAULTS } from './sim/network.ts';
import { BUGS, type Bug, PROFILES } from './sim/plan.ts';
import { describeFailure, range, runSeeds } from './sim/run.ts';
import { grown, soak } from './sim/soak.ts';
import { simulate } from './sim/world.ts';

// A slice of `npm run sim`, whose seeds go on.

const SEEDS = Number(process.env['SIM_SEEDS'] ?? 16);

describe.each(PROFILES)('%s', (profile) => {
  test(`${SEEDS} worlds of faults, crashes and strangers: nothing is silent, nothing runs twice`, async () => {
    const { runs, failures, counts } = await runSeeds(range(1, 1 + SEEDS), profile);
    expect(failures.map(describeFailure)).toEqual([]);
    expect(runs).toBe(SEEDS);
    // Not vacuous.
    for (const fault of [
      ...FAULTS,
      'crash',
      'answered',
      'batch',
      'claims',
      'sealed',
      'mcp',
      'a2a',
      'restarted',
      'event retry',
      'forge',
      'replay',
    ]) {
      expect([fault, counts[fault] ?? 0]).toEqual([fault, expect.toSatisfy((n: number) => n > 0)]);
    }
  }, 600_000);

  test('one seed is one story, told the same each time', async () => {
    const [a, b] = [await simulate({ seed: 7, profile }), await simulate({ seed: 7, profile })];
    expect(b.hash).toBe(a.hash);
    expect(b.counts).toEqual(a.counts);
    expect((await simulate({ seed: 8, profile })).hash).not.toBe(a.hash);
  });

  test('a day without a call: some 8,640 parked reads, a note and a line now and then, and the next call is answered', async () => {
    const { reads, writes, timers, isAnswered } = await idleDays(1, profile);
    // Those without generations are looked at once a minute without a cursor.
    expect(reads).toBeGreaterThan(8600);
    expect(reads).toBeLessThan(profile === 'modern' ? 9000 : 10_500);
    expect(writes).toBeLessThan(160);
    expect(timers).toBe(0);
    expect(isAnswered).toBe(true);
  });
});

test.each([
  [73, 'modern'],
  [326, 'modern'],
  [795, 'modern'],
  [11080, 'modern'],
  [164839, '0.7'],
  [240273, '0.7'],
  [401277, 'modern'],
  [600589, '0.7'],
  [701070, '0.7'],
  [800699, '0.7'],
  [851028, '0.7'],
  [900956, 'modern'],
  [951679, '0.7'],
] as const)('a world in which something once went wrong: %i, %s', async (seed, profile) => {
  expect((await simulate({ seed, profile })).violations).toEqual([]);
});

test.each(Object.keys(BUGS) as Bug[])(
  'a bug on purpose is noticed: %s',
  async (bug) => {
    // A message that was altered does not fit its signature; services before 0.11 keep none.
    const profile = bug === 'alters-answers' ? '0.7' : 'modern';
    for (const seed of range(1, 60)) {
      const { violations } = await simulate({ seed, profile, bug });
      if (!violations.some((violation) => BUGS[bug].test(violation))) continue;
      // It is the bug that did it.
      expect((await simulate({ seed, profile })).violations).toEqual([]);
      return;
    }
    expect.unreachable('60 seeds noticed nothing');
  },
  600_000,
);

test('calls by clients that come and go leave nothing behind that grows with them', async () => {
  const soaked = await soak(1000);
  expect(soaked.wrong).toEqual([]);
  expect(soaked.outcomes).toEqual({ right: 1000 });
  expect(soaked.ranTwice).toBe(0);
  expect(grown(soaked)).toEqual([]);
  // Not vacuous: it looked into the server and the inboxes.
  const held = [...soaked.held[1].keys()].join(' ');
  for (const name of ['LedgerState.entries', 'Server.#', 'ReplyRooms.#', 'Inbox.#waiting', 'Feed.#listeners']) {
    expect(held).toContain(name);
  }
}, 600_000);
