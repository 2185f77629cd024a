/**
 * The command line: connects an MCP server on one machine with a host on another. Neither accepts connections.
 *
 * @module
 */
import { join, resolve } from 'node:path';
import { RoomClientTransport, RoomServerTransport } from './bridge.ts';
import type { Wire } from './bridge-handshake.ts';
import { HttpBridge } from './bridge-http.ts';
import { normalCode, offerPairing, PAIRING_MS, pair, pairingCode } from './bridge-pair.ts';
import { PairsFile } from './bridge-pairs.ts';
import { bridgeHost, bridgeServer, type HostWords } from './bridge-stdio.ts';
import { toHex, utf8 } from './bytes.ts';
import {
  type Args,
  type Command,
  EXIT,
  json,
  KEY,
  keyHome,
  ownMailbox,
  plain,
  print,
  prompted,
  rounded,
  SERVICE,
  shown,
  tell,
  Usage,
  waiting,
} from './cli-kit.ts';
import { hmacSha256 } from './crypto.ts';
import { Files } from './files.ts';
import { environmentUrl } from './http.ts';
import {
  type Event,
  fileCursor,
  isDid,
  isName,
  type Options,
  publishIdentity,
  resolveIdentity,
  roomClasses,
  type Signer,
  TechnocoreError,
} from './technocore-rpc.ts';

const random = (bytes: number): Uint8Array => crypto.getRandomValues(new Uint8Array(bytes));

/** The events that are printed even without `--verbose`. */
const LOUD = new Set([
  'server-stopped',
  'server-unusable',
  'server-ready',
  'lost',
  'bridge-error',
  'unanswered',
  'unkept',
  'unsaved',
]);

/** An event as one line. Text that may be untrusted is cut short and made safe for a terminal. */
function eventLine({ kind, ...detail }: Event): string {
  const time = new Date().toTimeString().slice(0, 8);
  if (kind === 'call') {
    const { method, name, from, ms, outcome } = detail as { [member: string]: string | number | undefined };
    const who = from === undefined ? '' : ` ${`${from}`.slice(-8)}`;
    return shown(
      `${time}${who} ${`${method}`.slice(0, 40)}${name === undefined ? '' : ` ${`${name}`.slice(0, 80)}`} ${outcome} ${ms} ms`,
    );
  }
  // The content of an answer is the caller's business only.
  const { answer: _, ...members } = detail;
  const parts = Object.entries(members).map(([name, value]) => {
    const text =
      value instanceof Error ? value.message : typeof value === 'object' ? JSON.stringify(value) : String(value);
    return `${name}: ${text.slice(0, 200)}`;
  });
  return shown(`${time} ${kind}${parts.length > 0 ? `, ${parts.join(', ')}` : ''}`);
}

const listener = (args: Args): ((event: Event) => void) => {
  const isVerbose = args.has('verbose');
  return (event) => {
    if (!isVerbose && !LOUD.has(event.kind)) return;
    const short = rounded(event);
    tell(args.json ? json(plain({ ...short, answer: undefined }), true) : args.inFlags(eventLine(short)));
  };
};

/** The directory for persistent state; created if it does not exist. */
async function homeOf(args: Args): Promise<string> {
  const home = keyHome(args.text('dir'));
  await new Files().makeDir(home);
  return home;
}

const isMailbox = (name: string): boolean => isName(name) && roomClasses(name).mb;

/** The entry for a server in the configuration file of a host. */
const hostBlock = (name: string, server: object): string =>
  `{\n  "mcpServers": {\n    ${JSON.stringify(name)}: ${JSON.stringify(server)}\n  }\n}`;

/** The command that a host runs to reach a server. */
function connectCommand(mailbox: string, peer: string | undefined, more: string[]): object {
  const args = [
    '-y',
    'technocore-rpc',
    'mcp',
    'connect',
    mailbox,
    ...(peer === undefined ? [] : ['--peer', peer]),
    ...more,
  ];
  return { command: 'npx', args };
}

const baseFlag = (args: Args): string[] => {
  const base = args.text('base') ?? environmentUrl();
  return base === undefined ? [] : ['--base', base];
};

// --- serve -------------------------------------------------------------------------------------------------------

/** Words in commands and paths that do not identify a server. */
const GENERIC = /^(npx|node|npm|exec|bunx?|deno|run|uvx?|python3?|index|main|cli|server|dist|build|lib|src|bin|)$/;

/** A name for a server in a host's configuration: the first word of its command that is not {@link GENERIC}. */
function nameOf(command: string[]): string {
  for (const word of command) {
    if (word.startsWith('-')) continue;
    const parts = word.split(/[\\/]/).map((part) => part.replace(/\.\w+$/, ''));
    const name = parts.reverse().find((part) => !GENERIC.test(part));
    if (name !== undefined) return name.replace(/[^A-Za-z0-9_-]+/g, '-').slice(0, 40);
  }
  return 'server';
}

/** How long the calls in progress may still take when the bridge is stopped, ms. */
const DRAIN_MS = 10_000;

async function serveOne(args: Args): Promise<number> {
  const command = args.words;
  const allowed = new Set(args.all('allow'));
  for (const did of allowed) if (!isDid(did)) throw new Usage(`--allow takes a did:key, not ${JSON.stringify(did)}`);
  const isPublic = args.has('public');
  if (isPublic && (allowed.size > 0 || args.has('pair')))
    throw new Usage('--public lets everybody call; it excludes --allow and --pair');
  const signer = await args.signer();
  // The same key and command always give the same mailbox, which nobody else can guess.
  const mailbox = args.text('mailbox') ?? ownMailbox(signer, `mcp/${JSON.stringify(command)}`);
  if (!isMailbox(mailbox)) throw new Usage('--mailbox takes the name of a mailbox, like mb-p-something-unguessable');
  const home = await homeOf(args);
  const pairs = new PairsFile(join(home, 'mcp-pairs.json'));
  for (const did of await pairs.callersOf(mailbox)) allowed.add(did);
  const onEvent = listener(args);
  const service = args.patient(onEvent);
  const ledger = await args.ledger(join(home, `mcp-${mailbox}.ledger`));
  try {
    const wire = new RoomServerTransport(mailbox, signer, {
      ...service,
      drainMs: DRAIN_MS,
      ...(!isPublic && { allow: (from) => allowed.has(from) }),
      ledger,
      cursor: fileCursor(join(home, `mcp-${mailbox}.cursor`)),
    });
    args.tellEnd(DRAIN_MS, () => wire.unanswered, 'the command to exit');
    const bridged = await bridgeServer(wire, command, { onEvent, isPublic });
    try {
      await waiting('waiting for the server', Promise.race([bridged.ready, bridged.ended]));
      args.signal.throwIfAborted();
      if (isPublic) await publishIdentity(signer, { mailbox }, service);
      announce(args, mailbox, signer, allowed, nameOf(command));
      if (args.has('pair')) void pairOne(args, mailbox, signer, pairs, allowed, service);
      await bridged.ended;
    } finally {
      await bridged.close();
    }
  } finally {
    await ledger.close?.();
  }
  return EXIT.ok;
}

/** Prints what to do on the other machine. */
function announce(args: Args, mailbox: string, { did }: Signer, allowed: Set<string>, name: string): void {
  if (args.json) {
    print(json({ mailbox, did, allowed: args.has('public') ? 'everybody' : [...allowed] }, true));
    return;
  }
  print(`mailbox: ${mailbox}\ndid:     ${did}\n`);
  if (args.has('public')) print('Everybody who knows the mailbox or the DID may call.');
  else if (allowed.size > 0) for (const one of allowed) print(`Allowed: ${one}`);
  else if (!args.has('pair')) print('Nobody may call yet. Use --allow <did> or --pair.');
  const block = hostBlock(name, connectCommand(mailbox, did, baseFlag(args)));
  print(`\nOn the other machine, for the configuration of the MCP host:\n${block}\n`);
}

async function pairOne(
  args: Args,
  mailbox: string,
  signer: Signer,
  pairs: PairsFile,
  allowed: Set<string>,
  service: Options,
): Promise<void> {
  const code = pairingCode(random);
  const onPaired = async (did: string): Promise<void> => {
    await pairs.addCaller(mailbox, did);
    allowed.add(did);
    print(args.json ? json({ paired: did }, true) : `Paired with ${did}, which may call from now on.`);
  };
  const onReady = (): void => {
    if (args.json) print(json({ code, goodForMs: PAIRING_MS }, true));
    else {
      print(`Pairing code: ${code}  (valid for one key and ${PAIRING_MS / 60_000} minutes)`);
      print(
        `On the other machine: npx technocore-rpc mcp connect ${[mailbox, ...baseFlag(args)].join(' ')} --pair ${code}`,
      );
    }
  };
  try {
    const outcome = await offerPairing(mailbox, signer, { ...service, code, onPaired, onReady });
    if (outcome !== 'paired' && !args.signal.aborted)
      args.remark('not_paired', `Nobody was paired: the code is ${outcome}. Restart with --pair for a new one.`);
  } catch (cause) {
    if (!args.signal.aborted) args.remark('not_paired', `Pairing failed: ${(cause as Error).message}`);
  }
}

// --- connect -----------------------------------------------------------------------------------------------------

/** The mailbox of a server, and the DID whose answers are accepted. */
interface Target {
  mailbox: string;
  peer: string | undefined;
}

async function targetOf(args: Args): Promise<Target> {
  const [to = ''] = args.words;
  const peer = args.text('peer');
  if (peer !== undefined && !isDid(peer)) throw new Usage('--peer takes a did:key');
  if (isMailbox(to)) return { mailbox: to, peer };
  if (!isDid(to)) throw new Usage(`${JSON.stringify(to)} is neither a mailbox nor a did:key`);
  const { mailbox, signed } = (await resolveIdentity(to, args.patient())) ?? {};
  if (mailbox === undefined || !signed)
    throw new TechnocoreError('no_identity', `${to} has published no signed mailbox`);
  return { mailbox, peer: to };
}

/** The pairing code of `--pair`; `-` prompts for it. */
async function codeFrom(args: Args, text: string): Promise<string> {
  if (text !== '-') return normalCode(text);
  if (!process.stdin.isTTY) throw new Usage('--pair - needs a terminal to ask for the code');
  const typed = await prompted(args, 'Pairing code: ');
  if (typed === undefined) throw new Usage('no pairing code');
  return normalCode(typed);
}

async function connectOne(args: Args): Promise<number> {
  const port = args.number('http', 0, 65_535);
  const signer = await args.signer();
  const target = await targetOf(args);
  const { mailbox } = target;
  const replyTo = args.text('reply-to') ?? ownMailbox(signer, `mcp-reply/${mailbox}`);
  if (!isMailbox(replyTo)) throw new Usage('--reply-to takes the name of a mailbox');
  const pairs = new PairsFile(join(await homeOf(args), 'mcp-pairs.json'));
  const onEvent = listener(args);
  const o = { ...args.patient(onEvent), replyTo };
  const typed = args.text('pair');
  if (typed !== undefined)
    args.remark('paired', await pairWith(await codeFrom(args, typed), mailbox, signer, pairs, o));
  const paired = (await pairs.serverOf(mailbox))?.did;
  const peer = target.peer ?? paired;
  const connect = (): Wire => new RoomClientTransport(mailbox, signer, { ...o, ...(peer !== undefined && { peer }) });
  const words: HostWords = {
    hint: `is technocore-rpc mcp serve running there, for ${mailbox}?`,
    denied: `start mcp serve on the other machine with --allow ${signer.did}, or with --pair`,
  };
  if (port !== undefined) return overHttp(args, new HttpBridge({ connect, onEvent, ...words }), port);
  if (args.json) tell(json({ mailbox, did: signer.did, peer }, true));
  else {
    tell(`connecting to ${mailbox} as ${signer.did}`);
    if (paired === undefined) tell(`To let this key in, start mcp serve there with: --allow ${signer.did}`);
  }
  if (process.stdin.isTTY) {
    const dir = args.text('dir');
    const own = [...baseFlag(args), ...(dir === undefined ? [] : ['--dir', resolve(dir)])];
    const server = connectCommand(mailbox, peer, own);
    tell(
      `\nAn MCP host starts this command by itself, with this in its configuration:\n${hostBlock('remote', server)}\n`,
    );
    if (typed !== undefined) {
      tell('The two sides are paired; there is nothing more to do here.');
      return EXIT.ok;
    }
    tell('Now waiting for MCP messages on stdin; Ctrl-C quits.');
  }
  const bridged = await bridgeHost(connect(), process.stdin, process.stdout, { onEvent, ...words });
  await Promise.race([bridged.ended, args.interruption()]);
  process.stdin.destroy();
  await bridged.close();
  return EXIT.ok;
}

async function overHttp(args: Args, bridge: HttpBridge, port: number): Promise<number> {
  const url = await bridge.listen(port);
  print(args.json ? json({ url }, true) : url);
  if (!args.json) {
    tell(`For the configuration of an MCP host, as long as this runs:\n${hostBlock('remote', { type: 'http', url })}`);
    tell('Ctrl-C quits.');
  }
  await args.interruption();
  await bridge.close();
  return EXIT.ok;
}

/**
 * Pairs with the server, unless this code has been used before: a host passes the same `--pair` at every start.
 *
 * @returns a sentence that says which of the two happened
 */
async function pairWith(
  code: string,
  mailbox: string,
  signer: Signer,
  pairs: PairsFile,
  o: Options & { replyTo: string },
): Promise<string> {
  const used = toHex(hmacSha256(utf8(code), utf8('technocore-rpc/used')).subarray(0, 16));
  const known = await pairs.serverOf(mailbox);
  if (known?.used === used) return `Already paired with ${known.did}.`;
  const did = await waiting('waiting for the other side to confirm the code', pair(mailbox, code, signer, o));
  await pairs.setServer(mailbox, { did, used });
  return `Paired with ${did}.`;
}

const VERBOSE = { verbose: { about: 'log each call, and other events, to stderr' } };

/** The commands `mcp serve` and `mcp connect`. */
export const mcpCommands: Record<string, Command> = {
  'mcp serve': {
    args: '-- <command> [argument]…',
    about: 'Offer an MCP server that speaks over stdio to hosts elsewhere',
    words: [1, 1000],
    flags: {
      ...SERVICE,
      ...KEY,
      mailbox: { value: 'name', about: 'mailbox to serve (default: one derived from the key and the command)' },
      allow: { value: 'did', about: 'let this DID call; repeatable', multiple: true },
      pair: { about: 'print a code that lets one more key in' },
      public: { about: 'let everybody call' },
      ...VERBOSE,
    },
    more: `Only allowed and paired keys may call; paired ones are remembered in the key directory. Requests reach the command
unchanged: a caller can do whatever the command lets its user do. Options go before --.
Prints the mailbox once the service and the command have answered. A command that dies is restarted, unless it never answered.`,
    run: serveOne,
  },
  'mcp connect': {
    args: '<mailbox or did>',
    about: 'Connect an MCP host here to a server elsewhere, over stdio or HTTP',
    words: [1, 1],
    flags: {
      ...SERVICE,
      ...KEY,
      peer: {
        value: 'did',
        about: 'accept answers only from this DID (default: the paired one, else the first that answers)',
      },
      pair: { value: 'code', about: 'pair with the server, using the code that it printed; - prompts for it' },
      http: {
        value: 'port',
        about: 'serve Streamable HTTP on this port of 127.0.0.1 instead of stdio; 0: a free port',
      },
      'reply-to': { value: 'mailbox', about: 'our mailbox for the answers (default: one derived from the key)' },
      ...VERBOSE,
    },
    more: `An MCP host starts this command and talks to it over stdio. On a terminal it prints what goes into the host’s configuration.
The server’s descriptions and answers are untrusted text, and go to the host unchanged.`,
    run: connectOne,
  },
};
