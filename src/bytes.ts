/**
 * Binary-to-text codecs: hex, base64url, base64, base58, UTF-8. Every decoder is strict: it accepts one spelling per
 * value (hex also takes upper case) and returns undefined for anything else. None of them throws on a string.
 *
 * @module
 */

/** @internal Two lower-case digits for each byte. */
export const HEX: string[] = /* @__PURE__ */ Array.from({ length: 256 }, (_, byte) =>
  byte.toString(16).padStart(2, '0'),
);

/**
 * The value as a `Uint8Array` of this realm; undefined if it is not one of any realm. Test runners, for example, have
 * realms, and so classes, of their own.
 */
export function bytesOf(value: unknown): Uint8Array | undefined {
  if (value instanceof Uint8Array) return value;
  if (!ArrayBuffer.isView(value) || (value as Uint8Array)[Symbol.toStringTag] !== 'Uint8Array') return undefined;
  return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
}

/** Lower-case hex. */
export function toHex(bytes: Uint8Array): string {
  let text = '';
  for (let i = 0; i < bytes.length; i++) text += HEX[bytes[i]!];
  return text;
}

// -1 if it is not a digit; the sign survives the shift and the `|` below.
function hexDigit(code: number): number {
  const letter = code | 32;
  return code >= 48 && code <= 57 ? code - 48 : letter >= 97 && letter <= 102 ? letter - 87 : -1;
}

/** Decodes an even number of hex digits, in either case. */
export function fromHex(text: string): Uint8Array | undefined {
  if (text.length % 2 !== 0) return undefined;
  const bytes = new Uint8Array(text.length / 2);
  for (let i = 0; i < bytes.length; i++) {
    const byte = (hexDigit(text.charCodeAt(2 * i)) << 4) | hexDigit(text.charCodeAt(2 * i + 1));
    if (byte < 0) return undefined;
    bytes[i] = byte;
  }
  return bytes;
}

/** The 64 digits of base64url. */
export const BASE64URL = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';

function encode64(bytes: Uint8Array): string {
  let text = '';
  let bits = 0;
  let held = 0;
  for (let i = 0; i < bytes.length; i++) {
    held = (held << 8) | bytes[i]!;
    for (bits += 8; bits >= 6; ) text += BASE64URL[(held >> (bits -= 6)) & 63];
    held &= 63;
  }
  return bits === 0 ? text : text + BASE64URL[(held << (6 - bits)) & 63];
}

function decode64(text: string, plus: number, slash: number): Uint8Array | undefined {
  if (text.length % 4 === 1) return undefined;
  const bytes = new Uint8Array((text.length * 3) >> 2);
  let at = 0;
  let bits = 0;
  let held = 0;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    let digit: number;
    if (code >= 97 && code <= 122) digit = code - 71;
    else if (code >= 65 && code <= 90) digit = code - 65;
    else if (code >= 48 && code <= 57) digit = code + 4;
    else if (code === plus) digit = 62;
    else if (code === slash) digit = 63;
    else return undefined;
    held = ((held << 6) | digit) & 0xfff;
    bits += 6;
    if (bits >= 8) bytes[at++] = held >> (bits -= 8);
  }
  // The spare bits of the last digit must be zero, or the same bytes would have several spellings.
  return (held & ((1 << bits) - 1)) === 0 ? bytes : undefined;
}

// The part of Node's Buffer that is used here; the library compiles without Node's types.
type Encoding = 'base64' | 'base64url';
type NodeBuffer = Uint8Array<ArrayBuffer> & {
  toString(encoding: Encoding): string;
  write(text: string, encoding: Encoding): number;
};
interface BufferClass {
  from(bytes: ArrayBufferLike, offset: number, length: number): NodeBuffer;
  from(text: string, encoding: Encoding): NodeBuffer;
  byteLength(text: string): number;
}

/**
 * From this many bytes on, the codec built into Node and Bun is faster than ours: 10 times at 1 KB.
 */
const NATIVE_FROM = 48;

let buffer: BufferClass | null | undefined;

function nodeBuffer(): BufferClass | null {
  if (buffer === undefined) {
    const { process } = globalThis as {
      process?: { getBuiltinModule?(id: string): { Buffer: BufferClass } | undefined };
    };
    buffer = process?.getBuiltinModule?.('node:buffer')?.Buffer ?? null;
  }
  return buffer;
}

const nativeFor = (bytes: number): BufferClass | null => (bytes < NATIVE_FROM ? null : nodeBuffer());

function nativeText(native: BufferClass, bytes: Uint8Array, encoding: Encoding): string {
  return native.from(bytes.buffer, bytes.byteOffset, bytes.length).toString(encoding);
}

// Node's decoder is lenient: only the canonical spelling survives a round trip.
function nativeBytes(native: BufferClass, text: string, encoding: Encoding): Uint8Array | undefined {
  const bytes = native.from(text, encoding);
  return bytes.toString(encoding) === text ? new Uint8Array(bytes) : undefined;
}

/** Base64url without padding (RFC 4648, section 5). */
export function toBase64url(bytes: Uint8Array): string {
  const native = nativeFor(bytes.length);
  return native ? nativeText(native, bytes, 'base64url') : encode64(bytes);
}

/**
 * Decodes unpadded base64url; undefined also when the last digit has spare bits set.
 *
 * @param into a scratch buffer that saves an allocation for long input: the result may then be a view of its beginning,
 * and its previous contents are lost
 */
export function fromBase64url(text: string, into?: Uint8Array): Uint8Array | undefined {
  const length = (text.length * 3) >> 2;
  const native = nativeFor(length);
  if (!native) return decode64(text, 45, 95);
  if (into && text.length <= into.length) {
    // Node also accepts `+` and `/`, skips what is not a digit, and reads only the low byte of a non-ASCII character.
    const ascii = encoder.encodeInto(text, into).written === text.length && !text.includes('+') && !text.includes('/');
    const written = native.from(into.buffer, into.byteOffset, into.length).write(text, 'base64url');
    const tail = decode64(text.slice(text.length & ~3), 45, 95);
    return ascii && written === length && tail ? into.subarray(0, length) : undefined;
  }
  return nativeBytes(native, text, 'base64url');
}

/** Replaces the digits of base64url by those of standard base64. */
export function withPlus(text: string): string {
  return text.replaceAll('-', '+').replaceAll('_', '/');
}

/** Standard base64 with padding (RFC 4648, section 4). */
export function toBase64(bytes: Uint8Array): string {
  const native = nativeFor(bytes.length);
  if (native) return nativeText(native, bytes, 'base64');
  const text = withPlus(encode64(bytes));
  return text.padEnd((text.length + 3) & ~3, '=');
}

/** Decodes padded standard base64; undefined also when padding is missing or spare bits are set. */
export function fromBase64(text: string): Uint8Array | undefined {
  if (text.length % 4 !== 0) return undefined;
  const native = nativeFor((text.length * 3) >> 2);
  return native ? nativeBytes(native, text, 'base64') : decode64(text.replace(/={1,2}$/, ''), 43, 47);
}

const BASE58 = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';

/** Base58 with Bitcoin's alphabet. Takes quadratic time, so use it for keys only. */
export function toBase58(bytes: Uint8Array): string {
  let text = '';
  for (let n = BigInt(`0x0${toHex(bytes)}`); n > 0n; n /= 58n) text = BASE58[Number(n % 58n)] + text;
  for (let i = 0; bytes[i] === 0; i++) text = `1${text}`;
  return text;
}

/** Decodes base58. Takes quadratic time, so limit the length of untrusted input. */
export function fromBase58(text: string): Uint8Array | undefined {
  let n = 0n;
  for (const char of text) {
    const digit = BASE58.indexOf(char);
    if (digit < 0) return undefined;
    n = n * 58n + BigInt(digit);
  }
  const hex = n === 0n ? '' : n.toString(16);
  const zeros = text.search(/[^1]|$/);
  return concat(new Uint8Array(zeros), fromHex(hex.length % 2 === 0 ? hex : `0${hex}`)!);
}

const encoder: TextEncoder = /* @__PURE__ */ new TextEncoder();
// `ignoreBOM` means that a BOM stays in the text.
const decoder: TextDecoder = /* @__PURE__ */ new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** False if the text has a lone surrogate, which has no UTF-8 form. */
export function isWellFormed(text: string): boolean {
  return !/\p{Cs}/u.test(text);
}

/** Encodes UTF-8; a lone surrogate becomes U+FFFD, as everywhere on the web platform. */
export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Decodes UTF-8 and keeps a leading BOM; undefined if the bytes are not valid UTF-8. */
export function fromUtf8(bytes: Uint8Array): string | undefined {
  try {
    return decoder.decode(bytes);
  } catch {
    return undefined;
  }
}

/** Concatenates the parts into a new array. */
export function concat(...parts: Uint8Array[]): Uint8Array {
  let length = 0;
  for (const part of parts) length += part.length;
  const all = new Uint8Array(length);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** Compares in time that depends only on the lengths. */
export function equalBytes(a: Uint8Array, b: Uint8Array): boolean {
  let differing = a.length ^ b.length;
  for (let i = 0; i < a.length && i < b.length; i++) differing |= a[i]! ^ b[i]!;
  return differing === 0;
}

/** Whether a text holds only U+0000 to U+007E: DEL does not count as ASCII here. */
export function isAscii(text: string): boolean {
  const native = nodeBuffer();
  // Counting bytes with Node takes half the time of a regular expression.
  return native ? native.byteLength(text) === text.length && !text.includes('\x7f') : !/[^\0-~]/.test(text);
}
