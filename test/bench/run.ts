// `npm run bench`: the goals of this library in one table; with names, those alone. Each is a ratio against contenders that
// are measured in the same run, in turns, after all gave the same answer. `npm run bench -- latency --calls 60 --runs 3`
// takes longer looks at one; TECHNOCORE_URL and PARLEY_GO add a real service and a checkout of the Go package.
import { fork } from 'node:child_process';
import { createLocalService } from '../../src/local.ts';
import { benchCalls } from './calls.ts';
import { benchE2e, type Ratio } from './e2e.ts';
import { benchFrames } from './frames.ts';
import { lineOf, type Outcome, table } from './goals.ts';
import { benchLatency } from './latency.ts';
import { benchNoise } from './noise.ts';
import { benchParley } from './parley.ts';
import { benchRelay } from './relay.ts';
import { benchRpc } from './rpc.ts';
import { benchSigning } from './signing.ts';
import { benchSim } from './sim.ts';
import { benchSize } from './size.ts';
import { benchStart } from './start.ts';

const args = process.argv.slice(2);
const option = (name: string, otherwise: number): number => {
  const i = args.indexOf(`--${name}`);
  return i < 0 ? otherwise : Number(args.splice(i, 2)[1]);
};
const calls = option('calls', 24);
const runs = option('runs', 1);

/** Ratios against the bare primitives, which are no goals of the twelve. */
function print(ratios: Ratio[]): Outcome[] {
  return ratios.map(({ name, ratio, limit, micros }) => ({
    number: 0,
    name,
    value: ratio,
    target: ['<=', limit],
    detail: `${micros.toFixed(1)} µs`,
  }));
}

async function latencyAt(base: string, where: string): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  for (let run = 0; run < runs; run++) {
    const { naive, ours, median, p90, refused } = await benchLatency(base, calls);
    const by = (a: number, b: number): string => `${a.toFixed(0)} ms by ${b.toFixed(0)} ms`;
    const goal = (name: string, value: number, limit: number, detail = ''): Outcome => ({
      number: 7,
      name: `${where} service: ${name}`,
      value,
      target: ['<=', limit],
      detail,
    });
    outcomes.push(
      goal('median call by a naive loop', median, 0.45, by(ours.median, naive.median)),
      goal('p90 by a naive loop', p90, 0.6, by(ours.p90, naive.p90)),
      goal('reads a call, both sides', ours.reads, 5, `naive ${naive.reads.toFixed(2)}`),
      goal('refused for its budget', refused, 0),
    );
  }
  return outcomes;
}

const benches: Record<string, () => Outcome[] | Promise<Outcome[]>> = {
  signing: benchSigning,
  start: () => benchStart(),
  rpc: benchRpc,
  frames: benchFrames,
  calls: () => benchCalls(),
  async latency() {
    // As the reference service wakes readers, and with its limits.
    const { url, close } = await createLocalService({ profile: '0.7', limits: { wakeStepMs: 500 } }).listen();
    const outcomes = await latencyAt(url, 'embedded');
    await close();
    const real = process.env['TECHNOCORE_URL'];
    if (real) return [...outcomes, ...(await latencyAt(real, 'real'))];
    return [...outcomes, { number: 7, name: 'real service', skipped: 'TECHNOCORE_URL is not set' }];
  },
  noise: benchNoise,
  sim: benchSim,
  relay: benchRelay,
  size: benchSize,
  e2e: () => print(benchE2e()),
  parley: () => print(benchParley()),
};

/** In a process of its own: what one leaves behind, garbage and compiled code, is not charged to the next. */
function apart(name: string): Promise<Outcome[]> {
  const child = fork(process.argv[1]!, [name, '--calls', `${calls}`, '--runs', `${runs}`]);
  return new Promise((resolve, reject) => {
    child.once('message', (outcomes) => resolve(outcomes as Outcome[]));
    child.once('exit', (code) => reject(new Error(`${name} ended with ${code}`)));
  });
}

const names = args.length > 0 ? args : Object.keys(benches);
const unknown = names.find((name) => !Object.hasOwn(benches, name));
if (unknown !== undefined) {
  throw new Error(`no benchmark ${unknown}; there are ${Object.keys(benches).join(', ')}`);
}
if (process.send) {
  process.send(await benches[names[0]!]!(), () => process.exit(0));
} else {
  const outcomes: Outcome[] = [];
  for (const name of names) {
    console.log(`\n${name}`);
    const some = await apart(name);
    for (const outcome of some) console.log(lineOf(outcome));
    outcomes.push(...some);
  }
  console.log(`\n${table(outcomes)}`);
}
