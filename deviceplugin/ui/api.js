/* Asks the scheduler, directly or by `vcuda ui`.
   In: a path of the view and a query. Out: the document, or a Refusal with its sentence. Invariant: token and key go in headers only,
   never into an address, a cookie or a file. The token is in memory: behind the API server's proxy other services share this origin,
   and could read what a page stores. The key of `vcuda ui` opens nothing but that process, so it may outlive a reload. */

const KEY = 'vcuda-ui-key';
const LONGEST_S = 40;

export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export class Api {
  #token = '';
  #key = '';

  constructor() {
    const given = /^#key=([\w-]{20,200})$/.exec(location.hash);
    if (given) {
      sessionStorage.setItem(KEY, given[1]);
      history.replaceState(null, '', '#/nodes');
    }
    this.#key = sessionStorage.getItem(KEY) ?? '';
  }

  get hasKey() { return this.#key !== ''; }
  get hasToken() { return this.#token !== ''; }
  set token(text) { this.#token = text; }

  async get(path, query = {}, signal = undefined) {
    const address = new URL(`../${path}`, document.baseURI);
    for (const [name, value] of Object.entries(query)) if (value !== '' && value !== undefined) address.searchParams.set(name, value);
    const headers = { Accept: 'application/json' };
    if (this.#token) headers['X-Vcuda-Token'] = this.#token;
    if (this.#key) headers['X-Vcuda-Key'] = this.#key;
    const limits = [AbortSignal.timeout(LONGEST_S * 1000), ...(signal ? [signal] : [])];
    const how = { headers, credentials: 'same-origin', cache: 'no-store', redirect: 'error', signal: AbortSignal.any(limits) };
    return read(await fetch(address, how));
  }
}

async function read(answer) {
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Refusal(answer.status, answer.ok ? 'the answer is not of a scheduler of vcuda' : `${answer.status}: ${text.slice(0, 300).trim()}`);
  }
  if (!answer.ok) throw new Refusal(answer.status, String(found?.error ?? found?.message ?? `it answered ${answer.status}`));
  return found;
}
