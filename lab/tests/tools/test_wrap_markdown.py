"""Markdown is wrapped without a change of its meaning, and all pages are wrapped."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.tools.wrap_markdown import main, pages, wrapped


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two\nthree four five", "one two three four\nfive"),
        ("- one two three four five\n- six\n  seven", "- one two three\n  four five\n- six seven"),
        ("10. one two three four", "10. one two three\n    four"),
        ("one two three `four five six seven`.", "one two three `four five six seven`.".replace(" `", "\n`")),
        ("one two three four - five", "one two three four -\nfive"),
        ("one two three four 1. five", "one two three four 1.\nfive"),
        ("one\n2. is no list after a line", "one 2. is no list\nafter a line"),
        ("a `lone backtick stays where it is", "a `lone backtick\nstays where it is"),
        ("one two  \nthree", "one two  \nthree"),
        ("# a heading that is longer than a line", "# a heading that is longer than a line"),
        ("| a table | that is longer than a line |", "| a table | that is longer than a line |"),
        ("```sh\ncode that is longer than a line\n\n```\nend", "```sh\ncode that is longer than a line\n\n```\nend"),
        ("<!-- a comment that\nis not\n- touched -->\nend", "<!-- a comment that\nis not\n- touched -->\nend"),
    ],
)
def test_wrapping(text: str, expected: str) -> None:
    assert wrapped(text, 18) == expected


def test_to_wrap_twice_is_to_wrap_once() -> None:
    for page in pages():
        once = wrapped(page.read_text(encoding="utf-8"))
        assert wrapped(once) == once, page


def test_a_page_is_checked_and_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("word " * 30, encoding="utf-8")
    assert main(["--check", str(page)]) == 1
    assert "not wrapped at 120 columns" in capsys.readouterr().out
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
