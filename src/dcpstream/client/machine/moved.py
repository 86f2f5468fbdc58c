"""Streams at nodes that the cluster map no longer names as those of their vbuckets."""

from __future__ import annotations

from collections.abc import Mapping

from dcpstream.client.machine.work import Work
from dcpstream.model import VbucketMap

MOVED_GRACE_S = 5.0
"""How long a stream may go on at a node that the map no longer names as the vbucket's. A node that lives ends the
stream itself; one that is cut off would be noticed only by its silence."""


class MovedStreams:
    """Which streams have to be left, and when.

    Args:
        found: the map when the reading began.
    """

    def __init__(self, found: VbucketMap | None) -> None:
        self._seen = found
        self._deadlines: dict[int, float] = {}

    def overdue(self, found: VbucketMap | None, works: Mapping[int, Work], now: float) -> list[Work]:
        """The vbuckets whose streams have gone on elsewhere for too long."""
        if found is not None and found is not self._seen:
            self._seen = found
            for vbid, work in works.items():
                if work.connection is None or vbid >= found.vbucket_count:
                    continue
                if str(found.active_node(vbid)) == str(work.connection.address):
                    self._deadlines.pop(vbid, None)
                else:
                    self._deadlines.setdefault(vbid, now + MOVED_GRACE_S)
        result = []
        for vbid, deadline in list(self._deadlines.items()):
            if works[vbid].stream is None or now >= deadline:
                del self._deadlines[vbid]
                if works[vbid].stream is not None:
                    result.append(works[vbid])
        return result

    def next_timeout(self) -> float:
        """When `overdue` has something to say; infinity if nothing has moved."""
        return min(self._deadlines.values(), default=float("inf"))
