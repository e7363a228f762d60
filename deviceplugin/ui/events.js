/* What happened lately: pods that were placed, are pending or ended, and nodes and GPUs that became available or unavailable.
   In: EventsView. Out: elements. Invariant: the newest stands first. */

import { h } from './dom.js';
import { age, capital, clock, count, plural } from './format.js';
import { empty, namespaces, nodeAddress, otherLink, pager, podName, rowLink, search, select } from './parts.js';

export const LIMIT = 100;
const KINDS = [['', 'all'], ['placed', 'pods placed'], ['pending', 'pods Pending'], ['ended', 'pods ended'], ['node', 'nodes'], ['gpu', 'GPUs']];

export async function load(api, route, signal) {
  const { namespace, node, kind } = route.query;
  return api.get('view/events', { namespace: namespaces(namespace), node, kind, limit: LIMIT, more: route.more }, signal);
}

export function draw(found, route) {
  return [
    h('h1', {}, 'Events'),
    h('div', { class: 'filters', role: 'search' },
      select('kind', 'Kind', route.query.kind ?? '', KINDS),
      search('namespace', 'Namespace', route.query.namespace ?? '', 'first letters'),
      search('node', 'Node', route.query.node ?? '', 'whole name')),
    found.items.length ? table(found) : empty('No event matches.'),
    pager(route, route.page, found.items.length, found.total, found.more),
    h('p', { class: 'small' }, `Noted since ${new Date(found.since * 1000).toLocaleString('en-GB')}, when ${found.replica} started.`,
      found.dropped > 0 && ` ${plural(found.dropped, 'older event')} not kept.`),
  ];
}

function table(found) {
  return h('div', { class: 'scroll' }, h('table', { class: 'events' },
    h('thead', {}, h('tr', {}, ['Time', 'Kind', 'About', 'What happened'].map((text) => h('th', { scope: 'col' }, text)))),
    h('tbody', {}, found.items.map((each) => row(each, found.at)))));
}

function row(event, now) {
  const isPod = event.uid !== '';
  const node = event.node && (isPod ? otherLink(nodeAddress(event.node), event.node) : rowLink({ href: nodeAddress(event.node) }, event.node));
  const often = event.count > 1 && h('span', { class: 'small' }, ` ${count(event.count)} times, the first ${age(event.first, now)} ago`);
  return h('tr', { 'data-key': `${event.kind} ${event.uid} ${event.node} ${event.at} ${event.sentence}` },
    h('td', {}, h('time', { datetime: new Date(event.at * 1000).toISOString(), title: `${age(event.at, now)} ago` }, clock(event.at))),
    h('td', {}, h('span', { class: `stage ${isTrouble(event) ? 'pending' : ''}` }, event.kind === 'gpu' ? 'GPU' : capital(event.kind))),
    h('td', {}, isPod ? podName(event) : node, isPod && node && h('span', { class: 'dim' }, ' on ', node)),
    h('td', {}, event.sentence, often));
}

const isTrouble = (event) => event.kind === 'pending' || ((event.kind === 'node' || event.kind === 'gpu') && event.sentence.includes('unavailable'));
