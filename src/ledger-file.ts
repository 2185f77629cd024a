/**
 * A ledger and a cursor in files: a server that was killed continues where it stopped, runs nothing twice, and serves
 * what came meanwhile. Needs a runtime with files (Node, Bun, Deno), which is looked up at call time only.
 *
 * @module
 */
import { clockOf } from './clock.ts';
import { checkText, TechnocoreError, Unavailable } from './errors.ts';
import { Files, type Log, systemCode } from './files.ts';
import { compact, encodeLong, isObject, type Json } from './frames.ts';
import type { Clock } from './http.ts';
import { Journal, type Journaled } from './journal.ts';
import { type Admission, type Ledger, type LedgerLimits, type LedgerMessage, LedgerState } from './ledger.ts';
import { isNonce } from './names.ts';
import type { CursorStore, Place } from './rooms.ts';

// --- the lines of the log ----------------------------------------------------------------------------------------

/** A request that was begun. */
type Begun = [id: string, digest: string, reply?: string];

/**
 * A line of the log. It records decisions, not requests, so that later limits do not change them. Each happened at the
 * time of the last `time` line before it, in the ledger's own time.
 */
type Line =
  | ['time', ms: number]
  | ['letgo', nonce: string]
  | ['admit', from: string, room: string, nonce: string | null, begun: Begun[]]
  | ['answer', from: string, id: string, answer: string]
  | ['sent' | 'forget', from: string, id: string];

const begunOf = (id: string, digest: string, reply?: string): Begun =>
  reply === undefined ? [id, digest] : [id, digest, reply];

const isText = (value: unknown): value is string => typeof value === 'string';

function lineOf(line: unknown): Line | undefined {
  if (!Array.isArray(line)) return undefined;
  const [kind, from, second, third, begun] = line;
  const isBegun = (one: unknown): boolean => Array.isArray(one) && /^[23]$/.test(`${one.length}`) && one.every(isText);
  const isLine =
    kind === 'time'
      ? Number.isFinite(from)
      : kind === 'letgo'
        ? isNonce(from)
        : isText(from) &&
          isText(second) &&
          (kind === 'admit'
            ? (third === null || isNonce(third)) && Array.isArray(begun) && begun.every(isBegun)
            : kind === 'answer'
              ? isText(third)
              : kind === 'sent' || kind === 'forget');
  return isLine ? (line as Line) : undefined;
}

/** The state of a ledger, which can be written as lines and restored from them. */
class LoggedState extends LedgerState implements Journaled {
  readonly what = 'request ledger';
  readonly header = '["technocore-ledger",1]';
  readonly damage = {
    code: 'bad_ledger',
    meaning:
      'what was done already is unknown. It was left unchanged: repair it, or move it away once no request in it can come again',
  };

  restore(value: unknown): boolean {
    const line = lineOf(value);
    if (line) this.#take(line);
    return line !== undefined;
  }

  #take(line: Line): void {
    if (line[0] === 'time') this.time = line[1];
    else if (line[0] === 'letgo') this.letGo = BigInt(line[1]);
    else if (line[0] === 'answer') this.answer(line[1], line[2], line[3]);
    else if (line[0] !== 'admit') this[line[0]](line[1], line[2]);
    else {
      const [, from, room, nonce, begun] = line;
      if (nonce !== null) this.raise(`${from} ${room}`, BigInt(nonce));
      // Begun by an earlier process: unless its answer follows, it will never be finished.
      for (const [id, digest, reply] of begun) this.put(from, id, digest, reply).orphan = true;
    }
  }

  /** The shortest log that restores this state. */
  lines(): string {
    this.expire();
    let text = '';
    let time = 0;
    const add = (line: Line): void => {
      text += `${encodeLong(line)}\n`;
    };
    const at = (since: number): void => {
      if (since !== time) add(['time', (time = since)]);
    };
    if (this.letGo >= 0n) add(['letgo', String(this.letGo)]);
    for (const [name, { nonce, since }] of this.floors) {
      const space = name.indexOf(' ');
      at(since);
      add(['admit', name.slice(0, space), name.slice(space + 1), String(nonce), []]);
    }
    for (const [name, { from, digest, reply, since, answer, sent }] of this.entries) {
      const id = name.slice(from.length + 1);
      at(since);
      add(['admit', from, '', null, [begunOf(id, digest, reply)]]);
      if (answer !== undefined) add(['answer', from, id, answer]);
      if (sent === undefined) continue;
      at(sent);
      add(['sent', from, id]);
    }
    at(this.time);
    return text;
  }
}

// --- the ledger --------------------------------------------------------------------------------------------------

/** How often the ledger's time is logged, ms. */
const TIME_MS = 10_000;

/** A ledger that writes a log. */
class LoggedLedger implements Ledger {
  readonly #state: LoggedState;
  readonly #journal: Journal;
  #timed: number;

  constructor(state: LoggedState, journal: Journal) {
    this.#state = state;
    this.#journal = journal;
    this.#timed = state.time;
  }

  pass(now: number): void {
    this.#state.pass(now);
  }

  async admit(m: LedgerMessage, now: number): Promise<Admission> {
    this.#journal.check();
    this.pass(now);
    const admission = this.#state.admit(m, now);
    const begun = m.requests.flatMap(({ id, digest, reply, passing }, i) =>
      admission.verdicts[i]!.kind === 'new' && !passing ? [begunOf(id, digest, reply)] : [],
    );
    if (admission.fresh && !m.passing) await this.#write(['admit', m.from, m.room, m.nonce ?? null, begun]);
    return admission;
  }

  async answer(from: string, id: string, answer: string): Promise<void> {
    this.#state.answer(from, id, answer);
    await this.#write(['answer', from, id, answer]);
  }

  // These two need not reach the disk at once: the next write includes them.
  sent(from: string, id: string): void {
    this.#state.sent(from, id);
    this.#add(['sent', from, id]);
  }

  forget(from: string, id: string): void {
    this.#state.forget(from, id);
    this.#add(['forget', from, id]);
  }

  /** Logs the time only before another line: otherwise an idle server would fill the memory. */
  #tellTime(): void {
    const { time } = this.#state;
    if (time - this.#timed < TIME_MS) return;
    this.#timed = time;
    this.#journal.add(['time', time]);
  }

  #add(line: Line): void {
    this.#tellTime();
    this.#journal.add(line as Json);
  }

  #write(line: Line): Promise<void> {
    this.#tellTime();
    return this.#journal.write(line as Json);
  }

  close(): Promise<void> {
    this.#tellTime();
    return this.#journal.close();
  }
}

/**
 * Makes a ledger that writes a log.
 *
 * @internal
 * @param text the contents of the log; undefined if there is none yet
 */
export async function loggedLedger(
  name: string,
  text: string | undefined,
  log: Log,
  limits?: LedgerLimits,
): Promise<Ledger> {
  const state = new LoggedState(limits);
  return new LoggedLedger(state, await Journal.open(state, name, text, log));
}

/**
 * Opens a ledger in a file, for one server at a time. With it, {@link serve} runs no handler twice for one request,
 * even if the process is killed: a request that was begun but not answered is answered with error 1001, or run again if
 * its method is {@link idempotent}. Close it after `serve` has resolved.
 *
 * @param path the file; created if it does not exist, but its directory must
 * @param limits how much is kept: see {@link LedgerLimits}
 * @param clock the source of time; default: the system clock
 * @throws a {@link TechnocoreError} `bad_ledger` if the file is damaged or something else, which is left unchanged;
 * `bad_option` if the limits have other members
 * @throws an {@link Unavailable} if another process still has the file open after 30 seconds (there is a console
 * warning after two), or if the file system refuses or is missing
 * @example
 * ```ts
 * import { fileCursor, fileLedger, serve, Signer } from 'technocore-rpc';
 *
 * const ledger = await fileLedger('vault-ledger');
 * const cursor = fileCursor('vault-cursor.json');
 * await serve('mb-p-ledger-81d3', await Signer.fromDir(), { ledger, cursor, signal: AbortSignal.timeout(3_600_000) });
 * await ledger.close?.();
 * ```
 */
export async function fileLedger(path: string, limits?: LedgerLimits, clock?: Clock): Promise<Ledger> {
  const state = new LoggedState(limits);
  checkText(path, 'the path of a ledger');
  return new LoggedLedger(state, await Journal.openFile(state, path, clockOf({ clock })));
}

function refused(cause: unknown, path: string): TechnocoreError {
  if (TechnocoreError.is(cause)) return cause;
  return new Unavailable(`${path} cannot be used: ${systemCode(cause) ?? cause}`, cause);
}

// --- the cursor --------------------------------------------------------------------------------------------------

/**
 * Stores in a file how far a server has read its mailboxes. With it as the option `cursor`, {@link serve} continues
 * where it stopped, so that requests that came while it was down are served. For one process at a time.
 *
 * @param path the file; created when first needed, in an existing directory. Nothing is read or written before the
 * server starts. If the file holds something else, it is left unchanged, and `serve` throws a {@link TechnocoreError}
 * `bad_cursor`
 */
export function fileCursor(path: string): CursorStore {
  checkText(path, 'the path of a cursor');
  let reading: Promise<Map<string, Place>> | undefined;
  let last: Promise<unknown> = Promise.resolve();
  const places = (): Promise<Map<string, Place>> =>
    (reading ??= readPlaces(path).catch((cause) => {
      reading = undefined;
      throw refused(cause, path);
    }));
  return {
    load: async (room) => (await places()).get(room),
    save(room, place) {
      const saved = last.then(async () => {
        const text = encodeLong(Object.fromEntries((await places()).set(room, place)));
        await new Files().replace(path, `${text}\n`).catch((cause) => {
          throw refused(cause, path);
        });
      });
      last = saved.catch(() => {});
      return saved;
    },
  };
}

async function readPlaces(path: string): Promise<Map<string, Place>> {
  const files = new Files();
  await files.tidy(files.path.dirname(path), [files.path.basename(path)]);
  const file = await files.read(path);
  const places = new Map<string, Place>();
  try {
    const stored: unknown = file ? JSON.parse(file.text) : {};
    if (!isObject(stored)) throw new SyntaxError('not an object');
    for (const [room, value] of Object.entries(stored)) places.set(room, placeOf(value));
    return places;
  } catch (cause) {
    throw new TechnocoreError(
      'bad_cursor',
      `${path} does not contain positions in rooms. It was left unchanged: repair it, or move it away to begin with new messages`,
      cause,
    );
  }
}

/** The place in a value from a file. */
function placeOf(value: unknown): Place {
  const { since, generation, mark, said } = isObject(value) ? value : {};
  const isCount = (n: unknown): n is number => Number.isSafeInteger(n) && (n as number) >= 0;
  if (!isCount(since) || !(generation === undefined || isCount(generation))) throw new SyntaxError('not a place');
  return compact({
    since,
    generation,
    mark: typeof mark === 'string' ? mark : undefined,
    said: isCount(said) ? said : undefined,
  });
}
