"""Connections between simulated nodes and the machines that talk to them: bytes fly, in an order that chance decides.

Theory of operation. A line has a node's session at one end and a machine at the other: a link of the orchestrator, or a
connection of a client. Each step of a line does one thing: bytes leave the machine, reach the node, or reach the
machine. Between two steps of one line any number of steps of others may pass. A line may deliver its bytes in pieces
that end at any byte, be slow, stall, or be cut. The machine learns of a cut line when nothing else of it is on its way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from dcpstream_node.testing.simulation.node import Peer, SimulatedNode

SLOW = 0.05
SPEEDS = (1.0, 1.0, SLOW)
"""Speeds of lines, by chance: copies behind a slow one lag."""
SPLIT_SHARE = 0.5
"""Share of the deliveries that end anywhere, on a line whose bytes arrive in pieces."""
NEVER, ALWAYS = 1e-9, 1e9
"""Speeds of a line that moves only when no other one does, and of one that moves first."""


class End(Protocol):
    """The machine's end of a line."""

    @property
    def is_closed(self) -> bool:
        """Whether the machine has given the connection up."""
        ...

    def data_to_send(self) -> bytes:
        """The bytes to send now."""
        ...

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def lost(self) -> None:
        """The connection ended."""
        ...


class Tap(Protocol):
    """Watches lines; see `lab.simulation.judges`."""

    def said(self, line: Line, data: bytes) -> None:
        """The orchestrator has said this in this turn; it leaves later."""
        ...

    def to_node(self, line: Line, data: bytes) -> None:
        """Bytes are about to reach the node."""
        ...

    def from_node(self, line: Line, data: bytes) -> None:
        """The node has sent bytes."""
        ...

    def opened(self, line: Line) -> None:
        """A line is there."""
        ...

    def closed(self, line: Line) -> None:
        """A line is gone."""
        ...


class Socket(Peer):
    """A node's end of a line, as bytes.

    Attributes:
        arrived: what the node has sent and the machine has not received.
        sent: called with the bytes that the node sends.
        woken: called when bytes arrive, and when the node closes.
    """

    def __init__(self, node: SimulatedNode, sent: Callable[[bytes], None], woken: Callable[[], None]) -> None:
        super().__init__(node)
        self.arrived = bytearray()
        self.sent = sent
        self.woken = woken

    def _exchange(self) -> None:
        self.node.pump(heard=(self,))

    def arrive(self, data: bytes) -> None:
        """Keep the bytes."""
        self.arrived += data
        self.woken()
        self.sent(data)

    def _leave(self) -> None:
        self.woken()
        super()._leave()


class Line:
    """One connection.

    Attributes:
        tap: sees all that passes; None: nobody.
        name: of both ends, for traces.
        node: the node's name.
        end: the machine's end.
        socket: the node's end.
        flying: pieces on their way to the node.
        speed: a line with twice the speed moves twice as often.
        has_output: whether the machine may have something to send; see `Lines.wake`.
        is_stalled: whether nothing moves in either direction.
        is_splitting: whether bytes arrive in pieces that end anywhere.
        is_cut: whether the connection was cut: what was on its way is lost.
        is_gone: whether the machine has learned that it ended.
    """

    __slots__ = (
        "end",
        "flying",
        "has_output",
        "is_cut",
        "is_gone",
        "is_splitting",
        "is_stalled",
        "name",
        "node",
        "socket",
        "speed",
        "tap",
    )

    def __init__(self, name: str, node: str, end: End, speed: float, *, is_splitting: bool) -> None:
        self.name = name
        self.node = node
        self.end = end
        self.socket: Socket
        self.flying: list[bytes] = []
        self.speed = speed
        self.has_output = True
        self.is_stalled = False
        self.is_splitting = is_splitting
        self.is_cut = False
        self.is_gone = False
        self.tap: Tap | None = None


class Lines:
    """All connections.

    Args:
        chance: decides the order of steps, the speeds and the splits.
        split_share: the share of lines whose bytes arrive in pieces that end anywhere.

    Attributes:
        all: the lines that are there, in the order in which they were made.
        taps: bucket → the observer of all that passes on the connections that use it.
        has_met_node: whether the last step gave its node bytes, or the end of a connection.
        left: called with a line and the bytes that have left its machine; None: nobody looks.
        note: called with a line of text about each step; None: nobody reads it.
    """

    def __init__(self, chance: random.Random, split_share: float = 0.0) -> None:
        self._chance = chance
        self._split_share = split_share
        self.all: list[Line] = []
        self._awake: dict[Line, None] = {}
        self.taps: dict[str, Tap] = {}
        self.left: Callable[[Line, bytes], None] | None = None
        self.has_met_node = False
        self.note: Callable[[Line, str, bytes], None] | None = None

    def connect(self, name: str, node_name: str, node: SimulatedNode, end: End, bucket: str) -> Line:
        """Make a connection that uses a bucket, or none."""
        chance = self._chance
        is_splitting = bool(self._split_share) and chance.random() < self._split_share
        line = Line(name, node_name, end, chance.choice(SPEEDS), is_splitting=is_splitting)
        line.socket = Socket(node, lambda data: self._sent(line, data), lambda: self.wake(line))
        self.all.append(line)
        self.wake(line)
        line.tap = self.taps.get(bucket)
        if line.tap is not None:
            line.tap.opened(line)
        return line

    def _sent(self, line: Line, data: bytes) -> None:
        if line.tap is not None:
            line.tap.from_node(line, data)

    def wake(self, line: Line) -> None:
        """A line may have something to do: to be called when its machine has output, or has given it up."""
        if not line.is_gone:
            self._awake[line] = None

    def step(self) -> Line | None:
        """One step of a line, chosen by chance; None if no line has anything to do."""
        busy: list[Line] = []
        idle: list[Line] = []
        total = 0.0
        for line in self._awake:
            if line.is_stalled:
                continue
            socket = line.socket
            if line.has_output or line.flying or socket.arrived or socket.closed or line.end.is_closed:
                busy.append(line)
                total += line.speed
            else:
                idle.append(line)
        for line in idle:
            del self._awake[line]
        if not busy:
            return None
        line = busy[0]
        if len(busy) > 1:
            at = self._chance.random() * total
            for line in busy:
                at -= line.speed
                if at < 0:
                    break
        self._move(line)
        return line

    def _move(self, line: Line) -> None:
        """Move bytes both ways. Sent bytes reach the node also after the machine has closed the connection."""
        end, socket, flying, chance = line.end, line.socket, line.flying, self._chance
        self.has_met_node = False
        if line.is_cut:
            self._close(line)
        elif line.has_output and not end.is_closed and not (flying and chance.random() < 0.5):
            line.has_output = False
            if data := end.data_to_send():
                flying.append(data)
                if self.left is not None:
                    self.left(line, data)
        elif flying and not socket.closed and not (socket.arrived and chance.random() < 0.5):
            data = flying.pop(0)
            if line.is_splitting and len(data) > 1 and chance.random() < SPLIT_SHARE:
                at = chance.randrange(1, len(data) + 1)
                if rest := data[at:]:
                    flying.insert(0, rest)
                data = data[:at]
            if line.tap is not None:
                line.tap.to_node(line, data)
            if self.note is not None:
                self.note(line, ">", data)
            self.has_met_node = True
            socket.deliver(data)
        elif socket.arrived and not end.is_closed:
            count = len(socket.arrived)
            if line.is_splitting and count > 1 and chance.random() < SPLIT_SHARE:
                count = chance.randrange(1, count + 1)
            data = bytes(socket.arrived[:count])
            del socket.arrived[:count]
            if self.note is not None:
                self.note(line, "<", data)
            end.receive(data)
        else:
            self._close(line)

    def _close(self, line: Line) -> None:
        self.has_met_node = True
        self.all.remove(line)
        self._awake.pop(line, None)
        line.is_gone = True
        line.socket.disconnect()
        if line.tap is not None:
            line.tap.closed(line)
        if self.note is not None:
            self.note(line, "x", b"")
        line.end.lost()

    def cut(self, line: Line) -> None:
        """Cut a connection: what is on its way is lost, and both ends learn of it."""
        if not line.is_cut:
            line.is_cut = True
            line.is_stalled = False
            line.flying.clear()
            line.socket.disconnect()

    def of_node(self, node: str) -> list[Line]:
        """The lines of a node."""
        return [line for line in self.all if line.node == node]
