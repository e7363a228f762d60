/* The totals of the cluster, above every view: what is allocated, and what is used of it.
   In: ClusterView. Out: cards. Invariant: none of them is a sum over a page. */

import { h } from './dom.js';
import { BLOCK, cores, count, isKnown, memory, percent, plural, rounded, share } from './format.js';
import { bar, blocksOf } from './parts.js';

export function totals(cluster) {
  const { nodes, gpus } = cluster;
  const usedMemory = cluster.memory_used_bytes;
  const measured = isKnown(cluster.gpus_measured) && cluster.gpus_measured < gpus ? ` (${count(cluster.gpus_measured)} of ${count(gpus)} GPUs report)` : '';
  return [
    card('Nodes', count(nodes), unavailableOf(cluster) || (nodes ? 'all available' : 'none with GPUs yet'), unavailableOf(cluster) && '#/nodes?state=problem'),
    card('GPUs', count(gpus), [`${count(cluster.free_gpus)} free`, unavailable(cluster)],
      cluster.unavailable_gpus ? '#/nodes?state=problem' : cluster.free_gpus && '#/nodes?state=free'),
    used('Cores (1/100 of a GPU’s time)', 'cores', cluster.cores_allocated, cluster.cores, part(cluster.cores_used, 100 * cluster.gpus_measured),
      `${cores(cluster.cores_allocated)} of ${cores(cluster.cores)} allocated`, `${cores(cluster.cores_used)} used${measured}`),
    used('Memory', 'memory', cluster.blocks_allocated * BLOCK, cluster.blocks * BLOCK, part(usedMemory, cluster.blocks * BLOCK),
      `${blocksOf(cluster.blocks_allocated, cluster.blocks)} allocated`, `${rounded(usedMemory, cluster.blocks * BLOCK)} used`),
    card('Pods', count(cluster.pods_bound + cluster.pods_reserved),
      `${cluster.pods_reserved ? `${count(cluster.pods_reserved)} of them Reserved, ` : ''}${count(cluster.pods_pending)} Pending`, cluster.pods_pending && '#/pending'),
  ];
}

/** What the list of nodes with unavailable GPUs shows: nodes that are unavailable, and single GPUs of others. */
function unavailableOf(cluster) {
  const parts = [[cluster.nodes_with_problem, 'node'], [cluster.unavailable_gpus - cluster.gpus_of_unavailable_nodes, 'GPU']].filter(([number]) => number > 0);
  return parts.length > 0 && `${parts.map(([number, word]) => plural(number, word)).join(', ')} unavailable`;
}

function unavailable(cluster) {
  const { unavailable_gpus: all, gpus_of_unavailable_nodes: ofNodes, nodes_with_problem: nodes } = cluster;
  if (!all) return null;
  const where = ` (${ofNodes === all ? 'all' : count(ofNodes)} on the unavailable ${nodes === 1 ? 'node' : 'nodes'})`;
  return [`, ${count(all)} unavailable`, ofNodes > 0 && h('span', { class: 'wide' }, where)];
}

function card(title, number, text, address) {
  return h('div', { class: 'card' }, h('h2', {}, title), h('p', { class: 'number' }, number),
    h('p', { class: 'small' }, address ? h('a', { href: address }, text) : text));
}

const part = (used, all) => (isKnown(used) ? share(used, all) : null);

/** `live`: percent that is used, of the GPUs that report. */
function used(title, kind, allocated, all, live, text, usedText) {
  const is = isKnown(live);
  return h('div', { class: 'card' }, h('h2', {}, title),
    h('p', { class: 'number' }, percent(share(allocated, all)), is && h('span', { class: 'beside' }, ` ${percent(live)} used`)),
    bar(kind, `${title}: ${text}${is ? `, ${usedText}` : ''}`, allocated, all, live),
    h('p', { class: 'small' }, text, is && `, ${usedText}`));
}
