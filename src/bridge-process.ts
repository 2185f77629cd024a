/**
 * A server of somebody else's as a child process that speaks in lines, kept running: one that dies is started again, ever
 * later the more often it dies.
 *
 * @module
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { type LineReader, LineWriter, readLines } from './bridge-lines.ts';
import { TechnocoreError } from './errors.ts';
import { backoffMs, type Clock, systemClock } from './http.ts';

/** A process that lived so long, ms, is started again at once when it dies. */
const SETTLED_MS = 60_000;
/** What a process that is asked to end may take for it, ms, before it is made to. */
const GRACE_MS = 2000;
/** How often it is looked whether what a process left behind has ended, ms. */
const LOOK_MS = 50;
/** Processes that may end without a word, one after the other, before the command is taken for one that cannot work. */
const MAX_MUTE = 3;
/** Lines that are no messages, the last of a process of a command that never wrote one: kept to be shown. */
const MAX_WORDS = 5;
/** How long the last words of a process are waited for, ms: what it started may hold its output open. */
const LAST_WORDS_MS = 500;

/** What is told of the child. */
export interface ChildReader extends LineReader {
  /** A fresh process is there. */
  started(): void;
  /** It is gone; the next one comes after `againMs`. */
  stopped(why: string, againMs: number): void;
  /** Never did a process of this command write a message, and none is started any more. */
  failed(cause: TechnocoreError): void;
}

/** A command that is kept running. Its stderr is ours, its environment too but for the key in it. */
export class Child {
  readonly #command: string[];
  readonly #to: ChildReader;
  readonly #clock: Clock;
  readonly #random: (bytes: number) => Uint8Array;
  readonly #over = new AbortController();
  #process: ChildProcess | undefined;
  #writer: LineWriter | undefined;
  #failures = 0;
  /** What goes on after a process is gone, until all it started is gone too. */
  readonly #ending = new Set<Promise<void>>();
  /** Whether any process wrote a message: then the command works, and what ends it passes. */
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
   * @throws TechnocoreError `no_command`: it cannot be started at all
   */
  async start(): Promise<void> {
    const [file = '', ...args] = this.#command;
    // A group of its own, where there are groups: Ctrl-C is for us, who end it in good order; and what it starts ends
    // with it. The key is ours alone.
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
    // What its frames would go to may be a later process by then.
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
    if (this.#over.signal.aborted) child.stdin!.end();
    else this.#to.started();
  }

  /** Ends what a process that is gone started and left behind, as that would be ended itself. */
  async #endGroup(child: ChildProcess): Promise<void> {
    if (!kill(child, 'SIGTERM')) return;
    // While one of the group lives, its number is nobody else's.
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

  /** Sends a frame to the process that runs now. @throws TechnocoreError `closed`: none does, or it does not read */
  send(frame: object): Promise<void> {
    return this.#writer?.write(frame) ?? Promise.reject(new TechnocoreError('closed', 'the server is not running'));
  }

  /**
   * Ends the process, and what it started: they are told by the end of its input, then by a signal, then not asked any
   * more.
   */
  async close(): Promise<void> {
    this.#over.abort(new TechnocoreError('over', 'the bridge has ended'));
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
    // It ended just now.
    return false;
  }
}

/** Runs something when this process exits, however it comes to that short of being killed. @returns forgets that */
function whenWeExit(run: () => void): () => void {
  process.on('exit', run);
  return () => void process.off('exit', run);
}
