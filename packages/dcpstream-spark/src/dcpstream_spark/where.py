"""The option `where`, and the filters that Spark pushes down, as filters of rows.

The option is a condition in SQL on the source's columns, without functions and subqueries:

| written | true if |
| --- | --- |
| `vbucket = 3`, also `!=` `<>` `<` `<=` `>` `>=` | the column compares so |
| `seqno between 10 and 20` | it lies between both, or is one of them |
| `vbucket in (1, 2)`, `collection not in ('a', 'b')` | the column is, or is not, one of the values |
| `startswith(key, 'user:')` | the text begins so |
| `key like 'user:%'`, `key ilike '%BOS_'` | it has the form: `%` any characters, `_` one; `ilike`: also in other case |
| `key rlike '^[a-z]+:[0-9]+$'` | the regular expression (of RE2) is found in the text |
| `expiry is null`, `key is not null` | the column has no value, or has one |

`and`, `or`, `not` and brackets join them. Texts stand in single quotes, and a quote in a text is written twice.
Timestamps are texts in ISO 8601, in UTC if they name no zone. A comparison with null is not true, and neither is its
opposite, as in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pyarrow as pa
import pyarrow.compute as pc

from dcpstream.arrow import CHANGE_SCHEMA, FILTER_COLUMNS, OF_TEXTS, Choice, Comparison, RowFilter
from dcpstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from sqlglot.expressions import Expr

OPTION = "where"
MAX_CONDITION_CHARACTERS = 100_000
"""Longest text that is read: a list of thousands of keys fits."""

_ALLOWED = (
    "a condition in SQL on the source's columns, like vbucket in (1, 2) and (key like 'user:%' or seqno > 100); see "
    "the reference of the Spark source"
)

_PUSHED = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "startswith",
    "IsNull": "is null",
    "IsNotNull": "is not null",
}
_OPPOSITES = {"=": "!=", "<": ">=", ">": "<=", "in": "not in", "is null": "is not null"}
_NEGATED = _OPPOSITES | {right: left for left, right in _OPPOSITES.items()}
"""Operator → the one that is true where the first is false; neither is true for null."""

_PUSHED_NEGATED = frozenset(("=", "in", "is null", "is not null"))
"""Operators whose opposites are taken over from Spark; NOT of the others stays there."""

_KNOWN_PARTS = frozenset(("this", "expression", "expressions", "low", "high", "negate"))
"""Parts of a parsed condition that are read. One that has others is refused, because it means something else."""

_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def parse_where(text: str) -> RowFilter:
    """The option as a filter.

    Raises:
        ConfigError: the text cannot be understood, or compares what cannot be compared; says what and where.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    if len(text) > MAX_CONDITION_CHARACTERS:
        raise _refused(text[:100], f"it has more than {MAX_CONDITION_CHARACTERS:,} characters")
    try:
        found = [one for one in sqlglot.parse(text) if one is not None]
        if len(found) != 1:
            raise _refused(text, "it must be one condition")
        conditions = _Reader(text).conditions(found[0], is_negated=False)
    except SqlglotError as error:
        raise _refused(text, _syntax(error)) from None
    except RecursionError:
        raise _refused(text, "its brackets are too deep") from None
    return RowFilter(
        tuple(one for one in conditions if isinstance(one, Comparison)),
        choices=tuple(one for one in conditions if isinstance(one, Choice)),
    )


def _refused(text: str, what: str) -> ConfigError:
    return ConfigError(OPTION, text, _ALLOWED, message=f"{OPTION} cannot be {text!r}: {what}. Allowed is {_ALLOWED}")


def _syntax(error: Exception) -> str:
    """The place of a mistake in the syntax."""
    details = (getattr(error, "errors", None) or [{}])[0]
    if not details.get("highlight"):
        return "it is not SQL"
    return f"at {details['highlight']!r} (character {len(details['start_context']) + 1}): {details['description']}"


def pushed_comparison(spark_filter: Filter, columns: Mapping[str, str]) -> Comparison | None:
    """A filter of Spark as a comparison, or None if Spark must apply it.

    Args:
        spark_filter: of `pyspark.sql.datasource`.
        columns: name in Spark's schema → column of the source.
    """
    name = type(spark_filter).__name__
    is_negated = name == "Not"
    inner: Any = spark_filter.child if is_negated else spark_filter  # type: ignore[attr-defined]
    operator = _PUSHED.get(type(inner).__name__)
    if operator is None or len(inner.attribute) != 1 or (is_negated and type(inner).__name__ == "EqualNullSafe"):
        return None
    column = columns.get(inner.attribute[0], "")
    if column not in FILTER_COLUMNS:
        return None
    if is_negated:
        if operator not in _PUSHED_NEGATED:
            return None
        operator = _NEGATED[operator]
    value: Any = getattr(inner, "value", None)
    if isinstance(value, datetime) and value.tzinfo is None:
        return None
    if operator in {"in", "not in"}:
        value = tuple(value)
    try:
        return _checked(column, operator, value)
    except ValueError:
        return None


def named_collections(row_filter: RowFilter) -> tuple[str, ...] | None:
    """The paths of the collections that the option allows, sorted.

    Returns: None if it does not name the scope by `=`, and the collection by `=` or `in`.
    """
    named = {one.column: one for one in row_filter.comparisons if one.operator in {"=", "in"}}
    if "collection" not in named or "scope" not in named or named["scope"].operator != "=":
        return None
    collections = named["collection"]
    names = (collections.value,) if collections.operator == "=" else collections.value
    return tuple(sorted({f"{named['scope'].value}.{name}" for name in names}))


class _Reader:
    """Reads a parsed condition; NOT is moved down to the comparisons, because a comparison with null is never true."""

    def __init__(self, text: str) -> None:
        from sqlglot import expressions as e

        self._text = text
        self._e = e
        self._comparisons: dict[type[Expr], str] = {
            e.EQ: "=",
            e.NEQ: "!=",
            e.LT: "<",
            e.LTE: "<=",
            e.GT: ">",
            e.GTE: ">=",
            e.Like: "like",
            e.ILike: "ilike",
            e.RegexpLike: "rlike",
            e.StartsWith: "startswith",
        }

    def conditions(self, one: Expr, *, is_negated: bool) -> tuple[Comparison | Choice, ...]:
        """The conditions that must all be true.

        Raises: ConfigError: something is no such condition.
        """
        e = self._e
        if others := {name for name, value in one.args.items() if value} - _KNOWN_PARTS:
            self._fail(one, f"{' and '.join(sorted(others))} is not supported")
        is_negated ^= bool(one.args.get("negate"))
        if isinstance(one, e.Paren):
            return self.conditions(one.this, is_negated=is_negated)
        if isinstance(one, e.Not):
            return self.conditions(one.this, is_negated=not is_negated)
        if isinstance(one, (e.And, e.Or)):
            parts = [self.conditions(part, is_negated=is_negated) for part in one.flatten(unnest=False)]
            if isinstance(one, e.And) is not is_negated:
                return tuple(condition for part in parts for condition in part)
            return (Choice(tuple(parts)),)
        if isinstance(one, e.Between):
            low = self._comparison(one, one.this, ">=", one.args["low"])
            high = self._comparison(one, one.this, "<=", one.args["high"])
            if is_negated:
                return (Choice(((self._opposite(low),), (self._opposite(high),))),)
            return low, high
        found = self._leaf(one)
        return (self._opposite(found) if is_negated else found,)

    def _opposite(self, one: Comparison) -> Comparison:
        opposite = _NEGATED.get(one.operator) or (
            one.operator.removeprefix("not ") if one.operator.startswith("not ") else f"not {one.operator}"
        )
        return Comparison(one.column, cast(Any, opposite), one.value)

    def _leaf(self, one: Expr) -> Comparison:
        e = self._e
        if isinstance(one, e.Is) and isinstance(one.expression, e.Null):
            return Comparison(self._column(one, one.this), "is null")
        if isinstance(one, e.In):
            if not one.expressions:
                self._fail(one, "a list needs values, as in vbucket in (1, 2)")
            return self._comparison(one, one.this, "in", *one.expressions)
        operator = self._comparisons.get(type(one))
        if operator is None:
            self._fail(one, "this is no comparison of a column")
        left, right = one.this, one.expression
        if isinstance(left, e.Literal) and operator not in OF_TEXTS:
            left, right, operator = right, left, _SWAPPED.get(operator, operator)
        return self._comparison(one, left, operator, right)

    def _comparison(self, one: Expr, column: Expr, operator: str, *values: Expr) -> Comparison:
        name = self._column(one, column)
        found: Any = tuple(self._value(one, value) for value in values)
        try:
            comparison = _checked(name, operator, found if operator == "in" else found[0])
        except ValueError as error:
            self._fail(one, str(error))
        return comparison

    def _column(self, one: Expr, column: Expr) -> str:
        name = column.name.lower() if isinstance(column, self._e.Column) and not column.table else ""
        if name not in FILTER_COLUMNS:
            self._fail(one, f"{column.sql()} is no column that can be compared; these are {', '.join(FILTER_COLUMNS)}")
        return name

    def _value(self, one: Expr, value: Expr) -> int | str:
        e = self._e
        sign = 1
        if isinstance(value, e.Neg):
            value, sign = value.this, -1
        if isinstance(value, e.Literal):
            if value.is_string and sign == 1:
                return str(value.this)
            if value.is_int:
                return sign * int(value.this)
        return self._fail(one, f"{value.sql()} is no whole number and no text in single quotes")

    def _fail(self, one: Expr, what: str) -> NoReturn:
        raise _refused(self._text, f"in {one.sql()!r}: {what}")


def _checked(column: str, operator: str, value: Any) -> Comparison:
    """The comparison, with values of the column's type.

    Raises:
        ValueError: the column has another type.
    """
    kind = CHANGE_SCHEMA.field(column).type
    if operator in OF_TEXTS and kind != pa.string():
        raise ValueError(f"{column} is no text")
    if operator == "rlike":
        try:
            pc.match_substring_regex(pa.array([""]), value)
        except (pa.ArrowInvalid, TypeError) as error:
            raise ValueError(f"{value!r} is no regular expression of RE2: {error}") from None
    if operator in {"in", "not in"}:
        value = tuple(_converted(column, kind, one) for one in value)
        if not value:
            raise ValueError("an empty list")
    elif not operator.endswith("null"):
        value = _converted(column, kind, value)
    return Comparison(column, cast(Any, operator), value)


def _converted(column: str, kind: pa.DataType, value: Any) -> Any:
    if pa.types.is_timestamp(kind):
        if isinstance(value, str):
            try:
                value = datetime.fromisoformat(value)
            except ValueError:
                raise ValueError(f"{value!r} is no timestamp in ISO 8601") from None
        if not isinstance(value, datetime):
            raise ValueError(f"{column} is a timestamp, {value!r} is not")
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if kind == pa.string():
        if not isinstance(value, str):
            raise ValueError(f"{column} is a text: write '{value}' in single quotes")
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{column} is a whole number, {value!r} is not")
    try:
        pa.scalar(value, kind)
    except (pa.ArrowInvalid, OverflowError):
        raise ValueError(f"{value} does not fit the column {column} ({kind})") from None
    return value
