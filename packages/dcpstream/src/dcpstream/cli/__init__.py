"""The command line: the one place that reads argv and the environment, and sets exit codes.

Modules are imported when they are needed, so that `dcpstream --help` answers at once. The group (`app`) has the name
and one line of help of each command, and loads a command's module when the command is called. A command has a module
of its name. `connection_options` are the options of a connection to a bucket, `management` the management port and its
options, `selecting` the filters of `tail`, `node_security` further options of `node`, and `exits` the exit statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (`sys.argv` by default) and leave the process with its exit status."""
    from dcpstream.cli.app import run

    raise SystemExit(run(arguments))
