import { getEventListeners } from 'node:events';
import { inspect } from 'node:util';
import { gzipSync } from 'node:zlib';
import { describe, expect, test, vi } from 'vitest';
import { Budget } from '../src/budget.ts';
import { eitherOf, later, systemClock } from '../src/clock.ts';
import { BadName, HttpError, RateLimited, TechnocoreError, Unavailable } from '../src/errors.ts';
import {
  Attempts,
  backoffMs,
  budgetOf,
  failureOf,
  isTransient,
  neverSent,
  onAbort,
  orAbort,
  type Polled,
  poll,
  type Reply,
  Rhythm,
  request,
  retryAfterMs,
  retrying,
  sharedOf,
  shownBase,
  transportOf,
} from '../src/http.ts';
import { setNote } from '../src/notes.ts';
import { follow, read, say } from '../src/rooms.ts';
import { broken, faker, faulty, isGone, run, signer, until, world } from './support.ts';
import { settled, VirtualClock } from './virtual-clock.ts';

const half = (): Uint8Array => Uint8Array.of(128, 0, 0, 0);
const reply = (status: number, text = '', headers: Record<string, string> = {}): Reply => ({
  status,
  text,
  headers: new Headers(headers),
});
/** A transport over a function that answers. */
const over = (clock: VirtualClock, fetch: (url: string, init: RequestInit) => Promise<Response>) =>
  transportOf({ base: 'http://local.test', fetch: fetch as typeof globalThis.fetch, clock, random: half });
/** A request that nobody answers, as fetch behaves: it hears its signal. */
const never = (_url: string, init: RequestInit): Promise<Response> =>
  new Promise((_, reject) => {
    init.signal!.addEventListener('abort', () => reject(init.signal!.reason));
  });

describe('how a service wakes who waits', () => {
  const seen = (...ms: number[]): boolean => {
    const rhythm = new Rhythm();
    rhythm.answered(40);
    for (const one of ms) rhythm.woken(one);
    return rhythm.coarse;
  };

  test('in steps of half a second, as two in a row tell', () => {
    expect(seen(540)).toBe(false);
    expect(seen(540, 1060)).toBe(true);
    expect(seen(1570, 530, 9)).toBe(true);
  });

  test('or at once: by chance at a step is not twice so, nor after one between two steps', () => {
    expect(seen(540, 760)).toBe(false);
    // Found as it was parked: that is so in both cases.
    expect(seen(540, 45, 1040)).toBe(true);
    expect(seen(540, 300, 1040)).toBe(false);
    expect(seen(540, 1040, 300)).toBe(false);
  });
});

describe('transportOf', () => {
  test('the base: option, environment, default; without slashes at its end', () => {
    const before = process.env['TECHNOCORE_URL'];
    try {
      process.env['TECHNOCORE_URL'] = 'http://127.0.0.1:9/';
      expect(transportOf().base).toBe('http://127.0.0.1:9');
      expect(transportOf({ base: 'https://h/sub//' }).base).toBe('https://h/sub');
      process.env['TECHNOCORE_URL'] = '';
      expect(transportOf().base).toBe('https://technocore.chat');
      delete process.env['TECHNOCORE_URL'];
      expect(transportOf().base).toBe('https://technocore.chat');
    } finally {
      if (before === undefined) delete process.env['TECHNOCORE_URL'];
      else process.env['TECHNOCORE_URL'] = before;
    }
  });

  test.each([
    '',
    'chat',
    'ftp://h',
    'http://',
    'http:///x',
    'https://h?x',
    'https://h#x',
    'https://h x',
    'javascript:1',
  ])('no base: %j', (base) => {
    expect(() => transportOf({ base })).toThrow(BadName);
  });

  test('what is shared hangs on base, fetch and clock together', () => {
    const { o, service } = world();
    const key = {};
    const shared = sharedOf(transportOf(o), key, () => ({}));
    expect(sharedOf(transportOf({ ...o, base: `${o.base}/` }), key, () => ({}))).toBe(shared);
    expect(sharedOf(transportOf({ ...o, base: 'http://other.test' }), key, () => ({}))).not.toBe(shared);
    expect(sharedOf(transportOf({ ...o, clock: new VirtualClock() }), key, () => ({}))).not.toBe(shared);
    expect(sharedOf(transportOf({ ...o, fetch: service.client('b') }), key, () => ({}))).not.toBe(shared);
  });

  test('a listener that throws hurts nobody', () => {
    const t = transportOf({
      onEvent: () => {
        throw new Error('mine');
      },
    });
    expect(() => t.onEvent({ kind: 'x' })).not.toThrow();
  });

  test('nor does one that rejects', async () => {
    const unheard: unknown[] = [];
    const hear = (e: unknown): void => void unheard.push(e);
    process.on('unhandledRejection', hear);
    transportOf({ onEvent: () => Promise.reject(new Error('mine')) }).onEvent({ kind: 'x' });
    await settled();
    await settled();
    process.off('unhandledRejection', hear);
    expect(unheard).toEqual([]);
  });
});

describe('request', () => {
  test('sends what it is told, and brings back status, headers and text', async () => {
    const { base, log } = await faker((request, response) => {
      let body = '';
      request.on('data', (part) => (body += part));
      request.on('end', () => response.writeHead(418, { 'x-a': 'b' }).end(`${request.headers['x-h']} ${body} ü`));
    });
    const sent = { method: 'POST' as const, path: '/p?q=1', headers: { 'x-h': 'h' }, body: 'ö' };
    const got = await request(transportOf({ base: `${base}/sub` }), sent);
    expect(log).toEqual(['POST /sub/p?q=1']);
    expect(got).toMatchObject({ status: 418, text: 'h ö ü' });
    expect(got.headers.get('x-a')).toBe('b');
  });

  test.each([301, 302, 303, 307, 308])('fault 43: a redirect %i to another host is not followed', async (status) => {
    const other = await faker((_request, response) => response.end('stolen'));
    const first = await faker((request, response) =>
      response.writeHead(status, { location: `${other.base}${request.url}` }).end(),
    );
    const t = transportOf({ base: first.base });
    const got = await request(t, { path: '/r/x/say-signed/did/sig/1/text' });
    expect(failureOf(got, 'write', t.clock)).toMatchObject({
      code: 'http',
      status,
      message: `the service answered with a redirect to ${other.base}, which is not followed`,
    });
    expect(other.log).toEqual([]);
  });

  test('a redirect as a browser shows it, status 0, is told as one', () => {
    expect(failureOf(reply(0), 'read', systemClock).message).toMatch(/redirect/);
  });

  test('fault 57: headers that never come end with the deadline, on our clock', async () => {
    const { clock } = world();
    const work = request(over(clock, never), { path: '/', timeoutMs: 4000, waitMs: 1000 });
    const caught = work.catch((e) => e);
    await clock.advance(4999);
    expect(await Promise.race([caught, 'waits'])).toBe('waits');
    await clock.advance(1);
    expect(await caught).toMatchObject({ code: 'unavailable', message: /within 5000 ms/ });
    expect(clock.sleepers).toBe(0);
  });

  test('fault 57: a body that stalls half way ends with the same deadline, though the fetch hears no signal', async () => {
    const clock = new VirtualClock();
    const stalled = new Response(new ReadableStream({ start: (c) => c.enqueue(new TextEncoder().encode('{"la')) }));
    const work = request(
      over(clock, async () => stalled),
      { path: '/', timeoutMs: 300 },
    ).catch((e) => e);
    await clock.advance(300);
    expect(await work).toBeInstanceOf(Unavailable);
  });

  test('fault 57: on a real socket, abort ends headers and body alike and closes the connection', async () => {
    let closed = 0;
    const { base, log } = await faker((request, response) => {
      response.on('close', () => closed++);
      if (request.url === '/body') response.writeHead(200, { 'content-length': '100' }).write('half');
    });
    for (const path of ['/headers', '/body']) {
      const user = new AbortController();
      const before = log.length;
      const work = request(transportOf({ base }), { path, signal: user.signal });
      await until(() => log.length > before);
      const reason = new Error('enough');
      user.abort(reason);
      await expect(work).rejects.toBe(reason);
      expect(getEventListeners(user.signal, 'abort')).toEqual([]);
    }
    await until(() => closed === 2);
  });

  test('a body that is cut short is no answer', async () => {
    const { base } = await faker((_request, response) => {
      response.writeHead(200, { 'content-length': '100' }).write('half');
      setImmediate(() => response.destroy());
    });
    const e = await request(transportOf({ base }), { path: '/' }).catch((e) => e);
    expect(e).toBeInstanceOf(Unavailable);
    expect(neverSent(e)).toBe(false);
  });

  test('no more than the cap is read: announced, chunked, and unpacked from a small gzip', async () => {
    const big = 'x'.repeat(5000);
    const { base } = await faker((request, response) => {
      if (request.url === '/announced') response.end(big);
      else if (request.url === '/chunked') {
        response.write(big);
        response.end(big);
      } else response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(big));
    });
    const t = transportOf({ base });
    for (const path of ['/announced', '/chunked', '/gzip']) {
      await expect(request(t, { path, maxBytes: 4999 })).rejects.toThrow(/4999/);
    }
    expect((await request(t, { path: '/gzip', maxBytes: 5000 })).text).toBe(big);
  });

  test('characters that are cut by chunks come whole, and bytes that are none become U+FFFD', async () => {
    const bytes = new TextEncoder().encode('a😀ü');
    const stream = (): ReadableStream =>
      new ReadableStream({
        start(c) {
          for (const byte of bytes) c.enqueue(Uint8Array.of(byte));
          c.enqueue(Uint8Array.of(0xff));
          c.close();
        },
      });
    const t = over(new VirtualClock(), async () => new Response(stream()));
    expect((await request(t, { path: '/' })).text).toBe('a😀ü\ufffd');
  });

  test('a signal that is aborted sends nothing; a fetch that throws at once is an answer like any other', async () => {
    let sent = 0;
    const t = over(new VirtualClock(), () => {
      sent++;
      throw broken();
    });
    await expect(request(t, { path: '/', signal: AbortSignal.abort('now') })).rejects.toBe('now');
    // Also when it aborts while the request waits for its turn.
    const user = new AbortController();
    const turn = request(t, { path: '/', bucket: 'read', signal: user.signal });
    user.abort('then');
    await expect(turn).rejects.toBe('then');
    expect(sent).toBe(0);
    await expect(request(t, { path: '/' })).rejects.toMatchObject({
      code: 'unavailable',
      cause: { cause: { code: 'ECONNRESET' } },
    });
  });

  test('nothing is left behind: no timer, no listener, no rejection that nobody hears', async () => {
    const unheard: unknown[] = [];
    const hear = (e: unknown): void => void unheard.push(e);
    process.on('unhandledRejection', hear);
    const clock = new VirtualClock();
    const user = new AbortController();
    let fail!: (e: unknown) => void;
    const deaf = over(clock, () => new Promise((_, reject) => (fail = reject)));
    const work = request(deaf, { path: '/', signal: user.signal }).catch((e) => e);
    await settled();
    user.abort('over');
    expect(await work).toBe('over');
    fail(broken());
    await request(
      over(clock, async () => new Response('')),
      { path: '/', signal: new AbortController().signal },
    );
    await settled();
    await settled();
    process.off('unhandledRejection', hear);
    expect(unheard).toEqual([]);
    expect(clock.sleepers).toBe(0);
    expect(getEventListeners(user.signal, 'abort')).toEqual([]);
  });
});

describe('a simple clock, as tests pass', () => {
  let now = Date.UTC(2026, 0, 1);
  const jumps = async (ms: number): Promise<void> => void (now += ms);
  test.each<[string, () => number, (ms: number) => Promise<void>]>([
    ['stands still', () => now, async () => {}],
    ['jumps', () => now, jumps],
    ['ignores the signal', Date.now, (ms) => new Promise((resolve) => setTimeout(resolve, Math.min(ms, 20)))],
  ])('that %s does not cut off what is answered at once', async (_name, at, sleep) => {
    const { service, o } = world();
    const slept: number[] = [];
    const nap = (ms: number): Promise<void> => {
      slept.push(ms);
      return sleep(ms);
    };
    const clock = { now: at, sleep: nap };
    const own = { ...o, fetch: service.fetch, clock };
    expect(await say('p-x', 'ann', 'one', own)).toEqual({ seq: 1 });
    expect(await signer(1).say('p-x', 'two', own)).toMatchObject({ seq: 2 });
    await setNote('ns', 'key', 'value', own);
    let refused = 1;
    const fetch = faulty(service.fetch, async () =>
      refused-- > 0 ? new Response('429', { status: 429, headers: { 'retry-after': '2' } }) : undefined,
    );
    expect((await read('p-x', { ...own, fetch })).lastSeq).toBe(2);
    expect(slept.some((ms) => ms >= 2000 && ms < 2200)).toBe(true);
  });

  test('that wakes whoever has left wakes nobody', async () => {
    let wake!: () => void;
    const clock = { now: () => 0, sleep: () => new Promise<void>((resolve) => (wake = resolve)) };
    const run = vi.fn();
    const cancel = later(clock, 5, run);
    cancel();
    wake();
    await settled();
    expect(run).not.toHaveBeenCalled();
    later(clock, 5, run);
    wake();
    await settled();
    expect(run).toHaveBeenCalledOnce();
  });
});

describe('neverSent', () => {
  test('a port where nobody listens', async () => {
    const { base, server } = await faker(() => {});
    await new Promise((resolve) => server.close(resolve));
    const e = await request(transportOf({ base }), { path: '/' }).catch((e) => e);
    expect(e).toBeInstanceOf(Unavailable);
    expect(neverSent(e)).toBe(true);
    expect(e.message).toBe(`${base} could not be reached: connection refused (ECONNREFUSED)`);
  });

  test('of what failed the code is told, and no word of the platform', async () => {
    const told = async (cause: unknown, base = 'http://a.test') => {
      const fetch = () => Promise.reject(cause);
      return request(transportOf({ base, fetch }), { path: '/' }).catch((e) => e.message);
    };
    expect(await told(broken('ENOTFOUND'))).toBe('http://a.test could not be reached: no such host (ENOTFOUND)');
    expect(await told(broken('ECONNRESET'))).toBe(
      'http://a.test could not be reached, or the connection broke: ECONNRESET',
    );
    const denied = Object.assign(new Error('Requires net access to "a.test:80"'), { name: 'NotCapable' });
    for (const [cause, why] of [
      [denied, 'this program has no permission (in Deno: --allow-net)'],
      [new TypeError('fetch failed', { cause: new Error('bad port') }), 'fetch refuses this port'],
    ] as const) {
      expect([await told(cause), neverSent(cause)]).toEqual([`http://a.test could not be reached: ${why}`, true]);
    }
    for (const cause of [broken('no code'), broken('constructor '), new Error('x'), 'x']) {
      expect(await told(cause)).toBe('http://a.test could not be reached, or the connection broke');
    }
    expect(await told(broken('EPIPE'), 'http://me:secret@a.test')).not.toContain('secret');
  });

  test('an address with a password is refused by the platform at once, and is not quoted', async () => {
    const error = await request(transportOf({ base: 'http://me:secret@127.0.0.1' }), { path: '/' }).catch((e) => e);
    expect(error).toBeInstanceOf(BadName);
    expect(error.message).toMatch(/^fetch takes no address with a name or password.*"http:\/\/127.0.0.1"$/);
    expect(`${inspect(error, { depth: 9 })}${error.stack}`).not.toMatch(/secret/);
    // Some take it.
    const fetch = async () => new Response('yes');
    const { text } = await request(transportOf({ base: 'http://me:secret@127.0.0.1', fetch }), { path: '/' });
    expect(text).toBe('yes');
  });

  test('a fetch that returns no Response is named, at once', async () => {
    for (const wrong of [undefined, null, {}, 'text', { status: 200, text: async () => 'x' }]) {
      const fetch = (async () => wrong) as any;
      const error = { code: 'bad_option', message: expect.stringContaining('the option fetch') };
      await expect(request(transportOf({ base: 'http://a.test', fetch }), { path: '/' })).rejects.toMatchObject(error);
    }
  });

  test('what was never sent costs no turn of the budget', async () => {
    for (const [code, left] of [
      ['ECONNREFUSED', 1],
      ['ECONNRESET', 0.9],
    ] as const) {
      const clock = new VirtualClock(0);
      const t = transportOf({ base: 'http://a.test', fetch: () => Promise.reject(broken(code)), clock });
      budgetOf(t, 'write').learn(10);
      await request(t, { path: '/', bucket: 'write' }).catch(() => {});
      expect(budgetOf(t, 'write').left).toBe(left);
    }
  });

  test('a connection that breaks may have carried it; a cause without end is not followed for ever', () => {
    expect(neverSent(new Unavailable('x', broken('ECONNRESET')))).toBe(false);
    expect(neverSent(new Unavailable('x', broken('ENOTFOUND')))).toBe(true);
    // As Deno says it.
    const deno = (why: string): TypeError =>
      new TypeError('fetch failed', { cause: new Error(`error sending request for url (http://a.test/): ${why}`) });
    expect(neverSent(deno('client error (Connect): tcp connect error: Connection refused (os error 111)'))).toBe(true);
    expect(neverSent(deno('client error (SendRequest): connection closed before message completed'))).toBe(false);
    expect(neverSent(new TypeError('Fetch failed: Requests to port 9 are blocked'))).toBe(true);
    const ring: { cause?: unknown } = {};
    ring.cause = ring;
    expect(neverSent(ring)).toBe(false);
    for (const e of [undefined, null, 'ECONNREFUSED', []]) expect(neverSent(e)).toBe(false);
  });
});

describe('Retry-After', () => {
  const clock = new VirtualClock(Date.UTC(2026, 0, 1));
  test.each<[string, Record<string, string>, string, number | undefined]>([
    ['seconds', { 'retry-after': '2' }, '', 2000],
    ['a fraction', { 'retry-after': ' 1.5 ' }, '', 1500],
    ['a date', { 'retry-after': 'Thu, 01 Jan 2026 00:00:07 GMT' }, '', 7000],
    ['a date in the past', { 'retry-after': 'Wed, 31 Dec 2025 00:00:00 GMT' }, '', 0],
    ['the header before the body', { 'retry-after': '2' }, 'retry after: 9s', 2000],
    ['the body', {}, '429 rate limited: …\nretry after: 9s\n', 9000],
    ['the body when the header is nonsense', { 'retry-after': 'soon' }, 'retry after: 9s', 9000],
    ['the body in the midst of a line is none', {}, 'so retry after: 9s', undefined],
    ['nothing', {}, '', undefined],
    ['nonsense', { 'retry-after': 'soon' }, '', undefined],
    ['a negative number', { 'retry-after': '-5' }, '', undefined],
    ['an age', { 'retry-after': '99999999999999999999' }, '', 86_400_000],
  ])('fault 55: %s', (_name, headers, text, ms) => {
    const got = retryAfterMs(reply(429, text, headers), clock);
    // What Date.parse makes of a bare negative number is its own affair; a wait is never negative.
    if (headers['retry-after'] === '-5') expect(got === undefined || got >= 0).toBe(true);
    else expect(got).toBe(ms);
  });

  test('fault 55: 429 and 503 carry it; without it a 429 waits a second', () => {
    expect(failureOf(reply(429, '', { 'retry-after': '2' }), 'write', clock)).toMatchObject({
      code: 'rate_limited',
      bucket: 'write',
      retryAfterMs: 2000,
    });
    expect(failureOf(reply(429), 'read', clock)).toMatchObject({ bucket: 'read', retryAfterMs: 1000 });
    const busy = failureOf(reply(503, 'Service Unavailable', { 'retry-after': '4' }), 'read', clock);
    expect(busy).toMatchObject({ code: 'unavailable', retryAfterMs: 4000, cause: { status: 503 } });
    expect(backoffMs(0, busy, half)).toBe(4000 + 75);
    expect(failureOf(reply(502), 'read', clock)).toMatchObject({ code: 'unavailable', retryAfterMs: undefined });
  });

  test('other statuses are an HttpError, its body bounded', () => {
    const e = failureOf(reply(404, 'n'.repeat(10_000)), 'read', clock) as HttpError;
    expect(e).toBeInstanceOf(HttpError);
    expect([e.status, e.body.length]).toEqual([404, 4096]);
    expect(e.message.length).toBeLessThan(400);
  });
});

describe('retrying', () => {
  test('fault 55: the pause is what was asked for, else grows to ten seconds, with jitter', () => {
    expect([0, 1, 2, 20].map((n) => backoffMs(n, undefined, half))).toEqual([75, 150, 300, 7500]);
    expect(backoffMs(0, new RateLimited('read', 2000), half)).toBe(2075);
    expect(backoffMs(20, new RateLimited('read', 2000), half)).toBe(2750);
    const low = backoffMs(0, undefined, () => Uint8Array.of(0, 0, 0, 0));
    const high = backoffMs(0, undefined, () => Uint8Array.of(255, 255, 255, 255));
    expect([low, high]).toEqual([50, expect.closeTo(100, 1)]);
  });

  test('what is transient', () => {
    const yes = [new Unavailable('x'), new RateLimited('read', 1), new HttpError(408, '')];
    const no = [new HttpError(404, ''), new TypeError('x'), undefined, { code: 'unavailable' }];
    // What the platform itself refuses, it refuses the next time too.
    const denied = Object.assign(new Error('Requires net access to "a.test:80"'), { name: 'NotCapable' });
    for (const cause of [denied, new TypeError('fetch failed', { cause: new Error('bad port') })])
      no.push(new Unavailable('x', cause));
    expect(yes.map(isTransient)).toEqual(yes.map(() => true));
    expect(no.map(isTransient)).toEqual(no.map(() => false));
  });

  test('a port that fetch blocks ends a read, a write and a loop at once, as what it is', async () => {
    const base = 'http://127.0.0.1:1';
    for (const work of [
      read('lobby', { base }),
      say('lobby', 'ann', 'x', { base }),
      signer(1).say('lobby', 'x', { base }),
      follow('lobby', { base }).next(),
      setNote('ns', 'key', 'x', { base }),
    ]) {
      await expect(work).rejects.toMatchObject({
        code: 'unavailable',
        message: expect.stringMatching(/fetch refuses/),
      });
    }
  });

  test('what a server says about ports and connections is only its word', () => {
    for (const said of ['Requests to port 1 are blocked', 'x (y): client error (Connect): z', 'bad port']) {
      const e = new Unavailable('the service answered 503', new HttpError(503, said, 'http', said));
      expect([isTransient(e), neverSent(e)]).toEqual([true, false]);
    }
  });

  const failing = (clock: VirtualClock, cause: unknown) => {
    const times: number[] = [];
    const t = over(clock, never);
    const attempt = async (): Promise<never> => {
      times.push(clock.now());
      throw cause;
    };
    return { t, times, attempt };
  };

  test('ends at the deadline with what the last attempt threw', async () => {
    const clock = new VirtualClock();
    const cause = new Unavailable('x');
    const { t, times, attempt } = failing(clock, cause);
    const begun = clock.now();
    await expect(run(clock, retrying(t, begun + 10_000, attempt))).rejects.toBe(cause);
    expect(times.length).toBeGreaterThan(4);
    expect(times.at(-1)! - begun).toBeLessThanOrEqual(10_000);
  });

  test('a clock that is set back an hour does not prolong it by an hour', async () => {
    const clock = new VirtualClock();
    let offset = 0;
    let slept = 0;
    const moved = {
      now: () => clock.now() + offset,
      sleep: (ms: number, signal?: AbortSignal) => {
        slept += ms;
        return clock.sleep(ms, signal);
      },
    };
    const t = transportOf({ base: 'http://local.test', fetch: never as typeof fetch, clock: moved, random: half });
    let n = 0;
    const attempt = async (): Promise<never> => {
      if (++n === 2) offset = -3_600_000;
      throw new Unavailable('x');
    };
    await expect(run(clock, retrying(t, moved.now() + 20_000, attempt))).rejects.toThrow(Unavailable);
    expect(slept).toBeLessThanOrEqual(20_000);
  });

  test('what is not transient is thrown at once', async () => {
    const clock = new VirtualClock();
    const { t, times, attempt } = failing(clock, new HttpError(400, ''));
    await expect(retrying(t, clock.now() + 10_000, attempt)).rejects.toThrow(HttpError);
    expect(times).toHaveLength(1);
  });

  test('fault 55: abort ends the pause, with its reason and without a timer', async () => {
    const clock = new VirtualClock();
    const { t, attempt } = failing(clock, new RateLimited('read', 5000));
    const user = new AbortController();
    const work = retrying(t, clock.now() + 10_000, attempt, user.signal).catch((e) => e);
    await settled();
    // Even a reason that looks like something to wait out.
    const reason = new Unavailable('mine');
    user.abort(reason);
    expect(await work).toBe(reason);
    expect(clock.sleepers).toBe(0);
  });

  test('events: throttled after a 429, retry after anything else', async () => {
    const { t, events } = world();
    const attempts = new Attempts(t, t.clock.now() + 1, undefined);
    expect(await attempts.again(new Unavailable('x'))).toBe(false);
    expect(events).toEqual([]);
    const w = world();
    const more = new Attempts(w.t, w.clock.now() + 60_000, undefined);
    await w.run(more.again(new RateLimited('read', 10), { room: 'x' }));
    await w.run(more.again(new Unavailable('x')));
    expect(w.events).toMatchObject([{ kind: 'throttled', room: 'x' }, { kind: 'retry' }]);
  });
});

describe('poll', () => {
  /** Polls `step` for `ms`; the times at which it was asked. */
  async function asked(
    ms: number,
    step: (clock: VirtualClock, n: number, signal: AbortSignal) => Promise<Polled<number>>,
  ): Promise<number[]> {
    const clock = new VirtualClock();
    const times: number[] = [];
    const stop = new AbortController();
    const begun = clock.now();
    const t = over(clock, never);
    const loop = (async () => {
      const polled = poll(
        t,
        (waitMs) => {
          expect(waitMs).toBe(10_000);
          times.push(clock.now() - begun);
          return step(clock, times.length, stop.signal);
        },
        { signal: stop.signal },
      );
      for await (const _ of polled);
    })().catch((e) => e);
    await clock.advance(ms);
    stop.abort('over');
    expect(await loop).toBe('over');
    expect(clock.sleepers).toBe(0);
    return times;
  }

  test('fault 53: a server that does not hold is not asked more than every two seconds in the end', async () => {
    const times = await asked(60_000, async () => ({ held: false }));
    expect(times.length).toBeLessThan(36);
    expect(times.length).toBeGreaterThan(25);
    const late = times.slice(-5);
    expect(late[4]! - late[0]!).toBeCloseTo(8000, -2);
  });

  test('fault 53: nor one that says after a while that it did not hold', async () => {
    const times = await asked(60_000, async (clock, _n, signal) => {
      await clock.sleep(1000, signal);
      return { held: false };
    });
    expect(times.length).toBeLessThan(25);
  });

  test('fault 53: nor one that answers at once and says nothing of it', async () => {
    expect((await asked(60_000, async () => ({}))).length).toBeLessThan(36);
  });

  test('fault 53: nor one whose clock or ours goes backwards', async () => {
    const clock = new VirtualClock();
    let now = 1e12;
    const back = { now: () => (now -= 1000), sleep: (ms: number, signal?: AbortSignal) => clock.sleep(ms, signal) };
    const t = transportOf({ base: 'http://local.test', fetch: never as typeof fetch, clock: back });
    let n = 0;
    const stop = new AbortController();
    const loop = (async () => {
      for await (const _ of poll(t, async () => (n++ < 0 ? { value: 1 } : {}), { signal: stop.signal }));
    })().catch(() => {});
    await clock.advance(60_000);
    stop.abort();
    await loop;
    expect(n).toBeLessThan(36);
  });

  test('a server that holds is asked again at once', async () => {
    const times = await asked(60_000, async (clock, _n, signal) => {
      await clock.sleep(10_000, signal);
      return { held: true };
    });
    expect(times).toEqual([0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]);
  });

  test('what comes is handed over at once, and the floor begins anew', async () => {
    const times = await asked(3000, async (_clock, n) => (n % 3 === 0 ? { value: n } : {}));
    expect(times.slice(0, 6)).toEqual([0, 250, 625, 625, 875, 1250]);
  });

  test('trouble is waited out, whatever Retry-After says, and what is no trouble ends it', async () => {
    const times = await asked(200_000, async () => {
      throw new RateLimited('read', 86_400_000);
    });
    expect(times).toEqual([0, 60_000, 120_000, 180_000]);
    const t = over(new VirtualClock(), never);
    const refused = poll(t, async () => {
      throw new HttpError(403, '');
    });
    await expect(refused.next()).rejects.toThrow(HttpError);
  });
});

describe('orAbort', () => {
  test('ends with the signal, and leaves the work alone', async () => {
    const user = new AbortController();
    let done!: (v: number) => void;
    const work = new Promise<number>((resolve) => (done = resolve));
    const waiting = orAbort(work, user.signal);
    user.abort('x');
    await expect(waiting).rejects.toBe('x');
    done(1);
    expect(await work).toBe(1);
    expect(await orAbort(work, new AbortController().signal)).toBe(1);
    await expect(orAbort(work, user.signal)).rejects.toBe('x');
    expect(getEventListeners(user.signal, 'abort')).toEqual([]);
  });

  test('a rejection comes through, also one after the abort, which nobody hears', async () => {
    const user = new AbortController();
    const e = new Error('x');
    await expect(orAbort(Promise.reject(e), user.signal)).rejects.toBe(e);
    user.abort('y');
    await expect(orAbort(Promise.reject(e), user.signal)).rejects.toBe('y');
    await settled();
  });
});

test('an address is shown without a name and a password, however long it is', () => {
  for (const [base, shown] of [
    ['https://ann:secret@example.org/a@b', 'https://example.org/a@b'],
    ['https://ann@example.org', 'https://example.org'],
    ['ann:secret@example.org', 'ann:example.org'],
    ['https://example.org/a@b', 'https://example.org/a@b'],
  ] as const)
    expect(shownBase(base)).toBe(shown);
  const long = 'a'.repeat(2_000_000);
  expect(shownBase(long)).toBe(long);
});

describe('onAbort', () => {
  test('one listener for all who wait, none for nobody; each is called once', () => {
    const { signal, abort } = (() => {
      const c = new AbortController();
      return { signal: c.signal, abort: () => c.abort() };
    })();
    const calls: string[] = [];
    const run = (): void => void calls.push('twice');
    const forgets = [onAbort(signal, () => calls.push('a')), onAbort(signal, run), onAbort(signal, run)];
    expect(getEventListeners(signal, 'abort')).toHaveLength(1);
    for (const forget of [...forgets, ...forgets]) forget();
    expect(getEventListeners(signal, 'abort')).toEqual([]);
    const first = onAbort(signal, () => calls.push('first'));
    onAbort(signal, () => {
      calls.push('second');
      third();
    });
    const third = onAbort(signal, () => calls.push('third'));
    first();
    abort();
    // Who is forgotten while the others are called, may be called all the same; nobody is called twice.
    expect(calls.filter((c) => c !== 'third')).toEqual(['second']);
    onAbort(signal, () => calls.push('late'))();
    onAbort(undefined, run)();
    expect(calls).not.toContain('late');
  });

  test('what waited for a signal that aborted is let go, though the signal is not', async () => {
    const user = new AbortController();
    const waits = (): WeakRef<object> => {
      const calls: string[] = [];
      onAbort(user.signal, () => void calls.push('called'));
      return new WeakRef(calls);
    };
    const ref = waits();
    expect(await isGone(ref)).toBe(false);
    user.abort();
    expect(await isGone(ref)).toBe(true);
    expect(user.signal.aborted).toBe(true);
  });

  test('two signals make one, which is not made anew each time it is asked for', () => {
    const [a, b, c] = [1, 2, 3].map(() => new AbortController());
    const both = eitherOf(a!.signal, b!.signal)!;
    expect(eitherOf(a!.signal, b!.signal)).toBe(both);
    const other = eitherOf(a!.signal, c!.signal)!;
    expect(other).not.toBe(both);
    expect([eitherOf(a!.signal, undefined), eitherOf(undefined, a!.signal)]).toEqual([a!.signal, a!.signal]);
    c!.abort('c');
    expect([both.aborted, other.aborted, other.reason]).toEqual([false, true, 'c']);
    a!.abort('a');
    expect([both.aborted, both.reason]).toEqual([true, 'a']);
    expect(eitherOf(a!.signal, b!.signal)!.aborted).toBe(true);
  });
});

describe('the clock of the machine', () => {
  test('sleeps, and wakes with the signal, leaving no listener', async () => {
    const user = new AbortController();
    await systemClock.sleep(-1, user.signal);
    expect(getEventListeners(user.signal, 'abort')).toEqual([]);
    // Longer than a timer can be: it must not fire at once.
    const long = systemClock.sleep(Number.POSITIVE_INFINITY, user.signal);
    expect(await Promise.race([long, new Promise((r) => setTimeout(r, 20, 'waits'))])).toBe('waits');
    user.abort('x');
    await expect(long).rejects.toBe('x');
    await expect(systemClock.sleep(1, user.signal)).rejects.toBe('x');
    expect(getEventListeners(user.signal, 'abort')).toEqual([]);
  });

  test('runs something later, unless it is called off, as any clock does', async () => {
    for (const clock of [systemClock, new VirtualClock()]) {
      const ran: string[] = [];
      later(clock, 1, () => ran.push('called off'))();
      const endless = later(clock, Number.POSITIVE_INFINITY, () => ran.push('endless'));
      const late = new Promise<void>((resolve) => {
        later(clock, 2, () => {
          ran.push('late');
          resolve();
        });
      });
      if (clock instanceof VirtualClock) await clock.advance(10);
      await late;
      endless();
      expect(ran).toEqual(['late']);
    }
  });
});

describe('budgets', () => {
  test('what is learned counts what was spent before; turns come in the order of asking', async () => {
    const clock = new VirtualClock();
    const budget = new Budget(clock, 'read');
    await budget.take();
    await budget.take();
    budget.learn(60);
    expect(budget.left).toBeCloseTo(58 / 60);
    for (let i = 0; i < 58; i++) await budget.take();
    const order: number[] = [];
    const turns = [0, 1, 2].map((n) => budget.take().then(() => order.push(n)));
    expect(budget.delayMs()).toBe(4000);
    await clock.advance(3000);
    await Promise.all(turns);
    expect(order).toEqual([0, 1, 2]);
  });

  test('a turn that would come too late is refused at once and takes nothing; an aborted one is given back', async () => {
    const clock = new VirtualClock();
    const budget = new Budget(clock, 'write');
    budget.learn(60, 0);
    await expect(budget.take(undefined, clock.now() + 999)).rejects.toMatchObject({
      bucket: 'write',
      retryAfterMs: 1000,
    });
    const user = new AbortController();
    const turn = budget.take(user.signal).catch((e) => e);
    user.abort('x');
    expect(await turn).toBe('x');
    expect(budget.delayMs()).toBe(1000);
  });

  test('nonsense is not learned', () => {
    const budget = new Budget(new VirtualClock(), 'read');
    for (const n of [Number.NaN, 0, -1]) budget.learn(n);
    expect(budget.perMinute).toBeUndefined();
    expect(budget.left).toBe(1);
  });

  test('a refusal blocks for as long as it says, no longer than a minute, and not longer for a clock set back', () => {
    const clock = new VirtualClock();
    let offset = 0;
    const budget = new Budget({ now: () => clock.now() + offset, sleep: clock.sleep }, 'read');
    budget.refused(2000);
    expect([budget.delayMs(), budget.left]).toEqual([2000, 0]);
    offset = -3_600_000;
    expect(budget.delayMs()).toBeLessThanOrEqual(2000);
    budget.refused(86_400_000);
    expect(budget.delayMs()).toBe(60_000);
  });

  test('one account for all users of a transport', () => {
    const { o } = world();
    expect(budgetOf(transportOf(o), 'read')).toBe(budgetOf(transportOf({ ...o }), 'read'));
    expect(budgetOf(transportOf(o), 'read')).not.toBe(budgetOf(transportOf(o), 'write'));
  });

  test('a request waits for its turn, and is refused by our own account when that is too late', async () => {
    const { t, run: go, clock, service } = world();
    budgetOf(t, 'read').learn(60, 0);
    const begun = clock.now();
    await go(request(t, { path: '/r/x', bucket: 'read' }));
    expect(clock.now() - begun).toBeGreaterThanOrEqual(1000);
    const { requests } = service.stats;
    await expect(request(t, { path: '/r/x', bucket: 'read', deadline: clock.now() })).rejects.toThrow(RateLimited);
    expect(service.stats.requests).toBe(requests);
  });

  test('a turn that can be had at once is never refused, however late it is', async () => {
    const { t, run: go, clock } = world();
    budgetOf(t, 'read').learn(60);
    const late = request(t, { path: '/r/x', bucket: 'read', deadline: clock.now() - 1 });
    expect(await go(late)).toMatchObject({ status: 200 });
  });
});

test('every error of a request is one of the library’s, whatever fetch throws', async () => {
  for (const thrown of [broken(), new Error('x'), 'text', undefined, null, { code: 1 }]) {
    const { o } = world();
    const t = transportOf({ ...o, fetch: faulty(o.fetch, () => Promise.reject(thrown)) });
    const e = await request(t, { path: '/' }).catch((e) => e);
    expect(TechnocoreError.is(e)).toBe(true);
    expect(e.code).toBe('unavailable');
  }
});
