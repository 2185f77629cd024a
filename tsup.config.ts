import { defineConfig } from 'tsup';

/** The one file to copy. Everything else in `dist/` comes from `tsc`, file by file. */
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
});
