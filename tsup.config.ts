import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { defineConfig } from 'tsup';
import { extract } from './test/api/declarations.ts';

const { version, dependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
const sources = createHash('sha256');
for (const file of readdirSync('src').sort()) sources.update(file).update(readFileSync(`src/${file}`));

/**
 * The licences of what is inlined, each text once. The licence of one package is named in its package.json alone: it gets the
 * text of the others, which is the same one, under its author's name.
 */
function licences(): string[] {
  const texts = new Map<string, string[]>();
  const read = (name: string): string | undefined => {
    try {
      return readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim();
    } catch {
      return undefined;
    }
  };
  const mit = read('@noble/curves')!;
  for (const name of Object.keys(dependencies)) {
    const { license, author } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8'));
    if (license !== 'MIT') throw new Error(`${name} is under ${license}, and the notice knows MIT alone`);
    const text = read(name) ?? mit.replace(/^Copyright.*$/m, `Copyright (c) ${author.replace(/ <.*/, '')}`);
    texts.set(text, [...(texts.get(text) ?? []), name]);
  }
  return [...texts].flatMap(([text, names]) => ['', `Contains ${names.join(', ')}:`, '', ...text.split('\n')]);
}

const banner = [
  `technocore-rpc ${version} | Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0`,
  `Sources: sha256 ${sources.digest('hex')}`,
  ...licences(),
];

/** The one file to copy, and its declarations. Everything else in `dist/` comes from `tsc`, file by file. */
export default defineConfig({
  entry: { 'technocore-rpc': 'src/vendor.ts' },
  outDir: 'dist/vendor',
  format: 'esm',
  platform: 'neutral',
  target: 'es2022',
  noExternal: [/.*/],
  splitting: false,
  treeshake: true,
  dts: false,
  banner: { js: `/*!\n${banner.map((line) => ` * ${line}`.trimEnd()).join('\n')}\n */` },
  async onSuccess() {
    // One file of declarations out of those that tsc wrote, so that whoever copies the code copies two files.
    extract('vendor', { rollup: '<projectFolder>/dist/vendor/technocore-rpc.d.ts' });
  },
});
