/**
 * Answers one HTTP request with one message, or with a stream of them (server-sent events).
 *
 * @module
 */
import type { ServerResponse } from 'node:http';
import type { JsonObject } from './dispatch.ts';
import type { Clock } from './http.ts';

/** After how much silence a comment is written, ms, so that the connection is not taken for dead. */
const SILENCE_MS = 15_000;
/** How many bytes may wait for a reader that does not read. */
const MAX_UNREAD = 16 << 20;

/** The answer to one HTTP request. */
export class HttpAnswer {
  /** Headers to send in addition to those of the content. */
  readonly headers: Record<string, string> = {};
  readonly #response: ServerResponse;
  readonly #clock: Clock;
  readonly #over = new AbortController();
  #isStream = false;
  #isHeld = false;

  constructor(response: ServerResponse, clock: Clock) {
    this.#response = response;
    this.#clock = clock;
    response.once('close', () => this.#over.abort());
    response.on('error', () => {});
  }

  /** Calls `run` once the answer has ended, or the other side has closed the connection. */
  onEnd(run: () => void): void {
    if (this.#over.signal.aborted) run();
    else this.#over.signal.addEventListener('abort', run, { once: true });
  }

  /** Ends the answer with a status, and an error if given. */
  refuse(status: number, error?: JsonObject, headers: Record<string, string> = {}): void {
    if (this.#isStream || this.#response.writableEnded) {
      this.end();
      return;
    }
    const body = error && JSON.stringify(error);
    const type = body === undefined ? {} : { 'content-type': 'application/json' };
    this.#response.writeHead(status, { ...this.headers, ...type, ...headers }).end(body);
  }

  /** Starts a stream. */
  open(): void {
    if (this.#isStream || this.#response.writableEnded) return;
    this.#isStream = true;
    const headers = { 'content-type': 'text/event-stream', 'cache-control': 'no-cache', 'x-accel-buffering': 'no' };
    this.#response.writeHead(200, { ...this.headers, ...headers });
    this.#response.flushHeaders();
    this.holdOpen();
  }

  /** Writes a comment from time to time, until the answer ends. */
  holdOpen(): void {
    if (this.#isHeld) return;
    this.#isHeld = true;
    void (async () => {
      try {
        for (;;) {
          await this.#clock.sleep(SILENCE_MS, this.#over.signal);
          this.open();
          if (!this.#response.writableEnded) this.#response.write(':\n\n');
        }
      } catch {
        // The answer has ended.
      }
    })();
  }

  /** Sends a message that is not the last one. */
  send(message: JsonObject): void {
    this.open();
    if (this.#response.writableEnded) return;
    if (this.#response.writableLength > MAX_UNREAD) this.#response.destroy();
    else this.#response.write(`event: message\ndata: ${JSON.stringify(message)}\n\n`);
  }

  /** Ends the answer, with the last message if there is one. @param status if it is the only message */
  end(message?: JsonObject, status = 200): void {
    if (this.#response.writableEnded) return;
    if (!this.#isStream && message) this.refuse(status, message);
    else {
      if (message) this.send(message);
      else if (!this.#isStream) this.#response.writeHead(503, this.headers);
      this.#response.end();
    }
  }
}
