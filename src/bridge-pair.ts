/**
 * Pairing: how a server learns the key of one caller, and the caller that of the server, by a code that a person carries
 * from one terminal to the other. The code itself is never written into a room: only a MAC of both keys and the mailbox
 * under it, which is of no use to anybody between the two, or in the place of one of them.
 *
 * It happens in a room of its own, beside the mailbox, so that strangers do not write where the server reads. A message
 * that does not prove knowledge of the code costs the server only a look at it, so no number of strangers can keep out
 * the one who knows the code.
 *
 * @module
 */
import { equalBytes, toBase64url, toHex, utf8 } from './bytes.ts';
import { call } from './call.ts';
import { hmacSha256, sha256 } from './crypto.ts';
import { badParams, DENIED, type Handler } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { feedOf, type Incoming, type Listener } from './feed.ts';
import { decode, isObject, type Json } from './frames.ts';
import { type Options, type Transport, transportOf } from './http.ts';
import type { CallOptions } from './line.ts';
import { remember } from './maps.ts';
import { isDid } from './names.ts';
import { serve } from './serve.ts';
import type { Signer } from './signer.ts';

/** Letters and digits that are not confused with each other. */
const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** Characters of a code, five bits each: 130 bits. */
const CODE_LENGTH = 26;
/** How long a code is valid, ms. */
export const PAIRING_MS = 600_000;
/**
 * How many wrong codes are answered, of one key and of all keys a minute; others are ignored. Nobody need be locked out
 * for guessing: 120 reads a minute show at most a MiB each, and a guess takes some 300 bytes. That is less than 2^22
 * guesses while a code is valid, so that the chance that any of them is right is below 2^-108.
 */
const TRIES = 5;
const TRIES_A_MINUTE = 10;
const MINUTE_MS = 60_000;
/** How many keys have their wrong codes counted. */
const MAX_WRONG = 1024;

/** Makes a code of 130 random bits, in groups that can be read out. */
export function pairingCode(random: (bytes: number) => Uint8Array): string {
  const digits = [...random(CODE_LENGTH)].map((byte) => ALPHABET[byte & 31]!).join('');
  return digits.match(/.{1,5}/g)!.join('-');
}

/**
 * The canonical form of a code, however it was typed.
 *
 * @throws a {@link TechnocoreError} `bad_code` if it cannot be one. The message never quotes it
 */
export function normalCode(typed: string): string {
  const code = typed.toUpperCase().replace(/[\s-]/g, '').replaceAll('O', '0').replace(/[IL]/g, '1');
  if (code.length === CODE_LENGTH && [...code].every((char) => ALPHABET.includes(char))) return code;
  throw new TechnocoreError('bad_code', `a pairing code has ${CODE_LENGTH} letters and digits`);
}

/** The room for pairing with a mailbox, which can be derived by those who know the mailbox. */
export function pairingRoom(mailbox: string): string {
  return `mb-p-${toHex(sha256(utf8(`technocore-rpc/pair/${mailbox}`)).subarray(0, 12))}`;
}

/**
 * The proof by which one side shows the other that it knows the code. It contains the role, so that it cannot be sent
 * back.
 *
 * @param server `''` in the first message of a caller, who does not know the server's key yet
 */
function proofOf(code: string, role: 'caller' | 'server', mailbox: string, server: string, caller: string): string {
  return toBase64url(
    hmacSha256(utf8(normalCode(code)), utf8(`technocore-rpc/pair|${role}|${mailbox}|${server}|${caller}`)),
  );
}

/** Whether an untrusted value is the expected proof. */
function isProof(value: unknown, proof: string): boolean {
  return typeof value === 'string' && equalBytes(utf8(value), utf8(proof));
}

/** Options of {@link offerPairing}. */
export interface PairingOptions extends Options {
  /** As {@link pairingCode} makes it. */
  code: string;
  /** Stores the key of the caller that knew the code. If it throws, pairing fails for that caller. */
  onPaired(did: string): void | Promise<void>;
  /** Called once callers can pair. */
  onReady?: () => void;
}

/**
 * Waits for one caller that knows the code.
 *
 * @returns `paired`, or `expired` after ten minutes. The code is invalid from then on
 * @throws what {@link serve} throws; the signal's reason if it has aborted before
 */
export async function offerPairing(
  mailbox: string,
  signer: Signer,
  { code, onPaired, ...o }: PairingOptions,
): Promise<'paired' | 'expired'> {
  const t = transportOf(o);
  const { clock } = t;
  o.signal?.throwIfAborted();
  const { did } = signer;
  const room = pairingRoom(mailbox);
  const door = new Door(t, code, mailbox);
  let outcome: 'paired' | 'expired' | undefined;
  const over = new AbortController();
  const end = (how: typeof outcome): void => {
    outcome ??= how;
    over.abort(new TechnocoreError('over', 'pairing has ended'));
  };
  const pair: Handler = async (params, { from }) => {
    if (!door.knows(from)) throw new RpcError(DENIED, 'Denied: not the code');
    const proof = isObject(params) ? params['proof'] : undefined;
    if (proof === undefined) return { did };
    if (outcome !== undefined) throw new RpcError(DENIED, 'Denied: pairing has ended');
    if (!isProof(proof, proofOf(code, 'caller', mailbox, did, from)))
      throw badParams('the proof is not for this server');
    // From here on nobody else can pair, whatever happens next.
    outcome = 'paired';
    try {
      await onPaired(from);
    } finally {
      end('paired');
    }
    return { proof: proofOf(code, 'server', mailbox, did, from) };
  };
  clock.sleep(PAIRING_MS, over.signal).then(
    () => end('expired'),
    () => {},
  );
  const stop = (): void => end('expired');
  o.signal?.addEventListener('abort', stop);
  let leave: (() => void) | undefined;
  try {
    // Begins to listen before the server, so that it is known in time whose messages may be answered.
    leave = await feedOf(t, room).listen(door, { signal: over.signal });
    const methods = new Map([['pair', pair]]);
    await serve(room, signer, {
      ...o,
      methods,
      allow: (from) => door.lets(from),
      silent: true,
      signal: over.signal,
      presence: false,
      deadlineMs: 10_000,
    });
  } catch (cause) {
    if (!over.signal.aborted) throw cause;
  } finally {
    o.signal?.removeEventListener('abort', stop);
    leave?.();
    over.abort();
  }
  return outcome ?? 'expired';
}

/** Finds out from messages who knows the code, before anything is done for anybody. */
class Door implements Listener {
  readonly #t: Transport;
  readonly #code: string;
  readonly #mailbox: string;
  readonly #known = new Set<string>();
  /** How often others were wrong: each key, and all in this minute; and which of them get an answer. */
  readonly #wrong = new Map<string, number>();
  readonly #told = new Set<string>();
  #minute = 0;
  #inMinute = 0;

  constructor(t: Transport, code: string, mailbox: string) {
    this.#t = t;
    this.#code = code;
    this.#mailbox = mailbox;
  }

  message({ from, text }: Incoming): void {
    const frame = decode(text);
    if (from === '' || this.#known.has(from) || !isObject(frame) || frame['method'] !== 'pair') return;
    const hello = isObject(frame['params']) ? frame['params']['hello'] : undefined;
    if (isProof(hello, proofOf(this.#code, 'caller', this.#mailbox, '', from))) this.#known.add(from);
    else this.#wronged(from);
  }

  #wronged(from: string): void {
    const minute = Math.floor(this.#t.clock.now() / MINUTE_MS);
    if (minute !== this.#minute) this.#inMinute = 0;
    this.#minute = minute;
    const times = (this.#wrong.get(from) ?? 0) + 1;
    remember(this.#wrong, from, times, MAX_WRONG);
    if (times > TRIES || ++this.#inMinute > TRIES_A_MINUTE) return;
    this.#told.add(from);
    this.#t.onEvent({ kind: 'refused', from, reason: 'a wrong pairing code' });
  }

  gap(): void {}

  end(): void {}

  /** Whether the key has shown that it knows the code. */
  knows(from: string): boolean {
    return this.#known.has(from);
  }

  /** Whether the key's message is answered at all. */
  lets(from: string): boolean {
    return this.knows(from) || this.#told.delete(from);
  }
}

/**
 * Pairs with the server of a mailbox, by a code that its operator has told us.
 *
 * @returns the DID of the server, which has proved that it knows the code
 * @throws an {@link RpcError} 1004 if the code is wrong, or no longer valid
 * @throws a {@link TechnocoreError} `bad_code` if it cannot be a code; `not_paired` if the one who answered does not know
 * it; `not_offered` if nobody answers
 * @throws what {@link call} throws
 */
export async function pair(
  mailbox: string,
  code: string,
  signer: Signer,
  o: CallOptions & { replyTo: string },
): Promise<string> {
  normalCode(code);
  const room = pairingRoom(mailbox);
  // Anybody can answer this. The proof below shows whether it was the server.
  const hello = proofOf(code, 'caller', mailbox, '', signer.did);
  const told = await asked(call<Json>(room, 'pair', { hello }, signer, o));
  const server = isObject(told) ? told['did'] : undefined;
  const failed = (): TechnocoreError =>
    new TechnocoreError('not_paired', 'the side that answered does not know the code');
  if (typeof server !== 'string' || !isDid(server)) throw failed();
  const proof = proofOf(code, 'caller', mailbox, server, signer.did);
  const answer = await asked(call<Json>(room, 'pair', { proof }, signer, { ...o, peer: server }));
  const shown = isObject(answer) ? answer['proof'] : undefined;
  if (!isProof(shown, proofOf(code, 'server', mailbox, server, signer.did))) throw failed();
  return server;
}

/** The error for a call that got no answer: in terms of the code, not of the room for pairing. */
async function asked(answer: Promise<Json>): Promise<Json> {
  try {
    return await answer;
  } catch (cause) {
    // With a cause, the service did not answer, or another key did.
    if (!TechnocoreError.is(cause) || cause.code !== 'call_timeout' || cause.cause !== undefined) throw cause;
    throw new TechnocoreError(
      'not_offered',
      'this code is not being offered: it was used, or has expired, or its `mcp serve` has ended',
      cause,
    );
  }
}
