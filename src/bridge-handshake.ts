/**
 * What the translations between the revisions of MCP with a handshake and the one without share, in both directions:
 * the revisions, the shape of a transport, and the metadata of messages. Rules: MCP 2024-11-05 to 2026-07-28.
 *
 * @module
 */
import { INTERNAL_ERROR, type JsonObject } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import { PROTOCOL_VERSION } from './mcp.ts';

/** The revisions with a handshake, newest first. */
export const HANDSHAKES: readonly string[] = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];

/** The prefix of ids that the bridge makes. */
export const OURS = 'technocore-rpc:';

/** What carries MCP messages in both directions: the shape of a transport of the official SDK. */
export interface Wire {
  start(): Promise<void>;
  send(message: any, options?: any): Promise<void>;
  close(): Promise<void>;
  onmessage?: ((message: any, extra?: any) => void) | undefined;
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
}

/** The requests to servers that have the same name with and without a handshake. */
export const SHARED_METHODS: ReadonlySet<string> = new Set([
  'tools/list',
  'tools/call',
  'prompts/list',
  'prompts/get',
  'resources/list',
  'resources/templates/list',
  'resources/read',
  'completion/complete',
]);

/** The requests that a server may answer with a question. */
export const ASKING_METHODS: ReadonlySet<string> = new Set(['tools/call', 'prompts/get', 'resources/read']);

/** The capability that each question requires. */
export const QUESTIONS: { readonly [method: string]: string } = {
  'elicitation/create': 'elicitation',
  'sampling/createMessage': 'sampling',
  'roots/list': 'roots',
};

/** How often one request may be answered with questions. */
export const MAX_ROUNDS = 10;

/** A member of an object, if it is an object itself; else an empty object. */
export function objectIn(parent: unknown, name: string): JsonObject {
  const value = isObject(parent) ? parent[name] : undefined;
  return isObject(value) ? (value as JsonObject) : {};
}

/** `params._meta` of a message. */
export const metaIn = (message: JsonObject): JsonObject => objectIn(message['params'], '_meta');

/** Whether a message names its own revision. */
export const isSelfContained = (message: JsonObject): boolean => typeof metaIn(message)[PROTOCOL_VERSION] === 'string';

/** A copy of an object without some of its members. */
export function without(object: JsonObject, leftOut: (name: string) => boolean): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !leftOut(name)));
}

/** True for members of `_meta` that belong to the protocol and mean nothing in another revision. */
export const isProtocolMeta = (name: string): boolean => /^(io\.modelcontextprotocol|chat\.technocore)\//.test(name);

/**
 * The capabilities of a server that exist with and without a handshake. The rest are left out, so that nobody uses
 * them.
 */
export function sharedCapabilities(capabilities: unknown): JsonObject {
  const shared = ['tools', 'prompts', 'resources', 'completions', 'logging', 'experimental'];
  return isObject(capabilities) ? without(capabilities as JsonObject, (name) => !shared.includes(name)) : {};
}

/** The error of a response as it can be passed on: with its message, but no code that means something else there. */
export function carriedError(error: unknown): { code: number; message: string; data?: Json } {
  const { code, message, data } = isObject(error) ? error : {};
  // Codes from -32099 to -32000 mean something else in the other revision, or nothing, except for these three.
  const isFree = Number.isSafeInteger(code) && !((code as number) <= -32000 && (code as number) >= -32099);
  const isKnown = code === -32020 || code === -32021 || code === -32022;
  const kept = code === -32002 ? -32602 : isFree || isKnown ? (code as number) : INTERNAL_ERROR;
  return {
    code: kept,
    message: typeof message === 'string' ? message : 'The server failed',
    ...(data !== undefined && { data: data as Json }),
  };
}

/**
 * A result as the revisions with a handshake define it: structured content is an object, and so are the root of its
 * schema and the properties there. Hosts that check this refuse the whole list because of one tool.
 */
export function olderResult(method: string, result: JsonObject): JsonObject {
  const { tools, structuredContent: content } = result;
  if (method === 'tools/list' && Array.isArray(tools)) {
    return { ...result, tools: tools.map((tool) => (isObject(tool) ? olderTool(tool as JsonObject) : tool)) };
  }
  // The official SDK wraps such values the same way.
  return method === 'tools/call' && content !== undefined && !isObject(content)
    ? { ...result, structuredContent: { result: content } }
    : result;
}

function olderTool({ inputSchema, outputSchema, ...tool }: JsonObject): JsonObject {
  const isOfObject = isObject(outputSchema) && outputSchema['type'] === 'object';
  return {
    ...tool,
    ...(inputSchema !== undefined && { inputSchema: olderSchema(inputSchema) }),
    ...(isOfObject && { outputSchema: olderSchema(outputSchema as Json) }),
  };
}

function olderSchema(schema: Json): Json {
  const properties = isObject(schema) ? schema['properties'] : undefined;
  if (!isObject(properties)) return schema;
  const older = Object.entries(properties).map(([name, of]) => [
    name,
    of === true ? {} : of === false ? { not: {} } : of,
  ]);
  return { ...(schema as JsonObject), properties: Object.fromEntries(older) };
}
