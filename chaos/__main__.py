"""Play rounds: `python -m chaos [--rounds 20] [--seed N] [--sinks delta-rs,delta,parquet]`.

Each round has a seed of its own; `--rounds 1 --seed N` plays the round N again. The last line is
`chaos: <n> rounds, <m> differences`; exit status 0 if there are none.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from pathlib import Path

from chaos.host import SINKS, RemoteHost
from chaos.plain import PlainHost
from chaos.rounds import Result, play
from chaos.scenario import SPARK, Draw, Scenario, draw

ROUNDS = 20
SEED_BITS = 31


def main() -> int:
    """Play, report."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; the next ones follow it")
    parser.add_argument("--sinks", default=",".join(SINKS))
    parser.add_argument("--master", default="", help="Spark's, for example local-cluster[2,1,1024]")
    parser.add_argument("--plain", action="store_true", help="without Spark: quick, for the sinks delta-rs and parquet")
    parser.add_argument("--verbose", action="store_true", help="print what happens in every round")
    parser.add_argument("--keep-going", action="store_true", help="play all rounds, also after a difference")
    arguments = parser.parse_args()
    # Nodes warn of what is done to them on purpose.
    logging.getLogger("dcpstream").addHandler(logging.NullHandler())
    logging.getLogger("dcpstream").propagate = False
    end_on_sigterm()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(SEED_BITS)
    spark = {**SPARK, "kill_driver": 1} if not arguments.plain else {"nothing": 1}
    if arguments.master.startswith("local-cluster"):
        spark["kill_executor"] = 4
    sinks = arguments.sinks.split(",")
    choice = Draw(
        sinks=tuple(sink for sink in sinks if not arguments.plain or sink != "delta"), spark=tuple(spark.items())
    )
    differences = played = 0
    with tempfile.TemporaryDirectory(prefix="dcpstream-chaos-") as folder:
        log = Path(folder) / "spark.log"
        remote = None if arguments.plain else RemoteHost(log, master=arguments.master)
        host = remote or PlainHost()
        try:
            for number in range(arguments.rounds):
                scenario = draw(first + number, choice)
                result = play(scenario, host, print_now if arguments.verbose else lambda line: None)
                played += 1
                report(scenario, result)
                differences += len(result.differences)
                if result.differences and not arguments.keep_going:
                    break
        finally:
            if remote is not None:
                remote.close()
    print(f"chaos: {played} rounds, {differences} differences")
    return 1 if differences else 0


def end_on_sigterm() -> None:
    """A terminated program ends Spark's processes, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def print_now(line: str) -> None:
    """An event of a round."""
    print(f"    {line}", flush=True)


def report(scenario: Scenario, result: Result) -> None:
    """A line of a round; everything about it if something is wrong."""
    mark = "ok" if not result.differences else "DIFFERS"
    print(
        f"{scenario.seed} {scenario.sink:8} {mark}: {result.seconds:.1f} s, {result.batches} batches, "
        f"{result.rows} rows, {result.rollbacks} rollbacks, {result.ends} ends",
        flush=True,
    )
    print("   ", ", ".join(f"{part} {seconds:.1f} s" for part, seconds in result.parts.items()), flush=True)
    if result.differences:
        for line in scenario.lines():
            print(f"  {line}")
        print("  what happened:", *result.events, sep="\n    ")
        print("  differences:", *result.differences, sep="\n    ")
        print(f"  to play it again: make chaos ROUNDS=1 SEED={scenario.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
