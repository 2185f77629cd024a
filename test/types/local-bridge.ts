/** The same for the embedded service and the bridges, which take what the main module makes. */
import { type CallContext, type Clock, type Handler, Signer, serve, systemClock } from 'technocore-rpc';
import {
  type A2ARequestHandler,
  a2aHandlerMethods,
  FROM_META,
  type JsonRpcTransportFactory,
  LOST,
  type RoomAuthInfo,
  type RoomClientOptions,
  RoomClientTransport,
  type RoomServerOptions,
  RoomServerTransport,
  RoomTransportFactory,
  type RoomTransportOptions,
} from 'technocore-rpc/bridge';
import {
  createLocalService,
  type Limits,
  type Listening,
  type LocalOptions,
  type LocalService,
  type LocalStats,
  type Clock as OwnClock,
  type Profile,
} from 'technocore-rpc/local';

const signer = Signer.generate();
const clock: Clock & OwnClock = systemClock;
const limits: Partial<Limits> = { readsPerMinute: 1e6, wakeStepMs: 0 };
const profile: Profile = '0.7';
const settings: Required<LocalOptions> = { profile, clock, limits, random: (bytes) => new Uint8Array(bytes) };

export async function local(): Promise<number> {
  const service: LocalService = createLocalService(settings);
  const { url, close }: Listening = await service.listen(0, '127.0.0.1');
  await signer.say('lobby', url, { base: 'http://local', fetch: service.client('somebody') });
  await close();
  const { requests, bytes }: Readonly<LocalStats> = service.stats;
  const status: number = (await service.fetch(`${url}/rooms`)).status;
  // @ts-expect-error they are counted by the service alone
  service.stats.requests = 0;
  return requests + bytes + status;
}

const clientOptions: RoomClientOptions = { replyTo: 'mb-p-me', timeoutMs: 1000, peer: signer.did, latency: 'frugal' };
const serverOptions: RoomServerOptions = { allow: () => true, deadlineMs: 1000, drainMs: 1000, concurrency: 2 };

export async function mcp(): Promise<void> {
  const client = new RoomClientTransport('mb-x', signer, clientOptions);
  client.onclose = () => {};
  client.onerror = ({ message }) => void message.trim();
  client.onmessage = ({ error }) => void (error?.code === LOST);
  await client.start();
  await client.send({ jsonrpc: '2.0', id: 1, method: 'ping' });
  await client.close();
  const server = new RoomServerTransport('mb-x', signer, serverOptions);
  server.onclose = server.onerror = undefined;
  server.onmessage = ({ params }, { authInfo }: { authInfo: RoomAuthInfo }) => {
    const { token, clientId, scopes, extra } = authInfo;
    void [token, clientId === params._meta[FROM_META], scopes[0], extra.room.trim()];
  };
  server.setSupportedProtocolVersions(['2025-06-18']);
  await server.start();
  await server.send({ jsonrpc: '2.0', id: 1, result: {} }, { relatedRequestId: 1 });
  if (server.unanswered === 0) await server.close();
}

/** The shape of what the SDK's handlers and factories are. */
class Requests implements A2ARequestHandler<{ user: string }> {
  async handle(request: Record<string, unknown>, { user }: { user: string }): Promise<object> {
    return { jsonrpc: '2.0', id: request['id'], result: user };
  }
}
interface Wire {
  sendMessage(text: string): Promise<string>;
}
class JsonRpcFactory {
  readonly #fetch: typeof fetch;
  constructor({ fetchImpl }: { fetchImpl: typeof fetch }) {
    this.#fetch = fetchImpl;
  }
  async create(url: string, card: { name: string }): Promise<Wire> {
    return { sendMessage: async (text) => card.name + (await (await this.#fetch(url)).text()) + text };
  }
}
const jsonRpc: JsonRpcTransportFactory<Wire, { name: string }> = JsonRpcFactory;
const transportOptions: RoomTransportOptions = { replyTo: 'mb-p-me', timeoutMs: 1000 };

export async function a2a(): Promise<string> {
  const contextOf = (from: string, { room }: CallContext) => ({ user: from + room });
  const methods: Map<string, Handler> = a2aHandlerMethods(new Requests(), contextOf, { clock });
  await serve('mb-x', signer, { methods });
  const factory = new RoomTransportFactory(jsonRpc, signer, transportOptions);
  const wire: Wire = await factory.create(factory.protocolName, { name: 'x' });
  return wire.sendMessage('hello');
}
