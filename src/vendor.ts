/**
 * The entry of the one file to copy: all of technocore-rpc, and parley as a namespace.
 *
 * @packageDocumentation
 */
export * as parley from './parley.ts';
export * from './technocore-rpc.ts';
