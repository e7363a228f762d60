/* Numbers and times as people read them.
   In: cores, blocks of 256 MiB, bytes, Unix seconds. Out: short text. Invariant: unknown is '–', never 0. */

const GIB = 1024 ** 3;
export const BLOCK = 256 * 1024 ** 2;
const whole = new Intl.NumberFormat('en');

export const isKnown = (number) => number !== null && number !== undefined;
export const count = (number) => whole.format(number);
export const cores = (number) => (isKnown(number) ? count(Math.abs(number) < 10 ? Math.round(number * 10) / 10 : Math.round(number)) : '–');
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;
export const share = (part, all) => (all > 0 ? Math.min(100, Math.max(0, (100 * part) / all)) : 0);
export const percent = (number) => (isKnown(number) ? `${Math.round(number)} %` : '–');
/** The sum of what is known, null if nothing is. */
export const total = (numbers) => (numbers.some(isKnown) ? numbers.reduce((sum, each) => sum + (each ?? 0), 0) : null);

const isLarge = (bytes) => bytes >= 10 * 1024 * GIB;

/** Bytes as GiB, or as TiB from ten on. */
export const memory = (bytes) => (isKnown(bytes) ? `${rounded(bytes, bytes)} ${isLarge(bytes) ? 'TiB' : 'GiB'}` : '–');

/** A part of all, in one unit. */
export const memoryOf = (part, all) => `${isKnown(part) ? rounded(part, all) : '–'} of ${memory(all)}`;

/** In the unit that `all` has. */
export function rounded(bytes, all) {
  const number = bytes / (isLarge(all) ? 1024 * GIB : GIB);
  return count(number >= 100 ? Math.round(number) : Math.round(number * 10) / 10);
}

/** A duration in kubectl's way. */
export function lasting(time) {
  const seconds = Math.max(0, Math.round(time));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86400)}d`;
}

export const age = (from, now) => lasting(now - from);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString('en-GB');
export const minute = (at) => clock(at).slice(0, 5);
