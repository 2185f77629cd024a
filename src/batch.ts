/**
 * Shared writes: requests that wait to be written to one mailbox are combined into one JSON-RPC batch. Requests made at
 * the same moment are written together at once; those made while a write is under way go into the next one.
 *
 * @module
 */
import type { Channel, SendOptions, Sent } from './channel.ts';
import { OVER, onAbort } from './clock.ts';
import { isMcpMethod } from './dispatch.ts';
import { MAX_TEXT, metaIn } from './frames.ts';
import { budgetOf, sharedOf, type Transport } from './http.ts';
import { getOrMake } from './maps.ts';

/** The maximum number of requests in a batch. */
const MAX_MEMBERS = 64;

/** The frames of one message. */
class Fill<T extends { readonly text: string }> {
  readonly members = new Set<T>();
  #chars = 1;

  /** Adds a frame if the array still fits into a message. The first is always added, since it needs no array. */
  add(member: T): boolean {
    const chars = this.#chars + member.text.length + 1;
    if (this.members.size > 0 && (chars > MAX_TEXT || this.members.size === MAX_MEMBERS)) return false;
    this.#chars = chars;
    this.members.add(member);
    return true;
  }

  remove(member: T): boolean {
    const isIn = this.members.delete(member);
    if (isIn) this.#chars -= member.text.length + 1;
    return isIn;
  }
}

/** Packs frames, in order, into as few messages as possible. */
export function packed(texts: readonly string[]): string[][] {
  const fills: Fill<{ text: string }>[] = [];
  for (const text of texts) {
    if (!fills.at(-1)?.add({ text })) {
      const fill = new Fill<{ text: string }>();
      fill.add({ text });
      fills.push(fill);
    }
  }
  return fills.map(({ members }) => [...members].map(({ text }) => text));
}

/** Whether a request may share a message. MCP requests never do: MCP servers refuse arrays. */
export function isBatchable(method: string, params: unknown): boolean {
  const names = Object.keys(metaIn(params));
  return !isMcpMethod(method) && !names.some((name) => name.startsWith('io.modelcontextprotocol/'));
}

interface Waiting {
  readonly text: string;
  readonly deadline: number;
  readonly signal: AbortSignal | undefined;
  resolve(sent: Sent): void;
  reject(cause: unknown): void;
}

/** A message that waits to be written. */
interface Planned {
  readonly fill: Fill<Waiting>;
  /** Withdraws its announcement from the budget. */
  readonly withdraw: () => void;
}

/** Writes the frames of one key to one mailbox. */
class Batcher {
  readonly #t: Transport;
  readonly #name: string;
  readonly #channel: Channel;
  readonly #onIdle: () => void;
  readonly #queue: Planned[] = [];
  #isWriting = false;

  constructor(t: Transport, name: string, channel: Channel, onIdle: () => void) {
    this.#t = t;
    this.#name = name;
    this.#channel = channel;
    this.#onIdle = onIdle;
  }

  send(text: string, { signal, deadline = Number.POSITIVE_INFINITY }: SendOptions): Promise<Sent> {
    return new Promise((settle, fail) => {
      const leave = (): void => {
        forget();
        this.#remove(waiting);
      };
      const waiting: Waiting = {
        text,
        deadline,
        signal,
        resolve: (sent) => {
          leave();
          settle(sent);
        },
        reject: (cause) => {
          leave();
          fail(cause);
        },
      };
      const forget = onAbort(signal, () => waiting.reject(signal!.reason));
      if (signal?.aborted) return waiting.reject(signal.reason);
      const budget = budgetOf(this.#t, 'write');
      if (!this.#queue.at(-1)?.fill.add(waiting)) {
        const fill = new Fill<Waiting>();
        fill.add(waiting);
        this.#queue.push({ fill, withdraw: budget.announce(this.#name) });
      }
      const late = budget.tooLate(budget.projectMs(this.#name, 0), deadline);
      if (late) return waiting.reject(late);
      if (this.#isWriting) return;
      this.#isWriting = true;
      // In a microtask, so that all requests made at the same moment share the message.
      queueMicrotask(() => void this.#write());
    });
  }

  #remove(waiting: Waiting): void {
    const at = this.#queue.findIndex(({ fill }) => fill.remove(waiting));
    if (at >= 0 && this.#queue[at]!.fill.members.size === 0) this.#queue.splice(at, 1)[0]!.withdraw();
    if (!this.#isWriting && this.#queue.length === 0) this.#onIdle();
  }

  async #write(): Promise<void> {
    for (let next = this.#queue.shift(); next; next = this.#queue.shift()) {
      next.withdraw();
      const members = [...next.fill.members];
      const texts = members.map(({ text }) => text);
      // Aborted when no request in the message is awaited any more.
      const stop = new AbortController();
      let left = members.length;
      const leaving = members.map(({ signal }) =>
        onAbort(signal, () => {
          if (--left === 0) stop.abort(OVER);
        }),
      );
      try {
        const deadline = Math.max(...members.map((member) => member.deadline));
        const text = texts.length > 1 ? `[${texts.join(',')}]` : texts[0]!;
        const sent = await this.#channel.send(text, { signal: stop.signal, deadline });
        for (const member of members) member.resolve(sent);
      } catch (cause) {
        for (const member of members) member.reject(cause);
      }
      for (const leave of leaving) leave();
    }
    this.#isWriting = false;
    this.#onIdle();
  }
}

const BATCHERS = {};

/**
 * Sends a request in a message that it may share with others.
 *
 * @param name signing key, mailbox and reply mailbox: only requests that agree in all three share a message
 * @throws a {@link RateLimited} if its turn would come after its deadline; nothing was sent
 * @throws what the write throws, for all that share it; the signal's reason
 */
export function sendBatched(t: Transport, name: string, channel: Channel, text: string, o: SendOptions): Promise<Sent> {
  const batchers = sharedOf(t, BATCHERS, () => new Map<string, Batcher>());
  const make = (): Batcher => new Batcher(t, name, channel, () => batchers.delete(name));
  return getOrMake(batchers, name, make).send(text, o);
}
