"""Writes docs/reference/messages.md from the layout table; `--check` only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from dcpstream import wire  # noqa: E402
from dcpstream.wire import Layout, Opcode, Part  # noqa: E402
from tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "messages.md"
INTRODUCTION = """# Messages

Every shape of every message that has a layout, generated from the table in `dcpstream.wire.layout`. All integers are
unsigned and big-endian; offsets are in bytes from the start of the extras or of the value. Frames with other shapes
are not lost: they decode to `RawRequest` and `RawResponse`.
"""


def page() -> str:
    """The page's text."""
    layouts = sorted(wire.LAYOUTS, key=lambda item: (item.opcode, item.kind.value))
    return "\n".join([INTRODUCTION, *(_section(layout) for layout in layouts)])


def _section(layout: Layout) -> str:
    lines = [f"## {layout.name}", "", layout.summary, ""]
    facts = [f"{Opcode(layout.opcode).name} 0x{layout.opcode:02x}, {layout.kind.value}"]
    if layout.since:
        facts.append(f"since {layout.since}")
    if layout.statuses:
        facts.append("status " + ", ".join(wire.Status(status).name for status in layout.statuses))
    facts.append("counts in flow control" if layout.flow_controlled else "not flow-controlled")
    lines += ["; ".join(facts) + ".", ""]
    if layout.fields:
        lines += ["| place | offset | width | field | only value |", "|---|---|---|---|---|"]
        lines += [
            f"| {item.place} | {item.offset} | {item.width} | `{item.name}` | {_fixed(item.fixed)} |"
            for item in layout.fields
        ]
        lines.append("")
    lines += [
        f"Key: {_part(layout.key)}. {'Rest of the value' if layout.value_fields else 'Value'}: {_part(layout.rest)}.",
        "",
    ]
    lines += [f"Source: {layout.source}", ""]
    return "\n".join(lines)


def _fixed(number: int | None) -> str:
    return "" if number is None else str(number)


def _part(part: Part) -> str:
    return {Part.NONE: "none", Part.OPTIONAL: "optional", Part.REQUIRED: "required"}[part]


def main() -> int:
    """Write the page, or with `--check` compare it."""
    return publish({PAGE: page()})


if __name__ == "__main__":
    sys.exit(main())
