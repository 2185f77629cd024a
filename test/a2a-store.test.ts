import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { A2AState } from '../src/a2a-states.ts';
import { type A2ARecord, type A2AStore, a2aFileStore, a2aMemoryStore } from '../src/a2a-store.ts';
import { tempDir } from './support.ts';

const START = Date.UTC(2026, 10, 30);

function record(
  id: string,
  owner: string,
  state = 'COMPLETED',
  more: Partial<A2ARecord['task']> = {},
  at = START,
): A2ARecord {
  const status = { state: `TASK_STATE_${state}` as A2AState, timestamp: new Date(at).toISOString() };
  return { owner, task: { id, contextId: 'd-x', status, ...more }, requests: [`r-${id}`] };
}
const ids = async (store: A2AStore, owner: string): Promise<string[]> =>
  [...(await store.list(owner))].map(({ task }) => task.id);
const failure = async (work: () => unknown): Promise<any> => {
  try {
    await work();
  } catch (cause) {
    return cause;
  }
};
const path = (): string => join(tempDir(), 'tasks');

describe.each([
  ['in memory', async (limits?: object) => a2aMemoryStore(limits)],
  ['in a file', async (limits?: object) => a2aFileStore(path(), limits)],
])('a store %s', (_, make) => {
  test('gives back what was put, by id, by request and by owner', async () => {
    const store = await make();
    const a = record('a', 'ann');
    await store.put(a);
    await store.put(record('b', 'bob'));
    expect(await store.get('a')).toEqual(a);
    expect(await store.get('x')).toBe(undefined);
    expect(await store.find('ann', 'r-a')).toBe('a');
    expect(await store.find('bob', 'r-a')).toBe(undefined);
    expect(await ids(store, 'ann')).toEqual(['a']);
    await store.put({ ...a, requests: ['other'] });
    expect(await store.find('ann', 'r-a')).toBe(undefined);
    expect(await store.find('ann', 'other')).toBe('a');
    await store.remove('a');
    await store.remove('a');
    expect(await store.get('a')).toBe(undefined);
    expect(await store.find('ann', 'other')).toBe(undefined);
    expect(await ids(store, 'ann')).toEqual([]);
    await store.close?.();
  });

  test('when it is full, what is over goes, the oldest of the key that has most; what runs stays', async () => {
    const store = await make({ tasks: 8 });
    for (const id of ['b1', 'b2']) await store.put(record(id, 'bob'));
    for (const id of ['c1', 'c2', 'd1', 'd2']) await store.put(record(id, id[0]!, 'WORKING'));
    await store.put(record('a1', 'ann', 'WORKING'));
    await store.put(record('a2', 'ann'));
    await store.put(record('e1', 'eve', 'WORKING'));
    expect(await ids(store, 'bob')).toEqual(['b2']);
    expect(await ids(store, 'ann')).toEqual(['a1', 'a2']);
    await store.put(record('e2', 'eve', 'WORKING'));
    await store.put(record('f1', 'fay', 'WORKING'));
    expect([...(await ids(store, 'bob')), ...(await ids(store, 'ann'))]).toEqual(['a1']);
    const cause = await failure(() => store.put(record('g1', 'gus', 'WORKING')));
    expect(cause).toMatchObject({ code: 'rpc', rpc: { code: 1002, data: { retryAfterMs: 60_000 } } });
    // What is there may end all the same.
    await store.put(record('f1', 'fay'));
    await store.put(record('g1', 'gus', 'WORKING'));
    expect(await store.get('f1')).toBe(undefined);
    await store.close?.();
  });

  test('one key has a quarter, and drives out its own alone', async () => {
    const store = await make({ tasks: 8 });
    await store.put(record('a1', 'ann'));
    for (const id of ['b1', 'b2', 'b3']) await store.put(record(id, 'bob'));
    expect(await ids(store, 'bob')).toEqual(['b2', 'b3']);
    expect(await ids(store, 'ann')).toEqual(['a1']);
    for (const id of ['c1', 'c2']) await store.put(record(id, 'cat', 'WORKING'));
    expect(await failure(() => store.put(record('c3', 'cat')))).toMatchObject({ rpc: { code: 1002 } });
    await store.close?.();
  });

  test('the last quarter is not for keys that were never answered', async () => {
    const store = await make({ tasks: 8 });
    const never = Number.POSITIVE_INFINITY;
    for (let i = 0; i < 6; i++) await store.put(record(`n${i}`, `key ${i}`, 'WORKING'), never);
    expect(await failure(() => store.put(record('n6', 'key 6', 'WORKING'), never))).toMatchObject({
      rpc: { code: 1002 },
    });
    await store.put(record('a1', 'ann', 'WORKING'), 0);
    expect(await ids(store, 'ann')).toEqual(['a1']);
    await store.close?.();
  });

  test('what went into its state last goes last, whenever it was begun', async () => {
    const store = await make({ tasks: 8 });
    await store.put(record('a1', 'ann', 'WORKING'));
    await store.put(record('a2', 'ann'));
    await store.put(record('a1', 'ann'));
    await store.put(record('a3', 'ann'));
    expect(await ids(store, 'ann')).toEqual(['a1', 'a3']);
    await store.close?.();
  });

  test('one that has waited for its caller for a day may go', async () => {
    const store = await make({ tasks: 8 });
    for (const id of ['a1', 'a2']) await store.put(record(id, 'ann', 'INPUT_REQUIRED'));
    expect(await failure(() => store.put(record('a3', 'ann')))).toMatchObject({ rpc: { code: 1002 } });
    await store.put(record('a3', 'ann', 'WORKING', {}, START + 86_400_001));
    expect(await ids(store, 'ann')).toEqual(['a2', 'a3']);
    await store.close?.();
  });

  test('characters are bounded like tasks', async () => {
    const store = await make({ chars: 8000 });
    const big = { metadata: { text: 'x'.repeat(800) } };
    for (const id of ['a1', 'a2', 'a3']) await store.put(record(id, 'ann', 'COMPLETED', big));
    expect(await ids(store, 'ann')).toEqual(['a2', 'a3']);
    await store.put(record('a2', 'ann', 'WORKING', big));
    const more = { metadata: { text: 'x'.repeat(2000) } };
    expect(await failure(() => store.put(record('a2', 'ann', 'WORKING', more)))).toMatchObject({ rpc: { code: 1002 } });
    await store.close?.();
  });
});

describe('after a restart', () => {
  test('tasks are there; those that ran wait for their callers, and say why', async () => {
    const file = path();
    const store = await a2aFileStore(file);
    const said = { messageId: 'm', role: 'ROLE_AGENT' as const, parts: [{ text: 'half way' }] };
    await store.put(record('done', 'ann', 'COMPLETED', { artifacts: [{ artifactId: 'a', parts: [{ text: 'x' }] }] }));
    await store.put(record('asked', 'ann', 'INPUT_REQUIRED'));
    await store.put(record('new', 'ann', 'SUBMITTED'));
    const running = record('running', 'ann', 'WORKING');
    await store.put({ ...running, task: { ...running.task, status: { ...running.task.status, message: said } } });
    await store.put(record('gone', 'ann'));
    await store.remove('gone');
    await store.close?.();
    for (const again of [1, 2]) {
      const clock = { now: () => START + again * 1000, sleep: async () => {} };
      const restored = await a2aFileStore(file, {}, clock);
      const state = async (id: string) => (await restored.get(id))?.task.status.state;
      expect(await state('done')).toBe('TASK_STATE_COMPLETED');
      expect(await state('asked')).toBe('TASK_STATE_INPUT_REQUIRED');
      expect((await restored.get('done'))?.task.artifacts).toHaveLength(1);
      expect((await restored.get('asked'))?.task.status).not.toHaveProperty('message');
      const task = (await restored.get('running'))!.task;
      expect(task.status).toMatchObject({
        state: 'TASK_STATE_INPUT_REQUIRED',
        message: { parts: [{ text: expect.stringContaining('interrupted') }] },
        timestamp: new Date(START + 1000).toISOString(),
      });
      expect(task.history).toEqual([said]);
      expect(await state('new')).toBe('TASK_STATE_INPUT_REQUIRED');
      expect(await state('gone')).toBe(undefined);
      expect(await restored.find('ann', 'r-done')).toBe('done');
      await restored.close?.();
    }
  });

  test('of smaller bounds nothing is lost that was there', async () => {
    const file = path();
    const store = await a2aFileStore(file);
    for (let i = 0; i < 20; i++) await store.put(record(`t${i}`, 'ann', 'WORKING'));
    await store.close?.();
    const smaller = await a2aFileStore(file, { tasks: 8 });
    expect(await ids(smaller, 'ann')).toHaveLength(20);
    await smaller.close?.();
  });

  test('a line that was cut counts for nothing; one that is damaged refuses the file and leaves it', async () => {
    const file = path();
    const store = await a2aFileStore(file);
    await store.put(record('a', 'ann'));
    await store.put(record('b', 'ann'));
    await store.close?.();
    const text = readFileSync(file, 'utf8');
    writeFileSync(file, text.slice(0, -20));
    const cut = await a2aFileStore(file);
    expect(await ids(cut, 'ann')).toEqual(['a']);
    await cut.close?.();
    const task = (o: object) => ({ id: 'c', status: { state: 'TASK_STATE_WORKING' }, ...o });
    const odd = [
      { task: task({ history: 5 }) },
      { task: task({ artifacts: {} }) },
      { task: task({ contextId: 7 }) },
      { task: task({ status: { state: 'TASK_STATE_DREAMING' } }) },
      { task: task({ status: {} }) },
      { task: task({}), requests: ['r', {}] },
    ].map((o) => JSON.stringify({ owner: 'x', requests: [], ...o }));
    for (const line of ['7', '{"owner":"x"}', '{"owner":7,"requests":[],"task":{}}', 'nonsense', ...odd]) {
      const damaged = text.replace('\n', `\n${line}\n`);
      writeFileSync(file, damaged);
      expect(await failure(() => a2aFileStore(file))).toMatchObject({
        code: 'bad_store',
        message: expect.stringMatching(/damaged in line 2/),
      });
      expect(readFileSync(file, 'utf8')).toBe(damaged);
    }
  });

  test('a closed store promises nothing', async () => {
    const store = await a2aFileStore(path());
    await store.close?.();
    expect(await failure(() => store.put(record('a', 'ann')))).toMatchObject({ code: 'unavailable' });
  });
});
