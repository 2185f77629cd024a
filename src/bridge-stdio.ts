/**
 * The two ends of a bridge that speak in lines: a host that started us, on our own standard input and output, and a
 * server that we start. Between them and the room stand the translations; whatever goes wrong with one message ends as
 * its answer.
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

/** Most requests whose answer is waited for to tell how long it took. */
const MAX_WATCHED = 4096;

/** How long a host that has ended its input is given answers, ms. Hosts that end a program wait 2 s for it. */
const LAST_ANSWERS_MS = 1500;

/**
 * Tells of each request when it is answered, or called off: an event `call` with method, name, caller, ms and outcome.
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

  /** Resolves once all is answered that was asked, or after a while. */
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

/** An end of a bridge that is at work. */
export interface Bridged {
  /** Resolves when the other program has ended it. */
  readonly ended: Promise<void>;
  close(): Promise<void>;
}

/** The end with the server. */
export interface BridgedServer extends Bridged {
  /** Resolves once the server has said what it is. */
  readonly ready: Promise<void>;
  /** @throws TechnocoreError `no_server`: the command ends at once, each time, and never wrote a message */
  readonly ended: Promise<void>;
}

/**
 * Puts a server that we start behind a wire to callers.
 *
 * @param isPublic whether callers are strangers to each other
 * @throws TechnocoreError `no_command`: it cannot be started; what starting the wire throws
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
        // It never came to the server, so it may be asked again.
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
      junk: (begin) => onEvent({ kind: 'skipped', reason: 'the server wrote a line that is no message', begin }),
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
    // First nobody is let in any more, and what was begun is answered.
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

/** A taker of frames that nothing in a frame can bring down. */
function guarded(onEvent: (event: Event) => void, take: (frame: Frame) => void): (frame: Frame) => void {
  return (frame) => {
    try {
      take(frame);
    } catch (error) {
      onEvent({ kind: 'handler-error', method: isObject(frame) ? frame['method'] : undefined, error });
    }
  };
}

/** What a host is told that cannot work: as in {@link HostSide}. */
export type HostWords = Pick<ConstructorParameters<typeof HostSide>[0], 'hint' | 'denied'>;

/**
 * Puts a host that speaks in lines before a wire to a server. It ends when the host's input does.
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
      tooLong: (bytes, id) => toHost(rpcError(id, INVALID_REQUEST, `Invalid Request: ${bytes} bytes are too many`)),
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
