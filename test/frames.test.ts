import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { EmptyText, FrameTooLong, TechnocoreError } from '../src/errors.ts';
import {
  codePoints,
  decode,
  encode,
  encodeLong,
  isObject,
  type Json,
  MAX_NOTE,
  MAX_TEXT,
  parseExact,
  parseJson,
  sweep,
} from '../src/frames.ts';

const vectors = JSON.parse(readFileSync(new URL('vectors/technocore-jsonrpc.json', import.meta.url), 'utf8'));
const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

/** What `f` throws. */
function thrown(f: () => unknown): any {
  try {
    f();
  } catch (e) {
    return e;
  }
  throw new Error('nothing was thrown');
}

// The swept set, as the service has it.
const SWEPT = `0-1F 7F-9F AD 600-605 61C 6DD 70F 890-891 8E2 180E 200B-200F 2028-202E 2060-2064 2066-206F D800-F8FF FEFF
  FFF9-FFFB 110BD 110CD 13430-1343F 1BCA0-1BCA3 1D173-1D17A E0001 E0020-E007F F0000-FFFFD 100000-10FFFD`
  .split(/\s+/)
  .map((range) => range.split('-').map((hex) => Number.parseInt(hex, 16)))
  .map(([from, to]) => [from!, to ?? from!] as const);
const BLANKS = new Set([0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000]);
for (let c = 0x2000; c <= 0x200a; c++) BLANKS.add(c);

describe('sweep', () => {
  test('fault 3: every code point, inside a text and at its ends', () => {
    const swept = new Uint8Array(0x110000);
    for (const [from, to] of SWEPT) swept.fill(1, from, to + 1);
    const wrong: string[] = [];
    let count = 0;
    for (let c = 0; c < 0x110000; c++) {
      const char = String.fromCodePoint(c);
      count += swept[c]!;
      const inside = sweep(`a${char}b`) === (swept[c] === 1 ? 'a b' : `a${char}b`);
      const trimmed = swept[c] === 1 || BLANKS.has(c);
      const ends = sweep(`${char}x${char}`) === (trimmed ? 'x' : `${char}x${char}`);
      if (!inside || !ends) wrong.push(c.toString(16));
    }
    expect(wrong).toEqual([]);
    expect(count).toBe(139_753);
  });

  test.each([
    ['fault 1: a final newline', 'hello\n', 'hello'],
    ['fault 2: blanks around', '  padded  ', 'padded'],
    ['fault 2: a leading BOM', '\ufeffhi', 'hi'],
    ['fault 3: private use', 'a\ue000b', 'a b'],
    ['fault 3: a soft hyphen', 'a\u00adb', 'a b'],
    ['fault 3: a tag character', 'a\u{e0020}b', 'a b'],
    ['fault 5: emoji stay whole', 'ship 🚀 it', 'ship 🚀 it'],
    ['fault 5: a family loses its joiners alone', '👩\u200d👧', '👩 👧'],
    ['fault 6: a lone surrogate', 'a\ud800b', 'a b'],
    ['fault 6: lone halves in the wrong order', 'a\udc00\ud800b', 'a  b'],
    ['fault 6: U+FFFD stays', 'a\ufffdb', 'a\ufffdb'],
    ['fault 17: nothing is composed', 'Vie\u0323\u0302t', 'Vie\u0323\u0302t'],
    ['inner runs of blanks stay', 'a \t\u00a0 b', 'a  \u00a0 b'],
    ['trimmed after the sweep', '\u0000\u3000x\u2028\u00a0', 'x'],
    ['variation selectors stay', '☁\ufe0f', '☁\ufe0f'],
  ])('%s', (_, raw, swept) => {
    expect(sweep(raw)).toBe(swept);
    expect(sweep(swept)).toBe(swept);
  });

  test('nothing left', () => {
    for (const text of ['', '   ', '\u0000\n\u2028', '\u3000\u00ad', '\ud800'])
      expect(() => sweep(text)).toThrow(EmptyText);
  });

  test('fault 8: the limit counts code points, not UTF-16 units', () => {
    const full = '😀'.repeat(MAX_TEXT);
    expect(sweep(full)).toBe(full);
    expect(thrown(() => sweep(`${full}x`))).toMatchObject({ code: 'frame_too_long', chars: 4097, limit: 4096 });
    expect(thrown(() => sweep(`${full}😀`))).toMatchObject({ chars: 4097 });
  });

  test('fault 9: the limit of notes counts code points, not bytes', () => {
    const full = 'あ'.repeat(MAX_NOTE);
    expect(sweep(full, MAX_NOTE)).toBe(full);
    expect(thrown(() => sweep(`${full}あ`, MAX_NOTE))).toMatchObject({ chars: 8193, limit: 8192 });
  });

  test('the limit counts after the trim', () => {
    expect(sweep(`\n${'x'.repeat(MAX_TEXT)} \u2028`)).toHaveLength(MAX_TEXT);
    expect(thrown(() => sweep(`x${' '.repeat(MAX_TEXT)}x`))).toMatchObject({ chars: 4098 });
  });
});

test('codePoints agrees with iteration', () => {
  for (const text of ['', 'a', '😀', '\ud83d', '\ude00\ud83d', '\ud83d\ud83d\ude00', 'a😀b\udc00', '😀\ud800']) {
    expect(codePoints(text)).toBe([...text].length);
  }
});

/** A value from the template of a long frame: `{"$repeat": [piece, count]}` is that repetition. */
function build(template: any): Json {
  if (Array.isArray(template)) return template.map(build);
  if (!isObject(template)) return template;
  const repeat = template['$repeat'] as [string, number] | undefined;
  return repeat === undefined
    ? Object.fromEntries(Object.entries(template).map(([k, v]) => [k, build(v)]))
    : repeat[0].repeat(repeat[1]);
}

describe('frames', () => {
  test.each(vectors.frames as any[])('recorded frame $id', (frame) => {
    const value = frame.build ? build(frame.build.template) : JSON.parse(frame.encoded);
    const line = encodeLong(value);
    expect(line).toHaveLength(frame.length);
    if (frame.encoded === undefined) expect(sha256(line)).toBe(frame.encoded_sha256);
    else expect(line).toBe(frame.encoded);
    expect(line).toMatch(/^[ -~]+$/);
    expect(decode(line)).toEqual(value);
    if (line.length > MAX_TEXT) {
      expect(thrown(() => encode(value))).toMatchObject({
        code: 'frame_too_long',
        chars: frame.length,
        limit: MAX_TEXT,
      });
    } else {
      expect(encode(value)).toBe(line);
      expect(sweep(line)).toBe(line);
    }
  });

  test('all recorded frames are here', () => {
    expect(vectors.frames).toHaveLength(34);
    expect(vectors.numbers).toHaveLength(31);
  });

  test.each(vectors.numbers as any[])('recorded number $literal', (n) => {
    const frame = decode(`[${n.literal}]`) as number[] | undefined;
    if (!n.js_parses) return expect(frame).toBeUndefined();
    expect(encode(frame!)).toBe(`[${n.js_stringify_after_parse}]`);
    expect(n.js_stringify_after_parse === n.python_loads_then_dumps).toBe(n.same);
    expect(Object.is(frame![0], -0)).toBe(n.js_value_is_minus_zero === true);
  });

  test('every UTF-16 unit survives the line', () => {
    for (let from = 0; from < 0x10000; from += 512) {
      const text = Array.from({ length: 512 }, (_, i) => String.fromCharCode(from + i)).join('');
      const line = encodeLong([text]);
      expect(/^[ -~]+$/.test(line)).toBe(true);
      expect(decode(line)).toEqual([text]);
    }
  });

  test('escapes begin at U+007F and are lower-case', () => {
    expect(encode(['~\x7f\x80\u00e9\uffff'])).toBe('["~\\u007f\\u0080\\u00e9\\uffff"]');
    expect(encode({ é: 'aéb', z: 'tail' })).toBe('{"\\u00e9":"a\\u00e9b","z":"tail"}');
  });

  test('the limit counts the characters of the line', () => {
    const room = MAX_TEXT - 4;
    expect(encode(['x'.repeat(room)])).toHaveLength(MAX_TEXT);
    expect(thrown(() => encode(['é'.repeat(room / 6 + 1)]))).toMatchObject({ limit: MAX_TEXT });
    const error = thrown(() => encode(['x'.repeat(room + 1)]));
    expect(error).toBeInstanceOf(FrameTooLong);
    expect(error).toMatchObject({ chars: MAX_TEXT + 1, limit: MAX_TEXT });
    expect(String(error)).toMatch(/ASCII is escaped.*shorten it.*split a batch.*note/);
    expect(encodeLong(['é'.repeat(room)])).toHaveLength(6 * room + 4);
  });

  test('what has no JSON form is refused by name', () => {
    const cyclic: unknown[] = [];
    cyclic.push(cyclic);
    for (const value of [undefined, () => 1, Symbol('s'), 1n, { n: 1n }, cyclic]) {
      const error = thrown(() => encodeLong(value));
      expect(error).toBeInstanceOf(TechnocoreError);
      expect(error.code).toBe('bad_frame');
    }
    // Too deep for the stack, unless the engine needs none.
    let deep: Json = [];
    for (let i = 0; i < 200_000; i++) deep = [deep];
    try {
      expect(encodeLong(deep)).toHaveLength(400_002);
    } catch (e) {
      expect((e as TechnocoreError).code).toBe('bad_frame');
    }
  });

  test('decode gives objects and arrays, and undefined for all else', () => {
    expect(decode(' {"a":[1]} ')).toEqual({ a: [1] });
    expect(decode('[]')).toEqual([]);
    for (const text of ['', 'null', 'true', '7', '"x"', '{', '{"a":1}x', '\ufeff{}', "{'a':1}", '[1,]', '{"a":NaN}']) {
      expect(decode(text)).toBeUndefined();
    }
    expect(() => decode('['.repeat(1_000_000))).not.toThrow();
  });

  test('a member called __proto__ is a member', () => {
    const frame = decode('{"__proto__":{"polluted":true}}');
    expect(Object.keys(frame!)).toEqual(['__proto__']);
    expect(({} as any).polluted).toBeUndefined();
  });
});

test('what is longer than a message and nested without end is no frame', () => {
  const nested = (depth: number, more: string): string =>
    `{"a":${'['.repeat(depth)}${']'.repeat(depth)},"b":"${more}"}`;
  expect(decode(nested(900, 'x'.repeat(5000)))).toMatchObject({ b: 'x'.repeat(5000) });
  expect(decode(nested(900, '['.repeat(5000)))).toBeDefined();
  expect(decode(nested(20_000, ''))).toBeUndefined();
  // In a message there is no place for so much that it would matter.
  expect(decode(nested(2000, ''))).toBeDefined();
});

describe('more values, or deeper ones, than anybody has use for', () => {
  const many = (of: string, n = 1.5e6) => `{"a":[${`${of},`.repeat(n)}1]}`;

  test('are not read, however they are written', () => {
    const members = `{${Array.from({ length: 1.1e6 }, (_, i) => `"${i}":1`)}}`;
    for (const text of [many('1'), many('{}'), many('[]'), many('""'), members, '['.repeat(3e6) + ']'.repeat(3e6)]) {
      expect(() => parseJson(text)).toThrow(SyntaxError);
      expect(() => parseExact(text, 'seq')).toThrow(SyntaxError);
      expect(decode(text)).toBe(undefined);
    }
  });

  test('are not seen in strings, nor where a quote is escaped', () => {
    for (const text of [',[{'.repeat(1e6), '",'.repeat(1e6), '\\",'.repeat(1e6), '\\'.repeat(2e6)]) {
      const json = JSON.stringify({ seq: 1, text, after: [1] });
      expect(parseJson(json)).toEqual({ seq: 1, text, after: [1] });
      expect(parseExact(json, 'seq')).toEqual({ seq: '1', text: expect.anything(), after: [1] });
      expect(decode(json)).toEqual({ seq: 1, text, after: [1] });
    }
    expect(() => parseJson(many('"\\\\"'))).toThrow('too many');
    expect(() => parseJson(`"${many('1')}`)).toThrow(SyntaxError);
  });
});

describe('parseExact', () => {
  test('fault 15: nonces keep their digits', () => {
    expect(parseExact('{"nonce":1788872638667723579}', 'nonce')).toEqual({ nonce: '1788872638667723579' });
    expect(parseExact('{"nonce":9999999999999999999}', 'nonce')).toEqual({ nonce: '9999999999999999999' });
    expect(parseExact('{"seq":18446744073709551615}', 'seq')).toEqual({ seq: '18446744073709551615' });
    expect(parseExact('{"nonce":0,"a":{"nonce":-7}}', 'nonce')).toEqual({ nonce: '0', a: { nonce: '-7' } });
  });

  test('white space and nesting make no difference', () => {
    expect(parseExact('{ "nonce" :\n\t1 , "m":[{"nonce":2},[{"nonce": 3}]] }', 'nonce')).toEqual({
      nonce: '1',
      m: [{ nonce: '2' }, [{ nonce: '3' }]],
    });
    expect(parseExact('[{"nonce":1},{"nonce":2}]\n', 'nonce')).toEqual([{ nonce: '1' }, { nonce: '2' }]);
  });

  test('other values and other members are left alone', () => {
    for (const value of ['1.5', '1e5', '-1E+2', '1.0', 'null', 'true', '"12"', '[1]', '{"x":1}']) {
      expect(parseExact(`{"nonce":${value}}`, 'nonce')).toEqual({ nonce: JSON.parse(value) });
    }
    expect(parseExact('{"nonces":1,"xnonce":2,"Nonce":3,"":4}', 'nonce')).toEqual({
      nonces: 1,
      xnonce: 2,
      Nonce: 3,
      '': 4,
    });
    expect(parseExact('["nonce",1]', 'nonce')).toEqual(['nonce', 1]);
  });

  test('quoted text is never taken for a member', () => {
    for (const text of ['"nonce":1', '\\"nonce":2', '{"nonce":3}', 'a\\', '\\\\"nonce":4,"', '"', '\n"nonce":\t5']) {
      const value = { text, nonce: 7, [text]: 8, list: [text, { text }] };
      expect(parseExact(JSON.stringify(value), 'nonce')).toEqual({ ...value, nonce: '7' });
    }
  });

  test('an escaped name is the same name', () => {
    expect(parseExact('{"\\u006eonce":12345678901234567890}', 'nonce')).toEqual({ nonce: '12345678901234567890' });
    expect(parseExact('{"\\u006Eonce":12345678901234567890}', 'nonce')).toEqual({ nonce: '12345678901234567890' });
    expect(parseExact('{"n\\u006f\\u006ece":1,"no\\nce":2}', 'nonce')).toEqual({ nonce: '1', 'no\nce': 2 });
  });

  test('what is not JSON is a SyntaxError', () => {
    for (const text of [
      '',
      '{"nonce":01}',
      '{"nonce":1',
      '{"nonce":-}',
      '{"nonce":"1}',
      '{"\\q":1}',
      '{"a":"\\',
      'nonce:1',
    ]) {
      expect(() => parseExact(text, 'nonce'), text).toThrow(SyntaxError);
    }
  });

  test('a hostile text takes linear time', () => {
    // Quadratic, these would run for minutes and hit the time limit.
    const many = 200_000;
    for (const text of [
      `{"a":"${'\\"'.repeat(many)}`,
      `{"a":"${'\\"'.repeat(many)}\\`,
      '"'.repeat(many),
      `"nonce"${' '.repeat(many)}1`,
      `{"nonce":${'1'.repeat(many)}.`,
    ]) {
      expect(() => parseExact(text, 'nonce')).toThrow(SyntaxError);
    }
  });
});

test('isObject is true for JSON objects alone', () => {
  expect([{}, [], null, 1, 'x', undefined].map(isObject)).toEqual([true, false, false, false, false, false]);
});
