import { describe, expect, onTestFinished, test } from 'vitest';
import { a2aAgent } from '../src/a2a-agent.ts';
import {
  type A2AClaimOptions,
  type A2ALease,
  a2aAdvance,
  a2aClaim,
  a2aCreate,
  a2aFindNotes,
  a2aGetState,
  a2aKeep,
  a2aTaskNote,
} from '../src/a2a-notes.ts';
import { createDispatcher, dispatch, methods } from '../src/builtin.ts';
import { TechnocoreError } from '../src/errors.ts';
import { createLocalService } from '../src/local.ts';
import { getNote, setNote } from '../src/notes.ts';
import { vectors } from './a2a-vectors.ts';
import { broken, FREE, faulty, PROFILES, type World, world } from './support.ts';
import { settled } from './virtual-clock.ts';

const { addresses, cas }: { [name: string]: any[] } = vectors.taskNotes;
const write = (w: World, id: string, value: string) => {
  const { ns, key } = a2aTaskNote(id);
  return w.run(setNote(ns, key, value, w.o));
};
const stored = (w: World, id: string) => {
  const { ns, key } = a2aTaskNote(id);
  return w.run(getNote(ns, key, w.o));
};
/** What a promise rejects with; undefined when it does not. */
const failure = (work: Promise<unknown>): Promise<any> =>
  work.then(
    () => undefined,
    (cause) => cause,
  );

test.each(addresses!)('the address of $taskId', ({ taskId, ns, key }: any) => {
  expect(a2aTaskNote(taskId)).toEqual({ ns, key });
  expect(a2aTaskNote(taskId, 'p-x7')).toEqual({ ns: ns.replace('a2a-task', 'p-x7'), key });
});

test('an empty id has no address, and a base that is no name writes nothing', async () => {
  expect(() => a2aTaskNote('')).toThrow(expect.objectContaining({ code: 'bad_name' }));
  const w = world();
  expect(await failure(a2aCreate('x', { ...w.o, noteBase: 'Not A Name' }))).toMatchObject({ code: 'bad_name' });
  expect(w.service.stats.requests).toBe(0);
});

describe.each(PROFILES)('compare-and-set, service %s', (profile) => {
  /** The cases by their spelling of states, each through our function and through the helper of the original. */
  const through: [string, (w: World, id: string, write: any) => Promise<unknown>][] = [
    [
      'the functions',
      (w, id, { if_absent, if: from, value }) => (if_absent ? a2aCreate(id, w.o) : a2aAdvance(id, from, value, w.o)),
    ],
    [
      'dispatch',
      async (w, id, { if_absent, if: from, value }) => {
        const params = if_absent ? { taskId: id, contextId: 'd-room' } : { taskId: id, from, state: value };
        const frame = { jsonrpc: '2.0', id: 1, method: if_absent ? 'message/send' : 'tasks/advance', params };
        const answer: any = await dispatch(frame, { service: w.o });
        if (answer.error)
          throw Object.assign(new Error(), { code: answer.error.code, actual: answer.error.data?.actual });
      },
    ],
  ];
  for (const [how, run] of through) {
    test.each(cas!)(`$name, through ${how}`, async ({ given, write: wanted, then: expected }: any) => {
      const w = world(profile);
      if (given !== null) await write(w, 'job-1', given);
      const cause = await failure(w.run(run(w, 'job-1', wanted)));
      if (expected.outcome === 'won') expect(cause).toBe(undefined);
      else {
        expect(cause).toMatchObject({ code: how === 'dispatch' ? 1005 : 'conflict' });
        expect(cause.actual ?? null).toBe(expected.current);
      }
      expect((await stored(w, 'job-1')) ?? null).toBe(expected.note);
    });
  }

  test('words of 0.3 match notes in either spelling, and a note keeps the one it has', async () => {
    const w = world(profile);
    for (const [id, first] of [
      ['new', 'TASK_STATE_SUBMITTED'],
      ['old', 'submitted'],
    ] as const) {
      await write(w, id, first);
      await w.run(a2aAdvance(id, 'submitted', 'working', w.o));
      expect(await w.run(a2aGetState(id, w.o))).toBe('working');
      const lost = await failure(w.run(a2aAdvance(id, 'submitted', 'completed', w.o)));
      expect(lost).toMatchObject({ code: 'conflict', actual: id === 'new' ? 'TASK_STATE_WORKING' : 'working' });
      await w.run(a2aAdvance(id, 'working', 'input-required', w.o));
    }
    expect(await stored(w, 'new')).toBe('TASK_STATE_INPUT_REQUIRED');
    expect(await stored(w, 'old')).toBe('input-required');
  });

  test('what is illegal is refused before anything is sent', async () => {
    const w = world(profile);
    for (const [from, to] of vectors.states.illegal) {
      const cause = await failure(a2aAdvance('x', `TASK_STATE_${from}`, `TASK_STATE_${to}`, w.o));
      expect(cause).toMatchObject({ code: 'bad_state', from: `TASK_STATE_${from}`, to: `TASK_STATE_${to}` });
    }
    expect(w.service.stats.requests).toBe(0);
  });

  test('a note that holds no state, and one that is not there', async () => {
    const w = world(profile);
    expect(await w.run(a2aGetState('x', w.o))).toBe(undefined);
    await write(w, 'x', 'busy bee');
    expect(await w.run(a2aGetState('x', w.o))).toBe('unknown');
    await write(w, 'x', 'TASK_STATE_WORKING by bob');
    expect(await w.run(a2aGetState('x', w.o))).toBe('working');
  });
});

test('which tasks still have notes, and keeping one from being reaped', async () => {
  const w = world();
  const ids = ['a', 'b', 'c', 'job-1'];
  for (const id of ids) await w.run(a2aCreate(id, w.o));
  expect((await w.run(a2aFindNotes([...ids, 'never'], w.o))).sort()).toEqual(ids);
  for (let day = 0; day < 10; day++) {
    await w.clock.advance(86_400_000);
    expect(await w.run(a2aKeep('job-1', w.o))).toBe(true);
  }
  expect(await w.run(a2aFindNotes(ids, w.o))).toEqual(['job-1']);
  expect(await w.run(a2aKeep('a', w.o))).toBe(false);
  expect(await w.run(a2aGetState('job-1', w.o))).toBe('submitted');
});

describe('the helpers of the original', () => {
  test('as it called them, in its own process', async () => {
    const w = world();
    const ask = async (method: string, params: object): Promise<any> =>
      w.run(Promise.resolve(methods.get(method)!(params, { service: w.o } as never)));
    expect(await ask('message/send', { taskId: 'job-1', contextId: 'd-my-room' })).toMatchObject({
      kind: 'task',
      id: 'job-1',
      contextId: 'd-my-room',
      status: { state: 'submitted' },
    });
    expect(await stored(w, 'job-1')).toBe('TASK_STATE_SUBMITTED');
    expect(await failure(ask('message/send', { taskId: 'job-1', contextId: 'd-my-room' }))).toMatchObject({
      code: 'conflict',
      actual: 'TASK_STATE_SUBMITTED',
    });
    expect(await ask('tasks/advance', { taskId: 'job-1', from: 'submitted', state: 'working' })).toMatchObject({
      id: 'job-1',
      contextId: 'd-my-room',
      status: { state: 'working' },
    });
    expect(await w.run(a2aGetState('job-1', w.o))).toBe('working');
    expect(await failure(ask('tasks/advance', { taskId: 'job-1', from: 'submitted', state: 'working' }))).toMatchObject(
      {
        code: 'conflict',
        actual: 'TASK_STATE_WORKING',
      },
    );
    expect(await failure(ask('tasks/advance', { taskId: 'job-1', from: 'working', state: 'submitted' }))).toMatchObject(
      {
        code: 'bad_state',
      },
    );
    expect(await ask('tasks/get', { taskId: 'job-1' })).toMatchObject({ kind: 'task', status: { state: 'working' } });
    expect(await ask('tasks/list', {})).toMatchObject({ tasks: [{ id: 'job-1', contextId: 'd-my-room' }] });
  });

  test('a task that nobody began is unknown, one whose note was reaped has expired', async () => {
    const w = world();
    const ask = (method: string, params: object): Promise<any> =>
      w.run(dispatch({ jsonrpc: '2.0', id: 1, method, params: params as never }, { service: w.o }));
    await ask('message/send', { taskId: 'job-1', contextId: 'd-my-room' });
    await w.clock.advance(8 * 86_400_000);
    // The service looks for what it may reap when somebody writes.
    await w.run(a2aCreate('another', w.o));
    const gone = await ask('tasks/get', { taskId: 'job-1' });
    expect(gone.error).toMatchObject({ code: -32001, message: expect.stringContaining('expired') });
    const never = await ask('tasks/get', { taskId: 'job-2' });
    expect(never.error).toMatchObject({ code: -32001, message: 'Task not found' });
    expect((await ask('tasks/list', {})).result).toEqual({ tasks: [] });
    for (const params of [{}, { taskId: 7, contextId: 'd-x' }, { taskId: 'x', contextId: 'not a room' }]) {
      expect((await ask('message/send', params)).error.code).toBe(-32602);
    }
    const illegal = await ask('tasks/advance', { taskId: 'job-1', from: 'completed', state: 'working' });
    expect(illegal.error).toMatchObject({ code: -32602, data: { from: 'completed', to: 'working' } });
  });

  test('for remote callers they do not exist, beside an agent or without', async () => {
    const agent = a2aAgent(async () => 'hello');
    onTestFinished(() => agent.close());
    for (const d of [createDispatcher(), createDispatcher({ methods: new Map([...methods, ...agent.methods]) })]) {
      for (const method of ['tasks/advance', 'tasks/list']) {
        const params = { taskId: 'x', from: 'submitted', state: 'working' };
        const answer: any = await d.dispatch({ jsonrpc: '2.0', id: 1, method, params }, { from: 'did:key:z' });
        expect(answer.error.code).toBe(-32601);
      }
    }
  });
});

describe('leases', () => {
  const leaseOf = async (w: World, id: string, o: A2AClaimOptions = {}): Promise<A2ALease> => {
    const lease = await w.run(a2aClaim(id, { ...w.o, ...o }));
    onTestFinished(() => w.run(lease.release().catch(() => {})));
    return lease;
  };
  const note = (w: World, id: string) => {
    const { ns, key } = a2aTaskNote(id, 'a2a-lease');
    return w.run(getNote(ns, key, w.o));
  };

  test('a task is worked on by who holds the lease, which lies beside the state', async () => {
    const w = world();
    await w.run(a2aCreate('job-1', w.o));
    const lease = await leaseOf(w, 'job-1');
    expect(a2aTaskNote('job-1', 'a2a-lease')).toEqual({ ns: 'a2a-lease-02', key: '6ab639c21df8aa' });
    expect(await note(w, 'job-1')).toBe(`${lease.attempt} 1 60000`);
    await w.run(lease.advance('submitted', 'working'));
    await w.clock.advance(120_000);
    expect(lease.signal.aborted).toBe(false);
    await w.run(lease.advance('working', 'completed'));
    await w.run(lease.release());
    expect(await note(w, 'job-1')).toBe(`free ${lease.attempt}`);
    expect(await stored(w, 'job-1')).toBe('TASK_STATE_COMPLETED');
    expect(w.clock.sleepers).toBe(0);
  });

  test('one that is held and renewed is refused; one given back is taken at once', async () => {
    const w = world();
    const first = await leaseOf(w, 'job-1');
    const begun = w.clock.now();
    const cause = await failure(w.run(a2aClaim('job-1', w.o)));
    expect(cause).toMatchObject({ code: 'conflict', actual: expect.stringContaining(first.attempt) });
    expect(w.clock.now() - begun).toBeLessThan(60_000);
    await w.run(first.release());
    const then = w.clock.now();
    await leaseOf(w, 'job-1');
    expect(w.clock.now() - then).toBeLessThan(1000);
  });

  test('fault 93: of a worker that died the task is taken over; when it comes back it finds out before it writes', async () => {
    const w = world();
    await w.run(a2aCreate('job-1', w.o));
    // A process that is stopped: its clock stands, its requests wait.
    let stopped = false;
    const sleeping = {
      now: w.clock.now.bind(w.clock),
      sleep: (ms: number, signal?: AbortSignal) =>
        w.clock.sleep(ms, signal).then(() => (stopped ? new Promise<void>(() => {}) : undefined)),
    };
    const first = await w.run(a2aClaim('job-1', { ...w.o, clock: sleeping }));
    await w.run(first.advance('submitted', 'working'));
    stopped = true;
    const second = await leaseOf(w, 'job-1');
    expect(second.attempt).not.toBe(first.attempt);
    stopped = false;
    const requests = w.service.stats.writes;
    const cause = await failure(w.run(first.advance('working', 'completed')));
    expect(cause).toMatchObject({ code: 'conflict', actual: expect.stringContaining(second.attempt) });
    expect(first.signal.aborted).toBe(true);
    expect(w.service.stats.writes - requests).toBe(1);
    expect(await w.run(a2aGetState('job-1', w.o))).toBe('working');
    await w.run(second.advance('working', 'failed'));
    await w.run(first.release());
    expect(await note(w, 'job-1')).toContain(second.attempt);
  });

  test('of many that wait for a dead one’s lease, one takes it', async () => {
    const w = world();
    const { ns, key } = a2aTaskNote('job-1', 'a2a-lease');
    await w.run(setNote(ns, key, 'AAAAAAAAAAAAAAAAAAAAAA 7 60000', w.o));
    const tries = await w.run(Promise.allSettled(Array.from({ length: 5 }, () => a2aClaim('job-1', w.o))));
    const taken = tries.filter(({ status }) => status === 'fulfilled') as PromiseFulfilledResult<A2ALease>[];
    expect(taken).toHaveLength(1);
    for (const one of tries) if (one.status === 'rejected') expect(one.reason).toMatchObject({ code: 'conflict' });
    await w.run(taken[0]!.value.release());
  });

  test('what is no lease holds nobody up', async () => {
    const w = world();
    const { ns, key } = a2aTaskNote('job-1', 'a2a-lease');
    for (const junk of ['mine!', 'AAAAAAAAAAAAAAAAAAAAAA 7 99999999999', '{}']) {
      await w.run(setNote(ns, key, junk, w.o));
      const begun = w.clock.now();
      const lease = await leaseOf(w, 'job-1');
      expect(w.clock.now() - begun).toBeLessThan(1000);
      await w.run(lease.release());
    }
  });

  test('one that cannot be renewed is lost in time although the clock was set back', async () => {
    const w = world();
    let [cut, back] = [false, 0];
    const fetch = faulty(w.o.fetch, () => {
      if (cut) throw broken();
      return undefined;
    });
    const clock = { now: () => w.clock.now() - back, sleep: w.clock.sleep.bind(w.clock) };
    const lease = await leaseOf(w, 'job-1', { fetch, clock });
    await w.clock.advance(50_000);
    [cut, back] = [true, 3_600_000];
    await w.clock.advance(60_000);
    expect(lease.signal.reason).toMatchObject({ code: 'lease_lost' });
  });

  test('one that cannot be renewed is lost in time, and says so', async () => {
    const w = world();
    let cut = false;
    const fetch = faulty(w.o.fetch, () => {
      if (cut) throw broken();
      return undefined;
    });
    const lease = await leaseOf(w, 'job-1', { fetch });
    cut = true;
    const begun = w.clock.now();
    await w.run(new Promise((resolve) => lease.signal.addEventListener('abort', resolve)));
    expect(w.clock.now() - begun).toBeLessThanOrEqual(60_000);
    expect(lease.signal.reason).toMatchObject({ code: 'lease_lost' });
    expect(await failure(w.run(lease.renew()))).toMatchObject({ code: 'lease_lost' });
  });

  test('a renewal whose answer was lost is known to have landed', async () => {
    const w = world();
    let lose = false;
    const fetch = faulty(w.o.fetch, async (url, init) => {
      if (!lose || !url.includes('/set/')) return undefined;
      lose = false;
      await w.o.fetch(url, init);
      throw broken();
    });
    const lease = await leaseOf(w, 'job-1', { fetch });
    await w.run(a2aCreate('job-1', w.o));
    lose = true;
    await w.run(lease.renew());
    lose = true;
    await w.run(lease.advance('submitted', 'working'));
    expect(await stored(w, 'job-1')).toBe('TASK_STATE_WORKING');
  });

  test('a state that vanished has expired', async () => {
    const w = world();
    const lease = await leaseOf(w, 'job-1');
    const cause = await failure(w.run(lease.advance('submitted', 'working')));
    expect(TechnocoreError.is(cause)).toBe(true);
    expect(cause).toMatchObject({ code: 'task_expired', message: expect.stringContaining('job-1') });
  });

  test('a task that is worked on for long is not reaped', async () => {
    const w = world();
    await w.run(a2aCreate('job-1', w.o));
    const lease = await leaseOf(w, 'job-1', { leaseMs: 3_600_000 });
    await w.run(lease.advance('submitted', 'working'));
    for (let day = 0; day < 9; day++) await w.clock.advance(86_400_000);
    await w.run(lease.advance('working', 'completed'));
    expect(await stored(w, 'job-1')).toBe('TASK_STATE_COMPLETED');
  });

  test('a lease of no length is refused', async () => {
    for (const leaseMs of [0, 999, 1e9, Number.NaN]) {
      expect(await failure(a2aClaim('x', { ...world().o, leaseMs }))).toMatchObject({ code: 'bad_option' });
    }
  });
});

test('two workers race on 1,000 tasks: each is moved once a step, and every loser saw the value that was there', async () => {
  const service = createLocalService({ limits: FREE });
  const o = { base: 'http://local.test', fetch: service.fetch };
  const steps = ['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING', 'TASK_STATE_COMPLETED'] as const;
  const won = [0, 0];
  const lost: (string | undefined)[] = [];
  const ids = Array.from({ length: 1000 }, (_, i) => `race-${i}`);
  const worker = async (me: number): Promise<void> => {
    for (const id of ids) {
      for (let step = 0; step < 3; step++) {
        const next = step === 0 ? a2aCreate(id, o) : a2aAdvance(id, steps[step - 1]!, steps[step]!, o);
        await next.then(
          () => void won[me]!++,
          (cause) => {
            expect(cause.code).toBe('conflict');
            // Whoever loses a step sees at least the state that the step led to.
            expect(steps.indexOf(cause.actual)).toBeGreaterThanOrEqual(step);
            lost.push(cause.actual);
          },
        );
        // Nobody is always first.
        if ((step + me) % 2) await settled();
      }
    }
  };
  await Promise.all([worker(0), worker(1)]);
  expect(won[0]! + won[1]!).toBe(3000);
  expect(lost).toHaveLength(3000);
  expect(Math.min(...won)).toBeGreaterThan(0);
  for (const id of ids) expect(await a2aGetState(id, o)).toBe('completed');
});

describe('an agent that keeps notes', () => {
  test('writes each state, after ids that are its own; what strangers write there is a warning', async () => {
    const w = world();
    const events: any[] = [];
    let turn = 0;
    const agent = a2aAgent(
      async (_, task) => {
        if (++turn === 1) await task.ask('well?');
      },
      {},
      { clock: w.clock, notes: w.o, onEvent: (e) => void events.push(e) },
    );
    onTestFinished(() => agent.close());
    const d = createDispatcher({ methods: agent.methods });
    const send = async (text: string, more: object = {}): Promise<any> => {
      const message = { messageId: text, role: 'ROLE_USER', parts: [{ text }], ...more };
      const answer: any = await w.run(
        d.dispatch({ jsonrpc: '2.0', id: text, method: 'SendMessage', params: { message } as never }),
      );
      return answer.result.task;
    };
    const { id } = await send('a');
    expect(await stored(w, id)).toBe('TASK_STATE_INPUT_REQUIRED');
    await send('b', { taskId: id });
    await w.clock.advance(1000);
    expect(await stored(w, id)).toBe('TASK_STATE_COMPLETED');
    expect(events).toEqual([]);
    turn = 0;
    const other = await send('c');
    await write(w, other.id, 'TASK_STATE_FAILED');
    expect((await send('d', { taskId: other.id })).status.state).toBe('TASK_STATE_COMPLETED');
    await w.clock.advance(1000);
    expect(events.map(({ kind, taskId, state }) => [kind, taskId === other.id, state])).toEqual([
      ['note', true, 'TASK_STATE_WORKING'],
      ['note', true, 'TASK_STATE_COMPLETED'],
    ]);
  });
});
