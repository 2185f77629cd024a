// One of several servers of a mailbox, to be killed at any moment: base, mailbox, seed, file for lines, name, lease in ms.
import { appendFileSync } from 'node:fs';
import { Signer, serve } from '../dist/technocore-rpc.js';

const [, , base, mailbox, seed, file, name, leaseMs] = process.argv;

await serve(mailbox, Signer.fromSeed(seed), {
  base,
  claim: { leaseMs: Number(leaseMs) },
  methods: new Map([
    [
      'work',
      async ({ n }, { from }) => {
        appendFileSync(file, `${from} ${n} ${name}\n`);
        await new Promise((resolve) => setTimeout(resolve, n % 40));
        return `${n} by ${name}`;
      },
    ],
  ]),
  onReady: () => process.stdout.write('ready\n'),
});
