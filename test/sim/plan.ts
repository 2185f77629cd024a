import type { Limits } from '../../src/local.ts';
import type { ClockBug } from './clock.ts';
import type { NetworkBug, Rates } from './network.ts';
import { Random } from './random.ts';

export type Profile = 'modern' | '0.7';
export const PROFILES: readonly Profile[] = ['modern', '0.7'];

export const EPOCH: number = Date.UTC(2026, 0, 31, 12);
export const MINUTE = 60_000;

/** How the world may be broken on purpose, for one invariant each to notice. */
export type Bug = NetworkBug | ClockBug | 'forgetful-ledger' | 'trusts-anybody' | 'answers-another';

/** Each with a word of the violation that it must lead to. */
export const BUGS: Readonly<Record<Bug, RegExp>> = {
  'alters-answers': /got the answer "wrong:/,
  'answers-another': /got the answer "right:/,
  'trusts-anybody': /got the answer "forged"|got the error 4242/,
  'forgetful-ledger': /ran \d+ times for id/,
  'signs-again': /ran \d+ times for question/,
  'executes-refused': /ended with duplicate_text, and was executed/,
  'forgets-long-timers': /took \d+ ms|was never answered|did not end/,
  'keeps-aborted-timers': /leaves \d+ timers/,
  'keeps-hangups': /the service still holds/,
  spins: /above the read budget/,
};

export interface Setup {
  seed: number;
  profile: Profile;
  bug?: Bug;
  /** Keep the lines of the transcript, not only their hash. */
  keep?: boolean;
}

/** What one seed makes of the world. */
export interface Plan {
  callees: number;
  /** Set where two servers share each mailbox: how long their leases last, ms. */
  leaseMs: number | undefined;
  callers: number;
  /** Questions of each caller. */
  questions: number;
  /** How long they are asked and faults happen, ms. */
  activeMs: number;
  rates: Rates;
  crashes: number;
  jumps: number;
  floods: number;
  reaps: number;
  /** How often the service starts anew, without anything that it held. */
  restarts: number;
  attacks: number;
  partitions: number;
  limits: Partial<Limits>;
  ephemeral: boolean;
  longPause: boolean;
  /** Whether callers and servers meet in sealed rooms. */
  sealed: boolean;
  /** Whether what callers ask for are MCP tools, and not methods. */
  mcp: boolean;
  /** Whether servers are A2A agents. */
  a2a: boolean;
}

export function planOf(seed: number): Plan {
  const random = new Random(seed, 'plan');
  // Some runs are nearly calm, so that rare orders of few events show; some are as bad as it gets.
  const level = random.pick([0.15, 0.5, 1]);
  const rate = (most: number): number => level * random.between(0.2, 1) * most;
  const leaseMs = new Random(seed, 'claims').pick([undefined, undefined, undefined, 30_000, 60_000]);
  // The tasks of an agent are in one store, of one server.
  const a2a = new Random(seed, 'a2a').chance(0.2) && leaseMs === undefined;
  const mcp = new Random(seed, 'mcp').chance(0.25) && !a2a;
  const plan: Plan = {
    callees: 1 + random.int(2),
    leaseMs,
    callers: 2 + random.int(2),
    questions: 4 + random.int(8),
    activeMs: random.between(1.5, 4) * MINUTE,
    rates: {
      'lost-before': rate(0.08),
      'lost-after': rate(0.08),
      'late-request': rate(0.03),
      'late-answer': rate(0.03),
      duplicate: rate(0.06),
      slow: rate(0.1),
      cut: rate(0.06),
      'error-before': rate(0.125),
      'error-after': rate(0.125),
      throttled: rate(0.05),
      'upload-timeout': rate(0.03),
      portal: rate(0.03),
    },
    crashes: random.int(4),
    jumps: random.int(4),
    floods: random.int(4),
    reaps: random.int(3),
    restarts: new Random(seed, 'restarts').pick([0, 0, 0, 0, 1, 2]),
    attacks: random.int(12),
    partitions: random.int(3),
    limits: { roomRingBytes: random.pick([8_000, 20_000, 100_000]), wakeStepMs: random.pick([0, 0, 500]) },
    ephemeral: random.chance(0.2),
    longPause: random.chance(0.15),
    // A mailbox whose offers are accepted is not shared by servers.
    sealed: new Random(seed, 'sealed').chance(0.2) && leaseMs === undefined,
    mcp,
    a2a,
  };
  // Their frames are longer: a small ring would lose the line by which a mailbox shows whose it is.
  return mcp || a2a ? { ...plan, limits: { ...plan.limits, roomRingBytes: 100_000 } } : plan;
}
