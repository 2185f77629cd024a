import { expect, test } from 'vitest';
import { fromBase64, toBase64, toHex, utf8 } from '../src/bytes.ts';
import { TechnocoreError } from '../src/errors.ts';
import { createLocalService } from '../src/local.ts';
import { HttpRelay, Identity, type Received, Session } from '../src/parley.ts';
import { VirtualClock } from './virtual-clock.ts';

// Two sessions over a relay that loses, repeats, reorders, delays, swallows and invents, with ends that are killed and
// resumed. Everything follows from the seed: PARLEY_SEED=17 replays one, PARLEY_SEEDS=5000 runs so many.

class Random {
  #state: number;
  constructor(seed: number) {
    this.#state = seed >>> 0;
  }
  /** A float in [0, 1): mulberry32. */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t ^= t + Math.imul(t ^ (t >>> 7), 61 | t);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }
  below(n: number): number {
    return Math.floor(this.next() * n);
  }
  chance(p: number): boolean {
    return this.next() < p;
  }
  bytes(n: number): Uint8Array {
    return Uint8Array.from({ length: n }, () => this.below(256));
  }
}

interface Post {
  seq: bigint;
  type: number;
  payload: string;
}

const ends = [Identity.fromSeed(utf8('sim a')), Identity.fromSeed(utf8('sim b'))];
const FRAME = /\{"seq":(\d+),"type":(\d+),"payload":"([^"]*)"\}/g;

/** One end of the world: its session, what it said and heard, and what was seen of it on the wire. */
class End {
  session: Session;
  /** Texts in the order of their sealing: queued ones first, then sends, with what `send` said. */
  readonly queued: string[] = [];
  readonly sent: Map<string, bigint> = new Map();
  readonly said: string[] = [];
  readonly heard: string[] = [];
  readonly gaps: { expected: bigint; got: bigint }[] = [];
  /** Payloads by type and seq, and data seqs in the order of their first appearance. */
  readonly wire: Map<string, string> = new Map();
  readonly order: bigint[] = [];
  readonly violations: string[] = [];
  readonly relay: HttpRelay;
  readonly #world: World;
  readonly identity: Identity;

  constructor(world: World, identity: Identity) {
    this.#world = world;
    this.identity = identity;
    const { clock } = world;
    const fetch = world.fetchOf(this);
    this.relay = new HttpRelay('http://relay', { fetch, clock, random: world.randomBytes });
    this.session = new Session(identity, this.relay, this.options);
  }

  get options() {
    return {
      clock: this.#world.clock,
      random: this.#world.randomBytes,
      onEvent: (e: { kind: string; expected?: unknown; got?: unknown }) => {
        if (e.kind === 'gap') this.gaps.push({ expected: BigInt(e.expected as string), got: BigInt(e.got as string) });
      },
    };
  }

  posted({ seq, type, payload }: Post): void {
    const key = `${type} ${seq}`;
    const before = this.wire.get(key);
    if (before === undefined) {
      this.wire.set(key, payload);
      if (type === 2) this.order.push(seq);
    }
    // The heart of the matter: what was sealed under a seq is all that ever goes out under it. (Thrown here, it would pass
    // for a failure of the network.)
    else if (before !== payload) this.violations.push(key);
  }

  hear(received: Received[]): void {
    for (const { text } of received) this.heard.push(text);
  }
}

class World {
  readonly clock = new VirtualClock();
  readonly random: Random;
  readonly randomBytes: (n: number) => Uint8Array;
  isFair = false;
  /** How bad it is, between 0 and 1: a world of its own for each seed. */
  readonly evil: number;
  readonly a: End;
  readonly b: End;
  readonly #tokens = new Map<string, string>();
  readonly #fetch: typeof fetch;

  constructor(seed: number) {
    this.random = new Random(seed);
    this.randomBytes = (n) => this.random.bytes(n);
    this.evil = this.random.next() ** 2;
    this.#fetch = createLocalService({ clock: this.clock, random: this.randomBytes }).fetch;
    this.a = new End(this, ends[0]!);
    this.b = new End(this, ends[1]!);
  }

  #does(p: number): boolean {
    return !this.isFair && this.random.chance(p * this.evil);
  }

  fetchOf(end: End): typeof fetch {
    const chaos = async (input: Parameters<typeof fetch>[0], init: RequestInit = {}): Promise<Response> => {
      const url = String(input);
      const lost = (): never => {
        throw new TypeError('connection lost');
      };
      // A seat that is lost with its answer cannot be had again, so that much is fair.
      if (!url.includes('/frames')) {
        if (url.includes('/members') && this.#does(0.3)) lost();
        return this.#fetch(url, init);
      }
      this.#tokens.set(new Headers(init.headers).get('authorization')!, url.split('?')[0]!);
      if (init.method === 'POST') {
        const [, seq, type, payload] = new RegExp(FRAME.source).exec(String(init.body))!;
        end.posted({ seq: BigInt(seq!), type: Number(type), payload: payload! });
        if (this.#does(0.3)) lost();
        if (this.#does(0.15)) return new Response(null, { status: 204 });
        if (this.#does(0.2)) await this.#inject(init);
        if (this.#does(0.3)) await this.clock.sleep(this.random.below(3000), init.signal ?? undefined);
        const answer = await this.#fetch(url, init);
        if (this.#does(0.2)) await this.#fetch(url, init);
        if (this.#does(0.3)) lost();
        return answer;
      }
      if (this.#does(0.2)) lost();
      const rewound = this.#does(0.2) ? url.replace(/after=\d+/, 'after=0') : url;
      const answer = await this.#fetch(rewound, init);
      if (this.#does(0.2)) lost();
      if (answer.status !== 200) return answer;
      return new Response(this.#stirred(await answer.text()), { headers: answer.headers });
    };
    return chaos as typeof fetch;
  }

  // Junk in the name of whoever posts: of any seq and type, a frame that was changed on its way, or the same under another seq.
  async #inject(init: RequestInit): Promise<void> {
    const { random } = this;
    const headers = new Headers(init.headers);
    const url = this.#tokens.get(headers.get('authorization')!)!;
    const [, own, type, payload] = new RegExp(FRAME.source).exec(String(init.body))!;
    const bytes = fromBase64(payload!)!;
    if (bytes.length > 0) bytes[random.below(bytes.length)]! ^= 1 + random.below(255);
    const seqs = [own!, `${random.below(20)}`, `${2n ** 40n}`, `${2n ** 64n - 1n}`];
    const seq = seqs[random.below(seqs.length)];
    const kinds = [bytes, random.bytes(random.below(130)), fromBase64(payload!)!];
    const junk = kinds[random.below(kinds.length)]!;
    const body = `{"seq":${seq},"type":${random.chance(0.8) ? type : random.below(4)},"payload":"${toBase64(junk)}"}`;
    await this.#fetch(url, { method: 'POST', headers, body });
  }

  // What a relay may do to an answer: leave frames out, repeat them, mix them up.
  #stirred(text: string): string {
    let frames = [...text.matchAll(FRAME)].map(([frame]) => frame);
    if (this.#does(0.2)) frames = frames.filter(() => !this.random.chance(0.3));
    if (this.#does(0.2)) frames = frames.flatMap((frame) => (this.random.chance(0.3) ? [frame, frame] : [frame]));
    if (this.#does(0.2))
      frames = frames
        .map((f) => [this.random.next(), f] as const)
        .sort(([x], [y]) => x - y)
        .map(([, f]) => f);
    return `{"frames":[${frames.join(',')}]}\n`;
  }
}

/** What the call came to; anything but an error of the library's is a fault. */
async function tried<T>(run: () => Promise<T>): Promise<T | undefined> {
  try {
    return await run();
  } catch (e) {
    if (!TechnocoreError.is(e)) throw e;
    return undefined;
  }
}

async function simulate(seed: number): Promise<{ heard: number; lost: number; frames: number }> {
  const world = new World(seed);
  const { a, b, random, clock } = world;
  const ok = { open: false, join: false };
  let count = 0;

  const say = async (end: End, most = 1 + random.below(3)): Promise<void> => {
    const text = `${end === a ? 'a' : 'b'} ${++count}`;
    const isQueued = end.session.peer.state === 'none' || end.session.peer.state === 'pending';
    end.said.push(text);
    // Sometimes a caller tries again, in the same words and with nothing else said in between.
    for (let tries = most; tries > 0; tries--) {
      const sent = await tried(() => end.session.send(text));
      if (!sent) continue;
      if (isQueued) end.queued.push(text);
      else end.sent.set(text, BigInt(sent.seq));
      return;
    }
  };
  const listen = async (end: End, waitMs: number): Promise<void> => {
    const received = await tried(() => end.session.poll(waitMs));
    if (received) end.hear(received);
  };
  const restart = async (end: End): Promise<void> => {
    end.session = await Session.resume(end.session.save(), end.identity, end.relay, end.options);
  };

  const script = async (): Promise<void> => {
    if (random.chance(0.2)) await say(a);
    const invite = (await a.session.open(`topic ${seed}`)).url();
    ok.open = true;
    if (random.chance(0.3)) await say(a);
    if (random.chance(0.2)) await restart(a);
    await tried(() => b.session.join(invite));
    ok.join = true;
    for (let step = 8 + random.below(40); step > 0; step--) {
      const end = random.chance(0.5) ? a : b;
      const what = random.next();
      if (what < 0.5) await say(end);
      else if (what < 0.9) await listen(end, random.chance(0.3) ? random.below(4000) : 0);
      else if (what < 0.95) await restart(end);
      else await Promise.all([say(end, 1), listen(end, 500), say(end, 1)]);
    }
    // Now the relay behaves. Whoever is not deaf hears the last words, and the closing ones.
    world.isFair = true;
    for (let round = 0; round < 12; round++) for (const end of [a, b]) await listen(end, 3000);
    for (const end of [a, b]) end.sent.set('last', BigInt((await end.session.send('last')).seq));
    for (let round = 0; round < 4; round++) for (const end of [a, b]) await listen(end, 0);
    await a.session.close('the end');
    for (let round = 0; round < 4; round++) for (const end of [a, b]) await listen(end, 0);
  };

  let isOver = false;
  const over = script().finally(() => {
    isOver = true;
  });
  over.catch(() => {});
  for (let i = 0; !isOver; i++) {
    if (i > 2000) throw new Error('it hangs');
    await clock.advance(5000);
  }
  await over;

  expect([...a.violations, ...b.violations], 'two payloads under one seq').toEqual([]);
  let lost = 0;
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    const { said } = from;
    const heard = to.heard.filter((text) => text !== 'last' && text !== 'the end');
    // At most once, in order, nothing invented.
    const places = heard.map((text) => said.indexOf(text));
    for (const [i, place] of places.entries()) expect(place, `${heard}`).toBeGreaterThan(i === 0 ? -1 : places[i - 1]!);
    expect(to.heard, 'not deaf').toContain('last');
    // Every loss is seen.
    from.queued.forEach((text, i) => {
      from.sent.set(text, from.order[i]!);
    });
    for (const [text, seq] of from.sent) {
      if (to.heard.includes(text)) continue;
      lost++;
      // Beyond 2^53 a seq told by `send` is rounded.
      const seqs = from.order.filter((s) => Number(s) === Number(seq));
      expect(seqs.length).toBeGreaterThan(0);
      const isSeen = to.gaps.some(({ expected, got }) => seqs.some((s) => expected <= s && s < got));
      expect(isSeen, `${text} (${seq}) was lost without a word`).toBe(true);
    }
  }
  expect(b.heard.at(-1)).toBe('the end');
  expect([a.session.peer.state, b.session.peer.state]).toEqual(['closed', 'closed']);
  expect(a.session.peer.fingerprint).toBe(ends[1]!.fingerprint());
  expect(b.session.peer.topic).toBe(`topic ${seed}`);
  return { heard: a.heard.length + b.heard.length, lost, frames: a.wire.size + b.wire.size };
}

const seeds = Number(process.env['PARLEY_SEEDS'] ?? 60);
const single = process.env['PARLEY_SEED'];

test(`${single ?? seeds} worlds with a bad relay`, { timeout: 1_800_000 }, async () => {
  const sum = { heard: 0, lost: 0, frames: 0 };
  for (let seed = 1; seed <= (single ? 1 : seeds); seed++) {
    const at = single ? Number(single) : seed;
    const run = await simulate(at).catch((cause) => {
      throw new Error(`PARLEY_SEED=${at} replays this: ${cause.message}`, { cause });
    });
    sum.heard += run.heard;
    sum.lost += run.lost;
    sum.frames += run.frames;
  }
  if (single) return;
  // A world in which nothing went wrong or nothing went through would prove nothing.
  expect(sum.heard).toBeGreaterThan(seeds * 5);
  expect(sum.lost).toBeGreaterThan(seeds / 2);
});

test('the same seed is the same world', async () => {
  expect(await simulate(4711)).toEqual(await simulate(4711));
});

test('copies of one state never spend a seq twice', async () => {
  for (let seed = 1; seed <= 20; seed++) {
    const world = new World(seed);
    world.isFair = true;
    const { a, b, random, clock } = world;
    await b.session.join(await a.session.open('t'));
    await a.session.poll();
    await b.session.poll();
    const copies = [a.session];
    for (let i = 0; i < 60; i++) {
      const one = copies[random.below(copies.length)]!;
      if (random.chance(0.1)) copies.push(await Session.resume(one.save(), a.identity, a.relay, a.options));
      else await one.send(`${i}`);
      await clock.advance(random.below(50));
    }
    expect(a.violations).toEqual([]);
    expect(a.order.length).toBe(a.wire.size - 1);
    b.hear(await b.session.poll());
    expect(b.heard.length).toBeGreaterThan(0);
  }
  expect(toHex(ends[0]!.id)).not.toBe(toHex(ends[1]!.id));
});
