/**
 * The data of parley, protocol version 1, as bytes and text: identity, secret, invite, messages, handshake payloads. No
 * I/O. Where the protocol leaves a choice, it follows the Go package of the same name.
 *
 * @module
 */
import { bytesOf, concat, toBase64url, toHex, utf8, withPlus } from './bytes.ts';
import { check32, checkBytes, randomBytes, sha256, type X25519Key, x25519 } from './crypto.ts';
import { BadInvite, checkText, DecryptError, TechnocoreError } from './errors.ts';
import { isObject } from './frames.ts';
import type { KeyPair } from './noise.ts';

/** The name of a channel: 16 random bytes. */
export type ChannelID = Uint8Array;
/** An X25519 public key: 32 bytes. */
export type PublicKey = Uint8Array;
/** The id of a node: the SHA-256 of its public key, 32 bytes. */
export type NodeID = Uint8Array;
/**
 * The token that a joiner shows the relay: 43 characters of base64url, derived from the secret without revealing it.
 */
export type JoinToken = string;

// --- identity ---------------------------------------------------------------------------------------------------

/**
 * The identity of a node: an X25519 key pair (RFC 7748). The private key is held in a private field; only
 * {@link Identity.privateKey} reveals it.
 */
export class Identity implements KeyPair {
  /** The public key, 32 bytes. */
  readonly publicKey: PublicKey;
  /** The id of the node: the SHA-256 of the public key, 32 bytes. */
  readonly id: NodeID;
  readonly #privateKey: Uint8Array;
  readonly #key: X25519Key;

  private constructor(privateKey: Uint8Array) {
    this.#privateKey = check32(privateKey, 'a private key').slice();
    this.#key = x25519(this.#privateKey);
    this.publicKey = this.#key.publicKey;
    this.id = sha256(this.publicKey);
  }

  /** Makes a new random identity. */
  static generate(): Identity {
    return new Identity(randomBytes(32));
  }

  /**
   * Derives an identity from a seed in the same way as the MCP program of the Go package.
   *
   * @param seed any bytes, at least one. Anybody who can guess them has the identity
   * @throws `BadKey` if the seed is empty, or not a `Uint8Array`
   */
  static fromSeed(seed: Uint8Array): Identity {
    return new Identity(sha256(concat(utf8('parley:identity-key:v1\0'), checkBytes(seed, 'the seed', 1))));
  }

  /**
   * Makes an identity from a stored private key.
   *
   * @throws `BadKey` if it does not have 32 bytes
   */
  static fromPrivateKey(privateKey: Uint8Array): Identity {
    return new Identity(privateKey);
  }

  /** The private key, 32 bytes, for storage. */
  privateKey(): Uint8Array {
    return this.#privateKey.slice();
  }

  /** The fingerprint for people to compare: four groups of four characters, such as `plgp-exmu-qjja-5tt2`. */
  fingerprint(): string {
    return fingerprint(this.id);
  }

  /**
   * The secret shared with a public key, 32 bytes (X25519).
   *
   * @throws `BadKey` if `peer` does not have 32 bytes, or is of small order
   */
  shared(peer: PublicKey): Uint8Array {
    return this.#key.shared(peer);
  }
}

/**
 * The fingerprint of a node: the first 80 bits of its id in base32, as four groups of four characters.
 *
 * @throws `BadKey` if the id does not have 32 bytes
 */
export function fingerprint(nodeId: NodeID): string {
  const digits = BigInt(`0x${toHex(check32(nodeId, 'a node id').subarray(0, 10))}`).toString(32);
  const text = digits.padStart(16, '0').replace(/./g, (c) => 'abcdefghijklmnopqrstuvwxyz234567'[parseInt(c, 32)]!);
  return text.match(/.{4}/g)!.join('-');
}

// --- invite -----------------------------------------------------------------------------------------------------

/** The secret of an invite: 32 random bytes for one channel, held in a private field. */
export class Secret {
  readonly #bytes: Uint8Array;

  private constructor(bytes: Uint8Array) {
    this.#bytes = check32(bytes, 'a secret').slice();
  }

  /** Makes a new random secret. */
  static generate(): Secret {
    return new Secret(randomBytes(32));
  }

  /**
   * Makes a secret from its bytes.
   *
   * @throws `BadKey` if there are not 32
   */
  static from(bytes: Uint8Array): Secret {
    return new Secret(bytes);
  }

  /** The secret itself, 32 bytes. */
  bytes(): Uint8Array {
    return this.#bytes.slice();
  }

  /** The pre-shared key of the handshake, 32 bytes: for the two ends only. */
  psk(): Uint8Array {
    return this.#derive('psk');
  }

  /** The token that opens and joins the channel at the relay. */
  joinToken(): JoinToken {
    return toBase64url(this.#derive('join'));
  }

  #derive(label: string): Uint8Array {
    return sha256(concat(utf8(`parley:${label}`), this.#bytes));
  }
}

/**
 * Decodes unpadded base64url as the Go package does: line breaks are skipped, and spare bits of the last digit may be
 * set.
 *
 * @internal
 */
export function looseBase64url(text: string): Uint8Array | undefined {
  const digits = text.replace(/[\r\n]/g, '');
  if (!/^[\w-]*$/.test(digits) || digits.length % 4 === 1) return undefined;
  return Uint8Array.from(atob(withPlus(digits)), (c) => c.charCodeAt(0));
}

// Percent escapes become one character per byte. What is not ASCII then fails where ASCII is required.
function unescaped(text: string, reason: string): string {
  if (/%(?![\da-f]{2})/i.test(text)) throw new BadInvite(reason);
  return text.replace(/%(..)/g, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
}

// Scheme, authority, path and fragment as Go splits them: without a scheme, three slashes start a path.
const LINK = /^(?:([a-z][a-z\d+.-]*):|(?!\/\/\/))(?:\/\/([^/?#]*))?([^?#]*)[^#]*#?(.*)$/is;
const USER = /^[\w\-.:~!$&'()*+,;=@]*@/;
const HOST = /^(?:[\w!$&'()*+,;=<>"\-.~\x80-\uffff]*|(\[[\da-f:.]+\]))(?::\d*)?$/i;

// Go's rules for a host, without percent escapes: nearly any characters or a bracketed IPv6 address, perhaps with a
// port.
function isHost(host: string): boolean {
  const match = HOST.exec(host);
  // Only the part in brackets is left to the URL parser, which knows IPv6 addresses.
  return match !== null && (match[1] === undefined || URL.canParse(`http://${match[1]}`));
}

/**
 * An invite: the link that a person carries from the opener to the joiner. Anybody who has it can join: treat it as a
 * secret.
 */
export class Invite {
  /** The host of the relay, perhaps with a port. A link cannot hold the relay's scheme or path. */
  readonly relay: string;
  /** The name of the channel, 16 bytes. */
  readonly channel: ChannelID;
  /** The opener's public key, 32 bytes. */
  readonly key: PublicKey;
  /** The secret of the channel. */
  readonly secret: Secret;

  /**
   * Makes an invite from its parts. {@link Session.open} does this for you.
   *
   * @throws a {@link BadInvite} if a part cannot be expressed in a link
   */
  constructor(o: { relay: string; channel: ChannelID; key: PublicKey; secret: Secret }) {
    if (!isHost(o?.relay)) throw new BadInvite('bad relay');
    const [channel, key] = [bytesOf(o?.channel), bytesOf(o?.key)];
    if (channel?.length !== 16) throw new BadInvite('bad channel');
    if (key?.length !== 32) throw new BadInvite('bad key');
    if (typeof o.secret?.joinToken !== 'function') throw new BadInvite('bad secret');
    this.relay = o.relay;
    this.channel = channel.slice();
    this.key = key.slice();
    this.secret = o.secret;
  }

  /** The link: `https://<relay>/i/…#k=…&s=…`. The scheme is always `https`, however the relay is reached. */
  url(): string {
    const [channel, key, secret] = [this.channel, this.key, this.secret.bytes()].map(toBase64url);
    return `https://${this.relay}/i/${channel}#k=${key}&s=${secret}`;
  }

  /**
   * Parses a link exactly as the Go package does. (It uses no URL parser, which would accept links that Go refuses, and
   * change the spelling of the relay.)
   *
   * @throws a {@link BadInvite} if it is not an invite; `reason` says what is wrong
   */
  static parse(raw: string): Invite {
    if (typeof raw !== 'string') throw new BadInvite('parse');
    const [, scheme, authority = '', rawPath = '', rawFragment = ''] = LINK.exec(raw) ?? [];
    const relay = authority.replace(USER, '');
    // A colon before the first slash is a malformed scheme.
    if (/^[^#]*[\0-\x1f\x7f]/.test(raw) || (!scheme && /^[^/]*:/.test(rawPath)) || !isHost(relay)) {
      throw new BadInvite('parse');
    }
    const path = unescaped(rawPath, 'parse');
    const fragment = unescaped(rawFragment, 'parse');
    if (!path.startsWith('/i/')) throw new BadInvite('missing channel');
    const channel = looseBase64url(path.slice(3));
    if (channel?.length !== 16) throw new BadInvite('bad channel');
    const bad = 'bad fragment';
    if (fragment.includes(';')) throw new BadInvite(bad);
    const part = (name: 'k' | 's', reason: string): Uint8Array => {
      // The first part with a name counts. Names and values are decoded a second time, like form data.
      const pairs = fragment.split('&').map((pair) => /^([^=]*)=?(.*)$/s.exec(pair.replaceAll('+', ' '))!.slice(1));
      const [, value] =
        pairs.map((pair) => pair.map((text) => unescaped(text, bad))).find(([key]) => key === name) ?? [];
      const bytes = looseBase64url(value ?? '');
      if (bytes?.length !== 32) throw new BadInvite(reason);
      return bytes;
    };
    return new Invite({ relay, channel, key: part('k', 'bad key'), secret: Secret.from(part('s', 'bad secret')) });
  }
}

// --- messages ---------------------------------------------------------------------------------------------------

/** The kind of a message: `say` is ordinary text; `close` ends the channel, and its text is the outcome. */
export type Kind = 'say' | 'close';

/** A message of a parley. */
export interface Message {
  /** The kind of message. */
  kind: Kind;
  /** Its text; may be empty. */
  text: string;
}

/** A received message. Its text is untrusted. */
export interface Received extends Message {
  /** The id of the sender, proved by the handshake. */
  from: NodeID;
}

// The byte on the wire is the index.
const KINDS: (string | undefined)[] = [undefined, 'say', 'close'];

// Bytes that are not UTF-8 become U+FFFD, since the Go package does not check what it sends. A BOM is part of the text.
const lossy: TextDecoder = /* @__PURE__ */ new TextDecoder('utf-8', { ignoreBOM: true });

/**
 * Encodes a message as the plaintext of a frame: one byte for the kind, then the text.
 *
 * @throws a {@link TechnocoreError} `bad_frame` if there is no such kind; `bad_text` if the text is not a string
 */
export function marshalMessage(m: Message): Uint8Array {
  const kind = KINDS.indexOf(m?.kind);
  if (kind < 1) throw new TechnocoreError('bad_frame', 'no such kind of message');
  return concat(Uint8Array.of(kind), utf8(checkText(m.text, 'the text')));
}

/**
 * Decodes the plaintext of a frame. Bytes that are not UTF-8 become U+FFFD.
 *
 * @throws `DecryptError` (`layer: 'layout'`) if it is empty, or of an unknown kind
 */
export function unmarshalMessage(bytes: Uint8Array): Message {
  const own = bytesOf(bytes);
  const code = own?.[0];
  const kind = KINDS[code!];
  if (!own || kind === undefined) throw new DecryptError('layout', `a message of kind ${code}`);
  return { kind: kind as Kind, text: lossy.decode(own.subarray(1)) };
}

/** Capabilities that a handshake announces. The protocol makes no use of them yet. */
export interface Capabilities {
  /** Whether the sender can be notified by push. */
  push?: boolean;
}

/** The payload of a handshake message. */
export interface HandshakePayload {
  /** What the channel is about, in the opener's words. */
  topic?: string;
  /** What the sender can do. */
  capabilities: Capabilities;
}

const ESCAPED = /[<>&\u2028\u2029]/g;

/** Encodes a handshake payload as JSON, byte for byte as the Go package does. */
export function marshalHandshakePayload(payload: HandshakePayload): Uint8Array {
  const push = payload?.capabilities?.push || undefined;
  const text = JSON.stringify({ topic: payload?.topic || undefined, capabilities: { push } });
  return utf8(text.replace(ESCAPED, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`));
}

/**
 * Decodes a handshake payload. Never throws, since a handshake never fails because of its payload.
 *
 * @returns the payload, its member names read without regard to case; undefined if it is malformed
 */
export function unmarshalHandshakePayload(bytes: Uint8Array): HandshakePayload | undefined {
  try {
    const { topic = '', capabilities = {} } = membersOf(JSON.parse(lossy.decode(bytes)));
    const { push = false } = membersOf(capabilities);
    if (typeof topic !== 'string' || typeof push !== 'boolean') return undefined;
    return { ...(topic && { topic }), capabilities: push ? { push } : {} };
  } catch {
    return undefined;
  }
}

// By lower-case name; null means missing.
function membersOf(value: unknown): Record<string, unknown> {
  if (value !== null && !isObject(value)) throw new SyntaxError();
  const entries = Object.entries(value ?? {}).filter(([, member]) => member !== null);
  return Object.fromEntries(entries.map(([name, member]) => [name.toLowerCase(), member]));
}
