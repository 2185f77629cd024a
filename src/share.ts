/**
 * A mailbox that several servers share: which messages are this server's, which of the others' are kept in case their
 * server dies, and what a server that died may have done with them.
 *
 * @module
 */
import type { Incoming } from './channel.ts';
import { type ClaimHooks, Claims, partitionOf, type Seen } from './claims.ts';
import { classify, type JsonObject } from './dispatch.ts';
import { authorOf, drop } from './feed.ts';
import { compact, decode, encodeLong, isObject, type Json } from './frames.ts';
import { retrying, type Transport } from './http.ts';
import { count, remember } from './maps.ts';
import type { PolledView } from './messages.ts';
import { PATIENCE_MS, type Place, readView, type Start } from './rooms.ts';
import type { Signer } from './signer.ts';
import { FRAME_MEMBER } from './spill.ts';

/** How many messages for other servers are kept, in all and from one key. */
const MAX_KEPT = 4096;
const MAX_OF_KEY = MAX_KEPT / 4;
/**
 * How many old messages a server reads when it starts, to learn what other servers were asked in case it is asked
 * again.
 */
const HISTORY = 4000;
/** How long a view of a reply room is cached, ms, and how many are. */
const LOOK_MS = 3000;
const MAX_LOOKS = 64;

type Frame = JsonObject | Json[];

/** A message's state: new; perhaps begun by another server that died; or finished by another server. */
export type Standing = 'new' | 'uncertain' | 'finished';

/** What a share needs from its server. */
export interface ShareHooks {
  /** Handles a message. Only new ones run; the ids of all are remembered. */
  handle(m: Incoming, frame: Frame, standing: Standing): void;
  /** How far the mailbox has been read. */
  place(): Place;
  /** Checks whether the mailbox was recreated. */
  recheck(signal: AbortSignal): Promise<void>;
  /** The `seq` of the oldest message under way whose sender matches; undefined if there is none. */
  unfinished(fits: (from: string) => boolean): number | undefined;
}

/** One server's share of a mailbox. */
export class Share {
  readonly #t: Transport;
  readonly #did: string;
  readonly #mailbox: string;
  readonly #hooks: ShareHooks;
  readonly #claims: Claims;
  /** Messages for other servers, by ascending `seq`. */
  #kept = new Map<number, { m: Incoming; frame: Frame; partition: number }>();
  readonly #keptOf = new Map<string, number>();
  readonly #looks = new Map<string, { at: number; view: Promise<PolledView> }>();
  #start = 0;
  /** The `seq` of the last message seen, whoever wrote it; undefined if messages may be lost before the next one. */
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

  /** Whether no other server is known. */
  get isAlone(): boolean {
    return this.#claims.isAlone;
  }

  /**
   * When the first message after a gap was written, by the service's clock, ms. This server cannot tell whether another
   * one took requests signed before that.
   */
  get lostBefore(): number | undefined {
    return this.#lostBefore;
  }

  /** The `seq` of the oldest message that is kept. */
  get oldest(): number | undefined {
    return this.#kept.keys().next().value;
  }

  /**
   * Returns where to start reading.
   *
   * @param place where this server stopped, if known
   */
  async begin(place: Place | undefined, signal?: AbortSignal): Promise<Start> {
    const by = this.#t.clock.now() + PATIENCE_MS;
    const view = await retrying(this.#t, by, () => readView(this.#t, this.#mailbox, { limit: 200 }, signal), signal);
    const { lastSeq, firstSeq, generation } = view;
    const isSame = place !== undefined && place.generation === generation && place.since <= lastSeq;
    this.#start = isSame ? place.since : lastSeq;
    const since = Math.max(0, Math.min((firstSeq ?? 1) - 1, lastSeq - HISTORY));
    // The leases are taken on the ground of what is there now.
    return compact({ since, generation, last: lastSeq, mark: view.messages.at(-1)?.ts });
  }

  /** Maintains the share until the signal aborts. Rejects with its reason. */
  run(signal: AbortSignal): Promise<never> {
    return this.#claims.run(signal);
  }

  /** Takes no more partitions. */
  stop(): void {
    this.#claims.stop();
  }

  /** Releases the share to the other servers. Call it when nothing is under way any more. */
  release(): Promise<void> {
    return this.#claims.release();
  }

  /**
   * Handles that the mailbox was recreated: the `seq` of the kept messages no longer tells whether they were begun.
   *
   * @param goesOn whether the `seq` continues where the old room ended
   * @param messages the messages of the new room, as far as it shows them
   */
  reset(goesOn: boolean, messages: readonly Seen[]): void {
    for (const seq of [...this.#kept.keys()]) this.#drop(seq);
    this.#last = undefined;
    // If it continues, it still tells what others finished in the new room, even if we learn of that room late.
    if (!goesOn) this.#claims.reset(messages);
  }

  /** Whether a handler for a caller may begin now. */
  holds(from: string): boolean {
    return this.#claims.holds(partitionOf(from));
  }

  /** Records that a message was seen, whoever wrote it. */
  saw({ seq, at }: Incoming): void {
    const isNext = seq === (this.#last ?? seq) + 1;
    // The earlier of two times: if the service's clock was set back, nobody should have to sign ahead of it.
    if (at !== undefined && (!isNext || at < (this.#lostBefore ?? at))) this.#lostBefore = at;
    this.#last = seq;
  }

  /** Passes a message to the server if it is this server's, else keeps it. */
  message(m: Incoming, frame: Frame): void {
    const partition = partitionOf(m.from);
    if (this.#claims.takes(partition, m.seq)) {
      this.#flush(partition);
      this.#handle(m, frame, partition);
    } else this.#keep(m, frame, partition);
  }

  /** Takes back a message that could not be started because the lease had ended. */
  again(m: Incoming, frame: Frame): void {
    if (this.#kept.has(m.seq)) return;
    this.#keep(m, frame, partitionOf(m.from));
    this.#kept = new Map([...this.#kept].sort(([a], [b]) => a - b));
  }

  /** The answer to a request that any of the servers wrote to its reply room; undefined if there is none. */
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
      // Its own server most likely handles it; it is lost only if that server dies.
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
    // A `seq` beyond the end belongs to an earlier room.
    if (done > this.#hooks.place().since) return;
    for (const [seq, one] of this.#kept) {
      if (seq > done) return;
      if (one.partition === partition) this.#drop(seq);
    }
  }

  #flush(partition: number): void {
    for (const [seq, one] of this.#kept) {
      if (one.partition !== partition || !this.#claims.takes(partition, seq)) continue;
      // Passed on before it is dropped here, so that the server's saved place never runs ahead of it.
      this.#handle(one.m, one.frame, partition);
      this.#remove(seq, one.m.from);
    }
  }
}
