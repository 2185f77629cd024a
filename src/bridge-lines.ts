/**
 * JSON-RPC as lines: the framing of MCP's stdio, in both directions and with limits. A bad line is skipped; the lines
 * after it are not affected.
 *
 * @module
 */
import type { Readable, Writable } from 'node:stream';
import { TechnocoreError } from './errors.ts';
import { decode, type Frame } from './frames.ts';

/** Maximum bytes of one line. A room carries far less; up to here, a line that is too long can be answered. */
const MAX_LINE = 16 << 20;
/** How many bytes at each end of a longer line are searched for its id. */
const ENDS = 256;
/** How many bytes may wait for a reader that does not read. */
const MAX_UNREAD = 64 << 20;

const NEWLINE = 0x0a;

/** Receives the lines. */
export interface LineReader {
  /** Takes a line that holds a JSON object or array. */
  frame(frame: Frame): void;
  /** Takes the first characters of any other line. */
  junk?(start: string): void;
  /** Called for a line that is too long, with its id if that is at one of its ends. */
  tooLong?(bytes: number, id: string | number | undefined): void;
}

/** Splits a stream of bytes into lines. */
export class Lines {
  readonly #to: LineReader;
  readonly #max: number;
  #parts: Uint8Array[] = [];
  #bytes = 0;
  /** The first bytes, and the last ones so far, of a line that is too long. */
  #head: Uint8Array | undefined;
  #tail: Uint8Array = new Uint8Array();

  constructor(to: LineReader, max: number = MAX_LINE) {
    this.#to = to;
    this.#max = max;
  }

  push(chunk: Uint8Array): void {
    let from = 0;
    for (;;) {
      const at = chunk.indexOf(NEWLINE, from);
      this.#add(chunk.subarray(from, at < 0 ? chunk.length : at));
      if (at < 0) return;
      this.#end();
      from = at + 1;
    }
  }

  #add(part: Uint8Array): void {
    if (part.length === 0) return;
    this.#bytes += part.length;
    this.#parts.push(part);
    if (this.#bytes <= this.#max) return;
    const line = Buffer.concat(this.#parts);
    this.#parts = [];
    this.#head ??= Uint8Array.prototype.slice.call(line, 0, ENDS);
    this.#tail = Uint8Array.prototype.slice.call(Buffer.concat([this.#tail, line]), -ENDS);
  }

  #end(): void {
    const [head, bytes] = [this.#head, this.#bytes];
    const line = Buffer.concat(this.#parts);
    this.#parts = [];
    this.#bytes = 0;
    this.#head = undefined;
    if (head) {
      this.#to.tooLong?.(bytes, idAtAnEnd(textOf(head), textOf(this.#tail).trimEnd()));
      this.#tail = new Uint8Array();
      return;
    }
    const text = textOf(line).trim();
    if (text === '') return;
    const frame = decode(text);
    if (frame) this.#to.frame(frame);
    else this.#to.junk?.(text.slice(0, 200));
  }
}

const textOf = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);

/**
 * The id of a response of which only the ends are known. Right at the start or the end it can only be that of the
 * outermost object: anything nested is closed by more than one brace.
 */
function idAtAnEnd(head: string, tail: string): string | number | undefined {
  const [, id] =
    /^\{"jsonrpc":"2\.0","id":(\d{1,15}|"[^"\\]{1,100}"),/.exec(head) ??
    /,"id":(\d{1,15}|"[^"\\]{1,100}")(?:,"jsonrpc":"2\.0")?\}$/.exec(tail) ??
    [];
  return id === undefined ? undefined : JSON.parse(id);
}

/** Writes frames as lines, in order. */
export class LineWriter {
  readonly #stream: Writable;

  constructor(stream: Writable) {
    this.#stream = stream;
    // The reader may go away at any time. Each write reports that error itself.
    stream.on('error', () => {});
  }

  /**
   * Writes a line. Resolves once the stream has taken it.
   *
   * @throws a {@link TechnocoreError} `closed` if the reader is gone, or too much is unread
   */
  write(frame: object): Promise<void> {
    const stream = this.#stream;
    if (stream.writableLength > MAX_UNREAD) return Promise.reject(closed('the other side does not read'));
    return new Promise((resolve, reject) => {
      if (!stream.writable) reject(closed('the other side is gone'));
      else
        stream.write(`${JSON.stringify(frame)}\n`, (cause) =>
          cause ? reject(closed(cause.message, cause)) : resolve(),
        );
    });
  }
}

const closed = (why: string, cause?: unknown): TechnocoreError => new TechnocoreError('closed', why, cause);

/** Reads lines from a stream until it ends. */
export function readLines(stream: Readable, to: LineReader, onEnd: () => void): void {
  const lines = new Lines(to);
  let ended = false;
  const end = (): void => {
    if (!ended) onEnd();
    ended = true;
  };
  stream.on('data', (chunk: Buffer) => lines.push(chunk));
  stream.once('end', end);
  stream.once('close', end);
  stream.on('error', end);
}
