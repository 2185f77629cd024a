import * as types from '@a2a-js/sdk';
import { Client, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
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
import { converse } from '../src/call.ts';
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

function theirs(): Peer {
  const card = types.AgentCard.fromJSON(a2aCard({ ...CARD, mailbox: 'mb-p-x' }, { base: 'https://rooms.example' }));
  const handler = new JsonRpcTransportHandler(new DefaultRequestHandler(card, new InMemoryTaskStore(), executor));
  const context = new ServerCallContext({ user: { isAuthenticated: true, userName: 'ann' }, requestedVersion: '1.0' });
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

/** The SDK's client, its requests carried to our agent through rooms, and back as HTTP would bring them. */
async function client() {
  const w = world();
  const agent = a2aAgent(behave, { ...CARD, capabilities: { streaming: true } }, { clock: w.clock });
  const stop = new AbortController();
  let over: Promise<void> | undefined;
  const ready = new Promise<void>((onReady) => {
    over = serve(MAILBOX, signer(1), { ...w.o, methods: agent.methods, signal: stop.signal, onReady });
  });
  await w.run(ready);
  onTestFinished(async () => {
    stop.abort();
    agent.close();
    await w.run(over!);
  });
  const fetchImpl = (async (_: string, init: RequestInit) => {
    const { id, method, params } = JSON.parse(String(init.body));
    const frames: any[] = [];
    const isStream = /Streaming|Subscribe/.test(method);
    await converse(
      MAILBOX,
      method,
      params,
      signer(2),
      { ...w.o, replyTo: 'mb-p-caller' },
      {
        take(answer, kind) {
          if (kind !== 'response') return undefined;
          frames.push({ ...answer, id });
          const { task, statusUpdate, message } = (answer['result'] ?? {}) as any;
          const state: string = (statusUpdate ?? task)?.status.state ?? '';
          return !isStream || answer['error'] || message || /_(COMP|FAIL|CANC|REJ|INP)/.test(state) ? 'done' : 'alive';
        },
      },
    );
    if (!isStream || frames[0].error) return Response.json(frames[0]);
    const text = frames.map((one) => `data: ${JSON.stringify(one)}\n\n`).join('');
    return new Response(text, { headers: { 'content-type': 'text/event-stream' } });
  }) as typeof fetch;
  const card = types.AgentCard.fromJSON(
    a2aCard({ ...CARD, mailbox: MAILBOX, capabilities: { streaming: true } }, { base: w.o.base }),
  );
  const transport = await new JsonRpcTransportFactory({ fetchImpl }).create('https://nowhere.example', card);
  return { ...w, sdk: new Client(transport, card) };
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
