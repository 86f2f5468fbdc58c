"""The build of the native kernel: what it makes where a compiler is, and where none is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from lab.tools.patience import patient
from packages.dcpstream import build_kernel

ROOT = Path(__file__).parents[3]
PROJECT = ROOT / "packages" / "dcpstream"
NO_COMPILER = "/bin/false"


def wheel(folder: Path, **environment: str) -> Path:
    """The wheel that pip builds."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(PROJECT)],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        timeout=patient(60),
    )
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        ("linux-x86_64", "linux_x86_64"),
        ("macosx-11.0-arm64", "macosx_11_0_arm64"),
        ("win-amd64", "win_amd64"),
    ],
)
def test_the_platform_in_the_name_of_a_wheel(platform: str, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
    assert build_kernel.platform_tag() == tag


def test_it_can_be_skipped(tmp_path: Path) -> None:
    assert build_kernel.build(PROJECT, tmp_path, "skip") == (None, "DCPSTREAM_KERNEL=skip")


@pytest.mark.slow
def test_without_a_compiler_the_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", NO_COMPILER)
    built, why = build_kernel.build(PROJECT, tmp_path, "")
    assert built is None
    assert NO_COMPILER in why
    with pytest.raises(RuntimeError, match="the native kernel cannot be built"):
        build_kernel.build(PROJECT, tmp_path, "require")


def test_a_python_without_a_stable_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert build_kernel.build(PROJECT, tmp_path, "") == (None, "this Python has no stable binary interface")


@pytest.mark.slow
def test_a_wheel_without_a_compiler_is_pure(tmp_path: Path) -> None:
    made = wheel(tmp_path, CC=NO_COMPILER)
    assert made.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith((".so", ".pyd"))]


@pytest.mark.slow
def test_a_wheel_with_a_compiler_has_the_kernel(tmp_path: Path) -> None:
    built, why = build_kernel.build(PROJECT, tmp_path / "probe", "")
    if built is None:
        pytest.skip(f"no kernel can be built here: {why}")
    made = wheel(tmp_path, DCPSTREAM_KERNEL="require")
    assert made.name.endswith(f"-cp311-abi3-{build_kernel.platform_tag()}.whl")
    names = zipfile.ZipFile(made).namelist()
    assert [name for name in names if name.endswith((".so", ".pyd"))] == [build_kernel.TARGET.removeprefix("src/")]
    zipfile.ZipFile(made).extractall(tmp_path / "installed")
    done = subprocess.run(
        [sys.executable, str(ROOT / "lab" / "tools" / "check_kernel.py")],
        env={"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "installed") in done.stdout
