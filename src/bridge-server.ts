/**
 * The server side of the official MCP SDK over rooms. Requests that {@link serve} has admitted go to the SDK's server
 * under our own ids, since two callers may use the same one. Its answers and notifications get the caller's ids back.
 *
 * @module
 */
import { answerUnder, tagged } from './bridge-ids.ts';
import { isList, type Place, pageOf, placeIn } from './bridge-pages.ts';
import { type Channel, checkMailbox, isChannel } from './channel.ts';
import {
  classify,
  type DispatchContext,
  INTERNAL_ERROR,
  INTERRUPTED,
  type JsonObject,
  type Layer,
  rpcError,
  rpcNotification,
  rpcResult,
} from './dispatch.ts';
import { checkNumbers, RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json, MAX_TEXT, metaIn } from './frames.ts';
import { type Clock, onAbort, type Transport, transportOf } from './http.ts';
import { REPLY_META } from './line.ts';
import {
  badId,
  calledOff,
  isMcpId,
  keyOf,
  LISTEN_MS,
  MAX_LISTENERS,
  MCP_VERSION,
  partsOf,
  reasonIn,
  refusalOf,
  SERVER_INFO,
  SUBSCRIPTION_ID,
} from './mcp.ts';
import { LOG_LEVEL, Notices, REQUEST_ID } from './notices.ts';
import { checkSigner } from './rooms.ts';
import { readsSpilled, type ServeOptions, serve } from './serve.ts';
import type { Signer } from './signer.ts';
import { SPILL_META } from './spill.ts';
import type { LogLevel } from './tools.ts';
import { NEVER, Seats } from './turns.ts';

/** The member of `params._meta` that names the caller to the server: the DID that signed the request. */
export const FROM_META = 'chat.technocore/from';

/** Options of {@link RoomServerTransport}: those of `serve`, except the ones that say what is served. */
export interface RoomServerOptions
  extends Omit<
    ServeOptions,
    'methods' | 'tools' | 'serverInfo' | 'instructions' | 'pageSize' | 'layer' | 'deadlineMs'
  > {
  /** How long the server may take to answer a request, in milliseconds; default 600,000. */
  deadlineMs?: number | undefined;
  /** How long closing waits for answers, in milliseconds, before it cancels what is left; default 10,000. */
  drainMs?: number | undefined;
}

/** The caller, in the form in which the SDK's handlers get it (`extra.authInfo`). */
export interface RoomAuthInfo {
  /** Empty: there is no token. */
  token: string;
  /** The DID that signed the request. */
  clientId: string;
  /** Empty. */
  scopes: string[];
  /** The room or session that the request came through. */
  extra: { room: string };
}

const DEADLINE_MS = 600_000;
const DRAIN_MS = 10_000;
/** How long the last answers may take to be written, ms. */
const WRITE_MS = 5000;
/** How many subscriptions a key that `allow` let in may have: it may stand for many clients. */
const KNOWN_LISTENERS = 64;

/**
 * A transport for the servers of the official MCP SDK, or anything else that takes and sends MCP messages. Requests to
 * a mailbox or over a channel reach the server as messages of MCP revision 2026-07-28. The caller's DID is in
 * `params._meta["chat.technocore/from"]` and in `extra.authInfo.clientId`.
 *
 * Only requests with all the `_meta` members that the revision requires reach the server, and of the notifications only
 * cancellations of a caller's own request. So no caller can make the server treat the mailbox as one of an older
 * revision.
 *
 * @example
 * ```ts
 * import { fromJsonSchema, McpServer } from '@modelcontextprotocol/server';
 * import { serveStdio } from '@modelcontextprotocol/server/stdio';
 * import { Signer } from 'technocore-rpc';
 * import { RoomServerTransport } from 'technocore-rpc/bridge';
 *
 * const number = { type: 'number' };
 * const json = { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] };
 * const inputSchema = fromJsonSchema<{ a: number; b: number }>(json);
 * function makeServer() {
 *   const server = new McpServer({ name: 'adder', version: '1.0.0' });
 *   server.registerTool('add', { description: 'Adds.', inputSchema }, ({ a, b }) => ({
 *     content: [{ type: 'text', text: `${a + b}` }],
 *   }));
 *   return server;
 * }
 * const transport = new RoomServerTransport('mb-p-adder-2f6b', Signer.generate(), { allow: () => true });
 * serveStdio(makeServer, { transport, legacy: 'reject' });
 * ```
 */
export class RoomServerTransport {
  /** Called once, when the transport has closed. Set by the SDK. */
  onclose?: (() => void) | undefined;
  /** Called with the error that ends the transport. Set by the SDK. */
  onerror?: ((error: Error) => void) | undefined;
  /** Called with each message of a caller. Set by the SDK. */
  onmessage?: ((message: any, extra?: any) => void) | undefined;

  readonly #mailbox: string | Channel;
  readonly #signer: Signer;
  readonly #o: RoomServerOptions;
  readonly #layer: BridgeLayer;
  readonly #stop = new AbortController();
  #served: Promise<void> | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Makes a transport that is not started yet; the server starts it.
   *
   * @param mailbox the mailbox to serve, or a channel
   * @param signer the server's key
   * @param o who may call, how many requests run at a time and so on, as for `serve`
   * @throws `BadName` if the mailbox is not one; `BadKey` if no signer is given
   */
  constructor(mailbox: string | Channel, signer: Signer, o: RoomServerOptions = {}) {
    checkSigner(signer);
    if (!isChannel(mailbox)) checkMailbox(mailbox);
    this.#mailbox = mailbox;
    this.#signer = signer;
    this.#o = o;
    const t = transportOf(o);
    checkNumbers(o, ['deadlineMs', 'drainMs']);
    const { drainMs = DRAIN_MS } = o;
    const deliver: Deliver = (message, extra) => {
      if (!this.onmessage) throw new TechnocoreError('no_server', 'no server is connected to this transport');
      this.onmessage(message, extra);
    };
    this.#layer = new BridgeLayer(t, deliver, {
      drainMs,
      spills: readsSpilled(o),
      perKey: o.allow ? KNOWN_LISTENERS : undefined,
    });
  }

  /**
   * Called by an SDK server that is connected to the transport directly, with the revisions it can negotiate. Warns if
   * 2026-07-28 is not among them, since requests will then fail: use `serveStdio` as in the example.
   */
  setSupportedProtocolVersions(versions: string[]): void {
    if (versions.includes(MCP_VERSION)) return;
    const reason = `to serve ${MCP_VERSION}, connect with serveStdio(() => server, { transport, legacy: 'reject' })`;
    if (this.#o.onEvent) transportOf(this.#o).onEvent({ kind: 'warning', reason });
    else globalThis.console?.warn(`technocore-rpc: ${reason}`);
  }

  /**
   * Starts taking requests. Resolves once no later request can be missed.
   *
   * @throws `TechnocoreError` `started` if it was started before; `closed` if it was closed meanwhile
   * @throws the signal's reason if it has aborted; what `serve` throws while it starts
   */
  async start(): Promise<void> {
    if (this.#served) throw new TechnocoreError('started', 'the transport was already started');
    const { signal, onReady, deadlineMs = DEADLINE_MS, drainMs = DRAIN_MS, ...o } = this.#o;
    signal?.throwIfAborted();
    const forget = onAbort(signal, () => void this.close());
    let isReady = false;
    await new Promise<void>((resolve, reject) => {
      this.#served = serve(this.#mailbox, this.#signer, {
        ...o,
        deadlineMs,
        // Leaves time to write the answers to what is cancelled then.
        drainMs: drainMs + WRITE_MS,
        layer: () => this.#layer,
        tools: new Map(),
        signal: this.#stop.signal,
        onReady: () => {
          onReady?.();
          isReady = true;
          resolve();
        },
      })
        .catch((cause) => {
          if (!isReady) throw cause;
          this.onerror?.(cause instanceof Error ? cause : new Error(String(cause)));
        })
        .finally(forget);
      this.#served.then(() => {
        if (!isReady) reject(new TechnocoreError('closed', 'the transport was closed while it started'));
        // Serving may have ended without a call of `close`.
        void this.close();
      }, reject);
    });
  }

  /**
   * Sends a message of the server, an answer or a notification, to the caller that it is for. Resolves before it is
   * written.
   *
   * @param message the message
   * @param o `relatedRequestId`: the request that a notification belongs to
   * @throws `TechnocoreError` `not_supported` if the message is a request: MCP 2026-07-28 has none from servers
   */
  async send(message: any, o: { relatedRequestId?: string | number | undefined } = {}): Promise<void> {
    if (classify(message) === 'request') {
      throw new TechnocoreError(
        'not_supported',
        'a server cannot send requests over a room; it asks its client with an answer (input_required)',
      );
    }
    this.#layer.send(message, o.relatedRequestId);
  }

  /**
   * How many requests the server has not answered yet. Subscriptions do not count, since their answer ends them.
   */
  get unanswered(): number {
    return this.#layer.unanswered;
  }

  /**
   * Stops taking requests. Resolves when those under way are answered: by the server, or as interrupted after
   * `drainMs`.
   */
  close(): Promise<void> {
    return (this.#closing ??= (async () => {
      this.#stop.abort(new TechnocoreError('closed', 'the transport was closed'));
      await this.#served?.catch(() => {});
      this.#layer.drained();
      this.onclose?.();
    })());
  }
}

/** A request that the server has not answered yet. */
interface Pending {
  readonly from: string;
  /** The caller's id for it. */
  readonly id: string | number;
  readonly method: string;
  readonly isListening: boolean;
  readonly wantsLogs: boolean;
  /** For a list: where the page starts. */
  readonly place: Place | undefined;
  /** For a list: maximum characters of the page; callers that read answers from notes can have it whole. */
  readonly limit: number;
  readonly context: DispatchContext;
  readonly notices: Notices;
  settle(answer: Json | undefined): void;
}

type Deliver = (message: JsonObject, extra: { authInfo: RoomAuthInfo }) => void;

interface LayerOptions {
  /** How long closing waits for answers, ms. */
  readonly drainMs: number;
  /** Whether long requests are read. */
  readonly spills: boolean;
  /** How many subscriptions one key may have; undefined: as few as an unknown caller. */
  readonly perKey: number | undefined;
}

/** Passes all of MCP to the one server behind the transport. */
class BridgeLayer implements Layer {
  readonly #t: Transport;
  readonly #clock: Clock;
  readonly #deliver: Deliver;
  readonly #o: LayerOptions;
  /** The pending requests, by the ids that the server knows. */
  readonly #pending = new Map<number, Pending>();
  /** Those ids, by caller and the caller's own id. */
  readonly #inner = new Map<string, number>();
  /** The seats of those that are subscriptions. */
  readonly #seats: Seats;
  #count = 0;
  #serverInfo: Json | undefined;
  #isClosing = false;
  #isOver = false;
  readonly #drained = new AbortController();

  constructor(t: Transport, deliver: Deliver, o: LayerOptions) {
    this.#t = t;
    this.#clock = t.clock;
    this.#deliver = deliver;
    this.#o = o;
    this.#seats = new Seats([MAX_LISTENERS[0], o.perKey ?? MAX_LISTENERS[1]]);
  }

  owns(): boolean {
    return true;
  }

  /** True for everything: nothing is known here about what the server does. */
  acts(): boolean {
    return true;
  }

  staysOpen({ method }: JsonObject): boolean {
    return method === 'subscriptions/listen';
  }

  /** True for requests that only read. */
  idempotent({ method }: JsonObject): boolean {
    return REPEATABLE.has(method as string);
  }

  cancels(frame: JsonObject): string | number | undefined {
    return calledOff(frame);
  }

  notification(frame: JsonObject, context: DispatchContext): void {
    const outer = calledOff(frame);
    const id = outer === undefined ? undefined : this.#inner.get(keyOf(context, outer));
    if (id !== undefined) this.#callOff(id, reasonIn(frame));
  }

  request(frame: JsonObject, context: DispatchContext): Json | Promise<Json | undefined> {
    const { id, method } = frame;
    if (!isMcpId(id)) return badId();
    try {
      const { params, meta } = partsOf(frame, this.#inner.has(keyOf(context, id)));
      const isListening = method === 'subscriptions/listen';
      if (this.#isOver || (this.#isClosing && isListening)) return interrupted(id);
      return this.#pass(id, method as string, params, meta, context);
    } catch (error) {
      if (!(error instanceof RpcError)) throw error;
      return refusalOf(id, error);
    }
  }

  get unanswered(): number {
    let count = 0;
    for (const { isListening } of this.#pending.values()) if (!isListening) count++;
    return count;
  }

  /** Ends subscriptions now, and after `drainMs` the requests that are still not answered. */
  close(): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    for (const [id, one] of this.#pending) if (one.isListening) this.#endListening(id, one);
    const interrupt = (): void => {
      this.#isOver = true;
      for (const [id, one] of this.#pending) {
        one.notices.end(true);
        one.settle(interrupted(one.id));
        this.#tellCancelled(id, 'the server is shutting down', one);
      }
    };
    this.#clock.sleep(this.#o.drainMs, this.#drained.signal).then(interrupt, () => {});
  }

  /** Called when everything has been answered. */
  drained(): void {
    this.#drained.abort();
  }

  /** Takes a message of the server. */
  send(message: JsonObject, related: string | number | undefined): void {
    const kind = classify(message);
    const one = kind === 'response' ? this.#pending.get(message['id'] as number) : undefined;
    if (!one) {
      const { method } = message;
      if (kind !== 'notification' || !this.#notice(message, related)) {
        this.#t.onEvent({ kind: 'skipped', method, reason: 'the server sent a message that is for no caller' });
      }
      return;
    }
    const answer = this.#checked(one, message);
    const result = answer['result'];
    if (isObject(result)) {
      const meta = metaIn(result);
      this.#serverInfo = meta[SERVER_INFO] ?? this.#serverInfo;
      // The answer to `server/discover` also says that we read long requests.
      if (one.method === 'server/discover' && this.#o.spills) {
        answer['result'] = { ...(result as JsonObject), _meta: { ...meta, [SPILL_META]: true } };
      }
    }
    one.notices.end(false);
    one.settle(answer);
  }

  /** The answer under the caller's id. A malformed one becomes an error. */
  #checked(one: Pending, message: JsonObject): JsonObject {
    try {
      const answer = answerUnder(one.id, message);
      return one.place ? pageOf(one.method, answer, one.place, one.limit) : answer;
    } catch (error) {
      if (error instanceof RpcError) return rpcError(one.id, error.rpc.code, error.rpc.message);
      one.context.onError?.(error, one.method);
      return rpcError(one.id, INTERNAL_ERROR, 'Internal error');
    }
  }

  #pass(
    outer: string | number,
    method: string,
    params: JsonObject,
    given: JsonObject,
    context: DispatchContext,
  ): Promise<Json | undefined> {
    const { from = '', room = '', rank = NEVER, emit, signal } = context;
    const { [REPLY_META]: _, [SPILL_META]: readsSpilled, ...meta } = given;
    const place = isList(method) ? placeIn(params) : undefined;
    const id = ++this.#count;
    const token = meta['progressToken'] !== undefined && { progressToken: id };
    const key = keyOf(context, outer);
    const isListening = method === 'subscriptions/listen';
    const giveUp = (): void => this.#endListening(id, this.#pending.get(id)!);
    const leave = isListening ? this.#seats.take({ from, rank }, giveUp) : () => {};
    if (!leave) throw new RpcError(INTERNAL_ERROR, 'Too many subscriptions');
    return new Promise((resolve) => {
      const over = new AbortController();
      const forget = onAbort(signal, () => this.#callOff(id, 'its time is up'));
      const one: Pending = {
        from,
        id: outer,
        method,
        isListening,
        wantsLogs: meta[LOG_LEVEL] !== undefined,
        place,
        limit: readsSpilled === true ? Number.POSITIVE_INFINITY : (context.limit ?? MAX_TEXT),
        context,
        notices: new Notices(this.#clock, outer, given, (frame) => emit?.(frame), context.limit ?? MAX_TEXT),
        settle: (answer) => {
          forget();
          leave();
          over.abort();
          this.#pending.delete(id);
          this.#inner.delete(key);
          resolve(answer);
        },
      };
      this.#pending.set(id, one);
      this.#inner.set(key, id);
      if (isListening)
        this.#clock.sleep(LISTEN_MS, over.signal).then(
          () => this.#endListening(id, one),
          () => {},
        );
      const authInfo: RoomAuthInfo = { token: '', clientId: from, scopes: [], extra: { room } };
      const message: JsonObject = { ...params, _meta: { ...meta, ...token, [FROM_META]: from } };
      if (place && place.cursor === undefined) delete message['cursor'];
      else if (place) message['cursor'] = place.cursor!;
      try {
        this.#deliver({ jsonrpc: '2.0', id, method, params: message }, { authInfo });
      } catch (error) {
        context.onError?.(error, method);
        one.settle(rpcError(outer, INTERNAL_ERROR, 'Internal error'));
      }
    });
  }

  /** Cancels a request at the server, and sends no answer. */
  #callOff(id: number, reason: string | undefined): void {
    const one = this.#pending.get(id);
    if (!one) return;
    one.notices.end(true);
    one.settle(undefined);
    this.#tellCancelled(id, reason, one);
  }

  #tellCancelled(id: number, reason: string | undefined, { from, context }: Pending): void {
    const params = { requestId: id, ...(reason !== undefined && { reason }) };
    const authInfo: RoomAuthInfo = { token: '', clientId: from, scopes: [], extra: { room: context.room ?? '' } };
    try {
      this.#deliver(rpcNotification('notifications/cancelled', params), { authInfo });
    } catch (error) {
      context.onError?.(error, 'notifications/cancelled');
    }
  }

  #endListening(id: number, one: Pending): void {
    const tag = { [SUBSCRIPTION_ID]: one.id };
    const reason = 'the subscription has ended';
    one.context.emit?.(rpcNotification('notifications/cancelled', { requestId: one.id, reason, _meta: tag }));
    const serverInfo = this.#serverInfo === undefined ? {} : { [SERVER_INFO]: this.#serverInfo };
    one.settle(rpcResult(one.id, { resultType: 'complete', _meta: { ...tag, ...serverInfo } }));
    this.#tellCancelled(id, reason, one);
  }

  /** Passes a notification of the server to the caller that it is for. @returns whether there is one */
  #notice(frame: JsonObject, related: string | number | undefined): boolean {
    const params = isObject(frame['params']) ? (frame['params'] as JsonObject) : {};
    const meta = metaIn(params);
    switch (frame['method']) {
      case 'notifications/progress': {
        const { progressToken, progress, total, message } = params;
        const one = this.#pending.get(progressToken as number);
        one?.notices.progress(progress as number, numberIn(total), textIn(message));
        return one !== undefined;
      }
      case 'notifications/message': {
        const one = this.#loggedBy(meta[REQUEST_ID] ?? related);
        one?.notices.log(params['level'] as LogLevel, params['data'], textIn(params['logger']));
        return one !== undefined;
      }
      case 'notifications/cancelled': {
        const one = this.#pending.get(params['requestId'] as number);
        if (!one?.isListening) return false;
        one.context.emit?.(
          rpcNotification('notifications/cancelled', tagged({ ...params, requestId: one.id }, one.id)),
        );
        one.settle(undefined);
        return true;
      }
      default: {
        const one = this.#pending.get(meta[SUBSCRIPTION_ID] as number);
        if (!one?.isListening) return false;
        one.context.emit?.(rpcNotification(frame['method'] as string, tagged(params, one.id)));
        return true;
      }
    }
  }

  /** The request that a log line is for: the one that it names, or if only one caller asked for logs, that caller's. */
  #loggedBy(related: unknown): Pending | undefined {
    if (related !== undefined) return this.#pending.get(related as number);
    const wanting = [...this.#pending.values()].filter((one) => one.wantsLogs);
    return wanting.every((one) => one.from === wanting[0]?.from) ? wanting[0] : undefined;
  }
}

const interrupted = (id: string | number): Json =>
  rpcError(id, INTERRUPTED, 'Interrupted: the server shut down; the request may or may not have been executed');

const REPEATABLE: ReadonlySet<string> = new Set([
  'server/discover',
  'tools/list',
  'prompts/get',
  'prompts/list',
  'resources/list',
  'resources/read',
  'resources/templates/list',
  'completion/complete',
  'subscriptions/listen',
]);

const numberIn = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
const textIn = (value: unknown): string | undefined => (typeof value === 'string' ? value : undefined);
