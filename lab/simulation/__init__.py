"""Whole clusters on virtual time: nodes, their orchestrator, readers and judges, repeatable by seed.

`SimulatedCluster` has `SimulatedNode`s (`dcpstream_node.testing.simulation`), the orchestrator, and `Lines` over which
their bytes pass in an order that a seed decides. `SimulatedReader` is a client of it. `Judge` and `TableJudge` watch
and compare. A `scenario` plays all of them from one seed; `python -m lab.simulation` plays many.
"""

from __future__ import annotations

from lab.simulation.cluster import SimulatedCluster
from lab.simulation.judges import Judge, TableJudge, Violation
from lab.simulation.lines import Line, Lines
from lab.simulation.reader import SimulatedReader
from lab.simulation.scenario import Report, play

__all__ = [
    "Judge",
    "Line",
    "Lines",
    "Report",
    "SimulatedCluster",
    "SimulatedReader",
    "TableJudge",
    "Violation",
    "play",
]
