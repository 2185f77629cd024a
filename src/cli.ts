#!/usr/bin/env node
/**
 * The command line: finds the command that the arguments name, runs it, and turns errors into exit codes.
 *
 * @module
 */
import { readFileSync } from 'node:fs';
import { callCommands } from './cli-calls.ts';
import { keyCommands } from './cli-keys.ts';
import { Args, type Command, EXIT, failure, helpOf, json, misused, overview, print, tell, Usage } from './cli-kit.ts';
import { localCommands } from './cli-local.ts';
import { mcpCommands } from './cli-mcp.ts';
import { parleyCommands } from './cli-parley.ts';
import { roomCommands } from './cli-rooms.ts';
import { serveCommands } from './cli-serve.ts';

/** All commands by name; a name may consist of two words. */
const commands: Record<string, Command> = {
  ...localCommands,
  ...keyCommands,
  ...roomCommands,
  ...callCommands,
  ...serveCommands,
  ...parleyCommands,
  ...mcpCommands,
};

/** Splits the arguments into the name of the command and the rest. @throws a {@link Usage} if there is no such command */
function find(argv: string[]): [name: string, args: string[]] {
  for (const length of [2, 1]) {
    const name = argv.slice(0, length).join(' ');
    if (argv.length >= length && Object.hasOwn(commands, name)) return [name, argv.slice(length)];
  }
  const group = Object.keys(commands).some((name) => name.startsWith(`${argv[0]} `)) ? ` ${argv[0]}` : '';
  const asked = group === '' ? argv[0] : `${argv[0]} ${argv[1]}`;
  throw new Usage(`unknown command ${JSON.stringify(asked)}`, `See technocore-rpc${group} --help`);
}

const HELP = ['help', '--help', '-h'];
const VERSION = ['--version', '-v', '-V'];

/**
 * The overview that arguments ask for: of all commands, or of a group such as `mcp`. Undefined if they name one command.
 */
function helpFor(argv: string[]): string | undefined {
  const [group, second] = HELP.includes(argv[0]!) ? argv.slice(1) : argv;
  if (group === undefined || HELP.includes(group)) return overview(commands);
  if (second !== undefined && !HELP.includes(second)) return undefined;
  const members = Object.entries(commands).filter(([name]) => name.startsWith(`${group} `));
  return members.length > 0 ? overview(Object.fromEntries(members), group) : undefined;
}

async function main(argv: string[]): Promise<number> {
  const [first] = argv;
  const help = helpFor(argv);
  if (help !== undefined) {
    print(help);
    return argv.some((word) => HELP.includes(word)) ? EXIT.ok : EXIT.usage;
  }
  if (HELP.includes(first!)) return main([...argv.slice(1).filter((word) => !HELP.includes(word)), '--help']);
  if (VERSION.includes(first!)) {
    print(JSON.parse(readFileSync(new URL(import.meta.resolve('technocore-rpc/package.json')), 'utf8')).version);
    return EXIT.ok;
  }
  const [name, rest] = find(argv);
  const command = commands[name]!;
  const see = `See technocore-rpc ${name} --help`;
  let args: Args | undefined;
  try {
    args = new Args(command, rest);
    if (!args.has('help')) return await command.run(args);
    print(helpOf(name, command));
    return EXIT.ok;
  } catch (e) {
    if (e instanceof Usage) throw new Usage(e.message, see);
    if (!args) throw e;
    if (args.isInterrupted) return EXIT.interrupted;
    const code = failure(e, args);
    if (code === EXIT.usage && !args.json) tell(see);
    return code;
  }
}

const argv = process.argv.slice(2);
/**
 * Whether `--json` was given, judged without parsing, since the arguments may be wrong. Those after `--` are not ours.
 */
const isJson = (argv.includes('--') ? argv.slice(0, argv.indexOf('--')) : argv).includes('--json');

// A reader such as `head` may quit early, which is fine. Any other write error, such as a full disk, is a failure.
process.stdout.on('error', (cause: NodeJS.ErrnoException) => {
  if (cause.code === 'EPIPE') process.exit(EXIT.ok);
  const message = `the output could not be written: ${cause.message}`;
  tell(isJson ? json({ code: 'failed', message }, true) : message);
  process.exit(EXIT.failed);
});
// A reader of stderr may quit; a server continues without one.
process.stderr.on('error', () => {});

try {
  process.exitCode = await main(argv);
} catch (e) {
  if (!(e instanceof Usage)) throw e;
  process.exitCode = misused(e, isJson);
}
