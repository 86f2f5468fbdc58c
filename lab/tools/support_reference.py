"""Write docs/reference/support.md: what of the protocol is supported, opcode by opcode.

    python lab/tools/support_reference.py [--check]

Nothing is written down twice: messages come from the layout table, the requests that an end takes from its table of
handlers, those that it sends from the message classes that its source makes or packs, the judges from the recordings.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.dcp.consumer import connection as consumer  # noqa: E402
from dcpstream.dcp.producer import connection as producer  # noqa: E402
from dcpstream.wire import LAYOUTS, Kind, Opcode  # noqa: E402
from dcpstream.wire.codes import code_name  # noqa: E402
from dcpstream.wire.layout import Side  # noqa: E402
from dcpstream.wire.messages import DCP_OPCODES  # noqa: E402
from dcpstream_node.engine import COMMANDS  # noqa: E402
from lab.tools.pages import publish  # noqa: E402
from tests.kit import recorded  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "support.md"
SOURCE = ROOT / "packages" / "dcpstream" / "src" / "dcpstream"
SCENARIOS_SHOWN = 3


def trees(pattern: str) -> Iterable[ast.Module]:
    """The syntax trees of some source files."""
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.glob(pattern))]


def opcodes_in(node: ast.AST) -> set[int]:
    """The opcodes that are named somewhere below."""
    return {
        int(Opcode[item.attr])
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.value, ast.Name)
        and item.value.id == "Opcode"
        and item.attr in Opcode.__members__
    }


REQUESTS = {layout.name: layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST}
FAMILIES = "dcpstream.wire.messages"


def imported_requests(tree: ast.Module) -> dict[str, int]:
    """Local name → opcode of the request classes that a module imports, and of `family.Class` for whole families."""
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(FAMILIES):
            continue
        for alias in node.names:
            local = alias.asname or alias.name
            if alias.name in REQUESTS:
                found[local] = REQUESTS[alias.name]
            elif node.module == FAMILIES:
                found |= {f"{local}.{name}": opcode for name, opcode in REQUESTS.items()}
    return found


def messages_in(tree: ast.Module) -> tuple[set[int], set[int]]:
    """The opcodes of the requests that a module (makes, names in any way)."""
    local = imported_requests(tree)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    made: set[int] = set()
    named: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute) or ast.unparse(node) not in local:
            continue
        opcode = local[ast.unparse(node)]
        parent = parents[node]
        if isinstance(parents.get(parent), ast.keyword) and parents[parent].arg == "but":
            continue  # a table of handlers leaves it out
        named.add(opcode)
        if isinstance(parent, ast.Call):
            is_handled = isinstance(parent.func, ast.Attribute) and parent.func.attr == "of"
            if not is_handled and not (isinstance(parent.func, ast.Name) and parent.func.id == "isinstance"):
                made.add(opcode)  # its constructor, or an argument of a function that packs it
        elif isinstance(parent, ast.Attribute):
            words = ast.unparse(parents[parent]) if parent.attr == "layout" else parent.attr
            if words.endswith(("pack", ".head")) and not words.endswith("unpack"):
                made.add(opcode)
    return made, named


def sent_by(side: Side, pattern: str) -> set[int]:
    """The requests that one end of a DCP connection sends: those that its source makes and that are its to send."""
    made = {opcode for tree in trees(pattern) for opcode in messages_in(tree)[0]}
    return made & {layout.opcode for layout in LAYOUTS if layout.kind is Kind.REQUEST and layout.sent_by & side}


@cache
def rendered() -> frozenset[int]:
    """The messages that a producer sends out of the store: what blocks are made of."""
    found: set[int] = set()
    for tree in trees("wire/stored/*.py"):
        found |= opcodes_in(tree) & DCP_OPCODES
    return frozenset(found)


@cache
def used_by_client() -> frozenset[int]:
    """The requests whose classes or opcodes the client's source names."""
    found: set[int] = set()
    for tree in trees("client/**/*.py"):
        found |= opcodes_in(tree) | messages_in(tree)[1]
    return frozenset(found)


@cache
def judges() -> dict[int, list[str]]:
    """Opcode → the recordings that it occurs in, servers before clients."""
    found: dict[int, list[str]] = {}
    for name in recorded.scenario_names():
        for line in recorded.server_transcript(name):
            if line.frame and not line.is_malformed:
                places = found.setdefault(line.frame[1], [])
                if name.partition("_")[0] not in places:
                    places.append(name.partition("_")[0])
    for name in recorded.client_names():
        for line in recorded.client_transcript(name):
            if line.frame and name not in found.setdefault(line.frame[1], []):
                found[line.frame[1]].append(name)
    return found


def ends(takes: bool, sends: bool) -> str:
    """The handling of a message by one end."""
    return ", ".join(word for word, is_so in (("takes", takes), ("sends", sends)) if is_so) or "-"


def judged(opcode: int) -> str:
    """The first few recordings, and how many more."""
    names = judges().get(opcode, [])
    more = len(names) - SCENARIOS_SHOWN
    return " ".join(names[:SCENARIOS_SHOWN]) + (f" and {more} more" if more > 0 else "") or "-"


def rows() -> Iterable[str]:
    """One row of the table for each opcode."""
    producer_sends = sent_by(Side.PRODUCER, "protocol/producer/*.py") | rendered()
    consumer_sends = sent_by(Side.CONSUMER, "protocol/consumer/*.py")
    node = set(COMMANDS.opcodes())
    for opcode in sorted({*Opcode, *node}):
        name = code_name(Opcode, opcode)
        kinds = {layout.kind for layout in LAYOUTS if layout.opcode == opcode}
        known = ", ".join(
            name for kind, name in ((Kind.REQUEST, "request"), (Kind.RESPONSE, "answer")) if kind in kinds
        )
        is_dcp = opcode in DCP_OPCODES
        yield (
            f"| 0x{opcode:02x} | {name} | {known or 'as bytes'} | {known or 'as bytes'}"
            f" | {ends(opcode in producer._HANDLERS, opcode in producer_sends) if is_dcp else ''}"
            f" | {ends(opcode in consumer._HANDLERS, opcode in consumer_sends) if is_dcp else ''}"
            f" | {'' if is_dcp else 'answers' if opcode in node else '-'}"
            f" | {'uses' if opcode in used_by_client() else '-'} | {judged(opcode)} |"
        )


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            "# Support",
            "",
            "<!-- Written by lab/tools/support_reference.py (make reference); do not edit. -->",
            "",
            "What is supported of the protocol, opcode by opcode. *Decode* and *encode*: the shapes that have a class",
            "of their own; every other frame is read and written without loss as bytes. *Producer* and *consumer*: the",
            "two ends of a DCP connection that the node can be. *Node*: whether it answers; a DCP request is answered",
            "by its producer or consumer, and one that neither takes ends the connection. *Client*: whether our own",
            "client uses it. *Judged by*: the recorded scenarios of a real server, and the recorded clients, in which",
            "it occurs.",
            "",
            "| opcode | name | decode | encode | producer | consumer | node | client | judged by |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows(),
            "",
            "The rules that hold for these messages, with their tests: [Conformance](conformance.md).",
            "",
        ]
    )


def main() -> int:
    """Write the page, or with `--check` compare it."""
    return publish({PAGE: page()})


if __name__ == "__main__":
    sys.exit(main())
