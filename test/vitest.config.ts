import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    root: new URL('..', import.meta.url).pathname,
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/build.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    // Two cores: a third worker only makes the clock-bound tests wait for each other.
    maxWorkers: 2,
  },
});
