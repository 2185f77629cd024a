/**
 * Spilling: a text that is too long for a message goes into notes, in chunks, under names that only its signer can
 * predict. A frame takes its place, with the names, the total length and the digest. Anybody who learns the names can
 * write there, but what does not match the digest, which is signed with the frame, is ignored.
 *
 * @module
 */
import { concat, fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { TechnocoreError } from './errors.ts';
import { encode, isObject, type Json, MAX_TEXT } from './frames.ts';
import { Lanes, randomFloat, retrying, sharedOf, type Transport } from './http.ts';
import { remember } from './maps.ts';
import { isName } from './names.ts';
import { readNote, setNote } from './notes.ts';
import { PATIENCE_MS } from './rooms.ts';
import type { Signer } from './signer.ts';

/** The member of `params._meta` by which a caller declares that it reads spilled answers. */
export const SPILL_META = 'chat.technocore/spill';
/** The member of the frame that stands for a spilled one. */
export const FRAME_MEMBER = 'chat.technocore/frame';

/** How many bytes a note carries: 8,192 characters of base64url. */
const NOTE_BYTES = 6144;
/** The bytes that sealing adds to a chunk. */
const SEAL_BYTES = 28;
const CHUNK_BYTES = NOTE_BYTES - SEAL_BYTES;
/** The maximum number of notes for one text. */
const MAX_KEYS = 16;
/** The maximum number of bytes that can be spilled. */
export const MAX_SPILLED: number = CHUNK_BYTES * MAX_KEYS;

/** How many sets of notes a place uses in rotation, and its maximum when texts come faster than they are read. */
const SETS = 4;
const MAX_SETS = 64;
/** How long the notes of a text are not reused if that can be avoided, ms: its frame may have to wait that long. */
const KEPT_MS = 300_000;
/** For how many places the sets are remembered, and how many may be added per day: notes exist for a week. */
const MAX_PLACES = 256;
/** How many sets beyond the first ones may be added per day. */
const MAX_MORE = 256;
const DAY_MS = 86_400_000;
/** For how many signers the sets are remembered. */
const MAX_SIGNERS = 256;

/** How often notes are read before missing ones count as lost. */
const READS = 3;
/** The pause before the first reread, ms. */
const AGAIN_MS = 400;
/** How many notes are read at a time. */
const AT_ONCE = 4;

/** A reference to a spilled text. */
export type SpillRef = { ns: string; keys: string[]; bytes: number; sha256: string };

/** Encrypts chunks, for encrypted channels. */
export interface ChunkSeal {
  seal(chunk: Uint8Array): Uint8Array;
  open(sealed: Uint8Array): Uint8Array | undefined;
}

/** How a {@link Channel} sends and receives texts that are too long for a frame: through notes. */
export interface Spill {
  /**
   * Stores a text where the other side can read it.
   *
   * @returns a reference to it, to be sent in a frame
   * @throws what {@link setNote} throws; a {@link TechnocoreError} `spill_full` if texts went to too many rooms today
   */
  put(text: string): Promise<Json>;
  /**
   * Reads a text that the other side stored.
   *
   * @param ref the reference from the frame; untrusted
   * @throws a {@link TechnocoreError} `spill_lost` if the text is missing, or is not what was stored
   */
  get(ref: Json, signal?: AbortSignal): Promise<string>;
}

/** JSON text without escapes for non-ASCII characters: at best a sixth as long. */
const compact = (text: string): string => (text.includes('\\u') ? JSON.stringify(JSON.parse(text)) : text);

/** How many bytes a JSON text takes when spilled. */
export function spilledBytes(text: string): number {
  return utf8(compact(text)).length;
}

/** How many writes an answer takes: one, plus one for each note if it is spilled. */
export function writesFor(text: string): number {
  return text.length <= MAX_TEXT ? 1 : 1 + Math.ceil(spilledBytes(text) / CHUNK_BYTES);
}

/** Runs one write when its turn comes: one at a time in a lane. */
export type InTurn = (lane: string, write: () => Promise<void>) => Promise<void>;

/** Allocates the notes of one signer. */
class Sets {
  /** When each set of a place was last used, ms, least recently used first. */
  readonly #used = new Map<string, Map<number, number>>();
  #day = 0;
  #added = 0;
  #more = 0;

  /** Allocates the set for the next text of a place. */
  next({ clock, random }: Transport, place: string): number {
    const now = clock.now();
    const day = Math.floor(now / DAY_MS);
    if (day !== this.#day) this.#added = this.#more = 0;
    this.#day = day;
    const used = this.#used.get(place) ?? this.#add(random);
    let [[set, at]] = used as unknown as [[number, number]];
    if (Math.abs(now - at) < KEPT_MS && used.size < MAX_SETS && this.#more < MAX_MORE) {
      this.#more++;
      set = used.size;
    }
    remember(used, set, now, MAX_SETS);
    remember(this.#used, place, used, MAX_PLACES);
    return set;
  }

  #add(random: Transport['random']): Map<number, number> {
    if (this.#added >= MAX_PLACES)
      throw new TechnocoreError('spill_full', 'too many reply rooms needed notes for long answers today');
    this.#added++;
    // An earlier process may have used any of the sets last.
    const first = Math.floor(randomFloat(random) * SETS);
    return new Map(Array.from({ length: SETS }, (_, i) => [(first + i) % SETS, Number.NEGATIVE_INFINITY]));
  }
}

const SETS_OF = {};

/** The sets of a signer, shared by everything that spills with its key: otherwise they would overwrite each other. */
function setsOf(t: Transport, { did }: Signer): Sets {
  const all = sharedOf(t, SETS_OF, () => new Map<string, Sets>());
  const sets = all.get(did) ?? new Sets();
  remember(all, did, sets, MAX_SIGNERS);
  return sets;
}

/** Spills the texts of one signer. */
export class Spills {
  readonly #t: Transport;
  readonly #signer: Signer;
  readonly #seal: ChunkSeal | undefined;
  readonly #lanes = new Lanes();

  constructor(t: Transport, signer: Signer, seal?: ChunkSeal) {
    this.#t = t;
    this.#signer = signer;
    this.#seal = seal;
  }

  /**
   * Puts a JSON text into notes for the readers of a place. The texts for one place are written one after the other.
   *
   * @param place the room that the referring frame will be written to
   * @throws a {@link TechnocoreError} `spill_full` if too many places were added today; what writing throws
   */
  put(place: string, text: string, inTurn: InTurn = (_, write) => write()): Promise<SpillRef> {
    return this.#lanes.run(place, async () => {
      const bytes = utf8(compact(text));
      const set = setsOf(this.#t, this.#signer).next(this.#t, place);
      const ns = `p-${toHex(this.#signer.derive(`spill/${place}`).subarray(0, 16))}`;
      const keys = Array.from({ length: Math.ceil(bytes.length / CHUNK_BYTES) }, (_, i) => `${set}-${i}`);
      const write = async (key: string, i: number): Promise<void> => {
        const chunk = bytes.subarray(i * CHUNK_BYTES, (i + 1) * CHUNK_BYTES);
        await setNote(ns, key, toBase64url(this.#seal?.seal(chunk) ?? chunk), this.#t);
      };
      await Promise.all(keys.map((key, i) => inTurn(`${ns}/${key}`, () => write(key, i))));
      return { ns, keys, bytes: bytes.length, sha256: toHex(sha256(bytes)) };
    });
  }
}

/** The value as a reference; undefined if it is malformed or exceeds our limits. */
function refOf(ref: unknown): SpillRef | undefined {
  if (!isObject(ref)) return undefined;
  const { ns, keys, bytes, sha256: digest } = ref;
  const isGood =
    isName(ns) &&
    Array.isArray(keys) &&
    keys.length > 0 &&
    keys.length <= MAX_KEYS &&
    keys.every(isName) &&
    Number.isInteger(bytes) &&
    (bytes as number) > 0 &&
    (bytes as number) <= NOTE_BYTES * keys.length &&
    typeof digest === 'string' &&
    /^[0-9a-f]{64}$/.test(digest);
  return isGood ? (ref as SpillRef) : undefined;
}

/** The digest of the text that a reference stands for, 64 hex digits; undefined if the reference is invalid. */
export function digestIn(ref: unknown): string | undefined {
  return refOf(ref)?.sha256;
}

/**
 * Reads a spilled text from at most sixteen notes. Transient failures are retried for up to 30 seconds. Notes that do not
 * match the digest are reread, since a cache may have returned an old one.
 *
 * @throws a {@link TechnocoreError} `spill_lost` if the notes are missing or hold something else; the signal's reason
 */
export async function readSpilled(t: Transport, ref: unknown, signal?: AbortSignal, seal?: ChunkSeal): Promise<string> {
  const known = refOf(ref);
  if (!known) throw new TechnocoreError('spill_lost', 'the reference to the spilled answer is invalid');
  const { ns, keys, bytes, sha256: digest } = known;
  const deadline = t.clock.now() + PATIENCE_MS;
  const read = (key: string): Promise<string | undefined> =>
    retrying(t, deadline, () => readNote(t, ns, key, signal ? { signal } : {}), signal);
  let cause: unknown;
  for (let reads = 1; ; reads++) {
    try {
      const values: (string | undefined)[] = [];
      for (let i = 0; i < keys.length; i += AT_ONCE) {
        values.push(...(await Promise.all(keys.slice(i, i + AT_ONCE).map(read))));
      }
      const chunks = values.map((value) => fromBase64url(value ?? '') ?? new Uint8Array());
      const whole = concat(...chunks.map((chunk) => (seal ? (seal.open(chunk) ?? new Uint8Array()) : chunk)));
      const text = whole.length === bytes && toHex(sha256(whole)) === digest ? fromUtf8(whole) : undefined;
      if (text !== undefined) return text;
    } catch (failure) {
      signal?.throwIfAborted();
      cause = failure;
    }
    if (reads === READS) {
      throw new TechnocoreError('spill_lost', `the answer was put into notes of ${ns}, which do not contain it`, cause);
    }
    await t.clock.sleep(AGAIN_MS * reads, signal);
  }
}

/** The {@link Spill} of a channel through one room. */
export function spillOf(t: Transport, signer: Signer, room: string, seal?: ChunkSeal): Spill {
  let spills: Spills | undefined;
  return {
    put: (text) => (spills ??= new Spills(t, signer, seal)).put(room, text),
    get: (ref, signal) => readSpilled(t, ref, signal, seal),
  };
}

/**
 * Spills a request or answer that is too large for a message, and returns the frame that takes its place.
 *
 * @param more further members of the frame
 * @throws what `put` throws
 */
export async function spilledFrame(
  text: string,
  put: (text: string) => Promise<Json>,
  more: { [member: string]: Json } = {},
): Promise<string> {
  const { id } = JSON.parse(text) as { id: Json };
  return encode({ jsonrpc: '2.0', id, ...more, [FRAME_MEMBER]: await put(text) });
}
