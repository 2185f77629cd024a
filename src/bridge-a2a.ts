/**
 * The official A2A SDK over rooms: its request handler behind a mailbox, and rooms as a transport of its client. Both
 * have the shape that the SDK expects; the SDK is not a dependency.
 *
 * @module
 */
import { A2A_BINDING } from './a2a-card.ts';
import { isInterrupted, isTerminal, stateOf } from './a2a-states.ts';
import { MAX_STREAMS, STREAM_MS } from './a2a-types.ts';
import { checkMailbox } from './channel.ts';
import { type Clock, clockOf, eitherOf, following } from './clock.ts';
import { converse } from './conversation.ts';
import { busy, type CallContext, type Handler, INTERRUPTED, type JsonObject, resultOf, staysOpen } from './dispatch.ts';
import { BadName, checkObject, RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { orAbort } from './http.ts';
import type { CallOptions } from './line.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';
import { Seats } from './turns.ts';

/** The methods of A2A 1.0 and 0.3 that return one response. */
const UNARY = [
  'SendMessage',
  'GetTask',
  'ListTasks',
  'CancelTask',
  'CreateTaskPushNotificationConfig',
  'GetTaskPushNotificationConfig',
  'ListTaskPushNotificationConfigs',
  'DeleteTaskPushNotificationConfig',
  'GetExtendedAgentCard',
  'message/send',
  'tasks/get',
  'tasks/cancel',
  'tasks/pushNotificationConfig/set',
  'tasks/pushNotificationConfig/get',
  'tasks/pushNotificationConfig/list',
  'tasks/pushNotificationConfig/delete',
  'agent/getAuthenticatedExtendedCard',
];
/** The methods that return a stream. */
const STREAMING = ['SendStreamingMessage', 'SubscribeToTask', 'message/stream', 'tasks/resubscribe'];

/** How long a stream may be silent, ms. */
const SILENCE_MS = 600_000;

/**
 * Whether a result is the last of its stream: a message, or a state in which the task has ended or waits for the caller.
 */
function isLast(result: unknown): boolean {
  if (!isObject(result)) return true;
  if (result['message'] !== undefined || result['kind'] === 'message' || result['final'] === true) return true;
  const holder = result['statusUpdate'] ?? result['task'] ?? (result['kind'] === 'task' ? result : undefined);
  const status = isObject(holder) ? holder['status'] : undefined;
  const state = isObject(status) ? stateOf(status['state']) : undefined;
  return state !== undefined && (isTerminal(state) || isInterrupted(state));
}

// --- the agent's side --------------------------------------------------------------------------------------------

/** What {@link a2aHandlerMethods} needs from the SDK's `JsonRpcTransportHandler`. */
export interface A2ARequestHandler<Context> {
  /** Answers a JSON-RPC request with a response, or with an async generator of them. */
  handle(request: Record<string, unknown>, context: Context): Promise<object>;
}

/**
 * Makes the methods for `serve` of an agent written with the official A2A SDK. The caller is the key that signed the
 * request. Name it as the user in the context, since the SDK shows tasks only to the user who created them. A request
 * that arrives twice runs once, as always with `serve`.
 *
 * @param handler the SDK's `JsonRpcTransportHandler`, or anything that does the same
 * @param contextOf makes the SDK's `ServerCallContext` from the caller's DID
 * @param o `clock`: the source of time; a stream ends after an hour
 * @returns the methods of A2A 1.0 and 0.3, for the option `methods` of `serve`
 * @example
 * ```ts
 * import { AgentCard, Message } from '@a2a-js/sdk';
 * import {
 *   AgentEvent,
 *   type AgentExecutor,
 *   DefaultRequestHandler,
 *   InMemoryTaskStore,
 *   JsonRpcTransportHandler,
 *   ServerCallContext,
 * } from '@a2a-js/sdk/server';
 * import { a2aCard, serve, Signer } from 'technocore-rpc';
 * import { a2aHandlerMethods } from 'technocore-rpc/bridge';
 *
 * const executor: AgentExecutor = {
 *   async execute(_request, bus) {
 *     const message = { messageId: crypto.randomUUID(), role: 'ROLE_AGENT', parts: [{ text: 'hello to you' }] };
 *     bus.publish(AgentEvent.message(Message.fromJSON(message)));
 *   },
 *   async cancelTask() {},
 * };
 * const card = AgentCard.fromJSON(a2aCard({ name: 'hello', skills: [{ name: 'greet' }], mailbox: 'mb-p-hello-3c9a' }));
 * const handler = new JsonRpcTransportHandler(new DefaultRequestHandler(card, new InMemoryTaskStore(), executor));
 * const contextOf = (userName: string) =>
 *   new ServerCallContext({ user: { isAuthenticated: true, userName }, requestedVersion: '1.0' });
 * await serve('mb-p-hello-3c9a', await Signer.fromDir(), { methods: a2aHandlerMethods(handler, contextOf) });
 * ```
 */
export function a2aHandlerMethods<Context>(
  handler: A2ARequestHandler<Context>,
  contextOf: (from: string, call: CallContext) => Context,
  o: { clock?: Clock | undefined } = {},
): Map<string, Handler> {
  const clock = clockOf(checkObject(o));
  const streams = new Seats(MAX_STREAMS);
  const handle = (method: string, params: Json, call: CallContext): Promise<object> =>
    handler.handle({ jsonrpc: '2.0', id: 1, method, params }, contextOf(call.from, call));
  const methods = new Map<string, Handler>();
  for (const method of UNARY) {
    methods.set(method, async (params, call) => {
      const answer = await handle(method, params, call);
      if (!isStream(answer)) return resultIn(answer);
      await answer.return?.(undefined);
      throw new TechnocoreError('bad_response', `${method} must return one response, not a stream`);
    });
  }
  for (const method of STREAMING) {
    const run = async function* (params: Json, call: CallContext): AsyncGenerator<Json, Json> {
      const { stop: over, forget } = following(call.signal);
      const release = streams.take(call, () => over.abort());
      if (!release) {
        forget();
        throw busy('too many streams', 10_000);
      }
      // Nobody notices when a caller goes away, so every stream must end.
      clock.sleep(STREAM_MS, over.signal).then(
        () => over.abort(),
        () => {},
      );
      try {
        return yield* results(await handle(method, params, call), over.signal);
      } finally {
        forget();
        over.abort();
        release();
      }
    };
    methods.set(method, staysOpen(run));
  }
  return methods;
}

const isStream = (answer: object): answer is AsyncGenerator<unknown> => Symbol.asyncIterator in answer;

/** @throws RpcError if the response is an error */
const resultIn = (response: unknown): Json => resultOf(JSON.parse(JSON.stringify(response)) as JsonObject);

/** The results of a stream; the last one is returned. */
async function* results(answers: object, signal: AbortSignal): AsyncGenerator<Json, Json> {
  if (!isStream(answers)) return resultIn(answers);
  const ended = new RpcError(INTERRUPTED, 'Interrupted: the stream ends here; the task continues');
  try {
    for (;;) {
      const { value, done } = await orAbort(answers.next(), signal).catch((cause) => {
        throw signal.aborted ? ended : cause;
      });
      if (done) throw ended;
      const result = resultIn(value);
      if (isLast(result)) return result;
      yield result;
    }
  } finally {
    // Not awaited: it may wait for its task forever.
    answers.return(undefined).catch(() => {});
  }
}

// --- the caller's side -------------------------------------------------------------------------------------------

/** The shape of the SDK's class `JsonRpcTransportFactory`. */
export type JsonRpcTransportFactory<Transport, Card> = new (o: {
  fetchImpl: typeof fetch;
}) => { create(url: string, card: Card): Promise<Transport> };

/** Options of {@link RoomTransportFactory}. */
export interface RoomTransportOptions extends Omit<CallOptions, 'id' | 'batch'> {
  /** The caller's own mailbox, for the answers. */
  replyTo: string;
}

/**
 * Rooms as a transport for the client of the official A2A SDK. An agent whose card names the binding `A2A_BINDING` is
 * called through its mailbox; the SDK's own `JsonRpcTransportFactory` makes the requests and reads the answers.
 *
 * @example
 * ```ts
 * import { AgentCard, SendMessageRequest } from '@a2a-js/sdk';
 * import { ClientFactory, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
 * import { a2aCard, Signer } from 'technocore-rpc';
 * import { RoomTransportFactory } from 'technocore-rpc/bridge';
 *
 * // the agent's card, as from a2aReadCard
 * const card = AgentCard.fromJSON(a2aCard({ name: 'hello', skills: [{ name: 'greet' }], mailbox: 'mb-p-hello-3c9a' }));
 * const rooms = new RoomTransportFactory(JsonRpcTransportFactory, Signer.generate(), { replyTo: 'mb-p-ada-44e0' });
 * const client = await new ClientFactory({ transports: [rooms] }).createFromAgentCard(card);
 * const message = { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text: 'hello' }] };
 * console.log(JSON.stringify(await client.sendMessage(SendMessageRequest.fromJSON({ message }))));
 * ```
 */
export class RoomTransportFactory<Transport, Card> {
  readonly #JsonRpc: JsonRpcTransportFactory<Transport, Card>;
  readonly #signer: Signer;
  readonly #o: RoomTransportOptions;

  /**
   * Makes a factory, for the option `transports` of the SDK's `ClientFactory`.
   *
   * @param jsonRpc the SDK's class `JsonRpcTransportFactory`
   * @param signer the caller's key
   * @param o `replyTo`: the caller's own mailbox. `base`: the only service that a card may name; default: any. Other
   * options as for `call`
   * @throws `BadKey` if no signer is given; `BadName` if `replyTo` is not a mailbox
   */
  constructor(jsonRpc: JsonRpcTransportFactory<Transport, Card>, signer: Signer, o: RoomTransportOptions) {
    checkSigner(signer);
    checkMailbox(checkObject(o).replyTo);
    this.#JsonRpc = jsonRpc;
    this.#signer = signer;
    this.#o = o;
  }

  /** The name of the binding: `A2A_BINDING`. */
  get protocolName(): string {
    return A2A_BINDING;
  }

  /**
   * Makes the transport to one agent. The SDK calls it.
   *
   * @param url the agent's mailbox as its card names it: `https://<service>/r/<mailbox>`
   * @param card the agent's card
   * @throws `BadName` if the URL is not that of a mailbox, or not on the service in the option `base`
   */
  async create(url: string, card: Card): Promise<Transport> {
    const [, base, mailbox] = /^(https?:\/\/[^?#]+?)\/r\/([^/?#]+)$/.exec(String(url)) ?? [];
    if (base === undefined) throw new BadName(String(url), 'a mailbox has a URL like https://<service>/r/<mailbox>');
    checkMailbox(mailbox!);
    const own = this.#o.base?.replace(/\/+$/, '');
    if (own !== undefined && own !== base) throw new BadName(url, `this client only uses the service ${own}`);
    const carry = (_: unknown, init: RequestInit = {}): Promise<Response> =>
      carried(mailbox!, String(init.body), this.#signer, {
        ...this.#o,
        base,
        ...(init.signal && { signal: init.signal }),
      });
    return new this.#JsonRpc({ fetchImpl: carry as typeof fetch }).create(url, card);
  }
}

/** Carries one HTTP request of the SDK through rooms, and answers it as an HTTP server would. */
async function carried(mailbox: string, body: string, signer: Signer, o: RoomTransportOptions): Promise<Response> {
  const { id, method, params } = JSON.parse(body) as { id: Json; method: string; params?: Json };
  if (!STREAMING.includes(method)) {
    let answer: JsonObject | undefined;
    const take = (frame: JsonObject, kind: string): 'done' | undefined => {
      if (kind !== 'response') return undefined;
      answer = { ...frame, id };
      return 'done';
    };
    await converse(mailbox, method, params, signer, o, { take });
    return Response.json(answer);
  }
  const left = new AbortController();
  const signal = eitherOf(o.signal, left.signal)!;
  const text = new TextEncoder();
  let items!: ReadableStreamDefaultController<Uint8Array>;
  const stream = new ReadableStream<Uint8Array>({
    start: (controller) => {
      items = controller;
    },
    cancel: () => left.abort(new TechnocoreError('left', 'the stream was cancelled by its reader')),
  });
  // A refusal is a response with an error, not a stream, as over HTTP.
  const first = await new Promise<JsonObject | undefined>((resolve, reject) => {
    let isFirst = true;
    const take = (frame: JsonObject, kind: string): 'done' | number | undefined => {
      if (kind !== 'response') return undefined;
      const answer = { ...frame, id };
      if (isFirst && frame['error'] !== undefined) {
        resolve(answer);
        return 'done';
      }
      resolve(undefined);
      isFirst = false;
      items.enqueue(text.encode(`data: ${JSON.stringify(answer)}\n\n`));
      return frame['error'] !== undefined || isLast(frame['result']) ? 'done' : SILENCE_MS;
    };
    converse(mailbox, method, params, signer, { ...o, retry: 0, signal }, { take, maxMs: STREAM_MS }).then(
      () => left.signal.aborted || items.close(),
      (cause) => {
        reject(cause);
        if (!left.signal.aborted) items.error(cause);
      },
    );
  });
  if (first) return Response.json(first);
  return new Response(stream, { headers: { 'content-type': 'text/event-stream' } });
}
