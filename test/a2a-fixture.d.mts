import type { A2ACardInfo } from '../src/a2a-card.ts';
import type { A2ATask } from '../src/a2a-task.ts';
import type { A2AMessage } from '../src/a2a-types.ts';

export const CARD: A2ACardInfo;
export function behave(message: A2AMessage, task: A2ATask): Promise<string | undefined>;
