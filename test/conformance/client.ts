import { StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { RoomServerTransport } from '../../src/bridge.ts';
import { createLocalService } from '../../src/local.ts';
import { mcpCallTool, mcpDiscover, mcpListTools, Signer } from '../../src/technocore-rpc.ts';

// The suite's test server, behind a room: whatever comes out of the room goes to its address, and what it answers goes back.
// Our own client is at the other end of the room.

const url = process.argv.at(-1)!;
const scenario = process.env['MCP_CONFORMANCE_SCENARIO'];
const { fetch } = createLocalService({ limits: { readsPerMinute: 1e9, writesPerMinute: 1e9 } });
const o = { base: 'http://rooms.test', fetch };
const mailbox = 'mb-p-server';

const room = new RoomServerTransport(mailbox, Signer.generate(), o);
const gateway = new StreamableHTTPClientTransport(new URL(url));
const failed = (message: any, cause: unknown): void => {
  if (message.id === undefined) return;
  const error = { code: -32603, message: String(cause) };
  void room.send({ jsonrpc: '2.0', id: message.id, error });
};
room.onmessage = (message) => {
  gateway.setProtocolVersion?.(message.params?._meta?.['io.modelcontextprotocol/protocolVersion']);
  gateway.send(message).catch((cause) => failed(message, cause));
};
gateway.onmessage = (message: any) => void room.send(message);
await gateway.start();
await room.start();

const me = Signer.generate();
const asker = { ...o, replyTo: 'mb-p-me', clientInfo: { name: 'technocore-rpc', version: '0.1.0' } };
const onInput = {
  elicit: () => ({ action: 'accept' as const, content: { confirmed: true, name: 'Noor' } }),
  sample: () => ({ role: 'assistant', content: { type: 'text', text: 'yes' }, model: 'none' }),
  roots: () => ({ roots: [] }),
};
const call = (name: string, args: object): Promise<unknown> =>
  mcpCallTool(mailbox, name, args, me, { ...asker, onInput });

await mcpDiscover(mailbox, me, asker);
const tools = await mcpListTools(mailbox, me, asker);
switch (scenario) {
  case 'tools_call':
    await call('add_numbers', { a: 5, b: 3 });
    break;
  case 'sep-2322-client-request-state':
    await Promise.all(tools.map(({ name }) => call(name, {})));
    break;
  case 'json-schema-2020-12-preservation': {
    const focal = tools.find(({ name }) => name === 'json_schema_2020_12_tool')!;
    await call('json_schema_echo', { schema: focal.inputSchema });
    break;
  }
}
await room.close();
await gateway.close();
