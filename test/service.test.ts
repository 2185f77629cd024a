import { describe, expect, test } from 'vitest';
import { TechnocoreError } from '../src/errors.ts';
import { budgetOf, neverSent, transportOf } from '../src/http.ts';
import { getNote, setNote } from '../src/notes.ts';
import { say } from '../src/rooms.ts';
import { ask, learnLimits, uncached, type Write, writeRequest } from '../src/service.ts';
import { broken, faker, PROFILES, signer, world } from './support.ts';
import { settled } from './virtual-clock.ts';

/** The error for an answer. */
async function refusal(status: number, body: string, headers: Record<string, string> = {}, bucket?: 'write') {
  const { o } = world();
  const fetch = async (): Promise<Response> => new Response(body, { status, headers });
  const t = transportOf({ ...o, fetch: fetch as typeof globalThis.fetch });
  return ask(t, { path: '/', ...(bucket && { bucket }) }).then(
    () => undefined,
    (e) => e,
  );
}

describe('refusals', () => {
  test.each<[string, number, string, object]>([
    ['a name', 400, "400 bad name 'Über'\n", { code: 'bad_name' }],
    ['a DID', 400, '400 bad did:key\n', { code: 'bad_name' }],
    ['nothing', 400, '400 empty text\n', { code: 'empty_text' }],
    [
      'too long',
      400,
      '400 text too long: 4097 characters, and the limit is 4096\n',
      { code: 'frame_too_long', chars: 4097, limit: 4096 },
    ],
    ['nonce syntax', 400, '400 nonce must be 1-19 digits\n', { code: 'bad_nonce' }],
    [
      'a stale nonce',
      400,
      '400 nonce 5 is not greater than 1788872638667723579, the last one this key used in /r/x\n',
      { code: 'stale_nonce', last: '1788872638667723579' },
    ],
    [
      'a stale ownership nonce',
      403,
      '403 nonce 5 was already used for /r/d-x (last 9)\n',
      { code: 'stale_nonce', last: '9' },
    ],
    ['a stale nonce, cut off', 400, '400 nonce 5 is not great', { code: 'unavailable' }],
    ['the same, cut off early', 400, '400 non', { code: 'unavailable' }],
    ['the same, cut off at once', 400, '', { code: 'unavailable' }],
    ['fault 38: rooms', 400, '400 room limit reached (5120 rooms)\n', { code: 'capacity_reached' }],
    [
      'fault 38: room storage',
      400,
      '400 room storage is full (5119 MiB of a 5120 MiB budget)\n',
      { code: 'capacity_reached' },
    ],
    ['fault 38: notes', 400, '400 note limit reached (40960)\n', { code: 'capacity_reached' }],
    ['the HTTP layer', 400, 'Invalid HTTP request received.', { code: 'http', status: 400 }],
    ['any other 400', 400, '400 not an object\n', { code: 'http', status: 400 }],
    ['a signature', 403, '403 signature does not verify for did\nx|1|y\n', { code: 'forbidden', status: 403 }],
    ['404', 404, '404 no route matched\n', { code: 'http', status: 404 }],
    ['fault 36: a text too often', 422, '422 duplicate\n', { code: 'duplicate_text', status: 422 }],
    ['413', 413, '413 too large\n', { code: 'http', status: 413 }],
    ['an upload too slow', 408, '408 timeout\n', { code: 'http', status: 408 }],
    [
      'fault 37: new rooms',
      429,
      '429 room-creation budget spent\nretry after: 4320s\n',
      { code: 'room_budget', retryAfterMs: 4_320_000 },
    ],
    [
      'fault 37: new rooms without a time',
      429,
      '429 room-creation budget spent\n',
      { code: 'room_budget', retryAfterMs: 4_320_000 },
    ],
    [
      'a bucket',
      429,
      '429 rate limited: the read budget for your IP (120/min)\nretry after: 2s\n',
      { code: 'rate_limited', bucket: 'read', retryAfterMs: 2000 },
    ],
    ['503', 503, 'Service Unavailable', { code: 'unavailable' }],
    ['a page of somebody else', 200 + 4, '', { code: 'http', status: 204 }],
  ])('%s', async (_name, status, body, expected) => {
    const e = await refusal(status, status === 204 ? (null as unknown as string) : body);
    expect(TechnocoreError.is(e)).toBe(true);
    expect(e).toMatchObject(expected);
  });

  test('a stranger’s text in a body is no token: only its beginning counts', async () => {
    const e = await refusal(
      403,
      '403 signature does not verify for did\n400 nonce 1 is not greater than 9, the last\n',
    );
    expect(e).toMatchObject({ code: 'forbidden' });
  });

  test('a refusal counts for the bucket that was charged', async () => {
    expect(await refusal(429, '429 rate limited\n', { 'retry-after': '3' }, 'write')).toMatchObject({
      bucket: 'write',
      retryAfterMs: 3000,
    });
  });

  const conflict = (value: string, length: number): string =>
    `409 note n/k changed since you read it\nread it again\ncurrent value follows (${length} chars):\n${value}\n`;

  test('fault 65: the value of a conflict is what follows its announcement, exactly that long', async () => {
    expect(await refusal(409, conflict('v', 1))).toMatchObject({ code: 'conflict', actual: 'v' });
    expect(await refusal(409, conflict('current value follows (1 chars):', 32))).toMatchObject({
      actual: 'current value follows (1 chars):',
    });
    expect(await refusal(409, conflict('😀é', 2))).toMatchObject({ actual: '😀é' });
    expect((await refusal(409, conflict('value', 4))).actual).toBeUndefined();
    expect((await refusal(409, '409 note n/k changed since you read it\nthere is none\n')).actual).toBeUndefined();
  });

  for (const profile of PROFILES) {
    test(`fault 65: as the service says it, ${profile}`, async () => {
      const { o } = world(profile);
      const value = 'a  "b" \u{1f600} current value follows (3 chars):';
      await setNote('n', 'k', value, o);
      await expect(setNote('n', 'k', 'x', { ...o, ifAbsent: true })).rejects.toMatchObject({ actual: value });
      await expect(setNote('n', 'k', 'x', { ...o, if: 'y' })).rejects.toMatchObject({ actual: value });
      const none = await setNote('n', 'other', 'x', { ...o, if: 'y' }).catch((e) => e);
      expect(none).toMatchObject({ code: 'conflict', actual: undefined });
    });
  }
});

describe('lanes', () => {
  const write = (text: string, path = `/r/x/say/a/${encodeURIComponent(text)}`): Write => ({
    path,
    text,
    postPath: '/r/x',
    body: { from: 'a', text },
  });
  const lanes = (lane: 'auto' | 'get' | 'post') => transportOf({ base: 'http://h', lane });

  test('GET where it fits, POST where asked for', () => {
    expect(writeRequest(lanes('auto'), write('hi'))).toEqual({ path: '/r/x/say/a/hi', bucket: 'write' });
    expect(writeRequest(lanes('post'), write('hi'))).toEqual({
      method: 'POST',
      path: '/r/x',
      body: '{"from":"a","text":"hi"}',
      bucket: 'write',
    });
  });

  test('fault 29: by the bytes of the URL', () => {
    const base = 'http://h'.length;
    const longest = write('x', `/${'x'.repeat(16_000 - base - 1)}`);
    const longer = write('x', `/${'x'.repeat(16_000 - base)}`);
    expect(writeRequest(lanes('auto'), longest).method).toBeUndefined();
    expect(writeRequest(lanes('auto'), longer).method).toBe('POST');
    expect(() => writeRequest(lanes('get'), longer)).toThrow(expect.objectContaining({ code: 'post_only' }));
  });

  test('fault 30: never a segment that a URL parser removes', () => {
    for (const text of ['.', '..']) {
      expect(writeRequest(lanes('auto'), write(text)).method).toBe('POST');
      expect(() => writeRequest(lanes('get'), write(text))).toThrow(expect.objectContaining({ code: 'post_only' }));
    }
    expect(writeRequest(lanes('auto'), write('...')).method).toBeUndefined();
  });

  test('fault 29, 30: on a real socket what arrives is what was said', async () => {
    const { service } = world('0.7');
    const { url, close } = await service.listen();
    const o = { base: url };
    const texts = ['.', '..', '%2e%2e', '漢'.repeat(4096), '😀'.repeat(4096)];
    for (const text of texts) await say('x', 'a', text, o);
    for (const text of ['.', '..', 'あ'.repeat(8192)]) {
      await setNote('n', 'k', text, o);
      expect(await getNote('n', 'k', o)).toBe(text);
    }
    const { messages } = await (await fetch(`${url}/r/x?format=json`)).json();
    expect(messages.map((m: { text: string }) => m.text)).toEqual(texts);
    await expect(say('x', 'a', '漢'.repeat(4096), { ...o, lane: 'get' })).rejects.toMatchObject({ code: 'post_only' });
    await expect(setNote('n', 'k', '..', { ...o, lane: 'get' })).rejects.toMatchObject({ code: 'post_only' });
    await close();
  });
});

describe('limits', () => {
  test('are learned from the manifest once an hour, in the background', async () => {
    const { t, clock, service } = world('modern', { readsPerMinute: 50, writesPerMinute: 7 });
    learnLimits(t);
    learnLimits(t);
    await settled();
    await settled();
    expect([budgetOf(t, 'read').perMinute, budgetOf(t, 'write').perMinute]).toEqual([50, 7]);
    expect(service.stats.requests).toBe(1);
    await clock.advance(3_600_000);
    learnLimits(t);
    await settled();
    expect(service.stats.requests).toBe(2);
  });

  test.each([
    ['no manifest', 404, 'x'],
    ['no JSON', 200, '<html>'],
    ['no object', 200, 'null'],
    ['no limits', 200, '{}'],
    ['limits that are none', 200, '{"limits":[]}'],
    ['numbers that are none', 200, '{"limits":{"reads_per_minute_per_ip":"many","writes_per_minute_per_ip":-1}}'],
  ])('%s: none are known, and nothing breaks', async (_name, status, body) => {
    const { base } = await faker((_request, response) => response.writeHead(status).end(body));
    const t = transportOf({ base });
    learnLimits(t);
    await new Promise((resolve) => setTimeout(resolve, 50));
    expect([budgetOf(t, 'read').perMinute, budgetOf(t, 'write').perMinute]).toEqual([undefined, undefined]);
  });
});

test('a service that cannot be asked is taken to have the limits of the public one, until it can', async () => {
  for (const [body, known] of [
    [JSON.stringify({ limits: { reads_per_minute_per_ip: 600, writes_per_minute_per_ip: 300 } }), [600, 300]],
    ['{}', [undefined, undefined]],
  ] as const) {
    const { o, clock } = world();
    let status = 503;
    const t = transportOf({ ...o, fetch: (async () => new Response(body, { status })) as typeof fetch });
    const limits = () => [budgetOf(t, 'read').perMinute, budgetOf(t, 'write').perMinute];
    await learnLimits(t);
    expect(limits()).toEqual([120, 30]);
    status = 200;
    await clock.advance(15_000);
    learnLimits(t);
    await settled();
    await settled();
    expect(limits()).toEqual(known);
  }
});

test('who meets no service is told where one may be; a broken connection, or an abort, tells nothing of that', async () => {
  const { o } = world();
  const fails = (cause: unknown, signal?: AbortSignal) =>
    ask(transportOf({ ...o, fetch: () => Promise.reject(cause) }), { path: '/', ...(signal && { signal }) }).catch(
      (e) => e,
    );
  const refused = await fails(broken('ECONNREFUSED'));
  expect(refused).toMatchObject({
    code: 'unavailable',
    message: expect.stringMatching(/refused.*TECHNOCORE_URL.*local/),
  });
  expect(neverSent(refused)).toBe(true);
  expect((await fails(broken())).message).not.toContain('TECHNOCORE_URL');
  const reason = broken('ECONNREFUSED');
  expect(await fails(reason, AbortSignal.abort(reason))).toBe(reason);
});

test('no two reads have one URL, in one process or two', () => {
  const a = world().t;
  const b = world().t;
  const seen = new Set(Array.from({ length: 100 }, (_, i) => uncached(i % 2 ? a : b)));
  expect(seen.size).toBe(100);
});

test('what the service verified is in the error, for those who sign by hand', async () => {
  const { o } = world();
  const { did, sig } = signer(1).signMessage('x', '1', 'other');
  const e = await ask(transportOf(o), { path: `/r/x/say-signed/${did}/${sig}/1/text` }).catch((e) => e);
  expect(e.code).toBe('forbidden');
  expect(e.body.trimEnd().split('\n').at(-1)).toBe('x|1|text');
});
