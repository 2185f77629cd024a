import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { Extractor, ExtractorConfig } from '@microsoft/api-extractor';
import { defineConfig } from 'tsup';

const { version, dependencies } = JSON.parse(readFileSync('package.json', 'utf8'));
const sources = createHash('sha256');
for (const file of readdirSync('src').sort()) sources.update(file).update(readFileSync(`src/${file}`));

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
  banner: {
    js: [
      `/*! technocore-rpc ${version} | Apache-2.0`,
      ` * With ${Object.keys(dependencies).join(', ')} | MIT, their authors`,
      ` * Sources: sha256 ${sources.digest('hex')} */`,
    ].join('\n'),
  },
  async onSuccess() {
    // One file of declarations out of those that tsc wrote, so that whoever copies the code copies two files.
    const { succeeded } = Extractor.invoke(
      ExtractorConfig.prepare({
        configObjectFullPath: undefined,
        packageJsonFullPath: `${process.cwd()}/package.json`,
        configObject: {
          projectFolder: process.cwd(),
          mainEntryPointFilePath: '<projectFolder>/dist/vendor.d.ts',
          compiler: { tsconfigFilePath: '<projectFolder>/tsconfig.json' },
          dtsRollup: { enabled: true, untrimmedFilePath: '<projectFolder>/dist/vendor/technocore-rpc.d.ts' },
          apiReport: { enabled: false },
          docModel: { enabled: false },
          tsdocMetadata: { enabled: false },
          messages: {
            compilerMessageReporting: { default: { logLevel: 'error' as never } },
            extractorMessageReporting: { default: { logLevel: 'none' as never } },
            tsdocMessageReporting: { default: { logLevel: 'none' as never } },
          },
        },
      }),
      { localBuild: true },
    );
    if (!succeeded) throw new Error('the declarations of the vendor file could not be made');
  },
});
