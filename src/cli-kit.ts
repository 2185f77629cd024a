/**
 * What all commands share: flags and help, output, Ctrl-C, and exit codes.
 *
 * @module
 */
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { toHex } from './bytes.ts';
import { following } from './clock.ts';
import { blanked } from './frames.ts';
import { neverSent, onAbort, shownBase, transportOf } from './http.ts';
import {
  type Event,
  fileLedger,
  type Ledger,
  type Options,
  Signer,
  systemClock,
  TechnocoreError,
} from './technocore-rpc.ts';

/** Exit codes. Scripts may rely on them. */
export const EXIT = {
  ok: 0,
  /** Any failure without its own code. */
  failed: 1,
  /** Wrong arguments; nothing was done. */
  usage: 2,
  /** The answer is an error, a tool's failure or question, or a signature that does not verify. */
  refused: 3,
  /** No answer in time, or no service: trying again may help. */
  noAnswer: 4,
  /** Interrupted by Ctrl-C before it was done. */
  interrupted: 130,
} as const;

/** Wrong arguments, with a pointer to the help that describes the right ones. */
export class Usage extends Error {
  readonly see: string;
  constructor(message: string, see = '') {
    super(message);
    this.see = see;
  }
}

/** An option of a command. */
export interface Flag {
  /** The name of its value in the help; absent for a flag without a value. */
  value?: string;
  about: string;
  /** True if it may be given several times. */
  multiple?: true;
  /** True if the help does not mention it. */
  hidden?: true;
}

/** A command. */
export interface Command {
  /** The words after its name, as the help shows them, such as `<room> [text]`. */
  args: string;
  about: string;
  flags?: Record<string, Flag>;
  /** The minimum and maximum number of words after its name. Default: none. */
  words?: readonly [least: number, most: number];
  /** Further text for its own help. */
  more?: string;
  /** @returns the exit code */
  run(args: Args): Promise<number>;
}

/** The flags of commands that talk to a service. */
export const SERVICE: Record<string, Flag> = {
  base: { value: 'url', about: 'URL of the service (default: $TECHNOCORE_URL, else https://technocore.chat)' },
};

/** The flags of commands that sign. */
export const KEY: Record<string, Flag> = {
  dir: { value: 'directory', about: 'key directory, created on first use (default: $SIGN_SEED, else ~/.technocore)' },
};

/** How long a command waits for a service that does not answer before it says so, ms. */
const SILENCE_MS = 1500;
/** How long stopping may take in silence when no call is in progress, ms. */
const ENDING_MS = 1000;
/**
 * How long connecting to a service is attempted if that has never succeeded, from the first failure on, ms: long enough
 * for one that is just starting, and short enough for a wrong address.
 */
const UNREACHED_MS = 5000;
/** The shortest and the longest interval between two remarks that a service does not answer, ms. */
const OUTAGE_MS = [10_000, 600_000] as const;

/** The error of an event that reports an unavailable service; undefined for any other event. */
function outageIn({ kind, cause }: Event): TechnocoreError | undefined {
  return kind === 'retry' && TechnocoreError.is(cause) && cause.code === 'unavailable' ? cause : undefined;
}

const ALL: Record<string, Flag> = {
  json: { about: 'print JSON instead of text, one value per line' },
  help: { about: 'show this help (also -h)' },
};

/** The flags for library options that have a different name here. */
const FLAG_OF = new Map([
  ['timeoutMs', 'timeout'],
  ['replyTo', 'reply-to'],
]);

// --- arguments ---------------------------------------------------------------------------------------------------

/** The parsed arguments of a run, and what depends on them: library options, remarks, and interruption. */
export class Args {
  readonly words: string[];
  readonly json: boolean;
  readonly #flags: Record<string, Flag>;
  readonly #values: Record<string, unknown>;
  readonly #begun = performance.now();
  #isOutageTold = false;
  #interrupt: AbortController | undefined;

  constructor(command: Command, args: string[]) {
    this.#flags = { ...command.flags, ...ALL };
    const options = Object.fromEntries(
      Object.entries(this.#flags).map(([name, { value, multiple }]) => [
        name,
        { type: value === undefined ? ('boolean' as const) : ('string' as const), multiple: multiple === true },
      ]),
    );
    try {
      const parsed = parseArgs({
        args,
        options: { ...options, help: { type: 'boolean', short: 'h' } },
        allowPositionals: true,
        strict: true,
      });
      this.#values = parsed.values;
      this.words = parsed.positionals;
    } catch (e) {
      throw new Usage((e as Error).message);
    }
    this.json = this.has('json');
    if (this.has('help')) return;
    const [least, most] = command.words ?? [0, 0];
    if (this.words.length < least) throw new Usage(`${command.args.match(/<[^>]+>/g)?.[this.words.length]} is missing`);
    if (this.words.length > most) throw new Usage(`too many arguments: ${JSON.stringify(this.words[most])}`);
  }

  has(name: string): boolean {
    return this.#values[name] === true;
  }

  text(name: string): string | undefined {
    return this.#values[name] as string | undefined;
  }

  all(name: string): string[] {
    return (this.#values[name] as string[] | undefined) ?? [];
  }

  /** The value of a flag as a number. @throws a {@link Usage} unless it is from `least` to `most` */
  number(name: string, least: number, most: number, isWhole = true): number | undefined {
    const text = this.text(name);
    if (text === undefined) return undefined;
    const n = Number(text);
    if (text.trim() !== '' && n >= least && n <= most && (!isWhole || Number.isInteger(n))) return n;
    throw new Usage(`--${name} takes a number from ${least} to ${most}`);
  }

  /** The value of a flag that is given in seconds, as ms. @throws a {@link Usage} unless it is from 1 ms to a day */
  ms(name: string): number | undefined {
    const seconds = this.number(name, 0.001, 86_400, false);
    return seconds === undefined ? undefined : seconds * 1000;
  }

  /**
   * Aborts at Ctrl-C, at SIGTERM, or when the terminal is closed (SIGHUP); the second signal ends the process at once.
   * From the first access on, the process no longer ends at the first signal by itself.
   */
  get signal(): AbortSignal {
    if (!this.#interrupt) {
      const interrupt = new AbortController();
      const onSignal = (name: NodeJS.Signals): void => {
        if (interrupt.signal.aborted) process.exit(EXIT.interrupted);
        interrupt.abort(new Error(name));
      };
      process.on('SIGINT', onSignal);
      process.on('SIGTERM', onSignal);
      process.on('SIGHUP', onSignal);
      this.#interrupt = interrupt;
    }
    return this.#interrupt.signal;
  }

  /** Calls `run`, which must not throw, when {@link signal} aborts; at once if it has aborted. */
  onInterrupt(run: () => void): void {
    const { signal } = this;
    if (signal.aborted) run();
    else onAbort(signal, run);
  }

  /** Resolves when {@link signal} aborts, or has aborted. */
  interruption(): Promise<void> {
    return new Promise((resolve) => this.onInterrupt(resolve));
  }

  get isInterrupted(): boolean {
    return this.#interrupt?.signal.aborted === true;
  }

  /**
   * Rewrites a message of the library in terms of flags: `the option timeoutMs` becomes `--timeout`, if this command
   * has that flag.
   */
  inFlags(text: string): string {
    return text.replace(/\b(?:the )?option (\w+)/g, (words, option: string) => {
      const flag = FLAG_OF.get(option) ?? option;
      return Object.hasOwn(this.#flags, flag) ? `--${flag}` : words;
    });
  }

  /** Prints something beside the result, on stderr. */
  remark(code: string, message: string): void {
    tell(this.json ? json({ code, message }, true) : shown(message));
  }

  /** Tells a person at a terminal what to do next; scripts have the help. */
  hint(line: string): void {
    if (process.stdin.isTTY && !this.json) tell(line);
  }

  /** Awaits work that has effects elsewhere; if the user interrupts it, prints `what` about those effects. */
  async risking<T>(what: string, work: Promise<T>): Promise<T> {
    try {
      return await work;
    } catch (cause) {
      if (this.isInterrupted) this.remark('interrupted', `interrupted; ${what}`);
      throw cause;
    }
  }

  get #reach(): Options & { signal: AbortSignal } {
    const base = this.text('base');
    return { signal: this.signal, ...(base !== undefined && { base }) };
  }

  #tellOutage(cause: TechnocoreError): void {
    const base = shownBase(transportOf(this.#reach).base);
    const how = this.inFlags(cause.message.replace(`${base} `, ''));
    this.remark(cause.code, `the service at ${base} does not answer (${how}); trying again`);
  }

  /**
   * The options for a command that ends by itself. If the service does not answer, the user is notified once, after a
   * while. If no connection was ever established, the command fails soon after that, unless `--timeout` was given.
   *
   * @param unreached makes the error for that failure from its cause and the time since the start. Default: the cause
   */
  service(unreached: (cause: TechnocoreError, afterMs: number) => TechnocoreError = (cause) => cause): Options {
    const { signal, ...reach } = this.#reach;
    const { stop } = following(signal);
    const isPatient = this.text('timeout') !== undefined;
    let [isReached, isFailing] = [false, false];
    const watched: typeof fetch = async (...request) => {
      try {
        const response = await fetch(...request);
        isReached = true;
        return response;
      } catch (cause) {
        isReached ||= !neverSent(cause);
        throw cause;
      }
    };
    const onEvent = (event: Event): void => {
      const cause = outageIn(event);
      if (!cause) return;
      if (!isFailing && !isPatient) {
        isFailing = true;
        const giveUp = (): void => {
          if (!isReached) stop.abort(unreached(cause, Math.round(performance.now() - this.#begun)));
        };
        setTimeout(giveUp, UNREACHED_MS).unref();
      }
      if (this.#isOutageTold || performance.now() - this.#begun < SILENCE_MS) return;
      this.#isOutageTold = true;
      this.#tellOutage(cause);
    };
    return { ...reach, fetch: watched, signal: stop.signal, onEvent };
  }

  /**
   * The options for a command that runs until it is stopped. If the service does not answer, the user is notified at the
   * first failure, and then at growing intervals.
   */
  patient(onEvent: (event: Event) => void = () => {}): Options {
    let [spacing, quietUntil, last]: [number, number, number] = [OUTAGE_MS[0], 0, Number.NEGATIVE_INFINITY];
    const withOutages = (event: Event): void => {
      const cause = outageIn(event);
      if (cause) {
        const now = performance.now();
        if (now - last > OUTAGE_MS[1]) [spacing, quietUntil] = [OUTAGE_MS[0], 0];
        last = now;
        if (now >= quietUntil) {
          quietUntil = now + spacing;
          spacing = Math.min(2 * spacing, OUTAGE_MS[1]);
          this.#tellOutage(cause);
        }
      }
      onEvent(event);
    };
    return { ...this.#reach, onEvent: withOutages };
  }

  /**
   * Once the user stops a server, says what it still waits for.
   *
   * @param drainMs how long the calls in progress may still take, ms
   * @param calls returns the number of calls in progress
   * @param rest what it waits for when there are none
   */
  tellEnd(drainMs: number, calls: () => number, rest = 'the last writes'): void {
    const say = (what: string): void =>
      this.remark('ending', `waiting for ${what}, ${drainMs / 1000} s at most; press Ctrl-C again to quit at once`);
    this.onInterrupt(() => {
      const count = calls();
      if (count > 0) say(`${count} ${count === 1 ? 'call' : 'calls'}`);
      else setTimeout(() => say(rest), ENDING_MS).unref();
    });
  }

  /** Opens a ledger in a file. Ctrl-C ends the wait for another process that still holds it. */
  ledger(path: string): Promise<Ledger> {
    const sleep: typeof systemClock.sleep = (ms, signal = this.signal) => systemClock.sleep(ms, signal);
    return fileLedger(path, {}, { now: systemClock.now, sleep });
  }

  /** The key to sign with. If there is none yet, creates one and says so. */
  async signer(): Promise<Signer> {
    const dir = this.text('dir');
    const seed = process.env['SIGN_SEED'];
    if (dir === undefined && seed) {
      if (isAlmostSeed(seed)) {
        const how = `SIGN_SEED has ${seed.length} characters, but a seed is exactly 64 hex digits`;
        this.remark('warning', `warning: ${how}. It is used as a passphrase, which gives a different key`);
      }
      return Signer.fromPassphrase(seed);
    }
    const isNew = !hasKey(dir);
    const signer = await Signer.fromDir(dir);
    if (isNew) this.remark('new_key', `created a new key, ${signer.did}, in ${keyHome(dir)}`);
    return signer;
  }
}

/** Whether a passphrase looks like a mistyped seed: a few digits too many or too few, `0x`, or blanks around it. */
function isAlmostSeed(text: string): boolean {
  const digits = text.trim().replace(/^0x/i, '');
  return /^[0-9a-f]{62,66}$/i.test(digits) && !/^[0-9a-f]{64}$/i.test(text);
}

/** The directory of a key. Default: `~/.technocore`. */
export const keyHome = (dir: string | undefined): string => dir ?? join(homedir(), '.technocore');

/** Whether a key directory holds a key. */
export const hasKey = (dir: string | undefined): boolean => existsSync(join(keyHome(dir), 'seed'));

/** A mailbox derived from the key: nobody else can guess its name, and each run gets the same. */
export const ownMailbox = (signer: Signer, purpose: string): string =>
  `mb-p-${toHex(signer.derive(`mailbox/${purpose}`).subarray(0, 12))}`;

// --- output ------------------------------------------------------------------------------------------------------

/** Prints a line of the result. */
export const print = (line: string): void => void process.stdout.write(`${line}\n`);
/** Prints what is not the result on stderr, so that the result can be piped. */
export const tell = (line: string): void => void process.stderr.write(`${isWaiting ? CLEAR : ''}${line}\n`);

/**
 * A stranger's text as one line that is safe to print on a terminal: without escape sequences, and without characters
 * that change the direction of writing. Other values are shown as JSON, since an object of a stranger may have a member
 * named `toString`.
 */
export const shown = (value: unknown): string => blanked(typeof value === 'string' ? value : json(value, true));

/** JSON text, on one line or indented. Characters that could affect a terminal are escaped. */
export function json(value: unknown, isCompact: boolean): string {
  const text = JSON.stringify(value, null, isCompact ? undefined : 2) ?? 'null';
  return text.replace(
    /[\x7f-\x9f\p{Cf}\p{Zl}\p{Zp}]/gu,
    (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, '0')}${lowHalf(found)}`,
  );
}

const lowHalf = (found: string): string => (found.length > 1 ? `\\u${found.charCodeAt(1).toString(16)}` : '');

/** The escape sequence that clears the current line of a terminal. */
const CLEAR = '\r\x1b[2K';
/** True while the last line of the terminal may show the progress of {@link waiting}. */
let isWaiting = false;
/** True while the user is asked a question; {@link waiting} then shows nothing. */
let isPrompting = false;

/** Awaits work; on a terminal, shows meanwhile what it is and for how long it has taken. */
export async function waiting<T>(what: string, work: Promise<T>): Promise<T> {
  const { stderr } = process;
  if (!stderr.isTTY) return work;
  const begun = performance.now();
  isWaiting = true;
  const timer = setInterval(() => {
    if (!isPrompting) stderr.write(`${CLEAR}${what} … ${Math.round((performance.now() - begun) / 1000)} s`);
  }, 1000);
  try {
    return await work;
  } finally {
    clearInterval(timer);
    isWaiting = false;
    stderr.write(CLEAR);
  }
}

/** The error codes for wrong arguments. They are thrown before anything is done. */
const WRONG_INPUT = /^(bad_(name|option|params|code|invite)|no_reply_address|empty_text|frame_too_long)$/;

/** The error codes after which another try may succeed. */
const NO_ANSWER = /^(call_timeout|not_offered|unavailable|rate_limited)$/;

/** The lines that were typed or pasted before their question was asked; undefined means the end of the input. */
const typedAhead: (string | undefined)[] = [];
/** The beginning of the next line, as typed so far. */
let begunAhead = '';

/**
 * Asks a question, and returns the line that the user types; undefined at the end of the input.
 *
 * @throws the reason of the signal, at Ctrl-C
 */
export async function prompted({ signal }: Args, question: string): Promise<string | undefined> {
  signal.throwIfAborted();
  if (typedAhead.length > 0) {
    const line = typedAhead.shift();
    tell(`${question}${shown(line ?? '')}`);
    return line;
  }
  const terminal = createInterface({ input: process.stdin, output: process.stderr, prompt: question });
  // While readline has the terminal, Ctrl-C arrives as a character instead of a signal.
  terminal.on('SIGINT', () => process.kill(process.pid, 'SIGINT'));
  isPrompting = true;
  let forget = (): void => {};
  let end = (): void => {};
  try {
    await new Promise<void>((resolve, reject) => {
      const take = (line: string | undefined): void => {
        typedAhead.push(line);
        resolve();
      };
      end = () => take(undefined);
      terminal.on('line', take);
      terminal.once('close', end);
      forget = onAbort(signal, () => reject(signal.reason));
      terminal.prompt();
      terminal.write(begunAhead);
    });
    return typedAhead.shift();
  } finally {
    isPrompting = false;
    forget();
    begunAhead = terminal.line;
    terminal.off('close', end);
    terminal.close();
  }
}

/** An event with its times rounded to whole ms, for display. */
export const rounded = (event: Event): Event =>
  Object.fromEntries(
    Object.entries(event).map(([name, value]) => [
      name,
      typeof value === 'number' && /ms$/i.test(name) ? Math.round(value) : value,
    ]),
  ) as Event;

/** An event whose errors are replaced by their messages, ready for JSON. */
export const plain = (event: Event): object =>
  Object.fromEntries(
    Object.entries(event).map(([name, value]) => [name, value instanceof Error ? value.message : value]),
  );

/** Whether an error comes from the operating system, such as one about a file or a port. */
const isLocal = (e: unknown): boolean => typeof (e as { syscall?: unknown } | undefined)?.syscall === 'string';

/**
 * Prints what is wrong with the arguments and which help to read, and returns the exit code.
 *
 * @param isJson whether `--json` was given, as far as wrong arguments tell
 */
export function misused({ message, see }: Usage, isJson: boolean): number {
  tell(isJson ? json({ code: 'usage', message }, true) : `${message}\n${see}`);
  return EXIT.usage;
}

/** Prints an error as one line, or with its stack if it is a bug, and returns the exit code. */
export function failure(e: unknown, args: Args): number {
  if (!TechnocoreError.is(e)) {
    const message = (e as Error)?.message ?? String(e);
    const text = isLocal(e) ? shown(message) : ((e as Error)?.stack ?? message);
    tell(args.json ? json({ code: 'failed', message }, true) : text);
    return EXIT.failed;
  }
  const { code } = e;
  const { rpc, reason, retryAfterMs } = e as { rpc?: object; reason?: string; retryAfterMs?: number };
  // A message written by the other side is left unchanged.
  const message = rpc ? e.message : args.inFlags(e.message);
  tell(
    args.json ? json({ code, message, reason, retryAfterMs, ...(rpc && { rpc }) }, true) : shown(`${code}: ${message}`),
  );
  if (code === 'rpc' || code === 'input_required') return EXIT.refused;
  if (WRONG_INPUT.test(code)) return EXIT.usage;
  return NO_ANSWER.test(code) && !isLocal(e.cause) ? EXIT.noAnswer : EXIT.failed;
}

// --- help --------------------------------------------------------------------------------------------------------

const flagUsage = (name: string, { value }: Flag): string => `--${name}${value === undefined ? '' : ` <${value}>`}`;

/** The help of a command. */
export function helpOf(name: string, { args, about, flags, more }: Command): string {
  const all = Object.entries({ ...flags, ...ALL }).filter(([, flag]) => !flag.hidden);
  const width = Math.max(...all.map(([flag, of]) => flagUsage(flag, of).length));
  const lines = all.map(([flag, of]) => `  ${flagUsage(flag, of).padEnd(width)}  ${of.about}`);
  const usage = `technocore-rpc ${name} [options] ${args}`.trim();
  return `Usage: ${usage}\n\n${about}\n${more === undefined ? '' : `\n${more}\n`}\n${lines.join('\n')}`;
}

/**
 * The help that lists several commands.
 *
 * @param group the first word of their names, if they all share it
 */
export function overview(commands: Record<string, Command>, group = ''): string {
  const usages = Object.entries(commands).map(([name, { args, about }]) => [`${name} ${args}`.trim(), about] as const);
  const width = Math.max(...usages.map(([usage]) => usage.length));
  const lines = usages.map(([usage, about]) => `  ${usage.padEnd(width)}  ${about}`);
  return `Usage: technocore-rpc ${group === '' ? '' : `${group} `}<command> [options]

${lines.join('\n')}

Options of a command: technocore-rpc <command> --help

Environment:
  TECHNOCORE_URL  URL of the service
  SIGN_SEED       the key: a seed of 64 hex digits; anything else is a passphrase
  PARLEY_RELAY    URL of the parley relay

Exit codes:
  ${EXIT.ok}    done
  ${EXIT.failed}    failed
  ${EXIT.usage}    wrong arguments
  ${EXIT.refused}    the answer is an error or a question, or a signature is invalid
  ${EXIT.noAnswer}    no answer in time, or no service
  ${EXIT.interrupted}  interrupted before it was done`;
}
