/**
 * Calling: one inbox for each reply room, shared by all calls that wait there, and the life of a call from the cursor that
 * is read before the request is written to an answer, or to the error that says what happened.
 *
 * @module
 */
import { isBatchable, sendBatched } from './batch.ts';
import { toBase64url } from './bytes.ts';
import {
  type Channel,
  checkMailbox,
  doubtMailbox,
  type Incoming,
  isChannel,
  type Listener,
  limitOf,
  mailboxPair,
  type Sent,
} from './channel.ts';
import { following, OVER } from './clock.ts';
import { classify, INTERRUPTED, resultOf, rpcNotification, rpcRequest } from './dispatch.ts';
import { BadKey, BadName, CallTimeout, checkText, FrameTooLong, type RingGap, TechnocoreError } from './errors.ts';
import { feedOf } from './feed.ts';
import { decode, encodeLong, encodeWithin, isDeep, isObject, type Json, MAX_TEXT } from './frames.ts';
import { budgetOf, healthOf, type Options, orAbort, sharedOf, type Transport, transportOf } from './http.ts';
import { type Identity, resolveIdentity } from './identity.ts';
import { fingerprint, isDid } from './names.ts';
import { isServedHere, isThere, LOOK_MS, type Presence, presenceOf } from './presence.ts';
import { checkSigner, saySigned } from './rooms.ts';
import type { Signer } from './signer.ts';
import { FRAME_MEMBER, MAX_SPILLED, SPILL_META, spilledBytes, spilledFrame } from './spill.ts';

/** Member of `params._meta` that names the room for the answer. */
export const REPLY_META = 'chat.technocore/reply';

/** Options of {@link call}. */
export interface CallOptions extends Options {
  /** Our mailbox, where the answer goes. Needed unless the call goes over a channel. One for each client is enough. */
  replyTo?: string;
  /** How long to wait for the answer, ms; default 30,000. */
  timeoutMs?: number;
  /**
   * The request's id; default: one that no other call has, and no other key may use. With one of your own a repeated call
   * gets the kept answer; but whoever sees it can have another question answered under it.
   */
  id?: string;
  /** The DID that must answer; default: the one called, else the first key that ever answered from that mailbox. */
  peer?: string;
  /** How often the same request is sent again within `timeoutMs`, when no answer comes; default 0. Needs a server that knows repeats. */
  retry?: number;
  /**
   * Lets calls that wait to be written to one mailbox share a message, and so a write of the budget: those of one moment go
   * at once and together, as do those that come meanwhile, and are answered together. Default false. Calls of MCP never share.
   */
  batch?: boolean;
  /** `frugal`: no more reads than one that is parked. Default `fast`: a few more, within the read budget, for half the latency. */
  latency?: 'fast' | 'frugal';
}

type Member = { [key: string]: Json };

/**
 * How much of a call's time its write must leave for the answer: a share, and at most so many ms. A server has no larger
 * budget than we have, so that where our write has to wait, its own will.
 */
const ANSWER_SHARE = 0.25;
const ANSWER_MS = 10_000;
/** How far ahead of our clock a nonce may be that a server asks for, ms: a day, as for those that the service asks for. */
const MAX_AHEAD_MS = 86_400_000;
/** Most spilled answers that one call looks at, of one key, and most keys. */
const MAX_SPILLED_FRAMES = 4;
const MAX_SPILLERS = 16;

/** What a conversation makes of a frame that reached it: the end, a sign of life (good for so many ms), or nothing of its own. */
export type Taken = 'done' | 'alive' | number | undefined;

/** @internal What {@link converse} needs beyond the request. */
export interface Conversation {
  /** Gets responses with the request's id, and every notification of the peer's; what it throws ends the call. */
  take(frame: Member, kind: 'response' | 'notification'): Taken;
  /** How long signs of life can extend the timeout, ms; default ten times as long. */
  maxMs?: number | undefined;
  /** Whether the other side is known to read requests that are too large for a message. */
  spills?: boolean;
  /** Told the request's id just before it is written. */
  begin?: (id: string) => void;
  /** Told that it was written, or may have been. */
  written?: () => void;
}

// --- the inbox ---------------------------------------------------------------------------------------------------

/** One conversation as the inbox knows it. */
interface Waiting {
  /** A response with its id, or any notification. */
  take(frame: Member, kind: 'response' | 'notification' | 'spilled', from: string, at?: number): void;
  lost(gap: RingGap): void;
  fail(cause: unknown): void;
}

/** All conversations whose answers come through one channel. */
class Inbox {
  /** In the ids that we mint: unlike that of any other client, also of an earlier run. */
  readonly tag: string;
  readonly #t: Transport;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;
  #users = 0;
  /** Messages in which their answers are likely to come. */
  #due = 0;
  #session: Session | undefined;

  constructor(t: Transport) {
    this.#t = t;
    this.tag = toBase64url(t.random(6));
  }

  mint(key: Signer, epoch: number): string {
    return `${key.fingerprint}.${this.tag}.${epoch}.${++this.#count}`;
  }

  /**
   * Resolves once no later answer can be missed; the first user starts to listen, the last to leave ends it.
   *
   * @param share of a message that the answer is likely to take, at most 1
   */
  async enter(channel: Channel, share: number, signal: AbortSignal): Promise<() => void> {
    this.#users++;
    this.#due += share;
    let inside = true;
    const leave = (): void => {
      if (!inside) return;
      inside = false;
      this.#due -= share;
      if (--this.#users > 0) return;
      this.#session?.stop();
      this.#session = undefined;
    };
    try {
      await orAbort((this.#session ??= this.#listen(channel)).ready, signal);
      return leave;
    } catch (cause) {
      leave();
      throw cause;
    }
  }

  /** Begins to listen; what an earlier listening, not over yet, still hears does not count. */
  #listen(channel: Channel): Session {
    const stop = new AbortController();
    let session: Session | undefined;
    const isCurrent = (): boolean => this.#session === session;
    const listener: Listener = {
      message: (m) => isCurrent() && this.#message(m),
      gap: (gap) => {
        if (isCurrent()) for (const waiting of [...this.#waiting.values()]) waiting.lost(gap);
      },
      end: (cause) => {
        if (!isCurrent()) return;
        this.#session = undefined;
        for (const waiting of [...this.#waiting.values()]) waiting.fail(cause);
      },
      expects: () => Math.min(Math.ceil(this.#due), this.#users),
    };
    const ready = channel.listen(listener, stop.signal);
    session = {
      ready,
      stop() {
        stop.abort(OVER);
        ready.then(
          (end) => end(),
          () => {},
        );
      },
    };
    ready.catch(() => {
      if (isCurrent()) this.#session = undefined;
    });
    return session;
  }

  wait(id: string, waiting: Waiting): void {
    if (this.#waiting.has(id)) throw new TechnocoreError('duplicate_id', 'another call with this id still waits');
    this.#waiting.set(id, waiting);
  }

  forget(id: string): void {
    this.#waiting.delete(id);
  }

  #message(m: Incoming): void {
    const frame = m.from === '' ? undefined : decode(m.text);
    if (!frame) return;
    for (const member of Array.isArray(frame) ? frame : [frame]) {
      const kind = isObject(member) && member[FRAME_MEMBER] !== undefined ? 'spilled' : classify(member);
      if (kind === 'response' || kind === 'spilled') {
        const { id } = member as Member;
        const waiting = typeof id === 'string' ? this.#waiting.get(id) : undefined;
        if (waiting) waiting.take(member as Member, kind, m.from, m.at);
        else if (typeof id === 'string' && id.split('.')[1] === this.tag) {
          this.#t.onEvent({ kind: 'late', id, from: m.from, answer: member });
        }
      } else if (kind === 'notification') {
        for (const waiting of [...this.#waiting.values()]) waiting.take(member as Member, kind, m.from);
      }
    }
  }
}

/** One time of listening. */
interface Session {
  ready: Promise<() => void>;
  stop(): void;
}

/**
 * Whether a key may ask under an id: those that {@link call} mints name the key that does. Otherwise anybody could copy an
 * id out of a mailbox and have a question of his own answered to whoever waits for it.
 *
 * @internal
 */
export function mayUseId(did: string, id: unknown): boolean {
  const minted = typeof id === 'string' ? /^([0-9a-f]{16})\.[\w-]{8}\.\d+\.\d+$/.exec(id) : null;
  // Where identities are no DIDs, on a channel of two, there is nobody else.
  return minted === null || !isDid(did) || minted[1] === fingerprint(did);
}

const INBOXES = {};
const channelInboxes = new WeakMap<Channel, Inbox>();
/** Reply rooms remembered: a client has one. */
const MAX_INBOXES = 256;

function inboxOf(t: Transport, replyTo: string): Inbox {
  const inboxes = sharedOf(t, INBOXES, () => new Map<string, Inbox>());
  let inbox = inboxes.get(replyTo);
  if (!inbox) {
    // An inbox in use lives on with its users; only what it would have had in common with later calls is lost.
    if (inboxes.size >= MAX_INBOXES) inboxes.delete(inboxes.keys().next().value!);
    inboxes.set(replyTo, (inbox = new Inbox(t)));
  }
  return inbox;
}

// --- who is called -----------------------------------------------------------------------------------------------

/** Where a call goes, and how its answer is known. */
interface Line {
  channel: Channel;
  inbox: Inbox;
  /** Named in requests, so that the answer finds us; a channel needs none. */
  replyTo: string | undefined;
  epoch(): number;
  /** The keys that answered first, by what was called. */
  pins: Map<string, string>;
  /** The only key whose answers count; undefined: whichever answers first. */
  peer: string | undefined;
}

const IDENTITIES = {};
const IDENTITY_TTL_MS = 300_000;
const PINS = {};
const MAX_PINS = 1024;
const channelPins = new WeakMap<Channel, Map<string, string>>();

/** The identity of a DID, not older than five minutes. */
async function identityOf(t: Transport, did: string, o: Options): Promise<Identity | undefined> {
  const known = sharedOf(t, IDENTITIES, () => new Map<string, { until: number; identity: Identity | undefined }>());
  const now = t.clock.now();
  const entry = known.get(did);
  if (entry && now < entry.until && entry.until - now <= IDENTITY_TTL_MS) return entry.identity;
  const identity = await resolveIdentity(did, o);
  if (known.size >= MAX_PINS) known.clear();
  if (identity?.mailbox) known.set(did, { until: now + IDENTITY_TTL_MS, identity });
  else known.delete(did);
  return identity;
}

/**
 * @internal
 * @throws BadName it was forgotten
 */
export function replyToOf({ replyTo }: CallOptions): string {
  if (replyTo !== undefined) return replyTo;
  throw new BadName(replyTo, 'a call to a mailbox needs the option replyTo, a mailbox of our own for the answer');
}

/** The mailbox to write to: the one given, or the one a DID names. */
async function mailboxOf(t: Transport, to: string, o: Options): Promise<string> {
  if (!isDid(to)) return checkMailbox(to);
  const mailbox = (await identityOf(t, to, o))?.mailbox;
  if (mailbox === undefined) throw new TechnocoreError('no_mailbox', `${to} names no mailbox in an identity note`);
  return checkMailbox(mailbox);
}

async function lineOf(
  t: Transport,
  to: string | Channel,
  params: unknown,
  signer: Signer,
  o: CallOptions,
): Promise<Line> {
  if (isChannel(to)) {
    // Its ids would be taken for those of another key.
    if (isDid(to.self) && to.self !== signer.did) throw new BadKey('the channel is another signer’s');
    let inbox = channelInboxes.get(to);
    if (!inbox) channelInboxes.set(to, (inbox = new Inbox(t)));
    let pins = channelPins.get(to);
    if (!pins) channelPins.set(to, (pins = new Map()));
    return { channel: to, inbox, replyTo: undefined, epoch: () => 0, pins, peer: o.peer ?? pins.get(to.room) };
  }
  const replyTo = replyToOf(o);
  const mailbox = await mailboxOf(t, to, o);
  if (mailbox === replyTo) throw new BadName(replyTo, 'an answer cannot come through the mailbox that is called');
  const channel = mailboxPair(t, signer, mailbox, replyTo, o.latency);
  if (Array.isArray(params)) {
    // Positional params have no _meta: only our identity record can tell where the answer goes.
    const own = await identityOf(t, signer.did, o);
    if (!own?.signed || own.mailbox !== replyTo) {
      throw new TechnocoreError(
        'no_reply_address',
        `positional params need a signed identity record that names ${replyTo}: publishIdentity`,
      );
    }
  }
  const pins = sharedOf(t, PINS, () => new Map<string, string>());
  const peer = o.peer ?? (isDid(to) ? to : pins.get(mailbox));
  return { channel, inbox: inboxOf(t, replyTo), replyTo, epoch: () => feedOf(t, replyTo).epoch, pins, peer };
}

/** Params with the reply address in `_meta`, and that we read spilled answers; positional ones as they are. */
function addressed(params: Json | undefined, replyTo: string | undefined, spills: boolean): Json | undefined {
  if ((replyTo === undefined && !spills) || (params !== undefined && !isObject(params))) return params;
  const meta = params?.['_meta'];
  return {
    ...params,
    _meta: {
      ...(isObject(meta) ? (meta as Member) : {}),
      ...(replyTo !== undefined && { [REPLY_META]: replyTo }),
      ...(spills && { [SPILL_META]: true }),
    },
  };
}

/** A request as one line: itself, or once it is put into notes, what stands for it. */
async function shortened(channel: Channel, request: Member, replyTo: string | undefined): Promise<string> {
  const text = encodeLong(request);
  const limit = limitOf(channel);
  if (text.length <= limit || !channel.spill) return encodeWithin(request, limit);
  const more: Member = replyTo === undefined ? {} : { params: { _meta: { [REPLY_META]: replyTo } } };
  return spilledFrame(text, (text) => channel.spill!.put(text), more);
}

// --- calls -------------------------------------------------------------------------------------------------------

/**
 * Sends a request and hands what the other side sends about it to `take`, until that says it is done.
 *
 * @internal
 * @throws as {@link call}
 */
export async function converse(
  to: string | Channel,
  method: string,
  params: Json | undefined,
  signer: Signer,
  o: CallOptions,
  { take, maxMs = (o.timeoutMs ?? 30_000) * 10, spills = false, begin, written }: Conversation,
): Promise<void> {
  const t = transportOf(o);
  const { clock } = t;
  const timeoutMs = o.timeoutMs ?? 30_000;
  const begun = clock.now();
  let deadline = begun + timeoutMs;
  o.signal?.throwIfAborted();
  checkSigner(signer);
  if (!(timeoutMs > 0))
    throw new TechnocoreError('bad_option', 'the option timeoutMs is a number of milliseconds above 0');
  checkText(method, 'the method');
  if (params !== undefined && (typeof params !== 'object' || params === null)) {
    throw new TechnocoreError('bad_params', 'params are an object, an array, or left out');
  }
  // Too long with the shortest id that could be minted: known before anything is sent.
  const shortest = rpcRequest(
    o.id || `${signer.fingerprint}.........0.0`,
    method,
    addressed(params, isChannel(to) ? undefined : o.replyTo, !isChannel(to) || to.spill !== undefined),
  );
  let chars = MAX_TEXT;
  if (spills && (!isChannel(to) || to.spill !== undefined)) {
    const bytes = spilledBytes(encodeLong(shortest));
    if (bytes > MAX_SPILLED) throw new FrameTooLong(bytes, MAX_SPILLED);
  } else chars = encodeWithin(shortest, limitOf(to)).length;

  const { stop, forget: forgetAbort } = following(o.signal);
  let sent: Sent | undefined;
  let doubt: unknown;
  let impostor: TechnocoreError | undefined;
  let room = isChannel(to) ? to.room : to;
  let id = o.id ?? '';
  // Time is counted by sleeping: a clock that is set meanwhile neither ends a call nor prolongs it.
  let extension: AbortController | undefined;
  let seen: Presence | undefined;
  let look: ((deadline: number) => Promise<void>) | undefined;
  let wasAnswered = (): boolean => false;
  const endAfter = async (ms: number, signal: AbortSignal, counts = (): boolean => true): Promise<void> => {
    try {
      const lookMs = Math.min(LOOK_MS, ms / 4);
      await clock.sleep(ms - lookMs, signal);
      if (!counts()) return;
      void look?.(clock.now() + lookMs);
      await clock.sleep(lookMs, signal);
    } catch {
      return;
    }
    if (!counts()) return;
    const now = clock.now();
    const failure = healthOf(t).failure ?? impostor;
    stop.abort(
      doubt ?? timeoutError(room, id, Math.max(now - begun, timeoutMs), now, sent, seen, failure, wasAnswered()),
    );
  };
  const extend = (ms: number): void => {
    if (!extension) void endAfter(maxMs - timeoutMs, stop.signal);
    extension?.abort(OVER);
    extension = new AbortController();
    void endAfter(ms, extension.signal);
    deadline = clock.now() + ms;
  };
  void endAfter(timeoutMs, stop.signal, () => !extension);

  let leave: (() => void) | undefined;
  let forget: (() => void) | undefined;
  let answered: (() => void) | undefined;
  try {
    const line = await orAbort(lineOf(t, to, params, signer, { ...o, signal: stop.signal }), stop.signal);
    const { channel, pins, inbox } = line;
    room = channel.room;
    wasAnswered = () => pins.has(room);
    if (line.replyTo !== undefined) {
      look = async (by) => {
        seen = await presenceOf(t, room, line.peer, by);
      };
    }
    const isShared = o.batch === true && line.replyTo !== undefined && isBatchable(method, params);
    // Answers are as long as their requests, for all that is known.
    leave = await inbox.enter(channel, isShared ? chars / MAX_TEXT : 1, stop.signal);
    id ||= inbox.mint(signer, line.epoch());
    const request = rpcRequest(id, method, addressed(params, line.replyTo, channel.spill !== undefined));
    const text = spills
      ? await orAbort(shortened(channel, request, line.replyTo), stop.signal)
      : encodeWithin(request, limitOf(channel));

    const retries = o.retry ?? 0;
    let attempt = 0;
    let pause: AbortController | undefined;
    let lost = false;
    let finish: () => void;
    const finished = new Promise<void>((resolve, reject) => {
      finish = resolve;
      stop.signal.addEventListener('abort', () => reject(stop.signal.reason), { once: true });
    });
    finished.catch(() => {});
    // What the answer was is lost to us. The kept one comes for the same request; without another try it is an error.
    const missed = (cause: unknown): void => {
      lost = true;
      if (attempt < retries) pause?.abort(OVER);
      else stop.abort(cause);
    };
    const spilled = new Map<string, number>();
    const unspill = async (frame: Member, from: string): Promise<void> => {
      const count = spilled.get(from) ?? 0;
      // What others send takes nothing from the one whose answer it is.
      if (!channel.spill || count >= MAX_SPILLED_FRAMES || (count === 0 && spilled.size >= MAX_SPILLERS)) return;
      spilled.set(from, count + 1);
      try {
        const text = await channel.spill.get(frame[FRAME_MEMBER]!, stop.signal);
        const answer = isDeep(text) ? undefined : decode(text);
        if (classify(answer) !== 'response' || (answer as Member)['id'] !== id) {
          throw new TechnocoreError('spill_lost', 'what was spilled is not the answer');
        }
        t.onEvent({ kind: 'spilled', id, room, from, chars: text.length });
        waiting.take(answer as Member, 'response', from);
      } catch (cause) {
        if (stop.signal.aborted) return;
        t.onEvent({ kind: 'refused', id, room, from, reason: 'a spilled answer that cannot be read', cause });
        if (from === line.peer) missed(cause);
        // While anybody may answer, another one still may.
        else doubt ??= cause;
      }
    };
    let isAnew = false;
    let anew: (nonce: string) => Promise<void>;
    const waiting: Waiting = {
      take(frame, kind, from, at) {
        if (from === channel.self) return;
        // Another call may have pinned it meanwhile.
        line.peer ??= pins.get(room);
        if (line.peer !== undefined && from !== line.peer) {
          if (kind === 'notification') return;
          t.onEvent({ kind: 'refused', id, room, from, reason: 'an answer from another key' });
          impostor = new TechnocoreError('other_key', `${from} answered, and only ${line.peer} may (option peer)`);
          return;
        }
        if (kind === 'spilled') return void unspill(frame, from);
        const nonce = kind === 'response' && !isAnew ? nonceAsked(frame, clock.now(), at) : undefined;
        if (nonce !== undefined) return void anew(nonce);
        try {
          const taken = take(frame, kind);
          if (taken === undefined) return;
          // A sign of life proves nothing: whoever read the request can send one.
          if (taken !== 'alive') line.peer = from;
          if (taken !== 'alive' && !pins.has(room)) {
            if (pins.size >= MAX_PINS) pins.delete(pins.keys().next().value!);
            pins.set(room, from);
          }
          if (taken === 'done') finish();
          else extend(taken === 'alive' ? timeoutMs : taken);
        } catch (cause) {
          stop.abort(cause);
        }
      },
      lost: missed,
      fail: (cause) => stop.abort(cause),
    };
    inbox.wait(id, waiting);
    forget = () => inbox.forget(id);
    begin?.(id);

    // Where the answer is written out of our own budget, it counts from now on.
    if (!isShared && line.replyTo !== undefined && isServedHere(t, room)) {
      answered = budgetOf(t, 'write').announce(`to ${line.replyTo}`);
    }
    const send = (): Promise<Sent> => {
      const now = clock.now();
      const end = Math.min(deadline, now + timeoutMs);
      // Where it is late already, the answer gets half of what is left.
      const by = end - Math.min(timeoutMs * ANSWER_SHARE, ANSWER_MS, (end - now) / 2);
      const how = { signal: stop.signal, deadline: by };
      return isShared
        ? sendBatched(t, `${signer.did} ${room} ${line.replyTo}`, channel, text, how)
        : channel.send(text, how);
    };

    // Our clock is behind, and the server too young to know what else we signed then.
    anew = async (nonce) => {
      isAnew = true;
      t.onEvent({ kind: 'retry', room, id, afterMs: 0, nonce });
      try {
        await signer.raiseNonce(room, nonce, clock);
        sent = await send();
      } catch (cause) {
        // Of what was sent meanwhile, an answer may still come.
        if (attempt === 0) stop.abort(cause);
        else t.onEvent({ kind: 'retry', room, id, cause, afterMs: 0 });
      }
    };

    // The service takes five copies of a text a minute, from anybody.
    const interval = Math.max(timeoutMs / (retries + 1), retries > 4 ? 15_000 : 0);
    for (; attempt <= retries; attempt++) {
      try {
        const sending = send();
        sending.catch(() => {});
        // The answer may be here before the word that the request arrived; and that may never come.
        const arrived = await Promise.race([sending, finished]);
        if (!arrived) return;
        sent = arrived;
        doubt = undefined;
      } catch (cause) {
        // It may have arrived all the same: the answer would tell.
        if (TechnocoreError.is(cause) && cause.code === 'may_have_landed') doubt = cause;
        else if (attempt === 0 || stop.signal.aborted) throw cause;
        else t.onEvent({ kind: 'retry', room, id, cause, afterMs: interval });
      }
      if (attempt === 0) written?.();
      if (attempt === retries) break;
      const waits = new AbortController();
      pause = waits;
      if (lost) waits.abort(OVER);
      lost = false;
      const slept = clock.sleep(interval, waits.signal).catch(() => {});
      const over = await Promise.race([slept, finished.then(() => true)]).finally(() => waits.abort(OVER));
      if (over === true) return;
      t.onEvent({ kind: 'retry', room, id, afterMs: 0 });
    }
    await finished;
  } catch (cause) {
    const reason = stop.signal.aborted ? stop.signal.reason : cause;
    const isTimeout = TechnocoreError.is(reason) && reason.code === 'call_timeout';
    if (isTimeout && !isChannel(to)) doubtMailbox(t, o.replyTo!, signer);
    throw reason;
  } finally {
    forgetAbort();
    stop.abort(OVER);
    extension?.abort(OVER);
    forget?.();
    answered?.();
    leave?.();
  }
}

/**
 * The nonce above which a server wants the same request signed, which it refused because it may be old.
 *
 * @param at when the refusal came, ms: a server began before that, so a later nonce is somebody's who wants us to sign ahead
 */
function nonceAsked({ error }: Member, now: number, at: number = now): string | undefined {
  const { code, data } = isObject(error) ? error : {};
  const nonce = code === INTERRUPTED && isObject(data) ? data['nonce'] : undefined;
  return typeof nonce === 'string' && /^\d{13}$/.test(nonce) && Number(nonce) <= Math.min(at, now + MAX_AHEAD_MS)
    ? nonce
    : undefined;
}

function timeoutError(
  room: string,
  id: string,
  afterMs: number,
  now: number,
  sent: Sent | undefined,
  seen: Presence | undefined,
  failure: TechnocoreError | undefined,
  wasAnswered: boolean,
): CallTimeout {
  const [reason, hint] = failure ? (['no-answer', failure.message] as const) : whyOf(now, sent, seen, wasAnswered);
  return new CallTimeout(room, id, afterMs, reason, sent ? hint : `the request was not sent yet; ${hint}`, failure);
}

/** What a caller can do about a server that is slow, or not there yet. */
const AGAIN = 'the option retry asks again';
const PATIENCE = `the option timeoutMs gives it more time, and ${AGAIN}`;

function whyOf(
  now: number,
  sent: Sent | undefined,
  seen: Presence | undefined,
  wasAnswered: boolean,
): [CallTimeout['reason'], string] {
  if (seen) {
    const at = new Date(seen.at).toISOString();
    if (seen.validMs === 0) return ['no-server', `its server, ${seen.did}, ended at ${at}; ${AGAIN}`];
    if (!isThere(seen, now)) {
      return ['no-server', `its server, ${seen.did}, was last there at ${at}; ${AGAIN}`];
    }
    return ['no-answer', `its server, ${seen.did}, was there at ${at}, and did not answer in time: ${PATIENCE}`];
  }
  if (wasAnswered) {
    return ['no-answer', `it answered earlier; whether a server is there now is not known: ${PATIENCE}`];
  }
  if (sent?.alone) {
    return [
      'no-room',
      `nobody else had written to that room: check its name, and whether its server was ever started; ${AGAIN}, for one that starts later`,
    ];
  }
  return ['no-answer', `whether a server is there is not known: ${PATIENCE}`];
}

/**
 * Calls a method of another agent and waits for its answer.
 *
 * @param to the agent's mailbox, its DID (then the identity note names the mailbox), or a channel. Where that note holds no
 * record that the DID signed, a stranger may have named the mailbox: he can read the request, or keep it from its reader;
 * an answer still counts only when that DID signed it
 * @param params by name or by position; `_meta` is ours to add to
 * @throws RpcError the other side answered with an error
 * @throws CallTimeout no answer in time; `reason` says what is known
 * @throws RingGap the answer may be among messages that the reply room lost
 * @throws MayHaveLanded the request may have arrived, and no answer came in time
 * @throws FrameTooLong, BadName, BadKey, and TechnocoreError `no_mailbox`, `no_reply_address`, `duplicate_id`, `bad_params`, `bad_text`, `bad_option`: before anything is sent
 * @throws RateLimited at once, with nothing sent, when the request's turn to be written would come too late for an answer
 * @throws what the write throws: Forbidden, RoomBudget, CapacityReached, Unavailable …
 * @throws the signal's reason when it aborts
 */
export async function call<T = any>(
  to: string | Channel,
  method: string,
  params: Json | object | undefined,
  signer: Signer,
  o: CallOptions = {},
): Promise<T> {
  let result: Json | undefined;
  // Interfaces have no index signature, and are JSON all the same; what is not is refused when it is written.
  const take: Conversation['take'] = (frame, kind) => {
    if (kind !== 'response') return undefined;
    result = resultOf(frame);
    return 'done';
  };
  await converse(to, method, params as Json | undefined, signer, o, { take });
  return result as T;
}

/**
 * Sends a notification: no answer comes, and whether anybody reads it is not known. To a DID it goes as a call does.
 *
 * @throws as {@link call} before the request is written
 */
export async function notify(
  to: string | Channel,
  method: string,
  params: Json | undefined,
  signer: Signer,
  o: Options = {},
): Promise<void> {
  const text = encodeWithin(rpcNotification(checkText(method, 'the method'), params), limitOf(to));
  const t = transportOf(o);
  if (isChannel(to)) await to.send(text, o.signal ? { signal: o.signal } : {});
  else await saySigned(t, signer, await mailboxOf(t, to, o), text, o.signal);
}
