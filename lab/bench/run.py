"""Run the benches, print the table, write `lab/bench/results.json`.

Each part runs in a process of its own, so that memory, garbage and threads of one part do not affect the next, and a
failure costs only the figures of its part. What a part has written is on the disk before the next one begins.

With `--under-load`, each part runs once more, quickly, while programs use the processors and the memory. Those results
are apart, under `under_load`: they show what is left on a busy machine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from lab.bench import page
from lab.bench.goals import GOALS, PARTS

RESULTS = Path(__file__).with_name("results.json")
PART_TIMEOUT_S = 900
"""Time limit of a part; beyond it, the part is stopped and reported as missing."""

LOAD = """
import os, sys
block, runner = bytearray(16 * 1024 * 1024), int(sys.argv[1])
while os.getppid() == runner:
    for _ in range(200_000):
        pass
    bytes(block)
"""
"""A busy neighbour: it computes, and every few milliseconds it writes more memory than the caches hold.

It ends with the runner, also with one that was killed.
"""

PACKAGES = ("dcpstream", "numpy", "pyarrow", "pyspark", "deltalake", "aiohttp", "cramjam")


@click.command()
@click.option("--quick", is_flag=True, help="Fewer rounds and less data: to see that it works, not to quote.")
@click.option("--only", "only", multiple=True, type=click.Choice(PARTS), help="Only this part (may be repeated).")
@click.option("--under-load", type=click.IntRange(0), default=0, help="Measure again, while so many programs are busy.")
@click.option("--output", type=click.Path(path_type=Path), default=RESULTS, show_default="lab/bench/results.json")
@click.option("--part", type=click.Choice(PARTS), hidden=True, help="Run one part in this process, for the runner.")
@click.option("--part-output", type=click.Path(path_type=Path), hidden=True)
def main(
    quick: bool, only: tuple[str, ...], under_load: int, output: Path, part: str | None, part_output: Path | None
) -> None:
    """Measure dcpstream against baselines of the same run."""
    if part is not None:
        assert part_output is not None
        part_output.write_text(json.dumps(run_part(part, quick)), encoding="utf-8")
        return
    parts = only or PARTS
    started, load = time.monotonic(), os.getloadavg()
    outcomes = run_parts(parts, quick)
    results = assemble(outcomes, quick=quick, seconds=time.monotonic() - started)
    results["machine"]["load_at_start"] = [round(value, 2) for value in load]
    write(results, output)  # the second half takes as long as the first, and may be interrupted
    if under_load:
        started = time.monotonic()
        with busy_programs(under_load):
            outcomes = run_parts(parts, quick=True)
        busy = assemble(outcomes, quick=True, seconds=time.monotonic() - started)
        shown = ("seconds", "ratios", "missing")
        results["under_load"] = {"programs": under_load} | {name: busy[name] for name in shown}
        write(results, output)
    if output == RESULTS and not quick and not only:
        page.write(results)
    click.echo(table(results))
    click.echo(f"\nwritten to {output}")


def write(results: Mapping[str, Any], output: Path) -> None:
    """Write the results to a file."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def run_parts(parts: Sequence[str], quick: bool) -> dict[str, dict[str, Any]]:
    """The reports of these parts, one after the other."""
    outcomes: dict[str, dict[str, Any]] = {}
    for name in parts:
        click.echo(f"== {name}", err=True)
        os.sync()
        outcomes[name] = run_part_in_child(name, quick)
    return outcomes


@contextlib.contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many programs that never rest, each in a session of its own, as those of other users are."""
    command = [sys.executable, "-c", LOAD, str(os.getpid())]
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def run_part(name: str, quick: bool) -> dict[str, Any]:
    """One part's report, or `{"error": reason}`."""
    try:
        module = importlib.import_module(f"lab.bench.{name}")
    except ModuleNotFoundError as error:
        if error.name == f"lab.bench.{name}":
            return {"error": f"lab/bench/{name}.py does not exist"}
        return {"error": f"lab/bench/{name}.py cannot be imported: {error}"}
    try:
        result: dict[str, Any] = module.run(quick)
    except Exception as error:  # noqa: BLE001 - whatever a part raises is its result
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    return result


def run_part_in_child(name: str, quick: bool, timeout_s: float = PART_TIMEOUT_S) -> dict[str, Any]:
    """One part's report from a child process, which has its own process group with all that it starts."""
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "part.json"
        command = [sys.executable, "-m", "lab.bench", "--part", name, "--part-output", str(answer)]
        # Output of a part goes to standard error; standard output has the table.
        child = subprocess.Popen(
            command + (["--quick"] if quick else []),
            cwd=Path(__file__).parents[2],
            stdout=sys.stderr,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {timeout_s:g} s"}
        finally:
            _end_group(child)
        if not answer.exists():
            return {"error": f"ended with exit status {code}"}
        result: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return result


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """Kill the rest of the child's process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def assemble(outcomes: Mapping[str, Mapping[str, Any]], *, quick: bool, seconds: float) -> dict[str, Any]:
    """The reports of all parts as one document; goals without a measurement are under `missing`."""
    ratios: dict[str, float] = {}
    missing: dict[str, str] = {}
    figures: list[dict[str, Any]] = []
    for outcome in outcomes.values():
        ratios |= outcome.get("ratios", {})
        missing |= outcome.get("missing", {})
        figures += outcome.get("figures", [])
    for goal in GOALS:
        if goal.name not in ratios and goal.part in outcomes:
            why = outcomes[goal.part].get("error")
            missing[goal.name] = why or missing.get(goal.name) or f"lab/bench/{goal.part}.py does not measure it"
    for name, outcome in outcomes.items():
        if "error" in outcome and not any(goal.part == name for goal in GOALS):
            missing[name] = outcome["error"]
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": round(seconds, 1),
        "machine": machine(),
        "versions": versions(),
        "ratios": ratios,
        "goals": {goal.name: goal.limit_text for goal in GOALS if goal.limit is not None},
        "missing": missing,
        "figures": figures,
    }


def machine() -> dict[str, Any]:
    """The machine."""
    return {
        "cpu": _first_line_after("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory": _first_line_after("/proc/meminfo", "MemTotal"),
        "system": platform.platform(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _first_line_after(path: str, name: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Versions of Python and of the relevant packages."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def table(results: Mapping[str, Any]) -> str:
    """The document for people."""
    facts = results["machine"]
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory']}, {facts['system']}",
        ", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        "load average (ours included): "
        + ", ".join(
            f"{facts[name][0]} {words}"
            for name, words in (("load_at_start", "at the start"), ("load_average", "at the end"))
            if name in facts
        ),
    ]
    if results["quick"]:
        lines.append("quick run: few rounds, little data; not for quoting")
    rows = [("figure", "value", "unit", "baseline", "of it", "rounds")]
    for figure in results["figures"]:
        baseline = figure["baseline"]
        if figure["baseline_value"] is not None:
            baseline += f": {_number(figure['baseline_value'])}"
        ratio = _number(figure["ratio"]) if figure["ratio"] is not None else ""
        rows.append((figure["name"], _number(figure["value"]), figure["unit"], baseline, ratio, str(figure["repeats"])))
    lines += ["", *columns(rows)]
    lines += ["", *columns(_result_rows(results))]
    return "\n".join(lines)


def _result_rows(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    busy = results.get("under_load", {"programs": 0, "ratios": {}})
    heading = f"with {busy['programs']} busy" if busy["ratios"] else ""
    rows: list[tuple[str, ...]] = [("result", "value", heading, "goal", "", "what")]
    named = {goal.name: goal for goal in GOALS}
    for name, value in results["ratios"].items():
        goal = named.get(name)
        loaded = _number(busy["ratios"][name]) if name in busy["ratios"] else ""
        if goal is None:
            rows.append((name, _number(value), loaded, "-", "", ""))
            continue
        verdict = {True: "reached", False: "short", None: ""}[goal.is_reached(value)]
        rows.append((name, _number(value), loaded, goal.limit_text, verdict, goal.meaning))
    for name, why in results["missing"].items():
        rows.append((name, "missing", "", named[name].limit_text if name in named else "-", "", why))
    return rows


def _number(value: float) -> str:
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2e}"


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Rows as lines with aligned cells."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


if __name__ == "__main__":
    main()
