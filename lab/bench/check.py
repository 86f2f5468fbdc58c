"""Compare with stored ratios: has something become more than 15 % slower?

python -m lab.bench.check [--only PART …] [--store]

The stored ratios are `lab/bench/expected.json`, with the machine that they were measured on. They are ratios to
baselines of the same run, in CPU time, so another machine and other load change them less than seconds; still, compare
on the machine that is named, or store again. A part that falls behind is measured again, because noise mostly makes
code slower: the best of all attempts counts. What is stored is the median of as many measurements.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from lab.bench.common import median
from lab.bench.goals import GOALS
from lab.bench.run import machine, run_part_in_child, versions

EXPECTED = Path(__file__).with_name("expected.json")
LOSS_MAX = 0.15
"""Share of CPU time that a figure may lose."""
ATTEMPTS = 3
COMPARED: Mapping[str, tuple[str, ...]] = {
    "decode": ("decode.64.of_memcpy", "decode.256.of_memcpy", "decode.1024.of_memcpy"),
    "send": ("send.256.of_bare", "send.1024.of_bare", "send.256.superseded.of_bare"),
    "client": ("client.256.of_receive", "client.1024.of_receive"),
    "ingest": ("ingest.per_op.of_scan", "ingest.bulk.of_scan"),
    "over_socket": ("over_socket.insert.1.of_bare", "over_socket.insert.50.of_bare", "over_socket.get.50.of_bare"),
}
"""Part → its compared ratios."""
IS_COST = frozenset(goal.name for goal in GOALS if goal.at_most) | frozenset(COMPARED["over_socket"])
"""Ratios of which less is better."""

Measure = Callable[[str], Mapping[str, Any]]


def loss(name: str, value: float, expected: float) -> float:
    """The share of CPU time by which a ratio is worse than the expected one; negative if it is better."""
    return (value / expected if name in IS_COST else expected / value) - 1


def best(name: str, values: Sequence[float]) -> float:
    """The best of several measurements."""
    return min(values) if name in IS_COST else max(values)


def compare(
    parts: Sequence[str], expected: Mapping[str, float], measure: Measure
) -> tuple[dict[str, float], list[str]]:
    """The best ratios of each part, and a line for each that lost too much or is missing.

    Args:
        measure: runs a part and returns its report.
    """
    found: dict[str, list[float]] = {}
    wrong: list[str] = []
    for part in parts:
        names = COMPARED[part]
        for _ in range(ATTEMPTS):
            outcome = measure(part)
            for name in names:
                if name in outcome.get("ratios", {}):
                    found.setdefault(name, []).append(outcome["ratios"][name])
            if all(name in found and not _is_behind(name, found[name], expected) for name in names):
                break
        for name in names:
            if name not in found:
                wrong.append(_missing(name, outcome))
            elif _is_behind(name, found[name], expected):
                value = best(name, found[name])
                lost = loss(name, value, expected[name])
                wrong.append(f"{name}: {value:.3g}, expected {expected[name]:.3g}: {lost:.0%} more CPU time")
    return {name: best(name, values) for name, values in found.items()}, wrong


def typical(parts: Sequence[str], measure: Measure) -> tuple[dict[str, float], list[str]]:
    """The medians of `ATTEMPTS` measurements of each ratio, and a line for each that is missing.

    A single lucky measurement, stored, would make the next ones look slow.
    """
    found: dict[str, float] = {}
    wrong: list[str] = []
    for part in parts:
        outcomes = [measure(part) for _ in range(ATTEMPTS)]
        for name in COMPARED[part]:
            values = [outcome["ratios"][name] for outcome in outcomes if name in outcome.get("ratios", {})]
            if values:
                found[name] = median(values)
            else:
                wrong.append(_missing(name, outcomes[-1]))
    return found, wrong


def _missing(name: str, outcome: Mapping[str, Any]) -> str:
    return f"{name}: not measured: {outcome.get('error', 'the part does not report it')}"


def _is_behind(name: str, values: Sequence[float], expected: Mapping[str, float]) -> bool:
    return name in expected and loss(name, best(name, values), expected[name]) > LOSS_MAX


@click.command()
@click.option("--only", "only", multiple=True, type=click.Choice(tuple(COMPARED)), help="Only this part.")
@click.option("--store", is_flag=True, help="Store what is measured as the expected ratios, and compare nothing.")
@click.option("--expected", "path", type=click.Path(path_type=Path), default=EXPECTED, hidden=True)
def main(only: tuple[str, ...], store: bool, path: Path) -> None:
    """Measure quickly and fail if a figure lost more than 15 % of CPU time against the stored ratios."""
    parts = only or tuple(COMPARED)
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"ratios": {}}

    def measure(part: str) -> Mapping[str, Any]:
        return run_part_in_child(part, True)

    found, wrong = typical(parts, measure) if store else compare(parts, stored["ratios"], measure)
    here = machine()
    for name, value in found.items():
        was = stored["ratios"].get(name)
        click.echo(f"{name:34} {value:8.3g}" + (f"   stored {was:8.3g}" if was is not None else "   not stored"))
    if store:
        ratios = stored["ratios"] | {name: round(value, 4) for name, value in found.items()}
        document = {"machine": here, "versions": versions(), "ratios": dict(sorted(ratios.items()))}
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        click.echo(f"stored in {path}")
    elif stored.get("machine", {}).get("cpu") != here["cpu"]:
        click.echo(f"the stored ratios are of another machine: {stored.get('machine', {}).get('cpu')}")
    for line in wrong:
        click.echo(line, err=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
