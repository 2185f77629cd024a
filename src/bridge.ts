/**
 * Transports for the official MCP SDK: its `Client` and its servers talk through rooms, sealed rooms or parley sessions, and
 * know nothing of them. And for the A2A SDK: its handler behind a mailbox, its client in front of one. All satisfy the SDKs
 * by shape; none of them is needed here.
 *
 * @module
 */
export {
  type A2ARequestHandler,
  a2aHandlerMethods,
  type JsonRpcTransportFactory,
  RoomTransportFactory,
  type RoomTransportOptions,
} from './bridge-a2a.ts';
export { LOST, type RoomClientOptions, RoomClientTransport } from './bridge-client.ts';
export { FROM_META, type RoomAuthInfo, type RoomServerOptions, RoomServerTransport } from './bridge-server.ts';
