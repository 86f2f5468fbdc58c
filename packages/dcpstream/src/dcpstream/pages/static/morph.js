// Changes one tree of elements into another, and leaves alone what is equal: focus, selection, scrolling and what
// people typed stay. Children with the same data-key, or the same id, are the same child.

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") || node.id || "" : "";
}

function isSame(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName && keyOf(old) === keyOf(wanted);
}

function morphAttributes(old, wanted) {
  for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  // Whether a fold is open is for people to say.
  const own = old.nodeName === "DETAILS" ? ["open"] : [];
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !own.includes(name)) old.removeAttribute(name);
  }
}

function morphChildren(old, wanted) {
  const keyed = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
  let at = old.firstChild;
  for (const child of [...wanted.childNodes]) {
    const known = keyed.get(keyOf(child));
    if (known && known !== at && isSame(known, child)) old.insertBefore(known, at);
    if (known && isSame(known, child)) {
      if (known === at) at = at.nextSibling;
      morph(known, child);
    } else if (at && isSame(at, child)) {
      const next = at.nextSibling;
      morph(at, child);
      at = next;
    } else {
      old.insertBefore(document.importNode(child, true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

export function morph(old, wanted) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== wanted.nodeValue) old.nodeValue = wanted.nodeValue;
    return;
  }
  if (old.isEqualNode(wanted)) return;
  // What people type and choose stays: the new page only has the defaults.
  if (["INPUT", "TEXTAREA", "SELECT"].includes(old.nodeName) && old.type !== "hidden") return;
  morphAttributes(old, wanted);
  morphChildren(old, wanted);
}
