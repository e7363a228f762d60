/* The list of pods, and the pods that are pending, with their reasons.
   In: PodsView, ClusterView. Out: elements. Invariant: a Pending pod has its reason. */

import { h } from './dom.js';
import { age, cores, count, isKnown, lasting, plural, share, total } from './format.js';
import { CORES, MEMORY, allocatedMemory, claimNote, coresCell, empty, gpuAddress, memoryCell, namespaces, nodeAddress, order, otherLink, pager, podName, ranges, requested, search,
  select, stage, useNote } from './parts.js';

export const LIMIT = 100;
const STAGES = [['', 'all'], ['pending', 'Pending'], ['reserved', 'Reserved'], ['bound', 'Bound']];
const SORTS = [['', 'name'], ['idle:desc', 'most idle'], ['used:desc', 'most cores used'], ['used-memory:desc', 'most memory used'],
  ['throttled:desc', 'most throttled'], ['cores:desc', 'most cores'], ['memory:desc', 'most memory'], ['node', 'node'], ['age', 'oldest first'], ['age:desc', 'newest first']];

export async function load(api, route, signal, live) {
  const { isByUse, ...sorted } = order(route.query.sort);
  const { name, namespace, stage: asked } = route.query;
  const query = { namespace: namespaces(namespace), name, stage: asked, ...sorted, live: live || isByUse ? 1 : undefined, limit: LIMIT, more: route.more };
  return api.get('view/pods', query, signal);
}

export async function loadPending(api, route, signal) {
  return api.get('view/pods', { namespace: namespaces(route.query.namespace), name: route.query.name, stage: 'pending', sort: 'age', limit: LIMIT, more: route.more }, signal);
}

const filters = (route, ...more) => h('div', { class: 'filters', role: 'search' },
  search('name', 'Pod', route.query.name ?? '', 'namespace/name'),
  search('namespace', 'Namespace', route.query.namespace ?? '', 'first letters'), ...more);

export function draw(found, route, cluster) {
  return [
    h('h1', {}, 'Pods'),
    filters(route, select('stage', 'State', route.query.stage ?? '', STAGES), select('sort', 'Order', route.query.sort ?? '', SORTS)),
    found.items.length ? table(found, true) : empty(nothing(route, cluster)),
    found.items.length > 0 && useNote(),
    pager(route, route.page, found.items.length, found.total, found.more),
  ].filter(Boolean);
}

function nothing(route, cluster) {
  const asked = ['name', 'namespace', 'stage'].some((each) => route.query[each]);
  if (asked) return 'No pod matches the filter.';
  return `No pod requests a GPU now. Pods that ask for ${cluster?.resource_domain || 'tencent.com'}/vcuda-core are here from their creation to their end.`;
}

export function drawPending(found, route, cluster) {
  const reasons = Object.entries(cluster?.pending_by_reason ?? {});
  return [
    h('h1', {}, 'Pending pods'),
    filters(route),
    reasons.length > 0 && h('ul', { class: 'reasons', 'aria-label': 'Pending pods of the cluster by reason' }, reasons.map(([text, number]) => h('li', {},
      h('b', {}, count(number)), h('span', {}, text),
      h('div', { class: 'bar pending' }, h('i', { class: 'allocated', style: { width: `${share(number, cluster.pods_pending)}%` } }))))),
    found.items.length ? table(found, false) : empty('No pod is Pending.'),
    pager(route, route.page, found.items.length, found.total, found.more),
  ].filter(Boolean);
}

const PLACED = [['Pod', 'main'], ['State', ''], ['Node', ''], ['GPU', ''], [CORES, 'num'], [MEMORY, 'num'], ['Throttled', 'num'], ['Age', 'num']];
const PENDING = [['Pod', 'main'], ['Cores requested', 'num'], ['Memory requested', 'num'], ['Age', 'num']];

function table(found, isPlaced) {
  return h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('thead', {}, h('tr', {}, (isPlaced ? PLACED : PENDING).map(([name, kind]) => h('th', { scope: 'col', class: kind }, name)))),
    h('tbody', {}, found.items.map((each) => row(each, found.at, isPlaced))),
    found.items.length > 1 && h('tfoot', {}, isPlaced ? allocatedSums(found.items) : requestedSums(found.items))));
}

/** Of all containers of a pod. */
export function amounts(pod) {
  const shares = pod.containers.flatMap((each) => each.shares);
  const live = (name) => total(shares.map((each) => each.live?.[name]));
  const all = (name) => pod.containers.reduce((sum, each) => sum + each[name], 0);
  return { shares, cores: all('cores'), blocks: all('blocks'), coresUsed: live('cores_used'), memoryUsed: live('memory_used_bytes'), throttled: live('throttled_seconds') };
}

function row(pod, now, isPlaced) {
  const has = amounts(pod);
  const over = pod.containers.flatMap((each) => each.over_limit ?? []);
  return h('tr', { 'data-key': `${pod.uid} ${pod.node ?? ''}` },
    h('td', { class: 'main' }, podName(pod), pod.gang && h('span', { class: 'dim' }, ` gang ${pod.gang}`), pod.containers.map(claimNote),
      pod.reason && h('span', { class: pod.stage === 'pending' ? 'why' : 'problem' }, pod.reason), over.map((text) => h('span', { class: 'problem' }, text))),
    isPlaced && [
      h('td', { 'data-name': 'State' }, stage(pod.stage)),
      h('td', { 'data-name': 'Node', class: 'whole' }, pod.node ? otherLink(nodeAddress(pod.node), pod.node) : '–'),
      h('td', { 'data-name': 'GPU', class: 'whole' }, gpus(pod.node, has.shares)),
    ],
    amountCells(pod, has, isPlaced),
    isPlaced && h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(has.throttled) ? lasting(has.throttled) : '–'),
    h('td', { class: 'num', 'data-name': 'Age' }, age(pod.created, now)));
}

function amountCells(pod, has, isPlaced) {
  if (!isPlaced) return [coresCell(has.cores), memoryCell(has.blocks)];
  if (!pod.node) return [requested('Cores', cores(has.cores)), requested('Memory', allocatedMemory(has.blocks))];
  return [coresCell(has.cores, has.coresUsed), memoryCell(has.blocks, has.memoryUsed)];
}

/** The minors, neighbours as a range; one GPU is a link to it. */
export function gpus(node, shares) {
  const uuids = [...new Set(shares.map((each) => each.uuid))];
  const minors = [...new Set(shares.map((each) => each.minor).filter(isKnown))];
  if (!minors.length) return uuids.length ? 'gone' : '–';
  const text = ranges(minors);
  return uuids.length === 1 ? otherLink(gpuAddress(node, uuids[0]), text) : text;
}

const summed = (items) => {
  const all = items.map(amounts);
  return (name) => total(all.map((each) => each[name]));
};

/** What pods without a node request is allocated to nobody. */
function allocatedSums(items) {
  const placed = items.filter((each) => each.node);
  const pending = items.length - placed.length;
  const sum = summed(placed);
  return placed.length > 0 && h('tr', {},
    h('td', { class: 'main', colspan: 4 }, `Sum of ${plural(placed.length, 'pod')}`, pending > 0 && h('span', { class: 'small' }, ` without ${count(pending)} Pending`)),
    coresCell(sum('cores'), sum('coresUsed')), memoryCell(sum('blocks'), sum('memoryUsed')),
    h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(sum('throttled')) ? lasting(sum('throttled')) : '–'), h('td', {}));
}

function requestedSums(items) {
  const sum = summed(items);
  return h('tr', {}, h('td', { class: 'main' }, `Sum of these ${count(items.length)}`), coresCell(sum('cores')), memoryCell(sum('blocks')), h('td', {}));
}
