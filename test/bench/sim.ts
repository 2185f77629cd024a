import { idleDays, signedCalls } from '../sim/calm.ts';
import { PROFILES } from '../sim/plan.ts';
import { simulate } from '../sim/world.ts';
import type { Outcome } from './goals.ts';

const CALLS = 3000;
const WORLDS = 12;

/** How fast time passes where nothing else takes any: an idle day of a server, calls signed and checked, worlds of faults. */
export async function benchSim(): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const profile of PROFILES) {
    const goal = (name: string, value: number, target: ['>=' | '<=', number]): void => {
      outcomes.push({ number: 12, name: `simulated, ${profile}: ${name}`, value, target });
    };
    // Once for the compiler.
    await idleDays(0.1, profile);
    const begun = performance.now();
    await idleDays(1, profile);
    goal('seconds for an idle day', (performance.now() - begun) / 1000, ['<=', 1]);
    goal('signed calls a second', await signedCalls(CALLS, 4, 8, profile), ['>=', 3000]);
    const before = performance.now();
    for (let seed = 1; seed <= WORLDS; seed++) await simulate({ seed, profile });
    goal('worlds of faults a second', WORLDS / ((performance.now() - before) / 1000), ['>=', 4]);
  }
  return outcomes;
}
