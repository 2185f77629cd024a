/**
 * Sealed rooms as channels: `serve` and `call` over lines that the operator cannot read.
 *
 * The lines of the `technocore-e2e-v1` convention have no associated data, so anybody who can write to the room can
 * copy one: under another name, to another place, or a second time. Each text in a sealed channel therefore begins with
 * a line that says who wrote it, for whom, in which room and with which nonce, and it counts only in a message that
 * matches. The service accepts a key's nonces in a room only once, and only rising; so does the reader.
 *
 * @module
 */
import { concat, toBase64url, utf8 } from './bytes.ts';
import { type Channel, checkLatency, type Incoming, type Listener, type SendOptions, type Sent } from './channel.ts';
import { aesGcm, sha256 } from './crypto.ts';
import { checkKey, e2eOpen, e2eSeal, e2eSplit, MAX_SEALED } from './e2e.ts';
import { BadName, FrameTooLong } from './errors.ts';
import { authorOf, drop, type Feed, feedOf } from './feed.ts';
import { codePoints, MAX_TEXT } from './frames.ts';
import { type Options, orAbort, retrying, type Transport, transportOf } from './http.ts';
import { remember } from './maps.ts';
import { checkName, isDid } from './names.ts';
import { checkSigner, PATIENCE_MS, type Place, readView, saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';
import { type ChunkSeal, type Spill, spillOf } from './spill.ts';

/** The first line of a sealed text, by its fields: `frame/1 alice bob p-room 1700 … 1700 1/1`. */
const FRAME = 'frame/1';
/** In place of the recipient: all members. */
const ALL = '*';
/** In place of the session: none. */
export const NONE = '-';

/**
 * The maximum length of the first line of a part, bytes: two DIDs, a room, two nonces, a session, the part's number.
 */
const HEAD_BYTES = 256;
const PART_BYTES = MAX_SEALED - HEAD_BYTES;
/** How many frames can wait for further parts. */
const MAX_PENDING = 64;
/** For how many members the nonces are remembered individually. */
const MAX_FLOORS = 4096;
/** How many frames are kept for a session that has no listener yet. */
const MAX_BACKLOG = 256;
const NONCE_BYTES = 12;

/** A decrypted line whose head matches its message. */
export interface Opened {
  kind: string;
  /** The fields of the head that depend on the kind, after the recipient. */
  fields: string[];
  text: string;
}

/** @internal A room, its key and the signer of this side: everything needed to write and check lines. */
export class Seal {
  readonly room: string;
  readonly signer: Signer;
  readonly t: Transport;
  readonly #key: Uint8Array;
  /** The digest of the key, for signatures that cover it. */
  readonly keyId: string;

  constructor(t: Transport, room: string, key: Uint8Array, signer: Signer) {
    const own = checkKey(key);
    this.room = checkName(room, 'room');
    this.#key = own.slice();
    this.keyId = toBase64url(sha256(own));
    this.signer = signer;
    this.t = t;
  }

  /** Seals and writes one line. */
  say(kind: string, to: string, text: (nonce: string) => string, o: SendOptions = {}): Promise<Sent> {
    const { t, signer, room } = this;
    const line = (nonce: string): string =>
      e2eSeal(this.#key, `${kind} ${signer.did} ${to} ${room} ${nonce} ${text(nonce)}`, t);
    return saySigned(t, signer, room, line, o.signal, o.deadline);
  }

  /** The contents of a message for us, if its line can be decrypted and was made for exactly this message. */
  open(m: Incoming): Opened | undefined {
    let plain: string;
    try {
      plain = e2eOpen(this.#key, m.text);
    } catch (cause) {
      return drop(this.t, 'skipped', m, { cause });
    }
    const end = plain.indexOf('\n');
    const [kind, from, to, room, nonce, ...fields] = (end < 0 ? plain : plain.slice(0, end)).split(' ');
    if (from !== m.from || room !== this.room || nonce !== m.nonce) {
      return this.refuse(m, 'a sealed line that was not made for this message');
    }
    if (to !== this.signer.did && to !== ALL) return undefined;
    return { kind: kind!, fields: [to, ...fields], text: end < 0 ? '' : plain.slice(end + 1) };
  }

  /**
   * Encrypts chunks for notes. The associated data keeps chunks and lines from being mistaken for each other.
   */
  get chunks(): ChunkSeal {
    const aead = aesGcm(this.#key);
    const what = utf8('technocore-rpc/spill');
    return {
      seal: (chunk) => {
        const nonce = this.t.random(NONCE_BYTES);
        return concat(nonce, aead.seal(nonce, chunk, what));
      },
      open: (sealed) =>
        sealed.length > NONCE_BYTES
          ? aead.open(sealed.slice(0, NONCE_BYTES), sealed.slice(NONCE_BYTES), what)
          : undefined,
    };
  }

  /** Emits an event about an ignored message. */
  refuse(m: Incoming, reason: string): undefined {
    return drop(this.t, 'refused', m, { reason });
  }
}

// --- the channel ------------------------------------------------------------------------------------------------

/**
 * A channel through a sealed room, whose lines the operator cannot read: from {@link sealed} or {@link connectSealed}.
 */
export interface SealedChannel extends Channel {
  /** The DID at the other end; undefined for a group. */
  readonly peer: string | undefined;
}

/** @internal */
export class SealedLine implements SealedChannel {
  readonly room: string;
  readonly self: string;
  readonly peer: string | undefined;
  readonly spill: Spill;
  readonly #seal: Seal;
  readonly #session: string;
  readonly #feed: Feed;
  readonly #isFast: boolean;
  /** Each message is opened once, however many listeners there are. */
  readonly #opened = new WeakMap<Incoming, Incoming | undefined>();
  /** The highest nonce accepted from each member. */
  readonly #floors = new Map<string, bigint>();
  #letGo = -1n;
  readonly #pending = new Map<string, string[]>();
  #backlog: Incoming[] | undefined;
  #release: (() => void) | undefined;
  #history: Promise<void> | undefined;
  /** Counts the parts of frames that came. */
  heard = 0;

  constructor(seal: Seal, peer: string | undefined, session: string, latency: 'fast' | 'frugal' = 'fast') {
    this.room = seal.room;
    this.self = seal.signer.did;
    this.peer = peer;
    this.spill = spillOf(seal.t, seal.signer, seal.room, seal.chunks);
    this.#seal = seal;
    this.#session = session;
    this.#isFast = latency === 'fast';
    this.#feed = feedOf(seal.t, seal.room);
  }

  async send(text: string, o: SendOptions = {}): Promise<Sent> {
    const chars = codePoints(text);
    if (chars > MAX_TEXT) throw new FrameTooLong(chars, MAX_TEXT);
    const parts = e2eSplit(text, PART_BYTES);
    let first = '';
    let sent: Sent | undefined;
    for (const [i, part] of parts.entries()) {
      sent = await this.#seal.say(
        FRAME,
        this.peer ?? ALL,
        (nonce) => {
          if (i === 0) first = nonce;
          return `${this.#session} ${first} ${i + 1}/${parts.length}\n${part}`;
        },
        o,
      );
    }
    this.#feed.nudge();
    return sent!;
  }

  async listen(listener: Listener, signal?: AbortSignal): Promise<() => void> {
    // A session is new to both ends. In an older room, the history is read first: none of it is new.
    if (this.#session === NONE) await orAbort((this.#history ??= this.#readHistory()), signal);
    for (const m of this.#backlog?.splice(0) ?? []) listener.message(m);
    this.#backlog = undefined;
    const nudged = this.#isFast && listener.awaits === true;
    const listening = this.#feed.listen(this.#through(listener), { signal, nudged });
    this.#release?.();
    this.#release = undefined;
    return listening;
  }

  /** Keeps what comes from a place on, until somebody listens. */
  async hold(from: Place): Promise<void> {
    const backlog: Incoming[] = (this.#backlog = []);
    const keep: Listener = {
      message: (m) => {
        if (backlog.length < MAX_BACKLOG) backlog.push(m);
        else this.#seal.refuse(m, 'nobody listens yet');
      },
      gap: () => {},
      end: () => {},
    };
    this.#release = await this.#feed.listen(this.#through(keep), { from });
  }

  /** Stops keeping what comes, if nobody ever listened. */
  close(): void {
    this.#release?.();
    this.#release = undefined;
  }

  #through(listener: Listener): Listener {
    return {
      message: (m) => {
        if (!this.#opened.has(m)) this.#opened.set(m, this.#open(m));
        const frame = this.#opened.get(m);
        if (frame) listener.message(frame);
      },
      gap: (gap, before) => listener.gap(gap, before),
      end: (cause) => listener.end(cause),
      expects: () => listener.expects?.() ?? 0,
      stagger: listener.stagger,
    };
  }

  async #readHistory(): Promise<void> {
    const { t, room } = this.#seal;
    try {
      const deadline = t.clock.now() + PATIENCE_MS;
      const { messages } = await retrying(t, deadline, () => readView(t, room, { limit: 200 }));
      for (const m of messages) this.#open({ ...m, from: authorOf(t, room, m), room });
    } catch (cause) {
      this.#history = undefined;
      throw cause;
    }
  }

  /** The frame that a message completes, if the message belongs to this channel and is new. */
  #open(m: Incoming): Incoming | undefined {
    if (m.from === this.self) return undefined;
    if (m.from === '' || m.nonce === undefined) return this.#seal.refuse(m, 'not signed');
    const opened = this.#seal.open(m);
    if (opened?.kind !== FRAME) return undefined;
    const [to, session, first, part] = opened.fields as [string, string?, string?, string?];
    const [, i, count] = /^([1-8])\/([1-8])$/.exec(part ?? '') ?? [];
    if (session !== this.#session || (session !== NONE && to === ALL)) return this.#seal.refuse(m, 'another session');
    if (this.peer !== undefined && m.from !== this.peer) return this.#seal.refuse(m, 'not the peer');
    if (first === undefined || i === undefined || i > count!) return this.#seal.refuse(m, 'not a frame');
    if (!this.#isNew(m.from, BigInt(m.nonce))) return this.#seal.refuse(m, 'an old message');
    this.heard++;
    const text = this.#joined(`${m.from} ${first}`, Number(i), Number(count), opened.text);
    return text === undefined ? undefined : { ...m, text, room: this.room };
  }

  #isNew(from: string, nonce: bigint): boolean {
    if (nonce <= (this.#floors.get(from) ?? this.#letGo)) return false;
    const [, oldest] = this.#floors.entries().next().value ?? [];
    if (this.#floors.size >= MAX_FLOORS && !this.#floors.has(from)) {
      // A forgotten member's nonce becomes a floor for all, unless it is ahead of the clock and would lock others out.
      if (oldest! > this.#letGo && oldest! <= BigInt(Math.floor(this.#seal.t.clock.now()))) this.#letGo = oldest!;
    }
    remember(this.#floors, from, nonce, MAX_FLOORS);
    return true;
  }

  /** The text of a frame once its last part has arrived. Parts arrive in order. */
  #joined(frame: string, i: number, count: number, part: string): string | undefined {
    if (count === 1) return part;
    const parts = this.#pending.get(frame) ?? [];
    if (parts.length !== i - 1) return undefined;
    parts.push(part);
    if (i < count) {
      remember(this.#pending, frame, parts, MAX_PENDING);
      return undefined;
    }
    this.#pending.delete(frame);
    return parts.join('');
  }
}

/**
 * Makes a channel from a sealed room, for {@link serve} and {@link call}. Everybody with the key is a member, and
 * members must trust each other: with the help of one, a service that keeps no signatures could write in another
 * member's name.
 *
 * @param room the name of the room
 * @param key the room key, 32 bytes; copied
 * @param signer the key of this side
 * @param o `peer`: the DID that frames are addressed to, and the only one whose frames count; default: all members.
 * `latency`: as in {@link CallOptions.latency}, for calls through the channel
 * @throws a {@link BadName} if the name of the room is not valid, or `peer` is not a `did:key`
 * @throws a {@link BadKey} if the key does not have 32 bytes, or no signer is given
 * @example
 * ```ts
 * import { call, methods, sealed, serve, Signer } from 'technocore-rpc';
 *
 * const [ada, bob, stop] = [Signer.generate(), Signer.generate(), new AbortController()];
 * const { signal } = stop;
 * // both have these from an offer: see e2eOfferTo and e2eAccept
 * const [room, key] = [`p-${crypto.randomUUID()}`, crypto.getRandomValues(new Uint8Array(32))];
 *
 * // Bob's program
 * methods.set('add', ({ a, b }) => a + b);
 * await new Promise<void>((onReady) => void serve(sealed(room, key, bob), bob, { signal, onReady }));
 *
 * // Ada's program
 * const channel = sealed(room, key, ada, { peer: bob.did });
 * console.log(await call(channel, 'add', { a: 1, b: 2 }, ada)); // 3
 *
 * stop.abort();
 * ```
 */
export function sealed(
  room: string,
  key: Uint8Array,
  signer: Signer,
  o: Options & { peer?: string | undefined; latency?: 'fast' | 'frugal' | undefined } = {},
): SealedChannel {
  checkSigner(signer);
  const t = transportOf(o);
  checkLatency(o);
  if (o.peer !== undefined && !isDid(o.peer)) throw new BadName(o.peer, 'not a did:key');
  return new SealedLine(new Seal(t, room, key, signer), o.peer, NONE, o.latency);
}
