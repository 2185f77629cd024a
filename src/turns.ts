/**
 * Whose turn it is among many keys, of which a stranger can make as many as he likes. Keys take turns; so do the places
 * in which they want something done, of which a stranger has fewer; and every second turn goes to those who were served
 * before.
 *
 * @module
 */
import type { Clock } from './clock.ts';
import { count } from './maps.ts';

/** Keys remembered. */
const MAX_REGULARS = 4096;
/**
 * How long a key is remembered that does not come again, ms, and how often one looks for such, when there are too many.
 */
const ABSENT_MS = 86_400_000;
const SWEEP_MS = 60_000;

/** Which keys came before which. */
export interface Ranks {
  /** The lower, the earlier it came; {@link NEVER} for one that did not. */
  rank(key: string): number;
}

/**
 * The keys that were served, in the order in which they first were. A key is noted only when something was really done
 * for it, which the budget limits, so that nobody can fill the list quickly. A full list takes no new keys rather than
 * forget others.
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

  /** Forgets keys that stayed away. @returns whether there is room */
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
 * How late a key came: 1 for the first, one more for each doubling of the keys before it, and the most for a key that was
 * never served. All of a crowd is late, even once it has been served: the larger it is, the later.
 */
const latenessOf = (rank: number): number => Math.min(Math.log2(2 + rank), LATEST);
const LATEST = /* @__PURE__ */ Math.log2(2 * MAX_REGULARS);

/** The part that new keys cannot have of anything that is not given up for others. */
const KEPT_PART = 1 / 4;

/**
 * How far a key may fill something that is not given up for others: completely, if it was the first that came; to three
 * quarters, if it was never served, together with all such keys; between, the less the later it came. So those who came
 * before a crowd find a part that the crowd could not take.
 */
export function mostFor(rank: number, max: number): number {
  return Math.ceil(max * (1 - (KEPT_PART * (latenessOf(rank) - 1)) / (LATEST - 1)));
}

/** How many of the keys that wait, the earliest ones, share every second turn. */
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
  /** What waits of each key, and when that key had its last turn, or else came. */
  readonly #queues = new Map<string, { turn: number; readonly items: Waiting<T>[] }>();
  /** How much waits for each place, and when that place had its last turn, or else came. */
  readonly #places = new Map<string, { turn: number; waiting: number }>();
  #waiting = 0;
  #turn = 0;

  /**
   * @param max the most that wait
   * @param perKey the most that wait of one key
   * @param regulars the keys that do not have to wait for new ones
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
   * Adds one. If too much waits already, the last one of the key that has most gives way, as in {@link givesWay}.
   *
   * @param place where it is to be done
   * @returns the one that gives way, if any; it may be the one given
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

  /** Removes one. @returns whether it still waited */
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

  /** Of the earliest keys that wait, the one whose last turn is longest ago; undefined if none was ever served. */
  #senior(ready: string[]): string | undefined {
    const known = ready.filter((key) => this.#rank(key) !== NEVER);
    if (known.length === 0) return undefined;
    return this.#rested(known.sort((a, b) => this.#rank(a) - this.#rank(b)).slice(0, SENIORS));
  }

  /**
   * The one whose key and place have both had no turn for the longest time: many keys or many places alone get no more.
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

/** How much a key has, and how early it came. */
interface Having {
  readonly own: number;
  /** What it has; of a key that was never served, what all such keys have together, since they may all be one person. */
  readonly together: number;
  readonly rank: number;
}

/**
 * Whether the first of two keys is to give way: the one that has more, weighted by how late it came; of equals, the
 * later.
 */
function hasMore(a: Having, b: Having): boolean {
  const [wholeA, wholeB] = [a.together * latenessOf(a.rank), b.together * latenessOf(b.rank)];
  return wholeA !== wholeB ? wholeA > wholeB : a.own !== b.own ? a.own > b.own : a.rank > b.rank;
}

/** Something that is held for long. */
export interface Holder {
  readonly from: string;
  /** How early its key came: {@link Regulars.rank}. */
  readonly rank: number;
}

/**
 * Who gives up what it holds when there is no more for a new one: the oldest of the key that holds most, weighted by how
 * late it came (keys that were never served count together); of equals, of the latest.
 *
 * @param held in the order in which they came
 * @returns undefined if nobody gives way, so that the new one gets nothing
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

/** A limited number of seats that are held for long: in all, and for one key. */
export class Seats {
  readonly #max: number;
  readonly #perKey: number;
  readonly #held = new Set<Holder & { readonly giveUp: () => void }>();

  constructor([max, perKey]: readonly [number, number]) {
    this.#max = max;
    this.#perKey = perKey;
  }

  /**
   * Takes a seat; if there is none left, that of the one that {@link givesWay}.
   *
   * @param giveUp called when another key gets the seat, which is then no longer held
   * @returns a function that gives it back; undefined if the key has its share, or nobody gives way
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
