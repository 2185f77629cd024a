/**
 * The command line: calling.
 *
 * @module
 */
import { text as textOf } from 'node:stream/consumers';
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
import { isRpc } from './dispatch.ts';
import { isObject, type Json } from './frames.ts';
import {
  type CallOptions,
  CallTimeout,
  call,
  isDid,
  mcpCallTool,
  mcpDiscover,
  mcpListTools,
  notify,
  RpcError,
  type Signer,
  TechnocoreError,
  type Tool,
  type ToolResult,
} from './technocore-rpc.ts';
import { MISSING_CAPABILITY } from './toolcall.ts';

const CALL: Record<string, Flag> = {
  ...SERVICE,
  ...KEY,
  'reply-to': { value: 'mailbox', about: 'our mailbox for the answer (default: one derived from the key)' },
  peer: { value: 'did', about: 'accept an answer only from this DID' },
  timeout: {
    value: 'seconds',
    about: 'how long to wait for the answer (default: 30; 5 if the service cannot be reached)',
  },
  retry: { value: 'times', about: 'how often to repeat the request within that time (default: 0)' },
};

function callOptions(args: Args, to: string, signer: Signer): CallOptions & { replyTo: string } {
  const [peer, timeoutMs, retry] = [args.text('peer'), args.ms('timeout'), args.number('retry', 0, 100)];
  if (peer !== undefined && !isDid(peer)) throw new Usage('--peer takes a did:key');
  return {
    ...args.service(
      (cause, ms) => new CallTimeout(to, '', ms, 'no-answer', `the request was not sent yet; ${cause.message}`, cause),
    ),
    replyTo: args.text('reply-to') ?? ownMailbox(signer, 'reply'),
    ...(peer !== undefined && { peer }),
    ...(timeoutMs !== undefined && { timeoutMs }),
    ...(retry !== undefined && { retry }),
  };
}

/** The JSON value of an argument; `-` reads it from the standard input. Undefined if the argument is missing. */
async function jsonFrom(word: string | undefined): Promise<Json | undefined> {
  if (word === undefined) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(word === '-' ? await textOf(process.stdin) : word);
  } catch (e) {
    throw new Usage(`the parameters are not JSON, as in '{"a":1}': ${(e as Error).message}`);
  }
  if (!isObject(value) && !Array.isArray(value)) throw new Usage('the parameters must be a JSON object or array');
  return value as Json;
}

/** The warning after an interrupted call. */
const SENT = 'the request may have been sent, and may still be executed';

/**
 * Rephrases errors whose advice is meant for a program as advice to the person at the keyboard.
 *
 * @throws the rephrased error, or `cause` itself if it needs no rephrasing
 */
function inWords(cause: unknown): never {
  if (!TechnocoreError.is(cause)) throw cause;
  if (cause.code === 'no_reply_address') {
    throw new TechnocoreError(
      cause.code,
      `positional parameters, […], cannot carry the reply address; name them: '{"a":1,"b":2}'`,
      cause,
    );
  }
  if (isRpc(cause, MISSING_CAPABILITY)) {
    const { code, message, data } = cause.rpc;
    throw new RpcError(code, message, data, 'the tool requires a client capability that this command does not have');
  }
  throw cause;
}

/** Advice for a result that asks for input; undefined for any other result. */
function adviceFor(result: Json, to: string): string | undefined {
  if (!isObject(result)) return undefined;
  if (result['resultType'] === 'input_required')
    return `The answer is a question. To answer it here, use: technocore-rpc tools ${shown(to)} …`;
  const task = isObject(result['task']) ? result['task'] : result;
  const { state } = isObject(task['status']) ? task['status'] : {};
  const isAsking = typeof state === 'string' && /^(TASK_STATE_INPUT_REQUIRED|input-required)$/.test(state);
  return isAsking
    ? `The task asks for input. Reply with a message that has the taskId ${shown(task['id'])}.`
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

/** The commands for calls and tools. */
export const callCommands: Record<string, Command> = {
  call: {
    args: '<to> <method> [params]',
    about: 'Call a method of another agent and print the result',
    words: [2, 3],
    flags: {
      ...CALL,
      notify: { about: 'send a notification, without waiting for an answer' },
    },
    more: `<to> is a mailbox or a DID. [params] is JSON, as in '{"a":1}'; if it is -, it is read from stdin. Exit code ${EXIT.refused} if the
answer is an error.`,
    async run(args) {
      const [to = '', method = '', word] = args.words;
      const params = await jsonFrom(word);
      const signer = await args.signer();
      if (args.has('notify')) {
        await args.risking(SENT, notify(to, method, params, signer, args.service()));
        return EXIT.ok;
      }
      const o = callOptions(args, to, signer);
      const calling = args.risking(SENT, call<Json>(to, method, params, signer, o).catch(inWords));
      const result = await waiting(`waiting for ${shown(to)}`, calling);
      print(json(result, args.json));
      const advice = args.json ? undefined : adviceFor(result, to);
      if (advice !== undefined) tell(advice);
      return EXIT.ok;
    },
  },
  tools: {
    args: '<to> [tool] [arguments]',
    about: 'List the MCP tools of another agent, or call one of them',
    words: [1, 3],
    flags: CALL,
    more: `[arguments] is a JSON object; if it is -, it is read from stdin. The tool’s questions are asked on the terminal. Without a
terminal, or with --json, the question is printed instead, and the exit code is ${EXIT.refused}. It is also ${EXIT.refused} if the tool failed.`,
    async run(args) {
      const [to = '', name, word] = args.words;
      const given = (await jsonFrom(word)) ?? {};
      if (Array.isArray(given)) throw new Usage('the arguments of a tool must be a JSON object');
      const signer = await args.signer();
      const o = callOptions(args, to, signer);
      const what = `waiting for ${shown(to)}`;
      if (name === undefined) {
        printTools(args, await waiting(what, mcpListTools(to, signer, o)));
        return EXIT.ok;
      }
      const use = (): Promise<ToolResult> =>
        mcpCallTool(to, name, given as object, signer, { ...o, onInput: askedBack(args) });
      const calling = use().catch(async (cause) => {
        if (!TechnocoreError.is(cause) || cause.code !== 'frame_too_long') throw cause;
        // The server may accept requests that are too long for a message; discovery tells.
        await mcpDiscover(to, signer, o);
        return use();
      });
      const result = await waiting(what, args.risking(SENT, calling.catch(inWords)));
      printResult(args, result);
      return result.isError ? EXIT.refused : EXIT.ok;
    },
  },
};
