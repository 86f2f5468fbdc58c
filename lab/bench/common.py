"""Measuring and reporting, shared by all benches.

A bench module has `run(quick: bool) -> dict`, made with `report(...)`. All of them keep these rules:
- Every figure has its baseline, measured in the same process and run.
- CPU seconds instead of wall time, medians instead of means, and subject and baseline take turns, because machines are
  noisy and noise comes in stretches.
- A value that cannot be measured is left out (the runner reports it as missing), never reported as 0.
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
"""Size of the copy that is the baseline of CPU-bound rates: far larger than every cache."""

REPEATS = 7
"""Default rounds of a measurement; odd, so that the median is one of them."""

QUICK_REPEATS = 3
"""Rounds with --quick."""


def repeats_for(quick: bool) -> int:
    """The number of rounds."""
    return QUICK_REPEATS if quick else REPEATS


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured value.

    Attributes:
        name: dotted, part first: `decode.256`.
        value: median over the rounds.
        unit: of the value: `M msg/s`, `GB/s`, `s`, `B`, `CPU s`, `ratio`.
        baseline: name of the baseline, or "" without one.
        baseline_value: median of the baseline in the same unit, or None.
        repeats: number of rounds of the medians.
        samples: the value of every round, in order, or empty.
        note: conditions that a reader must know.
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
    """The report of a bench.

    Args:
        figures: all measured values.
        ratios: the named results for goals and comparisons, e.g. `{"decode.256.of_memcpy": 0.15}`, including values
            that are not ratios (`node_start_s`). None counts as missing.
        missing: name → reason why it could not be measured.
    """
    return {
        "figures": [asdict(figure) | {"ratio": figure.ratio, "samples": list(figure.samples)} for figure in figures],
        "ratios": {name: value for name, value in ratios.items() if value is not None},
        "missing": dict(missing or {}) | {name: "not measured" for name, value in ratios.items() if value is None},
    }


@dataclass(frozen=True, slots=True)
class Timing:
    """The durations of a call, by round.

    Attributes:
        cpu_s: CPU seconds of this process (user and system, all threads), one per round.
        wall_s: wall seconds, one per round.
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
        """`amount` per CPU second, one value per round."""
        return tuple(amount / max(seconds, 1e-9) for seconds in self.cpu_s)


def measure_in_turns(*calls: Callable[[], object], repeats: int = REPEATS, warm_ups: int = 1) -> tuple[Timing, ...]:
    """Time several calls in turns (A B A B …), so that a slow stretch affects all of them.

    The garbage collector is off during a call and runs between calls. A call shorter than 20 ms should loop.

    Returns: one `Timing` per call, in the given order.
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
    """A call that copies `size` bytes between two buffers whose pages are mapped (numpy's memcpy)."""
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
    """CPU seconds (user and system) that another process has used so far, exact to nanoseconds. Linux."""
    # What the C library's clock_getcpuclockid makes of a process id; /proc has the time in ticks of 10 ms only.
    return time.clock_gettime(~pid << 3 | 2)


def resident_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (this one by default). Linux."""
    pages = Path(f"/proc/{pid or 'self'}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
