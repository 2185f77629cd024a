import { describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import { CallTimeout } from '../src/errors.ts';
import { budgetOf, type Event, type Options, transportOf } from '../src/http.ts';
import { memoryLedger } from '../src/ledger.ts';
import { getNote, setNote } from '../src/notes.ts';
import { attend, type Presence, presenceNote } from '../src/presence.ts';
import { type CursorStore, type Place, read } from '../src/rooms.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { PROFILES, run, signer, type World, world } from './support.ts';
import type { VirtualClock } from './virtual-clock.ts';

const MAILBOX = 'mb-p-presence-callee';
const REPLY = 'mb-p-presence-caller';
const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const callee = signer(1);
const caller = signer(2);
const { ns, key } = presenceNote(MAILBOX);
const isNote = (url: string): boolean => url.includes(`/kv/${ns}/${key}`);
const isTold = (url: string): boolean => isNote(url) && url.includes('/set/');

/** Options over a `fetch` that counts: a client of its own, with budgets and inboxes of its own. */
function counting(w: World, address = 'other'): { o: Options & { clock: VirtualClock }; urls: string[] } {
  const urls: string[] = [];
  const reach = w.service.client(address);
  const fetch = ((url: string, init?: RequestInit) => {
    urls.push(url);
    return reach(url, init);
  }) as typeof globalThis.fetch;
  return { o: { ...w.o, fetch }, urls };
}

/** A server that is ready; `stop` ends it, `kill` cuts it off from the service at once and for good. */
async function served(w: World, o: ServeOptions = {}, mailbox = MAILBOX) {
  const stop = new AbortController();
  let isDead = false;
  const urls: string[] = [];
  const fetch = ((url: string, init?: RequestInit) => {
    if (isDead) return new Promise(() => {});
    urls.push(url);
    return w.service.fetch(url, init);
  }) as typeof globalThis.fetch;
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const methods = new Map<string, () => unknown>([
    ['quick', () => 'done'],
    ['never', () => new Promise(() => {})],
  ]);
  const ended = serve(mailbox, callee, { ...w.o, fetch, methods, ...o, signal: stop.signal, onReady: ready });
  await run(w.clock, Promise.race([isReady, ended]));
  await w.clock.advance(10);
  return {
    urls,
    kill: () => {
      isDead = true;
    },
    async stop() {
      stop.abort();
      await w.run(ended);
    },
  };
}

/** How a call without an answer ends. */
async function timeoutOf(w: World, o: Options, more: { peer?: string; timeoutMs?: number; to?: string } = {}) {
  const { to = MAILBOX, peer = callee.did, ...rest } = more;
  const begun = w.clock.now();
  const work = call(to, 'never', {}, caller, { ...o, replyTo: REPLY, timeoutMs: 5000, peer, ...rest });
  const error = await w.run(work.catch((e) => e));
  expect(error).toBeInstanceOf(CallTimeout);
  return { error: error as CallTimeout, took: w.clock.now() - begun };
}

describe.each(PROFILES)('the note of a served mailbox (%s)', (profile) => {
  it('is signed, renewed every ten minutes, and says so when the server ends', async () => {
    const w = world(profile);
    const server = await served(w);
    const first = await w.run(getNote(ns, key, w.o));
    expect(first).toContain(callee.did);
    expect(first, 'a mailbox is known to those who were told').not.toContain(MAILBOX);
    await w.clock.advance(25 * MINUTE);
    expect(server.urls.filter(isTold)).toHaveLength(3);
    expect(await w.run(getNote(ns, key, w.o))).not.toBe(first);
    await server.stop();
    expect(await w.run(getNote(ns, key, w.o))).toMatch(/ \d+ 0 \S+$/);
    expect(server.urls.filter(isTold)).toHaveLength(4);
    expect(w.clock.sleepers).toBe(0);
  });

  it('is not written when it is not wanted', async () => {
    const w = world(profile);
    const server = await served(w, { presence: false });
    await w.clock.advance(HOUR);
    await server.stop();
    expect(server.urls.filter(isTold)).toEqual([]);
    expect(w.clock.sleepers).toBe(0);
  });

  it('tells no room, no server and no answer apart', async () => {
    const w = world(profile);
    const { o } = counting(w);
    const nowhere = await timeoutOf(w, o, { to: 'mb-p-nobody-ever' });
    expect(nowhere.error).toMatchObject({ reason: 'no-room' });

    const server = await served(w);
    const slow = await timeoutOf(w, o, { peer: callee.did });
    expect(slow.error).toMatchObject({ reason: 'no-answer', message: expect.stringContaining('was seen at') });
    await w.clock.advance(60_000);
    server.stop().catch(() => {});
    await w.clock.advance(90_000);
    const gone = await timeoutOf(w, o, { peer: callee.did });
    expect(gone.error).toMatchObject({ reason: 'no-server', message: expect.stringContaining('stopped at') });
    expect(gone.took).toBeLessThan(5200);
  });

  it('expires when a server dies, and is then no longer believed', async () => {
    const w = world(profile);
    const { o } = counting(w);
    const server = await served(w);
    server.kill();
    await w.clock.advance(10 * MINUTE);
    expect((await timeoutOf(w, o)).error).toMatchObject({ reason: 'no-answer' });
    await w.clock.advance(25 * MINUTE);
    const { error } = await timeoutOf(w, o);
    expect(error).toMatchObject({ reason: 'no-server', message: expect.stringContaining('was last seen at') });
  });

  it('counts for nothing when it is another key’s, forged, or an old one put back', async () => {
    const w = world(profile);
    const { o } = counting(w);
    const server = await served(w);
    const good = (await w.run(getNote(ns, key, w.o)))!;
    const unknown = { reason: 'no-answer', message: expect.stringContaining('unknown') };

    expect((await timeoutOf(w, o, { peer: signer(9).did })).error).toMatchObject(unknown);
    for (const forged of [
      'junk',
      good.replace(callee.did, signer(9).did),
      good.replace(/ (\d+) (\d+) /, ' $1 0 '),
      good.replace(/ 1\d+ /, (at) => ` ${Number(at) - 1} `),
      `${good} ${good}`,
    ]) {
      await w.clock.advance(MINUTE);
      await w.run(setNote(ns, key, forged, w.o));
      expect((await timeoutOf(w, o)).error, forged).toMatchObject(unknown);
    }
    const elsewhere = presenceNote('mb-p-presence-another');
    await w.run(setNote(elsewhere.ns, elsewhere.key, good, w.o));
    const { error } = await timeoutOf(w, o, { to: 'mb-p-presence-another' });
    expect(error.reason, 'a note of another mailbox').toBe('no-room');

    await server.stop();
    const gone = (await w.run(getNote(ns, key, w.o)))!;
    expect((await timeoutOf(w, o)).error.reason).toBe('no-server');
    const again = await served(w);
    await w.clock.advance(MINUTE);
    expect((await timeoutOf(w, o)).error.message).toContain('was seen at');
    await w.clock.advance(MINUTE);
    await w.run(setNote(ns, key, gone, w.o));
    expect((await timeoutOf(w, o)).error).toMatchObject(unknown);
    await again.stop();
  });

  it('is not looked at by a call that is answered, and once by many that are not', async () => {
    const w = world(profile);
    const { o, urls } = counting(w);
    const server = await served(w);
    expect(await w.run(call(MAILBOX, 'quick', {}, caller, { ...o, replyTo: REPLY }))).toBe('done');
    expect(urls.filter(isNote)).toEqual([]);
    const all = Array.from({ length: 50 }, () =>
      call(MAILBOX, 'never', {}, caller, { ...o, replyTo: REPLY, timeoutMs: 8000 }).catch((e) => e.reason),
    );
    expect(new Set(await w.run(Promise.all(all)))).toEqual(new Set(['no-answer']));
    expect(urls.filter(isNote)).toHaveLength(1);
    server.kill();
  });

  it('never prolongs a call, though the look never ends', async () => {
    const w = world(profile);
    const { o } = counting(w);
    const fetch = ((url: string, init: RequestInit) =>
      isNote(url) ? new Promise(() => {}) : o.fetch!(url, init)) as typeof globalThis.fetch;
    const { error, took } = await timeoutOf(w, { ...o, fetch }, { to: MAILBOX, timeoutMs: 6000 });
    expect(error).toMatchObject({ reason: 'no-room', afterMs: 6000 });
    expect(took).toBeLessThan(6100);
  });
});

it('is believed of any key while nobody knows whose mailbox it is, as far as it is signed', async () => {
  const w = world();
  const server = await served(w);
  const ended = async (more: object = {}): Promise<unknown> => {
    // What was found is good for a moment.
    await w.clock.advance(MINUTE);
    const { o, urls } = counting(w);
    const work = call(MAILBOX, 'never', {}, caller, { ...o, replyTo: REPLY, timeoutMs: 5000, ...more });
    const error = await w.run(work.catch((e) => e));
    expect(urls.filter(isNote)).toHaveLength(1);
    return error;
  };
  const told = (word: string, did = callee.did) => expect.stringMatching(new RegExp(`${did}, ${word} `));
  expect(await ended()).toMatchObject({ reason: 'no-answer', message: told('was seen at') });
  await server.stop();
  expect(await ended()).toMatchObject({ reason: 'no-server', message: told('stopped at') });
  expect(await ended({ peer: callee.did })).toMatchObject({ reason: 'no-server', message: told('stopped at') });

  const stranger: Presence = { did: signer(9).did, at: w.clock.now(), validMs: 1000 };
  const canonical = `rpc-here|${stranger.did}|${MAILBOX}|${stranger.at}|1000`;
  const text = `${stranger.did} ${stranger.at} 1000 ${signer(9).sign(canonical)}`;
  const unknown = { reason: 'no-answer', message: expect.stringContaining('unknown') };
  await w.run(setNote(ns, key, text, w.o));
  expect(await ended()).toMatchObject({ reason: 'no-server', message: told('was last seen at', stranger.did) });
  expect(await ended({ peer: callee.did })).toMatchObject(unknown);
  await w.run(setNote(ns, key, text.replace(' 1000 ', ' 900000 '), w.o));
  expect(await ended()).toMatchObject(unknown);
});

const warnings = (events: Event[]): Event[] => events.filter(({ kind }) => kind === 'warning');

/** A server in a process of its own, and what it was told. */
async function program(w: World, o: ServeOptions = {}) {
  const events: Event[] = [];
  return { events, ...(await served(w, { onEvent: (e) => void events.push(e), ...o })) };
}

it('another program with the same key on the same mailbox is told of, at the start and once later; a restart and a stranger are not', async () => {
  const w = world();
  const first = await program(w);
  await w.clock.advance(MINUTE);
  await w.run(setNote(ns, key, 'junk', w.o));
  await w.clock.advance(20 * MINUTE);
  await first.stop();
  const second = await program(w);
  await w.clock.advance(11 * MINUTE);
  expect([warnings(first.events), warnings(second.events)]).toEqual([[], []]);
  const third = await program(w);
  const warning = { room: MAILBOX, reason: expect.stringMatching(/was here at 20.*if it is still running.*claim/) };
  expect(warnings(third.events), 'at once').toMatchObject([warning]);
  await w.clock.advance(60 * MINUTE);
  expect(warnings(second.events)).toMatchObject([warning]);
  expect(warnings(third.events)).toMatchObject([warning, warning]);
  await second.stop();
  await third.stop();
});

it('one that was killed is told of while it could still run, and not where it must have been this very process', async () => {
  const w = world();
  const restarted = async (minutes: number, fetch?: typeof globalThis.fetch) => {
    const first = await program(w, fetch && { fetch });
    await w.clock.advance(minutes * MINUTE);
    // Its last word is that it is there.
    const last = (await w.run(getNote(ns, key, w.o)))!;
    await first.stop();
    await w.run(setNote(ns, key, last, w.o));
    const second = await program(w, fetch && { fetch });
    await second.stop();
    return warnings(second.events).length;
  };
  expect(await restarted(9)).toBe(1);
  const { fetch } = counting(w).o;
  expect(await restarted(9, fetch)).toBe(0);
  const first = await program(w);
  first.kill();
  await w.clock.advance(11 * MINUTE);
  const second = await program(w);
  expect(warnings(second.events)).toEqual([]);
  await second.stop();
  await first.stop();
});

it('one that was killed is not told of where the place that it kept says that it was ours', async () => {
  const w = world();
  const keeping = (): ServeOptions => {
    const places = new Map<string, Place>();
    const cursor: CursorStore = {
      load: (room) => places.get(room),
      save: (room, place) => void places.set(room, structuredClone(place)),
    };
    return { ledger: memoryLedger(), cursor };
  };
  const restarted = async (o: ServeOptions, minutes: number, meanwhile = async (): Promise<void> => {}) => {
    const first = await program(w, o);
    await w.clock.advance(minutes * MINUTE);
    first.kill();
    await meanwhile();
    const second = await program(w, o);
    await second.stop();
    await first.stop();
    return warnings(second.events).length;
  };
  const own = keeping();
  expect(await restarted(own, 1)).toBe(0);
  // Also where it was said anew since.
  expect(await restarted(own, 15)).toBe(0);
  const other = async (): Promise<void> => {
    const elsewhere = await program(w, keeping());
    await w.clock.advance(MINUTE);
    elsewhere.kill();
  };
  expect(await restarted(own, 1, other)).toBe(1);
  expect(await restarted({}, 1)).toBe(1);
});

it('a server that cannot say that it ends does not wait for it', async () => {
  const w = world();
  const server = await served(w);
  server.kill();
  const begun = w.clock.now();
  await server.stop();
  expect(w.clock.now() - begun).toBeLessThan(2500);
  expect(w.clock.sleepers).toBe(0);
});

it('the note waits while the write budget is short, but not for ever', async () => {
  const w = world('modern', { writesPerMinute: 30 });
  const stop = new AbortController();
  const { urls, o } = counting(w);
  const t = transportOf(o);
  budgetOf(t, 'write').learn(30, 0);
  const busy = (async () => {
    while (!stop.signal.aborted) {
      budgetOf(t, 'write').learn(30, 0);
      await w.clock.sleep(1000);
    }
  })();
  const over = attend(t, MAILBOX, callee, stop.signal, { presence: true, heard: () => true });
  await w.clock.advance(5 * MINUTE);
  expect(urls.filter(isNote)).toEqual([]);
  await w.clock.advance(6 * MINUTE);
  expect(urls.filter(isNote)).toHaveLength(1);
  stop.abort();
  await w.run(Promise.all([over, busy]));
});

describe.each(PROFILES)('a mailbox that nobody writes to (%s)', (profile) => {
  const alive = async (w: World, room: string): Promise<number> => {
    // The reaper runs on writes.
    await w.run(setNote('any', 'note', String(w.clock.now()), w.o));
    return (await w.run(read(room, w.o))).messages.length;
  };

  it('fault 41: gets a second line within hours, then one every five days, and is never reaped', async () => {
    const w = world(profile);
    const { o, urls } = counting(w);
    const t = transportOf(o);
    await w.run(callee.say(MAILBOX, 'mailbox opened', w.o));
    await w.run(callee.say('mb-p-control', 'mailbox opened', w.o));
    const stop = new AbortController();
    const over = attend(t, MAILBOX, callee, stop.signal, { presence: false, heard: () => false });
    await w.clock.advance(2 * HOUR);
    expect(await alive(w, MAILBOX)).toBe(2);
    for (let day = 0; day < 20; day++) {
      await w.clock.advance(DAY);
      expect(await alive(w, MAILBOX)).toBeGreaterThanOrEqual(2);
    }
    expect(await alive(w, 'mb-p-control')).toBe(0);
    expect(urls.filter((url) => url.includes('/say-signed/'))).toHaveLength(1 + 4);
    stop.abort();
    await over;
    expect(w.clock.sleepers).toBe(0);
  });

  it('gets it soon when an earlier server left it alone for long', async () => {
    const w = world(profile);
    await w.run(callee.say(MAILBOX, 'mailbox opened', w.o));
    await w.clock.advance(20 * HOUR);
    const server = await served(w, { presence: false });
    await w.clock.advance(11_000);
    expect(await alive(w, MAILBOX)).toBe(2);
    await server.stop();
  });

  it('gets none while others write', async () => {
    const w = world(profile);
    const server = await served(w, { presence: false });
    for (let hour = 0; hour < 3; hour++) {
      await w.run(caller.say(MAILBOX, `line ${hour}`, counting(w).o));
      await w.clock.advance(HOUR);
    }
    expect(server.urls.filter((url) => url.includes('/say-signed/'))).toHaveLength(1);
    await server.stop();
  });
});
