"""Effects of consumers on a node's bucket, and of a takeover on the vbucket that goes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.dcp.bucket import Change
from dcpstream.errors import StoreError
from dcpstream.model import FailoverLog, SnapshotRange, VbucketState
from dcpstream.wire import Opcode, StreamFlag, encode_request
from dcpstream.wire.stored.block import Version, encode_stored_mutation
from dcpstream_node.dcp.replica import Replicas, Takeovers
from dcpstream_node.store import DiskBucketStore
from dcpstream_node.store.metadata import Metadata
from dcpstream_node.testing.simulation import SimulatedNode
from tests.kit.streams import ACTIVE, DEAD, REPLICA


def row(seqno: int, cas: int = 5) -> Change:
    frame = encode_stored_mutation(Version(b"\0k", b"v", 1), vbid=1, by_seqno=seqno, cas=cas)
    return Change(frame, b"\0k", seqno, cas, 1)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    node = SimulatedNode(path=tmp_path)
    node.set_vbucket(1, REPLICA)
    return node


def replicas_of(node: SimulatedNode) -> Replicas:
    return Replicas(node.bucket, node.engine)


def test_rows_remember_their_snapshot_and_raise_the_cas(node: SimulatedNode) -> None:
    replicas, view = replicas_of(node), node.vbucket(1)
    replicas.begin_snapshot(view, SnapshotRange(1, 4), 0, is_initial_from_disk=True)
    replicas.store(view, row(2, cas=1 << 62))
    assert (view.received, view.log.snapshot) == (SnapshotRange(1, 4), SnapshotRange(0, 4))
    assert replicas.received_snapshot(view) == SnapshotRange(1, 4)
    assert view.is_receiving_initial_snapshot
    replicas.end_snapshot(view)
    assert not view.is_receiving_initial_snapshot
    assert view.next_cas(0) > 1 << 62
    assert 1 in node.bucket.dirty


def count_puts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A list that gets an item with each transaction of metadata from now on."""
    puts: list[object] = []
    put = Metadata.put

    def count(self: Metadata, *arguments: Any) -> None:
        puts.append(arguments)
        put(self, *arguments)

    monkeypatch.setattr(Metadata, "put", count)
    return puts


def test_roles_that_a_source_hands_over_together_become_durable_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = SimulatedNode(path=tmp_path)
    for vbid in range(4):
        node.set_vbucket(vbid, REPLICA)
    source = node.consumer()
    opaques: dict[int, int] = {}
    requests = [
        frame
        for vbid in range(4)
        for frame in source.send(Opcode.DCP_ADD_STREAM, vbid=vbid, extras=struct.pack(">I", StreamFlag.TAKEOVER))
    ]
    while requests:
        request = requests.pop(0)
        if request.is_response:
            continue
        is_stream = request.opcode == Opcode.DCP_STREAM_REQ
        if is_stream:
            opaques[request.vbid] = request.opaque
        requests += source.answer(request, value=struct.pack(">QQ", 0x22, 0) if is_stream else b"")
    assert len(opaques) == 4
    node.flush()
    puts = count_puts(monkeypatch)
    for count, state in enumerate((VbucketState.PENDING, VbucketState.ACTIVE), start=1):
        frames = [
            encode_request(Opcode.DCP_SET_VBUCKET_STATE, vbid=vbid, opaque=opaque, extras=bytes([state]))
            for vbid, opaque in opaques.items()
        ]
        answers = source.send_bytes(b"".join(frames))
        assert [answer.status for answer in answers if answer.is_response] == [0] * 4
        assert len(puts) == count
    node.restart(clean=False)
    assert [node.vbucket(vbid).state for vbid in range(4)] == [VbucketState.ACTIVE] * 4


@pytest.mark.parametrize(("seqno", "entries"), [(3, 2), (2, 1)])
def test_a_rollback_prunes_the_log_and_ends_streams(node: SimulatedNode, seqno: int, entries: int) -> None:
    replicas, view = replicas_of(node), node.vbucket(1)
    replicas.adopt_failover_log(view, FailoverLog.of((0x22, 3), (0x11, 0)))
    for number in range(1, 5):
        replicas.begin_snapshot(view, SnapshotRange(number, number), number - 1, is_initial_from_disk=False)
        replicas.store(view, row(number))
    reader = node.producer()
    reader.stream(1)
    assert replicas.roll_back(view, seqno) == seqno
    node.pump()
    assert len(view.failover_log) == entries
    assert reader.take()[-1].extras == b"\0\0\0\2"
    assert replicas.received_snapshot(view) == view.snapshot


def test_an_empty_copy_has_a_log_of_its_own(node: SimulatedNode) -> None:
    replicas, view = replicas_of(node), node.vbucket(1)
    replicas.adopt_failover_log(view, FailoverLog.of((0x22, 3), (0x11, 0)))
    replicas.begin_snapshot(view, SnapshotRange(1, 2), 0, is_initial_from_disk=False)
    replicas.store(view, row(2))
    assert replicas.roll_back(view, 0) == 0
    (entry,) = view.failover_log
    assert entry.seqno == 0
    assert entry.vbuuid not in (0x11, 0x22)


def test_a_copy_is_durable_before_it_is_active(node: SimulatedNode) -> None:
    replicas, view = replicas_of(node), node.vbucket(1)
    replicas.begin_snapshot(view, SnapshotRange(1, 1), 0, is_initial_from_disk=False)
    replicas.store(view, row(1))
    log, revision = view.failover_log, node.engine.config.rev
    replicas.set_state(view, VbucketState.ACTIVE)
    assert view.persisted_seqno == 1
    assert (view.failover_log, view.received) == (log, None)
    assert node.engine.config.rev == revision + 1
    node.restart(clean=False)
    assert (node.vbucket(1).state, node.vbucket(1).high_seqno) == (ACTIVE, 1)


def test_a_copy_that_cannot_be_made_durable_does_not_become_active(
    node: SimulatedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(DiskBucketStore, "commit", full)
    with pytest.raises(StoreError):
        replicas_of(node).set_state(node.vbucket(1), VbucketState.ACTIVE)
    assert node.vbucket(1).state == REPLICA
    monkeypatch.undo()


def test_handing_over(node: SimulatedNode) -> None:
    takeovers, revision = Takeovers(node.bucket, node.engine), node.engine.config.rev
    takeovers.hand_over(2)
    takeovers.hand_over(2)
    takeovers.hand_over(1000)
    assert node.vbucket(2).state == DEAD
    assert node.engine.config.rev == revision + 1
    takeovers.put_off_writes(3, is_on=True)
    assert node.vbucket(3).is_backed_up
    takeovers.put_off_writes(3, is_on=False)
    takeovers.put_off_writes(1000, is_on=True)
    assert not node.vbucket(3).is_backed_up
