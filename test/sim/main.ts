import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import type { Bug, Profile } from './plan.ts';
import { addCounts, describeFailure, EXPECTED, type Report, range, runSeeds } from './run.ts';
import { simulate } from './world.ts';

const HELP = `npm run sim -- [options]

  --seeds <n>        how many seeds to live through (default 500)
  --from <n>         the first of them (default 1)
  --profile <name>   modern, 0.7 or both (default)
  --jobs <n>         processes (default 2)
  --seed <n>         one seed, twice, with its transcript
  --bug <name>       with a bug that an invariant has to notice
`;

const { values } = parseArgs({
  options: {
    seeds: { type: 'string', default: '500' },
    from: { type: 'string', default: '1' },
    profile: { type: 'string', default: 'both' },
    jobs: { type: 'string', default: '2' },
    seed: { type: 'string' },
    bug: { type: 'string' },
    worker: { type: 'string' },
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

async function worker(part: number): Promise<void> {
  const [from, seeds, jobs] = [Number(values.from), Number(values.seeds), Number(values.jobs)];
  for (const profile of profiles) {
    let pending = 0;
    const report = await runSeeds(range(from + part, from + seeds, jobs), profile, {
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
      if (message.progress && (done += message.progress) % 1000 === 0) console.log(`… ${done} runs`);
      if (message.report) {
        const report = message.report as Omit<Report, 'failures'> & { failures: number };
        runs += report.runs;
        failures += report.failures;
        addCounts(counts, report.counts);
      }
    });
    return new Promise<number>((resolve) => child.on('exit', (code) => resolve(code ?? 1)));
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

if (values.help) process.stdout.write(HELP);
else if (values.worker !== undefined) await worker(Number(values.worker));
else process.exitCode = (await (values.seed === undefined ? all() : one(Number(values.seed)))) ? 0 : 1;
