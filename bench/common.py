"""How the benches measure, and the shape in which they hand over what they measured.

A bench module has `run(quick: bool) -> dict`, made with `report(...)`. Rules that all of them keep:
- every figure stands beside its baseline, measured in the same process within the same run;
- CPU seconds rather than wall time, medians rather than means, subject and baseline taking turns, because machines are
  noisy and noise comes in stretches;
- what cannot be measured is left out (the runner reports it as missing), never given as 0.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEMCPY_BYTES = 64 * 1024 * 1024
"""Size of the copy that CPU-bound rates are compared with: far beyond every cache."""

REPEATS = 7
"""Rounds of a measurement by default; odd, so that the median is one of them."""

QUICK_REPEATS = 3
"""Rounds with --quick."""


def repeats_for(quick: bool) -> int:
    """How many rounds to run."""
    return QUICK_REPEATS if quick else REPEATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value.

    Attributes:
        name: dotted, part first: `decode.256`.
        value: median over the rounds.
        unit: of the value: `M msg/s`, `GB/s`, `s`, `B`, `CPU s`, `ratio`.
        baseline: what it is compared with, in words, or "" if it stands alone.
        baseline_value: median of the baseline in the same unit, or None.
        repeats: how many rounds the medians are taken over.
        samples: every round's value in the order measured, or empty.
        note: what a reader must know to read it right.
    """

    name: str
    value: float
    unit: str
    baseline: str = ""
    baseline_value: float | None = None
    repeats: int = 1
    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value of baseline, or None without one."""
        return self.value / self.baseline_value if self.baseline_value else None


def report(
    figures: Sequence[Figure], ratios: dict[str, float | None], *, missing: dict[str, str] | None = None
) -> dict[str, Any]:
    """What a bench hands over.

    Args:
        figures: all that was measured.
        ratios: the named results that goals and comparisons use, e.g. `{"decode.256.of_memcpy": 0.15}`. Also those that
            are no ratios by nature (`node_start_s`). None counts as missing.
        missing: name → why it could not be measured.
    """
    return {
        "figures": [asdict(figure) | {"ratio": figure.ratio, "samples": list(figure.samples)} for figure in figures],
        "ratios": {name: value for name, value in ratios.items() if value is not None},
        "missing": dict(missing or {}) | {name: "not measured" for name, value in ratios.items() if value is None},
    }


@dataclass(frozen=True, slots=True)
class Timing:
    """What a call took in each round.

    Attributes:
        cpu_s: CPU seconds of this process (user and system, all its threads), one a round.
        wall_s: wall seconds, one a round.
    """

    cpu_s: tuple[float, ...]
    wall_s: tuple[float, ...]

    @property
    def cpu(self) -> float:
        """Median CPU seconds."""
        return statistics.median(self.cpu_s)

    @property
    def wall(self) -> float:
        """Median wall seconds."""
        return statistics.median(self.wall_s)

    @property
    def repeats(self) -> int:
        """Number of rounds."""
        return len(self.cpu_s)

    def cpu_rates(self, amount: float) -> tuple[float, ...]:
        """`amount` per CPU second, one a round."""
        return tuple(amount / max(seconds, 1e-9) for seconds in self.cpu_s)


def measure_in_turns(*calls: Callable[[], object], repeats: int = REPEATS, warm_ups: int = 1) -> tuple[Timing, ...]:
    """Time several calls, taking turns: A B A B …, so that a slow stretch hits all of them alike.

    The garbage collector is off during a call and runs between calls. A call shorter than 20 ms should loop.

    Returns: one `Timing` a call, in the order given.
    """
    for call in calls:
        for _ in range(warm_ups):
            call()
    cpu: list[list[float]] = [[] for _ in calls]
    wall: list[list[float]] = [[] for _ in calls]
    was_enabled = gc.isenabled()
    try:
        for _ in range(repeats):
            for index, call in enumerate(calls):
                gc.collect()
                gc.disable()
                wall_start, cpu_start = time.perf_counter(), time.process_time()
                call()
                cpu[index].append(time.process_time() - cpu_start)
                wall[index].append(time.perf_counter() - wall_start)
    finally:
        if was_enabled:
            gc.enable()
    return tuple(Timing(tuple(a), tuple(b)) for a, b in zip(cpu, wall, strict=True))


def measure(call: Callable[[], object], repeats: int = REPEATS, warm_ups: int = 1) -> Timing:
    """Time one call alone."""
    return measure_in_turns(call, repeats=repeats, warm_ups=warm_ups)[0]


def memcpy_call(size: int = MEMCPY_BYTES) -> Callable[[], None]:
    """A call that copies `size` bytes once between two buffers whose pages are all there (numpy's memcpy)."""
    import numpy as np

    source = np.full(size, 7, dtype=np.uint8)
    target = np.zeros(size, dtype=np.uint8)

    def copy() -> None:
        np.copyto(target, source)

    return copy


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def median_of_ratios(subject: Sequence[float], baseline: Sequence[float]) -> float:
    """Median over the rounds of subject ÷ baseline of the same round (rounds measured in turns)."""
    return statistics.median(a / b for a, b in zip(subject, baseline, strict=True))


def cpu_seconds_of(pid: int) -> float:
    """CPU seconds (user and system) that another process has used so far. Linux."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (this one by default). Linux."""
    pages = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
