import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    root: new URL('..', import.meta.url).pathname,
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/build.ts'],
    // Bounds for what hangs, far beyond what a slow machine needs.
    testTimeout: 300_000,
    hookTimeout: 300_000,
    retry: process.env['CI'] ? 1 : 0,
    // Two cores: a third worker only makes the clock-bound tests wait for each other.
    maxWorkers: 2,
  },
});
