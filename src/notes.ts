/**
 * Notes: values under a namespace and a key that anybody can write, compare-and-set, and the two namespaces that say who
 * owns a room. Rules: wire sections 4, 5 and 9 of the service.
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
import { isObject, MAX_NOTE, sweep } from './frames.ts';
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
import { ask, uncached, type Write, writeRequest } from './service.ts';

/**
 * The value of a note, or undefined where there is none. Anybody may have written it.
 *
 * @throws BadName not a namespace or key
 */
export async function getNote(ns: string, key: string, o: Options = {}): Promise<string | undefined> {
  checkName(ns, 'namespace');
  checkName(key, 'key');
  const t = transportOf(o);
  const bounds = o.signal ? { signal: o.signal } : {};
  return retrying(t, t.clock.now() + PATIENCE_MS, () => readNote(t, ns, key, bounds), o.signal);
}

/** @internal One read, one request, within the bounds given. */
export async function readNote(
  t: Transport,
  ns: string,
  key: string,
  bounds: Pick<Request, 'signal' | 'deadline' | 'timeoutMs'> = {},
): Promise<string | undefined> {
  try {
    const path = `/kv/${ns}/${key}?${uncached(t)}`;
    const { text } = await ask(t, { path, bucket: 'read', ...bounds });
    // A banner, an empty line, the value, perhaps a budget line; a value may look like a budget line, never like a line end.
    const [banner, empty, value, budget] = text.split('\n', 4);
    const left = /^# budget: (\d+) of (\d+) reads left/.exec(budget ?? '');
    if (left) budgetOf(t, 'read').learn(Number(left[2]), Number(left[1]));
    if (!banner?.startsWith('!!') || empty !== '' || value === undefined)
      throw new Unavailable('the answer is not a note');
    return value;
  } catch (cause) {
    if (isMissing(cause)) return undefined;
    if (isCutOff(cause)) throw new Unavailable('the answer broke off', cause);
    throw cause;
  }
}

/** The beginning of the word that there is no note, and no more. */
const isCutOff = (cause: unknown): boolean =>
  TechnocoreError.is(cause) &&
  (cause as HttpError).status === 404 &&
  '404 no note'.startsWith((cause as HttpError).body);

const isMissing = (cause: unknown): boolean =>
  TechnocoreError.is(cause) && (cause as HttpError).status === 404 && /^404 no note/.test((cause as HttpError).body);

/** How to write a note. */
export interface SetOptions {
  /** Write only if the note holds exactly this. */
  if?: string;
  /** Write only if there is no note. */
  ifAbsent?: boolean;
}

/**
 * Writes a note; unconditional writes: the last one wins.
 *
 * @throws BadName, EmptyText, FrameTooLong before anything is sent
 * @throws Conflict the condition does not hold; `actual` is the value that is there
 * @throws MayHaveLanded the answer was lost and no later one came; or, of a conditional write, the condition did not hold
 * the next time: because it had been written, or because somebody else wrote. Then `cause` is the Conflict
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
      // Resending is safe: an unconditional write that lands twice is the same write, a conditional one that landed loses.
      if (mayBeDone(cause)) doubt = cause;
      if (!(await attempts.again(cause, { note: `${ns}/${key}` }))) {
        throw doubt ? new MayHaveLanded(`${ns}/${key}`, undefined, doubt) : cause;
      }
    }
  }
}

/** One write, one request. Only the service's own word is taken for it, not any page that something on the way shows. */
async function put(t: Transport, write: Write, signal: AbortSignal | undefined): Promise<void> {
  const { text } = await ask(t, { ...writeRequest(t, write), signal });
  if (!/^ok\b/.test(text)) throw new Unavailable('the answer is not that of a note that was written');
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
    throw new TechnocoreError('bad_option', 'a write cannot ask for a value and for none at once');
  }
  // In a query, unlike in a path, `+` is a blank; encodeURIComponent escapes it. It refuses lone surrogates, which no note holds.
  const expected =
    condition.if === undefined ? undefined : checkText(condition.if, 'the option if').replace(/\p{Cs}/gu, '\ufffd');
  const query =
    expected !== undefined ? `?if=${encodeURIComponent(expected)}` : condition.ifAbsent ? '?if_absent=1' : '';
  return {
    path: `/kv/${ns}/${key}/${route}/${encodeURIComponent(value)}${query}`,
    // With a query behind it the value still is a path segment that parsers remove.
    text: value,
    postPath: `/kv/${ns}/${key}`,
    body: { ...body, ...(expected !== undefined && { if: expected }), ...(condition.ifAbsent && { if_absent: true }) },
  };
}

/**
 * The keys of a namespace, ascending; those of class `p` are not listed. Anybody may have written them.
 *
 * @throws BadName not a namespace
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
      if (!isObject(list) || !Array.isArray(list['keys'])) throw new Unavailable('the answer is not a list of notes');
      return list['keys'].filter((key) => typeof key === 'string');
    },
    o.signal,
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// --- owned rooms ------------------------------------------------------------------------------------------------

/**
 * Makes the signer the owner of a `d-` room that nobody has written to; then only the owner and the keys of
 * {@link allowWriters} can write there.
 *
 * @throws BadName not a room of class `d`
 * @throws Conflict somebody owns it; `actual` is their DID
 * @throws Forbidden the room has messages, or can never be owned
 */
export async function claimRoom(room: string, signer: SigningKey, o: Options = {}): Promise<void> {
  checkSigner(signer);
  await setOwnership('room-owners', room, signer.did, signer, { ...checkObject(o), ifAbsent: true });
}

/**
 * Sets who may write to a room that the signer owns, besides the owner; replaces the list before.
 *
 * @throws BadName not a DID, or not a room of class `d`
 * @throws Forbidden the signer does not own the room
 */
export async function allowWriters(room: string, dids: string[], signer: SigningKey, o: Options = {}): Promise<void> {
  checkSigner(signer);
  if (!Array.isArray(dids)) throw new BadName(dids, 'who may write is an array of did:key');
  const bad = dids.find((did) => !isDid(did));
  if (bad !== undefined) throw new BadName(bad, 'not a did:key');
  // A note cannot be empty; a list of nobody else is one of the owner.
  await setOwnership('room-allow', room, dids.length > 0 ? dids.join(' ') : signer.did, signer, o);
}

/** Both namespaces share one counter per room, which the service shows and burns even for a write that then fails. */
async function setOwnership(
  ns: string,
  room: string,
  value: string,
  key: SigningKey,
  o: Options & SetOptions,
): Promise<void> {
  checkName(room, 'room');
  if (!roomClasses(room).d) throw new BadName(room, 'a room that can be owned begins with d-');
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
      // Only the owner can have written this value: finding it settles the doubt.
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
