"""What a reader asks besides streams: the names of collections, and how far a vbucket's branch goes."""

from __future__ import annotations

import struct

from dcpstream.client.connection import NodeConnection
from dcpstream.client.events import Answer
from dcpstream.client.labels import Labels
from dcpstream.client.topology import manifest_of
from dcpstream.client.work import Work
from dcpstream.errors import DcpstreamError
from dcpstream.model import Manifest
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.status import status_error

ACTIVE_STATE = (1).to_bytes(4, "big")
"""Extras of GET_ALL_VB_SEQNOS: only vbuckets that are active there. A replica's high seqno says nothing."""

RETRY = frozenset(
    (Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.KEY_EEXISTS, Status.WOULD_THROTTLE, Status.NOT_MY_VBUCKET)
)
"""Statuses that say: later, or elsewhere."""


_ELSEWHERE = frozenset((Status.NOT_MY_VBUCKET, Status.KEY_ENOENT))
"""Answers of OBSERVE_SEQNO for a vbucket that has moved, or has another branch by now."""

_U64 = struct.Struct(">Q")
_OBSERVED = struct.Struct(">BHQQQ")
_SAME_BRANCH = 0


def branch_seqnos(frame: Frame, vbuuid: int) -> tuple[int, int] | None:
    """(persisted, high seqno) of a branch from the answer to OBSERVE_SEQNO; None if it is not the newest there."""
    if frame.status != Status.SUCCESS or len(frame.value) < _OBSERVED.size:
        return None
    kind, _, found, persisted_seqno, high_seqno = _OBSERVED.unpack_from(frame.value)
    return (persisted_seqno, high_seqno) if kind == _SAME_BRANCH and found == vbuuid else None


class Asides:
    """Questions of one reader.

    Args:
        labels: where the names go.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._manifest_requests: dict[tuple[NodeConnection, int], None] = {}
        self._high_requests: dict[tuple[NodeConnection, int], tuple[Work, bool]] = {}

    def knows_names(self, connection: NodeConnection, now: float) -> bool:
        """Whether collection names are known; asks for them if not."""
        if self._labels.is_known:
            return True
        session = connection.session
        assert session is not None
        if not session.has_collections:
            self._labels.take_manifest(Manifest.DEFAULT)
            return True
        if not any(asked is connection for asked, _ in self._manifest_requests):
            opaque = session.request(Opcode.GET_COLLECTIONS_MANIFEST, now)
            self._manifest_requests[connection, opaque] = None
        return False

    def want_high_seqno(self, connection: NodeConnection, work: Work, now: float, *, is_needed: bool) -> None:
        """Ask how far the branch goes that a vbucket is read on; without `is_needed`, a refusal is no error.

        By OBSERVE_SEQNO, which answers for one branch: a high seqno alone may be that of a branch that has come since.
        """
        if connection.session is not None:
            value = _U64.pack(work.branch)
            opaque = connection.session.request(Opcode.OBSERVE_SEQNO, now, vbid=work.range.vbid, value=value)
            self._high_requests[connection, opaque] = (work, is_needed)

    def takes_names(self, connection: NodeConnection, event: Answer) -> bool:
        """Whether this answers the question for names; takes them.

        Raises:
            DcpstreamError: the node refuses it, or a collection that is wanted does not exist.
        """
        if (connection, event.opaque) not in self._manifest_requests:
            return False
        del self._manifest_requests[connection, event.opaque]
        frame = event.frame
        if frame.status == Status.SUCCESS:
            self._labels.take_manifest(manifest_of(frame.value))
        elif frame.status in {Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED}:
            self._labels.take_manifest(Manifest.DEFAULT)
        elif frame.status not in RETRY:
            raise _refused(event, "asking for the collections")
        return True

    def high_seqno(self, connection: NodeConnection, event: Answer) -> tuple[Work, int] | None:
        """The vbucket that waited for this answer, and how far the branch goes that it is read on.

        None if it answers something else, or says nothing about that branch: then the stream's end is on its way.

        Raises:
            DcpstreamError: the node refuses the question, and the answer is needed.
        """
        work, is_needed = self._high_requests.pop((connection, event.opaque), (None, False))
        if work is None or work.connection is not connection or work.stream is None:
            return None
        frame = event.frame
        if frame.status != Status.SUCCESS:
            if is_needed and frame.status not in _ELSEWHERE:
                raise _refused(event, "asking how far the branch goes")
            return None
        found = branch_seqnos(frame, work.branch)
        return None if found is None else (work, found[1])

    def forget(self, connection: NodeConnection) -> None:
        """A connection is gone."""
        for requests in (self._high_requests, self._manifest_requests):
            for key in [key for key in requests if key[0] is connection]:
                del requests[key]


def _refused(event: Answer, context: str) -> DcpstreamError:
    return status_error(event.frame.status, opcode=event.frame.opcode, context=context)
