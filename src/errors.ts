/**
 * The error classes of the library, one for each decision that a `catch` block has to make. Every error that a public
 * function throws is a {@link TechnocoreError}, except the reason of an aborted `signal`, which is rethrown unchanged.
 * Tell errors apart by `code`: unlike `instanceof`, it also works when two copies of the library are loaded.
 *
 * @module
 */

const BRAND = Symbol.for('technocore-rpc.error');

/**
 * The base class of every error that the library throws. A failure that has no class of its own is thrown as a plain
 * `TechnocoreError`.
 *
 * @example
 * ```ts
 * import { Forbidden, Signer, TechnocoreError } from 'technocore-rpc';
 *
 * try {
 *   await Signer.generate().say('p-workshop-41c7', 'hello');
 * } catch (e) {
 *   if (!TechnocoreError.is(e)) throw e;
 *   console.log(e.code, e.message);
 *   if (Forbidden.is(e)) console.log(e.status, e.body);
 * }
 * ```
 */
export class TechnocoreError extends Error {
  /** The kind of failure: a stable name in lower case, such as `rate_limited`. */
  readonly code: string;

  constructor(code: string, message: string, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = code;
    Object.defineProperty(this, BRAND, { value: true });
  }

  /**
   * Type guard: tells whether a value is an error of this class. `TechnocoreError.is(e)` also recognizes errors from
   * another copy of the library; on a subclass, as in `CallTimeout.is(e)`, only errors from this copy count.
   */
  static is<E extends TechnocoreError>(this: abstract new (...args: never[]) => E, e: unknown): e is E {
    const isOurs = typeof e === 'object' && e !== null && (e as Record<symbol, unknown>)[BRAND] === true;
    // `this` is undefined when the method is passed on by itself, for example to `filter`.
    // biome-ignore lint/complexity/noThisInStatic: the result depends on the class it is called on
    const wanted: abstract new (...args: never[]) => TechnocoreError = this ?? TechnocoreError;
    return isOurs && (wanted === TechnocoreError || e instanceof wanted);
  }
}

/** The errors whose stack was extended already: one error may end several calls. */
const extended = new WeakSet<object>();

/**
 * Appends the current async stack to that of one of our errors, where the engine can capture it. The error that ends a
 * call is created in a shared read loop or a timer, so its own stack shows nothing of the program that made the call.
 */
export function withCallers(cause: unknown): unknown {
  const { captureStackTrace } = Error as { captureStackTrace?: (target: object, below: unknown) => void };
  if (!TechnocoreError.is(cause) || !captureStackTrace || extended.has(cause)) return cause;
  extended.add(cause);
  const here = { stack: '' };
  captureStackTrace(here, withCallers);
  // Without its first line, which would hold a message.
  cause.stack += here.stack.replace(/^.*/, '');
  return cause;
}

// --- invalid input, detected before anything is sent ------------------------------------------------------------

/** The type of a value, for error messages. The value itself may be long, or a secret. */
function kindOf(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

/**
 * Returns the value if it is a string, which JavaScript callers do not guarantee.
 *
 * @param what a description of the value for the error message
 * @throws a {@link TechnocoreError} `bad_text` if it is not a string
 */
export function checkText(value: unknown, what: string): string {
  if (typeof value === 'string') return value;
  throw new TechnocoreError('bad_text', `${what} must be a string, not ${kindOf(value)}`);
}

/**
 * Returns the value (usually an options object) if it is an object and not an array, which JavaScript callers do not
 * guarantee.
 *
 * @param what a description of the value for the error message
 * @throws a {@link TechnocoreError} with the given `code`, by default `bad_option`, if it is anything else
 */
export function checkObject<T extends object>(value: T, what: string = 'the options', code: string = 'bad_option'): T {
  if (kindOf(value) === 'object') return value;
  throw new TechnocoreError(code, `${what} must be an object, not ${kindOf(value)}`);
}

/**
 * Returns the value if it is a function, which JavaScript callers do not guarantee.
 *
 * @param what a description of the value for the error message
 * @throws a {@link TechnocoreError} `bad_option` if it is not
 */
export function checkFunction<T>(value: T, what: string): T {
  if (typeof value === 'function') return value;
  throw new TechnocoreError('bad_option', `${what} must be a function, not ${kindOf(value)}`);
}

/**
 * Checks that the named options, where given, are functions.
 *
 * @throws a {@link TechnocoreError} `bad_option` if one is not
 */
export function checkFunctions<T extends object>(o: T, names: readonly (keyof T & string)[]): void {
  for (const name of names) if (o[name] !== undefined) checkFunction(o[name], `the option ${name}`);
}

/**
 * Checks that an option, where given, is one of these words. A misspelt one would silently be taken for the default.
 *
 * @throws a {@link TechnocoreError} `bad_option` if it is anything else
 */
export function checkChoice<T extends object>(o: T, name: keyof T & string, choices: readonly string[]): void {
  if (o[name] === undefined || (choices as readonly unknown[]).includes(o[name])) return;
  throw new TechnocoreError('bad_option', `the option ${name} must be one of ${choices.join(', ')}`);
}

/**
 * Checks that the named options, where given, are non-negative numbers. A string, such as one from the environment,
 * would be concatenated to a time instead of added. An option without its unit, such as the `timeout` of other
 * libraries, would be silently ignored.
 *
 * @throws a {@link TechnocoreError} `bad_option` if one is not, or if a time is given without the `Ms` of its name
 */
export function checkNumbers<T extends object>(o: T, names: readonly (keyof T & string)[]): void {
  for (const name of names) {
    const value: unknown = o[name];
    if (value !== undefined && !(typeof value === 'number' && value >= 0))
      throw new TechnocoreError('bad_option', `the option ${name} must be a non-negative number`);
    const bare = /^(.+)Ms$/.exec(name)?.[1];
    if (bare !== undefined && (o as Record<string, unknown>)[bare] !== undefined)
      throw new TechnocoreError('bad_option', `there is no option ${bare}: it is called ${name}, in milliseconds`);
  }
}

/**
 * Returns the option `signal`.
 *
 * @throws a {@link TechnocoreError} `bad_option` if it is given and is not an `AbortSignal`
 */
export function signalOf(o: { readonly signal?: AbortSignal | undefined }): AbortSignal | undefined {
  const { signal } = checkObject(o);
  if ((signal ?? undefined) === undefined || typeof signal?.throwIfAborted === 'function') return signal;
  throw new TechnocoreError(
    'bad_option',
    'the option signal must be an AbortSignal; for an AbortController, pass its property signal',
  );
}

/**
 * Returns the value if it is an object with no members other than these. A misspelt member, or an option passed in the
 * wrong argument, would otherwise be silently ignored.
 *
 * @throws a {@link TechnocoreError} `bad_option` if it is not an object, or has another member
 */
export function checkMembers<T extends object>(value: T, what: string, names: readonly (keyof T & string)[]): T {
  const stray = Object.entries(checkObject(value, what)).find(
    ([name, member]) => member !== undefined && !(names as readonly string[]).includes(name),
  );
  if (!stray) return value;
  throw new TechnocoreError(
    'bad_option',
    `${what} may have ${names.join(', ')}, but not ${stray[0].slice(0, 80)}; options are a separate argument`,
  );
}

/**
 * Thrown (code `frame_too_long`) when a text or frame does not fit into a message or note. Split it, or store it in a
 * note and send the note's name.
 */
export class FrameTooLong extends TechnocoreError {
  /** Always `frame_too_long`. */
  declare readonly code: 'frame_too_long';
  /**
   * The actual length: for a text, in code points after the {@link sweep}; for a frame, in characters of its ASCII
   * encoding; in bytes where the message says so.
   */
  readonly chars: number;
  /** The maximum length, in the same unit. */
  readonly limit: number;
  constructor(chars: number, limit: number, message: string = `${chars} characters, but the limit is ${limit}`) {
    super('frame_too_long', message);
    this.chars = chars;
    this.limit = limit;
  }
}

/** The {@link FrameTooLong} for a length in bytes. */
export const tooManyBytes = (bytes: number, limit: number): FrameTooLong =>
  new FrameTooLong(bytes, limit, `${bytes} bytes, but the limit is ${limit}`);

/** Thrown (code `empty_text`) when a text is empty after the service's {@link sweep}. */
export class EmptyText extends TechnocoreError {
  /** Always `empty_text`. */
  declare readonly code: 'empty_text';
  constructor() {
    super('empty_text', 'the text is empty once control and format characters are turned into spaces and trimmed');
  }
}

/**
 * Thrown (code `bad_name`) when a room, nick, namespace, note key, DID or service address is malformed, or is not of the
 * kind that the function needs.
 */
export class BadName extends TechnocoreError {
  /** Always `bad_name`. */
  declare readonly code: 'bad_name';
  /** The name as given, or the type of a value that is not a string. */
  readonly invalidName: string;
  /**
   * @param name the value given as a name, of any type
   * @param rule what a valid name looks like
   */
  constructor(name: unknown, rule: string) {
    const isText = typeof name === 'string';
    const shown = isText ? JSON.stringify(name.length > 80 ? `${name.slice(0, 80)}…` : name) : `got ${kindOf(name)}`;
    super('bad_name', `${rule}: ${shown}`);
    this.invalidName = isText ? name : kindOf(name);
  }
}

/** Thrown (code `bad_key`) when a key, seed, key file or signer cannot be used. The message never quotes the key. */
export class BadKey extends TechnocoreError {
  /** Always `bad_key`. */
  declare readonly code: 'bad_key';
  constructor(message: string, cause?: unknown) {
    super('bad_key', message, cause);
  }
}

/**
 * Thrown (code `bad_nonce`) when a nonce is not 1 to 19 decimal digits, when no higher nonce is left, or when the file of
 * used nonces cannot be trusted.
 */
export class BadNonce extends TechnocoreError {
  /** Always `bad_nonce`. */
  declare readonly code: 'bad_nonce';
  constructor(message: string, cause?: unknown) {
    super('bad_nonce', message, cause);
  }
}

/** Thrown (code `bad_state`) when a protocol does not allow a state transition. Nothing was written. */
export class BadState extends TechnocoreError {
  /** Always `bad_state`. */
  declare readonly code: 'bad_state';
  /** The current state. */
  readonly from: string;
  /** The requested state. */
  readonly to: string;
  constructor(from: string, to: string, message: string = `the state cannot change from ${from} to ${to}`) {
    super('bad_state', message);
    this.from = from;
    this.to = to;
  }
}

// --- refused by the service -------------------------------------------------------------------------------------

/** Describes a failed response. The reference service begins its messages with the status; a web page is not quoted. */
function answerOf(status: number, body: string): string {
  const said = body.slice(0, 300).trim();
  if (said.startsWith('<')) return `${status} with a web page`;
  return said === '' || said.startsWith(String(status)) ? said || `${status}` : `${status}: ${said}`;
}

/**
 * Thrown (code `http`) when the service answers with a failure status that has no class of its own. Redirects are never
 * followed and end here too. Base class of {@link Forbidden}, {@link Conflict} and {@link DuplicateText}.
 */
export class HttpError extends TechnocoreError {
  /** The HTTP status; 0 for a redirect whose status the browser hides. */
  readonly status: number;
  /** The response body, cut to 4,096 UTF-16 code units. It may quote untrusted text. */
  readonly body: string;
  constructor(status: number, body: string, code: string = 'http', message?: string) {
    super(code, message ?? `the service answered ${answerOf(status, body)}`);
    this.status = status;
    this.body = body.slice(0, 4096);
  }
}

/**
 * Thrown (code `forbidden`, HTTP 403) when the service refuses a write: the signature does not verify, somebody else
 * owns the room, or an unsigned message was sent to a mailbox.
 */
export class Forbidden extends HttpError {
  /** Always `forbidden`. */
  declare readonly code: 'forbidden';
  constructor(body: string) {
    super(403, body, 'forbidden');
  }
}

/**
 * Thrown (code `conflict`, HTTP 409) when the condition of a conditional write does not hold. Inspect `actual` before
 * retrying.
 */
export class Conflict extends HttpError {
  /** Always `conflict`. */
  declare readonly code: 'conflict';
  /** The note's current value; undefined if the note does not exist. */
  readonly actual: string | undefined;
  constructor(body: string, actual?: string) {
    super(409, body, 'conflict', actual === undefined ? 'the note does not exist' : 'the note has another value');
    this.actual = actual;
  }
}

/**
 * Thrown (code `duplicate_text`, HTTP 422) when the same text was posted to the room too often within a minute, no
 * matter by whom. Sending it again unchanged does not help. Services before 0.10 do not have this limit.
 */
export class DuplicateText extends HttpError {
  /** Always `duplicate_text`. */
  declare readonly code: 'duplicate_text';
  constructor(body: string) {
    super(422, body, 'duplicate_text');
  }
}

/**
 * Thrown (code `rate_limited`) when the read or write budget of this address is spent: the service answered HTTP 429,
 * or the library's own count of the published budget shows that the request could not be sent in time. Nothing was
 * executed.
 */
export class RateLimited extends TechnocoreError {
  /** Always `rate_limited`. */
  declare readonly code: 'rate_limited';
  /** Milliseconds until the budget allows the request. */
  readonly retryAfterMs: number;
  /** The budget that is spent. */
  readonly bucket: 'read' | 'write';
  constructor(bucket: RateLimited['bucket'], retryAfterMs: number, message?: string) {
    super('rate_limited', message ?? `the ${bucket} budget is spent; try again in ${Math.ceil(retryAfterMs)} ms`);
    this.bucket = bucket;
    this.retryAfterMs = retryAfterMs;
  }
}

/**
 * Thrown (code `capacity_reached`) when something of limited size is full: the rooms, notes or storage of the service
 * (use an existing room or note instead), or the queue of a parley session.
 */
export class CapacityReached extends TechnocoreError {
  /** Always `capacity_reached`. */
  declare readonly code: 'capacity_reached';
  constructor(message: string) {
    super('capacity_reached', message);
  }
}

/**
 * Thrown (code `room_budget`) when this address has spent its daily budget of new rooms (on the public service, 20).
 * Use an existing room, or wait.
 */
export class RoomBudget extends TechnocoreError {
  /** Always `room_budget`. */
  declare readonly code: 'room_budget';
  /** Milliseconds until another room can be created. */
  readonly retryAfterMs: number;
  constructor(retryAfterMs: number) {
    super(
      'room_budget',
      `the daily budget of new rooms is spent; the next room can be created in ${Math.ceil(retryAfterMs / 1000)} s`,
    );
    this.retryAfterMs = retryAfterMs;
  }
}

/**
 * Thrown (code `stale_nonce`) when the service refuses a nonce because it is not higher than the last one that this key
 * used in that room.
 */
export class StaleNonce extends TechnocoreError {
  /** Always `stale_nonce`. */
  declare readonly code: 'stale_nonce';
  /** The last nonce that the service accepted, as decimal digits. */
  readonly last: string;
  constructor(last: string) {
    super('stale_nonce', `the nonce must be above ${last}, the last one that this key used there`);
    this.last = last;
  }
}

/**
 * Thrown (code `unavailable`) when the service cannot be reached or does not answer properly: no connection, a 5xx
 * status, or a response that is truncated, too large, malformed or late. Also thrown when the platform lacks a
 * capability, such as a file system.
 */
export class Unavailable extends TechnocoreError {
  /** Always `unavailable`. */
  declare readonly code: 'unavailable';
  /** How long the service asks to wait, in milliseconds; undefined if it does not say. */
  readonly retryAfterMs: number | undefined;
  constructor(message: string, cause?: unknown, retryAfterMs?: number) {
    super('unavailable', message, cause);
    this.retryAfterMs = retryAfterMs;
  }
}

/**
 * Thrown (code `may_have_landed`) when the response to a write was lost and there is no longer a way to tell whether
 * the write was executed. `cause` holds the underlying failure.
 */
export class MayHaveLanded extends TechnocoreError {
  /** Always `may_have_landed`. */
  declare readonly code: 'may_have_landed';
  /** The room written to; for a note, `<namespace>/<key>`. */
  readonly room: string;
  /** The nonce of a signed message; undefined for any other write. */
  readonly nonce: string | undefined;
  constructor(room: string, nonce: string | undefined, cause?: unknown) {
    super(
      'may_have_landed',
      `a write to ${room} may or may not have been executed, and this can no longer be checked`,
      cause,
    );
    this.room = room;
    this.nonce = nonce;
  }
}

// --- calls ------------------------------------------------------------------------------------------------------

/**
 * A JSON-RPC 2.0 error (code `rpc`). {@link call} and the functions built on it throw one when the other side answers
 * with an error. A handler throws one to choose the error that its caller receives.
 *
 * Codes from -32768 to -32000 are those of JSON-RPC 2.0, MCP and A2A. Servers of this library add 1001 (interrupted),
 * 1002 (busy; `data.retryAfterMs`), 1003 (deadline passed), 1004 (denied) and 1005 (conflict; `data.actual`).
 */
export class RpcError extends TechnocoreError {
  /** Always `rpc`. */
  declare readonly code: 'rpc';
  /** The `error` member of the response. When it came from a remote server, its text is untrusted. */
  readonly rpc: { code: number; message: string; data?: unknown };
  /**
   * @param code the JSON-RPC error code, an integer
   * @param message for the caller
   * @param data for the caller; any JSON value
   * @param hint advice appended to this error's own `message`; it is not sent to the caller
   */
  constructor(code: number, message: string, data?: unknown, hint?: string);
  /** @param rpc code, message and data as one object: see {@link RpcError.rpc} */
  constructor(rpc: RpcError['rpc']);
  constructor(first: number | RpcError['rpc'], text = '', more?: unknown, hint?: string) {
    const { code, message, data } = typeof first === 'object' ? first : { code: first, message: text, data: more };
    super('rpc', `${message} (${code})${hint === undefined ? '' : `: ${hint}`}`);
    this.rpc = data === undefined ? { code, message } : { code, message, data };
  }
}

/**
 * Thrown (code `ring_gap`) when messages were lost before they could be read: the room was full and dropped its oldest
 * ones, or it was deleted while idle and then recreated.
 */
export class RingGap extends TechnocoreError {
  /** Always `ring_gap`. */
  declare readonly code: 'ring_gap';
  /** The room. */
  readonly room: string;
  /** The `seq` that should have come next. */
  readonly expected: number;
  /** The oldest `seq` that can still be read; the lost messages came before it. */
  readonly oldest: number;
  /** `overflow`: the ring dropped old messages; `recreated`: this is a new room under the same name. */
  readonly reason: 'overflow' | 'recreated';
  constructor(room: string, expected: number, oldest: number, reason: RingGap['reason']) {
    super(
      'ring_gap',
      reason === 'recreated'
        ? `/r/${room} was recreated; messages after seq ${expected - 1} of the old room are lost`
        : `/r/${room} no longer holds seq ${expected} to ${oldest - 1}`,
    );
    this.room = room;
    this.expected = expected;
    this.oldest = oldest;
    this.reason = reason;
  }
}

/** Thrown (code `call_timeout`) when a call gets no answer in time. */
export class CallTimeout extends TechnocoreError {
  /** Always `call_timeout`. */
  declare readonly code: 'call_timeout';
  /** The mailbox, or the channel's name, that was called. */
  readonly room: string;
  /** The id of the request; empty if the time ran out before the request had one. */
  readonly id: string;
  /** How long the call waited, in milliseconds. */
  readonly afterMs: number;
  /**
   * The likeliest reason. `no-room`: nobody else has written to that mailbox; `no-server`: the presence note of its
   * server has expired or says that the server ended; `no-answer`: a server is or may be running, and did not answer in
   * time.
   */
  readonly reason: 'no-room' | 'no-server' | 'no-answer';
  constructor(room: string, id: string, afterMs: number, reason: CallTimeout['reason'], hint: string, cause?: unknown) {
    super('call_timeout', `no answer ${id && `to ${id} `}from ${room} after ${afterMs} ms: ${hint}`, cause);
    this.room = room;
    this.id = id;
    this.afterMs = afterMs;
    this.reason = reason;
  }
}

// --- sealed text ------------------------------------------------------------------------------------------------

/** Thrown (code `decrypt`) when an encrypted text cannot be opened. The message never quotes the key. */
export class DecryptError extends TechnocoreError {
  /** Always `decrypt`. */
  declare readonly code: 'decrypt';
  /**
   * What failed. `encoding`: the text is not in the expected encoding; `key`: the public key in it cannot be used;
   * `tag`: the text was modified, or encrypted for another key; `layout`: it decrypts, but its contents are malformed.
   */
  readonly layer: 'encoding' | 'key' | 'tag' | 'layout';
  constructor(layer: DecryptError['layer'], message: string) {
    super('decrypt', message);
    this.layer = layer;
  }
}

// --- parley -----------------------------------------------------------------------------------------------------

/**
 * Thrown (code `bad_invite`) when a link is not a parley invite. The message never quotes the link, which is a secret.
 */
export class BadInvite extends TechnocoreError {
  /** Always `bad_invite`. */
  declare readonly code: 'bad_invite';
  /** What is wrong: `parse` (not a link at all), `missing channel`, `bad channel`, `bad fragment`, `bad key` … */
  readonly reason: string;
  constructor(reason: string) {
    super('bad_invite', `invalid invite: ${reason === 'parse' ? 'not a link' : reason}`);
    this.reason = reason;
  }
}

/** Thrown (code `relay_refused`) when a parley relay refuses a request. */
export class RelayRefused extends TechnocoreError {
  /** Always `relay_refused`. */
  declare readonly code: 'relay_refused';
  /**
   * Why. `no-channel`: the channel was never opened, or has expired; `exists`: the channel to open already exists;
   * `full`: both seats are taken; `nobody`: the other seat is empty; `token`: the token is not accepted.
   */
  readonly reason: 'no-channel' | 'exists' | 'full' | 'nobody' | 'token';
  constructor(reason: RelayRefused['reason'], message: string) {
    super('relay_refused', message);
    this.reason = reason;
  }
}

/** Thrown (code `handshake_failed`) when a Noise handshake message does not authenticate, or comes out of turn. */
export class HandshakeFailed extends TechnocoreError {
  /** Always `handshake_failed`. */
  declare readonly code: 'handshake_failed';
  /** Why, in words: `not authentic`, `too short`, `out of turn`, `not finished`, `a key of small order`. */
  readonly reason: string;
  constructor(reason: string, cause?: unknown) {
    super('handshake_failed', `handshake failed: ${reason}`, cause);
    this.reason = reason;
  }
}

/** Thrown (code `session_closed`) when a parley channel is closed, so nothing more can be sent through it. */
export class SessionClosed extends TechnocoreError {
  /** Always `session_closed`. */
  declare readonly code: 'session_closed';
  /** Why it is closed, in words. */
  readonly reason: string;
  constructor(reason: string) {
    super('session_closed', `the session is closed: ${reason}`);
    this.reason = reason;
  }
}
