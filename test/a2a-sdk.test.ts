import * as types from '@a2a-js/sdk';
import { type Client, ClientFactory, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import {
  AgentEvent,
  type AgentExecutor,
  DefaultRequestHandler,
  InMemoryTaskStore,
  JsonRpcTransportHandler,
  ServerCallContext,
} from '@a2a-js/sdk/server';
import { describe, expect, onTestFinished, test } from 'vitest';
import { a2aAgent } from '../src/a2a-agent.ts';
import { a2aCard } from '../src/a2a-card.ts';
import { a2aHandlerMethods, RoomTransportFactory } from '../src/bridge-a2a.ts';
import { createDispatcher } from '../src/dispatch.ts';
import { serve } from '../src/serve.ts';
import { behave, CARD } from './a2a-fixture.mjs';
import { mismatch, type Peer, play, vectors } from './a2a-vectors.ts';
import { signer, world } from './support.ts';

// The published SDK as the other side: its handler is held against the same cases as ours, and its client calls our agent
// through rooms.

const { Message, SendMessageRequest, Task } = types as any;
const v1: any[] = vectors.cases.filter(({ binding }: any) => binding === '1.0');

// --- its handler -------------------------------------------------------------------------------------------------

/** The behaviour of the recorded cases, as the SDK wants it. */
const executor: AgentExecutor = {
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const { text } = (Message.toJSON(userMessage) as any).parts?.[0] ?? {};
    const message = (words: string) =>
      Message.fromJSON({ messageId: crypto.randomUUID(), role: 'ROLE_AGENT', parts: [{ text: words }] });
    const status = (state: string, words?: string): any => ({
      state: (types as any).taskStateFromJSON(`TASK_STATE_${state}`),
      message: words === undefined ? undefined : message(words),
      timestamp: new Date().toISOString(),
    });
    const update = (state: string, words?: string) =>
      bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(state, words), metadata: {} }));
    const answer = (words: string) => {
      const artifact = { artifactId: crypto.randomUUID(), name: 'answer', parts: [{ text: words }] };
      const made = (types as any).Artifact.fromJSON(artifact);
      bus.publish(
        AgentEvent.artifactUpdate({ taskId, contextId, artifact: made, append: false, lastChunk: true, metadata: {} }),
      );
      update('COMPLETED');
    };
    if (text === 'hello') return bus.publish(AgentEvent.message(message('hello to you')));
    const begun = { id: taskId, contextId, status: {}, history: [Message.toJSON(userMessage)] };
    bus.publish(AgentEvent.task(task ?? { ...Task.fromJSON(begun), status: status('WORKING') }));
    if (task) return answer(text);
    const [word, ...rest] = String(text).split(' ');
    if (word === 'echo') answer(rest.join(' '));
    else if (word === 'ask') update('INPUT_REQUIRED', `Which ${rest.join(' ')}?`);
    else if (word === 'refuse') update('REJECTED');
    else if (word === 'slow') await new Promise<void>((resolve) => void canceled.set(taskId, resolve));
    else update('COMPLETED');
  },
  async cancelTask(taskId, bus) {
    const status = {
      state: types.TaskState.TASK_STATE_CANCELED,
      timestamp: new Date().toISOString(),
      message: undefined,
    };
    bus.publish(AgentEvent.statusUpdate({ taskId, contextId: '', status, metadata: {} }));
    canceled.get(taskId)?.();
  },
};
const canceled = new Map<string, () => void>();

const handlerOf = (card: types.AgentCard): JsonRpcTransportHandler =>
  new JsonRpcTransportHandler(new DefaultRequestHandler(card, new InMemoryTaskStore(), executor));
const contextOf = (userName: string): ServerCallContext =>
  new ServerCallContext({ user: { isAuthenticated: true, userName }, requestedVersion: '1.0' });

function theirs(): Peer {
  const card = types.AgentCard.fromJSON(a2aCard({ ...CARD, mailbox: 'mb-p-x' }, { base: 'https://rooms.example' }));
  const handler = handlerOf(card);
  const context = contextOf('ann');
  return {
    async send(frame) {
      const answer: any = await handler.handle(frame, context);
      return [Symbol.asyncIterator in answer ? { stream: true } : JSON.parse(JSON.stringify(answer))];
    },
  };
}

function ours(): Peer {
  const agent = a2aAgent(behave, CARD);
  const dispatcher = createDispatcher({ methods: agent.methods });
  return {
    async send(frame) {
      const answer = await dispatcher.dispatch(frame, { from: 'did:key:ann' });
      return answer === undefined ? [] : [answer];
    },
    close: () => agent.close(),
  };
}

/** Where it is laxer, or does otherwise, as the wire document says. */
const DEVIATIONS: { [name: string]: string } = {
  'v1-empty-parts': 'takes a message without parts',
  'v1-unsupported-media-type': 'leaves media types to the agent',
  'v1-notification': 'answers a notification, with the id null',
  'v1-capabilities-not-offered': 'gives a stream for a call that is not offered; its error comes when it is read',
};

describe('the published handler', () => {
  test.each(v1)('agrees on $name, or deviates as is known', async (one: any) => {
    const failed = await play(one, theirs()).then(
      () => false,
      () => true,
    );
    expect(failed).toBe(one.name in DEVIATIONS);
    await play(one, ours());
  });

  const message = (more: object) => ({
    message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'echo a' }], ...more },
  });
  const frame = (params: object) => ({ jsonrpc: '2.0', id: 1, method: 'SendMessage', params });

  test.each([
    ['takes a part with two contents', { parts: [{ text: 'a', url: 'https://x.example' }] }],
    ['takes the role of version 0.3', { role: 'user' }],
  ])('%s, which we refuse', async (_, more) => {
    const [lax] = await theirs().send(frame(message(more)));
    expect(lax).toHaveProperty('result');
    const [strict] = await ours().send(frame(message(more)));
    expect(strict.error.code).toBe(-32602);
  });

  test('begins a second task for a request that comes twice; we find the first', async () => {
    for (const [peer, tasks] of [
      [theirs(), 2],
      [ours(), 1],
    ] as const) {
      const answers = [await peer.send(frame(message({}))), await peer.send(frame(message({})))];
      expect(new Set(answers.map(([{ result }]) => result.task.id)).size).toBe(tasks);
    }
  });
});

test('what we answer is ProtoJSON of the schema: read and written by the SDK it stays the same', async () => {
  let read = 0;
  for (const one of v1) {
    await play(one, ours(), (step, _sent, answers) => {
      const [, name] = step.schema;
      const type = (types as any)[name];
      if (!name || !answers[0]?.result) return;
      read++;
      const again = type.toJSON(type.fromJSON(answers[0].result));
      // An empty token is a default, which ProtoJSON may leave out.
      expect(mismatch(again, answers[0].result, new Map()), one.name).toBe('');
      const { nextPageToken: _, ...shown } = answers[0].result;
      expect(mismatch(shown, again, new Map()), one.name).toBe('');
    });
  }
  expect(read).toBeGreaterThan(15);
});

// --- its client --------------------------------------------------------------------------------------------------

const MAILBOX = 'mb-p-agent';

const ROOM_CARD = types.AgentCard.fromJSON(
  a2aCard({ ...CARD, mailbox: MAILBOX, capabilities: { streaming: true } }, { base: 'http://local.test' }),
);

/** An agent behind a mailbox, made by us or with the SDK, and the SDK's client in front of it. */
async function client(made: 'by us' | 'with the SDK' = 'by us') {
  const w = world();
  const agent = a2aAgent(behave, { ...CARD, capabilities: { streaming: true } }, { clock: w.clock });
  const stop = new AbortController();
  const methods = made === 'by us' ? agent.methods : a2aHandlerMethods(handlerOf(ROOM_CARD), contextOf);
  let over: Promise<void> | undefined;
  const ready = new Promise<void>((onReady) => {
    over = serve(MAILBOX, signer(1), { ...w.o, methods, signal: stop.signal, onReady });
  });
  await w.run(ready);
  onTestFinished(async () => {
    stop.abort();
    agent.close();
    await w.run(over!);
  });
  const sdkOf = (n: number, replyTo: string): Promise<Client> =>
    new ClientFactory({
      transports: [new RoomTransportFactory(JsonRpcTransportFactory, signer(n), { ...w.o, replyTo }) as any],
    }).createFromAgentCard(ROOM_CARD);
  return { ...w, sdk: await sdkOf(2, 'mb-p-caller'), sdkOf };
}

const request = (text: string, more: object = {}, configuration?: object): any =>
  SendMessageRequest.fromJSON({
    message: { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text }], ...more },
    ...(configuration && { configuration }),
  });

describe('the published client, through rooms', () => {
  test('sends, asks, lists, cancels, and understands what is refused', async () => {
    const { sdk, run } = await client();
    const hello: any = await run(sdk.sendMessage(request('hello')));
    expect(Message.toJSON(hello).parts).toEqual([{ text: 'hello to you' }]);
    const asked: any = await run(sdk.sendMessage(request('ask colour')));
    expect(Task.toJSON(asked).status).toMatchObject({
      state: 'TASK_STATE_INPUT_REQUIRED',
      message: { parts: [{ text: 'Which colour?' }] },
    });
    const done: any = await run(sdk.sendMessage(request('blue', { taskId: asked.id }, { historyLength: 1 })));
    expect(Task.toJSON(done)).toMatchObject({
      status: { state: 'TASK_STATE_COMPLETED' },
      artifacts: [{ name: 'answer', parts: [{ text: 'blue' }] }],
      history: [{ role: 'ROLE_USER', parts: [{ text: 'blue' }] }],
    });
    const slow: any = await run(sdk.sendMessage(request('slow job', {}, { returnImmediately: true })));
    const read = await run(sdk.getTask({ tenant: '', id: slow.id }));
    expect(read.status!.state).toBe(types.TaskState.TASK_STATE_WORKING);
    const canceled = await run(sdk.cancelTask({ tenant: '', id: slow.id, metadata: {} }));
    expect(canceled.status!.state).toBe(types.TaskState.TASK_STATE_CANCELED);
    const list: any = await run(
      (sdk as any).listTasks((types as any).ListTasksRequest.fromJSON({ contextId: asked.contextId })),
    );
    expect(list.tasks.map(({ id }: any) => id)).toEqual([asked.id]);
    for (const [work, name] of [
      [() => sdk.getTask({ tenant: '', id: 'x' }), 'TaskNotFoundError'],
      [() => sdk.cancelTask({ tenant: '', id: done.id, metadata: {} }), 'TaskNotCancelableError'],
      [() => sdk.sendMessage(request('more', { taskId: done.id })), 'UnsupportedOperationError'],
      [
        () => sdk.sendMessage(request('x', { parts: [{ raw: 'AAEC', mediaType: 'image/gif' }] })),
        'ContentTypeNotSupportedError',
      ],
    ] as const) {
      const cause = await run<unknown>(work()).then(
        () => undefined,
        (e) => e,
      );
      expect(cause?.name ?? cause?.constructor.name).toBe(name);
    }
  });

  test('streams, and watches again', async () => {
    const { sdk, run } = await client();
    const collect = async (items: AsyncGenerator<any, void, undefined>) => {
      const kinds: string[] = [];
      for await (const { payload } of items) kinds.push(payload.$case);
      return kinds;
    };
    expect(await run(collect(sdk.sendMessageStream(request('steps'))))).toEqual([
      'task',
      'statusUpdate',
      'statusUpdate',
      'artifactUpdate',
      'statusUpdate',
      'artifactUpdate',
      'statusUpdate',
    ]);
    expect(await run(collect(sdk.sendMessageStream(request('hello'))))).toEqual(['message']);
    const asked: any = await run(sdk.sendMessage(request('ask colour')));
    expect(await run(collect(sdk.resubscribeTask({ tenant: '', id: asked.id })))).toEqual(['task']);
  });
});

describe('the published handler behind a mailbox, the published client in front of it', () => {
  test('messages, tasks, questions, lists, and what is refused', async () => {
    const { sdk, run } = await client('with the SDK');
    const hello: any = await run(sdk.sendMessage(request('hello')));
    expect(Message.toJSON(hello).parts).toEqual([{ text: 'hello to you' }]);
    const asked: any = await run(sdk.sendMessage(request('ask colour')));
    expect(asked.status.state).toBe(types.TaskState.TASK_STATE_INPUT_REQUIRED);
    const done: any = await run(sdk.sendMessage(request('blue', { taskId: asked.id })));
    expect(Task.toJSON(done)).toMatchObject({
      status: { state: 'TASK_STATE_COMPLETED' },
      artifacts: [{ name: 'answer', parts: [{ text: 'blue' }] }],
    });
    const slow: any = await run(sdk.sendMessage(request('slow job', {}, { returnImmediately: true })));
    const canceled = await run(sdk.cancelTask({ tenant: '', id: slow.id, metadata: {} }));
    expect(canceled.status!.state).toBe(types.TaskState.TASK_STATE_CANCELED);
    await expect(run(sdk.getTask({ tenant: '', id: 'x' }))).rejects.toThrow(/not found/i);
  });

  test('streams end with the task, and with who reads them', async () => {
    const { sdk, run } = await client('with the SDK');
    const kinds: string[] = [];
    const items = sdk.sendMessageStream(request('echo a b'));
    await run(
      (async () => {
        for await (const { payload } of items as any) kinds.push(payload.$case);
      })(),
    );
    expect(kinds).toEqual(['task', 'artifactUpdate', 'statusUpdate']);
    const left = sdk.sendMessageStream(request('slow job'));
    expect((await run(left.next())).value).toMatchObject({ payload: { $case: 'task' } });
    await run(left.return(undefined));
  });

  test('a task is seen by the key that made it, and by nobody else', async () => {
    const { sdk, sdkOf, run } = await client('with the SDK');
    const asked: any = await run(sdk.sendMessage(request('ask colour')));
    expect((await run(sdk.getTask({ tenant: '', id: asked.id }))).id).toBe(asked.id);
    const other = await sdkOf(3, 'mb-p-other');
    await expect(run(other.getTask({ tenant: '', id: asked.id }))).rejects.toThrow(/not found/i);
  });

  test.each([
    ['no mailbox', 'http://local.test/r/lobby'],
    ['another service', 'http://elsewhere.test/r/mb-p-agent'],
    ['no room', 'http://local.test/'],
  ])('a card that names %s is refused', async (_, url) => {
    const { o } = world();
    const factory = new RoomTransportFactory(JsonRpcTransportFactory, signer(2), { ...o, replyTo: 'mb-p-caller' });
    await expect(factory.create(url, ROOM_CARD)).rejects.toMatchObject({ code: 'bad_name' });
  });
});

test('a stream that begins when its server is ending has an end', async () => {
  // A task that never changes.
  const handle = async () => ({
    next: () => new Promise(() => {}),
    return: async () => {},
    [Symbol.asyncIterator]() {},
  });
  const dispatcher = createDispatcher({ methods: a2aHandlerMethods({ handle } as any, () => ({})) });
  dispatcher.close();
  const frame = { jsonrpc: '2.0', id: 1, method: 'SubscribeToTask', params: { id: 't' } };
  expect(await dispatcher.dispatch(frame, { from: signer(2).did, emit: () => false })).toMatchObject({
    error: { code: 1001 },
  });
});
