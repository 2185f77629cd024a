import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { Agent, request as httpRequest } from 'node:http';
import { createInterface } from 'node:readline';

// A connection that nobody uses is dropped before the service drops it, which would look like a write that broke off.
const agent = new Agent({ keepAlive: true, maxSockets: 256, timeout: 3000 });

/** A `fetch` upon node:http with connections that stay: what the library needs of one, and no more. */
export const keepAliveFetch: typeof fetch = ((url: string, { method, headers, body, signal }: RequestInit = {}) =>
  new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const fail = (cause: unknown): void => reject(signal?.aborted ? signal.reason : cause);
    // By hand, for to read an address as the standard does takes a good part of all.
    const [, host, port, path] = /^http:\/\/([\w.]+):(\d+)(\/.*)$/.exec(url)!;
    const sent = httpRequest({ agent, method, host, port, path, headers: headers as any }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part: string) => {
        text += part;
      });
      response.once('error', fail);
      response.once('end', () => {
        signal?.removeEventListener('abort', abort);
        const got = response.headers;
        resolve({
          status: response.statusCode,
          ok: response.statusCode === 200,
          headers: { get: (name: string) => got[name] ?? null, has: (name: string) => got[name] !== undefined },
          body: null,
          text: async () => text,
        } as unknown as Response);
      });
    });
    const abort = (): void => void sent.destroy(signal?.reason as Error);
    signal?.addEventListener('abort', abort, { once: true });
    sent.once('error', fail);
    sent.end(body as string | undefined);
  })) as typeof fetch;

/** A program that says something on its output, or its errors, once it is ready. */
export async function daemon(
  command: string,
  args: string[],
  ready: RegExp,
): Promise<{ said: string; end(): Promise<void> }> {
  const child: ChildProcess = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  process.once('exit', () => child.kill());
  const end = async (): Promise<void> => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, 'exit');
    child.kill();
    await gone;
  };
  const said = await new Promise<string>((resolve, reject) => {
    for (const stream of [child.stdout!, child.stderr!]) {
      createInterface({ input: stream }).on('line', (line) => ready.test(line) && resolve(line));
    }
    child.once('error', reject);
    child.once('exit', (code) => reject(new Error(`${command} ended with ${code}`)));
  });
  return { said, end };
}

/** The embedded service in a process of its own, without budgets. */
export async function localService(): Promise<{ url: string; end(): Promise<void> }> {
  const args = ['dist/cli.js', 'local', '--unlimited', '--limit', 'waitersPerAddress=1000'];
  const more = ['--limit', 'waiters=1000', '--limit', 'connections=10000', '--limit', 'roomRingBytes=1000000'];
  const { said, end } = await daemon(process.execPath, [...args, ...more], /^http:/);
  return { url: said, end };
}
