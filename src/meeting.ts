/**
 * How two agents establish a sealed channel. The first writes a hello to a new room and sends the room's key to the
 * other's mailbox; the other writes its own hello to the room. Each hello signs who meets whom, where and under which
 * key, and both sides' random tokens. The frames that follow name a digest of the tokens, so that anything replayed
 * from an earlier meeting, including offers, belongs to another session.
 *
 * @module
 */
import { toBase64url, utf8 } from './bytes.ts';
import {
  checkLatency,
  checkMailbox,
  type Incoming,
  type Listener,
  openMailbox,
  type SendOptions,
  type Sent,
} from './channel.ts';
import { following } from './clock.ts';
import { sha256 } from './crypto.ts';
import { addresseeOf, e2eAccept, e2eOffer, isOffer } from './e2e.ts';
import {
  BadName,
  CallTimeout,
  checkFunction,
  checkFunctions,
  checkNumbers,
  type RingGap,
  TechnocoreError,
  withCallers,
} from './errors.ts';
import { authorOf, drop, feedOf } from './feed.ts';
import { compact } from './frames.ts';
import { decided, type Options, orAbort, retrying, type Transport, transportOf } from './http.ts';
import { identityKeys } from './identity.ts';
import { remember } from './maps.ts';
import { roomClasses, verify } from './names.ts';
import { checkSigner, PATIENCE_MS, readView, saySigned } from './rooms.ts';
import { NONE, Seal, type SealedChannel, SealedLine } from './sealed.ts';
import type { Signer } from './signer.ts';
import { Regulars } from './turns.ts';

/** `hello/1 alice bob p-room 1700 <alice's token> <bob's token> <signature>` */
const HELLO = 'hello/1';

interface Hello {
  /** The token of the side that started. */
  begun: string;
  /** The token of the side that answered; {@link NONE} in the first hello. */
  answered: string;
}

function helloText(seal: Seal, from: string, to: string, nonce: string, { begun, answered }: Hello): string {
  return `sealed|${seal.room}|${from}|${to}|${nonce}|${begun}|${answered}|${seal.keyId}`;
}

function sayHello(seal: Seal, to: string, hello: Hello, o: SendOptions): Promise<Sent> {
  const { signer } = seal;
  const sig = (nonce: string): string => signer.sign(helloText(seal, signer.did, to, nonce, hello));
  return seal.say(HELLO, to, (nonce) => `${hello.begun} ${hello.answered} ${sig(nonce)}`, o);
}

/** The hello from `peer` to us in a message. */
function helloIn(seal: Seal, m: Incoming, peer: string): Hello | undefined {
  if (m.from !== peer) return undefined;
  const { kind, fields } = seal.open(m) ?? {};
  if (kind !== HELLO) return undefined;
  const [to, begun = '', answered = '', sig = ''] = fields!;
  const hello = { begun, answered };
  if (verify(peer, sig, helloText(seal, peer, to!, m.nonce!, hello)) && to === seal.signer.did) return hello;
  return seal.refuse(m, 'a hello that its sender did not sign');
}

function sessionOf({ begun, answered }: Hello): string {
  return toBase64url(sha256(utf8(`${begun} ${answered}`)).subarray(0, 12));
}

/** True for rooms that are unlisted, cannot be owned, and whose messages do not expire. */
function isMeetingRoom(room: string): boolean {
  const { p, d, e } = roomClasses(room);
  return p && !d && !e;
}

/**
 * Opens an end-to-end encrypted channel to a DID, for {@link call}. The other side must be running
 * {@link acceptSealed}, and must have published its mailbox and key with {@link publishIdentity}. Only that DID can be
 * at the other end, and nothing replayed from an earlier channel counts in this one. It costs two writes and a new
 * room, so reuse the channel for many calls.
 *
 * @param did the `did:key` of the other side
 * @param signer the key of this side
 * @param o `timeoutMs`: how long to wait for the other side, in milliseconds; default 30,000. `key` and `room`: those
 * of an earlier channel between the two, to save the new room. `latency`: as in {@link CallOptions.latency}, for calls
 * through the channel
 * @returns the channel, once the other side has proved itself
 * @throws a {@link BadName} if it is not a `did:key`, or if `room` is not a `p-` room
 * @throws a {@link BadKey} if the DID has not published a signed key and mailbox
 * @throws a {@link CallTimeout} if the other side does not answer in time
 * @throws what {@link Signer.say} throws
 * @throws the signal's reason when it aborts
 * @example
 * ```ts
 * import { acceptSealed, call, connectSealed, methods, publishIdentity, serve, Signer } from 'technocore-rpc';
 *
 * const [ada, bob, stop] = [Signer.generate(), Signer.generate(), new AbortController()];
 * const { signal } = stop;
 *
 * // Bob's program
 * methods.set('add', ({ a, b }) => a + b);
 * await publishIdentity(bob, { mailbox: 'mb-p-bob-5c20' });
 * await new Promise<void>((onReady) => {
 *   void acceptSealed('mb-p-bob-5c20', bob, (channel, signal) => serve(channel, bob, { signal }), { signal, onReady });
 * });
 *
 * // Ada's program, which knows Bob's DID
 * const channel = await connectSealed(bob.did, ada);
 * console.log(await call(channel, 'add', { a: 1, b: 2 }, ada)); // 3
 *
 * stop.abort();
 * ```
 */
export async function connectSealed(
  did: string,
  signer: Signer,
  o: Options & {
    key?: Uint8Array | undefined;
    room?: string | undefined;
    timeoutMs?: number | undefined;
    latency?: 'fast' | 'frugal' | undefined;
  } = {},
): Promise<SealedChannel> {
  const t = transportOf(o);
  const { clock } = t;
  checkNumbers(o, ['timeoutMs']);
  checkLatency(o);
  const timeoutMs = o.timeoutMs ?? 30_000;
  const deadline = clock.now() + timeoutMs;
  o.signal?.throwIfAborted();
  const { stop, forget } = following(o.signal);
  const { signal } = stop;
  let place = did;
  clock.sleep(timeoutMs, signal).then(
    () =>
      stop.abort(
        new CallTimeout(
          place,
          did,
          timeoutMs,
          'no-answer',
          'the other side did not join the sealed room; is acceptSealed running there?',
        ),
      ),
    () => {},
  );
  let leave: (() => void) | undefined;
  try {
    const { mailbox, x25519 } = await orAbort(addresseeOf(did, { ...o, signal }), signal);
    place = mailbox;
    const { offer, key, room } = e2eOffer(x25519, o);
    if (!isMeetingRoom(room)) throw new BadName(room, 'the name of a sealed room for two must begin with p-');
    const seal = new Seal(t, room, key, signer);
    const begun = toBase64url(t.random(16));
    let onHello!: (hello: Hello) => void;
    let onEnd!: (cause: unknown) => void;
    const answer = new Promise<Hello>((resolve, reject) => {
      onHello = resolve;
      onEnd = reject;
    });
    answer.catch(() => {});
    const listener: Listener = {
      message(m) {
        const hello = helloIn(seal, m, did);
        if (hello?.begun === begun && hello.answered !== NONE) onHello(hello);
      },
      gap: () => {},
      end: onEnd,
    };
    leave = await feedOf(t, room).listen(listener, { signal });
    await sayHello(seal, did, { begun, answered: NONE }, { signal, deadline });
    await saySigned(t, signer, mailbox, offer, signal, deadline);
    return new SealedLine(seal, did, sessionOf(await orAbort(answer, signal)), o.latency);
  } catch (cause) {
    throw withCallers(signal.aborted ? signal.reason : cause);
  } finally {
    forget();
    leave?.();
    stop.abort();
  }
}

/** Options of {@link acceptSealed}. */
export interface AcceptOptions extends Options {
  /** The X25519 private key of the published key, 32 bytes. Default: that of {@link identityKeys}. */
  privateKey?: Uint8Array | undefined;
  /**
   * Decides who may open a channel, by DID. Default: everybody. If it throws, or has not decided after 30 seconds, the
   * offer is skipped.
   */
  allow?: ((from: string) => boolean | Promise<boolean>) | undefined;
  /**
   * The maximum number of concurrent channels; default 8. Each reads its own room, and the public service holds four
   * reads per address at a time.
   */
  sessions?: number | undefined;
  /** After how much silence from the other side a channel ends, in milliseconds; default 600,000. */
  idleMs?: number | undefined;
  /** Called once the mailbox is being read, so that no later offer can be missed. */
  onReady?: (() => void) | undefined;
}

/** How many offers are answered at a time. */
const MAX_MEETING = 16;
/** How many offers are remembered, so that a copy is not answered. */
const MAX_OFFERS = 1024;
/** The maximum number of sessions for one DID: after a crash, earlier ones linger. */
const PER_PEER = 2;
/** After how much silence a session may be replaced by another DID's, ms. */
const SILENT_MS = 60_000;
/** After how much time any session may be replaced, ms. */
const LASTED_MS = 120_000;
/** How often sessions are checked for silence, ms. */
const LOOK_MS = 10_000;

interface Session {
  readonly line: SealedLine;
  readonly peer: string;
  readonly stop: AbortController;
  /** Its peer's place in the order in which peers were first heard. */
  readonly rank: number;
  /** How long it has lasted, ms. Measured by sleeping, since clocks may be set. */
  lasted: number;
  /** How long it has been silent, ms. */
  silent: number;
}

/**
 * Accepts end-to-end encrypted channels: answers the offers that {@link connectSealed} sends to a mailbox, until
 * `o.signal` aborts. Other messages in the mailbox are ignored, so it can be served as well.
 *
 * @param mailbox the mailbox that this signer has published with {@link publishIdentity}
 * @param signer the key of this side
 * @param run called with the channel to each DID that has proved itself, and with a signal that aborts when the session
 * ends. The session lasts until the promise that it returns settles
 * @param o who may connect, how many at a time, and for how long: see {@link AcceptOptions}
 * @returns resolves after the signal has aborted and all sessions have ended
 * @throws a {@link BadName} if it is not a mailbox
 * @throws a {@link BadKey} if no signer is given
 * @throws what opening and reading the mailbox throws, unless it is transient
 * @example
 * ```ts
 * import { acceptSealed, publishIdentity, serve, Signer } from 'technocore-rpc';
 *
 * const signer = await Signer.fromDir();
 * await publishIdentity(signer, { mailbox: 'mb-p-vault-5c20' });
 * await acceptSealed('mb-p-vault-5c20', signer, (channel, signal) => serve(channel, signer, { signal }));
 * ```
 */
export async function acceptSealed(
  mailbox: string,
  signer: Signer,
  run: (channel: SealedChannel, signal: AbortSignal) => unknown,
  o: AcceptOptions = {},
): Promise<void> {
  const t = transportOf(o);
  checkSigner(signer);
  checkMailbox(mailbox);
  checkFunction(run, 'the function that runs a session');
  checkFunctions(o, ['allow', 'onReady']);
  checkNumbers(o, ['sessions', 'idleMs']);
  const acceptor = new Acceptor(t, mailbox, signer, run, o);
  let leave: (() => void) | undefined;
  try {
    await openMailbox(t, mailbox, signer, o.signal);
    leave = await feedOf(t, mailbox).listen(acceptor, { signal: o.signal });
    o.onReady?.();
    await orAbort(acceptor.ended, o.signal);
  } catch (cause) {
    if (!o.signal?.aborted) throw withCallers(cause);
  } finally {
    leave?.();
    await acceptor.close();
  }
}

class Acceptor implements Listener {
  readonly #t: Transport;
  readonly #mailbox: string;
  readonly #signer: Signer;
  readonly #run: (channel: SealedChannel, signal: AbortSignal) => unknown;
  readonly #o: AcceptOptions;
  readonly #privateKey: Uint8Array;
  readonly #offers = new Map<string, true>();
  readonly #sessions = new Set<Session>();
  readonly #tasks = new Set<Promise<void>>();
  /** The DIDs that have talked to us, in the order of their first message. */
  readonly #regulars: Regulars;
  #meeting = 0;
  #closed = false;
  readonly ended: Promise<never>;
  readonly end: (cause: unknown) => void;

  constructor(
    t: Transport,
    mailbox: string,
    signer: Signer,
    run: (channel: SealedChannel, signal: AbortSignal) => unknown,
    o: AcceptOptions,
  ) {
    this.#t = t;
    this.#mailbox = mailbox;
    this.#signer = signer;
    this.#run = run;
    this.#o = o;
    this.#regulars = new Regulars(t.clock);
    this.#privateKey = o.privateKey?.slice() ?? identityKeys(signer).privateKey;
    let end!: (cause: unknown) => void;
    this.ended = new Promise((_, reject) => {
      end = reject;
    });
    this.ended.catch(() => {});
    this.end = end;
  }

  gap(gap: RingGap): void {
    // The makers of lost offers may repeat them.
    this.#t.onEvent({ kind: 'lost', room: this.#mailbox, gap });
  }

  message(m: Incoming): void {
    if (m.from === '' || m.from === this.#signer.did || !isOffer(m.text)) return;
    if (this.#offers.has(m.text)) this.#refuse(m, 'an offer that came before');
    else if (this.#meeting >= MAX_MEETING) this.#refuse(m, 'too many offers at once');
    else this.#begin(m);
  }

  #begin(m: Incoming): void {
    remember(this.#offers, m.text, true, MAX_OFFERS);
    this.#meeting++;
    const task = this.#meet(m)
      .catch((cause) => drop(this.#t, 'skipped', m, { cause }))
      .finally(() => this.#meeting--);
    this.#track(task);
  }

  /** Ends all sessions. */
  async close(): Promise<void> {
    this.#closed = true;
    for (const { stop } of this.#sessions) stop.abort(this.#o.signal?.reason);
    while (this.#tasks.size > 0) await Promise.allSettled(this.#tasks);
  }

  #refuse(m: Incoming, reason: string): undefined {
    drop(this.#t, 'refused', m, { reason });
  }

  #track(task: Promise<unknown>): void {
    const tracked: Promise<void> = task.then(() => void this.#tasks.delete(tracked));
    this.#tasks.add(tracked);
  }

  async #meet(m: Incoming): Promise<undefined> {
    const { room, key } = e2eAccept(m.text, this.#privateKey);
    if (!isMeetingRoom(room)) return this.#refuse(m, 'the room of the offer is not private');
    const t = this.#t;
    const { allow } = this.#o;
    const isAllowed = allow === undefined || (await decided(t, PATIENCE_MS, allow(m.from), this.#o.signal));
    if (!isAllowed) return this.#refuse(m, 'not allowed');
    const seal = new Seal(t, room, key, this.#signer);
    const deadline = t.clock.now() + PATIENCE_MS;
    const { signal } = this.#o;
    const view = await retrying(t, deadline, () => readView(t, room, { limit: 200 }, signal), signal);
    // Nothing is written to a room until the maker of the offer has proved that it is theirs.
    let hello: Hello | undefined;
    for (let said = view.messages.pop(); said && hello?.answered !== NONE; said = view.messages.pop()) {
      hello = helloIn(seal, { ...said, from: authorOf(t, room, said), room }, m.from);
    }
    if (hello?.answered !== NONE) return this.#refuse(m, 'an offer whose maker is not in its room');
    if (this.#closed) return;
    if (!this.#makeRoom(m.from)) return this.#refuse(m, 'too many sessions');
    const answer = { begun: hello.begun, answered: toBase64url(t.random(16)) };
    const line = new SealedLine(seal, m.from, sessionOf(answer));
    const rank = this.#regulars.rank(m.from);
    const session: Session = { line, peer: m.from, stop: new AbortController(), rank, lasted: 0, silent: 0 };
    this.#sessions.add(session);
    try {
      const { generation, lastSeq: since } = view;
      await line.hold(compact({ since, generation }));
      await sayHello(seal, m.from, answer, { deadline, signal: session.stop.signal });
    } catch (cause) {
      this.#forget(session);
      throw cause;
    }
    this.#track(this.#live(session));
  }

  async #live(session: Session): Promise<void> {
    const { line, stop } = session;
    this.#track(this.#watch(session));
    try {
      await this.#run(line, stop.signal);
    } catch (cause) {
      if (!stop.signal.aborted) this.#t.onEvent({ kind: 'session-error', room: line.room, from: line.peer, cause });
    } finally {
      this.#forget(session);
    }
  }

  #forget(session: Session): void {
    this.#sessions.delete(session);
    if (session.line.heard > 0) this.#regulars.note(session.peer);
    session.line.close();
    session.stop.abort();
  }

  /** Ends a session when the other side has been silent for too long. */
  async #watch(session: Session): Promise<void> {
    const { line, peer, stop } = session;
    const idleMs = this.#o.idleMs ?? 600_000;
    const lookMs = Math.min(idleMs / 4, LOOK_MS);
    try {
      for (let heard = line.heard; session.silent < idleMs; heard = line.heard) {
        await this.#t.clock.sleep(lookMs, stop.signal);
        session.lasted += lookMs;
        session.silent = line.heard === heard ? session.silent + lookMs : 0;
      }
      stop.abort(new TechnocoreError('idle', `${peer} said nothing for ${idleMs} ms`));
    } catch {
      // The session has ended.
    }
  }

  /** Makes room for one more session with `peer`, by ending another one if that is fair. */
  #makeRoom(peer: string): boolean {
    const all = [...this.#sessions].sort((a, b) => b.silent - a.silent);
    const own = all.filter((session) => session.peer === peer);
    const isFull = all.length >= (this.#o.sessions ?? 8);
    const given = own.length >= PER_PEER || isFull ? (own[0] ?? this.#givesWay(all, peer)) : undefined;
    if (given) {
      this.#sessions.delete(given);
      given.stop.abort(new TechnocoreError('replaced', 'given up for a newer session'));
    }
    return given !== undefined || !isFull;
  }

  /**
   * The session to end for a new one with `peer`: a silent one, one with a DID that came later, one of several with the
   * same DID, or one that has lasted long. So new keys, which cost nothing, cannot lock out earlier ones, and nobody is
   * locked out forever.
   */
  #givesWay(all: Session[], peer: string): Session | undefined {
    const [first] = all;
    if (first && first.silent >= SILENT_MS) return first;
    const rank = this.#regulars.rank(peer);
    const isOneOfMany = (one: Session): boolean => all.some((other) => other !== one && other.peer === one.peer);
    const [given] = all
      .filter((one) => one.rank > rank || one.lasted >= LASTED_MS || isOneOfMany(one))
      .sort((a, b) => (a.rank === b.rank ? b.lasted - a.lasted : b.rank > a.rank ? 1 : -1));
    return given;
  }
}
