// `npm run test:runtimes`: the suite on Node 20, 22 and 24, Bun, Deno, workerd and Chromium, each with the built files as npm
// users get them and with the vendored file. Names on the command line choose: `npm run test:runtimes -- bun deno`.
import { execFile, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { createLocalService } from '../../src/local.ts';
import { bun, chromium, deno, miniflare, node } from './install.ts';
import type { Report } from './suite.ts';

const execute = promisify(execFile);
const root = process.cwd();
/** A project that has the package installed. */
const work = mkdtempSync(join(tmpdir(), 'runtimes-'));
process.once('exit', () => rmSync(work, { recursive: true }));
const MARK = 'report:';
/** Far beyond what a slow machine needs, ms. */
const LIMIT_MS = 240_000;

type Variant = 'package' | 'vendor';
const VARIANTS: Variant[] = ['package', 'vendor'];

/** A module that runs the suite on one variant of the library and hands the report to `end`. */
function entryOf(variant: Variant, url: string, end: string): string {
  const library =
    variant === 'vendor'
      ? "import * as library from 'technocore-rpc/vendor';"
      : `import * as main from 'technocore-rpc';
import * as parley from 'technocore-rpc/parley';
const library = { ...main, parley };`;
  return `${library}
import { createLocalService } from 'technocore-rpc/local';
import { suite } from './suite.js';
${end.replace('REPORT', `suite(library, createLocalService, ${JSON.stringify(url)})`)}
`;
}

/** One file without imports, for where there is no file system. */
async function bundled(source: string): Promise<string> {
  const { outputFiles } = await build({
    stdin: { contents: source, resolveDir: work },
    bundle: true,
    format: 'esm',
    platform: 'neutral',
    mainFields: ['module', 'main'],
    target: 'es2022',
    write: false,
  });
  return outputFiles[0]!.text;
}

/** In a program that takes the path of a module. */
async function inProcess(command: string, args: string[], variant: Variant, url: string): Promise<Report> {
  const file = join(work, `${variant}.mjs`);
  writeFileSync(file, entryOf(variant, url, `console.log('${MARK}' + JSON.stringify(await REPORT));`));
  const { stdout } = await execute(command, [...args, file], { cwd: work, timeout: LIMIT_MS, maxBuffer: 1 << 24 });
  return JSON.parse(stdout.slice(stdout.lastIndexOf(MARK) + MARK.length));
}

/** In the program that runs Cloudflare's Workers. */
async function inWorkerd(variant: Variant, url: string): Promise<Report> {
  const end = 'export default { async fetch() { return Response.json(await REPORT); } };';
  const { Miniflare } = miniflare();
  const worker = new Miniflare({
    modules: true,
    script: await bundled(entryOf(variant, url, end)),
    compatibilityDate: '2026-01-01',
  });
  try {
    return await (await worker.dispatchFetch('http://worker.test/')).json();
  } finally {
    await worker.dispose();
  }
}

/** Removes a directory into which processes still write for a moment; the retries of `rmSync` miss what is new in it. */
async function removed(dir: string): Promise<void> {
  for (let left = 50; ; left--) {
    try {
      return rmSync(dir, { recursive: true, force: true });
    } catch (cause) {
      if (left === 0) throw cause;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

/** In a page of a browser without a window. */
async function inChromium(program: string, variant: Variant, url: string): Promise<Report> {
  const end = "await fetch('/report', { method: 'POST', body: JSON.stringify(await REPORT) });";
  const script = await bundled(entryOf(variant, url, end));
  const profile = mkdtempSync(join(work, 'chromium-'));
  let child: ReturnType<typeof spawn> | undefined;
  try {
    return await new Promise<Report>((resolve, reject) => {
      const server = createServer(async (request, response) => {
        if (request.url === '/report') {
          let body = '';
          for await (const part of request) body += part;
          response.end();
          server.closeAllConnections();
          server.close();
          resolve(JSON.parse(body));
        } else if (request.url === '/suite.js') {
          response.writeHead(200, { 'content-type': 'text/javascript' }).end(script);
        } else {
          const fail =
            "onerror = (m) => fetch('/report', { method: 'POST', body: JSON.stringify({ broken: String(m) }) })";
          const page = `<!doctype html><script>${fail}</script><script type="module" src="/suite.js"></script>`;
          response.writeHead(200, { 'content-type': 'text/html' }).end(page);
        }
      });
      server.listen(0, '127.0.0.1', () => {
        const page = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
        const flags = ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--no-first-run'];
        child = spawn(program, [...flags, `--user-data-dir=${profile}`, page], {
          stdio: 'ignore',
          // It leaves its own temporary directories behind when it is killed.
          env: { ...process.env, TMPDIR: profile },
        });
        child.once('exit', (code) => reject(new Error(`chromium ended with ${code}`)));
      });
      setTimeout(() => reject(new Error('no report came from the page')), LIMIT_MS).unref();
    });
  } finally {
    child?.removeAllListeners('exit');
    if (child?.exitCode === null) {
      const gone = new Promise((resolve) => child!.once('exit', resolve));
      child.kill();
      await gone;
    }
    await removed(profile);
  }
}

type Start = (variant: Variant, url: string) => Promise<Report>;

/** Each gives what runs the suite, or undefined where it cannot be had. */
const runtimes: Record<string, () => Start | undefined> = {
  ...Object.fromEntries(
    [20, 22, 24].map((major) => [
      `node ${major}`,
      () => (variant: Variant, url: string) => inProcess(node(major), [], variant, url),
    ]),
  ),
  bun: () => (variant, url) => inProcess(bun(), ['run'], variant, url),
  // Nothing but the network is allowed: no files, no environment.
  deno: () => (variant, url) => inProcess(deno(), ['run', '--no-prompt', '--allow-net'], variant, url),
  workerd: () => inWorkerd,
  chromium() {
    const program = chromium();
    return program === undefined ? undefined : (variant, url) => inChromium(program, variant, url);
  },
};

/** Installs the built files as a package manager does, without asking one. */
function installPackage(): void {
  if (!existsSync(join(root, 'dist/vendor/technocore-rpc.js')))
    throw new Error('there is nothing built: npm run build');
  const { version, dependencies } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
  const modules = join(work, 'node_modules');
  for (const part of ['dist', 'package.json']) {
    cpSync(join(root, part), join(modules, 'technocore-rpc', part), { recursive: true });
  }
  for (const name of Object.keys(dependencies)) {
    cpSync(join(root, 'node_modules', name), join(modules, name), { recursive: true });
  }
  const own = { type: 'module', dependencies: { 'technocore-rpc': version } };
  writeFileSync(join(work, 'package.json'), JSON.stringify(own));
}

installPackage();
await build({
  entryPoints: [join(root, 'test/runtimes/suite.ts')],
  bundle: true,
  format: 'esm',
  platform: 'neutral',
  target: 'es2022',
  outfile: join(work, 'suite.js'),
});
const chosen = process.argv.slice(2);
const unlimited = {
  readsPerMinute: 1e9,
  writesPerMinute: 1e9,
  newRoomsPerDay: 1e9,
  connections: 1e4,
  waitersPerAddress: 1e4,
  waiters: 1e4,
};
const { url, close } = await createLocalService({ limits: unlimited }).listen();
let facts: string | undefined;
let [passed, failed, skipped] = [0, 0, 0];
for (const [name, find] of Object.entries(runtimes)) {
  if (chosen.length > 0 && !chosen.some((word) => name.replace(' ', '').startsWith(word.replace(' ', '')))) continue;
  for (const variant of VARIANTS) {
    const title = `${name.padEnd(9)} ${variant.padEnd(8)}`;
    const begun = performance.now();
    try {
      const start = find();
      if (!start) {
        skipped++;
        console.log(`${title} skipped: not to be had here`);
        continue;
      }
      const report = await start(variant, url);
      if (!Array.isArray(report.passed)) throw new Error(JSON.stringify(report));
      // The first runtime's answers are everybody's.
      facts ??= JSON.stringify(report.facts);
      if (facts !== JSON.stringify(report.facts)) {
        report.failed.push({ name: 'the same answers as elsewhere', error: JSON.stringify(report.facts) });
      }
      passed += report.passed.length;
      failed += report.failed.length;
      const seconds = ((performance.now() - begun) / 1000).toFixed(1);
      console.log(`${title} ${report.passed.length} passed, ${report.failed.length} failed, ${seconds} s`);
      for (const { name: test, error } of report.failed) console.log(`  ${test}: ${error}`);
    } catch (e) {
      failed++;
      console.log(`${title} failed: ${(e as Error).stack}`);
    }
  }
}
await close();
console.log(`runtimes: ${passed} passed, ${failed} failed, ${skipped} skipped`);
process.exit(failed > 0 || passed === 0 ? 1 : 0);
