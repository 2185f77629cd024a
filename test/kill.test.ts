import { expect, test } from 'vitest';
import { killServers } from './sim/kills.ts';

// `npm run sim -- --kills 50` does more of it.
const KILLS = Number(process.env['SIM_KILLS'] ?? 6);

test(`fault 72: a server killed ${KILLS} times in its work runs nothing twice, and every call ends`, async () => {
  const program = new URL('sim/kill-server.mjs', import.meta.url).pathname;
  const { kills, outcomes, handled, violations } = await killServers(KILLS, 1, program);
  expect(violations).toEqual([]);
  expect(kills).toBe(KILLS);
  // Not vacuous: the work went on between the kills.
  expect(outcomes['right']).toBeGreaterThan(KILLS);
  expect(handled).toBeGreaterThanOrEqual(outcomes['right']!);
}, 600_000);
