/* The totals of the cluster, above every view.
   In: ClusterView. Out: cards. Invariant: none of them is a sum over a page. */

import { h } from './dom.js';
import { cores, count, percent, plural, share } from './format.js';
import { bar, blocks } from './parts.js';

export function totals(cluster) {
  const { nodes, gpus } = cluster;
  return [
    card('Nodes', count(nodes), cluster.nodes_with_problem ? plural(cluster.nodes_with_problem, 'problem') : 'all take pods',
      cluster.nodes_with_problem && '#/nodes?state=problem'),
    card('GPUs', count(gpus), `${count(cluster.free_gpus)} free${cluster.unavailable_gpus ? `, ${count(cluster.unavailable_gpus)} unavailable` : ''}`,
      cluster.free_gpus && '#/nodes?state=free'),
    measured('Cores', 'cores', cluster.cores_allocated, cluster.cores, `${cores(cluster.cores_allocated)} of ${cores(cluster.cores)}`),
    measured('Memory', 'memory', cluster.blocks_allocated, cluster.blocks, `${blocks(cluster.blocks_allocated)} of ${blocks(cluster.blocks)}`),
    card('Pods', count(cluster.pods_bound), `${count(cluster.pods_pending)} pending${cluster.pods_reserved ? `, ${count(cluster.pods_reserved)} reserved` : ''}`,
      cluster.pods_pending && '#/pending'),
  ];
}

function card(title, number, text, address) {
  return h('div', { class: 'card' }, h('h2', {}, title), h('p', { class: 'number' }, number),
    h('p', { class: 'small' }, address ? h('a', { href: address }, text) : text));
}

function measured(title, kind, part, all, text) {
  return h('div', { class: 'card' }, h('h2', {}, title), h('p', { class: 'number' }, percent(share(part, all))),
    bar(kind, `${title}: ${text} allocated`, part, all), h('p', { class: 'small' }, `${text} allocated`));
}
