// `npm run docs`: the API reference, one page a name, out of the doc comments. Written to docs/api, which is not kept.
import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync } from 'node:fs';
import { ENTRIES, extract } from './declarations.ts';

const models = 'node_modules/.cache/api';
rmSync('docs/api', { recursive: true, force: true });
for (const entry of ENTRIES) {
  const folder = `${models}/${entry}`;
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  extract(entry, { model: `<projectFolder>/${folder}/${entry}.api.json` });
  const args = ['api-documenter', 'markdown', '--input-folder', folder, '--output-folder', `docs/api/${entry}`];
  execFileSync('npx', args, { stdio: ['ignore', 'ignore', 'inherit'] });
  console.log(`docs/api/${entry}/index.md`);
}
