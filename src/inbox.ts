/**
 * Inboxes: all conversations whose answers arrive through one channel or mailbox share one listener.
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

/** A conversation that waits in an inbox. */
export interface Waiting {
  /** Called with responses that have the conversation's id, and with all notifications. */
  take(frame: JsonObject, kind: 'response' | 'notification' | 'spilled', from: string, at?: number): void;
  /** Called when messages written before the given time were lost, perhaps including the answer. */
  lost(gap: RingGap, before?: number): void;
  /** Called when no answer can come any more. */
  fail(cause: unknown): void;
}

/** The conversations whose answers arrive through one channel or mailbox. */
export class Inbox {
  /**
   * The random part of the ids that we generate, which distinguishes them from those of other clients and earlier runs.
   */
  readonly tag: string;
  readonly #t: Transport;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;
  #users = 0;
  /** The number of messages in which the answers are likely to come. */
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
   * Adds a user. The first one starts the listener; the last one to leave ends it.
   *
   * @param share the share of a message that the answer is likely to take, at most 1
   * @returns a function with which the user leaves; once it is returned, no later answer can be missed
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

  /** Starts to listen. Messages that an earlier listener still gets before it ends are ignored. */
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

/** One period of listening. */
interface Session {
  ready: Promise<() => void>;
  stop(): void;
}

/**
 * Whether a key may use an id for a request. The ids that {@link call} generates name the key that asks: otherwise
 * anybody could copy an id from a mailbox, and the answer to their own request would go to whoever waits under that id.
 *
 * @internal
 */
export function mayUseId(did: string, id: unknown): boolean {
  const minted = typeof id === 'string' ? /^([0-9a-f]{16})\.[\w-]{8}\.\d+\.\d+$/.exec(id) : null;
  // A channel whose identities are not DIDs has only two ends, so there is no third party's id to copy.
  return minted === null || !isDid(did) || minted[1] === fingerprint(did);
}

const INBOXES = {};
const channelInboxes = new WeakMap<Channel, Inbox>();
/** For how many mailboxes the inbox is kept; a client usually has one. */
const MAX_INBOXES = 256;

/** The inbox of a channel, or of all channels with one reply room. */
export function inboxOf(t: Transport, at: Channel | string): Inbox {
  if (typeof at !== 'string') return getOrMake(channelInboxes, at, () => new Inbox(t));
  const inboxes = sharedOf(t, INBOXES, () => new Map<string, Inbox>());
  let inbox = inboxes.get(at);
  if (!inbox) {
    // An inbox that is evicted while in use lives on with its users; later calls just do not share it.
    remember(inboxes, at, (inbox = new Inbox(t)), MAX_INBOXES);
  }
  return inbox;
}
