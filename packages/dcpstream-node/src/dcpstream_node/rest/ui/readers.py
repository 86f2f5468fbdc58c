"""DCP connections as people think of them: clients, each with its connections."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from dcpstream_node.summary import DcpSummary

MAX_NAME_CHARS = 120
"""Longest name that is shown whole."""
REPLICATION = "Replication"
"""The program of connections between nodes."""
_PROGRAMS = (
    (re.compile(r"dcpstream-spark(?::|$)"), "Spark source"),
    (re.compile(r"dcpstream(?::|$)"), "dcpstream client"),
    (re.compile(r"replication:"), REPLICATION),
    (re.compile(r"secidx|proj-"), "Index projector"),
)
"""The beginning of a connection's name → the program."""
_REPLICATION = re.compile(r"replication:(?P<source>.+)->(?P<destination>[^:]+(?::\d+)?):(?P<bucket>.+)")
_CONTROL = re.compile(r".*:control:(?P<id>[0-9a-f]+)")
_RANDOM = re.compile(r"(?P<program>.*?)[:/](?P<id>[0-9a-fA-F-]{12,40})")
SHORT_ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class Reader:
    """A connection and the bucket that it reads.

    Attributes:
        title: its name for people.
        program: of the client.
        host: where the client runs.
    """

    bucket: str
    seen: DcpSummary
    title: str
    program: str
    host: str


@dataclass(frozen=True, slots=True)
class ReadingClient:
    """The connections of one program on one host as one user, of one bucket."""

    program: str
    host: str
    user: str
    bucket: str
    readers: tuple[Reader, ...]

    @property
    def key(self) -> str:
        """Unique, and the same while the client lives."""
        return f"{self.bucket}|{self.program}|{self.host}|{self.user}"


def reader_of(bucket: str, seen: DcpSummary) -> Reader:
    """A connection with its readable name."""
    program, title = _program(seen), _shortened(seen.name)
    replication, control = _REPLICATION.fullmatch(seen.name), _CONTROL.fullmatch(seen.name)
    random = _RANDOM.fullmatch(seen.name)
    if replication is not None:
        source, destination = (replication[part].removeprefix("ns_1@") for part in ("source", "destination"))
        title = f"to {destination}" if seen.kind == "producer" else f"from {source}"
    elif control is not None:
        title = f"control {control['id'][:SHORT_ID_CHARS]}"
    elif random is not None:
        title = f"data {random['id'][:SHORT_ID_CHARS]}"
    return Reader(bucket, seen, title, program, seen.peer.rpartition(":")[0] or seen.peer)


def clients(readers: list[Reader]) -> list[ReadingClient]:
    """The connections by client; clients and their connections by name."""
    groups: dict[tuple[str, str, str, str], list[Reader]] = {}
    for reader in readers:
        groups.setdefault((reader.bucket, reader.program, reader.host, reader.seen.user), []).append(reader)
    return [
        ReadingClient(program, host, user, bucket, tuple(sorted(found, key=lambda each: each.title)))
        for (bucket, program, host, user), found in sorted(groups.items())
    ]


def _program(seen: DcpSummary) -> str:
    """The program: from the connection's name, or from what the client says of itself."""
    for pattern, name in _PROGRAMS:
        if pattern.match(seen.name):
            return name
    for said in (seen.name, seen.agent):
        try:
            found = json.loads(said)
        except ValueError:
            continue
        if isinstance(found, dict) and isinstance(found.get("a"), str) and found["a"]:
            return _shortened(found["a"])
    random = _RANDOM.fullmatch(seen.name)
    if random is not None and random["program"]:
        return _shortened(random["program"])
    return _shortened(seen.agent or "Unnamed client")


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}…"
