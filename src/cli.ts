#!/usr/bin/env node
/**
 * The command line: arguments in, lines out, nothing else.
 *
 * @module
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { demo, parts } from './demo.ts';
import { createLocalService } from './local.ts';
import { Signer, TechnocoreError } from './technocore-rpc.ts';

/** What went wrong with the arguments, for exit code 2. */
class Usage extends Error {}

interface Command {
  usage: string;
  about: string;
  run(args: string[]): Promise<number>;
}

const colour = process.stdout.isTTY === true && !process.env['NO_COLOR'];
const print = (line: string): void => void process.stdout.write(`${line}\n`);

const commands: Record<string, Command> = {
  demo: {
    usage: 'demo',
    about: 'two processes call each other through an embedded service',
    async run(args) {
      const { values, positionals } = parse(args, { part: { type: 'string' } }, true);
      const { part } = values;
      if (part === undefined) return (await demo(fileURLToPath(import.meta.url), print, colour)) ? 0 : 1;
      const play = Object.hasOwn(parts, part) ? parts[part] : undefined;
      if (!play || positionals.length !== 2) throw new Usage('the parts are played by the demo itself');
      await play(positionals[0]!, positionals[1]!);
      return 0;
    },
  },
  local: {
    usage: 'local [--port <port>] [--host <host>]',
    about: 'an embedded service with the limits of the public one, until Ctrl-C',
    async run(args) {
      const { values } = parse(args, { port: { type: 'string' }, host: { type: 'string' } });
      const port = Number(values.port ?? 0);
      if (!Number.isInteger(port) || port < 0 || port > 65_535) throw new Usage('--port takes 0 to 65535');
      const { url, close } = await createLocalService().listen(port, values.host);
      print(url);
      await new Promise<void>((resolve) => {
        process.once('SIGINT', resolve);
        process.once('SIGTERM', resolve);
      });
      await close();
      return 0;
    },
  },
  keygen: {
    usage: 'keygen [--dir <directory>]',
    about: 'a new key: its seed and DID; or, with --dir, a key directory that never shows the seed',
    async run(args) {
      const { values } = parse(args, { dir: { type: 'string' } });
      if (values.dir !== undefined) {
        print((await Signer.fromDir(values.dir)).did);
        return 0;
      }
      const seed = crypto.getRandomValues(new Uint8Array(32));
      print(`seed: ${Buffer.from(seed).toString('hex')}`);
      print(`did:  ${Signer.fromSeed(seed).did}`);
      return 0;
    },
  },
  did: {
    usage: 'did [--dir <directory>]',
    about: 'the DID of the key in $SIGN_SEED (64 hex digits or a passphrase), or of a key directory',
    async run(args) {
      const { values } = parse(args, { dir: { type: 'string' } });
      const seed = process.env['SIGN_SEED'];
      if (values.dir === undefined && seed) print(Signer.fromPassphrase(seed).did);
      // Looking must not make a key.
      else if (values.dir !== undefined && !existsSync(join(values.dir, 'seed')))
        throw new Usage(`no key in ${values.dir}`);
      else print((await Signer.fromDir(values.dir)).did);
      return 0;
    },
  },
};

function parse<T extends Record<string, { type: 'string' | 'boolean' }>>(
  args: string[],
  options: T,
  allowPositionals = false,
) {
  try {
    return parseArgs({ args, options, allowPositionals, strict: true });
  } catch (e) {
    throw new Usage((e as Error).message);
  }
}

function help(): string {
  const width = Math.max(...Object.values(commands).map(({ usage }) => usage.length));
  const lines = Object.values(commands).map(({ usage, about }) => `  ${usage.padEnd(width)}  ${about}`);
  return `Usage: technocore-rpc <command>\n\n${lines.join('\n')}`;
}

async function main([name, ...args]: string[]): Promise<number> {
  if (name === undefined || name === 'help' || name === '--help' || name === '-h') {
    print(help());
    return name === undefined ? 2 : 0;
  }
  if (name === '--version') {
    print(JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')).version);
    return 0;
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
  if (!command) throw new Usage(`there is no command ${JSON.stringify(name)}`);
  if (args.includes('--help') || args.includes('-h')) {
    print(`Usage: technocore-rpc ${command.usage}\n\n${command.about}`);
    return 0;
  }
  return command.run(args);
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (e) {
  if (e instanceof Usage) process.stderr.write(`${e.message}\n\n${help()}\n`);
  else
    process.stderr.write(`${TechnocoreError.is(e) ? `${e.code}: ${e.message}` : String((e as Error)?.stack ?? e)}\n`);
  process.exitCode = e instanceof Usage ? 2 : 1;
}
