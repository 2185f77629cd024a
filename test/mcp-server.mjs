// A process that serves tools: those of the recorded cases, 500, or one whose answers are long; each time it is told so, a
// fresh server in a mailbox of its own.
import { readFileSync } from 'node:fs';
import { Signer, serve, tool } from '../dist/technocore-rpc.js';
import { BEHAVIOUR, manyTools } from './mcp-fixture.mjs';

const { fixture } = JSON.parse(readFileSync(new URL('vectors/mcp-frames.json', import.meta.url), 'utf8'));
const running = new Map();
process.on('disconnect', () => {
  for (const stop of running.values()) stop.abort();
});

const kinds = {
  fixture(tools) {
    for (const t of fixture.tools) tool(t.name, t.description, t.inputSchema, BEHAVIOUR[t.name], { ...t, tools });
  },
  many(tools) {
    for (const { name, title, inputSchema } of manyTools()) {
      tool(name, `The tool ${name}.`, inputSchema, () => name, { title, tools });
    }
  },
  big(tools) {
    tool('text', 'A long text.', { type: 'object' }, ({ chars }) => 'x'.repeat(chars), { tools });
  },
};

process.on('message', async ({ kind, mailbox, base }) => {
  if (kind === 'stop') return running.get(mailbox).abort();
  const stop = new AbortController();
  running.set(mailbox, stop);
  const tools = new Map();
  kinds[kind](tools);
  const signer = Signer.generate();
  const { serverInfo, pageSize } = fixture;
  const onReady = () => process.send({ ready: mailbox, did: signer.did });
  const o = kind === 'fixture' ? { serverInfo, pageSize, instructions: 'Ask me for sums.' } : {};
  await serve(mailbox, signer, { ...o, base, tools, signal: stop.signal, onReady });
});
