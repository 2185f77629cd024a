import { describe, expect, test } from 'vitest';
import { compileForeignSchema, compileSchema } from '../src/schema.ts';

const check = (schema: object, value: unknown) =>
  compileSchema(schema, 'input').check(value) as { value?: unknown; problem?: string };
const ok = (schema: object, value: unknown) => check(schema, value).problem === undefined;
const refused = (schema: unknown) =>
  expect(() => compileSchema(schema as object, 'input')).toThrow(expect.objectContaining({ code: 'bad_schema' }));

describe('JSON Schema 2020-12', () => {
  test('keywords of each kind constrain', () => {
    const cases: [object, unknown, unknown][] = [
      [{ type: ['integer', 'null'] }, 1, 1.5],
      [{ const: { a: [1] } }, { a: [1] }, { a: [2] }],
      [{ enum: [1, 'x', null] }, null, 2],
      [{ minimum: 1, exclusiveMaximum: 3, multipleOf: 0.5 }, 2.5, 3],
      [{ minLength: 2, maxLength: 2 }, '👍👍', '👍'],
      [{ pattern: '^\\p{L}+$' }, 'é', '1'],
      [{ format: 'date-time' }, '2026-07-28T00:00:00Z', 'yesterday'],
      [{ prefixItems: [{ type: 'string' }], items: { type: 'number' }, minItems: 1 }, ['a', 1], ['a', 'b']],
      [{ contains: { const: 1 }, minContains: 2, maxContains: 2 }, [1, 1, 2], [1, 1, 1]],
      [{ uniqueItems: true }, [1, [1], '1'], [{ a: 1 }, { a: 1 }]],
      [{ required: ['a'], dependentRequired: { a: ['b'] } }, { a: 1, b: 1 }, { a: 1 }],
      [{ patternProperties: { '^n': { type: 'number' } }, additionalProperties: false }, { n1: 1 }, { x: 1 }],
      [{ propertyNames: { maxLength: 1 }, maxProperties: 2 }, { a: 1 }, { ab: 1 }],
      [{ allOf: [{ properties: { a: {} } }], unevaluatedProperties: false }, { a: 1 }, { b: 1 }],
      [{ anyOf: [{ prefixItems: [true] }], unevaluatedItems: false }, [1], [1, 2]],
      [{ oneOf: [{ minimum: 1 }, { minimum: 5 }] }, 2, 6],
      [{ not: { type: 'string' } }, 1, 'a'],
      // biome-ignore lint/suspicious/noThenProperty: a keyword
      [{ if: { minimum: 5 }, then: { multipleOf: 2 }, else: { multipleOf: 3 } }, 6, 5],
      [{ dependentSchemas: { a: { required: ['b'] } } }, { a: 1, b: 1 }, { a: 1 }],
      [{ $defs: { n: { $anchor: 'n', type: 'number' } }, $ref: '#n' }, 1, 'a'],
      [{ $id: 'https://example.org/s', $defs: { n: { $id: 'n', type: 'number' } }, $ref: 'n' }, 1, 'a'],
      [
        { properties: { next: { $ref: '#' }, n: { type: 'number' } } },
        { next: { next: { n: 1 } } },
        { next: { n: 'a' } },
      ],
      [false, undefined, 1],
    ] as [object, unknown, unknown][];
    for (const [schema, good, wrong] of cases) {
      if (good !== undefined) expect(check(schema, good), JSON.stringify(schema)).toEqual({ value: good });
      expect(ok(schema, wrong), JSON.stringify(schema)).toBe(false);
    }
  });

  test('a dynamic reference within one schema is a plain one', () => {
    const tree = {
      $dynamicAnchor: 'node',
      type: 'object',
      properties: { children: { type: 'array', items: { $dynamicRef: '#node' } } },
      required: ['children'],
    };
    expect(ok(tree, { children: [{ children: [] }] })).toBe(true);
    expect(ok(tree, { children: [{}] })).toBe(false);
    refused({ $id: 'https://example.org/a', $defs: { b: { $id: 'b', ...tree } } });
    refused({ $dynamicRef: '#a', $ref: '#/$defs/a', $defs: { a: { $dynamicAnchor: 'a' } } });
  });

  test('references lead to names, to places, and over addresses within', () => {
    const schema = {
      $id: 'https://example.org/a/b',
      properties: {
        'x/y~z %': { type: 'number' },
        no: false,
        far: { $ref: 'd#/$defs/e' },
        near: { $ref: '#/properties/x~1y~0z%20%25' },
        never: { $ref: '#/properties/no' },
      },
      $defs: { c: { $id: 'd', $defs: { e: { type: 'string' } }, properties: { f: { $ref: '#/$defs/e' } } } },
      dependentSchemas: { f: { $ref: '#/$defs/c' } },
    };
    expect(ok(schema, { far: 'a', near: 1, f: 'b' })).toBe(true);
    for (const wrong of [{ far: 1 }, { near: 'a' }, { never: 1 }, { f: 1 }]) expect(ok(schema, wrong)).toBe(false);
  });

  test('an anchor belongs to the address that it is in', () => {
    const inner = { $id: 'https://example.org/b', $anchor: 'n', maximum: 2 };
    for (const $defs of [
      { a: { $anchor: 'n', maximum: 10 }, inner },
      { inner, a: { $anchor: 'n', maximum: 10 } },
    ]) {
      const schema = { $id: 'https://example.org/a', $ref: '#n', $defs };
      expect(ok(schema, 5)).toBe(true);
      expect(ok(schema, 50)).toBe(false);
      expect(ok({ ...schema, $ref: 'b#n' }, 5)).toBe(false);
    }
  });

  test('what is left over is what no part that holds has spoken of', () => {
    const left = { unevaluatedProperties: false };
    const a = { properties: { a: true } };
    // A part does not see what its neighbours saw.
    expect(ok({ allOf: [a, left] }, { a: 1 })).toBe(false);
    expect(ok({ ...left, anyOf: [{ ...a, required: ['b'] }, true] }, { a: 1 })).toBe(false);
    expect(ok({ ...left, not: { not: a } }, { a: 1 })).toBe(false);
    expect(ok({ ...left, $ref: '#/$defs/a', $defs: { a } }, { a: 1 })).toBe(true);
    expect(ok({ ...left, if: a, else: false }, { a: 1 })).toBe(true);
    expect(ok({ unevaluatedItems: false, contains: { const: 1 }, prefixItems: [true] }, [0, 1])).toBe(true);
    expect(ok({ unevaluatedItems: false, contains: { const: 1 }, prefixItems: [true] }, [0, 1, 2])).toBe(false);
  });

  test('the dialect must be the one that is served', () => {
    expect(ok({ $schema: 'https://json-schema.org/draft/2020-12/schema', type: 'number' }, 1)).toBe(true);
    expect(ok({ $schema: 'https://json-schema.org/draft/2020-12/schema#' }, 1)).toBe(true);
    for (const $schema of [
      'http://json-schema.org/draft-07/schema#',
      'https://json-schema.org/draft/2019-09/schema',
      '',
      5,
    ])
      refused({ $schema });
    refused({ properties: { a: { $schema: 'http://json-schema.org/draft-04/schema#' } } });
  });

  test('what constrains by mistake, or not at all, is refused', () => {
    const cyclic: { allOf: unknown[] } = { allOf: [] };
    cyclic.allOf.push(cyclic);
    let deep: object = {};
    for (let i = 0; i < 70; i++) deep = { not: deep };
    for (const schema of [
      cyclic,
      deep,
      [],
      'string',
      () => {},
      { n: 1n },
      { type: [] },
      { type: 'any' },
      { required: ['a', 1] },
      { enum: 'a' },
      { minLength: -1 },
      { multipleOf: 0 },
      { pattern: '[' },
      { patternProperties: { '[': {} } },
      { allOf: [] },
      { items: [{}] },
      { properties: { a: null } },
      { properties: [] },
      { additionalItems: false },
      { $recursiveRef: '#' },
      { dependencies: {} },
      { $ref: '#/nowhere' },
      { $ref: 'https://example.org/other' },
      { $ref: 'file:///etc/passwd' },
      { $ref: 'http://[' },
      { $id: 'https://example.org/a', $defs: { b: { $id: 'https://example.org/a' } } },
      { properties: { '\ud800': { type: 'string' } } },
      { $ref: '#a' },
      { $ref: '#%zz' },
      { $ref: '#/required', required: ['a'] },
      { $ref: '#/enum/0', enum: [{ type: 'string' }] },
      { $ref: '#/toString' },
    ]) {
      refused(schema);
    }
  });

  test('annotations and unknown keywords constrain nothing, whatever they hold', () => {
    const schema = {
      title: 't',
      default: { $ref: '#/nowhere' },
      examples: [{ type: 'nonsense' }],
      'x-mcp-header': { $ref: 'https://example.org' },
      id: 'http://[',
      deprecated: true,
      constructor: { pattern: '(' },
    };
    expect(ok(schema, 'anything')).toBe(true);
    expect(compileSchema(schema, 'input').json).toEqual(schema);
  });

  test('members called like those of Object.prototype', () => {
    const schema = JSON.parse(
      '{"properties":{"__proto__":{"type":"number"},"constructor":{"type":"number"}},"required":["__proto__"]}',
    );
    expect(ok(schema, JSON.parse('{"__proto__":1}'))).toBe(true);
    expect(ok(schema, {})).toBe(false);
    expect(ok(schema, JSON.parse('{"__proto__":1,"constructor":"a"}'))).toBe(false);
    expect(ok({ required: ['toString'] }, {})).toBe(false);
    expect(ok({ additionalProperties: false }, JSON.parse('{"__proto__":{}}'))).toBe(false);
  });
});

describe('bounds', () => {
  const nested = (depth: number) => JSON.parse(`${'['.repeat(depth)}${']'.repeat(depth)}`);

  test('depth and number of values', () => {
    expect(ok({}, nested(64))).toBe(true);
    for (const value of [nested(66), nested(100_000), Array(10_001).fill(0)]) {
      expect(check({}, value).problem).toContain('nested');
      expect(check({ '~standard': { validate: () => ({ value }) } }, value)).toHaveProperty('problem');
    }
  });

  test('a recursive schema with alternatives does not take exponential time', () => {
    const schema = {
      $defs: {
        node: { anyOf: [{ items: { $ref: '#/$defs/node' } }, { items: { $ref: '#/$defs/node' }, minItems: 1 }] },
      },
      $ref: '#/$defs/node',
    };
    expect(check(schema, nested(60)).problem).toContain('complex');
    expect(ok(schema, nested(8))).toBe(true);
  });

  test('each check has the whole budget', () => {
    const { check: run } = compileSchema({ items: { type: 'number' } }, 'input');
    for (let i = 0; i < 3; i++) expect(run(Array(9000).fill(0))).not.toHaveProperty('problem');
  });

  test('a schema that goes round in circles ends', () => {
    expect(
      check({ $defs: { a: { $ref: '#/$defs/b' }, b: { $ref: '#/$defs/a' } }, $ref: '#/$defs/a' }, 1).problem,
    ).toContain('complex');
  });

  test('addresses within addresses, and those of long names, take neither exponential time nor much memory', () => {
    const nested = (depth: number): object =>
      depth === 0 ? { type: 'string' } : { $id: `a${depth}`, items: nested(depth - 1) };
    expect(ok(nested(4), [[[['a']]]])).toBe(true);
    expect(ok(nested(4), [[[[1]]]])).toBe(false);
    refused(nested(5));
    const many = Object.fromEntries(Array.from({ length: 2000 }, (_, i) => [`n${i}`, { type: 'string' }]));
    refused({ properties: { ['x'.repeat(1000)]: { properties: many } } });
    // Each would be read together with the long one, for a minute in all.
    const long = `https://example.org/${'x'.repeat(40_000)}/`;
    for (const keyword of ['$id', '$anchor'])
      refused({ $id: long, allOf: Object.keys(many).map((name) => ({ [keyword]: name })) });
    refused({ $id: long, allOf: Object.keys(many).map(() => ({ $ref: '#' })) });
    expect(ok({ $id: long, $defs: { n: { type: 'string' } }, $ref: '#/$defs/n' }, 'a')).toBe(true);
    refused({ $id: JSON.parse(`${'['.repeat(900)}${']'.repeat(900)}`) });
  });

  test('long lists in the schema of a stranger, for each of many values, end before they fill the memory', () => {
    const names = Array.from({ length: 9000 }, (_, i) => `n${i}`);
    const values = (of: unknown) => Array(9000).fill(of);
    const members = Object.fromEntries(names.map((name) => [name, 1]));
    for (const [schema, value] of [
      [{ contains: { required: names } }, values({})],
      [{ contains: { enum: names } }, values(1)],
      [{ contains: { allOf: names.map(() => ({ type: 'string' })) } }, values(1)],
      [{ contains: { dependentRequired: { a: names } } }, values({ a: 1 }).slice(0, 4000)],
      [{ allOf: names.map(() => ({ maxLength: 1e6 })) }, 'x'.repeat(90_000)],
      [{ allOf: names.map(() => ({ properties: { x: true } })), unevaluatedProperties: false }, members],
      [{ allOf: names.map(() => ({ additionalProperties: true })) }, members],
    ] as const) {
      expect(compileForeignSchema(schema).check(value)).toHaveProperty('problem', expect.stringContaining('complex'));
    }
    // What a server may well send.
    const rows = Array.from({ length: 900 }, (_, i) => ({ id: i, name: `n${i}`, tags: ['a', 'b'] }));
    const row = {
      type: 'object',
      properties: { id: { type: 'integer' }, name: { enum: names.slice(0, 900) }, tags: { items: { type: 'string' } } },
      required: ['id', 'name'],
    };
    expect(compileForeignSchema({ items: row }).check(rows)).toEqual({ value: rows });
    expect(compileForeignSchema({ additionalProperties: { type: 'number' } }).check(members)).toEqual({
      value: members,
    });
  });

  test('only so many items are compared with each other', () => {
    const items = Array.from({ length: 1001 }, (_, i) => i);
    expect(check({ uniqueItems: true }, items).problem).toContain('1000');
    expect(ok({ uniqueItems: true }, items.slice(1))).toBe(true);
    expect(ok({ uniqueItems: false }, items)).toBe(true);
  });

  test('the schema of a stranger has no patterns, and what they would make weaker is none of ours', () => {
    const foreign = (schema: object, value: unknown) =>
      (compileForeignSchema(schema).check(value) as { problem?: string }).problem;
    expect(foreign({ pattern: '^(a+)+$', format: 'email' }, `${'a'.repeat(100)}!`)).toBe(undefined);
    expect(foreign({ uniqueItems: true }, [1, 1])).toBe(undefined);
    for (const schema of [
      { not: { pattern: 'a' } },
      { if: { uniqueItems: true } },
      { patternProperties: { a: true }, not: { type: 'string' } },
      { contains: { pattern: 'a' }, maxContains: 1 },
    ]) {
      expect(() => compileForeignSchema(schema)).toThrow(expect.objectContaining({ code: 'bad_schema' }));
      expect(() => compileSchema(schema, 'output')).not.toThrow();
    }
  });

  test('the pattern of a format that is none is not tried', () => {
    for (const format of ['url', 'toString', 'constructor', '__proto__', 'hasOwnProperty'])
      expect(ok({ format }, `http://${'a'.repeat(1000)}!`)).toBe(true);
  });
});

describe('what is said', () => {
  test('where and what, not all the ways there', () => {
    const schema = {
      properties: {
        list: { items: { properties: { n: { type: 'number' } }, required: ['n', 'm'], additionalProperties: false } },
      },
    };
    expect(check(schema, { list: [{ n: 'a' }] }).problem).toBe(
      '/list/0: Instance does not have required property "m".\n/list/0/n: Instance type "string" is invalid. Expected "number".',
    );
    expect(check(schema, { list: [{ n: 1, m: 1 }] }).problem).toContain('"m"');
    expect(check(false as unknown as object, 1).problem).toBe('False boolean schema.');
  });

  test('shortly, whatever came', () => {
    const { problem } = check(
      { additionalProperties: false },
      Object.fromEntries(Array.from({ length: 100 }, (_, i) => ['x'.repeat(1000) + i, 1])),
    );
    expect(problem!.length).toBeLessThan(1600);
  });
});

describe('Standard Schema', () => {
  const make = (validate: (v: any) => unknown, more: object = {}) =>
    compileSchema({ '~standard': { version: 1, vendor: 'test', validate, ...more } }, 'output');

  test('sync, async, converting', async () => {
    expect(await make((v) => ({ value: Number(v) })).check('5')).toEqual({ value: 5 });
    expect(await make(async (v) => ({ value: v })).check('5')).toEqual({ value: '5' });
    const issues = [{ message: 'bad', path: ['a', { key: 0 }, Symbol('s')] }, { message: 'worse' }];
    expect(await make(() => ({ issues })).check(1)).toEqual({ problem: '/a/0/Symbol(s): bad\nworse' });
  });

  test('one that throws says no', async () => {
    const boom = () => {
      throw new Error('secret');
    };
    expect(await make(boom).check(1)).toEqual({ problem: 'the value cannot be checked' });
    expect(await make(async () => boom()).check(1)).toEqual({ problem: 'the value cannot be checked' });
  });

  test('a function may be one, and its JSON form depends on the side', () => {
    const jsonSchema = { input: () => ({ type: 'string' }), output: () => ({ type: 'number' }) };
    const schema = Object.assign(() => {}, { '~standard': { validate: (value: unknown) => ({ value }), jsonSchema } });
    expect(compileSchema(schema, 'input').json).toEqual({ type: 'string' });
    expect(compileSchema(schema, 'output').json).toEqual({ type: 'number' });
    expect(make((value) => ({ value })).json).toBe(undefined);
    const none = () => {
      throw new Error('no JSON form');
    };
    expect(make((value) => ({ value }), { jsonSchema: { input: none, output: none } }).json).toBe(undefined);
  });
});
