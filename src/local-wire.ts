/**
 * Requests and answers as plain data, independent of sockets. Shared by the room service and the relay.
 *
 * @module
 */

/** The release to behave like: the newest, or 0.7, whose answers were recorded. */
export type Profile = 'modern' | '0.7';

/** Maximum bytes of a request body. */
export const MAX_BODY: number = 262_144;

/** A request. */
export interface Incoming {
  /** The method as sent. */
  readonly method: string;
  /** Path and query, still percent-encoded. */
  readonly target: string;
  /** The address of the caller, for the rate limits. */
  readonly address: string;
  /** Scheme and authority, for absolute links. */
  readonly origin: string;
  /** Aborts when the caller hangs up. */
  readonly signal: AbortSignal | undefined;
  /** A header by its lower-case name. */
  header(name: string): string | undefined;
  /** The whole body; undefined as soon as it is known to have more than `limit` bytes. */
  body(limit: number): Uint8Array | undefined | Promise<Uint8Array | undefined>;
}

/** The answer to a request. For a HEAD request, the body is not sent. */
export interface Outgoing {
  readonly status: number;
  /** The headers, by lower-case name. */
  readonly headers: Record<string, string>;
  readonly body: string;
}

/** An answer in plain text, ended by one newline, that no cache may store. */
export function plain(status: number, body: string, headers: Record<string, string> = {}): Outgoing {
  return {
    status,
    headers: {
      'content-type': 'text/plain; charset=utf-8',
      'cache-control': 'no-store',
      'x-content-type-options': 'nosniff',
      'x-robots-tag': 'noindex',
      ...headers,
    },
    body: body.endsWith('\n') ? body : `${body}\n`,
  };
}

/** An error that carries the answer to send. */
export class Refusal extends Error {
  readonly answer: Outgoing;
  constructor(status: number, body: string, headers?: Record<string, string>) {
    super(body);
    this.answer = plain(status, body, headers);
  }
}

/** The length of a text in UTF-8, bytes. */
export function utf8Length(text: string): number {
  if (!/[^\0-\x7f]/.test(text)) return text.length;
  let length = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    // A surrogate pair has two UTF-16 units and four bytes, so each unit counts two.
    if (unit >= 0x80) length += unit < 0x800 || (unit & 0xf800) === 0xd800 ? 1 : 2;
  }
  return length;
}

const lenient: TextDecoder = new TextDecoder('utf-8', { ignoreBOM: true });

/** Percent-decodes like the service: a bad escape stays, bytes that are not UTF-8 become U+FFFD. */
export function unescapePercent(text: string): string {
  if (!text.includes('%')) return text;
  try {
    return decodeURIComponent(text);
  } catch {
    const bytes: number[] = [];
    for (let i = 0; i < text.length; i++) {
      const hex = /^%([\da-f]{2})/i.exec(text.slice(i, i + 3));
      // A request target is ASCII, so a unit is a byte.
      bytes.push(hex ? Number.parseInt(hex[1]!, 16) : text.charCodeAt(i));
      if (hex) i += 2;
    }
    return lenient.decode(Uint8Array.from(bytes));
  }
}

/** The parameters of a query, the last of each name; `+` is a space. */
export function queryOf(text: string): Map<string, string> {
  const query = new Map<string, string>();
  if (text === '') return query;
  const decode = (part: string): string => unescapePercent(part.replaceAll('+', ' '));
  for (const pair of text.split('&')) {
    if (pair === '') continue;
    const at = pair.indexOf('=');
    if (at < 0) query.set(decode(pair), '');
    else query.set(decode(pair.slice(0, at)), decode(pair.slice(at + 1)));
  }
  return query;
}
