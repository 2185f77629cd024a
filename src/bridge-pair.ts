/**
 * Pairing: how a server and a caller learn each other's key, with a code that a person carries from one terminal to the
 * other. The code itself is never written into a room. Only a MAC under it is, of both keys and the mailbox: it is of
 * no use to a man in the middle, or to an impostor.
 *
 * Pairing has its own room beside the mailbox, so that untrusted callers do not write where the server reads. A message
 * that does not prove knowledge of the code costs the server almost nothing, so no number of them can keep out the
 * caller that knows the code.
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

/** Letters and digits that are not easily confused. */
const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** Characters of a code, five bits each: 130 bits. */
const CODE_LENGTH = 26;
/** How long a code is valid, ms. */
export const PAIRING_MS = 600_000;
/**
 * How many wrong codes are answered, per key, and per minute for all keys; others are ignored. Guessing need not lock
 * anybody out: 120 reads a minute show at most a MiB each, and a guess takes some 300 bytes. That is less than 2^22
 * guesses while a code is valid, so the chance that any of them is right is below 2^-108.
 */
const TRIES = 5;
const TRIES_A_MINUTE = 10;
const MINUTE_MS = 60_000;
/** For how many keys wrong codes are counted. */
const MAX_WRONG = 1024;

/** Makes a code of 130 random bits, in groups that are easy to read aloud. */
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

/** The room for pairing with a mailbox. Anyone who knows the mailbox can derive it. */
export function pairingRoom(mailbox: string): string {
  return `mb-p-${toHex(sha256(utf8(`technocore-rpc/pair/${mailbox}`)).subarray(0, 12))}`;
}

/**
 * The proof with which one side shows the other that it knows the code. It covers the role, so that it cannot be
 * reflected.
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
    if (!door.knows(from)) throw new RpcError(DENIED, 'Denied: wrong pairing code');
    const proof = isObject(params) ? params['proof'] : undefined;
    if (proof === undefined) return { did };
    if (outcome !== undefined) throw new RpcError(DENIED, 'Denied: pairing has ended');
    if (!isProof(proof, proofOf(code, 'caller', mailbox, did, from)))
      throw badParams('the proof is not for this server');
    // Nobody else can pair from here on, even if the rest fails.
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
    // Listens before the server does: the door must have seen a message when the server asks whether to answer it.
    leave = await feedOf(t, room).listen(door, { signal: over.signal });
    const methods = new Map([['pair', pair]]);
    await serve(room, signer, {
      ...o,
      methods,
      allow: (from) => door.admits(from),
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

/** Finds out from messages which keys know the code, before the server handles any. */
class Door implements Listener {
  readonly #t: Transport;
  readonly #code: string;
  readonly #mailbox: string;
  readonly #known = new Set<string>();
  /** How many wrong codes each of the other keys has sent, and which of these keys get an answer. */
  readonly #wrong = new Map<string, number>();
  readonly #answerable = new Set<string>();
  /** The present minute, and how many wrong codes came in it. */
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
    this.#answerable.add(from);
    this.#t.onEvent({ kind: 'refused', from, reason: 'a wrong pairing code' });
  }

  gap(): void {}

  end(): void {}

  /** Whether the key has proved that it knows the code. */
  knows(from: string): boolean {
    return this.#known.has(from);
  }

  /** Whether to answer the key's message at all. */
  admits(from: string): boolean {
    return this.knows(from) || this.#answerable.delete(from);
  }
}

/**
 * Pairs with the server of a mailbox, using a code that its operator has shared.
 *
 * @returns the DID of the server, which has proved that it knows the code
 * @throws an {@link RpcError} 1004 if the code is wrong, or no longer valid
 * @throws a {@link TechnocoreError} `bad_code` if it cannot be a code; `not_paired` if whoever answered does not know
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
  const named = await asked(call<Json>(room, 'pair', { hello }, signer, o));
  const server = isObject(named) ? named['did'] : undefined;
  const failed = (): TechnocoreError =>
    new TechnocoreError('not_paired', 'the side that answered does not know the code');
  if (typeof server !== 'string' || !isDid(server)) throw failed();
  const proof = proofOf(code, 'caller', mailbox, server, signer.did);
  const answer = await asked(call<Json>(room, 'pair', { proof }, signer, { ...o, peer: server }));
  const shown = isObject(answer) ? answer['proof'] : undefined;
  if (!isProof(shown, proofOf(code, 'server', mailbox, server, signer.did))) throw failed();
  return server;
}

/** The answer to a call. If there is none, the error speaks of the code, not of the room for pairing. */
async function asked(answer: Promise<Json>): Promise<Json> {
  try {
    return await answer;
  } catch (cause) {
    // With a cause, the service did not answer, or another key did.
    if (!TechnocoreError.is(cause) || cause.code !== 'call_timeout' || cause.cause !== undefined) throw cause;
    throw new TechnocoreError(
      'not_offered',
      'nobody is offering this code: it was used, it has expired, or its `mcp serve` has ended',
      cause,
    );
  }
}
