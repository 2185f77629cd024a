/**
 * JSON-RPC 2.0 itself: a frame in, the answer out, no I/O. Plain methods live in a Map; a protocol with method names of
 * its own (MCP) plugs in as a {@link Layer}, which the tools of a dispatcher bring along.
 *
 * A request is an object with `jsonrpc: "2.0"`, a string `method`, an `id` (string, number or null) and perhaps `params`
 * (array or object); without `id` it is a notification and never answered. Responses are never answered either.
 *
 * @module
 */
import { type BadState, checkObject, RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json, MAX_TEXT, stringify } from './frames.ts';
import type { Clock, Options } from './http.ts';
import { getOrMake } from './maps.ts';
import { NEVER } from './turns.ts';

// --- frames ------------------------------------------------------------------------------------------------------

/** A JSON object. */
export type JsonObject = { [key: string]: Json };
/** The id of a request, echoed with its type: `1` and `"1"` are two ids. */
export type Id = string | number | null;

export const PARSE_ERROR = -32700;
export const INVALID_REQUEST = -32600;
export const METHOD_NOT_FOUND = -32601;
export const INVALID_PARAMS = -32602;
export const INTERNAL_ERROR = -32603;
/** Begun and not finished: the server stopped, or died, in the middle of it; or before this one began. */
export const INTERRUPTED = 1001;
/** A compare-and-set lost; `data.actual` is what is there. */
export const CONFLICT = 1005;

/** A request frame. */
export function rpcRequest(id: Id, method: string, params?: Json): JsonObject {
  return params === undefined ? { jsonrpc: '2.0', id, method } : { jsonrpc: '2.0', id, method, params };
}

/** A notification frame. */
export function rpcNotification(method: string, params?: Json): JsonObject {
  return params === undefined ? { jsonrpc: '2.0', method } : { jsonrpc: '2.0', method, params };
}

/** A response frame that carries a result. */
export function rpcResult(id: Id, result: Json): JsonObject {
  return { jsonrpc: '2.0', id, result };
}

/** A response frame that carries an error. `id` undefined: the frame has no id member, as MCP wants it when none could be read. */
export function rpcError(id: Id | undefined, code: number, message: string, data?: Json): JsonObject {
  const error = data === undefined ? { code, message } : { code, message, data };
  return id === undefined ? { jsonrpc: '2.0', error } : { jsonrpc: '2.0', id, error };
}

/** Parameters of the right shape with the wrong content: a handler that throws this answers -32602. */
export function badParams(message: string, data?: Json): RpcError {
  return new RpcError(INVALID_PARAMS, message, data);
}

/** True for an id that can be echoed unchanged: no number beyond 2^53, which has lost digits already. */
export function isId(value: unknown): value is Id {
  return (
    typeof value === 'string' ||
    value === null ||
    (typeof value === 'number' && Math.abs(value) <= Number.MAX_SAFE_INTEGER)
  );
}

/**
 * What one member of a frame is. Whatever has a `result` or an `error` and no `method` is a response, well formed or not,
 * so that no two peers ever answer each other's answers.
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
 * @throws RpcError the response carries an error
 * @throws TechnocoreError `bad_response`: neither exactly one of result and error, nor an error as the specification wants it
 */
export function resultOf(response: unknown): Json {
  if (isObject(response) && response['jsonrpc'] === '2.0' && 'result' in response !== 'error' in response) {
    const { result, error } = response;
    if (result !== undefined) return result as Json;
    if (isObject(error) && Number.isInteger(error['code']) && typeof error['message'] === 'string') {
      throw new RpcError(error['code'] as number, error['message'], error['data']);
    }
  }
  throw new TechnocoreError(
    'bad_response',
    'the other side sent a response that is none by the JSON-RPC 2.0 specification',
  );
}

/**
 * A value as JSON would carry it. Plain data is returned as it is, anything else as what `JSON.stringify` makes of it.
 *
 * @throws TechnocoreError `bad_frame`: cyclic, a BigInt, or without JSON form
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

/** The names that MCP has for its methods, known or not. */
export function isMcpMethod(method: string): boolean {
  return /^(?:(?:server|tools|prompts|resources|completion|subscriptions|logging|notifications)\/|(?:initialize|ping)$)/.test(
    method,
  );
}

// --- handlers ----------------------------------------------------------------------------------------------------

/** What a handler is told about the call it answers. */
export interface CallContext {
  /**
   * The caller's DID; over a parley channel `parley:` and the base64url of the key that the session proved; `''` for a call from
   * inside this process.
   */
  readonly from: string;
  /** Undefined for a notification. */
  readonly id: Id | undefined;
  /** The room the call came from; `''` where there is none. */
  readonly room: string;
  /**
   * Aborts when the deadline passes, at the end of a server's drain, and when an MCP caller cancels; a task of A2A has a signal
   * of its own. That a plain call was given up the server is not told: the deadline bounds its handler.
   */
  readonly signal: AbortSignal;
  /** `params._meta`, which params no longer holds. */
  readonly meta: Record<string, unknown>;
  /** How early the caller came among those that were answered, from 0; Infinity: it never was. For what there is too little of. */
  readonly rank: number;
  /** How to reach the service that the call came through, for handlers that use rooms and notes themselves. */
  readonly service: Options;
  /** Most characters that one frame to the caller holds. */
  readonly limit: number;
  /**
   * Sends a notification to the caller: whoever listens to the channel, or reads the caller's mailbox, sees it; `call` does
   * not hand it out. Each is a write of the budget that answers need, so a server leaves out (event `skipped`) what comes
   * while less than half of that is left, or answers wait, and what is not on its way when the call is answered. Does
   * nothing after that, or where nothing can be sent.
   */
  readonly notify: (method: string, params?: Json) => void;
}

/**
 * Answers one method. What it returns, or what its promise resolves to, is the result; undefined becomes null. A thrown
 * {@link RpcError} is answered as it is, a Conflict as 1005, a BadState as -32602, anything else as -32603 without any
 * detail.
 *
 * An async generator answers with many results under the one id, where a protocol has that: each one it yields goes out
 * before it is asked for the next, and what it returns is the last.
 */
export type Handler = (params: any, context: CallContext) => unknown;

const LOCAL_ONLY = Symbol.for('technocore-rpc.local');
const IDEMPOTENT = Symbol.for('technocore-rpc.idempotent');
const STAYS_OPEN = Symbol.for('technocore-rpc.stays-open');

/**
 * @internal
 * @throws TechnocoreError `bad_option`: no function, so that nothing could be answered
 */
export function checkHandler(handler: unknown, method: string): void {
  if (typeof handler === 'function') return;
  throw new TechnocoreError('bad_option', `the handler of ${method} is no function: ${typeof handler}`);
}

function marked(handler: Handler, mark: symbol): Handler {
  checkHandler(handler, 'a method');
  return Object.assign((params: unknown, context: CallContext) => handler(params, context), handler, { [mark]: true });
}

function has(handler: Handler | undefined, mark: symbol): boolean {
  return (handler as { [mark: symbol]: unknown } | undefined)?.[mark] === true;
}

/** The handler for callers inside this process alone: for remote ones the method does not exist. */
export function localOnly(handler: Handler): Handler {
  return marked(handler, LOCAL_ONLY);
}

/** The handler, declared harmless to run twice: a server that died in the middle of it may run it again. */
export function idempotent(handler: Handler): Handler {
  return marked(handler, IDEMPOTENT);
}

/**
 * The handler, declared to wait more than to work: a server lets it wait as long as it likes, beside those that work. It
 * must bound how many of its calls wait, and end when its signal aborts.
 */
export function staysOpen(handler: Handler): Handler {
  return marked(handler, STAYS_OPEN);
}

// --- the dispatcher ----------------------------------------------------------------------------------------------

/** Where a frame came from, and what may be done meanwhile. */
export interface DispatchContext {
  /** The caller's checked DID; absent for a call from inside this process. */
  from?: string | undefined;
  room?: string | undefined;
  /** Base, `fetch` and clock of the service it came through. */
  service?: Options | undefined;
  /** Aborts the handlers of this frame. Without it they get one that aborts when the dispatcher is closed. */
  signal?: AbortSignal | undefined;
  /**
   * Takes the frames that precede the answer, and those of subscriptions. It must not throw, nor reject. A promise resolves
   * once the frame is on its way, to false when it never will be.
   */
  emit?: ((frame: Json) => unknown) | undefined;
  /** Takes the notifications that handlers send with {@link CallContext.notify}, which may be left out; default: `emit`. */
  tell?: ((frame: Json) => unknown) | undefined;
  /** Most characters of one frame on the way back, by which lists are cut into pages. Default {@link MAX_TEXT}. */
  limit?: number | undefined;
  /** How early the caller came, among all: the lower, the earlier; default: just now. Where there is too little for all, it goes to these. */
  rank?: number | undefined;
  /** Told what a handler threw when the caller learns only "Internal error". */
  onError?: ((error: unknown, method: string) => void) | undefined;
}

/** How a protocol with method names of its own plugs into a dispatcher. */
export interface Layer {
  /** True for a method name of the protocol, known or not. */
  owns(method: string): boolean;
  /** Answers a well-formed request of such a name. Never throws, never rejects. */
  request(frame: JsonObject, context: DispatchContext): Json | undefined | Promise<Json | undefined>;
  /** Takes a notification of such a name, well formed or not. Never throws. */
  notification(frame: JsonObject, context: DispatchContext): void;
  /** Whether a request or notification of such a name makes anything run, or change. */
  acts(frame: JsonObject): boolean;
  /** Whether a request may run twice. */
  idempotent(frame: JsonObject): boolean;
  /** Whether a request stays unanswered for long by its nature. */
  staysOpen(frame: JsonObject): boolean;
  /** The id of the request that a notification calls off. */
  cancels(frame: JsonObject): Id | undefined;
  close(): void;
}

export type MakeLayer = (o: DispatcherOptions) => Layer;

/** What a tool must carry to be called: how to make the layer that knows it. */
export interface Layered {
  readonly layer?: MakeLayer;
}

/** What a dispatcher answers with. */
export interface DispatcherOptions {
  /** Plain methods by name. Looked up at each call, so methods may come and go. */
  methods?: Map<string, Handler> | undefined;
  /** Tools by name. With a tools map the layer that its tools need is on, and an error without readable id has no id member. */
  tools?: Map<string, Layered> | undefined;
  /** How the server names itself. */
  serverInfo?: { name: string; version: string; [key: string]: Json } | undefined;
  /** What the server wants a model to know about it. */
  instructions?: string | undefined;
  /** Most tools on one page of a list, on which no more than one frame's worth fits in any case. */
  pageSize?: number | undefined;
  /** Secret of 32 bytes that seals state handed to callers; random when absent, so that no state survives a restart. */
  stateKey?: Uint8Array | undefined;
  clock?: Clock | undefined;
  /** The layer to use while `tools` is still empty. */
  layer?: MakeLayer | undefined;
  /** Whether requests too large for a message are read where they were spilled: whoever asks what the server is is told so. */
  spills?: boolean | undefined;
  /** Whether an error without readable id has the id null although there are tools. */
  nullId?: boolean | undefined;
}

/** JSON-RPC 2.0 without any transport: a frame in, its answer out. */
export interface Dispatcher {
  /**
   * Answers a frame, a batch, or the text of one. Never rejects.
   *
   * @returns the answer; undefined when nothing goes back
   */
  dispatch(frame: unknown, context?: DispatchContext): Promise<Json | undefined>;
  /** Whether a request or notification makes anything run; what does not need not be remembered. */
  acts(frame: unknown): boolean;
  /** Whether a request may run twice without harm, by its handler's own declaration. */
  idempotent(frame: unknown): boolean;
  /** Whether a request is a subscription: open for long, bounded by the dispatcher, and no work in progress. */
  staysOpen(frame: unknown): boolean;
  /** The id of the request that a notification calls off, for whoever still holds it back. */
  cancels(frame: unknown): Id | undefined;
  /** Whether an array is a batch whose members are answered one by one; any other gets one error as a whole. */
  batchable(frames: unknown[]): boolean;
  /**
   * The answer to a member of a frame that is no request, notification or response; undefined when nothing goes back.
   * Nothing runs, whatever it holds.
   */
  invalid(member: unknown): Json | undefined;
  /** Ends subscriptions and aborts the handlers that run on the dispatcher's own signal. */
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

  /** A getter, so that `({ notify }) => …` works and a call that does not notify makes no closure. */
  get notify(): (method: string, params?: Json) => void {
    return (method, params) => void this.#send(this.#outer.tell ?? this.#outer.emit, rpcNotification(method, params));
  }

  get limit(): number {
    return this.#outer.limit ?? MAX_TEXT;
  }

  /** Sends a frame to the caller, as long as the call is not answered. */
  emit(frame: JsonObject): unknown {
    return this.#send(this.#outer.emit, frame);
  }

  #send(sink: DispatchContext['emit'], frame: JsonObject): unknown {
    return this.#over ? undefined : sink?.(toJson(frame));
  }

  /** Sends one result of many. @throws RpcError it cannot be sent */
  async item(result: unknown): Promise<void> {
    if (this.id === undefined) return;
    if ((await this.emit(rpcResult(this.id, toJson(result)))) === false) {
      throw new RpcError(INTERNAL_ERROR, 'A part of the answer could not be sent');
    }
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

/** What a caller may learn of an error. */
function describe(error: unknown): [code: number, message: string, data?: Json] {
  if (TechnocoreError.is(error)) {
    if (error.code === 'rpc') {
      const { code, message, data } = (error as RpcError).rpc;
      if (Number.isInteger(code) && typeof message === 'string') {
        try {
          return data === undefined ? [code, message] : [code, message, toJson(data)];
        } catch {
          // Data that JSON cannot carry is a fault of the handler like any other.
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
      throw new TechnocoreError('bad_option', 'methods is a Map of handlers by name');
  }

  /** Made when first asked for: most handlers never look at their signal. */
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
    // Of calls from inside nobody asks.
    return handler === undefined ? this.#owner(method)?.acts(member) === true : !has(handler, LOCAL_ONLY);
  }

  idempotent(frame: unknown): boolean {
    return this.#declares(frame, 'idempotent', IDEMPOTENT);
  }

  staysOpen(frame: unknown): boolean {
    return this.#declares(frame, 'staysOpen', STAYS_OPEN);
  }

  /** Whether something is declared of a request: by the mark of its handler, or by its layer. */
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
      // Those that were there at the start were looked at, and more may have come.
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

  /** The layer whose method this is. A plain method of the same name goes first. */
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

  /** The id of an answer to what is no request: what could be read, else null, or no id member at all where MCP is spoken. */
  #errorId(id: unknown): Id | undefined {
    if (this.#o.nullId || this.#layered() === undefined) return isId(id) ? id : null;
    return typeof id === 'string' || Number.isSafeInteger(id) ? (id as Id) : undefined;
  }
}

/**
 * A dispatcher over the methods and tools given, and nothing else.
 *
 * @example
 * ```ts
 * const d = createDispatcher({ methods: new Map([['double', ([n]) => 2 * n]]) });
 * await d.dispatch('{"jsonrpc":"2.0","id":1,"method":"double","params":[4]}'); // { jsonrpc: '2.0', id: 1, result: 8 }
 * ```
 */
export function createDispatcher(o: DispatcherOptions = {}): Dispatcher {
  return new JsonRpc(o);
}

const NONE: Map<string, any> = new Map();
const shared = new WeakMap<Map<string, Handler>, WeakMap<Map<string, Layered>, Dispatcher>>();

/**
 * {@link Dispatcher.dispatch} through one dispatcher per pair of `methods` and `tools`; what else the options say counts
 * when the pair is first seen.
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
