import { type Handler, idempotent } from '../../src/dispatch.ts';
import { RpcError } from '../../src/errors.ts';
import type { Event } from '../../src/http.ts';
import { publishIdentity } from '../../src/identity.ts';
import type { Ledger } from '../../src/ledger.ts';
import { loggedLedger } from '../../src/ledger-file.ts';
import { serve } from '../../src/serve.ts';
import type { Signer } from '../../src/signer.ts';
import { Disk } from './disk.ts';
import { type Process, Program } from './process.ts';
import type { World } from './world.ts';

/** What a question is answered with: nobody else's answer and none to another question looks like it. */
export const answerOf = (callee: string, did: string, n: number): string => `right:${callee}:${did.slice(-8)}:${n}`;

/** An answer that does not fit into one message. */
export const BIG: string = 'x'.repeat(5000);

/** A server with a disk. */
export class Callee extends Program {
  readonly disk: Disk;
  readonly stop: AbortController = new AbortController();
  hasStopped = false;
  /** Whether it shares its mailbox, and messages there were gone before it read them. */
  hasLost = false;
  /** Shared by all servers of one mailbox. */
  readonly label: string;

  constructor(world: World, name: string, room: string, label: string) {
    super(world, name, room, label);
    this.label = label;
    this.disk = new Disk(world.timeline, this.random);
  }

  protected async main(process: Process, signer: Signer): Promise<void> {
    const { disk, world } = this;
    const { leaseMs } = world.plan;
    const options = this.options(process);
    const onEvent = (event: Event): void => {
      if (process.isAlive && event.kind === 'lost') this.hasLost = leaseMs !== undefined;
      options.onEvent?.(event);
    };
    const o = { ...options, onEvent };
    const ledger = await loggedLedger('the ledger', disk.text, disk.log(process));
    await publishIdentity(signer, { mailbox: this.room }, o).catch((cause) => world.invariants.typed(this.name, cause));
    await serve(this.room, signer, {
      ...o,
      methods: this.#methods(process),
      ledger: world.setup.bug === 'forgetful-ledger' ? forgetful(ledger) : ledger,
      cursor: disk.cursor(process),
      ...(leaseMs !== undefined && { claim: { leaseMs } }),
      deadlineMs: 12_000,
      concurrency: 4,
      signal: this.stop.signal,
    });
    this.hasStopped = true;
  }

  #methods(process: Process): Map<string, Handler> {
    const { world, label, random } = this;
    const handler =
      (answer: (n: number, from: string) => unknown, ms: () => number = () => 0, mayAgain = false): Handler =>
      async (params, { from, id }) => {
        const n = numberOf(params);
        if (process.isAlive) world.invariants.ran(this, from, id, n, mayAgain);
        const wait = ms();
        if (wait > 0) await process.clock.sleep(wait);
        return answer(n, from);
      };
    const right = (n: number, from: string): string =>
      answerOf(label, from, world.setup.bug === 'answers-another' ? n - 1 : n);
    return new Map<string, Handler>([
      ['quick', handler(right)],
      ['slow', handler(right, () => random.between(50, 14_000))],
      ['look', idempotent(handler(right, () => random.pick([0, 500, 4000]), true))],
      ['big', handler(() => BIG)],
      ['said', handler(() => undefined)],
      [
        'fail',
        handler((n) => {
          throw new RpcError(77, `failed ${n}`);
        }),
      ],
    ]);
  }
}

function numberOf(params: unknown): number {
  const n = Array.isArray(params) ? params[0] : (params as { n?: unknown } | undefined)?.n;
  return typeof n === 'number' ? n : -1;
}

/** A ledger that remembers everything and makes no use of it. */
function forgetful(ledger: Ledger): Ledger {
  return {
    admit: async (m, now) => {
      await ledger.admit(m, now);
      return { fresh: true, verdicts: m.requests.map(() => ({ kind: 'new' })) };
    },
    answer: (from, id, answer) => ledger.answer(from, id, answer),
    sent: (from, id) => ledger.sent(from, id),
    forget: (from, id) => ledger.forget(from, id),
  };
}
