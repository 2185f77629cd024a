/**
 * What a server works on: tasks that its end waits for, messages that are not finished, and the place in the mailbox up to
 * which all are.
 *
 * @module
 */
import type { Incoming } from './channel.ts';
import { feedOf } from './feed.ts';
import { compact } from './frames.ts';
import type { Transport } from './http.ts';
import type { CursorStore, Place } from './rooms.ts';

/** Requests that came within so long of each other may be a burst, ms. */
const BURST_MS = 1000;

/** A message that is worked on. */
interface Unfinished {
  readonly from: string;
  readonly at: number;
  readonly isBatch: boolean;
  tasks: number;
}

/** How the place is kept. */
export interface Keeping {
  store: CursorStore;
  /** The oldest message that waits elsewhere. */
  oldest(): number | undefined;
}

/** What is under way in one room. */
export class Underway {
  readonly #t: Transport;
  readonly #room: string;
  readonly #keeping: Keeping | undefined;
  readonly #tasks = new Set<Promise<unknown>>();
  /** In the order of the room, by seq. */
  readonly #unfinished = new Map<number, Unfinished>();
  #loading: Promise<Place | undefined> | undefined;
  /** What the store has or gets next. */
  #kept: Place | undefined;
  #said: number | undefined;
  /** The last write to the store. */
  #written: Promise<unknown> = Promise.resolve();
  #saving: Promise<void> | undefined;
  #saved = -1;

  /** @param keeping absent: the place is kept nowhere */
  constructor(t: Transport, room: string, keeping?: Keeping) {
    this.#t = t;
    this.#room = room;
    this.#keeping = keeping;
  }

  /** The place that is kept, if there is one. */
  load(): Promise<Place | undefined> {
    return (this.#loading ??= (async () => {
      const kept = await this.#keeping?.store.load(this.#room);
      if (!kept) return undefined;
      const { said, ...place } = kept;
      this.#kept ??= place;
      this.#said ??= said;
      return place;
    })());
  }

  /** Keeps a place, if one is to be kept; rejects with what the store throws. */
  async keep(place: Place): Promise<void> {
    if (!this.#keeping) return;
    const { store } = this.#keeping;
    this.#kept = place;
    // One after the other, each with what holds by then: the last one stays.
    const written = this.#written.then(() => store.save(this.#room, compact({ ...this.#kept!, said: this.#said })));
    this.#written = written.catch(() => {});
    await written;
  }

  /** When the server that kept the place said that it is there; undefined: not known. */
  async lastSaid(): Promise<number | undefined> {
    await this.load().catch(() => {});
    return this.#said;
  }

  /** Keeps, with the place, when it is said that the server is there. Never rejects. */
  async said(at: number): Promise<void> {
    await this.lastSaid();
    this.#said = at;
    if (this.#kept) await this.keep(this.#kept).catch(this.#unsaved);
  }

  /** How many tasks there are. */
  get size(): number {
    return this.#tasks.size;
  }

  /**
   * Takes a task in; one that fails is told of.
   *
   * @param m the message that is finished with the task; undefined: the place need not wait for it
   */
  track(task: Promise<unknown>, m?: Incoming): void {
    this.#tasks.add(task);
    if (m) {
      const entry = this.#unfinished.get(m.seq);
      if (entry) entry.tasks++;
      else {
        const isBatch = m.text.startsWith('[');
        this.#unfinished.set(m.seq, { from: m.from, at: this.#t.clock.now(), isBatch, tasks: 1 });
      }
    }
    void task
      .catch((cause) => this.#t.onEvent({ kind: 'skipped', room: this.#room, cause }))
      .finally(() => {
        this.#tasks.delete(task);
        if (!m) return;
        const entry = this.#unfinished.get(m.seq)!;
        if (--entry.tasks === 0) this.#unfinished.delete(m.seq);
        this.#save();
      });
  }

  /** The seq of the oldest message that is not finished, of those whose author fits. */
  oldest(fits: (from: string) => boolean = () => true): number | undefined {
    for (const [seq, { from }] of this.#unfinished) if (fits(from)) return seq;
    return undefined;
  }

  /** True while requests come one by one, though others are worked on: a burst of unknown length. Batches are none. */
  get burst(): boolean {
    const since = this.#t.clock.now() - BURST_MS;
    let alone = 0;
    for (const { at, isBatch } of this.#unfinished.values()) {
      // One that runs for long is no sign that others come.
      if (at > since) alone += isBatch ? -1 : 1;
    }
    return alone > 1;
  }

  /** Resolves once nothing is under way any more, and the place is kept. */
  async ended(): Promise<void> {
    while (this.#tasks.size > 0) await Promise.allSettled(this.#tasks);
    while (this.#saving) await this.#saving;
  }

  /** Keeps the place before the oldest message that is still worked on. Saving is never faster than the store. */
  #save(): void {
    if (!this.#keeping || this.#saving) return;
    const { oldest } = this.#keeping;
    const place = feedOf(this.#t, this.#room).place;
    const first = Math.min(this.oldest() ?? Number.POSITIVE_INFINITY, oldest() ?? Number.POSITIVE_INFINITY);
    if (!place) return;
    const { generation } = place;
    const behind: Place = first > place.since ? place : compact({ since: first - 1, generation });
    if (behind.since === this.#saved) return;
    this.#saved = behind.since;
    this.#saving = (async () => {
      await this.keep(behind).catch(this.#unsaved);
      this.#saving = undefined;
      this.#save();
    })();
  }
  readonly #unsaved = (cause: unknown): void => {
    this.#t.onEvent({ kind: 'unsaved', room: this.#room, cause });
  };
}
