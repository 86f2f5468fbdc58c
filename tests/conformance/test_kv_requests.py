"""Requests of key-value commands: in which order they are checked, keys, datatypes, framing extras, odd opcodes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dcpstream.wire import Frame, Opcode, Status
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.engine import COMMANDS, Users
from dcpstream_node.testing.simulation import WITHOUT_COLLECTIONS, Peer, SeededRandom, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import stored_mutation

KEY = b"\0k"
STORE = bytes(8)
META = struct.pack(">IIQQ", 0, 0, 9, 1 << 60)
COUNT = struct.pack(">QQI", 1, 1, 0)
FOREIGN_VBUCKET = 99
LEB_9 = b"\x09"
MIB = 1 << 20


def context_of(frame: Frame) -> str | None:
    """The reason in an error's body."""
    if not frame.value:
        return None
    context: str = json.loads(frame.value)["error"]["context"]
    return context


# -------------------------------------------------------------------------------------------------------------- order


@rule("KV-REQ-01")
def test_what_is_wrong_is_found_in_the_servers_order(node: SimulatedNode) -> None:
    reader = node.connect(user="producer")
    wrong: dict[str, Any] = {
        "datatype": 0x80, "extras": b"x", "value": b"v", "cas": 1, "key": KEY, "vbid": FOREIGN_VBUCKET,
        "framing": b"\x70",
    }  # fmt: skip
    reasons = []
    for mended in ("datatype", "extras", "value", "cas", "framing"):
        answer = reader.call(Opcode.DELETE if mended != "cas" else Opcode.GET, **wrong)
        reasons.append((answer.status, context_of(answer)))
        wrong.pop(mended)
    assert reasons == [
        (Status.EINVAL, "Request datatype invalid"),
        (Status.EINVAL, "Request must not include extras"),
        (Status.EINVAL, "Request must not include value"),
        (Status.EINVAL, "Request CAS must not be set"),
        (Status.UNKNOWN_FRAME_INFO, None),
    ]
    assert reader.call(Opcode.DELETE, **wrong).status == Status.EACCESS, "the privilege comes before the vbucket"
    assert reader.call(Opcode.DELETE, **{**wrong, "key": b"\x01k"}).status == Status.EINVAL, "and after the key"
    writer = node.connect(user="writer")
    assert writer.call(Opcode.DELETE, **{**wrong, "key": LEB_9 + b"k"}).status == Status.NOT_MY_VBUCKET
    assert writer.call(Opcode.DELETE, vbid=1, key=LEB_9 + b"k").status == Status.UNKNOWN_COLLECTION


@rule("KV-REQ-01", "KV-REQ-05")
def test_broken_attributes_are_found_before_broken_framing_and_extras(peer: Peer) -> None:
    fields: dict[str, Any] = {"vbid": 1, "key": KEY, "value": b"\0\0\0\x09x", "datatype": 4}
    answer = peer.call(Opcode.SET_WITH_META, extras=META, framing=b"\x70", **fields)
    assert answer.status == Status.XATTR_EINVAL


# --------------------------------------------------------------------------------------------------------------- keys


@rule("KV-REQ-02")
@pytest.mark.parametrize(
    ("key", "status"),
    [
        (b"\0" + b"k" * 250, 0),
        (b"\0" + b"k" * 251, Status.EINVAL),
        (LEB_9 + b"k" * 246, Status.NOT_MY_VBUCKET),
        (LEB_9 + b"k" * 247, Status.EINVAL),
    ],
)
def test_the_longest_keys_with_collections(peer: Peer, key: bytes, status: int) -> None:
    vbid = FOREIGN_VBUCKET if status else 1
    answer = peer.call(Opcode.SET, vbid=vbid, key=key, extras=STORE)
    assert answer.status == status
    assert bool(answer.value) == (status == Status.EINVAL) or status == Status.NOT_MY_VBUCKET


@rule("KV-REQ-02")
def test_the_longest_keys_without_collections(node: SimulatedNode) -> None:
    peer = node.connect(features=WITHOUT_COLLECTIONS)
    assert peer.call(Opcode.SET, vbid=1, key=b"k" * 250, extras=STORE).status == 0
    answer = peer.call(Opcode.SET, vbid=FOREIGN_VBUCKET, key=b"k" * 251, extras=STORE)
    assert (answer.status, context_of(answer)) == (Status.EINVAL, "Key length exceeds 250")


@rule("KV-REQ-03")
@pytest.mark.parametrize("key", [b"k", b"\0", b"\x80\0k", b"\xff\xff\xff\xff\xff\xffk", b"\x01k", b"\x07k", LEB_9])
def test_a_key_has_a_sound_prefix(peer: Peer, key: bytes) -> None:
    for opcode, extras in ((Opcode.GET, b""), (Opcode.SET, STORE), (Opcode.SUBDOC_GET, b"\0\1\0")):
        value = b"p" if opcode == Opcode.SUBDOC_GET else b""
        answer = peer.call(opcode, vbid=FOREIGN_VBUCKET, key=key, extras=extras, value=value)
        assert answer.status == Status.EINVAL
        assert context_of(answer)


@rule("KV-REQ-03")
def test_a_missing_part_of_a_key_is_reported(node: SimulatedNode, peer: Peer) -> None:
    short, bare = (peer.call(Opcode.GET, vbid=1, key=key) for key in (b"\0", b"\x88\x01"))
    assert (context_of(short), context_of(bare)) == ("Key length must be >= 2", "No logical key found")


@rule("KV-REQ-03")
@of_release("7.2", "8.0")
def test_observe_asks_for_a_collection_and_checks_no_more_of_a_key(node: SimulatedNode, release: str) -> None:
    def observe(key: bytes, peer: Peer) -> list[Frame]:
        return peer.send(Opcode.OBSERVE, value=struct.pack(">HH", 1, len(key)) + key)

    for key in (b"", b"\x80", b"\xff" * 9):
        peer = node.connect()
        assert (observe(key, peer), peer.closed) == ([], True)
    peer = node.connect()
    for key, status in ((b"\0", 0), (b"\0" * 300, 0), (b"\x01k", Status.UNKNOWN_COLLECTION), (b"\x88\x01", 0x88)):
        (answer,) = observe(key, peer)
        assert answer.status == status
        if status:
            assert bool(answer.value) == (release == "7.2"), "the manifest's uid"
    old = node.connect(features=WITHOUT_COLLECTIONS)
    for size in (0, 250, 251):
        assert observe(b"k" * size, old)[0].status == 0


# ------------------------------------------------------------------------------------------------------------- values


@rule("KV-REQ-04")
@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.APPEND, Opcode.SET_WITH_META])
def test_a_value_that_does_not_inflate_is_refused(peer: Peer, opcode: int) -> None:
    extras = {Opcode.APPEND: b"", Opcode.SET_WITH_META: META}.get(Opcode(opcode), STORE)
    answer = peer.call(opcode, vbid=FOREIGN_VBUCKET, key=KEY, extras=extras, value=b"\xff\xff\xff", datatype=2)
    assert (answer.status, context_of(answer)) == (Status.EINVAL, "Failed to inflate payload")


PAIR = b"\0\0\0\x05a\x001\0"


@rule("KV-REQ-05")
@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x09" + PAIR,
        encode_xattrs({"a": b"no json"}),
        encode_xattrs({"toolongforaname__": b"1"}),
        encode_xattrs({"!a": b"1"}),
        encode_xattrs({"_": b"1"}),
        struct.pack(">I", 2 * len(PAIR)) + PAIR + PAIR,
    ],
)
def test_broken_attributes_are_refused(peer: Peer, value: bytes) -> None:
    answer = peer.call(Opcode.SET_WITH_META, vbid=1, key=KEY, extras=META, value=value, datatype=4)
    assert (answer.status, context_of(answer)) == (Status.XATTR_EINVAL, "The provided xattr segment is not valid")
    packed = peer.call(
        Opcode.SET_WITH_META, vbid=1, key=KEY, extras=META, value=snappy_compress(value), datatype=6
    )  # fmt: skip
    assert packed.status == Status.XATTR_EINVAL


@rule("KV-REQ-06")
@of_release("7.2")
def test_which_commands_take_a_cas(node: SimulatedNode, peer: Peer) -> None:
    for opcode in (Opcode.ADD, Opcode.ADDQ):
        answer = peer.call(opcode, vbid=FOREIGN_VBUCKET, key=KEY, extras=STORE, cas=5)
        assert (answer.status, context_of(answer)) == (Status.EINVAL, "Request CAS must not be set")
    assert peer.call(Opcode.SELECT_BUCKET, key=b"default", cas=5).status == 0
    assert peer.call(0x87, cas=5).status == 0
    vbuuid = node.vbucket(1).vbuuid.to_bytes(8, "big")
    assert peer.call(Opcode.OBSERVE_SEQNO, vbid=1, value=vbuuid, cas=5).status == 0
    assert peer.call(Opcode.GET_FAILOVER_LOG, vbid=1, cas=5).status == 0
    for opcode in (Opcode.CREATE_BUCKET, Opcode.DELETE_BUCKET):
        answer = peer.call(
            opcode, key=b"b", value=b"ep.so\0max_vbuckets=0" if opcode == Opcode.CREATE_BUCKET else b"v", cas=5
        )
        assert "CAS" not in str(context_of(answer)), opcode


@rule("KV-REQ-19")
@of_release("8.0")
def test_set_param_takes_no_cas_since_80(node: SimulatedNode) -> None:
    answer = node.admin.call(Opcode.SET_PARAM, cas=0xDEADBEEF, key=b"max_ttl", value=b"5", extras=struct.pack(">I", 1))
    assert (answer.status, context_of(answer)) == (Status.EINVAL, "Request CAS must not be set")


@rule("KV-REQ-19")
@of_release("7.2")
def test_set_param_needs_no_cas_or_the_control_token(node: SimulatedNode) -> None:
    parameter: dict[str, Any] = {"key": b"max_ttl", "value": b"5", "extras": struct.pack(">I", 1)}
    assert node.admin.call(Opcode.SET_PARAM, cas=5, **parameter).status == Status.KEY_EEXISTS
    for cas in (0, 0xDEADBEEF):
        answer = node.admin.call(Opcode.SET_PARAM, cas=cas, **parameter)
        assert (answer.status, answer.cas) == (0, cas)


@rule("KV-REQ-19")
@pytest.mark.parametrize("group", [2, 3, 4, 5])
@of_release("7.2", "8.0")
def test_parameters_that_a_group_does_not_have(node: SimulatedNode, group: int, release: str) -> None:
    answer = node.admin.call(Opcode.SET_PARAM, key=b"max_ttl", value=b"5", extras=struct.pack(">I", group))
    assert answer.status == Status.KEY_ENOENT
    if group != 2 or release == "7.2":
        assert "Unknown config param" in str(context_of(answer))


@rule("KV-REQ-19")
def test_the_highest_cas_of_a_vbucket_is_set(node: SimulatedNode) -> None:
    def set_max_cas(text: bytes, vbid: int = 1) -> int:
        extras = struct.pack(">I", 5)
        return node.admin.call(Opcode.SET_PARAM, vbid=vbid, key=b"max_cas", value=text, extras=extras).status

    for text in (b"12x", b"\xd9\xa1", b"+1", b" 1"):  # the second is a number in Arabic
        assert set_max_cas(text) == Status.EINVAL
    assert set_max_cas(b"1".zfill(40)) == 0
    assert set_max_cas(b"1", FOREIGN_VBUCKET) == Status.NOT_MY_VBUCKET
    ahead = 1 << 62
    assert set_max_cas(str(ahead).encode()) == 0
    assert node.connect().call(Opcode.SET, vbid=1, key=KEY, extras=STORE, value=b"v").cas > ahead
    assert set_max_cas(b"0") == 0
    assert node.connect().call(Opcode.SET, vbid=1, key=KEY, extras=STORE, value=b"v").cas < ahead


@rule("KV-REQ-20")
@pytest.mark.parametrize(
    ("key", "context"),
    [
        (b"\x80\x00k", "Key contains non-canonical leb128"),
        (b"\x89\x80\x00k", "Key contains non-canonical leb128"),
        (b"\xff\xff\xff\xff\xff\x01k", "No stop-byte found"),
        (b"\x80\x80", "No stop-byte found"),
        (b"\xff" * 9, "No stop-byte found"),
        (b"\x01k", "Invalid collection-id:1"),
    ],
)
def test_what_is_said_of_prefixes_that_are_none(peer: Peer, key: bytes, context: str) -> None:
    answer = peer.call(Opcode.GET, vbid=1, key=key)
    assert (answer.status, context_of(answer)) == (Status.EINVAL, context)


@rule("KV-REQ-21")
@pytest.mark.parametrize(
    ("opcode", "length", "context"),
    [
        (Opcode.GET_KEYS, 3, "Expected 4 bytes of extras containing the number of keys to get"),
        *(
            (opcode, length, "Request extras invalid")
            for opcode in (Opcode.SET_WITH_META, Opcode.ADD_WITH_META, Opcode.DELETE_WITH_META)
            for length in (0, 23, 25, 29, 31)
        ),
    ],
)
def test_what_is_said_of_extras_after_the_key(peer: Peer, opcode: int, length: int, context: str) -> None:
    answer = peer.call(opcode, vbid=FOREIGN_VBUCKET, key=KEY, extras=bytes(length))
    assert (answer.status, context_of(answer)) == (Status.EINVAL, context)
    assert context_of(peer.call(opcode, key=b"\x01k", extras=bytes(length))) == "Invalid collection-id:1"


@rule("KV-REQ-18")
def test_the_extras_of_get_random_key(node: SimulatedNode) -> None:
    node.fill(1, 50)  # a server that draws an empty place may find none
    old = node.connect(features=WITHOUT_COLLECTIONS)
    for peer, length in ((node.connect(), 4), (old, 0)):
        assert peer.call(Opcode.GET_RANDOM_KEY, extras=bytes(length)).status == 0
        for wrong in {0, 3, 4, 6} - {length}:
            answer = peer.call(Opcode.GET_RANDOM_KEY, extras=bytes(wrong))
            assert (answer.status, bool(context_of(answer))) == (Status.EINVAL, True)
    stranger = SimulatedNode().connect(user="consumer")
    assert stranger.call(Opcode.GET_RANDOM_KEY).status == Status.EINVAL


@rule("KV-REQ-17")
@of_release("7.2")
def test_what_changes_a_bucket_takes_no_datatype(node: SimulatedNode) -> None:
    reader = node.connect(user="producer")
    for opcode, fields, reason in (
        (Opcode.SET_COLLECTIONS, {"value": b"{}", "datatype": 1}, "Request datatype invalid"),
        (Opcode.COMPACT_DB, {"extras": bytes(24), "datatype": 1}, "Request datatype invalid"),
        (Opcode.COMPACT_DB, {"extras": bytes(24), "value": b"v"}, "Request must not include value"),
        (Opcode.COMPACT_DB, {"extras": bytes(17) + b"\1" + bytes(6)}, "Padding bytes should be set to 0"),
        (Opcode.COMPACT_DB, {"extras": bytes(23) + b"\1"}, "Padding bytes should be set to 0"),
    ):
        for peer in (reader, node.admin):
            answer = peer.call(opcode, **fields)
            assert (answer.status, context_of(answer)) == (Status.EINVAL, reason)


@rule("KV-REQ-07")
@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.ADD, Opcode.REPLACE])
def test_a_value_that_is_too_large_is_refused_before_the_vbucket_is_checked(peer: Peer, opcode: int) -> None:
    large = b"x" * (20 * MIB + 1)
    for value, datatype in ((large, 0), (snappy_compress(large), 2)):
        answer = peer.call(opcode, vbid=FOREIGN_VBUCKET, key=KEY, extras=STORE, value=value, datatype=datatype)
        assert (answer.status, answer.value) == (Status.E2BIG, b"")


# -------------------------------------------------------------------------------------------------------- odd opcodes


@rule("KV-REQ-08")
@of_release("7.2")
def test_former_commands_are_not_supported_and_others_unknown(peer: Peer) -> None:
    former = [*range(0x30, 0x3D), *range(0x40, 0x48), 0x9E, 0x9F, 0xA6, 0xA7, 0xAC, 0xB0, 0xB1, 0xC1, 0xC2]
    for opcode in former:
        answer = peer.call(opcode, key=b"k", extras=b"e", value=b"v", cas=1)
        assert (answer.status, answer.value) == (Status.NOT_SUPPORTED, b""), hex(opcode)
        assert peer.call(opcode, datatype=1).status == Status.EINVAL
    for opcode in (0x2B, 0x4A, 0x6F, 0x84, 0x8A, 0xC3, 0xEE):
        answer = peer.call(opcode)
        assert (answer.status, answer.value) == (Status.UNKNOWN_COMMAND, b"")


@rule("KV-REQ-09")
@of_release("7.2")
def test_flush(node: SimulatedNode, peer: Peer) -> None:
    for extras in (b"", bytes(4)):
        answer = peer.call(Opcode.FLUSH, extras=extras)
        assert (answer.status, answer.value) == (Status.NOT_SUPPORTED, b"")
    assert context_of(peer.call(Opcode.FLUSH, extras=b"\0\0\0\1")) == "Delayed flush no longer supported"
    assert node.connect(user="writer").call(Opcode.FLUSH).status == Status.EACCESS


@rule("KV-REQ-10")
def test_commands_that_are_about_no_vbucket_name_none(peer: Peer) -> None:
    for opcode, value in (
        (Opcode.GET_COLLECTIONS_MANIFEST, b""),
        (Opcode.SET_COLLECTIONS, b"{}"),
        (Opcode.GET_COLLECTION_ID, b"a.b"),
        (Opcode.GET_SCOPE_ID, b"a"),
        (Opcode.GET_ERROR_MAP, b"\0\1"),
    ):
        answer = peer.call(opcode, vbid=1, value=value)
        assert (answer.status, context_of(answer)) == (Status.EINVAL, "Request vbucket id must be 0")


@rule("KV-REQ-11")
def test_without_a_bucket_there_is_no_bucket_whatever_the_privileges(node: SimulatedNode) -> None:
    peer = node.connect(user="producer", bucket=None)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.GET, {"key": KEY}),
        (Opcode.SET, {"key": KEY, "extras": STORE}),
        (Opcode.SET_WITH_META, {"key": KEY, "extras": META}),
        (Opcode.STAT, {}),
        (Opcode.OBSERVE_SEQNO, {"value": bytes(8)}),
    ]
    for opcode, fields in cases:
        assert peer.call(opcode, **fields).status == Status.NO_BUCKET
    assert peer.call(Opcode.SET_VBUCKET, extras=b"\1").status == Status.EACCESS


@rule("KV-REQ-11")
@of_release("7.2", "8.0")
def test_what_a_node_without_a_bucket_does_not_have(node: SimulatedNode, release: str) -> None:
    admin = node.connect(user="@admin", bucket=None)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.GET_VBUCKET, {}),
        (Opcode.SET_VBUCKET, {"extras": b"\1"}),
        (Opcode.DEL_VBUCKET, {}),
        (Opcode.OBSERVE, {"value": b"\0\1\0\2\0k"}),
        (Opcode.COMPACT_DB, {"extras": bytes(24)}),
        (Opcode.SET_PARAM, {"key": b"max_ttl", "value": b"1", "extras": struct.pack(">I", 1)}),
    ]
    for opcode, fields in cases:
        assert admin.call(opcode, **fields).status == Status.NOT_SUPPORTED
    later: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.GET_RANDOM_KEY, {"extras": bytes(4)}),
        (Opcode.GET_REPLICA, {"key": KEY}),
        (Opcode.EVICT_KEY, {"key": KEY}),
        (Opcode.SEQNO_PERSISTENCE, {"extras": bytes(8)}),
        (Opcode.DISABLE_TRAFFIC, {}),
        (Opcode.STOP_PERSISTENCE, {}),
    ]
    for opcode, fields in later:
        expected = Status.NO_BUCKET if release == "7.2" else Status.NOT_SUPPORTED
        assert admin.call(opcode, **fields).status == expected


# -------------------------------------------------------------------------------------------------------- frame infos


@rule("KV-FRAME-01")
@pytest.mark.parametrize("framing", [b"\0", b"\x22\0\5", b"\x31t", b"\x3f\0" + bytes(15), b"\0\x22\0\5\x31t"])
@of_release("7.2")
def test_what_says_nothing_here_is_accepted_everywhere(peer: Peer, framing: bytes) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.SET, {"extras": STORE}),
        (Opcode.GET, {}),
        (Opcode.TOUCH, {"extras": bytes(4)}),
        (Opcode.INCREMENT, {"extras": COUNT}),
        (Opcode.GET_META, {}),
        (Opcode.DELETE, {}),
    ]
    for opcode, fields in cases:
        value = b"1" if opcode == Opcode.SET else b""
        assert peer.call(opcode, vbid=1, key=KEY, value=value, framing=framing, **fields).status == 0
    assert peer.call(Opcode.NOOP, framing=framing).status == 0


@rule("KV-FRAME-02", "KV-FRAME-07")
@pytest.mark.parametrize(
    ("framing", "status"),
    [
        (b"\x30", Status.EINVAL),
        (b"\x21\0", Status.EINVAL),
        (b"\x23\0\0\0", Status.EINVAL),
        (b"\x01b", Status.EINVAL),
        (b"\x60", Status.EINVAL),
        (b"\x64Rear", Status.EINVAL),
        (b"\x31", Status.EINVAL),
        (b"\x70", Status.UNKNOWN_FRAME_INFO),
        (b"\xe1\0", Status.UNKNOWN_FRAME_INFO),
    ],
)
@of_release("7.2")
def test_broken_and_unknown_frame_infos(peer: Peer, framing: bytes, status: int) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.NOOP, {}),
        (Opcode.GET, {"key": KEY}),
        (Opcode.SET, {"key": KEY, "extras": STORE}),
    ]
    for opcode, fields in cases:
        answer = peer.call(opcode, framing=framing, **fields)
        assert answer.status == status
        assert bool(answer.value) == (status == Status.EINVAL)
    assert peer.call(Opcode.NOOP, framing=b"\x64Read").status == 0


@rule("KV-FRAME-03")
def test_durability_is_checked_before_the_command_is_looked_at(peer: Peer) -> None:
    for framing in (b"\x11\0", b"\x11\4", b"\x13\1\0\0", b"\x13\1\xff\xff"):
        cases: list[tuple[Any, dict[str, Any]]] = [
            (Opcode.SET, {"extras": STORE}),
            (Opcode.SETQ, {"extras": STORE}),
            (Opcode.GET, {}),
        ]
        for opcode, fields in cases:
            answer = peer.call(opcode, vbid=1, key=KEY, framing=framing, **fields)
            assert answer.status == Status.DURABILITY_INVALID_LEVEL
            assert context_of(answer)
    for opcode, extras in (
        *((quiet, STORE) for quiet in (Opcode.SETQ, Opcode.ADDQ, Opcode.REPLACEQ)),
        *((quiet, b"") for quiet in (Opcode.DELETEQ, Opcode.APPENDQ, Opcode.PREPENDQ, Opcode.GET)),
        *((quiet, COUNT) for quiet in (Opcode.INCREMENTQ, Opcode.DECREMENTQ)),
        *((Opcode.GATQ, bytes(4)), (Opcode.SET_WITH_META, META), (Opcode.GET_LOCKED, b"")),
    ):
        answer = peer.call(opcode, vbid=1, key=KEY, extras=extras, framing=b"\x11\1")
        assert (answer.status, bool(context_of(answer))) == (Status.EINVAL, True), Opcode(opcode)
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE, framing=b"\x12\1\0").status == Status.EINVAL


@rule("KV-FRAME-04")
def test_which_commands_keep_the_expiration_on_request(peer: Peer) -> None:
    for opcode in COMMANDS.opcodes():
        command = COMMANDS.get(opcode)
        assert command is not None
        is_path = Opcode.SUBDOC_DICT_ADD <= opcode <= Opcode.SUBDOC_REPLACE_BODY_WITH_XATTR
        is_look_up = opcode in (Opcode.SUBDOC_MULTI_LOOKUP, Opcode.SUBDOC_GET_COUNT)
        keeping = {
            *(Opcode.SET, Opcode.SETQ, Opcode.REPLACE, Opcode.REPLACEQ, Opcode.APPEND, Opcode.APPENDQ),
            *(Opcode.PREPEND, Opcode.PREPENDQ, Opcode.INCREMENT, Opcode.INCREMENTQ, Opcode.DECREMENT),
            Opcode.DECREMENTQ,
        }
        assert command.shape.keeps_ttl == (opcode in keeping or (is_path and not is_look_up)), hex(opcode)
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.ADD, {"extras": STORE}),
        (Opcode.DELETE, {}),
        (Opcode.TOUCH, {"extras": bytes(4)}),
    ]
    for opcode, fields in cases:
        assert peer.call(opcode, vbid=1, key=KEY, framing=b"\x50", **fields).status == Status.NOT_SUPPORTED
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE, framing=b"\x51x").status == Status.EINVAL


@rule("KV-FRAME-06", "KV-FRAME-07")
def test_an_empty_user_and_an_empty_privilege_are_refused(peer: Peer) -> None:
    for framing, context in ((b"\x40", "Impersonated user must be set"), (b"\x60", "Privilege name must be set")):
        answer = peer.call(Opcode.GET, vbid=1, key=KEY, framing=framing)
        assert (answer.status, context_of(answer)) == (Status.EINVAL, context)


@rule("KV-FRAME-05")
@pytest.mark.parametrize("framing", [b"", b"\x50"])
def test_counting_and_joining_keep_the_expiration(node: SimulatedNode, peer: Peer, framing: bytes) -> None:
    node.set_doc(1, "k", b"1", expiration=1000)
    before = stored_mutation(node, KEY).expiration
    assert before
    for opcode, extras, value in (
        (Opcode.INCREMENT, COUNT, b""),
        (Opcode.APPEND, b"", b"1"),
        (Opcode.PREPEND, b"", b"1"),
    ):
        node.advance(3)
        assert peer.call(opcode, vbid=1, key=KEY, extras=extras, value=value, framing=framing).status == 0
        assert stored_mutation(node, KEY).expiration == before


def impersonation(name: bytes) -> bytes:
    """The framing extras of a request that is made for another user."""
    return bytes((0x40 | len(name),)) + name


@rule("KV-FRAME-06")
def test_a_request_for_another_user_has_that_users_rights(node: SimulatedNode, peer: Peer) -> None:
    node.set_doc(1, "k", b"v")
    as_writer, as_producer = impersonation(b"writer"), impersonation(b"producer")
    assert peer.call(Opcode.GET, vbid=1, key=KEY, framing=as_writer).value == b"v"
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE, framing=as_writer).status == 0
    refused = peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE, framing=as_producer)
    assert (refused.status, "Upsert" in str(context_of(refused))) == (Status.EACCESS, True)
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE).status == 0, "the next request is the user's own again"
    for name, status in ((b"nobody", Status.EACCESS), (b"^someone", Status.NOT_SUPPORTED), (b"^", Status.EINVAL)):
        answer = peer.call(Opcode.GET, vbid=1, key=KEY, framing=impersonation(name))
        assert (answer.status, bool(context_of(answer))) == (status, True)
    other = node.connect(user="writer").call(Opcode.GET, vbid=1, key=KEY, framing=as_producer)
    assert (other.status, bool(context_of(other))) == (Status.EACCESS, True)


# ------------------------------------------------------------------------------------------------- what a bucket does


@rule("KV-REQ-12")
@pytest.mark.parametrize(
    ("ratio", "value", "is_kept"),
    [(None, b"a" * 200, True), (None, b"0123456789abcdef", False), (b"50", b"a" * 200, False)],
)
def test_which_values_stay_compressed(
    node: SimulatedNode, peer: Peer, ratio: bytes | None, value: bytes, is_kept: bool
) -> None:
    def set_parameter(name: bytes, text: bytes) -> None:
        assert node.admin.call(Opcode.SET_PARAM, key=name, value=text, extras=b"\0\0\0\1").status == 0

    packed = snappy_compress(value)
    for mode, is_possible in ((b"off", False), (b"passive", True), (b"active", True)):
        set_parameter(b"compression_mode", mode)
        if ratio is not None:
            set_parameter(b"min_compression_ratio", ratio)
        assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE, value=packed, datatype=2).status == 0
        item = node.vbucket(1).log.get(KEY)
        assert item is not None
        assert item.value == (packed if is_possible and is_kept else value)


LOOKS_AT_TRAFFIC_FIRST = (
    *(Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.REPLACE),
    *(Opcode.SET_WITH_META, Opcode.DELETE_WITH_META),
)


@rule("KV-REQ-13")
@of_release("7.2", "8.0")
def test_while_traffic_is_switched_off(node: SimulatedNode, peer: Peer, release: str) -> None:
    node.set_doc(1, "k", b"1")
    node.set_doc(1, "gone", b"1")
    node.set_doc(1, "object", b"{}")
    for _ in range(2):
        assert node.admin.call(Opcode.DISABLE_TRAFFIC).status == 0
    assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b"1"
    assert peer.call(Opcode.GET_META, vbid=1, key=KEY).status == 0
    assert peer.call(Opcode.SUBDOC_GET_COUNT, vbid=1, key=KEY, extras=bytes(3)).status == Status.SUBDOC_PATH_MISMATCH
    assert peer.call(Opcode.DELETE, vbid=1, key=b"\0gone").status == 0
    cas = peer.call(Opcode.GET_LOCKED, vbid=1, key=KEY).cas
    assert peer.call(Opcode.UNLOCK, vbid=1, key=KEY, cas=cas).status == 0
    assert peer.call(Opcode.GET_LOCKED, vbid=1, key=b"\0none").status == Status.KEY_ENOENT
    cases: list[tuple[Any, dict[str, Any]]] = [
        (Opcode.GET_LOCKED, {}),
        (Opcode.UNLOCK, {"cas": 1}),
        (Opcode.GET_KEYS, {}),
    ]
    for opcode, more in cases:
        assert peer.call(opcode, vbid=FOREIGN_VBUCKET, key=KEY, **more).status == Status.NOT_MY_VBUCKET
    returning: dict[str, Any] = {"extras": struct.pack(">III", 1, 0, 0), "value": b"1"}
    assert peer.call(Opcode.RETURN_META, vbid=1, key=KEY, **returning).status == Status.TMPFAIL
    count: dict[str, Any] = {"extras": b"\0\1\0", "value": b"p1"}
    assert peer.call(Opcode.SUBDOC_DICT_UPSERT, vbid=1, key=b"\0object", **count).status == Status.TMPFAIL
    path = {"extras": b"\0\1\0\1", "value": b"p1"}
    for key, vbid in ((KEY, 1), (b"\0none", 1), (KEY, FOREIGN_VBUCKET)):
        refused: list[tuple[int, dict[str, Any]]] = [
            *((opcode, {"extras": STORE}) for opcode in (Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.SETQ)),
            *((opcode, {}) for opcode in (Opcode.APPEND, Opcode.PREPEND)),
            *((opcode, {"extras": COUNT}) for opcode in (Opcode.INCREMENT, Opcode.DECREMENT)),
            *((opcode, {"extras": META}) for opcode in (Opcode.SET_WITH_META, Opcode.DELETE_WITH_META)),
        ]
        if key != KEY or vbid != 1:
            refused += [
                (opcode, {}) for opcode in (Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GET_META, Opcode.DELETE)
            ]
            refused += [(opcode, {"extras": bytes(4)}) for opcode in (Opcode.TOUCH, Opcode.GAT)]
            refused += [(Opcode.SUBDOC_GET, {"extras": b"\0\1\0", "value": b"p"}), (Opcode.SUBDOC_DICT_UPSERT, path)]
        for opcode, fields in refused:
            answer = peer.call(opcode, vbid=vbid, key=key, **fields)
            if vbid == FOREIGN_VBUCKET and release != "7.2" and opcode not in LOOKS_AT_TRAFFIC_FIRST:
                assert answer.status == Status.NOT_MY_VBUCKET, Opcode(opcode)
            else:
                assert (answer.status, answer.value) == (Status.TMPFAIL, b""), (Opcode(opcode), key, vbid)
    for _ in range(2):
        assert node.admin.call(Opcode.ENABLE_TRAFFIC).status == 0
    assert peer.call(Opcode.SET, vbid=1, key=KEY, extras=STORE).status == 0


# ------------------------------------------------------------------------------------ commands for who runs a server

AUDIT, TIMER, CONFIG = bytes(4), b"\0", struct.pack(">qq", -1, 1)
OPERATOR: dict[int, dict[str, bytes | int]] = {
    0x23: {"key": b"nonsense"},
    0x24: {"key": b"nonsense", "value": b"1"},
    0x25: {"value": b"{}"},
    0x26: {},
    0x27: {"extras": AUDIT, "value": b"{}"},
    0x28: {},
    0x29: {"cas": 7},
    0x93: {"key": KEY},
    0x97: {},
    0xAF: {"key": b"list"},
    0xB4: {"extras": CONFIG, "value": b"{}"},
    0xF0: {},
    0xF1: {},
    0xF2: {},
    0xF3: {"extras": TIMER},
    0xF4: {"extras": b"\0" * 7 + b"\1"},
    0xF5: {},
    0xF6: {"value": b"{}"},
    0xF7: {},
    0xF8: {},
    0xFB: {"key": b"Read"},
}
FOR_ALL = {0xF3: Status.NOT_SUPPORTED, 0xFB: Status.SUCCESS}


@rule("KV-REQ-14")
@each_case("opcode", sorted(OPERATOR))
@of_release("7.2")
def test_commands_for_who_runs_a_server_are_checked_first(opcode: int) -> None:
    users = Users(SeededRandom())
    users.add("writer", "secret", frozenset(("Upsert",)))
    users.add("@admin", "secret")
    node = SimulatedNode(users=users)
    fields: dict[str, Any] = OPERATOR[opcode]
    stranger = node.connect(user="writer")
    broken: list[dict[str, Any]] = [{**fields, "extras": bytes(3)}, {**fields, "datatype": 2}]
    broken += [{**fields, "cas": 1}] if opcode not in (0x29, 0xB4, 0xF4) else []
    broken += [{**fields, "key": b""}] if "key" in fields else [{**fields, "key": b"k" * 252}]
    broken += [{**fields, "value": b""}] if "value" in fields and opcode != 0x24 else []
    for asked in broken:
        answer = stranger.call(opcode, vbid=1, **asked)
        assert (answer.status, bool(context_of(answer))) == (Status.EINVAL, True), asked
    allowed = stranger.call(opcode, vbid=1, **fields).status
    assert allowed == FOR_ALL.get(opcode, Status.EACCESS)
    assert node.admin.call(opcode, vbid=1, **fields).status != Status.UNKNOWN_COMMAND


@rule("KV-REQ-14")
@of_release("7.2", "8.0")
def test_what_single_commands_for_who_runs_a_server_ask(node: SimulatedNode, release: str) -> None:
    admin = node.admin
    assert admin.call(0x23, key=b"nonsense").status == Status.EINVAL
    assert admin.call(0x24, key=b"nonsense", value=b"1").status == Status.EINVAL
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"key": b"other", "value": b"{}"}, 'Key must be "define", "delete", "list", "tls"'),
        ({"key": b"other"}, "Request must include value"),
        ({"key": b"define"}, "Request must include value"),
        ({"key": b"list", "value": b"{}"}, "Request must not include value"),
    ]
    for fields, reason in cases:
        assert context_of(admin.call(0xAF, **fields)) == reason
    for epoch, revision, reason in (
        (1, 0, "Revision number must not be less than 1"),
        (0, 1, "Epoch must not be less than 1 (or -1)"),
        (-2, 1, "Epoch must not be less than 1 (or -1)"),
    ):
        answer = admin.call(0xB4, extras=struct.pack(">qq", epoch, revision), value=b"{}")
        text = reason if release == "7.2" else "Revision number must not be less than 1"
        assert (answer.status, context_of(answer)) == (Status.EINVAL, text)
    for opcode, extras in ((0xFC, bytes(9)), (0xFD, bytes(12))):
        answer = node.connect().call(opcode, extras=extras)
        assert (answer.status, context_of(answer)) == (Status.NOT_SUPPORTED, "Only available for unit tests")
        assert node.connect().call(opcode, extras=extras + b"x").status == Status.EINVAL


@rule("KV-REQ-15")
@of_release("7.2")
def test_the_control_token(node: SimulatedNode) -> None:
    admin = node.admin
    role: dict[str, Any] = {"vbid": 1, "extras": b"\1"}

    def asked(opcode: int, **fields: Any) -> tuple[int, int]:
        answer = admin.call(opcode, **fields)
        return answer.status, answer.cas

    assert asked(0xF5) == (0, 0xDEADBEEF)
    assert asked(0xF4, extras=bytes(8)) == (Status.EINVAL, 0)
    assert asked(0xF4, extras=struct.pack(">Q", 5), cas=4) == (Status.KEY_EEXISTS, 0xDEADBEEF)
    assert admin.call(Opcode.SET_VBUCKET, cas=0xDEADBEEF, **role).status == 0
    assert asked(0xF4, extras=struct.pack(">Q", 5), cas=0xDEADBEEF) == (0, 5)
    assert asked(0xF4, extras=struct.pack(">Q", 6)) == (0, 6)
    assert asked(0xF5) == (0, 6)
    for cas, status in ((0xDEADBEEF, Status.KEY_EEXISTS), (6, 0), (0, 0)):
        assert admin.call(Opcode.SET_VBUCKET, cas=cas, **role).status == status
    assert admin.call(Opcode.DEL_VBUCKET, vbid=1, cas=5).status == Status.KEY_EEXISTS
    assert admin.call(Opcode.DEL_VBUCKET, vbid=1, cas=6).status == 0


@rule("KV-REQ-16")
@of_release("7.2", "8.0")
def test_a_key_is_evicted(tmp_path: Path, release: str) -> None:
    node = SimulatedNode(path=tmp_path)
    admin = node.admin

    def evict(key: bytes = KEY, vbid: int = 1) -> tuple[int, bytes]:
        answer = admin.call(Opcode.EVICT_KEY, vbid=vbid, key=key)
        return answer.status, answer.value

    missing, dirty = (b"", b"") if release == "7.2" else (b"Not found.", b"Can't eject: Dirty object.")
    assert evict()[0] == Status.KEY_ENOENT
    assert missing in evict()[1]
    node.set_doc(1, "k", b"2")
    assert evict()[0] == Status.KEY_EEXISTS
    assert dirty in evict()[1]
    node.flush()
    assert evict() == (0, b"Ejected.")
    assert evict(vbid=FOREIGN_VBUCKET)[0] == Status.NOT_MY_VBUCKET
    assert evict(key=LEB_9 + b"k")[0] == Status.UNKNOWN_COLLECTION
    assert admin.call(Opcode.GET, vbid=1, key=KEY).value == b"2"
