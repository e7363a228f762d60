/* The list of pods, the pods that wait with their reasons, and why one pod is where it is.
   In: PodsView, ClusterView, an explanation. Out: elements. Invariant: a pod that waits has its reason. */

import { h } from './dom.js';
import { BLOCK, age, cores, count, memory, share } from './format.js';
import { pair } from './node.js';
import { claimNote, empty, nodeAddress, pager, podName, search, select, stage } from './parts.js';

export const LIMIT = 100;
const STAGES = [['', 'all'], ['pending', 'pending'], ['reserved', 'reserved'], ['bound', 'bound']];
const SORTS = [['', 'name'], ['node', 'node'], ['cores:desc', 'most cores'], ['memory:desc', 'most memory'], ['age', 'oldest first'], ['age:desc', 'newest first']];

export async function load(api, route, signal, live) {
  const [sort, order] = (route.query.sort ?? '').split(':');
  const { namespace, stage: asked } = route.query;
  return api.get('view/pods', { namespace, stage: asked, sort, order, live: live ? 1 : undefined, limit: LIMIT, more: route.more }, signal);
}

export async function loadPending(api, route, signal) {
  return api.get('view/pods', { stage: 'pending', sort: 'age', limit: LIMIT, more: route.more }, signal);
}

export async function loadWhy(api, route, signal) {
  return api.get('explain', { pod: route.names.slice(0, 2).join('/') }, signal);
}

export function draw(found, route) {
  return [
    h('h1', {}, 'Pods'),
    h('div', { class: 'filters', role: 'search' },
      search('namespace', 'Namespace', route.query.namespace ?? ''),
      select('stage', 'State', route.query.stage ?? '', STAGES),
      select('sort', 'Order', route.query.sort ?? '', SORTS)),
    found.items.length ? table(found, true) : empty('No pod matches: pods that request GPUs and have not ended stand here.'),
    pager(route, route.page, found.items.length, found.total, found.more),
  ];
}

export function drawPending(found, route, cluster) {
  const reasons = Object.entries(cluster?.pending_by_reason ?? {});
  return [
    h('h1', {}, 'Pending pods'),
    reasons.length > 0 && h('ul', { class: 'reasons', 'aria-label': 'Pending pods by reason' }, reasons.map(([text, number]) => h('li', {},
      h('b', {}, count(number)), h('span', {}, text),
      h('div', { class: 'bar pending' }, h('i', { class: 'allocated', style: { width: `${share(number, cluster.pods_pending)}%` } }))))),
    found.items.length ? table(found, false) : empty('No pod waits.'),
    pager(route, route.page, found.items.length, found.total, found.more),
  ].filter(Boolean);
}

function table(found, withNode) {
  const names = ['Pod', withNode && 'State', withNode && 'Node', 'Cores', 'Memory', 'Age'].filter(Boolean);
  return h('div', { class: 'scroll' }, h('table', { class: 'pods' },
    h('thead', {}, h('tr', {}, names.map((text) => h('th', { scope: 'col' }, text)))),
    h('tbody', {}, found.items.map((each) => row(each, found.at, withNode)))));
}

function row(pod, now, withNode) {
  const shares = pod.containers.flatMap((each) => each.shares);
  const used = (name) => (shares.some((each) => each.live?.[name] != null) ? shares.reduce((sum, each) => sum + (each.live?.[name] ?? 0), 0) : null);
  const sum = (name) => pod.containers.reduce((total, each) => total + each[name], 0);
  const usedCores = used('cores_used');
  const usedMemory = used('memory_used_bytes');
  const over = pod.containers.flatMap((each) => each.over_limit ?? []);
  return h('tr', { 'data-key': `${pod.uid} ${pod.node ?? ''}` },
    h('td', {}, podName(pod), pod.gang && h('span', { class: 'dim' }, ` gang ${pod.gang}`), pod.containers.map(claimNote),
      pod.reason && h('span', { class: pod.stage === 'pending' ? 'why' : 'problem' }, pod.reason), over.map((text) => h('span', { class: 'problem' }, text))),
    withNode && h('td', { 'data-name': 'State' }, stage(pod.stage)),
    withNode && h('td', { 'data-name': 'Node' }, pod.node ? h('a', { href: nodeAddress(pod.node) }, pod.node) : '–'),
    h('td', { class: 'num', 'data-name': 'Cores' }, pair(cores(sum('cores')), usedCores === null ? null : cores(usedCores))),
    h('td', { class: 'num', 'data-name': 'Memory' }, pair(sum('blocks') ? memory(sum('blocks') * BLOCK) : 'whole', usedMemory === null ? null : memory(usedMemory))),
    h('td', { class: 'num', 'data-name': 'Age' }, age(pod.created, now)));
}

export function drawWhy(found, route) {
  const reasons = Object.entries(found.reasons ?? {});
  return [
    h('p', { class: 'path' }, h('a', { href: '#/pods' }, 'Pods'), ' / '),
    h('h1', {}, found.pod),
    h('p', { class: 'sentence' }, found.sentence),
    found.node && h('p', {}, 'On node ', h('a', { href: nodeAddress(found.node) }, found.node), '.'),
    found.asked?.length > 0 && h('p', { class: 'small' }, `Asked for: ${found.asked.join('; ')}`),
    found.condition && h('p', { class: 'small' }, `kube-scheduler says: ${found.condition}`),
    found.why?.length > 0 && h('ul', { class: 'plain' }, found.why.map((text) => h('li', {}, text))),
    reasons.length > 0 && [h('h2', {}, 'Nodes by reason'), h('ul', { class: 'reasons' }, reasons.map(([text, number]) => h('li', {}, h('b', {}, count(number)), h('span', {}, text))))],
    found.nodes?.length > 0 && [h('h2', {}, 'Nodes'), h('ul', { class: 'verdicts' }, found.nodes.map((each) => h('li', {},
      h('a', { href: nodeAddress(each.node) }, each.node), h('span', {}, each.reason), each.change && h('span', { class: 'small' }, each.change))))],
    found.left_out > 0 && h('p', { class: 'small' }, `${count(found.left_out)} more nodes are not listed.`),
  ].flat().filter(Boolean);
}
