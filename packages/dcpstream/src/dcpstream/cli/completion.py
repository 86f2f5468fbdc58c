"""`dcpstream completion`: completion of commands and options in the user's shell, by click's scripts."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from dcpstream.cli.exits import OK
from dcpstream.errors import ConfigError
from dcpstream.runtime import replace_shared

PROGRAM = "dcpstream"
VARIABLE = "_DCPSTREAM_COMPLETE"
"""The variable by which the script asks the program for completions; click derives it from the program's name."""
SHELLS = ("bash", "zsh", "fish")
_MARK = f"# completion of {PROGRAM}"

_SHELL = click.option(
    "--shell", type=click.Choice(SHELLS), help="bash, zsh or fish.  [default: the one that the variable SHELL names]"
)


@click.group("completion")
def completion_command() -> None:
    """Have the shell complete commands and options of dcpstream with the tab key."""


@completion_command.command("show")
@_SHELL
def show_command(shell: str | None) -> int:
    """Print the script."""
    click.echo(script(shell or own_shell(os.environ.get("SHELL", ""))))
    return OK


@completion_command.command("install")
@_SHELL
def install_command(shell: str | None) -> int:
    """Install the script for new shells; a second time only renews it.

    For fish it is a file in the directory of completions. For bash and zsh it is a file in ~/.local/share/dcpstream,
    and a line in ~/.bashrc or ~/.zshrc that reads it.
    """
    name = shell or own_shell(os.environ.get("SHELL", ""))
    for path in install(name, Path.home()):
        click.echo(f"wrote {path}")
    click.echo(f"Open a new {name} to use it.")
    return OK


def own_shell(path: str) -> str:
    """The shell of the variable SHELL.

    Raises: ConfigError: it is none that completion exists for.
    """
    name = Path(path).name
    if name not in SHELLS:
        message = f"the variable SHELL is {path!r}, which is none of {', '.join(SHELLS)}. Name one with --shell"
        raise ConfigError("--shell", path, ", ".join(SHELLS), message=message)
    return name


def script(shell: str) -> str:
    """The script for a shell."""
    from dcpstream.cli.app import cli

    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(cli, {}, PROGRAM, VARIABLE)
    return complete.source_template % complete.source_vars()


def install(shell: str, home: Path) -> list[Path]:
    """Write the script and, for bash and zsh, the line that reads it; returns the files that changed."""
    if shell == "fish":
        file = home / ".config" / "fish" / "completions" / f"{PROGRAM}.fish"
    else:
        file = home / ".local" / "share" / PROGRAM / f"completion.{shell}"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_shared(file, script(shell).encode(), 0o644)
    if shell == "fish":
        return [file]
    start = home / f".{shell}rc"
    text = start.read_text(encoding="utf-8") if start.exists() else ""
    if _MARK in text:
        return [file]
    # zsh has the function `compdef`, which the script calls, only after this.
    ready = "autoload -Uz compinit && compinit; " if shell == "zsh" and "compinit" not in text else ""
    with start.open("a", encoding="utf-8") as end:
        end.write(f'\n{_MARK}\n{ready}[ -r "{file}" ] && . "{file}"\n')
    return [file, start]
