import { describe, expect, test } from 'vitest';
import { utf8 } from '../src/bytes.ts';
import type { Incoming, Listener } from '../src/channel.ts';
import { createLocalService } from '../src/local.ts';
import { HttpRelay, Identity, Session } from '../src/parley.ts';
import {
  a2aAgent,
  a2aGet,
  a2aSend,
  a2aStream,
  a2aText,
  call,
  mcpCallTool,
  mcpListTools,
  notify,
  Signer,
  serve,
  type Tool,
  tool,
} from '../src/technocore-rpc.ts';

const code = (name: string, more: object = {}) => expect.objectContaining({ code: name, ...more });

interface World {
  fetch: typeof fetch;
  opener: Session;
  joiner: Session;
  signer: Signer;
}

async function pair({ fetch } = createLocalService() as { fetch: typeof globalThis.fetch }): Promise<World> {
  const session = (seed: string): Session =>
    new Session(Identity.fromSeed(utf8(seed)), new HttpRelay('http://relay', { fetch }));
  const [opener, joiner] = [session('opener'), session('joiner')];
  await joiner.join(await opener.open('rpc'));
  return { fetch, opener, joiner, signer: Signer.generate() };
}

async function active(session: Session): Promise<void> {
  while (session.peer.state !== 'active') {
    await session.poll();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

function serving({ opener, fetch }: World, methods: Map<string, any>, more: object = {}) {
  const stop = new AbortController();
  const signer = Signer.generate();
  const done = serve(opener, signer, { fetch, base: 'http://local', methods, signal: stop.signal, ...more });
  return { done, stop: () => stop.abort(), signer };
}

describe('JSON-RPC over a session', () => {
  test('a listener that throws neither ends the session nor keeps anything from the others', async () => {
    const world = await pair();
    const server = serving(world, new Map([['add', ({ a, b }: any) => a + b]]));
    const { joiner, signer, fetch } = world;
    let thrown = 0;
    const leave = await joiner.listen({
      message: () => {
        thrown++;
        throw new Error('mine');
      },
      gap: () => {},
      end: () => {},
    });
    const o = { fetch, base: 'http://local' };
    for (let a = 0; a < 3; a++) expect(await call(joiner, 'add', { a, b: 2 }, signer, o)).toBe(a + 2);
    expect(thrown).toBe(3);
    leave();
    server.stop();
    await server.done;
  });

  test('a call finishes the handshake by itself, and comes back', async () => {
    const world = await pair();
    const seen: string[] = [];
    const methods = new Map([
      [
        'add',
        ({ a, b }: any, context: any) => {
          seen.push(context.from);
          return a + b;
        },
      ],
      ['fail', () => Promise.reject(new Error('inside'))],
    ]);
    const server = serving(world, methods);
    const { joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    expect(await call(joiner, 'add', { a: 1, b: 2 }, signer, o)).toBe(3);
    await expect(call(joiner, 'none', {}, signer, o)).rejects.toMatchObject({ rpc: { code: -32601 } });
    await expect(call(joiner, 'fail', {}, signer, o)).rejects.toMatchObject({ rpc: { code: -32603 } });
    const many = await Promise.all([...Array(50).keys()].map((a) => call(joiner, 'add', { a, b: 1 }, signer, o)));
    expect(many).toEqual([...Array(50).keys()].map((a) => a + 1));
    // Who called is what the handshake proved.
    expect(new Set(seen).size).toBe(1);
    expect(seen[0]).toMatch(/^parley:[\w-]{43}$/);
    server.stop();
    await server.done;
  });

  test('both ends serve and call at once', async () => {
    const { fetch, opener, joiner } = await pair();
    const o = { fetch, base: 'http://local' };
    const stop = new AbortController();
    const who = (name: string) => new Map([['who', () => name]]);
    const [a, b] = [Signer.generate(), Signer.generate()];
    const both = [
      serve(opener, a, { ...o, methods: who('opener'), signal: stop.signal }),
      serve(joiner, b, { ...o, methods: who('joiner'), signal: stop.signal }),
    ];
    expect(await Promise.all([call(opener, 'who', {}, a, o), call(joiner, 'who', {}, b, o)])).toEqual([
      'joiner',
      'opener',
    ]);
    stop.abort();
    await Promise.all(both);
  });

  test('MCP tools, progress and all, know nothing of what they run over', async () => {
    const world = await pair();
    const tools = new Map<string, Tool>();
    const inputSchema = { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] };
    const shout = async ({ text }: any, context: any): Promise<string> => {
      await context.progress(1, 2);
      return text.toUpperCase();
    };
    tool('shout', 'Says it loudly', inputSchema, shout, { tools });
    const server = serving(world, new Map(), { tools });
    const { joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    expect((await mcpListTools(joiner, signer, o)).map((t) => t.name)).toEqual(['shout']);
    const seen: number[] = [];
    const onProgress = (done: number): void => void seen.push(done);
    const result = await mcpCallTool(joiner, 'shout', { text: 'hi' }, signer, { ...o, onProgress });
    expect(result).toMatchObject({ content: [{ type: 'text', text: 'HI' }] });
    expect(seen).toEqual([1]);
    server.stop();
    await server.done;
  });

  test('what is too long for a room is not too long for a session, up to a limit that is named', async () => {
    const world = await pair();
    const tools = new Map<string, Tool>();
    for (let i = 0; i < 40; i++) tool(`t${i}`, 'd'.repeat(200), { type: 'object' }, () => '', { tools });
    const server = serving(world, new Map([['echo', (params: any) => params]]), { tools });
    const { joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    const text = 'é'.repeat(9000);
    expect(await call(joiner, 'echo', { text }, signer, o)).toEqual({ text });
    await notify(joiner, 'echo', { text }, signer, o);
    await expect(call(joiner, 'echo', { text: 'x'.repeat(65_500) }, signer, o)).rejects.toEqual(
      code('frame_too_long', { limit: 65_536 }),
    );
    // A list of tools comes on one page.
    expect(await mcpListTools(joiner, signer, o)).toHaveLength(40);
    const methods = new Map([['long', () => 'x'.repeat(70_000)]]);
    server.stop();
    await server.done;
    const second = serving(world, methods);
    await expect(call(joiner, 'long', {}, signer, o)).rejects.toMatchObject({ rpc: { data: { limit: 65_536 } } });
    second.stop();
    await second.done;
  });

  test('A2A tasks, questions and streams too', async () => {
    const world = await pair();
    const { joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    const agent = a2aAgent(
      async (message, task) => {
        if (!task.continued) return task.ask('In which language?');
        await task.update('working', 'reading');
        await task.artifact({ name: 'answer', text: `in ${a2aText(message)}` });
      },
      { capabilities: { streaming: true } },
    );
    const server = serving(world, agent.methods);
    const { task } = await a2aSend(joiner, 'summarise', signer, o);
    expect(task?.status.state).toBe('TASK_STATE_INPUT_REQUIRED');
    const states: (string | undefined)[] = [];
    for await (const item of a2aStream(joiner, 'German', signer, { ...o, taskId: task!.id })) {
      states.push((item.statusUpdate ?? item.task)?.status.state);
    }
    expect(states.at(-1)).toBe('TASK_STATE_COMPLETED');
    const over = await a2aGet(joiner, task!.id, signer, o);
    expect(over.artifacts?.map(a2aText)).toEqual(['in German']);
    server.stop();
    await server.done;
  });

  test('requests and talk do not mix', async () => {
    const world = await pair();
    const { opener, joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    const asked: unknown[] = [];
    const server = serving(world, new Map([['note', (params: unknown) => void asked.push(params)]]));
    const heard: string[] = [];
    const listening = (async () => {
      for await (const { kind, text } of opener.messages()) heard.push(`${kind} ${text}`);
    })();
    await active(joiner);
    await joiner.send('hello');
    expect(await call(joiner, 'note', { n: 1 }, signer, o)).toBe(null);
    await joiner.send('{"jsonrpc": "1.0"} is talk');
    await notify(joiner, 'note', { n: 2 }, signer, o);
    await joiner.send('[1,2]');
    expect((await opener.poll(0)).length).toBeLessThanOrEqual(1);
    await opener.send('hello yourself');
    expect((await joiner.poll(5000)).map((m) => m.text)).toEqual(['hello yourself']);
    await joiner.close('done');
    await listening;
    expect(heard.filter((t) => t !== 'say [1,2]')).toEqual([
      'say hello',
      'say {"jsonrpc": "1.0"} is talk',
      'close done',
    ]);
    expect(asked).toEqual([{ n: 1 }, { n: 2 }]);
    // Nothing more can come: that ends the serving, by name.
    await expect(server.done).rejects.toThrow(code('session_closed'));
  });

  test('frames that come before anybody listens are kept, talk is not held up by them', async () => {
    const world = await pair();
    const { opener, joiner, signer, fetch } = world;
    const o = { fetch, base: 'http://local' };
    await opener.poll();
    await joiner.poll();
    const early = call(joiner, 'now', {}, signer, o);
    await joiner.send('talk');
    const got: string[] = [];
    while (!got.length) got.push(...(await opener.poll(1000)).map((m) => m.text));
    expect(got).toEqual(['talk']);
    // Even a process in between does not lose them.
    const again = await Session.resume(
      opener.save(),
      Identity.fromSeed(utf8('opener')),
      new HttpRelay('http://relay', { fetch }),
    );
    const server = serving({ ...world, opener: again }, new Map([['now', () => 'late but here']]));
    expect(await early).toBe('late but here');
    server.stop();
    await server.done;
  });

  test('a relay that cannot be reached for a while loses no request and no answer', async () => {
    let down = 0;
    const { fetch } = createLocalService();
    const failing = (async (url: string, init?: RequestInit) => {
      if (init?.method !== 'POST' || down === 0) return fetch(url, init);
      // The last one arrives, though its answer is lost.
      if (--down === 0) await fetch(url, init);
      throw new TypeError('fetch failed');
    }) as typeof fetch;
    const world = await pair({ fetch: failing });
    const ran: number[] = [];
    const server = serving(
      world,
      new Map([
        [
          'm',
          ({ n }: any) => {
            ran.push(n);
            // More often than the relay tries by itself.
            down = 12;
            return n;
          },
        ],
      ]),
    );
    const { joiner, signer } = world;
    const o = { fetch, base: 'http://local' };
    expect(await call(joiner, 'm', { n: 1 }, signer, o)).toBe(1);
    down = 12;
    expect(await call(joiner, 'm', { n: 2 }, signer, o)).toBe(2);
    expect(ran).toEqual([1, 2]);
    server.stop();
    await server.done;
  });

  test('a page of something on the way, at the very beginning, does not end what serves', async () => {
    let pages = 2;
    const { fetch } = createLocalService();
    const portal = (async (url: string, init?: RequestInit) => {
      if (!url.includes('/frames?') || pages-- <= 0) return fetch(url, init);
      return new Response('<p>Log in first</p>', { status: pages ? 302 : 403 });
    }) as typeof fetch;
    const world = await pair({ fetch: portal });
    const server = serving(world, new Map([['m', () => 'here']]));
    expect(await call(world.joiner, 'm', {}, world.signer, { fetch, base: 'http://local' })).toBe('here');
    expect(pages).toBeLessThan(0);
    server.stop();
    await server.done;
  });

  test('a closed session fails what waits, at once', async () => {
    const { fetch, opener, joiner, signer } = await pair();
    await opener.poll();
    const o = { fetch, base: 'http://local', timeoutMs: 60_000 };
    const waiting = call(joiner, 'x', {}, signer, o);
    await opener.poll(1000);
    await opener.close('no');
    await expect(waiting).rejects.toThrow(code('session_closed'));
    await expect(call(joiner, 'x', {}, signer, o)).rejects.toThrow(code('session_closed'));
  });

  test('lost frames fail what waits for an answer', async () => {
    const { fetch, opener, joiner, signer } = await pair();
    await opener.poll();
    await joiner.poll();
    const waiting = call(joiner, 'x', {}, signer, { fetch, base: 'http://local', timeoutMs: 60_000 });
    const swallow: typeof HttpRelay.prototype.send = async () => {};
    const { send } = HttpRelay.prototype;
    HttpRelay.prototype.send = swallow;
    await opener.send('lost');
    HttpRelay.prototype.send = send;
    await opener.send('here');
    await expect(waiting).rejects.toThrow(code('ring_gap', { expected: 2, oldest: 3 }));
  });

  test('a listener that leaves ends the reading, and polls go on as before', async () => {
    const { fetch, opener, joiner } = await pair();
    const got: Incoming[] = [];
    const listener: Listener = { message: (m) => void got.push(m), gap() {}, end() {} };
    const leave = await opener.listen(listener);
    const polled = opener.poll(20_000);
    await active(joiner);
    leave();
    leave();
    await joiner.send('talk');
    expect((await polled).map((m) => m.text)).toEqual(['talk']);
    const again = await opener.listen(listener);
    await joiner.send('{"jsonrpc":"2.0","method":"x"}');
    while (!got.length) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(got[0]).toMatchObject({ text: '{"jsonrpc":"2.0","method":"x"}', room: opener.room, nonce: '3' });
    again();
    const lonely = new Session(Identity.generate(), new HttpRelay('http://relay', { fetch }));
    await expect(lonely.listen(listener)).rejects.toThrow(code('relay_refused'));
  });

  test('talk that nobody reads is kept within a bound while somebody listens', async () => {
    const { opener, joiner } = await pair();
    const leave = await opener.listen({ message() {}, gap() {}, end() {} });
    await active(joiner);
    for (let i = 0; i < 1100; i++) await joiner.send(`${i}`);
    await joiner.send('{"jsonrpc":"2.0","method":"last"}');
    const texts: string[] = [];
    while (texts.length < 1024) texts.push(...(await opener.poll(1000)).map((m) => m.text));
    expect(texts).toContain('1023');
    leave();
  });

  test('nor is it kept without end where each is long', async () => {
    const { opener, joiner } = await pair();
    const leave = await opener.listen({ message() {}, gap() {}, end() {} });
    await active(joiner);
    const long = 'x'.repeat(1_500_000);
    for (let i = 0; i < 12; i++) await joiner.send(long);
    await joiner.send('last');
    let [chars, last] = [0, false];
    while (!last) {
      for (const { text } of await opener.poll(1000)) {
        if (text === 'last') last = true;
        else chars += text.length;
      }
    }
    expect(chars).toBeGreaterThan(0);
    expect(chars).toBeLessThanOrEqual(1 << 24);
    leave();
  });

  test('what is longer than a frame may be is talk, whatever it looks like', async () => {
    const { opener, joiner } = await pair();
    const got: string[] = [];
    const leave = await opener.listen({ message: ({ text }) => got.push(text), gap() {}, end() {} });
    await active(joiner);
    const request = (n: number) => JSON.stringify({ jsonrpc: '2.0', method: 'x', params: { n: 'n'.repeat(n) } });
    await joiner.send(request(70_000));
    await joiner.send(request(60_000));
    expect((await opener.poll(10_000)).map(({ text }) => text)).toEqual([request(70_000)]);
    while (!got.length) await new Promise((resolve) => setTimeout(resolve, 5));
    expect(got).toEqual([request(60_000)]);
    leave();
  });
});
