/**
 * A task in progress: its messages are handled one after the other, each change is stored before anybody sees it, and
 * those who wait or watch are notified.
 *
 * @module
 */
import { type A2AState, checkMove, isInterrupted, isTerminal, refusal, stateOf } from './a2a-states.ts';
import type { A2ARecord, A2AStore } from './a2a-store.ts';
import {
  type A2AArtifact,
  type A2AItem,
  type A2AMessage,
  type A2APart,
  type A2ATaskView,
  checkValue,
  isArtifact,
  isList,
  isPart,
  MAX_BEHIND,
} from './a2a-types.ts';
import { type Clock, later, onAbort } from './clock.ts';
import { busy, type JsonObject } from './dispatch.ts';
import { BadState, type RpcError, TechnocoreError } from './errors.ts';
import { compact, isObject } from './frames.ts';
import type { Workers } from './workers.ts';

// --- for handlers ------------------------------------------------------------------------------------------------

/** The content of an agent's message: a text, or parts. */
export type A2ASaid = string | A2APart[];

/** An artifact made by a handler. It has either `parts` or `text`. */
export interface A2AMade {
  /** The content. */
  parts?: A2APart[] | undefined;
  /** The content, if it is a single text. */
  text?: string | undefined;
  /** A display name. */
  name?: string | undefined;
  /** What it is. */
  description?: string | undefined;
  /** The id. Default: a new one. An artifact with the id of an earlier one of the task replaces it. */
  artifactId?: string | undefined;
  /** Whether to append the parts to the artifact with that id instead. */
  append?: boolean | undefined;
  /** Whether nothing more will be appended. */
  lastChunk?: boolean | undefined;
  /** Further data. */
  metadata?: JsonObject | undefined;
}

/**
 * The task that a handler works on. Its methods resolve once the change is stored. They throw a {@link BadState} if the
 * task or the handler's turn has ended or the transition is not allowed, a {@link TechnocoreError} `bad_message` or
 * `bad_artifact` if the content is malformed, and the signal's reason once it has aborted.
 */
export interface A2ATask {
  /** The id of the task. */
  readonly id: string;
  /** The context that it belongs to. */
  readonly contextId: string;
  /** The caller's DID; `''` for a caller inside this process. */
  readonly from: string;
  /** All messages of the task, including the current one. */
  readonly history: readonly A2AMessage[];
  /** The media types that the caller accepts; empty if it did not say. */
  readonly accepts: readonly string[];
  /** Aborts when the caller cancels the task, or the agent is closed. */
  readonly signal: AbortSignal;
  /** Whether the message continues the task: it answers a question, or adds to the work. */
  readonly continued: boolean;
  /** Publishes a state, in either spelling (`working`, `TASK_STATE_WORKING`), optionally with a message. */
  update(state: string, said?: A2ASaid): Promise<void>;
  /**
   * Publishes a result, or a part of one.
   *
   * @returns the id of the artifact
   */
  artifact(made: A2AMade): Promise<string>;
  /** Asks the caller for something. Return after that: the answer starts the handler's next turn. */
  ask(said: A2ASaid): Promise<void>;
  /** Rejects the task. */
  reject(said?: A2ASaid): Promise<void>;
}

/** What an {@link A2AHandler} may return: a text, a message of parts (with its own id or a new one), or nothing. */
export type A2AReply =
  | string
  | { parts: A2APart[]; messageId?: string | undefined; metadata?: JsonObject | undefined }
  | undefined;
/** What a generator {@link A2AHandler} may yield: a message about its work, an artifact, or a state. */
export type A2AYield = string | A2AMade | { state: string; said?: A2ASaid };

/**
 * Handles one message to an agent. If it returns a value without having used the task, that is a direct answer, without
 * a task. Otherwise the task is completed when it returns, with the returned value as the last message, unless the task
 * has already ended or is waiting for the caller, as after `ask`.
 *
 * If it throws, the task fails. The caller gets the message of an {@link RpcError}, but no details of any other error.
 * An `RpcError` thrown before anything else was done is itself the answer, without a task.
 *
 * An async generator may yield a text, which is the state `working` with that message, or an artifact or a state.
 */
export type A2AHandler = (
  message: A2AMessage,
  task: A2ATask,
  // biome-ignore lint/suspicious/noConfusingVoidType: a handler without a return statement is one
) => Promise<A2AReply | void> | AsyncGenerator<A2AYield, A2AReply | void> | A2AReply | void;

// --- the task ----------------------------------------------------------------------------------------------------

/** How many messages of a task are remembered. */
const MAX_HISTORY = 256;
/** How many messages of a task can wait for their turn. */
const MAX_WAITING = 16;
/** How many requests of a task are remembered. */
const MAX_REQUESTS = 32;

/** What all tasks of an agent share. */
export interface Shop {
  readonly store: A2AStore;
  readonly clock: Clock;
  readonly handler: A2AHandler;
  readonly workers: Workers;
  newId(): string;
  /** The rank of a key: how early it was first answered, among all. */
  rank(key: string): number;
  /** Called when a handler or the store has failed. */
  onError(error: unknown, taskId: string): void;
  /** Called when a task's new state has been stored. */
  onMove(id: string, from: A2AState, to: A2AState): void;
}

interface Waiting {
  readonly message: A2AMessage;
  readonly accepts: readonly string[];
  readonly continued: boolean;
}

/** A message from the agent. */
function messageOf(said: A2ASaid | { parts: A2APart[] }, id: string, metadata?: JsonObject): A2AMessage {
  const parts = typeof said === 'string' ? [{ text: said }] : Array.isArray(said) ? said : said.parts;
  const checked = checkValue(isList(isPart, 1), parts, 'parts', 'bad_message');
  return compact({ messageId: id, role: 'ROLE_AGENT' as const, parts: checked, metadata }) as A2AMessage;
}

/** The history of a task including the message of its current status, which is about to be replaced. */
function heard({ history = [], status }: A2ATaskView): A2AMessage[] {
  return status.message ? [...history, status.message].slice(-MAX_HISTORY) : history;
}

/** A task that is being worked on. */
export class LiveTask {
  readonly shop: Shop;
  readonly abort: AbortController = new AbortController();
  record: A2ARecord;
  /** Whether the caller may have seen the task. If not, the answer can still be only a message. */
  shown: boolean;
  /** Set if the request is answered without a task after all. */
  outcome: { message: A2AMessage; error?: never } | { error: RpcError; message?: never } | undefined;
  /** The number of calls that use it. */
  users = 0;
  /** The number of turns that have started. */
  turns = 0;
  readonly #queue: Waiting[] = [];
  #working = false;
  #last: Promise<unknown> = Promise.resolve();
  readonly #waiters = new Set<() => void>();
  readonly #watches = new Set<Watch>();

  constructor(shop: Shop, record: A2ARecord, shown: boolean) {
    this.shop = shop;
    this.record = record;
    this.shown = shown;
  }

  get state(): A2AState {
    return this.record.task.status.state;
  }

  /** True if nothing will change any more. */
  get isOver(): boolean {
    return this.outcome !== undefined || isTerminal(this.state);
  }

  /** True if nothing will change until the caller does something. */
  get isSettled(): boolean {
    return this.isOver || (isInterrupted(this.state) && this.#queue.length === 0);
  }

  get isIdle(): boolean {
    return this.users === 0 && !this.#working;
  }

  // --- changes -------------------------------------------------------------------------------------------------

  /**
   * Changes the task. Changes are made one after the other; watchers are notified once a change is stored.
   *
   * @param next makes the changed task; if it throws, nothing is changed
   * @param o `event`: an item for watchers in addition to a new status; `show`: whether the change shows the task to
   * the caller, default true; `request`: a request to remember; `after`: called once the change is stored
   */
  change(
    next: (task: A2ATaskView) => A2ATaskView,
    o: { event?: A2AItem; show?: boolean; request?: string | undefined; after?: () => void } = {},
  ): Promise<void> {
    const done = this.#last.then(async () => {
      const { task: before, owner, requests } = this.record;
      if (this.outcome) throw this.#over();
      const task = next(before);
      if (o.show !== false) this.show();
      const record = { owner, task, requests: o.request ? [...requests, o.request].slice(-MAX_REQUESTS) : requests };
      await this.shop.store.put(record, this.shop.rank(owner));
      this.record = record;
      o.after?.();
      const { id, contextId = '', status } = task;
      if (before.status.state !== status.state) this.shop.onMove(id, before.status.state, status.state);
      if (o.event) this.#tell(o.event);
      if (before.status !== status) this.#tell({ statusUpdate: { taskId: id, contextId, status } });
      this.#stir();
    });
    this.#last = done.catch(() => {});
    return done;
  }

  #over(): BadState {
    return new BadState(this.state, this.state, 'the task is over');
  }

  /** The task in another state. @throws a {@link BadState} if the transition is not allowed */
  #moved(task: A2ATaskView, state: A2AState, message?: A2AMessage): A2ATaskView {
    checkMove(task.status.state, state);
    const timestamp = new Date(this.shop.clock.now()).toISOString();
    return { ...task, status: compact({ state, message, timestamp }), history: heard(task) };
  }

  /** Moves the task to another state. @throws a {@link BadState} if the transition is not allowed */
  move(state: A2AState, message?: A2AMessage): Promise<void> {
    return this.change((task) => this.#moved(task, state, message));
  }

  async publish(made: A2AMade): Promise<string> {
    const { append, lastChunk, text, parts, artifactId = this.shop.newId(), ...rest } = made;
    const given = { artifactId, parts: parts ?? (text === undefined ? undefined : [{ text }]), ...compact(rest) };
    const artifact = checkValue(isArtifact, given, 'artifact', 'bad_artifact');
    const { id: taskId, contextId = '' } = this.record.task;
    await this.change(
      (task) => {
        if (isTerminal(task.status.state)) throw this.#over();
        const artifacts = task.artifacts ?? [];
        const old = artifacts.find((one) => one.artifactId === artifactId);
        const next: A2AArtifact =
          old && append ? { ...old, ...artifact, parts: [...old.parts, ...artifact.parts] } : artifact;
        return { ...task, artifacts: old ? artifacts.map((one) => (one === old ? next : one)) : [...artifacts, next] };
      },
      { event: { artifactUpdate: compact({ taskId, contextId, artifact, append, lastChunk }) } },
    );
    return artifactId;
  }

  /** Shows the task to the caller: from now on, the answer to the request is a task. */
  show(): void {
    if (this.shown || this.outcome) return;
    this.shown = true;
    for (const watch of this.#watches) watch.open();
    this.#stir();
  }

  // --- messages ------------------------------------------------------------------------------------------------

  /** Queues the first message, which is in the record already. {@link work} starts with it. */
  begin(message: A2AMessage, accepts: readonly string[]): void {
    this.#queue.push({ message, accepts, continued: false });
  }

  /**
   * Takes a further message.
   *
   * @throws an {@link RpcError} -32004 if the task has ended; 1002 if too many messages wait
   */
  async follow(message: A2AMessage, accepts: readonly string[], request: string | undefined): Promise<void> {
    await this.change(
      (task) => {
        const { state } = task.status;
        if (isTerminal(state)) throw refusal('UNSUPPORTED_OPERATION', 'The task is over and takes no more messages');
        if (this.#queue.length >= MAX_WAITING) throw busy('too many messages are waiting', 5000);
        // The message answers a question, so the task is working again, even if the handler still waits for its turn.
        const next = isInterrupted(state) ? this.#moved(task, 'TASK_STATE_WORKING') : task;
        return { ...next, history: [...(next.history ?? []), message].slice(-MAX_HISTORY) };
      },
      { request, after: () => this.#queue.push({ message, accepts, continued: true }) },
    );
  }

  /** Works until no message waits. */
  async work(): Promise<void> {
    if (this.#working) return;
    this.#working = true;
    try {
      while (this.#queue.length > 0 && !this.isOver && !this.abort.signal.aborted) {
        const release = await this.shop.workers.enter(this.record.owner);
        try {
          await this.#turn();
        } finally {
          release?.();
        }
      }
    } catch (error) {
      this.shop.onError(error, this.record.task.id);
    } finally {
      this.#working = false;
      this.#stir();
    }
  }

  async #turn(): Promise<void> {
    const waiting = this.#queue[0];
    if (!waiting || this.isOver || this.abort.signal.aborted) return;
    // Watchers are notified, but the caller is not shown the task yet: the answer may still be only a message.
    if (this.state !== 'TASK_STATE_WORKING') {
      await this.change((task) => (this.isOver ? task : this.#moved(task, 'TASK_STATE_WORKING')), { show: false });
    }
    if (this.isOver) return;
    this.#queue.shift();
    const turn = new Turn(this, waiting);
    try {
      const running = turn.run();
      this.turns++;
      this.#stir();
      const reply = await running;
      await this.#replied(reply, waiting.continued);
    } catch (error) {
      await this.#failed(error, waiting.continued);
    } finally {
      turn.isOver = true;
    }
  }

  /** Whether the answer can still be only a message or an error. */
  #isBare(continued: boolean): boolean {
    return !continued && !this.shown && this.#queue.length === 0;
  }

  // biome-ignore lint/suspicious/noConfusingVoidType: what a handler returns
  async #replied(reply: A2AReply | void, continued: boolean): Promise<void> {
    if (this.isOver) return;
    const { contextId } = this.record.task;
    const { messageId, metadata } = isObject(reply) ? reply : {};
    const id = typeof messageId === 'string' && messageId !== '' ? messageId : this.shop.newId();
    // JavaScript handlers may return null for nothing.
    const message = (reply ?? undefined) === undefined ? undefined : messageOf(reply as A2ASaid, id, metadata);
    if (message && this.#isBare(continued)) {
      return this.#end({ message: compact({ ...message, contextId }) as A2AMessage });
    }
    await this.change((task) => {
      const { state } = task.status;
      if (isTerminal(state) || (isInterrupted(state) && this.#queue.length === 0)) return task;
      if (this.#queue.length === 0) return this.#moved(task, 'TASK_STATE_COMPLETED', message);
      return message ? this.#moved(task, 'TASK_STATE_WORKING', message) : task;
    });
  }

  async #failed(error: unknown, continued: boolean): Promise<void> {
    // A task that was canceled needs no further state.
    if (this.isOver || this.abort.signal.aborted) return;
    const isSaid = TechnocoreError.is(error) && error.code === 'rpc';
    if (isSaid && this.#isBare(continued)) return this.#end({ error: error as RpcError });
    if (!isSaid) this.shop.onError(error, this.record.task.id);
    const text = isSaid ? (error as RpcError).rpc.message : 'Internal error';
    await this.move('TASK_STATE_FAILED', messageOf(text || 'Failed', this.shop.newId()));
  }

  async #end(outcome: NonNullable<LiveTask['outcome']>): Promise<void> {
    this.outcome = outcome;
    this.shop.onMove(this.record.task.id, this.state, outcome.message ? 'TASK_STATE_COMPLETED' : 'TASK_STATE_FAILED');
    for (const watch of this.#watches) watch.end(outcome);
    await this.shop.store.remove(this.record.task.id);
    this.#stir();
  }

  /** Cancels the task. @throws an {@link RpcError} -32002 if it has ended in another way */
  async cancel(): Promise<void> {
    await this.change((task) => {
      if (task.status.state === 'TASK_STATE_CANCELED') return task;
      if (isTerminal(task.status.state)) throw refusal('TASK_NOT_CANCELABLE');
      return this.#moved(task, 'TASK_STATE_CANCELED');
    });
    this.abort.abort(new TechnocoreError('canceled', 'the caller canceled the task'));
  }

  /** Aborts the handler but leaves the task unchanged. */
  close(reason: unknown): void {
    this.abort.abort(reason);
    this.#stir();
  }

  // --- waiting and watching ------------------------------------------------------------------------------------

  /** Resolves once `is` is true, or after `ms`, or when the signal aborts. */
  until(is: () => boolean, ms: number, signal: AbortSignal): Promise<void> {
    if (is() || ms <= 0 || signal.aborted) return Promise.resolve();
    return new Promise((resolve) => {
      const done = (): void => {
        cancel();
        leave();
        this.#waiters.delete(look);
        resolve();
      };
      const look = (): void => {
        if (is() || this.abort.signal.aborted) done();
      };
      const leave = onAbort(signal, done);
      this.#waiters.add(look);
      const cancel = later(this.shop.clock, ms, done);
    });
  }

  #stir(): void {
    for (const look of [...this.#waiters]) look();
  }

  #tell(item: A2AItem): void {
    for (const watch of this.#watches) watch.push(item, this.isSettled);
  }

  /** Watches the task: first its current state, then each change; nothing before the caller may see it. */
  watch(): Watch {
    const watch = new Watch(() => this.#watches.delete(watch));
    watch.push({ task: this.record.task }, this.isSettled);
    if (this.outcome) watch.end(this.outcome);
    else if (this.shown) watch.open();
    this.#watches.add(watch);
    return watch;
  }
}

/** The items for one watcher of a task. */
export class Watch {
  readonly #items: { item: A2AItem; isLast: boolean }[] = [];
  #isOpen = false;
  #error: unknown;
  #wake: (() => void) | undefined;
  readonly #leave: () => void;

  constructor(leave: () => void) {
    this.#leave = leave;
  }

  push(item: A2AItem, isLast: boolean): void {
    if (this.#items.length < MAX_BEHIND) this.#items.push({ item, isLast });
    else this.#error ??= busy('the stream is too far behind', 0);
    this.#wake?.();
  }

  /** Releases the items, those that have come and those that will. */
  open(): void {
    this.#isOpen = true;
    this.#wake?.();
  }

  /** Ends the watch with an answer that is not a task. */
  end(outcome: NonNullable<LiveTask['outcome']>): void {
    this.#items.length = 0;
    this.open();
    if (outcome.message) this.push({ message: outcome.message }, true);
    else this.fail(outcome.error);
  }

  fail(error: unknown): void {
    this.#error ??= error;
    this.#wake?.();
  }

  /** Waits for the next item. @throws what ended the watch, after all earlier items */
  async next(): Promise<{ item: A2AItem; isLast: boolean }> {
    for (;;) {
      const next = this.#isOpen ? this.#items.shift() : undefined;
      if (next) return next;
      if (this.#error !== undefined) throw this.#error;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  leave(): void {
    this.#leave();
  }
}

/** The handling of one message. */
class Turn implements A2ATask {
  readonly #task: LiveTask;
  readonly #waiting: Waiting;
  isOver = false;

  constructor(task: LiveTask, waiting: Waiting) {
    this.#task = task;
    this.#waiting = waiting;
  }

  get id(): string {
    return this.#task.record.task.id;
  }
  get contextId(): string {
    return this.#task.record.task.contextId ?? '';
  }
  get from(): string {
    return this.#task.record.owner;
  }
  get history(): readonly A2AMessage[] {
    return this.#task.record.task.history ?? [];
  }
  get accepts(): readonly string[] {
    return this.#waiting.accepts;
  }
  get continued(): boolean {
    return this.#waiting.continued;
  }
  get signal(): AbortSignal {
    return this.#task.abort.signal;
  }

  // biome-ignore lint/suspicious/noConfusingVoidType: what a handler returns
  async run(): Promise<A2AReply | void> {
    const returned = this.#task.shop.handler(this.#waiting.message, this);
    if (!isGenerator(returned)) return returned as Promise<A2AReply>;
    try {
      for (;;) {
        const { value, done } = await returned.next();
        if (done) return value;
        if (typeof value === 'string') await this.update('TASK_STATE_WORKING', value);
        else if ('state' in value) await this.update(value.state, value.said);
        else await this.artifact(value);
      }
    } finally {
      await returned.return(undefined);
    }
  }

  #check(): void {
    this.signal.throwIfAborted();
    if (this.isOver) throw new BadState(this.#task.state, this.#task.state, 'the turn is over');
  }

  async update(state: string, said?: A2ASaid): Promise<void> {
    this.#check();
    const to = stateOf(state);
    if (!to) throw new BadState(this.#task.state, state);
    await this.#task.move(to, said === undefined ? undefined : messageOf(said, this.#task.shop.newId()));
  }

  async artifact(made: A2AMade): Promise<string> {
    this.#check();
    return this.#task.publish(made);
  }

  ask(said: A2ASaid): Promise<void> {
    return this.update('TASK_STATE_INPUT_REQUIRED', said);
  }

  reject(said?: A2ASaid): Promise<void> {
    return this.update('TASK_STATE_REJECTED', said);
  }
}

function isGenerator(value: unknown): value is AsyncGenerator<A2AYield, A2AReply> {
  return isObject(value) && Symbol.asyncIterator in value && typeof value['next'] === 'function';
}
