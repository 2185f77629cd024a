import { describe, expect, test } from 'vitest';
import { publishIdentity } from '../src/identity.ts';
import { identityNote } from '../src/names.ts';
import { setNote } from '../src/notes.ts';
import { Daily, type ReplyLimits, ReplyRooms } from '../src/replies.ts';
import { faulty, PROFILES, type Profile, signer, world } from './support.ts';

const alice = signer(1);
const bob = signer(2);

function rooms(profile: Profile = 'modern', limits?: ReplyLimits) {
  const w = world(profile);
  return { ...w, replies: new ReplyRooms(w.t, 'mb-p-served', limits) };
}
const hint = async (did: string, mailbox: string, o: object): Promise<void> => {
  const { ns, key } = identityNote(did);
  await setNote(ns, key, `${did} mailbox:${mailbox}`, o);
};

describe.each(PROFILES)('where an answer goes, %s', (profile) => {
  test('fault 71: only to a mailbox, never to the one that is served; and then nowhere else', async () => {
    const { replies, service } = rooms(profile);
    expect(await replies.find(alice.did, 'mb-p-a')).toBe('mb-p-a');
    for (const bad of [
      'lobby',
      'mb',
      'x-mb-y',
      'events',
      'mb-p-served',
      'MB-p-x',
      'mb-p-x\n',
      '',
      7,
      null,
      {},
      ['mb-p-a'],
    ]) {
      expect(await replies.find(alice.did, bad)).toBeUndefined();
    }
    expect(service.stats.requests).toBe(0);
  });

  test('named in the request, else signed, else used last, else hinted at', async () => {
    const { replies, o, clock } = rooms(profile);
    expect(await replies.find(bob.did, undefined)).toBeUndefined();
    await hint(alice.did, 'mb-p-hint', o);
    expect(await replies.find(alice.did, undefined)).toBe('mb-p-hint');
    await replies.find(alice.did, 'mb-p-last');
    await clock.advance(60_001);
    expect(await replies.find(alice.did, undefined)).toBe('mb-p-last');
    await publishIdentity(alice, { mailbox: 'mb-p-signed' }, o);
    await clock.advance(60_001);
    expect(await replies.find(alice.did, undefined)).toBe('mb-p-signed');
    expect(await replies.find(alice.did, 'mb-p-named')).toBe('mb-p-named');
  });

  test('a note that names the served mailbox, or no mailbox, names nothing', async () => {
    const { replies, o } = rooms(profile);
    await publishIdentity(alice, { mailbox: 'mb-p-served' }, o);
    await publishIdentity(bob, { mailbox: 'lobby' }, o);
    expect(await replies.find(alice.did, undefined)).toBeUndefined();
    expect(await replies.find(bob.did, undefined)).toBeUndefined();
  });

  test('who is asked for again within a minute is not looked up again, also when the clock is set back', async () => {
    const w = world(profile);
    let offset = 0;
    const clock = { now: () => w.clock.now() + offset, sleep: w.clock.sleep.bind(w.clock) };
    const replies = new ReplyRooms({ ...w.t, clock }, 'mb-p-served');
    await replies.find(alice.did, undefined);
    const { requests } = w.service.stats;
    await replies.find(alice.did, undefined);
    expect(w.service.stats.requests).toBe(requests);
    await hint(alice.did, 'mb-p-hint', w.o);
    offset = -3_600_000;
    expect(await replies.find(alice.did, undefined)).toBe('mb-p-hint');
  });
});

describe.each(PROFILES)('how many answers go there, %s', (profile) => {
  test('fault 71: few into a room where the key was never seen; as many as it likes into its own', async () => {
    const { replies, o, clock } = rooms(profile, { unprovedPerDay: 3 });
    await bob.say('mb-p-victim', 'mine', o);
    const outcomes = [];
    for (let i = 0; i < 5; i++) outcomes.push(await replies.admits(alice.did, 'mb-p-victim'));
    expect(outcomes).toEqual(['unproved', 'unproved', 'unproved', undefined, undefined]);
    // Another key that names the same room gets none more.
    expect(await replies.admits(signer(3).did, 'mb-p-victim')).toBeUndefined();
    for (let i = 0; i < 5; i++) expect(await replies.admits(bob.did, 'mb-p-victim')).toBe('proved');
    await clock.advance(86_400_000);
    expect(await replies.admits(alice.did, 'mb-p-victim')).toBe('unproved');
  });

  test('a key that writes there proves itself', async () => {
    const { replies, o } = rooms(profile, { unprovedPerDay: 0 });
    expect(await replies.admits(alice.did, 'mb-p-a')).toBeUndefined();
    await alice.say('mb-p-a', 'mailbox opened', o);
    expect(await replies.admits(alice.did, 'mb-p-a')).toBe('proved');
  });

  test('few of the day’s new rooms are spent on answers, whoever asks', async () => {
    for (const [newRoomsPerDay, admitted] of [[2, 2] as const, [undefined, 5] as const]) {
      const { replies } = rooms(profile, { newRoomsPerDay });
      const outcomes = [];
      for (let i = 0; i < admitted + 2; i++) outcomes.push(await replies.admits(signer(10 + i).did, `mb-p-${i}`));
      expect(outcomes).toEqual([...Array(admitted).fill('unproved'), undefined, undefined]);
    }
  });

  test('one key cannot have us write to more and more rooms, nor read them', async () => {
    const { replies, o, service } = rooms(profile, { unprovedPerKey: 4 });
    for (let i = 0; i < 80; i++) await bob.say(`mb-p-${i}`, 'mine', o);
    const { requests } = service.stats;
    const outcomes = [];
    for (let i = 0; i < 80; i++) outcomes.push(await replies.admits(alice.did, `mb-p-${i}`));
    expect(outcomes.filter(Boolean)).toHaveLength(4);
    expect(service.stats.requests - requests).toBeLessThanOrEqual(60);
    expect(await replies.admits(bob.did, 'mb-p-0')).toBe('proved');
  });

  test('many at once look once, and what is proved stays so while it is used', async () => {
    const { replies, o, service, clock } = rooms(profile);
    await alice.say('mb-p-a', 'mine', o);
    const { requests } = service.stats;
    await Promise.all(Array.from({ length: 64 }, () => replies.admits(alice.did, 'mb-p-a')));
    expect(service.stats.requests - requests).toBe(1);
    for (let i = 0; i < 5; i++) {
      await clock.advance(3_000_000);
      expect(await replies.admits(alice.did, 'mb-p-a')).toBe('proved');
    }
    expect(service.stats.requests - requests).toBe(1);
  });

  test('trouble is waited out, and what cannot be looked into is no answer', async () => {
    const w = world(profile);
    let n = 0;
    const fetch = faulty(w.o.fetch, () => (n++ < 2 ? new Response('', { status: 503 }) : undefined));
    const { t } = world(profile);
    const replies = new ReplyRooms({ ...t, fetch, clock: w.clock }, 'mb-p-served');
    expect(await w.run(replies.admits(alice.did, 'mb-p-a'))).toBe('unproved');
    n = -1e9;
    await expect(w.run(replies.admits(alice.did, 'mb-p-b'))).rejects.toMatchObject({ code: 'unavailable' });
  });
});

test('what was counted today stays counted, however many others come', () => {
  const daily = new Daily('refuse', 3);
  const noon = 20_000.5 * 86_400_000;
  for (const name of ['victim', 'a', 'b']) expect(daily.take(name, 1, noon)).toBe(true);
  for (const name of ['c', 'd', 'victim']) expect(daily.take(name, 1, noon + 1000)).toBe(false);
  daily.give('a');
  expect(daily.take('a', 1, noon + 2000)).toBe(true);
  for (const name of ['c', 'd', 'victim']) expect(daily.take(name, 1, noon + 86_400_000)).toBe(true);
  const forgetful = new Daily('forget', 2);
  for (const name of ['a', 'b', 'c', 'a']) expect(forgetful.take(name, 1, noon)).toBe(true);
  expect(forgetful.take('c', 1, noon)).toBe(false);
});
