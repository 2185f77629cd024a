/**
 * parley, protocol version 1: a human carries one link from one agent to the other, and the two talk end to end
 * encrypted through a relay that learns sizes and times alone. Wire-compatible with the Go package of that name.
 *
 * @module
 */
import { concat, equalBytes, fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import type { Channel, Incoming, Listener } from './channel.ts';
import { eitherOf, randomFloat } from './clock.ts';
import { sha256 } from './crypto.ts';
import {
  BadInvite,
  BadKey,
  BadState,
  CapacityReached,
  checkObject,
  DecryptError,
  FrameTooLong,
  RingGap,
  SessionClosed,
  TechnocoreError,
} from './errors.ts';
import { decode, isObject } from './frames.ts';
import { type Transport as Http, Lanes, type Options, poll, transportOf } from './http.ts';
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

/** Nothing opened yet; no handshake yet; talking; over. */
export type State = 'none' | 'pending' | 'active' | 'closed';

/** The other end as this one sees it. */
export interface Peer {
  /** Its proven id, or for a joiner the one that the invite promises. */
  id?: NodeID;
  /** To be compared with what the other human sees; empty while nothing is known. */
  fingerprint: string;
  /** The opener's words. A stranger's text, for a joiner. */
  topic: string;
  state: State;
  /** The other seat is taken. Asked only until the handshake; a relay cannot tell who is still there. */
  present: boolean;
}

/** Where a session reports what happened on the way, and where its time and randomness come from. */
export interface SessionOptions extends Options {
  /** Host of the relay as invites shall name it; default: the relay's own. */
  host?: string;
}

/** Most texts that wait: for the handshake, for a listener, and for a poll while somebody listens. */
const MAX_QUEUE = 1024;
/** Most unreadable frames that are remembered, so as to be reported once. */
const MAX_JUNK = 256;
/** Most characters of a JSON-RPC frame; texts have no limit of their own. */
const MAX_FRAME = 65_536;
/** Most characters of texts that wait for a poll while somebody listens, who alone makes the session read on. */
const MAX_KEPT = 1 << 24;
/** Most handshake messages that are tried of one answer: each takes as long as a hundred other frames. */
const MAX_TRIES = 256;
/** When our handshake message is sent again if nothing shows that it arrived, ms; then after twice the time, and so on. */
const HELLO_MS = 5000;
/** A handshake payload may be as long as the Go package takes it. */
const MAX_PAYLOAD = 65_535;
/** Pause after a read that was answered early with nothing new, ms: first, and at most. */
const PAUSE_MS = [100, 5000] as const;

/** The least that a resumed session skips of its seqs. */
const RESUMED: bigint = 1n << 40n;

const GREETING: Uint8Array = /* @__PURE__ */ marshalHandshakePayload({ capabilities: {} });

/** All that a session knows and a process cannot find out again: what `save` writes. */
interface Saved {
  version: 1;
  /** The own public key. */
  self: PublicKey;
  state: State;
  /** Why it is closed. */
  why: string;
  topic: string;
  present: boolean;
  /** Somebody has the other seat. A seat cannot be given up. */
  joined: boolean;
  initiator: boolean;
  seat?: Membership;
  /** Until the keys are there. */
  secret?: Uint8Array | undefined;
  /** Private, the handshake's; fixed when the state is saved, so that each copy of it ends up with the same keys. */
  ephemeral?: Uint8Array | undefined;
  keys?: TransportKeys;
  peer?: PublicKey;
  /** The last seq that was spent, and the last one that came and was authentic. */
  seq: bigint;
  floor: bigint;
  /** To be sealed; sealed and to be posted; sealed and not posted, its sender told. */
  queue: Message[];
  outbox: Frame[];
  failed?: { text: string; frame: Frame } | undefined;
  /** Our handshake message, until something shows that it arrived. */
  hello?: Frame | undefined;
  /** Read and not yet handed out: talk, and JSON-RPC frames that nobody listens to yet. */
  inbox: Received[];
  frames: Incoming[];
}

// Bytes and 64-bit numbers in JSON.
const pack = (_: string, value: unknown): unknown =>
  value instanceof Uint8Array ? { b: toBase64url(value) } : typeof value === 'bigint' ? { n: `${value}` } : value;
const unpack = (_: string, value: any): unknown =>
  typeof value?.b === 'string' ? fromBase64url(value.b) : typeof value?.n === 'string' ? BigInt(value.n) : value;

/**
 * One end of one channel, for one conversation. `send` and `peer` never wait behind a `poll`. A session is also a
 * {@link Channel}: JSON-RPC frames go to whoever listens (`serve`, `call`), or wait for him; `poll` has everything else.
 *
 * A seq is spent when something is sealed under it, and only those very bytes are ever sent again: the key stream is
 * used once whatever the relay does. The cursor moves on frames that authenticate, so junk cannot make a channel deaf.
 */
export class Session implements Channel {
  /** Nothing of our own ever comes back. */
  readonly self = '';
  readonly limit: number = MAX_FRAME;
  readonly #identity: Identity;
  readonly #relay: Relay;
  readonly #o: SessionOptions;
  readonly #http: Http;
  readonly #lanes = new Lanes();
  #s: Saved;
  #handshake: Handshake | undefined;
  #transport: Transport | undefined;
  /** The first error to be raised when nothing is left to hand out. */
  #problem: unknown;
  /** A resumed session does not know what other copies of its state have sealed. */
  #resumed = false;
  #helloAt = 0;
  #helloMs = HELLO_MS;
  #idle = 0;
  #count = 0;
  readonly #junk = new Set<string>();
  /** Handshake messages to pass over, which were tried in the answers before. */
  #tried = 0;
  readonly #listeners = new Set<Listener>();
  #pumping = false;
  /** Wakes whoever reads or waits. */
  #bell = new AbortController();

  constructor(identity: Identity, relay: Relay, o: SessionOptions = {}) {
    this.#identity = identity;
    this.#relay = relay;
    this.#o = o;
    this.#http = transportOf(o);
    const self = checkObject(identity, 'an identity').publicKey;
    const no = { present: false, joined: false, initiator: false };
    const none = { queue: [], outbox: [], inbox: [], frames: [] };
    this.#s = { version: 1, self, state: 'none', why: '', topic: '', ...no, seq: 0n, floor: 0n, ...none };
  }

  /** As of the last call. Asks nobody. */
  get peer(): Peer {
    const { peer, topic, state, present } = this.#s;
    const id = peer && sha256(peer);
    return { ...(id && { id }), fingerprint: id ? fingerprint(id) : '', topic, state, present };
  }

  /** The channel, as a relay names it. */
  get room(): string {
    return this.#s.seat ? toBase64url(this.#s.seat.channel) : '';
  }

  /**
   * Opens a channel. The invite goes to the other agent by a way that nobody else reads.
   *
   * @param topic what it is about; the joiner sees it
   * @throws BadState the session is used already
   * @throws FrameTooLong the topic has more than 65,505 bytes, escaped
   * @throws RelayRefused, Unavailable the session is as it was
   */
  async open(topic: string, o: Abortable = {}): Promise<Invite> {
    const signal = this.#signal(o);
    return this.#turn('post', signal, async () => {
      this.#unused();
      const { length } = marshalHandshakePayload({ topic, capabilities: {} });
      if (length > MAX_PAYLOAD) throw new FrameTooLong(length, MAX_PAYLOAD);
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
   * Accepts an invite. The invite's relay is not asked, for a link tells neither its scheme nor its path: the session
   * talks to its own. When the handshake message could not be sent, the seat is kept: `poll`, or `join` with the same
   * invite, sends it again.
   *
   * @throws BadInvite nothing was asked of the relay
   * @throws BadState the session is used already
   * @throws RelayRefused `full`: someone else has the seat, or this session
   * @throws Unavailable
   */
  async join(invite: Invite | string, o: Abortable = {}): Promise<void> {
    const signal = this.#signal(o);
    return this.#turn('post', signal, async () => {
      const { channel, key, secret, relay } = typeof invite === 'string' ? Invite.parse(invite) : invite;
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
   * Says something. Before the handshake it is queued and goes out right after it.
   *
   * @returns the seq, 0 while it is queued
   * @throws SessionClosed
   * @throws CapacityReached 1,024 texts are queued
   * @throws Unavailable, RelayRefused it may have arrived; said again in the same words, it arrives once
   */
  async send(text: string, o: Abortable = {}): Promise<{ seq: number }> {
    const signal = this.#signal(o);
    const { queue } = this.#s;
    this.#alive();
    const message: Message = { kind: 'say', text };
    if (!this.#transport) {
      if (queue.length >= MAX_QUEUE) throw new CapacityReached(`${MAX_QUEUE} messages are waiting`);
      queue.push(message);
      return { seq: 0 };
    }
    return this.#turn('post', signal, async () => {
      await this.#flush(signal);
      if (this.#s.failed?.text !== text) this.#s.failed = { text, frame: this.#seal(message) };
      const { frame } = this.#s.failed!;
      await this.#post(frame, signal);
      this.#s.failed = undefined;
      return { seq: Number(frame.seq) };
    });
  }

  /**
   * What arrived, waiting for it at most `waitMs`, however long the relay holds a read. Finishes the handshake on the
   * way. An error met beside messages is raised by the next poll; a frame that does not authenticate is one error.
   *
   * @throws RelayRefused, Unavailable the relay; `no-channel` is final and closes the session
   * @throws HandshakeFailed, DecryptError a frame was skipped; later ones are read
   */
  async poll(waitMs: number = 0, o: Abortable = {}): Promise<Received[]> {
    const signal = this.#signal(o);
    const { clock } = this.#http;
    return this.#turn('poll', signal, async () => {
      const { inbox } = this.#s;
      // No number is no wait.
      const deadline = clock.now() + (Math.max(waitMs, 0) || 0);
      // While somebody listens, his loop reads, and what is for us is waited for.
      for (let left = waitMs; this.#listeners.size && !inbox.length && left > 0; left = deadline - clock.now()) {
        await clock.sleep(left, eitherOf(signal, this.#bell.signal)).catch(() => signal?.throwIfAborted());
      }
      if (!this.#listeners.size && !inbox.length && this.#problem === undefined) {
        await this.#gather(deadline, signal).catch((cause) => (this.#problem ??= cause));
      }
      // Who gave up does not want to hear of it at the next poll.
      const problem = this.#problem;
      if (!inbox.length || signal?.aborted) this.#problem = undefined;
      if (!inbox.length && problem !== undefined) throw problem;
      return inbox.splice(0);
    });
  }

  /**
   * All that arrives, until the channel is closed. Waits out failures of the relay; skipped frames are events.
   *
   * @throws RelayRefused the relay gives the channel up
   */
  async *messages(o: Abortable = {}): AsyncGenerator<Received> {
    const signal = this.#signal(o);
    const step = async (waitMs: number): Promise<{ value?: Received[] }> => {
      const value = await this.poll(this.#over() ? 0 : waitMs, o).catch(skip);
      return value.length || this.#over() ? { value } : {};
    };
    for await (const received of poll(this.#http, step, { waitMs: MAX_WAIT_MS, signal })) {
      yield* received;
      if (this.#over()) return;
    }
  }

  /**
   * As a channel: hands JSON-RPC frames to the listener as they come, until the returned function is called.
   *
   * @throws RelayRefused `no-channel`: open or join first
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
   * Ends the channel with an outcome that the other end gets after all that was said before. The session is closed at
   * once, whatever the relay does; an outcome that could not be sent, or not yet for want of a handshake, is sent by
   * the next `poll`, or by `close` again.
   *
   * @throws SessionClosed texts were queued and no channel was ever opened for them
   * @throws Unavailable, RelayRefused the other end may not have been told
   */
  async close(outcome: string, o: Abortable = {}): Promise<void> {
    const signal = this.#signal(o);
    const { state, queue } = this.#s;
    this.#shut('this end closed it');
    if (state === 'none' && queue.length) {
      throw new SessionClosed(`${queue.splice(0).length} queued messages were never sent`);
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
   * All that is needed to go on in another process: keys, seat, cursor, and what was not sent yet. To be guarded like a
   * private key, and to be resumed once; resumed twice, no seq is used twice all the same.
   */
  save(): Uint8Array {
    if (this.#s.secret) this.#s.ephemeral ??= this.#http.random(32);
    return utf8(JSON.stringify(this.#s, pack));
  }

  /**
   * A session as it was saved. What was handed out after that is handed out again, for the relay keeps it.
   *
   * @throws BadKey no saved state, or one of another identity
   */
  static async resume(state: Uint8Array, identity: Identity, relay: Relay, o: SessionOptions = {}): Promise<Session> {
    const session = new Session(identity, relay, o);
    try {
      const saved: Saved = JSON.parse(fromUtf8(state)!, unpack);
      if (saved.version !== 1 || !equalBytes(saved.self, session.#s.self)) throw new SyntaxError();
      Object.assign(session.#s, saved);
      session.#resumed = true;
      if (saved.keys) session.#transport = createTransport(saved.keys);
      else if (saved.seat) session.#shake(Secret.from(saved.secret!));
    } catch (cause) {
      throw new BadKey('no saved session of this identity', cause);
    }
    return session;
  }

  // Posts, polls and reads each go one after the other.
  #turn<T>(lane: 'post' | 'poll' | 'read', signal: AbortSignal | undefined, run: () => Promise<T>): Promise<T> {
    return this.#lanes.run(lane, run, signal);
  }

  #signal(o: Abortable): AbortSignal | undefined {
    return eitherOf(checkObject(o).signal, this.#o.signal);
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
    if (state !== 'none') throw new BadState(state, 'pending', 'the session is in use already');
  }

  #shut(why: string): void {
    if (this.#s.state !== 'closed') Object.assign(this.#s, { state: 'closed', why });
  }

  // Closed, and nobody is left to be told.
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

  // Begins the handshake; the initiator's message comes out of it.
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

  // The handshake message is our first frame, also where a copy of the state sent it before.
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
      // The time, and 20 random bits: above whatever a copy of the state may have spent.
      const fresh = (BigInt(Math.floor(clock.now())) << 20n) + chance(20);
      // A clock that was set back since then tells nothing; the next seq might be that of each copy.
      seq = fresh > seq ? fresh : seq + RESUMED + chance(40);
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

  // The outbox, then the queue. Runs in the turn of whoever posts.
  async #flush(signal: AbortSignal | undefined): Promise<void> {
    const { outbox, queue } = this.#s;
    if (this.#transport) outbox.push(...queue.splice(0).map((message) => this.#seal(message)));
    while (outbox.length) {
      // What the relay will never take must not hold up the rest.
      await this.#post(outbox[0]!, signal).catch((cause) => {
        if (cause?.code === 'http') outbox.shift();
        throw cause;
      });
      outbox.shift();
    }
  }

  // A relay that has forgotten a channel will not remember it.
  #lost(cause: unknown): never {
    if (isForgotten(cause)) {
      this.#shut('the relay forgot the channel');
      this.#s.queue.length = this.#s.outbox.length = 0;
    }
    throw cause;
  }

  // Reads until something came, into inbox and problem.
  #gather(deadline: number, signal?: AbortSignal, isPump = false): Promise<void> {
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
      if (hello && !outbox.length && clock.now() >= this.#helloAt) outbox.push(hello);
      await post();
      try {
        for (;;) {
          // Closed while something else was waited for: the bell has rung, and nobody will hear it again.
          if (!wasOver && this.#over()) return;
          const bell = this.#bell.signal;
          const either = wasOver ? signal : eitherOf(signal, bell);
          const pause = Math.min(PAUSE_MS[0] * 2 ** (this.#idle - 1), PAUSE_MS[1], deadline - clock.now());
          const start = clock.now();
          let waitMs = 0;
          let frames: Frame[];
          try {
            if (this.#idle && pause > 0) await clock.sleep(pause, either);
            // With bad news to tell, nothing is waited for.
            if (this.#problem === undefined) waitMs = Math.min(Math.max(deadline - clock.now(), 0), MAX_WAIT_MS);
            frames = await this.#relay.recv(seat, this.#s.floor, waitMs, { signal: either });
          } catch (cause) {
            if (wasOver || !bell.aborted || signal?.aborted) return this.#lost(cause);
            if (this.#over() || (isPump && !this.#listeners.size)) return;
            continue;
          }
          const { floor } = this.#s;
          const keyed = this.#take(frames);
          await post();
          // A relay that answers early with nothing new (old frames, junk, or because it does not hold) must not make us
          // spin.
          const early = frames.length > 0 || clock.now() - start < Math.min(waitMs, 1000) * 0.9;
          const news = this.#s.floor > floor;
          this.#idle = early && !news ? this.#idle + 1 : 0;
          if (inbox.length || this.#problem !== undefined || (!wasOver && this.#over())) return;
          if (!keyed && (frames.length || clock.now() >= deadline)) return;
        }
      } finally {
        await looked;
      }
    });
  }

  // Who has the other seat is found out beside the first read, and by a handshake as well.
  async #look(seat: Membership, signal: AbortSignal | undefined): Promise<void> {
    if (!this.#s.joined && (await this.#relay.members(seat, { signal }).catch(() => 0)) > 1) this.#s.joined = true;
    this.#s.present = this.#s.joined || this.#s.state === 'closed';
  }

  // True when the handshake was finished.
  #take(frames: Frame[]): boolean {
    let keyed = false;
    let tries = 0;
    for (const frame of frames) {
      const { seq, type, payload } = frame;
      // Data that overtook the handshake is read again after it.
      if (seq <= this.#s.floor || (type === 2 && !this.#transport)) continue;
      const name = (): string => `${seq} ${type} ${toHex(sha256(payload))}`;
      if (this.#junk.size && this.#junk.has(name())) continue;
      if (type === 1 && this.#handshake && (++tries <= this.#tried || tries > this.#tried + MAX_TRIES)) continue;
      try {
        if (type === 2) this.#accept(seq, this.#transport!.open(seq, payload));
        else if (type === 1 && this.#handshake) {
          this.#finish(this.#handshake, payload);
          // Nobody vouches for the seq of this frame, which is 1 unless somebody plays tricks. It may come again.
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
    // After the last one the first are tried again: more may have come in between.
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
      // So many cannot be lost: the other end was resumed, which need not have cost anything.
      if (seq - floor < RESUMED) {
        const gap = new RingGap(this.room, Number(floor + 1n), Number(seq), 'overflow');
        this.#tell((listener) => listener.gap(gap));
      }
    }
    const { kind, text } = unmarshalMessage(plain);
    const from = sha256(this.#s.peer!);
    if (kind === 'close') this.#shut('the other end closed it');
    if (kind === 'say' && isRpc(text)) {
      const frame = { from: `parley:${toBase64url(from)}`, text, room: this.room, seq: ++this.#count, nonce: `${seq}` };
      this.#tell((listener) => listener.message(frame));
      if (this.#listeners.size) return;
      if (frames.length < MAX_QUEUE) return void frames.push(frame);
    } else if (!this.#listeners.size || (inbox.length < MAX_QUEUE && sizeOf(inbox) + text.length <= MAX_KEPT)) {
      return void inbox.push({ kind, text, from });
    }
    onEvent({ kind: 'skipped', seq: `${seq}`, reason: 'nobody reads' });
  }

  // One that fails keeps nothing from the others, nor ends the session.
  #tell(what: (listener: Listener) => void): void {
    for (const listener of [...this.#listeners]) {
      try {
        what(listener);
      } catch (cause) {
        this.#http.onEvent({ kind: 'listener-error', cause });
      }
    }
  }

  // Reads for those who listen, until none does or the channel is closed.
  async #pump(): Promise<void> {
    const step = async (waitMs: number): Promise<{ value?: boolean }> => {
      if (this.#over()) return { value: true };
      const { floor } = this.#s;
      await this.#gather(this.#http.clock.now() + waitMs, undefined, true);
      const problem = this.#problem;
      this.#problem = undefined;
      if (this.#s.inbox.length) this.#ring();
      if (problem !== undefined) skip(problem);
      const isDone = !this.#listeners.size || this.#over();
      return isDone || this.#s.floor > floor ? { value: isDone } : {};
    };
    let cause: unknown;
    this.#pumping = true;
    // Whoever begins to listen while the last one leaves is served as well.
    while (cause === undefined && this.#listeners.size) {
      try {
        for await (const isDone of poll(this.#http, step, { waitMs: MAX_WAIT_MS })) if (isDone) break;
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

// A skipped frame is no reason to stop.
function skip(cause: unknown): Received[] {
  if (TechnocoreError.is(cause) && /^(?:handshake_failed|decrypt)$/.test(cause.code)) return [];
  throw cause;
}

const sizeOf = (messages: readonly Message[]): number => messages.reduce((sum, { text }) => sum + text.length, 0);

function isRpc(text: string): boolean {
  if (text.length > MAX_FRAME) return false;
  const frame = decode(text);
  const first = Array.isArray(frame) ? frame[0] : frame;
  return isObject(first) && first['jsonrpc'] === '2.0';
}
