/**
 * Reading requests that are too long for a message. The frame in the room names notes, which take up to sixteen reads,
 * so few requests are read at a time, keys take turns, and only keys that may call are served.
 *
 * @module
 */
import { classify, type JsonObject } from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { decode, isObject, type Json } from './frames.ts';
import { FRAME_MEMBER } from './spill.ts';
import type { Ranks } from './turns.ts';
import { Workers } from './workers.ts';

/** How many long requests are read at a time, and how many can wait. */
const AT_ONCE = 2;
const MAX_WAITING = 64;

/** True for a frame that stands for a spilled one. */
export function isSpilled(frame: unknown): frame is JsonObject {
  return isObject(frame) && frame[FRAME_MEMBER] !== undefined;
}

/** The long requests of one server. */
export class LongRequests {
  readonly #get: (ref: Json) => Promise<string>;
  readonly #turns: Workers;

  /** @param regulars the keys that take precedence over new ones */
  constructor(get: (ref: Json) => Promise<string>, regulars: Ranks) {
    this.#get = get;
    this.#turns = new Workers(AT_ONCE, MAX_WAITING, 1, regulars);
  }

  /**
   * Reads the request that a frame stands for.
   *
   * @throws a {@link TechnocoreError} `spill_lost` if it is missing, or is not a request with the frame's id;
   * `too_many` if too many wait
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
    throw new TechnocoreError('spill_lost', 'the notes do not hold the request');
  }
}
