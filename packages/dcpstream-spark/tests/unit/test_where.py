"""The option `where`, and filters of Spark."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpstream.arrow import FULL_SCHEMA, Choice, Comparison, RowFilter
from dcpstream.errors import ConfigError
from dcpstream_spark.where import named_collections, parse_where, pushed_comparison
from tests.kit.cases import each_case


@each_case(
    ("text", "comparisons"),
    [
        ("vbucket = 3", [Comparison("vbucket", "=", 3)]),
        ("VBUCKET==3 AND seqno>-1", [Comparison("vbucket", "=", 3), Comparison("seqno", ">", -1)]),
        ("vbucket in (1,2 , 3)", [Comparison("vbucket", "in", (1, 2, 3))]),
        ("collection not in ('a')", [Comparison("collection", "not in", ("a",))]),
        ("startswith(key, 'it''s ')", [Comparison("key", "startswith", "it's ")]),
        (
            "not startswith(key, 'a') and not seqno < 3",
            [Comparison("key", "not startswith", "a"), Comparison("seqno", ">=", 3)],
        ),
        ("key like 'a%' and key not like '%z'", [Comparison("key", "like", "a%"), Comparison("key", "not like", "%z")]),
        ("key rlike '^a' and key ilike 'A_'", [Comparison("key", "rlike", "^a"), Comparison("key", "ilike", "A_")]),
        ("seqno between 2 and 5", [Comparison("seqno", ">=", 2), Comparison("seqno", "<=", 5)]),
        ("not (vbucket <> 1 or not 7 > seqno)", [Comparison("vbucket", "=", 1), Comparison("seqno", "<", 7)]),
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


@each_case(
    ("text", "message"),
    [
        ("", "it must be one condition"),
        ("seqno = 1; seqno = 2", "it must be one condition"),
        ("vbuket = 3", "in 'vbuket = 3': vbuket is no column that can be compared; these are key, "),
        ("value = 'x'", "value is no column"),
        ("xattrs is null", "xattrs is no column"),
        ("t.key = 'x'", "t.key is no column"),
        ("lower(key) = 'x'", r"LOWER\(key\) is no column"),
        ("vbucket 3", r"at '3' \(character 9\)"),
        ("vbucket is 3", "this is no comparison of a column"),
        ("vbucket not like 3", "vbucket is no text"),
        ("vbucket = '3'", "vbucket is a whole number, '3' is not"),
        ("vbucket = 99999999999", "99999999999 does not fit the column vbucket"),
        ("key = 3", "key is a text: write '3' in single quotes"),
        ("key = x", "x is no whole number and no text in single quotes"),
        ('key = "x"', '"x" is no whole number and no text in single quotes'),
        ("startswith(seqno, '1')", "seqno is no text"),
        ("seqno = 1.5", "1.5 is no whole number"),
        ("seqno in ()", "a list needs values"),
        ("key in (select 1)", "a list needs values|query is not supported"),
        ("seqno between symmetric 2 and 1", "symmetric is not supported"),
        ("key like 'a!%' escape '!'", "this is no comparison of a column"),
        ("seqno in (1", r"at '1' \(character 11\): Expecting \)"),
        ("seqno = 1 seqno = 2", r"at '=' \(character 17\)"),
        ("seqno = 1 and", "at "),
        ("key rlike '('", "'\\(' is no regular expression of RE2"),
        ("expiry = 5", "expiry is a timestamp, 5 is not"),
        ("expiry = 'soon'", "'soon' is no timestamp in ISO 8601"),
        ("(" * 3000 + "key = 'a'" + ")" * 3000, "its brackets are too deep|at "),
        ("key = '" + "x" * 100_000 + "'", "it has more than 100,000 characters"),
    ],
)
def test_a_mistake_is_shown_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_where(text)
    assert caught.value.option == "where"


WORDS = [
    *("vbucket", "key", "=", "in", "(", ")", ",", "'a'", "1", "and", "not", "is", "null", "or", "startswith", "like"),
    *("between", "rlike", ";", "--", "select", "any", "escape", "<>", "case", "when", "then", "end"),
]


@given(st.text(max_size=30) | st.lists(st.sampled_from(WORDS)).map(" ".join))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        found = parse_where(text)
        assert found.comparisons or found.choices


_TEXTS = st.sampled_from(["'a'", "'user:1'", "''", "'b'"])
_PATTERNS = st.sampled_from(["'%'", "'user:_'", "'%A%'", "'_'"])
_LEAVES = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["vbucket", "seqno"]),
        st.sampled_from(["=", "<>", "<", ">="]),
        st.integers(0, 4),
    ),
    st.builds("key {} {}".format, st.sampled_from(["=", "<", "<>"]), _TEXTS),
    st.builds("key {} {}".format, st.sampled_from(["like", "not like"]), _PATTERNS),
    st.builds("key {} ({}, {})".format, st.sampled_from(["in", "not in"]), _TEXTS, _TEXTS),
    st.builds(
        "seqno {} {} and {}".format, st.sampled_from(["between", "not between"]), st.integers(0, 4), st.integers(0, 4)
    ),
    st.builds("{} {}".format, st.sampled_from(["key", "seqno"]), st.sampled_from(["is null", "is not null"])),
)
CONDITIONS = st.recursive(
    _LEAVES,
    lambda some: st.one_of(
        st.builds("({} and {})".format, some, some),
        st.builds("({} or {})".format, some, some),
        some.map("not ({})".format),
    ),
    max_leaves=8,
)
ROWS = [
    (key, vbucket, seqno)
    for key in (None, "", "a", "A", "b", "user:1", "user:22")
    for vbucket, seqno in ((0, 1), (1, 3), (2, None))
]


@given(CONDITIONS)
def test_a_condition_is_true_where_it_is_in_sql(condition: str) -> None:
    """SQLite is the judge: it reads the same text, and has the same rules for null."""
    with sqlite3.connect(":memory:") as database:
        database.execute("pragma case_sensitive_like = on")
        database.execute("create table t (number int, key text, vbucket int, seqno int)")
        database.executemany("insert into t values (?, ?, ?, ?)", [(n, *row) for n, row in enumerate(ROWS)])
        expected = [n for (n,) in database.execute(f"select number from t where {condition} order by number")]
    columns = {
        "key": pa.array([key for key, _, _ in ROWS], pa.string()),
        "vbucket": pa.array([vbucket for _, vbucket, _ in ROWS], pa.int32()),
        "seqno": pa.array([seqno for _, _, seqno in ROWS], pa.int64()),
    }
    found = parse_where(condition)
    stays = Choice(((*found.comparisons, *found.choices),)).of(columns.__getitem__)
    assert [n for n, is_kept in enumerate(stays) if is_kept] == expected


def test_the_collections_that_the_option_names() -> None:
    assert named_collections(parse_where("scope = 'a' and collection = 'b' and vbucket = 1")) == ("a.b",)
    assert named_collections(parse_where("collection in ('c', 'b', 'c') and scope = 'a'")) == ("a.b", "a.c")
    assert named_collections(parse_where("(scope = 'a' and collection = 'b') or vbucket = 1")) is None
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

    @each_case(
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

    @each_case(
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
