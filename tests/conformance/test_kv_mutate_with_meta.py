"""MUTATE_WITH_META of 8.5, from its page and the server's files: no server was heard."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from dcpstream.model import BucketSettings, ConflictResolution
from dcpstream.wire import Datatype, Feature, Frame, Opcode, Status
from dcpstream.wire.values import encode_xattrs, snappy_compress
from dcpstream_node.testing.simulation import START_UNIX_S, USUAL_FEATURES, Peer, SimulatedNode
from tests.kit.cases import each_case
from tests.kit.rules import rule

KEY = b"\0k"
MUTATE = Opcode.MUTATE_WITH_META
REGENERATE, SKIP, EXPIRATION, BY_TIME = 4, 8, 16, 2
PLACE = b"0x0000000000000000"
XATTR = int(Datatype.XATTR)


@pytest.fixture
def node() -> SimulatedNode:
    return SimulatedNode(release="8.5")


@pytest.fixture
def peer(node: SimulatedNode) -> Peer:
    return node.connect()


def members(**changes: Any) -> dict[str, Any]:
    """The JSON of a set; a member that is None is left out."""
    whole = {"command": "set", "cas": "0x1234", "flags": 7, "expiration": 0, "rev_seqno": 5, "options": 0, **changes}
    return {name: value for name, value in whole.items() if value is not None}


def mutate(peer: Peer, document: bytes = b"v", *, datatype: int = 0, **changes: Any) -> Frame:
    meta = json.dumps(members(**changes)).encode()
    extras = struct.pack(">I", len(meta))
    return peer.call(MUTATE, vbid=1, key=KEY, value=document + meta, datatype=datatype, extras=extras)


def context_of(answer: Frame) -> str:
    return str(json.loads(answer.value)["error"]["context"])


def meta_of(peer: Peer) -> tuple[int, int, int, int]:
    """Whether it is deleted, flags, time and revision."""
    answer = peer.call(Opcode.GET_META, vbid=1, key=KEY)
    assert answer.status == 0
    deleted, flags, time, rev = struct.unpack(">IIIQ", answer.extras[:20])
    return deleted, flags, time, rev


# ------------------------------------------------------------------------------------------------------ what it does


@rule("KV-MWM-01")
def test_it_came_with_85() -> None:
    old = SimulatedNode(release="8.0").connect()
    assert mutate(old).status == Status.UNKNOWN_COMMAND
    for release, is_granted in (("8.0", False), ("8.5", True)):
        peer = SimulatedNode(release=release).connect()
        granted = peer.hello((*USUAL_FEATURES, Feature.MUTATE_WITH_META)).value
        assert (struct.pack(">H", Feature.MUTATE_WITH_META) in granted) == is_granted


@rule("KV-MWM-02")
def test_a_version_with_its_metadata(node: SimulatedNode, peer: Peer) -> None:
    answer = mutate(peer, b'{"a":1}', flags="0xdeadbeef", expiration=START_UNIX_S + 1000, rev_seqno="0x9")
    assert (answer.status, answer.cas, answer.value) == (0, 0x1234, b"")
    vbuuid, seqno = struct.unpack(">QQ", answer.extras)
    assert (vbuuid, seqno) == (node.vbucket(1).vbuuid, 1)
    assert meta_of(peer) == (0, 0xDEADBEEF, START_UNIX_S + 1000, 9)
    found = peer.call(Opcode.GET, vbid=1, key=KEY)
    assert (found.value, found.cas, found.datatype) == (b'{"a":1}', 0x1234, Datatype.JSON)


@rule("KV-MWM-02")
def test_a_version_without_a_revision_has_the_first(peer: Peer) -> None:
    assert mutate(peer, rev_seqno=None).status == 0
    assert meta_of(peer)[3] == 1


@rule("KV-MWM-02")
def test_conflicts_and_existence_are_as_with_the_older_commands(peer: Peer) -> None:
    assert mutate(peer, rev_seqno=5).status == 0
    assert mutate(peer, rev_seqno=4).status == Status.KEY_EEXISTS
    assert mutate(peer, rev_seqno=4, options=SKIP).status == 0
    assert mutate(peer, rev_seqno=9, command="add").status == Status.KEY_EEXISTS
    assert mutate(peer, rev_seqno=9, cas=0x99).status == 0, "the CAS of the JSON, not the header's"
    meta = json.dumps(members(rev_seqno=10)).encode()
    fields: dict[str, Any] = {"vbid": 1, "key": KEY, "value": b"v" + meta, "extras": struct.pack(">I", len(meta))}
    assert peer.call(MUTATE, **fields, cas=0x55).status == Status.KEY_EEXISTS
    assert mutate(peer, command="delete", rev_seqno=11, document=b"").status == 0
    assert mutate(peer, command="add", rev_seqno=12).status == 0
    assert peer.call(MUTATE, **{**fields, "vbid": 99}).status == Status.NOT_MY_VBUCKET


@rule("KV-MWM-02")
@pytest.mark.parametrize("cas", [0, "0xffffffffffffffff"])
def test_a_cas_that_none_can_have(peer: Peer, cas: object) -> None:
    meta = json.dumps(members(cas=cas)).encode()
    extras = struct.pack(">I", len(meta))
    answer = peer.call(MUTATE, vbid=1, key=b"\0x", value=b"v" + meta, extras=extras)
    assert answer.status == Status.CAS_VALUE_INVALID


@rule("KV-MWM-02")
def test_a_compressed_request_is_inflated_whole(peer: Peer) -> None:
    meta = json.dumps(members()).encode()
    value = snappy_compress(b"v" * 1000 + meta)
    extras = struct.pack(">I", len(meta))
    assert peer.call(MUTATE, vbid=1, key=KEY, value=value, datatype=Datatype.SNAPPY, extras=extras).status == 0
    assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b"v" * 1000


@rule("KV-MWM-02")
def test_attributes_of_the_system_have_their_limit(peer: Peer) -> None:
    value = encode_xattrs({"_s": b'"%s"' % (b"x" * (1 << 20))})
    assert mutate(peer, value, datatype=XATTR).status == Status.XATTR_EINVAL


# ------------------------------------------------------------------------------------------------- what is refused


@rule("KV-MWM-03")
@pytest.mark.parametrize("extras", [b"", bytes(3), bytes(5), bytes(8)])
def test_extras_of_another_length(peer: Peer, extras: bytes) -> None:
    answer = peer.call(MUTATE, vbid=1, key=KEY, value=json.dumps(members()).encode(), extras=extras)
    assert (answer.status, context_of(answer)) == (Status.EINVAL, "Invalid extras length")


@rule("KV-MWM-03")
def test_metadata_that_are_longer_than_the_value(peer: Peer) -> None:
    for size, status in ((len(b"{}") + 1, Status.EINVAL), (0, Status.EINVAL)):
        answer = peer.call(MUTATE, vbid=1, key=KEY, value=b"{}", extras=struct.pack(">I", size))
        assert answer.status == status
    meta = json.dumps(members()).encode()
    assert peer.call(MUTATE, vbid=1, key=KEY, value=meta, extras=struct.pack(">I", len(meta))).status == 0
    assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b"", "the whole value was the metadata"


@rule("KV-MWM-03")
@pytest.mark.parametrize(
    "text", [b"", b"x", b"[]", b"1", b'{"command":"set"', b"\xff", b'{"command":NaN}', b"[" * 100_000]
)
def test_metadata_that_are_no_object(peer: Peer, text: bytes) -> None:
    answer = peer.call(MUTATE, vbid=1, key=KEY, value=b"v" + text, extras=struct.pack(">I", len(text)))
    assert answer.status == Status.EINVAL
    assert "Failed to validate input" in context_of(answer)


@rule("KV-MWM-03")
@pytest.mark.parametrize(
    "changes",
    [
        *({name: None} for name in ("command", "flags", "expiration", "options")),
        *({"command": value} for value in ("upsert", "SET", 1, ["set"])),
        *({"flags": value} for value in ("", "x", "0x", "0xg", "4294967296", "-1", True, [], {}, "1" * 5000)),
        {"cas": "0x10000000000000000"},
        {"rev_seqno": "18446744073709551616"},
        {"options": 12, "cas": None, "cas_offsets": 5},
        {"options": 12, "cas": None, "seqno_offsets": ["5"]},
    ],
)
def test_members_that_are_missing_or_wrong(peer: Peer, changes: dict[str, Any]) -> None:
    answer = mutate(peer, **changes)
    assert answer.status == Status.EINVAL
    assert "Failed to validate input" in context_of(answer)


@rule("KV-MWM-03")
def test_a_number_that_no_float_can_hold(peer: Peer) -> None:
    text = json.dumps(members(flags=0)).replace('"flags": 0', '"flags": 1e999').encode()
    answer = peer.call(MUTATE, vbid=1, key=KEY, value=b"v" + text, extras=struct.pack(">I", len(text)))
    assert answer.status == Status.EINVAL
    assert "flags must be a number" in context_of(answer)


@rule("KV-MWM-03")
@pytest.mark.parametrize(
    ("value", "flags"),
    [("12", 12), ("12x", 12), ("0xFf", 255), ("0x1ffffffff", 0xFFFFFFFF), (-1, 0xFFFFFFFF), (1.9, 1)],
)
def test_numbers_as_the_server_reads_them(peer: Peer, value: object, flags: int) -> None:
    assert mutate(peer, flags=value).status == 0
    assert meta_of(peer)[1] == flags


@rule("KV-MWM-04")
@pytest.mark.parametrize(
    ("changes", "is_right"),
    [
        ({"cas": None}, False),
        ({"options": REGENERATE | SKIP}, False),
        ({"options": REGENERATE | SKIP, "cas": None}, True),
        ({"options": REGENERATE, "cas": None}, False),
        ({"options": BY_TIME}, False),
        ({"cas_offsets": [8]}, False),
        ({"seqno_offsets": [8]}, False),
        ({"options": 0x80}, True),
    ],
)
def test_options_that_contradict(peer: Peer, changes: dict[str, Any], is_right: bool) -> None:
    answer = mutate(peer, encode_xattrs({"_s": b'"%s"' % PLACE}), datatype=XATTR, **changes)
    assert (answer.status, bool(answer.value)) == ((0, False) if is_right else (Status.EINVAL, True))


@rule("KV-MWM-04")
@each_case("name", ["cas_offsets", "seqno_offsets"])
def test_offsets_need_a_cas_that_the_server_makes(peer: Peer, name: str) -> None:
    answer = mutate(peer, encode_xattrs({"_s": b'"%s"' % PLACE}), datatype=XATTR, **{name: [8]})
    assert b"cannot be specified when cas is set" in answer.value


@rule("KV-MWM-04")
def test_options_of_a_bucket_that_resolves_by_time() -> None:
    settings = BucketSettings(conflict_resolution=ConflictResolution.LWW)
    peer = SimulatedNode(release="8.5", settings=settings).connect()
    assert mutate(peer).status == Status.EINVAL
    assert mutate(peer, options=BY_TIME).status == 0
    assert mutate(peer, options=REGENERATE | SKIP, cas=None).status == 0


# ------------------------------------------------------------------------------------------------ CAS and seqno inside


def document() -> tuple[bytes, int, int]:
    """A document, and the offsets of two places in its attributes."""
    value = encode_xattrs({"_sys": b'{"cas":"%s"}' % PLACE, "user": b'{"seqno":"%s"}' % PLACE}, b'{"b":1}')
    first = value.index(PLACE)
    return value, first, value.index(PLACE, first + 1)


def xattr(peer: Peer, path: bytes) -> str:
    extras = struct.pack(">HB", len(path), 4)
    answer = peer.call(Opcode.SUBDOC_GET, vbid=1, key=KEY, value=path, extras=extras)
    assert answer.status == 0
    return str(json.loads(answer.value))


@rule("KV-MWM-05")
def test_the_document_has_its_own_cas_and_seqno(node: SimulatedNode, peer: Peer) -> None:
    node.fill(1, 41)
    value, cas_at, seqno_at = document()
    places: dict[str, Any] = {"cas_offsets": [cas_at], "seqno_offsets": [seqno_at]}
    answer = mutate(peer, value, datatype=XATTR, cas=None, options=REGENERATE | SKIP, **places)
    assert answer.status == 0
    swapped = answer.cas.to_bytes(8, "little").hex()
    assert (xattr(peer, b"_sys.cas"), xattr(peer, b"user.seqno")) == (f"0x{swapped}", f"0x{42:016x}")
    assert peer.call(Opcode.GET, vbid=1, key=KEY).value == b'{"b":1}'


@rule("KV-MWM-05")
def test_offsets_that_are_not_inside_the_attributes(peer: Peer) -> None:
    value, cas_at, _ = document()
    section = 4 + int.from_bytes(value[:4], "big")
    changes: dict[str, Any] = {"cas": None, "options": REGENERATE | SKIP, "document": value, "datatype": XATTR}
    for name in ("cas_offsets", "seqno_offsets"):
        for offset in (section - 17, section, len(value), -1, 1 << 70):
            answer = mutate(peer, **{**changes, name: [cas_at, offset]})
            assert (answer.status, "out of bounds" in context_of(answer)) == (Status.EINVAL, True), offset
        for offset in (0, 5, cas_at + 1):
            assert "garble" in context_of(mutate(peer, **{**changes, name: [offset]})), offset
    plain: dict[str, Any] = {"cas": None, "options": REGENERATE | SKIP, "cas_offsets": [4]}
    assert "empty documents" in context_of(mutate(peer, b"", **plain))
    assert "without xattr" in context_of(mutate(peer, b"x" * 50, **plain))


@rule("KV-MWM-05")
def test_attributes_that_reach_into_the_metadata(peer: Peer) -> None:
    meta = json.dumps(members()).encode()
    value = (8).to_bytes(4, "big") + meta
    answer = peer.call(MUTATE, vbid=1, key=KEY, value=value, datatype=XATTR, extras=struct.pack(">I", len(meta)))
    assert answer.status == Status.XATTR_EINVAL


# ------------------------------------------------------------------------------------------------------------ deletions


@rule("KV-MWM-06")
def test_a_deletion(node: SimulatedNode, peer: Peer) -> None:
    node.set_doc(1, "k", b"v")
    assert mutate(peer, b"", command="delete", rev_seqno=9, options=EXPIRATION).status == 0
    deleted, _, _, rev = meta_of(peer)
    assert (deleted, rev) == (1, 9)
    (end,) = [
        frame
        for frame in node.producer(flags=0x25, controls=[(b"enable_expiry_opcode", b"true")]).stream(1)
        if frame.opcode == Opcode.DCP_EXPIRATION
    ]
    assert end.key.endswith(b"k")


@rule("KV-MWM-06")
def test_a_deletion_keeps_attributes_of_the_system_only(peer: Peer) -> None:
    system, user = encode_xattrs({"_s": b"1"}), encode_xattrs({"_s": b"1", "u": b"1"})
    assert mutate(peer, system, command="delete", datatype=XATTR).status == 0
    assert meta_of(peer)[0] == 1
    for value, datatype, why in (
        (b"v", 0, "cannot have a body"),
        (system + b"v", XATTR, "cannot have a body"),
        (user, XATTR, "user-xattrs is not allowed"),
    ):
        answer = mutate(peer, value, command="delete", datatype=datatype, rev_seqno=20)
        assert (answer.status, why in context_of(answer)) == (Status.EINVAL, True)
