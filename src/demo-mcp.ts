/**
 * The MCP part of the demo: tools that run in the callee, and that the caller uses like local ones.
 *
 * @module
 */
import {
  tools as builtin,
  type CallOptions,
  mcpCallTool,
  mcpDiscover,
  mcpListTools,
  type Signer,
  type Tool,
  type ToolResult,
  tool,
} from './technocore-rpc.ts';

/** How the callee describes itself. */
export const about = {
  serverInfo: { name: 'demo-callee', version: '1.0.0' },
  instructions: 'Ask before you book.',
};

const NUMBERS = { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] };
const TABLE = { type: 'object', properties: { guests: { type: 'integer', minimum: 1 } }, required: ['guests'] };
const HOUR = { type: 'object', properties: { hour: { type: 'integer' } }, required: ['hour'] };

/** The tools of the callee: the built-in ones of every server, and its own. */
export function demoTools(): Map<string, Tool> {
  const tools = new Map(builtin);
  const readOnly = { tools, annotations: { readOnlyHint: true } };
  let kettle = 'cold';
  tool('multiply', 'Multiplies two numbers.', NUMBERS, ({ a, b }) => ({ product: a * b }), readOnly);
  tool(
    'print',
    'Prints a page.',
    { type: 'object' },
    () => {
      throw new Error('the printer is out of paper');
    },
    { tools },
  );
  tool(
    'book',
    'Books a table, at an hour that it asks for.',
    TABLE,
    async ({ guests }, { elicit }) => {
      const { action, content } = await elicit('hour', { message: 'At what hour?', requestedSchema: HOUR });
      return action === 'accept' ? `a table for ${guests} at ${content!['hour']}` : 'no table';
    },
    { tools },
  );
  tool(
    'boil',
    'Boils water, which takes an hour.',
    { type: 'object' },
    (_, { progress, signal }) => {
      kettle = 'hot';
      progress(1, 60, 'the kettle is on');
      return new Promise((_, reject) => {
        signal.addEventListener('abort', () => {
          kettle = `off again: ${signal.reason.message}`;
          reject(signal.reason);
        });
      });
    },
    { tools },
  );
  tool('kettle', 'Tells the state of the kettle.', { type: 'object' }, () => kettle, readOnly);
  return tools;
}

/** A list of tools as the lines of a table. */
function tableOf(tools: Tool[]): string[] {
  const rows = [
    ['tool', 'what it does', 'arguments', ''],
    ...tools.map(({ name, description = '', inputSchema, annotations }) => [
      name,
      description.length > 42 ? `${description.slice(0, 41)}…` : description,
      Object.keys(inputSchema['properties'] ?? {}).join(', '),
      annotations?.readOnlyHint ? 'only reads' : 'may change things',
    ]),
  ];
  const widths = rows[0]!.map((_, i) => Math.max(...rows.map((row) => row[i]!.length)));
  return rows.map((row) =>
    row
      .map((cell, i) => cell.padEnd(widths[i]!))
      .join('  ')
      .trimEnd(),
  );
}

const textOf = ({ content: [block] }: ToolResult): string => (block?.type === 'text' ? block.text : '');

type Play = () => Promise<[ok: boolean, outcome: string, lines?: string[]]>;

/** Plays the scenes of the caller. */
export async function mcpScenes(
  scene: (title: string, play: Play) => Promise<void>,
  mailbox: string,
  signer: Signer,
  o: CallOptions,
): Promise<void> {
  const use = (name: string, args: object, more: object = {}): Promise<ToolResult> =>
    mcpCallTool(mailbox, name, args, signer, { ...o, ...more });

  await scene('MCP: discovery', async () => {
    const { serverInfo, instructions, supportedVersions } = await mcpDiscover(mailbox, signer, o);
    const outcome = `${serverInfo?.name} ${serverInfo?.version}, MCP ${supportedVersions}: “${instructions}”`;
    return [instructions === about.instructions, outcome];
  });
  await scene('MCP: the list of tools', async () => {
    const tools = await mcpListTools(mailbox, signer, o);
    return [tools.length === 7, `${tools.length} tools`, tableOf(tools)];
  });
  await scene('MCP: a tool call', async () => {
    const { structuredContent } = await use('multiply', { a: 6, b: 7 });
    const outcome = JSON.stringify(structuredContent);
    return [outcome === '{"product":42}', `multiply { a: 6, b: 7 } → ${outcome}`];
  });
  await scene('MCP: a tool that fails', async () => {
    const result = await use('print', {});
    return [result.isError === true, `a result that says: ${textOf(result)}`];
  });
  await scene('MCP: a question back', async () => {
    let question = '';
    const elicit = ({ message }: { message: string }): object => {
      question = message;
      return { action: 'accept', content: { hour: 20 } };
    };
    const answer = textOf(await use('book', { guests: 2 }, { onInput: { elicit } }));
    return [answer === 'a table for 2 at 20', `“${question}” – 20 → ${answer}`];
  });
  await scene('MCP: a cancelled call', async () => {
    const stop = new AbortController();
    const onProgress = (): void => stop.abort('tea after all');
    const cause = await use('boil', {}, { signal: stop.signal, onProgress }).catch((reason) => reason);
    const kettle = textOf(await use('kettle', {}));
    return [cause === 'tea after all' && kettle === 'off again: tea after all', `the kettle is ${kettle}`];
  });
}
