"""Reading the doors of the README; `make three-doors` walks through them."""

from __future__ import annotations

import ast

from tools.three_doors import PAGE, README, Visit, doors_of, page_of


def test_the_doors_of_the_readme() -> None:
    doors = doors_of(README.read_text(encoding="utf-8"))
    assert [door.install for door in doors] == [
        "pip install 'dcpstream[tables,java]'",
        "pip install dcpstream couchbase pytest",
        "pip install 'dcpstream[arrow]'",
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


def test_a_door_is_told_as_a_session() -> None:
    (door, *_) = doors_of(README.read_text(encoding="utf-8"))
    page = page_of([Visit(door=door, install_s=61.6, run_s=7.25, output="1 passed in 5.68s\n")])
    assert f"$ {door.install}\n# 62 s\n$ python program.py\n1 passed in …\n# 7.2 s\n" in page
