/* What is allocated to the pods of each namespace, and what they use of it.
   In: NamespacesView. Out: elements. Invariant: what may not be named is in the sums. */

import { h } from './dom.js';
import { cores, count, isKnown, lasting, percent, share, total } from './format.js';
import { CORES, MEMORY, coresCell, empty, memoryCell, namespaces, order, pager, rowLink, search, select, useNote } from './parts.js';

export const LIMIT = 100;
const SORTS = [['', 'name'], ['idle:desc', 'most idle'], ['used:desc', 'most cores used'], ['cores:desc', 'most cores allocated'],
  ['memory:desc', 'most memory allocated'], ['used-memory:desc', 'most memory used']];

export async function load(api, route, signal, live) {
  const { isByUse, ...sorted } = order(route.query.sort);
  const asked = { namespace: namespaces(route.query.namespace), ...sorted, live: live || isByUse ? 1 : undefined, limit: LIMIT, more: route.more };
  return api.get('view/namespaces', asked, signal);
}

export function draw(found, route) {
  return [
    h('h1', {}, 'Namespaces'),
    h('div', { class: 'filters', role: 'search' },
      search('namespace', 'Namespace', route.query.namespace ?? '', 'first letters'),
      select('sort', 'Order', route.query.sort ?? '', SORTS)),
    found.items.length || found.others ? table(found) : empty('No namespace with GPU pods matches.'),
    found.items.length > 0 && useNote(),
    pager(route, route.page, found.items.length, found.total, found.more),
  ].filter(Boolean);
}

function table(found) {
  const every = [...found.items, ...(found.others ? [found.others] : [])];
  const sum = (name) => total(every.map((each) => each[name]));
  const sums = Object.fromEntries(['pods', 'cores', 'blocks', 'cores_used', 'cores_idle', 'memory_used_bytes', 'throttled_seconds', 'cores_measured'].map((name) => [name, sum(name)]));
  return h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Namespace'), ['Pods', CORES, 'Idle cores', MEMORY, 'Throttled'].map((text) => h('th', { scope: 'col', class: 'num' }, text)))),
    h('tbody', {}, found.items.map((each) => row(each, name(each))), found.others && row(found.others, 'other namespaces')),
    every.length > 1 && h('tfoot', {}, row(sums, `Sum of ${count(every.length)}`))));
}

const name = (each) => rowLink({ href: `#/pods?namespace=${encodeURIComponent(`${each.namespace}/`)}` }, each.namespace);

function row(each, first) {
  return h('tr', { 'data-key': each.namespace ?? '' }, h('td', { class: 'main' }, first),
    h('td', { class: 'num', 'data-name': 'Pods' }, count(each.pods)),
    coresCell(each.cores, each.cores_used),
    h('td', { class: 'num', 'data-name': 'Idle cores' }, idle(each)),
    memoryCell(each.blocks, each.memory_used_bytes),
    h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(each.throttled_seconds) ? lasting(each.throttled_seconds) : '–'));
}

/** Of the shares whose use is known: an agent may not answer, or not have measured yet. */
function idle(each) {
  if (!isKnown(each.cores_idle)) return '–';
  const measured = each.cores_measured;
  return [`${cores(each.cores_idle)} (${percent(share(each.cores_idle, measured))})`,
    measured < each.cores && h('span', { class: 'small' }, `of ${cores(measured)} measured`)];
}
