/**
 * Somebody else's server as a child process that reads and writes lines. One that dies is started again, the later the
 * more often it dies.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { type LineReader, LineWriter, readLines } from './bridge-lines.ts';
import { TechnocoreError } from './errors.ts';
import { backoffMs, type Clock, systemClock } from './http.ts';

/** How long a process must live to be started again at once when it dies, ms. */
const SETTLED_MS = 60_000;
/** How long a process may take to end before it is killed, ms. */
const GRACE_MS = 2000;
/** How often it is checked whether what a process left behind has ended, ms. */
const LOOK_MS = 50;
/** How many processes in a row may end without a message before the command is given up. */
const MAX_MUTE = 3;
/** Lines that are no messages, the last of a process of a command that never wrote one: kept to be shown. */
const MAX_WORDS = 5;
/** How long the last output of a process is waited for, ms: what it started may hold the output open. */
const LAST_WORDS_MS = 500;

/** What is told about the child. */
export interface ChildReader extends LineReader {
  /** A new process has been started. */
  started(): void;
  /** The process has ended; the next one is started after `againMs`. */
  stopped(why: string, againMs: number): void;
  /** No process of this command ever wrote a message, and no other is started. */
  failed(cause: TechnocoreError): void;
}

/** A command that is kept running. It has our stderr, and our environment except for the key in it. */
export class Child {
  readonly #command: string[];
  readonly #to: ChildReader;
  readonly #clock: Clock;
  readonly #random: (bytes: number) => Uint8Array;
  readonly #over = new AbortController();
  #starting: Promise<void> | undefined;
  #process: ChildProcess | undefined;
  #writer: LineWriter | undefined;
  #failures = 0;
  /** What goes on after a process has ended, until all that it started has ended too. */
  readonly #ending = new Set<Promise<void>>();
  /** Whether any process has written a message: then the command works, and is always started again. */
  #isProved = false;
  #words: string[] = [];

  constructor(command: string[], to: ChildReader, o: { clock?: Clock; random?: (bytes: number) => Uint8Array } = {}) {
    this.#command = command;
    this.#to = to;
    this.#clock = o.clock ?? systemClock;
    this.#random = o.random ?? ((n) => crypto.getRandomValues(new Uint8Array(n)));
  }

  /**
   * Starts the command, and keeps it running until {@link close}.
   *
   * @throws a {@link TechnocoreError} `no_command` if it cannot be started at all; `over` if it was closed before
   */
  start(): Promise<void> {
    return (this.#starting = this.#start());
  }

  async #start(): Promise<void> {
    this.#over.signal.throwIfAborted();
    const [file = '', ...args] = this.#command;
    // In a process group of its own, where there are groups: then Ctrl-C reaches only us, and we end it in order,
    // together with all that it started. Our key is not passed on.
    const { SIGN_SEED: _, ...env } = process.env;
    const detached = process.platform !== 'win32';
    const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'], detached, env });
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve);
      child.once('error', (cause) =>
        reject(new TechnocoreError('no_command', `${file} cannot be started: ${cause.message}`, cause)),
      );
    });
    const forget = whenWeExit(() => kill(child, 'SIGKILL'));
    this.#process = child;
    this.#writer = new LineWriter(child.stdin!);
    this.#words = [];
    const begun = this.#clock.now();
    // By then there may be a later process, which must not get its frames.
    const mine = (): boolean => this.#process === child;
    readLines(
      child.stdout!,
      {
        frame: (frame) => {
          if (!mine()) return;
          this.#isProved = true;
          this.#to.frame(frame);
        },
        junk: (begin) => {
          if (!mine()) return;
          if (!this.#isProved) this.#words = [...this.#words, begin].slice(-MAX_WORDS);
          this.#to.junk?.(begin);
        },
        tooLong: (bytes, id) => mine() && this.#to.tooLong?.(bytes, id),
      },
      () => {},
    );
    child.on('error', () => {});
    child.once('exit', (code, signal) => {
      const ending = this.#endGroup(child).finally(() => {
        forget();
        this.#ending.delete(ending);
      });
      this.#ending.add(ending);
      const gone = (): void => {
        if (!mine()) return;
        this.#process = undefined;
        this.#writer = undefined;
        void this.#again(signal ?? `code ${code}`, this.#clock.now() - begun);
      };
      child.once('close', gone);
      this.#clock.sleep(LAST_WORDS_MS, this.#over.signal).then(gone, () => {});
    });
    if (!this.#over.signal.aborted) this.#to.started();
  }

  /** Ends what an ended process has started and left behind, in the same way as a process itself. */
  async #endGroup(child: ChildProcess): Promise<void> {
    if (!kill(child, 'SIGTERM')) return;
    // As long as one of the group lives, its number is not reused.
    for (let waited = 0; waited < GRACE_MS; waited += LOOK_MS) {
      await this.#clock.sleep(LOOK_MS);
      if (!kill(child, 0)) return;
    }
    kill(child, 'SIGKILL');
  }

  async #again(why: string, livedMs: number): Promise<void> {
    if (this.#over.signal.aborted) return;
    this.#failures = livedMs >= SETTLED_MS ? 0 : this.#failures + 1;
    for (let reason = why; ; ) {
      if (!this.#isProved && this.#failures >= MAX_MUTE) {
        const words = this.#words.length === 0 ? '' : `; it wrote: ${this.#words.join(' / ')}`;
        const file = JSON.stringify(this.#command[0]);
        const ended = `${file} ended ${this.#failures} times without a message, at last with ${reason}${words}`;
        this.#to.failed(new TechnocoreError('no_server', ended));
        return;
      }
      const againMs = backoffMs(this.#failures, undefined, this.#random);
      this.#to.stopped(reason, againMs);
      try {
        await this.#clock.sleep(againMs, this.#over.signal);
        return await this.start();
      } catch (cause) {
        if (this.#over.signal.aborted) return;
        this.#failures++;
        reason = (cause as Error).message;
      }
    }
  }

  /**
   * Sends a frame to the present process. @throws a {@link TechnocoreError} `closed` if there is none, or it does not
   * read
   */
  send(frame: object): Promise<void> {
    return this.#writer?.write(frame) ?? Promise.reject(new TechnocoreError('closed', 'the server is not running'));
  }

  /**
   * Ends the process and what it started: by the end of its input, then by a signal, and in the end by killing it.
   */
  async close(): Promise<void> {
    this.#over.abort(new TechnocoreError('over', 'the bridge has ended'));
    // One that is being started right now must not be left behind.
    await this.#starting?.catch(() => {});
    const child = this.#process;
    if (child && child.exitCode === null && child.signalCode === null) {
      const exit = new Promise<void>((resolve) => child.once('exit', () => resolve()));
      child.stdin!.end();
      for (const signal of ['SIGTERM', 'SIGKILL'] as const) {
        const timer = new AbortController();
        const late = this.#clock.sleep(GRACE_MS, timer.signal).then(
          () => true,
          () => false,
        );
        const isLate = await Promise.race([exit.then(() => false), late]);
        timer.abort();
        if (!isLate) break;
        kill(child, signal);
      }
      await exit;
    }
    await Promise.all(this.#ending);
  }
}

/**
 * Signals a process and all it started, 0: only looks. Without groups only itself is reached. @returns whether anybody
 * was there
 */
function kill(child: ChildProcess, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.platform === 'win32' ? child.kill(signal) : process.kill(-child.pid!, signal);
  } catch {
    // It has just ended.
    return false;
  }
}

/** Runs something when this process exits, unless it is killed. @returns a function that cancels that */
function whenWeExit(run: () => void): () => void {
  process.on('exit', run);
  return () => void process.off('exit', run);
}
