import type { LocalService } from '../../src/local.ts';
import type { ProcessClock, Timeline } from './clock.ts';
import type { Random } from './random.ts';

/** What the network does to a request, each with its probability. */
export const FAULTS = [
  /** Never arrives. The connection breaks, or nothing ever comes back. */
  'lost-before',
  /** Is executed, and the answer never comes back. */
  'lost-after',
  /** Arrives long after everybody has given up. */
  'late-request',
  'late-answer',
  /** Is executed once more, some time later. */
  'duplicate',
  /** Overtaken by what was sent later. */
  'slow',
  /** The body breaks off, and the connection with it; or it just ends. */
  'cut',
  /** A 500, 502, 503 or 504 without or after the execution. */
  'error-before',
  'error-after',
  'throttled',
  'upload-timeout',
  /** A page of some proxy, with status 200. */
  'portal',
] as const;
export type Fault = (typeof FAULTS)[number];
export type Rates = Partial<Record<Fault, number>>;

/** How the network may be broken beyond what networks do, so that an invariant must notice. */
export type NetworkBug = 'alters-answers' | 'executes-refused' | 'keeps-hangups' | 'signs-again' | 'spins';

/** What a process is to the network. */
export interface Host {
  readonly name: string;
  readonly address: string;
  readonly clock: ProcessClock;
  readonly isAlive: boolean;
  /** Called for each request before it leaves, and for each write to a disk: the process may die of it. */
  onSend?(path?: string): void;
}

interface Fate {
  fault: Fault | undefined;
  upMs: number;
  downMs: number;
}

/** An answer as far as the library looks at one. */
function brokenOff(whole: Response): Response {
  const text = (): Promise<string> => Promise.reject(new TypeError('terminated'));
  return { status: whole.status, headers: whole.headers, body: null, text } as unknown as Response;
}

export class Network {
  /** How often each fault struck, and how many requests there were. */
  readonly counts: Record<string, number> = { requests: 0, executed: 0 };
  /** Write URLs that were seen on the way: what an eavesdropper could send again. */
  readonly captured: string[] = [];
  /** Off: everything arrives, soon. */
  rates: Rates = {};
  readonly #timeline: Timeline;
  readonly #service: Pick<LocalService, 'client'>;
  readonly #random: Random;
  readonly #log: (line: string) => void;
  readonly #bug: string | undefined;
  readonly #partitions: Map<Host, number> = new Map();
  /** What is under way, by who sent it. */
  readonly #open: Map<Host, Set<AbortController>> = new Map();
  /** What a naive client would do: {@link NetworkBug} `signs-again`. */
  resign: ((path: string) => string | undefined) | undefined;

  constructor(
    timeline: Timeline,
    service: Pick<LocalService, 'client'>,
    random: Random,
    log: (line: string) => void,
    bug?: string,
  ) {
    this.#timeline = timeline;
    this.#service = service;
    this.#random = random;
    this.#log = log;
    this.#bug = bug;
  }

  count(what: string): void {
    this.counts[what] = (this.counts[what] ?? 0) + 1;
  }

  /** Nothing of this host gets through for a while. */
  cutOff(host: Host, ms: number): void {
    this.count('partition');
    this.#partitions.set(host, this.#timeline.now + ms);
  }

  #fate(host: Host, path: string): Fate {
    const random = this.#random;
    const fate: Fate = { fault: undefined, upMs: random.between(2, 30), downMs: random.between(2, 30) };
    if (Object.keys(this.rates).length === 0) return fate;
    if ((this.#partitions.get(host) ?? 0) > this.#timeline.now) fate.fault = 'lost-before';
    else {
      let x = random.float();
      for (const fault of FAULTS) {
        x -= this.rates[fault] ?? 0;
        if (x < 0) {
          fate.fault = fault;
          break;
        }
      }
    }
    if (fate.fault === 'late-request') fate.upMs += random.between(15_000, 90_000);
    if (fate.fault === 'late-answer') fate.downMs += random.between(15_000, 90_000);
    if (fate.fault === 'slow') fate.upMs += random.between(50, 3000);
    if (fate.fault) this.count(fate.fault);
    if (path.includes('/say-signed/')) {
      if (path.includes('/%5B%7B')) this.count('batch');
      if (this.captured.length < 200) this.captured.push(path);
      else this.captured[random.int(200)] = path;
    }
    return fate;
  }

  /** A process is gone, and with it its sockets. */
  hangUp(host: Host): void {
    for (const open of this.#open.get(host) ?? []) open.abort(new TypeError('the peer is gone'));
    this.#open.delete(host);
  }

  /** The network as one process sees it. */
  fetchOf(host: Host): typeof fetch {
    const reach = this.#service.client(host.address);
    return ((url: string, init: RequestInit = {}) => {
      host.onSend?.(url.slice(url.indexOf('/', 8)));
      if (!host.isAlive) return new Promise<Response>(() => {});
      return this.#carry(host, reach, url, init);
    }) as typeof fetch;
  }

  #carry(host: Host, reach: typeof fetch, url: string, init: RequestInit): Promise<Response> {
    const timeline = this.#timeline;
    const random = this.#random;
    const number = ++this.counts['requests']!;
    const path = url.slice(url.indexOf('/', 8));
    const fate = this.#fate(host, path);
    const { fault } = fate;
    this.#log(`${host.name} #${number} ${init.method ?? 'GET'} ${path} ${fault ?? ''}`);
    const { signal } = init;
    return new Promise<Response>((resolve, reject) => {
      const hangUp = new AbortController();
      const open = this.#open.get(host) ?? new Set();
      this.#open.set(host, open.add(hangUp));
      let isOver = false;
      const end = (settle: () => void): void => {
        if (isOver) return;
        isOver = true;
        open.delete(hangUp);
        signal?.removeEventListener('abort', onAbort);
        if (host.isAlive) settle();
      };
      // The service learns of it a moment later, or never.
      const onAbort = (): void => {
        end(() => reject(signal!.reason));
        if (this.#bug !== 'keeps-hangups') timeline.after(random.between(1, 20), () => hangUp.abort(signal!.reason));
      };
      if (signal?.aborted) return reject(signal.reason);
      signal?.addEventListener('abort', onAbort);
      const answer = (response: Response): void => {
        this.#log(`#${number} ${response.status}`);
        timeline.after(fate.downMs, () => end(() => resolve(response)));
      };
      const breakOff = (ms: number): void => {
        timeline.after(ms, () => end(() => reject(new TypeError('fetch failed'))));
      };
      const hangs = fault !== undefined && random.chance(0.4);
      const execute = (): Promise<Response> => {
        this.counts['executed']!++;
        const target = this.#bug === 'spins' ? url.replace(/&wait=\d+/, '') : url;
        return reach(target, { ...init, signal: hangUp.signal });
      };
      timeline.after(fate.upMs, () => {
        switch (fault) {
          case 'lost-before':
            if (!hangs) breakOff(random.between(1, 2000));
            if (this.#bug === 'signs-again' && this.resign) this.#signAgain(reach, path);
            return;
          case 'error-before':
            return answer(failure(random));
          case 'throttled':
            if (this.#bug === 'executes-refused') {
              void execute().catch(() => {});
              return answer(new Response('422 duplicate text\n', { status: 422 }));
            }
            return answer(throttled(random));
          case 'upload-timeout':
            return answer(new Response('408 the body took too long to arrive\n', { status: 408 }));
          case 'portal':
            return answer(new Response('<html><body>Please sign in</body></html>\n', { status: 200 }));
        }
        execute().then(
          async (response) => {
            if (fault === 'lost-after') {
              if (this.#bug === 'signs-again' && this.resign) this.#signAgain(reach, path);
              if (!hangs) breakOff(random.between(1, 2000));
              return;
            }
            if (fault === 'error-after') return answer(failure(random));
            if (fault === 'cut') {
              if (hangs) return answer(brokenOff(response));
              const text = await response.text();
              const { status, headers } = response;
              return answer(new Response(text.slice(0, random.int(text.length)), { status, headers }));
            }
            if (this.#bug === 'alters-answers') {
              const text = await response.text();
              return answer(new Response(text.replaceAll('right:', 'wrong:'), response));
            }
            answer(response);
          },
          (cause) => end(() => reject(cause)),
        );
        if (fault === 'duplicate') {
          timeline.after(random.between(20, 30_000), () => {
            this.#log(`#${number} again`);
            void execute().catch(() => {});
          });
        }
      });
    });
  }

  #signAgain(reach: typeof fetch, path: string): void {
    const again = this.resign?.(path);
    if (again !== undefined) void reach(`http://sim.test${again}`, {}).catch(() => {});
  }
}

function failure(random: Random): Response {
  const status = random.pick([500, 502, 503, 504]);
  return new Response(`${status} the gateway is unwell\n`, {
    status,
    headers: status === 503 && random.chance(0.5) ? { 'retry-after': '1' } : {},
  });
}

function throttled(random: Random): Response {
  const seconds = 1 + random.int(3);
  const inBody = random.chance(0.5);
  return new Response(`429 rate limited\n${inBody ? `retry after: ${seconds}s\n` : ''}`, {
    status: 429,
    headers: random.chance(0.5) ? { 'retry-after': String(seconds) } : {},
  });
}
