import { createPublicKey } from 'node:crypto';
import { describe, expect, onTestFinished, test } from 'vitest';
import {
  A2A_BINDING,
  type A2ACard,
  a2aCard,
  a2aCard03,
  a2aCardNote,
  a2aCheckCard,
  a2aPublishCard,
  a2aReadCard,
  a2aSignCard,
  a2aVerifyCard,
} from '../src/a2a-card.ts';
import { toBase64url } from '../src/bytes.ts';
import { publicKeyFromDid } from '../src/names.ts';
import { getNote, setNote } from '../src/notes.ts';
import { faker, signer, world } from './support.ts';

const INFO = { name: 'Summaries', skills: [{ name: 'summarise' }], mailbox: 'mb-p-summaries' };
const BASE = { base: 'https://rooms.example' };
const card = (): A2ACard => a2aCard(INFO, BASE);
const failure = (work: () => unknown): Promise<any> =>
  (async () => work())().then(
    () => undefined,
    (cause) => cause,
  );

describe('making', () => {
  test('what is left out is filled in; the mailbox is an interface of the binding', () => {
    expect(card()).toEqual({
      name: 'Summaries',
      description: 'Summaries',
      version: '1.0.0',
      supportedInterfaces: [
        { url: 'https://rooms.example/r/mb-p-summaries', protocolBinding: A2A_BINDING, protocolVersion: '1.0' },
      ],
      capabilities: { streaming: false, pushNotifications: false },
      defaultInputModes: ['text/plain'],
      defaultOutputModes: ['text/plain'],
      skills: [{ id: 'summarise', name: 'summarise', description: 'summarise', tags: ['summarise'] }],
    });
  });

  test.each([
    [{ name: '' }, 'card.name'],
    [{ skills: [] }, 'card.skills'],
    [{ skills: [{ name: 's', tags: [] }] }, 'card.skills[0].tags'],
    [{ skills: 'all' }, 'card.skills'],
    [{ defaultInputModes: [] }, 'card.defaultInputModes'],
    [{ mailbox: undefined, supportedInterfaces: [] }, 'card.supportedInterfaces'],
    [{ mailbox: undefined }, 'card.supportedInterfaces'],
    [{ capabilities: { streaming: 'yes' } }, 'card.capabilities.streaming'],
  ])('%j is refused', async (more, field) => {
    const cause = await failure(() => a2aCard({ ...INFO, ...more } as never, BASE));
    expect(cause).toMatchObject({ code: 'bad_card', message: expect.stringContaining(`${field}: `) });
  });

  test('a mailbox that is none is refused: nobody could call it', async () => {
    for (const mailbox of ['No Name', 'lobby', 'mb', 'x-mb-y'])
      expect(await failure(() => a2aCard({ ...INFO, mailbox }, BASE))).toMatchObject({ code: 'bad_name' });
  });

  test('the form of version 0.3, and back', () => {
    const both = a2aCard({
      ...INFO,
      mailbox: undefined as never,
      supportedInterfaces: [
        { url: 'https://a.example/rpc', protocolBinding: 'JSONRPC', protocolVersion: '0.3.0' },
        { url: 'https://a.example/rest', protocolBinding: 'HTTP+JSON', protocolVersion: '0.3.0' },
      ],
      capabilities: { streaming: true, extendedAgentCard: true },
      documentationUrl: 'https://a.example/docs',
    });
    const old = a2aCard03(both);
    expect(old).toMatchObject({
      protocolVersion: '0.3.0',
      url: 'https://a.example/rpc',
      preferredTransport: 'JSONRPC',
      additionalInterfaces: [{ url: 'https://a.example/rest', transport: 'HTTP+JSON' }],
      capabilities: { streaming: true, pushNotifications: false },
      supportsAuthenticatedExtendedCard: true,
      documentationUrl: 'https://a.example/docs',
    });
    expect(old).not.toHaveProperty('supportedInterfaces');
    expect(old['capabilities']).not.toHaveProperty('extendedAgentCard');
    expect(a2aCheckCard(old)).toEqual(both);
    const { url: _, ...none } = old;
    expect(() => a2aCheckCard(none)).toThrow(/card\.url/);
  });
});

describe('signing', () => {
  const key = signer(1);

  test('a signature is that of a DID over this card, in whatever order it is written', () => {
    const signed = a2aSignCard(card(), key);
    const shuffled = Object.fromEntries(Object.entries(signed).reverse()) as A2ACard;
    expect(a2aVerifyCard(shuffled, key.did)).toBe(true);
    expect(a2aVerifyCard(signed, signer(2).did)).toBe(false);
    expect(a2aVerifyCard({ ...signed, name: 'Other' }, key.did)).toBe(false);
    expect(a2aVerifyCard(card(), key.did)).toBe(false);
    expect(a2aVerifyCard(a2aSignCard(signed, signer(2)), key.did)).toBe(true);
    for (const odd of [
      { protected: '', signature: '' },
      { protected: '!', signature: 'x' },
      { protected: 'bnVsbA', signature: 'x' },
    ]) {
      expect(a2aVerifyCard({ ...card(), signatures: [odd] }, key.did)).toBe(false);
    }
  });

  test('it is one to the published SDK too, whose signatures are ones to us', async () => {
    const { verifyAgentCardSignature, canonicalizeAgentCard } = (await import('@a2a-js/sdk')) as any;
    const signed = a2aSignCard(card(), key);
    const jwk = { kty: 'OKP', crv: 'Ed25519', x: toBase64url(publicKeyFromDid(key.did)!) };
    const publicKey = createPublicKey({ key: jwk, format: 'jwk' });
    await verifyAgentCardSignature(async (kid: string) => {
      expect(kid).toBe(key.did);
      return publicKey;
    })(signed);
    const { signatures: _, ...bare } = signed;
    expect(canonicalizeAgentCard(signed)).toBe(canonicalizeAgentCard(bare));
  });
});

describe('reading', () => {
  test('out of the note of a DID, if it signed the card', async () => {
    const w = world();
    const key = signer(1);
    expect(await w.run(a2aReadCard(key.did, w.o))).toBe(undefined);
    const path = await w.run(a2aPublishCard(card(), key, w.o));
    expect(path).toEqual(a2aCardNote(key.did));
    expect(await w.run(a2aReadCard(key.did, w.o))).toMatchObject(card());
    const stored = (await w.run(getNote(path.ns, path.key, w.o)))!;
    for (const forged of [stored.replace('Summaries', 'Forgeries'), JSON.stringify(card()), 'not a card', '[]']) {
      await w.run(setNote(path.ns, path.key, forged, w.o));
      expect(await failure(() => w.run(a2aReadCard(key.did, w.o)))).toMatchObject({ code: 'bad_card' });
    }
    const long = a2aCard({ ...INFO, description: 'x'.repeat(9000) }, BASE);
    expect(await failure(() => a2aPublishCard(long, key, w.o))).toMatchObject({ code: 'frame_too_long' });
  });

  test('from an origin: the address of both versions first, then the one of older agents', async () => {
    const { base, log } = await faker((request, response) => {
      const isThere = request.url === '/.well-known/agent.json';
      response.statusCode = isThere ? 200 : 404;
      response.end(isThere ? JSON.stringify(a2aCard03(card())) : '');
    });
    expect((await a2aReadCard(base))?.name).toBe('Summaries');
    expect(log).toEqual(['GET /.well-known/agent-card.json', 'GET /.well-known/agent.json']);
  });

  test('from any other address, as it is', async () => {
    const { base, log } = await faker((request, response) => {
      response.statusCode = request.url === '/cards/1.json' ? 200 : request.url === '/broken' ? 403 : 404;
      response.end(JSON.stringify(card()));
    });
    expect(await a2aReadCard(`${base}/cards/1.json`)).toEqual(card());
    expect(await a2aReadCard(base)).toBe(undefined);
    expect(await failure(() => a2aReadCard(`${base}/broken`))).toMatchObject({ code: 'http', status: 403 });
    expect(await failure(() => a2aReadCard('ftp://x.example'))).toMatchObject({ code: 'bad_name' });
    expect(log).toHaveLength(4);
  });

  test('fault 91: the manifest of the room service is refused, with where a card is found', async () => {
    const w = world();
    const { url, close } = await w.service.listen();
    onTestFinished(close);
    for (const from of [url, `${url}/.well-known/agent.json`]) {
      const cause = await failure(() => a2aReadCard(from));
      expect(cause).toMatchObject({ code: 'bad_card', message: expect.stringContaining('manifest of a room service') });
      expect(cause.message).toContain('/.well-known/agent-card.json');
    }
  });

  test('what is no card is refused, whatever it is', () => {
    for (const odd of [undefined, null, 7, 'card', [], {}, { name: 'x' }, { protocolVersion: '0.3.0' }]) {
      expect(() => a2aCheckCard(odd)).toThrow(expect.objectContaining({ code: 'bad_card' }));
    }
  });
});
