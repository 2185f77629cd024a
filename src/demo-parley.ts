/**
 * The parley part of the demo: one process opens a channel, its link is handed to another, and the two talk and agree
 * through a relay that cannot read any of it.
 *
 * @module
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { HttpRelay, Identity, Session } from './parley.ts';

/** The course of the parley as one side saw it. */
interface Side {
  own: string;
  other: string;
  topic: string;
  heard: string[];
  outcome: string;
  requests: number;
  ms: number;
}

const QUESTIONS = ['Thursday or Friday?', 'At ten?', 'Where?'];
const ANSWERS = ['Thursday.', 'Half past.', 'The usual café.'];
const OUTCOME = 'agreed: Thursday, half past ten, the usual café';

function begin(relay: string): { session: Session; end(side: Pick<Side, 'heard' | 'outcome'>): void } {
  let requests = 0;
  const start = performance.now();
  const identity = Identity.generate();
  const counted: typeof fetch = (input, init) => {
    requests++;
    return fetch(input, init);
  };
  const session = new Session(identity, new HttpRelay(relay, { fetch: counted }));
  const end = (seen: Pick<Side, 'heard' | 'outcome'>): void => {
    const { fingerprint, topic } = session.peer;
    const side: Side = {
      ...seen,
      own: identity.fingerprint(),
      other: fingerprint,
      topic,
      requests,
      ms: performance.now() - start,
    };
    process.send?.({ side });
    process.disconnect?.();
  };
  return { session, end };
}

/** Plays the opener: opens the channel, and answers the questions. */
export async function opener(relay: string): Promise<void> {
  const { session, end } = begin(relay);
  process.send?.({ link: (await session.open('when and where')).url() });
  const heard: string[] = [];
  let outcome = '';
  for await (const { kind, text } of session.messages()) {
    if (kind === 'close') outcome = text;
    else await session.send(ANSWERS[heard.push(text) - 1] ?? 'Pardon?');
  }
  end({ heard, outcome });
}

/** Plays the joiner: joins with the link, asks, and closes with the outcome. */
export async function joiner(relay: string): Promise<void> {
  const { session, end } = begin(relay);
  const [{ link }] = (await once(process, 'message')) as [{ link: string }];
  await session.join(link);
  const heard: string[] = [];
  for (const question of QUESTIONS) {
    await session.send(question);
    for (const before = heard.length; heard.length === before; ) {
      for (const { text } of await session.poll(10_000)) heard.push(text);
    }
  }
  await session.close(OUTCOME);
  end({ heard, outcome: OUTCOME });
}

/**
 * Stages the parley, with each part in its own process.
 *
 * @param play starts the process of a part
 * @returns whether both sides saw the same
 */
export async function parley(
  play: (part: string) => ChildProcess,
  scene: (title: string, outcome: string, ok: boolean, side?: Side) => void,
): Promise<boolean> {
  const [a, b] = [play('opener'), play('joiner')];
  const sides = [a, b].map(
    (child) =>
      new Promise<Side>((resolve, reject) => {
        child.on('message', (message: { side?: Side; link?: string }) => {
          // Here the demo is the human who carries the link from one agent to the other.
          if (message.link !== undefined) b.send({ link: message.link });
          if (message.side) resolve(message.side);
        });
        child.once('exit', () => reject(new Error('a side of the parley died')));
      }),
  );
  const [left, right] = (await Promise.all(sides)) as [Side, Side];
  const known = left.own === right.other && right.own === left.other;
  const talked = `${left.heard}` === `${QUESTIONS}` && `${right.heard}` === `${ANSWERS}`;
  const agreed = left.outcome === OUTCOME && right.topic === 'when and where';
  scene('a parley: the opener', `is ${left.own}, sees ${left.other}`, known, left);
  scene('a parley: the joiner', `is ${right.own}, sees ${right.other}`, known, right);
  scene('a short conversation', `${right.heard.length} questions, ${right.heard.length} answers, all sealed`, talked);
  scene('a close with outcome', left.outcome, agreed);
  return known && talked && agreed;
}
