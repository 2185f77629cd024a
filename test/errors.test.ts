import { expect, test } from 'vitest';
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

test('an error of another copy of the library is known by the base', async () => {
  const other = (await import(`../src/errors.ts?copy=${'2'}`)) as typeof import('../src/errors.ts');
  const error = new other.EmptyText();
  expect(error).not.toBeInstanceOf(TechnocoreError);
  expect([TechnocoreError.is(error), EmptyText.is(error), other.EmptyText.is(error)]).toEqual([true, false, true]);
});
