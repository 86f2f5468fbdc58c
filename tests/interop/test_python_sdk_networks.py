"""The official Python SDK reaches a node behind a port mapping, as in a container, by its alternate address."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from dcpstream.node import Node
from tools.patience import patient

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(importlib.util.find_spec("couchbase") is None, reason="the couchbase SDK is not installed"),
]

CHILD = """
import sys
from couchbase.auth import PasswordAuthenticator
from couchbase.cluster import Cluster
from couchbase.options import ClusterOptions

cluster = Cluster.connect(sys.argv[1], ClusterOptions(PasswordAuthenticator("Administrator", "password")))
collection = cluster.bucket("default").default_collection()
collection.upsert("k", {"n": 1})
assert collection.get("k").content_as[dict] == {"n": 1}
cluster.close()
print("OK")
"""


class PortMapping:
    """Passes connections on to another port.

    Attributes:
        port: where it listens.
        connections: how many it has passed on.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, run, *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                outer, _ = self._listener.accept()
                inner = socket.create_connection(("127.0.0.1", self._target))
                self.connections += 1
                self._sockets += (outer, inner)
                self._start(self._pass_on, outer, inner)
                self._start(self._pass_on, inner, outer)

    @staticmethod
    def _pass_on(come: socket.socket, go: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := come.recv(1 << 16):
                go.sendall(data)
        with contextlib.suppress(OSError):
            go.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(patient(10))


@pytest.fixture
def mapping() -> Iterator[PortMapping]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        inner = int(probe.getsockname()[1])
    made = PortMapping(inner)
    external = {"external": {"hostname": "localhost", "kv": made.port}}
    with Node(vbuckets=64, port=inner, alternate_addresses=external):
        yield made
    made.close()


@pytest.mark.parametrize("network", ["?network=external", ""])
def test_the_sdk_uses_the_address_that_it_can_reach(mapping: PortMapping, network: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, f"couchbase://localhost:{mapping.port}{network}"],
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["OK"]), done.stdout + done.stderr
    assert mapping.connections >= 2, "the connection of the bucket took the mapping too"
