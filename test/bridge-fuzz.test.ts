import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ChildSide } from '../src/bridge-child.ts';
import { HANDSHAKES } from '../src/bridge-handshake.ts';
import { HostSide } from '../src/bridge-host.ts';
import { classify } from '../src/dispatch.ts';
import { VirtualClock } from './virtual-clock.ts';

// Whatever comes, from either side and in any order: nothing is thrown, no timer is left, and no caller is answered twice.

const META = 'io.modelcontextprotocol';
const id = fc.oneof(
  fc.integer({ min: 0, max: 5 }),
  fc.constantFrom<any>('a', 'technocore-rpc:1', 'technocore-rpc:2', null, 1.5, {}),
);
const method = fc.constantFrom(
  ...[
    'initialize',
    'ping',
    'server/discover',
    'tools/list',
    'tools/call',
    'prompts/get',
    'resources/read',
    'resources/subscribe',
  ],
  ...[
    'resources/unsubscribe',
    'logging/setLevel',
    'subscriptions/listen',
    'elicitation/create',
    'sampling/createMessage',
    'roots/list',
  ],
  ...[
    'tasks/get',
    'constructor',
    '__proto__',
    'notifications/initialized',
    'notifications/cancelled',
    'notifications/progress',
  ],
  ...['notifications/message', 'notifications/tools/list_changed', 'notifications/resources/updated'],
  'notifications/subscriptions/acknowledged',
);
const version = fc.constantFrom(...HANDSHAKES, '2026-07-28', '1.0');
const capabilities = fc.constantFrom<any>(
  {},
  { elicitation: {}, sampling: {} },
  { tools: { listChanged: true }, resources: { subscribe: true } },
  7,
);
const members = {
  name: fc.constantFrom<any>('x', 7),
  uri: fc.constantFrom<any>('a:b', {}),
  level: fc.constantFrom<any>('info', 'loud'),
  requestId: id,
  progressToken: id,
  progress: fc.constantFrom<any>(1, 'x'),
  protocolVersion: version,
  capabilities,
  notifications: fc.constantFrom<any>({ toolsListChanged: true, resourceSubscriptions: ['a:b', 7] }, 7),
  requestState: fc.constantFrom<any>('AQEBAQEBAQEBAQEBAQEBAQ', 's', 7),
  inputResponses: fc.constantFrom<any>({ q1: { action: 'accept' }, q2: {} }, { q1: 7 }, []),
  _meta: fc.oneof(
    fc.record(
      {
        [`${META}/protocolVersion`]: version,
        [`${META}/clientCapabilities`]: capabilities,
        [`${META}/logLevel`]: fc.constantFrom('info', 'debug'),
        [`${META}/subscriptionId`]: id,
        'chat.technocore/requestId': id,
        progressToken: id,
      },
      { requiredKeys: [] },
    ),
    fc.constant<any>(7),
  ),
};
const params = fc.oneof(
  { weight: 8, arbitrary: fc.record(members, { requiredKeys: [] }) },
  fc.constantFrom<any>([], 7, null, undefined),
);
const question = fc.record({ method, params });
const result = fc.oneof(
  fc.record(
    {
      resultType: fc.constantFrom<any>('complete', 'input_required', 'task', 7),
      inputRequests: fc.oneof(fc.dictionary(fc.constantFrom('q', '__proto__', 'r'), question), fc.constant<any>(7)),
      requestState: fc.constantFrom<any>('s', 7),
      supportedVersions: fc.constantFrom<any>(['2026-07-28'], ['2025-11-25'], 7),
      protocolVersion: version,
      capabilities,
      _meta: fc.constantFrom<any>(
        { [`${META}/serverInfo`]: { name: 'x', version: '1' } },
        { [`${META}/serverInfo`]: 7 },
        7,
      ),
      action: fc.constant('accept'),
    },
    { requiredKeys: [] },
  ),
  fc.constant<any>(7),
);
const error = fc.oneof(
  fc.record({
    code: fc.constantFrom<any>(-32601, -32022, 1004, 1006, 'x'),
    message: fc.constantFrom<any>('no', 7),
    data: fc.constantFrom<any>({ supported: ['2026-07-28'] }, 7),
  }),
  fc.constant<any>(null),
);
const message = fc.oneof(
  fc.record({ jsonrpc: fc.constant('2.0'), id, method, params }),
  fc.record({ jsonrpc: fc.constant('2.0'), method, params }),
  fc.record({ jsonrpc: fc.constant('2.0'), id, result }),
  fc.record({ jsonrpc: fc.constant('2.0'), id, error }),
);
const anything = fc.oneof(
  { weight: 9, arbitrary: message },
  { weight: 1, arbitrary: fc.oneof(fc.array(message, { maxLength: 3 }), fc.jsonValue()) },
);

/** The side that messages come from, each with its message; `answer` answers the last request that went to that side. */
const steps = fc.array(
  fc.record({
    from: fc.constantFrom('one', 'other'),
    what: anything,
    answer: fc.option(fc.oneof(result, error)),
    passes: fc.constantFrom(0, 0, 0, 5000, 1_000_000),
  }),
  { maxLength: 40 },
);

/** The answer to a request that was sent, if there is one; else whatever came. */
function frameOf(target: any, answer: any, what: any): any {
  if (!answer || target === undefined) return what;
  return { jsonrpc: '2.0', id: target, ...('code' in Object(answer) ? { error: answer } : { result: answer }) };
}

/** Counts, by id, requests that came and were not answered. */
class Open {
  readonly #open = new Map<string, number>();
  ask(frame: any): void {
    if (classify(frame) === 'request')
      this.#open.set(JSON.stringify(frame.id), (this.#open.get(JSON.stringify(frame.id)) ?? 0) + 1);
  }
  answer(frame: any): void {
    if (classify(frame) !== 'response' || frame.id === undefined) return;
    const left = (this.#open.get(JSON.stringify(frame.id)) ?? 0) - 1;
    expect(left).toBeGreaterThanOrEqual(0);
    this.#open.set(JSON.stringify(frame.id), left);
  }
}

test('a host', async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (all) => {
      const clock = new VirtualClock();
      const asked: any[] = [];
      const side = new HostSide({
        clock,
        toRoom: (frame) => {
          JSON.stringify(frame);
          if (classify(frame) === 'request') asked.push(frame.id);
        },
        toHost: (frame) => {
          if (classify(frame) === 'request') asked.push(frame['id']);
        },
      });
      for (const { from, what, answer, passes } of all) {
        const frame = frameOf(asked.at(-1), answer, what);
        if (from === 'one') side.fromHost(frame);
        else side.fromRoom(frame);
        if (passes > 0) await clock.advance(passes);
      }
      side.close();
      expect(clock.sleepers).toBe(0);
    }),
    { numRuns: 500, endOnFailure: true },
  );
});

test('a server', async () => {
  await fc.assert(
    fc.asyncProperty(steps, fc.boolean(), async (all, isPublic) => {
      const clock = new VirtualClock();
      const asked: any[] = [];
      const open = new Open();
      const side = new ChildSide({
        clock,
        isPublic,
        random: (n) => new Uint8Array(n).fill(1),
        toChild: (frame) => {
          if (classify(frame) === 'request') asked.push(frame.id);
        },
        toRoom: (frame) => open.answer(frame),
      });
      side.started();
      let next = 100;
      for (const { from, what, answer, passes } of all) {
        const frame = frameOf(asked.at(-1), answer, what);
        if (from === 'one') side.fromChild(frame);
        else {
          // Ids of callers are the transport's: no two are the same.
          const request: any = classify(frame) === 'request' ? { ...(frame as object), id: next++ } : frame;
          if (typeof request === 'object' && request !== null) {
            open.ask(request);
            side.fromRoom(request, `did:key:${next % 2}`);
          }
        }
        if (passes === 5000) {
          side.stopped(100);
          side.started();
        }
        if (passes > 0) await clock.advance(passes);
      }
      side.close();
      await clock.advance(100_000);
      expect(clock.sleepers).toBe(0);
    }),
    { numRuns: 500, endOnFailure: true },
  );
});
