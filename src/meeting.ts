/**
 * How two agents come to a sealed channel. The one who begins writes its hello into a new room and sends the room's key
 * to the other's mailbox; the other writes its own hello into the room. Each signs who meets whom, where and under which
 * key, and both tokens: the frames that follow name their digest, so that whatever is replayed of an earlier meeting,
 * offers included, belongs to another session.
 *
 * @module
 */
import { toBase64url, utf8 } from './bytes.ts';
import { checkMailbox, type Incoming, type Listener, openMailbox, type SendOptions, type Sent } from './channel.ts';
import { following } from './clock.ts';
import { sha256 } from './crypto.ts';
import { addresseeOf, e2eAccept, e2eOffer, isOffer, type SealedRoom } from './e2e.ts';
import { BadName, CallTimeout, type RingGap, TechnocoreError } from './errors.ts';
import { authorOf, drop, feedOf } from './feed.ts';
import { compact } from './frames.ts';
import { type Options, orAbort, retrying, type Transport, transportOf } from './http.ts';
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
  /** Token of the one who began. */
  begun: string;
  /** Token of the one who answered; {@link NONE} in the first hello. */
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

/** The hello of `peer` to us that a message holds. */
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

/** Rooms in which strangers neither look nor decide, and whose messages stay. */
function isMeetingRoom(room: string): boolean {
  const { p, d, e } = roomClasses(room);
  return p && !d && !e;
}

/**
 * Opens a sealed channel to a DID, which must be accepting ({@link acceptSealed}): seals a new room's key to the key that
 * the DID signed, delivers the offer to its mailbox, and resolves once it has proved itself in the room. Nobody else can
 * be at the other end, and nothing of an earlier channel counts in this one. Costs two writes and a new room; keep the
 * channel for many calls.
 *
 * @param o `timeoutMs`: default 30,000; `key`, `room`: of an earlier meeting of the two, to do without a new room
 * @throws BadName not a did:key, or a room that is not private
 * @throws BadKey the DID has published no signed key and mailbox
 * @throws CallTimeout it did not answer in time
 * @throws whatever {@link Signer.say} throws; the signal's reason
 * @example
 * const bob = await connectSealed(bobDid, me);
 * await call(bob, 'add', { a: 1, b: 2 }, me);
 */
export async function connectSealed(
  did: string,
  signer: Signer,
  o: Options & Partial<SealedRoom> & { timeoutMs?: number } = {},
): Promise<SealedChannel> {
  const t = transportOf(o);
  const { clock } = t;
  const timeoutMs = o.timeoutMs ?? 30_000;
  const deadline = clock.now() + timeoutMs;
  o.signal?.throwIfAborted();
  const { stop, forget } = following(o.signal);
  const { signal } = stop;
  let place = did;
  clock.sleep(timeoutMs, signal).then(
    () =>
      stop.abort(new CallTimeout(place, did, timeoutMs, 'no-answer', 'the other side did not join the sealed room')),
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
    return new SealedLine(seal, did, sessionOf(await orAbort(answer, signal)));
  } catch (cause) {
    throw signal.aborted ? signal.reason : cause;
  } finally {
    forget();
    leave?.();
    stop.abort();
  }
}

/** Options of {@link acceptSealed}. */
export interface AcceptOptions extends Options {
  /** Of the X25519 key that the identity note names, 32 bytes; default: that of {@link identityKeys}. */
  privateKey?: Uint8Array;
  /** Who may come; default: everybody. */
  allow?: (from: string) => boolean | Promise<boolean>;
  /** Most sessions at a time; default 8. Each reads a room of its own, and the service holds four reads of an address. */
  sessions?: number;
  /** How long a session lasts in which the other side says nothing, ms; default 600,000. */
  idleMs?: number;
  /** Called once offers are taken. */
  onReady?: () => void;
}

/** Offers that are looked into at a time. */
const MAX_MEETING = 16;
/** Offers remembered, so that a copy is not looked into again. */
const MAX_OFFERS = 1024;
/** Sessions of one DID: after a crash the earlier ones linger. */
const PER_PEER = 2;
/** A session that was silent for so long may be given up for somebody else's, ms; so may any that lasted for so long. */
const SILENT_MS = 60_000;
const LASTED_MS = 120_000;
/** How often it is looked whether sessions are silent, ms. */
const LOOK_MS = 10_000;

interface Session {
  readonly line: SealedLine;
  readonly peer: string;
  readonly stop: AbortController;
  /** How early its peer came, among all. */
  readonly rank: number;
  /** How long it lasts, and how long nothing was heard in it, ms slept: clocks get set. */
  lasted: number;
  silent: number;
}

/**
 * Takes the offers that come to a mailbox, and meets those who make them: `run` gets a channel to each that has proved
 * itself, and a signal that ends with the session; the session lasts until what `run` returns settles. Other messages in
 * the mailbox are left alone, so it can be served as well.
 *
 * @returns resolves after `o.signal` aborts and all sessions have ended
 * @throws BadName not a mailbox
 * @throws what opening and reading the mailbox throws, when it cannot be waited out
 * @example
 * await publishIdentity(me, { mailbox });
 * await acceptSealed(mailbox, me, (channel, signal) => serve(channel, me, { methods, signal }), { signal });
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
  const acceptor = new Acceptor(t, mailbox, signer, run, o);
  let leave: (() => void) | undefined;
  try {
    await openMailbox(t, mailbox, signer, o.signal);
    leave = await feedOf(t, mailbox).listen(acceptor, { signal: o.signal });
    o.onReady?.();
    await orAbort(acceptor.ended, o.signal);
  } catch (cause) {
    if (!o.signal?.aborted) throw cause;
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
  /** Who talked to us before whom. */
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
    // Lost offers are for their makers to repeat.
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
    if (!((await this.#o.allow?.(m.from)) ?? true)) return this.#refuse(m, 'not allowed');
    const t = this.#t;
    const seal = new Seal(t, room, key, this.#signer);
    const deadline = t.clock.now() + PATIENCE_MS;
    const { signal } = this.#o;
    const view = await retrying(t, deadline, () => readView(t, room, { limit: 200 }, signal), signal);
    // Nothing is written to a room in which the maker of the offer has not proved that it is theirs.
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

  /** Ends a session whose other side fell silent. */
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
      // Ended before.
    }
  }

  /** Makes room for one more session of `peer`, if that is fair to the others. */
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
   * The session to give up for one of `peer`: a silent one, or that of a later comer, or one of several of a key, or one that
   * lasts for long. So those who were there first are not locked out by keys made in a hurry, nor anybody for ever.
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
