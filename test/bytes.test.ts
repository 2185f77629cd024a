import { describe, expect, test, vi } from 'vitest';
import {
  concat,
  equalBytes,
  fromBase58,
  fromBase64,
  fromBase64url,
  fromHex,
  fromUtf8,
  isAscii,
  toBase58,
  toBase64,
  toBase64url,
  toHex,
  utf8,
} from '../src/bytes.ts';
import { randomBytes } from '../src/crypto.ts';

/** Bytes of every length from 0 to 130, with leading zeros and high bytes among them. */
const samples = Array.from({ length: 131 }, (_, length) =>
  Uint8Array.from({ length }, (_, i) => (i < length % 4 ? 0 : (length * 131 + i * 73) % 256)),
);

describe.each([
  ['hex', toHex, fromHex, (b: Buffer) => b.toString('hex')],
  ['base64url', toBase64url, fromBase64url, (b: Buffer) => b.toString('base64url')],
  ['base64', toBase64, fromBase64, (b: Buffer) => b.toString('base64')],
  ['base58', toBase58, fromBase58, undefined],
] as const)('%s', (_, to, from, reference) => {
  test('there and back', () => {
    for (const bytes of samples) {
      const copy = Buffer.from(bytes);
      const text = to(bytes);
      if (reference !== undefined) expect(text).toBe(reference(copy));
      expect(copy.equals(from(text)!)).toBe(true);
      expect(copy.equals(bytes)).toBe(true);
    }
  });

  test('each value has one spelling, among all texts of up to three characters', () => {
    const digits = [...Array.from({ length: 96 }, (_, i) => String.fromCharCode(31 + i)), 'é', '\u0661', '😀'];
    const texts = ['', ...digits, ...digits.flatMap((a) => digits.map((b) => a + b))];
    texts.push(...digits.flatMap((a) => [`A${a}A`, `AA${a}`, `A${a}=`, `AA${a}=`, `AA=${a}`, `A${a}==`, `A${a}A=`]));
    let read = 0;
    for (const text of texts) {
      const bytes = from(text);
      if (bytes === undefined) continue;
      read++;
      if (to(bytes) !== (from === fromHex ? text.toLowerCase() : text)) expect.fail(JSON.stringify(text));
    }
    expect(read).toBeGreaterThan(4);
  });

  test('strangers\u2019 characters are refused wherever they stand', () => {
    const text = to(Uint8Array.from({ length: 12 }, (_, i) => 200 + i));
    for (let i = 0; i < text.length; i++) {
      for (const char of [' ', '\n', '!', '\u0000', 'é', '\ud800', '\u0130', '=']) {
        expect(from(text.slice(0, i) + char + text.slice(i + 1))).toBeUndefined();
      }
    }
    expect(from(`${text}\n`)).toBeUndefined();
  });
});

test('hex takes either case and pairs only', () => {
  expect(fromHex('00fFAb')).toEqual(Uint8Array.of(0, 255, 0xab));
  expect(fromHex('')).toEqual(new Uint8Array(0));
  for (const text of ['0', '000', '0x', '0g', 'g0', '@0', '`0', '/0', ':0']) expect(fromHex(text)).toBeUndefined();
});

test('base64url ends in its only character', () => {
  expect(fromBase64url('AA')).toEqual(Uint8Array.of(0));
  for (const last of 'BCDEFGHIJKLMNOP') expect(fromBase64url(`A${last}`)).toBeUndefined();
  const last = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'].filter(
    (char) => fromBase64url('A'.repeat(85) + char) !== undefined,
  );
  expect(last.join('')).toBe('AQgw');
  for (const text of ['A', 'AAAAA', 'AA==', 'AA=', 'A+', '/w', 'AA AA']) {
    expect(fromBase64url(text)).toBeUndefined();
    expect(fromBase64url('A'.repeat(400) + text)).toBeUndefined();
  }
});

test('base64url and base64 of any length, and what is ASCII, without the platform\u2019s codec', async () => {
  vi.resetModules();
  const missing = vi.spyOn(process, 'getBuiltinModule').mockReturnValue(undefined as any);
  const portable = await import('../src/bytes.ts');
  for (const bytes of samples) {
    const text = portable.toBase64url(bytes);
    expect(text).toBe(toBase64url(bytes));
    expect(portable.fromBase64url(text)).toEqual(bytes);
    for (const bad of [`${text}=`, `${text}\n`, ` ${text}`, `${text.slice(0, -1)}+`]) {
      expect(portable.fromBase64url(bad)).toBeUndefined();
      expect(fromBase64url(bad)).toBeUndefined();
    }
    const padded = portable.toBase64(bytes);
    expect(padded).toBe(toBase64(bytes));
    for (const read of [portable.fromBase64, fromBase64]) {
      expect(read(padded)).toEqual(bytes);
      for (const bad of [`${padded}=`, `${padded}\n\n\n\n`, `    ${padded}`, `${padded.slice(0, -1)}-`]) {
        expect(read(bad)).toBeUndefined();
      }
    }
  }
  const last = [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'].filter(
    (char) => portable.fromBase64url('A'.repeat(85) + char) !== undefined,
  );
  expect(last.join('')).toBe('AQgw');
  for (const one of [portable.isAscii, isAscii]) {
    for (const text of ['', 'a', '\0\n ~', 'x'.repeat(5000)]) expect(one(text)).toBe(true);
    for (const text of ['\x7f', '\x80', 'é', 'a🦊', '\ud800', `${'x'.repeat(5000)}\x7f`]) expect(one(text)).toBe(false);
  }
  expect(missing).toHaveBeenCalled();
  missing.mockRestore();
});

test('base64 wants its padding, at the end', () => {
  expect(fromBase64('+/8=')).toEqual(Uint8Array.of(0xfb, 0xff));
  for (const text of [
    '+/8',
    'AA',
    'AA=',
    'A===',
    '====',
    '=',
    'AA==AAAA',
    'AAA=AAA=',
    'AB==',
    'AAB=',
    '-_8=',
    'AA==\n',
  ]) {
    expect(fromBase64(text)).toBeUndefined();
    expect(fromBase64('AAAA'.repeat(100) + text)).toBeUndefined();
  }
});

test('base58 as Bitcoin writes it', () => {
  expect(toBase58(utf8('Hello World!'))).toBe('2NEpo7TZRRrLZSi2U');
  expect(toBase58(utf8('The quick brown fox jumps over the lazy dog.'))).toBe(
    'USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z',
  );
  expect(toBase58(fromHex('0000287fb4cd')!)).toBe('11233QC4');
  expect(fromBase58('11233QC4')).toEqual(fromHex('0000287fb4cd'));
  expect(fromBase58('111')).toEqual(new Uint8Array(3));
  for (const char of '0OIl') expect(fromBase58(`z${char}`)).toBeUndefined();
});

describe('UTF-8', () => {
  test('every code point there and back', () => {
    for (let from = 0; from < 0x110000; from += 0x1000) {
      if (from >= 0xd000 && from < 0xe000) continue;
      const text = String.fromCodePoint(...Array.from({ length: 0x1000 }, (_, i) => from + i));
      if (fromUtf8(utf8(text)) !== text) expect.fail(from.toString(16));
    }
  });

  test('a BOM is text', () => {
    expect(fromUtf8(Uint8Array.of(0xef, 0xbb, 0xbf, 0x61))).toBe('\ufeffa');
  });

  test('a lone surrogate becomes U+FFFD', () => {
    expect(utf8('\ud800')).toEqual(Uint8Array.of(0xef, 0xbf, 0xbd));
  });

  test('what is not UTF-8 is undefined, and leaves nothing behind', () => {
    for (const hex of ['80', 'ff', 'c080', 'eda080', 'f4908080', 'e282', 'f09f98', '61c3']) {
      expect(fromUtf8(fromHex(hex)!)).toBeUndefined();
      expect(fromUtf8(Uint8Array.of(0x61))).toBe('a');
    }
  });
});

test('concat', () => {
  expect(concat()).toEqual(new Uint8Array(0));
  const part = Uint8Array.of(1);
  const all = concat(part, new Uint8Array(0), Uint8Array.of(2, 3).subarray(1));
  expect(all).toEqual(Uint8Array.of(1, 3));
  all[0] = 9;
  expect(part[0]).toBe(1);
});

test('equalBytes', () => {
  const bytes = Uint8Array.of(1, 2, 0);
  expect(equalBytes(bytes, bytes.slice())).toBe(true);
  expect(equalBytes(new Uint8Array(0), new Uint8Array(0))).toBe(true);
  for (const other of [[1, 2], [1, 2, 0, 0], [1, 2, 128], [0, 2, 0], []]) {
    expect(equalBytes(bytes, Uint8Array.from(other))).toBe(false);
    expect(equalBytes(Uint8Array.from(other), bytes)).toBe(false);
  }
});

test('base64url into memory that is there already: the same bytes, and as strict', () => {
  const into = new Uint8Array(4096);
  for (let length = 0; length < 300; length++) {
    const bytes = randomBytes(length);
    expect(fromBase64url(toBase64url(bytes), into)).toEqual(bytes);
  }
  const text = toBase64url(randomBytes(301));
  // + and / belong to another alphabet; Node looks at the low byte of the rest, which would be A, - or _.
  for (const char of ['+', '/', '=', ' ', '\n', '.', '\u0141', '\u012d', '\u015f', '\ud83d', '\u00c1', '']) {
    for (let at = 0; at <= text.length; at++) {
      for (const bad of [text.slice(0, at) + char + text.slice(at + 1), text.slice(0, at) + char + text.slice(at)]) {
        if (bad !== text) expect(fromBase64url(bad, into)).toEqual(fromBase64url(bad));
      }
    }
  }
  for (const last of 'BCDEFGHIJKLMNOP') expect(fromBase64url(`${'A'.repeat(401)}${last}`, into)).toBeUndefined();
  expect(fromBase64url('A'.repeat(8000), into)).toEqual(new Uint8Array(6000));
});
