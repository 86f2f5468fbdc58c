"""Play seeds: `python -m lab.simulation --seeds 1000`, or one again: `--seed 17`.

The last line is `sim: <n> seeds, <m> failures`; exit status 0 if there are none. A failure prints its seed, the command
that replays it, and the end of its trace.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lab.simulation.scenario import Report, play

TRACE_LINES = 60
"""Lines of a failure's trace that are printed; `--trace` prints all of one seed."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to play (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--seed", type=int, action="append", help="play this seed alone; may be given several times")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of every seed")
    parser.add_argument("--stop", action="store_true", help="stop at the first failure")
    parser.add_argument("--counts", action="store_true", help="say how much of what was done")
    return parser.parse_args(arguments)


def played(seeds: Iterable[int], jobs: int) -> Iterator[Report]:
    """The reports of seeds, in their order."""
    if jobs < 2:
        yield from map(play, seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(play, seeds, chunksize=8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds; the exit status."""
    options = parse(arguments)
    seeds = options.seed or range(options.first, options.first + options.seeds)
    count = failures = 0
    totals: Counter[str] = Counter()
    for report in played(seeds, options.jobs):
        count += 1
        totals.update(report.counts)
        if report.failure or options.trace:
            show(report, is_whole=options.trace)
        if report.failure:
            failures += 1
            if options.stop:
                break
    if options.counts:
        for name, total in sorted(totals.items()):
            print(f"{total:10d} {name}")
    print(f"sim: {count} seeds, {failures} failures")
    return 1 if failures else 0


def show(report: Report, *, is_whole: bool) -> None:
    """Print a seed's failure and trace, which a second run writes."""
    trace = play(report.seed, is_traced=True).trace
    if not is_whole and len(trace) > TRACE_LINES:
        print(f"seed {report.seed}: the last {TRACE_LINES} of {len(trace)} steps")
        trace = trace[-TRACE_LINES:]
    print("\n".join(trace))
    if report.failure:
        print(f"seed {report.seed} failed: {report.failure}")
        print(f"replay: python -m lab.simulation --seed {report.seed}")


if __name__ == "__main__":
    sys.exit(main())
