import type { Event, Options } from '../../src/http.ts';
import { Signer } from '../../src/signer.ts';
import { ProcessClock } from './clock.ts';
import type { Host } from './network.ts';
import { EPOCH, MINUTE } from './plan.ts';
import { Random } from './random.ts';
import type { World } from './world.ts';

/** One life of a program: its clock, its network, its randomness. It may end at any moment. */
export class Process implements Host {
  readonly name: string;
  readonly address: string;
  readonly clock: ProcessClock;
  readonly fetch: typeof fetch;
  readonly random: (bytes: number) => Uint8Array;
  isAlive = true;
  /** Calls to the outside left until it dies of one; undefined: it does not. */
  diesIn: number | undefined;
  readonly #world: World;
  readonly #onDeath: () => void;
  readonly #onSetBack: () => void;
  /** What is left of the published budgets. */
  readonly #tokens = { read: 120, write: 30 };
  #countedAt: number;

  constructor(world: World, name: string, address: string, offset: number, onDeath: () => void, onSetBack: () => void) {
    this.#world = world;
    this.name = name;
    this.address = address;
    this.#onDeath = onDeath;
    this.#onSetBack = onSetBack;
    this.clock = new ProcessClock(world.timeline, offset, world.setup.bug);
    this.fetch = world.network.fetchOf(this);
    const random = new Random(world.setup.seed, `random of ${name}`);
    this.random = (n) => random.bytes(n);
    this.#countedAt = world.timeline.now;
  }

  onSend(path?: string): void {
    if (this.diesIn !== undefined && --this.diesIn < 0) {
      this.#world.network.count('crash-at-call');
      this.kill();
    }
    if (path === undefined || !this.isAlive) return;
    this.#world.invariants.sent(path);
    if (/^\/(r|kv|rooms)\b/.test(path))
      this.#charge(/\/(say|say-signed|set|set-signed)\//.test(path) ? 'write' : 'read');
  }

  #charge(kind: 'read' | 'write'): void {
    const { now } = this.#world.timeline;
    const minutes = (now - this.#countedAt) / MINUTE;
    this.#countedAt = now;
    this.#tokens.read = Math.min(120, this.#tokens.read + 120 * minutes);
    this.#tokens.write = Math.min(30, this.#tokens.write + 30 * minutes);
    // Few are sent before the first answer told of a budget.
    if (--this.#tokens[kind] < -8) this.#world.invariants.violate(`${this.name} sends above the ${kind} budget`);
  }

  /** The clock is set. */
  jump(ms: number): void {
    this.clock.offset += ms;
    if (ms < 0) this.#onSetBack();
    if (ms <= 0) return;
    // Who believes that time has passed believes in a whole budget more.
    this.#tokens.read += 120;
    this.#tokens.write += 30;
  }

  kill(): void {
    if (!this.isAlive) return;
    this.isAlive = false;
    this.clock.stop();
    this.#world.network.hangUp(this);
    this.#world.log(`${this.name} dies`);
    this.#onDeath();
  }
}

/** A program that is started again when it dies. Its key, its room and its disk stay. */
export abstract class Program {
  process: Process | undefined;
  lives = 0;
  /** Whether its clock was ever set back. */
  wasSetBack = false;
  readonly name: string;
  readonly room: string;
  readonly signer: Signer;
  protected readonly world: World;
  protected readonly random: Random;
  readonly #seed: Uint8Array;
  readonly #offset: number;

  /** @param key whose key it has; default: its own */
  constructor(world: World, name: string, room: string, key: string = name) {
    this.world = world;
    this.name = name;
    this.room = room;
    this.random = new Random(world.setup.seed, name);
    this.#seed = new Random(world.setup.seed, `key of ${key}`).bytes(32);
    this.signer = Signer.fromSeed(this.#seed);
    this.#offset = EPOCH + this.random.between(-2, 2) * MINUTE;
  }

  get did(): string {
    return this.signer.did;
  }

  start(): void {
    const name = `${this.name}.${++this.lives}`;
    const offset = this.process?.clock.offset ?? this.#offset;
    const onDeath = (): void => {
      this.died();
      this.world.timeline.after(this.random.between(50, 20_000), () => this.start());
    };
    const onSetBack = (): void => {
      this.wasSetBack = true;
    };
    const process = new Process(this.world, name, this.name, offset, onDeath, onSetBack);
    this.process = process;
    this.world.log(`${name} starts`);
    this.main(process, Signer.fromSeed(this.#seed)).catch((cause) => {
      if (!process.isAlive) return;
      this.world.log(`${name} ends: ${cause}`);
      this.world.network.count('program-ended');
      process.kill();
    });
  }

  protected died(): void {}
  protected abstract main(process: Process, signer: Signer): Promise<void>;

  protected options(process: Process): Options {
    const { clock, fetch, random, name } = process;
    const onEvent = (event: Event): void => {
      if (!process.isAlive) return;
      const reason = (event['gap'] as { reason: string } | undefined)?.reason;
      this.world.network.count(`event ${event.kind}${reason && event.kind === 'gap' ? ` ${reason}` : ''}`);
      this.world.log(`${name} ${event.kind} ${event['reason'] ?? event['cause'] ?? ''}`);
    };
    return { base: 'http://sim.test', clock, fetch, random, onEvent };
  }
}
