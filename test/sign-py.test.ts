import { spawn } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { MAX_TEXT } from '../src/frames.ts';
import { identityNote } from '../src/names.ts';
import { Signer } from '../src/signer.ts';

const SIGN_PY = process.env['SIGN_PY'];

// One interpreter for all: it runs the script anew for each list of arguments, and prints what it printed or how it ended.
const DRIVER = `
import contextlib, io, json, runpy, sys
for line in sys.stdin:
    sys.argv = [sys.argv[1] if sys.argv[0] == "-c" else sys.argv[0], *json.loads(line)]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(sys.argv[0], run_name="__main__")
        print(json.dumps({"lines": out.getvalue().splitlines()}), flush=True)
    except SystemExit as end:
        print(json.dumps({"refused": str(end.code)}), flush=True)
`;

async function signPy(calls: string[][]): Promise<{ lines?: string[]; refused?: string }[]> {
  const child = spawn('python3', ['-c', DRIVER, SIGN_PY!], { stdio: ['pipe', 'pipe', 'pipe'] });
  let out = '';
  let trouble = '';
  child.stdout.on('data', (data) => (out += data));
  child.stderr.on('data', (data) => (trouble += data));
  // Escaped, so that even a lone surrogate arrives.
  const ascii = (call: string[]): string =>
    JSON.stringify(call).replace(/[\x7f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
  child.stdin.end(calls.map((call) => `${ascii(call)}\n`).join(''));
  const code = await new Promise((resolve) => child.on('close', resolve));
  expect(code, trouble).toBe(0);
  return out
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
}

/** What our signer prints, or the code of what it throws. */
function ours(sign: () => { did: string; sig: string }): { lines?: string[]; refused?: string } {
  try {
    const { did, sig } = sign();
    return { lines: [did, sig] };
  } catch (e) {
    return { refused: (e as { code: string }).code };
  }
}

// All but `--`, which Python's argument parser eats even after another one.
const EDGES = [
  '',
  ' ',
  '\u200b',
  '\n',
  '\u00a0',
  'a',
  '-',
  '-a',
  '--seed',
  '.',
  '..',
  '|',
  'a|b|c',
  'lobby|5|x',
  '%41',
  '100% +&=',
  'a/b?c#d',
  '"\'\\',
  '\\u0041',
  'hello\n',
  '  padded  ',
  '\ufeffhi',
  'a\ue000b',
  'a\u00adb',
  '\u{e0020}x',
  'ship 🚀 it',
  '👨‍👩‍👧‍👦',
  'a\ud800b',
  'a\udc00',
  '\ud800',
  'a\ufffdb',
  'a\ufffcb',
  '\u3000x\u2003',
  '\u0085x',
  'a\u2028b',
  'a\u2029b',
  'a\u007fb',
  'a\u0000b',
  'a\u001cb',
  'Việt',
  'Việt'.normalize('NFD'),
  'あ',
  'مرحبا \u0601',
  'a\ufe0fb',
  '\u180ex',
  '\u{110bd}x',
  'x\u{10ffff}',
  'x\u{10fffd}y',
  'x'.repeat(MAX_TEXT),
  'x'.repeat(MAX_TEXT + 1),
  '😀'.repeat(MAX_TEXT),
  ` ${'x'.repeat(MAX_TEXT)} `,
  'é'.repeat(MAX_TEXT + 1),
];

describe.skipIf(SIGN_PY === undefined)('the signer of the service, named by SIGN_PY', () => {
  const seed = Number(process.env['SIGN_PY_SEED'] ?? Math.floor(Math.random() * 2 ** 31));
  let state = seed;
  const random = (below: number): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
  // Where the sweep has something to decide; what Unicode 15 added is left out, older Pythons do not know it.
  const BLOCKS = [
    [0, 0x7f],
    [0x80, 0x24f],
    [0x600, 0x6ff],
    [0x1800, 0x180f],
    [0x2000, 0x206f],
    [0x3000, 0x30ff],
    [0xd800, 0xf8ff],
    [0xfe00, 0xffff],
    [0x110b0, 0x110d0],
    [0x13420, 0x13438],
    [0x1d160, 0x1d180],
    [0x1f300, 0x1f6ff],
    [0xe0000, 0xe01ff],
    [0xf0000, 0x10ffff],
  ];
  const randomText = (): string =>
    Array.from({ length: 1 + random(40) }, () => {
      const [from, to] = BLOCKS[random(3) === 0 ? 0 : random(BLOCKS.length)]!;
      return String.fromCodePoint(from! + random(to! - from! + 1));
    }).join('');
  const randomName = (): string =>
    `${'abz09'[random(5)]}${Array.from({ length: random(20) }, () => 'az09_-'[random(6)]).join('')}`;
  const randomSeed = (): string =>
    [
      () => 'correct horse',
      () => '00'.repeat(32),
      () => 'AB'.repeat(32),
      () => 'g'.repeat(64),
      () => `pass ${random(1e9)} 🔑`,
      () => ' ',
    ][random(6)]!();
  const randomNonce = (): string => Array.from({ length: 1 + random(19) }, () => random(10)).join('');

  test(`says what we say of 200 random texts and ${EDGES.length} odd ones (SIGN_PY_SEED=${seed})`, async () => {
    const texts = [...EDGES, ...Array.from({ length: 200 }, randomText)];
    const calls: string[][] = [];
    const expected: { lines?: string[]; refused?: string }[] = [];
    for (const text of texts) {
      const phrase = randomSeed();
      const signer = Signer.fromPassphrase(phrase);
      const [a, b, nonce] = [randomName(), randomName(), randomNonce()];
      calls.push(['--seed', phrase, 'say', '--', a, nonce, text], ['--seed', phrase, 'set', '--', a, b, nonce, text]);
      expected.push(
        ours(() => signer.signMessage(a, nonce, text)),
        ours(() => signer.signNote(a, b, nonce, text)),
      );
    }
    const theirs = await signPy(calls);
    expect(theirs).toHaveLength(calls.length);
    theirs.forEach((their, i) => {
      const our = expected[i]!;
      const what = `SIGN_PY_SEED=${seed}: ${JSON.stringify(calls[i])}`;
      if (our.refused === undefined) expect(their, what).toEqual(our);
      else expect(their.refused, what).toMatch(our.refused === 'empty_text' ? /nothing|empty/i : /characters|long/i);
    });
    expect(expected.filter((our) => our.lines)).not.toHaveLength(0);
  });

  test('keygen, did and refusals', async () => {
    const [made] = await signPy([['keygen']]);
    const [seedLine, didLine] = made!.lines!;
    const signer = Signer.fromPassphrase(seedLine!.replace('seed: ', ''));
    expect(didLine).toBe(`did:  ${signer.did}`);
    const [did, nonce] = await signPy([
      ['did', '--seed', 'x'],
      ['--seed', 'x', 'say', 'lobby', '12345678901234567890', 'x'],
    ]);
    expect(did).toEqual({ lines: [Signer.fromPassphrase('x').did] });
    expect(nonce!.refused).toMatch(/nonce/);
    // Later versions say where the identity note is.
    const [note] = await signPy([['note', signer.did]]);
    const { ns, key } = identityNote(signer.did);
    if (note!.lines) expect(note!.lines).toEqual([`/kv/${ns}/${key}`]);
    else expect(note!.refused).toBe('2');
  });
});
