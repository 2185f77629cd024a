/**
 * The command line: a parley, line by line.
 *
 * @module
 */
import { createInterface } from 'node:readline';
import { type Args, type Command, EXIT, json, KEY, print, shown, tell, Usage } from './cli-kit.ts';
import { shownBase } from './http.ts';
import { BadInvite, HttpRelay, Identity, Invite, Session } from './parley.ts';
import { TechnocoreError, Unavailable } from './technocore-rpc.ts';

/** How long closing a channel may take, ms; the other end is notified within that time, or not at all. */
const LEAVE_MS = 5000;

const FLAGS = {
  dir: { ...KEY['dir']!, about: 'use an identity derived from the key there (default: a new one each time)' },
  outcome: { value: 'text', about: 'text to close the channel with when the input ends (default: done)' },
};

/** The default relay: `$PARLEY_RELAY`, or else https://parley.chat. */
const usualRelay = (): string => process.env['PARLEY_RELAY'] || 'https://parley.chat';

/** The URL of the relay in a link. A link names only a host; scheme and path are known only for the default relay. */
function relayOf({ relay: host }: Invite): string {
  const usual = usualRelay();
  return host === '' || host === new HttpRelay(usual).host ? usual : `https://${host}`;
}

/** The invite in a link, which a shell cuts at the `&` unless it is quoted. */
function inviteOf(link: string): Invite {
  try {
    return Invite.parse(link.trim());
  } catch (cause) {
    if (!BadInvite.is(cause)) throw cause;
    const whole = 'the whole link is needed, in quotes: "https://…/i/…#k=…&s=…"';
    throw new TechnocoreError(cause.code, `${cause.message}; ${whole}`, cause);
  }
}

/** Adds to the error of a relay that cannot be reached how to choose another one. */
function unreached(cause: unknown): never {
  if (!Unavailable.is(cause)) throw cause;
  const where = '--relay or PARLEY_RELAY selects another relay; `npx technocore-rpc local` starts one';
  throw new Unavailable(`${cause.message}; ${where}`, cause.cause);
}

/** Our end of a channel. */
interface End {
  own: Identity;
  session: Session;
}

async function endOf(args: Args, relay: string): Promise<End> {
  const signer = args.text('dir') === undefined ? undefined : await args.signer();
  const own = signer ? Identity.fromSeed(signer.derive('parley')) : Identity.generate();
  return { own, session: new Session(own, new HttpRelay(relay)) };
}

/** The lines of the standard input, buffered until they are read. */
function input(): { lines: AsyncIterator<string>; close(): void } {
  const reader = createInterface({ input: process.stdin });
  const close = (): void => {
    reader.close();
    process.stdin.destroy();
  };
  return { lines: reader[Symbol.asyncIterator](), close };
}

/** Sends each line of the input and prints each message that arrives, until either end closes the channel. */
async function talk(args: Args, { own, session }: End, { lines, close }: ReturnType<typeof input>): Promise<number> {
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
  args.onInterrupt(() => {
    setTimeout(() => stop.abort(args.signal.reason), LEAVE_MS).unref();
    leave('interrupted').catch((cause) => stop.abort(cause));
  });
  let isGreeted = false;
  const greet = (): void => {
    if (isGreeted) return;
    isGreeted = true;
    const { fingerprint, topic } = session.peer;
    if (args.json) {
      print(json({ kind: 'peer', own: own.fingerprint(), fingerprint, topic }, true));
      return;
    }
    const about = topic && `, about: ${shown(topic)}`;
    tell(
      `you are ${own.fingerprint()}, talking to ${fingerprint}${about}; compare both fingerprints with the other side`,
    );
  };
  // The peer is known as soon as the handshake is done, which may be long before its first message.
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

/** The commands `parley open` and `parley join`. */
export const parleyCommands: Record<string, Command> = {
  'parley open': {
    args: '',
    about: 'Open an encrypted channel, print the link that lets one other agent in, and talk',
    flags: {
      relay: { value: 'url', about: 'URL of the relay (default: $PARLEY_RELAY, else https://parley.chat)' },
      ...FLAGS,
      topic: { value: 'text', about: 'topic of the conversation; the other side sees it' },
    },
    more: `Each line of stdin is sent, and its end closes the channel. Anybody with the link can join, so send it in a way that nobody
else can read. A link contains only the host of the relay; https is assumed.`,
    async run(args) {
      const relay = (args.text('relay') ?? usualRelay()).replace(/\/+$/, '');
      const end = await endOf(args, relay);
      const invite = await end.session.open(args.text('topic') ?? '', { signal: args.signal }).catch(unreached);
      const link = invite.url();
      print(args.json ? json({ kind: 'link', link, relay: shownBase(relay) }, true) : link);
      if (`https://${invite.relay}` !== relay && !args.json)
        tell(
          `The link does not contain the whole URL of the relay. The other side must add: --relay ${shownBase(relay)}`,
        );
      args.hint('Waiting for the other side to join. Each line you type is sent; Ctrl-D closes the channel.');
      return talk(args, end, input());
    },
  },
  'parley join': {
    args: '[link]',
    about: 'Join the channel of a link, and talk',
    words: [0, 1],
    flags: {
      relay: {
        value: 'url',
        about: 'URL of the relay (default: $PARLEY_RELAY if it has the host that the link names, else https://<host>)',
      },
      ...FLAGS,
    },
    more: `Without [link], the first line of stdin is the link, which then does not appear in the process list. A relay that uses http
or a path must be given with --relay, since a link does not contain these.`,
    async run(args) {
      const from = input();
      let relay = args.text('relay');
      let end: End;
      try {
        if (args.words.length === 0) args.hint('Paste the link, and press Enter:');
        const link = args.words[0] ?? (await from.lines.next()).value;
        if (typeof link !== 'string') throw new Usage('no link');
        const invite = inviteOf(link);
        relay ??= relayOf(invite);
        end = await endOf(args, relay);
        await end.session.join(invite, { signal: args.signal });
      } catch (cause) {
        from.close();
        const isGuessed = args.text('relay') === undefined && TechnocoreError.is(cause) && cause.code === 'unavailable';
        if (isGuessed && !args.json)
          tell(`If ${shown(relay!)} is not the whole URL of the relay, add: --relay http://…`);
        throw cause;
      }
      return talk(args, end, from);
    },
  },
};
