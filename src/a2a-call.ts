/**
 * Calling A2A agents: sending messages, and getting, awaiting and watching tasks. A2A 1.0 is tried first; an agent that
 * does not know its methods is called with 0.3 from then on. Whatever the version, results have the form of 1.0 and
 * have been checked.
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
import { BUSY, INTERRUPTED, isRpc, type JsonObject, METHOD_NOT_FOUND, resultOf } from './dispatch.ts';
import { checkNumbers, checkObject, checkText, TechnocoreError, Unavailable } from './errors.ts';
import { compact, isObject, type Json } from './frames.ts';
import { meansOf, sharedOf, type Transport, transportOf } from './http.ts';
import type { CallOptions } from './line.ts';
import type { Signer } from './signer.ts';

/** Options of all calls to A2A agents. */
export interface A2ACallOptions extends CallOptions {
  /** The version of A2A to use. Default: 1.0, and 0.3 with agents that do not know 1.0. */
  version?: '1.0' | '0.3' | undefined;
}

/** Options of {@link a2aSend} and {@link a2aStream}. */
export interface A2ASendOptions extends A2ACallOptions {
  /** The task that the message continues. Default: none, and the agent may create one. */
  taskId?: string | undefined;
  /** The context that the task should belong to. */
  contextId?: string | undefined;
  /** Other tasks that the message refers to. */
  referenceTaskIds?: string[] | undefined;
  /** The id of the message. Default: a new one. */
  messageId?: string | undefined;
  /** Further data for the agent. */
  metadata?: JsonObject | undefined;
  /** The media types that the caller accepts. */
  acceptedOutputModes?: string[] | undefined;
  /** How many messages of the task's history to return with it; default: none. */
  historyLength?: number | undefined;
  /** Whether the agent should return the task at once instead of waiting for it; see {@link a2aWait}. Default false. */
  returnImmediately?: boolean | undefined;
}

/** An agent's answer to a message: a task, or only a message. */
export type A2AAnswer = { task: A2ATaskView; message?: never } | { message: A2AMessage; task?: never };

/** Options of {@link a2aList}. */
export interface A2AListOptions extends A2ACallOptions {
  /** Only tasks in this context. */
  contextId?: string | undefined;
  /** Only tasks in this state. */
  status?: A2AState | undefined;
  /**
   * The maximum number of tasks on a page, 1 to 100; default: the agent's choice. A page may have fewer, so that it
   * fits into a frame.
   */
  pageSize?: number | undefined;
  /** The `nextPageToken` of the previous page. Default: the first page. */
  pageToken?: string | undefined;
  /** How many messages of each task's history to return; default: none. */
  historyLength?: number | undefined;
  /** Only tasks whose status changed at this time or later: ISO 8601. */
  statusTimestampAfter?: string | undefined;
  /** Whether to include artifacts; default false. */
  includeArtifacts?: boolean | undefined;
}

/** One page of tasks: what {@link a2aList} returns. */
export interface A2APage {
  /** The tasks, newest status first. */
  tasks: A2ATaskView[];
  /** The token of the next page; empty on the last page. */
  nextPageToken: string;
  /** The maximum number of tasks on a page. */
  pageSize: number;
  /** The number of tasks on all pages. */
  totalSize: number;
}

/** Options of {@link a2aWait}. */
export interface A2AWaitOptions extends A2ACallOptions {
  /** How many messages of the task's history to return with it; default: none. */
  historyLength?: number | undefined;
  /** The first pause between two requests, in milliseconds; default 1,000. It grows by half each time. */
  pollMs?: number | undefined;
  /** The longest pause between two requests, in milliseconds; default 30,000. */
  maxPollMs?: number | undefined;
  /** How long to wait in all, in milliseconds; default: until the signal aborts. */
  waitMs?: number | undefined;
}

// --- the two spellings -------------------------------------------------------------------------------------------

type Verb = 'send' | 'stream' | 'get' | 'cancel' | 'subscribe';

interface Spelling {
  readonly methods: Record<Verb, string>;
  readonly message: (message: A2AMessage) => Json;
  /** The configuration that tells the agent whether to wait for the task. */
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

/** Calls an agent with the version that it knows. */
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

/** The call options for a version. The requests of the two versions differ, so they need different ids. */
function optionsOf(o: A2ACallOptions, spelling: Spelling): CallOptions {
  return spelling === V1 || o.id === undefined ? o : { ...o, id: `${o.id}.0.3` };
}

function sendParams(message: A2AMessage, o: A2ASendOptions, spelling: Spelling, isBlocking: boolean): JsonObject {
  const { acceptedOutputModes, historyLength, timeoutMs = 30_000 } = o;
  return {
    message: spelling.message(message),
    configuration: compact({ acceptedOutputModes, historyLength, ...spelling.blocking(isBlocking) }),
    // So that the agent answers before our timeout.
    _meta: { [WAIT_META]: Math.floor(timeoutMs * 0.6) },
  };
}

function messageOf(said: string | A2APart[], o: A2ASendOptions): A2AMessage {
  const { messageId, taskId, contextId, referenceTaskIds, metadata } = checkObject(o);
  if (typeof said !== 'string' && !Array.isArray(said))
    throw new TechnocoreError('bad_params', 'a message is a text or an array of parts');
  return compact({
    messageId: messageId ?? toHex(meansOf(o).random(16)),
    role: 'ROLE_USER' as const,
    parts: typeof said === 'string' ? [{ text: said }] : said,
    taskId,
    contextId,
    referenceTaskIds,
    metadata,
  });
}

const answered = <T>(check: Check<T>, result: unknown): T => checkValue(check, result, 'result', 'bad_response');

/** Whether a wait or a stream ends: the task has ended, or waits for us. */
const isSettled = ({ status: { state } }: A2ATaskView): boolean => isTerminal(state) || isInterrupted(state);

// --- calls -------------------------------------------------------------------------------------------------------

/**
 * Sends a message to an A2A agent (`SendMessage`). By default, the agent answers when the resulting task has ended or
 * asks something, or else shortly before `timeoutMs`, with the unfinished task.
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param said the message: a text, or parts
 * @param signer the caller's key, which will own the task
 * @param o `taskId` to continue a task; see {@link A2ASendOptions}
 * @returns the task, or only a message; untrusted, like everything that an agent sends
 * @throws an {@link RpcError} if the agent refuses: code -32001 for an unknown task, -32004 if the task has ended,
 * -32005 for a media type that it does not accept …
 * @throws a {@link TechnocoreError} `bad_response` if the answer is malformed
 * @throws what {@link call} throws
 * @example
 * ```ts
 * import { a2aSend, a2aText, Signer } from 'technocore-rpc';
 *
 * const [to, signer, o] = ['mb-p-posters-8b7e', Signer.generate(), { replyTo: 'mb-p-ada-90b4' }];
 * let { task } = await a2aSend(to, '20 posters', signer, o);
 * if (task?.status.state === 'TASK_STATE_INPUT_REQUIRED') {
 *   ({ task } = await a2aSend(to, 'blue', signer, { ...o, taskId: task.id }));
 * }
 * for (const artifact of task?.artifacts ?? []) console.log(a2aText(artifact)); // 20 posters, in blue
 * ```
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
 * Gets the current state of a task (`GetTask`).
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param taskId the id of the task
 * @param signer the key that created the task
 * @param o `historyLength`: how many messages of its history to return; default: none
 * @throws an {@link RpcError} code -32001 if there is no such task, or it belongs to another key
 * @throws a {@link TechnocoreError} `bad_response` if the answer is malformed
 * @throws what {@link call} throws
 */
export function a2aGet(
  to: string | Channel,
  taskId: string,
  signer: Signer,
  o: A2ACallOptions & { historyLength?: number | undefined } = {},
): Promise<A2ATaskView> {
  return ofTask(to, 'get', taskId, signer, o);
}

/**
 * Cancels a task (`CancelTask`). Canceling it again is not an error.
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param taskId the id of the task
 * @param signer the key that created the task
 * @returns the canceled task
 * @throws an {@link RpcError} code -32001 if there is no such task, or it belongs to another key; -32002 if it has
 * ended in another way
 * @throws a {@link TechnocoreError} `bad_response` if the answer is malformed
 * @throws what {@link call} throws
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
  o: A2ACallOptions & { historyLength?: number | undefined },
): Promise<A2ATaskView> {
  return spoken(to, o, async (spelling) => {
    const params = compact({ id: checkText(id, 'the id of the task'), historyLength: o.historyLength });
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
 * Lists the caller's own tasks at an agent, one page at a time (`ListTasks`). A2A 0.3 has no such method.
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param signer the key that created the tasks
 * @param o which tasks, and which page: see {@link A2AListOptions}
 * @throws an {@link RpcError} code -32601 if the agent only knows A2A 0.3
 * @throws a {@link TechnocoreError} `bad_response` if the answer is malformed
 * @throws what {@link call} throws
 */
export async function a2aList(to: string | Channel, signer: Signer, o: A2AListOptions = {}): Promise<A2APage> {
  const { contextId, status, pageSize, pageToken, historyLength, statusTimestampAfter, includeArtifacts } =
    checkObject(o);
  const params = { contextId, status, pageSize, pageToken, historyLength, statusTimestampAfter, includeArtifacts };
  return answered(isPage, await call(to, 'ListTasks', compact(params), signer, o));
}

/** The failures that may be transient. */
const PASSING = new Set(['call_timeout', 'ring_gap', 'unavailable', 'rate_limited', 'may_have_landed']);
const isPassing = (cause: unknown): boolean => TechnocoreError.is(cause) && (PASSING.has(cause.code) || isBusy(cause));
/** True if the server has too much to do, or is stopping. */
const isBusy = (cause: unknown): boolean => isRpc(cause, BUSY) || isRpc(cause, INTERRUPTED);

/**
 * Polls a task until it has ended or waits for the caller. Transient failures are retried.
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param taskId the id of the task
 * @param signer the key that created the task
 * @param o how often to poll, and how long to wait: see {@link A2AWaitOptions}
 * @returns the task; the unfinished task if `waitMs` has passed
 * @throws what {@link a2aGet} throws; transient failures only if they last until `waitMs` is over
 * @throws the signal's reason when it aborts
 */
export async function a2aWait(
  to: string | Channel,
  taskId: string,
  signer: Signer,
  o: A2AWaitOptions = {},
): Promise<A2ATaskView> {
  const { clock } = meansOf(o);
  checkNumbers(o, ['pollMs', 'maxPollMs', 'waitMs']);
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

/** How long an agent may be silent before the stream is reopened, ms. */
const SILENCE_MS = 120_000;
/** How many streams in a row may yield nothing before the last one's failure is thrown. */
const MAX_SILENT = 3;

/**
 * Sends a message to an A2A agent and yields the results as they arrive (`SendStreamingMessage`): either a message
 * alone; or the task, then its states and artifacts. The stream ends when the task has ended or waits for the caller.
 *
 * If messages are lost, after two minutes of silence, or if more than 256 items are waiting to be read, the stream is
 * reopened, and the whole current task is yielded. `timeoutMs` is how long the first item may take after each request;
 * the fourth request in a row without an item throws. Leaving the loop ends the stream.
 *
 * @param to the agent's mailbox, DID or {@link Channel}
 * @param what the message (a text, or parts), or `{ taskId }` to watch a running task (`SubscribeToTask`)
 * @param signer the caller's key
 * @param o as for {@link a2aSend}
 * @throws an {@link RpcError} as {@link a2aSend}; code -32004 also if the agent does not stream, or the task to watch has
 * ended
 * @throws a {@link TechnocoreError} `bad_response` if an item is malformed
 * @throws what {@link call} throws
 * @example
 * ```ts
 * import { a2aStream, Signer } from 'technocore-rpc';
 *
 * const o = { replyTo: 'mb-p-ada-90b5' };
 * for await (const { task, statusUpdate } of a2aStream('mb-p-posters-8b7e', '10 posters', Signer.generate(), o)) {
 *   console.log((statusUpdate ?? task)?.status.state); // … TASK_STATE_INPUT_REQUIRED
 * }
 * ```
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
    } catch (thrown) {
      let cause: unknown = thrown;
      if (!isFirst && taskId !== undefined && isRpc(cause, UNSUPPORTED_OPERATION)) {
        // It ended while nobody watched.
        const task = await a2aGet(to, taskId, signer, again).catch((failure) => {
          cause = failure;
        });
        if (task) {
          yield { task };
          return;
        }
      }
      // Without its id, we cannot subscribe to a task that our message may have created.
      if (o.signal?.aborted || taskId === undefined || !isPassing(cause) || ++silent > MAX_SILENT) throw cause;
      if (!isBusy(cause)) continue;
      await meansOf(o).clock.sleep(1000 * silent, o.signal);
    }
  }
}

/** The error of A2A with which an agent refuses to have a task watched that has ended. */
const UNSUPPORTED_OPERATION = -32004;

const isLast = ({ task, statusUpdate }: A2AItem): boolean =>
  (task !== undefined && isSettled(task)) ||
  (statusUpdate !== undefined && (isTerminal(statusUpdate.status.state) || isInterrupted(statusUpdate.status.state)));

/** The answers to one request. */
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
