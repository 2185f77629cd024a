/**
 * End-to-end encryption by the service's convention: a room key is offered through somebody's mailbox, and from then on
 * only the holders of that key can read the lines in the room. The operator still sees who writes, when and how much,
 * and can drop, copy and reorder lines; anybody with the key can write under any name. Rules: technocore.chat
 * (`technocore-e2e-v1`).
 *
 * @module
 */
import { bytesOf, concat, fromBase64url, fromUtf8, isWellFormed, toBase64url, toHex, utf8 } from './bytes.ts';
import { aesGcm, check32, hkdfSha256, isCanonicalX25519, randomBytes, sha256, x25519 } from './crypto.ts';
import { BadKey, checkNumbers, checkObject, checkText, DecryptError, FrameTooLong, TechnocoreError } from './errors.ts';
import { authorOf, drop } from './feed.ts';
import { MAX_TEXT } from './frames.ts';
import { type Options, retrying, sharedOf, type Transport, transportOf } from './http.ts';
import { resolveIdentity } from './identity.ts';
import { remember } from './maps.ts';
import type { Message } from './messages.ts';
import { checkName, isName } from './names.ts';
import { follow, PATIENCE_MS, placeOf, type ReadOptions, RoomCursor, read, say } from './rooms.ts';
import type { Signer } from './signer.ts';

const KEY_BYTES = 32;
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

/** The maximum length of the text in a sealed line, in UTF-8 bytes: 3,043. */
export const MAX_SEALED: number = Math.floor(((MAX_TEXT - 17) * 3) / 4) - TAG_BYTES;

/** The room key. @throws a {@link BadKey} if it does not have 32 bytes */
export const checkKey = (key: Uint8Array): Uint8Array => check32(key, 'a room key');

/** A buffer for decoding, large enough for any line. */
const boxScratch: Uint8Array = /* @__PURE__ */ new Uint8Array(MAX_TEXT);

/** Decrypts a box, given as base64url of nonce and box; undefined if it does not authenticate. */
function openBox(key: Uint8Array, nonceText: string, boxText: string): Uint8Array | undefined {
  const nonce = fromBase64url(nonceText);
  const box = fromBase64url(boxText, boxScratch);
  if (nonce?.length !== NONCE_BYTES || box === undefined || box.length < TAG_BYTES) {
    throw new DecryptError('encoding', 'nonce or sealed part is not unpadded base64url of the right length');
  }
  return aesGcm(key).open(nonce, box);
}

// --- offers -----------------------------------------------------------------------------------------------------

/**
 * Makes a new X25519 key pair (RFC 7748). Offers are sealed to the public key; keep the private key.
 *
 * @returns both keys, 32 bytes each
 */
export function x25519Generate(o: Pick<Options, 'random'> = {}): { privateKey: Uint8Array; publicKey: Uint8Array } {
  const privateKey = (checkObject(o).random ?? randomBytes)(KEY_BYTES);
  return { privateKey, publicKey: x25519(privateKey).publicKey };
}

/** A room and the key to its lines. */
export interface SealedRoom {
  /** The AES-256 key: 32 bytes. Anybody who has it can read and write. */
  key: Uint8Array;
  /** The name of the room. */
  room: string;
}

/** The key that seals an offer. */
function offerKey(shared: Uint8Array): Uint8Array {
  return hkdfSha256(shared, new Uint8Array(0), utf8('technocore-e2e-v1'), KEY_BYTES);
}

/**
 * Seals a room key to somebody's X25519 key (`technocore-e2e-v1`: X25519, HKDF-SHA256, AES-256-GCM). Nothing is sent:
 * deliver the offer as a signed message to their mailbox.
 *
 * @param peer the public key, 32 bytes or base64url. Verify whose it is, as {@link e2eOfferTo} does
 * @param o `key` and `room`: those of an existing room; default: a new key and a new `p-` room. `random`: as in
 * {@link Options}
 * @returns the offer, with the key and the room
 * @throws a {@link BadKey} if the peer's key is not a canonical X25519 public key or is of small order, or if `key`
 * does not have 32 bytes
 * @throws a {@link BadName} if `room` is not the name of a room
 * @example
 * ```ts
 * import { e2eAccept, e2eOffer, e2eOpen, e2eSeal, x25519Generate } from 'technocore-rpc';
 *
 * const bob = x25519Generate();
 * const { offer, key } = e2eOffer(bob.publicKey); // Ada delivers the offer to Bob
 * const line = e2eSeal(key, 'only we can read this');
 * const accepted = e2eAccept(offer, bob.privateKey); // Bob now has the same key, and the name of the room
 * console.log(e2eOpen(accepted.key, line)); // only we can read this
 * ```
 */
export function e2eOffer(
  peer: Uint8Array | string,
  o: Pick<Options, 'random'> & { key?: Uint8Array | undefined; room?: string | undefined } = {},
): SealedRoom & { offer: string } {
  const random = checkObject(o).random ?? randomBytes;
  const publicKey = typeof peer === 'string' ? fromBase64url(peer) : bytesOf(peer);
  if (publicKey === undefined || !isCanonicalX25519(publicKey)) {
    throw new BadKey('not a canonical X25519 public key');
  }
  const key = checkKey(o.key ?? random(KEY_BYTES));
  const room = checkName(o.room ?? `p-${toHex(random(16))}`, 'room');
  const ephemeral = x25519(random(KEY_BYTES));
  const nonce = random(NONCE_BYTES);
  const box = aesGcm(offerKey(ephemeral.shared(publicKey))).seal(nonce, concat(key, utf8(room)));
  return { offer: `e2e1 ${[ephemeral.publicKey, nonce, box].map(toBase64url).join(' ')}`, key: key.slice(), room };
}

/** True for a text that begins like an offer. Only {@link e2eAccept} tells whether it is one. */
export function isOffer(text: string): boolean {
  return text.startsWith('e2e1 ');
}

/**
 * Opens an offer. Nothing in it tells who made it; only the signature of the message that carried it does.
 *
 * @param offer the text of that message: `e2e1` and three tokens
 * @param privateKey the private key for the public key that the offer was sealed to, 32 bytes: from
 * {@link x25519Generate}, or from {@link identityKeys} if that is what you published
 * @returns the key and the room. The room may have any name, even that of a public room: check before you write there
 * @throws a {@link DecryptError} if it is not an offer, was modified, or was made for another key
 * @throws a {@link BadKey} if the private key does not have 32 bytes
 * @example
 * ```ts
 * import { e2eAccept, e2eOfferTo, e2eRead, e2eSend, identityKeys, publishIdentity, read, Signer } from 'technocore-rpc';
 *
 * const [ada, bob] = [Signer.generate(), Signer.generate()];
 * await publishIdentity(bob, { mailbox: 'mb-p-bob-77d1' });
 *
 * const offered = await e2eOfferTo(bob.did, ada); // Ada knows Bob's DID
 * await e2eSend(offered.room, offered.key, 'hello', { signer: ada });
 *
 * const { messages } = await read('mb-p-bob-77d1'); // Bob checks his mailbox
 * const offer = messages.find(({ from, text }) => from === ada.did && text.startsWith('e2e1 '))!;
 * const { room, key } = e2eAccept(offer.text, identityKeys(bob).privateKey);
 * console.log((await e2eRead(room, key)).messages[0]?.text); // hello
 * ```
 */
export function e2eAccept(offer: string, privateKey: Uint8Array): SealedRoom {
  const own = x25519(privateKey);
  const [tag, keyText, nonceText, boxText, ...more] = typeof offer === 'string' ? offer.split(' ', 5) : [];
  if (tag !== 'e2e1' || keyText === undefined || nonceText === undefined || boxText === undefined || more.length > 0) {
    throw new DecryptError('encoding', 'not an offer: e2e1 and three more tokens');
  }
  const publicKey = fromBase64url(keyText);
  if (publicKey?.length !== KEY_BYTES) {
    throw new DecryptError('encoding', 'the public key is not unpadded base64url of 32 bytes');
  }
  if (!isCanonicalX25519(publicKey)) {
    throw new DecryptError('key', 'the public key of the offer is of small order or not canonical');
  }
  const plain = openBox(offerKey(own.shared(publicKey)), nonceText, boxText);
  if (plain === undefined) throw new DecryptError('tag', 'the offer was changed, or sealed to another key');
  const room = fromUtf8(plain.subarray(KEY_BYTES));
  if (plain.length <= KEY_BYTES || !isName(room)) {
    throw new DecryptError('layout', 'the opened offer does not contain a 32-byte key and the name of a room');
  }
  return { key: plain.slice(0, KEY_BYTES), room: room! };
}

/** Where an offer is delivered, and which key it is sealed to. */
export interface Addressee {
  mailbox: string;
  /** The X25519 public key, base64url. */
  x25519: string;
}

/**
 * The mailbox and key that a DID has published and signed.
 *
 * @internal
 * @throws a {@link BadKey} if there are none
 */
export async function addresseeOf(
  did: string,
  o: Options & { allowUnsigned?: boolean | undefined },
): Promise<Addressee> {
  const { mailbox, x25519, signed } = (await resolveIdentity(did, o)) ?? {};
  if (mailbox !== undefined && x25519 !== undefined && (signed || o.allowUnsigned)) return { mailbox, x25519 };
  const found = x25519 === undefined ? 'no key' : signed === false ? 'only a key that it did not sign' : 'no mailbox';
  throw new BadKey(
    `${did} has published ${found}, so nothing can be sealed to it; its owner publishes both with publishIdentity`,
  );
}

/**
 * Offers a room key to a DID: looks up its identity note, seals the offer to the key that the DID signed, and delivers
 * it as a signed message to its mailbox. To make a group, offer the returned key and room to the others as well. For an
 * example, see {@link e2eAccept}.
 *
 * @param did the `did:key` to offer the room to; it must have called {@link publishIdentity}
 * @param signer the key that signs the offer's message
 * @param o `key` and `room`: as for {@link e2eOffer}. `allowUnsigned`: whether to seal even to a key that the DID did not
 * sign; whoever wrote that key into the note can then read everything. Default false
 * @returns the key and the room, and the mailbox that the offer was delivered to
 * @throws a {@link BadName} if it is not a `did:key`
 * @throws a {@link BadKey} if the DID has not published a signed key and mailbox
 * @throws what {@link resolveIdentity} and {@link Signer.say} throw
 */
export async function e2eOfferTo(
  did: string,
  signer: Signer,
  o: Options & { key?: Uint8Array | undefined; room?: string | undefined; allowUnsigned?: boolean | undefined } = {},
): Promise<SealedRoom & { mailbox: string }> {
  const { mailbox, x25519 } = await addresseeOf(did, o);
  const { offer, key, room } = e2eOffer(x25519, o);
  await signer.say(mailbox, offer, o);
  return { key, room, mailbox };
}

// --- lines ------------------------------------------------------------------------------------------------------

/** Prepared nonces and their base64url: 12 bytes and 16 characters each. */
let nonces: { bytes: Uint8Array; text: string; used: number } | undefined;

/** A random nonce. They are made 64 at a time: a single one would take half as long as the encryption. */
function freshNonce(): [bytes: Uint8Array, text: string] {
  if (nonces === undefined || nonces.used === 64) {
    const bytes = randomBytes(64 * NONCE_BYTES);
    nonces = { bytes, text: toBase64url(bytes), used: 0 };
    // Dropped at the end of this turn: two copies of a virtual machine must not continue with the same nonces.
    queueMicrotask(() => {
      nonces = undefined;
    });
  }
  const i = nonces.used++;
  return [nonces.bytes.subarray(12 * i, 12 * i + 12), nonces.text.slice(16 * i, 16 * i + 16)];
}

function nonceOf(bytes: Uint8Array): [bytes: Uint8Array, text: string] {
  return [bytes, toBase64url(bytes)];
}

const encoder: TextEncoder = /* @__PURE__ */ new TextEncoder();
/** A buffer for encoding texts; cleared after each use. */
const scratch: Uint8Array = /* @__PURE__ */ new Uint8Array(MAX_SEALED);

/**
 * Encrypts a text into one line for a room (AES-256-GCM). Every character is preserved: line breaks, leading and
 * trailing spaces, invisible characters.
 *
 * @param key the room key, 32 bytes
 * @param text at most 3,043 bytes of UTF-8; {@link e2eSplit} cuts longer ones
 * @param o `random`: as in {@link Options}
 * @returns the line: `<nonce>.<box>`, both base64url
 * @throws a {@link FrameTooLong} if the text is longer
 * @throws a {@link BadKey} if the key does not have 32 bytes
 * @throws a {@link TechnocoreError} `bad_text` if the text is not a string, or holds a lone surrogate
 */
export function e2eSeal(key: Uint8Array, text: string, o: Pick<Options, 'random'> = {}): string {
  if (!isWellFormed(checkText(text, 'the text')))
    throw new TechnocoreError('bad_text', 'the text has a lone surrogate, and so no UTF-8 form');
  const { random } = checkObject(o);
  const [nonce, nonceText] = random ? nonceOf(random(NONCE_BYTES)) : freshNonce();
  const { read, written } = encoder.encodeInto(text, scratch);
  try {
    if (read < text.length) throw tooLong(utf8(text).length);
    return `${nonceText}.${toBase64url(aesGcm(key).seal(nonce, scratch.subarray(0, written)))}`;
  } finally {
    scratch.fill(0, 0, written);
  }
}

function tooLong(bytes: number): FrameTooLong {
  const chars = (NONCE_BYTES * 4) / 3 + 1 + Math.ceil(((bytes + TAG_BYTES) * 4) / 3);
  return new FrameTooLong(
    chars,
    MAX_TEXT,
    `${bytes} bytes, but a sealed line holds at most ${MAX_SEALED} bytes of text`,
  );
}

/**
 * Decrypts a line of a room. Success proves that somebody with the key made the line, but not who, nor that it was made
 * for this place.
 *
 * @param key the room key, 32 bytes
 * @param line the text of a message
 * @throws a {@link DecryptError} if it is not a sealed line, was modified, or was made with another key
 * @throws a {@link BadKey} if the key does not have 32 bytes
 */
export function e2eOpen(key: Uint8Array, line: string): string {
  const dot = typeof line === 'string' ? line.indexOf('.') : -1;
  if (dot < 0) throw new DecryptError('encoding', 'not a sealed line: two parts with a dot in between');
  const plain = openBox(key, line.slice(0, dot), line.slice(dot + 1));
  if (plain === undefined) throw new DecryptError('tag', 'the line was changed, or sealed with another key');
  const text = fromUtf8(plain);
  if (text === undefined) throw new DecryptError('layout', 'the opened line is not UTF-8');
  return text;
}

/**
 * Splits a text into pieces that each fit into one sealed line. It splits between code points; joined, the pieces are
 * the text.
 *
 * @param bytes the maximum length of a piece in UTF-8 bytes, at least 4; default 3,043
 * @throws a {@link TechnocoreError} `bad_option` if `bytes` is less than 4; `bad_text` if the text is not a string
 */
export function e2eSplit(text: string, bytes: number = MAX_SEALED): string[] {
  const pieces: string[] = [];
  let from = 0;
  let used = 0;
  let at = 0;
  if (typeof bytes !== 'number' || !(bytes >= 4))
    throw new TechnocoreError('bad_option', 'the length of a piece must be at least 4 bytes');
  for (const char of checkText(text, 'the text')) {
    const code = char.codePointAt(0)!;
    const size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x1_0000 ? 3 : 4;
    if (used + size > bytes && used > 0) {
      pieces.push(text.slice(from, at));
      from = at;
      used = 0;
    }
    used += size;
    at += char.length;
  }
  pieces.push(text.slice(from));
  return pieces;
}

// --- rooms ------------------------------------------------------------------------------------------------------

/**
 * Encrypts a text and appends it to a room.
 *
 * @param room the name of the room
 * @param key the room key, 32 bytes
 * @param text at most 3,043 bytes of UTF-8
 * @param o `signer`: the key that signs the message; without one it is unsigned, from the nick `nick`, by default
 * `sealed`
 * @returns the `seq` of the message
 * @throws what {@link e2eSeal} throws; and what {@link Signer.say} or {@link say} throws
 */
export async function e2eSend(
  room: string,
  key: Uint8Array,
  text: string,
  o: Options & { signer?: Signer | undefined; nick?: string | undefined } = {},
): Promise<{ seq: number }> {
  const line = e2eSeal(key, text, o);
  if (o.signer) return { seq: (await o.signer.say(room, line, o)).seq };
  try {
    return await say(room, o.nick ?? 'sealed', line, o);
  } catch (cause) {
    if (!TechnocoreError.is(cause) || cause.code !== 'may_have_landed') throw cause;
    // Unlike other unsigned messages, this one can be recognized: nobody else can have made the line.
    const mine = (await read(room, { ...o, limit: 200 })).messages.find((m) => m.text === line);
    if (!mine) throw cause;
    return { seq: mine.seq };
  }
}

/** A line of a sealed room: with its text, or the reason why it cannot be decrypted. */
export interface SealedMessage {
  /** The position in the room. */
  seq: number;
  /**
   * The DID or nick that posted the line; `''` for a DID without a valid signature. Since nothing in the line names its
   * author, anybody with the key may have made it.
   */
  from: string;
  /** The decrypted text. */
  text?: string;
  /** Why there is no text: the line was not made with this key, or was modified. */
  error?: DecryptError;
}

/** What is remembered about one room under one key. */
interface Memory {
  /** Where each line was first seen, by its nonce. */
  places: Map<string, string>;
  /** The cursor after the last read. */
  cursor?: RoomCursor;
}

const MEMORIES = {};
const MAX_MEMORIES = 64;
const MAX_NONCES = 4096;

function memoryOf(t: Transport, room: string, key: Uint8Array): Memory {
  const memories = sharedOf(t, MEMORIES, () => new Map<string, Memory>());
  const id = toHex(sha256(concat(key, utf8(room))));
  const memory = memories.get(id) ?? { places: new Map() };
  remember(memories, id, memory, MAX_MEMORIES);
  return memory;
}

/** Decrypts a message; undefined for a line that was seen elsewhere before, which somebody copied. */
function openedIn(t: Transport, memory: Memory, room: string, key: Uint8Array, m: Message): SealedMessage | undefined {
  const { seq, text: line } = m;
  const from = m.from.startsWith('did:') ? authorOf(t, room, m) : m.from;
  let text: string;
  try {
    text = e2eOpen(key, line);
  } catch (error) {
    return { seq, from, error: error as DecryptError };
  }
  // Only lines that can be decrypted are remembered, so that only members can fill the memory.
  const nonce = line.slice(0, line.indexOf('.'));
  const place = `${seq} ${m.ts}`;
  const known = memory.places.get(nonce) ?? place;
  remember(memory.places, nonce, known, MAX_NONCES);
  if (known === place) return { seq, from, text };
  return drop(t, 'refused', { ...m, room }, { reason: 'a copy of an earlier line' });
}

/**
 * Reads and decrypts the newest lines of a sealed room. Lines that cannot be decrypted are returned with their error.
 * Copies of lines that were read before (the last 4,096 of a room are remembered) are omitted.
 *
 * @param room the name of the room
 * @param key the room key, 32 bytes
 * @param o as for {@link read}; `limit` has no effect with `since`, which returns everything after it
 * @returns `messages`: the lines, oldest first; `last`: the `since` for the next read
 * @throws a {@link BadName} if the name is not valid; a {@link BadKey} if the key does not have 32 bytes
 * @throws a {@link RingGap} if lines after `since` were lost; to continue after them, read with `since: e.oldest - 1`
 * @throws what {@link read} throws
 */
export async function e2eRead(
  room: string,
  key: Uint8Array,
  o: Options & ReadOptions = {},
): Promise<{ last: number; messages: SealedMessage[] }> {
  const own = checkKey(key);
  const t = transportOf(o);
  checkNumbers(o, ['since', 'waitMs']);
  const memory = memoryOf(t, room, own);
  const open = (messages: Message[]): SealedMessage[] =>
    messages.map((m) => openedIn(t, memory, room, own, m)).filter((m) => m !== undefined);
  if (o.since === undefined) {
    const view = await read(room, o);
    memory.cursor = new RoomCursor(t, room);
    memory.cursor.place = placeOf(view);
    return { last: view.lastSeq, messages: open(view.messages) };
  }
  // The cursor of the last read knows the room's generation. While it is in use, concurrent reads make their own.
  const cursor = memory.cursor?.since === o.since ? memory.cursor : new RoomCursor(t, room, o.since);
  delete memory.cursor;
  const deadline = t.clock.now() + (o.waitMs ?? 0) + PATIENCE_MS;
  const { value } = await retrying(t, deadline, () => cursor.next(o.waitMs ?? 0, o.signal), o.signal);
  memory.cursor = cursor;
  if (value?.gap) throw value.gap;
  return { last: cursor.since!, messages: open(value?.messages ?? []) };
}

/**
 * Yields every line of a sealed room as it arrives, decrypted. It never ends by itself: leave the loop with `break`, or
 * abort the signal. Lines that cannot be decrypted, and copies, are handled as in {@link e2eRead}.
 *
 * @param room the name of the room
 * @param key the room key, 32 bytes
 * @param o `since`: start after the line with this `seq` (0: with the first); default: only lines from now on
 * @throws a {@link BadName} if the name is not valid; a {@link BadKey} if the key does not have 32 bytes
 * @throws a {@link RingGap} if lines were lost; to continue after them, follow again with `since: e.oldest - 1`
 * @throws the signal's reason when it aborts
 */
export async function* e2eFollow(
  room: string,
  key: Uint8Array,
  o: Options & { since?: number | undefined } = {},
): AsyncGenerator<SealedMessage> {
  const own = checkKey(key);
  const t = transportOf(o);
  const memory = memoryOf(t, room, own);
  for await (const m of follow(room, o)) {
    const opened = openedIn(t, memory, room, own, m);
    if (opened) yield opened;
  }
}
