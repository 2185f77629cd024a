/**
 * Inboxes: all conversations whose answers come through one channel, or into one mailbox, share one listener.
 *
 * @module
 */
import { toBase64url } from './bytes.ts';
import type { Channel, Incoming, Listener } from './channel.ts';
import { OVER } from './clock.ts';
import { classify, type JsonObject } from './dispatch.ts';
import { type RingGap, TechnocoreError } from './errors.ts';
import { decode, isObject } from './frames.ts';
import { orAbort, sharedOf, type Transport } from './http.ts';
import { getOrMake, remember } from './maps.ts';
import { fingerprint, isDid } from './names.ts';
import type { Signer } from './signer.ts';
import { FRAME_MEMBER } from './spill.ts';

/** A conversation, as an inbox knows it. */
export interface Waiting {
  /** Gets responses with the id of the conversation, and all notifications. */
  take(frame: JsonObject, kind: 'response' | 'notification' | 'spilled', from: string, at?: number): void;
  /** Messages that were written before that time were lost, the answer perhaps among them. */
  lost(gap: RingGap, before?: number): void;
  /** No answer can come any more. */
  fail(cause: unknown): void;
}

/** The conversations whose answers come through one channel, or into one mailbox. */
export class Inbox {
  /** A random part of the ids that we make, which tells them from those of other clients and of earlier runs. */
  readonly tag: string;
  readonly #t: Transport;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;
  #users = 0;
  /** In how many messages the answers are likely to come. */
  #due = 0;
  #session: Session | undefined;

  constructor(t: Transport) {
    this.#t = t;
    this.tag = toBase64url(t.random(6));
  }

  mint(key: Signer, epoch: number): string {
    return `${key.fingerprint}.${this.tag}.${epoch}.${++this.#count}`;
  }

  /**
   * Adds a user. The first one starts the listening, the last one to leave ends it.
   *
   * @param share the part of a message that the answer is likely to take, at most 1
   * @returns a function by which the user leaves; once it is returned, no later answer can be missed
   */
  async enter(channel: Channel, share: number, signal: AbortSignal): Promise<() => void> {
    this.#users++;
    this.#due += share;
    let inside = true;
    const leave = (): void => {
      if (!inside) return;
      inside = false;
      this.#due -= share;
      if (--this.#users > 0) return;
      this.#session?.stop();
      this.#session = undefined;
    };
    try {
      await orAbort((this.#session ??= this.#listen(channel)).ready, signal);
      return leave;
    } catch (cause) {
      leave();
      throw cause;
    }
  }

  /** Begins to listen. What an earlier listener, which has not ended yet, still gets does not count. */
  #listen(channel: Channel): Session {
    const stop = new AbortController();
    let session: Session | undefined;
    const isCurrent = (): boolean => this.#session === session;
    const listener: Listener = {
      message: (m) => isCurrent() && this.#message(m),
      gap: (gap, before) => {
        if (isCurrent()) for (const waiting of [...this.#waiting.values()]) waiting.lost(gap, before);
      },
      end: (cause) => {
        if (!isCurrent()) return;
        this.#session = undefined;
        for (const waiting of [...this.#waiting.values()]) waiting.fail(cause);
      },
      expects: () => Math.min(Math.ceil(this.#due), this.#users),
      awaits: true,
    };
    const ready = channel.listen(listener, stop.signal);
    session = {
      ready,
      stop() {
        stop.abort(OVER);
        ready.then(
          (end) => end(),
          () => {},
        );
      },
    };
    ready.catch(() => {
      if (isCurrent()) this.#session = undefined;
    });
    return session;
  }

  wait(id: string, waiting: Waiting): void {
    if (this.#waiting.has(id)) throw new TechnocoreError('duplicate_id', 'another call with this id is still waiting');
    this.#waiting.set(id, waiting);
  }

  forget(id: string): void {
    this.#waiting.delete(id);
  }

  #message(m: Incoming): void {
    const frame = m.from === '' ? undefined : decode(m.text);
    if (!frame) return;
    for (const member of Array.isArray(frame) ? frame : [frame]) {
      const kind = isObject(member) && member[FRAME_MEMBER] !== undefined ? 'spilled' : classify(member);
      if (kind === 'response' || kind === 'spilled') {
        const { id } = member as JsonObject;
        const waiting = typeof id === 'string' ? this.#waiting.get(id) : undefined;
        if (waiting) waiting.take(member as JsonObject, kind, m.from, m.at);
        else if (typeof id === 'string' && id.split('.')[1] === this.tag) {
          this.#t.onEvent({ kind: 'late', id, from: m.from, answer: member });
        }
      } else if (kind === 'notification') {
        for (const waiting of [...this.#waiting.values()]) waiting.take(member as JsonObject, kind, m.from);
      }
    }
  }
}

/** One stretch of listening. */
interface Session {
  ready: Promise<() => void>;
  stop(): void;
}

/**
 * Whether a key may ask under an id. The ids that {@link call} makes name the key that asks: otherwise anybody could copy
 * an id out of a mailbox, and the answer to his own request would go to whoever waits under that id.
 *
 * @internal
 */
export function mayUseId(did: string, id: unknown): boolean {
  const minted = typeof id === 'string' ? /^([0-9a-f]{16})\.[\w-]{8}\.\d+\.\d+$/.exec(id) : null;
  // On a channel whose identities are not DIDs there are only two, and nobody else's id to copy.
  return minted === null || !isDid(did) || minted[1] === fingerprint(did);
}

const INBOXES = {};
const channelInboxes = new WeakMap<Channel, Inbox>();
/** How many mailboxes have their inbox kept: a client usually has one. */
const MAX_INBOXES = 256;

/** The inbox of a channel, or of all channels with one reply room. */
export function inboxOf(t: Transport, at: Channel | string): Inbox {
  if (typeof at !== 'string') return getOrMake(channelInboxes, at, () => new Inbox(t));
  const inboxes = sharedOf(t, INBOXES, () => new Map<string, Inbox>());
  let inbox = inboxes.get(at);
  if (!inbox) {
    // An inbox that is forgotten in use lives on with its users; later calls just do not share it.
    remember(inboxes, at, (inbox = new Inbox(t)), MAX_INBOXES);
  }
  return inbox;
}
