import { existsSync, readFileSync } from 'node:fs';
import { specTypeSchemas } from '@modelcontextprotocol/client';
import { expect, test } from 'vitest';
import { compileSchema } from '../src/schema.ts';

export const vectors: any = JSON.parse(readFileSync(new URL('vectors/mcp-frames.json', import.meta.url), 'utf8'));

// --- what every frame of ours is held against --------------------------------------------------------------------

const spec = specTypeSchemas as unknown as {
  [name: string]: { '~standard': { validate(v: unknown): { issues?: unknown } } };
};

export function specIssues(name: string, value: unknown): unknown {
  return spec[name]!['~standard'].validate(value).issues;
}

/** The schema of the revision, where the environment names the file; its definitions are stricter than the SDK's. */
const official = process.env['MCP_SCHEMA'];
const officialSchema = official && existsSync(official) ? JSON.parse(readFileSync(official, 'utf8')) : undefined;
const compiled = new Map<string, ReturnType<typeof compileSchema>>();

const RESULTS: { [definition: string]: string } = {
  DiscoverResultResponse: 'DiscoverResult',
  ListToolsResultResponse: 'ListToolsResult',
  CallToolResultResponse: 'CallToolResult',
  SubscriptionsListenResultResponse: 'SubscriptionsListenResult',
  ListResourcesResultResponse: 'ListResourcesResult',
  ListResourceTemplatesResultResponse: 'ListResourceTemplatesResult',
  ReadResourceResultResponse: 'ReadResourceResult',
  ListPromptsResultResponse: 'ListPromptsResult',
  GetPromptResultResponse: 'GetPromptResult',
  CompleteResultResponse: 'CompleteResult',
};
const BY_METHOD: { [method: string]: string } = {
  'notifications/progress': 'ProgressNotification',
  'notifications/message': 'LoggingMessageNotification',
  'notifications/cancelled': 'CancelledNotification',
  'notifications/tools/list_changed': 'ToolListChangedNotification',
  'notifications/subscriptions/acknowledged': 'SubscriptionsAcknowledgedNotification',
  'notifications/resources/updated': 'ResourceUpdatedNotification',
};

/** Throws unless a frame of ours is what the specification calls `definition`. */
export function conforms(frame: any, definition: string): void {
  if ('method' in frame) {
    expect(specIssues('JSONRPCNotification', frame), JSON.stringify(frame)).toBe(undefined);
    expect(specIssues(BY_METHOD[frame.method]!, frame), JSON.stringify(frame)).toBe(undefined);
  } else if ('error' in frame) {
    expect(specIssues('JSONRPCErrorResponse', frame), JSON.stringify(frame)).toBe(undefined);
  } else {
    expect(specIssues('JSONRPCResultResponse', frame), JSON.stringify(frame)).toBe(undefined);
    expect(['complete', 'input_required']).toContain(frame.result.resultType);
    expect(frame.result._meta['io.modelcontextprotocol/serverInfo']).toHaveProperty('version');
    if (frame.result.resultType === 'complete') expect(specIssues(RESULTS[definition]!, frame.result)).toBe(undefined);
  }
  if (officialSchema !== undefined) {
    let schema = compiled.get(definition);
    if (schema === undefined) {
      schema = compileSchema({ ...officialSchema, $ref: `#/$defs/${definition}` }, 'input');
      compiled.set(definition, schema);
    }
    expect(schema.check(frame), `${definition} ${JSON.stringify(frame)}`).toEqual({ value: frame });
  }
}

export function definitionOf(request: any, frame: any): string {
  if ('method' in frame) return BY_METHOD[frame.method]!;
  if ('error' in frame) {
    const special: { [code: number]: string } = {
      [-32021]: 'MissingRequiredClientCapabilityError',
      [-32022]: 'UnsupportedProtocolVersionError',
    };
    return special[frame.error.code] ?? 'JSONRPCErrorResponse';
  }
  return {
    'server/discover': 'DiscoverResultResponse',
    'tools/list': 'ListToolsResultResponse',
    'tools/call': 'CallToolResultResponse',
    'subscriptions/listen': 'SubscriptionsListenResultResponse',
    'resources/list': 'ListResourcesResultResponse',
    'resources/templates/list': 'ListResourceTemplatesResultResponse',
    'resources/read': 'ReadResourceResultResponse',
    'prompts/list': 'ListPromptsResultResponse',
    'prompts/get': 'GetPromptResultResponse',
    'completion/complete': 'CompleteResultResponse',
  }[request.method as string]!;
}

// --- the recorded cases ------------------------------------------------------------------------------------------

/** Cases on what the official SDK does over a bridge: this layer has no such feature. */
const BRIDGE = new Set([
  'listen-resource-updates',
  'resources-list',
  'resources-read',
  'resource-not-found',
  'resource-templates-list',
  'prompts',
  'completion',
]);

/** A way to a fresh server with the tools of the fixture. */
export interface Driver {
  /** Puts a frame into the server. `wanted`: as many frames are to come back. */
  exchange(frame: any, wanted: number): Promise<{ frames: any[]; pending: boolean }>;
  /** True for a frame that is not answered on this way, since it names no place for that. */
  nameless?(frame: any): boolean;
  close(): unknown;
}

/** Expected frames as they are without what is declared beyond tools, which is the bridge's. */
function ours(frame: any): any {
  if (frame.result?.capabilities === undefined) return frame;
  return { ...frame, result: { ...frame.result, capabilities: { tools: { listChanged: true }, logging: {} } } };
}

/** The cases as tests, each against a server that `start` begins: those that concern tools, or those that do not. */
export function recordedCases(start: () => Promise<Driver>, about: 'tools' | 'others' = 'tools'): void {
  const isOther = about === 'others';
  const kept = new Map<string, unknown>();

  function matches(got: any, want: any): boolean {
    if (typeof want === 'string' && want.startsWith('$')) {
      const [kind, name] = want.slice(1).split(':') as [string, string];
      if (kind === 'text') return typeof got === 'string' && got !== '';
      if (kind === 'nat') return Number.isInteger(got) && got >= 0;
      if (kind === 'keep') return got !== undefined && kept.set(name, got) !== undefined;
      if (kind === 'use') return got === kept.get(name);
      return got !== undefined;
    }
    if (Array.isArray(want))
      return Array.isArray(got) && got.length === want.length && want.every((w, i) => matches(got[i], w));
    if (typeof want === 'object' && want !== null) {
      return typeof got === 'object' && got !== null && Object.keys(want).every((key) => matches(got[key], want[key]));
    }
    return got === want;
  }

  function filled(value: any): any {
    if (typeof value === 'string') return value.startsWith('$use:') ? kept.get(value.slice(5)) : value;
    if (Array.isArray(value)) return value.map(filled);
    if (typeof value !== 'object' || value === null) return value;
    return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, filled(member)]));
  }

  test('51 cases are here, 44 of them concern tools', () => {
    expect(vectors.cases).toHaveLength(51);
    expect(vectors.cases.filter((c: any) => !BRIDGE.has(c.name))).toHaveLength(44);
  });

  for (const { name, steps } of vectors.cases.filter((c: any) => BRIDGE.has(c.name) === isOther)) {
    test(name, async () => {
      kept.clear();
      const driver = await start();
      for (const step of steps) {
        const frame = filled(step.send);
        const expected = isOther ? step.expect : step.expect.map(ours);
        const want = driver.nameless?.(frame) ? [] : expected;
        const { frames, pending } = await driver.exchange(frame, want.length);
        const shown = `${JSON.stringify(frame)}\n-> ${JSON.stringify(frames)}\nnot ${JSON.stringify(want)}`;
        expect(frames.length, shown).toBe(want.length);
        const left = [...frames];
        want.forEach((w: any, i: number) => {
          const at = step.anyOrder ? left.findIndex((f) => matches(f, w)) : i;
          expect(at >= 0 && matches(left[at], w), shown).toBe(true);
          conforms(left[at], step.schema[i + 1]);
          if (step.anyOrder) left.splice(at, 1);
        });
        for (const path of step.absent ?? []) {
          const found = path.split('.').reduce((value: any, key: string) => value?.[key], frames.at(-1));
          expect(found, `${path} in ${shown}`).toBe(undefined);
        }
        if (step.pending) expect(pending, shown).toBe(true);
      }
      await driver.close();
    });
  }
}
