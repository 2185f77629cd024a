/**
 * Pairing: how a server learns the key of one caller, and the caller the server's, by a code that a person carries from
 * one terminal to the other. The code never crosses a room; what does is a MAC of both keys and the mailbox under it, so
 * that whoever stands between the two, or answers in the place of one, gains nothing.
 *
 * It happens in a room of its own, beside the mailbox: strangers never write where the server reads. Who does not show
 * with the first message that he knows the code costs the server a look at that message, and no more: so no number of
 * strangers keeps out the one who does.
 *
 * @module
 */

import { DENIED } from './answers.ts';
import { equalBytes, toBase64url, toHex, utf8 } from './bytes.ts';
import { call } from './call.ts';
import { hmacSha256, sha256 } from './crypto.ts';
import { badParams, type Handler } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { feedOf, type Incoming, type Listener } from './feed.ts';
import { decode, isObject, type Json } from './frames.ts';
import { type Options, type Transport, transportOf } from './http.ts';
import type { CallOptions } from './line.ts';
import { remember } from './maps.ts';
import { isDid } from './names.ts';
import { serve } from './serve.ts';
import type { Signer } from './signer.ts';

/** Letters and digits that nobody takes for another one. */
const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** Characters of a code, five bits each: 130 bits. */
const CODE_LENGTH = 26;
/** How long a code is good, ms. */
export const PAIRING_MS = 600_000;
/**
 * Wrong codes of one key that are told so, and of all keys in a minute; the others meet silence. Nobody need be shut out
 * for guessing: 120 reads a minute show at most a MiB each, of which a try takes some 300 bytes. That is fewer than 2^22
 * tries while a code is good, which leaves a chance below 2^-108 that any of them, of however many keys, is right.
 */
const TRIES = 5;
const TRIES_A_MINUTE = 10;
const MINUTE_MS = 60_000;
/** Keys of which it is remembered how often they were wrong. */
const MAX_WRONG = 1024;

/** A code that nobody can guess, in groups that can be read out: 130 bits. */
export function pairingCode(random: (bytes: number) => Uint8Array): string {
  const digits = [...random(CODE_LENGTH)].map((byte) => ALPHABET[byte & 31]!).join('');
  return digits.match(/.{1,5}/g)!.join('-');
}

/**
 * The code as it was meant, however it was typed.
 *
 * @throws TechnocoreError `bad_code`: no such code. Never quotes it
 */
export function normalCode(typed: string): string {
  const code = typed.toUpperCase().replace(/[\s-]/g, '').replaceAll('O', '0').replace(/[IL]/g, '1');
  if (code.length === CODE_LENGTH && [...code].every((char) => ALPHABET.includes(char))) return code;
  throw new TechnocoreError('bad_code', `a pairing code has ${CODE_LENGTH} letters and digits`);
}

/** Where the keys that a mailbox lets in are made known: who knows the mailbox knows this room. */
export function pairingRoom(mailbox: string): string {
  return `mb-p-${toHex(sha256(utf8(`technocore-rpc/pair/${mailbox}`)).subarray(0, 12))}`;
}

/**
 * What one side shows the other to prove that it knows the code. Its own role is in it, so that it cannot be sent back.
 *
 * @param server `''` in what a caller says first, who does not know it yet
 */
function proofOf(code: string, role: 'caller' | 'server', mailbox: string, server: string, caller: string): string {
  return toBase64url(
    hmacSha256(utf8(normalCode(code)), utf8(`technocore-rpc/pair|${role}|${mailbox}|${server}|${caller}`)),
  );
}

/** Whether a stranger's value is that proof. */
function isProof(value: unknown, proof: string): boolean {
  return typeof value === 'string' && equalBytes(utf8(value), utf8(proof));
}

/** Options of {@link offerPairing}. */
export interface PairingOptions extends Options {
  /** As {@link pairingCode} makes it. */
  code: string;
  /** Keeps the key of the one caller that knew the code. What it throws is that caller's failure. */
  onPaired(did: string): void | Promise<void>;
  /** Called once callers can come. */
  onReady?: () => void;
}

/**
 * Lets one caller in that knows the code.
 *
 * @returns `paired`; `expired` after ten minutes. The code is of no use from then on
 * @throws what {@link serve} throws; the signal's reason when it has aborted before
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
    // From here on nobody else is let in, whatever comes of it.
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
    // Before whoever answers, so that it is known by then who may be.
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

/** Sees from the messages that come who knows the code, before anything is done for anybody. */
class Door implements Listener {
  readonly #t: Transport;
  readonly #code: string;
  readonly #mailbox: string;
  readonly #known = new Set<string>();
  /** How often others were wrong, of each key and in this minute; and who of them is to be told. */
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
 * Makes our key known to the server of a mailbox by a code that its operator told us.
 *
 * @returns the DID of the server, which has proved that it knows the code
 * @throws RpcError 1004: not the code, or no longer
 * @throws TechnocoreError `bad_code`; `not_paired`: who answered does not know the code; `not_offered`: nobody answers to
 * it
 * @throws as {@link call}
 */
export async function pair(
  mailbox: string,
  code: string,
  signer: Signer,
  o: CallOptions & { replyTo: string },
): Promise<string> {
  normalCode(code);
  const room = pairingRoom(mailbox);
  // Anybody may answer this; who does proves below that it is the server.
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

/** The room in which pairing happens is nobody's business: that no answer comes from it says what became of the code. */
async function asked(answer: Promise<Json>): Promise<Json> {
  try {
    return await answer;
  } catch (cause) {
    // With a cause of its own it was the service that did not answer, or another key that did.
    if (!TechnocoreError.is(cause) || cause.code !== 'call_timeout' || cause.cause !== undefined) throw cause;
    throw new TechnocoreError(
      'not_offered',
      'this code is not being offered: it was used, or has expired, or its `mcp serve` has ended',
      cause,
    );
  }
}
