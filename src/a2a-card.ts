/**
 * A2A agent cards: an agent's name, what it can do and how to reach it. A card belongs at
 * `/.well-known/agent-card.json` on the agent's own origin; an agent without an origin publishes a signed one in a
 * note. The room service's own `/.well-known/agent.json` is its manifest, not a card.
 *
 * @module
 */
import { type Check, checkValue, isAnyText, isFlag, isList, isMap, isShaped, isText } from './a2a-types.ts';
import { fromBase64url, fromUtf8, toBase64url, utf8 } from './bytes.ts';
import { checkMailbox } from './channel.ts';
import type { JsonObject } from './dispatch.ts';
import { checkObject, TechnocoreError } from './errors.ts';
import { compact, decode, encodeLong, isObject } from './frames.ts';
import { failureOf, type Options, request, retrying, shownBase, transportOf, transportTo } from './http.ts';
import { fingerprint, isDid, type NotePath, verify } from './names.ts';
import { getNote, setNote } from './notes.ts';
import { checkSigner, PATIENCE_MS } from './rooms.ts';
import type { Signer } from './signer.ts';

/**
 * The name used in cards for this A2A binding, JSON-RPC frames in rooms. It changes if the binding ever does.
 */
export const A2A_BINDING = 'urn:technocore-rpc:a2a-over-rooms:1';

/** Something that an agent can do (A2A AgentSkill). */
export type A2ASkill = {
  /** An id, unique among the agent's skills. */
  id: string;
  /** A display name. */
  name: string;
  /** What it does. */
  description: string;
  /** Keywords; at least one. */
  tags: string[];
  /** Example messages. */
  examples?: string[];
  /** The media types that it accepts, if they differ from the agent's. */
  inputModes?: string[];
  /** The media types that it returns, if they differ from the agent's. */
  outputModes?: string[];
};

/** The optional parts of A2A that an agent supports (A2A AgentCapabilities). */
export type A2ACapabilities = {
  /** Whether it streams: see {@link a2aStream}. */
  streaming?: boolean;
  /** Whether it sends push notifications. Impossible over rooms. */
  pushNotifications?: boolean;
  /** Whether it has an extended card for callers that request it. */
  extendedAgentCard?: boolean;
  /** The extensions that it supports. */
  extensions?: { uri: string; description?: string; required?: boolean; params?: JsonObject }[];
};

/** A way to reach an agent (A2A AgentInterface). For a mailbox, `protocolBinding` is {@link A2A_BINDING}. */
export type A2AInterface = { url: string; protocolBinding: string; protocolVersion: string; tenant?: string };

/** An agent's card in the form of A2A 1.0 (AgentCard). Other members are kept. */
export type A2ACard = {
  /** The name of the agent. */
  name: string;
  /** What it does. */
  description: string;
  /** Its version, in any format. */
  version: string;
  /** How to reach it; at least one way, the preferred one first. */
  supportedInterfaces: A2AInterface[];
  /** The optional parts of A2A that it supports. */
  capabilities: A2ACapabilities;
  /** The media types that it accepts; at least one. */
  defaultInputModes: string[];
  /** The media types that it returns; at least one. */
  defaultOutputModes: string[];
  /** What it can do; at least one. */
  skills: A2ASkill[];
  /** Signatures (JWS) of the card: see {@link a2aSignCard}. */
  signatures?: { protected: string; signature: string }[];
  /** Who provides it. */
  provider?: { organization: string; url: string };
  /** The URL of its documentation. */
  documentationUrl?: string;
  /** The URL of its icon. */
  iconUrl?: string;
  /** How callers can authenticate over HTTP. */
  securitySchemes?: JsonObject;
  /** Which of these schemes they must use. */
  securityRequirements?: JsonObject[];
};

/** The input of {@link a2aCard}. Whatever else a card needs is filled in. */
export type A2ACardInfo = Omit<Partial<A2ACard>, 'skills'> & {
  /** The name of the agent. */
  name: string;
  /** What it can do; each skill needs at least a name. */
  skills: (Partial<A2ASkill> & { name: string })[];
  /** The mailbox that the agent serves, on the service of the options. */
  mailbox?: string;
};

/** The default media types of a card. */
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
 * Checks an untrusted card. A card of A2A 0.3 is converted to 1.0.
 *
 * @param value anything
 * @returns the card
 * @throws a {@link TechnocoreError} `bad_card` if it is not a valid card; the message says why
 */
export function a2aCheckCard(value: unknown): A2ACard {
  const card = isObject(value) ? value : {};
  const { limits, conventions } = card;
  if ((isObject(limits) && 'message_chars' in limits) || (isObject(conventions) && 'room_classes' in conventions)) {
    throw new TechnocoreError(
      'bad_card',
      'this is the manifest of a room service, not an agent card: a card is at /.well-known/agent-card.json on the ' +
        'origin of the agent itself, or in a note that its DID signed',
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
 * Makes a card in the form of A2A 1.0. By default, descriptions, ids and tags are taken from names, and the agent
 * accepts and returns plain text and supports nothing optional.
 *
 * @param info the name, the skills, how to reach the agent (`mailbox` or `supportedInterfaces`), and any other members
 * @param o `base`: the service of the mailbox
 * @throws a {@link TechnocoreError} `bad_card` if the result is not a valid card; the message says why
 * @throws a {@link BadName} if `mailbox` is not the name of a mailbox
 * @example
 * ```ts
 * import { a2aCard } from 'technocore-rpc';
 *
 * const card = a2aCard({ name: 'Posters', skills: [{ name: 'print' }], mailbox: 'mb-p-posters-8b7e' });
 * console.log(card.supportedInterfaces[0]?.url); // …/r/mb-p-posters-8b7e
 * ```
 */
export function a2aCard(info: A2ACardInfo, o: Options = {}): A2ACard {
  const { mailbox, skills, name, capabilities, ...rest } = checkObject(info, 'the description of an agent');
  const at = mailbox !== undefined && {
    supportedInterfaces: [
      {
        url: `${shownBase(transportOf(o).base)}/r/${checkMailbox(mailbox)}`,
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
 * Converts a card to the form of A2A 0.3. Security schemes, which 0.3 writes differently, and signatures, which cover
 * the form of 1.0, are omitted.
 *
 * @throws a {@link TechnocoreError} `bad_card` if it is not a valid card
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

/**
 * The text that a signature covers: JSON with sorted members and without empty ones, so that it does not matter whether
 * those were omitted.
 */
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

/**
 * Adds a signature of the signer to a card: a JWS over its canonical form, with the DID as `kid`.
 *
 * @returns a copy of the card with the signature
 * @throws a {@link TechnocoreError} `bad_card` if it is not a valid card
 * @throws a {@link BadKey} if no signer is given
 */
export function a2aSignCard(card: A2ACard, signer: Signer): A2ACard {
  checkSigner(signer);
  const checked = a2aCheckCard(card);
  const header = toBase64url(utf8(JSON.stringify({ alg: 'EdDSA', kid: signer.did, typ: 'JOSE' })));
  const signature = { protected: header, signature: signer.sign(signedText(header, checked)) };
  return { ...checked, signatures: [...(checked.signatures ?? []), signature] };
}

/** Tells whether a card carries a valid signature of a DID. Never throws. */
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

// --- publishing and reading --------------------------------------------------------------------------------------

/**
 * The address of the note where {@link a2aPublishCard} writes the card of a DID.
 *
 * @throws a {@link BadName} if it is not a DID
 */
export function a2aCardNote(did: string): NotePath {
  const print = fingerprint(did);
  return { ns: `a2a-card-${print.slice(0, 2)}`, key: print.slice(2) };
}

/**
 * Signs a card and publishes it in a note for the signer's DID, where {@link a2aReadCard} finds it: for agents without
 * their own origin. The service deletes the note after seven idle days, and anybody can overwrite it, so publish it
 * from time to time.
 *
 * @returns the address of the note
 * @throws a {@link TechnocoreError} `bad_card` if it is not a valid card
 * @throws a {@link BadKey} if no signer is given
 * @throws a {@link FrameTooLong} if the signed card has more than 8,192 characters
 * @throws what {@link setNote} throws
 *
 * @example
 * ```ts
 * import { a2aCard, a2aPublishCard, a2aReadCard, Signer } from 'technocore-rpc';
 *
 * const printer = Signer.generate();
 * const card = a2aCard({ name: 'printer', skills: [{ name: 'print' }], mailbox: 'mb-p-printer-31e0' });
 * await a2aPublishCard(card, printer);
 * console.log((await a2aReadCard(printer.did))?.name); // printer
 * ```
 */
export async function a2aPublishCard(card: A2ACard, signer: Signer, o: Options = {}): Promise<NotePath> {
  checkSigner(signer);
  const path = a2aCardNote(signer.did);
  await setNote(path.ns, path.key, encodeLong(a2aSignCard(card, signer)), o);
  return path;
}

/** The maximum size of a card, bytes. */
const MAX_BYTES = 1 << 20;
const PATHS = ['/.well-known/agent-card.json', '/.well-known/agent.json'];

/**
 * Reads the card of an agent.
 *
 * @param from a `did:key` (the card is in the DID's note), an origin such as `https://agent.example` (the card is at
 * the well-known address), or the URL of the card
 * @returns the card; undefined if there is none. If `from` is a DID, it has signed the card. The card's claims are
 * untrusted
 * @throws a {@link TechnocoreError} `bad_card` if the card is invalid, not signed by the DID, or the manifest of a room
 * service
 * @throws a {@link BadName} if `from` is neither a DID nor an address
 * @throws an {@link HttpError} or {@link Unavailable} if it could not be read
 */
export async function a2aReadCard(from: string, o: Options = {}): Promise<A2ACard | undefined> {
  if (isDid(from)) {
    const { ns, key } = a2aCardNote(from);
    const value = await getNote(ns, key, o);
    if (value === undefined) return undefined;
    const card = a2aCheckCard(decode(value));
    if (a2aVerifyCard(card, from)) return card;
    throw new TechnocoreError('bad_card', `the card in the note of ${from} has no valid signature by that DID`);
  }
  const { pathname } = new URL(transportTo(from, o, 'a DID, or the URL of a card or of its host').base);
  const paths = pathname === '/' ? PATHS : [''];
  for (const path of paths) {
    const { text, isThere } = await fetched(from, path, o);
    if (isThere) return a2aCheckCard(decode(text));
  }
  return undefined;
}

async function fetched(from: string, path: string, o: Options): Promise<{ text: string; isThere: boolean }> {
  const t = transportTo(from, o, 'the URL of a card');
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
