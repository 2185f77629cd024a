import { fork } from 'node:child_process';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { idleDays, mixedYear } from './calm.ts';
import { killServers } from './kills.ts';
import { type Bug, type Profile, planOf } from './plan.ts';
import { addCounts, describeFailure, EXPECTED, type Report, range, runSeeds } from './run.ts';
import { grown, soak } from './soak.ts';
import { simulate } from './world.ts';

const HELP = `npm run sim -- [options]

  --seeds <n>        how many seeds to live through (default 500)
  --from <n>         the first of them (default 1)
  --profile <name>   modern, 0.7 or both (default)
  --jobs <n>         processes (default 2)
  --minutes <n>      begin no more worlds after that
  --claims           only worlds in which servers share a mailbox
  --seed <n>         one seed, twice, with its transcript
  --bug <name>       with a bug that an invariant has to notice

  --kills <n>        instead: a server killed n times under eight callers, as built
  --days <n>         instead: n days of a server that nobody calls
  --year             instead: a year of restarts, bursts and holidays
  --calls <n>        instead: n calls by clients that come and go, and what is left of them
`;

const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '500' },
    from: { type: 'string', default: '1' },
    profile: { type: 'string', default: 'both' },
    jobs: { type: 'string', default: '2' },
    minutes: { type: 'string', default: 'Infinity' },
    claims: { type: 'boolean', default: false },
    seed: { type: 'string' },
    bug: { type: 'string' },
    worker: { type: 'string' },
    kills: { type: 'string' },
    days: { type: 'string' },
    year: { type: 'boolean', default: false },
    calls: { type: 'string' },
    help: { type: 'boolean', default: false },
  },
});

const profiles: Profile[] = values.profile === 'both' ? ['modern', '0.7'] : [values.profile as Profile];
const bug = values.bug === undefined ? {} : { bug: values.bug as Bug };

/** One seed with all that happened. */
async function one(seed: number): Promise<boolean> {
  let isGood = true;
  for (const profile of profiles) {
    const outcome = await simulate({ seed, profile, keep: true, ...bug });
    for (const line of outcome.lines) process.stdout.write(line);
    const again = await simulate({ seed, profile, ...bug });
    console.log(`transcript ${outcome.hash}, ${again.hash === outcome.hash ? 'the same twice' : `then ${again.hash}`}`);
    isGood &&= outcome.violations.length === 0 && again.hash === outcome.hash;
    for (const violation of outcome.violations) console.log(violation);
  }
  return isGood;
}

/** The seeds of one process, until the time is up. */
function* seedsOf(part: number): Generator<number> {
  const [from, seeds, jobs, minutes] = [values.from, values.seeds, values.jobs, values.minutes].map(Number) as [
    number,
    number,
    number,
    number,
  ];
  for (const seed of range(from + part, from + seeds, jobs)) {
    if (performance.now() > minutes * 60_000) return;
    if (!values.claims || planOf(seed).leaseMs !== undefined) yield seed;
  }
}

async function worker(part: number): Promise<void> {
  for (const profile of profiles) {
    let pending = 0;
    const report = await runSeeds(seedsOf(part), profile, {
      ...bug,
      onRun: (outcome) => {
        pending++;
        if (outcome.violations.length > 0) process.send!({ failed: describeFailure(outcome) });
        if (pending % 50 === 0) process.send!({ progress: 50 });
      },
    });
    process.send!({ report: { ...report, failures: report.failures.length } });
  }
  process.disconnect();
}

async function all(): Promise<boolean> {
  const jobs = Number(values.jobs);
  const begun = performance.now();
  let runs = 0;
  let done = 0;
  let failures = 0;
  const counts: Record<string, number> = {};
  const exits = Array.from({ length: jobs }, (_, part) => {
    const child = fork(fileURLToPath(import.meta.url), [...process.argv.slice(2), '--worker', String(part)]);
    child.on('message', (message: any) => {
      if (message.failed) console.log(message.failed);
      if (message.progress && (done += message.progress) % 250 === 0) console.log(`… ${done} runs`);
      if (message.report) {
        const report = message.report as Omit<Report, 'failures'> & { failures: number };
        runs += report.runs;
        failures += report.failures;
        addCounts(counts, report.counts);
      }
    });
    return new Promise<number>((ended) => child.on('exit', (code) => ended(code ?? 1)));
  });
  const codes = await Promise.all(exits);
  const seconds = (performance.now() - begun) / 1000;
  console.log(
    Object.entries(counts)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, count]) => `  ${name}: ${count}`)
      .join('\n'),
  );
  const missing = runs >= 400 ? EXPECTED.filter((name) => !counts[name]) : [];
  if (missing.length > 0) console.log(`never happened: ${missing.join(', ')}`);
  console.log(`${runs} runs, ${failures} with a violation, in ${seconds.toFixed(0)} s`);
  return failures === 0 && missing.length === 0 && codes.every((code) => code === 0);
}

async function kill(kills: number): Promise<boolean> {
  const { outcomes, handled, violations } = await killServers(kills, 1, resolve('test/sim/kill-server.mjs'));
  console.log(`${kills} kills, ${handled} handlers run, calls ended: ${JSON.stringify(outcomes)}`);
  for (const violation of violations) console.log(violation);
  return violations.length === 0;
}

async function idle(days: number): Promise<boolean> {
  let isGood = true;
  for (const profile of profiles) {
    const begun = performance.now();
    const idled = await idleDays(days, profile);
    const seconds = (performance.now() - begun) / 1000;
    console.log(`${profile}: ${days} days in ${seconds.toFixed(1)} s, ${JSON.stringify(idled)}`);
    isGood &&= idled.isAnswered && idled.timers === 0;
  }
  return isGood;
}

async function year(): Promise<boolean> {
  let isGood = true;
  for (const profile of profiles) {
    const begun = performance.now();
    const { events: _, stats: __, ...lived } = await mixedYear(365, profile);
    const seconds = (performance.now() - begun) / 1000;
    console.log(`${profile}: a year in ${seconds.toFixed(1)} s, ${JSON.stringify(lived)}`);
    isGood &&= lived.wrong.length === 0 && lived.ranTwice.length === 0;
  }
  return isGood;
}

async function manyCalls(calls: number): Promise<boolean> {
  const soaked = await soak(calls);
  const { seconds, outcomes, wrong, ranTwice, heap, held } = soaked;
  const left = grown(soaked);
  const [first, last] = heap.map((bytes) => bytes / (1 << 20)) as [number, number];
  for (const [path, size] of [...held[1]].sort(([, a], [, b]) => b - a)) {
    if (size > 8) console.log(`  ${path}: ${held[0].get(path) ?? 0}, then ${size}`);
  }
  console.log(`${calls} calls in ${seconds.toFixed(0)} s, ended: ${JSON.stringify(outcomes)}, ran twice: ${ranTwice}`);
  console.log(
    `heap after a tenth ${first.toFixed(1)} MiB, after all ${last.toFixed(1)} MiB: ${(last / first).toFixed(2)} of it; ${held[1].size} collections, above their bound: ${left.length}`,
  );
  for (const one of [...wrong.slice(0, 10), ...left]) console.log(one);
  return wrong.length === 0 && ranTwice === 0 && left.length === 0;
}

const number = (value: string | undefined): number | undefined => (value === undefined ? undefined : Number(value));
const [kills, days, calls, seed] = [values.kills, values.days, values.calls, values.seed].map(number);

/** What is to be done. */
function run(): Promise<boolean> {
  if (kills !== undefined) return kill(kills);
  if (days !== undefined) return idle(days);
  if (values.year) return year();
  if (calls !== undefined) return manyCalls(calls);
  return seed === undefined ? all() : one(seed);
}

if (values.help) process.stdout.write(HELP);
else if (values.worker !== undefined) await worker(Number(values.worker));
else process.exitCode = (await run()) ? 0 : 1;
