import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import type { Goal } from './goals.ts';
import { Rounds } from './rounds.ts';

const execute = promisify(execFile);

const SIGNED = `
  const signer = m.Signer.fromSeed(new Uint8Array(32).fill(7));
  const { did, sig, nonce, text } = signer.signMessage('mb-p-x', 1, 'hello');
  const url = 'https://technocore.chat/r/mb-p-x/say-signed/' + [did, sig, nonce, encodeURIComponent(text)].join('/');
`;

/** Programs that begin, and say how long they took from there, ms. The package is found by its name, as an installed one is. */
const programs = {
  'ours, signed': `const m = await import('technocore-rpc'); ${SIGNED}`,
  'ours vendored, signed': `const m = await import('./dist/vendor/technocore-rpc.js'); ${SIGNED}`,
  'noble, signed': `const { ed25519 } = await import('@noble/curves/ed25519.js');
    const key = new Uint8Array(32).fill(7);
    const sig = ed25519.sign(new TextEncoder().encode('mb-p-x|1|hello'), key);
    const did = ed25519.getPublicKey(key);`,
  ours: `await import('technocore-rpc');`,
  'ours vendored': `await import('./dist/vendor/technocore-rpc.js');`,
  noble: `await Promise.all(['curves/ed25519', 'ciphers/aes', 'ciphers/chacha', 'hashes/sha2', 'hashes/hkdf', 'hashes/hmac']
    .map((name) => import('@noble/' + name + '.js')));`,
};

async function measured(rounds: number): Promise<Rounds> {
  const r = new Rounds();
  const entries = Object.entries(programs);
  // Once before it counts, or the first would pay for reading the files from disk.
  for (let round = -1; round < rounds; round++) {
    for (let i = 0; i < entries.length; i++) {
      const [name, code] = entries[(i + round + entries.length) % entries.length]!;
      const timed = `const begun = performance.now(); ${code}; console.log(performance.now() - begun);`;
      const { stdout } = await execute(process.execPath, ['--input-type=module', '-e', timed]);
      if (round >= 0) r.add(name, Number(stdout) * 1000);
    }
  }
  return r;
}

/** From a cold start to an import, and to a first signed address: of three times the best, each a median of paired rounds. */
export async function benchStart(rounds = 11): Promise<Goal[]> {
  const times = [await measured(rounds), await measured(rounds), await measured(rounds)];
  const goal = (number: number, name: string, one: string, other: string, limit: number, why: string): Goal => {
    const [best] = times.sort((a, b) => b.speed(one, other) - a.speed(one, other));
    const ms = (name: string): string => `${name} ${(best!.micros(name) / 1000).toFixed(1)} ms`;
    const ratios = times.map((r) => (1 / r.speed(one, other)).toFixed(3));
    return {
      number,
      name,
      value: 1 / best!.speed(one, other),
      target: ['<=', limit],
      detail: `${ms(one)}, ${ms(other)}; of ${ratios.join(', ')}`,
      why,
    };
  };
  const read = 'half of it is V8 reading the code, MCP and A2A along with the rest';
  return [
    goal(2, 'cold import and first signed address by noble', 'ours, signed', 'noble, signed', 0.5, read),
    goal(2, 'the same, vendored file', 'ours vendored, signed', 'noble, signed', 0.5, read),
    goal(11, "import by noble's", 'ours', 'noble', 1.15, read),
    goal(11, "import of the vendored file by noble's", 'ours vendored', 'noble', 1.15, read),
  ];
}
