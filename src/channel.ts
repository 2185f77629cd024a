/**
 * Channels: where frames go and come from. `serve` and `call` know nothing else of rooms, sealed rooms or parley
 * sessions. The first kind is here: mailboxes, each read by one loop however many listen.
 *
 * @module
 */
import { BadName } from './errors.ts';
import { feedOf, type Listener } from './feed.ts';
import { isObject } from './frames.ts';
import { orAbort, retrying, sharedOf, type Transport } from './http.ts';
import { isName, roomClasses } from './names.ts';
import { PATIENCE_MS, readView, type SigningKey, saySigned } from './rooms.ts';
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
  /** True when no other writer was seen there. */
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
  /** Sends one frame, as text of at most {@link frames.MAX_TEXT} characters. */
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
  throw new BadName(String(room), 'a mailbox is a room whose name begins with mb- or a class before it');
}

/** True for the name of a mailbox. */
export function isMailbox(room: unknown): room is string {
  return isName(room) && roomClasses(room as string).mb;
}

const OPENED = {};
const MAX_OPENED = 1024;

/**
 * Makes sure that a line signed by the key stands in its mailbox: it is what shows others that the mailbox is the key's,
 * so that answers may go there. Costs one read, and one write where there is none yet; once per key and mailbox.
 */
export function openMailbox(t: Transport, room: string, key: SigningKey, signal?: AbortSignal): Promise<void> {
  const opened = sharedOf(t, OPENED, () => new Map<string, Promise<void>>());
  const name = `${room} ${key.did}`;
  let opening = opened.get(name);
  if (!opening) {
    if (opened.size >= MAX_OPENED) opened.clear();
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
 * @param latency `frugal`: no reads beyond the one that is parked
 * @throws BadName one of them is no mailbox
 */
export function mailboxes(
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
      const sent = await saySigned(t, key, to, text, o.signal, o.deadline);
      if (latency === 'fast') feed.nudge();
      return sent;
    },
    spill: spillOf(t, key, to),
  };
}

/** True for something that is used as a channel, as opposed to the name of a room or a DID. */
export function isChannel(to: unknown): to is Channel {
  return isObject(to) && typeof to['send'] === 'function' && typeof to['listen'] === 'function';
}
