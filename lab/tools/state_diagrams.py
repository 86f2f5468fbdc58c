"""Draw the state diagrams of the documentation from the tables of transitions.

A page asks for a diagram with two comments, between which this script writes:

    <!-- states: dcpstream.dcp.consumer.stream:TRANSITIONS -->
    <!-- end of states -->

`--check` only compares. It exits 1 if a diagram is stale, or if a table in packages/ has no diagram.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.dcp.transitions import Transitions  # noqa: E402
from lab.layout import modules  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

DOCS = ROOT / "docs"
END = "<!-- end of states -->"
_PLACE = re.compile(rf"(<!-- states: ([\w.]+):(\w+) -->\n).*?({re.escape(END)}\n)", re.DOTALL)
_TABLE = re.compile(r"^(\w+)(?:: [^=\n]+)? = Transitions\b", re.MULTILINE)


def diagram(table: Transitions[Any, Any]) -> str:
    """The table as a Mermaid state diagram.

    Events that leave a final state where it is are not drawn.
    """
    lines = ["stateDiagram-v2", f"    [*] --> {table.start.name}"]
    lines += [
        f"    {state.name} --> {after.name}: {event.value}" for state, event, after in table if state not in table.final
    ]
    lines += [f"    {state.name} --> [*]" for state in table.rows if state in table.final]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def drawn(text: str) -> str:
    """A page's text with each diagram drawn again."""

    def replace(found: re.Match[str]) -> str:
        begin, module, name, end = found.groups()
        return begin + diagram(getattr(import_module(module), name)) + end

    return _PLACE.sub(replace, text)


def tables() -> Iterator[str]:
    """Each table of transitions in packages/, as module:NAME."""
    for source, path in modules():
        module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        for found in _TABLE.finditer(path.read_text(encoding="utf-8")):
            yield f"{module}:{found[1]}"


def undrawn(texts: Iterable[str]) -> list[str]:
    """The tables that no page asks for."""
    wanted = {f"{place[2]}:{place[3]}" for text in texts for place in _PLACE.finditer(text)}
    return [name for name in tables() if name not in wanted]


def main() -> int:
    """Draw, or check."""
    texts = {page: page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")}
    asking = {page: text for page, text in sorted(texts.items()) if _PLACE.search(text)}
    missing = undrawn(asking.values())
    for name in missing:
        print(f"{name}: no page of docs/ draws this table", file=sys.stderr)
    return publish({page: drawn(text) for page, text in asking.items()}) or bool(missing)


if __name__ == "__main__":
    sys.exit(main())
