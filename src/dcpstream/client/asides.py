"""What a reader asks besides streams: the names of collections, and how far a new branch goes."""

from __future__ import annotations

from dcpstream.client.connection import NodeConnection
from dcpstream.client.events import Answer
from dcpstream.client.labels import Labels
from dcpstream.client.topology import manifest_of
from dcpstream.client.work import Work
from dcpstream.errors import DcpstreamError
from dcpstream.model import Manifest
from dcpstream.wire import Opcode, Status
from dcpstream.wire.status import status_error
from dcpstream.wire.values import decode_vbucket_seqnos

ACTIVE_STATE = (1).to_bytes(4, "big")
"""Extras of GET_ALL_VB_SEQNOS: only vbuckets that are active there. A replica's high seqno says nothing."""

RETRY = frozenset(
    (Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.KEY_EEXISTS, Status.WOULD_THROTTLE, Status.NOT_MY_VBUCKET)
)
"""Statuses that say: later, or elsewhere."""


class Asides:
    """Questions of one reader, at most one of each kind on a connection at a time.

    Args:
        labels: where the names go.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._manifest_requests: dict[tuple[NodeConnection, int], None] = {}
        self._high_requests: dict[NodeConnection, int] = {}
        self._wanting_high: dict[NodeConnection, list[tuple[Work, bool]]] = {}

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
        """Ask how far a vbucket's branch goes; without `is_needed`, a refusal is no error."""
        self._wanting_high.setdefault(connection, []).append((work, is_needed))
        if connection not in self._high_requests and connection.session is not None:
            self._high_requests[connection] = connection.session.request(
                Opcode.GET_ALL_VB_SEQNOS, now, extras=ACTIVE_STATE
            )

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

    def high_seqnos(self, connection: NodeConnection, event: Answer) -> list[tuple[Work, int | None]]:
        """The vbuckets that waited for this answer, with their high seqnos; None if they are not active there.

        Raises:
            DcpstreamError: the node refuses the question.
        """
        if self._high_requests.get(connection) != event.opaque:
            return []
        del self._high_requests[connection]
        wanting = self._wanting_high.pop(connection, [])
        if event.frame.status != Status.SUCCESS:
            if any(is_needed for _, is_needed in wanting):
                raise _refused(event, "asking for high seqnos")
            return []
        found = dict(decode_vbucket_seqnos(event.frame.value))
        return [
            (work, found.get(work.range.vbid))
            for work, _ in wanting
            if work.connection is connection and work.stream is not None and work.stream.log is not None
        ]

    def forget(self, connection: NodeConnection) -> None:
        """A connection is gone."""
        self._high_requests.pop(connection, None)
        self._wanting_high.pop(connection, None)
        for key in [key for key in self._manifest_requests if key[0] is connection]:
            del self._manifest_requests[key]


def _refused(event: Answer, context: str) -> DcpstreamError:
    return status_error(event.frame.status, opcode=event.frame.opcode, context=context)
