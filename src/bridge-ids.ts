/**
 * Replaces ids in answers and notifications with those that the recipient knows.
 *
 * @module
 */
import { type Id, type JsonObject, resultOf, rpcError, rpcResult } from './dispatch.ts';
import { type RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json, metaIn } from './frames.ts';
import { SUBSCRIPTION_ID } from './mcp.ts';
import { badResponse } from './mcp-peer.ts';

/** Params or a result in which the subscription that `_meta` names, if any, has the given id. */
export function tagged(holder: JsonObject, id: Id): JsonObject {
  const meta = metaIn(holder);
  return SUBSCRIPTION_ID in meta ? { ...holder, _meta: { ...meta, [SUBSCRIPTION_ID]: id } } : holder;
}

/**
 * An answer under another id, with only the members of an answer.
 *
 * @throws a {@link TechnocoreError} `bad_response` if it is not an answer
 */
export function answerUnder(id: Id, frame: JsonObject): JsonObject {
  let result: Json;
  try {
    result = resultOf(frame);
  } catch (cause) {
    if (!TechnocoreError.is(cause) || cause.code !== 'rpc') throw cause;
    const { code, message, data } = (cause as RpcError).rpc;
    return rpcError(id, code, message, data as Json | undefined);
  }
  if (!isObject(result)) throw badResponse('a result that is not an object');
  return rpcResult(id, tagged(result as JsonObject, id));
}
