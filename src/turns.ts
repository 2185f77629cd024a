/**
 * Whose turn it is among many keys, of which a stranger can make as many as he likes. Keys take turns, and so do the places
 * that they want something done in, of which he has fewer; and every second turn is one of those who were there before him.
 *
 * @module
 */
import type { Clock } from './clock.ts';

/** Keys remembered. */
const MAX_REGULARS = 4096;
/** How long a key is remembered that does not come again, ms, and how often one looks for such, when there are too many. */
const ABSENT_MS = 86_400_000;
const SWEEP_MS = 60_000;

/**
 * Keys that were served, in the order of their first time. One is noted only when something was really done for it, which
 * the budget bounds: so nobody can fill the list in a hurry; and a full one takes no newcomers rather than forget the others.
 */
export class Regulars {
  readonly #clock: Clock;
  readonly #known = new Map<string, { readonly rank: number; at: number }>();
  #count = 0;
  #swept = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** The key was served. */
  note(key: string): void {
    const at = this.#clock.now();
    const known = this.#known.get(key);
    if (known) known.at = at;
    else if (this.#known.size < MAX_REGULARS || this.#sweep(at)) this.#known.set(key, { rank: this.#count++, at });
  }

  /** The lower, the earlier it came; {@link NEVER} for one that did not. */
  rank(key: string): number {
    return this.#known.get(key)?.rank ?? NEVER;
  }

  /** Forgets those who stayed away. @returns whether there is room */
  #sweep(now: number): boolean {
    if (Math.abs(now - this.#swept) < SWEEP_MS) return false;
    this.#swept = now;
    for (const [key, { at }] of this.#known) if (Math.abs(now - at) > ABSENT_MS) this.#known.delete(key);
    return this.#known.size < MAX_REGULARS;
  }
}

/** The rank of a key that was not served yet. */
export const NEVER: number = Number.POSITIVE_INFINITY;

/** What newcomers may not have of anything that nobody gives back for others, as a part of the whole. */
const KEPT_PART = 1 / 4;

/**
 * How far something that nobody gives back for others may be filled by a key: wholly by the first that came, and up to
 * three quarters by those that never came, however many. In between each doubling of the number of earlier comers takes as
 * much away: so those who came before a crowd, even one that was served by now, find a part that it could not take.
 */
export function mostFor(rank: number, max: number): number {
  return max * (1 - KEPT_PART * Math.min(1, Math.log2(1 + rank) / Math.log2(MAX_REGULARS)));
}

/** How many of those that wait, the earliest, share every second turn. */
const SENIORS = 4;

interface Waiting<T> {
  readonly item: T;
  readonly place: string;
}

/** Things that wait for a turn, by key. */
export class Turns<T> {
  readonly #regulars: Regulars | undefined;
  readonly #max: number;
  readonly #perKey: number;
  /** What waits of each key, and when that key had its last turn, or came. */
  readonly #queues = new Map<string, { turn: number; readonly items: Waiting<T>[] }>();
  /** Of each place that something waits for: how much, and when it had its last turn, or came. */
  readonly #places = new Map<string, { turn: number; waiting: number }>();
  #waiting = 0;
  #turn = 0;

  /**
   * @param max most that wait
   * @param perKey most of one key
   * @param regulars who is not to wait for newcomers
   */
  constructor(max: number, perKey: number, regulars?: Regulars) {
    this.#regulars = regulars;
    this.#max = max;
    this.#perKey = perKey;
  }

  /** How many wait. */
  get waiting(): number {
    return this.#waiting;
  }

  /** How many wait for a key. */
  waitingFor(key: string): number {
    return this.#queues.get(key)?.items.length ?? 0;
  }

  /**
   * Adds one. Where too much waits already, the last of whoever has most of it gives way, the latest comer of such.
   *
   * @param place where it is to be done
   * @returns what waits no more; that may be the one given
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
   * Takes the one whose turn it is.
   *
   * @param fits whether the first of a key can be done now
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

  /** Takes one out. @returns whether it still waited */
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

  /** Of the earliest comers, the one whose last turn is longest ago; undefined where none ever came before. */
  #senior(ready: string[]): string | undefined {
    const known = ready.filter((key) => this.#rank(key) !== NEVER);
    if (known.length === 0) return undefined;
    return this.#rested(known.sort((a, b) => this.#rank(a) - this.#rank(b)).slice(0, SENIORS));
  }

  /** The one of which neither key nor place had a turn for longest: neither many keys nor many places alone get more. */
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
    const isMore = (a: string, b: string): boolean =>
      lengthOf(a) > lengthOf(b) || (lengthOf(a) === lengthOf(b) && this.#rank(a) > this.#rank(b));
    let most = newcomer;
    for (const key of this.#queues.keys()) if (isMore(key, most)) most = key;
    return most;
  }
}

/** One who holds something for long. */
export interface Holder {
  readonly from: string;
  /** How early its key came: {@link Regulars.rank}. */
  readonly rank: number;
}

/**
 * Who gives up what it holds, when there is no more of it for a newcomer: the oldest of the key that holds most; of equals,
 * of the latest comer.
 *
 * @param held in the order in which they came
 * @returns undefined: the newcomer gets none
 */
export function givesWay<T extends Holder>(held: readonly T[], newcomer: Holder): T | undefined {
  const counts = new Map([[newcomer.from, 1]]);
  for (const { from } of held) counts.set(from, (counts.get(from) ?? 0) + 1);
  const isMore = (a: Holder, b: Holder): boolean => {
    const more = counts.get(a.from)! - counts.get(b.from)!;
    return more > 0 || (more === 0 && a.rank > b.rank);
  };
  const [first, ...rest] = held;
  if (!first) return undefined;
  const most = rest.reduce((best, one) => (isMore(one, best) ? one : best), first);
  return most.from === newcomer.from || isMore(newcomer, most) ? undefined : most;
}
