import { basename } from 'node:path';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

/** The files that take longest, longest first. Begun last, one would run alone in the end, beside an idle core. */
const LONG = ['cli', 'sim', 'dist', 'sim-days', 'cli-mcp', 'claims', 'keydir-processes', 'bridge', 'flood', 'readme'];

class LongFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const turn = ({ moduleId }: TestSpecification): number => {
      const place = LONG.indexOf(basename(moduleId, '.test.ts'));
      return place < 0 ? LONG.length : place;
    };
    return (await super.sort(files)).sort((a, b) => turn(a) - turn(b));
  }
}

export default defineConfig({
  test: {
    root: new URL('..', import.meta.url).pathname,
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/build.ts'],
    sequence: { sequencer: LongFirst },
    // Bounds for what hangs, far beyond what a slow machine needs.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    retry: process.env['CI'] ? 1 : 0,
    // Two cores: a third worker only makes the clock-bound tests wait for each other.
    maxWorkers: 2,
  },
});
