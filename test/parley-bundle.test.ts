import { gzipSync } from 'node:zlib';
import { build } from 'esbuild';
import { expect, test } from 'vitest';

const root = new URL('..', import.meta.url).pathname;

async function bundle(external: string[] = []): Promise<{ text: string; files: string[] }> {
  const { outputFiles, metafile } = await build({
    absWorkingDir: root,
    entryPoints: ['src/parley.ts'],
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'neutral',
    target: 'es2022',
    mainFields: ['module', 'main'],
    external,
    write: false,
    metafile: true,
  });
  const { inputs } = Object.values(metafile.outputs)[0]!;
  const files = Object.keys(inputs).filter((file) => inputs[file]!.bytesInOutput > 0);
  return { text: outputFiles[0]!.text, files };
}

test('bundled alone, parley carries nothing of rooms, MCP, A2A, Ed25519 or AES', async () => {
  const { text, files } = await bundle();
  const own = files.filter((file) => file.startsWith('src/')).map((file) => file.slice(4));
  const rooms = ['budget', 'bytes', 'clock', 'crypto', 'errors', 'frames', 'http', 'maps'].map((name) => `${name}.ts`);
  const parley = ['noise.ts', 'parley-invite.ts', 'parley-relay.ts', 'parley.ts'];
  expect(own.filter((file) => !rooms.includes(file)).sort()).toEqual(parley);
  expect(files.filter((file) => /ciphers\/(?:aes|_polyval)/.test(file))).toEqual([]);
  // What is left of a library's module can only be told by its words. X25519 itself needs the curve's base point.
  for (const word of ['aes-256-gcm', 'an Ed25519 seed', 'tools/call', 'message/send', 'did:key', '/kv/']) {
    expect(text.includes(word), word).toBe(false);
  }
  // SHA-512's first constants: Ed25519 signs with it.
  expect(text).not.toMatch(/428a2f98d728ae22/i);
  expect(text).toContain('Noise_IKpsk1_25519_ChaChaPoly_SHA256');
});

test('its own code is small', async () => {
  const lower = ['bytes', 'clock', 'crypto', 'errors', 'frames', 'http', 'maps'].map((name) => `./${name}.ts`);
  const { text } = await bundle(['@noble/*', ...lower]);
  expect(gzipSync(text, { level: 9 }).length).toBeLessThan(8550);
});
