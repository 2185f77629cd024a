// A process that serves agents, or works on tasks by their notes, as it is told. With arguments, one agent whose tasks,
// ledger and place in the mailbox are in a directory: it can be killed.
import * as rpc from '../dist/technocore-rpc.js';
import { behave, CARD } from './a2a-fixture.mjs';

const running = new Map();
process.on('disconnect', () => process.exit());

async function serveAgent({ base, mailbox, streaming }) {
  const stop = new AbortController();
  const agent = rpc.a2aAgent(behave, { ...CARD, capabilities: { streaming } });
  running.set(mailbox, () => {
    stop.abort();
    agent.close();
  });
  const signer = rpc.Signer.generate();
  const onReady = () => process.send({ ready: mailbox, did: signer.did });
  await rpc.serve(mailbox, signer, { base, methods: agent.methods, signal: stop.signal, onReady });
}

/** Moves each task as far as it can; tells what it won and what it lost. */
async function race({ base, ids, steps }) {
  const won = [];
  const lost = [];
  for (const id of ids) {
    for (let step = 0; step < steps.length; step++) {
      try {
        if (step === 0) await rpc.a2aCreate(id, { base });
        else await rpc.a2aAdvance(id, steps[step - 1], steps[step], { base });
        won.push([id, step]);
      } catch (cause) {
        if (cause.code !== 'conflict') throw cause;
        lost.push([id, step, cause.actual]);
      }
    }
  }
  return { won, lost };
}

const jobs = {
  race,
  create: ({ base, id }) => rpc.a2aCreate(id, { base }),
  advance: ({ base, id, from, to }) => rpc.a2aAdvance(id, from, to, { base }),
  address: ({ id }) => rpc.a2aTaskNote(id),
  dispatch: ({ base, frame }) => rpc.dispatch(frame, { service: { base } }),
};

process.on('message', async (message) => {
  const { job, call, ...params } = message;
  if (job === 'serve') await serveAgent(params);
  else if (job === 'stop') running.get(params.mailbox)?.();
  else {
    const told = await (async () => jobs[job](params))().then(
      (value) => ({ value }),
      ({ code, actual, from, to }) => ({ failed: { code, actual, from, to } }),
    );
    process.send({ call, ...told });
  }
});

const [base, mailbox, dir] = process.argv.slice(2);
if (dir !== undefined) {
  const [store, ledger] = await Promise.all([rpc.a2aFileStore(`${dir}/tasks`), rpc.fileLedger(`${dir}/ledger`)]);
  const agent = rpc.a2aAgent(behave, { ...CARD, capabilities: { streaming: true } }, { store });
  const signer = rpc.Signer.fromPassphrase('an agent that can be killed');
  await rpc.serve(mailbox, signer, {
    base,
    methods: agent.methods,
    ledger,
    cursor: rpc.fileCursor(`${dir}/cursor`),
    onReady: () => process.send({ ready: mailbox, did: signer.did }),
  });
}
