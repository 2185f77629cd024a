/**
 * The way back: where the answers to a caller may go, and how they get there, in turns with those to others.
 *
 * @module
 */
import { fitted, join, MAX_WRITES, tooLarge } from './answers.ts';
import { type Channel, type Incoming, limitOf } from './channel.ts';
import type { Id, JsonObject } from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { isObject, type Json, metaIn } from './frames.ts';
import { budgetOf, type Transport } from './http.ts';
import { REPLY_META } from './line.ts';
import { Outbox, sayUnrefused } from './outbox.ts';
import { type ReplyLimits, ReplyRooms } from './replies.ts';
import type { Signer } from './signer.ts';
import { SPILL_META, Spills, spilledFrame } from './spill.ts';
import { NEVER, type Regulars } from './turns.ts';

/** The way back to one caller. */
export interface Reply {
  send(text: string): Promise<void>;
  /** The room it leads to; undefined on a channel. */
  readonly room?: string;
  /** Whether an answer that is too large may be put into notes for who reads there; default: yes. */
  readonly spills?: Promise<boolean>;
}

/** How long what waits may take, ms, before requests of newcomers are left, and of others all but a few of each. */
const MAX_BACKLOG_MS = 300_000;
const MAX_OVERRUN = 4;
/** Answers of one key that may wait before its refusals are left out. */
const MAX_REFUSALS = 16;
/** Share of the write budget that must be left for what may be left out. */
const SPARE_SHARE = 0.5;

/** What a request says of itself beside its params. */
const metaOf = (member: unknown): JsonObject => metaIn(isObject(member) ? member['params'] : undefined);

/** Where members of a message want their answers, as the first of them says that says anything. */
export function replyNamed(members: readonly unknown[]): unknown {
  return members.map((member) => metaOf(member)[REPLY_META]).find((room) => room !== undefined);
}

/** Who may say where answers go. */
export interface AnsweringOptions {
  replyPolicy?: ((from: string, room: string) => boolean) | undefined;
  replyLimits?: ReplyLimits | undefined;
}

/** The answers of one server. */
export class Answering {
  /** Longest text of one message. */
  readonly limit: number;
  readonly #t: Transport;
  readonly #channel: Channel | undefined;
  readonly #room: string;
  readonly #policy: (from: string, room: string) => boolean;
  /** Who was answered before whom. */
  readonly #regulars: Regulars;
  readonly #replies: ReplyRooms;
  readonly #outbox: Outbox;
  readonly #spilled: Spills;
  /** Writes under way that might have been left out. */
  #told = 0;
  /** Aborts when what still waits is given up. */
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

  /** Gives up what is not written yet. */
  close(cause: TechnocoreError): void {
    this.#given.abort(cause);
    this.#outbox.close(cause);
  }

  /**
   * The way back to who wrote a message; undefined when there is none.
   *
   * @param named the room that the message names
   */
  async to(m: Incoming, named: unknown): Promise<Reply | undefined> {
    const channel = this.#channel;
    if (channel) {
      const put = (text: string): Promise<Json> => channel.spill!.put(text);
      return {
        send: async (text) => void (await channel.send(await this.#fit(text, put), { signal: this.#given.signal })),
      };
    }
    const room = await this.#replies.find(m.from, named);
    if (room === undefined || !this.#policy(m.from, room)) return undefined;
    // Looked up while the handler runs.
    const admitted = this.#replies.admits(m.from, room);
    admitted.catch(() => {});
    let writes = 0;
    const send = async (text: string): Promise<void> => {
      const proof = await admitted;
      if (proof && proof !== 'proved' && writes++ > 0) {
        throw new TechnocoreError('unproved', 'a reply room that may be somebody else’s gets one message a request');
      }
      // A room that may be somebody else's gets no more than a line.
      const put = async (text: string): Promise<Json> => {
        if (proof !== 'proved') throw new TechnocoreError('unproved', 'the key was never seen in its reply room');
        return this.#spilled.put(room, text, (lane, write) => this.#outbox.run(m.from, room, lane, write));
      };
      if (proof) await this.#outbox.send(m.from, room, await this.#fit(text, put));
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

  /** The text of an answer as it goes back. One that is too large for where it goes is an error that says so. */
  async fitted(text: string, request: JsonObject, reply?: Reply): Promise<string> {
    const spills = text.length > this.limit && this.#spills(request) && ((await reply?.spills) ?? true);
    return fitted(text, request['id'] as Id, spills, this.limit);
  }

  /** Whether the caller of a request reads answers that are too large for a message, and we can put them somewhere. */
  #spills(request: JsonObject): boolean {
    return metaOf(request)[SPILL_META] === true && (this.#channel === undefined || this.#channel.spill !== undefined);
  }

  /** The text itself, or what stands for it after it was put where a larger one can be. */
  async #fit(text: string, put: (text: string) => Promise<Json>): Promise<string> {
    if (text.length <= this.limit) return text;
    try {
      return await spilledFrame(text, put);
    } catch (cause) {
      this.#t.onEvent({ kind: 'unspilled', room: this.#room, cause });
      return tooLarge((JSON.parse(text) as JsonObject)['id'] as Id, text.length, this.limit);
    }
  }

  /**
   * Writes the answers to one message; what cannot be written is told, and kept for a repeat of the request.
   *
   * @param batch the batch that is answered; else the texts are those to a single request
   * @returns whether all was written
   */
  async write(reply: Reply, texts: string[], batch?: Json[]): Promise<boolean> {
    const retryAfterMs = (): number => Math.max(1000, Math.ceil(budgetOf(this.#t, 'write').delayMs(MAX_WRITES)));
    let written = true;
    for (const text of join(batch, texts, retryAfterMs)) {
      try {
        await reply.send(text);
      } catch (cause) {
        written = false;
        this.#t.onEvent({ kind: 'unanswered', room: this.#room, cause });
      }
    }
    return written;
  }

  /** Whether there is enough for a write that may be left out: neither answers nor those that come next wait for it. */
  get hasSpare(): boolean {
    const { left, perMinute = Number.POSITIVE_INFINITY } = budgetOf(this.#t, 'write');
    // Those that have not asked the budget yet count as well.
    return this.#outbox.isIdle && left - this.#told / perMinute >= SPARE_SHARE;
  }

  /** Writes what might have been left out, as {@link write}. */
  async tell(reply: Reply, text: string): Promise<boolean> {
    this.#told++;
    try {
      return await this.write(reply, [text]);
    } finally {
      this.#told--;
    }
  }

  /** Whether an answer would come too late for anybody, so that nothing need run for it: those from before have their turns. */
  isOverrun(from: string): boolean {
    if (this.#outbox.backlogMs <= MAX_BACKLOG_MS) return false;
    return this.#regulars.rank(from) === NEVER || this.#outbox.waitingFor(from) >= MAX_OVERRUN;
  }

  /** Whether so much waits for a key that a refusal, which costs a write like any answer, is left out. */
  isCrowded(from: string): boolean {
    return this.#outbox.waitingFor(from) >= MAX_REFUSALS;
  }
}
