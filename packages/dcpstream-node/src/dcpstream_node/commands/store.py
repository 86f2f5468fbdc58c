"""`dcpstream store`: check the files of a node's buckets."""

from __future__ import annotations

from pathlib import Path

import click

from dcpstream.cli.output import json_option

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))


@click.group("store")
def store_command() -> None:
    """Check the files of a node's buckets.

    DIR is a bucket's directory, or a node's data directory with several.
    """


@store_command.command("check")
@_DIRECTORY
@json_option("One JSON object with all findings.")
def check_command(directory: Path, as_json: bool) -> int:
    """Read every byte of the stores in DIR and of the node's own files, and report damage. Nothing is changed.

    Exit statuses: 0 sound, 1 damaged, 2 no store there.
    """
    from dcpstream_node.commands import store_reports

    return store_reports.check(directory, as_json=as_json)
