"""Comparisons of rows in plain Python, to judge filters."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from dcpstream.arrow import Comparison

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def is_true(one: Comparison, row: dict[str, Any]) -> bool:
    """By the rules of SQL: a comparison with null is not true."""
    value = row[one.column]
    if one.operator == "is null":
        return value is None
    if value is None:
        return False
    if one.operator == "is not null":
        return True
    if one.operator == "startswith":
        return bool(value.startswith(one.value))
    if one.operator == "in":
        return value in one.value
    if one.operator == "not in":
        return value not in one.value
    if isinstance(value, str):
        return _ORDER[one.operator](value.encode(), one.value.encode())
    return _ORDER[one.operator](value, one.value)


def all_true(comparisons: Iterable[Comparison], row: dict[str, Any]) -> bool:
    return all(is_true(one, row) for one in comparisons)
