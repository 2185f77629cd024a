/**
 * Tools: what their authors write, what lists show of them, and what a call of one ends in.
 *
 * @module
 */
import { type CallContext, type JsonObject, type MakeLayer, toJson } from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import type { Event } from './http.ts';
import { compileSchema, type Schema } from './schema.ts';

export type LogLevel = 'debug' | 'info' | 'notice' | 'warning' | 'error' | 'critical' | 'alert' | 'emergency';

/** A piece of a tool's answer. */
export type ContentBlock =
  | { type: 'text'; text: string; [member: string]: Json }
  | { type: 'image' | 'audio'; data: string; mimeType: string; [member: string]: Json }
  | { type: 'resource_link'; uri: string; name: string; [member: string]: Json }
  | { type: 'resource'; resource: { uri: string; [member: string]: Json }; [member: string]: Json };

/** What a tool call ends in. `isError` is the tool's own failure, told to the model. */
export interface ToolResult {
  content: ContentBlock[];
  /** Any JSON value. */
  structuredContent?: Json;
  isError?: boolean;
  _meta?: JsonObject;
}

/** The answer of a person to a question: `content` comes with `accept` alone. */
export interface ElicitResult {
  action: 'accept' | 'decline' | 'cancel';
  content?: JsonObject;
}

/**
 * What a tool is told and can do while it runs.
 *
 * `elicit`, `sample` and `roots` ask the caller for something. The first time round the caller does not have the
 * question yet, so they reject (code `input_required`, let it pass), the tool ends, and the caller is asked; with the
 * answer the tool **runs again from its start**, and the same call returns the answer. So ask before you act, and give
 * each question a key that stays the same. Questions asked side by side (`Promise.all`) go out together. At most ten
 * rounds. Answers come from the caller: they are checked for shape, and are no more true than its arguments.
 */
export interface ToolContext extends CallContext {
  /**
   * Reports progress, if the caller wants it: `done` must rise. Of one call ten notices go out at once, log lines counted, then
   * one a second, of progress the latest.
   */
  readonly progress: (done: number, total?: number, message?: string) => void;
  /** Sends a log line, if the caller wants lines of that level. `data` is any JSON value. */
  readonly log: (level: LogLevel, data: unknown, logger?: string) => void;
  /** Asks a person: a form (`message`, `requestedSchema`) or, with `mode: 'url'`, a page (`message`, `url`). Never for secrets. */
  readonly elicit: (key: string, params: object) => Promise<ElicitResult>;
  /** Asks the caller's model: `messages`, `maxTokens` and so on. */
  readonly sample: (key: string, params: object) => Promise<JsonObject>;
  /** Asks for the caller's root folders. */
  readonly roots: (key: string) => Promise<{ roots: { uri: string; name?: string }[] }>;
  /** Tells everybody who listens that the list of tools changed. */
  readonly toolsChanged: () => void;
}

/** A tool, as lists show it. */
export interface Tool {
  readonly name: string;
  readonly title?: string;
  readonly description?: string;
  readonly inputSchema: JsonObject;
  readonly outputSchema?: JsonObject;
  readonly annotations?: ToolAnnotations;
  readonly icons?: readonly JsonObject[];
  readonly _meta?: JsonObject;
  /** The layer that calls it; tools from somebody's list have none. */
  readonly layer?: MakeLayer;
}

/** Hints of the tool's author, to be believed only as far as the author is. */
export interface ToolAnnotations {
  title?: string;
  readOnlyHint?: boolean;
  destructiveHint?: boolean;
  idempotentHint?: boolean;
  openWorldHint?: boolean;
}

export interface ToolOptions {
  /** Name for people. */
  title?: string;
  /** JSON Schema (any root type) or Standard Schema of the structured result. A result that breaks it becomes an error. */
  outputSchema?: object;
  annotations?: ToolAnnotations;
  icons?: JsonObject[];
  /** May run twice: a server that died in the middle runs it again. Default: what the annotations say. */
  idempotent?: boolean;
  /** Told of what is odd about the tool, instead of the console. */
  onEvent?: (event: Event) => void;
}

/**
 * Answers a call. What it returns becomes the result: a string is text, content blocks (one, an array of them, or a whole
 * {@link ToolResult}) pass as they are, any other JSON value is `structuredContent` with its JSON as text. A tool with an
 * output schema returns the structured value, or a whole result. What it throws is told to the caller by its message.
 */
export type ToolHandler = (args: any, context: ToolContext) => unknown;

/** A tool that can be called. */
export class ServedTool implements Tool {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: JsonObject;
  declare readonly title?: string;
  declare readonly outputSchema?: JsonObject;
  declare readonly annotations?: ToolAnnotations;
  declare readonly icons?: JsonObject[];

  readonly layer: MakeLayer;
  /** As lists show it. */
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
    this.#input = compileSchema(inputSchema, 'input');
    this.#output = outputSchema && compileSchema(outputSchema, 'output');
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
    this.#run = run;
  }

  static of(tool: unknown): ServedTool | undefined {
    return typeof tool === 'object' && tool !== null && #run in tool ? tool : undefined;
  }

  /** The result of a call, the tool's own failures included. */
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

/** True for a content block that has what its type needs. */
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

/** What a handler returned, as a result. `structured`: a bare value is never meant as content. */
function resultOf(value: unknown, structured: boolean): ToolResult {
  if (value === undefined) return { content: [] };
  if (!structured) {
    if (typeof value === 'string') return { content: [{ type: 'text', text: value }] };
    if (isBlock(value)) return { content: [toJson(value) as ContentBlock] };
    if (Array.isArray(value) && value.length > 0 && value.every(isBlock))
      return { content: toJson(value) as ContentBlock[] };
  }
  const json = toJson(value);
  if (isObject(json) && Object.keys(json).every((key) => RESULT_MEMBERS.has(key))) {
    const { content, structuredContent } = json as JsonObject;
    if (Array.isArray(content) && content.every(isBlock)) return json as unknown as ToolResult;
    if (content === undefined && structuredContent !== undefined) {
      return { content: [{ type: 'text', text: JSON.stringify(structuredContent) }], ...json };
    }
  }
  return { content: [{ type: 'text', text: JSON.stringify(json) }], structuredContent: json };
}

/** The tool's own failure, as a result. */
export function failed(text: string): ToolResult {
  return { content: [{ type: 'text', text: text.slice(0, 2000) }], isError: true };
}
