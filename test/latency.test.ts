import { describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import type { Handler } from '../src/dispatch.ts';
import { PROBES_MS, STAGGER_MS } from '../src/feed.ts';
import { budgetOf, type Options, rhythmOf, transportOf } from '../src/http.ts';
import { sealed } from '../src/sealed.ts';
import { serve } from '../src/serve.ts';
import { Random } from './sim/random.ts';
import { PROFILES, type Profile, run, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-latency-callee';
const REPLY = 'mb-p-latency-caller';
const SEALED = 'p-latency-sealed';
const callee = signer(1);
const caller = signer(2);
/** One way, ms. */
const WIRE_MS = 3;
const STEP_MS = 500;

/** Requests of one side: when they left, and when they were answered. */
type Log = { at: number; path: string; until?: number }[];

function side(w: World, address: string): { o: Options & { fetch: typeof fetch }; log: Log } {
  const log: Log = [];
  const reach = w.service.client(address);
  const fetch = (async (url: string, init: RequestInit) => {
    const entry: Log[number] = { at: w.clock.now(), path: url.slice(url.indexOf('/', 8)) };
    log.push(entry);
    await w.clock.sleep(WIRE_MS);
    const response = await reach(url, init);
    await w.clock.sleep(WIRE_MS);
    entry.until = w.clock.now();
    return response;
  }) as typeof globalThis.fetch;
  return { o: { ...w.o, fetch }, log };
}

const isRead = ({ path }: Log[number], room: string): boolean => path.startsWith(`/r/${room}?`);
const isParked = ({ path }: Log[number]): boolean => path.includes('wait=');

interface Setting {
  profile?: Profile;
  latency?: 'fast' | 'frugal';
  stepMs?: number;
  /** Whether they meet in a sealed room, and not in mailboxes. */
  inside?: boolean;
}

/** A server and a caller that have met: both know how the service wakes them. */
async function met({ profile = 'modern', latency = 'fast', stepMs = STEP_MS, inside }: Setting = {}) {
  const w = world(profile, { wakeStepMs: stepMs, readsPerMinute: 120, writesPerMinute: 30 });
  const [there, here] = [side(w, 'server'), side(w, 'caller')];
  const stop = new AbortController();
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const methods = new Map<string, Handler>([
    ['quick', () => 'done'],
    ['slow', (_, { service }) => service.clock!.sleep(3000).then(() => 'done')],
  ]);
  const key = new Uint8Array(32);
  const served = inside ? sealed(SEALED, key, callee, there.o) : MAILBOX;
  const to = inside ? sealed(SEALED, key, caller, { ...here.o, latency }) : MAILBOX;
  const ended = serve(served, callee, { ...there.o, methods, latency, signal: stop.signal, onReady: ready });
  await run(w.clock, Promise.race([isReady, ended]));
  const ask = async (method = 'quick'): Promise<number> => {
    const begun = w.clock.now();
    const work = call(to, method, {}, caller, { ...here.o, ...(!inside && { replyTo: REPLY }), latency });
    let took = 0;
    work.then(
      () => {
        took = w.clock.now() - begun;
      },
      () => {},
    );
    await w.run(work);
    return took;
  };
  for (let i = 0; i < 4; i++) {
    await ask();
    await w.clock.advance(777 + 130 * i);
  }
  return {
    w,
    there,
    here,
    ask,
    async stop() {
      stop.abort();
      await w.run(ended);
      expect(w.clock.sleepers).toBe(0);
    },
  };
}

describe('the schedule', () => {
  it('is data', () => {
    expect(PROBES_MS).toEqual([175, 290]);
    expect(STAGGER_MS).toBe(STEP_MS / 2);
  });

  it('after a write: a look at each of its times, and then a parked read', async () => {
    const { here, ask, w, stop } = await met();
    expect(rhythmOf(transportOf(here.o)).coarse).toBe(true);
    await w.clock.advance(60_000);
    here.log.length = 0;
    await ask('slow');
    const write = here.log.find(({ path }) => path.includes('/say-signed/'))!;
    const after = here.log.filter((one) => isRead(one, REPLY) && one.at >= write.until!);
    const looks = after.filter((one) => !isParked(one));
    expect(looks.map(({ at }) => at - write.until!)).toEqual([...PROBES_MS]);
    const parked = after.filter(isParked);
    expect(parked[0]!.at - write.until!).toBeGreaterThanOrEqual(PROBES_MS.at(-1)!);
    expect(parked[0]!.at - write.until!).toBeLessThan(PROBES_MS.at(-1)! + 20);
    expect(parked, 'it is held until the answer comes').toHaveLength(1);
    await stop();
  });

  it('in a mailbox that is served: two parked reads, half a step apart', async () => {
    const { there, w, stop } = await met();
    await w.clock.advance(15_000);
    there.log.length = 0;
    await w.clock.advance(60_000);
    const reads = there.log.filter((one) => isRead(one, MAILBOX));
    expect(reads.every(isParked)).toBe(true);
    // Ten seconds each, side by side.
    expect(reads.length).toBeGreaterThanOrEqual(11);
    expect(reads.length).toBeLessThanOrEqual(13);
    const phases = new Set(reads.map(({ at }) => Math.round((at % STEP_MS) / 50)));
    const [a, b] = reads as [Log[number], Log[number]];
    expect(phases.size).toBeGreaterThan(1);
    expect(Math.abs(((b.at - a.at) % STEP_MS) - STAGGER_MS)).toBeLessThan(60);
    await stop();
  });

  it('parks no more reads at a time than the service holds for an address', async () => {
    const { there, w, stop } = await met();
    const over = new AbortController();
    const { signal } = over;
    const rest = ['b', 'c', 'd'].map((x) => serve(`${MAILBOX}-${x}`, callee, { ...there.o, signal }));
    await w.clock.advance(30_000);
    there.log.length = 0;
    await w.clock.advance(60_000);
    const parked = there.log.filter(isParked);
    const ended = parked.filter(({ until }) => until !== undefined);
    expect(ended.filter(({ at, until }) => until! - at < 9000)).toEqual([]);
    for (const { at } of parked) {
      expect(parked.filter((one) => one.at <= at && (one.until ?? Infinity) > at).length).toBeLessThanOrEqual(4);
    }
    over.abort();
    await w.run(Promise.all(rest));
    await stop();
  });

  it('is off with latency frugal, on either side', async () => {
    const { here, there, ask, w, stop } = await met({ latency: 'frugal' });
    // A server looks once whether its mailbox is to be kept alive.
    await w.clock.advance(15_000);
    here.log.length = 0;
    there.log.length = 0;
    await ask('slow');
    await w.clock.advance(30_000);
    expect(here.log.filter((one) => isRead(one, REPLY) && !isParked(one) && !one.path.includes('limit=1&'))).toEqual(
      [],
    );
    const parked = there.log.filter((one) => isRead(one, MAILBOX));
    for (const [i, { at }] of parked.entries()) {
      const others = parked.slice(0, i).filter(({ until }) => until === undefined || until > at);
      expect(others, 'one at a time').toEqual([]);
    }
    await stop();
  });

  it('is not used where readers are woken at once', async () => {
    const { here, there, ask, w, stop } = await met({ stepMs: 0 });
    here.log.length = 0;
    there.log.length = 0;
    expect(await ask()).toBeLessThan(12 * WIRE_MS);
    expect(here.log.filter((one) => isRead(one, REPLY) && !isParked(one))).toEqual([]);
    await w.clock.advance(60_000);
    expect(there.log.filter((one) => isRead(one, MAILBOX)).length).toBeLessThanOrEqual(8);
    await stop();
  });

  it('keeps to what is left of the read budget', async () => {
    const { here, there, ask, w, stop } = await met();
    const budgets = [here, there].map(({ o }) => budgetOf(transportOf(o), 'read'));
    const scarce = (): void => {
      for (const budget of budgets) budget.learn(120, 20);
    };
    scarce();
    here.log.length = 0;
    await ask('slow');
    expect(here.log.filter((one) => isRead(one, REPLY) && !isParked(one))).toEqual([]);
    await w.clock.advance(12_000);
    for (let i = 0; i < 60; i++) {
      scarce();
      there.log.length = i === 0 ? 0 : there.log.length;
      await w.clock.advance(1000);
    }
    expect(there.log.filter((one) => isRead(one, MAILBOX)).length).toBeLessThanOrEqual(7);
    await stop();
  });
});

describe.each(PROFILES)('sixty calls with random gaps, readers woken twice a second (%s)', (profile) => {
  it.each([false, true])(
    'take half the time of plain parking, within the budgets (in a sealed room: %s)',
    async (inside) => {
      const random = new Random(7, 'latency');
      const times: Record<string, number[]> = {};
      let perCall = 0;
      for (const latency of ['frugal', 'fast'] as const) {
        const { w, here, there, ask, stop } = await met({ profile, latency, inside });
        here.log.length = 0;
        there.log.length = 0;
        const took: number[] = (times[latency] = []);
        for (let i = 0; i < 60; i++) {
          await w.clock.advance(random.between(1200, 4000));
          took.push(await ask());
        }
        took.sort((a, b) => a - b);
        if (latency === 'fast') {
          const [served, answered] = inside ? [SEALED, SEALED] : [MAILBOX, REPLY];
          const reads =
            here.log.filter((one) => isRead(one, answered)).length +
            there.log.filter((one) => isRead(one, served)).length;
          perCall = reads / 60;
        }
        expect(w.service.stats.refused).toBe(0);
        await stop();
      }
      const [fast, frugal] = [times['fast']!, times['frugal']!];
      expect(fast[30]! / frugal[30]!).toBeLessThanOrEqual(0.45);
      expect(fast[54]! / frugal[54]!).toBeLessThanOrEqual(0.6);
      expect(perCall).toBeLessThanOrEqual(5);
    },
  );
});

it('the two parked reads stay apart, though each is held up now and then', async () => {
  const random = new Random(2, 'drift');
  const w = world('0.7', { wakeStepMs: STEP_MS, readsPerMinute: 120, writesPerMinute: 30 });
  const late = (address: string): Options => {
    const reach = w.service.client(address);
    const fetch = (async (url: string, init: RequestInit) => {
      await w.clock.sleep(random.between(1, 30));
      const response = await reach(url, init);
      await w.clock.sleep(random.between(1, 30));
      return response;
    }) as typeof globalThis.fetch;
    return { ...w.o, fetch };
  };
  const stop = new AbortController();
  const methods = new Map<string, Handler>([['quick', () => 'done']]);
  const ended = serve(MAILBOX, callee, { ...late('server'), methods, signal: stop.signal });
  await w.clock.advance(2000);
  const o = { ...late('caller'), replyTo: REPLY };
  const took: number[] = [];
  for (let i = 0; i < 120; i++) {
    await w.clock.advance(random.between(2500, 5500));
    const begun = w.clock.now();
    await w.run(call(MAILBOX, 'quick', {}, caller, o).then(() => took.push(w.clock.now() - begun)));
  }
  took.sort((a, b) => a - b);
  expect(took[108]).toBeLessThan(400);
  expect(took[116]).toBeLessThan(450);
  stop.abort();
  await w.run(ended);
});
