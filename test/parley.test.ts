import { inspect } from 'node:util';
import { describe, expect, test } from 'vitest';
import { concat, fromHex, toBase64url, toHex, utf8 } from '../src/bytes.ts';
import { randomBytes, sha256 } from '../src/crypto.ts';
import { Unavailable } from '../src/errors.ts';
import { systemClock } from '../src/http.ts';
import { createLocalService } from '../src/local.ts';
import {
  type Frame,
  fingerprint,
  Handshake,
  HttpRelay,
  Identity,
  Invite,
  type Membership,
  marshalHandshakePayload,
  marshalMessage,
  type Peer,
  type Received,
  type Relay,
  Secret,
  Session,
  type SessionOptions,
  type Transport,
  unmarshalHandshakePayload,
  unmarshalMessage,
} from '../src/parley.ts';
import core from './vectors/parley-core.json' with { type: 'json' };
import recorded from './vectors/parley-session.json' with { type: 'json' };

const hex = (text: string): Uint8Array => fromHex(text)!;
const code = (name: string, more: object = {}) => expect.objectContaining({ code: name, ...more });
const KINDS: Record<number, string> = { 1: 'say', 2: 'close' };

describe('core vectors', () => {
  for (const v of core.identities) {
    test(`identity: ${v.name}`, () => {
      if (!v.ok) return expect(() => Identity.fromSeed(hex(v.seed_hex))).toThrow(code('bad_key'));
      for (const id of [Identity.fromSeed(hex(v.seed_hex)), Identity.fromPrivateKey(hex(v.private_hex!))]) {
        expect(toHex(id.privateKey())).toBe(v.private_hex);
        expect(toHex(id.publicKey)).toBe(v.public_hex);
        expect(toHex(id.id)).toBe(v.node_id_hex);
        expect(id.fingerprint()).toBe(v.fingerprint);
      }
    });
  }
  test('a text is no seed: as bytes, all texts of one length are the same', () => {
    for (const text of ['correct horse', '', '123', { length: 3 }, undefined] as any[])
      expect(() => Identity.fromSeed(text)).toThrow(code('bad_key'));
    const o = { psk: Secret.generate().psk(), identity: Identity.generate(), prologue: 'text' as any };
    expect(() => Handshake.responder(o)).toThrow(code('bad_key'));
  });
  for (const v of core.node_ids) {
    test(`node id: ${v.name}`, () => {
      if (v.public_hex !== null) expect(toHex(sha256(hex(v.public_hex)))).toBe(v.node_id_hex);
      expect(fingerprint(hex(v.node_id_hex))).toBe(v.fingerprint);
    });
  }
  for (const v of core.secrets) {
    test(`secret: ${v.name}`, () => {
      const secret = Secret.from(hex(v.secret_hex));
      expect(toHex(secret.psk())).toBe(v.psk_hex);
      expect(secret.joinToken()).toBe(v.join_token);
    });
  }
  for (const v of core.channel_ids)
    test(`channel: ${v.name}`, () => expect(toBase64url(hex(v.channel_hex))).toBe(v.text));
  for (const v of core.invite_build) {
    test(`invite: ${v.name}`, () => {
      const secret = Secret.from(hex(v.secret_hex));
      const invite = new Invite({ relay: v.relay, channel: hex(v.channel_hex), key: hex(v.key_hex), secret });
      expect(invite.url()).toBe(v.url);
      const again = Invite.parse(v.url);
      expect([again.url(), again.relay]).toEqual([v.url, v.relay]);
      expect(v.parses_back_equal).toBe(true);
    });
  }
  for (const v of core.invite_parse) {
    test(`link: ${v.name}`, () => {
      if (!v.ok) return expect(() => Invite.parse(v.url)).toThrow(code('bad_invite', { reason: v.error_class }));
      const { relay, channel, key, secret } = Invite.parse(v.url);
      expect([relay, toHex(channel), toHex(key), toHex(secret.bytes())]).toEqual([
        v.relay,
        v.channel_hex,
        v.key_hex,
        v.secret_hex,
      ]);
    });
  }
  for (const v of core.message_marshal) {
    test(`message out: ${v.name}`, () => {
      const message = { kind: KINDS[v.kind] as 'say', text: v.text };
      if (v.ok) expect(toHex(marshalMessage(message))).toBe(v.bytes_hex);
      else expect(() => marshalMessage(message)).toThrow(code('bad_frame'));
    });
  }
  for (const v of core.message_unmarshal) {
    test(`message in: ${v.name}`, () => {
      if (v.ok) expect(unmarshalMessage(hex(v.bytes_hex))).toEqual({ kind: KINDS[v.kind!], text: v.text });
      else expect(() => unmarshalMessage(hex(v.bytes_hex))).toThrow(code('decrypt', { layer: 'layout' }));
    });
  }
  for (const v of core.payload_encode) {
    test(`payload out: ${v.name}`, () => {
      const payload = { topic: v.topic, capabilities: v.push ? { push: true } : {} };
      expect(toHex(marshalHandshakePayload(payload))).toBe(v.json_hex);
    });
  }
  for (const v of core.payload_decode) {
    test(`payload in: ${v.name}`, () => {
      const payload = unmarshalHandshakePayload(hex(v.payload_hex));
      expect(payload !== undefined).toBe(v.valid);
      expect(payload?.topic ?? null).toBe(v.learned_topic);
    });
  }
  for (const v of core.http_bodies) {
    test(`request: ${v.name}`, async () => {
      const seen: string[] = [];
      const relay = new HttpRelay('https://relay.example/', {
        fetch: async (url, init) => {
          const headers = new Headers(init!.headers);
          const { pathname, search } = new URL(String(url));
          seen.push(
            init!.method!,
            pathname + search,
            headers.get('authorization') ?? '',
            headers.get('content-type') ?? '',
          );
          seen.push(String(init!.body ?? ''));
          return Response.json({ token: 'tok', members: 1, frames: [] });
        },
      });
      const input = v.input as Record<string, string | number>;
      const channel = hex((input['channel_hex'] as string) ?? core.http_bodies[0]!.input.channel_hex);
      const seat = { channel, token: 'tok' };
      const joinToken = (): string => Secret.from(hex(input['secret_hex'] as string)).joinToken();
      if (v.name === 'open') await relay.open(channel, joinToken());
      else if (v.name === 'join') await relay.join(channel, joinToken());
      else if (v.name === 'members') await relay.members(seat);
      else if ('after' in input) await relay.recv(seat, BigInt(input['after']!), input['wait_ms'] as number);
      else {
        const payload = hex(input['payload_hex'] as string);
        await relay.send(seat, { channel, seq: BigInt(input['seq']!), type: input['type'] as number, payload });
      }
      expect(seen).toEqual([v.method, v.target, v.authorization, v.content_type, v.body]);
    });
  }
  for (const v of core.recv_bodies) {
    test(`answer: ${v.name}`, async () => {
      const relay = new HttpRelay('https://relay.example', { fetch: async () => new Response(v.body) });
      const read = relay.recv({ channel: new Uint8Array(16), token: 't' }, 0n, 0);
      if (!v.ok) return expect(read).rejects.toThrow(code('unavailable'));
      const frames = (await read).map((f) => ({ seq: `${f.seq}`, type: f.type, payload_hex: toHex(f.payload) }));
      expect(frames).toEqual(v.frames);
    });
  }
  test('are 142', () => {
    const { about, ...lists } = core;
    expect(about).toBeDefined();
    expect(Object.values(lists).reduce((sum, list) => sum + list.length, 0)).toBe(142);
  });
});

// --- recorded sessions ------------------------------------------------------------------------------------------

interface Sent {
  seq: string;
  type: number;
  payload_hex?: string;
  payload_length?: number;
  payload_sha256_hex?: string;
}
interface Step {
  op: string;
  end?: string;
  seat_of?: string;
  topic?: string;
  invite?: string;
  text?: string;
  text_is?: string;
  outcome?: string;
  wait_ms?: number;
  random_hex?: string[];
  ok?: boolean;
  error_class?: string;
  messages?: { kind: string; text?: string; text_is?: string; from_hex: string }[];
  sent?: Sent[];
  peer_after?: { node_id_hex: string; fingerprint: string; topic: string; state: string; present: boolean };
  takes_ms?: { at_least: number; at_most: number };
  next_sends?: string[];
  on?: boolean;
  seq?: string;
  type?: number;
  payload_hex?: string;
  plaintext_hex?: string;
  ciphertext_hex?: string;
  message1_hex?: string;
  message2_hex?: string;
}
interface Scenario {
  name: string;
  sent_is_binding: boolean;
  reference_defect?: string;
  ends: { end: string; seed?: string; same_identity_as?: string }[];
  steps: Step[];
}

// A relay that can be stopped, and restarted with nothing in it.
function restartable() {
  let service = createLocalService();
  let isUp = true;
  const down: typeof fetch = () => Promise.reject(new TypeError('fetch failed'));
  return {
    fetch: ((...args: Parameters<typeof fetch>) => (isUp ? service.fetch : down)(...args)) as typeof fetch,
    stop: () => {
      isUp = false;
    },
    start: () => {
      isUp = true;
      service = createLocalService();
    },
  };
}

// A relay client that does what a bad network and a bad relay do.
class Faulty implements Relay {
  readonly host = 'relay.example';
  readonly inner: HttpRelay;
  seat: Membership | undefined;
  sent: Frame[] = [];
  faults: string[] = [];
  isRewinding = false;

  constructor(fetch: typeof globalThis.fetch) {
    this.inner = new HttpRelay('http://relay', { fetch });
  }
  async open(...args: Parameters<Relay['open']>): Promise<Membership> {
    return (this.seat = await this.inner.open(...args));
  }
  async join(...args: Parameters<Relay['join']>): Promise<Membership> {
    return (this.seat = await this.inner.join(...args));
  }
  async send(...args: Parameters<Relay['send']>): Promise<void> {
    this.sent.push(args[1]);
    const fault = this.faults.shift();
    if (fault === undefined || fault === 'answer lost') await this.inner.send(...args);
    if (fault === 'request lost' || fault === 'answer lost') throw new Unavailable('connection lost');
  }
  recv(seat: Membership, after: bigint, waitMs: number, o?: { signal?: AbortSignal }): Promise<Frame[]> {
    return this.inner.recv(seat, this.isRewinding ? 0n : after, waitMs, o);
  }
  members(...args: Parameters<Relay['members']>): Promise<number> {
    return this.inner.members(...args);
  }
}

class End {
  readonly identity: Identity;
  readonly relay: Faulty;
  readonly session: Session;
  readonly fetch: typeof globalThis.fetch;
  random: Uint8Array[] = [];
  events: { kind: string }[] = [];
  raw: { handshake: Handshake; transport?: Transport } | undefined;

  constructor(identity: Identity, fetch: typeof globalThis.fetch, o: SessionOptions = {}) {
    this.identity = identity;
    this.fetch = fetch;
    this.relay = new Faulty(fetch);
    const random = (n: number): Uint8Array => this.random.shift() ?? randomBytes(n);
    this.session = new Session(identity, this.relay, { random, onEvent: (e) => this.events.push(e), ...o });
  }
}

const textOf = (m: { text?: string; text_is?: string }): string => {
  if (m.text !== undefined) return m.text;
  const [, word, times] = /^"(.*)" repeated (\d+) times$/.exec(m.text_is!)!;
  return word!.repeat(Number(times));
};

const ERRORS: Record<string, object> = {
  'relay 401': { code: 'relay_refused', reason: 'token' },
  'relay 404': { code: 'relay_refused', reason: 'no-channel' },
  'relay 409': { code: 'relay_refused', reason: 'full' },
  network: { code: 'unavailable' },
  handshake: { code: 'handshake_failed' },
  authentication: { code: 'decrypt', layer: 'tag' },
  'wrong frame type': { code: 'decrypt', layer: 'layout' },
  closed: { code: 'session_closed' },
};

// What is done instead of what the reference was seen to do, step by step.
const BETTER: Record<string, Record<number, Partial<Step>>> = {
  'bad frame between good ones': {
    // Nothing is lost, and the bad frame is an error of its own.
    9: {
      ok: true,
      messages: [
        { kind: 'say', text: 'one', from_hex: '' },
        { kind: 'say', text: 'three', from_hex: '' },
      ],
    },
    10: { ok: false, error_class: 'authentication', messages: [] },
  },
  'relay restarts': {},
  'close while pending, joiner': {},
  'join whose handshake frame is lost': {},
};

async function perform(end: End, step: Step): Promise<{ value?: unknown; error?: unknown }> {
  const { session, relay } = end;
  relay.sent = [];
  end.random = (step.random_hex ?? []).map(hex);
  try {
    switch (step.op) {
      case 'open':
        return { value: (await session.open(step.topic!)).url() };
      case 'join':
        return { value: await session.join(step.invite!) };
      case 'send':
        return { value: await session.send(textOf(step)) };
      case 'poll':
        return { value: await session.poll(step.wait_ms) };
      default:
        return { value: await session.close(step.outcome!) };
    }
  } catch (error) {
    return { error };
  }
}

function expectSent(frames: Frame[], sent: Sent[], what: string): void {
  expect(
    frames.map((f) => [`${f.seq}`, f.type]),
    what,
  ).toEqual(sent.map((s) => [s.seq, s.type]));
  for (const [i, s] of sent.entries()) {
    const { payload } = frames[i]!;
    if (s.payload_hex !== undefined) expect(toHex(payload), what).toBe(s.payload_hex);
    else expect([payload.length, toHex(sha256(payload))], what).toEqual([s.payload_length, s.payload_sha256_hex]);
  }
}

function expectPeer(peer: Peer, after: NonNullable<Step['peer_after']>, what: string): void {
  const { node_id_hex, ...rest } = after;
  const { id, ...own } = peer;
  expect(own, what).toEqual(rest);
  expect(id ? toHex(id) : '0'.repeat(64), what).toBe(node_id_hex);
}

async function replay(scenario: Scenario, upTo = Number.POSITIVE_INFINITY): Promise<Record<string, End>> {
  const net = restartable();
  const ends: Record<string, End> = {};
  for (const { end, seed, same_identity_as } of scenario.ends) {
    const identity = seed === undefined ? ends[same_identity_as!]!.identity : Identity.fromSeed(utf8(seed));
    ends[end] = new End(identity, net.fetch);
  }
  for (const [i, recordedStep] of scenario.steps.entries()) {
    if (i >= upTo) break;
    const better = BETTER[scenario.name]?.[i];
    const step = { ...recordedStep, ...better };
    const what = `step ${i}: ${step.op} ${step.end ?? ''}`;
    const end = ends[step.end ?? step.seat_of ?? '']!;
    if (step.op === 'fault') end.relay.faults = [...step.next_sends!];
    else if (step.op === 'relay_rewinds') end.relay.isRewinding = step.on!;
    else if (step.op === 'relay_stop') net.stop();
    else if (step.op === 'relay_start') net.start();
    else if (step.op === 'relay_post') {
      const { seat } = end.relay;
      const payload = hex(step.payload_hex!);
      await end.relay.inner.send(seat!, { channel: seat!.channel, seq: BigInt(step.seq!), type: step.type!, payload });
    } else if (step.op === 'raw_join') {
      const { channel, key, secret } = Invite.parse(step.invite!);
      const seat = await end.relay.join(channel, secret.joinToken());
      if (step.message1_hex === undefined) continue;
      const handshake = Handshake.initiator({
        identity: end.identity,
        prologue: concat(utf8('parley/1'), channel),
        psk: secret.psk(),
        remote: key,
        ephemeral: hex(step.random_hex![0]!),
      });
      end.raw = { handshake };
      const payload = handshake.write(hex(step.payload_hex!));
      expect(toHex(payload), what).toBe(step.message1_hex);
      await end.relay.inner.send(seat, { channel, seq: BigInt(step.seq!), type: 1, payload });
    } else if (step.op === 'raw_finish') {
      end.raw!.handshake.read(hex(step.message2_hex!));
      end.raw!.transport = end.raw!.handshake.transport();
    } else if (step.op === 'raw_send') {
      const { seat } = end.relay;
      // Below the last seq a transport refuses to seal, so the recorded bytes go out.
      const payload = hex(step.ciphertext_hex!);
      await end.relay.inner.send(seat!, { channel: seat!.channel, seq: BigInt(step.seq!), type: 2, payload });
    } else {
      const start = performance.now();
      const { value, error } = await perform(end, step);
      if (step.takes_ms) expect(performance.now() - start, what).toBeGreaterThanOrEqual(step.takes_ms.at_least - 30);
      if (step.ok) expect(error, what).toBeUndefined();
      else expect(error, what).toMatchObject(ERRORS[step.error_class!]!);
      if (step.op === 'open') expect(value, what).toBe(step.invite);
      if (step.op === 'poll' && step.ok) {
        const got = (value as Received[]).map(({ kind, text }) => [kind, text]);
        expect(got, what).toEqual(step.messages!.map((m) => [m.kind, textOf(m)]));
        for (const [j, m] of (value as Received[]).entries()) {
          if (step.messages![j]!.from_hex) expect(toHex(m.from), what).toBe(step.messages![j]!.from_hex);
        }
      }
      if (scenario.sent_is_binding) {
        expectSent(end.relay.sent, step.sent ?? [], what);
        if (step.ok) expect(end.random, what).toEqual([]);
      }
      if (step.peer_after) expectPeer(end.session.peer, step.peer_after, what);
    }
  }
  return ends;
}

const scenarios = recorded.scenarios as unknown as Scenario[];
const named = (name: string): Scenario => scenarios.find((s) => s.name === name)!;

describe('recorded sessions', () => {
  const defective = scenarios.filter((s) => s.reference_defect);
  for (const scenario of scenarios.filter((s) => !s.reference_defect || Object.keys(BETTER[s.name]!).length)) {
    test(scenario.name, () => replay(scenario).then(() => {}));
  }

  test('are 23, 4 of them with a defect of the reference', () => {
    expect([scenarios.length, defective.length]).toEqual([23, 4]);
    expect(defective.map((s) => s.name).sort()).toEqual(Object.keys(BETTER).sort());
  });

  test('better: relay restarts', async () => {
    const scenario = named('relay restarts');
    const at = scenario.steps.findIndex((s) => s.op === 'relay_start');
    const steps = scenario.steps.slice(at + 1);
    const net = await replay({ ...scenario, steps: scenario.steps.slice(0, at + 1) });
    const frames: Frame[] = [...net['A']!.relay.sent];
    // The relay has forgotten the channel: told once by each end, and the end of it.
    const [pollB, sendA, closeA] = steps;
    expect((await perform(net['B']!, pollB!)).error).toMatchObject(ERRORS['relay 404']!);
    expect(net['B']!.session.peer.state).toBe('closed');
    expect((await perform(net['A']!, sendA!)).error).toMatchObject(ERRORS['relay 404']!);
    frames.push(...net['A']!.relay.sent);
    expect(net['A']!.session.peer.state).toBe('closed');
    expect((await perform(net['A']!, closeA!)).error).toBeUndefined();
    frames.push(...net['A']!.relay.sent);
    await expect(net['A']!.session.send('x')).rejects.toThrow(code('session_closed'));
    // Each text under its own seq.
    const bySeq = new Map(frames.map((f) => [f.seq, toHex(f.payload)]));
    for (const f of frames) expect(bySeq.get(f.seq)).toBe(toHex(f.payload));
  });

  test('better: close while pending, joiner', async () => {
    const scenario = named('close while pending, joiner');
    const at = scenario.steps.findIndex((s) => s.op === 'poll' && s.end === 'B');
    const { A, B } = (await replay(scenario, at)) as { A: End; B: End };
    const received = await B.session.poll();
    expect(received.map((m) => m.text)).toEqual(['anyone?']);
    expect(B.session.peer.state).toBe('closed');
    expect((await A.session.poll()).map(({ kind, text }) => [kind, text])).toEqual([
      ['say', 'queued'],
      ['close', 'never mind'],
    ]);
    expect(A.session.peer.state).toBe('closed');
  });

  test('better: join whose handshake frame is lost', async () => {
    for (const again of ['join', 'poll'] as const) {
      const { A, B } = (await replay(named('join whose handshake frame is lost'), 3)) as { A: End; B: End };
      const [first] = B.relay.sent;
      if (again === 'join') await B.session.join(named('join whose handshake frame is lost').steps[2]!.invite!);
      else await B.session.poll();
      expect(B.relay.sent.map((f) => [f.seq, toHex(f.payload)]).at(-1)).toEqual([first!.seq, toHex(first!.payload)]);
      await A.session.poll();
      await B.session.poll();
      expect([A.session.peer.state, B.session.peer.state]).toEqual(['active', 'active']);
    }
  });
});

// --- faults -----------------------------------------------------------------------------------------------------

async function connected(o: SessionOptions = {}, topic = 'topic'): Promise<{ A: End; B: End; invite: Invite }> {
  const { fetch } = createLocalService();
  const A = new End(Identity.generate(), fetch, o);
  const B = new End(Identity.generate(), fetch, o);
  const invite = await A.session.open(topic);
  await B.session.join(invite);
  await A.session.poll();
  await B.session.poll();
  expect([A.session.peer.state, B.session.peer.state]).toEqual(['active', 'active']);
  return { A, B, invite };
}

const texts = async (end: End, waitMs = 0): Promise<string[]> => (await end.session.poll(waitMs)).map((m) => m.text);
const inject = (from: End, seq: bigint, type: number, payload: Uint8Array): Promise<void> =>
  from.relay.inner.send(from.relay.seat!, { channel: from.relay.seat!.channel, seq, type, payload });

describe('sending', () => {
  test('fault 104: another text after a failed send never shares its seq, whatever became of the first', async () => {
    for (const fault of ['request lost', 'answer lost']) {
      const { A, B } = await connected();
      A.relay.sent = [];
      A.relay.faults = [fault];
      await expect(A.session.send('A'.repeat(20))).rejects.toThrow(code('unavailable'));
      await A.session.send('B'.repeat(20));
      expect(A.relay.sent.map((f) => f.seq)).toEqual([2n, 3n]);
      expect(await texts(B)).toEqual(fault === 'answer lost' ? ['A'.repeat(20), 'B'.repeat(20)] : ['B'.repeat(20)]);
      // A gap is legal, and seen.
      expect(B.events.filter((e) => e.kind === 'gap').length).toBe(fault === 'answer lost' ? 0 : 1);
    }
  });

  test('fault 104: the same words again are the same bytes again, and arrive once', async () => {
    for (const fault of ['request lost', 'answer lost']) {
      const { A, B } = await connected();
      A.relay.sent = [];
      A.relay.faults = [fault, fault];
      for (let i = 0; i < 2; i++) await expect(A.session.send('hello')).rejects.toThrow(code('unavailable'));
      await A.session.send('hello');
      expect(new Set(A.relay.sent.map((f) => `${f.seq} ${toHex(f.payload)}`)).size).toBe(1);
      await A.session.send('hello');
      expect(await texts(B)).toEqual(['hello', 'hello']);
    }
  });

  test('a page that something on the way shows is not taken for the relay’s word', async () => {
    const { fetch } = createLocalService();
    let isPortal = false;
    const portal = (async (...args: Parameters<typeof fetch>) =>
      isPortal ? new Response('<html>Log in first</html>') : fetch(...args)) as typeof fetch;
    const A = new End(Identity.generate(), portal);
    const B = new End(Identity.generate(), fetch);
    await B.session.join(await A.session.open('t'));
    await A.session.poll();
    isPortal = true;
    await expect(A.session.send('heard once')).rejects.toThrow(code('unavailable'));
    await expect(A.session.poll()).rejects.toThrow(code('unavailable'));
    isPortal = false;
    await A.session.send('heard once');
    expect(await texts(B)).toEqual(['heard once']);
  });

  test.each([302, 401, 403, 404, 409, 451, 511])(
    'nor a page of status %i: nothing queued is lost, no channel is given up',
    async (status) => {
      const { fetch } = createLocalService();
      let isPortal = false;
      const page = '<!doctype html>\n<p>Follow our channel!</p>';
      const portal = (async (...args: Parameters<typeof fetch>) =>
        isPortal ? new Response(page, { status }) : fetch(...args)) as typeof fetch;
      const A = new End(Identity.generate(), fetch);
      const B = new End(Identity.generate(), portal);
      const refusal = code(status === 511 ? 'unavailable' : 'http');
      const invite = await A.session.open('t');
      await B.session.join(invite);
      await A.session.poll();
      for (const text of ['1', '2']) await B.session.send(text);
      // Reads pass at first, so that what is queued is about to be sent.
      const { recv } = B.relay;
      B.relay.recv = async (...args) => {
        const frames = await recv.apply(B.relay, args);
        isPortal = true;
        return frames;
      };
      await expect(B.session.poll()).rejects.toThrow(refusal);
      expect(B.session.peer.state).toBe('active');
      B.relay.recv = recv;
      for (let i = 0; i < 3; i++) await expect(B.session.poll()).rejects.toThrow(refusal);
      await expect(B.session.send('3')).rejects.toThrow(refusal);
      isPortal = false;
      await B.session.send('3');
      expect(await texts(A)).toEqual(['1', '2', '3']);
    },
  );

  test('what was queued is sent in order, before what is said later, however often the relay fails', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    for (const text of ['1', '2', '3']) await A.session.send(text);
    await B.session.join(invite);
    // The answer to the handshake is lost, then the first text.
    A.relay.faults = ['request lost'];
    await expect(A.session.poll()).rejects.toThrow(code('unavailable'));
    A.relay.faults = ['answer lost', 'request lost'];
    await expect(A.session.send('4')).rejects.toThrow(code('unavailable'));
    await expect(A.session.poll()).rejects.toThrow(code('unavailable'));
    await A.session.send('4');
    expect(await texts(B)).toEqual(['1', '2', '3', '4']);
  });

  test('send and peer do not wait behind a poll, and neither does close', async () => {
    const { A, B } = await connected();
    const polled = A.session.poll(20_000);
    let isDone = false;
    const done = (): void => {
      isDone = true;
    };
    polled.then(done, done);
    await A.session.send('during');
    expect(A.session.peer.state).toBe('active');
    expect(isDone).toBe(false);
    // Closing ends the poll: there is nothing left to wait for.
    await A.session.close('over');
    expect(await polled).toEqual([]);
    expect(await texts(B)).toEqual(['during', 'over']);
  });

  test('sends keep the order of their calls, close last', async () => {
    const { A, B } = await connected();
    const all = [...Array(20).keys()].map((i) => A.session.send(`${i}`));
    await A.session.close('end');
    await Promise.all(all);
    expect(await texts(B)).toEqual([...[...Array(20).keys()].map(String), 'end']);
  });

  test('a queue has a bound', async () => {
    const A = new End(Identity.generate(), createLocalService().fetch);
    for (let i = 0; i < 1024; i++) await A.session.send('x');
    await expect(A.session.send('x')).rejects.toThrow(code('capacity_reached'));
  });

  test('a frame that the relay will never take does not hold up the rest', async () => {
    const { fetch } = createLocalService({ limits: { relayFrameBytes: 1000 } });
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    await A.session.send('x'.repeat(1001));
    await A.session.send('small');
    await B.session.join(await A.session.open('t'));
    await expect(A.session.poll()).rejects.toThrow(code('http', { status: 413 }));
    await A.session.poll();
    expect(await texts(B)).toEqual(['small']);
    await expect(A.session.send('x'.repeat(1001))).rejects.toThrow(code('http', { status: 413 }));
  });
});

describe('receiving', () => {
  const junk = utf8('j'.repeat(20));

  test('fault 105: junk of any seq and type makes nothing deaf, and is reported once', async () => {
    const { A, B } = await connected();
    for (const seq of [2n ** 40n, 2n ** 64n - 1n, 2n]) await inject(B, seq, 2, junk);
    for (const type of [0, 1, 3, 255]) await inject(B, 2n ** 41n, type, junk);
    await expect(A.session.poll()).rejects.toThrow(code('decrypt'));
    expect(A.events.filter((e) => e.kind === 'skipped').length).toBe(7);
    expect(await texts(A)).toEqual([]);
    await B.session.send('heard');
    expect(await texts(A)).toEqual(['heard']);
    await B.session.send('again');
    expect(await texts(A, 1000)).toEqual(['again']);
    expect(A.events.filter((e) => e.kind === 'skipped').length).toBe(7);
  });

  test('fault 105: junk before the handshake neither', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    B.relay.faults = ['request lost'];
    await expect(B.session.join(invite)).rejects.toThrow(code('unavailable'));
    for (const length of [0, 31, 32, 40, 79, 80, 115]) await inject(B, 2n ** 63n, 1, new Uint8Array(length));
    await inject(B, 2n ** 63n, 2, junk);
    await expect(A.session.poll()).rejects.toThrow(code('handshake_failed'));
    await A.session.poll();
    await B.session.poll();
    // What looked like data that came too early turns out to be junk as well.
    await expect(A.session.poll()).rejects.toThrow(code('decrypt'));
    await A.session.poll();
    await B.session.poll();
    expect([A.session.peer.state, B.session.peer.state]).toEqual(['active', 'active']);
  });

  test('fault 105: the handshake message under another seq makes nothing deaf', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    B.relay.faults = ['swallowed by the relay'];
    await B.session.join(await A.session.open('t'));
    const [hello] = B.relay.sent;
    for (const seq of [2n ** 64n - 1n, 7n]) await inject(B, seq, 1, hello!.payload);
    await expect(A.session.poll()).rejects.toThrow(code('decrypt', { layer: 'layout' }));
    await inject(A, 2n ** 64n - 1n, 1, A.relay.sent[0]!.payload);
    await B.session.poll().catch(() => {});
    await B.session.send('heard');
    await A.session.send('heard too');
    expect([await texts(A), await texts(B)]).toEqual([['heard'], ['heard too']]);
  });

  test('of handshake messages only so many are tried at a time, and the true one in its turn', async () => {
    const { fetch } = createLocalService();
    const identity = Identity.generate();
    const A = new End(identity, fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    B.relay.faults = ['request lost'];
    await expect(B.session.join(invite)).rejects.toThrow(code('unavailable'));
    for (let i = 0; i < 1000; i++) await inject(B, BigInt(i + 2), 1, sha256(utf8(`junk ${i}`)));
    await B.session.poll();
    const tried: number[] = [];
    const shared = identity.shared.bind(identity);
    identity.shared = (key) => {
      tried[tried.length - 1]!++;
      return shared(key);
    };
    while (A.session.peer.state !== 'active') {
      tried.push(0);
      await A.session.poll().catch(() => {});
      expect(tried.length).toBeLessThan(10);
    }
    expect(Math.max(...tried)).toBeLessThanOrEqual(256 + 1);
    await B.session.send('heard');
    await B.session.poll();
    expect(await texts(A)).toEqual(['heard']);
  });

  test('a wait that is no number is none', async () => {
    const { A } = await connected();
    for (const waitMs of [Number.NaN, -1, '' as never]) expect(await texts(A, waitMs)).toEqual([]);
  });

  test('floods of junk are remembered within a bound, and messages come through', async () => {
    const { A, B } = await connected();
    for (let i = 0; i < 300; i++) await inject(B, BigInt(1000 + i), 2, utf8(`junk ${i}`));
    await B.session.send('heard');
    expect(await texts(A)).toEqual(['heard']);
    await expect(A.session.poll()).rejects.toThrow(code('decrypt'));
    expect(await texts(A)).toEqual([]);
    expect(A.events.filter((e) => e.kind === 'skipped').length).toBe(255);
  });

  test('of an answer with more frames than anybody can have sent only so many are looked at, and the rest is read after them', async () => {
    const all = Array.from({ length: 40_000 }, (_, i) => `{"seq":${i + 1},"type":2,"payload":""}`);
    const fetch = async (url: unknown) =>
      new Response(`{"frames":[${all.slice(Number(/after=(\d+)/.exec(`${url}`)![1]))}]}`);
    const relay = new HttpRelay('http://relay', { fetch });
    const seat = { channel: new Uint8Array(16), token: 'x' };
    const counts: number[] = [];
    let after = 0n;
    for (let frames = await relay.recv(seat, after, 0); frames.length; frames = await relay.recv(seat, after, 0)) {
      expect(frames[0]!.seq).toBe(after + 1n);
      counts.push(frames.length);
      after = frames.at(-1)!.seq;
    }
    expect(after).toBe(40_000n);
    expect(counts).toEqual([16_384, 16_384, 7232]);
  });

  test('data that overtakes the handshake is read after it', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    await B.session.join(await A.session.open('t'));
    A.relay.faults = ['swallowed by the relay'];
    await A.session.poll();
    await A.session.send('early');
    expect(await texts(B)).toEqual([]);
    const [hello] = A.relay.sent;
    await A.relay.inner.send(A.relay.seat!, hello!);
    expect(await texts(B)).toEqual(['early']);
  });

  test('gaps are reported, and a gap is no error', async () => {
    const { A, B } = await connected();
    B.relay.faults = ['swallowed by the relay', 'swallowed by the relay'];
    for (const text of ['a', 'b', 'c']) await B.session.send(text);
    expect(await texts(A)).toEqual(['c']);
    expect(A.events).toEqual([{ kind: 'gap', expected: '2', got: '4' }]);
  });

  test('a message of unknown kind is one error, and counts as read', async () => {
    const { A, B } = await connected();
    // Only the other end itself can seal one.
    const { keys } = JSON.parse(new TextDecoder().decode(B.session.save()));
    const { createTransport } = await import('../src/noise.ts');
    const [send, receive] = [keys.send, keys.receive].map(({ b }) => Uint8Array.from(Buffer.from(b, 'base64url')));
    const transport = createTransport({ send: send!, receive: receive! });
    await inject(B, 2n, 2, transport.seal(2n, Uint8Array.of(3, 120)));
    await inject(B, 3n, 2, transport.seal(3n, new Uint8Array(0)));
    await inject(B, 4n, 2, transport.seal(4n, Uint8Array.of(1, 0xff, 0xfe)));
    expect(await texts(A)).toEqual(['\ufffd\ufffd']);
    await expect(A.session.poll()).rejects.toThrow(code('decrypt', { layer: 'layout' }));
    expect(await texts(A)).toEqual([]);
  });

  test('a poll longer than the relay holds goes on', async () => {
    const { A, B } = await connected();
    const waits: number[] = [];
    const { recv } = A.relay;
    A.relay.recv = async (seat, after, waitMs, o) => {
      waits.push(waitMs);
      // As a relay does that holds for 30 s: here one that holds for 1.
      return recv.call(A.relay, seat, after, Math.min(waitMs, 1000), o);
    };
    const polled = A.session.poll(60_000);
    while (waits.length < 2) await new Promise((resolve) => setTimeout(resolve, 50));
    await B.session.send('late');
    expect((await polled).map((m) => m.text)).toEqual(['late']);
    expect(waits[0]).toBe(30_000);
  });

  test.each(['a poll', 'a poll beside a listener'])(
    'a clock that is set back by an hour does not prolong %s',
    async (how) => {
      let back = 0;
      const clock = { now: () => Date.now() - back, sleep: systemClock.sleep };
      const { A } = await connected({ clock });
      const leave = how === 'a poll' ? undefined : await A.session.listen({ message() {}, gap() {}, end() {} });
      const polled = A.session.poll(300);
      await systemClock.sleep(50);
      back = 3_600_000;
      expect(await polled).toEqual([]);
      leave?.();
    },
  );

  test('a relay that does not hold is not hammered', async () => {
    const { A } = await connected();
    let asked = 0;
    A.relay.recv = async () => {
      asked++;
      return [];
    };
    expect(await texts(A, 1500)).toEqual([]);
    expect(asked).toBeLessThan(8);
  });

  test('who has the other seat is asked beside the first read, and known after it, until somebody has', async () => {
    const { fetch } = createLocalService();
    const [A, B] = [new End(Identity.generate(), fetch), new End(Identity.generate(), fetch)];
    const invite = await A.session.open('topic');
    let reading = (): void => {};
    let asked = 0;
    const { recv, members } = A.relay;
    A.relay.recv = (...args) => {
      reading();
      return recv.apply(A.relay, args);
    };
    A.relay.members = async (...args) => {
      asked++;
      await new Promise<void>((resolve) => {
        reading = resolve;
      });
      return members.apply(A.relay, args);
    };
    for (const isJoined of [false, true]) {
      if (isJoined) await B.relay.join(invite.channel, invite.secret.joinToken());
      expect(await texts(A)).toEqual([]);
      expect(A.session.peer).toMatchObject({ state: 'pending', present: isJoined });
    }
    // What was seen once is not asked again.
    await texts(A);
    expect(asked).toBe(2);
  });

  test('two polls at once take turns', async () => {
    const { A, B } = await connected();
    const both = Promise.all([A.session.poll(5000), A.session.poll(5000)]);
    await B.session.send('one');
    await new Promise((resolve) => setTimeout(resolve, 50));
    await B.session.send('two');
    expect((await both).map((got) => got.map((m) => m.text))).toEqual([['one'], ['two']]);
  });

  test('messages() yields until the other end closes', async () => {
    const { A, B } = await connected();
    const got: string[] = [];
    const all = (async () => {
      for await (const { kind, text } of A.session.messages()) got.push(`${kind} ${text}`);
    })();
    await B.session.send('1');
    await inject(B, 77n, 2, junk);
    await B.session.send('2');
    await B.session.close('bye');
    await all;
    expect(got).toEqual(['say 1', 'say 2', 'close bye']);
  });

  test('who leaves messages() loses nothing of what had come by then, and saves it', async () => {
    const { A, B } = await connected();
    for (const text of ['1', '2', '3', '4']) await A.session.send(text);
    const loop = B.session.messages();
    for await (const { text } of loop) {
      expect(text).toBe('1');
      break;
    }
    const again = await Session.resume(B.session.save(), B.identity, B.relay);
    expect(await again.poll()).toMatchObject([{ text: '2' }, { text: '3' }, { text: '4' }]);
    const stop = new AbortController();
    const aborted = B.session.messages({ signal: stop.signal });
    expect((await aborted.next()).value).toMatchObject({ text: '2' });
    stop.abort('enough');
    await expect(aborted.next()).rejects.toBe('enough');
    // What was said before the other end closed comes before the end of the loop.
    await A.session.send('5');
    await A.session.close('over');
    const rest: string[] = [];
    for await (const { text } of B.session.messages()) rest.push(text);
    expect(rest).toEqual(['3', '4', '5', 'over']);
  });

  test('messages() of an end that closed tells the other end first', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    await B.session.join(await A.session.open('t'));
    await B.session.send('said');
    await B.session.close('outcome');
    const told = (async () => {
      for await (const _ of B.session.messages());
    })();
    const heard = (await A.session.poll()).map(({ text }) => text);
    await told;
    while (A.session.peer.state !== 'closed') heard.push(...(await texts(A)));
    expect(heard).toEqual(['said', 'outcome']);
    // Nobody joined: nobody to be told.
    const lonely = new End(Identity.generate(), fetch);
    await lonely.session.open('t');
    await lonely.session.close('gave up');
    for await (const _ of lonely.session.messages());
  });
});

describe('opening, joining, closing', () => {
  test('fault 107: closing while pending loses nothing that was queued, on either side', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    await A.session.send('1');
    await A.session.send('2');
    await A.session.close('enough');
    await expect(A.session.send('3')).rejects.toThrow(code('session_closed'));
    await B.session.join(invite);
    await A.session.poll();
    expect(A.session.peer.state).toBe('closed');
    expect(await texts(B)).toEqual(['1', '2', 'enough']);
    expect(B.session.peer.state).toBe('closed');
  });

  test('fault 107: texts for which no channel was ever opened are named', async () => {
    const A = new End(Identity.generate(), createLocalService().fetch);
    await A.session.send('1');
    await expect(A.session.close('x')).rejects.toThrow('1 queued');
    expect(A.session.peer.state).toBe('closed');
  });

  test('fault 109: the link keeps its form, and the host can be chosen', async () => {
    const { fetch } = createLocalService();
    const relay = new HttpRelay('http://127.0.0.1:8080/base/', { fetch });
    const url = (await new Session(Identity.generate(), relay, { host: 'relay.example' })
      .open('t')
      .catch(String)) as Invite;
    expect(String(url)).toContain('404');
    const plain = new HttpRelay('http://127.0.0.1:8080', { fetch });
    expect((await new Session(Identity.generate(), plain).open('t')).url()).toMatch(
      /^https:\/\/127\.0\.0\.1:8080\/i\//,
    );
    const o = { host: 'relay.example' };
    expect((await new Session(Identity.generate(), plain, o).open('t')).relay).toBe('relay.example');
  });

  test('fault 111: who comes too late is told so', async () => {
    const { invite } = await connected();
    const C = new End(Identity.generate(), createLocalService().fetch);
    await expect(C.session.join(invite)).rejects.toThrow(code('relay_refused', { reason: 'no-channel' }));
    await expect(C.session.join(invite)).rejects.toThrow('relay.example');
    const { A, invite: other } = await connected();
    const D = new End(Identity.generate(), A.fetch);
    await expect(D.session.join(other.url())).rejects.toThrow(code('relay_refused', { reason: 'full' }));
    expect(D.session.peer.state).toBe('none');
  });

  test('a used session takes no second channel; a failed one is as new', async () => {
    const { A, B, invite } = await connected();
    await expect(A.session.open('x')).rejects.toThrow(code('bad_state'));
    await expect(B.session.open('x')).rejects.toThrow(code('bad_state'));
    const other = await connected();
    await expect(B.session.join(other.invite)).rejects.toThrow(code('bad_state'));
    await expect(B.session.join(invite)).rejects.toThrow(code('relay_refused', { reason: 'full' }));
    const net = restartable();
    net.stop();
    const C = new End(Identity.generate(), net.fetch);
    await expect(C.session.open('x')).rejects.toThrow(code('unavailable'));
    expect(C.session.peer).toEqual({ fingerprint: '', topic: '', state: 'none', present: false });
    net.start();
    await C.session.open('x');
    const both = new End(Identity.generate(), net.fetch);
    const [first, second] = await Promise.allSettled([both.session.open('1'), both.session.open('2')]);
    expect([first.status, second.status]).toEqual(['fulfilled', 'rejected']);
  });

  test('a key of small order is refused before the seat is taken', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const { relay, channel, secret } = await A.session.open('t');
    for (const first of [0, 1]) {
      const key = new Uint8Array(32);
      key[0] = first;
      await expect(B.session.join(new Invite({ relay, channel, secret, key }))).rejects.toThrow(code('bad_invite'));
    }
    await A.session.poll();
    expect(A.session.peer.present).toBe(false);
  });

  test("a topic is the opener's, and bounded", async () => {
    const A = new End(Identity.generate(), createLocalService().fetch);
    await expect(A.session.open('x'.repeat(65_506))).rejects.toThrow(code('frame_too_long', { chars: 65_536 }));
    await A.session.open('x'.repeat(65_505));
    const { B } = await connected({}, 'a <topic> \ud83d\ude80 \u2028');
    expect(B.session.peer.topic).toBe('a <topic> \ud83d\ude80 \u2028');
  });

  test('closing is always possible, and an outcome that failed is sent later', async () => {
    const { A, B } = await connected();
    A.relay.faults = ['request lost', 'request lost'];
    await expect(A.session.close('done')).rejects.toThrow(code('unavailable'));
    expect(A.session.peer.state).toBe('closed');
    await expect(A.session.send('x')).rejects.toThrow(code('session_closed'));
    await expect(A.session.close('other')).rejects.toThrow(code('unavailable'));
    await A.session.close('other');
    expect(await texts(B)).toEqual(['done']);
    expect(new Set(A.relay.sent.slice(-3).map((f) => toHex(f.payload))).size).toBe(1);
  });

  test('closing while an open is under way does not reopen', async () => {
    const A = new End(Identity.generate(), createLocalService().fetch);
    const opening = A.session.open('t');
    await A.session.close('changed my mind');
    await expect(opening).rejects.toThrow(code('session_closed'));
    expect(A.session.peer.state).toBe('closed');
  });
});

describe('giving up', () => {
  test('every call ends with the reason of the signal', async () => {
    const hang: typeof fetch = () => new Promise(() => {});
    const reason = new Error('enough');
    const ended = async (run: (signal: AbortSignal) => Promise<unknown>): Promise<void> => {
      const stop = new AbortController();
      const result = run(stop.signal).catch((e) => e);
      await new Promise((resolve) => setTimeout(resolve, 5));
      stop.abort(reason);
      expect(await result).toBe(reason);
      expect(await run(stop.signal).catch((e) => e)).toBe(reason);
    };
    const session = (o: SessionOptions = {}): Session =>
      new Session(Identity.generate(), new HttpRelay('http://relay', { fetch: hang }), o);
    const invite = new Invite({
      relay: 'r',
      channel: new Uint8Array(16),
      key: Identity.generate().publicKey,
      secret: Secret.generate(),
    });
    await ended((signal) => session().open('t', { signal }));
    await ended((signal) => session({ signal }).open('t'));
    await ended((signal) => session().join(invite, { signal }));
    const { A } = await connected();
    await ended((signal) => A.session.poll(60_000, { signal }));
    await ended((signal) => A.session.messages({ signal }).next());
    A.relay.send = (_seat, _frame, o) => new HttpRelay('http://relay', { fetch: hang }).send(_seat, _frame, o);
    await ended((signal) => A.session.send('x', { signal }));
    await ended((signal) => A.session.close('x', { signal }));
  });

  test('a poll that waits for another one can be given up alone', async () => {
    const { A, B } = await connected();
    const first = A.session.poll(60_000);
    const stop = new AbortController();
    const second = A.session.poll(60_000, { signal: stop.signal });
    stop.abort();
    await expect(second).rejects.toThrow();
    await B.session.send('for the first');
    expect((await first).map((m) => m.text)).toEqual(['for the first']);
  });
});

describe('saving and resuming', () => {
  const resumed = async (end: End, state = end.session.save(), o: SessionOptions = {}): Promise<Session> =>
    Session.resume(state, end.identity, end.relay, { onEvent: (e) => end.events.push(e), ...o });

  test('an active session goes on, seqs above all that was', async () => {
    const { A, B } = await connected();
    await A.session.send('1');
    const again = await resumed(A);
    expect(again.peer).toEqual(A.session.peer);
    await again.send('2');
    await again.send('3');
    expect(await texts(B)).toEqual(['1', '2', '3']);
    const [, two, three] = A.relay.sent.slice(-3).map((f) => f.seq);
    expect(two).toBeGreaterThan(BigInt(Date.now() - 60_000) << 20n);
    expect(three).toBe(two! + 1n);
    await B.session.send('back');
    expect((await again.poll()).map((m) => m.text)).toEqual(['back']);
    await again.close('end');
    expect(await texts(B)).toEqual(['end']);
  });

  test('resumed twice and used beside the original, no seq is spent twice', async () => {
    const { A } = await connected();
    await A.session.send('1');
    const state = A.session.save();
    const sessions = [A.session, await resumed(A, state), await resumed(A, state), await resumed(A, state)];
    A.relay.sent = [];
    for (let i = 0; i < 10; i++) {
      for (const [n, session] of sessions.entries()) await session.send(`${n} ${i}`);
    }
    expect(new Set(A.relay.sent.map((f) => f.seq)).size).toBe(40);
  });

  test('nor where the clock was set back between one time and the next', async () => {
    const { A, B } = await connected();
    const first = await resumed(A);
    await first.send('1');
    const state = first.save();
    const clock = { now: () => 1000, sleep: () => Promise.resolve() };
    A.relay.sent = [];
    for (let i = 0; i < 8; i++) await (await resumed(A, state, { clock })).send(`2, said by copy ${i}`);
    await first.send('2, said by the first');
    expect(new Set(A.relay.sent.map((f) => f.seq)).size).toBe(9);
    expect((await texts(B))[0]).toBe('1');
  });

  test('nor where the clock is centuries ahead', async () => {
    let at = Date.UTC(9999, 0);
    const clock = { now: () => at, sleep: () => Promise.resolve() };
    const { A, B } = await connected();
    let state = A.session.save();
    for (const text of ['then', 'again', 'now']) {
      const copy = await resumed(A, state, { clock });
      await copy.send(text);
      expect(await texts(B)).toEqual([text]);
      if (text === 'again') at = Date.now();
      state = copy.save();
    }
  });

  test('a pending opener and a pending joiner go on', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    await A.session.send('queued');
    const state = A.session.save();
    const a = await resumed(A, state);
    await B.session.join(invite);
    await B.session.send('from b');
    const b = await resumed(B);
    await a.poll();
    expect((await b.poll()).map((m) => m.text)).toEqual(['queued']);
    expect((await a.poll()).map((m) => m.text)).toEqual(['from b']);
    // Another copy of the pending state comes to the same keys.
    const copy = await resumed(A, state);
    await copy.poll();
    await copy.send('from the copy');
    expect((await b.poll()).map((m) => m.text)).toContain('from the copy');
  });

  test('a joiner whose handshake frame was lost sends the same one after the restart', async () => {
    const { fetch } = createLocalService();
    const A = new End(Identity.generate(), fetch);
    const B = new End(Identity.generate(), fetch);
    const invite = await A.session.open('t');
    B.relay.faults = ['request lost'];
    await expect(B.session.join(invite)).rejects.toThrow(code('unavailable'));
    const b = await resumed(B);
    await b.poll();
    expect(new Set(B.relay.sent.map((f) => toHex(f.payload))).size).toBe(1);
    await A.session.poll();
    await b.poll();
    expect(b.peer.state).toBe('active');
  });

  test('a failed send is still the same frame after a restart', async () => {
    const { A, B } = await connected();
    A.relay.faults = ['answer lost'];
    await expect(A.session.send('once')).rejects.toThrow(code('unavailable'));
    const again = await resumed(A);
    await again.send('once');
    await again.send('more');
    expect(await texts(B)).toEqual(['once', 'more']);
  });

  test('what was read and not handed out survives', async () => {
    const { A, B } = await connected();
    await B.session.send('kept');
    A.relay.faults = ['request lost'];
    const stop = new AbortController();
    const { recv } = A.relay;
    A.relay.recv = async (...args) => {
      const frames = await recv.apply(A.relay, args);
      stop.abort();
      return frames;
    };
    // Given up in the very moment in which something came: it is handed out all the same, now or later.
    const got = await A.session.poll(0, { signal: stop.signal }).catch(() => [] as Received[]);
    const later = got.length ? [] : await (await resumed(A)).poll();
    expect([...got, ...later].map((m) => m.text)).toEqual(['kept']);
  });

  test('a new session and a closed one can be saved', async () => {
    const A = new End(Identity.generate(), createLocalService().fetch);
    await A.session.send('queued');
    const again = await resumed(A);
    expect(again.peer.state).toBe('none');
    await again.open('t');
    await again.close('x');
    const closed = await Session.resume(again.save(), A.identity, A.relay);
    await expect(closed.send('y')).rejects.toThrow(code('session_closed'));
  });

  test('whatever the topic and the texts hold, line separators too', async () => {
    const { A, B } = await connected({}, 'a\u2028b\nc\u2029\ud800');
    A.relay.faults = ['request lost'];
    await expect(A.session.send('\u2029x\u2028\r\n')).rejects.toThrow(code('unavailable'));
    const again = await resumed(A);
    expect(again.peer.topic).toBe('a\u2028b\nc\u2029\ud800');
    await again.send('\u2029x\u2028\r\n');
    expect(await texts(B)).toEqual(['\u2029x\u2028\r\n']);
  });

  test('what is no state of this identity is refused', async () => {
    const { A, B } = await connected();
    const state = A.session.save();
    const refused = code('bad_key');
    await expect(Session.resume(state, B.identity, B.relay)).rejects.toThrow(refused);
    await expect(Session.resume(state.subarray(0, -2), A.identity, A.relay)).rejects.toThrow(refused);
    await expect(Session.resume(new Uint8Array(0), A.identity, A.relay)).rejects.toThrow(refused);
    for (const text of ['null', '{}', '[]', '{"version":1}', '{"version":2}']) {
      await expect(Session.resume(utf8(text), A.identity, A.relay)).rejects.toThrow(refused);
    }
    // One character changed anywhere, a member left out or put in, the proof of another state.
    const text = new TextDecoder().decode(state);
    for (let i = 0; i < text.length; i += 7) {
      const other = text[i] === '1' ? '2' : '1';
      const changed = text.slice(0, i) + other + text.slice(i + 1);
      await expect(Session.resume(utf8(changed), A.identity, A.relay)).rejects.toThrow(refused);
    }
    await B.session.send('more');
    await A.session.poll();
    const later = new TextDecoder().decode(A.session.save());
    for (const changed of [
      text.replace('"queue":[],', ''),
      text.replace('{', '{"__proto__":{"x":1},'),
      text.slice(0, text.lastIndexOf('"proof"')) + later.slice(later.lastIndexOf('"proof"')),
      `${text}\n`,
      ` ${text}`,
    ]) {
      expect(changed).not.toBe(text);
      await expect(Session.resume(utf8(changed), A.identity, A.relay)).rejects.toThrow(refused);
    }
    expect((await Session.resume(state, A.identity, A.relay)).peer.state).toBe('active');
  });
});

describe('nothing shows a secret', () => {
  test('objects', async () => {
    const { A, B, invite } = await connected();
    const secrets = [invite.secret.bytes(), A.identity.privateKey(), utf8(A.relay.seat!.token)];
    const { keys } = JSON.parse(new TextDecoder().decode(A.session.save()));
    const shown = [A.identity, A.session, B.session, invite, invite.secret]
      .map((o) => inspect(o, { depth: 9 }) + JSON.stringify(o))
      .join();
    for (const secret of secrets)
      for (const form of [toHex(secret), toBase64url(secret), `${secret}`]) expect(shown).not.toContain(form);
    for (const key of [keys.send.b, keys.receive.b]) expect(shown).not.toContain(key);
  });

  test('errors never quote a link', async () => {
    const invite = new Invite({
      relay: 'r.example',
      channel: randomBytes(16),
      key: randomBytes(32),
      secret: Secret.generate(),
    });
    const url = invite.url();
    const secret = toBase64url(invite.secret.bytes());
    const bad = [
      `${url}%zz`,
      `${url};`,
      ` ${url}`,
      url.replace('https', 'ht tps'),
      url.replace('r.example', 'a b'),
      `${url}x`,
      url.slice(0, -1),
    ];
    for (const link of bad) {
      const error = (() => {
        try {
          return Invite.parse(link);
        } catch (e) {
          return e;
        }
      })();
      expect(error, link).toMatchObject({ code: 'bad_invite' });
      expect(inspect(error)).not.toContain(secret.slice(0, 20));
    }
  });

  test('no key survives the handshake that is not needed', async () => {
    const { A, B } = await connected();
    for (const { session } of [A, B]) {
      const saved = JSON.parse(new TextDecoder().decode(session.save()));
      expect([saved.secret, saved.ephemeral]).toEqual([undefined, undefined]);
    }
  });
});

// --- a real relay -----------------------------------------------------------------------------------------------

const real = process.env['PARLEY_RELAY'];

describe.skipIf(real === undefined)('PARLEY_RELAY', { timeout: 300_000 }, () => {
  const session = (o: SessionOptions = {}): Session => new Session(Identity.generate(), new HttpRelay(real!), o);

  test('a thousand messages each way, a large one, a close', async () => {
    for (const closer of [0, 1]) {
      const events: unknown[] = [];
      const both = [session({ onEvent: (e) => events.push(e) }), session({ onEvent: (e) => events.push(e) })] as const;
      const [opener, joiner] = both;
      await joiner.join((await opener.open('real')).url());
      await opener.send('queued');
      await opener.poll();
      expect((await joiner.poll(5000)).map((m) => m.text)).toEqual(['queued']);
      expect(joiner.peer.topic).toBe('real');
      for (const [from, to] of [
        [opener, joiner],
        [joiner, opener],
      ] as const) {
        const said = [...Array.from({ length: 1000 }, (_, i) => `message ${i} \ud83d\ude80`), 'q'.repeat(61_440)];
        const sending = (async () => {
          for (const text of said) await from.send(text);
        })();
        const heard: string[] = [];
        while (heard.length < said.length) heard.push(...(await to.poll(30_000)).map((m) => m.text));
        await sending;
        expect(heard).toEqual(said);
      }
      await both[closer]!.close('outcome');
      expect(await both[1 - closer]!.poll(5000)).toMatchObject([{ kind: 'close', text: 'outcome' }]);
      expect(events).toEqual([]);
    }
  });

  test('refusals', async () => {
    const [opener, joiner, third] = [session(), session(), session()];
    const invite = await opener.open('t');
    const { relay, channel, key } = invite;
    const wrong = new Invite({ relay, channel, key, secret: Secret.generate() });
    await expect(joiner.join(wrong)).rejects.toThrow(code('relay_refused', { reason: 'token' }));
    const nowhere = new Invite({ relay, key, channel: randomBytes(16), secret: invite.secret });
    await expect(joiner.join(nowhere)).rejects.toThrow(code('relay_refused', { reason: 'no-channel' }));
    await joiner.join(invite);
    await expect(third.join(invite)).rejects.toThrow(code('relay_refused', { reason: 'full' }));
    const direct = new HttpRelay(real!);
    await expect(direct.open(channel, 'x')).rejects.toThrow(code('relay_refused', { reason: 'exists' }));
    const seat = await direct.open(randomBytes(16), 'x');
    const frame = { channel: seat.channel, seq: 1n, type: 1, payload: new Uint8Array(1) };
    await expect(direct.send(seat, frame)).rejects.toThrow(code('relay_refused', { reason: 'nobody' }));
  });

  test('a session is resumed', async () => {
    const [opener, joiner] = [session(), Identity.generate()];
    let other = new Session(joiner, new HttpRelay(real!));
    await other.join(await opener.open('t'));
    other = await Session.resume(other.save(), joiner, new HttpRelay(real!));
    await opener.poll();
    await other.poll();
    other = await Session.resume(other.save(), joiner, new HttpRelay(real!));
    await other.send('after two lives');
    expect((await opener.poll(5000)).map((m) => m.text)).toEqual(['after two lives']);
    await opener.send('heard');
    expect((await other.poll(5000)).map((m) => m.text)).toEqual(['heard']);
  });
});
