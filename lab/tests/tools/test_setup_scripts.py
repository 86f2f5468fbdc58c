"""The scripts behind make: what they choose, and what they say when something is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.tools.patience import patient
from tests.kit.browser import NAMES

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
        ["/bin/sh", str(ROOT / "lab" / "tools" / name)],
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


@pytest.mark.parametrize(("version", "major"), [("17.0.15", ""), ("25-ea", ""), ("11.0.2", "11"), ("1.8.0_412", "8")])
def test_the_version_of_java_home_is_checked_and_reported(tmp_path: Path, version: str, major: str) -> None:
    make_program(tmp_path / "jre" / "bin", "java", f"echo 'openjdk version \"{version}\"' >&2")
    make_program(tmp_path, "java", "echo 'openjdk version \"21\"' >&2")
    done = run_script("java-version.sh", tmp_path, JAVA_HOME=str(tmp_path / "jre"))
    assert done.returncode == (2 if major else 0)
    assert (f"{tmp_path}/jre is Java {major}, and Spark needs Java 17 or newer" in done.stderr) is bool(major)


FILES = {"tshark": "usr/bin/tshark", "browser": "usr/lib/chromium/chromium-headless-shell"}


def system_with_apt(path: Path, judge: str = "tshark") -> Path:
    """Programs that note their arguments; apt-get fetches two packages, one of which unpacks to the judge."""
    note = f'echo "$(basename "$0") $*" >>{path}/calls'
    put = 'touch "$cache/archives/a.deb" "$cache/archives/libllvm15_1.deb"'
    fetch = f"case $word in Dir::Cache=*) cache=${{word#Dir::Cache=}} ;; install) {put} ;; esac"
    made = make_program(path, "apt-get", f"{note}\nfor word; do {fetch}; done")
    program = '#!/bin/sh\\necho "$@" ${FONTCONFIG_FILE:-$WIRESHARK_DATA_DIR}\\n'
    file, folder = FILES[judge], FILES[judge].rpartition("/")[0]
    unpack = f'mkdir -p "$3/{folder}" && printf \'{program}\' >"$3/{file}" && chmod +x "$3/{file}"'
    make_program(path, "dpkg", f"{note}\n{unpack}")
    for tool in ("basename", "id", "mkdir", "rm", "mv", "cat", "chmod", "find", "dirname", "sort", "tr", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (path / tool).symlink_to(found)
    return made


def run_judges(path: Path, venv: Path, judge: str = "tshark") -> subprocess.CompletedProcess[str]:
    for tool in BASIC_TOOLS:
        if not (path / tool).exists():
            (path / tool).symlink_to(str(shutil.which(tool)))
    command = ["/bin/sh", str(ROOT / "lab" / "tools" / "install-judges.sh"), str(venv), judge]
    return subprocess.run(
        command, env={"PATH": str(path)}, capture_output=True, text=True, timeout=patient(60), check=False
    )


@pytest.mark.parametrize(("judge", "name"), [("tshark", "tshark"), ("browser", "chromium-headless-shell")])
def test_a_judge_goes_into_the_project_and_not_into_the_system(tmp_path: Path, judge: str, name: str) -> None:
    venv, programs = tmp_path / "a venv", tmp_path / "programs"
    system_with_apt(programs, judge)
    assert run_judges(programs, venv, judge).returncode == 0
    calls = (programs / "calls").read_text().splitlines()
    apt = [call for call in calls if call.startswith("apt-get")]
    assert len(apt) == 2
    for call in apt:
        assert f"Dir::State::lists={venv}/{judge}.new/lists" in call
        assert f"Dir::Cache={venv}/{judge}.new/cache" in call
    assert "--download-only" in apt[1]
    assert apt[1].endswith(f" {name}")
    unpacked = [call for call in calls if call.startswith("dpkg")]
    assert len(unpacked) == 1, "no driver of graphics cards"
    assert unpacked[0].split()[1] == "-x"
    done = subprocess.run([venv / "bin" / name, "-v"], capture_output=True, text=True, check=True)
    data = {"tshark": "root/usr/share/wireshark", "browser": "fonts.conf"}[judge]
    assert done.stdout == f"-v {venv}/{judge}/{data}\n"
    assert (venv / judge / "fonts.conf").exists() is (judge == "browser")
    (programs / "calls").unlink()
    assert run_judges(programs, venv, judge).returncode == 0
    assert not (programs / "calls").exists(), "it is there now"


@pytest.mark.parametrize("name", NAMES)
def test_every_browser_that_tests_can_use_is_enough(tmp_path: Path, name: str) -> None:
    system_with_apt(tmp_path, "browser")
    make_program(tmp_path, name, "exit 0")
    assert run_judges(tmp_path, tmp_path / "venv", "browser").returncode == 0
    assert not (tmp_path / "calls").exists()


def test_a_tshark_of_the_system_is_used(tmp_path: Path) -> None:
    system_with_apt(tmp_path)
    make_program(tmp_path, "tshark", "exit 0")
    assert run_judges(tmp_path, tmp_path / "venv").returncode == 0
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("judge", FILES)
@pytest.mark.parametrize("lacks", ["apt-get", "the network"])
def test_without_a_judge_its_tests_are_said_to_be_skipped(tmp_path: Path, lacks: str, judge: str) -> None:
    program = system_with_apt(tmp_path, judge)
    program.unlink()
    if lacks == "the network":
        make_program(tmp_path, "apt-get", "exit 100")
    done = run_judges(tmp_path, tmp_path / "venv", judge)
    assert done.returncode == 0
    assert "its tests will be skipped" in done.stdout
    assert not list((tmp_path / "venv").glob("bin/*"))


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
