import { afterEach, describe, expect, test } from 'vitest';
import { serve as serveAll, tool } from '../src/builtin.ts';
import { toBase64, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import { call } from '../src/call.ts';
import type { Channel } from '../src/channel.ts';
import { randomBytes } from '../src/crypto.ts';
import { e2eOffer, e2eOfferTo, e2eSend } from '../src/e2e.ts';
import { BadKey, BadName, CallTimeout, FrameTooLong } from '../src/errors.ts';
import { type Clock, type Event, systemClock } from '../src/http.ts';
import { identityKeys, publishIdentity } from '../src/identity.ts';
import { createLocalService } from '../src/local.ts';
import { mcpCallTool, mcpListTools } from '../src/mcp-client.ts';
import { acceptSealed, connectSealed } from '../src/meeting.ts';
import { identityNote } from '../src/names.ts';
import { setNote } from '../src/notes.ts';
import { read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import type { Tool } from '../src/tools.ts';
import { FREE, PROFILES, type Profile, until } from './support.ts';

type Edit = (room: string, messages: any[]) => any[];

/** A service, all that went over the wire, and agents with their own ways to it. */
function world(profile: Profile = 'modern') {
  const service = createLocalService({ profile, limits: FREE });
  const wire: string[] = [];
  const agent = (edit?: Edit) => {
    const events: Event[] = [];
    const fetch = async (url: any, init: any = {}): Promise<Response> => {
      wire.push(decodeURIComponent(String(url)), String(init.body ?? ''));
      const response = await service.fetch(url, init);
      const text = await response.text();
      wire.push(text);
      return new Response(edited(url, text, edit), { status: response.status, headers: { 'x-copy': '1' } });
    };
    return {
      base: 'http://local.test',
      fetch: fetch as typeof globalThis.fetch,
      onEvent: (e: Event) => void events.push(e),
      events,
    };
  };
  return { service, wire, agent };
}

/** What an operator makes of a view of a room. */
function edited(url: unknown, text: string, edit: Edit | undefined): string {
  const [, room] = /\/r\/([^/?]+)\?/.exec(String(url)) ?? [];
  if (!edit || !room || !text.startsWith('{')) return text;
  const view = JSON.parse(text);
  const since = Number(/since=(\d+)/.exec(String(url))?.[1] ?? 0);
  view.messages = edit(room, view.messages).filter((m: any) => m.seq > since);
  view.last_seq = Math.max(view.last_seq, view.messages.at(-1)?.seq ?? 0);
  return JSON.stringify(view);
}

/** A clock on which 777 ms are over when `found` is true, and not before. */
const lateClock = (found: () => boolean): Clock => ({
  now: systemClock.now,
  sleep: (ms, signal) => (ms === 777 ? until(() => signal?.aborted || found()) : systemClock.sleep(ms, signal)),
});

const reasons = (events: Event[]): string[] =>
  events.filter((e) => e.kind === 'refused').map((e) => String(e['reason']));

const stops: AbortController[] = [];
afterEach(() => {
  for (const stop of stops.splice(0)) stop.abort();
});

/** Serves sealed calls under `mailbox`. */
async function accepting(signer: Signer, o: any, methods: Map<string, any>, more: any = {}): Promise<AbortController> {
  const mailbox = 'mb-p-inbox';
  await publishIdentity(signer, { mailbox }, o);
  const stop = new AbortController();
  stops.push(stop);
  await new Promise<void>((onReady, reject) => {
    acceptSealed(mailbox, signer, (channel, signal) => serve(channel, signer, { ...o, methods, signal }), {
      ...o,
      ...more,
      onReady,
      signal: stop.signal,
    }).catch(reject);
  });
  return stop;
}

async function serving(channel: Channel, signer: Signer, o: any, methods: Map<string, any>): Promise<AbortController> {
  const stop = new AbortController();
  stops.push(stop);
  await new Promise<void>((onReady, reject) => {
    serve(channel, signer, { ...o, methods, onReady, signal: stop.signal }).catch(reject);
  });
  return stop;
}

describe.each(PROFILES)('on a %s service', (profile) => {
  test('connectSealed: two strangers meet and call', async () => {
    const { agent } = world(profile);
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const seen: string[] = [];
    const methods = new Map<string, any>([
      [
        'add',
        ({ a, b }: any, { from }: any) => {
          seen.push(from);
          return a + b;
        },
      ],
      ['echo', (params: any) => params],
    ]);
    await accepting(bob, agent(), methods);
    const o = agent();
    const channel = await connectSealed(bob.did, alice, o);
    expect(channel.peer).toBe(bob.did);
    expect(await call(channel, 'add', { a: 1, b: 2 }, alice, o)).toBe(3);
    const all = Array.from({ length: 20 }, (_, i) => call<number>(channel, 'add', { a: i, b: 1 }, alice, o));
    expect(await Promise.all(all)).toEqual(Array.from({ length: 20 }, (_, i) => i + 1));
    expect(new Set(seen)).toEqual(new Set([alice.did]));
    await expect(call(channel, 'nope', {}, alice, o)).rejects.toMatchObject({ rpc: { code: -32601 } });
    // A frame that needs more than one line, both ways.
    const long = { text: 'x'.repeat(3700), more: ['ünïcode'] };
    expect(await call(channel, 'echo', long, alice, o)).toEqual(long);
  });
});

test('no plaintext, method, parameter or key is on the wire or in the store', async () => {
  const { service, wire, agent } = world();
  const [alice, bob] = [Signer.generate(), Signer.generate()];
  const [room, key] = ['p-sealed-room', randomBytes(32)];
  await accepting(
    bob,
    agent(),
    new Map([['secret/method', ({ topsecret }: any) => ({ answer: `${topsecret} heard` })]]),
  );
  const o = agent();
  const channel = await connectSealed(bob.did, alice, { ...o, room, key });
  const said = 'the plaintext nobody else may read';
  expect(await call(channel, 'secret/method', { topsecret: said }, alice, o)).toEqual({ answer: `${said} heard` });
  await e2eSend(room, key, said, { ...o, signer: alice });

  const rooms = new Set(wire.flatMap((text) => [...text.matchAll(/\/r\/([a-z0-9_-]+)/g)].map((m) => m[1]!)));
  expect(rooms).toContain(room);
  const store = await Promise.all([...rooms].map(async (r) => (await service.fetch(`http://x/r/${r}/export`)).text()));
  expect(store.join('').split('\n').length).toBe(8);
  const keys = [key, identityKeys(alice).privateKey, identityKeys(bob).privateKey];
  const secrets = [said, 'secret/method', 'topsecret', 'heard', 'jsonrpc', 'frame/1', 'hello/1'];
  secrets.push(...secrets.map((text) => toBase64url(utf8(text)).slice(0, -2)));
  for (const k of keys) secrets.push(toHex(k), toBase64url(k), toBase64(k), String.fromCharCode(...k));
  for (const text of [...wire, ...store]) for (const secret of secrets) expect(text).not.toContain(secret);
});

test.each(PROFILES)('every changed byte of a stored line is noticed (%s)', async (profile) => {
  const { agent } = world(profile);
  const [alice, bob] = [Signer.generate(), Signer.generate()];
  const [room, key] = ['p-sealed-room', randomBytes(32)];
  let bad: any[] = [];
  const served = agent((_, messages) => [...messages, ...bad]);
  let runs = 0;
  await serving(sealed(room, key, bob, served), bob, served, new Map([['run', () => ++runs]]));
  const o = agent();
  expect(await call(sealed(room, key, alice, { ...o, peer: bob.did }), 'run', {}, alice, o)).toBe(1);

  const view = JSON.parse(await (await o.fetch(`${o.base}/r/${room}?format=json`)).text());
  const record = view.messages.find((m: any) => m.from === alice.did);
  const change = (text: string, i: number): string =>
    text.slice(0, i) + (text[i] === '3' ? '4' : '3') + text.slice(i + 1);
  for (const field of ['text', 'from', 'nonce', 'sig']) {
    if (record[field] === undefined) continue;
    const text = String(record[field]);
    for (let i = 0; i < text.length; i++) {
      const changed = change(text, i);
      bad.push({
        ...record,
        [field]: field === 'nonce' ? Number(changed) : changed,
        seq: view.last_seq + bad.length + 1,
      });
    }
  }
  expect(bad.length).toBeGreaterThan(300);
  const before = served.events.length;
  await alice.say(room, 'wakes the reader', o);
  const noticed = (): Set<unknown> =>
    new Set(
      served.events
        .slice(before)
        .filter((e) => /refused|skipped/.test(e.kind))
        .map((e) => e['seq']),
    );
  await until(() => bad.every(({ seq }) => noticed().has(seq)));
  bad = [];
  expect(runs).toBe(1);
});

describe('lines that were seen before', () => {
  test('fault 98: copied by a stranger, run nothing and bind nobody', async () => {
    const { agent } = world();
    const [alice, bob, mallory] = [Signer.generate(), Signer.generate(), Signer.generate()];
    const [room, key] = ['p-sealed-room', randomBytes(32)];
    const served = agent();
    let runs = 0;
    await serving(sealed(room, key, bob, served), bob, served, new Map([['run', () => ++runs]]));
    const o = agent();
    const channel = sealed(room, key, alice, o);
    expect(await call(channel, 'run', {}, alice, o)).toBe(1);
    for (const m of (await read(room, o)).messages) await mallory.say(room, m.text, o);
    // Mallory's copies of request and answer were read before the next answer came, and alice still hears bob alone.
    expect(await call(channel, 'run', {}, alice, o)).toBe(2);
    const copied = 'a sealed line that was not made for this message';
    expect(reasons(served.events).filter((r) => r === copied).length).toBe(2);
    expect(runs).toBe(2);
  });

  test.each(PROFILES)('fault 98: replayed, reordered and relabelled by the operator (%s)', async (profile) => {
    const { agent } = world(profile);
    const [alice, bob, carol] = [Signer.generate(), Signer.generate(), Signer.generate()];
    const [room, key] = ['p-sealed-room', randomBytes(32)];
    let more: any[] = [];
    const served = agent((_, messages) => [...messages, ...more]);
    const runs: string[] = [];
    await serving(
      sealed(room, key, bob, served),
      bob,
      served,
      new Map([['run', (_: any, { from }: any) => void runs.push(from)]]),
    );
    const o = agent();
    const channel = sealed(room, key, alice, { ...o, peer: bob.did });
    for (let i = 0; i < 3; i++) await call(channel, 'run', {}, alice, o);
    const view = JSON.parse(await (await o.fetch(`${o.base}/r/${room}?format=json`)).text());
    const records = view.messages.filter((m: any) => m.from === alice.did);
    expect(records.length).toBe(3);
    // Again, in another order, and in the name of another member.
    const replays = [...records, ...records.toReversed(), ...records.map((m: any) => ({ ...m, from: carol.did }))];
    more = replays.map((m, i) => ({ ...m, seq: view.last_seq + 1 + i }));
    await alice.say(room, 'wakes the reader', o);
    await until(() => served.events.some((e) => e['seq'] === more.at(-1).seq));
    expect(runs).toEqual([alice.did, alice.did, alice.did]);
  });

  test('replayed to a server that was started anew', async () => {
    const { agent } = world('0.7');
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const [room, key] = ['p-sealed-room', randomBytes(32)];
    let runs = 0;
    const methods = new Map([['run', () => ++runs]]);
    const first = agent();
    const stop = await serving(sealed(room, key, bob, first), bob, first, methods);
    const o = agent();
    await call(sealed(room, key, alice, o), 'run', {}, alice, o);
    stop.abort();
    const view = JSON.parse(await (await o.fetch(`${o.base}/r/${room}?format=json`)).text());
    let more: any[] = [];
    const second = agent((_, messages) => [...messages, ...more]);
    await serving(sealed(room, key, bob, second), bob, second, methods);
    more = view.messages.map((m: any, i: number) => ({ ...m, seq: view.last_seq + 2 + i }));
    await alice.say(room, 'wakes the reader', o);
    await until(() => reasons(second.events).includes('an old message'));
    expect(runs).toBe(1);
  });

  test('offers and whole sessions replayed by the operator', async () => {
    const { agent } = world('0.7');
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    let more: Record<string, any[]> = {};
    const served = agent((room, messages) => [...messages, ...(more[room] ?? [])]);
    let runs = 0;
    const methods = new Map([['run', () => ++runs]]);
    const stop = await accepting(bob, agent(), methods);
    const o = agent();
    const [room, key] = ['p-sealed-room', randomBytes(32)];
    await call(await connectSealed(bob.did, alice, { ...o, room, key }), 'run', {}, alice, o);
    stop.abort();
    const stored = async (r: string): Promise<any[]> =>
      JSON.parse(await (await o.fetch(`${o.base}/r/${r}?format=json`)).text()).messages.filter(
        (m: any) => m.from === alice.did,
      );
    const [offers, lines] = [await stored('mb-p-inbox'), await stored(room)];
    expect([offers.length, lines.length]).toEqual([1, 2]);

    await accepting(bob, served, methods);
    more = { 'mb-p-inbox': [{ ...offers[0], seq: 1000 }] };
    await Signer.generate().say('mb-p-inbox', 'wakes the reader', o);
    const hellos = async (): Promise<number> => (await read(room, o)).messages.filter((m) => m.from === bob.did).length;
    const before = await hellos();
    // Bob answers the old offer, since he cannot know, with a new token: nothing that was ever said fits it.
    while ((await hellos()) === before) await new Promise((resolve) => setTimeout(resolve, 5));
    more[room] = lines.map((m, i) => ({ ...m, seq: 1000 + i }));
    await Signer.generate().say(room, 'wakes the reader', o);
    await until(() => reasons(served.events).includes('another session'));
    expect(runs).toBe(1);
  });
});

describe('sealed', () => {
  test('a group: each member hears all, and nobody speaks for another', async () => {
    const { agent } = world();
    const [alice, bob, carol] = [Signer.generate(), Signer.generate(), Signer.generate()];
    const [a, b, c] = [agent(), agent(), agent()];
    await publishIdentity(bob, { mailbox: 'mb-p-bob' }, b);
    await publishIdentity(carol, { mailbox: 'mb-p-carol' }, c);
    const group = await e2eOfferTo(bob.did, alice, a);
    expect(await e2eOfferTo(carol.did, alice, { ...a, ...group })).toEqual({ ...group, mailbox: 'mb-p-carol' });
    const { room, key } = group;
    for (const [signer, o] of [
      [bob, b],
      [carol, c],
    ] as const) {
      const who = (_: any, { from }: any): string => `${from} heard by ${signer.did}`;
      await serving(sealed(room, key, signer, o), signer, o, new Map([[`who/${signer.did}`, who]]));
    }
    const channel = sealed(room, key, alice, a);
    const options = { ...a, peer: bob.did };
    expect(await call(channel, `who/${bob.did}`, {}, alice, options)).toBe(`${alice.did} heard by ${bob.did}`);
    const toCarol = sealed(room, key, alice, { ...a, peer: carol.did });
    expect(await call(toCarol, `who/${carol.did}`, {}, alice, a)).toBe(`${alice.did} heard by ${carol.did}`);
    // Alice serves bob alone: carol holds the key and still is not heard.
    const served = agent();
    await serving(sealed(room, key, alice, { ...served, peer: bob.did }), alice, served, new Map([['hi', () => 'hi']]));
    const fromCarol = sealed(room, key, carol, { ...c, peer: alice.did });
    const refused = (): boolean => reasons(served.events).includes('not the peer');
    const late = { ...c, clock: lateClock(refused), timeoutMs: 777 };
    await expect(call(fromCarol, 'hi', {}, carol, late)).rejects.toThrow(CallTimeout);
    expect(await call(sealed(room, key, bob, { ...b, peer: alice.did }), 'hi', {}, bob, b)).toBe('hi');
  });

  test('long frames of many callers at a time arrive whole', async () => {
    const { agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const [room, key] = ['p-sealed-room', randomBytes(32)];
    const served = agent();
    await serving(sealed(room, key, bob, served), bob, served, new Map([['echo', (p: any) => p]]));
    const o = agent();
    const channel = sealed(room, key, alice, o);
    const params = Array.from({ length: 8 }, (_, i) => ({ text: String(i).repeat(3900) }));
    expect(await Promise.all(params.map((p) => call(channel, 'echo', p, alice, o)))).toEqual(params);
    await expect(channel.send('x'.repeat(4097))).rejects.toThrow(FrameTooLong);
    await expect(channel.send('😀'.repeat(4096))).resolves.toMatchObject({ seq: expect.any(Number) });
  });

  test('bad names and keys are refused at once', () => {
    const { agent } = world();
    const signer = Signer.generate();
    expect(() => sealed('Not A Room', randomBytes(32), signer, agent())).toThrow(BadName);
    expect(() => sealed('p-x', randomBytes(31), signer, agent())).toThrow(BadKey);
    expect(() => sealed('p-x', randomBytes(32), signer, { ...agent(), peer: 'bob' })).toThrow(BadName);
  });
});

describe('meeting', () => {
  test('fault 68: no key that anybody may have written is met', async () => {
    const { agent } = world();
    const [alice, bob, mallory] = [Signer.generate(), Signer.generate(), Signer.generate()];
    const o = agent();
    await expect(connectSealed(bob.did, alice, o)).rejects.toThrow(BadKey);
    const { ns, key } = identityNote(bob.did);
    const evil = toBase64url(identityKeys(mallory).publicKey);
    await setNote(ns, key, `${bob.did} mailbox:mb-p-evil x25519:${evil}`, o);
    await expect(connectSealed(bob.did, alice, o)).rejects.toThrow('did not sign');
    expect((await read('mb-p-evil', o)).lastSeq).toBe(0);
  });

  test('nobody there, or nobody who lets us in: a typed error in time', async () => {
    const { agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const asked: string[] = [];
    const served = agent();
    const o = { ...agent(), clock: lateClock(() => reasons(served.events).length > 0) };
    await accepting(bob, served, new Map(), { allow: (did: string) => asked.push(did) === 0 });
    const error: any = await connectSealed(bob.did, alice, { ...o, timeoutMs: 777 }).catch((e) => e);
    expect(error).toBeInstanceOf(CallTimeout);
    expect(error).toMatchObject({ room: 'mb-p-inbox', afterMs: 777, reason: 'no-answer' });
    expect(asked).toEqual([alice.did]);
    expect(reasons(served.events)).toContain('not allowed');
    const stop = new AbortController();
    const connecting = connectSealed(bob.did, alice, { ...o, signal: stop.signal });
    stop.abort(new Error('enough'));
    await expect(connecting).rejects.toThrow('enough');
  });

  test('an offer makes nobody write anywhere else', async () => {
    const { agent } = world();
    const [alice, bob, mallory] = [Signer.generate(), Signer.generate(), Signer.generate()];
    const o = agent();
    const served = agent();
    await accepting(bob, served, new Map());
    const bobKey = identityKeys(bob).publicKey;
    await expect(connectSealed(bob.did, alice, { ...o, room: 'lobby' })).rejects.toThrow(BadName);
    const channel = await connectSealed(bob.did, alice, { ...o, room: 'p-theirs', key: randomBytes(32) });
    const before = (await read(channel.room, o)).lastSeq;
    await mallory.say('mb-p-inbox', e2eOffer(bobKey, { room: 'lobby' }).offer, o);
    await mallory.say('mb-p-inbox', e2eOffer(bobKey, { room: 'p-theirs' }).offer, o);
    await mallory.say('mb-p-inbox', e2eOffer(bobKey, { room: 'e-p-short' }).offer, o);
    const [line] = (await read('mb-p-inbox', o)).messages.filter((m) => m.from === alice.did);
    await mallory.say('mb-p-inbox', line!.text, o);
    await mallory.say('mb-p-inbox', 'e2e1 junk', o);
    await until(() => served.events.some((e) => e.kind === 'skipped' && (e['cause'] as any)?.code === 'decrypt'));
    await until(() => reasons(served.events).length >= 4);
    expect(reasons(served.events).sort()).toEqual([
      'an offer that came before',
      'an offer whose maker is not in its room',
      'the room of the offer is not private',
      'the room of the offer is not private',
    ]);
    expect((await read('lobby', o)).lastSeq).toBe(0);
    expect((await read(channel.room, o)).lastSeq).toBe(before);
  });

  test('a session ends when the other side is silent, and a new one may begin in the same room', async () => {
    const { agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const served = agent();
    const ended: unknown[] = [];
    const stop = new AbortController();
    stops.push(stop);
    await publishIdentity(bob, { mailbox: 'mb-p-inbox' }, served);
    const run = (channel: Channel, signal: AbortSignal): Promise<void> => {
      signal.addEventListener('abort', () => ended.push(signal.reason.code));
      return serve(channel, bob, { ...served, methods: new Map([['hi', () => 'hi']]), signal });
    };
    await new Promise<void>((onReady) => {
      void acceptSealed('mb-p-inbox', bob, run, { ...served, signal: stop.signal, idleMs: 50, onReady });
    });
    const o = agent();
    const meeting = { ...o, room: 'p-ours', key: randomBytes(32) };
    await connectSealed(bob.did, alice, meeting);
    await until(() => ended.length > 0);
    expect(ended).toEqual(['idle']);
    const again = await connectSealed(bob.did, alice, meeting);
    // The 50 ms may be over before the call arrives, on a slow machine.
    const answer = await call(again, 'hi', {}, alice, { ...o, timeoutMs: 2000 }).catch((e) => e.code);
    expect(['hi', 'call_timeout']).toContain(answer);
  });

  test('sessions are bounded: a newer one of the same key replaces the oldest, others are refused while it speaks', async () => {
    const { agent } = world();
    const [alice, bob, carol, dave] = [1, 2, 3, 4].map(() => Signer.generate()) as [Signer, Signer, Signer, Signer];
    const served = agent();
    await accepting(bob, served, new Map([['hi', () => 'hi']]), { sessions: 2 });
    const o = agent();
    const channels = [];
    for (let i = 0; i < 3; i++) channels.push(await connectSealed(bob.did, alice, o));
    for (const channel of channels.slice(1)) expect(await call(channel, 'hi', {}, alice, o)).toBe('hi');
    await expect(call(channels[0]!, 'hi', {}, alice, { ...o, timeoutMs: 300 })).rejects.toThrow(CallTimeout);
    // One of two of hers goes to another key.
    expect(await call(await connectSealed(bob.did, carol, o), 'hi', {}, carol, o)).toBe('hi');
    const refused = (): boolean => reasons(served.events).includes('too many sessions');
    const late = { ...agent(), clock: lateClock(refused), timeoutMs: 777 };
    await expect(connectSealed(bob.did, dave, late)).rejects.toThrow(CallTimeout);
  });

  test('MCP tools ride on a sealed channel unchanged', async () => {
    const { wire, agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const served = agent();
    await publishIdentity(bob, { mailbox: 'mb-p-inbox' }, served);
    const tools = new Map<string, Tool>();
    const schema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
    tool('greet', 'Greets.', schema, ({ name }) => `hello ${name}`, { tools });
    const stop = new AbortController();
    stops.push(stop);
    const run = (channel: Channel, signal: AbortSignal): Promise<void> =>
      serveAll(channel, bob, { ...served, tools, signal });
    await new Promise<void>((onReady, reject) => {
      acceptSealed('mb-p-inbox', bob, run, { ...served, signal: stop.signal, onReady }).catch(reject);
    });
    const o = agent();
    const channel = await connectSealed(bob.did, alice, o);
    expect((await mcpListTools(channel, alice, o)).map(({ name }) => name)).toEqual(['greet']);
    const { content } = await mcpCallTool(channel, 'greet', { name: 'Ada' }, alice, o);
    expect(content).toEqual([{ type: 'text', text: 'hello Ada' }]);
    expect((await mcpCallTool(channel, 'greet', { name: 7 }, alice, o)).isError).toBe(true);
    expect(wire.filter((text) => /greet|tools|modelcontextprotocol/.test(text))).toEqual([]);
  });

  test('one mailbox takes offers and open calls alike', async () => {
    const { agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const served = agent();
    const methods = new Map([['where', (_: any, { room }: any) => room]]);
    await accepting(bob, served, methods);
    const stop = new AbortController();
    stops.push(stop);
    await new Promise<void>((onReady, reject) => {
      serve('mb-p-inbox', bob, { ...served, methods, onReady, signal: stop.signal }).catch(reject);
    });
    const o = agent();
    const open = await call(bob.did, 'where', {}, alice, { ...o, replyTo: 'mb-p-alice' });
    const channel = await connectSealed(bob.did, alice, o);
    expect([open, await call(channel, 'where', {}, alice, o)]).toEqual(['mb-p-inbox', channel.room]);
  });

  test('all sessions end with the acceptor', async () => {
    const { agent } = world();
    const [alice, bob] = [Signer.generate(), Signer.generate()];
    const o = agent();
    await publishIdentity(bob, { mailbox: 'mb-p-inbox' }, o);
    const stop = new AbortController();
    let running = 0;
    let ready!: () => void;
    const isReady = new Promise<void>((resolve) => {
      ready = resolve;
    });
    const run = async (_: Channel, signal: AbortSignal): Promise<void> => {
      running++;
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      running--;
    };
    const accepted = acceptSealed('mb-p-inbox', bob, run, { ...o, signal: stop.signal, onReady: ready });
    await isReady;
    const a = agent();
    await Promise.all([connectSealed(bob.did, alice, a), connectSealed(bob.did, Signer.generate(), a)]);
    await until(() => running === 2);
    stop.abort();
    await accepted;
    expect(running).toBe(0);
  });

  test('does not wait for one who never says who may come', async () => {
    const { agent } = world();
    const [alice, bob, o] = [Signer.generate(), Signer.generate(), agent()];
    await publishIdentity(bob, { mailbox: 'mb-p-inbox' }, o);
    const stop = new AbortController();
    let ready!: () => void;
    const isReady = new Promise<void>((resolve) => {
      ready = resolve;
    });
    let asked = 0;
    const allow = (): Promise<boolean> => {
      asked++;
      return new Promise(() => {});
    };
    const accepted = acceptSealed('mb-p-inbox', bob, () => {}, { ...o, allow, signal: stop.signal, onReady: ready });
    await isReady;
    const connecting = connectSealed(bob.did, alice, { ...agent(), signal: stop.signal }).catch((e) => e);
    await until(() => asked === 1);
    stop.abort('over');
    await accepted;
    expect(await connecting).toBe('over');
  });
});
