from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from lab.bench import flames
from lab.bench.flames import KERNEL, PYTHON, SYSTEM, Box, picture, shown, tree

STACKS = [
    "<module> (run.py:1);work (run.py:9);inner (run.py:3) 60",
    "<module> (run.py:1);work (run.py:9);inner (run.py:3);inner (run.py:3);0x7f42 (libc.so.6) 30",
    "<module> (run.py:1);work (run.py:9);answer (native/requests.c:7);Py_DECREF (object.h:5) 10",
    "<module> (run.py:1);start (run.py:2) 500",
]


def test_what_is_above_the_root() -> None:
    bottom = tree(STACKS, "work")
    assert bottom.samples == 100
    assert {name: (box.samples, box.colour) for name, box in bottom.above.items()} == {
        "inner": (90, PYTHON),
        "answer": (10, KERNEL),
    }
    assert list(bottom.above["inner"].above) == ["libc"]
    assert bottom.above["inner"].above["libc"].samples == 30
    assert not bottom.above["answer"].above, "a part of its caller"


def test_two_functions_side_by_side() -> None:
    waiting = "<module> (run.py:1);start (run.py:2);Condition.wait (threading.py:320) 900"
    bottom = tree([*STACKS, waiting], "both", {"work": "one thread", "start": "the other"})
    assert bottom.name == "both"
    assert {name: box.samples for name, box in bottom.above.items()} == {"one thread": 100, "the other": 500}
    assert set(bottom.above["one thread"].above) == {"inner", "answer"}


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ("path_of.<locals>.answer (dcpstream/a.py:35)", ("answer", PYTHON)),
        ("frame.isra.0 (libpython3.11.so.1.0)", ("frame", SYSTEM)),
        ("send (libc.so.6)", ("send", SYSTEM)),
        ("nothing", ("nothing", SYSTEM)),
    ],
)
def test_names(frame: str, expected: tuple[str, str]) -> None:
    assert shown(frame) == expected


def test_a_picture() -> None:
    drawn = ET.fromstring(picture(tree(STACKS, "work"), "some < work"))
    space = "{http://www.w3.org/2000/svg}"
    widths = {box.findtext(f"{space}title"): box.find(f"{space}rect") for box in drawn.iter(f"{space}g")}
    assert set(widths) == {"work: 100.0 %", "inner: 90.0 %", "libc: 30.0 %", "answer: 10.0 %"}
    inner, libc = (widths[title] for title in ("inner: 90.0 %", "libc: 30.0 %"))
    assert inner is not None
    assert libc is not None
    assert float(inner.attrib["width"]) == pytest.approx(0.9 * flames.WIDTH, abs=1)
    assert float(libc.attrib["y"]) < float(inner.attrib["y"])


def test_narrow_boxes_are_left_out() -> None:
    bottom = Box("all", samples=1000, above={"rare": Box("rare", samples=2)})
    assert "rare" not in picture(bottom, "some")
