// Benchmarks by name: `npm run bench -- latency`, `e2e`, `parley`; without a name all of them. Each prints ratios against
// contenders of the same run, and what they should be at most.
import { createLocalService } from '../../src/local.ts';
import { benchE2e, type Ratio } from './e2e.ts';
import { benchLatency } from './latency.ts';
import { benchParley } from './parley.ts';

const args = process.argv.slice(2);
const option = (name: string, otherwise: number): number => {
  const i = args.indexOf(`--${name}`);
  return i < 0 ? otherwise : Number(args.splice(i, 2)[1]);
};
const calls = option('calls', 20);
const runs = option('runs', 1);

const line = (name: string, value: number, limit: number, rest = ''): void =>
  console.log(
    `${name.padEnd(44)} ${value.toFixed(2).padStart(6)}  at most ${limit}${value > limit ? '  OVER' : ''}  ${rest}`,
  );
const print = (ratios: Ratio[]): void => {
  for (const { name, ratio, limit, micros } of ratios) line(name, ratio, limit, `${micros.toFixed(1)} µs`);
};

async function latencyAt(base: string, where: string): Promise<void> {
  for (let run = 0; run < runs; run++) {
    const { naive, ours, median, p90, refused } = await benchLatency(base, calls);
    const ms = (n: number): string => `${n.toFixed(0)} ms`;
    line(`latency ${where}, median by naive`, median, 0.45, `${ms(ours.median)} by ${ms(naive.median)}`);
    line(`latency ${where}, p90 by naive`, p90, 0.6, `${ms(ours.p90)} by ${ms(naive.p90)}`);
    line(`latency ${where}, reads a call`, ours.reads, 5, `naive ${naive.reads.toFixed(2)}`);
    line(`latency ${where}, refused`, refused, 0);
  }
}

const benches: Record<string, () => void | Promise<void>> = {
  e2e: () => print(benchE2e()),
  parley: () => print(benchParley()),
  async latency() {
    // As the reference service wakes readers, and with its limits.
    const { url, close } = await createLocalService({ profile: '0.7', limits: { wakeStepMs: 500 } }).listen();
    await latencyAt(url, 'embedded');
    await close();
    const real = process.env['TECHNOCORE_URL'];
    if (real) await latencyAt(real, 'real');
    else console.log('latency real: skipped, TECHNOCORE_URL is not set');
  },
};

for (const name of args.length > 0 ? args : Object.keys(benches)) {
  const bench = benches[name];
  if (!bench) throw new Error(`no benchmark ${name}; there are ${Object.keys(benches).join(', ')}`);
  await bench();
}
