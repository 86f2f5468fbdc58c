"""The frame: its texts are escaped, and only files that pages need can be loaded."""

from __future__ import annotations

from dcpstream.pages.frame import Frame, Link, static_file
from tests.kit.cases import each_case

FRAME = Frame(server="The <node>", static="/static", ping="/versions", footer="<b>end</b>")


def page(**changed: object) -> str:
    given = {"host": "h<1>", "links": [Link("All & more", "/"), Link("Other", "/x")], "here": "/x"}
    return FRAME.page("A <title>", "<p>content</p>", **(given | changed))  # type: ignore[arg-type]


@each_case("name", ["", ".", "..", "../frame.py", "frame.py", "/etc/passwd", "none.js", "js"])
def test_nothing_else_is_a_file(name: str) -> None:
    assert static_file(name) is None
