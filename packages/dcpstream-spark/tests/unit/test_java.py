"""The Java runtime that Spark gets, and the wrapper around the wheel's."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dcpstream.errors import ConfigError
from dcpstream_spark.java import JavaSource, ensure_java, java_version
from lab.tools.patience import patient

REAL_PATH = os.environ.get("PATH", "/usr/bin:/bin")


def make_java(directory: Path, version: str, *, is_executable: bool = True) -> Path:
    """A runtime whose java prints its version, or its arguments one a line."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2024-01-16' >&2; exit; fi
for argument; do echo "$argument"; done
"""
    )
    java.chmod(0o755 if is_executable else 0o644)
    return directory


def no_wheel() -> None:
    return None


def test_a_java_home_that_is_set_is_left_alone(tmp_path: Path) -> None:
    home = str(make_java(tmp_path / "jre", "17.0.9"))
    environ = {"JAVA_HOME": home, "PATH": ""}
    assert ensure_java(environ, wheel_home=no_wheel) is JavaSource.JAVA_HOME
    assert environ["JAVA_HOME"] == home


def test_a_java_home_without_java_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"JAVA_HOME cannot be .*bin/java"):
        ensure_java({"JAVA_HOME": str(tmp_path), "PATH": ""}, wheel_home=no_wheel)


@pytest.mark.parametrize(("version", "major"), [("1.8.0_412", 8), ("11.0.2", 11)])
def test_an_old_java_home_is_refused_with_its_version(tmp_path: Path, version: str, major: int) -> None:
    home = make_java(tmp_path / "jre", version)
    newer = make_java(tmp_path / "newer", "17.0.9")
    environ = {"JAVA_HOME": str(home), "PATH": str(newer / "bin")}
    with pytest.raises(ConfigError, match=rf"JAVA_HOME cannot be .*\(Java {major}\).*Java 17 or newer"):
        ensure_java(environ, wheel_home=lambda: newer)


def test_a_java_home_without_a_version_is_left_alone(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jre", "of its own")
    assert ensure_java({"JAVA_HOME": str(home), "PATH": ""}, wheel_home=no_wheel) is JavaSource.JAVA_HOME


def test_a_new_enough_java_on_path_is_used_as_it_is(tmp_path: Path) -> None:
    environ = {"PATH": str(make_java(tmp_path, "21.0.1") / "bin")}
    assert ensure_java(environ, wheel_home=no_wheel) is JavaSource.PATH
    assert "JAVA_HOME" not in environ


def test_an_old_java_on_path_gives_way_to_the_wheel(tmp_path: Path) -> None:
    environ = {"PATH": str(make_java(tmp_path / "old", "1.8.0_412") / "bin")}
    wheel = make_java(tmp_path / "wheel", "17.0.9")
    assert ensure_java(environ, cache_dir=tmp_path / "cache", wheel_home=lambda: wheel) is JavaSource.WHEEL
    assert Path(environ["JAVA_HOME"]).parent == tmp_path / "cache"


def test_the_second_call_finds_the_first_one_done(tmp_path: Path) -> None:
    wheel = make_java(tmp_path / "wheel", "17.0.9")
    environ = {"PATH": REAL_PATH if java_version("java") is None else ""}
    assert ensure_java(environ, cache_dir=tmp_path, wheel_home=lambda: wheel) is JavaSource.WHEEL
    assert ensure_java(environ, cache_dir=tmp_path, wheel_home=lambda: wheel) is JavaSource.JAVA_HOME


def test_without_any_java_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'dcpstream-spark\[java\]'"):
        ensure_java({"PATH": str(tmp_path)}, wheel_home=no_wheel)


def test_the_wrapper_drops_only_the_module_that_is_missing(tmp_path: Path) -> None:
    wheel = make_java(tmp_path / "a wheel's home", "17.0.9", is_executable=False)
    environ = {"PATH": str(tmp_path)}
    ensure_java(environ, cache_dir=tmp_path / "cache", wheel_home=lambda: wheel)
    arguments = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "", "$HOME", "--add-modules=jdk.other", "x"]
    done = subprocess.run(
        [f"{environ['JAVA_HOME']}/bin/java", *arguments],
        env={"PATH": REAL_PATH},
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(30),
    )
    assert done.stdout.split("\n")[:-1] == [text for text in arguments if "incubator" not in text]
    assert java_version(f"{environ['JAVA_HOME']}/bin/java") == 17


@pytest.mark.parametrize(("text", "major"), [("1.8.0_412", 8), ("17.0.9", 17), ("25", 25), ("unknown", None)])
def test_versions(tmp_path: Path, text: str, major: int | None) -> None:
    assert java_version(str(make_java(tmp_path, text) / "bin" / "java")) == major


def test_a_java_that_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(str(tmp_path / "java")) is None


def test_the_wrapper_goes_where_it_can_be_written(tmp_path: Path) -> None:
    wheel = make_java(tmp_path / "wheel", "17.0.9")
    (tmp_path / "file").write_text("not a directory")
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "file")}
    ensure_java(environ, wheel_home=lambda: wheel)
    assert os.access(f"{environ['JAVA_HOME']}/bin/java", os.X_OK)
