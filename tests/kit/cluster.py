"""Clusters of running nodes: a manager that moves vbuckets between them, and several nodes that give one map.

The manager joins a consumer of one node to a producer of the other. Frames pass through it one at a time, so that
a test can stop the move, or kill a node, after any of them.
"""

from __future__ import annotations

import asyncio
import selectors
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import dcpstream_node
from dcpstream.model import NodeAddress
from dcpstream.wire import Feature, Frame, Opcode, OpenFlag, Status, StreamFlag, encode_request
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S

ACTIVE, REPLICA, DEAD = 1, 2, 4

FEATURES = (Feature.XATTR, Feature.XERROR, Feature.SNAPPY, Feature.JSON, Feature.MUTATION_SEQNO, Feature.COLLECTIONS)


class Address(NamedTuple):
    """The address of a node, and its administrator."""

    host: str
    port: int
    username: str = "Administrator"
    password: str = "password"


class Admin:
    """A cluster manager's connection to one node, with a bucket selected."""

    def __init__(self, address: Address, bucket: str = "default") -> None:
        self.peer = SocketPeer(address.port, host=address.host)
        self.peer.open(address.username, address.password, bucket, features=FEATURES)

    def close(self) -> None:
        self.peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ administration

    def set_vbucket(self, vbid: int, state: int) -> None:
        self.peer.succeed(Opcode.SET_VBUCKET, vbid=vbid, extras=bytes([state]))

    def state(self, vbid: int) -> int:
        return int.from_bytes(self.peer.succeed(Opcode.GET_VBUCKET, vbid=vbid).value, "big")

    def set(self, vbid: int, key: bytes, value: bytes) -> None:
        self.peer.succeed(Opcode.SET, vbid=vbid, key=b"\0" + key, value=value, extras=bytes(8))

    def get(self, vbid: int, key: bytes) -> tuple[int, bytes, int]:
        """(status, value, CAS)."""
        answer = self.peer.call(Opcode.GET, vbid=vbid, key=b"\0" + key)
        return answer.status, answer.value, answer.cas

    def high_seqno(self, vbid: int) -> int:
        """The high seqno of a vbucket in any state."""
        while True:
            vbuuid = self.peer.succeed(Opcode.GET_FAILOVER_LOG, vbid=vbid).value[:8]
            answer = self.peer.call(Opcode.OBSERVE_SEQNO, vbid=vbid, value=vbuuid)
            if answer.status == Status.SUCCESS:
                return int.from_bytes(answer.value[19:27], "big")
            # A replica takes the branches of its active node over when replication begins.
            log = self.peer.succeed(Opcode.GET_FAILOVER_LOG, vbid=vbid).value[:8]
            assert (answer.status, log != vbuuid) == (Status.KEY_ENOENT, True), answer

    def persist(self, vbid: int) -> None:
        """Return when all of the vbucket is durable."""
        self.peer.succeed(Opcode.SEQNO_PERSISTENCE, vbid=vbid, extras=self.high_seqno(vbid).to_bytes(8, "big"))


class Move:
    """One attempt to move a vbucket.

    Args:
        old: the node that has the vbucket.
        new: the node that gets the vbucket.
        after: called after each frame that passed, with its sender ("old" or "new") and the frame; may kill a node.

    Attributes:
        passed: how many frames went over.
        status: of the ADD_STREAM, once it is known.
        is_done: STREAM_END went over.
    """

    def __init__(
        self, old: Address, new: Address, vbid: int, after: Callable[[str, Frame], None] = lambda *_: None
    ) -> None:
        self._after = after
        self.passed = 0
        self.status: int | None = None
        self.is_done = False
        self._vbid = vbid
        name = b"replication:move:%d" % vbid
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES | OpenFlag.INCLUDE_DELETED_USER_XATTRS
        self.producer = Admin(old).peer
        self.producer.succeed(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, flags | OpenFlag.PRODUCER))
        self.consumer = Admin(new).peer
        self.consumer.succeed(Opcode.DCP_OPEN, key=name, extras=struct.pack(">II", 0, OpenFlag.INCLUDE_DELETE_TIMES))

    def run(self, flags: int = StreamFlag.TAKEOVER, until: Callable[[], bool] = lambda: False) -> bool:
        """Move the vbucket; False if a node closed its connection before the end."""
        add = encode_request(Opcode.DCP_ADD_STREAM, vbid=self._vbid, opaque=0xADD, extras=flags.to_bytes(4, "big"))
        deadline = time.monotonic() + TIMEOUT_S
        try:
            self.consumer.socket.sendall(add)
            with selectors.DefaultSelector() as selector:
                selector.register(self.producer.socket, selectors.EVENT_READ, "old")
                selector.register(self.consumer.socket, selectors.EVENT_READ, "new")
                while not self.is_done and not until():
                    assert time.monotonic() < deadline, "the move hangs"
                    for key, _ in selector.select(0.5):
                        self._pass(key.data)
        except OSError:
            return False
        finally:
            self.producer.close()
            self.consumer.close()
        return True

    def _pass(self, sender: str) -> None:
        come, go = (self.producer, self.consumer) if sender == "old" else (self.consumer, self.producer)
        for frame in come.read_ready():
            if frame.is_response and frame.opcode == Opcode.DCP_ADD_STREAM:
                self.status = frame.status
                continue
            go.socket.sendall(frame.encode())
            self.passed += 1
            if frame.opcode == Opcode.DCP_STREAM_END:
                self.is_done = True
            self._after(sender, frame)


class MappedNodes:
    """Nodes with one map.

    Args:
        path: where they keep their data.
        count: how many nodes.
        vbuckets: of the bucket.
    """

    def __init__(self, path: Path, count: int, vbuckets: int) -> None:
        self.nodes = [
            dcpstream_node.Node(path=path / f"{number}", vbuckets=vbuckets, system_scope=False).start()
            for number in range(count)
        ]
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

    def admin(self, number: int) -> Admin:
        return Admin(self.address(number))

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

    def __enter__(self) -> MappedNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
