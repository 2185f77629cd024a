/**
 * Subscriptions to changes in an MCP server's lists: one open request, which is renewed before the server ends it, and
 * reopened when it is lost. Rules: MCP 2026-07-28, `subscriptions/listen`.
 *
 * @module
 */
import type { Channel } from './channel.ts';
import { following } from './clock.ts';
import type { JsonObject } from './dispatch.ts';
import { checkFunctions, checkNumbers, signalOf, TechnocoreError, Unavailable } from './errors.ts';
import { compact, isObject, type Json } from './frames.ts';
import { retrying } from './http.ts';
import { SUBSCRIPTION_ID } from './mcp.ts';
import { listsOf, nameOf } from './mcp-client.ts';
import { badResponse, exchange, type McpOptions, ownMeta, type Peer, peerOf, tagOf } from './mcp-peer.ts';
import type { Signer } from './signer.ts';

/** How many notifications can wait for a slow reader. */
const MAX_NOTICES = 256;
/** When a subscription is renewed, ms: servers of this library end one after an hour. */
const RENEW_MS = 3_000_000;
/** How long reopening a subscription is attempted, ms. */
const REOPEN_MS = 300_000;
/** A subscription that ends sooner than this is reopened after a pause, which doubles up to this, ms. */
const BRIEF_MS = 60_000;

/** What {@link mcpListen} listens to. */
export interface McpFilter {
  /** Changes of the list of tools. */
  toolsListChanged?: boolean | undefined;
  /** Changes of the list of prompts. */
  promptsListChanged?: boolean | undefined;
  /** Changes of the list of resources. */
  resourcesListChanged?: boolean | undefined;
  /** Updates of these resources, by URI. */
  resourceSubscriptions?: string[] | undefined;
}

/** Options of {@link mcpListen}. `timeoutMs` is how long it may take to open the subscription. */
export interface McpListenOptions extends McpOptions {
  /** Called whenever the subscription is opened or renewed, with what the server will send notifications about. */
  onReady?: ((honoured: McpFilter) => void) | undefined;
  /**
   * When the subscription is renewed, in milliseconds; default 3,000,000, since servers may end one after an hour.
   */
  renewMs?: number | undefined;
}

/**
 * Yields an MCP server's notifications about changes to its lists (`subscriptions/listen`), each as the whole frame.
 * The subscription is renewed before the server ends it, and reopened when it is lost. After a loss, every notification
 * that may have been missed is yielded as if it had arrived. Equal notifications that wait together are yielded once.
 *
 * It never ends by itself: leave the loop with `break`, or abort the signal.
 *
 * @param to the server's mailbox, DID or {@link Channel}
 * @param notifications what to listen to
 * @param signer the caller's key
 * @throws what {@link call} throws, for example if the server no longer answers
 * @throws a {@link TechnocoreError} `not_offered` if the server offers none of these notifications
 * @example
 * ```ts
 * import { mcpListen, mcpListTools, Signer } from 'technocore-rpc';
 *
 * const [to, signer, o] = ['mb-p-adds-90c2', Signer.generate(), { replyTo: 'mb-p-ada-77c2' }];
 * for await (const _ of mcpListen(to, { toolsListChanged: true }, signer, o)) {
 *   console.log((await mcpListTools(to, signer, o)).map(({ name }) => name));
 * }
 * ```
 */
export async function* mcpListen(
  to: string | Channel,
  notifications: McpFilter,
  signer: Signer,
  o: McpListenOptions = {},
): AsyncGenerator<Json> {
  signalOf(o);
  o.signal?.throwIfAborted();
  checkFunctions(o, ['onReady']);
  checkNumbers(o, ['renewMs']);
  const { stop, forget } = following(o.signal);
  const peer = peerOf(to, signer, { ...o, signal: stop.signal, retry: 0 });
  const lists = listsOf(peer);
  const waiting = new Map<string, JsonObject>();
  let failure: { cause: unknown } | undefined;
  let wake = (): void => {};
  const arrive = (frame: JsonObject): void => {
    const { method, params } = frame;
    if (method === LIST_CHANGED.toolsListChanged) lists.drop(nameOf(to));
    const key = JSON.stringify([method, isObject(params) ? { ...params, _meta: 0 } : 0]);
    if (waiting.size >= MAX_NOTICES && !waiting.has(key)) {
      peer.t.onEvent({ kind: 'skipped', method, reason: 'too many notices wait' });
      return;
    }
    waiting.set(key, frame);
    wake();
  };
  const keeping = keepOpen(peer, notifications, o, arrive).catch((cause) => {
    failure = { cause };
    wake();
  });
  try {
    for (;;) {
      for (const [key, frame] of waiting) {
        waiting.delete(key);
        yield frame;
      }
      if (failure) throw failure.cause;
      await new Promise<void>((resolve) => {
        wake = resolve;
        if (failure || waiting.size > 0) resolve();
      });
    }
  } finally {
    forget();
    stop.abort('listening ended');
    await keeping;
  }
}

const LIST_CHANGED = {
  toolsListChanged: 'notifications/tools/list_changed',
  promptsListChanged: 'notifications/prompts/list_changed',
  resourcesListChanged: 'notifications/resources/list_changed',
} as const;

/** The notifications that may have been missed. */
function assumed(filter: McpFilter): JsonObject[] {
  const lists = Object.entries(LIST_CHANGED).filter(([kind]) => filter[kind as keyof typeof LIST_CHANGED] === true);
  return [
    ...lists.map(([, method]): JsonObject => ({ jsonrpc: '2.0', method })),
    ...(filter.resourceSubscriptions ?? []).map(
      (uri): JsonObject => ({ jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri } }),
    ),
  ];
}

/** A subscription that the server has acknowledged. */
interface Subscription {
  /** Resolves when it is over, with a `cause` unless the server ended it. */
  readonly ended: Promise<{ cause?: unknown }>;
  close(): void;
}

/** Keeps a subscription open, one after the other, until that fails. */
async function keepOpen(
  peer: Peer,
  filter: McpFilter,
  { onReady, renewMs = RENEW_MS }: McpListenOptions,
  arrive: (frame: JsonObject) => void,
): Promise<never> {
  const { t } = peer;
  const { signal } = peer.o;
  const open = (): Promise<Subscription> => subscribe(peer, filter, renewMs + 2 * REOPEN_MS, arrive, onReady);
  const openAgain = (): Promise<Subscription> =>
    retrying(
      t,
      t.clock.now() + REOPEN_MS,
      () =>
        open().catch((cause) => {
          if (!TechnocoreError.is(cause) || cause.code !== 'ring_gap') throw cause;
          throw new Unavailable('the acknowledgement may be lost', cause);
        }),
      signal,
    );
  let current = await open();
  for (let pauseMs = 0; ; ) {
    const since = t.clock.now();
    const timer = new AbortController();
    const due = t.clock.sleep(renewMs, timer.signal).then(
      () => undefined,
      () => ({}),
    );
    let over = await Promise.race([current.ended, due]);
    timer.abort();
    if (over === undefined) {
      const next = await openAgain();
      // The old one may have been lost meanwhile; it is no longer needed now that the next one is open.
      over = await Promise.race([current.ended, Promise.resolve(undefined)]);
      current.close();
      current = next;
      if (over === undefined) continue;
    } else {
      const { cause } = over as { cause?: unknown };
      // What the server says against a subscription that it had acknowledged, it says again if it still holds.
      const mayReturn = TechnocoreError.is(cause) && ['ring_gap', 'rpc'].includes(cause.code);
      if (cause !== undefined && !mayReturn) throw cause;
      pauseMs = t.clock.now() - since < BRIEF_MS ? Math.min(2 * pauseMs || 1000, BRIEF_MS) : 0;
      t.onEvent({ kind: 'retry', method: LISTEN, cause, afterMs: pauseMs });
      if (pauseMs > 0) await t.clock.sleep(pauseMs, signal);
      current = await openAgain();
    }
    for (const frame of assumed(filter)) arrive(frame);
  }
}

const LISTEN = 'subscriptions/listen';

/** Opens a subscription. Resolves when the server acknowledges it. */
function subscribe(
  peer: Peer,
  filter: McpFilter,
  holdMs: number,
  arrive: (frame: JsonObject) => void,
  onReady: McpListenOptions['onReady'],
): Promise<Subscription> {
  const { stop, forget } = following(peer.o.signal);
  const inner: Peer = { ...peer, o: { ...peer.o, signal: stop.signal } };
  peer.id = undefined;
  return new Promise((resolve, reject) => {
    const subscription: Subscription = {
      close: () => stop.abort('renewed'),
      ended: exchange(
        inner,
        LISTEN,
        { notifications: compact({ ...filter }), _meta: ownMeta(peer) },
        (frame, id) => {
          const { method, params } = frame;
          if (method === 'notifications/cancelled') {
            return isObject(params) && params['requestId'] === id ? 'done' : undefined;
          }
          if (tagOf(frame, SUBSCRIPTION_ID) !== id) return undefined;
          if (method === 'notifications/subscriptions/acknowledged') {
            const honoured = honouredOf(params);
            if (assumed(honoured).length === 0 && (assumed(filter).length > 0 || !isHonoured(params))) {
              throw new TechnocoreError(
                'not_offered',
                'the server offers none of the notifications that were asked for',
              );
            }
            onReady?.(honoured);
            resolve(subscription);
          } else {
            arrive(frame);
          }
          return holdMs;
        },
        holdMs,
      )
        .then(
          () => ({}),
          (cause: unknown) => ({ cause }),
        )
        .finally(forget),
    };
    // Unless it was acknowledged before.
    void subscription.ended.then(({ cause }: { cause?: unknown }) =>
      reject(cause ?? badResponse('the end of a subscription that it had not acknowledged')),
    );
  });
}

function acknowledged(params: unknown): Record<string, unknown> {
  return isObject(params) && isObject(params['notifications']) ? params['notifications'] : {};
}

/** Whether a server will send any notifications, including kinds that are unknown here. */
function isHonoured(params: unknown): boolean {
  return Object.values(acknowledged(params)).some((kind) => (Array.isArray(kind) ? kind.length > 0 : Boolean(kind)));
}

/** What the server will send notifications about, according to its acknowledgement. */
function honouredOf(params: unknown): McpFilter {
  const kinds = acknowledged(params);
  const { resourceSubscriptions: uris } = kinds;
  return {
    ...Object.fromEntries(Object.keys(LIST_CHANGED).flatMap((kind) => (kinds[kind] === true ? [[kind, true]] : []))),
    ...(Array.isArray(uris) && { resourceSubscriptions: uris.filter((uri) => typeof uri === 'string') }),
  };
}
