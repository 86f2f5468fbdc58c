"""Several embedded nodes that give one cluster map, as a cluster manager would have made it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import dcpstream
from dcpstream.model import NodeAddress
from tests.behaviour.manager import Address, Move, Wire
from tools.patience import patient

ACTIVE, REPLICA, DEAD = 1, 2, 4
TIMEOUT_S = patient(20.0)


class FakeCluster:
    """Nodes with one map.

    Args:
        path: where they keep their data.
        count: how many nodes.
        vbuckets: of the bucket.
    """

    def __init__(self, path: Path, count: int, vbuckets: int) -> None:
        self.nodes = [dcpstream.Node(path=path / f"{number}", vbuckets=vbuckets).start() for number in range(count)]
        self.vbuckets = vbuckets
        self.rev = 10
        self.down: set[int] = set()
        self._stops: list[Callable[[], None]] = []
        self.set_map([[0] for _ in range(vbuckets)])
        for number in range(1, count):
            with self.admin(number) as admin:
                for vbid in range(vbuckets):
                    admin.set_vbucket(vbid, REPLICA)

    @property
    def connection_string(self) -> str:
        return "couchbase://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def address(self, number: int) -> Address:
        return Address("127.0.0.1", self.nodes[number].port)

    def admin(self, number: int) -> Wire:
        return Wire(self.address(number))

    def set_map(self, chains: Sequence[Sequence[int]]) -> None:
        """All nodes that run know this map from now on, and push it."""
        self.rev += 10
        addresses = [NodeAddress("127.0.0.1", node.port, node.mgmt_port) for node in self.nodes]
        for number, node in enumerate(self.nodes):
            if number not in self.down:
                self._call(node, self._change, node, number, addresses, [list(chain) for chain in chains])

    def _change(self, node: Any, number: int, addresses: list[NodeAddress], chains: list[list[int]]) -> None:
        config, bucket = node.engine.config, node.engine.buckets["default"]
        config.nodes, config.this_node, config.cluster_uuid = addresses, number, "one cluster"
        config.epoch, config.rev = 2_000_000_000, self.rev
        bucket.uuid = "one bucket"
        bucket.chains = lambda: chains
        node.engine.topology_changed(bucket)
        node._server.schedule_turn()

    @staticmethod
    def _call(node: Any, function: Callable[..., None], *arguments: object) -> None:
        async def run() -> None:
            function(*arguments)

        asyncio.run_coroutine_threadsafe(run(), node._loop).result(TIMEOUT_S)

    def move(self, vbid: int, source: int, target: int) -> None:
        """The vbucket is served by another node."""
        assert Move(self.address(source), self.address(target), vbid).run()

    def replicate(self, vbid: int, source: int, target: int) -> Callable[[], None]:
        """A copy follows; the result ends that."""
        stopped = threading.Event()
        move = Move(self.address(source), self.address(target), vbid)
        thread = threading.Thread(target=move.run, args=(0, stopped.is_set), daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            thread.join(TIMEOUT_S)

        self._stops.append(stop)
        return stop

    def crash(self, number: int) -> None:
        self.down.add(number)
        self.nodes[number].crash()

    def close(self) -> None:
        for stop in self._stops:
            stop()
        for number, node in enumerate(self.nodes):
            if number not in self.down:
                node.stop()

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
