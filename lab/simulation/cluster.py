"""A cluster of simulated nodes and its orchestrator, on virtual time: everything that happens follows from a seed.

`SimulatedCluster` runs the engines of `dcpstream_node.Node` and the orchestrator of `dcpstream_node.Cluster`. Bytes
pass between them over `Lines`, in an order that the seed decides. A procedure of the orchestrator, such as a rebalance,
is carried out by `run`. When no bytes are on their way, time passes to the next moment at which anybody wants to be
woken.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dcpstream.errors import ConnectionLost
from dcpstream.model import NodeAddress, VbucketState
from dcpstream.wire import FrameReader
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.machine.state import BucketState, Member
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure
from dcpstream_node.engine import VBucket
from dcpstream_node.store.items import PREPARE_NAMESPACE
from dcpstream_node.testing.simulation.clock import START_S, SeededRandom
from dcpstream_node.testing.simulation.disk import SimulatedDisk
from dcpstream_node.testing.simulation.node import SimulatedNode
from lab.simulation.lines import ALWAYS, NEVER, SLOW, Line, Lines

T = TypeVar("T")

TURNS_MAX = 100_000
"""Exchanges of one wait; a cluster that needs more never comes to rest."""
FIRST_PORT = 11210
"""Port of the first node; each other one has the next."""
IDLE_S = 1.0
"""Time that passes at once when nobody wants to be woken."""
FLUSH_SHARE = 0.05
"""The share of exchanges after which the node writes to its disk: so few that much is lost with its power."""
MAIN = "default"
"""The bucket that every cluster has. Faults aim at it; more of them come and go."""
PREPARED = bytes([PREPARE_NAMESPACE])
"""Begins the keys under which a store keeps prepares."""


class Client(Protocol):
    """A peer of the nodes other than the orchestrator."""

    def step(self, now: float) -> None:
        """Do what can be done now."""
        ...

    def next_timeout(self) -> float | None:
        """When it wants to be woken."""
        ...

    def handle_timeout(self, now: float) -> None:
        """Time has come."""
        ...


class OrchestratorEnd:
    """The orchestrator's end of a line."""

    def __init__(self, orchestrator: Orchestrator, link: Link) -> None:
        self._orchestrator = orchestrator
        self._link = link
        self._out = b""

    @property
    def is_closed(self) -> bool:
        """Whether the orchestrator has given the link up."""
        return self._link.is_closed

    def collect(self) -> bytes:
        """The bytes of the orchestrator since the last call; they leave later."""
        said = self._link.data_to_send()
        self._out += said
        return said

    def data_to_send(self) -> bytes:
        """The link's bytes."""
        self.collect()
        out, self._out = self._out, b""
        return out

    def receive(self, data: bytes) -> None:
        """Bytes came."""
        self._orchestrator.received(self._link, data)

    def lost(self) -> None:
        """The connection ended."""
        self._orchestrator.lost(self._link, ConnectionLost("closed"))


class SimulatedCluster:
    """Nodes named n0, n1, … with the bucket `default`, and others that come and go.

    Args:
        nodes: how many there are at first.
        vbuckets, replicas: of the bucket.
        seed: decides everything that happens.
        split_share: the share of connections whose bytes arrive in pieces that end anywhere.
        directory: where nodes keep their data, one directory each, written now and then; None keeps it in memory.
        begins: whether the bucket is made at once; else by `begin`, after judges were set to watch.

    Attributes:
        nodes: name → node; one that is down is missing.
        orchestrator: of the cluster.
        bucket: the orchestrator's view of `default`.
        sizes: bucket → its number of vbuckets.
        lines: all connections.
        clients: others that talk to the nodes.
        hung: names of nodes that do nothing, as after SIGSTOP.
        silent: names of nodes that were given up while they hung. What they serve after that is not the cluster's.
        trickling: nodes whose copies get what feeds them slowly, in pieces that end anywhere: on new connections.
        after_pass: called after each exchange with a node.
        watchers: called with the name of a node after it may have changed; see `judges`.
        passed: how many exchanges there were.
        chance: the random numbers of the seed.
    """

    def __init__(
        self,
        nodes: int = 3,
        *,
        vbuckets: int = 4,
        replicas: int = 1,
        seed: int = 0,
        split_share: float = 0.0,
        directory: Path | None = None,
        begins: bool = True,
    ) -> None:
        self.chance = random.Random(seed)
        self.vbuckets = vbuckets
        self.nodes: dict[str, SimulatedNode] = {}
        self.orchestrator = Orchestrator(SeededRandom(seed), epoch=7, cluster_uuid="one cluster")
        self.orchestrator.tasks.now = START_S
        self.lines = Lines(self.chance, split_share)
        self.clients: list[Client] = []
        self.hung: set[str] = set()
        self.silent: set[str] = set()
        self.trickling: set[str] = set()
        self.after_pass: Callable[[], None] = lambda: None
        self.watchers: list[Callable[[str], None]] = [self._check_one_active]
        self.sizes = {MAIN: vbuckets}
        self.passed = 0
        self._seed = seed
        self._made = 0
        self._stalls: list[tuple[int, float, Line]] = []
        self._directory = directory
        self._lines_of: dict[Link, Line] = {}
        self._serving: list[set[str]] = [set() for _ in range(vbuckets)]
        for _ in range(nodes):
            self.orchestrator.members[self.add_node()].is_active = True
        self._replicas = replicas
        self.bucket: BucketState
        if begins:
            self.begin()

    def begin(self) -> None:
        """Make the bucket; returns when all its replicas are fed."""
        self.bucket = self.run(self.orchestrator.add_bucket(MAIN, self.vbuckets, self._replicas))

    def touched(self, name: str) -> None:
        """A node may have changed."""
        for watcher in self.watchers:
            watcher(name)

    def add_bucket(self, name: str, vbuckets: int) -> None:
        """Make another bucket, in memory; returns when its replicas are fed."""
        self.sizes[name] = vbuckets
        for node in self.nodes.values():
            node.add_bucket(name, vbuckets)
        self.run(self.orchestrator.add_bucket(name, vbuckets, self._replicas))

    def drop_bucket(self, name: str) -> None:
        """Delete a bucket on all nodes; its connections are closed."""
        self.orchestrator.remove_bucket(name)
        del self.sizes[name]
        for node in self.nodes.values():
            node.remove_bucket(name)

    def flush_bucket(self, name: str, emptied: Callable[[], None]) -> Procedure[None]:
        """Empty a bucket on all nodes; through when its replicas are fed again.

        Args:
            emptied: called when all nodes have.
        """
        bucket = self.orchestrator.buckets[name]
        yield from self.orchestrator.stop_feeds(bucket)
        for node in self.nodes.values():
            node.flush_bucket(name)
        emptied()
        yield from self.orchestrator.feed_all(bucket)

    @property
    def now(self) -> float:
        """Seconds of the cluster's clock."""
        return self.orchestrator.tasks.now

    def add_node(self) -> str:
        """A node that has no copy yet; returns its name."""
        number, self._made = self._made, self._made + 1
        name = f"n{number}"
        path = None if self._directory is None else self._directory / name
        node = self.nodes[name] = SimulatedNode(
            vbuckets=self.vbuckets,
            path=path,
            disk=None if path is None else SimulatedDisk(self.chance),
            seed=self._seed * 100 + number,
            wakes_all=False,
        )
        node.advance(self.now - node.now)
        node.delete_vbuckets()
        for bucket, vbuckets in self.sizes.items():
            if bucket != MAIN:
                node.add_bucket(bucket, vbuckets)
        address = NodeAddress("", FIRST_PORT + number, 8091)
        self.orchestrator.members[name] = Member(name, address, name, "admin", "secret")
        return name

    def name_at(self, port: int) -> str:
        """The name of the node that has a port."""
        return f"n{port - FIRST_PORT}"

    # ------------------------------------------------------------------------------------------------------------ turns

    def run(self, procedure: Procedure[T]) -> T:
        """Carry out a procedure of the orchestrator; time passes as needed."""
        return self.finish(self.orchestrator.tasks.start(procedure))

    def finish(self, outcome: Outcome[T]) -> T:
        """Let bytes and time pass until it is there."""
        self.until(lambda: outcome.is_done)
        return outcome.value

    def until(self, is_over: Callable[[], bool]) -> None:
        """Let bytes and time pass.

        Raises: AssertionError: there is no end of it.
        """
        for _ in range(TURNS_MAX):
            self.orchestrator.tasks.run()
            if is_over():
                return
            if not self.turn():
                self._pass_time()
        raise AssertionError("the cluster never comes to rest")

    def settle(self, seconds: float = 1.0) -> None:
        """Let bytes pass, and this much time."""
        end = self.now + seconds
        self.until(lambda: self.now >= end)

    def turn(self) -> bool:
        """One step of one line, chosen by chance; False if no line has anything."""
        self._connect_links()
        for client in self.clients:
            client.step(self.now)
        line = self.lines.step()
        if line is None:
            return False
        self.passed += 1
        if self._stalls:
            self._end_stalls()
        if self._directory is not None and self.chance.random() < FLUSH_SHARE:
            self._flush(line.node)
            self.touched(line.node)
        elif self.lines.has_met_node:
            self.touched(line.node)
        self.after_pass()
        return True

    def _flush(self, name: str) -> None:
        """A node writes to its disk, if it does anything."""
        if name in self.nodes and name not in self.hung:
            self.nodes[name].flush()

    def _connect_links(self) -> None:
        orchestrator = self.orchestrator
        if orchestrator.to_connect:
            for link in orchestrator.to_connect:
                name = link.address.host
                node = self.nodes.get(name)
                if node is None:
                    orchestrator.lost(link, ConnectionLost(f"{name} is down"))
                else:
                    end = OrchestratorEnd(orchestrator, link)
                    line = self._lines_of[link] = self.lines.connect("orchestrator", name, node, end, link.bucket)
                    line.is_stalled = name in self.hung
                    if name in self.trickling and link.tap is not None:
                        line.is_splitting, line.speed = True, SLOW
            orchestrator.to_connect.clear()
        if orchestrator.with_output:
            for link in orchestrator.with_output:
                found = self._lines_of.get(link)
                if found is not None:
                    found.has_output = True
                    self.lines.wake(found)
                    collector = found.end
                    assert isinstance(collector, OrchestratorEnd), "it is the orchestrator's"
                    if (said := collector.collect()) and found.tap is not None:
                        found.tap.said(found, said)
                    if found.is_gone:
                        del self._lines_of[link]
            orchestrator.with_output.clear()

    def line_of(self, link: Link) -> Line | None:
        """The line of a link of the orchestrator; None if it has none."""
        line = self._lines_of.get(link)
        return None if line is None or line.is_gone else line

    def _pass_time(self) -> None:
        times = [self.orchestrator.next_timeout()]
        times += [client.next_timeout() for client in self.clients]
        for name, node in self.nodes.items():
            if name not in self.hung:
                times.append(node.next_timeout())
        times += [at for _, at, _ in self._stalls]
        due = min((at for at in times if at is not None), default=None)
        now = self.now
        target = now + IDLE_S if due is None else max(due, now)
        for name, node in list(self.nodes.items()):
            if name not in self.hung:
                was_woken = node.wait_until(max(target, node.now))
                if self._directory is not None and self.chance.random() < 0.5:
                    node.flush()
                    was_woken = True
                if was_woken:
                    self.touched(name)
        self.orchestrator.handle_timeout(target)
        self._end_stalls()
        for client in self.clients:
            client.handle_timeout(target)

    # ----------------------------------------------------------------------------------------------------------- faults

    def crash(self, name: str) -> SimulatedNode:
        """The node is gone: its connections are cut."""
        node = self.nodes.pop(name)
        self.hung.discard(name)
        for line in self.lines.of_node(name):
            self.lines.cut(line)
        for serving in self._serving:
            serving.discard(name)
        return node

    def lose_power(self, name: str) -> None:
        """The node loses its power, and starts again with what is on its disk.

        Raises: AssertionError: something is not there that it had reported as persisted.
        """
        node = self.crash(name)
        before = {vbid: self._persisted(node, vbid) for vbid in range(self.vbuckets)}
        node.lose_power()
        for vbid, frames in before.items():
            assert self._persisted(node, vbid).startswith(frames), (
                f"{name} has lost something of vbucket {vbid} that it had reported as persisted"
            )
        self.nodes[name] = node
        node.advance(max(0.0, self.now - node.now))
        self.touched(name)

    @staticmethod
    def _persisted(node: SimulatedNode, vbid: int) -> bytes:
        """The frames of every item that a copy has on its disk."""
        vbucket = node.bucket.vbucket(vbid)
        if vbucket is None or not vbucket.persisted_seqno:
            return b""
        return bytes(vbucket.read_history(0, vbucket.persisted_seqno, max_bytes=1 << 24).data)

    def hang(self, name: str) -> None:
        """The node does nothing any more, and its connections stay."""
        self.hung.add(name)
        for line in self.lines.of_node(name):
            line.is_stalled = True

    def wake(self, name: str) -> None:
        """A node that hung goes on."""
        self.hung.discard(name)
        for line in self.lines.of_node(name):
            line.is_stalled = False
        node = self.nodes[name]
        node.advance(max(0.0, self.now - node.now))

    def stall(self, line: Line, exchanges: int, seconds: float) -> None:
        """Let nothing pass on a line until there were so many exchanges on others, or this time has passed."""
        line.is_stalled = True
        self._stalls.append((self.passed + exchanges, self.now + seconds, line))

    def _feeding(self, node: str) -> list[Line]:
        """The lines over which copies of a node are fed: those to the node, and those to its sources."""
        bucket, found = self.bucket, []
        for source in dict.fromkeys(source for (_, to), source in bucket.fed.items() if to == node):
            replicator = self.orchestrator.replicator(bucket.name, source, node)
            found += [self.line_of(link) for link in (replicator.producer, replicator.consumer)]
        return [line for line in found if line is not None]

    def lag(self, node: str, exchanges: int, seconds: float, *, is_sent: bool = False) -> None:
        """Let nothing that feeds the copies of a node pass for so long; see `stall`.

        Args:
            is_sent: whether it still leaves the sources, and so is on its way when one of them dies.
        """
        for line in self._feeding(node):
            if not is_sent or line.node == node:
                self.stall(line, exchanges, seconds)

    def hold(self, node: str, *, is_on: bool) -> None:
        """Let sources keep what is for the copies of a node, as when their connections are full, or send it again.

        What was written meanwhile is one snapshot then.
        """
        for line in self._feeding(node):
            if line.node != node:
                line.socket.is_reading = not is_on
                line.socket.node.pump()

    def lose_feeding(self, node: str) -> None:
        """Cut what feeds the copies of a node: what is on its way is lost too."""
        for line in self._feeding(node):
            self.lines.cut(line)

    def split(self, node: str) -> None:
        """Let what feeds the copies of a node arrive before all else, in pieces that end anywhere."""
        for line in self._feeding(node):
            line.is_splitting, line.speed = True, ALWAYS

    def is_torn(self, node: str | None, vbid: int) -> bool:
        """Whether a copy has a part of a snapshot."""
        vbucket = self.held(node, vbid)
        return vbucket is not None and vbucket.snapshot.start_seqno <= vbucket.high_seqno < vbucket.snapshot.end_seqno

    def _end_stalls(self) -> None:
        over = [stall for stall in self._stalls if stall[0] <= self.passed or stall[1] <= self.now]
        for stall in over:
            self._stalls.remove(stall)
            stall[2].is_stalled = stall[2].node in self.hung

    def end_stalls(self) -> None:
        """Let everything pass again."""
        for _, _, line in self._stalls:
            line.is_stalled = line.node in self.hung
        self._stalls.clear()

    def disconnect(self, link: Link) -> None:
        """Cut the connection of a link, if it is there."""
        line = self.line_of(link)
        if line is not None:
            self.lines.cut(line)

    def cut(self) -> None:
        """Cut a connection by chance."""
        if self.lines.all:
            self.lines.cut(self.chance.choice(self.lines.all))

    def interrupt(self, source: str, destination: str, opcode: int, extras: bytes) -> Link | None:
        """Cut the source's connection while a frame flies to the destination, which it does not reach before `release`.

        Returns: the link to the destination; None if no such frame flies.
        """
        replicator = self.orchestrator.replicator(self.bucket.name, source, destination)
        line = self.line_of(replicator.consumer)
        if line is None:
            return None
        reader = FrameReader()
        reader.receive_data(b"".join(line.flying))
        if not any(frame.opcode == opcode and frame.extras == extras for frame in reader.frames()):
            return None
        line.speed = NEVER
        self.disconnect(replicator.producer)
        return replicator.consumer

    def release(self, link: Link) -> None:
        """Let what flies on a link arrive before anything else moves."""
        line = self.line_of(link)
        if line is not None:
            line.speed = ALWAYS

    # ------------------------------------------------------------------------------------------------- copies and data

    def held(self, name: str | None, vbid: int, bucket: str = MAIN) -> VBucket | None:
        """A node's own object of its copy; None if it has none, or is down."""
        node = self.nodes.get(name) if name is not None else None
        found = None if node is None else node.engine.buckets.get(bucket)
        return None if found is None else found.vbucket(vbid)

    def active(self, vbid: int, bucket: str = MAIN) -> list[str]:
        """The nodes whose copy is active."""
        return [
            name
            for name in self.nodes
            if name not in self.silent and self.state(name, vbid, bucket) is VbucketState.ACTIVE
        ]

    def state(self, name: str, vbid: int, bucket: str = MAIN) -> VbucketState | None:
        """The role of a node's copy; None if it has none."""
        vbucket = self.held(name, vbid, bucket)
        return None if vbucket is None else vbucket.state

    def _check_one_active(self, name: str) -> None:
        """At no time has a vbucket two active copies."""
        for vbid, serving in enumerate(self._serving):
            if self.state(name, vbid) is VbucketState.ACTIVE:
                serving.add(name)
                assert len(serving) == 1, f"vbucket {vbid} is active on {sorted(serving)}"
            else:
                serving.discard(name)

    def write(self, vbid: int, key: str, value: bytes = b"v") -> None:
        """A document, where the vbucket is active."""
        (name,) = self.active(vbid)
        self.nodes[name].set_doc(vbid, key, value)
        self.touched(name)

    def copy(self, name: str, vbid: int, bucket: str = MAIN) -> dict[bytes, Any]:
        """Key → (seqno, CAS) of every document in a copy. A prepare that is decided is not sent to a new copy."""
        vbucket = self.held(name, vbid, bucket)
        assert vbucket is not None, f"{name} has a copy of vbucket {vbid}"
        found = {}
        for key in list(vbucket.log.rows.keys):
            meta = None if key.startswith(PREPARED) else vbucket.log.meta(key)
            if meta is not None:
                found[key] = meta.seqno, meta.cas
        return found

    def has(self, name: str | None, vbid: int, key: bytes, bucket: str = MAIN) -> bool:
        """Whether a copy has a document, or a prepare of it."""
        vbucket = self.held(name, vbid, bucket)
        return vbucket is not None and (key in vbucket.log.rows.keys or PREPARED + key in vbucket.log.rows.keys)

    def has_persisted(self, name: str, vbid: int, seqno: int, bucket: str = MAIN) -> bool:
        """Whether a copy has everything up to a seqno on its disk."""
        vbucket = self.held(name, vbid, bucket)
        return vbucket is not None and vbucket.persisted_seqno >= seqno

    def check(self, bucket: str = MAIN) -> None:
        """The map is true, and the replicas equal their active copies. For a cluster that has come to rest."""
        wanted = self.orchestrator.buckets[bucket]
        for vbid, chain in enumerate(wanted.chains):
            active = self.active(vbid, bucket)
            assert active == [chain[0]], f"vbucket {vbid} of {chain} is active on {active}"
            assert chain[0] is not None
            expected = self.copy(chain[0], vbid, bucket)
            for name in chain[1:]:
                if name is not None:
                    found = self.copy(name, vbid, bucket)
                    differing = dict(found.items() ^ expected.items())
                    assert found == expected, f"vbucket {vbid} of {name} differs from {chain[0]}: {differing}"
            for member in self.orchestrator.known_members():
                if member.name not in chain:
                    state = self.state(member.name, vbid, bucket)
                    assert state is None, f"{member.name} has a copy of vbucket {vbid} that is not in {chain}"
        for member in self.orchestrator.known_members():
            own = self.nodes[member.name].engine.buckets[bucket]
            names = [each.name for each in self.orchestrator.known_members()]
            given = [tuple(None if each < 0 else names[each] for each in chain) for chain in own.chains()]
            assert given == [tuple(chain) for chain in wanted.chains], f"{member.name} has another map"
            assert own.manifest.uid == wanted.manifest.uid, (
                f"{member.name} has manifest {own.manifest.uid}, the cluster has {wanted.manifest.uid}"
            )
