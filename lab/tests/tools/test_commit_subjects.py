"""Subjects of new commits have at most 72 characters, also in shallow clones and without a history."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lab.tools.commit_subjects import LONGEST, main, new_subjects, subject_of

LONG = "é" * (LONGEST + 1)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=some", "-c", "user.email=some@example.invalid", "-c", "commit.gpgsign=false"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def history(folder: Path, *subjects: str) -> list[str]:
    """A repository with these commits, oldest first; their names."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for subject in subjects:
        git(folder, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(folder, "log", "--reverse", "--format=%H").split()


def test_only_commits_after_the_base_count(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    _, base, _ = history(root, LONG, "the base", "a new one")
    assert new_subjects(root, base) == ["a new one"]


def test_in_a_shallow_clone_without_the_base_all_commits_count(tmp_path: Path) -> None:
    base, _, _ = history(tmp_path / "repository", "the base", "a new one", "a newer one")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{tmp_path}/repository", "clone")
    assert new_subjects(tmp_path / "clone", base) == ["a newer one"]


def test_without_a_history_or_its_base_nothing_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new_subjects(tmp_path) is None
    history(tmp_path / "repository", LONG)
    assert main([], root=tmp_path / "repository") == 0
    assert "no history" in capsys.readouterr().out
    inside = tmp_path / "repository" / "unpacked"
    inside.mkdir()
    assert new_subjects(inside) is None, "the history is of something else"


@pytest.mark.parametrize(("subject", "status"), [("é" * LONGEST, 0), (LONG, 1)])
def test_the_hook_counts_characters(tmp_path: Path, subject: str, status: int) -> None:
    message = tmp_path / "message"
    message.write_text(f"\n# {LONG}\n{subject}\n\n{LONG}\n", encoding="utf-8")
    assert main(["--message", str(message)]) == status
    assert subject_of("# only a comment\n") == ""
