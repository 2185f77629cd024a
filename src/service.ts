/**
 * How the room service answers and which lane a write takes: the words a client may rely on, and nothing about rooms or
 * notes themselves. Rules: wire sections 1, 3, 5 of the service.
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

/** What helps whoever meets no service at all. */
const WHERE =
  'the environment variable TECHNOCORE_URL or the option base selects another service; `npx technocore-rpc local` starts one';

/** Longest URL sent, bytes: the public edge cuts at 16 KB. */
const MAX_URL = 16_000;

/**
 * One request to the service; anything but a 200 becomes the typed error that it means.
 *
 * @throws whatever {@link request} throws, and every error of the service's vocabulary
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

const UNCACHED = {};

/** A query member that no request had before: an edge may answer the same URL from its cache, our own write not in it. */
export function uncached(t: Transport): string {
  const counter = sharedOf(t, UNCACHED, () => ({ n: Math.floor(randomFloat(t.random) * 0x1_0000_0000) }));
  return `n=${counter.n++}`;
}

const LIMITS = {};
const RELEARN_MS = 3_600_000;
/** When it is asked again after it could not be, ms. */
const RETRY_MS = 15_000;
/** What the public service grants an address in a minute; taken for granted where a service cannot be asked. */
const PUBLIC_READS = 120;
const PUBLIC_WRITES = 30;
/** How long the answer may take, ms: others wait for it. */
const LEARN_MS = 2000;

/**
 * Asks the service once an hour for its limits, so that budgets hold before they are refused. A service that does not say
 * has none that we know; one that cannot be asked has those of the public one until it can.
 *
 * @returns resolves when they are known, as far as they will be; never rejects
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
  // Only the first time does anybody have to wait for it.
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

/** The error a refusal stands for: by the tokens that later versions keep, then by status. */
function refusalOf(t: Transport, reply: Reply, bucket: 'read' | 'write'): TechnocoreError {
  const { status, text } = reply;
  let match: RegExpExecArray | null;
  if (
    (match =
      /^(?:400 nonce \d+ is not greater than (\d{1,19})\b|403 nonce \d+ was already used for \S+ \(last (\d{1,19})\))/.exec(
        text,
      ))
  ) {
    return new StaleNonce((match[1] ?? match[2])!);
  }
  switch (status) {
    case 400:
      if ((match = /^400 text too long: (\d+) characters, and the limit is (\d+)/.exec(text))) {
        return new FrameTooLong(Number(match[1]), Number(match[2]));
      }
      // A refused nonce of which the rest was cut off, as far as can be told.
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

/** The value that a 409 shows: after the line that announces its length, and exactly that long. */
function currentValue(text: string): string | undefined {
  const match = /^current value follows \((\d+) chars\):\n([\s\S]*)$/m.exec(text);
  if (!match) return undefined;
  const [, length, rest] = match as unknown as [string, string, string];
  const value = rest.replace(/\n$/, '');
  return codePoints(value) === Number(length) ? value : undefined;
}

/** The two ways to write the same thing. */
export interface Write {
  /** GET form, already encoded. */
  path: string;
  /** Its free text, which a URL parser may eat. */
  text: string;
  /** POST form. */
  postPath: string;
  body: Record<string, string | boolean>;
}

/**
 * The request for a write on the lane the options ask for: GET where it fits (many agents can do nothing else), POST
 * when the URL would be too long or its last segment is one that URL parsers remove.
 *
 * @throws TechnocoreError `post_only`: `lane: 'get'`, and only POST can carry this text
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
