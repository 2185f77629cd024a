/**
 * What a host with a handshake expects to be told of by itself: changes of lists, and of the resources that it follows.
 * On the other side that is a subscription, one for all of it, which is renewed and replaced as needed.
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

/** Most resources that one host follows. */
const MAX_FOLLOWED = 256;
/** How often changes are listened to anew, ms: nobody tells us that the other side was started again. */
const RENEW_MS = 900_000;
/** How soon after the other side ended a subscription, ms; the longer the more often it fails. */
const RELISTEN_MS = 2000;
const MAX_RELISTEN_MS = 300_000;

interface Sides {
  clock: Clock;
  toHost(message: JsonObject): void;
  /** Begins a subscription. @returns its id */
  listen(notifications: JsonObject): string;
  /** Ends one. */
  cancel(id: string): void;
}

/** Requests that wait to hear that a subscription stands. */
type Waiting = { hostId: Id; uri: string }[];

export class Changes {
  readonly #o: Sides;
  /** Subscriptions that are not over, and who waits for each. */
  readonly #all = new Map<string, Waiting>();
  readonly #followed = new Set<string>();
  /** The lists whose changes the server tells of; undefined: the host is not ready to hear. */
  #lists: JsonObject | undefined;
  /** The latest subscription. */
  #current: string | undefined;
  #renewal = new AbortController();
  #failures = 0;

  constructor(o: Sides) {
    this.#o = o;
  }

  /** The host is ready to hear of changes. @param capabilities the server's */
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

  /** Nobody is there to hear any more. */
  stop(): void {
    this.#renewal.abort();
    this.#lists = undefined;
    this.#current = undefined;
    this.#followed.clear();
    this.#all.clear();
  }

  /** @throws RpcError no resource, or too many */
  follow(hostId: Id, uri: unknown): void {
    if (typeof uri !== 'string') throw badParams('uri must be a string');
    if (this.#followed.size >= MAX_FOLLOWED) throw badParams(`No more than ${MAX_FOLLOWED} resources can be followed`);
    this.#followed.add(uri);
    this.#listen([{ hostId, uri }]);
  }

  unfollow(uri: unknown): void {
    if (this.#followed.delete(uri as string)) this.#listen();
  }

  /** The former subscription ends when this one stands. */
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
    // Who waited for the former one hears of this one.
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

  /** Takes an answer, if it is to a subscription: it is over. */
  answered(id: Id, error: unknown): boolean {
    if (typeof id !== 'string' || !this.#all.has(id)) return false;
    this.#lost(id, error);
    return true;
  }

  /** Takes a notification, if it is of a subscription. */
  told(id: unknown, message: JsonObject): boolean {
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
      const why = 'The server does not tell of changes of this resource';
      this.#o.toHost(heard.has(uri) ? rpcResult(hostId, {}) : rpcError(hostId, METHOD_NOT_FOUND, why));
    }
    if (id !== this.#current) return;
    for (const other of this.#all.keys()) if (other !== id) this.#end(other);
  }

  /** A subscription has ended, and not by us. */
  #lost(id: string, error?: unknown): void {
    const { code, message } = carriedError(error ?? { message: 'The server does not tell of changes' });
    for (const { hostId, uri } of this.#all.get(id) ?? []) {
      this.#followed.delete(uri);
      this.#o.toHost(rpcError(hostId, code, message));
    }
    this.#all.delete(id);
    if (this.#current !== id) return;
    this.#current = undefined;
    this.#renewal.abort();
    // Of a server that does not know what this is there is nothing to hope for.
    if (isObject(error) && code === METHOD_NOT_FOUND) return;
    this.#later(Math.min(MAX_RELISTEN_MS, RELISTEN_MS * 2 ** this.#failures++));
  }
}
