"""The cluster of a round: nodes that hold one bucket, what is written, and the trouble that is made for them.

All nodes run in this process. Each has every vbucket, active or as a replica. A replica gets exactly what `copy` lets
through, so it may lack the last writes or end inside a snapshot; a failover makes it active as it is. Nothing reaches
a disk by itself: what was not made durable by `persist` is lost when its node is restarted.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dcpstream_node
from dcpstream.model import NodeAddress
from dcpstream_node.directory.directory import DataDirectory
from dcpstream_node.engine import Engine
from lab.chaos.history import History, Name, Write
from lab.chaos.kv import ACTIVE, REPLICA, TIMEOUT_S, Document, Link, prefixed, vbucket_of

NEVER_S = 86_400.0
"""Pause between commits to disk: none comes in a round."""

USERNAME, PASSWORD = "Administrator", "password"
_ADD_STREAM, _OPEN = 0x51, 0x50
_PRODUCER_FLAGS = 0x001 | 0x004 | 0x020 | 0x100
_CONSUMER_FLAGS = 0x020
_ITEMS = {0x57, 0x58, 0x59, 0x5F}
"""Mutation, deletion, expiration, system event."""
_SEQNO_ADVANCED = 0x64

DEFAULT = ("_default", "_default")

ODD_JSON = (b'{"text":"many","n":"%d"}', b'{"n":80000000%04d,"text":"large"}', b'{"n":null,"other":[%d,{"text":"x"}]}')
"""Documents that fit not every schema, or lack a field."""


class _Node(dcpstream_node.Node):
    """A node that is a member of the cluster from its first moment, also after a restart."""

    world: World
    number: int

    def _open(self, directory: DataDirectory) -> Engine:
        engine = super()._open(directory)
        self.engine = engine
        self.world.configure(self, engine)
        return engine


@dataclass
class Member:
    """A node of the cluster.

    Attributes:
        node: the running one.
        link: a connection of the manager.
        is_down: killed, and not coming back.
    """

    node: _Node
    link: Link
    is_down: bool = False


@dataclass
class World:
    """The cluster.

    Args:
        path: a directory for the nodes' data.
        nodes: how many there are at the beginning.
        vbuckets: of the bucket.
        dice: decides what is lost, and in which order things are done.

    Attributes:
        history: the writes, by seqno.
        active: vbucket → the number of the node that has it.
        collections: (scope, collection) → id, without the default collection.
    """

    path: Path
    nodes: int
    vbuckets: int
    dice: random.Random
    active: list[int] = field(default_factory=list)
    history: History = field(init=False)
    members: list[Member] = field(default_factory=list)
    collections: dict[tuple[str, str], int] = field(default_factory=dict)
    _scopes: dict[str, int] = field(default_factory=dict)
    _next_id: int = 8
    _uid: int = 0
    _rev: int = 10
    _values: int = 0

    def __post_init__(self) -> None:
        """Start the nodes."""
        self.active = [vbid % self.nodes for vbid in range(self.vbuckets)]
        self.history = History(self.active)
        for _ in range(self.nodes):
            self.add_node()

    def close(self) -> None:
        """Stop everything."""
        for member in self.members:
            member.link.close()
            if not member.is_down:
                member.node.crash()

    # ------------------------------------------------------------------------------------------------------- members

    @property
    def alive(self) -> list[int]:
        """The numbers of the nodes that run."""
        return [number for number, member in enumerate(self.members) if not member.is_down]

    @property
    def connection_string(self) -> str:
        """All nodes that run."""
        return "couchbase://" + ",".join(f"127.0.0.1:{self.members[number].node.port}" for number in self.alive)

    def _start(self, number: int, port: int = 0, mgmt_port: int = 0) -> _Node:
        node = _Node(
            vbuckets=self.vbuckets,
            path=self.path / f"node{number}",
            port=port,
            mgmt_port=mgmt_port,
            flush_interval_s=NEVER_S,
            system_scope=False,  # the world is the nodes' manager, and makes their manifests
        )
        node.world, node.number = self, number
        node.start()
        return node

    @staticmethod
    def _link(node: _Node) -> Link:
        return Link(node.port, username=USERNAME, password=PASSWORD)

    def add_node(self) -> None:
        """An empty node joins. All its vbuckets are replicas but, at the beginning, its share."""
        number = len(self.members)
        node = self._start(number)
        member = Member(node, self._link(node))
        for vbid in range(self.vbuckets):
            if self.active[vbid] != number:
                member.link.set_vbucket(vbid, REPLICA)
        if self._uid:
            member.link.set_collections(self._manifest())
        self.members.append(member)
        self._push_map()

    def configure(self, node: _Node, engine: Engine) -> None:
        """Give a node the cluster's map. Like a server's, it does not name nodes that were failed over."""
        # A node that is being added is not a member yet: nobody else knows it.
        numbers = self.alive if node.number in self.alive else [*self.alive, node.number]
        nodes = [node if number == node.number else self.members[number].node for number in numbers]
        place = {number: index for index, number in enumerate(numbers)}
        config, bucket = engine.config, engine.buckets["default"]
        config.nodes = [NodeAddress("127.0.0.1", item.port, item.mgmt_port) for item in nodes]
        config.this_node, config.cluster_uuid = place[node.number], "chaos"
        config.epoch, config.rev = 2_000_000_000, self._rev
        bucket.uuid = "chaos"
        chains = [
            [place.get(owner, -1), *(place[number] for number in self.alive if number != owner)]
            for owner in self.active
        ]
        bucket.chains = lambda: chains  # type: ignore[method-assign]

    def _push_map(self) -> None:
        """All nodes that run know the map from now on, and push it."""
        # Nodes count up by themselves, too, for example when a vbucket changes its role.
        known = (self.members[number].node.engine for number in self.alive)
        self._rev = max(self._rev, *(engine.config.rev for engine in known if engine is not None)) + 10
        for number in self.alive:
            node = self.members[number].node

            async def push(node: _Node = node) -> None:
                engine: Any = node.engine
                self.configure(node, engine)
                engine.topology_changed(engine.buckets["default"])
                node._server.schedule_turn()  # type: ignore[union-attr]

            assert node._loop is not None
            asyncio.run_coroutine_threadsafe(push(), node._loop).result(TIMEOUT_S)

    # ----------------------------------------------------------------------------------------------------- documents

    def write(self, names: Sequence[tuple[Name, str]]) -> int:
        """Write documents, in order.

        Args:
            names: what to write, and how: "json", "binary", "xattr" or "delete".

        Returns: the number of writes that changed something.
        """
        ids = {DEFAULT: 0, **self.collections}
        by_node: dict[int, list[tuple[int, bytes, bytes | None, str | None]]] = {}
        meant: dict[int, list[tuple[int, Name, bytes | None, str | None]]] = {}
        for name, kind in names:
            scope, collection, key = name
            vbid = vbucket_of(key.encode(), self.vbuckets)
            value, xattr = self._value(kind)
            wire_key = prefixed(ids[scope, collection], key.encode())
            owner = self.active[vbid]
            by_node.setdefault(owner, []).append((vbid, wire_key, value, xattr))
            meant.setdefault(owner, []).append((vbid, name, value, xattr))
        done = 0
        for owner, orders in by_node.items():
            for (vbid, name, value, xattr), token in zip(
                meant[owner], self.members[owner].link.write(orders), strict=True
            ):
                if token is not None:
                    self.history.add(vbid, token[1], Write(name, value, xattr is not None))
                    done += 1
        return done

    def _value(self, kind: str) -> tuple[bytes | None, str | None]:
        self._values += 1
        number = self._values
        if kind == "delete":
            return None, None
        if kind == "xattr":
            return b"", f'{{"n":{number}}}'
        if kind == "binary":
            # Two documents that become the same text where bytes that are no text are replaced or written as escapes.
            return (b"\xff\x00%d" if number % 2 else b"\\xff\\x00%d") % number, None
        if number % 7 < len(ODD_JSON):
            return ODD_JSON[number % 7] % number, None
        return b'{"n":%d,"text":"%s"}' % (number, b"\xc3\xa4" * (number % 5)), None

    def documents(self) -> dict[Name, Document]:
        """The documents of the bucket now, of all names that were ever written."""
        ids = {DEFAULT: 0, **self.collections}
        by_node: dict[int, list[tuple[Name, int, bytes]]] = {}
        for name in sorted(self.history.names):
            scope, collection, key = name
            if (scope, collection) in ids:
                vbid = vbucket_of(key.encode(), self.vbuckets)
                wire_key = prefixed(ids[scope, collection], key.encode())
                by_node.setdefault(self.active[vbid], []).append((name, vbid, wire_key))
        found: dict[Name, Document] = {}
        for owner, asked in by_node.items():
            answers = self.members[owner].link.read([(vbid, key) for _, vbid, key in asked])
            found.update(
                (name, document) for (name, _, _), document in zip(asked, answers, strict=True) if document is not None
            )
        return found

    # ------------------------------------------------------------------------------------------------------- trouble

    def copy(self, *, fullness: float) -> None:
        """Replicas receive what they lack, or a part of it.

        Args:
            fullness: chance of a vbucket that its replicas receive everything; else they receive a random part.
        """
        for source in self.alive:
            own = [vbid for vbid, owner in enumerate(self.active) if owner == source]
            if not own:
                continue
            highs = self.members[source].link.high_seqnos(ACTIVE)
            for target in self.alive:
                if target == source:
                    continue
                known = self._copy_highs(target)
                limits: dict[int, int] = {}
                for vbid in own:
                    lacking = highs[vbid] - known.get(vbid, 0)
                    if lacking > 0:
                        whole = self.dice.random() < fullness
                        limits[vbid] = lacking + 1 if whole else self.dice.randint(0, lacking)
                self._forward(source, target, {vbid: limit for vbid, limit in limits.items() if limit}, highs)

    def _forward(self, source: int, target: int, limits: dict[int, int], highs: dict[int, int]) -> None:
        """Join a replica's consumer and the producer.

        Args:
            limits: vbucket → number of items that may pass; then nothing of it passes any more.
            highs: vbucket → the seqno with which it is complete.
        """
        if not limits:
            return
        name = b"replication:%d:%d:%d" % (source, target, self._rev)
        producer, consumer = self._link(self.members[source].node), self._link(self.members[target].node)
        producer.succeed(_OPEN, key=name, extras=struct.pack(">II", 0, _PRODUCER_FLAGS))
        consumer.succeed(_OPEN, key=name, extras=struct.pack(">II", 0, _CONSUMER_FLAGS))
        left = dict(limits)
        reached: dict[int, int] = {}
        closed: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_S
        try:
            for vbid in limits:
                consumer.send(_ADD_STREAM, vbid=vbid, extras=bytes(4))
            with selectors.DefaultSelector() as selector:
                selector.register(producer.socket, selectors.EVENT_READ, (producer, consumer, True))
                selector.register(consumer.socket, selectors.EVENT_READ, (consumer, producer, False))
                while len(closed) < len(limits):
                    assert time.monotonic() < deadline, f"replication hangs: {limits} {closed} {highs}"
                    for key, _ in selector.select(0.5):
                        come, go, is_from_producer = key.data
                        self._pass(come, go, is_from_producer, left, reached, closed, highs)
            self._await(target, reached)
            for vbid, seqno in reached.items():
                self.history.copy(vbid, source, target, seqno)
        finally:
            producer.close()
            consumer.close()

    @staticmethod
    def _pass(
        come: Link,
        go: Link,
        is_from_producer: bool,
        left: dict[int, int],
        reached: dict[int, int],
        closed: set[int],
        highs: dict[int, int],
    ) -> None:
        while True:
            frame = come.frame()
            magic, opcode, vbid = frame[0], frame[1], int.from_bytes(frame[6:8], "big")
            if not is_from_producer and magic == 0x81 and opcode == _ADD_STREAM:
                pass  # the answer to our own order
            elif is_from_producer and magic == 0x80 and opcode in _ITEMS | {_SEQNO_ADVANCED}:
                if vbid not in closed:
                    go.socket.sendall(frame)
                    reached[vbid] = int.from_bytes(frame[24:32], "big")
                    left[vbid] -= 1
                    if left[vbid] <= 0 or reached[vbid] >= highs[vbid]:
                        closed.add(vbid)
            else:
                go.socket.sendall(frame)
            if not come.has_frame:
                return

    def _await(self, target: int, reached: dict[int, int]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            known = self._copy_highs(target)
            if all(known.get(vbid, 0) >= seqno for vbid, seqno in reached.items()):
                return
            assert time.monotonic() < deadline, f"the replica does not take what it was sent: {reached} {known}"
            time.sleep(0.002)

    def _copy_highs(self, number: int) -> dict[int, int]:
        """Vbucket → the last seqno that a node's copy holds; a node itself names the end of the copy's snapshot."""
        engine: Any = self.members[number].node.engine
        return {vbid: copy.high_seqno for vbid, copy in enumerate(engine.buckets["default"].vbuckets)}

    def fail_over(self) -> str:
        """Kill a node; others become active with what they have. Returns what was done."""
        lost = self.dice.choice(self.alive)
        others = [number for number in self.alive if number != lost]
        if not others:
            return self.restart()
        self.members[lost].is_down = True
        self.members[lost].link.close()
        self.members[lost].node.crash()
        moved = 0
        for number in others:
            known = self._copy_highs(number)
            for vbid, owner in enumerate(self.active):
                if owner == lost and others[vbid % len(others)] == number:
                    self.history.cut(number, vbid, known[vbid])
                    self.members[number].link.set_vbucket(vbid, ACTIVE)
                    self.active[vbid] = number
                    moved += 1
        self._push_map()
        return f"node {lost} lost, {moved} vbuckets failed over"

    def restart(self) -> str:
        """Kill a node and start it again: it has lost what was not durable. Returns what was done."""
        number = self.dice.choice(self.alive)
        member = self.members[number]
        member.link.close()
        member.node.crash()
        member.node = self._start(number, member.node.port, member.node.mgmt_port)
        member.link = self._link(member.node)
        for vbid, high_seqno in self._copy_highs(number).items():
            self.history.cut(number, vbid, high_seqno)
        self._push_map()
        return f"node {number} killed and restarted"

    def persist(self, numbers: Iterable[int] | None = None) -> None:
        """Make all that nodes have durable."""
        for number in self.alive if numbers is None else numbers:
            link = self.members[number].link
            link.persist(link.high_seqnos(ACTIVE))

    def purge(self) -> None:
        """Forget the deletions, in the vbuckets that have any."""
        for number in self.alive:
            self.members[number].link.purge(
                vbid
                for vbid, owner in enumerate(self.active)
                if owner == number and any(write.value is None for write in self.history.writes(vbid).values())
            )

    def flush(self) -> None:
        """Empty the bucket."""
        for number in self.alive:
            self.members[number].node.flush_bucket("default")
            for vbid in range(self.vbuckets):
                self.history.cut(number, vbid, 0)

    # --------------------------------------------------------------------------------------------------- collections

    def create_collection(self, scope: str, collection: str) -> None:
        """Create a collection, and its scope if that is missing."""
        self._uid += 1
        if scope not in self._scopes:
            self._scopes[scope] = self._new_id()
        self.collections[scope, collection] = self._new_id()
        self._push_collections()

    def drop_collection(self, scope: str, collection: str) -> None:
        """Drop a collection with its documents."""
        self._uid += 1
        del self.collections[scope, collection]
        self._push_collections()

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _manifest(self) -> dict[str, Any]:
        default = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
        scopes = [
            {
                "name": name,
                "uid": f"{uid:x}",
                "collections": [
                    {"name": item, "uid": f"{item_uid:x}"}
                    for (scope, item), item_uid in self.collections.items()
                    if scope == name
                ],
            }
            for name, uid in self._scopes.items()
        ]
        return {"uid": f"{self._uid:x}", "scopes": [default, *scopes]}

    def _push_collections(self) -> None:
        """All nodes have the manifest, durably: a restart does not bring its events again."""
        for number in self.alive:
            link = self.members[number].link
            link.set_collections(self._manifest())
        self.persist()
