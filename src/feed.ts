/**
 * Feeds: one read loop for each room, shared by all who listen to it, which runs while anybody does. It decides when to
 * read. On a service that wakes its readers only twice a second, that decides how long a call takes.
 *
 * @module
 */
import { following, OVER } from './clock.ts';
import type { RingGap } from './errors.ts';
import { budgetOf, Joint, orAbort, type Polled, poll, retrying, rhythmOf, sharedOf, type Transport } from './http.ts';
import { type Message, verifyMessage, writtenAt } from './messages.ts';
import { isDid, isNonce } from './names.ts';
import { type Batch, PATIENCE_MS, type Place, RoomCursor } from './rooms.ts';
import { learnLimits } from './service.ts';

/** A message as a {@link Channel} delivers it. */
export interface Incoming {
  /** The writer, proved by a signature or by encryption; `''` if it is not proved. */
  readonly from: string;
  /** The text, a stranger's; {@link decode} tells whether it is a frame. */
  readonly text: string;
  /** The room or session through which it came. */
  readonly room: string;
  /** Its position there. */
  readonly seq: number;
  /** Decimal digits that rise with every message of one writer, so that a replayed message is recognized. */
  readonly nonce?: string;
  /** When it was written, in milliseconds since the epoch by the service's clock. */
  readonly at?: number;
}

/**
 * Emits an event about a message that is ignored: `refused` by a rule of ours, or `skipped`.
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

/** What listens to a {@link Channel}. Its methods must return soon and must not throw. */
export interface Listener {
  /** Takes each message in order, our own included. */
  message(m: Incoming): void;
  /** Tells that messages were lost before those delivered last. */
  gap(gap: RingGap): void;
  /**
   * Tells that the room was recreated. The messages of the new room come next.
   *
   * @param goesOn whether their `seq` goes on where that of the old room ended
   */
  renewed?(goesOn: boolean): void;
  /** Tells that nothing more will come, and why. */
  end(cause: unknown): void;
  /** How many messages are likely to come soon; default 0. The more, the longer reads let them gather. */
  expects?(): number;
  /**
   * Whether messages come unasked, as to a server. Then a second read, half a step after the first, halves their latency.
   */
  readonly stagger?: boolean;
}

const SIGS = {};

/**
 * The author of a message as far as it is proved: by its signature, or by the word of a service that keeps no signatures;
 * `''` if it is not.
 */
export function authorOf(t: Transport, room: string, m: Message): string {
  // A nonce orders what a key wrote: with one that is not a number, a message has no author.
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

/** Where readers are woken in steps: when to read after a write of ours, ms. After these, reads are parked. */
export const PROBES_MS: readonly number[] = [175, 290];
/** How long a parked read is put off for the write that a new listener is there for, ms. */
const EXPECT_MS = 1500;
/** How long after the first of two parked reads the second is parked, ms: half a step. */
export const STAGGER_MS = 250;
/** How far from that the two may come, ms, by what holds us up now and then. */
const DRIFT_MS = 50;
/** A second read that is answered early is one too many for this address; how long it stays away, ms. */
const STAGGER_PAUSE_MS = 600_000;
/** Shares of the read budget that must be left for a probe and for a second parked read. */
const PROBE_SHARE = 0.25;
const STAGGER_SHARE = 0.4;
/** A warm cursor older than this is not worth the backlog, ms. */
const WARM_MS = 30_000;

/**
 * In a burst each message would cost a read of its own: how long to let them gather, learned from how they come. Who
 * exchanges one message at a time never waits for it.
 */
class Gathering {
  /** Messages that a pause is to gather: ever more while they come, and no more than came when they do not. */
  #want = 1;
  /** How far apart the messages of this burst come, ms. */
  #apart = 0;
  #isMeasured = false;
  #isOn = false;
  #wasShort = false;
  #pauseMs = 0;

  /** The pause before the first read, ms: where so many answers are due, the very first is not worth one. */
  firstMs(expected: number): number {
    const apartMs = this.#isMeasured ? this.#apart * MARGIN : APART_MS;
    return expected >= MANY ? Math.min(expected * apartMs, PAUSE_MS) : 0;
  }

  /**
   * The pause before the next read, ms.
   *
   * @param messages what the last one brought, at least one
   * @param took how long it was held, ms
   * @param expected messages that are likely to come
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
    // Of answers it is known how many come; of requests only that there are ever more.
    else if (came >= this.#want) this.#want = Math.min(Number.isFinite(expected) ? expected : 16 * came, MAX_GATHERED);
    // Once may be because the other side gathers, too.
    else if (isShort && this.#wasShort) this.#want = came;
    this.#wasShort = isShort && !this.#wasShort;
    const gathered = Math.min(this.#want, expected);
    const wholeMs = gathered * this.#apart * MARGIN;
    // A burst that is known to take long anyway bears longer pauses.
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

/** Messages for which no read is saved. */
const FEW = 5;
/** A pause that is a little too long costs less than a read for the few that it missed. */
const MARGIN = 1.25;
/** So many calls at once are a burst before the first answer comes; how far apart answers are until it is known, ms. */
const MANY = 16;
const APART_MS = 4;
/** Most messages that a pause between two reads is meant to gather. */
const MAX_GATHERED = 64;
/** Longest pause of a burst that is soon over, and of any, ms. */
const PAUSE_MS = 250;
const MAX_PAUSE_MS = 1000;
/** Two messages so far apart are no burst, ms. */
const FAR_MS = 30;
/** Messages that a pause must be likely to gather; fewer would not make up for its keeping the first one waiting. */
const WORTH = 4;

/**
 * The time between two messages, as it mostly is, ms: where both sides gather, they come in heaps. Where most are less than the
 * service's clock can tell apart, it is what they are on average, and at most a millisecond.
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
  /** Where to begin; default: what comes from now on. */
  from?: Place | undefined;
  /**
   * Whether messages come after writes that {@link Feed.nudge} tells of, so that it is better to look then than to park.
   */
  nudged?: boolean;
}

interface Registration {
  readonly listener: Listener;
  readonly nudged: boolean;
  /** Set while it lacks messages that the others have: where it stands. */
  behind: Place | undefined;
}

/** One room as all its listeners read it. */
export class Feed {
  readonly #t: Transport;
  readonly #cursor: RoomCursor;
  readonly #gathering = new Gathering();
  readonly #listeners = new Set<Registration>();
  #loop: AbortController | undefined;
  #starting: Joint<void> | undefined;
  #place: Place | undefined;
  #idleSince = 0;
  /** Views are taken one after the other, whichever read brought them. */
  #taking: Promise<unknown> = Promise.resolve();
  /** Parking waits until then; `#wake` ends the wait early. */
  #holdUntil = 0;
  #wake: AbortController | undefined;
  #prober: AbortController | undefined;
  #nudged = false;
  #noStaggerUntil = 0;
  /** When the first of two reads was parked. */
  #parkedAt = 0;

  constructor(t: Transport, room: string) {
    this.#t = t;
    this.#cursor = new RoomCursor(t, room);
  }

  /** The place behind the last message that all listeners got. */
  get place(): Place | undefined {
    for (const { behind } of this.#listeners) if (behind) return behind;
    return this.#place;
  }

  /** True while nobody listens. */
  get idle(): boolean {
    return this.#listeners.size === 0;
  }

  /** Which life of the room this is, for ids that must not outlive it. */
  get epoch(): number {
    return this.#cursor.epoch;
  }

  /** Resolves once no later message can be missed; what it returns ends the listening. */
  async listen(listener: Listener, { signal, from, nudged = false }: Listening = {}): Promise<() => void> {
    // One listener may come again before it has left.
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
      // Whoever comes while the cursor is being placed waits for the same reads; anew, if all others have left by then.
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

  /** The end of the room was seen just now: who begins to listen need not look for it. */
  sawEnd(place: Place): void {
    if (this.#loop || this.#starting) return;
    const { since } = this.#cursor;
    // Without generations, what the cursor stands at is what tells a room from the one before it.
    if (since !== undefined && (place.generation === undefined || place.since < since)) return;
    this.#cursor.place = place;
    this.#idleSince = this.#t.clock.now();
  }

  /** Another read of the room has shown that it was recreated: checks that before a read of ours hides it by having more. */
  async recheck(signal: AbortSignal): Promise<void> {
    await this.#inTurn(async () => {
      const batch = this.#place && (await this.#cursor.restart(signal));
      if (batch) this.#deliver(batch);
    });
  }

  /**
   * Hands over what came between the place where one wants to begin and that where the others are, who go on meanwhile.
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
      // Between two views, so that where the others are is what they got.
      await this.#inTurn(() => {
        const end = this.#cursor.since!;
        // The others may be in a room that was made meanwhile, and what was read of the one before.
        if (value?.gap?.reason === 'recreated') isRenewed = true;
        const isBefore = this.#cursor.epoch !== begun && !isRenewed;
        if (value) {
          const messages = value.messages.filter(({ seq }) => isBefore || seq <= end);
          this.#hand(one.listener, this.#incoming(messages), value.gap);
        }
        const hasMoved = value !== undefined || end !== since || this.#cursor.epoch !== epoch;
        one.behind = hasMoved && (isBefore || cursor.since! < end) ? cursor.place : undefined;
      });
    }
  }

  /** Does something after all views that came are taken, and before the next. */
  #inTurn<T>(run: () => T | Promise<T>): Promise<T> {
    const done = this.#taking.then(run);
    this.#taking = done.catch(() => {});
    return done;
  }

  /** Something was written just now whose answer will come here: look when it can be there. */
  nudge(): void {
    const loop = this.#loop;
    const { clock } = this.#t;
    if (!loop || !rhythmOf(this.#t).coarse) return;
    this.#holdUntil = clock.now() + (this.#affords(PROBE_SHARE) ? PROBES_MS.at(-1)! : 0);
    this.#wake?.abort(OVER);
    this.#nudged = true;
    // One who waits alone is looked for in his time; among many, when it is somebody's.
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
      // The parked read that follows finds what a probe could not.
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

  async #start(from: Place | undefined, off: AbortSignal): Promise<void> {
    if (this.#loop) return;
    const { clock } = this.#t;
    const learned = learnLimits(this.#t);
    const idle = clock.now() - this.#idleSince;
    if (from) this.#cursor.place = from;
    else if (this.#cursor.since === undefined || idle > WARM_MS || idle < 0) {
      await retrying(this.#t, clock.now() + PATIENCE_MS, () => this.#cursor.toTail(off), off);
    }
    // A burst must not go before it is known what there is for it.
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
    const step = async (waitMs: number): Promise<Polled<number>> => {
      await this.#hold(signal);
      if (!second && this.#staggers()) {
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
    }
  }

  /** Waits with parking while a look is due sooner. */
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

  /** The second parked read, half a step behind the first; ends when the service or the budget does not take it. */
  async #second(signal: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    try {
      await clock.sleep(STAGGER_MS, signal);
      const step = async (waitMs: number): Promise<Polled<boolean>> => {
        const late = STAGGER_MS - ((clock.now() - this.#parkedAt) % (2 * STAGGER_MS));
        if (Math.abs(late) > DRIFT_MS) await clock.sleep(late > 0 ? late : late + 2 * STAGGER_MS, signal);
        const start = clock.now();
        const polled = await this.#read(waitMs, signal);
        const early = polled.value === undefined && (polled.held === false || clock.now() - start < STAGGER_MS);
        if (early) this.#noStaggerUntil = clock.now() + STAGGER_PAUSE_MS;
        return { value: !early && !this.#gathering.burst && this.#affords(STAGGER_SHARE) };
      };
      for await (const goOn of poll(this.#t, step, { signal })) if (!goOn) return;
    } catch {
      // What ends the first read for good ends the loop; this one is an extra.
    }
  }

  /** One read; its value, if it brought anything, is how long to wait before the next one, ms. */
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
      // What another read of ours brought first was no early answer; what we knew when we asked is one.
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

  #deliver({ gap, messages }: Batch): void {
    const incoming = this.#incoming(messages);
    for (const { listener, behind } of [...this.#listeners]) if (!behind) this.#hand(listener, incoming, gap);
    this.#place = this.#cursor.place;
  }

  /** Hands a batch to one listener. One that fails keeps nothing from the others, nor from itself. */
  #hand(listener: Listener, messages: readonly Incoming[], gap: RingGap | undefined): void {
    const tell = (what: () => void): void => {
      try {
        what();
      } catch (cause) {
        this.#t.onEvent({ kind: 'listener-error', room: this.#cursor.room, cause });
      }
    };
    if (gap?.reason === 'recreated') tell(() => listener.renewed?.(this.#cursor.generation !== undefined));
    for (const m of messages) tell(() => listener.message(m));
    if (gap) tell(() => listener.gap(gap));
  }
}

const FEEDS = {};
/** Rooms whose cursor is kept warm. */
const MAX_FEEDS = 256;

/** The one feed of a room on a transport. */
export function feedOf(t: Transport, room: string): Feed {
  const feeds = sharedOf(t, FEEDS, () => new Map<string, Feed>());
  let feed = feeds.get(room);
  if (!feed) {
    feed = new Feed(t, room);
    feeds.set(room, feed);
    // Forgetting an idle feed costs one read; one that runs is never forgotten, and those are as many as its users'
    // calls.
    for (const [name, old] of feeds) {
      if (feeds.size <= MAX_FEEDS) break;
      if (old.idle) feeds.delete(name);
    }
  }
  return feed;
}
