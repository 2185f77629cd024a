/**
 * JSON-RPC 2.0 without I/O: a frame in, its answer out. Plain methods are entries of a Map. A protocol with method names
 * of its own, such as MCP, plugs in as a {@link Layer}, which the tools of a dispatcher bring along.
 *
 * A request is an object with `jsonrpc: "2.0"`, a string `method`, an `id` (string, number or null) and optional `params`
 * (array or object). Without `id` it is a notification, which is never answered. Responses are never answered either.
 *
 * @module
 */
import { type BadState, checkFunction, checkNumbers, checkObject, RpcError, TechnocoreError } from './errors.ts';
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
/**
 * Begun and not known to be finished: the server stopped or died meanwhile, or it may have been done by one before it.
 */
export const INTERRUPTED = 1001;
/** The condition of a conditional write did not hold; `data.actual` is the present value. */
const CONFLICT = 1005;

/** A request frame. */
export function rpcRequest(id: Id, method: string, params?: Json): JsonObject {
  return params === undefined ? { jsonrpc: '2.0', id, method } : { jsonrpc: '2.0', id, method, params };
}

/** A notification frame. */
export function rpcNotification(method: string, params?: Json | object): JsonObject {
  // `object` admits interfaces, which have no index signature. What is not JSON is found out when it is encoded.
  return params === undefined ? { jsonrpc: '2.0', method } : { jsonrpc: '2.0', method, params: params as Json };
}

/** A response frame that carries a result. */
export function rpcResult(id: Id, result: Json): JsonObject {
  return { jsonrpc: '2.0', id, result };
}

/**
 * A response frame that carries an error. Without `id` it has no such member, which MCP requires if no id could be read.
 */
export function rpcError(id: Id | undefined, code: number, message: string, data?: Json): JsonObject {
  const error = data === undefined ? { code, message } : { code, message, data };
  return id === undefined ? { jsonrpc: '2.0', error } : { jsonrpc: '2.0', id, error };
}

/**
 * Makes the error by which a handler rejects its params: JSON-RPC code -32602. Throw it.
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

/** True for a valid id. Numbers beyond 2^53 are not: they have lost digits and could not be repeated unchanged. */
export function isId(value: unknown): value is Id {
  return (
    typeof value === 'string' ||
    value === null ||
    (typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER)
  );
}

/**
 * The kind of one member of a frame. Anything with a `result` or an `error` and no `method` is a response, even if it is
 * malformed, so that two peers never answer each other's answers.
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
 * @throws an {@link RpcError} if the response carries an error
 * @throws a {@link TechnocoreError} `bad_response` if it does not have exactly one of result and error, or a malformed
 * error
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
 * A value as JSON would carry it. Plain data is returned as it is, anything else after a round trip through JSON.
 *
 * @throws a {@link TechnocoreError} `bad_frame` if it is cyclic, holds a BigInt, or has no JSON form
 */
export function toJson(value: unknown): Json {
  return isPlain(value, 64) ? (value as Json) : JSON.parse(stringify(value));
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

/** True for a method name that belongs to MCP, whether there is such a method or not. */
export function isMcpMethod(method: string): boolean {
  return /^(?:(?:server|tools|prompts|resources|completion|subscriptions|logging|notifications)\/|(?:initialize|ping)$)/.test(
    method,
  );
}

// --- handlers ----------------------------------------------------------------------------------------------------

/** What a {@link Handler} knows about the call that it answers. */
export interface CallContext {
  /**
   * Who calls, proved: the caller's `did:key`; over a parley session `parley:` and the base64url of the caller's node id;
   * `''` for a call from inside this process. Decide by nothing else who may do what.
   */
  readonly from: string;
  /** The id of the request; undefined for a notification. */
  readonly id: Id | undefined;
  /** The room or session through which the call came; `''` if there is none. */
  readonly room: string;
  /**
   * Aborts when the server's deadline passes, when its drain ends, and when an MCP caller cancels. (An A2A task has a
   * signal of its own.) A server does not learn that a plain call was given up: its deadline ends the handler.
   */
  readonly signal: AbortSignal;
  /** The `_meta` member of the params, which is removed from them. Untrusted. */
  readonly meta: Record<string, unknown>;
  /**
   * How early the caller was first answered, among all callers: 0 for the first; Infinity if it never was. Where
   * something is scarce, prefer lower ranks: new keys cost nothing.
   */
  readonly rank: number;
  /** Options that reach the service through which the call came, for handlers that use rooms and notes themselves. */
  readonly service: Options;
  /** The most characters of one frame to the caller. */
  readonly limit: number;
  /**
   * Sends a notification to the caller. Those who listen to the channel or read the caller's mailbox see it; {@link call}
   * does not pass it on. Each is a write of the budget that answers need, so a server drops it (event `skipped`) while
   * less than half of the budget is left or answers wait, and when it has not been written before the call is answered.
   * Does nothing after the answer, or where nothing can be sent.
   */
  readonly notify: (method: string, params?: Json | object) => void;
}

/**
 * Answers the calls of one method. What it returns, or its promise resolves to, is the result; undefined becomes null. If
 * it throws an {@link RpcError}, the caller gets that; a {@link Conflict} becomes code 1005, a {@link BadState} code
 * -32602, and anything else code -32603 without any detail.
 *
 * An async generator answers with several results under one id, for protocols that allow it, as A2A does: each value that
 * it yields is sent before it is asked for the next, and what it returns is the last.
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

function has(handler: Handler | undefined, mark: symbol): boolean {
  return (handler as { [mark: symbol]: unknown } | undefined)?.[mark] === true;
}

/** Restricts a handler to callers inside this process. For remote callers the method does not exist. */
export function localOnly(handler: Handler): Handler {
  return marked(handler, LOCAL_ONLY);
}

/**
 * Declares that a handler may run twice for the same request without harm. A request of such a method that was
 * interrupted by the end of a server is run again, where others are answered with error 1001.
 *
 * @returns a handler to be registered in place of the one given
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
 * Declares that a handler mostly waits: a server sets it no deadline, and does not count it among the handlers that run.
 * It must bound how many of its calls wait, and end when its signal aborts.
 */
export function staysOpen(handler: Handler): Handler {
  return marked(handler, STAYS_OPEN);
}

// --- the dispatcher ----------------------------------------------------------------------------------------------

/** Where a frame came from, and what may be sent before its answer. All members are optional. */
export interface DispatchContext {
  /** The caller's identity, already verified: usually a DID. Absent for a call from inside this process. */
  from?: string | undefined;
  /** The room or session through which the frame came. */
  room?: string | undefined;
  /** Options (base, `fetch`, clock) that reach the service through which it came. */
  service?: Options | undefined;
  /** Aborts the handlers of this frame. Default: a signal that aborts when the dispatcher is closed. */
  signal?: AbortSignal | undefined;
  /**
   * Takes the frames that precede the answer (progress, log lines, parts of a stream) and those of subscriptions. It must
   * neither throw nor reject. If it returns a promise, that resolves once the frame is sent: to false if it never will
   * be, or to an {@link RpcError} that says why.
   */
  emit?: ((frame: Json) => unknown) | undefined;
  /** Takes the notifications of {@link CallContext.notify}, which may be dropped. Default: `emit`. */
  tell?: ((frame: Json) => unknown) | undefined;
  /** The most characters of one frame to the caller, by which lists are cut into pages. Default {@link MAX_TEXT}. */
  limit?: number | undefined;
  /** The caller's {@link CallContext.rank}; default Infinity. Where something is scarce, lower ranks go first. */
  rank?: number | undefined;
  /** Called with what a handler threw when the caller gets only "Internal error". */
  onError?: ((error: unknown, method: string) => void) | undefined;
}

/** A protocol with method names of its own, as it plugs into a dispatcher. MCP is one. */
export interface Layer {
  /** True for a method name that belongs to the protocol, whether there is such a method or not. */
  owns(method: string): boolean;
  /** Answers a well-formed request with such a name. Never throws or rejects. */
  request(frame: JsonObject, context: DispatchContext): Json | undefined | Promise<Json | undefined>;
  /** Takes a notification with such a name, well formed or not. Never throws. */
  notification(frame: JsonObject, context: DispatchContext): void;
  /** Whether a request or notification runs or changes anything. */
  acts(frame: JsonObject): boolean;
  /** Whether a request may run twice without harm. */
  idempotent(frame: JsonObject): boolean;
  /** Whether a request stays unanswered for long by its nature, as a subscription does. */
  staysOpen(frame: JsonObject): boolean;
  /** The id of the request that a notification cancels; undefined if it cancels none. */
  cancels(frame: JsonObject): Id | undefined;
  /** Ends subscriptions. */
  close(): void;
}

/** Makes the {@link Layer} of a dispatcher out of the dispatcher's options. */
export type MakeLayer = (o: DispatcherOptions) => Layer;

/** What a dispatcher knows of a tool: how to make the layer that calls it. */
export interface Layered {
  /** Makes that layer. */
  readonly layer?: MakeLayer;
}

/** The name and version of a client or server, and what else it says about itself (MCP Implementation). */
export type Implementation = { name: string; version: string; [member: string]: Json };

/** Options of {@link createDispatcher}: what it answers with. */
export interface DispatcherOptions {
  /** Plain methods by name. Looked up at each call, so that methods may be added and removed. */
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
  /** The most tools on one page of `tools/list`. Pages are also cut so that each fits into one frame. */
  pageSize?: number | undefined;
  /**
   * A secret of 32 bytes that seals the state handed to MCP callers. Default: random, so that none survives a restart.
   */
  stateKey?: Uint8Array | undefined;
  /** The source of time. Default: the machine's clock. */
  clock?: Clock | undefined;
  /** The layer to use while `tools` is empty. Default: MCP. */
  layer?: MakeLayer | undefined;
  /** Whether requests that are too long for a message are read from notes; announced to MCP clients. Default false. */
  spills?: boolean | undefined;
  /** Whether an error whose request has no readable id has the id null although there are tools. Default false. */
  nullId?: boolean | undefined;
}

/** JSON-RPC 2.0 without a transport: made by {@link createDispatcher}. */
export interface Dispatcher {
  /**
   * Answers a frame: a parsed one, a batch, or the text of either. Never rejects.
   *
   * @returns the answer; undefined if nothing is to be sent back
   */
  dispatch(frame: unknown, context?: DispatchContext): Promise<Json | undefined>;
  /** Whether a request or notification runs or changes anything. One that does not need not be remembered. */
  acts(frame: unknown): boolean;
  /** Whether a request may run twice without harm: see {@link idempotent}. */
  idempotent(frame: unknown): boolean;
  /** Whether a request is a subscription: it stays open for long and does no work meanwhile. */
  staysOpen(frame: unknown): boolean;
  /** The id of the request that a notification cancels; undefined if it cancels none. */
  cancels(frame: unknown): Id | undefined;
  /** Whether an array is a batch, whose members are answered one by one. Any other array gets one error. */
  batchable(frames: unknown[]): boolean;
  /**
   * The answer to a member of a frame that is not a request, notification or response; undefined if nothing is to be sent
   * back. Never runs anything.
   */
  invalid(member: unknown): Json | undefined;
  /** Ends subscriptions, and aborts the handlers that run without a signal of their caller's. */
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

  /** A getter, so that `({ notify }) => …` works and a call that sends no notification makes no closure. */
  get notify(): (method: string, params?: Json | object) => void {
    return (method, params) => void this.#send(this.#outer.tell ?? this.#outer.emit, rpcNotification(method, params));
  }

  get limit(): number {
    return this.#outer.limit ?? MAX_TEXT;
  }

  /** Sends a frame to the caller, unless the call is answered already. */
  emit(frame: JsonObject): unknown {
    return this.#send(this.#outer.emit, frame);
  }

  #send(sink: DispatchContext['emit'], frame: JsonObject): unknown {
    return this.#over ? undefined : sink?.(toJson(frame));
  }

  /** Sends one of several results. @throws RpcError if it cannot be sent */
  async item(result: unknown): Promise<void> {
    if (this.id === undefined) return;
    const sent = await this.emit(rpcResult(this.id, toJson(result)));
    if (sent === false) throw new RpcError(INTERNAL_ERROR, 'A part of the answer could not be sent');
    if (RpcError.is(sent)) throw sent;
  }

  /** True once the call is answered or cancelled. */
  get over(): boolean {
    return this.#over;
  }

  /** Ends the call: nothing is emitted any more. */
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

/** What a caller learns of an error. */
function describe(error: unknown): [code: number, message: string, data?: Json] {
  if (TechnocoreError.is(error)) {
    if (error.code === 'rpc') {
      const { code, message, data } = (error as RpcError).rpc;
      if (Number.isInteger(code) && typeof message === 'string') {
        try {
          return data === undefined ? [code, message] : [code, message, toJson(data)];
        } catch {
          // Data that JSON cannot carry is an error of the handler like any other.
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

class JsonRpc implements Dispatcher {
  readonly #o: DispatcherOptions;
  readonly #methods: ReadonlyMap<string, Handler>;
  #layer: Layer | undefined;
  #closing: AbortController | undefined;

  constructor(o: DispatcherOptions) {
    this.#o = o;
    this.#methods = o.methods ?? new Map();
    if (typeof this.#methods.get !== 'function')
      throw new TechnocoreError('bad_option', 'the option methods must be a Map of handlers by name');
    if (o.tools !== undefined && typeof o.tools.get !== 'function')
      throw new TechnocoreError('bad_option', 'the option tools must be a Map of tools by name');
    checkNumbers(o, ['pageSize']);
  }

  /** Made at first use: most handlers never look at their signal. */
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
    return Array.isArray(value) ? this.#batch(value, context) : this.#one(value, context);
  }

  acts(frame: unknown): boolean {
    const kind = classify(frame);
    if (kind !== 'request' && kind !== 'notification') return false;
    const member = frame as JsonObject;
    const method = member['method'] as string;
    const handler = this.#methods.get(method);
    // Only asked about remote calls, for which a local method does not exist.
    return handler === undefined ? this.#owner(method)?.acts(member) === true : !has(handler, LOCAL_ONLY);
  }

  idempotent(frame: unknown): boolean {
    return this.#declares(frame, 'idempotent', IDEMPOTENT);
  }

  staysOpen(frame: unknown): boolean {
    return this.#declares(frame, 'staysOpen', STAYS_OPEN);
  }

  /** Whether a request is declared to be something, by the mark of its handler or by its layer. */
  #declares(frame: unknown, what: 'idempotent' | 'staysOpen', mark: symbol): boolean {
    if (classify(frame) !== 'request') return false;
    const request = frame as JsonObject;
    const method = request['method'] as string;
    const handler = this.#methods.get(method);
    return handler === undefined ? this.#owner(method)?.[what](request) === true : has(handler, mark);
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
      return rpcError(this.#errorId(undefined), INVALID_REQUEST, 'Invalid Request: this array is no batch');
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
    if (handler !== undefined && !(context.from !== undefined && has(handler, LOCAL_ONLY))) {
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

  /** Sends what a generator yields. @returns what it returned */
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
   * The id of an answer to an invalid request: the id if it can be read, else null, or where MCP is spoken no id member.
   */
  #errorId(id: unknown): Id | undefined {
    if (this.#o.nullId || this.#layered() === undefined) return isId(id) ? id : null;
    return typeof id === 'string' || Number.isSafeInteger(id) ? (id as Id) : undefined;
  }
}

/** Makes a dispatcher of the methods and tools given, and nothing else. */
export function createDispatcher(o: DispatcherOptions = {}): Dispatcher {
  return new JsonRpc(o);
}

const NONE: Map<string, any> = new Map();
const shared = new WeakMap<Map<string, Handler>, WeakMap<Map<string, Layered>, Dispatcher>>();

/**
 * {@link Dispatcher.dispatch} through a dispatcher that is made once for each pair of `methods` and `tools`. Other
 * options count only when it is made.
 */
export function dispatch(
  frame: unknown,
  context?: DispatchContext,
  o: DispatcherOptions = {},
): Promise<Json | undefined> {
  const { methods = NONE, tools = NONE } = o;
  const byTools = getOrMake(shared, methods, () => new WeakMap<Map<string, Layered>, Dispatcher>());
  return getOrMake(byTools, tools, () => createDispatcher(o)).dispatch(frame, context);
}
