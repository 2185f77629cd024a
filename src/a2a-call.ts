/**
 * Calling agents: sending messages, asking after tasks, waiting for them and watching them. Version 1.0 is spoken first;
 * an agent that does not know its methods is spoken to in version 0.3 from then on. Whatever the version, what comes back
 * has the form of 1.0, checked.
 *
 * @module
 */
import { type A2AState, isInterrupted, isTerminal } from './a2a-states.ts';
import {
  type A2AItem,
  type A2AMessage,
  type A2APart,
  type A2ATaskView,
  type Check,
  checkValue,
  isAnyText,
  isCount,
  isItem,
  isItem03,
  isList,
  isShaped,
  isTask,
  isTask03,
  MAX_BEHIND,
  message03,
  STREAM_MS,
  WAIT_META,
} from './a2a-types.ts';
import { toHex } from './bytes.ts';
import { call } from './call.ts';
import type { Channel } from './channel.ts';
import { following } from './clock.ts';
import { converse } from './conversation.ts';
import { type JsonObject, METHOD_NOT_FOUND, resultOf } from './dispatch.ts';
import { checkObject, type RpcError, TechnocoreError, Unavailable } from './errors.ts';
import { compact, isObject, type Json } from './frames.ts';
import { sharedOf, type Transport, transportOf } from './http.ts';
import type { CallOptions } from './line.ts';
import type { Signer } from './signer.ts';

/** Options of all calls of agents. */
export interface A2ACallOptions extends CallOptions {
  /** Default: 1.0, and 0.3 with agents that know no better. */
  version?: '1.0' | '0.3';
}

/** Options of {@link a2aSend} and {@link a2aStream}. */
export interface A2ASendOptions extends A2ACallOptions {
  /** The task that the message continues. */
  taskId?: string;
  /** The context that the task is to belong to. */
  contextId?: string;
  referenceTaskIds?: string[];
  /** Default: one that no other message has. */
  messageId?: string;
  metadata?: JsonObject;
  /** Media types that we can do with. */
  acceptedOutputModes?: string[];
  /** Most messages of the task's history that come with it; default: none. */
  historyLength?: number;
  /** Answer with the task at once, instead of when it is done or `timeoutMs` is near; then see {@link a2aWait}. */
  returnImmediately?: boolean;
}

/** What a message is answered with: a task, or a message alone. */
export type A2AAnswer = { task: A2ATaskView; message?: never } | { message: A2AMessage; task?: never };

/** Options of {@link a2aList}. */
export interface A2AListOptions extends A2ACallOptions {
  contextId?: string;
  status?: A2AState;
  /** 1 to 100; of what does not fit a frame fewer come. */
  pageSize?: number;
  pageToken?: string;
  historyLength?: number;
  /** Only tasks whose state is not older, ISO 8601. */
  statusTimestampAfter?: string;
  includeArtifacts?: boolean;
}

/** One page of tasks, those whose state is newest first. */
export interface A2APage {
  tasks: A2ATaskView[];
  /** Empty on the last page. */
  nextPageToken: string;
  pageSize: number;
  totalSize: number;
}

/** Options of {@link a2aWait}. */
export interface A2AWaitOptions extends A2ACallOptions {
  historyLength?: number;
  /** First pause between two looks, ms; default 1,000. It grows by half each time, up to `maxPollMs`, default 30,000. */
  pollMs?: number;
  maxPollMs?: number;
  /** How long to wait in all, ms; default: until the signal aborts. */
  waitMs?: number;
}

// --- the two spellings -------------------------------------------------------------------------------------------

type Verb = 'send' | 'stream' | 'get' | 'cancel' | 'subscribe';

interface Spelling {
  readonly methods: Record<Verb, string>;
  readonly message: (message: A2AMessage) => Json;
  /** Whether to wait for the task, as its agents are told. */
  blocking(isBlocking: boolean): JsonObject;
  readonly task: Check<A2ATaskView>;
  readonly item: Check<A2AItem>;
}

const V1: Spelling = {
  methods: {
    send: 'SendMessage',
    stream: 'SendStreamingMessage',
    get: 'GetTask',
    cancel: 'CancelTask',
    subscribe: 'SubscribeToTask',
  },
  message: (message) => message,
  blocking: (isBlocking) => (isBlocking ? {} : { returnImmediately: true }),
  task: isTask,
  item: isItem,
};

const V03: Spelling = {
  methods: {
    send: 'message/send',
    stream: 'message/stream',
    get: 'tasks/get',
    cancel: 'tasks/cancel',
    subscribe: 'tasks/resubscribe',
  },
  message: message03,
  blocking: (blocking) => ({ blocking }),
  task: isTask03,
  item: isItem03,
};

const OLD = {};
const MAX_OLD = 1024;
const oldChannels = new WeakSet<Channel>();

function isOld(t: Transport, to: string | Channel): boolean {
  return typeof to === 'string' ? sharedOf(t, OLD, () => new Set<string>()).has(to) : oldChannels.has(to);
}

function nowOld(t: Transport, to: string | Channel): void {
  if (typeof to !== 'string') return void oldChannels.add(to);
  const old = sharedOf(t, OLD, () => new Set<string>());
  if (old.size >= MAX_OLD) old.clear();
  old.add(to);
}

const isRpc = (cause: unknown, code: number): boolean =>
  TechnocoreError.is(cause) && cause.code === 'rpc' && (cause as RpcError).rpc.code === code;

/** Speaks to an agent in the version that it knows. */
async function spoken<T>(to: string | Channel, o: A2ACallOptions, speak: (s: Spelling) => Promise<T>): Promise<T> {
  const t = transportOf(o);
  if (o.version === '0.3' || (o.version === undefined && isOld(t, to))) return speak(V03);
  try {
    return await speak(V1);
  } catch (cause) {
    if (o.version !== undefined || !isRpc(cause, METHOD_NOT_FOUND)) throw cause;
    const said = await speak(V03);
    nowOld(t, to);
    return said;
  }
}

/** An id is of one version's request; of the other it would be another request under it. */
function optionsOf(o: A2ACallOptions, spelling: Spelling): CallOptions {
  return spelling === V1 || o.id === undefined ? o : { ...o, id: `${o.id}.0.3` };
}

function sendParams(message: A2AMessage, o: A2ASendOptions, spelling: Spelling, isBlocking: boolean): JsonObject {
  const { acceptedOutputModes, historyLength, timeoutMs = 30_000 } = o;
  return {
    message: spelling.message(message),
    configuration: compact({ acceptedOutputModes, historyLength, ...spelling.blocking(isBlocking) }),
    // So that the answer comes before we give up on it.
    _meta: { [WAIT_META]: Math.floor(timeoutMs * 0.6) },
  };
}

function messageOf(said: string | A2APart[], o: A2ASendOptions): A2AMessage {
  const { messageId, taskId, contextId, referenceTaskIds, metadata } = checkObject(o);
  return compact({
    messageId: messageId ?? toHex(transportOf(o).random(16)),
    role: 'ROLE_USER' as const,
    parts: typeof said === 'string' ? [{ text: said }] : said,
    taskId,
    contextId,
    referenceTaskIds,
    metadata,
  });
}

const answered = <T>(check: Check<T>, result: unknown): T => checkValue(check, result, 'result', 'bad_response');

/** Task states that end a wait, and a stream: over, or it is our turn. */
const isSettled = ({ status: { state } }: A2ATaskView): boolean => isTerminal(state) || isInterrupted(state);

// --- calls -------------------------------------------------------------------------------------------------------

/**
 * Sends a message to an agent, and waits for the task that comes of it as long as a call may: until it is over or asks
 * something, or else until `timeoutMs` is near, when it is answered as it is.
 *
 * @param to the agent's mailbox, its DID, or a channel
 * @throws RpcError what the agent refuses: -32001 no such task, -32004 the task is over, -32005 the media type …
 * @throws TechnocoreError `bad_response`: the answer is neither task nor message
 * @throws as {@link call}
 */
export async function a2aSend(
  to: string | Channel,
  said: string | A2APart[],
  signer: Signer,
  o: A2ASendOptions = {},
): Promise<A2AAnswer> {
  const message = messageOf(said, o);
  return spoken(to, o, async (spelling) => {
    const params = sendParams(message, o, spelling, !o.returnImmediately);
    const item = answered(spelling.item, await call(to, spelling.methods.send, params, signer, optionsOf(o, spelling)));
    if (item.task) return { task: item.task };
    if (item.message) return { message: item.message };
    throw new TechnocoreError('bad_response', 'the answer is neither a task nor a message');
  });
}

/**
 * A task as it is now.
 *
 * @throws RpcError -32001 there is no such task, or it is somebody else's
 * @throws TechnocoreError `bad_response`
 * @throws as {@link call}
 */
export function a2aGet(
  to: string | Channel,
  taskId: string,
  signer: Signer,
  o: A2ACallOptions & { historyLength?: number } = {},
): Promise<A2ATaskView> {
  return ofTask(to, 'get', taskId, signer, o);
}

/**
 * Cancels a task, and gives it as it is then; one that is canceled already, as it is.
 *
 * @throws RpcError -32001 there is no such task, or it is somebody else's; -32002 it is over otherwise
 * @throws TechnocoreError `bad_response`
 * @throws as {@link call}
 */
export function a2aCancel(
  to: string | Channel,
  taskId: string,
  signer: Signer,
  o: A2ACallOptions = {},
): Promise<A2ATaskView> {
  return ofTask(to, 'cancel', taskId, signer, o);
}

function ofTask(
  to: string | Channel,
  verb: Verb,
  id: string,
  signer: Signer,
  o: A2ACallOptions & { historyLength?: number },
): Promise<A2ATaskView> {
  return spoken(to, o, async (spelling) => {
    const params = compact({ id, historyLength: o.historyLength });
    const task = answered(
      spelling.task,
      await call(to, spelling.methods[verb], params, signer, optionsOf(o, spelling)),
    );
    if (task.id === id) return task;
    throw new TechnocoreError('bad_response', 'the answer is about another task');
  });
}

const isPage: Check<A2APage> = isShaped({
  tasks: isList(isTask),
  nextPageToken: isAnyText,
  pageSize: isCount(0, 0x7fffffff),
  totalSize: isCount(0, 0x7fffffff),
});

/**
 * One page of our own tasks with an agent. Version 0.3 has no such call.
 *
 * @throws as {@link a2aGet}
 */
export async function a2aList(to: string | Channel, signer: Signer, o: A2AListOptions = {}): Promise<A2APage> {
  const { contextId, status, pageSize, pageToken, historyLength, statusTimestampAfter, includeArtifacts } =
    checkObject(o);
  const params = { contextId, status, pageSize, pageToken, historyLength, statusTimestampAfter, includeArtifacts };
  return answered(isPage, await call(to, 'ListTasks', compact(params), signer, o));
}

/** Failures of one call after which the next may succeed. */
const PASSING = new Set(['call_timeout', 'ring_gap', 'unavailable', 'rate_limited', 'may_have_landed']);
const isPassing = (cause: unknown): boolean => TechnocoreError.is(cause) && (PASSING.has(cause.code) || isBusy(cause));
/** The server has too much to do, or stops. */
const isBusy = (cause: unknown): boolean => isRpc(cause, 1002) || isRpc(cause, 1001);

/**
 * Looks at a task until it is over, or waits for us. What fails on the way is tried again.
 *
 * @returns the task as it then is, or as it is after `waitMs`
 * @throws as {@link a2aGet}; what may pass, only when it does not within `waitMs`
 * @throws the signal's reason when it aborts
 */
export async function a2aWait(
  to: string | Channel,
  taskId: string,
  signer: Signer,
  o: A2AWaitOptions = {},
): Promise<A2ATaskView> {
  const { clock } = transportOf(o);
  const { pollMs = 1000, maxPollMs = 30_000, waitMs = Number.POSITIVE_INFINITY, id: _, ...rest } = o;
  let left = waitMs;
  for (let pause = pollMs; ; pause = Math.min(pause * 1.5, maxPollMs)) {
    const begun = clock.now();
    try {
      const task = await a2aGet(to, taskId, signer, rest);
      if (isSettled(task) || left <= pause) return task;
    } catch (cause) {
      if (!isPassing(cause) || left <= pause) throw cause;
    }
    await clock.sleep(pause, o.signal);
    left -= Math.max(clock.now() - begun, pause);
  }
}

/** How long an agent may work in silence before we ask again, ms. */
const SILENCE_MS = 120_000;
/** Streams that bring nothing, one after the other, before the last failure is told. */
const MAX_SILENT = 3;

/**
 * Sends a message, and gives what comes of it as it comes: a message alone; or the task, then its states and artifacts, the
 * last of them a state in which it is over or waits for us. After a gap, two minutes of silence, or when more than 256
 * wait to be read, the agent is asked again, and the task comes as it is by then. The option `timeoutMs` bounds the wait for the
 * first answer to each such request; a fourth one in a row without any throws.
 *
 * @param what the message, or `{ taskId }` to watch a task of ours that goes on
 * @throws RpcError as {@link a2aSend}; -32004 the agent has no streams, or the task is over
 * @throws TechnocoreError `bad_response`
 * @throws as {@link call}; leaving the loop ends the stream
 */
export async function* a2aStream(
  to: string | Channel,
  what: string | A2APart[] | { taskId: string },
  signer: Signer,
  o: A2ASendOptions = {},
): AsyncGenerator<A2AItem, void> {
  const { id: _, ...again } = checkObject(o);
  let taskId = isObject(what) ? (what as { taskId: string }).taskId : undefined;
  const message = taskId === undefined ? messageOf(what as string | A2APart[], o) : undefined;
  let silent = 0;
  for (let isFirst = true; ; isFirst = false) {
    try {
      for await (const item of conversation(to, isFirst ? message : undefined, taskId, signer, isFirst ? o : again)) {
        silent = 0;
        taskId ??= item.task?.id;
        yield item;
        if (item.message || isLast(item)) return;
      }
    } catch (cause) {
      // What we sent may have begun a task of which we know nothing.
      if (o.signal?.aborted || taskId === undefined || !isPassing(cause) || ++silent > MAX_SILENT) throw cause;
      if (!isBusy(cause)) continue;
      await transportOf(o).clock.sleep(1000 * silent, o.signal);
    }
  }
}

const isLast = ({ task, statusUpdate }: A2AItem): boolean =>
  (task !== undefined && isSettled(task)) ||
  (statusUpdate !== undefined && (isTerminal(statusUpdate.status.state) || isInterrupted(statusUpdate.status.state)));

/** One request and its many answers. */
async function* conversation(
  to: string | Channel,
  message: A2AMessage | undefined,
  taskId: string | undefined,
  signer: Signer,
  o: A2ASendOptions,
): AsyncGenerator<A2AItem, void> {
  const items: A2AItem[] = [];
  let wake: (() => void) | undefined;
  const { stop: left, forget } = following(o.signal);
  let isOver = false;
  const talk = spoken(to, o, (spelling) => {
    const verb = message ? 'stream' : 'subscribe';
    const params = message ? sendParams(message, o, spelling, true) : { id: taskId! };
    const take = (frame: JsonObject, kind: string): 'done' | number | undefined => {
      if (kind !== 'response') return undefined;
      const item = answered(spelling.item, resultOf(frame));
      if (items.length >= MAX_BEHIND) throw new Unavailable('more items came than were read');
      items.push(item);
      wake?.();
      return item.message || isLast(item) ? 'done' : SILENCE_MS;
    };
    const options = { ...optionsOf(o, spelling), retry: 0, batch: false, signal: left.signal };
    return converse(to, spelling.methods[verb], params, signer, options, { take, maxMs: STREAM_MS });
  }).finally(() => {
    isOver = true;
    wake?.();
  });
  talk.catch(() => {});
  try {
    for (;;) {
      const item = items.shift();
      if (item) yield item;
      else if (isOver) return await talk;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
  } finally {
    forget();
    left.abort(new TechnocoreError('left', 'nobody listens to the stream any more'));
  }
}
