/**
 * Schemas: JSON Schema 2020-12, or anything that speaks Standard Schema (`~standard`), made into one kind of check.
 *
 * The values that are checked come from strangers, the schemas from the programmer. So everything that can be wrong
 * about a schema is an error when it is compiled, nothing is fetched, no code is generated, and the depth and the work
 * of a check are bounded. Patterns alone are not: one that takes exponential time does so at a stranger's word.
 *
 * @module
 */
import { TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { Choice, type Node, problemsOf } from './validate.ts';

/** Deepest nesting of a schema, and of a value that is checked. */
const MAX_DEPTH = 64;
/** Most values (members, items) in a value that is checked. */
const MAX_NODES = 10_000;

/** The value to go on with, or what is wrong with the one given. */
export type Checked = { value: unknown; problem?: never } | { problem: string };

export interface Schema {
  /** As JSON Schema, for lists; undefined when the schema has no such form. */
  readonly json: { [keyword: string]: Json } | undefined;
  /** Never throws, never rejects. */
  readonly check: (value: unknown) => Checked | Promise<Checked>;
}

/** Standard Schema 1.1 with its JSON Schema part, as far as it is used here. */
interface Standard {
  validate(value: unknown): StandardResult | Promise<StandardResult>;
  jsonSchema?: { [direction in 'input' | 'output']: (o: { target: string }) => unknown };
}
interface StandardResult {
  value?: unknown;
  issues?: readonly { message: string; path?: readonly (PropertyKey | { key: PropertyKey })[] }[];
}

const DIALECT = /^https?:\/\/json-schema\.org\/draft\/2020-12\/schema#?$/;

function bad(at: string, problem: string, cause?: unknown): TechnocoreError {
  return new TechnocoreError('bad_schema', `the schema cannot be used: ${at === '' ? '' : `${at} `}${problem}`, cause);
}

/**
 * @param direction which side of a schema with two sides (one that converts) is meant in lists
 * @throws TechnocoreError `bad_schema`: not JSON Schema 2020-12, a reference that leads out of it, a pattern that does
 *   not compile, nested too deeply
 */
export function compileSchema(schema: object, direction: 'input' | 'output'): Schema {
  const standard = (schema as { '~standard'?: Standard } | undefined)?.['~standard'];
  return bounded(standard === undefined ? compileJson(schema) : compileStandard(standard, direction));
}

/**
 * The schema of a stranger, for his own values. He could choose patterns that take exponential time; so these are left
 * out (formats are annotations anyway), which makes the check weaker, never stricter.
 *
 * @throws TechnocoreError `bad_schema`: also one that what is left out would make stricter
 */
export function compileForeignSchema(schema: object): Schema {
  return bounded(compileJson(schema, true));
}

function bounded({ json, check }: Schema): Schema {
  return { json, check: (value) => (isBounded(value, MAX_DEPTH, { left: MAX_NODES }) ? check(value) : TOO_BIG) };
}

const TOO_BIG: Checked = {
  problem: `the value is nested deeper than ${MAX_DEPTH}, or holds more than ${MAX_NODES} values`,
};

function isBounded(value: unknown, depth: number, nodes: { left: number }): boolean {
  if (--nodes.left < 0) return false;
  if (typeof value !== 'object' || value === null) return true;
  return depth > 0 && Object.values(value).every((item) => isBounded(item, depth - 1, nodes));
}

// --- JSON Schema -------------------------------------------------------------------------------------------------

const list = (value: unknown, of: (item: unknown) => boolean): boolean => Array.isArray(value) && value.every(of);
const text = (value: unknown): boolean => typeof value === 'string';
const count = (value: unknown): boolean => Number.isInteger(value) && (value as number) >= 0;
const number = (value: unknown): boolean => typeof value === 'number';
const type = (value: unknown): boolean =>
  text(value) && /^(?:array|boolean|integer|null|number|object|string)$/.test(value as string);
const regex = (value: unknown): boolean => {
  try {
    return new RegExp(value as string, 'u') !== undefined && text(value);
  } catch {
    return false;
  }
};

/** The keywords that constrain, and what their values must be. Everything else is an annotation. */
const KEYWORDS: { [keyword: string]: 'schema' | 'schemas' | 'map' | 'refused' | ((value: unknown) => boolean) } = {
  additionalProperties: 'schema',
  unevaluatedProperties: 'schema',
  unevaluatedItems: 'schema',
  items: 'schema',
  contains: 'schema',
  propertyNames: 'schema',
  not: 'schema',
  if: 'schema',
  // biome-ignore lint/suspicious/noThenProperty: a keyword
  then: 'schema',
  else: 'schema',
  prefixItems: 'schemas',
  allOf: 'schemas',
  anyOf: 'schemas',
  oneOf: 'schemas',
  $defs: 'map',
  definitions: 'map',
  properties: 'map',
  patternProperties: 'map',
  dependentSchemas: 'map',
  $ref: text,
  $id: text,
  $anchor: text,
  $dynamicRef: text,
  $dynamicAnchor: text,
  format: text,
  pattern: regex,
  type: (value) => type(value) || (list(value, type) && (value as []).length > 0),
  const: () => true,
  enum: (value) => Array.isArray(value),
  required: (value) => list(value, text),
  dependentRequired: (value) => isObject(value) && Object.values(value).every((names) => list(names, text)),
  maximum: number,
  minimum: number,
  exclusiveMaximum: number,
  exclusiveMinimum: number,
  multipleOf: (value) => number(value) && (value as number) > 0,
  maxLength: count,
  minLength: count,
  maxItems: count,
  minItems: count,
  maxContains: count,
  minContains: count,
  maxProperties: count,
  minProperties: count,
  uniqueItems: (value) => typeof value === 'boolean',
  // Keywords of other dialects that would silently constrain nothing, or something else.
  $recursiveRef: 'refused',
  $recursiveAnchor: 'refused',
  additionalItems: 'refused',
  dependencies: 'refused',
};

/** The formats that are checked, each in linear time; `url`, which is none of the standard, would take exponential time. */
const FORMATS =
  /^(?:date|time|date-time|duration|uri|uri-reference|uri-template|email|hostname|ipv4|ipv6|regex|uuid|json-pointer|relative-json-pointer)$/;

/** Where leaving out a pattern lets less pass instead of more. */
const TURNED = /^(?:not|if|oneOf|maxContains)$/;

/** What relative addresses are relative to where the schema has no `$id`. */
const NOWHERE = 'schema:/';

/** Longest `$id` or `$ref`: each other is read together with the `$id` that it is relative to. */
const MAX_ADDRESS = 4096;

/** The address that `$id` or `$ref` gives, in two parts; undefined if it is none. */
function addressOf(reference: unknown, base: string): [resource: string, fragment: string] | undefined {
  try {
    if (String(reference).length > MAX_ADDRESS) return undefined;
    const url = new URL(reference as string, base);
    const fragment = decodeURIComponent(url.hash.slice(1));
    url.hash = '';
    return [url.href.replace(/#$/, ''), fragment];
  } catch {
    return undefined;
  }
}

/** A schema as it is applied, made of one as it is written, and checked keyword by keyword. */
class Compiler {
  readonly root: Node;
  /** Whether what is left over by other keywords is asked for anywhere. */
  isTracked = false;
  readonly #foreign: boolean;
  #hasPattern = false;
  #isTurned = false;
  #isDynamic = false;
  /** Schemas as they are written, by the address of the whole, and of those that have a name. */
  readonly #resources = new Map<string, unknown>();
  readonly #anchors = new Map<string, Node>();
  readonly #nodes = new Map<unknown, Node>();
  readonly #references: { from: Node; ref: string; base: string; at: string }[] = [];

  constructor(schema: unknown, foreign: boolean) {
    this.#foreign = foreign;
    this.root = this.#node(schema, '', 0, NOWHERE);
    if (this.#hasPattern && this.#isTurned && foreign) throw bad('', 'a pattern could make it too costly');
    if (this.#isDynamic && this.#resources.size > 1) throw bad('', '$dynamicRef across an inner $id is not supported');
    for (const { from, ref, base, at } of this.#references) {
      const node = this.#target(ref, base, at);
      if (node === undefined) throw bad('', `$ref ${ref} is not in it, and nothing is fetched`);
      from.ref = node;
    }
  }

  #node(schema: unknown, at: string, depth: number, outer: string): Node {
    if (typeof schema === 'boolean') return schema ? {} : { allows: false };
    if (!isObject(schema)) throw bad(at, 'must be an object or a boolean');
    if (depth > MAX_DEPTH) throw bad(at.slice(0, 200), 'is nested too deeply');
    const node: Node = {};
    this.#nodes.set(schema, node);
    const base = this.#resource(schema, at, depth, outer);
    for (const [keyword, value] of Object.entries(schema)) {
      const rule = Object.hasOwn(KEYWORDS, keyword) ? KEYWORDS[keyword] : undefined;
      const here = `${at}/${keyword}`;
      if (rule === undefined) continue;
      if (rule === 'refused') throw bad(here, 'is not a keyword of JSON Schema 2020-12');
      const inner = (part: unknown, step: string | number): Node =>
        this.#node(part, `${here}/${step}`, depth + 1, base);
      let made: unknown = value;
      if (rule === 'schema') {
        made = this.#node(value, here, depth + 1, base);
      } else if (rule === 'schemas') {
        if (!Array.isArray(value) || value.length === 0) throw bad(here, 'must be an array of schemas');
        made = value.map(inner);
      } else if (rule === 'map') {
        if (!isObject(value)) throw bad(here, 'must be an object of schemas');
        made = new Map(Object.entries(value).map(([name, part]) => [name, inner(part, name)]));
      } else if (!rule(value)) {
        throw bad(here, `cannot be ${JSON.stringify(value).slice(0, 80)}`);
      }
      this.#set(node, keyword, made, here, schema, base);
    }
    return node;
  }

  /** The address that those in a schema are relative to. */
  #resource(schema: { [keyword: string]: unknown }, at: string, depth: number, outer: string): string {
    const { $schema: dialect, $id } = schema;
    if (dialect !== undefined && !(typeof dialect === 'string' && DIALECT.test(dialect))) {
      throw bad(`${at}/$schema`, `must be that of JSON Schema 2020-12, not ${JSON.stringify(dialect)}`);
    }
    if ($id === undefined && depth > 0) return outer;
    const [base, fragment] = addressOf($id ?? '', outer) ?? [];
    if (base === undefined || fragment !== '') throw bad(`${at}/$id`, 'is no URI, too long, or has a fragment');
    if (this.#resources.has(base)) throw bad(`${at}/$id`, 'is that of another part');
    this.#resources.set(base, schema);
    return base;
  }

  /** What a keyword means, in its place. */
  #set(node: Node, keyword: string, made: unknown, here: string, schema: object, base: string): void {
    // Within one schema resource the dynamic scope holds one anchor of a name: a plain reference finds the same.
    const [, plain] = /^\$dynamic(Ref|Anchor)$/.exec(keyword) ?? [];
    if (plain !== undefined) {
      this.#isDynamic = true;
      if (`$${plain.toLowerCase()}` in schema) throw bad(here, `beside $${plain.toLowerCase()} is not supported`);
    }
    this.#isTurned ||= TURNED.test(keyword);
    switch (keyword) {
      case '$ref':
      case '$dynamicRef':
        this.#references.push({ from: node, ref: made as string, base, at: here });
        return;
      case '$anchor':
      case '$dynamicAnchor': {
        const address = `${base}#${made}`;
        if (this.#anchors.has(address)) throw bad(here, 'is that of another part');
        this.#anchors.set(address, node);
        return;
      }
      case 'unevaluatedItems':
      case 'unevaluatedProperties':
        this.isTracked = true;
        break;
      case 'type':
        node.type = [made as string | string[]].flat();
        return;
      case 'const':
        node.const = new Choice([made], made);
        return;
      case 'enum':
        node.enum = new Choice(made as unknown[], made);
        return;
      case 'dependentRequired':
        node.dependentRequired = new Map(Object.entries(made as object));
        return;
      case 'pattern':
        this.#hasPattern = true;
        if (!this.#foreign) node.pattern = new RegExp(made as string, 'u');
        return;
      case 'patternProperties': {
        // Left out, it would leave more to the schema for all other members.
        this.#hasPattern = this.#isTurned = true;
        const parts = [...(made as Map<string, Node>)];
        if (!parts.every(([pattern]) => regex(pattern))) throw bad(here, 'has a pattern that does not compile');
        node.patternProperties = parts.map(([pattern, part]) => [new RegExp(pattern, 'u'), part]);
        return;
      }
      case 'format':
        if (!this.#foreign && FORMATS.test(made as string)) node.format = made as string;
        return;
    }
    Object.assign(node, { [keyword]: made });
  }

  /** What a reference refers to. */
  #target(ref: string, base: string, at: string): Node | undefined {
    const [resource, fragment] = addressOf(ref, base) ?? [];
    if (resource === undefined || fragment === undefined) throw bad(at, 'is no URI, or too long');
    if (fragment !== '' && !fragment.startsWith('/')) return this.#anchors.get(`${resource}#${fragment}`);
    let part = this.#resources.get(resource);
    for (const step of fragment.split('/').slice(1)) {
      const name = step.replace(/~1/g, '/').replace(/~0/g, '~');
      if (typeof part !== 'object' || part === null || !Object.hasOwn(part, name)) return undefined;
      part = (part as { [name: string]: unknown })[name];
    }
    return typeof part === 'boolean' ? this.#node(part, at, 0, base) : this.#nodes.get(part);
  }
}

function compileJson(schema: object, foreign = false): Schema {
  let json: { [keyword: string]: Json };
  try {
    json = JSON.parse(JSON.stringify(schema));
  } catch (cause) {
    throw bad('', 'it is not JSON', cause);
  }
  const { root, isTracked } = new Compiler(json, foreign);
  const check = (value: unknown): Checked => {
    const problems = problemsOf(value, root, isTracked);
    if (problems === undefined) return { problem: 'the value, or the schema, is too complex to be checked' };
    return problems.length === 0 ? { value } : { problem: summary(problems) };
  };
  return { json, check };
}

function summary(lines: string[]): string {
  const shown = [...new Set(lines)].slice(0, 5).map((l) => (l.length > 300 ? `${l.slice(0, 300)}…` : l));
  return shown.join('\n');
}

function line(at: string, problem: string): string {
  return at === '' ? problem : `${at}: ${problem}`;
}

// --- Standard Schema ---------------------------------------------------------------------------------------------

function compileStandard(standard: Standard, direction: 'input' | 'output'): Schema {
  let json: unknown;
  try {
    json = standard.jsonSchema?.[direction]({ target: 'draft-2020-12' });
  } catch {
    // It has no JSON form: it can be checked, and not be shown.
  }
  return {
    json: isObject(json) ? JSON.parse(JSON.stringify(json)) : undefined,
    check: async (value) => {
      try {
        const { issues, value: converted } = await standard.validate(value);
        if (issues === undefined) return { value: converted };
        return {
          problem: summary(
            issues.map(({ message, path = [] }) =>
              line(path.map((step) => `/${String(typeof step === 'object' ? step.key : step)}`).join(''), message),
            ),
          ),
        };
      } catch {
        return { problem: 'the value cannot be checked' };
      }
    },
  };
}
