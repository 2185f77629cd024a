/**
 * Fair scheduling among keys, of which an attacker can generate any number. Keys take turns; so do the places where
 * their work is done (reply rooms, say), which an attacker has fewer of; and every second turn goes to a key that was
 * served before.
 *
 * @module
 */
import type { Clock } from './clock.ts';
import { count } from './maps.ts';

/** How many keys are remembered. */
const MAX_REGULARS = 4096;
/** How long an absent key is remembered, ms, and how often a full list is swept for such keys. */
const ABSENT_MS = 86_400_000;
const SWEEP_MS = 60_000;

/** The order in which keys first came. */
export interface Ranks {
  /** Lower ranks came earlier; {@link NEVER} for a key that has not come yet. */
  rank(key: string): number;
}

/**
 * The keys that have been served, in the order of their first service. A key is recorded only after work was done for
 * it. The budget limits that work, so nobody can fill the list quickly. A full list takes no new keys rather than
 * forget old ones.
 */
export class Regulars implements Ranks {
  readonly #clock: Clock;
  readonly #known = new Map<string, { readonly rank: number; at: number }>();
  #count = 0;
  #swept = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Records that a key was served. */
  note(key: string): void {
    const at = this.#clock.now();
    const known = this.#known.get(key);
    if (known) known.at = at;
    else if (this.#known.size < MAX_REGULARS || this.#sweep(at)) this.#known.set(key, { rank: this.#count++, at });
  }

  rank(key: string): number {
    return this.#known.get(key)?.rank ?? NEVER;
  }

  /** Forgets absent keys. @returns whether there is room now */
  #sweep(now: number): boolean {
    if (Math.abs(now - this.#swept) < SWEEP_MS) return false;
    this.#swept = now;
    for (const [key, { at }] of this.#known) if (Math.abs(now - at) > ABSENT_MS) this.#known.delete(key);
    return this.#known.size < MAX_REGULARS;
  }
}

/** The rank of a key that has not been served yet. */
export const NEVER: number = Number.POSITIVE_INFINITY;

/**
 * How late a key came: 1 for the first, one more for each doubling of the keys before it, and the maximum for a key
 * that was never served. So the members of a crowd stay late even after they have been served, and the larger the
 * crowd, the later.
 */
const latenessOf = (rank: number): number => Math.min(Math.log2(2 + rank), LATEST);
const LATEST = /* @__PURE__ */ Math.log2(2 * MAX_REGULARS);

/** The share of a resource without preemption that new keys cannot take. */
const KEPT_PART = 1 / 4;

/**
 * How far a key may fill a resource that has no preemption. The first key may fill it completely; keys that were never
 * served, up to three quarters, all of them together; other keys, less the later they came. So keys that came before a
 * crowd always find a part that the crowd could not take.
 */
export function mostFor(rank: number, max: number): number {
  return Math.ceil(max * (1 - (KEPT_PART * (latenessOf(rank) - 1)) / (LATEST - 1)));
}

/** How many of the waiting keys, the earliest ones, share every second turn. */
const SENIORS = 4;

interface Waiting<T> {
  readonly item: T;
  readonly place: string;
}

/** Items that wait for a turn, by key. */
export class Turns<T> {
  readonly #regulars: Ranks | undefined;
  readonly #max: number;
  readonly #perKey: number;
  /**
   * The waiting items of each key, and the number of its last turn (or, before its first, of the turn when it came).
   */
  readonly #queues = new Map<string, { turn: number; readonly items: Waiting<T>[] }>();
  /** The same for each place, with a count of the waiting items. */
  readonly #places = new Map<string, { turn: number; waiting: number }>();
  #waiting = 0;
  #turn = 0;

  /**
   * @param max the maximum number of waiting items
   * @param perKey the maximum for one key
   * @param regulars the keys that take precedence over new ones
   */
  constructor(max: number, perKey: number, regulars?: Ranks) {
    this.#regulars = regulars;
    this.#max = max;
    this.#perKey = perKey;
  }

  /** The number of waiting items. */
  get waiting(): number {
    return this.#waiting;
  }

  /** The number of waiting items of a key. */
  waitingFor(key: string): number {
    return this.#queues.get(key)?.items.length ?? 0;
  }

  /**
   * Adds an item. If that is too many, the last item of the key that has most is displaced, as in {@link givesWay}.
   *
   * @param place where the work is to be done
   * @returns the displaced item, if any; it may be the given one
   */
  push(key: string, item: T, place: string = ''): T | undefined {
    if (this.waitingFor(key) >= this.#perKey) return item;
    let displaced: T | undefined;
    if (this.#waiting >= this.#max) {
      const longest = this.#longest(key);
      if (longest === key) return item;
      displaced = this.#take(longest, this.waitingFor(longest) - 1);
    }
    const queue = this.#queues.get(key) ?? { turn: this.#turn, items: [] };
    queue.items.push({ item, place });
    this.#queues.set(key, queue);
    const { turn, waiting } = this.#places.get(place) ?? { turn: this.#turn, waiting: 0 };
    this.#places.set(place, { turn, waiting: waiting + 1 });
    this.#waiting++;
    return displaced;
  }

  /**
   * Takes the item whose turn it is.
   *
   * @param fits whether the first item of a key can be done now
   */
  next(fits: (key: string, item: T) => boolean): [key: string, item: T] | undefined {
    const ready = [...this.#queues.keys()].filter((key) => fits(key, this.#first(key).item));
    if (ready.length === 0) return undefined;
    const turn = ++this.#turn;
    const key = (turn % 2 === 0 ? this.#senior(ready) : undefined) ?? this.#rested(ready);
    this.#queues.get(key)!.turn = turn;
    this.#places.get(this.#first(key).place)!.turn = turn;
    return [key, this.#take(key, 0)];
  }

  /** Removes an item. @returns whether it was still waiting */
  remove(key: string, item: T): boolean {
    const at = this.#queues.get(key)?.items.findIndex((one) => one.item === item) ?? -1;
    if (at >= 0) this.#take(key, at);
    return at >= 0;
  }

  #first(key: string): Waiting<T> {
    return this.#queues.get(key)!.items[0]!;
  }

  #take(key: string, at: number): T {
    const { items } = this.#queues.get(key)!;
    const [{ item, place }] = items.splice(at, 1) as [Waiting<T>];
    if (items.length === 0) this.#queues.delete(key);
    const known = this.#places.get(place)!;
    if (--known.waiting === 0) this.#places.delete(place);
    this.#waiting--;
    return item;
  }

  #rank(key: string): number {
    return this.#regulars?.rank(key) ?? NEVER;
  }

  /** Of the earliest waiting keys, the one whose last turn is longest ago; undefined if none was ever served. */
  #senior(ready: string[]): string | undefined {
    const known = ready.filter((key) => this.#rank(key) !== NEVER);
    if (known.length === 0) return undefined;
    return this.#rested(known.sort((a, b) => this.#rank(a) - this.#rank(b)).slice(0, SENIORS));
  }

  /**
   * The key for which both it and its place have gone longest without a turn. So neither many keys nor many places
   * alone gain anything.
   */
  #rested(ready: string[]): string {
    const turnsOf = (key: string): [later: number, own: number] => {
      const own = this.#queues.get(key)!.turn;
      return [Math.max(own, this.#places.get(this.#first(key).place)!.turn), own];
    };
    return ready.reduce((best, key) => {
      const [[later, own], [bestLater, bestOwn]] = [turnsOf(key), turnsOf(best)];
      return later < bestLater || (later === bestLater && own < bestOwn) ? key : best;
    });
  }

  #longest(newcomer: string): string {
    const lengthOf = (key: string): number => this.waitingFor(key) + (key === newcomer ? 1 : 0);
    const keys = [newcomer, ...[...this.#queues.keys()].filter((key) => key !== newcomer)];
    const isNew = (key: string): boolean => this.#rank(key) === NEVER;
    const ofNew = keys.reduce((sum, key) => sum + (isNew(key) ? lengthOf(key) : 0), 0);
    const havingOf = (key: string): Having => {
      const own = lengthOf(key);
      return { own, together: isNew(key) ? ofNew : own, rank: this.#rank(key) };
    };
    return keys.reduce((most, key) => (hasMore(havingOf(key), havingOf(most)) ? key : most));
  }
}

/** How much a key holds, and how early it came. */
interface Having {
  readonly own: number;
  /** The same, but for a key that was never served the total of all such keys: they may all belong to one person. */
  readonly together: number;
  readonly rank: number;
}

/** Whether the first of two keys holds more, weighted by how late it came; of equals, the later key does. */
function hasMore(a: Having, b: Having): boolean {
  const [wholeA, wholeB] = [a.together * latenessOf(a.rank), b.together * latenessOf(b.rank)];
  return wholeA !== wholeB ? wholeA > wholeB : a.own !== b.own ? a.own > b.own : a.rank > b.rank;
}

/** The holder of something that is held for a long time. */
export interface Holder {
  /** The key. */
  readonly from: string;
  /** How early the key came: {@link Regulars.rank}. */
  readonly rank: number;
}

/**
 * Which holder gives way when nothing is left for a newcomer: the oldest one of the key that holds most, weighted by
 * how late the key came (keys that were never served count together); of equals, the latest key.
 *
 * @param held in order of arrival
 * @returns undefined if nobody gives way, so that the newcomer gets nothing
 */
export function givesWay<T extends Holder>(held: readonly T[], newcomer: Holder): T | undefined {
  const own = new Map<string, number>();
  let ofNew = 0;
  for (const { from, rank } of [newcomer, ...held]) {
    count(own, from, 1);
    if (rank === NEVER) ofNew++;
  }
  const havingOf = ({ from, rank }: Holder): Having => {
    const count = own.get(from)!;
    return { own: count, together: rank === NEVER ? ofNew : count, rank };
  };
  const [first, ...rest] = held;
  if (!first) return undefined;
  const most = rest.reduce((best, one) => (hasMore(havingOf(one), havingOf(best)) ? one : best), first);
  return most.from === newcomer.from || hasMore(havingOf(newcomer), havingOf(most)) ? undefined : most;
}

/** A limited number of seats that are held for a long time. */
export class Seats {
  readonly #max: number;
  readonly #perKey: number;
  readonly #held = new Set<Holder & { readonly giveUp: () => void }>();

  constructor([max, perKey]: readonly [max: number, perKey: number]) {
    this.#max = max;
    this.#perKey = perKey;
  }

  /**
   * Takes a seat; if none is left, that of the holder that {@link givesWay}.
   *
   * @param giveUp called when another key takes the seat over
   * @returns a function that releases the seat; undefined if the key has its share already, or nobody gives way
   */
  take({ from, rank }: Holder, giveUp: () => void): (() => void) | undefined {
    const held = [...this.#held];
    if (held.filter((one) => one.from === from).length >= this.#perKey) return undefined;
    const seat = { from, rank, giveUp };
    if (held.length >= this.#max) {
      const given = givesWay(held, seat);
      if (!given) return undefined;
      this.#held.delete(given);
      given.giveUp();
    }
    this.#held.add(seat);
    return () => void this.#held.delete(seat);
  }
}
