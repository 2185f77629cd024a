/**
 * `Noise_IKpsk1_25519_ChaChaPoly_SHA256`, transcribed from the Noise Protocol Framework, revision 34: two messages after
 * which both ends hold one key per direction. The initiator knows the responder's static key beforehand; both know the
 * pre-shared key.
 *
 * @module
 */
import { concat, utf8 } from './bytes.ts';
import { type Aead, chachaPoly, check32, hkdfSha256, hmacSha256, randomBytes, sha256, x25519 } from './crypto.ts';
import { BadKey, BadNonce, DecryptError, HandshakeFailed } from './errors.ts';

/** A static key pair: what a handshake needs of an identity. */
export interface KeyPair {
  /** 32 bytes. */
  readonly publicKey: Uint8Array;
  /** The X25519 secret shared with `peer`, 32 bytes. */
  shared(peer: Uint8Array): Uint8Array;
}

/** What both ends bring to a handshake. */
export interface HandshakeOptions {
  /** The own static key pair. */
  identity: KeyPair;
  /** Bytes that both ends must agree on, any number. */
  prologue: Uint8Array;
  /** The pre-shared key, 32 bytes. */
  psk: Uint8Array;
  /** The responder's static public key, 32 bytes: the initiator must know it. */
  remote?: Uint8Array;
  /** The own ephemeral private key, 32 bytes, for reproducible handshakes; default: drawn from `random`, as it must be. */
  ephemeral?: Uint8Array;
  /** Source of random bytes; default: the platform's. */
  random?: (bytes: number) => Uint8Array;
}

/** What a finished handshake leaves: one key per direction. */
export interface Transport {
  /**
   * @param seq 0 to 2^64 - 2, and above every seq sealed before: it is the nonce, and a nonce is used once
   * @throws BadNonce `seq` is out of range or not above the last one
   */
  seal(seq: bigint | number, plaintext: Uint8Array): Uint8Array;
  /** @throws DecryptError `tag`: not sealed by the other end under this seq */
  open(seq: bigint | number, sealed: Uint8Array): Uint8Array;
}

/** The keys of the two directions, 32 bytes each. */
export interface TransportKeys {
  send: Uint8Array;
  receive: Uint8Array;
}

const NAME = 'Noise_IKpsk1_25519_ChaChaPoly_SHA256';
const EMPTY = new Uint8Array(0);
const LAST_SEQ = 2n ** 64n - 2n;

// The psk is "1": mixed in at the end of the first message. With one in the pattern, each e goes into the key as well.
const PATTERN = [
  ['e', 'es', 's', 'ss', 'psk'],
  ['e', 'ee', 'se'],
] as const;

const FIRST_NONCE = new Uint8Array(12);

// A number that is no exact integer becomes -1, which nothing accepts.
const exact = (seq: bigint | number): bigint =>
  typeof seq === 'bigint' ? seq : BigInt(Number.isSafeInteger(seq) ? seq : -1);

// The spec's CipherState and SymmetricState, with the keys seen so far. No array is changed in place, so that a copy of
// the object is a copy of the state.
class State {
  h: Uint8Array = sha256(utf8(NAME));
  ck: Uint8Array = this.h;
  /**
   * Under each key of this pattern one thing is sealed, so that the nonce is always the first. Under most of them nothing
   * is: they are made when they are needed.
   */
  aead: (() => Aead) | undefined;
  /** Own ephemeral key pair, then the other end's ephemeral and static public keys. */
  e: KeyPair | undefined;
  re: Uint8Array | undefined;
  rs: Uint8Array | undefined;

  copy(): State {
    return Object.assign(Object.create(State.prototype) as State, this);
  }

  mixHash(data: Uint8Array): void {
    this.h = sha256(concat(this.h, data));
  }

  /** MixKey, and MixKeyAndHash when three outputs are asked for: HKDF as the specification defines it. */
  mixKey(input: Uint8Array, outputs: 2 | 3 = 2): void {
    const key = hmacSha256(this.ck, input);
    let out = hmacSha256(key, Uint8Array.of(1));
    this.ck = out;
    if (outputs === 3) {
      out = hmacSha256(key, concat(out, Uint8Array.of(2)));
      this.mixHash(out);
    }
    this.aead = () => chachaPoly(hmacSha256(key, concat(out, Uint8Array.of(outputs))));
  }

  encryptAndHash(plain: Uint8Array): Uint8Array {
    const sealed = this.aead!().seal(FIRST_NONCE, plain, this.h);
    this.mixHash(sealed);
    return sealed;
  }

  decryptAndHash(sealed: Uint8Array): Uint8Array {
    const plain = this.aead!().open(FIRST_NONCE, sealed, this.h);
    if (plain === undefined) throw new HandshakeFailed('not authentic');
    this.mixHash(sealed);
    return plain;
  }
}

/**
 * One end of a handshake. The initiator writes, then reads; the responder reads, then writes. A message that is refused
 * leaves no trace: the good one may still follow.
 */
export class Handshake {
  readonly #initiator: boolean;
  readonly #identity: KeyPair;
  readonly #psk: Uint8Array;
  readonly #ephemeral: () => Uint8Array;
  #state: State;
  #step = 0;

  private constructor(o: HandshakeOptions, initiator: boolean) {
    this.#initiator = initiator;
    this.#identity = o?.identity;
    this.#psk = check32(o?.psk, 'a pre-shared key').slice();
    const fixed = o.ephemeral?.slice();
    this.#ephemeral = () => fixed ?? (o.random ?? randomBytes)(32);
    this.#state = new State();
    this.#state.rs = initiator ? check32(o.remote!, 'a public key').slice() : undefined;
    this.#state.mixHash(o.prologue);
    this.#state.mixHash(this.#state.rs ?? o.identity.publicKey);
  }

  /** @throws BadKey `psk` or `remote` is missing or has not 32 bytes */
  static initiator(o: HandshakeOptions): Handshake {
    return new Handshake(o, true);
  }

  /** @throws BadKey `psk` has not 32 bytes */
  static responder(o: HandshakeOptions): Handshake {
    return new Handshake(o, false);
  }

  /** The other end's static public key, as soon as it is proven or, for the initiator, given. */
  get remote(): Uint8Array | undefined {
    return this.#state.rs?.slice();
  }

  /** The hash of all that was said, 32 bytes: equal on both ends, unique to this handshake. */
  get hash(): Uint8Array {
    return this.#state.h.slice();
  }

  /**
   * The next message, with `payload` in it.
   *
   * @throws HandshakeFailed it is not our turn, or the other end's key is of small order
   */
  write(payload: Uint8Array): Uint8Array {
    return this.#process(true, (state, token) => {
      if (token === 'e') {
        state.e = x25519(this.#ephemeral());
        return state.e.publicKey;
      }
      return state.encryptAndHash(token === 's' ? this.#identity.publicKey : payload);
    }).message;
  }

  /**
   * The payload of the other end's message.
   *
   * @throws HandshakeFailed it is not their turn, or the message is too short or does not authenticate
   */
  read(message: Uint8Array): Uint8Array {
    let at = 0;
    const take = (length: number): Uint8Array => {
      if (message.length - at < length) throw new HandshakeFailed('too short');
      return message.slice(at, (at += length));
    };
    return this.#process(false, (state, token) => {
      if (token === 'e') return (state.re = take(32));
      if (token === 's') return (state.rs = state.decryptAndHash(take(48)));
      return state.decryptAndHash(message.slice(at));
    }).last;
  }

  /** The keys of the two directions, for who must keep them. */
  keys(): TransportKeys {
    if (this.#step < PATTERN.length) throw new HandshakeFailed('not finished');
    const out = hkdfSha256(EMPTY, this.#state.ck, EMPTY, 64);
    const [first, second] = [out.slice(0, 32), out.slice(32)];
    return this.#initiator ? { send: first, receive: second } : { send: second, receive: first };
  }

  /** @throws HandshakeFailed the handshake is not finished */
  transport(): Transport {
    return createTransport(this.keys());
  }

  // `part` writes or reads what a token, or the payload behind the last one, puts into the message.
  #process(
    writing: boolean,
    part: (state: State, token: 'e' | 's' | undefined) => Uint8Array,
  ): { message: Uint8Array; last: Uint8Array } {
    const tokens = PATTERN[this.#step];
    if (tokens === undefined || writing !== (this.#initiator === (this.#step === 0))) {
      throw new HandshakeFailed('out of turn');
    }
    const state = this.#state.copy();
    const parts: Uint8Array[] = [];
    try {
      for (const token of tokens) {
        if (token === 'e') {
          const e = part(state, token);
          state.mixHash(e);
          state.mixKey(e);
          parts.push(e);
        } else if (token === 's') parts.push(part(state, token));
        else if (token === 'psk') state.mixKey(this.#psk, 3);
        else {
          // The first letter names the initiator's key, the second the responder's.
          const [own, theirs] = this.#initiator ? [token[0], token[1]] : [token[1], token[0]];
          state.mixKey((own === 'e' ? state.e! : this.#identity).shared(theirs === 'e' ? state.re! : state.rs!));
        }
      }
    } catch (cause) {
      if (cause instanceof BadKey) throw new HandshakeFailed('a key of small order', cause);
      throw cause;
    }
    const last = part(state, undefined);
    this.#state = state;
    this.#step++;
    return { message: concat(...parts, last), last };
  }
}

/**
 * The transport of two keys.
 *
 * @throws BadKey a key has not 32 bytes
 */
export function createTransport({ send, receive }: TransportKeys): Transport {
  const [sealer, opener] = [chachaPoly(send), chachaPoly(receive)];
  // One for all frames: a fresh one for each takes four times as long to fill.
  const nonce = new Uint8Array(12);
  const view = new DataView(nonce.buffer);
  const nonceOf = (seq: bigint): Uint8Array => {
    view.setBigUint64(4, seq, true);
    return nonce;
  };
  let last = -1n;
  return {
    seal(seq, plaintext) {
      const next = exact(seq);
      if (next <= last || next > LAST_SEQ) throw new BadNonce(`seq ${next} is not above ${last}`);
      last = next;
      return sealer.seal(nonceOf(next), plaintext);
    },
    open(seq, sealed) {
      const n = exact(seq);
      const plain = n >= 0n && n <= LAST_SEQ ? opener.open(nonceOf(n), sealed) : undefined;
      if (plain === undefined) throw new DecryptError('tag', `frame ${seq} is not authentic`);
      return plain;
    },
  };
}
