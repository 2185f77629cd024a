import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { call, notify } from '../src/call.ts';
import { Conflict, Forbidden, RateLimited, RpcError, StaleNonce, TechnocoreError } from '../src/errors.ts';
import { type Options, transportOf } from '../src/http.ts';
import { publishIdentity, resolveIdentity } from '../src/identity.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { verifyMessage } from '../src/messages.ts';
import { identityNote } from '../src/names.ts';
import { allowWriters, claimRoom, getNote, listNotes, setNote } from '../src/notes.ts';
import { follow, read, say } from '../src/rooms.ts';
import { serve } from '../src/serve.ts';
import { ask } from '../src/service.ts';
import { Signer } from '../src/signer.ts';
import { FREE } from './support.ts';

const { TECHNOCORE_URL, TECHNOCORE_LIVE_ROOM } = process.env;
const MINUTES = 60_000;

/** Names that nobody else has, in this run or another. */
const run = Array.from(crypto.getRandomValues(new Uint8Array(6)), (b) => b.toString(16).padStart(2, '0')).join('');
let names = 0;
const fresh = (prefix = 'p'): string => `${prefix}-${run}${(names++).toString(36)}`;

/** Does it, however long the service's budgets make us wait. */
async function patient<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (e) {
      if (!(e instanceof RateLimited)) throw e;
      await new Promise((resolve) => setTimeout(resolve, Math.min(e.retryAfterMs, MINUTES) + 50));
    }
  }
}
const refused = (work: () => Promise<unknown>): Promise<any> =>
  patient(work).then(
    () => undefined,
    (e) => e,
  );

interface Target {
  open(): Promise<{ base: string; close(): Promise<void> }>;
}

/** The same expectations of every service: rooms, notes, keys, and calls over them. Makes nine rooms and few writes. */
function behaves(target: Target): void {
  let o: Options & { base: string };
  let close: () => Promise<void>;
  const [alice, bob] = [Signer.generate(), Signer.generate()];
  const room = fresh();
  const box = fresh('mb-p');
  const mine = fresh('mb-p');

  beforeAll(async () => {
    const { base, close: end } = await target.open();
    o = { base };
    close = end;
  });
  afterAll(() => close());

  describe('rooms', () => {
    const odd = 'a/b%41%2F +&=?#"\\ <\u00e9\u6f22\u{1f600}\ufe0f> a  b';

    test('an empty room, a message, its place, and what comes after it', async () => {
      expect(await patient(() => read(room, o))).toMatchObject({ room, firstSeq: null, lastSeq: 0, messages: [] });
      expect((await patient(() => say(room, 'alice', odd, o))).seq).toBe(1);
      expect((await patient(() => say(room, 'b-_9', ' \u200bswept\n', o))).seq).toBe(2);
      const view = await patient(() => read(room, o));
      expect(view).toMatchObject({ firstSeq: 1, lastSeq: 2 });
      expect(view.messages.map(({ seq, from, text }) => [seq, from, text])).toEqual([
        [1, 'alice', odd],
        [2, 'b-_9', 'swept'],
      ]);
      expect(view.messages[0]!.ts).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/);
      expect((await patient(() => read(room, { ...o, since: 1 }))).messages.map((m) => m.seq)).toEqual([2]);
      expect((await patient(() => read(room, { ...o, limit: 1 }))).messages.map((m) => m.seq)).toEqual([2]);
    });

    test('texts that no URL can carry', async () => {
      const texts = ['.', '..', '漢'.repeat(4096), '😀'.repeat(4096)];
      for (const text of texts) await patient(() => say(room, 'alice', text, o));
      const { messages } = await patient(() => read(room, { ...o, since: 2 }));
      expect(messages.map((m) => m.text)).toEqual(texts);
    });

    test('signed messages, their nonces exact and rising, and their signature where it is kept', async () => {
      const sent = [await patient(() => alice.say(room, odd, o)), await patient(() => bob.say(room, odd, o))];
      sent.push(await patient(() => alice.say(room, '.', o)));
      const { messages } = await patient(() => read(room, { ...o, since: 6 }));
      expect(messages.map(({ from, text }) => [from, text])).toEqual([
        [alice.did, odd],
        [bob.did, odd],
        [alice.did, '.'],
      ]);
      expect(messages.map(({ seq, nonce }) => ({ seq, nonce }))).toEqual(sent);
      for (const m of messages) expect(verifyMessage(room, m)).toBe(m.sig === undefined ? 'unverifiable' : 'valid');
    });

    test('a nonce of 19 digits comes back as it was, and none below it is taken', async () => {
      const key = Signer.generate();
      const post = (nonce: string) => {
        const { did, sig, text } = key.signMessage(room, nonce, `nonce ${nonce}`);
        return ask(transportOf(o), {
          path: `/r/${room}/say-signed/${did}/${sig}/${nonce}/${encodeURIComponent(text)}`,
          bucket: 'write',
        });
      };
      await patient(() => post('1788872638667723579'));
      const stale = await refused(() => post('1788872638667723578'));
      expect(stale).toBeInstanceOf(StaleNonce);
      expect(stale.last).toBe('1788872638667723579');
      expect(await refused(() => post('1788872638667723579'))).toBeInstanceOf(StaleNonce);
      const { messages } = await patient(() => read(room, { ...o, limit: 1 }));
      expect(messages[0]!.nonce).toBe('1788872638667723579');
    });

    test('a wrong signature is Forbidden, and what was verified is told', async () => {
      const { did, sig, nonce } = alice.signMessage(room, '1', 'other');
      const e = await refused(() =>
        ask(transportOf(o), { path: `/r/${room}/say-signed/${did}/${sig}/${nonce}/text`, bucket: 'write' }),
      );
      expect(e).toBeInstanceOf(Forbidden);
      expect(e.body.trimEnd().split('\n').at(-1)).toBe(`${room}|1|text`);
    });

    test('two programs with one key at a time: all is written, once', async () => {
      const seed = crypto.getRandomValues(new Uint8Array(32));
      const twins = [Signer.fromSeed(seed), Signer.fromSeed(seed)];
      const texts = ['one', 'two', 'three', 'four'];
      await Promise.all(texts.map((text, i) => patient(() => twins[i % 2]!.say(room, text, o))));
      const { messages } = await patient(() => read(room, { ...o, limit: 20 }));
      const got = messages.filter((m) => m.from === twins[0]!.did);
      expect(got.map((m) => m.text).sort()).toEqual([...texts].sort());
      expect(new Set(got.map((m) => m.nonce)).size).toBe(4);
    });

    test('waiting: a read that is held, and following from a place on', async () => {
      const { lastSeq } = await patient(() => read(room, o));
      const held = read(room, { ...o, since: lastSeq, waitMs: 9000 });
      await patient(() => say(room, 'alice', 'woken', o));
      expect((await held).messages.map((m) => m.text)).toEqual(['woken']);
      const stop = new AbortController();
      const seen: string[] = [];
      for await (const m of follow(room, { ...o, since: lastSeq, signal: stop.signal })) {
        if (seen.push(m.text) === 1) await patient(() => say(room, 'alice', 'followed', o));
        else break;
      }
      expect(seen).toEqual(['woken', 'followed']);
      const aborted = follow(room, { ...o, signal: stop.signal }).next();
      setTimeout(() => stop.abort('enough'), 300);
      await expect(aborted).rejects.toBe('enough');
    });

    test('what is refused, is refused by name', async () => {
      expect(await refused(() => say(box, 'alice', 'unsigned', o))).toBeInstanceOf(Forbidden);
      expect(await refused(() => say('events', 'alice', 'x', o))).toBeInstanceOf(Forbidden);
      for (const bad of [say('A', 'a', 'x', o), say(room, 'A', 'x', o), say(room, 'a', '\n', o)]) {
        await expect(bad).rejects.toBeInstanceOf(TechnocoreError);
      }
    });
  });

  describe('notes', () => {
    const ns = fresh();

    test('a value comes back as it was, also one that looks like the page around it', async () => {
      expect(await patient(() => getNote(ns, 'k', o))).toBeUndefined();
      for (const value of ['# budget: 1 of 120 reads left this minute', '%41 a/b + & # ?', 'あ'.repeat(8192), '.']) {
        await patient(() => setNote(ns, 'k', value, o));
        expect(await patient(() => getNote(ns, 'k', o))).toBe(value);
      }
    });

    test('compare and set, and the value that was there', async () => {
      await patient(() => setNote(ns, 'cas', 'a+b & c', { ...o, ifAbsent: true }));
      const again = await refused(() => setNote(ns, 'cas', 'x', { ...o, ifAbsent: true }));
      expect(again).toBeInstanceOf(Conflict);
      expect(again.actual).toBe('a+b & c');
      await patient(() => setNote(ns, 'cas', '2', { ...o, if: 'a+b & c' }));
      expect((await refused(() => setNote(ns, 'cas', 'x', { ...o, if: 'a+b & c' }))).actual).toBe('2');
      expect((await refused(() => setNote(ns, 'none', 'x', { ...o, if: 'y' }))).actual).toBeUndefined();
      expect((await patient(() => listNotes(ns, o))).sort()).toEqual(['cas', 'k']);
    });

    test('a room is owned: by who claims it first, and those it lists', async () => {
      const owned = fresh('d-p');
      await patient(() => claimRoom(owned, alice, o));
      expect(await refused(() => bob.say(owned, 'no', o))).toBeInstanceOf(Forbidden);
      await patient(() => allowWriters(owned, [bob.did], alice, o));
      expect((await patient(() => bob.say(owned, 'yes', o))).seq).toBe(1);
      expect((await patient(() => alice.say(owned, 'mine', o))).seq).toBe(2);
      expect(await refused(() => allowWriters(owned, [], bob, o))).toBeInstanceOf(Forbidden);
    });

    test('an identity is published, found, and believed by its signature alone', async () => {
      expect(await patient(() => resolveIdentity(alice.did, o))).toBeUndefined();
      await patient(() => publishIdentity(alice, { mailbox: mine }, o));
      expect(await patient(() => resolveIdentity(alice.did, o))).toMatchObject({ mailbox: mine, signed: true });
      const { ns: at, key } = identityNote(bob.did);
      await patient(() => setNote(at, key, `${bob.did} mailbox:${box}`, o));
      expect(await patient(() => resolveIdentity(bob.did, o))).toEqual({ mailbox: box, signed: false });
    });
  });

  describe('calls', () => {
    const stop = new AbortController();
    const notes: unknown[] = [];
    let serving: Promise<void>;
    const asking = (method: string, params: any, more: object = {}, to = box) =>
      patient(() => call(to, method, params, alice, { ...o, replyTo: mine, timeoutMs: 5 * MINUTES, ...more }));

    beforeAll(async () => {
      const methods = new Map<string, any>([
        ['echo', (params: unknown) => params],
        ['sub', ([a, b]: number[]) => a! - b!],
        ['who', (_: unknown, { from }: { from: string }) => from],
        ['note', (params: unknown) => void notes.push(params)],
        [
          'fail',
          () => {
            throw new RpcError(42, 'no', { why: 'ü' });
          },
        ],
      ]);
      await new Promise<void>((resolve, reject) => {
        serving = serve(box, bob, { ...o, methods, signal: stop.signal, onReady: resolve });
        serving.catch(reject);
      });
    }, 5 * MINUTES);
    afterAll(async () => {
      stop.abort();
      await serving;
    }, 5 * MINUTES);

    test('results and errors', async () => {
      const odd = { text: '\u200b\n\u007fü😀\ud800', n: [1.5, null, true, {}] };
      expect(await asking('echo', odd)).toEqual(odd);
      expect(await asking('who', {}, { peer: bob.did })).toBe(alice.did);
      expect(await refused(() => asking('fail', {}))).toMatchObject({ rpc: { code: 42, data: { why: 'ü' } } });
      expect(await refused(() => asking('nope', {}))).toMatchObject({ rpc: { code: -32601 } });
    });

    test('by DID, by position, and without an answer', async () => {
      expect(await asking('sub', [5, 3], {}, bob.did)).toBe(2);
      await patient(() => notify(bob.did, 'note', { a: 1 }, alice, o));
      for (let i = 0; notes.length === 0 && i < 600; i++) await new Promise((resolve) => setTimeout(resolve, 100));
      expect(notes).toEqual([{ a: 1 }]);
    });

    test('many at a time', async () => {
      const all = await Promise.all(Array.from({ length: 8 }, (_, i) => asking('sub', [i, 1])));
      expect(all).toEqual(Array.from({ length: 8 }, (_, i) => i - 1));
    });

    test('the same id twice runs once; an abort ends the waiting', async () => {
      const id = `own-${run}`;
      await asking('note', { b: 2 }, { id });
      await asking('note', { b: 2 }, { id });
      expect(notes.slice(1)).toEqual([{ b: 2 }]);
      const user = new AbortController();
      setTimeout(() => user.abort('enough'), 100);
      expect(await refused(() => asking('echo', {}, { signal: user.signal }, fresh('mb-p')))).toBe('enough');
    });

    test('a peer that knows no more than a hint in its identity note', async () => {
      const old = Signer.generate();
      const reply = fresh('mb-p');
      const { ns, key } = identityNote(old.did);
      await patient(() => setNote(ns, key, `${old.did} mailbox:${reply}`, o));
      await patient(() => old.say(box, '{"jsonrpc": "2.0", "id": 7, "method": "sub", "params": [2, 1]}', o));
      const got = await patient(() => read(reply, { ...o, since: 0, waitMs: 9000 }));
      const answer = got.messages.length > 0 ? got : await patient(() => read(reply, { ...o, since: 0, waitMs: 9000 }));
      expect(answer.messages.map((m) => [m.from, JSON.parse(m.text)])).toEqual([
        [bob.did, { jsonrpc: '2.0', id: 7, result: 1 }],
      ]);
    });
  });
}

describe.each(['modern', '0.7'] as const)('the embedded service, %s', (profile) => {
  let listening: Listening;
  behaves({
    open: async () => {
      listening = await createLocalService({ profile, limits: FREE }).listen();
      return { base: listening.url, close: () => listening.close() };
    },
  });
});

describe.skipIf(!TECHNOCORE_URL)('TECHNOCORE_URL: the service there', { timeout: 15 * MINUTES }, () => {
  behaves({ open: async () => ({ base: TECHNOCORE_URL!, close: async () => {} }) });
});

test.skipIf(!TECHNOCORE_LIVE_ROOM)(
  'TECHNOCORE_LIVE_ROOM: a round trip in that room, between two identities that nobody will see again',
  async () => {
    const room = TECHNOCORE_LIVE_ROOM!;
    const [one, other] = [Signer.generate(), Signer.generate()];
    const { lastSeq: since } = await patient(() => read(room));
    const word = `ping ${run}`;
    const stop = AbortSignal.timeout(2 * MINUTES);
    const answering = (async () => {
      for await (const m of follow(room, { since, signal: stop })) {
        if (m.from === one.did && m.text === word) return patient(() => other.say(room, `pong ${run}`));
      }
      return undefined;
    })();
    const { nonce } = await patient(() => one.say(room, word));
    for await (const m of follow(room, { since, signal: stop })) {
      if (m.from === one.did) expect(m).toMatchObject({ text: word, nonce });
      if (m.sig !== undefined && [one.did, other.did].includes(m.from)) expect(verifyMessage(room, m)).toBe('valid');
      if (m.from !== other.did) continue;
      expect(m.text).toBe(`pong ${run}`);
      break;
    }
    expect((await answering)?.seq).toBeGreaterThan(since);
  },
  3 * MINUTES,
);
