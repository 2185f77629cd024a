/**
 * parley, protocol version 1: a person carries one link from one agent to the other, and the two talk, end-to-end
 * encrypted, through a relay that learns only sizes and times. Wire-compatible with the Go package of the same name.
 *
 * @packageDocumentation
 */
import { concat, equalBytes, fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import type { Channel, Incoming, Listener, SendOptions } from './channel.ts';
import { eitherOf, randomFloat } from './clock.ts';
import { hmacSha256, sha256 } from './crypto.ts';
import {
  BadInvite,
  BadKey,
  BadState,
  CapacityReached,
  checkFunction,
  checkObject,
  checkText,
  DecryptError,
  HandshakeFailed,
  RingGap,
  SessionClosed,
  signalOf,
  tooManyBytes,
} from './errors.ts';
import { decode, isObject } from './frames.ts';
import { type Transport as Http, Lanes, meansOf, type Options, poll, retrying } from './http.ts';
import { createTransport, Handshake, type Transport, type TransportKeys } from './noise.ts';
import {
  fingerprint,
  type Identity,
  Invite,
  type Message,
  marshalHandshakePayload,
  marshalMessage,
  type NodeID,
  type PublicKey,
  type Received,
  Secret,
  unmarshalHandshakePayload,
  unmarshalMessage,
} from './parley-invite.ts';
import {
  type Abortable,
  type Frame,
  type FrameType,
  isForgotten,
  MAX_WAIT_MS,
  type Membership,
  type Relay,
  refused,
} from './parley-relay.ts';

export { BadInvite, HandshakeFailed, RelayRefused, SessionClosed, TechnocoreError } from './errors.ts';
export { Handshake, type HandshakeOptions, type KeyPair, type Transport, type TransportKeys } from './noise.ts';
export {
  type Capabilities,
  type ChannelID,
  fingerprint,
  type HandshakePayload,
  Identity,
  Invite,
  type JoinToken,
  type Kind,
  type Message,
  marshalHandshakePayload,
  marshalMessage,
  type NodeID,
  type PublicKey,
  type Received,
  Secret,
  unmarshalHandshakePayload,
  unmarshalMessage,
} from './parley-invite.ts';
export { type Abortable, type Frame, type FrameType, HttpRelay, type Membership, type Relay } from './parley-relay.ts';

/** The state of a session: nothing opened or joined yet; waiting for the handshake; talking; closed. */
export type State = 'none' | 'pending' | 'active' | 'closed';

/** The other end of a session, as this end sees it. */
export interface Peer {
  /** Its id: proved by the handshake; for a joiner before that, the one in the invite. */
  id?: NodeID;
  /** Its fingerprint, to compare with what the person at the other end sees; empty while unknown. */
  fingerprint: string;
  /** What the channel is about, in the opener's words. For a joiner, untrusted text. */
  topic: string;
  /** The state of the session. */
  state: State;
  /** Whether the other seat has been taken. Stays true from then on: a relay cannot tell who is still there. */
  present: boolean;
}

/** Options of a {@link Session}. `base` and `lane` have no effect: the relay has its own address. */
export interface SessionOptions extends Options {
  /** The host of the relay that invites name, perhaps with a port. Default: the relay's own. */
  host?: string | undefined;
}

/** How many texts can wait: for the handshake, for a listener, and for a poll while there is a listener. */
const MAX_QUEUE = 1024;
/** How many unreadable frames are remembered, so that each is reported once. */
const MAX_JUNK = 256;
/** The maximum length of a JSON-RPC frame, in characters. Other texts have no limit. */
const MAX_FRAME = 65_536;
/** How many characters of text can wait for a poll while a listener keeps the read loop going. */
const MAX_KEPT = 1 << 24;
/** How many handshake messages in one response are tried: each takes as long as a hundred other frames. */
const MAX_TRIES = 256;
/** After how long our handshake message is sent again if nothing shows that it arrived, ms. Doubles each time. */
const HELLO_MS = 5000;
/** The maximum size of a handshake payload, bytes, as in the Go package. */
const MAX_PAYLOAD = 65_535;
/** The pause after a read that returned early with nothing new, ms: initial and maximum. */
const PAUSE_MS = [100, 5000] as const;

/** The statuses that concern the frame itself: malformed, too large, unprocessable. */
const NEVER: ReadonlySet<unknown> = /* @__PURE__ */ new Set([400, 413, 422]);

/** How many numbers a resumed session skips at least. */
const RESUMED: bigint = 1n << 40n;

const GREETING: Uint8Array = /* @__PURE__ */ marshalHandshakePayload({ capabilities: {} });

/** Everything about a session that a new process could not find out: what `save` writes. */
interface Saved {
  version: 1;
  /** Our public key. */
  self: PublicKey;
  state: State;
  /** Why it is closed. */
  why: string;
  topic: string;
  present: boolean;
  /** The other seat is taken. A seat cannot be given up. */
  joined: boolean;
  initiator: boolean;
  seat?: Membership;
  /** Set until the handshake is finished. */
  secret?: Uint8Array | undefined;
  /** The private ephemeral key. Fixed when the state is saved, so that each copy of it derives the same keys. */
  ephemeral?: Uint8Array | undefined;
  keys?: TransportKeys;
  peer?: PublicKey;
  /** The last `seq` that we used. */
  seq: bigint;
  /** The `seq` of the last authentic frame received. */
  floor: bigint;
  /** Messages to be encrypted. */
  queue: Message[];
  /** Encrypted frames to be posted. */
  outbox: Frame[];
  /** An encrypted frame that could not be posted, for which `send` threw an error. */
  failed?: { text: string; frame: Frame } | undefined;
  /** Our handshake message, until something shows that it arrived. */
  hello?: Frame | undefined;
  /** Messages that were read but not returned yet. */
  inbox: Received[];
  /** JSON-RPC frames that wait for a listener. */
  frames: Incoming[];
}

// A MAC over a saved state, under a key that only the holder of the identity can derive. It makes further validation of
// the state unnecessary.
const proofOf = (text: string, identity: Identity): string =>
  toBase64url(hmacSha256(identity.shared(identity.publicKey), utf8(text)));

// JSON with bytes and 64-bit numbers.
const pack = (_: string, value: unknown): unknown =>
  value instanceof Uint8Array ? { b: toBase64url(value) } : typeof value === 'bigint' ? { n: `${value}` } : value;
const unpack = (_: string, value: any): unknown =>
  typeof value?.b === 'string' ? fromBase64url(value.b) : typeof value?.n === 'string' ? BigInt(value.n) : value;

/**
 * One end of one parley, for one conversation: {@link Session.open} or {@link Session.join} it, then send and poll.
 * Sending never waits for a poll. A session is also a channel for `serve` and `call`: JSON-RPC frames go to them, or
 * wait for them; `poll` returns everything else.
 *
 * A frame number (`seq`) is spent when something is encrypted under it, and only the same bytes are ever sent again
 * under it, so no nonce is used twice whatever the relay does. Only authentic frames move the cursor, so junk cannot
 * make a session deaf.
 *
 * @example
 * ```ts
 * import { createLocalService } from 'technocore-rpc/local';
 * import { HttpRelay, Identity, Session } from 'technocore-rpc/parley';
 *
 * const { url, close } = await createLocalService().listen(); // or a relay such as https://parley.chat
 * const ada = new Session(Identity.generate(), new HttpRelay(url));
 * const ben = new Session(Identity.generate(), new HttpRelay(url));
 *
 * const link = (await ada.open('where to meet')).url(); // a person carries it to Ben
 * await ben.join(link);
 * await ben.send('At the café?'); // kept until the handshake is done
 * while (ben.peer.state === 'pending') await Promise.all([ada.poll(), ben.poll()]);
 * console.log((await ada.poll(1000)).map(({ text }) => text));
 *
 * await ben.close('agreed');
 * await close();
 * ```
 */
export class Session implements Channel {
  /** Empty: a relay never returns what this end has sent. */
  readonly self = '';
  /** The maximum length of a JSON-RPC frame: 65,536 characters. */
  readonly limit: number = MAX_FRAME;
  readonly #identity: Identity;
  readonly #relay: Relay;
  readonly #o: SessionOptions;
  readonly #http: Http;
  readonly #lanes = new Lanes();
  #s: Saved;
  #handshake: Handshake | undefined;
  #transport: Transport | undefined;
  /** The first error, to be thrown once nothing is left to return. */
  #problem: unknown;
  /** A resumed session does not know which numbers other copies of its state have used. */
  #resumed = false;
  #helloAt = 0;
  #helloMs = HELLO_MS;
  #idle = 0;
  #count = 0;
  readonly #junk = new Set<string>();
  /** The number of handshake messages to skip because earlier polls tried them. */
  #tried = 0;
  readonly #listeners = new Set<Listener>();
  #pumping = false;
  /** Wakes whoever reads or waits. */
  #bell = new AbortController();

  /**
   * Makes a session that is not connected yet.
   *
   * @param identity the identity of this end
   * @param relay the relay that both ends use
   * @param o clock, randomness, `signal` for all calls, `onEvent`, and the relay's host for invites
   * @throws a {@link TechnocoreError} `bad_option` if no identity or no relay is given
   */
  constructor(identity: Identity, relay: Relay, o: SessionOptions = {}) {
    this.#identity = identity;
    this.#relay = relay;
    this.#o = o;
    this.#http = meansOf(o);
    const self = checkObject(identity, 'an identity').publicKey;
    // Arguments in the wrong order would only fail in a later call.
    checkFunction(relay?.recv, 'relay.recv');
    this.#s = {
      version: 1,
      self,
      state: 'none',
      why: '',
      topic: '',
      present: false,
      joined: false,
      initiator: false,
      seq: 0n,
      floor: 0n,
      queue: [],
      outbox: [],
      inbox: [],
      frames: [],
    };
  }

  /** The other end, as of the last call. Sends no request. */
  get peer(): Peer {
    const { peer, topic, state, present } = this.#s;
    const id = peer && sha256(peer);
    return { ...(id && { id }), fingerprint: id ? fingerprint(id) : '', topic, state, present };
  }

  /** The name of the channel, 22 characters of base64url; empty before `open` or `join`. */
  get room(): string {
    return this.#s.seat ? toBase64url(this.#s.seat.channel) : '';
  }

  /**
   * Opens a channel. Pass the invite to the other agent in a way that nobody else can read.
   *
   * @param topic what the channel is about; the joiner sees it
   * @throws `BadState` if the session was opened or joined before
   * @throws `FrameTooLong` if the topic has more than 65,505 bytes as JSON
   * @throws a {@link RelayRefused} or `Unavailable`; the session can then be used as before
   * @throws the signal's reason when it aborts
   */
  async open(topic: string, o: Abortable = {}): Promise<Invite> {
    const signal = this.#signal(o);
    checkText(topic, 'the topic');
    return this.#turn('post', signal, async () => {
      this.#unused();
      const { length } = marshalHandshakePayload({ topic, capabilities: {} });
      if (length > MAX_PAYLOAD) throw tooManyBytes(length, MAX_PAYLOAD);
      const channel = this.#http.random(16);
      const secret = Secret.from(this.#http.random(32));
      const relay = this.#o.host ?? this.#relay.host ?? '';
      const invite = new Invite({ relay, channel, key: this.#s.self, secret });
      this.#seated(await this.#relay.open(channel, secret.joinToken(), { signal }), secret);
      this.#s.topic = topic;
      return invite;
    });
  }

  /**
   * Accepts an invite: takes the second seat, and sends the first handshake message. It uses the session's own relay,
   * not the one in the invite, since a link holds neither the scheme nor the path of a relay. If the handshake message
   * could not be sent, the seat is kept: `poll`, or `join` with the same invite, sends it again.
   *
   * @param invite the invite or its link
   * @throws a {@link BadInvite} if it is not an invite, or holds an unusable key; nothing was sent
   * @throws `BadState` if the session was opened or joined before
   * @throws a {@link RelayRefused} `full` if both seats are taken, perhaps by this session itself; `no-channel`; `token`
   * @throws `Unavailable` if the relay could not be reached
   * @throws the signal's reason when it aborts
   */
  async join(invite: Invite | string, o: Abortable = {}): Promise<void> {
    const signal = this.#signal(o);
    return this.#turn('post', signal, async () => {
      const { channel, key, secret, relay } = typeof invite === 'string' ? Invite.parse(invite) : new Invite(invite);
      if (this.#s.initiator && equalBytes(channel, this.#seat().channel)) {
        if (!this.#s.outbox.length) throw refused('full');
      } else {
        this.#unused();
        try {
          this.#identity.shared(key);
        } catch {
          throw new BadInvite('bad key');
        }
        const seat = await this.#relay.join(channel, secret.joinToken(), { signal }).catch((cause) => {
          throw isForgotten(cause) ? refused('no-channel', `; the invite is for ${relay || 'no relay'}`) : cause;
        });
        this.#seated(seat, secret, key);
      }
      await this.#flush(signal);
    });
  }

  /**
   * Sends a text. Before the handshake is finished, the text is queued and sent right after it.
   *
   * @param text any text; may be empty
   * @param o `deadline`: until when to try again while the relay cannot be reached; at most 30 seconds. Default: not at all
   * @returns `seq`: the number of the frame, or 0 if the text is queued
   * @throws a {@link SessionClosed} if the session is closed
   * @throws `CapacityReached` if 1,024 texts are queued already
   * @throws a {@link RelayRefused} or `Unavailable`; the text may have arrived. It is safe to send the same text again:
   * it arrives only once
   * @throws the signal's reason when it aborts
   */
  async send(text: string, o: SendOptions = {}): Promise<{ seq: number }> {
    const signal = this.#signal(o);
    const { queue } = this.#s;
    checkText(text, 'the text');
    this.#alive();
    const message: Message = { kind: 'say', text };
    if (!this.#transport) {
      if (queue.length >= MAX_QUEUE) throw new CapacityReached(`${MAX_QUEUE} messages are waiting`);
      queue.push(message);
      return { seq: 0 };
    }
    const post = async (): Promise<{ seq: number }> => {
      await this.#flush(signal);
      if (this.#s.failed?.text !== text) this.#s.failed = { text, frame: this.#seal(message) };
      const { frame } = this.#s.failed!;
      await this.#post(frame, signal);
      this.#s.failed = undefined;
      return { seq: Number(frame.seq) };
    };
    return this.#turn('post', signal, () => {
      // Others wait for their turn, since a frame that is overtaken counts for nothing at the other end.
      const last = this.#http.clock.now() + MAX_WAIT_MS;
      return retrying(this.#http, Math.min(o.deadline ?? 0, last), post, signal);
    });
  }

  /**
   * Returns the messages that have arrived, and waits up to `waitMs` for one. Also performs the handshake, and sends
   * what is queued. If an error occurs after messages have arrived, they are returned, and the next poll throws the
   * error.
   *
   * @param waitMs how long to wait, in milliseconds; default 0. May be longer than the relay holds a read
   * @returns the messages, in order; none if nothing arrived
   * @throws a {@link RelayRefused} or `Unavailable` if the relay fails; `no-channel` is final, and closes the session
   * @throws a {@link HandshakeFailed} or `DecryptError` once for each frame that is not authentic; later frames are read
   * @throws the signal's reason when it aborts
   */
  async poll(waitMs: number = 0, o: Abortable = {}): Promise<Received[]> {
    return this.#receive(waitMs, this.#signal(o), Number.POSITIVE_INFINITY);
  }

  async #receive(waitMs: number, signal: AbortSignal | undefined, most: number): Promise<Received[]> {
    const { clock } = this.#http;
    return this.#turn('poll', signal, async () => {
      const { inbox } = this.#s;
      // `|| 0` handles NaN.
      let left = Math.max(waitMs, 0) || 0;
      // While there is a listener, its loop reads, and we only wait for messages.
      while (this.#listeners.size && !inbox.length && left > 0) {
        const start = clock.now();
        await clock.sleep(left, eitherOf(signal, this.#bell.signal)).catch(() => signal?.throwIfAborted());
        left -= this.#since(start);
      }
      if (!this.#listeners.size && !inbox.length && this.#problem === undefined) {
        await this.#gather(left, signal).catch((cause) => (this.#problem ??= cause));
      }
      // A caller that aborted does not want the error in the next poll.
      const problem = this.#problem;
      if (!inbox.length || signal?.aborted) this.#problem = undefined;
      if (!inbox.length && problem !== undefined) throw problem;
      return inbox.splice(0, most);
    });
  }

  /**
   * Yields the messages as they arrive, until the channel is closed; the last one has `kind: 'close'` if the other end
   * closed it. Transient failures of the relay are waited out. Frames that are not authentic are skipped (event
   * `skipped`). If you leave the loop, nothing is lost: `poll` or another loop returns what was not yielded.
   *
   * @throws a {@link RelayRefused} if the relay gives up the channel
   * @throws the signal's reason when it aborts
   */
  async *messages(o: Abortable = {}): AsyncGenerator<Received> {
    const signal = this.#signal(o);
    const step = async (waitMs: number): Promise<{ value?: Received[] }> => {
      // One at a time: what was taken could not be given back, nor saved.
      const value = await this.#receive(this.#over() ? 0 : waitMs, signal, 1).catch(skip);
      return value.length || this.#over() ? { value } : {};
    };
    for await (const received of poll(this.#http, step, { waitMs: MAX_WAIT_MS, signal, worked: true })) {
      yield* received;
      if (this.#over() && !this.#s.inbox.length) return;
    }
  }

  /**
   * Passes JSON-RPC frames to a listener as they arrive. `serve` and `call` use it.
   *
   * @returns a function that removes the listener
   * @throws a {@link RelayRefused} `no-channel` before `open` or `join`
   */
  async listen(listener: Listener): Promise<() => void> {
    this.#seat();
    this.#listeners.add(listener);
    if (!this.#pumping) void this.#pump();
    for (const frame of this.#s.frames.splice(0)) listener.message(frame);
    return () => {
      if (this.#listeners.delete(listener) && !this.#listeners.size) this.#ring();
    };
  }

  /**
   * Closes the channel with an outcome, which the other end gets after everything sent before. The session is closed at
   * once, whatever the relay does. If the outcome could not be sent, or the handshake is not finished, the next `poll`
   * or another `close` sends it.
   *
   * @param outcome any text; may be empty
   * @throws a {@link SessionClosed} if texts were queued and no channel was ever opened for them
   * @throws a {@link RelayRefused} or `Unavailable`; the other end may not know that it is over
   * @throws the signal's reason when it aborts
   */
  async close(outcome: string, o: Abortable = {}): Promise<void> {
    const signal = this.#signal(o);
    const { state, queue } = this.#s;
    checkText(outcome, 'the outcome');
    this.#shut('this end closed it');
    if (state === 'none' && queue.length) {
      throw new SessionClosed(`${queue.splice(0).length} queued messages never sent`);
    }
    const enqueue = (): void => {
      if (state === 'pending' || state === 'active') queue.push({ kind: 'close', text: outcome });
    };
    if (!this.#transport) enqueue();
    else {
      await this.#turn('post', signal, () => {
        enqueue();
        return this.#flush(signal);
      });
    }
    if (this.#over()) this.#ring();
  }

  /**
   * Returns everything needed to continue in another process: keys, seat, cursor, and what was not sent yet. Guard it
   * like a private key. Resume it only once; even if it is resumed twice, no nonce is used twice.
   */
  save(): Uint8Array {
    if (this.#s.secret) this.#s.ephemeral ??= this.#http.random(32);
    const text = JSON.stringify(this.#s, pack);
    return utf8(`${text.slice(0, -1)},"proof":"${proofOf(text, this.#identity)}"}`);
  }

  /**
   * Restores a session from {@link Session.save}. Messages that arrived after saving are returned once more, since the
   * relay still has them.
   *
   * @param state the saved state
   * @param identity the same identity as before
   * @param relay the same relay as before
   * @throws `BadKey` if the state is damaged, or does not belong to this identity
   */
  static async resume(state: Uint8Array, identity: Identity, relay: Relay, o: SessionOptions = {}): Promise<Session> {
    const session = new Session(identity, relay, o);
    try {
      const [, open = '', proof] = /^(.*),"proof":"([\w-]{43})"}$/s.exec(fromUtf8(state)!) ?? [];
      const text = `${open}}`;
      if (proof !== proofOf(text, identity)) throw new SyntaxError();
      const { keys, seat, secret } = Object.assign(session.#s, JSON.parse(text, unpack));
      session.#resumed = true;
      if (keys) session.#transport = createTransport(keys);
      else if (seat) session.#shake(Secret.from(secret!));
    } catch (cause) {
      throw new BadKey('no saved session of this identity', cause);
    }
    return session;
  }

  // Posts, polls and reads each run one after the other.
  #turn<T>(lane: 'post' | 'poll' | 'read', signal: AbortSignal | undefined, run: () => Promise<T>): Promise<T> {
    return this.#lanes.run(lane, run, signal);
  }

  #signal(o: Abortable): AbortSignal | undefined {
    return eitherOf(signalOf(o), this.#o.signal);
  }

  #seat(): Membership {
    const { seat } = this.#s;
    if (!seat) throw refused('no-channel', ': open or join first');
    return seat;
  }

  #ring(): void {
    const bell = this.#bell;
    this.#bell = new AbortController();
    bell.abort();
  }

  #alive(): State {
    const { state, why } = this.#s;
    if (state === 'closed') throw new SessionClosed(why);
    return state;
  }

  #unused(): void {
    const state = this.#alive();
    if (state !== 'none') throw new BadState(state, 'pending', 'the session is in use');
  }

  #shut(why: string): void {
    if (this.#s.state !== 'closed') Object.assign(this.#s, { state: 'closed', why });
  }

  // Closed, with nothing left to send.
  #over(): boolean {
    const { state, joined, queue, outbox } = this.#s;
    return state === 'closed' && !(joined && (queue.length || outbox.length));
  }

  #seated(seat: Membership, secret: Secret, peer?: PublicKey): void {
    this.#alive();
    const initiator = peer !== undefined;
    const roles = { initiator, joined: initiator, present: initiator };
    Object.assign(this.#s, { state: 'pending', seat, secret: secret.bytes(), peer, ...roles });
    if (initiator) this.#s.ephemeral = this.#http.random(32);
    const message = this.#shake(secret);
    if (message) this.#greet(message);
  }

  // Starts the handshake. Returns the initiator's message.
  #shake(secret: Secret): Uint8Array | undefined {
    const { peer, initiator } = this.#s;
    const o = {
      identity: this.#identity,
      psk: secret.psk(),
      prologue: concat(utf8('parley/1'), this.#seat().channel),
      random: (n: number) => this.#s.ephemeral ?? this.#http.random(n),
    };
    this.#handshake = initiator ? Handshake.initiator({ ...o, remote: peer! }) : Handshake.responder(o);
    return initiator ? this.#handshake.write(GREETING) : undefined;
  }

  // The handshake message is always our first frame, even if a copy of the state has sent it before.
  #greet(payload: Uint8Array): void {
    const hello = this.#frame(1n, 1, payload);
    Object.assign(this.#s, { seq: 1n, hello });
    this.#s.outbox.unshift(hello);
  }

  #frame(seq: bigint, type: FrameType, payload: Uint8Array): Frame {
    return { channel: this.#seat().channel, seq, type, payload };
  }

  #seal(message: Message): Frame {
    const plain = marshalMessage(message);
    let seq = this.#s.seq + 1n;
    if (this.#resumed) {
      const { clock, random } = this.#http;
      const chance = (bits: number): bigint => BigInt(Math.floor(randomFloat(random) * 2 ** bits));
      // The time and 20 random bits: above every number that a copy of the state may have used.
      const fresh = (BigInt(Math.floor(clock.now())) << 20n) + chance(20);
      // If the clock was set back, or is centuries ahead, the time does not help, and another copy might use the next
      // number, so skip at random.
      seq = fresh > seq && fresh >> 63n === 0n ? fresh : seq + RESUMED + chance(40);
      this.#resumed = false;
    }
    this.#s.seq = seq;
    return this.#frame(seq, 2, this.#transport!.seal(seq, plain));
  }

  async #post(frame: Frame, signal: AbortSignal | undefined): Promise<void> {
    await this.#relay.send(this.#seat(), frame, { signal }).catch((cause) => this.#lost(cause));
    if (frame.type !== 1) return;
    this.#helloAt = this.#http.clock.now() + this.#helloMs;
    this.#helloMs *= 2;
  }

  // Posts the outbox, then the queue. Runs within a turn of the post lane.
  async #flush(signal: AbortSignal | undefined): Promise<void> {
    const { outbox, queue } = this.#s;
    if (this.#transport) outbox.push(...queue.splice(0).map((message) => this.#seal(message)));
    while (outbox.length) {
      // A frame that the relay will never accept must not hold up the rest. Other refusals may come from a login page
      // in between, so they lose nothing that is queued.
      await this.#post(outbox[0]!, signal).catch((cause) => {
        if (NEVER.has(cause?.status)) outbox.shift();
        throw cause;
      });
      outbox.shift();
    }
  }

  // When the relay has forgotten the channel, the session is over.
  #lost(cause: unknown): never {
    if (isForgotten(cause)) {
      this.#shut('the relay forgot the channel');
      this.#s.queue.length = this.#s.outbox.length = 0;
    }
    throw cause;
  }

  // How long ago that was, ms. Never less than nothing: a clock that is set back makes one wait a bit longer, no more.
  #since(start: number): number {
    return Math.max(this.#http.clock.now() - start, 0);
  }

  // Reads into the inbox, and sets `#problem`, until there is something to return.
  #gather(left: number, signal?: AbortSignal, isPump = false): Promise<void> {
    let start = this.#http.clock.now();
    return this.#turn('read', signal, async () => {
      const { outbox, queue, inbox, hello } = this.#s;
      const { clock } = this.#http;
      const seat = this.#seat();
      const wasOver = this.#over();
      const post = async (): Promise<void> => {
        if (!outbox.length && !(this.#transport && queue.length)) return;
        await this.#turn('post', signal, () => this.#flush(signal)).catch((cause) => (this.#problem ??= cause));
      };
      const looked = this.#look(seat, signal);
      const helloMs = this.#helloAt - clock.now();
      // Longer than it ever is: the clock was set back.
      if (hello && !outbox.length && (helloMs <= 0 || helloMs > this.#helloMs)) outbox.push(hello);
      await post();
      try {
        for (;;) {
          // Closed while we waited for something else: the bell has rung, and will not ring again.
          if (!wasOver && this.#over()) return;
          const bell = this.#bell.signal;
          const either = wasOver ? signal : eitherOf(signal, bell);
          left -= this.#since(start);
          start = clock.now();
          const pause = Math.min(PAUSE_MS[0] * 2 ** (this.#idle - 1), PAUSE_MS[1], left);
          let waitMs = 0;
          let frames: Frame[];
          try {
            if (this.#idle && pause > 0) await clock.sleep(pause, either);
            // If there is an error to throw, do not wait.
            if (this.#problem === undefined) waitMs = Math.min(Math.max(left - this.#since(start), 0), MAX_WAIT_MS);
            frames = await this.#relay.recv(seat, this.#s.floor, waitMs, { signal: either });
          } catch (cause) {
            if (wasOver || !bell.aborted || signal?.aborted) return this.#lost(cause);
            if (this.#over() || (isPump && !this.#listeners.size)) return;
            continue;
          }
          const { floor } = this.#s;
          const keyed = this.#take(frames);
          await post();
          // A relay that answers early with nothing new (old frames, junk, or no long polling) must not cause a busy
          // loop.
          const early = frames.length > 0 || clock.now() - start < Math.min(waitMs, 1000) * 0.9;
          const news = this.#s.floor > floor;
          this.#idle = early && !news ? this.#idle + 1 : 0;
          if (inbox.length || this.#problem !== undefined || (!wasOver && this.#over())) return;
          if (!keyed && (frames.length || this.#since(start) >= left)) return;
        }
      } finally {
        await looked;
      }
    });
  }

  // Checks, in parallel to a read, whether the other seat is taken. A handshake shows that as well.
  async #look(seat: Membership, signal: AbortSignal | undefined): Promise<void> {
    if (!this.#s.joined && (await this.#relay.members(seat, { signal }).catch(() => 0)) > 1) this.#s.joined = true;
    this.#s.present = this.#s.joined || this.#s.state === 'closed';
  }

  // Returns true when the handshake was finished.
  #take(frames: Frame[]): boolean {
    let keyed = false;
    let tries = 0;
    for (const frame of frames) {
      const { seq, type, payload } = frame;
      // Data that comes before the handshake is skipped, and read again after it.
      if (seq <= this.#s.floor || (type === 2 && !this.#transport)) continue;
      const name = (): string => `${seq} ${type} ${toHex(sha256(payload))}`;
      if (this.#junk.size && this.#junk.has(name())) continue;
      if (type === 1 && this.#handshake && (++tries <= this.#tried || tries > this.#tried + MAX_TRIES)) continue;
      try {
        if (type === 2) this.#accept(seq, this.#transport!.open(seq, payload));
        else if (type === 1 && this.#handshake) {
          this.#finish(this.#handshake, payload);
          // The number of this frame is not authenticated. It is 1 unless somebody tampered with it, so the frame may
          // come again.
          this.#s.floor = 1n;
          this.#junk.add(name());
          keyed = true;
        } else throw new DecryptError('layout', `frame ${seq} has type ${type}`);
      } catch (cause) {
        if (this.#junk.size >= MAX_JUNK) continue;
        this.#junk.add(name());
        this.#problem ??= cause;
        this.#http.onEvent({ kind: 'skipped', seq: `${seq}`, cause });
      }
    }
    // After the last one, start over with the first: others may have arrived between those already tried.
    this.#tried = tries > this.#tried + MAX_TRIES ? this.#tried + MAX_TRIES : 0;
    return keyed;
  }

  #finish(handshake: Handshake, message: Uint8Array): void {
    const s = this.#s;
    const payload = unmarshalHandshakePayload(handshake.read(message));
    s.peer = handshake.remote!;
    // The topic is the opener's: a joiner cannot rename it.
    if (s.initiator) Object.assign(s, { topic: payload?.topic ?? '', hello: undefined });
    else this.#greet(handshake.write(marshalHandshakePayload({ topic: s.topic, capabilities: {} })));
    s.keys = handshake.keys();
    s.secret = s.ephemeral = this.#handshake = undefined;
    s.joined = s.present = true;
    this.#transport = createTransport(s.keys);
    if (s.state === 'pending') s.state = 'active';
  }

  #accept(seq: bigint, plain: Uint8Array): void {
    const { floor, inbox, frames } = this.#s;
    const { onEvent } = this.#http;
    Object.assign(this.#s, { floor: seq, hello: undefined });
    if (seq > floor + 1n) {
      onEvent({ kind: 'gap', expected: `${floor + 1n}`, got: `${seq}` });
      // That many frames cannot be lost: the other end was resumed, and perhaps nothing is missing.
      if (seq - floor < RESUMED) {
        const gap = new RingGap(this.room, Number(floor + 1n), Number(seq), 'overflow');
        this.#tell((listener) => listener.gap(gap));
      }
    }
    const { kind, text } = unmarshalMessage(plain);
    const from = sha256(this.#s.peer!);
    if (kind === 'close') this.#shut('the other end closed it');
    if (kind === 'say' && isJsonRpc(text)) {
      const frame = { from: `parley:${toBase64url(from)}`, text, room: this.room, seq: ++this.#count, nonce: `${seq}` };
      this.#tell((listener) => listener.message(frame));
      if (this.#listeners.size) return;
      if (frames.length < MAX_QUEUE) return void frames.push(frame);
    } else if (!this.#listeners.size || (inbox.length < MAX_QUEUE && sizeOf(inbox) + text.length <= MAX_KEPT)) {
      return void inbox.push({ kind, text, from });
    }
    onEvent({ kind: 'skipped', seq: `${seq}`, reason: 'nobody reads' });
  }

  // A listener that throws affects neither the others nor the session.
  #tell(what: (listener: Listener) => void): void {
    for (const listener of [...this.#listeners]) {
      try {
        what(listener);
      } catch (cause) {
        this.#http.onEvent({ kind: 'listener-error', cause });
      }
    }
  }

  // Reads for the listeners until there are none or the channel is closed.
  async #pump(): Promise<void> {
    const step = async (waitMs: number): Promise<{ value?: boolean }> => {
      if (this.#over()) return { value: true };
      const { floor } = this.#s;
      await this.#gather(waitMs, undefined, true);
      const problem = this.#problem;
      this.#problem = undefined;
      if (this.#s.inbox.length) this.#ring();
      if (problem !== undefined) skip(problem);
      const isDone = !this.#listeners.size || this.#over();
      return isDone || this.#s.floor > floor ? { value: isDone } : {};
    };
    let cause: unknown;
    this.#pumping = true;
    // A loop, since a listener may be added while the last one leaves.
    while (cause === undefined && this.#listeners.size) {
      try {
        for await (const isDone of poll(this.#http, step, { waitMs: MAX_WAIT_MS, worked: true })) if (isDone) break;
        if (this.#over()) cause = new SessionClosed(this.#s.why);
      } catch (e) {
        cause = e;
      }
    }
    this.#pumping = false;
    this.#tell((listener) => listener.end(cause));
    this.#listeners.clear();
    this.#ring();
  }
}

// A frame that was skipped is no reason to stop.
function skip(cause: unknown): Received[] {
  if (DecryptError.is(cause) || HandshakeFailed.is(cause)) return [];
  throw cause;
}

const sizeOf = (messages: readonly Message[]): number => messages.reduce((sum, { text }) => sum + text.length, 0);

function isJsonRpc(text: string): boolean {
  if (text.length > MAX_FRAME) return false;
  const frame = decode(text);
  const first = Array.isArray(frame) ? frame[0] : frame;
  return isObject(first) && first['jsonrpc'] === '2.0';
}
