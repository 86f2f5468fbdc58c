from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lab.bench import peer_nodes
from lab.bench.peer_nodes import WORK, Cost, measured, table


class Orders:
    """An SDK's process that is never started; it notes its orders."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def order(self, name: str, count: int, window: int) -> float:
        self.given.append(f"{name} {window}")
        return count * 5e-6


def test_the_first_round_is_not_counted(monkeypatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(peer_nodes, "cpu_seconds_of", lambda _pid: float(next(clock)))
    node, sdk = SimpleNamespace(name="ours", pid=1), Orders()
    pairs: list[tuple[Any, Any]] = [(node, sdk)]
    found = measured(pairs, rounds=3)["ours"]
    name, count, window = WORK[0]
    cost = found[f"{name} {window}"]
    assert len(sdk.given) == 4 * len(WORK)
    assert cost.cpu == [1e6 / count] * 3
    assert cost.wall == [5.0] * 3


def test_the_table_has_medians(monkeypatch) -> None:
    monkeypatch.setattr(peer_nodes, "resident_bytes", lambda _pid: 77_000_000)
    costs = {f"{name} {window}": Cost([1.0, 9.0, 2.0], [30.0, 20.0, 10.0]) for name, _, window in WORK}
    node = SimpleNamespace(name="ours", version="1", started_s=0.25, pid=1)
    lines = table([node], {"ours": costs}, ["CouchbaseMock (no java)"])
    assert lines[2].startswith("| ours | 1 | 0.2 | 77 | 2.0 (20) |")
    assert lines[-1] == "Left out: CouchbaseMock (no java)."
