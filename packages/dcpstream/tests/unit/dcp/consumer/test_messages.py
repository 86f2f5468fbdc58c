"""The times of tombstones in the stored form of rows."""

import struct

import pytest

from dcpstream.dcp.consumer.messages import Dialect, read_change
from dcpstream.wire import Opcode, decode_frame
from tests.kit.lists import frame_of

PLAIN = Dialect(datatypes=7)
NAMED = Dialect(has_collections=True, datatypes=7)
DELETION = struct.pack(">QQH", 5, 2, 0)
DELETION_V2 = struct.pack(">QQIB", 5, 2, 1234, 0)
EXPIRATION = struct.pack(">QQI", 5, 2, 4321)


def change_of(opcode, dialect=PLAIN, unix_s=99, **fields):
    return read_change(frame_of(opcode, vbid=3, opaque=7, **fields), dialect, unix_s)


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
