/**
 * The command line: keys.
 *
 * @module
 */
import { type Command, EXIT, hasKey, keyHome, print } from './cli-kit.ts';
import { Signer, TechnocoreError } from './technocore-rpc.ts';

/** `keygen` and `did`. */
export const keyCommands: Record<string, Command> = {
  keygen: {
    args: '',
    about: 'a new key: its seed and DID; with --dir a directory that never shows the seed',
    flags: { dir: { value: 'directory', about: 'make the key there; a key that is there already stays' } },
    more: 'A seed goes into $SIGN_SEED; a directory is named with --dir, but for ~/.technocore, which is used anyway.',
    async run(args) {
      const dir = args.text('dir');
      if (dir !== undefined) {
        const isNew = !hasKey(dir);
        const { did } = await Signer.fromDir(dir);
        if (!isNew) args.remark('kept', `${dir} has a key already, and it stays`);
        print(args.json ? JSON.stringify({ did, dir, isNew }) : did);
        return EXIT.ok;
      }
      const bytes = crypto.getRandomValues(new Uint8Array(32));
      const seed = Buffer.from(bytes).toString('hex');
      const { did } = Signer.fromSeed(bytes);
      print(args.json ? JSON.stringify({ seed, did }) : `seed: ${seed}\ndid:  ${did}`);
      return EXIT.ok;
    },
  },
  did: {
    args: '',
    about: 'the DID of a key',
    flags: { dir: { value: 'directory', about: 'where the key is; default: $SIGN_SEED, else ~/.technocore' } },
    more: `$SIGN_SEED holds a seed, 64 hex digits, or any other text: a passphrase, whose SHA-256 is the seed. No key is made: that
is done by keygen, and by the first command that signs.`,
    async run(args) {
      const dir = args.text('dir');
      // Looking must not make a key.
      if (!hasKey(dir) && (dir !== undefined || !process.env['SIGN_SEED']))
        throw new TechnocoreError('no_key', `no key in ${keyHome(dir)}; keygen --dir makes one`);
      const { did } = await args.signer();
      print(args.json ? JSON.stringify({ did }) : did);
      return EXIT.ok;
    },
  },
};
