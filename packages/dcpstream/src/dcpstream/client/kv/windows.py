"""Operations in windows: many requests in flight at once, their answers in order, and repetitions.

Theory of operation: requests are sent a window at a time, two windows are in flight, and the answers of the older one
are read while the node works on the younger one. Once an operation is refused with "later", or its connection is lost,
both windows are read to their end and nothing else is sent until every refused operation is settled. An operation is
repeated together with the later operations on its key, in their order: if those were not repeated, the older change
would win.

A repetition may meet the result of its own first attempt, because a lost connection may have carried out a request
without answering it. That is harmless for a write without conditions. The caller decides what KEY_EEXISTS means for
the others.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, cast

from dcpstream.client.kv.bulk import Answered, Operation, Take, taken_from
from dcpstream.client.kv.connection import KvConnection
from dcpstream.client.kv.pool import KvPool
from dcpstream.client.machine.nodes.retry import FINAL_ERRORS
from dcpstream.errors import ConnectionLost, RemoteProtocolError
from dcpstream.runtime import Clock, SystemClock
from dcpstream.wire import Status
from dcpstream.wire.frames import with_opaque
from dcpstream.wire.messages.kv import GetClusterConfig

WINDOW_OPS = 1000
"""Operations that are sent before answers are read: enough to hide the round trip, few enough to buffer."""

WINDOW_BYTES = 1024 * 1024
"""Bytes of a window, unless one operation alone is larger."""

RETRY_TIMEOUT_S = 20.0
"""Seconds for which a window's operations are repeated that the node answers with "later"."""

FIRST_PAUSE_S = 0.01
"""Pause before the first repetition; it doubles."""

RETRY_PAUSE_S = 0.2
"""Longest pause between repetitions."""

LATER = frozenset(
    (
        Status.TMPFAIL,
        Status.ENOMEM,
        Status.BUSY,
        Status.LOCKED,
        Status.NOT_MY_VBUCKET,
        Status.WOULD_THROTTLE,
        Status.SYNC_WRITE_IN_PROGRESS,
        Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS,
        Status.SYNC_WRITE_AMBIGUOUS,
        Status.DURABILITY_IMPOSSIBLE,
        Status.AUTH_STALE,
    )
)
"""Statuses of an operation that is repeated. A durable write with an unknown outcome is one of them, because the
repetition brings about what the request asks for; and too few copies for durability are a failover that goes on. After
AUTH_STALE the repetition has a new login."""


_STATUS = itemgetter(Answered._fields.index("status"))


class _Sent(NamedTuple):
    """Operations in flight, and by connection the indexes of those that it carries."""

    operations: list[Operation]
    carried: list[tuple[KvConnection, list[int]]]


class Windows:
    """Sends operations in windows.

    Args:
        pool: the connections.
        is_reconnecting: whether unanswered operations of a lost connection are repeated on a new one. Otherwise the
            loss is raised.
        retry_timeout_s: limit for the repetitions of a window.
        window_ops, window_bytes: size of a window; two are in flight.
        clock: for that limit.
    """

    def __init__(
        self,
        pool: KvPool,
        *,
        is_reconnecting: bool = False,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        window_ops: int = WINDOW_OPS,
        window_bytes: int = WINDOW_BYTES,
        clock: Clock | None = None,
    ) -> None:
        self._pool = pool
        self._is_reconnecting = is_reconnecting
        self._retry_timeout_s = retry_timeout_s
        self._window_ops = window_ops
        self._window_bytes = window_bytes
        self._clock = clock or SystemClock()
        self._lost: ConnectionLost | None = None
        self.repeated = 0
        """Requests that were sent again."""

    def run(self, take: Take) -> Iterator[tuple[list[Operation], list[Answered]]]:
        """The operations with their answers, in order, one or two windows at a time.

        An operation that is refused with "later" until the limit is given out with that answer.

        Args:
            take: gives the next operations.

        Raises:
            ConnectionLost: no connection for so long, or one was lost and this object does not reconnect.
        """
        waiting: list[_Sent] = []
        is_clean = False
        try:
            while True:
                window = take(self._window_ops, self._window_bytes)
                if window:
                    waiting.append(self._send(window))
                if not waiting:
                    break
                if len(waiting) == 1 and window:
                    continue
                done = waiting.pop(0)
                operations, answers = done.operations, self._read(done)
                if _is_unsettled(answers):
                    # Nothing else may be in flight while operations are repeated.
                    for rest in waiting:
                        operations += rest.operations
                        answers += self._read(rest)
                    waiting.clear()
                    self._settle(operations, answers)
                yield operations, cast("list[Answered]", answers)
            is_clean = True
        finally:
            if not is_clean:
                # Answers that will not be read may be in flight.
                self._pool.close()

    def one_by_one(self, operations: Iterator[Operation]) -> Iterator[tuple[Operation, Answered]]:
        """Each operation with its answer, as `run` gives them."""
        for done, answers in self.run(taken_from(operations)):
            yield from zip(done, answers, strict=True)

    def _send(self, window: list[Operation]) -> _Sent:
        by_connection: dict[KvConnection, list[int]] = {}
        by_vbucket: dict[int, list[int]] = {}
        for index, operation in enumerate(window):
            indexes = by_vbucket.get(operation.vbid)
            if indexes is None:
                try:
                    connection = self._pool.of(operation.vbid)
                except FINAL_ERRORS:
                    raise
                except ConnectionLost as error:
                    self._lose(error)
                    # Without a connection now; the others of its node need not try, too.
                    break
                indexes = by_vbucket[operation.vbid] = by_connection.setdefault(connection, [])
            indexes.append(index)
        for connection, indexes in by_connection.items():
            try:
                if connection.is_unordered:
                    connection.send(b"".join([with_opaque(window[index].request, index) for index in indexes]))
                else:
                    connection.send(b"".join([window[index].request for index in indexes]))
            except ConnectionLost as error:
                self._pool.forget(connection)
                self._lose(error)
        return _Sent(window, list(by_connection.items()))

    def _read(self, sent: _Sent) -> list[Answered | None]:
        """The answers; None where the connection was lost."""
        operations = sent.operations
        answers: list[Answered | None] = [None] * len(operations)
        for connection, indexes in sent.carried:
            try:
                found = connection.answers(len(indexes))
            except RemoteProtocolError:
                raise
            except ConnectionLost as error:
                self._pool.forget(connection)
                self._lose(error)
                continue
            if connection.is_unordered:
                _by_opaque(connection, found, operations, answers)
                continue
            for index, answer in zip(indexes, found, strict=True):
                if answer.opcode != operations[index].opcode:
                    connection.check(answer, operations[index].opcode)
                answers[index] = answer
        return answers

    def _settle(self, operations: Sequence[Operation], answers: list[Answered | None]) -> None:
        """Repeat the refused and unanswered operations, each with the later ones on its key, until none is left."""
        again = _unsettled(range(len(operations)), operations, answers)
        deadline = self._clock.monotonic() + self._retry_timeout_s
        pause_s = FIRST_PAUSE_S
        while again:
            if self._clock.monotonic() >= deadline:
                if any(answers[index] is None for index in again):
                    raise self._lost or ConnectionLost("the node does not answer")
                return
            self._renew([answers[index] for index in again])
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_PAUSE_S)
            self.repeated += len(again)
            for at in range(0, len(again), self._window_ops):
                part = again[at : at + self._window_ops]
                found = self._read(self._send([operations[index] for index in part]))
                for index, answer in zip(part, found, strict=True):
                    answers[index] = answer
            again = _unsettled(again, operations, answers)

    def _renew(self, answers: Sequence[Answered | None]) -> None:
        """Log in again if a node says that the token has expired; take the newest map if it does not have a vbucket."""
        if any(answer is not None and answer.status == Status.AUTH_STALE for answer in answers):
            self._pool.close()
        refusals = [answer for answer in answers if answer is not None and answer.status == Status.NOT_MY_VBUCKET]
        if not refusals:
            return
        connection = None
        try:
            connection = self._pool.any()
            taken = [self._pool.take_map(value, connection.address) for value in {one.value for one in refusals}]
            if not any(taken):
                self._pool.take_map(connection.ask(GetClusterConfig.pack()).value, connection.address)
        except FINAL_ERRORS:
            raise
        except ConnectionLost as error:
            if connection is not None:
                self._pool.forget(connection)
            self._lose(error)

    def _lose(self, error: ConnectionLost) -> None:
        if not self._is_reconnecting:
            raise error
        self._lost = error


def _is_unsettled(answers: Sequence[Answered | None]) -> bool:
    """Whether an operation is unanswered, or refused with "later"."""
    try:
        return not LATER.isdisjoint(map(_STATUS, cast("Sequence[Answered]", answers)))
    except TypeError:  # None has no parts
        return True


def _by_opaque(
    connection: KvConnection,
    found: Sequence[Answered],
    operations: Sequence[Operation],
    answers: list[Answered | None],
) -> None:
    """Put answers that may come in any order to their operations."""
    for answer in found:
        index = answer.opaque
        if index >= len(operations) or answers[index] is not None:
            raise RemoteProtocolError(f"{connection.address} answered a request that was not sent (opaque {index})")
        connection.check(answer, operations[index].opcode)
        answers[index] = answer


def _unsettled(
    indexes: Sequence[int], operations: Sequence[Operation], answers: Sequence[Answered | None]
) -> list[int]:
    """The operations to repeat: refused with "later" or unanswered, and the later ones on their keys."""
    keys: set[bytes] = set()
    result = []
    for index in indexes:
        answer = answers[index]
        key = operations[index].key
        if answer is None or answer.status in LATER:
            keys.add(key)
        if key in keys:
            result.append(index)
    return result
