/**
 * What the services behind one local origin share: a request and its answer as data, free of sockets.
 *
 * @module
 */

/** Which release of the service a local service behaves as: the newest, or 0.7, whose answers were recorded. */
export type Profile = 'modern' | '0.7';

/** Bytes that a body may have. */
export const MAX_BODY: number = 262_144;

/** A request, wherever it came from. */
export interface Incoming {
  /** As sent. */
  readonly method: string;
  /** Path and query, still percent-encoded. */
  readonly target: string;
  /** Whose budget pays. */
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

/** The answer. A HEAD request gets it without the body. */
export interface Outgoing {
  readonly status: number;
  /** Names in lower case. */
  readonly headers: Record<string, string>;
  readonly body: string;
}

/** A text answer, ended by one newline, kept by nobody. */
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

/** An answer that is thrown. */
export class Refusal extends Error {
  readonly answer: Outgoing;
  constructor(status: number, body: string, headers?: Record<string, string>) {
    super(body);
    this.answer = plain(status, body, headers);
  }
}

/** Bytes of a text in UTF-8. */
export function utf8Length(text: string): number {
  if (!/[^\0-\x7f]/.test(text)) return text.length;
  let length = text.length;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    // A surrogate pair has two units and four bytes.
    if (unit >= 0x80) length += unit < 0x800 || (unit & 0xf800) === 0xd800 ? 1 : 2;
  }
  return length;
}

const lenient: TextDecoder = new TextDecoder('utf-8', { ignoreBOM: true });

/** Percent-decoding as the service does it: a bad escape stays, bytes that are not UTF-8 become U+FFFD. */
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

/** The parameters of a query, the last of each name; `+` is a blank. */
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
