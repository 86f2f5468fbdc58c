"""Draw the state diagrams of the documentation from the tables of transitions.

A page asks for a diagram with two comments, between which this script writes:

    <!-- states: dcpstream.protocol.consumer.stream:STREAM -->
    <!-- end of states -->

`--check` only compares. It exits 1 if a diagram is stale, or if a table in src/ has no diagram.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from dcpstream.protocol.transitions import Transitions

ROOT = Path(__file__).parents[1]
DOCS, SOURCE = ROOT / "docs", ROOT / "src"
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
    """A page's text with each diagram drawn anew."""

    def replace(found: re.Match[str]) -> str:
        begin, module, name, end = found.groups()
        return begin + diagram(getattr(import_module(module), name)) + end

    return _PLACE.sub(replace, text)


def pages() -> Iterator[Path]:
    """The pages that ask for diagrams."""
    return (page for page in sorted(DOCS.rglob("*.md")) if "<!-- states: " in page.read_text(encoding="utf-8"))


def tables() -> Iterator[str]:
    """Each table of transitions in src/, as module:NAME."""
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        for found in _TABLE.finditer(path.read_text(encoding="utf-8")):
            yield f"{module}:{found[1]}"


def faults() -> list[str]:
    """What is stale or missing, one line each."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    wanted = {f"{place[2]}:{place[3]}" for text in texts.values() for place in _PLACE.finditer(text)}
    stale = [
        f"{page.relative_to(ROOT)}: a state diagram is stale" for page, text in texts.items() if drawn(text) != text
    ]
    return stale + [f"{name}: no page of docs/ draws this table" for name in tables() if name not in wanted]


def main(arguments: list[str]) -> int:
    """Draw, or check."""
    if "--check" not in arguments:
        for page in pages():
            page.write_text(drawn(page.read_text(encoding="utf-8")), encoding="utf-8")
    found = faults()
    for line in found:
        print(f"{line} (make reference draws the diagrams anew)", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
