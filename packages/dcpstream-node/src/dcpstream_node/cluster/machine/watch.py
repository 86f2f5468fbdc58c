"""Automatic failover: a node that is silent for too long is failed over without an order.

Every node is asked for a sign of life all the time. The watch acts when a node has given none for the time of the
settings, and only if nothing is lost by it that waiting could save: the other nodes are a majority of the cluster, so
that it is not the orchestrator that is cut off, and every vbucket that would be promoted has a copy on one of them. It
acts `max_count` times, until an administrator sets the count back.

A node that was failed over because it hung goes on to serve when it wakes. The watch asks failed nodes, too: one that
is heard again is ordered to serve nothing, and gets the present map. A server's node learns that from its cluster
manager. Until then, at most `LOOK_PAUSE_S`, clients that know no newer map are served by it; what they write is lost.

A node that hung while another one was failed over may not have answered the order to serve a vbucket with the copies
that are left, or the question whether a vbucket was handed over to it. The watch repeats both when the node is heard,
and undoes or completes any other move that failed and could not be settled at once.

Source: ns_server's auto_failover.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dcpstream.model import AutoFailover
from dcpstream.wire import Frame, Opcode
from dcpstream_node.cluster.machine.failover import activate_again, fail_over, settle_again
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.orchestrator import TROUBLE, Orchestrator
from dcpstream_node.cluster.machine.recovery import stand_down
from dcpstream_node.cluster.machine.tasks import Outcome, Procedure

logger = logging.getLogger(__name__)

LOOK_PAUSE_S = 1.0
"""Longest pause between two questions to a node."""
SILENT_S = 2 * LOOK_PAUSE_S
"""Time without a sign of life after which a node is not waited for by what can wait."""
LOOKS_MIN = 10
"""Questions at least within the time after which a node is failed over."""


class Watch:
    """Watches the nodes of a cluster.

    Args:
        orchestrator: of the cluster.
        settings: called for the present settings.
        failed: called with the nodes that were failed over.
    """

    def __init__(
        self, orchestrator: Orchestrator, settings: Callable[[], AutoFailover], failed: Callable[[list[str]], None]
    ) -> None:
        self._orchestrator = orchestrator
        self._settings = settings
        self._failed = failed
        self._heard: dict[str, float] = {}
        self._asked: set[str] = set()
        self._stood_down: dict[str, Link] = {}
        self._refused = ""

    def run(self) -> Procedure[None]:
        """Watch for ever."""
        o = self._orchestrator
        while True:
            yield o.tasks.pause(min(LOOK_PAUSE_S, self._settings().timeout_s / LOOKS_MIN))
            known = [member.name for member in o.known_members()]
            self._heard = {name: self._heard.get(name, o.tasks.now) for name in known}
            for name in known:
                self._ask(name)
            failed = [member.name for member in o.members.values() if member.is_failed]
            self._stood_down = {name: link for name, link in self._stood_down.items() if name in failed}
            for name in failed:
                if self._stood_down.get(name) is not o.orders(name, ""):  # it may have been started again since
                    self._ask(name)
            settings = self._settings()
            due = [name for name, heard in self._heard.items() if o.tasks.now - heard >= settings.timeout_s]
            if not (due and settings.is_enabled and self._may_act(settings, due)):
                continue
            logger.warning("no sign of life of %s for %g s: failed over", ", ".join(due), settings.timeout_s)
            try:
                yield from fail_over(o, due)
            except TROUBLE as error:
                logger.warning("the automatic failover failed: %s", error)
            else:
                self._failed(due)

    def _ask(self, node: str) -> None:
        if node not in self._asked:
            self._asked.add(node)
            answer = self._orchestrator.orders(node, "").request(Opcode.NOOP)
            answer.then(lambda: self._take(node, answer))

    def _take(self, node: str, answer: Outcome[Frame]) -> None:
        self._asked.discard(node)
        if answer.error is not None:
            return
        o = self._orchestrator
        member = o.members.get(node)
        if node in self._heard:
            self._heard[node] = o.tasks.now
            if not (o.is_failing_over or o.is_rebalancing):
                o.tasks.start(activate_again(o, node))
                silent = [name for name, heard in self._heard.items() if o.tasks.now - heard > SILENT_S]
                o.tasks.start(settle_again(o, node, silent))
        elif member is not None and member.is_failed and not o.is_failing_over:
            self._stood_down[node] = o.orders(node, "")
            logger.info("node %s, which was failed over, is heard again", node)
            o.tasks.start(stand_down(o, node))

    def _may_act(self, settings: AutoFailover, due: Sequence[str]) -> bool:
        """Whether the nodes may be failed over; why not is logged once."""
        o = self._orchestrator
        # A vbucket that is in doubt still names nodes that were failed over.
        gone = {*due, *(member.name for member in o.members.values() if member.is_failed)}
        why = ""
        if o.is_failing_over:
            return False
        if settings.count + len(due) > settings.max_count:
            why = f"{settings.count} of {settings.max_count} automatic failovers have been made"
        elif 2 * len(due) >= len(self._heard):
            why = "the other nodes are no majority"
        elif o.is_rebalancing and not settings.can_abort_rebalance:
            why = "a rebalance is under way"
        elif any(
            any(node in due for node in chain) and all(node is None or node in gone for node in chain)
            for bucket in o.buckets.values()
            for chain in bucket.chains
        ):
            why = "a vbucket has no copy elsewhere"
        if why and why != self._refused:
            logger.warning("%s: silent, and not failed over: %s", ", ".join(due), why)
        self._refused = why
        return not why
