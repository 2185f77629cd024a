/**
 * A key and its nonces in a directory that all programs with the key share: `seed` and `nonces.json` in the layout of
 * the service's own client (rules: technocore.chat, keys on disk), and a lock beside them.
 *
 * The lock is our own, since the client uses `flock`, which Node does not have. If such a client writes at the same
 * moment, the service refuses one of the two nonces as stale, and that program takes a higher one.
 *
 * @module
 */
import { fromBase64url, toBase64url } from './bytes.ts';
import { randomBytes } from './crypto.ts';
import { BadKey, BadNonce, checkText, TechnocoreError } from './errors.ts';
import { Files, systemCode } from './files.ts';
import { encodeLong, isObject } from './frames.ts';
import type { Clock } from './http.ts';
import { Lanes } from './http.ts';
import { type LastNonces, lastNonce, type NonceSource, nextNonce, nonceOf, raiseNonce, recordNonce } from './nonces.ts';

/** The last nonces, by DID and scope. */
type Ledger = Map<string, LastNonces>;

/** Strings, and anything else that is neither white space nor punctuation: in a ledger, only numbers. */
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"?|[^\s{}:,"]+/g;

/** Parses a ledger with exact nonces; undefined if it is malformed in any way. */
function parseLedger(text: string): Ledger | undefined {
  const ledger: Ledger = new Map();
  try {
    // A nonce has up to 19 digits, and JSON.parse keeps 15. So it is parsed as a string in an array, which no ledger
    // contains.
    const exact = text.replace(TOKEN, (token) =>
      token.startsWith('"') ? token : /^(?:0|[1-9]\d{0,18})$/.test(token) ? `["${token}"]` : '?',
    );
    const dids: unknown = JSON.parse(exact);
    if (!isObject(dids)) return undefined;
    for (const [did, scopes] of Object.entries(dids)) {
      if (!isObject(scopes)) return undefined;
      const last: LastNonces = new Map();
      for (const [scope, nonce] of Object.entries(scopes)) {
        if (!Array.isArray(nonce)) return undefined;
        last.set(scope, BigInt(nonce[0] as string));
      }
      ledger.set(did, last);
    }
    return ledger;
  } catch {
    return undefined;
  }
}

/** A ledger as Python's `json.dump(…, indent=2, sort_keys=True)` prints it. */
function printLedger(ledger: Ledger): string {
  const print = <V>(map: Map<string, V>, indent: string, value: (v: V) => string): string => {
    if (map.size === 0) return '{}';
    const members = [...map.keys()].sort().map((key) => `${indent}  ${encodeLong(key)}: ${value(map.get(key)!)}`);
    return `{\n${members.join(',\n')}\n${indent}}`;
  };
  return print(ledger, '', (scopes) => print(scopes, '  ', String));
}

/** Turns a system error into one of ours, and returns our own errors unchanged. */
function refused(cause: unknown, what: string, Kind: typeof BadKey | typeof BadNonce): TechnocoreError {
  return TechnocoreError.is(cause) ? cause : new Kind(`${what} cannot be used: ${systemCode(cause)}`, cause);
}

/** The nonces of one key of a directory. */
class DirNonces implements NonceSource {
  readonly #files: Files;
  readonly #path: string;
  readonly #did: string;
  readonly #lanes = new Lanes();
  // What this process has used or learned, in case the file is replaced by an older one.
  readonly #floor: LastNonces = new Map();

  constructor(files: Files, path: string, did: string) {
    this.#files = files;
    this.#path = path;
    this.#did = did;
  }

  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T> {
    // Held until the write has arrived, so that nonces arrive in order. One lock per scope, so that no room waits for
    // another.
    const lock = `${this.#path}.node-lock-${encodeURIComponent(scope)}`;
    return this.#locked(
      lock,
      async () => {
        const nonce = await this.#locked(`${this.#path}.node-lock`, () => this.#allocate(scope, clock), clock, signal);
        return use(String(nonce));
      },
      clock,
      signal,
    );
  }

  raiseNonce(scope: string, seen: string, clock: Clock): void {
    raiseNonce(this.#floor, scope, seen, clock);
  }

  #locked<T>(lock: string, job: () => Promise<T>, clock: Clock, signal?: AbortSignal): Promise<T> {
    // Within this process, the queue is ordered and cheap. The lock file is for other processes.
    return this.#lanes.run(
      lock,
      async () => {
        const release = await this.#files.lock(lock, clock, signal);
        try {
          return await job();
        } finally {
          await release();
        }
      },
      signal,
    );
  }

  /**
   * The next nonce, written to disk before it is used: an unused nonce is only a gap, but one used twice is refused.
   */
  async #allocate(scope: string, clock: Clock): Promise<bigint> {
    const ledger = await readLedger(this.#files, this.#path);
    if (ledger === undefined) throw lostLedger(this.#path);
    const scopes: LastNonces = ledger.get(this.#did) ?? new Map();
    // Without a record, this very millisecond may have been used and its record lost, so take a later one.
    const nonce = nextNonce(clock, lastNonce(scopes, scope) ?? nonceOf(clock), lastNonce(this.#floor, scope));
    recordNonce(this.#floor, scope, nonce);
    recordNonce(scopes, scope, nonce);
    try {
      await this.#files.replace(this.#path, printLedger(ledger.set(this.#did, scopes)));
    } catch (cause) {
      throw refused(cause, `the nonce ledger ${this.#path}`, BadNonce);
    }
    return nonce;
  }
}

/**
 * Reads the ledger; undefined if there is none.
 *
 * @throws a {@link BadNonce} if it cannot be read, or is not a ledger. It is left unchanged: it is the only record of
 * what was used, and while it exists, no program starts over from the clock.
 */
async function readLedger(files: Files, path: string): Promise<Ledger | undefined> {
  const file = await files.read(path).catch((cause) => {
    throw refused(cause, `the nonce ledger ${path}`, BadNonce);
  });
  if (file === undefined) return undefined;
  const ledger = parseLedger(file.text);
  if (ledger !== undefined) return ledger;
  throw new BadNonce(
    `${path} is not a valid nonce ledger, so the nonces already used are unknown. It was left unchanged: repair it, or replace its contents with {} once the clock is past the last nonce used`,
  );
}

const lostLedger = (path: string): BadNonce =>
  new BadNonce(
    `${path} is missing although the key beside it has been used, so the nonces already used are unknown. Restore it, or put {} in its place once the clock is past the last nonce used`,
  );

/** @throws a {@link BadKey} if others can read the file, or it is not 43 characters of base64url. Never quotes it. */
function seedOf(file: { text: string; mode: number }, path: string, files: Files): Uint8Array {
  if (files.hasModes && file.mode & 0o077) {
    throw new BadKey(
      `${path} has mode ${file.mode.toString(8).padStart(4, '0')}: others may have read the seed. Set the mode to 0600, and use a new key if it was ever shared`,
    );
  }
  const seed = fromBase64url(file.text.trim());
  if (seed?.length !== 32) throw new BadKey(`${path} does not contain a seed: 43 characters of base64url`);
  return seed;
}

/** An open key directory: its seed, and the source of its nonces. */
export interface KeyDir {
  readonly seed: Uint8Array;
  nonces(did: string): NonceSource;
}

/**
 * Opens a key directory. If it does not exist, it is created with a new key.
 *
 * @param dir default `~/.technocore`
 * @throws a {@link BadKey} if the seed is malformed or readable by others, or the directory cannot be used
 * @throws a {@link BadNonce} if the ledger is malformed, or missing although there is a seed
 * @throws an {@link Unavailable} if the platform has no file system
 */
export async function openKeyDir(dir?: string): Promise<KeyDir> {
  const files = new Files();
  const { resolve } = files.path;
  if (checkText(dir ?? '.', 'the name of a key directory') === '')
    throw new BadKey('the name of the key directory is empty');
  const home = resolve(dir ?? resolve(files.os.homedir(), '.technocore'));
  const seedPath = resolve(home, 'seed');
  const ledgerPath = resolve(home, 'nonces.json');
  try {
    await files.makeDir(home);
    let file = await files.read(seedPath);
    // The ledger first, so that a seed without a ledger always means a lost ledger, even to a program that starts at
    // the same time.
    if (file === undefined) await files.create(ledgerPath, '{}');
    if ((await readLedger(files, ledgerPath)) === undefined) throw lostLedger(ledgerPath);
    if (file === undefined) {
      // If another program was faster, its seed is kept.
      await files.create(seedPath, toBase64url(randomBytes(32)));
      file = await files.read(seedPath);
      if (file === undefined) throw new BadKey(`${seedPath} is a link to a file that does not exist`);
    }
    const seed = seedOf(file, seedPath, files);
    await files.tidy(home);
    return { seed, nonces: (did) => new DirNonces(files, ledgerPath, did) };
  } catch (cause) {
    throw refused(cause, `the key directory ${home}`, BadKey);
  }
}
