"""Rules of STAT, and of the commands that tell seqnos."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from dcpstream.model import SnapshotRange
from dcpstream.wire import Feature, Opcode, Status, decode_frame, encode_response
from dcpstream.wire.messages.dcp import SnapshotMarker
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, Peer, ScriptedProducer, SimulatedNode
from tests.kit import recorded
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import ACTIVE, DEAD, PENDING, REPLICA, garden, of


def seqnos(peer: Peer, extras: bytes = b"") -> list[tuple[int, int]]:
    """The answer to GET_ALL_VB_SEQNOS, in its order."""
    answer = peer.call(Opcode.GET_ALL_VB_SEQNOS, extras=extras)
    assert answer.status == 0, answer
    return list(struct.iter_unpack(">HQ", answer.value))


@rule("STA-01")
@each_case("group", [b"vbucket", b"vbucket-seqno", b"failovers", b"dcp", b"uuid", b""])
def test_one_answer_an_item_and_an_empty_one_at_the_end(group: bytes) -> None:
    peer = SimulatedNode().connect()
    *items, last = peer.send(Opcode.STAT, key=group, opaque=0xABCD)
    assert items
    assert all(item.status == 0 and item.key and item.opaque == 0xABCD and not item.extras for item in items)
    assert (last.status, last.key, last.value, last.extras, last.opaque) == (0, b"", b"", b"", 0xABCD)


@rule("STA-02", "STA-03")
def test_a_connection_and_its_streams_have_names() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    peer = node.producer(b"one:two", controls=[(b"connection_buffer_size", b"10000")])
    peer.stream(1, opaque=0x55)
    stats = node.stats("dcp")
    stream = {
        name.removeprefix("eq_dcpq:one:two:stream_1_"): text
        for name, text in stats.items()
        if name.startswith("eq_dcpq:one:two:stream_1_")
    }
    assert stats["eq_dcpq:one:two:type"] == "producer"
    assert (stream["state"], stream["opaque"], stream["flags"]) == ("in-memory", str(0x55000000), "0")
    assert (stream["start_seqno"], stream["last_sent_seqno"]) == ("0", "3")
    assert int(stats["eq_dcpq:one:two:unacked_bytes"]) > 0


@rule("STA-03")
def test_states_of_streams(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 3)
    node.flush()
    node.restart()
    peer = node.producer(controls=[(b"connection_buffer_size", b"1")])
    peer.stream(1)
    assert node.stats("dcp")["eq_dcpq:reader:stream_1_state"] == "backfilling"
    consumer = node.consumer(b"source")
    node.set_vbucket(2, REPLICA)
    frames = consumer.send(Opcode.DCP_ADD_STREAM, vbid=2, extras=bytes(4))
    for _ in range(20):
        requests = [frame for frame in frames if frame.is_request]
        if not requests:
            break
        frames = []
        for request in requests:
            if request.opcode == Opcode.DCP_STREAM_REQ:
                assert node.stats("dcp")["eq_dcpq:source:stream_2_state"] == "pending"
                value = struct.pack(">QQ", 0xA, 0)
                frames += consumer.send_bytes(encode_response(request.opcode, opaque=request.opaque, value=value))
                assert node.stats("dcp")["eq_dcpq:source:stream_2_state"] == "reading"
                return
            frames += consumer.answer(request)
    raise AssertionError("the consumer never asked for the stream")


@rule("STA-04")
def test_noop_and_window_of_a_producer() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000")])
    name = "eq_dcpq:reader:"
    sent = sum(frame.size for frame in peer.stream(1) if frame.is_request)
    stats = node.stats("dcp")
    assert (stats[name + "max_buffer_bytes"], stats[name + "total_acked_bytes"]) == ("1000", "0")
    assert stats[name + "unacked_bytes"] == str(sent)
    peer.buffer_ack(sent)
    stats = node.stats("dcp")
    assert (stats[name + "unacked_bytes"], stats[name + "total_acked_bytes"]) == ("0", str(sent))
    assert stats[name + "noop_wait"] == "false"
    node.advance(200)
    (noop,) = of(peer.take(), Opcode.DCP_NOOP)
    assert node.stats("dcp")[name + "noop_wait"] == "true"
    peer.answer(noop)
    assert node.stats("dcp")[name + "noop_wait"] == "false"


@rule("STA-04")
def test_only_messages_of_streams_count_as_sent() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000")])
    peer.call(Opcode.DCP_GET_FAILOVER_LOG, vbid=1)
    name = "eq_dcpq:reader:"
    assert node.stats("dcp")[name + "total_bytes_sent"] == "0"
    sent = sum(frame.size for frame in peer.stream(1) if frame.is_request)
    node.advance(200)
    assert of(peer.take(), Opcode.DCP_NOOP)
    peer.call(Opcode.DCP_STREAM_REQ, vbid=1, extras=bytes(48))
    stats = node.stats("dcp")
    assert stats[name + "total_bytes_sent"] == stats["ep_dcp_total_bytes"] == str(sent)
    assert node.stats("dcpagg :")[":total:total_bytes"] == str(sent)


@rule("STA-04")
def test_every_acknowledgement_counts_in_full() -> None:
    node = SimulatedNode()
    node.fill(1, 2)
    peer = node.producer(controls=[(b"connection_buffer_size", b"1000")])
    peer.stream(1)
    peer.buffer_ack(5000)
    peer.buffer_ack(7)
    stats = node.stats("dcp")
    assert stats["eq_dcpq:reader:unacked_bytes"] == "0"
    assert stats["eq_dcpq:reader:total_acked_bytes"] == "5007"


@rule("STA-04")
def test_a_connection_whose_window_is_full_is_paused() -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    peer = node.producer(controls=[(b"connection_buffer_size", b"100")])
    sent = sum(frame.size for frame in peer.stream(1) if frame.is_request)
    stats = node.stats("dcp")
    name = "eq_dcpq:reader:"
    assert stats[name + "dcp_ready_queue_size"] == "1", "it has more to say"
    assert (stats[name + "paused"], stats[name + "paused_current_reason"]) == ("true", "BufferLogFull")
    assert int(stats[name + "items_remaining"]) > 0
    node.advance(2)
    while sent:
        sent = sum(frame.size for frame in peer.buffer_ack(sent))
    stats = node.stats("dcp")
    assert stats[name + "paused"] == "true"
    # A server of 8.0 keeps the reason of the time before, if the last acknowledgement left it nothing to send.
    assert stats[name + "paused_current_reason"] in ("ReadyListEmpty", "BufferLogFull")
    assert int(stats[name + "paused_previous_BufferLogFull_count"]) > 0
    duration, unit = stats[name + "paused_previous_BufferLogFull_duration"].split()
    assert (int(duration) >= 2000, unit) == (True, "ms")
    assert stats[name + "items_remaining"] == "0"


def test_what_a_connection_does_not_have_is_not_among_its_stats() -> None:
    node = SimulatedNode()
    peer = node.producer(features=(Feature.XERROR, Feature.COLLECTIONS))
    name = "eq_dcpq:reader:"
    window = {name + key for key in ("max_buffer_bytes", "unacked_bytes", "total_acked_bytes")}
    with_snappy, with_streams = name + "total_uncompressed_data_size", name + "ckpt_processor_queue_size"
    assert not {*window, with_snappy, with_streams} & node.stats("dcp").keys()
    peer.stream(1)
    assert with_streams in node.stats("dcp")
    peer.control(b"connection_buffer_size", b"100")
    assert window <= node.stats("dcp").keys()


@each_case(
    ("value", "shown"),
    [
        (b"", ("true", "false", "0", "")),
        (b'{"uid":"0"}', ("true", "true", "1", "0x0")),
        (b'{"collections":["8","a"]}', ("false", "false", "2", "0x8,0xa")),
        (b'{"scope":"0"}', ("false", "true", "2", "0x0,0x8")),
    ],
)
@of_release("7.2")
def test_the_filter_of_a_stream(value: bytes, shown: tuple[str, ...]) -> None:
    node = garden()
    node.producer().stream(1, value=value)
    stats, prefix = node.stats("dcp"), "eq_dcpq:reader:filter_1_"
    assert tuple(stats[prefix + key] for key in ("passthrough", "default_allowed", "size", "cids")) == shown
    assert stats.get(prefix + "scope_id") == ("0x0" if b"scope" in value else None)
    assert stats.get(prefix + "scope_dropped") == ("false" if b"scope" in value else None)


@of_release("7.2")
def test_streams_with_ids_are_named_by_them() -> None:
    node = SimulatedNode()
    peer = node.producer(controls=[(b"enable_stream_id", b"true")])
    for number in (1, 2):
        peer.stream(1, value=b'{"sid":%d}' % number)
    names = node.stats("dcp").keys()
    for number in (1, 2):
        assert f"eq_dcpq:readersid:{number}:stream_1_state" in names
        assert f"eq_dcpq:readersid:{number}:filter_1_sid" in names


@rule("STA-05")
def test_failovers_newest_first() -> None:
    node = SimulatedNode()
    for _ in range(2):
        node.set_doc(1, "k")
        node.set_vbucket(1, REPLICA)
        node.set_vbucket(1, ACTIVE)
    log = node.failover_log(1)
    assert len(log) == 3
    expected = {"vb_1:num_entries": "3", "vb_1:num_erroneous_entries_erased": "0"}
    for index, entry in enumerate(log):
        expected[f"vb_1:{index}:id"] = str(entry.vbuuid)
        expected[f"vb_1:{index}:seq"] = str(entry.seqno)
    assert node.stats("failovers 1") == expected
    assert {name.partition(":")[0] for name in node.stats("failovers")} == {"vb_0", "vb_1", "vb_2", "vb_3"}


@rule("STA-06")
def test_vbucket_seqno(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 2)
    node.flush()
    node.set_doc(1, "later")
    assert node.stats("vbucket-seqno 1") == {
        "vb_1:high_seqno": "3",
        "vb_1:abs_high_seqno": "3",
        "vb_1:last_persisted_seqno": "2",
        "vb_1:uuid": str(node.failover_log(1).newest.vbuuid),
        "vb_1:purge_seqno": "0",
        "vb_1:last_persisted_snap_start": "2",
        "vb_1:last_persisted_snap_end": "2",
        "vb_1:high_prepared_seqno": "0",
        "vb_1:high_completed_seqno": "0",
        "vb_1:max_visible_seqno": "3",
    }


@of_release("7.2", "8.0")
def test_a_copys_high_seqno_is_the_end_of_the_snapshot_that_comes() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept()
    found = []
    for step in (lambda: source.marker(1, 3), lambda: source.mutation(b"a", 1), lambda: source.mutation(b"b", 2)):
        assert step() == []
        stats = node.stats("vbucket-seqno 1")
        found.append((stats["vb_1:high_seqno"], stats["vb_1:abs_high_seqno"]))
    assert found == [("0", "0"), ("3", "1"), ("3", "2")]


@rule("STA-06")
@of_release("7.2", "8.0")
def test_a_whole_persisted_snapshot_is_one_point() -> None:
    node = SimulatedNode()
    node.set_vbucket(1, REPLICA)
    source = ScriptedProducer(node)
    source.accept()
    source.snapshot(b"a", b"b", b"c", b"d", start=1)
    assert source.marker(5, 7) == []
    found = []
    for seqno in (5, 6, 7):
        assert source.mutation(b"k", seqno) == []
        node.flush()
        stats = node.stats("vbucket-seqno 1")
        found.append((stats["vb_1:last_persisted_snap_start"], stats["vb_1:last_persisted_snap_end"]))
    assert found == [("4", "7"), ("4", "7"), ("7", "7")]


@rule("STA-07")
def test_vbucket_seqno_of_what_is_not_there() -> None:
    node = SimulatedNode()
    node.delete_vbucket(2)
    node.set_vbucket(3, DEAD)
    for group in (b"vbucket-seqno 2", b"vbucket-seqno 3", b"vbucket-seqno 4"):
        (answer,) = node.admin.send(Opcode.STAT, key=group)
        assert answer.status == Status.NOT_MY_VBUCKET, group


@rule("STA-08")
@of_release("7.2", "8.0")
def test_takeover_of_a_connection_that_does_not_exist(release: str) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    node.delete_doc(1, "k0")
    for group in ("dcp-vbtakeover 1", "dcp-vbtakeover 1 nobody"):
        stats = node.stats(group)
        assert stats["status"] == ("connection_" if release == "8.0" else "") + "does_not_exist"
        assert set(stats) == {"status", "on_disk_deletes", "vb_items", "chk_items", "estimate"}
        assert stats["vb_items"] == "4"
        assert int(stats["estimate"]) >= 4


@rule("STA-09")
def test_takeover_of_a_stream(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 5)
    node.flush()
    peer = node.producer(b"mover")
    peer.stream(1)
    assert node.stats("dcp-vbtakeover 1 mover") == {
        "name": "eq_dcpq:mover",
        "status": "in-memory",
        "estimate": "0",
        "chk_items": "0",
        "vb_items": "5",
        "on_disk_deletes": "0",
    }
    node.restart()
    slow = node.producer(b"slow", controls=[(b"connection_buffer_size", b"1")])
    slow.stream(1)
    stats = node.stats("dcp-vbtakeover 1 slow")
    assert stats["status"] == "backfilling"
    assert int(stats["backfillRemaining"]) > 0
    assert int(stats["estimate"]) > 0
    slow.close_stream(1)
    assert node.stats("dcp-vbtakeover 1 slow")["status"] == "stream_is_dead"


@rule("STA-10")
def test_seqnos_of_all_vbuckets_in_order() -> None:
    node = SimulatedNode()
    for vbid, count in enumerate((1, 2, 3, 4)):
        node.fill(vbid, count)
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(2, PENDING)
    node.set_vbucket(3, DEAD)
    peer = node.connect(features=WITHOUT_COLLECTIONS)
    answer = peer.call(Opcode.GET_ALL_VB_SEQNOS)
    assert len(answer.value) == 3 * 10
    assert seqnos(peer) == [(0, 1), (1, 2), (2, 3)]
    by_state = {state: [vbid for vbid, _ in seqnos(peer, struct.pack(">I", state))] for state in range(5)}
    assert by_state == {0: [0, 1, 2], ACTIVE: [0], REPLICA: [1], PENDING: [2], DEAD: [3]}


@rule("STA-11")
@each_case("extras", [b"\0", bytes(2), bytes(5), bytes(12), struct.pack(">I", 5), struct.pack(">II", 5, 0)])
def test_odd_arguments_of_get_all_vb_seqnos(extras: bytes) -> None:
    peer = SimulatedNode().connect()
    assert peer.call(Opcode.GET_ALL_VB_SEQNOS, extras=extras).status == Status.EINVAL
    assert not peer.closed


@rule("STA-11")
def test_seqnos_of_a_collection_need_collections() -> None:
    node = SimulatedNode()
    extras = struct.pack(">II", ACTIVE, 0)
    assert node.connect().call(Opcode.GET_ALL_VB_SEQNOS, extras=extras).status == 0
    plain = node.connect(features=WITHOUT_COLLECTIONS)
    assert plain.call(Opcode.GET_ALL_VB_SEQNOS, extras=extras).status != 0


@rule("STA-12")
def test_a_replica_reports_the_end_of_its_snapshot() -> None:
    node = SimulatedNode()
    node.fill(1, 3)
    node.set_vbucket(1, REPLICA)
    node.vbucket(1).log.set_snapshot(SnapshotRange(3, 10))
    consumer = node.consumer()
    frames = consumer.send(Opcode.DCP_ADD_STREAM, vbid=1, extras=bytes(4))
    opaque = None
    for _ in range(20):
        requests = [frame for frame in frames if frame.is_request]
        frames = []
        for request in requests:
            if request.opcode == Opcode.DCP_STREAM_REQ:
                opaque = request.opaque
                log = node.failover_log(1).newest
                frames += consumer.answer(request, value=struct.pack(">QQ", log.vbuuid, log.seqno))
            else:
                frames += consumer.answer(request)
        if opaque is not None or not frames:
            break
    assert opaque is not None
    consumer.send_bytes(SnapshotMarker(vbid=1, opaque=opaque, start_seqno=4, end_seqno=10, flags=1).encode())
    assert node.vbucket(1).high_seqno == 3
    assert dict(seqnos(node.admin))[1] == 3, "nothing of it came yet"
    extras = struct.pack(">QQIIIHB", 4, 1, 0, 0, 0, 0, 0)
    consumer.send(Opcode.DCP_MUTATION, vbid=1, opaque=opaque, key=b"\0k", extras=extras, cas=1)
    assert node.vbucket(1).high_seqno == 4
    assert dict(seqnos(node.admin))[1] == 10


@rule("STA-13")
def test_seqnos_by_collection() -> None:
    node = SimulatedNode()
    manifest = (
        b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":'
        b'[{"name":"_default","uid":"0"},{"name":"fruit","uid":"8"}]}]}'
    )
    assert node.admin.call(Opcode.SET_COLLECTIONS, value=manifest).status == 0
    node.set_doc(1, "a")
    high_default = dict(seqnos(node.connect(features=WITHOUT_COLLECTIONS)))[1]
    node.set_doc(1, "b", collection=b"\x08")
    assert dict(seqnos(node.connect(features=WITHOUT_COLLECTIONS)))[1] == high_default
    assert dict(seqnos(node.connect()))[1] == high_default + 1
    of_fruit = seqnos(node.connect(), struct.pack(">II", ACTIVE, 8))
    assert dict(of_fruit)[1] == high_default + 1
    answer = node.connect().call(Opcode.GET_ALL_VB_SEQNOS, extras=struct.pack(">II", ACTIVE, 9))
    assert answer.status == Status.UNKNOWN_COLLECTION


@rule("STA-14")
def test_observe_seqno(tmp_path: Path) -> None:
    node = SimulatedNode(path=tmp_path)
    node.fill(1, 2)
    node.flush()
    node.set_doc(1, "later")
    old = node.failover_log(1).newest.vbuuid

    def observe(vbuuid: int) -> bytes:
        answer = node.admin.call(Opcode.OBSERVE_SEQNO, vbid=1, value=struct.pack(">Q", vbuuid))
        assert answer.status == 0
        return answer.value

    assert observe(old) == struct.pack(">BHQQQ", 0, 1, old, 2, 3)
    node.flush()
    node.set_vbucket(1, REPLICA)
    node.set_vbucket(1, ACTIVE)
    newest = node.failover_log(1).newest
    node.set_doc(1, "on the new branch")
    assert observe(newest.vbuuid) == struct.pack(">BHQQQ", 0, 1, newest.vbuuid, 3, 4)
    assert observe(old) == struct.pack(">BHQQQQQ", 1, 1, newest.vbuuid, 3, 4, old, newest.seqno)
    answer = node.admin.call(Opcode.OBSERVE_SEQNO, vbid=1, value=struct.pack(">Q", 0x1234))
    assert answer.status == Status.KEY_ENOENT


def recorded_names(group: str) -> set[str]:
    """The names that the recorded server answers for a group of STAT, vbuckets and checkpoints as N."""
    found, is_asked = set(), False
    for line in recorded.server_transcript("s22"):
        frame = decode_frame(line.frame) if line.frame else None
        if frame is not None and frame.opcode == Opcode.STAT:
            if frame.is_request:
                is_asked = frame.key.startswith(group.encode() + b" ")
            elif is_asked:
                found.add(re.sub(r"(vb_|id_)\d+", r"\1N", frame.key.decode()))
    return found - {""}


@each_case("group", ["vbucket-details", "checkpoint", "vbucket-seqno", "failovers", "dcp-vbtakeover"])
@of_release("7.2")
def test_groups_about_vbuckets_have_the_names_that_a_server_gives_them(group: str) -> None:
    node = SimulatedNode()
    node.fill(1, 5)
    node.producer(b"stats-prod").stream(1)
    argument = " 1 stats-prod" if group == "dcp-vbtakeover" else " 1"
    names = {re.sub(r"(vb_|id_)\d+", r"\1N", name) for name in node.stats(group + argument)}
    assert names == recorded_names(group)
    assert names
