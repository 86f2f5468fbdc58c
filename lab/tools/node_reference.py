"""Write docs/reference/node.md: the commands that the node answers, from its table of commands.

`--check` only compares, and exits 1 if the page is stale.
"""

# ruff: noqa: E501 - the lines of a page's tables cannot be broken

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.dcp.sasl import MECHANISMS  # noqa: E402
from dcpstream.wire import MAX_FRAME_BYTES, MAX_FRAME_BYTES_BEFORE_AUTH, Opcode  # noqa: E402
from dcpstream.wire.layout import Part  # noqa: E402
from dcpstream.wire.messages.admin import OBSOLETE  # noqa: E402
from dcpstream.wire.release import RELEASES  # noqa: E402
from dcpstream.wire.shape import shape_of  # noqa: E402
from dcpstream_node.engine import COMMANDS, MAX_OUTPUT_BYTES  # noqa: E402
from dcpstream_node.engine.access.roles import ALL_PRIVILEGES  # noqa: E402
from dcpstream_node.engine.bucket import documents  # noqa: E402
from dcpstream_node.engine.commands import Command  # noqa: E402
from dcpstream_node.engine.engine import MAX_BUCKETS, MAX_CONNECTIONS  # noqa: E402
from dcpstream_node.shell import server  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "node.md"
KIB, MIB = 1024, 1024 * 1024

INTRODUCTION = """# What the node answers

<!-- Written by lab/tools/node_reference.py (make reference); do not edit. -->

Every command of the KV port except those of DCP, which are in [Messages](messages.md). Other opcodes return
UNKNOWN_COMMAND, or NOT_SUPPORTED if servers before 7.2 knew them. "Needs" is the privilege of the user. Commands with a
star are answered before the login. Commands with a number came with that release; see [Server releases](releases.md).

| opcode | command | extras | key | value | needs | does |
| --- | --- | --- | --- | --- | --- | --- |
"""
HTTP = """
## Management port

All pages but `/health` and `/versions` need a login (basic authentication). A trailing slash makes no difference. The most used pages are
below; [Management port](rest.md) has all of them.

| path | answer |
| --- | --- |
| `/` | a line of text |
| `/health` | the health of the node |
| `/pools`, `/pools/default` | version and nodes |
| `/pools/default/nodeServices` | the cluster configuration without a bucket |
| `/pools/default/b/BUCKET` | the cluster configuration of a bucket |
| `/pools/default/bs/BUCKET`, `/pools/default/bucketsStreaming/BUCKET` | the same as an endless stream, sent again with each change |
| `/pools/default/buckets`, `/pools/default/buckets/BUCKET` | buckets |
| `/pools/default/buckets/BUCKET/scopes` | the collections; POST `name` creates a scope |
| `/pools/default/buckets/BUCKET/scopes/SCOPE` | DELETE drops the scope and its collections |
| `/pools/default/buckets/BUCKET/scopes/SCOPE/collections` | POST `name`, `maxTTL` (seconds) creates a collection |
| `/pools/default/buckets/BUCKET/scopes/SCOPE/collections/COLLECTION` | DELETE drops it with its documents |
| `/whoami`, `/nodes/self` | the user, the node |
"""
PARTS = {Part.NONE: "", Part.REQUIRED: "yes", Part.OPTIONAL: "may be"}


def row(opcode: int, command: Command) -> str:
    """One line of the table."""
    summary = (command.handler.__doc__ or "").strip().splitlines()[0].partition(": ")
    extras = "" if command.shape.extras == (0,) else " or ".join(map(str, command.shape.extras))
    since = next((name for name, release in RELEASES.items() if shape_of(opcode, release=release)), "")
    star = " *" if command.before_login else f" ({since})" if since != next(iter(RELEASES)) else ""
    cells = (
        f"0x{opcode:02x}",
        f"{Opcode(opcode).name}{star}",
        extras,
        PARTS[command.shape.key],
        PARTS[command.shape.value],
        command.privilege.replace("|", " or "),
        (summary[2] or summary[0]).rstrip(".").replace("|", "\\|"),
    )
    return "| " + " | ".join(cells) + " |"


def page() -> str:
    """The whole page."""
    rows = []
    for opcode in COMMANDS.opcodes():
        command = COMMANDS.get(opcode)
        assert command is not None
        if opcode in OBSOLETE:
            continue
        rows.append(row(opcode, command))
    limits = (
        ("a frame before the login", f"{MAX_FRAME_BYTES_BEFORE_AUTH // KIB} KiB"),
        ("a frame", f"{MAX_FRAME_BYTES // MIB} MiB"),
        ("a document", f"{documents.MAX_VALUE_BYTES // MIB} MiB"),
        ("unread answers of a client before the node stops reading from it", f"{MAX_OUTPUT_BYTES // MIB} MiB"),
        ("a connection's receive buffer", f"{server.READ_BYTES // KIB} KiB, more while a larger frame comes in"),
        ("connections", str(MAX_CONNECTIONS)),
        ("buckets", str(MAX_BUCKETS)),
    )
    sections = [
        INTRODUCTION + "\n".join(rows) + "\n",
        "\n## Login\n\n" + f"Mechanisms: {', '.join(MECHANISMS)}. Privileges: {', '.join(sorted(ALL_PRIVILEGES))}.\n",
        HTTP,
        "\n## Limits\n\n| what | at most |\n| --- | --- |\n"
        + "\n".join(f"| {what} | {most} |" for what, most in limits)
        + "\n",
    ]
    return "".join(sections)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    return publish({PAGE: page()})


if __name__ == "__main__":
    sys.exit(main())
