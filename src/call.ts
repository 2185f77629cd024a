/**
 * Calling: a method of another agent, for its answer or for none.
 *
 * @module
 */
import { type Channel, isChannel, limitOf } from './channel.ts';
import { converse, type Handling } from './conversation.ts';
import { resultOf, rpcNotification } from './dispatch.ts';
import { checkText } from './errors.ts';
import { encodeWithin, type Json } from './frames.ts';
import { type Options, transportOf } from './http.ts';
import { type CallOptions, mailboxOf } from './line.ts';
import { saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';

/**
 * Calls a method of another agent and waits for its answer.
 *
 * @param to the agent's mailbox, its DID (then the identity note names the mailbox), or a channel. Where that note holds no
 * record that the DID signed, a stranger may have named the mailbox: he can read the request, or keep it from its reader;
 * an answer still counts only when that DID signed it
 * @param params by name or by position; `_meta` is ours to add to
 * @throws RpcError the other side answered with an error
 * @throws CallTimeout no answer in time; `reason` says what is known
 * @throws RingGap the answer may be among messages that the reply room lost
 * @throws MayHaveLanded the request may have arrived, and no answer came in time
 * @throws FrameTooLong, BadName, BadKey, and TechnocoreError `no_mailbox`, `no_reply_address`, `duplicate_id`, `bad_params`, `bad_text`, `bad_option`: before anything is sent
 * @throws RateLimited at once, with nothing sent, when the request's turn to be written would come too late for an answer: many
 * calls need fewer turns with the option `batch`
 * @throws what the write throws: Forbidden, RoomBudget, CapacityReached, Unavailable …
 * @throws the signal's reason when it aborts
 */
export async function call<T = any>(
  to: string | Channel,
  method: string,
  params: Json | object | undefined,
  signer: Signer,
  o: CallOptions = {},
): Promise<T> {
  let result: Json | undefined;
  // Interfaces have no index signature, and are JSON all the same; what is not is refused when it is written.
  const take: Handling['take'] = (frame, kind) => {
    if (kind !== 'response') return undefined;
    result = resultOf(frame);
    return 'done';
  };
  await converse(to, method, params as Json | undefined, signer, o, { take });
  return result as T;
}

/**
 * Sends a notification: no answer comes, and whether anybody reads it is not known. To a DID it goes as a call does.
 *
 * @throws as {@link call} before the request is written
 */
export async function notify(
  to: string | Channel,
  method: string,
  params: Json | undefined,
  signer: Signer,
  o: Options = {},
): Promise<void> {
  const text = encodeWithin(rpcNotification(checkText(method, 'the method'), params), limitOf(to));
  const t = transportOf(o);
  if (isChannel(to)) await to.send(text, o.signal ? { signal: o.signal } : {});
  else await saySigned(t, signer, await mailboxOf(t, to, o), text, o.signal);
}
