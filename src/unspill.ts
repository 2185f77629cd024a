/**
 * Requests too large for a message, on the side that reads them: the frame in the room names notes, which cost up to sixteen
 * reads. So few are read at a time, each key in its turn, and only of keys that may call.
 *
 * @module
 */
import { classify, type JsonObject } from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { decode, isObject, type Json } from './frames.ts';
import { FRAME_MEMBER } from './spill.ts';
import type { Ranks } from './turns.ts';
import { Workers } from './workers.ts';

/** Requests read at a time, and such that wait for it. */
const AT_ONCE = 2;
const MAX_WAITING = 64;

/** True for a frame that stands for a longer one. */
export function isSpilled(frame: unknown): frame is JsonObject {
  return isObject(frame) && frame[FRAME_MEMBER] !== undefined;
}

/** The long requests of one server. */
export class LongRequests {
  readonly #get: (ref: Json) => Promise<string>;
  readonly #turns: Workers;

  /** @param regulars who is not to wait for newcomers */
  constructor(get: (ref: Json) => Promise<string>, regulars: Ranks) {
    this.#get = get;
    this.#turns = new Workers(AT_ONCE, MAX_WAITING, 1, regulars);
  }

  /**
   * The request that a frame stands for.
   *
   * @throws TechnocoreError `spill_lost`: it is not there, or no request with the frame's id; `too_many`: too many wait
   */
  async read(from: string, frame: JsonObject): Promise<JsonObject> {
    const release = await this.#turns.enter(from);
    if (!release) throw new TechnocoreError('too_many', 'too many long requests wait to be read');
    try {
      const request = decode(await this.#get(frame[FRAME_MEMBER]!));
      if (classify(request) === 'request' && (request as JsonObject)['id'] === frame['id'])
        return request as JsonObject;
    } finally {
      release();
    }
    throw new TechnocoreError('spill_lost', 'what was spilled is not the request');
  }
}
