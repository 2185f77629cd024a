/**
 * A2A for those who use the published SDK: its request handler behind a mailbox, and rooms as a transport of its client.
 * Both satisfy the SDK by shape; the SDK itself is not needed here.
 *
 * @module
 */
import { A2A_BINDING } from './a2a-card.ts';
import { isInterrupted, isTerminal, stateOf } from './a2a-states.ts';
import { MAX_STREAMS, STREAM_MS } from './a2a-types.ts';
import { checkMailbox } from './channel.ts';
import { type Clock, eitherOf, onAbort, systemClock } from './clock.ts';
import { converse } from './conversation.ts';
import { type CallContext, type Handler, type JsonObject, resultOf, staysOpen } from './dispatch.ts';
import { BadName, checkObject, RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { orAbort } from './http.ts';
import type { CallOptions } from './line.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';
import { Seats } from './turns.ts';

/** Methods with one answer, and with many, of version 1.0 and 0.3. */
const PLAIN = [
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
const STREAMS = ['SendStreamingMessage', 'SubscribeToTask', 'message/stream', 'tasks/resubscribe'];

/** How long a stream may be silent, ms. */
const SILENCE_MS = 600_000;

/** Whether a result is the last of its stream: a message, or a state in which the task is over or waits for the caller. */
function isLast(result: unknown): boolean {
  if (!isObject(result)) return true;
  if (result['message'] !== undefined || result['kind'] === 'message' || result['final'] === true) return true;
  const holder = result['statusUpdate'] ?? result['task'] ?? (result['kind'] === 'task' ? result : undefined);
  const status = isObject(holder) ? holder['status'] : undefined;
  const state = isObject(status) ? stateOf(status['state']) : undefined;
  return state !== undefined && (isTerminal(state) || isInterrupted(state));
}

// --- the agent's side --------------------------------------------------------------------------------------------

/** What is needed of the SDK's `JsonRpcTransportHandler`. */
export interface A2ARequestHandler<Context> {
  /** Takes a JSON-RPC request; gives its response, or one after the other those of a stream. */
  handle(request: Record<string, unknown>, context: Context): Promise<object>;
}

/**
 * The methods of an agent made with the published A2A SDK, for `serve`. Who asks is the key that signed the request: name it
 * in the context, since the SDK shows tasks only to the user who made them. A request that comes twice runs once, as
 * `serve` has it.
 *
 * @example
 * ```ts
 * const handler = new JsonRpcTransportHandler(new DefaultRequestHandler(card, new InMemoryTaskStore(), executor));
 * const methods = a2aHandlerMethods(
 *   handler,
 *   (from) => new ServerCallContext({ user: { isAuthenticated: true, userName: from }, requestedVersion: '1.0' }),
 * );
 * await serve('mb-p-agent', signer, { methods });
 * ```
 * @param handler the SDK's `JsonRpcTransportHandler`, or anything that handles the same
 * @param contextOf makes the SDK's `ServerCallContext` of the caller's DID
 * @param o `clock`: by which a stream ends after an hour
 */
export function a2aHandlerMethods<Context>(
  handler: A2ARequestHandler<Context>,
  contextOf: (from: string, call: CallContext) => Context,
  o: { clock?: Clock } = {},
): Map<string, Handler> {
  const { clock = systemClock } = checkObject(o);
  const streams = new Seats(MAX_STREAMS);
  const handle = (method: string, params: Json, call: CallContext): Promise<object> =>
    handler.handle({ jsonrpc: '2.0', id: 1, method, params }, contextOf(call.from, call));
  const methods = new Map<string, Handler>();
  for (const method of PLAIN) {
    methods.set(method, async (params, call) => {
      const answer = await handle(method, params, call);
      if (!isStream(answer)) return resultIn(answer);
      await answer.return?.(undefined);
      throw new TechnocoreError('bad_response', `${method} has one answer`);
    });
  }
  for (const method of STREAMS) {
    const run = async function* (params: Json, call: CallContext): AsyncGenerator<Json, Json> {
      const over = new AbortController();
      const release = streams.take(call, () => over.abort());
      if (!release) throw new RpcError(1002, 'Busy: too many streams', { retryAfterMs: 10_000 });
      // Nobody sees a reader go.
      clock.sleep(STREAM_MS, over.signal).then(
        () => over.abort(),
        () => {},
      );
      const forget = onAbort(call.signal, () => over.abort());
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

/** @throws RpcError the response is an error */
const resultIn = (response: unknown): Json => resultOf(JSON.parse(JSON.stringify(response)) as JsonObject);

/** The results of a stream, the last of them returned. */
async function* results(answers: object, signal: AbortSignal): AsyncGenerator<Json, Json> {
  if (!isStream(answers)) return resultIn(answers);
  const ended = new RpcError(1001, 'Interrupted: the stream ends here, and the task goes on');
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
    // It may wait for its task for ever, and so may this.
    answers.return(undefined).catch(() => {});
  }
}

// --- the caller's side -------------------------------------------------------------------------------------------

/** The SDK's `JsonRpcTransportFactory`. */
export type JsonRpcTransportFactory<Transport, Card> = new (o: {
  fetchImpl: typeof fetch;
}) => { create(url: string, card: Card): Promise<Transport> };

/** Options of {@link RoomTransportFactory}. */
export interface RoomTransportOptions extends Omit<CallOptions, 'id' | 'batch'> {
  /** Our own mailbox. */
  replyTo: string;
}

/**
 * Rooms as a transport of the published A2A SDK's client: an agent whose card names {@link A2A_BINDING} is called through its
 * mailbox. The SDK's own `JsonRpcTransportFactory` writes and reads what goes through it.
 *
 * @example
 * ```ts
 * const factory = new ClientFactory({ transports: [new RoomTransportFactory(JsonRpcTransportFactory, signer, { replyTo: 'mb-p-me' })] });
 * const client = await factory.createFromAgentCard(card);
 * ```
 */
export class RoomTransportFactory<Transport, Card> {
  readonly #JsonRpc: JsonRpcTransportFactory<Transport, Card>;
  readonly #signer: Signer;
  readonly #o: RoomTransportOptions;

  /**
   * @param jsonRpc the SDK's class `JsonRpcTransportFactory`
   * @param o `base`: the only service that a card may name; default: whichever it names
   * @throws BadKey, BadName no signer, no mailbox
   */
  constructor(jsonRpc: JsonRpcTransportFactory<Transport, Card>, signer: Signer, o: RoomTransportOptions) {
    checkSigner(signer);
    checkMailbox(checkObject(o).replyTo);
    this.#JsonRpc = jsonRpc;
    this.#signer = signer;
    this.#o = o;
  }

  /** The binding that cards name for agents behind mailboxes. */
  get protocolName(): string {
    return A2A_BINDING;
  }

  /**
   * The transport to one agent.
   *
   * @param url its mailbox as the card has it, `https://<service>/r/<mailbox>`
   * @throws BadName no mailbox, or one of another service than the option `base`
   */
  async create(url: string, card: Card): Promise<Transport> {
    const [, base, mailbox] = /^(https?:\/\/[^?#]+?)\/r\/([^/?#]+)$/.exec(String(url)) ?? [];
    if (base === undefined) throw new BadName(String(url), 'a mailbox has a URL like https://<service>/r/<mailbox>');
    checkMailbox(mailbox!);
    const own = this.#o.base?.replace(/\/+$/, '');
    if (own !== undefined && own !== base) throw new BadName(url, `this client uses the service ${own} alone`);
    const carry = (_: unknown, init: RequestInit = {}): Promise<Response> =>
      carried(mailbox!, String(init.body), this.#signer, {
        ...this.#o,
        base,
        ...(init.signal && { signal: init.signal }),
      });
    return new this.#JsonRpc({ fetchImpl: carry as typeof fetch }).create(url, card);
  }
}

/** One HTTP request of the SDK's, carried through rooms; its answer is what an HTTP server would give. */
async function carried(mailbox: string, body: string, signer: Signer, o: RoomTransportOptions): Promise<Response> {
  const { id, method, params } = JSON.parse(body) as { id: Json; method: string; params?: Json };
  if (!STREAMS.includes(method)) {
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
    cancel: () => left.abort(new TechnocoreError('left', 'nobody listens to the stream any more')),
  });
  // A refusal is an answer of its own, as it is over HTTP.
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
