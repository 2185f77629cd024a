// What the tools of the recorded cases do, for a dispatcher in the test and for a server in a process of its own.

export const PERSON = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };

export const BEHAVIOUR = {
  'math.sum': ({ a, b }) => ({ content: [{ type: 'text', text: String(a + b) }], structuredContent: { total: a + b } }),
  clock: () => '12:00',
  range: ({ n }) => Array.from({ length: n }, (_, i) => i + 1),
  zero: () => 0,
  crash: () => {
    throw new Error('disk is full');
  },
  steps: (_, { progress }) => {
    for (const step of [1, 2, 3]) progress(step, 3);
    return 'done';
  },
  hang: () => new Promise(() => {}),
  noisy: (_, { log }) => {
    log('debug', 'low', 'fixture');
    log('warning', 'high', 'fixture');
    return 'logged';
  },
  greet: async (_, { elicit }) => {
    const { action, content } = await elicit('who', { message: 'Who are you?', requestedSchema: PERSON });
    return `Hello, ${action === 'accept' ? content.name : 'stranger'}!`;
  },
  ask_model: (_, { sample }) => sample('q', { messages: [], maxTokens: 10 }),
  touch: ({ what }, { toolsChanged: changed }) => {
    if (what === 'tools') changed();
    return 'ok';
  },
};

/** 500 tools whose definitions are long: name, schema, title. */
export function manyTools() {
  return Array.from({ length: 500 }, (_, i) => ({
    name: `tool_${i}`,
    title: '名前',
    inputSchema: {
      type: 'object',
      properties: Object.fromEntries(
        Array.from({ length: 1 + ((i * 7) % 18) }, (_, k) => [
          `räum${k}`,
          { type: 'string', description: 'é'.repeat((i * k) % 14) },
        ]),
      ),
    },
  }));
}
