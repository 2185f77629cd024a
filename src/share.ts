/**
 * A mailbox that several servers read: which messages are for this one, what is kept of those for others in case that one
 * of them dies, and what such a one may have done with them.
 *
 * @module
 */
import type { Incoming } from './channel.ts';
import { type ClaimHooks, Claims, partitionOf } from './claims.ts';
import { classify, type JsonObject } from './dispatch.ts';
import { authorOf, drop } from './feed.ts';
import { compact, decode, encodeLong, isObject, type Json } from './frames.ts';
import { retrying, type Transport } from './http.ts';
import { count, remember } from './maps.ts';
import type { PolledView } from './messages.ts';
import { PATIENCE_MS, type Place, readView } from './rooms.ts';
import type { Signer } from './signer.ts';
import { FRAME_MEMBER } from './spill.ts';

/** Messages for others that are kept, and such of one key. */
const MAX_KEPT = 4096;
const MAX_OF_KEY = MAX_KEPT / 4;
/**
 * Messages before the newest that a server reads when it starts: so it knows what others were asked, should it be asked
 * again.
 */
const HISTORY = 4000;
/** How long a look into a reply room stands, ms, and how many are kept. */
const LOOK_MS = 3000;
const MAX_LOOKS = 64;

type Frame = JsonObject | Json[];

/**
 * What a message is to the server that handles it: a new one; one that another may have begun; one that another finished.
 */
export type Standing = 'new' | 'uncertain' | 'finished';

/** What a share asks of its server, and tells it. */
export interface ShareHooks {
  /** Handles a message: what is not new does not run; ids of all are remembered. */
  handle(m: Incoming, frame: Frame, standing: Standing): void;
  /** Up to where the mailbox was read. */
  place(): Place;
  /** Checks whether the mailbox was recreated. */
  recheck(signal: AbortSignal): Promise<void>;
  /** Seq of the oldest message under way whose sender fits; undefined: there is none. */
  unfinished(fits: (from: string) => boolean): number | undefined;
}

/** One server's share of a mailbox. */
export class Share {
  readonly #t: Transport;
  readonly #did: string;
  readonly #mailbox: string;
  readonly #hooks: ShareHooks;
  readonly #claims: Claims;
  /** Messages for others, by seq, rising. */
  #kept = new Map<number, { m: Incoming; frame: Frame; partition: number }>();
  readonly #keptOf = new Map<string, number>();
  readonly #looks = new Map<string, { at: number; view: Promise<PolledView> }>();
  #start = 0;
  /** The last message seen, of whomever; undefined when the next one may follow upon such as were lost. */
  #last: number | undefined;
  #lostBefore: number | undefined;

  constructor(t: Transport, signer: Signer, mailbox: string, hooks: ShareHooks, leaseMs?: number) {
    this.#t = t;
    this.#did = signer.did;
    this.#mailbox = mailbox;
    this.#hooks = hooks;
    const { place, recheck } = hooks;
    const oldestOf = (partition: number): number | undefined => {
      const kept = [...this.#kept].find(([, one]) => one.partition === partition)?.[0];
      const begun = hooks.unfinished((from) => partitionOf(from) === partition);
      return kept === undefined || begun === undefined ? (kept ?? begun) : Math.min(kept, begun);
    };
    const claimHooks: ClaimHooks = {
      place,
      recheck,
      start: () => this.#start,
      done: (partition) => (oldestOf(partition) ?? place().since + 1) - 1,
      isQuiet: (partition, seq) => (oldestOf(partition) ?? seq + 1) > seq,
      finished: (partition, done) => this.#finished(partition, done),
      taken: (partition) => this.#flush(partition),
    };
    this.#claims = new Claims(t, signer, mailbox, claimHooks, leaseMs);
  }

  /** Whether no other server is known to be there. */
  get isAlone(): boolean {
    return this.#claims.isAlone;
  }

  /**
   * When the first message was written before which some were lost to us, by the clock of the service, ms: of what was
   * signed by then nobody here can tell whether another server took it.
   */
  get lostBefore(): number | undefined {
    return this.#lostBefore;
  }

  /** Seq of the oldest message that is kept. */
  get oldest(): number | undefined {
    return this.#kept.keys().next().value;
  }

  /**
   * Where to begin to read.
   *
   * @param place where this server stopped, if that is known
   */
  async begin(place: Place | undefined, signal?: AbortSignal): Promise<Place> {
    const by = this.#t.clock.now() + PATIENCE_MS;
    const view = await retrying(this.#t, by, () => readView(this.#t, this.#mailbox, { limit: 200 }, signal), signal);
    const { lastSeq, firstSeq, generation } = view;
    const isSame = place !== undefined && place.generation === generation && place.since <= lastSeq;
    this.#start = isSame ? place.since : lastSeq;
    const since = Math.max(0, Math.min((firstSeq ?? 1) - 1, lastSeq - HISTORY));
    return compact({ since, generation });
  }

  /** Keeps the share until the signal aborts; rejects with its reason. */
  run(signal: AbortSignal): Promise<never> {
    return this.#claims.run(signal);
  }

  /** Takes on nothing more. */
  stop(): void {
    this.#claims.stop();
  }

  /** Leaves to others what it has; to be called when nothing is under way any more. */
  release(): Promise<void> {
    return this.#claims.release();
  }

  /**
   * The mailbox was recreated: of what is kept nobody can tell any more, by its place, whether it was begun.
   *
   * @param goesOn whether its seqs go on where those of the one before ended
   */
  reset(goesOn: boolean): void {
    for (const seq of [...this.#kept.keys()]) this.#drop(seq);
    this.#last = undefined;
    // Where seqs go on, what others finished in the new room is known by them, though we find out late that there is one.
    if (!goesOn) this.#claims.reset();
  }

  /** Whether a handler for a caller may begin now. */
  holds(from: string): boolean {
    return this.#claims.holds(partitionOf(from));
  }

  /** Takes note of a message, of whomever. */
  saw({ seq, at }: Incoming): void {
    const isNext = seq === (this.#last ?? seq) + 1;
    // By a clock that was set back since, some may just as well be signed until now, and nobody is to sign ahead of it.
    if (at !== undefined && (!isNext || at < (this.#lostBefore ?? at))) this.#lostBefore = at;
    this.#last = seq;
  }

  /** Takes a message: hands it to the server if it is for this one, else keeps it. */
  message(m: Incoming, frame: Frame): void {
    const partition = partitionOf(m.from);
    if (this.#claims.takes(partition, m.seq)) {
      this.#flush(partition);
      this.#handle(m, frame, partition);
    } else this.#keep(m, frame, partition);
  }

  /** Takes back a message that could not be begun: the lease was over. */
  again(m: Incoming, frame: Frame): void {
    if (this.#kept.has(m.seq)) return;
    this.#keep(m, frame, partitionOf(m.from));
    this.#kept = new Map([...this.#kept].sort(([a], [b]) => a - b));
  }

  /** The answer to a request that stands in a reply room, by whichever server; undefined when none does. */
  async answerIn(room: string, id: string): Promise<string | undefined> {
    const { messages } = await this.#look(room);
    for (const m of [...messages].reverse()) {
      if (authorOf(this.#t, room, m) !== this.#did) continue;
      const frame = decode(m.text);
      for (const member of Array.isArray(frame) ? frame : [frame]) {
        const isAnswer = isObject(member) && (classify(member) === 'response' || member[FRAME_MEMBER] !== undefined);
        if (isAnswer && JSON.stringify(member['id']) === id) return encodeLong(member);
      }
    }
    return undefined;
  }

  #look(room: string): Promise<PolledView> {
    const now = this.#t.clock.now();
    const known = this.#looks.get(room);
    if (known && Math.abs(now - known.at) < LOOK_MS) return known.view;
    const view = retrying(this.#t, now + PATIENCE_MS, () => readView(this.#t, room, { limit: 200 }));
    remember(this.#looks, room, { at: now, view }, MAX_LOOKS);
    return view;
  }

  #handle(m: Incoming, frame: Frame, partition: number): void {
    const { done, uncertain, until } = this.#claims.floorOf(partition);
    const isLater = until !== undefined && m.at !== undefined && m.at > until;
    this.#hooks.handle(m, frame, m.seq <= done ? 'finished' : m.seq <= uncertain && !isLater ? 'uncertain' : 'new');
  }

  #keep(m: Incoming, frame: Frame, partition: number): void {
    const { from, seq } = m;
    const own = this.#keptOf.get(from) ?? 0;
    if (own >= MAX_OF_KEY || this.#kept.size >= MAX_KEPT) {
      // Whoever has it most likely handles it; if not, it is lost.
      const [oldest] = [...this.#kept.values()].filter((one) => own < MAX_OF_KEY || one.m.from === from);
      drop(this.#t, 'skipped', oldest!.m, { reason: 'too much for others' });
      this.#drop(oldest!.m.seq);
    }
    this.#kept.set(seq, { m, frame, partition });
    count(this.#keptOf, from, 1);
  }

  #remove(seq: number, from: string): void {
    this.#kept.delete(seq);
    count(this.#keptOf, from, -1);
  }

  #drop(seq: number): void {
    const { m, frame } = this.#kept.get(seq)!;
    this.#remove(seq, m.from);
    this.#hooks.handle(m, frame, 'finished');
  }

  #finished(partition: number, done: number): void {
    // A seq beyond the end is of a room before this one.
    if (done > this.#hooks.place().since) return;
    for (const [seq, one] of this.#kept) {
      if (seq > done) return;
      if (one.partition === partition) this.#drop(seq);
    }
  }

  #flush(partition: number): void {
    for (const [seq, one] of this.#kept) {
      if (one.partition !== partition || !this.#claims.takes(partition, seq)) continue;
      // The server has it before it is kept no more, so that its place never runs ahead.
      this.#handle(one.m, one.frame, partition);
      this.#remove(seq, one.m.from);
    }
  }
}
