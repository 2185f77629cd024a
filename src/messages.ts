/**
 * Messages of a room as the service shows them, and what their signatures prove. Rules: wire sections 4 and 8.
 *
 * @module
 */
import { BASE64URL } from './bytes.ts';
import { isHonestPoint } from './crypto.ts';
import { Unavailable } from './errors.ts';
import { isObject, parseExact, sweep } from './frames.ts';
import { isNonce, publicKeyFromDid, verify } from './names.ts';

/** One message of a room. All of it is strangers' text. */
export interface Message {
  /** Position in the room, from 1 on. */
  seq: number;
  /** Server time, `YYYY-MM-DDTHH:MM:SS.ffffffZ`. */
  ts: string;
  /** A nick, or the did:key of a signed message. */
  from: string;
  text: string;
  /** Exact digits; signed messages only. A double would round them. */
  nonce?: string;
  /** 86 characters of base64url; from service 0.11 on. */
  sig?: string;
}

/** What a read of a room shows, oldest first. */
export interface RoomView {
  room: string;
  /** Seq of the first message shown; null when none is. */
  firstSeq: number | null;
  lastSeq: number;
  /** Counts recreations of the room; from service 0.11 on. */
  generation?: number;
  messages: Message[];
}

/** @internal A view with what only loops need. */
export interface PolledView extends RoomView {
  waitHeld?: boolean;
  /** The `since` it was read with. */
  since?: number;
  /** Seq of the write this view answers. */
  posted?: number;
}

const isSeq = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 0;

/** True for a record whose nonce a double may not hold. Most are the time in ms, which it does. */
const isRounded = (record: unknown): boolean =>
  isObject(record) && typeof record['nonce'] === 'number' && !Number.isSafeInteger(record['nonce']);

/** The JSON of the service, the nonces of its records exact. */
function parsed(text: string, recordsOf: (value: unknown) => unknown): unknown {
  const value: unknown = JSON.parse(text);
  const records = recordsOf(value);
  return Array.isArray(records) && records.some(isRounded) ? parseExact(text, 'nonce') : value;
}

/** One stored record, or undefined where it has not the shape of one. */
function messageOf(record: unknown): Message | undefined {
  if (!isObject(record)) return undefined;
  const { seq, ts, from, text, nonce, sig } = record;
  if (!isSeq(seq) || typeof ts !== 'string' || typeof from !== 'string' || typeof text !== 'string') return undefined;
  const message: Message = { seq, ts, from, text };
  if (typeof nonce === 'string' || typeof nonce === 'number') message.nonce = String(nonce);
  if (typeof sig === 'string') message.sig = sig;
  return message;
}

/** The records that have the shape of a message, as long as their seqs rise: a reader's cursor relies on it. */
function messagesOf(records: unknown[]): Message[] {
  const messages: Message[] = [];
  for (const record of records) {
    const message = messageOf(record);
    if (message && message.seq > (messages.at(-1)?.seq ?? -1)) messages.push(message);
  }
  return messages;
}

/**
 * The JSON view of a room. Records without the shape of a message are left out.
 *
 * @internal
 * @throws Unavailable not such a view: a proxy's page, a cut body
 */
export function viewOf(room: string, text: string): PolledView {
  let view: unknown;
  try {
    view = parsed(text, (value) => isObject(value) && value['messages']);
  } catch (cause) {
    throw new Unavailable('the answer is not the JSON view of a room', cause);
  }
  if (!isObject(view) || !isSeq(view['last_seq']) || !Array.isArray(view['messages'])) {
    throw new Unavailable('the answer is not the view of a room');
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

/** The records of an export, one JSON line each; lines without the shape of a message are left out. */
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

/** When a message was written, by the clock of the service, ms; undefined where it does not say so. @internal */
export function writtenAt({ ts }: Message): number | undefined {
  const at = Date.parse(ts);
  return Number.isFinite(at) ? at : undefined;
}

/**
 * Whether a message was signed by the key it names, checked here and not taken from the service.
 *
 * @returns `unverifiable` when it carries no signature: an unsigned message, or a service before 0.11. That is not
 * `invalid`, which means a signature that does not fit.
 */
export function verifyMessage(room: string, m: Message): 'valid' | 'invalid' | 'unverifiable' {
  if (!isObject(m)) return 'invalid';
  const { from, sig, nonce, text } = m;
  if (sig === undefined) return 'unverifiable';
  if (typeof nonce !== 'string' || typeof text !== 'string') return 'invalid';
  return verify(from, sig, `${room}|${nonce}|${text}`) ? 'valid' : 'invalid';
}

/**
 * Why the signature of a message does not verify, as far as can be told from the message alone, by at most sixteen
 * verifications.
 *
 * @returns undefined when it verifies; otherwise the most specific reason that was found
 */
export function explain(room: string, m: Message): string | undefined {
  if (!isObject(m)) return 'not a message';
  const { from, sig, nonce, text } = m;
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
  if (fits(room, nonce, text)) return undefined;

  // The last character holds two spare bits: four spellings, one of them canonical.
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
  // Without native code a signature takes a millisecond: the lengths that somebody may have chosen, not all of them.
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
