/**
 * An embedded parley relay: two seats per channel, frames passed from one to the other, all in memory. It answers like
 * the reference relay, and has limits, which that one lacks.
 *
 * @module
 */
import { equalBytes, fromBase64, fromUtf8, toBase64, toBase64url, utf8 } from './bytes.ts';
import { randomBytes } from './crypto.ts';
import { isObject, parseExact } from './frames.ts';
import type { Clock } from './http.ts';
import { type Limits, type LocalStats, Parking } from './local-limits.ts';
import { type Incoming, type Outgoing, unescapePercent } from './local-wire.ts';
import { looseBase64url } from './parley-invite.ts';

const MAX_SEQ = 2n ** 64n - 1n;
/** Maximum time that a read is held, ms. */
const MAX_WAIT_MS = 30_000;

interface Stored {
  seq: bigint;
  /** The frame as it is in an answer. */
  json: string;
}

// A seat, with the frames that were sent to it.
interface Seat {
  token: Uint8Array;
  inbox: Stored[];
  /** The bytes of the inbox. */
  size: number;
  /** Whether the numbers in the inbox rise, as those of honest senders do. */
  rising: boolean;
  /** The highest `after` of a read: frames up to it have been seen. */
  seen: bigint;
}

interface Channel {
  expect: Uint8Array;
  seats: Seat[];
  usedAt: number;
}

// An error that carries the answer to send.
class Refused extends Error {
  readonly status: number;
  constructor(status: number, words: string) {
    super(words);
    this.status = status;
  }
}

/** Answers requests for `/c/…`, and for the other routes of the relay's program. */
export class RelayService {
  readonly #clock: Clock;
  readonly #limits: Limits;
  readonly #stats: LocalStats;
  readonly #parking: Parking;
  readonly #random: (bytes: number) => Uint8Array;
  readonly #channels: Map<string, Channel> = new Map();
  /** The bytes of all inboxes, and the number of held reads. */
  #size = 0;
  #held = 0;
  #sweptAt = 0;

  constructor(clock: Clock, limits: Limits, stats: LocalStats, random: (bytes: number) => Uint8Array = randomBytes) {
    this.#clock = clock;
    this.#limits = limits;
    this.#stats = stats;
    this.#random = random;
    this.#parking = new Parking(clock, { ...limits, wakeStepMs: 0 }, stats);
  }

  async handle(request: Incoming): Promise<Outgoing> {
    try {
      this.#sweep();
      return await this.#route(request);
    } catch (e) {
      if (!(e instanceof Refused)) throw e;
      return text(e.status, `${e.message}\n`);
    }
  }

  async #route(request: Incoming): Promise<Outgoing> {
    const [, path = '', query = ''] = /^([^?]*)\??(.*)$/s.exec(request.target)!;
    const isRead = request.method === 'GET' || request.method === 'HEAD';
    if (path === '/healthz' && isRead) return { status: 200, headers: PLAIN, body: 'ok' };
    const [, channelText = '', route = ''] = /^\/c\/([^/]+)(|\/join|\/frames|\/members)$/.exec(path) ?? [];
    if (!channelText) throw new Refused(404, '404 page not found');
    const allow = { '': 'POST', '/join': 'POST', '/frames': 'GET, HEAD, POST', '/members': 'GET, HEAD' }[route]!;
    if (!allow.split(', ').includes(request.method)) return text(405, 'Method Not Allowed\n', { allow });
    const id = looseBase64url(unescapePercent(channelText));
    if (id?.length !== 16) throw new Refused(400, 'bad channel');
    // Sixteen spellings name the same channel; it is stored under the canonical one.
    const name = toBase64url(id);
    if (route === '') return this.#open(name, await this.#body(request));
    if (route === '/join') return this.#join(name, await this.#body(request));
    if (route === '/members') return json({ members: this.#seat(request, name).channel.seats.length });
    if (isRead) return this.#read(request, name, query);
    return this.#post(request, name, await this.#body(request));
  }

  async #body(request: Incoming): Promise<Map<string, unknown>> {
    const bytes = await request.body(this.#limits.relayBodyBytes);
    if (!bytes) throw new Refused(413, `a body has at most ${this.#limits.relayBodyBytes} bytes`);
    return fieldsOf(bytes);
  }

  #open(name: string, body: Map<string, unknown>): Outgoing {
    const expect = stringOf(body, 'expect');
    if (this.#channels.has(name)) throw new Refused(409, 'channel already exists');
    if (this.#channels.size >= this.#limits.relayChannels) throw new Refused(503, 'too many channels');
    const seats = [this.#newSeat()];
    this.#channels.set(name, { expect: utf8(expect), seats, usedAt: this.#clock.now() });
    this.#stats.channels = this.#channels.size;
    return tokenOf(seats[0]!);
  }

  #join(name: string, body: Map<string, unknown>): Outgoing {
    const token = stringOf(body, 'token');
    const channel = this.#find(name);
    if (channel.seats.length > 1) throw new Refused(409, 'channel is full');
    if (!equalBytes(utf8(token), channel.expect)) throw new Refused(401, 'unrecognized token');
    const seat = this.#newSeat();
    channel.seats.push(seat);
    channel.usedAt = this.#clock.now();
    return tokenOf(seat);
  }

  #newSeat(): Seat {
    return { token: utf8(toBase64url(this.#random(32))), inbox: [], size: 0, rising: true, seen: 0n };
  }

  #find(name: string): Channel {
    const channel = this.#channels.get(name);
    if (!channel || this.#isIdle(channel)) throw new Refused(404, 'no such channel');
    return channel;
  }

  #seat(request: Incoming, name: string): { channel: Channel; seat: Seat; other: Seat | undefined } {
    const channel = this.#find(name);
    const [, token = ''] = /^Bearer (.*)$/s.exec(request.header('authorization') ?? '') ?? [];
    const at = channel.seats.findIndex((seat) => equalBytes(utf8(token), seat.token));
    if (at < 0) throw new Refused(401, 'unrecognized token');
    channel.usedAt = this.#clock.now();
    return { channel, seat: channel.seats[at]!, other: channel.seats[1 - at] };
  }

  #post(request: Incoming, name: string, body: Map<string, unknown>): Outgoing {
    const frame = frameOf(body, this.#limits.relayFrameBytes);
    const { other } = this.#seat(request, name);
    if (!other) throw new Refused(409, 'peer has not joined');
    const size = frame.json.length;
    this.#makeRoom(other, size);
    other.rising &&= frame.seq > (other.inbox.at(-1)?.seq ?? -1n);
    other.inbox.push(frame);
    other.size += size;
    this.#size += size;
    this.#parking.ring(topicOf(name, other));
    return { status: 204, headers: {}, body: '' };
  }

  // Drops frames that their reader has seen, but only when there is no room.
  #makeRoom(seat: Seat, size: number): void {
    const { relayInboxBytes, relayBytesTotal } = this.#limits;
    const isFull = (): boolean => seat.size + size > relayInboxBytes || this.#size + size > relayBytesTotal;
    if (!isFull()) return;
    const kept = seat.inbox.filter(({ seq }) => seq > seat.seen);
    const bytes = kept.reduce((sum, frame) => sum + frame.json.length, 0);
    this.#size += bytes - seat.size;
    Object.assign(seat, { inbox: kept, size: bytes });
    if (isFull()) throw new Refused(503, 'the inbox is full');
  }

  #read(request: Incoming, name: string, query: string): Outgoing | Promise<Outgoing> {
    const { seat } = this.#seat(request, name);
    const after = numberOf(query, 'after', MAX_SEQ);
    const wait = numberOf(query, 'wait', 2n ** 63n);
    const waitMs = wait === 2n ** 63n ? 0 : Number(wait);
    if (after < MAX_SEQ && after > seat.seen) seat.seen = after;
    const look = (): string[] | undefined => {
      const found = newerThan(seat, after);
      return found.length > 0 ? found : undefined;
    };
    const found = look();
    if (found || waitMs === 0 || this.#held >= this.#limits.relayWaiters) return framesAnswer(found);
    this.#held++;
    return this.#parking
      .hold(topicOf(name, seat), request.address, Math.min(waitMs, MAX_WAIT_MS), look, request.signal)
      .then((frames) => framesAnswer(frames))
      .finally(() => this.#held--);
  }

  // --- idle channels ----------------------------------------------------------------------------------------------

  #isIdle({ usedAt }: Channel): boolean {
    return this.#clock.now() - usedAt > this.#limits.relayIdleMs;
  }

  #sweep(): void {
    const now = this.#clock.now();
    if (Math.abs(now - this.#sweptAt) < this.#limits.relaySweepMs) return;
    this.#sweptAt = now;
    for (const [name, channel] of this.#channels) {
      if (!this.#isIdle(channel)) continue;
      this.#channels.delete(name);
      for (const seat of channel.seats) this.#size -= seat.size;
    }
    this.#stats.channels = this.#channels.size;
  }
}

const topicOf = (name: string, seat: Seat): string => `${name} ${fromUtf8(seat.token)}`;

function newerThan({ inbox, rising }: Seat, after: bigint): string[] {
  let from = 0;
  if (rising) {
    // A binary search: most reads want the last few frames of a long history.
    for (let to = inbox.length; from < to; ) {
      const middle = (from + to) >> 1;
      if (inbox[middle]!.seq > after) to = middle;
      else from = middle + 1;
    }
  }
  const found: string[] = [];
  for (; from < inbox.length; from++) if (inbox[from]!.seq > after) found.push(inbox[from]!.json);
  return found;
}

// --- answers ----------------------------------------------------------------------------------------------------

const PLAIN = { 'content-type': 'text/plain; charset=utf-8' };

function text(status: number, body: string, headers: Record<string, string> = {}): Outgoing {
  return { status, headers: { ...PLAIN, 'x-content-type-options': 'nosniff', ...headers }, body };
}

function json(value: string | object): Outgoing {
  const body = typeof value === 'string' ? value : JSON.stringify(value);
  return { status: 200, headers: { 'content-type': 'application/json' }, body: `${body}\n` };
}

const tokenOf = (seat: Seat): Outgoing => json({ token: fromUtf8(seat.token) });

const framesAnswer = (frames: string[] = []): Outgoing => json(`{"frames":[${frames.join(',')}]}`);

// --- requests, as Go reads them ---------------------------------------------------------------------------------

// An unsigned number in a query. The first of a name counts; a malformed one is 0, and a larger one becomes `most`.
function numberOf(query: string, name: string, most: bigint): bigint {
  for (const part of query.split('&')) {
    const [, key = '', value = ''] = /^([^=]*)=?(.*)$/s.exec(part.replaceAll('+', ' '))!;
    if (part.includes(';') || unescapePercent(key) !== name) continue;
    const digits = unescapePercent(value);
    if (!/^\d{1,400}$/.test(digits)) return 0n;
    const number = BigInt(digits);
    return number > most ? most : number;
  }
  return 0n;
}

const unreadable = (): Refused => new Refused(400, 'the body cannot be read');

// The members of the first JSON object in a body, by lower-case name; `null` and missing are the same.
function fieldsOf(body: Uint8Array): Map<string, unknown> {
  const text = firstObject(new TextDecoder('utf-8', { ignoreBOM: true }).decode(body));
  let value: unknown;
  try {
    value = parseExact(text, 'seq');
  } catch {
    throw unreadable();
  }
  // `parseExact` turns the integer into a string. The quotes show a seq that was a string in the first place.
  if ((value !== null && !isObject(value)) || /"seq"\s*:\s*"/i.test(text)) throw unreadable();
  const fields = new Map<string, unknown>();
  for (const [name, field] of Object.entries(value ?? {})) if (field !== null) fields.set(name.toLowerCase(), field);
  return fields;
}

// Whatever follows the first value is ignored.
function firstObject(text: string): string {
  // An unterminated string matches up to the end of the text, which keeps matching linear.
  const tokens = /"[^"\\]*(?:\\.[^"\\]*)*"?|[{}[\]]/gs;
  let depth = 0;
  if (!/^[ \t\r\n]*\{/.test(text)) return text;
  for (let token = tokens.exec(text); token; token = tokens.exec(text)) {
    if (token[0] === '{' || token[0] === '[') depth++;
    else if ((token[0] === '}' || token[0] === ']') && --depth === 0) return text.slice(0, tokens.lastIndex);
  }
  return text;
}

function stringOf(fields: Map<string, unknown>, name: string): string {
  const value = fields.get(name) ?? '';
  if (typeof value !== 'string') throw unreadable();
  return value;
}

function frameOf(fields: Map<string, unknown>, maxBytes: number): Stored {
  const { seq = '0', type = 0, payload } = Object.fromEntries(fields);
  const bytes = bytesOf(payload);
  if (typeof seq !== 'string' || !/^\d{1,20}$/.test(seq) || BigInt(seq) > MAX_SEQ || bytes === undefined) {
    throw unreadable();
  }
  if (typeof type !== 'number' || !Number.isInteger(type) || type < 0 || type > 255) throw unreadable();
  if ((bytes?.length ?? 0) > maxBytes) throw new Refused(413, `a payload has at most ${maxBytes} bytes`);
  const data = bytes && `"${toBase64(bytes)}"`;
  return { seq: BigInt(seq), json: `{"seq":${BigInt(seq)},"type":${type},"payload":${data}}` };
}

// Padded base64 with line ends anywhere, or an array of byte values; null if there is none, undefined if it is invalid.
function bytesOf(payload: unknown): Uint8Array | null | undefined {
  if (payload === undefined) return null;
  if (Array.isArray(payload)) {
    const isBytes = payload.every((byte) => Number.isInteger(byte) && byte >= 0 && byte < 256);
    return isBytes ? Uint8Array.from(payload) : undefined;
  }
  if (typeof payload !== 'string') return undefined;
  const digits = payload.replace(/[\r\n]/g, '');
  if (!/^[A-Za-z0-9+/]*={0,2}$/.test(digits) || digits.length % 4 !== 0) return undefined;
  return fromBase64(digits) ?? looseBase64url(digits.replace(/=+$/, '').replaceAll('+', '-').replaceAll('/', '_'));
}
