/**
 * A server's outgoing writes: callers take turns, one write at a time goes to a room, and no more are under way than
 * the write budget allows at once. So a burst from one key never delays the others by more than a turn.
 *
 * @module
 */
import type { Clock } from './clock.ts';
import { RateLimited, TechnocoreError } from './errors.ts';
import { MAX_TEXT } from './frames.ts';
import { budgetOf, randomFloat, type Transport } from './http.ts';
import { type SigningKey, saySigned } from './rooms.ts';
import { type Regulars, Turns } from './turns.ts';

interface Waiting {
  /** The room or note written to: one write at a time is under way to each. */
  readonly lane: string;
  write(): Promise<unknown>;
  resolve(): void;
  reject(cause: unknown): void;
}

const PLAIN_STRING = /"[^"\\]*(?:\\.[^"\\]*)*"/g;

/**
 * The same JSON in an unpredictable spelling: a few letters in its strings are written as escapes. Undefined if there
 * are no letters, or if the text would become too long.
 */
export function respelled(text: string, random: (bytes: number) => Uint8Array): string | undefined {
  const places: number[] = [];
  for (const { 0: token, index } of text.matchAll(PLAIN_STRING)) {
    for (let i = index + 1; i < index + token.length - 1; i++) {
      if (text[i] === '\\') i += text[i + 1] === 'u' ? 5 : 1;
      else if (/[a-z]/i.test(text[i]!)) places.push(i);
    }
  }
  const count = Math.min(6, Math.floor((MAX_TEXT - text.length) / 5));
  const chosen = new Set(Array.from({ length: count }, () => places[Math.floor(randomFloat(random) * places.length)]));
  if (places.length === 0 || chosen.size === 0) return undefined;
  return [...text].map((c, i) => (chosen.has(i) ? `\\u00${c.charCodeAt(0).toString(16)}` : c)).join('');
}

/**
 * Writes a frame. If the room refuses it as a duplicate of what others wrote, it is written in another spelling.
 */
export async function sayUnrefused(
  t: Transport,
  key: SigningKey,
  room: string,
  text: string,
  signal?: AbortSignal,
): Promise<unknown> {
  try {
    return await saySigned(t, key, room, text, signal);
  } catch (cause) {
    const other = TechnocoreError.is(cause) && cause.code === 'duplicate_text' ? respelled(text, t.random) : undefined;
    if (other === undefined) throw cause;
    return saySigned(t, key, room, other, signal);
  }
}

/**
 * Writes, and retries while the service refuses the write only because the budget of this address is spent: others at
 * the same address may use all of it for a while. A refused write was not executed.
 *
 * @throws what the last attempt threw; the signal's reason
 */
export async function patiently<T>(clock: Clock, write: () => Promise<T>, signal: AbortSignal): Promise<T> {
  const until = clock.now() + LIMITED_MS;
  for (;;) {
    try {
      return await write();
    } catch (cause) {
      if (!(cause instanceof RateLimited)) throw cause;
      const waitMs = Math.max(cause.retryAfterMs, 1000);
      if (clock.now() + waitMs > until) throw cause;
      await clock.sleep(waitMs, signal);
    }
  }
}

/** How many writes may be under way at a time while the budget allows it. */
const MAX_WRITING = 8;
/** How many answers can wait, for one key and in all. */
const MAX_OF_KEY = 256;
const MAX_WAITING = 4096;
/** How long a write that only the budget prevents is retried, ms: as long as an answer may wait in all. */
const LIMITED_MS = 300_000;

/** The outgoing answers of one server. */
export class Outbox {
  readonly #t: Transport;
  readonly #write: (room: string, text: string) => Promise<unknown>;
  readonly #turns: Turns<Waiting>;
  readonly #lanes = new Set<string>();
  readonly #over = new AbortController();
  #closed: { reason: unknown } | undefined;

  /** @param regulars the keys that take precedence over new ones */
  constructor(t: Transport, write: (room: string, text: string) => Promise<unknown>, regulars?: Regulars) {
    this.#t = t;
    this.#write = write;
    this.#turns = new Turns(MAX_WAITING, MAX_OF_KEY, regulars);
  }

  /** How long it will take to write everything that waits, ms; 0 while the budget is unknown. */
  get backlogMs(): number {
    const { perMinute } = budgetOf(this.#t, 'write');
    return perMinute === undefined ? 0 : (this.#turns.waiting * 60_000) / perMinute;
  }

  /** Whether nothing waits, so that a write starts at once unless one to the same room is under way. */
  get isIdle(): boolean {
    return this.#turns.waiting === 0;
  }

  /** How many answers to a key wait. */
  waitingFor(from: string): number {
    return this.#turns.waitingFor(from);
  }

  /**
   * Writes `text` to `room` when the turn of `from` comes.
   *
   * @throws a {@link TechnocoreError} `outbox_full` if too much waits; nothing is written then
   * @throws what the write throws; the reason with which the outbox was closed
   */
  send(from: string, room: string, text: string): Promise<void> {
    return this.run(from, room, room, () => this.#write(room, text));
  }

  /**
   * Runs another write that an answer to `from` needs, when its turn comes.
   *
   * @param room the room that the answer goes to
   * @param lane the target, which gets one write at a time
   * @throws what {@link send} throws
   */
  run(from: string, room: string, lane: string, write: () => Promise<unknown>): Promise<void> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(this.#closed.reason);
      this.#turns
        .push(from, { lane, write, resolve, reject }, room)
        ?.reject(new TechnocoreError('outbox_full', 'more answers are waiting than can be written'));
      this.#next();
    });
  }

  /** Writes nothing more. What waits is rejected with `reason`. */
  close(reason: unknown): void {
    this.#closed = { reason };
    this.#over.abort(reason);
    for (let turn = this.#turns.next(() => true); turn; turn = this.#turns.next(() => true)) turn[1].reject(reason);
  }

  #next(): void {
    while (this.#lanes.size < MAX_WRITING) {
      // Not earlier: a write that waits in the budget holds a turn that another key may deserve more.
      if (this.#lanes.size > 0 && budgetOf(this.#t, 'write').delayMs(2) > 0) return;
      const [, one] = this.#turns.next((_, { lane }) => !this.#lanes.has(lane)) ?? [];
      if (!one) return;
      this.#lanes.add(one.lane);
      patiently(this.#t.clock, one.write, this.#over.signal)
        .then(() => one.resolve(), one.reject)
        .finally(() => {
          this.#lanes.delete(one.lane);
          this.#next();
        });
    }
  }
}
