"""`dcpstream record`: a bucket's changes into a file that `dcpstream replay` plays back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dcpstream.cli.connection_options import BucketAccess, access_options
from dcpstream.cli.exits import INTERRUPTED, OK
from dcpstream.cli.new_files import check_directory
from dcpstream.cli.output import json_option
from dcpstream.cli.selecting import nanoseconds_until
from dcpstream.cli.stream import collections_option, names_in
from dcpstream.errors import ConfigError
from dcpstream.runtime import SystemClock
from dcpstream.runtime.stopping import stop_signals

if TYPE_CHECKING:
    from dcpstream_node.recording.recorder import Progress

SHOW_EVERY_S = 0.5
"""Seconds between two lines of progress on a terminal."""


@click.command("record")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@access_options(is_argument=False)
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where a new file begins; one that is there is gone on with.",
)
@click.option("--follow", is_flag=True, help="Wait for further changes, until Ctrl-C or SIGTERM.")
@click.option("--until", metavar="TIME", help="With --follow: end in 90s, 15m, 2h, 1d, or at 2026-01-31T12:00:00.")
@collections_option
@click.option("--compress/--no-compress", default=True, show_default=True, help="Deflate the blocks of the file.")
@json_option("Print the result as JSON.")
def record_command(
    file: Path,
    access: BucketAccess,
    start: Literal["earliest", "latest"],
    follow: bool,
    until: str | None,
    collections: str | None,
    compress: bool,
    as_json: bool,
) -> int:
    """Write the changes of a bucket into FILE, as the nodes sent them.

    The file has every seqno, CAS and failover log, so `dcpstream replay FILE` serves the same history to any client.
    A file that is there is gone on with, also after a kill: call the command again.
    """
    from dcpstream_node.recording.recorder import record

    clock = SystemClock()
    check_directory("FILE", file)
    if until is not None and not follow:
        message = "--until needs --follow: without it, the recording ends at the changes of now"
        raise ConfigError("--until", until, "a time, with --follow", message=message)
    end_ns = None if until is None else nanoseconds_until(until, clock.time_ns())
    is_shown = sys.stderr.isatty() and not as_json
    progress, shown_at = None, clock.monotonic()
    with stop_signals() as stopping, access.client() as client:

        def is_over() -> bool:
            return stopping.is_set() or (end_ns is not None and clock.time_ns() >= end_ns)

        for progress in record(
            client,
            file,
            clock,
            start=start,
            follow=follow,
            collections=names_in(collections),
            is_deflated=compress,
            is_over=is_over,
        ):
            if is_shown and clock.monotonic() - shown_at >= SHOW_EVERY_S:
                shown_at = clock.monotonic()
                click.echo(f"\r{_line(progress)}  ", err=True, nl=False)
    assert progress is not None, "the last one comes in any case"
    if is_shown:
        click.echo("\r\033[K", err=True, nl=False)
    if as_json:
        click.echo(json.dumps({"file": str(file), **_facts(progress)}))
    else:
        click.echo(f"{file}: {_line(progress)}")
        if progress.incomplete:
            click.echo(
                f"{progress.incomplete} vbuckets end inside a snapshot: record on, so that their documents are those "
                "of one moment",
                err=True,
            )
    is_short = progress.seqnos_wanted is not None and progress.seqnos < progress.seqnos_wanted
    return INTERRUPTED if stopping.is_set() and is_short else OK


def _facts(progress: Progress) -> dict[str, object]:
    return {
        "changes": progress.changes,
        "bytes": progress.file_bytes,
        "rollbacks": progress.rollbacks,
        "incomplete_vbuckets": progress.incomplete,
    }


def _line(progress: Progress) -> str:
    parts = [f"{progress.changes:,} changes", f"{progress.file_bytes / 1e6:,.1f} MB"]
    if progress.seqnos_wanted:
        parts.append(f"{min(progress.seqnos / progress.seqnos_wanted, 1):.0%} of what there is")
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} rollbacks")
    return ", ".join(parts)
