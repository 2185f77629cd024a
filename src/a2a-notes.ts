/**
 * The notes that hold the states of tasks, by which workers who do not know each other never advance a task twice: the
 * interoperation convention of the service.
 *
 * A note is a lock between honest workers and no record: anybody who knows the id of a task can write its note, and a note
 * is reaped after seven idle days. Nor is it a fence: a worker that was thought dead can come back and win. So whoever
 * works takes a lease first ({@link a2aClaim}), in a note of its own, and proves it anew before each write that counts.
 *
 * @module
 */
import { checkMove, refusal, stateOf, wordOf } from './a2a-states.ts';
import { toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { badParams, type CallContext, type Handler, type JsonObject, localOnly } from './dispatch.ts';
import { BadName, Conflict, checkObject, TechnocoreError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { type Clock, type Options, sharedOf, transportOf } from './http.ts';
import { remember } from './maps.ts';
import { isName, type NotePath } from './names.ts';
import { getNote, listNotes, type SetOptions, setNote } from './notes.ts';

/** Options of all that reads or writes task notes. */
export interface A2ANoteOptions extends Options {
  /**
   * What the names of the notes begin with; default `a2a-task`, as others expect it. With a private base, `p-` and something
   * that cannot be guessed, only who was told it finds them.
   */
  noteBase?: string;
}

const BASE = 'a2a-task';
const LEASES = 'a2a-lease';

/**
 * Where the state of a task is. The id is taken as it is; all agents of a service share one space, so ids must be such
 * as nobody else has.
 *
 * @throws BadName an empty id
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
 * Writes the note of a new task: submitted.
 *
 * @throws Conflict there is one of that id; `actual` is its state, as it is stored
 * @throws what {@link setNote} throws
 */
export async function a2aCreate(taskId: string, o: A2ANoteOptions = {}): Promise<void> {
  await put(noteOf(taskId, o), 'TASK_STATE_SUBMITTED', { ...o, ifAbsent: true });
}

/**
 * Moves a task from one state to another, if it still is in the first: of those who try at a time one succeeds. Notes are
 * written in the spelling of version 1.0. States in the words of version 0.3 match notes in either spelling, and a note
 * keeps the one it has; states in the spelling of 1.0 match a note of that spelling alone.
 *
 * @throws BadState no such states, or no way from one to the other; nothing is sent
 * @throws Conflict the task is in another state: `actual`, as it is stored; undefined when there is no note, or no more
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
 * The state that the note of a task holds, in the word of version 0.3: `working`; `unknown` for a note that holds none;
 * undefined where there is no note.
 *
 * @throws what {@link getNote} throws
 */
export async function a2aGetState(taskId: string, o: A2ANoteOptions = {}): Promise<string | undefined> {
  const { ns, key } = noteOf(taskId, o);
  const value = await getNote(ns, key, o);
  if (value === undefined) return undefined;
  const state = stateOf(value.split(' ', 1)[0]);
  return state ? wordOf(state) : 'unknown';
}

/**
 * Keeps the note of a task from being reaped: writes what it holds once more, unless somebody changes it meanwhile.
 *
 * @returns whether there is a note
 * @throws what {@link getNote} and {@link setNote} throw
 */
export async function a2aKeep(taskId: string, o: A2ANoteOptions = {}): Promise<boolean> {
  const path = noteOf(taskId, o);
  const value = await getNote(path.ns, path.key, o);
  if (value === undefined) return false;
  await put(path, value, { ...o, if: value }).catch((cause) => {
    // Changed is as good as kept.
    if (!TechnocoreError.is(cause) || (cause.code !== 'conflict' && cause.code !== 'may_have_landed')) throw cause;
  });
  return true;
}

/**
 * Which of some tasks still have notes: one read for each namespace they lie in, of which there are 256. A namespace lists
 * keys and not ids, so nobody finds tasks this way that he does not know.
 *
 * @throws what {@link listNotes} throws
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
  /** How long nobody else takes the task over after this process fell silent, ms, 1,000 to 3,600,000; default 60,000. */
  leaseMs?: number;
}

const LEASE_MS = 60_000;
/** An attempt, how often it was renewed, and how long it counts, ms. */
const LEASE = /^([\w-]{22}) \d+ (\d{4,7})$/;
/** What a lease that was given back says. */
const FREE = 'free';
/** How long the state itself may lie unwritten, ms: it is reaped after seven days. */
const KEEP_MS = 86_400_000;

/** Somebody's right to work on a task, as long as `signal` has not aborted. */
export interface A2ALease {
  readonly taskId: string;
  /** What this attempt is called, unlike any other. */
  readonly attempt: string;
  /** Aborts when the lease is lost: somebody else took the task over, or it could not be renewed in time. */
  readonly signal: AbortSignal;
  /**
   * Moves the task, if the lease still is ours: it is renewed first, so that who was asleep finds out before he writes, and
   * nobody takes over meanwhile.
   *
   * @throws Conflict the lease is somebody else's, or the task in another state; `actual` is what the note says
   * @throws TechnocoreError `task_expired`: the task's note is gone; it was there when the lease was taken
   * @throws as {@link a2aAdvance}
   */
  advance(from: string, to: string): Promise<void>;
  /** Writes the lease anew, which happens by itself every third of its time. @throws Conflict it is somebody else's */
  renew(): Promise<void>;
  /** Gives the lease back. */
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
  /** Runs out when the lease does. */
  #timer: AbortController | undefined;
  #last: Promise<unknown> = Promise.resolve();
  /** When the state was last written, as far as we know. */
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
    this.#clock = transportOf(o).clock;
    this.#leaseMs = leaseMs;
  }

  get signal(): AbortSignal {
    return this.#lost.signal;
  }

  /** Takes the lease, from nobody, or from somebody who has not renewed it for as long as it counts. */
  async take(signal: AbortSignal | undefined): Promise<void> {
    const o = { ...this.#o, ...(signal && { signal }) };
    const { ns, key } = this.#path;
    let seen = await getNote(ns, key, o);
    const [, attempt, ms] = LEASE.exec(seen ?? '') ?? [];
    if (attempt !== undefined) {
      // By our clock alone: those of two machines need not agree.
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

  /** Puts a new value in the place of the one expected. @throws Conflict another one is there */
  async #write(expected: string | undefined, o: Options, value?: string): Promise<void> {
    const next = value ?? `${this.attempt} ${++this.#count} ${this.#leaseMs}`;
    const begun = this.#clock.now();
    const condition = expected === undefined ? { ifAbsent: true } : { if: expected };
    try {
      await put(this.#path, next, { ...o, ...condition });
    } catch (cause) {
      // Values are ours alone, so what is there tells whether the write landed.
      if (!TechnocoreError.is(cause) || cause.code !== 'may_have_landed') throw cause;
      const actual = await getNote(this.#path.ns, this.#path.key, o);
      if (actual !== next) throw new Conflict('the lease was taken', actual);
    }
    this.#value = next;
    this.#timer?.abort();
    if (!this.#over.signal.aborted) this.#timer = this.#runOut(begun);
  }

  /** Loses the lease when it was not renewed in time. Counted by sleeping: a clock that was set back tells nothing. */
  #runOut(begun: number): AbortController {
    const timer = new AbortController();
    // Others count from later on.
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
      if (this.#over.signal.aborted) throw new TechnocoreError('lease_over', 'the lease was given back');
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
      // Over.
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
          `the note of task ${this.taskId} is gone: it lay idle for too long`,
          cause,
        );
      }
      // With the lease ours, nobody else has put it there.
      if (code !== 'may_have_landed' || (await a2aGetState(this.taskId, this.#o)) !== wordOf(move.to)) throw cause;
    }
    this.#touched = this.#clock.now();
  }

  async release(): Promise<void> {
    this.#end();
    await this.#last;
    if (this.#lost.signal.aborted) return;
    // Unlike any value before, so that nobody is held up by a write of ours that comes late.
    await this.#write(this.#value, this.#o, `${FREE} ${this.attempt}`).catch((cause) => {
      if (!TechnocoreError.is(cause) || cause.code !== 'conflict') throw cause;
    });
  }
}

/**
 * Takes the right to work on a task. A lease that somebody else holds is watched for as long as it counts, and taken over
 * when he does not renew it meanwhile; whose clock is right plays no part. It is renewed until it is given back.
 *
 * @throws Conflict somebody holds it and is alive; `actual` is what the note says
 * @throws TechnocoreError `bad_option`
 * @throws what {@link getNote} and {@link setNote} throw
 * @example
 * ```ts
 * const lease = await a2aClaim(taskId);
 * await lease.advance('submitted', 'working');
 * const result = await work(lease.signal);
 * await lease.advance('working', 'completed');
 * await lease.release();
 * ```
 */
export async function a2aClaim(taskId: string, o: A2AClaimOptions = {}): Promise<A2ALease> {
  const lease = new Lease(taskId, toBase64url(transportOf(o).random(16)), o);
  await lease.take(o.signal);
  return lease;
}

// --- the helpers of the original library --------------------------------------------------------------------------

const KNOWN = {};
const MAX_KNOWN = 10_000;
/** Most tasks that one list reads. */
const MAX_LISTED = 100;

/** The tasks that were seen here, the newest last, with the contexts of those that were begun here: notes hold states alone. */
const knownOf = (o: Options): Map<string, string> => sharedOf(transportOf(o), KNOWN, () => new Map<string, string>());

function textOf(params: unknown, ...names: string[]): string {
  for (const name of names) {
    const value = isObject(params) ? params[name] : undefined;
    if (typeof value === 'string' && value !== '') return value;
  }
  throw badParams(`${names[0]} is missing`);
}

/** @param at when it came into the state, ms; undefined where nobody knows */
function taskOf(id: string, state: string, o: Options, at?: number): Json {
  const known = knownOf(o);
  if (!known.has(id)) remember(known, id, '', MAX_KNOWN);
  const timestamp = at === undefined ? {} : { timestamp: new Date(at).toISOString() };
  return { kind: 'task', id, contextId: known.get(id)!, status: { state: wordOf(stateOf(state)!), ...timestamp } };
}

const now = (o: Options): number => transportOf(o).clock.now();

async function readTask(id: string, o: Options): Promise<Json | undefined> {
  const state = await a2aGetState(id, o);
  if (state === 'unknown') throw new TechnocoreError('bad_note', `the note of task ${id} holds no state`);
  return state === undefined ? undefined : taskOf(id, state, o);
}

const helper = (run: (params: unknown, o: Options) => Promise<Json>): Handler =>
  localOnly((params: unknown, context?: CallContext) =>
    run(params, context ? { ...context.service, signal: context.signal } : {}),
  );

/** What the original library offers its own process, by method name. For remote callers these do not exist. */
export const a2aHelpers: [string, Handler][] = [
  [
    'message/send',
    helper(async (params, o) => {
      const id = textOf(params, 'taskId');
      const contextId = textOf(params, 'contextId');
      if (!isName(contextId)) throw badParams('contextId is the name of a room');
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
      throw refusal('TASK_NOT_FOUND', knownOf(o).has(id) ? 'Task expired: its note lay idle for too long' : undefined);
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
