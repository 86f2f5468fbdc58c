"""The options that say which bucket a command reads, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

DEFAULT_CONNECTION = "couchbase://127.0.0.1:11210"

_F = TypeVar("_F", bound=Callable[..., Any])


LOGIN_OPTIONS = (
    click.option("--user", "username", default="Administrator", show_default=True),
    click.option(
        "--password",
        envvar="DCPSTREAM_PASSWORD",
        default="password",
        help="The variable DCPSTREAM_PASSWORD hides it from `ps`.  [default: password]",
    ),
)
"""Who asks: the command gets the parameters `username` and `password`."""


def connection_options(command: _F) -> _F:
    """Add the connection string, user, password and bucket, in this order.

    The command gets the parameters `connection_string`, `username`, `password` and `bucket`.
    """
    options = (
        click.argument("connection_string", metavar="[COUCHBASE://HOST:PORT]", default=DEFAULT_CONNECTION),
        *LOGIN_OPTIONS,
        click.option("--bucket", default="default", show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command
