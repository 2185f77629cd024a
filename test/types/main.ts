/** A program that uses every export of the main module, as its documentation says. It is compiled, never run. */
import {
  A2A_BINDING,
  type A2AAgent,
  type A2AAgentOptions,
  type A2AAnswer,
  type A2AArtifact,
  type A2ACallOptions,
  type A2ACapabilities,
  type A2ACard,
  type A2ACardInfo,
  type A2AClaimOptions,
  type A2AHandler,
  type A2AInterface,
  type A2AItem,
  type A2ALease,
  type A2AListOptions,
  type A2AMade,
  type A2AMessage,
  type A2ANoteOptions,
  type A2APage,
  type A2APart,
  type A2ARecord,
  type A2AReply,
  type A2ASaid,
  type A2ASendOptions,
  type A2ASkill,
  type A2AState,
  type A2AStatus,
  type A2AStore,
  type A2AStoreLimits,
  type A2ATask,
  type A2ATaskView,
  type A2AWaitOptions,
  type A2AYield,
  type AcceptOptions,
  type Admission,
  type Answerer,
  a2aAdvance,
  a2aAgent,
  a2aCancel,
  a2aCard,
  a2aCard03,
  a2aCardNote,
  a2aCheckCard,
  a2aClaim,
  a2aCreate,
  a2aFileStore,
  a2aFindNotes,
  a2aGet,
  a2aGetState,
  a2aKeep,
  a2aList,
  a2aMemoryStore,
  a2aPublishCard,
  a2aReadCard,
  a2aSend,
  a2aSignCard,
  a2aStream,
  a2aTaskNote,
  a2aText,
  a2aVerifyCard,
  a2aWait,
  acceptSealed,
  allowWriters,
  BadKey,
  BadName,
  BadNonce,
  BadState,
  badParams,
  type CallContext,
  type CallOptions,
  CallTimeout,
  CapacityReached,
  type Census,
  type Channel,
  type Clock,
  Conflict,
  type ContentBlock,
  type CursorStore,
  call,
  claimRoom,
  connectSealed,
  createDispatcher,
  DecryptError,
  type DiscoverResult,
  type DispatchContext,
  type Dispatcher,
  type DispatcherOptions,
  DuplicateText,
  decode,
  dispatch,
  type ElicitResult,
  EmptyText,
  type Event,
  e2eAccept,
  e2eFollow,
  e2eOffer,
  e2eOfferTo,
  e2eOpen,
  e2eRead,
  e2eSeal,
  e2eSend,
  e2eSplit,
  encode,
  explain,
  Forbidden,
  type Frame,
  FrameTooLong,
  fileCursor,
  fileLedger,
  follow,
  getNote,
  type Handler,
  HttpError,
  type Id,
  type Identity,
  type Implementation,
  type Incoming,
  type InputContext,
  type InputHandlers,
  idempotent,
  identityKeys,
  isDid,
  isName,
  type Json,
  type JsonObject,
  type Layer,
  type Layered,
  type Ledger,
  type LedgerLimits,
  type LedgerMessage,
  type LedgerRequest,
  type Listener,
  type LogLevel,
  listNotes,
  MAX_NOTE,
  MAX_TEXT,
  type MakeLayer,
  MayHaveLanded,
  type McpCallOptions,
  type McpFilter,
  type McpListenOptions,
  type McpListOptions,
  type McpOptions,
  type Message,
  mailboxes,
  mcpCallTool,
  mcpDiscover,
  mcpKeepAlive,
  mcpListen,
  mcpListTools,
  memoryLedger,
  methods,
  type NotePath,
  notify,
  type Options,
  type Place,
  publishIdentity,
  RateLimited,
  type ReadOptions,
  type ReplyLimits,
  RingGap,
  RoomBudget,
  type RoomClasses,
  type RoomView,
  RpcError,
  read,
  resolveIdentity,
  roomClasses,
  type SealedChannel,
  type SealedMessage,
  type SealedRoom,
  type SendOptions,
  type Sent,
  type ServeOptions,
  type SetOptions,
  type SignedMessage,
  type SignedNote,
  Signer,
  type Spill,
  StaleNonce,
  say,
  sealed,
  serve,
  setNote,
  sweep,
  systemClock,
  TechnocoreError,
  type Tool,
  type ToolAnnotations,
  type ToolContext,
  type ToolHandler,
  type ToolOptions,
  type ToolResult,
  tool,
  tools,
  toolsChanged,
  Unavailable,
  type Verdict,
  verify,
  verifyMessage,
  x25519Generate,
} from 'technocore-rpc';

// --- what is implemented by users ---------------------------------------------------------------------------------

class SimulatedClock implements Clock {
  #now = 0;
  now(): number {
    return this.#now;
  }
  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#now += ms;
  }
}

class MapLedger implements Ledger {
  readonly #answers = new Map<string, string>();
  admit(message: LedgerMessage, now: number): Admission {
    const { from, room, nonce, at, after, requests, passing, rank } = message;
    const until: number = now + (at ?? 0) + (after ?? 0) + (rank ?? 0);
    const first: Verdict = nonce === undefined ? { kind: 'new' } : { kind: 'before', nonce };
    const verdictOn = ({ id, digest, passing, reply, frame }: LedgerRequest): Verdict => {
      const answer = this.#answers.get(from + id);
      if (answer !== undefined) return { kind: 'answered', answer, sent: reply !== undefined };
      return frame?.['method'] === digest && passing ? first : { kind: 'full', retryAfterMs: until };
    };
    return { fresh: passing !== true && room !== '', verdicts: requests.map(verdictOn) };
  }
  answer(from: string, id: string, answer: string): void {
    this.#answers.set(from + id, answer);
  }
  async sent(from: string, id: string): Promise<void> {
    await this.forget(from, id);
  }
  forget(from: string, id: string): Promise<void> {
    return Promise.resolve(void this.#answers.delete(from + id));
  }
}

const heard: Incoming[] = [];

class Loopback implements Channel {
  readonly room = 'loopback';
  readonly self = '';
  readonly limit = 10_000;
  readonly spill: Spill = { put: async (text) => ({ text }), get: async (ref, signal) => `${signal?.aborted} ${ref}` };
  readonly #listeners = new Set<Listener>();
  async listen(listener: Listener, signal?: AbortSignal): Promise<() => void> {
    this.#listeners.add(listener);
    const stop = () => void this.#listeners.delete(listener);
    signal?.addEventListener('abort', stop);
    return stop;
  }
  async send(text: string, { signal, deadline }: SendOptions = {}): Promise<Sent> {
    signal?.throwIfAborted();
    const message: Incoming = { from: 'somebody', text, room: this.room, seq: 1, nonce: '1', at: deadline ?? 0 };
    for (const listener of this.#listeners) if (!listener.stagger || listener.expects?.()) listener.message(message);
    return { seq: heard.push(message), alone: false };
  }
}

/** Hands on what another has: members that it may not have are undefined here. */
class Watched implements Channel {
  readonly #inner: Channel;
  readonly room: string;
  readonly self: string;
  readonly limit: number | undefined;
  readonly spill: Spill | undefined;
  constructor(inner: Channel) {
    this.#inner = inner;
    ({ room: this.room, self: this.self, limit: this.limit, spill: this.spill } = inner);
  }
  listen(listener: Listener, signal?: AbortSignal): Promise<() => void> {
    const message = ({ from, text, room, seq, nonce, at }: Incoming): void => {
      events.push(text);
      listener.message({ from, text, room, seq, nonce, at });
    };
    return this.#inner.listen({ ...listener, message, stagger: listener.stagger }, signal);
  }
  async send(text: string, o?: SendOptions): Promise<Sent> {
    const { seq, alone } = await this.#inner.send(text, { signal: o?.signal, deadline: o?.deadline });
    return { seq, alone };
  }
}

const listener: Listener = {
  message: (m) => void heard.push(m),
  gap: ({ oldest, reason }) => void [oldest.toFixed(), reason === 'overflow'],
  renewed: (goesOn) => void !goesOn,
  end: (cause) => void RpcError.is(cause),
  expects: () => 0,
  stagger: true,
};

class MapCursor implements CursorStore {
  readonly #places = new Map<string, Place>();
  load(room: string): Place | undefined {
    return this.#places.get(room);
  }
  save(room: string, { since, generation, mark, said }: Place): void {
    const place: Place = { since, ...(said === undefined ? {} : { said }) };
    if (generation !== undefined) place.generation = generation;
    if (mark !== undefined) place.mark = mark;
    this.#places.set(room, place);
  }
}

class ArrayStore implements A2AStore {
  #records: A2ARecord[] = [];
  get(id: string): A2ARecord | undefined {
    return this.#records.find(({ task }) => task.id === id);
  }
  find(owner: string, request: string): string | undefined {
    return this.#records.find((record) => record.owner === owner && record.requests.includes(request))?.task.id;
  }
  async list(owner: string): Promise<A2ARecord[]> {
    return this.#records.filter((record) => record.owner === owner);
  }
  async put(record: A2ARecord, rank = 0): Promise<void> {
    if (rank > 1e6) throw new RpcError(1002, 'busy', { retryAfterMs: 1000 });
    this.#records = [...this.#records, record];
  }
  remove(id: string): void {
    this.#records = this.#records.filter(({ task }) => task.id !== id);
  }
}

const silentLayer: MakeLayer = ({ tools, pageSize }) => {
  const layer: Layer = {
    owns: (method) => method.startsWith('silent/') && tools !== undefined,
    request: ({ id }, { from, emit }) => {
      emit?.({ from: from ?? '' });
      return { id: id ?? null, result: pageSize ?? 0 };
    },
    notification: (frame, context) => void [frame['method'], context.room],
    acts: (frame) => frame['method'] !== 'silent/read',
    idempotent: () => true,
    staysOpen: () => false,
    cancels: ({ params }) => (typeof params === 'string' ? params : undefined),
    close() {},
  };
  return layer;
};
const layered: Layered = { layer: silentLayer };

// --- options, each with all of its members ------------------------------------------------------------------------

const { signal } = new AbortController();
const events: string[] = [];
const told = ({ kind, ...details }: Event): void => void events.push(kind, String(details['reason']));
const random = (bytes: number): Uint8Array => new Uint8Array(bytes);
const clock: Clock = new SimulatedClock();
const base = 'http://local.test';
const o: Required<Options> = { base, fetch, signal, clock, random, lane: 'auto', onEvent: told };
const calling: Required<CallOptions> = {
  ...o,
  replyTo: 'mb-p-me',
  timeoutMs: 5000,
  id: '1',
  peer: 'did:key:z',
  retry: 1,
  batch: true,
  latency: 'frugal',
};
const replyLimits: Required<ReplyLimits> = { unprovedPerDay: 1, unprovedPerKey: 2, newRoomsPerDay: 3 };
const serving: Required<ServeOptions> = {
  ...o,
  methods: new Map<string, Handler>(),
  tools: new Map<string, Tool>(),
  serverInfo: { name: 'me', version: '1', title: 'Me' },
  instructions: 'Ask.',
  pageSize: 10,
  layer: silentLayer,
  allow: async (from) => from !== '',
  silent: true,
  replyPolicy: (from, room) => from !== room,
  replyLimits,
  concurrency: 4,
  queue: 10,
  deadlineMs: 1000,
  drainMs: 1000,
  ledger: new MapLedger(),
  cursor: new MapCursor(),
  latency: 'fast',
  presence: false,
  claim: { leaseMs: 60_000 },
  spill: true,
  onReady() {},
};
const input: Required<InputHandlers> = {
  elicit: ({ message }, { key, signal }: InputContext): ElicitResult => {
    const accepted = { action: 'accept', content: { message, key } } as const;
    return signal?.aborted ? { action: 'cancel' } : accepted;
  },
  elicitUrl: async () => ({ action: 'decline' }),
  sample: () => ({ role: 'assistant', content: { type: 'text', text: 'yes' }, model: 'none' }),
  roots: () => ({ roots: [{ uri: 'file:///', name: 'all' }, { uri: 'file:///tmp' }] }),
};
const mcp: Required<McpOptions> = {
  ...calling,
  clientInfo: { name: 'me', version: '1' },
  capabilities: { elicitation: {} },
  meta: { traceparent: '00' },
};
const levels: LogLevel[] = ['debug', 'emergency'];
const toolCall: Required<McpCallOptions> = {
  ...mcp,
  onInput: input,
  onProgress: (done, total, message) => void (done / (total ?? 1) + (message?.length ?? 0)),
  onLog: (level, data, logger) => void [levels.includes(level), data === null, logger?.length],
  logLevel: 'warning',
  idempotent: true,
};
const listing: Required<McpListOptions> = { ...mcp, refresh: true };
const listening: Required<McpListenOptions> = {
  ...mcp,
  onReady: ({ toolsListChanged, resourceSubscriptions }) =>
    void [toolsListChanged === true, resourceSubscriptions?.[0]],
  renewMs: 1e6,
};
const filter: Required<McpFilter> = {
  toolsListChanged: true,
  promptsListChanged: true,
  resourcesListChanged: true,
  resourceSubscriptions: ['file:///x'],
};
const accepting: Required<AcceptOptions> = {
  ...o,
  privateKey: random(32),
  allow: () => true,
  sessions: 2,
  idleMs: 1000,
  onReady() {},
};
const dispatching: Required<DispatcherOptions> = {
  methods,
  tools: new Map([['one', layered]]),
  serverInfo: { name: 'me', version: '1' },
  instructions: 'Ask.',
  pageSize: 10,
  stateKey: random(32),
  clock: systemClock,
  layer: silentLayer,
  spills: true,
  nullId: false,
};
const notes: Required<A2ANoteOptions> = { ...o, noteBase: 'p-tasks' };
const claiming: Required<A2AClaimOptions> = { ...notes, leaseMs: 5000 };
const a2a: Required<A2ACallOptions> = { ...calling, version: '1.0' };
const paged: Required<A2AListOptions> = {
  ...a2a,
  contextId: 'c',
  status: 'TASK_STATE_WORKING',
  pageSize: 10,
  pageToken: '',
  historyLength: 1,
  statusTimestampAfter: new Date(0).toISOString(),
  includeArtifacts: true,
};
const sending: Required<A2ASendOptions> = {
  ...a2a,
  taskId: 't',
  contextId: 'c',
  referenceTaskIds: [],
  messageId: 'm',
  metadata: { n: 1 },
  acceptedOutputModes: ['text/plain'],
  historyLength: 1,
  returnImmediately: true,
};
const waiting: Required<A2AWaitOptions> = { ...a2a, historyLength: 1, pollMs: 1, maxPollMs: 2, waitMs: 3 };
const storeLimits: Required<A2AStoreLimits> = { tasks: 1, chars: 1 };
const ledgerLimits: Required<LedgerLimits> = { windowMs: 1, entries: 1, chars: 1, floors: 1 };
const reading: Required<ReadOptions> = { since: 0, limit: 1, waitMs: 1 };

// --- rooms, notes, keys -------------------------------------------------------------------------------------------

export async function rooms(): Promise<void> {
  const signer: Signer = Signer.generate();
  const others: Signer[] = [Signer.fromSeed(random(32)), Signer.fromPassphrase('x'), await Signer.fromDir()];
  const ids: string[] = [...others, await Signer.fromDir('keys')].map(({ did, fingerprint }) => did + fingerprint);
  const { did, sig, canonical }: SignedMessage = signer.signMessage('lobby', 7, signer.sign('x'));
  const signed: SignedNote = signer.signNote('room-owners', 'd-x', '8', did);
  const said: { seq: number; nonce: string } = await signer.say('lobby', signed.value, o);
  const seq: number = (await say('lobby', 'ada', said.nonce, o)).seq;
  const valid: boolean = verify(did, sig, canonical) && isDid(did) && isName(ids[0]);
  const view: RoomView = await read('lobby', { ...o, ...reading });
  const last: Message | undefined = view.messages.at(-1);
  const place: (number | null | undefined)[] = [view.firstSeq, view.lastSeq, view.generation, seq];
  if (last && verifyMessage(view.room, last) === 'invalid') events.push(explain('lobby', last) ?? String(valid));
  for await (const { seq, ts, from, text, nonce, sig } of follow('lobby', { ...o, since: place.length })) {
    events.push(`${seq + 1}`, ts.trim(), from, text, nonce ?? '', sig?.trim() ?? '');
  }
  const { p, mb, d, e }: RoomClasses = roomClasses('mb-x');
  if (p || mb || d || e) await claimRoom('d-x', signer, o);
  const writers: readonly string[] = [did];
  await allowWriters('d-x', writers, signer, o);
  const condition: SetOptions = (await getNote('ns', 'k', o)) === undefined ? { ifAbsent: true } : { if: 'old' };
  await setNote('ns', sweep('k', MAX_NOTE, 'the key'), 'new', { ...o, ...condition });
  const keys: string[] = await listNotes('ns', o);
  await publishIdentity(signer, { mailbox: keys[0] ?? 'mb-x', x25519: identityKeys(signer).publicKey }, o);
  await publishIdentity(signer);
  const found: Identity | undefined = await resolveIdentity(did, o);
  if (found?.signed) events.push(found.mailbox ?? '', found.x25519 ?? '');
}

export function frames(): number {
  const frame: Frame | undefined = decode(encode({ jsonrpc: '2.0', id: null, params: [1, 'x', true, { a: [] }] }));
  if (frame === undefined) return MAX_TEXT;
  const member: Json | undefined = Array.isArray(frame) ? frame[0] : frame['id'];
  return typeof member === 'number' ? member : 0;
}

// --- calls and servers --------------------------------------------------------------------------------------------

interface Sum {
  a: number;
  b: number;
}

const add: Handler = async ({ a, b }: Sum, context) => {
  const { from, id, room, meta, rank, limit, service, notify }: CallContext = context;
  const known: Id | undefined = id;
  if (known === null) throw badParams(`${from} in ${room}`, { rank, limit });
  const sum: Sum = { a, b };
  notify('adding', sum);
  if (Number.isNaN(a)) throw badParams('a is a number', sum);
  await signer.say('lobby', String(meta['why']), { ...service, signal: context.signal });
  return a + b;
};
const signer = Signer.generate();
const channel: Channel = new Watched(new Loopback());
methods.set('add', idempotent(add)).set('count', async function* ({ n }: { n: number }) {
  for (let i = 0; i < n; i++) yield i;
  return n;
});

export async function calls(): Promise<unknown[]> {
  const params: Sum = { a: 1, b: 2 };
  const inferred: Promise<number> = call('mb-x', 'add', params, signer, calling);
  const named = await call<{ sum: number }>(channel, 'add', [1, 2], signer);
  const census: Census = await call('mb-x', 'census/latest', undefined, signer, { replyTo: 'mb-p-me' });
  const numbers: number[] = [named.sum, census.rooms.total, census.notes.capacity, census.bytes.used];
  const topics: (string | null)[] = census.listed?.map(({ topic }) => topic) ?? [census.at];
  await notify(mailboxes('mb-x', 'mb-y', signer, { ...o, latency: 'fast' }), 'added', params, signer, o);
  await notify('mb-x', 'done', undefined, signer);
  // @ts-expect-error a call needs a method
  void call('mb-x', undefined, {}, signer);
  // @ts-expect-error and somebody who signs it
  void call('mb-x', 'add', {});
  return [inferred, numbers, topics];
}

export async function servers(): Promise<void> {
  const dispatcher: Dispatcher = createDispatcher(dispatching);
  const context: Required<DispatchContext> = {
    from: 'did:key:z',
    room: 'lobby',
    service: o,
    signal,
    emit: (frame: Json) => events.push(encode(frame)),
    tell: () => undefined,
    limit: 1,
    rank: 0,
    onError: (error: unknown, method: string) => void [error, method.trim()],
  };
  const answer: Json | undefined = await dispatcher.dispatch('{}', context);
  const again: Json | undefined = await dispatch(answer, { from: 'me', emit: undefined }, { methods, tools });
  const known: boolean[] = [dispatcher.acts(again), dispatcher.idempotent(again), dispatcher.staysOpen(again)];
  const id: Id | undefined = dispatcher.cancels(again);
  if (dispatcher.batchable(known)) events.push(encode(dispatcher.invalid(id) ?? null));
  dispatcher.close();
  await serve(channel, signer, serving);
  await serve('mb-x', signer, { ledger: memoryLedger(ledgerLimits), cursor: fileCursor('c'), claim: true });
  const ledger: Ledger = await fileLedger('l', ledgerLimits, clock);
  ledger.pass?.(clock.now());
  await ledger.close?.();
  const stop = await channel.listen(listener, signal);
  stop();
}

// --- tools --------------------------------------------------------------------------------------------------------

const annotations: Required<ToolAnnotations> = {
  title: 'Add',
  readOnlyHint: true,
  destructiveHint: false,
  idempotentHint: true,
  openWorldHint: false,
};
const toolOptions: Required<ToolOptions> = {
  title: 'Add',
  outputSchema: { type: 'object' },
  annotations,
  icons: [{ src: 'x' }],
  idempotent: true,
  onEvent: told,
};
const adding: ToolHandler = async (
  { a, b }: Sum,
  { progress, log, elicit, sample, roots, toolsChanged, ...context },
) => {
  progress(1, 2, 'half');
  log('info', { a }, 'adder');
  const { action, content }: ElicitResult = await elicit('sure', { message: 'Sure?', requestedSchema: {} });
  const sampled: JsonObject = await sample('more', { messages: [], maxTokens: 1 });
  const folders: string[] = (await roots('where')).roots.map(({ uri, name }) => name ?? uri);
  toolsChanged();
  const blocks: ContentBlock[] = [
    { type: 'text', text: context.from },
    { type: 'image', data: '', mimeType: 'image/png' },
    { type: 'audio', data: '', mimeType: 'audio/ogg' },
    { type: 'resource_link', uri: folders[0] ?? '', name: 'x' },
    { type: 'resource', resource: { uri: 'x', text: 'y' } },
  ];
  const result: Required<ToolResult> = { content: blocks, structuredContent: a + b, isError: false, _meta: sampled };
  return action === 'accept' && content ? result : 'no';
};
const asksNothing = (context: ToolContext): string => context.room;
const decline: Answerer<ElicitResult> = ({ message }, { key }) => ({ action: message === key ? 'accept' : 'decline' });

export async function mcpTools(): Promise<void> {
  tool('add', 'Adds.', { type: 'object' }, adding, { ...toolOptions, tools });
  tool('where', 'Tells.', { type: 'object' }, (_, context) => asksNothing(context));
  toolsChanged(tools);
  const { supportedVersions, capabilities, serverInfo, ttlMs, cacheScope, ...more }: DiscoverResult = await mcpDiscover(
    'mb-x',
    signer,
    mcp,
  );
  const server: Implementation | undefined = serverInfo;
  events.push(supportedVersions[0] ?? '', server?.name ?? cacheScope, more.instructions ?? `${ttlMs}`);
  const listed: Tool[] = await mcpListTools(channel, signer, listing);
  const { name, title, description, inputSchema, outputSchema, annotations, icons, _meta, layer } = listed[0]!;
  layer?.({}).close();
  // What a server lists can be offered again.
  if (icons) tool(name, description ?? '', inputSchema, adding, { icons });
  const args = {
    name,
    title: title ?? description,
    inputSchema,
    outputSchema,
    icons,
    annotations,
    _meta,
    capabilities,
  };
  const result: ToolResult = await mcpCallTool('mb-x', 'add', args, signer, toolCall);
  for (const block of result.content) {
    if (block.type === 'text') events.push(block.text);
    else if (block.type === 'resource') events.push(block.resource.uri);
    else events.push(block.type === 'resource_link' ? block.name : block.mimeType);
  }
  await mcpCallTool('mb-x', 'add', undefined, signer, { ...mcp, onInput: { elicit: decline } });
  for await (const notification of mcpListen('mb-x', filter, signer, listening)) events.push(encode(notification));
  await mcpKeepAlive('mb-x', signer, { ...mcp, everyMs: 1 });
}

// --- agents -------------------------------------------------------------------------------------------------------

const part: Required<A2APart> = { text: '', raw: '', url: '', data: {}, filename: '', mediaType: '', metadata: {} };
const working = async (message: A2AMessage, task: A2ATask): Promise<A2AReply> => {
  const { id, contextId, from, history, accepts, signal, continued } = task;
  const said: A2ASaid = continued ? [part] : a2aText(history[0] ?? message);
  if (signal.aborted) await task.reject(said);
  await task.update('working', said);
  const made: A2AMade = { parts: [part], name: id, description: from, append: true, lastChunk: true, metadata: {} };
  await task.ask(await task.artifact({ ...made, artifactId: contextId }));
  return accepts.length ? { parts: [part], metadata: {} } : undefined;
};
const streaming: A2AHandler = async function* (message, { id }): AsyncGenerator<A2AYield, A2AReply> {
  yield 'on it';
  yield { state: 'working', said: a2aText(message) };
  yield { text: id };
  return 'done';
};
const capabilities: Required<A2ACapabilities> = {
  streaming: true,
  pushNotifications: false,
  extendedAgentCard: false,
  extensions: [{ uri: 'urn:x' }],
};
const skill: Required<A2ASkill> = {
  id: 'print',
  name: 'print',
  description: '',
  tags: ['print'],
  examples: [],
  inputModes: [],
  outputModes: [],
};
const reached: A2AInterface = { url: base, protocolBinding: A2A_BINDING, protocolVersion: '1.0' };
const info: A2ACardInfo = { name: 'Posters', skills: [skill, { name: 'cut' }], capabilities, mailbox: 'mb-x' };

export async function agents(): Promise<void> {
  const card: A2ACard = a2aCheckCard(a2aCard({ ...info, supportedInterfaces: [reached] }, o));
  const older: JsonObject = a2aCard03(card);
  const { ns, key }: NotePath = await a2aPublishCard(a2aSignCard(card, signer), signer, o);
  const path: NotePath = a2aCardNote(signer.did);
  const found: A2ACard | undefined = await a2aReadCard(signer.did, o);
  events.push(String(found && a2aVerifyCard(found, signer.did)), ns, key, path.key, encode(older));
  const settings: Required<A2AAgentOptions> = {
    store: new ArrayStore(),
    clock,
    random,
    concurrency: 1,
    waitMs: 1,
    rooms: ['lobby'],
    extendedCard: card,
    notes,
    onError: (error, taskId) => void [error, taskId.trim()],
    onEvent: told,
  };
  const agent: A2AAgent = a2aAgent(streaming, info, settings);
  await serve('mb-x', signer, { methods: agent.methods });
  agent.close();
  const stores: A2AStore[] = [a2aMemoryStore(storeLimits), await a2aFileStore('tasks', storeLimits, clock)];
  a2aAgent(working, {}, { store: stores[0]! });
  a2aAgent(() => 'hello');
}

export async function tasks(): Promise<void> {
  const answer: A2AAnswer = await a2aSend('mb-x', 'print', signer, sending);
  if (answer.message) return;
  const task: A2ATaskView = answer.task;
  const seen: A2ATaskView = await a2aGet(channel, task.id, signer, { ...a2a, historyLength: 1 });
  const status: A2AStatus = (await a2aWait('mb-x', seen.id, signer, waiting)).status;
  const { tasks, nextPageToken, pageSize, totalSize }: A2APage = await a2aList('mb-x', signer, paged);
  await a2aCancel('mb-x', tasks[pageSize + totalSize]?.id ?? nextPageToken, signer, a2a);
  const items: AsyncGenerator<A2AItem> = a2aStream('mb-x', { taskId: task.id }, signer, sending);
  for await (const { task, message, statusUpdate, artifactUpdate } of items) {
    const state: A2AState | undefined = (statusUpdate ?? task)?.status.state;
    const artifact: A2AArtifact | undefined = artifactUpdate?.artifact ?? task?.artifacts?.[0];
    events.push(state ?? status.state, artifact ? a2aText(artifact) : '', message?.messageId ?? '');
  }
  const lease: A2ALease = await a2aClaim(task.id, claiming);
  await lease.advance('working', 'completed');
  await lease.renew();
  await lease.release();
  events.push(lease.taskId, lease.attempt, String(lease.signal.aborted));
  await a2aCreate('t', notes);
  await a2aAdvance('t', 'submitted', 'working', notes);
  const state: string | undefined = (await a2aKeep('t', notes)) ? await a2aGetState('t', notes) : undefined;
  const ids: string[] = await a2aFindNotes(new Set(['t']), notes);
  events.push(state ?? '', ids[0] ?? a2aTaskNote('t', notes.noteBase).key);
}

// --- encryption ---------------------------------------------------------------------------------------------------

export async function encrypted(): Promise<void> {
  const { privateKey, publicKey } = x25519Generate({ random });
  const { offer, ...made } = e2eOffer(publicKey, { random, room: 'p-x', key: random(32) });
  const { key, room }: SealedRoom = e2eAccept(offer, privateKey);
  const { mailbox } = await e2eOfferTo(signer.did, signer, { ...o, ...made, allowUnsigned: true });
  const line: string = e2eOpen(key, e2eSeal(key, mailbox, { random }));
  for (const piece of e2eSplit(line, 100)) await e2eSend(room, key, piece, { ...o, signer, nick: 'ada' });
  const { last, messages } = await e2eRead(room, key, { ...o, ...reading });
  const shown = ({ seq, from, text, error }: SealedMessage): string => `${seq + last} ${from} ${text ?? error?.layer}`;
  events.push(...messages.map(shown));
  for await (const message of e2eFollow(room, key, { ...o, since: 0 })) events.push(shown(message));
  const group: SealedChannel = sealed(room, key, signer, { ...o, peer: signer.did });
  const pair: SealedChannel = await connectSealed(signer.did, signer, { ...o, ...made, timeoutMs: 1 });
  await serve(group, signer, { allow: (from) => from === pair.peer });
  await acceptSealed('mb-x', signer, (opened, signal) => serve(opened, signer, { signal }), accepting);
}

// --- errors -------------------------------------------------------------------------------------------------------

class Misprint extends TechnocoreError {
  readonly page: number;
  constructor(page: number, cause?: unknown) {
    super('misprint', `page ${page}`, cause);
    this.page = page;
  }
}

/** What an error carries. Each is told from what is left by then, and leaves all others. */
export function carried(e: unknown): unknown {
  if (!TechnocoreError.is(e)) return e;
  const whole: { code: string; message: string } = e;
  if (BadKey.is(e)) return e.code satisfies 'bad_key';
  if (BadNonce.is(e)) return e.code satisfies 'bad_nonce';
  if (EmptyText.is(e)) return e.code satisfies 'empty_text';
  if (CapacityReached.is(e)) return e.code satisfies 'capacity_reached';
  if (BadName.is(e)) return e.invalidName satisfies string;
  if (BadState.is(e)) return [e.from, e.to] satisfies string[];
  if (FrameTooLong.is(e)) return (e.chars - e.limit) satisfies number;
  if (RoomBudget.is(e)) return e.retryAfterMs satisfies number;
  if (RateLimited.is(e)) return [e.retryAfterMs, e.bucket] satisfies [number, 'read' | 'write'];
  if (Unavailable.is(e)) return [e.retryAfterMs, e.cause] satisfies [number | undefined, unknown];
  if (StaleNonce.is(e)) return e.last satisfies string;
  if (MayHaveLanded.is(e)) return [e.room, e.nonce] satisfies [string, string | undefined];
  if (RpcError.is(e)) return [e.rpc.code, e.rpc.message, e.rpc.data] satisfies [number, string, unknown];
  if (RingGap.is(e)) {
    return [e.room, e.expected, e.oldest, e.reason] satisfies [string, number, number, 'overflow' | 'recreated'];
  }
  if (CallTimeout.is(e)) {
    const reason: 'no-room' | 'no-server' | 'no-answer' = e.reason;
    return [e.room, e.id, e.afterMs, reason] satisfies [string, string, number, string];
  }
  if (DecryptError.is(e)) return e.layer satisfies 'encoding' | 'key' | 'tag' | 'layout';
  if (HttpError.is(e)) {
    if (Forbidden.is(e)) return e.code satisfies 'forbidden';
    if (DuplicateText.is(e)) return e.code satisfies 'duplicate_text';
    if (Conflict.is(e)) return [e.code, e.actual] satisfies ['conflict', string | undefined];
    return [e.status, e.body] satisfies [number, string];
  }
  if (Misprint.is(e)) return e.page satisfies number;
  return [e.code, whole.message] satisfies string[];
}

/** As handlers, ledgers, relays and tests throw them. */
export const errors: TechnocoreError[] = [
  new Misprint(1, new Error('why')),
  new BadKey('m'),
  new BadNonce('m', new Error('why')),
  new EmptyText(),
  new CapacityReached('m'),
  new BadName(7, 'a name'),
  new BadState('a', 'b'),
  new FrameTooLong(2, 1),
  new RoomBudget(1),
  new RateLimited('read', 1),
  new Unavailable('m', undefined, 1),
  new StaleNonce('1'),
  new MayHaveLanded('lobby', undefined),
  new RpcError(1, 'm', { any: 'data' }),
  new RingGap('lobby', 1, 2, 'recreated'),
  new CallTimeout('mb-x', '1', 1, 'no-room', 'hint'),
  new DecryptError('tag', 'm'),
  new HttpError(418, 'a teapot'),
  new Forbidden('m'),
  new DuplicateText('m'),
  new Conflict('m', 'actual'),
];
