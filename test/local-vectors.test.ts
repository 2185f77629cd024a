import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { codePoints } from '../src/frames.ts';
import { createLocalService, type Limits, type Listening, type LocalService } from '../src/local.ts';
import { VirtualClock } from './virtual-clock.ts';

// Answers recorded from the real service, release 0.7.0. The head of the file says how a step is to be read.
const vectors = JSON.parse(readFileSync(new URL('vectors/technocore-http.json', import.meta.url), 'utf8')) as {
  scenarios: Scenario[];
};

interface Scenario {
  id: string;
  title: string;
  config: Record<string, number>;
  steps: Step[];
}

interface Expected {
  status: number;
  content_type: string | null;
  headers?: Record<string, string>;
  json?: unknown;
  json_facts?: Record<string, unknown>;
  body?: string;
}

interface Step {
  method: string;
  path: string;
  headers?: Record<string, string>;
  body?: string;
  body_template?: unknown;
  body_base64?: string;
  repeat?: number;
  response?: Expected;
  response_each?: Expected;
  raw_request_base64?: string;
  sleep_s?: number;
  admin?: { age_room?: string; age_note?: string; seconds: number };
  parallel?: (Step & { after_s: number; elapsed_s: { min: number; max: number } })[];
}

interface Received {
  status: number;
  headers: Record<string, string>;
  body: string;
}

const LIMITS: Record<string, [keyof Limits, number]> = {
  rate_read: ['readsPerMinute', 1],
  rate_write: ['writesPerMinute', 1],
  new_rooms_per_day: ['newRoomsPerDay', 1],
  max_wait_seconds: ['longPollMs', 1000],
  max_rooms: ['rooms', 1],
  max_notes_total: ['notes', 1],
  max_notes_per_ns: ['notesPerNamespace', 1],
  ephemeral_ttl_seconds: ['ephemeralTtlMs', 1000],
  room_ring_bytes: ['roomRingBytes', 1],
};

function limitsOf(config: Record<string, number>): Partial<Limits> {
  const limits: Partial<Limits> = {
    readsPerMinute: 1e6,
    writesPerMinute: 1e6,
    newRoomsPerDay: 1e6,
    roomsCacheMs: 0,
    wakeStepMs: 500,
  };
  for (const [name, value] of Object.entries(config)) {
    const limit = LIMITS[name];
    if (!limit) throw new Error(`the vectors have a knob that this test does not know: ${name}`);
    limits[limit[0]] = value * limit[1];
  }
  return limits;
}

/** Sends bytes as they are, since URL parsers rewrite paths, and reads one answer. */
function exchange(url: string, bytes: Buffer, isHead: boolean): Promise<Received> {
  return new Promise((resolve, reject) => {
    const { hostname, port } = new URL(url);
    const socket = connect(Number(port), hostname);
    let received = Buffer.alloc(0);
    const complete = (isEnd: boolean): void => {
      const end = received.indexOf('\r\n\r\n');
      if (end < 0) {
        if (isEnd) reject(new Error('no answer'));
        return;
      }
      const [first = '', ...lines] = received.subarray(0, end).toString('latin1').split('\r\n');
      const headers: Record<string, string> = {};
      for (const line of lines) {
        const colon = line.indexOf(':');
        headers[line.slice(0, colon).toLowerCase()] = line.slice(colon + 1).trim();
      }
      const length = isHead ? 0 : Number(headers['content-length'] ?? 0);
      const body = received.subarray(end + 4);
      if (body.length < length && !isEnd) return;
      expect(body.length).toBe(length);
      socket.destroy();
      resolve({ status: Number(first.split(' ')[1]), headers, body: body.toString() });
    };
    socket.on('data', (part) => {
      received = Buffer.concat([received, part]);
      complete(false);
    });
    socket.on('end', () => complete(true));
    socket.on('error', reject);
    socket.write(bytes);
  });
}

function template(value: unknown, i: number): unknown {
  if (typeof value === 'string') return value.replaceAll('{i}', String(i));
  if (typeof value !== 'object' || value === null) return value;
  const { $repeat: repeat, $concat: parts } = value as { $repeat?: [string, number]; $concat?: unknown[] };
  if (repeat) return repeat[0].repeat(repeat[1]);
  if (parts) return parts.map((part) => template(part, i)).join('');
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, template(member, i)]));
}

function requestOf(step: Step, url: string, i = 0): Buffer {
  if (step.raw_request_base64 !== undefined) return Buffer.from(step.raw_request_base64, 'base64');
  const body =
    step.body_base64 !== undefined
      ? Buffer.from(step.body_base64, 'base64')
      : step.body_template !== undefined
        ? Buffer.from(JSON.stringify(template(step.body_template, i)))
        : step.body !== undefined
          ? Buffer.from(step.body)
          : undefined;
  const head = [`${step.method} ${step.path.replaceAll('{i}', String(i))} HTTP/1.1`, `Host: ${new URL(url).host}`];
  for (const [name, value] of Object.entries(step.headers ?? {})) head.push(`${name}: ${value}`);
  if (body) head.push(`Content-Length: ${body.length}`);
  return Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), body ?? Buffer.alloc(0)]);
}

const PLACEHOLDERS: Record<string, string> = {
  TS: String.raw`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`,
  N: String.raw`\d+`,
  AGE: String.raw`\d+[smhd]`,
  BANNER: '!! UNTRUSTED[^\\n]*',
  LISTING_NOTE: '!! UNTRUSTED[^\\n]*',
  PROSE: String.raw`[\s\S]*`,
};

function pattern(text: string, url: string): RegExp {
  const parts = text.split(/<<([A-Z_]+)>>/);
  return new RegExp(
    `^${parts
      .map((part, i) =>
        i % 2 === 1 && part !== 'BASE'
          ? PLACEHOLDERS[part]
          : (i % 2 === 1 ? url : part).replace(/[\\^$.*+?()[\]{}|]/g, '\\$&'),
      )
      .join('')}$`,
  );
}

/** Turns an expected value into a matcher: placeholders match what they stand for. */
function matcher(value: unknown, url: string): unknown {
  if (value === '<<N>>') return expect.toSatisfy((n: unknown) => Number.isInteger(n) && (n as number) >= 0);
  if (typeof value === 'string') {
    return /<<[A-Z_]+>>/.test(value) ? expect.stringMatching(pattern(value, url)) : value;
  }
  if (Array.isArray(value)) return value.map((member) => matcher(member, url));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, matcher(member, url)]));
}

/** JSON, with integers beyond 2^53 as `<<BIGINT:n>>`. */
function parse(text: string): any {
  return JSON.parse(
    text.replace(/"(?:[^"\\]|\\.)*"|-?\d{16,}/g, (token) => (token[0] === '"' ? token : `"<<BIGINT:${token}>>"`)),
  );
}

type Named = { room: string };
const byRoom = (a: Named, b: Named): number => (a.room < b.room ? -1 : 1);

/** The value that the name of a fact stands for. */
function fact(json: any, name: string, expected: unknown): unknown {
  if (name === 'keys') return Object.keys(json).sort();
  if (name === 'paths') return Object.keys(json.paths).sort();
  if (name === 'room_keys') return Object.keys(json.rooms[0]).sort();
  if (name === 'rooms' && Array.isArray(expected)) {
    const rooms = [...json.rooms].sort(byRoom);
    if (typeof expected[0] === 'string') return rooms.map((room: Named) => room.room);
    return rooms.map((room, i) => Object.fromEntries(Object.keys(expected[i] ?? {}).map((key) => [key, room[key]])));
  }
  let value = json;
  for (const part of name.split('.')) {
    if (part === 'code_points') value = codePoints(value);
    else if (part === 'last') value = value.at(-1);
    else value = value[part] ?? (value === json ? json.rooms?.find((room: Named) => room.room === part) : undefined);
  }
  return value ?? null;
}

function check(expected: Expected, received: Received, url: string): void {
  expect(received.status).toBe(expected.status);
  expect(received.headers['content-type'] ?? null).toBe(expected.content_type);
  for (const [name, value] of Object.entries(expected.headers ?? {})) {
    expect(received.headers[name], name).toMatch(pattern(value, url));
  }
  if (expected.body !== undefined) expect(received.body).toMatch(pattern(expected.body, url));
  if (expected.json !== undefined) expect(parse(received.body)).toEqual(matcher(expected.json, url));
  for (const [name, value] of Object.entries(expected.json_facts ?? {})) {
    expect(fact(parse(received.body), name, value), name).toEqual(matcher(value, url));
  }
}

/** Sends each request when its time has come. Time stands still while one is under way that is not parked. */
async function inParallel(
  requests: NonNullable<Step['parallel']>,
  { stats }: LocalService,
  clock: VirtualClock,
  url: string,
): Promise<void> {
  const start = clock.now();
  let answered = 0;
  let failure: unknown;
  const quiet = async (sent: number): Promise<void> => {
    while (answered + stats.parked < sent && failure === undefined) await new Promise((r) => setTimeout(r, 1));
    if (failure !== undefined) throw failure;
  };
  const sorted = [...requests].sort((a, b) => a.after_s - b.after_s);
  for (const [i, { after_s, elapsed_s, ...request }] of sorted.entries()) {
    await clock.advance(start + after_s * 1000 - clock.now());
    exchange(url, requestOf(request, url), request.method === 'HEAD')
      .then((received) => {
        const elapsed = (clock.now() - start) / 1000 - after_s;
        expect(elapsed).toBeGreaterThanOrEqual(elapsed_s.min);
        expect(elapsed).toBeLessThanOrEqual(elapsed_s.max);
        check(request.response!, received, url);
        answered++;
      })
      .catch((e) => {
        failure = e;
      });
    await quiet(i + 1);
  }
  while (answered < sorted.length) {
    await clock.advance(50);
    await quiet(sorted.length);
  }
}

describe('release 0.7.0, as recorded', () => {
  let listening: Listening | undefined;
  afterEach(() => listening?.close());

  it('has all of its 30 scenarios and 351 exchanges', () => {
    const steps = vectors.scenarios.flatMap((s) => s.steps.flatMap((step) => step.parallel ?? step));
    expect(vectors.scenarios.length).toBe(30);
    expect(steps.filter((step) => step.response ?? step.response_each).length).toBe(351);
  });

  it.each(vectors.scenarios)('$id: $title', async ({ config, steps }) => {
    const clock = new VirtualClock();
    const service = createLocalService({ profile: '0.7', clock, limits: limitsOf(config) });
    listening = await service.listen();
    const { url } = listening;

    for (const step of steps) {
      if (step.sleep_s !== undefined) {
        await clock.advance(step.sleep_s * 1000);
      } else if (step.admin) {
        service.age((step.admin.age_room ?? step.admin.age_note)!, step.admin.seconds * 1000);
      } else if (step.parallel) {
        await inParallel(step.parallel, service, clock, url);
      } else {
        for (let i = 0; i < (step.repeat ?? 1); i++) {
          const received = await exchange(url, requestOf(step, url, i), step.method === 'HEAD');
          check((step.response_each ?? step.response)!, received, url);
        }
      }
    }
    expect(service.stats.parked).toBe(0);
    expect(clock.sleepers).toBe(0);
  });
});
