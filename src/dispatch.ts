/**
 * JSON-RPC 2.0 without I/O: a frame in, its answer out. Plain methods are entries in a Map. A protocol with method
 * names of its own, such as MCP, plugs in as a {@link Layer}, which the tools of a dispatcher provide.
 *
 * A request is an object with `jsonrpc: "2.0"`, a string `method`, an `id` (string, number or null) and optional
 * `params` (array or object). Without an `id` it is a notification, which is never answered. Responses are never
 * answered either.
 *
 * @module
 */
import { clockOf } from './clock.ts';
import { check32 } from './crypto.ts';
import {
  type BadState,
  checkFunction,
  checkNumbers,
  checkObject,
  checkText,
  RpcError,
  TechnocoreError,
} from './errors.ts';
import { isObject, type Json, MAX_TEXT, stringify } from './frames.ts';
import type { Clock, Options } from './http.ts';
import { getOrMake } from './maps.ts';
import { NEVER } from './turns.ts';

// --- frames ------------------------------------------------------------------------------------------------------

/** A JSON object. */
export type JsonObject = { [key: string]: Json };
/** The id of a JSON-RPC request. The answer repeats it with its type: `1` and `"1"` are different ids. */
export type Id = string | number | null;

export const PARSE_ERROR = -32700;
export const INVALID_REQUEST = -32600;
export const METHOD_NOT_FOUND = -32601;
export const INVALID_PARAMS = -32602;
export const INTERNAL_ERROR = -32603;
/** The request was begun and may not have finished: the server stopped or died, or an earlier one may have run it. */
export const INTERRUPTED = 1001;
/** There is too much to do; `data.retryAfterMs` says when to try again. */
export const BUSY = 1002;
/** The handler did not finish in time. */
export const DEADLINE = 1003;
/** The caller is not allowed. */
export const DENIED = 1004;
/** The condition of a conditional write did not hold; `data.actual` is the current value. */
const CONFLICT = 1005;

/** A request frame. */
export function rpcRequest(id: Id, method: string, params?: Json): JsonObject {
  return params === undefined ? { jsonrpc: '2.0', id, method } : { jsonrpc: '2.0', id, method, params };
}

/** A notification frame. */
export function rpcNotification(method: string, params?: Json): JsonObject {
  return params === undefined ? { jsonrpc: '2.0', method } : { jsonrpc: '2.0', method, params };
}

/**
 * The params of a request or notification as JSON would carry them.
 *
 * @throws a {@link TechnocoreError} `bad_params` if they are neither an object nor an array; `bad_frame` if JSON cannot
 * carry them
 */
export function paramsOf(params: unknown): Json | undefined {
  if (params === undefined) return undefined;
  if (typeof params === 'object' && params !== null) return toJson(params);
  throw new TechnocoreError('bad_params', 'params must be an object, an array or undefined');
}

/** A success response. */
export function rpcResult(id: Id, result: Json): JsonObject {
  return { jsonrpc: '2.0', id, result };
}

/**
 * An error response. If `id` is undefined it has no such member, as MCP requires when no id could be read.
 */
export function rpcError(id: Id | undefined, code: number, message: string, data?: Json): JsonObject {
  const error = data === undefined ? { code, message } : { code, message, data };
  return id === undefined ? { jsonrpc: '2.0', error } : { jsonrpc: '2.0', id, error };
}

/**
 * Makes the error with which a handler rejects its params: JSON-RPC code -32602. Throw it.
 *
 * @param message for the caller: what is wrong with the params
 * @param data for the caller; any JSON value
 * @example
 * ```ts
 * import { badParams, methods } from 'technocore-rpc';
 *
 * methods.set('half', ({ n }) => {
 *   if (typeof n !== 'number') throw badParams('n is a number');
 *   return n / 2;
 * });
 * ```
 */
export function badParams(message: string, data?: Json | object): RpcError {
  return new RpcError(INVALID_PARAMS, message, data);
}

/** Makes the error for too much to do: code 1002. */
export function busy(what: string, retryAfterMs: number): RpcError {
  return new RpcError(BUSY, `Busy: ${what}`, { retryAfterMs });
}

/** True for an {@link RpcError} with this code. */
export function isRpc(cause: unknown, code: number): cause is RpcError {
  return TechnocoreError.is(cause) && cause.code === 'rpc' && (cause as RpcError).rpc.code === code;
}

/** True for a valid id. Numbers beyond 2^53 have lost digits, so the answer could not repeat them unchanged. */
export function isId(value: unknown): value is Id {
  return (
    typeof value === 'string' ||
    value === null ||
    (typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER)
  );
}

/**
 * The kind of a single frame. Anything with a `result` or `error` and no `method` is a response, even a malformed one,
 * so that two peers never answer each other's answers.
 */
export function classify(member: unknown): 'request' | 'notification' | 'response' | 'invalid' {
  if (!isObject(member)) return 'invalid';
  const { method, params, id } = member;
  if (method === undefined && (member['result'] !== undefined || member['error'] !== undefined)) return 'response';
  if (member['jsonrpc'] !== '2.0' || typeof method !== 'string') return 'invalid';
  if (params !== undefined && (typeof params !== 'object' || params === null)) return 'invalid';
  return id === undefined ? 'notification' : isId(id) ? 'request' : 'invalid';
}

/**
 * The result in a response.
 *
 * @throws an {@link RpcError} if the response is an error
 * @throws a {@link TechnocoreError} `bad_response` if it does not have exactly one of result and error, or if the error
 * is malformed
 */
export function resultOf(response: unknown): Json {
  if (isObject(response) && response['jsonrpc'] === '2.0' && 'result' in response !== 'error' in response) {
    const { result, error } = response;
    if (result !== undefined) return result as Json;
    if (isObject(error) && Number.isInteger(error['code']) && typeof error['message'] === 'string') {
      throw new RpcError(error['code'] as number, error['message'], error['data']);
    }
  }
  throw new TechnocoreError('bad_response', 'the other side sent a response that is not valid JSON-RPC 2.0');
}

/**
 * A value as JSON represents it. Plain data is returned unchanged, anything else after a round trip through JSON.
 *
 * @throws a {@link TechnocoreError} `bad_frame` if it is cyclic, holds a BigInt, or has no JSON form
 */
export function toJson(value: unknown): Json {
  let plain = false;
  try {
    plain = isPlain(value, 64);
  } catch {
    // A getter or a proxy threw. If it does so again, `stringify` says so.
  }
  return plain ? (value as Json) : JSON.parse(stringify(value));
}

function isPlain(value: unknown, depth: number): boolean {
  if (typeof value !== 'object') {
    return (
      typeof value === 'string' || typeof value === 'boolean' || (typeof value === 'number' && Number.isFinite(value))
    );
  }
  if (value === null) return true;
  if (depth === 0) return false;
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) if (!isPlain(value[i], depth - 1)) return false;
    return true;
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== Object.prototype && prototype !== null) return false;
  for (const key in value) if (!isPlain((value as Record<string, unknown>)[key], depth - 1)) return false;
  return true;
}

/** Whether a method name is reserved by MCP, even if no such method exists. */
export function isMcpMethod(method: string): boolean {
  return /^(?:(?:server|tools|prompts|resources|completion|subscriptions|logging|notifications)\/|(?:initialize|ping)$)/.test(
    method,
  );
}

// --- handlers ----------------------------------------------------------------------------------------------------

/** What a {@link Handler} knows about the call that it answers. */
export interface CallContext {
  /**
   * The authenticated caller: a `did:key`; over a parley session, `parley:` and the base64url of the caller's node id;
   * `''` for a call from inside this process. Base authorization on nothing else.
   */
  readonly from: string;
  /** The id of the request; undefined for a notification. */
  readonly id: Id | undefined;
  /** The room or session through which the call came; `''` if there is none. */
  readonly room: string;
  /**
   * Aborts when the server's deadline passes, when its drain ends, and when an MCP caller cancels. (An A2A task has its
   * own signal.) A server does not learn that the caller of a plain method gave up: the deadline ends the handler.
   */
  readonly signal: AbortSignal;
  /** The `_meta` member of the params, which is removed from them. Untrusted. */
  readonly meta: Record<string, unknown>;
  /**
   * The caller's place in the order in which callers were first answered: 0 for the first; Infinity if it never was.
   * Prefer lower ranks where a resource is scarce: new keys cost nothing.
   */
  readonly rank: number;
  /** Options that reach the service the call came through, for handlers that use rooms and notes themselves. */
  readonly service: Options;
  /** The maximum length of a frame to the caller, in characters. */
  readonly limit: number;
  /**
   * Sends a notification to the caller. It reaches whoever listens to the channel or reads the caller's mailbox;
   * {@link call} does not deliver it. Each takes a write from the budget that answers need, so a server drops it (event
   * `skipped`) while less than half of the budget is left or answers are waiting, and if it has not been written when
   * the call is answered. Does nothing after the answer, or where nothing can be sent.
   */
  readonly notify: (method: string, params?: Json | object) => void;
}

/**
 * Handles the calls of one method. Its return value, awaited, is the result; undefined becomes null. If it throws an
 * {@link RpcError}, the caller gets that error; a {@link Conflict} becomes code 1005, a {@link BadState} code -32602,
 * and anything else code -32603 without details.
 *
 * An async generator answers with several results under one id, for protocols that allow it, such as A2A: each yielded
 * value is sent before the next is requested, and the returned value comes last.
 *
 * The first parameter holds the params of the request, without `_meta`. They are untrusted JSON and have not been
 * checked.
 */
export type Handler = (params: any, context: CallContext) => unknown;

const LOCAL_ONLY = Symbol.for('technocore-rpc.local');
const IDEMPOTENT = Symbol.for('technocore-rpc.idempotent');
const STAYS_OPEN = Symbol.for('technocore-rpc.stays-open');

/**
 * Checks that a handler is a function.
 *
 * @internal
 * @throws a {@link TechnocoreError} `bad_option` if not
 */
export function checkHandler(handler: unknown, method: string): void {
  checkFunction(handler, `the handler of ${method}`);
}

function marked(handler: Handler, mark: symbol): Handler {
  checkHandler(handler, 'a method');
  return Object.assign((params: unknown, context: CallContext) => handler(params, context), handler, { [mark]: true });
}

function isMarked(handler: Handler | undefined, mark: symbol): boolean {
  return (handler as { [mark: symbol]: unknown } | undefined)?.[mark] === true;
}

/** Restricts a handler to callers inside this process. For remote callers the method does not exist. */
export function localOnly(handler: Handler): Handler {
  return marked(handler, LOCAL_ONLY);
}

/**
 * Declares that a handler may run twice for the same request without harm. If a server ends while such a request is
 * running, the request is run again after the restart; others are answered with error 1001.
 *
 * @returns a handler to register in place of the given one
 * @throws a {@link TechnocoreError} `bad_option` if it is not a function
 * @example
 * ```ts
 * import { idempotent, methods } from 'technocore-rpc';
 *
 * methods.set('square', idempotent(({ n }) => n * n));
 * ```
 */
export function idempotent(handler: Handler): Handler {
  return marked(handler, IDEMPOTENT);
}

/**
 * Declares that a handler mostly waits: a server gives it no deadline and does not count it towards `concurrency`. It
 * must limit how many of its calls wait, and end when its signal aborts.
 */
export function staysOpen(handler: Handler): Handler {
  return marked(handler, STAYS_OPEN);
}

// --- the dispatcher ----------------------------------------------------------------------------------------------

/** Where a frame came from, and how to send what precedes its answer. All members are optional. */
export interface DispatchContext {
  /** The caller's verified identity, usually a DID. Absent for a call from inside this process. */
  from?: string | undefined;
  /** The room or session that the frame came through. */
  room?: string | undefined;
  /** Options (base, `fetch`, clock) that reach the service it came through. */
  service?: Options | undefined;
  /** Aborts the handlers of this frame. Default: a signal that aborts when the dispatcher is closed. */
  signal?: AbortSignal | undefined;
  /**
   * Sends the frames that precede the answer (progress, log lines, parts of a stream) and those of subscriptions. It must
   * neither throw nor reject. If it returns a promise, that resolves once the frame is sent; if it never will be, to false
   * or to an {@link RpcError} that says why.
   */
  emit?: ((frame: Json) => unknown) | undefined;
  /** Sends the notifications of {@link CallContext.notify}, which may be dropped. Default: `emit`. */
  tell?: ((frame: Json) => unknown) | undefined;
  /** The maximum length of a frame to the caller, in characters; lists are paged to fit. Default {@link MAX_TEXT}. */
  limit?: number | undefined;
  /** The caller's {@link CallContext.rank}; default Infinity. */
  rank?: number | undefined;
  /** Called with what a handler threw if the caller gets only "Internal error". */
  onError?: ((error: unknown, method: string) => void) | undefined;
}

/** A protocol with method names of its own, such as MCP, that plugs into a dispatcher. */
export interface Layer {
  /** Whether a method name belongs to the protocol, even if no such method exists. */
  owns(method: string): boolean;
  /** Answers a well-formed request with such a name. Never throws or rejects. */
  request(frame: JsonObject, context: DispatchContext): Json | undefined | Promise<Json | undefined>;
  /** Takes a notification with such a name, well formed or not. Never throws. */
  notification(frame: JsonObject, context: DispatchContext): void;
  /** Whether a request or notification runs or changes anything. */
  acts(frame: JsonObject): boolean;
  /** Whether a request may run twice without harm. */
  idempotent(frame: JsonObject): boolean;
  /** Whether a request stays open for a long time by design, as a subscription does. */
  staysOpen(frame: JsonObject): boolean;
  /** The id of the request that a notification cancels; undefined if it cancels none. */
  cancels(frame: JsonObject): Id | undefined;
  /** Ends subscriptions. */
  close(): void;
}

/** Makes the {@link Layer} of a dispatcher from the dispatcher's options. */
export type MakeLayer = (o: DispatcherOptions) => Layer;

/** What a dispatcher knows about a tool: how to make the layer that calls it. */
export interface Layered {
  /** Makes that layer. */
  readonly layer?: MakeLayer;
}

/** The name and version of a client or server, with any other details (MCP's `Implementation`). */
export type Implementation = { name: string; version: string; [member: string]: Json };

/** Options of {@link createDispatcher}. */
export interface DispatcherOptions {
  /** Plain methods by name. Looked up at each call, so methods may be added and removed at any time. */
  methods?: Map<string, Handler> | undefined;
  /**
   * MCP tools by name. With a tools map, even an empty one, the dispatcher answers MCP's methods, and an error whose
   * request has no readable id has no `id` member.
   */
  tools?: Map<string, Layered> | undefined;
  /** The server's name and version, as MCP clients see it. */
  serverInfo?: Implementation | undefined;
  /** What a model should know about the server; part of the answer to MCP's `server/discover`. */
  instructions?: string | undefined;
  /** The maximum number of tools on a page of `tools/list`. Pages are also cut so that each fits into a frame. */
  pageSize?: number | undefined;
  /**
   * A secret of 32 bytes that seals the state handed to MCP callers. Default: random, so such state does not survive a
   * restart.
   */
  stateKey?: Uint8Array | undefined;
  /** The source of time. Default: the system clock. */
  clock?: Clock | undefined;
  /** The layer to use while `tools` is empty. Default: MCP. */
  layer?: MakeLayer | undefined;
  /** Whether requests that are too long for a message are read from notes; advertised to MCP clients. Default false. */
  spills?: boolean | undefined;
  /** Whether an error whose request has no readable id has the id null even if there are tools. Default false. */
  nullId?: boolean | undefined;
}

/** JSON-RPC 2.0 without a transport: made by {@link createDispatcher}. */
export interface Dispatcher {
  /**
   * Answers a parsed frame, a batch, or the text of either. Never rejects.
   *
   * @returns the answer; undefined if nothing should be sent back
   */
  dispatch(frame: unknown, context?: DispatchContext): Promise<Json | undefined>;
  /** Whether a request or notification runs or changes anything. If not, it need not be remembered. */
  acts(frame: unknown): boolean;
  /** Whether a request may run twice without harm: see {@link idempotent}. */
  idempotent(frame: unknown): boolean;
  /** Whether a request is a subscription, which stays open for a long time without doing work. */
  staysOpen(frame: unknown): boolean;
  /** The id of the request that a notification cancels; undefined if it cancels none. */
  cancels(frame: unknown): Id | undefined;
  /** Whether an array is a batch, whose members are answered one by one. Any other array gets a single error. */
  batchable(frames: unknown[]): boolean;
  /**
   * The answer to a value that is not a request, notification or response; undefined if nothing should be sent back.
   * Never runs anything.
   */
  invalid(member: unknown): Json | undefined;
  /** Ends subscriptions, and aborts the handlers that run without a signal from their caller. */
  close(): void;
}

const NO_META: Record<string, unknown> = /* @__PURE__ */ Object.freeze({});

/** One call while it runs. */
export class Call implements CallContext {
  readonly from: string;
  readonly id: Id | undefined;
  readonly room: string;
  readonly meta: Record<string, unknown>;
  readonly #outer: DispatchContext;
  readonly #closing: { readonly signal: AbortSignal };
  #over = false;

  constructor(frame: JsonObject, meta: unknown, outer: DispatchContext, closing: { readonly signal: AbortSignal }) {
    this.id = frame['id'] as Id | undefined;
    this.meta = isObject(meta) ? meta : NO_META;
    this.from = outer.from ?? '';
    this.room = outer.room ?? '';
    this.#outer = outer;
    this.#closing = closing;
  }

  get signal(): AbortSignal {
    return this.#outer.signal ?? this.#closing.signal;
  }

  get service(): Options {
    return this.#outer.service ?? {};
  }

  get rank(): number {
    return this.#outer.rank ?? NEVER;
  }

  /** A getter, so that `({ notify }) => …` works and calls that send no notification create no closure. */
  get notify(): (method: string, params?: Json | object) => void {
    return (method, params) => {
      const frame = rpcNotification(checkText(method, 'the method'), paramsOf(params));
      void this.#send(this.#outer.tell ?? this.#outer.emit, frame);
    };
  }

  get limit(): number {
    return this.#outer.limit ?? MAX_TEXT;
  }

  /** Sends a frame to the caller, unless the call has been answered. */
  emit(frame: JsonObject): unknown {
    return this.#send(this.#outer.emit, frame);
  }

  #send(sink: DispatchContext['emit'], frame: JsonObject): unknown {
    return this.#over ? undefined : sink?.(toJson(frame));
  }

  /** Sends one of several results. @throws an {@link RpcError} if it cannot be sent */
  async item(result: unknown): Promise<void> {
    if (this.id === undefined) return;
    const sent = await this.emit(rpcResult(this.id, toJson(result)));
    if (sent === false) throw new RpcError(INTERRUPTED, 'Interrupted: a part of the answer could not be sent');
    if (RpcError.is(sent)) throw sent;
  }

  /** True once the call is answered or cancelled. */
  get over(): boolean {
    return this.#over;
  }

  /** Ends the call: nothing more is emitted. */
  end(): void {
    this.#over = true;
  }

  answer(result: unknown): Json | undefined {
    const json = result === undefined ? null : toJson(result);
    this.end();
    return this.id === undefined ? undefined : rpcResult(this.id, json);
  }

  fail(error: unknown, method: string): Json | undefined {
    this.end();
    const [code, message, data] = describe(error);
    if (code === INTERNAL_ERROR) this.#outer.onError?.(error, method);
    return this.id === undefined ? undefined : rpcError(this.id, code, message, data);
  }
}

/** What the caller is told about an error. */
function describe(error: unknown): [code: number, message: string, data?: Json] {
  if (TechnocoreError.is(error)) {
    if (error.code === 'rpc') {
      const { code, message, data } = (error as RpcError).rpc;
      if (Number.isInteger(code) && typeof message === 'string') {
        try {
          return data === undefined ? [code, message] : [code, message, toJson(data)];
        } catch {
          // Data that JSON cannot represent is an internal error of the handler.
        }
      }
    } else if (error.code === 'bad_state') {
      const { from, to } = error as BadState;
      return [INVALID_PARAMS, error.message, { from, to }];
    } else if (error.code === 'conflict') {
      return [CONFLICT, error.message, { actual: (error as { actual?: string }).actual ?? null }];
    }
  }
  return [INTERNAL_ERROR, 'Internal error'];
}

function isGenerator(value: unknown): value is AsyncGenerator {
  const { next, [Symbol.asyncIterator]: iterator } = (value ?? {}) as Partial<AsyncGenerator>;
  return typeof next === 'function' && typeof iterator === 'function';
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === 'object' && value !== null && typeof (value as { then?: unknown }).then === 'function';
}

const NONE: Map<string, any> = new Map();

/**
 * The maps of methods and tools among the options; an empty one for one that is not there.
 *
 * @throws a {@link TechnocoreError} `bad_option` if one is not a Map
 */
function registriesOf(o: DispatcherOptions): { methods: Map<string, Handler>; tools: Map<string, Layered> } {
  const { methods = NONE, tools = NONE } = o;
  // Not `instanceof`: it may be a Map of another realm.
  if (typeof methods?.get !== 'function')
    throw new TechnocoreError('bad_option', 'the option methods must be a Map of handlers by name');
  if (typeof tools?.get !== 'function')
    throw new TechnocoreError('bad_option', 'the option tools must be a Map of tools by name');
  return { methods, tools };
}

class JsonRpc implements Dispatcher {
  readonly #o: DispatcherOptions;
  readonly #methods: ReadonlyMap<string, Handler>;
  #layer: Layer | undefined;
  #closing: AbortController | undefined;

  constructor(o: DispatcherOptions) {
    this.#o = o;
    this.#methods = registriesOf(o).methods;
    checkNumbers(o, ['pageSize']);
    clockOf(o);
    const { stateKey, instructions, serverInfo } = o;
    if (stateKey !== undefined) check32(stateKey, 'the option stateKey');
    if (instructions !== undefined) checkText(instructions, 'the option instructions');
    if (serverInfo !== undefined) {
      const { name, version } = checkObject(serverInfo, 'the option serverInfo');
      checkText(name, 'the name in the option serverInfo');
      checkText(version, 'the version in the option serverInfo');
    }
  }

  /** Created on first use: most handlers never look at their signal. */
  get signal(): AbortSignal {
    return (this.#closing ??= new AbortController()).signal;
  }

  async dispatch(frame: unknown, context: DispatchContext = {}): Promise<Json | undefined> {
    checkObject(context, 'the context');
    let value = frame;
    if (typeof frame === 'string') {
      try {
        value = JSON.parse(frame);
      } catch {
        return rpcError(this.#errorId(undefined), PARSE_ERROR, 'Parse error');
      }
    }
    try {
      return await (Array.isArray(value) ? this.#batch(value, context) : this.#one(value, context));
    } catch {
      // Text cannot cause this: the frame is an object with a getter, or a proxy, that throws.
      return rpcError(this.#errorId(undefined), INVALID_REQUEST, 'Invalid Request');
    }
  }

  acts(frame: unknown): boolean {
    const kind = classify(frame);
    if (kind !== 'request' && kind !== 'notification') return false;
    const member = frame as JsonObject;
    const method = member['method'] as string;
    const handler = this.#methods.get(method);
    // Only used for remote calls, for which local methods do not exist.
    return handler === undefined ? this.#owner(method)?.acts(member) === true : !isMarked(handler, LOCAL_ONLY);
  }

  idempotent(frame: unknown): boolean {
    return this.#declares(frame, 'idempotent', IDEMPOTENT);
  }

  staysOpen(frame: unknown): boolean {
    return this.#declares(frame, 'staysOpen', STAYS_OPEN);
  }

  /** Whether a request has a property, according to the mark on its handler or to its layer. */
  #declares(frame: unknown, what: 'idempotent' | 'staysOpen', mark: symbol): boolean {
    if (classify(frame) !== 'request') return false;
    const request = frame as JsonObject;
    const method = request['method'] as string;
    const handler = this.#methods.get(method);
    return handler === undefined ? this.#owner(method)?.[what](request) === true : isMarked(handler, mark);
  }

  cancels(frame: unknown): Id | undefined {
    if (classify(frame) !== 'notification') return undefined;
    const notification = frame as JsonObject;
    return this.#owner(notification['method'])?.cancels(notification);
  }

  batchable(frames: unknown[]): boolean {
    return frames.length > 0 && !frames.some((frame) => isObject(frame) && this.#owner(frame['method']) !== undefined);
  }

  invalid(member: unknown): Json | undefined {
    const { id, method } = isObject(member) ? member : {};
    if (id === undefined && this.#owner(method) !== undefined) return undefined;
    return rpcError(this.#errorId(id), INVALID_REQUEST, 'Invalid Request');
  }

  close(): void {
    this.#layer?.close();
    (this.#closing ??= new AbortController()).abort();
  }

  async #batch(frames: unknown[], context: DispatchContext): Promise<Json | undefined> {
    if (!this.batchable(frames)) {
      return rpcError(this.#errorId(undefined), INVALID_REQUEST, 'Invalid Request: this array is not a batch');
    }
    const answers = await Promise.all(frames.map((frame) => this.#one(frame, context)));
    const sent = answers.filter((answer) => answer !== undefined);
    return sent.length === 0 ? undefined : sent;
  }

  #one(frame: unknown, context: DispatchContext): Json | undefined | Promise<Json | undefined> {
    const kind = classify(frame);
    if (kind === 'response') return undefined;
    const member = frame as JsonObject;
    if (kind === 'invalid') return this.invalid(frame);
    const method = member['method'] as string;
    const handler = this.#methods.get(method);
    if (handler !== undefined && !(context.from !== undefined && isMarked(handler, LOCAL_ONLY))) {
      return this.#run(handler, method, member, context);
    }
    const layer = this.#owner(method);
    if (kind === 'notification') return layer?.notification(member, context) as undefined;
    if (layer !== undefined) return layer.request(member, context);
    return rpcError(member['id'] as Id, METHOD_NOT_FOUND, `Method not found: ${method.slice(0, 80)}`);
  }

  #run(
    handler: Handler,
    method: string,
    frame: JsonObject,
    context: DispatchContext,
  ): Json | undefined | Promise<Json | undefined> {
    let params: unknown = frame['params'];
    let meta: unknown;
    if (isObject(params) && Object.hasOwn(params, '_meta'))
      ({ _meta: meta, ...params } = params as Record<string, unknown>);
    const call = new Call(frame, meta, context, this);
    try {
      // A handler may have been registered after the server checked those it started with.
      checkHandler(handler, method);
      const result = handler(params, call);
      if (isThenable(result)) return this.#settle(result, call, method);
      return isGenerator(result) ? this.#settle(this.#drain(result, call), call, method) : call.answer(result);
    } catch (error) {
      return call.fail(error, method);
    }
  }

  /** Sends what a generator yields. @returns its return value */
  async #drain(results: AsyncGenerator, call: Call): Promise<unknown> {
    try {
      for (;;) {
        const { value, done } = await results.next();
        if (done) return value;
        await call.item(value);
      }
    } finally {
      await results.return(undefined);
    }
  }

  async #settle(result: PromiseLike<unknown>, call: Call, method: string): Promise<Json | undefined> {
    try {
      return call.answer(await result);
    } catch (error) {
      return call.fail(error, method);
    }
  }

  /** The layer to which a method belongs. A plain method of the same name takes precedence. */
  #owner(method: unknown): Layer | undefined {
    if (typeof method !== 'string' || this.#methods.has(method)) return undefined;
    const layer = this.#layered();
    return layer?.owns(method) ? layer : undefined;
  }

  #layered(): Layer | undefined {
    if (this.#layer === undefined && this.#o.tools !== undefined) {
      const [first] = this.#o.tools.values();
      this.#layer = (first?.layer ?? this.#o.layer)?.(this.#o);
    }
    return this.#layer;
  }

  /**
   * The id in the answer to an invalid request: the request's id if it can be read, else null, or no id where MCP is
   * spoken.
   */
  #errorId(id: unknown): Id | undefined {
    if (this.#o.nullId || this.#layered() === undefined) return isId(id) ? id : null;
    return typeof id === 'string' || Number.isSafeInteger(id) ? (id as Id) : undefined;
  }
}

/** Makes a dispatcher with the given methods and tools and no others. */
export function createDispatcher(o: DispatcherOptions = {}): Dispatcher {
  return new JsonRpc(o);
}

const shared = new WeakMap<Map<string, Handler>, WeakMap<Map<string, Layered>, Dispatcher>>();

/**
 * {@link Dispatcher.dispatch} on a dispatcher that is cached for each pair of `methods` and `tools`. Other options
 * count only when it is created.
 */
export function dispatch(
  frame: unknown,
  context?: DispatchContext,
  o: DispatcherOptions = {},
): Promise<Json | undefined> {
  const { methods, tools } = registriesOf(o);
  const byTools = getOrMake(shared, methods, () => new WeakMap<Map<string, Layered>, Dispatcher>());
  return getOrMake(byTools, tools, () => createDispatcher(o)).dispatch(frame, context);
}
