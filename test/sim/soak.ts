import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { call } from '../../src/call.ts';
import { transportOf } from '../../src/http.ts';
import { Calm, methodsOf, outcomeOf } from './calm.ts';
import { census } from './census.ts';

/** What many calls left behind. */
export interface Soaked {
  calls: number;
  seconds: number;
  /** How they ended: `right`, or the code of the error. */
  outcomes: Record<string, number>;
  wrong: string[];
  /** Bytes of heap in use after a tenth of the calls, and after all. */
  heap: [first: number, last: number];
  /** What every collection of ours held then. */
  held: [first: Map<string, number>, last: Map<string, number>];
  ranTwice: number;
}

const CALLERS = 8;
/** Calls of a client before another one, with another key and another mailbox, takes its place. */
const CALLS_OF_ONE = 25;
/** Most clients; more than there are inboxes and feeds kept for. All have been there after a tenth of the calls. */
const CLIENTS = 300;
const FREE = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9, roomRingBytes: 20_000 };

/** Many calls by clients that come and go, through one transport, to one server. */
export async function soak(calls: number): Promise<Soaked> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const calm = new Calm(1, 'modern', { ...FREE, waiters: 1e6, waitersPerAddress: 1e6, rooms: 1e6, notes: 1e6 });
  const o = calm.program('all');
  const served = calm.program('server');
  const signer = calm.signer();
  const runs = new Set<string>();
  const report: Soaked = {
    calls,
    seconds: 0,
    outcomes: {},
    wrong: [],
    heap: [0, 0],
    held: [new Map(), new Map()],
    ranTwice: 0,
  };
  const methods = methodsOf((n) => {
    if (runs.has(`${n}`)) report.ranTwice++;
    // As many as can be under way; what our own books take is not to be counted as the library's.
    runs.add(`${n}`);
    if (runs.size > 1000) runs.delete(runs.values().next().value!);
  });
  const end = await calm.serve('mb-p-soaked', signer, { ...served, methods });
  const measure = (at: 0 | 1): void => {
    report.held[at] = new Map([
      ...[...census(transportOf(o).shared)].map(([path, size]): [string, number] => [`client ${path}`, size]),
      ...[...census(transportOf(served).shared)].map(([path, size]): [string, number] => [`server ${path}`, size]),
    ]);
    collect();
    report.heap[at] = process.memoryUsage().heapUsed;
  };
  const begun = performance.now();
  let n = 0;
  let turn = 0;
  const clients = Array.from({ length: Math.min(CLIENTS, 1 + Math.floor(calls / 400)) }, (_, i) => ({
    key: calm.signer(),
    replyTo: `mb-p-client${i}`,
  }));
  const work = Array.from({ length: CALLERS }, async () => {
    let client = clients[0]!;
    for (let own = 0; n < calls; own++) {
      if (own % CALLS_OF_ONE === 0) client = clients[turn++ % clients.length]!;
      const { key, replyTo } = client;
      const mine = ++n;
      const method = ['double', 'double', 'look', 'fail', mine % 40 === 4 ? 'big' : 'double'][mine % 5]!;
      const how = { ...o, replyTo, peer: signer.did, batch: mine % 3 === 0 };
      const answer = call('mb-p-soaked', method, { n: mine }, key, how);
      const outcome = await outcomeOf(answer, method, mine, report.wrong);
      report.outcomes[outcome] = (report.outcomes[outcome] ?? 0) + 1;
      if (mine === Math.floor(calls / 10)) measure(0);
      // Answers are kept for ten minutes: as many of them as a tenth of all calls.
      await o.clock.sleep((600_000 * CALLERS * 10) / calls);
    }
  });
  await calm.run(Promise.all(work));
  report.seconds = (performance.now() - begun) / 1000;
  measure(1);
  await end();
  return report;
}

/** What grew with the calls, of the collections that have no more than a fixed size: none should. */
export function grown({ held: [first, last] }: Soaked): string[] {
  const grown: string[] = [];
  for (const [path, size] of last) {
    const bound = BOUNDS.find(([pattern]) => pattern.test(path))?.[1] ?? 0;
    const before = first.get(path) ?? 0;
    if (size > Math.max(bound, 1.3 * before, 64)) grown.push(`${path}: ${before}, then ${size}`);
  }
  return grown;
}

/** Collections that fill up to a bound of their own. */
const BOUNDS: readonly (readonly [RegExp, number])[] = [
  // Mailboxes of ours, opened; inboxes, feeds, pins and notes are fewer.
  [/shared\[\]$/, 1024],
  [/MemoryNonces\.#last/, 1001],
  [/LedgerState\.floors/, 65_536],
  [/Regulars\.#known/, 4096],
  [/(ReplyRooms|Daily)\.#/, 4096],
];
