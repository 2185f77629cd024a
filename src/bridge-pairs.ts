/**
 * Keeps the paired keys in a file of the key directory, so that nobody has to pair again after a restart.
 *
 * @module
 */
import { TechnocoreError, Unavailable } from './errors.ts';
import { Files, systemCode } from './files.ts';
import { isObject } from './frames.ts';
import { type Clock, systemClock } from './http.ts';
import { isDid, isName } from './names.ts';

/** A server that we are paired with. */
export interface PairedServer {
  did: string;
  /** A digest of the code that was used, so that it is not used again. */
  used: string;
}

/** The contents of the file, by mailbox: the callers that may call, or the server. */
interface Pairs {
  callers: { [mailbox: string]: string[] };
  servers: { [mailbox: string]: PairedServer };
}

/** The file of the paired keys. */
export class PairsFile {
  readonly #path: string;
  readonly #clock: Clock;

  /** @param path the file; created when first needed, in a directory that exists */
  constructor(path: string, clock: Clock = systemClock) {
    this.#path = path;
    this.#clock = clock;
  }

  /**
   * @throws a {@link TechnocoreError} `bad_pairs` if it is damaged, or others can write it; Unavailable if it cannot be
   * read
   */
  async callersOf(mailbox: string): Promise<string[]> {
    return (await this.#read()).callers[mailbox] ?? [];
  }

  /** @throws as {@link callersOf} */
  async serverOf(mailbox: string): Promise<PairedServer | undefined> {
    return (await this.#read()).servers[mailbox];
  }

  /** @throws as {@link callersOf} */
  async addCaller(mailbox: string, did: string): Promise<void> {
    await this.#change(({ callers }) => {
      callers[mailbox] = [...new Set([...(callers[mailbox] ?? []), did])];
    });
  }

  /** @throws as {@link callersOf} */
  async setServer(mailbox: string, server: PairedServer): Promise<void> {
    await this.#change(({ servers }) => {
      servers[mailbox] = server;
    });
  }

  async #read(): Promise<Pairs> {
    const files = new Files();
    const file = await files.read(this.#path).catch((cause) => {
      throw new Unavailable(`${this.#path} cannot be read: ${systemCode(cause)}`, cause);
    });
    if (!file) return { callers: {}, servers: {} };
    const bad = (why: string): TechnocoreError => new TechnocoreError('bad_pairs', `${this.#path} ${why}`);
    // If others can write the file, they could let themselves in.
    if (files.hasModes && file.mode & 0o022)
      throw bad('can be written by others; set its mode to 0600, and check the keys in it');
    try {
      return pairsIn(JSON.parse(file.text));
    } catch {
      throw bad('does not contain paired keys; repair it, or move it away and pair again');
    }
  }

  async #change(change: (pairs: Pairs) => void): Promise<void> {
    const files = new Files();
    const release = await files.lock(`${this.#path}.lock`, this.#clock);
    try {
      const pairs = await this.#read();
      change(pairs);
      await files.replace(this.#path, `${JSON.stringify(pairs, null, 2)}\n`).catch((cause) => {
        throw new Unavailable(`${this.#path} cannot be written: ${systemCode(cause)}`, cause);
      });
    } finally {
      await release();
    }
  }
}

function pairsIn(value: unknown): Pairs {
  const { callers, servers } = value as { callers: unknown; servers: unknown };
  const isServer = (one: unknown): boolean => isObject(one) && isDid(one['did']) && typeof one['used'] === 'string';
  const isGood =
    isObject(callers) &&
    isObject(servers) &&
    [...Object.keys(callers), ...Object.keys(servers)].every(isName) &&
    Object.values(callers).every((dids) => Array.isArray(dids) && dids.every(isDid)) &&
    Object.values(servers).every(isServer);
  if (!isGood) throw new SyntaxError('not pairs');
  return { callers, servers } as unknown as Pairs;
}
