/**
 * Web pages that a person must open before a server executes a request, for example to sign in. A server with a
 * handshake says so with an error, and expects the request again afterwards. Without one, the answer is a question to
 * the person.
 *
 * @module
 */
import { objectIn } from './bridge-handshake.ts';
import { toHex, utf8 } from './bytes.ts';
import { sha256 } from './crypto.ts';
import { INTERNAL_ERROR, type JsonObject } from './dispatch.ts';
import { RpcError } from './errors.ts';
import { isObject, type Json } from './frames.ts';
import { CLIENT_CAPABILITIES, MISSING_CAPABILITY } from './toolcall.ts';

/** The code of that error, which only revision 2025-11-25 has. */
const OPEN_FIRST = -32042;
/** How many pages one answer may ask for. */
const MAX_PAGES = 8;
/** The prefix of the keys of such questions. */
const PAGE = 'page:';

/**
 * The questions that replace a server's error; undefined if it is another error.
 *
 * @param meta the `_meta` of the request
 * @param opened the keys of the questions that this request answers
 * @throws an {@link RpcError} if the caller cannot be asked, or has already answered
 */
export function pagesOf(error: unknown, meta: JsonObject, opened: ReadonlySet<string>): JsonObject | undefined {
  if (!isObject(error) || error['code'] !== OPEN_FIRST) return undefined;
  const { elicitations } = objectIn(error, 'data');
  const pages = (Array.isArray(elicitations) ? elicitations : []).flatMap((page) => {
    const { url, message } = isObject(page) ? page : {};
    return typeof url === 'string' && typeof message === 'string' ? [{ url, message }] : [];
  });
  if (pages.length === 0) return undefined;
  const why = typeof error['message'] === 'string' ? error['message'] : 'A page must be opened first';
  if (!isObject(objectIn(meta[CLIENT_CAPABILITIES], 'elicitation')['url'])) {
    throw new RpcError(MISSING_CAPABILITY, why, { requiredCapabilities: { elicitation: { url: {} } } });
  }
  const asked = pages
    .slice(0, MAX_PAGES)
    .map(({ url, message }): [string, Json] => [
      `${PAGE}${toHex(sha256(utf8(url)).subarray(0, 8))}`,
      { method: 'elicitation/create', params: { mode: 'url', message, url } },
    ]);
  if (asked.every(([key]) => opened.has(key))) {
    throw new RpcError(INTERNAL_ERROR, `${why}: the page was opened; call again when you are done there`);
  }
  return Object.fromEntries(asked);
}

/**
 * The keys of the questions for pages that a request answers.
 *
 * @throws an {@link RpcError} if the person declined to open one
 */
export function openedIn(inputResponses: unknown): ReadonlySet<string> {
  const answers = Object.entries(isObject(inputResponses) ? inputResponses : {}).filter(([key]) =>
    key.startsWith(PAGE),
  );
  if (!answers.every(([, answer]) => isObject(answer) && answer['action'] === 'accept')) {
    throw new RpcError(INTERNAL_ERROR, 'The server wants a page to be opened first, and that was declined');
  }
  return new Set(answers.map(([key]) => key));
}
