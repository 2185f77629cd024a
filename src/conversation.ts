/**
 * Conversations: the life of a request, from placing the read cursor before it is written to its answer, or to the
 * error that says what happened.
 *
 * @module
 */
import { isBatchable, sendBatched } from './batch.ts';
import { type Channel, checkLatency, doubtMailbox, isChannel, limitOf, type Sent } from './channel.ts';
import { type Clock, following, OVER } from './clock.ts';
import { classify, INTERRUPTED, type JsonObject, paramsOf, rpcRequest } from './dispatch.ts';
import {
  CallTimeout,
  checkNumbers,
  checkText,
  TechnocoreError,
  tooManyBytes,
  Unavailable,
  withCallers,
} from './errors.ts';
import { decode, encodeLong, encodeWithin, isObject, type Json, MAX_TEXT } from './frames.ts';
import { budgetOf, healthOf, orAbort, type Transport, transportOf } from './http.ts';
import type { Waiting } from './inbox.ts';
import { addressed, type CallOptions, type Line, lineOf, pin, shortened } from './line.ts';
import { isServedHere, isThere, LOOK_MS, type Presence, presenceOf } from './presence.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';
import { FRAME_MEMBER, MAX_SPILLED, spilledBytes } from './spill.ts';

/** The default timeout of a call, ms. */
const TIMEOUT_MS = 30_000;
/** How many times longer than the timeout a call can become through signs of life. */
const MAX_TIMES = 10;
/**
 * How much of a call's time its write must leave for the answer: this share, but at most that many ms. A server's
 * budget is no larger than ours: if our write has to wait, so will its write.
 */
const ANSWER_SHARE = 0.25;
const ANSWER_MS = 10_000;
/**
 * How often a request is signed again. A server that read the first one late asks for a nonce that is too low by the
 * same amount; it will know better the next time.
 */
const MAX_RAISED = 3;
/** How far ahead of our clock a nonce may be that a server asks for, ms. */
const MAX_AHEAD_MS = 86_400_000;
/** How many unusable spilled answers from one key a call reads. */
const MAX_SPILLED_FRAMES = 4;
/** From how many keys a call reads spilled answers. */
const MAX_SPILLERS = 16;
/** How many answers from one key can wait for a spilled one before them. */
const MAX_BEHIND = 256;

/**
 * What a frame means to a conversation: its end (`done`), a sign of life that extends the timeout once (`alive`) or by
 * that many ms (a number), or nothing (undefined).
 */
export type Taken = 'done' | 'alive' | number | undefined;

/** How the answers to a request are handled. */
export interface Handling {
  /** Called with responses to the request, and with every notification from the peer. If it throws, the call ends. */
  take(frame: JsonObject, kind: 'response' | 'notification'): Taken;
  /** How long a call may become through signs of life, ms; default ten times the timeout. */
  maxMs?: number | undefined;
  /** Whether the other side is known to read requests that are too long for a message. */
  spills?: boolean;
  /** Called with the request's id just before it is written. */
  begin?: (id: string) => void;
  /** Called when it was written, or may have been. */
  written?: () => void;
}

/**
 * Sends a request, and passes what the other side sends in response to `take` until that returns `done`.
 *
 * @internal
 * @throws what `call` throws
 */
export async function converse(
  to: string | Channel,
  method: string,
  params: Json | undefined,
  signer: Signer,
  o: CallOptions,
  handling: Handling,
): Promise<void> {
  const t = transportOf(o);
  o.signal?.throwIfAborted();
  checkSigner(signer);
  checkNumbers(o, ['timeoutMs', 'retry']);
  checkLatency(o);
  if (o.timeoutMs === 0)
    throw new TechnocoreError('bad_option', 'the option timeoutMs must be a number of milliseconds above 0');
  if (o.id !== undefined) checkText(o.id, 'the option id');
  checkText(method, 'the method');
  const asked = { to, method, params: paramsOf(params) };
  try {
    await new Conversation(t, asked, signer, o, handling).run();
  } catch (cause) {
    throw withCallers(cause);
  }
}

/** A request and its addressee. */
interface Asked {
  readonly to: string | Channel;
  readonly method: string;
  readonly params: Json | undefined;
}

/**
 * The minimum length of the message for a request, with the shortest id that we could give it. Checked before anything
 * is sent.
 *
 * @throws a {@link FrameTooLong} if even that cannot be sent
 */
function shortestOf({ to, method, params }: Asked, signer: Signer, o: CallOptions, spills: boolean): number {
  const reads = !isChannel(to) || to.spill !== undefined;
  const id = o.id || `${signer.fingerprint}.........0.0`;
  const request = rpcRequest(id, method, addressed(params, isChannel(to) ? undefined : o.replyTo, reads));
  if (!spills || !reads) return encodeWithin(request, limitOf(to)).length;
  const bytes = spilledBytes(encodeLong(request));
  if (bytes > MAX_SPILLED) throw tooManyBytes(bytes, MAX_SPILLED);
  return MAX_TEXT;
}

/** The timeout of a call. Measured by sleeping, so that setting the clock neither ends nor prolongs a call. */
class Patience {
  readonly begun: number;
  /** When it ends, as clock time, ms. */
  deadline: number;
  readonly #clock: Clock;
  readonly #timeoutMs: number;
  readonly #maxMs: number;
  readonly #stop: AbortSignal;
  readonly #soon: (by: number) => void;
  readonly #over: () => void;
  #extension: AbortController | undefined;

  /**
   * @param soon called a little before the end, with the clock time of the end unless it is extended
   * @param over called at the end
   */
  constructor(
    clock: Clock,
    { timeoutMs, maxMs }: { timeoutMs: number; maxMs: number },
    stop: AbortSignal,
    soon: (by: number) => void,
    over: () => void,
  ) {
    this.#clock = clock;
    this.#timeoutMs = timeoutMs;
    this.#maxMs = maxMs;
    this.#stop = stop;
    this.#soon = soon;
    this.#over = over;
    this.begun = clock.now();
    this.deadline = this.begun + timeoutMs;
    void this.#endAfter(timeoutMs, stop, () => !this.#extension);
  }

  /** Moves the end to `ms` from now, but after the first time never beyond `maxMs` from the start. */
  extend(ms: number): void {
    if (!this.#extension) {
      // The clock may have been set meanwhile.
      const passed = Math.min(Math.max(this.#clock.now() - this.begun, 0), this.#timeoutMs);
      void this.#endAfter(Math.max(this.#maxMs - passed, ms), this.#stop);
    }
    this.#extension?.abort(OVER);
    this.#extension = new AbortController();
    void this.#endAfter(ms, this.#extension.signal);
    this.deadline = this.#clock.now() + ms;
  }

  /** Cancels the timers of an extension. */
  stop(): void {
    this.#extension?.abort(OVER);
  }

  async #endAfter(ms: number, signal: AbortSignal, counts: () => boolean = () => true): Promise<void> {
    const clock = this.#clock;
    try {
      const lookMs = Math.min(LOOK_MS, ms / 4);
      await clock.sleep(ms - lookMs, signal);
      if (!counts()) return;
      this.#soon(clock.now() + lookMs);
      await clock.sleep(lookMs, signal);
    } catch {
      return;
    }
    if (counts()) this.#over();
  }
}

class Conversation implements Waiting {
  readonly #t: Transport;
  readonly #asked: Asked;
  readonly #signer: Signer;
  readonly #o: CallOptions;
  readonly #handling: Handling;
  readonly #timeoutMs: number;
  /** The minimum length of the request, in characters. */
  readonly #chars: number;
  readonly #retries: number;
  /** Aborts with the error that ends the conversation. */
  readonly #stop: AbortController;
  readonly #forget: () => void;
  readonly #patience: Patience;
  /** Resolves once the answer has been taken. */
  readonly #finished: Promise<void>;
  #finish!: () => void;
  /** Known once the identity that names the mailbox has been read. */
  #line!: Line;
  #room: string;
  #id: string;
  #text = '';
  #isShared = false;
  #attempt = 0;
  /** Ends the pause before the next attempt. */
  #pause: AbortController | undefined;
  /** The answer to the current attempt may be lost. */
  #isLost = false;
  /** The nonces above which the request was signed again, as the server asked. */
  readonly #raised: number[] = [];
  #sent: Sent | undefined;
  /** True until the service has answered the write of an attempt. */
  #isWriting = true;
  /** When the request was last written, ms by the service's clock, if known. */
  #writtenAt: number | undefined;
  /** The last loss reported while an attempt was being written, with the `before` of {@link lost}. */
  #lostEarly: [cause: unknown, before: number | undefined] | undefined;
  /** Thrown instead of a timeout if no answer comes: a write that may have landed, or an answer that cannot be read. */
  #doubt: unknown;
  /** The cause of a timeout if another key answered. */
  #impostor: TechnocoreError | undefined;
  /** The last presence note of the mailbox's server. */
  #seen: Presence | undefined;
  /** How many spilled answers were read in vain, or are being read, by sender. */
  readonly #spilled = new Map<string, number>();
  /**
   * The answers that arrived while an earlier spilled one is being read, by sender: parts of a stream have an order.
   */
  readonly #behind = new Map<string, [frame: JsonObject, kind: 'response' | 'spilled', at: number | undefined][]>();

  constructor(t: Transport, asked: Asked, signer: Signer, o: CallOptions, handling: Handling) {
    this.#t = t;
    this.#asked = asked;
    this.#signer = signer;
    this.#o = o;
    this.#handling = handling;
    this.#timeoutMs = o.timeoutMs ?? TIMEOUT_MS;
    this.#retries = o.retry ?? 0;
    this.#room = isChannel(asked.to) ? asked.to.room : asked.to;
    this.#id = o.id ?? '';
    this.#chars = shortestOf(asked, signer, o, handling.spills ?? false);
    const { stop, forget } = following(o.signal);
    this.#stop = stop;
    this.#forget = forget;
    const { signal } = stop;
    this.#finished = new Promise<void>((resolve, reject) => {
      this.#finish = resolve;
      signal.addEventListener('abort', () => reject(signal.reason), { once: true });
    });
    this.#finished.catch(() => {});
    const maxMs = handling.maxMs ?? this.#timeoutMs * MAX_TIMES;
    this.#patience = new Patience(
      t.clock,
      { timeoutMs: this.#timeoutMs, maxMs },
      signal,
      (by) => void this.#lookFor(by),
      () => this.#stop.abort(this.#doubt ?? this.#timeout()),
    );
  }

  async run(): Promise<void> {
    const { to, method, params } = this.#asked;
    const [t, o, { signal }] = [this.#t, this.#o, this.#stop];
    const ends = [this.#forget];
    try {
      const line = await orAbort(lineOf(t, to, params, this.#signer, { ...o, signal }), signal);
      const { channel, inbox, replyTo } = line;
      this.#line = line;
      this.#room = channel.room;
      this.#isShared = o.batch === true && replyTo !== undefined && isBatchable(method, params);
      // The answer is assumed to be as long as the request.
      ends.push(await inbox.enter(channel, this.#isShared ? this.#chars / MAX_TEXT : 1, signal));
      const id = this.#id || inbox.mint(this.#signer, line.epoch());
      this.#id = id;
      const request = rpcRequest(id, method, addressed(params, replyTo, channel.spill !== undefined));
      this.#text = this.#handling.spills
        ? await orAbort(shortened(channel, request, replyTo), signal)
        : encodeWithin(request, limitOf(channel));
      inbox.wait(id, this);
      ends.push(() => inbox.forget(id));
      this.#handling.begin?.(id);
      // If the server is in this process, the answer uses our own budget: announce it now.
      if (!this.#isShared && replyTo !== undefined && isServedHere(t, this.#room)) {
        ends.push(budgetOf(t, 'write').announce(`to ${replyTo}`));
      }
      await this.#ask();
    } catch (cause) {
      const reason = signal.aborted ? signal.reason : cause;
      const isTimeout = TechnocoreError.is(reason) && reason.code === 'call_timeout';
      if (isTimeout && !isChannel(to)) doubtMailbox(t, o.replyTo!, this.#signer);
      throw reason;
    } finally {
      this.#stop.abort(OVER);
      this.#patience.stop();
      for (const end of ends.reverse()) end();
    }
  }

  /** Writes the request, and repeats it up to `retry` times, until it is answered. */
  async #ask(): Promise<void> {
    const { clock, onEvent } = this.#t;
    const [room, id] = [this.#room, this.#id];
    // The service takes only five copies of a text per minute.
    const interval = Math.max(this.#timeoutMs / (this.#retries + 1), this.#retries > 4 ? 15_000 : 0);
    for (; this.#attempt <= this.#retries; this.#attempt++) {
      this.#isWriting = true;
      try {
        const sending = this.#send();
        sending.catch(() => {});
        // The answer may come before the response to the write, which may never come.
        const arrived = await Promise.race([sending, this.#finished]);
        if (!arrived) return;
        this.#sent = arrived;
        this.#writtenAt = arrived.at;
        this.#doubt = undefined;
      } catch (cause) {
        // If it may have landed, an answer will tell, so wait for it.
        if (TechnocoreError.is(cause) && cause.code === 'may_have_landed') this.#doubt = cause;
        else if (this.#attempt === 0 || this.#stop.signal.aborted) throw cause;
        else onEvent({ kind: 'retry', room, id, cause, afterMs: interval });
      }
      this.#isWriting = false;
      if (this.#attempt === 0) this.#handling.written?.();
      const early = this.#lostEarly;
      this.#lostEarly = undefined;
      if (early) this.lost(...early);
      if (this.#attempt === this.#retries) break;
      const pause = new AbortController();
      this.#pause = pause;
      if (this.#isLost) pause.abort(OVER);
      this.#isLost = false;
      const slept = clock.sleep(interval, pause.signal).catch(() => {});
      const over = await Promise.race([slept, this.#finished.then(() => true)]).finally(() => pause.abort(OVER));
      if (over === true) return;
      onEvent({ kind: 'retry', room, id, afterMs: 0 });
    }
    await this.#finished;
  }

  #send(): Promise<Sent> {
    const { channel, replyTo } = this.#line;
    const now = this.#t.clock.now();
    const end = Math.min(this.#patience.deadline, now + this.#timeoutMs);
    // If little time is left, the answer gets half of it.
    const by = end - Math.min(this.#timeoutMs * ANSWER_SHARE, ANSWER_MS, (end - now) / 2);
    const how = { signal: this.#stop.signal, deadline: by };
    if (!this.#isShared) return channel.send(this.#text, how);
    return sendBatched(this.#t, `${this.#signer.did} ${this.#room} ${replyTo}`, channel, this.#text, how);
  }

  /**
   * Signs and sends the request again: our clock lags, and the server cannot know what was signed before it started.
   */
  async #sendAnew(nonce: string): Promise<void> {
    const { clock, onEvent } = this.#t;
    const [room, id] = [this.#room, this.#id];
    this.#raised.push(Number(nonce));
    onEvent({ kind: 'retry', room, id, afterMs: 0, nonce });
    try {
      await this.#signer.raiseNonce(room, nonce, clock);
      this.#sent = await this.#send();
    } catch (cause) {
      // An answer to a later attempt may still come.
      if (this.#attempt === 0) this.#stop.abort(cause);
      else onEvent({ kind: 'retry', room, id, cause, afterMs: 0 });
    }
  }

  // --- answers and notifications

  take(frame: JsonObject, kind: 'response' | 'notification' | 'spilled', from: string, at?: number): void {
    const [room, line] = [this.#room, this.#line];
    if (from === line.channel.self) return;
    // Another call may have pinned the peer meanwhile.
    line.peer ??= line.pins.get(room);
    if (line.peer !== undefined && from !== line.peer) {
      if (kind === 'notification') return;
      this.#t.onEvent({ kind: 'refused', id: this.#id, room, from, reason: 'an answer from another key' });
      this.#impostor = new TechnocoreError(
        'other_key',
        `${from} answered, but only an answer from ${line.peer} counts (option peer)`,
      );
      return;
    }
    if (kind === 'notification') return void this.#accept(frame, kind, from);
    const behind = this.#behind.get(from);
    if (behind && behind.length < MAX_BEHIND) behind.push([frame, kind, at]);
    else if (behind) this.lost(new Unavailable('answers came faster than they were read'));
    else if (kind === 'spilled') void this.#unspill(frame, from);
    else this.#accept(frame, kind, from, at);
  }

  /** @returns whether the frame means anything to the call */
  #accept(frame: JsonObject, kind: 'response' | 'notification', from: string, at?: number): boolean {
    const nonce = kind === 'response' ? nonceAsked(frame, this.#t.clock.now(), at) : undefined;
    if (nonce !== undefined && this.#raised.length < MAX_RAISED && Number(nonce) > (this.#raised.at(-1) ?? 0)) {
      void this.#sendAnew(nonce);
      return true;
    }
    try {
      const taken = this.#handling.take(frame, kind);
      if (taken === undefined) return false;
      // A sign of life does not pin the peer: anybody who read the request can send one.
      if (taken !== 'alive') pin(this.#line, from);
      if (taken === 'done') this.#finish();
      else this.#patience.extend(taken === 'alive' ? this.#timeoutMs : taken);
    } catch (cause) {
      this.#stop.abort(cause);
    }
    return true;
  }

  /**
   * Messages were lost, possibly including the answer. The next attempt gets the answer that the server stored; without
   * another attempt, it is an error. A loss that is reported during a write counts once the time of the write is known.
   */
  lost(cause: unknown, before?: number | undefined): void {
    if (this.#isWriting) {
      this.#lostEarly = [cause, before];
      return;
    }
    // A message written before the last attempt cannot be its answer.
    if (before !== undefined && this.#writtenAt !== undefined && before < this.#writtenAt) return;
    this.#isLost = true;
    if (this.#attempt < this.#retries) this.#pause?.abort(OVER);
    else this.#stop.abort(cause);
  }

  fail(cause: unknown): void {
    this.#stop.abort(cause);
  }

  async #unspill(frame: JsonObject, from: string): Promise<void> {
    const { channel, peer } = this.#line;
    const [room, id, { signal }] = [this.#room, this.#id, this.#stop];
    const count = this.#spilled.get(from) ?? 0;
    // Counted by key, so that others cannot use up the right key's share.
    if (!channel.spill || count >= MAX_SPILLED_FRAMES || (count === 0 && this.#spilled.size >= MAX_SPILLERS)) return;
    this.#spilled.set(from, count + 1);
    this.#behind.set(from, []);
    try {
      const text = await channel.spill.get(frame[FRAME_MEMBER]!, signal);
      const answer = decode(text);
      if (classify(answer) !== 'response' || (answer as JsonObject)['id'] !== id) {
        throw new TechnocoreError('spill_lost', 'the notes do not contain the answer to this request');
      }
      this.#t.onEvent({ kind: 'spilled', id, room, from, chars: text.length });
      if (this.#accept(answer as JsonObject, 'response', from)) this.#spilled.set(from, count);
    } catch (cause) {
      if (signal.aborted) return;
      this.#t.onEvent({ kind: 'refused', id, room, from, reason: 'a spilled answer that cannot be read', cause });
      if (from === peer) this.lost(cause);
      // While the peer is unknown, the right answer may still come from another key.
      else this.#doubt ??= cause;
    } finally {
      const behind = this.#behind.get(from)!;
      this.#behind.delete(from);
      for (const [next, kind, at] of behind) this.take(next, kind, from, at);
    }
  }

  // --- timeouts

  /** Reads the server's presence note, for a timeout that is due soon. */
  async #lookFor(by: number): Promise<void> {
    const line: Line | undefined = this.#line;
    if (line?.replyTo !== undefined) this.#seen = await presenceOf(this.#t, this.#room, line.peer, by);
  }

  #timeout(): CallTimeout {
    const now = this.#t.clock.now();
    const failure = healthOf(this.#t).failure ?? this.#impostor;
    const [reason, hint] = failure ? (['no-answer', failure.message] as const) : this.#why(now);
    const said = this.#sent ? hint : `the request was not sent yet; ${hint}`;
    const afterMs = Math.max(now - this.#patience.begun, this.#timeoutMs);
    return new CallTimeout(this.#room, this.#id, afterMs, reason, said, failure);
  }

  #why(now: number): [CallTimeout['reason'], string] {
    const seen = this.#seen;
    const line: Line | undefined = this.#line;
    if (seen) {
      const at = new Date(seen.at).toISOString();
      if (seen.validMs === 0) return ['no-server', `its server, ${seen.did}, stopped at ${at}; ${AGAIN}`];
      if (!isThere(seen, now)) {
        return ['no-server', `its server, ${seen.did}, was last seen at ${at}; ${AGAIN}`];
      }
      return ['no-answer', `its server, ${seen.did}, was seen at ${at}; it is busy, or has stopped since; ${PATIENCE}`];
    }
    if (line?.pins.has(this.#room)) {
      return ['no-answer', `it answered earlier, but whether a server runs there now is unknown; ${PATIENCE}`];
    }
    if (this.#sent?.alone) {
      return [
        'no-room',
        `nobody else had ever written to that room; check its name, and whether its server was started; for one that starts later, ${AGAIN}`,
      ];
    }
    return ['no-answer', `whether a server runs there is unknown; ${PATIENCE}`];
  }
}

/** Advice to callers of a server that has not started yet, or is slow. */
const AGAIN = 'the option retry repeats the request';
const PATIENCE = `the option timeoutMs allows more time, and ${AGAIN}`;

/**
 * The nonce above which a server asks us to sign the request again, because the request may be old.
 *
 * @param at when the refusal was written, ms. The server started before that, so a later nonce is an attempt to make us
 * sign ahead
 */
function nonceAsked({ error }: JsonObject, now: number, at: number = now): string | undefined {
  const { code, data } = isObject(error) ? error : {};
  const nonce = code === INTERRUPTED && isObject(data) ? data['nonce'] : undefined;
  return typeof nonce === 'string' && /^\d{13}$/.test(nonce) && Number(nonce) <= Math.min(at, now + MAX_AHEAD_MS)
    ? nonce
    : undefined;
}
