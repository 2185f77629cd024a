/**
 * parley, protocol version 1: a human carries one link from one agent to the other, and the two talk end to end
 * encrypted through a relay that learns sizes and times alone. Wire-compatible with the Go package of that name.
 *
 * @module
 */
import { concat, equalBytes, fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import {
  BadInvite,
  BadKey,
  BadState,
  CapacityReached,
  DecryptError,
  FrameTooLong,
  SessionClosed,
  TechnocoreError,
} from './errors.ts';
import { type Transport as Http, type Options, poll, transportOf } from './http.ts';
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
  sized,
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

export { Handshake, type HandshakeOptions, type KeyPair, type Transport } from './noise.ts';
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
export { type Frame, type FrameType, HttpRelay, type Membership, type Relay } from './parley-relay.ts';

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

/** Most texts that wait for a handshake. */
const MAX_QUEUE = 1024;
/** Most unreadable frames that are remembered, so as to be reported once. */
const MAX_JUNK = 256;
/** When our handshake message is sent again if nothing shows that it arrived, ms; then after twice the time, and so on. */
const HELLO_MS = 5000;
/** A handshake payload may be as long as the Go package takes it. */
const MAX_PAYLOAD = 65_535;
/** Pause after a read that was answered early with nothing new, ms: first, and at most. */
const PAUSE_MS = [100, 5000] as const;

// One thing after the other, in the order of the calls. Waiting for one's turn can be given up.
class Turns {
  #last: Promise<unknown> = Promise.resolve();

  take<T>(run: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const before = this.#last;
    const mine = abortable(before, signal).then(run);
    this.#last = Promise.allSettled([before, mine]);
    return mine;
  }
}

function abortable(promise: Promise<unknown>, signal?: AbortSignal): Promise<unknown> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(signal.reason);
    if (signal.aborted) return onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener('abort', onAbort));
  });
}

/**
 * One end of one channel, for one conversation. `send` and `peer` never wait behind a `poll`.
 *
 * A seq is spent when something is sealed under it, and only those very bytes are ever sent again: the key stream is
 * used once whatever the relay does. The cursor moves on frames that authenticate, so junk cannot make a channel deaf.
 */
export class Session {
  readonly #identity: Identity;
  readonly #relay: Relay;
  readonly #o: SessionOptions;
  readonly #http: Http;
  readonly #posts = new Turns();
  readonly #polls = new Turns();
  #state: State = 'none';
  #why = '';
  #topic = '';
  #present = false;
  /** Somebody has the other seat. A seat cannot be given up. */
  #joined = false;
  #initiator = false;
  #membership: Membership | undefined;
  /** Until the keys are there. */
  #secret: Secret | undefined;
  #handshake: Handshake | undefined;
  /** Fixed when the state is saved, so that each copy of it ends up with the same keys. */
  #ephemeral: Uint8Array | undefined;
  #keys: TransportKeys | undefined;
  #transport: Transport | undefined;
  #peerKey: PublicKey | undefined;
  /** The last seq that was spent, and the last one that came and was authentic. */
  #seq = 0n;
  #floor = 0n;
  /** A resumed session does not know what other copies of its state have sealed. */
  #resumed = false;
  #confirmed = false;
  /** To be sealed; sealed and to be posted; sealed, not posted, its sender told. */
  #queue: Message[] = [];
  #outbox: Frame[] = [];
  #failed: { text: string; frame: Frame } | undefined;
  #hello: Frame | undefined;
  #helloAt = 0;
  #helloMs = HELLO_MS;
  /** Read and not yet handed out; and the error to be raised when nothing is left to hand out. */
  #inbox: Received[] = [];
  #problem: unknown;
  readonly #junk = new Set<string>();
  #idle = 0;
  /** Ends the poll under way once this end has closed and nobody is left to be told. */
  #end = new AbortController();

  constructor(identity: Identity, relay: Relay, o: SessionOptions = {}) {
    this.#identity = identity;
    this.#relay = relay;
    this.#o = o;
    this.#http = transportOf(o);
  }

  /** As of the last call. Asks nobody. */
  get peer(): Peer {
    const id = this.#peerKey && sha256(this.#peerKey);
    const peer = { topic: this.#topic, state: this.#state, present: this.#present };
    return id ? { id, fingerprint: fingerprint(id), ...peer } : { fingerprint: '', ...peer };
  }

  /**
   * Opens a channel. The invite goes to the other agent by a way that nobody else reads.
   *
   * @param topic what it is about; the joiner sees it
   * @throws BadState the session is used already
   * @throws FrameTooLong the topic has more than 65,505 bytes, escaped
   * @throws RelayRefused, Unavailable the session is as it was
   */
  open(topic: string, o: Abortable = {}): Promise<Invite> {
    const signal = this.#signal(o);
    return this.#posts.take(async () => {
      this.#unused();
      const { length } = marshalHandshakePayload({ topic, capabilities: {} });
      if (length > MAX_PAYLOAD) throw new FrameTooLong(length, MAX_PAYLOAD);
      const channel = this.#http.random(16);
      const secret = Secret.from(this.#http.random(32));
      const relay = this.#o.host ?? this.#relay.host ?? '';
      const invite = new Invite({ relay, channel, key: this.#identity.publicKey, secret });
      this.#seated(await this.#relay.open(channel, secret.joinToken(), { signal }), secret);
      this.#topic = topic;
      return invite;
    }, signal);
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
  join(invite: Invite | string, o: Abortable = {}): Promise<void> {
    const signal = this.#signal(o);
    return this.#posts.take(async () => {
      const { channel, key, secret, relay } = typeof invite === 'string' ? Invite.parse(invite) : invite;
      if (this.#initiator && equalBytes(channel, this.#membership!.channel)) {
        if (!this.#outbox.length) throw refused('full');
      } else {
        this.#unused();
        try {
          this.#identity.shared(key);
        } catch {
          throw new BadInvite('bad key');
        }
        const seat = await this.#relay.join(channel, secret.joinToken(), { signal }).catch((cause) => {
          throw isForgotten(cause) ? refused('no-channel', `; the invite is for the relay at ${relay || '?'}`) : cause;
        });
        this.#seated(seat, secret, key);
      }
      await this.#flush(signal);
    }, signal);
  }

  /**
   * Says something. Before the handshake it is queued and goes out right after it.
   *
   * @throws SessionClosed
   * @throws CapacityReached 1,024 texts are queued
   * @throws Unavailable, RelayRefused it may have arrived; said again in the same words, it arrives once
   */
  async send(text: string, o: Abortable = {}): Promise<void> {
    if (this.#state === 'closed') throw new SessionClosed(this.#why);
    const message: Message = { kind: 'say', text };
    if (!this.#transport) {
      if (this.#queue.length >= MAX_QUEUE) throw new CapacityReached(`${MAX_QUEUE} messages wait for the handshake`);
      this.#queue.push(message);
      return;
    }
    const signal = this.#signal(o);
    await this.#posts.take(async () => {
      await this.#flush(signal);
      if (this.#failed?.text !== text) this.#failed = { text, frame: this.#seal(message) };
      await this.#post(this.#failed.frame, signal);
      this.#failed = undefined;
    }, signal);
  }

  /**
   * What arrived, waiting for it at most `waitMs`, however long the relay holds a read. Finishes the handshake on the
   * way. An error met beside messages is raised by the next poll; a frame that does not authenticate is one error.
   *
   * @throws RelayRefused, Unavailable the relay; `no-channel` is final and closes the session
   * @throws HandshakeFailed, DecryptError a frame was skipped; later ones are read
   */
  poll(waitMs: number = 0, o: Abortable = {}): Promise<Received[]> {
    const signal = this.#signal(o);
    return this.#polls.take(async () => {
      if (!this.#membership) throw refused('no-channel', ': open or join first');
      const deadline = this.#http.clock.now() + waitMs;
      if (this.#problem === undefined && !this.#inbox.length) {
        try {
          await this.#gather(this.#membership, deadline, signal);
        } catch (cause) {
          this.#problem ??= cause;
        }
      }
      const problem = this.#problem;
      if (this.#inbox.length) {
        // Who gave up does not want to hear of it at the next poll.
        if (signal?.aborted) this.#problem = undefined;
        return this.#inbox.splice(0);
      }
      this.#problem = undefined;
      if (problem !== undefined) throw problem;
      return [];
    }, signal);
  }

  /**
   * All that arrives, until the channel is closed. Waits out failures of the relay; skipped frames are events.
   *
   * @throws RelayRefused the relay gives the channel up
   */
  async *messages(o: Abortable = {}): AsyncGenerator<Received> {
    const signal = this.#signal(o);
    const step = async (waitMs: number): Promise<{ value?: Received[] }> => {
      try {
        const value = await this.poll(this.#over() ? 0 : waitMs, o);
        return value.length || this.#over() ? { value } : {};
      } catch (cause) {
        if (!(TechnocoreError.is(cause) && /^(?:handshake_failed|decrypt)$/.test(cause.code))) throw cause;
        return {};
      }
    };
    for await (const received of poll(this.#http, step, { waitMs: MAX_WAIT_MS, ...(signal && { signal }) })) {
      yield* received;
      if (this.#over()) return;
    }
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
    const state = this.#state;
    this.#shut('this end closed it');
    if (state === 'none' && this.#queue.length) {
      throw new SessionClosed(`${this.#queue.splice(0).length} queued messages had no channel to go to`);
    }
    const last: Message[] = state === 'closed' || state === 'none' ? [] : [{ kind: 'close', text: outcome }];
    if (!this.#transport) this.#queue.push(...last);
    else {
      await this.#posts.take(() => {
        this.#queue.push(...last);
        return this.#flush(signal);
      }, signal);
    }
    if (this.#over()) this.#end.abort();
  }

  /**
   * All that is needed to go on in another process: keys, seat, cursor, and what was not sent yet. To be guarded like a
   * private key, and to be resumed once; resumed twice, no seq is used twice all the same.
   */
  save(): Uint8Array {
    if (this.#secret) this.#ephemeral ??= this.#http.random(32);
    const keys = [this.#secret?.bytes(), this.#ephemeral, this.#keys?.send, this.#keys?.receive, this.#peerKey];
    const frames = [this.#hello, this.#failed?.frame, ...this.#outbox];
    const saved: Saved = {
      version: 1,
      self: toBase64url(this.#identity.publicKey),
      state: [this.#state, this.#why, this.#topic, this.#present, this.#joined, this.#initiator, this.#confirmed],
      seat: this.#membership && [toBase64url(this.#membership.channel), this.#membership.token],
      keys: keys.map((key) => key && toBase64url(key)),
      seqs: [`${this.#seq}`, `${this.#floor}`],
      frames: frames.map((f) => f && [`${f.seq}`, f.type, toBase64url(f.payload)]),
      failed: this.#failed?.text,
      queue: this.#queue,
      inbox: this.#inbox.map(({ kind, text }) => ({ kind, text })),
    };
    return utf8(JSON.stringify(saved));
  }

  /**
   * A session as it was saved. What was handed out after that is handed out again, for the relay keeps it.
   *
   * @throws BadKey no saved state, or one of another identity
   */
  static async resume(state: Uint8Array, identity: Identity, relay: Relay, o: SessionOptions = {}): Promise<Session> {
    const session = new Session(identity, relay, o);
    try {
      session.#restore(JSON.parse(fromUtf8(state)!));
    } catch (cause) {
      throw new BadKey('not the saved state of a session of this identity', cause);
    }
    return session;
  }

  #restore(saved: Saved): void {
    if (saved.version !== 1 || saved.self !== toBase64url(this.#identity.publicKey)) throw new SyntaxError();
    const { state } = saved;
    [this.#state, this.#why, this.#topic, this.#present, this.#joined, this.#initiator, this.#confirmed] = state;
    const bytes = (text: string): Uint8Array => sized(fromBase64url(text)!, text.length === 22 ? 16 : 32, 'a key');
    const [secret, ephemeral, send, receive, peerKey] = saved.keys.map((key) => (key ? bytes(key) : undefined));
    this.#ephemeral = ephemeral;
    this.#peerKey = peerKey;
    [this.#seq, this.#floor] = [BigInt(saved.seqs[0]), BigInt(saved.seqs[1])];
    this.#queue = saved.queue;
    if (!saved.seat) return;
    const channel = bytes(saved.seat[0]);
    this.#membership = { channel, token: saved.seat[1] };
    const [hello, failed, ...outbox] = saved.frames.map(
      (f) => f && { channel, seq: BigInt(f[0]), type: f[1], payload: fromBase64url(f[2])! },
    );
    this.#hello = hello ?? undefined;
    if (failed) this.#failed = { text: saved.failed!, frame: failed };
    this.#outbox = outbox as Frame[];
    if (send && receive) this.#keyed({ send, receive });
    else {
      this.#secret = Secret.from(secret!);
      this.#handshake = this.#shake();
      if (this.#initiator) this.#handshake.write(GREETING);
    }
    this.#inbox = saved.inbox.map((m) => ({ ...m, from: sha256(peerKey!) }));
    this.#resumed = true;
  }

  #signal(o: Abortable): AbortSignal | undefined {
    const { signal } = this.#o;
    return signal && o.signal ? AbortSignal.any([signal, o.signal]) : (o.signal ?? signal);
  }

  #unused(): void {
    if (this.#state === 'closed') throw new SessionClosed(this.#why);
    if (this.#state !== 'none')
      throw new BadState(this.#state, 'pending', 'the session has a channel: make another one');
  }

  #shut(why: string): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.#why = why;
  }

  // Closed, and nobody is left to be told.
  #over(): boolean {
    if (this.#state !== 'closed') return false;
    return this.#transport || this.#joined ? !this.#queue.length && !this.#outbox.length : true;
  }

  #seated(membership: Membership, secret: Secret, key?: PublicKey): void {
    if (this.#state === 'closed') throw new SessionClosed(this.#why);
    this.#state = 'pending';
    this.#membership = membership;
    this.#secret = secret;
    this.#peerKey = key;
    this.#initiator = this.#joined = this.#present = key !== undefined;
    if (key) this.#ephemeral = this.#http.random(32);
    this.#handshake = this.#shake();
    if (key) this.#greet(this.#handshake.write(GREETING));
  }

  #shake(): Handshake {
    const prologue = concat(utf8('parley/1'), this.#membership!.channel);
    const random = (n: number): Uint8Array => this.#ephemeral ?? this.#http.random(n);
    const o = { identity: this.#identity, psk: this.#secret!.psk(), prologue, random };
    return this.#initiator ? Handshake.initiator({ ...o, remote: this.#peerKey! }) : Handshake.responder(o);
  }

  // The handshake message is our first frame, also where a copy of the state sent it before.
  #greet(payload: Uint8Array): void {
    this.#seq = 1n;
    this.#hello = { channel: this.#membership!.channel, seq: 1n, type: 1, payload };
    this.#outbox.unshift(this.#hello);
  }

  #keyed(keys: TransportKeys): void {
    this.#keys = keys;
    this.#transport = createTransport(keys);
    this.#handshake = this.#secret = this.#ephemeral = undefined;
  }

  #seal(message: Message): Frame {
    const plain = marshalMessage(message);
    let seq = this.#seq + 1n;
    if (this.#resumed) {
      // The time, and 20 random bits: above whatever a copy of the state may have spent.
      const [a = 0, b = 0, c = 0] = this.#http.random(3);
      const fresh = (BigInt(this.#http.clock.now()) << 20n) | BigInt(((a & 15) << 16) | (b << 8) | c);
      if (fresh > seq) seq = fresh;
      this.#resumed = false;
    }
    this.#seq = seq;
    return { channel: this.#membership!.channel, seq, type: 2, payload: this.#transport!.seal(seq, plain) };
  }

  async #post(frame: Frame, signal: AbortSignal | undefined): Promise<void> {
    try {
      await this.#relay.send(this.#membership!, frame, { signal });
    } catch (cause) {
      this.#forgotten(cause);
      throw cause;
    }
    if (frame.type !== 1) return;
    this.#helloAt = this.#http.clock.now() + this.#helloMs;
    this.#helloMs *= 2;
  }

  // The outbox, then the queue. Runs in the turn of whoever posts.
  async #flush(signal: AbortSignal | undefined): Promise<void> {
    if (this.#transport) this.#outbox.push(...this.#queue.splice(0).map((message) => this.#seal(message)));
    while (this.#outbox.length) {
      try {
        await this.#post(this.#outbox[0]!, signal);
      } catch (cause) {
        // What the relay will never take must not hold up the rest.
        if (TechnocoreError.is(cause) && cause.code === 'http') this.#outbox.shift();
        throw cause;
      }
      this.#outbox.shift();
    }
  }

  // A relay that has forgotten a channel will not remember it.
  #forgotten(cause: unknown): void {
    if (!isForgotten(cause)) return;
    this.#shut('the relay has forgotten the channel');
    this.#queue = [];
    this.#outbox = [];
  }

  // One poll: into the inbox what came, into `problem` the first thing that went wrong.
  async #gather(seat: Membership, deadline: number, signal: AbortSignal | undefined): Promise<void> {
    const { clock } = this.#http;
    const post = async (): Promise<void> => {
      if (this.#outbox.length || (this.#transport && this.#queue.length)) {
        await this.#posts.take(() => this.#flush(signal), signal).catch((cause) => (this.#problem ??= cause));
      }
    };
    if (!this.#joined)
      this.#joined = await this.#relay.members(seat, { signal }).then(
        (n) => n > 1,
        () => false,
      );
    this.#present = this.#joined || this.#state === 'closed';
    if (this.#hello && !this.#confirmed && !this.#outbox.length && clock.now() >= this.#helloAt) {
      this.#outbox.push(this.#hello);
    }
    await post();
    const wasOver = this.#over();
    this.#end = new AbortController();
    const ended = this.#end.signal;
    const either = wasOver || !signal ? (wasOver ? signal : ended) : AbortSignal.any([signal, ended]);
    for (;;) {
      const pause = Math.min(PAUSE_MS[0] * 2 ** (this.#idle - 1), PAUSE_MS[1], deadline - clock.now());
      const start = clock.now();
      let waitMs = 0;
      let frames: Frame[];
      try {
        if (this.#idle && pause > 0) await clock.sleep(pause, either);
        // With bad news to tell, nothing is waited for.
        if (this.#problem === undefined) waitMs = Math.min(Math.max(deadline - clock.now(), 0), MAX_WAIT_MS);
        frames = await this.#relay.recv(seat, this.#floor, waitMs, { signal: either });
      } catch (cause) {
        this.#forgotten(cause);
        if (!wasOver && ended.aborted && !signal?.aborted) return;
        throw cause;
      }
      const keyed = this.#take(frames);
      await post();
      const news = this.#inbox.length > 0;
      // A relay that answers early with nothing new (old frames, junk, or because it does not hold) must not make us spin.
      const early = frames.length > 0 || clock.now() - start < Math.min(waitMs, 1000) * 0.9;
      this.#idle = early && !news && !keyed ? this.#idle + 1 : 0;
      if (news || this.#problem !== undefined || (!wasOver && this.#over())) return;
      if (!keyed && (frames.length || clock.now() >= deadline)) return;
    }
  }

  // True when the handshake was finished.
  #take(frames: Frame[]): boolean {
    let keyed = false;
    for (const frame of frames) {
      const { seq, type, payload } = frame;
      // Data that overtook the handshake is read again after it.
      if (seq <= this.#floor || (type === 2 && !this.#transport)) continue;
      const name = this.#junk.size ? nameOf(frame) : '';
      if (this.#junk.has(name)) continue;
      try {
        if (type === 2) this.#accept(seq, this.#transport!.open(seq, payload));
        else if (type === 1 && this.#handshake) {
          this.#finish(this.#handshake, payload);
          this.#floor = seq;
          keyed = true;
        } else throw new DecryptError('layout', `frame ${seq} is of type ${type}, which was not expected`);
      } catch (cause) {
        if (this.#junk.size >= MAX_JUNK) continue;
        this.#junk.add(name || nameOf(frame));
        this.#problem ??= cause;
        this.#http.onEvent({ kind: 'skipped', seq: `${seq}`, cause });
      }
    }
    return keyed;
  }

  #finish(handshake: Handshake, message: Uint8Array): void {
    const payload = unmarshalHandshakePayload(handshake.read(message));
    this.#peerKey = handshake.remote;
    // The topic is the opener's: a joiner cannot rename it.
    if (this.#initiator) this.#topic = payload?.topic ?? '';
    else this.#greet(handshake.write(marshalHandshakePayload({ topic: this.#topic, capabilities: {} })));
    this.#confirmed = this.#initiator;
    this.#keyed(handshake.keys());
    this.#joined = this.#present = true;
    if (this.#state === 'pending') this.#state = 'active';
  }

  #accept(seq: bigint, plain: Uint8Array): void {
    const expected = this.#floor + 1n;
    if (seq > expected) this.#http.onEvent({ kind: 'gap', expected: `${expected}`, got: `${seq}` });
    this.#floor = seq;
    this.#confirmed = true;
    const message = unmarshalMessage(plain);
    this.#inbox.push({ ...message, from: sha256(this.#peerKey!) });
    if (message.kind === 'close') this.#shut('the other end closed it');
  }
}

/** What {@link Session.save} writes. Keys: secret, ephemeral, send, receive, peer. Frames: handshake, failed, outbox. */
interface Saved {
  version: 1;
  self: string;
  state: [State, why: string, topic: string, present: boolean, joined: boolean, initiator: boolean, confirmed: boolean];
  seat: [channel: string, token: string] | undefined;
  keys: (string | null | undefined)[];
  seqs: [seq: string, floor: string];
  frames: ([seq: string, type: FrameType, payload: string] | null | undefined)[];
  failed: string | undefined;
  queue: Message[];
  inbox: Message[];
}

const GREETING: Uint8Array = /* @__PURE__ */ marshalHandshakePayload({ capabilities: {} });

const nameOf = ({ seq, type, payload }: Frame): string => `${seq} ${type} ${toHex(sha256(payload))}`;
