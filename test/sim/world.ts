import { createHash } from 'node:crypto';
import { call, notify } from '../../src/call.ts';
import { type Handler, idempotent } from '../../src/dispatch.ts';
import { RpcError, TechnocoreError } from '../../src/errors.ts';
import type { Event } from '../../src/http.ts';
import { publishIdentity } from '../../src/identity.ts';
import type { Ledger } from '../../src/ledger.ts';
import { loggedLedger } from '../../src/ledger-file.ts';
import { createLocalService, type Limits, type LocalService } from '../../src/local.ts';
import { serve } from '../../src/serve.ts';
import { Signer } from '../../src/signer.ts';
import { type ClockBug, ProcessClock, Timeline } from './clock.ts';
import { Disk } from './disk.ts';
import { Hostile } from './hostile.ts';
import { type Host, Network, type NetworkBug, type Rates } from './network.ts';
import { Random } from './random.ts';

export type Profile = 'modern' | '0.7';
/** How the world may be broken on purpose, for one invariant each to notice. */
export type Bug =
  | NetworkBug
  | ClockBug
  | 'forgetful-ledger'
  | 'trusts-anybody'
  | 'handler-answers-another'
  | 'never-forgets';

export interface Setup {
  seed: number;
  profile: Profile;
  bug?: Bug;
  /** Keep the lines of the transcript, not only their hash. */
  keep?: boolean;
}

export const EPOCH: number = Date.UTC(2026, 0, 31, 12);
const MINUTE = 60_000;

/** What one seed makes of the world. */
export interface Plan {
  callees: number;
  callers: number;
  calls: number;
  /** How long calls are made and faults happen, ms. */
  activeMs: number;
  rates: Rates;
  crashes: number;
  jumps: number;
  floods: number;
  reaps: number;
  attacks: number;
  partitions: number;
  limits: Partial<Limits>;
  ephemeral: boolean;
  longPause: boolean;
}

export function planOf(seed: number): Plan {
  const random = new Random(seed, 'plan');
  // Some runs are nearly calm, so that rare orders of few events show; some are as bad as it gets.
  const level = random.pick([0.15, 0.5, 1]);
  const rate = (most: number): number => level * random.between(0.2, 1) * most;
  return {
    callees: 1 + random.int(2),
    callers: 2 + random.int(2),
    calls: 4 + random.int(8),
    activeMs: random.between(1.5, 4) * MINUTE,
    rates: {
      'lost-before': rate(0.08),
      'lost-after': rate(0.08),
      'late-request': rate(0.03),
      'late-answer': rate(0.03),
      duplicate: rate(0.06),
      slow: rate(0.1),
      cut: rate(0.06),
      'error-before': rate(0.125),
      'error-after': rate(0.125),
      throttled: rate(0.05),
      'upload-timeout': rate(0.03),
      portal: rate(0.03),
    },
    crashes: random.int(4),
    jumps: random.int(4),
    floods: random.int(4),
    reaps: random.int(3),
    attacks: random.int(12),
    partitions: random.int(3),
    limits: { roomRingBytes: random.pick([8_000, 20_000, 100_000]), wakeStepMs: random.pick([0, 0, 500]) },
    ephemeral: random.chance(0.2),
    longPause: random.chance(0.15),
  };
}

// --- processes ---------------------------------------------------------------------------------------------------

/** One life of a process: its clock, its network, its randomness. It may end at any moment. */
export class Machine implements Host {
  readonly clock: ProcessClock;
  readonly fetch: typeof fetch;
  readonly random: (bytes: number) => Uint8Array;
  isAlive = true;
  /** External calls left until it dies of one; undefined: it does not. */
  diesIn: number | undefined;
  /** Tokens left of the published budgets. */
  readonly budget: { read: number; write: number; at: number } = { read: 120, write: 30, at: 0 };
  readonly name: string;
  readonly address: string;
  readonly #world: World;
  readonly #onDeath: () => void;

  constructor(world: World, name: string, address: string, offset: number, onDeath: () => void) {
    this.#world = world;
    this.name = name;
    this.address = address;
    this.#onDeath = onDeath;
    this.clock = new ProcessClock(world.timeline, offset, world.clockBug);
    this.fetch = world.network.fetchOf(this);
    const random = new Random(world.setup.seed, `random of ${name}`);
    this.random = (n) => random.bytes(n);
    this.budget.at = world.timeline.now;
  }

  onSend(path?: string): void {
    if (this.diesIn !== undefined && --this.diesIn < 0) {
      this.#world.network.count('crash-at-call');
      this.kill();
    }
    if (path === undefined || !this.isAlive) return;
    this.#world.noteNonce(path);
    const kind = /^\/(r|kv)\/[^?]*\/(say|say-signed|set|set-signed)\//.test(path) ? 'write' : 'read';
    if (!/^\/(r|kv|rooms)\b/.test(path)) return;
    const { budget } = this;
    const passed = this.#world.timeline.now - budget.at;
    budget.at = this.#world.timeline.now;
    budget.read = Math.min(120, budget.read + (passed * 120) / MINUTE);
    budget.write = Math.min(30, budget.write + (passed * 30) / MINUTE);
    // What is sent before the first answer told of a budget is few.
    if (--budget[kind] < -8) this.#world.violate(`${this.name} sends above the ${kind} budget`);
  }

  /** The clock is set. */
  jump(ms: number): void {
    this.clock.offset += ms;
    // An account of time that was made to pass has a whole budget more.
    if (ms > 0) {
      this.budget.read += 120;
      this.budget.write += 30;
    }
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

/** A program that is started again when it dies. */
abstract class Role {
  machine: Machine | undefined;
  lives = 0;
  readonly name: string;
  readonly signer: Signer;
  readonly room: string;
  protected readonly world: World;
  protected readonly random: Random;
  readonly seed: Uint8Array;
  #offset: number;

  constructor(world: World, name: string, room: string) {
    this.world = world;
    this.name = name;
    this.room = room;
    this.random = new Random(world.setup.seed, name);
    this.seed = this.random.bytes(32);
    this.signer = Signer.fromSeed(this.seed);
    this.#offset = EPOCH + this.random.between(-2, 2) * MINUTE;
  }

  get did(): string {
    return this.signer.did;
  }

  boot(): void {
    const name = `${this.name}.${++this.lives}`;
    const machine = new Machine(this.world, name, this.name, this.machine?.clock.offset ?? this.#offset, () => {
      this.died(machine);
      this.world.timeline.after(this.random.between(50, 20_000), () => this.boot());
    });
    this.machine = machine;
    this.world.log(`${name} starts`);
    this.main(machine, Signer.fromSeed(this.seed)).catch((cause) => {
      if (!machine.isAlive) return;
      this.world.log(`${name} ends: ${cause}`);
      this.world.network.count('program-ended');
      machine.kill();
    });
  }

  protected died(_machine: Machine): void {}
  protected abstract main(machine: Machine, signer: Signer): Promise<void>;

  protected options(machine: Machine) {
    const { clock, fetch, random, name } = machine;
    const onEvent = (event: Event): void => {
      if (!machine.isAlive) return;
      this.world.network.count(`event ${event.kind}${event.kind === 'gap' ? ` ${(event['gap'] as any).reason}` : ''}`);
      this.world.log(`${name} ${event.kind} ${event['reason'] ?? event['cause'] ?? ''}`);
    };
    return { base: 'http://sim.test', clock, fetch, random, onEvent };
  }
}

export class Callee extends Role {
  readonly disk: Disk;
  readonly stop: AbortController = new AbortController();
  hasStopped = false;

  constructor(world: World, name: string, room: string) {
    super(world, name, room);
    this.disk = new Disk(world.timeline, this.random);
  }

  protected async main(machine: Machine, signer: Signer): Promise<void> {
    const { disk, world } = this;
    let ledger: Ledger = await loggedLedger('the ledger', disk.text, disk.log(machine), { windowMs: 10 * MINUTE });
    if (world.setup.bug === 'forgetful-ledger') ledger = forgetful(ledger);
    world.ledgers.add(ledger);
    const o = this.options(machine);
    await publishIdentity(signer, { mailbox: this.room }, o).catch((cause) => world.check(this.name, cause));
    await serve(this.room, signer, {
      ...o,
      methods: this.#methods(machine),
      ledger,
      cursor: disk.cursor(machine),
      deadlineMs: 12_000,
      concurrency: 4,
      signal: this.stop.signal,
    });
    this.hasStopped = true;
  }

  /** What a question is answered with: nobody else's answer and none to another question looks like it. */
  static answer(callee: string, from: string, n: number): string {
    return `right:${callee}:${from.slice(-8)}:${n}`;
  }

  #methods(machine: Machine): Map<string, Handler> {
    const { world, name, random } = this;
    const answering =
      (ms: () => number, may: boolean): Handler =>
      async (params, { from, id }) => {
        const n = numberOf(params);
        if (machine.isAlive) world.ran(this, from, id, n, may);
        const answer = Callee.answer(name, from, world.setup.bug === 'handler-answers-another' ? n - 1 : n);
        const wait = ms();
        if (wait > 0) await machine.clock.sleep(wait);
        return answer;
      };
    return new Map<string, Handler>([
      ['quick', answering(() => 0, false)],
      ['slow', answering(() => random.between(50, 14_000), false)],
      ['look', idempotent(answering(() => random.pick([0, 500, 4000]), true))],
      [
        'fail',
        (params, { from, id }) => {
          if (machine.isAlive) world.ran(this, from, id, numberOf(params), false);
          throw new RpcError(77, `failed ${numberOf(params)}`);
        },
      ],
      [
        'big',
        (params, { from, id }) => {
          if (machine.isAlive) world.ran(this, from, id, numberOf(params), false);
          return BIG;
        },
      ],
      [
        'said',
        (params, { from }) => {
          if (machine.isAlive) world.ran(this, from, undefined, numberOf(params), false);
        },
      ],
    ]);
  }
}

/** An answer that does not fit into one message. */
const BIG = 'x'.repeat(5000);

const numberOf = (params: unknown): number => {
  const n = Array.isArray(params) ? params[0] : (params as { n?: unknown } | undefined)?.n;
  return typeof n === 'number' ? n : -1;
};

/** {@link Bug} `forgetful-ledger`. */
function forgetful(ledger: Ledger): Ledger {
  return {
    admit: async (m, now) => {
      await ledger.admit(m, now);
      return { fresh: true, verdicts: m.requests.map(() => ({ kind: 'new' })) };
    },
    answer: (from, id, answer) => ledger.answer(from, id, answer),
    sent: (from, id) => ledger.sent(from, id),
    forget: (from, id) => ledger.forget(from, id),
  };
}

/** One thing a caller wants to know. */
interface Question {
  n: number;
  callee: Callee;
  method: 'quick' | 'slow' | 'look' | 'fail' | 'big' | 'said';
  /** Its own id, under which it asks again when no answer came. */
  id: string | undefined;
  retry: number;
  timeoutMs: number;
  byDid: boolean;
  positional: boolean;
  /** Times it is asked at most. */
  attempts: number;
  asked: number;
  /** Undefined until somebody who asked lived to see what came of it. */
  outcome: string | undefined;
  /** Asked by a process that died. */
  abandoned: boolean;
  /** Must be answered: nothing goes wrong any more. */
  final: boolean;
}

export class Caller extends Role {
  readonly questions: Question[] = [];
  /** Highest nonce used, by any life, and by those before this one. */
  highest = 0;
  highestBefore = 0;
  #publishes: boolean;
  readonly #asking: Set<Question> = new Set();

  constructor(world: World, name: string, room: string) {
    super(world, name, room);
    this.#publishes = this.random.chance(0.3);
    for (let i = 0; i < world.plan.calls; i++) this.questions.push(this.question());
  }

  question(final?: Callee): Question {
    const { world, random } = this;
    const method = final ? 'quick' : random.pick(['quick', 'quick', 'slow', 'look', 'fail', 'big', 'said'] as const);
    const n = world.number++;
    const own = !final && random.chance(0.4);
    return {
      n,
      callee: final ?? random.pick(world.callees),
      method,
      id: own ? `own-${n}` : undefined,
      retry: final || random.chance(0.5) ? 0 : 1 + random.int(3),
      timeoutMs: final ? 60_000 : random.pick([5000, 15_000, 30_000]),
      byDid: !final && random.chance(0.15),
      positional: !final && this.#publishes && random.chance(0.3),
      attempts: own && method !== 'said' ? 1 + random.int(3) : 1,
      asked: 0,
      outcome: undefined,
      abandoned: false,
      final: final !== undefined,
    };
  }

  protected override died(): void {
    for (const question of this.#asking) if (question.id === undefined) question.abandoned = true;
    this.#asking.clear();
    this.highestBefore = this.highest;
  }

  protected async main(machine: Machine, signer: Signer): Promise<void> {
    const o = this.options(machine);
    if (this.#publishes) {
      await publishIdentity(signer, { mailbox: this.room }, o).catch((cause) => this.world.check(this.name, cause));
    }
    const pause = (2 * this.world.plan.activeMs) / (this.questions.length + 1);
    for (;;) {
      const question = this.questions.find((q) => q.outcome === undefined && !q.abandoned && !this.#asking.has(q));
      if (!question) await machine.clock.sleep(1000);
      else {
        void this.#ask(question, machine, signer);
        if (!question.final) await machine.clock.sleep(this.random.between(0, pause));
      }
    }
  }

  async #ask(question: Question, machine: Machine, signer: Signer): Promise<void> {
    const { world } = this;
    const { n, callee, method, id, retry, timeoutMs } = question;
    this.#asking.add(question);
    question.asked++;
    const begun = world.timeline.now;
    world.log(`${machine.name} asks ${n} ${method} of ${callee.name}`);
    const to = question.byDid ? callee.did : callee.room;
    const params = question.positional ? [n] : { n };
    const o = this.options(machine);
    let outcome: string;
    try {
      if (method === 'said') {
        await notify(to, method, params, signer, o);
        outcome = 'said';
      } else {
        const peer = world.setup.bug === 'trusts-anybody' ? undefined : callee.did;
        const result = await call(to, method, params, signer, {
          ...o,
          replyTo: this.room,
          timeoutMs,
          retry,
          ...(id !== undefined && { id }),
          ...(peer !== undefined && { peer }),
        });
        outcome = 'right';
        world.network.count('answered');
        const wanted = method === 'big' ? BIG : method === 'fail' ? undefined : Callee.answer(callee.name, this.did, n);
        if (result !== wanted) world.violate(`question ${n} got the answer ${JSON.stringify(result).slice(0, 200)}`);
      }
    } catch (cause) {
      if (!machine.isAlive) return;
      outcome = this.#check(cause, question);
      if (question.final && !world.isExempt(this)) world.violate(`question ${n} was asked in peace and got ${cause}`);
    }
    if (!machine.isAlive) return;
    const took = world.timeline.now - begun;
    if (took > (method === 'said' ? 3 * MINUTE : timeoutMs) + 2000) {
      world.violate(`question ${n} took ${Math.round(took)} ms, and ${timeoutMs} were allowed`);
    }
    world.log(`${machine.name} got ${n}: ${outcome}`);
    this.#asking.delete(question);
    // Whoever asked under an id of his own asks again.
    if (outcome !== 'right' && outcome !== 'said' && question.asked < question.attempts) return;
    question.outcome = outcome;
    if (question.asked === 1) world.outcomes.set(n, outcome);
  }

  /** An error has to be one of ours, and to say something that can be. */
  #check(cause: unknown, { method, n, byDid }: Question): string {
    const { world } = this;
    let code = world.check(this.name, cause);
    if (cause instanceof RpcError) {
      const { code: number, message } = cause.rpc;
      code = `rpc ${number}`;
      const isRight =
        (method === 'fail' && number === 77 && message === `failed ${n}`) ||
        (method === 'big' &&
          number === -32603 &&
          ((cause.rpc.data as { chars?: number } | undefined)?.chars ?? 0) > 5000);
      if (isRight) return 'right';
      if (![1001, 1002, 1003].includes(number)) world.violate(`question ${n} got the error ${number} ${message}`);
    } else if (!ERRORS.has(code) && !(byDid && code === 'bad_name'))
      world.violate(`question ${n} got an error of code ${code}: ${cause}`);
    world.network.count(`error ${code}`);
    return code;
  }

  /** What was asked and never came to an end, by those who live. */
  get open(): Question[] {
    return [...this.#asking];
  }
}

/** Errors that may end a call in this world. */
const ERRORS = new Set([
  'call_timeout',
  'ring_gap',
  'may_have_landed',
  'unavailable',
  'rate_limited',
  'room_budget',
  'duplicate_text',
  'stale_nonce',
  'no_mailbox',
  'no_reply_address',
  'spill_lost',
]);
/** Those that say that nothing was executed. */
const UNSENT = new Set([
  'unavailable',
  'rate_limited',
  'room_budget',
  'duplicate_text',
  'stale_nonce',
  'no_mailbox',
  'no_reply_address',
  'rpc 1002',
]);

// --- the world ---------------------------------------------------------------------------------------------------

export interface Outcome {
  seed: number;
  profile: Profile;
  /** Of the transcript: two runs of one seed have the same. */
  hash: string;
  lines: string[];
  violations: string[];
  /** Faults, events and outcomes by kind. */
  counts: Record<string, number>;
}

export class World {
  readonly setup: Setup;
  readonly plan: Plan;
  readonly timeline: Timeline = new Timeline();
  readonly service: LocalService;
  readonly serviceClock: ProcessClock;
  readonly network: Network;
  readonly random: Random;
  readonly callees: Callee[] = [];
  readonly callers: Caller[] = [];
  readonly hostile: Hostile;
  readonly ledgers: Set<Ledger> = new Set();
  readonly violations: string[] = [];
  /** How each question that was asked once ended. */
  readonly outcomes: Map<number, string> = new Map();
  number = 1;
  readonly #runs: Map<string, number> = new Map();
  readonly #ranNumbers: Set<string> = new Set();
  readonly #hash = createHash('sha256');
  #text = '';
  readonly #lines: string[] = [];

  constructor(setup: Setup) {
    this.setup = setup;
    this.plan = planOf(setup.seed);
    this.random = new Random(setup.seed, 'world');
    this.serviceClock = new ProcessClock(this.timeline, EPOCH);
    this.service = createLocalService({
      profile: setup.profile,
      clock: this.serviceClock,
      limits: this.plan.limits,
      random: (n) => this.random.bytes(n),
    });
    const networkBug = NETWORK_BUGS.has(setup.bug as string) ? (setup.bug as NetworkBug) : undefined;
    const log = (line: string): void => this.log(line);
    this.network = new Network(this.timeline, this.service, new Random(setup.seed, 'network'), log, networkBug);
    const kind = this.plan.ephemeral ? 'e-' : '';
    for (let i = 0; i < this.plan.callees; i++) {
      this.callees.push(new Callee(this, `callee${i}`, `mb-${kind}p-callee${i}`));
    }
    for (let i = 0; i < this.plan.callers; i++) {
      this.callers.push(new Caller(this, `caller${i}`, `mb-${kind}p-caller${i}`));
    }
    this.hostile = new Hostile(this);
    this.network.resign = (path) => this.#signAgain(path);
  }

  get clockBug(): ClockBug | undefined {
    return CLOCK_BUGS.has(this.setup.bug as string) ? (this.setup.bug as ClockBug) : undefined;
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

  violate(what: string): void {
    this.violations.push(what);
    this.log(`VIOLATION ${what}`);
  }

  /** Everything that is thrown is an error of ours. */
  check(name: string, cause: unknown): string {
    if (TechnocoreError.is(cause)) return cause.code;
    this.violate(`${name}: not an error of the library: ${(cause as Error)?.stack ?? cause}`);
    return 'untyped';
  }

  /** A handler was started. */
  ran(callee: Callee, from: string, id: unknown, n: number, mayAgain: boolean): void {
    this.network.count('handled');
    this.log(`${callee.name} runs ${n} for ${from.slice(-8)}`);
    const names = n < 0 ? [] : [`question ${n} of ${from.slice(-8)}`];
    if (id !== undefined) names.push(`id ${JSON.stringify(id)} of ${from.slice(-8)}`);
    for (const name of names) {
      const key = `${callee.name} ${name}`;
      const times = (this.#runs.get(key) ?? 0) + 1;
      this.#runs.set(key, times);
      if (times > 1 && !mayAgain) this.violate(`${callee.name} ran ${times} times for ${name}`);
    }
    this.#ranNumbers.add(`${from} ${n}`);
  }

  /**
   * Whether a caller cannot be heard for a reason of its own: set back, it signs with nonces that were used before; or its
   * line was pushed out of a ring that is smaller than any that the service has.
   */
  isExempt(caller: Caller): boolean {
    if (caller.lives > 1 && caller.machine!.clock.now() < caller.highestBefore + 10 * MINUTE) return true;
    return this.hostile.flooded.has(caller.room);
  }

  noteNonce(path: string): void {
    const match = /\/say-signed\/(did:key:\w+)\/[\w-]+\/(\d+)\//.exec(path);
    if (!match) return;
    const caller = this.callers.find((one) => one.did === match[1]);
    if (caller) caller.highest = Math.max(caller.highest, Number(match[2]));
  }

  /** {@link Bug} `signs-again`: what a client does that takes every failure for a write that never arrived. */
  #signAgain(path: string): string | undefined {
    const match = /^\/r\/([\w-]+)\/say-signed\/(did:key:\w+)\/[\w-]+\/(\d+)\/([^?]*)/.exec(path);
    const role = match && [...this.callers, ...this.callees].find(({ did }) => did === match[2]);
    if (!role) return undefined;
    const [, room, did, nonce, text] = match as unknown as [string, string, string, string, string];
    const again = String(BigInt(nonce) + 1n);
    const { sig } = role.signer.signMessage(room, again, decodeURIComponent(text));
    return `/r/${room}/say-signed/${did}/${sig}/${again}/${text}?format=json`;
  }

  // --- what happens ---------------------------------------------------------------------------------------------

  #schedule(): void {
    const { plan, random, timeline, network } = this;
    const sometime = (times: number, run: () => void): void => {
      for (let i = 0; i < times; i++) timeline.after(random.between(0.05, 1) * plan.activeMs, run);
    };
    const roles: Role[] = [...this.callees, ...this.callers];
    const someone = (): Role => random.pick(roles);
    sometime(plan.crashes, () => {
      const { machine } = someone();
      if (!machine?.isAlive) return;
      if (random.chance(0.5)) machine.diesIn = random.int(12);
      else {
        network.count('crash');
        machine.kill();
      }
    });
    sometime(plan.jumps, () => {
      const ms = random.pick([1, -1]) * random.pick([3000, 90_000, 15 * MINUTE, 120 * MINUTE]) * random.float();
      network.count(ms > 0 ? 'clock-forward' : 'clock-back');
      if (random.chance(0.2)) {
        this.log(`the service's clock is set by ${ms.toFixed(0)}`);
        this.serviceClock.offset += ms;
        return;
      }
      const { machine } = someone();
      this.log(`${machine?.name}'s clock is set by ${ms.toFixed(0)}`);
      machine?.jump(ms);
    });
    sometime(plan.partitions, () => {
      const { machine } = someone();
      if (machine) network.cutOff(machine, random.between(1000, 40_000));
    });
    sometime(plan.reaps, () => {
      const { room } = someone();
      this.log(`${room} is reaped`);
      network.count('reaped');
      this.service.age(room, 8 * 24 * 60 * MINUTE);
      void this.hostile.say('reaper', 'time passes');
    });
    sometime(plan.floods, () => this.hostile.flood(someone().room));
    sometime(plan.attacks, () => void this.hostile.attack());
  }

  async run(): Promise<Outcome> {
    const { plan, timeline, network } = this;
    for (const callee of this.callees) callee.boot();
    await timeline.run(3000);
    network.rates = plan.rates;
    for (const caller of this.callers) caller.boot();
    this.#schedule();
    await timeline.run(timeline.now + plan.activeMs);
    if (plan.longPause) await timeline.run(timeline.now + 20 * MINUTE);
    // Whatever still goes wrong, every question comes to an end.
    const isOver = (): boolean =>
      this.callers.every((caller) => caller.questions.every((q) => q.outcome !== undefined || q.abandoned));
    await timeline.run(timeline.now + 10 * MINUTE, isOver);
    if (!isOver()) {
      for (const { questions } of this.callers) {
        for (const { n, outcome, abandoned } of questions) {
          if (outcome === undefined && !abandoned) this.violate(`question ${n} was never answered`);
        }
      }
    }
    await this.#peace();
    await this.#end();
    if (this.#text !== '') this.#hash.update(this.#text);
    const { seed, profile } = this.setup;
    const counts = { ...network.counts, torn: this.callees.reduce((sum, { disk }) => sum + disk.torn, 0) };
    return { seed, profile, hash: this.#hash.digest('hex'), lines: this.#lines, violations: this.violations, counts };
  }

  /** When nothing goes wrong any more, everybody hears everybody. */
  async #peace(): Promise<void> {
    const { timeline, network } = this;
    network.rates = {};
    for (const role of [...this.callers, ...this.callees]) {
      if (role.machine) role.machine.diesIn = undefined;
    }
    // Late requests arrive, what is down comes up, cursors of rooms that are gone are noticed.
    await timeline.run(timeline.now + 3 * MINUTE);
    for (const caller of this.callers)
      for (const callee of this.callees) caller.questions.push(caller.question(callee));
    const isOver = (): boolean =>
      this.callers.every(({ questions }) => questions.every((q) => q.outcome !== undefined || q.abandoned));
    await timeline.run(timeline.now + 5 * MINUTE, isOver);
    if (!isOver()) this.violate('a question that was asked in peace did not end');
  }

  /** Everybody stops; nothing stays behind. */
  async #end(): Promise<void> {
    const { timeline } = this;
    for (const { stop } of this.callees) stop.abort();
    await timeline.run(timeline.now + 2 * MINUTE, () => this.callees.every(({ hasStopped }) => hasStopped));
    for (const { name, hasStopped } of this.callees) if (!hasStopped) this.violate(`${name} does not stop`);
    await timeline.run(timeline.now + 200);
    for (const { machine } of [...this.callees]) {
      if (machine!.clock.sleepers > 0) this.violate(`${machine!.name} leaves ${machine!.clock.sleepers} timers`);
    }
    for (const { machine } of this.callers) {
      // Each sleeps in its own loop.
      if (machine!.clock.sleepers > 1) this.violate(`${machine!.name} leaves ${machine!.clock.sleepers - 1} timers`);
      machine!.kill();
    }
    const { parked, timers } = this.service.stats;
    if (parked > 0 || timers > 0) this.violate(`the service still holds ${parked} reads and ${timers} timers`);
    this.#honest();
  }

  /** An error that says that nothing was done told the truth. */
  #honest(): void {
    for (const { questions, did } of this.callers) {
      for (const { n, asked } of questions) {
        const outcome = this.outcomes.get(n);
        if (asked === 1 && outcome !== undefined && UNSENT.has(outcome) && this.#ranNumbers.has(`${did} ${n}`)) {
          this.violate(`question ${n} ended with ${outcome}, and was executed`);
        }
      }
    }
  }
}

const NETWORK_BUGS = new Set<string>(['alters-answers', 'executes-throttled', 'keeps-hangups', 'signs-again']);
const CLOCK_BUGS = new Set<string>(['keeps-aborted-timers', 'forgets-long-timers', 'never-sleeps']);

/** Lives through one seed. */
export function simulate(setup: Setup): Promise<Outcome> {
  return new World(setup).run();
}
