"""The option `include`: which kinds of rows, and which costly column, a query gets; and `startingTimestamp`.

Both are comparisons of a `RowFilter`, like those of the option `where`. A row that is left out is received from the
node all the same, and dropped before its columns are built.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from dcpstream.arrow import Comparison
from dcpstream.errors import ConfigError
from dcpstream.model import Op

DELETES, EXPIRATIONS, XATTRS, SYSTEM_EVENTS, SNAPSHOT_MARKS = KINDS = (
    "deletes",
    "expirations",
    "xattrs",
    "systemEvents",
    "snapshotMarks",
)

DEFAULT = frozenset((DELETES, EXPIRATIONS, XATTRS, SYSTEM_EVENTS))

NEEDED_BY_TABLES = frozenset((DELETES, EXPIRATIONS, SYSTEM_EVENTS))
"""Without these, a table of documents keeps documents that are gone."""

_OPS = {
    DELETES: (Op.DELETION,),
    EXPIRATIONS: (Op.EXPIRATION,),
    SYSTEM_EVENTS: tuple(op for op in Op if op.is_control and op not in {Op.ROLLBACK, Op.SNAPSHOT, Op.HISTORY_GAP}),
}

_WITH_ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$")


def parse_include(name: str, text: str) -> frozenset[str]:
    """The kinds that a user wrote, `none` for mutations and rollbacks alone.

    Raises:
        ConfigError: one of them is not known.
    """
    by_lower = {kind.lower(): kind for kind in KINDS}
    words = [word.strip().lower() for word in text.split(",")]
    if words == ["none"]:
        return frozenset()
    if not all(word in by_lower for word in words):
        raise ConfigError(name, text, f"none, or some of {', '.join(KINDS)}, separated by commas")
    return frozenset(by_lower[word] for word in words)


def parse_timestamp(name: str, text: str) -> datetime:
    """A point in time: ISO 8601 with a time zone, or milliseconds since the epoch, as Spark's Kafka source takes it.

    Raises:
        ConfigError: it is neither.
    """
    plain = text.strip()
    try:
        if plain.isdecimal():
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(plain))
        if _WITH_ZONE.search(plain):
            return datetime.fromisoformat(plain).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    allowed = "a time like 2026-11-22T15:00:00Z or 2026-11-22T15:00:00+01:00, or milliseconds since 1970"
    raise ConfigError(name, text, allowed)


def comparisons(include: Iterable[str], since: datetime | None) -> tuple[Comparison, ...]:
    """The comparisons that carry out both options; none if everything is wanted."""
    left_out = [op.value for kind, ops in _OPS.items() if kind not in set(include) for op in ops]
    found = [Comparison("op", "not in", tuple(left_out))] if left_out else []
    if since is not None:
        found.append(Comparison("_commit_timestamp", ">=", since))
    return tuple(found)
