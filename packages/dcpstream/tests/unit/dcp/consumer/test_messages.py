"""Rows and markers as they come, and the stored form they get."""

import struct

import pytest

from dcpstream.dcp.consumer.messages import Dialect, Marker, read_change, read_marker, read_system_event
from dcpstream.dcp.refusals import Refusal
from dcpstream.wire import Opcode, Status, decode_frame
from dcpstream.wire.values import encode_xattrs, snappy_compress
from tests.kit.lists import frame_of

PLAIN = Dialect(datatypes=7)
NAMED = Dialect(has_collections=True, datatypes=7)
MUTATION = struct.pack(">QQIIIHB", 5, 2, 0x55, 777, 0, 0, 9)
DELETION = struct.pack(">QQH", 5, 2, 0)
DELETION_V2 = struct.pack(">QQIB", 5, 2, 1234, 0)
EXPIRATION = struct.pack(">QQI", 5, 2, 4321)


def change_of(opcode, dialect=PLAIN, unix_s=99, **fields):
    return read_change(frame_of(opcode, vbid=3, opaque=7, **fields), dialect, unix_s)


def test_a_mutation_gets_its_prefix_and_keeps_its_fields():
    change = change_of(Opcode.DCP_MUTATION, key=b"k", value=b"v", cas=11, extras=MUTATION, datatype=1)
    stored = decode_frame(change.frame)
    assert (stored.vbid, stored.opaque, stored.cas, stored.datatype) == (3, 0, 11, 1)
    assert (stored.key, stored.value, stored.extras) == (b"\0k", b"v", MUTATION)
    assert (change.key, change.seqno, change.cas, change.rev_seqno, change.is_deleted) == (b"\0k", 5, 11, 2, False)


def test_values_are_stored_as_they_came():
    value = snappy_compress(encode_xattrs({"_s": b"1"}, b"body" * 10))
    fields = {"key": b"k", "value": value, "extras": MUTATION, "datatype": 6}
    stored = decode_frame(change_of(Opcode.DCP_MUTATION, **fields).frame)
    assert (stored.value, stored.datatype) == (value, 6)


@pytest.mark.parametrize(
    ("opcode", "extras", "dialect", "time"),
    [
        (Opcode.DCP_DELETION, DELETION, PLAIN, 99),
        (Opcode.DCP_DELETION, DELETION_V2, NAMED, 1234),
        (Opcode.DCP_DELETION, DELETION_V2, Dialect(has_delete_times=True), 1234),
        (Opcode.DCP_EXPIRATION, EXPIRATION, PLAIN, 4321),
    ],
)
def test_tombstones_have_a_time(opcode, extras, dialect, time):
    key = b"\0k" if dialect.has_collections else b"k"
    change = change_of(opcode, dialect, key=key, extras=extras)
    stored = decode_frame(change.frame)
    assert (stored.opcode, stored.key, change.is_deleted) == (opcode, b"\0k", True)
    assert int.from_bytes(stored.extras[16:20], "big") == time


@pytest.mark.parametrize(
    ("value", "datatype", "kept", "kind"),
    [(b"body", 0, b"", 0), (encode_xattrs({"_s": b"1"}, b"body"), 5, encode_xattrs({"_s": b"1"}), 4)],
)
def test_a_tombstone_keeps_xattrs_and_no_body(value, datatype, kept, kind):
    stored = decode_frame(
        change_of(Opcode.DCP_DELETION, key=b"k", value=value, extras=DELETION, datatype=datatype).frame
    )
    assert (stored.value, stored.datatype) == (kept, kind)


@pytest.mark.parametrize(
    ("opcode", "fields", "dialect", "status"),
    [
        (Opcode.DCP_MUTATION, {"extras": bytes(31)}, PLAIN, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION[:28] + b"\0\1\0"}, PLAIN, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "datatype": 2, "value": b"\xff"}, PLAIN, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "datatype": 4, "value": b"v"}, PLAIN, Status.XATTR_EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "datatype": 2}, Dialect(datatypes=1), Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "key": b"\x80\0k"}, NAMED, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "key": b"\0"}, NAMED, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "key": b"\1k"}, NAMED, Status.EINVAL),
        (Opcode.DCP_MUTATION, {"extras": MUTATION, "key": b"\x08" + bytes(247)}, NAMED, Status.EINVAL),
        (Opcode.DCP_DELETION, {"extras": DELETION_V2}, PLAIN, Status.EINVAL),
        (Opcode.DCP_DELETION, {"extras": DELETION, "key": b"\0k"}, NAMED, Status.EINVAL),
        (Opcode.DCP_DELETION, {"extras": DELETION, "datatype": 1, "value": b"{}"}, PLAIN, Status.EINVAL),
        (Opcode.DCP_DELETION, {"extras": bytes(18)}, PLAIN, Status.EINVAL),
    ],
)
def test_what_is_refused(opcode, fields, dialect, status):
    refusal = change_of(opcode, dialect, **{"key": b"k", **fields})
    assert isinstance(refusal, Refusal)
    assert refusal.status is status


def test_markers_of_every_version():
    v1 = frame_of(Opcode.DCP_SNAPSHOT_MARKER, extras=struct.pack(">QQI", 1, 5, 9))
    assert read_marker(v1) == Marker(1, 5, 9)
    value = struct.pack(">QQIQQ", 1, 5, 9, 4, 3)
    assert read_marker(frame_of(Opcode.DCP_SNAPSHOT_MARKER, extras=b"\0", value=value)) == Marker(1, 5, 9, 4, 3)
    more = value + struct.pack(">QQ", 2, 1)
    assert read_marker(frame_of(Opcode.DCP_SNAPSHOT_MARKER, extras=b"\2", value=more)) == Marker(1, 5, 9, 4, 3, 2, 1)


@pytest.mark.parametrize(
    ("event", "version", "key", "value"),
    [
        (0, 0, b"fruit", bytes(16)),
        (0, 1, b"fruit", bytes(20)),
        (1, 0, b"", bytes(16)),
        (3, 0, b"shop", bytes(12)),
        (4, 0, b"", bytes(12)),
    ],
)
def test_system_events_are_kept_as_they_are(event, version, key, value):
    extras = struct.pack(">QIB", 5, event, version)
    frame = frame_of(Opcode.DCP_SYSTEM_EVENT, vbid=3, opaque=7, extras=extras, key=key, value=value)
    change = read_system_event(frame, NAMED)
    stored = decode_frame(change.frame)
    assert (stored.opaque, stored.extras, stored.key, stored.value, change.seqno) == (0, extras, key, value, 5)
    assert read_system_event(frame, PLAIN) == Refusal(Status.EINVAL)
