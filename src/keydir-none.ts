/**
 * Replaces `keydir.ts` in browser builds (see `browser` in package.json): it refuses in the same way, but spares every
 * program with a Signer the code for key directories.
 *
 * @module
 */
import { noFileSystem } from './files.ts';

/** @throws an {@link Unavailable} always */
export async function openKeyDir(): Promise<never> {
  throw noFileSystem();
}
