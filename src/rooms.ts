/**
 * Rooms: reading with a cursor that survives gaps and recreations, and writing so that nothing is posted twice. Rules:
 * wire sections 4, 5, 7 and 13 of the service.
 *
 * @module
 */
import {
  BadKey,
  type HttpError,
  MayHaveLanded,
  RingGap,
  type StaleNonce,
  TechnocoreError,
  Unavailable,
} from './errors.ts';
import { compact, sweep } from './frames.ts';
import {
  Attempts,
  budgetOf,
  type Clock,
  isTransient,
  neverSent,
  type Options,
  type Polled,
  poll,
  retrying,
  sharedOf,
  type Transport,
  transportOf,
} from './http.ts';
import { exportOf, type Message, type PolledView, type RoomView, viewOf } from './messages.ts';
import { checkName, roomClasses } from './names.ts';
import { ask, learnLimits, uncached, type Write, writeRequest } from './service.ts';

/** Most messages that one read returns. */
const MAX_LIMIT = 200;
/** How long a write or a read keeps trying, ms, where the caller set no bound. */
export const PATIENCE_MS = 30_000;

// --- reading ----------------------------------------------------------------------------------------------------

/** What to read. */
export interface ReadOptions {
  /** Only messages after this seq. */
  since?: number;
  /** 1 to 200, default 50: the newest that match. */
  limit?: number;
  /** Hold the request until something newer than `since` comes, ms, at most 10,000. Needs `since`. */
  waitMs?: number;
}

/** @internal One read, one request. */
export async function readView(t: Transport, room: string, o: ReadOptions, signal?: AbortSignal): Promise<PolledView> {
  const query = ['format=json', `limit=${o.limit ?? 50}`];
  if (o.since !== undefined) query.push(`since=${o.since}`);
  query.push(o.waitMs ? `wait=${o.waitMs / 1000}` : uncached(t));
  const path = `/r/${room}?${query.join('&')}`;
  const reply = await ask(t, { path, bucket: 'read', waitMs: o.waitMs ?? 0, signal });
  const view = viewOf(room, reply.text);
  return o.since === undefined ? view : { ...view, since: o.since };
}

/**
 * The newest messages of a room, oldest first. A room nobody wrote to reads as empty.
 *
 * @throws BadName not a room name
 */
export async function read(room: string, o: Options & ReadOptions = {}): Promise<RoomView> {
  checkName(room, 'room');
  const t = transportOf(o);
  const deadline = t.clock.now() + (o.waitMs ?? 0) + PATIENCE_MS;
  const view = await retrying(t, deadline, () => readView(t, room, o, o.signal), o.signal);
  const { waitHeld: _held, posted: _posted, since: _since, ...shown } = view;
  return shown;
}

/** Where a reader of a room stands. */
export interface Place {
  /** The last seq read. */
  since: number;
  generation?: number;
  /** Time of the message at `since`. */
  mark?: string;
  /** When a server that keeps this place last said in the mailbox's presence note that it is there, by its own clock, ms. */
  said?: number;
}

/** The place behind one of the messages of a view, the last one by default. */
export function placeOf({ lastSeq, generation, messages }: RoomView, since: number = lastSeq): Place {
  const mark = messages.find(({ seq }) => seq === since)?.ts;
  return compact({ since, generation, mark });
}

/** Keeps the place of a reader over restarts. */
export interface CursorStore {
  load(room: string): Place | undefined | Promise<Place | undefined>;
  save(room: string, place: Place): void | Promise<void>;
}

/** What a step of a cursor brought. */
export interface Batch {
  /** What was lost before `messages`, if anything. */
  gap?: RingGap;
  messages: Message[];
}

/** Empty reads between two cursor-free probes of a service that has no generations: about a minute. */
const PROBE_EVERY = 6;
/** How often in a row the export may fail before what it would have shown counts as lost. */
const EXPORT_TRIES = 4;
const EXPORTS = {};
/** Messages that the answer to a write shows. */
const SHOWN = 20;
/** @internal What the line says by which a mailbox is opened: by whoever reads there, and by nobody who only calls. */
export const OPENING = 'mailbox opened';

/**
 * A place in a room, and the rules by which it moves. It never advances from an empty answer; it tells a room that
 * overflowed from one that was recreated, and that from an `e-` room whose messages expired.
 *
 * @internal
 */
export class RoomCursor {
  readonly room: string;
  readonly #t: Transport;
  /** The last seq seen; undefined until the first read has found the tail. */
  since: number | undefined;
  generation: number | undefined;
  /** Time of the message at `since`: another time there means another room (services without generations). */
  #mark: string | undefined;
  #empties = 0;
  /** Where the cursor stood in a long silence: what came then may have followed upon another message, in another room. */
  #doubted: Place | undefined;
  #unchecked = false;
  /** Set at 0 by a room that showed nothing, whose seq may go on all the same: the next message is then no gap. */
  #isBlank = false;
  #lives = 0;
  #failures = 0;

  constructor(t: Transport, room: string, since?: number) {
    this.#t = t;
    this.room = checkName(room, 'room');
    this.since = since;
    // Where somebody else read up to may be in a room that is gone: the first empty answer is looked into.
    if (since) this.#empties = PROBE_EVERY - 1;
  }

  /** Puts the cursor behind the newest message, without reading any. */
  async toTail(signal?: AbortSignal): Promise<void> {
    // Without generations only what stood where the cursor was shows whether it still is the same room.
    const looks = this.#mark !== undefined && this.generation === undefined;
    const view = await readView(this.#t, this.room, { limit: looks ? MAX_LIMIT : 1 }, signal);
    if (looks && !this.#isSame(view)) this.#lives++;
    this.since = view.lastSeq;
    this.#isBlank = view.lastSeq === 0;
    this.generation = view.generation;
    this.#mark = view.messages.at(-1)?.ts;
  }

  /** Which life of the room this is: the service's count, or ours of those that this cursor saw. */
  get epoch(): number {
    return this.generation ?? this.#lives;
  }

  /** Where the cursor stands, to be kept and set again. */
  get place(): Place | undefined {
    const { since, generation } = this;
    return since === undefined ? undefined : compact({ since, generation, mark: this.#mark });
  }

  set place(place: Place) {
    this.since = place.since;
    this.generation = place.generation;
    this.#mark = place.mark;
    // The room may have been recreated while nobody looked; a generation tells by itself.
    this.#unchecked = place.generation === undefined;
  }

  /** One read behind the cursor, held up to `waitMs` when nothing is there; {@link take} moves the cursor. */
  async look(waitMs: number, signal?: AbortSignal): Promise<PolledView> {
    if (this.since === undefined) await this.toTail(signal);
    // A cursor that was kept elsewhere is compared with the room before it waits there.
    const o = this.#unchecked ? { limit: MAX_LIMIT } : { since: this.since!, limit: MAX_LIMIT, waitMs };
    return readView(this.#t, this.room, o, signal);
  }

  /** One read and what is new in it. Messages that were returned are never returned again. */
  async next(waitMs: number, signal?: AbortSignal): Promise<Polled<Batch>> {
    const view = await this.look(waitMs, signal);
    const value = await this.take(view, signal);
    return value ? { value } : view.waitHeld === undefined ? {} : { held: view.waitHeld };
  }

  /** What is new in a view that was read with `since`; undefined when nothing is. */
  async take(view: PolledView, signal?: AbortSignal): Promise<Batch | undefined> {
    if (this.#unchecked) {
      this.#unchecked = false;
      const recreated = this.#compare(view);
      if (recreated) return recreated;
    }
    const since = this.since!;
    const fresh = view.messages.filter((m) => m.seq > since);
    // Asked for before the cursor came here: that it shows nothing newer says nothing.
    if (fresh.length === 0 && view.since !== undefined && view.since < since) return undefined;
    let isNext = fresh[0]?.seq === since + 1 || (this.#isBlank && roomClasses(this.room).e);
    if (view.generation !== undefined) {
      const known = this.generation;
      this.generation = view.generation;
      if (this.#isBlank && known !== view.generation) isNext = true;
      // The seq goes on in the new room; a cursor at 0 has nothing of the old one.
      if (known !== undefined && known !== view.generation && since > 0) {
        return view.lastSeq < since ? this.#restart(signal) : this.#recreated(fresh, view);
      }
    }
    if (fresh.length > 0) {
      this.#doubted = this.#empties >= PROBE_EVERY ? this.place : undefined;
      this.#empties = 0;
      return this.#advance(fresh, isNext ? undefined : await this.#recover(since, fresh, signal));
    }
    if (view.lastSeq < since) return this.#restart(signal);
    // A service without generations echoes a cursor of a room that is gone; only a look without it shows the tail.
    if (this.generation !== undefined) return undefined;
    const doubted = this.#doubted;
    this.#doubted = undefined;
    return ++this.#empties % PROBE_EVERY === 0 || doubted ? this.#restart(signal, doubted) : undefined;
  }

  /** Looks without a cursor whether the room was recreated, and if so begins with its first message. */
  async #restart(signal?: AbortSignal, place?: Place): Promise<Batch | undefined> {
    return this.#compare(await readView(this.#t, this.room, { limit: MAX_LIMIT }, signal), place);
  }

  /** Whether a view that was read without a cursor is of the room that the cursor stands in, or stood in, as far as it shows. */
  #isSame(view: PolledView, { since, mark: known } = this.place!): boolean {
    // An ephemeral room whose messages expired reads 0 while its seq goes on.
    if (view.lastSeq === 0 && roomClasses(this.room).e) return true;
    const mark = view.messages.find((m) => m.seq === since);
    return view.lastSeq >= since && (mark === undefined || known === undefined || mark.ts === known);
  }

  #compare(view: PolledView, place?: Place): Batch | undefined {
    this.generation = view.generation ?? this.generation;
    if (this.#isSame(view, place)) return undefined;
    return this.#recreated(view.messages, view);
  }

  #recreated(messages: Message[], view: PolledView): Batch {
    const gap = new RingGap(this.room, this.since! + 1, messages[0]?.seq ?? view.lastSeq + 1, 'recreated');
    this.since = view.lastSeq;
    this.#isBlank = view.lastSeq === 0;
    this.#mark = undefined;
    this.#lives++;
    this.#t.onEvent({ kind: 'epoch', room: this.room, since: gap.expected - 1, generation: view.generation });
    return this.#advance(messages, { messages, gap });
  }

  #advance(messages: Message[], batch: Batch = { messages }): Batch {
    const last = batch.messages.at(-1);
    if (last) {
      this.since = last.seq;
      this.#isBlank = false;
      this.#mark = last.ts;
    }
    if (batch.gap) this.#t.onEvent({ kind: 'gap', room: this.room, gap: batch.gap });
    return batch;
  }

  /** What a view that begins too late left out: from the export where the service has one, else it is a gap. */
  async #recover(since: number, fresh: Message[], signal?: AbortSignal): Promise<Batch> {
    let whole: Message[] | undefined;
    try {
      whole = await exported(this.#t, this.room, signal);
    } catch (cause) {
      // The cursor has not moved: the next read comes here again, but not for ever.
      if (!isTransient(cause) || this.#failures++ < EXPORT_TRIES) throw cause;
    }
    this.#failures = 0;
    const messages = whole ? whole.filter((m) => m.seq > since) : fresh;
    if ((messages.at(-1)?.seq ?? 0) < fresh.at(-1)!.seq) return this.#gap(since, fresh);
    return messages[0]!.seq > since + 1 ? this.#gap(since, messages) : { messages };
  }

  #gap(since: number, messages: Message[]): Batch {
    return { messages, gap: new RingGap(this.room, since + 1, messages[0]!.seq, 'overflow') };
  }
}

/**
 * The whole ring of a room, or undefined where the service has no export.
 *
 * @throws what is transient
 */
async function exported(t: Transport, room: string, signal?: AbortSignal): Promise<Message[] | undefined> {
  const known = sharedOf(t, EXPORTS, () => ({ missing: false }));
  if (known.missing) return undefined;
  try {
    return exportOf((await ask(t, { path: `/r/${room}/export`, bucket: 'read', signal })).text);
  } catch (cause) {
    if (!TechnocoreError.is(cause) || isTransient(cause)) throw cause;
    known.missing = /^404 no route/.test((cause as HttpError).body);
    return undefined;
  }
}

/**
 * Every message of a room as it comes, without end. Network trouble is waited out.
 *
 * @param o `since`: begin after that seq; default: only what comes from now on
 * @throws RingGap messages were lost; `oldest - 1` is the `since` to go on from
 * @throws the signal's reason when it aborts
 */
export async function* follow(room: string, o: Options & { since?: number } = {}): AsyncGenerator<Message> {
  const t = transportOf(o);
  const cursor = new RoomCursor(t, room, o.since);
  void learnLimits(t);
  for await (const batch of poll(t, (waitMs) => cursor.next(waitMs, o.signal), o)) {
    if (batch.gap) throw batch.gap;
    yield* batch.messages;
  }
}

// --- writing ----------------------------------------------------------------------------------------------------

/** A signed message, ready to be sent. */
export interface SignedMessage {
  did: string;
  sig: string;
  nonce: string;
  /** Swept. */
  text: string;
  /** What was signed: `<room>|<nonce>|<text>`. */
  canonical: string;
}

/** What writing needs of a Signer. */
export interface SigningKey {
  readonly did: string;
  signMessage(room: string, nonce: string, text: string): SignedMessage;
  signNote(
    ns: string,
    key: string,
    nonce: string,
    value: string,
  ): { did: string; sig: string; nonce: string; value: string; canonical: string };
  /** Runs `use` with a nonce above all before it in this scope; uses of one scope run one after the other. */
  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T>;
  /** Makes later nonces of the scope rise above `last`. */
  raiseNonce(scope: string, last: string, clock: Clock): void | Promise<void>;
}

/**
 * @internal
 * @throws BadKey no signer: forgotten, or not awaited
 */
export function checkSigner(signer: SigningKey): void {
  if (typeof signer?.signMessage === 'function') return;
  throw new BadKey('a Signer is needed; Signer.fromDir() gives a promise of one: await it');
}

/**
 * Appends an unsigned message.
 *
 * @throws BadName, EmptyText, FrameTooLong before anything is sent
 * @throws Forbidden a mailbox, an owned room, or `events`
 * @throws MayHaveLanded the answer was lost; nothing in an unsigned message lets us recognise our own
 */
export async function say(room: string, nick: string, text: string, o: Options = {}): Promise<{ seq: number }> {
  checkName(room, 'room');
  checkName(nick, 'nick');
  const swept = sweep(text);
  const t = transportOf(o);
  const write = roomWrite(room, `say/${nick}`, swept, { from: nick, text: swept });
  const deadline = t.clock.now() + PATIENCE_MS;
  const attempts = new Attempts(t, deadline, o.signal);
  for (;;) {
    try {
      return { seq: (await send(t, room, write, deadline, o.signal)).posted! };
    } catch (cause) {
      if (o.signal?.aborted || !isTransient(cause)) throw cause;
      if (mayBeDone(cause)) throw new MayHaveLanded(room, undefined, cause);
      if (!(await attempts.again(cause, { room }))) throw cause;
    }
  }
}

/** Whether a write that failed transiently may have been executed: not after a 429 or 408, nor without a connection. */
export function mayBeDone(cause: unknown): boolean {
  return (cause as TechnocoreError).code === 'unavailable' && !neverSent(cause);
}

function roomWrite(room: string, route: string, text: string, body: Record<string, string>): Write {
  return {
    path: `/r/${room}/${route}/${encodeURIComponent(text)}?format=json`,
    text,
    postPath: `/r/${room}?format=json`,
    body,
  };
}

async function send(
  t: Transport,
  room: string,
  write: Write,
  deadline: number,
  signal?: AbortSignal,
): Promise<PolledView> {
  const timeoutMs = Math.min(Math.max(deadline - t.clock.now(), 1000), 15_000);
  const reply = await ask(t, { ...writeRequest(t, write), timeoutMs, deadline, signal });
  const view = viewOf(room, reply.text);
  if (view.posted === undefined) throw new Unavailable('the answer to a write does not show the message');
  return view;
}

/** @internal Where a signed write stands. */
export interface Landed {
  /** 0: it landed, and so much came after it that it can no longer be read. */
  seq: number;
  nonce: string;
  /** True when nothing stands in the room but what we wrote, and nobody opened it, also no program with our key: it is new, or was never used. */
  alone?: boolean;
  /** The place behind the message, where the answer showed it. */
  place?: Place;
}

/**
 * Appends a signed message exactly once, whatever the network does, or says why that cannot be known.
 *
 * @internal
 * @param text also as a function of the nonce that the message will have
 * @param deadline clock time, ms, after which nothing is tried any more
 * @throws as {@link say}; StaleNonce when the nonces of the key cannot be raised above the last one in time
 */
export async function saySigned(
  t: Transport,
  key: SigningKey,
  room: string,
  text: string | ((nonce: string) => string),
  signal?: AbortSignal,
  deadline: number = t.clock.now() + PATIENCE_MS,
): Promise<Landed> {
  checkName(room, 'room');
  const swept = typeof text === 'function' ? undefined : sweep(text);
  checkSigner(key);
  const budget = budgetOf(t, 'write');
  // Writes of one key to one room queue before they ask the budget for their turns: those in front count.
  const queue = `${key.did} ${room}`;
  const late = budget.tooLate(budget.projectMs(queue), deadline);
  if (late) throw late;
  const attempts = new Attempts(t, deadline, signal);
  for (let stale = 0; ; stale++) {
    const begin = budget.announce(queue);
    try {
      return await key.withNonce(
        room,
        t.clock,
        (nonce) => {
          begin();
          const message = key.signMessage(room, nonce, swept ?? sweep((text as (nonce: string) => string)(nonce)));
          return deliver(t, room, message, deadline, signal);
        },
        signal,
      );
    } catch (cause) {
      if (!TechnocoreError.is(cause) || cause.code !== 'stale_nonce') throw cause;
      await key.raiseNonce(room, (cause as StaleNonce).last, t.clock);
      // Another program with this key may be quicker once or twice; a service that takes no nonce at all must not be hammered.
      if (stale > 1 && !(await attempts.again(cause, { room }))) throw cause;
    } finally {
      begin();
    }
  }
}

async function deliver(
  t: Transport,
  room: string,
  m: SignedMessage,
  deadline: number,
  signal?: AbortSignal,
): Promise<Landed> {
  const { did, sig, nonce, text } = m;
  const write = roomWrite(room, `say-signed/${did}/${sig}/${nonce}`, text, { did, sig, nonce, text });
  const begun = t.clock.now();
  const attempts = new Attempts(t, deadline, signal);
  // Set once an attempt was made of which nobody knows whether it was executed; then every step begins with a look.
  let doubt: TechnocoreError | undefined;
  let refusal: TechnocoreError | undefined;
  for (;;) {
    let cause: unknown;
    if (doubt) {
      let seq: number | undefined;
      try {
        seq = await settle(t, room, m, begun, signal);
      } catch (e) {
        // That we cannot look says nothing of the write; only time, and not for ever, can help.
        if (signal?.aborted || !TechnocoreError.is(e) || e.code === 'may_have_landed') throw e;
        if (!isTransient(e) || !(await attempts.again(e, { room }))) throw new MayHaveLanded(room, nonce, doubt);
        continue;
      }
      if (seq !== undefined) return { seq, nonce };
      if (refusal) throw refusal;
    }
    try {
      const view = await send(t, room, write, deadline, signal);
      const { messages, posted } = view;
      // As many as the answer to a write shows may not be all.
      const alone = messages.length < SHOWN && messages.every(({ from, text }) => from === did && text !== OPENING);
      return { seq: posted!, nonce, alone, place: placeOf(view, posted!) };
    } catch (e) {
      cause = e;
    }
    if (signal?.aborted || !TechnocoreError.is(cause)) throw cause;
    if (!isTransient(cause)) {
      // A refusal may be the echo of a success: after a doubtful attempt, and where something on the way sent it twice.
      const echoed = cause.code === 'stale_nonce' && BigInt((cause as StaleNonce).last) === BigInt(nonce);
      if (!doubt && !echoed) throw cause;
      if (doubt && echoed) {
        return { seq: (await settle(t, room, m, begun, signal).catch(() => undefined)) ?? 0, nonce };
      }
      doubt ??= cause;
      refusal = cause;
      continue;
    }
    if (mayBeDone(cause)) doubt = cause;
    if (!(await attempts.again(cause, { room }))) throw doubt ? new MayHaveLanded(room, nonce, doubt) : cause;
  }
}

/**
 * Looks for a message of ours whose answer was lost: its seq, or undefined when everything that came since it was first
 * sent can be seen and it is not there. Then the same bytes may be sent again: the service guards the nonce.
 *
 * @throws MayHaveLanded so much came since that it may have been there
 */
async function settle(
  t: Transport,
  room: string,
  m: SignedMessage,
  begun: number,
  signal?: AbortSignal,
): Promise<number | undefined> {
  const mine = (other: Message): boolean => other.from === m.did && other.nonce === m.nonce && other.text === m.text;
  const { messages } = await readView(t, room, { limit: MAX_LIMIT }, signal);
  for (const shown of [messages, undefined]) {
    const all = shown ?? (await exported(t, room, signal));
    const seq = all?.find(mine)?.seq;
    if (seq !== undefined || (all && reachesBack(room, all, t.clock.now() - begun))) return seq;
  }
  throw new MayHaveLanded(room, m.nonce);
}

/** Bytes that a read scans at most, less a margin. */
const SCAN_BYTES = 900_000;
/** How much longer than we think it may have been, ms: clocks get set while we wait. */
const DOUBT_MARGIN_MS = 60_000;

/** Whether the newest messages of a room surely include all of the last `ms`. */
function reachesBack(room: string, messages: Message[], ms: number): boolean {
  const [first] = messages;
  if (!first || first.seq === 1) return true;
  // An ephemeral room begins with any seq, and shows all of its last minutes.
  const bytes = messages.reduce((sum, m) => sum + 4 * m.text.length + 256, 0);
  if (roomClasses(room).e && messages.length < MAX_LIMIT && bytes < SCAN_BYTES) return true;
  // Both times are the server's, so its clock and ours need not agree; what is newest now is no younger than now.
  return Date.parse(messages.at(-1)!.ts) - Date.parse(first.ts) > Math.max(ms, 0) + DOUBT_MARGIN_MS;
}
