"""Completion: the scripts, where they are installed, and what is completed."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from dcpstream.cli import completion
from dcpstream.cli.app import cli
from tests.kit.commands import Commands


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_second_installation_only_renews_the_script(shell: str, tmp_path: Path) -> None:
    first = completion.install(shell, tmp_path)
    assert "_DCPSTREAM_COMPLETE" in first[0].read_text()
    rc = tmp_path / f".{shell}rc"
    assert rc.exists() is (shell != "fish")
    before = rc.read_text() if rc.exists() else ""
    assert before.count(str(first[0])) == (0 if shell == "fish" else 2)
    assert completion.install(shell, tmp_path) == first[:1]
    assert (rc.read_text() if rc.exists() else "") == before


def test_what_is_in_the_users_file_stays(tmp_path: Path) -> None:
    (tmp_path / ".zshrc").write_text("compinit\nalias a=b\n", encoding="utf-8")
    completion.install("zsh", tmp_path)
    text = (tmp_path / ".zshrc").read_text()
    assert text.startswith("compinit\nalias a=b\n")
    assert text.count("compinit") == 1


def test_the_commands(commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "_DCPSTREAM_COMPLETE=bash_complete" in commands("completion", "show")
    assert commands("completion", "install").endswith("Open a new bash to use it.\n")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert "Name one with --shell" in commands.refused("completion", "install", expect=2)


def test_commands_and_options_are_completed() -> None:
    context = click.Context(cli, info_name="dcpstream")
    assert {item.value for item in cli.shell_complete(context, "co")} == {"collection", "compare", "completion"}
    assert {item.value for item in cli.shell_complete(context, "--ver")} == {"--version"}
