/**
 * One HTTP request, one long-poll loop, and what they share: clock, randomness, budgets. Knows neither rooms nor
 * relays; both are customers.
 *
 * @module
 */
import { Budget } from './budget.ts';
import { type Clock, following, later, OVER, onAbort, randomFloat, systemClock } from './clock.ts';
import { BadName, checkObject, checkText, HttpError, RateLimited, TechnocoreError, Unavailable } from './errors.ts';
import { isObject } from './frames.ts';
import { getOrMake } from './maps.ts';

export { type Clock, onAbort, randomFloat, systemClock } from './clock.ts';

/** Something that happened on the way and did not end the operation: a retry, a gap, a refused frame. */
export interface Event {
  /** retry, throttled, gap, epoch, skipped, refused, late … */
  kind: string;
  [detail: string]: unknown;
}

/** Options that every function which talks to a service takes. */
export interface Options {
  /** Address of the service; default: environment `TECHNOCORE_URL` where there is one, else https://technocore.chat */
  base?: string;
  /** Default: the global `fetch`. */
  fetch?: typeof fetch;
  /** Ends the operation; it then rejects with the signal's reason. */
  signal?: AbortSignal;
  clock?: Clock;
  /** Source of random bytes; default: the platform's. */
  random?: (bytes: number) => Uint8Array;
  /** `get`: never POST, for callers behind a GET-only tool. `post`: always POST. Default `auto`: GET where it fits. */
  lane?: 'auto' | 'get' | 'post';
  /** Told of what happened on the way. Errors it throws are ignored. */
  onEvent?: (event: Event) => void;
}

type Shared = Map<object, unknown>;

/** A service as one set of options reaches it. Two with the same base, `fetch` and clock share budgets and loops. */
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

// fetch -> clock -> base -> what is shared. Weak, so that a simulated world is collected with its clock.
const worlds = new WeakMap<typeof fetch, WeakMap<Clock, Map<string, Shared>>>();

function environmentUrl(): string | undefined {
  try {
    return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.['TECHNOCORE_URL'];
  } catch {
    // A sandbox that does not let us read the environment.
    return undefined;
  }
}

/**
 * The transport that options describe.
 *
 * @param address of the service, in the place of the option `base`
 * @throws BadName `base` is not an http or https address
 * @throws TechnocoreError `bad_option`: no object
 */
export function transportOf(o: Options = {}, address?: string): Transport {
  checkObject(o);
  const given = address ?? o.base;
  const base = checkText(given ?? environmentUrl() ?? DEFAULT_BASE, 'the option base').replace(/\/+$/, '');
  if (!/^https?:\/\/[^\s/?#]+(\/[^\s?#]*)?$/i.test(base) || !URL.canParse(base)) {
    const where = given === undefined ? 'TECHNOCORE_URL' : 'the option base';
    throw new BadName(shownBase(base), `${where} is the address of a service, like http://127.0.0.1:8080`);
  }
  const fetch = o.fetch ?? globalThis.fetch;
  const clock = o.clock ?? systemClock;
  const clocks = getOrMake(worlds, fetch, () => new WeakMap<Clock, Map<string, Shared>>());
  const bases = getOrMake(clocks, clock, () => new Map<string, Shared>());
  return {
    base,
    fetch,
    clock,
    random: o.random ?? ((n) => globalThis.crypto.getRandomValues(new Uint8Array(n))),
    lane: o.lane ?? 'auto',
    onEvent: (event) => {
      try {
        o.onEvent?.(event);
      } catch {
        // A broken listener must not break what it listens to.
      }
    },
    shared: getOrMake(bases, base, () => new Map()),
  };
}

/** The address of a service as it may be shown: without the name and password that may be in it. */
export const shownBase = (base: string): string => base.replace(/^(\w*:?\/*)[^/]*@/, '$1');

/** The value that all users of one transport share under `key`, made at first use. */
export function sharedOf<T>(t: Transport, key: object, make: () => T): T {
  return getOrMake(t.shared as Map<object, T>, key, make);
}

const BUDGETS = {};

/** What the service grants our address: one account for all users of a transport. */
export function budgetOf(t: Transport, bucket: 'read' | 'write'): Budget {
  const budgets = sharedOf(t, BUDGETS, () => ({
    read: new Budget(t.clock, 'read'),
    write: new Budget(t.clock, 'write'),
  }));
  return budgets[bucket];
}

/** Half-second steps in which the reference service looks for what parked reads wait for, ms. */
const STEP_MS = 500;

/** What was seen of how a service answers: its round trips, and whether it wakes parked reads in coarse steps. */
export class Rhythm {
  #rtt = Number.POSITIVE_INFINITY;
  #hits = 0;

  /** True once several parked reads were answered just at a step. */
  get coarse(): boolean {
    return this.#hits >= 2;
  }

  /** A request that was answered at once, after `ms`. */
  answered(ms: number): void {
    this.#rtt = ms < this.#rtt ? ms : this.#rtt + (ms - this.#rtt) / 16;
  }

  /** A parked read that brought something after `ms`. */
  woken(ms: number): void {
    const late = ms - Math.min(this.#rtt, ms);
    // What was there already when the read was parked tells nothing.
    if (late < STEP_MS * 0.3) return;
    const isHit = (late + STEP_MS / 10) % STEP_MS < STEP_MS / 5;
    this.#hits = isHit ? this.#hits + 1 : 0;
  }
}

const RHYTHM = {};

/** The rhythm of a transport's service. */
export function rhythmOf(t: Transport): Rhythm {
  return sharedOf(t, RHYTHM, () => new Rhythm());
}

// --- request ----------------------------------------------------------------------------------------------------

/** What to send. */
export interface Request {
  method?: 'GET' | 'POST';
  /** Path and query, already encoded, from the first slash on. */
  path: string;
  headers?: Record<string, string>;
  body?: string;
  /** The budget it is charged to; absent: free. */
  bucket?: 'read' | 'write';
  /** How long the server may hold it, ms. */
  waitMs?: number;
  /** How long headers and body may take on top of `waitMs`, ms; default 15,000. */
  timeoutMs?: number;
  /** Most bytes of body read; default 16 MiB. */
  maxBytes?: number;
  /** Clock time, ms, by which its turn in the budget must come; default: whenever it comes. */
  deadline?: number;
  signal?: AbortSignal | undefined;
}

/** What came back: any status, body whole. */
export interface Reply {
  status: number;
  headers: Headers;
  text: string;
}

/**
 * One HTTP request with a deadline on headers and body together. No redirect is followed (a signed URL must not reach
 * another host), no body past its cap is read, nothing is retried.
 *
 * @throws RateLimited its turn in the budget would come after `deadline`; nothing was sent
 * @throws Unavailable no connection, deadline passed, body cut short or too large: whether it was executed is unknown
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
  // A fetch that ignores its signal must not hold us.
  let end: (reason: unknown) => void;
  const stopped = new Promise<never>((_, reject) => {
    end = (reason) => {
      stop.abort(reason);
      reject(reason);
    };
  });
  const forget = onAbort(r.signal, () => end(r.signal?.reason));
  const cancel = later(t.clock, limitMs, () =>
    end(new Unavailable(`${shownBase(t.base)} gave no complete answer within ${limitMs} ms`)),
  );
  const work = (async () => {
    const { fetch } = t;
    const response = await fetch(t.base + r.path, {
      method: r.method ?? 'GET',
      redirect: 'manual',
      signal: stop.signal,
      ...(r.headers && { headers: r.headers }),
      ...(r.body !== undefined && { body: r.body }),
    });
    return {
      status: response.status,
      headers: response.headers,
      text: await bodyOf(response, r.maxBytes ?? 1 << 24, fetch),
    };
  })();
  try {
    const reply = await Promise.race([work, stopped]);
    if (!r.waitMs) rhythmOf(t).answered(t.clock.now() - begun);
    if (reply.status < 500) healthOf(t).failure = undefined;
    return reply;
  } catch (cause) {
    if (stop.signal.aborted) throw stop.signal.reason;
    // Whatever is still under way is abandoned.
    stop.abort(OVER);
    if (TechnocoreError.is(cause)) throw cause;
    const shown = shownBase(t.base);
    // What the platform says of an address with a password quotes it.
    const how = neverSent(cause) ? 'could not be reached' : 'could not be reached or broke off';
    throw new Unavailable(`${shown} ${how}${reasonOf(cause)}`, shown === t.base ? cause : undefined);
  } finally {
    forget();
    cancel();
    // None of the two is an unhandled rejection.
    work.catch(() => {});
    stopped.catch(() => {});
  }
}

async function bodyOf(response: Response, maxBytes: number, from: typeof fetch): Promise<string> {
  const announced = Number(response.headers.get('content-length') ?? Number.NaN);
  if (announced > maxBytes) throw new Unavailable(`an answer of ${announced} bytes, and the limit is ${maxBytes}`);
  // Where the platform reads it, an announced length bounds the body, unless what arrives is compressed.
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
      throw new Unavailable(`an answer of more than ${maxBytes} bytes`);
    }
    text += decoder.decode(value, { stream: true });
  }
}

/**
 * How long a 429 or 503 asks to wait, ms: the `Retry-After` header (seconds or a date), else the body's
 * `retry after: <s>s`, else undefined. At most a day.
 */
export function retryAfterMs(reply: Reply, clock: Clock): number | undefined {
  const header = reply.headers.get('retry-after')?.trim();
  const seconds =
    header && /^\d+(\.\d+)?$/.test(header) ? header : /^retry after: (\d+(?:\.\d+)?)s/m.exec(reply.text)?.[1];
  const ms = seconds !== undefined ? Number(seconds) * 1000 : header ? Date.parse(header) - clock.now() : Number.NaN;
  return Number.isFinite(ms) ? Math.min(Math.max(ms, 0), 86_400_000) : undefined;
}

/** The error that a reply of any HTTP service stands for, by its status alone. */
export function failureOf(reply: Reply, bucket: 'read' | 'write', clock: Clock): TechnocoreError {
  const { status, text } = reply;
  if (status === 429) return new RateLimited(bucket, retryAfterMs(reply, clock) ?? 1000);
  if (status >= 500) {
    return new Unavailable(`the service answered ${status}`, new HttpError(status, text), retryAfterMs(reply, clock));
  }
  // Status 0 is how a browser shows a redirect that was not followed.
  if (status === 0 || (status >= 300 && status < 400)) {
    return new HttpError(status, text, 'http', 'the service answered with a redirect, and none is followed');
  }
  return new HttpError(status, text);
}

/** The promise, or the signal's reason if it aborts first: for work that others wait for too and must go on. */
export function orAbort<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    const forget = onAbort(signal, () => reject(signal.reason));
    promise.then(resolve, reject).finally(forget);
  });
}

/** A signal that aborts with another, or after `ms`; `end` leaves neither timer nor listener behind. */
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

/** Runs jobs of one lane in the order they came, one at a time. */
export class Lanes {
  readonly #last = new Map<string, Promise<void>>();

  /** @throws the signal's reason when it aborts before the job's turn; the job is then never run */
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

/** Work that several may wait for: it is called off when the last of them leaves, so that it keeps no program alive. */
export class Joint<T> {
  readonly #stop: AbortController = new AbortController();
  readonly #work: Promise<T>;
  #waiting = 0;

  constructor(run: (signal: AbortSignal) => Promise<T>) {
    this.#work = run(this.#stop.signal);
    this.#work.catch(() => {});
  }

  /** True once it was called off; whoever comes now begins anew. */
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

/** Why the service could not be used last, until it could be again. */
export function healthOf(t: Transport): { failure?: TechnocoreError | undefined } {
  return sharedOf(t, HEALTH, () => ({}));
}

/** Odd answers in a row that a poll which once worked waits out: some minutes. */
const MAX_ODD = 30;

/** A refusal that is not in the service's own words, which begin with the status: something on the way spoke. */
function isOdd(cause: unknown): boolean {
  return TechnocoreError.is(cause) && 'body' in cause && !/^\d{3} /.test(String(cause.body));
}

function noteFailure(t: Transport, cause: unknown): void {
  if (TechnocoreError.is(cause) && cause.code === 'unavailable') healthOf(t).failure = cause;
}

// --- retry and long poll ----------------------------------------------------------------------------------------

/** Whether trying again later can help, without any doubt about what the failed attempt did to a read. */
export function isTransient(e: unknown): boolean {
  return (
    TechnocoreError.is(e) && (e.code === 'unavailable' || e.code === 'rate_limited' || (e as HttpError).status === 408)
  );
}

/** What a connection says that was never made: nothing can have been executed. */
const NEVER_MADE =
  /^(ECONNREFUSED|ConnectionRefused|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT)$/;
/** The same where no code says it: Deno's words, behind the address, and those of a port that no fetch may use. */
const NEVER_MADE_WORDS = /^bad port$|^[^()]*\(\S*\): client error \(Connect\): |: Requests to port \d+ are blocked$/;

/** What the most usual of these codes mean. */
const MEANINGS: { readonly [code: string]: string } = {
  ECONNREFUSED: 'connection refused',
  ConnectionRefused: 'connection refused',
  ENOTFOUND: 'no such host',
};

/** An error and what caused it, as far as it says. */
function* causesOf(e: unknown): Generator<Record<string, unknown>> {
  for (let cause = e, depth = 0; isObject(cause) && depth < 5; cause = cause['cause'], depth++) yield cause;
}

/** Whether a request that failed surely never left. Where the platform does not say, it may have. */
export function neverSent(e: unknown): boolean {
  for (const { code, message } of causesOf(e)) {
    if (NEVER_MADE.test(String(code)) || NEVER_MADE_WORDS.test(String(message))) return true;
  }
  return false;
}

/** Why a connection failed, to be put behind what failed: the platform's code alone, since its words may quote the address. */
function reasonOf(e: unknown): string {
  for (const { code } of causesOf(e)) {
    if (typeof code === 'string' && /^\w{3,40}$/.test(code)) {
      return Object.hasOwn(MEANINGS, code) ? `: ${MEANINGS[code]} (${code})` : `: ${code}`;
    }
  }
  return '';
}

/** Delay before attempt `failures + 1`, ms: what the service asked for, else doubling from 100 ms to 10 s, jittered. */
export function backoffMs(failures: number, cause: unknown, random: (bytes: number) => Uint8Array): number {
  const asked = TechnocoreError.is(cause) ? ((cause as RateLimited | Unavailable).retryAfterMs ?? 0) : 0;
  const step = Math.min(100 * 2 ** failures, 10_000);
  return asked + step * (0.5 + randomFloat(random) / 2);
}

const kindOf = (cause: unknown): string => (cause instanceof RateLimited ? 'throttled' : 'retry');

/** The pauses between attempts at one thing, until a deadline that holds although the clock be set back. */
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
   * Waits before the next attempt, and tells of it.
   *
   * @returns false, at once, when there is no time for one
   * @throws the signal's reason when it aborts
   */
  async again(cause: unknown, event: Omit<Event, 'kind'> = {}): Promise<boolean> {
    const { clock, random, onEvent } = this.#t;
    const afterMs = backoffMs(this.#failures++, cause, random);
    noteFailure(this.#t, cause);
    this.#left = Math.min(this.#left, this.#deadline - clock.now()) - afterMs;
    if (this.#left < 0) return false;
    onEvent({ kind: kindOf(cause), ...event, cause, afterMs });
    await clock.sleep(afterMs, this.#signal);
    return true;
  }
}

/**
 * Runs a read until it succeeds, fails for good, or `deadline` would pass.
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

/** One answer to a long poll. */
export interface Polled<T> {
  /** What came; undefined when nothing did. */
  value?: T;
  /** False when the server says that it did not hold the request. */
  held?: boolean;
}

/** How {@link poll} paces itself. */
export interface PollOptions {
  /** How long the server is asked to hold a request, ms; default 10,000. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
}

/** Longest time without a poll, ms. */
const MAX_PAUSE_MS = 60_000;
/** Shortest time between two polls that came back empty before their time, ms: first, and at most. */
const FLOOR_MS = [250, 2000] as const;

/**
 * The long-poll loop: asks again and again, for ever. Transient failures are waited out; an empty answer that came
 * before its time (a server that does not hold, a fifth waiter) never becomes a busy loop.
 *
 * @param step one request that the server may hold for `waitMs`
 * @throws what `step` throws, unless it is transient; the signal's reason
 */
export async function* poll<T>(
  t: Transport,
  step: (waitMs: number) => Promise<Polled<T>>,
  o: PollOptions = {},
): AsyncGenerator<T> {
  const waitMs = o.waitMs ?? 10_000;
  let floor: number = FLOOR_MS[0];
  let worked = false;
  for (let failures = 0; ; ) {
    const start = t.clock.now();
    let polled: Polled<T>;
    try {
      o.signal?.throwIfAborted();
      polled = await step(waitMs);
      failures = 0;
      worked = true;
    } catch (cause) {
      if (!isTransient(cause) && !(worked && failures < MAX_ODD && isOdd(cause))) throw cause;
      // One wrong word about when to come back must not make a reader deaf for a day.
      const afterMs = Math.min(backoffMs(failures++, cause, t.random), MAX_PAUSE_MS);
      noteFailure(t, cause);
      t.onEvent({ kind: kindOf(cause), cause, afterMs });
      await t.clock.sleep(afterMs, o.signal);
      continue;
    }
    if (polled.value !== undefined) {
      floor = FLOOR_MS[0];
      yield polled.value;
      continue;
    }
    const took = t.clock.now() - start;
    // A clock that was set back makes `took` useless; the floor then holds.
    if (polled.held !== false && took >= Math.min(waitMs, 1000) * 0.9) {
      floor = FLOOR_MS[0];
      continue;
    }
    await t.clock.sleep(floor, o.signal);
    floor = Math.min(floor * 1.5, FLOOR_MS[1]);
  }
}
