"""What a reader asks besides streams: the names of collections, and how far a vbucket's branch goes."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Answer
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.machine.reader.catalog import Catalog
from dcpstream.client.machine.reader.vbucket import Vbucket
from dcpstream.errors import DcpstreamError
from dcpstream.model import Manifest
from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.status import status_error
from dcpstream.wire.values import decode_vbucket_seqnos

ACTIVE_STATE = (1).to_bytes(4, "big")
"""Extras of GET_ALL_VB_SEQNOS: only vbuckets that are active there. A replica's high seqno says nothing."""

RETRY = frozenset(
    (Status.TMPFAIL, Status.ENOMEM, Status.BUSY, Status.KEY_EEXISTS, Status.WOULD_THROTTLE, Status.NOT_MY_VBUCKET)
)
"""Statuses that say: later, or elsewhere."""

MANIFEST_POLL_S = 2.0
"""Seconds between two questions for the manifest, while a wanted collection may be made of which no stream tells."""

NAMES_PAUSE_S = 0.1
"""Least seconds between two questions for the manifest: a node may put them off again and again."""

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


class SideRequests:
    """Questions of one reader.

    Args:
        catalog: where the names go.

    Attributes:
        names_at: before when the names are not asked for again.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._manifest_requests: dict[tuple[NodeConnection, int], None] = {}
        self._high_requests: dict[tuple[NodeConnection, int], tuple[Vbucket, bool]] = {}
        self._bound_requests: dict[tuple[NodeConnection, int], int] = {}
        self._bounds: dict[NodeConnection, tuple[int, Mapping[int, int]]] = {}
        self._next_poll_at = 0.0
        self.names_at = 0.0

    def knows_names(self, connection: NodeConnection, now: float) -> bool:
        """Whether collection names are known; asks for them if not."""
        if self._catalog.is_known:
            return True
        session = connection.session
        assert session is not None
        if not session.has_collections:
            self._catalog.take_manifest(Manifest.DEFAULT)
            return True
        self._ask_for_names(connection, now)
        return False

    def refresh_names(self, connection: NodeConnection | None, now: float) -> None:
        """Ask for the names if they are out of date, or now and then if that is the only way to learn of new ones."""
        if connection is None or connection.session is None or not connection.session.has_collections:
            return
        if not self._catalog.is_known or (self._catalog.needs_polling and now >= self._next_poll_at):
            self._ask_for_names(connection, now)

    def next_timeout(self) -> float:
        """When `refresh_names` has something to do; infinity if never."""
        return self._next_poll_at if self._catalog.needs_polling else float("inf")

    def _ask_for_names(self, connection: NodeConnection, now: float) -> None:
        self._next_poll_at = now + MANIFEST_POLL_S
        if now < self.names_at:
            return
        self.names_at = now + NAMES_PAUSE_S
        if not any(asked is connection for asked, _ in self._manifest_requests):
            assert connection.session is not None
            opaque = connection.session.request(Opcode.GET_COLLECTIONS_MANIFEST, now)
            self._manifest_requests[connection, opaque] = None

    def upper_bounds(self, connection: NodeConnection, now: float) -> Mapping[int, int] | None:
        """High seqnos of a node's vbuckets, asked after the manifest that is known now; None while they are awaited.

        Empty if the node does not tell them.
        """
        uid = self._catalog.manifest_uid
        known = self._bounds.get(connection)
        if known is not None and known[0] == uid:
            return known[1]
        is_asked = any(asked is connection and of == uid for (asked, _), of in self._bound_requests.items())
        if not is_asked and connection.session is not None:
            opaque = connection.session.request(Opcode.GET_ALL_VB_SEQNOS, now, extras=ACTIVE_STATE)
            self._bound_requests[connection, opaque] = uid
        return None

    def takes_bounds(self, connection: NodeConnection, event: Answer) -> bool:
        """Whether this answers the question for upper bounds; takes them."""
        uid = self._bound_requests.pop((connection, event.opaque), None)
        if uid is None:
            return False
        is_told = event.frame.status == Status.SUCCESS
        self._bounds[connection] = (uid, dict(decode_vbucket_seqnos(event.frame.value)) if is_told else {})
        return True

    def want_high_seqno(self, connection: NodeConnection, vbucket: Vbucket, now: float, *, is_needed: bool) -> None:
        """Ask how far the branch goes that a vbucket is read on; without `is_needed`, a refusal is no error.

        By OBSERVE_SEQNO, which answers for one branch: a high seqno alone may be that of a branch that has come since.
        """
        if connection.session is not None:
            value = _U64.pack(vbucket.branch)
            opaque = connection.session.request(Opcode.OBSERVE_SEQNO, now, vbid=vbucket.range.vbid, value=value)
            self._high_requests[connection, opaque] = (vbucket, is_needed)

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
            self._catalog.take_manifest(manifest_of(frame.value))
        elif frame.status in {Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED}:
            self._catalog.take_manifest(Manifest.DEFAULT)
        elif frame.status not in RETRY:
            raise _refused(event, "asking for the collections")
        return True

    def high_seqno(self, connection: NodeConnection, event: Answer) -> tuple[Vbucket, int] | None:
        """The vbucket that waited for this answer, and how far the branch goes that it is read on.

        None if it answers something else, or says nothing about that branch: then the stream's end is on its way.

        Raises:
            DcpstreamError: the node refuses the question, and the answer is needed.
        """
        vbucket, is_needed = self._high_requests.pop((connection, event.opaque), (None, False))
        if vbucket is None or vbucket.connection is not connection or vbucket.stream is None:
            return None
        frame = event.frame
        if frame.status != Status.SUCCESS:
            if is_needed and frame.status not in _ELSEWHERE:
                raise _refused(event, "asking how far the branch goes")
            return None
        found = branch_seqnos(frame, vbucket.branch)
        return None if found is None else (vbucket, found[1])

    def forget(self, connection: NodeConnection) -> None:
        """A connection is gone."""
        self._bounds.pop(connection, None)
        for requests in (self._high_requests, self._manifest_requests, self._bound_requests):
            for key in [key for key in requests if key[0] is connection]:
                del requests[key]


def _refused(event: Answer, context: str) -> DcpstreamError:
    return status_error(event.frame.status, opcode=event.frame.opcode, context=context)
