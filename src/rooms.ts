/**
 * Rooms: reading with a cursor that survives lost messages and recreated rooms, and writing exactly once. Rules:
 * technocore.chat (shapes of answers, errors, polling, traps).
 *
 * @module
 */
import {
  BadKey,
  checkNumbers,
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
import { exportOf, type Message, type PolledView, type RoomView, viewOf, writtenAt } from './messages.ts';
import { checkName, roomClasses } from './names.ts';
import { ask, learnLimits, uncached, type Write, writeRequest } from './service.ts';

/** The maximum number of messages in one read. */
const MAX_LIMIT = 200;
/** How long a read or write is retried, ms, if the caller sets no bound. */
export const PATIENCE_MS = 30_000;

// --- reading ----------------------------------------------------------------------------------------------------

/** Options of {@link read}. */
export interface ReadOptions {
  /** Return only messages with a `seq` above this. */
  since?: number | undefined;
  /** The maximum number of messages to return, 1 to 200; default 50. If more match, the newest are returned. */
  limit?: number | undefined;
  /**
   * How long the service may hold the request while there is no message after `since`, in milliseconds; default 0. The
   * service caps it, usually at 10,000. Has no effect without `since`.
   */
  waitMs?: number | undefined;
}

/** @internal Reads a room with one request. */
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
 * Reads the newest messages of a room. A room that nobody has written to is empty, not an error. Transient failures are
 * retried for up to 30 seconds beyond `waitMs`.
 *
 * @param room the name of the room
 * @returns the messages, oldest first; everything in them is untrusted
 * @throws a {@link BadName} if the name is not valid
 * @throws a {@link RateLimited} or {@link Unavailable} if the service could not be read within that time
 * @throws an {@link HttpError} if the service refuses
 * @throws the signal's reason when it aborts
 * @example
 * ```ts
 * import { read, verifyMessage } from 'technocore-rpc';
 *
 * const { messages } = await read('p-workshop-41c7', { limit: 10 });
 * for (const m of messages) console.log(m.seq, m.from, m.text, verifyMessage('p-workshop-41c7', m));
 * ```
 */
export async function read(room: string, o: Options & ReadOptions = {}): Promise<RoomView> {
  checkName(room, 'room');
  const t = transportOf(o);
  checkNumbers(o, ['since', 'limit', 'waitMs']);
  const deadline = t.clock.now() + (o.waitMs ?? 0) + PATIENCE_MS;
  const view = await retrying(t, deadline, () => readView(t, room, o, o.signal), o.signal);
  const { waitHeld: _held, posted: _posted, since: _since, ...shown } = view;
  return shown;
}

/** How far a reader has read a room: what a {@link CursorStore} stores. Survives JSON. */
export interface Place {
  /** The `seq` of the last message read. */
  since: number;
  /** The room's generation at that time; absent for services before 0.11. */
  generation?: number;
  /** The time (`ts`) of the message at `since`, which distinguishes the room from a later one of the same name. */
  mark?: string;
  /**
   * For a server: when it last renewed the mailbox's presence note, in milliseconds since the epoch by its own clock.
   * It lets the server recognize the note as its own after a restart.
   */
  said?: number;
}

/** The place after the message with this `seq` in a view; by default, after the newest. */
export function placeOf({ lastSeq, generation, messages }: RoomView, since: number = lastSeq): Place {
  const mark = messages.find(({ seq }) => seq === since)?.ts;
  return compact({ since, generation, mark });
}

/** A message that tells a room from others of the same name, by its `seq` and time. */
type Point = Pick<Place, 'since' | 'mark'>;

/** A place from which to begin, and what else was seen of the room then. */
export interface Start extends Place {
  /** The `seq` of the message to which `mark` belongs, if that is not the one at `since`. */
  last?: number;
}

/** Stores how far a server has read its mailbox, across restarts. {@link fileCursor} makes one that writes a file. */
export interface CursorStore {
  /** Returns the place that was last saved for a room; undefined if there is none. */
  load(room: string): Place | undefined | Promise<Place | undefined>;
  /** Saves the place in a room; called repeatedly while a server runs. */
  save(room: string, place: Place): void | Promise<void>;
}

/** The result of one step of a cursor. */
export interface Batch {
  /** What was lost before `messages`; absent if nothing was. */
  gap?: RingGap;
  /** The lost messages were written before this time by the service's clock, ms; undefined if unknown. */
  before?: number | undefined;
  messages: Message[];
}

/** After how many empty reads a room without generations is read once without a cursor: about once a minute. */
const PROBE_EVERY = 6;
/** How often in a row the export may fail before the messages in it count as lost. */
const EXPORT_TRIES = 4;
const EXPORTS = {};
/** How many messages the answer to a write shows. */
const SHOWN = 20;
/** @internal The text of the line that opens a mailbox. Only the mailbox's reader writes it; a caller never does. */
export const OPENING = 'mailbox opened';

/**
 * A position in a room and the rules by which it moves. An empty answer never advances it. It distinguishes a room that
 * overflowed, a room that was recreated, and an `e-` room whose messages expired.
 *
 * @internal
 */
export class RoomCursor {
  readonly room: string;
  readonly #t: Transport;
  /** The last `seq` seen; undefined until the first read. */
  since: number | undefined;
  generation: number | undefined;
  /** The time of the message at `since`. Without generations, a different time there means a different room. */
  #mark: string | undefined;
  /** The number of empty reads in a row. */
  #empties = 0;
  /**
   * The place before a long silence, a failure or another doubt. What came after it may belong to a recreated
   * room; the next empty read checks that.
   */
  #doubted: Place | undefined;
  /** What a place that was set from outside knows of the room, which has not been compared with it yet. */
  #unchecked: Point | undefined;
  /** The cursor is at 0 because the room showed nothing. Its `seq` may still go on, so the next message is no gap. */
  #isBlank = false;
  /**
   * The room is ephemeral and showed nothing when it was last read without a cursor, so whatever it shows now is new.
   * Only a read from the beginning finds that both if its `seq` continues and if the room was recreated.
   */
  #hasExpired = false;
  /** How often this cursor saw the room recreated. */
  #lives = 0;
  #failures = 0;

  constructor(t: Transport, room: string, since?: number) {
    this.#t = t;
    this.room = checkName(room, 'room');
    this.since = since;
    // A given cursor may belong to a room that is gone, so a probe follows the first empty read.
    if (since) this.#empties = PROBE_EVERY - 1;
  }

  /** Moves the cursor past the newest message and skips everything before it. */
  async toTail(signal?: AbortSignal): Promise<void> {
    // Without generations, only the message at the cursor shows whether this is still the same room.
    const looks = this.#mark !== undefined && this.generation === undefined;
    const view = await readView(this.#t, this.room, { limit: looks ? MAX_LIMIT : 1 }, signal);
    if (looks && !this.#isSame(view)) this.#lives++;
    this.since = view.lastSeq;
    this.#isBlank = view.lastSeq === 0;
    this.#hasExpired = false;
    this.#doubted = undefined;
    this.#unchecked = undefined;
    this.generation = view.generation;
    this.#mark = view.messages.at(-1)?.ts;
  }

  /** Changes whenever the room is recreated: the service's generation, else this cursor's own count. */
  get epoch(): number {
    return this.generation ?? this.#lives;
  }

  /** The cursor's place, which can be saved and set again. */
  get place(): Place | undefined {
    const { since, generation } = this;
    return since === undefined ? undefined : compact({ since, generation, mark: this.#mark });
  }

  set place({ since, generation, mark, last }: Start) {
    this.since = since;
    this.generation = generation;
    this.#mark = last === undefined ? mark : undefined;
    this.#isBlank = false;
    this.#hasExpired = false;
    this.#doubted = undefined;
    // The room may have been recreated meanwhile. Generations show that by themselves, unless the service lost them.
    const isSure = generation !== undefined && last === undefined;
    this.#unchecked = isSure ? undefined : compact({ since: last ?? since, mark });
  }

  /**
   * Reads after the cursor; the service may hold the request for up to `waitMs`. Does not move the cursor: {@link take}
   * does.
   */
  async look(waitMs: number, signal?: AbortSignal): Promise<PolledView> {
    if (this.since === undefined) await this.toTail(signal);
    // A place set from outside is compared with the room before the cursor waits there.
    if (this.#unchecked) return readView(this.#t, this.room, { limit: MAX_LIMIT }, signal);
    const since = this.#hasExpired ? 0 : this.since!;
    return readView(this.#t, this.room, { since, limit: MAX_LIMIT, waitMs }, signal).catch((cause) => {
      // The service may have restarted and lost its rooms; then even generations start over.
      if (Unavailable.is(cause)) this.doubt();
      throw cause;
    });
  }

  /** Called when something suggests that the room was recreated: the next empty read checks that. */
  doubt(): void {
    this.#doubted ??= this.place;
  }

  /** Reads once and returns what is new. No message is returned twice. */
  async next(waitMs: number, signal?: AbortSignal): Promise<Polled<Batch>> {
    const view = await this.look(waitMs, signal);
    const value = await this.take(view, signal);
    return value ? { value } : view.waitHeld === undefined ? {} : { held: view.waitHeld };
  }

  /** Moves the cursor over a view and returns what is new in it; undefined if nothing is. */
  async take(view: PolledView, signal?: AbortSignal): Promise<Batch | undefined> {
    const point = this.#unchecked;
    this.#unchecked = undefined;
    // Another generation says enough by itself.
    const isOther = this.generation !== undefined && view.generation !== this.generation;
    if ((point && !isOther) || (this.#hasExpired && view.since === 0)) {
      const recreated = this.#compare(view, point);
      if (recreated) return recreated;
    }
    const since = this.since!;
    const fresh = view.messages.filter((m) => m.seq > since);
    // The view was requested before the cursor moved here, so it says nothing about what comes after.
    if (fresh.length === 0 && view.since !== undefined && view.since < since) return undefined;
    let isNext = fresh[0]?.seq === since + 1 || (this.#isBlank && roomClasses(this.room).e);
    if (view.generation !== undefined) {
      const known = this.generation;
      this.generation = view.generation;
      if (this.#isBlank && known !== view.generation) isNext = true;
      // A new generation: the room was recreated, and its `seq` continues. A cursor at 0 has missed nothing of the old
      // room.
      if (known !== undefined && known !== view.generation && since > 0) {
        // A lower one: the service lost its rooms, and counts from the beginning.
        if (view.generation < known) return this.#begun(signal);
        return view.lastSeq < since ? this.restart(signal) : this.#recreated(fresh, view);
      }
    }
    if (fresh.length > 0) {
      // The doubt remains until it is resolved, however many messages come first.
      if (this.#empties >= PROBE_EVERY) this.#doubted ??= this.place;
      this.#empties = 0;
      return this.#advance(fresh, isNext ? undefined : await this.#recover(since, fresh, signal));
    }
    if (view.lastSeq < since) return this.restart(signal);
    // Without generations, a service echoes even the cursor of a room that is gone; only a read without a cursor shows
    // the tail.
    if (!this.#doubted && (this.generation !== undefined || ++this.#empties % PROBE_EVERY !== 0)) return undefined;
    const batch = await this.restart(signal, this.#doubted);
    // Only now, since the read may have failed.
    this.#doubted = undefined;
    return batch;
  }

  /**
   * Checks with a cursorless read whether the room was recreated; if so, continues with the new room's first message.
   */
  async restart(signal?: AbortSignal, place?: Point): Promise<Batch | undefined> {
    return this.#compare(await readView(this.#t, this.room, { limit: MAX_LIMIT }, signal), place);
  }

  /** Continues with the first message of a room that is known to be another one. */
  async #begun(signal?: AbortSignal): Promise<Batch> {
    const view = await readView(this.#t, this.room, { limit: MAX_LIMIT }, signal);
    this.generation = view.generation;
    return this.#recreated(view.messages, view);
  }

  /**
   * Whether a view that was read without a cursor belongs to the same room as a place (by default, the cursor's), as
   * far as it shows.
   */
  #isSame(view: PolledView, { since, mark: known }: Point = this.place!): boolean {
    // An ephemeral room whose messages have expired reports 0, although its `seq` continues.
    if (view.lastSeq === 0 && roomClasses(this.room).e) return true;
    const mark = view.messages.find((m) => m.seq === since);
    return view.lastSeq >= since && (mark === undefined || known === undefined || mark.ts === known);
  }

  #compare(view: PolledView, place?: Point): Batch | undefined {
    this.generation = view.generation ?? this.generation;
    if (this.#isSame(view, place)) {
      // With generations, the `seq` always continues.
      this.#hasExpired = view.lastSeq === 0 && this.generation === undefined && this.since! > 0;
      return undefined;
    }
    return this.#recreated(view.messages, view, place);
  }

  /** @param place the last one that is known to be in the room before; default: the cursor's */
  #recreated(messages: Message[], view: PolledView, { since, mark }: Point = this.place!): Batch {
    const gap = new RingGap(this.room, since + 1, messages[0]?.seq ?? view.lastSeq + 1, 'recreated');
    const before = this.#before(messages, mark);
    this.since = view.lastSeq;
    this.#isBlank = view.lastSeq === 0;
    this.#hasExpired = false;
    this.#mark = undefined;
    this.#doubted = undefined;
    this.#lives++;
    this.#t.onEvent({ kind: 'epoch', room: this.room, since: gap.expected - 1, generation: view.generation });
    return this.#advance(messages, { messages, gap, before });
  }

  #advance(messages: Message[], batch: Batch = { messages }): Batch {
    const last = batch.messages.at(-1);
    if (last) {
      this.since = last.seq;
      this.#isBlank = false;
      this.#hasExpired = false;
      this.#mark = last.ts;
    }
    if (batch.gap) this.#t.onEvent({ kind: 'gap', room: this.room, gap: batch.gap });
    return batch;
  }

  /**
   * Fetches the messages that are missing before `fresh` from the room's export. If that is impossible, they are a gap.
   */
  async #recover(since: number, fresh: Message[], signal?: AbortSignal): Promise<Batch> {
    let whole: Message[] | undefined;
    try {
      whole = await exported(this.#t, this.room, signal);
    } catch (cause) {
      // The cursor has not moved, so the next read tries again; but not forever.
      if (!isTransient(cause) || this.#failures++ < EXPORT_TRIES) throw cause;
    }
    this.#failures = 0;
    const messages = whole ? whole.filter((m) => m.seq > since) : fresh;
    if ((messages.at(-1)?.seq ?? 0) < fresh.at(-1)!.seq) return this.#gap(since, fresh);
    return messages[0]!.seq > since + 1 ? this.#gap(since, messages) : { messages };
  }

  #gap(since: number, messages: Message[]): Batch {
    const gap = new RingGap(this.room, since + 1, messages[0]!.seq, 'overflow');
    return { messages, gap, before: this.#before(messages) };
  }

  /**
   * When the first of the messages after a gap was written.
   *
   * @param mark when the last one before it was
   */
  #before([first]: readonly Message[], mark: string | undefined = this.#mark): number | undefined {
    const at = first && writtenAt(first);
    const last = writtenAt({ ts: mark });
    // If the service's clock was set back since the last message before the gap, it says nothing about those in
    // between.
    return at === undefined || (last !== undefined && at < last) ? undefined : at;
  }
}

/**
 * All messages that a room still holds; undefined if the service has no export route (before 0.11).
 *
 * @throws transient failures only
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
 * Yields every message of a room as it arrives, in order and exactly once. It never ends by itself: leave the loop with
 * `break`, or abort the signal. Transient failures are waited out.
 *
 * @param room the name of the room
 * @param o `since`: start after the message with this `seq` (0: with the room's first message); default: only messages
 * from now on
 * @throws a {@link BadName} if the name is not valid
 * @throws a {@link RingGap} if messages were lost; to continue after them, follow again with `since: e.oldest - 1`
 * @throws an {@link HttpError} if the service refuses
 * @throws the signal's reason when it aborts
 * @example
 * ```ts
 * import { follow } from 'technocore-rpc';
 *
 * for await (const { seq, from, text } of follow('p-workshop-41c7', { since: 0 })) {
 *   console.log(seq, from, text);
 *   if (seq === 1) break;
 * }
 * ```
 */
export async function* follow(room: string, o: Options & { since?: number | undefined } = {}): AsyncGenerator<Message> {
  const t = transportOf(o);
  checkNumbers(o, ['since']);
  const cursor = new RoomCursor(t, room, o.since);
  void learnLimits(t);
  for await (const batch of poll(t, (waitMs) => cursor.next(waitMs, o.signal), o)) {
    if (batch.gap) throw batch.gap;
    yield* batch.messages;
  }
}

// --- writing ----------------------------------------------------------------------------------------------------

/** A signed message that has not been sent yet: what {@link Signer.signMessage} returns. */
export interface SignedMessage {
  /** The signer's `did:key`. */
  did: string;
  /** The signature: 86 characters of base64url. */
  sig: string;
  /** The nonce, as decimal digits. */
  nonce: string;
  /** The text, swept. */
  text: string;
  /** What was signed: `<room>|<nonce>|<text>`. */
  canonical: string;
}

/** The part of a {@link Signer} that writing needs. */
export interface SigningKey {
  /** The `did:key` of the key. */
  readonly did: string;
  /** Signs a message: see {@link Signer.signMessage}. */
  signMessage(room: string, nonce: string, text: string): SignedMessage;
  /** Signs the value of a note: see {@link Signer.signNote}. */
  signNote(
    ns: string,
    key: string,
    nonce: string,
    value: string,
  ): { did: string; sig: string; nonce: string; value: string; canonical: string };
  /**
   * Runs `use` with a nonce higher than all earlier ones in this scope. Uses of one scope run one after the other.
   *
   * @param scope a room, or `kv:<key>` for the notes of that key
   */
  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T>;
  /** Makes all later nonces of a scope higher than `last`. */
  raiseNonce(scope: string, last: string, clock: Clock): void | Promise<void>;
}

/**
 * Checks that a signer was given, and not a promise of one.
 *
 * @internal
 * @throws a {@link BadKey} if not
 */
export function checkSigner(signer: SigningKey): void {
  if (typeof signer?.signMessage === 'function') return;
  throw new BadKey('a Signer is required; Signer.fromDir() returns a promise, so await it');
}

/**
 * Appends an unsigned message to a room. Anybody may use any nick, so prefer {@link Signer.say}, which also writes
 * exactly once. Failures that cannot have written anything are retried for up to 30 seconds.
 *
 * @param room the name of the room
 * @param nick the writer's name: see {@link isName}
 * @param text at most 4,096 code points after the {@link sweep}
 * @returns the `seq` of the message
 * @throws a {@link BadName}, {@link EmptyText} or {@link FrameTooLong} before anything is sent
 * @throws a {@link Forbidden} if the room is a mailbox, owned by others, or `events`
 * @throws a {@link DuplicateText}, {@link RateLimited}, {@link RoomBudget} or {@link CapacityReached} if the service
 * refuses
 * @throws a {@link MayHaveLanded} if the response was lost: one's own unsigned message cannot be recognized in the room
 * @throws an {@link Unavailable} if the service could not be reached
 * @throws the signal's reason when it aborts
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

/**
 * Whether a write that failed transiently may have been executed. It was not after a 429 or 408, or without a
 * connection.
 */
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
  if (view.posted === undefined) throw new Unavailable('the answer to the write does not contain the message');
  return view;
}

/** @internal A signed message that was written. */
export interface Landed {
  /** 0 if the message was written, but so much came after it that it can no longer be read. */
  seq: number;
  nonce: string;
  /** When it was written, ms since the epoch by the service's clock. */
  at?: number | undefined;
  /**
   * True if the room shows only messages of this key and no opening line: the mailbox is new, or nobody ever read it.
   */
  alone?: boolean;
  /** The place after the message, if the response showed it. */
  place?: Place;
}

/**
 * Appends a signed message exactly once, whatever the network does, or throws {@link MayHaveLanded}.
 *
 * @internal
 * @param text the text, or a function that makes it from the nonce that the message will have
 * @param deadline clock time, ms, after which no new attempt starts
 * @throws as {@link say}; {@link StaleNonce} if the key's nonces could not be raised above the last one in time
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
  // Writes of one key to one room wait in a queue before they take a turn in the budget, so those ahead are counted.
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
      // Another program with this key may be faster once or twice, but a service that accepts no nonce must not be
      // flooded.
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
  // Set after an attempt that may have been executed. From then on, the room is checked before each new attempt.
  let doubt: TechnocoreError | undefined;
  let refusal: TechnocoreError | undefined;
  for (;;) {
    let cause: unknown;
    if (doubt) {
      let landed: Message | undefined;
      try {
        landed = await settle(t, room, m, begun, signal);
      } catch (e) {
        // A failed check says nothing about the write, so check again until the time is up.
        if (signal?.aborted || !TechnocoreError.is(e) || e.code === 'may_have_landed') throw e;
        if (!isTransient(e) || !(await attempts.again(e, { room }))) throw new MayHaveLanded(room, nonce, doubt);
        continue;
      }
      if (landed) return { seq: landed.seq, nonce, at: writtenAt(landed) };
      if (refusal) throw refusal;
    }
    try {
      const view = await send(t, room, write, deadline, signal);
      const { messages, posted } = view;
      // A full response may hide older messages.
      const alone = messages.length < SHOWN && messages.every(({ from, text }) => from === did && text !== OPENING);
      const place = placeOf(view, posted!);
      return { seq: posted!, nonce, at: writtenAt({ ts: place.mark }), alone, place };
    } catch (e) {
      cause = e;
    }
    if (signal?.aborted || !TechnocoreError.is(cause)) throw cause;
    if (!isTransient(cause)) {
      // A refusal of our own nonce may mean success: an earlier attempt landed, or a proxy sent the request twice.
      const echoed = cause.code === 'stale_nonce' && BigInt((cause as StaleNonce).last) === BigInt(nonce);
      if (!doubt && !echoed) throw cause;
      if (doubt && echoed) {
        const landed = await settle(t, room, m, begun, signal).catch(() => undefined);
        return { seq: landed?.seq ?? 0, nonce, at: landed && writtenAt(landed) };
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
 * Searches the room for a message whose response was lost.
 *
 * @returns the message as the room shows it; undefined if the room still shows everything written since it was first
 * sent, and it is not there. Then the same bytes may be sent again: if both arrive, the service refuses the second
 * nonce
 * @throws a {@link MayHaveLanded} if so much was written since then that the message may no longer be visible
 */
async function settle(
  t: Transport,
  room: string,
  m: SignedMessage,
  begun: number,
  signal?: AbortSignal,
): Promise<Message | undefined> {
  const mine = (other: Message): boolean => other.from === m.did && other.nonce === m.nonce && other.text === m.text;
  const { messages } = await readView(t, room, { limit: MAX_LIMIT }, signal);
  for (const shown of [messages, undefined]) {
    const all = shown ?? (await exported(t, room, signal));
    const landed = all?.find(mine);
    if (landed || (all && reachesBack(room, all, t.clock.now() - begun))) return landed;
  }
  throw new MayHaveLanded(room, m.nonce);
}

/** How much of a room the service scans for a read, bytes, less a margin. */
const SCAN_BYTES = 900_000;
/** A margin for clock changes during the wait, ms. */
const DOUBT_MARGIN_MS = 60_000;

/** Whether the given newest messages of a room certainly include everything from the last `ms`. */
function reachesBack(room: string, messages: Message[], ms: number): boolean {
  const [first] = messages;
  if (!first || first.seq === 1) return true;
  // An ephemeral room may begin with any `seq`; it shows everything from its last minutes.
  const bytes = messages.reduce((sum, m) => sum + 4 * m.text.length + 256, 0);
  if (roomClasses(room).e && messages.length < MAX_LIMIT && bytes < SCAN_BYTES) return true;
  // Both times are the service's, so that its clock need not agree with ours.
  return Date.parse(messages.at(-1)!.ts) - Date.parse(first.ts) > Math.max(ms, 0) + DOUBT_MARGIN_MS;
}
