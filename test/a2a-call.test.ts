import { describe, expect, onTestFinished, test } from 'vitest';
import { type A2AAgent, a2aAgent } from '../src/a2a-agent.ts';
import { a2aCancel, a2aGet, a2aList, a2aSend, a2aStream, a2aWait } from '../src/a2a-call.ts';
import type { A2ACardInfo } from '../src/a2a-card.ts';
import { refusal } from '../src/a2a-states.ts';
import type { A2AHandler } from '../src/a2a-task.ts';
import { type A2AItem, a2aText } from '../src/a2a-types.ts';
import type { Handler } from '../src/dispatch.ts';
import { serve } from '../src/serve.ts';
import { behave, CARD } from './a2a-fixture.mjs';
import { broken, faulty, isSay, signer, type World, world } from './support.ts';

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
  w: World = world(),
  fetch: typeof globalThis.fetch = w.o.fetch,
): Promise<Stage> {
  const agent = a2aAgent(handler, card, { clock: w.clock });
  const stop = new AbortController();
  const served = new Promise<void>((ready, failed) => {
    const over = serve(MAILBOX, server, {
      ...w.o,
      fetch,
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

/** A promise and what resolves it. */
function gate() {
  let open!: () => void;
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { promise, open };
}

const failure = (work: Promise<unknown>): Promise<any> =>
  work.then(
    () => undefined,
    (cause) => cause,
  );

/** Long and short texts by turns, more long ones than a call reads in vain. */
const LENGTHS = [6000, 1, 5000, 2, 40_000, 3, 5001, 4, 5002, 5, 5003, 6];

describe('over rooms', () => {
  test('a message, a task, a question and its answer', async () => {
    const { run, call } = await stage();
    expect(await run(a2aSend(MAILBOX, 'hello', caller, call))).toMatchObject({
      message: { role: 'ROLE_AGENT', parts: [{ text: 'hello to you' }] },
    });
    const { task } = await run(a2aSend(MAILBOX, 'ask colour', caller, call));
    expect(task?.status).toMatchObject({
      state: 'TASK_STATE_INPUT_REQUIRED',
      message: { parts: [{ text: 'Which colour?' }] },
    });
    const done = await run(a2aSend(MAILBOX, 'blue', caller, { ...call, taskId: task!.id, historyLength: 9 }));
    expect(done.task).toMatchObject({
      id: task!.id,
      status: { state: 'TASK_STATE_COMPLETED' },
      artifacts: [{ parts: [{ text: 'blue' }] }],
    });
    expect(done.task!.history!.map(a2aText)).toEqual(['ask colour', 'Which colour?', 'blue']);
  });

  test('asking after tasks, listing and cancelling them; those of others are unknown', async () => {
    const { run, call } = await stage();
    const { task } = await run(a2aSend(MAILBOX, 'slow job', caller, { ...call, returnImmediately: true }));
    const { id, contextId } = task!;
    expect((await run(a2aGet(MAILBOX, id, caller, call))).status.state).toBe('TASK_STATE_WORKING');
    const page = await run(a2aList(MAILBOX, caller, { ...call, contextId: contextId!, pageSize: 5 }));
    expect(page).toMatchObject({ tasks: [{ id }], nextPageToken: '', pageSize: 5, totalSize: 1 });
    const theirs = { ...call, replyTo: 'mb-p-stranger' };
    expect(await failure(run(a2aGet(MAILBOX, id, stranger, theirs)))).toMatchObject({ rpc: { code: -32001 } });
    expect(await failure(run(a2aCancel(MAILBOX, id, stranger, theirs)))).toMatchObject({ rpc: { code: -32001 } });
    expect((await run(a2aList(MAILBOX, stranger, theirs))).tasks).toEqual([]);
    expect((await run(a2aCancel(MAILBOX, id, caller, call))).status.state).toBe('TASK_STATE_CANCELED');
    const more = run(a2aSend(MAILBOX, 'more', caller, { ...call, taskId: id }));
    expect(await failure(more)).toMatchObject({ rpc: { code: -32004 } });
  });

  test('a task that takes longer than a call is answered as it is before the caller gives up', async () => {
    const { run, call, clock } = await stage();
    const begun = clock.now();
    const { task } = await run(a2aSend(MAILBOX, 'slow job', caller, { ...call, timeoutMs: 10_000 }));
    expect(task!.status.state).toBe('TASK_STATE_WORKING');
    expect(clock.now() - begun).toBeLessThan(10_000);
    expect(clock.now() - begun).toBeGreaterThanOrEqual(6000);
  });

  test('many that wait keep nobody else from being served', async () => {
    const { run, call } = await stage();
    const waiting = Array.from({ length: 40 }, () =>
      a2aSend(MAILBOX, 'slow job', caller, { ...call, timeoutMs: 30_000 }),
    );
    const theirs = { ...call, replyTo: 'mb-p-stranger' };
    const { task } = await run(a2aSend(MAILBOX, 'echo quick', stranger, { ...theirs, timeoutMs: 5000 }));
    expect(task!.status.state).toBe('TASK_STATE_COMPLETED');
    await run(Promise.all(waiting));
  });

  test('waiting looks less and less often, through failures, until the task is over', async () => {
    const { open, promise } = gate();
    const { run, call, clock, o } = await stage(async (_, task) => {
      await task.update('working');
      await promise;
    });
    const { task } = await run(a2aSend(MAILBOX, 'x', caller, { ...call, returnImmediately: true }));
    let lost = 0;
    const fetch = faulty(o.fetch, (url, init) => {
      if (isSay(url, init) && url.includes(MAILBOX) && ++lost <= 1) throw new TypeError('fetch failed');
      return undefined;
    });
    const asked: number[] = [];
    const counting = faulty(fetch, (url, init) => {
      if (isSay(url, init) && url.includes(MAILBOX)) asked.push(clock.now());
      return undefined;
    });
    const waiting = a2aWait(MAILBOX, task!.id, caller, { ...call, fetch: counting, pollMs: 1000, maxPollMs: 4000 });
    setTimeout(() => open(), 300);
    expect((await run(waiting)).status.state).toBe('TASK_STATE_COMPLETED');
    expect(asked.length).toBeGreaterThan(2);
    const short = a2aWait(MAILBOX, 'no such task', caller, call);
    expect(await failure(run(short))).toMatchObject({ rpc: { code: -32001 } });
  });

  test('waiting ends after its time with the task as it is, or by its signal', async () => {
    const { run, call, clock } = await stage();
    const { task } = await run(a2aSend(MAILBOX, 'slow job', caller, { ...call, returnImmediately: true }));
    const begun = clock.now();
    const view = await run(a2aWait(MAILBOX, task!.id, caller, { ...call, waitMs: 20_000 }));
    expect(view.status.state).toBe('TASK_STATE_WORKING');
    expect(clock.now() - begun).toBeLessThanOrEqual(21_000);
    const stop = new AbortController();
    const reason = new Error('enough');
    void clock.sleep(3000).then(() => stop.abort(reason));
    expect(await failure(run(a2aWait(MAILBOX, task!.id, caller, { ...call, signal: stop.signal })))).toBe(reason);
  });
});

describe('streams', () => {
  test('a stream shows it move, under one id', async () => {
    const { run, call } = await stage();
    const items = await run(all(a2aStream(MAILBOX, 'steps', caller, call)));
    expect(items.map(brief)).toEqual([
      'task SUBMITTED',
      'WORKING',
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
    expect((await run(all(a2aStream(MAILBOX, 'ask a', caller, call)))).map(brief)).toEqual([
      'task SUBMITTED',
      'WORKING',
      'INPUT_REQUIRED',
    ]);
  });

  test('an agent without streams says so', async () => {
    const { run, call } = await stage(behave, CARD);
    expect(await failure(run(all(a2aStream(MAILBOX, 'steps', caller, call))))).toMatchObject({ rpc: { code: -32004 } });
  });

  test('after a gap it goes on with the task as it is then', async () => {
    const { open, promise } = gate();
    const begun = gate();
    const s = await stage(
      async (_, task) => {
        await task.update('working', 'before');
        begun.open();
        await promise;
        await task.update('working', 'after');
      },
      undefined,
      undefined,
      world('modern', { roomRingBytes: 100_000 }),
    );
    const { run, o, call } = s;
    // The caller hears nothing for a while, and what the room holds of that time is less than what was said.
    let hold: Promise<void> | undefined;
    const deaf = gate();
    const fetch = faulty(o.fetch, async (url) => {
      if (/\/r\/mb-p-caller\?/.test(url)) await hold;
      return undefined;
    });
    const items: A2AItem[] = [];
    const stream = (async () => {
      for await (const item of a2aStream(MAILBOX, 'go', caller, { ...call, fetch })) {
        items.push(item);
        if (items.length === 3) hold = deaf.promise;
      }
    })();
    stream.catch(() => {});
    await run(begun.promise);
    while (!hold) await s.clock.advance(100);
    for (let i = 0; i < 60; i++) await run(stranger.say('mb-p-caller', `noise ${i} ${'x'.repeat(3900)}`, o));
    deaf.open();
    await s.clock.advance(2000);
    open();
    await run(stream);
    const seen = items.map(brief);
    expect(seen.slice(0, 4)).toEqual(['task SUBMITTED', 'WORKING', 'WORKING', 'task WORKING']);
    expect(seen.at(-1)).toBe('COMPLETED');
    expect(s.kinds()).toContain('gap');
  });

  test('of what is not read only so much is kept; then comes the task as it is', async () => {
    const w = world();
    const sent = gate();
    const status = (state: string) => ({ state: `TASK_STATE_${state}`, timestamp: '2026-01-01T00:00:00.000Z' });
    const steps = 400;
    const methods = new Map<string, Handler>([
      [
        'SendStreamingMessage',
        async function* () {
          yield { task: { id: 't', contextId: 'c', status: status('SUBMITTED') } };
          for (let i = 0; i < steps; i++)
            yield { statusUpdate: { taskId: 't', contextId: 'c', status: status('WORKING') } };
          sent.open();
          return { statusUpdate: { taskId: 't', contextId: 'c', status: status('COMPLETED') } };
        },
      ],
      // As it has ended by then, there is nothing to watch.
      ['SubscribeToTask', () => Promise.reject(refusal('UNSUPPORTED_OPERATION'))],
      ['GetTask', () => ({ id: 't', contextId: 'c', status: status('COMPLETED') })],
    ]);
    const { run, call } = await stage(undefined, undefined, () => methods, w);
    const items: string[] = [];
    const reading = (async () => {
      for await (const item of a2aStream(MAILBOX, 'go', caller, call)) {
        items.push(brief(item));
        if (items.length === 1) await sent.promise;
      }
    })();
    await run(reading);
    expect(items.slice(0, 2)).toEqual(['task SUBMITTED', 'WORKING']);
    expect(items.at(-1)).toBe('task COMPLETED');
    expect(items.length).toBeLessThan(steps);
  });

  test('a task that is silent for long is asked after, and its stream goes on', async () => {
    const { run, call, clock } = await stage(async (_, task) => {
      await task.update('working', 'begun');
      await clock.sleep(200_000);
      await task.artifact({ text: 'late' });
    });
    const items = await run(all(a2aStream(MAILBOX, 'go', caller, call)));
    expect(items.map(brief)).toEqual([
      'task SUBMITTED',
      'WORKING',
      'WORKING',
      'task WORKING',
      'artifact late',
      'COMPLETED',
    ]);
  });

  test('a server that restarts ends the conversation; the stream goes on with the next one', async () => {
    const w = world();
    const { open, promise } = gate();
    const agent = a2aAgent(
      async (_, task) => {
        await task.update('working', 'begun');
        await promise;
      },
      { capabilities: { streaming: true } },
      { clock: w.clock },
    );
    const serving = async () => {
      const stop = new AbortController();
      const ready = gate();
      const over = serve(MAILBOX, server, {
        ...w.o,
        methods: agent.methods,
        signal: stop.signal,
        onReady: () => ready.open(),
      });
      await w.run(ready.promise);
      return () => {
        stop.abort();
        return w.run(over);
      };
    };
    const end = await serving();
    const items: A2AItem[] = [];
    const stream = (async () => {
      for await (const item of a2aStream(MAILBOX, 'go', caller, { ...w.o, replyTo: 'mb-p-caller' })) items.push(item);
    })();
    while (items.length < 3) await w.clock.advance(50);
    await end();
    const endAgain = await serving();
    await w.clock.advance(3000);
    open();
    await w.run(stream);
    expect(items.map(brief)).toEqual(['task SUBMITTED', 'WORKING', 'WORKING', 'task WORKING', 'COMPLETED']);
    await endAgain();
    agent.close();
  });

  test('watching a task of ours, and leaving', async () => {
    const { run, call, clock, agent } = await stage();
    const { task } = await run(a2aSend(MAILBOX, 'slow job', caller, { ...call, returnImmediately: true }));
    const { id } = task!;
    const left = (async () => {
      for await (const item of a2aStream(MAILBOX, { taskId: id }, caller, call)) return brief(item);
      return '';
    })();
    expect(await run(left)).toBe('task WORKING');
    const stop = new AbortController();
    const reason = new Error('enough');
    void clock.sleep(2000).then(() => stop.abort(reason));
    const aborted = all(a2aStream(MAILBOX, { taskId: id }, caller, { ...call, signal: stop.signal }));
    expect(await failure(run(aborted))).toBe(reason);
    void clock.sleep(2000).then(() => a2aCancel(MAILBOX, id, caller, call));
    expect((await run(all(a2aStream(MAILBOX, { taskId: id }, caller, call)))).map(brief)).toEqual([
      'task WORKING',
      'CANCELED',
    ]);
    const over = all(a2aStream(MAILBOX, { taskId: id }, caller, call));
    expect(await failure(run(over))).toMatchObject({ rpc: { code: -32004 } });
    agent.close();
  });
});

describe('other agents', () => {
  const older = (methods: Map<string, Handler>): Map<string, Handler> =>
    new Map([...methods].filter(([name]) => /^[a-z]/.test(name)));

  test('fault 94: one that knows version 0.3 alone is spoken to in its words, and remembered', async () => {
    const asked: string[] = [];
    const { run, call } = await stage(behave, undefined, (methods) => {
      const heard = [...older(methods)].map(([name, handler]): [string, Handler] => {
        const hearing = Object.assign((params: any, context: any) => {
          asked.push(name);
          return handler(params, context);
        }, handler);
        return [name, hearing];
      });
      return new Map(heard);
    });
    expect((await run(a2aSend(MAILBOX, 'hello', caller, call))).message).toMatchObject({ role: 'ROLE_AGENT' });
    const { task } = await run(a2aSend(MAILBOX, 'ask a', caller, call));
    expect(task!.status).toMatchObject({ state: 'TASK_STATE_INPUT_REQUIRED', message: { role: 'ROLE_AGENT' } });
    const items = await run(all(a2aStream(MAILBOX, 'blue', caller, { ...call, taskId: task!.id })));
    expect(items.map(brief)).toEqual(['task WORKING', 'artifact blue', 'COMPLETED']);
    expect((await run(a2aGet(MAILBOX, task!.id, caller, call))).artifacts).toMatchObject([
      { parts: [{ text: 'blue' }] },
    ]);
    expect(asked).toEqual(['message/send', 'message/send', 'message/stream', 'tasks/get']);
    const strict = run(a2aGet(MAILBOX, task!.id, caller, { ...call, version: '1.0' }));
    expect(await failure(strict)).toMatchObject({ rpc: { code: -32601 } });
  });

  const odd: [string, string, unknown][] = [
    ['nothing', 'SendMessage', null],
    ['a task without a state', 'SendMessage', { task: { id: 'x', status: {} } }],
    ['a state that is none', 'SendMessage', { task: { id: 'x', status: { state: 'TASK_STATE_DONE' } } }],
    ['both', 'SendMessage', { task: { id: 'x', status: { state: 'TASK_STATE_WORKING' } }, message: {} }],
    [
      'an update',
      'SendMessage',
      { statusUpdate: { taskId: 'x', contextId: 'c', status: { state: 'TASK_STATE_WORKING' } } },
    ],
    ['another task', 'GetTask', { id: 'y', status: { state: 'TASK_STATE_WORKING' } }],
    ['no page', 'ListTasks', { tasks: [] }],
  ];
  test.each(odd)('an answer that is %s is an error that says so', async (_, method, result) => {
    const { run, call } = await stage(behave, undefined, () => new Map([[method, () => result]]));
    const asked = {
      SendMessage: () => a2aSend(MAILBOX, 'x', caller, call),
      GetTask: () => a2aGet(MAILBOX, 'x', caller, call),
      ListTasks: () => a2aList(MAILBOX, caller, call),
    }[method]!();
    expect(await failure(run(asked as Promise<unknown>))).toMatchObject({ code: 'bad_response' });
  });

  test('members that an agent writes with their defaults are as good as absent', async () => {
    const message = { messageId: 'm', role: 'ROLE_AGENT', parts: [{ text: 'ok' }], contextId: '', taskId: '' };
    const task = { id: 't', contextId: '', status: { state: 'TASK_STATE_WORKING', message, timestamp: null } };
    const { run, call } = await stage(
      behave,
      undefined,
      () =>
        new Map<string, Handler>([
          ['SendMessage', () => ({ message })],
          ['GetTask', () => ({ ...task, artifacts: [], history: [], metadata: null })],
        ]),
    );
    const said = { messageId: 'm', role: 'ROLE_AGENT', parts: [{ text: 'ok' }] };
    expect((await run(a2aSend(MAILBOX, 'x', caller, call))).message).toEqual(said);
    const { id, status, contextId } = await run(a2aGet(MAILBOX, 't', caller, call));
    expect([id, status.message, contextId]).toEqual(['t', said, undefined]);
  });

  test('steps too long for a message are read from notes, however many, and none overtakes another', async () => {
    const { run, call, kinds } = await stage(async (_, task) => {
      for (const length of LENGTHS) await task.artifact({ text: 'x'.repeat(length) });
    });
    const items = await run(all(a2aStream(MAILBOX, 'x', caller, call)));
    expect(items.flatMap(({ artifactUpdate: of }) => (of ? [a2aText(of.artifact).length] : []))).toEqual(LENGTHS);
    expect(brief(items.at(-1)!)).toBe('COMPLETED');
    expect(kinds().filter((kind) => kind === 'spilled')).toHaveLength(LENGTHS.length / 2);
  });

  test('a step that could not be sent ends no stream: the task is yielded as it then is', async () => {
    const w = world();
    let isDown = false;
    const fetch = faulty(w.o.fetch, (url, init) =>
      isDown && isSay(url, init) ? Promise.reject(broken('ECONNREFUSED')) : undefined,
    );
    const handler: A2AHandler = async (_, task) => {
      await task.update('working', 'begun');
      await w.clock.sleep(1000);
      isDown = true;
      await task.artifact({ text: 'lost' });
      // Longer than anything is tried.
      await w.clock.sleep(35_000);
      isDown = false;
    };
    const { run, call } = await stage(handler, undefined, undefined, w, fetch);
    const items = await run(all(a2aStream(MAILBOX, 'x', caller, call)));
    expect(items.map(brief)).toEqual(['task SUBMITTED', 'WORKING', 'WORKING', 'task COMPLETED']);
    expect(a2aText(items.at(-1)!.task!.artifacts![0]!)).toBe('lost');
  });

  test('a step that no note can take ends the stream with an error', async () => {
    const w = world('modern', { notes: 1 });
    const { run, call } = await stage(
      async (_, task) => void (await task.artifact({ text: 'x'.repeat(9000) })),
      undefined,
      undefined,
      w,
    );
    expect(await failure(run(all(a2aStream(MAILBOX, 'x', caller, call))))).toMatchObject({
      rpc: { code: -32603, message: expect.stringContaining('too large') },
    });
    expect(w.kinds()).toContain('unspilled');
  });

  test('an artifact too large for a frame is an error that says how large, and ends no server', async () => {
    const { run, call } = await stage(async (message, task) => {
      await task.artifact({ text: a2aText(message) === 'big' ? 'x'.repeat(1_000_000) : 'small' });
    });
    const cause = await failure(run(a2aSend(MAILBOX, 'big', caller, call)));
    expect(cause).toMatchObject({ rpc: { code: -32603 } });
    const stream = await failure(run(all(a2aStream(MAILBOX, 'big', caller, call))));
    expect(stream).toMatchObject({ rpc: { code: -32603, data: { chars: expect.any(Number), limit: 97_856 } } });
    expect((await run(a2aSend(MAILBOX, 'x', caller, call))).task!.artifacts).toMatchObject([
      { parts: [{ text: 'small' }] },
    ]);
  });
});
