import { createConnection } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { toBase64, toBase64url } from '../src/bytes.ts';
import { randomBytes } from '../src/crypto.ts';
import { type Clock, systemClock } from '../src/http.ts';
import { createLocalService, type Listening, type LocalService } from '../src/local.ts';
import { type Limits, limitsOf } from '../src/local-limits.ts';
import { RelayService } from '../src/local-relay.ts';
import type { Incoming } from '../src/local-wire.ts';
import vectors from './vectors/parley-relay-http.json' with { type: 'json' };

interface Step {
  note?: string;
  method?: string;
  path?: string;
  headers?: Record<string, string>;
  body?: string | null;
  start?: string;
  finish?: string;
  status?: number;
  response_headers?: Record<string, string>;
  response_body?: string;
  response_body_is?: string;
  takes_ms?: { at_least: number; at_most: number };
}
interface Answer {
  status: number;
  headers: Record<string, string>;
  body: string;
  ms: number;
}

// Sent to the byte as recorded: a URL parser would tidy the path.
function raw(url: string, method: string, path: string, headers: Record<string, string>, body: string | null) {
  const { hostname, port } = new URL(url);
  const lines = [`${method} ${path} HTTP/1.1`, `Host: ${hostname}:${port}`, 'Connection: close'];
  for (const [name, value] of Object.entries(headers)) lines.push(`${name}: ${value}`);
  if (body !== null) lines.push(`Content-Length: ${Buffer.byteLength(body)}`);
  const start = performance.now();
  return new Promise<Answer>((resolve, reject) => {
    const socket = createConnection(Number(port), hostname, () =>
      socket.write(`${lines.join('\r\n')}\r\n\r\n${body ?? ''}`),
    );
    const parts: Buffer[] = [];
    socket.on('data', (part) => parts.push(part));
    socket.on('error', reject);
    socket.on('close', () => {
      const text = Buffer.concat(parts).toString();
      const [head = '', ...rest] = text.split('\r\n\r\n');
      const [first = '', ...fields] = head.split('\r\n');
      const answered = Object.fromEntries(
        fields.map((f) => [f.slice(0, f.indexOf(':')).toLowerCase(), f.replace(/^[^:]*: */, '')]),
      );
      resolve({
        status: Number(first.split(' ')[1]),
        headers: answered,
        body: rest.join('\r\n\r\n'),
        ms: performance.now() - start,
      });
    });
  });
}

// PARLEY_RELAY points these at a real relay, which may have seen them before: channels get other names there.
const real = process.env['PARLEY_RELAY'];
let server: Listening;
beforeAll(async () => {
  server = real === undefined ? await createLocalService().listen() : { url: real, close: async () => {} };
});
afterAll(() => server.close());

const names = new Map<string, string>();
const renamed = (path: string): string =>
  path.replace(/(?<=^\/c\/)[\w-]{22}(?=[/?]|$)/, (name) => {
    if (real === undefined || name.startsWith('AAAA')) return name;
    if (!names.has(name)) names.set(name, toBase64url(randomBytes(16)));
    return names.get(name)!;
  });

// Of these the rooms on the same origin are in charge.
const SHARED = new Set(real === undefined ? ['/', '/healthz'] : []);
let exchanges = 0;

describe(`recorded exchanges${real === undefined ? '' : `, ${real}`}`, () => {
  for (const scenario of vectors.scenarios) {
    test(scenario.name, async () => {
      const tokens = new Map<string, string>();
      const running = new Map<string, Promise<Answer>>();
      const alone = standalone();
      const filled = (text: string): string => text.replace(/\$\{(\w+)\}/g, (_, name) => tokens.get(name)!);
      for (const step of scenario.steps as Step[]) {
        let answer: Answer;
        if (step.finish !== undefined) answer = await running.get(step.finish)!;
        else {
          exchanges++;
          const headers = Object.fromEntries(Object.entries(step.headers!).map(([k, v]) => [k, filled(v)]));
          const path = renamed(filled(step.path!));
          const sent = SHARED.has(path)
            ? alone(step.method!, path, headers, step.body ?? '').then((a) => ({ ...a, ms: 0 }))
            : raw(server.url, step.method!, path, headers, step.body ?? null);
          if (step.start !== undefined) {
            running.set(step.start, sent);
            await systemClock.sleep(250);
            continue;
          }
          answer = await sent;
        }
        const what = `${step.method ?? ''} ${step.path ?? step.finish} ${step.note ?? ''}`;
        expect(answer.status, what).toBe(step.status);
        for (const name of [
          'content-type',
          'allow',
          'location',
          'x-content-type-options',
          'access-control-allow-origin',
        ]) {
          expect(answer.headers[name], `${what}: ${name}`).toBe(step.response_headers![name]);
        }
        const pattern = step.response_body!.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&');
        const shape = pattern.replace(/\\\$\\\{(\w+)\\\}/g, '(?<$1>[\\w-]{43})');
        if (step.response_body_is === undefined) {
          const match = new RegExp(`^${shape}$`).exec(answer.body);
          expect(match, `${what}: ${answer.body}`).not.toBeNull();
          for (const [name, token] of Object.entries(match!.groups ?? {})) tokens.set(name, token);
        }
        // An upper bound would be a bound on this machine.
        if (step.takes_ms) expect(answer.ms, what).toBeGreaterThanOrEqual(step.takes_ms.at_least - 30);
      }
    });
  }

  test('were 126', () => expect(exchanges).toBe(126));
});

// --- what the reference lacks -----------------------------------------------------------------------------------

const time = { now: 1_000_000 };
const clock: Clock = {
  now: () => time.now,
  sleep: (_ms, signal) => new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason))),
};

type Ask = (
  method: string,
  path: string,
  headers?: Record<string, string>,
  body?: string,
) => Promise<Omit<Answer, 'ms'>>;

function standalone(limits: Partial<Limits> = {}): Ask & { stats: LocalService['stats'] } {
  const stats = { ...createLocalService().stats };
  const relay = new RelayService(clock, limitsOf('modern', limits), stats);
  const ask: Ask = async (method, path, headers = {}, body = '') => {
    const lower = Object.fromEntries(Object.entries(headers).map(([k, v]) => [k.toLowerCase(), v]));
    const incoming: Incoming = {
      method,
      target: path,
      address: 'test',
      origin: 'http://local',
      signal: undefined,
      header: (name) => lower[name],
      body: (limit) => (Buffer.byteLength(body) > limit ? undefined : new TextEncoder().encode(body)),
    };
    return relay.handle(incoming);
  };
  return Object.assign(ask, { stats });
}

async function pair(ask: Ask): Promise<{ path: string; a: Record<string, string>; b: Record<string, string> }> {
  const path = `/c/${toBase64url(randomBytes(16))}`;
  const bearer = (body: string): Record<string, string> => ({ authorization: `Bearer ${JSON.parse(body).token}` });
  const a = bearer((await ask('POST', path, {}, '{"expect":"t"}')).body);
  const b = bearer((await ask('POST', `${path}/join`, {}, '{"token":"t"}')).body);
  return { path, a, b };
}

const frame = (seq: number | bigint, payload = 'AQ=='): string => `{"seq":${seq},"type":2,"payload":"${payload}"}`;
const seqs = (body: string): number[] => JSON.parse(body).frames.map((f: { seq: number }) => f.seq);

describe('bodies as the reference reads them', () => {
  const cases: [name: string, body: string, answered: string | number][] = [
    [
      'names in any case, the last counts',
      '{"SEQ":1,"Seq":2,"seq":3,"TYPE":7,"Payload":"AQ=="}',
      '{"seq":3,"type":7,"payload":"AQ=="}',
    ],
    [
      'what follows the first value',
      '{"seq":4,"type":2,"payload":"AQ=="} {"seq":',
      '{"seq":4,"type":2,"payload":"AQ=="}',
    ],
    ['braces in texts', '{"x":"}{\\"","seq":5,"type":2,"payload":"AQ=="}}', '{"seq":5,"type":2,"payload":"AQ=="}'],
    ['64 bits', frame(2n ** 64n - 1n), `{"seq":${2n ** 64n - 1n},"type":2,"payload":"AQ=="}`],
    ['one more', frame(2n ** 64n), 400],
    ['line ends and spare bits', '{"seq":6,"type":2,"payload":"A\\r\\nR=\\n="}', '{"seq":6,"type":2,"payload":"AQ=="}'],
    ['an array of bytes', '{"seq":7,"type":2,"payload":[1,255]}', '{"seq":7,"type":2,"payload":"Af8="}'],
    ['an array of more', '{"seq":7,"type":2,"payload":[1,256]}', 400],
    ['no payload', '{"seq":8,"type":2}', '{"seq":8,"type":2,"payload":null}'],
    ['an empty payload', '{"seq":8,"type":2,"payload":""}', '{"seq":8,"type":2,"payload":""}'],
    ['a quoted seq', '{"seq":"9","type":2}', 400],
    ['an exponent', '{"seq":1e2,"type":2}', 400],
    ['a list', '[]', 400],
    ['deep nesting', '['.repeat(100_000), 400],
  ];
  for (const [name, body, answered] of cases) {
    test(name, async () => {
      const ask = standalone();
      const { path, a, b } = await pair(ask);
      const { status } = await ask('POST', `${path}/frames`, a, body);
      const got = (await ask('GET', `${path}/frames?after=0`, b)).body;
      if (typeof answered === 'number') expect(status).toBe(answered);
      else expect([status, got]).toEqual([204, `{"frames":[${answered}]}\n`]);
    });
  }

  test('seq 0 is taken and never read', async () => {
    const ask = standalone();
    const { path, a, b } = await pair(ask);
    expect((await ask('POST', `${path}/frames`, a, '{}')).status).toBe(204);
    expect(seqs((await ask('GET', `${path}/frames`, b)).body)).toEqual([]);
  });

  test('one channel goes by sixteen names', async () => {
    const ask = standalone();
    expect((await ask('POST', '/c/AAAAAAAAAAAAAAAAAAAAAA', {}, '{}')).status).toBe(200);
    expect((await ask('POST', '/c/AAAAAAAAAAAAAAAAAAAAAP', {}, '{}')).status).toBe(409);
    expect((await ask('POST', '/c/%41AAAAAAAAAAAAAAAAAAAAA', {}, '{}')).status).toBe(409);
  });
});

describe('limits', () => {
  test('a body and a frame have bounds', async () => {
    const ask = standalone({ relayBodyBytes: 200, relayFrameBytes: 30 });
    const { path, a, b } = await pair(ask);
    expect((await ask('POST', `${path}/frames`, a, frame(1, 'A'.repeat(200)))).status).toBe(413);
    expect((await ask('POST', `${path}/frames`, a, frame(1, toBase64(new Uint8Array(31))))).status).toBe(413);
    expect((await ask('POST', `${path}/frames`, a, frame(1, toBase64(new Uint8Array(30))))).status).toBe(204);
    expect(seqs((await ask('GET', `${path}/frames`, b)).body)).toEqual([1]);
  });

  test('an inbox is full until its reader has seen some of it', async () => {
    const ask = standalone({ relayInboxBytes: 120 });
    const { path, a, b } = await pair(ask);
    for (const seq of [1, 2, 3]) expect((await ask('POST', `${path}/frames`, a, frame(seq))).status).toBe(204);
    expect((await ask('POST', `${path}/frames`, a, frame(4))).status).toBe(503);
    // Reading consumes nothing, and what was seen may still be read again until its room is needed.
    await ask('GET', `${path}/frames?after=2`, b);
    expect(seqs((await ask('GET', `${path}/frames?after=0`, b)).body)).toEqual([1, 2, 3]);
    expect((await ask('POST', `${path}/frames`, a, frame(4))).status).toBe(204);
    expect(seqs((await ask('GET', `${path}/frames?after=0`, b)).body)).toEqual([3, 4]);
  });

  test('an endless conversation fits', async () => {
    const ask = standalone({ relayInboxBytes: 4000, relayBytesTotal: 5000 });
    const { path, a, b } = await pair(ask);
    for (let seq = 1; seq <= 1000; seq++) {
      expect((await ask('POST', `${path}/frames`, a, frame(seq))).status).toBe(204);
      expect(seqs((await ask('GET', `${path}/frames?after=${seq - 1}`, b)).body)).toEqual([seq]);
    }
  });

  test('all inboxes together have a bound, which an idle channel gives back', async () => {
    const ask = standalone({ relayBytesTotal: 100, relayIdleMs: 1000, relaySweepMs: 10 });
    const [first, second] = [await pair(ask), await pair(ask)];
    for (const seq of [1, 2]) await ask('POST', `${first.path}/frames`, first.a, frame(seq));
    expect((await ask('POST', `${second.path}/frames`, second.a, frame(1))).status).toBe(503);
    time.now += 900;
    await ask('GET', `${second.path}/members`, second.a);
    time.now += 900;
    expect((await ask('POST', `${second.path}/frames`, second.a, frame(1))).status).toBe(204);
    expect(ask.stats.channels).toBe(1);
  });

  test('so many channels, and an idle one is gone by time alone', async () => {
    const ask = standalone({ relayChannels: 1, relayIdleMs: 1000, relaySweepMs: 1e9 });
    const { path, a } = await pair(ask);
    expect((await ask('POST', `/c/${toBase64url(randomBytes(16))}`, {}, '{}')).status).toBe(503);
    time.now += 1001;
    // Not swept yet, and gone all the same.
    const gone = await ask('GET', `${path}/members`, a);
    expect([gone.status, gone.body]).toEqual([404, 'no such channel\n']);
    time.now += 1e9;
    expect((await ask('POST', `/c/${toBase64url(randomBytes(16))}`, {}, '{}')).status).toBe(200);
  });

  test('so many held reads; one more is answered at once', async () => {
    const ask = standalone({ relayWaiters: 1 });
    const { path, a, b } = await pair(ask);
    const held = ask('GET', `${path}/frames?wait=30000`, a);
    await Promise.resolve();
    expect(seqs((await ask('GET', `${path}/frames?wait=30000`, a)).body)).toEqual([]);
    await ask('POST', `${path}/frames`, b, frame(1));
    expect(seqs((await held).body)).toEqual([1]);
    expect([ask.stats.parked, ask.stats.timers]).toEqual([0, 0]);
  });

  test('a reader that hangs up leaves nothing behind', async () => {
    const local = createLocalService();
    const { fetch } = local;
    const base = 'http://local/c/AAAAAAAAAAAAAAAAAAAAAA';
    const { token } = await (await fetch(base, { method: 'POST', body: '{}' })).json();
    const stop = new AbortController();
    const headers = { authorization: `Bearer ${token}` };
    const read = fetch(`${base}/frames?wait=30000`, { headers, signal: stop.signal });
    await systemClock.sleep(0);
    expect(local.stats.parked).toBe(1);
    stop.abort();
    await expect(read).rejects.toThrow();
    await systemClock.sleep(0);
    expect([local.stats.parked, local.stats.timers]).toEqual([0, 0]);
  });
});

test('junk of all kinds gets an answer', async () => {
  const ask = standalone();
  const { path, a } = await pair(ask);
  for (const body of [
    '',
    '{',
    '"',
    'null',
    '\0',
    '{"seq":{}}',
    '{"payload":{}}',
    '{"type":"x"}',
    '{"__proto__":1}',
    '\ufeff{}',
  ]) {
    const { status } = await ask('POST', `${path}/frames`, a, body);
    expect([204, 400]).toContain(status);
  }
  for (const target of ['/c/%', '/c/%ff/frames', '/c//frames', '/c/AAAAAAAAAAAAAAAAAAAAAA/frames?%', '/c/x?y', '/c']) {
    expect((await ask('GET', target)).status).toBeGreaterThanOrEqual(400);
  }
});

test('a body whose string does not end is refused in linear time', async () => {
  const ask = standalone();
  const { path, a } = await pair(ask);
  // Quadratic, each would run for hours and hit the time limit.
  for (const body of [`{"x":"${'\\"'.repeat(2e6)}`, `{"x":"${'\\"'.repeat(2e6)}\\`, `{${'"'.repeat(4e6 - 1)}`]) {
    expect((await ask('POST', `${path}/frames`, a, body)).status).toBe(400);
  }
});
