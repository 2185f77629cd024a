/**
 * The asking side of MCP, revision 2026-07-28: tools that live inside another agent, used as if they were here. There is
 * no session; each request says all it needs, and a lost one is asked again under a fresh id or reported, never guessed.
 *
 * What the other side sends is a stranger's: results are checked for shape, structured ones against the tool's output
 * schema where that is known, lists and rounds are bounded.
 *
 * @module
 */
import { toBase64url } from './bytes.ts';
import { type Channel, isChannel } from './channel.ts';
import { INVALID_PARAMS, type JsonObject, toJson } from './dispatch.ts';
import { checkObject, RpcError, TechnocoreError } from './errors.ts';
import { encodeLong, isObject, type Json } from './frames.ts';
import { orAbort, sharedOf, transportOf } from './http.ts';
import { getOrMake, remember } from './maps.ts';
import { SERVER_INFO } from './mcp.ts';
import {
  ask,
  badResponse,
  isRpc,
  type McpOptions,
  type Notice,
  ownMeta,
  type Peer,
  peerOf,
  tagOf,
} from './mcp-peer.ts';
import { LOG_LEVEL, REQUEST_ID } from './notices.ts';
import { compileForeignSchema, type Schema } from './schema.ts';
import type { Signer } from './signer.ts';
import { MISSING_CAPABILITY } from './toolcall.ts';
import { type ElicitResult, isBlock, type LogLevel, type Tool, type ToolResult } from './tools.ts';

/** Times that one call may be asked for input. */
const MAX_ROUNDS = 10;
/** Pages and characters of one list of tools; times that it is begun anew because it changed while it was read. */
const MAX_PAGES = 1024;
const MAX_LIST_CHARS = 1 << 22;
const MAX_RESTARTS = 2;
/** Lists that are kept. */
const MAX_LISTS = 32;
/** Longest time that a list is believed, ms. */
const MAX_TTL_MS = 86_400_000;
/** How often an idle mailbox hears from its caller, ms, and how soon again after a failure. */
const KEEPALIVE_MS = 72_000_000;
const KEEPALIVE_RETRY_MS = 3_600_000;

/** Which question of a tool is being answered. */
export interface InputContext {
  /** The tool's name for the question; the same each time it asks. */
  readonly key: string;
  /** Aborts with the call. */
  readonly signal: AbortSignal | undefined;
}

/** Answers one kind of question. */
export type Answerer<T> = (params: any, context: InputContext) => T | Promise<T>;

/** Answers to what a tool asks meanwhile. What there is a function for is declared to the server, and nothing else. */
export interface InputHandlers {
  /** A form for a person: `params.message`, `params.requestedSchema`. A stranger's text: never answer with secrets. */
  elicit?: Answerer<ElicitResult>;
  /** A page for a person to visit: `params.message`, `params.url`. */
  elicitUrl?: Answerer<ElicitResult>;
  /** A message from our model: `params.messages`, `params.maxTokens`. Returns role, content and model. */
  sample?: Answerer<object>;
  /** Our root folders. */
  roots?: Answerer<{ roots: { uri: string; name?: string }[] }>;
}

/** Options of {@link mcpListTools}. */
export interface McpListOptions extends McpOptions {
  /** Reads the list also when a kept one is still good. */
  refresh?: boolean;
}

/** Options of {@link mcpCallTool}. `timeoutMs` is for each round; progress extends it, up to ten times. */
export interface McpCallOptions extends McpOptions {
  onInput?: InputHandlers;
  /** Told of progress; `done` rises. */
  onProgress?: (done: number, total?: number, message?: string) => void;
  /** Told of log lines. The text is a stranger's. */
  onLog?: (level: LogLevel, data: Json, logger?: string) => void;
  /** The least level that `onLog` wants; default `info`. */
  logLevel?: LogLevel;
  /**
   * Whether the tool may run twice: then it is called again under a fresh id when messages were lost from the reply room.
   * Default: what the tool's annotations say, if its list was read before; else it may not.
   */
  idempotent?: boolean;
}

/** What a server says of itself. */
export interface DiscoverResult {
  supportedVersions: string[];
  capabilities: JsonObject;
  /** For a model, by a stranger. */
  instructions?: string;
  serverInfo?: { name: string; version: string; [member: string]: Json };
  ttlMs: number;
  cacheScope: 'public' | 'private';
  _meta?: JsonObject;
}

// --- discovery ---------------------------------------------------------------------------------------------------

const always = (): boolean => true;

/** How long a result may be kept, ms. */
function ttlOf({ ttlMs }: JsonObject): number {
  return typeof ttlMs === 'number' ? Math.min(Math.max(ttlMs, 0), MAX_TTL_MS) : 0;
}

function scopeOf({ cacheScope }: JsonObject): 'public' | 'private' {
  return cacheScope === 'public' ? 'public' : 'private';
}

/**
 * Asks a server what it is and can do. Never answered from memory.
 *
 * @throws as {@link call}, and TechnocoreError `bad_response`
 */
export async function mcpDiscover(to: string | Channel, signer: Signer, o: McpOptions = {}): Promise<DiscoverResult> {
  const peer = peerOf(to, signer, o);
  const { resultType: _, ...result } = await ask(peer, 'server/discover', { _meta: ownMeta(peer) }, always);
  const { supportedVersions, capabilities, instructions, _meta } = result;
  const named = Array.isArray(supportedVersions) && supportedVersions.every((version) => typeof version === 'string');
  if (!named || !isObject(capabilities) || (instructions !== undefined && typeof instructions !== 'string')) {
    throw badResponse('a description of itself that is none');
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
 * Keeps a pair of idle mailboxes alive, which the service forgets after seven days without a line (after one day, with
 * a single line), by asking `server/discover` now and then; its answer refreshes our own. Failures are events (`retry`),
 * and it goes on.
 *
 * @param o `everyMs`: how often, default 20 hours
 * @returns resolves after `o.signal` aborts
 */
export async function mcpKeepAlive(
  to: string | Channel,
  signer: Signer,
  o: McpOptions & { everyMs?: number } = {},
): Promise<void> {
  const { everyMs = KEEPALIVE_MS, id: _, ...options } = checkObject(o);
  const { clock, onEvent } = transportOf(o);
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

/** A list as it was read. */
interface Listed {
  readonly to: string;
  readonly tools: Tool[];
  readonly read: number;
  readonly until: number;
  /** Checks of structured results, made when first needed; undefined for a schema that cannot be used. */
  readonly checks: Map<string, Schema | undefined>;
}

/** The lists that are kept for one transport or channel. */
class Lists {
  /** Lists that were dropped so far: one that is being read meanwhile may be old already. */
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

  /** Drops what is known of a server, whoever asked it. */
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

/** @internal What a list is dropped by. */
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
 * The tools of a server, from all pages of its list. A list is kept as long as the server allows (for other keys of ours
 * too only where it is public), a day at most, and dropped when {@link mcpListen} to the same `to` hears of a change. What
 * is no tool is left out, and an event. Names, descriptions and hints are a stranger's text.
 *
 * @throws as {@link call}, and TechnocoreError `bad_response`: no list, or one without end
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
        if (!Array.isArray(listed) || !optional(nextCursor, isText)) throw badResponse('a list of tools that is none');
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
      // A place in the list that is lost: it changed while it was read.
      if (cursor === undefined || restarts >= MAX_RESTARTS || !isRpc(cause, INVALID_PARAMS)) throw cause;
      peer.t.onEvent({ kind: 'retry', method: 'tools/list', cause, afterMs: 0 });
    }
  }
}

// --- calls -------------------------------------------------------------------------------------------------------

/**
 * Calls a tool. What fails inside the tool is a result with `isError`; what keeps the call from happening is thrown.
 *
 * Questions that the tool asks meanwhile go to `o.onInput`, one after the other, and the call goes on with the answers,
 * at most ten times. When it is aborted or times out, the server is told to stop.
 *
 * Arguments that fit no message, up to some 95 kB, go into notes once the server has said, to {@link mcpDiscover}, that it
 * reads such requests: one of ours does where `allow` says who may call, or with `spill`.
 *
 * @param name as the server lists it
 * @param args the arguments, an object; undefined for none
 * @returns the result; structured content satisfies the tool's output schema, if a list that is still good has one
 * @throws as {@link call}
 * @throws RpcError also -32602 no such tool, -32021 the tool needs something that `o.onInput` lacks, -32022 another version
 * @throws RingGap the answer may be lost, and the tool may not run twice
 * @throws TechnocoreError `bad_response`: no result of a tool, a type of result that is not known, or structured content
 *   that breaks the tool's own schema; `too_many_rounds`
 * @throws what `o.onInput`, `o.onProgress` and `o.onLog` throw
 */
export async function mcpCallTool(
  to: string | Channel,
  name: string,
  args: object | undefined,
  signer: Signer,
  o: McpCallOptions = {},
): Promise<ToolResult> {
  const { onInput = {}, capabilities } = checkObject(o);
  const peer = peerOf(to, signer, { ...o, capabilities: { ...capabilitiesOf(onInput), ...capabilities } });
  const given = args === undefined ? {} : toJson(args);
  if (!isObject(given)) throw new TechnocoreError('bad_params', 'the arguments of a tool are an object');
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
  // `{}` means forms, also to those who know no other kind.
  const elicitation: JsonObject = elicitUrl === undefined ? {} : { ...(elicit && { form: {} }), url: {} };
  return {
    ...((elicit ?? elicitUrl) && { elicitation }),
    ...(sample && { sampling: {} }),
    ...(roots && { roots: {} }),
  };
}

/** The error by which a server refuses a call that cannot be asked back, with what would answer. */
function withHint({ rpc: { code, message, data } }: RpcError): RpcError {
  const { requiredCapabilities: required } = isObject(data) ? data : {};
  const { elicitation, sampling, roots } = isObject(required) ? required : {};
  const elicit = isObject(elicitation) && 'url' in elicitation ? 'elicitUrl' : 'elicit';
  const names = [elicitation && elicit, sampling && 'sample', roots && 'roots'].filter(Boolean);
  const needed = names.length > 0 ? `option onInput, with ${names.join(', ')}` : 'option onInput or capabilities';
  return new RpcError(code, message, data, `the tool asks its caller, which takes the ${needed}`);
}

/** What a call asks to be told. */
function wanted({ onProgress, onLog, logLevel }: McpCallOptions, token: string): JsonObject {
  return {
    ...(onProgress && { progressToken: token }),
    ...(onLog && { [LOG_LEVEL]: logLevel ?? 'info' }),
  };
}

/** Hands on progress and log lines of one call. */
function noticesOf({ onProgress, onLog }: McpCallOptions, token: string): Notice {
  let reported = Number.NEGATIVE_INFINITY;
  return (frame, id) => {
    const { method, params } = frame;
    if (!isObject(params)) return undefined;
    const of = tagOf(frame, REQUEST_ID);
    // The token stands in our request for others to copy; whose request it is for, the server says.
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
    // A server that does not know our tag cannot say which request a line belongs to.
    if (onLog && method === 'notifications/message' && (of === undefined || of === id)) {
      const { level, data = null, logger } = params;
      if (typeof level !== 'string') return undefined;
      onLog(level as LogLevel, data as Json, typeof logger === 'string' ? logger : undefined);
      return of === id ? 'alive' : undefined;
    }
    return undefined;
  };
}

/** The parameters by which a call goes on after it was asked for input. */
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
    throw badResponse('a request for input that is none');
  }
  const answers: [string, Json][] = [];
  for (const [key, question] of Object.entries((inputRequests ?? {}) as { [key: string]: JsonObject })) {
    const { method, params = {} } = question;
    const answer = answererOf(onInput, method, params);
    if (!answer) throw badResponse(`a request for ${encodeLong(method ?? null).slice(0, 80)}, which was not offered`);
    answers.push([key, toJson(await orAbort(Promise.resolve(answer(params, { key, signal })), signal))]);
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
    throw badResponse('a result that is none of a tool');
  }
  const problem = isError === true ? undefined : await outputProblem(peer, name, structuredContent);
  if (problem !== undefined) throw badResponse(`a result that breaks the output schema of ${name}: ${problem}`);
  return rest as unknown as ToolResult;
}

/** How a structured result breaks the tool's schema, as far as that is known. */
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
