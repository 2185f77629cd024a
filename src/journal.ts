/**
 * A state on disk, as a log of JSON lines, each of which is on disk before anybody acts upon it. The log is rewritten
 * when it has become too long for the state. Only the last line can have been cut by a crash, and nobody has acted upon
 * that. Any other line that cannot be read is damage, and the file is refused. Needs Node (or Bun, Deno), for which it
 * asks at call time only.
 *
 * @module
 */
import { type Clock, systemClock } from './clock.ts';
import { TechnocoreError, Unavailable } from './errors.ts';
import { Files, type Log, systemCode } from './files.ts';
import { encodeLong, type Json } from './frames.ts';

/** A state that a journal keeps. */
export interface Journaled {
  /** The name of the state in errors. */
  readonly what: string;
  /** The first line, without a line end. */
  readonly header: string;
  /** The code of the error for a file that is damaged or something else, and what that means for the operator. */
  readonly damage: { code: string; meaning: string };
  /** Applies a line of the log. @returns false if it is not a valid line */
  restore(line: unknown): boolean;
  /** The shortest log that restores the state, each line with its end. */
  lines(): string;
}

/** How many bytes longer than necessary a log may become before it is rewritten. */
const SLACK = 1 << 20;

/** The log of a state. */
export class Journal {
  readonly #of: Journaled;
  readonly #log: Log;
  readonly #release: () => Promise<void>;
  #waiting = '';
  #next: Promise<void> | undefined;
  #last: Promise<void> = Promise.resolve();
  #length = 0;
  #compactAt = -1;
  #failure: TechnocoreError | undefined;

  private constructor(of: Journaled, log: Log, release: () => Promise<void>) {
    this.#of = of;
    this.#log = log;
    this.#release = release;
  }

  /**
   * Restores a state from its log, and rewrites the log.
   *
   * @param text what the log holds; undefined if there is none yet
   * @throws a {@link TechnocoreError} with the code of `damage`; the log is left as it is
   */
  static async open(
    of: Journaled,
    name: string,
    text: string | undefined,
    log: Log,
    release: () => Promise<void> = async () => {},
  ): Promise<Journal> {
    const header = `${of.header}\n`;
    // A file that is shorter than its header was cut before anything else was written into it.
    if (text !== undefined && !header.startsWith(text)) {
      const lines = text.split('\n');
      // Empty after a complete line; else the part of one that was cut. Nobody has acted upon it, even if it looks
      // complete.
      const rest = lines.pop()!;
      const damaged = lines.findIndex((line, i) => (i === 0 ? line !== of.header : !restored(of, line)));
      if (damaged >= 0 || lines.length === 0) {
        const { code, meaning } = of.damage;
        throw new TechnocoreError(
          code,
          `${name} is not a ${of.what}, or damaged in line ${Math.max(damaged, 0) + 1}, so ${meaning}`,
        );
      }
      restored(of, rest);
    }
    const journal = new Journal(of, log, release);
    await journal.#flush();
    return journal;
  }

  /**
   * {@link open} for a file, under a lock: one process has it at a time.
   *
   * @param path the file; created if it does not exist, in a directory that does
   * @throws a {@link TechnocoreError} with the code of `damage`
   * @throws an {@link Unavailable} if another process has it, or the file system refuses, or there is none
   */
  static async openFile(of: Journaled, path: string, clock: Clock = systemClock): Promise<Journal> {
    const files = new Files();
    const lock = `${path}.node-lock`;
    const release = await files.lock(lock, clock, undefined, (who) =>
      // On the console: there is no `onEvent` here.
      globalThis.console?.warn(`technocore-rpc: waiting for ${path}, which ${who} has open`),
    );
    try {
      await files.tidy(
        files.path.dirname(path),
        [path, lock].map((name) => files.path.basename(name)),
      );
      const file = await files.read(path);
      return await Journal.open(of, path, file?.text, files.log(path), release);
    } catch (cause) {
      await release();
      if (TechnocoreError.is(cause)) throw cause;
      throw new Unavailable(`${path} cannot be used: ${systemCode(cause) ?? cause}`, cause);
    }
  }

  /** @throws an {@link Unavailable} if the log could not be written before, or is closed */
  check(): void {
    if (this.#failure) throw this.#failure;
  }

  /** Adds a line, which is written together with the next one of {@link write}. */
  add(line: Json): void {
    this.#waiting += `${encodeLong(line)}\n`;
  }

  /** Writes a line; resolves once it is on disk. Lines that come while others are being written share the next write. */
  write(line: Json): Promise<void> {
    this.add(line);
    this.#next ??= this.#last.then(() => {
      this.#next = undefined;
      return this.#flush();
    });
    this.#last = this.#next.catch(() => {});
    return this.#next;
  }

  async #flush(): Promise<void> {
    this.check();
    const text = this.#waiting;
    this.#waiting = '';
    try {
      if (this.#length + text.length <= this.#compactAt) {
        if (text !== '') await this.#log.append(text);
        this.#length += text.length;
        return;
      }
      const lines = `${this.#of.header}\n${this.#of.lines()}`;
      await this.#log.replace(lines);
      this.#length = lines.length;
      this.#compactAt = 2 * lines.length + SLACK;
    } catch (cause) {
      // What is on disk is now unknown. To go on, the file must be opened again.
      this.#failure = new Unavailable(`the ${this.#of.what} cannot be written: ${systemCode(cause) ?? cause}`, cause);
      throw this.#failure;
    }
  }

  async close(): Promise<void> {
    try {
      await this.#last;
      if (!this.#failure) await this.#flush();
    } finally {
      this.#failure ??= new Unavailable(`the ${this.#of.what} is closed`);
      await this.#log.close();
      await this.#release();
    }
  }
}

function restored(of: Journaled, text: string): boolean {
  try {
    return of.restore(JSON.parse(text));
  } catch {
    return false;
  }
}
