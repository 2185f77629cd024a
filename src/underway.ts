/**
 * A server's work in progress: the tasks that its end waits for, the unfinished messages, and the place in the mailbox
 * up to which everything is finished.
 *
 * @module
 */
import type { Incoming } from './channel.ts';
import { feedOf } from './feed.ts';
import { compact } from './frames.ts';
import type { Transport } from './http.ts';
import type { CursorStore, Place } from './rooms.ts';

/** How close together requests must come to count as a burst, ms. */
const BURST_MS = 1000;

/** A message that is being processed. */
interface Unfinished {
  readonly from: string;
  readonly at: number;
  readonly isBatch: boolean;
  tasks: number;
}

/** How the place is saved. */
export interface Keeping {
  store: CursorStore;
  /** The `seq` of the oldest message that waits elsewhere, if any. */
  oldest(): number | undefined;
}

/** What is under way in one room. */
export class Underway {
  readonly #t: Transport;
  readonly #room: string;
  readonly #keeping: Keeping | undefined;
  readonly #tasks = new Set<Promise<unknown>>();
  /**
   * By `seq`, not always in that order: a share passes on old messages, and in a recreated room the `seq` starts over.
   */
  readonly #unfinished = new Map<number, Unfinished>();
  #loading: Promise<Place | undefined> | undefined;
  /** The place that the store has or will get next. */
  #kept: Place | undefined;
  /** When the presence note was last written, as saved with the place. */
  #said: number | undefined;
  /** The last write to the store. */
  #written: Promise<unknown> = Promise.resolve();
  #saving: Promise<void> | undefined;
  #saved = -1;

  /** @param keeping absent if the place is not saved */
  constructor(t: Transport, room: string, keeping?: Keeping) {
    this.#t = t;
    this.#room = room;
    this.#keeping = keeping;
  }

  /** The saved place, if there is one. */
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

  /** Saves a place, if places are saved. Rejects with what the store throws. */
  async keep(place: Place): Promise<void> {
    if (!this.#keeping) return;
    const { store } = this.#keeping;
    this.#kept = place;
    // One after the other, each with the values at that time, so that the last one wins.
    const written = this.#written.then(() => store.save(this.#room, compact({ ...this.#kept!, said: this.#said })));
    this.#written = written.catch(() => {});
    await written;
  }

  /** When the server that saved the place last wrote the presence note; undefined if unknown. */
  async lastSaid(): Promise<number | undefined> {
    await this.load().catch(() => {});
    return this.#said;
  }

  /** Saves, with the place, the time of the presence note that is about to be written. Never rejects. */
  async said(at: number): Promise<void> {
    await this.lastSaid();
    this.#said = at;
    if (this.#kept) await this.keep(this.#kept).catch(this.#unsaved);
  }

  /** The number of tasks. */
  get size(): number {
    return this.#tasks.size;
  }

  /**
   * Adds a task. If it fails, there is an event.
   *
   * @param m the message that stays unfinished until the task ends; undefined if the place need not wait for it
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

  /** The `seq` of the oldest unfinished message whose author matches. */
  oldest(fits: (from: string) => boolean = () => true): number | undefined {
    let oldest: number | undefined;
    for (const [seq, { from }] of this.#unfinished) if (fits(from) && seq < (oldest ?? seq + 1)) oldest = seq;
    return oldest;
  }

  /**
   * True while single requests come faster than they are finished, in a burst of unknown length. Batches do not count.
   */
  get burst(): boolean {
    const since = this.#t.clock.now() - BURST_MS;
    let alone = 0;
    for (const { at, isBatch } of this.#unfinished.values()) {
      // A long-running request is no sign of a burst.
      if (at > since) alone += isBatch ? -1 : 1;
    }
    return alone > 1;
  }

  /** Resolves once nothing is under way any more and the place is saved. */
  async ended(): Promise<void> {
    while (this.#tasks.size > 0) await Promise.allSettled(this.#tasks);
    while (this.#saving) await this.#saving;
  }

  /**
   * Saves the place before the oldest unfinished message. One save at a time, so never faster than the store allows.
   */
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
