/**
 * The params of requests to agents in the forms of A2A 1.0 and 0.3, and the comparison of requests, media types and
 * places in a list.
 *
 * @module
 */
import type { A2AState } from './a2a-states.ts';
import {
  type A2AItem,
  type A2AMessage,
  type A2ATaskView,
  badField,
  type Check,
  isAnyText,
  isCount,
  isFlag,
  isList,
  isMap,
  isShaped,
  isState,
  isText,
  isTime,
  isUserMessage,
  isUserMessage03,
  item03,
  task03,
} from './a2a-types.ts';
import { fromBase64url, fromUtf8, toBase64url, toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import type { CallContext } from './dispatch.ts';
import { encodeLong, type Json } from './frames.ts';

/** How long an answer waits if the caller does not say, and how long a stream waits for a direct answer, ms. */
export const UNSAID_MS = 1000;

/** The checked params of a request that sends a message. */
export interface Sent {
  message: A2AMessage;
  configuration?: {
    acceptedOutputModes?: string[];
    historyLength?: number;
    returnImmediately?: boolean;
    blocking?: boolean;
    taskPushNotificationConfig?: object;
    pushNotificationConfig?: object;
  };
}

const isHistoryLength = isCount(0, 0x7fffffff);
const MODES = { acceptedOutputModes: isList(isText), historyLength: isHistoryLength };
const AROUND = { metadata: isMap, tenant: isAnyText };

/** The differences between the versions of A2A, for agents. */
export interface Spelling {
  readonly sent: Check<Sent>;
  /** How long the answer to a message should wait for its task, ms; -1 for as long as allowed. */
  waitMs(configuration: NonNullable<Sent['configuration']>): number;
  readonly task: (task: A2ATaskView) => Json;
  readonly item: (item: A2AItem) => Json;
}

/** A2A 1.0. */
export const V1: Spelling = {
  sent: isShaped(
    { message: isUserMessage },
    {
      configuration: isShaped({}, { ...MODES, returnImmediately: isFlag, taskPushNotificationConfig: isMap }),
      ...AROUND,
    },
  ),
  waitMs: ({ returnImmediately }) => (returnImmediately ? 0 : -1),
  task: (task) => task,
  item: (item) => item as Json,
};

/** A2A 0.3. */
export const V03: Spelling = {
  sent: isShaped(
    { message: isUserMessage03 },
    { configuration: isShaped({}, { ...MODES, blocking: isFlag, pushNotificationConfig: isMap }), ...AROUND },
  ),
  waitMs: ({ blocking }) => (blocking === undefined ? UNSAID_MS : blocking ? -1 : 0),
  task: task03,
  item: item03,
};

export const isIdentified: Check<{ id: string; historyLength?: number }> = isShaped(
  { id: isText },
  { historyLength: isHistoryLength, ...AROUND },
);

interface Listed {
  contextId?: string;
  status?: A2AState;
  pageSize?: number;
  pageToken?: string;
  historyLength?: number;
  statusTimestampAfter?: string;
  includeArtifacts?: boolean;
}

/** The first value of the enumeration means "not set"; ProtoJSON may write it or omit it. */
const isStateOrNone: Check<A2AState | undefined> = (value, at) =>
  value === 'TASK_STATE_UNSPECIFIED' ? undefined : isState(value, at);

export const isListed: Check<Listed> = isShaped(
  {},
  {
    contextId: isAnyText,
    status: isStateOrNone,
    pageSize: isCount(1, 100),
    pageToken: isAnyText,
    historyLength: isHistoryLength,
    statusTimestampAfter: isTime,
    includeArtifacts: isFlag,
    tenant: isAnyText,
  },
);

/** The key by which tasks are sorted: the time of their status, then their id. */
export const placeOf = ({ id, status }: A2ATaskView): string => `${status.timestamp} ${id}`;
/** Compares tasks for sorting, newest first. */
export const byPlace = (a: A2ATaskView, b: A2ATaskView): number => {
  const [one, other] = [a.status.timestamp!, b.status.timestamp!];
  return one === other ? (a.id < b.id ? 1 : -1) : one < other ? 1 : -1;
};
/** The token of the page that follows a task. */
export const tokenOf = (task: A2ATaskView): string => toBase64url(utf8(placeOf(task)));

/** The key of the task that a page token names. @throws an {@link RpcError} if it is not such a token */
export function placeIn(token: string): string {
  const bytes = fromBase64url(token);
  const place = bytes && fromUtf8(bytes);
  if (!place || !/^\d{4}-[\d-]+T[\d:.]+Z ./.test(place)) throw badField('pageToken', 'does not come from a list');
  return place;
}

/**
 * Whether a media type or range covers another type. Parameters are ignored; many cards say `text` for plain text.
 */
export function covers(mode: string, type: string): boolean {
  const [range, one] = [mode === 'text' ? 'text/plain' : mode, type].map((text) =>
    text.split(';', 1)[0]!.trim().toLowerCase(),
  );
  return range === one || range === '*/*' || (range!.endsWith('/*') && one!.startsWith(range!.slice(0, -1)));
}

/** A key for a request, which stays the same when the request is sent again. */
export function requestOf(id: CallContext['id'], message: A2AMessage): string | undefined {
  if (id === undefined || id === null) return undefined;
  return toHex(sha256(utf8(encodeLong([id, message]))).subarray(0, 16));
}
