import { describe, expect, test } from 'vitest';
import { Files } from '../src/files.ts';
import type { Clock } from '../src/http.ts';

/** Numbers in [0, 1) from a seed (mulberry32). */
function randomOf(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 0x1_0000_0000;
  };
}

const impatience = new Error('would wait no longer');
const failed = (code: string): Error => Object.assign(new Error(code), { code });

/**
 * A machine with one directory, whose processes go forward one file operation at a time, in an order that a seed decides,
 * and die between any two of them.
 */
class Machine {
  readonly random: () => number;
  readonly names = new Map<string, number>();
  readonly dead = new Set<number>();
  #inodes = 0;
  #ready: { pid: number; go: () => void }[] = [];

  constructor(seed: number) {
    this.random = randomOf(seed);
  }

  /** The next step of a process; a dead one never takes it. */
  step(pid: number): Promise<void> {
    return new Promise((go) => this.#ready.push({ pid, go }));
  }

  /** Lets processes run until all wait for nothing or are dead. `before` sees each step. */
  async run(before: () => void): Promise<void> {
    for (;;) {
      // All that follows from one step before the next.
      await new Promise((resolve) => setImmediate(resolve));
      this.#ready = this.#ready.filter(({ pid }) => !this.dead.has(pid));
      if (this.#ready.length === 0) return;
      before();
      this.#ready.splice(Math.floor(this.random() * this.#ready.length), 1)[0]!.go();
    }
  }

  #ino(name: string): number {
    const inode = this.names.get(name);
    if (inode === undefined) throw failed('ENOENT');
    return inode;
  }

  files(pid: number): Files {
    // An operation takes effect at some moment between its call and its return.
    const op =
      <A extends unknown[], R>(effect: (...args: A) => R) =>
      async (...args: A): Promise<R> => {
        await this.step(pid);
        try {
          return effect(...args);
        } finally {
          if (this.random() < 0.5) await this.step(pid);
        }
      };
    const free = (name: string): void => {
      if (this.names.has(name)) throw failed('EEXIST');
    };
    const fs = {
      openSync: op((name: string) => {
        free(name);
        this.names.set(name, ++this.#inodes);
      }),
      closeSync: () => {},
      linkSync: op((from: string, to: string) => {
        const inode = this.#ino(from);
        free(to);
        this.names.set(to, inode);
      }),
      renameSync: op((from: string, to: string) => {
        const inode = this.#ino(from);
        if (this.names.get(to) === inode) return;
        this.names.delete(from);
        this.names.set(to, inode);
      }),
      unlinkSync: op((name: string) => {
        this.#ino(name);
        this.names.delete(name);
      }),
      statSync: op((name: string) => ({ ino: BigInt(this.#ino(name)) })),
      readdirSync: op(() => [...this.names.keys()].map((name) => name.slice(1))),
      readFileSync: () => '',
      readlinkSync: () => '',
    };
    const real = globalThis.process;
    const path = real.getBuiltinModule('node:path');
    const modules: Record<string, unknown> = {
      'node:fs': fs,
      'node:path': path,
      'node:os': { hostname: () => 'simulated' },
    };
    globalThis.process = {
      pid,
      platform: 'linux',
      getBuiltinModule: (id: string) => modules[id],
      kill: (other: number) => {
        if (this.dead.has(other)) throw failed('ESRCH');
      },
    } as any;
    try {
      return new Files();
    } finally {
      globalThis.process = real;
    }
  }
}

/** One schedule; throws where two hold the lock at a time, or where a survivor never gets it. */
async function schedule(seed: number): Promise<{ deaths: number; taken: number }> {
  const machine = new Machine(seed);
  const { random, dead } = machine;
  let pids = 0;
  let holder: number | undefined;
  let deaths = 0;
  let taken = 0;
  let open = true;

  const start = (): void => {
    const pid = ++pids;
    const files = machine.files(pid);
    let now = 0;
    const clock: Clock = {
      now: () => now,
      sleep: async () => {
        // A clock so slow that nobody gives up while another one lives.
        now += 1;
        if (open && random() < 0.02) stop.abort(impatience);
        await machine.step(pid);
      },
    };
    let stop = new AbortController();
    const work = async (): Promise<void> => {
      while (open) {
        stop = new AbortController();
        const release = await files.lock('/L', clock, stop.signal).catch((e) => {
          if (e !== impatience) throw e;
        });
        if (release === undefined) continue;
        if (holder !== undefined && !dead.has(holder)) throw new Error(`${pid} and ${holder} hold the lock`);
        holder = pid;
        taken++;
        for (let i = Math.floor(random() * 4); i > 0; i--) await machine.step(pid);
        if (holder !== pid) throw new Error(`${holder} took the lock of ${pid}`);
        holder = undefined;
        await release();
      }
    };
    work().catch((e) => {
      error ??= e;
    });
  };
  let error: Error | undefined;

  const processes = 2 + Math.floor(random() * 4);
  const deadliness = 0.02 + random() * 0.08;
  for (let i = 0; i < processes; i++) start();
  let steps = 0;
  await machine.run(() => {
    if (error) throw error;
    steps++;
    if (steps > 20_000) throw new Error('somebody never got the lock');
    if (steps > 300) open = false;
    else if (random() < deadliness) {
      const living = [...Array(pids).keys()].map((i) => i + 1).filter((pid) => !dead.has(pid));
      // The holder more often than chance: it is the one whose death matters.
      const victim = holder !== undefined && random() < 0.5 ? holder : living[Math.floor(random() * living.length)]!;
      dead.add(victim);
      deaths++;
      start();
    }
  });
  if (error) throw error;
  // One more dies with the lock in hand; whoever comes last cleans up.
  const last = ++pids;
  const held = machine.files(last).lock('/L', { now: () => 0, sleep: () => machine.step(last) });
  await machine.run(() => {});
  await held;
  dead.add(last);
  const janitor = machine.files(++pids).tidy('/');
  await machine.run(() => {});
  await janitor;
  if (machine.names.size > 0) throw new Error(`left behind: ${[...machine.names.keys()].join(' ')}`);
  return { deaths, taken };
}

describe('lock, simulated', () => {
  const seeds = Number(process.env['LOCK_SEEDS'] ?? 200);

  test(`${seeds} schedules of processes that die anywhere: never two holders, nobody waits for ever, nothing is left`, async () => {
    let deaths = 0;
    let taken = 0;
    const first = Number(process.env['LOCK_SEED'] ?? 1);
    for (let seed = first; seed < first + seeds; seed++) {
      try {
        const outcome = await schedule(seed);
        deaths += outcome.deaths;
        taken += outcome.taken;
      } catch (cause) {
        throw new Error(`LOCK_SEED=${seed}: ${(cause as Error).message}`, { cause });
      }
    }
    expect(deaths).toBeGreaterThan(seeds);
    expect(taken).toBeGreaterThan(seeds);
  });
});
