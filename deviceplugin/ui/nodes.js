/* The list of nodes, one page at a time, with their GPUs as tiles.
   In: NodesView with GPUs. Out: elements. Invariant: what is asked in detail is what is on the page: fifty nodes. */

import { h } from './dom.js';
import { BLOCK, count, percent, plural, share } from './format.js';
import { amount, bar, blocks, empty, nodeAddress, pager, search, select } from './parts.js';

export const LIMIT = 50;
const STATES = [['', 'all'], ['free', 'with a free GPU'], ['problem', 'with a problem']];
const SORTS = [['', 'name'], ['cores:desc', 'most cores allocated'], ['cores:asc', 'fewest cores allocated'],
  ['memory:desc', 'most memory allocated'], ['free:desc', 'most free GPUs']];

export async function load(api, route, signal, live) {
  const [sort, order] = (route.query.sort ?? '').split(':');
  const { name, model, state } = route.query;
  const asked = { name, model, state, sort, order, gpus: 1, live: live ? 1 : undefined, limit: LIMIT, more: route.more };
  return api.get('view/nodes', asked, signal);
}

export function draw(found, route, cluster) {
  const models = Object.keys(cluster?.models ?? {});
  return [
    h('h1', {}, 'Nodes'),
    h('div', { class: 'filters', role: 'search' },
      search('name', 'Name', route.query.name ?? ''),
      select('model', 'GPU model', route.query.model ?? '', [['', 'all'], ...models.map((each) => [each, each])]),
      select('state', 'State', route.query.state ?? '', STATES),
      select('sort', 'Order', route.query.sort ?? '', SORTS)),
    legend(),
    found.items.length ? h('ul', { class: 'nodes' }, found.items.map(row)) : empty(nothing(route)),
    pager(route, route.page, found.items.length, found.total, found.more),
  ];
}

function nothing(route) {
  const asked = ['name', 'model', 'state'].some((each) => route.query[each]);
  return asked ? 'No node matches the filter.' : 'No node has GPUs of vcuda yet: label a node, and its agent reports them.';
}

function legend() {
  return h('p', { class: 'legend', 'aria-hidden': 'true' },
    h('span', { class: 'key cores' }), 'cores', h('span', { class: 'key memory' }), 'memory allocated',
    h('span', { class: 'key used' }), 'used', h('span', { class: 'key unavailable' }), 'unavailable');
}

function row(node) {
  const models = Object.entries(node.models).map(([model, number]) => `${count(number)} × ${model}`).join(', ');
  const label = `${amount(node)}, ${blocks(node.blocks_allocated)} of ${blocks(node.blocks)} allocated`;
  return h('li', { class: `node${node.problem ? ' bad' : ''}`, 'data-key': node.node },
    h('div', { class: 'who' },
      h('a', { href: nodeAddress(node.node), class: 'name', 'aria-label': `${node.node}: ${label}` }, node.node),
      h('span', { class: 'small' }, [models || 'GPUs not known', plural(node.pods, 'pod')].join(' · ')),
      node.problem && h('span', { class: 'problem' }, node.problem),
      !node.problem && node.live_error && h('span', { class: 'small warn' }, `no live use: ${node.live_error}`)),
    h('div', { class: 'sums' },
      h('span', { class: 'small' }, amount(node)), bar('cores', amount(node), node.cores_allocated, node.cores, node.live?.utilization_percent),
      h('span', { class: 'small' }, `${blocks(node.blocks_allocated, false)} of ${blocks(node.blocks)}`),
      bar('memory', `${blocks(node.blocks_allocated)} of ${blocks(node.blocks)}`, node.blocks_allocated, node.blocks, usedMemory(node.live, node.blocks))),
    h('div', { class: 'tiles' }, node.gpus.map((gpu) => tile(node.node, gpu))));
}

export const usedMemory = (live, all) => (live?.memory_used_bytes == null ? null : share(live.memory_used_bytes, all * BLOCK));

export function gpuLabel(gpu) {
  const use = gpu.live?.utilization_percent == null ? '' : `, ${percent(gpu.live.utilization_percent)} busy`;
  const closed = gpu.available ? '' : `; unavailable${gpu.reason && `: ${gpu.reason}`}`;
  return `GPU ${gpu.minor}: ${gpu.cores_allocated} of 100 cores, ${blocks(gpu.blocks_allocated)} of ${blocks(gpu.blocks)} allocated${use}${closed}`;
}

function tile(node, gpu) {
  const label = gpuLabel(gpu);
  const state = gpu.cores_allocated || gpu.blocks_allocated ? String(gpu.cores_allocated) : 'free';
  return h('a', { class: `gpu${gpu.available ? '' : ' unavailable'}`, href: `${nodeAddress(node)}?gpu=${encodeURIComponent(gpu.uuid)}`, title: label, 'aria-label': label },
    h('span', { class: 'minor' }, String(gpu.minor), h('b', {}, gpu.available ? state : '✕')),
    bar('cores', '', gpu.cores_allocated, 100, gpu.live?.utilization_percent),
    bar('memory', '', gpu.blocks_allocated, gpu.blocks, usedMemory(gpu.live, gpu.blocks)));
}
