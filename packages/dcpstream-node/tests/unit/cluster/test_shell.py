from __future__ import annotations

import concurrent.futures
from contextlib import suppress

import pytest

from dcpstream.errors import DcpstreamError
from dcpstream.model.cluster import NodeAddress
from dcpstream.runtime import SystemClock, SystemRandom
from dcpstream_node.cluster.machine.link import Link
from dcpstream_node.cluster.machine.orchestrator import Orchestrator
from dcpstream_node.cluster.shell import Shell
from tests.kit.waiting import TIMEOUT_S


def test_a_turn_that_is_due_at_the_stop_begins_no_connection():
    orchestrator = Orchestrator(SystemRandom(), epoch=1, cluster_uuid="c")
    link = Link("n0", NodeAddress("127.0.0.1", 9), "Administrator", "password")
    shell = Shell(orchestrator, SystemClock()).start()
    asked: list[Link] = []
    begun: list[concurrent.futures.Future[None]] = []

    def connect() -> None:
        asked.append(link)
        orchestrator.to_connect.append(link)

    def step() -> None:
        with suppress(RuntimeError):  # a thread cannot wait for itself
            shell.stop()
        # Its turn is due after the loop has seen the stop.
        begun.append(shell.call(connect))

    shell.call(step).result(TIMEOUT_S)
    with pytest.raises(DcpstreamError, match="the cluster was stopped"):
        begun[0].result(TIMEOUT_S)
    assert not asked
