"""Rules of malformed packets: every command's shape, and the packets that were sent to a real server."""

from __future__ import annotations

import json
import re
import struct
from typing import Any

import pytest

from dcpstream.errors import FieldError
from dcpstream.model import BucketSettings
from dcpstream.wire import LAYOUTS, Frame, Kind, Magic, Opcode, Status, decode_frame, decode_message
from dcpstream.wire.keys import leb128_decode, leb128_encode
from dcpstream.wire.layout import Group, Layout, Part
from dcpstream.wire.messages import opcodes_of
from dcpstream.wire.release import release_of
from dcpstream.wire.values import (
    decode_failover_log,
    decode_vbucket_seqnos,
    decode_xattrs,
    encode_xattrs,
    snappy_compress,
    snappy_uncompress,
)
from dcpstream_node.engine import ALL_PRIVILEGES, COMMANDS, Users
from dcpstream_node.engine.commands import Command
from dcpstream_node.engine.subdocument import KINDS as SUBDOCUMENT_KINDS
from dcpstream_node.testing.simulation import Peer, SeededRandom, SimulatedNode
from tests.kit import recorded
from tests.kit.cases import each_case
from tests.kit.rules import of_release, rule
from tests.kit.streams import WITHOUT_XERROR

ENDING = (Opcode.QUIT, Opcode.QUITQ)
NEWEST = "7.6"
"""The release that knows every command."""
KNOWN = COMMANDS.known_to(release_of(NEWEST))
SHAPES = [
    (opcode, command)
    for opcode in KNOWN.opcodes()
    if opcode not in ENDING and (command := KNOWN.get(opcode)) and command.shape.refused is None
]


def well_formed(command: Command) -> dict[str, Any]:
    """The smallest request of a command's shape."""
    shape = command.shape
    return {
        "extras": bytes(shape.extras[0]) if shape.extras else b"",
        "key": b"\0k" if shape.key is Part.REQUIRED else b"",
        "value": b"v" if shape.value is Part.REQUIRED else b"",
        "cas": int(shape.cas is Part.REQUIRED),
    }


OF_ENGINE = opcodes_of(Group.OF_ENGINE)


def acceptable(opcode: int, command: Command) -> dict[str, Any]:
    """A request of a command's shape in which the command finds nothing wrong either."""
    fields = well_formed(command)
    match opcode:
        case Opcode.OBSERVE_SEQNO:
            fields["value"] = bytes(8)
        case Opcode.GET_RANDOM_KEY:
            fields["extras"] = bytes(4)
        case Opcode.IFCONFIG:
            fields["key"] = b"list"
        case Opcode.SET_CLUSTER_CONFIG:
            fields["extras"] = struct.pack(">qq", 1, 1)
        case Opcode.SET_CTRL_TOKEN:
            fields["extras"] = struct.pack(">Q", 1)
        case Opcode.RETURN_META:
            fields["extras"] = b"\0\0\0\1" + bytes(8)
        case Opcode.SUBDOC_MULTI_LOOKUP:
            fields["value"] = struct.pack(">BBH", Opcode.SUBDOC_GET, 0, 1) + b"p"
        case Opcode.SUBDOC_MULTI_MUTATION:
            fields["value"] = struct.pack(">BBHI", Opcode.SUBDOC_DELETE, 0, 1, 0) + b"p"
        case _ if opcode >= Opcode.SUBDOC_GET and opcode in SUBDOCUMENT_KINDS:
            kind = SUBDOCUMENT_KINDS[opcode]
            fields["extras"] = struct.pack(">HB", 1, kind.needed)
            fields["value"] = b"p1" if kind.has_value else b"p"
    return fields


def wrong_extras(lengths: tuple[int, ...]) -> str:
    if lengths == (0,):
        return "Request must not include extras"
    if len(lengths) == 1:
        return f"Request must include extras of length {lengths[0]}"
    return f"Request extras must be of length {' or '.join(map(str, lengths))}"


def faults(command: Command) -> list[tuple[dict[str, Any], str]]:
    """Requests that are wrong in one way, and what the answer says of them."""
    base, shape = well_formed(command), command.shape
    found: list[tuple[dict[str, Any], str]] = []
    if shape.extras and not command.own_extras:
        lengths = {length + step for length in shape.extras for step in (-1, 1)} - set(shape.extras) - {-1}
        found += [({**base, "extras": bytes(length)}, wrong_extras(shape.extras)) for length in sorted(lengths)]
    if shape.key is Part.NONE:
        found.append(({**base, "key": b"k"}, "Request must not include key"))
    elif not command.is_document:
        found.append(({**base, "key": b"k" * 252}, "Key length exceeds 251"))
    if shape.key is Part.REQUIRED:
        found.append(({**base, "key": b""}, "Request must include key"))
    if shape.value is Part.NONE:
        found.append(({**base, "value": b"v"}, "Request must not include value"))
    if shape.value is Part.REQUIRED:
        found.append(({**base, "value": b""}, "Request must include value"))
    found += [
        ({**base, "datatype": bit}, "Request datatype invalid") for bit in (1, 2, 4, 8) if not bit & shape.datatypes
    ]
    if shape.cas is Part.NONE:
        found.append(({**base, "cas": 1}, "Request CAS must not be set"))
    return found


@rule("HDR-18", "HDR-22")
@each_case(("opcode", "command"), SHAPES, ids=[f"0x{opcode:02x}" for opcode, _ in SHAPES])
def test_every_command_refuses_what_has_not_its_shape(opcode: int, command: Command) -> None:
    peer = SimulatedNode(release=NEWEST).connect(user="@admin")
    for fields, context in faults(command):
        answer = peer.call(opcode, **fields)
        assert answer.status == Status.EINVAL, (fields, answer)
        assert answer.datatype == 1
        assert json.loads(answer.value) == {"error": {"context": context}}, fields
        assert (answer.extras, answer.key, answer.cas) == (b"", b"", 0)
    if command.shape.cas is not Part.NONE and opcode not in (Opcode.ADD, Opcode.ADDQ):  # there is none to compare with
        frames = peer.send(opcode, **{**well_formed(command), "cas": 1})
        assert not any(b"CAS must not" in frame.value for frame in frames)
    if command.shape.key is not Part.NONE and not command.is_document:
        frames = peer.send(opcode, **{**well_formed(command), "key": b"k" * 250})
        assert not any(b"Key length" in frame.value for frame in frames)
    for bit in (1, 2, 4):
        if bit & command.shape.datatypes:
            frames = peer.send(opcode, datatype=bit, **well_formed(command))
            assert not any(b"datatype" in frame.value for frame in frames)
    assert peer.closed == (opcode == Opcode.SET_PARAM), "of no group"


@rule("HDR-07", "HDR-08", "HDR-10", "HDR-11")
@each_case(("opcode", "command"), SHAPES, ids=[f"0x{opcode:02x}" for opcode, _ in SHAPES])
def test_every_command_refuses_frame_infos_that_are_not_for_it(opcode: int, command: Command) -> None:
    peer = SimulatedNode(release=NEWEST).connect(user="@admin")
    for framing, info_id, status in (
        (b"\x70", 7, Status.UNKNOWN_FRAME_INFO),
        (b"\xf0\x00", 15, Status.UNKNOWN_FRAME_INFO),
        (b"\x30", 3, Status.EINVAL),
        (b"\x01x", 0, Status.EINVAL),
        (b"\x12\x01\x00", 1, Status.EINVAL),
        (b"\x10", 1, Status.EINVAL),
        (b"\x21\x00", 2, Status.EINVAL),
        (b"\x51\x00", 5, Status.EINVAL),
        (b"\x22\x00", 2, Status.EINVAL),
    ):
        assert peer.call(opcode, framing=framing, **well_formed(command)).status == status, (framing, info_id)
    for is_taken, framing, status in (
        (command.shape.durable, b"\x11\x01", Status.EINVAL),
        (command.shape.keeps_ttl, b"\x50", Status.NOT_SUPPORTED),
    ):
        if not is_taken:
            answer = peer.call(opcode, framing=framing, **well_formed(command))
            assert answer.status == status
            assert b"not support" in answer.value
    assert not peer.closed


# --------------------------------------------------------------------------------------------- packets once recorded


def replayed(name: str, release: str) -> tuple[list[str], int]:
    """Differences between a recorded scenario and our node, and how many answers were the same."""
    users = Users(SeededRandom())
    users.add("@admin", "password")
    users.add("readonly", "password", frozenset(("DcpProducer", "Read")))
    users.add("nodcp", "password", frozenset(("Read", "Upsert", "Insert", "Delete")))
    # With settings, so that it is none of the tests on servers: there the judge plays the recordings.
    node = SimulatedNode(vbuckets=1024, users=users, settings=BucketSettings())
    peers: dict[str, Peer] = {}
    due: dict[str, list[Frame]] = {}
    differences: list[str] = []
    same = 0
    for line in recorded.server_transcript(name, release):
        label = line.connection
        if line.event == "connect":
            peers[label] = node.connect(user=None, features=())
            due[label] = []
        elif line.event == "client_closed" and label in peers:
            peers[label].disconnect()
        elif line.event == "closed":
            node.pump()
            differences += [] if peers[label].closed else [f"{line}: not closed"]
        elif line.direction == "c2s" and not peers[label].closed:
            due[label] += peers[label].send_bytes(line.frame)
        elif line.direction == "s2c":
            due[label] += peers[label].take()
            if not due[label]:
                differences.append(f"{line}: nothing came, but {line.note}")
                continue
            found, wanted = due[label].pop(0), decode_frame(line.frame)
            if alike(found) == alike(wanted):
                same += 1
            else:
                differences.append(f"{line}: {found}, not {line.note}")
    return differences, same


def alike(frame: Frame) -> bytes:
    """A frame's bytes without what chance or the clock puts into it."""
    is_log = frame.opcode in (Opcode.DCP_GET_FAILOVER_LOG, Opcode.GET_FAILOVER_LOG, Opcode.DCP_STREAM_REQ)
    value = bytes(len(frame.value)) if is_log and not frame.status else frame.value
    value = re.sub(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", b"a reference", value)
    extras = bytes(len(frame.extras)) if frame.opcode == Opcode.SET else frame.extras
    head = (frame.magic, frame.opcode, frame.datatype, frame.vbid, frame.opaque)
    return repr((*head, frame.framing, extras, frame.key, value)).encode()


@rule("HDR-18", "HDR-22", "HDR-23", "HDR-24", "HDR-17")
@of_release("7.2", "8.0")
def test_recorded_malformed_packets_are_answered_as_recorded(release: str) -> None:
    differences, same = replayed("s23", release)
    assert differences == []
    assert same > 300


@rule("CTL-01", "CTL-04", "CTL-05", "CTL-06", "CTL-30")
@pytest.mark.parametrize(("name", "least"), [("s03", 380), ("s04", 180)])
@of_release("7.2", "8.0")
def test_recorded_controls_are_answered_as_recorded(name: str, least: int, release: str) -> None:
    differences, same = replayed(name, release)
    assert differences == []
    assert same > least


@rule("OPEN-03", "OPEN-06", "OPEN-10", "OPEN-11", "OPEN-13")
@of_release("7.2", "8.0")
def test_recorded_opens_are_answered_as_recorded(release: str) -> None:
    differences, same = replayed("s02", release)
    assert differences == []
    assert same > 150


# ----------------------------------------------------------------------------------------------- the codec is strict


def smallest(layout: Layout) -> Frame:
    """A frame of this shape with nothing but zeros and what must be there."""
    magic = Magic.REQUEST if layout.kind is Kind.REQUEST else Magic.RESPONSE
    extras, value = bytearray(layout.extras_bytes), bytearray(layout.value_bytes)
    for item in layout.fields:
        if item.fixed is not None:
            part = extras if item.place == "extras" else value
            part[item.offset : item.offset + item.width] = item.fixed.to_bytes(item.width, "big")
    key = b"k" if layout.key is Part.REQUIRED else b""
    rest = b"r" if layout.rest is Part.REQUIRED else b""
    status = layout.statuses[0] if layout.statuses else 0
    return Frame(magic, layout.opcode, 0, status, 1, 0, b"", bytes(extras), key, bytes(value) + rest)


@rule("HDR-02", "HDR-18")
@each_case("layout", LAYOUTS, ids=[layout.name for layout in LAYOUTS])
def test_a_message_of_another_shape_is_kept_as_bytes_and_refused_if_asked(layout: Layout) -> None:
    frame = smallest(layout)
    message = decode_message(frame, strict=True)
    assert message.encode() == frame.encode()
    broken = [Frame(*head(frame), frame.framing, frame.extras + b"xyzxyzxyz" * 9, frame.key, frame.value)]
    if layout.key is Part.NONE:
        broken.append(Frame(*head(frame), frame.framing, frame.extras, b"k", frame.value))
    if layout.key is Part.REQUIRED:
        broken.append(Frame(*head(frame), frame.framing, frame.extras, b"", frame.value))
    if layout.rest is Part.NONE:
        broken.append(Frame(*head(frame), frame.framing, frame.extras, frame.key, frame.value + b"x"))
    if layout.rest is Part.REQUIRED or layout.value_bytes:
        broken.append(Frame(*head(frame), frame.framing, frame.extras, frame.key, frame.value[:-1]))
    for other in broken:
        raw = decode_message(other)
        assert type(raw).__name__.startswith("Raw")
        assert raw.encode() == other.encode()
        with pytest.raises(FieldError):
            decode_message(other, strict=True)


def head(frame: Frame) -> tuple[int, int, int, int, int, int]:
    return frame.magic, frame.opcode, frame.datatype, frame.vbid, frame.opaque, frame.cas


@rule("HDR-05")
def test_framing_extras_need_their_magic_and_have_255_bytes() -> None:
    with pytest.raises(FieldError, match="magic"):
        Frame(0x80, 0x52, 0, 0, 0, 0, b"\x22\0\1", b"", b"", b"").encode()
    with pytest.raises(FieldError, match="255"):
        Frame(0x08, 0x52, 0, 0, 0, 0, b"f" * 256, b"", b"", b"").encode()
    with pytest.raises(FieldError, match="255"):
        Frame(0x08, 0x52, 0, 0, 0, 0, b"", b"", b"k" * 256, b"").encode()
    longest = Frame(0x08, 0x52, 0, 0, 0, 0, b"f" * 255, b"", b"k" * 255, b"")
    assert decode_frame(longest.encode()) == longest
    assert Frame(0x08, 0x52, 0, 0, 0, 0, b"", b"", b"", b"").encode()[0] == 0x08


@rule("FOL-02")
@each_case("length", [0, 1, 15, 17, 31])
def test_a_failover_log_has_whole_entries(length: int) -> None:
    with pytest.raises(FieldError):
        decode_failover_log(bytes(length))
    assert len(decode_failover_log(bytes(7) + b"\1" + bytes(8))) == 1


@rule("HDR-02")
@each_case("length", [1, 9, 11])
def test_a_list_of_seqnos_has_whole_entries(length: int) -> None:
    with pytest.raises(FieldError):
        decode_vbucket_seqnos(bytes(length))
    assert decode_vbucket_seqnos(b"\0\5" + bytes(7) + b"\x09") == [(5, 9)]
    assert decode_vbucket_seqnos(b"") == []


@rule("XAT-01")
@each_case(
    "value",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\1",
        b"\0\0\0\3abc",
        b"\0\0\0\7\0\0\0\4a\0b",
        b"\0\0\0\x08\0\0\0\4a\0bX",
        b"\0\0\0\x08\0\0\0\4abc\0",
        b"\0\0\0\x08\0\0\0\4\0bc\0",
        b"\0\0\0\x08\0\0\0\5a\0b\0c",
        b"\0\0\0\x0a\0\0\0\4a\0b\0\0\0",
    ],
)
def test_a_broken_section_of_xattrs_is_refused(value: bytes) -> None:
    with pytest.raises(FieldError):
        decode_xattrs(value)
    assert decode_xattrs(encode_xattrs({"a": b"1", "_b": b"2"}, b"body")) == ({"a": b"1", "_b": b"2"}, b"body")
    assert decode_xattrs(bytes(4)) == ({}, b"")


@rule("SEC-01", "SEC-04", "SEC-08", "SEC-11", "OPEN-14")
@of_release("7.2", "8.0")
def test_recorded_logins_are_answered_as_recorded(release: str) -> None:
    differences, same = replayed("s01", release)
    if release == "8.0":  # the first HELLO asks for all there is: what is not done here is not granted
        assert differences.pop(0).startswith("s01_hello_sasl_select:6:")
    assert differences == []
    assert same > 40


@rule("SEC-01", "OPEN-25")
@of_release("7.2", "8.0")
def test_recorded_hellos_are_answered_as_recorded(release: str) -> None:
    differences, same = replayed("s34", release)
    # The first asks for all there is: what is not done here is not granted.
    assert [text for text in differences if "every feature" not in text and ":4:" not in text] == []
    assert same > 25


# ------------------------------------------------------------------------------------ buckets and rights, by the table


def users_without(privilege: str) -> Users:
    """A user `some` with every privilege but one."""
    users = Users(SeededRandom())
    users.add("some", "secret", ALL_PRIVILEGES - {privilege})
    return users


@rule("DIS-10", "SEC-01")
@each_case(("opcode", "command"), SHAPES, ids=[f"0x{opcode:02x}" for opcode, _ in SHAPES])
def test_every_command_that_needs_a_bucket_or_a_privilege_says_so(opcode: int, command: Command) -> None:
    fields = acceptable(opcode, command)
    if command.needs_bucket:
        node = SimulatedNode(release=NEWEST)
        status = node.connect(user="@admin", bucket=None).call(opcode, **fields).status
        assert status == (Status.NOT_SUPPORTED if opcode in OF_ENGINE else Status.NO_BUCKET)
        plain = node.connect(user="@admin", bucket=None, features=WITHOUT_XERROR)
        assert bool(plain.send(opcode, **fields)) == (status == Status.NOT_SUPPORTED)
        assert plain.closed == (status == Status.NO_BUCKET)
    for privilege in command.privilege.split():
        if "|" in privilege:
            continue  # one of several is enough
        node = SimulatedNode(users=users_without(privilege), release=NEWEST)
        peer = node.connect(user="some")
        assert peer.call(opcode, **fields).status == Status.EACCESS
        assert not peer.closed
        plain = node.connect(user="some", features=WITHOUT_XERROR)
        assert plain.send(opcode, **fields) == []
        assert plain.closed


@rule("COL-02", "COL-03")
@each_case(
    ("number", "data"),
    [(0, "00"), (1, "01"), (0x7F, "7f"), (0x80, "8001"), (0xCAFEF00D, "8de0fbd70c"), (0xFFFFFFFF, "ffffffff0f")],
)
def test_collection_ids_have_one_form(number: int, data: str) -> None:
    assert leb128_encode(number).hex() == data
    assert leb128_decode(bytes.fromhex(data) + b"key") == (number, len(data) // 2)
    assert leb128_decode(bytes.fromhex(data)) == (number, len(data) // 2)


@rule("COL-03")
@each_case("data", ["", "80", "8000", "8100", "ffffffff10", "ffffffff8f00", "ffffffffff", "80808000"])
def test_other_forms_of_collection_ids_are_refused(data: str) -> None:
    with pytest.raises(FieldError):
        leb128_decode(bytes.fromhex(data))
    for number in (-1, 1 << 32):
        with pytest.raises(FieldError):
            leb128_encode(number)


@rule("HDR-15")
def test_a_value_may_inflate_to_a_limit() -> None:
    packed = snappy_compress(b"v" * 100)
    assert snappy_uncompress(packed, 100) == b"v" * 100
    with pytest.raises(FieldError, match="100 bytes"):
        snappy_uncompress(packed, 99)


@rule("HDR-18")
@each_case("place", [17, 20, 23])
def test_what_pads_a_request_is_zero(place: int) -> None:
    node = SimulatedNode()
    extras = bytearray(24)
    assert node.admin.call(Opcode.COMPACT_DB, vbid=1, extras=bytes(extras)).status == 0
    extras[place] = 1
    assert node.admin.call(Opcode.COMPACT_DB, vbid=1, extras=bytes(extras)).status == Status.EINVAL
