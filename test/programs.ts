import { execFile } from 'node:child_process';
import { mkdir, readdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { createLocalService, type Listening } from '../src/local.ts';
import { follow } from '../src/technocore-rpc.ts';
import { tempDir } from './support.ts';

const run = promisify(execFile);
const root = new URL('..', import.meta.url).pathname;

/** A program that runs. */
export interface Program {
  /** Ends it, even if it has not begun yet; `done` then rejects. */
  stop(): void;
  /** All that it printed, once it has ended; rejects if it failed. */
  readonly done: Promise<string>;
}

/**
 * Resolves once a mailbox shows that it is served.
 *
 * @param server what its server printed, once it has ended
 * @throws if that ends before
 */
export async function served(mailbox: string, base: string, server: Promise<unknown>): Promise<void> {
  const over = new AbortController();
  const signal = over.signal;
  const shown = (async () => {
    for await (const _ of follow(mailbox, { base, since: 0, signal })) break;
  })();
  shown.catch(() => {});
  const ended = server.then((printed) => {
    throw new Error(`what serves ${mailbox} has ended: ${JSON.stringify(printed)}`);
  });
  try {
    await Promise.race([shown, ended]);
  } finally {
    over.abort();
  }
}

/** Runs programs in a folder where the package is found by its own name, as an installed one, against an embedded service. */
export class Programs {
  readonly folder: string = tempDir();
  readonly service: Listening;
  readonly #running = new Set<() => void>();

  private constructor(service: Listening) {
    this.service = service;
  }

  static async start(): Promise<Programs> {
    const limits = { readsPerMinute: 1e6, writesPerMinute: 1e6, newRoomsPerDay: 1e6 };
    const programs = new Programs(await createLocalService({ limits }).listen());
    const modules = join(programs.folder, 'node_modules');
    await mkdir(modules);
    await symlink(root, join(modules, 'technocore-rpc'));
    for (const name of ['@modelcontextprotocol', '@a2a-js', '@types', 'undici-types'])
      await symlink(join(root, 'node_modules', name), join(modules, name));
    await writeFile(join(programs.folder, 'package.json'), '{ "type": "module" }');
    return programs;
  }

  /** @param code JavaScript */
  run(name: string, code: string): Program {
    const file = join(this.folder, `${name}.js`);
    const { url } = this.service;
    const env = { ...process.env, TECHNOCORE_URL: url, PARLEY_RELAY: url, HOME: this.folder };
    const over = new AbortController();
    const stop = (): void => over.abort();
    this.#running.add(stop);
    const done = writeFile(file, code).then(async () => {
      const { stdout, stderr } = await run(process.execPath, [file], { cwd: this.folder, env, signal: over.signal });
      return stdout + stderr;
    });
    return { stop, done };
  }

  /** What the compiler has to say about TypeScript, as strict as there is for users, and with further options. */
  async typeErrors(sources: readonly (readonly [name: string, code: string])[], options: object = {}): Promise<string> {
    const dir = join(this.folder, `types-${(await readdir(this.folder)).length}`);
    await mkdir(dir);
    const compilerOptions = {
      target: 'es2022',
      module: 'nodenext',
      strict: true,
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      verbatimModuleSyntax: true,
      noEmit: true,
      skipLibCheck: true,
      types: ['node'],
      ...options,
    };
    for (const [name, code] of sources) await writeFile(join(dir, name), code);
    const files = sources.map(([name]) => name);
    await writeFile(join(dir, 'tsconfig.json'), JSON.stringify({ compilerOptions, files }));
    const checked = await run(join(root, 'node_modules', '.bin', 'tsc'), ['-p', dir]).catch((e) => e);
    return checked.stdout;
  }

  async close(): Promise<void> {
    for (const stop of this.#running) stop();
    await this.service.close();
  }
}
