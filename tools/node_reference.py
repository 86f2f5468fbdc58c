"""Write docs/reference/node.md: what the node answers, from its table of commands.

`--check` only compares, and exits 1 if the page is stale.
"""

# ruff: noqa: E501 - the lines of a page's tables cannot be broken

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from dcpstream.node.engine import COMMANDS, MAX_OUTPUT_BYTES  # noqa: E402
from dcpstream.node.engine.access.roles import ALL_PRIVILEGES  # noqa: E402
from dcpstream.node.engine.bucket import documents  # noqa: E402
from dcpstream.node.engine.commands import Command  # noqa: E402
from dcpstream.node.engine.engine import MAX_BUCKETS, MAX_CONNECTIONS  # noqa: E402
from dcpstream.node.engine.release import RELEASES  # noqa: E402
from dcpstream.node.shell import server  # noqa: E402
from dcpstream.protocol.sasl import MECHANISMS  # noqa: E402
from dcpstream.wire import MAX_FRAME_BYTES, MAX_FRAME_BYTES_BEFORE_AUTH, Feature, Opcode  # noqa: E402
from dcpstream.wire.layout import Part  # noqa: E402
from dcpstream.wire.messages.admin import OBSOLETE  # noqa: E402
from tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "node.md"
KIB, MIB = 1024, 1024 * 1024

INTRODUCTION = """# What the node answers

<!-- Written by tools/node_reference.py (make reference); do not edit. -->

Every command of the KV port but those of DCP, for which see [Messages](messages.md). An opcode that is not here is
answered UNKNOWN_COMMAND, or NOT_SUPPORTED if servers before 7.2 knew it. "Needs" is the privilege a user must have;
commands marked with a star are answered before the login. Those marked 7.6 are known to a node with `compat_version` 7.6 only.

| opcode | command | extras | key | value | needs | does |
| --- | --- | --- | --- | --- | --- | --- |
"""
HTTP = """
## Management port

With the users' names and passwords (basic authentication). A trailing slash makes no difference. All of it is read-only but for scopes and collections, whose changes need the privilege NodeSupervisor; each is answered with the new manifest's uid, a refusal with `{"errors":{"_":"why"}}`.

| path | answer |
| --- | --- |
| `/` | a line of text |
| `/health` | whether the node serves; needs no login |
| `/pools`, `/pools/default` | version and nodes |
| `/pools/default/nodeServices` | the cluster configuration without a bucket |
| `/pools/default/b/BUCKET` | the cluster configuration of a bucket |
| `/pools/default/bs/BUCKET`, `/pools/default/bucketsStreaming/BUCKET` | the same, again with each change, without end |
| `/pools/default/buckets`, `/pools/default/buckets/BUCKET` | buckets |
| `/pools/default/buckets/BUCKET/scopes` | the collections; POST `name` makes a scope |
| `/pools/default/buckets/BUCKET/scopes/SCOPE` | DELETE drops the scope and its collections |
| `/pools/default/buckets/BUCKET/scopes/SCOPE/collections` | POST `name`, `maxTTL` (seconds, 0 for no limit) makes a collection |
| `/pools/default/buckets/BUCKET/scopes/SCOPE/collections/COLLECTION` | DELETE drops it with its documents |
| `/whoami`, `/nodes/self` | the user, the node |
"""
PARTS = {Part.NONE: "", Part.REQUIRED: "yes", Part.OPTIONAL: "may be"}


def row(opcode: int, command: Command) -> str:
    """One line of the table."""
    summary = (command.handler.__doc__ or "").strip().splitlines()[0].partition(": ")
    extras = "" if command.shape.extras == (0,) else " or ".join(map(str, command.shape.extras))
    star = " *" if command.before_login else " (7.6)" if opcode in RELEASES["7.2"].unknown_opcodes else ""
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


def names_of(features: frozenset[Feature]) -> str:
    """Features with their codes, ascending."""
    return ", ".join(f"{feature.name} (0x{feature:02x})" for feature in sorted(features))


def page() -> str:
    """The whole page."""
    rows = []
    for opcode in COMMANDS.opcodes():
        command = COMMANDS.get(opcode)
        assert command is not None
        if opcode in OBSOLETE:
            continue
        rows.append(row(opcode, command))
    old, new = (RELEASES[name].features for name in ("7.2", "7.6"))
    limits = (
        ("a frame before the login", f"{MAX_FRAME_BYTES_BEFORE_AUTH // KIB} KiB"),
        ("a frame", f"{MAX_FRAME_BYTES // MIB} MiB"),
        ("a document", f"{documents.MAX_VALUE_BYTES // MIB} MiB"),
        ("answers that a client leaves unread before it is not read from", f"{MAX_OUTPUT_BYTES // MIB} MiB"),
        ("a connection's receive buffer", f"{server.READ_BYTES // KIB} KiB, more while a larger frame comes in"),
        ("connections", str(MAX_CONNECTIONS)),
        ("buckets", str(MAX_BUCKETS)),
    )
    sections = [
        INTRODUCTION + "\n".join(rows) + "\n",
        "\n## Login\n\n" + f"Mechanisms: {', '.join(MECHANISMS)}. Privileges: {', '.join(sorted(ALL_PRIVILEGES))}.\n",
        f"\n## HELLO\n\nGranted when asked for: {names_of(old)}.\n",
        f"\nA node with `compat_version` 7.6 also grants {names_of(new - old)}. Nothing else is.\n",
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
