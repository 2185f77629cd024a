import { fork } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { a2aGet, a2aSend, a2aStream, a2aWait } from '../src/a2a-call.ts';
import { a2aTaskNote } from '../src/a2a-notes.ts';
import { type A2AItem, a2aText } from '../src/a2a-types.ts';
import { mailboxPair } from '../src/channel.ts';
import { decode, encode, isObject } from '../src/frames.ts';
import { transportOf } from '../src/http.ts';
import { publishIdentity } from '../src/identity.ts';
import { REPLY_META } from '../src/line.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { getNote, setNote } from '../src/notes.ts';
import { Signer } from '../src/signer.ts';
import { type Peer, playAll, vectors } from './a2a-vectors.ts';
import { Running } from './processes.ts';
import { FREE, tempDir, until } from './support.ts';

// Agents and workers are processes of their own, made of what was built; the service lies between, over HTTP.

let service: Listening;
let workers: Running[];
let count = 0;

const start = (...args: string[]): Running => {
  const child = fork(new URL('a2a-agent.mjs', import.meta.url), args);
  // What one test waits for, and the rest.
  child.setMaxListeners(100);
  return new Running(child);
};

beforeAll(async () => {
  service = await createLocalService({ limits: { ...FREE, waitersPerAddress: 64 } }).listen();
  workers = [start(), start()];
});

afterAll(async () => {
  for (const { child } of workers) if (child.connected) child.disconnect();
  await Promise.all(workers.map(({ exited }) => exited));
  await service.close();
});

/** What a worker makes of a job. */
async function working(worker: number, job: string, params: object): Promise<any> {
  const call = ++count;
  const answer = workers[worker]!.tells((message) => message.call === call);
  workers[worker]!.child.send({ job, call, base: service.url, ...params });
  const { value, failed } = await answer;
  return failed ? Promise.reject(Object.assign(new Error(failed.code), failed)) : value;
}

/** A fresh agent in the first worker, and mailboxes for it and us. */
async function begin(streaming: boolean) {
  const mailbox = `mb-p-agent-${++count}`;
  const ready = workers[0]!.tells((message) => message.ready === mailbox);
  workers[0]!.child.send({ job: 'serve', mailbox, base: service.url, streaming });
  const { did } = await ready;
  onTestFinished(() => void workers[0]!.child.send({ job: 'stop', mailbox }));
  return { mailbox, did: did as string, o: { base: service.url, replyTo: `mb-p-caller-${count}` } };
}

describe('the recorded cases, through two processes', () => {
  playAll(async (): Promise<Peer> => {
    const { mailbox, did, o } = await begin(false);
    const signer = Signer.generate();
    const channel = mailboxPair(transportOf(o), signer, mailbox, o.replyTo);
    let frames: any[] = [];
    const leave = await channel.listen({
      message: ({ from, text }) => {
        const frame = from === did ? decode(text) : undefined;
        if (frame) frames.push(frame);
      },
      gap: (gap) => expect.fail(String(gap)),
      end: () => {},
    });
    // Where a frame has no params to name the place for the answer, our record does.
    await publishIdentity(signer, { mailbox: o.replyTo }, o);
    let fences = 0;
    const say = (frame: any) => channel.send(encode(frame));
    return {
      async send(frame) {
        frames = [];
        const params = isObject(frame.params) && { ...frame.params, _meta: { [REPLY_META]: o.replyTo } };
        await say(params ? { ...frame, params } : frame);
        if (frame.id !== undefined) await until(() => frames.some(({ id }) => id === frame.id));
        // The agent has taken all that came before, and anything too much is here by now.
        const id = `fence-${++fences}`;
        await say({ jsonrpc: '2.0', id, method: 'no/such', params: { _meta: { [REPLY_META]: o.replyTo } } });
        await until(() => frames.some((one) => one.id === id));
        return frames.filter((one) => one.id !== id);
      },
      close: leave,
    };
  });
});

describe('task notes, through two processes', () => {
  test.each<any>(vectors.taskNotes.addresses)('the address of $taskId', async ({ taskId, ns, key }: any) => {
    expect(await working(0, 'address', { id: taskId })).toEqual({ ns, key });
  });

  test.each<any>(vectors.taskNotes.cas)('$name', async ({ given, write, then }: any) => {
    const id = `cas-${++count}`;
    const { ns, key } = a2aTaskNote(id);
    const o = { base: service.url };
    if (given !== null) await setNote(ns, key, given, o);
    const work = write.if_absent
      ? working(0, 'create', { id })
      : working(0, 'advance', { id, from: write.if, to: write.value });
    const lost = await work.then(
      () => undefined,
      ({ code, actual }) => ({ code, actual: actual ?? null }),
    );
    expect(lost).toEqual(then.outcome === 'won' ? undefined : { code: 'conflict', actual: then.current });
    expect((await getNote(ns, key, o)) ?? null).toBe(then.note);
  });

  const { legal, illegal } = vectors.states;
  const state = (name: string): string => `TASK_STATE_${name}`;

  test('all legal moves and no illegal one, each made by one process and seen by the other', async () => {
    for (const [from, to] of legal) {
      const id = `legal-${++count}`;
      const { ns, key } = a2aTaskNote(id);
      await setNote(ns, key, state(from), { base: service.url });
      await working(0, 'advance', { id, from: state(from), to: state(to) });
      const frame = { jsonrpc: '2.0', id: 1, method: 'tasks/get', params: { taskId: id } };
      const answer = await working(1, 'dispatch', { frame });
      expect(answer.result.status.state).toBe(vectors.states.spelling[state(to)]);
    }
    for (const [from, to] of illegal) {
      const id = `illegal-${++count}`;
      const { ns, key } = a2aTaskNote(id);
      await setNote(ns, key, state(from), { base: service.url });
      const work = working(0, 'advance', { id, from: state(from), to: state(to) });
      await expect(work).rejects.toMatchObject({ code: 'bad_state', from: state(from), to: state(to) });
      const params = { taskId: id, from: state(from), state: state(to) };
      const answer = await working(1, 'dispatch', {
        frame: { jsonrpc: '2.0', id: 1, method: 'tasks/advance', params },
      });
      expect(answer.error.code).toBe(-32602);
      expect(await getNote(ns, key, { base: service.url })).toBe(state(from));
    }
  });

  test('two processes race: each task is moved once a step, and each loser saw the value that was there', async () => {
    const steps = ['SUBMITTED', 'WORKING', 'COMPLETED'].map(state);
    const ids = Array.from({ length: 100 }, (_, i) => `race-${i}`);
    const [one, other] = await Promise.all([0, 1].map((worker) => working(worker, 'race', { ids, steps })));
    const won = [...one.won, ...other.won].map(([id, step]) => `${id} ${step}`);
    expect(won).toHaveLength(300);
    expect(new Set(won).size).toBe(300);
    const lost = [...one.lost, ...other.lost];
    expect(lost).toHaveLength(300);
    for (const [, step, actual] of lost) expect(steps.indexOf(actual)).toBeGreaterThanOrEqual(step);
  });
});

const brief = ({ task, statusUpdate, artifactUpdate }: A2AItem): string =>
  artifactUpdate
    ? `artifact ${a2aText(artifactUpdate.artifact)}`
    : `${task ? 'task ' : ''}${(task ?? statusUpdate!).status.state.slice(11)}`;

describe('agents in processes of their own', () => {
  test('a stream, a question, an answer', async () => {
    const { mailbox, o } = await begin(true);
    const signer = Signer.generate();
    const items: A2AItem[] = [];
    for await (const item of a2aStream(mailbox, 'steps', signer, o)) items.push(item);
    expect(items.map(brief)).toEqual([
      'task SUBMITTED',
      'WORKING',
      'WORKING',
      'artifact one',
      'WORKING',
      'artifact  two',
      'COMPLETED',
    ]);
    const { task } = await a2aSend(mailbox, 'ask colour', signer, o);
    const { task: done } = await a2aSend(mailbox, 'blue', signer, { ...o, taskId: task!.id });
    expect(done!.artifacts).toMatchObject([{ parts: [{ text: 'blue' }] }]);
  });

  test('one that is killed at work and started again: its tasks are there, the one at work waits for its caller', async () => {
    const dir = tempDir();
    const mailbox = `mb-p-mortal-${++count}`;
    const o = { base: service.url, replyTo: `mb-p-caller-${count}` };
    const signer = Signer.generate();
    const born = async (): Promise<Running> => {
      const one = start(service.url, mailbox, dir);
      onTestFinished(() => void one.child.kill('SIGKILL'));
      await one.tells((message) => message.ready === mailbox);
      return one;
    };
    const first = await born();
    const { task: done } = await a2aSend(mailbox, 'echo tea', signer, o);
    const { task: asked } = await a2aSend(mailbox, 'ask colour', signer, o);
    const { task: slow } = await a2aSend(mailbox, 'slow job', signer, { ...o, returnImmediately: true });
    // One whose caller waits for the answer, and asks again.
    const held = { ...o, id: 'held', messageId: 'held' };
    const gaveUp = new AbortController();
    const waiting = a2aSend(mailbox, 'slow job', signer, { ...held, signal: gaveUp.signal }).catch(() => {});
    await until(() => readFileSync(join(dir, 'tasks'), 'utf8').includes('"held"'));
    const stream = a2aStream(mailbox, { taskId: slow!.id }, signer, o);
    expect(brief((await stream.next()).value as A2AItem)).toBe('task WORKING');
    first.child.kill('SIGKILL');
    await first.exited;
    await stream.return();
    await born();
    expect(await a2aGet(mailbox, done!.id, signer, o)).toEqual(done);
    const view = await a2aWait(mailbox, slow!.id, signer, { ...o, pollMs: 100 });
    expect(view.status).toMatchObject({
      state: 'TASK_STATE_INPUT_REQUIRED',
      message: { parts: [{ text: expect.stringContaining('interrupted') }] },
    });
    for await (const item of a2aStream(mailbox, { taskId: slow!.id }, signer, o)) {
      expect(brief(item)).toBe('task INPUT_REQUIRED');
    }
    gaveUp.abort();
    await waiting;
    const { task: again } = await a2aSend(mailbox, 'slow job', signer, held);
    expect(again!.status.state).toBe('TASK_STATE_INPUT_REQUIRED');
    const goesOn = await a2aSend(mailbox, 'go on', signer, { ...o, taskId: slow!.id });
    expect(goesOn.task).toMatchObject({
      status: { state: 'TASK_STATE_COMPLETED' },
      artifacts: [{ parts: [{ text: 'go on' }] }],
    });
    const answered = await a2aSend(mailbox, 'blue', signer, { ...o, taskId: asked!.id });
    expect(answered.task!.status.state).toBe('TASK_STATE_COMPLETED');
  });
});
