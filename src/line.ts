/**
 * Lines: whom a call goes to, through which channel, where the answer comes, whose it must be, and what the request says of
 * that.
 *
 * @module
 */
import { type Channel, checkMailbox, isChannel, limitOf, mailboxPair } from './channel.ts';
import type { JsonObject } from './dispatch.ts';
import { BadKey, BadName, TechnocoreError } from './errors.ts';
import { feedOf } from './feed.ts';
import { encodeLong, encodeWithin, isObject, type Json } from './frames.ts';
import { type Options, sharedOf, type Transport } from './http.ts';
import { type Identity, resolveIdentity } from './identity.ts';
import { type Inbox, inboxOf } from './inbox.ts';
import { getOrMake, remember } from './maps.ts';
import { isDid } from './names.ts';
import type { Signer } from './signer.ts';
import { SPILL_META, spilledFrame } from './spill.ts';

/** Member of `params._meta` that names the room for the answer. */
export const REPLY_META = 'chat.technocore/reply';

/** Options of {@link call}. Its request fits one message, or is not sent; only `mcpCallTool` and `RoomClientTransport` put longer ones into notes. */
export interface CallOptions extends Options {
  /** Our mailbox, where the answer goes. Needed unless the call goes over a channel. One for each client is enough. */
  replyTo?: string;
  /** How long to wait for the answer, ms; default 30,000. */
  timeoutMs?: number;
  /**
   * The request's id; default: one that no other call has, and no other key may use. With one of your own a repeated call
   * gets the kept answer; but whoever sees it can have another question answered under it.
   */
  id?: string;
  /** The DID that must answer; default: the one called, else the first key that ever answered from that mailbox. */
  peer?: string;
  /** How often the same request is sent again within `timeoutMs`, when no answer comes; default 0. Needs a server that knows repeats. */
  retry?: number;
  /**
   * Lets calls that wait to be written to one mailbox share a message, and so a write of the budget: those of one moment go
   * at once and together, as do those that come meanwhile, and are answered together. Default false. Calls of MCP never share.
   */
  batch?: boolean;
  /** `frugal`: no more reads than one that is parked. Default `fast`: a few more, within the read budget, for half the latency. */
  latency?: 'fast' | 'frugal';
}

/** Where a call goes, and how its answer is known. */
export interface Line {
  channel: Channel;
  inbox: Inbox;
  /** Named in requests, so that the answer finds us; a channel needs none. */
  replyTo: string | undefined;
  epoch(): number;
  /** The keys that answered first, by what was called. */
  pins: Map<string, string>;
  /** The only key whose answers count; undefined: whichever answers first. */
  peer: string | undefined;
}

const IDENTITIES = {};
const IDENTITY_TTL_MS = 300_000;
const PINS = {};
const MAX_PINS = 1024;
const channelPins = new WeakMap<Channel, Map<string, string>>();

/** The identity of a DID, not older than five minutes. */
async function identityOf(t: Transport, did: string, o: Options): Promise<Identity | undefined> {
  const known = sharedOf(t, IDENTITIES, () => new Map<string, { until: number; identity: Identity | undefined }>());
  const now = t.clock.now();
  const entry = known.get(did);
  if (entry && now < entry.until && entry.until - now <= IDENTITY_TTL_MS) return entry.identity;
  const identity = await resolveIdentity(did, o);
  if (known.size >= MAX_PINS) known.clear();
  if (identity?.mailbox) known.set(did, { until: now + IDENTITY_TTL_MS, identity });
  else known.delete(did);
  return identity;
}

/**
 * @internal
 * @throws BadName it was forgotten
 */
export function replyToOf({ replyTo }: CallOptions): string {
  if (replyTo !== undefined) return replyTo;
  throw new BadName(replyTo, 'a call to a mailbox needs the option replyTo, a mailbox of our own for the answer');
}

/** The mailbox to write to: the one given, or the one a DID names. */
export async function mailboxOf(t: Transport, to: string, o: Options): Promise<string> {
  if (!isDid(to)) return checkMailbox(to);
  const mailbox = (await identityOf(t, to, o))?.mailbox;
  if (mailbox === undefined) throw new TechnocoreError('no_mailbox', `${to} names no mailbox in an identity note`);
  return checkMailbox(mailbox);
}

export async function lineOf(
  t: Transport,
  to: string | Channel,
  params: unknown,
  signer: Signer,
  o: CallOptions,
): Promise<Line> {
  if (isChannel(to)) {
    // Its ids would be taken for those of another key.
    if (isDid(to.self) && to.self !== signer.did) throw new BadKey('the channel is another signer’s');
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
  const mailbox = await mailboxOf(t, to, o);
  if (mailbox === replyTo) throw new BadName(replyTo, 'an answer cannot come through the mailbox that is called');
  const channel = mailboxPair(t, signer, mailbox, replyTo, o.latency);
  if (Array.isArray(params)) {
    // Positional params have no _meta: only our identity record can tell where the answer goes.
    const own = await identityOf(t, signer.did, o);
    if (!own?.signed || own.mailbox !== replyTo) {
      throw new TechnocoreError(
        'no_reply_address',
        `positional params need a signed identity record that names ${replyTo} (publishIdentity); params by name, as in { a: 1 }, need none`,
      );
    }
  }
  const pins = sharedOf(t, PINS, () => new Map<string, string>());
  const peer = o.peer ?? (isDid(to) ? to : pins.get(mailbox));
  return { channel, inbox: inboxOf(t, replyTo), replyTo, epoch: () => feedOf(t, replyTo).epoch, pins, peer };
}

/** Remembers whose answer came from what was called: from then on, nobody else's counts there. */
export function pin(line: Line, from: string): void {
  const { pins, channel } = line;
  line.peer = from;
  if (pins.has(channel.room)) return;
  remember(pins, channel.room, from, MAX_PINS);
}

/** Params with the reply address in `_meta`, and that we read spilled answers; positional ones as they are. */
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

/** A request as one line: itself, or once it is put into notes, what stands for it. */
export async function shortened(channel: Channel, request: JsonObject, replyTo: string | undefined): Promise<string> {
  const text = encodeLong(request);
  const limit = limitOf(channel);
  if (text.length <= limit || !channel.spill) return encodeWithin(request, limit);
  const more: JsonObject = replyTo === undefined ? {} : { params: { _meta: { [REPLY_META]: replyTo } } };
  return spilledFrame(text, (text) => channel.spill!.put(text), more);
}
