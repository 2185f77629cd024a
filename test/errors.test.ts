import { expect, test } from 'vitest';
import * as errors from '../src/errors.ts';
import { CallTimeout, Conflict, EmptyText, Forbidden, HttpError, TechnocoreError } from '../src/errors.ts';

test('each class knows its own errors, and the base all of them', () => {
  const timeout: unknown = new CallTimeout('mb-x', 'id', 5, 'no-room', 'why');
  const conflict: unknown = new Conflict('409', 'actual');
  const all = [timeout, conflict, new Forbidden('403'), new EmptyText(), new TechnocoreError('x', 'y')];
  const others = [
    undefined,
    null,
    'x',
    7,
    {},
    new Error('call_timeout'),
    Object.assign(new Error(), { code: 'conflict' }),
  ];
  const known = (is: (e: unknown) => boolean) => [...all, ...others].map(is);
  const none = others.map(() => false);
  expect(known((e) => TechnocoreError.is(e))).toEqual([true, true, true, true, true, ...none]);
  expect(known((e) => CallTimeout.is(e))).toEqual([true, false, false, false, false, ...none]);
  expect(known((e) => HttpError.is(e))).toEqual([false, true, true, false, false, ...none]);
  expect(known((e) => Conflict.is(e))).toEqual([false, true, false, false, false, ...none]);
  // As JavaScript may hand it on.
  expect([...all, ...others].filter(TechnocoreError.is as (e: unknown) => boolean)).toEqual(all);
  // The types follow: this compiles.
  if (CallTimeout.is(timeout)) expect(timeout.reason).toBe('no-room');
  if (Conflict.is(conflict)) expect(conflict.actual).toBe('actual');
});

test('the code that a class declares, by which types tell one from another, is the one it has', () => {
  const check = <E extends TechnocoreError>(error: E, code: E['code']): void => expect(error.code).toBe(code);
  check(new errors.FrameTooLong(2, 1), 'frame_too_long');
  check(new errors.EmptyText(), 'empty_text');
  check(new errors.BadName(7, 'a name'), 'bad_name');
  check(new errors.BadKey('m'), 'bad_key');
  check(new errors.BadNonce('m'), 'bad_nonce');
  check(new errors.BadState('a', 'b'), 'bad_state');
  check(new errors.HttpError(418, 'b'), 'http');
  check(new errors.Forbidden('b'), 'forbidden');
  check(new errors.Conflict('b'), 'conflict');
  check(new errors.DuplicateText('b'), 'duplicate_text');
  check(new errors.RateLimited('read', 1), 'rate_limited');
  check(new errors.CapacityReached('m'), 'capacity_reached');
  check(new errors.RoomBudget(1), 'room_budget');
  check(new errors.StaleNonce('1'), 'stale_nonce');
  check(new errors.Unavailable('m'), 'unavailable');
  check(new errors.MayHaveLanded('lobby', '1'), 'may_have_landed');
  check(new errors.RpcError(1, 'm'), 'rpc');
  check(new errors.RingGap('lobby', 1, 2, 'overflow'), 'ring_gap');
  check(new errors.CallTimeout('mb-x', '1', 1, 'no-room', 'h'), 'call_timeout');
  check(new errors.DecryptError('tag', 'm'), 'decrypt');
  check(new errors.BadInvite('parse'), 'bad_invite');
  check(new errors.RelayRefused('full', 'm'), 'relay_refused');
  check(new errors.HandshakeFailed('too short'), 'handshake_failed');
  check(new errors.SessionClosed('over'), 'session_closed');
});

test('what a service answers is told with the status, and no web page is quoted', () => {
  const told = (status: number, body: string): string => new HttpError(status, body).message;
  expect(told(404, '404 no route matched\n')).toBe('the service answered 404 no route matched');
  expect(told(401, 'log in')).toBe('the service answered 401: log in');
  expect(told(418, ' ')).toBe('the service answered 418');
  expect(told(403, '\n<!doctype html><p>403')).toBe('the service answered 403 with a web page');
});

test('an error of another copy of the library is known by the base', async () => {
  const other = (await import(`../src/errors.ts?copy=${'2'}`)) as typeof import('../src/errors.ts');
  const error = new other.EmptyText();
  expect(error).not.toBeInstanceOf(TechnocoreError);
  expect([TechnocoreError.is(error), EmptyText.is(error), other.EmptyText.is(error)]).toEqual([true, false, true]);
});
