// A server whose handlers leave a line in a file, to be killed at any moment: base, mailbox, directory.
import { appendFileSync } from 'node:fs';
import { fileCursor, fileLedger, idempotent, Signer, serve } from '../../dist/technocore-rpc.js';

const [, , base, mailbox, dir] = process.argv;
const signer = await Signer.fromDir(`${dir}/key`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const leave = (kind, { n }, { from, id }) => appendFileSync(`${dir}/done`, `${kind} ${from} ${id} ${n}\n`);

await serve(mailbox, signer, {
  base,
  ledger: await fileLedger(`${dir}/ledger`),
  cursor: fileCursor(`${dir}/cursor`),
  methods: new Map([
    [
      'quick',
      (params, context) => {
        leave('quick', params, context);
        return params.n * 2;
      },
    ],
    [
      'slow',
      async (params, context) => {
        leave('slow', params, context);
        await sleep(params.n % 60);
        return params.n * 2;
      },
    ],
    [
      'again',
      idempotent(async (params, context) => {
        leave('again', params, context);
        await sleep(params.n % 60);
        return params.n * 2;
      }),
    ],
  ]),
  onReady: () => process.stdout.write(`ready ${signer.did}\n`),
});
