"""The scripts behind make: what they choose, and what they say when something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.patience import patient

ROOT = Path(__file__).parents[3]
LOCKS = ["build", "data", "dev", "docs", "java", "matrix"]
BASIC_TOOLS = ["env", "head", "sed", "sh"]


def run_script(name: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script of tools/ with only the programs in `path`."""
    for tool in BASIC_TOOLS:
        found = shutil.which(tool)
        assert found is not None
        if not (path / tool).exists():
            (path / tool).symlink_to(found)
    return subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / name)],
        env={"PATH": str(path), **variables},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )


def make_program(path: Path, name: str, script: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    program = path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_a_good_python_is_chosen(tmp_path: Path) -> None:
    program = make_program(tmp_path, "python3", f'exec {sys.executable} "$@"')
    done = run_script("find-python.sh", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{program}\n")


def test_an_old_python_is_passed_over_for_a_newer_one(tmp_path: Path) -> None:
    make_program(tmp_path, "python3", '[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    newer = make_program(tmp_path, "python3.12", f'exec {sys.executable} "$@"')
    assert run_script("find-python.sh", tmp_path).stdout == f"{newer}\n"


def test_without_any_python_the_message_says_what_to_install(tmp_path: Path) -> None:
    done = run_script("find-python.sh", tmp_path)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; found: no python3 on PATH" in done.stderr
    assert "apt-get install python3" in done.stderr


def test_an_old_python_is_named(tmp_path: Path) -> None:
    make_program(tmp_path, "python3", '[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    assert "(Python 3.9.2)" in run_script("find-python.sh", tmp_path).stderr


def test_a_python_without_venv_gets_the_package_named(tmp_path: Path) -> None:
    make_program(tmp_path, "python3", 'case "$2" in *ensurepip*) exit 1;; esac; exit 0')
    done = run_script("find-python.sh", tmp_path)
    assert done.returncode == 1
    assert "python3-venv" in done.stderr


def test_a_python_named_by_hand_is_the_only_candidate(tmp_path: Path) -> None:
    make_program(tmp_path, "python3", f'exec {sys.executable} "$@"')
    done = run_script("find-python.sh", tmp_path, PYTHON="/no/such/python")
    assert done.returncode == 1
    assert "PYTHON=/no/such/python" in done.stderr


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [("17.0.15", True), ("21", True), ("25-ea", True), ("11.0.2", False), ("1.8.0_412", False)],
)
def test_java_versions(tmp_path: Path, version: str, is_enough: bool) -> None:
    make_program(tmp_path, "java", f"echo 'openjdk version \"{version}\"' >&2")
    assert (run_script("java-version.sh", tmp_path).returncode == 0) is is_enough


def test_no_java_is_not_enough(tmp_path: Path) -> None:
    assert run_script("java-version.sh", tmp_path).returncode != 0


def test_java_home_counts(tmp_path: Path) -> None:
    make_program(tmp_path / "jre" / "bin", "java", "exit 0")
    assert run_script("java-version.sh", tmp_path, JAVA_HOME=str(tmp_path / "jre")).returncode == 0


@pytest.mark.parametrize("name", LOCKS)
def test_locks_hold_exact_versions_with_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.lock").read_text(encoding="utf-8")
    requirements = [line for line in text.replace("\\\n", " ").splitlines() if re.match(r"\w", line)]
    assert requirements
    for line in requirements:
        assert re.match(r"[\w.-]+==[\w.!+-]+ ", line), line
        assert "--hash=sha256:" in line
    assert "://" not in text


def test_make_help_names_every_target_and_is_what_make_alone_prints() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    # Under `make test` this would be a make within a make, which says so.
    environ = {"PATH": os.environ["PATH"]}
    printed = [
        subprocess.run(
            [make, *targets], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=patient(60), check=True
        ).stdout
        for targets in ([], ["help"])
    ]
    assert printed[0] == printed[1]
    for target in ("setup", "check", "test", "test-all", "demo", "bench", "docs"):
        assert re.search(rf"^  {target}\s+\w", printed[0], re.MULTILINE)
