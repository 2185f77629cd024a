/**
 * A host that starts with a handshake, in front of a server that has none. The handshake is answered here, and its
 * contents are added to each request. Questions of the server arrive as answers, and become the requests that the host
 * expects. Messages of a host that needs no handshake are passed on unchanged.
 *
 * Messages in, messages out; no I/O.
 *
 * @module
 */
import { Changes } from './bridge-changes.ts';
import { LOST } from './bridge-client.ts';
import {
  carriedError,
  HANDSHAKES,
  isProtocolMeta,
  isSelfContained,
  MAX_ROUNDS,
  metaIn,
  OURS,
  objectIn,
  olderResult,
  QUESTIONS,
  SHARED_METHODS,
  sharedCapabilities,
  without,
} from './bridge-handshake.ts';
import {
  BUSY,
  badParams,
  classify,
  DENIED,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  type JsonObject,
  METHOD_NOT_FOUND,
  rpcError,
  rpcNotification,
  rpcRequest,
  rpcResult,
} from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { badId, isMcpId, MCP_VERSION, PROTOCOL_VERSION, refusalOf, SERVER_INFO, SUBSCRIPTION_ID } from './mcp.ts';
import { CLIENT_INFO } from './mcp-peer.ts';
import { LEVELS, LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { CLIENT_CAPABILITIES } from './toolcall.ts';

/** How many requests of one host may wait for an answer. */
const MAX_PENDING = 1024;
/** How often a request whose answer was lost is repeated if that does no harm, since the host would not do so. */
const MAX_REPEATS = 3;
const REPEATABLE: ReadonlySet<string> = new Set(
  ['server/discover', ...SHARED_METHODS].filter((name) => name !== 'tools/call'),
);
/** How long the other side may take for `server/discover`, ms. The least patient hosts wait half a minute. */
const DISCOVER_MS = 28_000;

/** Where messages go, and what else the translation needs. */
export interface HostSides {
  /** @param about the host's id of the request that the message belongs to, unless it is the answer */
  toHost(message: JsonObject, about?: Id): void;
  toRoom(message: JsonObject): void;
  clock: Clock;
  /** Advice for users whose server does not answer. */
  hint?: string;
  /** Advice for users whose key the server rejects. */
  denied?: string;
}

/** What the host said in its handshake. */
interface Session {
  readonly version: string;
  readonly capabilities: JsonObject;
  readonly info: JsonObject | undefined;
  level: string | undefined;
  server: JsonObject;
}

/** A request of the host, under its current id on the other side. */
interface Pending {
  readonly hostId: Id;
  readonly method: string;
  readonly params: JsonObject;
  round: number;
  /** How often it was sent again because its answer was lost. */
  repeats: number;
  /** What was last added to its params. */
  more: JsonObject;
  /** The questions to the host that are not answered yet, by their ids. */
  readonly asked: Map<string, string>;
  answers: [key: string, answer: Json][];
  state: Json | undefined;
}

/** One host. */
export class HostSide {
  readonly #o: HostSides;
  readonly #over = new AbortController();
  /** The requests, by their ids on the other side. */
  readonly #pending = new Map<Id, Pending>();
  /** Questions to the host, by their ids. */
  readonly #questions = new Map<string, Pending>();
  readonly #changes: Changes;
  #session: Session | undefined;
  #minted = 0;

  constructor(o: HostSides) {
    this.#o = o;
    this.#changes = new Changes({
      clock: o.clock,
      toHost: (message) => o.toHost(message),
      listen: (notifications) => {
        const id = this.#mint();
        o.toRoom(rpcRequest(id, 'subscriptions/listen', { notifications, _meta: this.#meta() }));
        return id;
      },
      cancel: (id) => this.#cancel(id, 'replaced by another subscription'),
    });
  }

  /** The revision that the handshake agreed on; undefined before. */
  get version(): string | undefined {
    return this.#session?.version;
  }

  /**
   * Called when the host is gone. Drops everything that is pending; cancelling it on the other side is up to the
   * caller.
   */
  close(): void {
    this.#over.abort(new TechnocoreError('over', 'the host is gone'));
    this.#changes.stop();
    this.#pending.clear();
    this.#questions.clear();
  }

  // --- from the host ---------------------------------------------------------------------------------------------

  fromHost(message: unknown): void {
    if (Array.isArray(message)) {
      // Only this revision has batches.
      if (this.#session?.version === '2025-03-26' && message.length > 0)
        for (const member of message) this.fromHost(Array.isArray(member) ? undefined : member);
      else this.#o.toHost(rpcError(undefined, INVALID_REQUEST, 'Invalid Request: MCP has no batches'));
      return;
    }
    switch (classify(message)) {
      case 'request':
        this.#request(message as JsonObject);
        break;
      case 'notification':
        this.#notification(message as JsonObject);
        break;
      case 'response':
        this.#answered(message as JsonObject);
        break;
      default:
        this.#o.toHost(rpcError(undefined, INVALID_REQUEST, 'Invalid Request'));
    }
  }

  #request(message: JsonObject): void {
    const { id } = message as { id: Id };
    if (!isMcpId(id)) {
      this.#o.toHost(badId());
      return;
    }
    try {
      const result = this.#taken(id, message);
      if (result) this.#o.toHost(rpcResult(id, result));
    } catch (cause) {
      this.#refuse(id, cause);
    }
  }

  #refuse(id: Id, cause: unknown): void {
    if (!(cause instanceof RpcError)) throw cause;
    this.#o.toHost(refusalOf(id, cause));
  }

  /** The result of a request that can be answered here; any other is passed on. */
  #taken(id: Id, message: JsonObject): JsonObject | undefined {
    const { method } = message as { method: string };
    const params = objectIn(message, 'params');
    const session = this.#session;
    if (typeof id === 'string' && id.startsWith(OURS)) {
      throw new RpcError(INVALID_REQUEST, `Invalid Request: ids that start with ${OURS} are reserved`);
    }
    if (isSelfContained(message)) {
      this.#o.toRoom(message);
      return undefined;
    }
    if (method === 'ping') return {};
    if (method === 'initialize') {
      this.#initialize(id, params);
      return undefined;
    }
    if (!session) {
      throw badParams(`Start with initialize, or name the revision in _meta as ${PROTOCOL_VERSION}`);
    }
    if (method === 'logging/setLevel') {
      if (!LEVELS.includes(params['level'] as string)) throw badParams(`A level is one of ${LEVELS.join(', ')}`);
      session.level = params['level'] as string;
      return {};
    }
    if (method === 'resources/subscribe') {
      // A host that asks for this is ready, even if it has not said so.
      this.#changes.begin(session.server);
      this.#changes.follow(id, params['uri']);
      return undefined;
    }
    if (method === 'resources/unsubscribe') {
      this.#changes.unfollow(params['uri']);
      return {};
    }
    if (method.startsWith('tasks/')) {
      const why = `Method not found: ${method.slice(0, 80)}; tasks of ${session.version} are not supported`;
      throw new RpcError(METHOD_NOT_FOUND, why);
    }
    if (this.#pending.size >= MAX_PENDING) throw new RpcError(BUSY, 'Busy', { retryAfterMs: 1000 });
    if (this.#pending.has(id)) throw new RpcError(INVALID_REQUEST, 'Invalid Request: the id is in use');
    const { task: _, ...rest } = params;
    this.#send(id, begun(id, method, rest));
    return undefined;
  }

  #send(id: Id, pending: Pending, more: JsonObject = {}): void {
    this.#pending.set(id, pending);
    pending.more = more;
    const { method, params } = pending;
    this.#o.toRoom(rpcRequest(id, method, { ...params, ...more, _meta: this.#meta(objectIn(params, '_meta')) }));
  }

  #meta(own: JsonObject = {}): JsonObject {
    const { capabilities = {}, info, level } = this.#session ?? {};
    return {
      ...own,
      [PROTOCOL_VERSION]: MCP_VERSION,
      [CLIENT_CAPABILITIES]: capabilities,
      ...(info && { [CLIENT_INFO]: info }),
      ...(level !== undefined && { [LOG_LEVEL]: level }),
    };
  }

  #notification(message: JsonObject): void {
    const { method } = message;
    const session = this.#session;
    if (method === 'notifications/initialized' && session) this.#changes.begin(session.server);
    // Other notifications of a host mean nothing to a server without sessions.
    if (method !== 'notifications/cancelled') return;
    const { requestId, reason } = objectIn(message, 'params');
    const [id, pending] = [...this.#pending].find(([, { hostId }]) => hostId === requestId) ?? [];
    if (pending) {
      this.#forget(id!, pending);
      this.#cancel(id!, reason);
    } else this.#o.toRoom(message);
  }

  #cancel(requestId: Id, reason?: Json): void {
    const params = { requestId, ...(typeof reason === 'string' && { reason }) };
    this.#o.toRoom(rpcNotification('notifications/cancelled', params));
  }

  #forget(id: Id, pending: Pending): void {
    this.#pending.delete(id);
    for (const asked of pending.asked.keys()) this.#questions.delete(asked);
  }

  // --- the handshake ---------------------------------------------------------------------------------------------

  #initialize(hostId: Id, params: JsonObject): void {
    const { protocolVersion, clientInfo } = params;
    if (typeof protocolVersion !== 'string' || !isObject(params['capabilities'])) {
      throw badParams('initialize takes protocolVersion, capabilities and clientInfo');
    }
    const { tasks: _, roots, ...capabilities } = params['capabilities'] as JsonObject;
    const session: Session = {
      version: HANDSHAKES.includes(protocolVersion) ? protocolVersion : HANDSHAKES[0]!,
      capabilities: { ...capabilities, ...(isObject(roots) && { roots: {} }) },
      info: isObject(clientInfo) ? (clientInfo as JsonObject) : undefined,
      level: undefined,
      server: {},
    };
    this.#session = session;
    this.#changes.stop();
    const id = this.#mint();
    this.#send(id, begun(hostId, 'server/discover', {}));
    this.#o.clock.sleep(DISCOVER_MS, this.#over.signal).then(
      () => {
        if (!this.#pending.delete(id)) return;
        this.#session = undefined;
        this.#cancel(id, 'timeout');
        const why = advised('The server did not answer', this.#o.hint);
        this.#o.toHost(rpcError(hostId, INTERNAL_ERROR, why));
      },
      () => {},
    );
  }

  /** Answers the host's handshake with what the other side says about itself. */
  #discovered({ supportedVersions, capabilities, instructions, _meta }: JsonObject): JsonObject | undefined {
    const session = this.#session;
    if (!session) return undefined;
    if (!Array.isArray(supportedVersions) || !supportedVersions.includes(MCP_VERSION)) {
      this.#session = undefined;
      throw new RpcError(INTERNAL_ERROR, `The server does not support MCP ${MCP_VERSION}`);
    }
    session.server = sharedCapabilities(capabilities);
    const { name, version, ...more } = objectIn(_meta, SERVER_INFO);
    return {
      protocolVersion: session.version,
      capabilities: session.server,
      serverInfo: {
        ...more,
        name: typeof name === 'string' ? name : 'unnamed',
        version: typeof version === 'string' ? version : '0',
      },
      ...(typeof instructions === 'string' && { instructions }),
    };
  }

  // --- from the room ---------------------------------------------------------------------------------------------

  fromRoom(message: unknown): void {
    if (!isObject(message)) return;
    const frame = message as JsonObject;
    switch (classify(frame)) {
      case 'response':
        this.#response(frame);
        break;
      case 'notification': {
        const { requestId } = frame['method'] === 'notifications/cancelled' ? objectIn(frame, 'params') : {};
        const tag = metaIn(frame)[SUBSCRIPTION_ID] ?? requestId;
        if (!this.#changes.notified(tag, frame) && (typeof tag !== 'string' || !tag.startsWith(OURS))) {
          this.#o.toHost(this.#session ? withoutProtocolMeta(frame) : frame, this.#about(frame));
        }
        break;
      }
      default:
      // Servers send no requests in this revision.
    }
  }

  /** The host's id of the request that a notification belongs to. */
  #about(frame: JsonObject): Id | undefined {
    const id = metaIn(frame)[REQUEST_ID] as Id | undefined;
    const { progressToken } = objectIn(frame, 'params');
    const of = ({ params }: Pending): boolean => objectIn(params, '_meta')['progressToken'] === progressToken;
    const pending =
      this.#pending.get(id ?? null) ?? (progressToken === undefined ? undefined : [...this.#pending.values()].find(of));
    return pending?.hostId ?? id;
  }

  #response(frame: JsonObject): void {
    const { id } = frame as { id: Id };
    const pending = this.#pending.get(id);
    // A request that was answered with questions gets no other answer while the host is asked.
    if (pending && pending.asked.size > 0) return;
    if (pending) {
      this.#pending.delete(id);
      try {
        const result = this.#resultOf(id, pending, frame);
        if (result) this.#o.toHost(rpcResult(pending.hostId, result));
      } catch (cause) {
        this.#refuse(pending.hostId, cause);
      }
    } else if (!this.#changes.answered(id, frame['error']) && (typeof id !== 'string' || !id.startsWith(OURS))) {
      const { error } = frame;
      const { message, ...rest } = isObject(error) ? error : {};
      const advice = this.#adviceFor(rest);
      if (advice === undefined || typeof message !== 'string') this.#o.toHost(frame);
      else this.#o.toHost({ ...frame, error: { ...rest, message: advised(message, advice) } });
    }
  }

  /** Advice about an error, if there is any. */
  #adviceFor({ code, data }: { code?: unknown; data?: unknown }): string | undefined {
    const { denied, hint } = this.#o;
    return code === DENIED ? denied : isSilence(code, data) ? hint : undefined;
  }

  /** The result for the host; undefined if the request was sent again, or the host is asked first. */
  #resultOf(id: Id, pending: Pending, { result, error }: JsonObject): JsonObject | undefined {
    if (!isObject(result)) {
      const carried = carriedError(error);
      const { code, data } = carried;
      const isDiscover = pending.method === 'server/discover';
      // Another try would take longer than the host waits.
      const isLast = isDiscover && isSilence(code, data);
      if (code === LOST && !isLast && REPEATABLE.has(pending.method) && pending.repeats++ < MAX_REPEATS) {
        this.#send(this.#mint(), pending, pending.more);
        return undefined;
      }
      if (isDiscover) this.#session = undefined;
      throw new RpcError(code, advised(carried.message, this.#adviceFor(carried)), data);
    }
    if (pending.method === 'server/discover') return this.#discovered(result as JsonObject);
    const { resultType = 'complete', ttlMs: _t, cacheScope: _c, _meta, ...rest } = result as JsonObject;
    if (resultType === 'input_required') {
      this.#ask(id, pending, result as JsonObject);
      return undefined;
    }
    if (resultType !== 'complete') {
      const type = JSON.stringify(resultType).slice(0, 80);
      throw new RpcError(INTERNAL_ERROR, `The server answered with ${type}, which is not supported`);
    }
    const meta = isObject(_meta) ? without(_meta as JsonObject, isProtocolMeta) : {};
    return { ...olderResult(pending.method, rest), ...(Object.keys(meta).length > 0 && { _meta: meta }) };
  }

  // --- questions -------------------------------------------------------------------------------------------------

  /** Asks the host the questions of the other side. */
  #ask(id: Id, pending: Pending, { inputRequests, requestState }: JsonObject): void {
    const { version, capabilities } = this.#session!;
    if (++pending.round > MAX_ROUNDS) {
      throw new RpcError(INTERNAL_ERROR, `The server asked more than ${MAX_ROUNDS} times`);
    }
    const questions = Object.entries(isObject(inputRequests) ? (inputRequests as JsonObject) : {});
    for (const [, question] of questions) {
      const method = isObject(question) ? question['method'] : undefined;
      const needed = typeof method === 'string' && Object.hasOwn(QUESTIONS, method) ? QUESTIONS[method] : undefined;
      if (needed === undefined || !isObject(capabilities[needed])) {
        const what = JSON.stringify(method)?.slice(0, 80);
        throw new RpcError(INTERNAL_ERROR, `The server asks for ${what}, which this host does not offer`);
      }
    }
    pending.answers = [];
    pending.state = requestState;
    this.#pending.set(id, pending);
    const asked = questions.map(([key, question]): JsonObject => {
      const name = this.#mint();
      pending.asked.set(name, key);
      this.#questions.set(name, pending);
      const { method, params } = question as { method: string; params?: Json };
      return rpcRequest(name, method, method === 'elicitation/create' ? elicitation(params, version, name) : params);
    });
    if (asked.length === 0) this.#retry(pending);
    for (const question of asked) this.#o.toHost(question, pending.hostId);
  }

  /** Takes the host's answer to a question. */
  #answered(message: JsonObject): void {
    const name = message['id'] as string;
    const pending = this.#questions.get(name);
    const key = pending?.asked.get(name);
    if (!pending || key === undefined) return;
    this.#questions.delete(name);
    pending.asked.delete(name);
    if (isObject(message['result'])) pending.answers.push([key, message['result'] as JsonObject]);
    else {
      const [id] = [...this.#pending].find(([, other]) => other === pending)!;
      this.#forget(id, pending);
      const { code, message: why, data } = carriedError(message['error']);
      this.#o.toHost(rpcError(pending.hostId, code, why, data));
      return;
    }
    if (pending.asked.size === 0) this.#retry(pending);
  }

  /** Sends the request again, with the answers, under a new id. */
  #retry(pending: Pending): void {
    const [id] = [...this.#pending].find(([, other]) => other === pending)!;
    this.#pending.delete(id);
    const { answers, state } = pending;
    this.#send(this.#mint(), pending, {
      ...(answers.length > 0 && { inputResponses: Object.fromEntries(answers) }),
      ...(state !== undefined && { requestState: state }),
    });
  }

  #mint(): string {
    return `${OURS}${++this.#minted}`;
  }
}

const advised = (message: string, advice: string | undefined): string =>
  advice === undefined ? message : `${message}: ${advice}`;

/** Whether an error says that the other side did not answer in time. */
const isSilence = (code: unknown, data: unknown): boolean =>
  code === LOST && isObject(data) && data['reason'] === 'call_timeout';

const begun = (hostId: Id, method: string, params: JsonObject): Pending => ({
  hostId,
  method,
  params,
  round: 0,
  repeats: 0,
  more: {},
  asked: new Map(),
  answers: [],
  state: undefined,
});

/** A question in the form of the host's revision. */
function elicitation(params: Json | undefined, version: string, name: string): JsonObject {
  const { mode, ...rest } = isObject(params) ? (params as JsonObject) : {};
  if (mode === 'url') return { mode, elicitationId: name, ...rest };
  return version === '2025-11-25' && mode !== undefined ? { mode, ...rest } : rest;
}

function withoutProtocolMeta(frame: JsonObject): JsonObject {
  const { _meta, ...params } = objectIn(frame, 'params');
  if (!isObject(_meta)) return frame;
  const meta = without(_meta as JsonObject, isProtocolMeta);
  return { ...frame, params: { ...params, ...(Object.keys(meta).length > 0 && { _meta: meta }) } };
}
