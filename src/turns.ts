/**
 * Whose turn it is among many keys, of which a stranger can make as many as he likes. Keys take turns, and so do the places
 * that they want something done in, of which he has fewer; and every second turn is one of those who were there before him.
 *
 * @module
 */
import type { Clock } from './clock.ts';
import { count } from './maps.ts';

/** Keys remembered. */
const MAX_REGULARS = 4096;
/** How long a key is remembered that does not come again, ms, and how often one looks for such, when there are too many. */
const ABSENT_MS = 86_400_000;
const SWEEP_MS = 60_000;

/** Who came before whom. */
export interface Ranks {
  /** The lower, the earlier it came; {@link NEVER} for one that did not. */
  rank(key: string): number;
}

/**
 * Keys that were served, in the order of their first time. One is noted only when something was really done for it, which
 * the budget bounds: so nobody can fill the list in a hurry; and a full one takes no newcomers rather than forget the others.
 */
export class Regulars implements Ranks {
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

/**
 * How late a key came: 1 for the first, one more for each doubling of those before it, and most for those that never came.
 * A crowd is late, all of it, also once it was served: the larger it is, the later.
 */
const latenessOf = (rank: number): number => Math.min(Math.log2(2 + rank), LATEST);
const LATEST = /* @__PURE__ */ Math.log2(2 * MAX_REGULARS);

/** What newcomers may not have of anything that nobody gives back for others, as a part of the whole. */
const KEPT_PART = 1 / 4;

/**
 * How far something that nobody gives back for others may be filled by a key: wholly by the first that came, up to three
 * quarters by those that never came, however many, and in between the less the later; where there are enough for that. So
 * those who came before a crowd find a part that it could not take.
 */
export function mostFor(rank: number, max: number): number {
  return Math.ceil(max * (1 - (KEPT_PART * (latenessOf(rank) - 1)) / (LATEST - 1)));
}

/** How many of those that wait, the earliest, share every second turn. */
const SENIORS = 4;

interface Waiting<T> {
  readonly item: T;
  readonly place: string;
}

/** Things that wait for a turn, by key. */
export class Turns<T> {
  readonly #regulars: Ranks | undefined;
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
  constructor(max: number, perKey: number, regulars?: Ranks) {
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
   * Adds one. Where too much waits already, the last of whoever has most of it gives way, as in {@link givesWay}.
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

/** How much somebody has, and how early he came. */
interface Having {
  readonly own: number;
  /** He, and all others that never came before if he is one of them: any number of these may be one. */
  readonly together: number;
  readonly rank: number;
}

/** Whether of two who have something the first is to give way: who has more, for how late he came; of equals the later comer. */
function hasMore(a: Having, b: Having): boolean {
  const [wholeA, wholeB] = [a.together * latenessOf(a.rank), b.together * latenessOf(b.rank)];
  return wholeA !== wholeB ? wholeA > wholeB : a.own !== b.own ? a.own > b.own : a.rank > b.rank;
}

/** One who holds something for long. */
export interface Holder {
  readonly from: string;
  /** How early its key came: {@link Regulars.rank}. */
  readonly rank: number;
}

/**
 * Who gives up what it holds, when there is no more of it for a newcomer: the oldest of the key that holds most for how late
 * it came, where all that never came before hold together; of equals, of the latest comer.
 *
 * @param held in the order in which they came
 * @returns undefined: the newcomer gets none
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

/** Something that is held for long, and of which there is only so much, of all keys and of one. */
export class Seats {
  readonly #max: number;
  readonly #perKey: number;
  readonly #held = new Set<Holder & { readonly giveUp: () => void }>();

  constructor([max, perKey]: readonly [number, number]) {
    this.#max = max;
    this.#perKey = perKey;
  }

  /**
   * Takes one; when there are no more, that of whoever {@link givesWay}.
   *
   * @param giveUp called when somebody else gets it; it is not held any more by then
   * @returns gives it back; undefined when the key has enough, or nobody gives way
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
