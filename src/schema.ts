/**
 * Schemas: JSON Schema 2020-12, or anything that implements Standard Schema (`~standard`), compiled to one kind of check.
 *
 * The values to check are untrusted; the schemas come from the programmer. So anything wrong with a schema is an error
 * when it is compiled, nothing is fetched, no code is generated, and the depth and cost of a check are limited.
 * Patterns are the exception: the schema's author can write one that takes exponential time.
 *
 * @module
 */
import { dereference, type OutputUnit, validate } from '@cfworker/json-schema';
import { TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';

/** The maximum nesting depth of a schema, and of a value to check. */
const MAX_DEPTH = 64;
/** The maximum number of values (members, items) in a value to check. */
const MAX_NODES = 10_000;
/**
 * The maximum number of steps in one check, of about 10 µs each. Without a limit, recursive alternatives could take
 * exponential time, and long lists tried on many items could fill the memory.
 */
const MAX_STEPS = 20_000;
/**
 * What costs one step, besides applying a schema: this many entries of its lists, required names, characters of a text,
 * or members of an object.
 */
const LIST_STEP = 64;
const REQUIRED_STEP = 4;
const TEXT_STEP = 8192;
const WIDTH_STEP = 32;
/** Objects with fewer members than this are not charged for them. */
const WIDE = 256;
/** The maximum number of items that are compared with each other. */
const MAX_UNIQUE = 1000;
/** The maximum number of nested `$id`: the validator reads a part once for each combination of those around it. */
const MAX_IDS = 4;
/** The maximum total length of the addresses of all parts of a schema, in characters. */
const MAX_ADDRESSES = 1_000_000;

/** The result of a check: the value (perhaps converted), or what is wrong with it. */
export type Checked = { value: unknown; problem?: never } | { problem: string };

/** A compiled schema. */
export interface Schema {
  /** The schema as JSON Schema, for lists; undefined if it has no such form. */
  readonly json: { [keyword: string]: Json } | undefined;
  /** Never throws, never rejects. */
  check(value: unknown): Checked | Promise<Checked>;
}

/** The part of Standard Schema 1.1, with its JSON Schema extension, that is used here. */
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
 * Compiles a schema.
 *
 * @param direction for a schema that converts values: the side that lists show
 * @throws a {@link TechnocoreError} `bad_schema` if it is not JSON Schema 2020-12, has an external reference or a
 * pattern that does not compile, or is nested too deeply
 */
export function compileSchema(schema: object | boolean, direction: 'input' | 'output'): Schema {
  if (schema instanceof OwnSchema) return schema;
  const standard = (schema as { '~standard'?: Standard } | undefined)?.['~standard'];
  return bounded(standard === undefined ? compileJson(schema) : compileStandard(standard, direction));
}

/**
 * A trusted JSON Schema of our own. It is compiled for its first value, since compiling all of ours beforehand would
 * take a tenth of the time that importing the library takes.
 */
export class OwnSchema implements Schema {
  readonly json: { [keyword: string]: Json };
  #compiled: Schema | undefined;

  constructor(json: { [keyword: string]: Json }) {
    this.json = json;
  }

  check(value: unknown): ReturnType<Schema['check']> {
    this.#compiled ??= compileSchema(this.json, 'input');
    return this.#compiled.check(value);
  }
}

/**
 * Compiles an untrusted schema, for values from the same source. It could have patterns that take exponential time, and
 * use `uniqueItems` over and over, so these are left out, which makes the check weaker but never stricter.
 *
 * @throws a {@link TechnocoreError} `bad_schema`; also if leaving them out would make the check stricter
 */
export function compileForeignSchema(schema: object): Schema {
  return bounded(compileJson(schema, true));
}

/** A compiled schema whose check takes the size of the value into account. */
interface Compiled extends Pick<Schema, 'json'> {
  check(value: unknown, extent: Extent): Checked | Promise<Checked>;
}

function bounded({ json, check }: Compiled): Schema {
  return {
    json,
    check(value) {
      const extent: Extent = { nodes: 0, text: 0, items: 0, members: 0 };
      return isBounded(value, MAX_DEPTH, extent) ? check(value, extent) : TOO_BIG;
    },
  };
}

const TOO_BIG: Checked = {
  problem: `the value is nested deeper than ${MAX_DEPTH}, or holds more than ${MAX_NODES} values`,
};

/**
 * The size of a value: how many values it holds, and the length of its longest text, longest array and widest object.
 */
interface Extent {
  nodes: number;
  text: number;
  items: number;
  members: number;
}

function isBounded(value: unknown, depth: number, extent: Extent): boolean {
  if (++extent.nodes > MAX_NODES) return false;
  if (typeof value === 'string') extent.text = Math.max(extent.text, value.length);
  if (typeof value !== 'object' || value === null) return true;
  const parts: unknown[] = Object.values(value);
  const kind = Array.isArray(value) ? 'items' : 'members';
  extent[kind] = Math.max(extent[kind], parts.length);
  return depth > 0 && parts.every((part) => isBounded(part, depth - 1, extent));
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

/** The keywords that constrain, and what their values must be. All others are annotations. */
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
  // Keywords of other dialects, which would be ignored or mean something different.
  $recursiveRef: 'refused',
  $recursiveAnchor: 'refused',
  additionalItems: 'refused',
  dependencies: 'refused',
};

/** The keywords that can be made costly, and those in which leaving them out would make the check stricter. */
const COSTLY = /^(?:pattern|uniqueItems)$/;
const TURNED = /^(?:not|if|oneOf|maxContains|patternProperties)$/;

/**
 * The formats that are checked, each in linear time. Others, such as `url` with its exponential pattern, are
 * annotations.
 */
const FORMATS =
  /^(?:date|time|date-time|duration|uri|uri-reference|uri-template|email|hostname|ipv4|ipv6|regex|uuid|json-pointer|relative-json-pointer)$/;

/** The keywords that read each character of a text, and those that report each missing name. */
const OF_TEXT = /^(?:minLength|maxLength|pattern|format)$/;
const OF_NAMES = /^(?:required|dependentRequired)$/;

/** Where addresses can be invalid: the keywords that define or use one, and names that do not fit into one. */
const ADDRESS = /^\$(?:id|ref|anchor|dynamicRef|dynamicAnchor)$/;
const LONE = /[\ud800-\udfff]/u;

/** The number of entries in the lists of a keyword's value, at any depth. */
function entriesOf(value: unknown): number {
  if (typeof value !== 'object' || value === null) return 0;
  const entries: unknown[] = Object.values(value);
  return entries.reduce((sum: number, entry) => sum + entriesOf(entry), entries.length);
}

/** A copy of a schema, checked keyword by keyword, that the validator may write to. */
class Copy {
  /** Whether the addresses of its parts must be checked. */
  isAddressed = false;
  /** Whether it has a `uniqueItems`. */
  hasUnique = false;
  /** The parts that have an anchor, each with the part whose `$id` it belongs to. */
  readonly anchors: { part: object; resource: object; name: string }[] = [];
  #resource: object = {};
  readonly #foreign: boolean;
  #costly = false;
  #turned = false;
  #dynamic = false;
  #resources = 0;
  #addresses = 0;
  #steps = 0;
  /** How many steps the longest text and the widest object of the value cost each time. */
  #textSteps = 0;
  #widthSteps = 0;

  readonly root: { [keyword: string]: unknown } | boolean;

  constructor(schema: unknown, foreign: boolean) {
    this.#foreign = foreign;
    this.root = this.#copy(schema, '', 0, 0, 0);
    if (this.#costly && this.#turned) throw bad('', 'a pattern or uniqueItems could make it too costly');
    if (this.#dynamic && this.#resources > 1) throw bad('', '$dynamicRef across an inner $id is not supported');
  }

  /** Starts counting the steps of a check. */
  begin({ text, members }: Extent): void {
    this.#steps = 0;
    this.#textSteps = Math.floor(text / TEXT_STEP);
    // Only an untrusted schema would apply an unreasonable number of schemas to one object.
    this.#widthSteps = this.#foreign && members > WIDE ? Math.floor(members / WIDTH_STEP) : 0;
  }

  #copy(
    schema: unknown,
    at: string,
    depth: number,
    ids: number,
    outer: number,
  ): { [keyword: string]: unknown } | boolean {
    // Not `true` itself: its applications could not be counted.
    if (schema === true && depth > 0) return this.#counted({}, 0);
    if (typeof schema === 'boolean') return schema;
    if (!isObject(schema)) throw bad(at.slice(0, 200), 'must be an object or a boolean');
    if (depth > MAX_DEPTH) throw bad(at.slice(0, 200), 'is nested too deeply');
    // The address of a part begins with the `$id` around it, and is read with each `$id` that is relative to it.
    const { $id } = schema;
    const base = outer + (typeof $id === 'string' ? $id.length : 0);
    if ((this.#addresses += at.length + base) > MAX_ADDRESSES) throw bad('', 'its names are too long');
    const dialect = schema['$schema'];
    if (dialect !== undefined && !(typeof dialect === 'string' && DIALECT.test(dialect))) {
      throw bad(`${at}/$schema`, `must be that of JSON Schema 2020-12, not ${JSON.stringify(dialect)}`);
    }
    if (schema['$id'] !== undefined || depth === 0) this.#resources++;
    const inner = schema['$id'] === undefined ? ids : ids + 1;
    if (inner > MAX_IDS) throw bad(`${at}/$id`, `is inside more than ${MAX_IDS - 1} others`);
    const copy: { [keyword: string]: unknown } = {};
    const around = this.#resource;
    if (schema['$id'] !== undefined || depth === 0) this.#resource = copy;
    let more = 0;
    for (const [keyword, value] of Object.entries(schema)) {
      const rule = Object.hasOwn(KEYWORDS, keyword) ? KEYWORDS[keyword] : undefined;
      const here = `${at}/${keyword}`;
      if (rule === undefined) continue;
      this.isAddressed ||= ADDRESS.test(keyword);
      if (this.#foreign) {
        this.#turned ||= TURNED.test(keyword);
        this.#costly ||= COSTLY.test(keyword) || keyword === 'patternProperties';
        if (COSTLY.test(keyword) || keyword === 'format') continue;
      }
      if (rule === 'refused') throw bad(here, 'is not a keyword of JSON Schema 2020-12');
      if (rule === 'schema') {
        copy[keyword] = this.#copy(value, here, depth + 1, inner, base);
      } else if (rule === 'schemas') {
        if (!Array.isArray(value) || value.length === 0) throw bad(here, 'must be an array of schemas');
        more += value.length / LIST_STEP;
        copy[keyword] = value.map((item, i) => this.#copy(item, `${here}/${i}`, depth + 1, inner, base));
      } else if (rule === 'map') {
        if (!isObject(value)) throw bad(here, 'must be an object of schemas');
        const parts = Object.entries(value);
        more += parts.length / LIST_STEP;
        this.isAddressed ||= parts.some(([name]) => LONE.test(name));
        if (keyword === 'patternProperties' && !parts.every(([pattern]) => regex(pattern)))
          throw bad(here, 'has a pattern that does not compile');
        copy[keyword] = Object.fromEntries(
          parts.map(([name, item]) => [name, this.#copy(item, `${here}/${name}`, depth + 1, inner, base)]),
        );
      } else if (!rule(value)) {
        throw bad(here, `cannot be ${JSON.stringify(value).slice(0, 80)}`);
      } else if (keyword === '$dynamicRef' || keyword === '$dynamicAnchor') {
        // A schema resource has only one anchor of each name, so a plain reference finds the same.
        const plain = keyword === '$dynamicRef' ? '$ref' : '$anchor';
        if (schema[plain] !== undefined) throw bad(here, `beside ${plain} is not supported`);
        this.#dynamic = true;
        copy[plain] = value;
      } else if (keyword !== 'format' || FORMATS.test(value as string)) {
        more += entriesOf(value) / (OF_NAMES.test(keyword) ? REQUIRED_STEP : LIST_STEP);
        this.hasUnique ||= keyword === 'uniqueItems' && value === true;
        copy[keyword] = value;
      }
    }
    const { $anchor: name } = copy;
    if (name !== undefined) this.anchors.push({ part: copy, resource: this.#resource, name: name as string });
    this.#resource = around;
    return this.#counted(copy, Math.floor(more));
  }

  /** Counts applications: the validator reads this member (of an older draft) from each schema that it applies. */
  #counted(copy: { [keyword: string]: unknown }, more: number): { [keyword: string]: unknown } {
    const isOfText = Object.keys(copy).some((keyword) => OF_TEXT.test(keyword));
    const { type = 'object' } = copy as { type?: string | string[] };
    const isOfObjects = [type].flat().includes('object');
    Object.defineProperty(copy, '$recursiveAnchor', {
      get: () => {
        this.#steps += 1 + more + (isOfText ? this.#textSteps : 0) + (isOfObjects ? this.#widthSteps : 0);
        if (this.#steps > MAX_STEPS) throw new RangeError('too many steps');
      },
    });
    return copy;
  }
}

/** The parts of a schema by address, in the form that the validator takes. */
function dereferenced({ root, anchors }: Copy): ReturnType<typeof dereference> {
  let parts: ReturnType<typeof dereference>;
  try {
    parts = dereference(root as object);
    // An anchor inside another `$id` is taken for one of the parts around it as well, in place of theirs.
    for (const { part, resource, name } of anchors)
      parts[new URL(`#${name}`, (resource as { __absolute_uri__: string }).__absolute_uri__).href] = part;
  } catch (cause) {
    throw bad('', 'two of its parts have one address, or an $id or $ref is no URI', cause);
  }
  for (const part of Object.values(parts)) {
    if (typeof part === 'boolean') continue;
    const { $ref, __absolute_ref__: target } = part;
    if (target !== undefined && parts[target] === undefined)
      throw bad('', `$ref ${$ref} is not in it, and nothing is fetched`);
  }
  return parts;
}

function compileJson(schema: object | boolean, foreign = false): Compiled {
  let json: { [keyword: string]: Json } | boolean;
  try {
    json = JSON.parse(JSON.stringify(schema));
  } catch (cause) {
    throw bad('', typeof schema === 'object' ? 'it is not JSON' : `it must be an object, not ${typeof schema}`, cause);
  }
  const copy = new Copy(json, foreign);
  // If the addresses need no check, the validator is not loaded before the first value, since that takes long.
  let parts = copy.isAddressed ? dereferenced(copy) : undefined;
  const check = (value: unknown, extent: Extent): Checked => {
    if (copy.hasUnique && extent.items > MAX_UNIQUE) {
      return { problem: `an array has more than ${MAX_UNIQUE} items, too many to see whether they are unique` };
    }
    copy.begin(extent);
    parts ??= dereferenced(copy);
    try {
      const { valid, errors } = validate(value, copy.root as object, '2020-12', parts, true);
      return valid ? { value } : { problem: explained(errors) };
    } catch {
      return { problem: 'the value, or the schema, is too complex to be checked' };
    }
  };
  // MCP lists schemas that are objects only.
  return { json: typeof json === 'boolean' ? (json ? {} : { not: {} }) : json, check };
}

/** The keywords whose errors only say that there are errors below. */
const OUTER = /^(?:\$ref|properties|patternProperties|items|prefixItems|allOf|if|dependentSchemas|false)$/;

function explained(errors: OutputUnit[]): string {
  const inner = errors.filter(({ keyword }) => !OUTER.test(keyword));
  const lines = (inner.length > 0 ? inner : errors).map(({ instanceLocation: at, error }) => line(at.slice(1), error));
  return summary(lines);
}

function line(at: string, problem: string): string {
  return at === '' ? problem : `${at}: ${problem}`;
}

function summary(lines: string[]): string {
  const shown = [...new Set(lines)].slice(0, 5).map((l) => (l.length > 300 ? `${l.slice(0, 300)}…` : l));
  return shown.join('\n');
}

// --- Standard Schema ---------------------------------------------------------------------------------------------

function compileStandard(standard: Standard, direction: 'input' | 'output'): Compiled {
  let json: unknown;
  try {
    json = standard.jsonSchema?.[direction]({ target: 'draft-2020-12' });
  } catch {
    // It has no JSON form: it can check values, but lists cannot show it.
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
