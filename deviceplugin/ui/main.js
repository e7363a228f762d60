/* The page: what the address names is loaded, drawn, and loaded again.
   In: the address's fragment, keys, clicks. Out: the view on the page. Invariant: what is on the page stays there when a load fails, and
   a sentence says that it is old. Filters are in the fragment, which no server sees. */

import { Api, Refusal } from './api.js';
import { h, morph } from './dom.js';
import * as events from './events.js';
import { capital, clock, count } from './format.js';
import * as namespaces from './namespaces.js';
import * as node from './node.js';
import * as nodes from './nodes.js';
import { empty } from './parts.js';
import * as pod from './pod.js';
import * as pods from './pods.js';
import { Refresh } from './refresh.js';
import { Rows } from './rows.js';
import { totals } from './totals.js';

const VIEWS = {
  nodes: { title: 'Nodes', load: nodes.load, draw: nodes.draw, limit: nodes.LIMIT },
  namespaces: { title: 'Namespaces', load: namespaces.load, draw: namespaces.draw, limit: namespaces.LIMIT },
  node: { title: 'Node', load: node.load, draw: node.draw },
  pods: { title: 'Pods', load: pods.load, draw: pods.draw, limit: pods.LIMIT },
  pending: { title: 'Pending pods', load: pods.loadPending, draw: pods.drawPending, limit: pods.LIMIT },
  events: { title: 'Events', load: events.load, draw: events.draw, limit: events.LIMIT },
  pod: { title: 'Pod', load: pod.load, draw: pod.draw },
};
const TABS = ['nodes', 'namespaces', 'pods', 'pending', 'events'];
const by = (id) => document.getElementById(id);
const api = new Api();
const rows = new Rows(by('view'));
const shown = { route: null, found: null, cluster: null, pages: [''], lists: {} };

function routeOf(text) {
  const [path, query = ''] = text.replace(/^#\/?/, '').split('?');
  const [tab, ...names] = path.split('/').filter(Boolean).map(decoded);
  const kind = tab === 'nodes' && names.length ? 'node' : tab === 'pods' && names.length > 1 ? 'pod' : TABS.includes(tab) ? tab : 'nodes';
  return { kind, tab: TABS.includes(tab) ? tab : 'nodes', names, query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function load(signal) {
  const { route } = shown;
  const view = VIEWS[route.kind];
  const asked = () => ({ ...route, more: shown.pages.at(-1), page: shown.pages.length - 1, limit: view.limit });
  const totalsOf = (live) => api.get('view/cluster', { live }, signal);
  const rowsOf = (live) => view.load(api, asked(), signal, live);
  try {
    if (shown.found === null) { // agents may be slow, and those of all nodes slower: what is allocated comes first
      show(await Promise.all([rowsOf(false), shown.cluster ?? totalsOf()]), route, asked(), signal);
      show([await rowsOf(true), shown.cluster], route, asked(), signal);
      show([shown.found, await totalsOf(1)], route, asked(), signal);
    } else show(await Promise.all([rowsOf(true), totalsOf(1)]), route, asked(), signal);
  } catch (error) {
    if (error instanceof Refusal && error.status === 410 && shown.pages.length > 1) {
      shown.pages = [''];
      return load(signal);
    }
    if (error instanceof Refusal && (error.status === 403 || error.status === 404) && !signal.aborted) await refused(error, totalsOf, signal);
    throw error;
  }
}

/** The sentence first: agents may be slow. */
async function refused(error, totalsOf, signal) {
  failed(error);
  for (const live of shown.cluster === null ? [undefined, 1] : [1]) {
    const cluster = await totalsOf(live);
    if (signal.aborted) return;
    shown.cluster = cluster;
    showTotals(cluster);
  }
}

function show([found, cluster], route, asked, signal) {
  if (signal.aborted || route !== shown.route) return;
  Object.assign(shown, { found, cluster });
  showTotals(cluster);
  morph(by('view'), VIEWS[route.kind].draw(found, asked, cluster));
  rows.settle();
  by('view').setAttribute('aria-busy', 'false');
  say('trouble', '');
  document.body.classList.remove('old');
  document.querySelector('[data-action=token]').hidden = api.hasKey;
  if (route.query.gpu && !shown.scrolled) {
    shown.scrolled = true;
    document.querySelector('.gpu-card.chosen')?.scrollIntoView({ block: 'center' });
  }
}

function showTotals(cluster) {
  morph(by('totals'), totals(cluster));
  by('pending-count').textContent = cluster.pods_pending ? count(cluster.pods_pending) : '';
  by('clock').textContent = `Updated ${clock(cluster.at)}`;
  if (cluster.namespace) by('installed-in').textContent = cluster.namespace;
  by('foot').textContent = `vcuda ${cluster.scheduler_version} · answered by ${cluster.replica} · leader ${cluster.leader || 'not known'}`;
}

function failed(error, seconds) {
  if (error instanceof Refusal && error.status === 401 && api.hasToken) {
    api.token = '';
    say('trouble', `The token was refused: ${error.message}.`);
    return;
  }
  if (error instanceof Refusal && error.status === 403) {
    by('view').replaceChildren();
    by('view').setAttribute('aria-busy', 'false');
    const isUnknown = !api.hasKey && !api.hasToken && error.message.includes('with a token');
    say('trouble', isUnknown ? `${sentence(error.message.split(';')[0])}. Paste a token by the button Token…` : `${sentence(error.message)}.`);
    return;
  }
  if (error instanceof Refusal && error.status === 404) {
    morph(by('view'), [empty(`${sentence(error.message)}. `, h('a', { href: `#/${shown.route.tab}`, 'data-action': 'up' }, 'Back to the list'))]);
    by('view').setAttribute('aria-busy', 'false');
    say('trouble', '');
    return;
  }
  const why = error instanceof Refusal ? said(error) : api.hasKey ? '`vcuda ui` does not answer; is it still running?' : 'the scheduler does not answer';
  say('trouble', `${sentence(why.replace(/; try again$/, ''))}. Trying again in ${Math.max(1, seconds)} s.`);
  document.body.classList.toggle('old', shown.found !== null);
  if (shown.found === null) by('clock').textContent = 'Not connected';
  by('view').setAttribute('aria-busy', 'false');
}

/** Who says it: the scheduler, of itself. */
const said = ({ message }) => (/scheduler|vcuda ui/.test(message) ? message : `the scheduler says: ${message}`);
const sentence = (text) => capital(text.replace(/\.$/, ''));

function say(id, text) {
  const place = by(id);
  if (place.textContent !== text) place.textContent = text;
  place.hidden = text === '';
}

const refresh = new Refresh(load, failed);
document.documentElement.dataset.runs = '';

function go() {
  const route = routeOf(location.hash);
  const before = shown.route;
  const isOther = before === null || before.kind !== route.kind || before.names.join('/') !== route.names.join('/');
  Object.assign(shown, { route, pages: [''], scrolled: false });
  if (!route.names.length) shown.lists[route.tab] = location.hash;
  if (isOther) {
    shown.found = null;
    by('view').replaceChildren();
    by('view').setAttribute('aria-busy', 'true');
    window.scrollTo(0, 0);
    if (before !== null) by('view').focus({ preventScroll: true });
  }
  for (const link of by('tabs').querySelectorAll('a')) {
    if (link.hash === `#/${route.tab}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = `${[...route.names].reverse()[0] ?? VIEWS[route.kind].title} · vcuda`;
  refresh.now();
}

/** Takes all of them: the one before may not have been taken yet. */
function filter() {
  const query = { ...shown.route.query };
  for (const each of document.querySelectorAll('[data-filter]')) query[each.dataset.filter] = each.value.trim();
  for (const [key, text] of Object.entries(query)) if (!text) delete query[key];
  const text = new URLSearchParams(query).toString();
  history.replaceState(null, '', `#/${shown.route.tab}${text ? `?${text}` : ''}`);
  go();
}

function turn(step) {
  if (step > 0 && shown.found?.more) shown.pages.push(shown.found.more);
  else if (step < 0 && shown.pages.length > 1) shown.pages.pop();
  else return;
  window.scrollTo(0, 0);
  refresh.now();
}

/** From a node or pod to its list as it was; from a list to the list without filters. */
function up() {
  const { route, lists } = shown;
  location.hash = route.names.length ? lists[route.tab] ?? `#/${route.tab}` : `#/${route.tab}`;
}

const ACTIONS = {
  down: () => rows.move(1),
  above: () => rows.move(-1),
  next: () => turn(1),
  before: () => turn(-1),
  refresh: () => refresh.now(),
  skip: () => by('view').focus(),
  token: () => by('token-dialog').showModal(),
  keys: () => by('keys-dialog').showModal(),
  close: () => document.querySelector('dialog[open]')?.close(),
  up,
  filter: () => document.querySelector('[data-filter]')?.focus(),
  pause: () => {
    refresh.pause = !refresh.paused;
    const button = document.querySelector('[data-action=pause]');
    button.setAttribute('aria-pressed', String(refresh.paused));
    button.textContent = refresh.paused ? 'Resume' : 'Pause';
  },
};
const KEYS = { j: 'down', ArrowDown: 'down', k: 'above', ArrowUp: 'above', n: 'next', b: 'before', r: 'refresh', p: 'pause', Escape: 'up', '/': 'filter', '?': 'keys' };

document.addEventListener('click', (event) => {
  const action = event.target.closest?.('[data-action]')?.dataset.action;
  if (!action) return;
  event.preventDefault();
  ACTIONS[action]?.();
});
document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.target.matches('input, select')) {
    if (event.key === 'Escape') event.target.blur();
    return;
  }
  const isOnRow = event.target.matches('[data-row]');
  const action = event.key.startsWith('Arrow') && !isOnRow ? undefined : KEYS[event.key];
  if (event.key === 'Enter' && !event.target.matches('a, button')) rows.open();
  else if (action) {
    event.preventDefault();
    ACTIONS[action]();
  } else if (TABS[Number(event.key) - 1]) location.hash = `#/${TABS[Number(event.key) - 1]}`;
});
document.addEventListener('focusin', (event) => {
  if (event.target.matches('[data-row]')) rows.settle();
});
let typing = 0;
document.addEventListener('input', (event) => {
  if (!event.target.dataset?.filter) return;
  clearTimeout(typing);
  typing = setTimeout(filter, event.target.type === 'search' ? 250 : 0);
});
by('token-form').addEventListener('submit', (event) => {
  event.preventDefault();
  api.token = by('token').value.trim();
  by('token').value = '';
  by('token-dialog').close();
  refresh.now();
});
window.addEventListener('hashchange', go);
go();
