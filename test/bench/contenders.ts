import { execFileSync, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

// What we compare with is installed when it is asked for, and left out by name where it cannot be had.

const here = join(process.cwd(), 'test/bench');
const cache = join(process.cwd(), 'node_modules/.cache/bench');

/** Installs the packages of test/bench/package.json into that folder. */
function install(): void {
  const wanted = readFileSync(join(here, 'package.json'), 'utf8');
  const marker = join(here, 'node_modules/.installed');
  if (existsSync(marker) && readFileSync(marker, 'utf8') === wanted) return;
  console.log('installing what is compared with');
  const args = ['install', '--no-audit', '--no-fund', '--no-package-lock', '--loglevel=error'];
  execFileSync('npm', args, { cwd: here, stdio: ['ignore', 'ignore', 'inherit'] });
  writeFileSync(marker, wanted);
}

/** A file of a package of test/bench, whatever its `exports` say. */
export function contender(file: string): Promise<any> {
  install();
  return import(pathToFileURL(join(here, 'node_modules', file)).href);
}

/** The program of that name, where there is one. */
export function has(program: string): boolean {
  try {
    execFileSync('which', [program], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

/** A Go program from a module; undefined, said by name, where it cannot be built. */
export function goInstall(name: string, module: string): string | undefined {
  const program = join(cache, 'bin', name);
  if (existsSync(program)) return program;
  if (!has('go')) return skipped(name, 'there is no Go');
  console.log(`building ${name}`);
  try {
    const env = { ...process.env, GOBIN: join(cache, 'bin') };
    execFileSync('go', ['install', module], { env, stdio: ['ignore', 'ignore', 'pipe'] });
    return program;
  } catch (e) {
    return skipped(
      name,
      String((e as Error).message)
        .split('\n')
        .at(-1) ?? '',
    );
  }
}

/** A Go program of test/bench/go, built in a copy; `replace` puts checkouts in the place of modules. */
export function goBuild(name: string, replace: Record<string, string> = {}): string | undefined {
  if (!has('go')) return skipped(name, 'there is no Go');
  const source = join(cache, 'go', name);
  mkdirSync(source, { recursive: true });
  cpSync(join(here, 'go', name), source, { recursive: true });
  const program = join(cache, 'bin', name);
  const run = (...args: string[]): void => {
    execFileSync('go', args, { cwd: source, stdio: ['ignore', 'ignore', 'pipe'] });
  };
  try {
    for (const [module, path] of Object.entries(replace)) {
      run('mod', 'edit', `-require=${module}@v0.0.0`, `-replace=${module}=${path}`);
    }
    run('mod', 'tidy');
    run('build', '-o', program, '.');
    return program;
  } catch (e) {
    return skipped(name, String((e as Error).message));
  }
}

function skipped(name: string, why: string): undefined {
  console.log(`${name}: skipped, ${why}`);
  return undefined;
}

/** A program on a pipe: a line in, a line out. */
export class Worker {
  readonly #child;
  readonly #lines: AsyncIterator<string>;

  constructor(command: string, args: string[] = []) {
    this.#child = spawn(command, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    process.once('exit', () => this.#child.kill());
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  async ask(line: string): Promise<string> {
    this.#child.stdin.write(`${line}\n`);
    return this.next();
  }

  async next(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error('the worker ended');
    return value;
  }

  end(): void {
    this.#child.kill();
  }
}
