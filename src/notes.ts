/**
 * Notes: values that anybody can write under a namespace and a key, conditional writes, and the two namespaces that
 * define who owns a room. Rules: technocore.chat (shapes of answers, errors, notes: conditions and ownership).
 *
 * @module
 */
import {
  BadName,
  checkObject,
  checkText,
  type HttpError,
  MayHaveLanded,
  type StaleNonce,
  TechnocoreError,
  Unavailable,
} from './errors.ts';
import { isObject, MAX_NOTE, parseJson, sweep } from './frames.ts';
import {
  Attempts,
  budgetOf,
  isTransient,
  type Options,
  type Request,
  retrying,
  type Transport,
  transportOf,
} from './http.ts';
import { checkName, isDid, isNonce, roomClasses } from './names.ts';
import { checkSigner, mayBeDone, PATIENCE_MS, type SigningKey } from './rooms.ts';
import { ask, oddAnswer, uncached, type Write, writeRequest } from './service.ts';
import type { Signer } from './signer.ts';

/**
 * Reads the value of a note. Anybody may have written it. Transient failures are retried for up to 30 seconds.
 *
 * @param ns the namespace, a valid name: see {@link isName}
 * @param key the key in the namespace, a valid name: see {@link isName}
 * @returns the value; undefined if there is no such note
 * @throws a {@link BadName} if the namespace or key is not a name
 * @throws a {@link RateLimited} or {@link Unavailable} if the service could not be read within that time
 * @throws the signal's reason when it aborts
 */
export async function getNote(ns: string, key: string, o: Options = {}): Promise<string | undefined> {
  checkName(ns, 'namespace');
  checkName(key, 'key');
  const t = transportOf(o);
  const bounds = o.signal ? { signal: o.signal } : {};
  return retrying(t, t.clock.now() + PATIENCE_MS, () => readNote(t, ns, key, bounds), o.signal);
}

/** @internal Reads a note with one request, within the given bounds. */
export async function readNote(
  t: Transport,
  ns: string,
  key: string,
  bounds: Pick<Request, 'signal' | 'deadline' | 'timeoutMs'> = {},
): Promise<string | undefined> {
  try {
    const path = `/kv/${ns}/${key}?${uncached(t)}`;
    const { text } = await ask(t, { path, bucket: 'read', ...bounds });
    // A banner, an empty line, the value, perhaps a budget line. A value may look like a budget line, but has no line
    // break.
    const [banner, empty, value, budget] = text.split('\n', 4);
    const left = /^# budget: (\d+) of (\d+) reads left/.exec(budget ?? '');
    if (left) budgetOf(t, 'read').learn(Number(left[2]), Number(left[1]));
    if (!banner?.startsWith('!!') || empty !== '' || value === undefined) throw oddAnswer('a note');
    return value;
  } catch (cause) {
    if (isMissing(cause)) return undefined;
    if (isCutShort(cause)) throw new Unavailable('the answer was cut short', cause);
    throw cause;
  }
}

/** Whether the service's message that there is no such note was cut short. */
const isCutShort = (cause: unknown): boolean =>
  TechnocoreError.is(cause) &&
  (cause as HttpError).status === 404 &&
  '404 no note'.startsWith((cause as HttpError).body);

const isMissing = (cause: unknown): boolean =>
  TechnocoreError.is(cause) && (cause as HttpError).status === 404 && /^404 no note/.test((cause as HttpError).body);

/** Options of {@link setNote}: the condition of the write. At most one of the two may be given. */
export interface SetOptions {
  /** Write only if the note's current value is exactly this. */
  // No `| undefined`, unlike other options: a missing value would silently make the write unconditional.
  if?: string;
  /** Write only if there is no such note. */
  ifAbsent?: boolean | undefined;
}

/**
 * Writes a note, optionally by compare-and-set. Without a condition the last write wins. Transient failures are retried
 * for up to 30 seconds. The service deletes notes that nobody writes for seven days.
 *
 * @param ns the namespace, a valid name: see {@link isName}
 * @param key the key in the namespace, a valid name: see {@link isName}
 * @param value at most 8,192 code points after the {@link sweep}
 * @throws a {@link BadName}, {@link EmptyText}, {@link FrameTooLong} or {@link TechnocoreError} `bad_option` (both
 * conditions) before anything is sent
 * @throws a {@link Conflict} if the condition does not hold; `actual` is the current value
 * @throws a {@link MayHaveLanded} if the response was lost and no retry was answered; or if the response to a
 * conditional write was lost and the condition did not hold at the next attempt (`cause` is that Conflict): either the
 * first attempt or somebody else may have written the note
 * @throws a {@link Forbidden}, {@link RateLimited}, {@link CapacityReached} or {@link Unavailable} if the service
 * refuses, or could not be reached
 * @throws the signal's reason when it aborts
 * @example
 * ```ts
 * import { Conflict, getNote, setNote } from 'technocore-rpc';
 *
 * await setNote('p-workshop-41c7', 'state', 'open');
 * try {
 *   await setNote('p-workshop-41c7', 'state', 'closed', { if: 'open' });
 * } catch (e) {
 *   if (!Conflict.is(e)) throw e;
 *   console.log('somebody else was faster:', e.actual);
 * }
 * console.log(await getNote('p-workshop-41c7', 'state'));
 * ```
 */
export async function setNote(ns: string, key: string, value: string, o: Options & SetOptions = {}): Promise<void> {
  checkName(ns, 'namespace');
  checkName(key, 'key');
  const swept = sweep(value, MAX_NOTE, 'the value of a note');
  const t = transportOf(o);
  const write = noteWrite(ns, key, 'set', swept, { value: swept }, o);
  const attempts = new Attempts(t, t.clock.now() + PATIENCE_MS, o.signal);
  let doubt: unknown;
  for (;;) {
    try {
      await put(t, write, o.signal);
      return;
    } catch (cause) {
      if (o.signal?.aborted || !TechnocoreError.is(cause)) throw cause;
      if (doubt && cause.code === 'conflict') throw new MayHaveLanded(`${ns}/${key}`, undefined, cause);
      if (!isTransient(cause)) throw cause;
      // Resending is safe: an unconditional write may land twice, and a conditional one that landed already conflicts.
      if (mayBeDone(cause)) doubt = cause;
      if (!(await attempts.again(cause, { note: `${ns}/${key}` }))) {
        throw doubt ? new MayHaveLanded(`${ns}/${key}`, undefined, doubt) : cause;
      }
    }
  }
}

/** Writes with one request. Only the service's own confirmation counts, not any page with status 200. */
async function put(t: Transport, write: Write, signal: AbortSignal | undefined): Promise<void> {
  const { text } = await ask(t, { ...writeRequest(t, write), signal });
  if (!/^ok\b/.test(text)) throw new Unavailable('the answer does not confirm that the note was written');
}

function noteWrite(
  ns: string,
  key: string,
  route: string,
  value: string,
  body: Record<string, string>,
  condition: SetOptions,
): Write {
  if (condition.if !== undefined && condition.ifAbsent) {
    throw new TechnocoreError('bad_option', 'the options if and ifAbsent exclude each other');
  }
  // In a query, `+` means a space; encodeURIComponent escapes it. It throws on lone surrogates, which no note can hold.
  const expected =
    condition.if === undefined ? undefined : checkText(condition.if, 'the option if').replace(/\p{Cs}/gu, '\ufffd');
  const query =
    expected !== undefined ? `?if=${encodeURIComponent(expected)}` : condition.ifAbsent ? '?if_absent=1' : '';
  return {
    path: `/kv/${ns}/${key}/${route}/${encodeURIComponent(value)}${query}`,
    // Even before a query, `.` is a path segment that URL parsers remove.
    text: value,
    postPath: `/kv/${ns}/${key}`,
    body: { ...body, ...(expected !== undefined && { if: expected }), ...(condition.ifAbsent && { if_absent: true }) },
  };
}

/**
 * Lists the keys of a namespace. Anybody may have written them. Transient failures are retried for up to 30 seconds.
 *
 * @param ns the namespace, a valid name: see {@link isName}
 * @returns the keys in ascending order; those that begin with `p-` are not listed
 * @throws a {@link BadName} if the namespace is not a name
 * @throws a {@link RateLimited} or {@link Unavailable} if the service could not be read within that time
 * @throws the signal's reason when it aborts
 */
export async function listNotes(ns: string, o: Options = {}): Promise<string[]> {
  checkName(ns, 'namespace');
  const t = transportOf(o);
  return retrying(
    t,
    t.clock.now() + PATIENCE_MS,
    async () => {
      const path = `/kv/${ns}?format=json&${uncached(t)}`;
      const { text } = await ask(t, { path, bucket: 'read', signal: o.signal });
      const list: unknown = parsed(text);
      if (!isObject(list) || !Array.isArray(list['keys'])) throw oddAnswer('a list of notes');
      return list['keys'].filter((key) => typeof key === 'string');
    },
    o.signal,
  );
}

function parsed(text: string): unknown {
  try {
    return parseJson(text);
  } catch {
    return undefined;
  }
}

// --- owned rooms ------------------------------------------------------------------------------------------------

/**
 * Makes the signer the owner of a room. From then on, only the owner and the keys that {@link allowWriters} names can
 * write there.
 *
 * @param room a room of class `d` (see {@link roomClasses}) that nobody has written to yet
 * @throws a {@link BadName} if the room is not of class `d`
 * @throws a {@link BadKey} if no signer is given
 * @throws a {@link Conflict} if the room already has an owner; `actual` is the owner's DID
 * @throws a {@link Forbidden} if the room has messages, or can never be owned
 * @throws a {@link MayHaveLanded} if the response was lost and the outcome cannot be determined
 * @throws a {@link RateLimited}, {@link CapacityReached} or {@link Unavailable} as {@link setNote} does
 *
 * @example
 * ```ts
 * import { allowWriters, claimRoom, Signer } from 'technocore-rpc';
 *
 * const [owner, friend] = [Signer.generate(), Signer.generate()];
 * await claimRoom('d-news-4f1c', owner);
 * await allowWriters('d-news-4f1c', [friend.did], owner);
 * const { seq } = await friend.say('d-news-4f1c', 'hello');
 * console.log(seq); // 1
 * ```
 */
export async function claimRoom(room: string, signer: Signer, o: Options = {}): Promise<void> {
  checkSigner(signer);
  await setOwnership('room-owners', room, signer.did, signer, { ...checkObject(o), ifAbsent: true });
}

/**
 * Sets which keys, besides the owner, may write to a room that the signer owns. Replaces the previous list.
 *
 * @param room a room of class `d` that the signer has claimed with {@link claimRoom}
 * @param dids the writers' DIDs; with an empty array, only the owner can write
 * @throws a {@link BadName} if one of them is not a DID, or the room is not of class `d`
 * @throws a {@link BadKey} if no signer is given
 * @throws a {@link FrameTooLong} if the list does not fit into a note, which holds about 140 DIDs
 * @throws a {@link Forbidden} if the signer does not own the room
 * @throws a {@link MayHaveLanded} if the response was lost and the outcome cannot be determined
 * @throws a {@link RateLimited}, {@link CapacityReached} or {@link Unavailable} as {@link setNote} does
 */
export async function allowWriters(
  room: string,
  dids: readonly string[],
  signer: Signer,
  o: Options = {},
): Promise<void> {
  checkSigner(signer);
  if (!Array.isArray(dids)) throw new BadName(dids, 'the writers must be an array of did:key');
  const bad = dids.find((did) => !isDid(did));
  if (bad !== undefined) throw new BadName(bad, 'not a did:key');
  // A note cannot be empty, so an empty list names the owner.
  await setOwnership('room-allow', room, dids.length > 0 ? dids.join(' ') : signer.did, signer, o);
}

/**
 * Writes to one of the two ownership namespaces. They share one nonce counter per room, which anybody can read, and
 * which older services raise even if they refuse the write.
 */
async function setOwnership(
  ns: string,
  room: string,
  value: string,
  key: SigningKey,
  o: Options & SetOptions,
): Promise<void> {
  checkName(room, 'room');
  if (!roomClasses(room).d) throw new BadName(room, 'only a room whose name begins with d- can be owned');
  const swept = sweep(value, MAX_NOTE);
  const t = transportOf(o);
  const scope = `kv:${room}`;
  const attempts = new Attempts(t, t.clock.now() + PATIENCE_MS, o.signal);
  let doubt: unknown;
  for (let stale = 0; ; ) {
    try {
      const last = await getNote('room-nonce', room, o);
      if (isNonce(last)) await key.raiseNonce(scope, last, t.clock);
      await key.withNonce(
        scope,
        t.clock,
        async (nonce) => {
          const { did, sig } = key.signNote(ns, room, nonce, swept);
          const write = noteWrite(
            ns,
            room,
            `set-signed/${did}/${sig}/${nonce}`,
            swept,
            { value: swept, did, sig, nonce },
            o,
          );
          await put(t, write, o.signal);
        },
        o.signal,
      );
      return;
    } catch (cause) {
      if (o.signal?.aborted || !TechnocoreError.is(cause)) throw cause;
      // Only the owner can write this value, so if it is there, our write landed.
      if (doubt && (await getNote(ns, room, o).catch(() => undefined)) === swept) return;
      if (cause.code === 'stale_nonce') {
        await key.raiseNonce(scope, (cause as StaleNonce).last, t.clock);
        if (stale++ < 2) continue;
      } else if (!isTransient(cause)) throw cause;
      if (mayBeDone(cause)) doubt = cause;
      if (!(await attempts.again(cause, { note: `${ns}/${room}` }))) {
        throw doubt ? new MayHaveLanded(`${ns}/${room}`, undefined, doubt) : cause;
      }
    }
  }
}
