"""The names of the tables of a pipeline that keeps several: which collection is in which table.

The rule is a name with placeholders, such as `{scope}.{collection}`, or a mapping from collections to names. Pure
functions; what a pipeline has named once stays as it is, see `dcpstream_spark.tables.ledger`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from typing import TypeAlias

from dcpstream.errors import ConfigError
from dcpstream_spark.tables.rows import Place

Rule: TypeAlias = "str | Mapping[str, str]"

PLACEHOLDERS = frozenset(("scope", "collection"))

RESERVED = frozenset(("changes", "current", "live", "checkpoint"))
"""Directories of a pipeline that are not those of a table."""

TABLE = "{table}"
"""Stands for the table's name in the names of a catalog."""

_NAME = re.compile(r"[A-Za-z0-9_%-][A-Za-z0-9_%.-]*")
_PLAIN = re.compile(r"\w+", re.ASCII)

_ALLOWED = (
    'a name with {scope} and {collection}, like "{scope}.{collection}", or a mapping like '
    '{"shop.orders": "orders", "archive.*": "archive_{collection}"}'
)


class TableNames:
    """A rule for the names of tables.

    Args:
        rule: a name with placeholders for all collections, or a mapping: `scope.collection` or `scope.*` to a name,
            which may have placeholders.

    Raises:
        ConfigError: it is no such rule.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._by_path: Mapping[str, str] = {"": rule} if isinstance(rule, str) else rule
        if not self._by_path:
            raise ConfigError("tables", rule, _ALLOWED)
        for path, template in self._by_path.items():
            if path and (len(path.split(".")) != 2 or not all(path.split("."))):
                raise ConfigError("tables", path, "collections as scope.collection or scope.*")
            found = _placeholders(template)
            if found is None or not found <= PLACEHOLDERS or (not path and not found):
                raise ConfigError("tables", template, _ALLOWED)

    @property
    def templates(self) -> tuple[str, ...]:
        """The names of the rule, with their placeholders. A dot in one of them is in every name that it makes."""
        return tuple(self._by_path.values())

    @property
    def collections(self) -> str | None:
        """The option `collections` of the source; None if the rule does not say."""
        return None if isinstance(self.rule, str) else ",".join(sorted(self.rule))

    def of(self, place: Place) -> str | None:
        """The table of a collection; None for none.

        Raises:
            ConfigError: its name cannot be that of a table.
        """
        scope, collection = place
        for path in ("", f"{scope}.{collection}", f"{scope}.*"):
            template = self._by_path.get(path)
            if template is not None:
                return _checked(template.format(scope=scope, collection=collection), place)
        return None


def _placeholders(template: object) -> frozenset[str] | None:
    """The names in braces; None if it is no such text."""
    if not isinstance(template, str) or not template:
        return None
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError:
        return None
    if any(kind or conversion for _, _, kind, conversion in parts):
        return None
    return frozenset(name for _, name, _, _ in parts if name is not None)


def _checked(name: str, place: Place) -> str:
    if name.lower() in RESERVED or not _NAME.fullmatch(name):
        path = ".".join(place)
        message = (
            f"tables makes {name!r} the table of the collection {path}, and no table can have that name. Choose "
            f'another with a mapping, like {{"{path}": "NAME"}}: letters, digits and _ . - %, other than '
            f"{', '.join(sorted(RESERVED))}"
        )
        raise ConfigError("tables", name, "a name of a table", message=message)
    return name


def directory_of(name: str) -> str:
    """The directory of a table. A percent sign in it would be taken for the begin of an escaped character."""
    return name.replace("%", "~")


def in_catalog(pattern: str | None, table: str, option: str) -> str | None:
    """The name of a table or view in a catalog.

    Args:
        pattern: with TABLE; None for none.
        table: the table's name.
        option: that has the pattern.

    Raises:
        ConfigError: the pattern does not name each table by itself, or the name has a dot.
    """
    if pattern is None:
        return None
    if TABLE not in pattern:
        raise ConfigError(option, pattern, f"a name with {TABLE}, because there are several tables")
    before, _, _ = pattern.partition(TABLE)
    start = before.rfind(".") + 1
    last = pattern[start:].replace(TABLE, table)
    if "." in table:
        message = (
            f"the table {table!r} has a dot in its name, which separates parts of names in a catalog ({option}). "
            'Choose names without one, like tables="{scope}_{collection}"'
        )
        raise ConfigError("tables", table, "names without a dot", message=message)
    return pattern[:start] + (last if _PLAIN.fullmatch(last) else "`" + last.replace("`", "``") + "`")
