/**
 * Helpers for maps: values created on first use, maps of limited size, counters.
 *
 * @module
 */

/** The value of a key, created on first use. */
export function getOrMake<K, V>(
  map: { get(key: K): V | undefined; set(key: K, value: V): unknown },
  key: K,
  make: () => V,
): V {
  let value = map.get(key);
  if (value === undefined) map.set(key, (value = make()));
  return value;
}

/** Sets a value in a map of limited size. If it is full, the entry that was set least recently is dropped. */
export function remember<K, V>(map: Map<K, V>, key: K, value: V, max: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size > max) map.delete(map.keys().next().value!);
}

/** Adds to the count of a key. A count of 0 is removed. */
export function count<K>(counts: Map<K, number>, key: K, by: 1 | -1): void {
  const sum = (counts.get(key) ?? 0) + by;
  if (sum > 0) counts.set(key, sum);
  else counts.delete(key);
}
