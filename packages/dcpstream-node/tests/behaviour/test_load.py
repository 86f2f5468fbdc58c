"""A node under too many clients, and mean ones: memory has a bound, and a client beside them is served.

Small versions of what `make bench ARGS="--only load"` measures; the whole of it is marked slow.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from dcpstream.wire import Opcode, Status, encode_request
from dcpstream_node import Node
from dcpstream_node.shell.connection import OWN_BYTES
from dcpstream_node.shell.limits import Limits
from dcpstream_node.shell.server import KvServer
from tests.kit.peer import SocketPeer
from tests.kit.waiting import wait_until

MIB = 1024 * 1024
BUDGET = 16 * MIB
VBUCKETS = 1024


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with Node(vbuckets=VBUCKETS, limits=Limits(buffered_bytes=BUDGET)) as running:
        yield running


def server_of(node: Node) -> KvServer:
    assert node._server is not None
    return node._server


@pytest.mark.slow
def test_an_open_connection_holds_no_buffer(node: Node) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(SocketPeer(node.port).open()) for _ in range(200)]
        assert server_of(node).memory.held_bytes == 0
        for wire in wires:
            wire.send(Opcode.GET, key=b"\0never written")
        answers = [wire.read() for wire in wires]
        assert [answer.status for answer in answers if answer is not None] == [Status.KEY_ENOENT] * 200
        assert server_of(node).memory.held_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "piece"),
    [(100, 24), (OWN_BYTES - 50, 24), (OWN_BYTES + 50, 100)]
    + [(size, piece) for size in (OWN_BYTES + 50, 700_000, 5 * MIB) for piece in (4096, 100_003)],
)
def test_frames_arrive_whole_whatever_they_were_cut_into(node: Node, size: int, piece: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    data = b"".join(
        encode_request(Opcode.SET, key=b"\0k%d" % n, value=value[n:size], extras=bytes(8)) for n in range(3)
    )
    with SocketPeer(node.port).open() as wire:
        for at in range(0, len(data), piece):
            wire.socket.sendall(data[at : at + piece])
        assert [frame.status for _ in range(3) if (frame := wire.read())] == [0, 0, 0]
        for n in range(3):
            assert wire.get(f"k{n}").value == value[n:size]


@pytest.mark.slow
def test_a_thousand_streams_and_another_client(node: Node) -> None:
    with SocketPeer(node.port).open() as good, ExitStack() as stack:
        assert good.set("k", b"1").status == Status.SUCCESS
        request = b"".join(
            encode_request(
                Opcode.DCP_STREAM_REQ,
                vbid=vbid,
                opaque=vbid,
                extras=struct.pack(">IIQQQQQ", 4, 0, 0, 2**64 - 1, 0, 0, 0),
            )
            for vbid in range(VBUCKETS)
        )
        streams = [stack.enter_context(SocketPeer(node.port).open()) for _ in range(3)]
        for number, wire in enumerate(streams):
            assert wire.call(Opcode.DCP_OPEN, key=b"s%d" % number, extras=struct.pack(">II", 0, 1)).status == 0
            assert wire.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
            wire.socket.sendall(request)
        for _ in range(20):
            assert good.get("k").status == Status.SUCCESS
        for wire in streams:
            ended = 0
            while ended < VBUCKETS:
                frame = wire.read()
                assert frame is not None
                ended += frame.opcode == Opcode.DCP_STREAM_END


@pytest.mark.slow
def test_garbage_without_end_holds_no_more_than_its_share(node: Node) -> None:
    bad = b"".join(
        encode_request(opcode, key=b"\0k", value=b"x" * 500, extras=bytes(3))
        for opcode in (Opcode.SET, 0x6F, Opcode.GET)
    )
    piece = bad * 100
    most = 0
    with SocketPeer(node.port).open() as good, ExitStack() as stack:
        wires = [stack.enter_context(SocketPeer(node.port, small=True).open()) for _ in range(20)]
        for wire in wires:
            wire.socket.setblocking(False)
        for _ in range(20):
            for wire in wires:
                with suppress(OSError):
                    wire.socket.send(piece)
            assert good.get("nothing").status == Status.KEY_ENOENT
            memory = server_of(node).memory
            most = max(most, memory.held_bytes + sum(p.waiting_bytes for p in list(server_of(node).protocols.values())))
    assert most <= BUDGET + 8 * MIB
    wait_until(lambda: len(server_of(node).protocols) == 0, "connections stay")
    wait_until(lambda: server_of(node).memory.held_bytes == 0, "memory stays")


@pytest.mark.slow
def test_a_client_with_one_request_does_not_wait_for_those_with_thousands(node: Node) -> None:
    refused = encode_request(Opcode.GET, key=b"", extras=b"") * 20_000  # each refused with a text
    done = threading.Event()
    with SocketPeer(node.port).open() as good, ExitStack() as stack:
        mean = [stack.enter_context(SocketPeer(node.port).open()) for _ in range(4)]
        threads = [threading.Thread(target=flood, args=(wire, refused, done)) for wire in mean]
        for thread in threads:
            thread.start()
        answered = 0
        while not done.is_set():
            assert good.get("nothing").status == Status.KEY_ENOENT
            answered += 1
        for thread in threads:
            thread.join()
    assert answered > 20, "it had to wait for all of theirs"


def flood(wire: SocketPeer, requests: bytes, done: threading.Event) -> None:
    """Send it all while reading the answers, and say when the last is there."""
    reader = threading.Thread(target=count_answers, args=(wire, 20_000, done))
    reader.start()
    wire.socket.sendall(requests)
    reader.join()


def count_answers(wire: SocketPeer, count: int, done: threading.Event) -> None:
    for _ in range(count):
        if wire.read() is None:
            break
    done.set()


@pytest.mark.slow
def test_the_whole_load() -> None:
    from lab.bench import load

    result = load.run(quick=True)
    assert result["missing"] == {}
    assert result["ratios"]["load.memory_mib"] < 320
    assert result["ratios"]["load.connection_bytes"] < 64 * 1024
