import { readdir, readFile } from 'node:fs/promises';
import { transform } from 'esbuild';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Program, Programs, served } from './programs.ts';

// Every example in a doc comment, which the API reference and editors show, is compiled and run as it stands.

const src = new URL('../src/', import.meta.url);

/** The examples of a file, by the line each begins in. */
async function examplesOf(file: string): Promise<[name: string, code: string][]> {
  const text = await readFile(new URL(file, src), 'utf8');
  return [...text.matchAll(/^ *\* ```ts\n([\s\S]*?)^ *\* ```$/gm)].map(({ index, 1: body }) => {
    const line = text.slice(0, index).split('\n').length;
    return [`${file.slice(0, -3)}-${line}.ts`, body!.replace(/^ *\* ?/gm, '')];
  });
}

const files = (await readdir(src)).filter((name) => name.endsWith('.ts'));
const examples = (await Promise.all(files.map(examplesOf))).flat();
let programs: Programs;

beforeAll(async () => {
  programs = await Programs.start();
});

afterAll(() => programs.close());

test('what is marked as an example is one that is looked at here', async () => {
  expect(examples.length).toBeGreaterThan(20);
  const texts = await Promise.all(files.map((file) => readFile(new URL(file, src), 'utf8')));
  const marked = texts.join('').match(/^ *\* @example\b/gm)!;
  expect(texts.join('').match(/^ *\* @example\n *\* ```ts$/gm)).toHaveLength(marked.length);
  expect(marked.length).toBeLessThanOrEqual(examples.length);
});

test('the examples are TypeScript, under strict', async () => {
  expect(await programs.typeErrors(examples)).toBe('');
});

/** The mailbox that an example serves until it is stopped, and others call. */
const servedBy = (code: string): string | undefined =>
  /^(?:await |const transport = new )(?:serve|RoomServerTransport|acceptSealed)\('([\w-]+)'/m.exec(code)?.[1];
/** Whether an example goes on until it is stopped: it serves, or it listens for what does not come here. */
const isEndless = (code: string): boolean => servedBy(code) !== undefined || code.includes(' of mcpListen(');
const endless = examples.filter(([, code]) => isEndless(code));
const others = examples.filter(([, code]) => !isEndless(code));

/** Lines that an example says are printed, behind what prints them. */
const printedBy = (code: string): string[] =>
  [...code.matchAll(/console\.log\(.*\); \/\/ (?:… )?([^…\n]+)$/gm)].map(([, line]) => line!);

async function start(name: string, code: string): Promise<Program> {
  return programs.run(name.slice(0, -3), (await transform(code, { loader: 'ts' })).code);
}

test('the examples run, those that call upon those that serve, and print what they say', async () => {
  const running = await Promise.all(
    endless.map(async ([name, code]) => {
      const program = await start(name, code);
      const ended = program.done.then((printed) => expect([name, printed]).toEqual([name, 'nothing: it goes on']));
      ended.catch(() => {});
      const mailbox = servedBy(code);
      if (mailbox) await served(mailbox, programs.service.url, program.done);
      return { program, ended };
    }),
  );
  const all = Promise.all(
    others.map(async ([name, code]) => {
      const printed = await (await start(name, code)).done;
      for (const line of printedBy(code)) {
        expect([name, printed]).toEqual([name, expect.stringContaining(line.replace(/^'|'$/g, ''))]);
      }
    }),
  );
  await Promise.race([all, ...running.map(({ ended }) => ended)]);
  await all;
  for (const { program } of running) program.stop();
  expect(others.flatMap(([, code]) => printedBy(code)).length).toBeGreaterThan(10);
});
