"""Clients of a bucket that wait: for a seqno to be persisted, or for a vbucket to change its role."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dcpstream.wire import Status

if TYPE_CHECKING:
    from dcpstream_node.engine.session.session import Session

MAX_WAITERS = 10_000
"""Requests that may wait in a bucket for the disk, and for pending vbuckets: one per connection at most, and
connections are bounded too."""


class _Waiter(NamedTuple):
    """A session that waits for a seqno to be persisted, until a moment of the monotonic clock."""

    session: Session
    vbid: int
    seqno: int
    deadline: float


class WaitingClients:
    """The sessions of one bucket that wait.

    Attributes:
        for_seqnos: sessions that wait for a seqno to be persisted.
        for_roles: sessions that wait for a pending vbucket.
    """

    def __init__(self) -> None:
        self.for_seqnos: list[_Waiter] = []
        self.for_roles: list[tuple[Session, int]] = []

    def add_for_seqno(self, session: Session, vbid: int, seqno: int, deadline: float) -> bool:
        """See `Bucket.wait_for_persistence`."""
        if len(self.for_seqnos) >= MAX_WAITERS:
            return False
        self.for_seqnos.append(_Waiter(session, vbid, seqno, deadline))
        return True

    def add_for_role(self, session: Session, vbid: int) -> bool:
        """Resume the session when the vbucket's role changed; False if too many wait already."""
        if len(self.for_roles) >= MAX_WAITERS:
            return False
        self.for_roles.append((session, vbid))
        return True

    def role_changed(self, vbid: int) -> None:
        """Resume the sessions that waited for a vbucket to change its role."""
        waiting, self.for_roles = self.for_roles, []
        for session, wanted in waiting:
            if wanted == vbid:
                session.resume()
            elif not session.is_closing:
                self.for_roles.append((session, wanted))

    def persisted(self, seqno_of: Callable[[int], int | None]) -> None:
        """Resume the sessions whose seqno is persisted.

        Args:
            seqno_of: how far a vbucket is persisted; None if it is not here any more.
        """
        waiters, self.for_seqnos = self.for_seqnos, []
        for waiter in waiters:
            persisted = seqno_of(waiter.vbid)
            if persisted is None or persisted >= waiter.seqno:
                waiter.session.resume(Status.NOT_MY_VBUCKET if persisted is None else Status.SUCCESS)
            elif not waiter.session.is_closing:
                self.for_seqnos.append(waiter)

    def next_timeout(self) -> float | None:
        """When the first of them has waited for too long."""
        return min((waiter.deadline for waiter in self.for_seqnos), default=None)

    def handle_timeout(self, now: float) -> None:
        """Give up what has waited for too long."""
        over = [waiter for waiter in self.for_seqnos if waiter.deadline <= now]
        if over:
            self.for_seqnos = [waiter for waiter in self.for_seqnos if waiter.deadline > now]
            for waiter in over:
                waiter.session.resume(Status.TMPFAIL)
