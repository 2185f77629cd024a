/**
 * Files that survive a crash, and locks that survive their owner. Needs Node, Bun or Deno, which is looked up at call
 * time only.
 *
 * A lock `<path>` is a second hard link to an entry, a file named `<path>.<owner>` that tells who holds it:
 *
 * - To take it: create our own entry and link `<path>` to it. The link tests, sets and signs the lock in one step.
 * - To release it: unlink `<path>`, then the entry.
 * - To take it over: rename the dead owner's entry to our own. Of several processes that try, one succeeds, and the others
 *   find nothing to rename. The winner holds the lock; if it dies as well, its entry is the next one to be renamed.
 *
 * So only the process whose entry is the same file ever unlinks `<path>`. Nobody can check one owner and then remove
 * the lock of the next. A process may be killed between any two steps.
 *
 * Lock code awaits every file operation, although most are synchronous: a test passes asynchronous ones to interleave
 * several processes.
 *
 * @module
 */
import { toHex, utf8 } from './bytes.ts';
import { randomBytes, sha256 } from './crypto.ts';
import { TechnocoreError, Unavailable } from './errors.ts';
import { type Clock, randomFloat } from './http.ts';

// The part of Node that is used here; the library compiles without Node's types. Operations on names take microseconds,
// less than a trip to the thread pool, so they are synchronous; operations that wait for the disk are not.
interface Handle {
  writeFile(text: string): Promise<void>;
  sync(): Promise<void>;
  close(): Promise<void>;
}
interface Fs {
  readonly constants: { O_RDONLY: number; O_NONBLOCK?: number };
  openSync(path: string, flags: string | number, mode?: number): number;
  closeSync(file: number): void;
  fstatSync(file: number): { mode: number; size: number; isFile(): boolean; isDirectory(): boolean };
  fsync(file: number, done: (error: unknown) => void): void;
  writeFileSync(file: number, text: string): void;
  readFileSync(file: number | string, encoding: 'utf8'): string;
  readlinkSync(path: string): string;
  readdirSync(path: string): string[];
  statSync(path: string, options: { bigint: true }): { ino: bigint; isDirectory(): boolean };
  linkSync(from: string, to: string): void;
  renameSync(from: string, to: string): void;
  unlinkSync(path: string): void;
  mkdirSync(path: string, options: { mode: number }): void;
  readonly promises: { open(path: string, flags: string, mode: number): Promise<Handle> };
}
interface Path {
  resolve(...parts: string[]): string;
  dirname(path: string): string;
  basename(path: string): string;
}
interface Os {
  hostname(): string;
  homedir(): string;
}
interface Process {
  readonly pid: number;
  readonly platform: string;
  kill(pid: number, signal: 0): void;
  getBuiltinModule?(id: string): unknown;
}

/** The code of a system error, `ENOENT` and the like. */
export function systemCode(e: unknown): string | undefined {
  const code = (e as { code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : undefined;
}

/** The maximum size of a file: V8 has no longer strings. */
const MAX_BYTES = 2 ** 29;

/** An error in the form of a system error, for a file that we refuse to read. */
const unusable = (path: string, code: string): Error => Object.assign(new Error(`${path}: ${code}`), { code });

/** The error for platforms without a file system, such as browsers and Workers. */
export const noFileSystem = (): Unavailable =>
  new Unavailable('there is no file system here: this needs Node, Bun or Deno');

/** Whether this is Cloudflare Workers, where `node:fs` loses all files at the end of a request. */
const isWorkerd = (): boolean =>
  (globalThis as { navigator?: { userAgent?: string } }).navigator?.userAgent === 'Cloudflare-Workers';

/** The error to throw for a system error: one of ours if a runtime with permissions (Deno) denied access. */
function refusalOf(cause: unknown): unknown {
  const { name, message } = (cause ?? {}) as { name?: unknown; message?: unknown };
  return name === 'NotCapable' ? new Unavailable(`this program has no permission: ${message}`, cause) : cause;
}

/** Wraps a built-in module so that its errors pass through {@link refusalOf}. */
function permitted<T extends object>(module: T): T {
  // The target is not the module itself: a proxy must return the fixed properties of its target unchanged.
  return new Proxy({} as T, {
    get(_, name) {
      const member: unknown = Reflect.get(module, name);
      if (typeof member === 'object' && member !== null) return permitted(member);
      if (typeof member !== 'function') return member;
      return (...args: unknown[]): unknown => {
        try {
          const result: unknown = Reflect.apply(member, module, args);
          if (!(result instanceof Promise)) return result;
          return result.catch((cause) => {
            throw refusalOf(cause);
          });
        } catch (cause) {
          throw refusalOf(cause);
        }
      };
    },
  });
}

/** The result of `work`; undefined if it fails with one of the codes. */
async function unless<T>(codes: string[], work: () => T | Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (e) {
    if (codes.includes(systemCode(e) ?? '')) return undefined;
    throw e;
  }
}

/**
 * The identity of a process, as it appears in file names. Members are empty where the platform does not provide them.
 */
interface Owner {
  readonly pid: string;
  /** When the process started, in ticks since boot: a pid may be reused, the pair is not. */
  readonly start: string;
  /** An id of the machine's current boot. */
  readonly boot: string;
  /** The pid namespace, outside of which the pid means nothing. */
  readonly space: string;
  /** A hash that identifies the machine. */
  readonly host: string;
}

/** A file that names its owner: a lock's entry, or with `.tmp` a file not yet in its place. */
interface Owned extends Owner {
  /** The name of the lock or file to which it belongs. */
  readonly base: string;
  readonly temporary?: string;
}
const OWNED =
  /^(?<base>.+)\.(?<pid>\d+)-(?<start>\d*)-(?<boot>[0-9a-f]*)-(?<space>\d*)-(?<host>[0-9a-f]+)-[0-9a-f]{12}(?<temporary>\.tmp)?$/;

/** An append-only file. When a promise resolves, the text is on disk. One call at a time. */
export interface Log {
  append(text: string): Promise<void>;
  /** Atomically replaces the whole text. */
  replace(text: string): Promise<void>;
  close(): Promise<void>;
}

/** How long to wait for a lock, ms, and how long before `onWait` is called. */
const PATIENCE_MS = 30_000;
const SILENCE_MS = 2000;

/** The files of this machine, as this process sees them. */
export class Files {
  readonly #fs: Fs;
  readonly #process: Process;
  readonly path: Path;
  readonly os: Os;
  readonly #me: Owner;

  /** @throws an {@link Unavailable} if there is no file system (a browser, a Worker), or no permission to use it */
  constructor() {
    const { process } = globalThis as { process?: Process };
    const builtin = <T>(id: string): T => {
      const module = isWorkerd() ? undefined : process?.getBuiltinModule?.(id);
      if (module === undefined) throw noFileSystem();
      return permitted(module as T & object);
    };
    this.#fs = builtin<Fs>('node:fs');
    this.path = builtin<Path>('node:path');
    this.os = builtin<Os>('node:os');
    this.#process = process!;
    const first = (read: () => string): string => {
      try {
        return read();
      } catch {
        return '';
      }
    };
    const machine = first(() => this.#fs.readFileSync('/etc/machine-id', 'utf8'));
    const pid = String(process!.pid);
    this.#me = {
      pid,
      // A /proc of another pid namespace would describe other processes.
      start: first(() => this.#fs.readlinkSync('/proc/self')) === pid ? (this.#running(pid)?.start ?? '') : '',
      boot: first(() => this.#fs.readFileSync('/proc/sys/kernel/random/boot_id', 'utf8')).slice(0, 8),
      space: first(() => this.#fs.readlinkSync('/proc/self/ns/pid')).replace(/\D/g, ''),
      host: toHex(sha256(utf8(`${this.os.hostname()}\n${machine}`))).slice(0, 8),
    };
  }

  // --- files ----------------------------------------------------------------------------------------------------

  /** Whether the mode of a file determines who can read it. */
  get hasModes(): boolean {
    return this.#process.platform !== 'win32';
  }

  /** The text of a file, with its mode; undefined if there is no such file. */
  async read(path: string): Promise<{ text: string; mode: number } | undefined> {
    const { O_RDONLY, O_NONBLOCK = 0 } = this.#fs.constants;
    // Non-blocking, since a pipe in place of the file would block forever.
    const file = await unless(['ENOENT'], () => this.#fs.openSync(path, O_RDONLY | O_NONBLOCK));
    if (file === undefined) return undefined;
    try {
      const stat = this.#fs.fstatSync(file);
      // A device may never end, and a pipe does not return what was written to it before.
      if (!stat.isFile() && !stat.isDirectory()) throw unusable(path, 'it is not a regular file');
      if (stat.size > MAX_BYTES) throw unusable(path, 'it is too large');
      return { text: this.#fs.readFileSync(file, 'utf8'), mode: stat.mode & 0o777 };
    } finally {
      this.#fs.closeSync(file);
    }
  }

  /** Makes a directory and its missing parents, accessible only by the owner. */
  async makeDir(path: string): Promise<void> {
    // The name of each new directory is stored in its parent, which must reach the disk.
    for (const made of this.#makeDirs(path)) await this.syncDir(this.path.dirname(made));
  }

  /** @returns the directories created, innermost first */
  #makeDirs(path: string): string[] {
    const above = this.path.dirname(path);
    try {
      return this.#mkdir(path);
    } catch (e) {
      if (systemCode(e) !== 'ENOENT' || above === path) throw e;
    }
    const made = this.#makeDirs(above);
    // Node's `recursive` retries forever where a directory accepts no new names, as in /proc.
    return [...this.#mkdir(path), ...made];
  }

  #mkdir(path: string): string[] {
    try {
      this.#fs.mkdirSync(path, { mode: 0o700 });
      return [path];
    } catch (e) {
      // The directory may exist already: the error that systems report for that varies.
      if (this.#isDirectory(path)) return [];
      throw e;
    }
  }

  #isDirectory(path: string): boolean {
    try {
      return this.#fs.statSync(path, { bigint: true }).isDirectory();
    } catch {
      return false;
    }
  }

  /** Flushes the names in a directory to disk. */
  async syncDir(path: string): Promise<void> {
    if (!this.hasModes) return;
    const file = this.#fs.openSync(path, 'r');
    try {
      // Some network file systems refuse this, but they store names at once anyway.
      await unless(['EINVAL', 'ENOTSUP'], () => this.#sync(file));
    } finally {
      this.#fs.closeSync(file);
    }
  }

  #sync(file: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#fs.fsync(file, (error) => (error ? reject(error) : resolve()));
    });
  }

  /** Atomically replaces a file, readable only by its owner. */
  async replace(path: string, text: string): Promise<void> {
    await this.#written(path, text, (temporary) => this.#fs.renameSync(temporary, path));
  }

  /** Creates a file, readable only by its owner. @returns false if it exists already; it is then left unchanged */
  async create(path: string, text: string): Promise<boolean> {
    let made = true;
    await this.#written(path, text, (temporary) => {
      try {
        this.#fs.linkSync(temporary, path);
      } catch (e) {
        if (systemCode(e) !== 'EEXIST') throw e;
        made = false;
      }
    });
    return made;
  }

  /** An append-only file, readable only by its owner. */
  log(path: string): Log {
    let handle: Handle | undefined;
    const close = async (): Promise<void> => {
      await handle?.close();
      handle = undefined;
    };
    return {
      append: async (text) => {
        handle ??= await this.#fs.promises.open(path, 'a', 0o600);
        await handle.writeFile(text);
        await handle.sync();
      },
      replace: async (text) => {
        await close();
        await this.replace(path, text);
      },
      close,
    };
  }

  async #written(path: string, text: string, place: (temporary: string) => void): Promise<void> {
    const temporary = `${this.#name(path)}.tmp`;
    try {
      const file = this.#fs.openSync(temporary, 'wx', 0o600);
      try {
        this.#fs.writeFileSync(file, text);
        await this.#sync(file);
      } finally {
        this.#fs.closeSync(file);
      }
      place(temporary);
    } finally {
      await this.#remove(temporary);
    }
    await this.syncDir(this.path.dirname(path));
  }

  async #remove(path: string): Promise<void> {
    await unless(['ENOENT'], () => this.#fs.unlinkSync(path));
  }

  // --- owners ---------------------------------------------------------------------------------------------------

  /** A unique file name beside `path` that names this process as its owner. */
  #name(path: string): string {
    const { pid, start, boot, space, host } = this.#me;
    return `${path}.${pid}-${start}-${boot}-${space}-${host}-${toHex(randomBytes(6))}`;
  }

  /** What the system knows about a process; undefined if nothing. */
  #running(pid: string): { start: string; ended: boolean } | undefined {
    try {
      const stat = this.#fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
      // The second field is the program's name, in parentheses, and may contain anything.
      const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
      // A zombie has ended once its last thread is gone: none of its system calls can still take effect.
      return { start: fields[19] ?? '', ended: /^[ZX]/.test(fields[0]!) && Number(fields[17]) <= 1 };
    } catch {
      return undefined;
    }
  }

  /** Whether an owner is certainly dead. That is unknown if it belongs to another machine or container. */
  #isDead(owner: Owner): boolean {
    const me = this.#me;
    if (owner.host !== me.host) return false;
    if (owner.boot !== me.boot) return owner.boot !== '' && me.boot !== '';
    if (owner.space !== me.space) return false;
    try {
      this.#process.kill(Number(owner.pid), 0);
    } catch (e) {
      if (systemCode(e) === 'ESRCH') return true;
    }
    const running = this.#running(owner.pid);
    return running !== undefined && owner.start !== '' && (running.ended || running.start !== owner.start);
  }

  // --- locks ----------------------------------------------------------------------------------------------------

  /**
   * Takes the lock called `path`. Waits for it for up to 30 seconds.
   *
   * @param onWait called once, after 2 seconds, with a description of the holder
   * @returns a function that releases the lock and never throws
   * @throws an {@link Unavailable} if another process keeps it (the message says which, and what to do), or if the file
   * system has no hard links
   * @throws the signal's reason when it aborts
   */
  async lock(
    path: string,
    clock: Clock,
    signal?: AbortSignal,
    onWait?: (who: string) => void,
  ): Promise<() => Promise<void>> {
    const fs = this.#fs;
    const mine = this.#name(path);
    // Counted in sleeps, since the clock may be set.
    let left = PATIENCE_MS;
    let notified = false;
    try {
      fs.closeSync(await fs.openSync(mine, 'wx', 0o600));
      for (let tries = 0; ; tries++) {
        signal?.throwIfAborted();
        try {
          await fs.linkSync(mine, path);
          break;
        } catch (e) {
          if (systemCode(e) !== 'EEXIST') throw e;
        }
        // Not every time: finding the holder costs more than trying again.
        if (tries % 8 === 4 && (await this.#takeOver(path, mine))) break;
        if (left <= 0) throw await this.#held(path);
        if (onWait && !notified && left <= PATIENCE_MS - SILENCE_MS) {
          notified = true;
          onWait(await this.#whoHas(path));
        }
        const ms = 1 + randomFloat(randomBytes) * Math.min(2 ** tries, 24);
        left -= ms;
        await clock.sleep(ms, signal);
      }
    } catch (cause) {
      await this.#release(path, mine);
      if (signal?.aborted || TechnocoreError.is(cause)) throw cause;
      throw new Unavailable(`cannot lock ${path}: ${systemCode(cause)}`, cause);
    }
    return () => this.#release(path, mine);
  }

  async #release(path: string, mine: string): Promise<void> {
    try {
      if (await this.#same(path, mine)) await this.#remove(path);
      await this.#remove(mine);
    } catch {
      // The disk is failing. The work under the lock is done, and whoever wants the lock next gets the error.
    }
  }

  /** Whether two names exist and are the same file. */
  async #same(one: string, other: string): Promise<boolean> {
    const inode = (path: string): Promise<bigint | undefined> =>
      unless(['ENOENT'], async () => (await this.#fs.statSync(path, { bigint: true })).ino);
    const first = await inode(one);
    return first !== undefined && first === (await inode(other));
  }

  /** The files in a directory that name their owner, each with its path. */
  async #owned(dir: string): Promise<[string, Owned][]> {
    return (await this.#fs.readdirSync(dir)).flatMap((name): [string, Owned][] => {
      const owned = OWNED.exec(name)?.groups as unknown as Owned | undefined;
      return owned ? [[this.path.resolve(dir, name), owned]] : [];
    });
  }

  /** The entry of a lock that is held. */
  async #holder(path: string): Promise<[string, Owned] | undefined> {
    const base = this.path.basename(path);
    for (const [entry, owned] of await this.#owned(this.path.dirname(path))) {
      if (owned.base === base && !owned.temporary && (await this.#same(entry, path))) return [entry, owned];
    }
    return undefined;
  }

  /** Takes over a lock if its owner is dead. `mine` need not exist. */
  async #takeOver(path: string, mine: string): Promise<boolean> {
    const [entry, owner] = (await this.#holder(path)) ?? [];
    if (entry === undefined || !this.#isDead(owner!)) return false;
    await unless(['ENOENT'], () => this.#fs.renameSync(entry, mine));
    // False if another process was faster, or if the owner released the lock just before it died.
    return this.#same(mine, path);
  }

  /** A description of the holder of a lock. */
  async #whoHas(path: string): Promise<string> {
    const [, owner] = (await this.#holder(path)) ?? [];
    const me = this.#me;
    const here = owner?.host === me.host && owner.boot === me.boot && owner.space === me.space;
    return owner
      ? `process ${owner.pid} ${here ? 'of this machine' : 'of another machine or container'}`
      : 'a program that left no name';
  }

  async #held(path: string): Promise<Unavailable> {
    return new Unavailable(
      `${path} has been held for ${PATIENCE_MS / 1000} s, by ${await this.#whoHas(path)}; if that program no longer runs, remove the file`,
    );
  }

  /**
   * Removes what dead processes left in a directory: locks, entries, unfinished files. What cannot be removed stays.
   *
   * @param bases the files and locks to tidy; default: all
   */
  async tidy(dir: string, bases?: readonly string[]): Promise<void> {
    for (const [path, owned] of await this.#owned(dir).catch(() => [])) {
      if (bases?.includes(owned.base) === false || !this.#isDead(owned)) continue;
      await this.#bury(path, owned, this.path.resolve(dir, owned.base)).catch(() => {});
    }
  }

  async #bury(path: string, owned: Owned, lock: string): Promise<void> {
    // Checked after the death, so the answer is final.
    if (owned.temporary || !(await this.#same(path, lock))) return this.#remove(path);
    const mine = this.#name(lock);
    await this.#takeOver(lock, mine);
    await this.#release(lock, mine);
  }
}
