import { beforeEach, describe, expect, it } from 'vitest';
import { call } from '../src/call.ts';
import { partitionOf } from '../src/claims.ts';
import { type Handler, idempotent } from '../src/dispatch.ts';
import { RpcError } from '../src/errors.ts';
import type { Clock } from '../src/http.ts';
import { type Ledger, memoryLedger } from '../src/ledger.ts';
import type { CallOptions } from '../src/line.ts';
import { getNote, setNote } from '../src/notes.ts';
import { presenceNote } from '../src/presence.ts';
import { read, say } from '../src/rooms.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import type { Signer } from '../src/signer.ts';
import { spilledFrame, spillOf } from '../src/spill.ts';
import { Random } from './sim/random.ts';
import { broken, PROFILES, signer, type World, world } from './support.ts';
import type { VirtualClock } from './virtual-clock.ts';

const MAILBOX = 'mb-p-claims';
const MINUTE = 60_000;

/** One caller for each partition. */
const onePerPartition = (from: number): Signer[] =>
  [0, 1, 2, 3].map((p) => {
    for (let n = from; ; n++) if (partitionOf(signer(n).did) === p) return signer(n);
  });

/** New in each test, as their nonces are of that test's time. */
let callers: Signer[];
beforeEach(() => {
  callers = onePerPartition(10);
});

/** The clock of one machine: it may be wrong, and it stops when the machine does. */
class MachineClock implements Clock {
  offset = 0;
  isDead = false;
  readonly #base: VirtualClock;

  constructor(base: VirtualClock) {
    this.#base = base;
  }

  now(): number {
    return this.#base.now() + this.offset;
  }

  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    await this.#base.sleep(ms, signal);
    if (this.isDead) await new Promise(() => {});
  }
}

/** Several servers of one mailbox, on machines of their own. */
function fleet(w: World, leaseMs?: number, random?: (bytes: number) => Uint8Array) {
  /** Which server ran what, by caller and number. */
  const runs = new Map<string, string[]>();
  const notes: string[] = [];
  const servers = new Map<string, Awaited<ReturnType<typeof start>>>();
  let claimsNote: { ns: string; key: string } | undefined;

  async function start(name: string, ledger: Ledger = memoryLedger(), more: ServeOptions = {}) {
    const clock = new MachineClock(w.clock);
    const stop = new AbortController();
    const machine = { clock, isCut: (_url: string): boolean => false, delay: (): number => 0, kv: 0 };
    const reach = w.service.client(name);
    const fetch = (async (url: string, init: RequestInit = {}) => {
      if (clock.isDead) return new Promise(() => {});
      const delay = machine.delay();
      if (delay > 0) await w.clock.sleep(delay);
      if (machine.isCut(url)) throw broken();
      const [, ns, key, how] = /\/kv\/(p-[0-9a-f]{32})\/(claims)(\/set)?/.exec(url) ?? [];
      if (ns) {
        claimsNote = { ns, key: key! };
        machine.kv++;
        if (how) notes.push(name);
      }
      const response = await reach(url, init);
      return clock.isDead ? new Promise(() => {}) : response;
    }) as typeof globalThis.fetch;
    const ran = (from: string, n: number): void => {
      const key = `${from} ${n}`;
      runs.set(key, [...(runs.get(key) ?? []), name]);
    };
    const run =
      (ms: number): Handler =>
      async ({ n }, { from }) => {
        if (clock.isDead) return new Promise(() => {});
        ran(from, n);
        if (ms > 0) await clock.sleep(ms);
        return `${n} by ${name}`;
      };
    const methods = new Map<string, Handler>([
      ['quick', run(0)],
      ['slow', run(5000)],
      ['endless', run(1e9)],
      ['look', idempotent(run(5000))],
    ]);
    const ended = serve(MAILBOX, signer(1), {
      ...w.o,
      fetch,
      clock,
      methods,
      ledger,
      claim: leaseMs === undefined ? true : { leaseMs },
      ...(random && { random }),
      ...more,
      deadlineMs: 600_000,
      signal: stop.signal,
    });
    ended.catch(() => {});
    const server = {
      name,
      machine,
      clock,
      kill: () => {
        clock.isDead = true;
      },
      stop: () => {
        stop.abort();
        return ended;
      },
    };
    servers.set(name, server);
    await w.clock.advance(100);
    return server;
  }

  return {
    runs,
    notes,
    start,
    note: () => claimsNote!,
    /** Owner of each partition, by how many it has: as the note says. */
    async split(): Promise<number[]> {
      const value = (await w.run(getNote(claimsNote!.ns, claimsNote!.key, w.o)))!;
      const owners = value
        .split(' ')
        .slice(3, 7)
        .map((part) => part.split(':')[0]!);
      const counts = new Map<string, number>();
      for (const owner of owners) counts.set(owner, (counts.get(owner) ?? 0) + 1);
      return [...counts]
        .filter(([owner]) => owner.length > 1)
        .map(([, n]) => n)
        .sort();
    },
    /** Nothing ran twice that may not. */
    check(): void {
      for (const [key, names] of runs) expect(names, key).toHaveLength(1);
    },
  };
}

let numbers = 0;

/** Asks, and tells what came of it: the answer, a code, or the reason of a timeout. */
async function ask(w: World, caller: Signer, method = 'quick', more: Partial<CallOptions> = {}) {
  const n = numbers++;
  const replyTo = `mb-p-claims-${partitionOf(caller.did)}`;
  const o = { ...w.o, fetch: w.service.client(`caller ${caller.did}`), replyTo, timeoutMs: 20_000, ...more };
  try {
    const answer = await call(MAILBOX, method, { n }, caller, o);
    return { n, answer: String(answer) };
  } catch (error) {
    return { n, code: error instanceof RpcError ? error.rpc.code : (error as any).code };
  }
}

const askAll = (w: World, method?: string, more?: Partial<CallOptions>) =>
  Promise.all(callers.map((caller) => ask(w, caller, method, more)));

describe.each(PROFILES)('one server that shares its mailbox (%s)', (profile) => {
  it('serves at once, for three writes a minute, and gives everything back', async () => {
    const w = world(profile);
    const f = fleet(w);
    const a = await f.start('a');
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by a$/);
    const before = { writes: f.notes.length, requests: a.machine.kv };
    await w.clock.advance(10 * MINUTE);
    expect(f.notes.length - before.writes).toBeLessThanOrEqual(33);
    expect(f.notes.length - before.writes).toBeGreaterThanOrEqual(28);
    expect(a.machine.kv - before.requests).toBeLessThanOrEqual(66);
    await w.run(a.stop());
    expect(await w.run(getNote(f.note().ns, f.note().key, w.o))).toMatch(
      /^claims\/1 \d+ - -:\d+ -:\d+ -:\d+ -:\d+ \S{22}$/,
    );
    expect(w.clock.sleepers).toBe(0);
    f.check();
  });

  it('is followed at once by the next one when it ends, and after its lease when it dies', async () => {
    const w = world(profile);
    const f = fleet(w);
    const a = await f.start('a');
    await w.run(a.stop());
    const b = await f.start('b');
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by b$/);
    b.kill();
    await f.start('c');
    await w.clock.advance(50_000);
    const waiting = askAll(w, 'quick', { timeoutMs: 60_000 });
    for (const { code } of await w.run(waiting)) expect(code, 'it may have been begun').toBe(1001);
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by c$/);
    f.check();
  });
});

describe('servers of one mailbox', () => {
  it('share it evenly, whoever comes and goes, and no call is lost on the way', async () => {
    const w = world('modern', { wakeStepMs: 500 });
    const f = fleet(w);
    const a = await f.start('a');
    const outcomes: { answer?: string; code?: any }[] = [];
    let isOver = false;
    const traffic = (async () => {
      while (!isOver) {
        outcomes.push(...(await askAll(w)));
        await w.clock.sleep(4000);
      }
    })();
    await w.clock.advance(5000);
    const b = await f.start('b');
    await w.clock.advance(MINUTE);
    expect(await f.split()).toEqual([2, 2]);
    const c = await f.start('c');
    await w.clock.advance(MINUTE);
    expect(await f.split()).toEqual([1, 1, 2]);
    const others = [await f.start('d'), await f.start('e')];
    await w.clock.advance(90_000);
    expect(await f.split()).toEqual([1, 1, 1, 1]);
    for (const server of [a, ...others]) await w.run(server.stop());
    await w.clock.advance(MINUTE);
    expect(await f.split()).toEqual([2, 2]);
    await w.run(b.stop());
    await w.clock.advance(MINUTE);
    expect(await f.split()).toEqual([4]);
    isOver = true;
    await w.run(traffic);
    expect(outcomes.filter(({ answer }) => answer === undefined)).toEqual([]);
    expect(new Set(outcomes.map(({ answer }) => answer!.split(' by ')[1])).size).toBeGreaterThan(3);
    f.check();
    await w.run(c.stop());
    expect(w.clock.sleepers).toBe(0);
  }, 120_000);

  it('the one that ends finishes what it began before another takes its place', async () => {
    const w = world();
    const f = fleet(w);
    const a = await f.start('a');
    await f.start('b');
    await w.clock.advance(MINUTE);
    const slow = askAll(w, 'slow');
    await w.clock.advance(1000);
    const ended = a.stop();
    for (const { answer } of await w.run(slow)) expect(answer).toBeDefined();
    await w.run(ended);
    await w.clock.advance(10_000);
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by b$/);
    f.check();
  });

  it('a request that is too long for a message, and was answered by one that ended, is not run again', async () => {
    const w = world();
    const f = fleet(w);
    const servers = [await f.start('a', undefined, { spill: true }), await f.start('b', undefined, { spill: true })];
    await w.clock.advance(MINUTE);
    const caller = callers[0]!;
    const reply = { _meta: { 'chat.technocore/reply': 'mb-p-long' } };
    await w.run(caller.say('mb-p-long', 'mailbox opened', w.o));
    const params = { n: 1, more: 'x'.repeat(6000), ...reply };
    const text = JSON.stringify({ jsonrpc: '2.0', id: '1', method: 'quick', params });
    const spill = spillOf(w.t, caller, MAILBOX);
    const frame = await w.run(spilledFrame(text, (all) => spill.put(all), { params: reply }));
    await w.run(caller.say(MAILBOX, frame, w.o));
    await w.clock.advance(5000);
    const [ran] = f.runs.get(`${caller.did} 1`)!;
    await w.run(servers.find(({ name }) => name === ran)!.stop());
    await w.clock.advance(MINUTE);
    await w.run(caller.say(MAILBOX, frame, w.o));
    await w.clock.advance(5000);
    expect(f.runs.get(`${caller.did} 1`)).toEqual([ran]);
    const { messages } = await w.run(read('mb-p-long', w.o));
    const answers = messages.slice(1).map((m) => JSON.parse(m.text));
    expect(answers).toEqual(Array(2).fill({ jsonrpc: '2.0', id: '1', result: `1 by ${ran}` }));
  });

  it('the one that ends has remembered by then what others finished, and its ledger can be closed', async () => {
    const w = world();
    const f = fleet(w);
    await f.start('a');
    const kept = memoryLedger();
    let [admitted, late] = [0, 0];
    let isOver = false;
    const b = await f.start('b', {
      admit(m, now) {
        admitted++;
        if (isOver) late++;
        return kept.admit(m, now);
      },
      answer(from, id, answer) {
        if (isOver) late++;
        return kept.answer(from, id, answer);
      },
      sent: (from, id) => kept.sent(from, id),
      forget: (from, id) => kept.forget(from, id),
    });
    await w.clock.advance(MINUTE);
    const calls = Array.from({ length: 80 }, (_, i) => ask(w, callers[i % 4]!));
    for (const { answer } of await w.run(Promise.all(calls))) expect(answer).toBeDefined();
    // The other one has said what it finished, and this one not read it yet.
    const said = f.notes.length;
    while (!f.notes.slice(said).includes('a')) await w.clock.advance(100);
    const ended = b.stop().then(() => {
      isOver = true;
    });
    await w.run(ended);
    await w.clock.advance(10_000);
    expect([admitted, late]).toEqual([80, 0]);
    f.check();
  });

  it('when one dies, what it began is reported or run again where it may, what it answered is not, what comes later is new', async () => {
    const w = world();
    const f = fleet(w);
    const a = await f.start('a');
    const b = await f.start('b');
    await w.clock.advance(MINUTE);
    const answered = await w.run(askAll(w, 'quick', { id: 'same' }));
    const by = (name: string): Signer[] => callers.filter((_, p) => answered[p]!.answer!.endsWith(name));
    expect(by('a')).toHaveLength(2);

    const begun = by('a').map((caller) => ask(w, caller, 'endless', { timeoutMs: 120_000 }));
    const looks = by('a').map((caller) => ask(w, caller, 'look', { timeoutMs: 120_000 }));
    await w.clock.advance(1000);
    a.kill();
    await w.clock.advance(1000);
    const unseen = by('a').map((caller) => ask(w, caller, 'quick', { timeoutMs: 120_000 }));
    for (const caller of by('b')) expect((await w.run(ask(w, caller))).answer, 'the others go on').toMatch(/by b$/);
    const outcomes = await w.run(Promise.all([...begun, ...unseen]));
    expect(outcomes.map(({ code }) => code)).toEqual([1001, 1001, 1001, 1001]);
    for (const { answer } of await w.run(Promise.all(looks))) expect(answer).toMatch(/by b$/);
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by b$/);
    // Asked again under its id: the answer that stands in the reply room, not another run.
    numbers = answered[0]!.n;
    const again = await w.run(askAll(w, 'quick', { id: 'same' }));
    expect(again.map(({ answer }) => answer)).toEqual(answered.map(({ answer }) => answer));
    for (const [key, names] of f.runs) {
      const isLook = names.length === 2 && names.join() === 'a,b';
      expect(names.length === 1 || isLook, `${key} ${names}`).toBe(true);
    }
    await w.run(b.stop());
  });

  it('one that cannot renew stops to begin anything before another may, though its clock was set', async () => {
    for (const jump of [0, -3_600_000, 3_600_000]) {
      const w = world();
      const f = fleet(w);
      const a = await f.start('a');
      const b = await f.start('b');
      a.clock.offset = 12 * 3_600_000;
      await w.clock.advance(MINUTE);
      a.machine.isCut = (url) => url.includes('/kv/');
      a.clock.offset += jump;
      b.clock.offset -= jump;
      const outcomes: { answer?: string; code?: any }[] = [];
      const traffic = (async () => {
        for (let i = 0; i < 40; i++) {
          for (const caller of callers) void ask(w, caller).then((one) => outcomes.push(one));
          await w.clock.sleep(4000);
        }
      })();
      await w.run(traffic);
      await w.clock.advance(30_000);
      f.check();
      expect(outcomes.length).toBe(160);
      expect(outcomes.slice(-40).filter(({ answer }) => answer?.endsWith('by b')).length, `jump ${jump}`).toBe(40);
      for (const { code } of outcomes) expect([undefined, 1001, 'call_timeout']).toContain(code);
    }
  }, 120_000);
});

describe.each(PROFILES)('a mailbox that is made anew (%s)', (profile) => {
  it('what others finished there is not run again by one who finds out late', async () => {
    const short = { retentionMs: 200_000, singleMessageRetentionMs: 200_000, reapEveryMs: 1000 };
    const w = world(profile, { ...short, waitersPerAddress: 64 });
    const f = fleet(w, 20_000);
    const a = await f.start('a');
    const b = await f.start('b');
    await w.clock.advance(40_000);
    expect(await f.split()).toEqual([2, 2]);
    await w.run(askAll(w));
    b.machine.isCut = (url) => url.includes(`/r/${MAILBOX}?`) && url.includes('since=');
    // A service without generations is looked into once a minute.
    await w.clock.advance(300_000);
    const meanwhile = await w.run(
      Promise.all(
        callers.map((caller) =>
          ask(w, caller, 'quick', { timeoutMs: 5000, replyTo: `mb-p-claims-anew-${partitionOf(caller.did)}` }),
        ),
      ),
    );
    expect(meanwhile.filter(({ answer }) => answer?.endsWith(' by a'))).toHaveLength(2);
    await w.run(a.stop());
    await w.clock.advance(60_000);
    expect(await f.split()).toEqual([4]);
    b.machine.isCut = () => false;
    await w.clock.advance(90_000);
    const after = await w.run(askAll(w));
    expect(after.map(({ answer }) => answer)).toEqual(after.map(({ n }) => `${n} by b`));
    f.check();
    await w.run(b.stop());
  });
});

describe.each(PROFILES)('one that is behind (%s)', (profile) => {
  const isRead = (url: string): boolean => url.includes(`/r/${MAILBOX}?`) && url.includes('since=');

  it('does not run what others finished in a room that is gone by the time it takes over', async () => {
    const w = world(profile, { waitersPerAddress: 64 });
    const f = fleet(w);
    const a = await f.start('a');
    const b = await f.start('b');
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by a$/);
    b.machine.isCut = isRead;
    // What b waits for was parked before.
    await w.run(askAll(w));
    await w.run(askAll(w));
    expect(await f.split()).toEqual([4]);
    await w.run(a.stop());
    w.service.age(MAILBOX, 8 * 24 * 60 * MINUTE);
    await w.run(say('p-elsewhere', 'somebody', 'time passes', w.o));
    await w.clock.advance(MINUTE);
    expect(await f.split()).toEqual([4]);
    f.check();
    b.machine.isCut = () => false;
    await w.clock.advance(2 * MINUTE);
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by b$/);
    f.check();
    await w.run(b.stop());
  });

  it('knows the room for another one, although that grows before it reads there', async () => {
    const w = world(profile, { waitersPerAddress: 64 });
    const f = fleet(w, 30_000);
    const a = await f.start('a');
    for (let i = 0; i < 6; i++) await w.run(askAll(w));
    await w.clock.advance(20_000);
    a.kill();
    const anew = async (messages: number): Promise<void> => {
      w.service.age(MAILBOX, 8 * 24 * 60 * MINUTE);
      await w.run(say('p-elsewhere', 'somebody', `${numbers++} days pass`, w.o));
      await fill(messages);
    };
    const other = signer(9);
    const fill = async (messages: number): Promise<void> => {
      for (let i = 0; i < messages; i++) await w.run(other.say(MAILBOX, `${numbers++}`, w.o));
    };
    await anew(6);
    const b = await f.start('b');
    await w.clock.advance(1000);
    b.machine.isCut = isRead;
    await w.clock.advance(11_000);
    await anew(2);
    await w.clock.advance(2 * MINUTE);
    expect(await f.split()).toEqual([4]);
    await fill(6);
    b.machine.isCut = () => false;
    // Long before it would look by itself whether the room is the same.
    await w.clock.advance(11_000);
    for (const { answer } of await w.run(askAll(w))) expect(answer).toMatch(/by b$/);
    f.check();
    await w.run(b.stop());
  });

  it('believes no copy of what was signed while messages were lost to it, and is asked anew', async () => {
    let ofService!: MachineClock;
    const w = world(profile, { waitersPerAddress: 64, roomRingBytes: 10_000 }, (clock) => {
      ofService = new MachineClock(clock);
      return ofService;
    });
    const f = fleet(w);
    const a = await f.start('a');
    const b = await f.start('b');
    b.machine.isCut = isRead;
    await w.run(askAll(w));
    const written: string[] = [];
    const address = w.service.client('callers');
    const fetch = ((url: string, init: RequestInit) => {
      if (url.includes(`/r/${MAILBOX}/say-signed/`)) written.push(url);
      return address(url, init);
    }) as typeof globalThis.fetch;
    for (const { answer } of await w.run(askAll(w, 'quick', { fetch }))) expect(answer).toMatch(/by a$/);
    expect(written).toHaveLength(4);
    await w.clock.advance(1000);
    for (let i = 0; i < 30; i++) {
      const o = { ...w.o, fetch: w.service.client(`flood${i}`) };
      await w.run(signer(9).say(MAILBOX, `${i}${'z'.repeat(1000)}`, o));
    }
    await w.run(a.stop());
    b.machine.isCut = () => false;
    await w.clock.advance(2 * MINUTE);
    expect(await f.split()).toEqual([4]);

    const posted = await Promise.all(written.map((url) => w.service.client(`stranger${url.length}`)(url)));
    expect(posted.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
    await w.clock.advance(5000);
    f.check();
    // With a clock that is a little behind, what it asks looks as old; so it does when that of the service was set back.
    for (const [offset, askers] of [
      [0, callers],
      [-20 * MINUTE, onePerPartition(100)],
    ] as const) {
      ofService.offset = offset;
      for (const caller of [...askers, ...askers]) {
        const clock = new MachineClock(w.clock);
        clock.offset = offset - 150_000;
        expect((await w.run(ask(w, caller, 'quick', { clock }))).answer, `${offset}`).toMatch(/by b$/);
      }
    }
    await w.run(b.stop());
  });
});

describe('whatever happens', () => {
  // More of them: CLAIM_SEEDS=1000.
  const seeds = Number(process.env['CLAIM_SEEDS'] ?? 6);
  const first = Number(process.env['CLAIM_SEED'] ?? 1);
  for (let seed = first; seed < first + seeds; seed++) {
    it(`no request runs twice, and all are served again in the end (seed ${seed})`, async () => {
      const random = new Random(seed, 'claims');
      const w = world(random.pick(PROFILES), { wakeStepMs: random.pick([0, 500]) });
      const leaseMs = 10_000;
      const bytes = (n: number): Uint8Array => random.bytes(n);
      const f = fleet(w, leaseMs, bytes);
      const alive: Awaited<ReturnType<typeof f.start>>[] = [];
      let name = 0;
      const boot = async (): Promise<void> => {
        const server = await f.start(`s${name++}`);
        server.clock.offset = random.between(-1e7, 1e7);
        alive.push(server);
      };
      const away = (): Awaited<ReturnType<typeof f.start>> => alive.splice(random.int(alive.length), 1)[0]!;
      for (let i = 0; i < 3; i++) await boot();
      const outcomes: { answer?: string; code?: any }[] = [];
      const asked: Promise<unknown>[] = [];
      let isOver = false;
      const traffic = (async () => {
        while (!isOver) {
          const [caller, method] = [random.pick(callers), random.pick(['quick', 'quick', 'slow'])];
          const more = { random: bytes, ...(random.chance(0.3) && { retry: 1 }) };
          asked.push(ask(w, caller, method, { timeoutMs: 15_000, ...more }).then((one) => outcomes.push(one)));
          await w.clock.sleep(random.between(50, 900));
        }
      })();
      const repair: (() => void)[] = [];
      for (let event = 0; event < 12; event++) {
        await w.clock.advance(random.between(500, 9000));
        const server = random.pick(alive);
        const what = random.pick([
          'kill',
          'stop',
          'boot',
          'cut notes',
          'cut',
          'slow',
          'jump',
          'junk',
          'replay',
        ] as const);
        if (what === 'kill' && alive.length > 1) away().kill();
        else if (what === 'stop' && alive.length > 1) void away().stop();
        else if (what === 'boot' && alive.length < 6) await boot();
        else if (what === 'jump') server.clock.offset += random.between(-1e7, 1e7);
        else if (what === 'cut' || what === 'cut notes') {
          server.machine.isCut = (url) => what === 'cut' || url.includes('/kv/');
          repair.push(() => {
            server.machine.isCut = () => false;
          });
          if (random.chance(0.7)) void w.clock.sleep(random.between(100, 25_000)).then(repair.at(-1));
        } else if (what === 'slow') {
          server.machine.delay = () => random.between(0, 4000);
          repair.push(() => {
            server.machine.delay = () => 0;
          });
        } else if (what === 'junk') await w.run(setNote(f.note().ns, f.note().key, 'junk', w.o));
        if (alive.length === 0) await boot();
      }
      for (const one of repair) one();
      await w.clock.advance(60_000);
      isOver = true;
      await w.run(traffic);
      await w.run(Promise.all(asked));
      f.check();
      for (const { code } of outcomes) {
        expect([undefined, 1001, 'call_timeout', 'unavailable', 'may_have_landed'], `${code}`).toContain(code);
      }
      const last = await w.run(askAll(w));
      expect(last.filter(({ answer }) => answer === undefined)).toEqual([]);
      expect((await f.split()).reduce((a, b) => a + b)).toBe(4);
      for (const server of alive) await w.run(server.stop());
      f.check();
    }, 120_000);
  }
});

describe('a stranger', () => {
  it('who writes into the presence note, or knows the name of the claims and writes there, changes nothing', async () => {
    const w = world();
    const f = fleet(w);
    await f.start('a');
    await f.start('b');
    await w.clock.advance(MINUTE);
    const { ns, key } = f.note();
    const old = (await w.run(getNote(ns, key, w.o)))!;
    const here = presenceNote(MAILBOX);
    let isOver = false;
    const vandal = (async () => {
      const own = { ...w.o, fetch: w.service.client('vandal') };
      for (let i = 0; !isOver; i++) {
        const junk = [
          'junk',
          'claims/1 1 - -:0 -:0 -:0 -:0 AAAAAAAAAAAAAAAAAAAAAA',
          old,
          old.slice(0, -1),
          'x'.repeat(8000),
        ];
        await setNote(ns, key, junk[i % junk.length]!, own);
        await setNote(here.ns, here.key, junk[i % junk.length]!, own);
        await w.clock.sleep(1700);
      }
    })();
    const outcomes = [];
    for (let i = 0; i < 40; i++) {
      outcomes.push(...(await w.run(askAll(w))));
      await w.clock.advance(5000);
    }
    isOver = true;
    await w.run(vandal);
    expect(outcomes.filter(({ answer }) => answer === undefined)).toEqual([]);
    expect((await f.split()).reduce((a, b) => a + b)).toBe(4);
    f.check();
  }, 120_000);

  it('who put junk there before the first server came delays it by a lease', async () => {
    const w = world();
    const probe = fleet(w);
    const first = await probe.start('x');
    const { ns, key } = probe.note();
    await w.run(first.stop());
    await w.run(setNote(ns, key, 'junk', w.o));
    const f = fleet(w);
    await f.start('a');
    expect((await w.run(ask(w, callers[0]!, 'quick', { timeoutMs: 10_000 }))).code).toBe('call_timeout');
    await w.clock.advance(MINUTE);
    expect((await w.run(ask(w, callers[0]!))).answer).toMatch(/by a$/);
    f.check();
  });
});
