"""Requests of a reader other than streams: the names of collections, and the high seqno of a vbucket's branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Answer
from dcpstream.client.machine.nodes.cluster_map import manifest_of
from dcpstream.client.machine.nodes.questions import ACTIVE_SEQNOS, branch_seqnos
from dcpstream.client.machine.nodes.retry import RETRY_STATUSES
from dcpstream.client.machine.reader.catalog import Catalog
from dcpstream.client.machine.reader.vbucket import Vbucket
from dcpstream.errors import ConnectTimeout, DcpstreamError
from dcpstream.model import Manifest
from dcpstream.wire import Status
from dcpstream.wire.messages.kv import GetCollectionsManifest, ObserveSeqno
from dcpstream.wire.status import status_error
from dcpstream.wire.values import decode_vbucket_seqnos

MANIFEST_POLL_S = 2.0
"""Seconds between two requests for the manifest, while a collection may become wanted, or get its name, without an
event in a stream."""

NAMES_PAUSE_S = 0.1
"""Least seconds between two requests for the manifest to one node, for one that answers "later" each time, or knows
only an older manifest."""

_ELSEWHERE = frozenset((Status.NOT_MY_VBUCKET, Status.KEY_ENOENT))
"""Answers of OBSERVE_SEQNO for a vbucket that has moved, or has another branch by now."""

Key = tuple[NodeConnection, int]
"""A request: its connection and opaque."""


class SideRequests:
    """The requests of one reader.

    Args:
        catalog: where the names go.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._manifest_requests: set[Key] = set()
        self._high_requests: dict[Key, tuple[Vbucket, bool]] = {}
        self._bound_requests: dict[Key, int] = {}
        self._bounds: dict[NodeConnection, tuple[int, Mapping[int, int]]] = {}
        self._next_poll_at = 0.0
        self._names_at: dict[NodeConnection, float] = {}
        self._unnamed_since: float | None = None

    def names_at(self, connection: NodeConnection) -> float:
        """The earliest time of the next request for the names to this node."""
        return self._names_at.get(connection, 0.0)

    def knows_names(self, connection: NodeConnection, now: float) -> bool:
        """Whether collection names are known; asks for them if not."""
        if self._catalog.is_known:
            return True
        session = connection.session
        assert session is not None
        if not session.has_collections:
            self._catalog.take_manifest(Manifest.DEFAULT, str(connection.address))
            return self._catalog.is_known
        self._ask_for_names(connection, now)
        return False

    def refresh_names(self, connections: Iterable[NodeConnection], now: float) -> None:
        """Ask for the names if they are out of date, or periodically if no stream reports new ones.

        Asks one node, and every node while the answers of some do not count.
        """
        catalog = self._catalog
        if not catalog.unnamed:
            self._unnamed_since = None
        elif self._unnamed_since is None:
            self._unnamed_since = now
        if catalog.is_known and not (catalog.needs_polling and now >= self._next_poll_at):
            return
        for connection in connections:
            if connection.is_ready and connection.session is not None and connection.session.has_collections:
                self._ask_for_names(connection, now)
                if catalog.older is None and not catalog.unnamed:
                    return

    def complaint(self, now: float, patience_s: float) -> ConnectTimeout | None:
        """The error to raise if rows have waited for the names of their collections for too long, else None."""
        if self._unnamed_since is None or now - self._unnamed_since < patience_s:
            return None
        ids = ", ".join(f"0x{number:x}" for number in sorted(self._catalog.unnamed))
        why = self._catalog.complaint() or (
            f"version {self._catalog.manifest_uid} of the bucket's collections, the newest that a node has, does not "
            "have it. See that the cluster's manager has sent the nodes their collections, or push them with "
            "SET_COLLECTIONS"
        )
        return ConnectTimeout(f"rows of collection {ids} had no name for {patience_s:g} s: {why}")

    def next_timeout(self) -> float:
        """The next time to call `refresh_names`; infinity if never."""
        return self._next_poll_at if self._catalog.needs_polling else float("inf")

    def _ask_for_names(self, connection: NodeConnection, now: float) -> None:
        self._next_poll_at = now + MANIFEST_POLL_S
        if now < self.names_at(connection):
            return
        self._names_at[connection] = now + NAMES_PAUSE_S
        if not any(asked is connection for asked, _ in self._manifest_requests):
            assert connection.session is not None
            self._manifest_requests.add((connection, connection.session.request(GetCollectionsManifest(), now)))

    def upper_bounds(self, connection: NodeConnection, now: float) -> Mapping[int, int] | None:
        """High seqnos of a node's vbuckets, asked after the manifest that is known now; None while they are awaited.

        Empty if the node refuses the request.
        """
        uid = self._catalog.manifest_uid
        known = self._bounds.get(connection)
        if known is not None and known[0] == uid:
            return known[1]
        is_asked = any(asked is connection and of == uid for (asked, _), of in self._bound_requests.items())
        if not is_asked and connection.session is not None:
            self._bound_requests[connection, connection.session.request(ACTIVE_SEQNOS, now)] = uid
        return None

    def takes_bounds(self, connection: NodeConnection, event: Answer) -> bool:
        """Take the answer if it is one to `upper_bounds`; whether it was."""
        uid = self._bound_requests.pop((connection, event.opaque), None)
        if uid is None:
            return False
        is_success = event.frame.status == Status.SUCCESS
        self._bounds[connection] = (uid, dict(decode_vbucket_seqnos(event.frame.value)) if is_success else {})
        return True

    def want_high_seqno(self, connection: NodeConnection, vbucket: Vbucket, now: float, *, is_needed: bool) -> None:
        """Ask for the high seqno of the branch that a vbucket is read on; without `is_needed`, a refusal is no error.

        By OBSERVE_SEQNO, which answers for one branch: a high seqno alone may belong to a branch that has come since.
        """
        if connection.session is not None:
            request = ObserveSeqno(vbid=vbucket.range.vbid, vbuuid=vbucket.given.branch)
            self._high_requests[connection, connection.session.request(request, now)] = (vbucket, is_needed)

    def takes_names(self, connection: NodeConnection, event: Answer) -> bool:
        """Take the answer if it is one about names; whether it was.

        Raises:
            DcpstreamError: the node refuses the request, or a wanted collection does not exist.
        """
        if (connection, event.opaque) not in self._manifest_requests:
            return False
        self._manifest_requests.remove((connection, event.opaque))
        frame = event.frame
        if frame.status == Status.SUCCESS:
            self._catalog.take_manifest(manifest_of(frame.value), str(connection.address))
        elif frame.status in {Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED}:
            self._catalog.take_manifest(Manifest.DEFAULT, str(connection.address))
        elif frame.status not in RETRY_STATUSES:
            raise _refused(event, "asking for the collections")
        return True

    def high_seqno(self, connection: NodeConnection, event: Answer) -> tuple[Vbucket, int] | None:
        """The vbucket that this answer is about, and the high seqno of the branch that it is read on.

        None if the answer is to another request, or says nothing about that branch: its stream will then end soon.

        Raises:
            DcpstreamError: the node refuses the request, and the answer is needed.
        """
        vbucket, is_needed = self._high_requests.pop((connection, event.opaque), (None, False))
        if vbucket is None or vbucket.connection is not connection or vbucket.stream is None:
            return None
        frame = event.frame
        if frame.status != Status.SUCCESS:
            if is_needed and frame.status not in _ELSEWHERE:
                raise _refused(event, "asking how far the branch goes")
            return None
        found = branch_seqnos(frame, vbucket.given.branch)
        return None if found is None else (vbucket, found[1])

    def forget(self, connection: NodeConnection) -> None:
        """A connection is gone: its answers will not come."""
        self._bounds.pop(connection, None)
        self._names_at.pop(connection, None)
        self._manifest_requests = {key for key in self._manifest_requests if key[0] is not connection}
        self._high_requests = {key: of for key, of in self._high_requests.items() if key[0] is not connection}
        self._bound_requests = {key: of for key, of in self._bound_requests.items() if key[0] is not connection}


def _refused(event: Answer, context: str) -> DcpstreamError:
    return status_error(event.frame.status, opcode=event.frame.opcode, context=context)
