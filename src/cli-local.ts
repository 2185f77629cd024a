/**
 * The command line: the demo and the local service, which work offline.
 *
 * @module
 */
import { fileURLToPath } from 'node:url';
import { getHeapStatistics } from 'node:v8';
import { type Command, EXIT, print, tell, Usage } from './cli-kit.ts';
import { demo, parts } from './demo.ts';
import { MAX_NOTE } from './frames.ts';
import { createLocalService, type Limits } from './local.ts';
import { limitsOf } from './local-limits.ts';

/** A limit that nobody reaches by hand. */
const UNREACHED = 1e9;
/** The limits per address, with their units in words. */
const BUDGETS = {
  readsPerMinute: 'reads a minute',
  writesPerMinute: 'writes a minute',
  newRoomsPerDay: 'new rooms a day',
};
const UNLIMITED: Partial<Limits> = Object.fromEntries(Object.keys(BUDGETS).map((name) => [name, UNREACHED]));

/**
 * The limits per address that can be reached, in words. They are off by default: they would only slow down experiments.
 */
function budgetsIn(limits: Limits): string {
  const reached = Object.entries(BUDGETS).filter(([name]) => limits[name as keyof typeof BUDGETS] < UNREACHED);
  return reached.map(([name, what]) => `${limits[name as keyof typeof BUDGETS]} ${what}`).join(', ');
}

/** Parses the values of `--limit`, each of the form `name=number`. */
function limitsFrom(texts: string[]): Partial<Limits> {
  const known = limitsOf('modern');
  const limits: Record<string, number> = {};
  for (const text of texts) {
    const [name = '', value = ''] = text.split('=');
    if (!Object.hasOwn(known, name)) throw new Usage(`--limit takes one of ${Object.keys(known).join(', ')}`);
    if (!/^\d+(\.\d+)?$/.test(value)) throw new Usage(`--limit ${name}=<number>`);
    limits[name] = Number(value);
  }
  return limits;
}

/**
 * Lowers those limits of the public service that are too high for this process, which keeps everything in memory: rooms
 * and notes may each use a quarter of its heap.
 */
function memoryLimits({ roomBytesTotal, notes }: Limits): Partial<Limits> {
  const share = Math.floor(getHeapStatistics().heap_size_limit / 4);
  // A character takes at most four bytes.
  return {
    roomBytesTotal: Math.min(roomBytesTotal, share),
    notes: Math.min(notes, Math.floor(share / (4 * MAX_NOTE))),
  };
}

/** The commands `demo` and `local`. The demo runs its parts as processes of this same program. */
export const localCommands: Record<string, Command> = {
  demo: {
    args: '',
    about: 'Run the demo: two processes call each other through an embedded service',
    words: [0, 2],
    flags: { part: { value: 'name', about: '', hidden: true } },
    async run(args) {
      const part = args.text('part');
      if (part === undefined) {
        if (args.words.length > 0) throw new Usage('too many arguments');
        const colour = process.stdout.isTTY === true && !process.env['NO_COLOR'];
        const cli = fileURLToPath(new URL('./cli.js', import.meta.url));
        return (await demo(cli, print, { colour, json: args.json })) ? EXIT.ok : EXIT.failed;
      }
      const play = Object.hasOwn(parts, part) ? parts[part] : undefined;
      if (!play || args.words.length !== 2) throw new Usage('only the demo itself starts its parts');
      // When the reader of the output quits, the process of the demo ends, and its parts must end with it.
      for (const end of ['disconnect', 'error']) process.on(end, () => process.exit(EXIT.ok));
      if (!process.connected) return EXIT.failed;
      await play(args.words[0]!, args.words[1]!);
      return EXIT.ok;
    },
  },
  local: {
    args: '',
    about: 'Run an embedded service with the limits of the public one, until Ctrl-C',
    flags: {
      port: { value: 'port', about: 'port to listen on (default: a free one)' },
      host: {
        value: 'address',
        about: 'address to listen on (default: 127.0.0.1); anybody who can reach it can use the service',
      },
      profile: { value: 'modern|0.7', about: 'release to emulate (default: modern, the newest)' },
      unlimited: { about: 'no limits on reads, writes and new rooms' },
      limit: {
        value: 'name=number',
        about: 'set one member of Limits in technocore-rpc/local; repeatable',
        multiple: true,
      },
    },
    more: `Prints its URL, for TECHNOCORE_URL. Everything is lost when it ends. The limits per address, which all programs on this
machine share, are printed to stderr; with --json, all limits are printed with the URL.`,
    async run(args) {
      const ended = args.interruption();
      const profile = args.text('profile') ?? 'modern';
      if (profile !== 'modern' && profile !== '0.7') throw new Usage('--profile takes modern or 0.7');
      const port = args.number('port', 0, 65_535) ?? 0;
      const given = { ...(args.has('unlimited') && UNLIMITED), ...limitsFrom(args.all('limit')) };
      const limits = limitsOf(profile, { ...memoryLimits(limitsOf(profile)), ...given });
      const { url, close } = await createLocalService({ profile, limits }).listen(port, args.text('host'));
      print(args.json ? JSON.stringify({ url, limits }) : url);
      const budgets = budgetsIn(limits);
      if (budgets !== '' && !args.json)
        tell(
          `limits for all programs on one address together: ${budgets}; beyond them, programs wait. --unlimited lifts them`,
        );
      args.hint(`In other terminals: export TECHNOCORE_URL=${url}; Ctrl-C here ends it`);
      await ended;
      await close();
      return EXIT.ok;
    },
  },
};
