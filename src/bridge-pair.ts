/**
 * Pairing: how a server learns the key of one caller, and the caller the server's, by a code that a person carries from one
 * terminal to the other. The code never crosses a room; what does is a MAC of both keys and the mailbox under it, so that
 * whoever stands between the two, or answers in the place of one, gains nothing.
 *
 * It happens in a room of its own, beside the mailbox: strangers never write where the server reads.
 *
 * @module
 */

import { DENIED } from './answers.ts';
import { equalBytes, fromBase64url, toBase64url, toHex, utf8 } from './bytes.ts';
import { type CallOptions, call } from './call.ts';
import { hmacSha256, sha256 } from './crypto.ts';
import { badParams, type Handler } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { type Options, transportOf } from './http.ts';
import { isDid } from './names.ts';
import { serve } from './serve.ts';
import type { Signer } from './signer.ts';

/** Letters and digits that nobody takes for another one. */
const ALPHABET = '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
/** Characters of a code, five bits each: 130 bits. */
const CODE_LENGTH = 26;
/** How long a code is good, ms. */
export const PAIRING_MS = 600_000;
/** Wrong codes that end it. */
const TRIES = 5;

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

/** What one side shows the other to prove that it knows the code. Its own role is in it, so that it cannot be sent back. */
function proofOf(code: string, role: 'caller' | 'server', mailbox: string, server: string, caller: string): Uint8Array {
  return hmacSha256(utf8(normalCode(code)), utf8(`technocore-rpc/pair|${role}|${mailbox}|${server}|${caller}`));
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
 * @returns `paired`; `expired` after ten minutes; `spent` after five wrong codes. The code is of no use from then on
 * @throws what {@link serve} throws
 */
export async function offerPairing(
  mailbox: string,
  signer: Signer,
  { code, onPaired, ...o }: PairingOptions,
): Promise<'paired' | 'expired' | 'spent'> {
  const { clock, onEvent } = transportOf(o);
  const { did } = signer;
  let outcome: 'paired' | 'expired' | 'spent' | undefined;
  let left = TRIES;
  const over = new AbortController();
  const end = (how: typeof outcome): void => {
    outcome ??= how;
    over.abort(new TechnocoreError('over', 'pairing has ended'));
  };
  const pair: Handler = async (params, { from }) => {
    const proof = isObject(params) ? params['proof'] : undefined;
    if (proof === undefined) return { did };
    if (typeof proof !== 'string') throw badParams('proof must be a text');
    if (outcome !== undefined) throw new RpcError(DENIED, 'Denied: pairing has ended');
    const isRight = equalBytes(fromBase64url(proof) ?? new Uint8Array(), proofOf(code, 'caller', mailbox, did, from));
    if (!isRight) {
      left--;
      onEvent({ kind: 'refused', from, reason: `a wrong pairing code; ${left} more` });
      if (left === 0) end('spent');
      throw new RpcError(DENIED, 'Denied: not the code');
    }
    // From here on nobody else is let in, whatever comes of it.
    outcome = 'paired';
    try {
      await onPaired(from);
    } finally {
      end('paired');
    }
    return { proof: toBase64url(proofOf(code, 'server', mailbox, did, from)) };
  };
  clock.sleep(PAIRING_MS, over.signal).then(
    () => end('expired'),
    () => {},
  );
  const stop = (): void => end('expired');
  o.signal?.addEventListener('abort', stop);
  try {
    const methods = new Map([['pair', pair]]);
    await serve(pairingRoom(mailbox), signer, {
      ...o,
      methods,
      signal: over.signal,
      presence: false,
      deadlineMs: 10_000,
    });
  } finally {
    o.signal?.removeEventListener('abort', stop);
    over.abort();
  }
  return outcome ?? 'expired';
}

/**
 * Makes our key known to the server of a mailbox by a code that its operator told us.
 *
 * @returns the DID of the server, which has proved that it knows the code
 * @throws RpcError 1004: not the code, or no longer
 * @throws TechnocoreError `bad_code`; `not_paired`: who answered does not know the code
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
  const told = await call<Json>(room, 'pair', {}, signer, o);
  const server = isObject(told) ? told['did'] : undefined;
  const failed = (): TechnocoreError => new TechnocoreError('not_paired', 'who answered does not know the code');
  if (typeof server !== 'string' || !isDid(server)) throw failed();
  const proof = toBase64url(proofOf(code, 'caller', mailbox, server, signer.did));
  const answer = await call<Json>(room, 'pair', { proof }, signer, { ...o, peer: server });
  const shown = isObject(answer) && typeof answer['proof'] === 'string' ? fromBase64url(answer['proof']) : undefined;
  if (!equalBytes(shown ?? new Uint8Array(), proofOf(code, 'server', mailbox, server, signer.did))) throw failed();
  return server;
}
