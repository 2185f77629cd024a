import { createPrivateKey, sign } from 'node:crypto';
import { ed25519 } from '@noble/curves/ed25519.js';
import { toBase64url, utf8 } from '../../src/bytes.ts';
import { useNative } from '../../src/crypto.ts';
import { Signer } from '../../src/signer.ts';
import type { Goal } from './goals.ts';
import { alternate, often } from './rounds.ts';

/** Signing 256 bytes, against the bare call of each back end. */
export async function benchSigning(): Promise<Goal[]> {
  const seed = new Uint8Array(32).fill(7);
  const text = 'x'.repeat(256);
  const native = Signer.fromSeed(seed);
  useNative(false);
  const portable = Signer.fromSeed(seed);
  portable.sign(text);
  useNative(true);
  const pkcs8 = Buffer.concat([Buffer.from('302e020100300506032b657004220420', 'hex'), seed]);
  const key = createPrivateKey({ key: pkcs8, format: 'der', type: 'pkcs8' });
  const node = (): string => sign(null, Buffer.from(text), key).toString('base64url');
  const noble = (): string => toBase64url(ed25519.sign(utf8(text), seed));
  if (new Set([native.sign(text), portable.sign(text), node(), noble()]).size !== 1) throw new Error('answers differ');
  const r = await alternate(
    {
      native: often(() => native.sign(text)),
      portable: often(() => portable.sign(text)),
      node: often(node),
      noble: often(noble),
    },
    { rounds: 21, warmups: 5, ms: 120, clock: 'wall' },
  );
  const rate = (name: string): string => `${name} ${r.rate(name).toFixed(0)}/s`;
  return [
    {
      number: 1,
      name: 'Signer.sign by node:crypto',
      value: r.speed('native', 'node'),
      target: ['>=', 0.85],
      detail: `${rate('native')}, ${rate('node')}`,
    },
    {
      number: 1,
      name: 'Signer.sign without it, by noble',
      value: r.speed('portable', 'noble'),
      target: ['>=', 1.8],
      detail: `${rate('portable')}, ${rate('noble')}`,
    },
  ];
}
