/**
 * Room messages as the service returns them, and what their signatures prove. Rules: technocore.chat (shapes of
 * answers; identity and signatures).
 *
 * @module
 */
import { BASE64URL } from './bytes.ts';
import { isHonestPoint } from './crypto.ts';
import { blanked, isObject, parseExact, parseJson, sweep } from './frames.ts';
import { isNonce, publicKeyFromDid, verify } from './names.ts';
import { oddAnswer } from './service.ts';

/** One message of a room. Everything in it is untrusted; {@link verifyMessage} tells whether `from` signed it. */
export interface Message {
  /** Position in the room: 1 for the first message, then rising. */
  seq: number;
  /** When it was written, by the service's clock: `YYYY-MM-DDTHH:MM:SS.ffffffZ`. */
  ts: string;
  /** The writer: a `did:key` if the message was signed, otherwise a nick, which proves nothing. */
  from: string;
  /** The text, swept: see {@link sweep}. */
  text: string;
  /** The nonce that was signed, as decimal digits, since a number would lose some; signed messages only. */
  nonce?: string;
  /** The signature: 86 characters of base64url. Services before 0.11 do not return it. */
  sig?: string;
}

/** What {@link read} returns: some of a room's newest messages. */
export interface RoomView {
  /** The name of the room. */
  room: string;
  /** The `seq` of the first of `messages`; null if there are none. */
  firstSeq: number | null;
  /** The `seq` of the room's newest message, as the service reports it; 0 if nobody has written to the room. */
  lastSeq: number;
  /** A counter that rises when the room is deleted and recreated. Services before 0.11 do not have it. */
  generation?: number;
  /** The messages, oldest first. */
  messages: Message[];
}

/** @internal A view with the members that only read loops need. */
export interface PolledView extends RoomView {
  /** Whether the service held the request, if it reports that. */
  waitHeld?: boolean;
  /** The `since` of the request. */
  since?: number;
  /** In the answer to a write: the `seq` of the written message. */
  posted?: number;
}

const isSeq = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/** True for a record whose nonce may be too large for a double. Most are times in ms, which are not. */
const isRounded = (record: unknown): boolean =>
  isObject(record) && typeof record['nonce'] === 'number' && !Number.isSafeInteger(record['nonce']);

/** Parses the service's JSON and keeps the nonces of its records exact. */
function parsed(text: string, recordsOf: (value: unknown) => unknown): unknown {
  const value: unknown = parseJson(text);
  const records = recordsOf(value);
  return Array.isArray(records) && records.some(isRounded) ? parseExact(text, 'nonce') : value;
}

/** The message in a stored record; undefined if the record is malformed. */
function messageOf(record: unknown): Message | undefined {
  if (!isObject(record)) return undefined;
  const { seq, ts, from, text, nonce, sig } = record;
  if (!isSeq(seq) || typeof ts !== 'string' || typeof from !== 'string' || typeof text !== 'string') return undefined;
  const message: Message = { seq, ts, from, text };
  if (typeof nonce === 'string' || typeof nonce === 'number') message.nonce = String(nonce);
  if (typeof sig === 'string') message.sig = sig;
  return message;
}

/** The messages in the records. Those whose `seq` does not rise are dropped, since a reader's cursor relies on it. */
function messagesOf(records: unknown[]): Message[] {
  const messages: Message[] = [];
  for (const record of records) {
    const message = messageOf(record);
    if (message && message.seq > (messages.at(-1)?.seq ?? -1)) messages.push(message);
  }
  return messages;
}

/**
 * Parses the JSON view of a room. Malformed records are dropped.
 *
 * @internal
 * @throws an {@link Unavailable} if the text is something else, such as a proxy's page or a truncated body
 */
export function viewOf(room: string, text: string): PolledView {
  let view: unknown;
  try {
    view = parsed(text, (value) => isObject(value) && value['messages']);
  } catch (cause) {
    throw oddAnswer('the JSON view of a room', cause);
  }
  if (!isObject(view) || !isSeq(view['last_seq']) || !Array.isArray(view['messages'])) {
    throw oddAnswer('the view of a room');
  }
  const messages = messagesOf(view['messages']);
  const { generation, wait_held, posted } = view;
  return {
    room,
    firstSeq: messages[0]?.seq ?? null,
    lastSeq: view['last_seq'],
    ...(isSeq(generation) && { generation }),
    messages,
    ...(typeof wait_held === 'boolean' && { waitHeld: wait_held }),
    ...(isObject(posted) && isSeq(posted['seq']) && { posted: posted['seq'] }),
  };
}

/** Parses an export, which has one JSON record per line. Malformed lines are dropped. */
export function exportOf(text: string): Message[] {
  const records = text.split('\n').map((line): unknown => {
    try {
      return parsed(line, (record) => [record]);
    } catch {
      return undefined;
    }
  });
  return messagesOf(records);
}

/**
 * When a message was written, by the service's clock, in ms since the epoch; undefined if `ts` is not a time. @internal
 */
export function writtenAt({ ts }: { readonly ts?: string | undefined }): number | undefined {
  const at = Date.parse(ts ?? '');
  return Number.isFinite(at) ? at : undefined;
}

/**
 * Verifies that a message was signed by the key it names. The check is local; the service is not trusted. Never throws.
 *
 * @param room the room that the message was read from, which the signature covers
 * @param m the message as {@link read} or {@link follow} returns it
 * @returns `valid`; `invalid` if its signature does not match, or if its text is not swept, as any service would store
 * it (see {@link sweep}); `unverifiable` if it has no signature, because it is unsigned or comes from a service before 0.11
 *
 * @example
 * ```ts
 * import { read, Signer, verifyMessage } from 'technocore-rpc';
 *
 * const ada = Signer.generate();
 * await ada.say('p-workshop-9d20', 'hello');
 * const { messages } = await read('p-workshop-9d20');
 * for (const m of messages) console.log(m.text, verifyMessage('p-workshop-9d20', m)); // hello valid
 * ```
 */
export function verifyMessage(room: string, m: Message): 'valid' | 'invalid' | 'unverifiable' {
  const parts = partsOf(m);
  if (parts === undefined) return 'invalid';
  const { from, sig, nonce, text } = parts;
  if (sig === undefined) return 'unverifiable';
  if (typeof room !== 'string' || typeof nonce !== 'string' || typeof text !== 'string') return 'invalid';
  return isSwept(text) && verify(from, sig, `${room}|${nonce}|${text}`) ? 'valid' : 'invalid';
}

/** The members that a signature concerns; undefined if it is no message, or has getters that throw. */
function partsOf(m: Message): Pick<Message, 'from' | 'sig' | 'nonce' | 'text'> | undefined {
  try {
    const { from, sig, nonce, text } = m;
    return isObject(m) ? ({ from, sig, nonce, text } as Message) : undefined;
  } catch {
    return undefined;
  }
}

/** Services store no other text, and code that reads messages may rely on that. */
const isSwept = (text: string): boolean => blanked(text).trim() === text;

/**
 * Explains why the signature of a message does not verify, as far as the message itself shows. It tests for the usual
 * mistakes (text not swept, zeros lost from the nonce, Unicode normalized, signed for another room), with at most 16
 * verifications. Never throws.
 *
 * @param room the room that the message was read from
 * @returns the most specific reason found; undefined if the signature verifies
 */
export function explain(room: string, m: Message): string | undefined {
  const parts = partsOf(m);
  if (parts === undefined) return 'not a message';
  if (typeof room !== 'string') return 'the room is not a string';
  const { from, sig, nonce, text } = parts;
  const publicKey = publicKeyFromDid(from);
  if (publicKey === undefined) {
    return typeof from === 'string' && from.startsWith('did:')
      ? 'the DID is not a did:key of an Ed25519 key'
      : 'not signed: the writer is a nick';
  }
  if (typeof text !== 'string') return 'there is no text';
  if (sig === undefined) return 'no signature is kept with the message (services before 0.11 keep none)';
  if (nonce === undefined) return 'no nonce: a signature covers room, nonce and text';
  if (!isHonestPoint(publicKey)) return 'the DID holds no usable public key: small order, or not canonical';
  if (!isNonce(nonce)) return 'the nonce is not 1 to 19 digits';
  if (typeof sig !== 'string' || !/^[A-Za-z0-9_-]{86}$/.test(sig))
    return 'the signature is not 86 characters of base64url';
  const fits = (room: string, nonce: string, text: string, tail: string = sig): boolean =>
    verify(from, tail, `${room}|${nonce}|${text}`);
  if (fits(room, nonce, text)) return isSwept(text) ? undefined : 'the text is not swept, and was signed like that';

  // The last character has four spare bits, which are zero in the canonical spelling.
  const last = BASE64URL.indexOf(sig[85]!);
  if ((last & 15) !== 0) {
    const canonical = sig.slice(0, 85) + BASE64URL[last & 48];
    return fits(room, nonce, text, canonical)
      ? `the last character of the signature is not canonical base64url: ${sig[85]} instead of ${canonical[85]}`
      : 'the last character of the signature is not canonical base64url, and another spelling does not verify either';
  }
  let swept: string | undefined;
  try {
    swept = sweep(text, Number.POSITIVE_INFINITY);
  } catch {
    return 'nothing is left of the text after the sweep';
  }
  if (swept !== text && fits(room, nonce, swept)) return 'the text is not swept; the signature is over the swept text';
  // Without native code a verification takes a millisecond, so only likely lengths of padding are tried.
  for (const digits of new Set([1, 2, 3].map((zeros) => nonce.length + zeros).concat(10, 13, 16, 19))) {
    const padded = nonce.padStart(digits, '0');
    if (digits > nonce.length && digits <= 19 && fits(room, padded, text))
      return `the nonce was signed as ${padded}; the service keeps numbers and lost the zeros`;
  }
  const bare = nonce.replace(/^0+(?=\d)/, '');
  if (bare !== nonce && fits(room, bare, text)) return `the nonce was signed as ${bare}, without leading zeros`;
  for (const form of ['NFC', 'NFD'] as const) {
    if (text.normalize(form) !== text && fits(room, nonce, text.normalize(form))) {
      return `the text was signed in Unicode form ${form}; nothing on the way may normalise it`;
    }
  }
  for (const other of [room.toLowerCase(), room.trim(), `/r/${room}`, '']) {
    if (other !== room && fits(other, nonce, text)) return `signed for the room ${JSON.stringify(other)}`;
  }
  return 'the signature does not fit this key, room, nonce and text: one of them was changed, or it was signed for another room';
}
