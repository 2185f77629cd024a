/** What is made for the official SDKs fits into them, old and new, by its types too. */
import { ClientFactory, JsonRpcTransportFactory } from '@a2a-js/sdk/client';
import { type JsonRpcTransportHandler, ServerCallContext } from '@a2a-js/sdk/server';
import { Client } from '@modelcontextprotocol/client';
import { Client as OlderClient } from '@modelcontextprotocol/sdk/client/index.js';
import { McpServer as OlderServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { McpServer } from '@modelcontextprotocol/server';
import { type Handler, Signer } from 'technocore-rpc';
import {
  a2aHandlerMethods,
  RoomClientTransport,
  RoomServerTransport,
  RoomTransportFactory,
} from 'technocore-rpc/bridge';

const signer = Signer.generate();
const info = { name: 'me', version: '1' };

export async function mcp(): Promise<void> {
  const client = new RoomClientTransport('mb-x', signer, { replyTo: 'mb-p-me' });
  await new Client(info).connect(client);
  await new OlderClient(info).connect(client);
  const server = new RoomServerTransport('mb-x', signer);
  await new McpServer(info).connect(server);
  await new OlderServer(info).connect(server);
}

export const factory = new ClientFactory({
  transports: [new RoomTransportFactory(JsonRpcTransportFactory, signer, { replyTo: 'mb-p-me' })],
});
export const methodsOf = (handler: JsonRpcTransportHandler): Map<string, Handler> =>
  a2aHandlerMethods(
    handler,
    (userName) => new ServerCallContext({ user: { isAuthenticated: true, userName }, requestedVersion: '1.0' }),
  );
