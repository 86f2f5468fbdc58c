"""A cluster of simulated nodes and an orchestrator, on virtual time: bytes pass in an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from dcpstream.cluster.machine.link import Link
from dcpstream.cluster.machine.orchestrator import Orchestrator
from dcpstream.cluster.machine.state import BucketState, Member
from dcpstream.cluster.machine.tasks import Outcome, Procedure
from dcpstream.errors import ConnectionLost
from dcpstream.model import NodeAddress, VbucketState
from dcpstream.store.items import PREPARE_NAMESPACE
from dcpstream.testing.simulation import START_S, Peer, SeededRandom, SimulatedNode
from dcpstream.wire import FrameReader

T = TypeVar("T")

TURNS_MAX = 100_000
SPEEDS = (1.0, 1.0, 0.05)
"""Of links, by chance: copies behind a slow one lag."""
NEVER, ALWAYS = 1e-9, 1e9
"""Speeds of a link that moves only when no other one does, and of one that moves first."""
PREPARED = bytes([PREPARE_NAMESPACE])
"""Begins the keys under which a store keeps prepares."""


class ClusterWorld:
    """Nodes named n0, n1, … with one bucket.

    Attributes:
        nodes: name → node; one that is down is missing.
        after_pass: called after each exchange with a node.
        passed: how many exchanges there were.
    """

    def __init__(self, count: int = 3, *, vbuckets: int = 4, replicas: int = 1, seed: int = 0) -> None:
        self.chance = random.Random(seed)
        self.vbuckets = vbuckets
        self.nodes: dict[str, SimulatedNode] = {}
        self.orchestrator = Orchestrator(SeededRandom(seed), epoch=7, cluster_uuid="one cluster")
        self.orchestrator.tasks.now = START_S
        self._links: dict[Link, Peer] = {}
        self._speeds: dict[Link, float] = {}
        self._flying: dict[Link, list[bytes]] = {}
        self.after_pass: Callable[[], None] = lambda: None
        self.passed = 0
        self.most_active = [0] * vbuckets
        for _ in range(count):
            self.orchestrator.members[self.add_node()].is_active = True
        self.bucket: BucketState = self.run(self.orchestrator.add_bucket("default", vbuckets, replicas))

    def add_node(self) -> str:
        """A node that has no copy yet."""
        number = len(self.orchestrator.members)
        name = f"n{number}"
        node = self.nodes[name] = SimulatedNode(vbuckets=self.vbuckets)
        node.advance(self.orchestrator.tasks.now - node.now)
        for vbid in range(self.vbuckets):
            node.delete_vbucket(vbid)
        address = NodeAddress("", 11210 + number, 8091)
        self.orchestrator.members[name] = Member(name, address, name, "admin", "secret")
        return name

    # ------------------------------------------------------------------------------------------------------------ turns

    def run(self, procedure: Procedure[T]) -> T:
        """Carry out a procedure, let time pass as needed."""
        return self.finish(self.orchestrator.tasks.start(procedure))

    def finish(self, outcome: Outcome[T]) -> T:
        """Let bytes and time pass until it is there."""
        self.until(lambda: outcome.is_done)
        return outcome.value

    def until(self, is_over: Callable[[], bool]) -> None:
        """Let bytes and time pass."""
        for _ in range(TURNS_MAX):
            self.orchestrator.tasks.run()
            if is_over():
                return
            if not self.turn():
                self._pass_time()
        raise AssertionError("the cluster never comes to rest")

    def settle(self, seconds: float = 1.0) -> None:
        """Let bytes pass, and this much time."""
        end = self.orchestrator.tasks.now + seconds
        self.until(lambda: self.orchestrator.tasks.now >= end)

    def turn(self) -> bool:
        """One exchange on one link, chosen by chance; False if no link has anything."""
        orchestrator = self.orchestrator
        for link in orchestrator.to_connect:
            node = self.nodes.get(link.address.host)
            if node is None:
                orchestrator.lost(link, ConnectionLost(f"{link.address.host} is down"))
            else:
                self._links[link] = Peer(node)
                self._speeds[link] = self.chance.choice(SPEEDS)
                self._flying[link] = []
                orchestrator.with_output[link] = None
        orchestrator.to_connect.clear()
        for link in [link for link in orchestrator.with_output if link not in self._links]:
            del orchestrator.with_output[link]
        busy = [link for link, peer in self._links.items() if self._has_something(link, peer)]
        if not busy:
            return False
        self._exchange(self.chance.choices(busy, [self._speeds[link] for link in busy])[0])
        self.passed += 1
        self.look()
        self.after_pass()
        return True

    def _has_something(self, link: Link, peer: Peer) -> bool:
        has_output = link in self.orchestrator.with_output
        return has_output or bool(self._flying[link]) or link.is_closed or peer.closed or peer.has_news

    def _exchange(self, link: Link) -> None:
        """One step of a link: bytes leave the orchestrator, reach the node, or come back.

        What has left reaches the node also after the orchestrator has closed the link.
        """
        orchestrator, peer, flying = self.orchestrator, self._links[link], self._flying[link]
        if link in orchestrator.with_output and not link.is_closed and not (flying and self.chance.random() < 0.5):
            del orchestrator.with_output[link]
            flying.append(link.data_to_send())
        elif flying and not peer.closed:
            peer.deliver(flying.pop(0))
        elif link.is_closed or peer.closed:
            orchestrator.with_output.pop(link, None)
            del self._links[link], self._speeds[link], self._flying[link]
            peer.disconnect()
            orchestrator.lost(link, ConnectionLost("closed"))
        elif came := peer.take():
            orchestrator.received(link, b"".join(frame.encode() for frame in came))

    def _pass_time(self) -> None:
        times = [self.orchestrator.next_timeout()]
        for node in self.nodes.values():
            times += [peer.next_timeout for peer in node.peers]
        due = min((at for at in times if at is not None), default=None)
        now = self.orchestrator.tasks.now
        target = now + 1.0 if due is None else max(due, now)
        for node in self.nodes.values():
            node.advance(max(0.0, target - node.now))
        self.orchestrator.handle_timeout(target)

    # ----------------------------------------------------------------------------------------------------------- faults

    def crash(self, name: str) -> None:
        """The node is gone: its connections are cut."""
        node = self.nodes.pop(name)
        for peer in list(self._links.values()):
            if peer.node is node:
                peer.disconnect()

    def disconnect(self, link: Link) -> None:
        """Cut one connection, if it is there."""
        if link in self._links:
            self._links[link].disconnect()

    def cut(self) -> None:
        """Cut a connection by chance."""
        if self._links:
            self._links[self.chance.choice(list(self._links))].disconnect()

    def interrupt(self, source: str, destination: str, opcode: int, extras: bytes) -> Link | None:
        """Cut the source's connection while a frame flies to the destination, which it does not reach before `release`.

        Returns: the link to the destination; None if no such frame flies.
        """
        replicator = self.orchestrator.replicator(self.bucket.name, source, destination)
        reader = FrameReader()
        reader.receive_data(b"".join(self._flying.get(replicator.consumer, ())))
        if not any(frame.opcode == opcode and frame.extras == extras for frame in reader.frames()):
            return None
        self._speeds[replicator.consumer] = NEVER
        self._links[replicator.producer].disconnect()
        return replicator.consumer

    def release(self, link: Link) -> None:
        """Let what flies on a link arrive before anything else moves."""
        if link in self._speeds:
            self._speeds[link] = ALWAYS

    # ----------------------------------------------------------------------------------------------------------- checks

    def look(self) -> None:
        """At no time has a vbucket two active copies."""
        for vbid in range(self.vbuckets):
            active = self.active(vbid)
            assert len(active) <= 1, f"vbucket {vbid} is active on {active}"

    def active(self, vbid: int) -> list[str]:
        """The nodes whose copy is active."""
        return [name for name, node in self.nodes.items() if self._state(node, vbid) is VbucketState.ACTIVE]

    @staticmethod
    def _state(node: SimulatedNode, vbid: int) -> VbucketState | None:
        vbucket = node.bucket.vbucket(vbid)
        return None if vbucket is None else vbucket.state

    def write(self, vbid: int, key: str, value: bytes = b"v") -> None:
        """A document, where the vbucket is active."""
        (name,) = self.active(vbid)
        self.nodes[name].set_doc(vbid, key, value)

    def copy(self, name: str, vbid: int) -> dict[bytes, Any]:
        """Key → (seqno, CAS) of every document in a copy. A prepare that is decided is not sent to a new copy."""
        vbucket = self.nodes[name].vbucket(vbid)
        found = {}
        for key in list(vbucket.log.rows.keys):
            meta = vbucket.log.meta(key)
            if meta is not None and not key.startswith(PREPARED):
                found[key] = meta.seqno, meta.cas
        return found

    def has(self, name: str | None, vbid: int, key: bytes) -> bool:
        """Whether a copy has a document, or a prepare of it."""
        vbucket = self.nodes[name].bucket.vbucket(vbid) if name in self.nodes else None
        return vbucket is not None and (key in vbucket.log.rows.keys or PREPARED + key in vbucket.log.rows.keys)

    def check(self) -> None:
        """The map is true, and the replicas equal their active copies."""
        for vbid, chain in enumerate(self.bucket.chains):
            assert self.active(vbid) == [chain[0]], (vbid, chain)
            assert chain[0] is not None
            expected = self.copy(chain[0], vbid)
            for name in chain[1:]:
                if name is not None:
                    found = self.copy(name, vbid)
                    assert found == expected, (vbid, name, dict(found.items() ^ expected.items()))
            for member in self.orchestrator.known_members():
                if member.name not in chain:
                    assert self._state(self.nodes[member.name], vbid) is None, (vbid, member.name)
        for member in self.orchestrator.known_members():
            bucket = self.nodes[member.name].bucket
            names = [each.name for each in self.orchestrator.known_members()]
            told = [tuple(None if each < 0 else names[each] for each in chain) for chain in bucket.chains()]
            assert told == [tuple(chain) for chain in self.bucket.chains], member.name
