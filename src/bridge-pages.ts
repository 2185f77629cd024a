/**
 * Pages for lists that are too long for one frame: servers of the SDK answer with whole lists, and only callers that
 * read answers from notes could take those. A cursor of ours names the page of the server, and where in it our page
 * starts.
 *
 * @module
 */
import { fromBase64url, fromUtf8, toBase64url, utf8 } from './bytes.ts';
import { badParams, type JsonObject } from './dispatch.ts';
import { decode, encodeLong, isObject, type Json } from './frames.ts';

/** The member that holds the list, by method. */
const MEMBERS: ReadonlyMap<string, string> = new Map([
  ['tools/list', 'tools'],
  ['prompts/list', 'prompts'],
  ['resources/list', 'resources'],
  ['resources/templates/list', 'resourceTemplates'],
]);

const PREFIX = 'tc1.';

/** Where a page starts: in which page of the server, and after how many of its items. */
export interface Place {
  /** The server's own cursor; absent for its first page. */
  readonly cursor?: string;
  readonly skip: number;
}

const cursorOf = ({ cursor, skip }: Place): string =>
  `${PREFIX}${toBase64url(utf8(JSON.stringify(cursor === undefined ? [skip] : [skip, cursor])))}`;

/**
 * The place that the params of a list request name.
 *
 * @throws an {@link RpcError} if the cursor looks like one of ours and is not
 */
export function placeIn({ cursor }: JsonObject): Place {
  if (typeof cursor !== 'string' || !cursor.startsWith(PREFIX)) {
    return typeof cursor === 'string' ? { cursor, skip: 0 } : { skip: 0 };
  }
  const named = decode(fromUtf8(fromBase64url(cursor.slice(PREFIX.length)) ?? new Uint8Array()) ?? '');
  const [skip, inner, ...rest] = Array.isArray(named) ? named : [];
  const isGood = Number.isInteger(skip) && (skip as number) >= 0 && rest.length === 0;
  if (!isGood || (inner !== undefined && typeof inner !== 'string')) throw badParams('Unknown cursor');
  return { ...(inner !== undefined && { cursor: inner as string }), skip: skip as number };
}

/** True for a method whose answer may come in pages. */
export const isList = (method: string): boolean => MEMBERS.has(method);

/**
 * The page of an answer that starts at a place: all the rest if it fits, else as many items as fit.
 *
 * @throws an {@link RpcError} if the list has become shorter than that
 */
export function pageOf(method: string, answer: JsonObject, place: Place, limit: number): JsonObject {
  const member = MEMBERS.get(method)!;
  const result = answer['result'];
  const all = isObject(result) ? result[member] : undefined;
  if (!isObject(result) || !Array.isArray(all)) return answer;
  if (place.skip > 0 && place.skip >= all.length) throw badParams('Unknown cursor');
  const { nextCursor, ...rest } = result as JsonObject;
  const items = all.slice(place.skip) as Json[];
  const page = (some: Json[], cursor: Json | undefined): JsonObject => ({
    ...answer,
    result: { ...rest, [member]: some, ...(cursor !== undefined && { nextCursor: cursor }) },
  });
  // A cursor of the server that looks like one of ours must not be taken for one.
  const isOdd = typeof nextCursor === 'string' && nextCursor.startsWith(PREFIX);
  const whole = page(items, isOdd ? cursorOf({ cursor: nextCursor, skip: 0 }) : nextCursor);
  if (encodeLong(whole).length <= limit) return whole;
  const next = (count: number): string => cursorOf({ ...place, skip: place.skip + count });
  let left = limit - encodeLong(page([], next(items.length))).length;
  // An item that is too long for a frame gets its own page, which can be refused.
  const over = items.findIndex((item) => (left -= encodeLong(item).length + 1) < 0);
  const count = Math.max(1, over < 0 ? items.length - 1 : over);
  return count < items.length ? page(items.slice(0, count), next(count)) : whole;
}
