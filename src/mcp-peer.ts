/**
 * One request to an MCP server, from the client side: its `_meta`, one retry with another version, a fresh id after
 * lost messages, and the cancellation when nobody waits for the answer any more. Rules: MCP 2026-07-28.
 *
 * @module
 */
import { notify } from './call.ts';
import { type Channel, isChannel } from './channel.ts';
import { converse, type Taken } from './conversation.ts';
import { type Implementation, isRpc, type JsonObject, resultOf } from './dispatch.ts';
import { checkObject, TechnocoreError } from './errors.ts';
import { encodeLong, isObject, type Json, metaIn } from './frames.ts';
import { sharedOf, type Transport, transportOf } from './http.ts';
import type { CallOptions } from './line.ts';
import { remember } from './maps.ts';
import { MCP_VERSION, PROTOCOL_VERSION, SELF, UNSUPPORTED_VERSION } from './mcp.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';
import { SPILL_META } from './spill.ts';
import { CLIENT_CAPABILITIES } from './toolcall.ts';

export const CLIENT_INFO = 'io.modelcontextprotocol/clientInfo';
/** How often a request is reissued because our mailbox lost messages. */
const MAX_REISSUES = 3;

/** Options of all MCP requests. `batch` has no effect here. */
export interface McpOptions extends CallOptions {
  /** The client's name and version, as the server sees them. Default: those of this library. */
  clientInfo?: Implementation | undefined;
  /** Client capabilities to declare beyond those that `onInput` implies. */
  capabilities?: JsonObject | undefined;
  /** Further members of the request's `_meta`, such as `traceparent`. */
  meta?: JsonObject | undefined;
}

/** A server and its caller. */
export interface Peer {
  readonly t: Transport;
  readonly to: string | Channel;
  readonly signer: Signer;
  readonly o: McpOptions;
  /** The id of the first request; later ones get fresh ids. */
  id: string | undefined;
}

/** Checks the arguments of an MCP call. @throws a {@link BadKey} if no signer is given */
export function peerOf(to: string | Channel, signer: Signer, options: McpOptions): Peer {
  checkSigner(signer);
  const { id, ...o } = checkObject(options);
  return { t: transportOf(o), to, signer, o, id };
}

/** The error for a response that MCP does not allow. @param problem what it contains */
export function badResponse(problem: string): TechnocoreError {
  return new TechnocoreError('bad_response', `the other side sent ${problem}`);
}

/** The `_meta` of our requests. */
export function ownMeta({ o }: Peer): JsonObject {
  return {
    ...o.meta,
    [PROTOCOL_VERSION]: MCP_VERSION,
    [CLIENT_INFO]: o.clientInfo ?? SELF,
    [CLIENT_CAPABILITIES]: o.capabilities ?? {},
  };
}

/** A member of a notification's `_meta`. */
export function tagOf(frame: JsonObject, name: string): unknown {
  return metaIn(frame['params'])[name];
}

const SPILLERS = {};
/** How many such servers are remembered. */
const MAX_SPILLERS = 4096;

/** The servers that read requests too long for a message, as advertised in their answers. */
const spillersOf = (t: Transport): Map<string, true> => sharedOf(t, SPILLERS, () => new Map());
const roomOf = (to: string | Channel): string => (isChannel(to) ? to.room : to);

/** Whether a server is known to read requests too long for a message. */
export const readsLong = (t: Transport, to: string | Channel): boolean => spillersOf(t).has(roomOf(to));

/** Remembers a server whose answer advertises that. */
export function heedLong(t: Transport, to: string | Channel, result: unknown): void {
  if (metaIn(result)[SPILL_META] === true) remember(spillersOf(t), roomOf(to), true, MAX_SPILLERS);
}

/** Handles a notification that arrives while the request with that id is waiting. */
export type Notice = (frame: JsonObject, id: string) => Taken;

/**
 * Sends one request under one id, and cancels it at the server if it fails here.
 *
 * @returns undefined if a notice ended it
 */
async function once(
  peer: Peer,
  method: string,
  params: JsonObject,
  notice: Notice,
  holdMs: number | undefined,
): Promise<Json | undefined> {
  const { t, to, signer, o } = peer;
  const { id: first } = peer;
  peer.id = undefined;
  let id = '';
  let answer: JsonObject | undefined;
  const options = first === undefined ? o : { ...o, id: first };
  try {
    await converse(to, method, params, signer, options, {
      take(frame, kind) {
        if (kind === 'notification') return notice(frame, id);
        answer = frame;
        heedLong(t, to, frame['result']);
        return 'done';
      },
      maxMs: holdMs,
      spills: readsLong(t, to),
      begin(begun) {
        id = begun;
      },
    });
  } catch (cause) {
    if (id !== '' && answer === undefined) cancelled(peer, id, cause);
    throw cause;
  }
  return answer && resultOf(answer);
}

/** Tells the server that nobody waits any more, if the request may have reached it. Not awaited. */
function cancelled({ t, to, signer, o }: Peer, requestId: string, cause: unknown): void {
  const { signal, ...rest } = o;
  let reason = 'the caller gave up';
  if (signal?.aborted) {
    if (typeof cause === 'string') reason = cause.slice(0, 200);
  } else if (TechnocoreError.is(cause)) {
    const known: { [code: string]: string } = {
      call_timeout: 'timeout',
      may_have_landed: 'timeout',
      ring_gap: 'the answer may be lost',
      not_offered: 'nothing to listen to',
    };
    if (known[cause.code] === undefined) return;
    reason = known[cause.code]!;
  }
  notify(to, 'notifications/cancelled', { requestId, reason }, signer, rest).catch((cause) =>
    t.onEvent({ kind: 'uncancelled', id: requestId, cause }),
  );
}

/** Sends a request, and once more if the server refuses its version and names one that we support. */
export async function exchange(
  peer: Peer,
  method: string,
  params: JsonObject,
  notice: Notice,
  holdMs?: number,
): Promise<Json | undefined> {
  try {
    return await once(peer, method, params, notice, holdMs);
  } catch (cause) {
    if (!isRpc(cause, UNSUPPORTED_VERSION)) throw cause;
    const { data } = cause.rpc;
    const supported = isObject(data) ? data['supported'] : undefined;
    if (!Array.isArray(supported) || !supported.includes(MCP_VERSION)) throw cause;
    peer.t.onEvent({ kind: 'retry', method, cause, afterMs: 0 });
    return once(peer, method, params, notice, holdMs);
  }
}

/**
 * Sends a request and returns its result, which is of a known type.
 *
 * @param mayRepeat whether it may be sent again if messages were lost
 */
export async function ask(
  peer: Peer,
  method: string,
  params: JsonObject,
  mayRepeat: () => boolean,
  notice: Notice = () => undefined,
): Promise<JsonObject> {
  for (let reissues = 0; ; reissues++) {
    try {
      const result = await exchange(peer, method, params, notice);
      if (!isObject(result)) throw badResponse('a result that is not an object');
      const { resultType = 'complete' } = result;
      if (resultType === 'complete' || (resultType === 'input_required' && method === 'tools/call')) {
        return result as JsonObject;
      }
      throw badResponse(`a result of the type ${encodeLong(resultType).slice(0, 80)}, which is unknown`);
    } catch (cause) {
      const isLost = TechnocoreError.is(cause) && cause.code === 'ring_gap';
      if (!isLost || reissues >= MAX_REISSUES || !mayRepeat()) throw cause;
      peer.t.onEvent({ kind: 'retry', method, cause, afterMs: 0 });
    }
  }
}
