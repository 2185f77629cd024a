import { describe, expect, test } from 'vitest';
import {
  createDispatcher,
  type DispatchContext,
  type Handler,
  rpcRequest,
  rpcResult,
  staysOpen,
} from '../src/dispatch.ts';
import { RpcError } from '../src/errors.ts';
import type { Json } from '../src/frames.ts';

const ask = (handler: Handler, context?: DispatchContext): Promise<any> =>
  createDispatcher({ methods: new Map([['m', handler]]) }).dispatch(rpcRequest('i', 'm', {}), context);

describe('a handler that is a generator', () => {
  async function* three(): AsyncGenerator<Json, Json> {
    yield 1;
    yield { two: 2 };
    return 3;
  }

  test('answers with many results under one id, the last as the answer', async () => {
    const emitted: Json[] = [];
    const answer = await ask(three, { emit: (frame) => void emitted.push(frame) });
    expect(emitted).toEqual([rpcResult('i', 1), rpcResult('i', { two: 2 })]);
    expect(answer).toEqual(rpcResult('i', 3));
  });

  test('is asked for the next result when the one before is on its way', async () => {
    const log: string[] = [];
    await ask(
      async function* () {
        log.push('first');
        yield 1;
        log.push('second');
        return 2;
      },
      {
        emit: async () => {
          await new Promise((resolve) => setImmediate(resolve));
          log.push('sent');
        },
      },
    );
    expect(log).toEqual(['first', 'sent', 'second']);
  });

  test('ends, cleaned up, with an error when a result cannot be sent', async () => {
    let cleaned = false;
    const answer = await ask(
      async function* () {
        try {
          for (;;) yield 1;
        } finally {
          cleaned = true;
        }
      },
      { emit: async () => false },
    );
    expect(answer.error).toEqual({ code: 1001, message: 'Interrupted: a part of the answer could not be sent' });
    expect(cleaned).toBe(true);
    const why = new RpcError(-32603, 'too large', { chars: 9, limit: 8 });
    const told = await ask(
      async function* () {
        yield 1;
      },
      { emit: async () => why },
    );
    expect(told.error).toEqual(why.rpc);
  });

  test('may fail after some results', async () => {
    const emitted: Json[] = [];
    const answer = await ask(
      async function* () {
        yield 1;
        throw new RpcError(4711, 'closed today');
      },
      { emit: (frame) => void emitted.push(frame) },
    );
    expect(emitted).toHaveLength(1);
    expect(answer.error.code).toBe(4711);
  });

  test('without a place for the others only the last result is seen; of a notification none', async () => {
    expect(await ask(three)).toEqual(rpcResult('i', 3));
    const emitted: Json[] = [];
    const d = createDispatcher({ methods: new Map([['m', three]]) });
    const frame = { jsonrpc: '2.0', method: 'm' };
    expect(await d.dispatch(frame, { emit: (one) => void emitted.push(one) })).toBe(undefined);
    expect(emitted).toEqual([]);
  });

  test('what can be iterated and is no generator is a value like any other', async () => {
    const stream = { [Symbol.asyncIterator]: () => three(), a: 1 };
    expect((await ask(() => stream)).result.a).toBe(1);
  });
});

test('a handler that stays open is known to be one, and hears of the end', async () => {
  const open = staysOpen((_, { signal }) => new Promise((done) => signal.addEventListener('abort', () => done('end'))));
  const d = createDispatcher({
    methods: new Map([
      ['open', open],
      ['plain', () => 1],
    ]),
  });
  expect(d.staysOpen(rpcRequest(1, 'open'))).toBe(true);
  expect(d.staysOpen(rpcRequest(1, 'plain'))).toBe(false);
  const answer = d.dispatch(rpcRequest(1, 'open'));
  d.close();
  expect(await answer).toEqual(rpcResult(1, 'end'));
});

test('a handler knows how much fits into a frame', async () => {
  expect((await ask((_, { limit }) => limit)).result).toBe(4096);
  expect((await ask((_, { limit }) => limit, { limit: 100 })).result).toBe(100);
});
