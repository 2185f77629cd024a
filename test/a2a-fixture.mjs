// What the agent of the recorded cases does, for a dispatcher in the test and for a server in a process of its own.

export const CARD = {
  name: 'fixture',
  skills: [{ name: 'everything' }],
  capabilities: { streaming: false, pushNotifications: false },
};

export async function behave(message, task) {
  const text = message.parts.map((part) => part.text ?? '').join('');
  const answer = (words) => task.artifact({ name: 'answer', parts: [{ text: words }] });
  if (task.continued) return void (await answer(text));
  const [word, ...rest] = text.split(' ');
  switch (word) {
    case 'hello':
      return 'hello to you';
    case 'echo':
      return void (await answer(rest.join(' ')));
    case 'slow':
      return new Promise((resolve) => task.signal.addEventListener('abort', () => resolve()));
    case 'ask':
      return task.ask(`Which ${rest.join(' ')}?`);
    case 'refuse':
      return task.reject();
    case 'steps':
      await task.update('working', 'step 1');
      await task.artifact({ artifactId: 'a', text: 'one' });
      await task.update('working', 'step 2');
      await task.artifact({ artifactId: 'a', text: ' two', append: true, lastChunk: true });
      return undefined;
    case 'crash':
      throw new Error('a secret of the inside');
    default:
      await task.update('working');
      return undefined;
  }
}
