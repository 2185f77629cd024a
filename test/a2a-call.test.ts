import { describe, expect, onTestFinished, test } from 'vitest';
import { type A2AAgent, a2aAgent } from '../src/a2a-agent.ts';
import { a2aCancel, a2aGet, a2aList, a2aSend, a2aStream, a2aWait } from '../src/a2a-call.ts';
import type { A2ACardInfo } from '../src/a2a-card.ts';
import type { A2AHandler } from '../src/a2a-task.ts';
import { type A2AItem, a2aText } from '../src/a2a-types.ts';
import type { Handler } from '../src/dispatch.ts';
import { serve } from '../src/serve.ts';
import { behave, CARD } from './a2a-fixture.mjs';
import { faulty, isSay, signer, type World, world } from './support.ts';

const MAILBOX = 'mb-p-agent';
const [server, caller, stranger] = [signer(1), signer(2), signer(3)];

interface Stage extends World {
  agent: A2AAgent;
  call: World['o'] & { replyTo: string };
}

/** An agent behind a mailbox. */
async function stage(
  handler: A2AHandler = behave,
  card: A2ACardInfo = { ...CARD, capabilities: { streaming: true } },
  only: (methods: Map<string, Handler>) => Map<string, Handler> = (methods) => methods,
): Promise<Stage> {
  const w = world();
  const agent = a2aAgent(handler, card, { clock: w.clock });
  const stop = new AbortController();
  const served = new Promise<void>((ready, failed) => {
    const over = serve(MAILBOX, server, {
      ...w.o,
      methods: only(agent.methods),
      signal: stop.signal,
      onReady: ready,
    }).catch(failed);
    onTestFinished(async () => {
      stop.abort();
      agent.close();
      await w.run(over as Promise<void>);
    });
  });
  await w.run(served);
  return { ...w, agent, call: { ...w.o, replyTo: 'mb-p-caller' } };
}

async function all(items: AsyncGenerator<A2AItem>): Promise<A2AItem[]> {
  const list: A2AItem[] = [];
  for await (const item of items) list.push(item);
  return list;
}

/** What an item says, in short. */
const brief = ({ task, message, statusUpdate, artifactUpdate }: A2AItem): string =>
  message
    ? `message ${a2aText(message)}`
    : artifactUpdate
      ? `artifact ${a2aText(artifactUpdate.artifact)}${artifactUpdate.append ? ' +' : ''}`
      : `${task ? 'task ' : ''}${(task ?? statusUpdate!).status.state.slice(11)}`;

describe('over rooms', () => {
  test('a message, a task, a question and its answer', async () => {
    const { run, call } = await stage();
    expect(await run(a2aSend(MAILBOX, 'hello', caller, call))).toMatchObject({
      message: { role: 'ROLE_AGENT', parts: [{ text: 'hello to you' }] },
    });
    const { task } = await run(a2aSend(MAILBOX, 'ask colour', caller, call));
    expect(task).toMatchObject({
      status: { state: 'TASK_STATE_INPUT_REQUIRED', message: { parts: [{ text: 'Which colour?' }] } },
    });
    const done = await run(a2aSend(MAILBOX, 'blue', caller, { ...call, taskId: task!.id, historyLength: 9 }));
    expect(done.task).toMatchObject({
      id: task!.id,
      status: { state: 'TASK_STATE_COMPLETED' },
      artifacts: [{ parts: [{ text: 'blue' }] }],
    });
    expect(done.task!.history!.map(a2aText)).toEqual(['ask colour', 'Which colour?', 'blue']);
  });

  test('a stream shows it move, under one id', async () => {
    const { run, call } = await stage();
    const items = await run(all(a2aStream(MAILBOX, 'steps', caller, call)));
    expect(items.map(brief)).toEqual([
      'task WORKING',
      'WORKING',
      'artifact one',
      'WORKING',
      'artifact  two +',
      'COMPLETED',
    ]);
    const { id } = items[0]!.task!;
    expect(await run(a2aGet(MAILBOX, id, caller, call))).toMatchObject({
      artifacts: [{ artifactId: 'a', parts: [{ text: 'one' }, { text: ' two' }] }],
    });
    expect((await run(all(a2aStream(MAILBOX, 'hello', caller, call)))).map(brief)).toEqual(['message hello to you']);
  });
});
