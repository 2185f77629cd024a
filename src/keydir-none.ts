/**
 * What stands in the place of `keydir.ts` in a program that is built for browsers (`browser` in package.json): the same
 * refusal, without the code of key directories, which every program that holds a Signer would carry otherwise.
 *
 * @module
 */
import { noFileSystem } from './files.ts';

/** @throws Unavailable always */
export async function openKeyDir(): Promise<never> {
  throw noFileSystem();
}
