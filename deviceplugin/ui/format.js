/* Numbers and times as people read them.
   In: cores, blocks of 256 MiB, bytes, Unix seconds. Out: short text. Invariant: unknown is '–', never 0. */

const GIB = 1024 ** 3;
export const BLOCK = 256 * 1024 ** 2;
const whole = new Intl.NumberFormat('en');

export const count = (number) => whole.format(number);
export const cores = (number) => (number === null || number === undefined ? '–' : count(Math.round(number * 10) / 10));
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;
export const share = (part, all) => (all > 0 ? Math.min(100, Math.max(0, (100 * part) / all)) : 0);
export const percent = (number) => (number === null || number === undefined ? '–' : `${Math.round(number)} %`);

/** Bytes as GiB or TiB, without the unit's name where `unit` is false. */
export function memory(bytes, unit = true) {
  if (bytes === null || bytes === undefined) return '–';
  const gib = bytes / GIB;
  if (unit && gib >= 10 * 1024) return `${count(Math.round((gib / 1024) * 10) / 10)} TiB`;
  const text = count(gib >= 100 ? Math.round(gib) : Math.round(gib * 10) / 10);
  return unit ? `${text} GiB` : text;
}

/** How long ago, in kubectl's way. */
export function age(from, now) {
  const seconds = Math.max(0, Math.round(now - from));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86400)}d`;
}

export const clock = (at) => new Date(at * 1000).toLocaleTimeString('en-GB');
