/**
 * Finds out which revision of MCP the server behind a bridge supports. It is probed with `server/discover` of
 * 2026-07-28, and if it does not know that, with the handshake of older revisions. A server may be slow to start, so
 * late answers count too.
 *
 * @module
 */
import { carriedError, HANDSHAKES, OURS, objectIn } from './bridge-handshake.ts';
import { type JsonObject, rpcNotification, rpcRequest } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { MCP_VERSION, PROTOCOL_VERSION, SELF, SERVER_INFO, UNSUPPORTED_VERSION } from './mcp.ts';
import { CLIENT_CAPABILITIES } from './toolcall.ts';

/** How long a server may take for `server/discover`, which it may not know, ms. */
export const PROBE_MS = 5000;
/** How long it may take for the handshake, ms. Some servers first download what they need. */
const GREET_MS = 120_000;

/** What the greeting found out about a server. */
export interface Found {
  /** Whether it knows the revision without a handshake. */
  readonly isModern: boolean;
  readonly version: string;
  /** The result of its handshake; without one, its `serverInfo`. */
  readonly server: JsonObject;
}

interface Sides {
  clock: Clock;
  /** The client capabilities that are declared to it. */
  capabilities: JsonObject;
  toChild(message: JsonObject): void;
  found(what: Found): void;
  /** Called when it does not answer, or refuses. It may still answer later. */
  problem(why: string): void;
}

/** The greeting of a server, repeated for each of its processes. */
export class Greeting {
  readonly #o: Sides;
  #state: 'off' | 'probing' | 'greeting' | 'done' = 'off';
  /** Whether the server exited on `server/discover`. */
  #isProbeDeadly = false;
  #probes = 0;
  /** The id of the last handshake. */
  #hello = '';
  #timer = new AbortController();

  constructor(o: Sides) {
    this.#o = o;
  }

  /** Called when a process has started. */
  begin(): void {
    this.#probes++;
    if (this.#isProbeDeadly) this.#greet(HANDSHAKES[0]!);
    else {
      this.#state = 'probing';
      const _meta = { [PROTOCOL_VERSION]: MCP_VERSION, [CLIENT_CAPABILITIES]: {} };
      this.#o.toChild(rpcRequest(this.#probe, 'server/discover', { _meta }));
      this.#within(PROBE_MS, () => this.#greet(HANDSHAKES[0]!));
    }
  }

  /** Called when the process has ended. */
  stop(): void {
    if (this.#state === 'probing') this.#isProbeDeadly = true;
    this.#state = 'off';
    this.#timer.abort();
  }

  get #probe(): string {
    return `${OURS}probe-${this.#probes}`;
  }

  /** Takes an answer. @returns whether it answers something asked here */
  take(frame: JsonObject): boolean {
    const { id } = frame;
    const isOpen = this.#state === 'probing' || this.#state === 'greeting';
    if (id === this.#probe) {
      if (isOpen) this.#probed(frame);
    } else if (id === this.#hello) {
      if (isOpen) this.#greeted(frame);
    } else return typeof id === 'string' && id.startsWith(OURS);
    return true;
  }

  #probed({ result, error }: JsonObject): void {
    const supported = isObject(result) ? result['supportedVersions'] : supportedIn(error);
    const names: Json[] | undefined = Array.isArray(supported) ? supported : undefined;
    if (names?.includes(MCP_VERSION)) this.#modern(objectIn(objectIn(result, '_meta'), SERVER_INFO));
    else if (this.#state === 'greeting') {
      // Too late: the handshake is under way.
    } else if (!names || names.some((name) => HANDSHAKES.includes(name as string))) this.#greet(HANDSHAKES[0]!);
    else {
      this.#timer.abort();
      this.#o.problem(`The server speaks other revisions: ${JSON.stringify(names).slice(0, 200)}`);
    }
  }

  #modern(serverInfo: JsonObject): void {
    this.#done({ isModern: true, version: MCP_VERSION, server: { serverInfo } });
  }

  #done(what: Found): void {
    this.#state = 'done';
    this.#timer.abort();
    this.#o.found(what);
  }

  #greet(protocolVersion: string): void {
    this.#state = 'greeting';
    this.#hello = `${OURS}hello-${this.#probes}-${protocolVersion}`;
    const { capabilities } = this.#o;
    this.#o.toChild(rpcRequest(this.#hello, 'initialize', { protocolVersion, capabilities, clientInfo: SELF }));
    this.#within(GREET_MS, () => this.#o.problem('The server does not answer'));
  }

  #greeted({ result, error }: JsonObject): void {
    const oldest = HANDSHAKES.at(-1)!;
    if (isObject(result) && typeof result['protocolVersion'] === 'string') {
      this.#o.toChild(rpcNotification('notifications/initialized'));
      this.#done({ isModern: false, version: result['protocolVersion'], server: result as JsonObject });
    } else if (supportedIn(error)?.includes(MCP_VERSION)) this.#modern({});
    // Some servers refuse a revision without naming theirs: try the oldest one.
    else if (!this.#hello.endsWith(oldest)) this.#greet(oldest);
    else {
      this.#timer.abort();
      this.#o.problem(`The server refused: ${carriedError(error).message.slice(0, 500)}`);
    }
  }

  #within(ms: number, otherwise: () => void): void {
    this.#timer.abort();
    this.#timer = new AbortController();
    this.#o.clock.sleep(ms, this.#timer.signal).then(otherwise, () => {});
  }
}

/** The revisions that a server names when it refuses one. */
function supportedIn(error: unknown): Json[] | undefined {
  const { supported } = isObject(error) && error['code'] === UNSUPPORTED_VERSION ? objectIn(error, 'data') : {};
  return Array.isArray(supported) ? supported : undefined;
}
