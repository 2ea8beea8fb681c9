// Updates elements in place. Equal parts are kept, so a frame lays out and paints only what is new, and a selection survives.

function isAlike(old, fresh) {
  if (old.nodeName !== fresh.nodeName) return false;
  if (old.nodeType !== Node.ELEMENT_NODE) return true;
  const names = fresh.getAttributeNames();
  // `checked` is not an attribute.
  return old.checked === fresh.checked && old.attributes.length === names.length
    && names.every((name) => old.getAttribute(name) === fresh.getAttribute(name));
}

/** Makes the node `old` equal to `fresh`, or replaces it by `fresh`. Returns the node that remains. */
export function grow(old, fresh) {
  if (!isAlike(old, fresh)) {
    old.replaceWith(fresh);
    return fresh;
  }
  if (old.nodeType === Node.ELEMENT_NODE) growChildren(old, [...fresh.childNodes]);
  else if (old.data === fresh.data) return old;
  else if (fresh.data.startsWith(old.data)) old.appendData(fresh.data.slice(old.data.length));
  else old.data = fresh.data;
  return old;
}

/** Makes the children of `parent` equal to the nodes `fresh`, except for the first `kept` children. */
export function growChildren(parent, fresh, kept = 0) {
  const old = [...parent.childNodes].slice(kept);
  fresh.forEach((node, i) => (old[i] ? grow(old[i], node) : parent.append(node)));
  for (const node of old.slice(fresh.length)) node.remove();
}
