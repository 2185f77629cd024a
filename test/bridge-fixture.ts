import { inputRequired, ResourceNotFoundError, Server } from '@modelcontextprotocol/server';
import { type ServeStdioOptions, serveStdio } from '@modelcontextprotocol/server/stdio';
import { vectors } from './mcp-vectors.ts';

// A server of the official SDK with the resources, prompts and completions of the recorded cases, and tools of its own.

const { fixture } = vectors;
const text = (value: string): any => ({ content: [{ type: 'text', text: value }] });
const PERSON = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };
const NAMES = ['add', 'fail', 'steps', 'noisy', 'greet', 'hang', 'who', 'touch', 'big', 'size'];

/** What happened inside, for tests that look at it from there. */
export interface Seen {
  calls: string[];
  cancelled: unknown[];
}

function fixtureServer(seen: Seen): Server {
  const server = new Server(fixture.serverInfo, { capabilities: fixture.capabilities });
  const tools: Record<string, (args: any, context: any) => unknown> = {
    add: ({ a, b }) => ({ ...text(String(a + b)), structuredContent: { sum: a + b } }),
    fail: () => ({ ...text('disk is full'), isError: true }),
    async steps(_, { mcpReq }) {
      const { progressToken } = mcpReq._meta ?? {};
      for (const progress of [1, 2, 3]) {
        await mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 3 } });
      }
      return text('done');
    },
    async noisy(_, { mcpReq }) {
      await mcpReq.log('debug', 'low', 'fixture');
      await mcpReq.log('warning', 'high', 'fixture');
      return text('logged');
    },
    greet(_, { mcpReq }) {
      const answer = mcpReq.inputResponses?.who;
      if (answer) return text(`Hello, ${answer.content?.name ?? 'stranger'}!`);
      const question = inputRequired.elicit({ message: 'Who are you?', requestedSchema: PERSON as any });
      return inputRequired({ inputRequests: { who: question } });
    },
    hang: (_, { mcpReq }) =>
      new Promise((resolve) => {
        mcpReq.signal.addEventListener('abort', () => {
          seen.cancelled.push(mcpReq.signal.reason);
          resolve(text('never heard'));
        });
      }),
    who: (_, { mcpReq }) => text(String(mcpReq._meta?.['chat.technocore/from'])),
    async touch({ what }) {
      if (what === 'tools') await server.sendToolListChanged();
      else if (what === 'prompts') await server.sendPromptListChanged();
      else await server.sendResourceUpdated({ uri: what });
      return text('ok');
    },
    size: ({ text: given }) => text(String(given.length)),
    big: ({ chars }) => text('x'.repeat(chars)),
  };
  server.setRequestHandler('tools/list', () => ({
    tools: NAMES.map((name) => ({ name, description: `The tool ${name}.`, inputSchema: { type: 'object' as const } })),
    ttlMs: 60_000,
    cacheScope: 'public' as const,
  }));
  server.setRequestHandler('tools/call', async ({ params: { name, arguments: args = {} } }, context) => {
    seen.calls.push(name);
    return (await tools[name]!(args, context)) as any;
  });
  const list = { ttlMs: 60_000, cacheScope: 'public' as const };
  server.setRequestHandler('resources/list', () => ({
    resources: fixture.resources.map(({ text: _, blob: __, ...shown }: any) => shown),
    ...list,
  }));
  server.setRequestHandler('resources/templates/list', () => ({
    resourceTemplates: fixture.resourceTemplates.map(({ read: _, ...shown }: any) => shown),
    ...list,
  }));
  server.setRequestHandler('resources/read', ({ params: { uri } }) => {
    const found = fixture.resources.find((one: any) => one.uri === uri);
    const date = /^note:\/\/day\/(.+)$/.exec(uri)?.[1];
    if (!found && date === undefined) throw new ResourceNotFoundError(uri);
    const { name: _, ...contents } = found ?? { uri, mimeType: 'text/plain', text: `day ${date}` };
    return { contents: [contents], ttlMs: 0, cacheScope: 'private' as const };
  });
  const [prompt] = fixture.prompts;
  const badParams = (message: string): Error => Object.assign(new Error(message), { code: -32602 });
  server.setRequestHandler('prompts/list', () => {
    const { get: _, ...shown } = prompt;
    return { prompts: [shown], ...list };
  });
  server.setRequestHandler('prompts/get', ({ params: { name, arguments: args = {} } }) => {
    if (name !== prompt.name || args['text'] === undefined)
      throw badParams('no such prompt, or an argument is missing');
    const words = `Review (${args['tone'] ?? 'plain'}): ${args['text']}`;
    return { messages: [{ role: 'user' as const, content: { type: 'text' as const, text: words } }] };
  });
  server.setRequestHandler('completion/complete', ({ params: { ref, argument } }) => {
    if (ref.type !== 'ref/prompt' || ref.name !== prompt.name) throw badParams('no such prompt');
    const values = fixture.completion.values.filter((value: string) => value.startsWith(argument.value));
    return { completion: { values } };
  });
  return server;
}

/** Serves it over a transport; what it returns ends it. */
export function serveFixture(transport: ServeStdioOptions['transport'], onerror?: (error: Error) => void) {
  const seen: Seen = { calls: [], cancelled: [] };
  const options = { transport: transport!, legacy: 'reject' as const, ...(onerror && { onerror }) };
  const { close } = serveStdio(() => fixtureServer(seen), options);
  return { seen, close };
}
