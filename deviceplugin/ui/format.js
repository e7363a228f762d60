/* Numbers and times as people read them.
   In: cores, blocks of 256 MiB, bytes, Unix seconds. Out: short text. Invariant: unknown is '–', never 0. */

const [MIB, GIB, TIB] = [1024 ** 2, 1024 ** 3, 1024 ** 4];
export const BLOCK = 256 * MIB;
const whole = new Intl.NumberFormat('en');

export const isKnown = (number) => number !== null && number !== undefined;
export const count = (number) => whole.format(number);
export const cores = (number) => (isKnown(number) ? count(Math.abs(number) < 10 ? Math.round(number * 10) / 10 : Math.round(number)) : '–');
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;
export const capital = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
export const share = (part, all) => (all > 0 ? Math.min(100, Math.max(0, (100 * part) / all)) : 0);
export const percent = (number) => (isKnown(number) ? `${Math.round(number)} %` : '–');
/** The sum of what is known, null if nothing is. */
export const total = (numbers) => (numbers.some(isKnown) ? numbers.reduce((sum, each) => sum + (each ?? 0), 0) : null);

/** In MiB below 1 GiB, in TiB from 10 TiB on, else in GiB; `bytes_text` of model/units.py has the same rule. */
function unit(bytes) {
  if (bytes > 0 && bytes < GIB) return [MIB, 'MiB'];
  return bytes < 10 * TIB ? [GIB, 'GiB'] : [TIB, 'TiB'];
}

export const memory = (bytes) => (isKnown(bytes) ? `${rounded(bytes, bytes)} ${unit(bytes)[1]}` : '–');

/** A part of all, in the unit that all has. */
export const memoryOf = (part, all) => `${isKnown(part) ? rounded(part, all) : '–'} of ${memory(all)}`;

/** In the unit that `all` has. Two decimals at most below 100, one above: a block more or less shows. */
export function rounded(bytes, all) {
  const number = bytes / unit(all)[0];
  const scale = number < 100 ? 100 : 10;
  return count(Math.round(number * scale) / scale);
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
