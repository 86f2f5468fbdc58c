"""Rules of DCP_OPEN."""

from __future__ import annotations

import struct
from typing import Any

from dcpstream.wire import Feature, Opcode, OpenFlag, Status, encode_request
from dcpstream_node.testing.simulation import USUAL_FEATURES, WITHOUT_COLLECTIONS, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR, dcp_names, is_plain, of

CONSUMER, PRODUCER = 0, OpenFlag.PRODUCER


def role(peer: Peer) -> str:
    """The role of the node's end: a consumer answers a NOOP, a producer drops the connection."""
    if of(peer.send(Opcode.DCP_NOOP), Opcode.DCP_NOOP):
        return "consumer"
    return "producer" if peer.closed else "none"


@rule("OPEN-01", "OPEN-02")
def test_the_documented_example() -> None:
    data = bytes.fromhex(
        "80 50 0018 08 00 0000 00000020 00000001 0000000000000000 00000000 00000000"
        "6275636b657473747265616d2076625b3130302d3130355d"
    )
    name = b"bucketstream vb[100-105]"
    assert encode_request(Opcode.DCP_OPEN, opaque=1, extras=bytes(8), key=name) == data
    node = SimulatedNode()
    peer = node.connect()
    (answer,) = peer.send_bytes(data)
    assert answer.encode() == bytes.fromhex("81 50 0000 00 00 0000 00000000 00000001 0000000000000000")
    assert dcp_names(node) == [name.decode()]
    assert role(peer) == "consumer"


@rule("OPEN-02")
@each_case("flags", [CONSUMER, PRODUCER])
@each_case("opaque", [0, 0xDEADBEEF])
def test_the_answer_is_a_bare_header(flags: int, opaque: int) -> None:
    answer = SimulatedNode().connect().dcp_open(b"n", flags, opaque=opaque)
    assert answer.encode() == struct.pack(">BBHBBHIIQ", 0x81, 0x50, 0, 0, 0, 0, 0, opaque, 0)


@rule("OPEN-03")
@each_case("length", [0, 1, 4, 7, 9, 12, 16])
def test_the_extras_have_8_bytes(length: int) -> None:
    peer = SimulatedNode().connect()
    assert peer.call(Opcode.DCP_OPEN, key=b"n", extras=b"\0" * length).status == Status.EINVAL
    assert is_plain(peer)
    assert peer.dcp_open(b"n").status == 0


@rule("OPEN-04")
@each_case("flags", [CONSUMER, PRODUCER])
def test_a_name_must_be_there(flags: int) -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"", flags).status == Status.EINVAL
    assert is_plain(peer)


@rule("OPEN-05")
@each_case(
    ("flags", "expected"), [(0, "consumer"), (4, "consumer"), (0x20, "consumer"), (1, "producer"), (5, "producer")]
)
def test_bit_1_chooses_the_role(flags: int, expected: str) -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", flags).status == 0
    assert role(peer) == expected


@rule("OPEN-06")
@each_case("flags", [0x2, 0x10, *(1 << bit for bit in range(10, 32)), 0xFFFFFFFF])
@each_case("base", [CONSUMER, PRODUCER])
def test_unknown_and_abandoned_flags_are_invalid(flags: int, base: int) -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", flags | base).status == Status.EINVAL
    assert is_plain(peer)


@rule("OPEN-06")
@of_release("7.2")
def test_point_in_time_recovery_can_be_opened_by_producers_and_streams_nothing() -> None:
    node = SimulatedNode()
    assert node.connect().dcp_open(b"n", 0x80).status == Status.EINVAL
    peer = node.connect()
    assert peer.dcp_open(b"n", 0x81).status == 0
    peer.control(b"enable_noop", b"true")
    assert [frame.status for frame in peer.stream(1)] == [Status.EINVAL]


@rule("OPEN-07")
@each_case("base", [CONSUMER, PRODUCER, PRODUCER | 4])
def test_two_ways_of_no_value_exclude_each_other(base: int) -> None:
    node = SimulatedNode()
    assert node.connect().dcp_open(b"n", base | 0x48).status == Status.EINVAL
    assert node.connect().dcp_open(b"a", PRODUCER | 0x08).status == 0
    assert node.connect().dcp_open(b"b", PRODUCER | 0x40).status == 0


@rule("OPEN-08")
@each_case("base", [CONSUMER, PRODUCER])
def test_user_xattrs_of_deletions_need_xattrs(base: int) -> None:
    node = SimulatedNode()
    assert node.connect().dcp_open(b"n", base | 0x100).status == Status.EINVAL
    assert node.connect().dcp_open(b"n", base | 0x104).status == 0


@rule("OPEN-09", "OPEN-28")
@each_case("features", [USUAL_FEATURES, (*USUAL_FEATURES, Feature.DCP_SKIP_DELETES_IN_BACKFILL)])
def test_skipping_deletes_is_not_to_be_had(features: tuple[Feature, ...]) -> None:
    # Neither a consumer nor, as recorded, a producer may ask for it; so HELLO does not grant what tells of it.
    node = SimulatedNode()
    peer = node.connect(features=features)
    granted = peer.hello(features).value
    assert Feature.DCP_SKIP_DELETES_IN_BACKFILL not in {code for (code,) in struct.iter_unpack(">H", granted)}
    assert peer.dcp_open(b"n", 0x200).status == Status.EINVAL
    assert peer.dcp_open(b"n", 0x201).status == Status.EINVAL
    assert is_plain(peer)


@rule("OPEN-10")
@each_case(
    ("value", "datatype"),
    [
        (b'{"consumer_name":"c"}', 0),
        (b'{"consumer_name":"c"}', 2),
        (b'{"consumer_name":"c"}', 4),
        (b'{"consumer_name":"c"}', 5),
        (b"", 1),
        (b"", 4),
        (b"{", 1),
        (b"c", 1),
        (b'"consumer_name"', 1),
        (b"[]", 1),
        (b"null", 1),
        (b"17", 1),
    ],
)
def test_a_value_is_a_json_object(value: bytes, datatype: int) -> None:
    for flags in (CONSUMER, PRODUCER):
        peer = SimulatedNode().connect()
        assert peer.dcp_open(b"n", flags, value=value, datatype=datatype).status == Status.EINVAL
        assert is_plain(peer)
        assert not peer.closed


@rule("OPEN-10", "OPEN-11")
@each_case("value", [b"", b'{"consumer_name":"c"}', b'{ "consumer_name" : "" }'])
def test_a_consumer_may_say_its_name(value: bytes) -> None:
    assert SimulatedNode().connect().dcp_open(b"n", CONSUMER, value=value, datatype=1 if value else 0).status == 0


@rule("OPEN-11")
@each_case(
    ("flags", "value"),
    [
        (CONSUMER, b'{"consumer_name":1}'),
        (CONSUMER, b'{"consumer_name":null}'),
        (CONSUMER, b'{"consumer_name":["c"]}'),
        (CONSUMER, b'{"name":"c"}'),
        (CONSUMER, b'{"consumer_name":"c","more":1}'),
        (CONSUMER, b'{"Consumer_name":"c"}'),
        (PRODUCER, b'{"consumer_name":"c"}'),
        (PRODUCER, b'{"name":"c"}'),
    ],
)
def test_only_a_consumers_name_may_be_in_the_value(flags: int, value: bytes) -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", flags, value=value, datatype=1).status == Status.EINVAL
    assert is_plain(peer)
    assert not peer.closed


@rule("OPEN-12")
def test_an_empty_object_drops_a_consumer() -> None:
    peer = SimulatedNode().connect()
    assert peer.send(Opcode.DCP_OPEN, key=b"n", extras=bytes(8), value=b"{}", datatype=1) == []
    assert peer.closed


@rule("OPEN-11", "OPEN-12")
def test_an_empty_object_says_nothing_of_a_producer() -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", PRODUCER, value=b"{}", datatype=1).status == Status.SUCCESS
    assert not peer.closed
    assert role(peer) == "producer"


@rule("OPEN-13")
@each_case(("first", "second"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@each_case("name", [b"n", b"other"])
def test_a_second_open_changes_nothing(first: int, second: int, name: bytes) -> None:
    node = SimulatedNode()
    peer = node.connect()
    assert peer.dcp_open(b"n", first).status == 0
    assert peer.dcp_open(name, second).status == Status.EINVAL
    assert not peer.closed
    assert dcp_names(node) == ["n"]
    assert role(peer) == ("producer" if first else "consumer")


@rule("OPEN-14")
@each_case("flags", [CONSUMER, PRODUCER])
def test_unordered_execution_excludes_dcp(flags: int) -> None:
    node = SimulatedNode()
    peer = node.connect(features=(*USUAL_FEATURES, Feature.UNORDERED_EXECUTION))
    assert peer.dcp_open(b"n", flags).status == Status.NOT_SUPPORTED
    assert dcp_names(node) == []
    assert not peer.closed
    assert peer.hello(USUAL_FEATURES).status == 0
    assert peer.dcp_open(b"n", flags).status == 0


@rule("OPEN-15")
@each_case("flags", [CONSUMER, PRODUCER])
def test_hello_grants_no_unordered_execution_later(flags: int) -> None:
    peer = SimulatedNode().connect()
    peer.dcp_open(b"n", flags)
    answer = peer.hello((Feature.XATTR, Feature.UNORDERED_EXECUTION, Feature.XERROR))
    assert (answer.status, answer.value) == (0, bytes.fromhex("0006 0007"))
    assert not peer.closed


@rule("OPEN-16")
def test_without_a_bucket_there_is_nothing_to_open() -> None:
    node = SimulatedNode()
    peer = node.connect(bucket=None)
    assert peer.dcp_open().status == Status.NO_BUCKET
    assert not peer.closed
    plain = node.connect(bucket=None, features=WITHOUT_XERROR)
    assert plain.send(Opcode.DCP_OPEN, key=b"n", extras=bytes(8)) == []
    assert plain.closed


@rule("OPEN-17", "OPEN-18")
@each_case("older_flags", [CONSUMER, PRODUCER])
@each_case("newer_flags", [CONSUMER, PRODUCER])
def test_a_name_belongs_to_the_connection_that_opened_it_last(older_flags: int, newer_flags: int) -> None:
    node = SimulatedNode()
    older, bystander, newer = node.connect(), node.connect(), node.connect()
    assert older.dcp_open(b"same", older_flags).status == 0
    assert bystander.dcp_open(b"another", older_flags).status == 0
    before = len(older.received)
    assert newer.dcp_open(b"same", newer_flags).status == 0
    assert older.closed
    assert len(older.received) == before, "it is closed without a word"
    assert not newer.closed
    assert not bystander.closed
    assert dcp_names(node) == ["another", "same"]
    assert role(newer) == ("producer" if newer_flags else "consumer")


@rule("OPEN-19")
@each_case(("features", "longest"), [(USUAL_FEATURES, 251), (WITHOUT_COLLECTIONS, 250)])
def test_names_may_be_as_long_as_keys(features: tuple[Feature, ...], longest: int) -> None:
    node = SimulatedNode()
    for length in (1, 200, 201, longest):
        assert node.connect(features=features).dcp_open(b"n" * length).status == 0
    answer = node.connect(features=features).dcp_open(b"n" * (longest + 1))
    assert answer.status == Status.EINVAL
    assert f"Key length exceeds {longest}" in answer.value.decode()


@rule("OPEN-20")
@each_case("first", [1, 5, 0x7FFFFFFF, 0xFFFFFFFF])
def test_the_first_word_of_the_extras_is_ignored(first: int) -> None:
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", PRODUCER, first=first).status == 0
    assert role(peer) == "producer"
    peer = SimulatedNode().connect()
    assert peer.dcp_open(b"n", CONSUMER, first=first).status == 0
    assert role(peer) == "consumer"


@rule("OPEN-21", "OPEN-22")
@each_case("flags", [CONSUMER, PRODUCER])
def test_the_bucket_and_the_user_are_settled(flags: int) -> None:
    peer = SimulatedNode().connect()
    peer.dcp_open(b"n", flags)
    for opcode, key, value in (
        (Opcode.SELECT_BUCKET, b"default", b""),
        (Opcode.SELECT_BUCKET, b"nosuch", b""),
        (Opcode.SASL_LIST_MECHS, b"", b""),
        (Opcode.SASL_AUTH, b"PLAIN", b"\0admin\0secret"),
        (Opcode.SASL_AUTH, b"PLAIN", b"\0admin\0wrong"),
        (Opcode.SASL_STEP, b"PLAIN", b"x"),
    ):
        assert peer.call(opcode, key=key, value=value).status == Status.NOT_SUPPORTED
    assert not peer.closed
    assert role(peer) == ("producer" if flags else "consumer")


@rule("OPEN-23")
@each_case(
    ("opcode", "fields"),
    [
        (Opcode.DCP_ADD_STREAM, {"extras": bytes(4)}),
        (Opcode.DCP_CLOSE_STREAM, {}),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48)}),
        (Opcode.DCP_GET_FAILOVER_LOG, {}),
        (Opcode.DCP_STREAM_END, {"extras": bytes(4)}),
        (Opcode.DCP_SNAPSHOT_MARKER, {"extras": bytes(20)}),
        (Opcode.DCP_MUTATION, {"extras": bytes(31), "key": b"\0k"}),
        (Opcode.DCP_DELETION, {"extras": bytes(21), "key": b"\0k"}),
        (Opcode.DCP_EXPIRATION, {"extras": bytes(20), "key": b"\0k"}),
        (Opcode.DCP_SET_VBUCKET_STATE, {"extras": b"\1"}),
        (Opcode.DCP_NOOP, {}),
        (Opcode.DCP_BUFFER_ACK, {"extras": bytes(4)}),
        (Opcode.DCP_CONTROL, {"key": b"enable_noop", "value": b"true"}),
        (Opcode.DCP_SYSTEM_EVENT, {"extras": bytes(13)}),
        (Opcode.DCP_SEQNO_ACKNOWLEDGED, {"extras": bytes(8)}),
        (Opcode.DCP_COMMIT, {"extras": bytes(16), "key": b"\0k"}),
    ],
)
def test_everything_else_needs_an_open_connection(opcode: int, fields: dict[str, Any]) -> None:
    peer = SimulatedNode().connect()
    assert peer.call(opcode, vbid=1, **fields).status == Status.EINVAL
    assert not peer.closed
    assert peer.dcp_open().status == 0


@rule("OPEN-24")
def test_a_consumer_waits_for_the_end_of_warm_up() -> None:
    node = SimulatedNode()
    node.bucket.is_warm = False
    peer = node.connect()
    assert peer.dcp_open(b"c", CONSUMER).status == Status.TMPFAIL
    assert not peer.closed
    assert node.connect().dcp_open(b"p", PRODUCER).status == 0
    node.bucket.is_warm = True
    assert peer.dcp_open(b"c", CONSUMER).status == 0


@rule("OPEN-25")
@each_case(("features", "key"), [(USUAL_FEATURES, b"\0doc"), (WITHOUT_COLLECTIONS, b"doc")])
def test_hello_decides_about_collections(features: tuple[Feature, ...], key: bytes) -> None:
    node = SimulatedNode()
    node.set_doc(1, "doc")
    peer = node.producer(features=features)
    (item,) = of(peer.stream(1), Opcode.DCP_MUTATION)
    assert item.key == key


@rule("OPEN-25")
@each_case(
    ("features", "later", "key"),
    [(WITHOUT_COLLECTIONS, USUAL_FEATURES, b"\0"), (USUAL_FEATURES, WITHOUT_COLLECTIONS, b"")],
)
def test_a_later_hello_changes_an_open_connection(
    features: tuple[Feature, ...], later: tuple[Feature, ...], key: bytes
) -> None:
    node = SimulatedNode()
    node.set_doc(1, "doc")
    peer = node.producer(features=features)
    peer.hello(later)
    (item,) = of(peer.stream(1), Opcode.DCP_MUTATION)
    assert item.key == key + b"doc"
    filtered = peer.stream(2, value=b'{"collections":["0"]}')
    assert filtered[0].status == (Status.SUCCESS if key else Status.EINVAL), "a filter needs collections"


@rule("OPEN-25")
@each_case(("features", "later"), [(WITHOUT_COLLECTIONS, USUAL_FEATURES), (USUAL_FEATURES, WITHOUT_COLLECTIONS)])
def test_a_later_hello_changes_the_keys_of_open_streams(
    features: tuple[Feature, ...], later: tuple[Feature, ...]
) -> None:
    node = SimulatedNode()
    peer = node.producer(features=features)
    peer.stream(1)
    for granted in (features, later, features):
        peer.hello(granted)
        node.set_doc(1, "doc")
        (item,) = of(peer.take(), Opcode.DCP_MUTATION)
        assert item.key == (b"\0doc" if Feature.COLLECTIONS in granted else b"doc")


@rule("OPEN-26")
def test_opening_enables_json() -> None:
    without_json = tuple(feature for feature in USUAL_FEATURES if feature != Feature.JSON)
    peer = SimulatedNode().connect(features=without_json)
    fields: dict[str, Any] = {"vbid": 1, "key": b"\0k", "extras": bytes(8), "value": b"{}", "datatype": 1}
    assert peer.call(Opcode.SET, **fields).status == Status.EINVAL
    assert peer.dcp_open().status == 0
    assert peer.call(Opcode.SET, **fields).status == 0
    assert peer.call(Opcode.GET, vbid=1, key=b"\0k").datatype == 1


@rule("OPEN-27")
@each_case(
    ("name", "is_on"), [("plain", "true"), ("replication:a->b", "false"), ("my-replication", "false"), ("rep", "true")]
)
def test_replication_begins_without_cursor_dropping(name: str, is_on: str) -> None:
    node = SimulatedNode()
    node.producer(name.encode())
    assert node.stats("dcp")[f"eq_dcpq:{name}:cursor_dropping"] == is_on
