"""The command line: the one place that reads argv and the environment, and sets exit codes.

Nothing is imported before it is needed, so that `dcpstream --help` answers at once: the group knows its commands by
name and by their one line of help, and loads a command's module when that command is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (`sys.argv` by default) and leave the process with its exit status."""
    from dcpstream.cli.app import run

    raise SystemExit(run(arguments))
