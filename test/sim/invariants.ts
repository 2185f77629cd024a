import { TechnocoreError } from '../../src/errors.ts';
import type { Callee } from './callee.ts';
import type { World } from './world.ts';

/** Outcomes that say that nothing was executed. */
const UNSENT = new Set([
  'unavailable',
  'rate_limited',
  'room_budget',
  'duplicate_text',
  'stale_nonce',
  'no_mailbox',
  'no_reply_address',
  'rpc 1002',
  'http 408',
]);

/** What must hold whatever happens. Each of them is shown to notice a bug: {@link BUGS}. */
export class Invariants {
  readonly violations: string[] = [];
  readonly #world: World;
  /** The servers that ran something, in order. */
  readonly #runs: Map<string, Callee[]> = new Map();

  constructor(world: World) {
    this.#world = world;
  }

  violate(what: string): void {
    this.violations.push(what);
    this.#world.log(`VIOLATION ${what}`);
  }

  /** Everything that is thrown is an error of ours. */
  typed(name: string, cause: unknown): string {
    if (TechnocoreError.is(cause)) return cause.code;
    this.violate(`${name}: not an error of the library: ${(cause as Error)?.stack ?? cause}`);
    return 'untyped';
  }

  /** A handler was started: the first time for this id and this question, unless it may run again. */
  ran(callee: Callee, from: string, id: unknown, n: number, mayAgain: boolean): void {
    const { network, plan } = this.#world;
    const { label } = callee;
    const who = from.slice(-8);
    network.count('handled');
    this.#world.log(`${label} runs ${n} for ${who}`);
    const names = id === undefined ? [] : [`id ${JSON.stringify(id)} of ${who}`];
    if (n >= 0) names.push(`question ${n} of ${who}`);
    for (const name of names) {
      const before = this.#runs.get(`${label} ${name}`) ?? [];
      this.#runs.set(`${label} ${name}`, [...before, callee]);
      if (before.length === 0) continue;
      if (mayAgain) network.count('ran again');
      // Servers that share a mailbox have ledgers of their own: what one took, and another never saw, that one may take
      // again. Nor can they agree where the service forgot their agreement.
      else if ((callee.hasLost || plan.restarts > 0) && !before.includes(callee))
        network.count('ran again at another server');
      else this.violate(`${label} ran ${before.length + 1} times for ${name}`);
    }
  }

  /** Takes note of the nonces that callers use. */
  sent(path: string): void {
    const match = /\/say-signed\/(did:key:\w+)\/[\w-]+\/(\d+)\//.exec(path);
    const caller = match && this.#world.callers.find(({ did }) => did === match[1]);
    if (caller) caller.highest = Math.max(caller.highest, Number(match![2]));
  }

  /** Each question came to an end, or died with who asked it. */
  everythingEnded(): void {
    for (const { questions } of this.#world.callers) {
      for (const { n, outcome, abandoned, final } of questions) {
        if (outcome !== undefined || abandoned) continue;
        this.violate(final ? `question ${n}, asked in peace, did not end` : `question ${n} was never answered`);
      }
    }
  }

  /** An error that says that nothing was done told the truth. */
  everybodyWasHonest(): void {
    for (const { questions, did } of this.#world.callers) {
      for (const { n, asked, outcome, callee } of questions) {
        if (asked !== 1 || outcome === undefined || !UNSENT.has(outcome)) continue;
        const { replayed, hasReplayedSealed } = this.#world.hostile;
        if (replayed.has(n) || hasReplayedSealed) continue;
        if (this.#runs.has(`${callee.label} question ${n} of ${did.slice(-8)}`)) {
          this.violate(`question ${n} ended with ${outcome}, and was executed`);
        }
      }
    }
  }

  /** Nobody left a timer, and the service holds no reads of theirs. */
  nothingIsLeft(): void {
    const { callees, callers, service } = this.#world;
    for (const { name, hasStopped, process } of callees) {
      if (!hasStopped) this.violate(`${name} does not stop`);
      else if (process!.clock.sleepers > 0) this.violate(`${process!.name} leaves ${process!.clock.sleepers} timers`);
    }
    for (const { process } of callers) {
      // One sleeps in its own loop.
      const left = process!.clock.sleepers - 1;
      if (process!.isAlive && left > 0) this.violate(`${process!.name} leaves ${left} timers`);
    }
    const { parked, timers } = service.stats;
    if (parked > 0 || timers > 0) this.violate(`the service still holds ${parked} reads and ${timers} timers`);
  }
}
