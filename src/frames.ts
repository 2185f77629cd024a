/**
 * Text as the service stores it, and frames as one ASCII line: the only codec of the project.
 *
 * A room stores text after a sweep (control, format, private-use, surrogate and separator characters become blanks, the
 * ends are trimmed). A frame is JSON written so that the sweep cannot touch it: compact, U+0020 to U+007E only, all
 * else escaped. It then is exactly what Python's `json.dumps(value, separators=(",", ":"), ensure_ascii=True)` prints,
 * numbers aside.
 *
 * @module
 */
import { HEX } from './bytes.ts';
import { checkText, EmptyText, FrameTooLong, TechnocoreError } from './errors.ts';

/** Code points that one message may hold, after the sweep. */
export const MAX_TEXT = 4096;
/** Code points that one note may hold, after the sweep. */
export const MAX_NOTE = 8192;

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** A decoded frame: a JSON object, or an array of them (a batch). Members are strangers' until checked. */
export type Frame = { [key: string]: Json } | Json[];

// Cs finds lone surrogates only: under the `u` flag a pair is one code point of another category.
const SWEPT = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;

/** What params or a result say beside themselves, in `_meta`. */
export function metaIn(holder: unknown): { [key: string]: Json } {
  const meta = isObject(holder) ? holder['_meta'] : undefined;
  return isObject(meta) ? (meta as { [key: string]: Json }) : {};
}

/** The text with blanks for all that is swept: a stranger's, it then does nothing to a terminal. */
export const blanked = (text: string): string => text.replace(SWEPT, ' ');

/** Number of code points; a lone surrogate counts as one. */
export function codePoints(text: string): number {
  let pairs = 0;
  for (let i = 0; i + 1 < text.length; i++) {
    if ((text.charCodeAt(i) & 0xfc00) === 0xd800 && (text.charCodeAt(i + 1) & 0xfc00) === 0xdc00) {
      pairs++;
      i++;
    }
  }
  return text.length - pairs;
}

/**
 * What the service will store of a text: each code point of category Cc, Cf, Cs, Co, Zl or Zp becomes one blank, then
 * white space at both ends goes. Nothing is normalised. Sign the swept text.
 *
 * @param limit most code points allowed afterwards: {@link MAX_TEXT} for messages, {@link MAX_NOTE} for notes
 * @param what what the text is of those who call, for the error
 * @throws TechnocoreError `bad_text`: no text
 * @throws EmptyText nothing is left
 * @throws FrameTooLong more than `limit` code points are left
 */
export function sweep(text: string, limit: number = MAX_TEXT, what = 'the text'): string {
  const swept = blanked(checkText(text, what)).trim();
  if (swept === '') throw new EmptyText();
  // Counting is needed only where UTF-16 units could mislead.
  if (swept.length > limit) {
    const chars = codePoints(swept);
    if (chars > limit) throw new FrameTooLong(chars, limit);
  }
  return swept;
}

// As much as is printable ASCII: found a quarter faster than the first character that is not.
const ASCII = /[ -~]*/y;
const ESCAPED: string[] = /* @__PURE__ */ HEX.map((byte) => `\\u${byte}`);

/** @throws TechnocoreError `bad_frame`: cyclic, a BigInt, or without JSON form */
export function stringify(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (cause) {
    throw new TechnocoreError('bad_frame', 'the value cannot be written as JSON', cause);
  }
  if (text === undefined) throw new TechnocoreError('bad_frame', 'the value has no JSON form');
  return text;
}

/** Any JSON value as one ASCII line of any length: {@link encode} without its limit. */
export function encodeLong(frame: unknown): string {
  const text = stringify(frame);
  ASCII.lastIndex = 0;
  ASCII.test(text);
  let at = ASCII.lastIndex;
  if (at === text.length) return text;
  let ascii = text.slice(0, at);
  let from = at;
  for (; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit < 0x7f) continue;
    // DEL counts as beyond: the service sweeps it and JSON.stringify leaves it raw.
    if (at > from) ascii += text.slice(from, at);
    ascii += ESCAPED[unit >> 8]! + HEX[unit & 255];
    from = at + 1;
  }
  return ascii + text.slice(from);
}

/**
 * A frame as one ASCII line that a room stores unchanged.
 *
 * @throws FrameTooLong the line has more than {@link MAX_TEXT} characters, what is not ASCII counted as it is escaped; the error
 * holds the count
 * @throws TechnocoreError `bad_frame`: cyclic, a BigInt, or without JSON form
 */
export function encode(frame: Json): string {
  return encodeWithin(frame, MAX_TEXT);
}

/**
 * The same for a way that carries more, or less.
 *
 * @internal
 */
export function encodeWithin(frame: Json, limit: number): string {
  const text = encodeLong(frame);
  if (text.length <= limit) return text;
  throw new FrameTooLong(
    text.length,
    limit,
    `${text.length} characters once all that is not ASCII is escaped, and the limit is ${limit}: shorten it, send a batch in parts, or put what is long into a note and name that`,
  );
}

/**
 * The frame in a text: a JSON object or array, else undefined; also for one longer than a message that is nested more than
 * 1,000 deep, which nobody could write down again. Never throws.
 */
export function decode(text: string): Frame | undefined {
  try {
    if (text.length > MAX_TEXT && isDeep(text)) return undefined;
    // Most of what is no frame is plain words; to have them refused by the parser costs as much as the rest of a message.
    return /^[\t\n\r ]*[[{]/.test(text) ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

/** Nesting beyond which a text is not worth reading: what copies, compares or writes its values goes as deep. */
const MAX_DEPTH = 1000;

/** True for JSON text that is nested too deeply for whoever works on its values. */
function isDeep(text: string): boolean {
  let depth = 0;
  for (const [token] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"?|[[\]{}]/gs)) {
    if (token === '[' || token === '{') {
      if (++depth > MAX_DEPTH) return true;
    } else if (token === ']' || token === '}') depth--;
  }
  return false;
}

/**
 * A member that is called `name`, in any of the spellings that JSON has for that, and has an integer for its value. Inside a
 * quoted text the quotes around a name have backslashes before them.
 */
function integerOf(name: string): RegExp {
  const letters = [...name].map((c) => {
    const hex = HEX[c.charCodeAt(0)]!.replace(/[a-f]/, (digit) => `[${digit}${digit.toUpperCase()}]`);
    return `(?:${c}|\\\\u00${hex})`;
  });
  return new RegExp(`((?:^|[^\\\\])"${letters.join('')}"\\s*:\\s*)(-?(?:0|[1-9]\\d*))(?![\\d.eE])`, 'g');
}

/**
 * `JSON.parse`, with the integers of members called `name` kept as strings of their exact digits: nonces and seqs have
 * up to 20 digits, and a double holds 15.
 *
 * @param name ASCII letters
 * @throws SyntaxError not JSON
 */
export function parseExact(text: string, name: string): unknown {
  // Nothing else is looked at, and no code of ours runs for each: a stranger's long text costs twice what parsing it does.
  return JSON.parse(text.replace(integerOf(name), '$1"$2"'));
}

/** True for a JSON object: neither null nor an array. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The object itself, without the members that are undefined. */
export function compact<T extends object>(o: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  for (const name in o) if (o[name] === undefined) delete o[name];
  return o as { [K in keyof T]: Exclude<T[K], undefined> };
}
