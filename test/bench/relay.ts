import { HttpRelay, Identity, Session } from '../../src/parley.ts';
import { goBuild, Worker } from './contenders.ts';
import type { Goal, Outcome } from './goals.ts';
import { keepAliveFetch, localService } from './net.ts';
import { alternate, oftenAsync } from './rounds.ts';

const TEXT = 'x'.repeat(200);

async function hear(session: Session): Promise<string> {
  for (;;) {
    const [first] = await session.poll(1000);
    if (first) return first.text;
  }
}

/** The requests of a turn, answered at once: two that bring something, and two that ask. */
async function bare(base: string, fetch: typeof globalThis.fetch): Promise<void> {
  for (const body of [TEXT, undefined, TEXT, undefined]) {
    const headers = { authorization: 'Bearer nobody', ...(body && { 'content-type': 'application/json' }) };
    const init = body ? { method: 'POST', headers, body } : { headers };
    await (await fetch(`${base}/nothing`, init)).text();
  }
}

/** Open, join, and the handshake until the opener has read the joiner's first words. */
async function pair(base: string, fetch: typeof globalThis.fetch): Promise<[Session, Session]> {
  const relay = new HttpRelay(base, { fetch });
  const [opener, joiner] = [0, 1].map(() => new Session(Identity.generate(), relay)) as [Session, Session];
  await joiner.join(await opener.open('bench'));
  await joiner.send('hello');
  await opener.poll(0);
  await joiner.poll(0);
  if ((await hear(opener)) !== 'hello') throw new Error('answers differ');
  return [opener, joiner];
}

/**
 * A parley over the Go relay and over the embedded one, ours against Go's. The Go package is not published where modules are
 * found: `PARLEY_GO` is the path of a checkout.
 */
export async function benchRelay(): Promise<Outcome[]> {
  const checkout = process.env['PARLEY_GO'];
  const skip = (why: string): Outcome[] => [{ number: 10, name: 'parley by Go', skipped: why }];
  if (!checkout) return skip('PARLEY_GO is not set');
  const program = goBuild('parley', { 'github.com/gluonfield/parley': checkout });
  if (program === undefined) return skip('the Go worker could not be built');
  // A relay is a process of its own for those who talk through it, for Go's ends as for ours.
  const goRelay = new Worker(program);
  const local = await localService();
  const outcomes = [
    ...(await benchOver('Go relay', new Worker(program, [await goRelay.next()]))),
    ...(await benchOver('local', new Worker(program, [local.url]))),
  ];
  goRelay.end();
  await local.end();
  return outcomes;
}

async function benchOver(where: string, go: Worker): Promise<Outcome[]> {
  const url = await go.next();
  const turns = async (fetch: typeof globalThis.fetch): Promise<() => Promise<void>> => {
    const [opener, joiner] = await pair(url, fetch);
    return async () => {
      await joiner.send(TEXT);
      if ((await hear(opener)) !== TEXT) throw new Error('answers differ');
      await opener.send(TEXT);
      if ((await hear(joiner)) !== TEXT) throw new Error('answers differ');
    };
  };
  const r = await alternate(
    {
      stock: oftenAsync(await turns(fetch)),
      injected: oftenAsync(await turns(keepAliveFetch)),
      go: async (times) => Number(await go.ask(`turns ${times}`)),
      'stock, open': oftenAsync(() => pair(url, fetch)),
      'injected, open': oftenAsync(() => pair(url, keepAliveFetch)),
      'stock, bare': oftenAsync(() => bare(url, fetch)),
      'injected, bare': oftenAsync(() => bare(url, keepAliveFetch)),
      'go, open': async (times) => Number(await go.ask(`open ${times}`)),
    },
    { clock: 'wall', warmups: 100 },
  );
  go.end();
  const goal = (name: string, one: string, other: string, limit: number, floor?: string): Goal => ({
    number: 10,
    name: `${where}: ${name}`,
    value: 1 / r.speed(one, other),
    target: ['<=', limit],
    detail: `${one} ${(r.micros(one) / 1000).toFixed(2)} ms, ${other} ${(r.micros(other) / 1000).toFixed(2)} ms`,
    ...(floor && {
      why: `the same four requests with that fetch, answered at once, take ${(1 / r.speed(floor, other)).toFixed(1)} of it`,
    }),
  });
  return [
    goal('a turn of 200 bytes and its answer by Go', 'stock', 'go', 8, 'stock, bare'),
    goal('the same, fetch upon node:http', 'injected', 'go', 4, 'injected, bare'),
    goal('open, join and handshake by Go', 'injected, open', 'go, open', 5),
  ];
}
