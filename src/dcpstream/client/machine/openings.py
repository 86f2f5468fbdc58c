"""The vbuckets of a reader that wait for a stream: for a time, for a node, or for a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dcpstream.client.machine.asides import Asides
from dcpstream.client.machine.connection import NodeConnection
from dcpstream.client.machine.labels import Labels
from dcpstream.client.machine.nodes import Nodes, pause_s
from dcpstream.client.machine.work import CatchUp, State, Work
from dcpstream.model import CollectionName
from dcpstream.runtime import Random

__all__ = ["Openings"]


class Openings:
    """Who waits, and asking for their streams.

    Args:
        vbuckets: all of the reader's.
        nodes: the connections.
        random: for pauses.
        labels: which collections are read.
        asides: which connections know their names.

        tell_dropped: called for each collection that a vbucket's position covers and that is gone: with the vbucket,
            the collection, and a seqno that lies above its rows.
        nothing_left: called for a vbucket of which nothing is wanted any more.

    Attributes:
        vbids: who waits.
    """

    def __init__(
        self,
        vbuckets: Mapping[int, Work],
        nodes: Nodes,
        random: Random,
        labels: Labels,
        asides: Asides,
        tell_dropped: Callable[[Work, CollectionName, int], None],
        nothing_left: Callable[[Work, float], None],
    ) -> None:
        self._tell_dropped = tell_dropped
        self._nothing_left = nothing_left
        self._vbuckets = vbuckets
        self._nodes = nodes
        self._random = random
        self._labels = labels
        self._asides = asides
        self.vbids: set[int] = set()

    @property
    def next_due(self) -> float:
        """When the first of them is to be tried; infinity if none waits for a time."""
        return min((self._vbuckets[vbid].due for vbid in self.vbids), default=float("inf"))

    def open_due(self, now: float) -> None:
        """Ask for the streams whose time has come, on nodes that are ready.

        Raises:
            DcpstreamError: the read cannot go on.
        """
        if not any(self._vbuckets[vbid].due <= now for vbid in self.vbids):
            return
        found = self._nodes.find_map(now)
        if found is None:
            self._postpone_all(now)
            return
        blocked: dict[str, float] = {}
        for vbid in sorted(self.vbids):
            work = self._vbuckets[vbid]
            if work.due > now:
                continue
            address = found.active_node(vbid) if vbid < found.vbucket_count else None
            if address is None:
                self._nodes.find_map(now, refresh=True)
                work.trouble = "the cluster map names no node for it"
                self.add(work, now, pause_s(5, self._random))
                continue
            name = str(address)
            if name not in blocked:
                connection = self._nodes.ready(address, now)
                if connection is None:
                    # A map that is out of date names nodes that are gone: ask the others while this one is tried.
                    if self._nodes.any_ready() is not None:
                        self._nodes.find_map(now, refresh=True)
                    blocked[name] = max(now + 0.02, self._nodes.retry_at(address))
                elif not self._asides.knows_names(connection, now):
                    work.trouble = "the node does not tell its collections"
                    blocked[name] = max(now + 0.02, self._asides.names_at)
                elif self._follow_collections(work, connection, now):
                    self._open(work, connection, now)
                    continue
                else:
                    blocked[name] = float("inf")
            self.add(work, now, blocked[name] - now)

    def _postpone_all(self, now: float) -> None:
        for vbid in self.vbids:
            work = self._vbuckets[vbid]
            work.due = max(work.due, now + 0.02)

    def add(self, work: Work, now: float, pause: float) -> None:
        """A vbucket without a stream: try again after a pause, in seconds."""
        if work.stuck_since is None:
            work.stuck_since = now
        work.state, work.stream, work.connection = State.WAITING, None, None
        work.due = now + pause
        self.vbids.add(work.range.vbid)

    def wake_all(self, now: float) -> None:
        """Something has changed that they may have waited for."""
        for vbid in self.vbids:
            self._vbuckets[vbid].due = min(self._vbuckets[vbid].due, now)

    def _follow_collections(self, work: Work, connection: NodeConnection, now: float) -> bool:
        """Tell what was dropped, and see what is new; False while the node is asked for what that needs."""
        coverage = self._labels.coverage(work.offset, is_purged=work.probes_purge)
        if coverage.dropped:
            bounds = {} if self._labels.is_plan else self._asides.upper_bounds(connection, now)
            if bounds is None:
                return False
            seqno = max(work.offset.seqno, bounds.get(work.range.vbid, 0))
            untold = [*coverage.dropped]
            while untold:
                gone = untold.pop(0)
                work.offset = work.offset.with_collections((*coverage.kept, *untold))
                self._tell_dropped(work, gone, seqno)
        work.offset = work.offset.with_collections(coverage.kept)
        if not coverage.fresh:
            work.catch_up = None
        elif work.catch_up is None or work.catch_up.collections != coverage.fresh:
            work.catch_up = CatchUp(coverage.fresh)
        return True

    def _open(self, work: Work, connection: NodeConnection, now: float) -> None:
        assert connection.session is not None
        wanted, catch_up, at, held = self._labels.wanted, work.catch_up, work.offset, None
        is_empty = work.emptied is not None and wanted.lies_within(work.emptied)
        if wanted.is_nothing or is_empty or (work.is_at_end and catch_up is None):
            self._nothing_left(work, now)
            return
        ids = None if wanted.collections is None else sorted(wanted.collections)
        scope_id, end_seqno = wanted.scope_id, work.range.end_seqno
        if catch_up is not None:
            end_seqno = at.seqno
            if catch_up.is_allowed:
                ids, scope_id = [item.collection_id for item in catch_up.collections], None
                at, held = catch_up.offset, at
        self.vbids.discard(work.range.vbid)
        work.state, work.connection = State.OPENING, connection
        work.stream = connection.session.open_stream(
            work.range.vbid,
            at,
            end_seqno,
            now,
            collection_ids=ids,
            scope_id=scope_id,
            ignore_purged=work.probes_purge,
            held=held,
            names=self._labels,
        )
