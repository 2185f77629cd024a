/**
 * The signer: an Ed25519 key, the nonces it has used, and writes in its name. Rules: technocore.chat (identity and
 * signatures), RFC 8032.
 *
 * @module
 */
import { bytesOf, fromHex, isWellFormed, toBase64url, utf8 } from './bytes.ts';
import { type Ed25519Key, ed25519, hmacSha256, randomBytes, sha256 } from './crypto.ts';
import { BadKey, BadNonce, TechnocoreError } from './errors.ts';
import { MAX_NOTE, sweep } from './frames.ts';
import { type Clock, type Options, transportOf } from './http.ts';
import { openKeyDir } from './keydir.ts';
import { checkName, didFromPublicKey, fingerprint, isNonce } from './names.ts';
import { MemoryNonces, type NonceSource } from './nonces.ts';
import { type SignedMessage, saySigned } from './rooms.ts';

/** The signed value of a note that has not been sent yet: what {@link Signer.signNote} returns. */
export interface SignedNote {
  /** The signer's `did:key`. */
  did: string;
  /** The signature: 86 characters of base64url. */
  sig: string;
  /** The nonce, as decimal digits. */
  nonce: string;
  /** The value, swept. */
  value: string;
  /** What was signed: `<ns>|<key>|<nonce>|<value>`. */
  canonical: string;
}

/**
 * An identity: an Ed25519 key pair (RFC 8032) that signs messages and notes. Every caller and every server has one. The
 * secret is held in private fields and never appears in `console.log`, JSON or errors.
 *
 * The service accepts only rising nonces. {@link Signer.fromDir} stores them on disk, so that several programs can use
 * the key at the same time. The other factories count in memory from the clock, for a key that one program uses at a
 * time.
 *
 * @example
 * ```ts
 * import { Signer } from 'technocore-rpc';
 *
 * const signer = await Signer.fromDir(); // the key in ~/.technocore, created on first use
 * const { seq } = await signer.say('p-workshop-41c7', 'hello');
 * console.log(signer.did, seq);
 * ```
 */
export class Signer {
  /** The identity: `did:key:z6Mk…`, 56 characters. */
  readonly did: string;
  /** The fingerprint of the DID: the first 16 hex digits of the SHA-256 of its text. */
  readonly fingerprint: string;
  readonly #seed: Uint8Array;
  readonly #key: Ed25519Key;
  readonly #nonces: NonceSource;

  private constructor(seed: Uint8Array, nonces: (did: string) => NonceSource = () => new MemoryNonces()) {
    this.#key = ed25519(seed);
    this.#seed = seed.slice();
    this.did = didFromPublicKey(this.#key.publicKey);
    this.fingerprint = fingerprint(this.did);
    this.#nonces = nonces(this.did);
  }

  /** Makes a signer with a new random key, which is not stored anywhere. */
  static generate(): Signer {
    return new Signer(randomBytes(32));
  }

  /**
   * Makes a signer from a seed, the private key of RFC 8032.
   *
   * @param seed 32 bytes, or 64 hex digits
   * @throws a {@link BadKey} if it is neither
   */
  static fromSeed(seed: string | Uint8Array): Signer {
    const bytes = typeof seed === 'string' ? fromHex(seed) : bytesOf(seed);
    if (bytes?.length !== 32) throw new BadKey('a seed must be 32 bytes or 64 hex digits');
    return new Signer(bytes);
  }

  /**
   * Makes a signer from a text, as the service's `sign.py --seed` does: exactly 64 hex digits are the seed itself; for
   * any other text, its SHA-256 is the seed. Anybody who can guess the text has the key.
   *
   * @param text not empty
   * @throws a {@link BadKey} if it is empty, or holds a lone surrogate
   */
  static fromPassphrase(text: string): Signer {
    // An unset variable must not become a key that everybody knows.
    if (typeof text !== 'string' || text === '') throw new BadKey('the passphrase is empty');
    if (!isWellFormed(text)) throw new BadKey('the passphrase has a lone surrogate, and so no UTF-8 form');
    return new Signer((text.length === 64 && fromHex(text)) || sha256(utf8(text)));
  }

  /**
   * Makes a signer from a key directory in the layout of the service's own client: `seed` and `nonces.json`. Any number
   * of programs may use it at the same time. If the directory does not exist, it is created with a new key. The file
   * system must support hard links.
   *
   * @param dir the path of the directory; default `~/.technocore`
   * @throws a {@link BadKey} if the seed is malformed or readable by others, or the directory cannot be used
   * @throws a {@link BadNonce} if `nonces.json` is malformed, or missing although there is a seed; nothing is changed
   * then
   * @throws an {@link Unavailable} if the platform has no file system
   */
  static async fromDir(dir?: string): Promise<Signer> {
    const { seed, nonces } = await openKeyDir(dir);
    return new Signer(seed, nonces);
  }

  /**
   * Signs the UTF-8 bytes of a text with Ed25519 (RFC 8032).
   *
   * @param canonical the exact text to sign; nothing is swept or added
   * @returns the signature: 86 characters of unpadded base64url
   * @throws a {@link TechnocoreError} `bad_text` if it is not a string, or holds a lone surrogate
   */
  sign(canonical: string): string {
    if (typeof canonical !== 'string' || !isWellFormed(canonical)) {
      throw new TechnocoreError('bad_text', 'only well-formed text can be signed; sweep it first');
    }
    return toBase64url(this.#key.sign(utf8(canonical)));
  }

  /**
   * Signs a message without sending it. The text is swept first, and the signature covers the swept text.
   *
   * @param room the room for which the message is signed
   * @param nonce 1 to 19 digits, signed as given, or a safe integer; must be higher than the last nonce of this key in
   * this room (usually the time in milliseconds)
   * @param text at most 4,096 code points after the {@link sweep}
   * @throws a {@link BadName}, {@link BadNonce}, {@link EmptyText} or {@link FrameTooLong} if an argument is invalid
   */
  signMessage(room: string, nonce: string | number, text: string): SignedMessage {
    checkName(room, 'room');
    const digits = checkNonce(nonce);
    const swept = sweep(text);
    const canonical = `${room}|${digits}|${swept}`;
    return { did: this.did, sig: this.sign(canonical), nonce: digits, text: swept, canonical };
  }

  /**
   * Signs the value of a note without sending it. The value is swept first, and the signature covers the swept value.
   *
   * @param ns the namespace; the service takes signed notes in `room-owners` and `room-allow` only
   * @param key the key in the namespace
   * @param nonce as for {@link Signer.signMessage}; must be higher than the last nonce of this signer for this note key
   * in any namespace
   * @param value at most 8,192 code points after the {@link sweep}
   * @throws a {@link BadName}, {@link BadNonce}, {@link EmptyText} or {@link FrameTooLong} if an argument is invalid
   */
  signNote(ns: string, key: string, nonce: string | number, value: string): SignedNote {
    checkName(ns, 'namespace');
    checkName(key, 'key');
    const digits = checkNonce(nonce);
    const swept = sweep(value, MAX_NOTE, 'the value of a note');
    const canonical = `${ns}|${key}|${digits}|${swept}`;
    return { did: this.did, sig: this.sign(canonical), nonce: digits, value: swept, canonical };
  }

  /**
   * Appends a signed message to a room exactly once, whatever the network does. If the response is lost, the room is
   * searched for the message before the same bytes are sent again. Retries for up to 30 seconds. Messages to one room are
   * written in the order of the calls.
   *
   * @param room the name of the room
   * @param text at most 4,096 code points after the {@link sweep}
   * @returns `seq`: the position in the room, or 0 if the message was written but can no longer be read; `nonce`: the
   * nonce used, as decimal digits
   * @throws a {@link BadName}, {@link EmptyText} or {@link FrameTooLong} before anything is sent
   * @throws a {@link MayHaveLanded} if the response was lost and the room no longer shows whether the message was
   * written
   * @throws a {@link StaleNonce} or {@link BadNonce} if no nonce was found that the service accepts
   * @throws a {@link Forbidden}, {@link DuplicateText}, {@link RateLimited}, {@link RoomBudget} or
   * {@link CapacityReached} if the service refuses
   * @throws an {@link Unavailable} if the service or the key directory could not be used in time
   * @throws the signal's reason when it aborts
   */
  async say(room: string, text: string, o: Options = {}): Promise<{ seq: number; nonce: string }> {
    const { seq, nonce } = await saySigned(transportOf(o), this, room, text, o.signal);
    return { seq, nonce };
  }

  /** @internal `NonceSource.withNonce` */
  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T> {
    return this.#nonces.withNonce(scope, clock, use, signal);
  }

  /** @internal `NonceSource.raiseNonce` */
  raiseNonce(scope: string, seen: string, clock: Clock): void {
    this.#nonces.raiseNonce(scope, seen, clock);
  }

  /**
   * A secret of 32 bytes for one purpose, derived from the seed. It reveals neither the seed nor the secret for any
   * other label.
   *
   * @internal
   */
  derive(label: string): Uint8Array {
    return hmacSha256(this.#seed, utf8(`technocore-rpc/${label}`));
  }
}

function checkNonce(nonce: string | number): string {
  const digits: unknown = Number.isSafeInteger(nonce) ? String(nonce) : nonce;
  if (isNonce(digits)) return digits;
  throw new BadNonce('a nonce is 1 to 19 digits, or a safe integer');
}
