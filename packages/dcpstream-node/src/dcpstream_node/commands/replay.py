"""`dcpstream replay`: a node that plays a recording back."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dcpstream.cli.exits import OK
from dcpstream.cli.output import json_option
from dcpstream.runtime.stopping import stop_signals
from dcpstream_node.commands.serving import (
    address_options,
    administrator_options,
    announced,
    check_ready_file,
    ready_file_option,
)

if TYPE_CHECKING:
    from dcpstream_node.recording.player import Played


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@address_options
@click.option("--bucket", help="Name of the bucket.  [default: that of the recording]")
@administrator_options
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="Play at the pace at which the changes arrived (1), or so many times as fast.  [default: all at once]",
)
@json_option("Print what was played as JSON.")
@ready_file_option
def replay_command(
    file: Path,
    host: str,
    port: int,
    mgmt_port: int,
    bucket: str | None,
    username: str,
    password: str,
    speed: float | None,
    as_json: bool,
    ready_file: Path | None,
) -> int:
    """Run a node with the bucket that FILE is a recording of, until SIGTERM or Ctrl-C.

    The node serves the vbuckets, seqnos, CAS and failover logs of the recording, to any client. Readers that were at
    the source can go on here with their positions. Without --speed, the node says where it serves when everything is
    there. With it, it serves at once, and the changes come at their pace; a rollback or a failover that was recorded
    happens again.
    """
    from dcpstream_node.embedded import Node
    from dcpstream_node.recording.player import header_of, play

    check_ready_file(ready_file)
    header = header_of(file)
    name = bucket or header.bucket
    node = Node(
        (name,), header.vbuckets, host=host, port=port, mgmt_port=mgmt_port, username=username, password=password
    )
    with stop_signals() as stopping, node, contextlib.ExitStack() as serving:

        def announce() -> None:
            serving.enter_context(announced([node], ready_file))

        if speed is None:
            played = play(file, node, name)
            announce()
        else:
            played = play(file, node, name, speed=speed, pause=stopping.wait, begun=announce)
        _print(file, name, played, as_json=as_json)
        stopping.wait()
    return OK


def _print(file: Path, bucket: str, played: Played, *, as_json: bool) -> None:
    from dcpstream_node.recording.file import cut_note

    if as_json:
        facts = {"changes": played.changes, "seconds": played.seconds, "incomplete_vbuckets": played.incomplete}
        click.echo(json.dumps({"file": str(file), "bucket": bucket, **facts, "is_cut": played.is_cut}))
        return
    click.echo(f"{file}: {played.changes:,} changes in bucket {bucket}")
    if played.is_cut:
        click.echo(cut_note(file), err=True)
    if played.incomplete:
        click.echo(
            f"{played.incomplete} vbuckets end inside a snapshot: their documents are of no one moment", err=True
        )
