import { expect, test } from 'vitest';
import { dispatch, methods } from '../src/builtin.ts';
import { rpcRequest } from '../src/dispatch.ts';
import { faulty, PROFILES, signer, world } from './support.ts';

const census = (service: object, params: object = {}): Promise<any> =>
  dispatch(rpcRequest(1, 'census/latest', params as any), { service }, { methods }) as Promise<any>;

test.each(PROFILES)('census/latest reads the service once in three seconds, whoever asks (%s)', async (profile) => {
  const w = world(profile);
  for (const n of [1, 2, 3]) await signer(1).say(`census-${n}`, 'x', w.o);
  const { reads } = w.service.stats;
  const answers = await w.run(Promise.all(Array.from({ length: 20 }, () => census(w.o))));
  expect(new Set(answers.map(({ result }) => JSON.stringify(result))).size).toBe(1);
  // The service has one of its own that tells of new rooms.
  expect(answers[0].result).toMatchObject({ rooms: { total: 4 } });
  expect(answers[0].result.listed).toBeUndefined();
  expect(w.service.stats.reads - reads).toBe(1);

  const lists = await w.run(Promise.all([1, 2, 50].map((list) => census(w.o, { list }))));
  expect(lists.map(({ result }) => result.listed.length)).toEqual([1, 2, 4]);
  expect(w.service.stats.reads - reads).toBe(2);

  await signer(1).say('census-4', 'x', w.o);
  expect((await w.run(census(w.o))).result.rooms.total).toBe(4);
  await w.clock.advance(3001);
  expect((await w.run(census(w.o))).result.rooms.total).toBe(5);
});

test('census/latest that failed is asked anew', async () => {
  const w = world();
  let fails = true;
  const service = { ...w.o, fetch: faulty(w.o.fetch, () => (fails ? new Response('no', { status: 500 }) : undefined)) };
  expect((await w.run(census(service))).error.code).toBe(-32603);
  fails = false;
  expect((await w.run(census(service))).result.rooms.total).toBe(0);
});
