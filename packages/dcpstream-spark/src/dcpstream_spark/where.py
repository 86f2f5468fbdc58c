"""The option `where`, and the filters that Spark pushes down, as filters of rows.

The option is a small language: comparisons of the source's columns, joined by AND.

| written | true if |
| --- | --- |
| `vbucket = 3`, also `!=` `<>` `<` `<=` `>` `>=` | the column compares so |
| `vbucket in (1, 2)`, `collection not in ('a', 'b')` | the column is, or is not, one of the values |
| `key startswith 'user:'` | the text begins so |
| `expiry is null`, `key is not null` | the column has no value, or has one |

Texts stand in single quotes, and a quote in a text is written twice. Timestamps are texts in ISO 8601, in UTC if they
name no zone. A comparison with null is not true, as in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from dcpstream.arrow import CHANGE_SCHEMA, FILTER_COLUMNS, Comparison, RowFilter
from dcpstream.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

OPTION = "where"

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'(?:[^']|'')*')
      | (?P<number>[+-]?\d+(?![\w.]))
      | (?P<word>[A-Za-z_]\w*)
      | (?P<sign><>|!=|<=|>=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_SIGNS = {"=": "=", "==": "=", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_ALLOWED = (
    "comparisons joined by AND, like vbucket in (1, 2) and key startswith 'user:' and seqno > 100; operators are = != "
    "< <= > >= in, not in, startswith, is null, is not null"
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
_NEGATED = {"=": "!=", "in": "not in", "is null": "is not null", "is not null": "is null"}


def parse_where(text: str) -> RowFilter:
    """The option as a filter.

    Raises:
        ConfigError: the text cannot be understood, or compares what cannot be compared; says at which place.
    """
    return RowFilter(tuple(_Parser(text).comparisons()))


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
        operator = _NEGATED.get(operator)
        if operator is None:
            return None
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


@dataclass(slots=True)
class _Token:
    kind: str
    text: str
    at: int


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._next = 0

    def comparisons(self) -> Iterator[Comparison]:
        yield self._comparison()
        while self._peek().kind != "end":
            token = self._take()
            if token.text.lower() == "or":
                raise self._error(token, "OR is not supported; leave it to Spark, with filter() on the DataFrame")
            if token.text.lower() != "and":
                raise self._error(token, "expected AND or the end")
            yield self._comparison()

    def _comparison(self) -> Comparison:
        token = self._take()
        column = token.text.lower()
        if token.kind != "word" or column not in FILTER_COLUMNS:
            raise self._error(token, f"expected a column, one of {', '.join(FILTER_COLUMNS)}")
        operator_token = self._peek()
        operator = self._operator()
        if operator.endswith("null"):
            return Comparison(column, cast(Any, operator))
        value: Any = self._list() if operator in {"in", "not in"} else self._value(self._take())
        try:
            return _checked(column, operator, value)
        except ValueError as error:
            raise self._error(operator_token, str(error)) from None

    def _operator(self) -> str:
        token = self._take()
        word = token.text.lower()
        if token.kind == "sign" and token.text in _SIGNS:
            return _SIGNS[token.text]
        if word in {"in", "startswith"}:
            return word
        if word == "not" and self._peek().text.lower() == "in":
            self._take()
            return "not in"
        if word == "is":
            negated = self._peek().text.lower() == "not"
            if negated:
                self._take()
            if self._peek().text.lower() == "null":
                self._take()
                return "is not null" if negated else "is null"
        raise self._error(token, "expected an operator")

    def _list(self) -> tuple[Any, ...]:
        self._sign("(")
        values = [self._value(self._take())]
        while self._peek().text == ",":
            self._take()
            values.append(self._value(self._take()))
        self._sign(")")
        return tuple(values)

    def _sign(self, sign: str) -> None:
        token = self._take()
        if token.text != sign:
            raise self._error(token, f"expected {sign}")

    def _value(self, token: _Token) -> int | str:
        if token.kind == "number":
            return int(token.text)
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        raise self._error(token, "expected a number or a text in single quotes")

    def _split(self) -> Iterator[_Token]:
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                raise self._error(
                    _Token("", self._text[at:].strip(), at), "this is no number, text in single quotes or name"
                )
            yield _Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup))
            at = found.end()

    def _peek(self) -> _Token:
        if self._next < len(self._tokens):
            return self._tokens[self._next]
        return _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _error(self, token: _Token, what: str) -> ConfigError:
        place = f"at {token.text!r} (character {token.at + 1})" if token.text else "at the end"
        message = f"{OPTION} cannot be {self._text!r}: {place}: {what}. Allowed are {_ALLOWED}"
        return ConfigError(OPTION, self._text, _ALLOWED, message=message)


def _checked(column: str, operator: str, value: Any) -> Comparison:
    """The comparison, with values of the column's type.

    Raises:
        ValueError: the column has another type.
    """
    kind = CHANGE_SCHEMA.field(column).type
    if operator == "startswith" and kind != pa.string():
        raise ValueError(f"{column} is no text")
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
