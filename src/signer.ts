/**
 * An identity that signs: an Ed25519 key, the nonces it has used, and writes in its name. Rules: wire section 8 of the
 * service.
 *
 * @module
 */
import { fromHex, isWellFormed, toBase64url, utf8 } from './bytes.ts';
import { type Ed25519Key, ed25519, hmacSha256, randomBytes, sha256 } from './crypto.ts';
import { BadKey, BadNonce, TechnocoreError } from './errors.ts';
import { MAX_NOTE, sweep } from './frames.ts';
import { type Clock, type Options, transportOf } from './http.ts';
import { openKeyDir } from './keydir.ts';
import { checkName, didFromPublicKey, fingerprint, isNonce } from './names.ts';
import { MemoryNonces, type NonceSource } from './nonces.ts';
import { type SignedMessage, saySigned } from './rooms.ts';

/** A signed note value, ready to be sent. */
export interface SignedNote {
  did: string;
  /** 86 characters of base64url. */
  sig: string;
  nonce: string;
  /** Swept. */
  value: string;
  /** What was signed: `<ns>|<key>|<nonce>|<value>`. */
  canonical: string;
}

/**
 * A key and what it signs. The secret is in private fields: it shows neither in `console.log` nor in JSON nor in errors.
 *
 * Two programs that use one key at a time need {@link Signer.fromDir}; the others count nonces in memory, by the clock.
 */
export class Signer {
  /** The identity: `did:key:z6Mk…`, 56 characters. */
  readonly did: string;
  /** 16 hex digits, the first of the SHA-256 of the DID. */
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

  /** A new key, which lives as long as this object. */
  static generate(): Signer {
    return new Signer(randomBytes(32));
  }

  /**
   * The key of a seed.
   *
   * @param seed 32 bytes, or their 64 hex digits
   * @throws BadKey neither
   */
  static fromSeed(seed: string | Uint8Array): Signer {
    const bytes = typeof seed === 'string' ? fromHex(seed) : seed;
    if (!(bytes instanceof Uint8Array) || bytes.length !== 32) throw new BadKey('a seed is 32 bytes, or 64 hex digits');
    return new Signer(bytes);
  }

  /**
   * The key that the service's `sign.py --seed` makes of a text: exactly 64 hex digits are the seed itself, of anything
   * else the seed is the SHA-256. A phrase that can be guessed makes a key that can be guessed.
   *
   * @throws BadKey empty, or not well-formed Unicode
   */
  static fromPassphrase(text: string): Signer {
    // An unset variable must not become a key that everybody has.
    if (typeof text !== 'string' || text === '') throw new BadKey('the passphrase is empty');
    if (!isWellFormed(text)) throw new BadKey('the passphrase has a lone surrogate, and so no UTF-8 form');
    return new Signer((text.length === 64 && fromHex(text)) || sha256(utf8(text)));
  }

  /**
   * The key of a directory, with its nonces kept on disk: any number of programs may use it at a time. The directory is
   * made, with a new key, when there is none. Needs a file system that has hard links.
   *
   * @param dir default `~/.technocore`
   * @throws BadKey the seed cannot be used: readable by others, ill-formed; or the directory cannot be
   * @throws BadNonce the nonce ledger is ill-formed, or missing beside a seed; it is left as it is
   * @throws Unavailable there is no file system here
   */
  static async fromDir(dir?: string): Promise<Signer> {
    const { seed, nonces } = await openKeyDir(dir);
    return new Signer(seed, nonces);
  }

  /**
   * The Ed25519 signature of a text, as 86 characters of base64url.
   *
   * @throws TechnocoreError `bad_text`: no text, or one with lone surrogates, which has no UTF-8 form
   */
  sign(canonical: string): string {
    if (typeof canonical !== 'string' || !isWellFormed(canonical)) {
      throw new TechnocoreError('bad_text', 'only well-formed text can be signed; sweep it first');
    }
    return toBase64url(this.#key.sign(utf8(canonical)));
  }

  /**
   * Signs a message without sending it. The text is swept first; send the swept one.
   *
   * @param nonce 1 to 19 digits, signed as given; or a safe integer. Above the last one of this key in this room
   * @throws BadName, BadNonce, EmptyText, FrameTooLong
   */
  signMessage(room: string, nonce: string | number, text: string): SignedMessage {
    checkName(room, 'room');
    const digits = checkNonce(nonce);
    const swept = sweep(text);
    const canonical = `${room}|${digits}|${swept}`;
    return { did: this.did, sig: this.sign(canonical), nonce: digits, text: swept, canonical };
  }

  /**
   * Signs a note value without sending it. The value is swept first; send the swept one.
   *
   * @param nonce as in {@link Signer.signMessage}; notes of one key share a counter, across namespaces
   * @throws BadName, BadNonce, EmptyText, FrameTooLong
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
   * Appends a signed message to a room exactly once, whatever the network does, or says why that cannot be known. Writes
   * of one room leave in the order of the calls.
   *
   * @returns seq: its position in the room, 0 when it landed and can no longer be read; nonce: exact digits
   * @throws BadName, EmptyText, FrameTooLong before anything is sent
   * @throws MayHaveLanded the answer was lost, and too much came since to look for the message
   * @throws StaleNonce, BadNonce no nonce can be found that the service takes
   * @throws Forbidden, DuplicateText, RateLimited, RoomBudget, CapacityReached the service refused
   * @throws Unavailable the service, or the key directory, could not be used in time
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
   * A secret for one purpose, 32 bytes, from which neither the seed nor another one can be told.
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
