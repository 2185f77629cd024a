/**
 * Notices sent to a caller before the answer: progress, of which only the latest counts, and log lines. Their number is
 * limited, since each is a write.
 *
 * @module
 */
import { type JsonObject, rpcNotification, toJson } from './dispatch.ts';
import { encodeLong, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import type { LogLevel } from './tools.ts';

/** The member of `params._meta` that asks for log lines. */
export const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
/** The member of `_meta` that names a notice's request: on a shared channel, nothing else does. */
export const REQUEST_ID = 'chat.technocore/requestId';

export const LEVELS: readonly string[] = [
  'debug',
  'info',
  'notice',
  'warning',
  'error',
  'critical',
  'alert',
  'emergency',
];

/** How many notices can be sent at once, and how often after that, ms. */
const BURST = 10;
const REFILL_MS = 1000;

/** A rate limit on notices. */
export class Budget {
  readonly #clock: Clock;
  #left = BURST;
  #at: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#at = clock.now();
  }

  /** Takes one notice. @returns 0, or if none is left, how long to wait, ms */
  take(): number {
    const now = this.#clock.now();
    this.#left = Math.min(BURST, this.#left + Math.max(0, now - this.#at) / REFILL_MS);
    this.#at = now;
    if (this.#left < 1) return (1 - this.#left) * REFILL_MS;
    this.#left--;
    return 0;
  }
}

/** The notices of one request. */
export class Notices {
  readonly #clock: Clock;
  readonly #id: Json;
  readonly #meta: Readonly<Record<string, unknown>>;
  readonly #emit: (frame: JsonObject) => unknown;
  readonly #limit: number;
  readonly #budget: Budget;
  #reported = Number.NEGATIVE_INFINITY;
  #held: JsonObject | undefined;
  #ended: AbortController | undefined;
  #unlogged = 0;

  /**
   * @param meta the `_meta` of the request: whether it asks for progress, and for which log lines
   * @param limit maximum characters of a notice
   */
  constructor(
    clock: Clock,
    id: Json,
    meta: Readonly<Record<string, unknown>>,
    emit: (frame: JsonObject) => unknown,
    limit: number,
  ) {
    this.#clock = clock;
    this.#id = id;
    this.#meta = meta;
    this.#emit = emit;
    this.#limit = limit;
    this.#budget = new Budget(clock);
  }

  /** Reports progress. Ignored unless `done` rises. */
  progress(done: number, total?: number, message?: string): void {
    const progressToken = this.#meta['progressToken'] as Json | undefined;
    if (progressToken === undefined || !Number.isFinite(done) || done <= this.#reported) return;
    this.#reported = done;
    const params: JsonObject = { progressToken, progress: done, _meta: { [REQUEST_ID]: this.#id } };
    if (Number.isFinite(total)) params['total'] = total!;
    const waiting = this.#held !== undefined;
    const notice = rpcNotification('notifications/progress', params);
    if (typeof message === 'string') {
      params['message'] = message;
      if (!this.#fits(notice)) delete params['message'];
    }
    this.#held = notice;
    if (!waiting) void this.#release();
  }

  /** Sends the latest progress as soon as the budget allows. */
  async #release(): Promise<void> {
    for (let wait = this.#budget.take(); wait > 0; wait = this.#budget.take()) {
      this.#ended ??= new AbortController();
      try {
        await this.#clock.sleep(wait, this.#ended.signal);
      } catch {
        return;
      }
    }
    const held = this.#held;
    this.#held = undefined;
    if (held !== undefined) this.#emit(held);
  }

  log(level: LogLevel, data: unknown, logger?: string): void {
    const wanted = LEVELS.indexOf(this.#meta[LOG_LEVEL] as string);
    if (wanted < 0 || LEVELS.indexOf(level) < wanted) return;
    const line = this.#budget.take() > 0 ? undefined : this.#line(level, data, logger);
    if (line && this.#fits(line)) this.#emit(line);
    else this.#unlogged++;
  }

  #fits(notice: JsonObject): boolean {
    return encodeLong(notice).length <= this.#limit;
  }

  #line(level: LogLevel, data: unknown, logger: string | undefined): JsonObject {
    let json: Json;
    try {
      json = data === undefined ? null : toJson(data);
    } catch {
      json = String(data);
    }
    const params: JsonObject = { level, data: json, _meta: { [REQUEST_ID]: this.#id } };
    if (typeof logger === 'string') params['logger'] = logger;
    return rpcNotification('notifications/message', params);
  }

  /** @param isCancelled whether the call was cancelled, so that lines that were left out are not mentioned */
  end(isCancelled: boolean): void {
    const unlogged = this.#unlogged;
    this.#unlogged = 0;
    if (unlogged > 0 && !isCancelled) {
      this.#emit(this.#line('warning', `${unlogged} more log lines are left out`, 'technocore-rpc'));
    }
    this.#held = undefined;
    this.#ended?.abort();
  }
}
