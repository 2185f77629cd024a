import { Signer } from '../../src/signer.ts';
import { EPOCH } from './plan.ts';
import { Random } from './random.ts';
import type { World } from './world.ts';

/** Frames that are none, or none that should do anything. */
export const JUNK: readonly string[] = [
  '[',
  '{}',
  '[]',
  'null',
  '"text"',
  '[null,1,"x",{}]',
  '['.repeat(4000),
  '{"jsonrpc":"2.0"}',
  '{"jsonrpc":"1.0","id":1,"method":"quick","params":{"n":1}}',
  '{"jsonrpc":"2.0","id":1,"result":1}',
  '{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"no"}}',
  '{"jsonrpc":"2.0","method":"constructor","id":"a"}',
  '{"jsonrpc":"2.0","method":"__proto__","id":"b","params":{"__proto__":{"n":1}}}',
  '{"jsonrpc":"2.0","method":"toString","params":[],"id":9007199254740993}',
  '{"jsonrpc":"2.0","method":"quick","params":7,"id":{"a":1}}',
  '{"jsonrpc":"2.0","method":{"x":1},"id":[1]}',
  '[{"jsonrpc":"2.0","method":"said"},{"jsonrpc":"2.0","id":1,"result":2},7]',
  '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}',
  '{"a":"\\ud800"}',
  'hello, is anybody there?',
];

/** Strangers with keys, many addresses and a perfect network of their own. */
export class Hostile {
  readonly #world: World;
  readonly #random: Random;
  readonly #keys: Signer[];
  /** Rooms whose ring they filled. */
  readonly flooded: Set<string> = new Set();
  /** Questions that they sent on, also such as the service had refused. */
  readonly replayed: Set<number> = new Set();
  /** Whether they sent on lines that nobody but their readers can tell from others. */
  hasReplayedSealed = false;
  #nonce = EPOCH + 60_000;
  #address = 0;
  #requests = 0;

  constructor(world: World) {
    this.#world = world;
    this.#random = new Random(world.setup.seed, 'hostile');
    this.#keys = [0, 1, 2].map(() => Signer.fromSeed(this.#random.bytes(32)));
  }

  #fetch(path: string): Promise<Response> {
    // Nobody who means it stays within the budget of one address.
    if (this.#requests++ % 20 === 0) this.#address++;
    const reach = this.#world.service.client(`stranger${this.#address}`);
    return reach(`http://sim.test${path}`, { redirect: 'manual' });
  }

  #count(what: string): void {
    this.#world.network.count(what);
    this.#world.log(`strangers: ${what}`);
  }

  /** Writes to a room, signed by one of the keys. */
  async say(room: string, text: string, key: Signer = this.#random.pick(this.#keys)): Promise<void> {
    const { did, sig, nonce, text: swept } = key.signMessage(room, String(++this.#nonce), text);
    await this.#fetch(`/r/${room}/say-signed/${did}/${sig}/${nonce}/${encodeURIComponent(swept)}?format=json`);
  }

  /** Fills a ring within a few seconds. */
  flood(room: string): void {
    this.#count('flood');
    this.flooded.add(room);
    const random = this.#random;
    const { timeline } = this.#world;
    const messages = 10 + random.int(120);
    const length = random.pick([100, 500, 2000]);
    for (let i = 0; i < messages; i++) {
      timeline.after(i * random.between(5, 60), () => {
        void this.say(room, `${i} ${'z'.repeat(length)}`);
      });
    }
  }

  async attack(): Promise<void> {
    const { callees, callers, network, plan, sealedRooms } = this.#world;
    const random = this.#random;
    const victim = random.pick(callees);
    const { bug } = this.#world.setup;
    const kind = bug === 'trusts-anybody' ? 5 : random.int(6);
    if (kind === 0) {
      this.#count('junk');
      for (let i = 0; i < 5; i++)
        await this.say(random.pick([victim.room, random.pick(callers).room]), random.pick(JUNK));
      return;
    }
    if (kind === 1) {
      this.#count('replay');
      for (let i = 0; i < 10 && network.captured.length > 0; i++) {
        const path = random.pick(network.captured);
        if (this.#world.sealedRooms.has(path.split('/')[2]!)) this.hasReplayedSealed = true;
        for (const [, n] of path.matchAll(/%22(?:n%22%3A|params%22%3A%5B|text%22%3A%22[a-z]+%20)(\d+)/g))
          this.replayed.add(Number(n));
        await this.#fetch(path);
      }
      return;
    }
    if (kind === 2) {
      this.#count('note-overwritten');
      const { did, fingerprint } = random.pick([...callees, ...callers]).signer;
      const value = encodeURIComponent(`${did} mailbox:${random.pick(callers).room} x25519:AAAA`);
      await this.#fetch(`/kv/did-${fingerprint.slice(0, 2)}/${fingerprint.slice(2)}/set/${value}`);
      return;
    }
    // They read along in the mailbox, and what is asked there they answer, or ask again, in their own name.
    this.#count(kind === 3 ? 'copy' : kind === 4 ? 'twist' : 'forge');
    const room = kind === 3 && plan.sealed ? random.pick([victim.room, ...sealedRooms]) : victim.room;
    let from = 0;
    const step = async (left: number): Promise<void> => {
      from = await this.#readAlong(room, from, kind);
      if (left > 0) this.#world.timeline.after(random.between(20, 600), () => void step(left - 1));
    };
    await step(50);
  }

  /** @returns the last seq read */
  async #readAlong(room: string, from: number, kind: number): Promise<number> {
    const random = this.#random;
    const response = await this.#fetch(`/r/${room}?format=json&limit=20`);
    const { messages } = (await response.json()) as { messages: { seq: number; text: string }[] };
    for (const { seq, text } of messages.slice(-4)) {
      if (seq <= from) continue;
      if (this.#world.sealedRooms.has(room)) {
        await this.say(room, text);
        continue;
      }
      let frame: any;
      try {
        frame = JSON.parse(text);
      } catch {
        continue;
      }
      const replyTo: unknown = frame?.params?._meta?.['chat.technocore/reply'];
      if (typeof replyTo !== 'string') continue;
      // Who asks under an id that is not bound to his key cannot tell whose question an answer is for.
      if (kind !== 5 && String(frame.id).startsWith('own-')) continue;
      if (kind === 3) await this.say(room, text);
      else if (kind === 4) {
        await this.say(
          room,
          JSON.stringify({ ...frame, params: { ...frame.params, n: 1_000_000 + random.int(1000) } }),
        );
      } else {
        const body = random.chance(0.5) ? { result: 'forged' } : { error: { code: 4242, message: 'forged' } };
        await this.say(replyTo, JSON.stringify({ jsonrpc: '2.0', id: frame.id, ...body }));
      }
    }
    return messages.at(-1)?.seq ?? from;
  }
}
