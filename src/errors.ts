/**
 * The errors of the library, each named for the decision its catcher takes. Everything a public function throws is a
 * {@link TechnocoreError}, abort reasons excepted; tell them apart by `code`, which also works across two copies of
 * the library, where `instanceof` does not.
 *
 * @module
 */

const BRAND = Symbol.for('technocore-rpc.error');

/** Base of every error of the library. */
export class TechnocoreError extends Error {
  /** Stable, lower-case name of the kind of failure. */
  readonly code: string;

  constructor(code: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    Object.defineProperty(this, BRAND, { value: true });
  }

  /**
   * True for an error of this library, also one of another copy of it. Asked of a class derived from this one, as in
   * `CallTimeout.is(e)`: for an error of that class, of this copy.
   */
  static is<E extends TechnocoreError>(this: abstract new (...args: never[]) => E, e: unknown): e is E {
    const isOurs = typeof e === 'object' && e !== null && (e as Record<symbol, unknown>)[BRAND] === true;
    // In JavaScript it may be handed on without its class, as to `filter`.
    // biome-ignore lint/complexity/noThisInStatic: which class is asked is what it is about
    const asked: abstract new (...args: never[]) => TechnocoreError = this ?? TechnocoreError;
    return isOurs && (asked === TechnocoreError || e instanceof asked);
  }
}

// --- bad input, found before anything is sent -------------------------------------------------------------------

/** What a value is, for the words of an error: the value itself may be long, or a secret. */
function kindOf(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

/**
 * The value itself, if it is a text, as types alone promise it.
 *
 * @param what what it is of those who call, for the error
 * @throws TechnocoreError `bad_text`
 */
export function checkText(value: unknown, what: string): string {
  if (typeof value === 'string') return value;
  throw new TechnocoreError('bad_text', `${what} must be a string, and is ${kindOf(value)}`);
}

/**
 * The value itself, if it is an object and no array, as types alone promise it: as a rule, options.
 *
 * @param what what it is of those who call, for the error
 * @throws TechnocoreError `bad_option`, or the code given
 */
export function checkObject<T extends object>(value: T, what: string = 'the options', code: string = 'bad_option'): T {
  if (kindOf(value) === 'object') return value;
  throw new TechnocoreError(code, `${what} must be an object, not ${kindOf(value)}`);
}

/**
 * The value itself, if it is an object that holds nothing but these members: one that is misspelt, or an option, would count
 * for nothing, and nobody would learn of it.
 *
 * @throws TechnocoreError `bad_option`
 */
export function checkMembers<T extends object>(value: T, what: string, names: readonly (keyof T & string)[]): T {
  const stray = Object.entries(checkObject(value, what)).find(
    ([name, member]) => member !== undefined && !(names as readonly string[]).includes(name),
  );
  if (!stray) return value;
  throw new TechnocoreError(
    'bad_option',
    `${what} may hold ${names.join(', ')}, and not ${stray[0].slice(0, 80)}: options are an argument of their own`,
  );
}

/** A text or frame holds more code points than the service stores. Split it, or put it in a note. */
export class FrameTooLong extends TechnocoreError {
  /** Code points counted, after the sweep. */
  readonly chars: number;
  /** Code points allowed. */
  readonly limit: number;
  constructor(chars: number, limit: number, message: string = `${chars} characters, and the limit is ${limit}`) {
    super('frame_too_long', message);
    this.chars = chars;
    this.limit = limit;
  }
}

/** Nothing is left of a text after the service's sweep. */
export class EmptyText extends TechnocoreError {
  constructor() {
    super('empty_text', 'the text is empty after control and format characters became blanks and were trimmed');
  }
}

/** A room, nick, namespace, key or DID outside its grammar. */
export class BadName extends TechnocoreError {
  /** What was given. */
  readonly invalidName: string;
  /** @param name of any type, where it was to be a name */
  constructor(name: unknown, what: string) {
    const isText = typeof name === 'string';
    const shown = isText ? JSON.stringify(name.length > 80 ? `${name.slice(0, 80)}…` : name) : `got ${kindOf(name)}`;
    super('bad_name', `${what}: ${shown}`);
    this.invalidName = isText ? name : kindOf(name);
  }
}

/** A key, seed or key file that cannot be used. Never quotes the key. */
export class BadKey extends TechnocoreError {
  constructor(message: string, cause?: unknown) {
    super('bad_key', message, cause);
  }
}

/** A nonce that is not 1 to 19 decimal digits, or a nonce ledger that cannot be trusted. */
export class BadNonce extends TechnocoreError {
  constructor(message: string, cause?: unknown) {
    super('bad_nonce', message, cause);
  }
}

/** A state transition that the protocol does not allow, refused before any write. */
export class BadState extends TechnocoreError {
  readonly from: string;
  readonly to: string;
  constructor(from: string, to: string, message: string = `no way from ${from} to ${to}`) {
    super('bad_state', message);
    this.from = from;
    this.to = to;
  }
}

// --- refused by the service -------------------------------------------------------------------------------------

/** The service answered with a status that means failure. */
export class HttpError extends TechnocoreError {
  readonly status: number;
  /** The service's words, cut to 4,096 characters. Strangers' text may stand in it. */
  readonly body: string;
  constructor(status: number, body: string, code: string = 'http', message?: string) {
    super(code, message ?? `the service answered ${body.slice(0, 300).trim() || status}`);
    this.status = status;
    this.body = body.slice(0, 4096);
  }
}

/** 403: a signature that does not verify, a closed room, a mailbox written unsigned. */
export class Forbidden extends HttpError {
  constructor(body: string) {
    super(403, body, 'forbidden');
  }
}

/** 409: a compare-and-set lost. Read `actual`, decide, try again. */
export class Conflict extends HttpError {
  /** The value that is there; undefined when there is no note. */
  readonly actual: string | undefined;
  constructor(body: string, actual?: string) {
    super(
      409,
      body,
      'conflict',
      actual === undefined ? 'conflict: there is no such note' : 'conflict: another value is there',
    );
    this.actual = actual;
  }
}

/** 422: the room took this same text too often within a minute. Sending it again as it is cannot help. */
export class DuplicateText extends HttpError {
  constructor(body: string) {
    super(422, body, 'duplicate_text');
  }
}

/** 429, or our own account of the published budget: nothing was executed. Wait `retryAfterMs`. */
export class RateLimited extends TechnocoreError {
  readonly retryAfterMs: number;
  readonly bucket: 'read' | 'write';
  constructor(bucket: 'read' | 'write', retryAfterMs: number, message?: string) {
    super('rate_limited', message ?? `the ${bucket} budget is spent; it serves again in ${Math.ceil(retryAfterMs)} ms`);
    this.bucket = bucket;
    this.retryAfterMs = retryAfterMs;
  }
}

/** The service holds as many rooms or notes as it can. Use one that exists. */
export class CapacityReached extends TechnocoreError {
  constructor(message: string) {
    super('capacity_reached', message);
  }
}

/** This address has made its new rooms of the day. Use a room that exists, or wait `retryAfterMs`. */
export class RoomBudget extends TechnocoreError {
  readonly retryAfterMs: number;
  constructor(retryAfterMs: number) {
    super('room_budget', `the day's new rooms are spent; the next one in ${Math.ceil(retryAfterMs / 1000)} s`);
    this.retryAfterMs = retryAfterMs;
  }
}

/** The nonce is not above the last one this key used there. */
export class StaleNonce extends TechnocoreError {
  /** The last nonce the service accepted, exact digits. */
  readonly last: string;
  constructor(last: string) {
    super('stale_nonce', `the nonce is not above ${last}, the last one this key used there`);
    this.last = last;
  }
}

/** The service could not be reached or did not answer properly: network, 5xx, a cut or too large body, a deadline. */
export class Unavailable extends TechnocoreError {
  /** How long the service asked to wait, if it did. */
  readonly retryAfterMs: number | undefined;
  constructor(message: string, cause?: unknown, retryAfterMs?: number) {
    super('unavailable', message, cause);
    this.retryAfterMs = retryAfterMs;
  }
}

/** A write of which nobody can say any more whether it was executed. */
export class MayHaveLanded extends TechnocoreError {
  readonly room: string;
  readonly nonce: string | undefined;
  constructor(room: string, nonce: string | undefined, cause?: unknown) {
    super('may_have_landed', `a write to ${room} may have landed and can no longer be checked`, cause);
    this.room = room;
    this.nonce = nonce;
  }
}

// --- calls ------------------------------------------------------------------------------------------------------

/** The other side answered with a JSON-RPC error. */
export class RpcError extends TechnocoreError {
  readonly rpc: { code: number; message: string; data?: unknown };
  /** @param hint what the one who gets it may do, told in `message` and not sent on */
  constructor(code: number, message: string, data?: unknown, hint?: string) {
    super('rpc', `${message} (${code})${hint === undefined ? '' : `: ${hint}`}`);
    this.rpc = data === undefined ? { code, message } : { code, message, data };
  }
}

/** Messages were lost to us: the ring overflowed, or the room was recreated. */
export class RingGap extends TechnocoreError {
  readonly room: string;
  /** The seq that should have come next. */
  readonly expected: number;
  /** The oldest seq that can still be read; the missing range ends before it. */
  readonly oldest: number;
  readonly reason: 'overflow' | 'recreated';
  constructor(room: string, expected: number, oldest: number, reason: 'overflow' | 'recreated') {
    super(
      'ring_gap',
      reason === 'recreated'
        ? `/r/${room} was recreated; what came after seq ${expected - 1} of the old room is lost`
        : `/r/${room} no longer holds seq ${expected} to ${oldest - 1}`,
    );
    this.room = room;
    this.expected = expected;
    this.oldest = oldest;
    this.reason = reason;
  }
}

/** No answer within the time allowed, with the likeliest reason. */
export class CallTimeout extends TechnocoreError {
  readonly room: string;
  readonly id: string;
  readonly afterMs: number;
  /** No such room; a room where no server was seen lately; a server that did not answer in time (or unknown). */
  readonly reason: 'no-room' | 'no-server' | 'no-answer';
  constructor(
    room: string,
    id: string,
    afterMs: number,
    reason: 'no-room' | 'no-server' | 'no-answer',
    hint: string,
    cause?: unknown,
  ) {
    super('call_timeout', `no answer ${id && `to ${id} `}from ${room} after ${afterMs} ms: ${hint}`, cause);
    this.room = room;
    this.id = id;
    this.afterMs = afterMs;
    this.reason = reason;
  }
}

// --- sealed text ------------------------------------------------------------------------------------------------

/** A sealed text that cannot be opened. Names the layer that failed, never the key. */
export class DecryptError extends TechnocoreError {
  readonly layer: 'encoding' | 'key' | 'tag' | 'layout';
  constructor(layer: 'encoding' | 'key' | 'tag' | 'layout', message: string) {
    super('decrypt', message);
    this.layer = layer;
  }
}

// --- parley -----------------------------------------------------------------------------------------------------

/** A link that is no parley invite. Never quotes the link, which holds a secret. */
export class BadInvite extends TechnocoreError {
  /** The part at fault: `parse` for what is no link at all, `missing channel`, `bad channel`, `bad fragment` … */
  readonly reason: string;
  constructor(reason: string) {
    super('bad_invite', `invalid invite: ${reason === 'parse' ? 'no link' : reason}`);
    this.reason = reason;
  }
}

/** The relay refused. */
export class RelayRefused extends TechnocoreError {
  readonly reason: string;
  constructor(reason: string, message: string) {
    super('relay_refused', message);
    this.reason = reason;
  }
}

/** A Noise handshake message that does not authenticate, or a state in which none is expected. */
export class HandshakeFailed extends TechnocoreError {
  readonly reason: string;
  constructor(reason: string, cause?: unknown) {
    super('handshake_failed', `handshake failed: ${reason}`, cause);
    this.reason = reason;
  }
}

/** The channel is closed; nothing can be sent on it any more. */
export class SessionClosed extends TechnocoreError {
  readonly reason: string;
  constructor(reason: string) {
    super('session_closed', `the session is closed: ${reason}`);
    this.reason = reason;
  }
}
