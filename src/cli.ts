#!/usr/bin/env node
/**
 * The command line: arguments in, lines out, nothing else.
 *
 * @module
 */
import { readFileSync } from 'node:fs';
import { callCommands } from './cli-calls.ts';
import { keyCommands } from './cli-keys.ts';
import { Args, type Command, EXIT, failure, helpOf, overview, print, tell, Usage } from './cli-kit.ts';
import { localCommands } from './cli-local.ts';
import { mcpCommands } from './cli-mcp.ts';
import { parleyCommands } from './cli-parley.ts';
import { roomCommands } from './cli-rooms.ts';

/** By name, which may be of two words. */
const commands: Record<string, Command> = {
  ...localCommands,
  ...keyCommands,
  ...roomCommands,
  ...callCommands,
  ...parleyCommands,
  ...mcpCommands,
};

/** The verb that arguments begin with, and the rest of them. */
function find(argv: string[]): [name: string, args: string[]] {
  for (const length of [2, 1]) {
    const name = argv.slice(0, length).join(' ');
    if (argv.length >= length && Object.hasOwn(commands, name)) return [name, argv.slice(length)];
  }
  throw new Usage(`there is no command ${JSON.stringify(argv[0])}\nSee technocore-rpc --help`);
}

async function main(argv: string[]): Promise<number> {
  const [first] = argv;
  if (first === undefined || first === 'help' || first === '--help' || first === '-h') {
    print(overview(commands));
    return first === undefined ? EXIT.usage : EXIT.ok;
  }
  if (first === '--version') {
    print(JSON.parse(readFileSync(new URL(import.meta.resolve('technocore-rpc/package.json')), 'utf8')).version);
    return EXIT.ok;
  }
  const [name, rest] = find(argv);
  const command = commands[name]!;
  let args: Args | undefined;
  try {
    args = new Args(command, rest);
    if (!args.has('help')) return await command.run(args);
    print(helpOf(name, command));
    return EXIT.ok;
  } catch (e) {
    if (e instanceof Usage) throw new Usage(`${e.message}\nSee technocore-rpc ${name} --help`);
    return args?.isInterrupted ? EXIT.interrupted : failure(e, args?.json === true);
  }
}

// Whoever reads along may have enough before we are done.
process.stdout.on('error', () => process.exit(EXIT.ok));

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (e) {
  if (!(e instanceof Usage)) throw e;
  tell(e.message);
  process.exitCode = EXIT.usage;
}
