import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { Files } from '../src/files.ts';
import { type Clock, systemClock } from '../src/http.ts';
import { fileLedger } from '../src/ledger-file.ts';
import { Signer } from '../src/signer.ts';
import { Running } from './processes.ts';
import { tempDir } from './support.ts';

const onLinux = existsSync('/proc/self/stat');
let dir: string;
let children: ChildProcess[];

beforeEach(() => {
  dir = tempDir();
  children = [];
});
afterEach(() => {
  for (const child of children) child.kill('SIGKILL');
});

/** A clock whose sleeps cost no time. */
function quickClock(): Clock {
  let now = 1e12;
  return {
    now: () => now,
    sleep: async (ms, signal) => {
      signal?.throwIfAborted();
      now += ms;
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

/** A process that holds the lock at `path`. */
async function holder(path: string): Promise<ChildProcess> {
  const files = new URL('../dist/files.js', import.meta.url).href;
  const http = new URL('../dist/http.js', import.meta.url).href;
  const child = spawn(
    process.execPath,
    [
      '--input-type=module',
      '-e',
      `import { Files } from ${JSON.stringify(files)};
       import { systemClock } from ${JSON.stringify(http)};
       await new Files().lock(${JSON.stringify(path)}, systemClock);
       console.log('held');
       setInterval(() => {}, 1000);`,
    ],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  children.push(child);
  await new Running(child).shows(({ out }) => out === 'held\n');
  return child;
}

describe('files', () => {
  test('replace puts a text in place, for the owner alone, and leaves nothing else', async () => {
    const files = new Files();
    const path = join(dir, 'x');
    await files.replace(path, 'one');
    await files.replace(path, 'two');
    expect(await files.read(path)).toEqual({ text: 'two', mode: 0o600 });
    expect(readdirSync(dir)).toEqual(['x']);
    await expect(files.replace(join(dir, 'none', 'x'), 'y')).rejects.toMatchObject({ code: 'ENOENT' });
  });

  test('a replace that fails leaves the old text and no temporary file', async () => {
    const path = join(dir, 'x');
    mkdirSync(path);
    await expect(new Files().replace(path, 'text')).rejects.toThrow();
    expect(readdirSync(dir)).toEqual(['x']);
    expect(statSync(path).isDirectory()).toBe(true);
  });

  test('create makes a file once and never overwrites it', async () => {
    const files = new Files();
    const path = join(dir, 'x');
    const made = await Promise.all(Array.from({ length: 8 }, (_, i) => files.create(path, `by ${i}`)));
    expect(made.filter(Boolean)).toHaveLength(1);
    expect(readFileSync(path, 'utf8')).toBe(`by ${made.indexOf(true)}`);
    expect(statSync(path).mode & 0o777).toBe(0o600);
    expect(readdirSync(dir)).toEqual(['x']);
  });

  test('read tells a missing file from one that cannot be read', async () => {
    const files = new Files();
    expect(await files.read(join(dir, 'x'))).toBeUndefined();
    await expect(files.read(dir)).rejects.toMatchObject({ code: 'EISDIR' });
  });

  test.skipIf(!existsSync('/dev/zero'))('read takes nothing without end in place of a file', async () => {
    const [files, path] = [new Files(), join(dir, 'x')];
    for (const device of ['/dev/zero', '/dev/full', '/dev/null']) {
      symlinkSync(device, path);
      await expect(files.read(path)).rejects.toMatchObject({ code: 'it is not a regular file' });
      await expect(fileLedger(path)).rejects.toMatchObject({ code: 'unavailable' });
      rmSync(path);
    }
    execFileSync('mkfifo', [path]);
    await expect(files.read(path)).rejects.toMatchObject({ code: 'it is not a regular file' });
    rmSync(path);
    writeFileSync(path, '');
    truncateSync(path, 2 ** 40);
    await expect(files.read(path)).rejects.toMatchObject({ code: 'it is too large' });
  });

  test('makeDir makes all directories of a path, for the owner alone', async () => {
    await new Files().makeDir(join(dir, 'a', 'b', 'c'));
    for (const path of ['a', 'a/b', 'a/b/c']) expect(statSync(join(dir, path)).mode & 0o777).toBe(0o700);
    await new Files().makeDir(join(dir, 'a'));
  });
});

describe('lock', () => {
  test('one holder at a time, and nothing left afterwards', async () => {
    const path = join(dir, 'L');
    let inside = 0;
    const work = Array.from({ length: 6 }, async () => {
      const files = new Files();
      for (let i = 0; i < 5; i++) {
        const release = await files.lock(path, systemClock);
        expect(++inside).toBe(1);
        await new Promise((resolve) => setImmediate(resolve));
        inside--;
        await release();
      }
    });
    await Promise.all(work);
    expect(readdirSync(dir)).toEqual([]);
  });

  test('waiting ends with the signal, and leaves nothing', async () => {
    const path = join(dir, 'L');
    const release = await new Files().lock(path, systemClock);
    const stop = new AbortController();
    const waiting = new Files().lock(path, systemClock, stop.signal);
    setTimeout(() => stop.abort(new Error('enough')), 20);
    await expect(waiting).rejects.toThrow('enough');
    expect(readdirSync(dir)).toHaveLength(2);
    await release();
    expect(readdirSync(dir)).toEqual([]);
    await expect(new Files().lock(path, systemClock, AbortSignal.abort(new Error('before')))).rejects.toThrow('before');
    expect(readdirSync(dir)).toEqual([]);
  });

  test('waiting has a deadline, and its error names the holder and the file', async () => {
    const path = join(dir, 'L');
    const release = await new Files().lock(path, systemClock);
    const told: string[] = [];
    const onWait = (who: string): void => void told.push(who);
    await expect(new Files().lock(path, quickClock(), undefined, onWait)).rejects.toMatchObject({
      code: 'unavailable',
      message: expect.stringMatching(
        new RegExp(`^${path} has been held for 30 s, by process ${process.pid} of this machine;`),
      ),
    });
    expect(told).toEqual([`process ${process.pid} of this machine`]);
    // A clock that is set back all the time makes nobody wait for ever.
    const { sleep } = quickClock();
    let now = 1e12;
    await expect(new Files().lock(path, { now: () => (now -= 1000), sleep })).rejects.toThrow('held for 30 s');
    await release();
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a live process keeps its lock; a killed one loses it at once, zombie or not', async () => {
    const path = join(dir, 'L');
    const child = await holder(path);
    await expect(new Files().lock(path, quickClock())).rejects.toThrow(`process ${child.pid} of this machine`);
    child.kill('SIGSTOP');
    await expect(new Files().lock(path, quickClock())).rejects.toThrow(`process ${child.pid} of this machine`);
    child.kill('SIGKILL');
    // Not waited for: until this process reaps it, it is a zombie.
    const release = await new Files().lock(path, systemClock);
    expect(readdirSync(dir).filter((name) => name.includes(`.${child.pid}-`))).toEqual([]);
    await release();
    expect(readdirSync(dir)).toEqual([]);
  });

  test.runIf(onLinux)('a zombie that its parent never looks at does not keep a lock', async () => {
    const path = join(dir, 'L');
    const files = new URL('../dist/files.js', import.meta.url).href;
    const http = new URL('../dist/http.js', import.meta.url).href;
    const program = `import { Files } from ${JSON.stringify(files)}; import { systemClock } from ${JSON.stringify(http)};
      await new Files().lock(${JSON.stringify(path)}, systemClock); process.kill(process.pid, 'SIGKILL');`;
    // The shell becomes a sleep that does not know it has a child.
    const parent = spawn(
      'sh',
      ['-c', `"$0" --input-type=module -e "$1" & echo $!; exec sleep 60`, process.execPath, program],
      {
        stdio: ['ignore', 'pipe', 'inherit'],
      },
    );
    children.push(parent);
    const { run, shows } = new Running(parent);
    await shows(({ out }) => out.endsWith('\n'));
    const pid = run.out.trim();
    const state = (): string => readFileSync(`/proc/${pid}/stat`, 'latin1').replace(/^.*\) (.).*$/s, '$1');
    while (!existsSync(path) || state() !== 'Z') await systemClock.sleep(10);
    await (await new Files().lock(path, systemClock))();
    expect(state()).toBe('Z');
    expect(readdirSync(dir)).toEqual([]);
  });

  /** Holds the lock in the name of somebody else: this process's entry with fields changed. */
  async function heldBy(change: (fields: string[]) => void): Promise<string> {
    const path = join(dir, 'L');
    await new Files().lock(path, systemClock);
    const entry = readdirSync(dir).find((name) => name !== 'L')!;
    const fields = entry.slice(2).split('-');
    change(fields);
    renameSync(join(dir, entry), join(dir, `L.${fields.join('-')}`));
    return path;
  }
  const PID = 0;
  const START = 1;
  const BOOT = 2;
  const SPACE = 3;
  const HOST = 4;

  test('a lock of another machine is never broken', async () => {
    const path = await heldBy((fields) => {
      fields[HOST] = '00000000';
      fields[BOOT] = '00000000';
      fields[PID] = '999999999';
    });
    const before = readdirSync(dir);
    await expect(new Files().lock(path, quickClock())).rejects.toThrow(
      'process 999999999 of another machine or container',
    );
    await new Files().tidy(dir);
    expect(readdirSync(dir)).toEqual(before);
  });

  test.runIf(onLinux)('a lock of another container is never broken', async () => {
    const path = await heldBy((fields) => {
      fields[SPACE] = '1';
      fields[PID] = '999999999';
    });
    await expect(new Files().lock(path, quickClock())).rejects.toThrow('of another machine or container');
  });

  test.runIf(onLinux)('a lock from before the machine was started anew is broken', async () => {
    const path = await heldBy((fields) => {
      fields[BOOT] = '00000000';
      fields[SPACE] = '1';
    });
    await (await new Files().lock(path, systemClock))();
    expect(readdirSync(dir)).toEqual([]);
  });

  test.runIf(onLinux)('a pid that was given to another process does not keep the lock of the first', async () => {
    const path = await heldBy((fields) => {
      fields[START] = '1';
    });
    await (await new Files().lock(path, systemClock))();
    expect(readdirSync(dir)).toEqual([]);
  });

  test('a lock without a name is kept, and the error says so', async () => {
    const path = join(dir, 'L');
    writeFileSync(path, '');
    writeFileSync(join(dir, 'L.not-an-owner'), '');
    await expect(new Files().lock(path, quickClock())).rejects.toThrow('a program that left no name');
    expect(readdirSync(dir).sort()).toEqual(['L', 'L.not-an-owner']);
  });

  test('tidy removes what dead processes left, and nothing of the living', async () => {
    const dead = '999999999-1';
    await heldBy((fields) => {
      fields[PID] = '999999999';
    });
    const [, , ...rest] = readdirSync(dir)
      .find((name) => name !== 'L')!
      .split('-');
    const name = (owner: string, id: string): string => [owner, ...rest.slice(0, -1), id].join('-');
    // A waiter, a lock that was about to be released, a file half written.
    writeFileSync(join(dir, `M.${name(dead, '0123456789ab')}`), '');
    writeFileSync(join(dir, `seed.${name(dead, '0123456789ab')}.tmp`), 'half');
    const release = await new Files().lock(join(dir, 'N'), systemClock);
    const mine = readdirSync(dir).filter((entry) => entry.startsWith('N'));
    await new Files().tidy(dir);
    expect(readdirSync(dir)).toEqual(mine);
    await release();
  });

  test('a lock taken over is exclusive: the late breaker cannot touch its new owner', async () => {
    const path = await heldBy((fields) => {
      fields[PID] = '999999999';
    });
    const before = readdirSync(dir).find((name) => name !== 'L')!;
    const releases = await Promise.allSettled(Array.from({ length: 5 }, () => new Files().lock(path, quickClock())));
    expect(releases.filter((r) => r.status === 'fulfilled')).toHaveLength(1);
    expect(readdirSync(dir)).toHaveLength(2);
    expect(readdirSync(dir)).not.toContain(before);
  });

  /** The system with one function of one module refused, of the main part or of its promises, until that is ended. */
  const refusing = (refused: Error, id: string, name: string, part?: string): (() => void) => {
    const real = globalThis.process;
    const refuse = part
      ? () => Promise.reject(refused)
      : () => {
          throw refused;
        };
    globalThis.process = {
      ...real,
      pid: real.pid,
      platform: real.platform,
      getBuiltinModule: (asked: string) => {
        const module = real.getBuiltinModule(asked) as any;
        if (asked !== id) return module;
        return part ? { ...module, [part]: { ...module[part], [name]: refuse } } : { ...module, [name]: refuse };
      },
    } as any;
    return () => {
      globalThis.process = real;
    };
  };

  test('a file system without hard links is named', async () => {
    const denied = Object.assign(new Error('no'), { code: 'EPERM' });
    const end = refusing(denied, 'node:fs', 'linkSync');
    const files = new Files();
    end();
    await expect(files.lock(join(dir, 'L'), systemClock)).rejects.toMatchObject({ code: 'unavailable', cause: denied });
    expect(readdirSync(dir)).toEqual([]);
  });

  test('what a runtime does not permit is an error of ours, which says what to permit', async () => {
    const refused = Object.assign(new Error('run again with the --allow-x flag'), { name: 'NotCapable' });
    const error = { code: 'unavailable', message: expect.stringContaining('--allow-x'), cause: refused };
    for (const [id, name, part] of [
      ['node:os', 'hostname'],
      ['node:fs', 'openSync'],
      ['node:fs', 'open', 'promises'],
    ] as [string, string, string?][]) {
      const end = refusing(refused, id, name, part);
      try {
        const opened = async (): Promise<unknown> => (await fileLedger(join(dir, 'ledger'))).close!();
        if (!part) await expect(Signer.fromDir(join(dir, 'key')), name).rejects.toMatchObject(error);
        if (!part) await expect(opened(), name).rejects.toMatchObject(error);
        else await expect(new Files().log(join(dir, 'log')).append('x')).rejects.toMatchObject(error);
      } finally {
        end();
      }
    }
  });

  test('without a file system the error says what to do', () => {
    const real = globalThis.process;
    (globalThis as any).process = undefined;
    try {
      expect(() => new Files()).toThrow('no file system');
    } finally {
      globalThis.process = real;
    }
    // The files of Workers last for one request.
    vi.stubGlobal('navigator', { userAgent: 'Cloudflare-Workers' });
    onTestFinished(() => void vi.unstubAllGlobals());
    expect(() => new Files()).toThrow('no file system');
  });
});
