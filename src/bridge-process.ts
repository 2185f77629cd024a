/**
 * A server as a child process that reads and writes lines. If it dies, it is restarted, with a growing delay.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { type LineReader, LineWriter, readLines } from './bridge-lines.ts';
import { TechnocoreError } from './errors.ts';
import { backoffMs, type Clock, systemClock } from './http.ts';

/** How long a process must live for the delay to start over, ms. */
const SETTLED_MS = 60_000;
/** How long a process may take to exit before it is killed, ms. */
const GRACE_MS = 2000;
/** How often it is checked whether the children of a process have exited, ms. */
const LOOK_MS = 50;
/** How many processes in a row may exit without a message before the command is given up. */
const MAX_MUTE = 3;
/** How many lines that are not messages are quoted in the error for such a command. */
const MAX_WORDS = 5;
/** How long to wait for the last output of a process, ms: its children may hold the output open. */
const LAST_WORDS_MS = 500;

/** Receives the lines of the child, and events about it. */
export interface ChildReader extends LineReader {
  /** A process has started. */
  started(): void;
  /** The process has exited; the next one starts after `againMs`. */
  stopped(why: string, againMs: number): void;
  /** No process of this command has ever written a message, and it is not restarted. */
  failed(cause: TechnocoreError): void;
}

/** A command that is kept running. It gets our stderr, and our environment without our key. */
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
  /** The cleanups after processes that have exited: each lasts until its children have exited too. */
  readonly #ending = new Set<Promise<void>>();
  /** Whether any process has written a message: then the command works, and is always restarted. */
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
   * @throws a {@link TechnocoreError} `no_command` if it cannot be started; `over` if it was closed before
   */
  start(): Promise<void> {
    return (this.#starting = this.#start());
  }

  async #start(): Promise<void> {
    this.#over.signal.throwIfAborted();
    const [file = '', ...args] = this.#command;
    // In its own process group, where there are groups: then Ctrl-C reaches only us, and we can end it in order,
    // together with its children. Our key is not passed on.
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
    // False once a later process has replaced this one: frames of this one no longer count.
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
        void this.#restart(signal ?? `code ${code}`, this.#clock.now() - begun);
      };
      child.once('close', gone);
      this.#clock.sleep(LAST_WORDS_MS, this.#over.signal).then(gone, () => {});
    });
    if (!this.#over.signal.aborted) this.#to.started();
  }

  /** Ends the children that a process has left behind, the same way as a process itself. */
  async #endGroup(child: ChildProcess): Promise<void> {
    if (!kill(child, 'SIGTERM')) return;
    // As long as a member of the group lives, the id of the group is not reused.
    for (let waited = 0; waited < GRACE_MS; waited += LOOK_MS) {
      await this.#clock.sleep(LOOK_MS);
      if (!kill(child, 0)) return;
    }
    kill(child, 'SIGKILL');
  }

  async #restart(why: string, livedMs: number): Promise<void> {
    if (this.#over.signal.aborted) return;
    this.#failures = livedMs >= SETTLED_MS ? 0 : this.#failures + 1;
    for (let reason = why; ; ) {
      if (!this.#isProved && this.#failures >= MAX_MUTE) {
        const words = this.#words.length === 0 ? '' : `; it wrote: ${this.#words.join(' / ')}`;
        const file = JSON.stringify(this.#command[0]);
        const ended = `${file} exited ${this.#failures} times without writing a message, the last time with ${reason}${words}`;
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
   * Sends a frame to the process. @throws a {@link TechnocoreError} `closed` if none is running, or it does not read
   */
  send(frame: object): Promise<void> {
    return this.#writer?.write(frame) ?? Promise.reject(new TechnocoreError('closed', 'the server is not running'));
  }

  /**
   * Ends the process and its children: by closing its input, then with SIGTERM, and finally with SIGKILL.
   */
  async close(): Promise<void> {
    this.#over.abort(new TechnocoreError('over', 'the bridge has ended'));
    // A process that is just starting must not be left behind.
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
 * Signals a process and its children; 0 only checks. Without process groups, only the process itself is reached.
 * @returns whether any of them is running
 */
function kill(child: ChildProcess, signal: NodeJS.Signals | 0): boolean {
  try {
    return process.platform === 'win32' ? child.kill(signal) : process.kill(-child.pid!, signal);
  } catch {
    // It has just exited.
    return false;
  }
}

/** Runs something when this process exits, unless it is killed. @returns a function that cancels that */
function whenWeExit(run: () => void): () => void {
  process.on('exit', run);
  return () => void process.off('exit', run);
}
