import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { Unavailable } from '../src/errors.ts';
import { explain, exportOf, type Message, verifyMessage, viewOf } from '../src/messages.ts';
import { signer } from './support.ts';

const { cases } = JSON.parse(readFileSync(new URL('vectors/technocore-verify.json', import.meta.url), 'utf8'));
const alice = signer(1);
const signed = (text = 'hello', nonce = '7', room = 'lobby'): Message => {
  const { did, sig } = alice.signMessage(room, nonce, text);
  return { seq: 1, ts: '', from: did, text, nonce, sig };
};

describe('views', () => {
  const record = '{"seq":3,"ts":"2026-01-31T12:00:00.000000Z","from":"bob","text":"hi"}';
  const viewWith = (...records: string[]) => viewOf('x', `{"last_seq":9,"messages":[${records.join()}]}`);

  test('fault 15: a nonce of 19 digits keeps every digit, whatever the spacing and the text around it', () => {
    const text = 'the \\"nonce\\":1788872638667723579 in here, and a backslash \\\\';
    const { messages } = viewWith(
      `{"seq":1,"ts":"","from":"a","nonce" :  1788872638667723579,"text":"${text}"}`,
      `{"seq":2,"ts":"","from":"a","text":"","\\u006eonce":9999999999999999999}`,
    );
    expect(messages.map((m) => m.nonce)).toEqual(['1788872638667723579', '9999999999999999999']);
    expect(messages[0]!.text).toBe(JSON.parse(`"${text}"`));
    expect(exportOf(`{"seq":1,"ts":"","from":"a","text":"","nonce":1788872638667723579}\n`)[0]!.nonce).toBe(
      '1788872638667723579',
    );
  });

  test('fault 14: an unsigned message is one without nonce and sig, whatever the nick looks like', () => {
    const [message] = viewWith(record).messages;
    expect(message).toEqual({ seq: 3, ts: '2026-01-31T12:00:00.000000Z', from: 'bob', text: 'hi' });
    expect('nonce' in message! || 'sig' in message!).toBe(false);
  });

  test('records that are no messages are left out, whatever they are', () => {
    const bad = [
      'null',
      '1',
      '"x"',
      '[]',
      '{}',
      '{"seq":"1","ts":"","from":"","text":""}',
      '{"seq":-1,"ts":"","from":"","text":""}',
      '{"seq":1.5,"ts":"","from":"","text":""}',
      '{"seq":1e300,"ts":"","from":"","text":""}',
      '{"seq":1,"ts":0,"from":"","text":""}',
      '{"seq":1,"ts":"","from":{},"text":""}',
      '{"seq":1,"ts":"","from":"","text":["x"]}',
      '{"__proto__":{"seq":1,"ts":"","from":"","text":""}}',
    ];
    expect(viewWith(...bad, record).messages.map((m) => m.seq)).toEqual([3]);
    expect(exportOf(['', 'x', ...bad, record, record.slice(0, 20)].join('\n')).map((m) => m.seq)).toEqual([3]);
  });

  test('a nonce that is no number and no text is none; nothing of it is run', () => {
    for (const nonce of ['{"toString":1}', '[]', 'true', 'null']) {
      const [message] = viewWith(`{"seq":1,"ts":"","from":"a","text":"","nonce":${nonce}}`).messages;
      expect(message).toEqual({ seq: 1, ts: '', from: 'a', text: '' });
    }
    expect(viewWith('{"seq":1,"ts":"","from":"a","text":"","nonce":1.5}').messages[0]!.nonce).toBe('1.5');
    expect(viewWith('{"seq":1,"ts":"","from":"a","text":"","nonce":"12"}').messages[0]!.nonce).toBe('12');
  });

  test('seqs rise: what repeats or goes back is left out', () => {
    const at = (seq: number): string => `{"seq":${seq},"ts":"","from":"","text":"${seq}"}`;
    expect(viewWith(at(5), at(5), at(3), at(6)).messages.map((m) => m.seq)).toEqual([5, 6]);
    expect(exportOf([at(2), at(1), at(3)].join('\n')).map((m) => m.seq)).toEqual([2, 3]);
  });

  test('what is not such a view is the network’s fault, not a crash', () => {
    const bad = [
      '',
      '<html>',
      'null',
      '[]',
      '{}',
      '{"last_seq":1}',
      '{"last_seq":-1,"messages":[]}',
      '{"last_seq":"1"}',
    ];
    for (const text of [...bad, '{"last_seq":1,"messages":{}}', '{"last_seq":1,"messages":[', '['.repeat(100_000)]) {
      expect(() => viewOf('x', text)).toThrow(Unavailable);
    }
    expect(() => viewOf('x', '<html>')).toThrow(
      /^the answer is not .* is it a technocore.chat service, without a proxy/,
    );
  });

  test('the members of later services are optional, and ignored when they are not what they should be', () => {
    expect(viewOf('x', '{"last_seq":4,"messages":[],"generation":2,"wait_held":false,"posted":{"seq":4}}')).toEqual({
      room: 'x',
      firstSeq: null,
      lastSeq: 4,
      generation: 2,
      messages: [],
      waitHeld: false,
      posted: 4,
    });
    expect(viewOf('x', '{"last_seq":4,"messages":[],"generation":"2","wait_held":1,"posted":[]}')).toEqual({
      room: 'x',
      firstSeq: null,
      lastSeq: 4,
      messages: [],
    });
  });
});

describe('verifyMessage', () => {
  test('fault 13: verified only by our own check; without a signature nothing can be said', () => {
    const good = signed();
    expect(verifyMessage('lobby', good)).toBe('valid');
    const { sig: _sig, ...bare } = good;
    expect(verifyMessage('lobby', bare)).toBe('unverifiable');
    expect(verifyMessage('lobby', { seq: 1, ts: '', from: 'bob', text: 'hi' })).toBe('unverifiable');
    for (const forged of [
      { ...good, text: 'hello!' },
      { ...good, nonce: '8' },
      { ...good, from: signer(2).did },
      { ...good, from: 'bob' },
      { ...good, sig: '' },
      { ...good, sig: `${good.sig!.slice(0, 85)}B` },
    ]) {
      expect(verifyMessage('lobby', forged)).toBe('invalid');
    }
    expect(verifyMessage('other', good)).toBe('invalid');
    const { nonce: _nonce, ...numberless } = good;
    expect(verifyMessage('lobby', numberless)).toBe('invalid');
  });

  test.each<any>(cases)('accepts what newer services accept: $id', (c) => {
    const { room, nonce, did, sig, text } = c;
    const verdict = verifyMessage(room, { seq: 1, ts: '', from: did, text, nonce, sig });
    expect(verdict === 'valid').toBe(c.accepted_by_newer);
    expect(explain(room, { seq: 1, ts: '', from: did, text, nonce, sig }) === undefined).toBe(c.accepted_by_newer);
  });
});

describe('explain', () => {
  const why = (m: object, room = 'lobby'): string | undefined => explain(room, { ...signed(), ...m } as Message);

  test('says nothing of a signature that is good', () => {
    expect(why({})).toBeUndefined();
  });

  test.each<[string, object, RegExp]>([
    ['no text', { text: undefined }, /no text/],
    ['a nick', { from: 'bob' }, /a nick/],
    ['no writer', { from: undefined }, /a nick/],
    ['a writer that is no text', { from: { startsWith: 1 } }, /a nick/],
    ['another DID method', { from: 'did:web:example.org' }, /not a did:key/],
    ['no signature', { sig: undefined }, /no signature is kept/],
    ['no nonce', { nonce: undefined }, /no nonce/],
    ['a nonce of 20 digits', { nonce: '1'.repeat(20) }, /1 to 19 digits/],
    ['a nonce that is none', { nonce: '1.0' }, /1 to 19 digits/],
    ['a short signature', { sig: 'abc' }, /86 characters/],
    ['a signature that is no text', { sig: 12 }, /86 characters/],
    ['a signature of another key', { from: signer(2).did }, /does not fit/],
    ['another text', { text: 'hullo' }, /does not fit/],
    ['an unswept text', { text: '\u200bhello\n' }, /not swept/],
    ['a text of nothing', { text: '\n' }, /nothing is left/],
    ['leading zeros of ours', { nonce: '007' }, /signed as 7, without leading zeros/],
  ])('%s', (_name, m, reason) => {
    expect(why(m)).toMatch(reason);
  });

  test('a text that was signed unswept', () => {
    for (const text of ['hello\n', ' hello', 'he\u200bllo', '\ue000']) {
      const m = { ...signed(), text, sig: alice.sign(`lobby|7|${text}`) };
      expect(verifyMessage('lobby', m)).toBe('invalid');
      expect(explain('lobby', m)).toMatch(/not swept, and was signed like that/);
    }
  });

  test('leading zeros that the service lost', () => {
    const { sig } = alice.signMessage('lobby', '0007', 'hello');
    expect(why({ sig })).toMatch(/signed as 0007; the service keeps numbers/);
  });

  test('fault 17: another Unicode form', () => {
    const { sig } = alice.signMessage('lobby', '7', 'Việt'.normalize('NFD'));
    expect(why({ sig, text: 'Việt'.normalize('NFC') })).toMatch(/Unicode form NFD/);
  });

  test('fault 11: another spelling of the last character', () => {
    const { sig } = signed();
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const other = sig!.slice(0, 85) + alphabet[alphabet.indexOf(sig![85]!) + 1];
    expect(why({ sig: other })).toMatch(/not canonical base64url: . instead of .$/);
    expect(why({ sig: other, text: 'hullo' })).toMatch(/another spelling does not verify either/);
  });

  test('a room that says where it was signed for', () => {
    const { sig } = alice.signMessage('lobby', '7', 'hello');
    expect(explain('LOBBY', { ...signed(), sig })).toMatch(/signed for the room "lobby"/);
  });

  test('fault 12: a key of small order is named, whatever the signature', () => {
    for (const id of ['a-identity', 'a-order-2']) {
      const { did, sig, room, nonce, text } = cases.find((c: any) => c.id === id);
      expect(explain(room, { seq: 1, ts: '', from: did, sig, nonce, text })).toMatch(/no usable public key/);
    }
  });

  test('never throws, whatever it is given', () => {
    const values: unknown[] = [undefined, null, 0, 1.5, '', 'x', [], {}, { toString: 1, startsWith: 1 }, '\ud800'];
    for (const name of ['from', 'sig', 'nonce', 'text', 'seq']) {
      for (const value of values) {
        const m = { ...signed(), [name]: value } as Message;
        expect(() => explain('lobby', m)).not.toThrow();
        expect(() => verifyMessage('lobby', m)).not.toThrow();
      }
    }
    const thrower = (): never => {
      throw new Error('from the message');
    };
    const forged = { ...signed(), text: 'other' };
    const broken = Object.defineProperty({ ...signed() }, 'text', { get: thrower });
    for (const m of [broken, new Proxy(signed(), { get: thrower }), undefined, null, 'text', []] as Message[]) {
      expect(verifyMessage('lobby', m)).toBe('invalid');
      expect(explain('lobby', m)).toBe('not a message');
    }
    for (const room of [undefined, null, 5, Symbol('lobby'), { toString: thrower }, ['lobby']] as any[]) {
      for (const m of [signed(), forged]) {
        expect(verifyMessage(room, m)).toBe('invalid');
        expect(explain(room, m)).toBe('the room is not a string');
      }
    }
  });
});
