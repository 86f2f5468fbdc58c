"""Write docs/reference/messages.md from the layout table; `--check` only says whether it is up to date."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream import wire  # noqa: E402
from dcpstream.wire import Datatype, Field, Kind, Layout, Opcode, Part, code_name  # noqa: E402
from dcpstream.wire.layout import Phase, Side  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "messages.md"
INTRODUCTION = """# Messages

Every shape of every message that has a layout, generated from the declarations in `dcpstream.wire.messages`. Integers
are big-endian; offsets are in bytes from the start of the extras or of the value. Frames with other shapes are not
lost: they decode to `RawRequest` and `RawResponse`.
"""

PARTS = {Part.NONE: "none", Part.OPTIONAL: "optional", Part.REQUIRED: "required"}
PHASES = {
    Phase.CONNECTED: "before the login",
    Phase.LOGGED_IN: "after the login",
    Phase.BUCKET: "after SELECT_BUCKET",
    Phase.DCP: "after DCP_OPEN",
}


def page() -> str:
    """The page's text."""
    layouts = sorted(wire.LAYOUTS, key=lambda item: (item.opcode, item.kind.value))
    return "\n".join([INTRODUCTION, *(_section(layout) for layout in layouts)])


def _section(layout: Layout) -> str:
    lines = [f"## {layout.name}", "", layout.summary, ""]
    facts = [f"{code_name(Opcode, layout.opcode)} 0x{layout.opcode:02x}, {layout.kind.value}"]
    if layout.since:
        facts.append(f"since {layout.since}")
    if layout.statuses:
        facts.append("status " + ", ".join(wire.Status(status).name for status in layout.statuses))
    if layout.kind is Kind.REQUEST:
        facts.append(f"sent by the {_names(layout.sent_by)} {PHASES[layout.phase]}")
    facts.append("counts in flow control" if layout.flow_controlled else "not flow-controlled")
    lines += [*_wrapped("; ".join(facts) + "."), ""]
    if layout.fields:
        lines += ["| place | offset | type | field | note |", "|---|---|---|---|---|"]
        lines += [
            f"| {item.place} | {item.offset} | {item.type_name} | `{item.name}` | {_note(item)} |"
            for item in layout.fields
        ]
        lines.append("")
    if len(layout.variants) > 1:
        lines += [f"Lengths of the extras: {', '.join(map(str, layout.extras_lengths))}.", ""]
    lines += [*_wrapped(" ".join(_limits(layout))), ""]
    lines += [f"Source: {layout.source}", ""]
    return "\n".join(lines)


def _names(sides: Side) -> str:
    return " or the ".join((side.name or "").lower() for side in Side if side in sides)


def _note(field: Field) -> str:
    if field.fixed is not None:
        return f"always {field.fixed}"
    return "optional" if field.optional else ""


def _limits(layout: Layout) -> list[str]:
    """Sentences about the parts that the frame may have in addition to the fields."""
    key = "a document's, " if layout.document_key else ""
    found = [f"Key: {key}{PARTS[layout.key]}."]
    needs = f" (with {layout.rest_needs.name})" if layout.rest_needs else ""
    found.append(f"{'Rest of the value' if layout.value_fields else 'Value'}: {PARTS[layout.rest]}{needs}.")
    if layout.kind is Kind.RESPONSE:
        return found
    found.append(f"CAS: {PARTS[layout.cas]}.")
    if layout.privilege:
        found.append(f"Privilege: {layout.privilege.replace(' ', ' and ').replace('|', ' or ')}.")
    if layout.datatypes:
        found.append(f"Datatypes: {', '.join(item.name or '' for item in Datatype if layout.datatypes & item)}.")
    if layout.durable:
        found.append("May ask for durability.")
    if layout.keeps_ttl:
        found.append("May keep the expiration.")
    if layout.any_extras:
        found.append("A node takes extras of every length.")
    if layout.refused is not None:
        found.append(f"A node answers {layout.refused.name}.")
    if layout.without is not None:
        found.append(f"Only without {layout.without.name}.")
    return found


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 120)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    return publish({PAGE: page()})


if __name__ == "__main__":
    sys.exit(main())
