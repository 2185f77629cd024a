/**
 * The entry point of the single-file build: all of technocore-rpc, with parley as a namespace.
 *
 * @packageDocumentation
 */
export * as parley from './parley.ts';
export * from './technocore-rpc.ts';
