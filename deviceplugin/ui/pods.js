/* The list of pods, and the pods that are pending, with their reasons.
   In: PodsView, ClusterView. Out: elements. Invariant: a pending pod has its reason. */

import { h } from './dom.js';
import { age, count, isKnown, lasting, share, total } from './format.js';
import { CORES, MEMORY, claimNote, coresCell, empty, gpuAddress, memoryCell, namespaces, nodeAddress, order, otherLink, pager, podName, search, select, stage } from './parts.js';

export const LIMIT = 100;
const STAGES = [['', 'all'], ['pending', 'pending'], ['reserved', 'reserved'], ['bound', 'bound']];
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
  search('name', 'Pod', route.query.name ?? '', 'part of a name'),
  search('namespace', 'Namespace', route.query.namespace ?? '', 'first letters'), ...more);

export function draw(found, route) {
  return [
    h('h1', {}, 'Pods'),
    filters(route, select('stage', 'State', route.query.stage ?? '', STAGES), select('sort', 'Order', route.query.sort ?? '', SORTS)),
    found.items.length ? table(found, true) : empty(nothing(route)),
    pager(route, route.page, found.items.length, found.total, found.more),
  ];
}

function nothing(route) {
  const asked = ['name', 'namespace', 'stage'].some((each) => route.query[each]);
  return asked ? 'No pod matches the filter.' : 'No pod requests a GPU now. Pods that ask for tencent.com/vcuda-core are here from their creation to their end.';
}

export function drawPending(found, route, cluster) {
  const reasons = Object.entries(cluster?.pending_by_reason ?? {});
  return [
    h('h1', {}, 'Pending pods'),
    filters(route),
    reasons.length > 0 && h('ul', { class: 'reasons', 'aria-label': 'Pending pods of the cluster by reason' }, reasons.map(([text, number]) => h('li', {},
      h('b', {}, count(number)), h('span', {}, text),
      h('div', { class: 'bar pending' }, h('i', { class: 'allocated', style: { width: `${share(number, cluster.pods_pending)}%` } }))))),
    found.items.length ? table(found, false) : empty('No pod is pending.'),
    pager(route, route.page, found.items.length, found.total, found.more),
  ].filter(Boolean);
}

const PLACED = [['Pod', 'main'], ['State', ''], ['Node', ''], ['GPU', ''], [CORES, 'num'], [MEMORY, 'num'], ['Throttled', 'num'], ['Age', 'num']];
const PENDING = [['Pod', 'main'], ['Cores', 'num'], ['Memory', 'num'], ['Age', 'num']];

function table(found, isPlaced) {
  return h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('thead', {}, h('tr', {}, (isPlaced ? PLACED : PENDING).map(([name, kind]) => h('th', { scope: 'col', class: kind }, name)))),
    h('tbody', {}, found.items.map((each) => row(each, found.at, isPlaced))),
    found.items.length > 1 && h('tfoot', {}, sums(found.items, isPlaced))));
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
    coresCell(has.cores, isPlaced ? has.coresUsed : undefined), memoryCell(has.blocks, isPlaced ? has.memoryUsed : undefined),
    isPlaced && h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(has.throttled) ? lasting(has.throttled) : '–'),
    h('td', { class: 'num', 'data-name': 'Age' }, age(pod.created, now)));
}

/** The minors, neighbours as a range; one GPU is a link to it. */
export function gpus(node, shares) {
  const uuids = [...new Set(shares.map((each) => each.uuid))];
  const minors = [...new Set(shares.map((each) => each.minor).filter(isKnown))];
  if (!minors.length) return uuids.length ? 'gone' : '–';
  const text = ranges(minors);
  return uuids.length === 1 ? otherLink(gpuAddress(node, uuids[0]), text) : text;
}

export function ranges(minors) {
  const runs = [...minors].sort((a, b) => a - b).reduce((found, each) => {
    const last = found.at(-1);
    if (last && each === last[1] + 1) last[1] = each;
    else found.push([each, each]);
    return found;
  }, []);
  return runs.map(([first, last]) => (first === last ? first : `${first}–${last}`)).join(', ');
}

function sums(items, isPlaced) {
  const all = items.map(amounts);
  const sum = (name) => total(all.map((each) => each[name]));
  const throttled = sum('throttled');
  return h('tr', {}, h('td', { class: 'main', colspan: isPlaced ? 4 : 1 }, `Sum of these ${count(items.length)}`),
    coresCell(sum('cores'), isPlaced ? sum('coresUsed') : undefined), memoryCell(sum('blocks'), isPlaced ? sum('memoryUsed') : undefined),
    isPlaced && h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(throttled) ? lasting(throttled) : '–'), h('td', {}));
}
