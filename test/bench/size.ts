import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import type { Goal } from './goals.ts';

/**
 * Bytes of a bundle, minified and gzipped.
 *
 * @param platform `browser`: without what package.json replaces there
 */
async function size(
  contents: string,
  resolveDir: string,
  platform: 'browser' | 'neutral',
  external: string[] = [],
): Promise<number> {
  const { outputFiles } = await build({
    stdin: { contents, resolveDir },
    bundle: true,
    minify: true,
    format: 'esm',
    platform,
    target: 'es2022',
    mainFields: ['browser', 'module', 'main'],
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
  const own = (contents: string): Promise<number> => size(contents, root, 'browser', others);
  const rooms = await own(
    "export * from './dist/rooms.js'; export * from './dist/signer.js'; export { dispatch } from './dist/dispatch.js';",
  );
  const caller = await own("export { call, Signer } from './dist/technocore-rpc.js';");
  const lower = await own(
    "export * from './dist/http.js'; export * from './dist/frames.js'; export * from './dist/crypto.js';",
  );
  const parley = await own("export * from './dist/parley.js';");
  const calls = './dist/call.js ./dist/serve.js';
  const exported = (files: string): string => files.replace(/\S+/g, "export * from '$&';");
  const called = await own(exported(calls));
  const over = async (name: string, files: string): Promise<string> =>
    `${name} ${(((await own(exported(`${calls} ${files}`))) - called) / 1000).toFixed(1)}`;
  const layers = [
    await over('MCP', './dist/mcp.js ./dist/mcp-client.js'),
    await over('A2A', './dist/a2a-agent.js ./dist/a2a-call.js ./dist/a2a-card.js ./dist/a2a-notes.js'),
    await over('E2E', './dist/e2e.js ./dist/meeting.js'),
  ];
  // The file to copy is the same everywhere.
  const all = await size("export * from './dist/vendor.js';", root, 'neutral', others);
  const whole = await size("export * from './dist/vendor.js';", root, 'neutral');
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
    goal(
      'own code of rooms and JSON-RPC, KB gzipped',
      rooms,
      12,
      `in a browser ${kb(rooms)}; call and Signer ${kb(caller)}`,
      grown,
    ),
    goal('own code of parley over what both share, KB gzipped', parley - lower, 6, `${kb(parley)} with it`, ''),
    goal(
      'the whole vendored file, KB gzipped',
      whole,
      56,
      `own code ${kb(all)}; over call and serve (${(called / 1000).toFixed(1)} KB): ${layers.join(', ')} KB`,
      grown,
    ),
  ];
}
