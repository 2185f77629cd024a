/**
 * Serving: takes requests from a channel, passes them through the ledger and a dispatcher, and sends the answers to where
 * they may go. One bad frame is one skipped frame: nothing that a stranger writes ends the loop, reaches a handler
 * unchecked or makes memory grow.
 *
 * @module
 */

import { Answering, replyNamed } from './answering.ts';
import { denied, interrupted } from './answers.ts';
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
  type Dispatcher,
  type DispatcherOptions,
  type Id,
  INTERNAL_ERROR,
  isId,
  type JsonObject,
  rpcError,
} from './dispatch.ts';
import { checkFunctions, checkNumbers, checkObject, type RingGap, TechnocoreError, withCallers } from './errors.ts';
import { drop, feedOf } from './feed.ts';
import { decode, encodeLong, isObject, type Json } from './frames.ts';
import {
  decided,
  healthOf,
  type Options,
  onAbort,
  orAbort,
  sharedOf,
  shownBase,
  type Transport,
  transportOf,
} from './http.ts';
import { mayUseId } from './inbox.ts';
import { type Admission, type Ledger, LedgerState, memoryLedger } from './ledger.ts';
import { attend } from './presence.ts';
import type { ReplyLimits } from './replies.ts';
import { type CursorStore, checkSigner, OPENING, PATIENCE_MS, type Place } from './rooms.ts';
import { DEADLINE_MS, Runs } from './runs.ts';
import { Share, type Standing } from './share.ts';
import type { Signer } from './signer.ts';
import { readSpilled } from './spill.ts';
import { mostFor, Regulars } from './turns.ts';
import { Underway } from './underway.ts';
import { isSpilled, LongRequests } from './unspill.ts';

/** Options of {@link serve}. */
export interface ServeOptions
  extends Options,
    Pick<DispatcherOptions, 'methods' | 'tools' | 'serverInfo' | 'instructions' | 'pageSize' | 'layer'> {
  /**
   * Who may call, by the caller's DID. Default: everybody. Others get error 1004, or no answer if `silent` is set. If it
   * throws, or has not decided after 30 seconds, the message is skipped.
   */
  allow?: ((from: string) => boolean | Promise<boolean>) | undefined;
  /** Whether callers that `allow` rejects get no answer at all; default false. */
  silent?: boolean | undefined;
  /**
   * Whether answers to the DID `from` may go to the mailbox `room`. Default: the built-in rules alone decide. If it throws,
   * or has not decided after 30 seconds, the message is skipped.
   */
  replyPolicy?: ((from: string, room: string) => boolean | Promise<boolean>) | undefined;
  /** Limits on answers to mailboxes that may not be the caller's. */
  replyLimits?: ReplyLimits | undefined;
  /** The most handlers that run at a time; default 16. Keys that were never answered can have three quarters of them. */
  concurrency?: number | undefined;
  /** The most requests that wait for a handler; default 1,024, of which one key can have a quarter. */
  queue?: number | undefined;
  /**
   * How long a handler may take, in milliseconds; default 60,000. Then its signal aborts, and the caller gets error 1003.
   */
  deadlineMs?: number | undefined;
  /**
   * How long the server may take to end after `signal` has aborted, in milliseconds; default: `deadlineMs` plus 30,000.
   * Answers that are not written by then are dropped (event `undrained`); a ledger in a file keeps them for callers who
   * ask again.
   */
  drainMs?: number | undefined;
  /**
   * Keeps requests and answers, so that no request runs twice. Default: {@link memoryLedger}, which is lost with the
   * process. After a restart without a kept ledger, requests that were signed before it are not believed: a caller who
   * still waits signs anew, and the request runs, perhaps for the second time. {@link fileLedger} is kept.
   */
  ledger?: Ledger | undefined;
  /**
   * Keeps how far the mailbox has been read, so that requests which come while the server is down are served later:
   * {@link fileCursor}. Default: none; the server begins with messages that come from now on (in a mailbox that was never
   * opened before, with those that wait there). Needs a kept `ledger`, or finished requests would run again: without one
   * it is refused, and with one in memory there is an event `forgetful`.
   */
  cursor?: CursorStore | undefined;
  /**
   * `fast` (default): keeps a second long-polling read, within the read budget, on services that look for new messages in
   * steps of half a second. `frugal`: one long-polling read.
   */
  latency?: 'fast' | 'frugal' | undefined;
  /**
   * Whether to maintain a signed note that tells those who know the mailbox that it is being served, by which a
   * {@link CallTimeout} can say whether there is a server. Costs a write at the start, every ten minutes and at the end,
   * and a read before each until another server with this key is found. That is an event `warning`, or a console warning
   * if there is no `onEvent`. Default true.
   */
  presence?: boolean | undefined;
  /**
   * Whether several servers with the same seed, usually on different machines, share this mailbox and its callers. All of
   * them must set it. When one dies, the others take over its callers after `leaseMs`, by default 60,000 milliseconds:
   * what it may have begun and did not answer is answered with error 1001, or run again if that does no harm. Costs each
   * server three writes (a tenth of an address's budget) and three reads a minute, and twelve reads a minute while it
   * waits for a share. Each keeps a ledger of its own.
   *
   * If messages were lost before a server read them (the ring overflowed, or the room was recreated), that server
   * believes nothing that was signed before. A request among them that another server took runs again if its caller asks
   * again under the same id, or if the caller's clock was ahead.
   */
  claim?: boolean | { leaseMs?: number | undefined } | undefined;
  /**
   * Whether to read requests that are too long for a message from notes, at up to 16 reads each. Default: only if `allow`
   * is given. {@link mcpCallTool} and `RoomClientTransport` send such requests, to servers that say that they read them;
   * {@link call} and the A2A functions never do.
   */
  spill?: boolean | undefined;
  /** Called once no later request can be missed. */
  onReady?: (() => void) | undefined;
}

/**
 * Serves methods and tools to everybody who writes requests into a mailbox or a channel.
 *
 * @returns resolves after `o.signal` has aborted and what was begun is answered, within `drainMs`
 * @throws a {@link BadName} if the room is not a mailbox
 * @throws a {@link TechnocoreError} `bad_option` if options contradict each other; `already_served` if another call
 * serves the same mailbox with the same key through the same transport, unless both set `claim`
 * @throws what opening and reading the mailbox throws, unless it is transient
 */
export async function serve(mailbox: string | Channel, signer: Signer, o: ServeOptions = {}): Promise<void> {
  const t = transportOf(o);
  checkSigner(signer);
  const server = new Server(t, mailbox, signer, o);
  try {
    await server.run(o.signal);
  } catch (cause) {
    if (!o.signal?.aborted) throw withCallers(cause);
  } finally {
    await server.drain();
  }
}

/** A message that may come without the time at which it was written. */
type Unplaced = Omit<Incoming, 'at'> & { at?: number | undefined };

class Server implements Listener {
  readonly stagger: boolean;
  readonly #t: Transport;
  readonly #signer: Signer;
  readonly #o: ServeOptions;
  readonly #channel: Channel | undefined;
  readonly #room: string;
  readonly #self: string;
  readonly #dispatcher: Dispatcher;
  readonly #ledger: Ledger;
  /** Which keys were answered, and in which order they first were. */
  readonly #regulars: Regulars;
  readonly #answering: Answering;
  readonly #runs: Runs;
  readonly #long: LongRequests | undefined;
  readonly #underway: Underway;
  readonly #share: Share | undefined;
  readonly #sharing = new AbortController();
  /** The last task of each key: messages of one key are admitted in order. */
  readonly #lanes = new Map<string, { length: number; last: Promise<void> }>();
  #ended: ((cause: unknown) => void) | undefined;
  #heard = false;

  constructor(t: Transport, mailbox: string | Channel, signer: Signer, o: ServeOptions) {
    this.#t = t;
    this.#signer = signer;
    this.stagger = o.latency !== 'frugal';
    this.#o = o;
    this.#channel = isChannel(mailbox) ? mailbox : undefined;
    this.#room = this.#channel?.room ?? checkMailbox(mailbox as string);
    this.#self = this.#channel?.self ?? '';
    checkFunctions(o, ['allow', 'replyPolicy', 'onReady']);
    checkNumbers(o, ['queue', 'deadlineMs', 'drainMs']);
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
    if (typeof this.#ledger.admit !== 'function')
      throw new TechnocoreError(
        'bad_option',
        'the option ledger is no ledger; fileLedger returns a promise, so await it',
      );
    const cursor = this.#channel ? undefined : o.cursor;
    if (cursor) {
      if (typeof cursor.load !== 'function')
        throw new TechnocoreError('bad_option', 'the option cursor is no cursor; fileCursor makes one of a path');
      this.#checkLedger(o.ledger);
    }
    const oldest = (): number | undefined => this.#share?.oldest;
    this.#underway = new Underway(t, this.#room, cursor && { store: cursor, oldest });
    this.#regulars = new Regulars(t.clock);
    this.#answering = new Answering(t, signer, { room: this.#room, channel: this.#channel }, this.#regulars, o);
    if (spills) this.#long = new LongRequests((ref) => spill.get(ref), this.#regulars);
    if (o.claim) {
      const claim = checkObject(o.claim === true ? {} : o.claim, 'the option claim');
      checkNumbers(claim, ['leaseMs']);
      this.#share = this.#makeShare(claim.leaseMs);
    }
    this.#runs = new Runs({
      t,
      room: this.#room,
      dispatcher: this.#dispatcher,
      ledger: this.#ledger,
      regulars: this.#regulars,
      answering: this.#answering,
      underway: this.#underway,
      share: this.#share,
      o,
    });
  }

  /** With a kept cursor and a ledger that is lost, a restart would run finished requests again. */
  #checkLedger(ledger: Ledger | undefined): void {
    if (!ledger)
      throw new TechnocoreError('bad_option', 'the option cursor needs a persistent ledger as well: fileLedger');
    // A ledger in memory may outlive this server if the process goes on: no error.
    if (ledger instanceof LedgerState) this.#t.onEvent({ kind: 'forgetful', room: this.#room });
  }

  #makeShare(leaseMs: number | undefined): Share {
    if (this.#channel)
      throw new TechnocoreError(
        'bad_option',
        'the option claim requires a mailbox: a channel cannot be shared with other servers',
      );
    const unfinished = (fits: (from: string) => boolean): number | undefined => this.#underway.oldest(fits);
    const handle = (m: Incoming, frame: JsonObject | Json[], standing: Standing): void =>
      this.#enqueue(m, frame, standing);
    const place = (): Place => feedOf(this.#t, this.#room).place ?? { since: 0 };
    const recheck = (signal: AbortSignal): Promise<void> => feedOf(this.#t, this.#room).recheck(signal);
    return new Share(this.#t, this.#signer, this.#room, { handle, place, recheck, unfinished }, leaseMs);
  }

  async run(signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve, reject } = deferred();
    // The channel may end before the promise is awaited.
    promise.catch(() => {});
    this.#ended = reject;
    signal?.throwIfAborted();
    const alone = this.#channel ? () => {} : this.#alone();
    const forget = onAbort(signal, () => {
      // Another server may begin while this one drains.
      alone();
      resolve();
    });
    let leave: (() => void) | undefined;
    const over = new AbortController();
    try {
      // Before `onReady`, so that calls from this process see that the mailbox is served here.
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
   * Makes sure that no other server of this process takes the same requests.
   *
   * @returns a function that lets others serve the mailbox again
   * @throws a {@link TechnocoreError} `already_served`
   */
  #alone(): () => void {
    const serving = sharedOf(this.#t, SERVING, () => new Map<string, { servers: number; isShared: boolean }>());
    // Only servers with the same key are in each other's way: from another one, callers see another key's answers.
    const name = `${this.#room} ${this.#signer.did}`;
    const others = serving.get(name);
    const isShared = this.#share !== undefined;
    if (others && !(isShared && others.isShared)) {
      throw new TechnocoreError(
        'already_served',
        `${this.#room} is already served with this key, and both servers would run every request; give both the option claim`,
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

  /** Warns that another program with the same key serves the same mailbox, or did until it was killed. */
  readonly #warn = (at: number): void => {
    const when = new Date(at).toISOString();
    const reason = `another server with this key was here at ${when}; if it still runs, both run every request; give both the option claim`;
    if (!this.#o.onEvent) globalThis.console?.warn(`technocore-rpc: ${this.#room}: ${reason}`);
    this.#t.onEvent({ kind: 'warning', room: this.#room, reason });
  };

  /** Tells the ledger the time, even while no requests come. */
  async #passTime(signal: AbortSignal): Promise<void> {
    try {
      for (;;) {
        await this.#ledger.pass?.(this.#t.clock.now());
        await this.#t.clock.sleep(PASS_MS, signal);
      }
    } catch (cause) {
      if (!signal.aborted) this.#ended?.(cause);
    }
  }

  /** Waits until the server is ready. If that takes long and there is no `onEvent`, says why on the console, once. */
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
    const kept = await orAbort(this.#underway.load(), signal);
    await openMailbox(this.#t, this.#room, this.#signer, signal);
    const first = beginningOf(this.#t, this.#room, this.#signer);
    const from = this.#share ? await this.#share.begin(kept, signal) : (kept ?? first);
    const feed = feedOf(this.#t, this.#room);
    const leave = await feed.listen(this, { signal, from });
    try {
      // From now on no request is lost, whenever this process dies.
      const begun = from ? from === first && first : feed.place;
      if (begun) await orAbort(this.#underway.keep(begun), signal);
      return leave;
    } catch (cause) {
      leave();
      throw cause;
    }
  }

  /** Waits until what was begun has ended, at most `drainMs`. */
  async drain(): Promise<void> {
    // Ends subscriptions, with an answer: they would go on for long.
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
      // Nobody would get the answer of what still runs, or begins now that others end; in the ledger it is interrupted.
      this.#runs.stop(OVER);
    }
    timer.abort(OVER);
    this.#sharing.abort(OVER);
    await this.#share?.release();
    // Releasing the share told what other servers finished: the ledger gets it before its owner may close it.
    if (!isLate) await this.#underway.ended();
  }

  renewed(goesOn: boolean): void {
    this.#share?.reset(goesOn);
  }

  gap(gap: RingGap): void {
    // Callers may repeat lost requests; the operator gets an event.
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
    // Our own messages, and the line that opens the mailbox, are no requests.
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

  /** Decides about one message, in the turn of its key. What it asks for then runs on its own. */
  async #admit(m: Incoming, said: JsonObject | Json[], standing: Standing): Promise<void> {
    const frame = isSpilled(said) && standing !== 'finished' ? await this.#unspilled(m, said) : said;
    if (!frame) return;
    const batch = Array.isArray(frame) ? frame : undefined;
    const members = batch ?? [frame];
    const kinds = members.map(classify);
    // Or two servers would answer each other's answers without end.
    if (kinds.every((kind) => kind === 'response')) return;
    const requests = members.filter((_, i) => kinds[i] === 'request') as JsonObject[];
    const named = replyNamed(members);

    // An answer under another key's id would reach that key as the answer to a request of its own.
    if (requests.length > MAX_REQUESTS) return this.#refuse(m, 'too many requests in a batch');
    const answerable = members.filter((member, i) => kinds[i] !== 'response' && isObject(member)) as JsonObject[];
    if (answerable.some(({ id }) => !mayUseId(m.from, id))) return this.#refuse(m, 'an id of another key');
    // Once escaped, an id may be six times as long as it came. Nothing is run that could not be answered.
    if (requests.some(({ id }) => encodeLong(id).length > this.#answering.limit - ERROR_CHARS)) {
      return this.#refuse(m, 'an id too long for any answer');
    }
    if (standing === 'finished') return this.#elsewhere(m, requests, named);

    if (!(await this.#allows(m.from))) {
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
    // An invalid frame is answered only if it names a reply room; any other is just untrusted text.
    const wanted = requests.length > 0 || (named !== undefined && (invalid.length > 0 || whole));
    // Without a place for the answer nothing is run: the caller would take silence for failure, and ask again.
    const reply = wanted ? await this.#answering.to(m, named) : undefined;
    const asked = reply ? requests : [];
    const passing = this.#runs.passing(asked);
    const notifies = members.some((member, i) => kinds[i] === 'notification' && this.#dispatcher.acts(member));
    // What other servers finished or began is known by its position, not by when it was signed.
    const { fresh, verdicts } = await this.#admission(
      standing === 'new' ? m : { ...m, at: undefined },
      whole ? [] : asked,
      named,
      { passing, notifies },
    );
    const isNew = fresh && standing === 'new';
    if (isNew) {
      members.forEach((member, i) => {
        if (kinds[i] === 'notification') this.#underway.track(this.#runs.notified(m, member as JsonObject));
      });
    }
    if (!reply) {
      if (wanted) this.#refuse(m, 'no place for an answer');
      return;
    }
    if (whole) {
      if (isNew) {
        const answer = this.#dispatcher.dispatch(batch, this.#runs.caller(m));
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
            if (verdicts[i]!.kind === 'new' && passing.has(request)) return this.#runs.inPassing(m, request);
            const isBegun = standing === 'uncertain' && verdicts[i]!.kind === 'new';
            return this.#runs.outcome(m, request, isBegun ? { kind: 'interrupted' } : verdicts[i]!, isNew, reply);
          }),
        );
        const texts = answers.filter((text) => text !== undefined);
        if (!(await this.#answering.write(reply, [...refused, ...texts], batch))) return;
        for (const [i, text] of answers.entries()) {
          if (text !== undefined && KEPT.has(verdicts[i]!.kind) && !passing.has(requests[i]!)) {
            await this.#runs.record((ledger) => ledger.sent(m.from, JSON.stringify(requests[i]!['id'])));
          }
        }
      })(),
      requests.some((request) => this.#dispatcher.staysOpen(request)) ? undefined : m,
    );
  }

  /** The request that a frame names in notes; undefined, with an event or an error to the caller, if it cannot be had. */
  async #unspilled(m: Incoming, frame: JsonObject): Promise<JsonObject | undefined> {
    const { id } = frame;
    const named = replyNamed([frame]);
    if (!this.#long || !isId(id) || !mayUseId(m.from, id)) return this.#refuse(m, 'a long request');
    if (!(await this.#allows(m.from))) return this.#refuse(m, 'not allowed');
    try {
      return await this.#long.read(m.from, frame);
    } catch (cause) {
      drop(this.#t, 'refused', m, { reason: 'a long request', cause });
      const reply = await this.#answering.to(m, named);
      const text = encodeLong(rpcError(id, INTERNAL_ERROR, 'The request could not be read from its notes'));
      if (reply) this.#underway.track(this.#answering.write(reply, [text]));
      return undefined;
    }
  }

  /** Enters what another server finished into our ledger, so that it is not run here either. */
  async #elsewhere(m: Incoming, requests: JsonObject[], named: unknown): Promise<void> {
    const passing = this.#runs.passing(requests);
    const { verdicts } = await this.#admission({ ...m, at: undefined }, requests, named, { passing, notifies: true });
    for (const [i, { kind }] of verdicts.entries()) {
      if (passing.has(requests[i]!)) continue;
      const id = requests[i]!['id'] as Id;
      if (kind === 'new' || kind === 'interrupted')
        await this.#runs.record((ledger) => ledger.answer(m.from, JSON.stringify(id), interrupted(id)));
    }
  }

  /** The verdict of the ledger. If the ledger fails, the server ends: it could no longer keep its promises. */
  async #admission(
    m: Unplaced,
    requests: JsonObject[],
    named: unknown,
    { passing, notifies }: { passing: Set<JsonObject>; notifies: boolean },
  ): Promise<Admission> {
    // Outside the `try`: what cannot be encoded is an error of the frame, not of the ledger.
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

  #allows(from: string): boolean | Promise<boolean> {
    const { allow } = this.#o;
    return allow === undefined || decided(this.#t, PATIENCE_MS, allow(from));
  }

  #refuse(m: Incoming, reason: string): undefined {
    drop(this.#t, 'refused', m, { reason });
  }
}

/** @internal Whether a server with these options reads requests out of notes. */
export function readsSpilled({ spill, allow }: Pick<ServeOptions, 'spill' | 'allow'>): boolean {
  return spill ?? allow !== undefined;
}

/** The most characters that an error of ours takes beside the id. */
const ERROR_CHARS = 512;
/** The most requests in one batch: each may cost an answer. */
const MAX_REQUESTS = 128;
/** The most messages of one key that wait to be admitted. */
const MAX_LANE = 1024;
/** The most tasks of all keys that are under way. */
const MAX_TASKS = 16_384;
/** The most invalid members of one batch that get an answer. */
const MAX_INVALID = 64;

/** The mailboxes that are served through a transport, with the key that serves each. */
const SERVING = {};

/** How long, when the server ends, answers may take to be written beyond the deadline, ms. */
const DRAIN_MS = 30_000;
/** How long a server may take to be ready before it says why it is not, ms. */
const LATE_MS = 3000;
/** How often the ledger is told the time, ms. */
const PASS_MS = 30_000;
const OVER = new TechnocoreError('over', 'the server has ended');
/** The verdicts whose answers are kept in the ledger. */
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
