/**
 * What two agents bring to a parley and what they say there, as bytes and as text: identity, secret, invite, messages,
 * handshake payloads. No I/O.
 *
 * @module
 */
import { concat, toBase64url, toHex, utf8, withPlus } from './bytes.ts';
import { check32, randomBytes, sha256, type X25519Key, x25519 } from './crypto.ts';
import { BadInvite, BadKey, DecryptError, TechnocoreError } from './errors.ts';
import { isObject } from './frames.ts';
import type { KeyPair } from './noise.ts';

/** 16 random bytes that name a channel. */
export type ChannelID = Uint8Array;
/** An X25519 public key, 32 bytes. */
export type PublicKey = Uint8Array;
/** SHA-256 of a public key, 32 bytes. */
export type NodeID = Uint8Array;
/** What a joiner shows the relay, 43 characters; it does not betray the secret it is made of. */
export type JoinToken = string;

// --- identity ---------------------------------------------------------------------------------------------------

/** The X25519 key pair of a node. The private key never shows unless asked for. */
export class Identity implements KeyPair {
  /** 32 bytes. */
  readonly publicKey: PublicKey;
  /** SHA-256 of the public key. */
  readonly id: NodeID;
  readonly #privateKey: Uint8Array;
  readonly #key: X25519Key;

  private constructor(privateKey: Uint8Array) {
    this.#privateKey = check32(privateKey, 'a private key').slice();
    this.#key = x25519(this.#privateKey);
    this.publicKey = this.#key.publicKey;
    this.id = sha256(this.publicKey);
  }

  /** A new one. */
  static generate(): Identity {
    return new Identity(randomBytes(32));
  }

  /**
   * The identity that belongs to a seed, as the MCP program of the Go package derives it.
   *
   * @throws BadKey the seed is empty
   */
  static fromSeed(seed: Uint8Array): Identity {
    if (!seed?.length) throw new BadKey('the seed is empty');
    return new Identity(sha256(concat(utf8('parley:identity-key:v1\0'), seed)));
  }

  /** @throws BadKey not 32 bytes */
  static fromPrivateKey(privateKey: Uint8Array): Identity {
    return new Identity(privateKey);
  }

  /** The private key as it was given, 32 bytes, to be stored. */
  privateKey(): Uint8Array {
    return this.#privateKey.slice();
  }

  /** What two humans compare: `plgp-exmu-qjja-5tt2`. */
  fingerprint(): string {
    return fingerprint(this.id);
  }

  /** @throws BadKey `peer` has not 32 bytes or is of small order */
  shared(peer: PublicKey): Uint8Array {
    return this.#key.shared(peer);
  }
}

/**
 * The first 80 bits of a node's id, in four groups of four.
 *
 * @throws BadKey not 32 bytes
 */
export function fingerprint(nodeId: NodeID): string {
  const digits = BigInt(`0x${toHex(check32(nodeId, 'a node id').subarray(0, 10))}`).toString(32);
  const text = digits.padStart(16, '0').replace(/./g, (c) => 'abcdefghijklmnopqrstuvwxyz234567'[parseInt(c, 32)]!);
  return text.match(/.{4}/g)!.join('-');
}

// --- invite -----------------------------------------------------------------------------------------------------

/** What an invite hides: 32 random bytes for one channel. Never shows unless asked for. */
export class Secret {
  readonly #bytes: Uint8Array;

  private constructor(bytes: Uint8Array) {
    this.#bytes = check32(bytes, 'a secret').slice();
  }

  static generate(): Secret {
    return new Secret(randomBytes(32));
  }

  /** @throws BadKey not 32 bytes */
  static from(bytes: Uint8Array): Secret {
    return new Secret(bytes);
  }

  bytes(): Uint8Array {
    return this.#bytes.slice();
  }

  /** The pre-shared key of the handshake, 32 bytes, for the two ends only. */
  psk(): Uint8Array {
    return this.#derive('psk');
  }

  /** What the relay is shown. */
  joinToken(): JoinToken {
    return toBase64url(this.#derive('join'));
  }

  #derive(label: string): Uint8Array {
    return sha256(concat(utf8(`parley:${label}`), this.#bytes));
  }
}

/**
 * Unpadded base64url as the Go package reads it: line ends are skipped, and the spare bits of the last digit may be set.
 *
 * @internal
 */
export function looseBase64url(text: string): Uint8Array | undefined {
  const digits = text.replace(/[\r\n]/g, '');
  if (!/^[\w-]*$/.test(digits) || digits.length % 4 === 1) return undefined;
  return Uint8Array.from(atob(withPlus(digits)), (c) => c.charCodeAt(0));
}

// Percent escapes as bytes, one character each: what is no ASCII afterwards fails where ASCII is needed.
function unescaped(text: string, reason: string): string {
  if (/%(?![\da-f]{2})/i.test(text)) throw new BadInvite(reason);
  return text.replace(/%(..)/g, (_, digits) => String.fromCharCode(parseInt(digits, 16)));
}

// Scheme, authority, path and fragment as Go splits them: without a scheme, three slashes begin a path.
const LINK = /^(?:([a-z][a-z\d+.-]*):|(?!\/\/\/))(?:\/\/([^/?#]*))?([^?#]*)[^#]*#?(.*)$/is;
const USER = /^[\w\-.:~!$&'()*+,;=@]*@/;
const HOST = /^(?:[\w!$&'()*+,;=<>"\-.~\x80-\uffff]*|(\[[\da-f:.]+\]))(?::\d*)?$/i;

// Go's rules for a host, without percent escapes: nearly any characters or an IPv6 address in brackets, perhaps a port.
function isHost(host: string): boolean {
  const match = HOST.exec(host);
  // Only what stands in brackets is left to the URL parser, which knows what an IPv6 address is.
  return match !== null && (match[1] === undefined || URL.canParse(`http://${match[1]}`));
}

/** The link that a human carries from the opener to the joiner. Whoever holds it may join: treat it as a secret. */
export class Invite {
  /** Host of the relay, perhaps with a port. The link has no room for a scheme or a path. */
  readonly relay: string;
  readonly channel: ChannelID;
  /** The opener's public key. */
  readonly key: PublicKey;
  readonly secret: Secret;

  /** @throws BadInvite a part that cannot stand in a link */
  constructor(o: { relay: string; channel: ChannelID; key: PublicKey; secret: Secret }) {
    if (!isHost(o?.relay)) throw new BadInvite('bad relay');
    if (o?.channel?.length !== 16) throw new BadInvite('bad channel');
    if (o.key?.length !== 32) throw new BadInvite('bad key');
    this.relay = o.relay;
    this.channel = o.channel.slice();
    this.key = o.key.slice();
    this.secret = o.secret;
  }

  /** `https://relay/i/…#k=…&s=…`; the scheme says nothing about how the relay is reached. */
  url(): string {
    const [channel, key, secret] = [this.channel, this.key, this.secret.bytes()].map(toBase64url);
    return `https://${this.relay}/i/${channel}#k=${key}&s=${secret}`;
  }

  /**
   * Reads a link exactly as the Go package does, by hand: a URL parser would accept what that refuses and change the
   * relay's spelling.
   *
   * @throws BadInvite with the part at fault, never the link
   */
  static parse(raw: string): Invite {
    const [, scheme, authority = '', rawPath = '', rawFragment = ''] = LINK.exec(raw) ?? [];
    const relay = authority.replace(USER, '');
    // A colon before the first slash is a scheme gone wrong.
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
      // The first of its name counts. Names and values are decoded a second time, as those of a form.
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

// --- what is said -----------------------------------------------------------------------------------------------

/** `say` is talk, `close` ends the channel with an outcome. */
export type Kind = 'say' | 'close';

/** One thing said. */
export interface Message {
  kind: Kind;
  text: string;
}

/** A message with the proven id of who said it. Its text is a stranger's. */
export interface Received extends Message {
  from: NodeID;
}

// The byte on the wire is the index.
const KINDS: (string | undefined)[] = [undefined, 'say', 'close'];

// Bytes that are no UTF-8 become U+FFFD: the Go package does not check what it sends. A BOM is text.
const lossy: TextDecoder = /* @__PURE__ */ new TextDecoder('utf-8', { ignoreBOM: true });

/**
 * A message as plaintext: one byte for the kind, then the text.
 *
 * @throws TechnocoreError `bad_frame`: no such kind
 */
export function marshalMessage(m: Message): Uint8Array {
  const kind = KINDS.indexOf(m?.kind);
  if (kind < 1) throw new TechnocoreError('bad_frame', 'no such kind of message');
  return concat(Uint8Array.of(kind), utf8(m.text));
}

/**
 * The message in opened bytes.
 *
 * @throws DecryptError `layout`: empty, or of an unknown kind
 */
export function unmarshalMessage(bytes: Uint8Array): Message {
  const code = bytes?.[0];
  const kind = KINDS[code!];
  if (kind === undefined) throw new DecryptError('layout', `a message of kind ${code}`);
  return { kind: kind as Kind, text: lossy.decode(bytes.subarray(1)) };
}

/** Announced in a handshake. Read by nobody yet. */
export interface Capabilities {
  push?: boolean;
}

/** What a handshake message carries beside the keys. */
export interface HandshakePayload {
  /** What the channel is about, in the opener's words. */
  topic?: string;
  capabilities: Capabilities;
}

const ESCAPED = /[<>&\u2028\u2029]/g;

/** A handshake payload, escaped to the byte as the Go package does it. */
export function marshalHandshakePayload(payload: HandshakePayload): Uint8Array {
  const push = payload?.capabilities?.push || undefined;
  const text = JSON.stringify({ topic: payload?.topic || undefined, capabilities: { push } });
  return utf8(text.replace(ESCAPED, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`));
}

/** A payload, names in any case; undefined for one that counts as absent. A handshake never fails over its payload. */
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

// By lower-case name; null and missing are the same.
function membersOf(value: unknown): Record<string, unknown> {
  if (value !== null && !isObject(value)) throw new SyntaxError();
  const entries = Object.entries(value ?? {}).filter(([, member]) => member !== null);
  return Object.fromEntries(entries.map(([name, member]) => [name.toLowerCase(), member]));
}
