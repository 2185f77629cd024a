import { a2aAgent } from '../../src/a2a-agent.ts';
import { loggedStore } from '../../src/a2a-store.ts';
import type { A2AHandler } from '../../src/a2a-task.ts';
import { a2aText } from '../../src/a2a-types.ts';
import { type Handler, idempotent } from '../../src/dispatch.ts';
import { RpcError } from '../../src/errors.ts';
import type { Event } from '../../src/http.ts';
import { publishIdentity } from '../../src/identity.ts';
import type { Ledger } from '../../src/ledger.ts';
import { loggedLedger } from '../../src/ledger-file.ts';
import { defineTool, toolsChanged } from '../../src/mcp.ts';
import { acceptSealed } from '../../src/meeting.ts';
import type { SealedChannel } from '../../src/sealed.ts';
import { type ServeOptions, serve } from '../../src/serve.ts';
import type { Signer } from '../../src/signer.ts';
import type { Tool, ToolHandler } from '../../src/tools.ts';
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
  /** Where an A2A agent keeps its tasks. */
  readonly taskDisk: Disk;
  readonly stop: AbortController = new AbortController();
  hasStopped = false;
  /** Whether it shares its mailbox, and messages there were gone before it read them. */
  hasLost = false;
  /** Shared by all servers of one mailbox. */
  readonly label: string;
  #served: Map<string, Tool> | undefined;

  constructor(world: World, name: string, room: string, label: string) {
    super(world, name, room, label);
    this.label = label;
    this.disk = new Disk(world.timeline, this.random);
    this.taskDisk = new Disk(world.timeline, this.random);
  }

  /** Says that its tools have changed. */
  change(): void {
    if (this.#served) toolsChanged(this.#served);
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
      methods: world.plan.a2a ? await this.#agent(process) : this.#methods(process),
      ...(world.plan.mcp && { tools: (this.#served = this.#tools(process)), spill: true }),
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
    const methods = new Map<string, Handler>();
    for (const [name, { answer, ms, mayAgain }] of Object.entries(this.#works())) {
      const handler: Handler = async (params, { from, id }) => {
        await this.#work(process, from, id, params, mayAgain === true, ms?.() ?? 0);
        return answer(numberOf(params), from);
      };
      methods.set(name, mayAgain ? idempotent(handler) : handler);
    }
    return methods;
  }

  /** The same as tools. The one that may run again asks its caller first. */
  #tools(process: Process): Map<string, Tool> {
    const schema = { type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] };
    const tools = new Map<string, Tool>();
    for (const [name, { answer, ms, mayAgain }] of Object.entries(this.#works())) {
      const run: ToolHandler = async (args, { from, id, elicit, progress }) => {
        if (mayAgain) await elicit('sure', { message: 'sure?', requestedSchema: { type: 'object', properties: {} } });
        const wait = ms?.() ?? 0;
        await this.#work(process, from, id, args, mayAgain === true, wait / 2);
        progress(1, 2);
        if (wait > 0) await process.clock.sleep(wait / 2);
        return answer(numberOf(args), from);
      };
      tools.set(name, defineTool(name, `does ${name}`, schema, run, { idempotent: mayAgain }));
    }
    return tools;
  }

  /** The same as an A2A agent. What may run again asks its caller first; what takes long tells of its work. */
  async #agent(process: Process): Promise<Map<string, Handler>> {
    const { clock, random } = process;
    const { taskDisk } = this;
    const store = await loggedStore('the tasks', taskDisk.text, taskDisk.log(process), clock);
    const works = this.#works();
    const handler: A2AHandler = async (message, task) => {
      const [name, number] = a2aText(task.history[0] ?? message).split(' ');
      const { answer, ms, mayAgain } = works[name!]!;
      const n = Number(number);
      // An answer to a question of ours, or to a task that was interrupted, goes on with what ran already.
      if (!task.continued) await this.#work(process, task.from, message.messageId, { n }, false, 0);
      if (mayAgain && !task.continued) return task.ask('sure?');
      if (!ms) return String(answer(n, task.from));
      await task.update('working', 'at it');
      await clock.sleep(ms());
      await task.artifact({ text: String(answer(n, task.from)) });
    };
    const { methods } = a2aAgent(handler, { capabilities: { streaming: true } }, { store, clock, random });
    return new Map([...this.#methods(process)].filter(([name]) => name === 'said').concat([...methods]));
  }

  async #work(
    process: Process,
    from: string,
    id: unknown,
    params: unknown,
    mayAgain: boolean,
    ms: number,
  ): Promise<void> {
    if (process.isAlive) this.world.invariants.ran(this, from, id, numberOf(params), mayAgain);
    if (ms > 0) await process.clock.sleep(ms);
  }

  /** What can be asked for: the answer, how long it takes, ms, and whether it may run more than once. */
  #works(): Record<string, { answer(n: number, from: string): unknown; ms?(): number; mayAgain?: boolean }> {
    const { world, label, random } = this;
    const answer = (n: number, from: string): string =>
      answerOf(label, from, world.setup.bug === 'answers-another' ? n - 1 : n);
    return {
      quick: { answer },
      slow: { answer, ms: () => random.between(50, 14_000) },
      look: { answer, ms: () => random.pick([0, 500, 4000]), mayAgain: true },
      big: { answer: () => BIG },
      said: { answer: () => undefined },
      fail: {
        answer(n) {
          throw new RpcError(77, `failed ${n}`);
        },
      },
    };
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
