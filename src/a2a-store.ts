/**
 * Stores for an agent's tasks: in memory, or in a file that outlives the process. The store is authoritative, whatever
 * a task's note says.
 *
 * @module
 */
import { isInterrupted, isTerminal, STATES } from './a2a-states.ts';
import type { A2AStatus, A2ATaskView } from './a2a-types.ts';
import type { Clock } from './clock.ts';
import { clockOf } from './clock.ts';
import { busy } from './dispatch.ts';
import { checkMembers, checkNumbers, checkText } from './errors.ts';
import type { Log } from './files.ts';
import { encodeLong, isObject, type Json } from './frames.ts';
import { Journal, type Journaled } from './journal.ts';
import { getOrMake } from './maps.ts';
import { mostFor } from './turns.ts';

/** A stored task. Records are immutable: a changed task is a new record with the same id. */
export interface A2ARecord {
  /** The DID that the task belongs to. Nobody else learns that it exists. */
  readonly owner: string;
  /** The whole task, with artifacts and history. */
  readonly task: A2ATaskView;
  /** The requests that led to it, so that a repeated request finds its task instead of creating another. */
  readonly requests: readonly string[];
}

/** A store of tasks, for one agent at a time: {@link a2aMemoryStore}, {@link a2aFileStore}, or your own. */
export interface A2AStore {
  /** Returns the record of a task; undefined if there is none. */
  get(id: string): A2ARecord | undefined | Promise<A2ARecord | undefined>;
  /** Returns the id of the owner's task that came from a request; undefined if there is none. */
  find(owner: string, request: string): string | undefined | Promise<string | undefined>;
  /** Returns the tasks of an owner, in any order. */
  list(owner: string): Iterable<A2ARecord> | Promise<Iterable<A2ARecord>>;
  /**
   * Stores a record, replacing an earlier one of the same task. A durable store resolves once the record is durable.
   *
   * @param rank the {@link CallContext.rank} of the owner; default 0
   * @throws an {@link RpcError} 1002 if there is no room for it
   */
  put(record: A2ARecord, rank?: number): void | Promise<void>;
  /** Removes a task. */
  remove(id: string): void | Promise<void>;
  /** Releases the store's resources. The store's owner calls it after the agent has ended. */
  close?(): void | Promise<void>;
}

/** Limits of a store. */
export interface A2AStoreLimits {
  /**
   * The maximum number of tasks; default 65,536. One key can have a quarter; all keys that were never answered, three
   * quarters together. To make room for a new task, the oldest one that has ended is removed, or one that has waited
   * for its caller for a day; if there is none, the new task is refused.
   */
  tasks?: number | undefined;
  /** The maximum size of all tasks as JSON, in characters; default 67,108,864. One key can have a quarter. */
  chars?: number | undefined;
}

const LIMITS = ['tasks', 'chars'] as const;

/** How long a task waits for its caller before it may be removed, ms. */
const WAITS_MS = 86_400_000;

interface Held {
  readonly record: A2ARecord;
  readonly chars: number;
}

/** The tasks of one owner, least recently changed first. */
class Owned {
  readonly tasks = new Map<string, Held>();
  chars = 0;
}

/** The rules and limits, in memory. The file store replays its log into the same object. */
class MemoryStore implements A2AStore {
  readonly #tasks: number;
  readonly #chars: number;
  readonly #owners = new Map<string, Owned>();
  readonly #ownerOf = new Map<string, string>();
  readonly #requests = new Map<string, string>();
  #total = 0;

  constructor(limits: A2AStoreLimits = {}) {
    const { tasks = 65_536, chars = 1 << 26 } = checkMembers(limits, 'the limits', LIMITS);
    checkNumbers(limits, LIMITS);
    this.#tasks = tasks;
    this.#chars = chars;
  }

  get(id: string): A2ARecord | undefined {
    return this.#owners.get(this.#ownerOf.get(id) ?? '')?.tasks.get(id)?.record;
  }

  find(owner: string, request: string): string | undefined {
    return this.#requests.get(keyOf(owner, request));
  }

  *list(owner: string): Iterable<A2ARecord> {
    for (const { record } of this.#owners.get(owner)?.tasks.values() ?? []) yield record;
  }

  *all(): Iterable<A2ARecord> {
    for (const { tasks } of this.#owners.values()) for (const { record } of tasks.values()) yield record;
  }

  put(record: A2ARecord, rank: number = 0): void | Promise<void> {
    const old = this.#held(record);
    const chars = charsOf(record);
    this.#makeRoom(record, chars - (old?.chars ?? 0), old ? 0 : 1, rank);
    this.keep(record, chars);
  }

  /** {@link put}, whatever the limits say. */
  protected keep(record: A2ARecord, chars: number = charsOf(record)): void {
    const { owner, task, requests } = record;
    const old = this.#held(record);
    const owned = getOrMake(this.#owners, owner, () => new Owned());
    // Deleted first if the status is new, so that the map stays in order of status changes.
    if (old && old.record.task.status !== task.status) owned.tasks.delete(task.id);
    owned.tasks.set(task.id, { record, chars });
    owned.chars += chars - (old?.chars ?? 0);
    this.#total += chars - (old?.chars ?? 0);
    this.#ownerOf.set(task.id, owner);
    for (const request of old?.record.requests ?? []) this.#requests.delete(keyOf(owner, request));
    for (const request of requests) this.#requests.set(keyOf(owner, request), task.id);
  }

  #held({ owner, task }: A2ARecord): Held | undefined {
    return this.#owners.get(owner)?.tasks.get(task.id);
  }

  #makeRoom({ owner, task }: A2ARecord, chars: number, tasks: number, rank: number): void {
    // A task that has ended can be removed at any time, so its end is always stored.
    if ((chars <= 0 || isTerminal(task.status.state)) && tasks === 0) return;
    const now = Date.parse(task.status.timestamp ?? '');
    for (;;) {
      const mine = this.#owners.get(owner) ?? new Owned();
      const isCrowded = mine.tasks.size + tasks > this.#tasks / 4 || mine.chars + chars > this.#chars / 4;
      const isFull =
        this.#ownerOf.size + tasks > mostFor(rank, this.#tasks) || this.#total + chars > mostFor(rank, this.#chars);
      if (!isCrowded && !isFull) return;
      const victim = isCrowded ? this.#oldest(mine, task.id, now) : this.#oldestOfAll(task.id, now);
      if (victim === undefined) throw busy('there is no room for more tasks', 60_000);
      void this.remove(victim);
    }
  }

  /** The task to remove first; `except` is the one that needs the room. */
  #oldest({ tasks }: Owned, except: string, now: number): string | undefined {
    for (const [id, { record }] of tasks) if (id !== except && mayGo(record.task.status, now)) return id;
    return undefined;
  }

  /** A task of the key that has most, if one can be removed, so that a flood displaces itself. */
  #oldestOfAll(except: string, now: number): string | undefined {
    let most = new Owned();
    for (const owned of this.#owners.values()) if (owned.tasks.size > most.tasks.size) most = owned;
    for (const owned of [most, ...this.#owners.values()]) {
      const victim = this.#oldest(owned, except, now);
      if (victim !== undefined) return victim;
    }
    return undefined;
  }

  remove(id: string): void | Promise<void> {
    const owner = this.#ownerOf.get(id);
    if (owner === undefined) return;
    const owned = this.#owners.get(owner)!;
    const { record, chars } = owned.tasks.get(id)!;
    owned.tasks.delete(id);
    owned.chars -= chars;
    this.#total -= chars;
    if (owned.tasks.size === 0) this.#owners.delete(owner);
    this.#ownerOf.delete(id);
    for (const request of record.requests) this.#requests.delete(keyOf(owner, request));
  }
}

const keyOf = (owner: string, request: string): string => JSON.stringify([owner, request]);
const charsOf = ({ task, requests }: A2ARecord): number => encodeLong([task, [...requests]]).length;

function mayGo({ state, timestamp }: A2AStatus, now: number): boolean {
  return isTerminal(state) || (isInterrupted(state) && now - Date.parse(timestamp ?? '') > WAITS_MS);
}

/**
 * Makes a store of tasks that lives as long as the process.
 *
 * @param limits how much is kept: see {@link A2AStoreLimits}
 * @throws a {@link TechnocoreError} `bad_option` if the limits have other members
 */
export function a2aMemoryStore(limits?: A2AStoreLimits): A2AStore {
  return new MemoryStore(limits);
}

// --- in a file ---------------------------------------------------------------------------------------------------

/** What the caller of a task reads if the agent died while working on it. */
const INTERRUPTED = 'The agent was interrupted in the middle of this. Send a message to go on, or cancel the task.';

class FileStore extends MemoryStore implements Journaled {
  readonly what = 'store of A2A tasks';
  readonly header = '["technocore-a2a",1]';
  readonly damage = {
    code: 'bad_store',
    meaning: 'the tasks in it are unknown. It was left unchanged: repair it, or move it away to begin with none',
  };
  #journal: Journal | undefined;

  static async open(
    open: (store: FileStore) => Promise<Journal>,
    limits: A2AStoreLimits | undefined,
    clock: Clock,
  ): Promise<FileStore> {
    const store = new FileStore(limits);
    const journal = await open(store);
    const timestamp = new Date(clock.now()).toISOString();
    for (const { task, ...rest } of [...store.all()]) {
      const { state, message } = task.status;
      if (isTerminal(state) || isInterrupted(state)) continue;
      const said = {
        messageId: `${task.id}.interrupted.${clock.now()}`,
        role: 'ROLE_AGENT' as const,
        parts: [{ text: INTERRUPTED }],
        taskId: task.id,
        ...(task.contextId !== undefined && { contextId: task.contextId }),
      };
      const history = [...(task.history ?? []), ...(message ? [message] : [])];
      const status = { state: 'TASK_STATE_INPUT_REQUIRED' as const, message: said, timestamp };
      const record = { ...rest, task: { ...task, status, history } };
      // Not written now: if the file is read again, it is recovered again.
      store.keep(record);
      journal.add(lineOf(record));
    }
    store.#journal = journal;
    return store;
  }

  restore(line: unknown): boolean {
    if (typeof line === 'string') super.remove(line);
    else if (isRecord(line)) this.keep(line);
    else return false;
    return true;
  }

  lines(): string {
    return [...this.all()].map((record) => `${encodeLong(lineOf(record))}\n`).join('');
  }

  override async put(record: A2ARecord, rank?: number): Promise<void> {
    this.#journal?.check();
    super.put(record, rank);
    await this.#journal?.write(lineOf(record));
  }

  // The line goes to disk with the next one. If it is lost, the task reappears and is removed again.
  override remove(id: string): void {
    super.remove(id);
    this.#journal?.add(id);
  }

  async close(): Promise<void> {
    await this.#journal?.close();
  }
}

const lineOf = ({ owner, task, requests }: A2ARecord): Json => ({ owner, task, requests: [...requests] });

const isText = (value: unknown): boolean => typeof value === 'string';
const isListOrNone = (value: unknown): boolean => value === undefined || Array.isArray(value);

/** True for a record in the form that we write, as far as its members are used. */
function isRecord(line: unknown): line is A2ARecord {
  const { owner, requests, task } = isObject(line) ? line : {};
  if (!isText(owner) || !Array.isArray(requests) || !requests.every(isText) || !isObject(task)) return false;
  const { id, contextId, status, history, artifacts } = task;
  return (
    isText(id) &&
    (contextId === undefined || isText(contextId)) &&
    isObject(status) &&
    STATES.has(status['state']) &&
    [history, artifacts].every(isListOrNone)
  );
}

/**
 * Makes a store of tasks that writes a log.
 *
 * @internal
 * @param text what the log holds; undefined if there is none yet
 */
export async function loggedStore(
  name: string,
  text: string | undefined,
  log: Log,
  clock: Clock,
  limits?: A2AStoreLimits,
): Promise<A2AStore> {
  return FileStore.open((store) => Journal.open(store, name, text, log), limits, clock);
}

/**
 * Opens a store of tasks in a file, for one agent at a time. After a restart the tasks are still there; those that were
 * running wait for their callers, with a message that they were interrupted. Close it after the agent has ended.
 *
 * @param path the file; created if it does not exist, but its directory must
 * @param limits how much is kept: see {@link A2AStoreLimits}
 * @param clock the source of time; default: the system clock
 * @throws a {@link TechnocoreError} `bad_store` if the file is damaged or something else, which is left unchanged;
 * `bad_option` if the limits have other members
 * @throws an {@link Unavailable} if another process has the file open, or if the file system refuses or is missing
 */
export async function a2aFileStore(path: string, limits?: A2AStoreLimits, clock?: Clock): Promise<A2AStore> {
  checkText(path, 'the path of a store');
  const own = clockOf({ clock });
  return FileStore.open((store) => Journal.openFile(store, path, own), limits, own);
}
