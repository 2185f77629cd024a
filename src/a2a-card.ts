/**
 * Agent cards: what an agent is called, can do and is reached by. A card belongs on the agent's own origin, at
 * `/.well-known/agent-card.json`; an agent without an origin puts a signed one into a note. The room service's own
 * `/.well-known/agent.json` is its manifest and nobody's card.
 *
 * @module
 */
import { type Check, checkValue, isAnyText, isFlag, isList, isMap, isShaped, isText } from './a2a-types.ts';
import { fromBase64url, fromUtf8, toBase64url, utf8 } from './bytes.ts';
import type { JsonObject } from './dispatch.ts';
import { TechnocoreError } from './errors.ts';
import { compact, decode, encodeLong, isObject } from './frames.ts';
import { failureOf, type Options, request, retrying, shownBase, transportOf } from './http.ts';
import { checkName, fingerprint, isDid, type NotePath, verify } from './names.ts';
import { getNote, setNote } from './notes.ts';
import { checkSigner, PATIENCE_MS } from './rooms.ts';
import type { Signer } from './signer.ts';

/** Names this binding of A2A, JSON-RPC frames in rooms, in a card; another one when the binding changes. */
export const A2A_BINDING = 'urn:technocore-rpc:a2a-over-rooms:1';

/** One thing that an agent can do. */
export type A2ASkill = {
  id: string;
  name: string;
  description: string;
  tags: string[];
  examples?: string[];
  inputModes?: string[];
  outputModes?: string[];
};

/** What of the protocol an agent supports beyond the least. */
export type A2ACapabilities = {
  streaming?: boolean;
  pushNotifications?: boolean;
  extendedAgentCard?: boolean;
  extensions?: { uri: string; description?: string; required?: boolean; params?: JsonObject }[];
};

/** One way in which an agent is reached. */
export type A2AInterface = { url: string; protocolBinding: string; protocolVersion: string; tenant?: string };

/** A card as version 1.0 has it. What is not named here is kept as it is. */
export type A2ACard = {
  name: string;
  description: string;
  version: string;
  supportedInterfaces: A2AInterface[];
  capabilities: A2ACapabilities;
  defaultInputModes: string[];
  defaultOutputModes: string[];
  skills: A2ASkill[];
  signatures?: { protected: string; signature: string }[];
  provider?: { organization: string; url: string };
  documentationUrl?: string;
  iconUrl?: string;
  securitySchemes?: JsonObject;
  securityRequirements?: JsonObject[];
};

/** What a card is made of; what is left out is filled in. */
export type A2ACardInfo = Omit<Partial<A2ACard>, 'skills'> & {
  name: string;
  skills: (Partial<A2ASkill> & { name: string })[];
  /** The mailbox that the agent serves, on the service of the options. */
  mailbox?: string;
};

/** Media types where a card names none. */
export const A2A_MODES: string[] = ['text/plain'];

// --- checks ------------------------------------------------------------------------------------------------------

const SOME = isList(isText, 1);
const isSkill = isShaped(
  { id: isText, name: isText, description: isText, tags: SOME },
  {
    examples: isList(isText),
    inputModes: isList(isText),
    outputModes: isList(isText),
  },
);
const OF_BOTH = {
  name: isText,
  description: isText,
  version: isText,
  defaultInputModes: SOME,
  defaultOutputModes: SOME,
  skills: isList(isSkill, 1),
};
const isExtension = isShaped({ uri: isText }, { description: isAnyText, required: isFlag, params: isMap });
const isCard: Check<A2ACard> = isShaped(
  {
    ...OF_BOTH,
    supportedInterfaces: isList(
      isShaped({ url: isText, protocolBinding: isText, protocolVersion: isText }, { tenant: isAnyText }),
      1,
    ),
    capabilities: isShaped(
      {},
      {
        streaming: isFlag,
        pushNotifications: isFlag,
        extendedAgentCard: isFlag,
        extensions: isList(isExtension),
      },
    ),
  },
  { signatures: isList(isShaped({ protected: isText, signature: isText })) },
);
const isTransport = isShaped<{ url: string; transport: string }>({ url: isText, transport: isText });
const isCard03 = isShaped<any>(
  { ...OF_BOTH, protocolVersion: isText, url: isText, capabilities: isMap },
  { preferredTransport: isText, additionalInterfaces: isList(isTransport) },
);

/**
 * A stranger's card, checked; one of version 0.3 as one of 1.0.
 *
 * @throws TechnocoreError `bad_card`: not a card, and why
 */
export function a2aCheckCard(value: unknown): A2ACard {
  const card = isObject(value) ? value : {};
  const { limits, conventions } = card;
  if ((isObject(limits) && 'message_chars' in limits) || (isObject(conventions) && 'room_classes' in conventions)) {
    throw new TechnocoreError(
      'bad_card',
      'this is the manifest of a room service, which says what the service enforces, and no agent card: a card is at ' +
        '/.well-known/agent-card.json of the origin of the agent itself, or in a note that its DID signed',
    );
  }
  if (card['supportedInterfaces'] !== undefined || card['protocolVersion'] === undefined) {
    checkValue(isCard, value, 'card', 'bad_card');
    return value as A2ACard;
  }
  const { url, preferredTransport = 'JSONRPC', additionalInterfaces = [], protocolVersion, ...rest } = card as any;
  checkValue(isCard03, value, 'card', 'bad_card');
  const { supportsAuthenticatedExtendedCard, capabilities, ...kept } = rest as any;
  const transports = [{ url, transport: preferredTransport }, ...additionalInterfaces];
  return {
    ...kept,
    capabilities: compact({ ...capabilities, extendedAgentCard: supportsAuthenticatedExtendedCard }),
    supportedInterfaces: transports
      .filter((one, i) => transports.findIndex((o) => o.url === one.url && o.transport === one.transport) === i)
      .map(({ url, transport }) => ({ url, protocolBinding: transport, protocolVersion })),
  };
}

// --- making ------------------------------------------------------------------------------------------------------

/**
 * A card of version 1.0, checked. What is left out: description and ids are taken from names, text goes in and out, and
 * nothing is offered that is optional.
 *
 * @throws TechnocoreError `bad_card`: what is wrong with it
 * @throws BadName the mailbox
 * @example
 * ```ts
 * a2aCard({ name: 'Summaries', skills: [{ name: 'summarise' }], mailbox: 'mb-p-summaries' });
 * ```
 */
export function a2aCard(info: A2ACardInfo, o: Options = {}): A2ACard {
  const { mailbox, skills, name, capabilities, ...rest } = info;
  const at = mailbox !== undefined && {
    supportedInterfaces: [
      {
        url: `${shownBase(transportOf(o).base)}/r/${checkName(mailbox, 'room')}`,
        protocolBinding: A2A_BINDING,
        protocolVersion: '1.0',
      },
    ],
  };
  return a2aCheckCard({
    name,
    description: name,
    version: '1.0.0',
    ...at,
    defaultInputModes: A2A_MODES,
    defaultOutputModes: A2A_MODES,
    ...rest,
    capabilities: { streaming: false, pushNotifications: false, ...capabilities },
    skills: Array.isArray(skills)
      ? skills.map((skill) => {
          const id = skill.id ?? skill.name;
          return { ...skill, id, description: skill.description ?? skill.name, tags: skill.tags ?? [id] };
        })
      : skills,
  });
}

/**
 * The form of a card that clients of version 0.3 read. Without security schemes, which version 0.3 writes differently, and
 * without signatures, which are of the other form.
 */
export function a2aCard03(card: A2ACard): JsonObject {
  const {
    supportedInterfaces,
    capabilities,
    signatures: _,
    securitySchemes: __,
    securityRequirements: ___,
    ...rest
  } = a2aCheckCard(card);
  const { extendedAgentCard, ...offered } = capabilities;
  const [first, ...others] = supportedInterfaces;
  return compact({
    ...rest,
    protocolVersion: '0.3.0',
    url: first!.url,
    preferredTransport: first!.protocolBinding,
    additionalInterfaces: others.length
      ? others.map(({ url, protocolBinding }) => ({ url, transport: protocolBinding }))
      : undefined,
    capabilities: offered,
    supportsAuthenticatedExtendedCard: extendedAgentCard,
  }) as JsonObject;
}

// --- signing -----------------------------------------------------------------------------------------------------

/** What a signature is over: sorted, and without what is empty, so that all who leave that out agree. */
function canonical(value: unknown): string | undefined {
  if (value === null || value === '' || value === undefined) return undefined;
  if (typeof value !== 'object') return JSON.stringify(value);
  const isArray = Array.isArray(value);
  const parts = Object.keys(value)
    .sort(isArray ? () => 0 : undefined)
    .flatMap((name) => {
      const part = canonical((value as Record<string, unknown>)[name]);
      return part === undefined ? [] : [isArray ? part : `${JSON.stringify(name)}:${part}`];
    });
  if (parts.length === 0) return undefined;
  return isArray ? `[${parts.join()}]` : `{${parts.join()}}`;
}

function signedText(header: string, { signatures: _, ...card }: A2ACard): string {
  return `${header}.${toBase64url(utf8(canonical(card) ?? '{}'))}`;
}

/** The card with a signature of the DID: a JWS over its canonical form, the DID as `kid`. @throws TechnocoreError `bad_card` */
export function a2aSignCard(card: A2ACard, signer: Signer): A2ACard {
  checkSigner(signer);
  const checked = a2aCheckCard(card);
  const header = toBase64url(utf8(JSON.stringify({ alg: 'EdDSA', kid: signer.did, typ: 'JOSE' })));
  const signature = { protected: header, signature: signer.sign(signedText(header, checked)) };
  return { ...checked, signatures: [...(checked.signatures ?? []), signature] };
}

/** Whether a card carries a good signature of a DID. */
export function a2aVerifyCard(card: A2ACard, did: string): boolean {
  const { signatures } = isObject(card) ? card : {};
  if (!Array.isArray(signatures)) return false;
  return signatures.some((one: unknown) => {
    const { protected: header, signature } = isObject(one) ? one : {};
    if (typeof header !== 'string' || typeof signature !== 'string') return false;
    const bytes = fromBase64url(header);
    const { alg, kid } = (decode((bytes && fromUtf8(bytes)) ?? '') ?? {}) as JsonObject;
    return alg === 'EdDSA' && kid === did && verify(did, signature, signedText(header, card));
  });
}

// --- where it is -------------------------------------------------------------------------------------------------

/** The note that {@link a2aPublishCard} writes for a DID. @throws BadName no DID */
export function a2aCardNote(did: string): NotePath {
  const print = fingerprint(did);
  return { ns: `a2a-card-${print.slice(0, 2)}`, key: print.slice(2) };
}

/**
 * Signs a card and puts it into the note of the signer's DID, for agents without an origin of their own. The note is reaped
 * after seven idle days, and anybody can overwrite it: then it verifies no more, and is to be written again.
 *
 * @throws FrameTooLong the card has more than 8,192 characters
 * @throws what {@link setNote} throws
 */
export async function a2aPublishCard(card: A2ACard, signer: Signer, o: Options = {}): Promise<NotePath> {
  checkSigner(signer);
  const path = a2aCardNote(signer.did);
  await setNote(path.ns, path.key, encodeLong(a2aSignCard(card, signer)), o);
  return path;
}

/** Largest card that is read, bytes. */
const MAX_BYTES = 1 << 20;
const PATHS = ['/.well-known/agent-card.json', '/.well-known/agent.json'];

/**
 * The card of an agent: of a DID out of its note, of an origin from its well-known address, of any other URL from there.
 *
 * @returns undefined where there is none
 * @throws TechnocoreError `bad_card`: what is there is no card, or the DID did not sign it, or it is asked of the room
 *   service, which has a manifest and no card
 * @throws HttpError, Unavailable it cannot be had
 */
export async function a2aReadCard(from: string, o: Options = {}): Promise<A2ACard | undefined> {
  if (isDid(from)) {
    const { ns, key } = a2aCardNote(from);
    const value = await getNote(ns, key, o);
    if (value === undefined) return undefined;
    const card = a2aCheckCard(decode(value));
    if (a2aVerifyCard(card, from)) return card;
    throw new TechnocoreError('bad_card', `the card in the note of ${from} has no good signature of that DID`);
  }
  const { pathname } = new URL(transportOf(o, from).base);
  const paths = pathname === '/' ? PATHS : [''];
  for (const path of paths) {
    const { text, isThere } = await fetched(from, path, o);
    if (isThere) return a2aCheckCard(decode(text));
  }
  return undefined;
}

async function fetched(from: string, path: string, o: Options): Promise<{ text: string; isThere: boolean }> {
  const t = transportOf(o, from);
  return retrying(
    t,
    t.clock.now() + PATIENCE_MS,
    async () => {
      const headers = { accept: 'application/a2a+json, application/json' };
      const reply = await request(t, { path, headers, maxBytes: MAX_BYTES, signal: o.signal });
      const { status, text } = reply;
      if (status === 200 || status === 404) return { text, isThere: status === 200 };
      throw failureOf(reply, 'read', t.clock);
    },
    o.signal,
  );
}
