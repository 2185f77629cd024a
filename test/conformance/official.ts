import { createRequestStateCodec, inputRequired, ResourceNotFoundError, Server } from '@modelcontextprotocol/server';
import {
  ANSWERS,
  ASKING,
  CAPABILITY,
  CAPITAL,
  FAILURE,
  PNG,
  PROMPT_QUESTION,
  type Question,
  textOf,
} from './content.ts';

// A server of the official SDK with all that the suite's scenarios for 2026-07-28 ask for.

const LIST = { ttlMs: 60_000, cacheScope: 'public' as const };
const badParams = (message: string): Error => Object.assign(new Error(message), { code: -32602 });
const codec = createRequestStateCodec({ key: crypto.getRandomValues(new Uint8Array(32)) });

function requestOf(question: Question): any {
  switch (question.kind) {
    case 'elicit':
      return inputRequired.elicit(question.params as any);
    case 'sample':
      return inputRequired.createMessage(question.params as any);
    default:
      return inputRequired.listRoots();
  }
}

const asked = (questions: Question[], requestState?: string): any =>
  inputRequired({
    inputRequests: Object.fromEntries(questions.map((question) => [question.key, requestOf(question)])),
    ...(requestState !== undefined && { requestState }),
  });

/** Whether what came for a question can be an answer to it. */
function isAnswer(question: Question, answer: any): boolean {
  if (typeof answer !== 'object' || answer === null) return false;
  if (question.kind === 'elicit') return answer.action !== 'accept' || typeof answer.content === 'object';
  return question.kind === 'sample' ? typeof answer.content === 'object' : Array.isArray(answer.roots);
}

export function officialServer(): Server {
  const server = new Server({ name: 'conformance', version: '1.0.0' }, {
    capabilities: {
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { listChanged: true, subscribe: true },
      completions: {},
      logging: {},
    },
    requestState: { verify: codec.verify },
  } as any);
  const tools: Record<string, (context: any) => any> = {
    test_error_handling: () => ({ content: [textOf(FAILURE)], isError: true }),
    async test_tool_with_progress({ mcpReq }) {
      const { progressToken } = mcpReq._meta ?? {};
      for (const progress of [0, 50, 100]) {
        if (progress > 0) await new Promise((resolve) => setTimeout(resolve, 50));
        const params = { progressToken, progress, total: 100 };
        if (progressToken !== undefined) await mcpReq.notify({ method: 'notifications/progress', params });
      }
      return { content: [textOf('done')] };
    },
    async test_logging_tool({ mcpReq }) {
      await mcpReq.log('info', 'a log line');
      return { content: [textOf('logged')] };
    },
    test_missing_capability: ({ mcpReq }) =>
      mcpReq.inputResponses?.x
        ? { content: [textOf('sampled')] }
        : asked([{ kind: 'sample', key: 'x', params: { messages: [], maxTokens: 1 } }]),
    async test_trigger_tool_change() {
      await server.sendToolListChanged();
      return { content: [textOf('changed')] };
    },
    async test_trigger_prompt_change() {
      await server.sendPromptListChanged();
      return { content: [textOf('changed')] };
    },
    test_input_required_result_capabilities({ mcpReq }) {
      const declared = mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'] ?? {};
      if (mcpReq.inputResponses) return { content: [textOf('answered')] };
      const able = CAPITAL.filter(({ kind }) => CAPABILITY[kind] in declared);
      return able.length > 0 ? asked(able) : { content: [textOf('nobody to ask')] };
    },
  };
  for (const [name, content] of Object.entries(ANSWERS)) tools[name] = () => ({ content });
  for (const [name, { rounds, state, says }] of Object.entries(ASKING)) {
    tools[name] = async ({ mcpReq }) => {
      const known = (mcpReq.requestState() as any)?.answers ?? {};
      const answers = { ...known, ...mcpReq.inputResponses };
      const open = rounds.find((questions) => !questions.every((one) => isAnswer(one, answers[one.key])));
      if (open) return asked(open, state && (await codec.mint({ answers })));
      return { content: [textOf(says(answers))] };
    };
  }
  const names = Object.keys(tools).sort();
  server.setRequestHandler('tools/list', () => ({
    tools: names.map((name) => ({ name, description: `For ${name}.`, inputSchema: { type: 'object' as const } })),
    ...LIST,
  }));
  server.setRequestHandler('tools/call', (async ({ params: { name } }: any, context: any) => {
    const run = Object.hasOwn(tools, name) ? tools[name] : undefined;
    if (!run) throw badParams(`Unknown tool: ${name}`);
    return run(context);
  }) as any);

  const resources = [
    { uri: 'test://static-text', name: 'text', description: 'A text.', mimeType: 'text/plain' },
    { uri: 'test://static-binary', name: 'binary', description: 'An image.', mimeType: 'image/png' },
  ];
  const template = { uriTemplate: 'test://template/{id}/data', name: 'data', description: 'Data by id.' };
  server.setRequestHandler('resources/list', () => ({ resources, ...LIST }));
  server.setRequestHandler('resources/templates/list', () => ({ resourceTemplates: [template], ...LIST }));
  server.setRequestHandler('resources/read', ({ params: { uri } }) => {
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
    const read: any = { ttlMs: 0, cacheScope: 'private' };
    if (uri === 'test://static-binary') return { contents: [{ uri, mimeType: 'image/png', blob: PNG }], ...read };
    let text: string | undefined;
    if (uri === 'test://static-text') text = 'This is the content of the static text resource.';
    else if (id) text = JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` });
    if (text === undefined) throw new ResourceNotFoundError(uri);
    return { contents: [{ uri, mimeType: id ? 'application/json' : 'text/plain', text }], ...read };
  });

  const argument = (name: string): object => ({ name, description: `The ${name}.`, required: true });
  const user = (content: object): object => ({ role: 'user', content });
  const prompts: Record<string, { takes?: object[]; get(args: any, context: any): any }> = {
    test_simple_prompt: { get: () => ({ messages: [user(textOf('This is a simple prompt for testing.'))] }) },
    test_prompt_with_arguments: {
      takes: [argument('arg1'), argument('arg2')],
      get({ arg1, arg2 }) {
        if (arg1 === undefined || arg2 === undefined) throw badParams('an argument is missing');
        return { messages: [user(textOf(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`))] };
      },
    },
    test_prompt_with_embedded_resource: {
      takes: [argument('resourceUri')],
      get({ resourceUri: uri }) {
        const resource = { uri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' };
        const words = textOf('Please process the embedded resource above.');
        return { messages: [user({ type: 'resource', resource }), user(words)] };
      },
    },
    test_prompt_with_image: {
      get: () => ({
        messages: [
          user({ type: 'image', data: PNG, mimeType: 'image/png' }),
          user(textOf('Please analyze the image above.')),
        ],
      }),
    },
    test_input_required_result_prompt: {
      get(_, { mcpReq }) {
        const answer = mcpReq.inputResponses?.user_context;
        if (!isAnswer(PROMPT_QUESTION, answer)) return asked([PROMPT_QUESTION]);
        return { messages: [user(textOf(`With ${answer.content?.context}.`))] };
      },
    },
  };
  server.setRequestHandler('prompts/list', (() => ({
    prompts: Object.entries(prompts).map(([name, { takes }]) => ({
      name,
      description: `For ${name}.`,
      ...(takes && { arguments: takes }),
    })),
    ...LIST,
  })) as any);
  server.setRequestHandler('prompts/get', (({ params: { name, arguments: args = {} } }: any, context: any) => {
    const prompt = Object.hasOwn(prompts, name) ? prompts[name] : undefined;
    if (!prompt) throw badParams(`Unknown prompt: ${name}`);
    return prompt.get(args, context);
  }) as any);
  server.setRequestHandler('completion/complete', ({ params: { argument: given } }) => ({
    completion: { values: ['paris', 'park', 'party'].filter((value) => value.startsWith(given.value)) },
  }));
  return server;
}
