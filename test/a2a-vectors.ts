import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

export const vectors: any = JSON.parse(readFileSync(new URL('vectors/a2a-frames.json', import.meta.url), 'utf8'));

/** What is wrong with a value, by the placeholders of the vectors; '' when nothing is. */
export function mismatch(expected: any, actual: any, kept: Map<string, unknown>, at = '$'): string {
  const wrong = `${at}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`;
  if (typeof expected === 'string' && expected.startsWith('$')) {
    const [kind, name] = expected.slice(1).split(':');
    if (kind === 'keep') {
      kept.set(name!, actual);
      return actual === undefined ? wrong : '';
    }
    const isRight: { [kind: string]: boolean } = {
      any: actual !== undefined,
      text: typeof actual === 'string' && actual !== '',
      nat: Number.isInteger(actual) && actual >= 0,
      time: typeof actual === 'string' && /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/.test(actual),
      use: JSON.stringify(actual) === JSON.stringify(kept.get(name!)),
    };
    if (!(kind! in isRight)) throw new Error(`no such placeholder: ${expected}`);
    return isRight[kind!] ? '' : wrong;
  }
  if (typeof expected !== 'object' || expected === null) return expected === actual ? '' : wrong;
  if (typeof actual !== 'object' || actual === null || Array.isArray(actual) !== Array.isArray(expected)) return wrong;
  if (Array.isArray(expected) && !at.endsWith('.data') && expected.length !== actual.length) return wrong;
  for (const name in expected) {
    // Of the details of an error more may be there than listed.
    const problem = at.endsWith('error.data')
      ? actual.some((one: any) => mismatch(expected[name], one, kept) === '')
        ? ''
        : wrong
      : mismatch(expected[name], actual[name], kept, `${at}.${name}`);
    if (problem) return problem;
  }
  return '';
}

/** A frame with what was kept in the places that say so. */
export function filled(value: any, kept: Map<string, unknown>): any {
  return JSON.parse(JSON.stringify(value), (_, v) =>
    typeof v === 'string' && v.startsWith('$use:') ? kept.get(v.slice(5)) : v,
  );
}

export interface Peer {
  /** Sends a frame; gives all that comes back for it. */
  send(frame: any): Promise<any[]>;
  close?(): unknown;
}

/** Plays a case against a fresh agent. @param check is shown every frame that was sent and came back */
export async function play(
  one: any,
  peer: Peer,
  check?: (step: any, sent: any, answers: any[]) => void,
): Promise<void> {
  const kept = new Map<string, unknown>();
  try {
    for (const step of one.steps) {
      if (step.waitMs) await new Promise((resolve) => setTimeout(resolve, step.waitMs));
      const frame = filled(step.send, kept);
      const answers = await peer.send(frame);
      expect(mismatch(step.expect, answers, kept), one.name).toBe('');
      for (const path of step.absent ?? []) {
        const found = path.split('.').reduce((value: any, name: string) => value?.[name], answers.at(-1));
        expect(found, `${one.name} ${path}`).toBe(undefined);
      }
      check?.(step, frame, answers);
    }
  } finally {
    await peer.close?.();
  }
}

/** All recorded cases as tests. */
export function playAll(make: () => Promise<Peer>, check?: Parameters<typeof play>[2]): void {
  for (const one of vectors.cases) {
    test(`${one.binding} ${one.name}`, async () => play(one, await make(), check));
  }
}
