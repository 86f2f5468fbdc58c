"""Single changes out of data messages."""

from __future__ import annotations

import struct

import pytest

from dcpstream.client.machine.reader.changes import change_of
from dcpstream.errors import FieldError
from dcpstream.wire import Datatype, Frame, Opcode, decode_frame
from dcpstream.wire.values import encode_xattrs, snappy_compress
from tests.kit.messages import deletion, mutation

NAMES = {0: ("_default", "_default"), 8: ("inventory", "flights")}


def test_a_mutation() -> None:
    change = change_of(decode_frame(mutation(1, 5, vbid=3, key=b"a", value=b"{}", rev=2)), True, NAMES, 0xA)
    assert (change.op, change.key, change.value) == ("mutation", b"a", b"{}")
    assert (change.scope, change.collection) == ("_default", "_default")
    assert (change.vbid, change.vbuuid, change.seqno, change.rev, change.cas) == (3, 0xA, 5, 2, 5 << 16)
    assert (change.flags, change.expiry) == (7, 0)


def test_a_deletion_without_a_body() -> None:
    change = change_of(decode_frame(deletion(1, 5)), True, NAMES, 0xA)
    assert (change.op, change.value, change.expiry) == ("deletion", None, 1_700_000_000)


def test_an_old_deletion_has_no_time() -> None:
    frame = Frame(0x80, Opcode.DCP_DELETION, extras=struct.pack(">QQH", 4, 2, 0), key=b"k")
    change = change_of(frame, False, NAMES, 0xA)
    assert (change.key, change.expiry) == (b"k", 0)


def test_an_expiration() -> None:
    frame = Frame(0x80, Opcode.DCP_EXPIRATION, extras=struct.pack(">QQI", 4, 2, 99), key=b"\x08k")
    change = change_of(frame, True, NAMES, 0xA)
    assert (change.op, change.expiry, change.collection) == ("expiration", 99, "flights")


def test_an_unknown_collection_shows_its_id() -> None:
    frame = Frame(0x80, Opcode.DCP_EXPIRATION, extras=struct.pack(">QQI", 4, 2, 99), key=b"\x7fk")
    assert change_of(frame, True, NAMES, 0xA).collection == "0x7f"


def test_compressed_values_and_xattrs() -> None:
    frame = decode_frame(mutation(1, 5, value=snappy_compress(encode_xattrs({"_sync": b"1"}, b'{"a":1}'))))
    frame.datatype = Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR
    change = change_of(frame, True, NAMES, 0xA)
    assert (change.value, change.xattrs) == (b'{"a":1}', {"_sync": b"1"})


def test_an_empty_document_is_not_a_missing_one() -> None:
    assert change_of(decode_frame(mutation(1, 5, value=b"")), True, NAMES, 0xA).value == b""


def test_broken_extras() -> None:
    with pytest.raises(FieldError):
        change_of(Frame(0x80, Opcode.DCP_MUTATION, extras=b"123", key=b"\0k"), True, NAMES, 0xA)
