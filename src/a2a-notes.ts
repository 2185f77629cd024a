/**
 * Notes that hold the states of tasks, so that independent workers never advance a task twice. Rules: technocore.chat's
 * interoperation document (A2A).
 *
 * Such a note is a lock between honest workers, not a record: anybody who knows the id of a task can write its note,
 * and the service deletes a note after seven idle days. Nor is it a fence: a worker that was presumed dead can come
 * back and write. So a worker first takes a lease ({@link a2aClaim}), which is a separate note, and renews it before
 * each write that counts.
 *
 * @module
 */
import { checkMove, refusal, stateOf, wordOf } from './a2a-states.ts';
import { toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { badParams, type CallContext, type Handler, type JsonObject, localOnly } from './dispatch.ts';
import { BadName, Conflict, checkObject, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { type Clock, meansOf, type Options, sharedOf, transportOf } from './http.ts';
import { remember } from './maps.ts';
import { isName, type NotePath } from './names.ts';
import { getNote, listNotes, type SetOptions, setNote } from './notes.ts';

/** Options of all functions that read or write task notes. */
export interface A2ANoteOptions extends Options {
  /**
   * The prefix of the notes' namespaces. Default `a2a-task`, where other implementations look for them. With a private
   * one (`p-` and something that cannot be guessed), only those who know it can find them.
   */
  noteBase?: string | undefined;
}

const BASE = 'a2a-task';
const LEASES = 'a2a-lease';

/**
 * The address of a task's state note: derived from the first 16 hex digits of the SHA-256 of the id. All agents of a
 * service share these notes, so the id must be one that nobody else uses or guesses, such as a UUID.
 *
 * @param taskId the id of the task; hashed unchanged
 * @param noteBase as in {@link A2ANoteOptions.noteBase}
 * @throws a {@link BadName} if the id is empty
 */
export function a2aTaskNote(taskId: string, noteBase: string = BASE): NotePath {
  if (typeof taskId !== 'string' || taskId === '') throw new BadName(taskId, 'not the id of a task');
  const print = toHex(sha256(utf8(taskId)).subarray(0, 8));
  return { ns: `${noteBase}-${print.slice(0, 2)}`, key: print.slice(2) };
}

const noteOf = (taskId: string, o: A2ANoteOptions): NotePath => a2aTaskNote(taskId, checkObject(o).noteBase);

const put = (path: NotePath, value: string, o: Options & SetOptions): Promise<void> =>
  setNote(path.ns, path.key, value, o);

/**
 * Creates the note of a new task, with the state `TASK_STATE_SUBMITTED`.
 *
 * @throws a {@link BadName} if the id is empty
 * @throws a {@link Conflict} if a task of that id has a note; `actual` is its value
 * @throws what {@link setNote} throws
 */
export async function a2aCreate(taskId: string, o: A2ANoteOptions = {}): Promise<void> {
  await put(noteOf(taskId, o), 'TASK_STATE_SUBMITTED', { ...o, ifAbsent: true });
}

/**
 * Moves the note of a task from one state to another by compare-and-set: of several workers that try at the same time,
 * one succeeds. Notes are written in the spelling of A2A 1.0. A `from` in the spelling of 0.3 (`working`) matches a
 * note in either spelling, which keeps its own; one in that of 1.0 (`TASK_STATE_WORKING`) matches only the same
 * spelling.
 *
 * @param taskId the id of the task
 * @param from the state that it must be in
 * @param to the new state
 * @throws a {@link BadState} if there is no such state or transition; nothing was sent
 * @throws a {@link Conflict} if the note holds another state: `actual` is its value, or undefined if the note does not
 * exist (any more)
 * @throws what {@link setNote} throws
 */
export async function a2aAdvance(taskId: string, from: string, to: string, o: A2ANoteOptions = {}): Promise<void> {
  const path = noteOf(taskId, o);
  const move = checkMove(from, to);
  try {
    await put(path, move.to, { ...o, if: move.from });
  } catch (cause) {
    const actual = TechnocoreError.is(cause) && cause.code === 'conflict' ? (cause as Conflict).actual : undefined;
    if (actual !== from || actual === move.from) throw cause;
    await put(path, wordOf(move.to), { ...o, if: from });
  }
}

/**
 * Reads the state from the note of a task. Anybody may have written it.
 *
 * @returns the state in the spelling of A2A 0.3, such as `working`; `unknown` if the note holds something else; undefined
 * if there is no note
 * @throws a {@link BadName} if the id is empty; what {@link getNote} throws
 */
export async function a2aGetState(taskId: string, o: A2ANoteOptions = {}): Promise<string | undefined> {
  const { ns, key } = noteOf(taskId, o);
  const value = await getNote(ns, key, o);
  if (value === undefined) return undefined;
  const state = stateOf(value.split(' ', 1)[0]);
  return state ? wordOf(state) : 'unknown';
}

/**
 * Keeps the note of a task from being deleted after seven idle days: rewrites its value, unless somebody changes it
 * meanwhile.
 *
 * @returns false if there is no note
 * @throws a {@link BadName} if the id is empty; what {@link getNote} and {@link setNote} throw
 */
export async function a2aKeep(taskId: string, o: A2ANoteOptions = {}): Promise<boolean> {
  const path = noteOf(taskId, o);
  const value = await getNote(path.ns, path.key, o);
  if (value === undefined) return false;
  await put(path, value, { ...o, if: value }).catch((cause) => {
    // Somebody else's write keeps the note alive, too.
    if (!TechnocoreError.is(cause) || (cause.code !== 'conflict' && cause.code !== 'may_have_landed')) throw cause;
  });
  return true;
}

/**
 * Finds out which of the given tasks still have notes. Costs one read for each of their namespaces, of which there are
 * 256. Unknown tasks cannot be found this way, since a namespace lists keys and not ids.
 *
 * @param taskIds the ids of the tasks
 * @returns the ids of those that have a note
 * @throws a {@link BadName} if it is not a list, or an id is empty; what {@link listNotes} throws
 */
export async function a2aFindNotes(taskIds: Iterable<string>, o: A2ANoteOptions = {}): Promise<string[]> {
  if (typeof taskIds?.[Symbol.iterator] !== 'function') throw new BadName(taskIds, 'the tasks must be a list of ids');
  const wanted = [...taskIds].map((id) => ({ id, ...noteOf(id, o) }));
  const found: string[] = [];
  for (const ns of new Set(wanted.map((one) => one.ns))) {
    const keys = new Set(await listNotes(ns, o));
    found.push(...wanted.filter((one) => one.ns === ns && keys.has(one.key)).map(({ id }) => id));
  }
  return found;
}

// --- leases ------------------------------------------------------------------------------------------------------

/** Options of {@link a2aClaim}. */
export interface A2AClaimOptions extends A2ANoteOptions {
  /**
   * How long the lease is valid without renewal, in milliseconds, 1,000 to 3,600,000; default 60,000. Only after that
   * can another worker take over the task.
   */
  leaseMs?: number | undefined;
}

const LEASE_MS = 60_000;
/** The value of a lease: the attempt, how often it was renewed, and how long it is valid, ms. */
const LEASE = /^([\w-]{22}) \d+ (\d{4,7})$/;
/** The beginning of the value of a released lease. */
const FREE = 'free';
/** How long the state note may be idle before it is rewritten, ms: the service deletes it after seven days. */
const KEEP_MS = 86_400_000;

/** The right to work on a task, until `signal` aborts: what {@link a2aClaim} returns. */
export interface A2ALease {
  /** The id of the task. */
  readonly taskId: string;
  /** A unique name for this attempt: 22 characters of base64url. */
  readonly attempt: string;
  /** Aborts when the lease is lost: another worker took over the task, or the lease could not be renewed in time. */
  readonly signal: AbortSignal;
  /**
   * Moves the task as {@link a2aAdvance} does, if the lease still holds. The lease is renewed first, so that a
   * suspended worker finds out before it writes, and nobody takes over meanwhile.
   *
   * @throws a {@link Conflict} if another worker has the lease, or the task is in another state; `actual` is the note's
   * value
   * @throws a {@link TechnocoreError} `task_expired` if the note of the task is gone; `lease_lost` if the lease could
   * not be renewed in time; `lease_over` if it was released
   * @throws what {@link a2aAdvance} throws
   */
  advance(from: string, to: string): Promise<void>;
  /**
   * Renews the lease, which also happens automatically every third of `leaseMs`.
   *
   * @throws what {@link A2ALease.advance} throws
   */
  renew(): Promise<void>;
  /** Releases the lease, so that another worker can take it at once. */
  release(): Promise<void>;
}

class Lease implements A2ALease {
  readonly taskId: string;
  readonly attempt: string;
  readonly #path: NotePath;
  readonly #o: A2ANoteOptions;
  readonly #clock: Clock;
  readonly #leaseMs: number;
  readonly #lost = new AbortController();
  readonly #over = new AbortController();
  #value = '';
  #count = 0;
  /** Cancels the timer that expires with the lease. */
  #timer: AbortController | undefined;
  #last: Promise<unknown> = Promise.resolve();
  /** When the state note was last written, as far as we know. */
  #touched = 0;

  constructor(taskId: string, attempt: string, o: A2AClaimOptions) {
    this.taskId = taskId;
    this.attempt = attempt;
    this.#path = a2aTaskNote(taskId, LEASES);
    const { leaseMs = LEASE_MS, signal: _, ...rest } = o;
    if (!(Number.isInteger(leaseMs) && leaseMs >= 1000 && leaseMs <= 3_600_000)) {
      throw new TechnocoreError('bad_option', 'the option leaseMs must be a number from 1,000 to 3,600,000');
    }
    this.#o = rest;
    this.#clock = meansOf(o).clock;
    this.#leaseMs = leaseMs;
  }

  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Takes the lease if it is free, or if it is not renewed within its duration. */
  async take(signal: AbortSignal | undefined): Promise<void> {
    const o = { ...this.#o, ...(signal && { signal }) };
    const { ns, key } = this.#path;
    let seen = await getNote(ns, key, o);
    const [, attempt, ms] = LEASE.exec(seen ?? '') ?? [];
    if (attempt !== undefined) {
      // Watched by our own clock, since those of two machines need not agree.
      for (let part = 0; part < 4; part++) {
        await this.#clock.sleep(Number(ms) / 4, signal);
        const now = await getNote(ns, key, o);
        if (now !== seen && LEASE.test(now ?? '')) throw new Conflict('the lease is held and renewed', now);
        if (now !== seen) {
          seen = now;
          break;
        }
      }
    }
    await this.#write(seen, o);
    this.#touched = this.#clock.now();
    void this.#keep();
  }

  /** Replaces the expected value. @throws a {@link Conflict} if the note has another value */
  async #write(expected: string | undefined, o: Options, value?: string): Promise<void> {
    const next = value ?? `${this.attempt} ${++this.#count} ${this.#leaseMs}`;
    const begun = this.#clock.now();
    const condition = expected === undefined ? { ifAbsent: true } : { if: expected };
    try {
      await put(this.#path, next, { ...o, ...condition });
    } catch (cause) {
      // Nobody else writes this value, so the note tells whether the write landed.
      if (!TechnocoreError.is(cause) || cause.code !== 'may_have_landed') throw cause;
      const actual = await getNote(this.#path.ns, this.#path.key, o);
      if (actual !== next) throw new Conflict('the lease was taken', actual);
    }
    this.#value = next;
    this.#timer?.abort();
    if (!this.#over.signal.aborted) this.#timer = this.#runOut(begun);
  }

  /** Loses the lease if it is not renewed in time. Measured by sleeping, since a clock may be set back. */
  #runOut(begun: number): AbortController {
    const timer = new AbortController();
    // Measured from before the write: others measure from after it.
    const left = this.#leaseMs - Math.max(this.#clock.now() - begun, 0);
    this.#clock.sleep(left, timer.signal).then(
      () => this.#lose(new TechnocoreError('lease_lost', 'the lease could not be renewed in time')),
      () => {},
    );
    return timer;
  }

  renew(): Promise<void> {
    const renewed = this.#last.then(async () => {
      this.#lost.signal.throwIfAborted();
      if (this.#over.signal.aborted) throw new TechnocoreError('lease_over', 'the lease was released');
      try {
        await this.#write(this.#value, { ...this.#o, signal: this.#lost.signal });
      } catch (cause) {
        if (TechnocoreError.is(cause) && cause.code === 'conflict') this.#lose(cause);
        throw cause;
      }
    });
    this.#last = renewed.catch(() => {});
    return renewed;
  }

  #lose(cause: unknown): void {
    this.#lost.abort(cause);
    this.#end();
  }

  #end(): void {
    this.#over.abort();
    this.#timer?.abort();
  }

  /** Renews in time. */
  async #keep(): Promise<void> {
    const { signal } = this.#over;
    try {
      for (;;) {
        await this.#clock.sleep(this.#leaseMs / 3, signal);
        await this.renew().catch(() => {});
        if (this.#clock.now() - this.#touched < KEEP_MS) continue;
        this.#touched = this.#clock.now();
        await a2aKeep(this.taskId, this.#o).catch(() => {});
      }
    } catch {
      // The lease has ended.
    }
  }

  async advance(from: string, to: string): Promise<void> {
    const move = checkMove(from, to);
    await this.renew();
    try {
      await a2aAdvance(this.taskId, from, to, { ...this.#o, signal: this.#lost.signal });
    } catch (cause) {
      const { code } = TechnocoreError.is(cause) ? cause : {};
      if (code === 'conflict' && (cause as Conflict).actual === undefined) {
        throw new TechnocoreError(
          'task_expired',
          `the note of task ${this.taskId} is gone: it was idle for too long`,
          cause,
        );
      }
      // Since we have the lease, nobody else has written that state.
      if (code !== 'may_have_landed' || (await a2aGetState(this.taskId, this.#o)) !== wordOf(move.to)) throw cause;
    }
    this.#touched = this.#clock.now();
  }

  async release(): Promise<void> {
    this.#end();
    await this.#last;
    if (this.#lost.signal.aborted) return;
    // A distinct value, so that a late write of ours cannot make the lease look taken.
    await this.#write(this.#value, this.#o, `${FREE} ${this.attempt}`).catch((cause) => {
      if (!TechnocoreError.is(cause) || cause.code !== 'conflict') throw cause;
    });
  }
}

/**
 * Takes a lease: the right to work on a task that several workers share through notes. A lease that another worker
 * holds is watched for its whole duration, and taken over if it is not renewed meanwhile; the clocks of the workers
 * need not agree. The lease is renewed automatically until it is released.
 *
 * @param taskId the id of the task
 * @throws a {@link Conflict} if another worker holds the lease and renews it; `actual` is the value of the lease's note
 * @throws a {@link TechnocoreError} `bad_option` if `leaseMs` is out of range
 * @throws a {@link BadName} if the id is empty; what {@link getNote} and {@link setNote} throw
 * @example
 * ```ts
 * import { a2aClaim, a2aCreate, a2aGetState } from 'technocore-rpc';
 *
 * const taskId = crypto.randomUUID();
 * await a2aCreate(taskId);
 *
 * const lease = await a2aClaim(taskId); // in one of the workers
 * await lease.advance('submitted', 'working');
 * if (!lease.signal.aborted) console.log('the work itself, which stops when the signal aborts');
 * await lease.advance('working', 'completed');
 * await lease.release();
 * console.log(await a2aGetState(taskId)); // completed
 * ```
 */
export async function a2aClaim(taskId: string, o: A2AClaimOptions = {}): Promise<A2ALease> {
  const lease = new Lease(taskId, toBase64url(meansOf(o).random(16)), o);
  await lease.take(o.signal);
  return lease;
}

// --- the helpers of the original library --------------------------------------------------------------------------

const KNOWN = {};
const MAX_KNOWN = 10_000;
/** The maximum number of tasks that one list reads. */
const MAX_LISTED = 100;

/** The tasks seen by this process, newest last, with the contexts of those created here: notes hold only states. */
const knownOf = (o: Options): Map<string, string> => sharedOf(transportOf(o), KNOWN, () => new Map<string, string>());

function textOf(params: unknown, ...names: string[]): string {
  for (const name of names) {
    const value = isObject(params) ? params[name] : undefined;
    if (typeof value === 'string' && value !== '') return value;
  }
  throw badParams(`${names[0]} is missing`);
}

/** @param at when it entered the state, ms; undefined if unknown */
function taskOf(id: string, state: string, o: Options, at?: number): Json {
  const known = knownOf(o);
  if (!known.has(id)) remember(known, id, '', MAX_KNOWN);
  const timestamp = at === undefined ? {} : { timestamp: new Date(at).toISOString() };
  return { kind: 'task', id, contextId: known.get(id)!, status: { state: wordOf(stateOf(state)!), ...timestamp } };
}

const now = (o: Options): number => meansOf(o).clock.now();

async function readTask(id: string, o: Options): Promise<Json | undefined> {
  const state = await a2aGetState(id, o);
  if (state === 'unknown') throw new TechnocoreError('bad_note', `the note of task ${id} holds no state`);
  return state === undefined ? undefined : taskOf(id, state, o);
}

const helper = (run: (params: unknown, o: Options) => Promise<Json>): Handler =>
  localOnly((params: unknown, context?: CallContext) =>
    run(params, context ? { ...context.service, signal: context.signal } : {}),
  );

/** The methods that the original library offers its own process. For remote callers they do not exist. */
export const a2aHelpers: [string, Handler][] = [
  [
    'message/send',
    helper(async (params, o) => {
      const id = textOf(params, 'taskId');
      const contextId = textOf(params, 'contextId');
      if (!isName(contextId)) throw badParams('contextId must be the name of a room');
      await a2aCreate(id, o);
      taskOf(id, 'submitted', o);
      knownOf(o).set(id, contextId);
      return taskOf(id, 'submitted', o, now(o));
    }),
  ],
  [
    'tasks/get',
    helper(async (params, o) => {
      const id = textOf(params, 'taskId', 'id');
      const task = await readTask(id, o);
      if (task) return task;
      throw refusal('TASK_NOT_FOUND', knownOf(o).has(id) ? 'Task expired: its note was idle for too long' : undefined);
    }),
  ],
  [
    'tasks/advance',
    helper(async (params, o) => {
      const id = textOf(params, 'taskId', 'id');
      const from = textOf(params, 'from');
      const to = textOf(params, 'state', 'to');
      await a2aAdvance(id, from, to, o);
      return taskOf(id, to, o, now(o));
    }),
  ],
  [
    'tasks/list',
    helper(async (_, o) => {
      const ids = [...knownOf(o).keys()].reverse().slice(0, MAX_LISTED);
      const tasks = await Promise.all(ids.map((id) => readTask(id, o).catch(() => undefined)));
      return { tasks: tasks.filter((task) => task !== undefined) } as JsonObject;
    }),
  ],
];
