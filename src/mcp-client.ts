/**
 * The client side of MCP, revision 2026-07-28: the tools of another agent. There is no session. Each request is
 * self-contained; if its answer is lost, it is sent again under a fresh id, or the loss is reported.
 *
 * What the other side sends is untrusted: the shape of results is checked, and structured ones are checked against the
 * tool's output schema where it is known; lists and rounds are limited.
 *
 * @module
 */
import { toBase64url } from './bytes.ts';
import { type Channel, isChannel } from './channel.ts';
import { type Implementation, INVALID_PARAMS, isRpc, type JsonObject, toJson } from './dispatch.ts';
import { checkFunctions, checkNumbers, checkObject, RpcError, TechnocoreError } from './errors.ts';
import { encodeLong, isObject, type Json } from './frames.ts';
import { orAbort, sharedOf, transportOf } from './http.ts';
import { checkEnds } from './line.ts';
import { getOrMake, remember } from './maps.ts';
import { SERVER_INFO } from './mcp.ts';
import { ask, badResponse, type McpOptions, type Notice, ownMeta, type Peer, peerOf, tagOf } from './mcp-peer.ts';
import { LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { checkSigner } from './rooms.ts';
import { compileForeignSchema, type Schema } from './schema.ts';
import type { Signer } from './signer.ts';
import { MISSING_CAPABILITY } from './toolcall.ts';
import { type ElicitResult, isBlock, type LogLevel, type Tool, type ToolResult } from './tools.ts';

/** How often one call may be asked for input. */
const MAX_ROUNDS = 10;
/** The maximum number of pages and characters in one list of tools. */
const MAX_PAGES = 1024;
const MAX_LIST_CHARS = 1 << 22;
/** How often reading a list is restarted because the list changed meanwhile. */
const MAX_RESTARTS = 2;
/** How many lists are cached. */
const MAX_LISTS = 32;
/** How long a list may be cached, ms. */
const MAX_TTL_MS = 86_400_000;
/** How often a keep-alive request is sent, ms, and how soon again after a failure. */
const KEEPALIVE_MS = 72_000_000;
const KEEPALIVE_RETRY_MS = 3_600_000;

/** A tool's question, as passed to an {@link Answerer}. */
export interface InputContext {
  /** The tool's name for the question; the same each time it asks. */
  readonly key: string;
  /** The signal of the call. */
  readonly signal: AbortSignal | undefined;
}

/** Answers one kind of tool question. If it throws, the call throws the same error. */
export type Answerer<T> = (params: any, context: InputContext) => T | Promise<T>;

/**
 * Functions that answer a tool's questions while it runs. Exactly the kinds that have a function are declared to the
 * server. The params are untrusted.
 */
export interface InputHandlers {
  /** Shows a person a form: `params.message` and `params.requestedSchema`. Never answer with secrets. */
  elicit?: Answerer<ElicitResult> | undefined;
  /** Asks a person to visit a web page: `params.message` and `params.url`. */
  elicitUrl?: Answerer<ElicitResult> | undefined;
  /** Asks the caller's model: `params.messages`, `params.maxTokens` and so on. Returns `role`, `content` and `model`. */
  sample?: Answerer<object> | undefined;
  /** Names the caller's root folders, as `file:` URIs. */
  roots?: Answerer<{ roots: { uri: string; name?: string }[] }> | undefined;
}

/** Options of {@link mcpListTools}. */
export interface McpListOptions extends McpOptions {
  /** Whether to ask the server even if a cached list is still valid; default false. */
  refresh?: boolean | undefined;
}

/**
 * Options of {@link mcpCallTool}. `timeoutMs` applies to each round; progress extends it, up to ten times as long.
 */
export interface McpCallOptions extends McpOptions {
  /** Answers the tool's questions. Default: none, and a tool that must ask fails with code -32021. */
  onInput?: InputHandlers | undefined;
  /** Called with progress; `done` rises. `message` is untrusted text. */
  onProgress?: ((done: number, total?: number, message?: string) => void) | undefined;
  /** Called with log lines, which are untrusted. */
  onLog?: ((level: LogLevel, data: Json, logger?: string) => void) | undefined;
  /** The lowest level passed to `onLog`; default `info`. */
  logLevel?: LogLevel | undefined;
  /**
   * Whether the tool may run twice. If so, it is called again under a fresh id when the caller's mailbox lost messages,
   * possibly including the answer. Default: as the tool's annotations say if a list with it has been read; else false.
   */
  idempotent?: boolean | undefined;
}

/** An MCP server's description of itself: the result of {@link mcpDiscover}. Untrusted. */
export interface DiscoverResult {
  /** The MCP revisions that it supports, such as `2026-07-28`. */
  supportedVersions: string[];
  /** What it offers, such as `tools`. */
  capabilities: JsonObject;
  /** What a model should know about it. */
  instructions?: string;
  /** Its name and version. */
  serverInfo?: Implementation;
  /** How long this may be cached, in milliseconds: 0 to a day. */
  ttlMs: number;
  /** Whether a cache may show it to other callers. */
  cacheScope: 'public' | 'private';
  /** Further data, under prefixed names. */
  _meta?: JsonObject;
}

// --- discovery ---------------------------------------------------------------------------------------------------

const always = (): boolean => true;

/** How long a result may be cached, ms. */
function ttlOf({ ttlMs }: JsonObject): number {
  return typeof ttlMs === 'number' ? Math.min(Math.max(ttlMs, 0), MAX_TTL_MS) : 0;
}

function scopeOf({ cacheScope }: JsonObject): 'public' | 'private' {
  return cacheScope === 'public' ? 'public' : 'private';
}

/**
 * Asks an MCP server what it is and what it can do (`server/discover`). The result is never taken from a cache.
 *
 * @param to the server's mailbox, DID or {@link Channel}
 * @param signer the caller's key
 * @throws what {@link call} throws; a {@link TechnocoreError} `bad_response` if the result is malformed
 */
export async function mcpDiscover(to: string | Channel, signer: Signer, o: McpOptions = {}): Promise<DiscoverResult> {
  const peer = peerOf(to, signer, o);
  const { resultType: _, ...result } = await ask(peer, 'server/discover', { _meta: ownMeta(peer) }, always);
  const { supportedVersions, capabilities, instructions, _meta } = result;
  const named = Array.isArray(supportedVersions) && supportedVersions.every((version) => typeof version === 'string');
  if (!named || !isObject(capabilities) || (instructions !== undefined && typeof instructions !== 'string')) {
    throw badResponse('an invalid description of itself');
  }
  const info = isObject(_meta) ? _meta[SERVER_INFO] : undefined;
  const isInfo = isObject(info) && typeof info['name'] === 'string' && typeof info['version'] === 'string';
  return {
    ...(result as unknown as DiscoverResult),
    ...(isInfo && { serverInfo: info as NonNullable<DiscoverResult['serverInfo']> }),
    ttlMs: ttlOf(result),
    cacheScope: scopeOf(result),
  };
}

/**
 * Keeps a pair of idle mailboxes alive by calling `server/discover` from time to time: the request refreshes the
 * server's mailbox, the answer the caller's. The service deletes rooms after seven days without a message, and rooms
 * with a single message after one day. Failures are events (`retry`) and do not end it.
 *
 * @param to the server's mailbox, DID or {@link Channel}
 * @param signer the caller's key
 * @param o `everyMs`: how often to call, in milliseconds; default 72,000,000 (20 hours)
 * @returns resolves after `o.signal` aborts
 */
export async function mcpKeepAlive(
  to: string | Channel,
  signer: Signer,
  o: McpOptions & { everyMs?: number | undefined } = {},
): Promise<void> {
  const { everyMs = KEEPALIVE_MS, id: _, ...options } = checkObject(o);
  const { clock, onEvent } = transportOf(o);
  checkNumbers(o, ['everyMs']);
  // It would be repeated for ever.
  checkSigner(signer);
  checkEnds(to, o);
  while (!o.signal?.aborted) {
    let afterMs = everyMs;
    try {
      await mcpDiscover(to, signer, options);
    } catch (cause) {
      if (o.signal?.aborted) return;
      afterMs = Math.min(everyMs, KEEPALIVE_RETRY_MS);
      onEvent({ kind: 'retry', method: 'server/discover', cause, afterMs });
    }
    await clock.sleep(afterMs, o.signal).catch(() => {});
  }
}

// --- lists of tools ----------------------------------------------------------------------------------------------

/** A cached list. */
interface Listed {
  readonly to: string;
  readonly tools: Tool[];
  readonly read: number;
  readonly until: number;
  /** Checks of structured results, compiled on first use; undefined for a schema that cannot be used. */
  readonly checks: Map<string, Schema | undefined>;
}

/** The lists cached for one transport or channel. */
class Lists {
  /** Counts drops: a list that was being read during one may already be out of date. */
  drops = 0;
  readonly #kept = new Map<string, Listed>();

  #key({ to, signer, o }: Peer, scope: 'public' | 'private'): string {
    return JSON.stringify([isChannel(to) ? '' : to, o.peer ?? '', scope === 'private' ? signer.did : '']);
  }

  get(peer: Peer): Listed | undefined {
    return this.#kept.get(this.#key(peer, 'private')) ?? this.#kept.get(this.#key(peer, 'public'));
  }

  set(peer: Peer, scope: 'public' | 'private', listed: Listed): void {
    this.delete(peer);
    remember(this.#kept, this.#key(peer, scope), listed, MAX_LISTS);
  }

  delete(peer: Peer): void {
    this.#kept.delete(this.#key(peer, 'private'));
    this.#kept.delete(this.#key(peer, 'public'));
  }

  /** Drops the lists of a server, whoever asked for them. */
  drop(to: string): void {
    this.drops++;
    for (const [key, listed] of this.#kept) if (listed.to === to) this.#kept.delete(key);
  }
}

const LISTS = {};
const channelLists = new WeakMap<Channel, Lists>();

/** @internal */
export function listsOf({ t, to }: Peer): Lists {
  const make = (): Lists => new Lists();
  return isChannel(to) ? getOrMake(channelLists, to, make) : sharedOf(t, LISTS, make);
}

/** @internal The name under which a server's lists are dropped. */
export const nameOf = (to: string | Channel): string => (isChannel(to) ? '' : to);

function isGood({ read, until }: Listed, now: number): boolean {
  return read <= now && now < until;
}

const optional = (value: unknown, is: (value: unknown) => boolean): boolean => value === undefined || is(value);
const isText = (value: unknown): boolean => typeof value === 'string';

function isTool(value: unknown): value is Tool {
  if (!isObject(value)) return false;
  const { name, title, description, inputSchema, outputSchema, annotations, icons, _meta } = value;
  return (
    isText(name) &&
    name !== '' &&
    isObject(inputSchema) &&
    optional(title, isText) &&
    optional(description, isText) &&
    optional(outputSchema, isObject) &&
    optional(annotations, isObject) &&
    optional(_meta, isObject) &&
    optional(icons, (icons) => Array.isArray(icons) && icons.every(isObject))
  );
}

/**
 * Lists all tools of an MCP server (`tools/list`), from all pages. The list is cached for as long as the server allows,
 * up to a day, and shared with other signers in this process only if the server calls it public. An {@link mcpListen}
 * to the same `to` drops it when it changes. Malformed entries are skipped (event `skipped`).
 *
 * @param to the server's mailbox, DID or {@link Channel}
 * @param signer the caller's key
 * @returns the tools in the server's order; names, descriptions and annotations are untrusted
 * @throws what {@link call} throws; a {@link TechnocoreError} `bad_response` if the list is malformed or does not end
 * @example
 * ```ts
 * import { mcpListTools, Signer } from 'technocore-rpc';
 *
 * const signer = await Signer.fromDir();
 * const tools = await mcpListTools('mb-p-adds-90c2', signer, { replyTo: 'mb-p-ada-77c2' });
 * for (const { name, description } of tools) console.log(`${name}: ${description}`);
 * ```
 */
export async function mcpListTools(to: string | Channel, signer: Signer, o: McpListOptions = {}): Promise<Tool[]> {
  const peer = peerOf(to, signer, o);
  const { clock } = peer.t;
  const lists = listsOf(peer);
  const kept = lists.get(peer);
  if (kept && !o.refresh && isGood(kept, clock.now())) return structuredClone(kept.tools);
  const { drops } = lists;
  const read = clock.now();
  const { tools, ttlMs, scope } = await readTools(peer);
  const until = lists.drops === drops ? read + ttlMs : read;
  lists.set(peer, scope, { to: nameOf(to), tools, read, until, checks: new Map() });
  return structuredClone(tools);
}

async function readTools(peer: Peer): Promise<{ tools: Tool[]; ttlMs: number; scope: 'public' | 'private' }> {
  const _meta = ownMeta(peer);
  for (let restarts = 0; ; restarts++) {
    const tools = new Map<string, Tool>();
    const cursors = new Set<string>();
    let ttlMs = MAX_TTL_MS;
    let scope: 'public' | 'private' = 'public';
    let chars = 0;
    let cursor: string | undefined;
    try {
      for (;;) {
        const page = await ask(peer, 'tools/list', { ...(cursor !== undefined && { cursor }), _meta }, always);
        const { tools: listed, nextCursor } = page;
        if (!Array.isArray(listed) || !optional(nextCursor, isText)) throw badResponse('an invalid list of tools');
        chars += encodeLong(page).length;
        for (const one of listed as unknown[]) {
          if (!isTool(one) || tools.has(one.name)) {
            peer.t.onEvent({ kind: 'skipped', method: 'tools/list', reason: 'not a tool, or the name of another' });
          } else {
            const { layer: _, ...tool } = one;
            tools.set(tool.name, tool);
          }
        }
        ttlMs = Math.min(ttlMs, ttlOf(page));
        if (scopeOf(page) === 'private') scope = 'private';
        cursor = nextCursor as string | undefined;
        if (cursor === undefined) return { tools: [...tools.values()], ttlMs, scope };
        if (cursors.has(cursor) || cursors.size >= MAX_PAGES || chars > MAX_LIST_CHARS) {
          throw badResponse('a list of tools that does not end');
        }
        cursors.add(cursor);
      }
    } catch (cause) {
      // The server no longer knows its own cursor: the list changed while it was read.
      if (cursor === undefined || restarts >= MAX_RESTARTS || !isRpc(cause, INVALID_PARAMS)) throw cause;
      peer.t.onEvent({ kind: 'retry', method: 'tools/list', cause, afterMs: 0 });
    }
  }
}

// --- calls -------------------------------------------------------------------------------------------------------

/**
 * Calls a tool of an MCP server (`tools/call`). A failure of the tool itself is a result with `isError`; an error is
 * thrown if the call did not take place.
 *
 * The tool's questions go to `o.onInput`, one after the other, and the call continues with the answers, for up to ten
 * rounds. When the call is aborted or times out, the server is asked to stop.
 *
 * Arguments that do not fit into a message, up to about 95 kB, go through notes if an earlier answer of the server,
 * such as that to {@link mcpDiscover}, advertised that it reads such requests. Servers of this library do if they have
 * the option `allow` or `spill`.
 *
 * @param to the server's mailbox, DID or {@link Channel}
 * @param name the name of the tool, as the server lists it
 * @param args the arguments, an object; undefined for none
 * @param signer the caller's key
 * @returns the result; untrusted. If a valid cached list has an output schema for the tool, `structuredContent`
 * satisfies it
 * @throws an {@link RpcError} if the server refuses: code -32602 for an unknown tool, -32021 if the tool asks something
 * that `o.onInput` has no function for, -32022 for an unsupported MCP revision
 * @throws a {@link RingGap} if messages were lost, possibly including the answer, and the tool may not run twice
 * @throws a {@link TechnocoreError} `bad_response` if the result is malformed, of an unknown type, or violates the tool's
 * output schema; `too_many_rounds` if the tool asks more than ten times; `bad_params` if `args` is not an object
 * @throws what `o.onInput`, `o.onProgress` and `o.onLog` throw, and what {@link call} throws
 * @example
 * ```ts
 * import { mcpCallTool, Signer } from 'technocore-rpc';
 *
 * const signer = await Signer.fromDir();
 * const { isError, structuredContent } = await mcpCallTool('mb-p-adds-90c2', 'add', { a: 1, b: 2 }, signer, {
 *   replyTo: 'mb-p-ada-77c2',
 *   onInput: { elicit: ({ message }) => (console.log('it asks:', message), { action: 'decline' }) },
 *   onProgress: (done, total) => console.log(`${done} of ${total}`),
 * });
 * console.log(isError ?? false, structuredContent); // false { sum: 3 }
 * ```
 */
export async function mcpCallTool(
  to: string | Channel,
  name: string,
  args: object | undefined,
  signer: Signer,
  o: McpCallOptions = {},
): Promise<ToolResult> {
  const { onInput = {}, capabilities } = checkObject(o);
  checkFunctions(o, ['onProgress', 'onLog']);
  checkFunctions(checkObject(onInput, 'the option onInput'), ['elicit', 'elicitUrl', 'sample', 'roots']);
  const peer = peerOf(to, signer, { ...o, capabilities: { ...capabilitiesOf(onInput), ...capabilities } });
  const given = args === undefined ? {} : toJson(args);
  if (!isObject(given)) throw new TechnocoreError('bad_params', 'the arguments of a tool must be an object');
  const params: JsonObject = { name, arguments: given as JsonObject };
  const known = (): Tool | undefined =>
    listsOf(peer)
      .get(peer)
      ?.tools.find((tool) => tool.name === name);
  const mayRepeat = (): boolean => {
    const { idempotentHint, readOnlyHint } = known()?.annotations ?? {};
    return o.idempotent ?? (idempotentHint ?? readOnlyHint) === true;
  };
  let more: JsonObject = {};
  for (let round = 0; ; round++) {
    const token = toBase64url(peer.t.random(6));
    const _meta = { ...ownMeta(peer), ...wanted(o, token) };
    const asked = ask(peer, 'tools/call', { ...params, ...more, _meta }, mayRepeat, noticesOf(o, token));
    const result = await asked.catch((cause) => {
      throw isRpc(cause, MISSING_CAPABILITY) ? withHint(cause) : cause;
    });
    if (result['resultType'] !== 'input_required') return checkedResult(peer, name, result);
    if (round >= MAX_ROUNDS) {
      throw new TechnocoreError('too_many_rounds', `the tool asked for input more than ${MAX_ROUNDS} times`);
    }
    more = await answersTo(result, onInput, o.signal);
  }
}

function capabilitiesOf({ elicit, elicitUrl, sample, roots }: InputHandlers): JsonObject {
  // `{}` means forms only, for servers that know no other kind, too.
  const elicitation: JsonObject = elicitUrl === undefined ? {} : { ...(elicit && { form: {} }), url: {} };
  return {
    ...((elicit ?? elicitUrl) && { elicitation }),
    ...(sample && { sampling: {} }),
    ...(roots && { roots: {} }),
  };
}

/** The error for a missing capability, with a hint which option provides it. */
function withHint({ rpc: { code, message, data } }: RpcError): RpcError {
  const { requiredCapabilities: required } = isObject(data) ? data : {};
  const { elicitation, sampling, roots } = isObject(required) ? required : {};
  const elicit = isObject(elicitation) && 'url' in elicitation ? 'elicitUrl' : 'elicit';
  const names = [elicitation && elicit, sampling && 'sample', roots && 'roots'].filter(Boolean);
  const needed = names.length > 0 ? `option onInput, with ${names.join(', ')}` : 'option onInput or capabilities';
  return new RpcError(code, message, data, `the tool asks its caller; answer with the ${needed}`);
}

/** The members of `_meta` that ask for progress and log lines. */
function wanted({ onProgress, onLog, logLevel }: McpCallOptions, token: string): JsonObject {
  return {
    ...(onProgress && { progressToken: token }),
    ...(onLog && { [LOG_LEVEL]: logLevel ?? 'info' }),
  };
}

/** Passes on the progress and log lines of one call. */
function noticesOf({ onProgress, onLog }: McpCallOptions, token: string): Notice {
  let reported = Number.NEGATIVE_INFINITY;
  return (frame, id) => {
    const { method, params } = frame;
    if (!isObject(params)) return undefined;
    const of = tagOf(frame, REQUEST_ID);
    // Others can read our token in the request and use it in theirs, so the server's tag for the request counts as
    // well.
    const isOurs = params['progressToken'] === token && (of === undefined || of === id);
    if (onProgress && method === 'notifications/progress' && isOurs) {
      const { progress, total, message } = params;
      if (typeof progress !== 'number' || !(progress > reported)) return undefined;
      reported = progress;
      onProgress(
        progress,
        typeof total === 'number' ? total : undefined,
        typeof message === 'string' ? message : undefined,
      );
      return 'alive';
    }
    // Servers that do not know our tag cannot say which request a line belongs to.
    if (onLog && method === 'notifications/message' && (of === undefined || of === id)) {
      const { level, data = null, logger } = params;
      if (typeof level !== 'string') return undefined;
      onLog(level as LogLevel, data as Json, typeof logger === 'string' ? logger : undefined);
      return of === id ? 'alive' : undefined;
    }
    return undefined;
  };
}

/** The params with which a call continues after it was asked for input. */
async function answersTo(
  { inputRequests, requestState }: JsonObject,
  onInput: InputHandlers,
  signal: AbortSignal | undefined,
): Promise<JsonObject> {
  const isAsking = isObject(inputRequests) && Object.values(inputRequests).every(isObject);
  if (
    !(inputRequests === undefined || isAsking) ||
    !optional(requestState, isText) ||
    (inputRequests ?? requestState) === undefined
  ) {
    throw badResponse('an invalid request for input');
  }
  const answers: [string, Json][] = [];
  for (const [key, question] of Object.entries((inputRequests ?? {}) as { [key: string]: JsonObject })) {
    const { method, params = {} } = question;
    const answer = answererOf(onInput, method, params);
    if (!answer)
      throw badResponse(`a request for ${encodeLong(method ?? null).slice(0, 80)}, which the client did not declare`);
    const given = await orAbort(Promise.resolve(answer(params, { key, signal })), signal);
    answers.push([key, toJson(checkObject(given as object, `what onInput answers to ${method}`))]);
  }
  return {
    ...(inputRequests !== undefined && { inputResponses: Object.fromEntries(answers) }),
    ...(requestState !== undefined && { requestState }),
  };
}

function answererOf(
  { elicit, elicitUrl, sample, roots }: InputHandlers,
  method: Json | undefined,
  params: Json,
): Answerer<unknown> | undefined {
  switch (method) {
    case 'elicitation/create':
      return isObject(params) && params['mode'] === 'url' ? elicitUrl : elicit;
    case 'sampling/createMessage':
      return sample;
    case 'roots/list':
      return roots;
    default:
      return undefined;
  }
}

async function checkedResult(peer: Peer, name: string, result: JsonObject): Promise<ToolResult> {
  const { resultType: _, ...rest } = result;
  const { content, structuredContent, isError, _meta } = rest;
  if (
    !Array.isArray(content) ||
    !content.every(isBlock) ||
    !optional(isError, (is) => typeof is === 'boolean') ||
    !optional(_meta, isObject)
  ) {
    throw badResponse('an invalid tool result');
  }
  const problem = isError === true ? undefined : await outputProblem(peer, name, structuredContent);
  if (problem !== undefined) throw badResponse(`a result that breaks the output schema of ${name}: ${problem}`);
  return rest as unknown as ToolResult;
}

/** How a structured result violates the tool's output schema; undefined if it does not, or if the schema is unknown. */
async function outputProblem(peer: Peer, name: string, value: Json | undefined): Promise<string | undefined> {
  const { clock, onEvent } = peer.t;
  const listed = listsOf(peer).get(peer);
  const outputSchema = listed?.tools.find((tool) => tool.name === name)?.outputSchema;
  if (!listed || !outputSchema || !isGood(listed, clock.now())) return undefined;
  if (!listed.checks.has(name)) {
    let schema: Schema | undefined;
    try {
      schema = compileForeignSchema(outputSchema);
    } catch (cause) {
      onEvent({ kind: 'unchecked', tool: name, cause });
    }
    listed.checks.set(name, schema);
  }
  if (value === undefined) return 'there is no structured content';
  return (await listed.checks.get(name)?.check(value))?.problem;
}
