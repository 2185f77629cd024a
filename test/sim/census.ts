import { Session } from 'node:inspector';

interface Remote {
  type: string;
  subtype?: string;
  className?: string;
  objectId?: string;
}
interface Property {
  name: string;
  value?: Remote;
}

/** Entries of a collection that are looked into: those of one are alike. */
const LOOKED_INTO = 3;
const MAX_DEPTH = 12;

/**
 * How much every collection holds that can be reached from an object, private members included: by the path of members
 * that leads there, each class only once.
 */
export function census(root: object): Map<string, number> {
  const session = new Session();
  session.connect();
  const post = (method: string, params: object): any => {
    let answer: any;
    session.post(method as 'Runtime.evaluate', params as never, (cause, result) => {
      if (cause) throw cause;
      answer = result;
    });
    return answer;
  };
  const sizes = new Map<string, number>();
  const seen = new Set<unknown>();
  const global = globalThis as { __census?: { root: object; isNew(value: object): boolean } };
  global.__census = {
    root,
    isNew: (value) => {
      if (seen.has(value)) return false;
      seen.add(value);
      return true;
    },
  };
  const ask = (objectId: string, body: string): any =>
    post('Runtime.callFunctionOn', { objectId, functionDeclaration: `function () { ${body} }`, returnByValue: true })
      .result.value;
  const walk = (remote: Remote, path: string, depth: number): void => {
    const { objectId, subtype = '', className = '' } = remote;
    if (!objectId || depth > MAX_DEPTH || !ask(objectId, 'return globalThis.__census.isNew(this)')) return;
    if (['map', 'set', 'array'].includes(subtype)) {
      const size = ask(objectId, 'return this.size ?? this.length');
      sizes.set(path, Math.max(size, sizes.get(path) ?? 0));
    }
    const { result, internalProperties, privateProperties } = post('Runtime.getProperties', {
      objectId,
      ownProperties: true,
    });
    if (subtype === 'map' || subtype === 'set') {
      const entries = (internalProperties as Property[]).find(({ name }) => name === '[[Entries]]')?.value;
      const { result: list } = post('Runtime.getProperties', { objectId: entries!.objectId, ownProperties: true });
      const some = (list as Property[])
        .filter(({ name }) => /^\d+$/.test(name))
        .slice(0, depth === 0 ? undefined : LOOKED_INTO);
      for (const { value } of some) {
        const { result: parts } = post('Runtime.getProperties', { objectId: value!.objectId, ownProperties: true });
        for (const part of parts as Property[]) {
          if (/^(key|value)$/.test(part.name) && part.value) walk(part.value, `${path}[]`, depth + 1);
        }
      }
      return;
    }
    const members = [...(result as Property[]), ...((privateProperties ?? []) as Property[])];
    const known =
      subtype === 'array' ? members.filter(({ name }) => /^\d+$/.test(name)).slice(0, LOOKED_INTO) : members;
    for (const { name, value } of known) {
      if (value?.type !== 'object' || value.subtype === 'null') continue;
      if (/^(Timeline|AbortSignal|AbortController|Promise|Uint8Array|Headers|Response)$/.test(value.className ?? ''))
        continue;
      const at =
        subtype === 'array' ? `${path}[]` : className === 'Object' ? `${path}.${name}` : `${className}.${name}`;
      walk(value, at, depth + 1);
    }
  };
  try {
    walk(post('Runtime.evaluate', { expression: 'globalThis.__census.root' }).result, 'shared', 0);
    return sizes;
  } finally {
    session.disconnect();
    delete global.__census;
  }
}
