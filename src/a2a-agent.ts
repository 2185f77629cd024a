/**
 * Agents: A2A 1.0 and 0.3 as methods of a dispatcher, over one store of tasks. The name of a method determines the
 * version. Callers see only their own tasks; those of others do not exist for them.
 *
 * @module
 */
import { A2A_MODES, type A2ACapabilities, type A2ACard, type A2ACardInfo } from './a2a-card.ts';
import { type A2ANoteOptions, a2aAdvance, a2aCreate } from './a2a-notes.ts';
import {
  byPlace,
  covers,
  isIdentified,
  isListed,
  placeIn,
  placeOf,
  requestOf,
  type Sent,
  type Spelling,
  tokenOf,
  UNSAID_MS,
  V1,
  V03,
} from './a2a-params.ts';
import { type A2AState, isTerminal, refusal } from './a2a-states.ts';
import { type A2ARecord, type A2AStore, a2aMemoryStore } from './a2a-store.ts';
import { type A2AHandler, LiveTask, type Shop, type Watch } from './a2a-task.ts';
import { type A2ATaskView, badField, checkParams, MAX_STREAMS, STREAM_MS, WAIT_META } from './a2a-types.ts';
import { toHex } from './bytes.ts';
import { type Clock, following, later, onAbort } from './clock.ts';
import { busy, type CallContext, type Handler, INTERRUPTED, idempotent, rpcResult, staysOpen } from './dispatch.ts';
import { checkFunction, checkNumbers, checkObject, RpcError, TechnocoreError } from './errors.ts';
import { encodeLong, type Json } from './frames.ts';
import { type Event, meansOf } from './http.ts';
import { remember } from './maps.ts';
import { isName } from './names.ts';
import { NEVER, Seats } from './turns.ts';
import { Workers } from './workers.ts';

/** Options of {@link a2aAgent}. */
export interface A2AAgentOptions {
  /** The store of tasks. Default: in memory. Close your own store after the agent has been closed. */
  store?: A2AStore | undefined;
  /** The source of time. Default: the system clock. */
  clock?: Clock | undefined;
  /** The source of random bytes. Default: the platform's. */
  random?: ((bytes: number) => Uint8Array) | undefined;
  /**
   * How many messages are handled at a time; default 64. One caller can have a quarter of that; all callers that were
   * never answered, three quarters together. Tasks that have to wait are in the state submitted.
   */
  concurrency?: number | undefined;
  /**
   * How long an answer waits for the task to end or to ask something, in milliseconds; default 20,000, since callers
   * wait for 30 seconds. After that the unfinished task is returned. A caller can ask for less in
   * `_meta["chat.technocore/waitMs"]`.
   */
  waitMs?: number | undefined;
  /** The rooms that callers may name as contexts, besides those of their own tasks. Default: any room. */
  rooms?: readonly string[] | undefined;
  /** The extended card, for callers that request it; offered if the card's capabilities have `extendedAgentCard`. */
  extendedCard?: A2ACard | undefined;
  /**
   * Mirrors the state of each task in a note, so that others can see it: see {@link a2aTaskNote}. Every state change is
   * a write. Default: no notes.
   */
  notes?: A2ANoteOptions | undefined;
  /** Called with what a handler or the store threw. Callers learn only that the task has failed. */
  onError?: ((error: unknown, taskId: string) => void) | undefined;
  /** Called with an event when a note could not be kept in step with the store. */
  onEvent?: ((event: Event) => void) | undefined;
}

/** An A2A agent: what {@link a2aAgent} returns. */
export interface A2AAgent {
  /** Its methods, for the option `methods` of {@link serve} or of a dispatcher. */
  readonly methods: Map<string, Handler>;
  /** Aborts running handlers but leaves their tasks unchanged. */
  close(): void;
}

/** How long a turn may take to start before a caller that does not wait for the task is answered, ms. */
const BEGIN_MS = 50;
/** After how many microtasks a handler that awaits nothing has ended. */
const AT_ONCE = 32;
/** How many answers can wait for a task at a time, in all and for one caller. Any more are given at once. */
const MAX_WAITING = [1024, 64] as const;
/** For how many callers the rank is remembered. */
const MAX_RANKS = 4096;

/** A task as a caller gets it, with as much of its history as requested. */
function shown({ history, artifacts, ...task }: A2ATaskView, historyLength = 0, withArtifacts = true): A2ATaskView {
  const said = historyLength > 0 ? history?.slice(-historyLength) : undefined;
  return {
    ...task,
    ...(withArtifacts && artifacts?.length && { artifacts }),
    ...(said?.length && { history: said }),
  };
}

// --- the agent ---------------------------------------------------------------------------------------------------

class Agent implements A2AAgent, Shop {
  readonly methods: Map<string, Handler>;
  readonly store: A2AStore;
  readonly clock: Clock;
  readonly handler: A2AHandler;
  readonly workers: Workers;
  readonly #o: A2AAgentOptions;
  readonly #random: (bytes: number) => Uint8Array;
  readonly #onEvent: (event: Event) => void;
  readonly #capabilities: A2ACapabilities;
  readonly #modes: string[];
  readonly #live = new Map<string, LiveTask>();
  readonly #opening = new Map<string, Promise<LiveTask | undefined>>();
  readonly #waiting = new Seats(MAX_WAITING);
  readonly #streams = new Seats(MAX_STREAMS);
  /** The ranks of recent callers that were answered before. */
  readonly #ranks = new Map<string, number>();
  /** The last write of each note. */
  readonly #noted = new Map<string, Promise<unknown>>();
  readonly #closing = new AbortController();

  constructor(handler: A2AHandler, card: Partial<A2ACardInfo>, o: A2AAgentOptions) {
    // A card may have any members, so a store passed there by mistake would be ignored, and its tasks would be lost
    // when the process ends.
    if ('store' in checkObject(card, 'the card'))
      throw new TechnocoreError('bad_option', 'a card has no store; options are a separate argument');
    checkNumbers(checkObject(o), ['waitMs']);
    this.handler = checkFunction(handler, 'the handler');
    this.store = o.store ?? a2aMemoryStore();
    if (typeof this.store.put !== 'function')
      throw new TechnocoreError(
        'bad_option',
        'the option store is not a store; a2aFileStore returns a promise, so await it',
      );
    const concurrency = o.concurrency ?? 64;
    this.workers = new Workers(concurrency, Number.POSITIVE_INFINITY, Math.ceil(concurrency / 4), this);
    this.#o = o;
    const { random, clock, onEvent } = meansOf(o);
    this.#random = random;
    this.clock = clock;
    this.#onEvent = onEvent;
    this.#capabilities = card.capabilities ?? {};
    if (this.#capabilities.pushNotifications) {
      throw new TechnocoreError('bad_card', 'push notifications cannot be offered over rooms');
    }
    const skills = card.skills ?? [];
    this.#modes = [...(card.defaultInputModes ?? A2A_MODES), ...skills.flatMap(({ inputModes = [] }) => inputModes)];
    this.methods = this.#methods();
  }

  #methods(): Map<string, Handler> {
    // Safe to run again: if the first run created a task, the store finds it by the request.
    const open = (run: Handler): Handler => idempotent(staysOpen(run));
    const refuse = (reason: Parameters<typeof refusal>[0]): Handler =>
      idempotent(() => {
        throw refusal(reason);
      });
    const methods = new Map<string, Handler>();
    for (const [spelling, [send, stream, get, cancel, subscribe]] of [
      [V1, ['SendMessage', 'SendStreamingMessage', 'GetTask', 'CancelTask', 'SubscribeToTask']],
      [V03, ['message/send', 'message/stream', 'tasks/get', 'tasks/cancel', 'tasks/resubscribe']],
    ] as const) {
      methods.set(
        send,
        open((params, context) => this.#send(params, context, spelling)),
      );
      methods.set(
        stream,
        open((params, context) => this.#stream(params, context, spelling)),
      );
      methods.set(
        get,
        idempotent((params, context) => this.#get(params, context, spelling)),
      );
      methods.set(
        cancel,
        idempotent((params, context) => this.#cancel(params, context, spelling)),
      );
      methods.set(
        subscribe,
        open((params, context) => this.#subscribe(params, context, spelling)),
      );
    }
    methods.set(
      'ListTasks',
      idempotent((params, context) => this.#list(params, context)),
    );
    const push = 'TaskPushNotificationConfig';
    for (const name of [`Create${push}`, `Get${push}`, `List${push}s`, `Delete${push}`]) {
      methods.set(name, refuse('PUSH_NOTIFICATION_NOT_SUPPORTED'));
    }
    for (const verb of ['set', 'get', 'list', 'delete']) {
      methods.set(`tasks/pushNotificationConfig/${verb}`, refuse('PUSH_NOTIFICATION_NOT_SUPPORTED'));
    }
    const { extendedCard } = this.#o;
    const isOffered = this.#capabilities.extendedAgentCard === true;
    const extended =
      isOffered && extendedCard
        ? idempotent(() => extendedCard)
        : refuse(isOffered ? 'EXTENDED_AGENT_CARD_NOT_CONFIGURED' : 'UNSUPPORTED_OPERATION');
    methods.set('GetExtendedAgentCard', extended);
    methods.set('agent/getAuthenticatedExtendedCard', extended);
    return methods;
  }

  close(): void {
    const closed = new TechnocoreError('closed', 'the agent is closed');
    this.#closing.abort(closed);
    for (const live of this.#live.values()) live.close(closed);
  }

  // --- what tasks need -----------------------------------------------------------------------------------------

  /** A UUID, version 4. */
  newId(): string {
    const bytes = Uint8Array.from(this.#random(16));
    bytes[6] = (bytes[6]! & 15) | 64;
    bytes[8] = (bytes[8]! & 63) | 128;
    return toHex(bytes).replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
  }

  rank(key: string): number {
    return this.#ranks.get(key) ?? NEVER;
  }

  onError(error: unknown, taskId: string): void {
    try {
      this.#o.onError?.(error, taskId);
    } catch {
      // A broken listener must not break the agent.
    }
  }

  onMove(id: string, from: A2AState, to: A2AState): void {
    const { notes } = this.#o;
    if (!notes) return;
    const noted = (this.#noted.get(id) ?? Promise.resolve())
      .then(() => a2aAdvance(id, from, to, notes))
      .catch((cause) => this.#warn(id, to, cause))
      .then(() => {
        if (this.#noted.get(id) === noted) this.#noted.delete(id);
      });
    this.#noted.set(id, noted);
  }

  /** The store is authoritative. Anybody can write a note, so a problem with one is worth no more than an event. */
  #warn(taskId: string, state: A2AState, cause: unknown): void {
    this.#onEvent({ kind: 'note', taskId, state, cause });
  }

  // --- finding tasks -------------------------------------------------------------------------------------------

  /** The task with that id, if it is the caller's. @throws an {@link RpcError} -32001 if not */
  async #own(id: string, from: string): Promise<A2ARecord> {
    const live = this.#live.get(id);
    const record = live?.record ?? (await this.store.get(id));
    if (record?.owner !== from || live?.shown === false) throw refusal('TASK_NOT_FOUND');
    return record;
  }

  /** The task as one object, shared by all its concurrent users. */
  #open(id: string): Promise<LiveTask | undefined> {
    const live = this.#live.get(id);
    if (live) return Promise.resolve(live);
    let opening = this.#opening.get(id);
    if (!opening) {
      opening = (async () => {
        try {
          const record = await this.store.get(id);
          if (!record) return undefined;
          const opened = new LiveTask(this, record, true);
          this.#live.set(id, opened);
          return opened;
        } finally {
          this.#opening.delete(id);
        }
      })();
      this.#opening.set(id, opening);
    }
    return opening;
  }

  async #use<T>(live: LiveTask, run: (live: LiveTask) => Promise<T>): Promise<T> {
    live.users++;
    try {
      return await run(live);
    } finally {
      live.users--;
      this.#drop(live.record.task.id, live);
    }
  }

  /** Uses the caller's task with that id. @throws an {@link RpcError} -32001 if there is none */
  async #useOwn<T>(id: string, from: string, run: (live: LiveTask) => Promise<T>): Promise<T> {
    const live = await this.#open(id);
    if (live?.record.owner === from && live.shown) return this.#use(live, run);
    if (live) this.#drop(id, live);
    throw refusal('TASK_NOT_FOUND');
  }

  #drop(id: string, live: LiveTask): void {
    if (live.isIdle && this.#live.get(id) === live) this.#live.delete(id);
  }

  #work(live: LiveTask): void {
    void live.work().then(() => this.#drop(live.record.task.id, live));
  }

  // --- messages ------------------------------------------------------------------------------------------------

  /** Checks what a caller sent. */
  #checked(params: unknown, { meta }: CallContext, spelling: Spelling): Sent {
    const version = meta['A2A-Version'];
    if (spelling === V1 && typeof version === 'string' && !/^1\.0(\.|$)/.test(version)) {
      throw refusal('VERSION_NOT_SUPPORTED');
    }
    const sent = checkParams(spelling.sent, params);
    const { message, configuration = {} } = sent;
    if (configuration.taskPushNotificationConfig ?? configuration.pushNotificationConfig) {
      throw refusal('PUSH_NOTIFICATION_NOT_SUPPORTED');
    }
    for (const { uri, required } of this.#capabilities.extensions ?? []) {
      if (required && !message.extensions?.includes(uri)) {
        throw refusal('EXTENSION_SUPPORT_REQUIRED', `The extension ${uri} is required`);
      }
    }
    for (const { text, raw, url, mediaType } of message.parts) {
      // The type of a URL's content is unknown unless the message names it.
      const plain =
        text !== undefined ? 'text/plain' : raw !== undefined ? 'application/octet-stream' : 'application/json';
      const type = mediaType || (url === undefined && plain);
      if (type && !this.#modes.some((mode) => covers(mode, type))) {
        throw refusal('CONTENT_TYPE_NOT_SUPPORTED', `Incompatible content types: ${type.slice(0, 100)}`);
      }
    }
    return sent;
  }

  /** Gives a message to its task, existing or new, and calls `run` with the task before any work on it starts. */
  async #sent<T>(sent: Sent, context: CallContext, run: (live: LiveTask, isNew: boolean) => Promise<T>): Promise<T> {
    const { message, configuration = {} } = sent;
    const { from, rank } = context;
    if (rank !== NEVER) remember(this.#ranks, from, rank, MAX_RANKS);
    const accepts = configuration.acceptedOutputModes ?? [];
    const request = requestOf(context.id, message);
    // A repeated request must not start a second task.
    const known = request && (await this.store.find(from, request));
    const repeated = known && (await this.#open(known));
    if (repeated) return this.#use(repeated, (live) => run(live, false));
    if (message.taskId !== undefined) {
      return this.#useOwn(message.taskId, from, async (live) => {
        const { contextId } = live.record.task;
        if ((message.contextId ?? contextId) !== contextId)
          throw badField('message.contextId', 'is not that of the task');
        await live.follow(message, accepts, request);
        return run(live, true);
      });
    }
    const contextId = message.contextId ?? `p-${toHex(this.#random(16))}`;
    if (message.contextId !== undefined && !(await this.#mayJoin(contextId, from))) {
      throw badField('message.contextId', 'is not a room that this agent serves');
    }
    const timestamp = new Date(this.clock.now()).toISOString();
    const status = { state: 'TASK_STATE_SUBMITTED' as const, timestamp };
    const task = { id: await this.#mint(), contextId, status, history: [message] };
    const record = { owner: from, task, requests: request ? [request] : [] };
    await this.store.put(record, rank);
    const live = new LiveTask(this, record, false);
    this.#live.set(task.id, live);
    live.begin(message, accepts);
    return this.#use(live, () => run(live, true));
  }

  /** A new id; with notes, one whose note is ours. */
  async #mint(): Promise<string> {
    for (;;) {
      const id = this.newId();
      const { notes } = this.#o;
      if (!notes) return id;
      try {
        await a2aCreate(id, notes);
        return id;
      } catch (cause) {
        if (TechnocoreError.is(cause) && cause.code === 'conflict') continue;
        // A task works without a note.
        this.#warn(id, 'TASK_STATE_SUBMITTED', cause);
        return id;
      }
    }
  }

  async #mayJoin(contextId: string, from: string): Promise<boolean> {
    if (!isName(contextId)) return false;
    const { rooms } = this.#o;
    if (!rooms || rooms.includes(contextId)) return true;
    for (const { task } of await this.store.list(from)) if (task.contextId === contextId) return true;
    return false;
  }

  async #send(params: unknown, context: CallContext, spelling: Spelling): Promise<Json> {
    const sent = this.#checked(params, context, spelling);
    const { configuration = {} } = sent;
    return this.#sent(sent, context, async (live, isNew) => {
      const { turns } = live;
      if (isNew) this.#work(live);
      const wanted = spelling.waitMs(configuration);
      const { stop, forget } = following(context.signal);
      const release = wanted !== 0 && this.#waiting.take(context, () => stop.abort());
      if (release) {
        const said = context.meta[WAIT_META];
        const most = Math.min(this.#o.waitMs ?? 20_000, typeof said === 'number' && said >= 0 ? said : Infinity);
        await live.until(() => live.isSettled, wanted < 0 ? most : Math.min(wanted, most), stop.signal);
        release();
      } else if (isNew) {
        // If the handler answers immediately, even callers that do not wait get the answer.
        for (let step = 0; step < AT_ONCE && !live.isOver; step++) await undefined;
        await live.until(() => live.isOver || live.turns > turns, BEGIN_MS, context.signal);
      }
      forget();
      live.show();
      const { outcome } = live;
      if (outcome?.error) throw outcome.error;
      return spelling.item(
        outcome?.message
          ? { message: outcome.message }
          : { task: shown(live.record.task, configuration.historyLength) },
      );
    });
  }

  // --- streams -------------------------------------------------------------------------------------------------

  async *#stream(params: unknown, context: CallContext, spelling: Spelling): AsyncGenerator<Json, Json> {
    this.#mayStream();
    const sent = this.#checked(params, context, spelling);
    const { historyLength } = sent.configuration ?? {};
    return yield* this.#watched(context, spelling, historyLength, (run) =>
      this.#sent(sent, context, async (live, isNew) => {
        const watch = live.watch();
        if (isNew) this.#work(live);
        // The answer may turn out to be only a message, without a task, so wait a little before showing the task.
        void live.until(() => live.shown || live.isOver, UNSAID_MS, context.signal).then(() => live.show());
        await run(watch);
      }),
    );
  }

  async *#subscribe(params: unknown, context: CallContext, spelling: Spelling): AsyncGenerator<Json, Json> {
    this.#mayStream();
    const { id, historyLength } = checkParams(isIdentified, params);
    return yield* this.#watched(context, spelling, historyLength, (run) =>
      this.#useOwn(id, context.from, (live) => {
        if (isTerminal(live.state)) throw refusal('UNSUPPORTED_OPERATION', 'The task is over');
        return run(live.watch());
      }),
    );
  }

  #mayStream(): void {
    if (!this.#capabilities.streaming) throw refusal('UNSUPPORTED_OPERATION', 'Streaming is not supported');
  }

  /**
   * The items of a watch, the last one as the answer.
   *
   * @param within finds the watch, passes it to `run`, and keeps its task in use until the promise of `run` resolves
   */
  async *#watched(
    context: CallContext,
    spelling: Spelling,
    historyLength: number | undefined,
    within: (run: (watch: Watch) => Promise<void>) => Promise<void>,
  ): AsyncGenerator<Json, Json> {
    const { signal } = context;
    const displaced = new AbortController();
    const release = this.#streams.take(context, () => displaced.abort());
    if (!release) throw busy('too many streams', 10_000);
    const over = new AbortController();
    const ended = new Promise<void>((resolve) => over.signal.addEventListener('abort', () => resolve()));
    const leaving: (() => void)[] = [];
    try {
      const watch = await new Promise<Watch>((resolve, reject) => {
        within((found) => {
          resolve(found);
          return ended;
        }).catch(reject);
      });
      const interrupted = new RpcError(INTERRUPTED, 'Interrupted: the stream ends here; the task continues');
      const end = (): void => watch.fail(interrupted);
      leaving.push(() => watch.leave());
      for (const stop of [signal, this.#closing.signal, displaced.signal]) {
        leaving.push(onAbort(stop, end));
        if (stop.aborted) end();
      }
      leaving.push(later(this.clock, STREAM_MS, end));
      for (;;) {
        const { item, isLast } = await watch.next();
        const { task } = item;
        const written = spelling.item(task ? { task: shown(task, historyLength) } : item);
        if (isLast) return written;
        yield written;
      }
    } finally {
      release();
      over.abort();
      for (const leave of leaving) leave();
    }
  }

  // --- the rest ------------------------------------------------------------------------------------------------

  async #get(params: unknown, { from }: CallContext, spelling: Spelling): Promise<Json> {
    const { id, historyLength } = checkParams(isIdentified, params);
    return spelling.task(shown((await this.#own(id, from)).task, historyLength));
  }

  async #cancel(params: unknown, { from }: CallContext, spelling: Spelling): Promise<Json> {
    const { id } = checkParams(isIdentified, params);
    return this.#useOwn(id, from, async (live) => {
      await live.cancel();
      return spelling.task(shown(live.record.task));
    });
  }

  async #list(params: unknown, { from, id, limit }: CallContext): Promise<Json> {
    const { contextId, status, pageSize = 50, pageToken, ...o } = checkParams(isListed, params);
    const after = o.statusTimestampAfter === undefined ? undefined : Date.parse(o.statusTimestampAfter);
    const found: A2ATaskView[] = [];
    for (const { task } of await this.store.list(from)) {
      if (contextId && task.contextId !== contextId) continue;
      if (status && task.status.state !== status) continue;
      if (after !== undefined && Date.parse(task.status.timestamp!) < after) continue;
      if (this.#live.get(task.id)?.shown === false) continue;
      found.push(task);
    }
    // Once reversed, they are mostly sorted already.
    found.reverse().sort(byPlace);
    const place = pageToken ? placeIn(pageToken) : undefined;
    let next = place === undefined ? 0 : found.findIndex((task) => placeOf(task) < place);
    if (next < 0) next = found.length;
    const tasks: A2ATaskView[] = [];
    const page = (nextPageToken: string): Json => ({ tasks, nextPageToken, pageSize, totalSize: found.length });
    // Each page must fit into one frame, with the token of the next; a task that is too long for one goes alone.
    let left = limit - encodeLong(rpcResult(id ?? null, page(found[0] ? tokenOf(found[0]) : ''))).length;
    for (; next < found.length && tasks.length < pageSize; next++) {
      const task = shown(found[next]!, o.historyLength, o.includeArtifacts === true);
      const listed = o.includeArtifacts ? { ...task, artifacts: task.artifacts ?? [] } : task;
      left -= encodeLong(listed).length + 1;
      if (left < 0 && tasks.length > 0) break;
      tasks.push(listed);
    }
    return page(next < found.length ? tokenOf(found[next - 1]!) : '');
  }
}

/**
 * Makes an A2A agent: one handler behind the methods of A2A 1.0 and 0.3. A task belongs to the key that created it. Pass
 * the agent's `methods` to {@link serve}; together with others, as `new Map([...methods, ...agent.methods])`.
 *
 * @param handler works on a message: see {@link A2AHandler}
 * @param card what the agent offers, as for {@link a2aCard}; only `skills`, `defaultInputModes` and `capabilities`
 * matter
 * @param o the store, limits and so on: see {@link A2AAgentOptions}
 * @throws a {@link TechnocoreError} `bad_card` if the card offers push notifications, which are impossible over rooms;
 * `bad_option` if it is not an object, or has a member `store`, which is an option
 * @example
 * ```ts
 * import { a2aAgent, a2aText, serve, Signer } from 'technocore-rpc';
 *
 * const agent = a2aAgent(
 *   async (message, task) => {
 *     if (!task.continued) return task.ask('In which colour?'); // ends this turn; the answer starts the next
 *     await task.update('working', 'mixing paint');
 *     await task.artifact({ name: 'poster', text: `${a2aText(task.history[0]!)}, in ${a2aText(message)}` });
 *   },
 *   { name: 'Posters', skills: [{ name: 'print' }], capabilities: { streaming: true } },
 * );
 * await serve('mb-p-posters-8b7e', await Signer.fromDir(), { methods: agent.methods });
 * ```
 */
export function a2aAgent(handler: A2AHandler, card: Partial<A2ACardInfo> = {}, o: A2AAgentOptions = {}): A2AAgent {
  return new Agent(handler, card, o);
}
