/**
 * Lines: whom a call goes to, through which channel, where the answer arrives, whose answer counts, and how the request
 * says so.
 *
 * @module
 */
import { type Channel, checkMailbox, isChannel, limitOf, mailboxPair } from './channel.ts';
import type { JsonObject } from './dispatch.ts';
import { BadKey, BadName, TechnocoreError } from './errors.ts';
import { feedOf } from './feed.ts';
import { encodeLong, encodeWithin, isObject, type Json } from './frames.ts';
import { Joint, type Options, sharedOf, type Transport } from './http.ts';
import { type Identity, resolveIdentity } from './identity.ts';
import { type Inbox, inboxOf } from './inbox.ts';
import { getOrMake, remember } from './maps.ts';
import { checkDid, isDid } from './names.ts';
import type { Signer } from './signer.ts';
import { SPILL_META, spilledFrame } from './spill.ts';

/** The member of `params._meta` that names the room for the answer. */
export const REPLY_META = 'chat.technocore/reply';

/**
 * Options of {@link call} and the functions built on it. A request must fit into one message of 4,096 characters; only
 * {@link mcpCallTool} and `RoomClientTransport` put longer ones into notes.
 */
export interface CallOptions extends Options {
  /**
   * The caller's own mailbox for the answer: a room whose name begins with `mb-`, other than the one called. Required,
   * except with a channel. One is enough for all calls of a program.
   */
  replyTo?: string | undefined;
  /** How long to wait for the answer, in milliseconds; default 30,000. */
  timeoutMs?: number | undefined;
  /**
   * The id of the request. Default: a new one, which servers of this library accept from this key only. With an id of
   * your own, a repeated call gets the answer that the server stored; but anybody who sees the id can use it in a
   * request.
   */
  id?: string | undefined;
  /** The DID whose answer counts. Default: the DID called; for a mailbox, the first key that ever answered from it. */
  peer?: string | undefined;
  /**
   * How often the same request is sent again within `timeoutMs` while no answer comes; default 0. Safe with servers of
   * this library, which run a request once; others may run it again.
   */
  retry?: number | undefined;
  /**
   * Whether calls to the same mailbox may share a message, as a JSON-RPC batch. This saves writes, which are scarce:
   * calls made at the same moment are sent at once in one message, and those made while it is being written follow in
   * the next. They are also answered together. Default false. MCP requests never share a message.
   */
  batch?: boolean | undefined;
  /**
   * `fast` (default): spends a few more reads, within the read budget, to halve the latency on services that look for new
   * messages in steps of half a second. `frugal`: one long-polling read at a time.
   */
  latency?: 'fast' | 'frugal' | undefined;
}

/** Where a call goes, and how its answer is recognized. */
export interface Line {
  channel: Channel;
  inbox: Inbox;
  /** The mailbox that requests name for the answer; undefined with a channel. */
  replyTo: string | undefined;
  /** The epoch of the reply mailbox, which becomes part of the request's id. */
  epoch(): number;
  /** The key that answered first, by mailbox or channel called. */
  pins: Map<string, string>;
  /** The only key whose answers count; undefined: the first that answers. */
  peer: string | undefined;
}

const IDENTITIES = {};
const IDENTITY_TTL_MS = 300_000;
const PINS = {};
const MAX_PINS = 1024;
const channelPins = new WeakMap<Channel, Map<string, string>>();

interface Known {
  readonly at: number;
  readonly reading: Joint<Identity | undefined>;
  /** Set once it has been read and names a mailbox. */
  identity?: Identity;
}

/** A DID's identity, cached for five minutes. Concurrent calls share one read. */
async function identityOf(t: Transport, did: string, o: Options): Promise<Identity | undefined> {
  const known = sharedOf(t, IDENTITIES, () => new Map<string, Known>());
  const now = t.clock.now();
  let entry = known.get(did);
  if (!entry || (entry.identity ? Math.abs(now - entry.at) >= IDENTITY_TTL_MS : entry.reading.isOff)) {
    const read = async (signal: AbortSignal): Promise<Identity | undefined> => {
      const identity = await resolveIdentity(did, { ...o, signal });
      if (identity?.mailbox) made.identity = identity;
      return identity;
    };
    const forget = (): void => {
      if (!made.identity && known.get(did) === made) known.delete(did);
    };
    const made: Known = { at: now, reading: new Joint((off) => read(off).finally(forget)) };
    if (known.size >= MAX_PINS) known.clear();
    known.set(did, (entry = made));
  }
  return entry.identity ?? entry.reading.join(o.signal);
}

/**
 * The option `replyTo`.
 *
 * @internal
 * @throws a {@link BadName} if it is missing
 */
export function replyToOf({ replyTo }: CallOptions): string {
  if (replyTo !== undefined) return replyTo;
  throw new BadName(replyTo, 'a call to a mailbox needs the option replyTo: your own mailbox, for the answer');
}

/**
 * Checks the two ends of a call as far as they are known without asking the service.
 *
 * @internal
 * @throws a {@link BadName} if a mailbox is not one, or `replyTo` is missing
 */
export function checkEnds(to: string | Channel, o: CallOptions): void {
  if (isChannel(to)) return;
  if (!isDid(to)) checkMailbox(to);
  checkMailbox(replyToOf(o));
}

/** The mailbox to write to: the given one, or the one that a DID's identity note names. */
export async function mailboxOf(t: Transport, to: string, o: Options): Promise<string> {
  if (!isDid(to)) return checkMailbox(to);
  const mailbox = (await identityOf(t, to, o))?.mailbox;
  if (mailbox === undefined)
    throw new TechnocoreError(
      'no_mailbox',
      `${to} has published no mailbox; its owner does that with publishIdentity or \`technocore-rpc serve --publish\``,
    );
  return checkMailbox(mailbox);
}

/**
 * The line to a mailbox, a DID or a channel: where requests go, and where their answers come.
 *
 * @throws a {@link BadName} if the mailbox is not one, or `replyTo` is missing; a {@link TechnocoreError} `no_mailbox`
 * if the DID has published none
 */
export async function lineOf(
  t: Transport,
  to: string | Channel,
  params: unknown,
  signer: Signer,
  o: CallOptions,
): Promise<Line> {
  if (isChannel(to)) {
    // Otherwise the server would refuse our ids as those of another key.
    if (isDid(to.self) && to.self !== signer.did) throw new BadKey('the channel belongs to another signer');
    const pins = getOrMake(channelPins, to, () => new Map<string, string>());
    return {
      channel: to,
      inbox: inboxOf(t, to),
      replyTo: undefined,
      epoch: () => 0,
      pins,
      peer: o.peer ?? pins.get(to.room),
    };
  }
  const replyTo = replyToOf(o);
  if (o.peer !== undefined) checkDid(o.peer, 'the option peer: ');
  const mailbox = await mailboxOf(t, to, o);
  if (mailbox === replyTo)
    throw new BadName(replyTo, 'the option replyTo must name a mailbox other than the one being called');
  const channel = mailboxPair(t, signer, mailbox, replyTo, o.latency);
  if (Array.isArray(params)) {
    // Positional params have no `_meta`, so only our identity record can tell where the answer goes.
    const own = await identityOf(t, signer.did, o);
    if (!own?.signed || own.mailbox !== replyTo) {
      throw new TechnocoreError(
        'no_reply_address',
        `positional params require a signed identity record that names ${replyTo} (publishIdentity); named params, as in { a: 1 }, do not`,
      );
    }
  }
  const pins = sharedOf(t, PINS, () => new Map<string, string>());
  const peer = o.peer ?? (isDid(to) ? to : pins.get(mailbox));
  return { channel, inbox: inboxOf(t, replyTo), replyTo, epoch: () => feedOf(t, replyTo).epoch, pins, peer };
}

/** Pins the key that answered: from then on, only its answers from that mailbox or channel count. */
export function pin(line: Line, from: string): void {
  const { pins, channel } = line;
  line.peer = from;
  if (pins.has(channel.room)) return;
  remember(pins, channel.room, from, MAX_PINS);
}

/**
 * Adds the mailbox for the answer, and whether we read answers from notes, to the `_meta` of params. Positional params
 * are returned unchanged.
 */
export function addressed(params: Json | undefined, replyTo: string | undefined, spills: boolean): Json | undefined {
  if ((replyTo === undefined && !spills) || (params !== undefined && !isObject(params))) return params;
  const meta = params?.['_meta'];
  return {
    ...params,
    _meta: {
      ...(isObject(meta) ? (meta as JsonObject) : {}),
      ...(replyTo !== undefined && { [REPLY_META]: replyTo }),
      ...(spills && { [SPILL_META]: true }),
    },
  };
}

/** A request as one line: the request itself or, if it is too long, a frame that names the notes that hold it. */
export async function shortened(channel: Channel, request: JsonObject, replyTo: string | undefined): Promise<string> {
  const text = encodeLong(request);
  const limit = limitOf(channel);
  if (text.length <= limit || !channel.spill) return encodeWithin(request, limit);
  const more: JsonObject = replyTo === undefined ? {} : { params: { _meta: { [REPLY_META]: replyTo } } };
  return spilledFrame(text, (text) => channel.spill!.put(text), more);
}
