/**
 * The A2A part of the demo: an agent in the callee takes a task, asks for input and delivers; then two workers compete
 * for the same task.
 *
 * @module
 */
import {
  type A2AItem,
  a2aAdvance,
  a2aAgent,
  a2aCreate,
  a2aGetState,
  a2aStream,
  a2aText,
  type CallOptions,
  call,
  type Handler,
  type Options,
  RpcError,
  type Signer,
  TechnocoreError,
} from './technocore-rpc.ts';

/** The methods of the agent in the callee, and of a worker that starts any task it is asked to. */
export function demoAgent(): Map<string, Handler> {
  const { methods } = a2aAgent(
    async (message, task) => {
      if (!task.continued) {
        await task.update('working', 'cutting the paper');
        return void (await task.ask('In which colour?'));
      }
      await task.artifact({ name: 'posters', text: `${a2aText(task.history[0]!)}, in ${a2aText(message)}` });
    },
    { capabilities: { streaming: true } },
  );
  return methods.set('work/begin', ({ taskId }, { service }) => begin(taskId, service));
}

async function begin(taskId: string, o: Options): Promise<string> {
  await a2aAdvance(taskId, 'submitted', 'working', o);
  return 'working';
}

/** An item of a task stream in words. */
function wordsOf({ task, statusUpdate, artifactUpdate }: A2AItem): string {
  if (artifactUpdate) return `artifact “${artifactUpdate.artifact.name}”: ${a2aText(artifactUpdate.artifact)}`;
  const { state, message } = (task ?? statusUpdate!).status;
  return `${state}${message ? `: “${a2aText(message)}”` : ''}`;
}

type Play = () => Promise<[ok: boolean, outcome: string, lines?: string[]]>;

/** Plays the scenes of the caller. */
export async function a2aScenes(
  scene: (title: string, play: Play) => Promise<void>,
  mailbox: string,
  signer: Signer,
  o: CallOptions,
): Promise<void> {
  let taskId: string | undefined;
  const watch = async (text: string): Promise<string[]> => {
    const lines: string[] = [];
    for await (const item of a2aStream(mailbox, text, signer, { ...o, ...(taskId !== undefined && { taskId }) })) {
      taskId ??= item.task?.id;
      lines.push(wordsOf(item));
    }
    return lines;
  };

  await scene('A2A: a task asks back', async () => {
    const lines = await watch('20 posters');
    const states = lines.map((line) => line.split(':')[0]).join();
    const wanted = 'TASK_STATE_SUBMITTED,TASK_STATE_WORKING,TASK_STATE_WORKING,TASK_STATE_INPUT_REQUIRED';
    return [states === wanted, `“20 posters” → ${lines.length} frames under one id`, lines];
  });
  await scene('A2A: and is completed', async () => {
    const lines = await watch('blue');
    const isDone =
      lines.at(-2) === 'artifact “posters”: 20 posters, in blue' && lines.at(-1) === 'TASK_STATE_COMPLETED';
    return [isDone, '“blue” → the same task continues', lines];
  });
  await scene('A2A: a lost race', async () => {
    const id = 'demo-poster-rush';
    await a2aCreate(id, o);
    const tries = await Promise.allSettled([begin(id, o), call(mailbox, 'work/begin', { taskId: id }, signer, o)]);
    const losers = tries.flatMap((one) => (one.status === 'rejected' ? [actualOf(one.reason)] : []));
    const winner = tries[0].status === 'fulfilled' ? 'caller' : 'callee';
    const ok = losers.length === 1 && losers[0] === 'TASK_STATE_WORKING' && (await a2aGetState(id, o)) === 'working';
    return [ok, `the ${winner} starts; the other saw ${losers.join(' and ')}`];
  });
}

/**
 * The state that the loser of a race found instead, as reported by the service, or by the callee, which passes it on.
 */
function actualOf(cause: unknown): string {
  if (cause instanceof RpcError) return String((cause.rpc.data as { actual?: string } | undefined)?.actual);
  return TechnocoreError.is(cause) ? String((cause as { actual?: string }).actual ?? cause.message) : String(cause);
}
