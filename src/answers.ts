/**
 * A server's own answers: errors that no handler threw and errors for answers that are too long. Also packs the answers
 * to one message into as few messages as possible.
 *
 * @module
 */
import { packed } from './batch.ts';
import { BUSY, DENIED, type Id, INTERNAL_ERROR, INTERRUPTED, type JsonObject, rpcError } from './dispatch.ts';
import { FrameTooLong, tooManyBytes } from './errors.ts';
import { blanked, encodeLong, MAX_TEXT } from './frames.ts';
import { MAX_SPILLED, spilledBytes, writesFor } from './spill.ts';

/** The maximum number of writes for the answers to one message. A spilled answer takes up to seventeen. */
export const MAX_WRITES = 32;

/** The answer to a caller that is not allowed. */
export const denied = (id: Id): string => encodeLong(rpcError(id, DENIED, 'Denied'));
/** The answer to a request that an earlier server may have executed. */
export const before = (id: Id, nonce: string): string =>
  encodeLong(
    rpcError(
      id,
      INTERRUPTED,
      'Interrupted: the request was signed before this server started, so it may have run already. Sign it again, with the time in ms as its nonce',
      { nonce },
    ),
  );
/** The answer to a request that was started and did not end. */
export const interrupted = (id: Id): string =>
  encodeLong(rpcError(id, INTERRUPTED, 'Interrupted: the request was started; it may or may not have been executed'));

/** The answer if it fits or can be spilled, else an error with its length. */
export function fitted(text: string, id: Id, spills: boolean, limit: number): string {
  if (text.length <= limit) return text;
  if (!spills) return tooLarge(id, new FrameTooLong(text.length, limit));
  const bytes = spilledBytes(text);
  return bytes <= MAX_SPILLED ? text : tooLarge(id, tooManyBytes(bytes, MAX_SPILLED));
}

/**
 * What a handler threw, with its causes, as text for the operator's terminal. It may quote untrusted input, so control
 * characters are blanked.
 */
export function printable(thrown: unknown): string {
  const texts: string[] = [];
  let cause = thrown;
  for (let depth = 0; depth < 5 && cause instanceof Error; depth++) {
    texts.push(cause.stack ?? cause.message);
    cause = cause.cause;
  }
  if (texts.length === 0) texts.push(typeof thrown === 'string' ? thrown : asJson(thrown));
  return texts.join('\ncaused by ').split('\n').map(blanked).join('\n');
}

function asJson(value: unknown): string {
  try {
    return encodeLong(value);
  } catch {
    return `a value without a JSON form: ${typeof value}`;
  }
}

/** The answer in place of one that is too long. */
export function tooLarge(id: Id, { chars, limit, message }: FrameTooLong): string {
  return encodeLong(rpcError(id, INTERNAL_ERROR, `The answer is too large: ${message}`, { chars, limit }));
}

/**
 * The messages for the answers to one message. Answers to a batch are packed into as few as possible, up to
 * {@link MAX_WRITES}.
 *
 * @param retryAfterMs for requests whose answers exceed that: they get the error "Busy" now, and the stored answer
 * later
 */
export function join(batch: unknown, texts: string[], retryAfterMs: () => number): string[] {
  if (!batch) return texts;
  const messages: string[] = [];
  const late: string[] = [];
  let writes = 0;
  for (const together of packed(texts)) {
    const text = `[${together.join(',')}]`;
    writes += Math.max(...together.map(writesFor));
    if (writes > MAX_WRITES) late.push(...together);
    else messages.push(text.length <= MAX_TEXT ? text : together[0]!);
  }
  if (late.length === 0) return messages;
  const data = { retryAfterMs: retryAfterMs() };
  const idOf = (text: string): Id => (JSON.parse(text) as JsonObject)['id'] as Id;
  const busy = late.map((text) =>
    encodeLong(rpcError(idOf(text), BUSY, 'Busy: more answers than one message may ask for', data)),
  );
  return [...messages, ...packed(busy).map((together) => `[${together.join(',')}]`)];
}
