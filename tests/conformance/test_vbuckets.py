"""Requests about vbuckets that rules lean on: what of them is refused, and then changes nothing."""

from __future__ import annotations

import struct

from dcpstream.wire import Opcode, Status, StreamEndReason
from dcpstream_node.testing.simulation import SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import DEAD, PENDING, REPLICA, end, read


@rule("STA-14")
@each_case("length", [0, 7, 9, 16])
def test_observe_seqno_asks_for_one_branch(length: int) -> None:
    node = SimulatedNode()
    value = struct.pack(">Q", node.vbucket(1).vbuuid).ljust(length, b"\0")[:length]
    assert node.admin.call(Opcode.OBSERVE_SEQNO, vbid=1, value=value).status == Status.EINVAL


@rule("STA-14")
@each_case(
    ("state", "status"),
    [(1, 0), (REPLICA, 0), (PENDING, 0), (DEAD, Status.NOT_MY_VBUCKET), (None, Status.NOT_MY_VBUCKET)],
)
def test_observe_seqno_of_a_vbucket_that_is_there(state: int | None, status: int) -> None:
    node = SimulatedNode()
    if state is None:
        node.delete_vbucket(1)
    else:
        node.set_vbucket(1, state)
    vbuuid = node.vbucket(2 if state is None else 1).vbuuid
    assert node.admin.call(Opcode.OBSERVE_SEQNO, vbid=1, value=struct.pack(">Q", vbuuid)).status == status


@rule("PRG-01")
@each_case(("pad", "more_pad", "status"), [(0, 0, 0), (1, 0, Status.EINVAL), (0, 1, Status.EINVAL)])
def test_only_a_proper_request_purges(pad: int, more_pad: int, status: int) -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    node.set_doc(1, "last")
    extras = struct.pack(">QQBBHI", 0, 0, 1, pad, 0, more_pad)
    assert node.admin.call(Opcode.COMPACT_DB, vbid=1, extras=extras).status == status
    assert node.vbucket(1).purge_seqno == (0 if status else 2)


@rule("PRG-01")
def test_without_drop_deletes_only_old_deletions_are_purged() -> None:
    node = SimulatedNode()
    node.set_doc(1, "k")
    node.delete_doc(1, "k")
    node.set_doc(1, "last")
    now = node.engine.unix_s
    for before, purge_seqno in ((now, 0), (now + 1, 2)):
        extras = struct.pack(">QQBBHI", before, 0, 0, 0, 0, 0)
        assert node.admin.call(Opcode.COMPACT_DB, vbid=1, extras=extras).status == 0
        assert node.vbucket(1).purge_seqno == purge_seqno
    assert node.admin.call(Opcode.COMPACT_DB, vbid=4, extras=bytes(24)).status == Status.NOT_MY_VBUCKET


@rule("END-07")
def test_only_a_proper_request_deletes_and_ends_streams() -> None:
    node = SimulatedNode()
    peer = node.producer()
    peer.stream(1)
    for fields in ({"extras": b"x"}, {"key": b"k"}, {"value": b"{}", "datatype": 1}):
        assert node.admin.call(Opcode.DEL_VBUCKET, vbid=1, **fields).status == Status.EINVAL
    assert peer.take() == []
    assert node.admin.call(Opcode.DEL_VBUCKET, vbid=1, value=b"async=0").status == 0
    assert read(peer.take()) == [end(StreamEndReason.STATE_CHANGED)]
    assert node.bucket.vbucket(1) is None
