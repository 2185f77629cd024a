/**
 * Channels: where frames go and come from. `serve` and `call` know nothing else of rooms, sealed rooms or parley
 * sessions. The first kind is here: mailboxes, each read by one loop however many listen.
 *
 * @module
 */
import { BadName } from './errors.ts';
import { type Feed, feedOf, type Listener } from './feed.ts';
import { compact, isObject, MAX_TEXT } from './frames.ts';
import { Joint, type Options, retrying, sharedOf, type Transport, transportOf } from './http.ts';
import { isName, roomClasses } from './names.ts';
import { OPENING, PATIENCE_MS, type Place, placeOf, readView, type SigningKey, saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';
import { type Spill, spillOf } from './spill.ts';

export type { Incoming, Listener } from './feed.ts';

/** How to send. */
export interface SendOptions {
  signal?: AbortSignal;
  /** Clock time, ms, after which it is not tried any more. */
  deadline?: number;
}

/** What became of a frame that was sent. */
export interface Sent {
  seq: number;
  /** True when neither another writer was seen there nor anybody who reads there. */
  alone?: boolean;
}

/** A way to exchange frames with one or more peers whose identity it proves. */
export interface Channel {
  /** Name of what it runs through, for contexts and errors. */
  readonly room: string;
  /**
   * Our own identity, where what we send comes back to us as an echo; else `''`, and then one identity may speak with itself,
   * as two programs with one key do.
   */
  readonly self: string;
  /**
   * Begins to listen; resolves once no later message can be missed.
   *
   * @returns ends the listening
   */
  listen(listener: Listener, signal?: AbortSignal): Promise<() => void>;
  /** Most characters of one frame; absent: {@link MAX_TEXT}. */
  readonly limit?: number;
  /** Sends one frame, as text. */
  send(text: string, o?: SendOptions): Promise<Sent>;
  /** How texts go that are too large for a frame; absent: not at all. */
  readonly spill?: Spill;
}

// --- mailboxes ---------------------------------------------------------------------------------------------------

/**
 * The name itself, if it is that of a mailbox: a room of class `mb`, which takes signed writes only.
 *
 * @throws BadName any other name
 */
export function checkMailbox(room: string): string {
  if (isMailbox(room)) return room;
  throw new BadName(
    room,
    isName(room)
      ? 'a mailbox is a room whose name begins with mb-'
      : 'a mailbox is a DID, or a room: 1 to 48 of a-z 0-9 _ -, beginning with mb-',
  );
}

/** True for the name of a mailbox. */
export function isMailbox(room: unknown): room is string {
  return isName(room) && roomClasses(room as string).mb;
}

const OPENED = {};
const openedOf = (t: Transport): Map<string, Opened> => sharedOf(t, OPENED, () => new Map());
const MAX_OPENED = 1024;
/**
 * How far behind the newest message a line is still seen by everybody who looks for it: they read 200, or of the longest
 * ones those of the last 1 MiB.
 */
const IN_SIGHT = 50;
/** The same in time, for rooms whose messages expire, ms. */
const IN_SIGHT_MS = 300_000;
/** How long a line of ours may be ahead of what was read, ms. */
const AHEAD_MS = 60_000;

/** A line of ours in a mailbox of ours. */
interface Line {
  readonly seq: number;
  readonly at: number;
  /** The life of the room it stands in, once somebody has read there. */
  epoch?: number;
  /** Where the room begins, while nobody has begun there, if nobody opened it before: all that came before it waits. */
  first?: Place;
}

/** What is known of a mailbox of ours. */
interface Opened {
  readonly opening: Joint<void>;
  line?: Line;
  /** While another line is being written. */
  isRenewed?: boolean;
}

/** Whether a line still shows, as far as the one who reads the room can tell. */
function isInSight(t: Transport, room: string, line: Line, feed: Feed): boolean {
  const { place, epoch } = feed;
  if (!place) return true;
  line.epoch ??= epoch;
  const behind = place.since - line.seq;
  const expires = roomClasses(room).e && Math.abs(t.clock.now() - line.at) > IN_SIGHT_MS;
  // What we wrote just now is ahead of what was read; later on, it stood in a room that is gone.
  const isAhead = behind < 0 && Math.abs(t.clock.now() - line.at) < AHEAD_MS;
  return line.epoch === epoch && (behind >= 0 || isAhead) && behind < IN_SIGHT && !expires;
}

async function writtenLine(t: Transport, room: string, key: SigningKey, signal: AbortSignal): Promise<Line> {
  const at = t.clock.now();
  const view = await retrying(t, at + PATIENCE_MS, () => readView(t, room, { limit: IN_SIGHT }, signal), signal);
  const { messages, lastSeq, generation } = view;
  const ours = messages.filter((m) => m.from === key.did).at(-1);
  // Of our own lines those of a caller with the same key open nothing: without one that does, the next start would be a first one too.
  const isFirst = messages.length === lastSeq && !messages.some(({ text }) => text === OPENING);
  if (!ours || isFirst || roomClasses(room).e) {
    const line = await freshLine(t, room, key, signal);
    if (isFirst && line.seq > 1) line.first = compact({ since: 0, generation });
    return line;
  }
  feedOf(t, room).sawEnd(placeOf(view));
  return { seq: ours.seq, at };
}

async function freshLine(t: Transport, room: string, key: SigningKey, signal?: AbortSignal): Promise<Line> {
  const at = t.clock.now();
  const { seq, place } = await saySigned(t, key, room, OPENING, signal);
  if (place) feedOf(t, room).sawEnd(place);
  return { seq, at };
}

/**
 * Makes sure that a line signed by the key stands in its mailbox where all see it: it is what shows others that the mailbox
 * is the key's, so that answers may go there. Costs one read, and one write where there is none yet; once per key and
 * mailbox, and again when so much came after it that nobody would see it any more.
 *
 * @param feed that of the mailbox, once it is placed
 * @returns undefined when there is nothing to wait for
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
  } else if (entry.line && feed && !entry.isRenewed && !isInSight(t, room, entry.line, feed)) {
    // Nobody has to wait for what only is to stay in sight.
    const renewed = entry;
    renewed.isRenewed = true;
    void freshLine(t, room, key)
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
 * Where to begin in a mailbox that was opened just now, and never before by anybody: nothing that waits there can have been
 * taken. Told once; undefined when it was opened before, or so much stands in it that nobody can tell.
 */
export function beginningOf(t: Transport, room: string, key: SigningKey): Place | undefined {
  const { line } = openedOf(t).get(`${room} ${key.did}`) ?? {};
  const first = line?.first;
  if (line) delete line.first;
  return first;
}

/** No answer came: the line may be gone, with the room it stood in. The next one who needs it looks. */
export function doubtMailbox(t: Transport, room: string, key: SigningKey): void {
  openedOf(t).delete(`${room} ${key.did}`);
}

/**
 * A pair of mailboxes as a channel: frames go to `to`, and what is said in `replyTo` comes back.
 *
 * @param latency `frugal`: no reads beyond the one that is parked
 * @throws BadName one of them is no mailbox
 */
export function mailboxes(
  to: string,
  replyTo: string,
  signer: Signer,
  o: Options & { latency?: 'fast' | 'frugal' } = {},
): Channel {
  return mailboxPair(transportOf(o), signer, to, replyTo, o.latency);
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
      // Without a pause, so that whoever asks the budget next knows of this write.
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
