/**
 * Finding out what a server behind a bridge speaks: it is asked what it is as 2026-07-28 has it, and greeted as the older
 * revisions have it when that says nothing to it. A server may be slow to start, so late answers count too.
 *
 * @module
 */
import { carriedError, HANDSHAKES, OURS, objectIn } from './bridge-handshake.ts';
import { type JsonObject, rpcNotification, rpcRequest } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { MCP_VERSION, PROTOCOL_VERSION, SELF, SERVER_INFO, UNSUPPORTED_VERSION } from './mcp.ts';
import { CLIENT_CAPABILITIES } from './toolcall.ts';

/** How long a server may think about a question of a revision that it may not know, ms. */
export const PROBE_MS = 5000;
/** How long it may take for its handshake, ms; some fetch first what they need. */
const GREET_MS = 120_000;

/** What a server is. */
export interface Found {
  /** Whether it needs no handshake. */
  readonly isModern: boolean;
  readonly version: string;
  /** What it said of itself in its handshake; of one without, its `serverInfo`. */
  readonly server: JsonObject;
}

interface Sides {
  clock: Clock;
  /** The capabilities that it is told its callers have. */
  capabilities: JsonObject;
  toChild(message: JsonObject): void;
  found(what: Found): void;
  /** It does not answer, or refuses. It may still be found later. */
  problem(why: string): void;
}

/** The beginning of a conversation with a server, through all its processes. */
export class Greeting {
  readonly #o: Sides;
  #state: 'off' | 'probing' | 'greeting' | 'done' = 'off';
  /** Whether it died of being probed. */
  #isProbeDeadly = false;
  #probes = 0;
  /** The id of the latest handshake. */
  #hello = '';
  #timer = new AbortController();

  constructor(o: Sides) {
    this.#o = o;
  }

  /** A fresh process is there. */
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

  /** The process is gone. */
  stop(): void {
    if (this.#state === 'probing') this.#isProbeDeadly = true;
    this.#state = 'off';
    this.#timer.abort();
  }

  get #probe(): string {
    return `${OURS}probe-${this.#probes}`;
  }

  /** Takes an answer, if it is one to what was asked here. */
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
      // Late, and known by now.
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
    // There are servers that refuse a revision instead of naming theirs.
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
