"""One vbucket goes to other nodes: its copies are built, its active copy is handed over.

The steps of a move from the chain O to the chain N:

1. Each node of N without a copy gets one, as a replica, and follows O's active copy (ADD_STREAM: a backfill, then what
   is written).
2. When the new copies have caught up, O's active copy gets both chains as its topology: a durable write needs a
   majority of either from now on.
3. Every copy of N has everything that was acknowledged before that.
4. If N has another active copy, its stream is closed and added again with the takeover flag: the source sends the rest,
   becomes dead, and makes the destination active. Now the map changes, and clients get it.
5. The active copy gets N as its topology; N's replicas follow it; the copies that are in O alone are deleted.

A move can be cancelled before step 4. A move that is cancelled or fails is undone, or completed if the new copy is
active already: if step 4 had begun, `settle` asks the nodes, after it has made sure that nothing of the takeover is
still under way. For that it cuts a connection that other vbuckets use, too, so their streams are added again. From
step 5 on a move is only completed: durable writes may have been acknowledged that the old chain lacks. At no time are
two copies active: the destination becomes active only by the source's word, which is given when the source is dead, and
the source is made active again only if the destination cannot become active any more.

Source: ns_server's ns_single_vbucket_mover and dcp_replicator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dcpstream.errors import ConnectionLost, DcpstreamError
from dcpstream.model import VbucketState
from dcpstream.wire import StreamEndReason, StreamFlag
from dcpstream_node.cluster.machine.layout import Chain, filled
from dcpstream_node.cluster.machine.orchestrator import RETRY_S, TROUBLE, Orchestrator
from dcpstream_node.cluster.machine.replicator import Replicator
from dcpstream_node.cluster.machine.state import BucketState, Unsettled, topology
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure

logger = logging.getLogger(__name__)

TAKEOVER_TIMEOUT_S = 120.0
"""Longest takeover: after 60 s the source refuses writes until it is through."""


ADD_STREAM_TIMEOUT_S = 30.0
"""Longest wait until a source accepts a stream: only one that is paused or hangs takes longer than a second."""

MOVES_MAX = 16
"""Vbuckets that move at a time: enough that no node waits for answers, few enough that a cancelled rebalance ends
soon. A server moves four of each node."""

ATTEMPTS_MAX = 3
"""Attempts to move one vbucket: a connection that was lost once is there again at the next."""


@dataclass(frozen=True, slots=True)
class Move:
    """A vbucket that shall have another chain."""

    bucket: BucketState
    vbid: int
    wanted: Chain


class MoveCancelled(DcpstreamError):
    """A rebalance was cancelled while a vbucket was being moved; the vbucket is where it was."""


def move(
    o: Orchestrator, bucket: BucketState, vbid: int, wanted: Chain, is_cancelled: Callable[[], bool]
) -> Procedure[None]:
    """Give a vbucket another chain.

    Errors: MoveCancelled, or those of the nodes; the vbucket is where it was, or where it shall be, or unsettled.
    """
    old = bucket.chains[vbid]
    bucket.moving.add(vbid)
    try:
        yield from _carry_out(o, bucket, vbid, wanted, is_cancelled)
    except TROUBLE as error:
        logger.info("the move of vbucket %d from %s to %s is undone: %s", vbid, old, wanted, error)
        bucket.unsettled[vbid] = Unsettled(old, wanted, is_begun=bucket.chains[vbid] == wanted)
        yield from settle(o, bucket, vbid)
        raise
    finally:
        bucket.moving.discard(vbid)
        o.look_after(bucket, vbid)


def run_moves(
    o: Orchestrator, moves: Sequence[Move], is_cancelled: Callable[[], bool], moved: Callable[[int, int], None]
) -> Procedure[None]:
    """Carry out moves, several at a time.

    Args:
        moved: called with the number of moves that are through, and that of all.

    Errors: those of the first move that failed, when no move is under way any more.
    """
    waiting = list(reversed(moves))
    count = 0
    failures: list[Exception] = []

    def work() -> Procedure[None]:
        nonlocal count
        while waiting and not failures:
            each = waiting.pop()
            try:
                yield from _try_move(o, each, is_cancelled)
            except TROUBLE as error:
                failures.append(error)
                return
            count += 1
            moved(count, len(moves))

    yield [o.tasks.start(work()) for _ in range(min(MOVES_MAX, len(moves)))]
    if failures:
        raise failures[0]


def _try_move(o: Orchestrator, each: Move, is_cancelled: Callable[[], bool]) -> Procedure[None]:
    bucket, vbid = each.bucket, each.vbid
    for attempt in range(ATTEMPTS_MAX):
        if is_cancelled():
            raise MoveCancelled(f"vbucket {vbid} of {bucket.name} was not moved")
        if bucket.chains[vbid] == each.wanted:
            return  # the attempt before was completed after all
        try:
            yield from move(o, bucket, vbid, each.wanted, is_cancelled)
        except TROUBLE as error:
            if isinstance(error, MoveCancelled) or attempt + 1 == ATTEMPTS_MAX or vbid in bucket.unsettled:
                raise
            yield o.tasks.pause(RETRY_S)
        else:
            return


def _carry_out(
    o: Orchestrator, bucket: BucketState, vbid: int, wanted: Chain, is_cancelled: Callable[[], bool]
) -> Procedure[None]:
    old, new = bucket.chains[vbid], wanted[0]
    source = old[0]
    assert new is not None, "a plan names an active copy"
    if source is None:  # every copy was lost: it begins again, empty
        yield o.set_state(bucket, vbid, new, VbucketState.ACTIVE, topology(wanted))
        yield from _begin_chain(o, bucket, vbid, wanted, replaced=old)
        return

    def check() -> None:
        if is_cancelled():
            raise MoveCancelled(f"vbucket {vbid} stays at node {source}")

    copies = [node for node in wanted if node is not None and node != source]
    built = [node for node in copies if node not in old]
    yield [o.set_state(bucket, vbid, node, VbucketState.REPLICA) for node in built]
    yield [_fed(o, bucket, vbid, source, node) for node in copies]
    yield from o.caught_up(bucket, vbid, source, copies, check)
    yield o.set_state(bucket, vbid, source, VbucketState.ACTIVE, topology(old, wanted))
    yield from o.caught_up(bucket, vbid, source, copies, check)
    check()
    if new != source:
        bucket.handing[vbid] = wanted
        yield from o.remember()
        yield from take_over(o, bucket, vbid, source, new)
    yield from _begin_chain(o, bucket, vbid, wanted, replaced=old)


def _fed(o: Orchestrator, bucket: BucketState, vbid: int, source: str, node: str) -> Outcome[Replicator]:
    what = f"the stream of vbucket {vbid} from node {source} to node {node}"
    return o.tasks.within(o.tasks.start(o.feed(bucket, vbid, source, node)), ADD_STREAM_TIMEOUT_S, what)


def take_over(o: Orchestrator, bucket: BucketState, vbid: int, source: str, new: str) -> Procedure[None]:
    """Hand the active role over to a copy that follows; through when the old copy is dead and the new one active."""
    yield from o.stop_feed(bucket, vbid, new)
    replicator = yield from o.feed(bucket, vbid, source, new, StreamFlag.TAKEOVER)
    feed = replicator.feeds.get(vbid)
    if feed is not None:
        end = yield o.tasks.within(feed.ended, TAKEOVER_TIMEOUT_S, f"the takeover of vbucket {vbid}")
        if end != StreamEndReason.OK:
            raise DcpstreamError(f"the takeover of vbucket {vbid} by node {new} ended with status {end}")
    bucket.fed.pop((vbid, new), None)
    state = yield from o.state_of(bucket, vbid, new)
    if state is not VbucketState.ACTIVE:
        raise DcpstreamError(f"vbucket {vbid} of node {new} is not active after its takeover")


def _begin_chain(o: Orchestrator, bucket: BucketState, vbid: int, chain: Chain, *, replaced: Chain) -> Procedure[None]:
    """The active copy of a chain is active: publish the map, feed its replicas, delete copies that are not in it."""
    active = chain[0]
    assert active is not None, "it is active"
    bucket.chains[vbid] = chain
    bucket.handing.pop(vbid, None)
    yield from o.remember()
    published = o.publish(bucket)
    yield o.set_state(bucket, vbid, active, VbucketState.ACTIVE, topology(chain))
    replicas = [node for node in chain[1:] if node is not None]
    for node in dict.fromkeys(node for node in (*replaced, *chain) if node is not None):
        if node not in replicas or bucket.fed.get((vbid, node)) != active:
            yield from o.stop_feed(bucket, vbid, node)
    # A copy that handed over is dead: it becomes a replica, and keeps what it has.
    yield [o.set_state(bucket, vbid, node, VbucketState.REPLICA) for node in replicas]
    yield [_fed(o, bucket, vbid, active, node) for node in replicas]
    yield published  # a node that clients may still ask has the new map before its copy is gone
    gone = [node for node in replaced if node is not None and node not in chain and node in o.members]
    yield [o.answer(node, o.delete_copy(bucket, vbid, node)).quietly() for node in gone]


def settle(o: Orchestrator, bucket: BucketState, vbid: int) -> Procedure[None]:
    """Undo or complete a move that failed. A vbucket about which a node must be asked that is silent stays unsettled.

    Its old active copy stays dead then, if it handed over: until the silent node answers or is failed over. It stays
    unsettled, too, if connections of its copies are lost again and again; the watch repeats that.
    """
    for left in reversed(range(ATTEMPTS_MAX)):
        error = yield from _settle(o, bucket, vbid)
        if error is None:
            return
        if not (left and isinstance(error, ConnectionLost)):
            logger.warning("vbucket %d is unsettled: %s", vbid, error)
            return
        yield o.tasks.pause(RETRY_S)  # the cut for another vbucket may have ended a stream of this one


def _settle(o: Orchestrator, bucket: BucketState, vbid: int) -> Procedure[Exception | None]:
    """One attempt; returns why it failed, or None if another one would do no better."""
    failed = bucket.unsettled.get(vbid)
    if failed is None:  # its node confirmed the role meanwhile
        return None
    old, wanted = failed.old, failed.wanted
    source, new = old[0], wanted[0]
    if not failed.is_begun and vbid in bucket.handing and source is not None and new is not None:
        yield from o.cut(bucket, source, new)
        try:
            failed.is_begun = yield from _is_active(o, bucket, vbid, new)
            failed.is_in_doubt = False
        except TROUBLE:
            # Without the destination's word it may be active, unless the source never gave up.
            try:
                is_served = yield from _is_active(o, bucket, vbid, source)
            except TROUBLE:
                is_served = False
            failed.is_in_doubt = not is_served
            if not is_served:
                logger.warning("vbucket %d is unsettled: node %s does not answer", vbid, new)
                return None
    chain, replaced = (wanted, old) if failed.is_begun else (old, wanted)
    active = chain[0]
    if active is None or o.members[active].is_failed:  # the failover promotes another copy of the chain
        del bucket.unsettled[vbid]
        bucket.chains[vbid] = chain
        bucket.handing.pop(vbid, None)
        extra = [node for node in replaced if node is not None and node not in chain and not o.members[node].is_failed]
        for node in extra:
            bucket.fed.pop((vbid, node), None)
        yield [o.delete_copy(bucket, vbid, node).quietly() for node in extra]
        return None
    try:
        present = [node for node in chain if node is not None and not o.members[node].is_failed]
        yield from _begin_chain(o, bucket, vbid, filled(present, len(chain)), replaced=replaced)
    except TROUBLE as error:
        return error
    bucket.unsettled.pop(vbid, None)
    return None


def settle_all(o: Orchestrator) -> Procedure[None]:
    """Undo or complete every move that failed.

    Errors: DcpstreamError: a node about which it must be known is silent; nothing may move before.
    """
    for bucket in o.buckets.values():
        for vbid in list(bucket.unsettled):
            yield from settle(o, bucket, vbid)
            if vbid in bucket.unsettled:
                node = bucket.unsettled[vbid].wanted[0]
                raise DcpstreamError(
                    f"vbucket {vbid} may be active on node {node}, which does not answer: "
                    "start that node, or fail it over"
                )


def _is_active(o: Orchestrator, bucket: BucketState, vbid: int, node: str) -> Procedure[bool]:
    """Whether a node has the active copy. A node that was failed over has none. Errors: it does not answer."""
    if node not in o.members or o.members[node].is_failed:
        return False
    state = yield from o.state_of(bucket, vbid, node)
    return state is VbucketState.ACTIVE
