"""Retries at nodes: which failures are worth another attempt, after which pause, and when a node is given up.

A failed node is tried again after a pause that doubles up to a bound, with a random part, so that many clients do not
come back in step. Refused credentials are final.

Bytes that the protocol does not allow may come once from a node that is being restarted or upgraded, or from a proxy
between. The connection is closed then, or only the stream if the connection is sound, and the reader goes on from its
last sound position. A node that breaks the protocol repeatedly, and lets the reader make no progress in between, is
given up with the last cause, so that a reader neither waits for ever nor takes data from a node that it cannot trust.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from dcpstream.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigError,
    InvalidArguments,
    KeyNotFound,
    NotSupported,
    OffsetError,
    ProtocolError,
    RemoteProtocolError,
    StatusError,
    TlsError,
    UnknownCommand,
    WireError,
)
from dcpstream.model import StreamOffset
from dcpstream.runtime import Random
from dcpstream.wire import Opcode, Status

logger = logging.getLogger(__name__)

ELSEWHERE_STATUSES = frozenset((Status.NOT_MY_VBUCKET, Status.CONFIG_ONLY))
"""Statuses that mean "at another node": a newer cluster map names it."""

RETRY_STATUSES = ELSEWHERE_STATUSES | frozenset(
    (
        *(Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.KEY_EEXISTS, Status.WOULD_THROTTLE),
        *(Status.NOT_INITIALIZED, Status.ENCRYPTION_KEY_NOT_AVAILABLE, Status.BUCKET_PAUSED, Status.CANCELLED),
    )
)
"""Statuses that mean "later" or "at another node", on requests that change nothing."""

FINAL_ERRORS = (
    AuthenticationFailed,
    AccessDenied,
    TlsError,
    KeyNotFound,
    ConfigError,
    NotSupported,
    OffsetError,
    UnknownCommand,
    InvalidArguments,
)
"""Errors that a retry with the same values cannot help; but see `is_bucket_refusal`."""

FIRST_PAUSE_S = 0.02
"""Pause after the first failure: a node that restarts is back soon."""

MAX_PAUSE_S = 1.0
"""The longest pause between two attempts."""

LOOK_AGAIN_S = 0.02
"""Seconds until the next attempt while a connection or a map is on its way."""

STABLE_S = 5.0
"""Seconds after which a connection ends a row of failures, even if nothing came over it."""

PROTOCOL_ERRORS_MAX = 5
"""Connections on which a node may break the protocol before it is given up, and streams of one vbucket, without
progress in between: enough for a restart, and with the pauses between them (`PROTOCOL_PAUSE_S`) about two seconds."""

PROTOCOL_PAUSE_S = 0.1
"""Pause after a node has broken the protocol for the first time; it doubles."""

FORGIVEN_AFTER_S = 300.0
"""Seconds without a fault after which the count begins again: a stream of months outlives a rare broken frame."""

PROGRESS_ROWS = 1000
"""Rows after a fault that are progress, so that the count begins again; the end of a snapshot is, too. With fewer, a
node that sends one sound row on each connection would be read for ever, a row at a time."""

RETRY_LOG_S = 10.0
"""Seconds between two lines of the log about retries at one node."""


class Backoff:
    """A pause that doubles with each failure."""

    __slots__ = ("_random", "failures", "last_error", "retry_at", "since")

    def __init__(self, random: Random) -> None:
        self._random = random
        self.failures = 0
        self.retry_at = 0.0
        self.since = 0.0
        self.last_error: BaseException | None = None

    def failed(self, now: float, error: BaseException | None = None, pause: float = 0.0) -> None:
        """Count a failure and set the time of the next attempt, after `pause` seconds at the earliest."""
        if not self.failures:
            self.since = now
        self.failures += 1
        self.last_error = error
        self.retry_at = now + max(pause, pause_s(self.failures, self._random))


def pause_s(failures: int, random: Random, first_s: float = FIRST_PAUSE_S) -> float:
    """Seconds to wait after this many failures in a row: doubling, bounded, half of it random."""
    longest = min(MAX_PAUSE_S, first_s * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + random.getrandbits(16) / 0x20000)


def is_bucket_refusal(error: BaseException) -> TypeGuard[StatusError]:
    """Whether the node refused the bucket: it does not exist, or the user may not use it."""
    return isinstance(error, (AccessDenied, KeyNotFound)) and error.opcode == Opcode.SELECT_BUCKET


def refused_by_all(refusals: Sequence[StatusError]) -> StatusError:
    """The error for a bucket that every seed refused, with the answer of each."""
    first = refusals[0]
    if len(refusals) == 1:
        return first
    answers = "; ".join(map(str, refusals))
    error = type(first)(f"all {len(refusals)} seeds refused: {answers}", status=first.status, opcode=first.opcode)
    error.__cause__ = first
    return error


def is_config_only(error: BaseException) -> bool:
    """Whether the node answered CONFIG_ONLY: it has the map of the bucket, and other nodes serve the bucket."""
    return isinstance(error, StatusError) and error.status == Status.CONFIG_ONLY


def is_fault(error: BaseException) -> bool:
    """Whether the peer sent something that the protocol does not allow."""
    return isinstance(error, (ProtocolError, WireError))


def has_progressed(before: StreamOffset, at: StreamOffset) -> bool:
    """Whether a reader made enough progress between two positions of a vbucket to reset the count of faults."""
    is_past_snapshot = at.seqno == at.snapshot_end or at.snapshot_start > before.seqno
    return at.seqno > before.seqno and (is_past_snapshot or at.seqno - before.seqno >= PROGRESS_ROWS)


@dataclass(slots=True)
class _Record:
    count: int
    last_at: float
    last: BaseException
    rows: int = 0


class Faults:
    """Counts of protocol errors that end connections, by the name of the node."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def add(self, name: str, error: BaseException, now: float) -> None:
        """A node broke the protocol."""
        record = self._records.get(name)
        if record is None or now - record.last_at >= FORGIVEN_AFTER_S:
            self._records[name] = _Record(1, now, error)
        else:
            record.count += 1
            record.last_at, record.last, record.rows = now, error, 0

    def progressed(self, name: str, rows: int, *, is_complete: bool) -> None:
        """A reader got rows from a node since its last fault, or the end of a snapshot."""
        record = self._records.get(name)
        if record is not None:
            record.rows += rows
            if is_complete or record.rows >= PROGRESS_ROWS:
                del self._records[name]

    def count(self, name: str) -> int:
        """The number of times that it broke the protocol."""
        record = self._records.get(name)
        return 0 if record is None else record.count

    def verdict(self, names: Iterable[str]) -> RemoteProtocolError | None:
        """The error to raise if one of these nodes broke the protocol too often, else None."""
        for name in names:
            record = self._records.get(name)
            if record is not None and record.count >= PROTOCOL_ERRORS_MAX:
                last = record.last
                error = RemoteProtocolError(
                    f"{name} broke the protocol on {record.count} connections and is given up. The last time: {last}"
                )
                error.__cause__ = last
                return error
        return None


class RetryLog:
    """Log lines about retries, at most one in `RETRY_LOG_S` seconds for each node."""

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
