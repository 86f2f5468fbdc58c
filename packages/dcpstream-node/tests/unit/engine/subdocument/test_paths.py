"""Paths to parts of documents."""

from __future__ import annotations

import pytest

from dcpstream.wire import Status
from dcpstream_node.engine.subdocument.paths import PATH_PARTS_MAX, PathError, parse_path
from tests.kit.cases import each_case
from tests.kit.rules import rule


@rule("KV-SUBDOC-16")
@each_case(
    ("text", "path"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("a.b[0][-1].c", ("a", "b", 0, -1, "c")),
        ("[1].[2]", (1, 2)),
        ("[12]", (12,)),
        ("`a.b`.c", ("a.b", "c")),
        ("`a[0]`", ("a[0]",)),
        ("`a``b`", ("a`b",)),
        ("``a", ("`a",)),
        (r"a\"b.\\", (r"a\"b", r"\\")),
        ("Fútbol.日", ("Fútbol", "日")),
        ("a.", ("a",)),
        ("a[]", ("a", 0)),
        ("a b", ("a b",)),
    ],
)
def test_paths(text, path):
    assert parse_path(text.encode()) == path


@rule("KV-SUBDOC-16")
@each_case(
    "text",
    [
        b".", b"a..b", b".a", b"a[", b"a[x]", b"a[-2]", b"a[1", b"[", b"`a", b"a]", b"[0]a", b'a"b', b"a\\", rb"\u0041",
        rb"\x", b"a\x01b", b"``", b"\xff", b"[\xd9\xa1]",
    ],
)  # fmt: skip
def test_what_is_no_path(text):
    with pytest.raises(PathError) as error:
        parse_path(text)
    assert error.value.status == Status.SUBDOC_PATH_EINVAL


@rule("KV-SUBDOC-16")
def test_a_path_too_deep():
    assert len(parse_path(b".".join([b"a"] * PATH_PARTS_MAX))) == PATH_PARTS_MAX
    with pytest.raises(PathError) as error:
        parse_path(b".".join([b"a"] * PATH_PARTS_MAX) + b"[0]")
    assert error.value.status == Status.SUBDOC_PATH_E2BIG
