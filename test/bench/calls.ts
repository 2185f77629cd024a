import { call } from '../../src/call.ts';
import { rememberSignatures } from '../../src/crypto.ts';
import { verify } from '../../src/names.ts';
import { serve } from '../../src/serve.ts';
import { Signer } from '../../src/signer.ts';
import { contender, goInstall } from './contenders.ts';
import type { Goal, Outcome } from './goals.ts';
import { daemon, keepAliveFetch, localService } from './net.ts';
import { alternate, median, often, Rounds } from './rounds.ts';

/** A call with its cost. */
type Ask = (n: number) => Promise<number>;
interface Side {
  ask: Ask;
  stop(): Promise<void>;
}

/** Counts requests, and reads held at a time. */
class Counted {
  requests = 0;
  parked = 0;
  parkedMost = 0;
  readonly fetch: typeof fetch;

  constructor(inner: typeof globalThis.fetch) {
    this.fetch = (async (url: string, init: RequestInit) => {
      this.requests++;
      const isHeld = /[?&]wait=/.test(url);
      if (isHeld) this.parkedMost = Math.max(this.parkedMost, ++this.parked);
      try {
        return await inner(url, init);
      } finally {
        if (isHeld) this.parked--;
      }
    }) as typeof globalThis.fetch;
  }
}

let pairs = 0;

/** Ours, as two programs that know nothing of each other. */
async function ours(base: string, callerFetch: typeof fetch, calleeFetch: typeof fetch, batch = false): Promise<Side> {
  const [caller, callee, stop] = [Signer.generate(), Signer.generate(), new AbortController()];
  const mailbox = `mb-p-bench-in-${++pairs}`;
  const methods = new Map([['double', ({ n }: { n: number }) => 2 * n]]);
  let isReady = (): void => {};
  const ready = new Promise<void>((resolve) => {
    isReady = resolve;
  });
  const over = serve(mailbox, callee, { base, fetch: calleeFetch, methods, signal: stop.signal, onReady: isReady });
  await Promise.race([ready, over]);
  const replyTo = `mb-p-bench-out-${pairs}`;
  const o = { base, fetch: callerFetch, replyTo, peer: callee.did, timeoutMs: 120_000, batch };
  return {
    ask: (n) => call<number>(mailbox, 'double', { n }, caller, o),
    async stop() {
      stop.abort();
      await over;
    },
  };
}

/** The least that two who only read and write can do: a write and a held read on each side, unsigned. */
function floor(base: string, fetch: typeof globalThis.fetch): Side {
  const [inbox, outbox] = [`p-floor-in-${++pairs}`, `p-floor-out-${pairs}`];
  const stop = new AbortController();
  const say = (room: string, text: string): Promise<unknown> =>
    fetch(`${base}/r/${room}/say/bob/${encodeURIComponent(text)}?format=json`).then((response) => response.text());
  const wait = async (room: string, since: number): Promise<{ last_seq: number; messages: { text: string }[] }> =>
    JSON.parse(
      await (await fetch(`${base}/r/${room}?format=json&since=${since}&wait=10`, { signal: stop.signal })).text(),
    );
  const served = (async () => {
    for (let since = 0; !stop.signal.aborted; ) {
      const view = await wait(inbox, since).catch(() => undefined);
      if (!view) return;
      since = view.last_seq;
      for (const { text } of view.messages) await say(outbox, JSON.stringify({ result: 2 * JSON.parse(text).n }));
    }
  })();
  let since = 0;
  return {
    async ask(n) {
      const answer = wait(outbox, since);
      await say(inbox, JSON.stringify({ n }));
      const view = await answer;
      since = view.last_seq;
      return JSON.parse(view.messages.at(-1)!.text).result;
    },
    async stop() {
      stop.abort();
      await served;
    },
  };
}

/** Request and reply of NATS, the two ends with a connection each. */
async function nats(port: number): Promise<Side> {
  const { connect } = await contender('@nats-io/transport-node/lib/mod.js');
  const servers = `127.0.0.1:${port}`;
  const [caller, callee] = [await connect({ servers }), await connect({ servers })];
  const subscription = callee.subscribe('double');
  void (async () => {
    for await (const m of subscription) m.respond(JSON.stringify({ result: 2 * m.json().n }));
  })();
  await callee.flush();
  return {
    ask: async (n) => (await caller.request('double', JSON.stringify({ n }), { timeout: 120_000 })).json().result,
    async stop() {
      await caller.close();
      await callee.close();
    },
  };
}

async function natsServer(): Promise<{ port: number; end(): Promise<void> } | undefined> {
  const program = goInstall('nats-server', 'github.com/nats-io/nats-server/v2@latest');
  if (program === undefined) return undefined;
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const { end } = await daemon(program, ['-a', '127.0.0.1', '-p', `${port}`], /Server is ready/);
  return { port, end };
}

/** Median of calls one after the other, µs. */
async function sequential(ask: Ask, calls: number): Promise<number> {
  const took: number[] = [];
  for (let n = 0; n < calls; n++) {
    const begun = performance.now();
    if ((await ask(n)) !== 2 * n) throw new Error('answers differ');
    took.push((performance.now() - begun) * 1000);
  }
  return median(took);
}

/** µs a call, with 64 under way at a time. */
async function inFlight(ask: Ask, calls: number): Promise<number> {
  const begun = performance.now();
  let next = 0;
  const one = async (): Promise<void> => {
    while (next < calls) {
      const n = next++;
      if ((await ask(n)) !== 2 * n) throw new Error('answers differ');
    }
  };
  await Promise.all(Array.from({ length: 64 }, one));
  return ((performance.now() - begun) * 1000) / calls;
}

/** What a signed call cannot do without: each side signs a message, which the service checks, and then the other side. */
function signatures(): () => void {
  const signer = Signer.generate();
  let nonce = 0;
  return () => {
    for (let side = 0; side < 2; side++) {
      const { did, sig, canonical } = signer.signMessage('mb-p-x', ++nonce, '{"jsonrpc":"2.0","id":"x","result":42}');
      for (let check = 0; check < 2; check++) if (!verify(did, sig, canonical)) throw new Error('answers differ');
    }
  };
}

/** Signed writes of one key to one room, which go one after the other. */
function writer(base: string, fetch: typeof globalThis.fetch): Ask {
  const [signer, room] = [Signer.generate(), `mb-p-bench-writes-${++pairs}`];
  return async (n) => {
    await signer.say(room, `${n}`, { base, fetch });
    return 2 * n;
  };
}

/** Calls over loopback: one after the other, and 64 at a time. */
export async function benchCalls(rounds = 7): Promise<Outcome[]> {
  const service = await localService();
  const server = await natsServer();
  // The two ends are in one process here, and would not be.
  rememberSignatures(false);
  const counts: Record<string, [Counted, Counted]> = {
    stock: [new Counted(fetch), new Counted(fetch)],
    'stock, batch': [new Counted(fetch), new Counted(fetch)],
  };
  const counted = (name: string, batch = false): Promise<Side> => {
    const [caller, callee] = counts[name]!;
    return ours(service.url, caller.fetch, callee.fetch, batch);
  };
  const sides: Record<string, Side> = {
    stock: await counted('stock'),
    injected: await ours(service.url, keepAliveFetch, keepAliveFetch),
    'stock, batch': await counted('stock, batch', true),
    'injected, batch': await ours(service.url, keepAliveFetch, keepAliveFetch, true),
    floor: floor(service.url, fetch),
    ...(server && { nats: await nats(server.port) }),
  };
  const writers = { stock: writer(service.url, fetch), injected: writer(service.url, keepAliveFetch) };
  const [one, many] = [new Rounds(), new Rounds()];
  const names = Object.keys(sides);
  const parked: Record<string, number[]> = { stock: [], 'stock, batch': [] };
  const requests: Record<string, number[]> = { stock: [], 'stock, batch': [] };
  // One round that does not count: connections, code that is not compiled yet.
  for (let round = -1; round < rounds; round++) {
    for (let i = 0; i < names.length; i++) {
      const name = names[(i + round + names.length) % names.length]!;
      const { ask } = sides[name]!;
      const alone = await sequential(ask, 100);
      if (round >= 0) one.add(name, alone);
      if (name === 'floor') continue;
      for (const side of counts[name] ?? []) Object.assign(side, { requests: 0, parkedMost: 0 });
      const calls = name === 'nats' ? 4096 : 1024;
      const together = await inFlight(ask, calls);
      if (round < 0) continue;
      many.add(name, together);
      for (const side of counts[name] ?? []) parked[name]!.push(side.parkedMost);
      requests[name]?.push(counts[name]!.reduce((sum, side) => sum + side.requests, 0) / calls);
    }
    for (const [name, write] of Object.entries(writers)) {
      const took = await sequential(write, 100);
      if (round >= 0) many.add(`${name} writes`, took);
    }
  }
  for (const side of Object.values(sides)) await side.stop();
  await server?.end();
  await service.end();

  const crypto = await alternate({ signatures: often(signatures()) });
  rememberSignatures(true);
  const ms = (r: Rounds, name: string): string => `${name} ${(r.micros(name) / 1000).toFixed(2)} ms`;
  const signing = crypto.micros('signatures');
  const withSignatures = 1 + signing / one.micros('floor');
  const inTurn = (name: string): string =>
    `a key’s writes to a room go one after the other, as nonces must rise: ${many.rate(`${name} writes`).toFixed(0)}/s, ${many.speed(`${name} writes`, 'nats').toFixed(3)} of NATS`;
  const rate = (name: string): string => `${name} ${many.rate(name).toFixed(0)}/s`;
  const outcomes: Outcome[] = [
    {
      number: 5,
      name: 'signed call by the unsigned floor, same fetch',
      value: 1 / one.speed('stock', 'floor'),
      target: ['<=', 1.15],
      why: `two signatures, each checked by the service and by the other side, take ${(signing / 1000).toFixed(2)} ms: with them the floor is ${withSignatures.toFixed(2)}`,
      detail: `${ms(one, 'stock')}, ${ms(one, 'floor')}`,
    },
  ];
  for (const [name, said] of [
    ['stock', ''],
    ['stock, batch', ', in batches'],
  ] as const) {
    const held = Math.max(...parked[name]!);
    outcomes.push(
      {
        number: 6,
        name: `64 in flight${said}: requests a call, both sides`,
        value: median(requests[name]!),
        target: ['<=', 2.15],
        detail: rate(name),
      },
      { number: 6, name: `64 in flight${said}: held reads a side`, value: held, target: ['<=', 1] },
    );
  }
  const byNats = (
    goal: Omit<Goal, 'value' | 'detail' | 'why'>,
    value: () => number,
    detail: () => string,
    why: () => string,
  ): void => {
    outcomes.push(
      server
        ? { ...goal, value: value(), detail: detail(), why: why() }
        : { number: goal.number, name: goal.name, skipped: 'no NATS' },
    );
  };
  byNats(
    { number: 5, name: 'signed call by NATS, fetch upon node:http', target: ['<=', 4] },
    () => 1 / one.speed('injected', 'nats'),
    () => `${ms(one, 'injected')}, ${ms(one, 'nats')}`,
    () => `the signatures alone are ${(signing / one.micros('nats')).toFixed(1)} of it`,
  );
  for (const [name, said, target] of [
    ['stock', '', 0.1],
    ['injected', ', fetch upon node:http', 0.2],
  ] as const) {
    const head = { number: 6, target: ['>=', target] } satisfies Partial<Goal>;
    byNats(
      { ...head, name: `64 in flight${said}, by NATS` },
      () => many.speed(name, 'nats'),
      () => `${rate(name)}, ${rate('nats')}`,
      () => inTurn(name),
    );
    const together = `${name}, batch`;
    byNats(
      { ...head, name: `64 in flight, in batches${said}, by NATS` },
      () => many.speed(together, 'nats'),
      () => rate(together),
      () => '',
    );
  }
  return outcomes;
}
