"""`dcpstream lake`: the pipelines of a file, kept running in one Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from dcpstream.cli import exits
from dcpstream.cli.output import json_option
from dcpstream.pages.markup import duration
from dcpstream.runtime.stopping import stop_signals

if TYPE_CHECKING:
    from dcpstream_spark.tables.lake import LakeEvent


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
@click.option(
    "--monitor-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve pages, metrics and health of the pipelines at this port; 0 for any free one.",
)
@click.option(
    "--monitor-host",
    metavar="HOST",
    default="127.0.0.1",
    show_default=True,
    help="Address for it. It asks for no password.",
)
@click.option(
    "--monitor-name",
    "monitor_names",
    metavar="NAME",
    multiple=True,
    help="A further name, next to localhost and the machine's, at which it is reached; others are refused. May be "
    "repeated.",
)
@json_option("Print each event as a line of JSON, failures too.")
def lake_command(
    file: Path,
    check: bool,
    once: bool,
    quiet: bool,
    monitor_port: int | None,
    monitor_host: str,
    monitor_names: tuple[str, ...],
    as_json: bool,
) -> int:
    """Keep the tables of several buckets up to date, until SIGTERM or Ctrl-C.

    The file is checked as a whole before anything starts; mistakes are named with file and key. A pipeline that
    fails starts again after a pause, and the others go on.

    Exit status: 0 done or stopped, 1 a pipeline was given up, 2 the file has mistakes.
    """
    exits.require(["pyspark", "pyarrow"], "dcpstream-spark")
    from dcpstream_spark.tables.lake import Lake
    from dcpstream_spark.tables.lake_config import read_lake_config

    config = read_lake_config(file)
    if check:
        text = f"{file}: {len(config.pipelines)} pipelines, no mistake found"
        click.echo(json.dumps({"file": str(file), "pipelines": len(config.pipelines)}) if as_json else text)
        return exits.OK
    from dcpstream_spark.files import local_directory
    from dcpstream_spark.session import build_session
    from dcpstream_spark.tables.monitor import Monitor

    monitor = None if monitor_port is None else Monitor(host=monitor_host, port=monitor_port, names=monitor_names)
    if monitor is not None and not quiet:
        click.echo(f"status page http://{monitor_host}:{monitor.port}/", err=True)
    more: dict[str, Any] = {}
    if config.session.driver_memory is not None:
        more["driver_memory"] = config.session.driver_memory
    spark = build_session(
        "dcpstream lake",
        master=config.session.master,
        settings=config.session.settings,
        tables=None if config.session.tables == "none" else cast("Any", config.session.tables),
        # A session has one manager of checkpoint files, and the fast one of local disks is wrong for all others.
        checkpoint=next((one.path for one in config.pipelines if local_directory(one.path) is None), None),
        **more,
    )

    def report(event: LakeEvent) -> None:
        is_failure = event.kind in {"failed", "given up"}
        if as_json and (is_failure or not quiet):
            click.echo(json.dumps(as_object(event)))
        elif is_failure:
            click.echo(as_line(event), err=True)
        elif not quiet:
            click.echo(as_line(event))

    try:
        with stop_signals() as stopping:
            lake = Lake.of_session(spark, config.pipelines, report, watch=None if monitor is None else monitor.add)
            return exits.OK if lake.run(stopping, once=once) else exits.FAILED
    finally:
        if monitor is not None:
            monitor.close()
        spark.stop()


def as_object(event: LakeEvent) -> dict[str, Any]:
    """An event for programs: what `as_line` says, under the names of its attributes."""
    found: dict[str, Any] = {"name": event.name, "kind": event.kind}
    if event.progress is not None:
        progress = event.progress
        found |= {
            "batch_id": progress.batch_id,
            "rows": progress.rows,
            "rows_per_second": progress.rows_per_second,
            "total_lag": progress.total_lag,
            "share_read": progress.share_read,
            "seconds_left": progress.seconds_left,
            "lag_s": progress.lag_s,
            "rollbacks": progress.rollbacks,
        }
    return found | {"pause_s": event.pause_s, "message": event.message}


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
        if progress.total_lag and progress.share_read is not None:
            parts.append(f"{int(progress.share_read * 100)} % read")
        if progress.total_lag and progress.seconds_left is not None:
            parts.append(f"about {duration(progress.seconds_left)} left")
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} rollbacks")
    if event.pause_s:
        parts.append(f"starts again in {event.pause_s:g} s")
    if event.message:
        parts.append(event.message)
    return ", ".join(parts)
