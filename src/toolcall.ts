/**
 * One call of a tool while it runs: what the tool may do meanwhile, and what comes of it for the caller.
 *
 * @module
 */
import { badParams, Call, type DispatchContext, type JsonObject, rpcNotification, toJson } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { compileSchema } from './schema.ts';
import type { LogLevel, ToolContext } from './tools.ts';

/** Members of `params._meta`. */
export const CLIENT_CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities';
export const LOG_LEVEL = 'io.modelcontextprotocol/logLevel';
/** Ties a notice to its request, since on a shared channel nothing else does. */
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

const MISSING_CAPABILITY = -32021;
/** Notices that may go out at once, and the time that brings one more, ms: each is a write. */
const BURST = 10;
const REFILL_MS = 1000;

/** So many notices at once, then one each so often. */
export class Budget {
  readonly #clock: Clock;
  #left = BURST;
  #at: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#at = clock.now();
  }

  /** 0: go ahead, it is counted. Else the ms to wait. */
  take(): number {
    const now = this.#clock.now();
    this.#left = Math.min(BURST, this.#left + Math.max(0, now - this.#at) / REFILL_MS);
    this.#at = now;
    if (this.#left < 1) return (1 - this.#left) * REFILL_MS;
    this.#left--;
    return 0;
  }
}

/** Something to ask the caller. */
interface Question {
  readonly key: string;
  readonly method: string;
  readonly params?: object;
  /** The capability it takes and the caller did not declare. */
  readonly missing: JsonObject | undefined;
  /** What is wrong with an answer. */
  readonly problemOf: (answer: JsonObject) => string | undefined | Promise<string | undefined>;
}

/** What a call needs of the server. */
interface Server {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  toolsChanged(): void;
}

export class ToolCall extends Call implements ToolContext {
  readonly #server: Server;
  readonly #capabilities: JsonObject;
  readonly #answers: ReadonlyMap<string, JsonObject>;
  /** What the caller must answer before the tool can go on. */
  readonly questions: Map<string, JsonObject> = new Map();
  /** The answers this run made use of. */
  readonly used: Map<string, JsonObject> = new Map();
  /** Why the call ends in a protocol error. */
  fault: RpcError | undefined;

  #cancelled: (() => void) | undefined;
  #abort: AbortController | undefined;
  #unfollow: (() => void) | undefined;
  #budget: Budget | undefined;
  #reported = Number.NEGATIVE_INFINITY;
  #held: JsonObject | undefined;
  #ended: AbortController | undefined;
  #unlogged = 0;

  constructor(
    frame: JsonObject,
    meta: JsonObject,
    outer: DispatchContext,
    server: Server,
    answers: ReadonlyMap<string, JsonObject>,
  ) {
    super(frame, meta, outer, server);
    this.#server = server;
    this.#capabilities = meta[CLIENT_CAPABILITIES] as JsonObject;
    this.#answers = answers;
  }

  /** `silence` is called when the caller cancels: nothing goes back any more. */
  start(silence: () => void): void {
    this.#cancelled = silence;
  }

  cancel(reason: string | undefined): void {
    const controller = this.#controller();
    // First the end: what the tool does about the abort is its own affair.
    this.#unlogged = 0;
    this.end();
    controller.abort(new DOMException(reason ?? 'the caller cancelled the request', 'AbortError'));
    this.#cancelled?.();
  }

  override get signal(): AbortSignal {
    return this.#controller().signal;
  }

  #controller(): AbortController {
    if (this.#abort === undefined) {
      const controller = new AbortController();
      const parent = super.signal;
      const follow = (): void => controller.abort(parent.reason);
      if (parent.aborted) follow();
      else parent.addEventListener('abort', follow);
      this.#unfollow = () => parent.removeEventListener('abort', follow);
      this.#abort = controller;
    }
    return this.#abort;
  }

  override end(): void {
    if (this.#unlogged > 0) this.#line('warning', `${this.#unlogged} more log lines are left out`, 'technocore-rpc');
    super.end();
    this.#unlogged = 0;
    this.#held = undefined;
    this.#ended?.abort();
    this.#unfollow?.();
  }

  get progress(): ToolContext['progress'] {
    return (done, total, message) => {
      const progressToken = this.meta['progressToken'] as Json | undefined;
      if (progressToken === undefined || !(done > this.#reported) || done === Number.POSITIVE_INFINITY) return;
      this.#reported = done;
      const params: JsonObject = { progressToken, progress: done, _meta: { [REQUEST_ID]: this.id as Json } };
      if (total !== undefined) params['total'] = total;
      if (message !== undefined) params['message'] = message;
      const waiting = this.#held !== undefined;
      this.#held = rpcNotification('notifications/progress', params);
      if (!waiting) void this.#release();
    };
  }

  /** Sends the latest progress as soon as the budget allows. */
  async #release(): Promise<void> {
    this.#budget ??= new Budget(this.#server.clock);
    for (let wait = this.#budget.take(); wait > 0; wait = this.#budget.take()) {
      this.#ended ??= new AbortController();
      try {
        await this.#server.clock.sleep(wait, this.#ended.signal);
      } catch {
        return;
      }
    }
    const held = this.#held;
    this.#held = undefined;
    if (held !== undefined) this.emit(held);
  }

  get log(): ToolContext['log'] {
    return (level, data, logger) => {
      const wanted = LEVELS.indexOf(this.meta[LOG_LEVEL] as string);
      if (wanted < 0 || LEVELS.indexOf(level) < wanted) return;
      this.#budget ??= new Budget(this.#server.clock);
      if (this.#budget.take() > 0) this.#unlogged++;
      else this.#line(level, data, logger);
    };
  }

  #line(level: LogLevel, data: unknown, logger: string | undefined): void {
    let json: Json;
    try {
      json = data === undefined ? null : toJson(data);
    } catch {
      json = String(data);
    }
    const params: JsonObject = { level, data: json, _meta: { [REQUEST_ID]: this.id as Json } };
    if (logger !== undefined) params['logger'] = logger;
    this.emit(rpcNotification('notifications/message', params));
  }

  get toolsChanged(): ToolContext['toolsChanged'] {
    return () => this.#server.toolsChanged();
  }

  get elicit(): ToolContext['elicit'] {
    return (key, given) => {
      const form = (given as { mode?: string }).mode !== 'url';
      const params: { mode?: string; requestedSchema?: object } = form
        ? { mode: 'form', requestedSchema: { type: 'object', properties: {} }, ...given }
        : given;
      const declared = this.#capabilities['elicitation'];
      // `{}` declares forms; naming `url` alone does not.
      const able = isObject(declared) && (form ? 'form' in declared || !('url' in declared) : 'url' in declared);
      return this.#ask({
        key,
        method: 'elicitation/create',
        params,
        missing: able ? undefined : { elicitation: form ? {} : { url: {} } },
        problemOf: async ({ action, content }) => {
          if (action === 'decline' || action === 'cancel') return undefined;
          if (action !== 'accept') return 'action is accept, decline or cancel';
          if (!form) return undefined;
          if (!isObject(content)) return 'an accepted form has content';
          return (await compileSchema(params.requestedSchema!, 'input').check(content)).problem;
        },
      });
    };
  }

  get sample(): ToolContext['sample'] {
    return (key, params) => {
      const sampling: JsonObject = 'tools' in params || 'toolChoice' in params ? { tools: {} } : {};
      return this.#ask({
        key,
        method: 'sampling/createMessage',
        params,
        missing: lacks(this.#capabilities, { sampling }) ? { sampling } : undefined,
        problemOf: ({ role, content, model }) =>
          typeof role === 'string' && typeof model === 'string' && typeof content === 'object' && content !== null
            ? undefined
            : 'a sampled message has role, content and model',
      });
    };
  }

  get roots(): ToolContext['roots'] {
    return (key) =>
      this.#ask({
        key,
        method: 'roots/list',
        missing: lacks(this.#capabilities, { roots: {} }) ? { roots: {} } : undefined,
        problemOf: ({ roots }) =>
          Array.isArray(roots) && roots.every((root) => isObject(root) && typeof root['uri'] === 'string')
            ? undefined
            : 'roots is an array of objects with a uri',
      });
  }

  #ask<T>(question: Question): Promise<T> {
    const answer = this.#answer(question);
    // A tool that does not wait for its question must not bring the process down.
    answer.catch(() => {});
    return answer as Promise<T>;
  }

  async #answer({ key, method, params, missing, problemOf }: Question): Promise<unknown> {
    if (missing !== undefined) {
      this.fault = new RpcError(MISSING_CAPABILITY, 'Missing required client capability', {
        requiredCapabilities: missing,
      });
      throw this.fault;
    }
    const answer = this.#answers.get(key);
    if (answer === undefined) {
      this.questions.set(key, params === undefined ? { method } : { method, params: toJson(params) });
      throw new TechnocoreError(
        'input_required',
        'the caller is asked for input, and the tool runs again with the answer',
      );
    }
    const problem = await problemOf(answer);
    if (problem !== undefined) throw (this.fault = badParams(`inputResponses, ${key}: ${problem}`));
    this.used.set(key, answer);
    return answer;
  }
}

/** Whether something required is not declared. */
function lacks(declared: unknown, required: JsonObject): boolean {
  return Object.entries(required).some(
    ([name, inner]) =>
      !isObject(declared) ||
      !isObject(declared[name]) ||
      !Object.hasOwn(declared, name) ||
      lacks(declared[name], inner as JsonObject),
  );
}
