"""Writers of a simulated cluster: plain and durable writes and deletions, where a vbucket is active at the moment.

A writer knows which node that is, and its requests do not fly: it stands next to the node. Each acknowledged write is
reported to the judge, with the position that the node gave it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcpstream.wire import Opcode, encode_request
from dcpstream_node.testing.simulation.node import Peer, SimulatedNode
from lab.simulation.cluster import MAIN, SimulatedCluster
from lab.simulation.judges.judge import DurableWrite, Judge

KEYS = 4
"""Keys of a vbucket that plain writes choose from: few, so that snapshots supersede much."""
WAITING_MAX = 8
"""Durable writes that wait at a time."""
WRITES_MAX = 150
"""Most writes of a seed. Without a limit, writes can lead to more exchanges than there are between two writes, without
end."""
DELETE_SHARE = 0.15
COLLECTION_SHARE = 0.2
"""Share of plain writes to other collections than the default one, if there are some."""
DROPPED_SHARE = 0.2
"""Share of these to a collection that was dropped, or is being dropped."""
LEVELS = (1, 1, 2, 3)
"""Durability levels: 1 a majority has it; 2 also persisted on the active; 3 persisted by a majority."""
PERSIST_TO_MAJORITY = 3
DURABILITY = 1
"""Id of the durability in the framing extras of a request."""


@dataclass(slots=True)
class Waiting:
    """A durable write that is not answered yet."""

    vbid: int
    key: bytes
    value: bytes
    peer: Peer
    opaque: int
    level: int


class Workload:
    """Writes of one seed.

    Args:
        cluster: the nodes.
        judge: gets what was acknowledged.
        bucket: that is written to.

    Attributes:
        collections: ids of collections other than the default one.
        dropped: ids of those that were dropped.
        written, refused: plain writes.
        acknowledged, uncertain: durable writes; the outcome of the latter is not known.
    """

    def __init__(self, cluster: SimulatedCluster, judge: Judge, bucket: str = MAIN) -> None:
        self._cluster = cluster
        self._bucket = bucket
        self._peers: dict[SimulatedNode, Peer] = {}
        self._judge = judge
        self._waiting: list[Waiting] = []
        self._idle: dict[SimulatedNode, list[Peer]] = {}
        self._count = 0
        self.collections: list[int] = []
        self.dropped: list[int] = []
        self.written = self.refused = 0
        self.acknowledged = self.uncertain = 0

    def _node(self, vbid: int) -> tuple[str, SimulatedNode] | None:
        """The node that has the active copy, if it does anything."""
        name = self._judge.histories.serving(vbid)
        if name is None or name in self._cluster.hung or name not in self._cluster.nodes:
            return None
        return name, self._cluster.nodes[name]

    def _peer(self, node: SimulatedNode) -> Peer:
        """The connection of plain writes to a node."""
        peer = self._peers.get(node)
        if peer is None or peer.closed:
            peer = self._peers[node] = node.connect(bucket=self._bucket)
        return peer

    def write(self, vbid: int | None = None) -> None:
        """One plain write or deletion, to any vbucket or to this one, if it is served."""
        chance = self._cluster.chance
        if vbid is None:
            vbid = chance.randrange(self._cluster.sizes[self._bucket])
        found = self._node(vbid)
        if found is None or self._count >= WRITES_MAX:
            return
        name, node = found
        self._count += 1
        known = self.dropped if self.dropped and chance.random() < DROPPED_SHARE else self.collections
        collection = chance.choice(known) if known and chance.random() < COLLECTION_SHARE else 0
        key = b"k%d" % chance.randrange(KEYS)
        wire_key = bytes([collection]) + key
        if chance.random() < DELETE_SHARE:
            value = None
            answer = self._peer(node).call(Opcode.DELETE, vbid=vbid, key=wire_key)
        else:
            value = b"%d" % self._count
            answer = self._peer(node).call(Opcode.SET, vbid=vbid, key=wire_key, value=value, extras=bytes(8))
        self._cluster.touched(name)
        if answer.status:
            self.refused += 1
            return
        self.written += 1
        vbuuid, seqno = int.from_bytes(answer.extras[:8], "big"), int.from_bytes(answer.extras[8:16], "big")
        self._judge.wrote(vbid, vbuuid, seqno, (collection, key), value)

    def write_durably(self, vbid: int | None = None) -> None:
        """Begin one durable write, to any vbucket or to this one, if it is served."""
        chance = self._cluster.chance
        if vbid is None:
            vbid = chance.randrange(self._cluster.sizes[self._bucket])
        found = self._node(vbid)
        if found is None or len(self._waiting) >= WAITING_MAX or self._count >= WRITES_MAX:
            return
        name, node = found
        idle = [peer for peer in self._idle.pop(node, ()) if not peer.closed]
        peer = idle.pop() if idle else node.connect(bucket=self._bucket)
        self._idle[node] = idle
        self._count += 1
        key, value = b"d%d" % self._count, b"%d" % self._count
        opaque = peer.opaque()
        level = chance.choice(LEVELS)
        framing = bytes([DURABILITY << 4 | 1, level])
        peer.deliver(
            encode_request(
                Opcode.SET, vbid=vbid, key=b"\0" + key, value=value, extras=bytes(8), framing=framing, opaque=opaque
            )
        )
        self._waiting.append(Waiting(vbid, key, value, peer, opaque, level))
        self._cluster.touched(name)
        self.look()

    def look(self) -> None:
        """Take the answers to durable writes: after each exchange, so that the judge sees the copies as they are."""
        for each in list(self._waiting):
            peer = each.peer
            node = peer.node
            status, seqno = None, 0
            if peer.has_news:
                for frame in peer.take():
                    if frame.opaque == each.opaque and frame.opcode == Opcode.SET:
                        status, seqno = frame.status, int.from_bytes(frame.extras[8:16], "big")
            is_down = all(other is not node for other in self._cluster.nodes.values())
            if status is None and not peer.closed and not is_down:
                continue
            self._waiting.remove(each)
            if status is None:
                self.uncertain += 1
                continue
            if status == 0:
                self.acknowledged += 1
                self._judge.acknowledged(
                    DurableWrite(each.vbid, each.key, each.value, seqno, is_persisted=each.level == PERSIST_TO_MAJORITY)
                )
            else:
                self.uncertain += 1
            if not peer.closed and not is_down:
                self._idle.setdefault(node, []).append(peer)
