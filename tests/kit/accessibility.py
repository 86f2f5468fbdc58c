"""Rules of a page for people who use a keyboard, a screen reader, a small screen, or have weak eyes.

The rules are those of WCAG 2.1 AA that can be decided by looking at the page in a browser: names, roles, labels, order
of headings, contrast, and no scrolling sideways.
"""

from __future__ import annotations

from tests.kit.browser import Browser

CONTRAST_MIN, CONTRAST_LARGE_MIN = 4.5, 3.0
"""Least contrast of texts, and of large ones (24 px, or 18.66 px bold)."""

_RULES = r"""
(() => {
  const found = [];
  const shown = (one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const name = (one) => {
    const marks = one.id ? "#" + one.id : one.className.baseVal ?? one.className;
    return `<${one.nodeName.toLowerCase()} ${marks}> "${(one.textContent ?? "").trim().slice(0, 40)}"`;
  };
  const complain = (what, one) => found.push(`${what}: ${name(one)}`);
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);
  const spoken = (one) => (
    one.getAttribute("aria-label")
    || (one.getAttribute("aria-labelledby") ?? "").split(/\s+/).filter(Boolean)
      .map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim()
    || [...(one.labels ?? [])].map((label) => label.textContent.trim()).join(" ")
    || one.querySelector?.(":scope > title")?.textContent
    || one.textContent.trim()
  );

  if (!document.documentElement.lang) found.push("the page has no language");
  if (!document.title.trim()) found.push("the page has no title");
  if (all("main").length !== 1) found.push("the page has not one <main>");
  if (all("h1").length !== 1) found.push("the page has not one <h1>");
  let level = 0;
  for (const one of all("h1, h2, h3, h4")) {
    const next = Number(one.nodeName[1]);
    if (next > level + 1) complain("a heading leaves a level out", one);
    level = next;
  }
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  const twice = ids.filter((id, at) => ids.indexOf(id) !== at);
  for (const id of new Set(twice)) found.push(`two elements have the id ${id}`);
  for (const one of all("a[href], button, input:not([type=hidden]), select, textarea, [role=img], [role=region], "
    + "progress, nav, form[aria-label]")) {
    if (!spoken(one)) complain("it has no name", one);
  }
  for (const one of all("nav")) if (!one.getAttribute("aria-label")) complain("a navigation has no label", one);
  for (const attribute of ["aria-labelledby", "aria-describedby"]) {
    for (const one of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of one.getAttribute(attribute).split(/\s+/)) {
        if (!document.getElementById(id)) complain(`${attribute} names nothing`, one);
      }
    }
  }
  for (const one of all("table")) {
    if (one.getAttribute("role") !== "table") complain("a table loses its role on narrow screens", one);
    for (const row of one.tBodies[0].rows) {
      if (!row.querySelector("th[scope=row]")) complain("a row has no head", row);
      if (row.children.length !== one.tHead.rows[0].children.length) complain("a row has other columns", row);
    }
  }
  for (const one of document.querySelectorAll("[tabindex]")) {
    if (one.tabIndex > 0) complain("its place in the order is forced", one);
  }
  for (const one of all(".scroll, pre")) {
    if (one.scrollWidth > one.clientWidth + 1 && one.tabIndex < 0) complain("the keyboard cannot scroll it", one);
  }
  if (document.documentElement.scrollWidth > innerWidth) {
    found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
    const out = all("main *").find((one) => one.getBoundingClientRect().right > innerWidth + 1);
    if (out) complain("it sticks out", out);
  }
  for (const one of all("td, th, dd, dt, h1, h2, button, .state, .facts")) {
    const isClipped = one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible";
    if (isClipped && !one.closest(".hidden, thead")) complain("its text is clipped", one);
  }

  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color[3] > 0.99) return color;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const looked = new Set();
  const others = ".hidden, svg, option, datalist, .skip, :disabled, script";
  while (texts.nextNode()) {
    const one = texts.currentNode.parentElement;
    if (!texts.currentNode.nodeValue.trim() || looked.has(one) || !shown(one) || one.closest(others)) continue;
    looked.add(one);
    const style = getComputedStyle(one);
    const pair = [light(parse(style.color)), light(ground(one))].sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (contrast < (isLarge ? LARGE : NORMAL)) complain(`contrast ${contrast.toFixed(2)}`, one);
  }
  return found;
})()
"""


def complaints(browser: Browser) -> list[str]:
    """The errors of the page that is open; empty if there are none."""
    rules = _RULES.replace("LARGE :", f"{CONTRAST_LARGE_MIN} :").replace(": NORMAL)", f": {CONTRAST_MIN})")
    return list(browser.evaluate(rules))
