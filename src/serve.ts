/**
 * Serving: requests out of a channel, through the ledger and a dispatcher, answers back to where they may go. One bad
 * frame is one skipped frame; nothing a stranger writes ends the loop, reaches a handler unchecked or grows memory.
 *
 * @module
 */

import { Answering, type Reply, replyNamed } from './answering.ts';
import { BUSY, before, DEADLINE, denied, interrupted, printable } from './answers.ts';
import { toHex, utf8 } from './bytes.ts';
import {
  beginningOf,
  type Channel,
  checkMailbox,
  type Incoming,
  isChannel,
  type Listener,
  openMailbox,
} from './channel.ts';
import { later } from './clock.ts';
import { sha256 } from './crypto.ts';
import {
  checkHandler,
  classify,
  createDispatcher,
  type DispatchContext,
  type Dispatcher,
  type DispatcherOptions,
  type Id,
  INTERNAL_ERROR,
  INVALID_REQUEST,
  isId,
  type JsonObject,
  rpcError,
} from './dispatch.ts';
import { type RingGap, TechnocoreError } from './errors.ts';
import { drop, feedOf } from './feed.ts';
import { decode, encodeLong, isObject, type Json } from './frames.ts';
import { healthOf, type Options, onAbort, sharedOf, shownBase, type Transport, transportOf } from './http.ts';
import { mayUseId } from './inbox.ts';
import { type Admission, type Ledger, LedgerState, memoryLedger, type Verdict } from './ledger.ts';
import { attend } from './presence.ts';
import type { ReplyLimits } from './replies.ts';
import { type CursorStore, checkSigner, OPENING, type Place } from './rooms.ts';
import { Share, type Standing } from './share.ts';
import type { Signer } from './signer.ts';
import { readSpilled } from './spill.ts';
import { mostFor, Regulars } from './turns.ts';
import { Underway } from './underway.ts';
import { isSpilled, LongRequests } from './unspill.ts';
import { Workers } from './workers.ts';

/** Options of {@link serve}. */
export interface ServeOptions
  extends Options,
    Pick<DispatcherOptions, 'methods' | 'tools' | 'serverInfo' | 'instructions' | 'pageSize' | 'layer'> {
  /** Who may call; default: everybody. The refused get error 1004, or nothing with `silent`. */
  allow?: (from: string) => boolean | Promise<boolean>;
  /** Whether the refused get no answer at all; default false. */
  silent?: boolean;
  /** A further say in whether answers to a key may go to a room. */
  replyPolicy?: (from: string, room: string) => boolean;
  replyLimits?: ReplyLimits;
  /** Most handlers at a time; default 16, three quarters of them for keys that were never answered. */
  concurrency?: number;
  /** Most requests that wait for a handler; default 1,024, of one key a quarter. */
  queue?: number;
  /** How long a handler may take, ms; default 60,000. */
  deadlineMs?: number;
  /**
   * How long the end may take once `signal` has aborted, ms; default: `deadlineMs` and half a minute. Answers that are not
   * written by then are left (event `undrained`): a ledger in a file has them for whoever asks again.
   */
  drainMs?: number;
  /**
   * Requests and answers; default: {@link memoryLedger}, which is lost with the process. Then what was begun before a
   * restart is asked again by whoever still waits, and runs again; and only what was signed since the start is believed.
   */
  ledger?: Ledger;
  /**
   * Where the place in the mailbox is kept; default: nowhere, and serving begins with what comes from now on, or in a mailbox
   * that nobody has opened before, with what waits there. Needs a
   * `ledger` that is kept as well, or what was finished would run again: none is refused, and one in memory, which may
   * outlive the server though not the process, is an event (`forgetful`).
   */
  cursor?: CursorStore;
  /** `frugal`: one parked read. Default `fast`: a second one, within the read budget, where readers are woken in steps. */
  latency?: 'fast' | 'frugal';
  /**
   * Whether a signed note says, to whoever knows the mailbox, that it is served: one write at the start, every ten minutes,
   * and at the end; one read at the start, and until another server with this key is found, which is an event (`warning`),
   * or told on the console where `onEvent` is not given. Default true.
   */
  presence?: boolean;
  /**
   * Whether other servers, on other machines, with the same seed, read the same mailbox and share its callers. When one
   * dies, the others take over within the lease, by default a minute: what it may have begun, and did not answer, is
   * reported interrupted, or run again where that does no harm. Costs each server three writes and reads a minute, a tenth of
   * the write budget of its address, and twelve reads a minute while it waits for a share. Each keeps a ledger of its own.
   * Where messages were gone before one of them read them (the mailbox ran over, or was lost and made anew), it believes
   * nothing that was signed until then; but what another took among those it takes once more when the caller himself asks
   * again under that id, or had a clock that was ahead.
   */
  claim?: boolean | { leaseMs?: number };
  /**
   * Whether requests too large for a message are read out of notes; each costs up to sixteen reads. Default: where `allow`
   * says who may call. Such requests come from `mcpCallTool` and `RoomClientTransport` (and so from `mcp connect`), which ask
   * first whether they are read; never from `call` and the functions for A2A.
   */
  spill?: boolean;
  /** Called once requests are taken. */
  onReady?: () => void;
}

/**
 * Serves methods and tools to whoever writes requests into a mailbox or a channel.
 *
 * @returns resolves after `o.signal` aborts and what was begun is answered, within `drainMs`
 * @throws BadName the room is no mailbox
 * @throws TechnocoreError `bad_option`: options that do not go together; `already_served`: the same mailbox is served
 * through the same transport by another call of this, and not by both with `claim`, so that each would run everything
 * @throws what opening and reading the mailbox throws, when it cannot be waited out
 */
export async function serve(mailbox: string | Channel, signer: Signer, o: ServeOptions = {}): Promise<void> {
  const t = transportOf(o);
  checkSigner(signer);
  const server = new Server(t, mailbox, signer, o);
  try {
    await server.run(o.signal);
  } catch (cause) {
    if (!o.signal?.aborted) throw cause;
  } finally {
    await server.drain();
  }
}

/** A message of which it does not matter when it came. */
type Unplaced = Omit<Incoming, 'at'> & { at?: number | undefined };

/** Most notifications of one request that wait to be written. */
const MAX_EMITTED = 64;

class Server implements Listener {
  readonly stagger: boolean;
  readonly #t: Transport;
  readonly #signer: Signer;
  readonly #service: Options;
  readonly #o: ServeOptions;
  readonly #channel: Channel | undefined;
  readonly #room: string;
  readonly #self: string;
  readonly #dispatcher: Dispatcher;
  readonly #ledger: Ledger;
  /** Who was answered before whom. */
  readonly #regulars: Regulars;
  readonly #answering: Answering;
  readonly #workers: Workers;
  /** Requests that wait for a worker, by key and id, so that they can be called off. */
  readonly #queued = new Map<string, AbortController>();
  readonly #long: LongRequests | undefined;
  readonly #underway: Underway;
  readonly #share: Share | undefined;
  readonly #sharing = new AbortController();
  /** What aborts the handlers that run. */
  readonly #running = new Set<AbortController>();
  /** The last task of each key: messages of one key are admitted in their order. */
  readonly #lanes = new Map<string, { length: number; last: Promise<void> }>();
  #ended: ((cause: unknown) => void) | undefined;
  #heard = false;

  constructor(t: Transport, mailbox: string | Channel, signer: Signer, o: ServeOptions) {
    this.#t = t;
    this.#signer = signer;
    this.stagger = o.latency !== 'frugal';
    this.#o = o;
    const { base, fetch, clock } = t;
    this.#service = { base, fetch, clock };
    this.#channel = isChannel(mailbox) ? mailbox : undefined;
    this.#room = this.#channel?.room ?? checkMailbox(mailbox as string);
    this.#self = this.#channel?.self ?? '';
    const { methods, tools, serverInfo, instructions, pageSize, layer } = o;
    if (methods instanceof Map) for (const [name, handler] of methods) checkHandler(handler, name);
    const spill = this.#channel ? this.#channel.spill : { get: (ref: Json) => readSpilled(t, ref) };
    const spills = spill !== undefined && readsSpilled(o);
    this.#dispatcher = createDispatcher({
      methods,
      tools,
      serverInfo,
      instructions,
      pageSize,
      layer,
      spills,
      clock: t.clock,
      stateKey: signer.derive('mcp-state'),
    });
    this.#ledger = o.ledger ?? memoryLedger();
    const cursor = this.#channel ? undefined : o.cursor;
    if (cursor) this.#checkLedger(o.ledger);
    const oldest = (): number | undefined => this.#share?.oldest;
    this.#underway = new Underway(t, this.#room, cursor && { store: cursor, oldest });
    this.#regulars = new Regulars(t.clock);
    this.#answering = new Answering(t, signer, { room: this.#room, channel: this.#channel }, this.#regulars, o);
    if (spills) this.#long = new LongRequests((ref) => spill.get(ref), this.#regulars);
    if (o.claim) this.#share = this.#makeShare(o.claim === true ? undefined : o.claim.leaseMs);
    const concurrency = o.concurrency ?? 16;
    // Some turns are left for others, where there are enough of them: also of those that newcomers may have.
    this.#workers = new Workers(concurrency, o.queue ?? 1024, concurrency - 2 * (concurrency >> 2), this.#regulars);
  }

  /** With a place that is kept and a ledger that is not, a restart would run once more what was finished. */
  #checkLedger(ledger: Ledger | undefined): void {
    if (!ledger) throw new TechnocoreError('bad_option', 'a cursor needs a ledger that is kept as well: fileLedger');
    // In one process it may outlive this server.
    if (ledger instanceof LedgerState) this.#t.onEvent({ kind: 'forgetful', room: this.#room });
  }

  #makeShare(leaseMs: number | undefined): Share {
    if (this.#channel) throw new TechnocoreError('bad_option', 'only a mailbox can be shared with other servers');
    const unfinished = (fits: (from: string) => boolean): number | undefined => this.#underway.oldest(fits);
    const handle = (m: Incoming, frame: JsonObject | Json[], standing: Standing): void =>
      this.#enqueue(m, frame, standing);
    const place = (): Place => feedOf(this.#t, this.#room).place ?? { since: 0 };
    return new Share(this.#t, this.#signer, this.#room, { handle, place, unfinished }, leaseMs);
  }

  async run(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve, reject } = deferred();
    // A channel may end before anybody waits for it.
    promise.catch(() => {});
    this.#ended = reject;
    signal?.throwIfAborted();
    const alone = this.#channel ? () => {} : this.#alone();
    const forget = onAbort(signal, () => {
      // The next one may begin while this one drains.
      alone();
      resolve();
    });
    let leave: (() => void) | undefined;
    const over = new AbortController();
    try {
      // Whoever sees that the server is ready finds it attended.
      if (!this.#channel) this.#underway.track(this.#attend(over.signal));
      leave = await this.#begun(this.#listen(signal));
      void this.#passTime(over.signal);
      this.#share?.run(this.#sharing.signal).catch((cause) => {
        if (!this.#sharing.signal.aborted) this.#ended?.(cause);
      });
      if (!signal?.aborted) this.#o.onReady?.();
      await promise;
    } finally {
      over.abort(OVER);
      this.#share?.stop();
      forget();
      leave?.();
      alone();
    }
  }

  /**
   * Makes sure that nobody else here takes the same requests.
   *
   * @returns ends that
   * @throws TechnocoreError `already_served`
   */
  #alone(): () => void {
    const serving = sharedOf(this.#t, SERVING, () => new Map<string, { servers: number; isShared: boolean }>());
    // Of another key's server the callers are told by its answers.
    const name = `${this.#room} ${this.#signer.did}`;
    const others = serving.get(name);
    const isShared = this.#share !== undefined;
    if (others && !(isShared && others.isShared)) {
      throw new TechnocoreError(
        'already_served',
        `${this.#room} is served already, and two servers would each run every request: option claim, for both`,
      );
    }
    const all = others ?? { servers: 0, isShared };
    all.servers++;
    serving.set(name, all);
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      if (--all.servers === 0) serving.delete(name);
    };
  }

  #attend(signal: AbortSignal): Promise<void> {
    const heard = (): boolean => {
      const was = this.#heard;
      this.#heard = false;
      return was;
    };
    const isLast = (): boolean => this.#share?.isAlone ?? true;
    const presence = this.#o.presence ?? true;
    const others = this.#share ? {} : { onOther: this.#warn };
    const lastSaid = (): Promise<number | undefined> => this.#underway.lastSaid();
    const saying = (at: number): Promise<void> => this.#underway.said(at);
    return attend(this.#t, this.#room, this.#signer, signal, { presence, heard, isLast, lastSaid, saying, ...others });
  }

  /** Another program with the same key serves the same mailbox, or did until it was killed. */
  readonly #warn = (at: number): void => {
    const when = new Date(at).toISOString();
    const reason = `another server with this key was here at ${when}; if it still runs, both run every request: option claim, for both`;
    if (!this.#o.onEvent) globalThis.console?.warn(`technocore-rpc: ${this.#room}: ${reason}`);
    this.#t.onEvent({ kind: 'warning', room: this.#room, reason });
  };

  /** Tells the ledger the time, also while nobody asks for anything. */
  async #passTime(signal: AbortSignal): Promise<void> {
    try {
      for (;;) {
        this.#ledger.pass?.(this.#t.clock.now());
        await this.#t.clock.sleep(PASS_MS, signal);
      }
    } catch (cause) {
      if (!signal.aborted) this.#ended?.(cause);
    }
  }

  /** Says why it takes so long to be ready, once, where no events tell of each attempt. */
  async #begun<T>(listening: Promise<T>): Promise<T> {
    const { clock, base } = this.#t;
    const tell = (): void => {
      const why = healthOf(this.#t).failure?.message ?? `waiting for ${shownBase(base)}`;
      globalThis.console?.warn(`technocore-rpc: ${this.#room} is not served yet: ${why}`);
    };
    const cancel = this.#channel || this.#o.onEvent ? undefined : later(clock, LATE_MS, tell);
    try {
      return await listening;
    } finally {
      cancel?.();
    }
  }

  async #listen(signal: AbortSignal | undefined): Promise<() => void> {
    if (this.#channel) return this.#channel.listen(this, signal);
    const kept = await this.#underway.load();
    await openMailbox(this.#t, this.#room, this.#signer, signal);
    const first = beginningOf(this.#t, this.#room, this.#signer);
    const from = this.#share ? await this.#share.begin(kept, signal) : (kept ?? first);
    const feed = feedOf(this.#t, this.#room);
    const leave = await feed.listen(this, { signal, from });
    try {
      // From now on no request is lost, whenever we die.
      const begun = from ? from === first && first : feed.place;
      if (begun) await this.#underway.keep(begun);
      return leave;
    } catch (cause) {
      leave();
      throw cause;
    }
  }

  /** Lets what was begun end, each by its deadline at the latest. */
  async drain(): Promise<void> {
    // Subscriptions would go on for long; they end with an answer, like the rest.
    this.#dispatcher.close();
    const timer = new AbortController();
    const drainMs = this.#o.drainMs ?? (this.#o.deadlineMs ?? DEADLINE_MS) + DRAIN_MS;
    const late = this.#t.clock.sleep(drainMs, timer.signal).then(
      () => true,
      () => false,
    );
    const drained = this.#underway.ended().then(() => false);
    const isLate = await Promise.race([drained, late]);
    if (isLate) {
      this.#t.onEvent({ kind: 'undrained', room: this.#room, tasks: this.#underway.size });
      this.#answering.close(OVER);
      // Nobody would hear of what goes on, or begins in the turn of what ends; the ledger has it as interrupted.
      for (const one of [...this.#queued.values(), ...this.#running]) one.abort(OVER);
    }
    timer.abort(OVER);
    this.#sharing.abort(OVER);
    await this.#share?.release();
    // The last look at the claims told what others finished: it is remembered before the ledger may be closed.
    if (!isLate) await this.#underway.ended();
  }

  renewed(goesOn: boolean): void {
    this.#share?.reset(goesOn);
  }

  gap(gap: RingGap): void {
    // Lost requests are their callers' to repeat; the operator may want to know.
    this.#t.onEvent({ kind: 'lost', room: this.#room, gap });
  }

  expects(): number {
    return this.#underway.burst ? Number.POSITIVE_INFINITY : 0;
  }

  end(cause: unknown): void {
    this.#ended?.(cause);
  }

  message(m: Incoming): void {
    this.#heard = true;
    this.#share?.saw(m);
    // The line that opens a mailbox, which stands behind what waited there, says nothing to those who serve it.
    if (m.from !== '' && (m.from === this.#self || m.text === OPENING)) return;
    const frame = decode(m.text);
    if (!frame || m.from === '') {
      this.#t.onEvent({ kind: 'skipped', room: m.room, seq: m.seq, reason: frame ? 'not signed' : 'not a frame' });
      return;
    }
    if (this.#share) this.#share.message(m, frame);
    else this.#enqueue(m, frame);
  }

  #enqueue(m: Incoming, frame: JsonObject | Json[], standing: Standing = 'new'): void {
    const lane = this.#lanes.get(m.from) ?? { length: 0, last: Promise.resolve() };
    const most = mostFor(this.#regulars.rank(m.from), MAX_TASKS);
    if (lane.length >= MAX_LANE || this.#underway.size >= most) {
      drop(this.#t, 'refused', m, { reason: 'too many at once' });
      return;
    }
    lane.length++;
    lane.last = lane.last.then(async () => {
      try {
        await this.#admit(m, frame, standing);
      } catch (cause) {
        drop(this.#t, 'skipped', m, { cause });
      }
      if (--lane.length === 0) this.#lanes.delete(m.from);
    });
    this.#lanes.set(m.from, lane);
    this.#underway.track(lane.last, m);
  }

  /** Decides about one message; what it asks for then runs on its own. */
  async #admit(m: Incoming, said: JsonObject | Json[], standing: Standing): Promise<void> {
    const frame = isSpilled(said) && standing !== 'finished' ? await this.#unspilled(m, said) : said;
    if (!frame) return;
    const batch = Array.isArray(frame) ? frame : undefined;
    const members = batch ?? [frame];
    const kinds = members.map(classify);
    // Two servers that answered each other's answers would never end.
    if (kinds.every((kind) => kind === 'response')) return;
    const requests = members.filter((_, i) => kinds[i] === 'request') as JsonObject[];
    const named = replyNamed(members);

    // Answered, it would reach the caller whose id it is as the answer to a question of his.
    if (requests.length > MAX_REQUESTS) return this.#refuse(m, 'too many requests in a batch');
    const answerable = members.filter((member, i) => kinds[i] !== 'response' && isObject(member)) as JsonObject[];
    if (answerable.some(({ id }) => !mayUseId(m.from, id))) return this.#refuse(m, 'an id of another key');
    // Written as we write it, it may be six times as long as it came: nothing runs for what cannot be answered.
    if (requests.some(({ id }) => encodeLong(id).length > this.#answering.limit - ERROR_CHARS)) {
      return this.#refuse(m, 'an id too long for any answer');
    }
    if (standing === 'finished') return this.#elsewhere(m, requests, named);

    if (!((await this.#o.allow?.(m.from)) ?? true)) {
      this.#refuse(m, 'not allowed');
      const reply = requests.length > 0 && !this.#o.silent ? await this.#answering.to(m, named) : undefined;
      const texts = requests.map(({ id }) => denied(id as Id));
      if (reply) this.#underway.track(this.#answering.write(reply, texts, batch));
      return;
    }

    if (requests.length > 0 && this.#answering.isOverrun(m.from)) {
      return this.#refuse(m, 'more answers wait than can be written in time');
    }
    const whole = batch !== undefined && !this.#dispatcher.batchable(batch);
    const invalid = whole ? [] : members.filter((_, i) => kinds[i] === 'invalid').slice(0, MAX_INVALID);
    // A frame that is none is answered only where it says itself where to; else it is a stranger's chat.
    const wanted = requests.length > 0 || (named !== undefined && (invalid.length > 0 || whole));
    // Without a place for the answer nothing runs: the caller would take silence for failure and ask again.
    const reply = wanted ? await this.#answering.to(m, named) : undefined;
    const asked = reply ? requests : [];
    const passing = this.#passing(asked);
    const notifies = members.some((member, i) => kinds[i] === 'notification' && this.#dispatcher.acts(member));
    // What others finished or began is known by its place, not by when it was signed.
    const { fresh, verdicts } = await this.#admission(
      standing === 'new' ? m : { ...m, at: undefined },
      whole ? [] : asked,
      named,
      { passing, notifies },
    );
    const isNew = fresh && standing === 'new';
    if (isNew) {
      members.forEach((member, i) => {
        if (kinds[i] === 'notification') this.#underway.track(this.#notified(m, member as JsonObject));
      });
    }
    if (!reply) {
      if (wanted) this.#refuse(m, 'no place for an answer');
      return;
    }
    if (whole) {
      if (isNew) {
        const answer = this.#dispatcher.dispatch(batch, this.#caller(m));
        this.#underway.track(this.#answering.write(reply, [encodeLong(await answer)]));
      }
      return;
    }
    this.#underway.track(
      (async () => {
        const refused = (named !== undefined && isNew ? invalid : [])
          .map((member) => this.#dispatcher.invalid(member))
          .filter((answer) => answer !== undefined)
          .map(encodeLong);
        const answers = await Promise.all(
          requests.map((request, i) => {
            if (verdicts[i]!.kind === 'new' && passing.has(request)) return this.#inPassing(m, request);
            const isBegun = standing === 'uncertain' && verdicts[i]!.kind === 'new';
            return this.#outcome(m, request, isBegun ? { kind: 'interrupted' } : verdicts[i]!, isNew, reply);
          }),
        );
        const texts = answers.filter((text) => text !== undefined);
        if (!(await this.#answering.write(reply, [...refused, ...texts], batch))) return;
        for (const [i, text] of answers.entries()) {
          if (text !== undefined && KEPT.has(verdicts[i]!.kind) && !passing.has(requests[i]!)) {
            await this.#ledger.sent(m.from, JSON.stringify(requests[i]!['id']));
          }
        }
      })(),
      requests.some((request) => this.#dispatcher.staysOpen(request)) ? undefined : m,
    );
  }

  /** The request that a frame stands for; undefined when there is none, which is told. */
  async #unspilled(m: Incoming, frame: JsonObject): Promise<JsonObject | undefined> {
    const { id } = frame;
    const named = replyNamed([frame]);
    if (!this.#long || !isId(id) || !mayUseId(m.from, id)) return this.#refuse(m, 'a long request');
    if (!((await this.#o.allow?.(m.from)) ?? true)) return this.#refuse(m, 'not allowed');
    try {
      return await this.#long.read(m.from, frame);
    } catch (cause) {
      drop(this.#t, 'refused', m, { reason: 'a long request', cause });
      const reply = await this.#answering.to(m, named);
      const text = encodeLong(rpcError(id, INTERNAL_ERROR, 'The request could not be read out of its notes'));
      if (reply) this.#underway.track(this.#answering.write(reply, [text]));
      return undefined;
    }
  }

  /** Remembers what another server finished, so that it runs here as little as it would there. */
  async #elsewhere(m: Incoming, requests: JsonObject[], named: unknown): Promise<void> {
    const passing = this.#passing(requests);
    const { verdicts } = await this.#admission({ ...m, at: undefined }, requests, named, { passing, notifies: true });
    for (const [i, { kind }] of verdicts.entries()) {
      if (passing.has(requests[i]!)) continue;
      const id = requests[i]!['id'] as Id;
      if (kind === 'new') await this.#ledger.answer(m.from, JSON.stringify(id), interrupted(id));
    }
  }

  /** What the ledger says. A server whose ledger fails can promise nothing any more, and ends. */
  async #admission(
    m: Unplaced,
    requests: JsonObject[],
    named: unknown,
    { passing, notifies }: { passing: Set<JsonObject>; notifies: boolean },
  ): Promise<Admission> {
    // What cannot be written down is the frame's fault, and not the ledger's.
    const message = {
      from: m.from,
      room: m.room,
      ...(m.nonce !== undefined && { nonce: m.nonce }),
      ...(m.at !== undefined && { at: m.at, after: this.#share?.lostBefore }),
      ...(!notifies && requests.every((request) => passing.has(request)) && { passing: true }),
      rank: this.#regulars.rank(m.from),
      requests: requests.map((request) => ({
        ...(passing.has(request) && { passing: true }),
        id: JSON.stringify(request['id']),
        digest: digestOf(request),
        frame: request,
        ...(typeof named === 'string' && { reply: named }),
      })),
    };
    try {
      return await this.#ledger.admit(message, this.#t.clock.now());
    } catch (cause) {
      this.#ended?.(cause);
      throw cause;
    }
  }

  #refuse(m: Incoming, reason: string): undefined {
    drop(this.#t, 'refused', m, { reason });
  }

  /** Who asks: without it whatever is dispatched would be a call of our own. */
  #caller({ from, room }: Incoming): DispatchContext {
    return { from, room, service: this.#service };
  }

  async #notified(m: Incoming, frame: JsonObject): Promise<void> {
    const { clock } = this.#t;
    const onError = this.#told;
    const context = { ...this.#caller(m), onError };
    // A layer's own notifications cancel what holds the turns; a handler of ours waits its turn and has its time, like any other.
    if (!this.#o.methods?.has(frame['method'] as string)) {
      const cancelled = this.#dispatcher.cancels(frame);
      if (cancelled !== undefined) this.#queued.get(`${m.from} ${JSON.stringify(cancelled)}`)?.abort();
      await this.#dispatcher.dispatch(frame, context);
      return;
    }
    const release = await this.#workers.enter(m.from);
    if (!release) return this.#refuse(m, 'too many wait');
    if (this.#share && !this.#share.holds(m.from)) {
      release();
      return this.#refuse(m, 'the share of the mailbox is another server’s by now');
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

  /** Requests for which nothing runs, as there is no such method. */
  #passing(requests: JsonObject[]): Set<JsonObject> {
    return new Set(requests.filter((request) => !this.#dispatcher.acts(request)));
  }

  /** The answer to such a request. */
  async #inPassing(m: Incoming, request: JsonObject): Promise<string> {
    const answer = await this.#dispatcher.dispatch(request, this.#caller(m));
    return this.#textOf(answer!, request);
  }

  /** The text of the answer to one request; undefined when none goes back. */
  async #outcome(
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
        // Read again after a restart; a repeat that the caller signed anew is fresh.
        if (fresh || !verdict.sent) return verdict.answer;
        drop(this.#t, 'skipped', m, { reason: 'old' });
        return undefined;
      case 'interrupted':
        return this.#interrupted(m, request, fresh, reply);
      case 'before':
        return this.#refusal(m, before(id, verdict.nonce));
      case 'differs':
        return encodeLong(
          rpcError(id, INVALID_REQUEST, 'Invalid Request: this id stands for another request of yours'),
        );
      case 'full':
        return this.#refusal(m, encodeLong(rpcError(id, BUSY, 'Busy', { retryAfterMs: verdict.retryAfterMs })));
      default:
        drop(this.#t, 'skipped', m, { reason: verdict.kind });
        return undefined;
    }
  }

  /** Of a request that another process began: its answer if that stands there, else another try or the word for none. */
  async #interrupted(m: Incoming, request: JsonObject, fresh: boolean, reply: Reply): Promise<string | undefined> {
    const id = request['id'] as Id;
    const key = JSON.stringify(id);
    const found = reply.room === undefined ? undefined : await this.#share?.answerIn(reply.room, key);
    if (found === undefined && this.#dispatcher.idempotent(request)) return this.#run(m, request, reply);
    const text = found ?? interrupted(id);
    await this.#ledger.answer(m.from, key, text);
    // Only who asks again did not see what stands there.
    return found === undefined || fresh ? text : undefined;
  }

  /** A refusal costs a write like any answer: a key that floods gets only some. */
  #refusal(m: Incoming, text: string): string | undefined {
    if (!this.#answering.isCrowded(m.from)) return text;
    drop(this.#t, 'refused', m, { reason: 'too much waits for this key' });
    return undefined;
  }

  /** What a handler threw: the caller learns none of it, whoever runs the server all. */
  readonly #told = (error: unknown, method: string): void => {
    if (!this.#o.onEvent)
      console.error(`technocore-rpc: the handler of ${JSON.stringify(method)} failed: ${printable(error)}`);
    this.#t.onEvent({ kind: 'handler-error', method, error });
  };

  /** Runs a handler within its bounds and keeps what it answered. */
  async #run(m: Incoming, request: JsonObject, reply: Reply): Promise<string | undefined> {
    const { clock } = this.#t;
    const id = request['id'] as Id;
    const key = JSON.stringify(id);
    const open = this.#dispatcher.staysOpen(request);
    let release: (() => void) | undefined = open ? () => {} : this.#workers.tryEnter(m.from);
    if (!release) {
      const name = `${m.from} ${key}`;
      const off = new AbortController();
      this.#queued.set(name, off);
      release = await this.#workers.enter(m.from, off.signal);
      this.#queued.delete(name);
      if (off.signal.aborted) {
        release?.();
        await this.#ledger.answer(m.from, key, interrupted(id));
        return undefined;
      }
    }
    if (!release) {
      await this.#ledger.forget(m.from, key);
      return this.#refusal(m, encodeLong(rpcError(id, BUSY, 'Busy', { retryAfterMs: 1000 })));
    }
    if (this.#share && !this.#share.holds(m.from)) {
      release();
      // Whoever has the share by then must not take it for one that was finished.
      await this.#ledger.answer(m.from, key, interrupted(id));
      this.#share.again(m, decode(m.text)!);
      return undefined;
    }
    const stop = new AbortController();
    this.#running.add(stop);
    const deadlineMs = this.#o.deadlineMs ?? DEADLINE_MS;
    const late = open
      ? new Promise<never>(() => {})
      : clock.sleep(deadlineMs, stop.signal).then(
          () => rpcError(id, DEADLINE, `Deadline: not done within ${deadlineMs} ms`),
          () => undefined,
        );
    let emitted = 0;
    const send = (frame: Json, write: (text: string) => Promise<boolean>): false | Promise<boolean> => {
      if (stop.signal.aborted) return false;
      const text = encodeLong(frame);
      // Whatever a handler says in a burst, memory and the write budget hold.
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
    const emit = (frame: Json): false | Promise<boolean> => send(frame, (text) => this.#answering.write(reply, [text]));
    // One at a time: what waits can still be left out.
    let told = Promise.resolve(true);
    const tell = (frame: Json): false | Promise<boolean> =>
      send(frame, (text) => (told = told.then(() => this.#tell(m, reply, text, stop.signal))));
    try {
      const { signal } = stop;
      const onError = this.#told;
      const dispatched = this.#dispatcher.dispatch(request, {
        ...this.#caller(m),
        rank: this.#regulars.rank(m.from),
        // What waits for long is ended with the dispatcher.
        ...(!open && { signal }),
        emit,
        tell,
        limit: this.#answering.limit,
        onError,
      });
      const answer = await Promise.race([dispatched, late]);
      // Of what was called off nobody knows how far it got; a subscription that ended may begin again.
      const text = answer === undefined ? interrupted(id) : await this.#textOf(answer, request, reply);
      if (answer === undefined && open) await this.#ledger.forget(m.from, key);
      else await this.#ledger.answer(m.from, key, text);
      return answer === undefined ? undefined : text;
    } finally {
      // After the deadline nobody hears the handler any more; it learns so by its signal.
      stop.abort(CALL_OVER);
      this.#running.delete(stop);
      release();
    }
  }

  /**
   * Writes a notification that is worth no waiting to anybody.
   *
   * @param over aborted when its call has ended, and the answer is next
   */
  async #tell(m: Incoming, reply: Reply, text: string, over: AbortSignal): Promise<boolean> {
    if (!over.aborted && this.#answering.hasSpare) return this.#answering.tell(reply, text);
    const why = over.aborted ? 'its call has ended' : 'less than half of the write budget is left, or answers wait';
    drop(this.#t, 'skipped', m, { reason: `a notification: ${why}` });
    return false;
  }

  /** An answer as it goes back. What cannot be written is an error, and what goes where nobody reads it is not kept at length. */
  async #textOf(answer: Json, request: JsonObject, reply?: Reply): Promise<string> {
    const id = request['id'] as Id;
    let text: string;
    try {
      text = encodeLong(answer);
    } catch (cause) {
      this.#told(cause, String(request['method']));
      return encodeLong(rpcError(id, INTERNAL_ERROR, 'Internal error'));
    }
    return this.#answering.fitted(text, request, reply);
  }
}

/** @internal Whether a server with these options reads requests out of notes. */
export function readsSpilled({ spill, allow }: Pick<ServeOptions, 'spill' | 'allow'>): boolean {
  return spill ?? allow !== undefined;
}

/** Characters that an error of ours takes beside the id. */
const ERROR_CHARS = 512;
/** Requests in one batch; each may cost an answer. */
const MAX_REQUESTS = 128;
/** Messages of one key that wait to be admitted; things of all keys under way. */
const MAX_LANE = 1024;
const MAX_TASKS = 16_384;
/** Members of one batch that are no requests, and are told so. */
const MAX_INVALID = 64;

/** Mailboxes that are served through a transport, and by which key. */
const SERVING = {};

/** How long a handler may take, unless told otherwise, ms. */
const DEADLINE_MS = 60_000;
/** How long answers may take to be written after that, when the server ends, ms. */
const DRAIN_MS = 30_000;
/** How long a server may take to be ready before it says why it is not, ms. */
const LATE_MS = 3000;
/** How often the ledger is told the time, ms. */
const PASS_MS = 30_000;
const OVER = new TechnocoreError('over', 'the server has ended');
// One for all, which spares each call the making of a stack.
const CALL_OVER = new TechnocoreError('deadline', 'the call is over');
/** Verdicts whose answers are kept in the ledger. */
const KEPT: ReadonlySet<string> = new Set(['new', 'answered', 'interrupted']);

function digestOf({ method, params }: JsonObject): string {
  return toHex(sha256(utf8(encodeLong([method as Json, params ?? null]))).subarray(0, 16));
}

function deferred(): { promise: Promise<void>; resolve: () => void; reject: (cause: unknown) => void } {
  let resolve!: () => void;
  let reject!: (cause: unknown) => void;
  const promise = new Promise<void>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
