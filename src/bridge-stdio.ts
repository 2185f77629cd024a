/**
 * The two ends of a bridge that use stdio: a host that has started us, on our own standard input and output, and a
 * server that we start. The translations are between them and the room. An error with a request becomes its answer.
 *
 * @module
 */
import type { Readable, Writable } from 'node:stream';
import { ChildSide } from './bridge-child.ts';
import { objectIn, type Wire } from './bridge-handshake.ts';
import { HostSide } from './bridge-host.ts';
import { sendError } from './bridge-http.ts';
import { LineWriter, readLines } from './bridge-lines.ts';
import { Child } from './bridge-process.ts';
import { classify, type Id, INVALID_REQUEST, type JsonObject, PARSE_ERROR, rpcError } from './dispatch.ts';
import { RpcError, type TechnocoreError } from './errors.ts';
import { type Frame, isObject } from './frames.ts';
import { type Clock, type Event, systemClock } from './http.ts';

/** Options of both ends. */
export interface StdioOptions {
  clock?: Clock;
  random?: (bytes: number) => Uint8Array;
  onEvent?: (event: Event) => void;
}

/** How many requests are timed for events at once. */
const MAX_WATCHED = 4096;

/** How long a host that has closed its end still gets answers, ms. Hosts wait 2 s for a program to exit. */
const LAST_ANSWERS_MS = 1500;

/**
 * Emits an event `call` for each request that is answered or cancelled, with method, name, caller, ms and outcome.
 */
class Watch {
  readonly #clock: Clock;
  readonly #onEvent: (event: Event) => void;
  readonly #begun = new Map<Id, Event & { at: number }>();
  #onQuiet: (() => void) | undefined;

  constructor({ clock = systemClock, onEvent = () => {} }: StdioOptions) {
    this.#clock = clock;
    this.#onEvent = onEvent;
  }

  /** Resolves once all requests are answered, or after a while. */
  async quiet(): Promise<void> {
    if (this.#begun.size === 0) return;
    const timer = new AbortController();
    this.#onQuiet = () => timer.abort();
    await this.#clock.sleep(LAST_ANSWERS_MS, timer.signal).catch(() => {});
  }

  asked(message: JsonObject, from?: string): void {
    const { id, method, params } = message as { id: Id; method: string; params?: JsonObject };
    if (method === 'notifications/cancelled') this.#end(params?.['requestId'] as Id, 'cancelled');
    if (classify(message) !== 'request') return;
    const { name = params?.['uri'] } = params ?? {};
    if (this.#begun.size >= MAX_WATCHED) this.#begun.delete(this.#begun.keys().next().value!);
    this.#begun.set(id, {
      kind: 'call',
      method,
      ...(typeof name === 'string' && { name }),
      ...(from !== undefined && { from }),
      at: this.#clock.now(),
    });
  }

  answered(message: unknown): void {
    if (classify(message) !== 'response') return;
    const { id, error, result } = message as { id: Id; error?: JsonObject; result?: JsonObject };
    this.#end(id, error ? `error ${error['code']}` : result?.['isError'] === true ? 'failed' : 'ok');
  }

  #end(id: Id, outcome: string): void {
    const begun = this.#begun.get(id);
    if (!begun || !this.#begun.delete(id)) return;
    const { at, ...event } = begun;
    this.#onEvent({ ...event, ms: this.#clock.now() - at, outcome });
    if (this.#begun.size === 0) this.#onQuiet?.();
  }
}

/** One end of a running bridge. */
export interface Bridged {
  /** Resolves when the other program has ended the bridge. */
  readonly ended: Promise<void>;
  close(): Promise<void>;
}

/** The end of a bridge with the server. */
export interface BridgedServer extends Bridged {
  /** Resolves once the server's revision is known. */
  readonly ready: Promise<void>;
  /** @throws a {@link TechnocoreError} `no_server` if the command keeps exiting without ever writing a message */
  readonly ended: Promise<void>;
}

/**
 * Starts a server, and connects it to callers through a wire.
 *
 * @param isPublic whether callers must be isolated from each other
 * @throws a {@link TechnocoreError} `no_command` if it cannot be started; what starting the wire throws
 */
export async function bridgeServer(
  wire: Wire,
  command: string[],
  o: StdioOptions & { isPublic?: boolean } = {},
): Promise<BridgedServer> {
  const { clock = systemClock, random = (n) => crypto.getRandomValues(new Uint8Array(n)), onEvent = () => {} } = o;
  const watch = new Watch(o);
  let isFound = (): void => {};
  const ready = new Promise<void>((resolve) => {
    isFound = resolve;
  });
  let fail = (_: TechnocoreError): void => {};
  const ended = new Promise<void>((resolve, reject) => {
    wire.onclose = resolve;
    fail = reject;
  });
  ended.catch(() => {});
  const side = new ChildSide({
    clock,
    random,
    onEvent(event) {
      if (event.kind === 'server-ready') isFound();
      onEvent(event);
    },
    isPublic: o.isPublic === true,
    toChild: (message) => {
      child.send(message).catch((cause) => {
        onEvent({ kind: 'unsent', method: message['method'], cause });
        // It never reached the server, so the caller may send it again.
        if (classify(message) === 'request') side.unsent(message['id'] as Id);
      });
    },
    toRoom: (message) => {
      watch.answered(message);
      wire.send(message).catch((cause) => onEvent({ kind: 'unsent', method: message['method'], cause }));
    },
  });
  const child = new Child(
    command,
    {
      frame: guarded(onEvent, (frame) => side.fromChild(frame)),
      junk: (begin) => onEvent({ kind: 'skipped', reason: 'the server wrote a line that is not a message', begin }),
      tooLong: (bytes, id) => {
        onEvent({ kind: 'skipped', reason: 'the server wrote a line that is too long', bytes });
        if (id !== undefined) side.tooLong(id, bytes);
      },
      started: () => side.started(),
      stopped: (reason, againMs) => {
        onEvent({ kind: 'server-stopped', reason, againMs });
        side.stopped(againMs);
      },
      failed: fail,
    },
    { clock, random },
  );
  await child.start();
  wire.onerror = (cause) => onEvent({ kind: 'bridge-error', cause });
  wire.onmessage = (message: JsonObject, extra?: unknown) => {
    const from = String(objectIn(extra, 'authInfo')['clientId'] ?? '');
    watch.asked(message, from);
    side.fromRoom(message, from);
  };
  const close = async (): Promise<void> => {
    // The wire first: it takes no more requests, and waits for the answers to those under way.
    await wire.close();
    side.close();
    await child.close();
  };
  try {
    await Promise.race([wire.start(), ended]);
  } catch (cause) {
    await close();
    throw cause;
  }
  return { ready, ended, close };
}

/** Makes a function that emits an event if `take` throws. */
function guarded(onEvent: (event: Event) => void, take: (frame: Frame) => void): (frame: Frame) => void {
  return (frame) => {
    try {
      take(frame);
    } catch (error) {
      onEvent({ kind: 'handler-error', method: isObject(frame) ? frame['method'] : undefined, error });
    }
  };
}

/** Advice for users, as in {@link HostSide}. */
export type HostWords = Pick<ConstructorParameters<typeof HostSide>[0], 'hint' | 'denied'>;

/**
 * Connects a host on a pair of streams to a server through a wire. Ends when the host closes its end.
 *
 * @throws what starting the wire throws
 */
export async function bridgeHost(
  wire: Wire,
  input: Readable,
  output: Writable,
  { hint, denied, ...o }: StdioOptions & HostWords = {},
): Promise<Bridged> {
  const { clock = systemClock, onEvent = () => {} } = o;
  const watch = new Watch(o);
  const writer = new LineWriter(output);
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  const toHost = (message: JsonObject): void => {
    watch.answered(message);
    writer.write(message).catch(end);
  };
  const side = new HostSide({
    clock,
    ...(hint !== undefined && { hint }),
    ...(denied !== undefined && { denied }),
    toHost,
    toRoom: (message) => {
      wire.send(message).catch((cause) => {
        if (!RpcError.is(cause)) onEvent({ kind: 'unsent', method: message['method'], cause });
        if (message['id'] !== undefined) side.fromRoom(sendError(message['id'] as Id, cause));
      });
    },
  });
  wire.onmessage = (message) => side.fromRoom(message);
  wire.onerror = (cause) => onEvent({ kind: 'bridge-error', cause });
  wire.onclose = end;
  await wire.start();
  readLines(
    input,
    {
      frame: guarded(onEvent, (frame) => {
        if (isObject(frame)) watch.asked(frame as JsonObject);
        side.fromHost(frame);
      }),
      junk: () => toHost(rpcError(undefined, PARSE_ERROR, 'Parse error')),
      tooLong: (bytes, id) => toHost(rpcError(id, INVALID_REQUEST, `Invalid Request: ${bytes} bytes is too large`)),
    },
    () => void watch.quiet().then(end),
  );
  return {
    ended,
    async close() {
      side.close();
      await wire.close();
    },
  };
}
