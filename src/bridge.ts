/**
 * Transports for the official SDKs. MCP: its `Client` and its servers talk through rooms, sealed rooms or parley
 * sessions without knowing it. A2A: its request handler serves a mailbox, and its client calls one. All have the shape
 * that the SDKs expect; the SDKs are not dependencies of this package.
 *
 * @packageDocumentation
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
