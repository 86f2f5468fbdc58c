"""Requests of a batch with a filter."""

from __future__ import annotations

from dataclasses import replace

from dcpstream.arrow import Comparison, RowFilter
from dcpstream.model import CollectionName
from dcpstream_spark.source.narrowing import last_seqno, may_keep_control_rows, wanted_collections
from dcpstream_spark.where import parse_where
from tests.kit.cases import each_case

LIVING = (
    CollectionName(0, "_default", "_default"),
    CollectionName(8, "shop", "orders"),
    CollectionName(9, "shop", "returns"),
    CollectionName(10, "old", "orders"),
)


def pushed(text: str) -> RowFilter:
    """The comparisons as Spark pushes them: of control rows, too."""
    return RowFilter(exact=parse_where(text).comparisons)


@each_case("of", [parse_where, pushed])
@each_case(
    ("text", "is_kept"),
    [
        ("seqno > 3", True),
        ("op = 'mutation'", False),
        ("op != 'rollback'", True),
        ("op in ('mutation', 'rollback')", True),
        ("startswith(op, 'm') and seqno > 3", False),
    ],
)
def test_which_filters_keep_control_rows(of: object, text: str, is_kept: bool) -> None:
    assert callable(of)
    assert may_keep_control_rows(of(text)) is is_kept


def test_a_control_row_has_no_key() -> None:
    assert not may_keep_control_rows(pushed("key = 'a'"))
    assert may_keep_control_rows(pushed("key is null"))
    assert may_keep_control_rows(parse_where("key = 'a'")), "where keeps it: tables need it"


@each_case(
    ("text", "last"),
    [
        ("seqno <= 9 and seqno < 8 and seqno >= 2", 7),
        ("seqno = 5", 5),
        ("seqno in (1, 6, 4) and vbucket = 3", 6),
        ("seqno < -4", -5),
        ("seqno > 5 and seqno != 7", None),
    ],
)
def test_the_last_seqno(text: str, last: int | None) -> None:
    assert last_seqno(pushed(text)) == last
    assert last_seqno(parse_where(text)) is None, "control rows above it stay"
    assert last_seqno(parse_where(f"{text} and op = 'mutation'")) == last


@each_case(
    ("text", "ids"),
    [
        ("collection = 'orders'", {8, 10}),
        ("collection in ('orders', 'nothing') and scope = 'shop'", {8}),
        ("startswith(collection, 'ret')", {9}),
        ("collection = 'nothing'", set()),
        ("scope = 'shop'", None),
        ("startswith(collection, '0')", None),
        ("collection in ('0x9', 'orders')", None),
        ("collection != 'orders'", None),
        ("seqno > 3", None),
    ],
)
def test_the_collections_of_pushed_filters(text: str, ids: set[int] | None) -> None:
    """Without a row of a scope, or of a collection that is gone and has an id for a name."""
    found = wanted_collections(pushed(text), LIVING)
    assert (None if found is None else {one.collection_id for one in found}) == ids


def test_the_option_where_is_exact_only_without_control_rows() -> None:
    assert wanted_collections(parse_where("collection = 'orders'"), LIVING) is None
    found = wanted_collections(parse_where("scope = 'shop' and op in ('mutation', 'deletion')"), LIVING)
    assert found == LIVING[1:3]


def test_events_of_collections_that_are_gone_and_have_names() -> None:
    gone = [CollectionName(5, "shop", "orders")]
    by_name = pushed("collection = 'orders'")
    assert wanted_collections(by_name, LIVING, gone) is None
    assert wanted_collections(pushed("collection = 'returns'"), LIVING, gone) == (LIVING[2],)
    without_events = replace(by_name, exact=(*by_name.exact, Comparison("_change_type", "=", "insert")))
    assert wanted_collections(without_events, LIVING, gone) == (LIVING[1], LIVING[3])
