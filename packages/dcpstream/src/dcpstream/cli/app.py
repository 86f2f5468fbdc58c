"""The group of commands: loads a command when it is called, and turns its errors into messages and exit statuses."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

import click

import dcpstream
from dcpstream.cli import exits

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUP = "dcpstream.commands"
"""The group of entry points by which the distributions add commands."""

_KNOWN: dict[str, tuple[str, str]] = {
    "bucket": ("dcpstream", "Make, list, empty and drop buckets."),
    "cluster": ("dcpstream", "Operate a cluster: nodes, rebalance, failover."),
    "collection": ("dcpstream", "Make, list and drop scopes and collections."),
    "compare": ("dcpstream-spark", "Compare a table with a bucket, in parallel on Spark."),
    "completion": ("dcpstream", "Have the shell complete commands and options."),
    "decode": ("dcpstream-node", "Print the messages in recorded bytes, packets or recordings."),
    "doctor": ("dcpstream", "Check this machine and a cluster, and name what to fix."),
    "jars": ("dcpstream-spark", "Fetch the jars that Spark needs for tables, and print its settings."),
    "judge": ("dcpstream-node", "Compare a server with recordings of real ones, or with another."),
    "kv": ("dcpstream", "Read, write, delete and list documents."),
    "lake": ("dcpstream-spark", "Keep the tables of several buckets up to date."),
    "node": ("dcpstream-node", "Run a Couchbase-compatible node."),
    "offsets": ("dcpstream", "Look at saved positions, compare, move, convert them."),
    "record": ("dcpstream-node", "Write the changes of a bucket into a file, to be played back."),
    "replay": ("dcpstream-node", "Run a node that plays a recording back."),
    "store": ("dcpstream-node", "Check the files of a node's buckets."),
    "stream": ("dcpstream", "Print the changes of a bucket as JSON lines."),
    "tail": ("dcpstream", "Show the changes of a bucket as they happen."),
    "user": ("dcpstream", "Make, list and drop users."),
}
"""Command → the distribution that has it, and its line in the help, which is shown without importing the command. The
table also lets the program say what to install."""


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """The installed commands: name → entry point."""
    return {found.name: found for found in entry_points(group=GROUP)}


def _line(name: str) -> str:
    """A command's line in the help. A command that is not in the table is loaded for it."""
    found = _entry_points().get(name)
    if name in _KNOWN:
        distribution, line = _KNOWN[name]
        return line if found is not None else f"{line} (pip install {distribution})"
    return found.load().get_short_help_str(80) if found is not None else ""


class _PipeClosed(Exception):
    """The reader of standard output has closed it."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which the help shows them."""
        return sorted({*_KNOWN, *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name.

        Raises:
            CommandNotInstalled: it belongs to a distribution that is not installed.
        """
        found = _entry_points().get(cmd_name)
        if found is None:
            if cmd_name in _KNOWN:
                raise exits.CommandNotInstalled(cmd_name, _KNOWN[cmd_name][0])
            return None
        command = found.load()
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin so, without importing a command of the table."""
        from click.shell_completion import CompletionItem

        names = (name for name in self.list_commands(ctx) if name.startswith(incomplete))
        found = [CompletionItem(name, help=_line(name)) for name in names]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a closed pipe gets its own exception, because click would make it exit status 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _PipeClosed from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands in the help from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _line(name)) for name in self.list_commands(ctx)])


def _print_version(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    """Print the version, and which decoder this installation uses."""
    if not is_asked:
        return
    try:
        decoder: str = importlib.import_module("dcpstream.runtime.kernel").description
    except ImportError:
        decoder = "single messages only; Arrow batches need pyarrow"
    click.echo(f"dcpstream, version {dcpstream.__version__}\ndecoder: {decoder}")
    ctx.exit()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the decoder in use, and exit.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(debug: bool) -> None:
    """Couchbase's Database Change Protocol for Python and Spark.

    Exit statuses: 0 done, 1 failed or different, 2 wrong option, 3 node not reached, 4 refused by the node,
    5 bad bytes, 6 rolled back or purged, 7 not installed, 130 interrupted.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status.

    Args:
        arguments: without the program's name; None for `sys.argv`.

    Raises:
        Exception: an unexpected error, or any error with `--debug`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    # An option of the group, before the command's name. It is parsed here because it also decides about errors of the
    # parser itself.
    is_debug = "--debug" in words[: _first_command(words)]
    try:
        outcome = cli.main(args=words, prog_name="dcpstream", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return exits.INTERRUPTED
    except _PipeClosed:
        # `dcpstream stream | head` is not an error, but nothing more can be printed.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except Exception as error:
        ending = exits.exit_for(error)
        if ending is None or is_debug:
            raise
        click.echo(f"dcpstream: {ending.message}", err=True)
        return ending.status
    return outcome if isinstance(outcome, int) else exits.OK


def _first_command(words: Sequence[str]) -> int:
    return next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
