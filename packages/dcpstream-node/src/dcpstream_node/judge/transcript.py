"""A transcript: everything that passed between a scenario and a server, one line for each frame and event.

A line is a dictionary, in a file one JSON object. `packets` and `connection` write lines, `steps` reads them; the
recordings of real servers are transcripts, too. Recorded from elsewhere or just now makes no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from dcpstream.runtime import Clock

Line = dict[str, Any]

HEX_BYTES_MAX = 25_000
"""In a longer frame the bytes at the end that repeat are counted: 20 MiB of one letter need no 40 MB of text."""
STAT = "10"
"""The opcode of STAT, as a line has it."""


class ScenarioTimeout(Exception):
    """The scenario used up its time."""


class Stopped(Exception):
    """The scenario cannot go on here, and the server is not to blame: a right, a user or a mode is missing.

    Args:
        reason: what is missing, and where.
        connection: the connection of the request at which it stops.
        requests: how many requests went out before on that connection, as `cut` counts them.
    """

    def __init__(self, reason: str, connection: str, requests: int) -> None:
        self.connection = connection
        self.requests = requests
        super().__init__(reason)


class Recorder:
    """Writes a transcript and holds the scenario's deadline.

    Args:
        name: the scenario's.
        timeout_s: how long it may take.
        release: the server's.
        clock: for times and the deadline.
        may_send: gives the reason why a request may not be sent, or nothing.
    """

    def __init__(self, name: str, timeout_s: float, release: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.lines: list[Line] = []
        self.unix = clock.time_ns() // 1_000_000_000
        self._started = clock.monotonic()
        self.deadline = self._started + timeout_s
        self.write({"event": "start", "unix": self.unix, "release": release}, f"scenario {name}")

    def write(self, fields: Line, note: str, connection: str = "", direction: str = "note", raw: bytes = b"") -> None:
        """Write one line."""
        line: Line = {"dir": direction}
        if connection:
            line["conn"] = connection
        line["t"] = round(self.clock.monotonic() - self._started, 4)
        self.lines.append(line | hex_fields(raw) | {"note": note} | fields)

    def check_deadline(self) -> None:
        """Check that there is time left. Raises: ScenarioTimeout."""
        if self.clock.monotonic() > self.deadline:
            raise ScenarioTimeout("the scenario's time is used up")

    def expire(self) -> None:
        """Let the scenario end at its next step."""
        self.deadline = self._started


def hex_fields(raw: bytes) -> Line:
    """The bytes of a frame; a long run of one byte at the end is counted."""
    if len(raw) <= HEX_BYTES_MAX:
        return {"hex": raw.hex()}
    body = raw.rstrip(raw[-1:])
    return {"hex": body.hex(), "repeat": {"hex": raw[-1:].hex(), "count": len(raw) - len(body)}}


def line_bytes(line: Line) -> bytes:
    """The bytes of a line."""
    raw = bytes.fromhex(line["hex"])
    tail = line.get("repeat")
    return raw + bytes.fromhex(tail["hex"]) * tail["count"] if tail else raw


def to_text(lines: Iterable[Line]) -> str:
    """The lines as a file has them."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def from_text(text: str) -> list[Line]:
    """The lines of a file."""
    return [json.loads(line) for line in text.splitlines()]


class RequestCount:
    """Counts a connection's requests such that two runs of a scenario have the same numbers.

    Requests that wait for something are sent as often as it takes: an optional STAT does not count, and of attempts
    (`poll`) only the first one.
    """

    def __init__(self) -> None:
        self.requests = 0
        self._poll: str | None = None

    def add(self, line: Line) -> None:
        """Count a request's line."""
        if line.get("optional") and line["hex"][2:4] == STAT:
            return
        poll = line.get("poll")
        if poll is None or poll != self._poll:
            self.requests += 1
        self._poll = poll


def cut(lines: Sequence[Line], connection: str, requests: int) -> list[Line]:
    """The lines before a connection's request, which is the one after so many."""
    count = RequestCount()
    for index, line in enumerate(lines):
        if line["dir"] == "c2s" and line.get("conn") == connection:
            count.add(line)
            if count.requests > requests:
                return list(lines[:index])
    return list(lines)
