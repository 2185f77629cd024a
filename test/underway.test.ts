import { expect, test } from 'vitest';
import { feedOf, type Incoming } from '../src/feed.ts';
import { type Place, say } from '../src/rooms.ts';
import { Underway } from '../src/underway.ts';
import { world } from './support.ts';

test('the place that is saved is before the oldest unfinished message, in whatever order they were begun', async () => {
  const w = world();
  const saved: number[] = [];
  const store = { load: () => undefined, save: (_: string, { since }: Place) => void saved.push(since) };
  const underway = new Underway(w.t, 'x', { store, oldest: () => undefined });
  const came: Incoming[] = [];
  const leave = await w.run(feedOf(w.t, 'x').listen({ message: (m) => void came.push(m), gap() {}, end() {} }));
  for (let i = 0; i < 3; i++) await w.run(say('x', 'a', `${i}`, w.o));
  await w.until(() => came.length === 3);
  const finish: (() => void)[] = [];
  // As when a server takes over what another one left.
  for (const i of [2, 0, 1]) {
    underway.track(new Promise<void>((resolve) => (finish[i] = resolve)), came[i]);
  }
  const places: (number | undefined)[] = [];
  for (const i of [1, 0, 2]) {
    finish[i]!();
    await w.clock.advance(1);
    places.push(saved.at(-1));
  }
  expect(places).toEqual([0, 2, 3]);
  leave();
});
