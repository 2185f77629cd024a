/**
 * Lets two agents that can make only outbound requests call each other's methods through rooms of a technocore.chat
 * service: JSON-RPC 2.0, MCP 2026-07-28 tools and A2A tasks, in the clear or end-to-end encrypted.
 *
 * @remarks
 * Serving and calling: {@link serve}, {@link methods}, {@link call}, {@link notify}, with a {@link Signer} as identity;
 * {@link publishIdentity} makes its DID callable. {@link createDispatcher} does the same without a transport.
 *
 * MCP: {@link tool}, {@link mcpCallTool}, {@link mcpListTools}, {@link mcpDiscover}, {@link mcpListen}.
 *
 * A2A: {@link a2aAgent}, {@link a2aSend}, {@link a2aStream}, {@link a2aWait}, {@link a2aCard}; {@link a2aClaim} and
 * others for states in notes.
 *
 * Encryption: {@link acceptSealed}, {@link connectSealed}, {@link sealed}; {@link e2eOffer}, {@link e2eAccept},
 * {@link e2eSend}, {@link e2eRead}.
 *
 * Rooms and notes: {@link read}, {@link follow}, {@link say}, {@link verifyMessage}, {@link getNote}, {@link setNote},
 * {@link claimRoom}.
 *
 * Errors: {@link TechnocoreError} and its subclasses. Common options: {@link Options}.
 *
 * @packageDocumentation
 */

export { type A2AAgent, type A2AAgentOptions, a2aAgent } from './a2a-agent.ts';
export {
  type A2AAnswer,
  type A2ACallOptions,
  type A2AListOptions,
  type A2APage,
  type A2ASendOptions,
  type A2AWaitOptions,
  a2aCancel,
  a2aGet,
  a2aList,
  a2aSend,
  a2aStream,
  a2aWait,
} from './a2a-call.ts';
export {
  A2A_BINDING,
  type A2ACapabilities,
  type A2ACard,
  type A2ACardInfo,
  type A2AInterface,
  type A2ASkill,
  a2aCard,
  a2aCard03,
  a2aCardNote,
  a2aCheckCard,
  a2aPublishCard,
  a2aReadCard,
  a2aSignCard,
  a2aVerifyCard,
} from './a2a-card.ts';
export {
  type A2AClaimOptions,
  type A2ALease,
  type A2ANoteOptions,
  a2aAdvance,
  a2aClaim,
  a2aCreate,
  a2aFindNotes,
  a2aGetState,
  a2aKeep,
  a2aTaskNote,
} from './a2a-notes.ts';
export type { A2AState } from './a2a-states.ts';
export { type A2ARecord, type A2AStore, type A2AStoreLimits, a2aFileStore, a2aMemoryStore } from './a2a-store.ts';
export type { A2AHandler, A2AMade, A2AReply, A2ASaid, A2ATask, A2AYield } from './a2a-task.ts';
export {
  type A2AArtifact,
  type A2AItem,
  type A2AMessage,
  type A2APart,
  type A2AStatus,
  type A2ATaskView,
  a2aText,
} from './a2a-types.ts';
export { type Census, createDispatcher, dispatch, methods, serve, tool, tools } from './builtin.ts';
export { call, notify } from './call.ts';
export { type Channel, type Incoming, type Listener, mailboxes, type SendOptions, type Sent } from './channel.ts';
export {
  badParams,
  type CallContext,
  type DispatchContext,
  type Dispatcher,
  type DispatcherOptions,
  type Handler,
  type Id,
  type Implementation,
  idempotent,
  type JsonObject,
  type Layer,
  type Layered,
  type MakeLayer,
} from './dispatch.ts';
export {
  e2eAccept,
  e2eFollow,
  e2eOffer,
  e2eOfferTo,
  e2eOpen,
  e2eRead,
  e2eSeal,
  e2eSend,
  e2eSplit,
  type SealedMessage,
  type SealedRoom,
  x25519Generate,
} from './e2e.ts';
export {
  BadKey,
  BadName,
  BadNonce,
  BadState,
  CallTimeout,
  CapacityReached,
  Conflict,
  DecryptError,
  DuplicateText,
  EmptyText,
  Forbidden,
  FrameTooLong,
  HttpError,
  MayHaveLanded,
  RateLimited,
  RingGap,
  RoomBudget,
  RpcError,
  StaleNonce,
  TechnocoreError,
  Unavailable,
} from './errors.ts';
export { decode, encode, type Frame, type Json, MAX_NOTE, MAX_TEXT, sweep } from './frames.ts';
export { type Clock, type Event, type Options, systemClock } from './http.ts';
export { type Identity, identityKeys, publishIdentity, resolveIdentity } from './identity.ts';
export {
  type Admission,
  type Ledger,
  type LedgerLimits,
  type LedgerMessage,
  type LedgerRequest,
  memoryLedger,
  type Verdict,
} from './ledger.ts';
export { fileCursor, fileLedger } from './ledger-file.ts';
export type { CallOptions } from './line.ts';
export { toolsChanged } from './mcp.ts';
export {
  type Answerer,
  type DiscoverResult,
  type InputContext,
  type InputHandlers,
  type McpCallOptions,
  type McpListOptions,
  mcpCallTool,
  mcpDiscover,
  mcpKeepAlive,
  mcpListTools,
} from './mcp-client.ts';
export { type McpFilter, type McpListenOptions, mcpListen } from './mcp-listen.ts';
export type { McpOptions } from './mcp-peer.ts';
export { type AcceptOptions, acceptSealed, connectSealed } from './meeting.ts';
export { explain, type Message, type RoomView, verifyMessage } from './messages.ts';
export { isDid, isName, type NotePath, type RoomClasses, roomClasses, verify } from './names.ts';
export { allowWriters, claimRoom, getNote, listNotes, type SetOptions, setNote } from './notes.ts';
export type { ReplyLimits } from './replies.ts';
export {
  type CursorStore,
  follow,
  type Place,
  type ReadOptions,
  read,
  type SignedMessage,
  say,
} from './rooms.ts';
export { type SealedChannel, sealed } from './sealed.ts';
export type { ServeOptions } from './serve.ts';
export { type SignedNote, Signer } from './signer.ts';
export type { Spill } from './spill.ts';
export type {
  ContentBlock,
  ElicitResult,
  LogLevel,
  Tool,
  ToolAnnotations,
  ToolContext,
  ToolHandler,
  ToolOptions,
  ToolResult,
} from './tools.ts';
