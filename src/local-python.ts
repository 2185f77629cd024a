/**
 * How the real service, a Python program, treats unexpected text: how it prints a bad name, parses a number, writes a
 * float, and (release 0.7) turns any JSON value into a string.
 *
 * @module
 */
import { isObject } from './frames.ts';

/** A string as Python's `repr` prints it. */
export function repr(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  let out = quote;
  for (const char of text) {
    const code = char.codePointAt(0)!;
    if (char === quote || char === '\\') out += `\\${char}`;
    else if (char === '\n') out += '\\n';
    else if (char === '\r') out += '\\r';
    else if (char === '\t') out += '\\t';
    else if (char === ' ' || !/[\p{C}\p{Z}]/u.test(char)) out += char;
    else {
      const [mark, digits] = code < 0x100 ? ['x', 2] : code < 0x10000 ? ['u', 4] : ['U', 8];
      out += `\\${mark}${code.toString(16).padStart(digits as number, '0')}`;
    }
  }
  return out + quote;
}

// In Unicode, the decimal digits of each script are ten consecutive code points, from zero to nine.
const asciiDigits = (text: string): string =>
  text.replace(/(?![0-9])\p{Nd}/gu, (digit) => {
    const code = digit.codePointAt(0)!;
    let value = 0;
    while (/\p{Nd}/u.test(String.fromCodePoint(code - value - 1))) value++;
    return String(value % 10);
  });

/**
 * A non-negative integer as Python's `int` parses it (blanks around it, `_` between digits, any script); undefined for
 * anything else. Beyond 2^53 it is a bigint, since it may be echoed.
 */
export function cursorOf(text: string | undefined): number | bigint | undefined {
  if (text === undefined) return undefined;
  if (/^\d{1,15}$/.test(text)) return Number(text);
  const digits = /^\s*[+-]?(\d+(?:_\d+)*)\s*$/.exec(asciiDigits(text))?.[1]?.replaceAll('_', '');
  // Python refuses more digits than that.
  if (digits === undefined || digits.length > 4300) return undefined;
  const value = BigInt(digits);
  if (text.includes('-') && value > 0n) return undefined;
  return value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
}

/** Seconds as Python's `float` parses them, in ms; 0 for anything but a positive number. */
export function secondsOf(text: string | undefined): number {
  if (text === undefined) return 0;
  const plain = asciiDigits(text)
    .trim()
    .replace(/(?<=\d)_(?=\d)/g, '');
  if (/^\+?inf(inity)?$/i.test(plain)) return Number.POSITIVE_INFINITY;
  return /^\+?(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) * 1000 : 0;
}

/** A float as Python prints it. */
export function floatRepr(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? 'nan' : value < 0 ? '-inf' : 'inf';
  if (Object.is(value, -0)) return '-0.0';
  const [mantissa, exponent] = value.toExponential().split('e') as [string, string];
  if (Number(exponent) < -4 || Number(exponent) >= 16) {
    return `${mantissa}e${exponent[0]}${exponent.slice(1).padStart(2, '0')}`;
  }
  const fixed = value.toString();
  // Python uses exponents for small numbers earlier than JavaScript: 0.00001 is 1e-05.
  return /[.e]/.test(fixed) ? fixed : `${fixed}.0`;
}

/** A number in a JSON text, with its spelling. */
class PythonNumber {
  readonly source: string;
  constructor(source: string) {
    this.source = source;
  }
}

const NUMBER = '\u0000number';
/** Strings and numbers. An unterminated string matches up to the end of the text, which keeps matching linear. */
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"?|-?(?:Infinity|(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)|NaN/gs;

/**
 * Parses JSON like Python 3: also `NaN` and `Infinity`, and numbers with their spelling.
 *
 * @throws SyntaxError if the text is not JSON
 */
export function parsePython(text: string): unknown {
  const tagged = text.replace(TOKENS, (token) => (token[0] === '"' ? token : `{"\\u0000number":"${token}"}`));
  return JSON.parse(tagged, (_, value) =>
    typeof value === 'object' && value !== null && typeof value[NUMBER] === 'string'
      ? new PythonNumber(value[NUMBER])
      : value,
  );
}

/** True for what Python calls a dict. */
export function isDict(value: unknown): value is Record<string, unknown> {
  return isObject(value) && !(value instanceof PythonNumber);
}

/** A JSON value as Python's `str` prints it. */
export function str(value: unknown): string {
  return typeof value === 'string' ? value : show(value);
}

function show(value: unknown): string {
  if (typeof value === 'string') return repr(value);
  if (value === null || value === undefined) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (value instanceof PythonNumber) {
    const { source } = value;
    if (/^-?\d+$/.test(source)) return source === '-0' ? '0' : source;
    return floatRepr(source === 'NaN' ? Number.NaN : Number(source));
  }
  if (Array.isArray(value)) return `[${value.map(show).join(', ')}]`;
  return `{${Object.entries(value as object)
    .map(([name, member]) => `${repr(name)}: ${show(member)}`)
    .join(', ')}}`;
}
