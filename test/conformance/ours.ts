import { type Tool, tool } from '../../src/technocore-rpc.ts';
import { ANSWERS, ASKING, CAPABILITY, CAPITAL, FAILURE, type Question, textOf } from './content.ts';

// The tools that the suite's scenarios ask for, in our own layer.

function ask({ elicit, sample, roots }: any, question: Question): Promise<any> {
  switch (question.kind) {
    case 'elicit':
      return elicit(question.key, question.params);
    case 'sample':
      return sample(question.key, question.params);
    default:
      return roots(question.key);
  }
}

export function ourTools(): Map<string, Tool> {
  const tools = new Map<string, Tool>();
  const add = (name: string, run: (args: any, context: any) => unknown): void =>
    tool(name, `For ${name}.`, { type: 'object' }, run, { tools });
  for (const [name, content] of Object.entries(ANSWERS)) add(name, () => ({ content }));
  add('test_error_handling', () => {
    throw new Error(FAILURE);
  });
  add('test_tool_with_progress', async (_, { progress }) => {
    for (const done of [0, 50, 100]) {
      if (done > 0) await new Promise((resolve) => setTimeout(resolve, 50));
      progress(done, 100);
    }
    return 'done';
  });
  add('test_logging_tool', (_, { log }) => {
    log('info', 'a log line');
    return 'logged';
  });
  add('test_missing_capability', (_, { sample }) => sample('x', { messages: [], maxTokens: 1 }));
  add('test_trigger_tool_change', (_, { toolsChanged }) => {
    toolsChanged();
    return 'changed';
  });
  add('test_input_required_result_capabilities', async (_, context) => {
    const declared = context.meta['io.modelcontextprotocol/clientCapabilities'];
    const able = CAPITAL.filter(({ kind }) => CAPABILITY[kind] in declared);
    await Promise.all(able.map((question) => ask(context, question)));
    return 'answered';
  });
  for (const [name, { rounds, says }] of Object.entries(ASKING)) {
    add(name, async (_, context) => {
      const answers: Record<string, unknown> = {};
      for (const questions of rounds) {
        const given = await Promise.all(questions.map((question) => ask(context, question)));
        for (const [i, { key }] of questions.entries()) answers[key] = given[i];
      }
      return { content: [textOf(says(answers))] };
    });
  }
  return tools;
}
