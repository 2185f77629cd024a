import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';

/** Where runtimes are kept: not dependencies of ours, and not in the repository. */
const folder = join(process.cwd(), 'node_modules/.cache/runtimes');

/** Versions that were tried; the patch level is free. */
const BUN = 'bun@~1.4';
const DENO = 'deno@~2.9';
const MINIFLARE = 'miniflare@4';

/** Installs packages into the cache, under the names that they are given there. Fails where they cannot be had. */
function install(name: string, spec: string): string {
  const home = join(folder, name.replace(/\W/g, '-'));
  const marker = join(home, 'installed');
  if (!existsSync(marker)) {
    console.log(`installing ${spec}`);
    mkdirSync(home, { recursive: true });
    writeFileSync(join(home, 'package.json'), '{ "private": true }');
    const args = ['install', '--no-audit', '--no-fund', '--no-save', '--loglevel=error', spec];
    execFileSync('npm', args, { cwd: home, stdio: ['ignore', 'ignore', 'inherit'] });
    writeFileSync(marker, spec);
  }
  return join(home, 'node_modules');
}

/** The program of a Node of that major version: the one that runs this, or one from its package. */
export function node(major: number): string {
  if (process.versions.node.startsWith(`${major}.`)) return process.execPath;
  const modules = install(`node${major}`, `node-${process.platform}-${process.arch}@${major}`);
  return join(modules, `node-${process.platform}-${process.arch}`, 'bin', 'node');
}

export const bun = (): string => join(install('bun', BUN), '.bin', 'bun');
export const deno = (): string => join(install('deno', DENO), '.bin', 'deno');

/** The module that simulates Workers, around the real `workerd`. */
export function miniflare(): { Miniflare: new (o: object) => any } {
  return createRequire(join(install('miniflare', MINIFLARE), 'x.js'))('miniflare');
}

/** A Chromium, the system's or the distribution's; undefined where there is none to be had. */
export function chromium(): string | undefined {
  const names = ['chromium', 'chromium-browser', 'google-chrome'];
  const find = (): string | undefined => names.find((name) => run('which', [name]));
  const found = find();
  if (found !== undefined || process.getuid?.() !== 0 || !run('which', ['apt-get'])) return found;
  console.log('installing chromium');
  const args = ['install', '-y', '-qq', '--no-install-recommends', 'chromium'];
  return ((run('apt-get', args) || (run('apt-get', ['update', '-qq']) && run('apt-get', args))) && find()) || undefined;
}

function run(command: string, args: string[]): boolean {
  try {
    execFileSync(command, args, { stdio: 'ignore', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } });
    return true;
  } catch {
    return false;
  }
}
