import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { type A2AAgentOptions, a2aAgent } from '../src/a2a-agent.ts';
import type { A2ACardInfo } from '../src/a2a-card.ts';
import { checkMove, stateOf, wordOf } from '../src/a2a-states.ts';
import { a2aMemoryStore } from '../src/a2a-store.ts';
import type { A2AHandler, A2ATask } from '../src/a2a-task.ts';
import { createDispatcher } from '../src/dispatch.ts';
import { RpcError } from '../src/errors.ts';
import { encode } from '../src/frames.ts';
import { HttpRelay, Identity, Session } from '../src/parley.ts';
import { behave, CARD } from './a2a-fixture.mjs';
import { playAll, vectors } from './a2a-vectors.ts';
import { settled, VirtualClock } from './virtual-clock.ts';

const A = 'did:key:a';
const B = 'did:key:b';

test('what asks no service is not told where one is', () => {
  vi.stubEnv('TECHNOCORE_URL', 'nonsense');
  onTestFinished(() => void vi.unstubAllEnvs());
  a2aAgent(behave, CARD).close();
  const relay = new HttpRelay('https://relay.example');
  expect(new Session(Identity.generate(), relay).peer.state).toBe('none');
});

/** An agent behind a dispatcher. */
function setting(handler: A2AHandler = behave, card: Partial<A2ACardInfo> = {}, o: A2AAgentOptions = {}) {
  const agent = a2aAgent(handler, { ...CARD, ...card }, o);
  onTestFinished(() => agent.close());
  const dispatcher = createDispatcher({ methods: agent.methods });
  let count = 0;
  /** All frames that come back for a request. */
  const frames = async (method: string, params?: object, from = A, id: string = `i${++count}`): Promise<any[]> => {
    const emitted: any[] = [];
    const frame = { jsonrpc: '2.0', id, method, ...(params && { params }) };
    const answer = await dispatcher.dispatch(frame, { from, emit: (one) => void emitted.push(one) });
    return [...emitted, answer];
  };
  const ask = async (method: string, params?: object, from = A): Promise<any> => {
    const answer = (await frames(method, params, from)).at(-1);
    return answer.error ? Promise.reject(Object.assign(new Error(answer.error.message), answer.error)) : answer.result;
  };
  /** Sends a text; gives the task, or the message. */
  const send = async (text: string, more: object = {}, configuration: object = {}, from = A): Promise<any> => {
    const message = { messageId: `m${++count}`, role: 'ROLE_USER', parts: [{ text }], ...more };
    const { task, message: bare } = await ask('SendMessage', { message, configuration }, from);
    return task ?? bare;
  };
  return { agent, dispatcher, frames, ask, send };
}

const NOW = { returnImmediately: true };
const STREAMING = { capabilities: { streaming: true } };
/** A promise and what resolves it. */
function gate<T = void>() {
  let open!: (value: T) => void;
  const promise = new Promise<T>((resolve) => (open = resolve));
  return { promise, open };
}

describe('the recorded cases, through a dispatcher', () => {
  playAll(async () => {
    const { dispatcher } = setting();
    return {
      async send(frame) {
        const emitted: any[] = [];
        const answer = await dispatcher.dispatch(frame, { from: A, emit: (one) => void emitted.push(one) });
        return answer === undefined ? emitted : [...emitted, answer];
      },
    };
  });
});

describe('states', () => {
  const { spelling } = vectors.states;
  const { legal, illegal }: { legal: [string, string][]; illegal: [string, string][] } = vectors.states;
  const full = (state: string): string => `TASK_STATE_${state}`;

  test('each has two spellings and no third', () => {
    for (const [name, word] of Object.entries<string>(spelling)) {
      expect([stateOf(name), stateOf(word), wordOf(name as never)]).toEqual([name, name, word]);
    }
    for (const odd of [
      '',
      'WORKING',
      'Working',
      'unknown',
      'TASK_STATE_UNSPECIFIED',
      'input_required',
      'done',
      7,
      null,
    ]) {
      expect(stateOf(odd)).toBe(undefined);
    }
  });

  /** A task that an agent has brought into a state, which then tries another. */
  const tried = async (from: string, to: string): Promise<string> => {
    const outcome = gate<string>();
    const { send } = setting(async (_, task) => {
      if (from !== 'SUBMITTED' && from !== 'WORKING') await task.update(wordOf(full(from) as never));
      await task.update(full(to)).then(
        () => outcome.open(to),
        (cause) => outcome.open(cause.code),
      );
    });
    await send('go', {}, NOW);
    return outcome.promise;
  };

  test.each(legal)('from %s to %s', async (from, to) => {
    expect(checkMove(full(from), wordOf(full(to) as never))).toEqual({ from: full(from), to: full(to) });
    expect(await tried(from, to)).toBe(to);
  });

  test.each(illegal)('not from %s to %s', async (from, to) => {
    expect(() => checkMove(full(from), full(to))).toThrow(expect.objectContaining({ code: 'bad_state' }));
    expect(await tried(from, to)).toBe('bad_state');
  });

  test('a state that is none is refused', async () => {
    expect(() => checkMove('working', 'nearly done')).toThrow(expect.objectContaining({ code: 'bad_state' }));
    expect(() => checkMove('TASK_STATE_UNSPECIFIED', 'working')).toThrow(
      expect.objectContaining({ code: 'bad_state' }),
    );
  });
});

describe('whose a task is', () => {
  test('somebody else finds nothing, and is told no more than for an id that never was', async () => {
    const { ask, send } = setting(behave, STREAMING);
    const { id, contextId } = await send('ask colour');
    const never = '00000000-0000-4000-8000-000000000000';
    const message = (taskId: string) => ({
      message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'x' }], taskId },
    });
    for (const [method, of] of [
      ['GetTask', (one: string) => ({ id: one })],
      ['CancelTask', (one: string) => ({ id: one })],
      ['SubscribeToTask', (one: string) => ({ id: one })],
      ['SendMessage', message],
      ['SendStreamingMessage', message],
      ['tasks/get', (one: string) => ({ id: one })],
      ['tasks/cancel', (one: string) => ({ id: one })],
    ] as const) {
      const told = await ask(method, of(id), B).catch(({ code, message, data }) => ({ code, message, data }));
      expect(told, method).toMatchObject({ code: -32001, data: [{ reason: 'TASK_NOT_FOUND' }] });
      expect(await ask(method, of(never), B).catch(({ code, message, data }) => ({ code, message, data }))).toEqual(
        told,
      );
    }
    expect(await ask('ListTasks', {}, B)).toMatchObject({ tasks: [], totalSize: 0 });
    expect(await ask('ListTasks', { contextId }, B)).toMatchObject({ tasks: [], totalSize: 0 });
    expect((await ask('GetTask', { id })).status.state).toBe('TASK_STATE_INPUT_REQUIRED');
  });

  test('the same context of two callers is two', async () => {
    const { ask, send } = setting();
    await send('echo a', { contextId: 'd-desk' });
    await send('echo b', { contextId: 'd-desk' }, {}, B);
    expect((await ask('ListTasks', { contextId: 'd-desk' }, B)).totalSize).toBe(1);
  });
});

describe('what is sent', () => {
  const bad: [string, object, string][] = [
    ['no parts', { parts: undefined }, 'message.parts'],
    ['a part that holds nothing', { parts: [{}] }, 'message.parts[0]'],
    ['a part that holds two', { parts: [{ text: 'a', url: 'https://x.example' }] }, 'message.parts[0]'],
    ['a text that is none', { parts: [{ text: 7 }] }, 'message.parts[0].text'],
    ['bytes that are no base64', { parts: [{ raw: '*', mediaType: 'text/plain' }] }, 'message.parts[0].raw'],
    ['no id', { messageId: '' }, 'message.messageId'],
    ['a role of 0.3', { role: 'user' }, 'message.role'],
    ['the role of the agent', { role: 'ROLE_AGENT' }, 'message.role'],
    ['a context that is no room', { contextId: '../x' }, 'message.contextId'],
    ['references that are none', { referenceTaskIds: 'x' }, 'message.referenceTaskIds'],
  ];
  test.each(bad)('%s', async (_, more, field) => {
    const { send } = setting();
    await expect(send('x', more)).rejects.toMatchObject({
      code: -32602,
      data: [{ '@type': 'type.googleapis.com/google.rpc.BadRequest', fieldViolations: [{ field }] }],
    });
  });

  test('unknown members are left out, null is absent, and JSON null is data', async () => {
    const seen = gate<any>();
    const { send } = setting(async (message) => void seen.open(message), { defaultInputModes: ['*/*'] });
    const odd = { parts: [{ data: null, text: null, odd: 1 }], contextId: null, odd: 2 };
    await send('', { messageId: 'm', ...odd });
    expect(await seen.promise).toEqual({ messageId: 'm', role: 'ROLE_USER', parts: [{ data: null }] });
  });

  test('a message that a handler returns keeps the id it has; null says nothing', async () => {
    const replies: any[] = [
      { messageId: 'mine', role: 'ROLE_AGENT', parts: [{ text: 'a' }] },
      { messageId: 5, parts: [{ text: 'b' }] },
      null,
    ];
    const { send } = setting(async () => replies.shift());
    expect(await send('')).toMatchObject({ messageId: 'mine', role: 'ROLE_AGENT' });
    expect((await send('')).messageId).toMatch(/./);
    const { status } = await send('');
    expect(status).toMatchObject({ state: 'TASK_STATE_COMPLETED' });
    expect(status).not.toHaveProperty('message');
  });

  test('members with their defaults are as good as absent', async () => {
    const { ask } = setting(async () => 'ok', { defaultInputModes: ['text/plain'] });
    const ids = { contextId: '', taskId: '' };
    const part = { text: 'x', metadata: null, filename: '', mediaType: '' };
    const message = { messageId: 'm', role: 'ROLE_USER', parts: [part], extensions: [], referenceTaskIds: [], ...ids };
    const answer = await ask('SendMessage', { tenant: '', message, configuration: null, metadata: null });
    expect(answer.message.parts).toEqual([{ text: 'ok' }]);
    expect(answer.message.contextId).toMatch(/./);
    const old = { kind: 'message', messageId: 'm', role: 'user', parts: [{ kind: 'text', text: 'x' }], ...ids };
    expect((await ask('message/send', { message: old })).parts).toEqual([{ kind: 'text', text: 'ok' }]);
  });

  test('media types: those of the card and of its skills, by range too', async () => {
    const { send } = setting(async () => 'ok', {
      defaultInputModes: ['text/*'],
      skills: [{ name: 's', inputModes: ['image/png'] }],
    });
    for (const part of [
      { text: 'x', mediaType: 'Text/HTML; charset=utf-8' },
      { raw: 'AAEC', mediaType: 'image/png' },
      { url: 'https://files.example/1' },
    ]) {
      expect(await send('', { parts: [part] })).toMatchObject({ role: 'ROLE_AGENT' });
    }
    for (const part of [{ data: {} }, { raw: 'AAEC' }, { url: 'https://files.example/1', mediaType: 'image/gif' }]) {
      await expect(send('', { parts: [part] })).rejects.toMatchObject({ code: -32005 });
    }
  });

  test('a context other than that of the task is refused, the right one or none taken', async () => {
    const { send } = setting();
    const { id, contextId } = await send('ask a');
    await expect(send('b', { taskId: id, contextId: 'd-else' })).rejects.toMatchObject({ code: -32602 });
    expect(await send('b', { taskId: id, contextId })).toMatchObject({
      contextId,
      status: { state: 'TASK_STATE_COMPLETED' },
    });
  });

  test('of rooms an agent serves those it names, and those it gave', async () => {
    const { send } = setting(behave, {}, { rooms: ['d-desk'] });
    expect((await send('echo a', { contextId: 'd-desk' })).contextId).toBe('d-desk');
    const { contextId } = await send('echo a');
    expect((await send('echo b', { contextId })).contextId).toBe(contextId);
    await expect(send('echo b', { contextId }, {}, B)).rejects.toMatchObject({ code: -32602 });
    await expect(send('echo b', { contextId: 'd-else' })).rejects.toMatchObject({ code: -32602 });
  });

  test('versions and extensions that are required', async () => {
    const uri = 'https://x.example/ext';
    const { ask, send } = setting(behave, { capabilities: { extensions: [{ uri, required: true }] } });
    await expect(send('echo a')).rejects.toMatchObject({ code: -32008 });
    expect((await send('echo a', { extensions: [uri] })).status.state).toBe('TASK_STATE_COMPLETED');
    const message = { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'echo a' }], extensions: [uri] };
    await expect(ask('SendMessage', { message, _meta: { 'A2A-Version': '2.0' } })).rejects.toMatchObject({
      code: -32009,
    });
    expect(await ask('SendMessage', { message, _meta: { 'A2A-Version': '1.0' } })).toHaveProperty('task');
  });

  test('a push configuration is refused with the message', async () => {
    const { send } = setting();
    const config = { taskPushNotificationConfig: { url: 'https://hook.example' } };
    await expect(send('echo a', {}, config)).rejects.toMatchObject({ code: -32003 });
    expect(() => a2aAgent(behave, { capabilities: { pushNotifications: true } })).toThrow(/push/);
  });

  test('the same request once more finds its task, and is not done again', async () => {
    let runs = 0;
    const { frames } = setting(async (message, task) => {
      runs++;
      await behave(message, task);
    });
    const message = (text: string) => ({ message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text }] } });
    const [first] = await frames('SendMessage', message('echo a'), A, 'same');
    const [again] = await frames('SendMessage', message('echo a'), A, 'same');
    expect(again).toEqual(first);
    const [other] = await frames('SendMessage', message('echo b'), A, 'same');
    const [others] = await frames('SendMessage', message('echo a'), B, 'same');
    const ids = [first, other, others].map(({ result }) => result.task.id);
    expect(new Set(ids).size).toBe(3);
    expect(runs).toBe(3);
    const follow = { message: { messageId: 'n', role: 'ROLE_USER', parts: [{ text: 'blue' }], taskId: '' } };
    const [asked] = await frames('SendMessage', message('ask a'), A, 'q');
    follow.message.taskId = asked.result.task.id;
    const [answer] = await frames('SendMessage', follow, A, 'r');
    expect((await frames('SendMessage', follow, A, 'r'))[0]).toEqual(answer);
  });
});

describe('what a handler does', () => {
  test('a message that it returns is the answer, unless there is a task by then', async () => {
    const clock = new VirtualClock();
    const { open, promise } = gate();
    const { send, ask } = setting(
      async ({ parts }) => {
        if (parts[0]!.text === 'later') await promise;
        return { parts: [{ text: 'words' }], metadata: { a: 1 } };
      },
      {},
      { clock },
    );
    expect(await send('at once')).toMatchObject({ role: 'ROLE_AGENT', parts: [{ text: 'words' }], metadata: { a: 1 } });
    expect(await send('at once', {}, NOW)).toMatchObject({ role: 'ROLE_AGENT' });
    expect((await ask('ListTasks')).totalSize).toBe(0);
    const { id, status } = await send('later', {}, NOW);
    expect(status.state).toBe('TASK_STATE_WORKING');
    open();
    await settled();
    expect(await ask('GetTask', { id })).toMatchObject({
      status: { state: 'TASK_STATE_COMPLETED', message: { parts: [{ text: 'words' }] } },
    });
  });

  test('nothing of a task shows that may still be a message', async () => {
    const { open, promise } = gate();
    const ids: string[] = [];
    const { send, ask } = setting(async (_, task) => {
      ids.push(task.id);
      await promise;
      return 'done';
    });
    const answer = send('x');
    await settled();
    await expect(ask('GetTask', { id: ids[0] })).rejects.toMatchObject({ code: -32001 });
    expect((await ask('ListTasks')).totalSize).toBe(0);
    open();
    expect(await answer).toMatchObject({ parts: [{ text: 'done' }] });
    await expect(ask('GetTask', { id: ids[0] })).rejects.toMatchObject({ code: -32001 });
  });

  test('what it throws says nothing of the inside; an error of its own it says itself', async () => {
    const onError = vi.fn();
    const { send, ask } = setting(
      async ({ parts }, task) => {
        if (parts[0]!.text === 'late') await task.update('working', 'begun');
        throw parts[0]!.text === 'bug'
          ? new Error('a secret')
          : new RpcError(4711, 'closed today', { until: 'monday' });
      },
      {},
      { onError },
    );
    const task = await send('bug');
    expect(task).toMatchObject({
      status: { state: 'TASK_STATE_FAILED', message: { parts: [{ text: 'Internal error' }] } },
    });
    expect(onError.mock.calls).toEqual([[expect.objectContaining({ message: 'a secret' }), task.id]]);
    await expect(send('refused')).rejects.toMatchObject({
      code: 4711,
      message: 'closed today',
      data: { until: 'monday' },
    });
    expect((await ask('ListTasks')).totalSize).toBe(1);
    expect(await send('late')).toMatchObject({
      status: { state: 'TASK_STATE_FAILED', message: { parts: [{ text: 'closed today' }] } },
    });
    expect(onError).toHaveBeenCalledOnce();
  });

  test('a generator publishes what it yields', async () => {
    const { send } = setting(async function* () {
      yield 'reading';
      yield { name: 'half', text: 'one' };
      yield { state: 'working', said: [{ data: { done: 0.5 } }] };
      return 'all said';
    });
    const task = await send('go', {}, { historyLength: 9 });
    expect(task).toMatchObject({
      status: { state: 'TASK_STATE_COMPLETED', message: { parts: [{ text: 'all said' }] } },
      artifacts: [{ name: 'half', parts: [{ text: 'one' }] }],
    });
    expect(task.history.map(({ parts }: any) => parts[0])).toEqual([
      { text: 'go' },
      { text: 'reading' },
      { data: { done: 0.5 } },
    ]);
  });

  test('artifacts are added to, replaced, and checked', async () => {
    const problems: string[] = [];
    const { send } = setting(async (_, task) => {
      const id = await task.artifact({ name: 'log', text: 'a' });
      await task.artifact({ artifactId: id, text: 'b', append: true, lastChunk: true });
      await task.artifact({ artifactId: 'x', parts: [{ url: 'https://files.example/1', mediaType: 'image/png' }] });
      await task.artifact({ artifactId: 'x', parts: [{ data: [1] }] });
      for (const odd of [{}, { parts: [] }, { parts: [{ text: 'a', data: 1 }] }]) {
        await task.artifact(odd as never).catch(({ code }) => problems.push(code));
      }
    });
    const { artifacts } = await send('go');
    expect(artifacts).toMatchObject([
      { name: 'log', parts: [{ text: 'a' }, { text: 'b' }] },
      { artifactId: 'x', parts: [{ data: [1] }] },
    ]);
    expect(problems).toEqual(['bad_artifact', 'bad_artifact', 'bad_artifact']);
  });

  test('an answer begins the next turn, which knows what was said', async () => {
    const turns: any[] = [];
    const { send } = setting(async (message, task) => {
      turns.push([message.parts[0]!.text, task.continued, task.history.map(({ parts }) => parts[0]!.text), task.from]);
      if (turns.length < 3) await task.ask(`question ${turns.length}`);
    });
    const { id } = await send('go');
    await send('one', { taskId: id });
    expect((await send('two', { taskId: id })).status.state).toBe('TASK_STATE_COMPLETED');
    expect(turns).toEqual([
      ['go', false, ['go'], A],
      ['one', true, ['go', 'question 1', 'one'], A],
      ['two', true, ['go', 'question 1', 'one', 'question 2', 'two'], A],
    ]);
  });

  test('a message to a task at work waits for its turn, and is not lost', async () => {
    const { open, promise } = gate();
    const order: string[] = [];
    const { send, ask } = setting(async (message) => {
      order.push(`begin ${message.parts[0]!.text}`);
      if (order.length === 1) await promise;
      order.push(`end ${message.parts[0]!.text}`);
    });
    const { id } = await send('one', {}, NOW);
    const second = send('two', { taskId: id });
    await settled();
    expect(order).toEqual(['begin one']);
    open();
    expect((await second).status.state).toBe('TASK_STATE_COMPLETED');
    expect(order).toEqual(['begin one', 'end one', 'begin two', 'end two']);
    await expect(send('three', { taskId: id })).rejects.toMatchObject({ code: -32004 });
    expect((await ask('GetTask', { id, historyLength: 5 })).history).toHaveLength(2);
  });

  test('no more messages wait than are bounded', async () => {
    const { send } = setting();
    const { id } = await send('slow job', {}, NOW);
    for (let i = 0; i < 16; i++) await send('more', { taskId: id }, NOW);
    await expect(send('more', { taskId: id }, NOW)).rejects.toMatchObject({ code: 1002, data: { retryAfterMs: 5000 } });
  });

  test('cancelling aborts it, ends all waiting, and what it publishes later is refused', async () => {
    const late = gate<any>();
    const { send, ask } = setting(async (_, task) => {
      await new Promise((resolve) => task.signal.addEventListener('abort', resolve));
      await task.artifact({ text: 'too late' }).catch(late.open);
    });
    const waiting = send('x');
    await settled();
    const { id } = await send('y', {}, NOW);
    expect(await ask('CancelTask', { id })).toMatchObject({ id, status: { state: 'TASK_STATE_CANCELED' } });
    expect(await late.promise).toMatchObject({ code: 'canceled' });
    expect(await ask('CancelTask', { id })).toMatchObject({ id, status: { state: 'TASK_STATE_CANCELED' } });
    await expect(send('more', { taskId: id })).rejects.toMatchObject({ code: -32004 });
    const { artifacts } = await ask('GetTask', { id });
    expect(artifacts).toBe(undefined);
    void waiting;
  });

  test('a turn that is over publishes nothing more', async () => {
    let kept: A2ATask | undefined;
    const { send } = setting(async (_, task) => {
      kept = task;
      await task.ask('and?');
    });
    await send('x');
    await settled();
    await expect(kept!.update('completed')).rejects.toMatchObject({ code: 'bad_state', message: 'the turn is over' });
  });

  test('of one caller no more than his share works at a time; the rest waits as submitted', async () => {
    const { send, ask } = setting(behave, {}, { concurrency: 4, clock: new VirtualClock() });
    const first = await send('slow job', {}, NOW);
    const waiting = send('slow job', {}, NOW);
    await settled();
    const other = await send('slow job', {}, NOW, B);
    expect([first, other].map(({ status }) => status.state)).toEqual(['TASK_STATE_WORKING', 'TASK_STATE_WORKING']);
    await ask('CancelTask', { id: first.id });
    expect((await waiting).status.state).toBe('TASK_STATE_WORKING');
  });
});

describe('how long an answer waits', () => {
  test('no longer than the agent allows, nor than the caller says; then the task is answered as it is', async () => {
    const clock = new VirtualClock();
    const { ask } = setting(behave, {}, { clock });
    const slow = (_meta?: object) => {
      const message = { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'slow job' }] };
      return ask('SendMessage', { message, ...(_meta && { _meta }) });
    };
    for (const [meta, ms] of [
      [undefined, 20_000],
      [{ 'chat.technocore/waitMs': 5000 }, 5000],
      [{ 'chat.technocore/waitMs': 1e9 }, 20_000],
    ] as const) {
      let answer: any;
      void slow(meta).then((one) => (answer = one));
      await clock.advance(ms - 1);
      expect(answer).toBe(undefined);
      await clock.advance(1);
      expect(answer.task.status.state).toBe('TASK_STATE_WORKING');
    }
  });

  test('in 0.3 as the client says, and when it says nothing, a little', async () => {
    const clock = new VirtualClock();
    const { ask } = setting(behave, {}, { clock });
    const message = { kind: 'message', messageId: 'm', role: 'user', parts: [{ kind: 'text', text: 'slow job' }] };
    let answer: any;
    void ask('message/send', { message }).then((one) => (answer = one));
    await clock.advance(999);
    expect(answer).toBe(undefined);
    await clock.advance(1);
    expect(answer).toMatchObject({ kind: 'task', status: { state: 'working' } });
  });

  test('many that wait or watch are no leak to the runtime', async () => {
    const warnings: string[] = [];
    const onWarning = ({ message }: Error): void => void warnings.push(message);
    process.on('warning', onWarning);
    const { dispatcher, frames, send } = setting(behave, STREAMING, { concurrency: 1000 });
    const { id } = await send('slow job', {}, NOW);
    const waiting = [
      ...Array.from({ length: 30 }, () => send('slow job')),
      ...Array.from({ length: 14 }, () => frames('SubscribeToTask', { id })),
    ];
    await settled();
    dispatcher.close();
    await Promise.all(waiting);
    await settled();
    process.off('warning', onWarning);
    expect(warnings).toEqual([]);
  });

  test('more than so many of one caller do not wait', async () => {
    const clock = new VirtualClock();
    const { send } = setting(behave, {}, { clock, concurrency: 1000 });
    const waiting = Array.from({ length: 64 }, () => send('slow job'));
    await settled();
    expect((await send('slow job')).status.state).toBe('TASK_STATE_WORKING');
    let others: any;
    void send('slow job', {}, {}, B).then((one) => (others = one));
    await settled();
    expect(others).toBe(undefined);
    await clock.advance(20_000);
    expect(await Promise.all(waiting)).toHaveLength(64);
  });

  test('a server that stops does not wait for it', async () => {
    const { dispatcher, send } = setting();
    const answer = send('slow job');
    await settled();
    dispatcher.close();
    expect((await answer).status.state).toBe('TASK_STATE_WORKING');
  });
});

describe('streams', () => {
  const said = (frame: any): string => {
    const { task, statusUpdate, artifactUpdate, message } = frame.result;
    if (message) return 'message';
    return artifactUpdate ? 'artifact' : `${task ? 'task ' : ''}${(task ?? statusUpdate).status.state.slice(11)}`;
  };
  const message = (text: string, more: object = {}) => ({
    message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text }], ...more },
  });

  test('show a task and all that happens to it, under the id of the request', async () => {
    const { frames } = setting(behave, STREAMING);
    const stream = await frames('SendStreamingMessage', message('steps'), A, 'the id');
    expect(stream.map(said)).toEqual([
      'task SUBMITTED',
      'WORKING',
      'WORKING',
      'artifact',
      'WORKING',
      'artifact',
      'COMPLETED',
    ]);
    expect(stream.every(({ id, jsonrpc }) => id === 'the id' && jsonrpc === '2.0')).toBe(true);
    const { id, contextId } = stream[0].result.task;
    expect(stream[5].result).toEqual({
      artifactUpdate: {
        taskId: id,
        contextId,
        artifact: { artifactId: 'a', parts: [{ text: ' two' }] },
        append: true,
        lastChunk: true,
      },
    });
    expect((await frames('SendStreamingMessage', message('hello'))).map(said)).toEqual(['message']);
    expect((await frames('SendStreamingMessage', message('ask a'))).map(said)).toEqual([
      'task SUBMITTED',
      'WORKING',
      'INPUT_REQUIRED',
    ]);
  });

  test('in 0.3 each item says what it is, and the last that it is', async () => {
    const { frames } = setting(behave, STREAMING);
    const old = {
      message: { kind: 'message', messageId: 'm', role: 'user', parts: [{ kind: 'text', text: 'steps' }] },
    };
    const items = (await frames('message/stream', old)).map(({ result }) => result);
    expect(items.map(({ kind, final }) => `${kind} ${final}`)).toEqual([
      'task undefined',
      'status-update false',
      'status-update false',
      'artifact-update undefined',
      'status-update false',
      'artifact-update undefined',
      'status-update true',
    ]);
    expect(items[3].artifact.parts).toEqual([{ kind: 'text', text: 'one' }]);
  });

  test('a follow-up streams from its own turn on', async () => {
    const { frames, send } = setting(behave, STREAMING);
    const { id } = await send('ask a');
    const stream = await frames('SendStreamingMessage', message('blue', { taskId: id }));
    expect(stream.map(said)).toEqual(['task WORKING', 'artifact', 'COMPLETED']);
  });

  test('who comes later sees the task as it is, then the rest; of one that waits, that', async () => {
    const { open, promise } = gate();
    const { frames, send } = setting(async (_, task) => {
      await task.artifact({ text: 'early' });
      await promise;
      await task.ask('more?');
    }, STREAMING);
    const { id } = await send('x', {}, NOW);
    const late = frames('SubscribeToTask', { id });
    await settled();
    open();
    const stream = await late;
    expect(stream.map(said)).toEqual(['task WORKING', 'INPUT_REQUIRED']);
    expect(stream[0].result.task.artifacts).toHaveLength(1);
    expect((await frames('SubscribeToTask', { id })).map(said)).toEqual(['task INPUT_REQUIRED']);
  });

  test('of a task that is over there is none', async () => {
    const { ask, send } = setting(behave, STREAMING);
    const { id } = await send('echo a');
    await expect(ask('SubscribeToTask', { id })).rejects.toMatchObject({ code: -32004 });
    await expect(ask('SubscribeToTask', { id: 'x' })).rejects.toMatchObject({ code: -32001 });
  });

  test('without the capability both are refused', async () => {
    const { ask, send } = setting();
    const { id } = await send('ask a');
    await expect(ask('SubscribeToTask', { id })).rejects.toMatchObject({ code: -32004 });
  });

  test('so many of one caller; the next when one has ended', async () => {
    const { frames, ask, send } = setting(behave, STREAMING);
    const { id } = await send('slow job', {}, NOW);
    const open = Array.from({ length: 16 }, () => frames('SubscribeToTask', { id }));
    await settled();
    await expect(ask('SubscribeToTask', { id })).rejects.toMatchObject({ code: 1002 });
    await ask('CancelTask', { id });
    expect((await open[0]!).map(said)).toEqual(['task WORKING', 'CANCELED']);
    await Promise.all(open);
    const { id: next } = await send('ask a');
    expect((await frames('SubscribeToTask', { id: next })).map(said)).toEqual(['task INPUT_REQUIRED']);
  });

  test('one that is too far behind ends with an error; the task goes on', async () => {
    const { open, promise } = gate();
    const { dispatcher, send, ask } = setting(async (_, task) => {
      await promise;
      for (let i = 0; i < 300; i++) await task.update('working', `${i}`);
    }, STREAMING);
    const { id } = await send('x', {}, NOW);
    const sending = gate();
    let emitted = 0;
    const frame = { jsonrpc: '2.0', id: 1, method: 'SubscribeToTask', params: { id } };
    const answer = dispatcher.dispatch(frame, { from: A, emit: () => (++emitted === 1 ? sending.promise : undefined) });
    await settled();
    open();
    await vi.waitFor(async () => expect((await ask('GetTask', { id })).status.state).toBe('TASK_STATE_COMPLETED'));
    sending.open();
    expect(await answer).toMatchObject({ error: { code: 1002 } });
    expect(emitted).toBe(257);
  });

  test('end when the server stops, the agent closes, or after an hour', async () => {
    for (const end of ['server', 'agent', 'time'] as const) {
      const clock = new VirtualClock();
      const { agent, dispatcher, frames, send } = setting(behave, STREAMING, { clock });
      const { id } = await send('slow job', {}, NOW);
      const stream = frames('SubscribeToTask', { id });
      await settled();
      if (end === 'server') dispatcher.close();
      else if (end === 'agent') agent.close();
      else await clock.advance(3_600_000);
      expect((await stream).at(-1)).toMatchObject({ error: { code: 1001 } });
      expect(clock.sleepers).toBe(0);
    }
  });

  test('a handler that says nothing for a while has a task all the same', async () => {
    const clock = new VirtualClock();
    const { frames, ask } = setting(behave, STREAMING, { clock });
    const stream = frames('SendStreamingMessage', message('slow job'));
    await clock.advance(1000);
    const { tasks } = await ask('ListTasks');
    await ask('CancelTask', { id: tasks[0].id });
    expect((await stream).map(said)).toEqual(['task SUBMITTED', 'WORKING', 'CANCELED']);
  });
});

describe('lists', () => {
  async function listed() {
    const clock = new VirtualClock();
    const s = setting(behave, {}, { clock });
    const ids: string[] = [];
    for (let i = 0; i < 7; i++) {
      const { id } = await s.send(i % 2 ? 'echo x' : 'ask x', { contextId: i < 3 ? 'd-one' : 'd-two' });
      ids.unshift(id);
      await clock.advance(1000);
    }
    return { ...s, clock, ids, of: (tasks: any[]) => tasks.map(({ id }: any) => ids.indexOf(id)) };
  }

  test('the newest state first, page by page', async () => {
    const { ask, of, send, ids } = await listed();
    let pageToken = '';
    const pages: number[][] = [];
    do {
      const page = await ask('ListTasks', { pageSize: 3, ...(pageToken && { pageToken }) });
      expect(page).toMatchObject({ pageSize: 3, totalSize: 7 });
      pages.push(of(page.tasks));
      pageToken = page.nextPageToken;
    } while (pageToken);
    expect(pages).toEqual([[0, 1, 2], [3, 4, 5], [6]]);
    await send('done', { taskId: ids[6] });
    expect(of((await ask('ListTasks', { pageSize: 2 })).tasks)).toEqual([6, 0]);
  });

  test('by context, state and time', async () => {
    const { ask, of } = await listed();
    const list = async (params: object) => of((await ask('ListTasks', params)).tasks);
    expect(await list({ contextId: 'd-one' })).toEqual([4, 5, 6]);
    expect(await list({ status: 'TASK_STATE_COMPLETED' })).toEqual([1, 3, 5]);
    expect(await list({ status: 'TASK_STATE_UNSPECIFIED' })).toHaveLength(7);
    const { timestamp } = (await ask('ListTasks', { pageSize: 3 })).tasks[2].status;
    expect(await list({ statusTimestampAfter: timestamp })).toEqual([0, 1, 2]);
    expect(await list({ statusTimestampAfter: timestamp, contextId: 'd-one' })).toEqual([]);
  });

  test('with history and artifacts for who asks', async () => {
    const { ask } = await listed();
    const { tasks } = await ask('ListTasks', { pageSize: 2 });
    expect(tasks[0]).not.toHaveProperty('artifacts');
    expect(tasks[1]).not.toHaveProperty('history');
    const full = (await ask('ListTasks', { pageSize: 2, includeArtifacts: true, historyLength: 1 })).tasks;
    expect(full[0].artifacts).toEqual([]);
    expect(full[1].artifacts).toMatchObject([{ name: 'answer' }]);
    expect(full[1].history).toHaveLength(1);
  });

  test.each([
    { pageSize: 0 },
    { pageSize: 101 },
    { pageSize: 1.5 },
    { pageToken: 'guess' },
    { pageToken: 'Z3Vlc3M' },
    { status: 'working' },
    { historyLength: -1 },
    { statusTimestampAfter: 'yesterday' },
    { includeArtifacts: 'yes' },
  ])('%j is refused', async (params) => {
    const { ask } = setting();
    await expect(ask('ListTasks', params)).rejects.toMatchObject({ code: -32602 });
  });

  test('10,000 tasks: each page fits a frame, and all come', async () => {
    const { ask, send } = setting(async () => {}, {}, { store: a2aMemoryStore() });
    for (let i = 0; i < 10_000; i++) await send('x', {}, NOW);
    const seen = new Set<string>();
    let pages = 0;
    let pageToken = '';
    do {
      const page = await ask('ListTasks', { pageSize: 100, ...(pageToken && { pageToken }) });
      // Throws when it is too long.
      encode({ jsonrpc: '2.0', id: 'i99999', result: page });
      expect(page.totalSize).toBe(10_000);
      for (const { id } of page.tasks) seen.add(id);
      pageToken = page.nextPageToken;
    } while (pageToken && ++pages < 40);
    expect(pages).toBe(40);
    expect(seen.size).toBeGreaterThan(600);
    expect((await ask('ListTasks', {}, B)).totalSize).toBe(0);
  });
});

describe('capabilities', () => {
  test('the extended card: not offered, not there, there', async () => {
    const offered = { capabilities: { extendedAgentCard: true } };
    await expect(setting().ask('GetExtendedAgentCard')).rejects.toMatchObject({ code: -32004 });
    await expect(setting(behave, offered).ask('GetExtendedAgentCard')).rejects.toMatchObject({ code: -32007 });
    const extendedCard = { name: 'more' } as never;
    expect(await setting(behave, offered, { extendedCard }).ask('agent/getAuthenticatedExtendedCard')).toEqual(
      extendedCard,
    );
  });

  test('push, in either spelling', async () => {
    const { ask } = setting();
    for (const method of [
      'GetTaskPushNotificationConfig',
      'ListTaskPushNotificationConfigs',
      'DeleteTaskPushNotificationConfig',
      'tasks/pushNotificationConfig/set',
      'tasks/pushNotificationConfig/delete',
    ]) {
      await expect(ask(method, {})).rejects.toMatchObject({ code: -32003 });
    }
  });

  test('fault 94: both versions behind one handler, each answered in its own words', async () => {
    const { ask, send } = setting();
    const { id } = await send('ask colour');
    const old = await ask('tasks/get', { id });
    expect(old).toMatchObject({
      kind: 'task',
      status: { state: 'input-required', message: { kind: 'message', role: 'agent' } },
    });
    const message = { messageId: 'm', role: 'user', parts: [{ kind: 'text', text: 'blue' }], taskId: id };
    expect(await ask('message/send', { message, configuration: { blocking: true } })).toMatchObject({
      id,
      status: { state: 'completed' },
    });
    expect((await ask('GetTask', { id })).status.state).toBe('TASK_STATE_COMPLETED');
    await expect(ask('tasks/list', {})).rejects.toMatchObject({ code: -32601 });
  });

  test('files and data keep their meaning from one version to the other', async () => {
    const seen = gate<any>();
    const parts = [
      { raw: 'AAEC', filename: 'a.bin', mediaType: 'image/png', metadata: { a: 1 } },
      { url: 'https://files.example/1', mediaType: 'image/png' },
      { data: { a: [1] } },
      { data: [1, 2], metadata: { b: 2 } },
      { text: 'x' },
    ];
    const { ask } = setting(
      async (message) => {
        seen.open(message.parts);
        return { parts };
      },
      { defaultInputModes: ['*/*'] },
    );
    const old = await ask('message/send', {
      message: {
        messageId: 'm',
        role: 'user',
        parts: [
          { kind: 'file', file: { bytes: 'AAEC', name: 'a.bin', mimeType: 'image/png' }, metadata: { a: 1 } },
          { kind: 'file', file: { uri: 'https://files.example/1', mimeType: 'image/png' } },
          { kind: 'data', data: { a: [1] } },
          { kind: 'data', data: { value: [1, 2] }, metadata: { b: 2, data_part_compat: true } },
          { kind: 'text', text: 'x' },
        ],
      },
    });
    expect(await seen.promise).toEqual(parts);
    expect(old.parts).toEqual([
      { kind: 'file', file: { bytes: 'AAEC', name: 'a.bin', mimeType: 'image/png' }, metadata: { a: 1 } },
      { kind: 'file', file: { uri: 'https://files.example/1', mimeType: 'image/png' } },
      { kind: 'data', data: { a: [1] } },
      { kind: 'data', data: { value: [1, 2] }, metadata: { b: 2, data_part_compat: true } },
      { kind: 'text', text: 'x' },
    ]);
    for (const part of [
      { kind: 'file', file: { bytes: 'AAEC', uri: 'https://x.example' } },
      { kind: 'data', data: [1] },
      { kind: 'text' },
      { text: 'x' },
    ]) {
      const message = { messageId: 'm', role: 'user', parts: [part] };
      await expect(ask('message/send', { message })).rejects.toMatchObject({ code: -32602 });
    }
  });
});
