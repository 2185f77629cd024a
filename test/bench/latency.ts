import { call } from '../../src/call.ts';
import { rpcRequest, rpcResult } from '../../src/dispatch.ts';
import { decode, encode } from '../../src/frames.ts';
import { serve } from '../../src/serve.ts';
import { Signer } from '../../src/signer.ts';

/** Two contenders over one service, its limits on. */
export interface Latency {
  calls: number;
  /** ms. */
  naive: { median: number; p90: number; reads: number };
  ours: { median: number; p90: number; reads: number };
  /** Ours by naive's. */
  median: number;
  p90: number;
  /** Requests of both that were answered 429. */
  refused: number;
}

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const at = (sorted: number[], share: number): number => sorted[Math.floor(sorted.length * share)]!;
const byTime = (values: number[]): number[] => [...values].sort((a, b) => a - b);

/** A `fetch` that counts the reads of rooms, and refusals. */
function counting(counts: { reads: number; refused: number }): typeof fetch {
  return (async (url: string, init: RequestInit) => {
    if (/\/r\/[^/]+\?/.test(url)) counts.reads++;
    const response = await fetch(url, init);
    if (response.status === 429) counts.refused++;
    return response;
  }) as typeof fetch;
}

/** What one writes who has read the service's page: write, then park reads until something comes. */
class Naive {
  readonly #base: string;
  readonly #fetch: typeof fetch;
  readonly #signer = Signer.generate();
  #nonce = Date.now();

  constructor(base: string, through: typeof globalThis.fetch) {
    this.#base = base;
    this.#fetch = through;
  }

  async say(room: string, text: string): Promise<void> {
    const { did, sig, nonce } = this.#signer.signMessage(room, ++this.#nonce, text);
    const path = `/r/${room}/say-signed/${did}/${sig}/${nonce}/${encodeURIComponent(text)}?format=json`;
    const response = await this.#fetch(this.#base + path, {});
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
  }

  async read(room: string, since?: number, signal?: AbortSignal): Promise<{ last: number; texts: string[] }> {
    const query = since === undefined ? 'limit=1' : `since=${since}&wait=10`;
    const response = await this.#fetch(`${this.#base}/r/${room}?format=json&${query}`, signal ? { signal } : {});
    const { last_seq, messages } = (await response.json()) as { last_seq: number; messages: { text: string }[] };
    return { last: last_seq, texts: since === undefined ? [] : messages.map(({ text }) => text) };
  }

  async serve(mailbox: string, replyTo: string, signal: AbortSignal): Promise<void> {
    let { last } = await this.read(mailbox);
    while (!signal.aborted) {
      const view = await this.read(mailbox, last, signal).catch(() => undefined);
      if (!view) return;
      last = view.last;
      for (const text of view.texts) {
        const { id, params } = decode(text) as any;
        await this.say(replyTo, encode(rpcResult(id, 2 * params.n)));
      }
    }
  }

  async call(mailbox: string, replyTo: string, id: string, n: number): Promise<number> {
    let { last } = await this.read(replyTo);
    await this.say(mailbox, encode(rpcRequest(id, 'double', { n })));
    for (;;) {
      const view = await this.read(replyTo, last);
      last = view.last;
      for (const text of view.texts) {
        const frame = decode(text) as any;
        if (frame?.id === id) return frame.result;
      }
    }
  }
}

const WARM_UP = 3;

/**
 * Calls one after the other with random gaps, a naive loop and ours in turn; caller and server share one address, and its
 * budgets of reads and writes.
 *
 * @param calls of each contender
 * @param gapMs shortest and longest pause between two
 * @param blocks how often the contenders take turns
 */
export async function benchLatency(
  base: string,
  calls: number,
  gapMs: readonly [number, number] = [2500, 5500],
  blocks = 2,
): Promise<Latency> {
  const tag = Math.random().toString(36).slice(2, 10);
  const counts = { naive: { reads: 0, refused: 0 }, ours: { reads: 0, refused: 0 } };
  const took: { naive: number[]; ours: number[] } = { naive: [], ours: [] };
  const fetchOf = (who: 'naive' | 'ours'): typeof fetch => counting(counts[who]);
  const rooms = (who: string): [string, string] => [`mb-p-bench-${tag}-${who}-in`, `mb-p-bench-${tag}-${who}-out`];

  const run = async (who: 'naive' | 'ours', count: number, one: (n: number) => Promise<number>): Promise<void> => {
    for (let n = 0; n < count; n++) {
      await sleep(gapMs[0] + Math.random() * (gapMs[1] - gapMs[0]));
      const begun = performance.now();
      const answer = await one(n);
      took[who].push(performance.now() - begun);
      if (answer !== 2 * n) throw new Error(`${who}: ${answer} for ${n}`);
    }
  };

  const [naiveCaller, naiveServer] = [new Naive(base, fetchOf('naive')), new Naive(base, fetchOf('naive'))];
  const naive = async (count: number): Promise<void> => {
    const [mailbox, replyTo] = rooms('naive');
    const stop = new AbortController();
    const served = naiveServer.serve(mailbox, replyTo, stop.signal);
    await run('naive', count, (n) => naiveCaller.call(mailbox, replyTo, `${took.naive.length}`, n));
    stop.abort();
    await served;
  };

  // Two programs that know nothing of each other.
  const [callerFetch, serverFetch] = [fetchOf('ours'), fetchOf('ours')];
  const [caller, callee] = [Signer.generate(), Signer.generate()];
  const methods = new Map([['double', ({ n }: { n: number }) => 2 * n]]);
  const ours = async (count: number): Promise<void> => {
    const [mailbox, replyTo] = rooms('ours');
    const stop = new AbortController();
    let ready!: () => void;
    const isReady = new Promise<void>((resolve) => {
      ready = resolve;
    });
    const served = serve(mailbox, callee, { base, fetch: serverFetch, methods, signal: stop.signal, onReady: ready });
    await Promise.race([isReady, served]);
    const o = { base, fetch: callerFetch, replyTo, peer: callee.did };
    await run('ours', count, (n) => call<number>(mailbox, 'double', { n }, caller, o));
    stop.abort();
    await served;
  };

  // Some that do not count: it takes ours two calls to see in what steps the service wakes its readers.
  for (const contender of [naive, ours]) await contender(WARM_UP);
  for (const who of ['naive', 'ours'] as const) {
    took[who].length = 0;
    counts[who].reads = 0;
  }
  for (let block = 0; block < blocks; block++) {
    const count = Math.round((calls * (block + 1)) / blocks) - Math.round((calls * block) / blocks);
    for (const contender of block % 2 === 0 ? [naive, ours] : [ours, naive]) await contender(count);
  }
  const [a, b] = [byTime(took.naive), byTime(took.ours)];
  return {
    calls,
    naive: { median: at(a, 0.5), p90: at(a, 0.9), reads: counts.naive.reads / calls },
    ours: { median: at(b, 0.5), p90: at(b, 0.9), reads: counts.ours.reads / calls },
    median: at(b, 0.5) / at(a, 0.5),
    p90: at(b, 0.9) / at(a, 0.9),
    refused: counts.naive.refused + counts.ours.refused,
  };
}
