"""Output that commands print in the same way."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from dcpstream.cli.exits import OK

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(help: str = "Print JSON.") -> Callable[[_F], _F]:  # noqa: A002 - click's word
    """The option --json; the command gets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=help)


def report(text: str, *, as_json: bool) -> int:
    """Print the result of a command, and return its exit status."""
    click.echo(json.dumps({"result": text}) if as_json else text)
    return OK
