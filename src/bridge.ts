/**
 * Transports for the official MCP SDK: its `Client` and its servers talk through rooms, sealed rooms or parley sessions, and
 * know nothing of them. They satisfy the SDK's `Transport` by shape; the SDK itself is not needed here.
 *
 * @module
 */
export { LOST, type RoomClientOptions, RoomClientTransport } from './bridge-client.ts';
export { FROM_META, type RoomAuthInfo, type RoomServerOptions, RoomServerTransport } from './bridge-server.ts';
