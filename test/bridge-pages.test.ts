import { expect, test } from 'vitest';
import { isList, pageOf, placeIn } from '../src/bridge-pages.ts';
import { encodeLong } from '../src/frames.ts';

const tools = Array.from({ length: 100 }, (_, i) => ({ name: `tool_${i}`, description: 'é'.repeat(i % 40) }));
const answer = (items: any[], nextCursor?: string): any => ({
  jsonrpc: '2.0',
  id: 'x',
  result: { tools: items, ...(nextCursor !== undefined && { nextCursor }), ttlMs: 5 },
});

/** All pages, as a caller reads them from a server that has pages of its own. */
function read(pages: Record<string, any>, limit: number): { items: any[]; asked: string[] } {
  const items: any[] = [];
  const asked: string[] = [];
  for (let cursor: string | undefined; ; ) {
    const place = placeIn(cursor === undefined ? {} : { cursor });
    asked.push(place.cursor ?? '');
    const page: any = pageOf('tools/list', pages[place.cursor ?? ''], place, limit);
    expect(encodeLong(page).length).toBeLessThanOrEqual(limit);
    expect(page.result.ttlMs).toBe(5);
    expect(page.result.tools.length).toBeGreaterThan(0);
    items.push(...page.result.tools);
    cursor = page.result.nextCursor;
    if (cursor === undefined) return { items, asked };
  }
}

test.each([400, 1000, 4096, 100_000])('every item is on one page, none of which is over %i characters', (limit) => {
  const { items, asked } = read({ '': answer(tools) }, limit);
  expect(items).toEqual(tools);
  if (limit === 100_000) expect(asked).toHaveLength(1);
  else expect(asked.length).toBeGreaterThan(1);
});

test('pages of the server’s are cut where they are too long, and followed', () => {
  const pages = { '': answer(tools.slice(0, 60), 'more'), more: answer(tools.slice(60), 'tc1.odd') } as any;
  pages['tc1.odd'] = answer([{ name: 'last' }]);
  const { items, asked } = read(pages, 1500);
  expect(items).toEqual([...tools, { name: 'last' }]);
  expect(new Set(asked)).toEqual(new Set(['', 'more', 'tc1.odd']));
});

test('an item that fits no page stands alone', () => {
  const long = { name: 'long', description: 'x'.repeat(900) };
  const list = [tools[0], long, tools[1]];
  const first: any = pageOf('tools/list', answer(list), { skip: 0 }, 500);
  expect(first.result.tools).toEqual([tools[0]]);
  const second: any = pageOf('tools/list', answer(list), placeIn({ cursor: first.result.nextCursor }), 500);
  expect(second.result.tools).toEqual([long]);
  const third: any = pageOf('tools/list', answer(list), placeIn({ cursor: second.result.nextCursor }), 500);
  expect(third.result).toEqual({ tools: [tools[1]], ttlMs: 5 });
});

test('what is no list is left as it is; what is no cursor of ours is the server’s or refused', () => {
  expect(isList('tools/call')).toBe(false);
  const odd = { jsonrpc: '2.0', id: 1, result: { tools: 'none' } };
  expect(pageOf('tools/list', odd, { skip: 0 }, 10)).toBe(odd);
  const failed = { jsonrpc: '2.0', id: 1, error: { code: 1, message: 'x' } };
  expect(pageOf('tools/list', failed, { skip: 3 }, 10)).toBe(failed);
  expect(placeIn({})).toEqual({ skip: 0 });
  expect(placeIn({ cursor: '' })).toEqual({ cursor: '', skip: 0 });
  expect(placeIn({ cursor: 'theirs' })).toEqual({ cursor: 'theirs', skip: 0 });
  const forged = ['', '!', btoa('1'), btoa('[]'), btoa('[-1]'), btoa('[1.5]'), btoa('[1,2]'), btoa('[1,"a",3]')];
  for (const cursor of forged) {
    expect(() => placeIn({ cursor: `tc1.${cursor.replace(/=+$/, '')}` })).toThrow('Unknown cursor');
  }
  // A list that became shorter meanwhile.
  expect(() => pageOf('tools/list', answer(tools), { skip: 100 }, 4096)).toThrow('Unknown cursor');
});
