/**
 * The command line: calling and serving.
 *
 * @module
 */
import { mkdirSync, readFileSync, realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { text as textOf } from 'node:stream/consumers';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { askedBack } from './cli-ask.ts';
import {
  type Args,
  type Command,
  EXIT,
  type Flag,
  json,
  KEY,
  ownMailbox,
  print,
  SERVICE,
  shown,
  tell,
  Usage,
  waiting,
} from './cli-kit.ts';
import { isObject, type Json } from './frames.ts';
import {
  type CallOptions,
  call,
  type Event,
  fileCursor,
  type Handler,
  isDid,
  mcpCallTool,
  mcpListTools,
  methods,
  notify,
  publishIdentity,
  type Signer,
  serve,
  type Tool,
  type ToolResult,
  tools,
} from './technocore-rpc.ts';

const CALL: Record<string, Flag> = {
  ...SERVICE,
  ...KEY,
  'reply-to': { value: 'mailbox', about: 'where the answer goes; default: one that only this key can name' },
  peer: { value: 'did', about: 'the only key whose answer counts' },
  timeout: { value: 'seconds', about: 'default: 30' },
};

function callOptions(args: Args, signer: Signer): CallOptions & { replyTo: string } {
  const [peer, timeoutMs] = [args.text('peer'), args.ms('timeout')];
  if (peer !== undefined && !isDid(peer)) throw new Usage('--peer takes a did:key');
  return {
    ...args.service,
    replyTo: args.text('reply-to') ?? ownMailbox(signer, 'reply'),
    ...(peer !== undefined && { peer }),
    ...(timeoutMs !== undefined && { timeoutMs }),
  };
}

/** What stands on the command line, or for `-` on the standard input, as JSON. */
async function jsonFrom(word: string | undefined): Promise<Json | undefined> {
  if (word === undefined) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(word === '-' ? await textOf(process.stdin) : word);
  } catch (e) {
    throw new Usage(`not JSON: ${(e as Error).message}`);
  }
  if (!isObject(value) && !Array.isArray(value)) throw new Usage('parameters are a JSON object, or an array');
  return value as Json;
}

/** What to do about an answer that asks back. */
function adviceFor(result: Json, to: string): string | undefined {
  if (!isObject(result)) return undefined;
  if (result['resultType'] === 'input_required')
    return `It asks back. Who can answer: technocore-rpc tools ${shown(to)} …`;
  const task = isObject(result['task']) ? result['task'] : result;
  const { state } = isObject(task['status']) ? task['status'] : {};
  const isAsking = typeof state === 'string' && /^(TASK_STATE_INPUT_REQUIRED|input-required)$/.test(state);
  return isAsking
    ? `The task asks back. Its answer is a message with the taskId ${shown(String(task['id']))}.`
    : undefined;
}

// --- tools -------------------------------------------------------------------------------------------------------

function printResult(args: Args, result: ToolResult): void {
  if (args.json) {
    print(json(result, true));
    return;
  }
  for (const block of result.content) {
    const { type, text } = block as { type: string; text?: unknown };
    print(typeof text === 'string' ? text.split('\n').map(shown).join('\n') : json({ ...block, type }, false));
  }
}

function printTools(args: Args, list: Tool[]): void {
  for (const { name, description, inputSchema } of list) {
    if (args.json) print(json({ name, description, inputSchema }, true));
    else print(`${shown(name)}  ${shown(description ?? '')}\n  ${json(inputSchema, true)}`);
  }
}

// --- serving -----------------------------------------------------------------------------------------------------

/** Events that their owner wants to see in any case. */
const LOUD = /^(handler-error|warning)$/;

/** An event in one line: names and numbers, and what went wrong. */
function eventLine({ kind, ...details }: Event): string {
  const told = Object.entries(details).map(([name, value]) => {
    const text = value instanceof Error ? value.message : typeof value === 'string' ? value : JSON.stringify(value);
    return `${name}=${shown(String(text)).slice(0, 200)}`;
  });
  return `${kind} ${told.join(' ')}`.trimEnd();
}

/** Tells of each call how it went. */
function watched(handlers: Map<string, Handler>): Map<string, Handler> {
  const watch =
    (name: string, handler: Handler): Handler =>
    async (params, context) => {
      const begun = performance.now();
      const done = (how: string): void =>
        tell(`${shown(context.from)} ${shown(name)} ${how}, ${Math.round(performance.now() - begun)} ms`);
      try {
        const result = await handler(params, context);
        done('answered');
        return result;
      } catch (e) {
        done('failed');
        throw e;
      }
    };
  return new Map([...handlers].map(([name, handler]) => [name, watch(name, handler)]));
}

/** After which a module that is still being loaded is likely to wait for something that does not come, ms. */
const LOADING_MS = 3000;

/**
 * The command line of the copy of this package that a module imports, when it is not this one: what the module registers
 * lies in that copy, and its classes are not ours.
 */
function cliOf(path: string): string | undefined {
  try {
    const manifest = createRequire(path).resolve('technocore-rpc/package.json');
    const { bin } = JSON.parse(readFileSync(manifest, 'utf8'));
    const its = realpathSync(join(dirname(manifest), bin['technocore-rpc']));
    return dirname(its) === dirname(realpathSync(fileURLToPath(import.meta.url))) ? undefined : its;
  } catch {
    // It can import none.
    return undefined;
  }
}

/**
 * What a module offers: its `methods` (a Map, or an object of functions), else each function that it exports, and what it
 * registers in ours.
 */
async function offered(
  path: string,
  file: string,
): Promise<{ methods: Map<string, Handler>; tools: Map<string, Tool> }> {
  const before = methods.size + tools.size;
  let module: Record<string, unknown>;
  const late = setTimeout(
    () =>
      tell(`${file} is still being loaded; it must not serve by itself, but export or register what is to be served`),
    LOADING_MS,
  );
  try {
    module = await import(pathToFileURL(path).href);
  } catch (e) {
    throw new Usage(`${file} cannot be loaded: ${(e as Error).message}`);
  } finally {
    clearTimeout(late);
  }
  const named = module['methods'] ?? module;
  const entries = named instanceof Map ? [...named] : Object.entries(named as object);
  const own = entries.filter(([, value]) => typeof value === 'function') as [string, Handler][];
  const list = module['tools'];
  if (own.length === 0 && !(list instanceof Map) && methods.size + tools.size === before) {
    throw new Usage(`${file} neither exports nor registers methods or tools`);
  }
  return { methods: new Map([...methods, ...own]), tools: list instanceof Map ? list : tools };
}

async function served(args: Args): Promise<number> {
  const file = args.words[0]!;
  const path = resolve(file);
  const its = cliOf(path);
  if (its !== undefined) {
    // It finds the same arguments, and leaves its exit code there.
    await import(pathToFileURL(its).href);
    return Number(process.exitCode);
  }
  const { methods: handlers, tools: list } = await offered(path, file);
  const allowed = args.all('allow');
  const stranger = allowed.find((did) => !isDid(did));
  if (stranger !== undefined) throw new Usage(`--allow takes a did:key, not ${JSON.stringify(stranger)}`);
  const concurrency = args.number('concurrency', 1, 1024);
  const signer = await args.signer();
  const mailbox = args.text('mailbox') ?? ownMailbox(signer, 'serve');
  const state = args.text('state');
  if (state !== undefined) mkdirSync(state, { recursive: true, mode: 0o700 });
  const ledger = state === undefined ? undefined : await args.ledger(join(state, 'ledger'));
  const isVerbose = args.has('verbose');
  const service = args.patient((event) => {
    if (isVerbose || LOUD.test(event.kind)) tell(eventLine(event));
  });
  let isReady = false;
  try {
    if (args.has('publish')) await publishIdentity(signer, { mailbox }, service);
    await serve(mailbox, signer, {
      ...service,
      methods: isVerbose ? watched(handlers) : handlers,
      tools: list,
      ...(allowed.length > 0 && { allow: (from) => allowed.includes(from) }),
      ...(concurrency !== undefined && { concurrency }),
      ...(args.has('claim') && { claim: true }),
      ...(ledger && { ledger, cursor: fileCursor(join(state!, 'cursor')) }),
      onReady() {
        isReady = true;
        print(args.json ? json({ mailbox, did: signer.did }, true) : `${mailbox}\n${signer.did}`);
      },
    });
  } finally {
    await ledger?.close?.();
  }
  return isReady ? EXIT.ok : EXIT.interrupted;
}

/** `call`, `tools` and `serve`. */
export const callCommands: Record<string, Command> = {
  call: {
    args: '<to> <method> [params]',
    about: 'calls a method of another agent and prints what it answers',
    words: [2, 3],
    flags: {
      ...CALL,
      retry: { value: 'times', about: 'how many times more it is asked within the time; default: 0' },
      notify: { about: 'send it as a notification: no answer, and none is waited for' },
    },
    more: `<to> is a mailbox or a DID; [params] is JSON, like '{"a":1}', - reads it from the standard input. Exit code ${EXIT.refused} when the answer is an error.`,
    async run(args) {
      const [to = '', method = '', word] = args.words;
      const params = await jsonFrom(word);
      const retry = args.number('retry', 0, 100);
      const signer = await args.signer();
      if (args.has('notify')) {
        await notify(to, method, params, signer, args.service);
        return EXIT.ok;
      }
      const o = { ...callOptions(args, signer), ...(retry !== undefined && { retry }) };
      const result = await waiting(`waiting for ${shown(to)}`, call<Json>(to, method, params, signer, o));
      print(json(result, args.json));
      const advice = args.json ? undefined : adviceFor(result, to);
      if (advice !== undefined) tell(advice);
      return EXIT.ok;
    },
  },
  tools: {
    args: '<to> [tool] [arguments]',
    about: 'the MCP tools of another agent, or what one of them gives',
    words: [1, 3],
    flags: CALL,
    more: `[arguments] is a JSON object, - reads it from the standard input. What the tool asks meanwhile
is asked on the terminal. Exit code ${EXIT.refused} when the tool failed, or asked where there is no terminal or --json was said: then
the question is printed.`,
    async run(args) {
      const [to = '', name, word] = args.words;
      const given = (await jsonFrom(word)) ?? {};
      if (Array.isArray(given)) throw new Usage('the arguments of a tool are a JSON object');
      const signer = await args.signer();
      const o = callOptions(args, signer);
      const what = `waiting for ${shown(to)}`;
      if (name === undefined) {
        printTools(args, await waiting(what, mcpListTools(to, signer, o)));
        return EXIT.ok;
      }
      const result = await waiting(
        what,
        mcpCallTool(to, name, given as { [key: string]: Json }, signer, { ...o, onInput: askedBack(args) }),
      );
      printResult(args, result);
      return result.isError ? EXIT.refused : EXIT.ok;
    },
  },
  serve: {
    args: '<module>',
    about: 'serves what a JavaScript module exports, until Ctrl-C',
    words: [1, 1],
    flags: {
      ...SERVICE,
      ...KEY,
      mailbox: { value: 'room', about: 'default: one that only this key can name' },
      publish: { about: 'write the mailbox into the identity note, so that others can call the DID' },
      allow: { value: 'did', about: 'only this key may call; repeatable. Default: everybody', multiple: true },
      concurrency: { value: 'count', about: 'handlers at a time; default: 16' },
      claim: { about: 'share the mailbox with other servers that have the same key' },
      state: {
        value: 'directory',
        about: 'keep requests and the place in the mailbox there, over restarts; made if need be',
      },
      verbose: { about: 'tell on stderr of each call, and of what was refused or skipped' },
    },
    more: `The module exports functions (params, context) => result; or \`methods\`, a Map or an object of them; or \`tools\`, a Map;
or it registers by \`methods.set\` and \`tool\` of technocore-rpc. A module that can import a copy of the package is served by
that copy, wherever this command comes from.
Prints the mailbox and the DID once it serves. Ctrl-C: what was begun is answered first; a second one ends it at once. Exit
code ${EXIT.ok} when it had served, ${EXIT.interrupted} when it was not ready yet.`,
    run: served,
  },
};
