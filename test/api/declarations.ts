/** The declarations as `@microsoft/api-extractor` reads them: rolled up into one file, listed for the reference, checked. */
import { CompilerState, Extractor, ExtractorConfig, type ExtractorMessage } from '@microsoft/api-extractor';

/** The modules of the package, as `exports` of package.json names them; the vendored file holds the first two. */
export const ENTRIES = ['technocore-rpc', 'parley', 'local', 'bridge'] as const;

/** What to write, where: both are optional. */
export interface Outputs {
  /** All declarations in one file. */
  rollup?: string;
  /** The API as JSON, doc comments included. */
  model?: string;
}

const fileOf = (entry: string): string => `${process.cwd()}/dist/${entry}.d.ts`;

// All declarations, read once: that takes the compiler ten times as long as it takes to look at one module in them.
let compiled: CompilerState | undefined;

/**
 * Reads the declarations that `tsc` made for a module.
 *
 * @returns what api-extractor has to say about them
 */
export function extract(entry: string, { rollup, model }: Outputs): ExtractorMessage[] {
  const messages: ExtractorMessage[] = [];
  const silent = { default: { logLevel: 'none' as never } };
  const config = ExtractorConfig.prepare({
    configObjectFullPath: undefined,
    packageJsonFullPath: `${process.cwd()}/package.json`,
    configObject: {
      projectFolder: process.cwd(),
      mainEntryPointFilePath: fileOf(entry),
      compiler: { tsconfigFilePath: '<projectFolder>/tsconfig.json' },
      dtsRollup: { enabled: rollup !== undefined, untrimmedFilePath: rollup ?? '' },
      apiReport: { enabled: false },
      docModel: { enabled: model !== undefined, apiJsonFilePath: model ?? '' },
      tsdocMetadata: { enabled: false },
      messages: {
        compilerMessageReporting: { default: { logLevel: 'error' as never } },
        extractorMessageReporting: silent,
        tsdocMessageReporting: silent,
      },
    },
  });
  compiled ??= CompilerState.create(config, { additionalEntryPoints: [...ENTRIES, 'vendor'].map(fileOf) });
  const { succeeded } = Extractor.invoke(config, {
    compilerState: compiled,
    localBuild: true,
    messageCallback(message) {
      message.handled = message.messageId.startsWith('console-');
      messages.push(message);
    },
  });
  if (!succeeded) throw new Error(`the declarations of ${entry} could not be read`);
  return messages;
}
