/**
 * The writes of a server in turns: each caller's answers after the other's, one at a time to a room, and no more under way
 * than the write budget can carry at once, so that a burst of one key makes nobody else wait for more than its turn.
 *
 * @module
 */
import { TechnocoreError } from './errors.ts';
import { budgetOf, type Transport } from './http.ts';

interface Waiting {
  /** Of which one write is under way at a time: a room, or a note. */
  readonly lane: string;
  write(): Promise<unknown>;
  resolve(): void;
  reject(cause: unknown): void;
}

/** Writes under way at a time while the budget is not short. */
const MAX_WRITING = 8;
/** Answers of one key that wait, and of all keys. */
const MAX_OF_KEY = 256;
const MAX_WAITING = 4096;

/** The answers of one server on their way. */
export class Outbox {
  readonly #t: Transport;
  readonly #write: (room: string, text: string) => Promise<unknown>;
  /** Queues by key; the first key is next. */
  readonly #queues = new Map<string, Waiting[]>();
  readonly #lanes = new Set<string>();
  #waiting = 0;

  constructor(t: Transport, write: (room: string, text: string) => Promise<unknown>) {
    this.#t = t;
    this.#write = write;
  }

  /** How many answers to a key wait. */
  waitingFor(from: string): number {
    return this.#queues.get(from)?.length ?? 0;
  }

  /**
   * Writes `text` to `room` when it is the turn of `from`.
   *
   * @throws TechnocoreError `outbox_full`: too much waits; nothing is written
   * @throws what the write throws
   */
  send(from: string, room: string, text: string): Promise<void> {
    return this.run(from, room, () => this.#write(room, text));
  }

  /**
   * Runs another write that an answer to `from` needs, when it is its turn.
   *
   * @param lane of which no two are to be under way
   * @throws as {@link send}
   */
  run(from: string, lane: string, write: () => Promise<unknown>): Promise<void> {
    return new Promise((resolve, reject) => {
      const queue = this.#queues.get(from) ?? [];
      if (queue.length >= MAX_OF_KEY || this.#waiting >= MAX_WAITING) {
        reject(new TechnocoreError('outbox_full', 'more answers wait than can be written'));
        return;
      }
      queue.push({ lane, write, resolve, reject });
      this.#queues.set(from, queue);
      this.#waiting++;
      this.#next();
    });
  }

  #next(): void {
    while (this.#lanes.size < MAX_WRITING) {
      // Whoever asks the budget early holds a turn that another key may deserve more.
      if (this.#lanes.size > 0 && budgetOf(this.#t, 'write').delayMs(2) > 0) return;
      const turn = [...this.#queues].find(([, queue]) => !this.#lanes.has(queue[0]!.lane));
      if (!turn) return;
      const [from, queue] = turn;
      const one = queue.shift()!;
      this.#queues.delete(from);
      // Behind all others.
      if (queue.length > 0) this.#queues.set(from, queue);
      this.#waiting--;
      this.#lanes.add(one.lane);
      one
        .write()
        .then(() => one.resolve(), one.reject)
        .finally(() => {
          this.#lanes.delete(one.lane);
          this.#next();
        });
    }
  }
}
