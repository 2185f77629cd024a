/**
 * Channels: where frames go to and come from. This interface is all that `serve` and `call` know about rooms, sealed
 * rooms and parley sessions. The first kind of channel is defined here: a pair of mailboxes, each read by a single
 * loop.
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
  /** Aborts sending, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** When to give up, in milliseconds since the epoch by the transport's clock; default: the channel's own patience. */
  deadline?: number | undefined;
}

/** The result of {@link Channel.send}. */
export interface Sent {
  /** The position of the message in its room or session; 0 if it is unknown, or not sent yet. */
  seq: number;
  /** True if the room shows no sign of another writer or a reader. */
  alone?: boolean | undefined;
  /** When it was written, in milliseconds since the epoch by the service's clock; undefined if unknown. */
  at?: number | undefined;
}

/**
 * A way to exchange frames with one or more authenticated peers. {@link serve} and {@link call} take a channel in place
 * of a mailbox: from {@link mailboxes}, {@link sealed}, {@link connectSealed} or a parley session.
 */
export interface Channel {
  /** The name of what the channel runs through, such as a room; for contexts and errors. */
  readonly room: string;
  /**
   * Our own identity on a channel that echoes what we send, so that echoes can be ignored. `''` on any other channel,
   * where two programs with the same key can talk to each other.
   */
  readonly self: string;
  /**
   * Starts to listen. Resolves once no later message can be missed.
   *
   * @returns a function that removes the listener
   */
  listen(listener: Listener, signal?: AbortSignal): Promise<() => void>;
  /** The maximum length of a frame, in characters; default {@link MAX_TEXT}. */
  readonly limit?: number | undefined;
  /** Sends one frame, as text. */
  send(text: string, o?: SendOptions): Promise<Sent>;
  /** How texts that are too long for a frame are sent; absent if they cannot be. */
  readonly spill?: Spill | undefined;
}

// --- mailboxes ---------------------------------------------------------------------------------------------------

/**
 * Returns the name if it is the name of a mailbox: a room of class `mb`, which takes signed messages only.
 *
 * @throws a {@link BadName} for any other name
 */
export function checkMailbox(room: unknown): string {
  if (isMailbox(room)) return room;
  // A mistyped DID was not meant to be a mailbox.
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
 * How many messages may follow an opening line while readers certainly still see it: they get 200, or those in the last
 * 1 MiB if they are long.
 */
const IN_SIGHT = 50;
/** How long it stays visible in rooms whose messages expire, ms. */
const IN_SIGHT_MS = 300_000;
/** How long a line that we wrote may be ahead of what was read, ms. */
const AHEAD_MS = 60_000;

/** A line that our key wrote to our mailbox, which shows that the mailbox is ours. */
interface Line {
  readonly seq: number;
  readonly at: number;
  /** The epoch of the room it was written to, once somebody has read there. */
  epoch?: number;
  /**
   * If nobody had opened the mailbox before: the beginning of the room, so that what waits there is served. Used once.
   */
  first?: Place;
}

/** What is known about one of our mailboxes. */
interface Opened {
  readonly opening: Joint<void>;
  line?: Line;
  /** True while another line is being written. */
  isRenewed?: boolean;
}

/** Whether others can still see a line, as far as the reader of the room can tell. */
function isInSight(t: Transport, room: string, line: Line, feed: Feed): boolean {
  const { place, epoch } = feed;
  if (!place) return true;
  line.epoch ??= epoch;
  const behind = place.since - line.seq;
  const expires = roomClasses(room).e && Math.abs(t.clock.now() - line.at) > IN_SIGHT_MS;
  // A line just written is ahead of what was read. If it still is later on, it was in a room that is gone.
  const isAhead = behind < 0 && Math.abs(t.clock.now() - line.at) < AHEAD_MS;
  return line.epoch === epoch && (behind >= 0 || isAhead) && behind < IN_SIGHT && !expires;
}

async function writtenLine(t: Transport, room: string, key: SigningKey, signal: AbortSignal): Promise<Line> {
  const at = t.clock.now();
  const view = await retrying(t, at + PATIENCE_MS, () => readView(t, room, { limit: IN_SIGHT }, signal), signal);
  const { messages, lastSeq, generation } = view;
  const ours = messages.filter((m) => m.from === key.did).at(-1);
  // Messages from a caller with the same key do not open a mailbox. Without an opening line, the next start would count
  // as the first one again.
  const isFirst = messages.length === lastSeq && !messages.some(({ text }) => text === OPENING);
  if (!ours || isFirst || roomClasses(room).e) {
    const line = await freshLine(t, room, key, signal);
    if (isFirst && line.seq > 1) line.first = compact({ since: 0, generation });
    return line;
  }
  feedOf(t, room).sawEnd(placeOf(view));
  return { seq: ours.seq, at };
}

/** Whether an optional write and the one after it can both be sent at once. */
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
 * Ensures that others can see a line in the mailbox signed by its key: it shows that the mailbox belongs to the key, so
 * that answers may go there. Costs one read, and one write if there is no such line; once per key and mailbox, and
 * again when so many messages follow the line that it is out of sight.
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
    // The old line has sufficed so far: nobody has to wait for the new one, and it is not retried.
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
 * Where to start in a mailbox that was just opened for the first time: at its beginning, since nobody can have served
 * what waits there. Returned once; undefined if it was opened before, or holds too much to tell.
 */
export function beginningOf(t: Transport, room: string, key: SigningKey): Place | undefined {
  const { line } = openedOf(t).get(`${room} ${key.did}`) ?? {};
  const first = line?.first;
  if (line) delete line.first;
  return first;
}

/** Called when no answer came: the line may be gone along with its room, so the next call looks for both again. */
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
 * Makes a channel from two mailboxes: frames are written to one and read from the other. {@link call} does this by
 * itself.
 *
 * @param to the mailbox to write to
 * @param replyTo our own mailbox, to read from
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
      // No `await` if there is nothing to wait for: the budget must know of this write before others take a turn.
      const opening = openMailbox(t, replyTo, key, o.signal, feed);
      if (opening) await opening;
      const sent = await saySigned(t, key, to, text, o.signal, o.deadline);
      if (latency === 'fast') feed.nudge();
      return sent;
    },
    spill: spillOf(t, key, to),
  };
}

/** @internal The maximum length of a frame to a mailbox or over a channel. */
export function limitOf(to: string | Channel | undefined): number {
  return (isChannel(to) && to.limit) || MAX_TEXT;
}

/** True for a channel, as opposed to the name of a room or a DID. */
export function isChannel(to: unknown): to is Channel {
  return isObject(to) && typeof to['send'] === 'function' && typeof to['listen'] === 'function';
}
