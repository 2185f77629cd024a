/**
 * Requests to the room service: how a write is sent, and which error each refusal stands for, by the wording on which
 * clients may rely. Knows nothing about rooms or notes themselves. Rules: technocore.chat (basics, text in paths,
 * errors).
 *
 * @module
 */
import {
  BadName,
  BadNonce,
  CapacityReached,
  Conflict,
  DuplicateText,
  EmptyText,
  Forbidden,
  FrameTooLong,
  type RateLimited,
  RoomBudget,
  StaleNonce,
  TechnocoreError,
  Unavailable,
} from './errors.ts';
import { codePoints, decode, isObject } from './frames.ts';
import {
  budgetOf,
  failureOf,
  neverSent,
  type Reply,
  type Request,
  randomFloat,
  request,
  retryAfterMs,
  sharedOf,
  type Transport,
} from './http.ts';

/** Advice appended to the error when the service cannot be reached. */
const WHERE =
  'the environment variable TECHNOCORE_URL or the option base selects another service; `npx technocore-rpc local` starts one';

/** The maximum length of a URL, bytes: the public service refuses more than 16 KB. */
const MAX_URL = 16_000;

/**
 * Sends one request to the service. Any status but 200 is thrown as the error that it stands for.
 *
 * @throws what {@link request} throws, and the error for a refusal
 */
export async function ask(t: Transport, r: Request): Promise<Reply> {
  let reply: Reply;
  try {
    reply = await request(t, r);
  } catch (e) {
    if (r.signal?.aborted || !neverSent(e)) throw e;
    const { message, cause } = e as Error;
    throw new Unavailable(`${message}; ${WHERE}`, cause);
  }
  if (reply.status === 200) return reply;
  const bucket = r.bucket ?? 'read';
  const refusal = refusalOf(t, reply, bucket);
  if (refusal.code === 'rate_limited') budgetOf(t, bucket).refused((refusal as RateLimited).retryAfterMs);
  throw refusal;
}

/** The error for an answer that no room service gives: perhaps a proxy's page, which may be temporary. */
export const oddAnswer = (wanted: string, cause?: unknown): Unavailable =>
  new Unavailable(`the answer is not ${wanted}; is it a technocore.chat service, without a proxy in between?`, cause);

const UNCACHED = {};

/** A unique query parameter, so that no cache answers with what was there before our own write. */
export function uncached(t: Transport): string {
  const counter = sharedOf(t, UNCACHED, () => ({ n: Math.floor(randomFloat(t.random) * 0x1_0000_0000) }));
  return `n=${counter.n++}`;
}

const LIMITS = {};
/** How often a service is asked, ms. */
const RELEARN_MS = 3_600_000;
/** When a service that could not be asked is asked again, ms. */
const RETRY_MS = 15_000;
/** The requests per minute that the public service grants an address; assumed for a service that cannot be asked. */
const PUBLIC_READS = 120;
const PUBLIC_WRITES = 30;
/** How long the answer may take, ms. Requests wait for it. */
const LEARN_MS = 2000;

/**
 * Asks the service for its limits once an hour, so that budgets are respected before requests are refused. A service
 * that publishes none counts as unlimited; one that cannot be asked is assumed to have the limits of the public
 * service.
 *
 * @returns resolves after the first attempt; never rejects
 */
export function learnLimits(t: Transport): Promise<void> {
  const known = sharedOf(t, LIMITS, () => ({
    at: Number.NEGATIVE_INFINITY,
    first: undefined as Promise<void> | undefined,
  }));
  const now = t.clock.now();
  if (Math.abs(now - known.at) < RELEARN_MS) return known.first!;
  known.at = now;
  const learned = askLimits(t).catch(() => {
    known.at = now - RELEARN_MS + RETRY_MS;
    budgetOf(t, 'read').assume(PUBLIC_READS);
    budgetOf(t, 'write').assume(PUBLIC_WRITES);
  });
  // Only the first attempt is waited for: after that, the old limits hold meanwhile.
  return (known.first ??= learned);
}

async function askLimits(t: Transport): Promise<void> {
  const reply = await request(t, { path: '/.well-known/agent.json', maxBytes: 1 << 20, timeoutMs: LEARN_MS });
  if (reply.status !== 200 && reply.status !== 404) throw failureOf(reply, 'read', t.clock);
  const manifest = reply.status === 200 ? decode(reply.text) : undefined;
  const limits = isObject(manifest) && isObject(manifest['limits']) ? manifest['limits'] : {};
  budgetOf(t, 'read').learn(Number(limits['reads_per_minute_per_ip']));
  budgetOf(t, 'write').learn(Number(limits['writes_per_minute_per_ip']));
}

const STALE_NONCE =
  /^(?:400 nonce \d+ is not greater than (\d{1,19})\b|403 nonce \d+ was already used for \S+ \(last (\d{1,19})\))/;
const TOO_LONG = /^400 text too long: (\d+) characters, and the limit is (\d+)/;

/** The error for a refusal: by wording that all versions of the service share, else by status. */
function refusalOf(t: Transport, reply: Reply, bucket: 'read' | 'write'): TechnocoreError {
  const { status, text } = reply;
  const [, above, last = above] = STALE_NONCE.exec(text) ?? [];
  if (last !== undefined) return new StaleNonce(last);
  const [, chars, limit] = TOO_LONG.exec(text) ?? [];
  if (limit !== undefined) return new FrameTooLong(Number(chars), Number(limit));
  switch (status) {
    case 400:
      // Probably a refused nonce in a truncated answer.
      if (/^400 nonce \d/.test(text) || '400 nonce '.startsWith(text))
        return new Unavailable('the answer was cut short');
      if (/^400 empty text/.test(text)) return new EmptyText();
      if (/^400 nonce must be/.test(text)) return new BadNonce('the service accepts nonces of 1 to 19 digits');
      if (/^400 bad (name|did:key)/.test(text)) return new BadName(text.slice(4, 120), 'the service refused a name');
      if (/^400 (room|note) (limit reached|storage)/.test(text)) return new CapacityReached(text.slice(4, 300).trim());
      break;
    case 403:
      return new Forbidden(text);
    case 409:
      return new Conflict(text, currentValue(text));
    case 422:
      return new DuplicateText(text);
    case 429:
      if (/^429 room-creation/.test(text)) return new RoomBudget(retryAfterMs(reply, t.clock) ?? 86_400_000 / 20);
  }
  return failureOf(reply, bucket, t.clock);
}

/** The value in a 409 response: it follows the line that announces its length, and must have exactly that length. */
function currentValue(text: string): string | undefined {
  const [, length, rest] = /^current value follows \((\d+) chars\):\n([\s\S]*)$/m.exec(text) ?? [];
  const value = rest?.replace(/\n$/, '');
  return value !== undefined && codePoints(value) === Number(length) ? value : undefined;
}

/** A write in its GET and POST forms. */
export interface Write {
  /** The path and query of the GET form, encoded. */
  path: string;
  /** The free text at the end of `path`, which a URL parser may remove. */
  text: string;
  /** The path of the POST form. */
  postPath: string;
  /** The body of the POST form. */
  body: Record<string, string | boolean>;
}

/**
 * The request for a write, by the method that the option `lane` asks for. The default is GET (many agents can do
 * nothing else), or POST if the URL would be too long or end in a segment that URL parsers remove.
 *
 * @throws a {@link TechnocoreError} `post_only` if the lane is `get`, and only POST can carry this text
 */
export function writeRequest(t: Transport, write: Write): Request {
  const fits = t.base.length + write.path.length <= MAX_URL && write.text !== '.' && write.text !== '..';
  if (t.lane === 'get' && !fits) {
    throw new TechnocoreError(
      'post_only',
      `this text can be sent by POST only: a URL has at most ${MAX_URL} bytes and cannot end in . or ..`,
    );
  }
  if (fits && t.lane !== 'post') return { path: write.path, bucket: 'write' };
  return { method: 'POST', path: write.postPath, body: JSON.stringify(write.body), bucket: 'write' };
}
