/**
 * Persistent state as a write-ahead log of JSON lines: each line is on disk before anybody acts on it. The log is
 * compacted when it has grown too long for the state. A crash can truncate only the last line, which nobody has acted
 * on. Any other unreadable line is damage, and the file is refused. Needs Node, Bun or Deno, which is looked up at call
 * time only.
 *
 * @module
 */
import { type Clock, systemClock } from './clock.ts';
import { TechnocoreError, Unavailable } from './errors.ts';
import { Files, type Log, systemCode } from './files.ts';
import { encodeLong, type Json } from './frames.ts';

/** State that a journal persists. */
export interface Journaled {
  /** What the state is called in errors. */
  readonly what: string;
  /** The first line of the log, without a line break. */
  readonly header: string;
  /** The error code for a file that is damaged or something else, and what that means for the operator. */
  readonly damage: { code: string; meaning: string };
  /** Applies a line of the log. @returns false if the line is not valid */
  restore(line: unknown): boolean;
  /** The shortest log that restores the state, each line with its line break. */
  lines(): string;
}

/** How much longer than twice its minimum length a log may become before it is compacted, bytes. */
const SLACK = 1 << 20;

/** The log of some state. */
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
   * Restores state from its log, and compacts the log.
   *
   * @param text the contents of the log; undefined if there is none yet
   * @throws a {@link TechnocoreError} with the code of `damage`; the log is left unchanged
   */
  static async open(
    of: Journaled,
    name: string,
    text: string | undefined,
    log: Log,
    release: () => Promise<void> = async () => {},
  ): Promise<Journal> {
    const header = `${of.header}\n`;
    // A file that is shorter than its header was truncated before anything else was written.
    if (text !== undefined && !header.startsWith(text)) {
      const lines = text.split('\n');
      // Empty after a complete line, else a truncated one. Nobody has acted on it, even if it looks complete.
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
   * {@link open} for a file, under a lock that lets one process have it at a time.
   *
   * @param path the file; created if it does not exist, but its directory must
   * @throws a {@link TechnocoreError} with the code of `damage`
   * @throws an {@link Unavailable} if another process has it open, or if the file system refuses or is missing
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

  /** @throws an {@link Unavailable} if an earlier write failed, or the log is closed */
  check(): void {
    if (this.#failure) throw this.#failure;
  }

  /** Adds a line, to be written together with the next {@link write}. */
  add(line: Json): void {
    this.#waiting += `${encodeLong(line)}\n`;
  }

  /** Writes a line; resolves once it is on disk. Lines added while a write is under way share the next one. */
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
      // What is on disk is now unknown, so the file must be reopened before anything else is written.
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
