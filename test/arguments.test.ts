import { expect, test } from 'vitest';
import * as lib from '../src/technocore-rpc.ts';
import { signer, world } from './support.ts';

// What types promise, JavaScript does not: whoever forgets an argument is told which, by an error of ours.

const WRONG = [undefined, null, 5, { a: 1 }, ['a']];
const key = new Uint8Array(32);
const alice = signer(1);
const { o } = world();
const reply = { ...o, replyTo: 'mb-p-mine' };
const L = lib as any;

/** Each with good arguments, of which one at a time is spoilt; it ends before it would need the service. */
const CALLS: [name: string, good: unknown[], run: (...args: any[]) => unknown][] = [
  ['say', ['p-x', 'nick', 'text'], (...a) => L.say(...a, o)],
  ['read', ['p-x'], (a) => L.read(a, o)],
  ['follow', ['p-x'], (a) => L.follow(a, o).next()],
  ['base', ['http://x'], (base) => L.read('p-x', { ...o, base: base ?? 5 })],
  ['setNote', ['ns', 'key', 'value'], (...a) => L.setNote(...a, o)],
  ['setNote, if', ['value'], (a) => L.setNote('ns', 'key', 'value', { ...o, if: a ?? 5 })],
  ['getNote', ['ns', 'key'], (...a) => L.getNote(...a, o)],
  ['listNotes', ['ns'], (a) => L.listNotes(a, o)],
  ['claimRoom', ['d-x', alice], (...a) => L.claimRoom(...a, o)],
  ['allowWriters', ['d-x', [alice.did], alice], (...a) => L.allowWriters(...a, o)],
  ['signer.say', ['p-x', 'text'], (...a) => L.Signer.prototype.say.call(alice, ...a, o)],
  ['signer.sign', ['text'], (a) => alice.sign(a)],
  ['signer.signMessage', ['p-x', 'text'], (room, text) => alice.signMessage(room, '1', text)],
  ['signer.signNote', ['ns', 'key', 'text'], (ns, name, text) => alice.signNote(ns, name, '1', text)],
  ['call', ['mb-p-x', 'm', alice, 'mb-p-y'], (to, m, s, replyTo) => L.call(to, m, {}, s, { ...o, replyTo })],
  ['notify', ['mb-p-x', 'm', alice], (to, m, s) => L.notify(to, m, {}, s, o)],
  ['serve', ['mb-p-x', alice], (...a) => L.serve(...a, o)],
  ['publishIdentity', [alice], (a) => L.publishIdentity(a, {}, o)],
  ['resolveIdentity', [alice.did], (a) => L.resolveIdentity(a, o)],
  ['sweep', ['text'], (a) => L.sweep(a)],
  ['tool', ['name'], (name) => L.tool(name, '', {}, () => 1, { tools: new Map() })],
  ['mcpListTools', ['mb-p-x', alice], (...a) => L.mcpListTools(...a, reply)],
  ['mcpCallTool', ['mb-p-x', alice], (to, s) => L.mcpCallTool(to, 'tool', {}, s, reply)],
  ['a2aSend', ['mb-p-x', alice], (to, s) => L.a2aSend(to, 'hi', s, reply)],
  ['a2aCreate', ['task'], (a) => L.a2aCreate(a, o)],
  ['a2aAdvance', ['task', 'submitted', 'working'], (...a) => L.a2aAdvance(...a, o)],
  ['e2eSeal', [key, 'text'], (...a) => L.e2eSeal(...a)],
  ['e2eSend', ['p-x', key, 'text'], (...a) => L.e2eSend(...a, o)],
  ['sealed', ['p-x', key, alice], (...a) => L.sealed(...a, o)],
  ['acceptSealed', ['mb-p-x', alice], (to, s) => L.acceptSealed(to, s, () => {}, o)],
];

test.each(CALLS)('%s is told apart from what it cannot use', async (_name, good, run) => {
  for (const i of good.keys()) {
    for (const wrong of WRONG) {
      const error = await (async () => run(...good.map((right, j) => (j === i ? wrong : right))))().then(
        () => 'no error',
        (e) => e,
      );
      expect([i, wrong, lib.TechnocoreError.is(error), String(error)]).toEqual([i, wrong, true, expect.anything()]);
      expect(error.code).toMatch(/^bad_/);
    }
  }
});

test('the error names what is missing', async () => {
  await expect(L.say('p-x', 'hello')).rejects.toThrow('the text must be a string, and is undefined');
  await expect(L.setNote('p-x', 'k')).rejects.toThrow('the value of a note must be a string, and is undefined');
  await expect(L.setNote('p-x', 'k', { a: 1 })).rejects.toThrow('the value of a note must be a string, and is object');
  await expect(L.read()).rejects.toMatchObject({ message: expect.stringMatching(/^a room .*: got undefined$/) });
  await expect(L.call('mb-p-x', 'm', {}, alice, o)).rejects.toThrow(/needs the option replyTo/);
  for (const schema of [undefined, null]) {
    expect(() => L.tool('name', '', schema, () => 1)).toThrow(lib.TechnocoreError);
  }
  for (const m of [undefined, null, 5]) {
    expect([lib.verifyMessage('x', m as any), lib.explain('x', m as any)]).toEqual(['invalid', 'not a message']);
  }
});
