import { a2aGet, a2aSend, a2aStream, a2aWait } from '../../src/a2a-call.ts';
import { isInterrupted, isTerminal } from '../../src/a2a-states.ts';
import { type A2ATaskView, a2aText } from '../../src/a2a-types.ts';
import { call, notify } from '../../src/call.ts';
import type { Channel } from '../../src/channel.ts';
import { type HttpError, RpcError, TechnocoreError } from '../../src/errors.ts';
import type { Options } from '../../src/http.ts';
import { publishIdentity } from '../../src/identity.ts';
import type { CallOptions } from '../../src/line.ts';
import { mcpCallTool, mcpDiscover } from '../../src/mcp-client.ts';
import { mcpListen } from '../../src/mcp-listen.ts';
import { connectSealed } from '../../src/meeting.ts';
import type { SealedChannel } from '../../src/sealed.ts';
import type { Signer } from '../../src/signer.ts';
import { answerOf, BIG, type Callee } from './callee.ts';
import { MINUTE } from './plan.ts';
import { type Process, Program } from './process.ts';
import { Random } from './random.ts';
import type { World } from './world.ts';

/** One thing a caller wants to know, or to say. */
export interface Question {
  readonly n: number;
  readonly callee: Callee;
  readonly method: 'quick' | 'slow' | 'look' | 'fail' | 'big' | 'said';
  /** An id of the caller's own, under which it asks again when no answer came. */
  readonly id: string | undefined;
  readonly retry: number;
  readonly timeoutMs: number;
  readonly byDid: boolean;
  readonly positional: boolean;
  /** Whether it may share its message with others. */
  readonly batch: boolean;
  /** How often it is asked at most. */
  readonly attempts: number;
  /** Must be answered: nothing goes wrong any more. */
  readonly final: boolean;
  asked: number;
  /** Undefined until somebody who asked lived to see what came of it. */
  outcome: string | undefined;
  /** Asked by a process that died, under an id that died with it. */
  abandoned: boolean;
}

/** A client, which asks several things at a time. */
export class Caller extends Program {
  readonly questions: Question[] = [];
  /** Highest nonce used by any life, and by those before this one. */
  highest = 0;
  highestBefore = 0;
  /** The servers whose changes it hears of, and when it heard of the last one. */
  readonly heard: Map<Callee, number> = new Map();
  /** Ends that. */
  readonly deaf: AbortController = new AbortController();
  readonly #publishes: boolean;
  readonly #batches: boolean;
  readonly #asking: Set<Question> = new Set();
  /** The sealed channels of this life. */
  readonly #channels: Map<Callee, Promise<SealedChannel>> = new Map();

  constructor(world: World, name: string, room: string) {
    super(world, name, room);
    this.#publishes = this.random.chance(0.3);
    this.#batches = this.random.chance(0.3);
    for (let i = 0; i < world.plan.questions; i++) this.#plan();
  }

  get isDone(): boolean {
    return this.questions.every(({ outcome, abandoned }) => outcome !== undefined || abandoned);
  }

  #plan(): void {
    const { world, random } = this;
    const method = random.pick(['quick', 'quick', 'slow', 'look', 'fail', 'big', 'said'] as const);
    const n = world.nextNumber++;
    const own = method !== 'said' && random.chance(0.4);
    this.questions.push({
      n,
      callee: random.pick(world.callees),
      method,
      id: own ? `own-${n}` : undefined,
      retry: random.chance(0.5) ? 0 : 1 + random.int(3),
      timeoutMs: random.pick([5000, 15_000, 30_000]),
      byDid: random.chance(0.15),
      positional: this.#publishes && random.chance(0.3),
      batch: this.#batches,
      attempts: own ? 1 + random.int(3) : 1,
      final: false,
      asked: 0,
      outcome: undefined,
      abandoned: false,
    });
  }

  /** Asks what must be answered. */
  askInPeace(callee: Callee): void {
    this.questions.push({
      n: this.world.nextNumber++,
      callee,
      method: 'quick',
      id: undefined,
      retry: 0,
      timeoutMs: MINUTE,
      byDid: false,
      positional: false,
      batch: this.#batches,
      attempts: 1,
      final: true,
      asked: 0,
      outcome: undefined,
      abandoned: false,
    });
  }

  protected override died(): void {
    for (const question of this.#asking) if (question.id === undefined) question.abandoned = true;
    this.#asking.clear();
    this.#channels.clear();
    this.highestBefore = this.highest;
  }

  protected async main(process: Process, signer: Signer): Promise<void> {
    const { world } = this;
    const o = this.options(process);
    if (this.#publishes) {
      await publishIdentity(signer, { mailbox: this.room }, o).catch((cause) =>
        world.invariants.typed(this.name, cause),
      );
    }
    if (world.plan.mcp && !world.plan.sealed) {
      // As they come and go for their own reasons, these draw on no stream that others draw on.
      const random = new Random(world.setup.seed, `listens ${this.name}`);
      if (random.chance(0.5)) void this.#listen(random.pick(world.callees), process, signer, o);
    }
    const pause = (2 * world.plan.activeMs) / (this.questions.length + 1);
    for (;;) {
      const question = this.questions.find((q) => q.outcome === undefined && !q.abandoned && !this.#asking.has(q));
      if (!question) await process.clock.sleep(1000);
      else {
        void this.#ask(question, process, signer);
        // Who shares messages asks several things at once.
        const isMore = this.#batches && this.random.chance(0.6);
        if (!question.final && !isMore) await process.clock.sleep(this.random.between(0, pause));
      }
    }
  }

  /** Listens to the changes of a server's tools, again and again. */
  async #listen(callee: Callee, process: Process, signer: Signer, o: Options): Promise<void> {
    const { world } = this;
    const { signal } = this.deaf;
    const onReady = (): void => void this.heard.set(callee, this.heard.get(callee) ?? 0);
    while (process.isAlive && !signal.aborted) {
      try {
        const options = { ...o, replyTo: this.room, peer: callee.did, renewMs: 2 * MINUTE, signal, onReady };
        for await (const _ of mcpListen(callee.room, { toolsListChanged: true }, signer, options)) {
          if (!process.isAlive) return;
          this.heard.set(callee, world.timeline.now);
          world.network.count('change heard');
          world.log(`${process.name} heard of a change of ${callee.name}`);
        }
      } catch (cause) {
        if (!process.isAlive || signal.aborted) return;
        // It is told that it hears nothing.
        this.heard.delete(callee);
        world.invariants.typed(this.name, cause);
        await process.clock.sleep(5000, signal).catch(() => {});
      }
    }
  }

  async #ask(question: Question, process: Process, signer: Signer): Promise<void> {
    const { world } = this;
    const { n, callee, method, timeoutMs } = question;
    this.#asking.add(question);
    question.asked++;
    const begun = world.timeline.now;
    world.log(`${process.name} asks ${n} ${method} of ${callee.name}`);
    let outcome: string;
    try {
      outcome = await this.#exchange(question, process, signer);
    } catch (cause) {
      if (!process.isAlive) return;
      outcome = this.#errorOf(cause, question);
      this.#channels.delete(callee);
    }
    if (!process.isAlive) return;
    world.log(`${process.name} got ${n}: ${outcome}`);
    const took = world.timeline.now - begun;
    // A tool has as long for each round, and once more after its progress.
    const rounds = world.plan.mcp ? 4 : 1;
    const mostMs = method === 'said' ? 3 * MINUTE : world.plan.a2a ? 8 * MINUTE : rounds * timeoutMs;
    const most = mostMs + (world.plan.sealed ? MEETING_MS : 0);
    if (took > most + 2000) {
      world.invariants.violate(`question ${n} took ${Math.round(took)} ms, and ${most} were allowed`);
    }
    this.#asking.delete(question);
    // Whoever asked under an id of his own asks again.
    if (outcome === 'right' || outcome === 'said' || question.asked >= question.attempts) question.outcome = outcome;
  }

  async #exchange(question: Question, process: Process, signer: Signer): Promise<string> {
    const { world } = this;
    const { n, callee, method, id, retry, timeoutMs, byDid, positional, batch } = question;
    const params = positional ? [n] : { n };
    const o = this.options(process);
    const to = world.plan.sealed ? await this.#meet(question, o, signer) : byDid ? callee.did : callee.room;
    if (method === 'said') {
      await notify(to, method, params, signer, o);
      return 'said';
    }
    const options = {
      ...o,
      ...(!world.plan.sealed && { replyTo: this.room }),
      timeoutMs,
      retry,
      batch,
      ...(id !== undefined && { id }),
      ...(world.setup.bug !== 'trusts-anybody' && { peer: callee.did }),
    };
    const result = world.plan.mcp
      ? await this.#useTool(to, question, options, signer)
      : world.plan.a2a
        ? await this.#send(to, question, options, signer)
        : await call(to, method, params, signer, options);
    if (result === undefined && world.plan.a2a) return 'unfinished';
    const wanted = method === 'big' ? BIG : method === 'fail' ? undefined : answerOf(callee.label, this.did, n);
    if (result !== wanted) {
      world.invariants.violate(`question ${n} got the answer ${JSON.stringify(result).slice(0, 200)}`);
    }
    world.network.count('answered');
    return 'right';
  }

  /** The text that a tool returns. */
  async #useTool(to: string | Channel, { n, method, id }: Question, o: CallOptions, signer: Signer): Promise<unknown> {
    const { id: _, ...first } = o;
    // Whether the server reads requests that are too long for a message, it has to say first.
    if (method === 'big') await mcpDiscover(to, signer, first);
    const args = method === 'big' ? { n, more: BIG } : { n };
    const { content, isError } = await mcpCallTool(to, method, args, signer, {
      ...o,
      onInput: { elicit: () => ({ action: 'accept', content: {} }) },
      // Asked again under an id of the caller's own, it has to be the same request.
      ...(id === undefined && { onProgress: () => this.world.network.count('progress') }),
    });
    const { text } = content[0] as { text?: string };
    if (isError) throw new RpcError(77, text === `failed ${n} (77)` ? `failed ${n}` : `${text}`);
    return text;
  }

  /** The text that an A2A agent answers with, or makes in a task. Its questions are answered. */
  async #send(to: string | Channel, { n, method, id }: Question, o: CallOptions, signer: Signer): Promise<unknown> {
    const { id: _, ...later } = o;
    let { message, task } = await a2aSend(to, `${method} ${n}`, signer, { ...o, messageId: `m-${n}` });
    for (let rounds = 0; task && rounds < 6; rounds++) {
      const { id: taskId, status } = task;
      const { state } = status;
      if (isTerminal(state)) break;
      // From here on, an error says nothing about the first message.
      try {
        if (!isInterrupted(state)) task = await a2aWait(to, task.id, signer, { ...later, waitMs: 2 * MINUTE });
        else if (id !== undefined)
          ({ message, task } = await a2aSend(to, 'go on', signer, { ...later, taskId: task.id }));
        else task = await this.#followed(to, task, later, signer);
      } catch (cause) {
        // Answered before, by an attempt of which nothing was heard.
        if (cause instanceof RpcError && cause.rpc.code === -32004) {
          task = await a2aGet(to, taskId, signer, later).catch(() => undefined);
          if (task) continue;
          return undefined;
        }
        if (!TechnocoreError.is(cause) || cause.code === 'rpc') throw cause;
        this.world.invariants.typed(this.name, cause);
        return undefined;
      }
    }
    const { state, message: said } = task?.status ?? {};
    if (state === 'TASK_STATE_FAILED') throw new RpcError(77, said ? a2aText(said) : '');
    this.world.network.count(`a2a ${state ?? 'message'}`);
    return a2aText(message ?? task!.artifacts?.[0] ?? said!);
  }

  /** The task, once a stream of what becomes of it has ended. */
  async #followed(to: string | Channel, task: A2ATaskView, o: CallOptions, signer: Signer): Promise<A2ATaskView> {
    for await (const item of a2aStream(to, 'go on', signer, { ...o, taskId: task.id })) {
      this.world.network.count(`a2a ${Object.keys(item)[0]}`);
    }
    return a2aGet(to, task.id, signer, o);
  }

  /** The sealed channel to a server: the one that there is, unless it failed. */
  async #meet({ callee, final }: Question, o: Options, signer: Signer): Promise<SealedChannel> {
    const name = `p-sealed-${this.name}-${callee.name}`;
    // A server may have been started again since.
    if (final) this.#channels.delete(callee);
    let channel = this.#channels.get(callee);
    if (!channel) {
      const key = new Random(this.world.setup.seed, name).bytes(32);
      this.world.sealedRooms.add(name);
      channel = connectSealed(callee.did, signer, { ...o, key, room: name, timeoutMs: MEETING_MS });
      this.#channels.set(callee, channel);
    }
    return channel;
  }

  /** An error has to be one of ours, and one that can be. */
  #errorOf(cause: unknown, { n, callee, method, byDid, final }: Question): string {
    const { world } = this;
    let code = world.invariants.typed(this.name, cause);
    if (cause instanceof RpcError) {
      const { code: number, message, data } = cause.rpc;
      code = `rpc ${number}`;
      const isRight =
        (method === 'fail' && number === 77 && message === `failed ${n}`) ||
        (method === 'big' && number === -32603 && ((data as { chars?: number } | undefined)?.chars ?? 0) > 5000);
      if (isRight) return 'right';
      // What a tool was told by its caller is forgotten in time, by a clock that may be set.
      const isStale = world.plan.mcp && method === 'look' && number === -32602;
      // The notes of a long request may be out of reach for as long as a server waits for them.
      const isUnread = world.plan.mcp && method === 'big' && /could not be read from its notes/.test(message);
      if (![1001, 1002, 1003].includes(number) && !isStale && !isUnread) {
        world.invariants.violate(`question ${n} got the error ${number} ${message}`);
      }
    } else if (code === 'http' && (cause as HttpError).status === 408) code = 'http 408';
    else if (!ERRORS.has(code) && !(byDid && code === 'bad_name') && !(world.plan.sealed && code === 'bad_key')) {
      world.invariants.violate(`question ${n} got an error of code ${code}: ${cause}`);
    }
    // A server whose clock was set back publishes a record that is older than the one which was seen before.
    const isOld = code === 'bad_key' && callee.wasSetBack;
    if (final && !isOld && !world.isExempt(this))
      world.invariants.violate(`question ${n} was asked in peace and got ${cause}`);
    world.network.count(`error ${code}`);
    return code;
  }
}

/** How long a server is waited for in a sealed room, ms. */
const MEETING_MS = 20_000;

/** Errors that may end a call in this world. */
const ERRORS = new Set([
  'call_timeout',
  'ring_gap',
  'may_have_landed',
  'unavailable',
  'rate_limited',
  'room_budget',
  'duplicate_text',
  'stale_nonce',
  'no_mailbox',
  'no_reply_address',
  'spill_lost',
]);
