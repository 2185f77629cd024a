/**
 * Rooms and notes in memory, with the rings, caps and reaper of the real service.
 *
 * @module
 */
import type { Clock } from './http.ts';
import type { Limits, LocalStats } from './local-limits.ts';
import { type Profile, Refusal, utf8Length } from './local-wire.ts';
import { type RoomClasses, roomClasses } from './names.ts';

/** A stored message. Views and exports are built from its JSON line, in which numbers beyond 2^53 are exact. */
export interface StoredMessage {
  readonly seq: number;
  /** When it was stored, ms. */
  readonly at: number;
  readonly from: string;
  /** Compact JSON, without the newline. */
  readonly line: string;
  /** The bytes of all lines before this one, including those that were dropped. */
  readonly start: number;
}

/** A room that somebody has written to. */
export interface Room {
  readonly name: string;
  readonly classes: RoomClasses;
  /** Oldest first, without gaps. */
  messages: StoredMessage[];
  lastSeq: number;
  /** How often the room was created, this time included. */
  readonly generation: number;
  /** The bytes of the lines that are held, newlines included. */
  bytes: number;
  /** The bytes of all lines ever written. */
  end: number;
  /** Last write, ms. */
  touched: number;
  /** The number of the last write among all writes: it orders writes within one millisecond. */
  order: number;
  /** The last nonce of each key, and its message. */
  readonly nonces: Map<string, { nonce: string; message: StoredMessage }>;
}

interface Note {
  value: string;
  /** Last write, ms. */
  touched: number;
}

/** The condition of a write to a note. */
export interface Condition {
  readonly value?: string | undefined;
  readonly absent?: boolean;
}

/** The namespaces with the rules for owned rooms. Their notes live as long as the rooms. */
export const OWNERS = 'room-owners';
export const ALLOW = 'room-allow';
export const NONCES = 'room-nonce';
/** The room that the service itself writes. */
export const EVENTS = 'events';

// How many of the newest bytes of a room a read scans.
const READ_BYTES = 1 << 20;
// How many lines release 0.7 keeps at most when the older half of a room is dropped.
const OLD_LINES = 5000;

/** A nonce without leading zeros, as it is stored. */
export function canonicalNonce(digits: string): string {
  return digits.replace(/^0+(?=\d)/, '');
}

/** True if `a` is higher than `b`; both are canonical. */
export function isAbove(a: string, b: string): boolean {
  return a.length === b.length ? a > b : a.length > b.length;
}

/** A time as the service writes it. */
function timestamp(ms: number): string {
  return `${new Date(ms).toISOString().slice(0, -1)}000Z`;
}

/** All rooms and notes of a service. */
export class Store {
  readonly rooms: Map<string, Room> = new Map();
  /** Rises with every change of the set of rooms or of a topic. */
  structure = 0;
  readonly #modern: boolean;
  readonly #clock: Clock;
  readonly #limits: Limits;
  readonly #stats: LocalStats;
  readonly #onMessage: (room: string) => void;
  readonly #notes: Map<string, Map<string, Note>> = new Map();
  // Deleted rooms: their last `seq` and generation are kept.
  readonly #graves: Map<string, { lastSeq: number; generation: number; at: number }> = new Map();
  #noteBytes = 0;
  #reapedAt = Number.NEGATIVE_INFINITY;
  #writes = 0;

  /** @param onMessage called with the room of each message that was stored */
  constructor(profile: Profile, clock: Clock, limits: Limits, stats: LocalStats, onMessage: (room: string) => void) {
    this.#modern = profile === 'modern';
    this.#clock = clock;
    this.#limits = limits;
    this.#stats = stats;
    this.#onMessage = onMessage;
  }

  get noteBytes(): number {
    return this.#noteBytes;
  }

  // --- rooms ----------------------------------------------------------------------------------------------------

  /** The highest `seq` that the room has ever had. Since release 0.11 it survives the room. */
  lastSeq(name: string): number {
    return this.rooms.get(name)?.lastSeq ?? this.#graves.get(name)?.lastSeq ?? 0;
  }

  /** How often a room of this name was created. */
  generation(name: string): number {
    return this.rooms.get(name)?.generation ?? this.#graves.get(name)?.generation ?? 0;
  }

  /**
   * Stores a message, and announces the room if it is new and listed.
   *
   * @param signed the nonce as sent, and the signature, of a signed message
   * @throws a Refusal if the nonce is stale, or there are too many rooms
   */
  append(name: string, from: string, text: string, signed?: { nonce: string; sig: string }): StoredMessage {
    this.reap();
    const { message, created } = this.#write(name, from, text, signed);
    if (created && name !== EVENTS && !roomClasses(name).p) {
      try {
        this.#write(EVENTS, 'server', `created ${name}`);
      } catch (e) {
        // A full service may refuse the announcement. The message itself is stored.
        if (!(e instanceof Refusal)) throw e;
      }
    }
    return message;
  }

  #write(name: string, from: string, text: string, signed?: { nonce: string; sig: string }) {
    const known = this.rooms.get(name);
    if (!known) this.#checkRoomCaps();
    const nonce = signed && canonicalNonce(signed.nonce);
    if (nonce !== undefined) {
      const last = known && this.#lastNonce(known, from);
      if (last !== undefined && !isAbove(nonce, last)) {
        throw new Refusal(
          400,
          `400 nonce ${nonce} is not greater than ${last}, the last one this key used in /r/${name}. Count up and sign again.`,
        );
      }
    }
    const room = known ?? this.#createRoom(name);
    const at = Math.floor(this.#clock.now());
    const seq = ++room.lastSeq;
    let line = `{"seq":${seq},"ts":"${timestamp(at)}","from":"${from}","text":${JSON.stringify(text)}`;
    if (nonce !== undefined) line += `,"nonce":${nonce}`;
    if (signed && this.#modern) line += `,"sig":"${signed.sig}"`;
    line += '}';
    const message: StoredMessage = { seq, at, from, line, start: room.end };
    const bytes = utf8Length(line) + 1;
    room.messages.push(message);
    room.end += bytes;
    room.bytes += bytes;
    this.#stats.bytes += bytes;
    this.#stats.messages++;
    this.#touch(room);
    if (nonce !== undefined) room.nonces.set(from, { nonce, message });
    // Above the total, each room shrinks to its share at its next write.
    const { roomRingBytes, roomBytesTotal, rooms } = this.#limits;
    const ring = this.#stats.bytes - bytes < roomBytesTotal ? roomRingBytes : Math.floor(roomBytesTotal / rooms);
    if (room.bytes > ring) this.#compact(room, Math.floor(ring / 2));
    this.#onMessage(name);
    return { message, created: !known };
  }

  #touch(room: Room): void {
    room.touched = this.#clock.now();
    room.order = ++this.#writes;
  }

  #createRoom(name: string): Room {
    const room: Room = {
      name,
      classes: roomClasses(name),
      messages: [],
      lastSeq: this.lastSeq(name),
      generation: this.generation(name) + 1,
      bytes: 0,
      end: 0,
      touched: 0,
      order: 0,
      nonces: new Map(),
    };
    this.#graves.delete(name);
    this.rooms.set(name, room);
    this.#stats.rooms = this.rooms.size;
    this.structure++;
    return room;
  }

  #checkRoomCaps(): void {
    const { rooms, roomBytesTotal } = this.#limits;
    if (this.rooms.size >= rooms) {
      throw new Refusal(400, `400 room limit reached (${rooms} rooms). Write to an existing one.`);
    }
    if (this.#stats.bytes >= roomBytesTotal) {
      throw new Refusal(400, '400 room storage is full: no new rooms for now. Existing rooms still take messages.');
    }
  }

  /** Drops the oldest messages, so that at most `keep` bytes remain. */
  #compact(room: Room, keep: number): void {
    const { messages } = room;
    const expiry = this.#expiry(room);
    const most = this.#modern ? Number.POSITIVE_INFINITY : OLD_LINES;
    let from = messages.length;
    while (from > 0) {
      const { start, at } = messages[from - 1]!;
      const first = from === messages.length;
      // Release 0.7 drops even the newest message, and the `seq` with it, if that message alone is too long.
      if (!(first && this.#modern) && (room.end - start > keep || messages.length - from >= most)) break;
      if (!first && at < expiry) break;
      from--;
    }
    room.messages = messages.slice(from);
    const bytes = room.messages.length > 0 ? room.end - room.messages[0]!.start : 0;
    this.#stats.bytes -= room.bytes - bytes;
    room.bytes = bytes;
    if (room.messages.length === 0) room.lastSeq = 0;
    const oldest = room.messages[0]?.seq ?? Number.POSITIVE_INFINITY;
    for (const [did, { message }] of room.nonces) if (message.seq < oldest) room.nonces.delete(did);
  }

  /** The time before which messages of an `e-` room are gone. */
  #expiry(room: Room): number {
    return room.classes.e ? this.#clock.now() - this.#limits.ephemeralTtlMs : Number.NEGATIVE_INFINITY;
  }

  /** True for a message deeper in its room than `depth` bytes: reads no longer find it. */
  #isBeyond(room: Room, message: StoredMessage, depth: number): boolean {
    return room.bytes > depth && room.end - message.start >= depth;
  }

  #lastNonce(room: Room, did: string): string | undefined {
    const last = room.nonces.get(did);
    // Release 0.7 searches no deeper than a read does.
    return last && (this.#modern || !this.#isBeyond(room, last.message, READ_BYTES)) ? last.nonce : undefined;
  }

  /** The newest `most` messages after `since`, oldest first. */
  read(name: string, most: number, since?: number | bigint): StoredMessage[] {
    const room = this.rooms.get(name);
    return room ? this.#newest(room, most, READ_BYTES, this.#expiry(room), since) : [];
  }

  /** The newest messages, as the list of rooms counts them, expired ones included. */
  window(room: Room): StoredMessage[] {
    return this.#newest(room, 200, 65_536, Number.NEGATIVE_INFINITY);
  }

  #newest(room: Room, most: number, depth: number, expiry: number, since: number | bigint = -1): StoredMessage[] {
    const { messages } = room;
    let from = messages.length;
    for (; from > 0 && messages.length - from < most; from--) {
      const message = messages[from - 1]!;
      if (message.seq <= since || message.at < expiry || this.#isBeyond(room, message, depth)) break;
    }
    return messages.slice(from);
  }

  /** All lines of a room, as stored. */
  export(name: string): string {
    const room = this.rooms.get(name);
    if (!room) return '';
    const expiry = this.#expiry(room);
    let lines = '';
    for (const { at, line } of room.messages) if (at >= expiry) lines += `${line}\n`;
    return lines;
  }

  // --- notes ----------------------------------------------------------------------------------------------------

  note(ns: string, key: string): string | undefined {
    return this.#notes.get(ns)?.get(key)?.value;
  }

  /** Keys of a namespace, ascending. */
  keys(ns: string): string[] {
    return [...(this.#notes.get(ns)?.keys() ?? [])].sort();
  }

  /**
   * Stores a note.
   *
   * @throws a Refusal if the condition does not hold, or there are too many notes
   */
  setNote(ns: string, key: string, value: string, condition: Condition = {}): { bytes: number; ts: string } {
    this.reap();
    const note = this.#notes.get(ns)?.get(key);
    const lost = (what: string): Refusal =>
      new Refusal(
        409,
        note === undefined
          ? `409 note ${ns}/${key} ${what}\n\nNothing is there: it was never written, or it has expired. Create it with if_absent.`
          : `409 note ${ns}/${key} ${what}\n\nWork your change into what is there now and send it again with ?if=<that value>.\n` +
              `current value follows (${[...note.value].length} chars):\n${note.value}`,
      );
    const isLost = condition.value !== undefined && note?.value !== condition.value;
    if (note === undefined) {
      // Later releases check the condition first.
      if (this.#modern && isLost) throw lost('changed since you read it');
      const { notesPerNamespace, notes } = this.#limits;
      if ((this.#notes.get(ns)?.size ?? 0) >= notesPerNamespace) {
        throw new Refusal(400, `400 note limit reached (${notesPerNamespace} notes in one namespace). Overwrite one.`);
      }
      if (this.#stats.notes >= notes) {
        throw new Refusal(400, `400 note limit reached (${notes} notes in all namespaces together). Overwrite one.`);
      }
    }
    if (condition.absent && note !== undefined) throw lost('already exists');
    if (isLost) throw lost('changed since you read it');
    const touched = this.#clock.now();
    const bytes = utf8Length(value);
    this.#noteBytes += bytes - (note === undefined ? 0 : utf8Length(note.value));
    if (ns === 'topic') this.structure++;
    if (note === undefined) {
      let notes = this.#notes.get(ns);
      if (!notes) this.#notes.set(ns, (notes = new Map()));
      notes.set(key, { value, touched });
      this.#stats.notes++;
    } else {
      note.value = value;
      note.touched = touched;
    }
    return { bytes, ts: timestamp(touched) };
  }

  // --- reaper ---------------------------------------------------------------------------------------------------

  /** Deletes idle rooms and notes. It runs only from time to time, since it looks at everything. */
  reap(): void {
    const now = this.#clock.now();
    const { reapEveryMs, retentionMs, singleMessageRetentionMs } = this.#limits;
    // Even if the clock was set back, the reaper must run again soon.
    if (now >= this.#reapedAt && now - this.#reapedAt < reapEveryMs) return;
    this.#reapedAt = now;
    for (const [name, room] of this.rooms) {
      const idle = now - room.touched;
      if (idle <= retentionMs && !(room.messages.length <= 1 && idle > singleMessageRetentionMs)) continue;
      this.rooms.delete(name);
      this.#stats.bytes -= room.bytes;
      this.structure++;
      if (this.#modern) this.#graves.set(name, { lastSeq: room.lastSeq, generation: room.generation, at: now });
    }
    this.#stats.rooms = this.rooms.size;
    for (const [name, grave] of this.#graves) {
      if (now - grave.at > retentionMs || this.#graves.size > this.#limits.rooms) this.#graves.delete(name);
    }
    for (const [ns, notes] of this.#notes) {
      const guards = ns === OWNERS || ns === ALLOW || ns === NONCES;
      for (const [key, note] of notes) {
        const room = guards ? this.rooms.get(key) : undefined;
        if (now - note.touched <= retentionMs || (room && now - room.touched <= retentionMs)) continue;
        notes.delete(key);
        this.#noteBytes -= utf8Length(note.value);
        this.#stats.notes--;
      }
      if (notes.size === 0) this.#notes.delete(ns);
    }
  }

  /**
   * Moves the last write of a room, or of a note (`ns/key`), back by `ms`, and lets the next write run the reaper.
   *
   * @internal for tests
   */
  age(name: string, ms: number): void {
    const [ns, key] = name.split('/') as [string, string | undefined];
    const aged = key === undefined ? this.rooms.get(ns) : this.#notes.get(ns)?.get(key);
    if (aged) aged.touched -= ms;
    this.#reapedAt = Number.NEGATIVE_INFINITY;
  }
}
