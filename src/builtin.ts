/**
 * The defaults, and what is bound to them: the composition root.
 *
 * @module
 */

import { a2aHelpers } from './a2a-notes.ts';
import type { Channel } from './channel.ts';
import { nextTurn } from './clock.ts';
import {
  badParams,
  type CallContext,
  createDispatcher as createBareDispatcher,
  type DispatchContext,
  type Dispatcher,
  type DispatcherOptions,
  dispatch as dispatchBare,
  type Handler,
} from './dispatch.ts';
import { checkObject } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { Joint, Lanes, sharedOf, type Transport, transportOf } from './http.ts';
import { defineTool, mcpLayer, toolsChanged } from './mcp.ts';
import { explain, type Message } from './messages.ts';
import { verify } from './names.ts';
import { type ServeOptions, serve as serveBare } from './serve.ts';
import { ask } from './service.ts';
import type { Signer } from './signer.ts';
import type { Tool, ToolHandler, ToolOptions } from './tools.ts';

// --- methods that every server has ------------------------------------------------------------------------------

/** What the method `census/latest` tells. */
export interface Census {
  /** When, ISO 8601. */
  at: string;
  rooms: { total: number; capacity: number };
  notes: { total: number; capacity: number };
  bytes: { used: number; capacity: number };
  /** The rooms written last, as asked for: names and topics are strangers' text. */
  listed?: { room: string; topic: string | null }[];
}

/**
 * `census/latest`: how full the service is.
 *
 * @param params `list`: how many of the listed rooms to name, 1 to 50; default none
 */
async function census(params: unknown, context?: CallContext): Promise<Census> {
  const list = isObject(params) ? params['list'] : undefined;
  if (list !== undefined && !(Number.isInteger(list) && (list as number) >= 1 && (list as number) <= MAX_LISTED)) {
    throw badParams('list is a number from 1 to 50');
  }
  const seen = await listing(transportOf(context?.service), list === undefined ? 1 : MAX_LISTED, context?.signal);
  const { listed, ...counts } = seen;
  return list === undefined ? counts : { ...counts, listed: listed!.slice(0, list as number) };
}

const LISTINGS = {};
/** Most rooms that are named. */
const MAX_LISTED = 50;
/** How long what was read is good for other callers, ms: the service itself may show what it counted three seconds ago. */
const LISTING_MS = 3000;

interface Listing {
  readonly at: number;
  readonly reading: Joint<Census>;
  census?: Census;
}

/** How full the service is, with some of its rooms: however many ask, it is read once in a while. */
async function listing(t: Transport, limit: number, signal: AbortSignal | undefined): Promise<Census> {
  const known = sharedOf(t, LISTINGS, () => new Map<number, Listing>());
  const now = t.clock.now();
  let entry = known.get(limit);
  if (!entry || Math.abs(now - entry.at) >= LISTING_MS || (!entry.census && entry.reading.isOff)) {
    const reading = new Joint(async (off) => {
      const census = await readListing(t, limit, off);
      made.census = census;
      return census;
    });
    const made: Listing = { at: now, reading };
    known.set(limit, (entry = made));
  }
  return entry.census ?? entry.reading.join(signal);
}

async function readListing(t: Transport, limit: number, signal: AbortSignal): Promise<Census> {
  const { text } = await ask(t, { path: `/rooms?format=json&limit=${limit}`, bucket: 'read', signal });
  const seen = JSON.parse(text);
  return {
    at: new Date(t.clock.now()).toISOString(),
    rooms: { total: Number(seen.total), capacity: Number(seen.capacity) },
    notes: { total: Number(seen.notes.total), capacity: Number(seen.notes.capacity) },
    bytes: { used: Number(seen.bytes), capacity: Number(seen.bytes_capacity) },
    listed: seen.rooms.map(({ room, topic }: { room: string; topic: string | null }) => ({ room, topic })),
  };
}

/**
 * `technocore/verify`: whether a signature is good, checked offline, and if not, why.
 *
 * @param params `{ did, sig, canonical }`, or `{ room, message }` with a message as a room shows it
 */
function verified(params: unknown): { valid: boolean; reason?: string } {
  if (!isObject(params)) throw badParams('params are { did, sig, canonical } or { room, message }');
  const { room, message, did, sig, canonical } = params;
  let reason: string | undefined;
  if (typeof room === 'string' && isObject(message)) {
    const { nonce } = message;
    reason = explain(room, {
      ...message,
      ...(typeof nonce === 'number' && { nonce: String(nonce) }),
    } as unknown as Message);
  } else if (typeof did === 'string' && typeof sig === 'string' && typeof canonical === 'string') {
    if (verify(did, sig, canonical)) return { valid: true };
    const [, of, nonce, text] = /^([^|]*)\|(\d{1,19})\|([\s\S]*)$/.exec(canonical) ?? [];
    reason =
      (of !== undefined && explain(of, { seq: 0, ts: '', from: did, sig, nonce: nonce!, text: text! })) ||
      'the signature does not fit this key and text';
  } else {
    throw badParams('params are { did, sig, canonical } or { room, message }');
  }
  return reason === undefined ? { valid: true } : { valid: false, reason };
}

const VERIFYING = {};

/** One after the other, and whatever else waits goes first: a batch of these would hold a whole server for seconds. */
async function verifySignature(params: unknown, context?: CallContext): Promise<{ valid: boolean; reason?: string }> {
  if (!context?.service) return verified(params);
  const t = transportOf(context.service);
  return sharedOf(t, VERIFYING, () => new Lanes()).run('', async () => {
    await new Promise<void>(nextTurn);
    return verified(params);
  });
}

/** The methods that are served when none are named. */
export const methods: Map<string, Handler> = new Map<string, Handler>([
  ['census/latest', census],
  ['technocore/verify', verifySignature],
  ...a2aHelpers,
]);

const counts = (...names: string[]): object => ({
  type: 'object',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'number' }])),
  required: names,
});

/** The methods above, as tools. Their names are older than the advice on names of tools, which is no news here. */
function builtinTools(): Map<string, Tool> {
  const text = { type: 'string' };
  const o = { annotations: { readOnlyHint: true }, onEvent: () => {} };
  return new Map(
    [
      defineTool(
        'census/latest',
        'How full the service is: rooms, notes and bytes; with `list`, the rooms written last.',
        {
          type: 'object',
          properties: {
            list: { type: 'integer', minimum: 1, maximum: MAX_LISTED, description: 'How many rooms to name' },
          },
          additionalProperties: false,
        },
        census,
        {
          ...o,
          outputSchema: {
            type: 'object',
            properties: {
              at: text,
              rooms: counts('total', 'capacity'),
              notes: counts('total', 'capacity'),
              bytes: counts('used', 'capacity'),
              listed: { type: 'array' },
            },
            required: ['at', 'rooms', 'notes', 'bytes'],
          },
        },
      ),
      defineTool(
        'technocore/verify',
        'Whether a signature is good, and if not, why: of a canonical text, or of a message as a room shows it.',
        {
          type: 'object',
          properties: { did: text, sig: text, canonical: text, room: text, message: { type: 'object' } },
          anyOf: [{ required: ['did', 'sig', 'canonical'] }, { required: ['room', 'message'] }],
        },
        verifySignature,
        {
          ...o,
          outputSchema: {
            type: 'object',
            properties: { valid: { type: 'boolean' }, reason: text },
            required: ['valid'],
          },
        },
      ),
    ].map((tool) => [tool.name, tool]),
  );
}

/** The tools that are served when none are named. */
export const tools: Map<string, Tool> = /* @__PURE__ */ builtinTools();

const DEFAULTS: DispatcherOptions = { methods, tools, layer: mcpLayer, nullId: true };

/**
 * Registers a tool, or replaces the one of that name, and tells whoever listens to the list.
 *
 * @param o `tools`: the map to register in, instead of the default one
 * @throws BadName an empty name, or one over 128 characters
 * @throws TechnocoreError `bad_schema`: a schema that cannot be used
 * @example
 * ```ts
 * tool('add', 'Adds two numbers.', { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } },
 *   required: ['a', 'b'] }, ({ a, b }) => ({ sum: a + b }));
 * ```
 */
export function tool(
  name: string,
  description: string,
  inputSchema: object,
  run: ToolHandler,
  o: ToolOptions & { tools?: Map<string, Tool> } = {},
): void {
  const { tools: registry = tools, ...options } = checkObject(o);
  registry.set(name, defineTool(name, description, inputSchema, run, options));
  toolsChanged(registry);
}

/**
 * A dispatcher over the methods and tools given and nothing else; without options, over the default ones. A tools map
 * makes it an MCP server, an empty one too; then an error whose request has no readable id has no id either. Only the
 * default one, which answers plain JSON-RPC as well, says null there.
 */
export function createDispatcher(o?: DispatcherOptions): Dispatcher {
  return createBareDispatcher(o === undefined ? DEFAULTS : { layer: mcpLayer, ...checkObject(o) });
}

/**
 * Answers a frame, a batch or the text of one through one dispatcher per pair of methods and tools: the default ones
 * without options, else those given. Never rejects.
 *
 * @returns the answer; undefined when nothing goes back
 */
export function dispatch(frame: unknown, context?: DispatchContext, o?: DispatcherOptions): Promise<Json | undefined> {
  return dispatchBare(frame, context, o === undefined ? DEFAULTS : { layer: mcpLayer, ...checkObject(o) });
}

/**
 * Serves methods and tools to whoever writes requests into a mailbox or over a channel; without `methods` and `tools` in
 * the options, the default ones.
 *
 * @param o what may call, how much at a time, where answers may go and what outlives a restart: {@link ServeOptions}
 * @returns resolves after `o.signal` aborts and what was begun is answered
 * @throws BadName the room is no mailbox
 * @throws what opening and reading the mailbox throws, where it cannot be waited out
 */
export async function serve(mailbox: string | Channel, signer: Signer, o: ServeOptions = {}): Promise<void> {
  checkObject(o);
  return serveBare(mailbox, signer, { layer: mcpLayer, ...(o.methods || o.tools ? {} : { methods, tools }), ...o });
}
