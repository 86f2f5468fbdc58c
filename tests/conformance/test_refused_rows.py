"""Rules of what a consumer refuses in single rows: keys, datatypes, flags of durable writes."""

from __future__ import annotations

import struct
from typing import Any

from dcpstream.wire import MarkerFlag, Opcode, Status
from dcpstream.wire.keys import leb128_encode
from dcpstream_node.testing.simulation import USUAL_FEATURES, ScriptedProducer, SimulatedNode
from tests.conformance.test_durability import copy, decide
from tests.kit.cases import each_case
from tests.kit.rules import rule
from tests.kit.streams import ACTIVE, REPLICA

PREPARE = struct.Struct(">QQIIIBBB")


def copy_with_collections() -> tuple[SimulatedNode, ScriptedProducer]:
    """A copy of vbucket 1 that takes keys of collections, inside a snapshot of 100."""
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node, features=USUAL_FEATURES)
    source.accept()
    assert source.marker(1, 100) == []
    return node, source


def statuses(source: ScriptedProducer, key: bytes, seqno: int = 1) -> list[int]:
    """The answers to a mutation with this key, prefix included."""
    extras = struct.pack(">QQIIIHB", seqno, 1, 0, 0, 0, 0, 0)
    return [frame.status for frame in source.send(Opcode.DCP_MUTATION, key=key, value=b"v", extras=extras, cas=1)]


@rule("COL-03")
@each_case(
    "key",
    [
        b"\0",
        b"\x08",
        b"\x80\x00k",
        b"\xff\xff\xff\xff\xffk",
        b"\x80",
        *(bytes([number]) + b"k" for number in range(1, 8)),
        b"\0" + b"k" * 251,
        b"\x08" + b"k" * 247,
    ],
)
def test_keys_that_a_consumer_refuses(key: bytes) -> None:
    node, source = copy_with_collections()
    assert statuses(source, key) == [Status.EINVAL]
    assert node.vbucket(1).high_seqno == 0
    assert not source.closed


@rule("COL-03")
@each_case("key", [b"\0k", b"\0" + b"k" * 250])
def test_keys_that_a_consumer_takes(key: bytes) -> None:
    node, source = copy_with_collections()
    assert statuses(source, key) == []
    assert node.vbucket(1).high_seqno == 1


@rule("COL-03")
@each_case("number", [8, 0x7F, 0x80, 0xFFFFFFFF])
def test_a_key_in_another_collection_has_at_most_246_bytes(number: int) -> None:
    # The collection is not known here, so it is refused for that and not for its shape.
    _, source = copy_with_collections()
    prefix = leb128_encode(number)
    assert statuses(source, prefix + b"k" * 246) != [Status.EINVAL]
    assert statuses(source, prefix + b"k" * 247) == [Status.EINVAL]


@rule("HDR-13", "HDR-18")
@each_case("fields", [{"datatype": 1}, {"key": b"k"}, {"value": b"v"}, {"extras": bytes(19)}])
def test_a_marker_has_no_other_parts(fields: dict[str, Any]) -> None:
    _, source = copy_with_collections()
    extras: dict[str, Any] = {"extras": struct.pack(">QQI", 101, 102, 1)}
    frames = source.send(Opcode.DCP_SNAPSHOT_MARKER, **{**extras, **fields})
    assert [frame.status for frame in frames] == [Status.EINVAL]
    assert source.send(Opcode.DCP_SNAPSHOT_MARKER, **extras) == []


@rule("DUR-02", "DUR-10")
@each_case("deleted", [0, 1, 2, 255])
def test_a_prepare_deletes_or_does_not(deleted: int) -> None:
    node, source = copy()
    source.marker_v2(1, 3)
    extras = PREPARE.pack(1, 1, 0, 0, 0, 0, deleted, 1)
    assert source.send(Opcode.DCP_PREPARE, key=b"\0k", extras=extras, cas=7) == []
    assert decide(source, Opcode.DCP_COMMIT, 1, 2) == []
    assert node.vbucket(1).high_seqno == 2
    node.set_vbucket(1, ACTIVE)
    assert node.admin.call(Opcode.GET, vbid=1, key=b"\0k").status == (Status.KEY_ENOENT if deleted else 0)


@rule("DUR-18")
@each_case(("flags", "expected"), [(MarkerFlag.MEMORY, [Status.EINVAL]), (MarkerFlag.DISK | MarkerFlag.CHECKPOINT, [])])
def test_from_disk_an_abort_may_come_without_its_prepare(flags: int, expected: list[int]) -> None:
    _, source = copy()
    source.marker_v2(1, 2, flags)
    frames = decide(source, Opcode.DCP_ABORT, 1, 2)
    assert [frame.status for frame in frames if frame.is_response] == expected
