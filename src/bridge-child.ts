/**
 * A server behind a bridge, of any revision of MCP. A server of 2026-07-28 gets the messages unchanged. With a server
 * that only knows the handshake, we make one handshake for all callers, and each self-contained request becomes one of
 * that session. A question that the server asks meanwhile becomes the answer to the caller's request. The request
 * continues when the caller sends it again with the answers.
 *
 * Messages in, messages out; no I/O. Messages arrive checked, with ids that no two callers share, and are cancelled
 * when their time is up. Since all callers share the session, a message of the server that names no request reaches a
 * caller only if it cannot be for any other.
 *
 * @module
 */
import { type Found, Greeting, PROBE_MS } from './bridge-greeting.ts';
import {
  ASKING_METHODS,
  carriedError,
  isProtocolMeta,
  MAX_ROUNDS,
  OURS,
  objectIn,
  QUESTIONS,
  SHARED_METHODS,
  sharedCapabilities,
  without,
} from './bridge-handshake.ts';
import { Listeners } from './bridge-listeners.ts';
import { openedIn, pagesOf } from './bridge-urls.ts';
import { toBase64url } from './bytes.ts';
import {
  BUSY,
  badParams,
  classify,
  type Id,
  INTERNAL_ERROR,
  INTERRUPTED,
  type JsonObject,
  METHOD_NOT_FOUND,
  rpcError,
  rpcNotification,
  rpcRequest,
  rpcResult,
} from './dispatch.ts';
import { RpcError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock, Event } from './http.ts';
import { MCP_VERSION, refusalOf, SERVER_INFO } from './mcp.ts';
import { LEVELS, LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { CLIENT_CAPABILITIES } from './toolcall.ts';

/** How many requests may wait for a server that is starting. */
const MAX_WAITING = 256;
/** How long a request that was answered with a question waits for its caller, ms, and how many may. */
const PATIENCE_MS = 600_000;
const MAX_ASKING = 64;

/** The methods whose results must say how long they may be cached. A server with a handshake does not say it. */
const CACHEABLE: ReadonlySet<string> = new Set([
  'tools/list',
  'prompts/list',
  'resources/list',
  'resources/templates/list',
  'resources/read',
]);

/** Where messages go, and what else the translation needs. */
export interface ChildSides {
  toChild(message: JsonObject): void;
  toRoom(message: JsonObject): void;
  clock: Clock;
  random: (bytes: number) => Uint8Array;
  onEvent?: (event: Event) => void;
  /** Whether callers must be isolated from each other: then the server cannot ask questions. */
  isPublic?: boolean;
}

/** A request in the session of a server with a handshake. */
interface Call {
  readonly from: string;
  readonly method: string;
  readonly params: JsonObject;
  /** Its id on the server's side. */
  readonly childId: number;
  /** Its current id on the room's side; undefined while the caller's answers are awaited. */
  roomId: Id | undefined;
  meta: JsonObject;
  round: number;
  /** The questions that are not answered, by key: the server's id of each, and what it asks. */
  readonly questions: Map<string, { id: Id; question: JsonObject }>;
  /** Identifies the call when its caller comes back; new each time. */
  state: string | undefined;
  /** The pages that were opened for it, by the keys of the questions. */
  readonly opened: ReadonlySet<string>;
  /** What the server answered before the caller came back. */
  held: JsonObject | undefined;
  /** Aborts when it ends. */
  readonly over: AbortController;
}

/** A server, across restarts of its process. */
export class ChildSide {
  readonly #o: ChildSides;
  readonly #listeners: Listeners;
  readonly #greeting: Greeting;
  #era: 'down' | 'begun' | 'modern' | 'old' | 'unusable' = 'down';
  /** Why it cannot be used, for callers. */
  #problem = 'The server is starting';
  #againAt = 0;
  /** The requests that wait until the server's revision is known. */
  #waiting: { from: string; message: JsonObject }[] = [];
  /** The requests that were passed on unchanged. */
  readonly #through = new Set<Id>();
  /** The requests in a session with a handshake, by their ids at the server. */
  readonly #calls = new Map<Id, Call>();
  #server: JsonObject = {};
  #level: string | undefined;
  #minted = 0;

  constructor(o: ChildSides) {
    this.#o = o;
    const follow = (uri: string, isFollowed: boolean): void => {
      if (this.#era !== 'old') return;
      const method = isFollowed ? 'resources/subscribe' : 'resources/unsubscribe';
      this.#o.toChild(rpcRequest(this.#mint(), method, { uri }));
    };
    this.#greeting = new Greeting({
      clock: o.clock,
      capabilities: o.isPublic ? {} : { elicitation: { form: {}, url: {} }, sampling: {} },
      toChild: (message) => o.toChild(message),
      found: (what) => this.#found(what),
      problem: (why) => this.#unusable(why),
    });
    this.#listeners = new Listeners({ clock: o.clock, send: (message) => o.toRoom(message), follow });
  }

  // --- the process -----------------------------------------------------------------------------------------------

  /** Called when a process has started. */
  started(): void {
    this.#era = 'begun';
    this.#greeting.begin();
  }

  /** Called when the process has exited; the next one starts after `againMs`. */
  stopped(againMs: number): void {
    this.#greeting.stop();
    this.#era = 'down';
    this.#problem = 'The server has stopped, and will be restarted';
    this.#againAt = this.#o.clock.now() + againMs;
    this.#level = undefined;
    const lost = [...this.#through, ...[...this.#calls.values()].flatMap(({ roomId = [] }) => roomId)];
    for (const call of this.#calls.values()) call.over.abort();
    this.#through.clear();
    this.#calls.clear();
    const why = 'Interrupted: the server stopped; the request may or may not have been executed';
    for (const id of lost) this.#o.toRoom(rpcError(id, INTERRUPTED, why));
  }

  /** Ends everything that is pending. */
  close(): void {
    this.#listeners.close();
    this.#waiting = [];
    this.stopped(0);
  }

  #found({ isModern, version, server }: Found): void {
    this.#era = isModern ? 'modern' : 'old';
    this.#server = server;
    this.#o.onEvent?.({ kind: 'server-ready', server: objectIn(server, 'serverInfo'), version });
    for (const { from, message } of this.#waiting.splice(0)) this.fromRoom(message, from);
    if (!isModern) this.#listeners.restarted(sharedCapabilities(server['capabilities']));
  }

  #unusable(problem: string): void {
    this.#era = 'unusable';
    this.#problem = problem;
    this.#o.onEvent?.({ kind: 'server-unusable', reason: problem });
    for (const { from, message } of this.#waiting.splice(0)) this.fromRoom(message, from);
  }

  // --- from the room ---------------------------------------------------------------------------------------------

  /** Takes a message of a caller. @param from the caller's DID, which is allowed */
  fromRoom(message: JsonObject, from: string): void {
    const kind = classify(message);
    if (kind === 'notification') this.#notified(message);
    if (kind !== 'request') return;
    const { id } = message as { id: Id };
    try {
      const result = this.#request(message, id, from);
      if (result) this.#o.toRoom(rpcResult(id, result));
    } catch (cause) {
      if (!(cause instanceof RpcError)) throw cause;
      this.#o.toRoom(refusalOf(id, cause));
    }
  }

  #request(message: JsonObject, id: Id, from: string): JsonObject | undefined {
    switch (this.#era) {
      case 'unusable':
        throw new RpcError(INTERNAL_ERROR, this.#problem);
      case 'modern':
        this.#through.add(id);
        this.#o.toChild(withoutRoots(message));
        return undefined;
      case 'old':
        return this.#inSession(message, id, from);
      default: {
        const retryAfterMs = Math.max(0, Math.ceil(this.#againAt - this.#o.clock.now()));
        if (retryAfterMs > PROBE_MS) throw new RpcError(BUSY, this.#problem, { retryAfterMs });
        if (this.#waiting.length >= MAX_WAITING) throw new RpcError(BUSY, 'Busy', { retryAfterMs: PROBE_MS });
        this.#waiting.push({ from, message });
        return undefined;
      }
    }
  }

  /** Takes a notification of a caller. The only one there is cancels a request. */
  #notified(message: JsonObject): void {
    if (message['method'] !== 'notifications/cancelled') return;
    const { requestId, reason } = objectIn(message, 'params') as { requestId: Id; reason?: Json };
    this.#waiting = this.#waiting.filter((one) => one.message['id'] !== requestId);
    if (this.#through.delete(requestId)) this.#o.toChild(message);
    this.#listeners.remove(requestId);
    for (const call of this.#calls.values()) {
      if (call.roomId === requestId) this.#drop(call, typeof reason === 'string' ? reason : 'cancelled');
    }
  }

  /** Drops a call that nobody waits for any more. */
  #drop(call: Call, reason: string): void {
    this.#end(call);
    for (const { id } of call.questions.values()) this.#o.toChild(rpcError(id, INTERNAL_ERROR, `No answer: ${reason}`));
    if (call.held) return;
    this.#o.toChild(rpcNotification('notifications/cancelled', { requestId: call.childId, reason }));
  }

  #end(call: Call): void {
    this.#calls.delete(call.childId);
    call.over.abort();
  }

  // --- a session with a handshake --------------------------------------------------------------------------------

  #inSession(message: JsonObject, id: Id, from: string): JsonObject | undefined {
    const { method } = message as { method: string };
    const { _meta, ...params } = objectIn(message, 'params');
    const meta = isObject(_meta) ? (_meta as JsonObject) : {};
    const { capabilities, instructions } = this.#server;
    const shared = sharedCapabilities(capabilities);
    if (method === 'server/discover') {
      return this.#complete(method, {
        supportedVersions: [MCP_VERSION],
        capabilities: shared,
        ...(typeof instructions === 'string' && { instructions }),
        ttlMs: 60_000,
        cacheScope: 'public',
      });
    }
    if (method === 'subscriptions/listen') this.#listeners.add(id, params['notifications'], shared);
    else if (!SHARED_METHODS.has(method)) {
      throw new RpcError(METHOD_NOT_FOUND, `Method not found: ${method.slice(0, 80)}`);
    } else if (params['requestState'] !== undefined) this.#resume(id, from, method, params, meta);
    else this.#begin(id, from, method, params, meta);
    return undefined;
  }

  #begin(roomId: Id, from: string, method: string, params: JsonObject, meta: JsonObject): void {
    const { inputResponses, task: __, ...own } = params;
    const opened = openedIn(inputResponses);
    this.#raiseLevel(meta[LOG_LEVEL]);
    const childId = ++this.#minted;
    this.#calls.set(childId, {
      from,
      method,
      params: own,
      childId,
      roomId,
      meta,
      round: 0,
      questions: new Map(),
      state: undefined,
      opened,
      held: undefined,
      over: new AbortController(),
    });
    const kept = without(meta, (name) => isProtocolMeta(name) || name === 'progressToken');
    if (meta['progressToken'] !== undefined) kept['progressToken'] = childId;
    this.#o.toChild(rpcRequest(childId, method, { ...own, ...(Object.keys(kept).length > 0 && { _meta: kept }) }));
  }

  /** Sets the log level to the lowest that any caller wants: the callers share the session's. */
  #raiseLevel(level: Json | undefined): void {
    if (typeof level !== 'string' || !isObject(objectIn(this.#server, 'capabilities')['logging'])) return;
    if (this.#level !== undefined && LEVELS.indexOf(level) >= LEVELS.indexOf(this.#level)) return;
    this.#level = level;
    this.#o.toChild(rpcRequest(this.#mint(), 'logging/setLevel', { level }));
  }

  #complete(method: string, result: JsonObject): JsonObject {
    const cached = CACHEABLE.has(method) ? { ttlMs: 0, cacheScope: 'private' } : {};
    const _meta = { ...objectIn(result, '_meta'), [SERVER_INFO]: objectIn(this.#server, 'serverInfo') };
    return { ...cached, ...result, resultType: 'complete', _meta };
  }

  // --- from the server -------------------------------------------------------------------------------------------

  fromChild(message: unknown): void {
    // Only one revision has batches.
    if (Array.isArray(message)) {
      for (const member of message) if (!Array.isArray(member)) this.fromChild(member);
      return;
    }
    const frame = message as JsonObject;
    switch (classify(message)) {
      case 'response':
        this.#response(frame);
        break;
      case 'request':
        this.#asked(frame);
        break;
      case 'notification':
        this.#notice(frame);
        break;
      default:
        this.#o.onEvent?.({ kind: 'skipped', reason: 'the server wrote a line that is not a message' });
    }
  }

  /** Called when an answer of the server was too long to be read. */
  tooLong(id: Id, bytes: number): void {
    this.#response(rpcError(id, INTERNAL_ERROR, `The answer is too large: ${bytes} bytes`));
  }

  /** Called when a request did not reach the server. */
  unsent(id: Id): void {
    if (typeof id === 'string' && id.startsWith(OURS)) return;
    this.#response(rpcError(id, BUSY, 'Busy: the server is not taking requests', { retryAfterMs: PROBE_MS }));
  }

  #response(frame: JsonObject): void {
    const { id } = frame as { id: Id };
    if (this.#greeting.take(frame)) return;
    if (this.#through.delete(id)) this.#o.toRoom(frame);
    else {
      const call = this.#calls.get(id);
      if (call?.roomId !== undefined) this.#answer(call, call.roomId, frame);
      else if (call) call.held ??= frame;
    }
  }

  #answer(call: Call, roomId: Id, { result, error }: JsonObject): void {
    this.#end(call);
    if (isObject(result)) {
      this.#o.toRoom(rpcResult(roomId, this.#complete(call.method, result as JsonObject)));
      return;
    }
    const { code, message, data } = carriedError(error);
    try {
      const mayAsk = !this.#o.isPublic && ASKING_METHODS.has(call.method);
      const inputRequests = mayAsk ? pagesOf(error, call.meta, call.opened) : undefined;
      const _meta = { [SERVER_INFO]: objectIn(this.#server, 'serverInfo') };
      if (inputRequests) this.#o.toRoom(rpcResult(roomId, { resultType: 'input_required', inputRequests, _meta }));
      else this.#o.toRoom(rpcError(roomId, code, message, data));
    } catch (cause) {
      if (!(cause instanceof RpcError)) throw cause;
      this.#o.toRoom(refusalOf(roomId, cause));
    }
  }

  #notice(frame: JsonObject): void {
    const { method } = frame as { method: string };
    const params = objectIn(frame, 'params');
    if (method === 'notifications/message') {
      // A log line that names no request may be about another caller's.
      const isNamed = objectIn(params, '_meta')[REQUEST_ID] !== undefined;
      if (isNamed || !this.#o.isPublic) this.#o.toRoom(frame);
    } else if (this.#era === 'modern') this.#o.toRoom(frame);
    else if (method === 'notifications/progress') {
      const { roomId, meta } = this.#calls.get(params['progressToken'] as Id) ?? {};
      const progressToken = meta?.['progressToken'];
      if (roomId !== undefined && progressToken !== undefined) {
        this.#o.toRoom(rpcNotification(method, { ...params, progressToken }));
      }
    } else if (method === 'notifications/cancelled') this.#unasked(params['requestId'] as Id);
    else this.#listeners.changed(method, params);
  }

  // --- questions of the server -----------------------------------------------------------------------------------

  /** Takes a request of the server. It is passed on only if it is clear which caller it is for. */
  #asked(frame: JsonObject): void {
    const { id, method, params } = frame as { id: Id; method: string; params?: Json };
    try {
      if (method === 'ping') {
        this.#o.toChild(rpcResult(id, {}));
        return;
      }
      const call = this.#meant(method);
      const own = isObject(params) ? { params: without(params as JsonObject, (name) => name === '_meta') } : {};
      call.questions.set(`q${++this.#minted}`, { id, question: { method, ...own } });
      if (call.roomId !== undefined) this.#ask(call, call.roomId);
    } catch (cause) {
      if (!(cause instanceof RpcError)) throw cause;
      this.#o.onEvent?.({ kind: 'refused', method, reason: cause.rpc.message });
      this.#o.toChild(rpcError(id, cause.rpc.code, cause.rpc.message));
    }
  }

  /**
   * The call that a question of the server belongs to. @throws an {@link RpcError} if there is none, or it is not clear
   */
  #meant(method: string): Call {
    const refused = (why: string): RpcError => new RpcError(METHOD_NOT_FOUND, `${method.slice(0, 80)}: ${why}`);
    // A root is a directory on the caller's disk. The server would take it for one on ours.
    if (method === 'roots/list') throw refused('callers are on other machines, and have no roots here');
    const needed = Object.hasOwn(QUESTIONS, method) ? QUESTIONS[method]! : undefined;
    if (needed === undefined || this.#era !== 'old') throw refused('not supported over a room');
    if (this.#o.isPublic) throw refused('not supported on a public server');
    const all = [...this.#calls.values()].filter((call) => ASKING_METHODS.has(call.method));
    if (new Set(all.map(({ from }) => from)).size > 1) {
      throw refused('several callers are active, and it is not clear which one is asked');
    }
    if (all.filter(({ state }) => state !== undefined).length >= MAX_ASKING)
      throw refused('too many questions at once');
    const able = all.filter(({ meta }) => isObject(objectIn(meta, CLIENT_CAPABILITIES)[needed]));
    const call = able.find(({ roomId }) => roomId !== undefined) ?? able[0];
    if (!call) throw refused('the caller does not offer it');
    return call;
  }

  /** Called when the server cancels a question. */
  #unasked(id: Id): void {
    for (const { questions } of this.#calls.values()) {
      for (const [key, question] of questions) if (question.id === id) questions.delete(key);
    }
  }

  /** Answers a caller's request with the server's questions, and waits for the caller to come back. */
  #ask(call: Call, roomId: Id): void {
    if (++call.round > MAX_ROUNDS) {
      const why = `The server asked more than ${MAX_ROUNDS} times`;
      this.#drop(call, why);
      this.#o.toRoom(rpcError(roomId, INTERNAL_ERROR, why));
      return;
    }
    const requestState = toBase64url(this.#o.random(16));
    call.state = requestState;
    call.roomId = undefined;
    const inputRequests = Object.fromEntries([...call.questions].map(([key, { question }]) => [key, question]));
    const _meta = { [SERVER_INFO]: objectIn(this.#server, 'serverInfo') };
    this.#o.toRoom(rpcResult(roomId, { resultType: 'input_required', inputRequests, requestState, _meta }));
    this.#o.clock.sleep(PATIENCE_MS, call.over.signal).then(
      () => {
        if (call.state === requestState) this.#drop(call, 'the caller did not come back');
      },
      () => {},
    );
  }

  /** Takes the answers of a caller that comes back. @throws an {@link RpcError} if it was not asked for them */
  #resume(id: Id, from: string, method: string, params: JsonObject, meta: JsonObject): void {
    const { requestState, inputResponses = {} } = params;
    const call = [...this.#calls.values()].find(({ state }) => state !== undefined && state === requestState);
    const isSame = (name: string): boolean => JSON.stringify(call?.params[name]) === JSON.stringify(params[name]);
    if (!call || call.from !== from || call.method !== method || !isSame('name') || !isSame('uri')) {
      throw badParams('requestState does not belong to this call, or the server has restarted');
    }
    if (!isObject(inputResponses) || !Object.values(inputResponses).every(isObject)) {
      throw badParams('inputResponses must be an object of objects');
    }
    call.state = undefined;
    call.roomId = id;
    call.meta = meta;
    for (const [key, { id: asked }] of [...call.questions]) {
      const answer = Object.hasOwn(inputResponses, key) ? inputResponses[key] : undefined;
      if (answer === undefined) continue;
      call.questions.delete(key);
      this.#o.toChild(rpcResult(asked, answer as Json));
    }
    if (call.held) this.#answer(call, id, call.held);
    else if (call.questions.size > 0) this.#ask(call, id);
  }

  /** An id for a request whose answer is ignored. */
  #mint(): string {
    return `${OURS}${++this.#minted}`;
  }
}

/**
 * A request without the caller's roots: a server that takes them for permission to read would read our disk.
 */
function withoutRoots(message: JsonObject): JsonObject {
  const params = objectIn(message, 'params');
  const meta = objectIn(params, '_meta');
  const responses = objectIn(params, 'inputResponses');
  const isRoots = (name: string): boolean => isObject(responses[name]) && 'roots' in (responses[name] as object);
  const capabilities = without(objectIn(meta, CLIENT_CAPABILITIES), (name) => name === 'roots');
  return {
    ...message,
    params: {
      ...params,
      ...(isObject(params['inputResponses']) && { inputResponses: without(responses, isRoots) }),
      _meta: { ...meta, [CLIENT_CAPABILITIES]: capabilities },
    },
  };
}
