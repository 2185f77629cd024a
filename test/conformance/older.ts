import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import * as types from '@modelcontextprotocol/sdk/types.js';
import { ANSWERS, ASKING, FAILURE, PNG, PROMPT_QUESTION, type Question, textOf } from './content.ts';

// A program: a server that knows only the handshake, over stdio, with what the suite's scenarios ask for: those of 2025-11-25, and
// of 2026-07-28 what such a server can do behind a bridge.

const server = new Server(
  { name: 'older', version: '1.0.0' },
  {
    capabilities: {
      tools: { listChanged: true },
      prompts: {},
      resources: { subscribe: true },
      completions: {},
      logging: {},
    },
  },
);
const badParams = (message: string): Error => new types.McpError(types.ErrorCode.InvalidParams, message);
const pause = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 50));
const says = (text: string): object => ({ content: [textOf(text)] });

const titled = (values: string[], titles: string[]): object[] =>
  values.map((value, i) => ({ const: value, title: titles[i] }));
const VALUES = ['value1', 'value2', 'value3'];
const OPTIONS = ['option1', 'option2', 'option3'];
const ENUMS = {
  untitledSingle: { type: 'string', enum: OPTIONS },
  titledSingle: { type: 'string', oneOf: titled(VALUES, ['First Option', 'Second Option', 'Third Option']) },
  legacyEnum: {
    type: 'string',
    enum: ['opt1', 'opt2', 'opt3'],
    enumNames: ['Option One', 'Option Two', 'Option Three'],
  },
  untitledMulti: { type: 'array', items: { type: 'string', enum: OPTIONS } },
  titledMulti: { type: 'array', items: { anyOf: titled(VALUES, ['First Choice', 'Second Choice', 'Third Choice']) } },
};
const DEFAULTS = {
  name: { type: 'string', default: 'John Doe' },
  age: { type: 'integer', default: 30 },
  score: { type: 'number', default: 95.5 },
  status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', default: true },
};

async function ask(message: string, properties: object): Promise<object> {
  const { action, content } = await server.elicitInput({
    message,
    requestedSchema: { type: 'object', properties },
  } as any);
  return says(`Elicitation completed: action=${action}, content=${JSON.stringify(content)}`);
}

/** A question as such a server asks it: by a request of its own, in the middle of the caller's. */
function put(question: Question): Promise<any> {
  if (question.kind === 'elicit') return server.elicitInput(question.params as any);
  return question.kind === 'sample' ? server.createMessage(question.params as any) : server.listRoots();
}

const tools: Record<string, (args: any, extra: any) => Promise<object> | object> = {
  test_error_handling: () => ({ content: [textOf(FAILURE)], isError: true }),
  async test_tool_with_progress(_, { _meta, sendNotification }) {
    const { progressToken } = _meta ?? {};
    for (const progress of [0, 50, 100]) {
      const params = { progressToken, progress, total: 100 };
      if (progressToken !== undefined) await sendNotification({ method: 'notifications/progress', params });
      await pause();
    }
    return says('done');
  },
  async test_tool_with_logging() {
    for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
      await server.sendLoggingMessage({ level: 'info', data });
      await pause();
    }
    return says('logged');
  },
  async test_logging_tool() {
    await server.sendLoggingMessage({ level: 'info', data: 'a log line' });
    return says('logged');
  },
  async test_sampling({ prompt }) {
    const messages = [{ role: 'user' as const, content: textOf(prompt) }];
    const { content } = await server.createMessage({ messages, maxTokens: 100 });
    return says(`LLM response: ${(content as any).text}`);
  },
  test_elicitation: ({ message }) => ask(message, { username: { type: 'string' }, email: { type: 'string' } }),
  test_elicitation_sep1034_defaults: () => ask('Defaults', DEFAULTS),
  test_elicitation_sep1330_enums: () => ask('Enums', ENUMS),
};
for (const [name, content] of Object.entries(ANSWERS)) tools[name] = () => ({ content });
for (const [name, { rounds, says: words }] of Object.entries(ASKING)) {
  tools[name] = async () => {
    const answers: Record<string, unknown> = {};
    for (const questions of rounds) {
      await Promise.all(questions.map(async (one) => Object.assign(answers, { [one.key]: await put(one) })));
    }
    return says(words(answers));
  };
}

server.setRequestHandler(types.ListToolsRequestSchema, () => ({
  tools: Object.keys(tools).map((name) => ({
    name,
    description: `For ${name}.`,
    inputSchema: { type: 'object' as const },
  })),
}));
server.setRequestHandler(types.CallToolRequestSchema, (async (
  { params: { name, arguments: args = {} } }: any,
  extra: any,
) => {
  const run = Object.hasOwn(tools, name) ? tools[name] : undefined;
  if (!run) throw badParams(`Unknown tool: ${name}`);
  return run(args, extra);
}) as any);

const resources = [
  { uri: 'test://static-text', name: 'text', description: 'A text.', mimeType: 'text/plain' },
  { uri: 'test://static-binary', name: 'binary', description: 'An image.', mimeType: 'image/png' },
  { uri: 'test://watched-resource', name: 'watched', description: 'A text that changes.', mimeType: 'text/plain' },
];
const resourceTemplates = [{ uriTemplate: 'test://template/{id}/data', name: 'data', description: 'Data by id.' }];
server.setRequestHandler(types.ListResourcesRequestSchema, () => ({ resources }));
server.setRequestHandler(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates }));
server.setRequestHandler(types.ReadResourceRequestSchema, ({ params: { uri } }) => {
  const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
  if (uri === 'test://static-binary') return { contents: [{ uri, mimeType: 'image/png', blob: PNG }] };
  if (id !== undefined) {
    const text = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
    return { contents: [{ uri, mimeType: 'application/json', text }] };
  }
  if (!resources.some((one) => one.uri === uri)) throw new types.McpError(-32002, 'Resource not found', { uri });
  return { contents: [{ uri, mimeType: 'text/plain', text: 'This is the content of the static text resource.' }] };
});
server.setRequestHandler(types.SubscribeRequestSchema, () => ({}));
server.setRequestHandler(types.UnsubscribeRequestSchema, () => ({}));

const argument = (name: string): object => ({ name, description: `The ${name}.`, required: true });
const user = (content: object): object => ({ role: 'user', content });
const prompts: Record<string, { takes?: object[]; get(args: any): object[] | Promise<object[]> }> = {
  test_input_required_result_prompt: {
    async get() {
      const { content } = await put(PROMPT_QUESTION);
      return [user(textOf(`With ${content?.context}.`))];
    },
  },
  test_simple_prompt: { get: () => [user(textOf('This is a simple prompt for testing.'))] },
  test_prompt_with_arguments: {
    takes: [argument('arg1'), argument('arg2')],
    get: ({ arg1, arg2 }) => [user(textOf(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))],
  },
  test_prompt_with_embedded_resource: {
    takes: [argument('resourceUri')],
    get: ({ resourceUri: uri }) => [
      user({
        type: 'resource',
        resource: { uri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
      }),
      user(textOf('Please process the embedded resource above.')),
    ],
  },
  test_prompt_with_image: {
    get: () => [
      user({ type: 'image', data: PNG, mimeType: 'image/png' }),
      user(textOf('Please analyze the image above.')),
    ],
  },
};
server.setRequestHandler(types.ListPromptsRequestSchema, (() => ({
  prompts: Object.entries(prompts).map(([name, { takes }]) => ({
    name,
    description: `For ${name}.`,
    arguments: takes ?? [],
  })),
})) as any);
server.setRequestHandler(types.GetPromptRequestSchema, (async ({ params: { name, arguments: args = {} } }: any) => {
  const prompt = Object.hasOwn(prompts, name) ? prompts[name] : undefined;
  if (!prompt) throw badParams(`Unknown prompt: ${name}`);
  return { messages: await prompt.get(args) };
}) as any);
server.setRequestHandler(types.CompleteRequestSchema, ({ params: { argument: given } }) => ({
  completion: { values: ['paris', 'park', 'party'].filter((value) => value.startsWith(given.value)) },
}));

await server.connect(new StdioServerTransport());
