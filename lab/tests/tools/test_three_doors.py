"""Reading the doors of the README; `make three-doors` walks through them."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from lab.tools.packages import run
from lab.tools.three_doors import PAGE, README, Visit, doors_of, environment, needed, page_of


def test_the_doors_of_the_readme() -> None:
    doors = doors_of(README.read_text(encoding="utf-8"))
    assert [door.install for door in doors] == [
        "pip install 'dcpstream-spark[tables,java]' dcpstream-node",
        "pip install dcpstream-node couchbase pytest",
        "pip install 'dcpstream[arrow]' dcpstream-node",
    ]
    assert [door.is_test for door in doors] == [False, True, False]
    assert [bool(door.output) for door in doors] == [True, False, True]
    for door in doors:
        ast.parse(door.program)


def test_the_page_shows_the_doors_of_the_readme() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for door in doors_of(README.read_text(encoding="utf-8")):
        assert f"## {door.title}\n" in page
        assert f"$ {door.install}\n" in page
        assert door.output.strip() in page


def test_a_door_is_shown_as_a_session() -> None:
    (door, *_) = doors_of(README.read_text(encoding="utf-8"))
    page = page_of([Visit(door=door, install_s=61.6, run_s=7.25, output="1 passed in 5.68s\n")])
    assert f"$ {door.install}\n# 62 s\n$ python program.py\n1 passed in …\n# 7.2 s\n" in page


def test_pip_gets_the_wheel_in_the_place_of_the_package() -> None:
    wheels = {
        "dcpstream": Path("/wheels/dcpstream-0.1-py3-none-any.whl"),
        "dcpstream-spark": Path("/wheels/dcpstream_spark-0.1-py3-none-any.whl"),
    }
    assert needed("pip install 'dcpstream-spark[tables,java]' \"pytest >= 8\"", wheels) == [
        "dcpstream-spark[tables,java] @ file:///wheels/dcpstream_spark-0.1-py3-none-any.whl",
        "dcpstream @ file:///wheels/dcpstream-0.1-py3-none-any.whl",
        "pytest >= 8",
    ]
    assert needed("pip install dcpstream", wheels) == [f"dcpstream @ {wheels['dcpstream'].as_uri()}"]


def test_a_door_has_its_own_home_and_nothing_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/checkout/src")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    program = "import os; print(os.environ['HOME'], 'PYTHONPATH' in os.environ, 'XDG_CACHE_HOME' in os.environ)"
    printed = run(sys.executable, "-c", program, cwd=tmp_path, env=environment(tmp_path))
    assert printed == f"{tmp_path / 'home'} False False\n"


def test_a_failed_program_ends_the_tool_with_its_output() -> None:
    with pytest.raises(SystemExit, match="it broke"):
        run(sys.executable, "-c", "raise SystemExit('it broke')")
