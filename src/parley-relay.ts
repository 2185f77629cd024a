/**
 * The relay of a parley: what a session asks of it, and one reached over HTTP.
 *
 * @module
 */
import { fromBase64, toBase64, toBase64url } from './bytes.ts';
import { RelayRefused, TechnocoreError, Unavailable } from './errors.ts';
import { isObject, parseExact } from './frames.ts';
import { failureOf, type Options, type Request, request, retrying, type Transport, transportOf } from './http.ts';
import { getOrMake } from './maps.ts';
import type { ChannelID, JoinToken } from './parley-invite.ts';

/** 1 is a handshake message, 2 is data. */
export type FrameType = 1 | 2 | number;

/** What a relay passes on. */
export interface Frame {
  channel: ChannelID;
  /** Each end numbers its own frames, from 1: 64 bits. */
  seq: bigint;
  type: FrameType;
  payload: Uint8Array;
}

/** A seat in a channel. */
export interface Membership {
  channel: ChannelID;
  /** What shows the relay that the seat is ours. A secret. */
  token: string;
}

/** Every call may be given up; it then rejects with the signal's reason. */
export interface Abortable {
  signal?: AbortSignal | undefined;
}

/**
 * Passes frames between two seats. Refusals are {@link RelayRefused} with a reason: `no-channel` (never opened or
 * forgotten), `exists` (on opening), `full` (on joining), `nobody` (on sending: the other seat is empty), `token`.
 */
export interface Relay {
  /** Host for invites, where the relay knows it. */
  readonly host?: string;
  /** Makes a channel that whoever shows the token `expect` may join. */
  open(channel: ChannelID, expect: JoinToken, o?: Abortable): Promise<Membership>;
  join(channel: ChannelID, present: JoinToken, o?: Abortable): Promise<Membership>;
  send(membership: Membership, frame: Frame, o?: Abortable): Promise<void>;
  /** Frames with a seq above `after`, in the order they were sent; waits for one at most `waitMs`. Deletes nothing. */
  recv(membership: Membership, after: bigint, waitMs: number, o?: Abortable): Promise<Frame[]>;
  /** Seats taken, 1 or 2. */
  members(membership: Membership, o?: Abortable): Promise<number>;
}

/**
 * Longest that a relay holds a read, ms.
 *
 * @internal
 */
export const MAX_WAIT_MS = 30_000;
/** How long failed reads and posts are tried again, ms, beyond what the caller waits anyway. */
const PATIENCE_MS = 500;
/** Most bytes of one answer. A relay has no paging: it returns all that was not acknowledged. */
const MAX_ANSWER = 1 << 26;
/** Most frames that are taken of one answer, so that none holds the program up: the rest is asked for again, behind them. */
const MAX_FRAMES = 16_384;

const REFUSALS = {
  'no-channel': 'the relay does not know the channel (any more)',
  exists: 'the channel exists already',
  full: 'both seats are taken; if not by you, use a new invite and compare fingerprints',
  nobody: 'nobody has joined',
  token: 'the relay does not accept the token',
} as const;

type Refusal = keyof typeof REFUSALS;

/** @internal */
export const refused = (reason: Refusal, more = ''): RelayRefused => new RelayRefused(reason, REFUSALS[reason] + more);

/** A relay reached over HTTP. */
export class HttpRelay implements Relay {
  readonly #http: Transport;
  readonly #seats = new WeakMap<Membership, Seat>();

  /**
   * @param base its address, perhaps with a path: `https://parley.chat`
   * @throws BadName not the address of a service
   */
  constructor(base: string, o: Options = {}) {
    this.#http = transportOf(o, base);
  }

  get host(): string {
    return this.#http.base.split('/')[2]!.replace(/^.*@/, '');
  }

  // Neither this nor `join` is ever repeated: the first attempt may have taken the seat.
  open(channel: ChannelID, expect: JoinToken, o?: Abortable): Promise<Membership> {
    return this.#seat(channel, '', { expect }, 'exists', o);
  }

  join(channel: ChannelID, token: JoinToken, o?: Abortable): Promise<Membership> {
    return this.#seat(channel, '/join', { token }, 'full', o);
  }

  async send(membership: Membership, { seq, type, payload }: Frame, o?: Abortable): Promise<void> {
    // Built by hand: a seq may have more digits than a number holds.
    const body = `{"seq":${seq},"type":${type},"payload":"${toBase64(payload)}"}`;
    const post = async (): Promise<void> => {
      const text = await this.#ask(membership, { path: '/frames', body }, 'nobody', o);
      // A page that something on the way shows is no word that the frame arrived.
      if (text !== '') answerOf(text);
    };
    await this.#patiently(0, post, o);
  }

  async recv(membership: Membership, after: bigint, waitMs: number, o?: Abortable): Promise<Frame[]> {
    const ask = (left: number): Promise<string> => {
      const wait = Math.min(Math.floor(left), MAX_WAIT_MS);
      const path = `/frames?after=${after}&wait=${wait}`;
      return this.#ask(membership, { path, waitMs: wait, maxBytes: MAX_ANSWER }, 'token', o);
    };
    return framesOf(membership.channel, await this.#patiently(waitMs, ask, o));
  }

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

  // What a 409 means depends on the call.
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
    if (status === 401) throw refused('token');
    if (status === 409) throw refused(on409);
    // A path that is no route says so in other words, and is no reason to give the channel up.
    if (status === 404 && /channel/.test(text)) throw refused('no-channel');
    throw failureOf(reply, isPost ? 'write' : 'read', this.#http.clock);
  }

  async #seat(channel: ChannelID, path: string, body: object, on409: Refusal, o?: Abortable): Promise<Membership> {
    const asked = { path, body: JSON.stringify(body) };
    const { token } = answerOf(await this.#ask({ channel, token: '' }, asked, on409, o));
    if (typeof token !== 'string' || !/^[\x21-\x7e]{1,512}$/.test(token)) throw unreadable();
    return { channel: channel.slice(), token };
  }
}

/** What all requests of one membership have in common. */
interface Seat {
  path: string;
  get: Record<string, string>;
  post: Record<string, string>;
}

function seatOf({ channel, token }: Membership): Seat {
  const get: Record<string, string> = token ? { authorization: `Bearer ${token}` } : {};
  return { path: `/c/${toBase64url(channel)}`, get, post: { 'content-type': 'application/json', ...get } };
}

const unreadable = (): Unavailable => new Unavailable('the relay sent an answer that cannot be read');

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
  // Exact integers arrive as strings, so a seq that came as a string must be told by its quotes.
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
 * The relay will not know the channel any more.
 *
 * @internal
 */
export function isForgotten(cause: unknown): boolean {
  return TechnocoreError.is(cause) && cause.code === 'relay_refused' && (cause as RelayRefused).reason === 'no-channel';
}
