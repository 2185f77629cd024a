import { readFileSync } from 'node:fs';
import { runInNewContext } from 'node:vm';
import { describe, expect, test, vi } from 'vitest';
import {
  badParams,
  type CallContext,
  classify,
  createDispatcher,
  type DispatchContext,
  dispatch,
  type Handler,
  idempotent,
  isId,
  localOnly,
  resultOf,
  rpcError,
  rpcNotification,
  rpcRequest,
  rpcResult,
  toJson,
} from '../src/dispatch.ts';
import { Conflict, RpcError, TechnocoreError } from '../src/errors.ts';
import { encode, type Json } from '../src/frames.ts';

const spec = JSON.parse(readFileSync(new URL('vectors/jsonrpc-spec.json', import.meta.url), 'utf8'));

const specMethods: Map<string, Handler> = new Map<string, Handler>([
  [
    'divide',
    (params) => {
      const named = !Array.isArray(params) && typeof params === 'object';
      if (named && Object.keys(params).sort().join() !== 'den,num') throw badParams('num and den');
      const [num, den, ...rest] = named ? [params.num, params.den] : (params ?? []);
      if (typeof num !== 'number' || typeof den !== 'number' || rest.length > 0) throw badParams('two numbers');
      return num / den;
    },
  ],
  ['ping7', () => 7],
  ['nothing', () => null],
  ['remember', () => undefined],
  [
    'explode',
    () => {
      throw new Error('secret');
    },
  ],
  [
    'refuse',
    async () => {
      throw new RpcError(4711, 'closed today', { until: 'monday' });
    },
  ],
]);

/** One method `m`, called with the params given. */
function ask(handler: Handler, params?: Json, context?: DispatchContext): Promise<any> {
  return createDispatcher({ methods: new Map([['m', handler]]) }).dispatch(rpcRequest(1, 'm', params), context);
}

describe('the cases of the specification', () => {
  const normal = (value: any): any => {
    if (Array.isArray(value)) return value.map(normal).sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
    if (value?.error === undefined) return value;
    expect(value.error.message, JSON.stringify(value)).toMatch(/./);
    return {
      ...value,
      error: { ...value.error, message: value.error.message === 'closed today' ? 'closed today' : '$text' },
    };
  };

  test.each<any>(spec.cases)('$name', async (c) => {
    const run = (frame: unknown) => dispatch(frame, {}, { methods: specMethods });
    const wanted = c.answer === null ? undefined : normal(c.answer);
    const answer = await run(c.text);
    expect(normal(answer)).toEqual(wanted);
    if (answer !== undefined) encode(answer);
    // The same as a value, wherever the text is JSON; a JSON string would be taken for a text.
    let value: unknown;
    try {
      value = JSON.parse(c.text);
    } catch {
      return;
    }
    if (typeof value !== 'string') expect(normal(await run(value))).toEqual(wanted);
  });

  test('all 27 are there', () => expect(spec.cases).toHaveLength(27));
});

describe('what a frame is', () => {
  test.each<[unknown, string]>([
    [{ jsonrpc: '2.0', id: 'a', method: 'm' }, 'request'],
    [{ jsonrpc: '2.0', id: '', method: '' }, 'request'],
    [{ jsonrpc: '2.0', id: 0, method: 'm', params: {} }, 'request'],
    [{ jsonrpc: '2.0', id: 1.5, method: 'm', params: [] }, 'request'],
    [{ jsonrpc: '2.0', id: null, method: 'm' }, 'request'],
    [{ jsonrpc: '2.0', method: 'm' }, 'notification'],
    [{ jsonrpc: '2.0', id: 1, result: null }, 'response'],
    [{ jsonrpc: '2.0', id: 1, error: { code: 1, message: '' } }, 'response'],
    [{ jsonrpc: '2.0', error: 5 }, 'response'],
    [{ result: 1, error: 2 }, 'response'],
    [{ jsonrpc: '2.0', id: 1 }, 'invalid'],
    [{ jsonrpc: '2.0', id: 1, method: 7, result: 1 }, 'invalid'],
    [{ jsonrpc: '2.0', id: true, method: 'm' }, 'invalid'],
    [{ jsonrpc: '2.0', id: 1, method: 'm', params: null }, 'invalid'],
    [{ jsonrpc: 2, id: 1, method: 'm' }, 'invalid'],
    [{}, 'invalid'],
    [[], 'invalid'],
    [null, 'invalid'],
    [undefined, 'invalid'],
    ['m', 'invalid'],
  ])('%j is %s', (frame, kind) => expect(classify(frame)).toBe(kind));

  test('an id that lost digits, or is no finite number, is none', () => {
    const parsed = (text: string) => isId(JSON.parse(text));
    expect([parsed('9007199254740991'), parsed('-7'), parsed('1.5'), parsed('""'), parsed('null')]).toEqual(
      Array(5).fill(true),
    );
    expect([parsed('9007199254740993'), parsed('1e400'), parsed('{}'), parsed('false')]).toEqual(Array(4).fill(false));
  });

  test('ids come back with their type', async () => {
    const methods = new Map([['m', () => 0]]);
    for (const id of [1, '1', 0, '', null, -1.5, 'é']) {
      expect(await dispatch(rpcRequest(id, 'm'), {}, { methods })).toStrictEqual({ jsonrpc: '2.0', id, result: 0 });
    }
  });

  test('builders', () => {
    expect(rpcRequest('a', 'm')).toStrictEqual({ jsonrpc: '2.0', id: 'a', method: 'm' });
    expect(rpcNotification('m', [1])).toStrictEqual({ jsonrpc: '2.0', method: 'm', params: [1] });
    expect(rpcResult(1, null)).toStrictEqual({ jsonrpc: '2.0', id: 1, result: null });
    expect(rpcError(null, 5, 'x', 0)).toStrictEqual({
      jsonrpc: '2.0',
      id: null,
      error: { code: 5, message: 'x', data: 0 },
    });
    expect(rpcError(undefined, 5, 'x')).toStrictEqual({ jsonrpc: '2.0', error: { code: 5, message: 'x' } });
  });

  test('resultOf', () => {
    expect(resultOf(rpcResult(1, null))).toBe(null);
    expect(resultOf(rpcResult(1, false))).toBe(false);
    expect(() => resultOf(rpcError(1, -32601, 'no', [1]))).toThrow(
      expect.objectContaining({ code: 'rpc', rpc: { code: -32601, message: 'no', data: [1] } }),
    );
    const error = { code: 1, message: 'x' };
    for (const bad of [
      5,
      null,
      {},
      { jsonrpc: '2.0', id: 1 },
      { id: 1, result: 1 },
      { jsonrpc: '2.0', id: 1, result: 1, error },
      { jsonrpc: '2.0', id: 1, error: 'x' },
      { jsonrpc: '2.0', id: 1, error: { code: '1', message: 'x' } },
      { jsonrpc: '2.0', id: 1, error: { code: 1 } },
    ]) {
      expect(() => resultOf(bad), JSON.stringify(bad)).toThrow(expect.objectContaining({ code: 'bad_response' }));
    }
  });
});

describe('results', () => {
  test('undefined is null, also through a promise', async () => {
    expect(await ask(() => undefined)).toEqual(rpcResult(1, null));
    expect(await ask(async () => {})).toEqual(rpcResult(1, null));
  });

  test('a result is what JSON makes of it', async () => {
    class Point {
      x = 1;
      y: undefined;
    }
    const at = new Date(0);
    expect(
      (await ask(() => ({ at, gone: undefined, p: new Point(), n: Number.NaN, list: [undefined] }))).result,
    ).toStrictEqual({
      at: '1970-01-01T00:00:00.000Z',
      p: { x: 1 },
      n: null,
      list: [null],
    });
    const plain = { a: [1, { b: null }] };
    expect(toJson(plain)).toBe(plain);
  });

  test('what JSON cannot carry is an internal error', async () => {
    const cycle: any[] = [];
    cycle.push(cycle);
    const deep = JSON.parse(`${'['.repeat(200_000)}${']'.repeat(200_000)}`);
    for (const bad of [1n, { a: 1n }, cycle, () => 1, Symbol('s'), deep]) {
      expect(await ask(() => bad)).toEqual(rpcError(1, -32603, 'Internal error'));
      expect(await ask(async () => bad)).toEqual(rpcError(1, -32603, 'Internal error'));
    }
    expect(
      await ask(() => {
        throw new RpcError(5, 'x', { n: 1n });
      }),
    ).toEqual(rpcError(1, -32603, 'Internal error'));
  });

  test('a thenable is awaited', async () => {
    // biome-ignore lint/suspicious/noThenProperty: a thenable that is no Promise is the point
    expect(await ask(() => ({ then: (ok: (v: number) => void) => ok(3) }))).toEqual(rpcResult(1, 3));
  });
});

describe('errors', () => {
  test('an RpcError passes, a Conflict is 1005, the rest is silent about itself', async () => {
    const fail = (error: unknown) =>
      ask(() => {
        throw error;
      });
    expect(await fail(new RpcError(7, 'seven', { x: 1 }))).toEqual(rpcError(1, 7, 'seven', { x: 1 }));
    expect(await fail(new RpcError({ code: 7, message: 'seven', data: 0 }))).toEqual(rpcError(1, 7, 'seven', 0));
    expect(await fail(badParams('n is missing'))).toEqual(rpcError(1, -32602, 'n is missing'));
    expect((await fail(new Conflict('', 'completed'))).error).toMatchObject({
      code: 1005,
      data: { actual: 'completed' },
    });
    expect((await fail(new Conflict(''))).error).toMatchObject({ code: 1005, data: { actual: null } });
    for (const e of [
      new Error('disk /etc/secret'),
      new TechnocoreError('bad_key', 'k'),
      'text',
      undefined,
      null,
      new RpcError(1.5, 'x'),
    ]) {
      expect(await fail(e)).toStrictEqual(rpcError(1, -32603, 'Internal error'));
    }
  });

  test('the host learns what the caller does not', async () => {
    const seen: unknown[] = [];
    const onError = (error: unknown, method: string) => seen.push([error, method]);
    const error = new Error('why');
    const throws = async () => {
      throw error;
    };
    await ask(throws, undefined, { onError });
    await ask(() => 1n, undefined, { onError });
    await ask(
      () => {
        throw badParams('no');
      },
      undefined,
      { onError },
    );
    await createDispatcher({ methods: new Map([['m', throws]]) }).dispatch(rpcNotification('m'), { onError });
    expect(seen).toEqual([
      [error, 'm'],
      [expect.objectContaining({ code: 'bad_frame' }), 'm'],
      [error, 'm'],
    ]);
  });

  test('what is no function is told of as that: where it is marked, and where it is called', async () => {
    const seen: unknown[] = [];
    const methods = new Map([['m', 5 as unknown as Handler]]);
    const onError = (error: unknown) => seen.push(String(error));
    expect(await createDispatcher({ methods }).dispatch(rpcRequest(1, 'm'), { onError })).toMatchObject({
      error: { code: -32603, message: 'Internal error' },
    });
    expect(seen).toEqual(['TechnocoreError: the handler of m must be a function, not number']);
    for (const mark of [idempotent, localOnly]) {
      expect(() => mark(undefined as unknown as Handler)).toThrow(
        'the handler of a method must be a function, not undefined',
      );
    }
  });

  test('fault 77: names of Object.prototype are no methods', async () => {
    const methods = new Map<string, Handler>();
    for (const name of ['constructor', '__proto__', 'toString', 'hasOwnProperty', 'valueOf', '']) {
      expect(await dispatch(rpcRequest(1, name), {}, { methods })).toMatchObject({ error: { code: -32601 } });
    }
  });

  test('fault 75: no answer to a response, whatever its shape', async () => {
    for (const frame of [
      '{"result":1,"id":1}',
      '{"error":1}',
      '[{"result":1},{"error":{"code":-32600,"message":"x"},"id":null}]',
    ]) {
      expect(await dispatch(frame, {}, { methods: specMethods })).toBe(undefined);
    }
  });

  test('fault 80: hostile frames get an answer and nothing else happens', async () => {
    const d = createDispatcher({ methods: specMethods });
    for (const frame of [
      '[',
      'null',
      '['.repeat(4096),
      '{"jsonrpc":"2.0"}',
      '',
      '\u0000',
      undefined,
      7,
      1n,
      Symbol('x'),
      () => 1,
    ]) {
      expect(await d.dispatch(frame)).toMatchObject({ id: null, error: { code: expect.any(Number) } });
    }
    const thrower = (): never => {
      throw new Error('from the frame');
    };
    for (const frame of [
      Object.defineProperty({ jsonrpc: '2.0', id: 1 }, 'method', { get: thrower }),
      new Proxy({}, { get: thrower, has: thrower }),
      [rpcRequest(1, 'ping7'), Object.defineProperty({}, 'method', { get: thrower })],
    ]) {
      for (const on of [d, createDispatcher({ methods: specMethods, tools: new Map() })])
        expect(await on.dispatch(frame)).toMatchObject({ error: { code: -32600 } });
    }
    const nested = `${'['.repeat(2048)}${']'.repeat(2048)}`;
    expect(await d.dispatch(nested)).toMatchObject([{ error: { code: -32600 } }]);
    expect(await d.dispatch(`{"jsonrpc":"2.0","id":1,"method":"ping7","params":${nested}}`)).toEqual(rpcResult(1, 7));
    expect(await d.dispatch('{"jsonrpc":"2.0","id":1,"method":"ping7","__proto__":{"method":"explode"}}')).toEqual(
      rpcResult(1, 7),
    );
  });
});

describe('what a handler is told', () => {
  test('_meta is taken out of params and the frame stays as it was', async () => {
    const seen: unknown[] = [];
    const handler: Handler = (params, { meta }) => void seen.push(params, meta);
    const params = { a: 1, _meta: { 'chat.technocore/reply': 'mb-x' } };
    await ask(handler, params);
    await ask(handler, { a: 1 });
    await ask(handler, [{ _meta: 1 }]);
    await ask(handler, { _meta: 7 });
    await ask(handler);
    expect(seen).toEqual([{ a: 1 }, params._meta, { a: 1 }, {}, [{ _meta: 1 }], {}, {}, {}, undefined, {}]);
    expect(params).toEqual({ a: 1, _meta: { 'chat.technocore/reply': 'mb-x' } });
  });

  test('a __proto__ member of params stays a member', async () => {
    const got = await ask(
      (p) => [Object.hasOwn(p, '__proto__'), p.evil ?? null],
      JSON.parse('{"__proto__":{"evil":1},"_meta":{}}'),
    );
    expect(got.result).toEqual([true, null]);
  });

  test('who called, from where, under which id', async () => {
    const handler: Handler = (_, c) => [c.from, c.room, c.id ?? 'none'];
    expect((await ask(handler, undefined, { from: 'did:key:z6Mk', room: 'mb-p-x' })).result).toEqual([
      'did:key:z6Mk',
      'mb-p-x',
      1,
    ]);
    expect((await ask(handler)).result).toEqual(['', '', 1]);
    let id: unknown = 'not called';
    const d = createDispatcher({ methods: new Map<string, Handler>([['m', (_, c) => (id = c.id)]]) });
    expect(await d.dispatch(rpcNotification('m'))).toBe(undefined);
    expect(id).toBe(undefined);
  });

  test('signal: the one given, else one that close aborts', async () => {
    const given = new AbortController();
    const signals: AbortSignal[] = [];
    const d = createDispatcher({
      methods: new Map<string, Handler>([['m', (_, { signal }) => void signals.push(signal)]]),
    });
    await d.dispatch(rpcRequest(1, 'm'), { signal: given.signal });
    await d.dispatch(rpcRequest(2, 'm'));
    expect(signals[0]).toBe(given.signal);
    expect(signals[1]!.aborted).toBe(false);
    d.close();
    expect(signals.map((s) => s.aborted)).toEqual([false, true]);
  });

  test('notify goes out before the answer, and never after it', async () => {
    const emit = vi.fn();
    let late: CallContext['notify'] | undefined;
    const answer = await ask(
      async (_, { notify }) => {
        late = notify;
        notify('tick', { n: 1, at: new Date(0) } as any);
        notify('tock');
        return 'done';
      },
      undefined,
      { emit },
    );
    late!('tick');
    expect(answer).toEqual(rpcResult(1, 'done'));
    expect(emit.mock.calls).toEqual([
      [rpcNotification('tick', { n: 1, at: '1970-01-01T00:00:00.000Z' })],
      [rpcNotification('tock')],
    ]);
    expect(await ask((_, { notify }) => notify('into the void'))).toEqual(rpcResult(1, null));
  });

  test('notify takes no params that JSON-RPC does not know', async () => {
    for (const wrong of [5, null, 'text', () => 1, { n: 1n }]) {
      const caught = vi.fn();
      const emit = vi.fn();
      await ask(
        async (_, { notify }) =>
          void (await Promise.resolve()
            .then(() => notify('tick', wrong as any))
            .catch(caught)),
        undefined,
        { emit },
      );
      expect(caught).toHaveBeenCalledWith(
        expect.objectContaining({ code: expect.stringMatching(/^bad_(params|frame)$/) }),
      );
      expect(emit).not.toHaveBeenCalled();
    }
  });
});

describe('marks', () => {
  const secret = vi.fn(() => 'secret');
  const methods = new Map<string, Handler>([
    ['plain', () => 1],
    ['local', localOnly(secret)],
    ['again', idempotent(() => 2)],
    ['both', localOnly(idempotent(() => 3))],
  ]);
  const d = createDispatcher({ methods });

  test('a local method does not exist for remote callers', async () => {
    const missing = await d.dispatch(rpcRequest(1, 'nosuch'), { from: 'x' });
    expect(JSON.stringify(await d.dispatch(rpcRequest(1, 'local'), { from: 'x' })).replace('local', 'nosuch')).toBe(
      JSON.stringify(missing),
    );
    // An empty name is still a remote caller's.
    expect(await d.dispatch(rpcRequest(1, 'local'), { from: '' })).toMatchObject({ error: { code: -32601 } });
    await d.dispatch(rpcNotification('local'), { from: 'x' });
    await d.dispatch([rpcRequest(1, 'local')], { from: 'x' });
    expect(secret).not.toHaveBeenCalled();
    expect(await d.dispatch(rpcRequest(1, 'local'), { room: 'r' })).toEqual(rpcResult(1, 'secret'));
  });

  test('idempotence is told by the handler alone', () => {
    const told = (method: string) => d.idempotent(rpcRequest(1, method));
    expect(['plain', 'local', 'again', 'both', 'nosuch', 'constructor'].map(told)).toEqual([
      false,
      false,
      true,
      true,
      false,
      false,
    ]);
    expect(d.idempotent(rpcNotification('again'))).toBe(false);
    expect(d.idempotent('{')).toBe(false);
  });

  test('the function given stays unmarked', async () => {
    expect(await dispatch(rpcRequest(1, 'open'), { from: 'x' }, { methods: new Map([['open', secret]]) })).toEqual(
      rpcResult(1, 'secret'),
    );
  });
});

test('methods and tools are Maps, of any realm', async () => {
  const frame = rpcRequest(1, 'm');
  const methods = runInNewContext('new Map([["m", () => 5]])');
  expect(await dispatch(frame, {}, { methods })).toEqual(rpcResult(1, 5));
  expect(await createDispatcher({ methods }).dispatch(frame)).toEqual(rpcResult(1, 5));
  for (const name of ['methods', 'tools']) {
    for (const wrong of [null, 5, 'm', {}, [['m', () => 5]], { m: () => 5 }]) {
      const error = { code: 'bad_option', message: expect.stringContaining(`the option ${name} must be a Map`) };
      await expect(async () => createDispatcher({ [name]: wrong })).rejects.toMatchObject(error);
      await expect(async () => dispatch(frame, {}, { [name]: wrong })).rejects.toMatchObject(error);
    }
  }
});

test('methods may come and go', async () => {
  const methods = new Map<string, Handler>();
  const d = createDispatcher({ methods });
  expect(await d.dispatch(rpcRequest(1, 'm'))).toMatchObject({ error: { code: -32601 } });
  methods.set('m', () => 1);
  expect(await d.dispatch(rpcRequest(1, 'm'))).toEqual(rpcResult(1, 1));
});

test('entries of a batch run side by side', async () => {
  let release: (() => void) | undefined;
  const methods = new Map<string, Handler>([
    ['wait', () => new Promise<void>((resolve) => (release = resolve))],
    ['go', () => release!()],
  ]);
  const answers = await dispatch([rpcRequest(1, 'wait'), rpcRequest(2, 'go')], {}, { methods });
  expect(answers).toHaveLength(2);
});
