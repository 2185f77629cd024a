import { type Handler, idempotent } from '../../src/dispatch.ts';
import { RpcError } from '../../src/errors.ts';
import type { Event } from '../../src/http.ts';
import { publishIdentity } from '../../src/identity.ts';
import type { Ledger } from '../../src/ledger.ts';
import { loggedLedger } from '../../src/ledger-file.ts';
import { acceptSealed } from '../../src/meeting.ts';
import type { SealedChannel } from '../../src/sealed.ts';
import { type ServeOptions, serve } from '../../src/serve.ts';
import type { Signer } from '../../src/signer.ts';
import { Disk } from './disk.ts';
import { MINUTE } from './plan.ts';
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
    const quiet = this.options(process);
    const onEvent = (event: Event): void => {
      if (process.isAlive && event.kind === 'lost') this.hasLost = leaseMs !== undefined;
      quiet.onEvent?.(event);
    };
    const o = { ...quiet, onEvent };
    const ledger = await loggedLedger('the ledger', disk.text, disk.log(process));
    const { signal } = this.stop;
    const publish = async (): Promise<void> => {
      await publishIdentity(signer, { mailbox: this.room }, o).catch((cause) =>
        world.invariants.typed(this.name, cause),
      );
    };
    await publish();
    const options: ServeOptions = {
      ...o,
      methods: this.#methods(process),
      ledger: world.setup.bug === 'forgetful-ledger' ? forgetful(ledger) : ledger,
      cursor: disk.cursor(process),
      ...(leaseMs !== undefined && { claim: { leaseMs } }),
      deadlineMs: 12_000,
      concurrency: 4,
    };
    if (world.plan.sealed) {
      void this.#republish(process, publish);
      const run = (channel: SealedChannel, signal: AbortSignal): Promise<void> =>
        serve(channel, signer, { ...options, signal });
      await acceptSealed(this.room, signer, run, { ...o, signal });
    } else await serve(this.room, signer, { ...options, signal });
    this.hasStopped = true;
  }

  /** Whoever meets it in sealed rooms finds its key in its note, over which strangers write. */
  async #republish(process: Process, publish: () => Promise<void>): Promise<void> {
    while (!this.stop.signal.aborted) {
      await process.clock.sleep(MINUTE, this.stop.signal).catch(() => {});
      if (!this.stop.signal.aborted) await publish();
    }
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
