"""Rollback mitigation: rows are held back until every copy of their vbucket has them on disk.

A change that only the active node has in memory may be lost in a failover, and its reader must then remove it. Behind
this gate such a change is never delivered: rows wait here until the active node and all replicas of the map report
(OBSERVE_SEQNO) that they have persisted the branch up to the rows' position. A failover before that costs nothing but
reading again.

Theory of operation: the gate keeps rows as they were received, and for each vbucket the seqno that must be persisted.
While it holds something, it asks each copy of those vbuckets every `POLL_S`; a copy on another branch counts as having
nothing. If the active node itself is on another branch, the stream's rows may be void: the gate reports the vbucket as
changed, and its reader drops what is held and asks again at the last position that was delivered. Flow control bounds
the memory: held rows are not acknowledged, so a node sends one window more at most.

Source: rollback mitigation of java-dcp-client (mitigateRollbacks); kv_engine docs, OBSERVE_SEQNO.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from dcpstream.client.machine.connection.connection import NodeConnection
from dcpstream.client.machine.connection.events import Answer, RowsReceived
from dcpstream.client.machine.nodes.nodes import Nodes
from dcpstream.client.machine.nodes.questions import branch_seqnos
from dcpstream.client.machine.reader.output_queue import Received
from dcpstream.wire import Status
from dcpstream.wire.messages.kv import ObserveSeqno

POLL_S = 0.1
"""Seconds between two questions to a copy: the latency that the gate adds to that of the copies. Couchbase's Spark
connector uses the same interval."""


@dataclass(slots=True, eq=False)
class _Held:
    """Rows of one receive that still wait.

    Attributes:
        needs: vbucket → the seqno that all copies must have persisted.
    """

    received: Received
    needs: dict[int, int]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A vbucket with rows that are held.

    Attributes:
        vbuuid: the branch of the rows.
        count: receives with rows of it.
        persisted: node → the seqno up to which it has the branch on disk.
        asked: nodes that have not answered yet.
    """

    vbuuid: int
    count: int = 0
    persisted: dict[str, int] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)


class StableGate:
    """Holds back the rows of one reader."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._held: deque[_Held] = deque()
        self._waiting: dict[int, _Waiting] = {}
        self._asked: dict[tuple[NodeConnection, int], tuple[int, str, _Waiting]] = {}
        self._next_poll_at = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return not self._waiting

    def holds(self, vbid: int) -> bool:
        """Whether rows of a vbucket wait here."""
        return vbid in self._waiting

    @property
    def needed_nodes(self) -> set[str]:
        """The nodes whose answers are awaited."""
        found = self._nodes.map
        if found is None:
            return set()
        return {str(node) for vbid in self._waiting for node in found.copies(vbid)}

    def hold(self, received: Received) -> None:
        """Keep rows until they are stable."""
        event = received.event
        needs: dict[int, int] = {}
        for run in event.runs:
            # Inside an out-of-order snapshot the position stands still.
            needs[run.vbid] = max(needs.get(run.vbid, 0), run.seqno, run.unordered_high)
        for vbid in needs:
            waiting = self._waiting.get(vbid)
            if waiting is None:
                waiting = self._waiting[vbid] = _Waiting(event.offsets[vbid].vbuuid)
            waiting.count += 1
        self._held.append(_Held(received, needs))

    def drop(self, vbid: int) -> None:
        """Forget a vbucket's rows: its stream was interrupted, they will be read again."""
        if self._waiting.pop(vbid, None) is None:
            return
        for held in self._held:
            held.needs.pop(vbid, None)

    def released(self) -> Iterator[Received]:
        """The rows that are stable now, in order; those of one receive may come in several parts."""
        left: deque[_Held] = deque()
        stable = {vbid: self._stable_seqno(vbid, waiting) for vbid, waiting in self._waiting.items()}
        for held in self._held:
            free = [vbid for vbid, seqno in held.needs.items() if seqno <= stable[vbid]]
            for vbid in free:
                del held.needs[vbid]
                self._waiting[vbid].count -= 1
                if not self._waiting[vbid].count:
                    del self._waiting[vbid]
            if held.needs:
                left.append(held)
            if free or not held.needs:
                yield self._part(held, free)
        self._held = left

    def poll(self, now: float) -> None:
        """Ask the copies for their persisted seqnos, if it is time."""
        found = self._nodes.map
        if not self._waiting or found is None or now < self._next_poll_at:
            return
        self._next_poll_at = now + POLL_S
        for vbid, waiting in self._waiting.items():
            if vbid >= found.vbucket_count:
                continue
            for node in found.copies(vbid):
                name = str(node)
                connection = self._nodes.ready(node, now) if name not in waiting.asked else None
                if connection is not None and connection.session is not None:
                    opaque = connection.session.request(ObserveSeqno(vbid=vbid, vbuuid=waiting.vbuuid), now)
                    waiting.asked.add(name)
                    self._asked[connection, opaque] = (vbid, name, waiting)

    def answered(self, connection: NodeConnection, event: Answer, now: float) -> tuple[bool, int | None]:
        """Take an answer.

        Returns: whether it answers a question of the gate; and the vbucket, if its active copy is on another branch.
        """
        asked = self._asked.pop((connection, event.opaque), None)
        if asked is None:
            return False, None
        vbid, name, waiting = asked
        waiting.asked.discard(name)
        if self._waiting.get(vbid) is not waiting:
            return True, None  # dropped meanwhile, or rows of another stream
        frame = event.frame
        is_known = frame.status == Status.SUCCESS
        if is_known:
            seqnos = branch_seqnos(frame, waiting.vbuuid)
            if seqnos is not None:
                waiting.persisted[name] = seqnos[0]
                return True, None
        elif frame.status == Status.NOT_MY_VBUCKET:
            self._nodes.update_map(frame.value, connection.address)
            self._nodes.find_map(now, refresh=True)
            return True, None
        waiting.persisted.pop(name, None)
        found = self._nodes.map
        is_active = found is not None and vbid < found.vbucket_count and str(found.active_node(vbid)) == name
        is_other_branch = is_known or frame.status == Status.KEY_ENOENT
        return True, vbid if is_active and is_other_branch else None

    def forget(self, connection: NodeConnection) -> None:
        """A connection is gone: its answers will not come, and its node may have lost changes."""
        for key in [key for key in self._asked if key[0] is connection]:
            _, name, waiting = self._asked.pop(key)
            waiting.asked.discard(name)
        for waiting in self._waiting.values():
            waiting.persisted.pop(str(connection.address), None)

    def next_timeout(self) -> float:
        """The next time to call `poll`."""
        return self._next_poll_at if self._waiting else float("inf")

    def _stable_seqno(self, vbid: int, waiting: _Waiting) -> int:
        """The seqno up to which every copy has the branch on disk; -1 if a copy has not answered."""
        found = self._nodes.map
        if found is None or vbid >= found.vbucket_count:
            return -1
        return min((waiting.persisted.get(str(node), -1) for node in found.copies(vbid)), default=-1)

    @staticmethod
    def _part(held: _Held, free: Container[int]) -> Received:
        event = held.received.event
        runs = [run for run in event.runs if run.vbid in free]
        part = RowsReceived(event.rows, runs, 0 if held.needs else event.flow_bytes)
        return Received(part, held.received.connection, held.received.names, held.received.vbuuids)
