import type { ChildProcess } from 'node:child_process';
import { until } from './support.ts';

/** What a process has written so far, and its exit code; null while it runs, and if a signal ended it. */
export interface Run {
  out: string;
  err: string;
  code: number | null;
}

/** A process that is followed from its start on, so that nobody waits for what has happened already. */
export class Running {
  readonly child: ChildProcess;
  readonly run: Run = { out: '', err: '', code: null };
  /** Resolves when it has ended. What it wrote last may still be on its way; what it started may go on. */
  readonly exited: Promise<[code: number | null, signal: NodeJS.Signals | null]>;
  /** Resolves when it has ended, and whoever else had its output, and all that they wrote is in `run`. */
  readonly done: Promise<Run>;
  #isOver = false;

  constructor(child: ChildProcess) {
    this.child = child;
    for (const [name, stream] of [['out', child.stdout] as const, ['err', child.stderr] as const])
      stream?.setEncoding('utf8').on('data', (part) => {
        this.run[name] += part;
      });
    this.exited = new Promise((resolve) => child.once('exit', (...how) => resolve(how)));
    this.done = new Promise((resolve) => {
      child.once('close', (code) => {
        this.run.code = code;
        this.#isOver = true;
        resolve(this.run);
      });
    });
  }

  /** The next message of a process that was forked, of those that are meant for somebody. @throws if it ends before */
  readonly tells = (isMine: (message: any) => boolean): Promise<any> => {
    let hear = (_: any): void => {};
    const heard = new Promise((resolve) => {
      hear = (message) => isMine(message) && resolve(message);
      this.child.on('message', hear);
    });
    const ended = this.exited.then((how) => {
      throw new Error(`it has ended before ${isMine}: ${how} ${JSON.stringify(this.run)}`);
    });
    return Promise.race([heard, ended]).finally(() => this.child.off('message', hear));
  };

  /** Waits until what it wrote is as it should be. @throws with all that it wrote, if it ends before */
  readonly shows = async (found: (run: Run) => unknown): Promise<void> => {
    await until(() => found(this.run) || this.#isOver);
    if (!found(this.run)) throw new Error(`it has ended before ${found}: ${JSON.stringify(this.run)}`);
  };
}
