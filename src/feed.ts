/**
 * Feeds: one read loop per room, shared by all listeners, which runs while there are any. It decides when to read,
 * which on a service that wakes its readers only twice a second determines how long a call takes.
 *
 * @module
 */
import { following, OVER } from './clock.ts';
import type { RingGap } from './errors.ts';
import { budgetOf, Joint, orAbort, type Polled, poll, retrying, rhythmOf, sharedOf, type Transport } from './http.ts';
import { type Message, verifyMessage, writtenAt } from './messages.ts';
import { isDid, isNonce } from './names.ts';
import { type Batch, PATIENCE_MS, type Place, RoomCursor, type Start } from './rooms.ts';
import { learnLimits } from './service.ts';

/** A message as delivered by a {@link Channel}. */
export interface Incoming {
  /** The writer, proved by a signature or by encryption; `''` if unproved. */
  readonly from: string;
  /** The text, untrusted; {@link decode} tells whether it is a frame. */
  readonly text: string;
  /** The room or session it came through. */
  readonly room: string;
  /** Its position there. */
  readonly seq: number;
  /** Decimal digits that rise with every message from one writer, so that a replayed message is recognized. */
  readonly nonce?: string | undefined;
  /** When it was written, in milliseconds since the epoch by the service's clock. */
  readonly at?: number | undefined;
}

/**
 * Emits an event about an ignored message: `refused` by one of our rules, or `skipped`.
 *
 * @param why the reason, or what was thrown
 */
export function drop(
  t: Transport,
  kind: 'refused' | 'skipped',
  { room, seq, from }: Pick<Incoming, 'room' | 'seq' | 'from'>,
  why: { reason?: string; cause?: unknown },
): undefined {
  t.onEvent({ kind, room, seq, from, ...why });
}

/** A listener on a {@link Channel}. Its methods must return quickly and must not throw. */
export interface Listener {
  /** Called with each message in order, including our own. */
  message(m: Incoming): void;
  /**
   * Called when messages were lost. Later ones may have been delivered already.
   *
   * @param before when the first message after the lost ones was written, in milliseconds since the epoch by the
   * service's clock; undefined if unknown
   */
  gap(gap: RingGap, before?: number): void;
  /**
   * Called when the room was recreated, before the messages of the new room are delivered.
   *
   * @param goesOn whether the `seq` continues from the old room
   * @param messages those that will be delivered
   */
  renewed?(goesOn: boolean, messages: readonly Incoming[]): void;
  /** Called with the reason when nothing more will come. */
  end(cause: unknown): void;
  /** How many messages are likely to come soon; default 0. The more, the longer reads let them gather. */
  expects?(): number;
  /**
   * Whether messages come unprompted, as to a server. Then a second read, half a step after the first, halves their
   * latency.
   */
  readonly stagger?: boolean | undefined;
  /** Whether it waits for answers to what is sent through the channel: then probing for them beats parking a read. */
  readonly awaits?: boolean | undefined;
}

const SIGS = {};

/**
 * The author of a message, as proved by its signature, or as stated by a service that keeps no signatures; `''` if
 * unproved.
 */
export function authorOf(t: Transport, room: string, m: Message): string {
  // A nonce orders what a key wrote, so a message with a malformed nonce has no author.
  if (!isDid(m.from) || (m.nonce !== undefined && !isNonce(m.nonce))) return '';
  const base = sharedOf(t, SIGS, () => ({ keepsSigs: false }));
  const verdict = verifyMessage(room, m);
  if (verdict === 'valid') base.keepsSigs = true;
  // A service that keeps signatures shows one with every signed message: if it is missing, somebody removed it.
  else if (verdict === 'invalid' || base.keepsSigs) {
    drop(t, 'refused', { ...m, room }, { reason: `signature ${verdict}` });
    return '';
  }
  return m.from;
}

/** When to read after one of our writes if readers are woken in steps, ms. After these probes, reads are parked. */
export const PROBES_MS: readonly number[] = [175, 290];
/** How long a parked read is deferred for the write that a new listener is about to make, ms. */
const EXPECT_MS = 1500;
/** How long after the first of two parked reads the second is parked, ms: half a step. */
export const STAGGER_MS = 250;
/** How far the two may drift from that, ms. */
const DRIFT_MS = 50;
/** How long the second read is omitted after an early answer showed that it was too many for this address, ms. */
const STAGGER_PAUSE_MS = 600_000;
/** How many reads per address the service parks; it answers the fifth at once. */
const PARKED = 4;
const READS = {};
/** The share of the read budget that must be left for a probe. */
const PROBE_SHARE = 0.25;
/** The share of the read budget that must be left for a second parked read. */
const STAGGER_SHARE = 0.4;
/** How old an unused cursor may be and still be resumed, ms. Beyond that, the backlog is not worth reading. */
const WARM_MS = 30_000;

/**
 * Learns how long to let messages gather before the next read: in a burst, each message would otherwise cost a read.
 * Peers that exchange one message at a time are never delayed.
 */
class Gathering {
  /**
   * How many messages a pause should gather: rises while they come, and falls to the actual number when they do not.
   */
  #want = 1;
  /** The time between two messages in this burst, ms. */
  #apart = 0;
  #isMeasured = false;
  #isOn = false;
  #wasShort = false;
  #pauseMs = 0;

  /** The pause before the first read, ms: if many answers are due, the first alone is not worth a read. */
  firstMs(expected: number): number {
    const apartMs = this.#isMeasured ? this.#apart * MARGIN : APART_MS;
    return expected >= MANY ? Math.min(expected * apartMs, PAUSE_MS) : 0;
  }

  /**
   * The pause before the next read, ms.
   *
   * @param messages what the last read returned, at least one
   * @param took how long it was held, ms
   * @param expected how many more are likely to come
   */
  pauseMs(messages: Message[], took: number, expected: number): number {
    const came = messages.length;
    if (came >= 3 || this.#pauseMs === 0) {
      this.#isMeasured = came >= 3;
      this.#apart = this.#isMeasured ? usualGap(messages) : took / came;
    }
    this.#isOn = expected >= (this.#want > 1 ? 2 : FEW);
    const isShort = this.#pauseMs > 0 && came <= this.#want / 2;
    if (!this.#isOn) this.#want = 1;
    // The number of answers due is known; for requests, only that there are many.
    else if (came >= this.#want) this.#want = Math.min(Number.isFinite(expected) ? expected : 16 * came, MAX_GATHERED);
    // Only the second time in a row: once may be because the other side gathers, too.
    else if (isShort && this.#wasShort) this.#want = came;
    this.#wasShort = isShort && !this.#wasShort;
    const gathered = Math.min(this.#want, expected);
    const wholeMs = gathered * this.#apart * MARGIN;
    // In a burst that takes long anyway, longer pauses do no harm.
    const mostMs = this.#isMeasured ? Math.max(PAUSE_MS, Math.min(wholeMs / 4, MAX_PAUSE_MS)) : PAUSE_MS;
    const farMs = this.#isMeasured ? mostMs / WORTH : FAR_MS;
    this.#pauseMs = gathered > 1 && this.#apart < farMs ? Math.min(wholeMs, mostMs) : 0;
    return this.#pauseMs;
  }

  /** True while messages come in a burst. */
  get burst(): boolean {
    return this.#isOn;
  }
}

/** How many messages must be expected for a burst to start. */
const FEW = 5;
/** Pauses are a little too long: that costs less than a read for the few messages that they would miss. */
const MARGIN = 1.25;
/** How many calls at once count as a burst before the first answer comes. */
const MANY = 16;
/** The assumed time between two answers until it is measured, ms. */
const APART_MS = 4;
/** How many messages a pause between two reads is meant to gather at most. */
const MAX_GATHERED = 64;
/** The longest pause of a short burst, ms. */
const PAUSE_MS = 250;
/** The longest pause of any burst, ms. */
const MAX_PAUSE_MS = 1000;
/** Messages that are this far apart are not a burst, ms. */
const FAR_MS = 30;
/** How many messages a pause must be likely to gather to justify delaying the first one. */
const WORTH = 4;

/**
 * The median time between two messages, ms: if both sides gather, messages come in clusters, which an average would
 * blur. If the service's clock cannot tell most of them apart, the average, at most a millisecond.
 */
function usualGap(messages: Message[]): number {
  const times = messages.map(({ ts }) => Date.parse(ts));
  const gaps = times.slice(1).map((ms, i) => Math.max(ms - times[i]!, 0));
  const sum = gaps.reduce((a, b) => a + b, 0);
  return gaps.sort((a, b) => a - b)[gaps.length >> 1]! || Math.min(sum / gaps.length, 1) || 0;
}

/** How to listen to a feed. */
export interface Listening {
  signal?: AbortSignal | undefined;
  /** Where to start; default: with messages from now on. */
  from?: Start | undefined;
  /** Whether messages follow writes announced by {@link Feed.nudge}, so that probing then beats parking a read. */
  nudged?: boolean;
}

interface Registration {
  readonly listener: Listener;
  readonly nudged: boolean;
  /** Its own place, while it lacks messages that the other listeners have. */
  behind: Start | undefined;
}

/** The feed of one room: one read loop for all its listeners. */
export class Feed {
  readonly #t: Transport;
  /** How many reads the feeds of this transport keep parked. */
  readonly #reads: { parked: number };
  readonly #cursor: RoomCursor;
  readonly #gathering = new Gathering();
  readonly #listeners = new Set<Registration>();
  #loop: AbortController | undefined;
  #starting: Joint<void> | undefined;
  #place: Place | undefined;
  #idleSince = 0;
  /** The last view being taken: the views of different reads are taken one after the other. */
  #taking: Promise<unknown> = Promise.resolve();
  /** Clock time until which no read is parked; `#wake` ends that early. */
  #holdUntil = 0;
  #wake: AbortController | undefined;
  #prober: AbortController | undefined;
  #nudged = false;
  #noStaggerUntil = 0;
  /** When the first of the two reads was parked. */
  #parkedAt = 0;

  constructor(t: Transport, room: string) {
    this.#t = t;
    this.#reads = sharedOf(t, READS, () => ({ parked: 0 }));
    this.#cursor = new RoomCursor(t, room);
  }

  /** The place after the last message that all listeners have. */
  get place(): Place | undefined {
    for (const { behind } of this.#listeners) if (behind) return behind;
    return this.#place;
  }

  /** True while nobody listens. */
  get idle(): boolean {
    return this.#listeners.size === 0;
  }

  /** Changes whenever the room is recreated. It is part of ids that must not outlive the room. */
  get epoch(): number {
    return this.#cursor.epoch;
  }

  /**
   * Adds a listener. Resolves once no later message can be missed.
   *
   * @returns a function that removes it
   */
  async listen(listener: Listener, { signal, from, nudged = false }: Listening = {}): Promise<() => void> {
    // A new registration each time, since a listener may be added again before it is removed.
    const registration: Registration = { listener, nudged, behind: from };
    this.#listeners.add(registration);
    const leave = (): void => {
      if (!this.#listeners.delete(registration) || this.#listeners.size > 0) return;
      this.#loop?.abort(OVER);
      this.#prober?.abort(OVER);
      this.#loop = undefined;
      this.#idleSince = this.#t.clock.now();
    };
    try {
      // Listeners that come while the cursor is being placed wait for the same reads, or restart them if all others
      // have left.
      while (!this.#loop && this.#listeners.has(registration)) {
        if (!this.#starting || this.#starting.isOff) {
          registration.behind = undefined;
          const starting = new Joint((off) =>
            this.#start(from, off).finally(() => {
              if (this.#starting === starting) this.#starting = undefined;
            }),
          );
          this.#starting = starting;
        }
        await this.#starting.join(signal);
      }
      if (registration.behind) await this.#catchUp(registration, signal);
    } catch (cause) {
      leave();
      throw cause;
    }
    return leave;
  }

  /** Sets the place to the end of the room, which was just seen, so that the next listener need not read it again. */
  sawEnd(place: Place): void {
    if (this.#loop || this.#starting) return;
    const { since } = this.#cursor;
    // Without generations, only the message at the cursor distinguishes a room from the one before it: keep it.
    if (since !== undefined && (place.generation === undefined || place.since < since)) return;
    this.#cursor.place = place;
    this.#idleSince = this.#t.clock.now();
  }

  /** Called when what was expected did not come: the room may have been recreated while nobody read it. */
  doubt(): void {
    this.#cursor.doubt();
  }

  /**
   * Checks whether the room was recreated, as another read of it suggests. Once the new room has more messages than the
   * old one, our own reads may no longer notice.
   */
  async recheck(signal: AbortSignal): Promise<void> {
    await this.#inTurn(async () => {
      const batch = this.#place && (await this.#cursor.restart(signal));
      if (batch) this.#deliver(batch);
    });
  }

  /**
   * Delivers to one listener what came between its own place and that of the others, which continue meanwhile.
   */
  async #catchUp(one: Registration, signal: AbortSignal | undefined): Promise<void> {
    const { clock } = this.#t;
    const cursor = new RoomCursor(this.#t, this.#cursor.room);
    cursor.place = one.behind!;
    const until = clock.now() + PATIENCE_MS;
    const begun = this.#cursor.epoch;
    let isRenewed = false;
    while (one.behind && this.#listeners.has(one)) {
      const [since, epoch] = [this.#cursor.since, this.#cursor.epoch];
      const { value } = await retrying(this.#t, until, () => cursor.next(0, signal), signal);
      // Between two views: then the others have exactly what is before the common cursor.
      await this.#inTurn(() => {
        const end = this.#cursor.since!;
        // If the room was recreated meanwhile, what was read may belong to the old room, and all of it is missing here.
        if (value?.gap?.reason === 'recreated') isRenewed = true;
        const isBefore = this.#cursor.epoch !== begun && !isRenewed;
        if (value) {
          const messages = value.messages.filter(({ seq }) => isBefore || seq <= end);
          this.#hand(one.listener, this.#incoming(messages), value);
        }
        const hasMoved = value !== undefined || end !== since || this.#cursor.epoch !== epoch;
        one.behind = hasMoved && (isBefore || cursor.since! < end) ? cursor.place : undefined;
      });
    }
  }

  /** Runs a function after earlier views have been taken and before the next one is. */
  #inTurn<T>(run: () => T | Promise<T>): Promise<T> {
    const done = this.#taking.then(run);
    this.#taking = done.catch(() => {});
    return done;
  }

  /** Announces that something was just written whose answer will come here, so that the feed probes for it in time. */
  nudge(): void {
    const loop = this.#loop;
    const { clock } = this.#t;
    if (!loop || !rhythmOf(this.#t).coarse || ![...this.#listeners].some(({ nudged }) => nudged)) return;
    this.#holdUntil = clock.now() + (this.#affords(PROBE_SHARE) ? PROBES_MS.at(-1)! : 0);
    this.#wake?.abort(OVER);
    this.#nudged = true;
    // For one waiting call, its own write times the probes; with several, those under way serve all.
    if (this.#prober && this.#expected() > 1) return;
    this.#prober?.abort(OVER);
    const prober = new AbortController();
    this.#prober = prober;
    void this.#probe(prober.signal, loop.signal).finally(() => {
      if (this.#prober === prober) this.#prober = undefined;
    });
  }

  async #probe(signal: AbortSignal, loop: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    try {
      while (this.#nudged && !loop.aborted) {
        this.#nudged = false;
        const start = clock.now();
        for (const ms of PROBES_MS) {
          await clock.sleep(Math.min(ms, start + ms - clock.now()), signal);
          if (this.#expected() > 0 && this.#affords(PROBE_SHARE)) await this.#read(0, loop);
        }
      }
    } catch {
      // A failed probe is harmless: the parked read that follows gets the messages.
    }
  }

  #affords(share: number): boolean {
    return budgetOf(this.#t, 'read').left > share;
  }

  #expected(): number {
    let expected = 0;
    for (const { listener } of this.#listeners) expected += listener.expects?.() ?? 0;
    return expected;
  }

  async #start(from: Start | undefined, off: AbortSignal): Promise<void> {
    if (this.#loop) return;
    const { clock } = this.#t;
    const learned = learnLimits(this.#t);
    const idle = clock.now() - this.#idleSince;
    if (from) this.#cursor.place = from;
    else if (this.#cursor.since === undefined || idle > WARM_MS || idle < 0) {
      await retrying(this.#t, clock.now() + PATIENCE_MS, () => this.#cursor.toTail(off), off);
    }
    // The limits must be known before a burst of requests is sent.
    await orAbort(learned, off);
    this.#place = this.#cursor.place;
    if (this.#listeners.size === 0 || this.#loop) return;
    this.#loop = new AbortController();
    this.#holdUntil = clock.now() + EXPECT_MS;
    void this.#run(this.#loop);
  }

  async #run(loop: AbortController): Promise<void> {
    const { signal } = loop;
    const { clock } = this.#t;
    let second = false;
    this.#reads.parked++;
    const step = async (waitMs: number): Promise<Polled<number>> => {
      await this.#hold(signal);
      if (!second && this.#reads.parked < PARKED && this.#staggers()) {
        second = true;
        void this.#second(signal).finally(() => {
          second = false;
        });
      }
      this.#parkedAt = clock.now();
      return this.#read(waitMs, signal);
    };
    try {
      await clock.sleep(this.#gathering.firstMs(this.#expected()), signal);
      for await (const pauseMs of poll(this.#t, step, { signal })) if (pauseMs > 0) await clock.sleep(pauseMs, signal);
    } catch (cause) {
      if (signal.aborted) return;
      loop.abort(OVER);
      this.#prober?.abort(OVER);
      this.#loop = undefined;
      this.#idleSince = clock.now();
      const left = [...this.#listeners];
      this.#listeners.clear();
      for (const { listener } of left) listener.end(cause);
    } finally {
      this.#reads.parked--;
    }
  }

  /** Waits before parking a read while a probe is due soon. */
  async #hold(signal: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    if (!rhythmOf(this.#t).coarse || ![...this.#listeners].every(({ nudged }) => nudged)) return;
    for (;;) {
      const ms = this.#holdUntil - clock.now();
      // Longer than any hold: the clock was set back.
      if (ms <= 0 || ms > EXPECT_MS) return;
      const { stop, forget } = following(signal);
      this.#wake = stop;
      await clock.sleep(ms, stop.signal).catch(() => {});
      forget();
      signal.throwIfAborted();
    }
  }

  #staggers(): boolean {
    return (
      rhythmOf(this.#t).coarse &&
      !this.#gathering.burst &&
      this.#t.clock.now() >= this.#noStaggerUntil &&
      this.#affords(STAGGER_SHARE) &&
      [...this.#listeners].some(({ listener }) => listener.stagger)
    );
  }

  /** Keeps a second read parked, half a step behind the first, for as long as the service and the budget allow. */
  async #second(signal: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    this.#reads.parked++;
    try {
      await clock.sleep(STAGGER_MS, signal);
      const step = async (waitMs: number): Promise<Polled<boolean>> => {
        const late = STAGGER_MS - ((clock.now() - this.#parkedAt) % (2 * STAGGER_MS));
        if (Math.abs(late) > DRIFT_MS) await clock.sleep(late > 0 ? late : late + 2 * STAGGER_MS, signal);
        const start = clock.now();
        const polled = await this.#read(waitMs, signal);
        const early = polled.value === undefined && (polled.held === false || clock.now() - start < STAGGER_MS);
        if (early) this.#noStaggerUntil = clock.now() + STAGGER_PAUSE_MS;
        const isOneTooMany = early || this.#reads.parked > PARKED;
        return { value: !isOneTooMany && !this.#gathering.burst && this.#affords(STAGGER_SHARE) };
      };
      for await (const goOn of poll(this.#t, step, { signal })) if (!goOn) return;
    } catch {
      // Failures are left to the first read, which ends the loop if they are final.
    } finally {
      this.#reads.parked--;
    }
  }

  /** Reads once. The value, if the read returned anything, is how long to pause before the next one, ms. */
  async #read(waitMs: number, signal: AbortSignal): Promise<Polled<number>> {
    const { clock } = this.#t;
    const start = clock.now();
    const view = await this.#cursor.look(waitMs, signal);
    const took = clock.now() - start;
    if (waitMs > 0 && view.messages.length > 0) rhythmOf(this.#t).woken(took);
    return this.#inTurn(async (): Promise<Polled<number>> => {
      signal.throwIfAborted();
      const batch = await this.#cursor.take(view, signal);
      if (batch) this.#deliver(batch);
      if (batch?.messages.length) return { value: this.#gathering.pauseMs(batch.messages, took, this.#expected()) };
      // If another of our reads got the messages first, this was not an empty answer.
      if (view.messages.some(({ seq }) => seq > (view.since ?? 0))) return { value: 0 };
      return view.waitHeld === undefined ? {} : { held: view.waitHeld };
    });
  }

  #incoming(messages: readonly Message[]): Incoming[] {
    const { room } = this.#cursor;
    return messages.map((m) => {
      const from = authorOf(this.#t, room, m);
      const { seq, text, nonce } = m;
      const at = writtenAt(m);
      return { from, text, room, seq, ...(nonce !== undefined && { nonce }), ...(at !== undefined && { at }) };
    });
  }

  #deliver(batch: Batch): void {
    const incoming = this.#incoming(batch.messages);
    for (const { listener, behind } of [...this.#listeners]) if (!behind) this.#hand(listener, incoming, batch);
    this.#place = this.#cursor.place;
  }

  /** Delivers a batch to one listener. If it throws, neither it nor the others miss anything. */
  #hand(listener: Listener, messages: readonly Incoming[], { gap, before }: Batch): void {
    const tell = (what: () => void): void => {
      try {
        what();
      } catch (cause) {
        this.#t.onEvent({ kind: 'listener-error', room: this.#cursor.room, cause });
      }
    };
    if (gap?.reason === 'recreated') {
      // With generations, the `seq` continues, unless the service lost them together with its rooms.
      const goesOn = this.#cursor.generation !== undefined && gap.oldest >= gap.expected;
      tell(() => listener.renewed?.(goesOn, messages));
    }
    for (const m of messages) tell(() => listener.message(m));
    if (gap) tell(() => listener.gap(gap, before));
  }
}

const FEEDS = {};
/** For how many rooms the cursor is kept. */
const MAX_FEEDS = 256;

/** The one feed of a room on a transport. */
export function feedOf(t: Transport, room: string): Feed {
  const feeds = sharedOf(t, FEEDS, () => new Map<string, Feed>());
  let feed = feeds.get(room);
  if (!feed) {
    feed = new Feed(t, room);
    feeds.set(room, feed);
    // Forgetting an idle feed costs one read. A running one is never forgotten: there are no more than our calls need.
    for (const [name, old] of feeds) {
      if (feeds.size <= MAX_FEEDS) break;
      if (old.idle) feeds.delete(name);
    }
  }
  return feed;
}
