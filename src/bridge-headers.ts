/**
 * The headers that the HTTP binding of MCP 2026-07-28 requires, for intermediaries that do not read the body. They
 * repeat parts of the message, and a request is refused if they differ from it.
 *
 * @module
 */
import { objectIn } from './bridge-handshake.ts';
import { fromUtf8 } from './bytes.ts';
import type { JsonObject } from './dispatch.ts';
import { RpcError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { remember } from './maps.ts';
import { PROTOCOL_VERSION } from './mcp.ts';

const HEADER_MISMATCH = -32020;
/** For how many tools the parameters that have headers are remembered. */
const MAX_TOOLS = 4096;

/** The parameter of each method that is also in `Mcp-Name`. */
const NAMED: { readonly [method: string]: string } = {
  'tools/call': 'name',
  'prompts/get': 'name',
  'resources/read': 'uri',
};

type Header = (name: string) => string | undefined;

const mismatch = (what: string): RpcError => new RpcError(HEADER_MISMATCH, `Header mismatch: ${what}`);

/** The value in a header, which may be base64; undefined if it is malformed. */
function decoded(value: string): string | undefined {
  const [, base64] = /^=\?base64\?(.*)\?=$/.exec(value) ?? [];
  if (base64 === undefined) return /^[\t\x20-\x7e]*$/.test(value) ? value : undefined;
  if (!/^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/.test(base64)) return undefined;
  return fromUtf8(Uint8Array.from(atob(base64), (char) => char.charCodeAt(0)));
}

/**
 * Compares the standard headers of a request with the message.
 *
 * @throws an {@link RpcError} -32020 if one is missing, malformed, or says something else
 */
export function checkHeaders(header: Header, message: JsonObject): void {
  const { method } = message as { method: string };
  const params = objectIn(message, 'params');
  const version = header('mcp-protocol-version');
  if (version === undefined) throw mismatch('MCP-Protocol-Version is missing');
  if (version !== objectIn(params, '_meta')[PROTOCOL_VERSION])
    throw mismatch('MCP-Protocol-Version is not the one in _meta');
  if (header('mcp-method') === undefined) throw mismatch('Mcp-Method is missing');
  if (header('mcp-method') !== method) throw mismatch('Mcp-Method is not the method');
  const named = Object.hasOwn(NAMED, method) ? NAMED[method]! : undefined;
  if (named === undefined) return;
  const name = header('mcp-name');
  if (name === undefined) throw mismatch('Mcp-Name is missing');
  if (decoded(name) !== params[named]) throw mismatch(`Mcp-Name is not the ${named}`);
}

/** The paths of the parameters that have a header of their own, by its name. */
type Mirrored = Map<string, string[]>;

/** The parameters that tools require in headers, learned from the lists of tools that pass through. */
export class ParamHeaders {
  readonly #tools = new Map<string, Mirrored>();

  /** Remembers a list of tools. */
  learn(result: JsonObject): void {
    if (!Array.isArray(result['tools'])) return;
    for (const tool of result['tools']) {
      const name = isObject(tool) ? tool['name'] : undefined;
      if (typeof name !== 'string') continue;
      const mirrored: Mirrored = new Map();
      collect(objectIn(tool, 'inputSchema'), [], mirrored);
      if (mirrored.size === 0) this.#tools.delete(name);
      else remember(this.#tools, name, mirrored, MAX_TOOLS);
    }
  }

  /** @throws an {@link RpcError} -32020 if a header is missing, malformed, or differs from the arguments */
  check(header: Header, message: JsonObject): void {
    const params = objectIn(message, 'params');
    const mirrored = message['method'] === 'tools/call' ? this.#tools.get(params['name'] as string) : undefined;
    for (const [name, path] of mirrored ?? []) {
      let value: Json | undefined = params['arguments'];
      for (const step of path)
        value = isObject(value) && Object.hasOwn(value, step) ? (value as JsonObject)[step] : undefined;
      const given = header(`mcp-param-${name}`);
      const isThere = value !== undefined && value !== null;
      if (!isThere && given === undefined) continue;
      if (!isThere) throw mismatch(`Mcp-Param-${name} has no argument`);
      if (given === undefined) throw mismatch(`Mcp-Param-${name} is missing`);
      const text = decoded(given);
      const isSame = typeof value === 'number' ? text?.trim() !== '' && Number(text) === value : text === textOf(value);
      if (text === undefined || !isSame) throw mismatch(`Mcp-Param-${name} is not the argument`);
    }
  }
}

/** A value as it is in a header; undefined unless it is a string, number or boolean. */
const textOf = (value: Json | undefined): string | undefined => (typeof value === 'object' ? undefined : String(value));

/** Collects the annotated properties that can be reached through nothing but `properties`. */
function collect(schema: JsonObject, path: string[], into: Mirrored): void {
  if (path.length > 16) return;
  for (const [name, property] of Object.entries(objectIn(schema, 'properties'))) {
    if (!isObject(property)) continue;
    const header = property['x-mcp-header'];
    if (typeof header === 'string' && /^[\w!#$%&'*+.^`|~-]+$/.test(header))
      into.set(header.toLowerCase(), [...path, name]);
    collect(property as JsonObject, [...path, name], into);
  }
}
