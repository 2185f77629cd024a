import { describe, expect, test } from 'vitest';
import { call } from '../src/call.ts';
import type { Channel } from '../src/channel.ts';
import type { Handler } from '../src/dispatch.ts';
import type { Clock } from '../src/http.ts';
import { memoryLedger } from '../src/ledger.ts';
import { read } from '../src/rooms.ts';
import { sealed } from '../src/sealed.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import { PROFILES, type Profile, requestFrame, signer, type World, world } from './support.ts';

// A signed write that so much was written after that the service has forgotten its nonce is taken once more, whoever sends it.

const BOX = 'mb-p-replayed';
const MINE = 'mb-p-asker';
const KEY = new Uint8Array(32).fill(7);
const MINUTE = 60_000;
const bob = signer(2);
const eve = signer(3);

function bank(profile: Profile) {
  const w = world(profile, { roomRingBytes: 20_000 });
  // With no nonces of another test.
  const alice = Signer.generate();
  const runs: number[] = [];
  const sent: string[] = [];
  const methods = new Map<string, Handler>([['pay', ({ n }) => runs.push(n)]]);
  /** What an eavesdropper on the way of the caller keeps. */
  const fetch = ((url: string, init?: RequestInit) => {
    if (url.includes(`/say-signed/${alice.did}/`) && !url.includes('opened')) sent.push(url);
    return w.service.client('alice')(url, init);
  }) as typeof globalThis.fetch;
  return {
    w,
    runs,
    sent,
    alice,
    o: { ...w.o, fetch },
    async start(to: string | Channel, o: ServeOptions = {}) {
      const stop = new AbortController();
      let isReady = false;
      const ended = serve(to, bob, {
        ...w.o,
        fetch: w.service.client('bob'),
        methods,
        signal: stop.signal,
        onReady: () => (isReady = true),
        ...o,
      });
      await w.until(() => isReady);
      return () => {
        stop.abort();
        return w.run(ended);
      };
    },
    /** Writes to a room until nothing is left of what stands there. */
    async bury(room: string) {
      for (let i = 0; i < 20; i++) await w.run(eve.say(room, `${i} ${'z'.repeat(2000)}`, w.o));
    },
    /** Sends once more what was sent first. */
    async replay() {
      const response = await w.service.fetch(sent[0]!);
      expect(response.status).toBe(200);
      await w.clock.advance(3000);
    },
  };
}

const answersIn = async (w: World, room: string): Promise<any[]> =>
  (await w.run(read(room, { ...w.o, limit: 200 }))).messages
    .filter(({ from, text }) => from === bob.did && text.startsWith('{'))
    .map(({ text }) => JSON.parse(text));

/** A clock that is wrong. */
const off = (clock: Clock, ms: number): Clock => ({
  now: () => clock.now() + ms,
  sleep: (time, signal) => clock.sleep(time, signal),
});

describe.each(PROFILES)('%s', (profile) => {
  test('fault 27: a write out of the ring, sent once more after a restart without a file, is not run again', async () => {
    const { w, runs, alice, o, start, bury, replay } = bank(profile);
    let end = await start(BOX);
    expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...o, replyTo: MINE }))).toBe(1);
    await end();
    await w.clock.advance(10 * MINUTE);
    end = await start(BOX);
    await bury(BOX);
    await replay();
    expect(runs).toEqual([1]);
    // It is told, should it be somebody's whose clock is behind.
    expect((await answersIn(w, MINE)).at(-1).error).toMatchObject({ code: 1001, data: { nonce: expect.any(String) } });
    // And the next call is as good as any.
    expect(await w.run(call(BOX, 'pay', { n: 2 }, alice, { ...o, replyTo: MINE }))).toBe(2);
    await end();
  });

  test('in a sealed room likewise', async () => {
    const { w, runs, alice, o, start, bury, replay } = bank(profile);
    const room = 'p-sealed';
    const served = (): Channel => sealed(room, KEY, bob, { ...w.o, fetch: w.service.client('bob') });
    let end = await start(served());
    expect(await w.run(call(sealed(room, KEY, alice, o), 'pay', { n: 1 }, alice, o))).toBe(1);
    await end();
    await w.clock.advance(10 * MINUTE);
    await bury(room);
    end = await start(served());
    await replay();
    expect(runs).toEqual([1]);
    expect(await w.run(call(sealed(room, KEY, alice, o), 'pay', { n: 2 }, alice, o))).toBe(2);
    await end();
  });

  test('a caller whose clock is behind is asked once to sign anew, and does', async () => {
    const { w, runs, o, start, sent } = bank(profile);
    const end = await start(BOX);
    for (const [n, hours] of [
      [1, -2],
      [2, -30],
      [3, 2],
    ] as const) {
      const clock = off(w.clock, hours * 60 * MINUTE);
      const key = signer(10 + n);
      const calling = call(BOX, 'pay', { n }, key, { ...o, clock, replyTo: `mb-p-off${n}` });
      // More than a day behind, the caller takes nobody's word for the time.
      if (hours === -30) await expect(w.run(calling)).rejects.toMatchObject({ code: 'rpc', rpc: { code: 1001 } });
      else expect(await w.run(calling)).toBe(runs.length);
    }
    expect(runs).toEqual([1, 3]);
    expect(sent).toEqual([]);
    await end();
  });

  test('a caller signs anew as often as three times, and never twice for the same nonce', async () => {
    const { w, o } = bank(profile);
    const past = (ms: number): { nonce: string } => ({ nonce: String(w.clock.now() - ms) });
    for (const [asks, runs] of [
      [[9000, 8000, 7000], 4],
      [[6000, 5000, 4000, 3000], 4],
      [[2000, 2000], 2],
    ] as const) {
      // Behind by more than what is asked for.
      const clock = off(w.clock, -10 * MINUTE);
      const key = Signer.generate();
      const written: string[] = [];
      const fetch = ((url: string, init?: RequestInit) => {
        if (url.includes(`/r/${BOX}/say-signed/`)) written.push(url);
        return w.service.client('asker')(url, init);
      }) as typeof globalThis.fetch;
      const calling = call(BOX, 'pay', {}, key, { ...o, fetch, clock, replyTo: MINE, peer: bob.did }).catch((e) => e);
      const asked = asks.map(past);
      for (let i = 0; ; i++) {
        const seen = await w.run(Promise.race([calling, w.until(() => written.length > i)]));
        if (seen !== undefined || written.length <= i) break;
        const { id } = JSON.parse(decodeURIComponent(written[i]!).replace(/^.*?(\{.*\}).*$/s, '$1'));
        const said = asked[i] ? { error: { code: 1001, message: 'Interrupted', data: asked[i] } } : { result: 'paid' };
        await w.run(bob.say(MINE, JSON.stringify({ jsonrpc: '2.0', id, ...said }), w.o));
      }
      const outcome = await w.run(calling);
      if (asks.length === 3) expect(outcome).toBe('paid');
      else expect(outcome).toMatchObject({ code: 'rpc', rpc: { code: 1001 } });
      expect(written).toHaveLength(runs);
    }
  });

  test('nobody makes a caller sign ahead of the time', async () => {
    const { w, alice, o } = bank(profile);
    const calling = call(BOX, 'pay', { n: 1 }, alice, { ...o, replyTo: MINE }).catch((e) => e);
    let asked: any;
    await w.until(() => {
      void read(BOX, w.o).then(({ messages }) => (asked = messages.find(({ from }) => from === alice.did)));
      return asked;
    });
    const data = { nonce: String(w.clock.now() + 60 * MINUTE) };
    const error = { code: 1001, message: 'Interrupted', data };
    await w.run(eve.say(MINE, JSON.stringify({ jsonrpc: '2.0', id: JSON.parse(asked.text).id, error }), w.o));
    expect(await w.run(calling)).toMatchObject({ code: 'rpc', rpc: { code: 1001 } });
    const { nonce } = await w.run(alice.say(BOX, 'later', o));
    expect(Number(nonce)).toBeLessThan(w.clock.now() + MINUTE);
  });

  test('a server whose own clock is wrong refuses nobody', async () => {
    for (const hours of [-5, 5]) {
      const { w, alice, o, start } = bank(profile);
      const end = await start(BOX, { clock: off(w.clock, hours * 60 * MINUTE) });
      expect(await w.run(call(BOX, 'pay', { n: 1 }, alice, { ...o, replyTo: MINE }))).toBe(1);
      await end();
    }
  });

  test('nonces that are no time in ms are believed', async () => {
    for (const nonce of ['1', '1700000000', '1700000000000000000', '9999999999999']) {
      const { w, runs, alice, start } = bank(profile);
      const end = await start(BOX);
      const params = { n: 1, _meta: { 'chat.technocore/reply': MINE } };
      const { did, sig, text } = alice.signMessage(BOX, nonce, requestFrame(1, 'pay', params));
      await w.service.fetch(
        `http://local.test/r/${BOX}/say-signed/${did}/${sig}/${nonce}/${encodeURIComponent(text)}?format=json`,
      );
      await w.until(() => runs.length === 1);
      await end();
    }
  });

  test('a kept place without a kept ledger is refused, and one in memory is an event', async () => {
    const { w, start } = bank(profile);
    const cursor = { load: () => undefined, save: () => {} };
    await expect(serve(BOX, bob, { ...w.o, cursor })).rejects.toMatchObject({ code: 'bad_option' });
    const end = await start(BOX, { cursor, ledger: memoryLedger() });
    expect(w.kinds()).toContain('forgetful');
    await end();
  });
});
