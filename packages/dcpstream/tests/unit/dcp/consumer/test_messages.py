"""The times of tombstones, and the counters of use, in the stored form of rows."""

import struct

from dcpstream.dcp.consumer.messages import Dialect, read_change, read_prepare
from dcpstream.wire import Opcode, decode_frame
from dcpstream.wire.messages.dcp import Mutation, Prepare
from tests.kit.cases import each_case
from tests.kit.lists import frame_of
from tests.kit.rules import rule

PLAIN = Dialect(datatypes=7)
NAMED = Dialect(has_collections=True, datatypes=7)
DELETION = struct.pack(">QQH", 5, 2, 0)
DELETION_V2 = struct.pack(">QQIB", 5, 2, 1234, 0)
EXPIRATION = struct.pack(">QQI", 5, 2, 4321)


def change_of(opcode, dialect=PLAIN, unix_s=99, **fields):
    return read_change(frame_of(opcode, vbid=3, opaque=7, **fields), dialect, unix_s)


@each_case(
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


@rule("CTL-14")
@each_case(("counter", "stored"), [(0, 3), (3, 3), (4, 2), (31, 2), (32, 1), (63, 1), (64, 0), (255, 0)])
def test_the_counter_that_came_is_exact_and_the_stored_one_coarse(counter, stored):
    extras = Mutation.layout.extras.pack(5, 1, 0, 0, 0, 0, counter)
    mutation = change_of(Opcode.DCP_MUTATION, key=b"k", cas=1, extras=extras)
    assert mutation.frame[Mutation.layout.offset("nru")] == stored
    extras = Prepare.layout.extras.pack(5, 1, 0, 0, 0, counter, 0, 1)
    prepare = read_prepare(frame_of(Opcode.DCP_PREPARE, key=b"k", cas=1, extras=extras), PLAIN)
    assert prepare.change.frame[Prepare.layout.offset("nru")] == stored
