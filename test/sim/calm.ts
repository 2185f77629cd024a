import { call } from '../../src/call.ts';
import { type Handler, idempotent } from '../../src/dispatch.ts';
import { RpcError, TechnocoreError } from '../../src/errors.ts';
import type { Options } from '../../src/http.ts';
import { loggedLedger } from '../../src/ledger-file.ts';
import { createLocalService, type Limits, type LocalService } from '../../src/local.ts';
import { type ServeOptions, serve } from '../../src/serve.ts';
import { Signer } from '../../src/signer.ts';
import { ProcessClock, Timeline } from './clock.ts';
import { Disk } from './disk.ts';
import { EPOCH, MINUTE, type Profile } from './plan.ts';
import { Random } from './random.ts';

export const DAY: number = 24 * 60 * MINUTE;

/** A service on a network where nothing goes wrong, for what takes long. */
export class Calm {
  readonly timeline: Timeline = new Timeline();
  readonly service: LocalService;
  readonly random: Random;
  readonly events: Record<string, number> = {};

  constructor(seed: number, profile: Profile, limits: Partial<Limits> = {}) {
    this.random = new Random(seed, 'calm');
    this.service = createLocalService({ profile, limits, clock: new ProcessClock(this.timeline, EPOCH) });
  }

  /** What a program of its own has; its clock stops with it. */
  program(name: string): Options & { clock: ProcessClock; fetch: typeof fetch } {
    return {
      base: 'http://calm.test',
      clock: new ProcessClock(this.timeline, EPOCH),
      fetch: this.service.client(name),
      random: (n) => this.random.bytes(n),
      onEvent: ({ kind }) => {
        this.events[kind] = (this.events[kind] ?? 0) + 1;
      },
    };
  }

  signer(): Signer {
    return Signer.fromSeed(this.random.bytes(32));
  }

  pass(ms: number): Promise<void> {
    return this.timeline.run(this.timeline.now + ms);
  }

  /** Lets time pass until the work is done. */
  async run<T>(work: Promise<T>): Promise<T> {
    let isOver = false;
    const over = (): void => {
      isOver = true;
    };
    work.then(over, over);
    await this.timeline.run(Number.POSITIVE_INFINITY, () => isOver);
    return work;
  }

  /** Begins to serve; resolves when requests are taken. */
  async serve(mailbox: string, signer: Signer, o: ServeOptions): Promise<() => Promise<void>> {
    const stop = new AbortController();
    let isReady = false;
    const onReady = (): void => {
      isReady = true;
    };
    const ended = serve(mailbox, signer, { ...o, signal: stop.signal, onReady });
    ended.catch(onReady);
    await this.timeline.run(Number.POSITIVE_INFINITY, () => isReady);
    return () => {
      stop.abort();
      return this.run(ended);
    };
  }
}

/** What a server did in days without a call. */
export interface Idle {
  reads: number;
  writes: number;
  /** Timers that were left behind. */
  timers: number;
  /** Whether a call was answered after them. */
  isAnswered: boolean;
}

/** A server that nobody calls, for days on end. */
export async function idleDays(days: number, profile: Profile): Promise<Idle> {
  const calm = new Calm(1, profile);
  const signer = calm.signer();
  const o = calm.program('server');
  const methods = new Map<string, Handler>([['add', ({ a, b }) => a + b]]);
  const end = await calm.serve('mb-p-idle', signer, { ...o, methods });
  const { reads, writes } = calm.service.stats;
  await calm.pass(days * DAY);
  const after = calm.service.stats;
  const caller = { ...calm.program('caller'), replyTo: 'mb-p-caller', peer: signer.did };
  const sum = await calm.run(call('mb-p-idle', 'add', { a: 1, b: 2 }, calm.signer(), caller));
  await end();
  await calm.pass(MINUTE);
  return {
    reads: after.reads - reads,
    writes: after.writes - writes,
    timers: o.clock.sleepers,
    isAnswered: sum === 3,
  };
}

/** Signed calls, so many at a time by each of some callers. */
export async function signedCalls(calls: number, callers: number, atOnce: number, profile: Profile): Promise<void> {
  const free = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9, waitersPerAddress: 1e6, waiters: 1e6 };
  const calm = new Calm(1, profile, free);
  const signer = calm.signer();
  const methods = new Map<string, Handler>([['add', ({ a, b }) => a + b]]);
  const end = await calm.serve('mb-p-busy', signer, { ...calm.program('server'), methods });
  let n = 0;
  const work = Array.from({ length: callers }, (_, i) => {
    const o = { ...calm.program(`caller${i}`), replyTo: `mb-p-caller${i}`, peer: signer.did };
    const key = calm.signer();
    return Array.from({ length: atOnce }, async () => {
      while (n < calls) {
        const a = n++;
        const sum = await call('mb-p-busy', 'add', { a, b: 1 }, key, o);
        if (sum !== a + 1) throw new Error(`${a} + 1 is not ${sum}`);
      }
    });
  }).flat();
  await calm.run(Promise.all(work));
  await end();
}

/** What became of a year. */
export interface Year {
  calls: number;
  /** How they ended: `right`, or the code of the error. */
  outcomes: Record<string, number>;
  lives: number;
  ranTwice: string[];
  wrong: string[];
  /** Most that stood on its disk. */
  diskChars: number;
  events: Record<string, number>;
  stats: LocalService['stats'];
}

const BIG = 'b'.repeat(5000);

/** What is asked for: `ran` is told of each run that may happen only once. */
export function methodsOf(ran: (n: number, name: string) => void): Map<string, Handler> {
  const once =
    (answer: (n: number) => unknown): Handler =>
    ({ n }, { from, id }) => {
      ran(n, `${from} ${id}`);
      return answer(n);
    };
  return new Map<string, Handler>([
    ['double', once((n) => 2 * n)],
    ['look', idempotent(({ n }) => 2 * n)],
    ['big', once((n) => `${n} ${BIG}`)],
    [
      'fail',
      once((n) => {
        throw new RpcError(77, `failed ${n}`);
      }),
    ],
  ]);
}

/** How a call ended: `right`, or the code of the error; what neither is right nor an error of ours goes to `wrong`. */
export async function outcomeOf(answer: Promise<unknown>, method: string, n: number, wrong: string[]): Promise<string> {
  try {
    if ((await answer) !== (method === 'big' ? `${n} ${BIG}` : 2 * n)) wrong.push(`${method} ${n}`);
    return 'right';
  } catch (cause) {
    if (!TechnocoreError.is(cause)) wrong.push(`${method} ${n}: ${(cause as Error).stack}`);
    const isRight = method === 'fail' && cause instanceof RpcError && cause.rpc.message === `failed ${n}`;
    return isRight ? 'right' : (cause as TechnocoreError).code;
  }
}

/**
 * A year in which a server is up for half an hour on most days, on its own ledger and place, and called by several: at times one
 * after the other, at times in bursts that share messages; in some weeks it is up on no day, and its mailbox is reaped.
 */
export async function mixedYear(days: number, profile: Profile, seed = 1): Promise<Year> {
  const calm = new Calm(seed, profile, { roomRingBytes: 200_000 });
  const { random, timeline } = calm;
  const signer = calm.signer();
  const keys = Array.from({ length: 4 }, () => calm.signer());
  const disk = new Disk(timeline, random);
  const year: Year = {
    calls: 0,
    outcomes: {},
    lives: 0,
    ranTwice: [],
    wrong: [],
    diskChars: 0,
    events: calm.events,
    stats: calm.service.stats,
  };
  const runs = new Map<string, number>();
  const methods = methodsOf((n, name) => {
    runs.set(name, (runs.get(name) ?? 0) + 1);
    if (runs.get(name) === 2) year.ranTwice.push(`${n}`);
  });
  const ask = async (i: number, n: number, batch: boolean, o: Options): Promise<void> => {
    const method = random.pick(['double', 'double', 'look', 'big', 'fail']);
    year.calls++;
    const how = { ...o, replyTo: `mb-p-client${i}`, peer: signer.did, batch, timeoutMs: 2 * MINUTE };
    const outcome = await outcomeOf(call('mb-p-yearly', method, { n }, keys[i]!, how), method, n, year.wrong);
    year.outcomes[outcome] = (year.outcomes[outcome] ?? 0) + 1;
  };
  let n = 0;
  for (let day = 0; day < days; day++) {
    const isHoliday = Math.floor(day / 10) % 9 === 7;
    if (isHoliday) {
      await calm.pass(DAY);
      continue;
    }
    const server = calm.program('server');
    const host = { name: 'server', address: 'server', clock: server.clock, isAlive: true };
    const ledger = await calm.run(loggedLedger('the ledger', disk.text, disk.log(host)));
    const clients = keys.map((_, i) => calm.program(`client${i}`));
    year.lives++;
    // Some are asked before it is up.
    const early = random.chance(0.3) ? [ask(0, ++n, false, clients[0]!)] : [];
    if (early.length > 0) await calm.pass(20_000);
    const end = await calm.serve('mb-p-yearly', signer, { ...server, methods, ledger, cursor: disk.cursor(host) });
    const work = keys.map(async (_, i) => {
      for (let k = random.int(4); k > 0; k--) {
        const burst = random.chance(0.2) ? 6 : 1;
        await Promise.all(Array.from({ length: burst }, () => ask(i, ++n, burst > 1, clients[i]!)));
        await clients[i]!.clock.sleep(random.between(1, 10) * MINUTE);
      }
    });
    const until = timeline.now + 30 * MINUTE;
    await calm.run(Promise.all([...early, ...work]));
    await calm.pass(Math.max(0, until - timeline.now));
    await end();
    year.diskChars = Math.max(year.diskChars, disk.text?.length ?? 0);
    const left = server.clock.sleepers;
    if (left > 0) year.wrong.push(`day ${day}: ${left} timers are left`);
    host.isAlive = false;
    await calm.pass(DAY - (timeline.now % DAY));
  }
  year.stats = calm.service.stats;
  return year;
}
