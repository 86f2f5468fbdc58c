"""A DCP connection whose peer does not read: its time-outs neither keep the loop busy nor go unnoticed."""

from __future__ import annotations

import asyncio
from typing import Any

from dcpstream.runtime import SystemClock
from dcpstream_node.shell.connection import JOIN_BYTES, KvProtocol, joined
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.server import KvServer
from tests.kit.cases import each_case
from tests.kit.engine import engine_of

TURNS = 50


class Blocked(asyncio.Transport):
    """A transport that takes nothing."""

    is_closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 1 << 30

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def write(self, data: Any) -> None: ...


class Due:
    """A DCP machine that always has something to send; it gives the peer up at `gives_up_after` looks."""

    def __init__(self, gives_up_after: int) -> None:
        self.looks = 0
        self.name = "due"
        self.close_reason: str | None = None
        self._gives_up_after = gives_up_after

    @property
    def wake_at(self) -> float | None:
        return None if self.close_reason else 0.0

    def handle_timeout(self, now: float) -> None:
        self.looks += 1
        if self.looks >= self._gives_up_after:
            self.close_reason = "nothing was received"


def blocked(gives_up_after: int, turns: int) -> tuple[Due, Blocked]:
    """A connection after some turns of the loop."""
    dcp, transport = Due(gives_up_after), Blocked()

    async def run() -> None:
        server = KvServer(engine_of(), SystemClock(), Limits())
        server.loop = asyncio.get_running_loop()
        protocol = KvProtocol(server)
        protocol.connection_made(transport)
        assert protocol.session is not None
        protocol.session.dcp = dcp  # type: ignore[assignment]
        protocol.pause_writing()
        protocol._timed_out()
        for _ in range(turns):
            await asyncio.sleep(0)
        protocol.session.dcp = None
        protocol.connection_lost(None)

    asyncio.run(run())
    return dcp, transport


def test_what_is_due_is_not_looked_at_in_every_turn() -> None:
    dcp, transport = blocked(gives_up_after=1000, turns=TURNS)
    assert dcp.looks < TURNS / 2
    assert not transport.is_closed


@each_case(
    ("sizes", "writes"),
    [
        ([], []),
        ([44], [44]),
        ([44, 7000, 28], [7072]),
        ([40_000, JOIN_BYTES - 40_000, 1, 2], [JOIN_BYTES, 3]),
        ([44, JOIN_BYTES + 1, 28, 44], [44, JOIN_BYTES + 1, 72]),
    ],
    ids=["nothing", "one", "a stream", "as much as fits", "a large one"],
)
def test_small_pieces_are_written_together(sizes: list[int], writes: list[int]) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    written = list(joined(pieces))
    assert list(map(len, written)) == writes
    assert b"".join(written) == b"".join(pieces)
    assert all(any(piece is one for one in written) for piece in pieces if len(piece) > JOIN_BYTES)
