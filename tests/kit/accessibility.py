"""Errors of a page for people who use a keyboard, a screen reader, a small screen, or have weak eyes.

The rules are those of axe-core, which others write and keep: WCAG 2.1 A and AA, and its best practices. Ours are those
that it cannot decide: no scrolling sideways, no text that is cut off, and tables that stay tables for a screen reader
when the style makes cards of their rows.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from tests.kit.browser import Browser

TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice")
"""Groups of axe's rules."""

_RUN = """
(async () => {
  const { violations } = await axe.run(document, {
    runOnly: TAGS, resultTypes: ["violations"], preload: false, elementRef: false,
  });
  return violations.flatMap(({ id, help, nodes }) => nodes.map(
    ({ target, html, failureSummary }) => `${id}: ${help}: ${target} ${html.slice(0, 200)} (${failureSummary})`,
  ));
})()
""".replace("TAGS", json.dumps(TAGS))

_OURS = r"""
(() => {
  const found = [];
  const shown = (one) => one.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  const complain = (what, one) => {
    const marks = one.id ? "#" + one.id : one.className.baseVal ?? one.className;
    found.push(`${what}: <${one.nodeName.toLowerCase()} ${marks}> "${(one.textContent ?? "").trim().slice(0, 40)}"`);
  };
  const all = (selector) => [...document.querySelectorAll(selector)].filter(shown);

  if (document.documentElement.scrollWidth > innerWidth) {
    found.push(`the page is ${document.documentElement.scrollWidth} px wide`);
    const out = all("main *").find((one) => one.getBoundingClientRect().right > innerWidth + 1);
    if (out) complain("it sticks out", out);
  }
  for (const one of all("td, th, dd, dt, h1, h2, button, .state, .facts")) {
    const isClipped = one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== "visible";
    if (isClipped && !one.closest(".hidden, thead")) complain("its text is clipped", one);
  }
  for (const one of all(".flow text")) {
    const box = one.parentNode.querySelector(":scope > .box") ?? one.closest(".flow");
    const isOut = one.getBoundingClientRect().right > box.getBoundingClientRect().right;
    if (isOut) complain("its text leaves its box", one);
  }
  for (const one of all("table")) {
    if (one.getAttribute("role") !== "table") complain("a table loses its role on narrow screens", one);
  }
  return found;
})()
"""


def complaints(browser: Browser) -> list[str]:
    """The errors of the page that is open; empty if there are none."""
    browser.evaluate(_axe())
    return [*browser.evaluate(_RUN), *browser.evaluate(_OURS)]


@cache
def _axe() -> str:
    """The script of axe-core, of which the package has a copy."""
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
