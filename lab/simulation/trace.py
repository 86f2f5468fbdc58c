"""Traces: a readable line for each thing that happens in a simulated cluster."""

from __future__ import annotations

from dcpstream.wire.codes import Opcode, code_name
from lab.simulation.cluster import SimulatedCluster
from lab.simulation.judges import frames
from lab.simulation.lines import Line

SHOWN_MAX = 4
"""Frames of one exchange that a line names; of the others it says how many there are."""


class Trace:
    """Writes down what happens.

    Args:
        cluster: is watched.
        lines: get the text; None: nothing is written, and it costs nothing.
    """

    def __init__(self, cluster: SimulatedCluster, lines: list[str] | None) -> None:
        self._cluster = cluster
        self._lines = lines
        if lines is not None:
            cluster.lines.note = self._passed

    def note(self, text: str) -> None:
        """Something happened."""
        if self._lines is not None:
            self._lines.append(f"{self._cluster.now:10.3f} {self._cluster.passed:6d} {text}")

    def _passed(self, line: Line, direction: str, data: bytes) -> None:
        if direction == "x":
            self.note(f"{line.name} x {line.node}: closed")
        else:
            self.note(f"{line.name} {direction} {line.node}: {describe(data)}")


def describe(data: bytes) -> str:
    """The frames in some bytes, in words; bytes that do not begin with a whole frame are only counted."""
    names = []
    size = 0
    if data[0] in {frames.REQUEST, frames.RESPONSE, frames.FLEX_REQUEST, frames.FLEX_RESPONSE}:
        for message in frames.cut(data):
            size += message.size
            names.append(_describe(message))
    shown = names[:SHOWN_MAX] + ([f"{len(names) - SHOWN_MAX} more"] if len(names) > SHOWN_MAX else [])
    rest = len(data) - size
    return "; ".join(shown + ([f"{rest} bytes"] if rest else []))


def _describe(message: frames.Message) -> str:
    name = code_name(Opcode, message.opcode)
    if message.is_response:
        return f"{name} answered 0x{message.number:02x}"
    if message.opcode == frames.STREAM_REQUEST:
        start, vbuuid, low, high = (message.u64(at) for at in (8, 24, 32, 40))
        return f"{name} vb {message.number} at {start} in {low}..{high} of {vbuuid:x}"
    if message.opcode == frames.MARKER:
        low, high = frames.bounds(message)
        return f"{name} vb {message.number} {low}..{high}"
    if message.opcode in frames.ITEMS:
        return f"{name} vb {message.number} seqno {message.u64(frames.ITEMS[message.opcode])}"
    shown = f" {message.extras.hex()}" if message.extras and len(message.extras) <= 8 else ""
    return f"{name} vb {message.number}{shown}"
