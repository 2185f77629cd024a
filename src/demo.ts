/**
 * The demo: an embedded service in this process, a callee in a second, and a caller in a third. Callee and caller
 * accept no connections; they only send requests to the service. The demo uses only the public API.
 *
 * @module
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { a2aScenes, demoAgent } from './demo-a2a.ts';
import { about, demoTools, mcpScenes } from './demo-mcp.ts';
import { joiner, opener, parley } from './demo-parley.ts';
import { createLocalService } from './local.ts';
import { call, type Handler, RpcError, Signer, say, serve, TechnocoreError } from './technocore-rpc.ts';

/** A scene of the demo, as the caller reports it. */
interface Scene {
  title: string;
  /** The result in words. */
  outcome: string;
  /** More lines to print below. */
  lines: string[];
  ok: boolean;
  /** How many HTTP requests the caller made, and how long the scene took. */
  requests: number;
  ms: number;
}

/** A message from a child process of the demo. */
type Report = { ready: string } | { scene: Scene } | { failed: string };

/** The parts of the child processes, by name. */
export const parts: Record<string, (url: string, mailbox: string) => Promise<void>> = {
  callee,
  caller,
  opener,
  joiner,
};

const report = (message: Report): void => void process.send?.(message);

// --- the callee --------------------------------------------------------------------------------------------------

async function callee(base: string, mailbox: string): Promise<void> {
  const signer = Signer.generate();
  const methods = new Map<string, Handler>([
    ...demoAgent(),
    ['add', ({ a, b }) => a + b],
    ['shout', ([text]) => `${text}!`.toUpperCase()],
    [
      'withdraw',
      ({ amount }) => {
        throw new RpcError(4001, 'not enough money', { asked: amount, there: 3 });
      },
    ],
    [
      'crash',
      () => {
        throw new Error('an internal secret');
      },
    ],
  ]);
  const onReady = (): void => report({ ready: signer.did });
  await serve(mailbox, signer, {
    onEvent: () => {},
    ...about,
    base,
    methods,
    tools: demoTools(),
    onReady,
  });
}

// --- the caller --------------------------------------------------------------------------------------------------

async function caller(base: string, mailbox: string): Promise<void> {
  let requests = 0;
  const counted: typeof fetch = (input, init) => {
    requests++;
    return fetch(input, init);
  };
  const signer = Signer.generate();
  const replyTo = 'mb-p-demo-caller';
  const o = { base, fetch: counted, replyTo, timeoutMs: 10_000 };
  const ask = (method: string, params: any): Promise<any> => call(mailbox, method, params, signer, o);

  async function scene(title: string, play: () => Promise<[boolean, string, string[]?]>): Promise<void> {
    const before = requests;
    const start = performance.now();
    const [ok, outcome, lines = []] = await play().catch((e): [boolean, string] => [false, String(e)]);
    report({ scene: { title, outcome, lines, ok, requests: requests - before, ms: performance.now() - start } });
  }

  await scene('a call and its answer', async () => {
    const sum = await ask('add', { a: 2, b: 40 });
    return [sum === 42, `add { a: 2, b: 40 } → ${sum}`];
  });
  await scene('an unknown method', () => refused(ask('divine', {}), -32601));
  await scene('a handler that refuses', () => refused(ask('withdraw', { amount: 100 }), 4001));
  await scene('a handler that crashes', async () => {
    const [ok, outcome] = await refused(ask('crash', {}), -32603);
    return [ok && !outcome.includes('secret'), outcome];
  });
  await scene('junk from a stranger', async () => {
    const stranger = Signer.generate();
    const junk = ['hello?', '[[[[[', '{"jsonrpc":"2.0","id":1,"result":"forged"}', '{"jsonrpc":"1.0","method":7}'];
    for (const text of junk) await stranger.say(mailbox, text, { base });
    await stranger.say(replyTo, '{"jsonrpc":"2.0","id":"guess","result":"forged"}', { base });
    const unsigned = await say(mailbox, 'bob', 'let me in', { base }).then(
      () => 'stored',
      (e) => (TechnocoreError.is(e) ? e.code : String(e)),
    );
    const sum = await ask('add', { a: 1, b: 1 });
    return [
      sum === 2 && unsigned === 'forbidden',
      `${junk.length + 1} frames ignored, unsigned line ${unsigned}; add → ${sum}`,
    ];
  });
  await scene('64 calls at once', async () => {
    const sums: number[] = await Promise.all(Array.from({ length: 64 }, (_, i) => ask('add', { a: i, b: i })));
    const right = sums.filter((sum, i) => sum === 2 * i).length;
    return [right === 64, `${right} right answers through one pair of mailboxes`];
  });
  await mcpScenes(scene, mailbox, signer, o);
  await a2aScenes(scene, mailbox, signer, o);
  process.disconnect();
}

async function refused(answer: Promise<unknown>, code: number): Promise<[boolean, string]> {
  try {
    return [false, `answered ${JSON.stringify(await answer)}`];
  } catch (e) {
    if (!(e instanceof RpcError)) throw e;
    return [e.rpc.code === code, `error ${e.rpc.code}: ${e.rpc.message}`];
  }
}

// --- the stage ---------------------------------------------------------------------------------------------------

/**
 * Runs the demo.
 *
 * @param cli the program whose `demo --part <name> <url> <mailbox>` plays one part
 * @param o `json`: print a line of JSON for each scene, and nothing else
 * @returns whether every answer was right
 */
export async function demo(
  cli: string,
  print: (line: string) => void,
  { colour, json }: { colour: boolean; json: boolean },
): Promise<boolean> {
  const tell = json ? () => {} : print;
  const paint = (code: number, text: string): string => (colour ? `\x1b[${code}m${text}\x1b[0m` : text);
  const dim = (text: string): string => paint(2, text);
  // Held reads wake every half second, as on the public service. Its rate limits would not allow 64 calls at once.
  const limits = { readsPerMinute: 1e6, writesPerMinute: 1e6, newRoomsPerDay: 1e6, wakeStepMs: 500 };
  const service = createLocalService({ limits });
  const { url, close } = await service.listen();
  const mailbox = 'mb-p-demo-callee';
  const children: ChildProcess[] = [];
  const play = (part: string): ChildProcess => {
    const child = fork(cli, ['demo', '--part', part, url, mailbox], { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    children.push(child);
    return child;
  };
  let ok = true;
  let scenes = 0;
  try {
    tell(`${dim('service ')} ${url} ${dim('embedded, in this process')}`);
    const server = play('callee');
    const dead = once(server, 'exit').then(() => undefined);
    const ready = await Promise.race([once(server, 'message').then(([message]) => message as Report), dead]);
    if (!ready || !('ready' in ready)) throw new Error('the callee did not start');
    tell(`${dim('callee  ')} ${mailbox} ${dim(`process ${server.pid}, ${ready.ready.slice(0, 20)}…`)}`);
    const client = play('caller');
    tell(`${dim('caller  ')} mb-p-demo-caller ${dim(`process ${client.pid}; neither of the two listens on a port`)}`);
    tell('');
    type Cost = { requests: number; ms: number };
    const show = (title: string, outcome: string, right: boolean, cost?: Cost, lines: string[] = []): void => {
      ok &&= right;
      scenes++;
      const mark = right ? paint(32, '✓') : paint(31, '✗');
      const spent = cost ? dim(`${cost.requests} requests, ${Math.round(cost.ms)} ms`) : '';
      tell(`${mark} ${title.padEnd(24)} ${outcome.padEnd(58)} ${spent}`.trimEnd());
      for (const line of lines) tell(dim(`    ${line}`));
      if (json)
        print(
          JSON.stringify({
            title,
            outcome,
            lines,
            ok: right,
            requests: cost?.requests,
            ms: cost && Math.round(cost.ms),
          }),
        );
    };
    client.on('message', (message: Report) => {
      if (!('scene' in message)) return;
      const { title, outcome, lines, ok: right } = message.scene;
      show(title, outcome, right, message.scene, lines);
    });
    const [code] = await once(client, 'exit');
    ok &&= code === 0 && scenes > 0;
    ok &&= await parley(play, show);
    const { requests, reads, writes } = service.stats;
    tell('');
    tell(dim(`the service saw ${requests} requests: ${reads} reads, ${writes} writes; it called nobody`));
  } finally {
    for (const child of children) child.kill();
    await close();
  }
  tell(ok ? paint(32, 'every answer was right') : paint(31, 'something went wrong'));
  return ok;
}
