import { describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import { transportOf } from '../src/http.ts';
import { ReplyRooms } from '../src/replies.ts';
import { read } from '../src/rooms.ts';
import type { ServeOptions } from '../src/serve.ts';
import { echoing, requestFrame, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-fair-callee';
const callee = signer(1);
const greedy = signer(2);
const meek = signer(3);

async function served(w: World, o: ServeOptions = {}) {
  const { ended, stop } = await echoing(w, MAILBOX, callee, o);
  return async () => {
    stop();
    await w.run(ended);
  };
}

/** Writes of the server to a room. */
const answersIn = async (w: World, room: string): Promise<number> =>
  (await w.run(read(room, { ...w.o, limit: 200 }))).messages.filter((m) => m.from === callee.did).length;

describe('a key that sends 1,000 requests for answers in other people’s mailboxes', () => {
  it('takes no more than its share of writes, reads and rooms, and delays nobody for long', async () => {
    // The flood comes from many addresses, a hundred a second: the service does not slow it.
    const w = world('modern', { readsPerMinute: 120, writesPerMinute: 30, wakeStepMs: 500 });
    const rooms = Array.from({ length: 200 }, (_, i) => `mb-p-third-${i}`);
    for (const [i, room] of rooms.slice(0, 60).entries()) {
      await w.run(signer(100 + (i % 50)).say(room, 'mine', { ...w.o, fetch: w.service.client(`owner ${i}`) }));
    }
    const stop = await served(w);
    const o = { ...w.o, fetch: w.service.client('meek'), replyTo: 'mb-p-fair-meek' };
    expect(await w.run(call(MAILBOX, 'echo', { n: 0 }, meek, o))).toBe(0);

    const readsBefore = w.service.stats.reads;
    const flood = (async () => {
      for (let i = 0; i < 1000; i++) {
        const room = rooms[i % rooms.length]!;
        const meta = { 'chat.technocore/reply': room, 'chat.technocore/spill': true };
        const frame = requestFrame(`flood-${i}`, 'echo', { n: i, _meta: meta });
        await w.clock.sleep(10);
        await greedy.say(MAILBOX, frame, { ...w.o, fetch: w.service.client(`greedy ${i >> 4}`) });
      }
    })();
    const begun = w.clock.now();
    const answers = await w.run(
      Promise.all([1, 2, 3, 4, 5].map((n) => call(MAILBOX, 'echo', { n }, meek, { ...o, timeoutMs: 30_000 }))),
    );
    expect(answers).toEqual([1, 2, 3, 4, 5]);
    expect(w.clock.now() - begun).toBeLessThan(30_000);
    await w.run(flood);
    expect(await w.run(call(MAILBOX, 'echo', { n: 6 }, meek, o))).toBe(6);
    await w.clock.advance(300_000);

    const counts = [];
    for (const room of rooms) counts.push(await answersIn(w, room));
    expect(Math.max(...counts)).toBeLessThanOrEqual(10);
    const sum = counts.reduce((a, b) => a + b);
    expect(sum).toBeLessThanOrEqual(30);
    expect(sum).toBeGreaterThan(0);
    expect(counts.slice(60).filter((n) => n > 0).length, 'rooms made').toBeLessThanOrEqual(5);
    expect(w.service.stats.reads - readsBefore).toBeLessThan(60 + 200 + 300 / 5 + 200);
    await stop();
  });
});

describe('rooms in which a key was never seen', () => {
  it('get so many answers each, and all of one key so many together, a day', async () => {
    const w = world();
    const replies = new ReplyRooms(w.t, MAILBOX);
    for (const room of ['mb-a', 'mb-b', 'mb-c', 'mb-d', 'mb-e']) await w.run(meek.say(room, 'mine', w.o));
    const admitted = async (from: string, room: string, times: number): Promise<number> => {
      let count = 0;
      for (let i = 0; i < times; i++) if (await w.run(replies.admits(from, room))) count++;
      return count;
    };
    expect(await admitted(greedy.did, 'mb-a', 12)).toBe(10);
    expect(await admitted(greedy.did, 'mb-b', 12)).toBe(10);
    expect(await admitted(greedy.did, 'mb-c', 12)).toBe(6);
    expect(await admitted(greedy.did, 'mb-d', 12)).toBe(0);
    expect(await admitted(signer(4).did, 'mb-d', 3)).toBe(3);
    expect(await admitted(signer(4).did, 'mb-a', 3), 'the room has its share').toBe(0);
    expect(await w.run(replies.admits(meek.did, 'mb-a'))).toBe('proved');
    await w.clock.advance(86_400_000);
    expect(await admitted(greedy.did, 'mb-d', 3)).toBe(3);
  });

  it('are looked into one at a time for one key, and not without end; where it was seen costs nothing of that', async () => {
    const w = world();
    let looking = 0;
    let most = 0;
    let looks = 0;
    const fetch = (async (url: string, init: RequestInit) => {
      looks++;
      most = Math.max(most, ++looking);
      await w.clock.sleep(5);
      looking--;
      return w.service.fetch(url, init);
    }) as typeof globalThis.fetch;
    const replies = new ReplyRooms(transportOf({ ...w.o, fetch }), MAILBOX);
    await w.run(greedy.say('mb-own', 'mine', w.o));
    const all = Array.from({ length: 300 }, (_, i) => replies.admits(greedy.did, `mb-other-${i}`));
    const outcomes = await w.run(Promise.all(all));
    expect(most).toBe(1);
    expect(looks).toBe(60);
    expect(
      outcomes.filter((one) => one === 'unproved'),
      'five rooms that nobody wrote to',
    ).toHaveLength(5);
    const fresh = new ReplyRooms(transportOf({ ...w.o, fetch }), MAILBOX);
    for (let i = 0; i < 100; i++) {
      expect(await w.run(fresh.admits(greedy.did, 'mb-own'))).toBe('proved');
      await w.clock.advance(3_700_000 / 4);
    }
  });
});
