/** The same for parley, alone and together with the main module. */
import { type Channel, call, type Options, Signer, serve } from 'technocore-rpc';
import {
  type Abortable,
  BadInvite,
  type Capabilities,
  type ChannelID,
  type Frame,
  type FrameType,
  fingerprint,
  Handshake,
  HandshakeFailed,
  type HandshakeOptions,
  type HandshakePayload,
  HttpRelay,
  Identity,
  Invite,
  type JoinToken,
  type KeyPair,
  type Kind,
  type Membership,
  type Message,
  marshalHandshakePayload,
  marshalMessage,
  type NodeID,
  type Peer,
  type PublicKey,
  type Received,
  type Relay,
  RelayRefused,
  Secret,
  Session,
  SessionClosed,
  type SessionOptions,
  type State,
  TechnocoreError,
  type Transport,
  type TransportKeys,
  unmarshalHandshakePayload,
  unmarshalMessage,
} from 'technocore-rpc/parley';

class MemoryRelay implements Relay {
  readonly host = 'memory';
  readonly #frames: Frame[] = [];
  readonly #token = new Map<ChannelID, JoinToken>();
  async open(channel: ChannelID, expect: JoinToken, o?: Abortable): Promise<Membership> {
    o?.signal?.throwIfAborted();
    if (this.#token.has(channel)) throw new RelayRefused('exists', 'it exists');
    this.#token.set(channel, expect);
    return { channel, token: 'a' };
  }
  async join(channel: ChannelID, present: JoinToken): Promise<Membership> {
    if (this.#token.get(channel) !== present) throw new RelayRefused('token', 'no');
    return { channel, token: 'b' };
  }
  async send(membership: Membership, { channel, seq, type, payload }: Frame): Promise<void> {
    const kind: FrameType = type;
    if (membership.channel === channel) this.#frames.push({ channel, seq, type: kind, payload });
  }
  async recv({ token }: Membership, after: bigint, waitMs: number): Promise<Frame[]> {
    return token === 'b' && waitMs >= 0 ? this.#frames.filter(({ seq }) => seq > after) : [];
  }
  async members(): Promise<number> {
    return 2;
  }
}

class Card implements KeyPair {
  readonly #inner = Identity.fromSeed(new Uint8Array(1));
  readonly publicKey: PublicKey = this.#inner.publicKey;
  shared(peer: Uint8Array): Uint8Array {
    return this.#inner.shared(peer);
  }
}

const { signal } = new AbortController();
const o: Options = { signal, lane: 'post' };
const sessions: SessionOptions = { ...o, host: 'relay.example' };

export async function talk(): Promise<string[]> {
  const [ada, ben] = [Identity.generate(), Identity.fromPrivateKey(Identity.generate().privateKey())];
  const relays: Relay[] = [new HttpRelay('https://parley.chat', o), new MemoryRelay()];
  const session = new Session(ada, relays[0]!, sessions);
  const link: string = (await session.open('topic', { signal })).url();
  const invite: Invite = Invite.parse(link);
  const other = new Session(ben, relays[1]!);
  await other.join(invite, { signal });
  const { seq }: { seq: number } = await other.send('hello', { signal });
  const { id, fingerprint: shown, topic, state, present }: Peer = other.peer;
  const states: State[] = ['none', 'pending', state];
  const received: Received[] = await session.poll(seq, { signal });
  for await (const { kind, text, from } of session.messages({ signal }))
    states.push(kind === 'close' ? 'closed' : state, text && from.length ? 'active' : 'none');
  await other.close('agreed', { signal });
  const back: Session = await Session.resume(session.save(), ada, relays[0]!, sessions);
  return [
    shown,
    topic,
    String(present),
    back.room,
    back.self,
    ...states,
    ...received.map(({ text }) => text),
    String(id),
  ];
}

export async function channel(session: Session): Promise<number> {
  const channel: Channel = session;
  const stop = await session.listen({ message() {}, gap() {}, end() {} });
  stop();
  await serve(session, Signer.generate());
  return call<number>(channel, 'add', { a: session.limit }, Signer.generate());
}

export function shake(random: (bytes: number) => Uint8Array): Uint8Array {
  const [secret, again] = [Secret.generate(), Secret.from(random(32))];
  const common = { prologue: again.bytes(), psk: secret.psk() };
  const identity = Identity.generate();
  const all: Required<HandshakeOptions> = {
    ...common,
    identity: new Card(),
    remote: identity.publicKey,
    ephemeral: random(32),
    random,
  };
  const [initiator, responder] = [Handshake.initiator(all), Handshake.responder({ ...common, identity })];
  responder.read(initiator.write(marshalHandshakePayload(payload)));
  const said: HandshakePayload | undefined = unmarshalHandshakePayload(initiator.read(responder.write(initiator.hash)));
  const { send, receive }: TransportKeys = responder.keys();
  const transport: Transport = initiator.transport();
  const sealed: Uint8Array = transport.seal(1n, marshalMessage({ kind: 'say', text: said?.topic ?? '' }));
  const { kind, text }: Message = unmarshalMessage(responder.transport().open(1, sealed));
  const expected: Kind = kind;
  const invite = new Invite({ relay: text, channel: send, key: receive, secret });
  const node: NodeID = identity.id;
  const parts: string[] = [
    expected,
    fingerprint(node),
    identity.fingerprint(),
    invite.relay,
    invite.secret.joinToken(),
  ];
  return responder.remote ?? (parts.length ? invite.channel : invite.key);
}
const push: Capabilities = { push: true };
const payload: HandshakePayload = { topic: 'x', capabilities: push };

/** Each is told from what is left by then, and leaves all others. */
export function carried(e: unknown): unknown {
  if (!TechnocoreError.is(e)) return e;
  if (BadInvite.is(e)) return [e.code, e.reason] satisfies ['bad_invite', string];
  if (RelayRefused.is(e)) return [e.code, e.reason] satisfies ['relay_refused', string];
  if (HandshakeFailed.is(e)) return [e.code, e.reason] satisfies ['handshake_failed', string];
  if (SessionClosed.is(e)) return [e.code, e.reason] satisfies ['session_closed', string];
  return e.code satisfies string;
}
export const errors: TechnocoreError[] = [
  new BadInvite('parse'),
  new RelayRefused('full', 'both seats are taken'),
  new HandshakeFailed('too short'),
  new SessionClosed('over'),
];
