"""Nodes that break the protocol: how often each did, when one is given up, and what the log says about retries.

Bytes that are not what the protocol allows may come once from a node that is being restarted or upgraded, or from a
proxy between. The connection is closed then, and the reader goes on from its last sound position on a new one. A node
that does it again and again is given up with the last cause, so that a reader neither waits for ever nor takes data
from a node that it cannot trust.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from dcpstream.errors import ProtocolError, RemoteProtocolError, WireError

logger = logging.getLogger(__name__)

PROTOCOL_ERRORS_MAX = 5
"""Connections on which a node may break the protocol before it is given up: enough for a restart in between, and with
the pauses between them (`PROTOCOL_PAUSE_S`) about two seconds."""

PROTOCOL_PAUSE_S = 0.1
"""Pause after a node has broken the protocol for the first time; it doubles."""

FORGIVEN_AFTER_S = 300.0
"""A node that has kept to the protocol for so long begins anew: a stream of months outlives a rare broken frame."""

RETRY_LOG_S = 10.0
"""Seconds between two lines of the log about retries at one node."""


def is_fault(error: BaseException) -> bool:
    """Whether an error says that the peer sent something that the protocol does not allow."""
    return isinstance(error, (ProtocolError, WireError))


@dataclass(slots=True)
class _Record:
    count: int
    last_at: float
    last: BaseException


class Faults:
    """How often nodes have broken the protocol, by name."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def add(self, name: str, error: BaseException, now: float) -> None:
        """A node broke the protocol."""
        record = self._records.get(name)
        if record is None or now - record.last_at >= FORGIVEN_AFTER_S:
            self._records[name] = _Record(1, now, error)
        else:
            record.count += 1
            record.last_at, record.last = now, error

    def count(self, name: str) -> int:
        """How often it did."""
        record = self._records.get(name)
        return 0 if record is None else record.count

    def verdict(self, names: Iterable[str]) -> RemoteProtocolError | None:
        """The error to raise if one of these nodes did it too often, else None."""
        for name in names:
            record = self._records.get(name)
            if record is not None and record.count >= PROTOCOL_ERRORS_MAX:
                return _given_up(name, record)
        return None


def _given_up(name: str, record: _Record) -> RemoteProtocolError:
    error = RemoteProtocolError(
        f"{name} broke the protocol on {record.count} connections and is given up. The last time: {record.last}"
    )
    error.__cause__ = record.last
    return error


class RetryLog:
    """A line in the log for retries at a node, at most one in `RETRY_LOG_S` seconds for each node."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def retrying(self, name: str, error: BaseException, failures: int, pause_s: float, now: float) -> None:
        """A connection failed, for the `failures`th time in a row, and will be made again after a pause."""
        said_at = self._said_at.get(name)
        if said_at is not None and now - said_at < RETRY_LOG_S:
            self._unsaid[name] = self._unsaid.get(name, 0) + 1
            return
        self._said_at[name] = now
        unsaid = self._unsaid.pop(name, 0)
        more = f" ({unsaid} more since the last line)" if unsaid else ""
        logger.warning("%s: attempt %d failed, trying again in %.2g s: %s%s", name, failures, pause_s, error, more)
