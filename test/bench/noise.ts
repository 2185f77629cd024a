import { equalBytes } from '../../src/bytes.ts';
import { randomBytes, useNative, type X25519Key, x25519 } from '../../src/crypto.ts';
import { createTransport, Handshake } from '../../src/noise.ts';
import { contender, goBuild, Worker } from './contenders.ts';
import type { Goal, Outcome } from './goals.ts';
import { alternate, often, type Rounds } from './rounds.ts';

const LIBP2P = '@chainsafe/libp2p-noise/dist/src';
/** Go has a clock of its own, which is that of the wall. */
const wall = { clock: 'wall' } as const;

/** Handshakes and sealed messages, against Go and the JavaScript library that is used most. */
export async function benchNoise(): Promise<Outcome[]> {
  const [psk, prologue, payload] = [randomBytes(32), randomBytes(24), randomBytes(19)];
  const [a, b] = [x25519(randomBytes(32)), x25519(randomBytes(32))];
  const ours = (): [Handshake, Handshake] => {
    const joiner = Handshake.initiator({ identity: a, prologue, psk, remote: b.publicKey });
    const opener = Handshake.responder({ identity: b, prologue, psk });
    opener.read(joiner.write(payload));
    joiner.read(opener.write(payload));
    return [joiner, opener];
  };
  const libp2p = await libp2pNoise(prologue, payload);
  const program = goBuild('noise');
  const go = program === undefined ? undefined : new Worker(program);
  if (!ours()[0].hash.every((byte, i, all) => byte === all[i])) throw new Error('the ends differ');

  const outcomes: Outcome[] = [];
  const skipped = (number: number, name: string): void => {
    outcomes.push({ number, name, skipped: 'the Go worker could not be built' });
  };
  // One other at a time, Go first: what runs in this process leaves its garbage to the rest.
  const handshake = (h: Rounds, other: string, limit: number, why?: string): Goal => ({
    number: 8,
    name: `IKpsk1 handshake by ${other}`,
    value: h.speed('ours', other),
    target: ['>=', limit],
    detail: `ours ${h.rate('ours').toFixed(0)}/s, ${other} ${h.rate(other).toFixed(0)}/s`,
    ...(why !== undefined && { why }),
  });
  const sealed = (r: Rounds, size: number, name: string, one: string, other: string, limit: number): Goal => ({
    number: 9,
    name,
    value: r.speed(one, other),
    target: ['>=', limit],
    detail: `${one} ${(size / r.micros(one)).toFixed(0)} MB/s, ${other} ${(size / r.micros(other)).toFixed(0)} MB/s`,
  });
  if (go) {
    const asked = (what: string) => async (times: number) => Number(await go.ask(`${what} ${times}`));
    const h = await alternate(
      { ours: often(ours), curve: often(() => curve(a, b)), go: asked('handshake') },
      { ...wall, warmups: 10, ms: 300 },
    );
    const bound = `its X25519 operations alone, through node:crypto, reach ${h.speed('curve', 'go').toFixed(2)}`;
    outcomes.push(handshake(h, 'go', 0.7, bound));
    const native = pair(ours()[0], randomBytes(65_536));
    const r = await alternate({ native: often(native), go: asked('transport 65536') }, { ...wall, ms: 300 });
    outcomes.push(sealed(r, 65_536, 'seal and open 64 KB by go', 'native', 'go', 0.9));
    go.end();
  } else {
    skipped(8, 'IKpsk1 handshake by go');
    skipped(9, 'seal and open 64 KB by go');
  }
  const standardHandshake = often(() => libp2p.handshake(libp2p.standard));
  const h = await alternate({ ours: often(ours), libp2p: standardHandshake }, { ...wall, warmups: 50 });
  outcomes.push(handshake(h, 'libp2p', 5));

  for (const size of [64, 1024, 4096, 65_536]) {
    const plain = randomBytes(size);
    const native = pair(ours()[0], plain);
    const standard = libp2p.pair(libp2p.standard, plain);
    // Each back end is chosen when the keys are made.
    useNative(false);
    const portable = pair(ours()[0], plain);
    portable();
    useNative(true);
    const script = libp2p.pair(libp2p.script, plain);
    for (const one of [native, standard, portable, script])
      if (!equalBytes(one(), plain)) throw new Error('answers differ');
    if (size !== 1024) continue;
    // The same code of noble at both ends, all but: it takes V8 its time to treat both alike.
    const long = { ...wall, warmups: 2, ms: 300 };
    const r = await alternate({ native: often(native), libp2p: often(standard) }, long);
    outcomes.push(sealed(r, size, 'seal and open 1 KB by libp2p', 'native', 'libp2p', 1.3));
    const p = await alternate({ portable: often(portable), 'libp2p, JavaScript': often(script) }, long);
    outcomes.push(sealed(p, size, 'the same without node:crypto', 'portable', 'libp2p, JavaScript', 1));
  }
  return outcomes;
}

/** What both ends cannot do without: two ephemeral keys, then es, ss, ee and se. */
export function curve(a: X25519Key, b: X25519Key): void {
  const [x, y] = [x25519(randomBytes(32)), x25519(randomBytes(32))];
  for (const [one, other] of [
    [x, b],
    [a, b],
    [x, y],
    [a, y],
  ] as const) {
    one.shared(other.publicKey);
    other.shared(one.publicKey);
  }
}

/** Seals at one end and opens at the other. */
function pair(joiner: Handshake, plain: Uint8Array): () => Uint8Array {
  const keys = joiner.keys();
  const [send, receive] = [createTransport(keys), createTransport({ send: keys.receive, receive: keys.send })];
  let seq = 1n;
  return () => receive.open(++seq, send.seal(seq, plain));
}

/** XX as libp2p speaks it: no pattern of that library has a pre-shared key. */
async function libp2pNoise(prologue: Uint8Array, payload: Uint8Array) {
  const { CipherState, XXHandshakeState, ZEROLEN } = await contender(`${LIBP2P}/protocol.js`);
  const { wrapCrypto } = await contender(`${LIBP2P}/crypto.js`);
  const { defaultCrypto, pureJsCrypto } = await contender(`${LIBP2P}/crypto/index.js`);
  const [standard, script] = [wrapCrypto(defaultCrypto), wrapCrypto(pureJsCrypto)];
  const keys = [standard.generateKeypair(), standard.generateKeypair()];
  const handshake = (crypto: unknown): unknown => {
    const protocolName = 'Noise_XX_25519_ChaChaPoly_SHA256';
    const [x, y] = [true, false].map(
      (initiator) => new XXHandshakeState({ crypto, protocolName, prologue, initiator, s: keys[initiator ? 0 : 1] }),
    );
    const list = (message: any): any => message;
    y.readMessageA(list(x.writeMessageA(ZEROLEN)));
    x.readMessageB(list(y.writeMessageB(payload)));
    y.readMessageC(list(x.writeMessageC(payload)));
    return [x.ss.split(), y.ss.split()];
  };
  const transport = (crypto: unknown, plain: Uint8Array): (() => Uint8Array) => {
    const key = randomBytes(32);
    const [send, receive] = [new CipherState(crypto, key), new CipherState(crypto, key)];
    return () => {
      const opened = receive.decryptWithAd(ZEROLEN, send.encryptWithAd(ZEROLEN, plain));
      return opened instanceof Uint8Array ? opened : opened.subarray();
    };
  };
  return { standard, script, handshake, pair: transport };
}
