/**
 * The way back: where the answers to a caller may go, and how they get there, taking turns with answers to other
 * callers.
 *
 * @module
 */
import { fitted, join, MAX_WRITES, tooLarge } from './answers.ts';
import { type Channel, type Incoming, limitOf } from './channel.ts';
import type { Id, JsonObject } from './dispatch.ts';
import { FrameTooLong, RpcError, TechnocoreError } from './errors.ts';
import { encodeLong, isObject, type Json, metaIn } from './frames.ts';
import { budgetOf, decided, type Transport } from './http.ts';
import { REPLY_META } from './line.ts';
import { Outbox, patiently, sayUnrefused } from './outbox.ts';
import { type ReplyLimits, ReplyRooms } from './replies.ts';
import { PATIENCE_MS } from './rooms.ts';
import type { Signer } from './signer.ts';
import { SPILL_META, Spills, spilledFrame } from './spill.ts';
import { NEVER, type Regulars } from './turns.ts';

/** How something is sent to a caller. */
interface How {
  /** Whether the answer is still to come: where only one message is allowed, it is kept for the answer. */
  readonly isNotice?: boolean;
  /** Whether it fails if it is too long and cannot be spilled; otherwise an error is sent in its place. */
  readonly isPart?: boolean;
}

/** The way back to one caller. */
export interface Reply {
  send(text: string, how?: How): Promise<void>;
  /** The mailbox that it leads to; undefined on a channel. */
  readonly room?: string;
  /** Whether an answer that is too long may be put into notes; default true. */
  readonly spills?: Promise<boolean>;
}

/** How long it may take to write the waiting answers, ms, before further requests are dropped. */
const MAX_BACKLOG_MS = 300_000;
/** How many answers may wait even then for a key that was answered before. */
const MAX_OVERRUN = 4;
/** How many answers may wait for a key before refusals to it are dropped. */
const MAX_REFUSALS = 16;
/** The share of the write budget that must be left for writes that can be dropped. */
const SPARE_SHARE = 0.5;

/** The `_meta` of a request. */
const metaOf = (member: unknown): JsonObject => metaIn(isObject(member) ? member['params'] : undefined);

/** The reply mailbox named by a message, in the first of its members that names one. */
export function replyNamed(members: readonly unknown[]): unknown {
  return members.map((member) => metaOf(member)[REPLY_META]).find((room) => room !== undefined);
}

/** Options about where answers may go. */
export interface AnsweringOptions {
  replyPolicy?: ((from: string, room: string) => boolean | Promise<boolean>) | undefined;
  replyLimits?: ReplyLimits | undefined;
}

/** The answers of one server. */
export class Answering {
  /** The maximum length of a message, in characters. */
  readonly limit: number;
  readonly #t: Transport;
  readonly #channel: Channel | undefined;
  readonly #room: string;
  readonly #policy: (from: string, room: string) => boolean | Promise<boolean>;
  /** The keys that have been answered, in the order of their first answer. */
  readonly #regulars: Regulars;
  readonly #replies: ReplyRooms;
  readonly #outbox: Outbox;
  readonly #spilled: Spills;
  /** How many droppable writes are under way. */
  #told = 0;
  /** Aborted when the answers that still wait are abandoned. */
  readonly #given = new AbortController();

  constructor(
    t: Transport,
    signer: Signer,
    served: { room: string; channel?: Channel | undefined },
    regulars: Regulars,
    o: AnsweringOptions,
  ) {
    this.#t = t;
    this.#room = served.room;
    this.#channel = served.channel;
    this.limit = limitOf(served.channel);
    this.#policy = o.replyPolicy ?? (() => true);
    this.#regulars = regulars;
    this.#replies = new ReplyRooms(t, served.room, o.replyLimits, regulars);
    const write = (room: string, text: string): Promise<unknown> =>
      sayUnrefused(t, signer, room, text, this.#given.signal);
    this.#outbox = new Outbox(t, write, regulars);
    this.#spilled = new Spills(t, signer);
  }

  /** Abandons answers that are not written yet. */
  close(cause: TechnocoreError): void {
    this.#given.abort(cause);
    this.#outbox.close(cause);
  }

  /**
   * The way back to the writer of a message; undefined if there is none.
   *
   * @param named the reply mailbox that the message names
   */
  async to(m: Incoming, named: unknown): Promise<Reply | undefined> {
    const channel = this.#channel;
    if (channel) {
      const { signal } = this.#given;
      const put = (text: string): Promise<Json> => patiently(this.#t.clock, () => channel.spill!.put(text), signal);
      return {
        send: async (text, { isPart } = {}) => {
          const fit = await this.#fit(text, put, isPart);
          const { clock } = this.#t;
          await patiently(clock, () => channel.send(fit, { signal, deadline: clock.now() + PATIENCE_MS }), signal);
        },
      };
    }
    const room = await this.#replies.find(m.from, named);
    if (room === undefined || !(await decided(this.#t, PATIENCE_MS, this.#policy(m.from, room)))) return undefined;
    // Not awaited here: the lookup runs while the handler does.
    const admitted = this.#replies.admits(m.from, room);
    admitted.catch(() => {});
    let writes = 0;
    const send: Reply['send'] = async (text, { isNotice, isPart } = {}) => {
      const proof = await admitted;
      if (proof && proof !== 'proved' && (isNotice || writes++ > 0)) {
        throw new TechnocoreError('unproved', 'a reply room that may be somebody else’s gets nothing but one answer');
      }
      // Nothing is spilled for a mailbox that may be somebody else's.
      const put = async (text: string): Promise<Json> => {
        if (proof !== 'proved') throw new TechnocoreError('unproved', 'the key was never seen in its reply room');
        return this.#spilled.put(room, text, (lane, write) => this.#outbox.run(m.from, room, lane, write));
      };
      if (proof) await this.#outbox.send(m.from, room, await this.#fit(text, put, isPart));
      if (proof === 'proved') this.#regulars.note(m.from);
      else if (!proof)
        this.#t.onEvent({ kind: 'refused', room, from: m.from, reason: 'the key was never seen in its reply room' });
    };
    const spills = admitted.then(
      (proof) => proof === 'proved',
      () => false,
    );
    return { send, room, spills };
  }

  /** The text of an answer, or of an error if the answer is too long. */
  async fitted(text: string, request: JsonObject, reply?: Reply): Promise<string> {
    const spills = text.length > this.limit && this.#spills(request) && ((await reply?.spills) ?? true);
    return fitted(text, request['id'] as Id, spills, this.limit);
  }

  /** Whether the caller reads answers from notes, and the channel allows it. */
  #spills(request: JsonObject): boolean {
    return metaOf(request)[SPILL_META] === true && (this.#channel === undefined || this.#channel.spill !== undefined);
  }

  /** The text itself or, if it is too long, a frame that names the notes that hold it. */
  async #fit(text: string, put: (text: string) => Promise<Json>, isPart = false): Promise<string> {
    if (text.length <= this.limit) return text;
    try {
      return await spilledFrame(text, put);
    } catch (cause) {
      this.#t.onEvent({ kind: 'unspilled', room: this.#room, cause });
      if (isPart) throw cause;
      return tooLarge((JSON.parse(text) as JsonObject)['id'] as Id, new FrameTooLong(text.length, this.limit));
    }
  }

  /**
   * Writes the answers to one message. If one cannot be written, there is an event, and the ledger keeps it for a
   * repeat.
   *
   * @param batch the batch being answered; undefined for a single request
   * @returns whether all were written
   */
  async write(reply: Reply, texts: string[], batch?: Json[]): Promise<boolean> {
    const retryAfterMs = (): number => Math.max(1000, Math.ceil(budgetOf(this.#t, 'write').delayMs(MAX_WRITES)));
    let written = true;
    for (const text of join(batch, texts, retryAfterMs)) {
      if (!(await this.#write(reply, text))) written = false;
    }
    return written;
  }

  /** Writes a notification that precedes an answer. */
  notify(reply: Reply, text: string): Promise<boolean> {
    return this.#write(reply, text, { isNotice: true });
  }

  /**
   * Writes one of several results of a request, which is spilled like an answer if it is too long.
   *
   * @returns whether it was written, or the error that it is too long for its way
   */
  async part(reply: Reply, frame: Json, request: JsonObject): Promise<boolean | RpcError> {
    const text = encodeLong(frame);
    const fit = await this.fitted(text, request, reply);
    if (fit !== text) return new RpcError((JSON.parse(fit) as { error: RpcError['rpc'] }).error);
    return this.#write(reply, text, { isNotice: true, isPart: true });
  }

  async #write(reply: Reply, text: string, how?: How): Promise<boolean> {
    try {
      await reply.send(text, how);
      return true;
    } catch (cause) {
      this.#t.onEvent({ kind: 'unanswered', room: this.#room, cause });
      return false;
    }
  }

  /** Whether the budget has room for a droppable write, so that no answer has to wait for it. */
  get hasSpare(): boolean {
    const { left, perMinute = Number.POSITIVE_INFINITY } = budgetOf(this.#t, 'write');
    // Writes under way may not have taken their turn in the budget yet.
    return this.#outbox.isIdle && left - this.#told / perMinute >= SPARE_SHARE;
  }

  /** Writes a droppable notification. */
  async tell(reply: Reply, text: string): Promise<boolean> {
    this.#told++;
    try {
      return await this.notify(reply, text);
    } finally {
      this.#told--;
    }
  }

  /**
   * Whether so much waits that an answer would come too late, so that its request need not run. Even then, a few
   * answers may wait for a key that was answered before.
   */
  isOverrun(from: string): boolean {
    if (this.#outbox.backlogMs <= MAX_BACKLOG_MS) return false;
    return this.#regulars.rank(from) === NEVER || this.#outbox.waitingFor(from) >= MAX_OVERRUN;
  }

  /** Whether so much waits for a key that refusals to it are dropped: they cost as many writes as answers. */
  isCrowded(from: string): boolean {
    return this.#outbox.waitingFor(from) >= MAX_REFUSALS;
  }
}
