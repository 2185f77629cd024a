/**
 * Where answers may go. A request names its reply room, and could name somebody else's. So answers go only to
 * mailboxes, never to the one being served, and only a few go to a room where the caller's key was never seen.
 *
 * @module
 */
import { isMailbox } from './channel.ts';
import { TechnocoreError } from './errors.ts';
import { compact } from './frames.ts';
import { Lanes, retrying, type Transport, within } from './http.ts';
import { resolveIdentity } from './identity.ts';
import { remember } from './maps.ts';
import { readView } from './rooms.ts';
import type { Regulars } from './turns.ts';
import { Workers } from './workers.ts';

/**
 * A server's limits on answers to mailboxes that the caller's key never wrote to: they may belong to somebody else.
 */
export interface ReplyLimits {
  /** The maximum number of answers per day to one such mailbox; default 10. */
  unprovedPerDay?: number | undefined;
  /** The maximum number of answers per day to all such mailboxes that one key names; default 30. */
  unprovedPerKey?: number | undefined;
  /**
   * The maximum number of mailboxes per day that answers create; default 5. The public service grants an address 20 new
   * rooms.
   */
  newRoomsPerDay?: number | undefined;
}

const DAY_MS = 86_400_000;
/** How long the mailbox that an identity names is cached, ms. */
const NAMED_MS = 60_000;
/** How long it is remembered that a key was seen in its reply room, ms. */
const PROVED_MS = 3_600_000;
/** How many rooms and keys of each kind are remembered. What is forgotten is looked up again. */
const MAX_KNOWN = 4096;

/**
 * How many lookups run at a time. They share the read budget with the mailbox, which never waits for more than these.
 */
const LOOKS = 2;
/** How many lookups can wait. */
const MAX_LOOKS = 256;
/** How long a lookup may take, waiting included, ms: the caller does not wait longer. */
const LOOK_MS = 15_000;
/** How many lookups a key gets per day in rooms that it never wrote to. */
const LOOKS_PER_KEY = 60;

/** @internal Counters per key and day. */
export class Daily {
  readonly #counts = new Map<string, { day: number; count: number }>();
  readonly #whenFull: 'forget' | 'refuse';
  readonly #max: number;

  /** @param whenFull with too many keys: `forget` the oldest count, or `refuse` new keys for the rest of the day */
  constructor(whenFull: 'forget' | 'refuse', max: number = MAX_KNOWN) {
    this.#whenFull = whenFull;
    this.#max = max;
  }

  /** Undoes the last {@link take}. */
  give(key: string): void {
    const entry = this.#counts.get(key);
    if (entry) entry.count--;
  }

  /** Counts one more and returns true, unless that would exceed `limit`. */
  take(key: string, limit: number, now: number): boolean {
    const day = Math.floor(now / DAY_MS);
    const entry = this.#counts.get(key);
    const count = entry?.day === day ? entry.count : 0;
    if (count >= limit || (!entry && this.#whenFull === 'refuse' && !this.#hasRoom(day))) return false;
    remember(this.#counts, key, { day, count: count + 1 }, this.#max);
    return true;
  }

  #hasRoom(day: number): boolean {
    if (this.#counts.size < this.#max) return true;
    for (const [key, entry] of this.#counts) if (entry.day !== day) this.#counts.delete(key);
    return this.#counts.size < this.#max;
  }
}

/** The reply rooms of one server. */
export class ReplyRooms {
  readonly #t: Transport;
  readonly #served: string;
  readonly #limits: Record<keyof ReplyLimits, number>;
  readonly #last = new Map<string, string>();
  readonly #named = new Map<string, { room: string | undefined; until: number }>();
  readonly #proved = new Map<string, number>();
  readonly #unproved = new Daily('refuse');
  readonly #ofKey = new Daily('refuse');
  readonly #created = new Daily('refuse');
  readonly #looked = new Daily('forget');
  /** Runs the lookups of one key one after the other. */
  readonly #lanes = new Lanes();
  /** Limits the lookups of all keys. */
  readonly #looks: Workers;

  /** @param regulars the keys that take precedence over new ones */
  constructor(t: Transport, served: string, limits: ReplyLimits = {}, regulars?: Regulars) {
    this.#t = t;
    this.#served = served;
    this.#looks = new Workers(LOOKS, MAX_LOOKS, 1, regulars);
    this.#limits = { unprovedPerDay: 10, unprovedPerKey: 30, newRoomsPerDay: 5, ...compact({ ...limits }) };
  }

  /** Whether answers may go to a room at all. */
  #allowed(room: unknown): room is string {
    return isMailbox(room) && room !== this.#served;
  }

  /**
   * The room for the answer to `from`: the one that the request names; else the one in the key's signed identity
   * record, else the one it used last, else the unsigned one in its identity note. Undefined if there is none, or if
   * the one that the request names is not allowed.
   */
  async find(from: string, named: unknown): Promise<string | undefined> {
    if (named !== undefined) {
      if (!this.#allowed(named)) return undefined;
      remember(this.#last, from, named, MAX_KNOWN);
      return named;
    }
    const now = this.#t.clock.now();
    const known = this.#named.get(from);
    if (known && now < known.until && known.until - now <= NAMED_MS) return known.room;
    const identity = await this.#look(from, (signal) => resolveIdentity(from, { ...this.#t, signal }));
    const room = (identity?.signed ? identity.mailbox : undefined) ?? this.#last.get(from) ?? identity?.mailbox;
    const found = this.#allowed(room) ? room : undefined;
    // Cached briefly, since an identity may be published at any time.
    remember(this.#named, from, { room: found, until: now + NAMED_MS }, MAX_KNOWN);
    return found;
  }

  /**
   * Whether one more answer to `from` may go to `room`: `proved` if the room is its own; `unproved` if that is unknown
   * and the limits allow an answer, which is then counted; else undefined.
   */
  admits(from: string, room: string): Promise<'proved' | 'unproved' | undefined> {
    if (this.#isProved(from, room)) return Promise.resolve('proved');
    // One lookup at a time for each key, whatever rooms it names.
    return this.#lanes.run(from, async () => {
      if (this.#isProved(from, room)) return 'proved';
      const now = this.#t.clock.now();
      if (!this.#looked.take(from, LOOKS_PER_KEY, now)) return undefined;
      const view = await this.#look(from, (signal) =>
        retrying(this.#t, this.#t.clock.now() + LOOK_MS, () => readView(this.#t, room, { limit: 200 }, signal), signal),
      );
      if (view.messages.some((m) => m.from === from)) {
        this.#looked.give(from);
        remember(this.#proved, `${from} ${room}`, now + PROVED_MS, MAX_KNOWN);
        return 'proved';
      }
      const { unprovedPerDay, unprovedPerKey, newRoomsPerDay } = this.#limits;
      const isAdmitted =
        this.#ofKey.take(from, unprovedPerKey, now) &&
        this.#unproved.take(room, unprovedPerDay, now) &&
        (view.lastSeq > 0 || this.#created.take('', newRoomsPerDay, now));
      return isAdmitted ? 'unproved' : undefined;
    });
  }

  /**
   * Looks something up for a key, when its turn comes.
   *
   * @throws a {@link TechnocoreError} `busy` if too many lookups wait, or take too long
   */
  async #look<T>(from: string, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { signal, end } = within(this.#t, LOOK_MS);
    const release = await this.#looks.enter(from, signal);
    try {
      if (!release) throw new TechnocoreError('busy', 'too many keys are looked up at once');
      return await run(signal);
    } finally {
      release?.();
      end();
    }
  }

  #isProved(from: string, room: string): boolean {
    const name = `${from} ${room}`;
    const now = this.#t.clock.now();
    if ((this.#proved.get(name) ?? 0) <= now) return false;
    // Extended by use: by now, answers may have pushed the key's message out of sight.
    remember(this.#proved, name, now + PROVED_MS, MAX_KNOWN);
    return true;
  }
}
