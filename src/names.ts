/**
 * Names and identities: the grammar of room and note names, room classes, `did:key`, and signature verification. Rules:
 * technocore.chat (names and room classes; identity and signatures).
 *
 * @module
 */
import { concat, fromBase58, fromBase64url, isWellFormed, toBase58, toHex, utf8 } from './bytes.ts';
import { ed25519Verify, sha256 } from './crypto.ts';
import { BadKey, BadName } from './errors.ts';

/**
 * Tells whether a value is a valid room name, nick, note namespace or note key: a string of 1 to 48 characters from
 * `a-z`, `0-9`, `_` and `-` that begins with a letter or digit.
 */
export function isName(name: unknown): boolean {
  return typeof name === 'string' && /^[a-z0-9][a-z0-9_-]{0,47}$/.test(name);
}

/**
 * Returns the name if it is valid.
 *
 * @param what what the name is for, as used in the error message: `room`, `nick`, `namespace` or `key`
 * @throws a {@link BadName} if {@link isName} is false
 */
export function checkName(name: unknown, what: string): string {
  if (isName(name)) return name as string;
  throw new BadName(name, `a ${what} is 1 to 48 characters of a-z 0-9 _ - and begins with a letter or digit`);
}

/** True for a nonce: 1 to 19 decimal digits. */
export function isNonce(nonce: unknown): nonce is string {
  return typeof nonce === 'string' && /^\d{1,19}$/.test(nonce);
}

/** The classes of a room, determined by the beginning of its name: see {@link roomClasses}. */
export interface RoomClasses {
  /** Private: the service does not list the room. */
  readonly p: boolean;
  /** Mailbox: the service takes signed messages only. */
  readonly mb: boolean;
  /** Can be owned: see {@link claimRoom}. */
  readonly d: boolean;
  /** Ephemeral: messages older than 15 minutes (on the public service) are no longer returned. */
  readonly e: boolean;
}

/**
 * Returns the classes of a room: the leading `-`-separated segments of its name, as long as each is one of `p`, `mb`, `d`
 * and `e`. The last segment is never a class.
 *
 * @param room the name of the room; not checked against the grammar of {@link isName}
 * @throws a {@link BadName} if it is not a string
 * @example
 * ```ts
 * import { roomClasses } from 'technocore-rpc';
 *
 * console.log(roomClasses('mb-p-greeter-7c1f')); // { p: true, mb: true, d: false, e: false }
 * ```
 */
export function roomClasses(room: string): RoomClasses {
  const classes = { p: false, mb: false, d: false, e: false };
  if (typeof room !== 'string') throw new BadName(room, 'a room must be a string');
  const segments = room.split('-');
  segments.pop();
  for (const segment of segments) {
    if (!Object.hasOwn(classes, segment)) break;
    classes[segment as keyof RoomClasses] = true;
  }
  return classes;
}

// The multicodec prefix ed25519-pub. With these two bytes in front, the base58 of a key is always `6Mk` and 44 more
// characters.
const ED25519_PUB = [0xed, 0x01];

/**
 * The `did:key` of an Ed25519 public key: 56 characters.
 *
 * @throws a {@link BadKey} if the key does not have 32 bytes
 */
export function didFromPublicKey(publicKey: Uint8Array): string {
  if (publicKey.length !== 32) throw new BadKey('an Ed25519 public key has 32 bytes');
  return `did:key:z${toBase58(concat(Uint8Array.from(ED25519_PUB), publicKey))}`;
}

// A cache: a program meets the same few DIDs again and again, and base58 takes a long division for each character.
const lately = new Map<string, Uint8Array>();
const MAX_LATELY = 256;

/** The 32-byte public key in a `did:key` of an Ed25519 key; undefined for any other value. Case-sensitive. */
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

/**
 * Tells whether a value is a `did:key` of an Ed25519 key in the form that the service accepts: 56 characters, beginning
 * with `did:key:z6Mk`, case-sensitive. Whether the key is usable is left to {@link verify}.
 */
export function isDid(did: unknown): boolean {
  return publicKeyFromDid(did) !== undefined;
}

/**
 * Returns the DID if it is one that {@link isDid} accepts.
 *
 * @param prefix what the error message begins with
 * @throws a {@link BadName} if it is not
 */
export function checkDid(did: unknown, prefix: string = ''): string {
  if (isDid(did)) return did as string;
  throw new BadName(did, `${prefix}a did:key of an Ed25519 key has 56 characters and begins with did:key:z6Mk`);
}

/**
 * The fingerprint of a DID, which note names use in its place: the first 16 hex digits of the SHA-256 of its text.
 *
 * @throws a {@link BadName} if it is not a DID
 */
export function fingerprint(did: string): string {
  return toHex(sha256(utf8(checkDid(did))).subarray(0, 8));
}

/** The address of a note: `/kv/<ns>/<key>` on the service. */
export interface NotePath {
  /** The namespace, a valid name: see {@link isName}. */
  readonly ns: string;
  /** The key within the namespace, a valid name: see {@link isName}. */
  readonly key: string;
}

/**
 * The address of a DID's identity note.
 *
 * @throws a {@link BadName} if it is not a DID
 */
export function identityNote(did: string): NotePath {
  const f = fingerprint(did);
  return { ns: `did-${f.slice(0, 2)}`, key: f.slice(2) };
}

/**
 * The address that a DID's identity note had before release 0.8 of the service, where it may still be.
 *
 * @throws a {@link BadName} if it is not a DID
 */
export function legacyIdentityNote(did: string): NotePath {
  return { ns: 'did', key: fingerprint(did) };
}

// A number in the position of a message's nonce that is not 1 to 19 ASCII digits.
const BAD_NONCE = /^[^|]*\|(?!\d{1,19}\|)[\s+.-]*\p{Nd}[\s+._\p{Nd}-]*\|/u;

/**
 * Verifies an Ed25519 signature (RFC 8032) as strictly as the newest services do. The signature must be canonical
 * base64url and is verified without the cofactor; neither it nor the key may contain a point of small order. A
 * malformed nonce in the position of a message's nonce, such as `-1` or `1.0`, is refused, and so is a text with lone
 * surrogates, which has no UTF-8 form. Never throws, whatever the arguments.
 *
 * To verify a message that was read from a room, use {@link verifyMessage}; to learn why it fails, {@link explain}.
 *
 * @param did the signer's `did:key`
 * @param sig 86 characters of unpadded base64url
 * @param canonical what was signed: `<room>|<nonce>|<text>` for a message, `<ns>|<key>|<nonce>|<value>` for a note
 * @returns true only if the signature is valid
 * @example
 * ```ts
 * import { Signer, verify } from 'technocore-rpc';
 *
 * const { did, sig, canonical } = Signer.generate().signMessage('lobby', 1, 'hello');
 * console.log(verify(did, sig, canonical), verify(did, sig, `${canonical}!`)); // true false
 * ```
 */
export function verify(did: string, sig: string, canonical: string): boolean {
  if (typeof sig !== 'string' || sig.length !== 86 || typeof canonical !== 'string') return false;
  const publicKey = publicKeyFromDid(did);
  const signature = fromBase64url(sig);
  if (publicKey === undefined || signature === undefined) return false;
  if (!isWellFormed(canonical) || BAD_NONCE.test(canonical)) return false;
  return ed25519Verify(publicKey, signature, utf8(canonical));
}
