import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterAll, onTestFinished } from 'vitest';
import type { Handler } from '../src/dispatch.ts';
import { encode, type Json } from '../src/frames.ts';
import type { Clock, Event, Options, Transport } from '../src/http.ts';
import { transportOf } from '../src/http.ts';
import { createLocalService, type Limits, type LocalService } from '../src/local.ts';
import { type ServeOptions, serve } from '../src/serve.ts';
import { Signer } from '../src/signer.ts';
import { settled, VirtualClock } from './virtual-clock.ts';

export type Profile = 'modern' | '0.7';
export const PROFILES: Profile[] = ['modern', '0.7'];
export const FREE: Partial<Limits> = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9 };

export interface World {
  service: LocalService;
  clock: VirtualClock;
  events: Event[];
  /** Options that reach the service on its clock, its events kept. */
  o: Options & { base: string; fetch: typeof fetch; clock: VirtualClock };
  t: Transport;
  /** The outcome of work whose time passes as fast as the machine allows. */
  run<T>(work: Promise<T>): Promise<T>;
  /** Lets virtual time pass until `found` is true. */
  until(found: () => unknown): Promise<void>;
  /** The kinds of events so far. */
  kinds(): string[];
}

/** A service in memory on a clock of its own, which may be shown to it otherwise than to its clients. */
export function world(
  profile: Profile = 'modern',
  limits: Partial<Limits> = {},
  shown: (clock: VirtualClock) => Clock = (clock) => clock,
): World {
  const clock = new VirtualClock();
  const service = createLocalService({ profile, clock: shown(clock), limits: { ...FREE, ...limits } });
  const events: Event[] = [];
  const o = { base: 'http://local.test', fetch: service.fetch, clock, onEvent: (e: Event) => void events.push(e) };
  return {
    service,
    clock,
    events,
    o,
    t: transportOf(o),
    run: (work) => run(clock, work),
    until: (found) => pass(clock, found, 'what is waited for does not come'),
    kinds: () => events.map(({ kind }) => kind),
  };
}

/** Lets time pass until the work is done. */
export async function run<T>(clock: VirtualClock, work: Promise<T>): Promise<T> {
  let over = false;
  const mark = (): void => {
    over = true;
  };
  work.then(mark, mark);
  await pass(clock, () => over, 'the work does not end');
  return work;
}

/** Lets time pass, as little as it can, until `found` is true. */
async function pass(clock: VirtualClock, found: () => unknown, otherwise: string): Promise<void> {
  // Work that goes on without the clock (sockets) gets real time; what waits for the clock gets that.
  for (let step = 0; !found(); step++) {
    if (step === 10_000) throw new Error(otherwise);
    for (let i = 0; i < 4 && !found(); i++) await settled();
    if (!found()) await clock.advance(step < 400 ? 5 : 50);
  }
}

/** For how long {@link until} waits, ms: not quite as long as a test may take, so that what failed is told. */
const PATIENCE_MS = 240_000;

/** Waits in real time until `found` is true; what it waits for always comes. @throws if it does not, in the end */
export async function until(found: () => unknown): Promise<void> {
  let isLate = false;
  const timer = setTimeout(() => {
    isLate = true;
  }, PATIENCE_MS);
  try {
    while (!found()) {
      if (isLate) throw new Error(`what is waited for does not come: ${found}`);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  } finally {
    clearTimeout(timer);
  }
}

/** A server that answers `echo` with its `n`, once it is ready. */
export async function echoing(w: World, mailbox: string, key: Signer, o: ServeOptions = {}) {
  const stop = new AbortController();
  let ready!: () => void;
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const methods = new Map<string, Handler>([['echo', ({ n }) => n]]);
  const ended = serve(mailbox, key, { ...w.o, methods, ...o, signal: stop.signal, onReady: ready });
  await w.run(Promise.race([isReady, ended]));
  return { ended, stop: () => stop.abort() };
}

/** A signer that is the same in every run. */
export const signer = (n: number): Signer => Signer.fromSeed(new Uint8Array(32).fill(n));

type Fault = (url: string, init: RequestInit) => Promise<Response | undefined> | Response | undefined;

/** A network that does what `fault` says to a request, and otherwise carries it. It may throw, or carry it first. */
export function faulty(fetch: typeof globalThis.fetch, fault: Fault): typeof globalThis.fetch {
  return (async (url: any, init: any = {}) => (await fault(String(url), init)) ?? fetch(url, init)) as typeof fetch;
}

/** What undici says when a connection breaks. */
export const broken = (code = 'ECONNRESET'): TypeError =>
  new TypeError('fetch failed', { cause: Object.assign(new Error(code), { code }) });

/** True for a request that writes to a room. */
export const isSay = (url: string, init: RequestInit = {}): boolean =>
  /\/say(-signed)?\//.test(url) || (init.method === 'POST' && /\/r\//.test(url));

const temporary: string[] = [];
// Registered before any other hook of the file, and so the last to run: whatever writes there has ended.
afterAll(() => {
  for (const dir of temporary.splice(0)) rmSync(dir, { recursive: true, force: true, maxRetries: 5 });
});

/** A fresh directory for the tests of this file, gone when they are over, however they end. */
export function tempDir(): string {
  const dir = mkdtempSync(join(tmpdir(), 'technocore-rpc-'));
  temporary.push(dir);
  return dir;
}

export interface Faker {
  base: string;
  /** Requests so far, as `GET /path`. */
  log: string[];
  server: Server;
}

/** A real HTTP server on loopback that answers as told; gone when the test is over. */
export async function faker(
  answer: (request: IncomingMessage, response: ServerResponse, n: number) => void,
): Promise<Faker> {
  const log: string[] = [];
  const server = createServer((request, response) => {
    log.push(`${request.method} ${request.url}`);
    answer(request, response, log.length);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    server.closeAllConnections();
    server.close();
  });
  return { base: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, log, server };
}

/** A room's JSON view. */
export const view = (o: object = {}): string =>
  JSON.stringify({ room: 'x', count: 0, first_seq: null, last_seq: 0, messages: [], ...o });

/** A request frame. */
export const requestFrame = (id: unknown, method: string, params?: object): string =>
  encode({ jsonrpc: '2.0', id: id as string, method, ...(params && { params: params as Json }) });

/** Lets go of all that nothing holds, and tells whether that was so of something. */
export async function isGone(ref: WeakRef<object>): Promise<boolean> {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  // What a job has seen lives until it ends.
  for (let i = 0; i < 3; i++) {
    await settled();
    collect();
  }
  return ref.deref() === undefined;
}
