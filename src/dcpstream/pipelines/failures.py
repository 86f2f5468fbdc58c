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
    kind: type[BaseException] | None = type(error)
    message = str(error)
    if not isinstance(error, DcpstreamError):
        found = _OURS.findall(message)
        kind = None
        if found:
            name, message = found[-1]
            kind = getattr(errors, name, None)
    if kind is None or not issubclass(kind, DcpstreamError):
        # After its reason Spark describes the query, in many lines.
        return Failure(message.partition("\n=== Streaming Query ===")[0].strip(), is_final=False)
    rewinds = {name.lower(): value.lower() for name, value in options.items()}.get("onrollback") != "fail"
    is_final = issubclass(kind, _FINAL) or (issubclass(kind, RollbackRequired) and not rewinds)
    return Failure(message.strip(), is_final)
