import { PassThrough, Writable } from 'node:stream';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { Lines, LineWriter, readLines } from '../src/bridge-lines.ts';

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

function reader(max?: number): { lines: Lines; seen: unknown[] } {
  const seen: unknown[] = [];
  const lines = new Lines(
    {
      frame: (frame) => void seen.push(frame),
      junk: (begin) => void seen.push(['junk', begin]),
      tooLong: (size, id) => void seen.push(['long', size, id]),
    },
    max,
  );
  return { lines, seen };
}

test('frames come out as they went in, wherever the stream is cut', () => {
  const frame = fc.dictionary(fc.string(), fc.oneof(fc.string({ unit: 'binary' }), fc.integer(), fc.constant(null)));
  fc.assert(
    fc.property(
      fc.array(frame),
      fc.infiniteStream(fc.integer({ min: 1, max: 9 })),
      fc.boolean(),
      (frames, cuts, crlf) => {
        const { lines, seen } = reader();
        const all = bytes(frames.map((one) => `${JSON.stringify(one)}${crlf ? '\r\n' : '\n'}`).join(''));
        for (let at = 0; at < all.length; ) {
          const cut = cuts.next().value;
          lines.push(all.subarray(at, at + cut));
          at += cut;
        }
        expect(seen).toEqual(frames.map((one) => JSON.parse(JSON.stringify(one))));
      },
    ),
  );
});

test('junk is one skipped line', () => {
  const { lines, seen } = reader();
  lines.push(bytes('\n  \nserver is ready\n{"a":1}\n7\n{"half":\n[1]\n'));
  lines.push(new Uint8Array([0xff, 0xfe, 0x0a]));
  lines.push(bytes('{"b":2}\n{"unfinished"'));
  expect(seen).toEqual([
    ['junk', 'server is ready'],
    { a: 1 },
    ['junk', '7'],
    ['junk', '{"half":'],
    [1],
    ['junk', '\ufffd\ufffd'],
    { b: 2 },
  ]);
});

test.each([
  ['{"jsonrpc":"2.0","id":7,"result":"', '"}', 7],
  ['{"jsonrpc":"2.0","id":"x","result":"', '"}', 'x'],
  ['{"result":"', '","jsonrpc":"2.0","id":8}', 8],
  ['{"result":"', '","id":9,"jsonrpc":"2.0"}', 9],
  ['{"result":"', '","inner":{"id":9}}', undefined],
  ['{"result":{"id":7,"text":"', '"}}', undefined],
])('a line that is too long says whose answer it was: %s…%s', (begin, end, id) => {
  const { lines, seen } = reader(1000);
  const line = `${begin}${'x'.repeat(5000)}${end}\n`;
  for (let at = 0; at < line.length; at += 300) lines.push(bytes(line.slice(at, at + 300)));
  lines.push(bytes('{"next":1}\n'));
  expect(seen).toEqual([['long', line.length - 1, id], { next: 1 }]);
});

test('of a line without end little is kept', () => {
  const { lines, seen } = reader(100_000);
  const chunk = new Uint8Array(1 << 16).fill(0x78);
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 2000; i++) lines.push(chunk);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(64 << 20);
  expect(seen).toEqual([]);
});

test('a stream that ends or fails is told once', async () => {
  const stream = new PassThrough();
  let ends = 0;
  readLines(stream, { frame: () => {} }, () => ends++);
  stream.destroy(new Error('broken'));
  await new Promise((resolve) => stream.once('close', resolve));
  expect(ends).toBe(1);
});

test('writing to who is gone, or does not read, fails by name', async () => {
  const out = new PassThrough();
  const writer = new LineWriter(out);
  await writer.write({ a: '\n' });
  expect(String(out.read())).toBe('{"a":"\\n"}\n');
  out.destroy();
  await expect(writer.write({})).rejects.toMatchObject({ code: 'closed' });
  const stuck = new LineWriter(new Writable({ highWaterMark: 1, write: () => {} }));
  const big = { text: 'x'.repeat(1 << 20) };
  const writes = Array.from({ length: 70 }, () => stuck.write(big));
  for (const write of writes) write.catch(() => {});
  await expect(writes.at(-1)).rejects.toMatchObject({ code: 'closed', message: 'the other side does not read' });
});
