/* Makes elements, and brings a drawn tree into the page.
   In: names, attributes, texts and children. Out: DOM nodes; `morph` changes what is on the page into what was drawn, so that focus,
   selection and scrolling stay. Invariant: text becomes a text node and nothing else; no address comes from the cluster's text. */

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'style') for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false && each !== ''));
  return element;
}

/** Makes the children of `place` like `wanted`. Handlers are on the document, so nodes may be kept or replaced. */
export function morph(place, wanted) {
  const have = [...place.childNodes];
  wanted.forEach((want, at) => {
    const old = have[at];
    if (old === undefined) place.append(want);
    else if (isAlike(old, want)) become(old, want);
    else old.replaceWith(want);
  });
  have.slice(wanted.length).forEach((each) => each.remove());
}

function isAlike(old, want) {
  if (old.nodeType !== want.nodeType || old.nodeName !== want.nodeName) return false;
  return old.nodeType !== Node.ELEMENT_NODE || old.dataset.key === want.dataset.key;
}

function become(old, want) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== want.data) old.data = want.data;
    return;
  }
  const isEdited = old === document.activeElement && old.matches('input, select');
  for (const { name } of [...old.attributes]) if (!want.hasAttribute(name) && !(name === 'open')) old.removeAttribute(name);
  for (const { name, value } of want.attributes) {
    if (name === 'style') continue; // a policy forbids the attribute; properties are copied below
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (want.style.length && old.style.cssText !== want.style.cssText) old.style.cssText = want.style.cssText;
  morph(old, [...want.childNodes]);
  if (!isEdited && old.matches('input, select') && old.value !== want.value) old.value = want.value;
}
