/* Moves through the rows of a list by keys, as in k9s.
   In: the links with data-row in `place`. Out: one of them takes part in the order of Tab, and has the focus after a move. Invariant: when
   the list is drawn again, the row stays the one of the same name where it is still there. */

export class Rows {
  #at = '';

  constructor(place) {
    this.place = place;
  }

  /** After each drawing, and when the focus has moved. */
  settle() {
    const links = this.#links();
    const focused = links.find((each) => each === document.activeElement);
    if (focused) this.#at = focused.hash;
    const one = links.find((each) => each.hash === this.#at) ?? links[0];
    for (const each of links) each.tabIndex = each === one ? 0 : -1;
  }

  move(step) {
    const links = this.#links();
    const now = links.indexOf(document.activeElement);
    const found = links[now < 0 ? Math.max(0, links.findIndex((each) => each.tabIndex === 0)) : Math.min(links.length - 1, Math.max(0, now + step))];
    found?.focus();
    found?.scrollIntoView({ block: 'nearest' });
  }

  /** The row that Enter opens where the focus is on none. */
  open() {
    this.#links().find((each) => each.tabIndex === 0)?.click();
  }

  #links() {
    return [...this.place.querySelectorAll('[data-row]')];
  }
}
