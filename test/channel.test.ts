import { describe, expect, test } from 'vitest';
import { checkMailbox, isChannel, isMailbox, mailboxPair, openMailbox } from '../src/channel.ts';
import { BadName } from '../src/errors.ts';
import { authorOf, Feed, feedOf, type Incoming, type Listener } from '../src/feed.ts';
import { budgetOf, transportOf } from '../src/http.ts';
import type { Message } from '../src/messages.ts';
import { read, say } from '../src/rooms.ts';
import { broken, faulty, PROFILES, signer, type World, world } from './support.ts';
import { settled } from './virtual-clock.ts';

const alice = signer(1);
const bob = signer(2);

interface Heard extends Listener {
  texts: string[];
  got: Incoming[];
  gaps: number;
  ends: unknown[];
}
function heard(): Heard {
  const listener: Heard = {
    texts: [],
    got: [],
    gaps: 0,
    ends: [],
    message: (m) => {
      listener.got.push(m);
      listener.texts.push(m.text);
    },
    gap: () => void listener.gaps++,
    end: (cause) => void listener.ends.push(cause),
  };
  return listener;
}

describe('mailboxes by name', () => {
  test('a room of class mb', () => {
    for (const name of ['mb-x', 'mb-p-x', 'p-mb-x', 'e-mb-d-x']) {
      expect(isMailbox(name)).toBe(true);
      expect(checkMailbox(name)).toBe(name);
    }
    for (const name of ['mb', 'x-mb-y', 'lobby', 'mb-X', '', 'mb-x\n', undefined, null, 7, {}]) {
      expect(isMailbox(name)).toBe(false);
      expect(() => checkMailbox(name as string)).toThrow(BadName);
    }
    const { t } = world();
    expect(() => mailboxPair(t, alice, 'lobby', 'mb-x')).toThrow(BadName);
    expect(() => mailboxPair(t, alice, 'mb-x', 'lobby')).toThrow(BadName);
  });

  test('what a channel is', () => {
    const channel = mailboxPair(world().t, alice, 'mb-a', 'mb-b');
    expect(channel.room).toBe('mb-a');
    expect([channel, 'mb-a', null, undefined, {}, { send() {} }].map(isChannel)).toEqual([
      true,
      false,
      false,
      false,
      false,
      false,
    ]);
  });
});

describe.each(PROFILES)('a feed, %s', (profile) => {
  const listening = async (w: World, feed: Feed, listener: Listener): Promise<() => void> =>
    w.run(feed.listen(listener));

  test('one loop and one parked read, however many listen; each hears all from when it came, in order', async () => {
    const w = world(profile);
    const feed = feedOf(w.t, 'x');
    expect(feedOf(transportOf(w.o), 'x')).toBe(feed);
    const all = Array.from({ length: 20 }, heard);
    const leave = await Promise.all(all.map((listener) => listening(w, feed, listener)));
    await w.clock.advance(1);
    expect(w.service.stats.parked).toBe(1);
    for (let i = 0; i < 3; i++) await say('x', 'a', `${i}`, w.o);
    await w.clock.advance(1);
    for (const { texts } of all) expect(texts).toEqual(['0', '1', '2']);
    const late = heard();
    leave.push(await listening(w, feed, late));
    await say('x', 'a', '3', w.o);
    await w.clock.advance(1);
    expect(late.texts).toEqual(['3']);
    expect(w.service.stats.parkedMost).toBe(1);
    for (const end of leave) end();
    await settled();
    expect([w.service.stats.parked, feed.idle]).toEqual([0, true]);
    expect(w.clock.sleepers).toBe(0);
  });

  test('who comes and goes and comes again hears everything once, though it be the same listener', async () => {
    const w = world(profile);
    const feed = feedOf(w.t, 'x');
    const one = heard();
    const first = await listening(w, feed, one);
    const second = await listening(w, feed, one);
    first();
    first();
    await say('x', 'a', 'hi', w.o);
    await w.clock.advance(1);
    expect(one.texts).toEqual(['hi']);
    second();
    await settled();
    expect(w.service.stats.parked).toBe(0);
  });

  test('a warm cursor costs no read, and one that has been idle for long skips what came meanwhile', async () => {
    const w = world(profile);
    const feed = feedOf(w.t, 'x');
    (await listening(w, feed, heard()))();
    await settled();
    await say('x', 'a', 'soon', w.o);
    const { reads } = w.service.stats;
    const soon = heard();
    const leave = await listening(w, feed, soon);
    await w.clock.advance(1);
    expect(soon.texts).toEqual(['soon']);
    expect(w.service.stats.reads - reads).toBe(2);
    leave();
    await w.clock.advance(60_000);
    await say('x', 'a', 'meanwhile', w.o);
    const late = heard();
    (await listening(w, feed, late))();
    await w.clock.advance(1);
    expect(late.texts).toEqual([]);
  });

  test('an aborted start leaves nothing behind, and does not disturb who came at the same time', async () => {
    const w = world(profile);
    let go!: () => void;
    const gate = new Promise<void>((resolve) => (go = resolve));
    const fetch = faulty(w.o.fetch, async () => void (await gate));
    const feed = new Feed(transportOf({ ...w.o, fetch }), 'x');
    const user = new AbortController();
    const gone = heard();
    const stays = heard();
    const aborted = feed.listen(gone, { signal: user.signal }).catch((e) => e);
    const started = feed.listen(stays);
    user.abort('no');
    expect(await aborted).toBe('no');
    go();
    const leave = await started;
    await say('x', 'a', 'hi', w.o);
    await w.clock.advance(1);
    expect([gone.texts, stays.texts]).toEqual([[], ['hi']]);
    leave();
    await settled();
    expect([w.service.stats.parked, w.clock.sleepers]).toEqual([0, 0]);
  });

  test('a start that all have left starts no loop', async () => {
    const w = world(profile);
    const user = new AbortController();
    const feed = feedOf(w.t, 'x');
    const aborted = feed.listen(heard(), { signal: user.signal }).catch((e) => e);
    user.abort('no');
    await aborted;
    await settled();
    await settled();
    expect([w.service.stats.parked, w.clock.sleepers, feed.idle]).toEqual([0, 0, true]);
  });

  test('a start that fails is told to all who wait, and the next one tries again', async () => {
    const w = world(profile);
    let down = true;
    const fetch = faulty(w.o.fetch, () => (down ? new Response('', { status: 503 }) : undefined));
    const feed = new Feed(transportOf({ ...w.o, fetch }), 'x');
    const outcomes = await w.run(Promise.allSettled([feed.listen(heard()), feed.listen(heard())]));
    for (const outcome of outcomes)
      expect(outcome).toMatchObject({ status: 'rejected', reason: { code: 'unavailable' } });
    down = false;
    (await w.run(feed.listen(heard())))();
  });

  test('what cannot be waited out ends the loop for all, once; who listens again begins anew', async () => {
    const w = world(profile);
    let refuse = false;
    const fetch = faulty(w.o.fetch, (url) =>
      refuse && /wait=/.test(url) ? new Response('403 no\n', { status: 403 }) : undefined,
    );
    const feed = new Feed(transportOf({ ...w.o, fetch }), 'x');
    const [one, two] = [heard(), heard()];
    await listening(w, feed, one);
    await listening(w, feed, two);
    refuse = true;
    await say('x', 'a', 'wakes the read', w.o);
    await w.clock.advance(1);
    for (const { ends } of [one, two]) expect(ends).toMatchObject([{ code: 'forbidden' }]);
    expect(feed.idle).toBe(true);
    refuse = false;
    const three = heard();
    const leave = await listening(w, feed, three);
    await say('x', 'a', 'again', w.o);
    await w.clock.advance(1);
    expect(three.texts.at(-1)).toBe('again');
    leave();
  });

  test('its place is behind what all got, and a place is where another begins', async () => {
    const w = world(profile);
    const feed = feedOf(w.t, 'x');
    await say('x', 'a', '1', w.o);
    const leave = await listening(w, feed, heard());
    expect(feed.place).toMatchObject({ since: 1 });
    await say('x', 'a', '2', w.o);
    await w.clock.advance(1);
    const place = feed.place!;
    expect(place.since).toBe(2);
    leave();
    await say('x', 'a', '3', w.o);
    const later = heard();
    const end = await w.run(new Feed(w.t, 'x').listen(later, { from: place }));
    await w.clock.advance(1);
    expect(later.texts).toEqual(['3']);
    end();
  });

  test('one that catches up holds up nobody, and gets each message once, also those that come meanwhile', async () => {
    const w = world(profile);
    for (let i = 1; i <= 5; i++) await say('x', 'a', `${i}`, w.o);
    let isSlow = false;
    let held = 0;
    const free: (() => void)[] = [];
    const fetch = faulty(w.o.fetch, async (url) => {
      // The first read of one that is behind.
      if (!isSlow || held > 0 || !/\/r\/x\?/.test(url) || url.includes('wait=')) return undefined;
      held++;
      // What is shown is what stood there when it was asked for.
      const reply = await w.o.fetch(url);
      await new Promise<void>((resolve) => free.push(resolve));
      return reply;
    });
    const feed = feedOf(transportOf({ ...w.o, fetch }), 'x');
    const first = heard();
    const leave = await listening(w, feed, first);
    await say('x', 'a', '6', w.o);
    await w.until(() => first.texts.length === 1);
    isSlow = true;
    const late = heard();
    const joining = feed.listen(late, { from: { since: 2 } });
    await w.until(() => held === 1);
    await say('x', 'a', '7', w.o);
    await say('x', 'a', '8', w.o);
    await w.until(() => first.texts.length === 3);
    expect(late.texts).toEqual([]);
    expect(feed.place).toMatchObject({ since: 2 });
    free[0]!();
    const leaveLate = await w.run(joining);
    await say('x', 'a', '9', w.o);
    await w.until(() => first.texts.length === 4 && late.texts.includes('9'));
    expect(first.texts).toEqual(['6', '7', '8', '9']);
    expect(late.texts).toEqual(['3', '4', '5', '6', '7', '8', '9']);
    leaveLate();
    leave();
  });

  test('a gap is told after what came with it', async () => {
    const w = world(profile, { roomRingBytes: 4000 });
    await say('x', 'a', 'first', w.o);
    const order: string[] = [];
    const listener = {
      ...heard(),
      message: (m: Incoming) => void order.push(m.text),
      gap: () => void order.push('gap'),
    };
    for (let i = 0; i < 30; i++) await say('x', 'a', `${i} ${'x'.repeat(200)}`, w.o);
    const end = await w.run(new Feed(w.t, 'x').listen(listener, { from: { since: 1 } }));
    await w.clock.advance(1);
    expect(order.at(-1)).toBe('gap');
    expect(order.at(-2)).toMatch(/^29 /);
    end();
  });
});

test('idle feeds are forgotten beyond a number, those in use never', async () => {
  const w = world();
  const used = feedOf(w.t, 'used');
  const leave = await w.run(used.listen(heard()));
  const idle = feedOf(w.t, 'idle');
  for (let i = 0; i < 400; i++) feedOf(w.t, `r${i}`);
  expect(feedOf(w.t, 'used')).toBe(used);
  expect(feedOf(w.t, 'idle')).not.toBe(idle);
  leave();
});

describe('authors', () => {
  const signed = (text: string, key = alice): Message => {
    const { did, sig, nonce } = key.signMessage('x', '7', text);
    return { seq: 1, ts: '', from: did, text, nonce, sig };
  };

  test('fault 13: a signature is checked here; without one the word of a service counts that never kept any', () => {
    const { t, kinds } = world();
    const { sig: _sig, ...bare } = signed('hi');
    expect(authorOf(t, 'x', bare)).toBe(alice.did);
    expect(authorOf(t, 'x', { ...signed('hi'), from: bob.did })).toBe('');
    expect(authorOf(t, 'x', { ...signed('hi'), text: 'ho' })).toBe('');
    expect(authorOf(t, 'x', bare)).toBe(alice.did);
    expect(authorOf(t, 'x', signed('hi'))).toBe(alice.did);
    // From now on one that is missing was taken away.
    expect(authorOf(t, 'x', bare)).toBe('');
    expect(authorOf(t, 'x', { seq: 1, ts: '', from: 'alice', text: 'hi' })).toBe('');
    expect(kinds()).toEqual(['refused', 'refused', 'refused']);
  });

  test('each service has its own history', () => {
    const [one, other] = [world().t, world().t];
    authorOf(one, 'x', signed('hi'));
    const { sig: _sig, ...bare } = signed('ho');
    expect([authorOf(one, 'x', bare), authorOf(other, 'x', bare)]).toEqual(['', alice.did]);
  });
});

describe.each(PROFILES)('a mailbox is opened, %s', (profile) => {
  test('by one signed line, once for all who ask; and not again where one stands', async () => {
    const w = world(profile);
    await Promise.all(Array.from({ length: 20 }, () => openMailbox(w.t, 'mb-p-a', alice)));
    await openMailbox(w.t, 'mb-p-a', alice);
    expect(w.service.stats).toMatchObject({ reads: 1, writes: 1 });
    // Another process with the same key.
    const other = transportOf({ ...w.o, fetch: w.service.client('b') });
    await openMailbox(other, 'mb-p-a', alice);
    await openMailbox(other, 'mb-p-a', bob);
    expect((await read('mb-p-a', w.o)).messages.map((m) => m.from)).toEqual([alice.did, bob.did]);
  });

  test('what failed is tried by the next one; an abort ends the waiting alone', async () => {
    const w = world(profile);
    let down = true;
    const fetch = faulty(w.o.fetch, () => (down ? Promise.reject(broken('ECONNREFUSED')) : undefined));
    const t = transportOf({ ...w.o, fetch });
    const user = new AbortController();
    const aborted = openMailbox(t, 'mb-p-a', alice, user.signal)!.catch((e) => e);
    const waiting = openMailbox(t, 'mb-p-a', alice)!.catch((e) => e);
    user.abort('no');
    expect(await aborted).toBe('no');
    expect(await w.run(waiting)).toMatchObject({ code: 'unavailable' });
    down = false;
    await openMailbox(t, 'mb-p-a', alice);
    expect((await read('mb-p-a', w.o)).messages).toHaveLength(1);
  });

  test('again once the line is out of sight, beside what is sent, unless that takes waiting', async () => {
    const w = world(profile, { writesPerMinute: 120 });
    const budget = budgetOf(w.t, 'write');
    const pair = mailboxPair(w.t, alice, 'mb-p-b', 'mb-p-a');
    const leave = await w.run(pair.listen(heard(), new AbortController().signal));
    const lines = async (): Promise<number> => {
      const { messages } = await w.run(read('mb-p-a', { ...w.o, limit: 200 }));
      return messages.filter(({ from }) => from === alice.did).length;
    };
    await w.run(pair.send('one'));
    for (let i = 0; i < 60; i++) {
      await w.run(bob.say('mb-p-a', `${i}`, { ...w.o, fetch: w.service.client(`bob${i >> 3}`) }));
    }
    await w.clock.advance(1000);
    expect(await lines()).toBe(1);
    const idle = w.clock.sleepers;
    // One is left, which what is sent takes.
    budget.learn(120, 1);
    await w.run(pair.send('two'));
    await settled();
    expect([await lines(), w.clock.sleepers]).toEqual([1, idle]);
    budget.learn(120, 120);
    await w.clock.advance(60_000);
    await w.run(pair.send('three'));
    await settled();
    expect(await lines()).toBe(2);
    leave();
    await settled();
    expect(w.clock.sleepers).toBe(0);
  });
});
