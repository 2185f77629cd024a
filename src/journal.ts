/**
 * A state on disk as a log of JSON lines, each on disk before what it says is acted upon. The log is written anew when it
 * outgrows what it says. A line that was cut by a crash is the last one, and nobody has acted upon it. Any other line
 * that cannot be read is damage, and the file is refused. Needs Node (or Bun, Deno), and asks for it at call time only.
 *
 * @module
 */
import { type Clock, systemClock } from './clock.ts';
import { TechnocoreError, Unavailable } from './errors.ts';
import { Files, type Log, systemCode } from './files.ts';
import { encodeLong, type Json } from './frames.ts';

/** What a journal is about. */
export interface Journaled {
  /** What it is called in errors. */
  readonly what: string;
  /** The first line, without its end. */
  readonly header: string;
  /** The code of the error for a file that is damaged, or something else; and what that means to who sees it. */
  readonly damage: { code: string; meaning: string };
  /** Takes a line of the log. @returns false when it is none */
  restore(line: unknown): boolean;
  /** The fewest lines that make the state, each with its end. */
  lines(): string;
}

/** Bytes by which a log may outgrow what it says before it is written anew. */
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
   * Restores a state from its log, and writes the log anew.
   *
   * @param text what the log holds; undefined when there is none yet
   * @throws TechnocoreError of `damage`: the log is left as it is
   */
  static async open(
    of: Journaled,
    name: string,
    text: string | undefined,
    log: Log,
    release: () => Promise<void> = async () => {},
  ): Promise<Journal> {
    const header = `${of.header}\n`;
    // Shorter than its header, the file was cut before anything could have been written into it.
    if (text !== undefined && !header.startsWith(text)) {
      const lines = text.split('\n');
      // Empty after a whole line. After a cut one, its rest; whether that happens to be whole is of no importance.
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
   * {@link open} over a file, under a lock: one process has it at a time.
   *
   * @param path made when it is not there; its directory must be
   * @throws TechnocoreError of `damage`
   * @throws Unavailable another process has it, or the file system refuses, or there is none
   */
  static async openFile(of: Journaled, path: string, clock: Clock = systemClock): Promise<Journal> {
    const files = new Files();
    const release = await files.lock(`${path}.node-lock`, clock, undefined, (who) =>
      // There is nobody else to tell.
      globalThis.console?.warn(`technocore-rpc: waiting for ${path}, which ${who} has open`),
    );
    try {
      const file = await files.read(path);
      return await Journal.open(of, path, file?.text, files.log(path), release);
    } catch (cause) {
      await release();
      if (TechnocoreError.is(cause)) throw cause;
      throw new Unavailable(`${path} cannot be used: ${systemCode(cause) ?? cause}`, cause);
    }
  }

  /** @throws Unavailable the log could not be written, or is closed */
  check(): void {
    if (this.#failure) throw this.#failure;
  }

  /** Adds a line that goes to disk with the next one that is waited for. */
  add(line: Json): void {
    this.#waiting += `${encodeLong(line)}\n`;
  }

  /** Resolves once the line is on disk. Lines that come while another is being written share the next write. */
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
      // What is on disk now is not known; only who reads it anew can go on.
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
