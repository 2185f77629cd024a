import { readdir, readFile } from 'node:fs/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ENTRIES } from './api/declarations.ts';
import { sourceDigest } from './build.ts';
import { Programs } from './programs.ts';

// What is published, as TypeScript sees it: programs in `types/` use all of it, and are compiled.

const dir = new URL('types/', import.meta.url);
const sources = new Map<string, string>();
let programs: Programs;

beforeAll(async () => {
  for (const name of await readdir(dir)) sources.set(name, await readFile(new URL(name, dir), 'utf8'));
  // The same through the one file to copy, of which parley is a member.
  for (const name of ['main.ts', 'parley.ts']) sources.set(`vendor-${name}`, vendored(sources.get(name)!));
  programs = await Programs.start();
});

afterAll(() => programs.close());

/** The names that a program imports from a module; the compiler refuses one that it does not use. */
function importsOf(text: string, module: string): string[] {
  const lists = [...text.matchAll(/^import \{([^}]*)\} from '([^']+)';$/gm)].filter(([, , from]) => from === module);
  return lists.flatMap(([, list]) => [...list!.matchAll(/(?:^|,)\s*(?:type )?(\w+)/g)].map(([, name]) => name!));
}

function vendored(text: string): string {
  return text.replace(/^import \{([^}]*)\} from 'technocore-rpc(\/parley)?';$/gm, (_, list: string, parley) => {
    if (!parley) return `import {${list}} from 'technocore-rpc/vendor';`;
    const names = [...list.matchAll(/(?:^|,)\s*(type )?(\w+)/g)];
    const aliases = names.map(([, type, name]) => `${type ?? 'import '}${name} = parley.${name};`);
    return ["import { parley } from 'technocore-rpc/vendor';", ...aliases].join('\n');
  });
}

/** What a module exports, types too, by its declarations. */
async function exportsOf(entry: string): Promise<string[]> {
  const text = (await readFile(`dist/${entry}.d.ts`, 'utf8')).replace(/\/\*[\s\S]*?\*\//g, '');
  const lists = [...text.matchAll(/^export (?:type )?\{([^}]*)\} from /gm)].flatMap(([, list]) => list!.split(','));
  const listed = lists.map((item) => item.trim().replace(/^type |.* as /g, '')).filter((name) => name !== '');
  const declared = text.matchAll(/^export (?:declare )?(?:const|function|class|interface|type) (\w+)/gm);
  return [...listed, ...[...declared].map(([, name]) => name!)].sort();
}

test.each(ENTRIES)('a program uses every export of %s', async (entry) => {
  const names = await exportsOf(entry);
  // Those that are there when it runs are known otherwise, too.
  expect(names).toEqual(expect.arrayContaining(Object.keys(await import(`../dist/${entry}.js`))));
  const module = entry === 'technocore-rpc' ? entry : `technocore-rpc/${entry}`;
  const imported = [...sources.values()].flatMap((text) =>
    text.includes('import * as ') ? [] : importsOf(text, module),
  );
  expect(names.filter((name) => !imported.includes(name))).toEqual([]);
});

const CAREFUL = { skipLibCheck: false, noUnusedLocals: true, noUnusedParameters: true };

test('the file to copy, of which one program speaks, is that of the sources as they are', async () => {
  expect(await readFile('dist/vendor/technocore-rpc.js', 'utf8')).toContain(sourceDigest());
});

test.each([
  ['a browser', { lib: ['es2022', 'dom', 'dom.iterable'], types: [] }],
  ['Node', { lib: ['es2022'], types: ['node'] }],
])('they compile, strictly, where there are the types of %s', async (_, world) => {
  const ours = [...sources].filter(([name]) => name !== 'sdk.ts');
  expect(await programs.typeErrors(ours, { ...CAREFUL, ...world })).toBe('');
});

test('so does one that hands transports to the official SDKs', async () => {
  // What their own declarations hold is not looked at.
  const options = { ...CAREFUL, skipLibCheck: true };
  expect(await programs.typeErrors([['sdk.ts', sources.get('sdk.ts')!]], options)).toBe('');
});
