/**
 * The objects of A2A: messages, parts, artifacts and tasks in the form of version 1.0, the checks that untrusted
 * objects must pass, and the conversion to and from version 0.3.
 *
 * @module
 */
import { type A2AState, isInterrupted, isTerminal, STATES, stateOf, wordOf } from './a2a-states.ts';
import { badParams, type JsonObject } from './dispatch.ts';
import { type RpcError, TechnocoreError } from './errors.ts';
import { compact, isObject, type Json } from './frames.ts';

/** The member of `params._meta` that tells how long the caller waits for an answer, ms. */
export const WAIT_META = 'chat.technocore/waitMs';

// --- objects -----------------------------------------------------------------------------------------------------

/** A piece of content (A2A Part). It has exactly one of `text`, `raw`, `url` and `data`. */
export type A2APart = {
  /** A text. */
  text?: string;
  /** Bytes, as base64. */
  raw?: string;
  /** Where the content is. */
  url?: string;
  /** Any JSON value. */
  data?: Json;
  /** A name for the content. */
  filename?: string;
  /** The media type of the content, such as `image/png`. */
  mediaType?: string;
  /** Further data. */
  metadata?: JsonObject;
};

/** A message from a caller or an agent (A2A Message). */
export type A2AMessage = {
  /** The id of the message, chosen by its sender. */
  messageId: string;
  /** Whether the caller or the agent wrote it. */
  role: 'ROLE_USER' | 'ROLE_AGENT';
  /** Its content: at least one part. */
  parts: A2APart[];
  /** The context that it belongs to. */
  contextId?: string;
  /** The task that it continues. */
  taskId?: string;
  /** Other tasks that it refers to. */
  referenceTaskIds?: string[];
  /** The URIs of the extensions that it uses. */
  extensions?: string[];
  /** Further data. */
  metadata?: JsonObject;
};

/** A result of a task (A2A Artifact). */
export type A2AArtifact = {
  /** The id of the artifact, unique within its task. */
  artifactId: string;
  /** Its content: at least one part. */
  parts: A2APart[];
  /** A display name. */
  name?: string;
  /** What it is. */
  description?: string;
  /** The URIs of the extensions that it uses. */
  extensions?: string[];
  /** Further data. */
  metadata?: JsonObject;
};

/** The status of a task (A2A TaskStatus). */
export type A2AStatus = {
  /** The state of the task. */
  state: A2AState;
  /** The agent's message about it, such as a question. */
  message?: A2AMessage;
  /** When the task entered the state: ISO 8601, UTC. */
  timestamp?: string;
};

/** A task as its agent shows it (A2A Task). */
export type A2ATaskView = {
  /** The id of the task, chosen by the agent. */
  id: string;
  /** The context that it belongs to. */
  contextId?: string;
  /** Its status. */
  status: A2AStatus;
  /** Its results so far. */
  artifacts?: A2AArtifact[];
  /** The messages so far, up to the number requested. */
  history?: A2AMessage[];
  /** Further data. */
  metadata?: JsonObject;
};

/** One item of a stream (A2A StreamResponse). It has exactly one member. */
export type A2AItem = {
  /** The current task. */
  task?: A2ATaskView;
  /** A direct answer, without a task. */
  message?: A2AMessage;
  /** A new status of the task. */
  statusUpdate?: { taskId: string; contextId: string; status: A2AStatus; metadata?: JsonObject };
  /** A new artifact of the task, or a continuation of one. */
  artifactUpdate?: {
    taskId: string;
    contextId: string;
    artifact: A2AArtifact;
    /** Whether to append the parts to the artifact with the same id. */
    append?: boolean;
    /** Whether nothing more will be appended. */
    lastChunk?: boolean;
    metadata?: JsonObject;
  };
};

/**
 * The text of a message or an artifact: its text parts, joined without a separator.
 *
 * @throws a {@link TechnocoreError} `bad_params` if it has no parts
 */
export function a2aText(holder: { parts: A2APart[] }): string {
  if (!Array.isArray(holder?.parts)) throw new TechnocoreError('bad_params', 'a message, or an artifact, has parts');
  return holder.parts.map((part) => part?.text ?? '').join('');
}

// --- checks ------------------------------------------------------------------------------------------------------

/** What is wrong with a value, and where. */
class Misfit extends Error {
  readonly at: string;
  readonly why: string;
  constructor(at: string, why: string) {
    super(`${at}: ${why}`);
    this.at = at;
    this.why = why;
  }
}

/** Checks an untrusted value, and returns its known members. */
export type Check<T> = (value: unknown, at: string) => T;

const expect =
  <T>(is: (value: unknown) => boolean, what: string): Check<T> =>
  (value, at) => {
    if (!is(value)) throw new Misfit(at, `must be ${what}`);
    return value as T;
  };

export const isText: Check<string> = expect((v) => typeof v === 'string' && v !== '', 'a string that is not empty');
export const isAnyText: Check<string> = expect((v) => typeof v === 'string', 'a string');
/** ProtoJSON may write the default of a member that is absent, which is the empty string. */
const isTextOrNone: Check<string | undefined> = (value, at) => (value === '' ? undefined : isText(value, at));
export const isFlag: Check<boolean> = expect((v) => typeof v === 'boolean', 'true or false');
export const isMap: Check<JsonObject> = expect(isObject, 'an object');
export const isState: Check<A2AState> = expect((v) => STATES.has(v), 'a task state');
export const isTime: Check<string> = expect(
  (v) => typeof v === 'string' && /^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)$/.test(v) && !Number.isNaN(Date.parse(v)),
  'an ISO 8601 time',
);
export const isCount = (min: number, max: number): Check<number> =>
  expect(
    (v) => Number.isInteger(v) && (v as number) >= min && (v as number) <= max,
    `an integer from ${min} to ${max}`,
  );
const isBase64: Check<string> = expect((v) => typeof v === 'string' && /^[\w+/-]*={0,2}$/.test(v), 'base64');
const isValue: Check<Json> = (value) => value as Json;
const isWord = <T extends string>(...words: T[]): Check<T> =>
  expect((v) => words.includes(v as T), words.map((word) => JSON.stringify(word)).join(' or '));

export const isList =
  <T>(item: Check<T>, min = 0): Check<T[]> =>
  (value, at) => {
    if (!Array.isArray(value) || value.length < min)
      throw new Misfit(at, `must be a list${min ? ' that is not empty' : ''}`);
    return value.map((one, i) => item(one, `${at}[${i}]`));
  };

/** An object with the given members. As in ProtoJSON, null means absent, and unknown members are dropped. */
export const isShaped =
  <T>(required: Record<string, Check<unknown>>, optional: Record<string, Check<unknown>> = {}): Check<T> =>
  (value, at) => {
    const given = isMap(value, at);
    const known: Record<string, unknown> = {};
    const take = (name: string, check: Check<unknown>): void => {
      const value = check(given[name], at === '' ? name : `${at}.${name}`);
      if (value !== undefined) known[name] = value;
    };
    for (const name in required) take(name, required[name]!);
    for (const name in optional) {
      if (given[name] !== undefined && given[name] !== null) take(name, optional[name]!);
    }
    return known as T;
  };

const CONTENT = { text: isAnyText, raw: isBase64, url: isText, data: isValue };

export const isPart: Check<A2APart> = (value, at) => {
  const given = isMap(value, at);
  // In `data`, null is an ordinary value.
  const kinds = Object.keys(CONTENT).filter((kind) =>
    kind === 'data' ? kind in given : (given[kind] ?? null) !== null,
  );
  if (kinds.length !== 1) throw new Misfit(at, 'must have exactly one of text, raw, url and data');
  const kind = kinds[0] as keyof typeof CONTENT;
  return isShaped<A2APart>({ [kind]: CONTENT[kind] }, { filename: isAnyText, mediaType: isAnyText, metadata: isMap })(
    value,
    at,
  );
};

const REST = { extensions: isList(isText), metadata: isMap };
const AROUND = { contextId: isTextOrNone, taskId: isTextOrNone, referenceTaskIds: isList(isText), ...REST };

const isMessageOf = (role: Check<string>): Check<A2AMessage> =>
  isShaped({ messageId: isText, role, parts: isList(isPart, 1) }, AROUND);
const isMessage: Check<A2AMessage> = isMessageOf(isWord('ROLE_USER', 'ROLE_AGENT'));
export const isUserMessage: Check<A2AMessage> = isMessageOf(isWord('ROLE_USER'));
export const isArtifact: Check<A2AArtifact> = isShaped(
  { artifactId: isText, parts: isList(isPart, 1) },
  { name: isAnyText, description: isAnyText, ...REST },
);
const isStatus: Check<A2AStatus> = isShaped({ state: isState }, { message: isMessage, timestamp: isTime });
export const isTask: Check<A2ATaskView> = isShaped(
  { id: isText, status: isStatus },
  { contextId: isTextOrNone, artifacts: isList(isArtifact), history: isList(isMessage), metadata: isMap },
);
const OF_TASK = { taskId: isText, contextId: isAnyText };
const ITEMS: Record<string, Check<unknown>> = {
  task: isTask,
  message: isMessage,
  statusUpdate: isShaped({ ...OF_TASK, status: isStatus }, { metadata: isMap }),
  artifactUpdate: isShaped(
    { ...OF_TASK, artifact: isArtifact },
    { append: isFlag, lastChunk: isFlag, metadata: isMap },
  ),
};
export const isItem: Check<A2AItem> = (value, at) => {
  const given = isMap(value, at);
  const kinds = Object.keys(ITEMS).filter((kind) => given[kind] !== undefined);
  if (kinds.length !== 1) throw new Misfit(at, `must have exactly one of ${Object.keys(ITEMS).join(', ')}`);
  return isShaped<A2AItem>({ [kinds[0]!]: ITEMS[kinds[0]!]! })(value, at);
};

const BAD_REQUEST = 'type.googleapis.com/google.rpc.BadRequest';

/** The error for an invalid param. */
export function badField(field: string, description: string): RpcError {
  return badParams(`${field}: ${description}`, [{ '@type': BAD_REQUEST, fieldViolations: [{ field, description }] }]);
}

function fitted<T>(check: Check<T>, value: unknown, at: string, error: (misfit: Misfit) => Error): T {
  try {
    return check(value, at);
  } catch (cause) {
    throw cause instanceof Misfit ? error(cause) : cause;
  }
}

/** Checks params. @throws an {@link RpcError} -32602 if one is invalid */
export function checkParams<T>(check: Check<T>, params: unknown): T {
  return fitted(check, params ?? {}, '', ({ at, why }) => badField(at || 'params', why));
}

/** Checks our own value, or an answer. @throws a {@link TechnocoreError} with the given code if it is invalid */
export function checkValue<T>(check: Check<T>, value: unknown, at: string, code: string): T {
  return fitted(check, value, at, (misfit) => new TechnocoreError(code, misfit.message));
}

// --- version 0.3 -------------------------------------------------------------------------------------------------

/** Marks data that is not an object in 1.0 and is wrapped in one in 0.3. */
const WRAPPED = 'data_part_compat';

const isPart03: Check<A2APart> = (value, at) => {
  const { kind, metadata, text, file, data } = isMap(value, at);
  const meta = metadata === undefined ? undefined : isMap(metadata, `${at}.metadata`);
  if (kind === 'text') return compact({ text: isAnyText(text, `${at}.text`), metadata: meta }) as A2APart;
  if (kind === 'data') {
    const inside = isMap(data, `${at}.data`);
    if (meta?.[WRAPPED] !== true) return compact({ data: inside, metadata: meta }) as A2APart;
    const { [WRAPPED]: _, ...rest } = meta;
    return compact({ data: inside['value'] ?? null, metadata: Object.keys(rest).length ? rest : undefined }) as A2APart;
  }
  if (kind !== 'file') throw new Misfit(`${at}.kind`, 'must be "text", "file" or "data"');
  const { bytes, uri, name, mimeType } = isMap(file, `${at}.file`);
  if ((bytes === undefined) === (uri === undefined)) throw new Misfit(`${at}.file`, 'must have one of bytes and uri');
  return isPart(compact({ raw: bytes, url: uri, filename: name, mediaType: mimeType, metadata: meta }), `${at}.file`);
};

const kindIs = (kind: string) => ({ kind: isWord(kind) });
const ROLES = { user: 'ROLE_USER', agent: 'ROLE_AGENT' } as const;

const isMessageOf03 =
  (...roles: (keyof typeof ROLES)[]): Check<A2AMessage> =>
  (value, at) => {
    const {
      kind: _,
      role,
      ...rest
    } = isShaped<any>(
      { messageId: isText, role: isWord(...roles), parts: isList(isPart03, 1) },
      { ...kindIs('message'), ...AROUND },
    )(value, at);
    return { ...rest, role: ROLES[role as keyof typeof ROLES] };
  };
export const isUserMessage03: Check<A2AMessage> = isMessageOf03('user');
const isMessage03: Check<A2AMessage> = isMessageOf03('user', 'agent');
const isArtifact03: Check<A2AArtifact> = isShaped(
  { artifactId: isText, parts: isList(isPart03, 1) },
  { name: isAnyText, description: isAnyText, ...REST },
);
const isState03: Check<A2AState> = (value, at) => {
  const state = STATES.has(value) ? undefined : stateOf(value);
  if (!state) throw new Misfit(at, 'must be a task state');
  return state;
};
const isStatus03: Check<A2AStatus> = isShaped({ state: isState03 }, { message: isMessage03, timestamp: isTime });
export const isTask03: Check<A2ATaskView> = isShaped(
  { id: isText, contextId: isText, status: isStatus03 },
  { artifacts: isList(isArtifact03), history: isList(isMessage03), metadata: isMap },
);
const ITEMS03: ReadonlyMap<unknown, [keyof A2AItem, Check<unknown>]> = new Map<
  unknown,
  [keyof A2AItem, Check<unknown>]
>([
  ['task', ['task', isTask03]],
  ['message', ['message', isMessage03]],
  ['status-update', ['statusUpdate', isShaped({ ...OF_TASK, status: isStatus03 }, { metadata: isMap })]],
  [
    'artifact-update',
    [
      'artifactUpdate',
      isShaped({ ...OF_TASK, artifact: isArtifact03 }, { append: isFlag, lastChunk: isFlag, metadata: isMap }),
    ],
  ],
]);
/** An item of 0.3, recognized by its `kind`, converted to 1.0. */
export const isItem03: Check<A2AItem> = (value, at) => {
  const [name, check] = ITEMS03.get(isMap(value, at)['kind']) ?? [];
  if (!name || !check) throw new Misfit(`${at}.kind`, `must be one of ${[...ITEMS03.keys()].join(', ')}`);
  return { [name]: check(value, at) };
};

function part03({ text, raw, url, data, filename, mediaType, metadata }: A2APart): JsonObject {
  if (text !== undefined) return compact({ kind: 'text', text, metadata });
  if (data === undefined) {
    const file = compact({ bytes: raw, uri: url, name: filename, mimeType: mediaType });
    return compact({ kind: 'file', file, metadata });
  }
  if (isObject(data)) return compact({ kind: 'data', data, metadata });
  return { kind: 'data', data: { value: data }, metadata: { ...metadata, [WRAPPED]: true } };
}

/** A message in the form of 0.3. */
export function message03(message: A2AMessage): JsonObject {
  const role = message.role === 'ROLE_USER' ? 'user' : 'agent';
  return { ...message, kind: 'message', role, parts: message.parts.map(part03) };
}

const artifact03 = (artifact: A2AArtifact): JsonObject => ({ ...artifact, parts: artifact.parts.map(part03) });

function status03({ state, message, timestamp }: A2AStatus): JsonObject {
  return compact({ state: wordOf(state), message: message && message03(message), timestamp });
}

/** A task in the form of 0.3. */
export function task03({ status, artifacts, history, ...rest }: A2ATaskView): JsonObject {
  return compact({
    ...rest,
    kind: 'task',
    status: status03(status),
    artifacts: artifacts?.map(artifact03),
    history: history?.map(message03),
  }) as JsonObject;
}

/** An item in the form of 0.3. */
export function item03({ task, message, statusUpdate, artifactUpdate }: A2AItem): JsonObject {
  if (task) return task03(task);
  if (message) return message03(message);
  if (artifactUpdate) {
    return { ...artifactUpdate, kind: 'artifact-update', artifact: artifact03(artifactUpdate.artifact) };
  }
  const { status, ...rest } = statusUpdate!;
  const final = isTerminal(status.state) || isInterrupted(status.state);
  return { ...rest, kind: 'status-update', status: status03(status), final };
}

// --- streams -----------------------------------------------------------------------------------------------------

/** The maximum number of concurrent streams of an agent, in all and for one caller. */
export const MAX_STREAMS = [256, 16] as const;
/** How many items can wait for a slow reader, on either side. */
export const MAX_BEHIND = 256;
/** After how long a stream ends, ms: otherwise it would outlive a reader that silently went away. */
export const STREAM_MS = 3_600_000;
