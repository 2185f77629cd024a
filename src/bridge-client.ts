/**
 * The client side of the official MCP SDK over rooms. What its `Client` sends goes out as calls under our own ids, so
 * that any number of clients can share one reply mailbox and one held read. Answers get the client's ids back.
 *
 * @module
 */
import { answerUnder, tagged } from './bridge-ids.ts';
import { toBase64url } from './bytes.ts';
import { notify } from './call.ts';
import type { Channel } from './channel.ts';
import { nextTurn } from './clock.ts';
import { converse, type Taken } from './conversation.ts';
import { classify, type Id, type JsonObject, rpcError, rpcNotification } from './dispatch.ts';
import { checkNumbers, RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json, metaIn } from './frames.ts';
import { onAbort, type Transport, transportOf } from './http.ts';
import { type CallOptions, checkEnds } from './line.ts';
import { SUBSCRIPTION_ID } from './mcp.ts';
import { heedLong, readsLong } from './mcp-peer.ts';
import { LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';

/**
 * The code (1006) of the JSON-RPC error that a {@link RoomClientTransport} makes for a request whose answer is lost.
 * Whether the request was executed is not known; `data.reason` is the code of the error behind it, such as
 * `call_timeout`.
 */
export const LOST = 1006;

/** How long a request may stay unanswered, ms, if the client does not give up sooner. */
const TIMEOUT_MS = 3_600_000;
/** The same for `server/discover`: short, so that the client learns of a failure while its host still waits. */
const DISCOVER_MS = 25_000;
/** The same for a subscription. */
const LISTEN_MS = 604_800_000;
/** How long the answer to a subscription may take after the notification that it has ended, ms. */
const GRACE_MS = 2000;
/** How long closing waits for the cancellations to be written, ms. */
const CLOSE_MS = 3000;
/** How many requests are cancelled at the server when a client closes: each takes a write. */
const MAX_CANCELS = 8;

/** Options of {@link RoomClientTransport}. */
export interface RoomClientOptions extends Omit<CallOptions, 'id' | 'batch' | 'timeoutMs'> {
  /**
   * How long a request may wait for its answer, in milliseconds, if the client does not give up sooner; default
   * 3,600,000.
   */
  timeoutMs?: number | undefined;
}

/** A request of the client that is not answered yet. */
interface Pending {
  /** The client's id for it. */
  readonly id: Id;
  /** Our id, under which the server knows it; undefined until it is written. */
  minted?: string;
  /** Our progress token, which the server uses. */
  readonly token: string;
  /** The client's progress token. */
  readonly ownToken: Json | undefined;
  readonly logs: boolean;
  readonly isListening: boolean;
  readonly stop: AbortController;
  written: boolean;
  /** The notification that the server ended it, kept in case no answer follows. */
  ended?: JsonObject;
}

/**
 * A transport for the `Client` of the official MCP SDK, to a server behind a room. The client must speak MCP revision
 * 2026-07-28: set `versionNegotiation: { mode: { pin: '2026-07-28' } }`.
 *
 * If a request cannot be written, `send` rejects with an error of this library, and so does the client's request. If a
 * request was written and its answer is lost (messages of the reply mailbox were lost, or no answer came), the client
 * gets an error response with code {@link LOST}, and may send the request again. The client takes every error response
 * to `server/discover` for one about revisions, and does not report it. An error there that is about something else
 * (denied, busy, lost) therefore rejects `send` with an `RpcError`, and so `connect`.
 *
 * @example
 * ```ts
 * import { Client } from '@modelcontextprotocol/client';
 * import { Signer } from 'technocore-rpc';
 * import { RoomClientTransport } from 'technocore-rpc/bridge';
 *
 * const client = new Client({ name: 'ada', version: '1' }, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
 * await client.connect(new RoomClientTransport('mb-p-adder-2f6b', Signer.generate(), { replyTo: 'mb-p-ada-0c31' }));
 * console.log((await client.listTools()).tools.map(({ name }) => name)); // [ 'add' ]
 * await client.close();
 * ```
 */
export class RoomClientTransport {
  /** Called once, when the transport has closed. Set by the SDK. */
  onclose?: (() => void) | undefined;
  /** Called with errors that do not close the transport, such as a lost answer. Set by the SDK. */
  onerror?: ((error: Error) => void) | undefined;
  /**
   * Called with each message of the server, one per turn of the event loop: of two in one turn, the SDK would process
   * the second first. Set by the SDK.
   */
  onmessage?: ((message: any) => void) | undefined;

  readonly #t: Transport;
  readonly #to: string | Channel;
  readonly #signer: Signer;
  readonly #o: RoomClientOptions;
  readonly #pending = new Map<string, Pending>();
  readonly #inbound: JsonObject[] = [];
  #state: 'new' | 'open' | 'closed' = 'new';
  #forget: (() => void) | undefined;

  /**
   * Makes a transport that is not started yet; the client starts it.
   *
   * @param to the server's mailbox, its DID, or a channel
   * @param signer the client's key
   * @param o `replyTo`: the client's own mailbox, required unless `to` is a channel. Other options as for `call`
   * @throws `BadName` if a mailbox is not one, or `replyTo` is missing
   * @throws `BadKey` if no signer is given
   */
  constructor(to: string | Channel, signer: Signer, o: RoomClientOptions = {}) {
    checkSigner(signer);
    this.#t = transportOf(o);
    checkNumbers(o, ['timeoutMs']);
    checkEnds(to, o);
    this.#to = to;
    this.#signer = signer;
    this.#o = o;
  }

  /**
   * Starts the transport. The client calls it in `connect`.
   *
   * @throws `TechnocoreError` `started` if it was started before; the signal's reason if it has aborted
   */
  async start(): Promise<void> {
    if (this.#state !== 'new') throw new TechnocoreError('started', 'the transport was already started');
    this.#o.signal?.throwIfAborted();
    this.#state = 'open';
    this.#forget = onAbort(this.#o.signal, () => void this.close());
  }

  /**
   * Sends a message of the client. Resolves once it is written, or for `server/discover` once that is answered.
   *
   * @param message a JSON-RPC request or notification
   * @throws `TechnocoreError` `closed` if the transport is not open; `duplicate_id` if a request with the same id is
   * still waiting; `bad_frame` if the message is neither a request nor a notification
   * @throws what `call` throws before a request is written
   * @throws `RpcError` if `server/discover` is answered with an error that is not about revisions
   */
  async send(message: any): Promise<void> {
    if (this.#state !== 'open') throw new TechnocoreError('closed', 'the transport is not open');
    switch (classify(message)) {
      case 'request':
        return this.#ask(message);
      case 'notification':
        return this.#notify(message);
      default:
        throw new TechnocoreError('bad_frame', 'a client sends requests and notifications');
    }
  }

  /**
   * Closes the transport. Pending requests are abandoned, and cancelled at the server; this takes at most 3 seconds.
   */
  async close(): Promise<void> {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#forget?.();
    const written = [...this.#pending.values()].filter((one) => one.written);
    for (const one of this.#pending.values()) one.stop.abort(new TechnocoreError('closed', 'the transport was closed'));
    const cancels = written.slice(-MAX_CANCELS).map((one) => this.#cancel(one, 'the client is gone'));
    this.#pending.clear();
    const over = new AbortController();
    await Promise.race([Promise.all(cancels), this.#t.clock.sleep(CLOSE_MS, over.signal).catch(() => {})]);
    over.abort();
    this.onclose?.();
  }

  #ask({ id, method, params }: { id: Id; method: string; params?: JsonObject }): Promise<void> {
    const key = JSON.stringify(id);
    if (this.#pending.has(key)) throw new TechnocoreError('duplicate_id', 'a request with this id is still waiting');
    const given = metaIn(params);
    const ownToken = given['progressToken'];
    const one: Pending = {
      id,
      token: toBase64url(this.#t.random(9)),
      ownToken,
      logs: given[LOG_LEVEL] !== undefined,
      isListening: method === 'subscriptions/listen',
      stop: new AbortController(),
      written: false,
    };
    this.#pending.set(key, one);
    const _meta = { ...given, ...(ownToken !== undefined && { progressToken: one.token }) };
    const o = { ...this.#o, signal: one.stop.signal, timeoutMs: this.#timeoutOf(method) };
    return new Promise((resolve, reject) => {
      const isFirst = method === 'server/discover';
      const answered = (frame: JsonObject): void => {
        const refusal = isFirst ? refusalIn(frame) : undefined;
        if (refusal) reject(refusal);
        else this.#deliver(frame);
      };
      converse(this.#to, method, { ...params, _meta }, this.#signer, o, {
        take: (frame, kind) => {
          if (kind === 'notification') return this.#notice(one, frame);
          const answer = answerUnder(id, frame);
          heedLong(this.#t, this.#to, answer['result']);
          answered(answer);
          return 'done';
        },
        spills: readsLong(this.#t, this.#to),
        begin: (minted) => {
          one.minted = minted;
        },
        written: () => {
          one.written = true;
          if (!isFirst) resolve();
        },
      })
        .then(resolve, (cause) => {
          if (one.stop.signal.aborted) resolve();
          else if (one.written) answered(this.#lost(one, cause));
          else reject(cause);
        })
        .finally(() => {
          if (this.#pending.get(key) === one) this.#pending.delete(key);
        });
    });
  }

  #timeoutOf(method: string): number {
    const { timeoutMs = TIMEOUT_MS } = this.#o;
    if (method === 'subscriptions/listen') return LISTEN_MS;
    return method === 'server/discover' ? Math.min(timeoutMs, DISCOVER_MS) : timeoutMs;
  }

  /** Takes a notification that may belong to a request. */
  #notice(one: Pending, { method, params }: JsonObject): Taken {
    if (one.minted === undefined || !isObject(params)) return undefined;
    const meta = metaIn(params);
    const isOurs = meta[REQUEST_ID] === one.minted;
    const _meta = isOurs ? { ...meta, [REQUEST_ID]: one.id } : meta;
    const hand = (restored: JsonObject): Taken => {
      const frame = rpcNotification(method as string, { ...(params as JsonObject), ...restored });
      if (method === 'notifications/cancelled') {
        one.ended = frame;
        return GRACE_MS;
      }
      this.#deliver(frame);
      return 'alive';
    };
    switch (method) {
      case 'notifications/progress':
        if (params['progressToken'] !== one.token || one.ownToken === undefined) return undefined;
        return hand({ progressToken: one.ownToken, _meta });
      case 'notifications/message':
        if (isOurs) return hand({ _meta });
        // From a server that does not say which request it belongs to: passed on once, if any request asked for logs.
        if (meta[REQUEST_ID] === undefined && this.#firstWithLogs() === one) hand({});
        return undefined;
      case 'notifications/cancelled':
        return one.isListening && params['requestId'] === one.minted
          ? hand(tagged({ ...(params as JsonObject), requestId: one.id }, one.id))
          : undefined;
      default:
        return meta[SUBSCRIPTION_ID] === one.minted ? hand(tagged(params as JsonObject, one.id)) : undefined;
    }
  }

  #firstWithLogs(): Pending | undefined {
    for (const one of this.#pending.values()) if (one.logs && one.written) return one;
    return undefined;
  }

  async #notify({ method, params }: { method: string; params?: JsonObject }): Promise<void> {
    if (method !== 'notifications/cancelled') return notify(this.#to, method, params, this.#signer, this.#o);
    const key = JSON.stringify(params?.['requestId']);
    const one = this.#pending.get(key);
    if (!one) return;
    this.#pending.delete(key);
    one.stop.abort(new TechnocoreError('cancelled', 'the client cancelled the request'));
    const reason = params?.['reason'];
    // A request that is not yet written never will be: there is nothing to cancel.
    if (one.written) await this.#cancel(one, typeof reason === 'string' ? reason.slice(0, 200) : undefined);
  }

  /** Tells the server that nobody is waiting for the answer any more. */
  async #cancel({ minted }: Pending, reason: string | undefined): Promise<void> {
    const { signal: _, ...o } = this.#o;
    const params = { requestId: minted!, ...(reason !== undefined && { reason }) };
    try {
      await notify(this.#to, 'notifications/cancelled', params, this.#signer, o);
    } catch (cause) {
      this.#t.onEvent({ kind: 'uncancelled', id: minted, cause });
    }
  }

  /** The frame that ends a request whose answer will not come. The client can ask again with a new request. */
  #lost(one: Pending, cause: unknown): JsonObject {
    if (one.ended) return one.ended;
    const { code: reason, message } = TechnocoreError.is(cause) ? cause : { code: 'failed', message: String(cause) };
    this.onerror?.(cause instanceof Error ? cause : new Error(message));
    if (one.minted !== undefined && reason !== 'bad_response') void this.#cancel(one, 'the answer may be lost');
    return rpcError(one.id, LOST, `The answer is lost: ${message}`, { reason });
  }

  #deliver(frame: JsonObject): void {
    this.#inbound.push(frame);
    if (this.#inbound.length === 1) nextTurn(this.#next);
  }

  readonly #next = (): void => {
    const frame = this.#inbound[0]!;
    try {
      if (this.#state !== 'closed') this.onmessage?.(frame);
    } catch (cause) {
      this.#t.onEvent({ kind: 'handler-error', method: frame['method'], error: cause });
    }
    // The next message waits until the client has done what it deferred to its next turn.
    this.#inbound.shift();
    if (this.#inbound.length > 0) nextTurn(this.#next);
  };
}

/** The error of an answer if its code is one of this library, which are above 0, and not one of JSON-RPC or MCP. */
function refusalIn({ error }: JsonObject): RpcError | undefined {
  const { code, message, data } = isObject(error) ? error : {};
  return typeof code === 'number' && code > 0 ? new RpcError(code, String(message), data) : undefined;
}
