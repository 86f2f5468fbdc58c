"""Places in JSON texts."""

from __future__ import annotations

import json

import pytest

from dcpstream.wire import Status
from dcpstream_node.engine.subdocument.paths import LEVELS_MAX, PathError, parse_path
from dcpstream_node.engine.subdocument.scanner import Found, Missing, Text, is_deeper, locate, members
from tests.kit.cases import each_case
from tests.kit.rules import rule

TEXT = ' { "a" : {"b":[1 , {"c":"x]}"} ]} ,\n"é":null, "a":2, "q\\"":[ ], "\\u0062":7}'


@each_case(
    ("path", "found"),
    [
        ("a.b", '[1 , {"c":"x]}"} ]'),
        ("a.b[1].c", '"x]}"'),
        ("a.b[-1]", '{"c":"x]}"}'),
        ("a.b[0]", "1"),
        ("é", "null"),
        (r"q\"", "[ ]"),
        ("b", "7"),
        ("", TEXT.strip()),
    ],
)
def test_what_is_found(path, found):
    place = locate(TEXT, parse_path(path.encode()))
    assert isinstance(place, Found)
    assert TEXT[place.start : place.end] == found


def nested(levels: int, leaf: str = "") -> str:
    return "[" * levels + leaf + "]" * levels


@each_case(
    ("text", "levels"),
    [("1", 1), (nested(1), 1), ("[1]", 2), (nested(32), 32), (nested(31, '"]"'), 32), ('{"[":1}', 2)],
)
def test_levels(text, levels):
    assert not is_deeper(text, levels)
    assert levels == 1 or is_deeper(text, levels - 1)


@rule("KV-SUBDOC-18")
def test_a_document_as_deep_as_allowed():
    deep = '{"a":' + nested(LEVELS_MAX - 1) + ',"b":1}'
    assert isinstance(locate(deep, ("b",)), Found)
    too_deep = '{"a":' + nested(LEVELS_MAX - 1, "0") + ',"b":1}'
    with pytest.raises(PathError) as error:
        locate(too_deep, ("b",))
    assert error.value.status == Status.SUBDOC_DOC_E2DEEP


def test_members_keep_their_texts():
    assert list(members('{"a": [1, 2] , "b":{}}', 0)) == [("a", "[1, 2]"), ("b", "{}")]


@each_case("end", ["}", ",}", ', "b" 1}', ""])
def test_large_texts_that_are_not_json(end):
    text = json.dumps({f"k{number}": number for number in range(3000)})[:-1] + end
    if end == "}":
        assert isinstance(locate(text, ("x",)), Missing)
        return
    with pytest.raises(PathError) as error:
        locate(text, ("x",))
    assert error.value.status == Status.SUBDOC_DOC_NOTJSON


PATHS = ("a.b[1].c", "b", "a.x.y", "q", r"q\"", "a", r"\b", "é", "a.b[-1]", "a[0]", "é.x", "", "b", "x")


def outcome(text: str, path: str) -> object:
    try:
        return locate(text, parse_path(path.encode()))
    except PathError as error:
        return error.status


def test_a_text_that_remembers_finds_the_same():
    text = Text(TEXT, is_for_reading=True)
    for path in (*PATHS, *reversed(PATHS)):
        expected, found = outcome(TEXT, path), outcome(text, path)
        if isinstance(found, Found | Missing):
            assert isinstance(expected, Found | Missing), path
            assert found[:3] == expected[:3], path
        else:
            assert found == expected, path


@rule("KV-SUBDOC-18")
def test_a_text_that_remembers_sees_what_is_broken_each_time():
    text = Text('{"a":1,"a":2,"b":oops', is_for_reading=True)
    assert outcome(text, "a") == Found(5, 6, 1, 0)
    assert [outcome(text, path) for path in ("c", "c", "b")] == [Status.SUBDOC_DOC_NOTJSON] * 3
    deep = Text('{"a":1,"b":' + nested(LEVELS_MAX) + "}", is_for_reading=True)
    assert isinstance(outcome(deep, "a"), Found)
    assert outcome(deep, "b") == outcome(deep, "c") == Status.SUBDOC_DOC_E2DEEP
    deep.forget()
    assert outcome(deep, "a") == Found(5, 6, 1, 0)
