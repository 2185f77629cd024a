/**
 * The command line: rooms and signatures.
 *
 * @module
 */
import { text as textOf } from 'node:stream/consumers';
import { type Args, type Command, EXIT, json, KEY, print, SERVICE, shown, tell, Usage } from './cli-kit.ts';
import {
  explain,
  follow,
  isDid,
  type Message,
  type RingGap,
  read,
  say,
  TechnocoreError,
  verify,
} from './technocore-rpc.ts';

const PLACE = {
  since: { value: 'seq', about: 'only messages after this seq' },
  limit: { value: 'count', about: 'number of newest messages, up to 200 (default: 50)' },
};

function placeOf(args: Args): { since?: number; limit?: number } {
  const since = args.number('since', 0, Number.MAX_SAFE_INTEGER);
  const limit = args.number('limit', 1, 200);
  return { ...(since !== undefined && { since }), ...(limit !== undefined && { limit }) };
}

/** The remark about an empty room: not an error, but perhaps a mistyped name. */
const nothingIn = (room: string, since: number | undefined): string =>
  `no messages in ${room}${since === undefined ? '' : ` after ${since}`}`;

/** A message as a line for people. The writer's name and the text are untrusted, so both are made safe. */
const lineOf = ({ seq, ts, from, text }: Message): string => `[${seq}] ${shown(ts)} ${shown(from)} ${shown(text)}`;

async function followed(args: Args, room: string): Promise<void> {
  let { since } = placeOf(args);
  const service = args.patient();
  for (;;) {
    try {
      for await (const m of follow(room, { ...service, ...(since !== undefined && { since }) })) {
        since = m.seq;
        print(args.json ? json(m, true) : lineOf(m));
      }
    } catch (e) {
      if (!TechnocoreError.is(e) || e.code !== 'ring_gap') throw e;
      const { expected, oldest, reason } = e as RingGap;
      if (args.json) print(json({ gap: { expected, oldest, reason } }, true));
      else tell(shown(e.message));
      since = oldest - 1;
    }
  }
}

/** The commands `say`, `read` and `verify`. */
export const roomCommands: Record<string, Command> = {
  say: {
    args: '<room> <text>',
    about: 'Write a signed message to a room, exactly once',
    words: [2, 2],
    flags: { ...SERVICE, ...KEY, nick: { value: 'name', about: 'write unsigned, under this name' } },
    more: 'If <text> is -, it is read from stdin. Prints the seq of the message.',
    async run(args) {
      const [room = '', word = ''] = args.words;
      const text = word === '-' ? await textOf(process.stdin) : word;
      const nick = args.text('nick');
      const saying =
        nick === undefined
          ? (await args.signer()).say(room, text, args.service())
          : say(room, nick, text, args.service());
      const said = await args.risking('the message may have been written', saying);
      print(args.json ? json(said, true) : `${said.seq}`);
      return EXIT.ok;
    },
  },
  read: {
    args: '<room>',
    about: 'Print the newest messages of a room, oldest first',
    words: [1, 1],
    flags: {
      ...SERVICE,
      ...PLACE,
      wait: { value: 'seconds', about: 'with --since: how long to wait for a new message, up to 10' },
      follow: { about: 'print new messages as they arrive, until Ctrl-C; with --since, existing ones first' },
    },
    async run(args) {
      const room = args.words[0]!;
      if (args.has('follow')) {
        for (const flag of ['limit', 'wait'])
          if (args.text(flag) !== undefined) throw new Usage(`--${flag} does not go with --follow`);
        await followed(args, room).catch((e) => {
          if (!args.isInterrupted) throw e;
        });
        return EXIT.ok;
      }
      const place = placeOf(args);
      const seconds = args.number('wait', 0, 10, false);
      if (seconds && place.since === undefined) throw new Usage('--wait needs --since');
      const view = await read(room, { ...args.service(), ...place, ...(seconds && { waitMs: seconds * 1000 }) });
      if (args.json) print(json(view, true));
      else if (view.messages.length === 0) tell(nothingIn(room, place.since));
      else for (const m of view.messages) print(lineOf(m));
      return EXIT.ok;
    },
  },
  verify: {
    args: '<room> | <did> <sig> <text>',
    about: 'Check the signatures in a room, or one signature of a text',
    words: [1, 3],
    flags: { ...SERVICE, ...PLACE },
    more: `<text> is the whole text that was signed; for a message, "room|nonce|text". Exit code ${EXIT.refused} if a signature is invalid.
Services before 0.11 keep no signatures: their messages are "unverifiable".`,
    async run(args) {
      const [room = '', sig, canonical] = args.words;
      if (canonical !== undefined) {
        if (!isDid(room)) throw new Usage(`${JSON.stringify(room)} is not a did:key`);
        const valid = verify(room, sig!, canonical);
        print(args.json ? json({ valid }, true) : valid ? 'valid' : 'invalid');
        return valid ? EXIT.ok : EXIT.refused;
      }
      if (sig !== undefined) throw new Usage('verify takes one room, or a DID, a signature and the signed text');
      let bad = 0;
      const place = placeOf(args);
      const { messages } = await read(room, { ...args.service(), ...place });
      if (messages.length === 0) args.remark('empty', nothingIn(room, place.since));
      for (const m of messages) {
        const reason = m.sig === undefined ? 'no signature' : explain(room, m);
        const verdict = m.sig === undefined ? 'unverifiable' : reason === undefined ? 'valid' : 'invalid';
        if (verdict === 'invalid') bad++;
        const { seq, from } = m;
        if (args.json) print(json({ seq, from, verdict, reason }, true));
        else print(`[${seq}] ${verdict} ${shown(from)}${verdict === 'invalid' ? `: ${shown(reason!)}` : ''}`);
      }
      return bad === 0 ? EXIT.ok : EXIT.refused;
    },
  },
};
