/**
 * What both translations between the revisions of MCP that begin with a handshake and the one that has none share: the
 * revisions, the shape of what carries messages, and what a message says of itself.
 *
 * @module
 */
import { INTERNAL_ERROR, type JsonObject } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import { PROTOCOL_VERSION } from './mcp.ts';

/** The revisions with a handshake, newest first. */
export const HANDSHAKES: readonly string[] = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'];

/** Names of messages that are minted here begin so. */
export const OURS = 'technocore-rpc:';

/** What carries messages of MCP both ways: the shape that the official SDK calls a transport. */
export interface Wire {
  start(): Promise<void>;
  send(message: any, options?: any): Promise<void>;
  close(): Promise<void>;
  onmessage?: ((message: any, extra?: any) => void) | undefined;
  onclose?: (() => void) | undefined;
  onerror?: ((error: Error) => void) | undefined;
}

/** Requests of either era that a server answers, and that the other era has under the same name. */
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

/** Requests that may be answered with a question. */
export const ASKING_METHODS: ReadonlySet<string> = new Set(['tools/call', 'prompts/get', 'resources/read']);

/** The capability that a question takes. */
export const QUESTIONS: { readonly [method: string]: string } = {
  'elicitation/create': 'elicitation',
  'sampling/createMessage': 'sampling',
  'roots/list': 'roots',
};

/** Times that one request may be answered with questions. */
export const MAX_ROUNDS = 10;

/** A member that is an object, else an empty one. */
export function objectIn(parent: unknown, name: string): JsonObject {
  const value = isObject(parent) ? parent[name] : undefined;
  return isObject(value) ? (value as JsonObject) : {};
}

/** `params._meta` of a message. */
export const metaIn = (message: JsonObject): JsonObject => objectIn(message['params'], '_meta');

/** Whether a message says by itself which revision it is of. */
export const isSelfContained = (message: JsonObject): boolean => typeof metaIn(message)[PROTOCOL_VERSION] === 'string';

/** An object without some of its members. */
export function without(object: JsonObject, leftOut: (name: string) => boolean): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !leftOut(name)));
}

/** Members of `_meta` that are the protocol's own and mean nothing in another revision. */
export const isProtocolMeta = (name: string): boolean => /^(io\.modelcontextprotocol|chat\.technocore)\//.test(name);

/** Capabilities of a server that both eras have. What else it has stays unsaid, so that nobody asks for it. */
export function sharedCapabilities(capabilities: unknown): JsonObject {
  const shared = ['tools', 'prompts', 'resources', 'completions', 'logging', 'experimental'];
  return isObject(capabilities) ? without(capabilities as JsonObject, (name) => !shared.includes(name)) : {};
}

/** An error of a response, made fit to be sent on: what it says, and no code that would be taken for another one. */
export function carriedError(error: unknown): { code: number; message: string; data?: Json } {
  const { code, message, data } = isObject(error) ? error : {};
  // Codes without a meaning of their own, and those of one era that the other one forbids.
  const isFree = Number.isSafeInteger(code) && !((code as number) <= -32000 && (code as number) >= -32099);
  const isKnown = code === -32020 || code === -32021 || code === -32022;
  const kept = code === -32002 ? -32602 : isFree || isKnown ? (code as number) : INTERNAL_ERROR;
  return {
    code: kept,
    message: typeof message === 'string' ? message : 'The server failed',
    ...(data !== undefined && { data: data as Json }),
  };
}
