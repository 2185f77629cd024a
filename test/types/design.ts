/** The signatures that bind, compared with those that are published: each can stand for the other, unless it says more. */

import type {
  A2AMessage,
  A2ATask,
  CallContext,
  CallOptions,
  Channel,
  Clock,
  DecryptError,
  Dispatcher,
  DispatcherOptions,
  Frame,
  Handler,
  Json,
  Message,
  Options,
  RoomView,
  ServeOptions,
  Signer,
  TechnocoreError,
  Tool,
  ToolContext,
  ToolResult,
} from 'technocore-rpc';
import * as main from 'technocore-rpc';
import * as localService from 'technocore-rpc/local';
import type { Invite, Peer, Received, Relay, Secret, Transport } from 'technocore-rpc/parley';
import * as parley from 'technocore-rpc/parley';

// Members are properties, not methods: of those, the compiler compares parameters one way only. Options may be undefined.
interface Functions {
  MAX_TEXT: 4096;
  MAX_NOTE: 8192;
  encode: (frame: Json) => string;
  decode: (text: string) => Frame | undefined;
  verify: (did: string, sig: string, canonical: string) => boolean;
  explain: (room: string, m: Message) => string | undefined;
  say: (room: string, nick: string, text: string, o?: Options) => Promise<{ seq: number }>;
  read: (
    room: string,
    o?: Options & { since?: number | undefined; limit?: number | undefined; waitMs?: number | undefined },
  ) => Promise<RoomView>;
  follow: (room: string, o?: Options & { since?: number | undefined }) => AsyncGenerator<Message>;
  verifyMessage: (room: string, m: Message) => 'valid' | 'invalid' | 'unverifiable';
  getNote: (ns: string, key: string, o?: Options) => Promise<string | undefined>;
  setNote: (
    ns: string,
    key: string,
    value: string,
    o?: Options & { if?: string; ifAbsent?: boolean | undefined },
  ) => Promise<void>;
  listNotes: (ns: string, o?: Options) => Promise<string[]>;
  claimRoom: (room: string, signer: Signer, o?: Options) => Promise<void>;
  methods: Map<string, Handler>;
  createDispatcher: (o?: DispatcherOptions) => Dispatcher;
  serve: (mailbox: string | Channel, signer: Signer, o?: ServeOptions) => Promise<void>;
  tools: Map<string, Tool>;
  a2aGetState: (taskId: string, o?: Options) => Promise<string | undefined>;
  a2aCreate: (taskId: string, o?: Options) => Promise<void>;
  a2aAdvance: (taskId: string, from: string, to: string, o?: Options) => Promise<void>;
  e2eOpen: (key: Uint8Array, line: string) => string;
  e2eSend: (
    room: string,
    key: Uint8Array,
    text: string,
    o?: Options & { signer?: Signer | undefined; nick?: string | undefined },
  ) => Promise<{ seq: number }>;
}
export const given: Functions = main;
declare const functions: Functions;
export const asked: Pick<typeof main, keyof Functions> = functions;

/** Where what is published takes more than it must, or returns more: an option, a wider type. */
interface Wider {
  sweep: (text: string, limit?: number) => string;
  allowWriters: (room: string, dids: string[], signer: Signer, o?: Options) => Promise<void>;
  call: <T>(
    to: string | Channel,
    method: string,
    params: Json,
    signer: Signer,
    o: Options & {
      replyTo: string;
      timeoutMs?: number;
      id?: string;
      peer?: string;
      retry?: number;
      batch?: boolean;
      latency?: 'fast' | 'frugal';
    },
  ) => Promise<T>;
  notify: (to: string, method: string, params: Json, signer: Signer, o?: Options) => Promise<void>;
  dispatch: (
    frame: unknown,
    context?: { from?: string; room?: string; signal?: AbortSignal; emit?: (frame: Json) => void },
    o?: { methods?: Map<string, Handler>; tools?: Map<string, Tool> },
  ) => Promise<Json | undefined>;
  tool: (
    name: string,
    description: string,
    inputSchema: object,
    run: (args: any, context: ToolContext) => unknown,
  ) => void;
  mcpDiscover: (to: string | Channel, signer: Signer, o: CallOptions) => Promise<object>;
  mcpListTools: (to: string | Channel, signer: Signer, o: CallOptions) => Promise<Tool[]>;
  mcpCallTool: (
    to: string | Channel,
    name: string,
    args: Json & object,
    signer: Signer,
    o: CallOptions,
  ) => Promise<ToolResult>;
  mcpListen: (to: string, notifications: object, signer: Signer, o: CallOptions) => AsyncGenerator<Json>;
  a2aAgent: (
    // biome-ignore lint/suspicious/noConfusingVoidType: as it is written there
    handler: (message: A2AMessage, task: A2ATask) => Promise<A2AMessage | string | void>,
    card: { name: string; skills: { name: string }[] },
  ) => { methods: Map<string, Handler> };
  a2aTaskNote: (taskId: string) => { ns: string; key: string };
  x25519Generate: () => { privateKey: Uint8Array; publicKey: Uint8Array };
  e2eOffer: (peer: Uint8Array | string) => { offer: string; key: Uint8Array; room: string };
  e2eAccept: (offer: string, privateKey: Uint8Array) => { key: Uint8Array; room: string };
  e2eSeal: (key: Uint8Array, text: string) => string;
  e2eRead: (
    room: string,
    key: Uint8Array,
    o?: Options,
  ) => Promise<{ last: number; messages: { seq: number; from: string; text?: string; error?: DecryptError }[] }>;
  publishIdentity: (
    signer: Signer,
    o: { mailbox?: string; x25519?: Uint8Array | string },
    options?: Options,
  ) => Promise<void>;
  resolveIdentity: (
    did: string,
    o?: Options,
  ) => Promise<{ mailbox?: string; x25519?: string; signed: boolean } | undefined>;
  sealed: (room: string, key: Uint8Array, signer: Signer, o: Options) => Channel;
}
export const wider: Wider = main;

// --- what is handed in and out ------------------------------------------------------------------------------------

type Same<A, B> = [A, B] extends [B, A] ? true : false;

interface DesignedOptions {
  base?: string;
  fetch?: typeof fetch;
  signal?: AbortSignal;
  clock?: { now(): number; sleep(ms: number, signal?: AbortSignal): Promise<void> };
  random?: (bytes: number) => Uint8Array;
  lane?: 'auto' | 'get' | 'post';
  onEvent?: (event: { kind: string }) => void;
}
interface Serving extends Options {
  methods?: Map<string, Handler>;
  tools?: Map<string, Tool>;
  serverInfo?: { name: string; version: string };
  allow?: (from: string) => boolean | Promise<boolean>;
  replyPolicy?: (from: string, room: string) => boolean;
  concurrency?: number;
  deadlineMs?: number;
  latency?: 'fast' | 'frugal';
  onReady?: () => void;
}
declare const o: DesignedOptions & Serving;
export const options: [Options, ServeOptions] = [o, o];
export const dispatcher: DispatcherOptions = { ...options[1], stateKey: new Uint8Array(32), clock: main.systemClock };

declare const made: Dispatcher;
export const pure: {
  dispatch: (
    frame: unknown,
    context?: { from?: string; room?: string; signal?: AbortSignal; emit?: (frame: Json) => void },
  ) => Promise<Json | undefined>;
  close: () => void;
} = made;

interface DesignedMessage {
  seq: number;
  ts: string;
  from: string;
  text: string;
  nonce?: string;
  sig?: string;
}
interface DesignedView {
  room: string;
  firstSeq: number | null;
  lastSeq: number;
  generation?: number;
  messages: DesignedMessage[];
}
interface DesignedClock {
  now: () => number;
  sleep: (ms: number, signal?: AbortSignal) => Promise<void>;
}
export const same: [
  Same<Message, DesignedMessage>,
  Same<RoomView, DesignedView>,
  Same<Clock, DesignedClock>,
  Same<Handler, (params: any, context: CallContext) => unknown>,
] = [true, true, true, true];

declare const context: ToolContext;
export const handed: {
  from: string;
  id: unknown;
  room: string;
  signal: AbortSignal;
  meta: object;
  notify: (method: string, params: Json) => void;
  progress: (done: number, total?: number, message?: string) => void;
  log: (level: 'info', data: Json, logger?: string) => void;
  elicit: (key: string, params: object) => Promise<{ action: string; content?: object }>;
  sample: (key: string, params: object) => Promise<object>;
  roots: (key: string) => Promise<object>;
  toolsChanged: () => void;
} = context;

declare const task: A2ATask;
export const turn: {
  id: string;
  contextId: string;
  history: readonly A2AMessage[];
  signal: AbortSignal;
  continued: boolean;
  update: (state: string, text?: string) => Promise<unknown>;
  artifact: (artifact: { name?: string; parts: A2AMessage['parts'] }) => Promise<unknown>;
  ask: (text: string) => Promise<unknown>;
  reject: (text?: string) => Promise<unknown>;
} = task;

// --- classes ------------------------------------------------------------------------------------------------------

interface DesignedSigner {
  did: string;
  fingerprint: string;
  sign: (canonical: string) => string;
  signMessage: (
    room: string,
    nonce: string | number,
    text: string,
  ) => { did: string; sig: string; nonce: string; text: string; canonical: string };
  signNote: (
    ns: string,
    key: string,
    nonce: string | number,
    value: string,
  ) => { did: string; sig: string; nonce: string; value: string; canonical: string };
  say: (room: string, text: string, o?: Options) => Promise<{ seq: number; nonce: string }>;
}
declare const signer: Signer;
export const signing: DesignedSigner = signer;
declare const designedSigner: DesignedSigner;
export const signed: { [K in keyof Signer]: Signer[K] } = designedSigner;
export const signers: {
  generate: () => Signer;
  fromSeed: (seed: string | Uint8Array) => Signer;
  fromPassphrase: (text: string) => Signer;
  fromDir: (dir?: string) => Promise<Signer>;
} = main.Signer;

/** What the class of an error carries. */
type Of<C extends abstract new (...args: never[]) => TechnocoreError> = Omit<InstanceType<C>, keyof Error>;
export const errors: {
  [K in keyof Carried]: K extends keyof typeof main
    ? Same<Of<(typeof main)[K]>, Carried[K]>
    : K extends keyof typeof parley
      ? Same<Of<(typeof parley)[K]>, Carried[K]>
      : never;
} = {
  FrameTooLong: true,
  EmptyText: true,
  BadName: true,
  BadKey: true,
  BadNonce: true,
  BadState: true,
  HttpError: true,
  Forbidden: true,
  Conflict: true,
  DuplicateText: true,
  RateLimited: true,
  CapacityReached: true,
  RoomBudget: true,
  StaleNonce: true,
  Unavailable: true,
  MayHaveLanded: true,
  RpcError: true,
  RingGap: true,
  CallTimeout: true,
  DecryptError: true,
  BadInvite: true,
  RelayRefused: true,
  HandshakeFailed: true,
  SessionClosed: true,
};
interface Carried {
  FrameTooLong: { code: 'frame_too_long'; chars: number; limit: number };
  EmptyText: { code: 'empty_text' };
  BadName: { code: 'bad_name'; invalidName: string };
  BadKey: { code: 'bad_key' };
  BadNonce: { code: 'bad_nonce' };
  BadState: { code: 'bad_state'; from: string; to: string };
  HttpError: { code: string; status: number; body: string };
  Forbidden: { code: 'forbidden'; status: number; body: string };
  Conflict: { code: 'conflict'; status: number; body: string; actual: string | undefined };
  DuplicateText: { code: 'duplicate_text'; status: number; body: string };
  RateLimited: { code: 'rate_limited'; retryAfterMs: number; bucket: 'read' | 'write' };
  CapacityReached: { code: 'capacity_reached' };
  RoomBudget: { code: 'room_budget'; retryAfterMs: number };
  StaleNonce: { code: 'stale_nonce'; last: string };
  Unavailable: { code: 'unavailable'; retryAfterMs: number | undefined };
  MayHaveLanded: { code: 'may_have_landed'; room: string; nonce: string | undefined };
  RpcError: { code: 'rpc'; rpc: { code: number; message: string; data?: unknown } };
  RingGap: {
    code: 'ring_gap';
    room: string;
    expected: number;
    oldest: number;
    reason: 'overflow' | 'recreated';
  };
  CallTimeout: {
    code: 'call_timeout';
    room: string;
    id: string;
    afterMs: number;
    reason: 'no-room' | 'no-server' | 'no-answer';
  };
  DecryptError: { code: 'decrypt'; layer: 'encoding' | 'key' | 'tag' | 'layout' };
  BadInvite: { code: 'bad_invite'; reason: string };
  RelayRefused: { code: 'relay_refused'; reason: 'no-channel' | 'exists' | 'full' | 'nobody' | 'token' };
  HandshakeFailed: { code: 'handshake_failed'; reason: string };
  SessionClosed: { code: 'session_closed'; reason: string };
}
export const is: (e: unknown) => e is TechnocoreError = (e) => main.TechnocoreError.is(e);

// --- parley -------------------------------------------------------------------------------------------------------

interface Shaking {
  identity: parley.Identity;
  prologue: Uint8Array;
  psk: Uint8Array;
  remote?: Uint8Array;
  ephemeral?: Uint8Array;
}
interface DesignedHandshake {
  write: (payload: Uint8Array) => Uint8Array;
  read: (message: Uint8Array) => Uint8Array;
  remote: Uint8Array | undefined;
  transport: () => Transport;
}
interface DesignedInvite {
  relay: string;
  channel: Uint8Array;
  key: Uint8Array;
  secret: Secret;
  url: () => string;
}
interface DesignedSession {
  open: (topic: string) => Promise<Invite>;
  join: (invite: Invite | string) => Promise<void>;
  send: (text: string) => Promise<unknown>;
  poll: (waitMs?: number, o?: { signal?: AbortSignal }) => Promise<Received[]>;
  close: (outcome: string) => Promise<void>;
  peer: Peer;
  messages: () => AsyncGenerator<Received>;
  save: () => Uint8Array;
}
type Message2 = { kind: 'say' | 'close'; text: string };
export const parleys: {
  Identity: {
    generate: () => parley.Identity;
    fromSeed: (seed: Uint8Array) => parley.Identity;
    fromPrivateKey: (k: Uint8Array) => parley.Identity;
  };
  fingerprint: (nodeId: Uint8Array) => string;
  Secret: { generate: () => Secret; from: (bytes: Uint8Array) => Secret };
  Invite: {
    new (o: { relay: string; channel: Uint8Array; key: Uint8Array; secret: Secret }): DesignedInvite;
    parse: (raw: string) => DesignedInvite;
  };
  marshalMessage: (m: Message2) => Uint8Array;
  unmarshalMessage: (b: Uint8Array) => Message2;
  Handshake: {
    initiator: (o: Shaking) => DesignedHandshake;
    responder: (o: Shaking) => DesignedHandshake;
  };
  HttpRelay: new (base: string, o?: Options) => Relay;
  Session: {
    new (identity: parley.Identity, relay: Relay, o?: Options & { host?: string }): DesignedSession;
    resume: (
      state: Uint8Array,
      identity: parley.Identity,
      relay: Relay,
      o?: Options & { host?: string },
    ) => Promise<DesignedSession>;
  };
} = parley;

declare const identity: parley.Identity;
export const node: { publicKey: Uint8Array; id: Uint8Array; fingerprint: () => string } = identity;
declare const secret: Secret;
export const secrets: { psk: () => Uint8Array; joinToken: () => string } = secret;

interface DesignedFrame {
  channel: Uint8Array;
  seq: bigint;
  type: 1 | 2 | number;
  payload: Uint8Array;
}
interface DesignedTransport {
  seal: (seq: bigint | number, plaintext: Uint8Array) => Uint8Array;
  open: (seq: bigint | number, sealed: Uint8Array) => Uint8Array;
}
interface DesignedPeer {
  id?: Uint8Array;
  fingerprint: string;
  topic: string;
  state: 'none' | 'pending' | 'active' | 'closed';
  present: boolean;
}
interface Seat {
  channel: Uint8Array;
  token: string;
}
interface DesignedRelay {
  open: (channel: Uint8Array, expect: string, o?: { signal?: AbortSignal }) => Promise<Seat>;
  join: (channel: Uint8Array, present: string, o?: { signal?: AbortSignal }) => Promise<Seat>;
  send: (membership: Seat, frame: DesignedFrame, o?: { signal?: AbortSignal }) => Promise<void>;
  recv: (membership: Seat, after: bigint, waitMs: number, o?: { signal?: AbortSignal }) => Promise<DesignedFrame[]>;
  members: (membership: Seat, o?: { signal?: AbortSignal }) => Promise<number>;
}
export const sameOfParley: [
  Same<parley.Message, Message2>,
  Same<parley.Frame, DesignedFrame>,
  Same<Transport, DesignedTransport>,
  Same<Peer, DesignedPeer>,
  Same<Received, Message2 & { from: Uint8Array }>,
  Same<Relay, DesignedRelay>,
] = [true, true, true, true, true, true];

// --- the embedded service -----------------------------------------------------------------------------------------

type LimitNames =
  | 'readsPerMinute'
  | 'writesPerMinute'
  | 'newRoomsPerDay'
  | 'rooms'
  | 'notes'
  | 'notesPerNamespace'
  | 'roomRingBytes'
  | 'ephemeralTtlMs'
  | 'longPollMs'
  | 'waitersPerAddress'
  | 'waiters'
  | 'connections'
  | 'roomsCacheMs'
  | 'retentionMs'
  | 'singleMessageRetentionMs'
  | 'wakeStepMs';
declare const limits: localService.Limits;
export const limited: Record<LimitNames, number> & Record<keyof localService.Limits, number> = limits;

interface DesignedService {
  fetch: typeof fetch;
  listen: (port?: number, host?: string) => Promise<{ url: string; close: () => Promise<void> }>;
  stats: object;
}
export const local: (o?: {
  profile?: 'modern' | '0.7';
  clock?: Clock;
  limits?: Partial<localService.Limits>;
  random?: (bytes: number) => Uint8Array;
}) => DesignedService = localService.createLocalService;
