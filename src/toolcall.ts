/**
 * A running tool call: what the tool can do meanwhile, and what the caller gets.
 *
 * @module
 */
import { following } from './clock.ts';
import { badParams, Call, type DispatchContext, type JsonObject, toJson } from './dispatch.ts';
import { RpcError, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { Notices } from './notices.ts';
import { compileSchema } from './schema.ts';
import type { ToolContext } from './tools.ts';

/** The member of `params._meta` that declares the caller's capabilities. */
export const CLIENT_CAPABILITIES = 'io.modelcontextprotocol/clientCapabilities';
/** The error code for a request that needs a capability the client has not declared. */
export const MISSING_CAPABILITY = -32021;

/** A question to the caller. */
interface Question {
  readonly key: string;
  readonly method: string;
  readonly params?: object;
  /** What is wrong with the params. */
  readonly wrong?: string | undefined;
  /** The capability that it requires, if the caller did not declare it. */
  readonly missing: JsonObject | undefined;
  /** What is wrong with an answer; undefined if nothing is. */
  readonly problemOf: (answer: JsonObject) => string | undefined | Promise<string | undefined>;
}

/** What a call needs from the server. */
interface Server {
  readonly clock: Clock;
  readonly signal: AbortSignal;
  toolsChanged(): void;
}

/** The call of a tool, which is also the context of its handler. */
export class ToolCall extends Call implements ToolContext {
  readonly #server: Server;
  readonly #capabilities: JsonObject;
  readonly #answers: ReadonlyMap<string, JsonObject>;
  /** The questions that the caller must answer before the tool can continue. */
  readonly questions: Map<string, JsonObject> = new Map();
  /** The answers that this run has used. */
  readonly used: Map<string, JsonObject> = new Map();
  /** The protocol error that the call ends with, if any. */
  fault: RpcError | undefined;
  /** The capabilities that its questions require but the caller did not declare. */
  readonly #missing: JsonObject = {};
  #silence: (() => void) | undefined;
  #following: ReturnType<typeof following> | undefined;
  #noticed: Notices | undefined;

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

  /** @param silence called when the caller cancels: from then on, nothing is sent */
  start(silence: () => void): void {
    this.#silence = silence;
  }

  cancel(reason: string | undefined): void {
    const controller = this.#controller();
    // Ended before the abort, so that nothing that the tool does in response is sent.
    this.#noticed?.end(true);
    this.end();
    controller.abort(new DOMException(reason ?? 'the caller cancelled the request', 'AbortError'));
    this.#silence?.();
  }

  override get signal(): AbortSignal {
    return this.#controller().signal;
  }

  #controller(): AbortController {
    this.#following ??= following(super.signal);
    return this.#following.stop;
  }

  override end(): void {
    this.#noticed?.end(false);
    super.end();
    this.#following?.forget();
  }

  get #notices(): Notices {
    return (this.#noticed ??= new Notices(
      this.#server.clock,
      this.id as Json,
      this.meta,
      (frame) => this.emit(frame),
      this.limit,
    ));
  }

  get progress(): ToolContext['progress'] {
    return (done, total, message) => this.#notices.progress(done, total, message);
  }

  get log(): ToolContext['log'] {
    return (level, data, logger) => this.#notices.log(level, data, logger);
  }

  get toolsChanged(): ToolContext['toolsChanged'] {
    return () => this.#server.toolsChanged();
  }

  get elicit(): ToolContext['elicit'] {
    return (key, given) => {
      const {
        mode,
        message,
        url,
        requestedSchema = { type: 'object', properties: {} },
      }: Record<string, unknown> = isObject(given) ? given : {};
      const form = mode !== 'url';
      const isGood =
        typeof message === 'string' &&
        (form ? (mode ?? 'form') === 'form' && isObject(requestedSchema) : typeof url === 'string');
      const params = form ? { ...given, mode: 'form', requestedSchema } : given;
      const declared = this.#capabilities['elicitation'];
      // `{}` declares forms; naming `url` alone does not.
      const able = isObject(declared) && (form ? 'form' in declared || !('url' in declared) : 'url' in declared);
      return this.#ask({
        key,
        method: 'elicitation/create',
        params,
        wrong: isGood
          ? undefined
          : 'elicit takes a message, and the requestedSchema of a form or mode: "url" with a url',
        missing: able ? undefined : { elicitation: form ? {} : { url: {} } },
        problemOf: async ({ action, content }) => {
          if (action === 'decline' || action === 'cancel') return undefined;
          if (action !== 'accept') return 'action is accept, decline or cancel';
          if (!form) return undefined;
          // A form without values may have no content.
          if (content !== undefined && !isObject(content)) return 'the content of a form is an object';
          return (await compileSchema(requestedSchema as object, 'input').check(content ?? {})).problem;
        },
      });
    };
  }

  get sample(): ToolContext['sample'] {
    return (key, params) => {
      const { messages, maxTokens, tools, toolChoice }: Record<string, unknown> = isObject(params) ? params : {};
      const sampling: JsonObject = tools === undefined && toolChoice === undefined ? {} : { tools: {} };
      const isGood = Array.isArray(messages) && typeof maxTokens === 'number';
      return this.#ask({
        key,
        method: 'sampling/createMessage',
        params,
        wrong: isGood ? undefined : 'sample takes messages and maxTokens',
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
    // A tool that does not await its question must not cause an unhandled rejection.
    answer.catch(() => {});
    return answer as Promise<T>;
  }

  async #answer({ key, method, params, wrong, missing, problemOf }: Question): Promise<unknown> {
    if (typeof key !== 'string') throw new TechnocoreError('bad_option', 'the key of a question is a text');
    if (wrong !== undefined) throw new TechnocoreError('bad_option', wrong);
    if (missing !== undefined) {
      for (const [name, needs] of Object.entries(missing)) {
        this.#missing[name] = { ...(this.#missing[name] as JsonObject), ...(needs as JsonObject) };
      }
      this.fault = new RpcError(MISSING_CAPABILITY, 'Missing required client capability', {
        requiredCapabilities: { ...this.#missing },
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

/** Whether a required capability is not declared. */
function lacks(declared: unknown, required: JsonObject): boolean {
  return Object.entries(required).some(
    ([name, inner]) =>
      !isObject(declared) ||
      !isObject(declared[name]) ||
      !Object.hasOwn(declared, name) ||
      lacks(declared[name], inner as JsonObject),
  );
}
