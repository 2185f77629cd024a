/**
 * `Noise_IKpsk1_25519_ChaChaPoly_SHA256`, transcribed from the Noise Protocol Framework, revision 34: after two
 * messages, both ends hold one key for each direction. The initiator knows the responder's static public key in
 * advance; both know the pre-shared key.
 *
 * @module
 */
import { concat, utf8 } from './bytes.ts';
import {
  type Aead,
  chachaPoly,
  check32,
  checkBytes,
  hkdfSha256,
  hmacSha256,
  randomBytes,
  sha256,
  x25519,
} from './crypto.ts';
import { BadKey, BadNonce, DecryptError, HandshakeFailed } from './errors.ts';

/** An X25519 key pair (RFC 7748) for a handshake: an {@link Identity}, or your own. */
export interface KeyPair {
  /** The public key, 32 bytes. */
  readonly publicKey: Uint8Array;
  /** Returns the secret shared with the public key `peer`, 32 bytes. */
  shared(peer: Uint8Array): Uint8Array;
}

/** Options of a {@link Handshake}. */
export interface HandshakeOptions {
  /** This end's static key pair. */
  identity: KeyPair;
  /** Any number of bytes, which must be the same at both ends. */
  prologue: Uint8Array;
  /** The pre-shared key, 32 bytes. */
  psk: Uint8Array;
  /** The responder's static public key, 32 bytes. Required for the initiator; the responder ignores it. */
  remote?: Uint8Array | undefined;
  /** This end's ephemeral private key, 32 bytes, for tests only. Default: taken from `random`. */
  ephemeral?: Uint8Array | undefined;
  /** The source of random bytes. Default: the platform's. */
  random?: ((bytes: number) => Uint8Array) | undefined;
}

/** Encrypts and decrypts after a finished handshake: ChaCha20-Poly1305 without associated data. */
export interface Transport {
  /**
   * Encrypts a plaintext.
   *
   * @param seq the nonce, 0 to 2^64 - 2; higher than all earlier ones, since a nonce must be used only once
   * @returns the ciphertext, 16 bytes longer than the plaintext; perhaps a view of a larger buffer that holds other
   * ciphertexts
   * @throws `BadNonce` if `seq` is out of range, or not higher than the last one
   */
  seal(seq: bigint | number, plaintext: Uint8Array): Uint8Array;
  /**
   * Decrypts what the other end has encrypted.
   *
   * @param seq the nonce that it was encrypted with
   * @throws `DecryptError` (`layer: 'tag'`) if the other end did not encrypt it under this `seq`
   */
  open(seq: bigint | number, sealed: Uint8Array): Uint8Array;
}

/** The two keys of a finished handshake, 32 bytes each. Secrets. */
export interface TransportKeys {
  /** The key for what this end sends. */
  send: Uint8Array;
  /** The key for what this end receives. */
  receive: Uint8Array;
}

const NAME = 'Noise_IKpsk1_25519_ChaChaPoly_SHA256';
const EMPTY = new Uint8Array(0);
const LAST_SEQ = 2n ** 64n - 2n;

// "psk1": mixed in at the end of the first message. In a pattern with a psk, each e goes into the key as well.
const PATTERN = [
  ['e', 'es', 's', 'ss', 'psk'],
  ['e', 'ee', 'se'],
] as const;

const FIRST_NONCE = new Uint8Array(12);

// A number that is not an exact integer becomes -1, which nothing accepts.
const exact = (seq: bigint | number): bigint =>
  typeof seq === 'bigint' ? seq : BigInt(Number.isSafeInteger(seq) ? seq : -1);

// The specification's CipherState and SymmetricState, with the keys seen so far. No array is changed in place, so that a
// shallow copy of the object is a copy of the state.
class State {
  h: Uint8Array = sha256(utf8(NAME));
  ck: Uint8Array = this.h;
  /**
   * The current key. In this pattern at most one thing is encrypted under each key, so the nonce is always the first.
   * Most keys are never used, so they are derived on demand.
   */
  aead: (() => Aead) | undefined;
  /** Our ephemeral key pair, then the other end's ephemeral and static public keys. */
  e: KeyPair | undefined;
  re: Uint8Array | undefined;
  rs: Uint8Array | undefined;

  copy(): State {
    return Object.assign(Object.create(State.prototype) as State, this);
  }

  mixHash(data: Uint8Array): void {
    this.h = sha256(concat(this.h, data));
  }

  /** The specification's MixKey, or with three outputs MixKeyAndHash. */
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
 * One end of a handshake of the Noise Protocol Framework, revision 34: `Noise_IKpsk1_25519_ChaChaPoly_SHA256`. The
 * initiator writes, then reads; the responder reads, then writes. A message that is refused does not change the state,
 * so the right one may still follow. {@link Session} does all this itself.
 *
 * @example
 * ```ts
 * import { Handshake, Identity, Secret } from 'technocore-rpc/parley';
 *
 * const [ada, ben] = [Identity.generate(), Identity.generate()];
 * const o = { psk: Secret.generate().psk(), prologue: new Uint8Array(0) };
 * const initiator = Handshake.initiator({ ...o, identity: ada, remote: ben.publicKey });
 * const responder = Handshake.responder({ ...o, identity: ben });
 *
 * responder.read(initiator.write(new Uint8Array(0))); // messages may carry any payload
 * initiator.read(responder.write(new Uint8Array(0)));
 * const sealed = initiator.transport().seal(0, new TextEncoder().encode('hello'));
 * console.log(new TextDecoder().decode(responder.transport().open(0, sealed))); // hello
 * ```
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
    this.#state.mixHash(checkBytes(o.prologue, 'prologue'));
    this.#state.mixHash(this.#state.rs ?? o.identity.publicKey);
  }

  /**
   * Makes the end that writes first.
   *
   * @throws `BadKey` if `psk` or `remote` does not have 32 bytes, or `prologue` is not a `Uint8Array`
   */
  static initiator(o: HandshakeOptions): Handshake {
    return new Handshake(o, true);
  }

  /**
   * Makes the end that reads first.
   *
   * @throws `BadKey` if `psk` does not have 32 bytes, or `prologue` is not a `Uint8Array`
   */
  static responder(o: HandshakeOptions): Handshake {
    return new Handshake(o, false);
  }

  /** The other end's static public key: for the responder once it is proved, for the initiator as given. */
  get remote(): Uint8Array | undefined {
    return this.#state.rs?.slice();
  }

  /** The handshake hash of the specification, 32 bytes: the same at both ends, and unique to this handshake. */
  get hash(): Uint8Array {
    return this.#state.h.slice();
  }

  /**
   * Writes the next message, with an encrypted payload.
   *
   * @param payload any bytes; may be empty
   * @throws a {@link HandshakeFailed} if it is the other end's turn, or the other end's key is of small order
   */
  write(payload: Uint8Array): Uint8Array {
    const own = checkBytes(payload, 'the payload');
    return this.#process(true, (state, token) => {
      if (token === 'e') {
        state.e = x25519(this.#ephemeral());
        return state.e.publicKey;
      }
      return state.encryptAndHash(token === 's' ? this.#identity.publicKey : own);
    }).message;
  }

  /**
   * Reads the other end's message.
   *
   * @returns its payload
   * @throws a {@link HandshakeFailed} if it is this end's turn, or the message is too short, does not authenticate, or
   * holds a key of small order
   */
  read(message: Uint8Array): Uint8Array {
    const own = checkBytes(message, 'the message');
    let at = 0;
    const take = (length: number): Uint8Array => {
      if (own.length - at < length) throw new HandshakeFailed('too short');
      return own.slice(at, (at += length));
    };
    return this.#process(false, (state, token) => {
      if (token === 'e') return (state.re = take(32));
      if (token === 's') return (state.rs = state.decryptAndHash(take(48)));
      return state.decryptAndHash(own.slice(at));
    }).last;
  }

  /**
   * The keys for the two directions, for storage.
   *
   * @throws a {@link HandshakeFailed} if the handshake is not finished
   */
  keys(): TransportKeys {
    if (this.#step < PATTERN.length) throw new HandshakeFailed('not finished');
    const out = hkdfSha256(EMPTY, this.#state.ck, EMPTY, 64);
    const [first, second] = [out.slice(0, 32), out.slice(32)];
    return this.#initiator ? { send: first, receive: second } : { send: second, receive: first };
  }

  /**
   * The transport that encrypts and decrypts after the handshake. Call this only once: each call returns a transport
   * that has used no nonce yet.
   *
   * @throws a {@link HandshakeFailed} if the handshake is not finished
   */
  transport(): Transport {
    return createTransport(this.keys());
  }

  // `part` writes or reads the bytes of a token or, without a token, those of the payload.
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
 * Makes a transport from two keys.
 *
 * @throws `BadKey` if a key does not have 32 bytes
 */
export function createTransport({ send, receive }: TransportKeys): Transport {
  const [sealer, opener] = [chachaPoly(send), chachaPoly(receive)];
  // One buffer for all frames: filling a fresh one takes four times as long.
  const nonce = new Uint8Array(12);
  const view = new DataView(nonce.buffer);
  const nonceOf = (seq: bigint): Uint8Array => {
    view.setBigUint64(4, seq, true);
    return nonce;
  };
  let last = -1n;
  return {
    seal(seq, plaintext) {
      const own = checkBytes(plaintext, 'the plaintext');
      const next = exact(seq);
      if (next <= last || next > LAST_SEQ) throw new BadNonce(`seq ${next} is not above ${last}`);
      last = next;
      return sealer.seal(nonceOf(next), own);
    },
    open(seq, sealed) {
      const own = checkBytes(sealed, 'the sealed text');
      const n = exact(seq);
      const plain = n >= 0n && n <= LAST_SEQ ? opener.open(nonceOf(n), own) : undefined;
      if (plain === undefined) throw new DecryptError('tag', `frame ${seq} is not authentic`);
      return plain;
    },
  };
}
