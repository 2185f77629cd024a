import { expect, test } from 'vitest';
import { mixedYear } from './sim/calm.ts';

// A part of the year of `npm run sim -- --year`, with the first of its holidays.

test.each([
  ['modern', 90, 8],
  ['0.7', 73, 1],
] as const)(
  'restarts and bursts, days on end, and a holiday: %s, %i days',
  async (profile, days, seed) => {
    const { calls, outcomes, lives, ranTwice, wrong, diskChars, events, stats } = await mixedYear(days, profile, seed);
    expect(wrong).toEqual([]);
    expect(ranTwice).toEqual([]);
    expect(lives).toBeGreaterThan(0.8 * days);
    expect(calls).toBeGreaterThan(10 * days);
    // A mailbox reaped while its callers wait is all that goes wrong here.
    expect(outcomes['right']! / calls).toBeGreaterThan(0.99);
    // On the holiday it is reaped, and who comes back notices that it is another.
    if (profile === 'modern') expect(events['epoch']).toBeGreaterThan(0);
    // Three times what one day leaves: with nothing forgotten, ninety days would leave five times as much as this.
    expect(diskChars).toBeLessThan(1 << 18);
    expect(stats).toMatchObject({ parked: 0, timers: 0 });
    expect(stats.rooms).toBeLessThan(10);
  },
  600_000,
);
