/**
 * What must hold wherever the library runs. Knows no runtime: the library, an embedded service and the address of a real
 * one come in, a report goes out.
 *
 * @module
 */
import type { createLocalService } from '../../src/local.ts';
import type * as Vendored from '../../src/vendor.ts';

export type Library = typeof Vendored;

/** How it went. */
export interface Report {
  passed: string[];
  failed: { name: string; error: string }[];
  /** What every runtime must compute alike. */
  facts: Record<string, string>;
}

const FREE = { readsPerMinute: 1e9, writesPerMinute: 1e9, newRoomsPerDay: 1e9 };
const hex = (bytes: Uint8Array): string => [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
const bytes = (n: number, first: number): Uint8Array => Uint8Array.from({ length: n }, (_, i) => (first + i) & 255);

function same(a: unknown, b: unknown): void {
  const [x, y] = [JSON.stringify(a), JSON.stringify(b)];
  if (x !== y) throw new Error(`${x}, and not ${y}`);
}

/** Results that depend on nothing: compared between runtimes. */
function factsOf({ encode, Signer, parley, sweep }: Library): Record<string, string> {
  const signer = Signer.fromSeed(bytes(32, 1));
  const ends = [1, 2].map((n) => parley.Identity.fromSeed(bytes(32, n)));
  const [joiner, opener] = ends as [parley: (typeof ends)[0], (typeof ends)[0]];
  const o = { prologue: bytes(24, 9), psk: bytes(32, 7) };
  const initiator = parley.Handshake.initiator({
    ...o,
    identity: joiner,
    remote: opener.publicKey,
    ephemeral: bytes(32, 3),
  });
  const responder = parley.Handshake.responder({ ...o, identity: opener, ephemeral: bytes(32, 4) });
  const first = initiator.write(bytes(5, 5));
  responder.read(first);
  const second = responder.write(bytes(5, 6));
  initiator.read(second);
  return {
    did: signer.did,
    sig: signer.signMessage('lobby', 7, 'Kyōto 🦊').sig,
    frame: encode({ text: 'Kyōto 🦊 \u007f\u2028' }),
    swept: sweep(' a\u200bb\n\u00e9\ud800c '),
    handshake: hex(first) + hex(second),
    sealed: hex(initiator.transport().seal(2n, bytes(100, 0))),
    fingerprint: joiner.fingerprint(),
  };
}

/** Runs all of it. Never rejects. */
export async function suite(
  library: Library,
  makeService: typeof createLocalService,
  url: string | undefined,
): Promise<Report> {
  const report: Report = { passed: [], failed: [], facts: {} };
  const { call, decode, e2eAccept, e2eOffer, e2eOpen, e2eSeal, encode, mcpCallTool, parley } = library;
  const { acceptSealed, connectSealed, publishIdentity, read, serve, Signer, TechnocoreError, tool } = library;
  const { verify, verifyMessage, x25519Generate } = library;

  const test = async (name: string, run: () => unknown): Promise<void> => {
    try {
      await run();
      report.passed.push(name);
    } catch (e) {
      report.failed.push({ name, error: String((e as Error)?.stack ?? e) });
    }
  };

  await test('known answers', () => {
    report.facts = factsOf(library);
  });
  await test('signatures', () => {
    const { did, sig, canonical } = Signer.generate().signMessage('lobby', 1, 'hello');
    same([verify(did, sig, canonical), verify(did, sig, `${canonical}!`)], [true, false]);
  });
  await test('frames', () => {
    const frame = { jsonrpc: '2.0', id: 'x', method: 'm', params: { text: 'é\u007f\u{1f98a}' } };
    same(decode(encode(frame)), frame);
    same([decode('['), decode('7'), decode('nonsense')], [undefined, undefined, undefined]);
  });
  await test('sealed lines', () => {
    const { privateKey, publicKey } = x25519Generate();
    const { offer, key, room } = e2eOffer(publicKey);
    const accepted = e2eAccept(offer, privateKey);
    same([accepted.room, hex(accepted.key)], [room, hex(key)]);
    same(e2eOpen(accepted.key, e2eSeal(key, 'Kyōto')), 'Kyōto');
  });

  /** Two agents over a service. */
  const agents = async (o: { base: string; fetch?: typeof fetch }, tag: string): Promise<void> => {
    const [server, client, stop] = [Signer.generate(), Signer.generate(), new AbortController()];
    const [mailbox, replyTo] = [`mb-p-callee-${tag}`, `mb-p-caller-${tag}`];
    const methods = new Map([['add', ({ a, b }: any) => a + b]]);
    const tools = new Map();
    tool('shout', 'Louder.', { type: 'object', required: ['text'] }, ({ text }) => `${text}!`, { tools });
    let isReady = (): void => {};
    const ready = new Promise<void>((resolve) => {
      isReady = resolve;
    });
    const over = serve(mailbox, server, { ...o, methods, tools, signal: stop.signal, onReady: isReady });
    await Promise.race([ready, over]);
    const ask = { ...o, replyTo };
    same(await call(mailbox, 'add', { a: 2, b: 40 }, client, ask), 42);
    const sums = Array.from({ length: 8 }, (_, n) => call(mailbox, 'add', { a: n, b: n }, client, ask));
    same(await Promise.all(sums), [0, 2, 4, 6, 8, 10, 12, 14]);
    same((await mcpCallTool(mailbox, 'shout', { text: 'hey' }, client, ask)).content, [{ type: 'text', text: 'hey!' }]);
    const refusal = await call(mailbox, 'nothing', {}, client, ask).catch((e: unknown) => e);
    same([TechnocoreError.is(refusal), (refusal as any).rpc.code], [true, -32601]);
    stop.abort();
    await over;
    const { messages } = await read(replyTo, o);
    same(new Set(messages.map((m) => verifyMessage(replyTo, m))).size, 1);
  };
  const local = (): { base: string; fetch: typeof fetch } => ({
    base: 'http://local.test',
    fetch: makeService({ limits: FREE }).fetch,
  });
  await test('calls over the embedded service', () => agents(local(), 'a'));
  await test('calls that the service cannot read', async () => {
    const o = local();
    const [server, client, stop] = [Signer.generate(), Signer.generate(), new AbortController()];
    const mailbox = 'mb-p-sealed';
    await publishIdentity(server, { mailbox }, o);
    const methods = new Map([['add', ({ a, b }: any) => a + b]]);
    let isReady = (): void => {};
    const ready = new Promise<void>((resolve) => {
      isReady = resolve;
    });
    const over = acceptSealed(mailbox, server, (channel, signal) => serve(channel, server, { ...o, methods, signal }), {
      ...o,
      signal: stop.signal,
      onReady: isReady,
    });
    await Promise.race([ready, over]);
    const channel = await connectSealed(server.did, client, o);
    same(await call(channel, 'add', { a: 1, b: 2 }, client, o), 3);
    stop.abort();
    await over;
  });
  await test('a parley', async () => {
    const o = local();
    const relay = new parley.HttpRelay(o.base, o);
    const [ada, ben] = [1, 2].map(() => new parley.Session(parley.Identity.generate(), relay, o));
    await ben!.join((await ada!.open('where')).url());
    await ben!.send('At the café?');
    const heard: string[] = [];
    while (heard.length === 0) {
      for (const { text } of await ada!.poll(100)) heard.push(text);
      await ben!.poll(0);
    }
    same([heard, ben!.peer.topic, ada!.peer.state], [['At the café?'], 'where', 'active']);
  });
  await test('a service that is not there is an error of ours', async () => {
    const lost = await call('mb-p-x', 'm', {}, Signer.generate(), {
      base: 'http://127.0.0.1:9',
      replyTo: 'mb-p-y',
      timeoutMs: 300,
    }).catch((e: unknown) => e);
    same(TechnocoreError.is(lost), true);
  });
  if (url !== undefined) {
    const tag = hex(bytes(0, 0)) + Signer.generate().fingerprint;
    await test('calls over HTTP', () => agents({ base: url }, tag));
  }
  return report;
}
