import { type ChildProcess, type SpawnOptions, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { cp, mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { Args, type Command, type Flag, failure, rounded } from '../src/cli-kit.ts';
import { createLocalService, type Listening } from '../src/local.ts';
import { RpcError, Signer, say, TechnocoreError, Unavailable } from '../src/technocore-rpc.ts';
import { CLI } from './build.ts';
import { type Run, Running } from './processes.ts';
import { broken, FREE, tempDir } from './support.ts';

// The command line as scripts and people use it: processes of their own, against an embedded service.

let service: Listening;
const home = tempDir();
const children = new Set<ChildProcess>();

beforeAll(async () => {
  service = await createLocalService({ limits: FREE }).listen();
});

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL');
  await service.close();
});

/** A run of the program, whose output can be looked at while it goes on. */
function start(args: string[], { input, env }: { input?: string; env?: Record<string, string> } = {}): Running {
  const { SIGN_SEED: _, NODE_OPTIONS: __, ...inherited } = process.env;
  const running = spawned(process.execPath, [CLI, ...args], {
    env: { ...inherited, HOME: home, TECHNOCORE_URL: service.url, PARLEY_RELAY: service.url, ...env },
  });
  if (input !== undefined) running.child.stdin!.end(input);
  return running;
}

/** Starts any program that is ended with the tests. */
function spawned(file: string, args: string[], o: SpawnOptions): Running {
  const running = new Running(spawn(file, args, o));
  children.add(running.child);
  void running.done.then(() => children.delete(running.child));
  return running;
}

const cli = (...args: string[]): Promise<Run> => start(args, { input: '' }).done;
const command = (flags: Record<string, Flag> = {}): Command => ({ args: '', about: '', flags, run: async () => 0 });
const seeded = (n: number): { env: Record<string, string>; signer: Signer } => {
  const seed = n.toString(16).padStart(2, '0').repeat(32);
  return { env: { SIGN_SEED: seed }, signer: Signer.fromSeed(seed) };
};

describe('help and arguments', () => {
  test('without a command it says what there is, as an error', async () => {
    const { out, code } = await cli();
    expect(code).toBe(2);
    expect(out).toMatch(/say .*\n[\s\S]*Exit codes/);
    expect((await cli('--help')).code).toBe(0);
  });

  test('every command that the overview names has its own help, within a terminal', async () => {
    const { out } = await cli('help');
    const names = [...out.matchAll(/^ {2}([a-z]+(?: (?:open|join|serve|connect)\b)?)/gm)].map(([, name]) => name!);
    expect(names.length).toBeGreaterThanOrEqual(12);
    for (const name of names) {
      const help = await cli(...name.split(' '), '--help');
      expect([name, help.code]).toEqual([name, 0]);
      expect(help.out).toMatch(new RegExp(`^Usage: technocore-rpc ${name}`));
      expect(help.out).toContain('--json');
      expect(help.out).not.toContain('--part');
    }
  });

  test.each(['parley', 'mcp'])(
    '%s alone tells what there is of it, as an error; with --help as asked',
    async (group) => {
      const alone = await cli(group);
      expect(alone.code).toBe(2);
      expect(alone.out).toMatch(new RegExp(`^Usage: technocore-rpc ${group} <command>`));
      expect(alone.out).toContain(`\n  ${group} `);
      expect(alone.out).not.toContain('verify');
      for (const args of [
        [group, '--help'],
        ['help', group],
      ])
        expect(await cli(...args)).toEqual({ ...alone, code: 0 });
      expect((await cli('help', 'mcp', 'serve')).out).toBe((await cli('mcp', 'serve', '--help')).out);
      const twice = [
        ['help', 'help'],
        ['help', '--help'],
        ['-h', '-h'],
        ['help', 'mcp', '--help'],
      ];
      expect((await Promise.all(twice.map((args) => cli(...args)))).map(({ code }) => code)).toEqual([0, 0, 0, 0]);
    },
  );

  test.each([
    [['frobnicate'], /unknown command "frobnicate"/],
    [['mcp', 'frobnicate'], /unknown command "mcp frobnicate"\nSee technocore-rpc mcp --help/],
    [['read', 'Not-A-Room!'], /bad_name: a room is/],
    [['read', 'p-x', '--base', 'nonsense'], /bad_name: --base must be the URL/],
    [['call', 'p-x', 'm'], /bad_name: a mailbox is/],
    [['call', 'did:key:zzz', 'm'], /bad_name: a did:key of/],
    [['call', 'mb-p-x', 'm', '--reply-to', 'p-x'], /bad_name: a mailbox is/],
    [['tools', 'p-x'], /bad_name: a mailbox is/],
    [['verify', 'did:key:zzz', 'sig', 'text'], /"did:key:zzz" is not a did:key/],
    [['parley', 'join', 'https://parley.chat/'], /bad_invite: .* in quotes/],
    [['parley', 'open', '--relay', 'localhost'], /bad_name: the address must be the URL of a relay/],
    [['constructor'], /unknown command/],
    [['say', 'p-room'], /^<text> is missing\n/],
    [['say'], /^<room> is missing\n/],
    [['read', 'p-x', '--follow', '--limit', '5'], /--limit does not go with --follow/],
    [['read', 'a', 'b'], /too many arguments: "b"/],
    [['read', 'p-x', '--limit', '0'], /--limit takes a number from 1 to 200/],
    [['read', 'p-x', '--wait', '3'], /--wait needs --since/],
    [['read', 'p-x', '--frob'], /frob/],
    [['call', 'mb-p-x', 'm', '{a:1}'], /not JSON, as in '{"a":1}': /],
    [['call', 'mb-p-x', 'm', '7'], /JSON object or array/],
    [['call', 'mb-p-x', 'm', '{}', '--peer', 'me'], /did:key/],
    [['tools', 'mb-p-x', 't', '[]'], /JSON object/],
    [['serve', './nowhere.js'], /cannot be loaded/],
    [['verify', 'a', 'b'], /one room, or/],
    [['local', '--port', '65536'], /--port takes/],
    [['local', '--limit', 'toString=1'], /--limit takes one of/],
    [['local', '--limit', 'rooms=many'], /<number>/],
    [['parley', 'join'], /no link/],
    [['say', 'p-x', ' '], /empty_text/],
  ])('%j is refused with code 2', async (args, words) => {
    // The key that some of them make is no news to this test.
    const { code, out, err } = await start(args, { input: '', env: seeded(1).env }).done;
    expect(err).toMatch(words);
    expect(err).toMatch(/See technocore-rpc .*--help/);
    expect([code, out]).toEqual([2, '']);
  });

  test('of a module that cannot be loaded it is said how to find the place', async () => {
    const file = join(home, 'broken.mjs');
    await writeFile(file, 'export const add = (;');
    const { code, err } = await cli('serve', file);
    expect([code, err]).toEqual([2, expect.stringContaining(`Unexpected token ';'; \`node ${file}\` shows where\n`)]);
  });

  test('what fails says so in JSON with --json, whatever it is, and ends with the code that the help gives', async () => {
    const file = join(home, 'file.mjs');
    await writeFile(file, 'export const one = () => 1;');
    const odd = join(home, 'odd');
    await mkdir(join(odd, 'ledger'), { recursive: true });
    const nobody = Signer.generate().did;
    const taken = new URL(service.url).port;
    const cases: [args: string[], exit: number, code: string][] = [
      [['frobnicate'], 2, 'usage'],
      [['mcp', 'frobnicate'], 2, 'usage'],
      [['read', 'p-x', '--frob'], 2, 'usage'],
      [['demo', 'x'], 2, 'usage'],
      [['local', '--port', taken], 1, 'no_port'],
      [['keygen', '--dir', file], 1, 'bad_key'],
      [['did', '--dir', '/nowhere'], 1, 'no_key'],
      [['say', 'p-x', ' '], 2, 'empty_text'],
      [['say', 'p-x', 'text', '--dir', file], 1, 'bad_key'],
      [['read', 'p-x', '--base', 'nonsense'], 2, 'bad_name'],
      [['verify', 'did:key:zzz', 'sig', 'text'], 2, 'usage'],
      [['call', nobody, 'm'], 1, 'no_mailbox'],
      [['call', `mb-p-none-${Date.now()}`, 'm', '--timeout', '0.1'], 4, 'call_timeout'],
      [['tools', 'mb-p-x', 't', '[]'], 2, 'usage'],
      [['serve', './nowhere.js'], 2, 'usage'],
      [['serve', file, '--state', file], 1, 'failed'],
      [['serve', file, '--state', odd], 1, 'unavailable'],
      [['parley', 'open', '--relay', 'nonsense'], 2, 'bad_name'],
      [['parley', 'join', 'https://parley.chat/'], 2, 'bad_invite'],
      [['mcp', 'connect', nobody], 1, 'no_identity'],
      [['mcp', 'connect', 'mb-p-x', '--http', taken], 1, 'no_port'],
      [['mcp', 'serve', '--allow', 'me', '--', 'node'], 2, 'usage'],
      [['mcp', 'serve', '--', '/nowhere/command'], 1, 'no_command'],
    ];
    const { out } = await cli('help');
    for (const [, name] of out.matchAll(/^ {2}([a-z]+(?: (?:open|join|serve|connect)\b)?)/gm))
      expect(cases.map(([args]) => args.join(' '))).toContainEqual(expect.stringMatching(new RegExp(`^${name}\\b`)));
    const inJson = (args: string[]): string[] => {
      const end = args.includes('--') ? args.indexOf('--') : args.length;
      return [...args.slice(0, end), '--json', ...args.slice(end)];
    };
    for (const [args, exit, code] of cases) {
      const { err, ...rest } = await start(inJson(args), { input: '', env: seeded(1).env }).done;
      const lines = err.trim().split('\n');
      expect([args, rest, JSON.parse(lines.at(-1)!)]).toEqual([
        args,
        { code: exit, out: '' },
        expect.objectContaining({ code, message: expect.stringMatching(/\S/) }),
      ]);
      for (const line of lines) expect(() => JSON.parse(line)).not.toThrow();
    }
  });

  test('--version is that of the package', async () => {
    const { version } = JSON.parse(await readFile(new URL('../package.json', import.meta.url), 'utf8'));
    for (const flag of ['--version', '-v', '-V'])
      expect(await cli(flag)).toEqual({ out: `${version}\n`, err: '', code: 0 });
  });
});

describe('keys', () => {
  test('keygen shows a seed, and did what it stands for', async () => {
    const { seed, did } = JSON.parse((await cli('keygen', '--json')).out);
    expect(seed).toMatch(/^[0-9a-f]{64}$/);
    const { out } = await start(['did'], { env: { SIGN_SEED: seed } }).done;
    expect(out).toBe(`${did}\n`);
    expect((await cli('keygen')).out).toMatch(/^seed: [0-9a-f]{64}\ndid: {2}did:key:z6Mk\w{44}\n$/);
  });

  test.skipIf(!existsSync('/dev/full'))(
    'output that cannot be written is a failure, output that nobody wants is none',
    async () => {
      const into = async (to: string): Promise<[string, number | null]> => {
        const command = ['-c', `"$0" "$1" keygen ${to}`, process.execPath, CLI];
        const { err, code } = await spawned('sh', command, { env: { HOME: home } }).done;
        return [err, code];
      };
      expect(await into('> /dev/full')).toEqual([
        expect.stringMatching(/^the output could not be written: .*ENOSPC/),
        1,
      ]);
      const [told] = await into('--json > /dev/full');
      expect(JSON.parse(told)).toMatchObject({ code: 'failed', message: expect.stringContaining('ENOSPC') });
      expect(await into('2> /dev/full')).toEqual(['', 0]);
      expect(await into('| :')).toEqual(['', 0]);
    },
  );

  test('a key directory never shows its seed, and an old key is not called new', async () => {
    const dir = join(home, 'keys');
    const made = await cli('keygen', '--dir', dir, '--json');
    expect(JSON.parse(made.out)).toMatchObject({ dir, isNew: true });
    const again = await cli('keygen', '--dir', dir, '--json');
    expect(JSON.parse(again.out)).toEqual({ ...JSON.parse(made.out), isNew: false });
    expect(again.err).toMatch(/already has a key/);
    const seed = await readFile(join(dir, 'seed'), 'utf8');
    for (const { out, err } of [made, again, await cli('did', '--dir', dir)]) expect(out + err).not.toContain(seed);
  });

  test.each(['a'.repeat(63), 'A'.repeat(65), `0x${'a'.repeat(64)}`, `${'a'.repeat(64)}\n`])(
    '%j for a seed is taken for a passphrase, with a warning',
    async (seed) => {
      const { out, err, code } = await start(['did'], { env: { SIGN_SEED: seed } }).done;
      expect([code, out]).toEqual([0, `${Signer.fromPassphrase(seed).did}\n`]);
      expect(err).toMatch(new RegExp(`^warning: SIGN_SEED has ${seed.length} characters.*passphrase`));
      expect(err.toLowerCase()).not.toContain('aaaa');
    },
  );

  test.each(['a'.repeat(64), 'B'.repeat(64), 'correct horse', 'a'.repeat(40), 'g'.repeat(63)])(
    '%j is a seed or a passphrase without a doubt',
    async (seed) => {
      expect((await start(['did'], { env: { SIGN_SEED: seed } }).done).err).toBe('');
    },
  );

  test('looking makes no key; using one makes it, and says so', async () => {
    const elsewhere = join(home, 'empty');
    const env = { HOME: elsewhere };
    expect(await start(['did'], { env }).done).toMatchObject({
      code: 1,
      err: expect.stringMatching(/^no_key: no key/),
    });
    expect(existsSync(join(elsewhere, '.technocore'))).toBe(false);
    const { out, err, code } = await start(['say', 'p-first-9d1f', 'hello'], { env }).done;
    expect([code, out]).toEqual([0, '1\n']);
    expect(err).toMatch(/^created a new key, did:key:z6Mk\w{44}, in /);
    expect((await start(['did'], { env }).done).out).toBe(`${/did:key:\w+/.exec(err)![0]}\n`);
  });
});

describe('rooms', () => {
  test('say, read and verify', async () => {
    const { env, signer } = seeded(11);
    expect((await start(['say', 'p-words-1b', 'signed\nline'], { env }).done).out).toBe('1\n');
    expect((await start(['say', 'p-words-1b', '-', '--nick', 'bob'], { env, input: 'from a pipe\n' }).done).out).toBe(
      '2\n',
    );
    const { out } = await cli('read', 'p-words-1b');
    expect(out).toMatch(new RegExp(`^\\[1\\] \\S+Z ${signer.did} signed line\n\\[2\\] \\S+Z \\S*bob from a pipe\n$`));
    expect(JSON.parse((await cli('read', 'p-words-1b', '--since', '1', '--json')).out).messages).toHaveLength(1);
    const verdicts = await cli('verify', 'p-words-1b', '--json');
    expect(
      verdicts.out
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line).verdict),
    ).toEqual(['valid', 'unverifiable']);
    expect(verdicts.code).toBe(0);
  });

  test('verify of a text as it was signed', async () => {
    const { did, sig, canonical } = seeded(12).signer.signMessage('lobby', 5, 'hello');
    expect(await cli('verify', did, sig, canonical)).toMatchObject({ out: 'valid\n', code: 0 });
    expect(await cli('verify', did, sig, `${canonical}!`)).toMatchObject({ out: 'invalid\n', code: 3 });
  });

  test('of an empty room it is said that there are no messages', async () => {
    const room = `p-nobody-${Date.now()}`;
    const err = `no messages in ${room}\n`;
    expect(await cli('read', room)).toEqual({ out: '', err, code: 0 });
    expect(await cli('verify', room)).toEqual({ out: '', err, code: 0 });
    const machine = await cli('verify', room, '--json');
    expect([machine.out, JSON.parse(machine.err)]).toEqual(['', { code: 'empty', message: err.trim() }]);
    expect((await cli('read', room, '--json')).err).toBe('');
    await say(room, 'ada', 'one', { base: service.url });
    expect((await cli('read', room, '--since', '1')).err).toBe(`no messages in ${room} after 1\n`);
    expect((await cli('read', room)).err).toBe('');
  });

  test("a stranger's text does nothing to a terminal", async () => {
    const { fetch } = createLocalService({ limits: FREE });
    const served = await fetch('http://x/r/p-x?format=json');
    expect(served.status).toBe(200);
    const liar = await listenAs((url) =>
      url.startsWith('/r/')
        ? JSON.stringify({
            room: 'p-x',
            count: 1,
            first_seq: 1,
            last_seq: 1,
            messages: [{ seq: 1, ts: '2026-01-01T00:00:00.000000Z', from: 'eve', text: '\x1b[2J\u202eevil\x07' }],
          })
        : '{}',
    );
    const plain = await cli('read', 'p-x', '--base', liar.url);
    expect(plain.out).toMatch(/eve {2}\[2J evil \n$/);
    const machine = await cli('read', 'p-x', '--base', liar.url, '--json');
    expect(machine.out).toMatch(/^[\x20-\x7e]*\n$/);
    expect(JSON.parse(machine.out).messages[0].text).toBe('\x1b[2J\u202eevil\x07');
    liar.close();
  });

  test('that no service is there is said at once, and Ctrl-C ends the wait', async () => {
    const { run, child, done, shows } = start(['read', 'p-tail-78', '--follow', '--base', 'http://127.0.0.1:2']);
    await shows(({ err }) => err !== '');
    child.kill('SIGINT');
    expect((await done).code).toBe(0);
    expect(run.err).toMatch(/^the service at http:\/\/127.0.0.1:2 does not answer .*trying again\n$/);
  });

  test('then it is said ever more rarely, and another time at once', () => {
    const said: string[] = [];
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => said.push(String(text)) > 0);
    const now = vi.spyOn(performance, 'now');
    const { onEvent } = new Args(command(), []).patient();
    const lines = (ms: number, cause: unknown = new Unavailable('gone')): number => {
      now.mockReturnValue(ms);
      onEvent!({ kind: 'retry', cause });
      return said.length;
    };
    expect([0, 1, 9_999, 10_000, 29_999, 30_000, 69_999, 70_000].map((ms) => lines(ms))).toEqual([
      1, 1, 1, 2, 2, 3, 3, 4,
    ]);
    expect(lines(80_000_000, new Error('another'))).toBe(4);
    expect([90_000_000, 90_010_000].map((ms) => lines(ms))).toEqual([5, 6]);
    vi.restoreAllMocks();
  });

  test('what ends by itself says it once, after a while', () => {
    const said: string[] = [];
    vi.spyOn(process.stderr, 'write').mockImplementation((text) => said.push(String(text)) > 0);
    const now = vi.spyOn(performance, 'now').mockReturnValue(1000);
    const service = new Args(command(), ['--json']).service();
    const lines = (ms: number, cause: unknown = new Unavailable('gone')): number => {
      now.mockReturnValue(ms);
      service.onEvent!({ kind: 'retry', cause });
      return said.length;
    };
    expect([1000, 2400].map((ms) => lines(ms))).toEqual([0, 0]);
    expect(lines(2600, new Error('another'))).toBe(0);
    expect([2600, 99_000].map((ms) => lines(ms))).toEqual([1, 1]);
    vi.restoreAllMocks();
    expect(JSON.parse(said[0]!)).toMatchObject({
      code: 'unavailable',
      message: expect.stringMatching(/^the service at .* does not answer \(gone\); trying again$/),
    });
  });

  test('what ends by itself gives up a service that was never reached, unless it was told how long to wait', async () => {
    vi.spyOn(process.stderr, 'write').mockReturnValue(true);
    vi.useFakeTimers();
    onTestFinished(() => {
      vi.useRealTimers();
      vi.unstubAllGlobals();
      vi.restoreAllMocks();
    });
    const failing = new Unavailable('gone');
    const flags = { timeout: { value: 'seconds', about: '' } };
    /** What became of it a while after a failure, with this outcome of its first request. */
    const outcome = async (fetched: () => Promise<Response>, given: string[] = []): Promise<unknown> => {
      vi.stubGlobal('fetch', fetched);
      const { fetch, onEvent, signal } = new Args(command(flags), given).service();
      await fetch!('http://127.0.0.1/').catch(() => {});
      onEvent!({ kind: 'retry', cause: failing });
      vi.advanceTimersByTime(4000);
      onEvent!({ kind: 'retry', cause: new Unavailable('still gone') });
      expect(signal!.aborted).toBe(false);
      vi.advanceTimersByTime(1500);
      return signal!.reason;
    };
    expect(await outcome(async () => Promise.reject(broken('ECONNREFUSED')))).toBe(failing);
    expect(await outcome(async () => Promise.reject(broken('ECONNREFUSED')), ['--timeout', '90'])).toBe(undefined);
    expect(await outcome(async () => Promise.reject(broken('ECONNRESET')))).toBe(undefined);
    expect(await outcome(async () => new Response(''))).toBe(undefined);
  });

  test('of a service that was never reached it is said why, with the code of what is not answered', async () => {
    const gone = await createLocalService().listen();
    await gone.close();
    const env = { ...seeded(77).env, TECHNOCORE_URL: gone.url };
    const run = (...args: string[]): Promise<Run> => start(args, { env, input: '' }).done;
    const why = `${gone.url} could not be reached: connection refused \\(ECONNREFUSED\\); .* or --base selects .*`;
    const told = (await Promise.all([run('read', 'p-x'), run('say', 'p-x', 'hello'), run('call', 'mb-p-x', 'm')])).map(
      ({ err, ...rest }) => ({ ...rest, err: err.split('\n').slice(1).join('\n') }),
    );
    const unavailable = { code: 4, out: '', err: expect.stringMatching(`^unavailable: ${why}\n$`) };
    const words = `^call_timeout: no answer from mb-p-x after \\d+ ms: the request was not sent yet; ${why}\n$`;
    expect(told).toEqual([unavailable, unavailable, { ...unavailable, err: expect.stringMatching(words) }]);
    const relay = await run('parley', 'open', '--relay', gone.url);
    expect(relay).toEqual({
      ...unavailable,
      err: expect.stringMatching(/ECONNREFUSED\); --relay or PARLEY_RELAY selects /),
    });
  });

  test('--follow goes on until Ctrl-C, which is a good end', async () => {
    await say('p-tail-77', 'ada', 'one', { base: service.url });
    const { run, child, done, shows } = start(['read', 'p-tail-77', '--follow', '--since', '0', '--json']);
    await shows(({ out }) => out.includes('"one"'));
    await say('p-tail-77', 'ada', 'two', { base: service.url });
    await shows(({ out }) => out.includes('"two"'));
    child.kill('SIGINT');
    expect((await done).code).toBe(0);
    expect(
      run.out
        .trim()
        .split('\n')
        .map((line) => JSON.parse(line).seq),
    ).toEqual([1, 2]);
  });
});

describe('demo', () => {
  test('it needs no service, be its address a wrong one, and --json gives a line for each scene', async () => {
    const { out, err, code } = await start(['demo', '--json'], { env: { TECHNOCORE_URL: 'nonsense' } }).done;
    const scenes = out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect([code, err, scenes.length]).toEqual([0, '', 19]);
    for (const { title, outcome, ok } of scenes)
      expect([title, outcome, ok]).toEqual([title, expect.any(String), true]);
  });

  test('it ends, with its parts, when nobody reads it any more', async () => {
    const { child, done, shows } = start(['demo']);
    await shows(({ out }) => out.includes('a call and its answer'));
    child.stdout!.destroy();
    expect(await done).toMatchObject({ code: 0, err: '' });
  });

  test('it ends where a part cannot start', async () => {
    const dies = encodeURIComponent('if(process.argv.includes("callee"))process.exit(7)');
    const { err, code } = await start(['demo'], { env: { NODE_OPTIONS: `--import=data:text/javascript,${dies}` } })
      .done;
    expect([code, err]).toEqual([1, expect.stringContaining('the callee did not start')]);
  });
});

describe('calls', () => {
  const MODULE = `
    export const add = ({ a, b }) => a + b;
    export const who = (_, { from }) => from;
    export async function slow() {
      console.error('slow begins');
      await new Promise((resolve) => setTimeout(resolve, 1000));
      return 'done after all';
    }
    export function fail() { throw new Error('inside'); }
    export const here = Object.assign(() => 'inside', { [Symbol.for('technocore-rpc.local')]: true });
    export async function* some() { yield 'first'; return 'last'; }
    export const big = () => 'x'.repeat(1e6);
    export const version = 7;
  `;
  const [callee, caller] = [seeded(21), seeded(22)];
  const ask = (...args: string[]) => start(args, { env: caller.env, input: '' }).done;
  let server: ReturnType<typeof start>;
  let mailbox: string;
  const begun = (): number => server.run.err.split('slow begins').length - 1;

  beforeAll(async () => {
    await writeFile(join(home, 'offer.mjs'), MODULE);
    server = start(['serve', join(home, 'offer.mjs'), '--verbose', '--publish'], { env: callee.env });
    await server.shows(({ out }) => out.endsWith(`${callee.signer.did}\n`));
    mailbox = server.run.out.split('\n')[0]!;
  });

  test('a module is served under a mailbox that nobody guesses', () => {
    expect(mailbox).toMatch(/^mb-p-[0-9a-f]{24}$/);
  });

  test('call prints the answer; by mailbox or DID; parameters also from a pipe', async () => {
    expect(await ask('call', mailbox, 'add', '{"a":2,"b":40}')).toMatchObject({ out: '42\n', code: 0 });
    expect((await ask('call', callee.signer.did, 'who', '--json')).out).toBe(`"${caller.signer.did}"\n`);
    const piped = start(['call', mailbox, 'add', '-'], { env: caller.env, input: '{"a":1,"b":2}' });
    expect((await piped.done).out).toBe('3\n');
    expect(server.run.err).toMatch(/did:key:\S+ add answered, \d+ ms/);
  });

  test('a server whose log nobody reads any more goes on', async () => {
    const mine = start(['serve', join(home, 'offer.mjs'), '--verbose', '--json'], { env: seeded(23).env });
    await mine.shows(({ out }) => out.includes('\n'));
    const { mailbox: its } = JSON.parse(mine.run.out.split('\n')[0]!);
    mine.child.stderr!.destroy();
    // What is told of the first would end it.
    for (const a of [1, 2, 3]) expect((await ask('call', its, 'add', `{"a":${a},"b":0}`)).out).toBe(`${a}\n`);
    expect(mine.run.code).toBe(null);
    mine.child.kill('SIGINT');
    expect((await mine.done).code).toBe(0);
  });

  test('an answer that is an error has a code of its own', async () => {
    const { out, err, code } = await ask('call', mailbox, 'version', '--json');
    expect([code, out]).toEqual([3, '']);
    expect(JSON.parse(err)).toMatchObject({ code: 'rpc', rpc: { code: -32601 } });
    expect(await ask('call', mailbox, 'fail')).toMatchObject({ code: 3, err: expect.stringMatching(/^rpc: /) });
    expect(server.run.err).toMatch(/handler-error .*inside\n\S+ fail error -32603 Internal error, \d+ ms\n/);
  });

  test('no answer has a code of its own, and says why', async () => {
    const { code, err } = await ask('call', 'mb-p-nobody-5d', 'm', '--timeout', '1', '--json');
    expect(code).toBe(4);
    expect(JSON.parse(err)).toMatchObject({ code: 'call_timeout', reason: 'no-room' });
    for (const words of [
      ['call', 'm'],
      ['tools', 'a-tool'],
    ]) {
      const nowhere = await ask(words[0]!, 'mb-p-x', words[1]!, '--base', 'http://127.0.0.1:1', '--timeout', '1');
      expect([nowhere.code, nowhere.out, nowhere.err]).toEqual([4, '', expect.stringMatching(/ or --base selects/)]);
      const nobody = await ask(words[0]!, 'mb-p-nobody-5d', words[1]!, '--timeout', '1');
      expect([nobody.code, nobody.err]).toEqual([4, expect.stringMatching(/^call_timeout: .* --retry repeats/)]);
    }
  });

  test('of a service that is not there the cause is named, and where one comes from', async () => {
    const gone = await createLocalService().listen();
    await gone.close();
    const args = ['call', 'mb-p-x', 'm', '--base', gone.url, '--timeout', '1'];
    const { err, code } = await ask(...args);
    expect(code).toBe(4);
    expect(err).toMatch(
      /^call_timeout: .*: connection refused \(ECONNREFUSED\).*TECHNOCORE_URL.*technocore-rpc local.*\n$/,
    );
  });

  test('who watches calls changes none: what is not for callers, and what answers in parts', async () => {
    expect((await ask('call', mailbox, 'here')).err).toMatch(/^rpc: Method not found/);
    expect((await ask('call', mailbox, 'some')).out).toBe('"first"\n');
  });

  test('parameters by position: what to do instead', async () => {
    const { err, out, code } = await ask('call', mailbox, 'add', '[1,2]');
    expect([code, out]).toEqual([2, '']);
    expect(err).toMatch(/^no_reply_address: .*name them: '{"a":1,"b":2}'\nSee technocore-rpc call --help/);
  });

  test('an answer that the caller gets as an error is told as one', async () => {
    expect((await ask('call', mailbox, 'big')).err).toMatch(/too large/);
    expect(server.run.err).toMatch(
      / big error -32603 The answer is too large: \d+ bytes, but the limit is 97856, \d+ ms\n/,
    );
    await ask('tools', mailbox, 'technocore/verify', '{"did":7}');
    expect(server.run.err).toMatch(/ tools\/call technocore\/verify answered with a tool error, \d+ ms\n/);
  });

  // What the test needs of a terminal, Debian has from the start; elsewhere its options differ.
  test.skipIf(!existsSync('/usr/bin/script'))('on a terminal, and nowhere else, waiting shows', async () => {
    const args = ['call', 'mb-p-nobody-5e', 'm', '--timeout', '3'];
    const command = [process.execPath, CLI, ...args].map((word) => `'${word}'`).join(' ');
    const env = { ...process.env, ...caller.env, TECHNOCORE_URL: service.url, HOME: home };
    const terminal = spawned('script', ['-qec', command, '/dev/null'], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    expect((await terminal.done).out).toMatch(/waiting for mb-p-nobody-5e … \d+ s/);
    const { err } = await ask(...args);
    expect(err).toMatch(/^call_timeout: /);
  });

  test('Ctrl-C ends a call that waits', async () => {
    const { child, done, shows } = start(['call', mailbox, 'slow', '{}'], { env: caller.env });
    await shows(() => begun() === 1);
    child.kill('SIGINT');
    const err = 'interrupted; the request may have been sent, and may still be executed\n';
    expect(await done).toEqual({ code: 130, out: '', err });
  });

  test('tools: the list, a result, and a tool that fails', async () => {
    expect((await ask('tools', mailbox)).out).toMatch(/^census\/latest {2}How full/m);
    const census = JSON.parse((await ask('tools', mailbox, 'census/latest', '{}', '--json')).out);
    expect(census.structuredContent.rooms.capacity).toBeGreaterThan(0);
    const unknown = await ask('tools', mailbox, 'nothing', '{}');
    expect(unknown.code).toBe(3);
    const wrong = await ask('tools', mailbox, 'technocore/verify', '{"did":7}');
    expect(wrong.code).toBe(3);
  });

  test('Ctrl-C lets what was begun be answered', async () => {
    const waits = start(['call', mailbox, 'slow', '{}'], { env: { SIGN_SEED: 'another key' } });
    await waits.shows(() => begun() === 2);
    server.child.kill('SIGINT');
    expect(await waits.done).toMatchObject({ code: 0, out: '"done after all"\n' });
    expect((await server.done).code).toBe(0);
  });
});

describe('what is asked back', () => {
  const MODULE = `
    import { methods, tool } from 'technocore-rpc';
    tool('hello', 'Greets.', { type: 'object' }, async (_, { elicit }) => {
      const properties = {
        name: { type: 'string', title: 'Your name' },
        age: { type: 'integer', minimum: 0, maximum: 150 },
        colour: { enum: ['red', 'blue'], description: 'of the paint', default: 'red' },
        extra: { type: 'boolean' },
      };
      const requestedSchema = { type: 'object', properties, required: ['name', 'age'] };
      const { action, content } = await elicit('who', { message: 'Who are\\u001b[2J you?', requestedSchema });
      return action + ' ' + JSON.stringify(content);
    });
    tool('think', 'Asks a model.', { type: 'object' }, (_, { sample }) => sample('m', { messages: [], maxTokens: 9 }));
    const status = { state: 'TASK_STATE_INPUT_REQUIRED' };
    methods.set('SendMessage', ({ id = 't-1' }) => ({ task: { id, status } }));
  `;
  const ROOT = new URL('..', import.meta.url).pathname;
  const caller = seeded(42);

  /** A server of that module in a project of its own. */
  async function served(name: string, install: (modules: string) => Promise<unknown>) {
    const project = join(home, `${name}-${Date.now()}`);
    await mkdir(join(project, 'node_modules'), { recursive: true });
    await install(join(project, 'node_modules'));
    await writeFile(join(project, 'offer.mjs'), MODULE);
    const server = start(['serve', join(project, 'offer.mjs')], { env: { SIGN_SEED: project } });
    await server.shows(({ out }) => out.split('\n').length === 3);
    expect(server.run.err).toBe('');
    return { server, mailbox: server.run.out.split('\n')[0]! };
  }

  const link = (modules: string): Promise<void> => symlink(ROOT, join(modules, 'technocore-rpc'));
  const copy = async (modules: string): Promise<void> => {
    const own = join(modules, 'technocore-rpc');
    await cp(join(ROOT, 'dist'), join(own, 'dist'), { recursive: true });
    await cp(join(ROOT, 'package.json'), join(own, 'package.json'));
    for (const name of ['@noble', '@cfworker']) await symlink(join(ROOT, 'node_modules', name), join(modules, name));
  };

  test.each([
    ['the same copy of the package', link],
    ['a copy of its own', copy],
  ])('a module that registers with %s is served; what it asks is told', async (name, install) => {
    const { server, mailbox } = await served(name.replaceAll(' ', '-'), install);
    const ask = (...args: string[]) => start(args, { env: caller.env, input: '' }).done;
    expect((await ask('tools', mailbox)).out).toMatch(/^hello {2}Greets\.$/m);
    const plain = await ask('tools', mailbox, 'hello');
    expect([plain.code, plain.out]).toEqual([3, '']);
    expect(plain.err).toMatch(
      /^input_required: .*: Who are \[2J you\?; Your name \(string\); age \(integer, 0 to 150\); colour \(of the paint; one of red, blue\); extra/,
    );
    const machine = await ask('tools', mailbox, 'hello', '{}', '--json');
    expect(machine.code).toBe(3);
    expect(JSON.parse(machine.out).inputRequired).toMatchObject({ requestedSchema: { required: ['name', 'age'] } });
    const thinks = await ask('tools', mailbox, 'think');
    expect(thinks).toMatchObject({
      code: 3,
      out: '',
      err: expect.stringMatching(/-32021.*requires a client capability .*\n$/),
    });
    expect(await ask('call', mailbox, 'SendMessage')).toMatchObject({
      code: 0,
      err: expect.stringMatching(/taskId t-1/),
    });
    const odd = await ask('call', mailbox, 'SendMessage', '{"id":{"toString":1,"valueOf":2}}');
    expect([odd.code, odd.err]).toEqual([0, expect.stringMatching(/taskId {"toString":1,"valueOf":2}\.\n$/)]);
    server.child.kill('SIGINT');
    expect((await server.done).code).toBe(0);
  });

  // As above.
  test.skipIf(!existsSync('/usr/bin/script'))('a person answers on a terminal', async () => {
    const { server, mailbox } = await served('asked', link);
    const command = [process.execPath, CLI, 'tools', mailbox, 'hello'].map((word) => `'${word}'`).join(' ');
    const env = { ...process.env, ...caller.env, TECHNOCORE_URL: service.url, HOME: home };
    /** Types each line when it is asked for. */
    const answer = async (lines: [string, string][]): Promise<string> => {
      const { child, done, run, shows } = spawned('script', ['-qec', command, '/dev/null'], {
        env,
        stdio: ['pipe', 'pipe', 'inherit'],
      });
      let asked = 0;
      for (const [question, line] of lines) {
        await shows(({ out }) => out.slice(asked).split('Who are').at(-1)!.includes(question));
        asked = run.out.length;
        child.stdin!.write(line);
      }
      const { out, code } = await done;
      return `${out}\ncode ${code}`;
    };
    const given = await answer([
      ['Your name', 'Ada\n'],
      ['age (integer, 0 to 150):', 'old\n'],
      ['age (integer, 0 to 150):', '151\n'],
      ['age (integer, 0 to 150):', '36\n'],
      ['[red]:', 'green\n'],
      ['[red]:', '\n'],
      ['[optional]:', '\n'],
    ]);
    expect(given.match(/Invalid. Expected: [^\r\n]*/g)).toEqual([
      'Invalid. Expected: integer, 0 to 150',
      'Invalid. Expected: integer, 0 to 150',
      'Invalid. Expected: one of red, blue',
    ]);
    expect(given).toMatch(/accept {"name":"Ada","age":36,"colour":"red"}/);
    // All at once, the last of it without an end.
    const pasted = [
      ['Your name', 'Ada\n36\nblue\nye'],
      ['[optional]:', 's\n'],
    ] as [string, string][];
    expect(await answer(pasted)).toMatch(/accept {"name":"Ada","age":36,"colour":"blue","extra":true}/);
    expect(await answer([['Your name', 'Ada\n\u0004']])).toMatch(/decline/);
    expect(given).not.toContain('\u001b[2J you');
    expect(await answer([['Your name', '\u0004']])).toMatch(/decline/);
    expect(await answer([['Your name', '\u0003']])).toMatch(/code 130/);
    server.child.kill('SIGINT');
    await server.done;
  });
});

test('of a module that serves by itself, and so is never loaded, it is said what is wrong', async () => {
  await writeFile(join(home, 'waits.mjs'), 'setInterval(() => {}, 1000); await new Promise(() => {});');
  const { child, done, shows } = start(['serve', join(home, 'waits.mjs')]);
  await shows(({ err }) => err.includes('must not serve by itself'));
  child.kill('SIGINT');
  expect((await done).out).toBe('');
});

test('a module that waits for its own serve() is refused, and ended', async () => {
  const library = new URL('../dist/node/technocore-rpc.js', import.meta.url).href;
  await writeFile(
    join(home, 'serves.mjs'),
    `import { Signer, serve } from '${library}'; await serve('mb-p-own', Signer.generate());`,
  );
  const { code, out, err } = await cli('serve', join(home, 'serves.mjs'));
  expect([code, out]).toEqual([2, '']);
  expect(err).toMatch(
    /waits for its own serve\(\): a module must not serve by itself, but export.*\nSee technocore-rpc serve/,
  );
});

test('of a module that offers nothing it is said what it may export', async () => {
  // A class is no method: it cannot be called.
  await writeFile(join(home, 'nothing.mjs'), 'export const version = 7; export class Store {}');
  const { code, err } = await cli('serve', join(home, 'nothing.mjs'));
  expect([code, err]).toEqual([2, expect.stringMatching(/may export functions .*`methods`.*`tools`/)]);
});

test.each([
  ['functions.cjs', 'module.exports = { add: ({ a, b }) => a + b, n: 7 };'],
  ['methods.cjs', 'module.exports = { methods: { add: ({ a, b }) => a + b } };'],
  ['map.mjs', 'export default new Map([["add", ({ a, b }) => a + b]]);'],
])('%s: a default export is looked into', async (name, text) => {
  const file = join(home, `${Date.now()}-${name}`);
  await writeFile(file, text);
  const server = start(['serve', file], { env: { SIGN_SEED: file } });
  await server.shows(({ out }) => out.split('\n').length === 3);
  const mailbox = server.run.out.split('\n')[0]!;
  const caller = seeded(51);
  expect(await start(['call', mailbox, 'add', '{"a":1,"b":2}'], caller).done).toEqual({ out: '3\n', err: '', code: 0 });
  server.child.kill('SIGINT');
  expect((await server.done).code).toBe(0);
});

test('Ctrl-C says at once which calls are waited for; a second one ends them', async () => {
  const file = join(home, `hangs-${Date.now()}.mjs`);
  await writeFile(file, 'export const hang = () => (console.error("begun"), new Promise(() => {}));');
  const server = start(['serve', file], { env: { SIGN_SEED: file } });
  await server.shows(({ out }) => out.split('\n').length === 3);
  const waits = start(['call', server.run.out.split('\n')[0]!, 'hang'], seeded(52));
  await server.shows(({ err }) => err === 'begun\n');
  server.child.kill('SIGINT');
  await server.shows(({ err }) => err.includes('\n', 6));
  expect(server.run.err).toBe('begun\nwaiting for 1 call, 90 s at most; press Ctrl-C again to quit at once\n');
  server.child.kill('SIGINT');
  expect((await server.done).code).toBe(130);
  waits.child.kill('SIGKILL');
});

test('times of events are told in whole ms; other numbers as they are', () => {
  const event = { kind: 'retry', afterMs: 83.31, ms: 0.4, ratio: 0.5, room: 'p-x' };
  expect(rounded(event)).toEqual({ kind: 'retry', afterMs: 83, ms: 0, ratio: 0.5, room: 'p-x' });
});

test('options that the library speaks of are told as flags of the command, as far as it has them', () => {
  const said: string[] = [];
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => said.push(String(text)) > 0);
  const args = new Args(command({ timeout: { value: 'seconds', about: '' }, base: { value: 'url', about: '' } }), []);
  const words = 'the option timeoutMs helps, or base (option base); the option retry does not';
  const flags = '--timeout helps, or base (--base); the option retry does not';
  failure(new TechnocoreError('x', words), args);
  failure(new TechnocoreError('x', words), new Args(command(), []));
  // Another side's words are its own.
  failure(new RpcError(1, words), args);
  vi.restoreAllMocks();
  expect(said).toEqual([`x: ${flags}\n`, `x: ${words}\n`, `rpc: ${words} (1)\n`]);
});

test('that a pairing code is not offered has the exit code of what is not answered', () => {
  vi.spyOn(process.stderr, 'write').mockReturnValue(true);
  expect(failure(new TechnocoreError('not_offered', 'x'), new Args(command(), []))).toBe(4);
  vi.restoreAllMocks();
});

test('serve says that no service is there, and when it ends before it was ready, that is no good end', async () => {
  await writeFile(join(home, 'one.mjs'), 'export const one = () => 1;');
  const { child, done, shows } = start(['serve', join(home, 'one.mjs'), '--base', 'http://127.0.0.1:2']);
  await shows(({ err }) => err.includes('does not answer'));
  child.kill('SIGINT');
  expect(await done).toMatchObject({ code: 130, out: '' });
});

test('serve keeps strangers out, and its state over a restart', async () => {
  const [owner, friend, stranger] = [seeded(31), seeded(32), seeded(33)];
  await writeFile(
    join(home, 'count.mjs'),
    'let n = 0; setInterval(() => {}, 1000); export const methods = { next: () => ++n };',
  );
  const state = join(home, 'state');
  const args = ['serve', join(home, 'count.mjs'), '--state', state, '--allow', friend.signer.did, '--json'];
  const first = start(args, { env: owner.env });
  await first.shows(({ out }) => out.includes('\n'));
  const { mailbox, did } = JSON.parse(first.run.out);
  expect(did).toBe(owner.signer.did);
  const ask = (env: Record<string, string>) => start(['call', mailbox, 'next', '{}'], { env, input: '' }).done;
  expect(await ask(friend.env)).toMatchObject({ out: '1\n', code: 0 });
  expect(await ask(stranger.env)).toMatchObject({ out: '', code: 3, err: expect.stringMatching(/1004/) });
  // Who knows its callers reads what fits no message.
  const input = JSON.stringify({ did, sig: 'x', canonical: 'long'.repeat(5000) });
  const long = await start(['tools', mailbox, 'technocore/verify', '-', '--json'], { env: friend.env, input }).done;
  expect([long.err, JSON.parse(long.out)]).toMatchObject(['', { structuredContent: { valid: false } }]);
  first.child.kill('SIGTERM');
  expect((await first.done).code).toBe(0);
  // Asked while nobody serves, answered by the next one.
  const waits = ask(friend.env);
  const second = start(args, { env: owner.env });
  expect((await waits).out).toBe('1\n');
  second.child.kill('SIGTERM');
  expect((await second.done).code).toBe(0);
  expect(existsSync(join(state, 'ledger'))).toBe(true);
});

describe('parley', () => {
  test('two ends talk line by line, and see each other', async () => {
    const open = start(['parley', 'open', '--topic', 'where', '--json']);
    await open.shows(({ out }) => out.includes('\n'));
    const { link } = JSON.parse(open.run.out.split('\n')[0]!);
    const joined = start(['parley', 'join', '--outcome', 'agreed']);
    joined.child.stdin!.write(`${link}\nAt the café?\n`);
    await open.shows(({ out }) => out.includes('café'));
    open.child.stdin!.write('Yes.\n');
    await joined.shows(({ out }) => out.includes('Yes.'));
    joined.child.stdin!.end();
    expect((await joined.done).code).toBe(0);
    expect((await open.done).code).toBe(0);
    const [, joiner, opener] =
      /^you are ((?:\w+-)*\w+), talking to ((?:\w+-)*\w+), about: where; compare/.exec(joined.run.err) ?? [];
    expect(joiner).toMatch(/\w/);
    expect(joined.run.out).toBe('Yes.\n');
    const kinds = open.run.out
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line));
    expect(kinds.map(({ kind }) => kind)).toEqual(['link', 'peer', 'say', 'close']);
    expect(kinds[1]).toEqual({ kind: 'peer', own: opener, fingerprint: joiner, topic: 'where' });
    expect(kinds.at(-1).text).toBe('agreed');
  });

  // What the test needs of a terminal, Debian has from the start; elsewhere its options differ.
  test.skipIf(!existsSync('/usr/bin/script'))(
    'a person at a terminal is told what to do next, and a script is not',
    async () => {
      for (const [args, words] of [
        [['local'], /^http:\S+\s+limits .*\s+In other terminals: export TECHNOCORE_URL=http:\S+; Ctrl-C here ends it/],
        [
          ['parley', 'open', '--relay', service.url],
          /Waiting for the other side to join\. .* Ctrl-D closes the channel/,
        ],
        [['parley', 'join'], /^Paste the link, and press Enter:/],
      ] as const) {
        const seen = spawned('script', ['-qec', `node ${CLI} ${args.join(' ')}`, '/dev/null'], {
          stdio: ['pipe', 'pipe', 'inherit'],
        });
        await seen.shows(({ out }) => words.test(out));
        seen.child.stdin!.write('\x03');
        await seen.done;
        if (args[1] === 'join') continue;
        const piped = start([...args]);
        await piped.shows(({ out }) => out.includes('\n'));
        piped.child.kill('SIGINT');
        expect((await piped.done).err).not.toMatch(/In other terminals|Waiting for/);
      }
    },
  );

  test('a link leads to its relay, and what it cannot say of it is told on both sides', async () => {
    const open = start(['parley', 'open', '--topic', 'here', '--relay', `${service.url}/`]);
    await open.shows(({ err }) => err.includes('\n'));
    expect(open.run.err).toContain(`The other side must add: --relay ${service.url}\n`);
    const link = open.run.out.trim();
    const env = { PARLEY_RELAY: 'http://127.0.0.1:1' };
    const guessed = await start(['parley', 'join', link], { env, input: '' }).done;
    expect([guessed.code, guessed.out]).toEqual([4, '']);
    const https = service.url.replace('http:', 'https:');
    expect(guessed.err).toMatch(
      new RegExp(`If ${https} is not the whole URL of the relay, add: --relay.*\nunavailable: ${https}`),
    );
    const told = start(['parley', 'join', link, '--relay', service.url, '--outcome', 'agreed'], { env });
    await told.shows(({ err }) => err.includes('about: here'));
    told.child.stdin!.end();
    expect((await told.done).code).toBe(0);
    expect((await open.done).out).toMatch(/closed: agreed\n$/);
  });

  test('an end of the input that comes before the other side closes the channel', async () => {
    const open = start(['parley', 'open'], { input: 'one\ntwo\n' });
    await open.shows(({ out }) => out.includes('\n'));
    // Nobody has the other seat: the channel is closed at once, and its link leads nowhere.
    expect((await open.done).code).toBe(0);
  });

  test('a used link is refused', async () => {
    const open = start(['parley', 'open']);
    await open.shows(({ out }) => out.includes('\n'));
    const link = open.run.out.trim();
    const first = start(['parley', 'join', link]);
    await first.shows(({ err }) => err.includes('talking to'));
    const second = await cli('parley', 'join', link);
    expect([second.code, second.err]).toEqual([1, expect.stringMatching(/^relay_refused: /)]);
    first.child.kill('SIGINT');
    expect((await first.done).code).toBe(130);
    expect((await open.done).out).toMatch(/closed: interrupted\n$/);
  });
});

test('local says that its port is in use', async () => {
  const { code, err } = await cli('local', '--port', new URL(service.url).port);
  expect([code, err]).toEqual([1, expect.stringMatching(/^no_port: cannot listen on \S+ port \d+: EADDRINUSE\n$/)]);
});

test('local serves until Ctrl-C, with the limits it was given', async () => {
  const { run, child, done, shows } = start(['local', '--profile', '0.7', '--limit', 'writesPerMinute=2', '--json']);
  await shows(({ out }) => out.includes('\n'));
  const { url, limits } = JSON.parse(run.out);
  expect(limits).toMatchObject({ readsPerMinute: 120, writesPerMinute: 2, newRoomsPerDay: 20, longPollMs: 10_000 });
  const statuses: number[] = [];
  for (const n of [1, 2, 3]) statuses.push((await fetch(`${url}/r/p-x/say/bob/${n}`)).status);
  expect(statuses).toEqual([200, 200, 429]);
  child.kill('SIGINT');
  expect((await done).code).toBe(0);
});

test('local keeps no more than its memory holds, unless it is told to', async () => {
  const env = { NODE_OPTIONS: '--max-old-space-size=200' };
  const limitsOf = async (...more: string[]) => {
    const { child, done, shows } = start(['local', '--json', ...more], { env });
    await shows(({ out }) => out.includes('\n'));
    child.kill('SIGINT');
    return JSON.parse((await done).out).limits;
  };
  const { roomBytesTotal, notes, roomRingBytes } = await limitsOf();
  expect([roomBytesTotal / 2 ** 20, (notes * 32_768) / 2 ** 20].map((mb) => mb > 40 && mb < 100)).toEqual([true, true]);
  expect(roomRingBytes).toBe(10 << 20);
  const told = await limitsOf('--limit', 'notes=100000', '--limit', 'roomBytesTotal=5000000000');
  expect(told).toMatchObject({ notes: 100_000, roomBytesTotal: 5e9 });
});

test.each([
  [[], '120 reads a minute, 30 writes a minute, 20 new rooms a day'],
  [['--unlimited', '--limit', 'writesPerMinute=7'], '7 writes a minute'],
  [['--unlimited'], undefined],
])('local %j says on stderr what each address may do, and nothing but its address on stdout', async (args, budgets) => {
  const { run, child, done, shows } = start(['local', ...args]);
  const isTold = (): boolean => budgets === undefined || run.err.includes('\n');
  await shows(({ out }) => out.includes('\n') && isTold());
  child.kill('SIGINT');
  expect(await done).toMatchObject({ out: expect.stringMatching(/^http:\S+\n$/), code: 0 });
  expect(run.err).toMatch(budgets === undefined ? /^$/ : new RegExp(`^[^\\d\\n]*${budgets};.*--unlimited.*\\n$`));
});

/** A server that says what it likes. */
async function listenAs(answer: (url: string) => string): Promise<{ url: string; close(): void }> {
  const { createServer } = await import('node:http');
  const server = createServer((request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(answer(request.url ?? ''));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as { port: number }).port}`,
    close: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

test('a demo that is killed takes its parts with it', async () => {
  const { run, child, done, shows } = start(['demo']);
  await shows(({ out }) => out.split('process ').length === 3);
  child.kill('SIGTERM');
  // Not before all parts have ended, too: they write where it wrote. One that went on would find no service, and say so.
  await done;
  expect(run).toMatchObject({ err: '', code: null });
});
