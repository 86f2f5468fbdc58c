"""The picture of a run: rates, lag, and the flights by carrier from the table `current`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dcpstream_demo.watch import History

CARRIERS_SHOWN = 12
"""Carriers in the third panel; the file has 16, some with a handful of flights."""

LABEL_ROOM = 1.45
"""Height of the upper panel, as a multiple of the highest curve: the longest name of an event takes 30 % of it."""

LABEL_WIDTH = 0.018
"""Width of an event's name, which stands upright, as a share of the panel."""

_INK = "#1b1f24"
_WRITTEN = "#0b6e99"
_TABLES = "#e07a1f"
_LAG = "#7a3b9a"
_EVENT = "#b3261e"


@dataclass(frozen=True, slots=True)
class CarrierRow:
    """One carrier in the table: flights, and their mean arrival delay in minutes (None if none has landed)."""

    carrier: str
    flights: int
    delay_min: float | None


def carrier_rows(values: Iterable[bytes]) -> list[CarrierRow]:
    """Flights and mean delay of each carrier, most flights first."""
    flights: dict[str, int] = defaultdict(int)
    delays: dict[str, list[int]] = defaultdict(list)
    for value in values:
        document = json.loads(value)
        flights[document["carrier"]] += 1
        if document.get("arrival_delay") is not None:
            delays[document["carrier"]].append(document["arrival_delay"])
    return [
        CarrierRow(carrier, count, sum(delays[carrier]) / len(delays[carrier]) if delays[carrier] else None)
        for carrier, count in sorted(flights.items(), key=lambda item: (-item[1], item[0]))
    ]


def label_times(events: Sequence[tuple[float, str]], end: float) -> list[float]:
    """Times at which the names of events stand: their own, or further right where two would overlap."""
    times: list[float] = []
    for at_s, _ in events:
        times.append(max(at_s, times[-1] + LABEL_WIDTH * end) if times else at_s)
    return times


def draw(path: Path, history: History, carriers: Sequence[CarrierRow], title: str) -> Path:
    """Write the picture as PNG; returns its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "text.color": _INK})
    figure = plt.figure(figsize=(12, 7), constrained_layout=True)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.7, 1))
    rates, lag, delays = (
        figure.add_subplot(grid[0, 0]),
        figure.add_subplot(grid[1, 0]),
        figure.add_subplot(grid[:, 1]),
    )
    thousands = FuncFormatter(lambda value, _: f"{value:,.0f}")

    points = history.rates()
    times = [point[0] for point in points]
    rates.plot(times, [point[1] for point in points], color=_WRITTEN, lw=1.6, label="written to the node")
    rates.plot(times, [point[2] for point in points], color=_TABLES, lw=1.6, label="arrived in both tables")
    rates.set_ylabel("changes per second")
    rates.yaxis.set_major_formatter(thousands)
    rates.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False, borderaxespad=0.2)
    # Room above the curves for the names of events.
    rates.set_ylim(0, LABEL_ROOM * max([1.0, *(rate for point in points for rate in point[1:])]))

    lags = history.lags_s()
    lag.plot([point[0] for point in lags], [point[1] for point in lags], color=_LAG, lw=1.6)
    lag.set_ylabel("lag of the tables, seconds")
    lag.set_xlabel("seconds since the start")
    lag.set_ylim(bottom=0)
    end = max([*times, *(point[0] for point in lags), 1.0])
    for axes in (rates, lag):
        axes.set_xlim(0, end)
        axes.grid(axis="y", color="#d8dee4", lw=0.6)
        for (at_s, what), label_at_s in zip(history.events, label_times(history.events, end), strict=True):
            axes.axvline(at_s, color=_EVENT, lw=0.9, ls="--")
            if axes is rates:
                axes.annotate(
                    what,
                    (label_at_s, 1),
                    xycoords=("data", "axes fraction"),
                    xytext=(3, -3),
                    textcoords="offset points",
                    rotation=90,
                    va="top",
                    fontsize=7.5,
                    color=_EVENT,
                    bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
                )

    shown = list(carriers[:CARRIERS_SHOWN])[::-1]
    bars = delays.barh([row.carrier for row in shown], [row.flights for row in shown], color=_WRITTEN)
    delays.set_title("flights by carrier, and mean arrival delay\n(from the table current)", loc="left", fontsize=9)
    delays.xaxis.set_major_formatter(thousands)
    for bar, row in zip(bars, shown, strict=True):
        text = "-" if row.delay_min is None else f"{row.delay_min:+.1f} min"
        delays.annotate(
            text,
            (bar.get_width(), bar.get_y() + bar.get_height() / 2),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    delays.margins(x=0.18)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=_INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
