"""Why a query failed, out of what Spark reports.

The errors of a running query arrive as Spark's own exceptions. The error of ours is in their text: the qualified name
of its class, a colon and its message, as Python's tracebacks have it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dcpstream import errors
from dcpstream.errors import (
    ConfigError,
    DcpstreamError,
    FieldError,
    HistoryPurged,
    OffsetError,
    RollbackRequired,
    StoreError,
)

_FINAL = (ConfigError, OffsetError, HistoryPurged, FieldError)
"""Errors that come again whenever the same query starts on the same checkpoint."""

_OURS = re.compile(r"\bdcpstream(?:\.\w+)*\.([A-Z]\w*): ([^\n]*)")

_NO_ROOM = re.compile(r"[^\n]*(?:No space left on device|Disk quota exceeded)[^\n]*")
"""The line that a full disk leaves in the errors of Python, of Java and of Rust."""

LINE_CHARACTERS = 300
"""Length of that line in a message. It may hold the whole error of a task."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the owner of a pipeline sees it.

    Attributes:
        message: one sentence if the error is one of ours, else what Spark says.
        is_final: starting again does not help: somebody must change the configuration, or the tables.
    """

    message: str
    is_final: bool


def failure_of(error: BaseException, options: Mapping[str, str]) -> Failure:
    """The kind and the meaning of an error of a pipeline.

    Args:
        error: raised by it, or the one that ended its query.
        options: of its source.
    """
    error = disk_full(error) or error
    kind, message = _ours(error)
    if kind is None:
        # After its reason Spark describes the query, in many lines.
        return Failure(message.partition("\n=== Streaming Query ===")[0].strip(), is_final=False)
    is_final = issubclass(kind, _FINAL) or (issubclass(kind, RollbackRequired) and not _rewinds(options))
    return Failure(message.strip(), is_final)


def disk_full(error: BaseException) -> StoreError | None:
    """The error of a full disk as the owner of a pipeline sees it; None for another error, and for one of ours."""
    kind, message = _ours(error)
    if isinstance(error, DcpstreamError) or kind not in {None, StoreError}:
        return None
    found = next((line for text in _texts(error) if (line := _NO_ROOM.search(text)) is not None), None)
    if found is None:
        return None
    if kind is None:
        message = (
            "a disk is full, of the tables, of the checkpoint or of Spark's own files (spark.local.dir): "
            f"{found[0].strip()[:LINE_CHARACTERS]}. Make room, and start the pipeline again: it goes on, and no row is "
            "lost"
        )
    full = StoreError(message)
    full.__cause__ = error
    return full


@contextlib.contextmanager
def full_disk_explained() -> Iterator[None]:
    """Raise the error of a full disk as one of ours."""
    try:
        yield
    except Exception as error:
        full = disk_full(error)
        if full is None:
            raise
        raise full from full.__cause__


@contextlib.contextmanager
def spark_explained() -> Iterator[None]:
    """Raise an error of Spark as one of ours, with one line as its message: for commands."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        kind, message = _ours(error)
        if kind is None:
            raise DcpstreamError(f"Spark: {message.strip().splitlines()[0]}") from error
        # Its numbers are lost in Spark's text.
        raise kind.__new__(kind, message.strip()) from error


def _rewinds(options: Mapping[str, str]) -> bool:
    return {name.lower(): value.lower() for name, value in options.items()}.get("onrollback") != "fail"


def _texts(error: BaseException | None) -> Iterator[str]:
    """The texts of an error and its causes. Spark keeps the text of Java's causes apart."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield str(error)
        yield str(getattr(error, "_stackTrace", None) or "")
        error = error.__cause__ or error.__context__


def _ours(error: BaseException) -> tuple[type[DcpstreamError] | None, str]:
    """The class of an error of ours, None for another error; and its message."""
    if isinstance(error, DcpstreamError):
        return type(error), str(error)
    found = _OURS.findall(str(error))
    if not found:
        return None, str(error)
    name, message = found[-1]
    kind = getattr(errors, name, None)
    is_ours = isinstance(kind, type) and issubclass(kind, DcpstreamError)
    return (kind, message) if is_ours else (None, message)
