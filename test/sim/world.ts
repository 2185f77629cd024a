import { createHash } from 'node:crypto';
import { createLocalService, type LocalService } from '../../src/local.ts';
import { Callee } from './callee.ts';
import { Caller } from './caller.ts';
import { ProcessClock, Timeline } from './clock.ts';
import { Hostile } from './hostile.ts';
import { Invariants } from './invariants.ts';
import { Network } from './network.ts';
import { EPOCH, MINUTE, type Plan, type Profile, planOf, type Setup } from './plan.ts';
import type { Process, Program } from './process.ts';
import { Random } from './random.ts';

export interface Outcome {
  seed: number;
  profile: Profile;
  /** Of the transcript: two runs of one seed have the same. */
  hash: string;
  /** Empty unless they were to be kept. */
  lines: string[];
  violations: string[];
  /** Faults, events and outcomes by kind. */
  counts: Record<string, number>;
}

/** Callers and servers on a bad network, among strangers. What happens depends on the seed alone. */
export class World {
  readonly setup: Setup;
  readonly plan: Plan;
  readonly timeline: Timeline = new Timeline();
  service: LocalService;
  readonly network: Network;
  readonly invariants: Invariants;
  readonly callees: Callee[] = [];
  readonly callers: Caller[] = [];
  readonly hostile: Hostile;
  /** The rooms in which callers and servers met. */
  readonly sealedRooms: Set<string> = new Set();
  /** Of the next question. */
  nextNumber = 1;
  readonly #serviceClock: ProcessClock;
  readonly #random: Random;
  readonly #hash = createHash('sha256');
  #text = '';
  readonly #lines: string[] = [];

  constructor(setup: Setup) {
    const { seed, bug } = setup;
    this.setup = setup;
    this.plan = planOf(seed);
    this.invariants = new Invariants(this);
    this.#random = new Random(seed, 'world');
    this.#serviceClock = new ProcessClock(this.timeline, EPOCH);
    this.service = this.#begun();
    // Whichever there is at the time of a request.
    const client =
      (address: string): typeof fetch =>
      (url, init) =>
        this.service.client(address)(url, init);
    this.network = new Network(this.timeline, { client }, new Random(seed, 'network'), (line) => this.log(line), bug);
    this.network.resign = (path) => this.#signedAgain(path);
    const kind = this.plan.ephemeral ? 'e-' : '';
    const { callees, callers } = this.plan;
    const servers = this.plan.leaseMs === undefined ? [''] : ['a', 'b'];
    for (let i = 0; i < callees; i++) {
      const label = `callee${i}`;
      for (const which of servers) this.callees.push(new Callee(this, label + which, `mb-${kind}p-${label}`, label));
    }
    for (let i = 0; i < callers; i++) this.callers.push(new Caller(this, `caller${i}`, `mb-${kind}p-caller${i}`));
    this.hostile = new Hostile(this);
  }

  #begun(): LocalService {
    return createLocalService({
      profile: this.setup.profile,
      clock: this.#serviceClock,
      limits: this.plan.limits,
      random: (n) => this.#random.bytes(n),
    });
  }

  log(line: string): void {
    const text = `${this.timeline.now.toFixed(2)} ${line}\n`;
    this.#text += text;
    if (this.#text.length > 1 << 16) {
      this.#hash.update(this.#text);
      this.#text = '';
    }
    if (this.setup.keep) this.#lines.push(text);
  }

  /**
   * Whether a caller cannot be heard for a reason of its own: set back, it signs with nonces that were used before; or its
   * line was pushed out of a ring that is smaller than any that the service has.
   */
  isExempt(caller: Caller): boolean {
    const isBehind = caller.lives > 1 && caller.process!.clock.now() < caller.highestBefore + 10 * MINUTE;
    return isBehind || this.hostile.flooded.has(caller.room);
  }

  /** What a client does that takes every failure for a write that never arrived: the bug `signs-again`. */
  #signedAgain(path: string): string | undefined {
    const match = /^\/r\/([\w-]+)\/say-signed\/(did:key:\w+)\/[\w-]+\/(\d+)\/([^?]*)/.exec(path);
    const program = match && [...this.callers, ...this.callees].find(({ did }) => did === match[2]);
    if (!program) return undefined;
    const [, room, did, nonce, text] = match as unknown as [string, string, string, string, string];
    const again = String(BigInt(nonce) + 1n);
    const { sig } = program.signer.signMessage(room, again, decodeURIComponent(text));
    return `/r/${room}/say-signed/${did}/${sig}/${again}/${text}?format=json`;
  }

  // --- what goes wrong --------------------------------------------------------------------------------------------

  #schedule(): void {
    const { plan, timeline, network, hostile } = this;
    const random = this.#random;
    const sometime = (times: number, run: () => void): void => {
      for (let i = 0; i < times; i++) timeline.after(random.between(0.05, 1) * plan.activeMs, run);
    };
    const programs: Program[] = [...this.callees, ...this.callers];
    const someone = (): Program => random.pick(programs);
    sometime(plan.crashes, () => this.#crash(someone().process!));
    sometime(plan.jumps, () => this.#setClock(random.chance(0.2) ? undefined : someone().process!));
    sometime(plan.partitions, () => network.cutOff(someone().process!, random.between(1000, 40_000)));
    const reapable = (): string => (plan.sealed ? random.pick([someone().room, ...this.sealedRooms]) : someone().room);
    sometime(plan.reaps, () => this.#reap(reapable()));
    const restarting = new Random(this.setup.seed, 'restarting');
    for (let i = 0; i < plan.restarts; i++) {
      timeline.after(restarting.between(0.05, 1) * plan.activeMs, () => this.#restart());
    }
    sometime(plan.floods, () => hostile.flood(someone().room));
    sometime(plan.attacks, () => void hostile.attack());
  }

  #crash(process: Process): void {
    if (!process.isAlive) return;
    if (this.#random.chance(0.5)) process.diesIn = this.#random.int(12);
    else {
      this.network.count('crash');
      process.kill();
    }
  }

  /** @param process undefined: the service */
  #setClock(process: Process | undefined): void {
    const most = this.#random.pick([3000, 90_000, 15 * MINUTE, 120 * MINUTE]);
    const ms = this.#random.pick([1, -1]) * most * this.#random.float();
    this.network.count(ms > 0 ? 'clock-forward' : 'clock-back');
    this.log(`the clock of ${process?.name ?? 'the service'} is set by ${ms.toFixed(0)} ms`);
    if (process) process.jump(ms);
    else this.#serviceClock.offset += ms;
  }

  #reap(room: string): void {
    this.network.count('reaped');
    this.log(`${room} is reaped`);
    this.service.age(room, 8 * 24 * 60 * MINUTE);
    // The reaper comes with the next write, wherever that is.
    void this.hostile.say('reaper', 'time passes');
  }

  #restart(): void {
    this.network.count('restarted');
    this.log('the service starts anew, and has forgotten everything');
    for (const { process } of [...this.callees, ...this.callers]) this.network.hangUp(process!);
    this.service = this.#begun();
  }

  // --- from the beginning to the end ------------------------------------------------------------------------------

  /** Lets time pass. With a bug on board, the first violation is the end of it. */
  async #pass(ms: number, isOver: () => boolean = () => false): Promise<void> {
    const { timeline, invariants, setup } = this;
    const hasFailed = (): boolean => setup.bug !== undefined && invariants.violations.length > 0;
    await timeline.run(timeline.now + ms, () => isOver() || hasFailed());
  }

  async run(): Promise<Outcome> {
    const { plan, network, invariants } = this;
    const isDone = (): boolean => this.callers.every((caller) => caller.isDone);
    if (plan.leaseMs !== undefined) network.count('claims');
    if (plan.sealed) network.count('sealed');
    if (plan.mcp) network.count('mcp');
    if (plan.a2a) network.count('a2a');
    for (const callee of this.callees) callee.start();
    await this.#pass(3000);

    network.rates = plan.rates;
    for (const caller of this.callers) caller.start();
    this.#schedule();
    await this.#pass(plan.activeMs);
    if (plan.longPause) await this.#pass(20 * MINUTE);
    // Whatever still goes wrong, every question comes to an end.
    await this.#pass(10 * MINUTE, isDone);
    invariants.everythingEnded();

    // Then nothing goes wrong any more: late requests arrive, who is down comes up, and everybody hears everybody.
    network.rates = {};
    for (const { process } of [...this.callers, ...this.callees]) process!.diesIn = undefined;
    await this.#pass(3 * MINUTE);
    const mailboxes = new Map(this.callees.map((callee) => [callee.label, callee]));
    for (const caller of this.callers) for (const callee of mailboxes.values()) caller.askInPeace(callee);
    await this.#pass(5 * MINUTE, isDone);
    invariants.everythingEnded();

    await this.#announce();
    for (const { deaf } of this.callers) deaf.abort();
    for (const { stop } of this.callees) stop.abort();
    await this.#pass(2 * MINUTE, () => this.callees.every(({ hasStopped }) => hasStopped));
    await this.#pass(200);
    invariants.nothingIsLeft();
    invariants.everybodyWasHonest();
    for (const { process } of this.callers) process!.kill();
    return this.#outcome();
  }

  /** Servers say that their tools have changed, and who listens hears of it. */
  async #announce(): Promise<void> {
    const { timeline, invariants } = this;
    const since = timeline.now;
    const deafTo = (caller: Caller): Callee[] => [...caller.heard].flatMap(([one, at]) => (at > since ? [] : [one]));
    if (this.callers.every(({ heard }) => heard.size === 0)) return;
    for (const callee of this.callees) callee.change();
    await this.#pass(5 * MINUTE, () => this.callers.every((caller) => deafTo(caller).length === 0));
    for (const caller of this.callers) {
      for (const callee of this.isExempt(caller) ? [] : deafTo(caller))
        invariants.violate(`${caller.name} heard nothing of a change of ${callee.name}`);
    }
  }

  #outcome(): Outcome {
    if (this.#text !== '') this.#hash.update(this.#text);
    const { seed, profile } = this.setup;
    const torn = this.callees.reduce((sum, { disk }) => sum + disk.torn, 0);
    return {
      seed,
      profile,
      hash: this.#hash.digest('hex'),
      lines: this.#lines,
      violations: this.invariants.violations,
      counts: { ...this.network.counts, torn },
    };
  }
}

/** Lives through one seed. */
export function simulate(setup: Setup): Promise<Outcome> {
  return new World(setup).run();
}
