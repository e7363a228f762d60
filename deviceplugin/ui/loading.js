/* Says that the page could not be loaded, where one of its modules did not arrive: then none of them runs.
   In: the document, whose element `html` has data-runs once main.js runs. Out: a sentence in its place. Invariant: no module, so that
   it runs without them; where main.js comes late all the same, that replaces the sentence. */

(() => {
  const LONGEST_MS = 10000;
  const tell = () => {
    if ('runs' in document.documentElement.dataset) return;
    const place = document.getElementById('trouble');
    place.textContent = 'The page could not be loaded: a part of it did not arrive. Reload the page.';
    place.hidden = false;
    document.getElementById('clock').textContent = 'Not loaded';
  };
  setTimeout(tell, LONGEST_MS);
  document.addEventListener('error', (event) => {
    if (event.target.matches?.('script[type=module]')) tell();
  }, true);
})();
