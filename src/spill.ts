/**
 * Texts too large for a message, in notes: chunks under a name that only their signer can tell beforehand,
 * and in their place a frame that says where they are, how long they are together, and their digest. Anybody who learns
 * the name can write there; what then does not fit the digest, which is signed with the frame, is no answer.
 *
 * @module
 */
import { concat, fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { TechnocoreError } from './errors.ts';
import { encode, isObject, type Json, MAX_TEXT } from './frames.ts';
import { Lanes, randomFloat, type Transport } from './http.ts';
import { remember } from './maps.ts';
import { isName } from './names.ts';
import { readNote, setNote } from './notes.ts';
import type { Signer } from './signer.ts';

/** Member of `params._meta` by which a caller says that it reads spilled answers. */
export const SPILL_META = 'chat.technocore/spill';
/** Member of the frame that stands for a spilled one. */
export const FRAME_MEMBER = 'chat.technocore/frame';

/** Bytes that a note carries: 8,192 characters of base64url. */
const NOTE_BYTES = 6144;
/** What sealing may add to a chunk. */
const SEAL_BYTES = 28;
const CHUNK_BYTES = NOTE_BYTES - SEAL_BYTES;
const MAX_KEYS = 16;
/** Most bytes that can be spilled. */
export const MAX_SPILLED: number = CHUNK_BYTES * MAX_KEYS;

/** Sets of notes that one place takes in turn, so that the answers before this one can still be read. */
const SETS = 4;
/** Places whose sets are remembered, and such that may be added a day: what is written stays for a week. */
const MAX_PLACES = 256;
const DAY_MS = 86_400_000;

/** How often the notes are read before what is missing counts as lost, and the pause between, ms. */
const READS = 3;
const AGAIN_MS = 400;
/** Notes read at a time. */
const AT_ONCE = 4;

/** Where a spilled text is. */
export type SpillRef = { ns: string; keys: string[]; bytes: number; sha256: string };

/** Makes chunks unreadable for others, for channels that seal. */
export interface ChunkSeal {
  seal(chunk: Uint8Array): Uint8Array;
  open(sealed: Uint8Array): Uint8Array | undefined;
}

/** A way to send and receive texts that are too large for a message. */
export interface Spill {
  /**
   * Puts a text where the other side can read it.
   *
   * @throws what writing throws
   */
  put(text: string): Promise<Json>;
  /**
   * Reads it there.
   *
   * @throws TechnocoreError `spill_lost`: it is not there, or not as it was put
   */
  get(ref: Json, signal?: AbortSignal): Promise<string>;
}

/** JSON text with what was escaped beyond ASCII as it is: a sixth of the length at best. */
const compact = (text: string): string => (text.includes('\\u') ? JSON.stringify(JSON.parse(text)) : text);

/** How many bytes a JSON text takes when it is spilled. */
export function spilledBytes(text: string): number {
  return utf8(compact(text)).length;
}

/** How many writes an answer takes: one, and where it is spilled one for each of its notes. */
export function writesFor(text: string): number {
  return text.length <= MAX_TEXT ? 1 : 1 + Math.ceil(spilledBytes(text) / CHUNK_BYTES);
}

/** Runs one write in its turn: one at a time in a lane. */
export type InTurn = (lane: string, write: () => Promise<void>) => Promise<void>;

/** Where one signer puts what is too large. */
export class Spills {
  readonly #t: Transport;
  readonly #signer: Signer;
  readonly #seal: ChunkSeal | undefined;
  readonly #lanes = new Lanes();
  /** The next set of each place. */
  readonly #sets = new Map<string, number>();
  #day = 0;
  #added = 0;

  constructor(t: Transport, signer: Signer, seal?: ChunkSeal) {
    this.#t = t;
    this.#signer = signer;
    this.#seal = seal;
  }

  /**
   * Puts a JSON text into notes for the readers of a place, one text of a place after the other.
   *
   * @param place room in which their frame is going to stand
   * @throws TechnocoreError `spill_full`: too many places today; what writing throws
   */
  put(place: string, text: string, inTurn: InTurn = (_, write) => write()): Promise<SpillRef> {
    return this.#lanes.run(place, async () => {
      const bytes = utf8(compact(text));
      const set = this.#nextSet(place);
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

  #nextSet(place: string): number {
    const known = this.#sets.get(place);
    if (known === undefined) {
      const day = Math.floor(this.#t.clock.now() / DAY_MS);
      if (day !== this.#day) this.#added = 0;
      this.#day = day;
      if (this.#added >= MAX_PLACES)
        throw new TechnocoreError('spill_full', 'too many reply rooms needed notes for long answers today');
      this.#added++;
    }
    // A process before this one may have used any.
    const set = known ?? Math.floor(randomFloat(this.#t.random) * SETS);
    remember(this.#sets, place, (set + 1) % SETS, MAX_PLACES);
    return set;
  }
}

/** A reference as far as we follow one. */
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

/**
 * Reads a spilled text: at most sixteen notes, read again where they do not fit the digest, as a stale copy does not.
 *
 * @throws TechnocoreError `spill_lost`: they are not there, or hold something else; the signal's reason
 */
export async function readSpilled(t: Transport, ref: unknown, signal?: AbortSignal, seal?: ChunkSeal): Promise<string> {
  const known = refOf(ref);
  if (!known) throw new TechnocoreError('spill_lost', 'the reference to the spilled answer is invalid');
  const { ns, keys, bytes, sha256: digest } = known;
  let cause: unknown;
  for (let reads = 1; ; reads++) {
    try {
      const values: (string | undefined)[] = [];
      for (let i = 0; i < keys.length; i += AT_ONCE) {
        const some = keys.slice(i, i + AT_ONCE).map((key) => readNote(t, ns, key, signal ? { signal } : {}));
        values.push(...(await Promise.all(some)));
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

/** What a channel through one room does with texts that are too large. */
export function spillOf(t: Transport, signer: Signer, room: string, seal?: ChunkSeal): Spill {
  let spills: Spills | undefined;
  return {
    put: (text) => (spills ??= new Spills(t, signer, seal)).put(room, text),
    get: (ref, signal) => readSpilled(t, ref, signal, seal),
  };
}

/**
 * The frame that stands for a request or an answer too large for a message, once that is put.
 *
 * @param more further members of the frame
 * @throws what putting throws
 */
export async function spilledFrame(
  text: string,
  put: (text: string) => Promise<Json>,
  more: { [member: string]: Json } = {},
): Promise<string> {
  const { id } = JSON.parse(text) as { id: Json };
  return encode({ jsonrpc: '2.0', id, ...more, [FRAME_MEMBER]: await put(text) });
}
