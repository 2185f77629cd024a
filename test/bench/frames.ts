import { encode } from '../../src/frames.ts';
import { has, Worker } from './contenders.ts';
import type { Goal, Outcome } from './goals.ts';
import { alternate, often } from './rounds.ts';

const perCharacter = (frame: object): string =>
  JSON.stringify(frame).replace(/[\x7f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);

const PYTHON = `
import json, sys, time
frame = json.loads(sys.stdin.readline())
print(json.dumps(frame, separators=(",", ":"), ensure_ascii=True), flush=True)
for line in sys.stdin:
    times = int(line)
    begun = time.process_time()
    for _ in range(times):
        json.dumps(frame, separators=(",", ":"), ensure_ascii=True)
    print((time.process_time() - begun) * 1000, flush=True)
`;

/** Frames into text. */
export async function benchFrames(): Promise<Outcome[]> {
  const frame = (text: string): { jsonrpc: string; id: string; method: string; params: { text: string } } => ({
    jsonrpc: '2.0',
    id: 'k9',
    method: 'translate',
    params: { text },
  });
  const ascii = frame('The quick brown fox jumps. '.repeat(10).slice(0, 230));
  const long = frame('The quick brown fox jumps. '.repeat(150).slice(0, 3900));
  const cjk = frame('漢字仮名交じり文'.repeat(75));
  for (const one of [ascii, long, cjk]) {
    if (encode(one) !== perCharacter(one)) throw new Error('answers differ');
  }
  const python = has('python3') ? new Worker('python3', ['-u', '-c', PYTHON]) : undefined;
  if (python && (await python.ask(JSON.stringify(ascii))) !== encode(ascii)) throw new Error('answers differ');
  const r = await alternate({
    ascii: often(() => encode(ascii)),
    'ascii, stringify': often(() => JSON.stringify(ascii)),
    long: often(() => encode(long)),
    'long, stringify': often(() => JSON.stringify(long)),
    cjk: often(() => encode(cjk)),
    'cjk, a character at a time': often(() => perCharacter(cjk)),
    python: python && (async (times) => Number(await python.ask(`${times}`))),
  });
  python?.end();
  const goal = (name: string, one: string, other: string, limit: number): Goal => ({
    number: 4,
    name,
    value: r.speed(one, other),
    target: ['>=', limit],
    detail: `${r.micros(one).toFixed(2)} µs, ${other} ${r.micros(other).toFixed(2)} µs`,
  });
  return [
    goal('encode, 300 ASCII, by JSON.stringify alone', 'ascii', 'ascii, stringify', 0.7),
    goal('encode, 4,000 ASCII, by JSON.stringify alone', 'long', 'long, stringify', 0.7),
    goal('encode, 600 CJK, by a character at a time', 'cjk', 'cjk, a character at a time', 2.5),
    python
      ? goal('encode, 300 ASCII, by Python', 'ascii', 'python', 2)
      : { number: 4, name: 'encode, 300 ASCII, by Python', skipped: 'there is no python3' },
  ];
}
