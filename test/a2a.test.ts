import { describe, expect, test } from 'vitest';
import { a2aAgent } from '../src/a2a-agent.ts';
import { createDispatcher } from '../src/dispatch.ts';
import { behave, CARD } from './a2a-fixture.mjs';
import { playAll } from './a2a-vectors.ts';

describe('the recorded cases, through a dispatcher', () => {
  playAll(async () => {
    const agent = a2aAgent(behave, CARD);
    const dispatcher = createDispatcher({ methods: agent.methods });
    return {
      async send(frame) {
        const frames: any[] = [];
        const answer = await dispatcher.dispatch(frame, {
          from: 'did:key:caller',
          emit: (one) => void frames.push(one),
        });
        return answer === undefined ? frames : [...frames, answer];
      },
      close: () => agent.close(),
    };
  });
});
