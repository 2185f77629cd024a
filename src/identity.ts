/**
 * Identity notes: under which mailbox and X25519 key a DID is reached. Anybody can write the note, so only a record that
 * the DID itself signed is trusted; everything else in it is a hint. Rules: wire sections 8 and 10 of the service.
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

/** How a DID is reached. */
export interface Identity {
  /** Room that the DID reads. */
  mailbox?: string;
  /** X25519 public key, 43 characters of base64url. */
  x25519?: string;
  /** Whether the DID signed both. If not, a stranger may have written them: never seal to such a key. */
  signed: boolean;
}

/** A signed record: `e2e: <x25519> <mailbox> <nonce> <sig>`. */
interface KeyRecord {
  x25519: string;
  mailbox: string;
  nonce: bigint;
}

/** @internal The 32 bytes of an X25519 public key in its only spelling; undefined for anything else, or of small order. */
export function x25519FromText(text: string): Uint8Array | undefined {
  const key = fromBase64url(text);
  return key !== undefined && isCanonicalX25519(key) ? key : undefined;
}

/**
 * The X25519 key pair that {@link publishIdentity} names when it is given none. It is derived from the signer's seed:
 * whoever has the seed can open what is sealed to it.
 */
export function identityKeys(signer: Signer): { privateKey: Uint8Array; publicKey: Uint8Array } {
  checkSigner(signer);
  const privateKey = signer.derive('x25519');
  return { privateKey, publicKey: x25519(privateKey).publicKey };
}

// --- reading ----------------------------------------------------------------------------------------------------

/** A service may send more than a note holds; nobody is made to check signatures without end. */
const tokensOf = (value: string): string[] => value.slice(0, 2 * MAX_NOTE).split(/\s+/);

/** The fields after each token `name`, wherever it stands: a token inside the fields of another begins a record too. */
function fieldsAfter(tokens: string[], name: string, count: number): string[][] {
  return tokens.flatMap((token, i) => (token === name ? [tokens.slice(i + 1, i + 1 + count)] : []));
}

/**
 * The record with the highest nonce among those of a note that `did` signed and that can be used.
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

/** What a note says without a signature; nothing unless it begins by naming `did`. */
function hintsIn(did: string, value: string): Omit<Identity, 'signed'> {
  const tokens = tokensOf(value);
  if (printedDid(tokens) !== did) return {};
  const hint = (name: string, isGood: (text: string) => unknown): string | undefined =>
    tokens.flatMap((token) => (token.startsWith(name) ? token.slice(name.length) : [])).find(isGood);
  return compact({ mailbox: hint('mailbox:', isName), x25519: hint('x25519:', x25519FromText) });
}

const SEEN = {};
/** DIDs whose highest nonce is remembered; beyond, the one not met for the longest time is forgotten. */
const MAX_SEEN = 4096;

const seenOf = (t: Transport): Map<string, bigint> => sharedOf(t, SEEN, () => new Map());

/** Takes note of a record; false when a newer one was seen before: somebody put an old note back. */
function isNewest(t: Transport, did: string, nonce: bigint): boolean {
  const seen = seenOf(t);
  const highest = seen.get(did) ?? -1n;
  remember(seen, did, highest > nonce ? highest : nonce, MAX_SEEN);
  return nonce >= highest;
}

/**
 * How a DID is reached, by its identity note. The signed record with the highest nonce counts; a note whose record is
 * older than one seen before (through the same service, `fetch` and clock) was put back by somebody and counts for nothing;
 * so does one that has none any more. What is not signed a stranger may have written: `signed` tells.
 *
 * @returns undefined when there is no note, or nothing in it that can be used
 * @throws BadName not a did:key
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

/** Only where nothing is at today's place, the note may be at that of services before 0.8. */
async function identityValue(did: string, o: Options): Promise<string | undefined> {
  const [now, before] = [identityNote(did), legacyIdentityNote(did)];
  return (await getNote(now.ns, now.key, o)) ?? (await getNote(before.ns, before.key, o));
}

// --- publishing -------------------------------------------------------------------------------------------------

/** The newest delegation to each agent that `did` signed, as tokens. An expired one stays: it may revoke an older one. */
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

/** Whether all that a note says about `did`, signed or not, is this mailbox and key. */
function saysAll(did: string, value: string, key: string, mailbox: string | undefined, record?: KeyRecord): boolean {
  const tokens = tokensOf(value);
  const says = (name: string, wanted: string | undefined): boolean => {
    const told = tokens.filter((token) => token.startsWith(name));
    return wanted === undefined ? told.length === 0 : told.length > 0 && told.every((token) => token === name + wanted);
  };
  return (
    record?.mailbox === mailbox &&
    (record === undefined || record.x25519 === key) &&
    printedDid(tokens) === did &&
    says('x25519:', key) &&
    says('mailbox:', mailbox)
  );
}

/** Compare-and-set attempts against others who write the same note. */
const ATTEMPTS = 8;

/**
 * Publishes how the signer is reached: writes its identity note, with a signed record when a mailbox is known. Writes
 * nothing when the note says all that already. The signer's delegations stay; what others wrote into the note goes.
 *
 * @param identity `mailbox`: default, the one that the signer's present record names; without any, the key stands in
 * the note as an unsigned hint. `x25519`: public key, 32 bytes or base64url; default, that of {@link identityKeys}
 * @throws TechnocoreError `bad_option`: the identity has other members, as options, which come after it
 * @throws BadName not a room name
 * @throws BadKey not an X25519 public key in its only spelling, or one of small order
 * @throws BadNonce the present record has the highest nonce there is
 * @throws FrameTooLong too many delegations
 * @throws Conflict others kept changing the note
 */
export async function publishIdentity(
  signer: Signer,
  identity: { mailbox?: string; x25519?: Uint8Array | string } = {},
  o: Options = {},
): Promise<void> {
  checkSigner(signer);
  const { did } = signer;
  if (checkMembers(identity, 'the identity', ['mailbox', 'x25519']).mailbox !== undefined)
    checkName(identity.mailbox, 'room');
  const given = identity.x25519 ?? identityKeys(signer).publicKey;
  const key = typeof given === 'string' ? given : toBase64url(given);
  if (x25519FromText(key) === undefined) throw new BadKey('not an X25519 public key in its only spelling');
  const t = transportOf(o);
  const { ns, key: name } = identityNote(did);
  const legacy = legacyIdentityNote(did);
  let value = await getNote(ns, name, o);
  for (let failures = 0; ; ) {
    const before = value ?? (await getNote(legacy.ns, legacy.key, o)) ?? '';
    const record = recordIn(did, before);
    const fresh = record === undefined || isNewest(t, did, record.nonce);
    const mailbox = identity.mailbox ?? (fresh ? record?.mailbox : undefined);
    if (value !== undefined && fresh && saysAll(did, value, key, mailbox, record)) return;
    try {
      await signer.withNonce(
        `kv:${name}`,
        t.clock,
        async (next) => {
          const told = `${did}${mailbox === undefined ? '' : ` mailbox:${mailbox}`} x25519:${key}`;
          const nonce = nonceAbove(seenOf(t).get(did), BigInt(next));
          const record =
            mailbox === undefined
              ? []
              : [`e2e: ${key} ${mailbox} ${nonce} ${signer.sign(`e2e|${did}|${key}|${mailbox}|${nonce}`)}`];
          await replaceNote(ns, name, value, [told, ...record, ...delegationsIn(did, before)].join(' '), o);
          if (mailbox !== undefined) isNewest(t, did, nonce);
        },
        o.signal,
      );
      return;
    } catch (cause) {
      if (o.signal?.aborted || !TechnocoreError.is(cause)) throw cause;
      if (!/^(conflict|may_have_landed)$/.test(cause.code) || ++failures === ATTEMPTS) throw cause;
      await t.clock.sleep(backoffMs(failures, cause, t.random), o.signal);
      // What is there now: perhaps what we wrote.
      value = (cause as Conflict).actual ?? (await getNote(ns, name, o));
    }
  }
}

function nonceAbove(highest: bigint | undefined, next: bigint): bigint {
  const nonce = highest !== undefined && highest >= next ? highest + 1n : next;
  if (nonce > MAX_NONCE) throw new BadNonce('a record with the highest nonce there is cannot be replaced');
  return nonce;
}

/** Writes where nothing has changed since `value` was read. */
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
    // A stranger can make the old value too long for a URL; then the last write wins.
    if (!TechnocoreError.is(cause) || cause.code !== 'post_only') throw cause;
    await setNote(ns, key, text, o);
  }
}
