/**
 * Several servers on one mailbox. The callers are divided into four partitions, and each server handles the partitions
 * whose lease it holds. All servers share one seed. The leases are in one note, with a MAC, under a name derived from
 * the seed; a note that does not verify counts as absent.
 *
 * No two clocks are compared. An owner counts its lease from before it wrote the last renewal. A server that wants to
 * take it over must have seen that renewal, and no later one, for the whole lease, measured by sleeping. So by the time
 * the second server starts, the first has stopped beginning anything, as long as both clocks run equally fast.
 *
 * @module
 */
import { toBase64url, toHex, utf8 } from './bytes.ts';
import { hmacSha256, sha256 } from './crypto.ts';
import { type Conflict, TechnocoreError } from './errors.ts';
import { randomFloat, retrying, type Transport, within } from './http.ts';
import { type PolledView, writtenAt } from './messages.ts';
import { readNote, setNote } from './notes.ts';
import { PATIENCE_MS, type Place, readView } from './rooms.ts';
import type { Signer } from './signer.ts';

/** How long a lease lasts by default, ms, and how much of it its owner uses. */
const LEASE_MS = 60_000;
const OWN_SHARE = 0.9;
/** How often per lease the lease is renewed, and how often a server that wants a partition reads the note. */
const RENEWALS = 3;
const LOOKS = 12;

const PARTITIONS = 4;
/** The maximum number of servers in a table. Those without a partition only watch. */
const MAX_MEMBERS = 16;
/** How often a server that lost a race for the note retries at once. */
const RACES = 5;

/** In place of an owner: the partition was released; its owner died. */
const FREE = '-';
const LAPSED = '!';
/** In place of an unknown owner, followed by something random that distinguishes one such occasion from another. */
const UNKNOWN = '?';

/** The partition of a caller. */
export function partitionOf(did: string): number {
  return sha256(utf8(did))[0]! % PARTITIONS;
}

// --- the table ---------------------------------------------------------------------------------------------------

interface Member {
  /** Rises with every renewal. */
  readonly count: number;
  readonly leaseMs: number;
}

interface Part {
  readonly owner: string;
  /** The `seq` up to which all messages from the partition's callers are finished. */
  readonly done: number;
}

interface Table {
  readonly version: number;
  readonly members: Map<string, Member>;
  readonly parts: Part[];
}

const isUnknown = ({ owner }: Part): boolean => owner.startsWith(UNKNOWN);
const isOwned = (part: Part): boolean => part.owner !== FREE && part.owner !== LAPSED && !isUnknown(part);

function textOf({ version, members, parts }: Table): string {
  const list = [...members].map(([id, { count, leaseMs }]) => `${id}:${count}:${leaseMs}`).join(',');
  return `claims/1 ${version} ${list || FREE} ${parts.map(({ owner, done }) => `${owner}:${done}`).join(' ')}`;
}

function tableOf(text: string): Table | undefined {
  const [kind, version, list, ...rest] = text.split(' ');
  if (kind !== 'claims/1' || rest.length !== PARTITIONS) return undefined;
  const members = (list === FREE ? [] : list!.split(',')).map((member): [string, Member] => {
    const [id, count, leaseMs] = member.split(':');
    return [id!, { count: Number(count), leaseMs: Number(leaseMs) }];
  });
  const parts = rest.map((part): Part => {
    const [owner, done] = part.split(':');
    return { owner: owner!, done: Number(done) };
  });
  return { version: Number(version), members: new Map(members), parts };
}

// --- one server's leases -----------------------------------------------------------------------------------------

/** What the leases need to know from the server. */
export interface ClaimHooks {
  /** How far it has read. */
  place(): Place;
  /** Checks whether the mailbox was recreated, as one of our reads suggests. */
  recheck(signal: AbortSignal): Promise<void>;
  /** The `seq` after which it serves if there was no server before. */
  start(): number;
  /** The `seq` up to which everything in a partition is finished. */
  done(partition: number): number;
  /** Whether nothing in a partition up to a `seq` is under way or still to be done. */
  isQuiet(partition: number, seq: number): boolean;
  /** Called when the owner of a partition has finished its messages up to `done`. */
  finished(partition: number, done: number): void;
  /** Called when more messages in a partition may be ours than before: see {@link Claims.takes}. */
  taken(partition: number): void;
}

/** Which messages in a partition are not new to its owner. */
export interface Floor {
  /** The `seq` up to which an earlier owner finished them. */
  readonly done: number;
  /** The `seq` up to which an owner that died may have begun them. */
  readonly uncertain: number;
  /**
   * When the last of these was written, by the service's clock, ms. Set where the `seq` may be that of another room.
   */
  readonly until?: number | undefined;
  /** The floor to use if the room turns out to have been recreated before the partition was taken, that is, if the last
   * message seen then is in the new room.
   */
  readonly recreated?: { readonly floor: Floor; readonly last: Seen };
}

/** Distinguishes a message from those with the same `seq` in earlier or later rooms of the name. */
export interface Seen {
  readonly seq: number;
  /** When it was written, by the service's clock, ms. */
  readonly at?: number | undefined;
}

interface Held {
  /** Undefined until it is known what the previous owner may have begun. */
  floor: Floor | undefined;
  before: Part;
  /** The `seq` after which nothing more is begun, so that the partition can be released. */
  leaving?: number | undefined;
}

/** The leases of one server. */
export class Claims {
  readonly #t: Transport;
  readonly #mailbox: string;
  readonly #hooks: ClaimHooks;
  readonly #leaseMs: number;
  readonly #ns: string;
  readonly #key: Uint8Array;
  /** This server's name in the table, for as long as it runs. */
  readonly #id: string;
  readonly #held = new Map<number, Held>();
  /** How long each other member, and each partition without a known owner, has gone without renewal, ms slept. */
  readonly #idle = new Map<string, { count: number; ms: number }>();
  readonly #unknown = new Map<number, { owner: string; ms: number }>();
  #table: Table | undefined;
  #count = 0;
  /** How often the room was recreated. */
  #lives = 0;
  /** When the last successful renewal was started. */
  #renewed: number | undefined;
  #timer: AbortController | undefined;
  #isStopping = false;

  constructor(t: Transport, signer: Signer, mailbox: string, hooks: ClaimHooks, leaseMs: number = LEASE_MS) {
    this.#t = t;
    this.#mailbox = mailbox;
    this.#hooks = hooks;
    this.#leaseMs = leaseMs;
    this.#ns = `p-${toHex(signer.derive(`claims/${mailbox}`).subarray(0, 16))}`;
    this.#key = signer.derive('claims');
    this.#id = toBase64url(t.random(6));
  }

  /** Whether a handler for a caller of the partition may begin now. */
  holds(partition: number): boolean {
    return this.#held.has(partition) && this.#isLeased();
  }

  /** Whether a message in the partition is ours: not if it came after we decided to release the partition. */
  takes(partition: number, seq: number): boolean {
    const held = this.#held.get(partition);
    return held?.floor !== undefined && seq <= (held.leaving ?? seq) && this.#isLeased();
  }

  floorOf(partition: number): Floor {
    return this.#held.get(partition)?.floor ?? { done: 0, uncertain: 0 };
  }

  /** Whether no other server is known. */
  get isAlone(): boolean {
    return this.#idle.size === 0;
  }

  /**
   * Handles that the room was recreated and its `seq` starts over.
   *
   * @param messages the messages of the new room, as far as it shows them
   */
  reset(messages: readonly Seen[]): void {
    this.#lives++;
    const isIn = ({ seq, at }: Seen): boolean => messages.some((m) => m.seq === seq && m.at === at);
    for (const held of this.#held.values()) {
      const { recreated } = held.floor ?? {};
      if (held.floor) held.floor = recreated && isIn(recreated.last) ? recreated.floor : { done: 0, uncertain: 0 };
      else held.before = { ...held.before, done: 0 };
    }
  }

  /** Takes no more partitions. */
  stop(): void {
    this.#isStopping = true;
  }

  /** Maintains the leases until the signal aborts. Rejects with its reason. */
  async run(signal: AbortSignal): Promise<never> {
    try {
      for (;;) {
        const wants = await this.#step(this.#leaseMs / RENEWALS, signal);
        const ms = this.#pauseMs(wants);
        await this.#t.clock.sleep(ms, signal);
        for (const seen of this.#idle.values()) seen.ms += ms;
        for (const seen of this.#unknown.values()) seen.ms += ms;
      }
    } finally {
      this.#timer?.abort();
    }
  }

  /** Releases all partitions. Call it when nothing is under way any more. Never rejects. */
  async release(): Promise<void> {
    this.#isStopping = true;
    if (!this.#table) return;
    for (const held of this.#held.values()) held.leaving ??= this.#hooks.place().since;
    await this.#step(this.#leaseMs / LOOKS);
    this.#timer?.abort();
  }

  #isLeased(): boolean {
    if (this.#renewed === undefined || !this.#timer || this.#timer.signal.aborted) return false;
    // If the clock was set back, the timer still ends the lease in time.
    const ms = this.#t.clock.now() - this.#renewed;
    return ms >= 0 && ms < this.#leaseMs * OWN_SHARE;
  }

  #pauseMs(wants: boolean): number {
    const waits = [...(this.#table?.members ?? [])].flatMap(([id, { leaseMs }]) => {
      const seen = this.#idle.get(id);
      return seen ? [leaseMs - seen.ms] : [];
    });
    const usual = this.#leaseMs / (wants ? LOOKS : RENEWALS);
    // Randomized, so that servers do not read all at the same time.
    const ms = usual * (0.9 + randomFloat(this.#t.random) / 10);
    return Math.max(Math.min(ms, ...waits.filter((left) => left > 0)), this.#leaseMs / 100);
  }

  /** Reads the note once, and writes it if it should change. @returns whether another partition is wanted */
  async #step(ms: number, outer?: AbortSignal): Promise<boolean> {
    const { clock } = this.#t;
    const { signal, end } = within(this.#t, ms, outer);
    try {
      let value = await this.#readNote(signal);
      for (let race = 0; race < RACES; race++) {
        const [base, isSound] = this.#read(value);
        if (isSound) this.#observe(base);
        const plan = this.#plan(base, isSound);
        if (plan.next) {
          const start = clock.now();
          try {
            const condition = value === undefined ? { ifAbsent: true } : { if: value };
            await setNote(this.#ns, 'claims', this.#sealed(plan.next), { ...this.#t, ...condition, signal });
          } catch (cause) {
            signal.throwIfAborted();
            const conflict = conflictOf(cause);
            if (!conflict) throw cause;
            value = conflict.actual ?? (await this.#readNote(signal));
            // If the note holds it, a write that may have landed did land.
            if (value !== this.#sealed(plan.next)) continue;
          }
          this.#wrote(plan, plan.next, start);
        }
        await this.#settle(signal);
        return plan.wants;
      }
    } catch (cause) {
      outer?.throwIfAborted();
      this.#t.onEvent({ kind: 'unclaimed', room: this.#mailbox, cause });
    } finally {
      end();
    }
    return true;
  }

  async #readNote(signal: AbortSignal): Promise<string | undefined> {
    const by = this.#t.clock.now() + this.#leaseMs / RENEWALS;
    return retrying(this.#t, by, () => readNote(this.#t, this.#ns, 'claims', { signal }), signal);
  }

  #sealed(table: Table): string {
    return this.#macked(textOf(table));
  }

  #macked(text: string): string {
    return `${text} ${toBase64url(hmacSha256(this.#key, utf8(`${this.#mailbox} ${text}`)).subarray(0, 16))}`;
  }

  /**
   * The table to start from, and whether it is the note's own: it is not if somebody tampered with the note or restored
   * an old one.
   */
  #read(value: string | undefined): [base: Table, isSound: boolean] {
    const known = this.#table;
    const table = this.#opened(value ?? '');
    const isOld =
      known &&
      table &&
      (table.version < known.version || (table.version === known.version && textOf(table) !== textOf(known)));
    if (table && !isOld) return [table, true];
    // Notes cannot be deleted, so one that existed and is missing is suspicious.
    const owner = value === undefined && !known ? FREE : `${UNKNOWN}${toBase64url(this.#t.random(6))}`;
    const parts = Array.from(
      { length: PARTITIONS },
      (_, p): Part => ({ owner, done: known?.parts[p]?.done ?? this.#hooks.start() }),
    );
    return [{ version: known?.version ?? 0, members: new Map(), parts }, false];
  }

  #opened(value: string): Table | undefined {
    const text = value.slice(0, Math.max(value.lastIndexOf(' '), 0));
    return value === this.#macked(text) ? tableOf(text) : undefined;
  }

  #observe(table: Table): void {
    const { members, parts } = table;
    this.#table = table;
    for (const id of this.#idle.keys()) if (!members.has(id)) this.#idle.delete(id);
    for (const [id, { count }] of members) {
      if (id !== this.#id && this.#idle.get(id)?.count !== count) this.#idle.set(id, { count, ms: 0 });
    }
    for (const [p, part] of parts.entries()) {
      if (!isUnknown(part)) this.#unknown.delete(p);
      else if (this.#unknown.get(p)?.owner !== part.owner) this.#unknown.set(p, { owner: part.owner, ms: 0 });
      if (part.owner !== this.#id) this.#hooks.finished(p, part.done);
    }
  }

  #isDead(id: string, { leaseMs }: Member): boolean {
    return id !== this.#id && (this.#idle.get(id)?.ms ?? 0) >= leaseMs;
  }

  /** Plans the table to write next; none if the note is up to date and need not be renewed. */
  #plan(base: Table, isSound: boolean): Plan {
    const { version, parts, members } = this.#corrected(base);
    const count = (id: string): number => parts.filter(({ owner }) => owner === id).length;
    const ids = [...new Set([...members.keys(), this.#id])].sort((a, b) => count(b) - count(a) || (a < b ? -1 : 1));
    const rank = ids.indexOf(this.#id);
    const share = Math.floor(PARTITIONS / ids.length) + (rank < PARTITIONS % ids.length ? 1 : 0);
    const quota = this.#isStopping ? 0 : share;

    let keeps = 0;
    const released = new Set<number>();
    for (const [p, held] of this.#held) {
      if (keeps < quota) {
        held.leaving = undefined;
        keeps++;
      } else held.leaving ??= this.#hooks.place().since;
      if (held.leaving !== undefined && held.floor && this.#hooks.isQuiet(p, held.leaving)) {
        parts[p] = { owner: FREE, done: held.leaving };
        released.add(p);
      } else if (held.floor) {
        // After a start, this server may reread what was finished before.
        const finished = Math.max(this.#hooks.done(p), held.floor.done);
        const done = Math.min(finished, held.leaving ?? Number.POSITIVE_INFINITY);
        parts[p] = { owner: this.#id, done };
      }
    }
    const taken = new Map<number, Part>();
    for (const [p, part] of parts.entries()) {
      const isOver = isUnknown(part) ? (this.#unknown.get(p)?.ms ?? 0) >= this.#leaseMs : !isOwned(part);
      if (!isOver || keeps >= quota || released.has(p)) continue;
      parts[p] = { ...part, owner: this.#id };
      taken.set(p, part);
      keeps++;
    }

    const wants = keeps < quota;
    const isIn = wants || keeps > 0 || this.#held.size > released.size;
    const since = this.#t.clock.now() - (this.#renewed ?? Number.NEGATIVE_INFINITY);
    const isDue = !(since >= 0 && since < (this.#leaseMs / RENEWALS) * 0.9);
    const isSame =
      isSound &&
      members.size === base.members.size &&
      members.has(this.#id) === isIn &&
      parts.every(({ owner }, p) => owner === base.parts[p]!.owner);
    const isFull = isIn && members.size >= MAX_MEMBERS && !members.has(this.#id);
    if (isFull || (isSame && !(isDue && isIn))) return { wants, taken, released };
    // Counted even if the outcome of the write stays unknown, so that no two renewals are equal.
    if (isIn) members.set(this.#id, { count: ++this.#count, leaseMs: this.#leaseMs });
    else members.delete(this.#id);
    const next = { version: Math.max(version + 1, Math.floor(this.#t.clock.now())), members, parts };
    return { wants, taken, released, next };
  }

  /**
   * A copy of the table without dead members, and with the partitions that we hold. Those that we have lost according
   * to the table are dropped.
   */
  #corrected({ version, members: all, parts: before }: Table): Table {
    const members = new Map([...all].filter(([id, member]) => !this.#isDead(id, member)));
    const parts = before.map((part, p): Part => {
      const isHeld = this.#held.has(p);
      if (isHeld && part.owner === this.#id) return part;
      // The server that repaired the note could not know that the partition is ours.
      if (isHeld && isUnknown(part) && this.#isLeased()) return { ...part, owner: this.#id };
      this.#held.delete(p);
      if (!isOwned(part) || (part.owner !== this.#id && members.has(part.owner))) return part;
      const isLapsed = part.owner !== this.#id && all.has(part.owner);
      return { ...part, owner: isLapsed ? LAPSED : `${UNKNOWN}${toBase64url(this.#t.random(6))}` };
    });
    return { version, members, parts };
  }

  #wrote({ taken, released }: Plan, next: Table, start: number): void {
    this.#table = next;
    this.#renewed = start;
    for (const p of released) this.#held.delete(p);
    for (const [p, before] of taken) this.#held.set(p, { floor: undefined, before });
    for (const [p, { owner }] of next.parts.entries()) {
      if (this.#unknown.get(p)?.owner !== owner) this.#unknown.delete(p);
      if (owner.startsWith(UNKNOWN) && !this.#unknown.has(p)) this.#unknown.set(p, { owner, ms: 0 });
    }
    this.#timer?.abort();
    const timer = new AbortController();
    this.#timer = timer;
    this.#t.clock.sleep(this.#leaseMs * OWN_SHARE - (this.#t.clock.now() - start), timer.signal).then(
      () => timer.abort(),
      () => {},
    );
  }

  /**
   * Reads where the room ends. The leases of earlier owners have ended by now, so they began nothing that comes later.
   */
  async #look(signal: AbortSignal): Promise<End> {
    for (;;) {
      const { since } = this.#hooks.place();
      const lives = this.#lives;
      const by = this.#t.clock.now() + PATIENCE_MS;
      const view = (): Promise<PolledView> => readView(this.#t, this.#mailbox, { limit: 1 }, signal);
      const { lastSeq, messages, generation } = await retrying(this.#t, by, view, signal);
      const last = messages.at(-1);
      // Without generations, a lower `seq` reveals a recreated room, but only until it has as many messages as the old
      // one.
      if (lives === this.#lives && generation === undefined && lastSeq < since) await this.#hooks.recheck(signal);
      if (lives === this.#lives) return { lastSeq, at: last && writtenAt(last), isLater: lastSeq < since };
    }
  }

  /** Determines what earlier owners may have begun, and passes on the messages that are ours now. */
  async #settle(signal: AbortSignal): Promise<void> {
    const open = [...this.#held.values()].filter(({ floor }) => !floor);
    if (open.length > 0) {
      const end = await this.#look(signal);
      for (const held of open) held.floor = floorBehind(held.before, this.#hooks.place(), end);
    }
    for (const p of this.#held.keys()) this.#hooks.taken(p);
  }
}

/** The current end of the room. */
interface End {
  readonly lastSeq: number;
  /** When its last message was written, by the service's clock, ms. */
  readonly at: number | undefined;
  /** Whether it is known to be a later room than the one that we have read so far. */
  readonly isLater: boolean;
}

/**
 * The floor of a new owner.
 *
 * @param before the partition as it was taken; its `done` may belong to a room that is gone
 * @param place how far we have read, perhaps in a room that is gone
 */
function floorBehind({ owner, done }: Part, place: Place, { lastSeq, at, isLater }: End): Floor {
  const { since, generation } = place;
  const end = Math.max(lastSeq, since);
  const isFree = owner === FREE;
  const floor = { done: 0, uncertain: isFree ? (done > lastSeq ? 0 : done) : lastSeq, until: at };
  const recreated = { floor, last: { seq: lastSeq, at } };
  // With generations, the `seq` continues from one room to the next, and is enough, unless the service lost them.
  if ((generation !== undefined || !isLater) && done <= end) return { done, uncertain: isFree ? 0 : end, recreated };
  if (isLater) return { done: done > lastSeq ? done : 0, uncertain: since, recreated };
  // `done` belongs to an earlier room, or to this one and we lag: then what we have read may be finished.
  return { done: 0, uncertain: isFree ? since : end, recreated };
}

interface Plan {
  /** Whether another partition is wanted. */
  readonly wants: boolean;
  /** The partitions to take, as they were before. */
  readonly taken: ReadonlyMap<number, Part>;
  readonly released: ReadonlySet<number>;
  readonly next?: Table;
}

/** The conflict that an error is, or has as its cause. */
function conflictOf(cause: unknown): Conflict | undefined {
  if (!TechnocoreError.is(cause)) return undefined;
  if (cause.code === 'conflict') return cause as Conflict;
  return cause.code === 'may_have_landed' ? conflictOf(cause.cause) : undefined;
}
