from __future__ import annotations

import concurrent.futures
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from dcpstream.cluster.machine.link import Link
from dcpstream.cluster.machine.orchestrator import Orchestrator
from dcpstream.cluster.shell import Shell
from dcpstream.errors import DcpstreamError
from dcpstream.model.cluster import NodeAddress
from dcpstream.runtime import SystemClock, SystemRandom
from tests.kit.waiting import TIMEOUT_S


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_a_turn_that_is_due_at_the_stop_begins_no_connection(listener: socket.socket):
    orchestrator = Orchestrator(SystemRandom(), epoch=1, cluster_uuid="c")
    link = Link("n0", NodeAddress("127.0.0.1", listener.getsockname()[1]), "Administrator", "password")
    shell = Shell(orchestrator, SystemClock()).start()
    begun: list[concurrent.futures.Future[None]] = []

    def step() -> None:
        with suppress(RuntimeError):  # a thread cannot wait for itself
            shell.stop()
        # Its turn is due after the loop has seen the stop.
        begun.append(shell.call(lambda: orchestrator.to_connect.append(link)))

    shell.call(step).result(TIMEOUT_S)
    with pytest.raises(DcpstreamError, match="the cluster was stopped"):
        begun[0].result(TIMEOUT_S)
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()
