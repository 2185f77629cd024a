import { getEventListeners } from 'node:events';
import { connect } from 'node:net';
import { afterEach, describe, expect, it } from 'vitest';
import { toBase64url, utf8 } from '../src/bytes.ts';
import { ed25519 } from '../src/crypto.ts';
import { createLocalService, type Limits, type Listening, type LocalService } from '../src/local.ts';
import { didFromPublicKey, verify } from '../src/names.ts';
import { settled, VirtualClock } from './virtual-clock.ts';

const DAY = 86_400_000;
const FREE: Partial<Limits> = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9 };

interface Answer {
  status: number;
  headers: Headers;
  text: string;
  json: any;
}

interface World {
  clock: VirtualClock;
  service: LocalService;
  get(path: string, init?: RequestInit): Promise<Answer>;
  post(path: string, body: unknown, init?: RequestInit): Promise<Answer>;
}

async function answerOf(response: Promise<Response>): Promise<Answer> {
  const { status, headers } = await response;
  const text = await (await response).text();
  const isJson = /^application\/(linkset\+)?json/.test(headers.get('content-type') ?? '');
  return { status, headers, text, json: isJson && text !== '' ? JSON.parse(text) : undefined };
}

function world(limits: Partial<Limits> = FREE, profile: 'modern' | '0.7' = 'modern'): World {
  const clock = new VirtualClock();
  const service = createLocalService({ clock, limits, profile });
  const get: World['get'] = (path, init) => answerOf(service.fetch(`http://local${path}`, init));
  const post: World['post'] = (path, body, init) =>
    get(path, { method: 'POST', body: typeof body === 'string' ? body : JSON.stringify(body), ...init });
  return { clock, service, get, post };
}

function key(n: number) {
  const { publicKey, sign } = ed25519(new Uint8Array(32).fill(n));
  const did = didFromPublicKey(publicKey);
  const signed = (canonical: string): string => toBase64url(sign(utf8(canonical)));
  return {
    did,
    say: (room: string, nonce: string | number, text: string): string =>
      `/r/${room}/say-signed/${did}/${signed(`${room}|${nonce}|${text}`)}/${nonce}/${encodeURIComponent(text)}`,
    set: (ns: string, name: string, nonce: string | number, value: string): string =>
      `/kv/${ns}/${name}/set-signed/${did}/${signed(`${ns}|${name}|${nonce}|${value}`)}/${nonce}/${encodeURIComponent(value)}`,
  };
}
const [alice, bob] = [key(1), key(2)];

describe('the newest release', () => {
  it('keeps the signature in the record, exactly', async () => {
    const { get } = world();
    const nonce = '9007199254740993';
    const { json, text } = await get(`${alice.say('mb-box', nonce, 'hé|llo')}?format=json`);
    const { sig } = json.posted;
    expect(text).toContain(`"nonce":${nonce},"sig":"${sig}"}`);
    expect(verify(alice.did, sig, `mb-box|${nonce}|hé|llo`)).toBe(true);
    expect(Object.keys(json)).toEqual(['room', 'count', 'first_seq', 'last_seq', 'generation', 'messages', 'posted']);
    expect(json.messages).toEqual([json.posted]);
  });

  it('writes JSON compact, with one newline', async () => {
    const { get } = world();
    const { text } = await get('/r/x?format=json');
    expect(text).toBe('{"room":"x","count":0,"first_seq":null,"last_seq":0,"generation":0,"messages":[]}\n');
  });

  it('exports a room line by line as stored', async () => {
    const { get } = world();
    expect(await get('/r/x/export')).toMatchObject({ status: 200, text: '' });
    for (let i = 0; i < 250; i++) await get(`/r/x/say/ann/${i}%20日本`);
    await get(alice.say('x', 7, 'signed'));
    const { headers, text, status } = await get('/r/x/export');
    expect(status).toBe(200);
    expect(headers.get('content-type')).toBe('application/x-ndjson; charset=utf-8');
    expect(headers.get('x-room-generation')).toBe('1');
    const { json } = await get('/r/x?format=json&limit=200');
    const lines = text.trimEnd().split('\n');
    expect(text.endsWith('\n')).toBe(true);
    expect(lines.map((line) => JSON.parse(line).seq)).toEqual(Array.from({ length: 251 }, (_, i) => i + 1));
    expect(lines.slice(-200)).toEqual(json.messages.map((m: unknown) => JSON.stringify(m)));
    expect(await get('/r/X/export')).toMatchObject({ status: 400 });
  });

  it('goes on counting after a reap, under another generation', async () => {
    const { get, clock, service } = world();
    for (let i = 0; i < 5; i++) await get('/r/talk/say/ann/hi');
    await clock.advance(7 * DAY + 1000);
    await get('/kv/n/k/set/a%20write%20runs%20the%20reaper');
    expect(service.stats.rooms).toBe(0);
    // A cursor beyond the end falls back to it; without one the room reads as one that never was.
    expect((await get('/r/talk?since=99&format=json')).json).toMatchObject({ last_seq: 5, generation: 1, count: 0 });
    expect((await get('/r/talk?format=json')).json).toMatchObject({ last_seq: 0, generation: 1 });
    const { json } = await get('/r/talk/say/ann/again?format=json');
    expect(json).toMatchObject({ first_seq: 6, last_seq: 6, generation: 2, count: 1 });
    expect((await get('/r/talk?since=5&format=json')).json.count).toBe(1);
  });

  it('release 0.7 begins again at 1 instead, and echoes any cursor', async () => {
    const { get, clock } = world(FREE, '0.7');
    for (let i = 0; i < 5; i++) await get('/r/talk/say/ann/hi');
    await clock.advance(7 * DAY + 1000);
    expect((await get('/r/talk/say/ann/again?format=json')).json).toMatchObject({ last_seq: 1, count: 1 });
    const { text } = await get('/r/talk?since=123456789012345678901234&format=json');
    expect(text).toContain('"last_seq": 123456789012345678901234,');
  });

  it('forgets where reaped rooms were after as long again', async () => {
    const { get, clock } = world();
    for (let i = 0; i < 5; i++) await get('/r/talk/say/ann/hi');
    for (let i = 0; i < 2; i++) {
      await clock.advance(7 * DAY + 1000);
      await get('/kv/n/k/set/x');
    }
    await clock.advance(400_000);
    await get('/kv/n/k/set/x');
    expect((await get('/r/talk/say/ann/new?format=json')).json).toMatchObject({ last_seq: 1, generation: 1 });
  });

  it('reaps a room with a single message after a day, one with two after a week', async () => {
    const { get, clock, service } = world();
    await get('/r/p-one/say/ann/hi');
    await get('/r/p-two/say/ann/hi');
    await get('/r/p-two/say/ann/hi');
    await clock.advance(DAY);
    await get('/kv/n/k/set/x');
    expect(service.stats.rooms).toBe(2);
    await clock.advance(1000);
    await get('/kv/n/k/set/x');
    // At most every five minutes.
    expect(service.stats.rooms).toBe(2);
    await clock.advance(300_000);
    await get('/r/p-one');
    expect(service.stats.rooms).toBe(2);
    await get('/kv/n/k/set/x');
    expect(service.stats.rooms).toBe(1);
    expect((await get('/r/p-two?format=json')).json.count).toBe(2);
  });

  it('reaps a note after a week, unless it guards a room that lives', async () => {
    const { get, clock } = world();
    await get(`${alice.set('room-owners', 'd-shop', 1, alice.did)}?if_absent=1`);
    await get('/kv/n/k/set/x');
    for (let day = 0; day < 8; day++) {
      await get(alice.say('d-shop', day, `day ${day}`));
      await clock.advance(DAY);
    }
    await get(alice.say('d-shop', 9, 'still here'));
    expect((await get('/kv/n/k')).status).toBe(404);
    expect((await get('/kv/room-owners/d-shop')).text.split('\n')[2]).toBe(alice.did);
    await clock.advance(8 * DAY);
    await get('/kv/n/k/set/x');
    expect((await get('/kv/room-owners/d-shop')).status).toBe(404);
    // The room is gone, but it had messages once.
    expect((await get(alice.set('room-owners', 'd-shop', 20, alice.did))).status).toBe(403);
  });

  it('says whether a wait was held', async () => {
    const { get, clock, service } = world({ ...FREE, waitersPerAddress: 1, waiters: 2 });
    const held = get('/r/x?since=0&wait=3&format=json');
    await settled();
    expect(service.stats).toMatchObject({ parked: 1, timers: 1 });
    expect((await get('/r/x?since=0&wait=3&format=json')).json).toMatchObject({ wait_held: false, count: 0 });
    expect((await get('/r/x?since=0&wait=3')).text).toMatch(/\n# wait: not held[^\n]*\n$/);
    // Another address has slots of its own, until there are none in all.
    const other = (path: string) => service.client('10.0.0.2')(`http://local${path}`);
    const held2 = answerOf(other('/r/x?since=0&wait=9&format=json'));
    await settled();
    const third = answerOf(service.client('10.0.0.3')('http://local/r/x?since=0&wait=9&format=json'));
    expect((await third).json.wait_held).toBe(false);
    await clock.advance(2999);
    expect(service.stats.parked).toBe(2);
    await clock.advance(1);
    expect((await held).json).toMatchObject({ wait_held: true, count: 0, last_seq: 0 });
    await get('/r/x/say/ann/hi');
    const { json } = await held2;
    expect(json.count).toBe(1);
    expect(json).not.toHaveProperty('wait_held');
    // No wait was asked for, or could be held: nothing to say.
    expect((await get('/r/x?since=1&format=json')).json).not.toHaveProperty('wait_held');
    expect((await get('/r/x?wait=3&format=json')).json).not.toHaveProperty('wait_held');
    expect((await get('/r/empty?wait=3&format=json')).json).not.toHaveProperty('wait_held');
    expect(service.stats).toMatchObject({ parked: 0, parkedMost: 2 });
  });

  it('wakes a cursor beyond the end with the next message', async () => {
    const { get } = world();
    await get('/r/x/say/ann/one');
    const waiting = get('/r/x?since=900&wait=5&format=json');
    await settled();
    await get('/r/x/say/ann/two');
    expect((await waiting).json).toMatchObject({ first_seq: 2, last_seq: 2 });
  });

  it('refuses the sixth copy of a text within a minute, from anybody, however it is spelled', async () => {
    const { get, clock } = world();
    const copies = [
      'A quick brown fox',
      'a QUICK brown fox',
      'a  quick\u200bbrown fox',
      'ａ quick brown fox',
      ' A quick brown fox ',
    ];
    const say = (room: string, text: string) => get(`/r/${room}/say/ann/${encodeURIComponent(text)}`);
    for (const text of copies) expect((await say('x', text)).status).toBe(200);
    for (const text of copies) expect((await say('x', text)).status).toBe(422);
    expect((await get(alice.say('x', 1, copies[0]!))).status).toBe(422);
    expect((await get('/r/x?format=json')).json.last_seq).toBe(5);
    expect((await say('y', copies[0]!)).status).toBe(200);
    for (let i = 0; i < 9; i++) expect((await say('x', 'fifteen letters')).status).toBe(200);
    await clock.advance(60_000);
    expect((await say('x', copies[0]!)).status).toBe(200);
  });

  it('does not count what it refused for another reason as a copy', async () => {
    const { get } = world();
    const url = alice.say('x', 1, 'one text of mine, once');
    expect((await get(url)).status).toBe(200);
    for (let i = 0; i < 9; i++) expect((await get(url)).text).toMatch(/^400 nonce 1 is not greater than 1, the last/);
  });

  it('gives the room back that a refused duplicate would have made', async () => {
    const { get } = world({ ...FREE, newRoomsPerDay: 1, duplicateCopies: 0 });
    for (let i = 0; i < 3; i++) expect((await get('/r/x/say/ann/a%20text%20that%20is%20long')).status).toBe(422);
    expect((await get('/r/x/say/ann/short')).status).toBe(200);
    // A bad nick costs it, as it does there.
    const { get: get2 } = world({ ...FREE, newRoomsPerDay: 1 });
    expect((await get2('/r/x/say/Ann/short')).status).toBe(400);
    expect((await get2('/r/x/say/ann/short')).status).toBe(429);
  });

  it.each([
    [{ text: 'no from' }, '400 bad from: required'],
    [{ from: 'Ann', text: 'x' }, "400 bad from: 'Ann'"],
    [{ from: 5, text: 'x' }, '400 bad from: must be a string'],
    [{ from: null, text: 'x' }, '400 bad from: must be a string'],
    [{ from: 'ann', text: 12345 }, '400 bad text: must be a string'],
    [{ from: 'ann' }, '400 empty text'],
    [{ did: {}, text: 'x' }, '400 bad did: must be a string'],
    [{ did: alice.did, sig: 1, nonce: '1', text: 'x' }, '400 bad sig: must be a string'],
    [{ did: alice.did, sig: 'x', nonce: 1, text: 'x' }, '400 bad nonce: must be a string'],
    ['{"from":"ann","text":NaN}', '400 body must be JSON'],
    ['{"from":"ann","text":"\\ud800"}', '400 body must be JSON'],
    ['{"from":"ann","text":"\\udc00\\ud800"}', '400 body must be JSON'],
    ['{"from":"ann","text":"\\ud83dx"}', '400 body must be JSON'],
    ['[]', '400 body must be a JSON object'],
  ])('takes no body of other types: %j', async (body, words) => {
    const { post } = world();
    const { status, text } = await post('/r/x', body);
    expect(text.startsWith(words), text).toBe(true);
    expect(status).toBe(400);
  });

  it.each(['{"from":"ann","text":"\\ud83d\\ude80"}', '{"from":"ann","text":"\\\\ud800"}', '{"text":"x","from":"ann"}'])(
    'takes %s',
    async (body) => {
      const { post } = world();
      expect((await post('/r/x?format=json', body)).json.posted.text).toBe(JSON.parse(body).text);
    },
  );

  it('takes one condition, spelled right', async () => {
    const { get, post } = world();
    const set = async (query: string): Promise<number> => (await get(`/kv/n/k/set/x?${query}`)).status;
    expect(await set('if_absent=YES')).toBe(200);
    for (const yes of ['1', 'true', 'yes', 'On']) expect(await set(`if_absent=${yes}`)).toBe(409);
    for (const no of ['', '0', 'False', 'no', 'off']) expect(await set(`if_absent=${no}`)).toBe(200);
    expect((await get('/kv/n/k/set/x?if_absent=maybe')).text).toMatch(/^400 bad if_absent/);
    expect((await get('/kv/n/k/set/x?if_absent=1&if=x')).text).toMatch(/^400 bad if_absent/);
    expect(await set('if_absent=0&if=x')).toBe(200);
    expect(await set('if=y')).toBe(409);
    expect((await post('/kv/n/k', { value: 'y', if: 'x', if_absent: false })).status).toBe(200);
    expect((await post('/kv/n/k', { value: 'y', if: null })).status).toBe(200);
    expect((await post('/kv/n/k', { value: 'y', if: 1 })).text).toMatch(/^400 bad if: must be a string/);
    expect((await post('/kv/n/k', { value: 'y', if_absent: 1 })).text).toMatch(/^400 bad if_absent/);
    // In a query a plus is a blank, in a path it is none.
    expect((await post('/kv/n/k', { value: 'a b+c' })).status).toBe(200);
    expect(await set('if=a+b%2Bc')).toBe(200);
    expect((await get('/kv/n/k/set/y+z')).status).toBe(200);
    expect((await get('/kv/n/k')).text.split('\n')[2]).toBe('y+z');
    expect((await post('/kv/n/k', { value: 'y' })).status).toBe(200);
    expect((await get('/kv/n/k/set/z?if=x')).text).toMatch(
      /^409 note n\/k changed since you read it\n[\s\S]*\ncurrent value follows \(1 chars\):\ny\n$/,
    );
  });

  it('burns an ownership nonce with a lost condition, not with a malformed one', async () => {
    const { get } = world();
    const claim = alice.set('room-owners', 'd-shop', 5, alice.did);
    expect((await get(`${claim}?if_absent=perhaps`)).status).toBe(400);
    expect((await get(`${claim}?if_absent=1`)).status).toBe(200);
    expect((await get(`${alice.set('room-owners', 'd-shop', 6, bob.did)}?if=nobody`)).status).toBe(409);
    expect((await get(alice.set('room-owners', 'd-shop', 6, bob.did))).text).toMatch(
      /^403 nonce 6 was already used for \/r\/d-shop \(last 6\)/,
    );
    expect((await get('/kv/room-nonce/d-shop')).text.split('\n')[2]).toBe('6');
  });

  it('does not let a new owner inherit an old allow-list', async () => {
    const { get, clock } = world();
    await get(alice.set('room-owners', 'd-shop', 1, alice.did));
    await clock.advance(6 * DAY);
    await get(alice.set('room-allow', 'd-shop', 2, `${alice.did} ${bob.did}`));
    await clock.advance(2 * DAY);
    // The claim expires before the list does; a write runs the reaper.
    await get('/kv/n/k/set/x');
    expect((await get(bob.set('room-owners', 'd-shop', 3, bob.did))).status).toBe(200);
    expect((await get('/kv/room-allow/d-shop')).text.split('\n')[2]).toBe('none');
    expect((await get(alice.say('d-shop', 1, 'hello'))).status).toBe(403);
    expect((await get(bob.say('d-shop', 1, 'hello'))).status).toBe(200);
  });

  it('takes one spelling of a signature, release 0.7 all sixteen', async () => {
    const url = alice.say('x', 1, 'hi');
    const other = url.replace(/(.)(?=\/1\/hi$)/, (last) => String.fromCharCode(last.charCodeAt(0) + 1));
    expect((await world().get(other)).text).toMatch(/^400 bad signature encoding/);
    expect((await world(FREE, '0.7').get(other)).status).toBe(200);
  });

  it('warns of an empty read budget now and then, of an empty write budget always', async () => {
    const { get } = world({ readsPerMinute: 120, writesPerMinute: 8, newRoomsPerDay: 100 });
    const warned: number[] = [];
    for (let left = 119; left >= 0; left--) if ((await get('/r/x')).text.includes('\n# budget: ')) warned.push(left);
    expect(warned).toEqual([29, 24, 19, 14, 9, 4]);
    const lines: (string | undefined)[] = [];
    for (let i = 0; i < 8; i++) lines.push(/# budget: (\d+ of 8 writes) /.exec((await get('/kv/n/k/set/x')).text)?.[1]);
    expect(lines.slice(5)).toEqual(['2 of 8 writes', '1 of 8 writes', '0 of 8 writes']);
    expect(lines.slice(0, 5).every((line) => line === undefined)).toBe(true);
  });

  it('is open to browsers of every origin; release 0.7 is not', async () => {
    const { get } = world();
    for (const path of ['/r/x', '/r/X', '/nope', '/r/x/', '/openapi.json', '/config']) {
      const { headers } = await get(path, { redirect: 'manual' });
      expect(headers.get('access-control-allow-origin'), path).toBe('*');
    }
    const ask = (method: string): RequestInit => ({
      method: 'OPTIONS',
      headers: { origin: 'https://a.example', 'access-control-request-method': method },
    });
    const { status, headers } = await get('/r/x', ask('POST'));
    expect(status).toBe(200);
    expect(headers.get('access-control-allow-methods')).toBe('GET, POST');
    expect(headers.get('access-control-allow-headers')).toContain('Content-Type');
    expect((await get('/r/x', ask('DELETE'))).status).toBe(400);
    expect((await get('/r/x', { method: 'OPTIONS' })).status).toBe(405);
    const old = world(FREE, '0.7');
    expect((await old.get('/r/x', ask('POST'))).status).toBe(405);
    expect((await old.get('/r/x')).headers.get('access-control-allow-origin')).toBe(null);
  });

  it('publishes what it enforces', async () => {
    const limits = { readsPerMinute: 7, longPollMs: 2500, duplicateWindowMs: 1000, notes: 9 };
    const { get } = world(limits);
    const { json } = await get('/.well-known/agent.json');
    expect(json.limits).toMatchObject({
      reads_per_minute_per_ip: 7,
      writes_per_minute_per_ip: 30,
      new_rooms_per_day_per_ip: 20,
      notes: 9,
      notes_per_namespace: 5120,
      room_ring_bytes: 10_485_760,
      long_poll_seconds: 2.5,
      duplicate_filter_seconds: 1,
    });
    const { settings, units } = (await get('/config')).json;
    expect(settings).toMatchObject({ rate_read: 7, max_wait: 2.5, dupe_filter_seconds: 1, dupe_max_copies: 5 });
    expect(Object.keys(units)).toEqual(Object.keys(settings));
    expect((await world(limits, '0.7').get('/config')).status).toBe(404);
    expect((await get('/rooms?format=json')).json.notes).toEqual({
      total: 0,
      bytes: 0,
      capacity: 9,
      capacity_per_namespace: 5120,
    });
  });

  it('labels a document as markdown only for who names it', async () => {
    const { get } = world();
    const type = async (accept: string) =>
      (await get('/skill.md', { headers: { accept } })).headers.get('content-type');
    expect(await type('text/markdown')).toBe('text/markdown; charset=utf-8');
    expect(await type('text/markdown;q=0.5, text/plain;q=0.4')).toBe('text/markdown; charset=utf-8');
    for (const accept of [
      '*/*',
      'text/*',
      'text/markdown;q=0',
      'text/markdown;q=0.1, text/plain',
      'text/markdown;q=x',
    ]) {
      expect(await type(accept), accept).toBe('text/plain; charset=utf-8');
    }
  });

  it('does by HEAD what it does by GET, writes too', async () => {
    const { get } = world();
    const { status, text, headers } = await get('/r/x/say/ann/hi', { method: 'HEAD' });
    expect([status, text]).toEqual([200, '']);
    expect(Number(headers.get('content-length'))).toBeGreaterThan(100);
    expect((await get('/r/x?format=json')).json.last_seq).toBe(1);
  });

  it('lists rooms from memory for a while, but new rooms and topics at once', async () => {
    const { get, clock } = world();
    const listed = async () => (await get('/rooms?format=json')).json;
    await get('/r/one/say/ann/1');
    expect((await listed()).rooms.map((r: { room: string }) => r.room)).toEqual(['events', 'one']);
    await get('/r/one/say/ann/2');
    expect((await listed()).rooms[1].last_seq).toBe(1);
    await get('/kv/topic/one/set/talk');
    expect((await listed()).rooms.find((r: { room: string }) => r.room === 'one')).toMatchObject({
      last_seq: 2,
      topic: 'talk',
    });
    await get('/r/one/say/ann/3');
    await clock.advance(3000);
    expect((await listed()).rooms[0]).toMatchObject({ room: 'one', last_seq: 3, idle_seconds: 3 });
  });
});

describe('limits', () => {
  it('are numbers, unknown ones ignored, nonsense too', async () => {
    const odd = {
      readsPerMinute: 0,
      writesPerMinute: Number.NaN,
      rooms: '3',
      somethingNew: 1,
      waiters: -1,
      notes: Infinity,
    };
    const { get } = world(odd as unknown as Partial<Limits>);
    expect((await get('/.well-known/agent.json')).json.limits).toMatchObject({
      reads_per_minute_per_ip: 1,
      writes_per_minute_per_ip: 30,
      rooms: 5120,
      notes: Number.MAX_SAFE_INTEGER,
    });
    expect((await get('/r/x?since=0&wait=9&format=json')).json.wait_held).toBe(false);
    expect((await get('/r/x')).status).toBe(429);
  });

  it('refill all the time, by address, and cost a refused request nothing', async () => {
    const { get, clock, service } = world({ readsPerMinute: 6 });
    for (let i = 0; i < 6; i++) expect((await get('/r/x')).status).toBe(200);
    for (let i = 0; i < 5; i++) {
      const { status, headers, text } = await get('/r/x');
      expect(status).toBe(429);
      expect(headers.get('retry-after')).toBe('10');
      expect(text).toMatch(/^429 rate limited: the read budget for your IP \(6\/min\)[^\n]*\nretry after: 10s/);
    }
    expect(service.stats).toMatchObject({ reads: 6, refused: 5, requests: 11 });
    expect((await service.client('10.0.0.2')('http://local/r/x')).status).toBe(200);
    expect((await get('/kv/n/k/set/x')).status).toBe(200);
    await clock.advance(9999);
    expect((await get('/r/x')).status).toBe(429);
    await clock.advance(1);
    expect((await get('/r/x')).status).toBe(200);
    expect((await get('/r/x')).status).toBe(429);
    await clock.advance(10 * 60_000);
    for (let i = 0; i < 6; i++) expect((await get('/r/x')).status).toBe(200);
    expect((await get('/r/x')).status).toBe(429);
    expect((await get('/healthz')).status).toBe(200);
  });

  it('charge a held read once', async () => {
    const { get, clock } = world({ readsPerMinute: 2 });
    const held = get('/r/x?since=0&wait=10&format=json');
    await settled();
    await get('/kv/n/k/set/x');
    await clock.advance(10_000);
    expect((await held).status).toBe(200);
    expect((await get('/r/x')).status).toBe(200);
    expect((await get('/r/x')).status).toBe(429);
  });

  it('survive a clock that is set back', async () => {
    const clock = new VirtualClock();
    let back = 0;
    const service = createLocalService({
      clock: { now: () => clock.now() - back, sleep: (ms, signal) => clock.sleep(ms, signal) },
      limits: { writesPerMinute: 2, reapEveryMs: 0 },
    });
    const set = async () => (await service.fetch('http://local/kv/n/k/set/x')).status;
    expect(await set()).toBe(200);
    back = 3_600_000;
    expect(await set()).toBe(200);
    expect(await set()).toBe(429);
    await clock.advance(30_000);
    expect(await set()).toBe(200);
  });

  it('bound new rooms by address and day, rooms that exist stay open', async () => {
    const { get, clock, service } = world({ ...FREE, newRoomsPerDay: 2 });
    const say = (room: string) => get(`/r/${room}/say/ann/hi`);
    expect([(await say('a')).status, (await say('b')).status, (await say('a')).status]).toEqual([200, 200, 200]);
    const { status, text } = await say('c');
    expect(status).toBe(429);
    expect(text).toMatch(/^429 room-creation budget spent[^\n]*\nretry after: 43200s/);
    expect((await service.client('10.0.0.2')('http://local/r/c/say/ann/hi')).status).toBe(200);
    await clock.advance(DAY / 2);
    expect((await say('d')).status).toBe(200);
    expect((await say('e')).status).toBe(429);
  });

  it('drop the older half of a room that outgrows its ring, never the newest message', async () => {
    const { get, post, service } = world({ ...FREE, roomRingBytes: 2000, duplicateWindowMs: 0 });
    for (let i = 0; i < 50; i++) await get(`/r/p-x/say/ann/message-number-${i}-${'.'.repeat(100)}`);
    const { json } = await get('/r/p-x?since=0&limit=200&format=json');
    expect(json.last_seq).toBe(50);
    expect(json.first_seq).toBeGreaterThan(30);
    expect(json.count).toBe(json.last_seq - json.first_seq + 1);
    expect(service.stats.bytes).toBeLessThanOrEqual(2000);
    expect((await get('/r/p-x/export')).text.length).toBe(service.stats.bytes);
    await post('/r/p-x', { from: 'ann', text: '日'.repeat(4000) });
    expect((await get('/r/p-x?since=0&format=json')).json).toMatchObject({ first_seq: 51, last_seq: 51 });
    await get('/r/p-x/say/ann/next');
    expect((await get('/r/p-x?format=json')).json.last_seq).toBe(52);
  });

  it('let a read see the newest mebibyte of a room, and the old release look no deeper for a nonce', async () => {
    for (const profile of ['0.7', 'modern'] as const) {
      const { get, post } = world({ ...FREE, duplicateWindowMs: 0 }, profile);
      const url = alice.say('p-x', 1, 'first');
      await get(url);
      const text = '𝔸'.repeat(4096);
      for (let i = 0; i < 64; i++) await post('/r/p-x?format=json', { from: 'ann', text });
      // 16,384 bytes of text and the record around it.
      expect((await get('/r/p-x?since=0&limit=200&format=json')).json).toMatchObject({ count: 63, last_seq: 65 });
      expect((await get(url)).status).toBe(profile === '0.7' ? 200 : 400);
    }
  });

  it('let an ephemeral message expire, and its number live on', async () => {
    const { get, clock } = world({ ...FREE, ephemeralTtlMs: 1000 });
    await get('/r/e-x/say/ann/one');
    await clock.advance(600);
    await get('/r/e-x/say/ann/two');
    await clock.advance(600);
    expect((await get('/r/e-x?format=json')).json).toMatchObject({ count: 1, first_seq: 2 });
    expect((await get('/r/e-x/export')).text).toMatch(/^\{"seq":2,[^\n]*\n$/);
    await clock.advance(600);
    expect((await get('/r/e-x?format=json')).json).toMatchObject({ count: 0, last_seq: 0 });
    expect((await get('/r/e-x?since=9&format=json')).json).toMatchObject({ count: 0, last_seq: 2 });
    expect((await get('/r/e-x/say/ann/three?format=json')).json).toMatchObject({ count: 1, last_seq: 3 });
  });

  it('bound rooms and notes, for new names only', async () => {
    const { get } = world({ ...FREE, rooms: 2, notes: 3, notesPerNamespace: 2, roomBytesTotal: 1e6 });
    const status = async (path: string) => (await get(path)).status;
    // One room and its announcement.
    expect(await status('/r/a/say/ann/hi')).toBe(200);
    expect((await get('/r/b/say/ann/hi')).text).toMatch(/^400 room limit reached \(2 /);
    expect(await status('/r/a/say/ann/hi')).toBe(200);
    expect([await status('/kv/n/a/set/1'), await status('/kv/n/b/set/1')]).toEqual([200, 200]);
    expect((await get('/kv/n/c/set/1')).text).toMatch(/^400 note limit reached \(2 /);
    expect(await status('/kv/m/a/set/1')).toBe(200);
    expect((await get('/kv/m/b/set/1')).text).toMatch(/^400 note limit reached \(3 /);
    expect(await status('/kv/m/b/set/1?if=x')).toBe(409);
    expect(await status('/kv/n/a/set/2')).toBe(200);
  });

  it('shrink every room to its share once all of them are too large', async () => {
    const { post, get, service } = world({ ...FREE, roomBytesTotal: 10_000, rooms: 10, duplicateWindowMs: 0 });
    for (let i = 0; i < 40; i++) await post('/r/p-a', { from: 'ann', text: 'x'.repeat(900) });
    await post('/r/p-a', { from: 'ann', text: 'y' });
    expect(service.stats.bytes).toBeLessThan(11_000);
    expect((await get('/r/p-a?format=json')).json.last_seq).toBe(41);
  });
});

describe('held reads', () => {
  it('leave no waiter, timer or listener behind when their caller hangs up', async () => {
    const { service, clock, get } = world();
    const hangUp = new AbortController();
    const reason = new Error('enough');
    const reads = ['/r/x?since=0&wait=10', '/r/x?since=0&wait=5', '/r/y?since=0&wait=10'].map((path) =>
      service.fetch(`http://local${path}`, { signal: hangUp.signal }),
    );
    await settled();
    expect(service.stats.parked).toBe(3);
    expect(clock.sleepers).toBe(3);
    hangUp.abort(reason);
    for (const read of reads) await expect(read).rejects.toBe(reason);
    await settled();
    expect(service.stats).toMatchObject({ parked: 0, timers: 0 });
    expect(clock.sleepers).toBe(0);
    // The slots are free again.
    const again = Array.from({ length: 4 }, () => get('/r/x?since=0&wait=10&format=json'));
    await settled();
    expect(service.stats.parked).toBe(4);
    await get('/r/x/say/ann/hi');
    for (const read of again) expect((await read).json.count).toBe(1);
    expect(clock.sleepers).toBe(0);
  });

  it('leave the signal of a caller alone when they end otherwise', async () => {
    const { service, clock, get } = world();
    const { signal } = new AbortController();
    const read = (path: string) => service.fetch(`http://local${path}`, { signal });
    const woken = read('/r/x?since=0&wait=10');
    const timedOut = read('/r/y?since=0&wait=1');
    await settled();
    expect(getEventListeners(signal, 'abort').length).toBe(2);
    await get('/r/x/say/ann/hi');
    await clock.advance(1000);
    await Promise.all([woken, timedOut]);
    expect(getEventListeners(signal, 'abort').length).toBe(0);
    await expect(service.fetch('http://local/r/x', { signal: AbortSignal.abort(new Error('before')) })).rejects.toThrow(
      'before',
    );
  });

  it('see a message at once, or at the next half second of their own', async () => {
    for (const [wakeStepMs, seenAt] of [
      [0, [370, 370]],
      [500, [500, 620]],
    ] as const) {
      const { get, clock } = world({ ...FREE, wakeStepMs });
      const start = clock.now();
      const read = () => get('/r/x?since=0&wait=10&format=json').then(({ json }) => [json.count, clock.now() - start]);
      const first = read();
      await clock.advance(120);
      const second = read();
      await clock.advance(250);
      await get('/r/x/say/ann/hi');
      await clock.advance(5000);
      expect(await Promise.all([first, second])).toEqual([
        [1, seenAt[0]],
        [1, seenAt[1]],
      ]);
      expect(clock.sleepers).toBe(0);
    }
  });

  it('never look later than their deadline', async () => {
    const { get, clock } = world({ ...FREE, wakeStepMs: 500 });
    const start = clock.now();
    const read = get('/r/x?since=0&wait=0.7&format=json').then(({ json }) => [json.count, clock.now() - start]);
    await clock.advance(600);
    await get('/r/x/say/ann/hi');
    await clock.advance(5000);
    expect(await read).toEqual([1, 700]);
  });

  it('pass idle hours in no time', async () => {
    const { get, clock, service } = world();
    let polls = 0;
    const idle = (async () => {
      const start = clock.now();
      while (clock.now() - start < DAY / 10) {
        expect((await get('/r/x?since=0&wait=10&format=json')).json.wait_held).toBe(true);
        polls++;
      }
    })();
    while (polls < 864) await clock.advance(10_000);
    await idle;
    expect(service.stats).toMatchObject({ parked: 0, timers: 0, requests: 864 });
  });
});

describe('fetch', () => {
  it('takes what fetch takes', async () => {
    const { service } = world();
    const { fetch } = service;
    expect(await (await fetch(new URL('http://local/healthz'))).text()).toBe('ok\n');
    expect(await (await fetch(new Request('https://elsewhere.example:1/healthz#x'))).text()).toBe('ok\n');
    const body = JSON.stringify({ from: 'ann', text: 'hi' });
    const bodies = [body, utf8(body), new Blob([body]), utf8(body).buffer, new Response(body).body];
    for (const one of bodies) {
      const init = { method: 'post', body: one, duplex: 'half' } as RequestInit;
      expect((await fetch('http://local/r/p-x', init)).status).toBe(200);
    }
    expect((await fetch(new Request('http://local/r/p-x', { method: 'POST', body }))).status).toBe(200);
    expect((await (await fetch('http://local/r/p-x?format=json')).json()).last_seq).toBe(6);
    for (const wrong of ['nonsense', 'ftp://local/']) await expect(fetch(wrong)).rejects.toThrow(TypeError);
    await expect(fetch('http://local/r/x', { body: 'x' })).rejects.toThrow(TypeError);
  });

  it('follows a redirect, or not', async () => {
    const { service } = world();
    const { fetch } = service;
    expect(await (await fetch('http://local/r/x/')).text()).toMatch(/^# room x /);
    const manual = await fetch('http://local/r/x/?limit=1', { redirect: 'manual' });
    expect([manual.status, manual.headers.get('location')]).toEqual([307, 'http://local/r/x?limit=1']);
    await expect(fetch('http://local/r/x/', { redirect: 'error' })).rejects.toThrow(TypeError);
    const post = { method: 'POST', body: '{"from":"ann","text":"hi"}' };
    expect((await fetch('http://local/r/x/', post)).status).toBe(200);
  });

  it('finds the end of a path of slashes in linear time', async () => {
    const { service } = world();
    // Quadratic, these would run for some ten minutes and hit the time limit.
    const path = `/r${'/'.repeat(16_000)}x/`;
    for (let i = 0; i < 5000; i++) expect((await service.fetch(`http://local${path}`)).status).toBe(404);
  });

  it('refuses a URL that is too long for a request line', async () => {
    const { get } = world();
    expect((await get(`/r/x/say/ann/${'日'.repeat(1800)}`)).status).toBe(200);
    expect(await get(`/r/x/say/ann/${'日'.repeat(1830)}`)).toMatchObject({
      status: 400,
      text: 'Invalid HTTP request received.',
    });
  });

  it('loses what a URL parser loses', async () => {
    const { get } = world();
    // A whole text of dots is a step in the path, and is gone.
    expect((await get('/r/x/say/ann/..')).status).toBe(404);
    expect((await get('/r/x/say/ann/a/../b?format=json')).json.posted.text).toBe('b');
  });

  it('refuses a body that is too long or too slow', async () => {
    const { service, clock, post } = world();
    expect((await post('/r/x', `{"from":"ann","text":"hi"}${' '.repeat(262_144 - 26)}`)).status).toBe(200);
    expect((await post('/r/x', `{"from":"ann","text":"hi"}${' '.repeat(262_144 - 25)}`)).status).toBe(413);
    let cancelled: unknown;
    const endless = new ReadableStream({
      pull: (controller) => controller.enqueue(new Uint8Array(65_536)),
      cancel: (reason) => {
        cancelled = reason ?? true;
      },
    });
    const init = (body: ReadableStream): RequestInit => ({ method: 'POST', body, duplex: 'half' }) as RequestInit;
    expect((await service.fetch('http://local/r/x', init(endless))).status).toBe(413);
    expect(cancelled).toBeDefined();
    const stalled = new ReadableStream({ start: (controller) => controller.enqueue(utf8('{"from":')) });
    const slow = service.fetch('http://local/r/x', init(stalled));
    await clock.advance(9999);
    await clock.advance(1);
    const { status, headers } = await slow;
    expect([status, headers.get('connection')]).toEqual([408, 'close']);
    const hangUp = new AbortController();
    const given = service.fetch('http://local/r/x', {
      ...init(new ReadableStream({ start: (c) => c.enqueue(utf8('{}')) })),
      signal: hangUp.signal,
    });
    await settled();
    hangUp.abort(new Error('gone'));
    await expect(given).rejects.toThrow('gone');
    expect(clock.sleepers).toBe(0);
    expect((await (await service.fetch('http://local/r/x?format=json')).json()).last_seq).toBe(1);
  });

  it('refuses a header block that is too large', async () => {
    const { get } = world();
    const many = Object.fromEntries(Array.from({ length: 48 }, (_, i) => [`x-${i}`, '1']));
    expect((await get('/healthz', { headers: many })).text).toMatch(
      /^431 header block too large: 49 headers \/ \d+ bytes/,
    );
    expect((await get('/healthz', { headers: { 'x-big': 'x'.repeat(8192) } })).status).toBe(431);
  });

  it('answers whatever it is sent', async () => {
    let seed = 7;
    const random = (n: number): number => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed % n;
    };
    const pick = <T>(from: readonly T[]): T => from[random(from.length)]!;
    const parts = [
      'r',
      'kv',
      'say',
      'say-signed',
      'set',
      'set-signed',
      'export',
      'x',
      'd-x',
      'mb-x',
      'room-owners',
      '',
    ];
    const junk = ['%', '%zz', '%00', '%0A', '%ff%fe', '%ED%A0%80', '..', '%2F', '😀', '\\', '%25', 'ß', '__proto__'];
    const queries = ['since=', 'wait=1e9', 'limit=-9', 'format=json', 'if=%ff', 'if_absent=2', 'since=1_', '=', '%'];
    const values = ['"x"', 'null', '{}', '[[]]', '1e999', '"\\u0000"', 'true', '-0', `"${alice.did}"`];
    const names = ['from', 'text', 'did', 'sig', 'nonce', 'value', 'if', 'if_absent', '__proto__', 'constructor'];
    for (const profile of ['modern', '0.7'] as const) {
      const { service, clock } = world(FREE, profile);
      for (let i = 0; i < 1500; i++) {
        const path = Array.from({ length: random(8) }, () => pick(random(3) === 0 ? junk : parts)).join('/');
        const query = Array.from({ length: random(3) }, () => pick(queries)).join('&');
        const method = pick(['GET', 'GET', 'POST', 'HEAD', 'PUT', 'OPTIONS']);
        const body = `{${Array.from({ length: random(5) }, () => `"${pick(names)}":${pick(values)}`).join(',')}}`;
        const sent = service.fetch(`http://local/${path}?${query}`, {
          method,
          ...(method !== 'GET' && method !== 'HEAD' && { body: random(9) === 0 ? body.slice(1) : body }),
        });
        await settled();
        if (service.stats.parked > 0) await clock.advance(10_000);
        const { status } = await sent;
        expect(status, `${profile} ${method} /${path}?${query} ${body}`).toBeLessThan(500);
      }
      expect(service.stats).toMatchObject({ parked: 0, timers: 0 });
    }
  });
});

describe('on a socket', () => {
  let listening: Listening | undefined;
  afterEach(() => listening?.close());

  /** All that comes back until the peer hangs up, or until `isEnough`. */
  function raw(
    url: string,
    bytes: string | Buffer,
    isEnough: (text: string) => boolean = () => false,
  ): Promise<string> {
    return new Promise((resolve, reject) => {
      const { hostname, port } = new URL(url);
      const socket = connect(Number(port), hostname);
      let text = '';
      socket.on('data', (part) => {
        text += part.toString('latin1');
        if (isEnough(text)) socket.destroy();
      });
      socket.on('close', () => resolve(text));
      socket.on('error', (e) => (text === '' ? reject(e) : resolve(text)));
      socket.write(bytes);
    });
  }
  const until = async (condition: () => boolean): Promise<void> => {
    while (!condition()) await new Promise((resolve) => setTimeout(resolve, 1));
  };

  it('serves what fetch serves', async () => {
    const { service } = world();
    listening = await service.listen();
    expect(listening.url).toMatch(/^http:\/\/127\.0\.0\.1:\d+$/);
    const written = await fetch(`${listening.url}/r/x`, { method: 'POST', body: '{"from":"ann","text":"日本"}' });
    expect(written.status).toBe(200);
    const { json } = await answerOf(service.fetch('http://local/r/x?format=json'));
    expect(json.messages[0].text).toBe('日本');
    expect((await answerOf(fetch(`${listening.url}/r/x?format=json`))).json).toEqual(json);
    expect((await fetch(`${listening.url}/r/x`, { method: 'HEAD' })).headers.get('content-length')).toMatch(/^\d\d/);
  });

  it('listens where it is told, or says why not', async () => {
    const { service } = world();
    listening = await service.listen(0, '127.0.0.1');
    const port = Number(new URL(listening.url).port);
    await expect(service.listen(port)).rejects.toMatchObject({ code: 'no_port' });
    await listening.close();
    await listening.close();
    await expect(fetch(listening.url)).rejects.toThrow();
    listening = await service.listen(port);
    expect(await (await fetch(`${listening.url}/healthz`)).text()).toBe('ok\n');
  });

  it('frees the slot of a read whose caller hangs up, and drops held reads when it closes', async () => {
    const { service, clock } = world();
    listening = await service.listen();
    const hangUp = new AbortController();
    const gone = fetch(`${listening.url}/r/x?since=0&wait=10`, { signal: hangUp.signal });
    await until(() => service.stats.parked === 1);
    hangUp.abort();
    await expect(gone).rejects.toThrow();
    await until(() => service.stats.parked === 0);
    const dropped = fetch(`${listening.url}/r/x?since=0&wait=10`);
    dropped.catch(() => {});
    await until(() => service.stats.parked === 1);
    await listening.close();
    await expect(dropped).rejects.toThrow();
    await until(() => service.stats.parked === 0 && service.stats.connections === 0);
    expect(clock.sleepers).toBe(0);
  });

  it.each([
    ['no request at all', 'NONSENSE\r\n\r\n'],
    ['raw bytes in the path', Buffer.from('GET /r/\xe9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n', 'latin1')],
    ['no host', 'GET /healthz HTTP/1.1\r\n\r\n'],
    ['two lengths', 'POST /r/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef'],
    ['a chunk that is none', 'POST /r/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n'],
    ['a header without an end', `GET /healthz HTTP/1.1\r\nHost: x\r\nX: ${'x'.repeat(20_000)}`],
    ['a path without an end', `GET /${'x'.repeat(20_000)}`],
  ])('answers %s with 400', async (_, bytes) => {
    const { service } = world();
    listening = await service.listen();
    const text = await raw(listening.url, bytes);
    expect(text).toMatch(/^HTTP\/1\.1 400 Bad Request\r\n/);
    expect(text).toMatch(/\r\n\r\nInvalid HTTP request received\.$/);
    expect(await (await fetch(`${listening.url}/healthz`)).text()).toBe('ok\n');
  });

  it('lets the sender of a body that is too large read the answer, and goes on or hangs up', async () => {
    const { service } = world();
    listening = await service.listen();
    const head = (length: number): string => `POST /r/x HTTP/1.1\r\nHost: x\r\nContent-Length: ${length}\r\n\r\n`;
    const next = 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n';
    const text = await raw(listening.url, head(600_000) + 'x'.repeat(600_000) + next);
    expect(text).toMatch(
      /^HTTP\/1\.1 413 [\s\S]*\r\n\r\n413 body too large[\s\S]*HTTP\/1\.1 200 OK[\s\S]*\r\n\r\nok\n$/,
    );
    const endless = connect(Number(new URL(listening.url).port), '127.0.0.1');
    endless.on('error', () => {});
    endless.write(head(1e12));
    let sent = 0;
    for (; !endless.destroyed && sent < 64 << 20; sent += 1 << 16) {
      await new Promise((resolve) => endless.write('x'.repeat(1 << 16), resolve));
    }
    expect(sent).toBeLessThan(64 << 20);
    const chunked = `POST /r/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n50000\r\n${'x'.repeat(0x50000)}\r\n`;
    expect(await raw(listening.url, chunked, (got) => got.includes('\r\n\r\n413'))).toMatch(/^HTTP\/1\.1 413 /);
    await until(() => service.stats.connections <= 1);
  });

  it('gives up on a body that does not arrive', async () => {
    const { service, clock } = world();
    listening = await service.listen();
    const slow = raw(listening.url, 'POST /r/x HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"from":');
    await until(() => clock.sleepers === 1);
    await clock.advance(10_000);
    expect(await slow).toMatch(/^HTTP\/1\.1 408 [\s\S]*\r\n\r\n408 /);
    const cut = connect(Number(new URL(listening.url).port), '127.0.0.1');
    cut.write('POST /r/x HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"from":');
    await until(() => clock.sleepers === 1);
    cut.destroy();
    await until(() => clock.sleepers === 0);
    expect(service.stats.rooms).toBe(0);
  });

  it('answers nobody while too many are connected', async () => {
    const { service } = world({ ...FREE, connections: 3 });
    listening = await service.listen();
    const port = Number(new URL(listening.url).port);
    const idle = [connect(port, '127.0.0.1'), connect(port, '127.0.0.1')];
    await until(() => service.stats.connections === 2);
    const request = 'GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n';
    expect(await raw(listening.url, request)).toMatch(/^HTTP\/1\.1 503 [\s\S]*\r\n\r\nService Unavailable$/);
    let dropped = 0;
    for (let i = 0; i < 20; i++) idle.push(connect(port, '127.0.0.1').on('close', () => dropped++));
    await until(() => dropped === 16);
    expect(service.stats.connections).toBe(6);
    for (const socket of idle) socket.destroy();
    await until(() => service.stats.connections === 0);
    expect(await raw(listening.url, request)).toMatch(/^HTTP\/1\.1 200 /);
  });

  it('answers requests that were sent without waiting, in order', async () => {
    const { service } = world();
    listening = await service.listen();
    const say = (text: string, last = ''): string =>
      `GET /r/x/say/ann/${text}?format=json HTTP/1.1\r\nHost: x\r\n${last}\r\n`;
    const text = await raw(listening.url, say('one') + say('two') + say('three', 'Connection: close\r\n'));
    expect([...text.matchAll(/"posted":\{"seq":(\d)/g)].map(([, seq]) => seq)).toEqual(['1', '2', '3']);
  });

  it('makes no answer before the one ahead of it was taken, and takes no more than a hundred requests ahead', async () => {
    const { service } = world(FREE);
    listening = await service.listen();
    const port = Number(new URL(listening.url).port);
    for (let i = 0; i < 200; i++) await service.fetch(`http://local/r/x/say/ann/${`${i}`.repeat(1300)}`);
    const { requests } = service.stats;
    const ahead = (count: number) => {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => {});
      socket.pause();
      socket.write('GET /r/x?limit=200 HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(count));
      return socket;
    };
    const patient = ahead(100);
    await until(() => service.stats.requests > requests);
    ahead(5000);
    // The second is dropped; of the first, what fits into the buffers of the platform is made.
    await until(() => service.stats.connections === 1);
    expect(service.stats.requests - requests).toBeLessThan(90);
    let text = '';
    patient.on('data', (part) => {
      text += part;
    });
    patient.resume();
    await until(() => text.split('HTTP/1.1 200 OK').length === 101 && service.stats.requests === requests + 101);
    patient.destroy();
  });

  it('drops who takes nothing of his answers, and nobody whose read it holds', async () => {
    const { service } = world({ ...FREE, stalledMs: 50 });
    listening = await service.listen();
    const port = Number(new URL(listening.url).port);
    for (let i = 0; i < 200; i++) await service.fetch(`http://local/r/x/say/ann/${`${i}`.repeat(1300)}`);
    const held = raw(listening.url, 'GET /r/y?since=0&wait=10 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
    await until(() => service.stats.parked === 1);
    const stuck = connect(port, '127.0.0.1');
    stuck.on('error', () => {});
    stuck.pause();
    stuck.write('GET /r/x?limit=200 HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(100));
    await until(() => service.stats.connections === 2);
    await until(() => service.stats.connections === 1);
    await service.fetch('http://local/r/y/say/ann/news');
    expect(await held).toContain('news');
  });

  it('drops the connection when rubbish follows a read that it holds', async () => {
    const { service } = world();
    listening = await service.listen();
    const text = raw(listening.url, 'GET /r/x?since=0&wait=10 HTTP/1.1\r\nHost: x\r\n\r\nrubbish\r\n\r\n');
    expect(await text.catch(() => '')).toBe('');
    await until(() => service.stats.parked === 0);
  });
});
