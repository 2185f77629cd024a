import { describe, expect, test } from 'vitest';
import { MayHaveLanded } from '../src/errors.ts';
import { transportOf } from '../src/http.ts';
import { allowWriters, claimRoom, getNote, listNotes, setNote } from '../src/notes.ts';
import { say } from '../src/rooms.ts';
import { broken, faker, faulty, PROFILES, signer, type World, world } from './support.ts';

const alice = signer(1);
const bob = signer(2);
const eve = signer(3);

const isSet = (url: string, init: RequestInit): boolean => /\/set(-signed)?\//.test(url) || init.method === 'POST';
/** The network loses the answer of the first write, which lands or not. */
function losing(w: World, lands: boolean, meanwhile: () => Promise<unknown> = async () => {}): World['o'] {
  let first = true;
  const fetch = faulty(w.o.fetch, async (url, init) => {
    if (!first || !isSet(url, init)) return undefined;
    first = false;
    if (lands) await w.o.fetch(url, init);
    await meanwhile();
    throw broken();
  });
  return { ...w.o, fetch };
}

describe.each(PROFILES)('notes, %s', (profile) => {
  test('fault 63: what is read is what was written, and nothing of the page around it', async () => {
    const w = world(profile);
    const values = [
      'v',
      '!! UNTRUSTED CONTENT',
      '# budget: 1 of 120 reads left this minute',
      'a  b\u00a0c',
      '%41 a%2Fb + & = ? # / \\ "',
      '.',
      '..',
      '404 no note n/k',
      'あ'.repeat(8192),
      '😀'.repeat(8192),
    ];
    for (const lane of ['auto', 'post'] as const) {
      for (const value of values) {
        await setNote('n', 'k', value, { ...w.o, lane });
        expect(await getNote('n', 'k', w.o)).toBe(value);
      }
    }
    expect(await getNote('n', 'none', w.o)).toBeUndefined();
  });

  test('fault 63: a budget line behind the value is not the value, and is heeded', async () => {
    const w = world(profile, { readsPerMinute: 8 });
    await setNote('n', 'k', '# budget: 99 of 99 reads left this minute', w.o);
    for (let i = 0; i < 12; i++) {
      expect(await w.run(getNote('n', 'k', w.o))).toBe('# budget: 99 of 99 reads left this minute');
    }
    expect(w.service.stats.refused).toBeLessThan(2);
  });

  test('the keys of a namespace; those of class p are not listed', async () => {
    const w = world(profile);
    expect(await listNotes('n', w.o)).toEqual([]);
    for (const key of ['b', 'a', 'p-hidden', 'c']) await setNote('n', key, 'x', w.o);
    expect(await listNotes('n', w.o)).toEqual(['a', 'b', 'c']);
  });

  test('fault 40: nothing is sent that can be known to be refused', async () => {
    const w = world(profile);
    const refused: [Promise<unknown>, object | string][] = [
      [getNote('N', 'k', w.o), { code: 'bad_name' }],
      [getNote('n', '', w.o), { code: 'bad_name' }],
      [listNotes('a/b', w.o), { code: 'bad_name' }],
      [setNote('n', 'k k', 'v', w.o), { code: 'bad_name' }],
      [setNote('n', 'k', '\u200b', w.o), { code: 'empty_text' }],
      [setNote('n', 'k', 'x'.repeat(8193), w.o), { code: 'frame_too_long', chars: 8193, limit: 8192 }],
      [setNote('n', 'k', 'v', { ...w.o, if: 'a', ifAbsent: true }), { code: 'bad_option' }],
      [setNote('n', 'k', 'あ'.repeat(8192), { ...w.o, lane: 'get' }), { code: 'post_only' }],
      [claimRoom('lobby', alice, w.o), { code: 'bad_name' }],
      [claimRoom('d', alice, w.o), { code: 'bad_name' }],
      [allowWriters('d-x', ['bob'], alice, w.o), { code: 'bad_name' }],
      [allowWriters('d-x', [alice.did, `${bob.did} `], alice, w.o), { code: 'bad_name' }],
      [allowWriters('d-x', Array(146).fill(bob.did), alice, w.o), { code: 'frame_too_long' }],
      [getNote('n', 'k', { ...w.o, signal: AbortSignal.abort('now') }), 'now'],
      [setNote('n', 'k', 'v', { ...w.o, signal: AbortSignal.abort('now') }), 'now'],
    ];
    for (const [work, e] of refused) {
      if (typeof e === 'string') await expect(work).rejects.toBe(e);
      else await expect(work).rejects.toMatchObject(e);
    }
    expect(w.service.stats.requests).toBe(0);
  });

  test('conditions: exactly this value, or none', async () => {
    for (const lane of ['get', 'post'] as const) {
      const w = world(profile);
      const o = { ...w.o, lane };
      await setNote('n', 'k', 'a+b & c', { ...o, ifAbsent: true });
      await expect(setNote('n', 'k', 'x', { ...o, ifAbsent: true })).rejects.toMatchObject({
        code: 'conflict',
        actual: 'a+b & c',
      });
      await setNote('n', 'k', '2', { ...o, if: 'a+b & c' });
      for (const wrong of ['a+b & c', ' 2', '2 ', '', '\ud800']) {
        await expect(setNote('n', 'k', 'x', { ...o, if: wrong })).rejects.toMatchObject({
          code: 'conflict',
          actual: '2',
        });
      }
      await setNote('n', 'k', '3', { ...o, ifAbsent: false });
      expect(await getNote('n', 'k', o)).toBe('3');
    }
  });

  test('of many who compare and set, each time one wins', async () => {
    const w = world(profile);
    await setNote('n', 'k', '0', w.o);
    const increment = async (): Promise<void> => {
      for (;;) {
        const value = (await getNote('n', 'k', w.o))!;
        try {
          return await setNote('n', 'k', String(Number(value) + 1), { ...w.o, if: value });
        } catch (e) {
          expect(e).toMatchObject({ code: 'conflict' });
        }
      }
    };
    await Promise.all(Array.from({ length: 20 }, increment));
    expect(await getNote('n', 'k', w.o)).toBe('20');
  });

  test('fault 33: an unconditional write is sent again until it is answered', async () => {
    for (const lands of [true, false]) {
      const w = world(profile);
      await w.run(setNote('n', 'k', 'v', losing(w, lands)));
      expect(await getNote('n', 'k', w.o)).toBe('v');
    }
  });

  test('fault 33: a conditional write whose answer is lost is done when it is sent again, or nobody can say', async () => {
    for (const condition of [{ ifAbsent: true }, { if: 'old' }]) {
      const prepare = async (): Promise<World> => {
        const w = world(profile);
        if ('if' in condition) await setNote('n', 'k', 'old', w.o);
        return w;
      };
      const lost = await prepare();
      await lost.run(setNote('n', 'k', 'new', { ...losing(lost, false), ...condition }));
      expect(await getNote('n', 'k', lost.o)).toBe('new');

      const landed = await prepare();
      const e = await landed.run(setNote('n', 'k', 'new', { ...losing(landed, true), ...condition }).catch((e) => e));
      expect(e).toBeInstanceOf(MayHaveLanded);
      expect(e).toMatchObject({ room: 'n/k', cause: { code: 'conflict', actual: 'new' } });

      // It landed, and another made something else of it: to say that it lost would be a lie.
      const moved = await prepare();
      const on = (): Promise<void> => setNote('n', 'k', 'newer', { ...moved.o, if: 'new' });
      const f = await moved.run(setNote('n', 'k', 'new', { ...losing(moved, true, on), ...condition }).catch((e) => e));
      expect(f).toMatchObject({ code: 'may_have_landed', cause: { actual: 'newer' } });
    }
  });

  test('what never left is no doubt; what may have is one, in the end', async () => {
    const w = world(profile);
    const through = (code: string) => ({ ...w.o, fetch: faulty(w.o.fetch, () => Promise.reject(broken(code))) });
    await expect(w.run(setNote('n', 'k', 'v', through('ECONNREFUSED')))).rejects.toMatchObject({ code: 'unavailable' });
    await expect(w.run(setNote('n', 'k', 'v', through('ECONNRESET')))).rejects.toMatchObject({
      code: 'may_have_landed',
    });
    await expect(w.run(claimRoom('d-x', alice, through('ECONNREFUSED')))).rejects.toMatchObject({
      code: 'unavailable',
    });
    await expect(w.run(getNote('n', 'k', through('ECONNRESET')))).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('fault 38: no more notes: CapacityReached; notes that are there can be written', async () => {
    const w = world(profile, { notes: 1 });
    await setNote('n', 'k', '1', w.o);
    await expect(setNote('n', 'other', '1', w.o)).rejects.toMatchObject({ code: 'capacity_reached' });
    await setNote('n', 'k', '2', w.o);
  });
});

describe.each(PROFILES)('owned rooms, %s', (profile) => {
  test('the owner and those on the list write there, and nobody else', async () => {
    const w = world(profile);
    await claimRoom('d-x', alice, w.o);
    await alice.say('d-x', 'mine', w.o);
    await expect(bob.say('d-x', 'hi', w.o)).rejects.toMatchObject({ code: 'forbidden' });
    await expect(say('d-x', 'bob', 'hi', w.o)).rejects.toMatchObject({ code: 'forbidden' });
    await allowWriters('d-x', [bob.did], alice, w.o);
    await bob.say('d-x', 'hi', w.o);
    await allowWriters('d-x', [], alice, w.o);
    await expect(bob.say('d-x', 'again', w.o)).rejects.toMatchObject({ code: 'forbidden' });
    await alice.say('d-x', 'still mine', w.o);
  });

  test('who comes second learns who owns it; only the owner lists; a room with messages cannot be claimed', async () => {
    const w = world(profile);
    await claimRoom('d-x', alice, w.o);
    await expect(claimRoom('d-x', bob, w.o)).rejects.toMatchObject({
      code: expect.stringMatching(/conflict|forbidden/),
    });
    await expect(allowWriters('d-x', [eve.did], eve, w.o)).rejects.toMatchObject({ code: 'forbidden' });
    await say('d-used', 'a', 'hi', w.o);
    await expect(claimRoom('d-used', alice, w.o)).rejects.toMatchObject({ code: 'forbidden' });
  });

  test('fault 28: both lists share one counter, which other programs may have moved, beyond 2^53 too', async () => {
    const w = world(profile);
    const { did, sig } = alice.signNote('room-owners', 'd-x', '9007199254740993000', alice.did);
    const set = `${w.o.base}/kv/room-owners/d-x/set-signed/${did}/${sig}/9007199254740993000/${did}?if_absent=1`;
    expect((await w.o.fetch(set)).status).toBe(200);
    const ahead = signer(1);
    await expect(allowWriters('d-x', [bob.did], ahead, w.o)).rejects.toMatchObject({ code: 'bad_nonce' });

    const near = String(w.clock.now() + 3_600_000);
    const second = alice.signNote('room-owners', 'd-y', near, alice.did);
    await w.o.fetch(`${w.o.base}/kv/room-owners/d-y/set-signed/${did}/${second.sig}/${near}/${did}?if_absent=1`);
    await allowWriters('d-y', [bob.did], signer(1), w.o);
    await allowWriters('d-y', [bob.did, eve.did], signer(1), w.o);
    await eve.say('d-y', 'hi', w.o);
  });

  test('fault 33: a claim and a list whose answers are lost are found', async () => {
    for (const lands of [true, false]) {
      const w = world(profile);
      await w.run(claimRoom('d-x', alice, losing(w, lands)));
      await w.run(allowWriters('d-x', [bob.did], alice, losing(w, lands)));
      expect(await getNote('room-owners', 'd-x', w.o)).toBe(alice.did);
      expect(await getNote('room-allow', 'd-x', w.o)).toBe(bob.did);
    }
  });

  test('two programs of one owner at a time', async () => {
    const w = world(profile);
    await claimRoom('d-x', alice, w.o);
    const twins = [signer(1), signer(1), signer(1)];
    await w.run(Promise.all(twins.map((twin) => allowWriters('d-x', [bob.did, eve.did], twin, w.o))));
    await bob.say('d-x', 'hi', w.o);
  });
});

describe('strange services', () => {
  test('fault 65, 63: a page that is no note, and a list that is none, are trouble, not values', async () => {
    const { base } = await faker((_request, response) => response.end('<html>\n\nvalue\n'));
    const clock = world().clock;
    const o = { base, clock: { now: () => clock.now(), sleep: async () => {} } };
    await expect(getNote('n', 'k', o)).rejects.toMatchObject({ code: 'unavailable' });
    await expect(listNotes('n', o)).rejects.toMatchObject({ code: 'unavailable' });
  });

  test('only strings are keys', async () => {
    const { base } = await faker((_request, response) => response.end('{"keys":["a",1,null,{},"b"]}'));
    expect(await listNotes('n', { base })).toEqual(['a', 'b']);
  });

  test('a 404 that is not the note’s is no absence', async () => {
    const { base } = await faker((_request, response) => response.writeHead(404).end('<html>gone</html>'));
    await expect(getNote('n', 'k', { base })).rejects.toMatchObject({ code: 'http', status: 404 });
  });

  test('an ownership nonce that is never taken is not asked for without end', async () => {
    const w = world();
    let n = 0;
    const fetch = faulty(w.o.fetch, (url, init) =>
      isSet(url, init) && ++n
        ? new Response(`403 nonce 1 was already used for /r/d-x (last ${Math.floor(w.clock.now()) + n})\n`, {
            status: 403,
          })
        : undefined,
    );
    await expect(w.run(claimRoom('d-x', alice, { ...w.o, fetch }))).rejects.toMatchObject({ code: 'stale_nonce' });
    expect(n).toBeLessThan(20);
  });

  test('reads of one note have one URL never twice: an edge could answer from its cache', async () => {
    const w = world();
    const urls = new Set<string>();
    const fetch = faulty(w.o.fetch, (url) => void urls.add(url) as undefined);
    for (let i = 0; i < 3; i++) await getNote('n', 'k', { ...w.o, fetch });
    for (let i = 0; i < 3; i++)
      await getNote('n', 'k', { ...w.o, fetch: faulty(w.o.fetch, (url) => void urls.add(url) as undefined) });
    expect(urls.size).toBe(6);
    expect(transportOf(w.o).base).toBe(w.o.base);
  });
});
