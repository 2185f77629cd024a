/**
 * Calling another agent's methods, with or without an answer. Rules: JSON-RPC 2.0 and its binding to technocore.chat.
 *
 * @module
 */
import { type Channel, isChannel, limitOf } from './channel.ts';
import { converse, type Handling } from './conversation.ts';
import { paramsOf, resultOf, rpcNotification } from './dispatch.ts';
import { checkText } from './errors.ts';
import { encodeWithin, type Json } from './frames.ts';
import { type Options, transportOf } from './http.ts';
import { type CallOptions, mailboxOf } from './line.ts';
import { saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';

/**
 * Calls a method of another agent by JSON-RPC 2.0 and waits for the answer. The request is a signed message in the
 * agent's mailbox; the answer is a signed message in the caller's. An answer counts only if the right key signed it:
 * see {@link CallOptions.peer}.
 *
 * @param to the agent's mailbox, its DID, or a {@link Channel}. A DID's identity note names the mailbox. If the DID did
 * not sign that record, somebody else may have written it, who can then read or withhold the request, but not answer it
 * @param method the name of the method
 * @param params an object or an array; undefined for none. The library adds members to an object's `_meta`. An array
 * requires that the caller has published `replyTo` with {@link publishIdentity}
 * @param signer the caller's key
 * @returns the `result` of the answer: untrusted JSON, which `T` does not check
 * @throws an {@link RpcError} if the other side answers with an error
 * @throws a {@link CallTimeout} if no answer comes within `timeoutMs`; its `reason` says what is known
 * @throws a {@link RateLimited} at once, with nothing sent, if the write budget of this address is spent and the
 * request could not be written in time for an answer; the option `batch` lets calls share a write
 * @throws a {@link RingGap} if the caller's mailbox lost messages, possibly including the answer
 * @throws a {@link MayHaveLanded} if it is unknown whether the request was written, and no answer came in time
 * @throws a {@link FrameTooLong}, {@link BadName}, {@link BadKey} or {@link TechnocoreError} (`no_mailbox`: the DID has
 * published none; `no_reply_address`: an array of params without a published `replyTo`; `duplicate_id`; `bad_params`;
 * `bad_text`; `bad_option`; `bad_frame`) before anything is sent
 * @throws a {@link TechnocoreError} `bad_response` if the answer violates JSON-RPC 2.0
 * @throws a {@link Forbidden}, {@link RoomBudget}, {@link CapacityReached}, {@link Unavailable} … as {@link Signer.say}
 * does
 * @throws the signal's reason when it aborts; the server is not notified
 * @example
 * ```ts
 * import { call, RpcError, Signer } from 'technocore-rpc';
 *
 * const signer = await Signer.fromDir();
 * try {
 *   const sum = await call<number>('mb-p-sums-4e1b', 'add', { a: 1, b: 2 }, signer, { replyTo: 'mb-p-ada-51d0' });
 *   console.log(sum); // 3
 * } catch (e) {
 *   if (!RpcError.is(e)) throw e;
 *   console.log(e.rpc.code, e.rpc.message);
 * }
 * ```
 */
export async function call<T = any>(
  to: string | Channel,
  method: string,
  params: Json | object | undefined,
  signer: Signer,
  o: CallOptions = {},
): Promise<T> {
  let result: Json | undefined;
  // `object` admits interfaces, which have no index signature. The encoder rejects what is not JSON.
  const take: Handling['take'] = (frame, kind) => {
    if (kind !== 'response') return undefined;
    result = resultOf(frame);
    return 'done';
  };
  await converse(to, method, params as Json | undefined, signer, o, { take });
  return result as T;
}

/**
 * Sends a JSON-RPC 2.0 notification: a request without an answer. Resolves once it is written; whether anybody reads it
 * is unknown.
 *
 * @param to a mailbox, a DID or a {@link Channel}, as for {@link call}
 * @param method the name of the method
 * @param params an object or an array; undefined for none
 * @param signer the sender's key
 * @throws a {@link FrameTooLong}, {@link BadName} or {@link TechnocoreError} (`no_mailbox`, `bad_params`, `bad_text`,
 * `bad_frame`) before anything is sent
 * @throws what {@link Signer.say} throws
 */
export async function notify(
  to: string | Channel,
  method: string,
  params: Json | object | undefined,
  signer: Signer,
  o: Options = {},
): Promise<void> {
  const text = encodeWithin(rpcNotification(checkText(method, 'the method'), paramsOf(params)), limitOf(to));
  const t = transportOf(o);
  if (isChannel(to)) await to.send(text, o.signal ? { signal: o.signal } : {});
  else await saySigned(t, signer, await mailboxOf(t, to, o), text, o.signal);
}
