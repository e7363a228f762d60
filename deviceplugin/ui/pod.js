/* One pod: its containers with their GPUs, limits and use, the last quarter of an hour, and why it is there or pending.
   In: OnePodView, or none for a pod that has ended; an explanation, or none. Out: elements. Invariant: what it asked for and what is
   allocated to it are two things; what this replica has not seen it says. */

import { Refusal } from './api.js';
import { h } from './dom.js';
import { BLOCK, age, capital, cores, count, isKnown, lasting, memory, minute, plural, total } from './format.js';
import { CORES, MEMORY, allocatedMemory, claimNote, coresCell, gpuAddress, grafana, memoryCell, nodeAddress, ranges, stage } from './parts.js';
import { amounts } from './pods.js';

/** As `kubectl vcuda explain` has it. */
const [NEAREST, MOST_GPUS, MOST_OTHERS, MOST_HOLDERS] = [3, 3, 2, 3];

export async function load(api, route, signal, live) {
  const [namespace, name] = route.names;
  const path = `view/pods/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
  const [pod, why] = await Promise.all([
    perhaps(api.get(path, { live: live ? 1 : undefined }, signal)),
    perhaps(api.get('explain', { pod: `${namespace}/${name}` }, signal)),
  ]);
  if (pod instanceof Refusal && why instanceof Refusal) throw pod;
  return { pod: pod instanceof Refusal ? null : pod, why: why instanceof Refusal ? null : why };
}

/** Not found is an answer. */
async function perhaps(asked) {
  try {
    return await asked;
  } catch (error) {
    if (error instanceof Refusal && (error.status === 404 || error.status === 421)) return error;
    throw error;
  }
}

export function draw(found, route, cluster) {
  const row = found.pod?.item;
  const [namespace, name] = route.names;
  return [
    h('p', { class: 'path' }, h('a', { href: '#/pods', 'data-action': 'up' }, 'Pods'), ' / '),
    h('h1', {}, `${namespace}/${name} `, row && stage(row.stage)),
    found.why && !found.why.node && reason(found.why),
    row?.reason && row.stage !== 'pending' && h('p', { class: 'problem' }, row.reason),
    row && facts(row, found.pod.at),
    row?.node && containers(row),
    row?.node && history(found.pod, row),
    row?.node && grafana(cluster, 'vcuda-namespace', { namespace, pod: name }),
    found.why && explanation(found.why),
    row && !row.node && row.containers.length > 1 && requests(row),
  ].flat(2).filter(Boolean);
}

/** The main one first: it is what people look for. */
function reason(why) {
  if (!why.main_reason) return h('p', { class: 'sentence' }, why.sentence);
  return [h('p', { class: 'sentence' }, h('b', {}, why.main_reason)), h('p', { class: 'small' }, capital(why.sentence))];
}

function facts(row, now) {
  const has = amounts(row);
  const text = (amount) => `${cores(amount.cores)} cores, ${allocatedMemory(amount.blocks)}`;
  const pairs = [['Requested', text(has)], has.shares.length > 0 && ['Allocated', text(allocated(has.shares))], ['Node', row.node ? h('a', { href: nodeAddress(row.node) }, row.node) : 'none yet'],
    ['Age', age(row.created, now)], ['Priority', count(row.priority)], ['Scheduler', row.scheduler || '–'], row.gang && ['Gang', row.gang]];
  return h('dl', { class: 'facts' }, pairs.filter(Boolean).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
}

const allocated = (shares) => ({ cores: total(shares.map((each) => each.cores)), blocks: total(shares.map((each) => each.blocks)) });

function containers(row) {
  const parts = row.containers.flatMap((each) => (each.shares.length ? each.shares.map((share) => [each, share]) : [[each, null]]));
  return table('Containers, their GPUs, limits and use', [['Container', 'main'], ['GPU', ''], [CORES, 'num'], ['Limit now', 'num'],
    [MEMORY, 'num'], ['Most memory', 'num'], ['Refused', 'num'], ['Throttled', 'num']], parts.map(([container, share]) => part(row.node, container, share)));
}

/** Of a pod without a node: nothing is measured. */
function requests(row) {
  return [h('h2', {}, 'Containers'), table('Containers and what they request', [['Container', 'main'], ['Cores requested', 'num'], ['Memory requested', 'num']],
    row.containers.map((each) => h('tr', { 'data-key': each.name }, h('td', { class: 'main' }, each.name, ' ', claimNote(each)), coresCell(each.cores), memoryCell(each.blocks))))];
}

function table(caption, columns, rows) {
  return h('div', { class: 'scroll' }, h('table', { class: 'list' },
    h('caption', { class: 'hidden' }, caption),
    h('thead', {}, h('tr', {}, columns.map(([name, kind]) => h('th', { scope: 'col', class: kind }, name)))),
    h('tbody', {}, rows)));
}

function part(node, container, share) {
  const live = share?.live;
  return h('tr', { 'data-key': `${container.name} ${share?.uuid ?? ''}` },
    h('td', { class: 'main' }, container.name, ' ', claimNote(container), (container.over_limit ?? []).map((text) => h('span', { class: 'problem' }, text))),
    h('td', { 'data-name': 'GPU', class: 'whole span' }, share ? gpu(node, share) : 'not chosen yet'),
    coresCell((share ?? container).cores, live?.cores_used ?? null),
    h('td', { class: 'num', 'data-name': 'Limit now' }, cores(live?.cores_in_force)),
    memoryCell((share ?? container).blocks, live?.memory_used_bytes ?? null),
    h('td', { class: 'num', 'data-name': 'Most memory' }, memory(live?.memory_peak_bytes)),
    h('td', { class: 'num', 'data-name': 'Refused' }, isKnown(live?.memory_refusals) ? count(live.memory_refusals) : '–'),
    h('td', { class: 'num', 'data-name': 'Throttled' }, isKnown(live?.throttled_seconds) ? lasting(live.throttled_seconds) : '–'));
}

const gpu = (node, share) => [h('a', { href: gpuAddress(node, share.uuid) }, `GPU ${share.minor ?? 'gone'}`), h('span', { class: 'small uuid' }, share.uuid)];

function history(found, row) {
  const samples = found.history;
  if (!samples.length) {
    const sentence = `No samples yet: ${found.replica} keeps one a minute from when it started or this page was first open.`;
    return [h('h2', {}, 'The last quarter of an hour'), h('p', { class: 'small' }, sentence)];
  }
  const has = amounts(row);
  return [
    h('h2', {}, `Use from ${minute(samples[0].at)} to ${minute(samples.at(-1).at)}`),
    h('div', { class: 'courses' },
      course('Cores', 'cores', samples, (each) => each.cores_used, has.cores, cores),
      course('Memory', 'memory', samples, (each) => each.memory_used_bytes, has.blocks * BLOCK, memory)),
    throttling(samples),
    samples.length < 15 && h('p', { class: 'small' }, `${found.replica} has no older samples.`),
  ];
}

/** A column for each sample, as high as its part of what is allocated, or of the most where that is more. */
function course(title, kind, samples, of, allocated, text) {
  const known = samples.map(of).filter(isKnown);
  const top = Math.max(allocated, ...known, 1e-9);
  const mean = known.reduce((sum, each) => sum + each, 0) / Math.max(1, known.length);
  const words = known.length ? `${text(mean)} used on average, at most ${text(Math.max(...known))}` : 'not measured';
  return h('figure', { class: `course ${kind}` },
    h('figcaption', {}, h('b', {}, title), ` ${words}; ${text(allocated)} allocated`),
    h('div', { class: 'columns', 'aria-hidden': 'true', style: { '--allocated': `${(100 * allocated) / top}%` } },
      samples.map((each) => h('span', { title: `${minute(each.at)}: ${text(of(each))}` }, h('i', { style: { height: `${(100 * (of(each) ?? 0)) / top}%` } })))));
}

function throttling(samples) {
  const known = samples.filter((each) => isKnown(each.throttled_seconds));
  if (known.length < 2) return null;
  const time = known.at(-1).throttled_seconds - known[0].throttled_seconds;
  const sentence = `Throttled for ${lasting(time)} in this time, summed over its threads: it would be faster with more cores.`;
  return h('p', { class: 'small' }, time > 0 ? sentence : 'Not throttled in this time.');
}

function explanation(why) {
  const reasons = Object.entries(why.reasons ?? {});
  if (why.node && !why.why?.length) return null;
  return [
    h('h2', {}, why.node ? 'Why here' : 'Why Pending'),
    !why.node && why.asked?.length > 0 && h('p', { class: 'small' }, `Requested: ${why.asked.join('; ')}`),
    why.condition && h('p', { class: 'small' }, `kube-scheduler says: ${why.condition}`),
    why.why?.length > 0 && h('ul', { class: 'plain' }, why.why.map((text) => h('li', {}, text))),
    reasons.length > 0 && [h('h2', {}, 'Nodes by reason'), h('ul', { class: 'reasons' }, reasons.map(([text, number]) => h('li', {}, h('b', {}, count(number)), h('span', {}, text))))],
    why.nodes?.length > 0 && nearest(why),
  ];
}

function nearest(why) {
  const [first, others] = [why.nodes.slice(0, NEAREST), why.nodes.slice(NEAREST)];
  return [
    h('h2', {}, first.length === 1 ? 'The node' : 'Nodes nearest to fitting'),
    h('ul', { class: 'verdicts' }, first.map((each) => verdict(each, gpuLines(each)))),
    others.length > 0 && h('details', { 'data-key': 'others' }, h('summary', {}, `${plural(others.length, 'more node')}`),
      h('ul', { class: 'verdicts' }, others.map((each) => verdict(each)))),
    why.left_out > 0 && h('p', { class: 'small' }, `${plural(why.left_out, 'node')} farther from fitting not shown.`),
  ];
}

function verdict(each, lines = []) {
  return h('li', { 'data-key': each.node }, h('a', { href: nodeAddress(each.node) }, each.node), h('span', {}, each.reason),
    each.fix && h('span', {}, h('b', {}, 'Fix: '), each.fix),
    lines.length > 0 && h('ul', { class: 'lines small' }, lines.map((text) => h('li', {}, text))));
}

/** The GPUs on which least must become free, with their pods; the others by what speaks against them. */
function gpuLines(node) {
  const near = node.gpus.filter((each) => each.nearest);
  const alike = new Map();
  for (const each of node.gpus.filter((one) => !one.nearest)) alike.set(each.against, [...(alike.get(each.against) ?? []), each.minor]);
  const others = [...alike].map(([against, minors]) => (minors.length === 1 ? `GPU ${minors[0]}: ${against || 'fits'}` : `GPUs ${ranges(minors)}: ${against || 'fit'}`));
  return [...near.slice(0, MOST_GPUS).map((each) => `GPU ${each.minor}: ${[each.against || 'fits', ...holders(each)].join('; ')}`),
    near.length > MOST_GPUS && plural(near.length - MOST_GPUS, 'more GPU'),
    ...(others.length > MOST_OTHERS ? [plural(node.gpus.length - near.length, 'further GPU')] : others)].filter(Boolean);
}

const holders = ({ holders: all }) => [...all.slice(0, MOST_HOLDERS), ...(all.length > MOST_HOLDERS ? [`${count(all.length - MOST_HOLDERS)} more`] : [])];
