/**
 * End-to-end encryption as the service's convention has it: a key offered through somebody's mailbox, then a room whose
 * lines only the holders of that key can read. The operator sees who writes, when and how much; it can drop, copy and
 * reorder lines, and who holds the key can write in every name. Rules: wire section 10 of the service.
 *
 * @module
 */
import { concat, fromBase64url, fromUtf8, isWellFormed, toBase64url, toHex, utf8 } from './bytes.ts';
import { aesGcm, check32, hkdfSha256, isCanonicalX25519, randomBytes, sha256, x25519 } from './crypto.ts';
import { BadKey, checkObject, checkText, DecryptError, FrameTooLong, TechnocoreError } from './errors.ts';
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

/** UTF-8 bytes of text that one sealed line holds. */
export const MAX_SEALED: number = Math.floor(((MAX_TEXT - 17) * 3) / 4) - TAG_BYTES;

/** @throws BadKey not 32 bytes */
export function checkKey(key: Uint8Array): void {
  check32(key, 'a room key');
}

/** Where the longest box that a line can hold is decoded. */
const boxScratch: Uint8Array = /* @__PURE__ */ new Uint8Array(MAX_TEXT);

/** What was sealed under a key, from the base64url of nonce and box; undefined when it does not authenticate. */
function openBox(key: Uint8Array, nonceText: string, boxText: string): Uint8Array | undefined {
  const nonce = fromBase64url(nonceText);
  const box = fromBase64url(boxText, boxScratch);
  if (nonce?.length !== NONCE_BYTES || box === undefined || box.length < TAG_BYTES) {
    throw new DecryptError('encoding', 'nonce or sealed part is not unpadded base64url of the right length');
  }
  return aesGcm(key).open(nonce, box);
}

// --- offers -----------------------------------------------------------------------------------------------------

/** A new X25519 key pair. Keep the private key; offers are sealed to the public one. */
export function x25519Generate(o: Pick<Options, 'random'> = {}): { privateKey: Uint8Array; publicKey: Uint8Array } {
  const privateKey = (checkObject(o).random ?? randomBytes)(KEY_BYTES);
  return { privateKey, publicKey: x25519(privateKey).publicKey };
}

/** A room and the key to its lines. */
export interface SealedRoom {
  /** 32 bytes. Whoever has them reads and writes. */
  key: Uint8Array;
  room: string;
}

/** The key that seals an offer. */
function offerKey(shared: Uint8Array): Uint8Array {
  return hkdfSha256(shared, new Uint8Array(0), utf8('technocore-e2e-v1'), KEY_BYTES);
}

/**
 * Seals a room key to somebody's X25519 key. Deliver the offer, signed, to their mailbox.
 *
 * @param peer public key, 32 bytes or base64url. Know whose it is: {@link e2eOfferTo} does
 * @param o `key`, `room`: those of a room that has members already; default, a new key and a new `p-` room
 * @throws BadKey the peer's key is no key in its only spelling, or of small order; or `key` has not 32 bytes
 * @throws BadName `room` is not a room name
 * @example
 * const { offer, key, room } = e2eOffer(peerKey);
 * await signer.say(peerMailbox, offer);
 * await e2eSend(room, key, 'only we can read this', { signer });
 */
export function e2eOffer(
  peer: Uint8Array | string,
  o: Pick<Options, 'random'> & Partial<SealedRoom> = {},
): SealedRoom & { offer: string } {
  const random = checkObject(o).random ?? randomBytes;
  const publicKey = typeof peer === 'string' ? fromBase64url(peer) : peer;
  if (!(publicKey instanceof Uint8Array) || !isCanonicalX25519(publicKey)) {
    throw new BadKey('not a canonical X25519 public key');
  }
  const key = o.key ?? random(KEY_BYTES);
  checkKey(key);
  const room = checkName(o.room ?? `p-${toHex(random(16))}`, 'room');
  const ephemeral = x25519(random(KEY_BYTES));
  const nonce = random(NONCE_BYTES);
  const box = aesGcm(offerKey(ephemeral.shared(publicKey))).seal(nonce, concat(key, utf8(room)));
  return { offer: `e2e1 ${[ephemeral.publicKey, nonce, box].map(toBase64url).join(' ')}`, key: key.slice(), room };
}

/** True for a text that has the form of an offer's beginning. Whether it opens, {@link e2eAccept} tells. */
export function isOffer(text: string): boolean {
  return text.startsWith('e2e1 ');
}

/**
 * Opens an offer. Nothing in it says who made it: that is who signed the message it came in.
 *
 * @param privateKey 32 bytes, of the public key that the offer was sealed to
 * @returns the room is any name the grammar allows, public ones included: look before you write there
 * @throws DecryptError not an offer, or not for this key
 * @throws BadKey the private key has not 32 bytes
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

/** What to seal to, and where to deliver it. */
export interface Addressee {
  mailbox: string;
  /** X25519 public key, base64url. */
  x25519: string;
}

/**
 * The mailbox and key that a DID has signed.
 *
 * @internal
 * @throws BadKey there are none
 */
export async function addresseeOf(did: string, o: Options & { allowUnsigned?: boolean }): Promise<Addressee> {
  const { mailbox, x25519, signed } = (await resolveIdentity(did, o)) ?? {};
  if (mailbox !== undefined && x25519 !== undefined && (signed || o.allowUnsigned)) return { mailbox, x25519 };
  const found = x25519 === undefined ? 'no key' : signed === false ? 'only a key that it did not sign' : 'no mailbox';
  throw new BadKey(`${did} has published ${found}, so nothing can be sealed to it`);
}

/**
 * Offers a room key to a DID: resolves its identity note, seals to the key that the DID signed, and delivers the offer,
 * signed, to its mailbox. To make a group, offer what the first call returned to the others too.
 *
 * @param o `key`, `room`: as in {@link e2eOffer}; `allowUnsigned`: also seal to a key that anybody may have written
 * into the note, who then can read everything
 * @throws BadName not a did:key
 * @throws BadKey no signed key and mailbox are published
 * @throws whatever {@link Signer.say} throws
 */
export async function e2eOfferTo(
  did: string,
  signer: Signer,
  o: Options & Partial<SealedRoom> & { allowUnsigned?: boolean } = {},
): Promise<SealedRoom & { mailbox: string }> {
  const { mailbox, x25519 } = await addresseeOf(did, o);
  const { offer, key, room } = e2eOffer(x25519, o);
  await signer.say(mailbox, offer, o);
  return { key, room, mailbox };
}

// --- lines ------------------------------------------------------------------------------------------------------

/** Nonces to come, and their base64url: of each, 12 bytes are 16 characters. */
let nonces: { bytes: Uint8Array; text: string; used: number } | undefined;

/** The generator and the codec take as long for one nonce as for many, and half as long as the encryption. */
function freshNonce(): [bytes: Uint8Array, text: string] {
  if (nonces === undefined || nonces.used === 64) {
    const bytes = randomBytes(64 * NONCE_BYTES);
    nonces = { bytes, text: toBase64url(bytes), used: 0 };
    // Not kept longer than this turn: two copies of a machine must not go on with the same ones.
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
/** Where texts become bytes; never left with one in it. */
const scratch: Uint8Array = /* @__PURE__ */ new Uint8Array(MAX_SEALED);

/**
 * Seals a text as one line for a room. Every character survives: newlines, blanks at the ends, the invisible.
 *
 * @param key 32 bytes
 * @throws FrameTooLong more than 3,043 bytes of UTF-8; {@link e2eSplit} cuts
 * @throws BadKey not 32 bytes
 * @throws TechnocoreError `bad_text`: a lone surrogate, which has no UTF-8 form
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
 * The text of a sealed line. That it opens proves that a holder of the key wrote it once, somewhere; not who, not here.
 *
 * @throws DecryptError not a sealed line, or not of this key, or changed
 * @throws BadKey the key has not 32 bytes
 */
export function e2eOpen(key: Uint8Array, line: string): string {
  const dot = typeof line === 'string' ? line.indexOf('.') : -1;
  if (dot < 0) throw new DecryptError('encoding', 'not a sealed line: two parts with a dot between');
  const plain = openBox(key, line.slice(0, dot), line.slice(dot + 1));
  if (plain === undefined) throw new DecryptError('tag', 'the line was changed, or sealed with another key');
  const text = fromUtf8(plain);
  if (text === undefined) throw new DecryptError('layout', 'the opened line is not UTF-8');
  return text;
}

/**
 * Cuts a text into pieces that each fit one sealed line, between code points; joined they are the text.
 *
 * @param bytes most bytes of UTF-8 a piece may have, at least 4
 * @throws TechnocoreError `bad_option`, `bad_text`
 */
export function e2eSplit(text: string, bytes: number = MAX_SEALED): string[] {
  const pieces: string[] = [];
  let from = 0;
  let used = 0;
  let at = 0;
  if (!(bytes >= 4)) throw new TechnocoreError('bad_option', 'a piece may have at least 4 bytes');
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
 * Seals a text and appends it to a room.
 *
 * @param o `signer`: whose name it is said in; else unsigned, as `nick`, by default `sealed`
 * @throws FrameTooLong, BadKey as {@link e2eSeal}; and whatever saying throws
 */
export async function e2eSend(
  room: string,
  key: Uint8Array,
  text: string,
  o: Options & { signer?: Signer; nick?: string } = {},
): Promise<{ seq: number }> {
  const line = e2eSeal(key, text, o);
  if (o.signer) return { seq: (await o.signer.say(room, line, o)).seq };
  try {
    return await say(room, o.nick ?? 'sealed', line, o);
  } catch (cause) {
    if (!TechnocoreError.is(cause) || cause.code !== 'may_have_landed') throw cause;
    // Nobody else can have made this line, so unlike other unsigned ones it is known again.
    const mine = (await read(room, { ...o, limit: 200 })).messages.find((m) => m.text === line);
    if (!mine) throw cause;
    return { seq: mine.seq };
  }
}

/** A line of a sealed room: its text, or why it does not open. */
export interface SealedMessage {
  seq: number;
  /** DID or nick of whoever wrote the line there; `''` for a DID that is not proved. Any holder of the key may be behind it. */
  from: string;
  text?: string;
  /** A stranger's line, or one that was changed. */
  error?: DecryptError;
}

/** What is remembered of one room under one key. */
interface Memory {
  /** Nonce -> where it was first seen. */
  places: Map<string, string>;
  /** Stands behind what the last read returned. */
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

/** A message opened; undefined for a line that stood elsewhere before: somebody copied it. */
function openedIn(t: Transport, memory: Memory, room: string, key: Uint8Array, m: Message): SealedMessage | undefined {
  const { seq, text: line } = m;
  const from = m.from.startsWith('did:') ? authorOf(t, room, m) : m.from;
  let text: string;
  try {
    text = e2eOpen(key, line);
  } catch (error) {
    return { seq, from, error: error as DecryptError };
  }
  // Only lines that open are remembered, so strangers cannot fill this up.
  const nonce = line.slice(0, line.indexOf('.'));
  const place = `${seq} ${m.ts}`;
  const known = memory.places.get(nonce) ?? place;
  remember(memory.places, nonce, known, MAX_NONCES);
  if (known === place) return { seq, from, text };
  return drop(t, 'refused', { ...m, room }, { reason: 'a copy of an earlier line' });
}

/**
 * The newest lines of a sealed room, opened, oldest first. Lines that do not open are listed with their error; a copy
 * of a line that was read before (the last 4,096 of a room are known) is left out, wherever it stands.
 *
 * @param o `limit` counts only without `since`: with it, all that came is read
 * @returns `last`: the `since` of the next read
 * @throws BadName, BadKey not a room name, not 32 bytes
 * @throws RingGap lines after `since` were lost; `oldest - 1` is the `since` to go on from
 */
export async function e2eRead(
  room: string,
  key: Uint8Array,
  o: Options & ReadOptions = {},
): Promise<{ last: number; messages: SealedMessage[] }> {
  checkKey(key);
  const t = transportOf(o);
  const memory = memoryOf(t, room, key);
  const open = (messages: Message[]): SealedMessage[] =>
    messages.map((m) => openedIn(t, memory, room, key, m)).filter((m) => m !== undefined);
  if (o.since === undefined) {
    const view = await read(room, o);
    memory.cursor = new RoomCursor(t, room);
    memory.cursor.place = placeOf(view);
    return { last: view.lastSeq, messages: open(view.messages) };
  }
  // One that stands there knows the room's generation; while it is in use, others take their own.
  const cursor = memory.cursor?.since === o.since ? memory.cursor : new RoomCursor(t, room, o.since);
  delete memory.cursor;
  const deadline = t.clock.now() + (o.waitMs ?? 0) + PATIENCE_MS;
  const { value } = await retrying(t, deadline, () => cursor.next(o.waitMs ?? 0, o.signal), o.signal);
  memory.cursor = cursor;
  if (value?.gap) throw value.gap;
  return { last: cursor.since!, messages: open(value?.messages ?? []) };
}

/**
 * Every line of a sealed room as it comes, opened, without end; otherwise as {@link e2eRead}.
 *
 * @param o `since`: begin after that seq; default: only what comes from now on
 * @throws RingGap lines were lost; `oldest - 1` is the `since` to go on from
 * @throws the signal's reason when it aborts
 */
export async function* e2eFollow(
  room: string,
  key: Uint8Array,
  o: Options & { since?: number } = {},
): AsyncGenerator<SealedMessage> {
  checkKey(key);
  const t = transportOf(o);
  const memory = memoryOf(t, room, key);
  for await (const m of follow(room, o)) {
    const opened = openedIn(t, memory, room, key, m);
    if (opened) yield opened;
  }
}
