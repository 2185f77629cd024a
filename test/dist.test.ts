import { execFile } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, readFile, rename, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core';
import { build } from 'esbuild';
import { publint } from 'publint';
import { formatMessage } from 'publint/utils';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLocalService, type Listening } from '../src/local.ts';
import { Signer } from '../src/technocore-rpc.ts';
import { ENTRIES, extract } from './api/declarations.ts';
import { sourceDigest } from './build.ts';
import { served } from './programs.ts';
import { FREE, tempDir } from './support.ts';

// What is published: built files, packed, installed and copied as users do it.

const run = promisify(execFile);
const root = new URL('..', import.meta.url).pathname;
const inherited = { ...process.env, NODE_OPTIONS: '' };
const folder = tempDir();
let tarball: string;
let packed: string[];
let service: Listening;

beforeAll(async () => {
  service = await createLocalService({ limits: FREE }).listen();
  const args = ['pack', '--ignore-scripts', '--json', '--pack-destination', folder];
  const [made] = JSON.parse((await run('npm', args, { cwd: root })).stdout);
  tarball = join(folder, made.filename);
  packed = made.files.map(({ path }: { path: string }) => path);
});

afterAll(async () => {
  await service.close();
});

const PACKAGES = ['@noble', '@cfworker'];
/** Where there is nothing native. */
const PORTABLE = `
  const { getBuiltinModule } = process;
  process.getBuiltinModule = (id) => (id === 'node:crypto' ? undefined : getBuiltinModule.call(process, id));
`;

/** A project of its own in a folder of its own. */
async function project(name: string, files: Record<string, string>): Promise<string> {
  const dir = await mkdtemp(join(folder, `${name}-`));
  for (const [file, text] of Object.entries({ 'package.json': '{ "type": "module" }', ...files })) {
    await writeFile(join(dir, file), text);
  }
  return dir;
}

/** One that has the package, and the named ones of ours beside it. */
async function consumer(name: string, files: Record<string, string>, others: string[]): Promise<string> {
  const dir = await project(name, files);
  await mkdir(join(dir, 'node_modules', '@types'), { recursive: true });
  await run('tar', ['-xzf', tarball, '-C', dir]);
  await rename(join(dir, 'package'), join(dir, 'node_modules', 'technocore-rpc'));
  for (const other of others) await symlink(join(root, 'node_modules', other), join(dir, 'node_modules', other));
  return dir;
}

const env = (home: string) => ({ ...inherited, HOME: home, TECHNOCORE_URL: service.url, PARLEY_RELAY: service.url });

describe('the package', () => {
  test('holds what the sources make, and nothing else', async () => {
    const sources = (await readdir(join(root, 'src'))).map((file) => file.slice(0, -3));
    // The command line is no module.
    const modules = sources.filter((name) => !/^(cli|demo)/.test(name));
    const built = [...modules, 'vendor/technocore-rpc'].flatMap((name) => [`dist/${name}.js`, `dist/${name}.d.ts`]);
    const entries = [...ENTRIES, 'cli'].map((name) => `dist/node/${name}.js`);
    const others = packed.filter((file) => !/^dist\/node\/chunk-\w{8}\.js$/.test(file));
    expect(others.sort()).toEqual(['LICENSE', 'README.md', 'package.json', ...built, ...entries].sort());
    expect(packed.length - others.length).toBeLessThan(12);
  });

  test('publint has nothing to say', async () => {
    const { messages, pkg } = await publint({ pkgDir: root, strict: true, pack: false });
    // It would have `#names` instead, which a page that loads the modules one by one could not resolve by itself.
    const others = messages.filter(({ code }) => code !== 'USE_EXPORTS_OR_IMPORTS_BROWSER');
    expect(others.map((message) => formatMessage(message, pkg!))).toEqual([]);
  });

  test('its types are found in every way there is to import a module', async () => {
    const data = new Uint8Array(await readFile(tarball));
    const analysis = await checkPackage(createPackageFromTarballData(data));
    if (!analysis.types) throw new Error('no types');
    // There is no CommonJS, and what knows no `exports` finds nothing: both are said in the README.
    const accepted = /^(CJSResolvesToESM|NoResolution:node10)$/;
    const problems = analysis.problems.map((problem) =>
      'resolutionKind' in problem && problem.resolutionKind === 'node10'
        ? `${problem.kind}:${problem.resolutionKind}`
        : problem.kind,
    );
    expect(problems.filter((kind) => !accepted.test(kind))).toEqual([]);
    expect(analysis.types.kind).toBe('included');
  });

  test('importing `call` alone brings neither MCP nor A2A nor encryption nor parley', async () => {
    const { outputFiles, metafile } = await build({
      absWorkingDir: root,
      stdin: { contents: "export { call } from './dist/technocore-rpc.js';", resolveDir: root },
      bundle: true,
      minify: true,
      format: 'esm',
      platform: 'neutral',
      mainFields: ['module', 'main'],
      write: false,
      metafile: true,
    });
    const { inputs } = Object.values(metafile.outputs)[0]!;
    const carried = Object.keys(inputs).filter((file) => inputs[file]!.bytesInOutput > 0);
    const others = /^dist\/(mcp|a2a|e2e|sealed|meeting|parley|noise|tool|schema|serve|builtin|claims|ledger|keydir)/;
    expect(carried.filter((file) => others.test(file) || file.includes('json-schema'))).toEqual([]);
    const { text } = outputFiles[0]!;
    for (const word of ['tools/call', 'message/send', 'technocore-e2e-v1', 'Noise_IK', 'input_required']) {
      expect([word, text.includes(word)]).toEqual([word, false]);
    }
  });
});

describe('a program built for browsers', () => {
  const { browser } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

  test('has in the place of what needs files modules with the same names in them', async () => {
    expect(Object.keys(browser).length).toBeGreaterThan(0);
    for (const [module, instead] of Object.entries<string>(browser)) {
      const names = (file: string): Promise<string[]> =>
        import(join(root, file)).then((all) => Object.keys(all).sort());
      expect([module, await names(instead)]).toEqual([module, await names(module)]);
    }
  });

  test('carries no key directory, and refuses one as every browser does', async () => {
    const bundled = async (platform: 'browser' | 'neutral'): Promise<{ text: string; carried: string[] }> => {
      const { outputFiles, metafile } = await build({
        absWorkingDir: root,
        stdin: { contents: "export { Signer } from './dist/technocore-rpc.js';", resolveDir: root },
        bundle: true,
        format: 'esm',
        platform,
        mainFields: ['browser', 'module', 'main'],
        write: false,
        metafile: true,
      });
      return { text: outputFiles[0]!.text, carried: Object.keys(metafile.inputs) };
    };
    const { text, carried } = await bundled('browser');
    expect(carried).not.toContain('dist/keydir.js');
    expect((await bundled('neutral')).carried).toContain('dist/keydir.js');
    const dir = await project('browser', {
      'signer.js': text,
      'main.js': `
        import { Signer } from './signer.js';
        Signer.fromDir('keys').catch(({ code, message }) => console.log(Signer.generate().did.length, code, message));
      `,
    });
    const { stdout } = await run(process.execPath, ['main.js'], { cwd: dir, env: inherited });
    expect(stdout.trim()).toBe('56 unavailable there is no file system here: this needs Node, Bun or Deno');
    expect(await readdir(dir)).not.toContain('keys');
  });
});

describe('the declarations', () => {
  const CONSUMER = `
    import { call, type CallOptions, type Channel, createDispatcher, methods, RpcError, serve, Signer, tool } from 'technocore-rpc';
    import { HttpRelay, Identity, Session } from 'technocore-rpc/parley';
    import { createLocalService, type Limits } from 'technocore-rpc/local';
    import { RoomClientTransport } from 'technocore-rpc/bridge';
    import * as vendor from 'technocore-rpc/vendor';

    const limits: Partial<Limits> = { readsPerMinute: 7 };
    const service = createLocalService({ limits });
    const o: CallOptions = { base: 'http://local', fetch: service.fetch, replyTo: 'mb-p-a' };
    const signer: Signer = Signer.generate();
    methods.set('add', ({ a, b }) => a + b);
    tool('add', 'Adds.', { type: 'object' }, ({ a, b }, { progress }) => (progress(1), { sum: a + b }));
    export const sum: Promise<number> = call<number>('mb-p-b', 'add', { a: 1, b: 2 }, signer, o);
    export const channel: Channel = new Session(Identity.generate(), new HttpRelay('http://local'));
    export const served: Promise<void> = serve(channel, signer, { allow: async (from) => from !== '' });
    export const error: unknown = new RpcError(1, 'no').rpc.data;
    export const answer = createDispatcher().dispatch('{}');
    export const transport = new RoomClientTransport('mb-p-b', signer, { replyTo: 'mb-p-a' });
    export const invite: vendor.parley.Invite = vendor.parley.Invite.parse('x');
    export const did: string = vendor.Signer.generate().did;
    // @ts-expect-error a call needs a method
    call('mb-p-b', undefined, {}, signer);
  `;
  const WORLDS: [resolution: string, module: string][] = [
    ['node16', 'node16'],
    ['nodenext', 'nodenext'],
    ['bundler', 'esnext'],
  ];

  async function check(name: string, options: object, code: string, hasNode = false): Promise<void> {
    const config = JSON.stringify({
      compilerOptions: { target: 'es2022', strict: true, noEmit: true, skipLibCheck: false, types: [], ...options },
      files: ['use.ts'],
    });
    const types = hasNode ? ['@types/node', 'undici-types'] : [];
    const dir = await consumer(name, { 'use.ts': code, 'tsconfig.json': config }, types);
    const tsc = join(root, 'node_modules', '.bin', 'tsc');
    const output = await run(tsc, ['-p', dir], { cwd: dir }).then(
      ({ stdout }) => stdout,
      ({ stdout }) => stdout,
    );
    expect(output).toBe('');
  }

  test.each(WORLDS)(
    'are right under %s, strictly, where there are the types of a browser',
    async (resolution, module) => {
      const lib = ['es2022', 'dom', 'dom.iterable'];
      await check(`browser-${resolution}`, { module, moduleResolution: resolution, lib }, CONSUMER);
    },
  );

  test.each(WORLDS)('are right under %s where there are the types of Node', async (resolution, module) => {
    const options = { module, moduleResolution: resolution, lib: ['es2022'], types: ['node'] };
    await check(`node-${resolution}`, options, CONSUMER, true);
  });

  test('of every module name nothing that is not exported, and nothing is without documentation', async () => {
    const names = new Map<string, string[]>();
    for (const entry of [...ENTRIES, 'vendor']) {
      const model = join(folder, `${entry}.api.json`);
      const said = extract(entry, { model });
      const forgotten = said.flatMap(({ messageId, text }) =>
        messageId === 'ae-forgotten-export' ? [/"([^"]+)"/.exec(text)![1]!] : [],
      );
      const { members } = JSON.parse(await readFile(model, 'utf8'));
      const documented = itemsIn(members[0]);
      names.set(
        entry,
        members[0].members.map(({ name }: Item) => name),
      );
      // Modules beside the main one speak of what that one exports.
      const known = entry === 'vendor' ? [] : names.get('technocore-rpc')!;
      expect([entry, forgotten.filter((name) => !known.includes(name))]).toEqual([entry, []]);
      // Of parley as a namespace in the one file to copy, the model keeps no comment.
      const bare = [...documented].filter(([name, comment]) => !/\w/.test(comment) && name !== 'parley');
      expect([entry, bare.map(([name]) => name)]).toEqual([entry, []]);
      // What the reference could not show: a text that is cut off, a link to what is not there. The copy has its own names.
      const malformed = said.filter(({ messageId }) => /^tsdoc-(?!param-tag-missing-hyphen)/.test(messageId));
      expect([entry, malformed.map(({ text, sourceFilePath }) => `${sourceFilePath}: ${text}`)]).toEqual([entry, []]);
      if (entry === 'vendor') continue;
      const dead = [...documented].flatMap(([name, comment]) =>
        [...comment.matchAll(/\{@link ([\w.]+)\}/g)]
          .filter(([, to]) => !documented.has(to!))
          .map(([link]) => [name, link]),
      );
      expect([entry, dead]).toEqual([entry, []]);
    }
    expect(names.get('technocore-rpc')!.length).toBeGreaterThan(150);
  });
});

/** What the API model holds, at any depth. */
interface Item {
  readonly kind: string;
  readonly name: string;
  readonly docComment?: string;
  readonly members?: Item[];
}

/** The doc comment of everything in a part of an API model, by its full name. */
function itemsIn({ members = [] }: Item, within = ''): Map<string, string> {
  return new Map(
    members.flatMap((item) => {
      const name = `${within}${item.name ?? item.kind}`;
      return [[name, item.docComment ?? ''] as const, ...itemsIn(item, `${name}.`)];
    }),
  );
}

describe('the few files that Node loads', () => {
  const PROGRAM = `
    import { e2eAccept, e2eOffer, e2eOpen, e2eSeal, mcpCallTool, serve, Signer, TechnocoreError, tool, verify, x25519Generate }
      from 'technocore-rpc';
    import { RoomClientTransport } from 'technocore-rpc/bridge';
    import { createLocalService } from 'technocore-rpc/local';
    import { BadInvite, Handshake, Identity } from 'technocore-rpc/parley';

    const bytes = (n) => new Uint8Array(32).fill(n);
    const told = (e) => (TechnocoreError.is(e) ? \`\${e.code}: \${e.message}\` : e);
    const outcome = async (run) => { try { return await run(); } catch (e) { return told(e); } };
    const said = {
      main: import.meta.resolve('technocore-rpc').replace(/^.*technocore-rpc.dist./, ''),
      names: [Signer, TechnocoreError, RoomClientTransport, Handshake, Identity].map(({ name }) => name),
      related: BadInvite.prototype instanceof TechnocoreError,
      refused: await outcome(() => new RoomClientTransport('no mailbox', undefined, { replyTo: 'mb-p-x' })),
    };
    said.signed = await outcome(() => {
      const { did, sig, canonical } = Signer.fromSeed(bytes(1)).signMessage('lobby', 7, 'hello');
      return [did, sig, verify(did, sig, canonical), verify(did, sig, canonical + '!')];
    });
    said.sealed = await outcome(() => {
      const { privateKey, publicKey } = x25519Generate();
      const { offer, key } = e2eOffer(publicKey);
      return e2eOpen(e2eAccept(offer, privateKey).key, e2eSeal(key, 'hello'));
    });
    said.shaken = await outcome(() => {
      const [identity, other] = [Identity.fromSeed(bytes(1)), Identity.fromSeed(bytes(2))];
      const o = { prologue: bytes(9), psk: bytes(7) };
      const to = Handshake.initiator({ ...o, identity, remote: other.publicKey, ephemeral: bytes(3) });
      const from = Handshake.responder({ ...o, identity: other, ephemeral: bytes(4) });
      const sent = to.write(bytes(5));
      from.read(sent);
      const answered = from.write(bytes(6));
      to.read(answered);
      return Buffer.concat([sent, answered, to.transport().seal(2n, bytes(8))]).toString('hex');
    });
    said.called = await outcome(async () => {
      const tools = new Map();
      tool('twice', '', { type: 'object', properties: { n: { type: 'number' } } }, ({ n }) => String(2 * n), { tools });
      const [o, stop, signer] = [{ base: 'http://local.test', fetch: createLocalService().fetch }, new AbortController(), Signer.generate()];
      const over = serve('mb-p-tools', signer, { ...o, tools, signal: stop.signal });
      const call = (n) => outcome(async () => (await mcpCallTool('mb-p-tools', 'twice', { n }, signer, { ...o, replyTo: 'mb-p-me' })).content[0].text);
      const results = [await call(21), await call('x')];
      stop.abort();
      await over;
      return results;
    });
    console.log(JSON.stringify(said));
  `;
  const files = { 'program.js': PROGRAM, 'portable.js': PORTABLE };

  async function outcome(dir: string, ...args: string[]): Promise<Record<string, any>> {
    const { stdout, stderr } = await run(process.execPath, [...args, 'program.js'], { cwd: dir, env: env(dir) });
    return { ...JSON.parse(stdout), stderr };
  }

  test('give the same answers as the modules one by one, with what is native and without', async () => {
    const dir = await consumer('node', files, PACKAGES);
    const { main, ...said } = await outcome(dir);
    expect(main).toBe('node/technocore-rpc.js');
    expect(said).toMatchObject({
      names: ['Signer', 'TechnocoreError', 'RoomClientTransport', 'Handshake', 'Identity'],
      related: true,
      refused: expect.stringMatching(/^bad_key: /),
      signed: [expect.stringMatching(/^did:key:z6Mk/), expect.stringMatching(/^[\w-]{86}$/), true, false],
      sealed: 'hello',
      shaken: expect.stringMatching(/^[0-9a-f]{500,}$/),
      called: ['42', expect.stringContaining('do not satisfy')],
      stderr: '',
    });
    for (const args of [
      ['--import', './portable.js'],
      ['--conditions=bun'],
      ['--conditions=deno', '--import', './portable.js'],
    ]) {
      const { main, ...other } = await outcome(dir, ...args);
      expect([args, main]).toEqual([args, `${args[0] === '--import' ? 'node/' : ''}technocore-rpc.js`]);
      expect([args, other]).toEqual([args, said]);
    }
  });

  test('are three for the package, parley among others alone', async () => {
    const imported = async (name: string): Promise<string[]> => {
      const text = await readFile(`dist/node/${name}.js`, 'utf8');
      return [...text.matchAll(/^(?:import|\} from) "\.\/([^"]+)\.js";$/gm)].map(([, file]) => file!);
    };
    const seen = new Set<string>();
    const follow = async (name: string): Promise<void> => {
      if (seen.has(name)) return;
      seen.add(name);
      for (const file of await imported(name)) await follow(file);
    };
    await follow('technocore-rpc');
    expect(seen.size).toBe(3);
    seen.clear();
    await follow('parley');
    expect(seen.size).toBe(4);
  });

  test('load what they depend on at its first use: noble where there is nothing native, the validator for a value', async () => {
    const dir = await consumer('alone', files, []);
    const { signed, sealed, shaken, called } = await outcome(dir);
    expect([signed[2], sealed, typeof shaken]).toEqual([true, 'hello', 'string']);
    expect(called).toEqual(Array(2).fill('rpc: Internal error (-32603)'));
    const missing = expect.stringMatching(/^unavailable: .*@noble\//);
    expect(await outcome(dir, '--import', './portable.js')).toMatchObject({
      signed: missing,
      sealed: missing,
      shaken: missing,
    });
  });

  test.each(['browser', 'node', 'neutral'] as const)(
    'are not what bundlers for %s see, which see each module',
    async (platform) => {
      const dir = await consumer(platform, { 'use.js': "export { call } from 'technocore-rpc';" }, PACKAGES);
      const { metafile } = await build({
        absWorkingDir: dir,
        entryPoints: ['use.js'],
        bundle: true,
        format: 'esm',
        platform,
        mainFields: ['module', 'main'],
        write: false,
        metafile: true,
      });
      const inputs = Object.keys(metafile.inputs).filter((file) => file.includes('technocore-rpc/'));
      expect(inputs).toContain('node_modules/technocore-rpc/dist/call.js');
      expect(inputs.filter((file) => file.includes('dist/node'))).toEqual([]);
    },
  );
});

describe('installed', () => {
  test('in an empty folder, the first examples of the README run, and the command line', async () => {
    const readme = await readFile(join(root, 'README.md'), 'utf8');
    const [serving, called] = [...readme.matchAll(/```js\n([\s\S]*?)```/g)].map(([, code]) => code!);
    const dir = await project('installed', { 'serve.js': serving!, 'call.js': called! });
    await run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', tarball], { cwd: dir });
    const o = { cwd: dir, env: env(dir) };
    const server = run(process.execPath, ['serve.js'], o);
    const [, mailbox] = /serve\('([^']+)'/.exec(serving!)!;
    await served(mailbox!, service.url, server);
    expect((await run(process.execPath, ['call.js'], o)).stdout).toMatch(/^Hello Ada, you are did:key:/);
    server.child.kill();
    const { version } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'));
    expect((await run('npx', ['--no-install', 'technocore-rpc', '--version'], o)).stdout.trim()).toBe(version);
    expect((await run('npx', ['--no-install', 'technocore-rpc', 'demo'], o)).stdout).toMatch(
      /every answer was right\n$/,
    );
  });
});

describe('the vendored file', () => {
  const file = (name: string): Promise<string> => readFile(join(root, 'dist', 'vendor', name), 'utf8');

  test('says what it is, out of which sources, and under which licences its parts are', async () => {
    const text = await file('technocore-rpc.js');
    const banner = text.slice(0, text.indexOf('*/'));
    const { version, dependencies } = JSON.parse(await readFile(join(root, 'package.json'), 'utf8'));
    expect(banner).toMatch(
      new RegExp(`^/\\*!\n \\* technocore-rpc ${version.replaceAll('.', '\\.')} \\| Apache-2\\.0`),
    );
    expect(banner).toContain(`sha256 ${sourceDigest()}\n`);
    for (const name of Object.keys(dependencies)) expect(banner).toMatch(new RegExp(`Contains .*${name}`));
    const texts = banner.split(/^ \* Contains /m).slice(1);
    for (const licence of texts) {
      expect(licence).toMatch(/Copyright \(c\) /);
      expect(licence).toContain('Permission is hereby granted, free of charge');
      expect(licence).toContain('The above copyright notice and this permission notice shall be included');
      expect(licence).toContain('WITHOUT WARRANTY OF ANY KIND');
    }
    for (const author of ['Paul Miller', 'Thomas Pornin', 'Jeremy Danyow']) expect(banner).toContain(author);
  });

  test('tells Deno where its declarations are, before any code', async () => {
    const text = await file('technocore-rpc.js');
    expect(text.slice(text.indexOf('*/') + 2)).toMatch(/^\n\/\/ @ts-self-types="\.\/technocore-rpc\.d\.ts"\n/);
  });

  test('has declarations to be read: none is indented more deeply than it is nested', async () => {
    const lines = (await file('technocore-rpc.d.ts')).split('\n');
    expect(lines.length).toBeGreaterThan(3000);
    expect(lines.filter((line) => /^ {14}/.test(line) || line.length > 300)).toEqual([]);
    expect(lines.filter((line) => line.includes('@module'))).toEqual([]);
    // Nor has anything a name with a number, which api-extractor gives to the second of a name.
    expect(lines.filter((line) => /\w_\d\b/.test(line))).toEqual([]);
    expect(lines.filter((line) => /\b(interface|class) \w*Identity\b/.test(line))).toHaveLength(2);
  });

  test('imports nothing, and works alone in a folder', async () => {
    expect(await file('technocore-rpc.js')).not.toMatch(/^\s*import\b|\bfrom\s*["'][^"']+["'];|\brequire\(/m);
    // The examples in its comments import.
    const declared = (await file('technocore-rpc.d.ts')).replace(/\/\*[\s\S]*?\*\//g, '');
    expect(declared).not.toMatch(/^\s*import\b|\bfrom\s*["']/m);
    const dir = await project('copied', {
      'use.js': `
        import { call, parley, serve, Signer, tool } from './technocore-rpc.js';
        const [stop, server, client] = [new AbortController(), Signer.generate(), Signer.generate()];
        const methods = new Map([['add', ({ a, b }) => a + b]]);
        const over = new Promise((resolve) => {
          const onReady = async () => {
            console.log(await call('mb-p-copy', 'add', { a: 2, b: 40 }, client, { replyTo: 'mb-p-copied' }));
            stop.abort();
          };
          resolve(serve('mb-p-copy', server, { methods, signal: stop.signal, onReady }));
        });
        await over;
        const relay = new parley.HttpRelay(process.env.PARLEY_RELAY);
        const [a, b] = [1, 2].map(() => new parley.Session(parley.Identity.generate(), relay));
        await b.join((await a.open('x')).url());
        await b.send('hello');
        while (b.peer.state === 'pending') { await a.poll(100); await b.poll(100); }
        for await (const { text } of a.messages()) { console.log(text); break; }
      `,
    });
    for (const name of ['technocore-rpc.js', 'technocore-rpc.d.ts']) await writeFile(join(dir, name), await file(name));
    const { stdout } = await run(process.execPath, ['use.js'], { cwd: dir, env: env(dir) });
    expect(stdout).toBe('42\nhello\n');
  });

  test('runs what it inlines at its first use', async () => {
    // What noble does when it is run is to make many big numbers; those of ours are literals.
    const dir = await project('lazy', {
      'portable.js': PORTABLE,
      'use.js': `
        let made = 0;
        globalThis.BigInt = new Proxy(BigInt, { apply: (f, self, args) => (made++, f(...args)) });
        const { Signer } = await import('./technocore-rpc.js');
        const before = made;
        const sig = Signer.fromSeed(new Uint8Array(32)).sign('hello');
        console.log(JSON.stringify({ before, made, sig }));
      `,
      'technocore-rpc.js': await file('technocore-rpc.js'),
    });
    const signed = async (...args: string[]): Promise<{ before: number; made: number; sig: string }> =>
      JSON.parse((await run(process.execPath, [...args, 'use.js'], { cwd: dir, env: env(dir) })).stdout);
    const [native, portable] = [await signed(), await signed('--import', './portable.js')];
    expect([native.before, portable.before]).toEqual([0, 0]);
    expect(portable.made).toBeGreaterThan(native.made + 20);
    const sig = Signer.fromSeed(new Uint8Array(32)).sign('hello');
    expect([native.sig, portable.sig]).toEqual([sig, sig]);
  });
});
