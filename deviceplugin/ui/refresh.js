/* When the page is loaded again: every few seconds, not while it is hidden or paused, later and later where it fails.
   In: `load`, which may fail; `failed` and `loaded`, which show it. Out: calls of `load`, one at a time. Invariant: a call that was
   replaced by a newer one is aborted, and nothing of it is shown. */

const EVERY_MS = 5000;
const LONGEST_MS = 30000;

export class Refresh {
  #timer = 0;
  #running = null;
  #failures = 0;
  paused = false;

  constructor(load, failed) {
    this.load = load;
    this.failed = failed;
    document.addEventListener('visibilitychange', () => (document.hidden ? this.#stop() : this.now()));
    window.addEventListener('online', () => this.now());
  }

  /** Loads at once. */
  async now() {
    this.#stop();
    const mine = new AbortController();
    this.#running = mine;
    let wait = EVERY_MS;
    try {
      await this.load(mine.signal);
      this.#failures = 0;
    } catch (error) {
      if (mine.signal.aborted) return;
      wait = this.#backoff();
      this.failed(error, Math.round(wait / 1000));
    }
    if (mine.signal.aborted) return;
    this.#running = null;
    if (!this.paused && !document.hidden) this.#timer = setTimeout(() => this.now(), wait);
  }

  set pause(value) {
    this.paused = value;
    if (value) this.#stop();
    else this.now();
  }

  #backoff() {
    const step = Math.min(LONGEST_MS, 1000 * 2 ** this.#failures++);
    return step * (0.75 + Math.random() / 2); // so that many pages do not come back at the same instant
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#running?.abort();
    this.#running = null;
  }
}
