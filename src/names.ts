/**
 * Names and identities: the grammar of rooms and notes, the classes of a room, did:key, and the check of a signature.
 *
 * @module
 */
import { concat, fromBase58, fromBase64url, isWellFormed, toBase58, toHex, utf8 } from './bytes.ts';
import { ed25519Verify, sha256 } from './crypto.ts';
import { BadKey, BadName } from './errors.ts';

/** True for a room, nick, namespace or key: `[a-z0-9][a-z0-9_-]{0,47}`. */
export function isName(name: unknown): boolean {
  return typeof name === 'string' && /^[a-z0-9][a-z0-9_-]{0,47}$/.test(name);
}

/**
 * The name itself.
 *
 * @param what what the name names, for the error: `room`, `nick`, `namespace`, `key`
 * @throws BadName outside the grammar of {@link isName}
 */
export function checkName(name: unknown, what: string): string {
  if (isName(name)) return name as string;
  throw new BadName(name, `a ${what} is 1 to 48 of a-z 0-9 _ - and begins with a letter or digit`);
}

/** True for a nonce: 1 to 19 decimal digits. */
export function isNonce(nonce: unknown): nonce is string {
  return typeof nonce === 'string' && /^\d{1,19}$/.test(nonce);
}

/** What the leading segments of a room's name make of it. */
export interface RoomClasses {
  /** Private: not listed. */
  readonly p: boolean;
  /** Mailbox: takes signed writes only. */
  readonly mb: boolean;
  /** Can be owned. */
  readonly d: boolean;
  /** Ephemeral: old messages are no longer returned. */
  readonly e: boolean;
}

/** The classes of a room: its leading `-`-separated segments while each is one of them; the last one never is. @throws BadName no text */
export function roomClasses(room: string): RoomClasses {
  const classes = { p: false, mb: false, d: false, e: false };
  if (typeof room !== 'string') throw new BadName(room, 'a room');
  const segments = room.split('-');
  segments.pop();
  for (const segment of segments) {
    if (!Object.hasOwn(classes, segment)) break;
    classes[segment as keyof RoomClasses] = true;
  }
  return classes;
}

// Multicodec ed25519-pub. With its two bytes in front, base58 of 32 bytes always is `6Mk` and 44 characters more.
const ED25519_PUB = [0xed, 0x01];

/**
 * The `did:key` of an Ed25519 public key, 56 characters.
 *
 * @throws BadKey not 32 bytes
 */
export function didFromPublicKey(publicKey: Uint8Array): string {
  if (publicKey.length !== 32) throw new BadKey('an Ed25519 public key has 32 bytes');
  return `did:key:z${toBase58(concat(Uint8Array.from(ED25519_PUB), publicKey))}`;
}

// A program hears the same few DIDs again and again, and base 58 is a division of 34 bytes for each character.
const lately = new Map<string, Uint8Array>();
const MAX_LATELY = 256;

/** The 32 bytes in a `did:key` of an Ed25519 key; undefined for every other text. Case counts. */
export function publicKeyFromDid(did: unknown): Uint8Array | undefined {
  if (typeof did !== 'string' || did.length !== 56 || !did.startsWith('did:key:z6Mk')) return undefined;
  const known = lately.get(did);
  if (known) return known.slice();
  const bytes = fromBase58(did.slice(9));
  if (bytes?.length !== 34 || !ED25519_PUB.every((byte, i) => bytes[i] === byte)) return undefined;
  if (lately.size >= MAX_LATELY) lately.clear();
  lately.set(did, bytes.slice(2));
  return bytes.slice(2);
}

/** True for a `did:key` of an Ed25519 key as the service takes it. Whether the key is any good, {@link verify} decides. */
export function isDid(did: unknown): boolean {
  return publicKeyFromDid(did) !== undefined;
}

/**
 * Sixteen hex digits that stand for a DID in the names of notes: the first of the SHA-256 of its text.
 *
 * @throws BadName no DID
 */
export function fingerprint(did: string): string {
  if (!isDid(did)) throw new BadName(did, 'a did:key of an Ed25519 key has 56 characters and begins with did:key:z6Mk');
  return toHex(sha256(utf8(did)).subarray(0, 8));
}

/** Where a note is. */
export interface NotePath {
  readonly ns: string;
  readonly key: string;
}

/**
 * Where the identity note of a DID is.
 *
 * @throws BadName no DID
 */
export function identityNote(did: string): NotePath {
  const f = fingerprint(did);
  return { ns: `did-${f.slice(0, 2)}`, key: f.slice(2) };
}

/**
 * Where the identity note of a DID was before the service's release 0.8, and may still be.
 *
 * @throws BadName no DID
 */
export function legacyIdentityNote(did: string): NotePath {
  return { ns: 'did', key: fingerprint(did) };
}

// A number where a message has its nonce that is no nonce: 1 to 19 ASCII digits.
const BAD_NONCE = /^[^|]*\|(?!\d{1,19}\|)[\s+.-]*\p{Nd}[\s+._\p{Nd}-]*\|/u;

/**
 * Whether `sig` is the signature of `canonical` by `did`, judged as the newest services do: a signature of 86
 * characters of base64url in its only spelling, verified without the cofactor, and no `-1` or `1.0` in the place of a
 * message's nonce. A text with lone surrogates has no UTF-8 form, so nobody can have signed it. Never throws, whatever it is given.
 */
export function verify(did: string, sig: string, canonical: string): boolean {
  if (typeof sig !== 'string' || sig.length !== 86 || typeof canonical !== 'string') return false;
  const publicKey = publicKeyFromDid(did);
  const signature = fromBase64url(sig);
  if (publicKey === undefined || signature === undefined) return false;
  if (!isWellFormed(canonical) || BAD_NONCE.test(canonical)) return false;
  return ed25519Verify(publicKey, signature, utf8(canonical));
}
