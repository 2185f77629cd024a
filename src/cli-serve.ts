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

/** The events that are printed even without `--verbose`. */
const LOUD = /^(handler-error|warning)$/;

/** An event as one line of `name=value` pairs, with the messages of errors. */
function eventLine({ kind, ...details }: Event): string {
  const parts = Object.entries(details).map(([name, value]) => {
    const text = value instanceof Error ? value.message : typeof value === 'string' ? value : JSON.stringify(value);
    return `${name}=${shown(String(text)).slice(0, 200)}`;
  });
  return `${kind} ${parts.join(' ')}`.trimEnd();
}

// --- calls in progress -------------------------------------------------------------------------------------------

/** The outcome of a request in words, taken from its answer. */
function outcomeIn(answer: string): string {
  const { error, result } = JSON.parse(answer) as { [member: string]: Json };
  if (isObject(error)) return `error ${error['code']} ${String(error['message']).slice(0, 200)}`;
  return isObject(result) && result['isError'] === true ? 'answered with a tool error' : 'answered';
}

/** What a request asks for: its method and, for an MCP tool call, the name of the tool. */
function askedIn({ method, params }: { [member: string]: unknown } = {}): string {
  const name = method === 'tools/call' && isObject(params) ? params['name'] : undefined;
  return [method, name]
    .filter((word) => typeof word === 'string')
    .map((word) => (word as string).slice(0, 80))
    .join(' ');
}

/**
 * Tracks each request in progress, from its admission by the ledger to its answer, and reports it as a line.
 */
class Calls {
  readonly #print: ((line: string) => void) | undefined;
  /** The requests in progress, by caller and id. */
  readonly #begun = new Map<string, { at: number; name: string }>();

  constructor(print?: (line: string) => void) {
    this.#print = print;
  }

  /** The number of unanswered requests. */
  get size(): number {
    return this.#begun.size;
  }

  /** Wraps a ledger, so that the beginning and the end of each request are noticed. */
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
   * Wraps handlers, so that notifications, which the ledger never answers, are reported too. A proxy preserves the
   * marks that the library puts on a handler.
   */
  named(handlers: Map<string, Handler>): Map<string, Handler> {
    const named = (name: string, handler: Handler): Handler =>
      new Proxy(handler, {
        apply: (target, self, given: [params: unknown, context: CallContext]) => {
          const { from, id } = given[1];
          if (id === undefined) this.#print?.(`${from} ${name} received as a notification`);
          return Reflect.apply(target, self, given);
        },
      });
    return new Map([...handlers].map(([name, handler]) => [name, named(name, handler)]));
  }

  #end(from: string, id: string, how: () => string): void {
    const key = `${from} ${id}`;
    const { at, name } = this.#begun.get(key) ?? {};
    if (at === undefined || !this.#begun.delete(key)) return;
    this.#print?.(`${from} ${name} ${how()}, ${Math.round(performance.now() - at)} ms`);
  }
}

/** How long stopping may take, ms: a minute for the handlers, and the rest to write their answers. */
const DRAIN_MS = 90_000;

// --- the module --------------------------------------------------------------------------------------------------

/** How long a module may take to load before it is suspected to wait for something that never comes, ms. */
const LOADING_MS = 3000;
/**
 * How long the process may stay alive after serving because of what a module left running, ms; enough for the last
 * output to be written.
 */
const LINGER_MS = 250;

/**
 * The command line of the copy of this package that a module imports, if that is not this copy. What the module
 * registers is then in that copy, and its classes are not ours. Undefined if the module imports this copy, or none.
 */
function cliOf(path: string): string | undefined {
  try {
    const manifest = createRequire(path).resolve('technocore-rpc/package.json');
    const { bin } = JSON.parse(readFileSync(manifest, 'utf8'));
    const its = realpathSync(join(dirname(manifest), bin['technocore-rpc']));
    return dirname(its) === dirname(realpathSync(fileURLToPath(import.meta.url))) ? undefined : its;
  } catch {
    // The module cannot import this package at all.
    return undefined;
  }
}

const OFFERS = 'functions (params, context) => result, or `methods`, a Map or an object of them, or `tools`, a Map';

/**
 * Loads a module, and returns what it exports.
 *
 * @throws a {@link Usage} if it cannot be loaded, or awaits a `serve` of its own, which would end only with the process
 */
async function loaded(path: string, file: string, args: Args): Promise<Record<string, unknown>> {
  let late: NodeJS.Timeout | undefined;
  const stuck = new Promise<never>((_, reject) => {
    late = setTimeout(() => {
      const advice = `a module must not serve by itself, but export or register what to serve: ${OFFERS}`;
      // Any other module may just be slow to load.
      if (/\bawait\s+(\w+\.)?serve\s*\(/.test(readFileSync(path, 'utf8')))
        reject(new Usage(`${file} waits for its own serve(): ${advice}`));
      else args.remark('loading', `${file} is still loading; ${advice}`);
    }, LOADING_MS);
  });
  const imported = import(pathToFileURL(path).href).catch((cause) => {
    const { message, code } = cause as NodeJS.ErrnoException;
    throw new Usage(
      `${file} cannot be loaded: ${message}${code === undefined ? `; \`node ${file}\` shows where` : ''}`,
    );
  });
  return Promise.race([imported, stuck]).finally(() => clearTimeout(late));
}

const functionsIn = (value: unknown): [name: string, handler: Handler][] => {
  const entries = value instanceof Map ? [...value] : isObject(value) ? Object.entries(value) : [];
  return entries.filter(([, one]) => typeof one === 'function' && !isClass(one)) as [string, Handler][];
};

/** True for a class: it cannot be called, and its `prototype` cannot be replaced. */
const isClass = (value: object): boolean => Object.getOwnPropertyDescriptor(value, 'prototype')?.writable === false;

/**
 * The methods and tools that a module offers: its export `methods` (a Map, or an object of functions), or else every
 * function it exports; its export `tools`; and all that it registers in this copy of the package. The members of its
 * default export count as exports, for the sake of CommonJS modules.
 */
async function offered(
  path: string,
  file: string,
  args: Args,
): Promise<{ methods: Map<string, Handler>; tools: Map<string, Tool> }> {
  const before = methods.size + tools.size;
  // Newer releases of Node repeat `default` of a CommonJS module as `module.exports`.
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
    // It reads the same `process.argv`, and sets `process.exitCode`.
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
    const short = rounded(event);
    tell(args.json ? json(plain(short), true) : args.inFlags(eventLine(short)));
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

/** The command `serve`. */
export const serveCommands: Record<string, Command> = {
  serve: {
    args: '<module>',
    about: 'Serve the methods and tools of a JavaScript module, until Ctrl-C',
    words: [1, 1],
    flags: {
      ...SERVICE,
      ...KEY,
      mailbox: { value: 'room', about: 'mailbox to serve (default: one derived from the key)' },
      publish: { about: 'write the mailbox to the identity note, so that others can call the DID' },
      allow: { value: 'did', about: 'let only this DID call; repeatable (default: everybody)', multiple: true },
      concurrency: { value: 'count', about: 'maximum number of handlers at a time (default: 16)' },
      claim: { about: 'share the mailbox with other servers that use the same key' },
      state: {
        value: 'directory',
        about: 'store requests and the position in the mailbox there, across restarts; created if missing',
      },
      verbose: { about: 'log each call, and everything refused or skipped, to stderr' },
    },
    more: `The module exports ${OFFERS};
or it registers them with \`methods.set\` and \`tool\` from technocore-rpc. If the module can import a copy of the package, that
copy serves it.
Prints the mailbox and the DID once it is ready. Ctrl-C stops it after the calls in progress are answered; a second Ctrl-C
stops it at once. Exit code ${EXIT.ok} after serving, ${EXIT.interrupted} if it was interrupted before it was ready.`,
    run: served,
  },
};
