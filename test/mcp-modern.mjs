// A stdio server of the official SDK that speaks 2026-07-28 and refuses the handshake.
import { inputRequired, Server } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';

const text = (value) => ({ content: [{ type: 'text', text: value }] });

serveStdio(
  () => {
    const server = new Server(
      { name: 'modern', version: '1.0.0' },
      { capabilities: { tools: { listChanged: true }, logging: {} }, instructions: 'Ask.' },
    );
    const tools = {
      who: (_, { mcpReq }) => text(String(mcpReq._meta?.['chat.technocore/from'])),
      // A host with such roots would be on our disk.
      roots: (_, { mcpReq }) =>
        mcpReq.inputResponses?.r
          ? text(JSON.stringify(mcpReq.inputResponses.r))
          : inputRequired({ inputRequests: { r: inputRequired.listRoots() } }),
      greet(_, { mcpReq }) {
        const answer = mcpReq.inputResponses?.who;
        if (answer) return text(`Hello, ${answer.content?.name ?? answer.action}!`);
        const requestedSchema = { type: 'object', properties: { name: { type: 'string' } } };
        return inputRequired({ inputRequests: { who: inputRequired.elicit({ message: 'Who?', requestedSchema }) } });
      },
      async steps(_, { mcpReq }) {
        const { progressToken } = mcpReq._meta ?? {};
        for (const progress of [1, 2]) {
          await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress } });
        }
        await mcpReq.log('warning', 'high');
        return text('done');
      },
      async touch() {
        await server.sendToolListChanged();
        return text('ok');
      },
      die: () => process.exit(1),
    };
    server.setRequestHandler('tools/list', () => ({
      tools: Object.keys(tools).map((name) => ({ name, inputSchema: { type: 'object' } })),
      ttlMs: 0,
      cacheScope: 'public',
    }));
    server.setRequestHandler('tools/call', ({ params: { name, arguments: args } }, context) =>
      tools[name](args, context),
    );
    return server;
  },
  { legacy: 'reject' },
);
