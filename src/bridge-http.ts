/**
 * An endpoint for MCP's Streamable HTTP on loopback, in front of anything that carries messages of 2026-07-28. It takes
 * single requests of that revision, and sessions of hosts that start with a handshake. Rules: MCP 2025-03-26 to
 * 2026-07-28, transports.
 *
 * It only serves programs on this machine, and no web page in a browser, whatever the page's host name resolves to.
 *
 * @module
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { HANDSHAKES, isSelfContained, type Wire } from './bridge-handshake.ts';
import { checkHeaders, ParamHeaders } from './bridge-headers.ts';
import { HostSide } from './bridge-host.ts';
import { HttpAnswer } from './bridge-sse.ts';
import { toHex } from './bytes.ts';
import {
  classify,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  type JsonObject,
  METHOD_NOT_FOUND,
  PARSE_ERROR,
  rpcError,
} from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { decode, isObject, type Json } from './frames.ts';
import { type Clock, type Event, systemClock } from './http.ts';
import { checkedMeta, isMcpId } from './mcp.ts';

/** Maximum bytes of one message: more than a room carries. */
const MAX_BODY = 4 << 20;
/** Maximum bytes of all messages that are arriving. */
const MAX_ARRIVING = 64 << 20;
/** How long a request may take to arrive, ms, and how many connections there may be. */
const REQUEST_MS = 30_000;
const MAX_CONNECTIONS = 512;
/** How many requests may be under way, and how many sessions there may be. */
const MAX_OPEN = 256;
const MAX_SESSIONS = 64;
/** How long an unused session is kept, ms. */
const IDLE_MS = 1_800_000;
/** How many messages may wait for a host to listen. */
const MAX_UNHEARD = 100;

/** Options of {@link HttpBridge}. */
export interface HttpBridgeOptions {
  /** Makes a new wire to the server, for one request or one session. */
  connect(): Wire;
  clock?: Clock;
  random?: (bytes: number) => Uint8Array;
  onEvent?: (event: Event) => void;
  /** As in {@link HostSide}. */
  hint?: string;
  denied?: string;
}

/** An answer that is only a status, with or without an error. */
class Refusal extends Error {
  readonly status: number;
  readonly error: JsonObject | undefined;
  readonly headers: Record<string, string>;

  constructor(status: number, error?: JsonObject, headers: Record<string, string> = {}) {
    super(`status ${status}`);
    this.status = status;
    this.error = error;
    this.headers = headers;
  }
}

/** The answer to a request that was not read to its end. */
const tooMany = (why: string): Refusal =>
  new Refusal(503, rpcError(undefined, INTERNAL_ERROR, why), { connection: 'close' });

const LOOPBACK = /^(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?$/i;

/** The HTTP status for error codes. */
const STATUS: { readonly [code: number]: number } = {
  [METHOD_NOT_FOUND]: 404,
  [-32020]: 400,
  [-32021]: 400,
  [-32022]: 400,
};

/** The endpoint. */
export class HttpBridge {
  readonly #o: HttpBridgeOptions;
  readonly #clock: Clock;
  readonly #sessions = new Map<string, Session>();
  readonly #params = new ParamHeaders();
  readonly #open = new Set<HttpAnswer>();
  readonly #over = new AbortController();
  #arriving = 0;
  #server: Server | undefined;

  constructor(o: HttpBridgeOptions) {
    this.#o = o;
    this.#clock = o.clock ?? systemClock;
  }

  /**
   * Listens on loopback.
   *
   * @param port 0 for any free one
   * @returns the address of the endpoint
   * @throws a {@link TechnocoreError} `no_port` if the port is not available
   */
  async listen(port: number): Promise<string> {
    const server = createServer(
      { requestTimeout: REQUEST_MS },
      (request, response) => void this.handle(request, response),
    );
    server.maxConnections = MAX_CONNECTIONS;
    this.#server = server;
    await new Promise<void>((resolve, reject) => {
      server.once('error', (cause) =>
        reject(new TechnocoreError('no_port', `cannot listen on port ${port}: ${cause.message}`, cause)),
      );
      server.listen(port, '127.0.0.1', resolve);
    });
    void this.#expire();
    return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
  }

  /** Ends all sessions and answers. */
  async close(): Promise<void> {
    this.#over.abort(new TechnocoreError('over', 'the endpoint has ended'));
    await Promise.all([...this.#sessions.values()].map((session) => session.close()));
    this.#sessions.clear();
    for (const answer of this.#open) answer.end();
    const server = this.#server;
    if (!server) return;
    await new Promise<void>((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  }

  async #expire(): Promise<void> {
    try {
      for (;;) {
        await this.#clock.sleep(IDLE_MS / 4, this.#over.signal);
        for (const [id, session] of this.#sessions) {
          const isIdle = !session.isBusy && !session.isListening;
          if (!isIdle || this.#clock.now() - session.used < IDLE_MS) continue;
          this.#sessions.delete(id);
          await session.close();
        }
      }
    } catch {
      // Closed.
    }
  }

  /** Answers one HTTP request. Never throws. */
  async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const answer = new HttpAnswer(response, this.#clock);
    this.#open.add(answer);
    answer.onEnd(() => this.#open.delete(answer));
    try {
      await this.#take(request, answer);
    } catch (cause) {
      if (cause instanceof Refusal) answer.refuse(cause.status, cause.error, cause.headers);
      else {
        this.#o.onEvent?.({ kind: 'handler-error', method: 'http', error: cause });
        answer.refuse(500, rpcError(undefined, INTERNAL_ERROR, 'Internal error'));
      }
    }
  }

  async #take(request: IncomingMessage, answer: HttpAnswer): Promise<void> {
    const header = (name: string): string | undefined => {
      const value = request.headers[name];
      return typeof value === 'string' ? value : undefined;
    };
    const invalid = (message: string): JsonObject => rpcError(undefined, INVALID_REQUEST, message);
    // A web page whose name resolves to this machine sends that name as `Host`; any other page sends its own `Origin`.
    const origin = header('origin');
    if (!LOOPBACK.test(header('host') ?? '')) throw new Refusal(403, invalid('Forbidden host'));
    if (origin !== undefined && !(/^https?:\/\//.test(origin) && LOOPBACK.test(origin.replace(/^https?:\/\//, '')))) {
      throw new Refusal(403, invalid('Forbidden origin'));
    }
    if ((request.url ?? '').split('?')[0] !== '/mcp') throw new Refusal(404);
    const name = header('mcp-session-id');
    const session = name === undefined ? undefined : this.#sessions.get(name);
    const version = header('mcp-protocol-version');
    if (session && version !== undefined && !HANDSHAKES.includes(version) && request.method !== 'POST') {
      throw new Refusal(400, invalid('Unsupported protocol version'));
    }
    switch (request.method) {
      case 'POST':
        // Refused before its body is read.
        if (!session && this.#open.size > MAX_OPEN) throw tooMany('Too many requests at once');
        await this.#post(header, await this.#message(request, header), answer, session);
        break;
      case 'GET':
        if (name === undefined) throw new Refusal(405, undefined, { allow: 'POST' });
        if (!session) throw new Refusal(404, rpcError(undefined, INVALID_REQUEST, 'Session not found'));
        session.hear(answer);
        break;
      case 'DELETE':
        if (name === undefined) throw new Refusal(405, undefined, { allow: 'POST' });
        if (!session) throw new Refusal(404, rpcError(undefined, INVALID_REQUEST, 'Session not found'));
        this.#sessions.delete(name);
        await session.close();
        answer.refuse(200);
        break;
      default:
        throw new Refusal(405, undefined, { allow: 'GET, POST, DELETE' });
    }
  }

  /** The message in a POST. @throws a Refusal if there is none */
  async #message(request: IncomingMessage, header: (name: string) => string | undefined): Promise<JsonObject | Json[]> {
    const invalid = (message: string): JsonObject => rpcError(undefined, INVALID_REQUEST, message);
    if (!/^application\/json\s*(?:;|$)/i.test(header('content-type') ?? '')) {
      throw new Refusal(415, invalid('The content type must be application/json'));
    }
    const accept = header('accept') ?? '*/*';
    const accepts = (type: string): boolean => accept.includes(type) || accept.includes('*/*');
    if (!accepts('application/json') || !accepts('text/event-stream')) {
      throw new Refusal(406, invalid('Not acceptable: the answer is application/json or text/event-stream'));
    }
    const chunks: Buffer[] = [];
    let bytes = 0;
    try {
      for await (const chunk of request as AsyncIterable<Buffer>) {
        bytes += chunk.length;
        this.#arriving += chunk.length;
        if (bytes > MAX_BODY) throw new Refusal(413, invalid('The message is too large'), { connection: 'close' });
        if (this.#arriving > MAX_ARRIVING) throw tooMany('Too many messages at once');
        chunks.push(chunk);
      }
    } finally {
      this.#arriving -= bytes;
    }
    const message = decode(Buffer.concat(chunks).toString('utf8'));
    if (!message) throw new Refusal(400, rpcError(undefined, PARSE_ERROR, 'Parse error'));
    return message;
  }

  async #post(
    header: (name: string) => string | undefined,
    message: JsonObject | Json[],
    answer: HttpAnswer,
    session: Session | undefined,
  ): Promise<void> {
    const isBatch = Array.isArray(message);
    const isModern = !isBatch && isSelfContained(message);
    if (session && !isModern) {
      const version = header('mcp-protocol-version');
      if (version !== undefined && !HANDSHAKES.includes(version)) {
        throw new Refusal(400, rpcError(undefined, INVALID_REQUEST, 'Unsupported protocol version'));
      }
      session.take(message, answer);
      return;
    }
    if (!isBatch && !isModern && message['method'] === 'initialize' && classify(message) === 'request') {
      await this.#begin(message, answer);
      return;
    }
    // Tells a host whose session has ended to start another.
    if (header('mcp-session-id') !== undefined && !isModern) {
      throw new Refusal(404, rpcError(undefined, INVALID_REQUEST, 'Session not found'));
    }
    if (isBatch) throw new Refusal(400, rpcError(undefined, INVALID_REQUEST, 'Invalid Request: MCP has no batches'));
    await this.#once(header, message, answer);
  }

  // --- single requests -------------------------------------------------------------------------------------------

  async #once(header: (name: string) => string | undefined, message: JsonObject, answer: HttpAnswer): Promise<void> {
    const kind = classify(message);
    // The client cancels by closing the connection.
    if (kind === 'notification') return answer.refuse(202);
    const { id, method, params } = message as { id: Id; method: string; params?: JsonObject };
    if (kind !== 'request' || !isMcpId(id))
      throw new Refusal(400, rpcError(undefined, INVALID_REQUEST, 'Invalid Request'));
    try {
      if (isSelfContained(message)) checkHeaders(header, message);
      const { _meta, ...rest } = isObject(params) ? params : ({} as JsonObject);
      checkedMeta(method, _meta, rest);
      this.#params.check(header, message);
    } catch (cause) {
      throw refusalOf(id, cause);
    }
    const wire = this.#o.connect();
    const over = new Promise<void>((resolve) => answer.onEnd(resolve));
    wire.onmessage = (frame: JsonObject) => {
      if (classify(frame) !== 'response') {
        answer.send(frame);
        return;
      }
      const { result, error } = frame;
      if (method === 'tools/list' && isObject(result)) this.#params.learn(result as JsonObject);
      answer.end(frame, isObject(error) ? STATUS[error['code'] as number] : undefined);
    };
    wire.onclose = () => answer.end(rpcError(id, INTERNAL_ERROR, 'The bridge has ended'));
    await wire.start();
    if (method === 'subscriptions/listen') answer.open();
    try {
      await Promise.race([wire.send(message), over]);
    } catch (cause) {
      answer.end(sendError(id, cause));
    }
    answer.holdOpen();
    await over;
    // Cancels the request if it is not answered by now.
    await wire.close();
  }

  // --- sessions --------------------------------------------------------------------------------------------------

  /** Ends the session that has been unused for longest. When its host comes back, it has to start another. */
  #displace(): boolean {
    const isLongUnused = ({ used }: Session): boolean => this.#clock.now() - used >= IDLE_MS;
    const [displaced] = [...this.#sessions]
      .filter(([, session]) => !session.isBusy || isLongUnused(session))
      .sort(([, a], [, b]) => Number(a.isListening) - Number(b.isListening) || a.used - b.used);
    if (!displaced) return false;
    this.#sessions.delete(displaced[0]);
    void displaced[1].close();
    return true;
  }

  async #begin(message: JsonObject, answer: HttpAnswer): Promise<void> {
    if (this.#sessions.size >= MAX_SESSIONS && !this.#displace()) {
      throw new Refusal(503, rpcError(message['id'] as Id, INTERNAL_ERROR, 'Too many sessions'));
    }
    const random = this.#o.random ?? ((n) => crypto.getRandomValues(new Uint8Array(n)));
    const id = toHex(random(16));
    const session = new Session(this.#o, this.#clock);
    this.#sessions.set(id, session);
    await session.start();
    answer.headers['mcp-session-id'] = id;
    session.take(message, answer);
    answer.onEnd(() => {
      if (session.hasBegun) return;
      this.#sessions.delete(id);
      void session.close();
    });
  }
}

/** One host that started with a handshake. */
class Session {
  readonly #clock: Clock;
  readonly #wire: Wire;
  readonly #side: HostSide;
  /** The HTTP answer for the messages of each request. */
  readonly #answers = new Map<Id, { answer: HttpAnswer; left: Set<Id> }>();
  /** The HTTP answer for messages that belong to no request. */
  #listening: HttpAnswer | undefined;
  #unheard: JsonObject[] = [];
  used: number;

  constructor(o: HttpBridgeOptions, clock: Clock) {
    this.#clock = clock;
    this.used = clock.now();
    this.#wire = o.connect();
    this.#side = new HostSide({
      ...o,
      clock,
      toHost: (message, about) => this.#toHost(message, about),
      toRoom: (message) => {
        this.#wire.send(message).catch((cause) => {
          if (message['id'] !== undefined) this.#side.fromRoom(sendError(message['id'] as Id, cause));
          else o.onEvent?.({ kind: 'unsent', method: message['method'], cause });
        });
      },
    });
    this.#wire.onmessage = (message) => this.#side.fromRoom(message);
  }

  /** Whether requests are under way. */
  get isBusy(): boolean {
    return this.#answers.size > 0;
  }

  /** Whether its host listens for messages that belong to no request. */
  get isListening(): boolean {
    return this.#listening !== undefined;
  }

  /** Whether the handshake was answered with a session. */
  get hasBegun(): boolean {
    return this.#side.version !== undefined;
  }

  start(): Promise<void> {
    return this.#wire.start();
  }

  /** Takes the message of one POST. */
  take(message: JsonObject | Json[], answer: HttpAnswer): void {
    this.used = this.#clock.now();
    const members = Array.isArray(message) ? message : [message];
    const requests = members.filter((member) => classify(member) === 'request') as JsonObject[];
    const left = new Set(requests.map(({ id }) => id as Id));
    if (requests.length === 0) answer.refuse(202);
    const isTaken = [...left].find((id) => this.#answers.has(id));
    if (isTaken !== undefined) {
      answer.end(rpcError(isTaken, INVALID_REQUEST, 'Invalid Request: the id is in use'));
      return;
    }
    for (const id of left) this.#answers.set(id, { answer, left });
    // In these revisions, closing the connection does not cancel. Later messages are dropped.
    answer.onEnd(() => {
      for (const id of left) this.#answers.delete(id);
    });
    this.#side.fromHost(message);
    if (requests.length > 0) answer.holdOpen();
  }

  /** Takes the HTTP answer through which the host listens for messages that belong to no request. */
  hear(answer: HttpAnswer): void {
    this.used = this.#clock.now();
    // One stream at a time: only the newest one is sure to be read.
    this.#listening?.end();
    this.#listening = answer;
    answer.onEnd(() => {
      if (this.#listening === answer) this.#listening = undefined;
    });
    answer.open();
    for (const message of this.#unheard.splice(0)) answer.send(message);
  }

  #toHost(message: JsonObject, about: Id | undefined): void {
    if (classify(message) === 'response') {
      const id = message['id'] as Id;
      const entry = this.#answers.get(id);
      this.#answers.delete(id);
      entry?.left.delete(id);
      if (entry?.left.size === 0) entry.answer.end(message);
      else entry?.answer.send(message);
      return;
    }
    const answer = (about === undefined ? undefined : this.#answers.get(about)?.answer) ?? this.#listening;
    if (answer) answer.send(message);
    else if (this.#unheard.push(message) > MAX_UNHEARD) this.#unheard.shift();
  }

  async close(): Promise<void> {
    this.#side.close();
    this.#listening?.end();
    for (const { answer } of this.#answers.values()) answer.end();
    await this.#wire.close();
  }
}

// --- messages ----------------------------------------------------------------------------------------------------

/** Turns the error of a request that could not be sent into its answer. */
export function sendError(id: Id, cause: unknown): JsonObject {
  if (cause instanceof RpcError)
    return rpcError(id, cause.rpc.code, cause.rpc.message, cause.rpc.data as Json | undefined);
  if (!TechnocoreError.is(cause)) return rpcError(id, INTERNAL_ERROR, 'The request could not be sent');
  const { chars, limit, retryAfterMs } = cause as { chars?: number; limit?: number; retryAfterMs?: number } & Error;
  const data = { reason: cause.code, ...(chars && { chars, limit: limit! }), ...(retryAfterMs && { retryAfterMs }) };
  return rpcError(id, INTERNAL_ERROR, `The request could not be sent: ${cause.message}`, data);
}

function refusalOf(id: Id, cause: unknown): Refusal {
  if (!(cause instanceof RpcError)) throw cause;
  return new Refusal(400, sendError(id, cause));
}
