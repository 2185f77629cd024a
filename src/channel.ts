/**
 * Channels: where frames go and come from. `serve` and `call` know nothing else of rooms, sealed rooms or parley
 * sessions. The first kind is here: mailboxes, each read by one loop however many listen.
 *
 * @module
 */
import { BadName, type RingGap } from './errors.ts';
import { isObject } from './frames.ts';
import { orAbort, poll, retrying, sharedOf, type Transport } from './http.ts';
import { type Message, verifyMessage } from './messages.ts';
import { isDid, isName, roomClasses } from './names.ts';
import { PATIENCE_MS, type Place, RoomCursor, readView, type SigningKey, saySigned } from './rooms.ts';
import { learnLimits } from './service.ts';

/** One message as a channel hands it over. */
export interface Incoming {
  /** Who wrote it, proved by a signature or a seal; `''` when nobody can be named. */
  readonly from: string;
  /** The text; a frame, if {@link frames.decode} says so. */
  readonly text: string;
  /** Room or session it came through. */
  readonly room: string;
  /** Position there. */
  readonly seq: number;
  /** Digits that rise with every message of one writer here: an old message that comes again is known by them. */
  readonly nonce?: string;
}

/** Who listens to a channel. Its methods must return soon and not throw. */
export interface Listener {
  /** Each message in order, also our own. */
  message(m: Incoming): void;
  /** Messages were lost that came before those of the last batch, which was handed over first. */
  gap(gap: RingGap): void;
  /** Nothing will come any more. */
  end(cause: unknown): void;
  /** How many exchanges are under way: the more, the less the next message alone is worth a read of its own. */
  busy?(): number;
}

/** How to send. */
export interface SendOptions {
  signal?: AbortSignal;
  /** Clock time, ms, after which it is not tried any more. */
  deadline?: number;
}

/** What became of a frame that was sent. */
export interface Sent {
  seq: number;
  /** True when no other writer was seen there. */
  alone?: boolean;
}

/** A way to exchange frames with one or more peers whose identity it proves. */
export interface Channel {
  /** Name of what it runs through, for contexts and errors. */
  readonly room: string;
  /** Our own identity on it: messages from it are echoes. */
  readonly self: string;
  /**
   * Begins to listen; resolves once no later message can be missed.
   *
   * @returns ends the listening
   */
  listen(listener: Listener, signal?: AbortSignal): Promise<() => void>;
  /** Sends one frame, as text of at most {@link frames.MAX_TEXT} characters. */
  send(text: string, o?: SendOptions): Promise<Sent>;
}

// --- one loop a room ---------------------------------------------------------------------------------------------

const SIGS = {};

/** The author of a message as far as it is proved: by its signature, or by the word of a service that keeps none. */
export function authorOf(t: Transport, room: string, m: Message): string {
  if (!isDid(m.from)) return '';
  const base = sharedOf(t, SIGS, () => ({ keepsSigs: false }));
  const verdict = verifyMessage(room, m);
  if (verdict === 'valid') base.keepsSigs = true;
  // Where signatures are kept, one that is missing was taken away.
  else if (verdict === 'invalid' || base.keepsSigs) {
    t.onEvent({ kind: 'refused', room, seq: m.seq, from: m.from, reason: `signature ${verdict}` });
    return '';
  }
  return m.from;
}

/** Longest pause between two reads in a burst, ms. */
const MAX_PAUSE_MS = 25;
/** A warm cursor older than this is not worth the backlog, ms. */
const WARM_MS = 30_000;

/** One room as all its listeners read it: one loop, which runs while anybody listens. */
export class Feed {
  readonly #t: Transport;
  readonly #cursor: RoomCursor;
  readonly #listeners = new Set<Listener>();
  #loop: AbortController | undefined;
  #starting: Promise<void> | undefined;
  #idleSince = 0;

  constructor(t: Transport, room: string) {
    this.#t = t;
    this.#cursor = new RoomCursor(t, room);
  }

  /** The place behind the last message that all listeners got. */
  get place(): Place | undefined {
    return this.#cursor.place;
  }

  /** True while nobody listens. */
  get idle(): boolean {
    return this.#listeners.size === 0;
  }

  /** Which life of the room this is, for ids that must not outlive it. */
  get epoch(): number {
    return this.#cursor.epoch;
  }

  /** @param from where to begin, if the loop does not run yet; default: what comes from now on */
  async listen(listener: Listener, signal?: AbortSignal, from?: Place): Promise<() => void> {
    this.#listeners.add(listener);
    const leave = (): void => {
      if (!this.#listeners.delete(listener) || this.#listeners.size > 0) return;
      this.#loop?.abort();
      this.#loop = undefined;
      this.#idleSince = this.#t.clock.now();
    };
    try {
      // Whoever comes while the cursor is being placed waits for the same reads.
      this.#starting ??= this.#start(from).finally(() => {
        this.#starting = undefined;
      });
      await orAbort(this.#starting, signal);
    } catch (cause) {
      leave();
      throw cause;
    }
    return leave;
  }

  async #start(from: Place | undefined): Promise<void> {
    if (this.#loop) return;
    const { clock } = this.#t;
    const idle = clock.now() - this.#idleSince;
    if (from) this.#cursor.place = from;
    else if (this.#cursor.since === undefined || idle > WARM_MS || idle < 0) {
      await retrying(this.#t, clock.now() + PATIENCE_MS, () => this.#cursor.toTail());
    }
    if (this.#listeners.size === 0 || this.#loop) return;
    learnLimits(this.#t);
    this.#loop = new AbortController();
    void this.#run(this.#loop);
  }

  async #run(loop: AbortController): Promise<void> {
    const { room } = this.#cursor;
    const { signal } = loop;
    try {
      for await (const { gap, messages } of poll(this.#t, (waitMs) => this.#cursor.next(waitMs, signal), { signal })) {
        const incoming = messages.map((m): Incoming => {
          const from = authorOf(this.#t, room, m);
          const { seq, text, nonce } = m;
          return nonce === undefined ? { from, text, room, seq } : { from, text, room, seq, nonce };
        });
        for (const listener of [...this.#listeners]) {
          for (const m of incoming) listener.message(m);
          if (gap) listener.gap(gap);
        }
        if (loop.signal.aborted) return;
        // In a burst each message would cost a read; a short pause lets the next ones come together.
        let busy = 0;
        for (const listener of this.#listeners) busy += listener.busy?.() ?? 0;
        if (busy > 1) await this.#t.clock.sleep(Math.min(busy, MAX_PAUSE_MS), signal);
      }
    } catch (cause) {
      if (loop.signal.aborted) return;
      this.#loop = undefined;
      this.#idleSince = this.#t.clock.now();
      const left = [...this.#listeners];
      this.#listeners.clear();
      for (const listener of left) listener.end(cause);
    }
  }
}

const FEEDS = {};
/** Rooms whose cursor is kept warm. */
const MAX_FEEDS = 256;

/** The one feed of a room on a transport. */
export function feedOf(t: Transport, room: string): Feed {
  const feeds = sharedOf(t, FEEDS, () => new Map<string, Feed>());
  let feed = feeds.get(room);
  if (!feed) {
    feed = new Feed(t, room);
    feeds.set(room, feed);
    // Forgetting an idle feed costs one read; one that runs is never forgotten, and those are as many as its users' calls.
    for (const [name, old] of feeds) {
      if (feeds.size <= MAX_FEEDS) break;
      if (old.idle) feeds.delete(name);
    }
  }
  return feed;
}

// --- mailboxes ---------------------------------------------------------------------------------------------------

/**
 * The name itself, if it is that of a mailbox: a room of class `mb`, which takes signed writes only.
 *
 * @throws BadName any other name
 */
export function checkMailbox(room: string): string {
  if (isMailbox(room)) return room;
  throw new BadName(String(room), 'a mailbox is a room whose name begins with mb- or a class before it');
}

/** True for the name of a mailbox. */
export function isMailbox(room: unknown): room is string {
  return isName(room) && roomClasses(room as string).mb;
}

const OPENED = {};

/**
 * Makes sure that a line signed by the key stands in its mailbox: it is what shows others that the mailbox is the key's,
 * so that answers may go there. Costs one read, and one write where there is none yet; once per key and mailbox.
 */
export function openMailbox(t: Transport, room: string, key: SigningKey, signal?: AbortSignal): Promise<void> {
  const opened = sharedOf(t, OPENED, () => new Map<string, Promise<void>>());
  const name = `${room} ${key.did}`;
  let opening = opened.get(name);
  if (!opening) {
    if (opened.size >= MAX_FEEDS) opened.clear();
    opening = (async () => {
      const deadline = t.clock.now() + PATIENCE_MS;
      const view = await retrying(t, deadline, () => readView(t, room, { limit: 200 }));
      if (!view.messages.some((m) => m.from === key.did)) await saySigned(t, key, room, 'mailbox opened');
    })();
    opened.set(name, opening);
    opening.catch(() => opened.delete(name));
  }
  return orAbort(opening, signal);
}

/**
 * A pair of mailboxes as a channel: frames go to `to`, and what is said in `replyTo` comes back.
 *
 * @throws BadName one of them is no mailbox
 */
export function mailboxes(t: Transport, key: SigningKey, to: string, replyTo: string): Channel {
  checkMailbox(to);
  const feed = feedOf(t, checkMailbox(replyTo));
  return {
    room: to,
    self: key.did,
    async listen(listener, signal) {
      await openMailbox(t, replyTo, key, signal);
      return feed.listen(listener, signal);
    },
    send: (text, o = {}) => saySigned(t, key, to, text, o.signal, o.deadline),
  };
}

/** True for something that is used as a channel, as opposed to the name of a room or a DID. */
export function isChannel(to: unknown): to is Channel {
  return isObject(to) && typeof to['send'] === 'function' && typeof to['listen'] === 'function';
}
