/* The list of nodes, one page at a time, with their GPUs as tiles.
   In: NodesView with GPUs. Out: elements. Invariant: what is asked in detail is what is on the page: fifty nodes. */

import { h } from './dom.js';
import { BLOCK, cores, count, isKnown, percent, plural, rounded, share } from './format.js';
import { amount, bar, blocksOf, empty, gpuAddress, nodeAddress, order, pager, ranges, rowLink, search, select } from './parts.js';

export const LIMIT = 50;
const STATES = [['', 'all'], ['free', 'free'], ['problem', 'unavailable']];
const SORTS = [['', 'name'], ['idle:desc', 'most idle'], ['used:desc', 'most used'], ['used:asc', 'least used'],
  ['cores:desc', 'most cores allocated'], ['cores:asc', 'fewest cores allocated'], ['memory:desc', 'most memory allocated'], ['free:desc', 'most free GPUs']];

export async function load(api, route, signal, live) {
  const { isByUse, ...sorted } = order(route.query.sort);
  const { name, model, state } = route.query;
  const asked = { name, model, state, ...sorted, gpus: 1, live: live || isByUse ? 1 : undefined, limit: LIMIT, more: route.more };
  return api.get('view/nodes', asked, signal);
}

export function draw(found, route, cluster) {
  const models = Object.keys(cluster?.models ?? {});
  return [
    h('h1', {}, 'Nodes'),
    h('div', { class: 'filters', role: 'search' },
      search('name', 'Node', route.query.name ?? '', 'part of a name'),
      select('model', 'GPU model', route.query.model ?? '', [['', 'all'], ...models.map((each) => [each, each])]),
      select('state', 'GPUs', route.query.state ?? '', STATES),
      select('sort', 'Order', route.query.sort ?? '', SORTS)),
    legend(),
    found.items.length ? h('ul', { class: 'nodes' }, found.items.map(row)) : nothing(route, cluster?.node_label),
    pager(route, route.page, found.items.length, found.total, found.more),
  ];
}

function nothing(route, label) {
  if (['name', 'model', 'state'].some((each) => route.query[each])) return empty('No node matches the filter.');
  const labels = label && label.split(',').map((each) => (each.includes('=') ? each : `${each}=`)).join(' ');
  return h('div', { class: 'empty' },
    h('p', {}, `No node has GPUs managed by vcuda yet.${label ? ' Label a node that has a GPU, and the agent starts there:' : ''}`),
    label && h('pre', {}, `kubectl label node NODE ${labels}`),
    h('p', {}, label ? 'Its GPUs are here within a minute. If they are not, this says what is missing:' : 'This says what is missing:'),
    h('pre', {}, 'kubectl vcuda doctor'));
}

function legend() {
  return h('p', { class: 'legend', 'aria-hidden': 'true' },
    [['cores', 'cores allocated'], ['memory', 'memory allocated'], ['used', 'used'], ['unavailable', 'unavailable']].map(([kind, text]) =>
      h('span', {}, h('i', { class: `key ${kind}` }), text)));
}

function row(node) {
  const models = Object.entries(node.models).map(([model, number]) => `${count(number)} × ${model}`).join(', ');
  const label = `${amount(node)}, ${blocksOf(node.blocks_allocated, node.blocks)} allocated`;
  const busy = node.live?.utilization_percent;
  return h('li', { class: `node${node.problem ? ' bad' : ''}`, 'data-key': node.node },
    h('div', { class: 'who' },
      rowLink({ href: nodeAddress(node.node), class: 'name', title: node.node, 'aria-label': `${node.node}: ${label}` }, node.node),
      h('span', { class: 'small' }, [models || 'GPUs not known', plural(node.pods, 'pod')].join(' · ')),
      node.problem && h('span', { class: 'problem' }, `unavailable: ${node.problem}`),
      Object.entries(node.unavailable_by_reason ?? {}).map(([reason, minors]) =>
        h('span', { class: 'problem' }, `${minors.length === 1 ? 'GPU' : 'GPUs'} ${ranges(minors)} unavailable: ${reason}`)),
      !node.problem && node.live_error && h('span', { class: 'small warn' }, `use not known: ${node.live_error}`)),
    h('div', { class: 'sums' },
      sum(amount(node), isKnown(node.cores_used) && `${cores(node.cores_used)} used`), bar('cores', '', node.cores_allocated, node.cores, busy),
      sum(blocksOf(node.blocks_allocated, node.blocks), isKnown(node.live?.memory_used_bytes) && `${rounded(node.live.memory_used_bytes, node.blocks * BLOCK)} used`),
      bar('memory', '', node.blocks_allocated, node.blocks, usedMemory(node.live, node.blocks))),
    h('div', { class: 'tiles' }, node.gpus.map((gpu) => tile(node.node, gpu))));
}

const sum = (text, used) => h('span', { class: 'small sum' }, h('span', {}, text), used && h('span', {}, used));

export const usedMemory = (live, all) => (isKnown(live?.memory_used_bytes) ? share(live.memory_used_bytes, all * BLOCK) : null);

export const unavailable = (gpu) => `unavailable${gpu.reason && `: ${gpu.reason}`}`;

export function gpuLabel(gpu) {
  const use = isKnown(gpu.live?.utilization_percent) ? `, ${percent(gpu.live.utilization_percent)} busy` : '';
  const closed = gpu.available ? '' : `; ${unavailable(gpu)}`;
  return `GPU ${gpu.minor}: ${gpu.cores_allocated} of 100 cores, ${blocksOf(gpu.blocks_allocated, gpu.blocks)} allocated${use}${closed}`;
}

function tile(node, gpu) {
  const label = gpuLabel(gpu);
  const state = gpu.cores_allocated || gpu.blocks_allocated ? String(gpu.cores_allocated) : 'free';
  return h('a', { class: `gpu${gpu.available ? '' : ' unavailable'}`, href: gpuAddress(node, gpu.uuid), tabindex: -1, title: label, 'aria-label': label },
    h('span', { class: 'minor' }, String(gpu.minor), h('b', {}, gpu.available ? state : '✕')),
    bar('cores', '', gpu.cores_allocated, 100, gpu.live?.utilization_percent),
    bar('memory', '', gpu.blocks_allocated, gpu.blocks, usedMemory(gpu.live, gpu.blocks)));
}
