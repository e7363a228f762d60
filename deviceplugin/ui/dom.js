/* Describes elements, and brings a description into the page.
   In: names, attributes, texts and children. Out: `morph` changes what is on the page into what is described, so that focus, selection
   and scrolling stay. A description is a plain object: what is drawn again and again leaves the browser no elements to collect.
   Invariant: text becomes a text node and nothing else; no address comes from the cluster's text. */

export function h(tag, attributes, ...children) {
  const given = Object.entries(attributes ?? {}).filter(([name, value]) => name !== 'style' && isShown(value));
  return {
    tag,
    style: attributes?.style ?? {},
    attributes: new Map(given.map(([name, value]) => [name, value === true ? '' : String(value)])),
    children: children.flat(Infinity).filter((each) => isShown(each) && each !== ''),
  };
}

const isShown = (value) => value !== null && value !== undefined && value !== false;

/** Makes the children of `place` like `wanted`. Handlers are on the document, so nodes may be kept or replaced. */
export function morph(place, wanted) {
  const have = [...place.childNodes];
  wanted.forEach((want, at) => {
    const old = have[at];
    if (old === undefined) place.append(made(want));
    else if (isAlike(old, want)) become(old, want);
    else old.replaceWith(made(want));
  });
  have.slice(wanted.length).forEach((each) => each.remove());
}

const isText = (want) => typeof want !== 'object';

function made(want) {
  const node = isText(want) ? document.createTextNode('') : document.createElement(want.tag);
  become(node, want);
  return node;
}

function isAlike(old, want) {
  if (isText(want)) return old.nodeType === Node.TEXT_NODE;
  return old.localName === want.tag && old.dataset.key === want.attributes.get('data-key');
}

function become(old, want) {
  if (isText(want)) {
    if (old.data !== String(want)) old.data = want;
    return;
  }
  const isEdited = old === document.activeElement && old.matches('input, select');
  for (const name of old.getAttributeNames()) if (!want.attributes.has(name) && name !== 'open' && name !== 'style') old.removeAttribute(name);
  for (const [name, value] of want.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of [...old.style]) if (!(name in want.style)) old.style.removeProperty(name);
  for (const [name, value] of Object.entries(want.style)) { // the attribute is forbidden by the page's policy
    if (old.style.getPropertyValue(name) !== value) old.style.setProperty(name, value);
  }
  morph(old, want.children);
  if (!isEdited && old.matches('input, select') && old.value !== valueOf(want)) old.value = valueOf(want);
}

function valueOf(want) {
  if (want.tag === 'input') return want.attributes.get('value') ?? '';
  return (want.children.find((each) => each.attributes.has('selected')) ?? want.children[0])?.attributes.get('value') ?? '';
}
