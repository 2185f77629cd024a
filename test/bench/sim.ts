import { Signer } from '../../src/signer.ts';
import { idleDays, signedCalls } from '../sim/calm.ts';
import { PROFILES } from '../sim/plan.ts';
import { simulate } from '../sim/world.ts';
import type { Outcome } from './goals.ts';

const CALLS = 3000;
const WORLDS = 12;

/** Processor seconds that some work takes: what others do on the machine meanwhile does not count. */
async function secondsOf(work: () => Promise<unknown>): Promise<number> {
  const begun = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(begun);
  return (user + system) / 1e6;
}

/** What a simulated call cannot do without: two signatures, and four answers that are made and read. */
async function floor(times: number): Promise<void> {
  const signer = Signer.generate();
  for (let n = 1; n <= times; n++) {
    for (let side = 0; side < 2; side++)
      signer.signMessage('mb-p-x', 2 * n + side, '{"jsonrpc":"2.0","id":1,"result":3}');
    for (let answer = 0; answer < 4; answer++) await new Response('{"room":"mb-p-x","messages":[]}').text();
  }
}

/** How fast time passes where nothing else takes any: an idle day of a server, calls signed and checked, worlds of faults. */
export async function benchSim(): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const profile of PROFILES) {
    const goal = (name: string, value: number, target: ['>=' | '<=', number], why = ''): void => {
      outcomes.push({ number: 12, name: `simulated, ${profile}: ${name}`, value, target, why });
    };
    // Once for the compiler.
    await idleDays(0.1, profile);
    await signedCalls(300, 4, 8, profile);
    goal('seconds for an idle day', await secondsOf(() => idleDays(1, profile)), ['<=', 1]);
    await floor(300);
    const alone = CALLS / (await secondsOf(() => floor(CALLS)));
    const calls = CALLS / (await secondsOf(() => signedCalls(CALLS, 4, 8, profile)));
    const why = `two signatures and four answers alone: ${alone.toFixed(0)}/s, of which this is ${(calls / alone).toFixed(2)}`;
    goal('signed calls a second', calls, ['>=', 3000], why);
    const worlds = async (): Promise<void> => {
      for (let seed = 1; seed <= WORLDS; seed++) await simulate({ seed, profile });
    };
    goal('worlds of faults a second', WORLDS / (await secondsOf(worlds)), ['>=', 4]);
  }
  return outcomes;
}
