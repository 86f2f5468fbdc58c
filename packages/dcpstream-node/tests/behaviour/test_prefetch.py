"""History that is on the disk alone is fetched by other threads: the node answers meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

from dcpstream.wire import Frame, Opcode
from dcpstream.wire.messages.dcp import StreamRequest
from dcpstream_node import Node
from tests.kit.peer import SocketPeer
from tests.kit.waiting import TIMEOUT_S

DOCUMENTS = 300
VBUCKETS = 4


@pytest.fixture
def node(tmp_path):
    node = Node(vbuckets=VBUCKETS, path=tmp_path, flush_interval_s=0.001, system_scope=False).start()
    with SocketPeer(node.port).open() as peer:
        for number in range(DOCUMENTS):
            assert peer.set(f"k{number}", bytes(10_000), number % VBUCKETS).status == 0
        for vbid in range(VBUCKETS):
            peer.persisted(DOCUMENTS // VBUCKETS, vbid)
    yield node
    node.stop()


class ColdDisk:
    """A disk whose history is not in memory until it was fetched, and fetching waits until it may go on."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        assert node.engine is not None
        store = node.engine.buckets["default"].store
        self.asked = threading.Event()
        self.may_go_on = threading.Event()
        self.fetches: list[str] = []
        fetch = store.fetch

        def slow_fetch(pieces):
            self.fetches.append(threading.current_thread().name)
            self.asked.set()
            assert self.may_go_on.wait(TIMEOUT_S)
            fetch(pieces)

        monkeypatch.setattr(store, "fetch", slow_fetch)
        monkeypatch.setattr(store, "would_wait", lambda pieces: any(isinstance(piece, tuple) for piece in pieces))


def open_streams(peer: SocketPeer) -> None:
    assert peer.call(Opcode.DCP_OPEN, key=b"cold", extras=bytes(7) + b"\1").status == 0
    assert peer.call(Opcode.DCP_CONTROL, key=b"enable_noop", value=b"true").status == 0
    to_latest = 0x04
    for vbid in range(VBUCKETS):
        request = StreamRequest(
            vbid=vbid, opaque=vbid, flags=to_latest, start_seqno=0, end_seqno=(1 << 64) - 1, vbuuid=0,
            snapshot_start=0, snapshot_end=0,
        )  # fmt: skip
        peer.socket.sendall(request.encode())


def read_all(peer: SocketPeer) -> dict[int, list[int]]:
    """The seqnos of each stream's mutations, until all streams have ended."""
    found: dict[int, list[int]] = {vbid: [] for vbid in range(VBUCKETS)}
    ended = 0
    while ended < VBUCKETS:
        frame = peer.read()
        assert isinstance(frame, Frame)
        ended += frame.opcode == Opcode.DCP_STREAM_END
        if frame.opcode == Opcode.DCP_MUTATION:
            found[frame.vbid].append(int.from_bytes(frame.extras[:8], "big"))
    return found


def test_the_node_answers_while_a_backfill_waits_for_the_disk(node, monkeypatch):
    disk = ColdDisk(node, monkeypatch)
    with SocketPeer(node.port).open() as streaming, SocketPeer(node.port).open() as other:
        open_streams(streaming)
        assert disk.asked.wait(TIMEOUT_S)
        started = time.monotonic()
        assert other.call(Opcode.NOOP).status == 0
        assert other.set("more", b"v").status == 0
        assert time.monotonic() - started < TIMEOUT_S / 2
        disk.may_go_on.set()
        found = read_all(streaming)
    for seqnos in found.values():
        assert seqnos == list(range(1, DOCUMENTS // VBUCKETS + 1)) or seqnos[-1] == DOCUMENTS // VBUCKETS + 1
    assert all(name.startswith("dcpstream-fetch") for name in disk.fetches)
    assert len(disk.fetches) >= VBUCKETS


def test_a_stream_that_goes_away_while_it_waits_harms_nobody(node, monkeypatch):
    disk = ColdDisk(node, monkeypatch)
    with SocketPeer(node.port).open() as streaming:
        open_streams(streaming)
        assert disk.asked.wait(TIMEOUT_S)
    disk.may_go_on.set()
    with SocketPeer(node.port).open() as again:
        open_streams(again)
        found = read_all(again)
    assert all(seqnos == list(range(1, DOCUMENTS // VBUCKETS + 1)) for seqnos in found.values())


def test_the_node_stops_while_a_backfill_waits(node, monkeypatch):
    disk = ColdDisk(node, monkeypatch)
    streaming = SocketPeer(node.port).open()
    open_streams(streaming)
    assert disk.asked.wait(TIMEOUT_S)
    disk.may_go_on.set()
    node.stop()
    streaming.close()
    assert not node.is_running


def test_what_is_in_memory_is_read_at_once(node):
    with SocketPeer(node.port).open() as streaming:
        open_streams(streaming)
        found = read_all(streaming)
    assert all(seqnos == list(range(1, DOCUMENTS // VBUCKETS + 1)) for seqnos in found.values())
