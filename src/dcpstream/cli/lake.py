"""`dcpstream lake`: the pipelines of a file, kept running in one Spark session."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dcpstream.cli import exits

if TYPE_CHECKING:
    from dcpstream.pipelines.lake import LakeEvent


@click.command("lake")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    default="lake.toml",
    show_default=True,
    help="TOML file with the session, the source and the pipelines.",
)
@click.option("--check", is_flag=True, help="Only check the file.")
@click.option("--once", is_flag=True, help="End when the tables hold what the buckets hold now.")
@click.option("--quiet", is_flag=True, help="Print failures only.")
def lake_command(file: Path, check: bool, once: bool, quiet: bool) -> int:
    """Keep the tables of several buckets up to date, until SIGTERM or Ctrl-C.

    The file is checked as a whole before anything starts; mistakes are named with file, line and key. A pipeline that
    fails starts again after a pause, and the others go on.

    Exit status: 0 done or stopped, 1 a pipeline was given up, 2 the file has mistakes.
    """
    exits.require(["pyspark", "pyarrow"], "spark")
    from dcpstream.pipelines.lake import Lake
    from dcpstream.pipelines.lake_config import read_lake_config

    config = read_lake_config(file, os.environ)
    if check:
        click.echo(f"{file}: {len(config.pipelines)} pipelines, no mistake found")
        return exits.OK
    from dcpstream.spark import build_session

    more: dict[str, Any] = {}
    if config.session.driver_memory is not None:
        more["driver_memory"] = config.session.driver_memory
    spark = build_session(
        "dcpstream lake",
        master=config.session.master,
        settings=config.session.settings,
        tables=None if config.session.tables == "none" else cast("Any", config.session.tables),
        **more,
    )
    stopping = threading.Event()
    before = {number: signal.signal(number, lambda *_: stopping.set()) for number in (signal.SIGTERM, signal.SIGINT)}

    def tell(event: LakeEvent) -> None:
        if event.kind in {"failed", "given up"}:
            click.echo(as_line(event), err=True)
        elif not quiet:
            click.echo(as_line(event))

    try:
        lake = Lake.of_session(spark, config.pipelines, tell)
        return exits.OK if lake.run(stopping, once=once) else exits.FAILED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        spark.stop()


def as_line(event: LakeEvent) -> str:
    """One line about an event."""
    parts = [f"{event.name}: {event.kind}"]
    if event.progress is not None:
        progress = event.progress
        if progress.batch_id is not None:
            parts.append(f"batch {progress.batch_id}")
        parts.append(f"{progress.rows:,} rows")
        if progress.rows_per_second:
            parts.append(f"{progress.rows_per_second:,.0f} rows/s")
        if progress.total_lag is not None:
            parts.append(f"lag {progress.total_lag:,}")
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} rollbacks")
    if event.pause_s:
        parts.append(f"starts again in {event.pause_s:g} s")
    if event.message:
        parts.append(event.message)
    return ", ".join(parts)
