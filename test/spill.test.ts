import { describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import type { Handler } from '../src/dispatch.ts';
import { RpcError } from '../src/errors.ts';
import { encode, type Json } from '../src/frames.ts';
import { budgetOf, transportOf } from '../src/http.ts';
import type { CallOptions } from '../src/line.ts';
import { setNote } from '../src/notes.ts';
import { read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import type { Signer } from '../src/signer.ts';
import { FRAME_MEMBER, MAX_SPILLED, readSpilled, type Spill, type SpillRef, Spills, spillOf } from '../src/spill.ts';
import { faulty, isSay, PROFILES, requestFrame, run, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-spill-callee';
const REPLY = 'mb-p-spill-caller';
const callee = signer(1);
const caller = signer(2);

const text = (n: number, of = 'spilled, as it is. '): string => of.repeat(Math.ceil(n / of.length)).slice(0, n);
let runs = 0;
const methods = new Map<string, Handler>([
  [
    'big',
    ({ n, of }) => {
      runs++;
      return text(n, of);
    },
  ],
]);

async function served(w: World, o: ServeOptions = {}, to: Parameters<typeof serve>[0] = MAILBOX) {
  const stop = new AbortController();
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const ended = serve(to, callee, { ...w.o, methods, ...o, signal: stop.signal, onReady: ready });
  await run(w.clock, Promise.race([isReady, ended]));
  return async () => {
    stop.abort();
    await w.run(ended);
  };
}

const notesOf = (urls: string[]): string[] => urls.filter((url) => url.includes('/kv/p-'));

type Tamper = (url: string, value: string, n: number) => string | undefined;

/** A caller of its own, for whom note reads are as `tamper` says; undefined: there is none. */
function client(w: World, tamper?: Tamper) {
  const urls: string[] = [];
  const reach = w.service.client('caller');
  const fetch = (async (url: string, init: RequestInit = {}) => {
    urls.push(url);
    const n = notesOf(urls).length;
    const response = await reach(url, init);
    if (!tamper || !url.includes('/kv/p-') || response.status !== 200) return response;
    const lines = (await response.text()).split('\n');
    const value = tamper(url, lines[2]!, n);
    if (value === undefined) return new Response('404 no note x/y\n', { status: 404 });
    return new Response([lines[0], lines[1], value, ...lines.slice(3)].join('\n'));
  }) as typeof globalThis.fetch;
  const o: CallOptions = { ...w.o, fetch, replyTo: REPLY };
  return {
    urls,
    notes: () => notesOf(urls),
    o,
    big: (n: number, more: Partial<CallOptions> & { of?: string } = {}) => {
      const { of, ...rest } = more;
      return call(MAILBOX, 'big', { n, ...(of !== undefined && { of }) }, caller, { ...o, ...rest });
    },
  };
}

const rpcOf = async (w: World, work: Promise<unknown>): Promise<any> => {
  const error = await w.run(work.catch((e) => e));
  expect(error).toBeInstanceOf(RpcError);
  return (error as RpcError).rpc;
};

describe.each(PROFILES)('an answer too large for a message (%s)', (profile) => {
  it('of 90 KB arrives whole, by GET alone, in notes that are used again', async () => {
    const w = world(profile);
    const stop = await served(w, { lane: 'get' });
    const c = client(w);
    for (let i = 0; i < 9; i++) {
      expect(await w.run(c.big(90 * 1024, { lane: 'get' }))).toBe(text(90 * 1024));
      await w.clock.advance(100_000);
    }
    expect(w.service.stats.notes, 'four sets of sixteen, and the presence').toBeLessThanOrEqual(4 * 16 + 1);
    const { messages } = await w.run(read(REPLY, { ...w.o, limit: 200 }));
    const frame = JSON.parse(messages.at(-1)!.text);
    expect(Object.keys(frame)).toEqual(['jsonrpc', 'id', FRAME_MEMBER]);
    const { ns, keys, bytes, sha256 } = frame[FRAME_MEMBER] as SpillRef;
    expect(ns).toMatch(/^p-[0-9a-f]{32}$/);
    expect(keys.length).toBeLessThanOrEqual(16);
    expect(bytes).toBeGreaterThan(90 * 1024);
    expect(sha256).toMatch(/^[0-9a-f]{64}$/);
    await stop();
    expect(w.clock.sleepers).toBe(0);
  });

  it('is there until it is read, though many are put at once', async () => {
    const w = world(profile, { wakeStepMs: 500 });
    const slow = faulty(w.service.client('callee'), async (_, init) => {
      await w.clock.sleep(60, init.signal!);
      return undefined;
    });
    const stop = await served(w, { fetch: slow });
    const c = client(w);
    const all = Array.from({ length: 20 }, (_, i) => c.big(6000 + i).catch((e) => e));
    expect(await w.run(Promise.all(all))).toEqual(all.map((_, i) => text(6000 + i)));
    await stop();
  });

  it('of 90 KB in any script arrives as well', async () => {
    const w = world(profile);
    const stop = await served(w);
    for (const of of ['日本語のテキスト', '🚀 ship it ', 'a"\\\u0000\u007f\ud800b']) {
      const n = of.startsWith('a') ? 20_000 : 30_000;
      expect(await w.run(client(w).big(n, { of }))).toBe(text(n, of));
    }
    await stop();
  });

  it('of 1 MB is refused with its size; so is any, to who does not say that it reads them', async () => {
    const w = world(profile);
    const stop = await served(w);
    const c = client(w);
    const { code, message, data } = await rpcOf(w, c.big(1 << 20));
    expect(code).toBe(-32603);
    expect(data.chars).toBeGreaterThan(1 << 20);
    expect(data.limit).toBe(MAX_SPILLED);
    expect(message).toBe(`The answer is too large: ${data.chars} bytes, but the limit is ${MAX_SPILLED}`);
    expect(await rpcOf(w, c.big(MAX_SPILLED))).toMatchObject({ data: { limit: MAX_SPILLED } });

    const frame = requestFrame('plain', 'big', { n: 5000, _meta: { 'chat.technocore/reply': REPLY } });
    await w.run(caller.say(MAILBOX, frame, c.o));
    await w.clock.advance(100);
    const { messages } = await w.run(read(REPLY, { ...w.o, limit: 1 }));
    expect(JSON.parse(messages[0]!.text)).toMatchObject({
      id: 'plain',
      error: { code: -32603, data: { chars: 5000 + '{"jsonrpc":"2.0","id":"plain","result":""}'.length, limit: 4096 } },
    });
    await stop();
  });

  it('is run once, and put anew for a repeat of its request', async () => {
    const w = world(profile);
    const stop = await served(w);
    const c = client(w);
    runs = 0;
    const first = await w.run(c.big(50_000, { id: 'mine' }));
    expect(await w.run(c.big(50_000, { id: 'mine' }))).toBe(first);
    expect(runs).toBe(1);
    await stop();
  });
});

describe('a chunk that is not what was put', () => {
  const flip = (value: string): string => (value.startsWith('A') ? `B${value.slice(1)}` : `A${value.slice(1)}`);
  const tampers: Record<string, Tamper> = {
    forged: (_, value) => flip(value),
    truncated: (_, value) => value.slice(0, -4),
    lengthened: (_, value) => `${value}AAAA`,
    'not base64url': (_, value) => `${value.slice(0, -1)}=`,
    missing: () => undefined,
    'another one': () => 'AAAA',
  };
  for (const [name, tamper] of Object.entries(tampers)) {
    it(`${name}: is read again, and the answer is right`, async () => {
      const w = world();
      const stop = await served(w);
      const c = client(w, (url, value, n) => (n === 2 ? tamper(url, value, n) : value));
      expect(await w.run(c.big(20_000))).toBe(text(20_000));
      expect(c.notes()).toHaveLength(2 * 4);
      await stop();
    });

    it(`${name} for good: is an error, and never an answer`, async () => {
      const w = world();
      const stop = await served(w);
      const c = client(w, (url, value, n) => (url.includes('-1?') ? tamper(url, value, n) : value));
      const begun = w.clock.now();
      await expect(w.run(c.big(20_000, { peer: callee.did }))).rejects.toMatchObject({ code: 'spill_lost' });
      expect(w.clock.now() - begun).toBeLessThan(3000);
      expect(c.notes().length).toBeLessThanOrEqual(3 * 4);
      await stop();
    });
  }

  it('is read although the service fails for a while', async () => {
    const w = world();
    const stop = await served(w);
    const c = client(w);
    let failures = 0;
    const fetch = faulty(c.o.fetch!, (url) =>
      url.includes('/kv/p-') && ++failures < 30 ? new Response('503 busy\n', { status: 503 }) : undefined,
    );
    expect(await w.run(c.big(20_000, { fetch }))).toBe(text(20_000));
    await stop();
  });

  it('is put anew where the call may ask again', async () => {
    const w = world();
    const stop = await served(w);
    // Spoils the first put, as one who overwrites it does.
    let bad: string | undefined;
    const c = client(w, (url, value) => {
      const set = /\/(\d)-\d+\?/.exec(url)![1];
      bad ??= set;
      return set === bad ? flip(value) : value;
    });
    runs = 0;
    expect(await w.run(c.big(20_000, { peer: callee.did, retry: 1 }))).toBe(text(20_000));
    expect(runs).toBe(1);
    await stop();
  });

  it('swapped with its neighbour is an error too', async () => {
    const w = world();
    const t = transportOf(w.o);
    const ref = await w.run(new Spills(t, callee).put(REPLY, JSON.stringify(text(20_000))));
    const [a, b, ...rest] = ref.keys as [string, string];
    await expect(w.run(readSpilled(t, { ...ref, keys: [b, a, ...rest] }))).rejects.toMatchObject({
      code: 'spill_lost',
    });
    expect(await w.run(readSpilled(t, ref))).toBe(JSON.stringify(text(20_000)));
  });
});

describe('a frame that says where an answer is', () => {
  /** A call that waits, and what reads of notes it makes of a frame somebody writes into its reply room. */
  async function told(
    frame: (ref: SpillRef, id: string) => Json,
    key: Signer = callee,
    peer: string | undefined = callee.did,
  ) {
    const w = world();
    const t = transportOf(w.o);
    const c = client(w);
    const id = 'waits';
    const work = call(MAILBOX, 'big', {}, caller, { ...c.o, id, timeoutMs: 3000, ...(peer && { peer }) });
    const outcome = work.catch((e) => e);
    await w.clock.advance(50);
    const answer = encode({ jsonrpc: '2.0', id, result: 'the answer' });
    const ref = await w.run(new Spills(t, callee).put(REPLY, answer));
    await w.run(key.say(REPLY, encode(frame(ref, id)), w.o));
    return { outcome: await w.run(outcome), reads: c.notes().length, events: w.kinds() };
  }
  const good = (ref: SpillRef, id: string): Json => ({ jsonrpc: '2.0', id, [FRAME_MEMBER]: ref });

  it('is followed when it is the answer of who may answer', async () => {
    expect(await told(good)).toMatchObject({ outcome: 'the answer', reads: 1 });
    expect(await told((ref, id) => [good(ref, id)])).toMatchObject({ outcome: 'the answer', reads: 1 });
  });

  it('costs no read when it is another key’s, or of no call that waits', async () => {
    const stranger = signer(9);
    expect(await told(good, stranger)).toMatchObject({ outcome: { code: 'call_timeout' }, reads: 0 });
    expect(await told((ref) => good(ref, 'another'))).toMatchObject({ outcome: { code: 'call_timeout' }, reads: 0 });
  });

  it('costs no read when it leads nowhere, and is then an error', async () => {
    const bad: ((ref: SpillRef) => Json)[] = [
      () => null as Json,
      () => 7,
      () => [],
      () => ({}),
      (ref) => ({ ...ref, ns: '../x' }),
      (ref) => ({ ...ref, ns: 'p-x/y' }),
      (ref) => ({ ...ref, keys: [] }),
      (ref) => ({ ...ref, keys: 'abc' }),
      (ref) => ({ ...ref, keys: Array(17).fill('0-0') }),
      (ref) => ({ ...ref, keys: ['0-0', '..'] }),
      (ref) => ({ ...ref, keys: [7] }),
      (ref) => ({ ...ref, bytes: -1 }),
      (ref) => ({ ...ref, bytes: 1e9 }),
      (ref) => ({ ...ref, bytes: `${ref.bytes}` }),
      (ref) => ({ ...ref, bytes: 1.5 }),
      (ref) => ({ ...ref, sha256: ref.sha256.toUpperCase() }),
      (ref) => ({ ...ref, sha256: 7 }),
    ];
    for (const make of bad) {
      const { outcome, reads } = await told((ref, id) => ({ jsonrpc: '2.0', id, [FRAME_MEMBER]: make(ref) }));
      expect(outcome.code, make.toString()).toBe('spill_lost');
      expect(reads, make.toString()).toBe(0);
    }
  });

  it('is an error when what it leads to is no answer to the question', async () => {
    for (const inner of [
      { jsonrpc: '2.0', id: 'other', result: 1 },
      { jsonrpc: '2.0', id: 'waits', method: 'x' },
      [],
      'x',
    ]) {
      const w = world();
      const t = transportOf(w.o);
      const c = client(w);
      const outcome = call(MAILBOX, 'big', {}, caller, { ...c.o, id: 'waits', peer: callee.did }).catch((e) => e);
      await w.clock.advance(50);
      const ref = await w.run(new Spills(t, callee).put(REPLY, JSON.stringify(inner)));
      await w.run(callee.say(REPLY, encode(good(ref, 'waits')), w.o));
      expect(await w.run(outcome)).toMatchObject({ code: 'spill_lost' });
    }
  });

  it('of a stranger, while anybody may answer, costs a few reads and hides no answer', async () => {
    const w = world();
    const c = client(w);
    const outcome = call(MAILBOX, 'big', {}, caller, { ...c.o, id: 'waits' });
    await w.clock.advance(50);
    const ref = {
      ns: 'p-nothing',
      keys: Array.from({ length: 16 }, (_, i) => `${i}`),
      bytes: 9,
      sha256: '0'.repeat(64),
    };
    for (let i = 0; i < 20; i++) await w.run(signer(9).say(REPLY, encode(good(ref, 'waits')), w.o));
    await w.clock.advance(5000);
    expect(c.notes().length).toBeLessThanOrEqual(4 * 3 * 16);
    await w.run(callee.say(REPLY, encode({ jsonrpc: '2.0', id: 'waits', result: 'right' }), w.o));
    expect(await w.run(outcome)).toBe('right');
  });
});

it('an answer that no note can take is an error that says so', async () => {
  const w = world('modern', { notes: 3 });
  const stop = await served(w, { presence: false });
  expect(await rpcOf(w, client(w).big(50_000))).toMatchObject({ code: -32603, data: { limit: 4096 } });
  expect(w.kinds()).toContain('unspilled');
  await stop();
});

it('a room that may be somebody else’s gets one line, not notes', async () => {
  const w = world();
  const stop = await served(w);
  const other = 'mb-p-somebody-else';
  await w.run(signer(3).say(other, 'mine', w.o));
  const meta = { 'chat.technocore/reply': other, 'chat.technocore/spill': true };
  const before = w.service.stats.writes;
  await w.run(caller.say(MAILBOX, requestFrame('x', 'big', { n: 50_000, _meta: meta }), w.o));
  await w.clock.advance(100);
  expect(w.service.stats.writes - before).toBe(2);
  const { messages } = await w.run(read(other, w.o));
  expect(JSON.parse(messages.at(-1)!.text)).toMatchObject({ error: { code: -32603 } });
  await stop();
});

it('large answers of one key take turns with the small ones of another', async () => {
  const w = world('modern', { writesPerMinute: 30 });
  const stop = await served(w, { presence: false });
  const greedy = client(w);
  const meek = { ...w.o, fetch: w.service.client('meek'), replyTo: 'mb-p-spill-meek' };
  await w.run(call(MAILBOX, 'big', { n: 1 }, signer(3), meek));
  await w.run(greedy.big(1));
  budgetOf(w.t, 'write').learn(30, 2);
  const large = Promise.all([1, 2, 3].map(() => greedy.big(60_000, { timeoutMs: 300_000 })));
  await w.clock.advance(5000);
  const begun = w.clock.now();
  expect(await w.run(call(MAILBOX, 'big', { n: 2 }, signer(3), meek))).toBe('sp');
  expect(w.clock.now() - begun).toBeLessThan(9000);
  expect(await w.run(large)).toEqual([text(60_000), text(60_000), text(60_000)]);
  expect(w.service.stats.refused).toBe(0);
  await stop();
});

it('in a sealed channel the chunks are sealed, and nobody else’s chunk opens', async () => {
  const w = world();
  const key = new Uint8Array(32).fill(7);
  const room = 'p-spill-sealed';
  const written: string[] = [];
  const seen = ((url: string, init: RequestInit = {}) => {
    if (url.includes('/set/')) written.push(decodeURIComponent(url.split('/set/')[1]!));
    else if (!isSay(url, init) && init.body) written.push(String(init.body));
    return w.service.fetch(url, init);
  }) as typeof globalThis.fetch;
  const server = { ...w.o, fetch: seen };
  const stop = await served(w, server, sealed(room, key, callee, { ...server, peer: caller.did }));
  const o = { ...w.o, fetch: w.service.client('caller') };
  const channel = sealed(room, key, caller, { ...o, peer: callee.did });
  expect(await w.run(call(channel, 'big', { n: 90 * 1024 }, caller, o))).toBe(text(90 * 1024));
  expect(written).toHaveLength(16);
  for (const value of written) expect(Buffer.from(value, 'base64url').toString('latin1')).not.toContain('spilled');
  const outsider = new Spills(transportOf(w.o), callee);
  const ref = await w.run(outsider.put(room, '"open"'));
  await expect(w.run(channel.spill!.get(ref))).rejects.toMatchObject({ code: 'spill_lost' });
  await stop();
});

it('what one key puts through several channels to one place is kept apart, in notes whose number is bounded', async () => {
  const w = world();
  const put = async (n: number): Promise<[Spill, Json]> => {
    const spill = spillOf(w.t, caller, MAILBOX);
    return [spill, await w.run(spill.put(`"${n}"`))];
  };
  const many = [];
  for (let n = 0; n < 40; n++) many.push(await put(n));
  for (const [n, [spill, ref]] of many.entries()) expect(await w.run(spill.get(ref))).toBe(`"${n}"`);
  for (let n = 0; n < 60; n++) await put(n);
  expect(w.service.stats.notes).toBe(64);
});

it('places are bounded by the day', async () => {
  const w = world();
  const spills = new Spills(transportOf(w.o), callee);
  for (let i = 0; i < 256; i++) await w.run(spills.put(`mb-p-${i}`, '"x"'));
  await expect(w.run(spills.put('mb-p-more', '"x"'))).rejects.toMatchObject({ code: 'spill_full' });
  await w.run(spills.put('mb-p-7', '"x"'));
  await w.clock.advance(86_400_000);
  await w.run(spills.put('mb-p-more', '"x"'));
  await w.run(setNote('any', 'note', 'x', w.o));
});
