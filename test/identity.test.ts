import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { toBase64url } from '../src/bytes.ts';
import { x25519Generate } from '../src/e2e.ts';
import { BadKey, BadName, BadNonce, Conflict, Unavailable } from '../src/errors.ts';
import type { Clock, Event } from '../src/http.ts';
import { identityKeys, publishIdentity, recordIn, resolveIdentity, x25519FromText } from '../src/identity.ts';
import { createLocalService, type LocalService } from '../src/local.ts';
import { identityNote, legacyIdentityNote } from '../src/names.ts';
import { getNote, setNote } from '../src/notes.ts';
import { Signer } from '../src/signer.ts';
import { FREE, PROFILES } from './support.ts';

const vectors = JSON.parse(readFileSync(new URL('vectors/technocore-e2e.json', import.meta.url), 'utf8'));

const alice = Signer.fromPassphrase('alice');
const mallory = Signer.fromPassphrase('mallory');
const keyOf = (signer: Signer): string => toBase64url(identityKeys(signer).publicKey);
/** A signed record. */
const record = (signer: Signer, mailbox: string, nonce: number | string, key: string = keyOf(signer)): string =>
  `e2e: ${key} ${mailbox} ${nonce} ${signer.sign(`e2e|${signer.did}|${key}|${mailbox}|${nonce}`)}`;

describe('recordIn', () => {
  test.each<[string, any]>(vectors.records.map((r: any) => [r.id, r]))('vector %s', (_, { root, note_value, pick }) => {
    const found = recordIn(root, note_value);
    expect(found && { ...found, nonce: String(found.nonce) }).toEqual(pick ?? undefined);
  });

  test('a token that begins a record inside the fields of another hides nothing', () => {
    const good = record(alice, 'mb-p-good', 5);
    for (const before of ['e2e:', 'e2e: e2e:', `e2e: ${keyOf(alice)}`, `e2e: ${keyOf(alice)} mb-p-evil 9`]) {
      expect(recordIn(alice.did, `${alice.did} ${before} ${good}`)?.mailbox).toBe('mb-p-good');
    }
  });

  test('nonces of 19 digits compare exactly', () => {
    const [a, b] = ['1788872638667723579', '1788872638667723580'];
    expect(recordIn(alice.did, `${record(alice, 'a', a)} ${record(alice, 'b', b)}`)?.mailbox).toBe('b');
    expect(recordIn(alice.did, `${record(alice, 'b', b)} ${record(alice, 'a', a)}`)?.mailbox).toBe('b');
    expect(recordIn(alice.did, record(alice, 'a', `${b}0`))).toBeUndefined();
  });

  test('a record for somebody else, whoever signed it, is inert', () => {
    expect(recordIn(alice.did, record(mallory, 'mb-p-evil', 9))).toBeUndefined();
    const key = keyOf(mallory);
    const sig = mallory.sign(`e2e|${alice.did}|${key}|mb-p-evil|9`);
    expect(recordIn(alice.did, `e2e: ${key} mb-p-evil 9 ${sig}`)).toBeUndefined();
  });
});

test('x25519FromText takes keys in their only spelling', () => {
  expect(x25519FromText(keyOf(alice))).toEqual(identityKeys(alice).publicKey);
  const low = vectors.bad_offers.filter((o: any) => o.id.startsWith('low-order')).map((o: any) => o.line.split(' ')[1]);
  expect(low.length).toBe(7);
  for (const text of ['', 'AAAA', `${keyOf(alice)}=`, ...low]) expect(x25519FromText(text)).toBeUndefined();
});

test('identityKeys are the same for one seed and others for another', () => {
  expect(identityKeys(Signer.fromPassphrase('alice'))).toEqual(identityKeys(alice));
  expect(keyOf(mallory)).not.toBe(keyOf(alice));
});

// --- against a service ---------------------------------------------------------------------------------------------

type Fetch = typeof globalThis.fetch;

/** Time that sleepers do not wait for. */
function hastyClock(start = 1_770_000_000_000): Clock & { set(ms: number): void } {
  let now = start;
  return {
    now: () => now,
    sleep: async (ms, signal) => {
      await Promise.resolve();
      if (signal?.aborted) throw signal.reason;
      // Deadlines of requests are slept for too; they must not make time pass.
      if (ms < 15_000) now += ms;
      else await new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)));
    },
    set: (ms) => {
      now = ms;
    },
  };
}

function agentOf(service: LocalService, fetch: Fetch = service.fetch, clock: Clock = hastyClock()) {
  const events: Event[] = [];
  const own = ((...args: Parameters<Fetch>) => fetch(...args)) as Fetch;
  return { base: 'http://local.test', fetch: own, clock, events, onEvent: (e: Event) => void events.push(e) };
}

const at = identityNote(alice.did);
const noteOf = (o: any): Promise<string | undefined> => getNote(at.ns, at.key, o);
const overwrite = (value: string, o: any): Promise<void> => setNote(at.ns, at.key, value, o);
const nonceIn = (value: string | undefined): bigint => recordIn(alice.did, value!)!.nonce;

describe.each(PROFILES)('on a %s service', (profile) => {
  test('publish, resolve, and publish again for nothing', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const o = agentOf(service);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    const identity = { mailbox: 'mb-p-alice', x25519: keyOf(alice), signed: true };
    expect(await resolveIdentity(alice.did, o)).toEqual(identity);
    expect(await noteOf(o)).toMatch(
      /^did:key:z6Mk\w+ mailbox:mb-p-alice x25519:[\w-]{43} e2e: \S+ mb-p-alice \d{13} \S{86}$/,
    );
    const { writes } = service.stats;
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    await publishIdentity(alice, {}, agentOf(service));
    expect(service.stats.writes).toBe(writes);
    const { publicKey } = x25519Generate();
    for (const x25519 of [publicKey, toBase64url(publicKey)]) await publishIdentity(alice, { x25519 }, o);
    expect(service.stats.writes).toBe(writes + 1);
    expect(await resolveIdentity(alice.did, o)).toEqual({ ...identity, x25519: toBase64url(publicKey) });
  });

  test('many publishers at a time leave one whole note', async () => {
    const service = createLocalService({ profile, limits: FREE });
    const mailboxes = Array.from({ length: 6 }, (_, i) => `mb-p-${i}`);
    const twins = mailboxes.map(() => Signer.fromPassphrase('alice'));
    await Promise.all(mailboxes.map((mailbox, i) => publishIdentity(twins[i]!, { mailbox }, agentOf(service))));
    const identity = await resolveIdentity(alice.did, agentOf(service));
    expect(identity?.signed).toBe(true);
    expect(mailboxes).toContain(identity?.mailbox);
  });
});

describe('publishIdentity', () => {
  test('a key without any mailbox is published as a hint', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    await publishIdentity(alice, {}, o);
    expect(await resolveIdentity(alice.did, o)).toEqual({ x25519: keyOf(alice), signed: false });
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    expect((await resolveIdentity(alice.did, o))?.signed).toBe(true);
  });

  test("others' words go, our own delegations stay", async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    const [agent, other] = [Signer.fromPassphrase('agent').did, mallory.did];
    const delegate = (signer: Signer, to: string, scope: string, expires: number, nonce: number): string =>
      `delegate: ${to} ${scope} ${expires} ${nonce} ${signer.sign(`delegate|${alice.did}|${to}|${scope}|${expires}|${nonce}`)}`;
    const older = delegate(alice, agent, '*', 2_000_000_000, 1);
    const revoked = delegate(alice, agent, 'r:lobby', 1, 2);
    const live = delegate(alice, other, 'kv:notes', 2_000_000_000, 1);
    const forged = delegate(mallory, mallory.did, '*', 2_000_000_000, 9);
    const words = `hello ${alice.did} mailbox:mb-p-evil x25519:${keyOf(mallory)} tclk1:none`;
    const stale = record(alice, 'mb-p-old', 5);
    await overwrite([words, older, revoked, older, forged, stale, record(mallory, 'mb-p-evil', 99), live].join(' '), o);
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    const value = (await noteOf(o))!;
    expect(value.startsWith(`${alice.did} mailbox:mb-p-alice x25519:${keyOf(alice)} e2e: `)).toBe(true);
    expect(value.endsWith(` ${revoked} ${live}`)).toBe(true);
    expect(value.match(/e2e:|delegate:/g)).toEqual(['e2e:', 'delegate:', 'delegate:']);
    expect(value).not.toMatch(/evil|hello|tclk1|mb-p-old/);
  });

  test('a note that a stranger turned into a lie about us is set right, by a higher nonce', async () => {
    const service = createLocalService({ limits: FREE });
    const o = agentOf(service);
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    const good = (await noteOf(o))!;
    for (const lie of [
      `${alice.did} mailbox:mb-p-evil`,
      good.replace('mailbox:mb-p-alice', 'mailbox:mb-p-evil'),
      good.replace(alice.did, mallory.did),
      `${good} x25519:${keyOf(mallory)}`,
    ]) {
      const before = nonceIn(await noteOf(o));
      await overwrite(lie, o);
      await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
      const now = (await noteOf(o))!;
      expect(now).not.toContain('evil');
      expect(now).not.toContain(mallory.did);
      expect(nonceIn(now)).toBeGreaterThan(before);
    }
    // What says nothing else about us is no reason to write.
    await overwrite(`${(await noteOf(o))!} greetings`, o);
    const { writes } = service.stats;
    await publishIdentity(alice, { mailbox: 'mb-p-alice' }, o);
    expect(service.stats.writes).toBe(writes);
  });

  test('fault 21: the nonce rises although the clock went back', async () => {
    const clock = hastyClock();
    const service = createLocalService({ limits: FREE });
    const o = agentOf(service, service.fetch, clock);
    await publishIdentity(alice, { mailbox: 'mb-p-a' }, o);
    const first = nonceIn(await noteOf(o));
    clock.set(1_000_000_000_000);
    // Another process: all it knows is the note.
    const twin = Signer.fromPassphrase('alice');
    await publishIdentity(twin, { mailbox: 'mb-p-b' }, agentOf(service, service.fetch, clock));
    expect(nonceIn(await noteOf(o))).toBe(first + 1n);
    // The same process, and the note is gone.
    await overwrite('nothing', o);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
    await publishIdentity(alice, { mailbox: 'mb-p-c' }, o);
    expect(nonceIn(await noteOf(o))).toBeGreaterThan(first);
  });

  test('the highest nonce there is cannot be replaced, and that is said', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    await overwrite(`${alice.did} ${record(alice, 'mb-p-a', '9'.repeat(19))}`, o);
    await expect(publishIdentity(alice, { mailbox: 'mb-p-b' }, o)).rejects.toThrow(BadNonce);
  });

  test('bad input never reaches the service', async () => {
    const service = createLocalService({ limits: FREE });
    const o = agentOf(service);
    await expect(publishIdentity(alice, { mailbox: 'Not A Room' }, o)).rejects.toThrow(BadName);
    for (const x25519 of ['', 'AAAA', 'A'.repeat(43), `${keyOf(alice)}=`, new Uint8Array(32), new Uint8Array(31)]) {
      await expect(publishIdentity(alice, { x25519 }, o)).rejects.toThrow(BadKey);
    }
    await expect(resolveIdentity('bob', o)).rejects.toThrow(BadName);
    expect(service.stats.requests).toBe(0);
  });

  test('a stranger who writes all the time is told of, after some tries', async () => {
    const service = createLocalService({ limits: FREE });
    let n = 0;
    const raced = (async (url: any, init: any) => {
      if (String(url).includes('/set/')) await service.fetch(`http://x/kv/${at.ns}/${at.key}/set/stranger-${n++}`);
      return service.fetch(url, init);
    }) as Fetch;
    await expect(publishIdentity(alice, { mailbox: 'mb-p-a' }, agentOf(service, raced))).rejects.toThrow(Conflict);
    expect(n).toBe(8);
  });

  test('a write whose answer was lost is found to have landed', async () => {
    const service = createLocalService({ limits: FREE });
    let cut = 0;
    const lossy = (async (url: any, init: any) => {
      const response = await service.fetch(url, init);
      if (String(url).includes('/set/') && cut++ === 0) throw new TypeError('connection reset');
      return response;
    }) as Fetch;
    const o = agentOf(service, lossy);
    await publishIdentity(alice, { mailbox: 'mb-p-a' }, o);
    expect(await resolveIdentity(alice.did, o)).toMatchObject({ mailbox: 'mb-p-a', signed: true });
    expect(cut).toBe(2);
  });

  test('a note too long to be named as the condition in a URL is replaced all the same', async () => {
    const service = createLocalService({ limits: FREE });
    const o = agentOf(service);
    await overwrite('日'.repeat(8192), o);
    await publishIdentity(alice, { mailbox: 'mb-p-a' }, { ...o, lane: 'get' });
    expect((await resolveIdentity(alice.did, o))?.signed).toBe(true);
  });
});

describe('resolveIdentity', () => {
  test('fault 67: an unsigned word counts only in a note that names the DID', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    const words = `mailbox:mb-p-hint x25519:${keyOf(alice)}`;
    await overwrite(`${alice.did} ${words}`, o);
    expect(await resolveIdentity(alice.did, o)).toEqual({ mailbox: 'mb-p-hint', x25519: keyOf(alice), signed: false });
    for (const value of [`${mallory.did} ${words}`, words, `${mallory.did} ${alice.did} ${words}`, alice.did]) {
      await overwrite(value, o);
      expect(await resolveIdentity(alice.did, o)).toBeUndefined();
    }
    await overwrite(`${alice.did} mailbox:Bad! x25519:${'A'.repeat(43)} mailbox:mb-p-second`, o);
    expect(await resolveIdentity(alice.did, o)).toEqual({ mailbox: 'mb-p-second', signed: false });
    // The signed record counts whatever else is there.
    await overwrite(`${mallory.did} mailbox:mb-p-evil ${record(alice, 'mb-p-alice', 7)}`, o);
    expect(await resolveIdentity(alice.did, o)).toEqual({ mailbox: 'mb-p-alice', x25519: keyOf(alice), signed: true });
  });

  test('fault 67: only a missing note lets the older place be looked at', async () => {
    const service = createLocalService({ limits: FREE });
    const o = agentOf(service);
    const legacy = legacyIdentityNote(alice.did);
    await setNote(legacy.ns, legacy.key, `${alice.did} ${record(alice, 'mb-p-legacy', 5)}`, o);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-legacy');
    const failing = (async (url: any, init: any) =>
      String(url).includes(`/kv/${at.ns}/`) ? new Response('no', { status: 503 }) : service.fetch(url, init)) as Fetch;
    await expect(resolveIdentity(alice.did, agentOf(service, failing))).rejects.toThrow(Unavailable);
    await overwrite('a stranger was here', o);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
  });

  test('an older record put back is refused from then on, by whoever saw the newer one', async () => {
    const service = createLocalService({ limits: FREE });
    const [o, newcomer] = [agentOf(service), agentOf(service)];
    const [old, now] = [record(alice, 'mb-p-old', 5), record(alice, 'mb-p-now', 6)];
    await overwrite(`${alice.did} mailbox:mb-p-old ${old}`, o);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-old');
    await overwrite(`${alice.did} ${now}`, o);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-now');
    await overwrite(`${alice.did} mailbox:mb-p-old ${old}`, o);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
    expect(o.events).toContainEqual(expect.objectContaining({ kind: 'refused', did: alice.did }));
    expect((await resolveIdentity(alice.did, newcomer))?.mailbox).toBe('mb-p-old');
    // Its owner repeats neither the old record's mailbox nor its nonce.
    await publishIdentity(alice, {}, o);
    expect(await noteOf(o)).not.toContain('mb-p-old');
    await publishIdentity(alice, { mailbox: 'mb-p-next' }, o);
    expect(nonceIn(await noteOf(o))).toBeGreaterThan(6n);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-next');
    const next = (await noteOf(o))!;
    await publishIdentity(alice, { mailbox: 'mb-p-last' }, o);
    await overwrite(next, o);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
  });

  test('a note whose signed record was taken away says nothing to whoever saw the record', async () => {
    const service = createLocalService({ limits: FREE });
    const [o, newcomer] = [agentOf(service), agentOf(service)];
    await publishIdentity(alice, { mailbox: 'mb-p-own' }, o);
    expect(await resolveIdentity(alice.did, o)).toMatchObject({ mailbox: 'mb-p-own', signed: true });
    await overwrite(`${alice.did} mailbox:mb-p-trap`, o);
    expect(await resolveIdentity(alice.did, o)).toBeUndefined();
    expect(o.events).toContainEqual(expect.objectContaining({ kind: 'refused', did: alice.did }));
    expect(await resolveIdentity(alice.did, newcomer)).toMatchObject({ mailbox: 'mb-p-trap', signed: false });
    await publishIdentity(alice, { mailbox: 'mb-p-own' }, o);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-own');
  });

  test('a note of nothing but forged records costs little', async () => {
    const o = agentOf(createLocalService({ limits: FREE }));
    const forged = Array.from({ length: 56 }, (_, i) => record(mallory, 'm', 99 + i)).join(' ');
    await overwrite(`${forged} ${record(alice, 'mb-p-a', 1)}`, o);
    expect((await resolveIdentity(alice.did, o))?.mailbox).toBe('mb-p-a');
  });
});
