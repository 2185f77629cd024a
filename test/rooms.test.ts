import { getEventListeners } from 'node:events';
import { describe, expect, test } from 'vitest';
import { MayHaveLanded, RingGap, StaleNonce, Unavailable } from '../src/errors.ts';
import { type Options, transportOf } from '../src/http.ts';
import { createLocalService } from '../src/local.ts';
import type { Message } from '../src/messages.ts';
import { follow, RoomCursor, read, say, saySigned } from '../src/rooms.ts';
import { broken, faker, faulty, isSay, PROFILES, signer, until, view, type World, world } from './support.ts';
import { settled } from './virtual-clock.ts';

const DAY = 86_400_000;
const alice = signer(1);
const bob = signer(2);

/** All messages of a room, read afresh. */
const texts = async (w: World, room = 'x'): Promise<string[]> =>
  (await read(room, { ...w.o, limit: 200 })).messages.map((m) => m.text);

/** Follows a room in the background. */
function following(w: World, room: string, since?: number) {
  const stop = new AbortController();
  const seen: Message[] = [];
  const end = (async () => {
    for await (const m of follow(room, { ...w.o, signal: stop.signal, ...(since !== undefined && { since }) }))
      seen.push(m);
  })().catch((e) => e);
  return { seen, end, stop: () => stop.abort('stopped') };
}

/** The requests that go out through `o`, as paths. */
function logged(o: World['o']): { o: World['o']; log: string[] } {
  const log: string[] = [];
  const fetch = faulty(o.fetch, (url, init) => {
    log.push(`${init.method} ${url.slice(o.base.length)}`);
    return undefined;
  });
  return { o: { ...o, fetch }, log };
}

describe.each(PROFILES)('reading, %s', (profile) => {
  test('the newest messages, oldest first; since and limit', async () => {
    const w = world(profile);
    for (let i = 1; i <= 5; i++) await say('x', 'a', `m${i}`, w.o);
    const all = await read('x', w.o);
    expect(all).toMatchObject({ room: 'x', firstSeq: 1, lastSeq: 5 });
    expect(all.messages.map(({ seq, text }) => [seq, text])).toEqual([1, 2, 3, 4, 5].map((n) => [n, `m${n}`]));
    expect(Object.keys(all).sort()).toEqual(
      ['firstSeq', 'lastSeq', 'messages', 'room', ...(profile === 'modern' ? ['generation'] : [])].sort(),
    );
    expect((await read('x', { ...w.o, limit: 2 })).messages.map((m) => m.seq)).toEqual([4, 5]);
    expect((await read('x', { ...w.o, since: 3 })).messages.map((m) => m.seq)).toEqual([4, 5]);
  });

  test('waits for what comes', async () => {
    const w = world(profile);
    const waiting = read('x', { ...w.o, since: 0, waitMs: 5000 });
    await say('x', 'a', 'hi', w.o);
    expect((await waiting).messages.map((m) => m.text)).toEqual(['hi']);
    const begun = w.clock.now();
    expect((await w.run(read('x', { ...w.o, since: 1, waitMs: 5000 }))).messages).toEqual([]);
    expect(w.clock.now() - begun).toBeGreaterThanOrEqual(5000);
  });

  test('fault 59: a room that is not there reads as empty', async () => {
    const w = world(profile);
    expect(await read('mb-p-tpyo', w.o)).toMatchObject({ firstSeq: null, lastSeq: 0, messages: [] });
    await expect(read('Über', w.o)).rejects.toMatchObject({ code: 'bad_name' });
    await expect(follow('a b', w.o).next()).rejects.toMatchObject({ code: 'bad_name' });
  });

  test('fault 14: signed and unsigned messages differ in what they have', async () => {
    const w = world(profile);
    await say('x', 'did-key', 'u', w.o);
    await alice.say('x', 's', w.o);
    const [unsigned, signed] = (await read('x', w.o)).messages;
    expect(unsigned).not.toHaveProperty('nonce');
    expect(unsigned!.from).toBe('did-key');
    expect(signed).toMatchObject({ from: alice.did, nonce: expect.stringMatching(/^\d+$/) });
    expect('sig' in signed!).toBe(profile === 'modern');
  });

  test('fault 45: following finds the tail first, and every wait has a cursor', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('x', 'a', `old ${i}`, w.o);
    const { o, log } = logged(w.o);
    const f = following({ ...w, o }, 'x');
    await w.clock.advance(1);
    await say('x', 'a', 'new', w.o);
    await w.clock.advance(25_000);
    f.stop();
    expect(await f.end).toBe('stopped');
    expect(f.seen.map((m) => m.text)).toEqual(['new']);
    expect(log[0]).not.toMatch(/wait|since/);
    for (const url of log.filter((u) => u.includes('wait='))) expect(url).toMatch(/since=\d+/);
    expect(log.length).toBeLessThan(7);
  });

  test('fault 46: what is said the moment after the cursor was read is not missed', async () => {
    const w = world(profile);
    const cursor = new RoomCursor(w.t, 'x');
    await cursor.toTail();
    await say('x', 'a', 'quick', w.o);
    expect((await cursor.next(0)).value?.messages.map((m) => m.text)).toEqual(['quick']);
  });

  test('fault 47: a cursor beyond the room is noticed, and the room read from its beginning', async () => {
    const w = world(profile);
    for (let i = 0; i < 15; i++) await say('x', 'a', `${i}`, w.o);
    const begun = w.clock.now();
    const f = following(w, 'x', 999_999);
    await w.run(f.end);
    // Not longer than one held read.
    expect(w.clock.now() - begun).toBeLessThan(11_000);
    const gap = (await f.end) as RingGap;
    expect(gap).toMatchObject({ code: 'ring_gap', room: 'x', expected: 1_000_000, oldest: 1, reason: 'recreated' });
    expect(w.kinds()).toContain('epoch');
    const again = following(w, 'x', gap.oldest - 1);
    await w.clock.advance(1);
    expect(again.seen).toHaveLength(15);
    again.stop();
    await again.end;
  });

  test('fault 47: an empty answer never moves the cursor', async () => {
    const w = world(profile);
    await say('x', 'a', '1', w.o);
    const cursor = new RoomCursor(w.t, 'x');
    await cursor.toTail();
    for (let i = 0; i < 20; i++) await w.run(cursor.next(10));
    expect(cursor.since).toBe(1);
    await say('x', 'a', '2', w.o);
    expect((await cursor.next(0)).value?.messages.map((m) => m.seq)).toEqual([2]);
  });

  test('fault 48, 49: a room that was reaped and recreated is another one: its first message comes, and the loss is told', async () => {
    const w = world(profile);
    for (let i = 0; i < 5; i++) await say('x', 'a', `${i}`, w.o);
    const cursor = new RoomCursor(w.t, 'x');
    await cursor.toTail();
    w.service.age('x', 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    await say('x', 'a', 'reborn', w.o);
    let batch: Awaited<ReturnType<RoomCursor['next']>>['value'];
    for (let i = 0; i < 10 && !batch; i++) batch = (await w.run(cursor.next(10))).value;
    expect(batch?.gap).toMatchObject({ reason: 'recreated', expected: 6 });
    expect(batch?.messages.map((m) => m.text)).toEqual(['reborn']);
    expect(cursor.epoch).not.toBe(0);
    await say('x', 'a', 'next', w.o);
    const { value } = await cursor.next(0);
    expect(value?.gap).toBeUndefined();
    expect(value?.messages.map((m) => m.text)).toEqual(['next']);
  });

  test.each(['more comes first', 'the look fails'])(
    'fault 48: what a room recreated in a long silence held before is looked for until that is known, when %s',
    async (when) => {
      const w = world(profile);
      for (let i = 0; i < 5; i++) await say('x', 'a', `${i}`, w.o);
      let fails = false;
      const fetch = faulty(w.o.fetch, (url) => {
        if (!fails || url.includes('since=')) return undefined;
        fails = false;
        throw broken();
      });
      const cursor = new RoomCursor(transportOf({ ...w.o, fetch }), 'x');
      await cursor.toTail();
      for (let i = 0; i < 8; i++) await w.run(cursor.next(10));
      w.service.age('x', 8 * DAY);
      await w.clock.advance(1000);
      await say('elsewhere', 'a', 'runs the reaper', w.o);
      for (let i = 0; i < 6; i++) await say('x', 'a', `new ${i}`, w.o);
      const seen: string[] = [];
      const look = async (): Promise<void> => {
        const { value } = await w.run(cursor.next(10));
        for (const { text } of value?.messages ?? []) seen.push(text);
      };
      await look();
      if (when === 'the look fails') {
        fails = profile === '0.7';
        const failed = await look().catch((e) => e.code);
        expect(failed).toBe(profile === '0.7' ? 'unavailable' : undefined);
      } else {
        await say('x', 'a', 'more', w.o);
        await look();
      }
      await look();
      expect(seen).toEqual(expect.arrayContaining(['new 0', 'new 4', 'new 5']));
      // Told once.
      const epochs = w.kinds().filter((kind) => kind === 'epoch');
      for (let i = 0; i < 8; i++) await look();
      expect([epochs.length, w.kinds().filter((kind) => kind === 'epoch').length]).toEqual([1, 1]);
    },
  );

  test.each([0, 2, 5])(
    'fault 48: a service that came back without its rooms is noticed at once, after %i messages',
    async (n) => {
      const w = world(profile);
      for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
      let reach: typeof fetch = w.o.fetch;
      const o = { ...w.o, fetch: ((...args) => reach(...args)) as typeof fetch };
      const cursor = new RoomCursor(transportOf(o), 'x');
      await cursor.toTail();
      reach = () => Promise.reject(broken());
      await expect(cursor.next(0)).rejects.toThrow(Unavailable);
      await w.clock.advance(1000);
      reach = createLocalService({ profile, clock: w.clock }).fetch;
      for (let i = 0; i < n; i++) await say('x', 'a', `new ${i}`, o);
      const batches = [await cursor.next(0), await cursor.next(0)].map(({ value }) => value);
      expect(batches.find((batch) => batch?.gap)?.gap).toMatchObject({ reason: 'recreated' });
      const seen = batches.flatMap((batch) => batch?.messages ?? []).map(({ text }) => text);
      expect([...new Set(seen)].sort()).toEqual([...Array(n).keys()].map((i) => `new ${i}`));
    },
  );

  test('fault 48: a place that was kept tells the same room from another, though the seqs fit', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
    const before = new RoomCursor(w.t, 'x');
    await before.toTail();
    const place = before.place!;
    const same = new RoomCursor(w.t, 'x');
    same.place = place;
    await say('x', 'a', 'more', w.o);
    expect((await same.next(0)).value).toMatchObject({ messages: [{ text: 'more' }] });

    await w.clock.advance(1000);
    w.service.age('x', 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    for (let i = 0; i < 5; i++) await say('x', 'a', `new ${i}`, w.o);
    const other = new RoomCursor(w.t, 'x');
    other.place = place;
    const { value } = await other.next(0);
    expect(value?.gap).toMatchObject({ reason: 'recreated' });
    expect(value?.messages).toHaveLength(5);
  });

  test('a place before what was seen tells the room from another by the last message seen', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
    const { messages, generation } = await read('x', w.o);
    const start = { since: 0, last: 3, mark: messages[2]!.ts, ...(generation !== undefined && { generation }) };
    const same = new RoomCursor(w.t, 'x');
    same.place = start;
    expect((await same.next(0)).value).toMatchObject({ messages: [{ seq: 1 }, { seq: 2 }, { seq: 3 }] });
    expect(w.kinds()).not.toContain('epoch');

    await w.clock.advance(1000);
    w.service.age('x', 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    for (let i = 0; i < 5; i++) await say('x', 'a', `new ${i}`, w.o);
    const other = new RoomCursor(w.t, 'x');
    other.place = start;
    const { value } = await other.next(0);
    expect(value?.messages.map(({ text }) => text)).toEqual([0, 1, 2, 3, 4].map((i) => `new ${i}`));
    // With generations, the seq goes on.
    expect(value?.gap?.reason).toBe(profile === '0.7' ? 'recreated' : 'overflow');
  });

  test('a room found to be another one only after some of it was read: all that was lost is older than it', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
    let fails = false;
    const fetch = faulty(w.o.fetch, () => (fails ? Promise.reject(broken()) : undefined));
    const cursor = new RoomCursor(transportOf({ ...w.o, fetch }), 'x');
    await cursor.toTail();
    fails = true;
    await expect(w.run(cursor.next(0))).rejects.toMatchObject({ code: 'unavailable' });
    fails = false;
    w.service.age('x', 8 * DAY);
    await w.clock.advance(1000);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    const begun = w.clock.now();
    for (let i = 0; i < 5; i++) {
      await say('x', 'a', `new ${i}`, w.o);
      await w.clock.advance(1000);
    }
    const batches = [(await cursor.next(0)).value, (await w.run(cursor.next(10))).value];
    const recreated = batches.find((batch) => batch?.gap?.reason === 'recreated');
    expect(recreated?.before).toBe(begun);
  });

  test('a place that was set and left for the end of the room says nothing about what comes then', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
    const cursor = new RoomCursor(w.t, 'x');
    await cursor.toTail();
    cursor.place = cursor.place!;
    await w.clock.advance(1000);
    w.service.age('x', 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    for (let i = 0; i < 4; i++) await say('x', 'a', `new ${i}`, w.o);
    await cursor.toTail();
    await say('x', 'a', 'more', w.o);
    const { value } = await cursor.next(0);
    expect(value?.messages.map(({ text }) => text)).toEqual(['more']);
    expect(value?.gap).toBeUndefined();
  });

  test('fault 52: what the ring dropped is a gap with its range', async () => {
    const w = world(profile, { roomRingBytes: 4000 });
    await say('x', 'a', 'first', w.o);
    const cursor = new RoomCursor(w.t, 'x');
    await cursor.toTail();
    for (let i = 0; i < 30; i++) await say('x', 'a', `${i} ${'x'.repeat(200)}`, w.o);
    const { value } = await cursor.next(0);
    expect(value!.gap).toBeInstanceOf(RingGap);
    expect(value!.gap).toMatchObject({ room: 'x', expected: 2, oldest: value!.messages[0]!.seq, reason: 'overflow' });
    expect(value!.messages.at(-1)!.seq).toBe(31);
    expect(cursor.since).toBe(31);
  });

  test('what an ephemeral room lost behind a place that was set is a gap, though it was empty when last read', async () => {
    const w = world(profile, { roomRingBytes: 4000 });
    const cursor = new RoomCursor(w.t, 'e-x');
    await cursor.toTail();
    await say('e-x', 'a', 'first', w.o);
    const other = new RoomCursor(w.t, 'e-x');
    await other.toTail();
    cursor.place = other.place!;
    for (let i = 0; i < 30; i++) await say('e-x', 'a', `${i} ${'x'.repeat(200)}`, w.o);
    expect((await cursor.next(0)).value?.gap).toMatchObject({ expected: 2, reason: 'overflow' });
  });

  test('an ephemeral room whose messages expired is the same room, and its seq goes on', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('e-x', 'a', `${i}`, w.o);
    const f = following(w, 'e-x');
    await w.clock.advance(1_000_000);
    await say('e-x', 'a', 'late', w.o);
    await w.clock.advance(1);
    expect(f.seen.map((m) => [m.seq, m.text])).toEqual([[4, 'late']]);
    f.stop();
    expect(await f.end).toBe('stopped');
  });

  test('an ephemeral room that was idle and is then recreated is noticed with its first message', async () => {
    const w = world(profile);
    for (let i = 0; i < 3; i++) await say('e-x', 'a', `${i}`, w.o);
    const cursor = new RoomCursor(w.t, 'e-x');
    await cursor.toTail();
    await w.clock.advance(1_000_000);
    for (let i = 0; i < 8; i++) expect((await w.run(cursor.next(10))).value).toBeUndefined();
    w.service.age('e-x', 8 * DAY);
    await say('elsewhere', 'a', 'runs the reaper', w.o);
    const held = w.run(cursor.next(10_000));
    await say('e-x', 'a', 'new', w.o);
    expect((await held).value).toMatchObject({ messages: [{ text: 'new' }], gap: { reason: 'recreated' } });
    await say('e-x', 'a', 'more', w.o);
    const { value } = await cursor.next(0);
    expect(value?.messages.map((m) => m.text)).toEqual(['more']);
    expect(value?.gap).toBeUndefined();
  });

  test('an ephemeral room whose old messages show again, as the clock of the service was set back, is the same', async () => {
    let offset = 0;
    const w = world(profile, {}, (clock) => ({
      now: () => clock.now() + offset,
      sleep: (ms, signal) => clock.sleep(ms, signal),
    }));
    for (let i = 0; i < 3; i++) await say('e-x', 'a', `${i}`, w.o);
    const cursor = new RoomCursor(w.t, 'e-x');
    await cursor.toTail();
    await w.clock.advance(1_000_000);
    for (let i = 0; i < 8; i++) expect((await w.run(cursor.next(10))).value).toBeUndefined();
    offset = -900_000;
    expect((await w.run(cursor.next(10))).value).toBeUndefined();
    await say('e-x', 'a', 'new', w.o);
    const { value } = await cursor.next(0);
    expect(value).toMatchObject({ messages: [{ seq: 4, text: 'new' }] });
    expect(value?.gap).toBeUndefined();
  });

  test('fault 53: a service that holds nobody is asked about once in two seconds', async () => {
    const w = world(profile, { waitersPerAddress: 0 });
    const f = following(w, 'x');
    await w.clock.advance(60_000);
    expect(w.service.stats.requests).toBeLessThan(42);
    await say('x', 'a', 'hi', w.o);
    await w.clock.advance(2500);
    expect(f.seen).toHaveLength(1);
    f.stop();
    await f.end;
  });

  test('trouble is waited out, and nothing is lost or seen twice', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!/wait=/.test(url)) return undefined;
      switch (n++ % 4) {
        case 0:
          throw broken();
        case 1:
          return new Response('<html>busy</html>', { status: 503 });
        case 2:
          return new Response('<html>not the service</html>');
        default:
          // The answer is lost on its way, after the service gave it.
          await w.o.fetch(url, init);
          throw broken();
      }
    });
    // Every fifth request comes through.
    const sometimes = faulty(w.o.fetch, (url, init) => (n % 5 === 4 && n++ ? undefined : fetch(url, init)));
    const f = following({ ...w, o: { ...w.o, fetch: sometimes } }, 'x');
    await w.clock.advance(1);
    for (let i = 0; i < 6; i++) {
      await say('x', 'a', `${i}`, w.o);
      await w.clock.advance(30_000);
    }
    expect(f.seen.map((m) => m.text)).toEqual(['0', '1', '2', '3', '4', '5']);
    f.stop();
    await f.end;
  });
});

test('a service that lost its rooms counts generations from the beginning', async () => {
  const w = world('modern');
  await say('x', 'a', 'first', w.o);
  w.service.age('x', 8 * DAY);
  await w.clock.advance(1000);
  await say('elsewhere', 'a', 'runs the reaper', w.o);
  await say('x', 'a', 'second', w.o);
  let { fetch } = w.o;
  const o = { ...w.o, fetch: ((url, init) => fetch(url, init)) as typeof globalThis.fetch };
  const cursor = new RoomCursor(transportOf(o), 'x');
  await cursor.toTail();
  expect(cursor.place).toMatchObject({ since: 2, generation: 2 });
  fetch = world('modern').o.fetch;
  for (const text of ['new 1', 'new 2']) await say('x', 'a', text, o);
  const { value } = await cursor.next(0);
  expect(value?.messages.map(({ text }) => text)).toEqual(['new 1', 'new 2']);
  expect(value?.gap?.reason).toBe('recreated');
});

describe('gaps', () => {
  const flood = async (w: World, n: number, size = 1): Promise<void> => {
    for (let i = 0; i < n; i++) await say('x', 'a', `${i} ${'x'.repeat(size)}`, w.o);
  };

  test('fault 51: 450 messages behind, all of them come where the service has an export', async () => {
    const w = world();
    await say('x', 'a', 'first', w.o);
    await flood(w, 450);
    const cursor = new RoomCursor(w.t, 'x', 1);
    const { value } = await cursor.next(0);
    expect(value!.gap).toBeUndefined();
    expect(value!.messages.map((m) => m.seq)).toEqual(Array.from({ length: 450 }, (_, i) => i + 2));
  });

  test('fault 51: without an export the 200 newest come, and the range that is missing is told', async () => {
    const w = world('0.7');
    await say('x', 'a', 'first', w.o);
    const cursor = new RoomCursor(w.t, 'x', 1);
    await flood(w, 450);
    const { value } = await cursor.next(0);
    expect(value!.messages).toHaveLength(200);
    expect(value!.gap).toMatchObject({ expected: 2, oldest: 252, reason: 'overflow' });
    const f = following(w, 'x', 1);
    expect(await w.run(f.end)).toMatchObject({ code: 'ring_gap', oldest: 252 });
    const { requests } = w.service.stats;
    await flood(w, 250);
    await cursor.next(0);
    // It is known by now that there is no export.
    expect(w.service.stats.requests - requests).toBe(251);
  });

  test('what comes after a long silence may follow upon a message that was never seen: one look tells', async () => {
    const w = world('0.7');
    await say('x', 'a', 'old', w.o);
    const cursor = new RoomCursor(w.t, 'x', 0);
    expect((await cursor.next(0)).value!.messages).toHaveLength(1);
    for (let i = 0; i < 7; i++) expect((await cursor.next(0)).value).toBeUndefined();
    w.service.age('x', 8 * 86_400_000);
    await w.clock.advance(1000);
    await say('elsewhere', 'a', 'time passes', w.o);
    await say('x', 'a', 'missed', w.o);
    await say('x', 'a', 'seen', w.o);
    const textsOf = async () => (await cursor.next(0)).value?.messages.map(({ text }) => text);
    expect(await textsOf()).toEqual(['seen']);
    expect(await textsOf()).toEqual(['missed', 'seen']);
    // Where messages come all the time nothing is looked into.
    const { requests } = w.service.stats;
    for (let i = 0; i < 3; i++) {
      await say('x', 'a', `${i}`, w.o);
      expect(await textsOf()).toEqual([`${i}`]);
      expect(await textsOf()).toBeUndefined();
    }
    expect(w.service.stats.requests - requests).toBe(9);
  });

  test('an export that fails for a while is tried again; one that fails on and on is a gap', async () => {
    for (const [fails, lost] of [
      [3, false],
      [99, true],
    ] as const) {
      const w = world();
      await say('x', 'a', 'first', w.o);
      await flood(w, 250);
      let n = 0;
      const fetch = faulty(w.o.fetch, (url) =>
        /\/export/.test(url) && n++ < fails ? new Response('', { status: 503 }) : undefined,
      );
      const f = following({ ...w, o: { ...w.o, fetch } }, 'x', 1);
      await w.clock.advance(60_000);
      if (lost) expect(await f.end).toMatchObject({ code: 'ring_gap', expected: 2, oldest: 52 });
      else expect(f.seen).toHaveLength(250);
      expect(n).toBeLessThan(7);
      f.stop();
      await f.end;
    }
  });

  test('a 404 of somebody else does not make the export unknown for good', async () => {
    const w = world();
    await say('x', 'a', 'first', w.o);
    let n = 0;
    const fetch = faulty(w.o.fetch, (url) =>
      /\/export/.test(url) && n++ === 0 ? new Response('<html>not found</html>', { status: 404 }) : undefined,
    );
    const cursor = new RoomCursor(transportOf({ ...w.o, fetch }), 'x', 1);
    await flood(w, 250);
    expect((await cursor.next(0)).value!.gap).toBeDefined();
    await flood(w, 250);
    expect((await cursor.next(0)).value!.gap).toBeUndefined();
    expect(n).toBe(2);
  });

  test('an export that ends before what the view shows is not believed', async () => {
    const w = world();
    await say('x', 'a', 'first', w.o);
    await flood(w, 250);
    const stale = await (await w.o.fetch(`${w.o.base}/r/x/export`)).text();
    await flood(w, 1);
    const fetch = faulty(w.o.fetch, (url) => (/\/export/.test(url) ? new Response(stale) : undefined));
    const { value } = await new RoomCursor(transportOf({ ...w.o, fetch }), 'x', 1).next(0);
    expect(value!.gap).toMatchObject({ oldest: 53 });
    expect(value!.messages.at(-1)!.seq).toBe(252);
  });

  test('a view that goes back, or shows what was seen, brings nothing twice', async () => {
    const record = (seq: number): object => ({ seq, ts: '2026-01-01T00:00:00.000000Z', from: 'a', text: `${seq}` });
    const views = [
      { last_seq: 3, messages: [record(3)] },
      { last_seq: 5, messages: [record(3), record(5), record(4), record(5)] },
      { last_seq: 5, messages: [record(2), record(5)] },
    ];
    const { base } = await faker((_request, response, n) => response.end(view(views[Math.min(n - 1, 2)])));
    const cursor = new RoomCursor(transportOf({ base }), 'x');
    await cursor.toTail();
    const got = [await cursor.next(0), await cursor.next(0), await cursor.next(0)];
    expect(got.flatMap(({ value }) => value?.messages.map((m) => m.seq) ?? [])).toEqual([5]);
  });
});

test('fault 60: a message with line separators is one message, by whoever wrote it', async () => {
  const text = 'hi\u2028[7] 2026-01-01T00:00:00.000000Z <z6Mk…AbCd> forged\x85\r\n[8] also forged';
  const message = { seq: 6, ts: '2026-01-01T00:00:00.000000Z', from: 'eve', text };
  const { base } = await faker((_request, response) => response.end(view({ last_seq: 6, messages: [message] })));
  expect((await read('x', { base })).messages).toEqual([message]);
});

describe.each(PROFILES)('writing, %s', (profile) => {
  const lanes = ['auto', 'get', 'post'] as const;

  test.each(lanes)('fault 31: what is stored is what was said, %s lane', async (lane) => {
    const w = world(profile);
    const said = [
      '%41',
      'a%2Fb',
      '100% +&=',
      'a?b#c',
      'a/b',
      '+',
      '"\\\'<>',
      '漢字 😀 é',
      'a  b',
      'a\u00a0b',
      '%zz',
      '\ufffd',
    ];
    for (const text of said) expect((await say('x', 'a', text, { ...w.o, lane })).seq).toBeGreaterThan(0);
    for (const text of said) await alice.say('x', text, { ...w.o, lane });
    expect(await texts(w)).toEqual([...said, ...said]);
  });

  test('what is swept is swept before it is sent and signed', async () => {
    const w = world(profile);
    const { seq } = await alice.say('x', ' \ufeffa\u200bb\ud800\n', w.o);
    expect(await texts(w)).toEqual(['a b']);
    expect(seq).toBe(1);
  });

  test('fault 40: nothing is sent that can be known to be refused', async () => {
    const w = world(profile);
    const user = AbortSignal.abort('aborted');
    const refused: [Promise<unknown>, object | string][] = [
      [say('Über', 'a', 'x', w.o), { code: 'bad_name' }],
      [say('x', 'A b', 'x', w.o), { code: 'bad_name' }],
      [say('x', 'a', '\u200b\n', w.o), { code: 'empty_text' }],
      [say('x', 'a', '😀'.repeat(4097), w.o), { code: 'frame_too_long', chars: 4097, limit: 4096 }],
      [say('x', 'a', '漢'.repeat(4096), { ...w.o, lane: 'get' }), { code: 'post_only' }],
      [say('x', 'a', 'x', { ...w.o, base: 'nowhere' }), { code: 'bad_name' }],
      [say('x', 'a', 'x', { ...w.o, signal: user }), 'aborted'],
      [alice.say('x/y', 'x', w.o), { code: 'bad_name' }],
      [alice.say('x', ' ', w.o), { code: 'empty_text' }],
      [alice.say('x', 'x', { ...w.o, signal: user }), 'aborted'],
    ];
    for (const [work, e] of refused) {
      if (typeof e === 'string') await expect(work).rejects.toBe(e);
      else await expect(work).rejects.toMatchObject(e);
    }
    expect(w.service.stats.requests).toBe(0);
  });

  test('4,096 astral characters fit, signed and unsigned', async () => {
    const w = world(profile);
    await say('x', 'a', '😀'.repeat(4096), w.o);
    await alice.say('x', '😀'.repeat(4096), w.o);
    expect(await texts(w)).toEqual(['😀'.repeat(4096), '😀'.repeat(4096)]);
  });

  test('fault 33: a write that lands and whose answer is lost is found, and stands there once', async () => {
    for (const answer of [
      () => Promise.reject(broken()),
      () => new Response('bad gateway', { status: 502 }),
      () => new Response('<html>fine</html>'),
      () => new Response('{"room":"x","last_seq":1,"messages":[]}'),
    ]) {
      const w = world(profile);
      await say('x', 'a', 'before', w.o);
      let n = 0;
      const { o, log } = logged(w.o);
      const fetch = faulty(o.fetch, async (url, init) => {
        if (!isSay(url, init) || n++ > 0) return undefined;
        await o.fetch(url, init);
        return answer();
      });
      const { seq, nonce } = await w.run(alice.say('x', 'once', { ...o, fetch }));
      expect(seq).toBe(2);
      const { messages } = await read('x', w.o);
      expect(messages.map((m) => m.text)).toEqual(['before', 'once']);
      expect(messages[1]!.nonce).toBe(nonce);
      expect(log.filter((u) => u.includes('say-signed'))).toHaveLength(1);
    }
  });

  test('fault 33: one that got lost is sent again, the same bytes', async () => {
    const w = world(profile);
    const { o, log } = logged(w.o);
    let n = 0;
    const fetch = faulty(o.fetch, async (url, init) => {
      if (!isSay(url, init) || n++ > 2) return undefined;
      log.push(`lost ${url.slice(o.base.length)}`);
      throw broken('UND_ERR_SOCKET');
    });
    expect((await w.run(alice.say('x', 'once', { ...o, fetch }))).seq).toBe(1);
    expect(await texts(w)).toEqual(['once']);
    const urls = log.filter((u) => u.includes('say-signed')).map((u) => u.split(' ')[1]);
    expect(urls).toHaveLength(4);
    expect(new Set(urls).size).toBe(1);
  });

  test('fault 34: refused as a repeat after a loss, it is settled by reading, whoever else wrote', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!isSay(url, init) || n++ > 0) {
        // The look before the resend fails too: so the resend goes out, and is refused.
        if (!isSay(url, init) && n === 1) {
          n++;
          throw broken();
        }
        return undefined;
      }
      await w.o.fetch(url, init);
      await say('x', 'b', 'meanwhile', w.o);
      throw broken();
    });
    expect((await w.run(alice.say('x', 'once', { ...w.o, fetch }))).seq).toBe(1);
    expect(await texts(w)).toEqual(['once', 'meanwhile']);
  });

  test('fault 34: something on the way that sends a URL twice makes one message and no error', async () => {
    const w = world(profile);
    const twice = faulty(w.o.fetch, async (url, init) => {
      if (isSay(url, init)) await w.o.fetch(url, init);
      return undefined;
    });
    expect((await w.run(alice.say('x', 'once', { ...w.o, fetch: twice }))).seq).toBe(1);
    expect(await texts(w)).toEqual(['once']);
  });

  test('two programs with one key that met on one nonce: both texts stand there in the end', async () => {
    const w = world(profile);
    const twin = signer(1);
    const [a, b] = await w.run(Promise.all([alice.say('x', 'from one', w.o), twin.say('x', 'from the other', w.o)]));
    expect((await texts(w)).sort()).toEqual(['from one', 'from the other']);
    expect(a.nonce).not.toBe(b.nonce);
  });

  test('a key that is behind goes above the last nonce; what the service can never take ends in an error', async () => {
    const w = world(profile);
    const ahead = String(w.clock.now() + 3_600_000);
    const { did, sig } = alice.signMessage('x', ahead, 'ahead');
    await w.o.fetch(`${w.o.base}/r/x/say-signed/${did}/${sig}/${ahead}/ahead`);
    expect(BigInt((await w.run(alice.say('x', 'behind', w.o))).nonce)).toBeGreaterThan(BigInt(ahead));

    const huge = '9999999999999999999';
    const other = bob.signMessage('x', huge, 'last');
    await w.o.fetch(`${w.o.base}/r/x/say-signed/${other.did}/${other.sig}/${huge}/last`);
    await expect(w.run(bob.say('x', 'never', w.o))).rejects.toMatchObject({ code: 'bad_nonce' });
    expect(await texts(w)).toEqual(['ahead', 'behind', 'last']);
  });

  test('a service that takes no nonce at all is not hammered', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, (url, init) => {
      if (!isSay(url, init)) return undefined;
      n++;
      const nonce = BigInt(/\/(\d+)\/never/.exec(url)![1]!);
      return new Response(
        `400 nonce ${nonce} is not greater than ${nonce + 5n}, the last one this key used in /r/x\n`,
        { status: 400 },
      );
    });
    await expect(w.run(alice.say('x', 'never', { ...w.o, fetch }))).rejects.toBeInstanceOf(StaleNonce);
    expect(n).toBeLessThan(20);
  });

  test('fault 35: a 408 was not executed: it goes out again, unsigned too', async () => {
    for (const write of [(o: Options) => alice.say('x', 'slow', o), (o: Options) => say('x', 'a', 'slow', o)]) {
      const w = world(profile);
      let n = 0;
      const fetch = faulty(w.o.fetch, (url, init) =>
        isSay(url, init) && n++ < 2
          ? new Response('408 too slow\n', { status: 408, headers: { connection: 'close' } })
          : undefined,
      );
      expect((await w.run(write({ ...w.o, fetch }))).seq).toBe(1);
      expect(await texts(w)).toEqual(['slow']);
    }
  });

  test('fault 37: the day’s new rooms are spent: RoomBudget, at once', async () => {
    const w = world(profile, { newRoomsPerDay: 1 });
    await say('x', 'a', '1', w.o);
    const begun = w.clock.now();
    const e = await say('y', 'a', '1', w.o).catch((e) => e);
    expect(e).toMatchObject({ code: 'room_budget' });
    expect(e.retryAfterMs).toBeGreaterThan(3_600_000);
    await expect(alice.say('z', '1', w.o)).rejects.toMatchObject({ code: 'room_budget' });
    expect(w.clock.now()).toBe(begun);
  });

  test('fault 38: no more rooms anywhere: CapacityReached, and no word of bad input', async () => {
    const w = world(profile, { rooms: 2 });
    await say('x', 'a', '1', w.o);
    await expect(say('y', 'a', '1', w.o)).rejects.toMatchObject({ code: 'capacity_reached' });
    await expect(alice.say('z', '1', w.o)).rejects.toMatchObject({ code: 'capacity_reached' });
    await say('x', 'a', '2', w.o);
  });

  test('fault 55: the write budget is waited for, and nothing is written twice', async () => {
    const w = world(profile, { writesPerMinute: 5 });
    for (let i = 0; i < 5; i++) await w.run(say('x', 'a', `${i}`, w.o));
    const begun = w.clock.now();
    await w.run(say('x', 'a', 'unsigned', w.o));
    await w.run(alice.say('x', 'signed', w.o));
    expect(w.clock.now() - begun).toBeGreaterThan(20_000);
    expect(w.kinds()).toContain('throttled');
    expect(await texts(w)).toEqual(['0', '1', '2', '3', '4', 'unsigned', 'signed']);
  });

  test('mailboxes take no unsigned line: Forbidden', async () => {
    const w = world(profile);
    await expect(say('mb-x', 'a', '1', w.o)).rejects.toMatchObject({ code: 'forbidden', status: 403 });
    await expect(say('events', 'a', '1', w.o)).rejects.toMatchObject({ code: 'forbidden' });
    expect((await alice.say('mb-x', '1', w.o)).seq).toBe(1);
  });

  test('an unsigned write whose answer is lost may have landed, and is not sent again', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      n++;
      await w.o.fetch(url, init);
      throw broken();
    });
    await expect(say('x', 'a', '1', { ...w.o, fetch })).rejects.toMatchObject({ code: 'may_have_landed', room: 'x' });
    expect(n).toBe(1);
    const mine = new Unavailable('my own reason');
    const user = new AbortController();
    const stuck = faulty(
      w.o.fetch,
      (_url, init) =>
        new Promise((_, reject) => init.signal!.addEventListener('abort', () => reject(init.signal!.reason))),
    );
    const work = say('x', 'a', '2', { ...w.o, fetch: stuck, signal: user.signal }).catch((e) => e);
    user.abort(mine);
    expect(await work).toBe(mine);
  });

  test('what could not be sent at all is no doubt: Unavailable, in the end', async () => {
    const w = world(profile);
    const fetch = faulty(w.o.fetch, () => Promise.reject(broken('ECONNREFUSED')));
    await expect(w.run(alice.say('x', '1', { ...w.o, fetch }))).rejects.toMatchObject({ code: 'unavailable' });
    await expect(w.run(say('x', 'a', '1', { ...w.o, fetch }))).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('a doubt that nobody can settle ends as one, by the deadline, though the clock be set back an hour', async () => {
    const w = world(profile);
    let offset = 0;
    const clock = {
      now: () => w.clock.now() + offset,
      sleep: (ms: number, signal?: AbortSignal) => w.clock.sleep(ms, signal),
    };
    let n = 0;
    const fetch = faulty(w.o.fetch, () => {
      if (++n === 3) offset = -3_600_000;
      return Promise.reject(broken());
    });
    const begun = w.clock.now();
    const e = await w.run(saySigned(transportOf({ ...w.o, clock, fetch }), alice, 'x', '1').catch((e) => e));
    expect(e).toBeInstanceOf(MayHaveLanded);
    expect(e).toMatchObject({ room: 'x', nonce: expect.stringMatching(/^\d+$/), cause: { code: 'unavailable' } });
    expect(w.clock.now() - begun).toBeLessThan(60_000);
  });

  test('writes of one key to one room leave in order, whatever the network does to them', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!isSay(url, init)) return undefined;
      if (n++ % 3 === 0) {
        await w.clock.sleep(100);
        throw broken();
      }
      if (n % 3 === 1) {
        await w.o.fetch(url, init);
        throw broken();
      }
      return undefined;
    });
    const all = Array.from({ length: 12 }, (_, i) => `m${i}`);
    await w.run(Promise.all(all.map((text) => alice.say('x', text, { ...w.o, fetch }))));
    expect(await texts(w)).toEqual(all);
  });

  test('fault 55, 82: aborted wherever it may wait, it ends with the reason, and nothing is left behind', async () => {
    const trouble: ((w: World) => (url: string, init: RequestInit) => Promise<Response | undefined>)[] = [
      // Hangs.
      () => (_url, init) =>
        new Promise((_, reject) => init.signal!.addEventListener('abort', () => reject(init.signal!.reason))),
      // Waits for its turn.
      () => async () => new Response('', { status: 429, headers: { 'retry-after': '20' } }),
      // Lands, and the answer is lost.
      (w) => async (url, init) => {
        await w.o.fetch(url, init);
        throw broken();
      },
      // Is refused, while in doubt.
      () => async (url, init) => (isSay(url, init) ? new Response('', { status: 502 }) : undefined),
    ];
    for (const make of trouble) {
      for (const afterMs of [0, 60, 250, 900]) {
        const w = world(profile);
        const user = new AbortController();
        const fetch = faulty(w.o.fetch, make(w));
        const first = alice.say('x', 'one', { ...w.o, fetch, signal: user.signal }).catch((e) => e);
        const second = alice.say('x', 'two', { ...w.o, fetch, signal: user.signal }).catch((e) => e);
        await w.clock.advance(afterMs);
        const reason = new Unavailable('mine');
        user.abort(reason);
        const [a, b] = await Promise.all([first, second]);
        for (const outcome of [a, b]) expect(outcome === reason || 'seq' in outcome).toBe(true);
        expect(b).toBe(reason);
        await settled();
        expect(w.clock.sleepers).toBe(0);
        expect(getEventListeners(user.signal, 'abort')).toEqual([]);
        // The key is not blocked.
        expect((await w.run(alice.say('x', 'three', w.o))).seq).toBeGreaterThan(0);
      }
    }
  });
});

describe('doubts that cannot be settled', () => {
  /** Writes as alice with the answer lost and `n` others' messages before she looks. */
  async function lostAmid(w: World, n: number, room = 'x', lands = true): Promise<unknown> {
    let first = true;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!first || !isSay(url, init)) return undefined;
      first = false;
      if (lands) await w.o.fetch(url, init);
      for (let i = 0; i < n; i++) await say(room, 'b', `${i} ${'x'.repeat(100)}`, w.o);
      throw broken();
    });
    return w.run(alice.say(room, 'mine', { ...w.o, fetch }).catch((e) => e));
  }

  test('more than a view holds came since, and there is no export: MayHaveLanded, and no second message', async () => {
    for (const lands of [true, false]) {
      const w = world('0.7');
      expect(await lostAmid(w, 250, 'x', lands)).toMatchObject({ code: 'may_have_landed' });
      const { requests } = w.service.stats;
      await w.clock.advance(60_000);
      expect(w.service.stats.requests).toBe(requests);
    }
  });

  test('with an export it is found, or sent again', async () => {
    for (const lands of [true, false]) {
      const w = world();
      expect(await lostAmid(w, 250, 'x', lands)).toMatchObject({ seq: lands ? 1 : 251 });
    }
  });

  test('a small ring may have dropped it: MayHaveLanded, also where there is an export', async () => {
    for (const profile of PROFILES) {
      const w = world(profile, { roomRingBytes: 4000 });
      expect(await lostAmid(w, 60)).toMatchObject({ code: 'may_have_landed' });
    }
  });

  test('a room that goes back far enough shows that it is not there', async () => {
    for (const profile of PROFILES) {
      const w = world(profile, { roomRingBytes: 30_000 });
      for (let i = 0; i < 300; i++) await say('x', 'b', `${i}`, w.o);
      await w.clock.advance(3_600_000);
      expect(await lostAmid(w, 5, 'x', false)).toMatchObject({ seq: 306 });
    }
  });

  test('an ephemeral room shows all of its last minutes, wherever it begins', async () => {
    for (const profile of PROFILES) {
      const w = world(profile);
      for (let i = 0; i < 5; i++) await say('e-x', 'b', `${i}`, w.o);
      await w.clock.advance(1_000_000);
      expect(await lostAmid(w, 3, 'e-x', false)).toMatchObject({ seq: 9 });
    }
  });

  test('the look itself may fail for a while', async () => {
    const w = world();
    let first = true;
    let looks = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (isSay(url, init)) {
        if (!first) return undefined;
        first = false;
        await w.o.fetch(url, init);
        throw broken();
      }
      return looks++ < 3 ? new Response('', { status: 503 }) : undefined;
    });
    expect(await w.run(alice.say('x', 'mine', { ...w.o, fetch }))).toMatchObject({ seq: 1 });
    expect(await texts(w)).toEqual(['mine']);
  });

  test('proof that it landed is enough, though it can no longer be seen', async () => {
    const w = world('0.7');
    let n = 0;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!isSay(url, init)) throw broken();
      if (n++ > 0) return undefined;
      await w.o.fetch(url, init);
      throw broken();
    });
    // No look succeeds, so nothing is sent again either.
    expect(await w.run(alice.say('x', 'mine', { ...w.o, fetch }).catch((e) => e))).toMatchObject({
      code: 'may_have_landed',
    });
    expect(n).toBe(1);
  });
});

describe('the newest service', () => {
  test('fault 36: the sixth copy of a text within a minute: DuplicateText, at once', async () => {
    const w = world();
    const text = 'a text of more than sixteen characters';
    for (let i = 0; i < 5; i++) await say('x', `a${i}`, text, w.o);
    const begun = w.clock.now();
    const { requests } = w.service.stats;
    await expect(alice.say('x', text, w.o)).rejects.toMatchObject({ code: 'duplicate_text', status: 422 });
    await expect(say('x', 'a', text, w.o)).rejects.toMatchObject({ code: 'duplicate_text' });
    expect(w.service.stats.requests - requests).toBe(2);
    expect(w.clock.now()).toBe(begun);
  });

  test('what else stands in the room is told of a write', async () => {
    const w = world();
    expect(await saySigned(w.t, alice, 'mb-x', 'one')).toMatchObject({ seq: 1, alone: true });
    expect(await saySigned(w.t, alice, 'mb-x', 'two')).toMatchObject({ seq: 2, alone: true });
    await bob.say('mb-x', 'hi', w.o);
    expect(await saySigned(w.t, alice, 'mb-x', 'three')).toMatchObject({ seq: 4, alone: false });
    // Another program with our key reads there.
    await alice.say('mb-y', 'mailbox opened', w.o);
    expect(await saySigned(w.t, alice, 'mb-y', 'one')).toMatchObject({ seq: 2, alone: false });
  });
});

test('fault 57: on a real socket, a write whose answer stalls half way is settled', async () => {
  const w = world();
  const { url, close } = await w.service.listen();
  let first = true;
  const { base } = await faker(async (request, response) => {
    const reply = await fetch(url + request.url);
    const body = await reply.text();
    response.writeHead(reply.status, {
      'content-length': body.length,
      'content-type': reply.headers.get('content-type')!,
    });
    if (first && request.url!.includes('say-signed')) {
      first = false;
      response.write(body.slice(0, 20));
      setTimeout(() => response.destroy(), 20);
    } else response.end(body);
  });
  expect((await alice.say('x', 'hi', { base })).seq).toBe(1);
  expect((await read('x', { base: url })).messages).toHaveLength(1);
  await close();
});

test('following ends by return, by break and by abort, and leaves no read behind', async () => {
  const w = world();
  await say('x', 'a', '1', w.o);
  for await (const m of follow('x', { ...w.o, since: 0 })) {
    expect(m.text).toBe('1');
    break;
  }
  const f = following(w, 'x');
  await w.clock.advance(1);
  expect(w.service.stats.parked).toBe(1);
  f.stop();
  await f.end;
  await settled();
  expect(w.service.stats.parked).toBe(0);
  expect(w.clock.sleepers).toBe(0);
  await until(() => w.service.stats.timers === 0);
});
