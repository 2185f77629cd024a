/**
 * Channels: where frames go to and come from. All that `serve` and `call` know of rooms, sealed rooms and parley sessions
 * is this interface. The first kind of channel is here: a pair of mailboxes, each read by one loop however many listen.
 *
 * @module
 */
import { BadName, checkChoice } from './errors.ts';
import { type Feed, feedOf, type Listener } from './feed.ts';
import { compact, isObject, MAX_TEXT } from './frames.ts';
import { budgetOf, Joint, type Options, retrying, sharedOf, type Transport, transportOf } from './http.ts';
import { checkDid, isDid, isName, roomClasses } from './names.ts';
import { OPENING, PATIENCE_MS, type Place, placeOf, readView, type SigningKey, saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';
import { type Spill, spillOf } from './spill.ts';

export type { Incoming, Listener } from './feed.ts';

/** Options of {@link Channel.send}. */
export interface SendOptions {
  /** Aborts sending, which then rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** When to give up, in milliseconds since the epoch by the transport's clock; default: the channel's own patience. */
  deadline?: number | undefined;
}

/** The result of {@link Channel.send}. */
export interface Sent {
  /** The position of the message in its room or session; 0 if it is not known, or not sent yet. */
  seq: number;
  /** True if the room shows no other writer, and nobody who reads there. */
  alone?: boolean | undefined;
  /** When it was written, in milliseconds since the epoch by the service's clock; undefined if that is not known. */
  at?: number | undefined;
}

/**
 * A way to exchange frames with one or more peers, whose identity it proves. {@link serve} and {@link call} take a
 * channel in place of a mailbox: from {@link mailboxes}, {@link sealed}, {@link connectSealed} or a parley session.
 */
export interface Channel {
  /** The name of what the channel runs through, such as a room; for contexts and errors. */
  readonly room: string;
  /**
   * Our own identity on a channel that returns what we send as an echo, by which echoes are ignored. `''` on any other,
   * where two programs with the same key can talk to each other.
   */
  readonly self: string;
  /**
   * Begins to listen. Resolves once no later message can be missed.
   *
   * @returns a function that ends the listening
   */
  listen(listener: Listener, signal?: AbortSignal): Promise<() => void>;
  /** The most characters of one frame; default {@link MAX_TEXT}. */
  readonly limit?: number | undefined;
  /** Sends one frame, as text. */
  send(text: string, o?: SendOptions): Promise<Sent>;
  /** How texts that are too long for a frame are sent; absent if they cannot be. */
  readonly spill?: Spill | undefined;
}

// --- mailboxes ---------------------------------------------------------------------------------------------------

/**
 * Returns the name if it is that of a mailbox: a room of class `mb`, which takes signed messages only.
 *
 * @throws a {@link BadName} for any other name
 */
export function checkMailbox(room: unknown): string {
  if (isMailbox(room)) return room;
  // Where a DID may be given as well, a mistyped one was not meant to be a mailbox.
  if (typeof room === 'string' && room.startsWith('did:') && !isDid(room)) checkDid(room);
  const what = isName(room) ? '' : ' and has up to 48 characters of a-z 0-9 _ -';
  throw new BadName(room, `a mailbox is a room whose name begins with mb-${what}`);
}

/** True if a value is the name of a mailbox. */
export function isMailbox(room: unknown): room is string {
  return isName(room) && roomClasses(room as string).mb;
}

const OPENED = {};
const openedOf = (t: Transport): Map<string, Opened> => sharedOf(t, OPENED, () => new Map());
const MAX_OPENED = 1024;
/**
 * How many messages behind the newest an opening line is certainly still seen: readers get 200, or those of the last 1
 * MiB if they are long.
 */
const IN_SIGHT = 50;
/** For how long it is seen in rooms whose messages expire, ms. */
const IN_SIGHT_MS = 300_000;
/** How long a line that we wrote may be ahead of what was read, ms. */
const AHEAD_MS = 60_000;

/** A line that our key has written into our mailbox, which shows that the mailbox is ours. */
interface Line {
  readonly seq: number;
  readonly at: number;
  /** The epoch of the room that it stands in, once somebody has read there. */
  epoch?: number;
  /**
   * If nobody had opened the mailbox before: the beginning of the room, so that what waits there is served. Used once.
   */
  first?: Place;
}

/** What is known of a mailbox of ours. */
interface Opened {
  readonly opening: Joint<void>;
  line?: Line;
  /** True while another line is being written. */
  isRenewed?: boolean;
}

/** Whether a line is still in sight of others, as far as the reader of the room can tell. */
function isInSight(t: Transport, room: string, line: Line, feed: Feed): boolean {
  const { place, epoch } = feed;
  if (!place) return true;
  line.epoch ??= epoch;
  const behind = place.since - line.seq;
  const expires = roomClasses(room).e && Math.abs(t.clock.now() - line.at) > IN_SIGHT_MS;
  // A line just written is ahead of what was read. One that still is later on stood in a room that is gone.
  const isAhead = behind < 0 && Math.abs(t.clock.now() - line.at) < AHEAD_MS;
  return line.epoch === epoch && (behind >= 0 || isAhead) && behind < IN_SIGHT && !expires;
}

async function writtenLine(t: Transport, room: string, key: SigningKey, signal: AbortSignal): Promise<Line> {
  const at = t.clock.now();
  const view = await retrying(t, at + PATIENCE_MS, () => readView(t, room, { limit: IN_SIGHT }, signal), signal);
  const { messages, lastSeq, generation } = view;
  const ours = messages.filter((m) => m.from === key.did).at(-1);
  // Messages of a caller with the same key do not open a mailbox. Without an opening line, the next start would count as
  // the first one again.
  const isFirst = messages.length === lastSeq && !messages.some(({ text }) => text === OPENING);
  if (!ours || isFirst || roomClasses(room).e) {
    const line = await freshLine(t, room, key, signal);
    if (isFirst && line.seq > 1) line.first = compact({ since: 0, generation });
    return line;
  }
  feedOf(t, room).sawEnd(placeOf(view));
  return { seq: ours.seq, at };
}

/** Whether a write that may be left out and the one after it can both be sent at once. */
const affordsTwo = (t: Transport): boolean => budgetOf(t, 'write').delayMs(2) === 0;

async function freshLine(
  t: Transport,
  room: string,
  key: SigningKey,
  signal?: AbortSignal,
  deadline?: number,
): Promise<Line> {
  const at = t.clock.now();
  const { seq, place } = await saySigned(t, key, room, OPENING, signal, deadline);
  if (place) feedOf(t, room).sawEnd(place);
  return { seq, at };
}

/**
 * Makes sure that a line signed by the key stands in its mailbox in sight of others: it shows that the mailbox belongs to
 * the key, so that answers may go there. Costs one read, and one write if there is no such line; once for a key and
 * mailbox, and again when so many messages came after it that it is out of sight.
 *
 * @param feed the feed of the mailbox, once it has a place
 * @returns undefined if there is nothing to wait for
 */
export function openMailbox(
  t: Transport,
  room: string,
  key: SigningKey,
  signal?: AbortSignal,
  feed?: Feed,
): Promise<void> | undefined {
  const opened = openedOf(t);
  const name = `${room} ${key.did}`;
  let entry = opened.get(name);
  if (!entry || (!entry.line && entry.opening.isOff)) {
    if (opened.size >= MAX_OPENED) opened.clear();
    const made: Opened = {
      opening: new Joint((off) =>
        writtenLine(t, room, key, off).then(
          (line) => {
            made.line = line;
          },
          (cause) => {
            if (opened.get(name) === made) opened.delete(name);
            throw cause;
          },
        ),
      ),
    };
    opened.set(name, (entry = made));
  } else if (entry.line && feed && !entry.isRenewed && !isInSight(t, room, entry.line, feed) && affordsTwo(t)) {
    // The old line has served so far: nobody has to wait for the new one, and it is not tried again.
    const renewed = entry;
    renewed.isRenewed = true;
    void freshLine(t, room, key, signal, t.clock.now())
      .then(
        (line) => {
          renewed.line = line;
        },
        () => {},
      )
      .finally(() => {
        renewed.isRenewed = false;
      });
  }
  return entry.line ? undefined : entry.opening.join(signal);
}

/**
 * Where to begin in a mailbox that was opened just now for the first time: at its beginning, since nobody can have served
 * what waits there. Returned once; undefined if it was opened before, or holds too much to tell.
 */
export function beginningOf(t: Transport, room: string, key: SigningKey): Place | undefined {
  const { line } = openedOf(t).get(`${room} ${key.did}`) ?? {};
  const first = line?.first;
  if (line) delete line.first;
  return first;
}

/** Called when no answer came: the line may be gone together with its room, so the next call looks for both again. */
export function doubtMailbox(t: Transport, room: string, key: SigningKey): void {
  openedOf(t).delete(`${room} ${key.did}`);
  feedOf(t, room).doubt();
}

/**
 * Checks the option `latency`.
 *
 * @internal
 * @throws a {@link TechnocoreError} `bad_option` if it is neither `fast` nor `frugal`
 */
export const checkLatency = (o: { readonly latency?: unknown }): void => checkChoice(o, 'latency', ['fast', 'frugal']);

/**
 * Makes a channel of two mailboxes: frames are written to one and read from the other. {@link call} makes one by itself.
 *
 * @param to the mailbox to write to
 * @param replyTo our own mailbox, which is read
 * @param signer the key that signs what is sent
 * @param o `latency`: as in {@link CallOptions.latency}
 * @throws a {@link BadName} if one of them is not the name of a mailbox
 */
export function mailboxes(
  to: string,
  replyTo: string,
  signer: Signer,
  o: Options & { latency?: 'fast' | 'frugal' | undefined } = {},
): Channel {
  const t = transportOf(o);
  checkLatency(o);
  return mailboxPair(t, signer, to, replyTo, o.latency);
}

/** @internal {@link mailboxes} */
export function mailboxPair(
  t: Transport,
  key: Signer,
  to: string,
  replyTo: string,
  latency: 'fast' | 'frugal' = 'fast',
): Channel {
  checkMailbox(to);
  const feed = feedOf(t, checkMailbox(replyTo));
  return {
    room: to,
    self: '',
    async listen(listener, signal) {
      await openMailbox(t, replyTo, key, signal);
      return feed.listen(listener, { signal, nudged: latency === 'fast' });
    },
    async send(text, o = {}) {
      // No `await` when there is nothing to wait for: the budget must know of this write before anybody else asks it.
      const opening = openMailbox(t, replyTo, key, o.signal, feed);
      if (opening) await opening;
      const sent = await saySigned(t, key, to, text, o.signal, o.deadline);
      if (latency === 'fast') feed.nudge();
      return sent;
    },
    spill: spillOf(t, key, to),
  };
}

/** @internal Most characters of one frame that go to a mailbox or over a channel. */
export function limitOf(to: string | Channel | undefined): number {
  return (isChannel(to) && to.limit) || MAX_TEXT;
}

/** True for something that is used as a channel, as opposed to the name of a room or a DID. */
export function isChannel(to: unknown): to is Channel {
  return isObject(to) && typeof to['send'] === 'function' && typeof to['listen'] === 'function';
}
