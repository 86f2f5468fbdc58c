"""Exit statuses: the only mapping from exceptions to messages and statuses.

Exit statuses:

| status | meaning |
| --- | --- |
| 0 | done |
| 1 | done with a negative result (tables differ), or a failure without a status of its own |
| 2 | wrong option or value |
| 3 | the node cannot be reached, or the connection broke |
| 4 | the node refuses user, password, bucket or privilege |
| 5 | invalid bytes: bad frames, a damaged file or checkpoint |
| 6 | history that was read is void or purged |
| 7 | a package that the command needs is not installed |
| 130 | interrupted (Ctrl-C) |
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass

from dcpstream import errors

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
BAD_DATA = 5
VOID_HISTORY = 6
NOT_INSTALLED = 7
INTERRUPTED = 130

# The first match applies, so subclasses come before their bases.
_STATUS_OF: tuple[tuple[type[BaseException], int], ...] = (
    (errors.ConfigError, USAGE),
    (errors.AuthenticationFailed, REFUSED),
    (errors.AuthenticationError, REFUSED),
    (errors.AccessDenied, REFUSED),
    (errors.NoBucket, REFUSED),
    (errors.ConnectionLost, UNREACHABLE),
    (errors.RollbackRequired, VOID_HISTORY),
    (errors.HistoryPurged, VOID_HISTORY),
    (errors.WireError, BAD_DATA),
    (errors.RemoteProtocolError, BAD_DATA),
    (errors.CorruptLog, BAD_DATA),
    (errors.OffsetError, BAD_DATA),
)

_INSTALL_FOR = {
    "numpy": "dcpstream[arrow]",
    "pyarrow": "dcpstream[arrow]",
    "dcpstream_node": "dcpstream-node",
    "dcpstream_spark": "dcpstream-spark",
    "pyspark": "dcpstream-spark",
    "deltalake": "dcpstream-spark[tables]",
    "matplotlib": "matplotlib",
}
"""Package → what to install to have it."""


class NotInstalled(errors.DcpstreamError):
    """A package that a command needs is missing; the message says how to install it."""

    def __init__(self, package: str, install: str) -> None:
        super().__init__(f"{package} is not installed; this command needs it: pip install '{install}'")


class CommandNotInstalled(errors.DcpstreamError):
    """A command belongs to a distribution that is not installed."""

    def __init__(self, command: str, distribution: str) -> None:
        message = f"the command {command} belongs to {distribution}, which is not installed: pip install {distribution}"
        super().__init__(message)


def require(packages: Iterable[str], install: str) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        NotInstalled: one is missing.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise NotInstalled(package, install)


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a command: exit status, and message on standard error."""

    status: int
    message: str


def exit_for(error: BaseException) -> Exit | None:
    """The exit for this exception, or None for an unexpected one, which deserves a traceback."""
    if isinstance(error, NotInstalled | CommandNotInstalled):
        return Exit(NOT_INSTALLED, str(error))
    if isinstance(error, errors.DcpstreamError):
        status = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), FAILED)
        return Exit(status, str(error))
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _INSTALL_FOR:
        package = (error.name or "").partition(".")[0]
        return Exit(NOT_INSTALLED, str(NotInstalled(package, _INSTALL_FOR[package])))
    if isinstance(error, OSError) and error.strerror:
        if error.filename is None:
            return Exit(FAILED, error.strerror)
        is_missing = isinstance(error, FileNotFoundError)
        what = "does not exist" if is_missing else f"cannot be used: {error.strerror}"
        return Exit(FAILED, f"{error.filename} {what}")
    return None
