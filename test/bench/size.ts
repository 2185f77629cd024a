import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import type { Goal } from './goals.ts';

/** Bytes of a bundle, minified and gzipped. */
async function size(contents: string, resolveDir: string, external: string[] = []): Promise<number> {
  const { outputFiles } = await build({
    stdin: { contents, resolveDir },
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'neutral',
    target: 'es2022',
    mainFields: ['module', 'main'],
    conditions: ['import'],
    external,
    write: false,
    legalComments: 'none',
    logLevel: 'error',
  });
  return gzipSync(outputFiles[0]!.contents, { level: 9 }).length;
}

/** What comes along when it is bundled. */
export async function benchSize(): Promise<Goal[]> {
  const root = process.cwd();
  const others = ['@noble/*', '@cfworker/json-schema'];
  const own = (contents: string): Promise<number> => size(contents, root, others);
  const rooms = await own(
    "export * from './dist/rooms.js'; export * from './dist/signer.js'; export { dispatch } from './dist/dispatch.js';",
  );
  const calls = await own("export { call } from './dist/technocore-rpc.js';");
  const lower = await own(
    "export * from './dist/http.js'; export * from './dist/frames.js'; export * from './dist/crypto.js';",
  );
  const parley = await own("export * from './dist/parley.js';");
  const all = await own("export * from './dist/vendor.js';");
  const whole = await size("export * from './dist/vendor.js';", root);
  const kb = (bytes: number): string => `${bytes} bytes`;
  const goal = (name: string, bytes: number, limit: number, detail: string, why: string): Goal => ({
    number: 11,
    name,
    value: bytes / 1000,
    target: ['<=', limit],
    detail,
    why,
  });
  const grown = 'the limit is older than the ledger, claims, presence, fair shares, spilled answers, A2A';
  return [
    goal('own code of rooms and JSON-RPC, KB gzipped', rooms, 12, `${kb(rooms)}; with call ${kb(calls)}`, grown),
    goal('own code of parley over what both share, KB gzipped', parley - lower, 6, `${kb(parley)} with it`, ''),
    goal('the whole vendored file, KB gzipped', whole, 56, `${kb(whole)}, own code ${kb(all)}`, grown),
  ];
}
