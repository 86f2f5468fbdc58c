"""The vbuckets that wait for a stream: when each is due, on which node, and what its request asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import UNFILTERED, Purged, RequestedRows
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.retry import LOOK_AGAIN_S, pause_s
from dcpstream.client.machine.reader.catalog import Catalog
from dcpstream.client.machine.reader.side_requests import SideRequests
from dcpstream.client.machine.reader.vbucket import TRANSITIONS, Event, Part, State, Vbucket
from dcpstream.model import CollectionName, NodeAddress, Op, StreamOffset, VbucketMap
from dcpstream.runtime import Random

logger = logging.getLogger(__name__)


class OpenQueue:
    """The waiting vbuckets of one reader.

    Args:
        vbuckets: all of the reader's.
        nodes: the connections.
        random: for pauses.
        catalog: which collections are read.
        side_requests: which connections know the collections' names.
        replicas_after_s: see `ReadRules`.

    Attributes:
        vbids: the waiting ones.
    """

    def __init__(
        self,
        vbuckets: Mapping[int, Vbucket],
        nodes: Nodes,
        random: Random,
        catalog: Catalog,
        side_requests: SideRequests,
        replicas_after_s: float | None = None,
    ) -> None:
        self._vbuckets = vbuckets
        self._nodes = nodes
        self._random = random
        self._catalog = catalog
        self._side_requests = side_requests
        self._replicas_after_s = replicas_after_s
        self._reported: set[str] = set()
        self.vbids: set[int] = set()

    @property
    def next_due(self) -> float:
        """The time of the next attempt; infinity if no vbucket waits for a time."""
        return min((self._vbuckets[vbid].attempts.due for vbid in self.vbids), default=float("inf"))

    def add(self, vbucket: Vbucket, event: Event, now: float, pause: float = 0.0) -> None:
        """A vbucket has lost its stream by this event: try again after a pause, in seconds."""
        vbucket.drop_stream(event, now + pause, now)
        self.vbids.add(vbucket.range.vbid)

    def wake_all(self, now: float) -> None:
        """Try all at once: something changed that they may have waited for."""
        for vbid in self.vbids:
            attempts = self._vbuckets[vbid].attempts
            attempts.due = min(attempts.due, now)

    def open_due(
        self,
        now: float,
        report_ended: Callable[[Vbucket, Op, CollectionName, int], None],
        nothing_wanted: Callable[[Vbucket, float], None],
    ) -> None:
        """Request the streams that are due, on nodes that are ready.

        Args:
            now: seconds of a monotonic clock.
            report_ended: called for each collection that a vbucket's position covers and that is gone, or left out:
                with the vbucket, the kind of row, the collection, and a seqno that is not below its rows.
            nothing_wanted: called for a vbucket in which nothing is left to read.

        The functions are those of the reader. They are not kept, so that a reader that is done is freed at once, with
        the receive buffers of its connections, and not by the collector of cycles.

        Raises:
            DcpstreamError: the read cannot go on.
        """
        if not any(self._vbuckets[vbid].attempts.due <= now for vbid in self.vbids):
            return
        found = self._nodes.find_map(now)
        if found is None:
            for vbid in self.vbids:
                attempts = self._vbuckets[vbid].attempts
                attempts.due = max(attempts.due, now + LOOK_AGAIN_S)
            return
        self._catalog.require(self._least_manifest_uid())
        blocked: dict[str, float] = {}
        address: NodeAddress | None = None
        usable: NodeConnection | None = None
        name = ""
        for vbid in sorted(self.vbids):
            vbucket = self._vbuckets[vbid]
            if vbucket.attempts.due > now or self._open_at_replica(vbucket, found, now):
                continue
            before, address = address, found.active_node(vbid) if vbid < found.vbucket_count else None
            if address is None:
                self._nodes.find_map(now, refresh=True)
                vbucket.attempts.trouble = "the cluster map names no node for it"
                self.add(vbucket, Event.POSTPONED, now, pause_s(5, self._random))
                continue
            if address is not before:
                name, usable = str(address), None
            if name in blocked:
                # It waits already, as the one before it for which the node was tried.
                vbucket.attempts.due = blocked[name]
                continue
            if usable is None:
                connection = self._ready(address, now)
                if connection is None:
                    blocked[name] = max(now + LOOK_AGAIN_S, self._nodes.retry_at(address))
                elif not self._side_requests.knows_names(connection, now):
                    if self._wait_for_names(vbucket, connection, now):
                        continue
                    blocked[name] = max(now + LOOK_AGAIN_S, self._side_requests.names_at(connection))
                else:
                    usable = connection
            if usable is not None:
                if self._follow_collections(vbucket, usable, now, report_ended):
                    if not self._open(vbucket, usable, now):
                        nothing_wanted(vbucket, now)
                    continue
                blocked[name] = float("inf")
            self.add(vbucket, Event.POSTPONED, now, blocked[name] - now)

    def _open_at_replica(self, vbucket: Vbucket, found: VbucketMap, now: float) -> bool:
        """Request the stream from a replica, if the active node has been away for long enough.

        Only for a plain continuation of the range: whatever compares branches, collections or purged deletions is left
        to the active node.
        """
        stuck_since = vbucket.attempts.stuck_since
        if self._replicas_after_s is None or stuck_since is None or now - stuck_since < self._replicas_after_s:
            return False
        if vbucket.range.vbid >= found.vbucket_count:
            return False
        if vbucket.state is not State.WAITING or vbucket.part is not Part.RANGE or vbucket.rewound_from is not None:
            return False
        active, replicas = found.active_node(vbucket.range.vbid), found.replica_nodes(vbucket.range.vbid)
        # Asked for in each attempt, so that the active node is tried although its replicas refuse.
        if not replicas or (active is not None and self._nodes.ready(active, now) is not None):
            return False
        address = replicas[vbucket.attempts.failures % len(replicas)]
        connection = self._nodes.ready(address, now)
        if connection is None or not self._side_requests.knows_names(connection, now):
            return False
        coverage = self._catalog.coverage(vbucket.offset)
        if coverage.dropped or coverage.excluded or coverage.fresh:
            return False
        if coverage.kept is not vbucket.offset.collections:
            vbucket.offset = vbucket.offset.with_collections(coverage.kept, self._catalog.manifest_uid)
        if str(active) not in self._reported:
            self._reported.add(str(active))
            logger.warning(
                "vbucket %d is read from a replica at %s, and others may be: the active node, %s, is away",
                *(vbucket.range.vbid, address, active or "which the map does not name"),
            )
        return self._open(vbucket, connection, now, from_replica=True)

    def _ready(self, address: NodeAddress, now: float) -> NodeConnection | None:
        """The connection to a node, if it can be used now."""
        connection = self._nodes.ready(address, now)
        if connection is None and self._nodes.any_ready() is not None:
            # A map that is out of date names nodes that are gone: ask the others while this one is tried.
            self._nodes.find_map(now, refresh=True)
        return connection

    def _least_manifest_uid(self) -> int:
        """The newest version of the manifest that a position knows; one that is being probed counts until then."""
        return max(
            (one.offset.least_manifest_uid for one in self._vbuckets.values() if one.state not in TRANSITIONS.final),
            default=0,
        )

    def _wait_for_names(self, vbucket: Vbucket, connection: NodeConnection, now: float) -> bool:
        """Wait while the collections are not known; False if the node has not answered, as all its vbuckets then wait.

        A node that knows an older manifest than the position is asked about the position meanwhile, once. If the bucket
        was created again, or its history was rolled back, the position goes back, and what it knows of the collections
        with it.
        """
        vbucket.attempts.trouble = self._catalog.complaint() or "the node does not send its collections"
        if self._catalog.older is None:
            return False
        if vbucket.offset.least_manifest_uid and vbucket.part is not Part.NEW_COLLECTIONS:
            vbucket.put_position()
            self._request(vbucket, connection, now, vbucket.offset.seqno, UNFILTERED)
        else:
            self.add(vbucket, Event.POSTPONED, now, max(LOOK_AGAIN_S, self._side_requests.names_at(connection) - now))
        return True

    def _follow_collections(
        self,
        vbucket: Vbucket,
        connection: NodeConnection,
        now: float,
        report_ended: Callable[[Vbucket, Op, CollectionName, int], None],
    ) -> bool:
        """Report collections that ended and find new ones; False while the node is asked for their bounds."""
        coverage = self._catalog.coverage(
            vbucket.offset, is_purged=vbucket.state is State.SUSPECT and not vbucket.is_guarded
        )
        uid = self._catalog.manifest_uid
        bounds: Mapping[int, int] | None = {}
        if coverage.dropped and not self._catalog.is_plan:
            bounds = self._side_requests.upper_bounds(connection, now)
        if bounds is None:
            return False
        if coverage.dropped or coverage.excluded:
            seqno = max(vbucket.offset.seqno, bounds.get(vbucket.range.vbid, 0))
            unreported = [
                *((Op.COLLECTION_DROPPED, gone) for gone in coverage.dropped),
                *((Op.COLLECTION_EXCLUDED, left_out) for left_out in coverage.excluded),
            ]
            while unreported:
                op, ended = unreported.pop(0)
                left = (*coverage.kept, *(item for _, item in unreported))
                vbucket.offset = vbucket.offset.with_collections(left, uid)
                report_ended(vbucket, op, ended, seqno)
        if coverage.kept is not vbucket.offset.collections:
            vbucket.offset = vbucket.offset.with_collections(coverage.kept, uid)
        vbucket.find(coverage.fresh)
        return True

    def _open(self, vbucket: Vbucket, connection: NodeConnection, now: float, *, from_replica: bool = False) -> bool:
        """Request the vbucket's stream; False if nothing is left to read."""
        wanted, at, held = self._catalog.wanted, vbucket.offset, None
        is_empty = vbucket.emptied is not None and wanted.lies_within(vbucket.emptied)
        if wanted.is_nothing or is_empty or (vbucket.is_at_end and vbucket.part is Part.RANGE):
            return False
        ids = None if wanted.collections is None else tuple(sorted(wanted.collections))
        asked, end_seqno = RequestedRows(ids, wanted.scope_id, from_replica), vbucket.range.end_seqno
        if vbucket.part is not Part.RANGE:
            end_seqno = at.seqno
        if vbucket.part is Part.NEW_COLLECTIONS:
            asked = RequestedRows(tuple(item.collection_id for item in vbucket.new_collections))
            at, held = vbucket.new_offset, at
        self._request(vbucket, connection, now, end_seqno, asked, at=at, held=held)
        return True

    def _request(
        self,
        vbucket: Vbucket,
        connection: NodeConnection,
        now: float,
        end_seqno: int,
        asked: RequestedRows,
        *,
        at: StreamOffset | None = None,
        held: StreamOffset | None = None,
    ) -> None:
        assert connection.session is not None
        self.vbids.discard(vbucket.range.vbid)
        purged = Purged.REFUSE
        if vbucket.state is State.SUSPECT and not vbucket.is_guarded:
            purged = Purged.IGNORE
        elif vbucket.state is State.SUSPECT and vbucket.can_be_guarded:  # else the position is put to the node as it is
            purged = Purged.GUARD
            vbucket.attempts.guarded += 1
        vbucket.happen(Event.REQUESTED)
        vbucket.connection = connection
        vbucket.stream = connection.session.open_stream(
            vbucket.range.vbid,
            at or vbucket.offset,
            end_seqno,
            now,
            wanted=asked,
            purged=purged,
            held=held,
            names=self._catalog,
        )
