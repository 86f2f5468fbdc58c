"""Parts of JSON documents by path."""

from __future__ import annotations

import json

import pytest

from dcpstream.node.engine.subdoc import DEPTH_MAX, PathError, change, look_up, parse_path
from dcpstream.wire import Opcode, Status

DOCUMENT = b'{"a":{"b":[1,{"c":"x"}]},"n":null}'
UPSERT, ADD = Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DICT_ADD
REPLACE, DELETE = Opcode.SUBDOC_REPLACE, Opcode.SUBDOC_DELETE


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("a.b[0][-1].c", ("a", "b", 0, -1, "c")),
        ("`a.b`.c", ("a.b", "c")),
        ("`a``b`", ("a`b",)),
    ],
)
def test_paths(text, path):
    assert parse_path(text) == path


@pytest.mark.parametrize("text", [".", "a.", "a..b", "a[", "a[x]", "a[-2]", "[", "`a", "a]"])
def test_what_is_no_path(text):
    with pytest.raises(PathError) as error:
        parse_path(text)
    assert error.value.status == Status.SUBDOC_PATH_EINVAL


def test_a_path_too_deep():
    parse_path(".".join("a" * DEPTH_MAX))
    with pytest.raises(PathError) as error:
        parse_path(".".join("a" * (DEPTH_MAX + 1)))
    assert error.value.status == Status.SUBDOC_PATH_E2BIG


@pytest.mark.parametrize(
    ("path", "found"), [("", DOCUMENT), ("a.b[1].c", b'"x"'), ("a.b[-1]", b'{"c":"x"}'), ("n", b"null")]
)
def test_what_is_found(path, found):
    assert look_up(DOCUMENT, parse_path(path)) == found


@pytest.mark.parametrize(
    ("document", "path", "status"),
    [
        (DOCUMENT, "x", Status.SUBDOC_PATH_ENOENT),
        (DOCUMENT, "a.b[2]", Status.SUBDOC_PATH_ENOENT),
        (b'{"a":[]}', "a[-1]", Status.SUBDOC_PATH_ENOENT),
        (DOCUMENT, "a[0]", Status.SUBDOC_PATH_MISMATCH),
        (DOCUMENT, "a.b.c", Status.SUBDOC_PATH_MISMATCH),
        (b"no json", "a", Status.SUBDOC_DOC_NOTJSON),
    ],
)
def test_what_is_not_found(document, path, status):
    with pytest.raises(PathError) as error:
        look_up(document, parse_path(path))
    assert error.value.status == status


@pytest.mark.parametrize(
    ("opcode", "path", "creates_parents", "result"),
    [
        (UPSERT, "x", False, {"a": {"b": 1}, "x": [2]}),
        (UPSERT, "a.b", False, {"a": {"b": [2]}}),
        (UPSERT, "x.y", True, {"a": {"b": 1}, "x": {"y": [2]}}),
        (ADD, "a.c", False, {"a": {"b": 1, "c": [2]}}),
        (REPLACE, "a", False, {"a": [2]}),
        (DELETE, "a.b", False, {"a": {}}),
    ],
)
def test_changes(opcode, path, creates_parents, result):
    changed = change(b'{"a":{"b":1}}', opcode, parse_path(path), b" [2]", creates_parents=creates_parents)
    assert json.loads(changed) == result


@pytest.mark.parametrize(
    ("opcode", "path", "text", "status"),
    [
        (UPSERT, "x.y", b"1", Status.SUBDOC_PATH_ENOENT),
        (UPSERT, "a.b.c", b"1", Status.SUBDOC_PATH_MISMATCH),
        (UPSERT, "a", b"no json", Status.SUBDOC_VALUE_CANTINSERT),
        (ADD, "a", b"1", Status.SUBDOC_PATH_EEXISTS),
        (REPLACE, "x", b"1", Status.SUBDOC_PATH_ENOENT),
        (DELETE, "x", b"", Status.SUBDOC_PATH_ENOENT),
    ],
)
def test_changes_that_cannot_be(opcode, path, text, status):
    with pytest.raises(PathError) as error:
        change(b'{"a":{"b":1}}', opcode, parse_path(path), text, creates_parents=False)
    assert error.value.status == status
