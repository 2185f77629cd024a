/**
 * The one HTTP request function and the one long-poll loop, with what they share: clock, randomness and budgets. This
 * file knows neither rooms nor relays; both are built on it.
 *
 * @module
 */
import { Budget } from './budget.ts';
import { type Clock, clockOf, following, later, OVER, onAbort, randomFloat } from './clock.ts';
import {
  BadName,
  checkChoice,
  checkFunctions,
  checkObject,
  checkText,
  HttpError,
  RateLimited,
  signalOf,
  TechnocoreError,
  Unavailable,
} from './errors.ts';
import { isObject } from './frames.ts';
import { getOrMake } from './maps.ts';

export { type Clock, onAbort, randomFloat, systemClock } from './clock.ts';

/** Something worth knowing that did not end the operation, as passed to {@link Options.onEvent}. */
export interface Event {
  /**
   * What happened. From any function: `retry` (a failed request is retried), `throttled` (the same after HTTP 429),
   * `refused` and `skipped` (something was not accepted; `reason` says why). From room readers: `gap` (messages were
   * lost), `epoch` (the room was recreated). From calls: `late` (an answer that nobody waits for any more), `spilled`
   * (a long answer was read from notes). From servers: `warning`, `handler-error`, `unanswered`, `undrained`, `unkept`,
   * `forgetful`, `unclaimed` and others. More kinds may be added.
   */
  kind: string;
  /** Details that depend on the kind, such as `room`, `from`, `reason`, `cause`, and `afterMs` in milliseconds. */
  [detail: string]: unknown;
}

/** Options of every function that talks to a service. */
export interface Options {
  /**
   * The address of the service, `http:` or `https:`, with or without a path. Default: the environment variable
   * `TECHNOCORE_URL` where it is set, else `https://technocore.chat`.
   */
  base?: string | undefined;
  /** The function that sends requests. Default: the global `fetch`. */
  fetch?: typeof fetch | undefined;
  /** Aborts the operation, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
  /** The source of time. Default: {@link systemClock}. */
  clock?: Clock | undefined;
  /** The source of random bytes: returns as many as requested. Default: the platform's `crypto.getRandomValues`. */
  random?: ((bytes: number) => Uint8Array) | undefined;
  /**
   * How writes are sent. `auto` (default): by GET, or by POST if a URL cannot carry the text (it would be longer than
   * 16,000 bytes, or the text is `.` or `..`). `get`: always by GET, for programs that cannot POST; a text that a URL
   * cannot carry is then the error `post_only`. `post`: always by POST.
   */
  lane?: 'auto' | 'get' | 'post' | undefined;
  /** Called with each event and not awaited. Anything that it throws, or that its promise rejects with, is ignored. */
  onEvent?: ((event: Event) => void) | undefined;
}

type Shared = Map<object, unknown>;

/**
 * Resolved options. Transports with the same base, `fetch` and clock share budgets, read loops and everything else in
 * `shared`.
 */
export interface Transport {
  readonly base: string;
  readonly fetch: typeof fetch;
  readonly clock: Clock;
  readonly random: (bytes: number) => Uint8Array;
  readonly lane: 'auto' | 'get' | 'post';
  readonly onEvent: (event: Event) => void;
  readonly shared: Shared;
}

const DEFAULT_BASE = 'https://technocore.chat';

// fetch -> clock -> base -> shared state. Weak, so that a whole simulated world is garbage-collected with its clock.
const worlds = new WeakMap<typeof fetch, WeakMap<Clock, Map<string, Shared>>>();

/**
 * The service that the environment names, if any.
 *
 * @internal
 */
export function environmentUrl(): string | undefined {
  try {
    const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
    // Shells and containers often set a variable to the empty string to unset it.
    return process?.env?.['TECHNOCORE_URL'] || undefined;
  } catch {
    // A sandbox may deny access to the environment.
    return undefined;
  }
}

/**
 * The transport that the options describe.
 *
 * @throws a {@link BadName} if `base` is not an http or https address
 * @throws a {@link TechnocoreError} `bad_option` if the options are not an object, or if `signal`, `clock`, `lane` or a
 * function option is not of its type
 */
export function transportOf(o: Options = {}): Transport {
  const means = meansOf(o);
  const address = o.base ?? environmentUrl() ?? DEFAULT_BASE;
  const what = o.base === undefined ? 'TECHNOCORE_URL' : 'the option base';
  return transportAt(means, address, what, 'the URL of a service, like http://127.0.0.1:8080');
}

/**
 * Like {@link transportOf}, but to the given address instead of the option `base`.
 *
 * @param wanted a description of a valid address for the error message
 */
export function transportTo(address: string, o: Options, wanted: string): Transport {
  return transportAt(meansOf(o), address, 'the address', wanted);
}

function transportAt(means: Transport, address: string, what: string, wanted: string): Transport {
  const base = checkText(address, what).replace(/\/+$/, '');
  if (!/^https?:\/\/[^\s/?#]+(\/[^\s?#]*)?$/i.test(base) || !URL.canParse(base))
    throw new BadName(shownBase(base), `${what} must be ${wanted}`);
  const clocks = getOrMake(worlds, means.fetch, () => new WeakMap<Clock, Map<string, Shared>>());
  const bases = getOrMake(clocks, means.clock, () => new Map<string, Shared>());
  return { ...means, base, shared: getOrMake(bases, base, () => new Map()) };
}

/**
 * Like {@link transportOf}, for functions that need a clock, random bytes or a listener, but no service. It ignores the
 * address and shares nothing with other transports.
 *
 * @throws a {@link TechnocoreError} `bad_option` if the options are not an object, or if `signal`, `clock`, `lane` or a
 * function option is not of its type
 */
export function meansOf(o: Options): Transport {
  // A transport may outlive a call, so it must not retain the other options, such as a signal or a ledger.
  const { onEvent, random, fetch = globalThis.fetch, lane = 'auto' } = checkObject(o);
  checkFunctions(o, ['onEvent', 'random', 'fetch']);
  checkChoice(o, 'lane', ['auto', 'get', 'post']);
  signalOf(o);
  return {
    base: '',
    fetch,
    clock: clockOf(o),
    random: random ?? ((n) => globalThis.crypto.getRandomValues(new Uint8Array(n))),
    lane,
    onEvent: (event) => {
      if (!onEvent) return;
      // A broken listener must not break the operation, whether it throws or rejects.
      try {
        Promise.resolve(onEvent(event)).catch(() => {});
      } catch {}
    },
    shared: new Map(),
  };
}

/** The address of a service for messages, without the user name and password that it may contain. */
export const shownBase = (base: string): string => base.replace(/^(\w*(?!\w):?\/*)[^/]*@/, '$1');

/** The value that all transports to one service share under `key`; created on first use. */
export function sharedOf<T>(t: Transport, key: object, make: () => T): T {
  return getOrMake(t.shared as Map<object, T>, key, make);
}

const BUDGETS = {};

/** The read or write budget that the service grants our address, shared by all transports to that service. */
export function budgetOf(t: Transport, bucket: 'read' | 'write'): Budget {
  const budgets = sharedOf(t, BUDGETS, () => ({
    read: new Budget(t.clock, 'read'),
    write: new Budget(t.clock, 'write'),
  }));
  return budgets[bucket];
}

/** How often the reference service checks whether a parked read has something to return, ms. */
const STEP_MS = 500;

/** A service's timing as observed: its round trips, and whether it wakes parked reads only at coarse steps. */
export class Rhythm {
  #rtt = Number.POSITIVE_INFINITY;
  #hits = 0;

  /** True after two parked reads in a row were answered right at a step. */
  get coarse(): boolean {
    return this.#hits >= 2;
  }

  /** Records that the service answered a request without holding it, after `ms`. */
  answered(ms: number): void {
    this.#rtt = ms < this.#rtt ? ms : this.#rtt + (ms - this.#rtt) / 16;
  }

  /** Records that a parked read returned messages after `ms`. */
  woken(ms: number): void {
    const late = ms - Math.min(this.#rtt, ms);
    // An early answer means that the messages were already there, which says nothing about waking.
    if (late < STEP_MS * 0.3) return;
    const isHit = (late + STEP_MS / 10) % STEP_MS < STEP_MS / 5;
    this.#hits = isHit ? this.#hits + 1 : 0;
  }
}

const RHYTHM = {};

/** The observed timing of a transport's service. */
export function rhythmOf(t: Transport): Rhythm {
  return sharedOf(t, RHYTHM, () => new Rhythm());
}

// --- request ----------------------------------------------------------------------------------------------------

/** One HTTP request. */
export interface Request {
  method?: 'GET' | 'POST';
  /** Path and query, already encoded, with the first slash. */
  path: string;
  headers?: Record<string, string>;
  body?: string;
  /** The budget that it is charged to; none if absent. */
  bucket?: 'read' | 'write';
  /** How long the server may hold the request, ms; default 0. */
  waitMs?: number;
  /** How long headers and body may take beyond `waitMs`, ms; default 15,000. */
  timeoutMs?: number;
  /** The maximum size of the body; default 16 MiB. */
  maxBytes?: number;
  /** Clock time, ms, by which its turn in the budget must come; default: no limit. */
  deadline?: number;
  signal?: AbortSignal | undefined;
}

/** A complete response, of any status. */
export interface Reply {
  status: number;
  headers: Headers;
  text: string;
}

/**
 * Sends one HTTP request, with one timeout for headers and body together. Redirects are not followed (a signed URL must
 * not reach another host), at most `maxBytes` of the body are read, and nothing is retried.
 *
 * @throws a {@link RateLimited} if its turn in the budget would come after `deadline`; nothing was sent
 * @throws an {@link Unavailable} if the connection fails, the time is up, or the body is truncated or too large;
 * whether the request was executed is then unknown
 * @throws a {@link BadName} if the base has a user name or password and fetch refuses it; a {@link TechnocoreError}
 * `bad_option` if fetch returns no Response
 * @throws the signal's reason when it aborts
 */
export async function request(t: Transport, r: Request): Promise<Reply> {
  r.signal?.throwIfAborted();
  if (r.bucket) {
    await budgetOf(t, r.bucket).take(r.signal, r.deadline);
    r.signal?.throwIfAborted();
  }
  const begun = t.clock.now();
  const stop = new AbortController();
  const limitMs = (r.waitMs ?? 0) + (r.timeoutMs ?? 15_000);
  let forget!: () => void;
  let cancel!: () => void;
  // Settled by whichever comes first, so that a fetch that ignores its signal cannot hold us up.
  const settled = new Promise<Reply>((resolve, reject) => {
    const end = (reason: unknown): void => {
      stop.abort(reason);
      reject(reason);
    };
    forget = onAbort(r.signal, () => end(r.signal?.reason));
    cancel = later(t.clock, limitMs, () =>
      end(new Unavailable(`${shownBase(t.base)} gave no complete answer within ${limitMs} ms`)),
    );
    exchange(t, r, stop.signal).then(resolve, reject);
  });
  try {
    const reply = await settled;
    if (!r.waitMs) rhythmOf(t).answered(t.clock.now() - begun);
    if (reply.status < 500) healthOf(t).failure = undefined;
    return reply;
  } catch (cause) {
    if (stop.signal.aborted) throw stop.signal.reason;
    // Cancels whatever is still under way, such as the rest of the body.
    stop.abort(OVER);
    if (TechnocoreError.is(cause)) throw cause;
    const shown = shownBase(t.base);
    if (shown !== t.base && refusesCredentials(cause))
      throw new BadName(
        shown,
        'fetch takes no address with a name or password; pass a fetch that sends them in a header',
      );
    const isUnsent = neverSent(cause);
    if (isUnsent && r.bucket) budgetOf(t, r.bucket).giveBack();
    // The platform's error quotes the address: if that has a password in it, the error must not become the cause.
    const how = isUnsent ? 'could not be reached' : 'could not be reached, or the connection broke';
    throw new Unavailable(`${shown} ${how}${reasonOf(cause)}`, shown === t.base ? cause : undefined);
  } finally {
    forget();
    cancel();
  }
}

async function exchange({ base, fetch }: Transport, r: Request, signal: AbortSignal): Promise<Reply> {
  const response = await fetch(base + r.path, {
    method: r.method ?? 'GET',
    redirect: 'manual',
    signal,
    ...(r.headers && { headers: r.headers }),
    ...(r.body !== undefined && { body: r.body }),
  });
  if (typeof response?.headers?.get !== 'function')
    throw new TechnocoreError('bad_option', 'the option fetch must return a promise of a Response');
  const text = await bodyOf(response, r.maxBytes ?? 1 << 24, fetch);
  return { status: response.status, headers: response.headers, text };
}

async function bodyOf(response: Response, maxBytes: number, from: typeof fetch): Promise<string> {
  const announced = Number(response.headers.get('content-length') ?? Number.NaN);
  if (announced > maxBytes) throw new Unavailable(`the answer has ${announced} bytes, but the limit is ${maxBytes}`);
  // The platform's fetch reads no more than the announced length, unless the body is compressed.
  const isBound = announced >= 0 && from === globalThis.fetch && !response.headers.has('content-encoding');
  if (!response.body || isBound) return response.text();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = '';
  for (let bytes = 0; ; ) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    bytes += value.length;
    if (bytes > maxBytes) {
      reader.cancel().catch(() => {});
      throw new Unavailable(`the answer exceeds the limit of ${maxBytes} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/**
 * How long a 429 or 503 response asks to wait, ms: by its `Retry-After` header (seconds or a date), else by the line
 * `retry after: <s>s` of its body, else undefined. At most a day.
 */
export function retryAfterMs(reply: Reply, clock: Clock): number | undefined {
  const header = reply.headers.get('retry-after')?.trim();
  const seconds =
    header && /^\d+(\.\d+)?$/.test(header) ? header : /^retry after: (\d+(?:\.\d+)?)s/m.exec(reply.text)?.[1];
  const ms = seconds !== undefined ? Number(seconds) * 1000 : header ? Date.parse(header) - clock.now() : Number.NaN;
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), 86_400_000) : undefined;
}

/** The error for a failed response of any HTTP service, by status alone. */
export function failureOf(reply: Reply, bucket: 'read' | 'write', clock: Clock): TechnocoreError {
  const { status, text } = reply;
  if (status === 429) return new RateLimited(bucket, retryAfterMs(reply, clock) ?? 1000);
  if (status >= 500) {
    return new Unavailable(`the service answered ${status}`, new HttpError(status, text), retryAfterMs(reply, clock));
  }
  // A browser shows a redirect that was not followed as status 0.
  if (status === 0 || (status >= 300 && status < 400)) {
    const location = reply.headers.get('location') ?? '';
    const where = URL.canParse(location) ? ` to ${new URL(location).origin}` : '';
    return new HttpError(status, text, 'http', `the service answered with a redirect${where}, which is not followed`);
  }
  return new HttpError(status, text);
}

/**
 * Settles like the promise, or rejects with the signal's reason if it aborts first. The work behind the promise goes on
 * for other waiters.
 */
export function orAbort<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    const forget = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(forget);
  });
}

/** A signal that aborts when the given one does, or after `ms`. `end` removes its timer and listener. */
export function within(t: Transport, ms: number, signal?: AbortSignal): { signal: AbortSignal; end: () => void } {
  const { stop, forget } = following(signal);
  const cancel = later(t.clock, ms, () => stop.abort(new Unavailable(`not done within ${Math.round(ms)} ms`)));
  return {
    signal: stop.signal,
    end() {
      cancel();
      forget();
    },
  };
}

/**
 * Awaits the result of a user's function.
 *
 * @throws an {@link Unavailable} if that takes longer than `ms`; the rejection of the promise; the signal's reason
 */
export async function decided<T>(t: Transport, ms: number, result: T | Promise<T>, signal?: AbortSignal): Promise<T> {
  if (!isObject(result)) return result;
  const { signal: until, end } = within(t, ms, signal);
  return orAbort(Promise.resolve(result), until).finally(end);
}

/** Runs the jobs of each lane one at a time, in order of arrival. */
export class Lanes {
  readonly #last = new Map<string, Promise<void>>();

  /**
   * Runs a job when the jobs before it in its lane are done.
   *
   * @throws the signal's reason if it aborts before the job's turn; the job then never runs
   */
  async run<T>(lane: string, job: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const before = this.#last.get(lane);
    let leave!: () => void;
    const left = new Promise<void>((resolve) => {
      leave = resolve;
    });
    const mine = before === undefined ? left : before.then(() => left);
    this.#last.set(lane, mine);
    void mine.then(() => this.#last.get(lane) === mine && this.#last.delete(lane));
    try {
      signal?.throwIfAborted();
      if (before !== undefined) await orAbort(before, signal);
      return await job();
    } finally {
      leave();
    }
  }
}

/**
 * Work that several callers may await. It is aborted when the last of them leaves, so that it keeps no program alive.
 */
export class Joint<T> {
  readonly #stop: AbortController = new AbortController();
  readonly #work: Promise<T>;
  #waiting = 0;

  constructor(run: (signal: AbortSignal) => Promise<T>) {
    this.#work = run(this.#stop.signal);
    this.#work.catch(() => {});
  }

  /** True once it was aborted; whoever needs the work now must start it again. */
  get isOff(): boolean {
    return this.#stop.signal.aborted;
  }

  async join(signal?: AbortSignal): Promise<T> {
    this.#waiting++;
    try {
      return await orAbort(this.#work, signal);
    } finally {
      if (--this.#waiting === 0) this.#stop.abort(OVER);
    }
  }
}

const HEALTH = {};

/** The failure that makes the service unusable, cleared as soon as it works again. */
export function healthOf(t: Transport): { failure?: TechnocoreError | undefined } {
  return sharedOf(t, HEALTH, () => ({}));
}

/** How many foreign answers in a row a poll that once worked waits out: a few minutes' worth. */
const MAX_FOREIGN = 30;

/**
 * True for a refusal that does not begin with the status, as the service's own do: it came from a proxy or the like.
 */
function isForeign(cause: unknown): boolean {
  return TechnocoreError.is(cause) && 'body' in cause && !/^\d{3} /.test(String(cause.body));
}

function noteFailure(t: Transport, cause: unknown): void {
  if (TechnocoreError.is(cause) && cause.code === 'unavailable') healthOf(t).failure = cause;
}

// --- retry and long poll ----------------------------------------------------------------------------------------

/** Whether a failure may be temporary, so that a read can be retried. */
export function isTransient(e: unknown): boolean {
  if (!TechnocoreError.is(e)) return false;
  if (e.code === 'unavailable') return !isForbiddenHere(e);
  return e.code === 'rate_limited' || (e as HttpError).status === 408;
}

/** Error codes of a connection that was never established: nothing can have been executed. */
const NEVER_MADE =
  /^(ECONNREFUSED|ConnectionRefused|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT)$/;
/** The same for errors without a code: Deno's message. */
const NEVER_MADE_WORDS = /^[^()]*\(\S*\): client error \(Connect\): /;
/** Messages about ports that fetch blocks. */
const BLOCKED_PORT = /^bad port$|: Requests to port \d+ are blocked$/;
/** The name of Deno's error when the program lacks the network permission. */
const NO_PERMISSION = 'NotCapable';

/** The most common of these codes in plain words. */
const MEANINGS: { readonly [code: string]: string } = {
  ECONNREFUSED: 'connection refused',
  ConnectionRefused: 'connection refused',
  ENOTFOUND: 'no such host',
};

/**
 * The platform's errors in an error's chain of causes, which is followed up to five deep. Our own are left out: they
 * may quote what an untrusted server answered.
 */
function* causesOf(e: unknown): Generator<Record<string, unknown>> {
  for (let cause = e, depth = 0; isObject(cause) && depth < 5; cause = cause['cause'], depth++) {
    if (!TechnocoreError.is(cause)) yield cause;
  }
}

/** Whether the platform refuses the address itself, so that retrying is useless. */
function isForbiddenHere(e: unknown): boolean {
  for (const { name, message } of causesOf(e)) {
    if (name === NO_PERMISSION || BLOCKED_PORT.test(String(message))) return true;
  }
  return false;
}

/** Whether a failed request was certainly never sent. False where the platform does not say. */
export function neverSent(e: unknown): boolean {
  for (const { code, message } of causesOf(e)) {
    if (NEVER_MADE.test(String(code)) || NEVER_MADE_WORDS.test(String(message))) return true;
  }
  return isForbiddenHere(e);
}

/** True for the error of a fetch that was given an address with a user name or a password. */
function refusesCredentials(e: unknown): boolean {
  for (const { message } of causesOf(e)) if (/\bcredentials\b/.test(String(message))) return true;
  return false;
}

/**
 * Why a connection failed, to end a message with: only the platform's code, since its message may quote the address.
 */
function reasonOf(e: unknown): string {
  for (const { code, name, message } of causesOf(e)) {
    if (name === NO_PERMISSION) return ': this program has no permission (in Deno: --allow-net)';
    if (BLOCKED_PORT.test(String(message))) return ': fetch refuses this port';
    if (typeof code === 'string' && /^\w{3,40}$/.test(code)) {
      return Object.hasOwn(MEANINGS, code) ? `: ${MEANINGS[code]} (${code})` : `: ${code}`;
    }
  }
  return '';
}

/**
 * The delay before the next attempt after `failures` + 1 failures, ms: exponential from 100 ms to 10 s, with up to half
 * subtracted as jitter. If the service asked for a delay, that delay plus at most a second: a client that waits much
 * longer than others at the same address never gets a turn.
 */
export function backoffMs(failures: number, cause: unknown, random: (bytes: number) => Uint8Array): number {
  const asked = TechnocoreError.is(cause) ? ((cause as RateLimited | Unavailable).retryAfterMs ?? 0) : 0;
  const step = Math.min(100 * 2 ** failures, asked > 0 ? 1000 : 10_000);
  return asked + step * (0.5 + randomFloat(random) / 2);
}

const retryKind = (cause: unknown): string => (cause instanceof RateLimited ? 'throttled' : 'retry');

/** Backoff between the attempts at one operation, up to a deadline that holds even if the clock is set back. */
export class Attempts {
  readonly #t: Transport;
  readonly #deadline: number;
  readonly #signal: AbortSignal | undefined;
  #left: number;
  #failures = 0;

  /** @param deadline clock time, ms, after which no new attempt starts */
  constructor(t: Transport, deadline: number, signal?: AbortSignal) {
    this.#t = t;
    this.#deadline = deadline;
    this.#signal = signal;
    this.#left = deadline - t.clock.now();
  }

  /**
   * Emits an event and waits before the next attempt.
   *
   * @param cause why the last attempt failed
   * @returns true when the next attempt may start; false, at once, if no time is left for one
   * @throws the signal's reason when it aborts
   */
  async again(cause: unknown, event: Omit<Event, 'kind'> = {}): Promise<boolean> {
    const { clock, random, onEvent } = this.#t;
    const afterMs = backoffMs(this.#failures++, cause, random);
    noteFailure(this.#t, cause);
    this.#left = Math.min(this.#left, this.#deadline - clock.now()) - afterMs;
    if (this.#left < 0) return false;
    onEvent({ kind: retryKind(cause), ...event, cause, afterMs });
    await clock.sleep(afterMs, this.#signal);
    return true;
  }
}

/**
 * Repeats a read until it succeeds, fails for good, or has no time left.
 *
 * @param deadline clock time, ms, after which no new attempt starts
 * @throws what the last attempt threw
 */
export async function retrying<T>(
  t: Transport,
  deadline: number,
  run: () => Promise<T>,
  signal?: AbortSignal,
): Promise<T> {
  const attempts = new Attempts(t, deadline, signal);
  for (;;) {
    try {
      return await run();
    } catch (cause) {
      if (!isTransient(cause) || !(await attempts.again(cause))) throw cause;
    }
  }
}

/** The outcome of one long-poll request. */
export interface Polled<T> {
  /** What arrived; absent if nothing did. */
  value?: T;
  /** False if the server reports that it did not hold the request. */
  held?: boolean;
}

/** Options of {@link poll}. */
export interface PollOptions {
  /** How long the server is asked to hold a request, ms; default 10,000. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
  /** Whether the server has answered before, so that pages of something on the way are waited out; default false. */
  worked?: boolean;
}

/** The longest pause after a failure, ms. */
const MAX_PAUSE_MS = 60_000;
/** The pause after an early empty answer, ms: initial and maximum. */
const FLOOR_MS = [250, 2000] as const;

/**
 * The long-poll loop: repeats a request forever and yields what arrives. Transient failures are waited out. An empty
 * answer that comes early (the server does not hold requests, or already holds too many for this address) is followed
 * by a pause, so that the loop never spins.
 *
 * @param step one request, which the server may hold for `waitMs`
 * @throws what `step` throws, unless it is transient; the signal's reason when it aborts
 */
export async function* poll<T>(
  t: Transport,
  step: (waitMs: number) => Promise<Polled<T>>,
  o: PollOptions = {},
): AsyncGenerator<T> {
  const waitMs = o.waitMs ?? 10_000;
  let floor: number = FLOOR_MS[0];
  let { worked = false } = o;
  for (let failures = 0; ; ) {
    const start = t.clock.now();
    let polled: Polled<T>;
    try {
      o.signal?.throwIfAborted();
      polled = await step(waitMs);
      failures = 0;
      worked = true;
    } catch (cause) {
      if (!isTransient(cause) && !(worked && failures < MAX_FOREIGN && isForeign(cause))) throw cause;
      // One wrong `Retry-After` must not silence a reader for a day.
      const afterMs = Math.min(backoffMs(failures++, cause, t.random), MAX_PAUSE_MS);
      noteFailure(t, cause);
      t.onEvent({ kind: retryKind(cause), cause, afterMs });
      await t.clock.sleep(afterMs, o.signal);
      continue;
    }
    if (polled.value !== undefined) {
      floor = FLOOR_MS[0];
      yield polled.value;
      continue;
    }
    const took = t.clock.now() - start;
    // If the clock was set back, `took` is too small and there is a pause, which is harmless.
    if (polled.held !== false && took >= Math.min(waitMs, 1000) * 0.9) {
      floor = FLOOR_MS[0];
      continue;
    }
    await t.clock.sleep(floor, o.signal);
    floor = Math.min(floor * 1.5, FLOOR_MS[1]);
  }
}
