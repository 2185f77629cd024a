/**
 * The states of A2A tasks in the spellings of versions 1.0 and 0.3, the transitions between them, and A2A's errors:
 * whatever is needed wherever there are tasks, with or without messages. Rules: A2A 1.0 and 0.3.
 *
 * @module
 */
import { BadState, RpcError } from './errors.ts';

// --- states ------------------------------------------------------------------------------------------------------

/**
 * The state of a task, in the spelling of A2A 1.0. Completed, failed, canceled and rejected are terminal: they never
 * change. In input required and auth required, the agent waits for the caller.
 */
export type A2AState =
  | 'TASK_STATE_SUBMITTED'
  | 'TASK_STATE_WORKING'
  | 'TASK_STATE_INPUT_REQUIRED'
  | 'TASK_STATE_AUTH_REQUIRED'
  | 'TASK_STATE_COMPLETED'
  | 'TASK_STATE_FAILED'
  | 'TASK_STATE_CANCELED'
  | 'TASK_STATE_REJECTED';

const PREFIX = 'TASK_STATE_';
const RUNNING = ['TASK_STATE_SUBMITTED', 'TASK_STATE_WORKING'];
const INTERRUPTED = ['TASK_STATE_INPUT_REQUIRED', 'TASK_STATE_AUTH_REQUIRED'];
const TERMINAL = ['TASK_STATE_COMPLETED', 'TASK_STATE_FAILED', 'TASK_STATE_CANCELED', 'TASK_STATE_REJECTED'];
/** All states. */
export const STATES: ReadonlySet<unknown> = new Set([...RUNNING, ...INTERRUPTED, ...TERMINAL]);

/** True for a state that never changes again. */
export const isTerminal = (state: A2AState): boolean => TERMINAL.includes(state);
/** True for a state in which the agent waits for the caller. */
export const isInterrupted = (state: A2AState): boolean => INTERRUPTED.includes(state);

/** A state in the spelling of A2A 0.3: `working`, `input-required`. */
export const wordOf = (state: A2AState): string => state.slice(PREFIX.length).toLowerCase().replace('_', '-');

/** The state that a text names, in either spelling; undefined if it names none. */
export function stateOf(text: unknown): A2AState | undefined {
  if (STATES.has(text)) return text as A2AState;
  if (typeof text !== 'string') return undefined;
  const state = `${PREFIX}${text.toUpperCase().replace('-', '_')}`;
  return STATES.has(state) && wordOf(state as A2AState) === text ? (state as A2AState) : undefined;
}

/**
 * Checks a transition, given in either spelling. Terminal states never change, and no task is submitted twice; all
 * other transitions are allowed.
 *
 * @throws a {@link BadState} if there is no such state, or the transition is not allowed
 */
export function checkMove(from: string, to: string): { from: A2AState; to: A2AState } {
  const [before, after] = [stateOf(from), stateOf(to)];
  if (!before || !after || isTerminal(before) || after === 'TASK_STATE_SUBMITTED') throw new BadState(from, to);
  return { from: before, to: after };
}

// --- errors ------------------------------------------------------------------------------------------------------

const INFO = 'type.googleapis.com/google.rpc.ErrorInfo';

/** A2A's errors in the order of their codes, from -32001 down, each with its default message. */
const REASONS = {
  TASK_NOT_FOUND: 'Task not found',
  TASK_NOT_CANCELABLE: 'Task cannot be canceled: it has ended',
  PUSH_NOTIFICATION_NOT_SUPPORTED: 'Push notifications are not supported',
  UNSUPPORTED_OPERATION: 'This operation is not supported',
  CONTENT_TYPE_NOT_SUPPORTED: 'Incompatible content types',
  INVALID_AGENT_RESPONSE: 'Invalid agent response',
  EXTENDED_AGENT_CARD_NOT_CONFIGURED: 'There is no extended agent card',
  EXTENSION_SUPPORT_REQUIRED: 'An extension is required',
  VERSION_NOT_SUPPORTED: 'This version is not supported',
} as const;

/** Makes an A2A error. */
export function refusal(reason: keyof typeof REASONS, message: string = REASONS[reason]): RpcError {
  const code = -32001 - Object.keys(REASONS).indexOf(reason);
  return new RpcError(code, message, [{ '@type': INFO, reason, domain: 'a2a-protocol.org' }]);
}
