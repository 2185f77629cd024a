/**
 * Serving: takes requests from a channel, passes them through the ledger and a dispatcher, and sends the answers where
 * they may go. One bad frame is one skipped frame: no untrusted message ends the loop, reaches a handler unchecked or
 * makes memory grow.
 *
 * @module
 */
import { Answering, replyNamed } from './answering.ts';
import { denied, interrupted } from './answers.ts';
import { toHex, utf8 } from './bytes.ts';
import {
  beginningOf,
  type Channel,
  checkLatency,
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
import { digestIn, FRAME_MEMBER, readSpilled } from './spill.ts';
import { mostFor, Regulars } from './turns.ts';
import { Underway } from './underway.ts';
import { isSpilled, LongRequests } from './unspill.ts';

/** The maximum length of one of our own errors, apart from the id. */
const ERROR_CHARS = 512;
/** The maximum number of requests in a batch: each may cost an answer. */
const MAX_REQUESTS = 128;
/** How many messages of one key can wait to be admitted. */
const MAX_LANE = 1024;
/** How many tasks of all keys can be under way. */
const MAX_TASKS = 16_384;
/** How many invalid members of a batch are answered. */
const MAX_INVALID = 64;

/** How long after the deadline answers may still be written when the server ends, ms. */
const DRAIN_MS = 30_000;
/** How long a server may take to be ready before it says why it is not, ms. */
const LATE_MS = 3000;
/** How often the ledger gets the current time, ms. */
const PASS_MS = 30_000;
const OVER = new TechnocoreError('over', 'the server has ended');
/** The verdicts whose answers the ledger stores. */
const KEPT: ReadonlySet<string> = new Set(['new', 'answered', 'interrupted']);

/** The mailboxes served through a transport, each with the key that serves it. */
const SERVING = {};

/** Options of {@link serve}. */
export interface ServeOptions
  extends Options,
    Pick<DispatcherOptions, 'methods' | 'tools' | 'serverInfo' | 'instructions' | 'pageSize' | 'layer'> {
  /**
   * Decides who may call, by the caller's DID. Default: everybody. Others get error 1004, or no answer if `silent` is
   * set. If it throws, or has not decided after 30 seconds, the message is skipped.
   */
  allow?: ((from: string) => boolean | Promise<boolean>) | undefined;
  /** Whether callers that `allow` rejects get no answer at all; default false. */
  silent?: boolean | undefined;
  /**
   * Decides whether answers to the DID `from` may go to the mailbox `room`. Default: only the built-in rules apply. If
   * it throws, or has not decided after 30 seconds, the message is skipped.
   */
  replyPolicy?: ((from: string, room: string) => boolean | Promise<boolean>) | undefined;
  /** Limits on answers to mailboxes that may not be the caller's. */
  replyLimits?: ReplyLimits | undefined;
  /** How many handlers run at a time; default 16. Keys that were never answered can take three quarters of them. */
  concurrency?: number | undefined;
  /** How many requests can wait for a handler; default 1,024. One key can take a quarter of that. */
  queue?: number | undefined;
  /**
   * How long a handler may take, in milliseconds; default 60,000. Then its signal aborts, and the caller gets error 1003.
   */
  deadlineMs?: number | undefined;
  /**
   * How long the server may take to end after `signal` has aborted, in milliseconds; default: `deadlineMs` plus 30,000.
   * Answers that are not written by then are dropped (event `undrained`); a ledger in a file keeps them for callers
   * that ask again.
   */
  drainMs?: number | undefined;
  /**
   * Stores requests and answers, so that no request runs twice. Default: {@link memoryLedger}, which is lost with the
   * process. After a restart without a persistent ledger, requests signed before the restart are not run: a caller that
   * is still waiting signs its request again, which then runs, perhaps for the second time. {@link fileLedger} is
   * persistent.
   */
  ledger?: Ledger | undefined;
  /**
   * Stores how far the mailbox has been read, so that requests that come while the server is down are served later:
   * {@link fileCursor}. Default: none; the server starts with new messages (in a mailbox that was never opened before,
   * with those that are waiting there). Needs a persistent `ledger`, or finished requests would run again: without a
   * ledger it is refused, and with one in memory there is an event `forgetful`.
   */
  cursor?: CursorStore | undefined;
  /**
   * `fast` (default): keeps a second long-polling read open, within the read budget, on services that check for new
   * messages every half second. `frugal`: one long-polling read.
   */
  latency?: 'fast' | 'frugal' | undefined;
  /**
   * Whether to maintain a signed note that tells those who know the mailbox that it is being served. It lets a
   * {@link CallTimeout} say whether there is a server. Costs a write at the start, every ten minutes and at the end,
   * and a read before each until another server with this key is found. That causes an event `warning`, or a console
   * warning if there is no `onEvent`. Default true.
   */
  presence?: boolean | undefined;
  /**
   * Whether several servers with the same seed, usually on different machines, share this mailbox and its callers. All
   * of them must set it. When one dies, the others take over its callers after `leaseMs`, by default 60,000
   * milliseconds: requests that it may have begun but did not answer get error 1001, or run again if they are
   * idempotent. Costs each server three writes (a tenth of an address's budget) and three reads a minute, or twelve
   * reads a minute while it waits for a share. Each server has its own ledger.
   *
   * If messages were lost before a server read them (the ring overflowed, or the room was recreated), that server runs
   * nothing that was signed before. A lost request that another server ran may run again if its caller repeats it under
   * the same id, or if the caller's clock was ahead.
   */
  claim?: boolean | { leaseMs?: number | undefined } | undefined;
  /**
   * Whether to read requests that are too long for a message from notes, with up to 16 reads each. Default: only if
   * `allow` is given. {@link mcpCallTool} and `RoomClientTransport` send such requests, to servers that advertise this;
   * {@link call} and the A2A functions never do.
   */
  spill?: boolean | undefined;
  /** Called once the server is listening, so that no later request can be missed. */
  onReady?: (() => void) | undefined;
}

/**
 * Serves methods and tools to everybody who writes requests to a mailbox or a channel.
 *
 * @returns resolves after `o.signal` has aborted and the requests that were begun are answered, within `drainMs`
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

/** A message, perhaps without the time when it was written. */
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
  /** The keys that have been answered, in the order of their first answer. */
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
    checkLatency(o);
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
        'the option ledger is not a ledger; fileLedger returns a promise, so await it',
      );
    const cursor = this.#channel ? undefined : o.cursor;
    if (cursor) {
      if (typeof cursor.load !== 'function')
        throw new TechnocoreError('bad_option', 'the option cursor is not a cursor; fileCursor(path) makes one');
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

  /** With a persistent cursor and a ledger that is lost, a restart would run finished requests again. */
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
      // Another server may start while this one drains.
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
   * Ensures that no other server in this process takes the same requests.
   *
   * @returns a function that lets others serve the mailbox again
   * @throws a {@link TechnocoreError} `already_served`
   */
  #alone(): () => void {
    const serving = sharedOf(this.#t, SERVING, () => new Map<string, { servers: number; isShared: boolean }>());
    // Only servers with the same key conflict: callers can tell the answers of different keys apart.
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
    const reason = `another server with this key was here at ${when}; if it is still running, both run every request; give both the option claim`;
    if (!this.#o.onEvent) globalThis.console?.warn(`technocore-rpc: ${this.#room}: ${reason}`);
    this.#t.onEvent({ kind: 'warning', room: this.#room, reason });
  };

  /** Advances the ledger's time, even while no requests come. */
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

  /**
   * Waits until the server is ready. If that takes long and there is no `onEvent`, it says why on the console, once.
   */
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
      // From now on, no request is lost even if this process dies.
      const begun = from ? from === first && first : feed.place;
      if (begun) await orAbort(this.#underway.keep(begun), signal);
      return leave;
    } catch (cause) {
      leave();
      throw cause;
    }
  }

  /** Waits until everything that was begun has ended, for at most `drainMs`. */
  async drain(): Promise<void> {
    // Ends subscriptions, with an answer: they would stay open for a long time.
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
      // Nobody would get the answers of requests that still run, or start now; the ledger has them as interrupted.
      this.#runs.stop(OVER);
    }
    timer.abort(OVER);
    this.#sharing.abort(OVER);
    await this.#share?.release();
    // Releasing the share reveals what other servers finished: the ledger gets that before its owner may close it.
    if (!isLate) await this.#underway.ended();
  }

  renewed(goesOn: boolean, messages: readonly Incoming[]): void {
    this.#share?.reset(goesOn, messages);
  }

  gap(gap: RingGap): void {
    // Callers may repeat lost requests, so this is not fatal.
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
    // Our own messages, and the line that opens the mailbox, are not requests.
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

  /** Admits one message, in order of its key. Its requests then run independently. */
  async #admit(m: Incoming, said: JsonObject | Json[], standing: Standing): Promise<void> {
    const digest = isSpilled(said) ? digestIn(said[FRAME_MEMBER]) : undefined;
    const frame = isSpilled(said) ? await this.#unspilled(m, said, standing, digest) : said;
    if (!frame) return;
    const batch = Array.isArray(frame) ? frame : undefined;
    const members = batch ?? [frame];
    const kinds = members.map(classify);
    // Otherwise two servers could answer each other's answers forever.
    if (kinds.every((kind) => kind === 'response')) return;
    const requests = members.filter((_, i) => kinds[i] === 'request') as JsonObject[];
    const named = replyNamed(members);

    const objection = this.#objection(m, members, requests);
    if (objection !== undefined) return this.#refuse(m, objection);
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
    // An invalid frame is answered only if it names a reply room; otherwise it is just untrusted text.
    const wanted = requests.length > 0 || (named !== undefined && (invalid.length > 0 || whole));
    // Without a place for the answer nothing runs: the caller would take silence for failure and ask again.
    const reply = wanted ? await this.#answering.to(m, named) : undefined;
    const asked = reply ? requests : [];
    const passing = this.#runs.passing(asked);
    const notifies = members.some((member, i) => kinds[i] === 'notification' && this.#dispatcher.acts(member));
    // What other servers finished or began is known by its position, not by its time.
    const { fresh, verdicts } = await this.#admission(
      standing === 'new' ? m : { ...m, at: undefined },
      whole ? [] : asked,
      named,
      { passing, notifies, digest },
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
    const refused = (named !== undefined && isNew ? invalid : [])
      .map((member) => this.#dispatcher.invalid(member))
      .filter((answer) => answer !== undefined)
      .map(encodeLong);
    const answer = async (request: JsonObject, i: number): Promise<string | undefined> => {
      const verdict = verdicts[i]!;
      if (verdict.kind === 'new' && passing.has(request)) return this.#runs.inPassing(m, request);
      const isBegun = standing === 'uncertain' && verdict.kind === 'new';
      return this.#runs.outcome(m, request, isBegun ? { kind: 'interrupted' } : verdict, isNew, reply);
    };
    const answered = async (): Promise<void> => {
      const answers = await Promise.all(requests.map(answer));
      const texts = answers.filter((text) => text !== undefined);
      if (!(await this.#answering.write(reply, [...refused, ...texts], batch))) return;
      for (const [i, text] of answers.entries()) {
        if (text !== undefined && KEPT.has(verdicts[i]!.kind) && !passing.has(requests[i]!)) {
          await this.#runs.record((ledger) => ledger.sent(m.from, JSON.stringify(requests[i]!['id'])));
        }
      }
    };
    this.#underway.track(answered(), requests.some((request) => this.#dispatcher.staysOpen(request)) ? undefined : m);
  }

  /** Why a message is refused before any of it is judged; undefined if it is not. */
  #objection(m: Incoming, members: readonly Json[], requests: readonly JsonObject[]): string | undefined {
    if (requests.length > MAX_REQUESTS) return 'too many requests in a batch';
    // An answer under another key's id would reach that key as the answer to a request of its own.
    const answerable = members.filter((member) => classify(member) !== 'response' && isObject(member)) as JsonObject[];
    if (answerable.some(({ id }) => !mayUseId(m.from, id))) return 'an id of another key';
    // Escaped, an id may be six times as long as it came. Nothing runs that could not be answered.
    if (requests.some(({ id }) => encodeLong(id).length > this.#answering.limit - ERROR_CHARS)) {
      return 'an id too long for any answer';
    }
    return undefined;
  }

  /**
   * Reads a request from notes; undefined if another server has, or, with an event and perhaps an error to the caller, if
   * that fails.
   */
  async #unspilled(
    m: Incoming,
    frame: JsonObject,
    standing: Standing,
    digest: string | undefined,
  ): Promise<JsonObject | undefined> {
    const { id } = frame;
    const named = replyNamed([frame]);
    if (!this.#long || !isId(id) || !mayUseId(m.from, id)) return this.#refuse(m, 'a long request');
    if (standing === 'finished') {
      if (digest !== undefined) await this.#elsewhere(m, [frame], named, digest);
      return undefined;
    }
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

  /**
   * Records in our ledger what another server finished, so that it is not run here either.
   *
   * @param digest of a request that is in notes
   */
  async #elsewhere(m: Incoming, requests: JsonObject[], named: unknown, digest?: string): Promise<void> {
    const passing = digest === undefined ? this.#runs.passing(requests) : new Set<JsonObject>();
    const how = { passing, notifies: true, digest };
    const { verdicts } = await this.#admission({ ...m, at: undefined }, requests, named, how);
    for (const [i, { kind }] of verdicts.entries()) {
      if (passing.has(requests[i]!)) continue;
      const id = requests[i]!['id'] as Id;
      if (kind === 'new')
        await this.#runs.record((ledger) => ledger.answer(m.from, JSON.stringify(id), interrupted(id)));
    }
  }

  /** The ledger's verdict. If the ledger fails, the server ends: it could no longer guarantee anything. */
  async #admission(
    m: Unplaced,
    requests: JsonObject[],
    named: unknown,
    { passing, notifies, digest }: { passing: Set<JsonObject>; notifies: boolean; digest?: string | undefined },
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
        digest: digest ?? digestOf(request),
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

/** @internal Whether a server with these options reads requests from notes. */
export function readsSpilled({ spill, allow }: Pick<ServeOptions, 'spill' | 'allow'>): boolean {
  return spill ?? allow !== undefined;
}

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
