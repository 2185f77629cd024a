/**
 * The cryptographic primitives, each in two versions: noble, which is the reference and always available, and
 * `node:crypto` where it can be loaded synchronously, which is 3 to 30 times as fast. The first use of each primitive
 * runs a known-answer test to decide whether the native version works. Closures hold the keys, so that nothing exposes
 * them.
 *
 * @module
 */
import { gcm } from '@noble/ciphers/aes.js';
import { chacha20poly1305 } from '@noble/ciphers/chacha.js';
import { ed25519 as nobleEd25519, x25519 as nobleX25519 } from '@noble/curves/ed25519.js';
import { hmac } from '@noble/hashes/hmac.js';
import { sha256 as nobleSha256, sha512 } from '@noble/hashes/sha2.js';
import { bytesOf, concat, equalBytes, fromBase64url, fromHex, toBase64url, toHex } from './bytes.ts';
import { BadKey } from './errors.ts';

/** An Ed25519 key pair. */
export interface Ed25519Key {
  /** 32 bytes. */
  readonly publicKey: Uint8Array;
  /** The signature, 64 bytes (RFC 8032, deterministic). */
  sign(message: Uint8Array): Uint8Array;
}

/** An X25519 key pair. */
export interface X25519Key {
  /** 32 bytes. */
  readonly publicKey: Uint8Array;
  /**
   * The secret shared with the holder of `peer`: 32 bytes, to be hashed before use.
   *
   * @throws a {@link BadKey} if `peer` does not have 32 bytes, or is of small order, which would make the secret public
   */
  shared(peer: Uint8Array): Uint8Array;
}

/** Authenticated encryption under one key. Nonces have 12 bytes; the tag is the last 16 of the sealed bytes. */
export interface Aead {
  /**
   * Encrypts. Never use a nonce twice. The result may be a view of a larger buffer that holds other ciphertexts.
   *
   * @throws a {@link BadKey} if the nonce does not have 12 bytes
   */
  seal(nonce: Uint8Array, plain: Uint8Array, aad?: Uint8Array): Uint8Array;
  /** Decrypts; undefined if authentication fails, for whatever reason. */
  open(nonce: Uint8Array, sealed: Uint8Array, aad?: Uint8Array): Uint8Array | undefined;
}

// --- the two back ends --------------------------------------------------------------------------------------------

// The part of `node:crypto` that is used here; the library compiles without Node's types.
interface KeyObject {
  export(options: { format: 'jwk' }): { x?: string };
}
interface Cipher {
  setAAD(aad: Uint8Array): unknown;
  setAuthTag(tag: Uint8Array): unknown;
  getAuthTag(): Uint8Array;
  update(data: Uint8Array): Uint8Array;
  final(): Uint8Array;
}
type MakeCipher = (name: string, key: Uint8Array, nonce: Uint8Array, options: { authTagLength: number }) => Cipher;
interface NodeCrypto {
  createPrivateKey(from: { format: 'jwk' | 'der'; type?: 'pkcs8'; key: object }): KeyObject;
  createPublicKey(from: { format: 'jwk'; key: object } | KeyObject): KeyObject;
  sign(algorithm: null, message: Uint8Array, key: KeyObject): Uint8Array;
  verify(algorithm: null, message: Uint8Array, key: KeyObject, signature: Uint8Array): boolean;
  diffieHellman(keys: { privateKey: KeyObject; publicKey: KeyObject }): Uint8Array;
  createCipheriv: MakeCipher;
  createDecipheriv: MakeCipher;
  hash(algorithm: string, data: Uint8Array, encoding: 'binary'): string;
}

function nodeCrypto(): NodeCrypto | undefined {
  const { process } = globalThis as { process?: { getBuiltinModule?(id: string): NodeCrypto | undefined } };
  return process?.getBuiltinModule?.('node:crypto');
}

let nativeAllowed = true;

/**
 * For tests and benchmarks: turns the native versions on or off.
 *
 * @internal
 */
export function useNative(on: boolean): void {
  nativeAllowed = on;
  known.length = 0;
}

/**
 * One primitive in two versions.
 *
 * @internal
 */
export class Backends<F> {
  readonly portable: F;
  readonly #make: (crypto: NodeCrypto) => F;
  readonly #works: (f: F) => boolean;
  #native: F | undefined;
  #tried = false;

  constructor(portable: F, native: (crypto: NodeCrypto) => F, works: (f: F) => boolean) {
    this.portable = portable;
    this.#make = native;
    this.#works = works;
  }

  /** The native version, if there is one and it gives the known answer. Tested once. */
  get native(): F | undefined {
    if (!this.#tried) {
      this.#tried = true;
      try {
        const crypto = nodeCrypto();
        const native = crypto && this.#make(crypto);
        if (native !== undefined && this.#works(native)) this.#native = native;
      } catch {
        // Not available here: Bun, for one, has no ChaCha20-Poly1305.
      }
    }
    return this.#native;
  }

  get best(): F {
    return (nativeAllowed && this.native) || this.portable;
  }
}

/** Input for the known-answer tests, which compare the first four bytes. */
const zeros = (length: number): Uint8Array => new Uint8Array(length);
const begins = (bytes: Uint8Array, hex: string): boolean => toHex(bytes.subarray(0, 4)) === hex;

// A Node Buffer overrides methods of Uint8Array and may be a slice of a shared pool.
function plainBytes(buffer: Uint8Array): Uint8Array {
  return buffer.byteLength === buffer.buffer.byteLength ? new Uint8Array(buffer.buffer) : new Uint8Array(buffer);
}

/**
 * Returns the key if it has 32 bytes, as all keys here do.
 *
 * @param what a description of the key for the error message
 * @throws a {@link BadKey} if it does not
 */
export function check32(key: Uint8Array, what: string): Uint8Array {
  const own = bytesOf(key);
  if (own?.length !== 32) throw new BadKey(`${what} has 32 bytes`);
  return own;
}

/**
 * Returns the value if it is a `Uint8Array`. A string would otherwise be read as that many zero bytes.
 *
 * @param what a description of the bytes for the error message
 * @param least the minimum length
 * @throws a {@link BadKey} if it is not one, or is too short
 */
export function checkBytes(bytes: Uint8Array, what: string, least: number = 0): Uint8Array {
  const own = bytesOf(bytes);
  if (own === undefined) throw new BadKey(`${what} must be a Uint8Array: for a text, new TextEncoder().encode(text)`);
  if (own.length < least) throw new BadKey(`${what} is empty`);
  return own;
}

// Node 20 imports JWK 8 to 15 times as fast as DER. It requires an `x` beside `d` but ignores it. Node 26 compares the
// two and refuses this one, and there DER is as fast.
function nativePrivateKey(crypto: NodeCrypto, crv: 'Ed25519' | 'X25519', key: Uint8Array): [KeyObject, Uint8Array] {
  let secret: KeyObject;
  try {
    secret = crypto.createPrivateKey({ format: 'jwk', key: { kty: 'OKP', crv, d: toBase64url(key), x: '' } });
  } catch {
    const head = fromHex(`302e020100300506032b65${crv === 'Ed25519' ? '70' : '6e'}04220420`)!;
    secret = crypto.createPrivateKey({ format: 'der', type: 'pkcs8', key: concat(head, key) });
  }
  return [secret, fromBase64url(crypto.createPublicKey(secret).export({ format: 'jwk' }).x!)!];
}

function nativePublicKey(crypto: NodeCrypto, crv: string, key: Uint8Array): KeyObject {
  return crypto.createPublicKey({ format: 'jwk', key: { kty: 'OKP', crv, x: toBase64url(key) } });
}

// Field elements of 2^255-19 that no honest key holds, as hex without the top bit: 0, 1, -1 and everything not reduced
// (on both curves), and the coordinates of the points of order 8.
const UNFIT_Y =
  /^(?:0[01]0{62}|(?:e[c-f]|f.)f{60}7f|26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05|c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a)$/;
const UNFIT_U =
  /^(?:0[01]0{62}|(?:e[c-f]|f.)f{60}7f|e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800|5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157)$/;

function unfit(point: Uint8Array, pattern: RegExp): boolean {
  const field = point.slice();
  field[31]! &= 127;
  return pattern.test(toHex(field));
}

// --- Ed25519 ------------------------------------------------------------------------------------------------------

const littleEndian = (bytes: Uint8Array): bigint => BigInt(`0x${toHex(bytes.slice().reverse())}`);

function hashToScalar(...parts: Uint8Array[]): bigint {
  return nobleEd25519.Point.Fn.create(littleEndian(sha512(concat(...parts))));
}

/** @internal */
export const ed25519Backends: Backends<(seed: Uint8Array) => Ed25519Key> = /* @__PURE__ */ new Backends(
  (seed: Uint8Array): Ed25519Key => {
    // noble's own `sign` expands the seed each time, which is half of its work.
    const { Fn, BASE } = nobleEd25519.Point;
    const { prefix, scalar, pointBytes } = nobleEd25519.utils.getExtendedPublicKey(seed);
    return {
      publicKey: pointBytes.slice(),
      sign(message) {
        const r = hashToScalar(prefix, message);
        const R = BASE.multiply(r).toBytes();
        return concat(R, Fn.toBytes(Fn.create(r + hashToScalar(R, pointBytes, message) * scalar)));
      },
    };
  },
  (crypto) => (seed) => {
    const [secret, publicKey] = nativePrivateKey(crypto, 'Ed25519', seed);
    return { publicKey, sign: (message) => plainBytes(crypto.sign(null, message, secret)) };
  },
  (make) => {
    const key = make(zeros(32));
    return begins(key.publicKey, '3b6a27bc') && begins(key.sign(zeros(0)), '8f895b3c');
  },
);

// A cache of valid signatures. A program that reads what it wrote, or that holds both ends of a call, verifies
// signatures that it has made or verified before; comparing takes a hundredth of the time. The first bytes of a
// signature determine its slot, where it stays until another replaces it.
const known: { readonly publicKey: Uint8Array; readonly signature: Uint8Array; readonly message: Uint8Array }[] = [];
const MAX_KNOWN = 1024;
/** Longer messages are not cached, bytes. */
const MAX_KNOWN_BYTES = 2048;
let remembers = true;

/**
 * For benchmarks in which one process plays both ends: turns the signature cache on or off.
 *
 * @internal
 */
export function rememberSignatures(on: boolean): void {
  remembers = on;
  known.length = 0;
}

const placeOf = (signature: Uint8Array): number => (signature[0]! | (signature[1]! << 8)) % MAX_KNOWN;

function isKnown(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): boolean {
  const one = known[placeOf(signature)];
  return (
    one !== undefined &&
    equalBytes(one.signature, signature) &&
    equalBytes(one.publicKey, publicKey) &&
    equalBytes(one.message, message)
  );
}

function remember(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): void {
  if (!remembers || message.length > MAX_KNOWN_BYTES) return;
  const one = { publicKey: publicKey.slice(), signature: signature.slice(), message: message.slice() };
  known[placeOf(signature)] = one;
}

/**
 * The Ed25519 key pair of a seed.
 *
 * @param seed 32 bytes, not retained
 * @throws a {@link BadKey} if there are not 32 bytes
 */
export function ed25519(seed: Uint8Array): Ed25519Key {
  const { publicKey, sign } = ed25519Backends.best(check32(seed, 'an Ed25519 seed'));
  const own = publicKey.slice();
  return {
    publicKey,
    sign(message) {
      const signature = sign(message);
      remember(own, signature, message);
      return signature;
    },
  };
}

/** @internal */
export const verifyBackends: Backends<(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array) => boolean> =
  /* @__PURE__ */ new Backends(
    (publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): boolean => {
      const { Point } = nobleEd25519;
      const R = signature.subarray(0, 32);
      try {
        // Both throw on invalid input: not a point of the curve, or S >= L.
        const A = Point.fromBytes(publicKey);
        const SB = Point.BASE.multiplyUnsafe(littleEndian(signature.subarray(32)));
        return equalBytes(SB.subtract(A.multiplyUnsafe(hashToScalar(R, publicKey, message))).toBytes(), R);
      } catch {
        return false;
      }
    },
    (crypto) => {
      // Creating a key object is a large part of a verification, and a program meets the same few keys again and again.
      const lately = new Map<string, KeyObject>();
      return (publicKey, signature, message) => {
        try {
          const x = toBase64url(publicKey);
          let key = lately.get(x);
          if (key === undefined) {
            key = nativePublicKey(crypto, 'Ed25519', publicKey);
            if (lately.size >= 256) lately.clear();
            lately.set(x, key);
          }
          return crypto.verify(null, message, key, signature);
        } catch {
          return false;
        }
      };
    },
    (verify) => {
      const key = ed25519(zeros(32));
      const signature = key.sign(zeros(0));
      return verify(key.publicKey, signature, zeros(0)) && !verify(key.publicKey, signature, zeros(1));
    },
  );

/**
 * Verifies an Ed25519 signature as strictly as the strictest service does: the key and R must be canonical and not of
 * small order, S < L, and R is compared as bytes, without the cofactor. Wrong lengths give false, not an error. (By
 * default, noble accepts small orders and non-canonical points, and OpenSSL accepts small orders.)
 */
export function ed25519Verify(publicKey: Uint8Array, signature: Uint8Array, message: Uint8Array): boolean {
  if (signature.length !== 64) return false;
  if (isKnown(publicKey, signature, message)) return true;
  if (!isHonestPoint(publicKey) || !isHonestPoint(signature.subarray(0, 32))) return false;
  const isGood = verifyBackends.best(publicKey, signature, message);
  if (isGood) remember(publicKey, signature, message);
  return isGood;
}

/** Whether 32 bytes can be an honest Ed25519 public key: not of small order, and canonical. */
export function isHonestPoint(bytes: Uint8Array): boolean {
  return bytes.length === 32 && !unfit(bytes, UNFIT_Y);
}

// --- X25519 -------------------------------------------------------------------------------------------------------

/** @internal */
export const x25519Backends: Backends<(privateKey: Uint8Array) => X25519Key> = /* @__PURE__ */ new Backends(
  (privateKey: Uint8Array): X25519Key => {
    const secret = privateKey.slice();
    return {
      publicKey: nobleX25519.getPublicKey(secret),
      shared: (peer) => nobleX25519.getSharedSecret(secret, peer),
    };
  },
  (crypto) => {
    // A handshake uses each of the other end's two keys twice, and identities recur: the last ones used are kept,
    // latest first.
    const recent: [publicKey: Uint8Array, key: KeyObject][] = [];
    const imported = (peer: Uint8Array): KeyObject => {
      const at = recent.findIndex(([publicKey]) => equalBytes(publicKey, peer));
      const [known] = at < 0 ? [] : recent.splice(at, 1);
      const one = known ?? [peer.slice(), nativePublicKey(crypto, 'X25519', peer)];
      recent.unshift(one);
      recent.length = Math.min(recent.length, 4);
      return one[1];
    };
    return (key) => {
      const [privateKey, publicKey] = nativePrivateKey(crypto, 'X25519', key);
      return {
        publicKey,
        shared: (peer) => plainBytes(crypto.diffieHellman({ privateKey, publicKey: imported(peer) })),
      };
    };
  },
  (make) => {
    const key = make(zeros(32));
    return begins(key.publicKey, '2fe57da3') && begins(key.shared(key.publicKey), '93fea2a7');
  },
);

/**
 * The X25519 key pair of a private key (RFC 7748). Clamping happens inside; the key itself may be any 32 bytes.
 *
 * @param privateKey 32 bytes, not retained
 * @throws a {@link BadKey} if there are not 32 bytes
 */
export function x25519(privateKey: Uint8Array): X25519Key {
  const { publicKey, shared } = x25519Backends.best(check32(privateKey, 'an X25519 private key'));
  return {
    publicKey,
    shared(peer) {
      const theirs = check32(peer, 'an X25519 public key');
      try {
        const secret = shared(theirs);
        if (secret.some((byte) => byte !== 0)) return secret;
      } catch {
        // Each version throws its own error for a secret of zeros.
      }
      throw new BadKey('the X25519 public key is of small order');
    },
  };
}

/**
 * Whether 32 bytes are a canonical X25519 public key (below 2^255-19) that is not of small order. X25519 itself accepts
 * any 32 bytes, so untrusted keys are checked where a second spelling of a key would matter.
 */
export function isCanonicalX25519(publicKey: Uint8Array): boolean {
  return publicKey.length === 32 && publicKey[31]! < 128 && !unfit(publicKey, UNFIT_U);
}

// --- authenticated encryption -------------------------------------------------------------------------------------

type NobleCipher = (
  key: Uint8Array,
  nonce: Uint8Array,
  aad?: Uint8Array,
) => {
  encrypt(plain: Uint8Array, into?: Uint8Array): Uint8Array;
  decrypt(sealed: Uint8Array): Uint8Array;
};
type MakeAead = (key: Uint8Array) => Aead;

/** @param place allocates the ciphertext; noble supports that for ChaCha20-Poly1305 only */
function portableAead(cipher: NobleCipher, place?: typeof placeFor): MakeAead {
  return (given) => {
    const key = given.slice();
    return {
      seal: (nonce, plain, aad) => cipher(key, nonce, aad).encrypt(plain, place?.(plain.length + 16)),
      open(nonce, sealed, aad) {
        const box = cipher(key, nonce, aad);
        try {
          return box.decrypt(sealed);
        } catch {
          return undefined;
        }
      },
    };
  };
}

const TAG = { authTagLength: 16 };

// Short ciphertexts are allocated from a shared pool, as Node's Buffers are: an allocation for each, outside of V8's
// heap, takes a quarter of the time to seal and open 1 KB. The pool never holds anything that is not meant to be sent.
const SHARED_BYTES = 16_384;
const MAX_SHARING = 2048;
let ciphertexts = new Uint8Array(0);
let used = 0;

function placeFor(length: number): Uint8Array {
  if (length > MAX_SHARING) return new Uint8Array(length);
  if (used + length > ciphertexts.length) {
    ciphertexts = new Uint8Array(SHARED_BYTES);
    used = 0;
  }
  const place = ciphertexts.subarray(used, used + length);
  // noble is faster on aligned words.
  used += (length + 7) & ~7;
  return place;
}

function nativeAead(crypto: NodeCrypto, name: string): MakeAead {
  return (given) => {
    const key = given.slice();
    return {
      seal(nonce, plain, aad) {
        const cipher = crypto.createCipheriv(name, key, nonce, TAG);
        if (aad !== undefined) cipher.setAAD(aad);
        const sealed = placeFor(plain.length + 16);
        sealed.set(cipher.update(plain));
        cipher.final();
        sealed.set(cipher.getAuthTag(), plain.length);
        return sealed;
      },
      open(nonce, sealed, aad) {
        const cipher = crypto.createDecipheriv(name, key, nonce, TAG);
        if (aad !== undefined) cipher.setAAD(aad);
        cipher.setAuthTag(sealed.subarray(-16));
        const plain = cipher.update(sealed.subarray(0, -16));
        try {
          cipher.final();
        } catch {
          return undefined;
        }
        return plainBytes(plain);
      },
    };
  };
}

function aeadWorks(sealed: string): (make: MakeAead) => boolean {
  return (make) => {
    const aead = make(zeros(32));
    const box = aead.seal(zeros(12), zeros(4), zeros(1));
    return begins(box.subarray(4), sealed) && aead.open(zeros(12), box, zeros(1))?.length === 4;
  };
}

function checkedAead(backends: Backends<MakeAead>, key: Uint8Array): Aead {
  const { seal, open } = backends.best(check32(key, 'an encryption key'));
  return {
    seal(nonce, plain, aad) {
      if (nonce.length !== 12) throw new BadKey('a nonce has 12 bytes');
      return seal(nonce, plain, aad);
    },
    open: (nonce, sealed, aad) => (nonce.length === 12 && sealed.length >= 16 ? open(nonce, sealed, aad) : undefined),
  };
}

/** @internal */
export const aesGcmBackends: Backends<MakeAead> = /* @__PURE__ */ new Backends(
  /* @__PURE__ */ portableAead(gcm),
  (crypto) => nativeAead(crypto, 'aes-256-gcm'),
  /* @__PURE__ */ aeadWorks('dbf2f06d'),
);

/** @internal */
export const chachaPolyBackends: Backends<MakeAead> = /* @__PURE__ */ new Backends(
  /* @__PURE__ */ portableAead(chacha20poly1305, placeFor),
  (crypto) => nativeAead(crypto, 'chacha20-poly1305'),
  /* @__PURE__ */ aeadWorks('c7ae3d61'),
);

/**
 * AES-256-GCM under a key of 32 bytes, which is copied.
 *
 * @throws a {@link BadKey} if there are not 32 bytes
 */
export function aesGcm(key: Uint8Array): Aead {
  return checkedAead(aesGcmBackends, key);
}

/**
 * ChaCha20-Poly1305 (RFC 8439) under a key of 32 bytes, which is copied.
 *
 * @throws a {@link BadKey} if there are not 32 bytes
 */
export function chachaPoly(key: Uint8Array): Aead {
  return checkedAead(chachaPolyBackends, key);
}

// --- hashes -------------------------------------------------------------------------------------------------------

// `hash` instead of a hash object, and a string instead of a Buffer: twice as fast for inputs as short as ours.
function digestInto(crypto: NodeCrypto, bytes: Uint8Array, into: Uint8Array, at: number): void {
  const text = crypto.hash('sha256', bytes, 'binary');
  for (let i = 0; i < 32; i++) into[at + i] = text.charCodeAt(i);
}

function nativeSha256(crypto: NodeCrypto, bytes: Uint8Array): Uint8Array {
  const digest = new Uint8Array(32);
  digestInto(crypto, bytes, digest, 0);
  return digest;
}

/** @internal */
export const sha256Backends: Backends<(bytes: Uint8Array) => Uint8Array> = /* @__PURE__ */ new Backends(
  (bytes: Uint8Array): Uint8Array => nobleSha256(bytes),
  (crypto) => (bytes) => nativeSha256(crypto, bytes),
  (sha) => begins(sha(zeros(0)), 'e3b0c442'),
);

/** @internal */
export const hmacBackends: Backends<(key: Uint8Array, bytes: Uint8Array) => Uint8Array> = /* @__PURE__ */ new Backends(
  (key: Uint8Array, bytes: Uint8Array): Uint8Array => hmac(nobleSha256, key, bytes),
  (crypto) => {
    // Allocating more than 64 bytes costs more than hashing them, so short input is assembled here, and wiped
    // afterwards.
    const [inner, outer] = [new Uint8Array(256), new Uint8Array(96)];
    return (key, bytes) => {
      const short = key.length > 64 ? nativeSha256(crypto, key) : key;
      for (let i = 0; i < 64; i++) {
        const byte = i < short.length ? short[i]! : 0;
        inner[i] = byte ^ 0x36;
        outer[i] = byte ^ 0x5c;
      }
      const length = 64 + bytes.length;
      const fits = length <= inner.length;
      if (fits) inner.set(bytes, 64);
      digestInto(crypto, fits ? inner.subarray(0, length) : concat(inner.subarray(0, 64), bytes), outer, 64);
      const mac = nativeSha256(crypto, outer);
      inner.fill(0);
      outer.fill(0);
      return mac;
    };
  },
  (mac) => begins(mac(zeros(0), zeros(0)), 'b613679a'),
);

/** SHA-256, 32 bytes. */
export function sha256(bytes: Uint8Array): Uint8Array {
  return sha256Backends.best(bytes);
}

/** HMAC-SHA256 (RFC 2104), 32 bytes. */
export function hmacSha256(key: Uint8Array, bytes: Uint8Array): Uint8Array {
  return hmacBackends.best(key, bytes);
}

/**
 * HKDF-SHA256 (RFC 5869), extract and expand.
 *
 * @param salt empty for none
 * @param length the number of bytes to return, 0 to 8160
 * @throws a {@link BadKey} if `length` is out of range
 */
export function hkdfSha256(ikm: Uint8Array, salt: Uint8Array, info: Uint8Array, length: number): Uint8Array {
  if (!(length >= 0 && length <= 255 * 32)) throw new BadKey('HKDF-SHA256 gives at most 8160 bytes');
  const key = hmacSha256(salt, ikm);
  const out = new Uint8Array(Math.ceil(length / 32) * 32);
  // The previous block (none for the first one), `info`, and the number of the block.
  const input = new Uint8Array(33 + info.length);
  input.set(info, 32);
  for (let i = 0; i * 32 < length; i++) {
    input[32 + info.length] = i + 1;
    const block = hmacSha256(key, i === 0 ? input.subarray(32) : input);
    input.set(block);
    out.set(block, i * 32);
  }
  return out.slice(0, length);
}

/**
 * Any number of random bytes from the platform's generator.
 *
 * @throws a {@link BadKey} if the platform has none
 */
export function randomBytes(length: number): Uint8Array {
  const { crypto } = globalThis;
  if (crypto?.getRandomValues === undefined) throw new BadKey('this platform has no random generator');
  const bytes = new Uint8Array(length);
  // One call returns at most 65,536 bytes.
  for (let at = 0; at < length; at += 65536) crypto.getRandomValues(bytes.subarray(at, at + 65536));
  return bytes;
}
