/**
 * The relay of a parley: the interface that a session needs, and its HTTP implementation.
 *
 * @module
 */
import { fromBase64, toBase64, toBase64url } from './bytes.ts';
import { checkBytes } from './crypto.ts';
import { RelayRefused, TechnocoreError, Unavailable } from './errors.ts';
import { isObject, parseExact } from './frames.ts';
import { failureOf, type Options, type Request, request, retrying, type Transport, transportTo } from './http.ts';
import { getOrMake } from './maps.ts';
import type { ChannelID, JoinToken } from './parley-invite.ts';

/** The type of a frame: 1 is a handshake message, 2 is data. */
export type FrameType = 1 | 2 | number;

/** A frame, which a relay passes from one end of a channel to the other. */
export interface Frame {
  /** The channel, 16 bytes. */
  channel: ChannelID;
  /** The number of the frame, 64 bits: each end numbers its own frames, starting at 1. */
  seq: bigint;
  /** Whether it is a handshake message or data. */
  type: FrameType;
  /** The bytes. */
  payload: Uint8Array;
}

/** A seat in a channel, granted by the relay. */
export interface Membership {
  /** The channel, 16 bytes. */
  channel: ChannelID;
  /** The token that proves to the relay that the seat is ours. A secret. */
  token: string;
}

/** Options of calls that can be aborted. */
export interface Abortable {
  /** Aborts the call, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

/**
 * A relay passes frames between the two seats of a channel. It refuses with a {@link RelayRefused} whose `reason` is
 * `no-channel` (never opened, or expired), `exists` (on opening), `full` (on joining), `nobody` (on sending: the other
 * seat is empty) or `token`.
 */
export interface Relay {
  /** The host for invites, if the relay knows it. */
  readonly host?: string | undefined;
  /** Opens a channel that anybody who shows the token `expect` may join. */
  open(channel: ChannelID, expect: JoinToken, o?: Abortable): Promise<Membership>;
  /** Takes the second seat of a channel by showing its token. */
  join(channel: ChannelID, present: JoinToken, o?: Abortable): Promise<Membership>;
  /** Sends a frame to the other seat. */
  send(membership: Membership, frame: Frame, o?: Abortable): Promise<void>;
  /**
   * Returns the frames from the other seat with a `seq` above `after`, in the order in which they were sent. Waits up
   * to `waitMs` milliseconds for one. Deletes nothing.
   */
  recv(membership: Membership, after: bigint, waitMs: number, o?: Abortable): Promise<Frame[]>;
  /** Returns how many seats are taken: 1 or 2. */
  members(membership: Membership, o?: Abortable): Promise<number>;
}

/**
 * How long a relay holds a read at most, ms.
 *
 * @internal
 */
export const MAX_WAIT_MS = 30_000;
/** How long failed reads and posts are retried beyond the caller's own wait, ms. */
const PATIENCE_MS = 500;
/** The maximum size of a response, bytes. A relay has no paging: it returns everything after the cursor. */
const MAX_ANSWER = 1 << 26;
/** How many frames of a response are taken at a time, so that none blocks the program. The rest is read next. */
const MAX_FRAMES = 16_384;

type Refusal = RelayRefused['reason'];

const REFUSALS: Record<Refusal, string> = {
  'no-channel': 'the relay does not know the channel',
  exists: 'the channel exists',
  full: 'both seats are taken; if not by you, use a new invite',
  nobody: 'nobody has joined',
  token: 'the relay refuses the token',
};

/** @internal */
export const refused = (reason: Refusal, more = ''): RelayRefused => new RelayRefused(reason, REFUSALS[reason] + more);

/**
 * A relay over HTTP. Failed reads and posts are retried for half a second beyond the caller's own wait; opening and
 * joining are not, since the first attempt may have taken the seat.
 *
 * Its methods throw a {@link RelayRefused} as described for {@link Relay}, `Unavailable` if the relay cannot be
 * reached, and the signal's reason when it aborts.
 */
export class HttpRelay implements Relay {
  readonly #http: Transport;
  readonly #seats = new WeakMap<Membership, Seat>();

  /**
   * Makes a client for a relay; it connects on first use.
   *
   * @param base the relay's address, with or without a path, such as `https://parley.chat`
   * @throws `BadName` if it is not an http or https address
   */
  constructor(base: string, o: Options = {}) {
    this.#http = transportTo(base, o, 'the URL of a relay, like https://parley.chat');
  }

  /** The relay's host, with the port if there is one. */
  get host(): string {
    return this.#http.base.split('/')[2]!.replace(/^.*@/, '');
  }

  /** Opens a channel: see {@link Relay.open}. Never retried, since the first attempt may have taken the seat. */
  open(channel: ChannelID, expect: JoinToken, o?: Abortable): Promise<Membership> {
    return this.#seat(channel, '', { expect }, 'exists', o);
  }

  /** Takes the second seat: see {@link Relay.join}. Never retried, for the same reason. */
  join(channel: ChannelID, token: JoinToken, o?: Abortable): Promise<Membership> {
    return this.#seat(channel, '/join', { token }, 'full', o);
  }

  /** Sends a frame: see {@link Relay.send}. */
  async send(membership: Membership, frame: Frame, o?: Abortable): Promise<void> {
    const { seq, type, payload } = frame;
    // Built by hand: a seq may have more digits than a number holds.
    const body = `{"seq":${seq},"type":${type},"payload":"${toBase64(checkBytes(payload, 'the payload'))}"}`;
    const post = async (): Promise<void> => {
      const text = await this.#ask(membership, { path: '/frames', body }, 'nobody', o);
      // A proxy's page does not confirm that the frame arrived.
      if (text !== '') answerOf(text);
    };
    await this.#patiently(0, post, o);
  }

  /** Returns the frames after a cursor: see {@link Relay.recv}. Waits at most 30 seconds per request. */
  async recv(membership: Membership, after: bigint, waitMs: number, o?: Abortable): Promise<Frame[]> {
    const ask = (left: number): Promise<string> => {
      const wait = Math.min(Math.floor(left), MAX_WAIT_MS);
      const path = `/frames?after=${after}&wait=${wait}`;
      return this.#ask(membership, { path, waitMs: wait, maxBytes: MAX_ANSWER }, 'token', o);
    };
    return framesOf(membership.channel, await this.#patiently(waitMs, ask, o));
  }

  /** Returns how many seats are taken: see {@link Relay.members}. */
  async members(membership: Membership, o?: Abortable): Promise<number> {
    const { members } = answerOf(await this.#ask(membership, { path: '/members' }, 'token', o));
    if (typeof members !== 'number') throw unreadable();
    return members;
  }

  #patiently<T>(waitMs: number, run: (leftMs: number) => Promise<T>, o?: Abortable): Promise<T> {
    const { clock } = this.#http;
    const until = clock.now() + waitMs;
    return retrying(this.#http, until + PATIENCE_MS, () => run(Math.max(until - clock.now(), 0)), o?.signal);
  }

  // The meaning of a 409 depends on the call.
  async #ask(membership: Membership, r: Request, on409: Refusal, o?: Abortable): Promise<string> {
    const isPost = r.body !== undefined;
    const { path, get, post } = getOrMake(this.#seats, membership, () => seatOf(membership));
    const reply = await request(this.#http, {
      ...r,
      method: isPost ? 'POST' : 'GET',
      path: path + r.path,
      headers: isPost ? post : get,
      signal: o?.signal,
    });
    const { status, text } = reply;
    if (status >= 200 && status < 300) return text;
    // A relay answers in plain words: a web page comes from something in between.
    if (!/^\s*</.test(text)) {
      if (status === 401) throw refused('token');
      if (status === 409) throw refused(on409);
      // A 404 for an unknown route has other words, and is no reason to give up the channel.
      if (status === 404 && /channel/.test(text)) throw refused('no-channel');
    }
    throw failureOf(reply, isPost ? 'write' : 'read', this.#http.clock);
  }

  async #seat(channel: ChannelID, path: string, body: object, on409: Refusal, o?: Abortable): Promise<Membership> {
    const asked = { path, body: JSON.stringify(body) };
    const { token } = answerOf(await this.#ask({ channel, token: '' }, asked, on409, o));
    if (typeof token !== 'string' || !/^[\x21-\x7e]{1,512}$/.test(token)) throw unreadable();
    return { channel: channel.slice(), token };
  }
}

/** What all requests of a membership share. */
interface Seat {
  path: string;
  get: Record<string, string>;
  post: Record<string, string>;
}

function seatOf({ channel, token }: Membership): Seat {
  const get: Record<string, string> = token ? { authorization: `Bearer ${token}` } : {};
  return { path: `/c/${toBase64url(channel)}`, get, post: { 'content-type': 'application/json', ...get } };
}

const unreadable = (): Unavailable => new Unavailable('the relay sent an unreadable answer');

function answerOf(text: string): Record<string, unknown> {
  try {
    const answer = parseExact(text, 'seq');
    if (isObject(answer)) return answer;
  } catch {
    // Not JSON.
  }
  throw unreadable();
}

function framesOf(channel: ChannelID, text: string): Frame[] {
  const frames = answerOf(text)['frames'] ?? [];
  // `parseExact` turns integers into strings. A seq that was a string to begin with is recognized by its quotes and
  // refused.
  if (!Array.isArray(frames) || /"seq"\s*:\s*"/.test(text)) throw unreadable();
  return frames.slice(0, MAX_FRAMES).map((frame: unknown) => {
    const { seq, type, payload }: Record<string, unknown> = isObject(frame) ? frame : {};
    const text = payload ?? '';
    const bytes = typeof text === 'string' ? fromBase64(text) : undefined;
    if (typeof seq !== 'string' || !/^\d{1,20}$/.test(seq) || typeof type !== 'number' || !bytes) throw unreadable();
    return { channel, seq: BigInt(seq), type, payload: bytes };
  });
}

/**
 * Whether an error means that the relay no longer knows the channel.
 *
 * @internal
 */
export function isForgotten(cause: unknown): boolean {
  return TechnocoreError.is(cause) && (cause as RelayRefused).reason === 'no-channel';
}
