/**
 * Nonce allocation. A nonce must be higher than the last one of the same key in the same scope, and nonces must arrive
 * in order, so the writes of one scope run one after the other. A scope is a room, or `kv:<key>` for the notes with
 * that key.
 *
 * @module
 */
import { BadNonce } from './errors.ts';
import { type Clock, Lanes } from './http.ts';
import { isNonce } from './names.ts';

/** A source of nonces, which rise within each scope. */
export interface NonceSource {
  /** Runs `use` with a nonce of its own, after all earlier uses of the scope have settled. */
  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T>;
  /**
   * Makes all later nonces of a scope higher than one that the service has seen.
   *
   * @throws a {@link BadNonce} if that one is more than a day ahead of any clock, even of one that counts nanoseconds
   */
  raiseNonce(scope: string, seen: string, clock: Clock): void;
}

/** The highest possible nonce. */
export const MAX_NONCE = 9_999_999_999_999_999_999n;
const DAY_MS = 86_400_000n;
const NS_PER_MS = 1_000_000n;

/** The last nonces of one key, by scope. `*` stands for every scope that is not listed. */
export type LastNonces = Map<string, bigint>;

/**
 * The maximum number of scopes. Beyond it, the quarter with the lowest nonces is merged into one floor for all scopes
 * that are not listed.
 */
const MAX_SCOPES = 1000;
const OTHERS = '*';

/** The last nonce of a scope; undefined when there was none. */
export function lastNonce(scopes: LastNonces, scope: string): bigint | undefined {
  return scopes.get(scope) ?? scopes.get(OTHERS);
}

/** Records a nonce if it is higher than the last one. Scopes that are dropped stay covered by the common floor. */
export function recordNonce(scopes: LastNonces, scope: string, nonce: bigint): void {
  if (nonce > (lastNonce(scopes, scope) ?? -1n)) scopes.set(scope, nonce);
  if (scopes.size <= MAX_SCOPES) return;
  const rising = [...scopes].filter(([name]) => name !== OTHERS).sort(([, a], [, b]) => (a < b ? -1 : 1));
  for (const [name, last] of rising.slice(0, -0.75 * MAX_SCOPES)) {
    scopes.delete(name);
    if (last > (scopes.get(OTHERS) ?? -1n)) scopes.set(OTHERS, last);
  }
}

/** A clock's time as a nonce. */
export const nonceOf = (clock: Clock): bigint => BigInt(Math.max(0, Math.floor(clock.now())));

/**
 * The next nonce: the time in ms or, if that is not higher than all of `lasts`, one more than the highest of them.
 *
 * @throws a {@link BadNonce} if it would have more than 19 digits
 */
export function nextNonce(clock: Clock, ...lasts: (bigint | undefined)[]): bigint {
  let next = nonceOf(clock);
  for (const last of lasts) if (last !== undefined && last >= next) next = last + 1n;
  if (next > MAX_NONCE) throw new BadNonce('no nonce is left: the highest possible one was used');
  return next;
}

/** {@link NonceSource.raiseNonce} for `scopes`. */
export function raiseNonce(scopes: LastNonces, scope: string, seen: string, clock: Clock): void {
  // It comes from the service, so it is checked before use. Programs that share a key may take their nonces from a clock
  // in nanoseconds, the finest there is; above that, most of the possible nonces are left.
  if (!isNonce(seen) || BigInt(seen) > (nonceOf(clock) + DAY_MS) * NS_PER_MS) {
    throw new BadNonce(
      `the service has seen nonce ${seen.slice(0, 20)} of this key in ${scope}, which no clock shows: even in nanoseconds it is more than a day ahead. The key is locked out there: use another key or room, or correct the clock`,
    );
  }
  recordNonce(scopes, scope, BigInt(seen));
}

/** The nonces of a key that only this process uses. */
export class MemoryNonces implements NonceSource {
  readonly #lanes = new Lanes();
  readonly #last: LastNonces = new Map();

  withNonce<T>(scope: string, clock: Clock, use: (nonce: string) => Promise<T>, signal?: AbortSignal): Promise<T> {
    return this.#lanes.run(
      scope,
      () => {
        const nonce = nextNonce(clock, lastNonce(this.#last, scope));
        recordNonce(this.#last, scope, nonce);
        return use(String(nonce));
      },
      signal,
    );
  }

  raiseNonce(scope: string, seen: string, clock: Clock): void {
    raiseNonce(this.#last, scope, seen, clock);
  }
}
