import { readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';
import { toBase64url } from '../src/bytes.ts';
import { identityKeys, recordIn, x25519FromText } from '../src/identity.ts';
import { Signer } from '../src/signer.ts';

const vectors = JSON.parse(readFileSync(new URL('vectors/technocore-e2e.json', import.meta.url), 'utf8'));

const alice = Signer.fromPassphrase('alice');
const mallory = Signer.fromPassphrase('mallory');
const keyOf = (signer: Signer): string => toBase64url(identityKeys(signer).publicKey);
/** A signed record. */
const record = (signer: Signer, mailbox: string, nonce: number | string, key: string = keyOf(signer)): string =>
  `e2e: ${key} ${mailbox} ${nonce} ${signer.sign(`e2e|${signer.did}|${key}|${mailbox}|${nonce}`)}`;

describe('recordIn', () => {
  test.each(vectors.records.map((r: any) => [r.id, r]))('vector %s', (_, { root, note_value, pick }: any) => {
    const found = recordIn(root, note_value);
    expect(found && { ...found, nonce: String(found.nonce) }).toEqual(pick ?? undefined);
  });

  test('a token that begins a record inside the fields of another hides nothing', () => {
    const good = record(alice, 'mb-p-good', 5);
    for (const before of ['e2e:', 'e2e: e2e:', `e2e: ${keyOf(alice)}`, `e2e: ${keyOf(alice)} mb-p-evil 9`]) {
      expect(recordIn(alice.did, `${alice.did} ${before} ${good}`)?.mailbox).toBe('mb-p-good');
    }
  });

  test('nonces of 19 digits compare exactly', () => {
    const [a, b] = ['1788872638667723579', '1788872638667723580'];
    expect(recordIn(alice.did, `${record(alice, 'a', a)} ${record(alice, 'b', b)}`)?.mailbox).toBe('b');
    expect(recordIn(alice.did, `${record(alice, 'b', b)} ${record(alice, 'a', a)}`)?.mailbox).toBe('b');
    expect(recordIn(alice.did, record(alice, 'a', `${b}0`))).toBeUndefined();
  });

  test('a record for somebody else, whoever signed it, is inert', () => {
    expect(recordIn(alice.did, record(mallory, 'mb-p-evil', 9))).toBeUndefined();
    const key = keyOf(mallory);
    const sig = mallory.sign(`e2e|${alice.did}|${key}|mb-p-evil|9`);
    expect(recordIn(alice.did, `e2e: ${key} mb-p-evil 9 ${sig}`)).toBeUndefined();
  });
});

test('x25519FromText takes keys in their only spelling', () => {
  expect(x25519FromText(keyOf(alice))).toEqual(identityKeys(alice).publicKey);
  const low = vectors.bad_offers.filter((o: any) => o.id.startsWith('low-order')).map((o: any) => o.line.split(' ')[1]);
  expect(low.length).toBe(7);
  for (const text of ['', 'AAAA', `${keyOf(alice)}=`, ...low]) expect(x25519FromText(text)).toBeUndefined();
});

test('identityKeys are the same for one seed and others for another', () => {
  expect(identityKeys(Signer.fromPassphrase('alice'))).toEqual(identityKeys(alice));
  expect(keyOf(mallory)).not.toBe(keyOf(alice));
});
