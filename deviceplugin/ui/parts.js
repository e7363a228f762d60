/* What several views draw: bars, pods' names, tables' ends.
   In: rows of the scheduler's view. Out: elements of `h`. Invariant: what a bar shows is also there as text or label. */

import { h } from './dom.js';
import { BLOCK, cores, memory, share } from './format.js';

/** What is allocated of all, and what is used (percent of all; null where not known). Without a label it stands in something labelled. */
export function bar(kind, label, allocated, all, used = null) {
  const part = share(allocated, all);
  return h('div', { class: `bar ${kind}`, role: label ? 'img' : null, 'aria-label': label || null, 'aria-hidden': !label },
    h('i', { class: 'allocated', style: { width: `${part}%` } }),
    used !== null && used !== undefined && (used > 0 || allocated > 0) && h('i', { class: 'used', style: { width: `${Math.min(100, used)}%` } }));
}

export const blocks = (number, unit = true) => memory(number * BLOCK, unit);

export function amount(row) {
  return `${cores(row.cores_allocated)} of ${cores(row.cores)} cores`;
}

export function podName(row) {
  return h('a', { href: podAddress(row), class: 'pod' }, h('span', { class: 'dim' }, `${row.namespace}/`), row.pod);
}

/** Which way a part was asked for, where it is a claim: its name, and how many containers share it. */
export function claimNote(row) {
  if (row.source !== 'claim') return null;
  const name = row.claim ? `claim ${row.claim}` : 'by a claim';
  return h('span', { class: 'small' }, (row.users ?? 1) === 1 ? name : `${name}, ${row.users || 'no'} containers`);
}

export const podAddress = (row) => `#/pods/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.pod)}`;
export const nodeAddress = (name) => `#/nodes/${encodeURIComponent(name)}`;

export const stage = (text) => h('span', { class: `stage ${['pending', 'reserved', 'bound'].find((each) => each === text) ?? ''}` }, text);

export const empty = (text) => h('p', { class: 'empty' }, text);

export function pager(route, page, shown, total, more) {
  if (!page && !more) return h('p', { class: 'pager' }, `${shown} of ${total}`);
  const from = page * route.limit;
  return h('p', { class: 'pager' },
    h('button', { type: 'button', 'data-action': 'before', disabled: !page }, 'Before'),
    h('span', {}, `${from + 1}–${from + shown} of ${total}`),
    h('button', { type: 'button', 'data-action': 'next', disabled: !more }, 'Next'));
}

export function select(name, label, value, options) {
  return h('label', {}, h('span', {}, label),
    h('select', { 'data-filter': name, name }, options.map(([key, text]) => h('option', { value: key, selected: key === value }, text))));
}

export function search(name, label, value) {
  return h('label', {}, h('span', {}, label),
    h('input', { type: 'search', 'data-filter': name, name, value, placeholder: '/', maxlength: 200, spellcheck: 'false', autocomplete: 'off' }));
}
