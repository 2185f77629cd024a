/**
 * What JSON Schema 2020-12 says of a value, within a bounded amount of work, whatever the schema and the value are.
 *
 * Everything is counted: each schema that is applied, each member, item, name and alternative that is looked at. So neither
 * who writes the value nor who writes the schema can have more of a processor, or of memory, than the count allows. Patterns
 * alone cannot be counted: they run for as long as they do.
 *
 * @module
 */
import { format as formats } from '@cfworker/json-schema';

type Named = ReadonlyMap<string, Node>;

/** A schema, its parts and references in place. */
export interface Node {
  /** False for the schema `false`; one without keywords is `true`. */
  allows?: false;
  ref?: Node;
  type?: readonly string[];
  /** The values of `const` or `enum`, and how they are shown. */
  const?: Choice;
  enum?: Choice;
  not?: Node;
  if?: Node;
  then?: Node;
  else?: Node;
  allOf?: readonly Node[];
  anyOf?: readonly Node[];
  oneOf?: readonly Node[];
  properties?: Named;
  patternProperties?: readonly (readonly [RegExp, Node])[];
  additionalProperties?: Node;
  unevaluatedProperties?: Node;
  propertyNames?: Node;
  dependentSchemas?: Named;
  dependentRequired?: ReadonlyMap<string, readonly string[]>;
  required?: readonly string[];
  prefixItems?: readonly Node[];
  items?: Node;
  unevaluatedItems?: Node;
  contains?: Node;
  minContains?: number;
  maxContains?: number;
  minItems?: number;
  maxItems?: number;
  uniqueItems?: boolean;
  minProperties?: number;
  maxProperties?: number;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  multipleOf?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: RegExp;
  /** One that can be checked. */
  format?: string;
}

/** Most that is looked at in one check. */
const MAX_WORK = 200_000;
/** Most schemas inside one another in one check: those of a value, of its parts, and those they refer to. */
const MAX_NESTED = 1000;
/** Most problems that are kept, and of each most characters. */
const MAX_PROBLEMS = 20;
const MAX_CHARS = 300;

const cut = (text: string): string => (text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS)}…` : text);

/** Values to choose from. Texts and numbers are found as they are, lists and objects by how they are written. */
export class Choice {
  readonly #simple: Set<unknown>;
  readonly #written: Set<string>;
  readonly #values: unknown;
  #shown: string | undefined;

  /** @param shown the value, or the values, as told */
  constructor(values: readonly unknown[], shown: unknown) {
    const free = { charge: (): void => {} };
    this.#simple = new Set(values.filter((value) => !isCompound(value)));
    this.#written = new Set(values.filter(isCompound).map((value) => written(value, free)));
    this.#values = shown;
  }

  has(value: unknown, work: Work): boolean {
    if (!isCompound(value)) return this.#simple.has(value);
    return this.#written.size > 0 && this.#written.has(written(value, work));
  }

  toString(): string {
    return (this.#shown ??= cut(JSON.stringify(this.#values)));
  }
}

interface Work {
  charge(n: number): void;
}

type Compound = { [member: string]: unknown };
const isCompound = (value: unknown): value is Compound => typeof value === 'object' && value !== null;

/** A value in one way of writing, whatever the order of its members. */
function written(value: unknown, work: Work): string {
  work.charge(1);
  if (typeof value === 'string') work.charge(value.length >> 4);
  // A number too great for JSON is not null, as JSON would write it.
  if (!isCompound(value)) return typeof value === 'number' ? String(value) : JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map((item) => written(item, work)).join()}]`;
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${written(name, work)}:${written(value[name], work)}`).join()}}`;
}

/** The way to a value; written out only where something is wrong with it. */
interface Way {
  readonly outer: Way | undefined;
  readonly step: string | number;
}

function told(way: Way | undefined, problem: string): string {
  const steps: string[] = [];
  for (let at = way; at; at = at.outer) steps.unshift(`/${String(at.step).replace(/~/g, '~0').replace(/\//g, '~1')}`);
  return steps.length === 0 ? problem : `${steps.join('')}: ${problem}`;
}

/** The members or items of one value that some schema has had its say on. */
class Seen {
  all = false;
  readonly steps = new Set<string | number>();
}

/**
 * @param isTracked whether the schema has `unevaluatedProperties` or `unevaluatedItems` somewhere
 * @returns what is wrong with the value, the first twenty things; undefined where finding out takes too much
 */
export function problemsOf(value: unknown, schema: Node, isTracked: boolean): string[] | undefined {
  const check = new Check(isTracked);
  try {
    check.apply(value, schema, undefined, undefined);
    return check.problems;
  } catch (error) {
    if (error instanceof TooMuch || error instanceof RangeError) return undefined;
    throw error;
  }
}

class TooMuch extends Error {}

class Check implements Work {
  readonly problems: string[] = [];
  readonly #isTracked: boolean;
  #left = MAX_WORK;
  #nested = 0;

  constructor(isTracked: boolean) {
    this.#isTracked = isTracked;
  }

  charge(n: number): void {
    if ((this.#left -= n) < 0) throw new TooMuch();
  }

  #fail(way: Way | undefined, problem: string | (() => string)): false {
    if (this.problems.length < MAX_PROBLEMS) {
      this.problems.push(cut(told(way, typeof problem === 'string' ? problem : problem())));
    }
    return false;
  }

  /** Whether the schema allows the value; what is wrong is among the problems. */
  apply(value: unknown, schema: Node, way: Way | undefined, outer: Seen | undefined): boolean {
    this.charge(1);
    if (schema.allows === false) return this.#fail(way, 'False boolean schema.');
    if (++this.#nested > MAX_NESTED) throw new TooMuch();
    const seen = this.#isTracked && isCompound(value) ? new Seen() : undefined;
    let ok = this.#itself(value, schema, way);
    ok = this.#inPlace(value, schema, way, seen) && ok;
    if (Array.isArray(value)) ok = this.#array(value, schema, way, seen, ok) && ok;
    else if (isCompound(value)) ok = this.#object(value, schema, way, seen, ok) && ok;
    if (ok && outer && seen) {
      outer.all ||= seen.all;
      this.charge(seen.steps.size);
      for (const step of seen.steps) outer.steps.add(step);
    }
    this.#nested--;
    return ok;
  }

  /** The same, of which only the answer counts. */
  #test(value: unknown, schema: Node, way: Way | undefined, outer: Seen | undefined): boolean {
    const { length } = this.problems;
    const ok = this.apply(value, schema, way, outer);
    this.problems.length = length;
    return ok;
  }

  #itself(value: unknown, s: Node, way: Way | undefined): boolean {
    let ok = true;
    const fail = (problem: string): void => {
      ok = this.#fail(way, problem);
    };
    if (s.type && !s.type.some((type) => isOf(value, type))) {
      fail(`Instance type "${typeOf(value)}" is invalid. Expected "${s.type.join('", "')}".`);
    }
    if (s.const && !s.const.has(value, this)) fail(`Instance does not match ${s.const}.`);
    if (s.enum && !s.enum.has(value, this)) fail(`Instance does not match any of ${s.enum}.`);
    // A bound that is not there is undefined, which nothing is less or greater than.
    if (typeof value === 'number') {
      if (value < s.minimum!) fail(`${value} is less than ${s.minimum}.`);
      if (value > s.maximum!) fail(`${value} is greater than ${s.maximum}.`);
      if (value <= s.exclusiveMinimum!) fail(`${value} is not greater than ${s.exclusiveMinimum}.`);
      if (value >= s.exclusiveMaximum!) fail(`${value} is not less than ${s.exclusiveMaximum}.`);
      if (s.multipleOf !== undefined) {
        this.charge(8);
        if (!isMultiple(value, s.multipleOf)) fail(`${value} is not a multiple of ${s.multipleOf}.`);
      }
    } else if (typeof value === 'string') {
      if (s.minLength !== undefined || s.maxLength !== undefined) {
        this.charge(value.length >> 4);
        let length = 0;
        for (const _ of value) length++;
        if (length < s.minLength!) fail(`String is too short (${length} < ${s.minLength}).`);
        if (length > s.maxLength!) fail(`String is too long (${length} > ${s.maxLength}).`);
      }
      if (s.pattern && !s.pattern.test(value)) fail('String does not match pattern.');
      if (s.format !== undefined && !formats[s.format]!(value)) {
        fail(`String does not match format "${s.format}".`);
      }
    }
    return ok;
  }

  /** The schemas that are applied to the same value. */
  #inPlace(value: unknown, s: Node, way: Way | undefined, seen: Seen | undefined): boolean {
    let ok = true;
    if (s.ref) ok = this.apply(value, s.ref, way, seen);
    for (const one of s.allOf ?? []) ok = this.apply(value, one, way, seen) && ok;
    if (s.anyOf) ok = this.#alternatives(value, s.anyOf, way, seen, false) && ok;
    if (s.oneOf) ok = this.#alternatives(value, s.oneOf, way, seen, true) && ok;
    if (s.not && this.#test(value, s.not, way, undefined)) ok = this.#fail(way, 'Instance matched "not" schema.');
    if (s.if) {
      const next = this.#test(value, s.if, way, seen) ? s.then : s.else;
      if (next) ok = this.apply(value, next, way, seen) && ok;
    }
    return ok;
  }

  #alternatives(
    value: unknown,
    all: readonly Node[],
    way: Way | undefined,
    seen: Seen | undefined,
    isOne: boolean,
  ): boolean {
    const { length } = this.problems;
    // The line about all of them comes before what is wrong with each.
    this.#fail(way, 'Instance does not match any subschemas.');
    const matches = all.filter((one) => this.apply(value, one, way, seen)).length;
    if (matches > 0) this.problems.length = length;
    if (matches > 1 && isOne) {
      return this.#fail(way, `Instance does not match exactly one subschema (${matches} matches).`);
    }
    return matches > 0;
  }

  #object(value: Compound, s: Node, way: Way | undefined, seen: Seen | undefined, wasOk: boolean): boolean {
    let ok = wasOk;
    const fail = (problem: string | (() => string)): void => {
      ok = this.#fail(way, problem);
    };
    const has = (name: string): boolean => Object.hasOwn(value, name);
    const names = Object.keys(value);
    this.charge(names.length + (s.required?.length ?? 0));
    for (const name of s.required ?? []) {
      if (!has(name)) fail(`Instance does not have required property "${name}".`);
    }
    if (names.length < s.minProperties!) fail(`Instance does not have at least ${s.minProperties} properties.`);
    if (names.length > s.maxProperties!) fail(`Instance has more than ${s.maxProperties} properties.`);
    if (s.propertyNames) {
      for (const name of names) {
        if (!this.apply(name, s.propertyNames, { outer: way, step: name }, undefined)) {
          fail(`Property name "${name}" does not match schema.`);
        }
      }
    }
    for (const name of s.dependentRequired || s.dependentSchemas ? names : []) {
      const needed = s.dependentRequired?.get(name) ?? [];
      this.charge(needed.length);
      for (const other of needed) if (!has(other)) fail(`Instance has "${name}" but does not have "${other}".`);
      const more = s.dependentSchemas?.get(name);
      if (more) ok = this.apply(value, more, way, seen) && ok;
    }
    const { additionalProperties: additional, unevaluatedProperties: unevaluated, patternProperties: patterns } = s;
    if (!s.properties && !patterns && !additional && !unevaluated) return ok;
    for (const name of names) {
      const step: Way = { outer: way, step: name };
      let known = false;
      const part = s.properties?.get(name);
      if (part) {
        known = true;
        ok = this.apply(value[name], part, step, undefined) && ok;
      }
      if (patterns) this.charge(patterns.length);
      for (const [pattern, matched] of patterns ?? []) {
        if (!pattern.test(name)) continue;
        known = true;
        ok = this.apply(value[name], matched, step, undefined) && ok;
      }
      if (known) seen?.steps.add(name);
      else if (additional) {
        ok = this.#rest(value[name], additional, step, 'additional properties') && ok;
      }
    }
    if (additional && seen) seen.all = true;
    // What was not allowed has not been looked at: saying so would only repeat it.
    if (unevaluated && seen && ok && !seen.all) {
      for (const name of names) {
        if (seen.steps.has(name)) continue;
        ok = this.#rest(value[name], unevaluated, { outer: way, step: name }, 'unevaluated properties') && ok;
      }
      seen.all = true;
    }
    return ok;
  }

  /** A member that is not named. */
  #rest(value: unknown, schema: Node, way: Way, what: string): boolean {
    const isNever = schema.allows === false;
    if (!isNever && this.apply(value, schema, way, undefined)) return true;
    return this.#fail(way.outer, () => `Property "${way.step}" does not match ${what} schema.`);
  }

  #array(value: readonly unknown[], s: Node, way: Way | undefined, seen: Seen | undefined, wasOk: boolean): boolean {
    let ok = wasOk;
    const { length } = value;
    const fail = (problem: string): void => {
      ok = this.#fail(way, problem);
    };
    if (length > s.maxItems!) fail(`Array has too many items (${length} > ${s.maxItems}).`);
    if (length < s.minItems!) fail(`Array has too few items (${length} < ${s.minItems}).`);
    const named = Math.min(s.prefixItems?.length ?? 0, length);
    for (let i = 0; i < named; i++) {
      ok = this.apply(value[i], s.prefixItems![i]!, { outer: way, step: i }, undefined) && ok;
      seen?.steps.add(i);
    }
    if (s.items) {
      for (let i = named; i < length; i++) ok = this.apply(value[i], s.items, { outer: way, step: i }, undefined) && ok;
      if (seen) seen.all = true;
    }
    if (s.contains) {
      const { minContains: least = 1, maxContains: most } = s;
      let found = 0;
      for (const [i, item] of value.entries()) {
        if (!this.#test(item, s.contains, way, undefined)) continue;
        found++;
        seen?.steps.add(i);
      }
      if (found === 0 && least === 1) fail('Array does not contain item matching schema.');
      else if (found < least) {
        fail(`Array must contain at least ${least} items matching schema. Only ${found} items were found.`);
      } else if (found > most!) {
        fail(`Array may contain at most ${most} items matching schema. ${found} items were found.`);
      }
    }
    if (s.uniqueItems) {
      const places = new Map<string, number>();
      for (const [i, item] of value.entries()) {
        const text = written(item, this);
        const other = places.get(text);
        if (other !== undefined) {
          fail(`Duplicate items at indexes ${other} and ${i}.`);
          break;
        }
        places.set(text, i);
      }
    }
    if (s.unevaluatedItems && seen && ok && !seen.all) {
      for (let i = 0; i < length; i++) {
        if (seen.steps.has(i)) continue;
        ok = this.apply(value[i], s.unevaluatedItems, { outer: way, step: i }, undefined) && ok;
      }
      seen.all = true;
    }
    return ok;
  }
}

function typeOf(value: unknown): string {
  return value === null ? 'null' : Array.isArray(value) ? 'array' : typeof value;
}

function isOf(value: unknown, type: string): boolean {
  return type === 'integer' ? Number.isInteger(value) : typeOf(value) === type;
}

/** Whether a number is a multiple of another as both are written, not as they are rounded. */
function isMultiple(value: number, of: number): boolean {
  if (!Number.isFinite(value)) return false;
  const [a, aPower] = decimal(value);
  const [b, bPower] = decimal(of);
  const power = aPower - bPower;
  return (power >= 0 ? (a * 10n ** BigInt(power)) % b : a % (b * 10n ** BigInt(-power))) === 0n;
}

function decimal(value: number): [digits: bigint, power: number] {
  const [digits = '', power = '0'] = Math.abs(value).toString().split('e');
  const [whole = '', part = ''] = digits.split('.');
  return [BigInt(whole + part), Number(power) - part.length];
}
