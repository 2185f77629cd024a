/**
 * Running requests: from the ledger's verdict, through the wait for a worker, to the text of the answer.
 *
 * @module
 */
import type { Answering, Reply } from './answering.ts';
import { before, interrupted, printable } from './answers.ts';
import type { Incoming } from './channel.ts';
import {
  BUSY,
  DEADLINE,
  type DispatchContext,
  type Dispatcher,
  type Handler,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  type JsonObject,
  rpcError,
} from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { drop } from './feed.ts';
import { decode, encodeLong, isObject, type Json } from './frames.ts';
import type { Event, Options, Transport } from './http.ts';
import type { Ledger, Verdict } from './ledger.ts';
import { remember } from './maps.ts';
import type { Share } from './share.ts';
import type { Regulars } from './turns.ts';
import type { Underway } from './underway.ts';
import { Workers } from './workers.ts';

/** The default deadline of a handler, ms. */
export const DEADLINE_MS = 60_000;
/** How many requests that ran again are remembered. */
const MAX_AGAIN = 1024;
/** How many notifications of one request can wait to be written. */
const MAX_EMITTED = 64;
// One object for all calls: an error with its own stack for each would be too expensive.
const CALL_OVER = new TechnocoreError('deadline', 'the call is over');

/** Options about how requests are run: see `ServeOptions`. */
export interface RunOptions {
  methods?: Map<string, Handler> | undefined;
  concurrency?: number | undefined;
  queue?: number | undefined;
  deadlineMs?: number | undefined;
  onEvent?: ((event: Event) => void) | undefined;
}

/** The parts of a server that its runs use. */
interface Parts {
  readonly t: Transport;
  readonly room: string;
  readonly dispatcher: Dispatcher;
  readonly ledger: Ledger;
  readonly regulars: Regulars;
  readonly answering: Answering;
  readonly underway: Underway;
  readonly share: Share | undefined;
  readonly o: RunOptions;
}

/** The requests of one server that are running or waiting to run. */
export class Runs {
  readonly #t: Transport;
  readonly #room: string;
  readonly #service: Options;
  readonly #dispatcher: Dispatcher;
  readonly #ledger: Ledger;
  readonly #regulars: Regulars;
  readonly #answering: Answering;
  readonly #underway: Underway;
  readonly #share: Share | undefined;
  readonly #o: RunOptions;
  readonly #workers: Workers;
  /** Requests that wait for a worker, by key and id, so that they can be cancelled. */
  readonly #queued = new Map<string, AbortController>();
  /** Interrupted requests that are running again, or did, by key and id. */
  readonly #again = new Map<string, true>();
  /** The controllers of running handlers. */
  readonly #running = new Set<AbortController>();

  constructor({ t, room, dispatcher, ledger, regulars, answering, underway, share, o }: Parts) {
    this.#t = t;
    this.#room = room;
    const { base, fetch, clock } = t;
    this.#service = { base, fetch, clock };
    this.#dispatcher = dispatcher;
    this.#ledger = ledger;
    this.#regulars = regulars;
    this.#answering = answering;
    this.#underway = underway;
    this.#share = share;
    this.#o = o;
    const concurrency = o.concurrency ?? 16;
    // One key cannot take all workers; a new key, not even all of those that new keys can take.
    this.#workers = new Workers(concurrency, o.queue ?? 1024, concurrency - 2 * (concurrency >> 2), regulars);
  }

  /** Aborts what is running or waiting to run. */
  stop(reason: unknown): void {
    for (const one of [...this.#queued.values(), ...this.#running]) one.abort(reason);
  }

  /**
   * Records the outcome of a request in the ledger. If that fails, there is an event, and the caller is still answered:
   * an answer that cannot be repeated is better than none.
   */
  async record(change: (ledger: Ledger) => void | Promise<void>): Promise<void> {
    try {
      await change(this.#ledger);
    } catch (cause) {
      this.#t.onEvent({ kind: 'unkept', room: this.#room, cause });
    }
  }

  /** The caller. Without it, a dispatched frame would count as a call from inside this process. */
  caller({ from, room }: Incoming): DispatchContext {
    return { from, room, service: this.#service };
  }

  /** Runs the handler of a notification, within the limits of a request. */
  async notified(m: Incoming, frame: JsonObject): Promise<void> {
    const { clock } = this.#t;
    const context = { ...this.caller(m), onError: this.#report };
    // A layer's notifications cancel requests, so they must not wait for a worker as the handlers of plain methods do.
    if (!this.#o.methods?.has(frame['method'] as string)) {
      const cancelled = this.#dispatcher.cancels(frame);
      if (cancelled !== undefined) this.#queued.get(`${m.from} ${JSON.stringify(cancelled)}`)?.abort();
      await this.#dispatcher.dispatch(frame, context);
      return;
    }
    const release = await this.#workers.enter(m.from);
    if (!release) return drop(this.#t, 'refused', m, { reason: 'too many wait' });
    if (this.#share && !this.#share.holds(m.from)) {
      release();
      return drop(this.#t, 'refused', m, { reason: 'the share of the mailbox is another server’s by now' });
    }
    const stop = new AbortController();
    this.#running.add(stop);
    try {
      const late = clock.sleep(this.#o.deadlineMs ?? DEADLINE_MS, stop.signal).catch(() => {});
      await Promise.race([this.#dispatcher.dispatch(frame, { ...context, signal: stop.signal }), late]);
    } finally {
      stop.abort(CALL_OVER);
      this.#running.delete(stop);
      release();
    }
  }

  /** The requests that run nothing, such as those for an unknown method. */
  passing(requests: JsonObject[]): Set<JsonObject> {
    return new Set(requests.filter((request) => !this.#dispatcher.acts(request)));
  }

  /** The answer to such a request. */
  async inPassing(m: Incoming, request: JsonObject): Promise<string> {
    const answer = await this.#dispatcher.dispatch(request, this.caller(m));
    return this.#textOf(answer!, request);
  }

  /** The text of the answer to one request; undefined to send none. */
  async outcome(
    m: Incoming,
    request: JsonObject,
    verdict: Verdict,
    fresh: boolean,
    reply: Reply,
  ): Promise<string | undefined> {
    const id = request['id'] as Id;
    switch (verdict.kind) {
      case 'new':
        return this.#run(m, request, reply);
      case 'answered':
        if (this.#share && verdict.answer === interrupted(id)) return this.#interrupted(m, request, fresh, reply);
        // Sent again to a caller that asked again (the message is fresh), but not if we reread a message after a
        // restart.
        if (fresh || !verdict.sent) return verdict.answer;
        drop(this.#t, 'skipped', m, { reason: 'old' });
        return undefined;
      case 'interrupted':
        return this.#interrupted(m, request, fresh, reply);
      case 'before':
        return this.#refusal(m, before(id, verdict.nonce));
      case 'differs':
        return encodeLong(rpcError(id, INVALID_REQUEST, 'Invalid Request: you used this id for another request'));
      case 'full':
        return this.#refusal(m, encodeLong(rpcError(id, BUSY, 'Busy', { retryAfterMs: verdict.retryAfterMs })));
      default:
        drop(this.#t, 'skipped', m, { reason: verdict.kind });
        return undefined;
    }
  }

  /**
   * For a request that another process began: its answer if the reply room shows one, else another run or error 1001.
   */
  async #interrupted(m: Incoming, request: JsonObject, fresh: boolean, reply: Reply): Promise<string | undefined> {
    const id = request['id'] as Id;
    const key = JSON.stringify(id);
    const found = reply.room === undefined ? undefined : await this.#answerIn(reply.room, key);
    if (found === undefined && this.#dispatcher.idempotent(request)) return this.#runAgain(m, request, reply);
    const text = found ?? interrupted(id);
    await this.record((ledger) => ledger.answer(m.from, key, text));
    // An answer that is in the reply room already is repeated only for a caller that asked again.
    return found === undefined || fresh ? text : undefined;
  }

  /** Runs an interrupted request, unless a copy of it is running or did: then that answer is for both. */
  async #runAgain(m: Incoming, request: JsonObject, reply: Reply): Promise<string | undefined> {
    const name = `${m.from} ${JSON.stringify(request['id'])}`;
    if (this.#again.has(name)) return undefined;
    remember(this.#again, name, true, MAX_AGAIN);
    const text = await this.#run(m, request, reply);
    // Kept after an answer, since the ledger may have judged copies before it. Without one, it may run once more.
    if (text === undefined) this.#again.delete(name);
    return text;
  }

  /**
   * The answer that another server of this mailbox wrote to a room; undefined if there is none, or it cannot be read.
   */
  async #answerIn(room: string, key: string): Promise<string | undefined> {
    try {
      return await this.#share?.answerIn(room, key);
    } catch (cause) {
      this.#t.onEvent({ kind: 'skipped', room, reason: 'the answers of other servers cannot be read', cause });
      return undefined;
    }
  }

  /** The refusal, unless too much waits for this key: each costs as many writes as an answer. */
  #refusal(m: Incoming, text: string): string | undefined {
    if (!this.#answering.isCrowded(m.from)) return text;
    drop(this.#t, 'refused', m, { reason: 'too much waits for this key' });
    return undefined;
  }

  /** Reports what a handler threw to the operator. The caller is told nothing about it. */
  readonly #report = (error: unknown, method: string): void => {
    if (!this.#o.onEvent)
      console.error(`technocore-rpc: the handler of ${JSON.stringify(method)} failed: ${printable(error)}`);
    this.#t.onEvent({ kind: 'handler-error', method, error });
  };

  /** Runs a handler within its limits, and stores its answer in the ledger. */
  async #run(m: Incoming, request: JsonObject, reply: Reply): Promise<string | undefined> {
    const id = request['id'] as Id;
    const key = JSON.stringify(id);
    const isOpen = this.#dispatcher.staysOpen(request);
    const release = isOpen ? () => {} : (this.#workers.tryEnter(m.from) ?? (await this.#queue(m.from, key)));
    if (release === 'cancelled') {
      await this.record((ledger) => ledger.answer(m.from, key, interrupted(id)));
      return undefined;
    }
    if (release === 'busy') {
      await this.record((ledger) => ledger.forget(m.from, key));
      return this.#refusal(m, encodeLong(rpcError(id, BUSY, 'Busy', { retryAfterMs: 1000 })));
    }
    if (this.#share && !this.#share.holds(m.from)) {
      release();
      // The server that has the share by now must not take the request for a finished one.
      await this.record((ledger) => ledger.answer(m.from, key, interrupted(id)));
      this.#share.again(m, decode(m.text)!);
      return undefined;
    }
    const stop = new AbortController();
    const { signal } = stop;
    this.#running.add(stop);
    const deadlineMs = this.#o.deadlineMs ?? DEADLINE_MS;
    const late = isOpen
      ? new Promise<never>(() => {})
      : this.#t.clock.sleep(deadlineMs, signal).then(
          () => rpcError(id, DEADLINE, `Deadline exceeded: not done within ${deadlineMs} ms`),
          () => undefined,
        );
    try {
      const dispatched = this.#dispatcher.dispatch(request, {
        ...this.caller(m),
        ...this.#sinks(m, request, reply, signal),
        rank: this.#regulars.rank(m.from),
        // A subscription runs until the dispatcher is closed.
        ...(!isOpen && { signal }),
        limit: this.#answering.limit,
        onError: this.#report,
      });
      const answer = await Promise.race([dispatched, late]);
      // How far a cancelled request got is unknown. A subscription that ended may start again.
      const text = answer === undefined ? interrupted(id) : await this.#textOf(answer, request, reply);
      if (answer === undefined && isOpen) await this.record((ledger) => ledger.forget(m.from, key));
      else await this.record((ledger) => ledger.answer(m.from, key, text));
      return answer === undefined ? undefined : text;
    } finally {
      // After the deadline nobody uses the handler's result: its signal tells it so.
      stop.abort(CALL_OVER);
      this.#running.delete(stop);
      release();
    }
  }

  /** Waits for a worker. @returns a function that releases it; `busy` if too many requests wait */
  async #queue(from: string, key: string): Promise<(() => void) | 'busy' | 'cancelled'> {
    const name = `${from} ${key}`;
    const cancel = new AbortController();
    this.#queued.set(name, cancel);
    const release = await this.#workers.enter(from, cancel.signal);
    this.#queued.delete(name);
    if (!cancel.signal.aborted) return release ?? 'busy';
    release?.();
    return 'cancelled';
  }

  /**
   * Where a handler sends what precedes its answer.
   *
   * @param over aborted once the call has ended
   */
  #sinks(
    m: Incoming,
    request: JsonObject,
    reply: Reply,
    over: AbortSignal,
  ): Required<Pick<DispatchContext, 'emit' | 'tell'>> {
    let emitted = 0;
    const send = (frame: Json, write: (text: string) => Promise<boolean>): false | Promise<boolean> => {
      if (over.aborted) return false;
      const text = encodeLong(frame);
      // However many notifications a handler sends at once, memory and the write budget must last.
      const isMuch = emitted >= MAX_EMITTED;
      if (isMuch || text.length > this.#answering.limit) {
        const reason = isMuch ? 'a notification, while many wait' : 'a notification too long for a message';
        this.#t.onEvent({ kind: 'skipped', room: m.room, reason, chars: text.length });
        return false;
      }
      emitted++;
      const sent = write(text).finally(() => {
        emitted--;
      });
      this.#underway.track(sent);
      return sent;
    };
    // One at a time, so that those that wait can still be dropped.
    let last = Promise.resolve(true);
    return {
      emit: (frame) => {
        if (!isObject(frame) || frame['id'] === undefined)
          return send(frame, (text) => this.#answering.notify(reply, text));
        // A part of the answer. The handler waits for it, so there is one at a time.
        if (over.aborted) return false;
        const sent = this.#answering.part(reply, frame, request);
        this.#underway.track(sent);
        return sent;
      },
      tell: (frame) => send(frame, (text) => (last = last.then(() => this.#tell(m, reply, text, over)))),
    };
  }

  /**
   * Writes a notification, or drops it if anybody else would have to wait for it.
   *
   * @param over aborted once the call has ended, so that its answer is next
   */
  async #tell(m: Incoming, reply: Reply, text: string, over: AbortSignal): Promise<boolean> {
    if (!over.aborted && this.#answering.hasSpare) return this.#answering.tell(reply, text);
    const why = over.aborted ? 'its call has ended' : 'less than half of the write budget is left, or answers wait';
    drop(this.#t, 'skipped', m, { reason: `a notification: ${why}` });
    return false;
  }

  /** The text of an answer, or of an error if the answer cannot be encoded or is too long. */
  async #textOf(answer: Json, request: JsonObject, reply?: Reply): Promise<string> {
    const id = request['id'] as Id;
    let text: string;
    try {
      text = encodeLong(answer);
    } catch (cause) {
      this.#report(cause, String(request['method']));
      return encodeLong(rpcError(id, INTERNAL_ERROR, 'Internal error'));
    }
    return this.#answering.fitted(text, request, reply);
  }
}
