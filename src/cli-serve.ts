/**
 * The command line: serving.
 *
 * @module
 */
import { readFileSync, realpathSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import {
  type Args,
  type Command,
  EXIT,
  json,
  KEY,
  ownMailbox,
  plain,
  print,
  rounded,
  SERVICE,
  shown,
  tell,
  Usage,
} from './cli-kit.ts';
import { Files } from './files.ts';
import { isObject, type Json } from './frames.ts';
import {
  type CallContext,
  type Event,
  fileCursor,
  type Handler,
  isDid,
  type Ledger,
  memoryLedger,
  methods,
  publishIdentity,
  serve,
  type Tool,
  tools,
} from './technocore-rpc.ts';

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

// --- what is under way -------------------------------------------------------------------------------------------

/** What became of a request, by the answer that goes back. */
function outcomeIn(answer: string): string {
  const { error, result } = JSON.parse(answer) as { [member: string]: Json };
  if (isObject(error)) return `error ${error['code']} ${String(error['message']).slice(0, 200)}`;
  return isObject(result) && result['isError'] === true ? 'answered with a tool error' : 'answered';
}

/** What a request asks for: its method, and of MCP's which tool. */
function askedIn({ method, params }: { [member: string]: unknown } = {}): string {
  const name = method === 'tools/call' && isObject(params) ? params['name'] : undefined;
  return [method, name]
    .filter((word) => typeof word === 'string')
    .map((word) => (word as string).slice(0, 80))
    .join(' ');
}

/**
 * Sees the requests that are worked on, each from the ledger’s first word to its answer, and tells whoever wants to know.
 */
class Calls {
  readonly #tell: ((line: string) => void) | undefined;
  /** By key and id. */
  readonly #begun = new Map<string, { at: number; name: string }>();

  constructor(told?: (line: string) => void) {
    this.#tell = told;
  }

  /** How many are not answered yet. */
  get size(): number {
    return this.#begun.size;
  }

  /** The ledger, in which requests are seen to begin and to end. */
  seenIn(ledger: Ledger): Ledger {
    return {
      admit: async (message, now) => {
        const admission = await ledger.admit(message, now);
        for (const [i, { id, passing, frame }] of message.requests.entries()) {
          if (admission.verdicts[i]!.kind !== 'new' || passing) continue;
          this.#begun.set(`${message.from} ${id}`, { at: performance.now(), name: askedIn(frame) });
        }
        return admission;
      },
      answer: (from, id, answer) => {
        this.#end(from, id, () => outcomeIn(answer));
        return ledger.answer(from, id, answer);
      },
      forget: (from, id) => {
        this.#end(from, id, () => 'not started');
        return ledger.forget(from, id);
      },
      sent: (from, id) => ledger.sent(from, id),
      pass: (now) => ledger.pass?.(now),
    };
  }

  /**
   * Handlers of which it is told that they begin for what wants no answer. Whatever else is said of them, by marks,
   * stays.
   */
  named(handlers: Map<string, Handler>): Map<string, Handler> {
    const named = (name: string, handler: Handler): Handler =>
      new Proxy(handler, {
        apply: (target, self, given: [params: unknown, context: CallContext]) => {
          const { from, id } = given[1];
          if (id === undefined) this.#tell?.(`${from} ${name} received as a notification`);
          return Reflect.apply(target, self, given);
        },
      });
    return new Map([...handlers].map(([name, handler]) => [name, named(name, handler)]));
  }

  #end(from: string, id: string, how: () => string): void {
    const key = `${from} ${id}`;
    const { at, name } = this.#begun.get(key) ?? {};
    if (at === undefined || !this.#begun.delete(key)) return;
    this.#tell?.(`${from} ${name} ${how()}, ${Math.round(performance.now() - at)} ms`);
  }
}

/** How long the end may take: handlers have a minute, and their answers some time to be written, ms. */
const DRAIN_MS = 90_000;

// --- the module --------------------------------------------------------------------------------------------------

/** After which a module that is still being loaded is likely to wait for something that does not come, ms. */
const LOADING_MS = 3000;
/** How long what a module left running may hold the program once it has served, ms: so long the last words may take. */
const LINGER_MS = 250;

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

const OFFERS = 'functions (params, context) => result, or `methods`, a Map or an object of them, or `tools`, a Map';

/**
 * What a module exports, once it is loaded.
 *
 * @throws Usage it cannot be loaded, or waits for a server of its own, which ends with us
 */
async function loaded(path: string, file: string, args: Args): Promise<Record<string, unknown>> {
  let late: NodeJS.Timeout | undefined;
  const stuck = new Promise<never>((_, reject) => {
    late = setTimeout(() => {
      const advice = `a module must not serve by itself, but export or register what to serve: ${OFFERS}`;
      // Others may have much to load.
      if (/\bawait\s+(\w+\.)?serve\s*\(/.test(readFileSync(path, 'utf8')))
        reject(new Usage(`${file} waits for its own serve(): ${advice}`));
      else args.remark('loading', `${file} is still loading; ${advice}`);
    }, LOADING_MS);
  });
  const imported = import(pathToFileURL(path).href).catch((cause) => {
    throw new Usage(`${file} cannot be loaded: ${(cause as Error).message}`);
  });
  return Promise.race([imported, stuck]).finally(() => clearTimeout(late));
}

const functionsIn = (value: unknown): [name: string, handler: Handler][] => {
  const entries = value instanceof Map ? [...value] : isObject(value) ? Object.entries(value) : [];
  return entries.filter(([, one]) => typeof one === 'function') as [string, Handler][];
};

/**
 * What a module offers: its `methods` (a Map, or an object of functions), else each function that it exports, and what it
 * registers in ours. What its default export holds, as that of a CommonJS module does, counts as exported.
 */
async function offered(
  path: string,
  file: string,
  args: Args,
): Promise<{ methods: Map<string, Handler>; tools: Map<string, Tool> }> {
  const before = methods.size + tools.size;
  // Newer releases of Node show under the other name what `default` shows.
  const { default: main, 'module.exports': _, ...named } = await loaded(path, file, args);
  const whole: Record<string, unknown> = { ...(isObject(main) && main), ...named };
  const own = [...functionsIn(main), ...functionsIn(named)];
  const list = whole['tools'];
  const handlers = whole['methods'] === undefined ? own : functionsIn(whole['methods']);
  if (handlers.length === 0 && !(list instanceof Map) && methods.size + tools.size === before) {
    throw new Usage(
      `${file} neither exports nor registers methods or tools. It may export ${OFFERS}, or register with \`methods.set\` and \`tool\``,
    );
  }
  return { methods: new Map([...methods, ...handlers]), tools: list instanceof Map ? list : tools };
}

// --- serving -----------------------------------------------------------------------------------------------------

async function served(args: Args): Promise<number> {
  const file = args.words[0]!;
  const path = resolve(file);
  const its = cliOf(path);
  if (its !== undefined) {
    // It finds the same arguments, and leaves its exit code there.
    await import(pathToFileURL(its).href);
    return Number(process.exitCode);
  }
  try {
    return await serveOffered(args, await offered(path, file, args));
  } finally {
    setTimeout(() => process.exit(), LINGER_MS).unref();
  }
}

async function serveOffered(
  args: Args,
  { methods: handlers, tools: list }: { methods: Map<string, Handler>; tools: Map<string, Tool> },
): Promise<number> {
  const allowed = args.all('allow');
  const stranger = allowed.find((did) => !isDid(did));
  if (stranger !== undefined) throw new Usage(`--allow takes a did:key, not ${JSON.stringify(stranger)}`);
  const concurrency = args.number('concurrency', 1, 1024);
  const signer = await args.signer();
  const mailbox = args.text('mailbox') ?? ownMailbox(signer, 'serve');
  const state = args.text('state');
  if (state !== undefined) await new Files().makeDir(state);
  const kept = state === undefined ? undefined : await args.ledger(join(state, 'ledger'));
  const isVerbose = args.has('verbose');
  const service = args.patient((event) => {
    if (!isVerbose && !LOUD.test(event.kind)) return;
    const told = rounded(event);
    tell(args.json ? json(plain(told), true) : args.inFlags(eventLine(told)));
  });
  const calls = new Calls(isVerbose ? (line) => args.remark('call', line) : undefined);
  args.tellEnd(DRAIN_MS, () => calls.size);
  let isReady = false;
  try {
    if (args.has('publish')) await publishIdentity(signer, { mailbox }, service);
    await serve(mailbox, signer, {
      ...service,
      methods: calls.named(handlers),
      tools: list,
      ledger: calls.seenIn(kept ?? memoryLedger()),
      drainMs: DRAIN_MS,
      ...(allowed.length > 0 && { allow: (from) => allowed.includes(from) }),
      ...(concurrency !== undefined && { concurrency }),
      ...(args.has('claim') && { claim: true }),
      ...(kept && { cursor: fileCursor(join(state!, 'cursor')) }),
      onReady() {
        isReady = true;
        print(args.json ? json({ mailbox, did: signer.did }, true) : `${mailbox}\n${signer.did}`);
      },
    });
  } finally {
    await kept?.close?.();
  }
  return isReady ? EXIT.ok : EXIT.interrupted;
}

/** `serve`. */
export const serveCommands: Record<string, Command> = {
  serve: {
    args: '<module>',
    about: 'Serve the methods and tools of a JavaScript module, until Ctrl-C',
    words: [1, 1],
    flags: {
      ...SERVICE,
      ...KEY,
      mailbox: { value: 'room', about: 'mailbox to serve (default: one derived from the key)' },
      publish: { about: 'write the mailbox into the identity note, so that others can call the DID' },
      allow: { value: 'did', about: 'let only this DID call; repeatable (default: everybody)', multiple: true },
      concurrency: { value: 'count', about: 'most handlers at a time (default: 16)' },
      claim: { about: 'share the mailbox with other servers that use the same key' },
      state: {
        value: 'directory',
        about: 'keep requests and the position in the mailbox there, across restarts; created if missing',
      },
      verbose: { about: 'log each call, and what was refused or skipped, to stderr' },
    },
    more: `The module exports ${OFFERS};
or it registers them with \`methods.set\` and \`tool\` of technocore-rpc. If the module can import a copy of the package, it is
served by that copy.
Prints the mailbox and the DID once it is ready. Ctrl-C stops it after the calls that were begun are answered; a second Ctrl-C
stops it at once. Exit code ${EXIT.ok} after serving, ${EXIT.interrupted} if it was interrupted before it was ready.`,
    run: served,
  },
};
