/**
 * The asking end of the official MCP SDK over rooms: what its `Client` sends goes out as calls of ours, under ids of ours, so
 * that any number of clients share one reply mailbox and one parked read; what comes back gets the client's own ids again.
 *
 * @module
 */
import { answerUnder, tagged } from './bridge-ids.ts';
import { toBase64url } from './bytes.ts';
import { notify } from './call.ts';
import { type Channel, checkMailbox, isChannel } from './channel.ts';
import { nextTurn } from './clock.ts';
import { converse, type Taken } from './conversation.ts';
import { classify, type Id, type JsonObject, rpcError, rpcNotification } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json, metaIn } from './frames.ts';
import { onAbort, type Transport, transportOf } from './http.ts';
import { type CallOptions, replyToOf } from './line.ts';
import { SUBSCRIPTION_ID } from './mcp.ts';
import { heedLong, readsLong } from './mcp-peer.ts';
import { isDid } from './names.ts';
import { LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';

/** Local, beside those that a server answers: whether the request was executed is not known; `data.reason` says why. */
export const LOST = 1006;

/** How long a request may stay unanswered, ms, if the client does not give up sooner. */
const TIMEOUT_MS = 3_600_000;
/** The same for the first of all requests, so that whoever calls into a void learns why, while a host still waits. */
const DISCOVER_MS = 25_000;
/** The same for a subscription. */
const LISTEN_MS = 604_800_000;
/** How long after the word that a subscription is torn down its answer may still come, ms. */
const GRACE_MS = 2000;
/** How long closing waits for the word to the server that nobody waits any more, ms. */
const CLOSE_MS = 3000;
/** Requests that the server is told of when a client closes; each is a write. */
const MAX_TOLD = 8;

/** Options of {@link RoomClientTransport}. */
export interface RoomClientOptions extends Omit<CallOptions, 'id' | 'batch' | 'timeoutMs'> {
  /** How long a request may wait, ms, if the client does not give up sooner; default an hour. */
  timeoutMs?: number;
}

/** A request of the client's that is not answered. */
interface Pending {
  /** As the client named it. */
  readonly id: Id;
  /** Under which the server knows it; undefined until it is written. */
  minted?: string;
  /** What the server calls its progress, and what the client does. */
  readonly token: string;
  readonly ownToken: Json | undefined;
  readonly logs: boolean;
  readonly isListening: boolean;
  readonly stop: AbortController;
  written: boolean;
  /** The word that it was torn down, kept for the case that no answer follows. */
  torn?: JsonObject;
}

/**
 * A transport for the `Client` of the official MCP SDK, whose servers may be far away behind a room. The client must speak
 * revision 2026-07-28: `versionNegotiation: { mode: { pin: '2026-07-28' } }`.
 *
 * A request that cannot be written rejects `send`, and so the client's request, with the error of ours that says why. One
 * that was written and whose answer is lost (a gap in the reply room, no answer at all) gets an error answer with the code
 * {@link LOST}; the client may ask again, which is a request of its own. The client takes every error answer to its first
 * question, `server/discover`, for a word about revisions, and tells nobody what it was: so an error there that says nothing
 * of them (denied, busy, lost) rejects `send`, and with it `connect`, as an {@link RpcError}.
 *
 * @example
 * ```ts
 * const client = new Client({ name: 'me', version: '1' }, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
 * await client.connect(new RoomClientTransport('mb-p-server', signer, { replyTo: 'mb-p-me' }));
 * console.log(await client.listTools());
 * ```
 */
export class RoomClientTransport {
  /** Told once that nothing comes any more. */
  onclose?: (() => void) | undefined;
  /** Told what went wrong on the way. */
  onerror?: ((error: Error) => void) | undefined;
  /** Told what comes from the server, one message a turn: of two in one turn the SDK would take the second first. */
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
   * @param to the server's mailbox, its DID, or a channel
   * @param o `replyTo`: our mailbox, not with a channel
   * @throws BadName, BadKey no mailbox, no signer
   */
  constructor(to: string | Channel, signer: Signer, o: RoomClientOptions = {}) {
    checkSigner(signer);
    this.#t = transportOf(o);
    if (!isChannel(to)) {
      if (!isDid(to)) checkMailbox(to);
      checkMailbox(replyToOf(o));
    }
    this.#to = to;
    this.#signer = signer;
    this.#o = o;
  }

  /** @throws TechnocoreError `started`: it was before */
  async start(): Promise<void> {
    if (this.#state !== 'new') throw new TechnocoreError('started', 'the transport was already started');
    this.#o.signal?.throwIfAborted();
    this.#state = 'open';
    this.#forget = onAbort(this.#o.signal, () => void this.close());
  }

  /**
   * Sends a message of the client's; resolves once it is written, and `server/discover` once it is answered.
   *
   * @throws TechnocoreError `closed`; `duplicate_id`: a request with that id waits; what {@link call} throws before the
   *   request is written; RpcError `server/discover` was answered with an error that says nothing of revisions
   */
  async send(message: any): Promise<void> {
    if (this.#state !== 'open') throw new TechnocoreError('closed', 'the transport is not open');
    switch (classify(message)) {
      case 'request':
        return this.#ask(message);
      case 'notification':
        return this.#tell(message);
      default:
        throw new TechnocoreError('bad_frame', 'a client sends requests and notifications');
    }
  }

  /** Gives up what is not answered, and tells the server so. Resolves when that is written, or could not be for long. */
  async close(): Promise<void> {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#forget?.();
    const written = [...this.#pending.values()].filter((one) => one.written);
    for (const one of this.#pending.values()) one.stop.abort(new TechnocoreError('closed', 'the transport was closed'));
    const told = written.slice(-MAX_TOLD).map((one) => this.#cancel(one, 'the client is gone'));
    this.#pending.clear();
    const over = new AbortController();
    await Promise.race([Promise.all(told), this.#t.clock.sleep(CLOSE_MS, over.signal).catch(() => {})]);
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

  /** What a notification means to one request. */
  #notice(one: Pending, { method, params }: JsonObject): Taken {
    if (one.minted === undefined || !isObject(params)) return undefined;
    const meta = metaIn(params);
    const isOurs = meta[REQUEST_ID] === one.minted;
    const _meta = isOurs ? { ...meta, [REQUEST_ID]: one.id } : meta;
    const hand = (restored: JsonObject): Taken => {
      const frame = rpcNotification(method as string, { ...(params as JsonObject), ...restored });
      if (method === 'notifications/cancelled') {
        one.torn = frame;
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
        // Of a server that does not say whose it is: for one of those who asked for such lines.
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

  async #tell({ method, params }: { method: string; params?: JsonObject }): Promise<void> {
    if (method !== 'notifications/cancelled') return notify(this.#to, method, params, this.#signer, this.#o);
    const key = JSON.stringify(params?.['requestId']);
    const one = this.#pending.get(key);
    if (!one) return;
    this.#pending.delete(key);
    one.stop.abort(new TechnocoreError('cancelled', 'the client cancelled the request'));
    const reason = params?.['reason'];
    // What waited to be written never will be, and there is nothing to call off.
    if (one.written) await this.#cancel(one, typeof reason === 'string' ? reason.slice(0, 200) : undefined);
  }

  /** Tells the server that nobody waits for an answer. */
  async #cancel({ minted }: Pending, reason: string | undefined): Promise<void> {
    const { signal: _, ...o } = this.#o;
    const params = { requestId: minted!, ...(reason !== undefined && { reason }) };
    try {
      await notify(this.#to, 'notifications/cancelled', params, this.#signer, o);
    } catch (cause) {
      this.#t.onEvent({ kind: 'uncancelled', id: minted, cause });
    }
  }

  /** What ends a request whose answer will not come: the client can ask again, as a new request. */
  #lost(one: Pending, cause: unknown): JsonObject {
    if (one.torn) return one.torn;
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
    // Whatever the client puts off until its next turn comes before the next message.
    this.#inbound.shift();
    if (this.#inbound.length > 0) nextTurn(this.#next);
  };
}

/** An error answer of one whose code is ours, and not one of JSON-RPC or MCP, which all are below 0. */
function refusalIn({ error }: JsonObject): RpcError | undefined {
  const { code, message, data } = isObject(error) ? error : {};
  return typeof code === 'number' && code > 0 ? new RpcError(code, String(message), data) : undefined;
}
