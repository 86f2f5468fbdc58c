"""The frame: its texts are escaped, and only files that pages need can be loaded."""

from __future__ import annotations

from dcpstream.pages.frame import Frame, Link, static_file
from tests.kit.cases import each_case

FRAME = Frame(server="The <node>", static="/static", ping="/versions", footer="<b>end</b>")


def page(**changed: object) -> str:
    given = {"host": "h<1>", "links": [Link("All & more", "/"), Link("Other", "/x")], "here": "/x"}
    return FRAME.page("A <title>", "<p>content</p>", **(given | changed))  # type: ignore[arg-type]


def test_texts_are_escaped_and_content_is_not() -> None:
    html = page(trail=[Link("<above>", "/a%20b")])
    for shown in ("A &lt;title&gt;", "The &lt;node&gt;", "h&lt;1&gt;", "All &amp; more", "&lt;above&gt;"):
        assert shown in html
    assert "<p>content</p>" in html
    assert "<b>end</b>" in html
    assert '<a href="/x" aria-current=page>Other</a>' in html
    assert '<a href="/">All' in html


def test_a_page_says_whether_it_is_live_and_has_a_trail() -> None:
    assert "data-still" not in page()
    assert "data-still" in page(is_live=False)
    assert "trail" not in page()


@each_case("name", ["main.js", "style.css", "icon.svg"])
def test_the_page_loads_files_that_there_are(name: str) -> None:
    assert f"/static/{name}" in page()
    found = static_file(name)
    assert found is not None
    assert found[0].startswith(("text/", "image/"))


@each_case("name", ["", ".", "..", "../frame.py", "frame.py", "/etc/passwd", "none.js", "js"])
def test_nothing_else_is_a_file(name: str) -> None:
    assert static_file(name) is None
