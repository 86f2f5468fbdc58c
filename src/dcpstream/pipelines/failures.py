"""Why a query failed, out of what Spark reports.

The errors of a running query arrive as Spark's own exceptions. The error of ours is in their text: the qualified name
of its class, a colon and its message, as Python's tracebacks have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dcpstream import errors
from dcpstream.errors import ConfigError, DcpstreamError, FieldError, HistoryPurged, OffsetError, RollbackRequired

_FINAL = (ConfigError, OffsetError, HistoryPurged, FieldError)
"""Errors that come again whenever the same query starts on the same checkpoint."""

_OURS = re.compile(r"\bdcpstream(?:\.\w+)*\.([A-Z]\w*): ([^\n]*)")


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
    """What an error of a pipeline means.

    Args:
        error: raised by it, or the one that ended its query.
        options: of its source.
    """
    kind, message = _ours(error)
    if kind is None:
        # After its reason Spark describes the query, in many lines.
        return Failure(message.partition("\n=== Streaming Query ===")[0].strip(), is_final=False)
    is_final = issubclass(kind, _FINAL) or (issubclass(kind, RollbackRequired) and not _rewinds(options))
    return Failure(message.strip(), is_final)


def must_repeat(error: BaseException, options: Mapping[str, str]) -> bool:
    """Whether a job failed only because a node lost changes that it had read, so that it goes back when it runs again.

    Args:
        error: of the job.
        options: of its source.
    """
    kind, _ = _ours(error)
    return kind is not None and issubclass(kind, RollbackRequired) and _rewinds(options)


def _rewinds(options: Mapping[str, str]) -> bool:
    return {name.lower(): value.lower() for name, value in options.items()}.get("onrollback") != "fail"


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
