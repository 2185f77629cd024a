/**
 * The form in which the service stores text, and the codec that writes frames as one line of ASCII.
 *
 * A room stores text after a sweep: control, format, private-use, surrogate and separator characters become blanks, and
 * both ends are trimmed. A frame is JSON that the sweep cannot change: compact, with every character outside U+0020 to
 * U+007E escaped. Numbers aside, that is exactly what Python's
 * `json.dumps(value, separators=(",", ":"), ensure_ascii=True)` prints.
 *
 * @module
 */
import { HEX, isAscii } from './bytes.ts';
import { checkText, EmptyText, FrameTooLong, TechnocoreError } from './errors.ts';

/** The longest message that the service stores: 4,096 code points, counted after the {@link sweep}. */
export const MAX_TEXT = 4096;
/** The longest value of a note that the service stores: 8,192 code points, counted after the {@link sweep}. */
export const MAX_NOTE = 8192;

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
/** A decoded frame: a JSON object, or an array (a batch). Untrusted: nothing inside has been checked. */
export type Frame = { [key: string]: Json } | Json[];

// Cs matches lone surrogates only: under the `u` flag a pair is one code point of another category.
const SWEPT = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;

/** The `_meta` member of params or of a result; an empty object if there is none. */
export function metaIn(holder: unknown): { [key: string]: Json } {
  const meta = isObject(holder) ? holder['_meta'] : undefined;
  return isObject(meta) ? (meta as { [key: string]: Json }) : {};
}

/**
 * Replaces every character that the sweep replaces by a blank, which makes untrusted text safe to print on a terminal.
 */
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
 * Returns a text as the service will store it: each code point of Unicode category Cc, Cf, Cs, Co, Zl or Zp becomes one
 * blank, then white space is trimmed at both ends. Nothing is normalized. A signature covers the swept text.
 *
 * @param limit the maximum length of the result in code points; default {@link MAX_TEXT}, for messages (use
 * {@link MAX_NOTE} for notes)
 * @param what a description of the text for the error message
 * @throws a {@link TechnocoreError} `bad_text` if it is not a string
 * @throws an {@link EmptyText} if nothing is left
 * @throws a {@link FrameTooLong} if the result is longer than `limit`
 * @example
 * ```ts
 * import { sweep } from 'technocore-rpc';
 *
 * console.log(sweep('two\nlines\u200b ')); // 'two lines'
 * ```
 */
export function sweep(text: string, limit: number = MAX_TEXT, what = 'the text'): string {
  const swept = blanked(checkText(text, what)).trim();
  if (swept === '') throw new EmptyText();
  // A text has at most as many code points as UTF-16 units, so only long texts need counting.
  if (swept.length > limit) {
    const chars = codePoints(swept);
    if (chars > limit) throw new FrameTooLong(chars, limit);
  }
  return swept;
}

const ESCAPED: string[] = /* @__PURE__ */ HEX.map((byte) => `\\u${byte}`);

/**
 * `JSON.stringify` with a typed error.
 *
 * @throws a {@link TechnocoreError} `bad_frame` if the value is cyclic, holds a BigInt, or has no JSON form
 */
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

/** Encodes a JSON value as one line of ASCII of any length: {@link encode} without the limit. */
export function encodeLong(frame: unknown): string {
  const text = stringify(frame);
  // `JSON.stringify` has escaped the control characters, except DEL, which the service sweeps.
  if (isAscii(text)) return text;
  let ascii = '';
  let from = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit < 0x7f) continue;
    if (at > from) ascii += text.slice(from, at);
    ascii += ESCAPED[unit >> 8]! + HEX[unit & 255];
    from = at + 1;
  }
  return ascii + text.slice(from);
}

/**
 * Encodes a frame as one line of ASCII, which a room stores unchanged.
 *
 * @returns compact JSON in which every character outside U+0020 to U+007E is escaped
 * @throws a {@link FrameTooLong} if the line has more than {@link MAX_TEXT} characters, escapes included
 * @throws a {@link TechnocoreError} `bad_frame` if the value is cyclic, holds a BigInt, or has no JSON form
 * @example
 * ```ts
 * import { decode, encode } from 'technocore-rpc';
 *
 * const line = encode({ jsonrpc: '2.0', method: 'greet', params: { name: 'Zoë' } });
 * console.log(line); // {"jsonrpc":"2.0","method":"greet","params":{"name":"Zo\u00eb"}}
 * console.log(decode(line));
 * ```
 */
export function encode(frame: Json): string {
  return encodeWithin(frame, MAX_TEXT);
}

/**
 * {@link encode} with another limit, for channels whose frames may be longer or shorter.
 *
 * @internal
 */
export function encodeWithin(frame: Json, limit: number): string {
  const text = encodeLong(frame);
  if (text.length <= limit) return text;
  throw new FrameTooLong(
    text.length,
    limit,
    `the frame has ${text.length} characters once non-ASCII is escaped, but the limit is ${limit}: shorten it, split a batch, or put long content into a note and send its name`,
  );
}

/**
 * Decodes the frame in a text. Never throws.
 *
 * @returns the JSON object or array; undefined for any other text. A text that is longer than a message must not nest
 * deeper than 1,000 levels or hold more than a million values
 */
export function decode(text: string): Frame | undefined {
  try {
    if (text.length > MAX_TEXT && isExcessive(text)) return undefined;
    // Most texts that are not frames are plain words, and it is costly to have the parser reject one.
    return /^[\t\n\r ]*[[{]/.test(text) ? JSON.parse(text) : undefined;
  } catch {
    return undefined;
  }
}

/** The deepest nesting that is accepted: code that copies, compares or writes the values recurses just as deep. */
const MAX_DEPTH = 1000;

/**
 * The maximum number of values in one text: a value may take a hundred bytes of memory and three bytes of text.
 */
const MAX_VALUES = 1 << 20;
/** Shorter texts cannot hold more than {@link MAX_VALUES} values. */
const MANY_CHARS = 2 * MAX_VALUES;

/** Whether a JSON text nests too deeply or holds too many values. */
function isExcessive(text: string): boolean {
  let depth = 0;
  let values = 0;
  for (let at = 0; at < text.length; at++) {
    const unit = text.charCodeAt(at);
    if (unit === 0x22) {
      at = endOfString(text, at);
    } else if (unit === 0x2c) {
      if (++values > MAX_VALUES) return true;
    } else if (unit === 0x5b || unit === 0x7b) {
      if (++depth > MAX_DEPTH || ++values > MAX_VALUES) return true;
    } else if (unit === 0x5d || unit === 0x7d) depth--;
  }
  return false;
}

/** The position of the closing quote of the string that begins at `start`; the length of the text if there is none. */
function endOfString(text: string, start: number): number {
  for (let at = text.indexOf('"', start + 1); at > 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0;
    while (text.charCodeAt(at - 1 - slashes) === 0x5c) slashes++;
    if (slashes % 2 === 0) return at;
  }
  return text.length;
}

/**
 * `JSON.parse` for untrusted text.
 *
 * @throws SyntaxError if the text is not JSON, or is long and nested more than 1,000 levels deep or has more than a
 * million values
 */
export function parseJson(text: string): unknown {
  checkExtent(text);
  return JSON.parse(text);
}

function checkExtent(text: string): void {
  if (text.length > MANY_CHARS && isExcessive(text)) throw new SyntaxError('too many values, or too deep');
}

/**
 * Matches members called `name` (ASCII letters), in any spelling that JSON allows, whose value is an integer. Inside a
 * JSON string the quotes around such a name are escaped, so it does not match.
 */
function integerOf(name: string): RegExp {
  const letters = [...name].map((c) => {
    const hex = HEX[c.charCodeAt(0)]!.replace(/[a-f]/, (digit) => `[${digit}${digit.toUpperCase()}]`);
    return `(?:${c}|\\\\u00${hex})`;
  });
  return new RegExp(`((?:^|[^\\\\])"${letters.join('')}"\\s*:\\s*)(-?(?:0|[1-9]\\d*))(?![\\d.eE])`, 'g');
}

const INTEGERS = { nonce: /* @__PURE__ */ integerOf('nonce'), seq: /* @__PURE__ */ integerOf('seq') };

/**
 * {@link parseJson}, except that an integer in a member called `name` becomes a string of its exact digits: a nonce or
 * seq has up to 20 digits, and a double holds 15.
 *
 * @throws SyntaxError as {@link parseJson}
 */
export function parseExact(text: string, name: 'nonce' | 'seq'): unknown {
  // A single replacement without a callback costs no more than the parsing, however long an untrusted text is.
  checkExtent(text);
  return JSON.parse(text.replace(INTEGERS[name], '$1"$2"'));
}

/** True for an object that is neither null nor an array. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Deletes the members that are undefined, and returns the same object. */
export function compact<T extends object>(o: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  for (const name in o) if (o[name] === undefined) delete o[name];
  return o as { [K in keyof T]: Exclude<T[K], undefined> };
}
