"""The table of `make bench` in the documentation: every goal, quiet and beside busy programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.bench.goals import GOALS
from lab.layout import ROOT
from lab.tools.wrap_markdown import wrapped

PAGE = ROOT / "docs" / "explanation" / "performance.md"
FIRST, LAST = "<!-- figures: make bench -->", "<!-- end of the figures -->"


def figures(results: Mapping[str, Any]) -> str:
    """The facts of a run and its table of goals, in Markdown."""
    facts, busy = results["machine"], results.get("under_load", {"programs": 0, "ratios": {}})
    load = facts.get("load_at_start", [0.0])[0]
    beside = f", and once more, quickly, beside {busy['programs']} busy programs" if busy["ratios"] else ""
    facts_line = (
        f"`make bench` on {results['when'][:10]}{beside}. {facts['cpu']}, {facts['cores']} cores, Python "
        f"{results['versions']['python']}, pyarrow {results['versions']['pyarrow']}; load average {load:.1f} at the "
        "start."
    )
    lines = [
        wrapped(facts_line),
        "",
        "| what | quiet | beside busy programs | goal |",
        "| --- | --- | --- | --- |",
    ]
    for goal in GOALS:
        value = results["ratios"].get(goal.name)
        if value is None or goal.limit is None:
            continue
        missed = "" if goal.is_reached(value) else ", not reached"
        other = f"{busy['ratios'][goal.name]:.3g}" if goal.name in busy["ratios"] else "-"
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        lines.append(f"| {goal.meaning} | {shown} | {other} | {goal.limit_text}{missed} |")
    return "\n".join(lines)


def with_figures(text: str, results: Mapping[str, Any]) -> str:
    """The page with the figures of a run in their place.

    Raises:
        ValueError: the page has no place for them.
    """
    before, first, rest = text.partition(FIRST)
    _, last, after = rest.partition(LAST)
    if not last:
        raise ValueError(f"the page has no lines {FIRST} and {LAST}")
    return f"{before}{first}\n\n{figures(results)}\n\n{last}{after}"


def write(results: Mapping[str, Any]) -> None:
    """Write the figures of a run into the page."""
    PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
