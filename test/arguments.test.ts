import { readdirSync, readFileSync } from 'node:fs';
import { runInNewContext } from 'node:vm';
import { expect, test } from 'vitest';
import * as bridge from '../src/bridge.ts';
import * as local from '../src/local.ts';
import * as parley from '../src/parley.ts';
import * as lib from '../src/technocore-rpc.ts';
import { signer, world } from './support.ts';

// What types promise, JavaScript does not: whoever forgets an argument is told which, by an error of ours.

const WRONG = [undefined, null, 5, { a: 1 }, ['a']];
const key = new Uint8Array(32);
const alice = signer(1);
const { o } = world();
const reply = { ...o, replyTo: 'mb-p-mine' };
const L = lib as any;

/** Each with good arguments, of which one at a time is spoilt; it ends before it would need the service. */
const CALLS: [name: string, good: unknown[], run: (...args: any[]) => unknown][] = [
  ['say', ['p-x', 'nick', 'text'], (...a) => L.say(...a, o)],
  ['read', ['p-x'], (a) => L.read(a, o)],
  ['follow', ['p-x'], (a) => L.follow(a, o).next()],
  ['base', ['http://x'], (base) => L.read('p-x', { ...o, base: base ?? 5 })],
  ['setNote', ['ns', 'key', 'value'], (...a) => L.setNote(...a, o)],
  ['setNote, if', ['value'], (a) => L.setNote('ns', 'key', 'value', { ...o, if: a ?? 5 })],
  ['getNote', ['ns', 'key'], (...a) => L.getNote(...a, o)],
  ['listNotes', ['ns'], (a) => L.listNotes(a, o)],
  ['claimRoom', ['d-x', alice], (...a) => L.claimRoom(...a, o)],
  ['allowWriters', ['d-x', [alice.did], alice], (...a) => L.allowWriters(...a, o)],
  ['signer.say', ['p-x', 'text'], (...a) => L.Signer.prototype.say.call(alice, ...a, o)],
  ['signer.sign', ['text'], (a) => alice.sign(a)],
  ['signer.signMessage', ['p-x', 'text'], (room, text) => alice.signMessage(room, '1', text)],
  ['signer.signNote', ['ns', 'key', 'text'], (ns, name, text) => alice.signNote(ns, name, '1', text)],
  ['call', ['mb-p-x', 'm', alice, 'mb-p-y'], (to, m, s, replyTo) => L.call(to, m, {}, s, { ...o, replyTo })],
  ['notify', ['mb-p-x', 'm', alice], (to, m, s) => L.notify(to, m, {}, s, o)],
  ['serve', ['mb-p-x', alice], (...a) => L.serve(...a, o)],
  ['publishIdentity', [alice], (a) => L.publishIdentity(a, {}, o)],
  ['resolveIdentity', [alice.did], (a) => L.resolveIdentity(a, o)],
  ['sweep', ['text'], (a) => L.sweep(a)],
  ['tool', ['name', '', () => 1], (name, about, run) => L.tool(name, about, {}, run, { tools: new Map() })],
  ['a2aAgent', [() => {}], (a) => L.a2aAgent(a, {})],
  ['Identity.fromSeed', [key], (a) => parley.Identity.fromSeed(a)],
  ['Session.open', ['topic'], (a) => (session as any).open(a)],
  ['Session.join', ['https://x/#y'], (a) => (session as any).join(a)],
  ['Session.send', ['text'], (a) => (session as any).send(a)],
  ['Session.close', ['done'], (a) => (session as any).close(a)],
  [
    'Invite',
    [key.slice(16), key, parley.Secret.from(key)],
    (c, k, s) => new P.Invite({ relay: 'x', channel: c, key: k, secret: s }),
  ],
  ['marshalMessage', ['text'], (a) => P.marshalMessage({ kind: 'say', text: a })],
  [
    'HttpRelay.send',
    [key],
    (a) => relay.send({ channel: key, token: '' } as any, { channel: key, seq: 1n, type: 2, payload: a } as any),
  ],
  ['Handshake.write', [key], (a) => initiator().write(a)],
  ['Handshake.read', [key], (a) => initiator().read(a)],
  ['Transport.seal', [key], (a) => finished().seal(1, a)],
  ['Transport.open', [key], (a) => finished().open(1, a)],
  ['mcpListTools', ['mb-p-x', alice], (...a) => L.mcpListTools(...a, reply)],
  ['mcpKeepAlive', ['mb-p-x', alice, 'mb-p-y'], (to, s, replyTo) => L.mcpKeepAlive(to, s, { ...o, replyTo })],
  ['a2aCard', [{ name: 'a', description: 'b', version: '1' }], (a) => L.a2aCard(Array.isArray(a) ? 5 : a, o)],
  ['Invite.parse', ['https://x/#y'], (a) => P.Invite.parse(a)],
  ['e2eSplit', ['text'], (a) => L.e2eSplit(a)],
  ['e2eSplit, bytes', [4], (a) => L.e2eSplit('text', a === undefined || a === 5 ? null : a)],
  ['mcpCallTool', ['mb-p-x', alice], (to, s) => L.mcpCallTool(to, 'tool', {}, s, reply)],
  ['a2aSend', ['mb-p-x', alice], (to, s) => L.a2aSend(to, 'hi', s, reply)],
  ['a2aSend, text', ['hi'], (a) => L.a2aSend('mb-p-x', Array.isArray(a) ? 5 : a, alice, reply)],
  ['fileLedger', ['/nowhere/ledger'], (a) => L.fileLedger(a)],
  ['fileCursor', ['cursor'], (a) => L.fileCursor(a)],
  ['a2aFileStore', ['/nowhere/tasks'], (a) => L.a2aFileStore(a)],
  ['a2aCreate', ['task'], (a) => L.a2aCreate(a, o)],
  ['a2aAdvance', ['task', 'submitted', 'working'], (...a) => L.a2aAdvance(...a, o)],
  ['e2eSeal', [key, 'text'], (...a) => L.e2eSeal(...a)],
  ['e2eSend', ['p-x', key, 'text'], (...a) => L.e2eSend(...a, o)],
  ['sealed', ['p-x', key, alice], (...a) => L.sealed(...a, o)],
  ['acceptSealed', ['mb-p-x', alice, () => {}], (...a) => L.acceptSealed(...a, o)],
];

/** Options of servers that would silence one, or end it at the first message, were they taken as they are. */
const SERVED: [name: string, wrong: unknown][] = [
  ['allow', ['did:key:z']],
  ['allow', 'did:key:z'],
  ['replyPolicy', true],
  ['onReady', 'ready'],
  ['methods', { add: () => 1 }],
  ['tools', []],
  ['ledger', Promise.resolve(lib.memoryLedger())],
  ['ledger', './ledger'],
  ['cursor', './cursor'],
  ['concurrency', 0],
  ['concurrency', 'many'],
  ['queue', '10'],
  ['deadlineMs', '500'],
  ['drainMs', -1],
];

/** Numbers that come from the environment, or the command line, are texts. */
const NUMBERS: [name: string, run: (o: object) => unknown][] = [
  ['timeoutMs', (more) => L.call('mb-p-x', 'm', {}, alice, { ...reply, ...more })],
  ['retry', (more) => L.call('mb-p-x', 'm', {}, alice, { ...reply, ...more })],
  ['since', (more) => L.follow('p-x', { ...o, ...more }).next()],
  ['since', (more) => L.read('p-x', { ...o, ...more })],
  ['limit', (more) => L.read('p-x', { ...o, ...more })],
  ['waitMs', (more) => L.read('p-x', { ...o, since: 0, ...more })],
  ['since', (more) => L.e2eRead('p-x', key, { ...o, ...more })],
  ['waitMs', (more) => L.e2eRead('p-x', key, { ...o, since: 0, ...more })],
  ['timeoutMs', (more) => L.connectSealed(alice.did, alice, { ...o, ...more })],
  ['sessions', (more) => L.acceptSealed('mb-p-x', alice, () => {}, { ...o, ...more })],
  ['idleMs', (more) => L.acceptSealed('mb-p-x', alice, () => {}, { ...o, ...more })],
  ['leaseMs', (claim) => L.serve('mb-p-x', alice, { ...o, claim })],
  ['pageSize', (more) => L.createDispatcher(more)],
  ['everyMs', (more) => L.mcpKeepAlive('mb-p-x', alice, { ...reply, ...more })],
  ['renewMs', (more) => L.mcpListen('mb-p-x', {}, alice, { ...reply, ...more }).next()],
  ['waitMs', (more) => L.a2aAgent(() => {}, {}, more)],
  ['pollMs', (more) => L.a2aWait('mb-p-x', 'task', alice, { ...reply, ...more })],
  ['maxPollMs', (more) => L.a2aWait('mb-p-x', 'task', alice, { ...reply, ...more })],
  ['waitMs', (more) => L.a2aWait('mb-p-x', 'task', alice, { ...reply, ...more })],
  ['tasks', (more) => L.a2aMemoryStore(more)],
  ['windowMs', (more) => L.memoryLedger(more)],
  ['timeoutMs', (more) => new (bridge as any).RoomClientTransport('mb-p-x', alice, { ...reply, ...more })],
  ['deadlineMs', (more) => new (bridge as any).RoomServerTransport('mb-p-x', alice, { ...o, ...more })],
  ['drainMs', (more) => new (bridge as any).RoomServerTransport('mb-p-x', alice, { ...o, ...more })],
];

test.each(NUMBERS.filter(([name]) => name.endsWith('Ms') && name !== 'windowMs'))(
  '%s has its unit in its name',
  async (name, run) => {
    const bare = name.slice(0, -2);
    const error = { code: 'bad_option', message: `there is no option ${bare}: it is called ${name}, in milliseconds` };
    await expect(async () => run({ [bare]: 30 })).rejects.toMatchObject(error);
  },
);

test.each(NUMBERS)('the option %s is a number', async (name, run) => {
  const error = { code: 'bad_option', message: expect.stringContaining(`the option ${name}`) };
  for (const wrong of ['5', Number.NaN, -1, null])
    await expect(async () => run({ [name]: wrong })).rejects.toMatchObject(error);
});

/** A misspelt word would be taken for the default. */
const CHOICES: [name: string, run: (o: object) => unknown][] = [
  ['lane', (more) => L.say('p-x', 'ann', 'text', { ...o, ...more })],
  ['latency', (more) => L.call('mb-p-x', 'm', {}, alice, { ...reply, ...more })],
  ['latency', (more) => L.mailboxes('mb-p-x', 'mb-p-y', alice, { ...o, ...more })],
  ['latency', (more) => L.serve('mb-p-x', alice, { ...o, ...more })],
  ['latency', (more) => L.sealed('p-x', key, alice, { ...o, ...more })],
  ['latency', (more) => L.connectSealed(alice.did, alice, { ...o, ...more })],
  ['profile', (more) => (local as any).createLocalService(more)],
];

test.each(CHOICES)('the option %s is one of a few words', async (name, run) => {
  const error = { code: 'bad_option', message: expect.stringContaining(`the option ${name} must be one of`) };
  for (const wrong of ['0.7.0', 'Fast', '', 5, null, ['get']])
    await expect(async () => run({ [name]: wrong })).rejects.toMatchObject(error);
});

test.each([
  ['read', (clock) => L.read('p-x', { ...o, clock })],
  ['createLocalService', (clock) => (local as any).createLocalService({ clock })],
  ['fileLedger', (clock) => L.fileLedger('/nowhere/ledger', {}, clock)],
  ['a2aFileStore', (clock) => L.a2aFileStore('/nowhere/tasks', {}, clock)],
  ['HttpRelay', (clock) => new (parley as any).HttpRelay('http://x', { clock })],
  ['a2aHandlerMethods', (clock) => (bridge as any).a2aHandlerMethods({}, () => {}, { clock })],
] as [string, (clock: unknown) => unknown][])('%s takes nothing for a clock that is none', async (_name, run) => {
  const error = { code: 'bad_option', message: expect.stringContaining('the option clock') };
  for (const wrong of [null, 5, {}, { now: () => 5 }, { now: 5, sleep: async () => {} }, () => 5, Date])
    await expect(async () => run(wrong)).rejects.toMatchObject(error);
});

test('what a dispatcher tells or seals with is checked when it is made', async () => {
  for (const wrong of [
    { stateKey: new Uint8Array(3) },
    { stateKey: 'secret' },
    { serverInfo: 5 },
    { serverInfo: { name: 'x' } },
    { serverInfo: { name: 5, version: '1' } },
    { instructions: 5 },
    { clock: {} },
  ]) {
    const error = { code: expect.stringMatching(/^bad_(key|option|text)$/) };
    expect(() => L.createDispatcher(wrong)).toThrow(expect.objectContaining(error));
    expect(() => L.createDispatcher({ ...wrong, tools: L.tools })).toThrow(expect.objectContaining(error));
    // A promise is a promise, whatever it is given.
    await expect(L.dispatch('{}', {}, { ...wrong, methods: new Map() })).rejects.toMatchObject(error);
  }
  await expect(L.dispatch('{}', {}, null)).rejects.toMatchObject({ code: 'bad_option' });
});

test('bytes of another realm are bytes, and what only looks like them is not', () => {
  const foreign: Uint8Array = runInNewContext('new Uint8Array(40).fill(7).subarray(4, 36)');
  expect(foreign instanceof Uint8Array).toBe(false);
  const own = new Uint8Array(32).fill(7);
  expect(lib.Signer.fromSeed(foreign).did).toBe(lib.Signer.fromSeed(own).did);
  expect(parley.Identity.fromSeed(foreign).fingerprint()).toBe(parley.Identity.fromSeed(own).fingerprint());
  expect(parley.Secret.from(foreign).joinToken()).toBe(parley.Secret.from(own).joinToken());
  expect(lib.e2eOpen(foreign, lib.e2eSeal(own, 'text'))).toBe('text');
  expect(lib.e2eOpen(own, lib.e2eSeal(foreign, 'text'))).toBe('text');
  const { privateKey, publicKey } = lib.x25519Generate();
  const abroad = (bytes: Uint8Array): Uint8Array => runInNewContext('Uint8Array.from(bytes)', { bytes: [...bytes] });
  const { offer, room } = lib.e2eOffer(abroad(publicKey), { key: foreign });
  expect(lib.e2eAccept(offer, abroad(privateKey))).toEqual({ key: own, room });
  expect(L.sealed('p-x', foreign, alice, o).room).toBe('p-x');
  for (const wrong of [new Uint16Array(32), new DataView(new ArrayBuffer(32)), new ArrayBuffer(32), [...own]]) {
    for (const take of [L.Signer.fromSeed, parley.Identity.fromPrivateKey, L.e2eOffer, (k: any) => L.e2eSeal(k, 'x')])
      expect(() => take(wrong)).toThrow(expect.objectContaining({ code: 'bad_key' }));
  }
});

test('the local service listens on a port, and not on a file of that name', async () => {
  const { listen } = local.createLocalService();
  for (const wrong of ['x', '0', -1, 1.5, 65_536, Number.NaN, null, {}])
    await expect(listen(wrong as any)).rejects.toMatchObject({ code: 'bad_option', message: /the port/ });
  await expect(listen(0, 5 as any)).rejects.toMatchObject({ code: 'bad_text', message: /the host/ });
});

test.each(SERVED)('serve refuses the option %s: %j', async (name, wrong) => {
  const error = { code: 'bad_option', message: expect.stringContaining(`the option ${name}`) };
  await expect(L.serve('mb-p-x', alice, { ...o, [name]: wrong })).rejects.toMatchObject(error);
});

const info = { name: 'a', description: 'b', mailbox: 'mb-p-x', version: '1', skills: [{ name: 'echo' }] };
const card = lib.a2aCard(info as any, o);
const relay = new parley.HttpRelay('http://x', o);
const identity = parley.Identity.generate();
const session = new parley.Session(identity, relay, o);

/** Every other exported function, and what else takes options: with good arguments, options last. */
const OPTIONS: [name: string, good: unknown[], run: (...args: any[]) => unknown][] = [
  ['say', ['p-x', 'nick', 'text'], L.say],
  ['read', ['p-x'], L.read],
  ['follow', ['p-x'], (...a) => L.follow(...a).next()],
  ['setNote', ['ns', 'key', 'value'], L.setNote],
  ['getNote', ['ns', 'key'], L.getNote],
  ['listNotes', ['ns'], L.listNotes],
  ['claimRoom', ['d-x', alice], L.claimRoom],
  ['allowWriters', ['d-x', [alice.did], alice], L.allowWriters],
  ['Signer', ['p-x', 'text'], (...a) => L.Signer.prototype.say.call(alice, ...a)],
  ['call', ['mb-p-x', 'm', {}, alice], L.call],
  ['notify', ['mb-p-x', 'm', {}, alice], L.notify],
  ['mailboxes', ['mb-p-x', 'mb-p-y', alice], L.mailboxes],
  ['serve', ['mb-p-x', alice], L.serve],
  ['createDispatcher', [], L.createDispatcher],
  ['dispatch', ['{}', {}], L.dispatch],
  ['tool', ['name', '', {}, () => 1], L.tool],
  ['publishIdentity', [alice, {}], L.publishIdentity],
  ['publishIdentity, identity', [alice], L.publishIdentity],
  ['resolveIdentity', [alice.did], L.resolveIdentity],
  ['mcpDiscover', ['mb-p-x', alice], L.mcpDiscover],
  ['mcpKeepAlive', ['mb-p-x', alice], L.mcpKeepAlive],
  ['mcpListTools', ['mb-p-x', alice], L.mcpListTools],
  ['mcpCallTool', ['mb-p-x', 'tool', {}, alice], L.mcpCallTool],
  ['mcpListen', ['mb-p-x', {}, alice], (...a) => L.mcpListen(...a).next()],
  ['a2aSend', ['mb-p-x', 'hi', alice], L.a2aSend],
  ['a2aStream', ['mb-p-x', 'hi', alice], (...a) => L.a2aStream(...a).next()],
  ['a2aGet', ['mb-p-x', 'task', alice], L.a2aGet],
  ['a2aCancel', ['mb-p-x', 'task', alice], L.a2aCancel],
  ['a2aWait', ['mb-p-x', 'task', alice], L.a2aWait],
  ['a2aList', ['mb-p-x', alice], L.a2aList],
  ['a2aAgent', [() => {}, {}], L.a2aAgent],
  ['a2aAgent, card', [() => {}], L.a2aAgent],
  ['a2aCard', [info], L.a2aCard],
  ['a2aPublishCard', [card, alice], L.a2aPublishCard],
  ['a2aReadCard', [alice.did], L.a2aReadCard],
  ['a2aCreate', ['task'], L.a2aCreate],
  ['a2aAdvance', ['task', 'submitted', 'working'], L.a2aAdvance],
  ['a2aGetState', ['task'], L.a2aGetState],
  ['a2aKeep', ['task'], L.a2aKeep],
  ['a2aFindNotes', [['task']], L.a2aFindNotes],
  ['a2aClaim', ['task'], L.a2aClaim],
  ['a2aMemoryStore', [], L.a2aMemoryStore],
  ['a2aFileStore', ['/nowhere/store'], L.a2aFileStore],
  ['memoryLedger', [], L.memoryLedger],
  ['fileLedger', ['/nowhere/ledger'], L.fileLedger],
  ['x25519Generate', [], L.x25519Generate],
  ['e2eOffer', [lib.x25519Generate().publicKey], L.e2eOffer],
  ['e2eOfferTo', [alice.did, alice], L.e2eOfferTo],
  ['e2eSeal', [key, 'text'], L.e2eSeal],
  ['e2eSend', ['p-x', key, 'text'], L.e2eSend],
  ['e2eRead', ['p-x', key], L.e2eRead],
  ['e2eFollow', ['p-x', key], (...a) => L.e2eFollow(...a).next()],
  ['sealed', ['p-x', key, alice], L.sealed],
  ['connectSealed', ['mb-p-x', alice], L.connectSealed],
  ['acceptSealed', ['mb-p-x', alice, () => {}], L.acceptSealed],
  ['HttpRelay', ['http://x'], (...a) => new (parley as any).HttpRelay(...a)],
  ['Session', [identity, relay], (...a) => new (parley as any).Session(...a)],
  ['Session, open', ['topic'], (...a) => (session as any).open(...a)],
  ['Session, join', ['https://x/#y'], (...a) => (session as any).join(...a)],
  ['Session, send', ['text'], (...a) => (session as any).send(...a)],
  ['Session, poll', [0], (...a) => (session as any).poll(...a)],
  ['Session, messages', [], (...a) => (session as any).messages(...a).next()],
  ['Session, close', ['done'], (...a) => (session as any).close(...a)],
  ['Session, resume', [new Uint8Array(), identity, relay], (...a) => (parley as any).Session.resume(...a)],
  ['createLocalService', [], (...a) => (local as any).createLocalService(...a)],
  ['RoomClientTransport', ['mb-p-x', alice], (...a) => new (bridge as any).RoomClientTransport(...a)],
  ['RoomServerTransport', ['mb-p-x', alice], (...a) => new (bridge as any).RoomServerTransport(...a)],
  ['RoomTransportFactory', [{}, alice], (...a) => new (bridge as any).RoomTransportFactory(...a)],
  ['a2aHandlerMethods', [{}, () => {}], (...a) => (bridge as any).a2aHandlerMethods(...a)],
];

test.each(OPTIONS)('%s takes nothing else for options', async (_name, good, run) => {
  for (const wrong of [null, 5, 'text', true, ['a'], () => {}]) {
    const error = await (async () => run(...good, wrong))().then(
      () => 'no error',
      (e) => e,
    );
    expect([wrong, lib.TechnocoreError.is(error), String(error)]).toEqual([wrong, true, expect.anything()]);
    expect([wrong, error.code]).toEqual([wrong, expect.stringMatching(/^bad_/)]);
  }
});

/** Those of them that nothing aborts, and so look at no signal. */
const NEVER_ABORTED = [
  ...['createDispatcher', 'dispatch', 'tool', 'publishIdentity, identity', 'a2aAgent, card', 'createLocalService'],
  ...['memoryLedger', 'fileLedger', 'a2aMemoryStore', 'a2aFileStore', 'x25519Generate', 'e2eOffer', 'e2eSeal'],
  ...['RoomTransportFactory', 'a2aHandlerMethods'],
];

test.each(OPTIONS.filter(([name]) => !NEVER_ABORTED.includes(name)))(
  '%s is told that a controller is not its signal',
  async (_name, good, run) => {
    const wrong = async (): Promise<unknown> => run(...good, { ...reply, signal: new AbortController() });
    await expect(wrong).rejects.toMatchObject({
      code: 'bad_option',
      message: expect.stringMatching(/AbortController/),
    });
  },
);

test.each([
  ['publishIdentity', (stray) => L.publishIdentity(alice, { mailbox: 'mb-p-x', ...stray }, o)],
  ['fileLedger', (stray) => L.fileLedger('/nowhere/ledger', { entries: 5, ...stray })],
  ['memoryLedger', (stray) => L.memoryLedger({ entries: 5, ...stray })],
  ['a2aFileStore', (stray) => L.a2aFileStore('/nowhere/store', { tasks: 5, ...stray })],
  ['a2aMemoryStore', (stray) => L.a2aMemoryStore({ tasks: 5, ...stray })],
] as [string, (stray: object) => unknown][])('%s refuses what counts for nothing in a record', async (_name, run) => {
  const codeOf = async (stray: object): Promise<unknown> =>
    (async () => run(stray))().then(
      () => undefined,
      ({ code, message }) => [code, message],
    );
  for (const name of ['base', 'clock', 'mailBox']) {
    expect(await codeOf({ [name]: 'x' })).toEqual(['bad_option', expect.stringContaining(`not ${name};`)]);
  }
  expect(await codeOf({ base: undefined })).not.toEqual(['bad_option', expect.anything()]);
});

const src = new URL('../src/', import.meta.url);
/** Every member of options, undefined. */
const NOTHING: Record<string, undefined> = Object.fromEntries(
  readdirSync(src).flatMap((file) =>
    [...readFileSync(new URL(file, src), 'utf8').matchAll(/\b(\w+)\?: [^;{}]*\| undefined\b/g)].map(([, name]) => [
      name!,
    ]),
  ),
);

test('an option that is undefined is one that is not there', async () => {
  expect(NOTHING).toMatchObject({ base: undefined, methods: undefined, replyTo: undefined, layer: undefined });
  const w = world();
  const bob = signer(2);
  const nothing: any = { ...NOTHING, ...w.o };
  const own = { ...nothing, replyTo: 'mb-p-bob' };
  const stop = new AbortController();
  const run = async (): Promise<void> => {
    const methods = new Map([...L.methods, ...L.a2aAgent(() => 'yes', {}, { ...NOTHING, clock: w.clock }).methods]);
    // With nothing named, the defaults are served, MCP among them.
    const served: Promise<void>[] = [];
    for (const [i, what] of [{}, { methods, tools: L.tools }].entries()) {
      await new Promise<void>((onReady) => {
        served.push(L.serve(`mb-p-nothing-${i}`, alice, { ...nothing, ...what, signal: stop.signal, onReady }));
      });
    }
    const { signMessage } = L.Signer.prototype;
    const signed = signMessage.call(alice, 'lobby', 1, 'hello');
    expect(await L.call('mb-p-nothing-0', 'technocore/verify', signed, bob, own)).toEqual({ valid: true });
    const { structuredContent } = await L.mcpCallTool('mb-p-nothing-0', 'technocore/verify', signed, bob, own);
    expect(structuredContent).toEqual({ valid: true });
    expect((await L.mcpListTools('mb-p-nothing-0', bob, own)).length).toBe(2);
    expect(L.a2aText((await L.a2aSend('mb-p-nothing-1', 'hi', bob, own)).message)).toBe('yes');
    await L.publishIdentity(bob, { mailbox: 'mb-p-bob', x25519: undefined }, nothing);
    const { room, key: roomKey } = await L.e2eOfferTo(bob.did, alice, nothing);
    await L.e2eSend(room, roomKey, 'sealed', nothing);
    expect((await L.e2eRead(room, roomKey, nothing)).messages).toMatchObject([{ text: 'sealed' }]);
    await L.setNote('ns', 'key', 'value', { ...nothing });
    expect(await L.getNote('ns', 'key', nothing)).toBe('value');
    for await (const { text } of L.e2eFollow(room, roomKey, { ...nothing, since: 0 })) {
      expect(text).toBe('sealed');
      break;
    }
    stop.abort();
    await Promise.all(served);
  };
  await w.run(run());
  const frame = { jsonrpc: '2.0', id: 1, method: 'ping' };
  for (const options of [NOTHING, { ...NOTHING, tools: new Map() }]) {
    const { tools } = options as any;
    const bare = await L.createDispatcher(tools ? { tools } : {}).dispatch(frame, NOTHING);
    expect(await L.createDispatcher(options).dispatch(frame, NOTHING)).toEqual(bare);
    expect(await L.dispatch(frame, NOTHING, options)).toEqual(bare);
  }
});

test('a2aAgent takes no store among what its card holds, and else what it likes', () => {
  const store = lib.a2aMemoryStore();
  expect(() => L.a2aAgent(() => {}, { name: 'x', store })).toThrow(
    'a card has no store; options are a separate argument',
  );
  L.a2aAgent(() => {}, { name: 'x', more: 1 }, { store });
});

const P = parley as any;
const handshake = { identity, psk: key, prologue: key, remote: key };
const initiator = (remote: Uint8Array = key): parley.Handshake => P.Handshake.initiator({ ...handshake, remote });
/** A transport that is ready for use. */
function finished(): parley.Transport {
  const [ours, theirs] = [initiator(identity.publicKey), P.Handshake.responder(handshake)];
  theirs.read(ours.write(key));
  ours.read(theirs.write(key));
  return ours.transport();
}

/** What takes no options: it may answer what it is not made for, as one that tells yes from no does. */
const PLAIN: [name: string, good: unknown[], run: (...args: any[]) => unknown][] = [
  ['a2aCard03', [card], L.a2aCard03],
  ['a2aCardNote', [alice.did], L.a2aCardNote],
  ['a2aCheckCard', [card], L.a2aCheckCard],
  ['a2aSignCard', [card, alice], L.a2aSignCard],
  ['a2aVerifyCard', [card, alice.did], L.a2aVerifyCard],
  ['a2aTaskNote', ['task', 'base'], L.a2aTaskNote],
  ['a2aText', [{ parts: [] }], L.a2aText],
  ['a2aFindNotes', [['task']], (ids) => L.a2aFindNotes(ids, o)],
  ['badParams', ['words', {}], L.badParams],
  ['idempotent', [() => 1], L.idempotent],
  ['decode', ['{}'], L.decode],
  ['encode', [{}], L.encode],
  ['e2eAccept', ['offer', key], L.e2eAccept],
  ['e2eOpen', [key, 'line'], L.e2eOpen],
  ['e2eSplit', ['text', 100], L.e2eSplit],
  ['e2eOffer', [lib.x25519Generate().publicKey], L.e2eOffer],
  ['identityKeys', [alice], L.identityKeys],
  ['explain', ['p-x', {}], L.explain],
  ['verifyMessage', ['p-x', {}], L.verifyMessage],
  ['isDid', [alice.did], L.isDid],
  ['isName', ['name'], L.isName],
  ['roomClasses', ['p-x'], L.roomClasses],
  ['verify', [alice.did, 'sig', 'text'], L.verify],
  ['fileCursor', ['/nowhere/cursor'], L.fileCursor],
  ['toolsChanged', [new Map()], L.toolsChanged],
  ['Signer, fromSeed', [key], (...a) => L.Signer.fromSeed(...a)],
  ['Signer, fromPassphrase', ['text'], (...a) => L.Signer.fromPassphrase(...a)],
  ['Handshake, initiator', [handshake], (...a) => P.Handshake.initiator(...a)],
  ['Handshake, responder', [handshake], (...a) => P.Handshake.responder(...a)],
  ['Session, send', ['text'], (text) => new P.Session(identity, relay, o).send(text)],
  ['fingerprint', [new Uint8Array(32)], P.fingerprint],
  ['Identity, fromSeed', [key], (...a) => P.Identity.fromSeed(...a)],
  ['Identity, fromPrivateKey', [key], (...a) => P.Identity.fromPrivateKey(...a)],
  ['Secret', [key], (...a) => P.Secret.from(...a)],
  [
    'Invite',
    [{ relay: 'x', channel: new Uint8Array(16), key: identity.publicKey, secret: P.Secret.generate() }],
    (...a) => new P.Invite(...a),
  ],
  ['Invite, parse', ['https://x'], (...a) => P.Invite.parse(...a)],
  ['marshalHandshakePayload', [{ topic: '', capabilities: {} }], P.marshalHandshakePayload],
  ['unmarshalHandshakePayload', [new Uint8Array()], P.unmarshalHandshakePayload],
  ['marshalMessage', [{ kind: 'say', text: '' }], P.marshalMessage],
  ['unmarshalMessage', [new Uint8Array()], P.unmarshalMessage],
  ['HttpRelay', ['http://x'], (...a) => new P.HttpRelay(...a)],
  ['Session', [identity, relay], (...a) => new P.Session(...a)],
];

test.each(PLAIN)('%s throws nothing but errors of ours', async (_name, good, run) => {
  for (const i of good.keys()) {
    for (const wrong of WRONG) {
      try {
        await run(...good.map((right, j) => (j === i ? wrong : right)));
      } catch (e) {
        expect([i, wrong, lib.TechnocoreError.is(e), String(e)]).toEqual([i, wrong, true, expect.anything()]);
      }
    }
  }
});

test('every function that is exported is in one of the lists', () => {
  const known = new Set([...CALLS, ...OPTIONS, ...PLAIN].map(([name]) => name.split(/[,.]/)[0]));
  const exported = Object.entries({ ...lib, ...parley, ...local, ...bridge }).filter(
    ([, value]) =>
      typeof value === 'function' && value !== lib.TechnocoreError && !(value.prototype instanceof lib.TechnocoreError),
  );
  expect(exported.map(([name]) => name).filter((name) => !known.has(name))).toEqual([]);
  expect(exported.length).toBeGreaterThan(80);
});

test.each(CALLS)('%s is told apart from what it cannot use', async (_name, good, run) => {
  for (const i of good.keys()) {
    for (const wrong of WRONG) {
      const error = await (async () => run(...good.map((right, j) => (j === i ? wrong : right))))().then(
        () => 'no error',
        (e) => e,
      );
      expect([i, wrong, lib.TechnocoreError.is(error), String(error)]).toEqual([i, wrong, true, expect.anything()]);
      expect(error.code).toMatch(/^bad_/);
    }
  }
});

/** What is wrong, and the words that say so and what would be right. */
const TOLD: [wrong: string, run: () => unknown, words: string][] = [
  [
    'a DID that was cut',
    () => L.call(alice.did.slice(0, -1), 'm', {}, alice, reply),
    'a did:key of an Ed25519 key has 56',
  ],
  ['a name in capitals', () => L.serve('mb-P-x', alice, o), 'mb- and has up to 48 characters of a-z 0-9 _ -: "mb-P-x"'],
  ['a room', () => L.serve('p-x', alice, o), 'a mailbox is a room whose name begins with mb-: "p-x"'],
  [
    'a peer that is no DID',
    () => L.call('mb-p-x', 'm', {}, alice, { ...reply, peer: 'bob' }),
    'the option peer: a did:key',
  ],
  ['a task without an id', () => L.a2aWait('mb-p-x', undefined, alice, reply), 'the id of the task must be a string'],
  [
    'a store not awaited',
    () => L.a2aAgent(() => {}, {}, { store: L.a2aFileStore('/nowhere/x').catch(() => {}) }),
    'await it',
  ],
  ['a path for a cursor', () => L.serve('mb-p-x', alice, { ...o, cursor: './x' }), 'fileCursor(path) makes one'],
  ['a tool without a schema', () => L.tool('name', '', () => 1), 'it must be an object, not function'],
  ['no listener', () => L.read('p-x', { ...o, onEvent: 'log' }), 'the option onEvent must be a function'],
  [
    'no progress',
    () => L.mcpCallTool('mb-p-x', 't', {}, alice, { ...reply, onProgress: true }),
    'the option onProgress',
  ],
  [
    'answers to nothing',
    () => L.mcpCallTool('mb-p-x', 't', {}, alice, { ...reply, onInput: () => {} }),
    'the option onInput',
  ],
  [
    'no answer',
    () => L.mcpCallTool('mb-p-x', 't', {}, alice, { ...reply, onInput: { elicit: 1 } }),
    'the option elicit',
  ],
  ['a relay without an address', () => new (parley as any).HttpRelay(undefined, o), 'the address must be a string'],
  [
    'a relay without a scheme',
    () => new parley.HttpRelay('localhost', o),
    'the address must be the URL of a relay, like',
  ],
  ['a session of a relay', () => new P.Session(relay, identity, o), 'relay.recv must be a function'],
  ['a session without a relay', () => new P.Session(identity, undefined, o), 'relay.recv must be a function'],
  [
    'a card from nowhere',
    () => L.a2aReadCard('did:key:zz', o),
    'a DID, or the URL of a card or of its host: "did:key:zz"',
  ],
  ['a card from undefined', () => L.a2aReadCard(undefined, o), 'must be a string'],
];

test.each(TOLD)('%s is called what it is', async (_wrong, run, words) => {
  const error: any = await (async () => run())().catch((e) => e);
  expect([error.message, lib.TechnocoreError.is(error)]).toEqual([expect.stringContaining(words), true]);
});

test('the error names what is missing', async () => {
  await expect(L.say('p-x', 'hello')).rejects.toThrow('the text must be a string, not undefined');
  await expect(L.setNote('p-x', 'k')).rejects.toThrow('the value of a note must be a string, not undefined');
  await expect(L.setNote('p-x', 'k', { a: 1 })).rejects.toThrow('the value of a note must be a string, not object');
  await expect(L.read()).rejects.toMatchObject({ message: expect.stringMatching(/^a room .*: got undefined$/) });
  await expect(L.call('mb-p-x', 'm', {}, alice, o)).rejects.toThrow(/needs the option replyTo/);
  for (const schema of [undefined, null]) {
    expect(() => L.tool('name', '', schema, () => 1)).toThrow(lib.TechnocoreError);
  }
  for (const m of [undefined, null, 5]) {
    expect([lib.verifyMessage('x', m as any), lib.explain('x', m as any)]).toEqual(['invalid', 'not a message']);
  }
});
