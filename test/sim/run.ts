import { FAULTS } from './network.ts';
import type { Bug, Profile } from './plan.ts';
import { type Outcome, simulate } from './world.ts';

/** What many seeds came to. */
export interface Report {
  runs: number;
  failures: Outcome[];
  counts: Record<string, number>;
}

export async function runSeeds(
  seeds: Iterable<number>,
  profile: Profile,
  o: { bug?: Bug; onRun?: (outcome: Outcome) => void } = {},
): Promise<Report> {
  const report: Report = { runs: 0, failures: [], counts: {} };
  for (const seed of seeds) {
    const outcome = await simulate({ seed, profile, ...(o.bug && { bug: o.bug }) });
    report.runs++;
    addCounts(report.counts, outcome.counts);
    if (outcome.violations.length > 0) report.failures.push(outcome);
    o.onRun?.(outcome);
  }
  return report;
}

export function addCounts(into: Record<string, number>, counts: Record<string, number>): void {
  for (const [name, count] of Object.entries(counts)) into[name] = (into[name] ?? 0) + count;
}

export function* range(from: number, to: number, step = 1): Generator<number> {
  for (let n = from; n < to; n += step) yield n;
}

export function describeFailure({ seed, profile, violations }: Outcome): string {
  const more = violations.length > 3 ? `, and ${violations.length - 3} more` : '';
  return `seed ${seed}, profile ${profile}: ${violations.slice(0, 3).join('; ')}${more}\n  npm run sim -- --seed ${seed} --profile ${profile}`;
}

/** What has to have happened in enough runs, or they prove nothing. */
export const EXPECTED: readonly string[] = [
  ...FAULTS,
  'partition',
  'batch',
  'claims',
  'sealed',
  'mcp',
  'progress',
  'change heard',
  'a2a',
  'a2a message',
  'a2a TASK_STATE_COMPLETED',
  'a2a statusUpdate',
  'a2a artifactUpdate',
  'crash',
  'crash-at-call',
  'torn',
  'clock-forward',
  'clock-back',
  'flood',
  'reaped',
  'restarted',
  'junk',
  'replay',
  'copy',
  'twist',
  'forge',
  'note-overwritten',
  'event gap overflow',
  'event gap recreated',
  'event epoch',
  'event late',
  'event refused',
  'event retry',
  'event spilled',
  'event throttled',
  'error call_timeout',
  'error ring_gap',
  'error may_have_landed',
  'error rpc 1001',
  'error rpc 1003',
];
