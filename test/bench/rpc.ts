import { createDispatcher } from '../../src/builtin.ts';
import { rpcRequest } from '../../src/dispatch.ts';
import { decode, encode, type Json } from '../../src/frames.ts';
import { contender } from './contenders.ts';
import type { Goal } from './goals.ts';
import { alternate, oftenAsync } from './rounds.ts';

const PARAMS = { text: 'The quick brown fox jumps over the lazy dog.', n: 7 };
const escaped = (text: string): string =>
  text.replace(/[\x7f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** One echo from params to result, without any HTTP. */
export async function benchRpc(): Promise<Goal[]> {
  const methods = new Map([['echo', (params: Json) => params]]);
  const dispatcher = createDispatcher({ methods });
  let id = 0;

  const ours = async (): Promise<Json> => {
    const text = encode(rpcRequest(`k${++id}`, 'echo', PARAMS));
    const answer = await dispatcher.dispatch(decode(text));
    return (decode(encode(answer!)) as { result: Json }).result;
  };

  const floor = async (): Promise<Json> => {
    const request = JSON.parse(
      escaped(JSON.stringify({ jsonrpc: '2.0', id: `k${++id}`, method: 'echo', params: PARAMS })),
    );
    return JSON.parse(escaped(JSON.stringify({ jsonrpc: '2.0', id: request.id, result: request.params }))).result;
  };

  const { JSONRPCClient, JSONRPCServer } = await contender('json-rpc-2.0/dist/index.js');
  const server = new JSONRPCServer();
  server.addMethod('echo', (params: Json) => params);
  const client = new JSONRPCClient(async (request: Json) => {
    const answer = await server.receive(JSON.parse(JSON.stringify(request)));
    client.receive(JSON.parse(JSON.stringify(answer)));
  });
  const jsonRpc = (): Promise<Json> => client.request('echo', PARAMS);

  const mcp = await mcpPair();
  for (const one of [ours, floor, jsonRpc, mcp]) {
    if (JSON.stringify(await one()) !== JSON.stringify(PARAMS)) throw new Error('answers differ');
  }
  const r = await alternate({
    ours: oftenAsync(ours),
    floor: oftenAsync(floor),
    'json-rpc-2.0': oftenAsync(jsonRpc),
    'MCP SDK': oftenAsync(mcp),
  });
  const goal = (other: string, limit: number): Goal => ({
    number: 3,
    name: `encode, dispatch, decode by ${other}`,
    value: r.speed('ours', other),
    target: ['>=', limit],
    detail: `ours ${r.rate('ours').toFixed(0)}/s, ${other} ${r.rate(other).toFixed(0)}/s`,
  });
  return [goal('floor', 0.75), goal('json-rpc-2.0', 1.25), goal('MCP SDK', 4)];
}

/** A client and a server of the official SDK, with JSON between them. */
async function mcpPair(): Promise<() => Promise<Json>> {
  const sdk = '@modelcontextprotocol/sdk/dist/esm';
  const { Client } = await contender(`${sdk}/client/index.js`);
  const { Server } = await contender(`${sdk}/server/index.js`);
  const { CallToolRequestSchema, CallToolResultSchema } = await contender(`${sdk}/types.js`);
  const ends = [0, 1].map(() => ({ start: async () => {}, close: async () => {}, onmessage: undefined as any }) as any);
  const [a, b] = ends;
  a.send = async (message: Json) => void queueMicrotask(() => b.onmessage(JSON.parse(JSON.stringify(message))));
  b.send = async (message: Json) => void queueMicrotask(() => a.onmessage(JSON.parse(JSON.stringify(message))));
  const server = new Server({ name: 'echo', version: '1' }, { capabilities: { tools: {} } });
  server.setRequestHandler(CallToolRequestSchema, async (request: any) => ({
    content: [],
    structuredContent: request.params.arguments,
  }));
  const client = new Client({ name: 'caller', version: '1' }, {});
  await Promise.all([server.connect(b), client.connect(a)]);
  const request = { method: 'tools/call', params: { name: 'echo', arguments: PARAMS } };
  return async () => (await client.request(request, CallToolResultSchema)).structuredContent;
}
