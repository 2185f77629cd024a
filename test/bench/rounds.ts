/** Something measured: does a thing so many times; what it resolves to, if anything, is the time it took by its own clock, ms. */
export type Contender = (times: number) => unknown;

export const median = (values: number[]): number => [...values].sort((a, b) => a - b)[values.length >> 1]!;

/** Times of several contenders, round by round. */
export class Rounds {
  readonly #times = new Map<string, number[]>();

  /** µs a time, median. */
  micros(name: string): number {
    return median(this.#of(name));
  }

  /** Times a second, median. */
  rate(name: string): number {
    return 1e6 / this.micros(name);
  }

  /** How often as fast the one is as the other, median of the rounds. */
  speed(name: string, other: string): number {
    const others = this.#of(other);
    return median(this.#of(name).map((time, i) => others[i]! / time));
  }

  has(name: string): boolean {
    return this.#times.has(name);
  }

  add(name: string, micros: number): void {
    this.#times.set(name, [...(this.#times.get(name) ?? []), micros]);
  }

  #of(name: string): number[] {
    const times = this.#times.get(name);
    if (!times) throw new Error(`${name} was not measured`);
    return times;
  }
}

export interface RoundOptions {
  rounds?: number;
  /** Rounds before those that count. V8 takes thousands of calls to compile what is long, and other threads to do it. */
  warmups?: number;
  /** How long a contender is at it in one round, ms. */
  ms?: number;
  /** `cpu`, the default: the time of our processes alone, whatever else runs. `wall`: what a user waits, for what waits. */
  clock?: 'cpu' | 'wall';
}

const clocks = {
  cpu(): number {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  },
  wall: (): number => performance.now(),
};

async function timed(run: Contender, times: number, now: () => number): Promise<number> {
  const begun = now();
  const own = await run(times);
  return typeof own === 'number' ? own : now() - begun;
}

/** Runs every contender in every round, in an order that turns, after as many times as make up the time of a round. */
export async function alternate(
  contenders: Record<string, Contender | undefined>,
  { rounds = 11, warmups = 0, ms = 60, clock = 'cpu' }: RoundOptions = {},
): Promise<Rounds> {
  const now = clocks[clock];
  const result = new Rounds();
  const entries = Object.entries(contenders).filter((entry): entry is [string, Contender] => entry[1] !== undefined);
  const counts = new Map<string, number>();
  for (const [name, run] of entries) {
    let times = 1;
    for (let took = await timed(run, times, now); took < ms / 4 && times < 1e7; took = await timed(run, times, now)) {
      times = Math.ceil(times * Math.min(10, Math.max(2, ms / 2 / Math.max(took, 0.01))));
    }
    counts.set(name, times);
  }
  for (let round = 0; round < warmups + rounds; round++) {
    for (let i = 0; i < entries.length; i++) {
      const [name, run] = entries[(i + round) % entries.length]!;
      const times = counts.get(name)!;
      const took = await timed(run, times, now);
      if (round >= warmups) result.add(name, (took * 1000) / times);
    }
  }
  return result;
}

/** Repeats what is done at once. */
export const often =
  (run: () => unknown): Contender =>
  (times) => {
    for (let i = 0; i < times; i++) run();
  };

/** Repeats what takes its time, one after the other. */
export const oftenAsync =
  (run: () => Promise<unknown>): Contender =>
  async (times) => {
    for (let i = 0; i < times; i++) await run();
  };
