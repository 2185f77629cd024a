/**
 * Subscriptions of many callers to one server that notifies of everything: each gets what it asked for, under the id of
 * its own request, and not too often.
 *
 * @module
 */
import { objectIn } from './bridge-handshake.ts';
import { badParams, type Id, type JsonObject, rpcNotification, rpcResult } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { SUBSCRIPTION_ID } from './mcp.ts';
import { Budget } from './notices.ts';

/** How many resources one subscription can follow. */
const MAX_FOLLOWED = 64;
/**
 * How many notifications may wait. Beyond that, a change in a part of a resource is reported as one of the followed
 * resource, and the number of those is limited.
 */
const MAX_DUE = 256;

/** What can be listened to, with the notification and the capability that it requires. */
const KINDS = [
  ['toolsListChanged', 'notifications/tools/list_changed', 'tools'],
  ['promptsListChanged', 'notifications/prompts/list_changed', 'prompts'],
  ['resourcesListChanged', 'notifications/resources/list_changed', 'resources'],
] as const;

interface Listener {
  readonly wanted: JsonObject;
  /** The notifications that it gets. */
  methods: Set<string>;
  /** The resources that it follows. */
  uris: Set<string>;
}

interface Sides {
  clock: Clock;
  send(message: JsonObject): void;
  /** Called when the server should start, or can stop, notifying of a resource. */
  follow(uri: string, isFollowed: boolean): void;
}

/** The subscriptions, by id. How many there may be, and for how long, is decided elsewhere. */
export class Listeners {
  readonly #o: Sides;
  readonly #all = new Map<Id, Listener>();
  readonly #budget: Budget;
  /** Notifications that are not yet sent, with their subscription. Equal ones are sent once. */
  readonly #due = new Map<string, { id: Id; notice: JsonObject }>();
  #isSending = false;

  constructor(o: Sides) {
    this.#o = o;
    this.#budget = new Budget(o.clock);
  }

  /**
   * Adds a subscription, and acknowledges it with what the server can notify of.
   *
   * @throws an {@link RpcError} if the filter is malformed
   */
  add(id: Id, wanted: Json | undefined, capabilities: JsonObject): void {
    if (!isObject(wanted)) throw badParams('notifications must say what to listen to');
    const listener: Listener = { wanted: wanted as JsonObject, methods: new Set(), uris: new Set() };
    this.#all.set(id, listener);
    const notifications = this.#grant(listener, capabilities);
    this.#o.send(rpcNotification('notifications/subscriptions/acknowledged', { _meta: tagOf(id), notifications }));
  }

  /** Reduces a subscription to what the server can notify of. */
  #grant(listener: Listener, capabilities: JsonObject): JsonObject {
    const { wanted } = listener;
    const kinds = KINDS.filter(
      ([name, , of]) => wanted[name] === true && objectIn(capabilities, of)['listChanged'] === true,
    );
    const asked = objectIn(capabilities, 'resources')['subscribe'] === true ? wanted['resourceSubscriptions'] : [];
    const named = Array.isArray(asked) ? asked.filter((uri) => typeof uri === 'string') : [];
    const uris = [...new Set(named)].slice(0, MAX_FOLLOWED);
    listener.methods = new Set(kinds.map(([, method]) => method));
    for (const uri of uris) if (!this.#isFollowed(uri)) this.#o.follow(uri, true);
    listener.uris = new Set(uris);
    return {
      ...Object.fromEntries(kinds.map(([name]) => [name, true])),
      ...(uris.length > 0 && { resourceSubscriptions: uris }),
    };
  }

  #isFollowed(uri: string): boolean {
    return [...this.#all.values()].some(({ uris }) => uris.has(uri));
  }

  /** Called when the server has restarted: it must follow the resources again, and may have other capabilities. */
  restarted(capabilities: JsonObject): void {
    for (const listener of this.#all.values()) listener.uris.clear();
    for (const [id, listener] of this.#all) {
      this.#grant(listener, capabilities);
      for (const method of listener.methods) this.#notice(id, method, {});
    }
  }

  /** Takes a notification of the server. */
  changed(method: string, { _meta, ...params }: JsonObject): void {
    const { uri } = params;
    // The resource in the notification may be a part of the followed one.
    const isOf = (one: string): boolean =>
      uri === one || (typeof uri === 'string' && uri.startsWith(one.endsWith('/') ? one : `${one}/`));
    for (const [id, { methods, uris }] of this.#all) {
      const followed = method === 'notifications/resources/updated' ? [...uris].find(isOf) : undefined;
      const isTooMuch = this.#due.size >= MAX_DUE;
      if (followed !== undefined) this.#notice(id, method, isTooMuch ? { uri: followed } : params);
      else if (methods.has(method)) this.#notice(id, method, isTooMuch ? {} : params);
    }
  }

  #notice(id: Id, method: string, params: JsonObject): void {
    const notice = rpcNotification(method, { ...params, _meta: tagOf(id) });
    this.#due.set(JSON.stringify([id, method, params['uri'] ?? '']), { id, notice });
    if (!this.#isSending) void this.#sendDue();
  }

  async #sendDue(): Promise<void> {
    this.#isSending = true;
    for (const [name, { id, notice }] of this.#due) {
      for (let wait = this.#budget.take(); wait > 0; wait = this.#budget.take()) await this.#o.clock.sleep(wait);
      this.#due.delete(name);
      if (this.#all.has(id)) this.#o.send(notice);
    }
    this.#isSending = false;
  }

  /** Removes a subscription: its caller cancelled it, or its time is up. */
  remove(id: Id): void {
    const { uris = [] } = this.#all.get(id) ?? {};
    this.#all.delete(id);
    for (const [name, due] of this.#due) if (due.id === id) this.#due.delete(name);
    for (const uri of uris) if (!this.#isFollowed(uri)) this.#o.follow(uri, false);
  }

  /** Ends all of them, each with its answer. */
  close(): void {
    for (const id of this.#all.keys()) this.#o.send(rpcResult(id, { resultType: 'complete', _meta: tagOf(id) }));
    this.#all.clear();
  }
}

const tagOf = (id: Id): JsonObject => ({ [SUBSCRIPTION_ID]: id });
