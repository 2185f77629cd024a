/**
 * The notifications that a host with a handshake gets without asking: changes of lists, and of the resources that it
 * follows. Without a handshake they require a subscription. There is one for all of them, renewed and replaced as
 * needed.
 *
 * @module
 */
import { carriedError, objectIn } from './bridge-handshake.ts';
import {
  badParams,
  type Id,
  type JsonObject,
  METHOD_NOT_FOUND,
  rpcError,
  rpcNotification,
  rpcResult,
} from './dispatch.ts';
import { isObject } from './frames.ts';
import type { Clock } from './http.ts';

/** How many resources one host can follow. */
const MAX_FOLLOWED = 256;
/** How often the subscription is renewed, ms; otherwise a restart of the other side would go unnoticed. */
const RENEW_MS = 900_000;
/** How soon it is opened again after the other side ended it, ms. Doubles with each failure. */
const RELISTEN_MS = 2000;
const MAX_RELISTEN_MS = 300_000;

interface Sides {
  clock: Clock;
  toHost(message: JsonObject): void;
  /** Opens a subscription. @returns its id */
  listen(notifications: JsonObject): string;
  /** Ends one. */
  cancel(id: string): void;
}

/** Requests of the host that wait until a subscription is open. */
type Waiting = { hostId: Id; uri: string }[];

/** The changes that one host is notified of, and the subscription behind them. */
export class Changes {
  readonly #o: Sides;
  /** The open subscriptions by id, each with the requests that wait for it. */
  readonly #all = new Map<string, Waiting>();
  readonly #followed = new Set<string>();
  /** The lists that the server notifies of; undefined until the host is ready for notifications. */
  #lists: JsonObject | undefined;
  /** The newest subscription. */
  #current: string | undefined;
  #renewal = new AbortController();
  #failures = 0;

  constructor(o: Sides) {
    this.#o = o;
  }

  /** Called when the host is ready for notifications. @param capabilities those of the server */
  begin(capabilities: JsonObject): void {
    if (this.#lists) return;
    const has = (of: string): boolean => objectIn(capabilities, of)['listChanged'] === true;
    this.#lists = {
      ...(has('tools') && { toolsListChanged: true }),
      ...(has('prompts') && { promptsListChanged: true }),
      ...(has('resources') && { resourcesListChanged: true }),
    };
    this.#listen();
  }

  /** Called when the host is gone. */
  stop(): void {
    this.#renewal.abort();
    this.#lists = undefined;
    this.#current = undefined;
    this.#followed.clear();
    this.#all.clear();
  }

  /** @throws an {@link RpcError} if `uri` is not a string, or too many resources are followed */
  follow(hostId: Id, uri: unknown): void {
    if (typeof uri !== 'string') throw badParams('uri must be a string');
    if (this.#followed.size >= MAX_FOLLOWED) throw badParams(`No more than ${MAX_FOLLOWED} resources can be followed`);
    this.#followed.add(uri);
    this.#listen([{ hostId, uri }]);
  }

  unfollow(uri: unknown): void {
    if (this.#followed.delete(uri as string)) this.#listen();
  }

  /** Opens a subscription. The previous one ends once this one is open. */
  #listen(waiting: Waiting = []): void {
    this.#renewal.abort();
    const uris = [...this.#followed];
    const notifications = { ...this.#lists, ...(uris.length > 0 && { resourceSubscriptions: uris }) };
    const before = this.#current;
    if (Object.keys(notifications).length === 0) {
      this.#current = undefined;
      if (before !== undefined) this.#end(before);
      return;
    }
    // Requests that waited for the previous one wait for this one.
    const left = before === undefined ? [] : (this.#all.get(before)?.splice(0) ?? []);
    const id = this.#o.listen(notifications);
    this.#current = id;
    this.#all.set(id, [...left, ...waiting]);
    this.#later(RENEW_MS);
  }

  #later(ms: number): void {
    this.#renewal.abort();
    this.#renewal = new AbortController();
    this.#o.clock.sleep(ms, this.#renewal.signal).then(
      () => this.#listen(),
      () => {},
    );
  }

  #end(id: string): void {
    this.#all.delete(id);
    this.#o.cancel(id);
  }

  /** Takes an answer. @returns whether it ends a subscription */
  answered(id: Id, error: unknown): boolean {
    if (typeof id !== 'string' || !this.#all.has(id)) return false;
    this.#lost(id, error);
    return true;
  }

  /** Takes a notification. @returns whether it belongs to a subscription */
  notified(id: unknown, message: JsonObject): boolean {
    const waiting = typeof id === 'string' ? this.#all.get(id) : undefined;
    if (typeof id !== 'string' || !waiting) return false;
    const { method } = message as { method: string };
    const { _meta, ...params } = objectIn(message, 'params');
    if (method === 'notifications/subscriptions/acknowledged') this.#stands(id, waiting, params);
    else if (method === 'notifications/cancelled') this.#lost(id);
    else this.#o.toHost(rpcNotification(method, Object.keys(params).length > 0 ? params : undefined));
    return true;
  }

  #stands(id: string, waiting: Waiting, params: JsonObject): void {
    this.#failures = 0;
    const { resourceSubscriptions } = objectIn(params, 'notifications');
    const heard = new Set(Array.isArray(resourceSubscriptions) ? resourceSubscriptions : []);
    for (const { hostId, uri } of waiting.splice(0)) {
      if (!heard.has(uri)) this.#followed.delete(uri);
      const why = 'The server does not notify of changes to this resource';
      this.#o.toHost(heard.has(uri) ? rpcResult(hostId, {}) : rpcError(hostId, METHOD_NOT_FOUND, why));
    }
    if (id !== this.#current) return;
    for (const other of this.#all.keys()) if (other !== id) this.#end(other);
  }

  /** Called when a subscription has ended, and not by us. */
  #lost(id: string, error?: unknown): void {
    const { code, message } = carriedError(error ?? { message: 'The server does not notify of changes' });
    for (const { hostId, uri } of this.#all.get(id) ?? []) {
      this.#followed.delete(uri);
      this.#o.toHost(rpcError(hostId, code, message));
    }
    this.#all.delete(id);
    if (this.#current !== id) return;
    this.#current = undefined;
    this.#renewal.abort();
    // A server that does not know subscriptions never will.
    if (isObject(error) && code === METHOD_NOT_FOUND) return;
    this.#later(Math.min(MAX_RELISTEN_MS, RELISTEN_MS * 2 ** this.#failures++));
  }
}
