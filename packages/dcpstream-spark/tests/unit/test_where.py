"""The option `where`, and filters of Spark."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow import FULL_SCHEMA, Comparison, RowFilter
from dcpstream.errors import ConfigError
from dcpstream_spark.where import named_collections, parse_where, pushed_comparison


@pytest.mark.parametrize(
    ("text", "comparisons"),
    [
        ("vbucket = 3", [Comparison("vbucket", "=", 3)]),
        ("VBUCKET==3 AND seqno>-1", [Comparison("vbucket", "=", 3), Comparison("seqno", ">", -1)]),
        ("vbucket in (1,2 , 3)", [Comparison("vbucket", "in", (1, 2, 3))]),
        ("collection not in ('a')", [Comparison("collection", "not in", ("a",))]),
        ("key startswith 'it''s '", [Comparison("key", "startswith", "it's ")]),
        ("key <> '' and key != 'and'", [Comparison("key", "!=", ""), Comparison("key", "!=", "and")]),
        ("  op<='x'\n and expiry is NULL ", [Comparison("op", "<=", "x"), Comparison("expiry", "is null")]),
        ("key is not null", [Comparison("key", "is not null")]),
        ("cas >= 9223372036854775807", [Comparison("cas", ">=", 2**63 - 1)]),
        (
            "_commit_timestamp < '2024-05-01T10:00:00+02:00' and expiry > '2024-05-01'",
            [
                Comparison("_commit_timestamp", "<", datetime.fromisoformat("2024-05-01T08:00:00+00:00")),
                Comparison("expiry", ">", datetime(2024, 5, 1, tzinfo=UTC)),
            ],
        ),
    ],
)
def test_what_is_understood(text: str, comparisons: list[Comparison]) -> None:
    assert parse_where(text) == RowFilter(tuple(comparisons))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at the end: expected a column, one of key, "),
        ("vbucket = 3 or seqno = 4", r"at 'or' \(character 13\): OR is not supported; leave it to Spark"),
        ("vbuket = 3", r"at 'vbuket' \(character 1\): expected a column"),
        ("value = 'x'", "expected a column"),
        ("xattrs is null", "expected a column"),
        ("vbucket 3", r"at '3' \(character 9\): expected an operator"),
        ("vbucket is 3", "expected an operator"),
        ("vbucket not like 3", "expected an operator"),
        ("vbucket = '3'", "at '=' .*: vbucket is a whole number, '3' is not"),
        ("vbucket = 99999999999", "99999999999 does not fit the column vbucket"),
        ("key = 3", "key is a text: write '3' in single quotes"),
        ("key = x", r"at 'x' \(character 7\): expected a number or a text"),
        ('key = "x"', r"at '\"x\"' \(character 6\): this is no number"),
        ("seqno startswith '1'", "seqno is no text"),
        ("seqno = 1.5", "this is no number"),
        ("seqno in ()", r"at '\)' .*expected a number or a text"),
        ("seqno in (1", "at the end: expected \\)"),
        ("seqno = 1 seqno = 2", "expected AND or the end"),
        ("seqno = 1 and", "at the end: expected a column"),
        ("expiry = 5", "expiry is a timestamp, 5 is not"),
        ("expiry = 'soon'", "'soon' is no timestamp in ISO 8601"),
    ],
)
def test_a_mistake_is_shown_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_where(text)
    assert (caught.value.option, caught.value.value) == ("where", text)


WORDS = ["vbucket", "key", "=", "in", "(", ")", ",", "'a'", "1", "and", "not", "is", "null", "or", "startswith"]


@given(st.text(max_size=30) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_where(text).comparisons


def test_the_collections_that_the_option_names() -> None:
    assert named_collections(parse_where("scope = 'a' and collection = 'b' and vbucket = 1")) == ("a.b",)
    assert named_collections(parse_where("collection in ('c', 'b', 'c') and scope = 'a'")) == ("a.b", "a.c")
    for text in ("collection = 'b'", "scope = 'a' and collection != 'b'", "scope in ('a', 'b') and collection = 'c'"):
        assert named_collections(parse_where(text)) is None


class TestPushed:
    """Filters as Spark hands them over."""

    COLUMNS: ClassVar = {name: name for name in FULL_SCHEMA.names}

    @pytest.fixture(autouse=True)
    def filters(self) -> None:
        pytest.importorskip("pyspark.sql.datasource").__dict__.get("EqualTo") or pytest.skip(
            "no push-down in this Spark"
        )

    def pushed(self, name: str, column: str, *value: Any, is_negated: bool = False) -> Comparison | None:
        import pyspark.sql.datasource as api

        one: Any = getattr(api, name)((column,), *value)
        return pushed_comparison(api.Not(one) if is_negated else one, self.COLUMNS)

    @pytest.mark.parametrize(
        ("name", "column", "value", "comparison"),
        [
            ("EqualTo", "vbucket", 3, Comparison("vbucket", "=", 3)),
            ("EqualNullSafe", "vbucket", 3, Comparison("vbucket", "=", 3)),
            ("GreaterThan", "seqno", 3, Comparison("seqno", ">", 3)),
            ("GreaterThanOrEqual", "seqno", 3, Comparison("seqno", ">=", 3)),
            ("LessThan", "seqno", 3, Comparison("seqno", "<", 3)),
            ("LessThanOrEqual", "key", "x", Comparison("key", "<=", "x")),
            ("In", "op", ["a", "b"], Comparison("op", "in", ("a", "b"))),
            ("StringStartsWith", "key", "x", Comparison("key", "startswith", "x")),
            ("EqualNullSafe", "vbucket", None, None),
            ("StringEndsWith", "key", "x", None),
            ("StringContains", "key", "x", None),
            ("EqualTo", "value", b"x", None),
            ("EqualTo", "name", "x", None),
            ("In", "vbucket", [1, None], None),
            ("EqualTo", "vbucket", 2**40, None),
            ("EqualTo", "expiry", datetime(2024, 1, 1), None),  # noqa: DTZ001
            (
                "EqualTo",
                "expiry",
                datetime(2024, 1, 1, tzinfo=UTC),
                Comparison("expiry", "=", datetime(2024, 1, 1, tzinfo=UTC)),
            ),
        ],
    )
    def test_filters(self, name: str, column: str, value: Any, comparison: Comparison | None) -> None:
        assert self.pushed(name, column, value) == comparison

    def test_null(self) -> None:
        assert self.pushed("IsNull", "key") == Comparison("key", "is null")
        assert self.pushed("IsNotNull", "key") == Comparison("key", "is not null")

    @pytest.mark.parametrize(
        ("name", "value", "comparison"),
        [
            ("EqualTo", ["a"], Comparison("key", "!=", "a")),
            ("In", [["a"]], Comparison("key", "not in", ("a",))),
            ("IsNull", [], Comparison("key", "is not null")),
            ("IsNotNull", [], Comparison("key", "is null")),
            ("EqualNullSafe", ["a"], None),
            ("GreaterThan", ["a"], None),
            ("StringStartsWith", ["a"], None),
        ],
    )
    def test_negated(self, name: str, value: list[Any], comparison: Comparison | None) -> None:
        """NOT (x <=> 'a') is true for null, which no comparison of ours is."""
        assert self.pushed(name, "key", *value, is_negated=True) == comparison

    def test_names_in_the_schema_lead_to_columns(self) -> None:
        import pyspark.sql.datasource as api

        assert pushed_comparison(api.EqualTo(("_dcp_key",), "k"), {"_dcp_key": "key"}) == Comparison("key", "=", "k")
        assert pushed_comparison(api.EqualTo(("key",), "k"), {"_dcp_key": "key"}) is None
        assert pushed_comparison(api.EqualTo(("key", "x"), "k"), {"key": "key"}) is None
