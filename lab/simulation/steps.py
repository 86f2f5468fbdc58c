"""Steps of a move, as they pass between the orchestrator and nodes: the moments at which trouble does most harm.

A `Step` is an order of the orchestrator that has just left it. Its node does not have it yet, so what a scenario does
now happens before, and what it delays, the order among it, happens later than usual.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from lab.simulation.cluster import SimulatedCluster
from lab.simulation.judges import frames
from lab.simulation.lines import Line

ACTIVE = 1
TAKEOVER = 1
"""A flag of ADD_STREAM."""
NAMES = (
    "both chains decide",
    "the new chain decides",
    "a takeover is ordered",
    "a takeover goes on",
    "a takeover ends",
    "a copy is deleted",
    "a stream is closed",
    "the map is sent",
)


@dataclass(slots=True)
class Step:
    """One order.

    Attributes:
        name: one of `NAMES`.
        vbid: of the vbucket; meaningless for a map.
        line: over which the order flies.
        chains: that the order names: one, or two while a vbucket moves.
    """

    name: str
    vbid: int
    line: Line
    chains: list[list[str | None]]


class Steps:
    """Waits for a step.

    Args:
        cluster: whose orchestrator is watched, until the step has come.
        name: of the step.
        number: how many of that name must come, from 1.

    Attributes:
        found: the step; None until it has come.
    """

    def __init__(self, cluster: SimulatedCluster, name: str, number: int) -> None:
        self._cluster = cluster
        self._name = name
        self._left = number
        self.found: Step | None = None
        cluster.lines.left = self._look

    def _look(self, line: Line, data: bytes) -> None:
        if line.name != "orchestrator":
            return
        for message in frames.cut(data):
            if not message.is_response and name_of(message) == self._name:
                self._left -= 1
                if not self._left:
                    chains = json.loads(message.value)["topology"] if message.opcode == frames.SET_VBUCKET else []
                    self.found = Step(self._name, message.number, line, chains)
                    self._cluster.lines.left = None
                    return


def name_of(message: frames.Message) -> str:
    """The step that an order is; empty if it is none."""
    opcode, extras = message.opcode, message.extras
    if opcode == frames.SET_VBUCKET:
        if extras[0] != ACTIVE:
            return ""
        return "both chains decide" if message.value.count(b"[") > 2 else "the new chain decides"
    if opcode == frames.ADD_STREAM:
        return "a takeover is ordered" if int.from_bytes(extras, "big") & TAKEOVER else ""
    if opcode == frames.HAND_OVER:
        return "a takeover ends" if extras[0] == ACTIVE else "a takeover goes on"
    return {
        frames.DELETE_VBUCKET: "a copy is deleted",
        frames.CLOSE_STREAM: "a stream is closed",
        frames.SET_MAP: "the map is sent",
    }.get(opcode, "")
