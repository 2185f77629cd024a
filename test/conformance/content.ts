// What the suite's scenarios ask servers for by name.

export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC';
export const WAV = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=';

export const textOf = (text: string): { type: 'text'; text: string } => ({ type: 'text', text });
const image = { type: 'image', data: PNG, mimeType: 'image/png' };
const resource = (uri: string, mimeType: string, text: string): object => ({
  type: 'resource',
  resource: { uri, mimeType, text },
});

/** Tools that only answer. */
export const ANSWERS: Record<string, object[]> = {
  test_simple_text: [textOf('This is a simple text response for testing.')],
  test_image_content: [image],
  test_audio_content: [{ type: 'audio', data: WAV, mimeType: 'audio/wav' }],
  test_embedded_resource: [resource('test://embedded-resource', 'text/plain', 'This is an embedded resource content.')],
  test_multiple_content_types: [
    textOf('Multiple content types test:'),
    image,
    resource('test://mixed-content-resource', 'application/json', '{"test":"data","value":123}'),
  ],
};
export const FAILURE = 'This tool intentionally returns an error for testing';

const form = (message: string, name: string, type = 'string'): { message: string; requestedSchema: object } => ({
  message,
  requestedSchema: { type: 'object', properties: { [name]: { type } }, required: [name] },
});
const question = (text: string, maxTokens: number): object => ({
  messages: [{ role: 'user', content: textOf(text) }],
  maxTokens,
});

/** What a tool asks, by key. */
export type Question =
  | { kind: 'elicit'; key: string; params: { message: string; requestedSchema: object } }
  | { kind: 'sample'; key: string; params: object }
  | { kind: 'roots'; key: string };

const elicit = (key: string, message: string, name: string, type?: string): Question => ({
  kind: 'elicit',
  key,
  params: form(message, name, type),
});
const NAME = elicit('user_name', 'What is your name?', 'name');
const ROOTS: Question = { kind: 'roots', key: 'client_roots' };

/** Tools that ask: in each round all questions of it. */
export const ASKING: Record<string, { rounds: Question[][]; state?: true; says: (answers: any) => string }> = {
  test_input_required_result_elicitation: {
    rounds: [[NAME]],
    says: ({ user_name }) => `Hello, ${user_name.content?.name}!`,
  },
  test_streaming_elicitation: { rounds: [[NAME]], says: ({ user_name }) => `Hello, ${user_name.content?.name}!` },
  test_input_required_result_sampling: {
    rounds: [[{ kind: 'sample', key: 'capital_question', params: question('What is the capital of France?', 100) }]],
    says: ({ capital_question }) => capital_question.content.text,
  },
  test_input_required_result_list_roots: {
    rounds: [[ROOTS]],
    says: ({ client_roots }) => client_roots.roots.map((root: any) => root.uri).join(),
  },
  test_input_required_result_request_state: {
    rounds: [[elicit('confirm', 'Please confirm', 'ok', 'boolean')]],
    state: true,
    says: () => 'state-ok',
  },
  test_input_required_result_tampered_state: {
    rounds: [[elicit('confirm', 'Please confirm', 'ok', 'boolean')]],
    state: true,
    says: () => 'state-ok',
  },
  test_input_required_result_multiple_inputs: {
    rounds: [[NAME, { kind: 'sample', key: 'greeting', params: question('Generate a greeting', 50) }, ROOTS]],
    state: true,
    says: () => 'all of it',
  },
  test_input_required_result_multi_round: {
    rounds: [
      [elicit('step1', 'Step 1: What is your name?', 'name')],
      [elicit('step2', 'Step 2: What is your favorite color?', 'color')],
    ],
    state: true,
    says: () => 'both steps',
  },
};
export const CAPITAL: Question[] = [
  NAME,
  { kind: 'sample', key: 'greeting', params: question('Generate a greeting', 50) },
  ROOTS,
];
export const CAPABILITY: Record<Question['kind'], string> = {
  elicit: 'elicitation',
  sample: 'sampling',
  roots: 'roots',
};

export const PROMPT_QUESTION = elicit('user_context', 'What context should the prompt use?', 'context');
