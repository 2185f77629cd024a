import { createContext, runInContext } from 'node:vm';
import { build } from 'esbuild';
import { describe, expect, test } from 'vitest';
import { createLocalService } from '../src/local.ts';
import { FREE } from './support.ts';

const root = new URL('..', import.meta.url).pathname;

async function bundled(entry: string, external: string[] = []) {
  const { outputFiles, metafile } = await build({
    absWorkingDir: root,
    entryPoints: [`src/${entry}.ts`],
    bundle: true,
    platform: 'neutral',
    target: 'es2022',
    format: external.length > 0 ? 'esm' : 'iife',
    ...(external.length === 0 && { globalName: 'library' }),
    external,
    mainFields: ['module', 'main'],
    write: false,
    metafile: true,
    logLevel: 'silent',
  });
  const [output] = Object.values(metafile!.outputs);
  return { text: outputFiles![0]!.text, imports: output!.imports.map(({ path }) => path) };
}

/** A runtime with the web's globals and nothing of Node, which counts who asks for Node. */
function bareRuntime() {
  const asked: string[] = [];
  const { TextEncoder, TextDecoder, URL, AbortController, AbortSignal, Headers, Response, setTimeout, clearTimeout } =
    globalThis;
  const context = createContext({
    TextEncoder,
    TextDecoder,
    URL,
    AbortController,
    AbortSignal,
    Headers,
    Response,
    setTimeout,
    clearTimeout,
    queueMicrotask,
    crypto: { getRandomValues: (bytes: Uint8Array<ArrayBuffer>) => crypto.getRandomValues(bytes) },
    fetch: () => Promise.reject(new Error('no network here')),
  });
  for (const name of ['process', 'require', 'module', 'Buffer', 'global', '__dirname']) {
    Object.defineProperty(context, name, {
      get: () => {
        asked.push(name);
        return undefined;
      },
    });
  }
  return { context, asked };
}

describe.each(['technocore-rpc', 'parley', 'vendor'])('%s', (entry) => {
  test('bundles for no platform in particular, with noble alone left out', async () => {
    const { imports, text } = await bundled(entry, ['@noble/*']);
    for (const path of imports) expect(path).toMatch(/^@noble\//);
    expect(text).not.toMatch(/\bfrom\s*["'](node:|fs|crypto|path|os|http)/);
    expect(text).not.toMatch(/\brequire\(["']/);
  });

  test('is imported where there is no Node, and asks for none', async () => {
    const { text, imports } = await bundled(entry);
    expect(imports).toEqual([]);
    const { context, asked } = bareRuntime();
    runInContext(text, context);
    expect(asked).toEqual([]);
    expect(Object.keys(runInContext('library', context)).length).toBeGreaterThan(8);
  });
});

test('two agents call each other where there is no Node', async () => {
  const { text } = await bundled('technocore-rpc');
  const { context } = bareRuntime();
  runInContext(text, context);
  const { call, serve, Signer, TechnocoreError } = runInContext('library', context);
  const service = createLocalService({ limits: FREE });
  const o = { base: 'http://local.test', fetch: service.fetch };
  const stop = new AbortController();
  const methods = new Map([['add', ({ a, b }: any) => a + b]]);
  const serving = await new Promise<{ over: Promise<void> }>((resolve) => {
    const over = serve('mb-p-server', Signer.generate(), {
      ...o,
      methods,
      signal: stop.signal,
      onReady: () => resolve({ over }),
    });
  });
  const client = Signer.generate();
  expect(await call('mb-p-server', 'add', { a: 1, b: 2 }, client, { ...o, replyTo: 'mb-p-client' })).toBe(3);
  stop.abort();
  await serving.over;
  // What needs Node says so, when it is asked for.
  const e = await Signer.fromDir('/nowhere').catch((e: unknown) => e);
  expect(TechnocoreError.is(e)).toBe(true);
  expect(e.code).toBe('unavailable');
});
