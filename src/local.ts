/**
 * An embedded technocore.chat service for tests and local development: in memory, as a `fetch` function or on a socket,
 * with the clock as a parameter. It behaves like the newest release of the service (profile `modern`), or like release
 * 0.7, whose answers were recorded (`0.7`). It includes a parley relay, under `/c/`.
 *
 * @packageDocumentation
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { concat, utf8 } from './bytes.ts';
import { type Clock, clockOf } from './clock.ts';
import { checkChoice, checkFunctions, checkObject, checkText, TechnocoreError, Unavailable } from './errors.ts';
import { systemCode } from './files.ts';
import { type Limits, type LocalStats, limitsOf, Parking } from './local-limits.ts';
import { RelayService } from './local-relay.ts';
import { oversized, RoomService } from './local-rooms.ts';
import type { Incoming, Outgoing, Profile } from './local-wire.ts';
import { getOrMake } from './maps.ts';

export type { Clock } from './http.ts';
export type { Limits, LocalStats } from './local-limits.ts';
export type { Profile } from './local-wire.ts';

/** Options of {@link createLocalService}. */
export interface LocalOptions {
  /**
   * Which release to behave like. `modern` (default): the newest, open to browsers from every origin; `0.7`: the oldest
   * supported one.
   */
  profile?: Profile | undefined;
  /** The source of time, for everything but the sockets. Default: the machine's clock. */
  clock?: Clock | undefined;
  /** Limits that differ from those of the public service. Unknown members are ignored. */
  limits?: Partial<Limits> | undefined;
  /** The source of random bytes. Default: the platform's. */
  random?: ((bytes: number) => Uint8Array) | undefined;
}

/** A local service that listens on a socket: what {@link LocalService.listen} returns. */
export interface Listening {
  /**
   * The address, such as `http://127.0.0.1:41873`, for the option `base` or the environment variable `TECHNOCORE_URL`.
   */
  readonly url: string;
  /** Stops listening and drops every connection, even those of held reads. */
  close(): Promise<void>;
}

/** A room service and a parley relay in memory: what {@link createLocalService} returns. */
export interface LocalService {
  /**
   * The service as a `fetch` function, for the option `fetch`. It answers requests to any http or https origin. All of
   * them count as coming from one address, `local`.
   */
  readonly fetch: typeof fetch;
  /** Like {@link LocalService.fetch}, from another address: budgets and held reads are counted per address. */
  client(address: string): typeof fetch;
  /**
   * Listens on a socket. Needs Node, Bun or Deno. May be called several times.
   *
   * @param port the port; default 0, any free one
   * @param host the address to listen on; default `127.0.0.1`
   * @throws `TechnocoreError` `no_port` if the port is not available; `bad_option` if it is not a port
   * @throws `Unavailable` if the platform cannot listen
   */
  listen(port?: number, host?: string): Promise<Listening>;
  /** Live counts of requests, rooms and so on. */
  readonly stats: Readonly<LocalStats>;
  /**
   * Moves the last write of a room, or of a note (`ns/key`), back by `ms`, and lets the next write run the reaper.
   *
   * @internal for tests
   */
  age(name: string, ms: number): void;
}

type Handle = (request: Incoming) => Outgoing | Promise<Outgoing>;

/**
 * Makes an embedded service without any rooms or notes. It keeps everything in memory, and starts no timer or socket on
 * its own.
 *
 * @param o the release to behave like, limits, clock and source of randomness
 * @throws `TechnocoreError` `bad_option` if an option is not of its type
 * @example
 * ```ts
 * import { read, Signer } from 'technocore-rpc';
 * import { createLocalService } from 'technocore-rpc/local';
 *
 * const service = createLocalService({ limits: { writesPerMinute: 1e6 } });
 *
 * // in this process, without a socket
 * const o = { base: 'http://local.test', fetch: service.fetch };
 * await Signer.generate().say('lobby', 'hello', o);
 * console.log((await read('lobby', o)).messages[0]?.text); // hello
 *
 * // from other processes, and as a parley relay
 * const { url, close } = await service.listen();
 * console.log((await read('lobby', { base: url })).messages.length); // 1
 * await close();
 * ```
 */
export function createLocalService(o: LocalOptions = {}): LocalService {
  const { profile = 'modern' } = checkObject(o);
  checkChoice(o, 'profile', ['modern', '0.7']);
  checkFunctions(o, ['random']);
  const clock = clockOf(o);
  const limits = limitsOf(profile, o.limits);
  const stats: LocalStats = {
    requests: 0,
    reads: 0,
    writes: 0,
    refused: 0,
    parked: 0,
    parkedMost: 0,
    timers: 0,
    connections: 0,
    rooms: 0,
    notes: 0,
    messages: 0,
    bytes: 0,
    channels: 0,
  };
  const relay = new RelayService(clock, limits, stats, o.random);
  const rooms = new RoomService(profile, clock, limits, stats, new Parking(clock, limits, stats));
  const handle: Handle = (request) => {
    stats.requests++;
    return /^\/[ci]\//.test(request.target) ? relay.handle(request) : rooms.handle(request);
  };
  const client = (address: string): typeof fetch => fetchOf(handle, address);
  return {
    fetch: client('local'),
    client,
    async listen(port = 0, host = '127.0.0.1') {
      // Node takes a string for the path of a socket.
      if (!Number.isInteger(port) || port < 0 || port > 65_535)
        throw new TechnocoreError('bad_option', 'the port must be a whole number from 0 to 65535');
      return listen(handle, port, checkText(host, 'the host'), limits, stats);
    },
    stats,
    age: (name, ms) => rooms.store.age(name, ms),
  };
}

const NOT_HTTP = 'Invalid HTTP request received.';
/** Maximum bytes of request line and headers that the real service's parser accepts. */
const MAX_HEAD_BYTES = 16_384;

// --- without a socket -------------------------------------------------------------------------------------------

function fetchOf(handle: Handle, address: string): typeof fetch {
  const local = async (input: string | URL | Request, init: RequestInit = {}): Promise<Response> => {
    const given = typeof input === 'object' && 'url' in input ? input : undefined;
    const named = init.headers ?? given?.headers;
    const headers = named && new Headers(named);
    const body = init.body ?? given?.body ?? undefined;
    const signal = init.signal ?? given?.signal ?? undefined;
    const redirect = init.redirect ?? given?.redirect ?? 'follow';
    let method = init.method ?? given?.method ?? 'GET';
    if (/^(get|head|post|put|delete|options)$/i.test(method)) method = method.toUpperCase();
    if (body !== undefined && (method === 'GET' || method === 'HEAD')) {
      throw new TypeError(`a ${method} request has no body`);
    }
    signal?.throwIfAborted();
    let url = new URL(given ? given.url : String(input));
    for (let hops = 0; ; hops++) {
      if (url.protocol !== 'http:' && url.protocol !== 'https:') throw new TypeError(`fetch failed: ${url.protocol}`);
      const { origin, pathname, search } = url;
      if (pathname.length + search.length > MAX_HEAD_BYTES) return responseOf(bare(400, NOT_HTTP), method);
      let count = 1;
      let bytes = 'host'.length + url.host.length + 4;
      headers?.forEach((value, name) => {
        count++;
        bytes += name.length + value.length + 4;
      });
      const answer =
        oversized(count, bytes) ??
        (await handle({
          method,
          target: pathname + search,
          address,
          origin,
          signal,
          header: (name) => headers?.get(name) ?? undefined,
          body: (limit) => readBody(body, limit, signal),
        }));
      const { location } = answer.headers;
      if (location === undefined || redirect === 'manual') return responseOf(answer, method);
      if (redirect === 'error' || hops === 20) throw new TypeError('fetch failed: redirected');
      url = new URL(location);
    }
  };
  return local as typeof fetch;
}

function responseOf({ status, headers, body }: Outgoing, method: string): Response {
  const bytes = utf8(body);
  return new Response(method === 'HEAD' || bytes.length === 0 ? null : (bytes as BodyInit), {
    status,
    headers: { ...headers, ...(status !== 204 && { 'content-length': String(bytes.length) }) },
  });
}

function readBody(
  body: BodyInit | undefined,
  limit: number,
  signal: AbortSignal | undefined,
): Uint8Array | undefined | Promise<Uint8Array | undefined> {
  if (body === undefined || typeof body === 'string') {
    const bytes = utf8(body ?? '');
    return bytes.length > limit ? undefined : bytes;
  }
  // The platform can turn all the other kinds into bytes.
  const stream = new Response(body).body;
  return stream ? readStream(stream, limit, signal) : new Uint8Array();
}

async function readStream(
  stream: ReadableStream<Uint8Array>,
  limit: number,
  signal: AbortSignal | undefined,
): Promise<Uint8Array | undefined> {
  const reader = stream.getReader();
  const hangUp = (): void => void reader.cancel(signal?.reason).catch(() => {});
  signal?.addEventListener('abort', hangUp);
  try {
    const parts: Uint8Array[] = [];
    for (let bytes = 0; ; ) {
      const { done, value } = await reader.read();
      signal?.throwIfAborted();
      if (done) return concat(...parts);
      bytes += value.length;
      if (bytes > limit) {
        hangUp();
        return undefined;
      }
      parts.push(value);
    }
  } finally {
    signal?.removeEventListener('abort', hangUp);
  }
}

// --- on a socket ------------------------------------------------------------------------------------------------

/** How many bytes of an unwanted body are read and discarded, so that the client gets to read the answer. */
const DRAIN_BYTES = 1 << 20;
/** How many requests a connection may send ahead of their answers. */
const MAX_AHEAD = 100;
/** The longest time of a platform timer, in milliseconds. */
const MAX_TIMER_MS = 2 ** 31 - 1;

/** An answer of the HTTP layer, below the service, which closes the connection. */
function bare(status: number, body: string): Outgoing {
  return { status, headers: { 'content-type': 'text/plain; charset=utf-8', connection: 'close' }, body };
}

async function listen(
  handle: Handle,
  port: number,
  host: string,
  limits: Limits,
  stats: LocalStats,
): Promise<Listening> {
  const http = globalThis.process?.getBuiltinModule?.('node:http');
  if (!http) throw new Unavailable('this platform cannot listen');
  const answerTo = (request: IncomingMessage, response: ServerResponse): Outgoing | Promise<Outgoing> => {
    // With too many connections open, the real service refuses every request.
    if (stats.connections >= limits.connections) return bare(503, 'Service Unavailable');
    const isAscii = /^[!-~]+$/.test(request.url ?? '');
    if (!isAscii || (request.headers.host === undefined && request.httpVersion === '1.1')) return bare(400, NOT_HTTP);
    const { rawHeaders } = request;
    const bytes = rawHeaders.reduce((sum, text) => sum + text.length + 2, 0);
    return oversized(rawHeaders.length / 2, bytes) ?? handle(incomingOf(request, response, url));
  };
  // Per connection: the request being answered, then those sent ahead. They wait, so that unread answers do not pile
  // up.
  const queues = new WeakMap<Socket, ServerResponse[]>();
  const next = (socket: Socket): void => {
    const response = queues.get(socket)?.[0];
    if (!response || !socket.writable) return;
    const request = response.req;
    const answer = answerTo(request, response);
    if (!(answer instanceof Promise)) send(request, response, answer);
    // Rejects when the client hung up: it needs no answer.
    else
      answer.then(
        (out) => send(request, response, out),
        () => response.destroy(),
      );
  };
  const server = http.createServer(
    // A missing Host header is refused above, with the real service's message.
    { maxHeaderSize: MAX_HEAD_BYTES, requireHostHeader: false, keepAliveTimeout: 5000, requestTimeout: 60_000 },
    ({ socket }, response) => {
      // Parsing continues for a while after a connection was destroyed.
      if (socket.destroyed) return;
      const queue = getOrMake(queues, socket, (): ServerResponse[] => []);
      queue.push(response);
      response.once('close', () => {
        queue.shift();
        next(socket);
      });
      if (queue.length > MAX_AHEAD) socket.destroy();
      else if (queue.length === 1) next(socket);
    },
  );
  // Drops a client that does not take its answer, but not one whose read is held.
  server.setTimeout(Math.min(limits.stalledMs, MAX_TIMER_MS), (socket: Socket) => {
    if (queues.get(socket)?.[0]?.headersSent !== false) socket.destroy();
  });
  server.maxHeadersCount = 0;
  // Twice the limit: the second half gets a 503.
  server.maxConnections = 2 * limits.connections;
  server.on('connection', (socket) => {
    stats.connections++;
    socket.once('close', () => stats.connections--);
  });
  server.on('clientError', (cause: NodeJS.ErrnoException, socket: Socket) => {
    refuseMalformed(cause, socket, queues.get(socket)?.[0]);
  });
  await new Promise<void>((resolve, reject) => {
    server.once('error', (cause) => {
      const why = systemCode(cause) ?? cause.message;
      reject(new TechnocoreError('no_port', `cannot listen on ${host} port ${port}: ${why}`, cause));
    });
    server.listen(port, host, resolve);
  });
  const url = urlOf(server.address() as AddressInfo);
  return {
    url,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** Answers a request that Node could not parse, or that took too long. @param other the answer that is due before */
function refuseMalformed(cause: NodeJS.ErrnoException, socket: Socket, other: ServerResponse | undefined): void {
  // No answer can be sent once the client is gone, or while another answer is due.
  if (!socket.writable || cause.code === 'ECONNRESET' || other?.req.complete || other?.headersSent) {
    socket.destroy();
    return;
  }
  const isSlow = cause.code === 'ERR_HTTP_REQUEST_TIMEOUT';
  socket.end(
    `HTTP/1.1 ${isSlow ? '408 Request Timeout' : '400 Bad Request'}\r\ncontent-type: text/plain; charset=utf-8\r\n` +
      `content-length: ${NOT_HTTP.length}\r\nconnection: close\r\n\r\n${NOT_HTTP}`,
  );
}

function urlOf({ address, family, port }: AddressInfo): string {
  const host = address === '0.0.0.0' ? '127.0.0.1' : address === '::' ? '::1' : address;
  return `http://${family === 'IPv6' ? `[${host}]` : host}:${port}`;
}

function incomingOf(request: IncomingMessage, response: ServerResponse, url: string): Incoming {
  const { host } = request.headers;
  let hungUp: AbortController | undefined;
  return {
    method: request.method ?? '',
    target: request.url ?? '',
    address: request.socket.remoteAddress ?? '',
    origin: host !== undefined && /^[a-z0-9.-]+(:\d{1,5})?$/i.test(host) ? `http://${host}` : url,
    // Made on demand: most requests are answered at once and never use it.
    get signal() {
      if (!hungUp) {
        hungUp = new AbortController();
        response.once('close', () => hungUp!.abort());
        if (response.destroyed) hungUp.abort();
      }
      return hungUp.signal;
    },
    header(name) {
      const value = request.headers[name];
      return Array.isArray(value) ? value.join(', ') : value;
    },
    body: (limit) =>
      new Promise((resolve, reject) => {
        const parts: Uint8Array[] = [];
        let bytes = 0;
        request.on('data', (part: Uint8Array) => {
          bytes += part.length;
          if (bytes <= limit) parts.push(part);
          else resolve(undefined);
        });
        request.once('end', () => resolve(concat(...parts)));
        request.once('close', () => reject(new Unavailable('the body was cut short')));
      }),
  };
}

function send(request: IncomingMessage, response: ServerResponse, { status, headers, body }: Outgoing): void {
  if (response.destroyed) return;
  const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
  if (!request.complete && (length !== undefined || encoding !== undefined)) {
    let left = DRAIN_BYTES;
    request.on('data', (part: Uint8Array) => {
      left -= part.length;
      if (left < 0) request.destroy();
    });
  }
  const bytes = utf8(body);
  response.writeHead(status, { ...headers, ...(status !== 204 && { 'content-length': bytes.length }) });
  response.end(request.method === 'HEAD' ? undefined : bytes);
}
