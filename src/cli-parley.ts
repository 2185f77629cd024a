/**
 * The command line: a parley, line by line.
 *
 * @module
 */
import { createInterface } from 'node:readline';
import { type Args, type Command, EXIT, json, KEY, print, shown, tell, Usage } from './cli-kit.ts';
import { HttpRelay, Identity, Session } from './parley.ts';

/** How long a channel that is left has to tell the other end, ms. */
const LEAVE_MS = 5000;

const FLAGS = {
  relay: { value: 'url', about: 'default: $PARLEY_RELAY, else https://parley.chat' },
  dir: { ...KEY['dir']!, about: 'an identity that stays, derived from the key there; default: a new one each time' },
  outcome: { value: 'text', about: 'how it is closed when the input ends; default: done' },
};

async function sessionOf(args: Args): Promise<Session> {
  const relay = args.text('relay') ?? process.env['PARLEY_RELAY'] ?? 'https://parley.chat';
  const signer = args.text('dir') === undefined ? undefined : await args.signer();
  const identity = signer ? Identity.fromSeed(signer.derive('parley')) : Identity.generate();
  return new Session(identity, new HttpRelay(relay));
}

/** The lines of the standard input, none lost while nobody asks. */
function input(): { lines: AsyncIterator<string>; close(): void } {
  const reader = createInterface({ input: process.stdin });
  const close = (): void => {
    reader.close();
    process.stdin.destroy();
  };
  return { lines: reader[Symbol.asyncIterator](), close };
}

/** Sends what comes in line by line, prints what arrives, until one end closes. */
async function talk(args: Args, session: Session, { lines, close }: ReturnType<typeof input>): Promise<number> {
  const stop = new AbortController();
  const leave = async (outcome: string): Promise<void> => {
    if (session.peer.state !== 'closed') await session.close(outcome);
  };
  const speak = async (): Promise<void> => {
    for (let line = await lines.next(); !line.done; line = await lines.next()) {
      if (session.peer.state === 'closed') return;
      if (line.value.trim() !== '') await session.send(line.value);
    }
    await leave(args.text('outcome') ?? 'done');
  };
  args.signal.addEventListener('abort', () => {
    setTimeout(() => stop.abort(args.signal.reason), LEAVE_MS).unref();
    leave('interrupted').catch((cause) => stop.abort(cause));
  });
  let isGreeted = false;
  const greet = (): void => {
    if (isGreeted) return;
    isGreeted = true;
    const { fingerprint, topic } = session.peer;
    if (args.json) print(json({ kind: 'peer', fingerprint, topic }, true));
    else tell(`talking to ${fingerprint}${topic && `, about: ${shown(topic)}`}; compare with what the other side sees`);
  };
  // Who is there is known once the handshake is done, with nothing said yet.
  const watch = setInterval(() => session.peer.state === 'active' && greet(), 50);
  const speaking = speak().catch((cause) => stop.abort(cause));
  try {
    for await (const { kind, text } of session.messages({ signal: stop.signal })) {
      greet();
      if (args.json) print(json({ kind, text }, true));
      else print(kind === 'close' ? `closed: ${shown(text)}` : shown(text));
    }
  } finally {
    clearInterval(watch);
    close();
  }
  await speaking;
  return args.isInterrupted ? EXIT.interrupted : EXIT.ok;
}

/** `parley open` and `parley join`. */
export const parleyCommands: Record<string, Command> = {
  'parley open': {
    args: '',
    about: 'opens a sealed channel, prints the link that lets one other in, and talks',
    flags: { ...FLAGS, topic: { value: 'text', about: 'what it is about; the other side sees it' } },
    more: 'Each line of the standard input is said; its end closes the channel. Whoever has the link can take the seat: send it by a way that nobody else reads.',
    async run(args) {
      const session = await sessionOf(args);
      const invite = await session.open(args.text('topic') ?? '', { signal: args.signal });
      print(args.json ? json({ kind: 'link', link: invite.url() }, true) : invite.url());
      return talk(args, session, input());
    },
  },
  'parley join': {
    args: '[link]',
    about: 'takes the seat that a link offers, and talks',
    words: [0, 1],
    flags: FLAGS,
    more: 'Without [link] the first line of the standard input is it: then it does not show in the list of processes.',
    async run(args) {
      const session = await sessionOf(args);
      const from = input();
      const link = args.words[0] ?? (await from.lines.next()).value;
      if (typeof link !== 'string') throw new Usage('no link');
      await session.join(link.trim(), { signal: args.signal });
      return talk(args, session, from);
    },
  },
};
