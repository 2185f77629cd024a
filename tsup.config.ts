import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, dirname, resolve } from 'node:path';
import { defineConfig, type Options } from 'tsup';
import { ENTRIES, extract } from './test/api/declarations.ts';

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

/** What a source imports from packages, types apart: the names, by the path of the module. */
function packagesOf(file: string): Map<string, string[]> {
  const imports = readFileSync(`src/${file}`, 'utf8').matchAll(/^import \{([^}]*)\} from '(@[^']+)'/gm);
  const names = (list: string): string[] => [...list.matchAll(/(?:^|,)\s*(?!type\s)(\w+)/g)].map(([, name]) => name!);
  return new Map([...imports].map(([, list, path]) => [path!, names(list!)]));
}

/** How something of a package is got at its first use. */
interface Loading {
  head: string;
  load(path: string, name: string): string;
}

const INLINED: Loading = { head: '', load: (path, name) => `require('used:${path}').${name}` };

// One `require` for each file, called with the path as it is: what collects the files of a deployment sees through that.
const REQUIRED: Loading = {
  head: `
    import { createRequire } from 'node:module';
    import { TechnocoreError } from './src/errors.ts';
    const require = createRequire(import.meta.url);
    function found(load) {
      try {
        return load();
      } catch (cause) {
        throw new TechnocoreError('unavailable', cause.message, cause);
      }
    }`,
  load: (path, name) => `found(() => require('${path}').${name})`,
};

// Packages give functions, and objects with members: this is what can be done with those.
const LATER = `
  /** Stands in for a function or an object that is loaded at its first use. */
  export function later(load) {
    let loaded;
    const real = () => (loaded ??= load());
    return new Proxy(() => {}, { get: (_, name) => real()[name], apply: (_, self, args) => real()(...args) });
  }`;

/**
 * Packages are loaded, or run if they are inlined, at the first use of what is imported from them: noble where there is
 * nothing native, the validator of JSON Schema when there is a value to check.
 */
function lazily({ head, load }: Loading): NonNullable<Options['esbuildPlugins']>[number] {
  const src = resolve('src');
  return {
    name: 'lazily',
    setup({ onResolve, onLoad }) {
      onResolve({ filter: /^@/ }, ({ importer }) =>
        dirname(importer) === src ? { path: basename(importer), namespace: 'later' } : undefined,
      );
      onResolve({ filter: /^later$/ }, ({ path }) => ({ path, namespace: 'later' }));
      onLoad({ filter: /./, namespace: 'later' }, ({ path: file }) => {
        if (file === 'later') return { contents: LATER };
        const lines = ["import { later } from 'later';", head];
        for (const [path, names] of packagesOf(file)) {
          for (const name of names) {
            lines.push(`export const ${name} = /* @__PURE__ */ later(() => ${load(path, name)});`);
          }
        }
        return { contents: lines.join('\n'), resolveDir: process.cwd() };
      });
      // A module that is asked for by `require` is kept whole, so this one has nothing but what is used.
      onResolve({ filter: /^used:/ }, ({ path }) => ({ path: path.slice(5), namespace: 'used' }));
      onLoad({ filter: /./, namespace: 'used' }, ({ path }) => {
        const used = new Set(readdirSync('src').flatMap((file) => packagesOf(file).get(path) ?? []));
        return { contents: `export { ${[...used].join(', ')} } from '${path}';`, resolveDir: process.cwd() };
      });
    },
  };
}

/**
 * Gives all modules of the package to each entry but parley. What the same entries reach becomes one file: `import
 * 'technocore-rpc'` reads three, and would otherwise read one for each set of entries that share something.
 */
const together: NonNullable<Options['esbuildPlugins']>[number] = {
  name: 'together',
  setup({ initialOptions, onLoad }) {
    // Nothing is used of it, which is what the warning would say.
    initialOptions.logOverride = { ...initialOptions.logOverride, 'ignored-bare-import': 'silent' };
    onLoad({ filter: /\bsrc\/(local|bridge|cli)\.ts$/ }, ({ path }) => ({
      contents: `${readFileSync(path, 'utf8')}\nimport './technocore-rpc.ts';\n`,
      loader: 'ts',
    }));
  },
};

/** Classes that speak of themselves get a second name from esbuild, which `console.log` would show: they keep their own. */
const ownNames: NonNullable<Options['plugins']>[number] = {
  name: 'own-names',
  renderChunk(code) {
    const classes = [...code.matchAll(/^var (\w+) = class _\1\b/gm)].map(([, name]) => name!);
    return { code: classes.reduce((text, name) => text.replace(new RegExp(`\\b_${name}\\b`, 'g'), name), code) };
  },
};

/** What comments hold beyond ASCII, each character beside what stands for it. */
const SPELLED = new Map(['“"', '”"', '—-', '−-', '⋅*', '….', '§#'].map((pair) => [pair[0]!, pair[1]!]));

/**
 * One character beyond Latin-1, be it in a comment, and V8 keeps the whole file in two bytes a character, which takes longer
 * to read. Outside of comments esbuild has escaped them.
 */
const ascii: NonNullable<Options['plugins']>[number] = {
  name: 'ascii',
  renderChunk: (code) => ({
    code: code.replace(/[^\0-\x7f]/gu, (char) => {
      const spelled = SPELLED.get(char);
      if (spelled === undefined) throw new Error(`nothing stands for ${char} in the built files`);
      return spelled;
    }),
  }),
};

/** Comments of namespaces are lost on the way. */
const PARLEY = 'All that the module `technocore-rpc/parley` exports: a Noise channel over an untrusted relay.';

/**
 * Where a type of parley has the name of another, or any has that of a global, api-extractor numbers it, which editors and
 * the compiler's messages show. The one gets a name that tells whose it is, the other its own, which hides the global.
 */
function ownTypeNames(text: string): string {
  const rename = (from: string, to: string): string => text.replace(new RegExp(`\\b${from}\\b`, 'g'), to);
  for (const [line, name] of [...text.matchAll(/^export \{ (\w+)_2 as \1 \};?\s*$/gm)]) {
    text = text.replace(line, '').replace(new RegExp(`^declare (?=\\w+ ${name}_2\\b)`, 'm'), 'export $&');
    text = rename(`${name}_2`, name!);
  }
  for (const [, name] of [...text.matchAll(/^ +(\w+)_2 as \1,?$/gm)]) text = rename(`${name}_2`, `Parley${name}`);
  return text;
}

const common: Options = {
  format: 'esm',
  target: 'es2022',
  noExternal: [/.*/],
  removeNodeProtocol: false,
  dts: false,
  plugins: [ownNames, ascii],
};

export default defineConfig([
  {
    // What Node loads: all modules of the package in a few files, since each file takes it a millisecond.
    ...common,
    entry: [...ENTRIES, 'cli'].map((name) => `src/${name}.ts`),
    outDir: 'dist/node',
    clean: true,
    platform: 'node',
    splitting: true,
    esbuildPlugins: [lazily(REQUIRED), together],
  },
  {
    // The one file to copy, and its declarations. Everything else in `dist/` comes from `tsc`, file by file.
    ...common,
    entry: { 'technocore-rpc': 'src/vendor.ts' },
    outDir: 'dist/vendor',
    platform: 'neutral',
    splitting: false,
    treeshake: true,
    esbuildPlugins: [lazily(INLINED)],
    // Deno finds the declarations by the directive alone, others by the name of the file.
    banner: {
      js: `/*!\n${banner.map((line) => ` * ${line}`.trimEnd()).join('\n')}\n */\n// @ts-self-types="./technocore-rpc.d.ts"`,
    },
    async onSuccess() {
      // One file of declarations out of those that tsc wrote, so that whoever copies the code copies two files.
      const rollup = 'dist/vendor/technocore-rpc.d.ts';
      extract('vendor', { rollup: `<projectFolder>/${rollup}` });
      // The header of a source file stays with the first declaration in it, unless an import stands between the two.
      const text = readFileSync(rollup, 'utf8').replace(/\/\*\*(?:(?!\*\/)[\s\S])*@module\s*\*\/\s*/g, '');
      const input = ownTypeNames(text).replace(/^export declare namespace parley\b/m, `/** ${PARLEY} */\n$&`);
      // Behind most of the tags in comments, api-extractor indents all that follows a little more.
      const biome = ['format', '--stdin-file-path=vendor.d.ts'];
      writeFileSync(rollup, execFileSync('node_modules/.bin/biome', biome, { input }));
    },
  },
]);
