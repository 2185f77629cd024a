/**
 * MCP tools: how they are defined, what lists show of them, and what a call returns. Rules: MCP 2026-07-28, tools.
 *
 * @module
 */
import { type CallContext, type JsonObject, type MakeLayer, toJson } from './dispatch.ts';
import { checkFunction, checkText, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Event } from './http.ts';
import { compileSchema, type Schema } from './schema.ts';

/** The severity of a log line in MCP, in ascending order: the levels of RFC 5424. */
export type LogLevel = 'debug' | 'info' | 'notice' | 'warning' | 'error' | 'critical' | 'alert' | 'emergency';

/**
 * One piece of a tool's result in MCP: text, an image or audio (`data` is base64), a link to a resource, or a resource
 * itself (with `text`, or base64 in `blob`).
 */
export type ContentBlock =
  | { type: 'text'; text: string; [member: string]: Json }
  | { type: 'image' | 'audio'; data: string; mimeType: string; [member: string]: Json }
  | { type: 'resource_link'; uri: string; name: string; [member: string]: Json }
  | { type: 'resource'; resource: { uri: string; [member: string]: Json }; [member: string]: Json };

/** The result of a tool call in MCP. */
export interface ToolResult {
  /** What the model is shown; may be empty. */
  content: ContentBlock[];
  /** The result as JSON, of any type; if the tool has an output schema, it satisfies that. */
  structuredContent?: Json;
  /** True if the tool failed; `content` then tells the model how. */
  isError?: boolean;
  /** Further data about the result, under prefixed names. */
  _meta?: JsonObject;
}

/** A person's answer to a tool's question (MCP elicitation). */
export interface ElicitResult {
  /** Whether the person answered, declined, or dismissed the question. */
  action: 'accept' | 'decline' | 'cancel';
  /** The values of a form; with `accept` only. */
  content?: JsonObject;
}

/**
 * What a {@link ToolHandler} knows about its call, and can do while it runs.
 *
 * `elicit`, `sample` and `roots` ask the caller for something. The first time, they reject with an error of code
 * `input_required`, which the tool must not catch: its run ends, and the caller is asked. Once the answer has arrived,
 * the tool **runs again from the start**, and the same question resolves to the answer. So ask before you act, and give
 * each question a stable key. Questions asked in parallel (`Promise.all`) are sent together. A call can have ten rounds
 * of questions. Answers come from the caller: their shape is checked, and they are as trustworthy as the caller's
 * arguments.
 */
export interface ToolContext extends CallContext {
  /**
   * Reports progress, if the caller asked for it. `done` must rise. A call can send ten notices at once, including log
   * lines, then one per second; of waiting progress, only the latest is sent.
   */
  readonly progress: (done: number, total?: number, message?: string) => void;
  /** Sends a log line, if the caller asked for lines of that level. `data` is any JSON value. */
  readonly log: (level: LogLevel, data: unknown, logger?: string) => void;
  /**
   * Asks a person: with a form (`params` has `message` and `requestedSchema`) or, with `mode: 'url'`, on a web page
   * (`message` and `url`). Never ask for secrets in a form.
   */
  readonly elicit: (key: string, params: object) => Promise<ElicitResult>;
  /** Asks the caller's model (MCP sampling): `params` has `messages`, `maxTokens` and so on. */
  readonly sample: (key: string, params: object) => Promise<JsonObject>;
  /** Asks for the caller's root folders (MCP roots). */
  readonly roots: (key: string) => Promise<{ roots: { uri: string; name?: string }[] }>;
  /** Notifies subscribed clients that the list of tools has changed. */
  readonly toolsChanged: () => void;
}

/** An MCP tool as lists show it: from {@link mcpListTools}, or registered with {@link tool}. */
export interface Tool {
  /** The name used to call it. */
  readonly name: string;
  /** A display name. */
  readonly title?: string;
  /** What it does, for the model. */
  readonly description?: string;
  /** The JSON Schema of its arguments; the root type is object. */
  readonly inputSchema: JsonObject;
  /** The JSON Schema of its structured result. */
  readonly outputSchema?: JsonObject;
  /** Hints about its effects. */
  readonly annotations?: ToolAnnotations;
  /** Icons, each with `src`, and perhaps `mimeType` and `sizes`. */
  readonly icons?: readonly JsonObject[];
  /** Further data about the tool, under prefixed names. */
  readonly _meta?: JsonObject;
  /** The layer that calls it; only for tools served by this process. */
  readonly layer?: MakeLayer;
}

/** Hints from a tool's author about its effects (MCP). Trust them as far as you trust the author. */
export interface ToolAnnotations {
  /** A display name. */
  title?: string;
  /** It changes nothing; default false. */
  readOnlyHint?: boolean;
  /** It may destroy something; default true. */
  destructiveHint?: boolean;
  /** Calling it again with the same arguments has no further effect; default false. */
  idempotentHint?: boolean;
  /** It interacts with the world outside the server; default true. */
  openWorldHint?: boolean;
}

/** Options of {@link tool}. */
export interface ToolOptions {
  /** A display name. */
  title?: string | undefined;
  /**
   * The JSON Schema (any root type) or Standard Schema of the structured result. A result that does not satisfy it is
   * replaced by one with `isError`.
   */
  outputSchema?: object | boolean | undefined;
  /** Hints about the tool's effects. */
  annotations?: ToolAnnotations | undefined;
  /** Icons, each with `src`, and perhaps `mimeType` and `sizes`. */
  icons?: readonly JsonObject[] | undefined;
  /**
   * Whether the tool may run twice for the same call, for example after the server crashed. Default: as the annotations
   * `idempotentHint` or `readOnlyHint` say.
   */
  idempotent?: boolean | undefined;
  /** Called with warnings about the tool, instead of the console. */
  onEvent?: ((event: Event) => void) | undefined;
}

/**
 * Handles the calls of one tool. `args` satisfies the tool's input schema.
 *
 * Its return value, awaited, becomes the result: a string is text; a content block, an array of them or a whole
 * {@link ToolResult} is sent unchanged; any other JSON value is `structuredContent`, with its JSON as text. A tool with
 * an output schema returns the structured value or a whole result. If it throws, the result has `isError`, with the
 * error's message as text, which the caller reads.
 */
export type ToolHandler = (args: any, context: ToolContext) => unknown;

/** A tool that can be called, with its schemas compiled. */
export class ServedTool implements Tool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  declare readonly title?: string;
  declare readonly outputSchema?: JsonObject;
  declare readonly annotations?: ToolAnnotations;
  declare readonly icons?: JsonObject[];

  readonly layer: MakeLayer;
  /** The tool as lists show it. */
  readonly shown: JsonObject;
  readonly idempotent: boolean;
  readonly #input: Schema;
  readonly #output: Schema | undefined;
  readonly #run: ToolHandler;

  constructor(
    layer: MakeLayer,
    name: string,
    description: string,
    inputSchema: object,
    run: ToolHandler,
    o: Omit<ToolOptions, 'onEvent'>,
  ) {
    this.layer = layer;
    const { outputSchema, idempotent, annotations, ...shown } = o;
    checkText(description, 'the description of a tool');
    this.#input = compileSchema(inputSchema, 'input');
    this.#output = (outputSchema ?? undefined) === undefined ? undefined : compileSchema(outputSchema!, 'output');
    const root = this.#input.json?.['type'] ?? 'object';
    if (root !== 'object') {
      throw new TechnocoreError('bad_schema', 'the schema cannot be used: the root of an input schema has type object');
    }
    const hints = idempotent === undefined ? annotations : { ...annotations, idempotentHint: idempotent };
    this.idempotent = (hints?.idempotentHint ?? hints?.readOnlyHint) === true;
    this.shown = toJson({
      name,
      title: undefined,
      description,
      inputSchema: { type: 'object', ...this.#input.json },
      outputSchema: this.#output?.json,
      annotations: hints,
      ...shown,
    }) as JsonObject;
    this.name = name;
    this.description = description;
    this.inputSchema = this.shown['inputSchema'] as JsonObject;
    Object.assign(this, this.shown);
    this.#run = checkFunction(run, `the function of the tool ${name}`);
  }

  static of(tool: unknown): ServedTool | undefined {
    return typeof tool === 'object' && tool !== null && #run in tool ? tool : undefined;
  }

  /** Calls the tool. Its failures are results too. */
  async call(args: JsonObject, context: ToolContext & { readonly over: boolean }): Promise<ToolResult> {
    const checked = await this.#input.check(args);
    if (checked.problem !== undefined) {
      return failed(`The arguments do not satisfy the input schema of ${this.name}.\n${checked.problem}`);
    }
    if (context.over) return failed('The call was cancelled.');
    try {
      const result = resultOf(await this.#run(checked.value, context), this.#output !== undefined);
      if (this.#output === undefined || result.isError === true) return result;
      const { problem } =
        result.structuredContent === undefined
          ? { problem: 'there is no structured content' }
          : await this.#output.check(result.structuredContent);
      return problem === undefined
        ? result
        : failed(`${this.name} returned what its output schema does not allow.\n${problem}`);
    } catch (error) {
      return failed(error instanceof Error && error.message !== '' ? error.message : `${this.name} failed.`);
    }
  }
}

/** True for a content block with the members that its type requires. */
export function isBlock(value: unknown): value is ContentBlock {
  if (!isObject(value)) return false;
  const text = (member: string): boolean => typeof value[member] === 'string';
  switch (value['type']) {
    case 'text':
      return text('text');
    case 'image':
    case 'audio':
      return text('data') && text('mimeType');
    case 'resource_link':
      return text('uri') && text('name');
    case 'resource': {
      const r = value['resource'];
      return (
        isObject(r) && typeof r['uri'] === 'string' && (typeof r['text'] === 'string' || typeof r['blob'] === 'string')
      );
    }
    default:
      return false;
  }
}

const RESULT_MEMBERS = new Set(['content', 'structuredContent', 'isError', '_meta']);

/** The result for a handler's return value. If `structured`, a bare value is never taken for content. */
function resultOf(value: unknown, structured: boolean): ToolResult {
  if (value === undefined) return { content: [] };
  if (!structured) {
    if (typeof value === 'string') return { content: [{ type: 'text', text: value }] };
    if (isBlock(value)) return { content: [toJson(value) as ContentBlock] };
    if (Array.isArray(value) && value.length > 0 && value.every(isBlock))
      return { content: toJson(value) as ContentBlock[] };
  }
  const json = toJson(value);
  if (isObject(json)) {
    // A complete protocol result has a `resultType`, which is added to every result later.
    const { resultType = 'complete', ...result } = json as JsonObject;
    const { content, structuredContent } = result;
    if (resultType === 'complete' && Object.keys(result).every((key) => RESULT_MEMBERS.has(key))) {
      if (Array.isArray(content) && content.every(isBlock)) return result as unknown as ToolResult;
      if (content === undefined && structuredContent !== undefined) {
        return { content: [{ type: 'text', text: JSON.stringify(structuredContent) }], ...result };
      }
    }
  }
  return { content: [{ type: 'text', text: JSON.stringify(json) }], structuredContent: json };
}

/** The result for a failure of the tool. */
export function failed(text: string): ToolResult {
  return { content: [{ type: 'text', text: text.slice(0, 2000) }], isError: true };
}
