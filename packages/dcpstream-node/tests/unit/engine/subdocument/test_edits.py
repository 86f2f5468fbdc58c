"""Lookups and changes of parts of JSON texts: bytes kept, statuses, and a model of what each operation means."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.wire import Opcode, Status
from dcpstream_node.engine.subdocument import edits, scanner
from dcpstream_node.engine.subdocument.paths import Path, PathError, parse_path
from tests.kit.cases import each_case
from tests.kit.rules import rule

ADD, UPSERT, REPLACE = Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_REPLACE
DELETE, COUNTER, INSERT = Opcode.SUBDOC_DELETE, Opcode.SUBDOC_COUNTER, Opcode.SUBDOC_ARRAY_INSERT
LAST, FIRST, UNIQUE = Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST, Opcode.SUBDOC_ARRAY_ADD_UNIQUE


def change(opcode: int, text: str, path: str, value: str = "", *, parents: bool = False) -> str:
    return edits.change(opcode, text, parse_path(path.encode()), value, creates_parents=parents).text


@rule("KV-SUBDOC-17")
@each_case(
    ("opcode", "text", "path", "value", "result"),
    [
        (ADD, '{"a":1 }', "b", "[2 ]", '{"a":1 ,"b":[2 ]}'),
        (ADD, "{ }", "b", "2", '{ "b":2}'),
        (UPSERT, '{ "a" : {"b" : 1} }', "a.b", "9", '{ "a" : {"b" : 9} }'),
        (UPSERT, '{"a":{}}', r"a.x\"y", "0", '{"a":{"x\\"y":0}}'),
        (REPLACE, "[1, 2 ,3]", "[1]", "[]", "[1, [] ,3]"),
        (REPLACE, "[1,2]", "[-1]", "7", "[1,7]"),
        (DELETE, '{"a":1, "b":2, "c":3}', "a", "", '{ "b":2, "c":3}'),
        (DELETE, '{"a":1, "b":2, "c":3}', "b", "", '{"a":1,  "c":3}'),
        (DELETE, '{"a":1, "b":2 , "c":3}', "c", "", '{"a":1, "b":2 }'),
        (DELETE, '{ "a":1 }', "a", "", "{  }"),
        (DELETE, "[1,[2]]", "[1][0]", "", "[1,[]]"),
        (DELETE, "[1,2]", "[-1]", "", "[1]"),
        (LAST, '{"a":[1 ]}', "a", "2,3", '{"a":[1 ,2,3]}'),
        (LAST, "[ 1 ] ", "", "2", "[ 1,2]"),
        (LAST, "[ ]", "", "2", "[2]"),
        (LAST, '{"a":[ ]}', "a", "2", '{"a":[ 2]}'),
        (FIRST, '{"a":[ 1]}', "a", "2,3", '{"a":[ 2,3,1]}'),
        (FIRST, '{"a":[ ]}', "a", "2", '{"a":[2]}'),
        (FIRST, "[]", "", "2", "[2]"),
        (INSERT, "[1,2]", "[1]", "8,9", "[1,8,9,2]"),
        (INSERT, "[1,2]", "[2]", "3", "[1,2,3]"),
        (INSERT, "[]", "[0]", "3", "[3]"),
        (UNIQUE, '["1",2]', "", "1", '["1",2,1]'),
        (UNIQUE, '{"a":["x"]}', "a", '"y"', '{"a":["x","y"]}'),
        (COUNTER, '{"n":5}', "n", "-7", '{"n":-2}'),
        (COUNTER, "{}", "n", "3", '{"n":3}'),
        (COUNTER, "[-20]", "[0]", "1", "[-19]"),
    ],
)
def test_what_is_not_touched_keeps_its_bytes(opcode, text, path, value, result):
    assert change(opcode, text, path, value) == result


@rule("KV-SUBDOC-17")
@each_case(
    ("opcode", "path", "value", "result"),
    [
        (ADD, "x.y.z", "1", '{"a":{"b":1},"x":{"y":{"z":1}}}'),
        (UPSERT, "a.c.d", "1", '{"a":{"b":1,"c":{"d":1}}}'),
        (LAST, "x.y", "1,2", '{"a":{"b":1},"x":{"y":[1,2]}}'),
        (FIRST, "x", "1", '{"a":{"b":1},"x":[1]}'),
        (UNIQUE, "x", "null", '{"a":{"b":1},"x":[null]}'),
        (COUNTER, "x.n", "4", '{"a":{"b":1},"x":{"n":4}}'),
    ],
)
def test_parents_are_made_on_request(opcode, path, value, result):
    assert change(opcode, '{"a":{"b":1}}', path, value, parents=True) == result
    if "." in path or opcode in (LAST, FIRST, UNIQUE):
        with pytest.raises(PathError) as error:
            change(opcode, '{"a":{"b":1}}', path, value)
        assert error.value.status == Status.SUBDOC_PATH_ENOENT


ENOENT, MISMATCH, EINVAL = Status.SUBDOC_PATH_ENOENT, Status.SUBDOC_PATH_MISMATCH, Status.SUBDOC_PATH_EINVAL
CANTINSERT, EEXISTS, ETOODEEP = (
    Status.SUBDOC_VALUE_CANTINSERT,
    Status.SUBDOC_PATH_EEXISTS,
    Status.SUBDOC_VALUE_ETOODEEP,
)


@rule("KV-SUBDOC-13", "KV-SUBDOC-17", "KV-SUBDOC-18")
@each_case(
    ("opcode", "text", "path", "value", "status"),
    [
        (ADD, '{"a":1}', "a", "2", EEXISTS),
        (ADD, "[1]", "[1]", "2", EINVAL),
        (UPSERT, "[1]", "a", "2", MISMATCH),
        (UPSERT, "{}", "", "2", CANTINSERT),
        (UPSERT, "{}", "a", "no", CANTINSERT),
        (UPSERT, "{}", "a", "1,2", CANTINSERT),
        (UPSERT, "{}", "a", "1}", CANTINSERT),
        (UPSERT, "{}", "a", '1},{"b":2', CANTINSERT),
        (UPSERT, "{}", "a", " ", CANTINSERT),
        (UPSERT, "{}", "a", "NaN", CANTINSERT),
        (UPSERT, "{}", "a", '"\n"', CANTINSERT),
        (UPSERT, "{}", "a", "2.", CANTINSERT),
        (UPSERT, "{}", "a", "[" * 32 + "]" * 32, ETOODEEP),
        (UPSERT, "{}", "a", "[" * 100_000, ETOODEEP),
        (REPLACE, "{}", "a", "1", ENOENT),
        (DELETE, "{}", "a", "", ENOENT),
        (DELETE, "{}", "", "", CANTINSERT),
        (LAST, "{}", "", "1", MISMATCH),
        (LAST, "7", "", "1", Status.SUBDOC_DOC_NOTJSON),
        (LAST, '{"a":{}}', "a", "1", MISMATCH),
        (LAST, "[]", "", "1],[2", CANTINSERT),
        (LAST, "[]", "", " ", CANTINSERT),
        (FIRST, '{"a":{}}', "a", "1", MISMATCH),
        (FIRST, '{"a":1}', "a", "1", MISMATCH),
        (FIRST, "{}", ".".join("a" * 31), "1", ETOODEEP),
        (INSERT, "[1]", "[2]", "1", ENOENT),
        (INSERT, "[1]", "[-1]", "1", EINVAL),
        (INSERT, "{}", "a", "1", EINVAL),
        (INSERT, '{"b":[]}', "a[0]", "1", ENOENT),
        (INSERT, '{"a":[]}', "a[0][0]", "1", ENOENT),
        (INSERT, "[]", "", "1", EINVAL),
        (UNIQUE, '{"a":{"b":2}}', "a", "2", MISMATCH),
        (UNIQUE, '{"a":7}', "a", "2", MISMATCH),
        (COUNTER, "{}", "a[0]", "1", ENOENT),
        (UNIQUE, "[1]", "", "1", EEXISTS),
        (UNIQUE, "[1,[]]", "", "2", MISMATCH),
        (UNIQUE, '{"a":{}}', "a", "2", MISMATCH),
        (UNIQUE, "[]", "", "[]", CANTINSERT),
        (UNIQUE, "[]", "", "1,2", CANTINSERT),
        (COUNTER, "{}", "a", "0", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "-0", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "01", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "1.5", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "+1", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "9223372036854775808", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "-9223372036854775809", Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, "{}", "a", "9" * 5000, Status.SUBDOC_DELTA_EINVAL),
        (COUNTER, '{"a":' + "9" * 5000 + "}", "a", "1", Status.SUBDOC_NUM_ERANGE),
        (COUNTER, '{"a":"1"}', "a", "1", MISMATCH),
        (COUNTER, '{"a":1.5}', "a", "1", MISMATCH),
        (COUNTER, '{"a":true}', "a", "1", MISMATCH),
        (COUNTER, '{"a":9999999999999999999999}', "a", "1", Status.SUBDOC_NUM_ERANGE),
        (COUNTER, '{"a":9223372036854775807}', "a", "1", CANTINSERT),
        (COUNTER, '{"a":-9223372036854775808}', "a", "-1", CANTINSERT),
        (COUNTER, "[]", "[0]", "1", ENOENT),
        (COUNTER, "{}", "a.b", "1", ENOENT),
    ],
)
def test_what_cannot_be_done(opcode, text, path, value, status):
    with pytest.raises(PathError) as error:
        change(opcode, text, path, value)
    assert error.value.status == status


@rule("KV-SUBDOC-13")
def test_the_whole_range_of_a_counter():
    assert change(COUNTER, '{"n":0}', "n", str(edits.INT64_MIN)) == f'{{"n":{edits.INT64_MIN}}}'
    assert change(COUNTER, '{"n":0}', "n", str(edits.INT64_MAX)) == f'{{"n":{edits.INT64_MAX}}}'
    assert edits.change(COUNTER, '{"n":1}', ("n",), "2", creates_parents=False).result == "3"
    assert change(COUNTER, f'{{"n":{edits.INT64_MIN + 1}}}', "n", "-1") == f'{{"n":{edits.INT64_MIN}}}'
    assert change(COUNTER, f'{{"n":{edits.INT64_MAX - 1}}}', "n", "1") == f'{{"n":{edits.INT64_MAX}}}'


@rule("KV-SUBDOC-13")
def test_counting():
    text = '{"a":[1,[2,3]],"b":{"x":1,"x":2},"c":"{"}'
    assert [edits.count(text, parse_path(path)) for path in (b"", b"a", b"a[1]", b"b")] == ["3", "2", "2", "2"]
    for path, status in ((b"c", MISMATCH), (b"d", ENOENT)):
        with pytest.raises(PathError) as error:
            edits.count(text, parse_path(path))
        assert error.value.status == status


@rule("KV-SUBDOC-17")
@each_case("opcode", [UPSERT, LAST, FIRST, UNIQUE, COUNTER])
def test_arrays_are_not_made_on_the_way(opcode):
    with pytest.raises(PathError) as error:
        change(opcode, "{}", "a[0].b", "1", parents=True)
    assert error.value.status == ENOENT


@rule("KV-SUBDOC-18")
def test_the_deepest_value():
    path = ".".join("a" * 30)
    assert change(UPSERT, "{}", path, "[1]", parents=True)
    with pytest.raises(PathError) as error:
        change(UPSERT, "{}", path, "[[1]]", parents=True)
    assert error.value.status == ETOODEEP


# --------------------------------------------------------------------------------------------------------- the model

NAMES = st.sampled_from(["a", "b", "c.d", "é", "x`y"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab]{"\\', max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(NAMES, children, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.lists(VALUES, max_size=4) | st.dictionaries(NAMES, VALUES, max_size=4)
PATHS = st.lists(NAMES | st.integers(-1, 3), max_size=3)
BLANKS = st.sampled_from([None, 0, 2])


class Refused(Exception):
    """The model says no."""


def follow(document: Any, path: list[Any]) -> Any:
    """The model of a path: the value that it leads to."""
    for part in path:
        if isinstance(part, str) is not isinstance(document, dict) or not isinstance(document, (dict, list)):
            raise Refused(MISMATCH)
        if isinstance(document, dict):
            if part not in document:
                raise Refused(ENOENT)
        elif not -1 <= part < len(document) or not document:
            raise Refused(ENOENT)
        document = document[part]
    return document


def model(opcode: int, document: Any, path: list[Any], value: Any) -> Any:
    """The result of an operation on a document, without parents being made."""
    document = copy.deepcopy(document)
    if opcode == UNIQUE and isinstance(value, (list, dict)):
        raise Refused(CANTINSERT)
    if opcode in (LAST, FIRST, UNIQUE):
        array = follow(document, path)
        if not isinstance(array, list):
            raise Refused(MISMATCH)
        if opcode == UNIQUE:
            for element in array:
                if isinstance(element, (list, dict)):
                    raise Refused(MISMATCH)
                if json.dumps(element) == json.dumps(value):
                    raise Refused(EEXISTS)
        array.insert(0 if opcode == FIRST else len(array), value)
        return document
    if not path:
        raise Refused(CANTINSERT)
    if opcode in (ADD, UPSERT) and isinstance(path[-1], int):
        status, _ = expected_of(lambda: follow(document, path))
        raise Refused(MISMATCH if status == MISMATCH else EINVAL)
    parent = follow(document, path[:-1])
    last = path[-1]
    if opcode == INSERT:
        if not isinstance(parent, list):
            raise Refused(MISMATCH)
        if last > len(parent):
            raise Refused(ENOENT)
        parent.insert(last, value)
        return document
    try:
        follow(parent, [last])
        is_there = True
    except Refused as refused:
        if refused.args[0] != ENOENT:
            raise
        is_there = False
    if opcode in (ADD, UPSERT):
        if is_there and opcode == ADD:
            raise Refused(EEXISTS)
        parent[last] = value
        return document
    if not is_there:
        raise Refused(ENOENT)
    if opcode == DELETE:
        del parent[last]
    else:
        parent[last] = value
    return document


def as_path(parts: list[Any]) -> Path:
    return parse_path(
        "".join(f"[{part}]" if isinstance(part, int) else f".`{part.replace('`', '``')}`" for part in parts)
        .removeprefix(".")
        .encode()
    )


def expected_of(call: Callable[[], Any]) -> tuple[int, Any]:
    """(status, value) that the model has."""
    try:
        return 0, call()
    except Refused as refused:
        return int(refused.args[0]), None


def actual_of(call: Callable[[], str]) -> tuple[int, Any]:
    """(status, value) that we have."""
    try:
        return 0, json.loads(call())
    except PathError as error:
        return error.status, None


@given(DOCUMENTS, PATHS, BLANKS)
def test_lookups_equal_the_model(document, parts, blanks):
    text = json.dumps(document, indent=blanks, ensure_ascii=False)
    expected = expected_of(lambda: follow(document, parts))
    assert actual_of(lambda: edits.look_up(text, as_path(parts))) == expected


@given(
    st.sampled_from([ADD, UPSERT, REPLACE, DELETE, LAST, FIRST, INSERT, UNIQUE]),
    DOCUMENTS,
    PATHS,
    VALUES,
    BLANKS,
    st.sampled_from([0, scanner.LARGE_CHARACTERS]),
)
def test_changes_equal_the_model(opcode, document, parts, value, blanks, large):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scanner, "LARGE_CHARACTERS", large)
        check_change(opcode, document, parts, value, blanks)


def check_change(opcode: int, document: Any, parts: list[Any], value: Any, blanks: int | None) -> None:
    if opcode == INSERT and (not parts or isinstance(parts[-1], str) or parts[-1] < 0):
        return
    text, path, inserted = json.dumps(document, indent=blanks, ensure_ascii=False), as_path(parts), json.dumps(value)
    expected = expected_of(lambda: model(opcode, document, parts, value))
    assert actual_of(lambda: edits.change(opcode, text, path, inserted, creates_parents=False).text) == expected


@given(DOCUMENTS, st.lists(NAMES, min_size=1, max_size=4), VALUES)
def test_parents_equal_the_model(document, parts, value):
    text, expected = json.dumps(document), copy.deepcopy(document)
    at: Any = expected
    is_possible = True
    for part in parts[:-1]:
        is_possible = is_possible and isinstance(at, dict)
        at = at.setdefault(part, {}) if is_possible else at
    if not is_possible or not isinstance(at, dict):
        with pytest.raises(PathError) as error:
            edits.change(UPSERT, text, as_path(parts), json.dumps(value), creates_parents=True)
        assert error.value.status == MISMATCH
        return
    at[parts[-1]] = value
    changed = edits.change(UPSERT, text, as_path(parts), json.dumps(value), creates_parents=True)
    assert json.loads(changed.text) == expected
