"""Find out which other clients survive the known bugs of servers, by reads of a node with one bug alone.

    python -m lab.interop.server_bugs [--client gocbcore|java-dcp] [BUG...]

A reader of gocbcore (`go/reader.go`) and one of java-dcp-client (`java/Reader.java`) go on from recorded positions, as
connectors do, and must have the documents that were written. Each read is first made of a node without the bug, where
it must be right. A whole run writes `server_bugs.json`, from which the page of the bugs is made.
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dcpstream.model import Op
from lab.interop.clients import CLIENTS, prepare
from lab.tools.patience import patient
from tests.kit import server_bug_reads as reads

RESULTS = Path(__file__).with_suffix(".json")
RELEASE = "7.2"
"""The release of the nodes: the oldest servers have the most bugs."""
QUIET_MS = int(patient(500))
"""Time without a message after which a reader ends."""
READ_TIMEOUT_S = patient(60)
KEYS_ONLY = {"gocbcore": ["-keys-only"], "java-dcp": ["-keys-only", "yes"]}
"""Client → the option of its reader for streams without values."""


class Foreign(reads.Bucket):
    """A bucket that another client reads.

    Attributes:
        position: file of the reader's position.
        takes_unordered: the reader asks for out-of-order snapshots.
        events: what the reader printed beside changes.
    """

    def __init__(self, server: str, name: str, *, client: str, begin: Sequence[str], position: Path) -> None:
        """Make a bucket for the reader of a client, whose command line begins so."""
        super().__init__(server, name)
        self._client = client
        self._begin = begin
        self.position = position
        self.takes_unordered = False
        self.events: list[str] = []

    def read(self, count: int | None = None, **options: Any) -> reads.Documents:
        """Read until nothing comes any more, or so many changes; only `collections`, `keys_only`, `reopen` count."""
        words = ["-connect", self.server, "-bucket", self.name, "-position", str(self.position)]
        words += ["-user", self.login["username"], "-password", self.login["password"], "-quiet", str(QUIET_MS)]
        words += ["-collections", ",".join(options.get("collections", ())), "-count", str(count or 0)]
        if self.takes_unordered:
            words.append("-out-of-order")
        if options.get("reopen"):
            words += ["-reopen", str(options["reopen"])]
        if options.get("keys_only"):
            words += KEYS_ONLY[self._client]
        self.ops, self.events = [], []
        done = subprocess.run(
            [*self._begin, *words], capture_output=True, text=True, timeout=READ_TIMEOUT_S, check=False
        )
        for line in done.stdout.splitlines():
            self._take_line(line)
        if done.returncode:
            raise AssertionError(f"the reader failed: {' '.join(self.events)} {done.stderr[-300:]}")
        return self.found

    def _take_line(self, line: str) -> None:
        op, *words = line.split(" ")
        if op == "mutation":
            self.found[_readable(base64.b64decode(words[0]))] = base64.b64decode(words[1])
            self.ops.append(Op.MUTATION)
        elif op == "deletion":
            self.found.pop(_readable(base64.b64decode(words[0])), None)
            self.ops.append(Op.DELETION)
        elif op == "rollback":
            self.found.clear()
            self.ops.append(Op.ROLLBACK)
        else:
            self.events.append(line)


def _readable(key: bytes) -> bytes:
    """A key as the Java client shows it: bytes that are not UTF-8 are replaced."""
    return key.decode("utf-8", "replace").encode()


def close_and_go_on(bucket: reads.Bucket) -> None:
    """A stream is closed while its last messages wait for room, and opened again."""
    bucket.read()
    bucket.write(reads.ORDERS, reads.documents("late", 4, b"x" * 800))
    bucket.read(reopen=1)
    assert bucket.found == bucket.wanted[reads.ORDERS] | bucket.wanted[reads.RETURNS]


def resume_above_the_end(bucket: reads.Bucket) -> None:
    """The position is the beginning of a snapshot whose end was lost."""
    assert isinstance(bucket, Foreign)
    bucket.read(collections=[reads.ORDERS])
    bucket.write(reads.RETURNS, reads.documents("other", 1))
    words = bucket.position.read_text(encoding="ascii").split()
    words[2:4] = [words[1], str(int(words[1]) + 4)]
    bucket.position.write_text(" ".join(words) + "\n", encoding="ascii")
    bucket.read(collections=[reads.ORDERS])
    bucket.write(reads.ORDERS, reads.documents("new", 5))  # above the end that was lost: else the server rolls back
    bucket.read(collections=[reads.ORDERS])
    assert bucket.found == bucket.wanted[reads.ORDERS]


READS: dict[str, Callable[[reads.Bucket], None]] = {
    "MB-23898-keys-only": reads.read_keys_alone,
    "MB-73354": reads.read_before_a_durable_write,
    "oso-first-marker": reads.read_out_of_order,
    "close-queued-stream": close_and_go_on,
    "MB-65581": reads.resume_inside_a_snapshot,
    "MB-66612": reads.resume_before_nothing,
    "MB-62984": resume_above_the_end,
    "MB-67551": reads.read_out_of_order,
}
"""Bug → the read that meets it."""

NOT_MET = {
    ("java-dcp", "close-queued-stream"): "not met: streams from its offsets have no end",
    ("java-dcp", "oso-first-marker"): "not met: it does not ask for out-of-order snapshots",
    ("java-dcp", "MB-67551"): "not met: it does not ask for out-of-order snapshots",
    ("java-dcp", "MB-62984"): "not met: the offsets that it gives have the snapshot of the last change",
}
"""(Client, bug) → why no read of the client can meet it."""


def read_once(client: str, bug: str, bugs: Sequence[str], begin: Sequence[str]) -> str:
    """Make the read of a bug of a node with some bugs; returns what is wrong, or an empty text."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="dcpstream-bugs-")))

        def bucket_of(server: str, name: str) -> Foreign:
            return Foreign(server, name, client=client, begin=begin, position=folder / "position")

        (bucket,) = stack.enter_context(
            reads.served(["default"], folder / "data", release=RELEASE, bugs=bugs, kind=bucket_of)
        ).values()
        for collection, wanted in bucket.wanted.items():
            bucket.wanted[collection] = {_readable(key): value for key, value in wanted.items()}
        bucket.takes_unordered = READS[bug] is reads.read_out_of_order
        try:
            READS[bug](bucket)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            wanted = bucket.wanted[reads.ORDERS] | bucket.wanted[reads.RETURNS]
            print(f"      {str(error)[:300]!r}; {len(bucket.found)} found, events {bucket.events}")
            return f"{len(wanted)} documents, {len(bucket.found)} found"
    return ""


def main() -> int:
    """Make the reads on the command line, or all; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.interop.server_bugs", description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="BUG", choices=[[], *READS], help=", ".join(READS))
    parser.add_argument("--client", choices=["gocbcore", "java-dcp"])
    options = parser.parse_args()
    begins = {"gocbcore": ["read"], "java-dcp": ["Reader"]}
    found: dict[str, dict[str, str]] = {}
    is_valid = True
    for client in [options.client] if options.client else begins:
        begin = [*prepare(client, print), *begins[client]]
        row = found[f"{CLIENTS[client].name} {CLIENTS[client].version}"] = {}
        for bug in options.bugs or READS:
            row[bug] = NOT_MET.get((client, bug), "")
            if not row[bug]:
                without = read_once(client, bug, [], begin)
                is_valid &= not without
                wrong = read_once(client, bug, [bug], begin) if not without else ""
                row[bug] = f"the read is wrong without the bug: {without}" if without else "no" if wrong else "yes"
            print(f"{client:10} {bug:24} {row[bug]}", flush=True)
    if not options.client and not options.bugs and is_valid:
        RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if is_valid else 1


if __name__ == "__main__":
    sys.exit(main())
