"""Write docs/reference/releases.md and server-bugs.md: what each server release has, from the tables of the code.

`--check` only compares, and exits 1 if the page is stale.
"""

# ruff: noqa: E501 - the lines of a page's tables cannot be broken

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum, IntFlag
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from dcpstream.dcp.controls import CONTROLS  # noqa: E402
from dcpstream.wire import Opcode, release  # noqa: E402
from dcpstream.wire.messages import REQUESTS  # noqa: E402
from dcpstream.wire.release import DEFAULT_RELEASE, RELEASES, Row, Rule  # noqa: E402
from dcpstream.wire.server_bugs import ServerBug  # noqa: E402
from lab.tools.pages import publish  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "releases.md"
BUGS_PAGE = ROOT / "docs" / "reference" / "server-bugs.md"
OLDEST = next(iter(RELEASES.values()))

INTRODUCTION = f"""# Server releases

<!-- Written by lab/tools/release_reference.py (make reference); do not edit. -->

A node is one server release to its clients: `dcpstream node --release 8.0`, `Node(release="8.0")`. Without the option
it is {DEFAULT_RELEASE.name}. The nodes of a cluster may be of different releases.

7.2 and 8.0 are judged by recordings of real servers. Nothing of 7.6 and 8.5 was recorded: what they have follows from
the sources that are named, 8.5 from the development branch of August 2026. A node grants only what it really does.

"""


def mark(row: Row) -> list[str]:
    """A cell for each release: whether it has the row's subject."""
    return ["yes" if each.knows(row.since, row.until) else "" for each in RELEASES.values()]


def table(subject: str, rows: Iterable[tuple[str, Row]]) -> str:
    """A table with a column for each release."""
    head = f"| {subject} | {' | '.join(RELEASES)} | source |\n| --- |{' --- |' * len(RELEASES)} --- |\n"
    return head + "".join(f"| {name} | {' | '.join(mark(row))} | {row.source} |\n" for name, row in rows)


def codes(rows: Mapping[IntEnum, Row] | Mapping[IntFlag, Row]) -> Iterable[tuple[str, Row]]:
    """Names with their numbers."""
    return ((f"{code.name} (0x{code:02x})", row) for code, row in rows.items())


def opcodes() -> Iterable[tuple[str, Row]]:
    """The requests that not all releases have alike."""
    for layout in REQUESTS:
        row = Row(layout.source, layout.since, layout.until)
        if all(mark(row)) or not any(mark(row)):
            continue
        is_variant = any(other.opcode == layout.opcode and other is not layout for other in REQUESTS)
        name = f"{Opcode(layout.opcode).name} (0x{layout.opcode:02x})"
        yield name + (f", {layout.name}" if is_variant else ""), row


def page() -> str:
    """The whole page."""
    versions = "".join(
        f"| {each.name} | {each.version} | {each.error_map_revision} | {each.compatibility} |\n"
        for each in RELEASES.values()
    )
    controls = ((f"`{each.name}`", Row("", each.since, each.until)) for each in CONTROLS.values())
    return "".join(
        (
            INTRODUCTION,
            "| release | VERSION | error map revision | clusterCompatibility |\n| --- | --- | --- | --- |\n" + versions,
            "\n## Requests\n\nRequests that not all releases have. A release answers one that came later UNKNOWN_COMMAND, and one that is gone NOT_SUPPORTED; both whatever the request's parts. Variants differ in their parts.\n\n",
            table("request", opcodes()),
            "\n## Features of HELLO\n\n" + table("feature", codes(release.FEATURES)),
            "\n## Flags of DCP_OPEN\n\n" + table("flag", codes(release.OPEN_FLAGS)),
            "\n## Flags of streams\n\nOf STREAM_REQ and ADD_STREAM.\n\n" + table("flag", codes(release.STREAM_FLAGS)),
            "\n## Controls of a producer\n\n" + table("control", controls),
            "\n## Statuses\n\nStatuses that not all releases have; so for their error maps.\n\n",
            table("status", codes(release.STATUSES)),
            "\n## Capabilities of buckets\n\nIn the order of the cluster map.\n\n",
            table("capability", ((f"`{name}`", row) for name, row in release.CAPABILITIES.items())),
            "\n## Rules\n\n" + table("rule", ((rule.text, rule.row) for rule in Rule)),
        )
    )


BUGS_INTRODUCTION = """# Known bugs of servers

<!-- Written by lab/tools/release_reference.py (make reference); do not edit. -->

Clients of a real server meet its bugs. So a node has those of the server version that it stands for: `Node(release="8.0")` sends streams of keys alone without deletions, as 8.0 does. `Node(release="8.0", server_bugs=["MB-73354"])` has that one alone, and `server_bugs=[]` none; so has `dcpstream node --server-bug MB-73354`, and `--server-bug none`. In pytest: `@pytest.mark.couchbase_node(server_bugs=[])`. Bugs are not [faults](../how-to/inject-faults.md), which are injected into a running node.

The last rows of each table are of readers that go on from recorded positions, as connectors do, beside a node of 7.2 with that bug alone (`python -m lab.interop.server_bugs`); without the bug the same reads are right.

"""

_NOBODY = "no reader can notice it: the document has the byte in all answers"
SURVIVORS = {
    "MB-23898-keys-only": "yes: it asks for xattrs as well, and drops them",
    "MB-73354": "yes: it reads on from its position",
    "oso-first-marker": "yes",
    "close-queued-stream": "yes",
    "MB-65581": "yes: servers before 8.0 are asked for what is on disk first",
    "MB-66612": "yes, in the same way",
    "MB-62984": "yes: it does not record the end of a snapshot of which it has nothing",
    "MB-67551": "yes: servers before 8.0 are asked for no out-of-order snapshot",
    "empty-compressed-value": _NOBODY,
}
"""Bug → whether our client reads right beside it, and why; the test is test_client_server_bugs.py."""

_RESULTS = ROOT / "lab" / "interop" / "server_bugs.json"
_ANSWERS = {
    "yes": "yes, in the read that meets the bug",
    "no": "no: a reader that records each SEQNO_ADVANCED and resumes lacks documents",
}
_WRONG_READ = {
    "MB-23898-keys-only": "no: its streams of keys alone show deleted documents as existing ones",
    "MB-67551": "no: documents are missing",
}


def foreign(client: Mapping[str, str], bug: str) -> str:
    """Describe what another client does beside a bug, by the results of `python -m lab.interop.server_bugs`.

    Raises:
        KeyError: the client was not run beside this bug.
    """
    if SURVIVORS[bug] == _NOBODY:
        return _NOBODY
    result = client[bug]
    return _WRONG_READ.get(bug, _ANSWERS["no"]) if result == "no" else _ANSWERS.get(result, result)


LEFT_OUT = """
## Left out

| bug | versions | why a node does not have it |
| --- | --- | --- |
| MB-62847: a stream from a replica gets SEQNO_ADVANCED to the end of its snapshot before the last change there, and the server fails at that change | up to 7.2.5, 7.6.0 to 7.6.3 | the bounds of a replica's snapshot count from its first change on in a node, so the case does not come up; clients of this project read active copies |
| MB-63159: a stream of an ephemeral bucket that begins while deletions are purged may miss some | up to 7.6.3, all of 7.2 | the purge of a vbucket is one step in a node, so no stream begins meanwhile |
"""


def bugs_page() -> str:
    """The page about the bugs of servers."""
    out = [BUGS_INTRODUCTION]
    others = json.loads(_RESULTS.read_text(encoding="utf-8"))
    for bug in ServerBug:
        where = ", ".join(bug.releases) or "none; only if it is named"
        out.append(f"## {bug.id}\n\n{bug.text}\n\n")
        if bug.is_rare:
            out.append("A server does so only at an unlucky moment, a node every time.\n\n")
        out.append(
            f"| | |\n| --- | --- |\n| a client that trusts it | {bug.effect} |\n| server versions | {bug.versions} |\n"
            f"| releases of a node | {where} |\n| dcpstream | {SURVIVORS[bug.id]} |\n"
        )
        out.extend(f"| {name} | {foreign(client, bug.id)} |\n" for name, client in others.items())
        out.append("\n")
    return "".join(out).rstrip() + "\n" + LEFT_OUT


def main() -> int:
    """Write the pages, or with `--check` compare them."""
    return publish({PAGE: page(), BUGS_PAGE: bugs_page()})


if __name__ == "__main__":
    sys.exit(main())
