import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, rmSync, statSync } from 'node:fs';
import type { TestProject } from 'vitest/node';

const root = new URL('..', import.meta.url).pathname;

/** The command line as it is installed: a few files, which Node loads in half the time that those of `tsc` take it. */
export const CLI = `${root}dist/node/cli.js`;

const names = (dir: string): string[] => {
  try {
    return readdirSync(root + dir);
  } catch {
    return [];
  }
};

const newest = (dir: string, ending: string): number =>
  Math.max(
    0,
    ...names(dir)
      .filter((name) => name.endsWith(ending))
      .map((name) => statSync(`${root}${dir}/${name}`).mtimeMs),
  );

/**
 * Tests that start processes of their own run what was built: all that is stale is made once, before the first of them.
 * The bundles take some seconds, and so are made only when a file that is to run has something from here.
 */
export default function setup({ vitest }: TestProject): void {
  compile();
  if (vitest.state.getPaths().some((path) => readFileSync(path, 'utf8').includes("from './build.ts'"))) bundle();
}

function compile(): void {
  // What a source left behind that is gone would be packed.
  const sources = names('src').map((name) => name.replace(/\.ts$/, ''));
  for (const name of names('dist')) {
    if (name !== 'vendor' && name !== 'node' && !sources.includes(name.replace(/\.(d\.ts|js)$/, '')))
      rmSync(`${root}dist/${name}`);
  }
  if (newest('dist', '.js') > newest('src', '.ts')) return;
  try {
    execFileSync('npx', ['tsc', '-p', 'tsconfig.json'], { cwd: root, stdio: 'inherit' });
  } catch {
    // What has type errors runs all the same; `npm run types` is there to refuse it.
    console.warn('dist was built in spite of type errors');
  }
}

/** SHA-256 of all sources, as the vendored file names it. */
export function sourceDigest(): string {
  const digest = createHash('sha256');
  for (const file of names('src').sort()) digest.update(file).update(readFileSync(`${root}src/${file}`));
  return digest.digest('hex');
}

/** Makes what is bundled, unless the vendored file, which is made last, is that of the sources as they are. */
function bundle(): void {
  try {
    if (readFileSync(`${root}dist/vendor/technocore-rpc.js`, 'utf8').includes(sourceDigest())) return;
  } catch {
    // There is none.
  }
  execFileSync('npx', ['tsup'], { cwd: root, stdio: ['ignore', 'ignore', 'inherit'] });
}
