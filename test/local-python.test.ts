import { expect, it } from 'vitest';
import { cursorOf, floatRepr, isDict, parsePython, repr, secondsOf, str } from '../src/local-python.ts';

// Every right side was printed by Python 3.12.

it.each([
  ['A', "'A'"],
  ["a'b", '"a\'b"'],
  ['a\'"b', "'a\\'\"b'"],
  ['a\\b', "'a\\\\b'"],
  ['t\n\r\t', "'t\\n\\r\\t'"],
  ['\x00\x7f\x85', "'\\x00\\x7f\\x85'"],
  ['\u00a0\u2028', "'\\xa0\\u2028'"],
  ['\u00ad\ue000', "'\\xad\\ue000'"],
  ['日本é', "'日本é'"],
  ['😀\u{e0041}', "'😀\\U000e0041'"],
  ['\u0378', "'\\u0378'"],
])('prints %j', (text, printed) => {
  expect(repr(text)).toBe(printed);
});

it('reads integers', () => {
  const read: [string | undefined, number | bigint | undefined][] = [
    ['0', 0],
    ['12', 12],
    [' 2 ', 2],
    ['+5', 5],
    ['-0', 0],
    ['-1', undefined],
    ['1_0', 10],
    ['1__0', undefined],
    ['_1', undefined],
    ['1_', undefined],
    ['1.5', undefined],
    ['', undefined],
    [undefined, undefined],
    ['²', undefined],
    ['٣', 3],
    ['१२', 12],
    ['𝟙𝟚', 12],
    ['0x1', undefined],
    ['\u00a07\u3000', 7],
    ['9007199254740991', 9007199254740991],
    ['9007199254740993', 9007199254740993n],
    ['00012', 12],
    ['9'.repeat(4301), undefined],
  ];
  for (const [text, value] of read) expect(cursorOf(text), text).toBe(value);
});

it('reads seconds', () => {
  const read: [string | undefined, number][] = [
    ['1', 1],
    ['1.5', 1.5],
    [' .5 ', 0.5],
    ['5.', 5],
    ['1e1', 10],
    ['1E-1', 0.1],
    ['1_0', 10],
    ['inf', Infinity],
    ['+Infinity', Infinity],
    ['nan', 0],
    ['-5', 0],
    ['abc', 0],
    ['', 0],
    [undefined, 0],
    ['1e400', Infinity],
    ['٣', 3],
    ['1__0', 0],
    ['0x1', 0],
    ['1e', 0],
    ['.', 0],
  ];
  for (const [text, seconds] of read) expect(secondsOf(text), text).toBe(seconds * 1000);
});

it('prints floats', () => {
  const printed: [number, string][] = [
    [1, '1.0'],
    [1.5, '1.5'],
    [-0, '-0.0'],
    [1e16, '1e+16'],
    [1e15, '1000000000000000.0'],
    [123456789012345680, '1.2345678901234568e+17'],
    [1e22, '1e+22'],
    [1e-4, '0.0001'],
    [1e-5, '1e-05'],
    [1.5e-7, '1.5e-07'],
    [5e-324, '5e-324'],
    [Number.MAX_VALUE, '1.7976931348623157e+308'],
    [0.1, '0.1'],
    [100, '100.0'],
    [Number.NaN, 'nan'],
    [-Infinity, '-inf'],
  ];
  for (const [value, text] of printed) expect(floatRepr(value)).toBe(text);
});

it.each([
  ['null', 'None'],
  ['true', 'True'],
  ['1', '1'],
  ['-0', '0'],
  ['12345678901234567890', '12345678901234567890'],
  ['1.0', '1.0'],
  ['1e5', '100000.0'],
  ['1E400', 'inf'],
  ['NaN', 'nan'],
  ['-Infinity', '-inf'],
  ['"x"', 'x'],
  ['[]', '[]'],
  ['{}', '{}'],
  ['[1,"a\'b",null,true,{"k":[1.5]}]', "[1, \"a'b\", None, True, {'k': [1.5]}]"],
  ['{"a":1,"b":"\\"x"}', "{'a': 1, 'b': '\"x'}"],
  ['"NaN 1 \\" 2"', 'NaN 1 " 2'],
])('makes a string of %s', (json, text) => {
  expect(str(parsePython(json))).toBe(text);
});

it('tells JSON from what is none, and a dict from the rest', () => {
  for (const text of ['01', '1.', '.5', '+1', '{"a":}', '[1,]', 'nan', '"\n"', '']) {
    expect(() => parsePython(text), text).toThrow(SyntaxError);
  }
  expect(isDict(parsePython('{"a":1}'))).toBe(true);
  for (const text of ['1', '[]', 'null', '"x"']) expect(isDict(parsePython(text)), text).toBe(false);
});

it('gives a text up in linear time', () => {
  // Quadratic, it would run for hours and hit the time limit.
  for (const text of [`{"x":"${'\\"'.repeat(2e6)}`, '"'.repeat(4e6 - 1), `{"x":${'1_'.repeat(2e6)}`])
    expect(() => parsePython(text)).toThrow(SyntaxError);
  for (const text of ['0'.repeat(4e6), '1_'.repeat(2e6), ' '.repeat(4e6), '.'.repeat(4e6), '1.'.repeat(2e6)]) {
    expect(secondsOf(`${text}!`)).toBe(0);
    expect(cursorOf(`${text}!`)).toBe(undefined);
  }
});
