"""The orchestrator: connections to all nodes, the streams that feed the copies, and the map that clients get.

Theory of operation. For each bucket it has one connection to each node, for orders, and a replicator for each pair of
nodes of which one feeds the other. `BucketState.fed` says which streams should be there; one that ends or is lost is
added again, until its source or destination has another role. A change of the map is sent to every node by
SET_CLUSTER_CONFIG; changes that come while a map is being sent go out together in the next.

The procedures that change who has which copy are in `moves`, `failover` and `rebalance`.

Source: ns_server's replication manager and janitor.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from dcpstream.errors import ConfigError, ConnectionLost, DcpstreamError, StoreError
from dcpstream.model import Manifest, NodeAddress, VbucketState
from dcpstream.runtime import Random
from dcpstream.wire import Datatype, Frame, Opcode, RequestFields
from dcpstream.wire.messages import admin
from dcpstream.wire.messages.kv import ObserveSeqnoFailoverResponse, ObserveSeqnoResponse
from dcpstream.wire.values import decode_failover_log
from dcpstream_node.cluster.machine.layout import plan_chains
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.replicator import Replicator, openings
from dcpstream_node.cluster.machine.state import BucketState, Member, map_json, topology
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure, Tasks

logger = logging.getLogger(__name__)

T = TypeVar("T")

REPLY_TIMEOUT_S = 5.0
"""Longest wait for a node that is perhaps dead."""
ORDER_TIMEOUT_S = 30.0
"""Longest wait for a node that should be alive: an order takes milliseconds, and on a very busy machine seconds. A
failover ends the wait at once."""
RETRY_S = 0.1
"""Pause before streams that ended are added again."""
SILENCE_MAX_S = 1.0
"""Longest silence of a node that is given up, after which nothing waits for it: it is dead or hangs. A node that runs
answers within milliseconds."""
ISOLATION_ATTEMPTS = 3
ISOLATION_PAUSE_S = 0.05
"""Attempts to reach a node that is failed over, and the pause between them: a dead one delays its failover by that."""
PUSH_ATTEMPTS = 3
"""Attempts to give a node collections, or its first map, when connections are lost."""
TROUBLE = (DcpstreamError, TimeoutError)
"""Errors that come from a node or a connection, and not from a fault of the orchestrator."""
CATCH_UP_PAUSE_S = 0.005
CATCH_UP_PAUSE_MAX_S = 0.1
"""First and longest pause between two questions how far a copy is."""


class Orchestrator:
    """The orchestrator of one cluster.

    Args:
        random: for identities of buckets.
        epoch: first part of every version of the map; larger than that of any earlier orchestrator of the same nodes.
        cluster_uuid: identity of the cluster.

    Attributes:
        tasks: the running procedures; its `now` is set by the shell.
        members: name → node, in the order of the map.
        buckets: name → bucket.
        to_connect: links whose connection the shell is to open; it takes them out.
        with_output: links that have something to send; the shell takes them out.
        is_paused: whether no replicator passes on what sources send.
        is_rebalancing: whether a rebalance is under way.
        capture: called with source, destination, sender and bytes of all that passes between two nodes, and of the
            orchestrator's requests to them and their answers; None: nobody looks.
        is_failing_over: whether a failover is under way, which ends a rebalance.
        keep: saves what a restart of the whole cluster needs, see `record`, or raises StoreError; None: nothing is.
    """

    def __init__(self, random: Random, *, epoch: int, cluster_uuid: str) -> None:
        self.tasks = Tasks()
        self.members: dict[str, Member] = {}
        self.buckets: dict[str, BucketState] = {}
        self.to_connect: list[Link] = []
        self.with_output: dict[Link, None] = {}
        self.is_paused = False
        self.is_rebalancing = False
        self.is_failing_over = False
        self.capture: Callable[[str, str, str, bytes], None] | None = None
        self.keep: Callable[[], None] | None = None
        self.epoch = epoch
        self.cluster_uuid = cluster_uuid
        self._random = random
        self._rev = 0
        self._orders: dict[tuple[str, str], Link] = {}
        self._replicators: dict[tuple[str, str, str], Replicator] = {}
        self._of_link: dict[Link, Replicator] = {}
        self._repairing: set[tuple[str, str, str]] = set()
        self._cutting: set[Link] = set()
        self._heard: dict[str, float] = {}
        self._publishing: dict[str, Outcome[None]] = {}
        self._kept: Outcome[None] | None = None

    # --------------------------------------------------------------------------------------------------- for the shell

    def received(self, link: Link, data: bytes | bytearray | memoryview) -> None:
        """Bytes came on a link."""
        self._heard[link.node] = self.tasks.now
        link.receive_data(data)
        if link.is_closed:  # it gave up
            self._after_loss(link, ConnectionLost(f"node {link.node} broke the protocol"))
        self.tasks.run()

    def lost(self, link: Link, error: Exception) -> None:
        """The connection of a link could not be made, or ended."""
        link.lost(error)
        self._after_loss(link, error)
        self.tasks.run()

    def _after_loss(self, link: Link, error: Exception) -> None:
        replicator = self._of_link.get(link)
        if replicator is not None:
            replicator.lost(error)

    def next_timeout(self) -> float | None:
        """When `handle_timeout` wants to be called, monotonic seconds."""
        return self.tasks.next_timeout()

    def handle_timeout(self, now: float) -> None:
        """Time has come."""
        self.tasks.now = now
        self.tasks.handle_timeout()
        self.tasks.run()

    # ----------------------------------------------------------------------------------------------------- connections

    def _link(self, node: str, bucket: str, opening: RequestFields | None = None) -> Link:
        member = self.members[node]
        address = NodeAddress(member.dial, member.address.kv_port)
        link = Link(node, address, member.username, member.password, bucket, opening)
        link.has_output = self._note_output
        self.to_connect.append(link)
        return link

    def _note_output(self, link: Link) -> None:
        self.with_output[link] = None

    def orders(self, node: str, bucket: str) -> Link:
        """The connection for orders about a bucket; a lost one is replaced."""
        link = self._orders.get((node, bucket))
        if link is None or link.is_closed:
            link = self._orders[node, bucket] = self._link(node, bucket)
        return link

    def while_heard(self, node: str, outcome: Outcome[Any]) -> Procedure[None]:
        """Wait for what a node that is given up shall do, as long as it gives signs of life."""
        began = self.tasks.now
        while not outcome.is_done:
            left = max(began, self._heard.get(node, began)) + SILENCE_MAX_S - self.tasks.now
            if left <= 0:
                return
            yield self.tasks.within(outcome, left, f"node {node}").quietly()

    def answer(self, node: str, outcome: Outcome[T]) -> Outcome[T]:
        """The same outcome, or a TimeoutError if the node, which is perhaps dead, takes too long."""
        return self.tasks.within(outcome, REPLY_TIMEOUT_S, f"node {node}")

    def _check_kept(self, node: str) -> None:
        """Raises: ConnectionLost: the node is given up, and nothing waits for it."""
        if self.members[node].is_given_up:
            raise ConnectionLost(f"node {node} is given up")

    def order(
        self, node: str, bucket: str, opcode: int, *, vbid: int = 0, extras: bytes = b"", value: bytes = b""
    ) -> Outcome[Frame]:
        """An order that must succeed, in time. Nodes that are given up get none.

        A node that hung may carry the order out later.
        """
        if self.members[node].is_given_up:
            return Outcome.failed(ConnectionLost(f"node {node} is given up"))
        fields = RequestFields(vbid=vbid, extras=extras, value=value)
        if opcode == Opcode.SET_VBUCKET and value:
            fields["datatype"] = Datatype.JSON
        return self.tasks.within(self.orders(node, bucket).order(opcode, **fields), ORDER_TIMEOUT_S, f"node {node}")

    def set_state(
        self, bucket: BucketState, vbid: int, node: str, state: VbucketState, meta: bytes = b""
    ) -> Outcome[Frame]:
        """SET_VBUCKET."""
        return self.order(node, bucket.name, Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([state]), value=meta)

    def delete_copy(self, bucket: BucketState, vbid: int, node: str) -> Outcome[Frame]:
        """DEL_VBUCKET."""
        return self.order(node, bucket.name, Opcode.DEL_VBUCKET, vbid=vbid)

    def state_of(self, bucket: BucketState, vbid: int, node: str) -> Procedure[VbucketState | None]:
        """The role of a node's copy; None if it has none. Errors: the node does not answer, or is given up."""
        self._check_kept(node)
        answer = yield self.answer(node, self.orders(node, bucket.name).request(Opcode.GET_VBUCKET, vbid=vbid))
        if answer.status:
            return None
        (state,) = admin.GetVbucketResponse.unpack(answer)
        return VbucketState(state)

    def seqno_of(self, bucket: BucketState, vbid: int, node: str, vbuuid: int) -> Procedure[tuple[int, int]]:
        """(high seqno, persisted seqno) of a copy that knows the branch; (-1, -1) if it does not.

        Errors: the node does not answer, or is given up.
        """
        self._check_kept(node)
        asked = self.orders(node, bucket.name).request(Opcode.OBSERVE_SEQNO, vbid=vbid, value=vbuuid.to_bytes(8, "big"))
        answer = yield self.tasks.within(asked, ORDER_TIMEOUT_S, f"node {node}")
        if answer.status:
            return -1, -1
        if answer.value[0]:
            _, _, persisted, high, *_ = ObserveSeqnoFailoverResponse.unpack(answer)
        else:
            _, _, persisted, high = ObserveSeqnoResponse.unpack(answer)
        return high, persisted

    def position(self, bucket: BucketState, vbid: int, node: str) -> Procedure[tuple[int, int]]:
        """(vbuuid, high seqno) of a copy. Errors: StatusError: the node has none."""
        answer = yield self.order(node, bucket.name, Opcode.GET_FAILOVER_LOG, vbid=vbid)
        vbuuid = decode_failover_log(answer.value).newest.vbuuid
        high, _ = yield from self.seqno_of(bucket, vbid, node, vbuuid)
        return vbuuid, high

    def forget_links(self, node: str) -> None:
        """Close every connection to a node."""
        error = ConnectionLost(f"node {node} has left")
        for key in [key for key in self._orders if key[0] == node]:
            self._orders.pop(key).lost(error)
        for replicator in [each for pair, each in self._replicators.items() if node in pair[1:]]:
            replicator.lost(error)
        for link in [link for link in self._cutting if link.node == node]:
            link.lost(error)

    def forget(self, node: str) -> None:
        """Have a node leave: it holds no copy that anybody counts on."""
        self.forget_links(node)
        del self.members[node]
        for bucket in self.buckets.values():
            bucket.informed.discard(node)
            bucket.recovered.pop(node, None)

    # --------------------------------------------------------------------------------------------------------- streams

    def replicator(self, bucket: str, source: str, destination: str) -> Replicator:
        """The replicator of a pair of nodes; made if it is missing."""
        key = bucket, source, destination
        found = self._replicators.get(key)
        if found is None:
            of_source, of_destination = openings(f"replication:{source}->{destination}:{bucket}", destination)
            producer, consumer = self._link(source, bucket, of_source), self._link(destination, bucket, of_destination)
            found = Replicator(producer, consumer, self._stream_ended, self._replicator_lost)
            found.pause(is_on=self.is_paused)
            if self.capture is not None:
                found.capture = partial(self.capture, source, destination)
            self._replicators[key] = found
            self._of_link[producer] = self._of_link[consumer] = found
        return found

    def pause(self, *, is_on: bool) -> None:
        """Hold back everything that feeds copies, or pass it on again."""
        self.is_paused = is_on
        for replicator in self._replicators.values():
            replicator.pause(is_on=is_on)
        self.tasks.run()

    def feed(
        self, bucket: BucketState, vbid: int, source: str, destination: str, flags: int = 0
    ) -> Procedure[Replicator]:
        """Have a copy follow another one: ADD_STREAM; through when the source accepted.

        Errors: ConnectionLost, also if one of the nodes is given up. StatusError: one of them refused.
        """
        self._check_kept(source)
        self._check_kept(destination)
        bucket.fed[vbid, destination] = source
        replicator = self.replicator(bucket.name, source, destination)
        yield [replicator.producer.opened, replicator.consumer.opened]
        if vbid not in replicator.feeds:
            yield replicator.add_stream(vbid, flags)
        return replicator

    def stop_feed(self, bucket: BucketState, vbid: int, destination: str) -> Procedure[None]:
        """Stop the stream into a copy: CLOSE_STREAM.

        When this is through, the destination has no stream into the copy, and takes one from another source.
        """
        source = bucket.fed.pop((vbid, destination), None)
        replicator = self._replicators.get((bucket.name, source or "", destination))
        if replicator is None:
            return
        is_there = vbid in replicator.feeds  # if not, its STREAM_END may still be on the way
        closed = self.tasks.start(replicator.close_stream(vbid)) if is_there else replicator.barrier()
        try:
            yield self.tasks.within(closed, ORDER_TIMEOUT_S, f"node {source} or {destination}")
        except TimeoutError as error:
            replicator.lost(ConnectionLost(f"replication to node {destination}: {error}"))
            raise

    def cut(self, bucket: BucketState, source: str, destination: str) -> Procedure[None]:
        """End the replicator of a pair, so that nothing of it is still carried out when this is through.

        A node closes an older connection when a newer one takes its name over. What the older one had received and not
        yet carried out is void then. A node that does not answer is left alone.
        """
        replicator = self._replicators.get((bucket.name, source, destination))
        if replicator is not None:
            replicator.lost(ConnectionLost("the orchestrator cut it"))
        of_source, of_destination = openings(f"replication:{source}->{destination}:{bucket.name}", destination)
        for node, opening in ((source, of_source), (destination, of_destination)):
            if node in self.members and not self.members[node].is_failed:
                link = self._link(node, bucket.name, opening)
                self._cutting.add(link)
                yield self.answer(node, link.opened).quietly()
                self._cutting.discard(link)
                link.lost(ConnectionLost("it has done its work"))

    def isolate(self, node: str) -> Procedure[None]:
        """Make sure that a node that is given up serves no copy any more, as long as it gives signs of life."""

        def isolate_all() -> Procedure[None]:
            yield [self.tasks.start(self._isolate(bucket, node)).quietly() for bucket in self.buckets.values()]

        yield from self.while_heard(node, self.tasks.start(isolate_all()))

    def _isolate(self, bucket: BucketState, node: str) -> Procedure[None]:
        """Make the copies of one bucket dead, at once: a node that hangs finds the orders when it goes on.

        Nothing passes to the node any more. When it has carried out what had passed, no copy of it can become active,
        and those that may have become active meanwhile are made dead, too.
        """
        moving = {*bucket.moving, *bucket.unsettled}
        dead = [self.tasks.start(self._make_dead(bucket, vbid, node)) for vbid in bucket.vbuckets_of(node)]
        barriers = []
        for (name, _, destination), replicator in self._replicators.items():
            if name == bucket.name and destination == node:
                replicator.pause(is_on=True)
                barriers.append(replicator.barrier())
        yield [self.answer(node, each).quietly() for each in barriers]
        yield [*dead, *(self.tasks.start(self._make_dead(bucket, vbid, node)) for vbid in sorted(moving))]

    def _make_dead(self, bucket: BucketState, vbid: int, node: str) -> Procedure[None]:
        """Make a copy of a node that is given up dead, if the node answers.

        A connection that was lost says little about the node, so others are tried.
        """
        for _ in range(ISOLATION_ATTEMPTS):
            if node not in self.members or self.members[node].is_failed:
                return  # nothing waits for it any more
            order = self.orders(node, bucket.name).order(
                Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([VbucketState.DEAD])
            )
            try:
                yield self.answer(node, order)
            except ConnectionLost:
                yield self.tasks.pause(ISOLATION_PAUSE_S)
            except TROUBLE:
                return  # it has no such copy, or hangs
            else:
                return

    def _stream_ended(self, replicator: Replicator, vbid: int, status: int) -> None:
        source, destination = replicator.producer.node, replicator.consumer.node
        logger.debug("stream of vbucket %d from %s to %s ended: %d", vbid, source, destination, status)
        self._repair_feeds(replicator.consumer.bucket, source, destination)

    def _replicator_lost(self, replicator: Replicator, error: Exception) -> None:
        source, destination = replicator.producer.node, replicator.consumer.node
        bucket = replicator.consumer.bucket
        logger.debug("replication from %s to %s is lost: %s", source, destination, error)
        self._replicators.pop((bucket, source, destination), None)
        for link in (replicator.producer, replicator.consumer):
            self._of_link.pop(link, None)
        self._repair_feeds(bucket, source, destination)

    def _repair_feeds(self, bucket: str, source: str, destination: str) -> None:
        key = bucket, source, destination
        if key not in self._repairing:
            self._repairing.add(key)
            self.tasks.start(self._add_again(*key)).then(lambda: self._repairing.discard(key))

    def look_after(self, bucket: BucketState, vbid: int) -> None:
        """Add the streams of a vbucket again that ended while nobody looked."""
        for (each, destination), source in list(bucket.fed.items()):
            if each == vbid and not self.is_fed(bucket, vbid, destination):
                self._repair_feeds(bucket.name, source, destination)

    def look_after_all(self, bucket: BucketState) -> None:
        """Add all streams again that ended while nobody looked."""
        for source, destination in dict.fromkeys((source, to) for (_, to), source in bucket.fed.items()):
            if self._missing(bucket.name, source, destination):
                self._repair_feeds(bucket.name, source, destination)

    def is_fed(self, bucket: BucketState, vbid: int, node: str) -> bool:
        """Whether a node's copy has a stream into it."""
        replicator = self._replicators.get((bucket.name, bucket.fed.get((vbid, node), ""), node))
        return replicator is not None and vbid in replicator.feeds

    def _add_again(self, name: str, source: str, destination: str) -> Procedure[None]:
        """Add the streams of a pair that should be there, until they are."""
        while True:
            yield self.tasks.pause(RETRY_S)
            missing = self._missing(name, source, destination)
            if not missing:
                return
            bucket = self.buckets[name]
            yield [self.tasks.start(self.feed(bucket, vbid, source, destination)).quietly() for vbid in missing]

    def _missing(self, name: str, source: str, destination: str) -> list[int]:
        bucket = self.buckets.get(name)
        if bucket is None or not {source, destination} <= self.members.keys():
            return []
        replicator = self._replicators.get((name, source, destination))
        there = replicator.feeds.keys() if replicator is not None else ()
        return [
            vbid
            for (vbid, to), of in bucket.fed.items()
            if to == destination and of == source and vbid not in there and vbid not in bucket.moving
        ]

    # --------------------------------------------------------------------------------------------------------- the map

    def known_members(self) -> list[Member]:
        """The nodes that stand in the map."""
        return [member for member in self.members.values() if member.is_active and not member.is_failed]

    def publish(self, bucket: BucketState) -> Outcome[None]:
        """Send all nodes the map as it will be at the end of this turn; there when all that live have it."""
        published = self._publishing.get(bucket.name)
        if published is None:
            published = self._publishing[bucket.name] = Outcome()
            self.tasks.start(self._publish(bucket))
        return published

    def _publish(self, bucket: BucketState) -> Procedure[None]:
        published = self._publishing.pop(bucket.name)
        self._rev += 1
        bucket.rev = self._rev
        members = self.known_members()
        logger.debug("map of %s, revision %d", bucket.name, bucket.rev)
        # Clients that hear of a new node may ask it at once, so it gets the map before the others name it.
        new = [member for member in members if member.name not in bucket.informed]
        began = self.tasks.now
        for _ in range(PUSH_ATTEMPTS):
            unaware = [member for member in new if member.name not in bucket.informed]
            if not unaware or self.tasks.now >= began + REPLY_TIMEOUT_S:  # the latter: it does not answer at all
                break
            yield from self._inform(bucket, unaware, members)
        yield from self._inform(bucket, [member for member in members if member not in new], members)
        published.succeed(None)

    def _inform(self, bucket: BucketState, group: Iterable[Member], members: list[Member]) -> Procedure[None]:
        """Send some nodes the map, and note which ones have it."""
        # One may have left meanwhile, or was given up.
        present = [member for member in group if member.name in self.members and not member.is_given_up]
        answers = yield [self._push_map(bucket, member, members).quietly() for member in present]
        bucket.informed.update(
            member.name for member, answer in zip(present, answers, strict=True) if answer is not None
        )

    def _push_map(self, bucket: BucketState | None, member: Member, members: Sequence[Member]) -> Outcome[Frame]:
        rev = self._rev if bucket is None else bucket.rev
        named = self._named(bucket, members)
        if member not in named:
            named.append(member)
        value = map_json(bucket, named, member.name, epoch=self.epoch, rev=rev, cluster_uuid=self.cluster_uuid)
        name = "" if bucket is None else bucket.name
        extras = admin.SetClusterConfig.layout.extras.pack(self.epoch, rev)
        link = self.orders(member.name, name)
        order = link.order(Opcode.SET_CLUSTER_CONFIG, key=name.encode(), extras=extras, value=value)
        return self.answer(member.name, order)

    def _named(self, bucket: BucketState | None, members: Sequence[Member]) -> list[Member]:
        """The nodes that a map names: these, and those that a vbucket's chain still names first.

        The latter were failed over, or come back, and no copy has been promoted yet. Clients go on to try such a node.
        They end the streams of a vbucket that the map says is nowhere.
        """
        serving = {chain[0] for chain in bucket.chains} if bucket is not None else set()
        return [member for member in self.members.values() if member in members or member.name in serving]

    def dismiss(self, node: str) -> Procedure[None]:
        """As `inform_failed`, and close the connections."""
        yield from self.while_heard(node, self.tasks.start(self.inform_failed(node)))
        self.forget_links(node)

    def inform_failed(self, node: str) -> Procedure[None]:
        """Send a node that was failed over the present map, for the clients that still ask it."""
        member = self.members[node]
        members = self.known_members()
        yield [self._push_map(bucket, member, members).quietly() for bucket in self.buckets.values()]

    def publish_nodes(self) -> Procedure[None]:
        """Send all nodes the map of every bucket, and the list of nodes.

        The maps come first, because a new node gets a map before others hear of that node.
        """
        yield [self.publish(bucket) for bucket in self.buckets.values()]
        self._rev += 1
        members = self.known_members()
        yield [self._push_map(None, member, members).quietly() for member in members]

    def remember(self) -> Procedure[None]:
        """Save who has which copy, if that is kept; through when it is saved. What comes in one turn is saved together.

        It is called before a node hears of a change after which the copies of before could lack something.

        Errors: StoreError: it could not be saved.
        """
        if self.keep is not None:
            kept = self._kept
            if kept is None:
                kept = self._kept = self.tasks.start(self._remember())
            yield kept

    def _remember(self) -> Procedure[None]:
        yield []  # others in this turn are to be saved with it
        self._kept = None
        if self.keep is not None:
            self.keep()

    def remember_or_log(self) -> Procedure[None]:
        """The same for changes that must go on in any case."""
        try:
            yield from self.remember()
        except StoreError as error:
            logger.error("a restart of the whole cluster would begin with an older map: %s", error)

    # --------------------------------------------------------------------------------------------------------- buckets

    def add_bucket(
        self, name: str, vbuckets: int, replicas: int, manifest: Manifest = Manifest.DEFAULT
    ) -> Procedure[BucketState]:
        """Give a bucket that all nodes have, without vbuckets, its copies; through when all replicas are fed."""
        if name in self.buckets:
            raise ConfigError("bucket", name, "a name that no bucket of the cluster has")
        nodes = [member.name for member in self.known_members()]
        chains = plan_chains([()] * vbuckets, nodes, replicas)
        bucket = BucketState(name, f"{self._random.getrandbits(128):032x}", replicas, chains, manifest)
        self.buckets[name] = bucket
        yield [self.tasks.start(self.push_manifest(bucket, node)) for node in nodes]
        orders = []
        for vbid, chain in enumerate(chains):
            assert chain[0] is not None, "a new bucket has active copies"
            orders.append(self.set_state(bucket, vbid, chain[0], VbucketState.ACTIVE, topology(chain)))
            orders += [
                self.set_state(bucket, vbid, node, VbucketState.REPLICA) for node in chain[1:] if node is not None
            ]
        yield orders
        yield self.publish(bucket)
        yield from self.feed_all(bucket)
        return bucket

    def feed_all(self, bucket: BucketState) -> Procedure[None]:
        """Feed every replica of the map that is not fed."""
        yield [
            self.tasks.start(self.feed(bucket, vbid, chain[0], node))
            for vbid, chain in enumerate(bucket.chains)
            if chain[0] is not None and not bucket.is_in_doubt(vbid)
            for node in chain[1:]
            if node is not None and bucket.fed.get((vbid, node)) != chain[0]
        ]

    def stop_feeds(self, bucket: BucketState) -> Procedure[None]:
        """Stop all streams between the copies of a bucket; `feed_all` adds them again.

        When this is through, nothing that was on its way into a copy is still carried out.
        """
        bucket.fed.clear()
        for name, source, destination in [pair for pair in self._replicators if pair[0] == bucket.name]:
            assert name == bucket.name, "those of the bucket"
            yield from self.cut(bucket, source, destination)

    def remove_bucket(self, name: str) -> None:
        """Forget a bucket; its connections are closed."""
        self.buckets.pop(name, None)
        error = ConnectionLost(f"the bucket {name} was deleted")
        for key in [key for key in self._orders if key[1] == name]:
            self._orders.pop(key).lost(error)
        for replicator in [each for pair, each in self._replicators.items() if pair[0] == name]:
            replicator.lost(error)

    def set_manifest(self, bucket: BucketState, manifest: Manifest) -> Procedure[None]:
        """Give all nodes a bucket's scopes and collections, and clients the news.

        A replica's node knows a collection before the active copy has it in its history.
        """
        bucket.manifest = manifest
        yield from self.remember()
        yield [
            self.tasks.start(self.push_manifest(bucket, name)).quietly()
            for name, member in self.members.items()
            if not member.is_failed
        ]
        yield self.publish(bucket)

    def push_manifest(self, bucket: BucketState, node: str) -> Procedure[None]:
        """Give a node a bucket's scopes and collections, also if its connection is lost meanwhile."""
        for left in reversed(range(PUSH_ATTEMPTS) if bucket.manifest.uid else ()):
            value = json.dumps(bucket.manifest.to_json()).encode()
            try:
                yield self.order(node, bucket.name, Opcode.SET_COLLECTIONS, value=value)
            except ConnectionLost:
                if not left:
                    raise
            else:
                return

    def push_manifests(self, node: str) -> Procedure[None]:
        """Give a node the scopes and collections of every bucket."""
        for bucket in self.buckets.values():
            yield from self.push_manifest(bucket, node)

    def drained(self, bucket: BucketState) -> Procedure[bool]:
        """Whether every replica has everything that its active copy has at this moment; not while one is unsettled."""
        if bucket.unsettled:
            return False
        found = yield [
            self.tasks.start(self._is_equal(bucket, vbid, chain[0], node))
            for vbid, chain in enumerate(bucket.chains)
            if chain[0] is not None
            for node in chain[1:]
            if node is not None
        ]
        return all(found)

    def _is_equal(self, bucket: BucketState, vbid: int, active: str, replica: str) -> Procedure[bool]:
        vbuuid, high = yield from self.position(bucket, vbid, active)
        reached, _ = yield from self.seqno_of(bucket, vbid, replica, vbuuid)
        return bool(reached >= high)

    def caught_up(
        self, bucket: BucketState, vbid: int, source: str, copies: Iterable[str], check: Callable[[], None]
    ) -> Procedure[None]:
        """Wait until copies have, durably, everything that the source has when this begins.

        Args:
            check: called before each pause; it raises to end the wait.

        Errors: ConnectionLost: a copy is not fed any more.
        """
        vbuuid, high = yield from self.position(bucket, vbid, source)
        for node in copies:
            pause = CATCH_UP_PAUSE_S
            while True:
                _, persisted = yield from self.seqno_of(bucket, vbid, node, vbuuid)
                if persisted >= high:
                    break
                if not self.is_fed(bucket, vbid, node):
                    raise ConnectionLost(f"vbucket {vbid} of node {node} is not fed any more")
                check()
                yield self.tasks.pause(pause)
                pause = min(2 * pause, CATCH_UP_PAUSE_MAX_S)
