import { execFileSync } from 'node:child_process';
import { readdirSync, statSync } from 'node:fs';

const root = new URL('..', import.meta.url).pathname;

const newest = (dir: string, ending: string): number => {
  try {
    const files = readdirSync(root + dir).filter((name) => name.endsWith(ending));
    return Math.max(0, ...files.map((name) => statSync(`${root}${dir}/${name}`).mtimeMs));
  } catch {
    return 0;
  }
};

/** Tests that start processes of their own run what `tsc` made; it is made once, when the sources are newer. */
export default function setup(): void {
  if (newest('dist', '.js') > newest('src', '.ts')) return;
  try {
    execFileSync('npx', ['tsc', '-p', 'tsconfig.json'], { cwd: root, stdio: 'inherit' });
  } catch {
    // What has type errors runs all the same; `npm run types` is there to refuse it.
    console.warn('dist was built in spite of type errors');
  }
}
