"""Commands that serve until they are stopped: where they listen, the lines that say so, the ready file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dcpstream.cli.connection_options import DEFAULT_PASSWORD, DEFAULT_USERNAME, with_options
from dcpstream.cli.new_files import check_directory

if TYPE_CHECKING:
    from dcpstream_node.embedded import Node

_F = TypeVar("_F", bound=Callable[..., Any])

ready_file_option = click.option(
    "--ready-file", type=click.Path(path_type=Path), help="Written when the node serves: ports and pid, JSON."
)

_ADDRESS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", default=11210, show_default=True, help="KV port; 0: any free one."),
    click.option("--mgmt-port", default=8091, show_default=True, help="Management (HTTP) port; 0: any free one."),
)
_ADMINISTRATOR = (
    click.option("--user", "username", default=DEFAULT_USERNAME, show_default=True, help="The administrator's name."),
    click.option(
        "--password",
        default=DEFAULT_PASSWORD,
        envvar="DCPSTREAM_PASSWORD",
        help="The administrator's password; the variable DCPSTREAM_PASSWORD hides it from `ps`.  [default: password]",
    ),
)


def address_options(command: _F) -> _F:
    """Add where a node listens; the command gets `host`, `port` and `mgmt_port`."""
    return with_options(command, _ADDRESS)


def administrator_options(command: _F) -> _F:
    """Add a node's administrator; the command gets `username` and `password`."""
    return with_options(command, _ADMINISTRATOR)


def check_ready_file(path: Path | None) -> None:
    """Refuse a ready file in a directory that does not exist. Raises: ConfigError."""
    if path is not None:
        check_directory("--ready-file", path)


@contextmanager
def announced(members: Sequence[Node], ready_file: Path | None) -> Iterator[None]:
    """Say on standard error where nodes serve, and write the ready file; it is removed afterwards."""
    from dcpstream.runtime import replace_shared
    from dcpstream_node.embedded import ready_content

    for member in members:
        url = f"http://{member.host}:{member.mgmt_port}"
        click.echo(f"{member.connection_string}  management {url}  status page {url}/ui", err=True)
        if member.tls_port:
            where = f"management https://{member.host}:{member.mgmt_tls_port}"
            click.echo(f"{member.tls_connection_string}  {where}", err=True)
    try:
        if ready_file is not None:
            replace_shared(ready_file, (ready_content(members, os.getpid()) + "\n").encode(), 0o644)
        yield
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
