import { describe, expect, test } from 'vitest';
import { concat, fromHex, toHex, utf8 } from '../src/bytes.ts';
import { sha256, useNative, x25519 } from '../src/crypto.ts';
import { createTransport, Handshake, type Transport } from '../src/noise.ts';
import vectors from './vectors/parley-noise.json' with { type: 'json' };

const hex = (text: string): Uint8Array => fromHex(text)!;

interface Message {
  direction: string;
  seq: string;
  plaintext_hex?: string;
  ciphertext_hex?: string;
  text_is?: string;
  kind?: number;
  plaintext_length?: number;
  plaintext_sha256_hex?: string;
  ciphertext_length?: number;
  ciphertext_sha256_hex?: string;
}
interface Transcript {
  name: string;
  psk_hex: string;
  prologue_hex: string;
  joiner_static_private_hex: string;
  joiner_static_public_hex: string;
  joiner_ephemeral_private_hex: string;
  opener_static_private_hex: string;
  opener_static_public_hex: string;
  opener_ephemeral_private_hex: string;
  joiner_payload_hex: string;
  message1_hex: string;
  opener_payload_hex: string;
  message2_hex: string;
  handshake_hash_hex: string | null;
  transport: Message[];
}

const transcripts = vectors.transcripts as Transcript[];
const official = vectors.official as Transcript[];
const plain = transcripts.find((t) => t.name === 'plain')!;

function joinerOf(t: Transcript): Handshake {
  return Handshake.initiator({
    identity: x25519(hex(t.joiner_static_private_hex)),
    prologue: hex(t.prologue_hex),
    psk: hex(t.psk_hex),
    remote: hex(t.opener_static_public_hex),
    ephemeral: hex(t.joiner_ephemeral_private_hex),
  });
}

function openerOf(t: Transcript): Handshake {
  return Handshake.responder({
    identity: x25519(hex(t.opener_static_private_hex)),
    prologue: hex(t.prologue_hex),
    psk: hex(t.psk_hex),
    ephemeral: hex(t.opener_ephemeral_private_hex),
  });
}

function run(t: Transcript): [joiner: Handshake, opener: Handshake] {
  const [joiner, opener] = [joinerOf(t), openerOf(t)];
  const message1 = joiner.write(hex(t.joiner_payload_hex));
  expect(toHex(message1)).toBe(t.message1_hex);
  expect(toHex(opener.read(message1))).toBe(t.joiner_payload_hex);
  expect(toHex(opener.remote!)).toBe(t.joiner_static_public_hex);
  const message2 = opener.write(hex(t.opener_payload_hex));
  expect(toHex(message2)).toBe(t.message2_hex);
  expect(toHex(joiner.read(message2))).toBe(t.opener_payload_hex);
  return [joiner, opener];
}

function plaintextOf(m: Message): Uint8Array {
  if (m.plaintext_hex !== undefined) return hex(m.plaintext_hex);
  const [, word, times] = /^"(.*)" repeated (\d+) times$/.exec(m.text_is!)!;
  return concat(Uint8Array.of(m.kind!), utf8(word!.repeat(Number(times))));
}

for (const native of [true, false]) {
  describe(native ? 'the best back end' : 'portable', () => {
    const each = (name: string, run: () => void): void =>
      test(name, () => {
        useNative(native);
        try {
          run();
        } finally {
          useNative(true);
        }
      });

    for (const t of [...transcripts, ...official]) {
      each(`transcript ${t.name}`, () => {
        const [joiner, opener] = run(t);
        expect(toHex(joiner.hash)).toBe(toHex(opener.hash));
        if (t.handshake_hash_hex !== null) expect(toHex(joiner.hash)).toBe(t.handshake_hash_hex);
        const [a, b] = [joiner.transport(), opener.transport()];
        expect(t.transport.length).toBeGreaterThan(0);
        for (const m of t.transport) {
          const [from, to] = m.direction === 'joiner_to_opener' ? [a, b] : [b, a];
          const text = plaintextOf(m);
          const sealed = from.seal(BigInt(m.seq), text);
          if (m.ciphertext_hex !== undefined) expect(toHex(sealed)).toBe(m.ciphertext_hex);
          else {
            expect(sealed.length).toBe(m.ciphertext_length);
            expect(toHex(sha256(sealed))).toBe(m.ciphertext_sha256_hex);
            expect(toHex(sha256(text))).toBe(m.plaintext_sha256_hex);
          }
          expect(toHex(to.open(BigInt(m.seq), sealed))).toBe(toHex(text));
        }
      });
    }

    for (const v of vectors.handshake_failures) {
      each(`handshake: ${v.name}`, () => {
        let reader: Handshake;
        if (v.reader === 'joiner') {
          reader = joinerOf(plain);
          reader.write(hex(plain.joiner_payload_hex));
        } else {
          reader = Handshake.responder({
            identity: x25519(hex(v.static_private_hex!)),
            prologue: hex(v.prologue_hex),
            psk: hex(v.psk_hex),
          });
        }
        if (v.ok) expect(reader.read(hex(v.message_hex))).toBeInstanceOf(Uint8Array);
        else
          expect(() => reader.read(hex(v.message_hex))).toThrow(expect.objectContaining({ code: 'handshake_failed' }));
      });
    }

    for (const v of vectors.handshake_sequences) {
      each(`sequence: ${v.name}`, () => {
        const reader = openerOf(plain);
        for (const read of v.reads) {
          if (read.ok) expect(toHex(reader.read(hex(read.read_hex)))).toBe(plain.joiner_payload_hex);
          else
            expect(() => reader.read(hex(read.read_hex))).toThrow(
              expect.objectContaining({ code: 'handshake_failed' }),
            );
        }
        expect(toHex(reader.write(hex(plain.opener_payload_hex)))).toBe(plain.message2_hex);
      });
    }

    for (const v of vectors.transport_failures) {
      each(`transport: ${v.name}`, () => {
        const [joiner, opener] = run(transcripts.find((t) => t.name === v.transcript)!);
        const to = (v.direction === 'joiner_to_opener' ? opener : joiner).transport();
        if (v.ok) expect(to.open(BigInt(v.seq), hex(v.ciphertext_hex))).toBeInstanceOf(Uint8Array);
        else {
          expect(() => to.open(BigInt(v.seq), hex(v.ciphertext_hex))).toThrow(
            expect.objectContaining({ code: 'decrypt', layer: 'tag' }),
          );
        }
      });
    }

    each(
      'a message that spoils the reference leaves no trace: every length, every small order, then the good one',
      () => {
        const opener = openerOf(plain);
        const good = hex(plain.message1_hex);
        const smallOrder = good.slice();
        for (const first of [0, 1]) {
          smallOrder.fill(0, 0, 32);
          smallOrder[0] = first;
          expect(() => opener.read(smallOrder)).toThrow(expect.objectContaining({ code: 'handshake_failed' }));
        }
        for (let length = 0; length < good.length; length++) {
          expect(() => opener.read(good.subarray(0, length))).toThrow(
            expect.objectContaining({ code: 'handshake_failed' }),
          );
        }
        expect(opener.remote).toBeUndefined();
        expect(toHex(opener.read(good))).toBe(plain.joiner_payload_hex);
        expect(toHex(opener.write(hex(plain.opener_payload_hex)))).toBe(plain.message2_hex);
      },
    );

    each('the initiator too survives a bad answer', () => {
      const joiner = joinerOf(plain);
      joiner.write(hex(plain.joiner_payload_hex));
      const bad = hex(plain.message2_hex);
      bad[3]! ^= 1;
      expect(() => joiner.read(bad)).toThrow(expect.objectContaining({ code: 'handshake_failed' }));
      expect(toHex(joiner.read(hex(plain.message2_hex)))).toBe(plain.opener_payload_hex);
    });
  });
}

test('turns are kept', () => {
  const [joiner, opener] = [joinerOf(plain), openerOf(plain)];
  const out = expect.objectContaining({ code: 'handshake_failed' });
  expect(() => joiner.read(hex(plain.message2_hex))).toThrow(out);
  expect(() => opener.write(new Uint8Array(0))).toThrow(out);
  expect(() => joiner.transport()).toThrow(out);
  joiner.write(new Uint8Array(0));
  expect(() => joiner.write(new Uint8Array(0))).toThrow(out);
  expect(() => joiner.keys()).toThrow(out);
});

test('an initiator whose peer key is of small order says so when it writes', () => {
  const remote = new Uint8Array(32);
  const joiner = Handshake.initiator({
    identity: x25519(new Uint8Array(32).fill(7)),
    prologue: remote,
    psk: remote,
    remote,
  });
  expect(() => joiner.write(new Uint8Array(0))).toThrow(expect.objectContaining({ code: 'handshake_failed' }));
});

test('keys of another length are refused', () => {
  const identity = x25519(new Uint8Array(32).fill(7));
  const prologue = new Uint8Array(0);
  const bad = expect.objectContaining({ code: 'bad_key' });
  expect(() => Handshake.responder({ identity, prologue, psk: new Uint8Array(31) })).toThrow(bad);
  expect(() => Handshake.initiator({ identity, prologue, psk: new Uint8Array(32) })).toThrow(bad);
  expect(() => createTransport({ send: new Uint8Array(31), receive: new Uint8Array(32) })).toThrow(bad);
});

test('what goes in is neither changed nor kept', () => {
  const [joiner, opener] = [joinerOf(plain), openerOf(plain)];
  const psk = hex(plain.psk_hex);
  const reader = Handshake.responder({
    identity: x25519(hex(plain.opener_static_private_hex)),
    prologue: hex(plain.prologue_hex),
    psk,
  });
  psk.fill(0);
  const message = joiner.write(hex(plain.joiner_payload_hex));
  const before = toHex(message);
  reader.read(message);
  opener.read(message);
  expect(toHex(message)).toBe(before);
  message.fill(0);
  expect(toHex(opener.write(hex(plain.opener_payload_hex)))).toBe(plain.message2_hex);
  opener.hash.fill(0);
  opener.remote!.fill(0);
  expect(toHex(opener.remote!)).toBe(plain.joiner_static_public_hex);
});

describe('fault 104: a seq is sealed once', () => {
  const pair = (): [Transport, Transport] => {
    const [joiner, opener] = run(plain);
    return [joiner.transport(), opener.transport()];
  };
  const text = utf8('x');
  const refused = expect.objectContaining({ code: 'bad_nonce' });

  test('neither again nor below', () => {
    const [a] = pair();
    a.seal(2, text);
    for (const seq of [2, 2n, 1, 0, -1, -1n, 1.5, Number.NaN, 2 ** 53])
      expect(() => a.seal(seq, text)).toThrow(refused);
    a.seal(3, text);
    a.seal(2n ** 53n + 1n, text);
  });

  test('2^64 - 2 is the last', () => {
    const [a, b] = pair();
    expect(() => a.seal(2n ** 64n - 1n, text)).toThrow(refused);
    const sealed = a.seal(2n ** 64n - 2n, text);
    expect(toHex(b.open(2n ** 64n - 2n, sealed))).toBe('78');
    for (const seq of [2n ** 64n - 1n, 2n ** 64n, -2n, -2, 1.5]) {
      expect(() => b.open(seq, sealed)).toThrow(expect.objectContaining({ code: 'decrypt' }));
    }
  });

  test('0 is a seq', () => {
    const [a, b] = pair();
    expect(toHex(b.open(0, a.seal(0, text)))).toBe('78');
  });
});

test('nothing shows a key', () => {
  const [joiner] = run(plain);
  const { send } = joiner.keys();
  const shown = JSON.stringify([joiner, joiner.transport()]) + String(joiner);
  expect(shown).not.toContain(toHex(send));
  expect(Object.keys(joiner)).toEqual([]);
});

test('39 shared vectors', () => {
  const { transcripts, handshake_failures, handshake_sequences, transport_failures, official } = vectors;
  const counts = [transcripts, handshake_failures, handshake_sequences, transport_failures, official].map(
    (v) => v.length,
  );
  expect(counts.reduce((a, b) => a + b)).toBe(39);
});
