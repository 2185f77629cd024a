/**
 * The command line: keys.
 *
 * @module
 */
import { type Command, EXIT, hasKey, keyHome, print } from './cli-kit.ts';
import { Signer, TechnocoreError } from './technocore-rpc.ts';

/** The commands `keygen` and `did`. */
export const keyCommands: Record<string, Command> = {
  keygen: {
    args: '',
    about: 'Create a key and print its seed and DID; with --dir, store it and print only the DID',
    flags: { dir: { value: 'directory', about: 'store the key there; an existing key is kept' } },
    more: 'To use the key, put the seed into $SIGN_SEED, or name the directory with --dir (~/.technocore is the default).',
    async run(args) {
      const dir = args.text('dir');
      if (dir !== undefined) {
        const isNew = !hasKey(dir);
        const { did } = await Signer.fromDir(dir);
        if (!isNew) args.remark('kept', `${dir} already has a key, which is kept`);
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
    about: 'Print the DID of a key',
    flags: { dir: { value: 'directory', about: 'key directory (default: $SIGN_SEED, else ~/.technocore)' } },
    more: `$SIGN_SEED is a seed of 64 hex digits; any other text is a passphrase, whose SHA-256 is the seed.
This command creates no key. keygen does, and so does the first command that signs.`,
    async run(args) {
      const dir = args.text('dir');
      // Showing a key must not create one.
      if (!hasKey(dir) && (dir !== undefined || !process.env['SIGN_SEED']))
        throw new TechnocoreError('no_key', `no key in ${keyHome(dir)}; keygen --dir creates one`);
      const { did } = await args.signer();
      print(args.json ? JSON.stringify({ did }) : did);
      return EXIT.ok;
    },
  },
};
