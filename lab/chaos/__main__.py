"""Play rounds: `python -m lab.chaos [--rounds 20] [--seed N] [--sinks delta-rs,delta,parquet]`.

Each round has a seed of its own; `--rounds 1 --seed N` plays the round N again. A round that differs is printed and
counted, and the series goes on. Several series can run side by side, with seeds that are far apart.

The last line is `chaos: <n> rounds, <m> differences`; exit status 0 if there are none.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from lab.chaos.host import CLUSTER, SINKS, Host, RemoteHost
from lab.chaos.plain import PlainHost
from lab.chaos.rounds import Result, play
from lab.chaos.scenario import DRIVER, EXECUTORS_SHARE, SPARK, Draw, Scenario, draw
from lab.layout import PACKAGES

ROUNDS = 20
SEED_BITS = 31


class Hosts:
    """The hosts of a series, each started when a round needs it.

    Args:
        folder: for the logs.
        is_plain: without Spark.
    """

    def __init__(self, folder: Path, *, is_plain: bool) -> None:
        self._folder = folder
        self._is_plain = is_plain
        self._remote: dict[bool, RemoteHost] = {}

    def __getitem__(self, has_executors: bool) -> Host:
        """The host for rounds with or without executors."""
        if self._is_plain:
            return PlainHost()
        if has_executors not in self._remote:
            log = self._folder / f"spark-{len(self._remote)}.log"
            self._remote[has_executors] = RemoteHost(log, master=CLUSTER if has_executors else "")
        return self._remote[has_executors]

    def close(self) -> None:
        """Kill all."""
        for host in self._remote.values():
            host.close()


@dataclass
class Series:
    """The results of the rounds so far.

    Args:
        rounds: how many there will be.
        arguments: further ones that the rounds depend on.
    """

    rounds: int
    arguments: str = ""
    begin: float = field(default_factory=time.monotonic)
    differences: int = 0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    memory_mb: list[int] = field(default_factory=list)

    @property
    def played(self) -> int:
        """The number of rounds that were played."""
        return sum(map(len, self.seconds.values()))

    def add(self, scenario: Scenario, result: Result) -> None:
        """Count a round, and print it."""
        kind = f"{scenario.sink}{' executors' if scenario.has_executors else ''}"
        self.seconds.setdefault(kind, []).append(result.seconds)
        self.differences += len(result.differences)
        self.happened += result.happened
        self.happened["control row of a rollback"] += result.rollbacks
        self.memory_mb.append(_memory_mb())
        rate = (time.monotonic() - self.begin) / self.played
        print(
            f"{self.played}/{self.rounds} {scenario.seed} {kind} {'DIFFERS' if result.differences else 'ok'}: "
            f"{result.seconds:.1f} s, {result.batches} batches, {result.rows} rows, {result.rollbacks} rollbacks, "
            f"{result.ends} ends; {rate:.1f} s a round, {rate * (self.rounds - self.played) / 60:.0f} min left, "
            f"{self.differences} differences",
            flush=True,
        )
        if result.differences:
            for line in scenario.lines():
                print(f"  {line}")
            print("  what happened:", *result.events, sep="\n    ")
            print("  differences:", *result.differences, sep="\n    ")
            again = f' ARGS="{self.arguments}"' if self.arguments else ""
            print(f"  to play it again: make chaos ROUNDS=1 SEED={scenario.seed}{again}", flush=True)

    def report(self) -> None:
        """All rounds together."""
        for kind, seconds in sorted(self.seconds.items()):
            print(f"{kind}: {len(seconds)} rounds, median {statistics.median(seconds):.1f} s, max {max(seconds):.1f} s")
        print("what happened:", ", ".join(f"{what} {count}" for what, count in self.happened.most_common() if count))
        if self.memory_mb:
            first = self.memory_mb[: max(1, len(self.memory_mb) // 4)][-1]
            print(
                f"memory of all processes: {first} MB after a quarter of the rounds, {self.memory_mb[-1]} MB at the end"
            )
        print(f"chaos: {self.played} rounds, {self.differences} differences")


def main() -> int:
    """Play, report."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones follow it")
    parser.add_argument("--sinks", default=",".join(SINKS))
    parser.add_argument(
        "--executors", type=float, default=EXECUTORS_SHARE, help="share of the rounds in which executors are killed"
    )
    parser.add_argument("--plain", action="store_true", help="without Spark: quick, for the sinks delta-rs and parquet")
    parser.add_argument("--verbose", action="store_true", help="print what happens in every round")
    parser.add_argument("--stop", action="store_true", help="end with the first round that differs")
    arguments = parser.parse_args()
    # Nodes warn of what is done to them on purpose.
    for name in PACKAGES.values():
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    end_on_sigterm()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(SEED_BITS)
    choice = choice_of(arguments.sinks.split(","), arguments.executors, is_plain=arguments.plain)
    series = Series(arguments.rounds, _choosing(arguments))
    with tempfile.TemporaryDirectory(prefix="dcpstream-chaos-") as folder:
        hosts = Hosts(Path(folder), is_plain=arguments.plain)
        try:
            for number in range(arguments.rounds):
                scenario = draw(first + number, choice)
                result = play(
                    scenario, hosts[scenario.has_executors], print_now if arguments.verbose else lambda line: None
                )
                if arguments.verbose:
                    print("   ", ", ".join(f"{part} {seconds:.1f} s" for part, seconds in result.parts.items()))
                series.add(scenario, result)
                if result.differences and arguments.stop:
                    break
        finally:
            hosts.close()
    series.report()
    return 1 if series.differences else 0


def choice_of(sinks: list[str], executors: float, *, is_plain: bool) -> Draw:
    """The choices that the rounds are drawn from."""
    if is_plain:
        return Draw(sinks=tuple(sink for sink in sinks if sink != "delta"), spark=(("nothing", 1),))
    return Draw(sinks=tuple(sinks), spark=tuple({**SPARK, **DRIVER}.items()), executors_share=executors)


def _choosing(arguments: argparse.Namespace) -> str:
    """The arguments without which a seed gives another round."""
    found = ["--plain"] if arguments.plain else []
    if arguments.sinks != ",".join(SINKS):
        found.append(f"--sinks {arguments.sinks}")
    if arguments.executors != EXECUTORS_SHARE:
        found.append(f"--executors {arguments.executors:g}")
    return " ".join(found)


def _memory_mb() -> int:
    """Memory of this process and of all that belong to it, such as Spark's."""
    total = 0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total += process.memory_info().rss
    return total >> 20


def end_on_sigterm() -> None:
    """A terminated program ends Spark's processes, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def print_now(line: str) -> None:
    """An event of a round."""
    print(f"    {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
