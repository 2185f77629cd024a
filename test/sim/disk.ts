import type { Log } from '../../src/files.ts';
import type { CursorStore, Place } from '../../src/rooms.ts';
import type { Timeline } from './clock.ts';
import type { Host } from './network.ts';
import type { Random } from './random.ts';

/** What one server keeps: it outlives its processes, as far as it was written when they died. */
export class Disk {
  text: string | undefined;
  place: Place | undefined;
  /** Half-written last lines that a restart found. */
  torn = 0;
  readonly #timeline: Timeline;
  readonly #random: Random;

  constructor(timeline: Timeline, random: Random) {
    this.#timeline = timeline;
    this.#random = random;
  }

  /** Done after a while, if the process still lives; else perhaps begun. */
  #write(host: Host, done: () => void, cut?: () => void): Promise<void> {
    host.onSend?.();
    return new Promise((resolve) => {
      if (!host.isAlive) return cut?.();
      this.#timeline.after(this.#random.between(0.2, 8), () => {
        if (!host.isAlive) return cut?.();
        done();
        resolve();
      });
    });
  }

  log(host: Host): Log {
    return {
      append: (text) =>
        this.#write(
          host,
          () => {
            this.text = (this.text ?? '') + text;
          },
          () => {
            const length = this.#random.int(text.length + 1);
            if (length > 0 && length < text.length) this.torn++;
            this.text = (this.text ?? '') + text.slice(0, length);
          },
        ),
      replace: (text) =>
        this.#write(host, () => {
          this.text = text;
        }),
      close: async () => {},
    };
  }

  cursor(host: Host): CursorStore {
    return {
      load: () => this.place,
      save: (_, place) =>
        this.#write(host, () => {
          this.place = place;
        }),
    };
  }
}
