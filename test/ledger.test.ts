import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type LedgerLimits, LedgerState, memoryLedger } from '../src/ledger.ts';

const A = 'did:key:a';
const B = 'did:key:b';
const NOW = Date.UTC(2026, 0, 1);
const DAY = 86_400_000;

/** A ledger on a clock, and a counter of nonces that keys sign. */
function book(limits?: LedgerLimits) {
  const ledger = new LedgerState(limits);
  let now = NOW;
  let nonce = NOW;
  const admit = (from: string, id: string, digest = 'd', o: { nonce?: string; room?: string; reply?: string } = {}) => {
    const { fresh, verdicts } = ledger.admit(
      {
        from,
        room: o.room ?? 'mb-x',
        nonce: o.nonce ?? String(++nonce),
        requests: [{ id, digest, ...(o.reply !== undefined && { reply: o.reply }) }],
      },
      now,
    );
    return { fresh, ...verdicts[0]! };
  };
  return {
    ledger,
    admit,
    pass(ms: number, step = 30_000) {
      for (let left = ms; left > 0; left -= step) ledger.pass((now += Math.min(step, left)));
    },
    set clock(time: number) {
      now = time;
    },
  };
}

describe('requests', () => {
  test('fault 72: the same request runs once: new, running, answered', () => {
    const { ledger, admit } = book();
    expect(admit(A, '1')).toEqual({ fresh: true, kind: 'new' });
    expect(admit(A, '1')).toEqual({ fresh: true, kind: 'running' });
    ledger.answer(A, '1', 'yes');
    expect(admit(A, '1')).toEqual({ fresh: true, kind: 'answered', answer: 'yes', sent: false });
    ledger.sent(A, '1');
    expect(admit(A, '1')).toMatchObject({ sent: true });
  });

  test('fault 73: another key’s id is another request; other params under a used id are none', () => {
    const { ledger, admit } = book();
    admit(A, '1');
    ledger.answer(A, '1', 'for a');
    expect(admit(B, '1').kind).toBe('new');
    expect(admit(A, '1', 'other').kind).toBe('differs');
    expect(admit(A, '"1"').kind).toBe('new');
  });

  test('fault 27: old signed bytes are never taken again, neither while the answer is kept nor when it is not', () => {
    const { ledger, admit, pass } = book();
    admit(A, '1', 'd', { nonce: '100' });
    ledger.answer(A, '1', 'yes');
    expect(admit(A, '1', 'd', { nonce: '100' })).toMatchObject({ fresh: false, kind: 'answered' });
    expect(admit(A, '1', 'other', { nonce: '99' })).toEqual({ fresh: false, kind: 'old' });
    pass(700_000);
    expect(admit(A, '1', 'd', { nonce: '100' })).toEqual({ fresh: false, kind: 'old' });
    expect(admit(A, '2', 'd', { nonce: '7' })).toEqual({ fresh: false, kind: 'old' });
    expect(admit(A, '1', 'd', { nonce: '101' })).toEqual({ fresh: true, kind: 'new' });
    expect(admit(A, '1', 'd', { nonce: '100', room: 'mb-other' }).fresh).toBe(true);
    expect(admit(B, '1', 'd', { nonce: '100' }).fresh).toBe(true);
  });

  test('nonces of 19 digits are compared exactly; what is no nonce is never fresh', () => {
    const { admit } = book();
    expect(admit(A, '1', 'd', { nonce: '1788872638667723579' }).fresh).toBe(true);
    expect(admit(A, '2', 'd', { nonce: '1788872638667723578' }).fresh).toBe(false);
    expect(admit(A, '3', 'd', { nonce: '1788872638667723580' }).fresh).toBe(true);
    for (const nonce of ['', '-1', '1.5', '1e9', 'x', '1'.repeat(20), '٣']) {
      expect(admit(B, `${nonce}!`, 'd', { nonce }).fresh).toBe(false);
    }
  });

  test('a channel that cannot replay has no nonces', () => {
    const { ledger } = book();
    const m = { from: A, room: 'session', requests: [{ id: '1', digest: 'd' }] };
    expect(ledger.admit(m, NOW).verdicts[0]!.kind).toBe('new');
    expect(ledger.admit(m, NOW)).toEqual({ fresh: true, verdicts: [{ kind: 'running' }] });
    expect(ledger.size.floors).toBe(0);
  });

  test('one id twice in a message: the second one is the first', () => {
    const { ledger } = book();
    const requests = [
      { id: '1', digest: 'd' },
      { id: '1', digest: 'd' },
      { id: '1', digest: 'other' },
    ];
    const { verdicts } = ledger.admit({ from: A, room: 'x', nonce: '1', requests }, NOW);
    expect(verdicts.map((v) => v.kind)).toEqual(['new', 'running', 'differs']);
  });

  test('what was forgotten, because nothing was done, may come again', () => {
    const { ledger, admit } = book();
    admit(A, '1');
    ledger.forget(A, '1');
    expect(admit(A, '1').kind).toBe('new');
    ledger.forget(A, 'unknown');
    ledger.answer(A, 'unknown', 'x');
    ledger.sent(A, 'unknown');
    expect(ledger.size).toMatchObject({ entries: 1, keys: 1 });
  });

  test('an id in a place is the first key’s that used it there', () => {
    const { ledger, admit } = book();
    expect(admit(A, '1', 'd', { reply: 'mb-a' }).kind).toBe('new');
    expect(admit(B, '1', 'd', { reply: 'mb-a' }).kind).toBe('taken');
    expect(admit(B, '1', 'd', { reply: 'mb-b' }).kind).toBe('new');
    ledger.answer(A, '1', 'x');
    expect(admit(B, '1', 'e', { reply: 'mb-a' }).kind).not.toBe('new');
    ledger.forget(A, '1');
    ledger.forget(B, '1');
    expect(admit(B, '1', 'd', { reply: 'mb-a' }).kind).toBe('new');
  });
});

test('what was signed before the ledger began is not run, unless it was asked again since', () => {
  const ledger = new LedgerState();
  const admit = (nonce: number | string, at: number | undefined, id = '1') => {
    const message = { from: A, room: 'r', nonce: String(nonce), requests: [{ id, digest: 'd' }] };
    const { fresh, verdicts } = ledger.admit(at === undefined ? message : { ...message, at }, NOW);
    return { fresh, ...verdicts[0]! };
  };
  const nonce = String(NOW - 30_000);
  expect(admit(NOW - 61_000, NOW)).toEqual({ fresh: false, kind: 'before', nonce });
  expect(admit(NOW - 61_000, NOW)).toEqual({ fresh: false, kind: 'before', nonce });
  expect(admit(nonce, NOW).kind).toBe('new');
  expect(admit(NOW - 61_000, NOW).kind).toBe('running');
  // Where its place tells more than its nonce, and where the service's clock was set.
  expect(admit(NOW - 20_000, undefined, '2').kind).toBe('new');
  expect(admit(NOW + DAY, NOW + 2 * DAY, '3').kind).toBe('before');
  expect(admit(NOW + DAY, NOW, '3').kind).toBe('new');
  // Older than the key's own last one, it is simply old.
  expect(admit(NOW - 90_000, NOW, '4')).toEqual({ fresh: false, kind: 'old' });
  // With time, ever older ones are from its own days.
  const later = new LedgerState();
  for (let t = 0; t <= 3_600_000; t += 30_000) later.pass(NOW + t);
  const m = { from: A, room: 'r', at: NOW + 3_600_000, requests: [{ id: '1', digest: 'd' }] };
  expect(later.admit({ ...m, nonce: String(NOW - 61_000) }, NOW).verdicts[0]!.kind).toBe('before');
  expect(later.admit({ ...m, nonce: String(NOW - 30_000) }, NOW).verdicts[0]!.kind).toBe('new');
});

test('what was signed while messages were lost is not run', () => {
  const ledger = new LedgerState();
  for (let t = 0; t <= 3_600_000; t += 30_000) ledger.pass(NOW + t);
  const at = NOW + 3_600_000;
  const admit = (nonce: number, after: number | undefined, id: string) =>
    ledger.admit({ from: A, room: 'r', nonce: String(nonce), at, after, requests: [{ id, digest: 'd' }] }, at)
      .verdicts[0]!;
  expect(admit(NOW, undefined, '1').kind).toBe('new');
  expect(admit(NOW + 5000, NOW + 5000, '2')).toEqual({ kind: 'before', nonce: String(NOW + 5000) });
  expect(admit(NOW + 5001, NOW + 5000, '2').kind).toBe('new');
  // What is known all the same is answered from what is known.
  expect(admit(NOW + 5002, NOW + 6000, '2').kind).toBe('running');
});

test('nobody keeps an id from another key by having it answered beforehand', () => {
  const { ledger, admit, pass } = book();
  const reply = 'mb-victim';
  expect(admit(B, '1', 'd', { reply }).kind).toBe('new');
  ledger.answer(B, '1', 'theirs');
  expect(admit(A, '1', 'd', { reply }).kind).toBe('taken');
  ledger.sent(B, '1');
  // While somebody may have been waiting under this id when the answer came.
  pass(59_000);
  expect(admit(A, '1', 'd', { reply }).kind).toBe('taken');
  pass(2000);
  expect(admit(A, '1', 'd', { reply }).kind).toBe('new');
  // From now on theirs could be taken for the answer to the other.
  expect(admit(B, '1', 'd', { reply }).kind).toBe('taken');
  ledger.answer(A, '1', 'right');
  ledger.sent(A, '1');
  expect(admit(B, '1', 'd', { reply }).kind).toBe('taken');
  pass(61_000);
  expect(admit(B, '1', 'd', { reply })).toMatchObject({ kind: 'answered', answer: 'theirs' });
  expect(admit(A, '1', 'd', { reply })).toMatchObject({ kind: 'answered', answer: 'right' });
  pass(700_000);
  expect(ledger.size).toMatchObject({ entries: 0, keys: 0, chars: 0 });
});

describe('time', () => {
  test('an answer is kept for its window, from when it was given, and a running request for as long as it runs', () => {
    const { ledger, admit, pass } = book({ windowMs: 100_000 });
    admit(A, 'slow');
    pass(500_000);
    expect(admit(A, 'slow').kind).toBe('running');
    ledger.answer(A, 'slow', 'at last');
    pass(90_000);
    expect(admit(A, 'slow').kind).toBe('answered');
    pass(20_000);
    expect(admit(A, 'slow').kind).toBe('new');
  });

  test('a clock that is set, forward or back, neither drops answers early nor keeps them for ever', () => {
    for (const jump of [DAY * 365, -DAY * 365, 3_600_000, -3_600_000]) {
      const b = book({ windowMs: 600_000 });
      b.admit(A, '1');
      b.ledger.answer(A, '1', 'x');
      b.clock = NOW + jump;
      b.pass(30_000);
      expect(b.admit(A, '1').kind).toBe('answered');
      b.pass(700_000);
      expect(b.ledger.size.entries).toBe(0);
    }
  });

  test('behind a request that runs for long, answers expire all the same', () => {
    const { ledger, admit, pass } = book({ windowMs: 60_000 });
    admit(A, 'hangs');
    for (let i = 0; i < 100; i++) {
      admit(A, `${i}`);
      ledger.answer(A, `${i}`, 'x');
    }
    pass(120_000);
    expect(ledger.size.entries).toBe(1);
  });
});

describe('bounds', () => {
  test('full is refused for now; nothing is dropped that keeps a handler from running twice', () => {
    const { ledger, admit, pass } = book({ entries: 8 });
    for (let i = 0; i < 8; i++) {
      expect(admit(`did:${i % 4}`, `${i}`).kind).toBe('new');
      ledger.answer(`did:${i % 4}`, `${i}`, 'x');
    }
    expect(admit('did:new', 'x')).toMatchObject({ kind: 'full', retryAfterMs: 60_000 });
    expect(admit('did:0', '0').kind).toBe('answered');
    pass(700_000);
    expect(admit('did:new', 'x').kind).toBe('new');
  });

  test('one key gets a quarter, of requests and of characters', () => {
    const { ledger, admit } = book({ entries: 8 });
    expect(['1', '2', '3'].map((id) => admit(A, id).kind)).toEqual(['new', 'new', 'full']);
    expect(admit(B, '1').kind).toBe('new');
    const chars = book({ chars: 4000 });
    chars.admit(A, '1');
    chars.ledger.answer(A, '1', 'x'.repeat(1000));
    expect(chars.admit(A, '2').kind).toBe('full');
    expect(chars.admit(B, '2').kind).toBe('new');
    chars.admit(B, 'y'.repeat(1000));
    expect(chars.admit(B, '3').kind).toBe('full');
    expect(ledger.size.entries).toBe(3);
  });

  test('the last quarter of entries, characters and guards is not for keys that were never answered', () => {
    const never = Number.POSITIVE_INFINITY;
    const ask = (ledger: LedgerState, i: number, rank: number): string => {
      const requests = [{ id: `${i}`, digest: 'd' }];
      const message = { from: `did:${i}`, room: 'mb-x', nonce: String(NOW - i), requests, rank };
      return ledger.admit(message, NOW).verdicts[0]!.kind;
    };
    for (const limits of [{ entries: 8 }, { floors: 8 }, { chars: 8 * 'did:1 1'.length }]) {
      const ledger = new LedgerState(limits);
      const crowd = [1, 2, 3, 4, 5, 6, 7].map((i) => ask(ledger, i, never));
      expect(crowd.filter((kind) => kind === 'new')).toHaveLength(6);
      expect([8, 9].map((i) => ask(ledger, i, 0))).toEqual(['new', 'new']);
    }
  });

  test('guards of nonces: full is refused, one idle for ten minutes makes room, and what it guarded stays guarded', () => {
    const { admit, pass } = book({ floors: 2 });
    admit(A, '1', 'd', { nonce: String(NOW - 6) });
    admit(B, '1', 'd', { nonce: String(NOW - 5) });
    expect(admit('did:c', '1').kind).toBe('full');
    pass(540_000);
    expect(admit('did:c', '1').kind).toBe('full');
    pass(60_000);
    expect(admit('did:c', '1', 'd', { nonce: String(NOW - 4) }).kind).toBe('new');
    // Of A nothing is known any more, but that it may have signed this before: it can sign anew.
    const again = { fresh: false, kind: 'before', nonce: String(NOW - 5) };
    expect(admit(A, '2', 'd', { nonce: String(NOW - 6) })).toEqual(again);
    expect(admit('did:slow', '1', 'd', { nonce: String(NOW - 9000) })).toMatchObject({ fresh: false });
    expect(admit(A, '2', 'd', { nonce: String(NOW + 600_000) }).kind).toBe('new');
    expect(admit(B, '1', 'd', { nonce: String(NOW - 5) }).kind).not.toBe('new');
  });

  test('a nonce of no clock is guarded for a day, and leaves room for others', () => {
    const { admit, pass } = book({ floors: 4 });
    const odd = (n: number) => ({ nonce: `999999999999999999${n}` });
    for (const n of [1, 2]) expect(admit(`did:${n}`, '1', 'd', odd(n)).kind).toBe('new');
    expect(admit('did:3', '1', 'd', odd(3)).kind, 'of such no more than half').toBe('full');
    for (const n of [4, 5]) expect(admit(`did:${n}`, '1', 'd', { nonce: String(NOW - 10 + n) }).kind).toBe('new');
    pass(600_000);
    expect(admit(A, '1', 'd', { nonce: String(NOW) }).kind).toBe('new');
    expect(admit('did:1', '2', 'd', odd(1)).kind).toBe('old');
  });

  test('what nothing runs for is judged, and leaves nothing behind', () => {
    const ledger = new LedgerState();
    const message = {
      from: A,
      room: 'x',
      nonce: '5',
      requests: [{ id: '1', digest: 'd', reply: 'mb-a', passing: true }],
    };
    expect(ledger.admit({ ...message, passing: true }, NOW)).toEqual({ fresh: true, verdicts: [{ kind: 'new' }] });
    expect(ledger.size).toEqual({ entries: 0, keys: 0, floors: 0, chars: 0 });
    expect(ledger.admit(message, NOW)).toMatchObject({ fresh: true });
    expect(ledger.size).toMatchObject({ entries: 0, floors: 1 });
    const other = { ...message, from: B, requests: [{ id: '1', digest: 'd', reply: 'mb-a' }] };
    ledger.admit(other, NOW);
    expect(ledger.admit({ ...message, nonce: '6' }, NOW).verdicts).toEqual([{ kind: 'taken' }]);
    expect(ledger.admit({ ...message, nonce: '6' }, NOW).verdicts).toEqual([{ kind: 'old' }]);
  });

  test('a nonce from the future locks nobody else out', () => {
    const { admit, pass } = book({ floors: 1 });
    admit(A, '1', 'd', { nonce: '9999999999999999999' });
    pass(DAY + 60_000);
    expect(admit(B, '1', 'd', { nonce: String(NOW + DAY) }).kind).toBe('new');
  });

  test('everything that was counted in is counted out', () => {
    const { ledger, admit, pass } = book();
    for (let i = 0; i < 50; i++) {
      admit(`did:${i % 7}`, `${i}`, 'd', { reply: `mb-${i % 3}` });
      if (i % 3 === 0) ledger.forget(`did:${i % 7}`, `${i}`);
      else for (const text of ['long answer', 'x']) ledger.answer(`did:${i % 7}`, `${i}`, text);
    }
    pass(700_000);
    expect(ledger.size).toMatchObject({ entries: 0, keys: 0, chars: 0 });
  });
});

test('whatever comes in whatever order, no request runs twice while it is remembered, and no bound is passed', () => {
  const step = fc.oneof(
    fc.record({
      do: fc.constant('admit' as const),
      key: fc.nat(3),
      id: fc.nat(4),
      digest: fc.nat(1),
      nonce: fc.integer({ min: 1, max: 60 }),
    }),
    fc.record({
      do: fc.constantFrom('answer' as const, 'sent' as const, 'forget' as const),
      key: fc.nat(3),
      id: fc.nat(4),
    }),
    fc.record({ do: fc.constant('pass' as const), ms: fc.integer({ min: -100_000, max: 60_000 }) }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 120 }), (steps) => {
      const limits = { windowMs: 150_000, entries: 12, chars: 1000, floors: 6 };
      const ledger = new LedgerState(limits);
      let now = NOW;
      const running = new Set<string>();
      const taken = new Set<string>();
      for (const s of steps) {
        if (s.do === 'pass') ledger.pass((now += s.ms));
        else if (s.do === 'admit') {
          const message = {
            from: `k${s.key}`,
            room: 'r',
            nonce: `${s.nonce}`,
            requests: [{ id: `${s.id}`, digest: `${s.digest}` }],
          };
          const { verdicts } = ledger.admit(message, now);
          const name = `k${s.key} ${s.id}`;
          if (verdicts[0]!.kind === 'new') {
            // Running twice at a time, or twice by one signature: never.
            expect(running.has(name)).toBe(false);
            expect(taken.has(`k${s.key} ${s.nonce}`)).toBe(false);
            running.add(name);
            taken.add(`k${s.key} ${s.nonce}`);
          }
        } else {
          const name = `k${s.key} ${s.id}`;
          if (s.do === 'answer') ledger.answer(`k${s.key}`, `${s.id}`, 'x'.repeat(20));
          else ledger[s.do](`k${s.key}`, `${s.id}`);
          if (s.do !== 'sent') running.delete(name);
        }
        const { entries, floors, chars } = ledger.size;
        expect(entries).toBeLessThanOrEqual(limits.entries);
        expect(floors).toBeLessThanOrEqual(limits.floors);
        expect(chars).toBeLessThanOrEqual(limits.chars + 50 * limits.entries);
      }
    }),
    { numRuns: 300 },
  );
});

test('a limit that is undefined is the default', () => {
  const limits = { windowMs: undefined, entries: undefined, chars: undefined, floors: undefined };
  expect(new LedgerState(limits)).toEqual(new LedgerState());
});

test('memoryLedger is one', async () => {
  const ledger = memoryLedger({ entries: 4 });
  const { verdicts } = await ledger.admit(
    { from: A, room: 'x', nonce: '1', requests: [{ id: '1', digest: 'd' }] },
    NOW,
  );
  expect(verdicts).toEqual([{ kind: 'new' }]);
});
