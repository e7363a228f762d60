/* What several views draw: bars, pods' names, tables' ends, filters.
   In: rows of the scheduler's view. Out: elements of `h`. Invariant: what a bar shows is also there as text or label. Of a row one link
   is reached by keys (`rowLink`); the others are on the page that it opens. */

import { h } from './dom.js';
import { BLOCK, capital, cores, isKnown, memory, memoryOf, share } from './format.js';

/** What is allocated of all, and what is used (percent of all; null where not known). Without a label it stands in something labelled. */
export function bar(kind, label, allocated, all, used = null) {
  const part = share(allocated, all);
  return h('div', { class: `bar ${kind}`, role: label ? 'img' : null, 'aria-label': label || null, 'aria-hidden': !label },
    h('i', { class: 'allocated', style: { width: `${part}%` } }),
    isKnown(used) && (used > 0 || allocated > 0) && h('i', { class: 'used', style: { width: `${Math.min(100, used)}%` } }));
}

export const blocks = (number) => memory(number * BLOCK);
export const blocksOf = (part, all) => memoryOf(part * BLOCK, all * BLOCK);
/** What a share has: all memory of GPUs that nobody has chosen yet is 0 blocks. */
export const allocatedMemory = (number) => (number ? blocks(number) : 'whole GPUs');

export function amount(row) {
  return `${cores(row.cores_allocated)} of ${cores(row.cores)} cores`;
}

/** A cell: what is used of what is allocated, as text and as a bar. */
function measured(name, kind, allocated, used, text) {
  return h('td', { class: 'num use', 'data-name': name }, text,
    isKnown(used) && allocated > 0 && bar(kind, '', allocated, allocated, share(used, allocated)));
}

export const CORES = 'Cores, used of allocated';
export const MEMORY = 'Memory, used of allocated';

/** Without `used` of a pod that has no node: what it requests. */
export function coresCell(allocated, used) {
  return measured('Cores', 'cores', allocated, used, used === undefined ? cores(allocated) : `${cores(used)} of ${cores(allocated)}`);
}

export function memoryCell(number, used) {
  return measured('Memory', 'memory', number * BLOCK, used, used === undefined || !number ? allocatedMemory(number) : memoryOf(used, number * BLOCK));
}

/** Of a pod without a node, among others: it is in no sum of what is allocated. */
export function requested(name, text) {
  return h('td', { class: 'num', 'data-name': name }, text, h('span', { class: 'small' }, 'requested'));
}

export const useNote = () => h('p', { class: 'small note' },
  'Used: what containers use. The cards above show the utilization of whole GPUs, as the driver measures it.');

export function pair(allocated, used) {
  return [h('span', {}, allocated), used !== null && h('span', { class: 'small' }, `${used} used`)];
}

/** The one link of a row that keys reach; main.js moves between them. */
export function rowLink(attributes, ...children) {
  return h('a', { ...attributes, 'data-row': '', tabindex: -1 }, ...children);
}

export function otherLink(href, ...children) {
  return h('a', { href, tabindex: -1 }, ...children);
}

export function podName(row, link = rowLink) {
  return link === rowLink ? rowLink({ href: podAddress(row), class: 'pod' }, name(row)) : link(podAddress(row), name(row));
}

const name = (row) => [h('span', { class: 'dim' }, `${row.namespace}/`), row.pod];

/** Which way a part was asked for, where it is a claim: its name, and how many containers share it. */
export function claimNote(row) {
  if (row.source !== 'claim') return null;
  const claim = row.claim ? `claim ${row.claim}` : 'by a claim';
  return h('span', { class: 'small' }, (row.users ?? 1) === 1 ? claim : `${claim}, ${row.users || 'no'} containers`);
}

export const podAddress = (row) => `#/pods/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.pod)}`;
export const nodeAddress = (node) => `#/nodes/${encodeURIComponent(node)}`;
export const gpuAddress = (node, uuid) => `${nodeAddress(node)}?gpu=${encodeURIComponent(uuid)}`;

/** A dashboard of the chart; null where no Grafana is named. */
export function grafana(cluster, dashboard, variables) {
  if (!cluster?.grafana_url) return null;
  const query = new URLSearchParams(Object.entries(variables).map(([key, value]) => [`var-${key}`, value]));
  return h('p', {}, h('a', { href: `${cluster.grafana_url.replace(/\/+$/, '')}/d/${dashboard}?${query}`, rel: 'noreferrer' }, 'Longer history in Grafana'));
}

/** Numbers of GPUs, neighbours as a range. */
export function ranges(minors) {
  const runs = [...minors].sort((a, b) => a - b).reduce((found, each) => {
    const last = found.at(-1);
    if (last && each === last[1] + 1) last[1] = each;
    else found.push([each, each]);
    return found;
  }, []);
  return runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(', ');
}

export const stage = (text) => h('span', { class: `stage ${['pending', 'reserved', 'bound'].find((each) => each === text) ?? ''}` }, capital(text));

export const empty = (...text) => h('p', { class: 'empty' }, ...text);

export function pager(route, page, shown, total, more) {
  if (!page && !more) return h('p', { class: 'pager' }, `${shown} of ${total}`);
  const from = page * route.limit;
  return h('p', { class: 'pager' },
    h('button', { type: 'button', 'data-action': 'before', disabled: !page }, 'Previous'),
    h('span', {}, `${from + 1}–${from + shown} of ${total}`),
    h('button', { type: 'button', 'data-action': 'next', disabled: !more }, 'Next'));
}

export function select(key, label, value, options) {
  return h('label', {}, h('span', {}, label),
    h('select', { 'data-filter': key, name: key }, options.map(([each, text]) => h('option', { value: each, selected: each === value }, text))));
}

export function search(key, label, value, placeholder) {
  return h('label', {}, h('span', {}, label),
    h('input', { type: 'search', 'data-filter': key, name: key, value, placeholder, maxlength: 200, spellcheck: 'false', autocomplete: 'off' }));
}

/** What is typed is the beginning of a namespace; with a slash at its end it is the whole name. */
export function namespaces(text = '') {
  return text.endsWith('/') ? text.slice(0, -1) : `${text}*`;
}

/** The order and whether it is by use, which the agents must be asked for. */
export function order(text = '') {
  const [sort, direction] = text.split(':');
  return { sort, order: direction, isByUse: /^(used|idle|throttled)/.test(sort) };
}
