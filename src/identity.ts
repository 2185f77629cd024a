/**
 * Identity notes: the mailbox and the X25519 key of a DID. Anybody can write such a note, so only a record that the DID
 * itself signed is trusted; everything else in it is a hint. Rules: technocore.chat (identity notes, `e2e:` records).
 *
 * @module
 */
import { fromBase64url, toBase64url } from './bytes.ts';
import { isCanonicalX25519, x25519 } from './crypto.ts';
import { BadKey, BadNonce, type Conflict, checkMembers, TechnocoreError } from './errors.ts';
import { compact, MAX_NOTE } from './frames.ts';
import { backoffMs, type Options, sharedOf, type Transport, transportOf } from './http.ts';
import { remember } from './maps.ts';
import { checkName, identityNote, isDid, isName, isNonce, legacyIdentityNote, verify } from './names.ts';
import { MAX_NONCE } from './nonces.ts';
import { getNote, setNote } from './notes.ts';
import { checkSigner } from './rooms.ts';
import type { Signer } from './signer.ts';

/** How to reach a DID, according to its identity note: what {@link resolveIdentity} returns. */
export interface Identity {
  /** The room in which the DID takes requests. */
  mailbox?: string;
  /** The X25519 public key for end-to-end encryption: 43 characters of base64url. */
  x25519?: string;
  /** Whether the DID signed both. If false, anybody may have written them: never encrypt to such a key. */
  signed: boolean;
}

/** A signed record of a note: `e2e: <x25519> <mailbox> <nonce> <sig>`. */
interface KeyRecord {
  x25519: string;
  mailbox: string;
  nonce: bigint;
}

/**
 * @internal Decodes an X25519 public key from canonical base64url; undefined for anything else, and for a key of small
 * order.
 */
export function x25519FromText(text: string): Uint8Array | undefined {
  const key = fromBase64url(text);
  return key !== undefined && isCanonicalX25519(key) ? key : undefined;
}

/**
 * The X25519 key pair (RFC 7748) that {@link publishIdentity} publishes by default. It is derived from the signer's
 * seed, so anybody who has the seed can decrypt what is encrypted for it.
 *
 * @returns both keys, 32 bytes each
 * @throws a {@link BadKey} if no signer is given
 */
export function identityKeys(signer: Signer): { privateKey: Uint8Array; publicKey: Uint8Array } {
  checkSigner(signer);
  const privateKey = signer.derive('x25519');
  return { privateKey, publicKey: x25519(privateKey).publicKey };
}

// --- reading ----------------------------------------------------------------------------------------------------

/**
 * The tokens of a note. A service may send more than a note can hold; the excess is cut, which limits the number of
 * signatures to verify.
 */
const tokensOf = (value: string): string[] => value.slice(0, 2 * MAX_NOTE).split(/\s+/);

/** The fields after each token `name`. A record may begin anywhere, even inside the fields of another. */
function fieldsAfter(tokens: string[], name: string, count: number): string[][] {
  return tokens.flatMap((token, i) => (token === name ? [tokens.slice(i + 1, i + 1 + count)] : []));
}

/**
 * The valid record with the highest nonce that `did` signed, in the value of a note.
 *
 * @internal
 */
export function recordIn(did: string, value: string): KeyRecord | undefined {
  const records = fieldsAfter(tokensOf(value), 'e2e:', 4)
    .filter(([key = '', mailbox, nonce = '']) => x25519FromText(key) && isName(mailbox) && isNonce(nonce))
    .sort(([, , a], [, , b]) => Number(BigInt(b!) - BigInt(a!)));
  const best = records.find(([key, mailbox, nonce, sig = '']) =>
    verify(did, sig, `e2e|${did}|${key}|${mailbox}|${nonce}`),
  );
  return best && { x25519: best[0]!, mailbox: best[1]!, nonce: BigInt(best[2]!) };
}

const printedDid = (tokens: string[]): string | undefined => tokens.find((token) => token.startsWith('did:'));

/** The unsigned tokens of a note; none unless the first DID in it is `did`. */
function hintsIn(did: string, value: string): Omit<Identity, 'signed'> {
  const tokens = tokensOf(value);
  if (printedDid(tokens) !== did) return {};
  const hint = (name: string, isGood: (text: string) => unknown): string | undefined =>
    tokens.flatMap((token) => (token.startsWith(name) ? token.slice(name.length) : [])).find(isGood);
  return compact({ mailbox: hint('mailbox:', isName), x25519: hint('x25519:', x25519FromText) });
}

const SEEN = {};
/** For how many DIDs the highest nonce is remembered; the one met least recently is forgotten first. */
const MAX_SEEN = 4096;

const seenOf = (t: Transport): Map<string, bigint> => sharedOf(t, SEEN, () => new Map());

/** Remembers the nonce of a record. @returns false if a newer record was seen before: somebody restored an old note */
function isNewest(t: Transport, did: string, nonce: bigint): boolean {
  const seen = seenOf(t);
  const highest = seen.get(did) ?? -1n;
  remember(seen, did, highest > nonce ? highest : nonce, MAX_SEEN);
  return nonce >= highest;
}

/**
 * Looks up how to reach a DID in its identity note. Of the records that the DID signed, the one with the highest nonce
 * counts. Once a signed record has been seen (through the same service, `fetch` and clock), a note with an older one or
 * none has been tampered with, and is ignored (event `refused`). A note that never had a signed record gives hints,
 * with `signed: false`.
 *
 * @param did the `did:key` to look up
 * @returns undefined if there is no note, or nothing usable in it
 * @throws a {@link BadName} if it is not a `did:key` of an Ed25519 key
 * @throws a {@link RateLimited} or {@link Unavailable} if the service could not be read
 * @throws the signal's reason when it aborts
 */
export async function resolveIdentity(did: string, o: Options = {}): Promise<Identity | undefined> {
  const value = await identityValue(did, o);
  if (value === undefined) return undefined;
  const t = transportOf(o);
  const record = recordIn(did, value);
  if (record) {
    if (isNewest(t, did, record.nonce)) return { mailbox: record.mailbox, x25519: record.x25519, signed: true };
    t.onEvent({ kind: 'refused', did, reason: 'an older identity record was put back' });
    return undefined;
  }
  if (seenOf(t).has(did)) {
    t.onEvent({ kind: 'refused', did, reason: 'the signed identity record was taken away' });
    return undefined;
  }
  const hints = hintsIn(did, value);
  return Object.keys(hints).length > 0 ? { ...hints, signed: false } : undefined;
}

/** The value of an identity note or, if there is none, of the note at the address used by services before 0.8. */
async function identityValue(did: string, o: Options): Promise<string | undefined> {
  const [now, before] = [identityNote(did), legacyIdentityNote(did)];
  return (await getNote(now.ns, now.key, o)) ?? (await getNote(before.ns, before.key, o));
}

// --- publishing -------------------------------------------------------------------------------------------------

/** The newest delegation to each agent that `did` signed, as text. Expired ones are kept: they may revoke older ones. */
function delegationsIn(did: string, value: string): string[] {
  const newest = new Map<string, { nonce: bigint; text: string }>();
  for (const fields of fieldsAfter(tokensOf(value), 'delegate:', 5)) {
    const [agent = '', scope, expires, nonce = '', sig = ''] = fields;
    if (!isDid(agent) || !isNonce(nonce) || BigInt(nonce) <= (newest.get(agent)?.nonce ?? -1n)) continue;
    if (verify(did, sig, `delegate|${did}|${agent}|${scope}|${expires}|${nonce}`)) {
      newest.set(agent, { nonce: BigInt(nonce), text: `delegate: ${fields.join(' ')}` });
    }
  }
  return [...newest.values()].map(({ text }) => text);
}

/** Whether a note names exactly this mailbox and key for `did`, both signed and unsigned. */
function isCurrent(did: string, value: string, key: string, mailbox: string | undefined, record?: KeyRecord): boolean {
  const tokens = tokensOf(value);
  const says = (name: string, wanted: string | undefined): boolean => {
    const found = tokens.filter((token) => token.startsWith(name));
    return wanted === undefined
      ? found.length === 0
      : found.length > 0 && found.every((token) => token === name + wanted);
  };
  return (
    record?.mailbox === mailbox &&
    (record === undefined || record.x25519 === key) &&
    printedDid(tokens) === did &&
    says('x25519:', key) &&
    says('mailbox:', mailbox)
  );
}

/** How often a write is attempted while others change the note. */
const ATTEMPTS = 8;

/**
 * Publishes how to reach the signer in its identity note, so that others can {@link call} its DID and encrypt for it.
 * Writes nothing if the note is up to date. Delegations that the signer signed are kept; what others wrote is removed.
 *
 * @param identity `mailbox`: the room in which the signer takes requests; default: the one in its current signed
 * record. Without any mailbox there is no signed record, and the key is an unsigned hint. `x25519`: the public key, 32
 * bytes or base64url; default: that of {@link identityKeys}
 * @throws a {@link BadName} if the mailbox is not the name of a room
 * @throws a {@link BadKey} if the key is not a canonical X25519 public key or is of small order, or if no signer is
 * given
 * @throws a {@link TechnocoreError} `bad_option` if `identity` has other members (options are the third argument)
 * @throws a {@link BadNonce} if the current record has the highest possible nonce
 * @throws a {@link FrameTooLong} if the note cannot hold the signer's delegations
 * @throws a {@link Conflict} if others kept changing the note
 * @throws what {@link getNote} and {@link setNote} throw
 * @example
 * ```ts
 * import { publishIdentity, resolveIdentity, Signer } from 'technocore-rpc';
 *
 * const signer = Signer.generate();
 * await publishIdentity(signer, { mailbox: 'mb-p-bob-9a3e' });
 * console.log(await resolveIdentity(signer.did)); // { mailbox: 'mb-p-bob-9a3e', x25519: '…', signed: true }
 * ```
 */
export async function publishIdentity(
  signer: Signer,
  identity: { mailbox?: string | undefined; x25519?: Uint8Array | string | undefined } = {},
  o: Options = {},
): Promise<void> {
  checkSigner(signer);
  const { did } = signer;
  if (checkMembers(identity, 'the identity', ['mailbox', 'x25519']).mailbox !== undefined)
    checkName(identity.mailbox, 'room');
  const given = identity.x25519 ?? identityKeys(signer).publicKey;
  const key = typeof given === 'string' ? given : toBase64url(given);
  if (x25519FromText(key) === undefined) throw new BadKey('not a canonical X25519 public key');
  const t = transportOf(o);
  const { ns, key: name } = identityNote(did);
  const legacy = legacyIdentityNote(did);
  let value = await getNote(ns, name, o);
  for (let failures = 0; ; ) {
    const before = value ?? (await getNote(legacy.ns, legacy.key, o)) ?? '';
    const record = recordIn(did, before);
    const fresh = record === undefined || isNewest(t, did, record.nonce);
    const mailbox = identity.mailbox ?? (fresh ? record?.mailbox : undefined);
    if (value !== undefined && fresh && isCurrent(did, value, key, mailbox, record)) return;
    try {
      await signer.withNonce(
        `kv:${name}`,
        t.clock,
        async (next) => {
          const hints = `${did}${mailbox === undefined ? '' : ` mailbox:${mailbox}`} x25519:${key}`;
          const nonce = nonceAbove(seenOf(t).get(did), BigInt(next));
          const record =
            mailbox === undefined
              ? []
              : [`e2e: ${key} ${mailbox} ${nonce} ${signer.sign(`e2e|${did}|${key}|${mailbox}|${nonce}`)}`];
          await replaceNote(ns, name, value, [hints, ...record, ...delegationsIn(did, before)].join(' '), o);
          if (mailbox !== undefined) isNewest(t, did, nonce);
        },
        o.signal,
      );
      return;
    } catch (cause) {
      if (o.signal?.aborted || !TechnocoreError.is(cause)) throw cause;
      if (!/^(conflict|may_have_landed)$/.test(cause.code) || ++failures === ATTEMPTS) throw cause;
      await t.clock.sleep(backoffMs(failures, cause, t.random), o.signal);
      // The current value, which may be the one we wrote.
      value = (cause as Conflict).actual ?? (await getNote(ns, name, o));
    }
  }
}

function nonceAbove(highest: bigint | undefined, next: bigint): bigint {
  const nonce = highest !== undefined && highest >= next ? highest + 1n : next;
  if (nonce > MAX_NONCE) throw new BadNonce('a record with the highest nonce there is cannot be replaced');
  return nonce;
}

/** Writes `text` to a note if its value is still `value`. */
async function replaceNote(
  ns: string,
  key: string,
  value: string | undefined,
  text: string,
  o: Options,
): Promise<void> {
  try {
    await setNote(ns, key, text, { ...o, ...(value === undefined ? { ifAbsent: true } : { if: value }) });
  } catch (cause) {
    // Anybody can make the old value so long that no URL can carry the condition. Then the last write wins.
    if (!TechnocoreError.is(cause) || cause.code !== 'post_only') throw cause;
    await setNote(ns, key, text, o);
  }
}
