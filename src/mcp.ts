/**
 * The tools part of MCP, revision 2026-07-28, as a layer of the dispatcher. There is no handshake and no session: each
 * request is self-contained. Resources, prompts and completion are left to the official SDK, over a bridge.
 *
 * A room is a shared channel, like stdio, so cancellation is a notification, and each progress notice and log line
 * names its request in `_meta["chat.technocore/requestId"]`.
 *
 * @module
 */
import { equalBytes, fromBase64url, fromUtf8, toBase64url, utf8 } from './bytes.ts';
import { type Clock, clockOf, later } from './clock.ts';
import { hmacSha256, randomBytes } from './crypto.ts';
import {
  badParams,
  type DispatchContext,
  type DispatcherOptions,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  isMcpMethod,
  type JsonObject,
  type Layer,
  type MakeLayer,
  METHOD_NOT_FOUND,
  rpcError,
  rpcNotification,
  rpcResult,
} from './dispatch.ts';
import { BadName, RpcError } from './errors.ts';
import { encodeLong, isObject, type Json, MAX_TEXT } from './frames.ts';
import { getOrMake } from './maps.ts';
import { Budget, LEVELS, LOG_LEVEL } from './notices.ts';
import { SPILL_META } from './spill.ts';
import { CLIENT_CAPABILITIES, ToolCall } from './toolcall.ts';
import { failed, ServedTool, type Tool, type ToolHandler, type ToolOptions, type ToolResult } from './tools.ts';
import { NEVER, Seats } from './turns.ts';

/** The only revision of MCP that is supported here. */
export const MCP_VERSION = '2026-07-28';
/** The default name and version of servers and clients. */
export const SELF: JsonObject = { name: 'technocore-rpc', version: '0.1.0' };

/** Names of members of `_meta`. */
export const PROTOCOL_VERSION = 'io.modelcontextprotocol/protocolVersion';
export const SERVER_INFO = 'io.modelcontextprotocol/serverInfo';
export const SUBSCRIPTION_ID = 'io.modelcontextprotocol/subscriptionId';

/** The error code for an unsupported revision. */
export const UNSUPPORTED_VERSION = -32022;

/** How long callers may cache lists, ms. */
const TTL_MS = 60_000;
/** How often one call may ask for input. */
const MAX_ROUNDS = 10;
/** How long the answer to a question may take, ms. */
const STATE_TTL_MS = 1_800_000;
/** After how long a subscription ends, ms: otherwise it would outlive a listener that silently went away. */
export const LISTEN_MS = 3_600_000;
/** The maximum number of concurrent subscriptions, in all and for one key. */
export const MAX_LISTENERS = [256, 4] as const;

// --- tools -------------------------------------------------------------------------------------------------------

/** A name that every host accepts. Tools with other names can still be served and called. */
const SAFE_NAME = /^[A-Za-z0-9_.-]{1,64}$/;

/**
 * Makes a tool for a map of tools. The schemas are compiled here, so that an error in them is thrown now and not during
 * a call.
 *
 * A name with characters other than `A-Z a-z 0-9 _ . -`, or more than 64 of them, causes a `warning` event, or a
 * warning on the console.
 *
 * A `pattern` in a schema runs on untrusted input: one that takes exponential time (`^(a+)+$`) would let callers block
 * the program. Everything else in a schema takes bounded time.
 *
 * Keep the definition below about 3,700 characters: a longer one does not fit into a message, and only callers that
 * read answers from notes see it in the list.
 *
 * @param inputSchema JSON Schema 2020-12 with root type object, or a Standard Schema
 * @throws a {@link BadName} if the name is empty, or longer than 128 characters
 * @throws a {@link TechnocoreError} `bad_schema` if a schema cannot be used
 */
export function defineTool(
  name: string,
  description: string,
  inputSchema: object,
  run: ToolHandler,
  o: ToolOptions = {},
): Tool {
  if (typeof name !== 'string' || name === '' || name.length > 128)
    throw new BadName(name, 'a tool name has 1 to 128 characters');
  const { onEvent, ...options } = o;
  if (!SAFE_NAME.test(name)) {
    const reason = `some hosts cannot call a tool named ${JSON.stringify(name)}`;
    if (onEvent) onEvent({ kind: 'warning', tool: name, reason });
    else globalThis.console?.warn(`technocore-rpc: ${reason}`);
  }
  return new ServedTool(mcpLayer, name, description, inputSchema, run, options);
}

// --- state carried by callers ------------------------------------------------------------------------------------

/** The contents of a `requestState`. A MAC binds it to the caller, the tool and the arguments. */
interface State {
  /** When it expires, ms since the epoch. */
  readonly until: number;
  /** How often the caller has been asked. */
  readonly round: number;
  readonly answers: [key: string, answer: JsonObject][];
}

function macOf(key: Uint8Array, bound: Json, payload: string): Uint8Array {
  return hmacSha256(key, utf8(`${canonical(bound)}\n${payload}`));
}

function sealState(key: Uint8Array, bound: Json, state: State): string {
  const payload = toBase64url(utf8(JSON.stringify([state.until, state.round, state.answers])));
  return `${payload}.${toBase64url(macOf(key, bound, payload))}`;
}

function openState(key: Uint8Array, bound: Json, sealed: string, now: number): State {
  const [payload = '', mac = '', ...rest] = sealed.split('.');
  const bytes = fromBase64url(mac);
  if (rest.length > 0 || bytes === undefined || !equalBytes(bytes, macOf(key, bound, payload))) {
    throw badParams('requestState is not one that this call was given');
  }
  const [until, round, answers] = JSON.parse(fromUtf8(fromBase64url(payload)!)!) as [number, number, State['answers']];
  if (now > until) throw badParams('requestState is too old');
  return { until, round, answers };
}

/** JSON with sorted members. */
function canonical(value: Json): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name] as Json)}`).join()}}`;
}

// --- the layer ---------------------------------------------------------------------------------------------------

/** A request that has not been answered yet. */
interface Pending {
  cancel(reason: string | undefined): void;
}

interface Listener extends Pending {
  notice(): void;
  end(): void;
}

/** The layers with listeners, by their map of tools. */
const listening = new WeakMap<Map<string, Tool>, Set<McpLayer>>();

/**
 * Notifies subscribed MCP clients that a map of tools has changed. {@link tool} does this by itself; call it after
 * changing the map in another way. Many calls in a row cause few notifications.
 *
 * @param tools the map being served: the default {@link tools}, or the one in the options of {@link serve}
 */
export function toolsChanged(tools: Map<string, Tool>): void {
  for (const layer of listening.get(tools) ?? []) layer.changed();
}

class McpLayer implements Layer {
  readonly tools: Map<string, Tool>;
  readonly clock: Clock;
  readonly #o: DispatcherOptions;
  readonly #serverInfo: JsonObject;
  readonly #pending: Map<string, Pending> = new Map();
  readonly #listeners: Set<Listener> = new Set();
  readonly #seats: Seats = new Seats(MAX_LISTENERS);
  readonly #closing: AbortController = new AbortController();
  #key: Uint8Array | undefined;
  #notices: Budget | undefined;
  #noticing = false;

  constructor(o: DispatcherOptions) {
    this.#o = o;
    this.tools = (o.tools ?? new Map()) as Map<string, Tool>;
    this.clock = clockOf(o);
    this.#serverInfo = { [SERVER_INFO]: o.serverInfo ?? SELF };
  }

  get signal(): AbortSignal {
    return this.#closing.signal;
  }

  toolsChanged(): void {
    toolsChanged(this.tools);
  }

  owns(method: string): boolean {
    return isMcpMethod(method);
  }

  acts(frame: JsonObject): boolean {
    const { method, params } = frame;
    if (method === 'tools/call') return isObject(params) && this.#tool(params['name']) !== undefined;
    return this.staysOpen(frame) || this.cancels(frame) !== undefined;
  }

  staysOpen(frame: JsonObject): boolean {
    return frame['method'] === 'subscriptions/listen';
  }

  idempotent(frame: JsonObject): boolean {
    if (frame['method'] !== 'tools/call') return true;
    const { params } = frame;
    return isObject(params) && this.#tool(params['name'])?.idempotent === true;
  }

  close(): void {
    this.#closing.abort();
    for (const listener of this.#listeners) listener.end();
  }

  cancels(frame: JsonObject): string | number | undefined {
    return calledOff(frame);
  }

  notification(frame: JsonObject, context: DispatchContext): void {
    const id = calledOff(frame);
    if (id !== undefined) this.#pending.get(keyOf(context, id))?.cancel(reasonIn(frame));
  }

  request(frame: JsonObject, context: DispatchContext): Json | undefined | Promise<Json | undefined> {
    const { id } = frame;
    const method = frame['method'] as string;
    if (!isMcpId(id)) return badId();
    try {
      const { params, meta } = partsOf(frame, this.#pending.has(keyOf(context, id)));
      switch (method) {
        case 'server/discover':
          return rpcResult(id, this.#discover());
        case 'tools/list':
          return this.#list(id, params, context);
        case 'tools/call':
          return this.#call(frame, id, params, meta, context);
        case 'subscriptions/listen':
          return this.#listen(id, params, context);
        default:
          throw new RpcError(METHOD_NOT_FOUND, `Method not found: ${method.slice(0, 80)}`);
      }
    } catch (error) {
      return this.#refused(id, error, context, method);
    }
  }

  #refused(id: string | number, error: unknown, context: DispatchContext, method: string): JsonObject {
    if (error instanceof RpcError) return refusalOf(id, error);
    context.onError?.(error, method);
    return rpcError(id, INTERNAL_ERROR, 'Internal error');
  }

  /** A complete result, with the server's name and version. */
  #complete(result: object, meta?: object | false): JsonObject {
    return { resultType: 'complete', ...result, _meta: { ...meta, ...this.#serverInfo } };
  }

  #tool(name: unknown): ServedTool | undefined {
    return typeof name === 'string' ? ServedTool.of(this.tools.get(name)) : undefined;
  }

  #discover(): JsonObject {
    const result = {
      supportedVersions: [MCP_VERSION],
      capabilities: { tools: { listChanged: true }, logging: {} },
      ...(this.#o.instructions !== undefined && { instructions: this.#o.instructions }),
      ttlMs: TTL_MS,
      cacheScope: 'public',
    };
    return this.#complete(result, this.#o.spills && { [SPILL_META]: true });
  }

  /** One page: as many tools as fit into a frame. The cursor of the next page is derived from the last name. */
  #list(id: string | number, { cursor }: JsonObject, context: DispatchContext): JsonObject {
    const all = [...this.tools].flatMap(([name, tool]) => {
      const served = ServedTool.of(tool);
      return served === undefined ? [] : [{ name, shown: served.shown }];
    });
    let next = 0;
    if (cursor !== undefined) {
      next = all.findIndex(({ name }) => cursorOf(name) === cursor) + 1;
      if (next === 0) throw badParams('Unknown cursor');
    }
    const page: JsonObject[] = [];
    const answer = (nextCursor?: string): JsonObject =>
      rpcResult(
        id,
        this.#complete({
          tools: page,
          ...(nextCursor !== undefined && { nextCursor }),
          ttlMs: TTL_MS,
          cacheScope: 'public',
        }),
      );
    let left = (context.limit ?? MAX_TEXT) - encodeLong(answer('')).length;
    for (const { name, shown } of all.slice(next, next + Math.max(1, this.#o.pageSize ?? all.length))) {
      left -= encodeLong(shown).length + 1;
      const tail = next + 1 < all.length ? cursorOf(name).length : 0;
      // A tool that is too long for a frame gets its own page, which can be spilled or refused.
      if (page.length > 0 && left < tail) break;
      page.push(shown);
      next++;
    }
    return answer(next < all.length ? cursorOf(all[next - 1]!.name) : undefined);
  }

  #call(
    frame: JsonObject,
    id: string | number,
    params: JsonObject,
    meta: JsonObject,
    context: DispatchContext,
  ): Promise<Json | undefined> {
    const { name, arguments: args = {}, inputResponses = {}, requestState } = params;
    if (typeof name !== 'string') throw badParams('name must be the name of a tool');
    const tool = this.#tool(name);
    if (tool === undefined) throw badParams(`Unknown tool: ${name.slice(0, 128)}`);
    if (!isObject(args)) throw badParams('arguments must be an object');
    if (!isObject(inputResponses) || !Object.values(inputResponses).every(isObject)) {
      throw badParams('inputResponses must be an object of objects');
    }
    if (requestState !== undefined && typeof requestState !== 'string')
      throw badParams('requestState must be a string');
    const bound: Json = [context.from ?? '', 'tools/call', name, args as JsonObject];
    const state =
      requestState === undefined ? undefined : openState(this.#stateKey(), bound, requestState, this.clock.now());
    // Answers in the sealed state were given earlier and take precedence.
    const answers = new Map([...(Object.entries(inputResponses) as State['answers']), ...(state?.answers ?? [])]);
    const call = new ToolCall(frame, meta, context, this, answers);
    return new Promise((resolve) => {
      const key = keyOf(context, id);
      const settle = (answer: Json | undefined): void => {
        this.#pending.delete(key);
        resolve(answer);
      };
      this.#pending.set(key, call);
      call.start(() => settle(undefined));
      void tool
        .call(args as JsonObject, call)
        .then((result) => {
          call.end();
          return this.#answer(id, call, result, (state?.round ?? 0) + 1, bound);
        })
        .catch((error) => this.#refused(id, error, context, 'tools/call'))
        .then((answer) => {
          // If it was cancelled, nothing is sent, and another request may use the id by now.
          if (this.#pending.get(key) === call) settle(answer);
        });
    });
  }

  #answer(id: string | number, call: ToolCall, result: ToolResult, round: number, bound: Json): JsonObject {
    if (call.fault !== undefined) {
      const { code, message, data } = call.fault.rpc;
      return rpcError(id, code, message, data as Json | undefined);
    }
    if (call.questions.size === 0) return rpcResult(id, this.#complete(result, result._meta));
    if (round > MAX_ROUNDS)
      return rpcResult(id, this.#complete(failed(`The tool asked for input more than ${MAX_ROUNDS} times.`)));
    const state: State = { until: this.clock.now() + STATE_TTL_MS, round, answers: [...call.used] };
    return rpcResult(id, {
      resultType: 'input_required',
      inputRequests: Object.fromEntries(call.questions),
      requestState: sealState(this.#stateKey(), bound, state),
      _meta: { ...this.#serverInfo },
    });
  }

  #stateKey(): Uint8Array {
    return (this.#key ??= this.#o.stateKey ?? randomBytes(32));
  }

  #listen(id: string | number, { notifications }: JsonObject, context: DispatchContext): Promise<Json | undefined> {
    const { emit, from = '', rank = NEVER } = context;
    if (!isFilter(notifications)) throw badParams('notifications must say what to listen to');
    const refuse = (why: string): RpcError => new RpcError(INTERNAL_ERROR, why);
    if (emit === undefined) throw refuse('Notices cannot be sent here');
    if (this.#closing.signal.aborted) throw refuse('The server is closing');
    let listener: Listener;
    const leave = this.#seats.take({ from, rank }, () => listener.end());
    if (!leave) throw refuse('Too many subscriptions');
    const wanted = notifications['toolsListChanged'] === true;
    const tag = { [SUBSCRIPTION_ID]: id };
    return new Promise((resolve) => {
      const key = keyOf(context, id);
      const stop = (answer: Json | undefined): void => {
        cancel();
        leave();
        this.#pending.delete(key);
        this.#listeners.delete(listener);
        if (this.#listeners.size === 0) listening.get(this.tools)?.delete(this);
        resolve(answer);
      };
      listener = {
        notice: () => {
          if (wanted) emit(rpcNotification('notifications/tools/list_changed', { _meta: tag }));
        },
        cancel: () => stop(undefined),
        end: () => {
          emit(
            rpcNotification('notifications/cancelled', {
              requestId: id,
              reason: 'the subscription has ended',
              _meta: tag,
            }),
          );
          stop(rpcResult(id, this.#complete({}, tag)));
        },
      };
      const cancel = later(this.clock, LISTEN_MS, listener.end);
      this.#pending.set(key, listener);
      this.#listeners.add(listener);
      getOrMake(listening, this.tools, () => new Set<McpLayer>()).add(this);
      const acknowledged = emit(
        rpcNotification('notifications/subscriptions/acknowledged', {
          _meta: tag,
          notifications: wanted ? { toolsListChanged: true } : {},
        }),
      );
      void Promise.resolve(acknowledged).then((isSent) => {
        if (isSent === false) stop(refusalOf(id, refuse('Notices cannot be sent here')));
      });
    });
  }

  /**
   * Notifies the listeners. If that happened often recently, it is deferred and covers all changes until then.
   */
  changed(): void {
    if (!this.#noticing) void this.#notice();
  }

  async #notice(): Promise<void> {
    this.#notices ??= new Budget(this.clock);
    this.#noticing = true;
    try {
      for (let wait = this.#notices.take(); wait > 0; wait = this.#notices.take())
        await this.clock.sleep(wait, this.#closing.signal);
      for (const listener of this.#listeners) listener.notice();
    } catch {
      // The server was closed meanwhile.
    } finally {
      this.#noticing = false;
    }
  }
}

/** For the option `layer` of {@link createDispatcher}: makes a server speak MCP even if it has no tools yet. */
export const mcpLayer: MakeLayer = (o) => new McpLayer(o);

/** @internal True for an id that MCP allows. */
export function isMcpId(id: unknown): id is string | number {
  return typeof id === 'string' || Number.isSafeInteger(id);
}

/** @internal A key for a request, unique across callers and types of ids. */
export function keyOf({ from = '' }: DispatchContext, id: string | number): string {
  return JSON.stringify([from, id]);
}

/** @internal The id of the request that a notification cancels. */
export function calledOff({ method, params }: JsonObject): string | number | undefined {
  const { requestId } = method === 'notifications/cancelled' && isObject(params) ? params : {};
  return isMcpId(requestId) ? requestId : undefined;
}

/** @internal The reason in a cancellation, cut to a reasonable length. */
export function reasonIn({ params }: JsonObject): string | undefined {
  const { reason } = params as JsonObject;
  return typeof reason === 'string' ? reason.slice(0, 1000) : undefined;
}

/**
 * The checked params and `_meta` of a request.
 *
 * @internal
 * @throws an {@link RpcError} for the first problem
 */
export function partsOf(frame: JsonObject, isInUse: boolean): { params: JsonObject; meta: JsonObject } {
  // The caller may take this error for the answer to the request that is still running, but so it might any other
  // answer.
  if (isInUse) throw new RpcError(INVALID_REQUEST, 'Invalid Request: the id is in use');
  const { _meta, ...params } = isObject(frame['params']) ? (frame['params'] as JsonObject) : {};
  return { params, meta: checkedMeta(frame['method'] as string, _meta, params) };
}

/** @internal The answer to a request whose id MCP does not allow. */
export function badId(): JsonObject {
  return rpcError(undefined, INVALID_REQUEST, 'Invalid Request: an id is a string or an integer');
}

/** @internal The answer for an error. */
export function refusalOf(id: Id, { rpc: { code, message, data } }: RpcError): JsonObject {
  return rpcError(id, code, message, data as Json | undefined);
}

function cursorOf(name: string): string {
  return toBase64url(utf8(`after ${name}`));
}

function isFilter(value: unknown): value is JsonObject {
  if (!isObject(value)) return false;
  const { toolsListChanged, promptsListChanged, resourcesListChanged, resourceSubscriptions } = value;
  return (
    [toolsListChanged, promptsListChanged, resourcesListChanged].every(
      (flag) => flag === undefined || typeof flag === 'boolean',
    ) &&
    (resourceSubscriptions === undefined ||
      (Array.isArray(resourceSubscriptions) && resourceSubscriptions.every((uri) => typeof uri === 'string')))
  );
}

/**
 * Checks the `_meta` members that every request must have, in order of precedence of their errors.
 *
 * @internal
 * @throws an {@link RpcError} -32602 or -32022
 */
export function checkedMeta(method: string, meta: unknown, params: JsonObject): JsonObject {
  const version = isObject(meta) ? meta[PROTOCOL_VERSION] : undefined;
  if (method === 'initialize' && typeof version !== 'string') {
    // The handshake of older revisions: the answer must name the supported versions.
    throw unsupported(params['protocolVersion']);
  }
  if (!isObject(meta)) throw badParams('params._meta is missing');
  if (typeof version !== 'string') throw badParams(`_meta: ${PROTOCOL_VERSION} must be a string`);
  if (version !== MCP_VERSION) throw unsupported(version);
  if (!isObject(meta[CLIENT_CAPABILITIES])) throw badParams(`_meta: ${CLIENT_CAPABILITIES} must be an object`);
  const level = meta[LOG_LEVEL];
  if (level !== undefined && !LEVELS.includes(level as string))
    throw badParams(`_meta: ${LOG_LEVEL} must be one of ${LEVELS.join(', ')}`);
  const token = meta['progressToken'];
  if (token !== undefined && !isMcpId(token)) throw badParams('_meta: progressToken must be a string or an integer');
  return meta as JsonObject;
}

function unsupported(requested: unknown): RpcError {
  return new RpcError(
    UNSUPPORTED_VERSION,
    `Unsupported protocol version: use ${MCP_VERSION}, without a handshake (initialize)`,
    {
      supported: [MCP_VERSION],
      requested: typeof requested === 'string' ? requested.slice(0, 100) : '',
    },
  );
}
