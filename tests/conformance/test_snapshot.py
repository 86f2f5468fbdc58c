"""Rules of snapshots: what their markers look like, where they begin and end, and what a copy makes of them."""

from __future__ import annotations

import struct
from pathlib import Path

from dcpstream.wire import (
    MarkerFlag,
    Opcode,
    RawRequest,
    Status,
    StreamFlag,
    decode_frame,
    decode_message,
    encode_request,
)
from dcpstream.wire.messages.dcp import SnapshotMarker, SnapshotMarkerV2, SnapshotMarkerV21, SnapshotMarkerV22
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, Peer, ScriptedProducer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import (
    CHECKPOINT,
    DISK,
    FIRST,
    FROM_DISK,
    LATER,
    REPLICA,
    VEG_KEY,
    drain,
    end,
    garden,
    message,
    new_checkpoint,
    purged,
    read,
    sent,
    seqno_of,
)

SYNC_REPLICATION = ((b"enable_sync_writes", b"true"), (b"consumer_name", b"replica"))


def reader_of_22(node: SimulatedNode, **options: object) -> Peer:
    """A reader that gets markers in version 2.2, which a server of 7.2 does not send."""
    peer = node.producer(b"new", **options)  # type: ignore[arg-type]
    assert peer.control(b"max_marker_version", b"2.2").status == 0
    return peer


def markers(frames: list) -> list:
    return [frame for frame in frames if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER and frame.is_request]


@rule("SNP-01", "SNP-06")
@each_case("controls", [(), SYNC_REPLICATION[:1]])
def test_version_1_has_20_bytes_of_extras(controls: tuple) -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    (marker,) = markers(node.producer(controls=controls).stream(1))
    assert (len(marker.extras), marker.key, marker.value, marker.datatype, marker.cas) == (20, b"", b"", 0, 0)
    assert struct.unpack(">QQI", marker.extras) == (0, 3, FIRST)
    found = message(marker)
    assert isinstance(found, SnapshotMarker)
    assert (found.start_seqno, found.end_seqno, int(found.flags)) == (0, 3, 5)


@rule("SNP-02", "SNP-07")
@each_case("is_disk", [False, True])
def test_replicas_of_durable_writes_get_version_2(is_disk: bool) -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    if is_disk:
        new_checkpoint(node)
    (marker,) = markers(node.producer(controls=SYNC_REPLICATION).stream(1))
    assert (marker.extras, len(marker.value), marker.key) == (b"\0", 36, b"")
    assert struct.unpack(">QQIQQ", marker.value) == (0, 3, DISK if is_disk else FIRST, 3, 0)
    found = message(marker)
    assert isinstance(found, SnapshotMarkerV2)
    assert (found.start_seqno, found.end_seqno, found.max_visible_seqno, found.high_completed_seqno) == (0, 3, 3, 0)


@rule("SNP-03", "SNP-08")
def test_version_2_2_has_the_purge_seqno_of_the_disk() -> None:
    node = purged()
    peer = reader_of_22(node)
    frames = peer.stream(1)
    (marker,) = markers(frames)
    assert (marker.extras, len(marker.value)) == (b"\2", 52)
    assert struct.unpack(">QQIQQQQ", marker.value) == (0, 11, DISK, 0, 0, 10, 0)
    found = message(marker)
    assert isinstance(found, SnapshotMarkerV22)
    assert (found.purge_seqno, found.high_prepared_seqno) == (10, 0)
    node.set_doc(1, "live")
    (live,) = markers(peer.take())
    assert len(live.extras) == 20, "those from memory stay in version 1"


@rule("SNP-08")
def test_with_durable_writes_those_from_memory_stay_in_version_2() -> None:
    node = purged()
    peer = reader_of_22(node, controls=SYNC_REPLICATION)
    peer.stream(1)
    node.set_doc(1, "live")
    assert [(found.extras, len(found.value)) for found in markers(peer.received)] == [(b"\2", 52), (b"\0", 36)]


@rule("SNP-04", "SNP-05")
@each_case(
    ("extras", "value"),
    [
        (b"", b""),
        (bytes(19), b""),
        (bytes(21), b""),
        (bytes(20), b"v"),
        (b"\0", bytes(35)),
        (b"\0", bytes(37)),
        (b"\0", bytes(52)),
        (b"\1", bytes(44)),
        (b"\1", bytes(36)),
        (b"\2", bytes(36)),
        (b"\2", bytes(53)),
        (b"\3", bytes(52)),
    ],
)
def test_markers_of_another_shape(extras: bytes, value: bytes) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    (found,) = source.send(Opcode.DCP_SNAPSHOT_MARKER, extras=extras, value=value)
    assert found.status == Status.EINVAL
    assert not source.closed


@rule("SNP-04")
@each_case("size", [36, 44, 52])
def test_a_marker_is_decoded_by_its_version_and_not_by_its_length_alone(size: int) -> None:
    fits = {0: (36, SnapshotMarkerV2), 1: (44, SnapshotMarkerV21), 2: (52, SnapshotMarkerV22)}
    for version in range(5):
        frame = decode_frame(encode_request(Opcode.DCP_SNAPSHOT_MARKER, extras=bytes([version]), value=bytes(size)))
        length, kind = fits.get(version, (0, RawRequest))
        assert type(decode_message(frame)) is (kind if length == size else RawRequest)


@rule("SNP-04")
def test_markers_with_a_key() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    assert read(source.marker(1, 2, key=b"k")) == [("answer", Status.EINVAL)]
    assert source.marker(1, 2) == []


@rule("SNP-05")
def test_version_2_1_is_never_sent() -> None:
    node = purged()
    node.fill(1, 3, prefix="live")
    peers = [node.producer(b"a"), node.producer(b"b", controls=SYNC_REPLICATION), reader_of_22(node)]
    for peer in peers:
        peer.stream(1)
    node.set_doc(1, "k")
    versions = {found.extras for peer in peers for found in markers(peer.received) if len(found.extras) == 1}
    assert versions == {b"\0", b"\2"}


@rule("SNP-09")
def test_the_bits() -> None:
    bits = {"MEMORY": 1, "DISK": 2, "CHECKPOINT": 4, "ACK": 8, "HISTORY": 0x10, "MAY_DUPLICATE": 0x20}
    assert {flag.name: int(flag) for flag in MarkerFlag} == bits
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer()
    assert sent(peer.stream(1))[0] == (0, 2, bits["MEMORY"] | bits["CHECKPOINT"])
    node.set_doc(1, "live")
    assert drain(peer)[0] == (3, 3, bits["MEMORY"])
    new_checkpoint(node)
    assert sent(node.producer(b"disk").stream(1))[0] == (0, 3, bits["DISK"] | bits["CHECKPOINT"])
    takeover = node.producer(b"takeover").stream(1, 3, flags=StreamFlag.TAKEOVER)
    assert [frame.opcode for frame in takeover[1:]] == [Opcode.DCP_SET_VBUCKET_STATE]
    node.set_doc(2, "k")
    takeover = node.producer(b"takeover2").stream(2, flags=StreamFlag.TAKEOVER)
    assert read(takeover[1:2]) == [(0, 1, bits["MEMORY"] | bits["CHECKPOINT"] | bits["ACK"])]


@rule("SNP-09")
def test_a_snapshot_from_disk_ends_at_the_line_of_memory(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 2)
    node.vbucket(1).close_checkpoint()
    node.flush()
    node.fill(1, 1, prefix="newest")
    assert sent(node.producer(b"first").stream(1)) == [(0, 2, DISK), 1, 2, (3, 3, FIRST), 3]
    # A reader that was cut in the snapshot from disk finds all of it there.
    stream = node.producer(b"cut").stream(1, 1, snapshot=(0, 2), flags=StreamFlag.DISK_ONLY)
    assert sent(stream) == [(0, 2, DISK), 2, end()]
    node.flush()
    assert sent(node.producer(b"flushed").stream(1)) == [(0, 3, DISK), 1, 2, 3]


@rule("SNP-10")
def test_from_disk_to_memory_is_a_checkpoint() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    new_checkpoint(node)
    peer = node.producer()
    assert sent(peer.stream(1))[0] == (0, 2, FROM_DISK | CHECKPOINT)
    node.set_doc(1, "a")
    assert drain(peer) == [(3, 3, FIRST), 3]
    node.set_doc(1, "b")
    assert drain(peer) == [(4, 4, LATER), 4]


@rule("SNP-11")
def test_no_history_without_change_streams() -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    new_checkpoint(node)
    peer = node.producer()
    assert peer.control(b"change_streams", b"true").status == Status.NOT_SUPPORTED
    peer.stream(1)
    node.set_doc(1, "live")
    assert len(markers(peer.received)) == 2
    for found in markers(peer.received):
        assert not struct.unpack(">QQI", found.extras)[2] & (MarkerFlag.HISTORY | MarkerFlag.MAY_DUPLICATE)


@rule("SNP-12", "SNP-13", "SNP-15", "SNP-17")
@each_case("start", [0, 4])
@each_case("is_disk", [False, True])
def test_order_within_and_between_snapshots(start: int, is_disk: bool) -> None:
    node = SimulatedNode()
    for round_ in range(3):
        for index in range(4):
            node.set_doc(1, f"k{index % 3}", b"%d" % round_)
    if is_disk:
        new_checkpoint(node)
    peer = node.producer()
    peer.stream(1, start)
    for round_ in range(3):
        peer.is_reading = False  # what is written meanwhile is one snapshot, with one version of each key
        for index in range(5):
            node.set_doc(1, f"k{index % 2}", b"more%d" % round_)
        peer.is_reading = True
        node.pump()
    bounds, last, keys, count = (0, -1), start, set(), 0
    for frame in peer.received:
        if frame.is_response:
            continue
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            low, high, _ = struct.unpack(">QQI", frame.extras)
            assert low > bounds[1] or count == 0, "a later snapshot begins behind the one before"
            bounds, keys = (low, high), set()
        elif frame.opcode == Opcode.DCP_MUTATION:
            count += 1
            assert bounds[0] <= seqno_of(frame) <= bounds[1]
            assert seqno_of(frame) > last, "seqnos rise"
            assert frame.key not in keys, "a key comes once"
            last = seqno_of(frame)
            keys.add(frame.key)
    assert count
    assert last == bounds[1] == node.vbucket(1).high_seqno


@rule("SNP-14")
@each_case("is_disk", [False, True])
def test_the_first_marker_covers_what_the_client_had(is_disk: bool) -> None:
    node = SimulatedNode()
    node.fill(1, 10)
    if is_disk:
        new_checkpoint(node)
    flags = DISK if is_disk else FIRST
    for start, snapshot, low in ((0, (0, 0), 0), (5, (5, 5), 5), (5, (3, 8), 3), (5, (5, 8), 5)):
        peer = node.producer(b"at%d" % start)
        frames = peer.stream(1, start, snapshot=snapshot)
        assert sent(frames) == [(low, 10, flags), *range(start + 1, 11)]
        assert min(snapshot[1], node.vbucket(1).high_seqno) <= 10


@rule("SNP-16")
@of_release("7.2")
def test_the_end_of_a_snapshot_is_a_message() -> None:
    for what in ("mutation", "event", "advanced"):
        node = garden()
        if what == "event":
            value = b""
            node.delete_vbucket(1)
            node.set_vbucket(1, 1)  # a new vbucket is told of all collections
        else:
            value = b'{"collections":["%x"]}' % (0 if what == "mutation" else 8)
        frames = node.producer().stream(1, value=value)
        limit = message(markers(frames)[-1]).end_seqno  # type: ignore[attr-defined]
        assert seqno_of(frames[-1]) == limit
        kinds = {"mutation": Opcode.DCP_MUTATION, "event": Opcode.DCP_SYSTEM_EVENT, "advanced": 0x64}
        assert frames[-1].opcode == kinds[what]


@rule("SNP-18", "SNP-19")
def test_a_client_without_collections_gets_ends_that_it_sees() -> None:
    node = garden()
    node.set_doc(1, "ca9", collection=VEG_KEY)
    new_checkpoint(node)
    peer = node.producer(features=WITHOUT_COLLECTIONS)
    assert sent(peer.stream(1)) == [(0, 10, DISK), 10]
    node.set_doc(1, "ca8", collection=VEG_KEY)
    assert drain(peer) == [], "nothing visible, no marker"
    other = node.producer(b"resumed", features=WITHOUT_COLLECTIONS)
    assert sent(other.stream(1, 10)) == []
    node.set_doc(1, "seen")
    assert drain(other) == [(10, 13, FIRST), 13]


@rule("SNP-20")
@each_case("is_last_first", [False, True])
def test_a_marker_with_ack_is_answered_at_its_end(is_last_first: bool) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    assert source.marker(1, 3, int(MarkerFlag.MEMORY | MarkerFlag.ACK)) == []
    if not is_last_first:
        assert source.mutation(b"a", 1) == []
        assert source.mutation(b"b", 2) == []
    (found,) = source.mutation(b"c", 3)
    assert (found.is_response, found.opcode, found.status, found.opaque) == (True, 0x56, 0, source.opaque)
    assert (found.extras, found.key, found.value) == (b"", b"", b"")


@rule("SNP-21")
def test_other_markers_are_not_answered() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    source.snapshot(b"a", b"b", start=1)
    source.snapshot(b"c", start=3, flags=int(MarkerFlag.MEMORY | MarkerFlag.CHECKPOINT))
    assert node.vbucket(1).high_seqno == 3
    assert read(source.marker(1, 2)) == [("answer", Status.ERANGE)]


@rule("SNP-22", "SNP-23")
def test_markers_that_make_no_sense() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    assert read(source.marker(5, 4)) == [("answer", Status.EINVAL)]
    source.snapshot(b"a", b"b", b"c", start=1)
    assert read(source.marker(1, 3)) == [("answer", Status.ERANGE)]
    assert read(source.marker(2, 2)) == [("answer", Status.ERANGE)]
    assert read(source.mutation(b"d", 4)) == [("answer", Status.ERANGE)], "the marker before was ignored"
    assert source.marker(4, 4) == []
    assert source.mutation(b"d", 4) == []


@rule("SNP-24")
@each_case("has_v7", [False, True])
def test_markers_for_other_streams(has_v7: bool) -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(2, REPLICA)
    source = ScriptedProducer(node)
    request = source.negotiate(
        source.add(1), lambda frame: 0x04 if frame.key == b"v7_dcp_status_codes" and not has_v7 else 0
    )[0]
    source.opaque = request.opaque
    source.peer.answer(request, value=struct.pack(">QQ", 0xABC, 0))
    assert read(source.marker(1, 2, vbid=2)) == [("answer", 0x0A if has_v7 else Status.KEY_ENOENT)]
    assert read(source.marker(1, 2, opaque=source.opaque + 77)) == [("answer", 0x0B if has_v7 else Status.KEY_EEXISTS)]
    assert source.marker(1, 2) == []


@rule("SNP-25")
def test_a_copy_announces_its_unfinished_snapshot_as_one() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept(1)
    source.snapshot(b"a", b"b", start=1, flags=DISK)
    assert source.marker(3, 6, FROM_DISK | CHECKPOINT) == []
    source.mutation(b"c", 3)
    source.mutation(b"d", 4)
    peer = node.producer()
    found = sent(peer.stream(1))
    assert [item for item in found if isinstance(item, tuple)] == [(0, 6, found[0][2])]  # type: ignore[index]
    assert found[1:] == [1, 2, 3, 4]
    source.mutation(b"e", 5)
    assert drain(peer) == [5]
    source.mutation(b"f", 6)
    assert drain(peer) == [6]
    source.snapshot(b"g", start=7)
    assert drain(peer)[0][:2] == (7, 7)  # type: ignore[index]


@rule("SNP-26")
def test_a_producer_takes_no_marker() -> None:
    peer = SimulatedNode().producer()
    assert peer.send(Opcode.DCP_SNAPSHOT_MARKER, vbid=1, extras=struct.pack(">QQI", 1, 2, 1)) == []
    assert peer.closed


@rule("SNP-27")
@each_case(("version", "has_stream_id"), [("1", False), ("1", True), ("2.0", False), ("2.2", False), ("2.2", True)])
def test_what_a_marker_counts(version: str, has_stream_id: bool) -> None:
    node = purged()
    controls = list(SYNC_REPLICATION) if version == "2.0" else []
    controls += [(b"enable_stream_id", b"true")] if has_stream_id else []
    controls += [(b"connection_buffer_size", b"1")]
    peer = node.producer(controls=controls)
    if version == "2.2":
        assert peer.control(b"max_marker_version", b"2.2").status == 0
    frames = peer.stream(1, value=b'{"sid":5}' if has_stream_id else b"")
    assert len(frames) == 2, "one message fills the window"
    size = {"1": 44, "2.0": 61, "2.2": 77}[version] + 3 * has_stream_id
    assert frames[1].size == size
    assert peer.buffer_ack(size - 1) == []
    assert len(peer.buffer_ack(1)) == 1
