import { expect, onTestFinished, test, vi } from 'vitest';
import { serve } from '../src/builtin.ts';
import { call } from '../src/call.ts';
import { type CallContext, type Handler, localOnly } from '../src/dispatch.ts';
import { createLocalService } from '../src/local.ts';
import { respelled } from '../src/outbox.ts';
import { read } from '../src/rooms.ts';
import { Signer } from '../src/signer.ts';

// What strangers tried. Each of these once worked.

function world() {
  const limits = { readsPerMinute: 1e6, writesPerMinute: 1e6, newRoomsPerDay: 1e6 };
  const service = createLocalService({ limits });
  return { base: 'http://attacked.test', fetch: service.fetch };
}

async function serving(
  o: ReturnType<typeof world>,
  handlers: Record<string, (params: any, context: CallContext) => unknown>,
) {
  const stop = new AbortController();
  const signer = Signer.generate();
  let ready = (): void => {};
  const isReady = new Promise<void>((resolve) => {
    ready = resolve;
  });
  const done = serve('mb-p-srv', signer, {
    ...o,
    methods: new Map(Object.entries(handlers)),
    signal: stop.signal,
    onReady: ready,
    onEvent: () => {},
  });
  await isReady;
  return {
    signer,
    end(): Promise<void> {
      stop.abort();
      return done;
    },
  };
}

test('a frame that is no request, with the id of another’s, ends nobody’s call', async () => {
  const o = world();
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  const server = await serving(o, { slow: () => gate.then(() => 'done') });
  const answer = call('mb-p-srv', 'slow', {}, Signer.generate(), { ...o, replyTo: 'mb-p-vic' });
  let id: string | undefined;
  while (id === undefined) {
    id = (await read('mb-p-srv', o)).messages.map((m) => /"id":"([^"]+)"/.exec(m.text)?.[1]).find(Boolean);
  }
  const forged = { jsonrpc: '2.0', id, method: 1, params: { _meta: { 'chat.technocore/reply': 'mb-p-vic' } } };
  await Signer.generate().say('mb-p-srv', JSON.stringify(forged), o);
  // Whatever the server makes of the forged frame, it has made it before it answers what came later.
  await call('mb-p-srv', 'nothing', {}, Signer.generate(), { ...o, replyTo: 'mb-p-other' }).catch(() => {});
  go();
  expect(await answer).toBe('done');
  await server.end();
});

test('a guessed answer, said until the room takes no more of it, does not keep the true one away', async () => {
  const o = world();
  let go = (): void => {};
  const gate = new Promise<void>((resolve) => {
    go = resolve;
  });
  const server = await serving(o, { pay: () => gate.then(() => ({ ok: true })) });
  const victim = Signer.generate();
  const answer = call('mb-p-srv', 'pay', {}, victim, { ...o, replyTo: 'mb-p-vic', id: 'pay-1' });
  const evil = Signer.generate();
  const guessed = JSON.stringify({ jsonrpc: '2.0', id: 'pay-1', result: { ok: true } });
  for (let i = 0; i < 5; i++) await evil.say('mb-p-vic', guessed, o);
  go();
  // The first key that answers is believed where none is named: so name it.
  await answer.catch(() => {});
  const again = await call('mb-p-srv', 'pay', {}, victim, {
    ...o,
    replyTo: 'mb-p-vic',
    id: 'pay-2',
    peer: server.signer.did,
  });
  expect(again).toEqual({ ok: true });
  const { messages } = await read('mb-p-vic', o);
  const answers = messages.filter((m) => m.from === server.signer.did && m.text.startsWith('{'));
  expect(answers.map((m) => JSON.parse(m.text).id)).toEqual(['pay-1', 'pay-2']);
  await server.end();
});

test('another spelling is the same JSON, other letters each time, and never too long', () => {
  const text = JSON.stringify({ jsonrpc: '2.0', id: 'a\\b"c', result: ['\u00e9x', 'tail\\'] });
  const spelled = new Set(
    Array.from({ length: 20 }, () => respelled(text, (n) => crypto.getRandomValues(new Uint8Array(n)))!),
  );
  for (const other of spelled) {
    expect(other).not.toBe(text);
    expect(JSON.parse(other)).toEqual(JSON.parse(text));
  }
  expect(spelled.size).toBeGreaterThan(5);
  expect(respelled('[1,2]', (n) => new Uint8Array(n))).toBeUndefined();
  expect(respelled(`"${'x'.repeat(4094)}"`, (n) => new Uint8Array(n))).toBeUndefined();
});

test('a write whose answer was lost, where nobody lets us look, ends', async () => {
  const o = world();
  let blocked = false;
  let requests = 0;
  const fetch: typeof globalThis.fetch = async (input, init) => {
    requests++;
    if (blocked) return new Response('blocked', { status: 403 });
    const reply = await o.fetch(input, init);
    if (!String(input).includes('say-signed')) return reply;
    blocked = true;
    throw new TypeError('reset');
  };
  const said = Signer.generate().say('x', 'hello there', { ...o, fetch });
  await expect(said).rejects.toMatchObject({ code: 'may_have_landed' });
  expect(requests).toBeLessThan(10);
});

test('what a handler throws with a stranger’s words in it does nothing to the terminal of whoever serves', async () => {
  const o = world();
  const told = vi.spyOn(console, 'error').mockImplementation(() => {});
  onTestFinished(() => told.mockRestore());
  const stop = new AbortController();
  const cyclic: { self?: unknown } = {};
  cyclic.self = cyclic;
  const methods = new Map<string, Handler>([
    ['fail', ({ city }) => Promise.reject(new Error(`no weather in ${city}`, { cause: new Error(`${city} again`) }))],
    ['odd', () => Promise.reject(cyclic)],
  ]);
  await new Promise<void>((onReady) => {
    const over = serve('mb-p-srv', Signer.generate(), { ...o, methods, signal: stop.signal, onReady });
    onTestFinished(() => {
      stop.abort();
      return over;
    });
  });
  const how = { ...o, replyTo: 'mb-p-evil' };
  const city = 'Bern\x1b]0;pwned\x07\x9b2J\u202e';
  for (const method of ['fail', 'odd']) {
    await expect(call('mb-p-srv', method, { city }, Signer.generate(), how)).rejects.toMatchObject({ code: 'rpc' });
  }
  const [first, second] = told.mock.calls.map((words) => words.join(' '));
  expect(first).toMatch(/"fail" failed: Error: no weather in Bern ]0;pwned {2}2J +\n +at .*/);
  expect(first).toMatch(/\ncaused by Error: Bern ]0;pwned {2}2J +again/);
  expect(first).not.toMatch(/[^\n -~\u2019]/);
  expect(second).toMatch(/"odd" failed: a value without a JSON form/);
});

test('a frame too deep to be written down is skipped, and the server goes on', async () => {
  const o = world();
  const server = await serving(o, { add: ({ a, b }) => a + b });
  const deep = `{"jsonrpc":"2.0","id":1,"method":"add","params":{"x":${'['.repeat(1950)}${']'.repeat(1950)}}}`;
  await Signer.generate().say('mb-p-srv', deep, o);
  expect(await call('mb-p-srv', 'add', { a: 1, b: 2 }, Signer.generate(), { ...o, replyTo: 'mb-p-c' })).toBe(3);
  await server.end();
});

test('a batch in a batch, or the text of a request in one, runs nothing: least of all as if we ourselves asked', async () => {
  const o = world();
  const ran: string[] = [];
  const own = localOnly(() => ran.push('local'));
  const server = await serving(o, { local: own, who: (_, { from }) => ran.push(from) });
  const evil = Signer.generate();
  const meta = { _meta: { 'chat.technocore/reply': 'mb-p-evil' } };
  await evil.say('mb-p-evil', 'mine', o);
  const request = (id: number, method: string) => ({ jsonrpc: '2.0', id, method, params: meta });
  const hidden = ['local', 'who'].flatMap((method, i) => {
    const one = request(i, method);
    const told = { jsonrpc: '2.0', method };
    return [[one], [[one]], [told], JSON.stringify(one), JSON.stringify([told])];
  });
  await evil.say('mb-p-srv', JSON.stringify([...hidden, request(9, 'who')]), o);
  // Answers to one key come in its order.
  await call('mb-p-srv', 'nothing', {}, evil, { ...o, replyTo: 'mb-p-evil' }).catch(() => {});
  const { messages } = await read('mb-p-evil', o);
  const answers = messages.filter((m) => m.from === server.signer.did).flatMap((m) => JSON.parse(m.text));
  expect(ran).toEqual([evil.did]);
  const codes = answers.slice(0, -1).map(({ id, error }) => [id, error?.code]);
  expect(codes).toEqual([...hidden.map(() => [null, -32600]), [9, undefined]]);
  await server.end();
});
