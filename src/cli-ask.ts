/**
 * The command line: another agent's questions, which the person at the terminal answers. Without a terminal, or with
 * `--json`, the question is printed.
 *
 * @module
 */
import { type Args, json, print, prompted, shown, tell } from './cli-kit.ts';
import { isObject, type Json } from './frames.ts';
import { compileForeignSchema } from './schema.ts';
import { type ElicitResult, type InputHandlers, TechnocoreError } from './technocore-rpc.ts';

type Schema = { [member: string]: Json };

const schemaIn = (value: unknown): Schema => (isObject(value) ? (value as Schema) : {});
const textIn = (value: unknown): string | undefined => (typeof value === 'string' ? shown(value) : undefined);

/** The functions that answer a tool's questions. */
export function askedBack(args: Args): InputHandlers {
  const isAnswered = process.stdin.isTTY === true && process.stderr.isTTY === true && !args.json;
  const answers =
    (ask: (args: Args, params: Schema) => Promise<ElicitResult>) =>
    (params: unknown): Promise<ElicitResult> =>
      isAnswered ? ask(args, schemaIn(params)) : unanswered(args, schemaIn(params));
  return { elicit: answers(askForm), elicitUrl: answers(askPage) };
}

/** @throws a {@link TechnocoreError} `input_required` that quotes the question */
async function unanswered(args: Args, params: Schema): Promise<never> {
  if (args.json) print(json({ inputRequired: params }, true));
  const { message, url, requestedSchema } = params;
  const what = [
    textIn(message) ?? '',
    ...[textIn(url) ?? []].flat(),
    ...Object.entries(schemaIn(schemaIn(requestedSchema)['properties'])).map(([name, of]) => labelOf(name, of)),
  ].join('; ');
  throw new TechnocoreError(
    'input_required',
    `the tool asks a question that can only be answered on a terminal: ${what}`,
  );
}

// --- forms -------------------------------------------------------------------------------------------------------

async function askForm(args: Args, { message, requestedSchema }: Schema): Promise<ElicitResult> {
  const { properties, required } = schemaIn(requestedSchema);
  tell(`\nThe tool asks: ${textIn(message) ?? ''}\nDo not enter secrets. Ctrl-D declines.`);
  const fields = Object.entries(schemaIn(properties));
  if (fields.length === 0) return { action: await agreed(args), content: {} };
  const content: [name: string, value: Json][] = [];
  for (const [name, of] of fields) {
    const isNeeded = Array.isArray(required) && required.includes(name);
    const value = await askField(args, name, schemaIn(of), isNeeded);
    if (value === undefined) return { action: 'decline' };
    if (value.given !== undefined) content.push([name, value.given]);
  }
  return { action: 'accept', content: Object.fromEntries(content) };
}

async function askPage(args: Args, { message, url }: Schema): Promise<ElicitResult> {
  tell(`\nThe tool asks you to visit a page: ${textIn(message) ?? ''}\n${textIn(url) ?? ''}`);
  return { action: await agreed(args) };
}

async function agreed(args: Args): Promise<'accept' | 'decline'> {
  return TRUE.test((await prompted(args, 'Agree? (y/n) ')) ?? '') ? 'accept' : 'decline';
}

const TRUE = /^\s*(y|yes|true)\s*$/i;
const FALSE = /^\s*(n|no|false)\s*$/i;

/** The values that a field can have, if its schema lists them. */
function optionsOf({ enum: values, oneOf, anyOf }: Schema): Json[] | undefined {
  const titled = oneOf ?? anyOf;
  if (Array.isArray(values)) return values;
  return Array.isArray(titled) ? titled.map((one) => schemaIn(one)['const'] ?? null) : undefined;
}

/** The name of a field, and what it accepts. */
function labelOf(name: string, of: Json): string {
  const { title, description } = schemaIn(of);
  const about = [textIn(description) ?? [], takesOf(schemaIn(of)) ?? []].flat();
  return `${textIn(title) ?? shown(name)}${about.length > 0 ? ` (${about.join('; ')})` : ''}`;
}

/** What a field accepts, as far as its schema says. */
function takesOf(of: Schema): string | undefined {
  const { type, items, format } = of;
  const options = optionsOf(of);
  const kind = options ? `one of ${options.map(shown).join(', ')}` : (textIn(format) ?? textIn(type));
  const known =
    type === 'array'
      ? [takesOf(schemaIn(items)), 'separated by commas', rangeOf(of, 'minItems', 'maxItems')]
      : [kind, rangeOf(of, 'minimum', 'maximum'), rangeOf(of, 'minLength', 'maxLength', ' characters')];
  const words = known.filter((one) => one !== undefined);
  return words.length > 0 ? words.join(', ') : undefined;
}

function rangeOf(of: Schema, least: string, most: string, unit = ''): string | undefined {
  const [low, high] = [of[least], of[most]];
  if (low === undefined && high === undefined) return undefined;
  const range =
    high === undefined
      ? `${shown(low)} or more`
      : `${low === undefined ? 'at most' : `${shown(low)} to`} ${shown(high)}`;
  return `${range}${unit}`;
}

/**
 * What is wrong with the value of a field; undefined if nothing is, or if the schema cannot be used: the server will say.
 */
async function problemOf(value: Json, of: Schema): Promise<string | undefined> {
  try {
    return (await compileForeignSchema(of).check(value)).problem;
  } catch {
    return undefined;
  }
}

/** Asks for one value. `given` is undefined if the field is omitted; the result is undefined if the person declines. */
async function askField(
  args: Args,
  name: string,
  of: Schema,
  isNeeded: boolean,
): Promise<{ given?: Json } | undefined> {
  const usual = of['default'];
  const otherwise = usual !== undefined ? ` [${shown(usual)}]` : isNeeded ? '' : ' [optional]';
  for (;;) {
    const line = await prompted(args, `${labelOf(name, of)}${otherwise}: `);
    if (line === undefined) return undefined;
    if (line.trim() === '' && (usual !== undefined || !isNeeded)) return usual === undefined ? {} : { given: usual };
    const given = valueFrom(line, of);
    const problem = given === undefined ? '' : await problemOf(given, of);
    if (given !== undefined && problem === undefined) return { given };
    tell(`Invalid. Expected: ${takesOf(of) ?? shown(problem)}`);
  }
}

/** The value of a typed line for a field; undefined if the line is not a valid value. */
function valueFrom(line: string, of: Schema): Json | undefined {
  const text = line.trim();
  if (of['type'] === 'array') {
    const each = text.split(',').map((part) => valueFrom(part, schemaIn(of['items'])));
    return each.some((value) => value === undefined) ? undefined : (each as Json[]);
  }
  const options = optionsOf(of);
  if (options) return options.find((option) => shown(option) === text);
  if (of['type'] === 'boolean') return TRUE.test(text) ? true : FALSE.test(text) ? false : undefined;
  if (of['type'] !== 'number' && of['type'] !== 'integer') return line;
  const n = text === '' ? Number.NaN : Number(text);
  return Number.isFinite(n) && (of['type'] === 'number' || Number.isInteger(n)) ? n : undefined;
}
