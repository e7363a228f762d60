/* One node: its GPUs, and the containers on each.
   In: OneNodeView. Out: elements. Invariant: allocated and used stand beside each other, in the same unit. */

import { h } from './dom.js';
import { count, cores, isKnown, lasting, memory, percent, plural } from './format.js';
import { bar, blocks, blocksOf, claimNote, empty, grafana, pair, podName, stage } from './parts.js';
import { gpuLabel, unavailable, usedMemory } from './nodes.js';

export async function load(api, route, signal, live) {
  return api.get(`view/nodes/${encodeURIComponent(route.names[0])}`, { live: live ? 1 : undefined }, signal);
}

export function draw(found, route, cluster) {
  const node = found.item;
  return [
    h('p', { class: 'path' }, h('a', { href: '#/nodes', 'data-action': 'up' }, 'Nodes'), ' / '),
    h('h1', {}, node.node),
    node.problem && h('p', { class: 'problem' }, `unavailable: ${node.problem}`),
    node.live_error && h('p', { class: 'small warn' }, `Use is not known: ${node.live_error}`),
    facts(node),
    grafana(cluster, 'vcuda-node', { node: node.node }),
    node.gpus.length ? h('div', { class: 'cards' }, node.gpus.map((gpu) => card(gpu, route.query.gpu === gpu.uuid))) : empty('Its GPUs are not known: the agent has not reported them.'),
  ].filter(Boolean);
}

function facts(node) {
  const models = Object.entries(node.models).map(([model, number]) => `${count(number)} × ${model}`).join(', ');
  const pairs = [['GPUs', models || '–'], ['Free', `${count(node.free_gpus)} of ${count(node.gpu_count)}`],
    ['Cores', `${cores(node.cores_allocated)} of ${cores(node.cores)} allocated`],
    ['Memory', `${blocksOf(node.blocks_allocated, node.blocks)} allocated`],
    ['Used', used(node)], ['Driver', node.driver || '–'], ['CUDA', node.cuda || '–'], ['Pods', count(node.pods)]];
  return h('dl', { class: 'facts' }, pairs.map(([name, text]) => h('div', {}, h('dt', {}, name), h('dd', {}, text))));
}

function used({ live, cores_used: used, gpus_measured: measured, gpu_count: gpus }) {
  if (!isKnown(used)) return '–';
  return `${cores(used)} cores, ${memory(live.memory_used_bytes)}${measured < gpus ? ` (${count(measured)} of ${plural(gpus, 'GPU')} report)` : ''}`;
}

function card(gpu, chosen) {
  const live = gpu.live;
  const memoryUsed = usedMemory(live, gpu.blocks);
  return h('section', { class: `gpu-card${gpu.available ? '' : ' unavailable'}${chosen ? ' chosen' : ''}`, 'data-key': gpu.uuid, 'aria-label': gpuLabel(gpu) },
    h('h2', {}, `GPU ${gpu.minor}`, h('span', { class: 'small' }, gpu.model, gpu.numa === null ? '' : ` · NUMA ${gpu.numa}`, gpu.source === 'claim' && ' · for claims', isFree(gpu) && ' · free')),
    !gpu.available && h('p', { class: 'problem' }, unavailable(gpu)),
    line('Cores', `${cores(gpu.cores_allocated)} of 100`, live?.utilization_percent == null ? '' : `${percent(live.utilization_percent)} busy`,
      bar('cores', gpuLabel(gpu), gpu.cores_allocated, 100, live?.utilization_percent)),
    line('Memory', blocksOf(gpu.blocks_allocated, gpu.blocks), live?.memory_used_bytes == null ? '' : `${memory(live.memory_used_bytes)} used`,
      bar('memory', gpuLabel(gpu), gpu.blocks_allocated, gpu.blocks, memoryUsed)),
    gpu.holders.length > 0 && holders(gpu),
    h('p', { class: 'small' }, others(gpu)),
    h('p', { class: 'small uuid' }, gpu.uuid));
}

/** What the table does not name: the caller may not read about every pod. */
function others(gpu) {
  const hidden = gpu.pods - new Set(gpu.holders.map((each) => each.uid)).size;
  return hidden > 0 && `${plural(hidden, 'pod')} of namespaces that you may not read.`;
}

const isFree = (gpu) => gpu.available && !gpu.cores_allocated && !gpu.blocks_allocated;

function line(name, allocated, used, drawn) {
  return h('div', { class: 'line' }, h('span', {}, name), h('span', { class: 'small' }, allocated), h('span', { class: 'small right' }, used), drawn);
}

function holders(gpu) {
  return h('table', { class: 'holders' },
    h('caption', { class: 'hidden' }, `Containers on GPU ${gpu.minor}`),
    h('thead', {}, h('tr', {}, ['Container', 'Cores', 'Memory'].map((text) => h('th', { scope: 'col' }, text)))),
    h('tbody', {}, gpu.holders.map(holder)));
}

function holder(row) {
  const used = row.live;
  return h('tr', { 'data-key': `${row.uid} ${row.container}` },
    h('td', {}, (row.users ?? 1) === 1 ? podName(row) : `${row.namespace}/${row.pod}`,
      h('span', { class: 'dim' }, ` ${row.container}`), row.stage !== 'bound' && [' ', stage(row.stage)], claimNote(row),
      (row.over_limit ?? []).map((text) => h('span', { class: 'problem' }, text)),
      used?.throttled_seconds > 0 && h('span', { class: 'small' }, `throttled for ${lasting(used.throttled_seconds)}`)),
    h('td', { class: 'num' }, pair(cores(row.cores), used?.cores_used == null ? null : cores(used.cores_used))),
    h('td', { class: 'num' }, pair(blocks(row.blocks), used?.memory_used_bytes == null ? null : memory(used.memory_used_bytes))));
}
