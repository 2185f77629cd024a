/**
 * The default methods and tools, and the functions that are bound to them: the composition root.
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
  type JsonObject,
  type MakeLayer,
} from './dispatch.ts';
import { checkObject } from './errors.ts';
import { isObject, type Json, parseJson } from './frames.ts';
import { Joint, Lanes, sharedOf, type Transport, transportOf } from './http.ts';
import { defineTool, mcpLayer, toolsChanged } from './mcp.ts';
import { explain, type Message } from './messages.ts';
import { verify } from './names.ts';
import { OwnSchema } from './schema.ts';
import { type ServeOptions, serve as serveBare } from './serve.ts';
import { ask } from './service.ts';
import type { Signer } from './signer.ts';
import type { Tool, ToolHandler, ToolOptions } from './tools.ts';

// --- methods that every server has ------------------------------------------------------------------------------

/** The result of the built-in method `census/latest`: how full the service is. */
export interface Census {
  /** When it was counted: ISO 8601, by the server's clock. */
  at: string;
  /** The number of rooms, and its maximum. */
  rooms: { total: number; capacity: number };
  /** The number of notes, and its maximum. */
  notes: { total: number; capacity: number };
  /** The bytes that rooms use, and the maximum. */
  bytes: { used: number; capacity: number };
  /** The most recently written listed rooms, as many as requested. Names and topics are untrusted text. */
  listed?: { room: string; topic: string | null }[];
}

/**
 * `census/latest`: how full the service is.
 *
 * @param params `list`: how many listed rooms to name, 1 to 50; default: none
 */
async function census(params: unknown, context?: CallContext): Promise<Census> {
  const list = isObject(params) ? params['list'] : undefined;
  if (list !== undefined && !(Number.isInteger(list) && (list as number) >= 1 && (list as number) <= MAX_LISTED)) {
    throw badParams('list must be an integer from 1 to 50');
  }
  const seen = await listing(transportOf(context?.service), list === undefined ? 1 : MAX_LISTED, context?.signal);
  const { listed, ...counts } = seen;
  return list === undefined ? counts : { ...counts, listed: listed!.slice(0, list as number) };
}

const LISTINGS = {};
/** The maximum number of rooms to name. */
const MAX_LISTED = 50;
/** How long other callers get the same result, ms. The service itself caches it for three seconds. */
const LISTING_MS = 3000;

interface Listing {
  readonly at: number;
  readonly reading: Joint<Census>;
  census?: Census;
}

/** How full the service is, with some of its rooms. Concurrent callers share one read. */
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
  const seen: any = parseJson(text);
  return {
    at: new Date(t.clock.now()).toISOString(),
    rooms: { total: Number(seen.total), capacity: Number(seen.capacity) },
    notes: { total: Number(seen.notes.total), capacity: Number(seen.notes.capacity) },
    bytes: { used: Number(seen.bytes), capacity: Number(seen.bytes_capacity) },
    listed: seen.rooms.map(({ room, topic }: { room: string; topic: string | null }) => ({ room, topic })),
  };
}

/**
 * `technocore/verify`: whether a signature is valid, checked offline, and why if it is not.
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

/** Verifies one signature at a time, after everything else that is due: a batch could block a server for seconds. */
async function verifySignature(params: unknown, context?: CallContext): Promise<{ valid: boolean; reason?: string }> {
  if (!context?.service) return verified(params);
  const t = transportOf(context.service);
  return sharedOf(t, VERIFYING, () => new Lanes()).run('', async () => {
    await new Promise<void>(nextTurn);
    return verified(params);
  });
}

/**
 * The default methods: {@link serve}, {@link dispatch} and {@link createDispatcher} use these unless their options name
 * others. Register yours here, by name.
 *
 * Initially it holds `census/latest`, with the params `{ list? }` (1 to 50) and a {@link Census} as result;
 * `technocore/verify`, with the params `{ did, sig, canonical }` or `{ room, message }` and the result
 * `{ valid, reason? }`; and, only for callers inside this process, `message/send`, `tasks/get`, `tasks/advance` and
 * `tasks/list`.
 */
export const methods: Map<string, Handler> = new Map<string, Handler>([
  ['census/latest', census],
  ['technocore/verify', verifySignature],
  ...a2aHelpers,
]);

const counts = (...names: string[]): JsonObject => ({
  type: 'object',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'number' }])),
  required: names,
});

/** Two of the default methods, as tools. `onEvent` silences the warning about their names, which MCP advises against. */
function builtinTools(): Map<string, Tool> {
  const text = { type: 'string' };
  const o = { annotations: { readOnlyHint: true }, onEvent: () => {} };
  return new Map(
    [
      defineTool(
        'census/latest',
        'How full the service is: rooms, notes and bytes; with `list`, also the most recently written rooms.',
        new OwnSchema({
          type: 'object',
          properties: {
            list: { type: 'integer', minimum: 1, maximum: MAX_LISTED, description: 'How many rooms to name' },
          },
          additionalProperties: false,
        }),
        census,
        {
          ...o,
          outputSchema: new OwnSchema({
            type: 'object',
            properties: {
              at: text,
              rooms: counts('total', 'capacity'),
              notes: counts('total', 'capacity'),
              bytes: counts('used', 'capacity'),
              listed: { type: 'array' },
            },
            required: ['at', 'rooms', 'notes', 'bytes'],
          }),
        },
      ),
      defineTool(
        'technocore/verify',
        'Whether the signature of a text, or of a message as a room shows it, is valid, and why if it is not.',
        new OwnSchema({
          type: 'object',
          properties: { did: text, sig: text, canonical: text, room: text, message: { type: 'object' } },
          anyOf: [{ required: ['did', 'sig', 'canonical'] }, { required: ['room', 'message'] }],
        }),
        verifySignature,
        {
          ...o,
          outputSchema: new OwnSchema({
            type: 'object',
            properties: { valid: { type: 'boolean' }, reason: text },
            required: ['valid'],
          }),
        },
      ),
    ].map((tool) => [tool.name, tool]),
  );
}

/**
 * The default MCP tools, by name; {@link tool} registers more here. Initially it holds `census/latest` and
 * `technocore/verify`: see {@link methods}.
 */
export const tools: Map<string, Tool> = /* @__PURE__ */ builtinTools();

/** Options with MCP as the layer, unless they name another. */
const withMcp = <T extends { layer?: MakeLayer | undefined }>(o: T): T => ({ ...o, layer: o.layer ?? mcpLayer });
const DEFAULTS: DispatcherOptions = { methods, tools, layer: mcpLayer, nullId: true };

/**
 * Registers an MCP tool (revision 2026-07-28), or replaces the one with that name. Clients subscribed to the list of
 * tools are notified. Keep the whole definition below about 3,700 characters: a longer one does not fit into a message,
 * and only callers that read answers from notes see it in the list.
 *
 * @param name 1 to 128 characters, case-sensitive; characters other than `A-Z a-z 0-9 _ - .` or more than 64 of them
 * cause a warning, as other implementations may refuse them
 * @param description for the model that chooses among tools
 * @param inputSchema JSON Schema 2020-12 of the arguments, `type: 'object'` at its root. Arguments that do not satisfy
 * it never reach `run`: the caller gets a result with `isError`. A `pattern` in it runs on untrusted text: one that
 * takes exponential time, such as `^(a+)+$`, would let callers block the program
 * @param run does the work: see {@link ToolHandler}
 * @param o `tools`: the map to register it in, instead of the default {@link tools}
 * @throws a {@link BadName} if the name is empty or longer than 128 characters
 * @throws a {@link TechnocoreError} `bad_schema` if a schema cannot be used; `bad_option` if `o` is not an object
 * @example
 * ```ts
 * import { serve, Signer, tool } from 'technocore-rpc';
 *
 * const number = { type: 'number' };
 * const schema = { type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] };
 * tool('add', 'Adds two numbers.', schema, ({ a, b }) => ({ sum: a + b }));
 *
 * await serve('mb-p-adds-90c2', await Signer.fromDir());
 * ```
 */
export function tool(
  name: string,
  description: string,
  inputSchema: object,
  run: ToolHandler,
  o: ToolOptions & { tools?: Map<string, Tool> | undefined } = {},
): void {
  const { tools: registry = tools, ...options } = checkObject(o);
  registry.set(name, defineTool(name, description, inputSchema, run, options));
  toolsChanged(registry);
}

/**
 * Makes a dispatcher: JSON-RPC 2.0 and MCP without a transport. It answers with the given methods and tools and no
 * others; without options, with the default {@link methods} and {@link tools}.
 *
 * With a `tools` map, even an empty one, it is an MCP server: an error whose request has no readable id then has no `id`
 * member. Without tools, and in the default dispatcher, that `id` is null, as JSON-RPC 2.0 requires.
 *
 * @throws a {@link TechnocoreError} `bad_option` if `methods` or `tools` is not a Map, or another option not of its type
 * @example
 * ```ts
 * import { createDispatcher, type Handler } from 'technocore-rpc';
 *
 * const double: Handler = ([n]) => 2 * n;
 * const dispatcher = createDispatcher({ methods: new Map([['double', double]]) });
 * const answer = await dispatcher.dispatch('{"jsonrpc":"2.0","id":1,"method":"double","params":[4]}');
 * console.log(answer); // { jsonrpc: '2.0', id: 1, result: 8 }
 * ```
 */
export function createDispatcher(o?: DispatcherOptions): Dispatcher {
  return createBareDispatcher(o === undefined ? DEFAULTS : withMcp(checkObject(o)));
}

/**
 * Answers one frame without a transport: a parsed request, a batch, or the text of either. Uses a dispatcher that is
 * cached for each pair of `methods` and `tools`; without options, the default ones. To end subscriptions or abort
 * handlers, make a dispatcher with {@link createDispatcher} instead. Never rejects because of the frame, and never throws.
 *
 * @param frame an untrusted frame; nothing about it needs to be checked first
 * @param context who calls, and where frames before the answer go; without `from`, a call from inside this process
 * @returns the answer; undefined if nothing should be sent back
 *
 * @example
 * ```ts
 * import { dispatch, methods } from 'technocore-rpc';
 *
 * methods.set('add', ({ a, b }) => a + b);
 * const answer = await dispatch('{"jsonrpc":"2.0","id":1,"method":"add","params":{"a":2,"b":40}}');
 * console.log(JSON.stringify(answer)); // {"jsonrpc":"2.0","id":1,"result":42}
 * ```
 */
export async function dispatch(
  frame: unknown,
  context?: DispatchContext,
  o?: DispatcherOptions,
): Promise<Json | undefined> {
  return dispatchBare(frame, context, o === undefined ? DEFAULTS : withMcp(checkObject(o)));
}

/**
 * Serves methods and MCP tools to everybody who writes requests to a mailbox or a channel, until `o.signal` aborts.
 * Answers are signed and go to the caller's mailbox. A handler runs once per (caller, id); nothing that anybody writes
 * ends the server.
 *
 * @param mailbox a room whose name begins with `mb-`, or a {@link Channel}. All users of the service share its rooms:
 * choose a name that nobody else uses, such as `mb-p-` and something random
 * @param signer the server's key; callers that know its DID accept only answers from it
 * @param o what to serve (default: {@link methods} and {@link tools}, both unless one is given), who may call, how many
 * handlers run at a time, and what is kept across restarts: see {@link ServeOptions}
 * @returns resolves after the signal has aborted and the requests that were begun are answered, within `drainMs`
 * @throws a {@link BadName} if the room is not a mailbox
 * @throws a {@link BadKey} if no signer is given
 * @throws a {@link TechnocoreError} `bad_option` if options contradict each other or a handler is not a function;
 * `already_served` if another call serves the same mailbox with the same key in this process, unless both set `claim`
 * @throws what opening and reading the mailbox throws, unless it is transient: {@link Forbidden}, {@link RoomBudget} …
 * @example
 * ```ts
 * import { methods, serve, Signer } from 'technocore-rpc';
 *
 * methods.set('add', ({ a, b }) => a + b);
 *
 * const stop = new AbortController();
 * process.once('SIGINT', () => stop.abort());
 * await serve('mb-p-sums-4e1b', await Signer.fromDir(), { signal: stop.signal });
 * ```
 */
export async function serve(mailbox: string | Channel, signer: Signer, o: ServeOptions = {}): Promise<void> {
  checkObject(o);
  const served = o.methods || o.tools ? {} : { methods, tools };
  return serveBare(mailbox, signer, { ...withMcp(o), ...served });
}
