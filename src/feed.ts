/**
 * Feeds: one room as all who listen to it read it, by one loop that runs while anybody does. Here is decided when to look,
 * which on a service that wakes its readers twice a second decides how long a call takes.
 *
 * @module
 */
import type { RingGap } from './errors.ts';
import { budgetOf, orAbort, type Polled, poll, retrying, rhythmOf, sharedOf, type Transport } from './http.ts';
import { type Message, verifyMessage } from './messages.ts';
import { isDid } from './names.ts';
import { type Batch, PATIENCE_MS, type Place, RoomCursor } from './rooms.ts';
import { learnLimits } from './service.ts';

/** One message as a channel hands it over. */
export interface Incoming {
  /** Who wrote it, proved by a signature or a seal; `''` when nobody can be named. */
  readonly from: string;
  /** The text; a frame, if {@link frames.decode} says so. */
  readonly text: string;
  /** Room or session it came through. */
  readonly room: string;
  /** Position there. */
  readonly seq: number;
  /** Digits that rise with every message of one writer here: an old message that comes again is known by them. */
  readonly nonce?: string;
}

/** Who listens to a channel. Its methods must return soon and not throw. */
export interface Listener {
  /** Each message in order, also our own. */
  message(m: Incoming): void;
  /** Messages were lost that came before those of the last batch, which was handed over first. */
  gap(gap: RingGap): void;
  /** Nothing will come any more. */
  end(cause: unknown): void;
  /** How many exchanges are under way: the more, the less the next message alone is worth a read of its own. */
  busy?(): number;
  /** Whether messages come unasked, so that a second read, half a step after the first, halves the wait for them. */
  readonly stagger?: boolean;
}

const SIGS = {};

/** The author of a message as far as it is proved: by its signature, or by the word of a service that keeps none. */
export function authorOf(t: Transport, room: string, m: Message): string {
  if (!isDid(m.from)) return '';
  const base = sharedOf(t, SIGS, () => ({ keepsSigs: false }));
  const verdict = verifyMessage(room, m);
  if (verdict === 'valid') base.keepsSigs = true;
  // Where signatures are kept, one that is missing was taken away.
  else if (verdict === 'invalid' || base.keepsSigs) {
    t.onEvent({ kind: 'refused', room, seq: m.seq, from: m.from, reason: `signature ${verdict}` });
    return '';
  }
  return m.from;
}

/** When to look after a write of ours, ms, where readers are woken in steps; then it is time to park. */
export const PROBES_MS: readonly number[] = [175, 290];
/** How long parking waits for the write that a listener is there for, ms. */
const EXPECT_MS = 1500;
/** How long after the first of two parked reads the second is parked, ms: half a step. */
const STAGGER_MS = 250;
/** A second read that is answered early is one too many for this address; how long it stays away, ms. */
const STAGGER_PAUSE_MS = 600_000;
/** Shares of the read budget that must be left for a probe and for a second parked read. */
const PROBE_SHARE = 0.25;
const STAGGER_SHARE = 0.4;
/** Longest pause between two reads in a burst, ms. */
const MAX_PAUSE_MS = 25;
/** A warm cursor older than this is not worth the backlog, ms. */
const WARM_MS = 30_000;

/** How to listen to a feed. */
export interface Listening {
  signal?: AbortSignal | undefined;
  /** Where to begin, if the loop does not run yet; default: what comes from now on. */
  from?: Place | undefined;
  /** Whether messages come after writes that {@link Feed.nudge} tells of, so that it is better to look then than to park. */
  nudged?: boolean;
}

/** One room as all its listeners read it. */
export class Feed {
  readonly #t: Transport;
  readonly #cursor: RoomCursor;
  /** Listeners, and whether they are {@link Listening.nudged}. */
  readonly #listeners = new Map<Listener, boolean>();
  #loop: AbortController | undefined;
  #starting: Promise<void> | undefined;
  #place: Place | undefined;
  #idleSince = 0;
  /** Views are taken one after the other, whichever read brought them. */
  #taking: Promise<unknown> = Promise.resolve();
  /** Parking waits until then; `#wake` ends the wait early. */
  #holdUntil = 0;
  #wake: AbortController | undefined;
  #noStaggerUntil = 0;

  constructor(t: Transport, room: string) {
    this.#t = t;
    this.#cursor = new RoomCursor(t, room);
  }

  /** The place behind the last message that all listeners got. */
  get place(): Place | undefined {
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
    this.#listeners.set(listener, nudged);
    const leave = (): void => {
      if (!this.#listeners.delete(listener) || this.#listeners.size > 0) return;
      this.#loop?.abort();
      this.#loop = undefined;
      this.#idleSince = this.#t.clock.now();
    };
    try {
      // Whoever comes while the cursor is being placed waits for the same reads; anew, if all others have left by then.
      while (!this.#loop && this.#listeners.has(listener)) {
        this.#starting ??= this.#start(from).finally(() => {
          this.#starting = undefined;
        });
        await orAbort(this.#starting, signal);
      }
    } catch (cause) {
      leave();
      throw cause;
    }
    return leave;
  }

  /** Something was written just now whose answer will come here: look when it can be there. */
  nudge(): void {
    const loop = this.#loop;
    const { clock } = this.#t;
    if (!loop || !rhythmOf(this.#t).coarse) return;
    this.#holdUntil = clock.now() + (this.#affords(PROBE_SHARE) ? PROBES_MS.at(-1)! : 0);
    this.#wake?.abort();
    for (const ms of PROBES_MS) {
      void clock
        .sleep(ms, loop.signal)
        .then(async () => {
          if (this.#busy() > 0 && this.#affords(PROBE_SHARE)) await this.#read(0, loop.signal);
        })
        // The parked read that follows finds what a probe could not.
        .catch(() => {});
    }
  }

  #affords(share: number): boolean {
    return budgetOf(this.#t, 'read').left > share;
  }

  #busy(): number {
    let busy = 0;
    for (const listener of this.#listeners.keys()) busy += listener.busy?.() ?? 0;
    return busy;
  }

  async #start(from: Place | undefined): Promise<void> {
    if (this.#loop) return;
    const { clock } = this.#t;
    const idle = clock.now() - this.#idleSince;
    if (from) this.#cursor.place = from;
    else if (this.#cursor.since === undefined || idle > WARM_MS || idle < 0) {
      await retrying(this.#t, clock.now() + PATIENCE_MS, () => this.#cursor.toTail());
    }
    this.#place = this.#cursor.place;
    if (this.#listeners.size === 0 || this.#loop) return;
    learnLimits(this.#t);
    this.#loop = new AbortController();
    this.#holdUntil = clock.now() + EXPECT_MS;
    void this.#run(this.#loop);
  }

  async #run(loop: AbortController): Promise<void> {
    const { signal } = loop;
    let second = false;
    const step = async (waitMs: number): Promise<Polled<true>> => {
      await this.#hold(signal);
      if (!second && this.#staggers()) {
        second = true;
        void this.#second(signal).finally(() => {
          second = false;
        });
      }
      return this.#read(waitMs, signal);
    };
    try {
      for await (const _ of poll(this.#t, step, { signal })) {
        // In a burst each message would cost a read; a short pause lets the next ones come together.
        const busy = this.#busy();
        if (busy > 1) await this.#t.clock.sleep(Math.min(busy, MAX_PAUSE_MS), signal);
      }
    } catch (cause) {
      if (signal.aborted) return;
      loop.abort();
      this.#loop = undefined;
      this.#idleSince = this.#t.clock.now();
      const left = [...this.#listeners.keys()];
      this.#listeners.clear();
      for (const listener of left) listener.end(cause);
    }
  }

  /** Waits with parking while a look is due sooner. */
  async #hold(signal: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    if (!rhythmOf(this.#t).coarse || ![...this.#listeners.values()].every((nudged) => nudged)) return;
    for (;;) {
      const ms = Math.min(this.#holdUntil - clock.now(), EXPECT_MS);
      if (ms <= 0) return;
      const wake = new AbortController();
      this.#wake = wake;
      const stop = (): void => wake.abort();
      signal.addEventListener('abort', stop);
      await clock.sleep(ms, wake.signal).catch(() => {});
      signal.removeEventListener('abort', stop);
      signal.throwIfAborted();
    }
  }

  #staggers(): boolean {
    return (
      rhythmOf(this.#t).coarse &&
      this.#t.clock.now() >= this.#noStaggerUntil &&
      this.#affords(STAGGER_SHARE) &&
      [...this.#listeners.keys()].some((listener) => listener.stagger)
    );
  }

  /** The second parked read, half a step behind the first; ends when the service or the budget does not take it. */
  async #second(signal: AbortSignal): Promise<void> {
    const { clock } = this.#t;
    try {
      await clock.sleep(STAGGER_MS, signal);
      const step = async (waitMs: number): Promise<Polled<boolean>> => {
        const start = clock.now();
        const polled = await this.#read(waitMs, signal);
        const early = !polled.value && (polled.held === false || clock.now() - start < STAGGER_MS);
        if (early) this.#noStaggerUntil = clock.now() + STAGGER_PAUSE_MS;
        return { value: !early && this.#affords(STAGGER_SHARE) };
      };
      for await (const goOn of poll(this.#t, step, { signal })) if (!goOn) return;
    } catch {
      // What ends the first read for good ends the loop; this one is an extra.
    }
  }

  async #read(waitMs: number, signal: AbortSignal): Promise<Polled<true>> {
    const { clock } = this.#t;
    const start = clock.now();
    const view = await this.#cursor.look(waitMs, signal);
    if (waitMs > 0 && view.messages.length > 0) rhythmOf(this.#t).woken(clock.now() - start);
    const taken = this.#taking.then(async (): Promise<Polled<true>> => {
      signal.throwIfAborted();
      const batch = await this.#cursor.take(view, signal);
      if (batch) this.#deliver(batch);
      // What another read of ours brought first was no early answer.
      if (batch || view.messages.length > 0) return { value: true };
      return view.waitHeld === undefined ? {} : { held: view.waitHeld };
    });
    this.#taking = taken.catch(() => {});
    return taken;
  }

  #deliver({ gap, messages }: Batch): void {
    const { room } = this.#cursor;
    const incoming = messages.map((m): Incoming => {
      const from = authorOf(this.#t, room, m);
      const { seq, text, nonce } = m;
      return nonce === undefined ? { from, text, room, seq } : { from, text, room, seq, nonce };
    });
    for (const listener of [...this.#listeners.keys()]) {
      for (const m of incoming) listener.message(m);
      if (gap) listener.gap(gap);
    }
    this.#place = this.#cursor.place;
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
    // Forgetting an idle feed costs one read; one that runs is never forgotten, and those are as many as its users' calls.
    for (const [name, old] of feeds) {
      if (feeds.size <= MAX_FEEDS) break;
      if (old.idle) feeds.delete(name);
    }
  }
  return feed;
}
